#include "verify/torch/case.h"
#include "verify/timing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/json.h"

static const double load_timeout_s = 300, work_timeout_s = 300;
/* Memory of a lane's slots. It is so much that a GPU's cache cannot hold what the calls of one request read, and up to
 * a share of what is free on the GPU, so that requests have many calls even where inputs are large. The outputs of a
 * request's calls are kept until they have been looked at. They may take OUTPUT_SHARE times as much. */
static const int64_t cpu_slot_bytes = 16 << 20, gpu_slot_bytes = 256 << 20, gpu_most_slot_bytes = (int64_t)4 << 30;
enum { CPU_SLOTS = 128, GPU_SLOTS = 128, FREE_SHARE = 32, OUTPUT_SHARE = 4 };

static bool on_gpu(const struct modcases *m) { return strncmp(m->o->device, "cuda", 4) == 0; }

void modcases_init(struct modcases *m, struct refworker *worker, const struct verify_options *o, uint64_t seed) {
    *m = (struct modcases){.worker = worker, .o = o, .seed = seed, .result_fd = -1};
}

static void forget_lane(struct modcase *c, int lane) {
    if (c->lane_fd[lane] >= 0) close(c->lane_fd[lane]);
    c->lane_fd[lane] = -1;
    free(c->handle[lane]);
    c->handle[lane] = NULL;
}

static void forget(struct modcase *c) {
    for (int i = 0; i < N_LANES; i++) forget_lane(c, i);
    json_decref(c->loaded);
    json_decref(c->watch);
    c->loaded = c->watch = NULL;
    c->watching = c->busy = false;
    c->generation = 0;
}

void modcases_free(struct modcases *m) {
    for (size_t i = 0; i < m->count; i++) {
        forget(m->items[i]);
        arena_free(&m->items[i]->arena);
        free(m->items[i]->code);
        free(m->items[i]);
    }
    free(m->items);
    if (m->result) munmap(m->result, (size_t)m->result_bytes);
    if (m->result_fd >= 0) close(m->result_fd);
    *m = (struct modcases){.result_fd = -1};
}

/* ---- requests ---- */

static void begin(struct str *q, const char *op, const struct modcase *c) {
    js_begin(q, NULL, '{');
    js_put_str(q, "op", op);
    if (c) js_put_i64(q, "problem", c->id);
}

static enum status ask(struct modcases *m, struct str *q, int fd, json_t **reply, struct err *e) {
    js_end(q, '}');
    enum status st = refworker_call(m->worker, q, fd, work_timeout_s, reply, e);
    if (st != ST_WORKER) return st;
    /* Everything that the worker held is gone. The caller's item is judged again from the start. */
    struct err why = *e;
    log_warn("%s; starting it again", why.msg);
    TRY(refworker_restart(m->worker, e));
    for (size_t i = 0; i < m->count; i++) forget(m->items[i]);
    return FAIL(e, ST_WORKER, "%s", why.msg);
}

uint64_t modcase_forward_seed(const struct modcase *c, const struct modset *s) {
    return hmac_u64(c->seed, "forward", s->seed, NULL, 0) >> 11;
}

static void put_set(struct str *q, const struct modcase *c, const struct modset *s, int slot) {
    js_begin(q, NULL, '{');
    js_put_i64(q, "slot", slot);
    js_put_str(q, "family", s->family);
    js_put_i64(q, "seed", (int64_t)s->seed);
    js_put_i64(q, "param_set", s->param_set);
    js_put_i64(q, "forward_seed", (int64_t)modcase_forward_seed(c, s));
}

/* ---- loading ---- */

const char *modcase_constants(const struct verify_options *o, int param_set) {
    if (param_set > 0) return "random";
    return o->scoring == SCORING_HARDENED && !o->single_input ? "touched" : "plain";
}

static uint64_t secret(const struct modcase *c, uint64_t stream, uint64_t i) {
    /* An answer is told some of these numbers, and sees what is drawn from others. It must not be able to find the
     * rest. They have 53 bits, so that they are positive, and exact for every JSON reader. */
    return hmac_u64(c->seed, "set", i, &stream, sizeof stream) >> 11;
}

static enum status read_description(struct modcase *c, struct err *e) {
    const json_t *outputs = json_object_get(c->loaded, "output_bytes");
    c->n_outputs = (int)json_array_size(outputs);
    if (c->n_outputs < 1 || c->n_outputs > MODCASE_MAX_OUTPUTS)
        return FAIL(e, ST_INVALID, "forward() returns %d tensors; 1 to %d are supported", c->n_outputs,
                    MODCASE_MAX_OUTPUTS);
    for (int i = 0; i < c->n_outputs; i++) c->output_bytes[i] = json_integer_value(json_array_get(outputs, (size_t)i));
    TRY(js_get_i64(c->loaded, "referee", "input_bytes", &c->input_bytes, e));
    TRY(js_get_i64(c->loaded, "referee", "param_bytes", &c->param_bytes, e));
    TRY(js_get_bool(c->loaded, "referee", "random", &c->random, e));
    TRY(js_get_bool(c->loaded, "referee", "mutates", &c->mutates, e));
    TRY(js_get_bool(c->loaded, "referee", "aliases", &c->aliases, e));
    const json_t *spec = json_object_get(c->loaded, "spec");
    if (!json_is_object(spec) || c->spec.n_args > 0) return ST_OK;
    char *text = json_dumps(spec, JSON_COMPACT);
    struct err ignored;
    /* The problem has more than the native ABI takes. Then there are no native answers to it. */
    if (spec_parse(&c->arena, text, strlen(text), &c->spec, &ignored) != ST_OK) c->spec = (struct spec){0};
    free(text);
    return ST_OK;
}

static enum status load(struct modcases *m, struct modcase *c, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    begin(&q, "module_load", c);
    js_put_str(&q, "code", c->code);
    js_put_str(&q, "device", m->o->device);
    js_put_str(&q, "precision", m->o->precision);
    js_put_bool(&q, "cpu_inputs", m->o->compat_cpu_inputs);
    js_begin(&q, "init_seeds", '[');
    for (int i = 0; i < 2; i++) js_put_i64(&q, NULL, (int64_t)c->init_seeds[i]);
    js_end(&q, ']');
    js_put_str(&q, "constants", modcase_constants(m->o, 0));
    js_end(&q, '}');
    enum status st = refworker_call(m->worker, &q, -1, load_timeout_s, &c->loaded, e);
    if (st == ST_WORKER) {
        struct err why = *e;
        log_warn("%s; starting it again", why.msg);
        TRY(refworker_restart(m->worker, e));
        st = refworker_call(m->worker, &q, -1, load_timeout_s, &c->loaded, e);
    }
    TRY(st);
    c->generation = m->worker->generation;
    TRY(read_description(c, e));
    int64_t slot_bytes = cpu_slot_bytes, most = on_gpu(m) ? GPU_SLOTS : CPU_SLOTS;
    if (on_gpu(m)) {
        TRY(js_get_i64(c->loaded, "referee", "free_bytes", &slot_bytes, e));
        slot_bytes = i64_min(i64_max(slot_bytes / FREE_SHARE, gpu_slot_bytes), gpu_most_slot_bytes);
    }
    int64_t a_slot = i64_max(c->input_bytes, 1), outputs = 0;
    for (int i = 0; i < c->n_outputs; i++) outputs += c->output_bytes[i];
    c->slots = (int)i64_max(1, i64_min(most, slot_bytes / i64_max(a_slot, outputs / OUTPUT_SHARE)));
    c->lane_bytes = 2 * c->param_bytes + c->slots * c->input_bytes;
    if (c->lane_bytes < 4096) c->lane_bytes = 4096;
    return ST_OK;
}

/* The families beyond `shipped`, the most telling ones first, each on one parameter set. An answer sees which parameter
 * set it has. It could take short cuts on the first set if it met nothing but shipped inputs there. Scaled inputs on
 * the first set are only for problems whose own inputs hardly change their outputs. For other problems the referee says
 * that they are not usable. */
static const struct {
    const char *name;
    int param_set;
} families[] = {{FAMILY_SCALED, 0}, {FAMILY_SIGNED, 1}, {FAMILY_PROBE, 1}, {FAMILY_OFFSET, 1}, {FAMILY_SPIKES, 0},
                {FAMILY_UNIT, 1},   {FAMILY_SCALED, 1}, {FAMILY_SMALL, 1}, {FAMILY_NEGATED, 1}};
/* What one of each OTHER_TIMED timed sets is: by turns those that the reference stands on parameters as initialised, in
 * a blind problem the first of them, because only scaled inputs tell. An answer that counts its calls could be wrong
 * for inputs of a family that never came. */
static const char *const timed_families[MODCASE_TIMED_FAMILIES] = {FAMILY_SCALED, FAMILY_SPIKES, FAMILY_SIGNED};

/* Begins the question which families the reference itself stands. wanted: how many usable ones are enough. timed: the
 * sets are for the clock, so that they have to take as long as shipped ones. */
static void begin_survey(struct str *q, const struct modcase *c, int wanted, bool timed) {
    begin(q, "module_survey", c);
    js_put_i64(q, "seed", (int64_t)secret(c, 6, 0));
    js_put_i64(q, "wanted", wanted);
    js_put_bool(q, "timed", timed);
    js_begin(q, "families", '[');
}

static void put_family(struct str *q, const char *name, int param_set) {
    js_begin(q, NULL, '[');
    js_put_str(q, NULL, name);
    js_put_i64(q, NULL, param_set);
    js_end(q, ']');
}

static enum status survey_timed(struct modcases *m, struct modcase *c, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin_survey(&q, c, MODCASE_TIMED_FAMILIES, true);
    for (size_t i = 0; i < ARRAY_LEN(timed_families); i++) put_family(&q, timed_families[i], 0);
    js_end(&q, ']');
    TRY(ask(m, &q, -1, &reply, e));
    const json_t *list = json_object_get(reply, "families");
    const bool blind = json_is_true(json_object_get(reply, "blind"));
    c->n_timed_families = 0;
    for (size_t i = 0; i < ARRAY_LEN(timed_families) && !(blind && c->n_timed_families); i++)
        if (json_is_true(json_object_get(json_array_get(list, i), "usable")))
            c->timed_family[c->n_timed_families++] = timed_families[i];
    CLEANUP_STR struct str touched = STR_INIT;
    CLEANUP_JSON json_t *told = NULL;
    begin_survey(&touched, c, 1, true);
    put_family(&touched, FAMILY_TOUCHED, 0);
    js_end(&touched, ']');
    TRY(ask(m, &touched, -1, &told, e));
    c->touched = json_is_true(json_object_get(json_array_get(json_object_get(told, "families"), 0), "usable"));
    return ST_OK;
}

/* Decides the trials. In hardened scoring the first one has shipped inputs on parameters as initialised. Then there is
 * one of each family that the reference itself stands, on the parameter set that the family has. */
static enum status survey(struct modcases *m, struct modcase *c, struct err *e) {
    int n = m->o->trials < MODCASE_MAX_TRIALS ? m->o->trials : MODCASE_MAX_TRIALS;
    bool hardened = m->o->scoring == SCORING_HARDENED, families_too = hardened && !m->o->single_input;
    c->n_trials = 0;
    for (int i = 0; i < (families_too ? 1 : n); i++) {
        /* KernelBench draws the seeds of its trials from 42 with the PyTorch at hand. The numbers depend on the version
         * of PyTorch. */
        const json_t *public_seed = json_array_get(json_object_get(c->loaded, "compat_seeds"), (size_t)i);
        uint64_t seed =
            hardened ? secret(c, 3, i == 0 ? 0 : 100 + (uint64_t)i) : (uint64_t)json_integer_value(public_seed);
        c->trials[c->n_trials++] = (struct modset){FAMILY_SHIPPED, seed, 0};
    }
    if (!hardened) return ST_OK;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin_survey(&q, c, families_too ? n : 1, false);
    put_family(&q, FAMILY_SHIPPED, 0);
    for (size_t i = 0; i < ARRAY_LEN(families) && families_too; i++)
        put_family(&q, families[i].name, families[i].param_set);
    js_end(&q, ']');
    TRY(ask(m, &q, -1, &reply, e));
    const json_t *list = json_object_get(reply, "families");
    for (size_t i = 0; i < ARRAY_LEN(families) && c->n_trials < n && families_too; i++)
        if (json_is_true(json_object_get(json_array_get(list, i + 1), "usable")))
            c->trials[c->n_trials++] = (struct modset){families[i].name, secret(c, 3, i + 1), families[i].param_set};
    for (uint64_t i = 0; c->n_trials < n; i++)
        c->trials[c->n_trials++] = (struct modset){FAMILY_SHIPPED, secret(c, 4, i), 0};
    if (families_too && m->o->measure) return survey_timed(m, c, e);
    return ST_OK;
}

enum status modcase_get(struct modcases *m, const char *code, struct modcase **out, struct err *e) {
    const struct digest key = digest_of(code, strlen(code));
    struct modcase *c = NULL;
    for (size_t i = 0; i < m->count && !c; i++)
        if (digest_equal(&m->items[i]->key, &key)) c = m->items[i];
    if (!c) {
        m->items = xrealloc(m->items, (m->count + 1) * sizeof(struct modcase *));
        c = xcalloc(1, sizeof *c);
        c->key = key;
        c->code = xstrdup(code);
        c->id = (int)m->count;
        c->seed = hmac_u64(m->seed, "problem", 1, code, strlen(code));
        c->init_seeds[0] = m->o->scoring == SCORING_COMPAT ? 42 : secret(c, 1, 0);
        c->init_seeds[1] = secret(c, 1, 1);
        for (int i = 0; i < N_LANES; i++) c->lane_fd[i] = -1;
        m->items[m->count++] = c;
    }
    *out = c;
    if (c->broken) return FAIL(e, ST_INVALID, "%s", c->error);
    if (c->generation == m->worker->generation) return ST_OK;
    forget(c);
    enum status st = load(m, c, e);
    if (st == ST_OK) st = survey(m, c, e);
    if (st == ST_OK) return ST_OK;
    forget(c);
    if (st != ST_INVALID && st != ST_PARSE) return st;
    c->broken = true;
    memcpy(c->error, e->msg, sizeof c->error);
    return ST_INVALID;
}

/* ---- lanes ---- */

enum status modcase_open_lane(struct modcases *m, struct modcase *c, enum modcase_lane lane, struct err *e) {
    if (c->lane_fd[lane] >= 0 || c->handle[lane]) return ST_OK;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    int fd = -1;
    if (!on_gpu(m)) {
        fd = process_shared("inputs", c->lane_bytes);
        if (fd < 0) return FAIL(e, ST_MEMORY, "inputs: %s", strerror(errno));
    }
    begin(&q, "module_lane", c);
    js_put_i64(&q, "lane", lane);
    js_put_i64(&q, "bytes", c->lane_bytes);
    js_put_i64(&q, "slot_base", 2 * c->param_bytes);
    js_put_i64(&q, "slot_stride", c->input_bytes);
    enum status st = ask(m, &q, fd, &reply, e);
    if (st != ST_OK) {
        if (fd >= 0) close(fd);
        return st;
    }
    c->lane_fd[lane] = fd;
    if (on_gpu(m)) c->handle[lane] = json_dumps(reply, JSON_COMPACT);
    return ST_OK;
}

void modcase_close_lane(struct modcases *m, struct modcase *c, enum modcase_lane lane) {
    if (c->lane_fd[lane] < 0 && !c->handle[lane]) return;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    struct err ignored = {0};
    begin(&q, "module_unlane", c);
    js_put_i64(&q, "lane", lane);
    if (ask(m, &q, -1, &reply, &ignored) != ST_OK) log_debug("%s", ignored.msg);
    forget_lane(c, lane);
}

void modcase_drop_others(struct modcases *m, const struct modcase *keep) {
    for (size_t i = 0; i < m->count; i++) {
        struct modcase *c = m->items[i];
        if (c == keep || c->ahead || c->generation != m->worker->generation || c->generation == 0) continue;
        CLEANUP_STR struct str q = STR_INIT;
        CLEANUP_JSON json_t *reply = NULL;
        struct err ignored = {0};
        begin(&q, "module_drop", c);
        if (ask(m, &q, -1, &reply, &ignored) != ST_OK) log_debug("%s", ignored.msg);
        forget(c);
    }
}

enum status modcases_room(struct modcases *m, int64_t *free_bytes, int64_t *total_bytes, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_free", NULL);
    TRY(ask(m, &q, -1, &reply, e));
    TRY(js_get_i64(reply, "referee", "free_bytes", free_bytes, e));
    return js_get_i64(reply, "referee", "total_bytes", total_bytes, e);
}

enum status modcases_rest(struct modcases *m, int64_t *held_bytes, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_rest", NULL);
    TRY(ask(m, &q, -1, &reply, e));
    return js_get_i64(reply, "referee", "held_bytes", held_bytes, e);
}

struct modset modcase_timed_set(const struct modcase *c, uint64_t i) {
    const int n = c->n_timed_families;
    const bool other = n > 0 && secret(c, 7, i / OTHER_TIMED) % OTHER_TIMED == i % OTHER_TIMED;
    const char *family = c->touched && secret(c, 8, i) % 2 ? FAMILY_TOUCHED : FAMILY_SHIPPED;
    if (other) family = c->timed_family[(i / OTHER_TIMED + secret(c, 9, 0)) % (uint64_t)n];
    return (struct modset){family, secret(c, 5, i), 0};
}

enum status modcase_stage(struct modcases *m, struct modcase *c, bool timed, bool both, const struct modset *sets,
                          const int *slots, int n, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_stage", c);
    js_begin(&q, "lanes", '[');
    if (both) js_put_i64(&q, NULL, LANE_REFERENCE);
    js_put_i64(&q, NULL, LANE_ANSWER);
    js_end(&q, ']');
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) {
        put_set(&q, c, &sets[i], slots[i]);
        js_end(&q, '}');
    }
    js_end(&q, ']');
    js_put_bool(&q, "timed", timed);
    if (c->watch)
        js_put_json(&q, "watch", c->watch);
    else
        str_adds(&q, ",\"watch\":[]");
    c->watching = c->watch != NULL;
    json_decref(c->watch);
    c->watch = NULL;
    TRY(ask(m, &q, -1, &reply, e));
    c->busy = json_is_true(json_object_get(reply, "busy"));
    return ST_OK;
}

enum status modcase_at_rest(struct modcases *m, struct modcase *c, bool *busy, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_at_rest", c);
    TRY(ask(m, &q, -1, &reply, e));
    return js_get_bool(reply, "referee", "busy", busy, e);
}

void modcase_watch(struct modcase *c, json_t *blocks) {
    json_decref(c->watch);
    c->watch = json_incref(blocks);
}

enum status modcase_watched(struct modcases *m, struct modcase *c, bool *changed, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    *changed = false;
    if (!c->watching) return ST_OK;
    c->watching = false;
    begin(&q, "module_watch", c);
    TRY(ask(m, &q, -1, &reply, e));
    return js_get_bool(reply, "referee", "changed", changed, e);
}

enum status modcase_drain(struct modcases *m, struct modcase *c, double *seconds, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_drain", c);
    const double from = clock_now_s();
    TRY(ask(m, &q, -1, &reply, e));
    *seconds = clock_now_s() - from;
    return ST_OK;
}

/* ---- judgement ---- */

enum status modcase_result_room(struct modcases *m, int64_t n, struct err *e) {
    bool known = m->result_generation == m->worker->generation;
    if (n <= m->result_bytes && known) return ST_OK;
    if (n > m->result_bytes) {
        if (m->result) munmap(m->result, (size_t)m->result_bytes);
        if (m->result_fd >= 0) close(m->result_fd);
        m->result = NULL;
        m->result_bytes = 0;
        m->result_fd = process_memfd("outputs", NULL, 0);
        if (m->result_fd < 0 || ftruncate(m->result_fd, n) != 0)
            return FAIL(e, ST_MEMORY, "outputs: %s", strerror(errno));
        void *p = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED, m->result_fd, 0);
        if (p == MAP_FAILED) return FAIL(e, ST_MEMORY, "outputs: %s", strerror(errno));
        m->result = p;
        m->result_bytes = n;
    }
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_result", NULL);
    js_put_i64(&q, "bytes", m->result_bytes);
    TRY(ask(m, &q, m->result_fd, &reply, e));
    m->result_generation = m->worker->generation;
    return ST_OK;
}

void modcase_let_go(struct modcases *m) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    struct err ignored = {0};
    begin(&q, "module_let_go", NULL);
    if (ask(m, &q, -1, &reply, &ignored) != ST_OK) log_debug("%s", ignored.msg);
}

enum status modcase_copy(struct modcases *m, const struct modcase *c, const char *places, uint64_t seed, bool fresh,
                         bool *kept, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    begin(&q, "module_copy", c);
    str_addf(&q, ",\"places\":%s", places);
    js_put_i64(&q, "seed", (int64_t)seed);
    js_put_bool(&q, "fresh", fresh);
    TRY(ask(m, &q, -1, &reply, e));
    return js_get_bool(reply, "referee", "kept", kept, e);
}

enum status modcase_judge(struct modcases *m, struct modcase *c, enum modcase_lane lane, const struct modset *set,
                          int slot, const json_t *outputs, uint64_t seed, json_t **verdict, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    *verdict = NULL;
    begin(&q, "module_judge", c);
    js_put_i64(&q, "lane", lane);
    js_put_bool(&q, "hardened", m->o->scoring == SCORING_HARDENED);
    js_put_i64(&q, "seed", (int64_t)seed);
    js_begin(&q, "calls", '[');
    put_set(&q, c, set, slot);
    js_put_json(&q, "outputs", outputs);
    js_end(&q, '}');
    js_end(&q, ']');
    TRY(ask(m, &q, -1, &reply, e));
    json_t *one = json_array_get(json_object_get(reply, "verdicts"), 0);
    if (!json_is_object(one)) return FAIL(e, ST_WORKER, "referee: no verdict in the reply");
    *verdict = json_incref(one);
    return ST_OK;
}
