#include "rl/rollout/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "io/safetensors.h"

#define IN_FLIGHT "in_flight.safetensors"

struct batch *pipeline_push(struct pipeline *p, int64_t step, int64_t sampled_in, int64_t sampled_at) {
    if (p->n == p->cap)
        p->batch = xrealloc(p->batch, (size_t)(p->cap = p->cap ? 2 * p->cap : 4) * sizeof(struct batch *));
    struct batch *b = p->batch[p->n++] = xcalloc(1, sizeof *b);
    b->step = step;
    b->sampled_in = sampled_in;
    b->sampled_at = sampled_at;
    return b;
}

static void batch_free(struct batch *b) {
    rollout_free(&b->r);
    free(b);
}

void pipeline_pop(struct pipeline *p) {
    batch_free(p->batch[0]);
    memmove(p->batch, p->batch + 1, (size_t)--p->n * sizeof(struct batch *));
}

void pipeline_drop_last(struct pipeline *p) { batch_free(p->batch[--p->n]); }

void pipeline_free(struct pipeline *p) {
    while (p->n > 0) pipeline_drop_last(p);
    free(p->batch);
    *p = (struct pipeline){0};
}

int64_t pipeline_age(struct pipeline *p, int64_t opt_step) {
    struct batch *b = p->batch[0];
    for (int i = 0; i < b->r.n; i++) b->r.group[i].stale = (int)(opt_step - b->sampled_at);
    return opt_step - b->sampled_at;
}

/* ---- in a checkpoint ----------------------------------------------------------------------------------------------*/

/* Rows of the tables in the file. */
enum { BATCH_STEP, BATCH_SAMPLED_AT, BATCH_GROUPS, BATCH_COLUMNS };
enum { GROUP_PROBLEM, GROUP_TASK_AT, GROUP_TURN_AT, GROUP_FIRST, GROUP_SAMPLES, GROUP_PROMPT, GROUP_COLUMNS };
enum { SAMPLE_TOKENS, SAMPLE_STOP, SAMPLE_COLUMNS };
enum { T_BATCHES, T_GROUPS, T_SAMPLES, T_PROMPTS, T_IDS, T_LOGP, T_ENTROPY, TENSORS };
static const char *const tensor_names[TENSORS] = {"batches", "groups", "samples", "prompt_ids",
                                                  "ids",     "logp",   "entropy"};
static const enum st_dtype tensor_dtypes[TENSORS] = {ST_DTYPE_I64, ST_DTYPE_I64, ST_DTYPE_I64, ST_DTYPE_I32,
                                                     ST_DTYPE_I32, ST_DTYPE_F32, ST_DTYPE_F32};
static const int64_t tensor_columns[TENSORS] = {BATCH_COLUMNS, GROUP_COLUMNS, SAMPLE_COLUMNS, 1, 1, 1, 1};

/* Tells a source of problems that has changed, not one that somebody has forged. */
static int64_t problem_hash(const struct problem *p) {
    return (int64_t)hash_bytes(p->code, strlen(p->code), hash_str(p->key));
}

struct tables { /* elements of each tensor, one after the other */
    int64_t *batch, *group, *sample;
    int32_t *prompt, *id;
    float *logp, *entropy;
    int64_t rows[TENSORS];
};

static void count_rows(const struct pipeline *p, int64_t *rows) {
    rows[T_BATCHES] = p->n;
    for (int k = 0; k < p->n; k++)
        for (int i = 0; i < p->batch[k]->r.n; i++) {
            const struct sample_group *g = &p->batch[k]->r.group[i];
            rows[T_GROUPS]++;
            rows[T_SAMPLES] += g->n;
            rows[T_PROMPTS] += (int64_t)g->prompt.len;
            for (int j = 0; j < g->n; j++) rows[T_IDS] += g->ep[j].sample.n;
        }
    rows[T_LOGP] = rows[T_ENTROPY] = rows[T_IDS];
}

static void fill_tables(const struct pipeline *p, struct tables *t) {
    int64_t n_group = 0, n_sample = 0, n_prompt = 0, n_id = 0;
    for (int k = 0; k < p->n; k++) {
        const struct batch *b = p->batch[k];
        memcpy(t->batch + (ptrdiff_t)k * BATCH_COLUMNS, (const int64_t[]){b->step, b->sampled_at, b->r.n},
               BATCH_COLUMNS * sizeof(int64_t));
        for (int i = 0; i < b->r.n; i++) {
            const struct sample_group *g = &b->r.group[i];
            memcpy(
                t->group + n_group++ * GROUP_COLUMNS,
                (const int64_t[]){problem_hash(g->problem), g->task, g->turn, g->first, g->n, (int64_t)g->prompt.len},
                GROUP_COLUMNS * sizeof(int64_t));
            memcpy(t->prompt + n_prompt, g->prompt.p, g->prompt.len * sizeof *t->prompt);
            n_prompt += (int64_t)g->prompt.len;
            for (int j = 0; j < g->n; j++) {
                const struct sample *s = &g->ep[j].sample;
                memcpy(t->sample + n_sample++ * SAMPLE_COLUMNS, (const int64_t[]){s->n, s->stop},
                       SAMPLE_COLUMNS * sizeof(int64_t));
                memcpy(t->id + n_id, s->ids, (size_t)s->n * sizeof *t->id);
                memcpy(t->logp + n_id, s->logp, (size_t)s->n * sizeof *t->logp);
                memcpy(t->entropy + n_id, s->entropy, (size_t)s->n * sizeof *t->entropy);
                n_id += s->n;
            }
        }
    }
}

enum status pipeline_save(const struct pipeline *all, int64_t step, const char *dir, struct err *e) {
    struct pipeline old = *all; /* a view; they were sampled in the order in which they stand */
    while (old.n > 0 && old.batch[old.n - 1]->sampled_in >= step) old.n--;
    if (old.n == 0) return ST_OK;
    const struct pipeline *p = &old;
    struct tables t = {0};
    struct arena arena = ARENA_INIT;
    CLEANUP_STR struct str path = STR_INIT;
    count_rows(p, t.rows);
    void *data[TENSORS];
    struct st_entry entry[TENSORS] = {0};
    for (int i = 0; i < TENSORS; i++) {
        const int64_t numel = t.rows[i] * tensor_columns[i];
        data[i] = arena_alloc(&arena, (size_t)numel * st_dtype_bytes(tensor_dtypes[i]));
        entry[i] = (struct st_entry){.name = tensor_names[i],
                                     .dtype = tensor_dtypes[i],
                                     .from = tensor_dtypes[i],
                                     .nd = tensor_columns[i] > 1 ? 2 : 1,
                                     .dim = {t.rows[i], tensor_columns[i]},
                                     .data = data[i]};
    }
    t.batch = data[T_BATCHES];
    t.group = data[T_GROUPS];
    t.sample = data[T_SAMPLES];
    t.prompt = data[T_PROMPTS];
    t.id = data[T_IDS];
    t.logp = data[T_LOGP];
    t.entropy = data[T_ENTROPY];
    fill_tables(p, &t);
    str_addf(&path, "%s/" IN_FLIGHT, dir);
    const enum status st = st_write(path.p, entry, TENSORS, (const char *const[]){"version", "1", NULL}, e);
    arena_free(&arena);
    return st;
}

/* Copies of the tensors, whose shapes and types are what they should be. */
static enum status read_tables(const struct st_file *f, const char *path, struct arena *arena, struct tables *t,
                               struct err *e) {
    void *data[TENSORS];
    const char *version = st_metadata(f, "version");
    if (!version || strcmp(version, "1") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: version %s, expected 1", path, version ? version : "missing");
    for (int i = 0; i < TENSORS; i++) {
        const struct st_tensor *x = st_find(f, tensor_names[i]);
        if (!x) return FAIL(e, ST_PARSE, "%s: no tensor \"%s\"", path, tensor_names[i]);
        const int nd = tensor_columns[i] > 1 ? 2 : 1;
        if (x->dtype != tensor_dtypes[i] || x->nd != nd || (nd == 2 && x->dim[1] != tensor_columns[i]))
            return FAIL(e, ST_PARSE, "%s: tensor \"%s\" has a type or shape that no run writes", path, x->name);
        t->rows[i] = x->dim[0];
        data[i] = arena_alloc(arena, x->bytes + 1);
        memcpy(data[i], x->data, x->bytes);
    }
    t->batch = data[T_BATCHES];
    t->group = data[T_GROUPS];
    t->sample = data[T_SAMPLES];
    t->prompt = data[T_PROMPTS];
    t->id = data[T_IDS];
    t->logp = data[T_LOGP];
    t->entropy = data[T_ENTROPY];
    return ST_OK;
}

/* The cursor holds the read positions in the loaded tensors. Each read checks that the tensor is long enough. */
struct table_cursor {
    int64_t at[TENSORS];
};

static const struct problem *find_problem(const struct problem *const *problems, int n, int64_t hash) {
    for (int i = 0; i < n; i++)
        if (problem_hash(problems[i]) == hash) return problems[i];
    return NULL;
}

static bool take(const struct tables *t, struct table_cursor *c, int which, int64_t n, int64_t *from) {
    if (n < 0 || n > t->rows[which] - c->at[which]) return false;
    *from = c->at[which];
    c->at[which] += n;
    return true;
}

static enum status read_group(const struct tables *t, struct table_cursor *c, const char *path,
                              const struct problem *const *problems, int n_problems, int32_t vocab, struct rollout *r,
                              struct err *e) {
    int64_t row, at;
    if (!take(t, c, T_GROUPS, 1, &row)) return FAIL(e, ST_PARSE, "%s: fewer groups than its batches have", path);
    const int64_t *g = t->group + row * GROUP_COLUMNS;
    const struct problem *problem = find_problem(problems, n_problems, g[GROUP_PROBLEM]);
    if (!problem)
        return FAIL(e, ST_INVALID, "%s: answers to a problem that is not among this run's training problems", path);
    const int64_t n = g[GROUP_SAMPLES];
    if (g[GROUP_TASK_AT] < 0 || g[GROUP_TASK_AT] > r->n || g[GROUP_TURN_AT] < 0 || g[GROUP_TURN_AT] >= TURNS_MAX ||
        g[GROUP_FIRST] < 0 || g[GROUP_FIRST] > INT32_MAX || n < 1 || n > t->rows[T_SAMPLES] - c->at[T_SAMPLES] ||
        !take(t, c, T_PROMPTS, g[GROUP_PROMPT], &at))
        return FAIL(e, ST_PARSE, "%s: group %lld is not what a run writes", path, (long long)row);
    struct ids prompt = {0};
    for (int64_t i = 0; i < g[GROUP_PROMPT]; i++) ids_add(&prompt, t->prompt[at + i]);
    struct sample_group *out = rollout_add_group(r, problem, &prompt, (int)g[GROUP_TASK_AT], (int)g[GROUP_TURN_AT],
                                                 (int)g[GROUP_FIRST], (int)n);
    for (int64_t j = 0; j < n; j++) {
        struct sample *s = &out->ep[j].sample;
        (void)take(t, c, T_SAMPLES, 1, &row);
        const int64_t tokens = t->sample[row * SAMPLE_COLUMNS + SAMPLE_TOKENS],
                      stop = t->sample[row * SAMPLE_COLUMNS + SAMPLE_STOP];
        if (tokens < 1 || tokens > INT32_MAX || stop < STOP_TOKEN || stop > STOP_LENGTH ||
            !take(t, c, T_IDS, tokens, &at))
            return FAIL(e, ST_PARSE, "%s: sample %lld is not what a run writes", path, (long long)row);
        *s = (struct sample){.n = (int)tokens, .stop = (enum stop_reason)stop};
        s->ids = xmalloc((size_t)tokens * sizeof *s->ids);
        s->logp = xmalloc((size_t)tokens * sizeof *s->logp);
        s->entropy = xmalloc((size_t)tokens * sizeof *s->entropy);
        memcpy(s->ids, t->id + at, (size_t)tokens * sizeof *s->ids);
        memcpy(s->logp, t->logp + at, (size_t)tokens * sizeof *s->logp);
        memcpy(s->entropy, t->entropy + at, (size_t)tokens * sizeof *s->entropy);
        for (int64_t k = 0; k < tokens; k++)
            if (s->ids[k] < 0 || s->ids[k] >= vocab)
                return FAIL(e, ST_PARSE, "%s: token %d is not one of the model's", path, s->ids[k]);
    }
    return ST_OK;
}

static enum status read_batches(struct pipeline *p, const struct tables *t, const char *path, const struct actor *a,
                                const struct problem *const *problems, int n, struct err *e) {
    struct table_cursor c = {0};
    if (t->rows[T_LOGP] != t->rows[T_IDS] || t->rows[T_ENTROPY] != t->rows[T_IDS])
        return FAIL(e, ST_PARSE, "%s: ids, logp and entropy differ in length", path);
    for (int64_t k = 0; k < t->rows[T_BATCHES]; k++) {
        const int64_t *row = t->batch + k * BATCH_COLUMNS;
        struct batch *b = pipeline_push(p, row[BATCH_STEP], -1, row[BATCH_SAMPLED_AT]);
        for (int64_t i = 0; i < row[BATCH_GROUPS]; i++)
            TRY(read_group(t, &c, path, problems, n, model_cfg(a->model)->V, &b->r, e));
        TRY(rollout_restore(a, b->step, &b->r, path, e));
    }
    return ST_OK;
}

enum status pipeline_load(struct pipeline *p, const char *dir, const struct actor *a,
                          const struct problem *const *problems, int n, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    struct st_file f;
    struct tables t = {0};
    struct arena arena = ARENA_INIT;
    str_addf(&path, "%s/" IN_FLIGHT, dir);
    if (!fs_is_file(path.p)) return ST_OK;
    TRY(st_open(path.p, &f, e));
    enum status st = read_tables(&f, path.p, &arena, &t, e);
    if (st == ST_OK) st = read_batches(p, &t, path.p, a, problems, n, e);
    if (st != ST_OK) pipeline_free(p);
    arena_free(&arena);
    st_close(&f);
    return st;
}
