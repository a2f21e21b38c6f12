/* The search on disk (docs/formats.md, "Search"): candidates.jsonl, whose lines count once waves.jsonl says that their
 * wave has happened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "optimize/internal.h"

enum { LINE_MAX_BYTES = 64 << 20, VERSION = 1 };

/* ---- waves.jsonl --------------------------------------------------------------------------------------------------*/

static void put_header(const struct answer_search *s, struct str *out) {
    js_begin(out, NULL, '{');
    js_put_i64(out, "version", VERSION);
    js_begin(out, "tasks", '[');
    for (int i = 0; i < s->tasks->n; i++) {
        const struct search_task *t = &s->tasks->items[i];
        js_begin(out, NULL, '{');
        js_put_str(out, "task", t->key);
        js_begin(out, "shapes", '[');
        for (int k = 0; k < t->n_shapes; k++)
            js_put_str(out, NULL, digest_of(t->shape[k].code, strlen(t->shape[k].code)).hex);
        js_end(out, ']');
        js_end(out, '}');
    }
    js_end(out, ']');
    js_end(out, '}');
    str_addc(out, '\n');
}

static enum status check_header(const struct answer_search *s, const char *line, size_t n, const char *path,
                                struct err *e) {
    CLEANUP_STR struct str mine = STR_INIT;
    CLEANUP_JSON json_t *row = NULL;
    int64_t version;
    put_header(s, &mine);
    if (mine.len == n + 1 && memcmp(mine.p, line, n) == 0) return ST_OK;
    TRY(js_parse(line, n, path, &row, e));
    TRY(js_get_i64(row, path, "version", &version, e));
    if (version != VERSION)
        return FAIL(e, ST_UNSUPPORTED, "%s: version %lld, expected %d", path, (long long)version, VERSION);
    return FAIL(
        e, ST_INVALID,
        "%s: the search there is of other problems, or the file has changed since; give another output_path, or "
        "remove %s to begin again",
        path, s->dir);
}

static enum status read_wave(struct answer_search *s, const json_t *row, const char *where, struct err *e) {
    struct search_state *x = &s->state;
    int64_t wave;
    TRY(js_get_i64(row, where, "wave", &wave, e));
    if (wave != x->waves) return FAIL(e, ST_PARSE, "%s: wave: expected %d, got %lld", where, x->waves, (long long)wave);
    TRY(js_get_f64(row, where, "elapsed_s", &x->elapsed_s, e));
    TRY(js_get_i64(row, where, "spent", &x->spent, e));
    TRY(js_get_i64(row, where, "sampled", &x->sampled, e));
    TRY(js_get_i64(row, where, "tokens", &x->tokens, e));
    TRY(js_get_i64(row, where, "measured", &x->measured, e));
    x->waves++;
    return ST_OK;
}

/* Reads the waves that have happened, but none from `most` on. *keep: the bytes that the others and the header take; 0:
 * there is no header yet. */
static enum status read_waves(struct answer_search *s, const char *path, int most, int64_t *keep, struct err *e) {
    struct jsonl_reader *r = NULL;
    enum status st = ST_OK;
    *keep = 0;
    if (!fs_is_file(path)) return ST_OK;
    TRY(jsonl_open(path, LINE_MAX_BYTES, &r, e));
    while (st == ST_OK) {
        const char *line;
        size_t n;
        char where[4200];
        CLEANUP_JSON json_t *row = NULL;
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(r));
        if (*keep == 0) {
            st = check_header(s, line, n, path, e);
        } else {
            if (s->state.waves >= most) break;
            st = js_parse(line, n, where, &row, e);
            if (st != ST_OK && jsonl_is_torn(r)) { /* what a killed writer left */
                st = ST_OK;
                break;
            }
            if (st == ST_OK) st = read_wave(s, row, where, e);
        }
        *keep = jsonl_offset(r) + (int64_t)n + 1;
    }
    jsonl_close(r);
    return st;
}

/* ---- candidates.jsonl ---------------------------------------------------------------------------------------------*/

void record_put_again(const struct search_task *t, const struct search_candidate *c, int wave, const struct verdict *v,
                      struct str *out) {
    js_begin(out, NULL, '{');
    js_put_str(out, "task", t->key);
    js_put_i64(out, "again", c->id);
    js_put_i64(out, "wave", wave);
    js_begin(out, "verdicts", '[');
    for (int i = 0; i < t->n_shapes; i++) verdict_to_json(&v[i], out);
    js_end(out, ']');
    js_end(out, '}');
    str_addc(out, '\n');
}

static struct search_task *task_of(const struct answer_search *s, const json_t *row, const char *where, struct err *e) {
    const char *key;
    if (js_get_str(row, where, "task", &key, e) != ST_OK) return NULL;
    for (int i = 0; i < s->tasks->n; i++)
        if (strcmp(s->tasks->items[i].key, key) == 0) return &s->tasks->items[i];
    (void)FAIL(e, ST_PARSE, "%s: task: there is no \"%s\"", where, key);
    return NULL;
}

static enum status read_again(struct search_task *t, const json_t *row, const char *where, struct err *e) {
    struct verdict v[SHAPES_MAX];
    int64_t id;
    json_t *all;
    TRY(js_get_i64(row, where, "again", &id, e));
    TRY(js_get_array(row, where, "verdicts", &all, e));
    if (id < 0 || id >= t->found.n || (int)json_array_size(all) != t->n_shapes)
        return FAIL(e, ST_PARSE, "%s: again: expected an earlier candidate, and a verdict for each shape", where);
    for (int i = 0; i < t->n_shapes; i++) TRY(verdict_from_json(json_array_get(all, (size_t)i), where, &v[i], e));
    candidate_judged_again(&t->found.c[id], v, t->weight, t->n_shapes);
    t->spent++;
    return ST_OK;
}

static enum status read_candidate(struct search_task *t, const json_t *row, const char *where, struct err *e) {
    struct search_candidate c;
    enum status st = candidate_get(row, where, t->weight, t->n_shapes, &c, e);
    if (st == ST_OK && c.id != t->found.n)
        st = FAIL(e, ST_PARSE, "%s: id: expected %d, got %d", where, t->found.n, c.id);
    if (st != ST_OK) {
        candidate_free(&c);
        return st;
    }
    t->spent = c.spent;
    t->sampled++;
    (void)population_add(&t->found, &c);
    return ST_OK;
}

/* What the tasks had gained wave by wave, as wave_take() notes it. */
struct wave_edge {
    int wave; /* that the task's last lines were of; -1: none yet */
    double before;
};
static void end_wave(struct search_task *t, struct wave_edge *x) {
    const int best = population_best(&t->found);
    if (x->wave < 0) return;
    share_note(t, x->before, best < 0 ? 0 : candidate_speed(&t->found.c[best]));
    t->waves++;
}

static enum status read_line(struct answer_search *s, const json_t *row, const char *where, struct wave_edge *edge,
                             struct err *e) {
    struct search_task *t = task_of(s, row, where, e);
    int64_t wave;
    if (!t) return ST_PARSE;
    TRY(js_get_i64(row, where, "wave", &wave, e));
    struct wave_edge *mine = &edge[t - s->tasks->items];
    const bool again = json_object_get(row, "again") != NULL;
    if (wave != mine->wave && !again) {
        const int best = population_best(&t->found);
        end_wave(t, mine);
        *mine = (struct wave_edge){(int)wave, best < 0 ? 0 : candidate_speed(&t->found.c[best])};
    }
    return again ? read_again(t, row, where, e) : read_candidate(t, row, where, e);
}

/* Reads the lines of waves that have happened; *keep: the bytes that they take. */
static enum status read_candidates(struct answer_search *s, const char *path, int64_t *keep, struct err *e) {
    struct jsonl_reader *r = NULL;
    enum status st = ST_OK;
    *keep = 0;
    if (!fs_is_file(path)) return ST_OK;
    struct wave_edge *edge = xcalloc((size_t)s->tasks->n + 1, sizeof *edge);
    for (int i = 0; i < s->tasks->n; i++) edge[i].wave = -1;
    st = jsonl_open(path, LINE_MAX_BYTES, &r, e);
    while (st == ST_OK) {
        const char *line;
        size_t n;
        char where[4200];
        int64_t wave;
        CLEANUP_JSON json_t *row = NULL;
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(r));
        st = js_parse(line, n, where, &row, e);
        if (st != ST_OK && jsonl_is_torn(r)) st = ST_OK; /* what a killed writer left */
        if (st != ST_OK || !row || (st = js_get_i64(row, where, "wave", &wave, e)) != ST_OK) break;
        if (wave >= s->state.waves) break;
        st = read_line(s, row, where, edge, e);
        *keep = jsonl_offset(r) + (int64_t)n + 1;
    }
    for (int i = 0; st == ST_OK && i < s->tasks->n; i++) end_wave(&s->tasks->items[i], &edge[i]);
    jsonl_close(r);
    free(edge);
    return st;
}

/* ---- both ---------------------------------------------------------------------------------------------------------*/

enum status record_open(struct answer_search *s, int most, struct err *e) {
    CLEANUP_FREE char *waves = fs_join(s->dir, "waves.jsonl"), *candidates = fs_join(s->dir, "candidates.jsonl");
    CLEANUP_STR struct str header = STR_INIT;
    int64_t keep_waves, keep;
    TRY(read_waves(s, waves, most, &keep_waves, e));
    TRY(read_candidates(s, candidates, &keep, e));
    TRY(jsonl_append_open(waves, &s->waves, NULL, e));
    TRY(jsonl_append_open(candidates, &s->candidates, NULL, e));
    TRY(jsonl_append_cut(s->waves, keep_waves, e));
    TRY(jsonl_append_cut(s->candidates, keep, e));
    if (keep_waves > 0) return ST_OK;
    put_header(s, &header);
    return jsonl_append(s->waves, header.p, header.len, e);
}

enum status record_wave(struct answer_search *s, const struct str *lines, struct err *e) {
    struct search_state *x = &s->state;
    CLEANUP_STR struct str line = STR_INIT;
    const double now = clock_now_s();
    if (lines->len > 0) TRY(jsonl_append(s->candidates, lines->p, lines->len, e));
    TRY(jsonl_sync(s->candidates, e));
    x->elapsed_s += now - s->since_s;
    s->since_s = now;
    js_begin(&line, NULL, '{');
    js_put_i64(&line, "wave", x->waves);
    js_put_f64(&line, "elapsed_s", x->elapsed_s);
    js_put_i64(&line, "spent", x->spent);
    js_put_i64(&line, "sampled", x->sampled);
    js_put_i64(&line, "tokens", x->tokens);
    js_put_i64(&line, "measured", x->measured);
    js_end(&line, '}');
    TRY(jsonl_append(s->waves, line.p, line.len, e));
    TRY(jsonl_sync(s->waves, e));
    x->waves++;
    return ST_OK;
}
