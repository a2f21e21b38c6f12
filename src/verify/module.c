#include "verify/module.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "verify/judge.h"
#include "verify/timing.h"

#define SAY(v, ...) snprintf((v)->message, sizeof(v)->message, __VA_ARGS__)

enum { MAX_CALLS = 64, CHECKED_CALLS = 2, SHAPE_RANK = 12 };
/* A timed request takes at least this long, so that the messages around it are a small part. */
static const double request_s = 2e-3;
static const double min_rounds = 5, max_round_count = 15; /* TIMING_MAX_ROUNDS is 16 */

/* One answer on its way. */
struct run {
    struct module_judge *j;
    struct modcase *c;
    struct verdict *out;
    struct modrun r;
    bool up;
    double deadline_s;  /* of the correctness trials */
    bool one_at_a_time; /* its calls write to the same memory: only the last one's output can be seen */
    double call_s;      /* of one call, estimated */
    int64_t empty_ns;   /* of a request for no calls */
    uint64_t next_set;  /* timed sets used so far */
    uint64_t random;    /* secret, for what is checked */
    uint64_t random_step;
};

static bool hardened(const struct module_judge *j) { return j->o->scoring == SCORING_HARDENED; }
static bool on_gpu(const struct module_judge *j) { return strncmp(j->o->device, "cuda", 4) == 0; }

/* ---- opening ---- */

enum status module_open(struct module_judge *j, const struct verify_options *o, const struct jail *jail,
                        struct compiler *compiler, struct err *e) {
    *j = (struct module_judge){.o = o, .compiler = compiler, .seed = rng_u64(o->seed, 11, 0)};
    j->reference = (struct modrun){.outer_pidfd = -1, .pidfd = -1, .socket = -1, .stderr_fd = -1};
    modcases_init(&j->cases, &j->referee, o, j->seed);
    TRY(zygote_open(&j->zygote, jail, o->python, o->threads, e));
    /* The same Python: a module built by one version and adopted by another would be a false rejection. */
    enum status st = refworker_open(&j->referee, j->zygote.worker.python, o->threads, false, e);
    j->referee_open = st == ST_OK;
    if (st != ST_OK) module_close(j);
    return st;
}

static void drop_reference(struct module_judge *j) {
    if (j->reference.outer > 0) modrun_end(&j->reference, NULL, NULL, NULL, 0);
    if (j->current) modcase_close_lane(&j->cases, j->current, LANE_REFERENCE);
    j->current = NULL;
}

void module_close(struct module_judge *j) {
    if (!j->o) return;
    if (j->reference.outer > 0) modrun_end(&j->reference, NULL, NULL, NULL, 0);
    modcases_free(&j->cases);
    if (j->referee_open) refworker_close(&j->referee);
    zygote_close(&j->zygote);
    j->o = NULL;
}

/* ---- what went wrong ---- */

static void one_line(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32) *p = ' ';
}

/* The answer's process has gone, or is taken away: how, as a verdict. */
static void judge_loss(struct run *r, enum modrun_result result, const char *where, double waited_s) {
    int sig = 0, code = -1;
    char said[300] = "";
    struct verdict *v = r->out;
    if (result == MODRUN_DEAD)
        modrun_end(&r->r, &sig, &code, said, sizeof said);
    else
        modrun_end(&r->r, NULL, NULL, NULL, 0);
    r->up = false;
    one_line(said);
    if (result == MODRUN_LATE) {
        v->outcome = OUTCOME_TIMEOUT;
        SAY(v, "%s: no result after %.1f s", where, waited_s);
    } else if (result == MODRUN_FORGED || sig == SIGSYS) {
        v->outcome = OUTCOME_SANDBOX_VIOLATION;
        SAY(v,
            result == MODRUN_FORGED ? "%s: wrote to the verifier's channel"
                                    : "%s: made a system call that the sandbox forbids",
            where);
    } else if (sig == SIGXCPU || sig == SIGKILL) {
        v->outcome = sig == SIGXCPU ? OUTCOME_TIMEOUT : OUTCOME_CRASH;
        SAY(v, "%s: %s", where, sig == SIGXCPU ? "used up its processor time" : "was killed");
    } else if (sig > 0) {
        v->outcome = OUTCOME_CRASH;
        SAY(v, "%s: crashed with signal %d (%s)%s%s", where, sig, strsignal(sig), said[0] ? ": " : "", said);
    } else {
        v->outcome = OUTCOME_CRASH;
        SAY(v, "%s: the process ended by itself (exit status %d)%s%s", where, code, said[0] ? ": " : "", said);
    }
}

static void judge_failure(struct run *r, const json_t *reply, const char *where) {
    const char *kind = json_string_value(json_object_get(reply, "kind"));
    const char *error = json_string_value(json_object_get(reply, "error"));
    struct verdict *v = r->out;
    v->outcome = !kind                              ? OUTCOME_SANDBOX_VIOLATION
                 : strcmp(kind, "compile") == 0     ? OUTCOME_COMPILE_ERROR
                 : strcmp(kind, "slow") == 0        ? OUTCOME_COMPILE_TIMEOUT
                 : strcmp(kind, "memory") == 0      ? OUTCOME_MEMORY_LIMIT
                 : strcmp(kind, "unavailable") == 0 ? OUTCOME_BACKEND_UNAVAILABLE
                                                    : OUTCOME_EXCEPTION;
    SAY(v, "%s%s%s", where, *where ? ": " : "", error ? error : "no message");
}

/* One request to the answer; false: a verdict is there. */
static bool request(struct run *r, struct str *q, int fd, double timeout_s, const char *where, json_t **reply,
                    int64_t *ns) {
    enum modrun_result result = modrun_call(&r->r, q, fd, timeout_s, reply, ns);
    if (result == MODRUN_OK) return true;
    if (result == MODRUN_FAILED) {
        judge_failure(r, *reply, where);
        json_decref(*reply);
        *reply = NULL;
        return false;
    }
    judge_loss(r, result, where, timeout_s);
    return false;
}

static bool simple(struct run *r, struct str *q, int fd, double timeout_s, const char *where) {
    json_t *reply = NULL;
    bool good = request(r, q, fd, timeout_s, where, &reply, NULL);
    json_decref(reply);
    return good;
}

static void open_request(struct str *q, const char *op) {
    js_begin(q, NULL, '{');
    js_put_str(q, "op", op);
}

/* ---- bringing a process up ---- */

static const char *entry_of(bool is_answer) { return is_answer ? "ModelNew" : "Model"; }

static void put_load(struct str *q, const struct module_judge *j, const char *code, bool is_answer) {
    open_request(q, "load");
    js_put_str(q, "code", code);
    js_put_str(q, "entry", entry_of(is_answer));
    js_put_str(q, "backend", is_answer ? backend_name(j->o->backend) : "torch_cpu");
    js_put_str(q, "precision", j->o->precision);
    js_put_i64(q, "seed", 42);
}

/* The answer's modules in memory: its code has run, and compilers have done their part. */
static bool load_answer(struct run *r, const char *code, bool is_answer) {
    CLEANUP_STR struct str q = STR_INIT;
    double t0 = clock_now_s(), timeout_s = r->j->o->compile_timeout_s;
    put_load(&q, r->j, code, is_answer);
    bool good = simple(r, &q, -1, timeout_s, "");
    r->out->compile_s = clock_now_s() - t0;
    if (!good && r->out->outcome == OUTCOME_TIMEOUT) {
        r->out->outcome = OUTCOME_COMPILE_TIMEOUT;
        SAY(r->out, "loading took more than %.0f s", timeout_s);
    }
    return good;
}

static bool attach(struct run *r, enum modcase_lane lane) {
    const struct modcase *c = r->c;
    CLEANUP_STR struct str q = STR_INIT;
    open_request(&q, "attach");
    js_put_i64(&q, "bytes", c->lane_bytes);
    if (c->handle[lane]) {
        CLEANUP_JSON json_t *h = json_loads(c->handle[lane], 0, NULL);
        js_put_json(&q, "handle", json_object_get(h, "handle"));
        js_put_json(&q, "offset", json_object_get(h, "offset"));
    }
    js_put_json(&q, "values", json_object_get(c->loaded, "values"));
    js_begin(&q, "layout", '{');
    js_put_json(&q, "inputs", json_object_get(c->loaded, "inputs"));
    js_put_json(&q, "params", json_object_get(c->loaded, "params"));
    js_put_i64(&q, "param_base", 0);
    js_put_i64(&q, "param_stride", c->param_bytes);
    js_put_i64(&q, "slot_base", 2 * c->param_bytes);
    js_put_i64(&q, "slot_stride", c->input_bytes);
    js_end(&q, '}');
    return simple(r, &q, c->lane_fd[lane], r->j->o->run_timeout_s, "when it was started");
}

static bool build(struct run *r, int param_set) {
    const struct modcase *c = r->c;
    CLEANUP_STR struct str q = STR_INIT;
    open_request(&q, "build");
    js_put_i64(&q, "param_set", param_set);
    js_put_i64(&q, "seed", (int64_t)c->init_seeds[param_set]);
    js_put_bool(&q, "disturbed", param_set > 0);
    js_put_bool(&q, "adopt", hardened(r->j));
    js_put_json(&q, "init", json_object_get(c->loaded, "init"));
    return simple(r, &q, -1, r->j->o->run_timeout_s, "in __init__()");
}

static enum status fork_run(struct run *r, struct err *e) {
    const struct verify_options *o = r->j->o;
    struct modrun_options mo = {
        .device = o->device,
        .threads = o->threads,
        .memory_bytes = on_gpu(r->j) ? 0 : o->memory_bytes + r->c->lane_bytes,
        .cpu_s = (uint64_t)((o->run_timeout_s + o->timing_budget_s + o->compile_timeout_s + 10) * o->threads),
        .interpret = o->backend == BACKEND_triton && !on_gpu(r->j),
    };
    enum status st = modrun_start(&r->r, &r->j->zygote, &mo, rng_u64(r->random, 1, 0), e);
    if (st == ST_SANDBOX || st == ST_WORKER) st = modrun_start(&r->r, &r->j->zygote, &mo, rng_u64(r->random, 2, 0), e);
    r->up = st == ST_OK;
    return st;
}

/* ---- calls ---- */

static bool ready(struct run *r, const int *slots, int n, const char *where) {
    CLEANUP_STR struct str q = STR_INIT;
    open_request(&q, "ready");
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    return simple(r, &q, -1, r->j->o->run_timeout_s, where);
}

static bool poison(struct run *r, int byte) {
    CLEANUP_STR struct str q = STR_INIT;
    open_request(&q, "poison");
    js_put_i64(&q, "byte", byte);
    js_begin(&q, "sizes", '[');
    for (int i = 0; i < r->c->n_outputs; i++) js_put_i64(&q, NULL, r->c->output_bytes[i]);
    js_end(&q, ']');
    return simple(r, &q, -1, r->j->o->run_timeout_s, "between calls");
}

/* Calls on slots, whose sets these are. The reply lists output addresses per call (caller json_decref's *reply). */
static bool call(struct run *r, const int *slots, int n, const struct modset *sets, double timeout_s, const char *where,
                 json_t **reply, int64_t *ns) {
    CLEANUP_STR struct str q = STR_INIT;
    open_request(&q, "call");
    js_put_i64(&q, "param_set", sets[0].param_set);
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    if (r->c->random) {
        js_begin(&q, "seeds", '[');
        for (int i = 0; i < n; i++) js_put_i64(&q, NULL, (int64_t)modcase_forward_seed(r->c, &sets[i]));
        js_end(&q, ']');
    }
    return request(r, &q, -1, timeout_s, where, reply, ns);
}

/* Address of output k of call i; 0 when it is no plain tensor. */
static uint64_t pointer_of(const json_t *reply, int i, int k) {
    const json_t *calls = json_object_get(reply, "pointers");
    return (uint64_t)json_integer_value(json_array_get(json_array_get(calls, (size_t)i), (size_t)k));
}

/* Copies the outputs of some calls while the process is stopped: at[i * n_outputs + k] into the result memory. */
static bool snapshot(struct run *r, const json_t *reply, const int *calls, int n, bool *read) {
    const struct modcase *c = r->c;
    int64_t at = 0;
    if (on_gpu(r->j)) return true;
    modrun_pause(&r->r);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c->n_outputs; k++) {
            uint64_t p = pointer_of(reply, calls[i], k);
            read[i * c->n_outputs + k] =
                c->output_bytes[k] == 0 ||
                (p != 0 && modrun_read(&r->r, p, r->j->cases.result + at, (size_t)c->output_bytes[k]));
            at += (c->output_bytes[k] + 255) / 256 * 256;
        }
    modrun_resume(&r->r);
    return true;
}

static int64_t snapshot_bytes(const struct modcase *c, int calls) {
    int64_t n = 0;
    for (int k = 0; k < c->n_outputs; k++) n += (c->output_bytes[k] + 255) / 256 * 256;
    return n * calls + 4096;
}

static void shape_text(const json_t *shape, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "(");
    for (size_t d = 0; d < json_array_size(shape) && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", d ? ", " : "",
                              (long long)json_integer_value(json_array_get(shape, d)));
    if (n < size) snprintf(text + n, size - n, ")");
}

static bool wrong_kind(struct run *r, const char *where, enum outcome o, const char *what) {
    r->out->outcome = o;
    SAY(r->out, "%s: %s", where, what);
    return false;
}

static int64_t integer(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

/* Sizes and strides that fit in memory: the list may say anything. */
static bool sane(const json_t *shape, const json_t *stride) {
    double span = 1;
    if (!json_is_array(shape) || !json_is_array(stride) || json_array_size(shape) != json_array_size(stride) ||
        json_array_size(shape) > SHAPE_RANK)
        return false;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        int64_t n = json_integer_value(json_array_get(shape, d)), s = json_integer_value(json_array_get(stride, d));
        if (n < 0 || s < 0) return false;
        if (n > 1) span += (double)(n - 1) * (double)s;
    }
    return span < 1e12;
}

static int64_t span_of(const json_t *shape, const json_t *stride) {
    int64_t span = 1;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        int64_t n = json_integer_value(json_array_get(shape, d));
        if (n == 0) return 0;
        span += (n - 1) * json_integer_value(json_array_get(stride, d));
    }
    return span;
}

static bool is_contiguous(const json_t *shape, const json_t *stride) {
    int64_t step = 1;
    for (size_t d = json_array_size(shape); d-- > 0;) {
        int64_t n = json_integer_value(json_array_get(shape, d));
        if (n != 1 && json_integer_value(json_array_get(stride, d)) != step) return false;
        step *= n > 0 ? n : 1;
    }
    return true;
}

/* Checks what the answer says about one output against what is expected, and puts it in the form the referee wants.
 * at: where its bytes are in the result memory (CPU). */
static bool check_output(struct run *r, const json_t *said, int k, int64_t at, bool was_read, json_t *judged,
                         const char *where) {
    const struct modcase *c = r->c;
    const json_t *want = json_array_get(json_object_get(c->loaded, "outputs"), (size_t)k);
    const json_t *shape = json_object_get(said, "shape"), *stride = json_object_get(said, "stride");
    const char *dtype = json_string_value(json_object_get(said, "dtype")),
               *wanted = json_string_value(json_object_get(want, "dtype")),
               *device = json_string_value(json_object_get(said, "device"));
    char text[600], a[160], b[160];
    if (!json_is_true(json_object_get(said, "plain"))) {
        const char *type = json_string_value(json_object_get(said, "type"));
        snprintf(text, sizeof text, "output %d is a %.60s, not a plain tensor", k, type ? type : "?");
        return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!sane(shape, stride)) return wrong_kind(r, where, OUTCOME_SANDBOX_VIOLATION, "impossible strides");
    if (!json_equal(shape, json_object_get(want, "shape"))) {
        shape_text(shape, a, sizeof a);
        shape_text(json_object_get(want, "shape"), b, sizeof b);
        snprintf(text, sizeof text, "output %d has shape %s, expected %s", k, a, b);
        return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!dtype || strcmp(dtype, wanted) != 0) {
        snprintf(text, sizeof text, "output %d has type %.40s, expected %s", k, dtype ? dtype : "?", wanted);
        return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!device || strncmp(r->j->o->device, device, strlen(device)) != 0) {
        snprintf(text, sizeof text, "output %d is on %.40s, expected %s", k, device ? device : "?", r->j->o->device);
        return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (json_is_true(json_object_get(said, "conjugate")))
        return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, "an output is a lazily conjugated or negated view");
    if (hardened(r->j) && !c->aliases && json_is_true(json_object_get(said, "aliases_input")))
        return wrong_kind(r, where, OUTCOME_ALIASED_INPUT, "an output shares its memory with an input");
    json_t *one = json_object();
    json_object_set(one, "shape", (json_t *)(uintptr_t)shape);
    json_object_set(one, "stride", (json_t *)(uintptr_t)stride);
    json_object_set_new(one, "dtype", json_string(dtype));
    json_array_append_new(judged, one);
    if (on_gpu(r->j)) {
        static const char *const keys[] = {"handle", "offset", "block"};
        for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
            json_t *v = json_object_get(said, keys[i]);
            if (v) json_object_set(one, keys[i], v);
        }
        return true;
    }
    if (c->output_bytes[k] > 0 && !is_contiguous(shape, stride)) {
        /* Other strides: read again, now that they are known. Elements times stride, so at most a few times as much. */
        int64_t elements = 1;
        for (size_t d = 0; d < json_array_size(shape); d++) elements *= json_integer_value(json_array_get(shape, d));
        int64_t bytes = span_of(shape, stride) * (c->output_bytes[k] / elements);
        struct err e = {0};
        if (bytes > 8 * c->output_bytes[k] + 65536)
            return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, "an output is spread over too much memory");
        at = (snapshot_bytes(c, CHECKED_CALLS) + 4095) / 4096 * 4096;
        for (int before = 0; before < k; before++) at += 9 * c->output_bytes[before] + 65536 + 4096;
        at = at / 4096 * 4096;
        if (modcase_result_room(&r->j->cases, at + bytes, &e) != ST_OK) {
            judge_trouble(r->out, ST_MEMORY, &e);
            return false;
        }
        modrun_pause(&r->r);
        was_read = modrun_read(&r->r, (uint64_t)integer(said, "pointer"), r->j->cases.result + at, (size_t)bytes);
        modrun_resume(&r->r);
    }
    if (!was_read) return wrong_kind(r, where, OUTCOME_SANDBOX_VIOLATION, "an output is not where the answer says");
    json_object_set_new(one, "at", json_integer(at));
    return true;
}

static const char *family_text(const char *family) {
    static const char *const texts[][2] = {
        {"shipped", "inputs as the problem makes them"},
        {"signed", "inputs of both signs"},
        {"scaled", "large inputs of both signs"},
        {"small", "small inputs of both signs"},
        {"negated", "inputs times -1"},
        {"offset", "inputs with an offset"},
        {"unit", "inputs near 1 and -1"},
        {"spikes", "inputs with a few large elements"},
        {"probe", "one input element changed"},
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (strcmp(texts[i][0], family) == 0) return texts[i][1];
    return family;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v)) return strtod(json_string_value(v), NULL); /* "nan", "inf" */
    return json_number_value(v);
}

/* The referee's word on one call, as a verdict. True: equal. */
static bool note_judgement(struct run *r, const json_t *v, const struct modset *set, const char *where) {
    const char *word = json_string_value(json_object_get(v, "verdict"));
    struct verdict *out = r->out;
    double worst = number(v, "max_error");
    if (!(worst <= out->max_error)) out->max_error = worst;
    if (word && strcmp(word, "equal") == 0) return true;
    if (word && strcmp(word, "inputs_changed") == 0) {
        out->outcome = OUTCOME_OUT_OF_BOUNDS;
        SAY(out, "%s: changed its inputs, which the reference leaves as they are", where);
        return false;
    }
    char place[160];
    shape_text(json_object_get(v, "place"), place, sizeof place);
    out->outcome = word && strcmp(word, "not_finite") == 0 ? OUTCOME_NOT_FINITE : OUTCOME_WRONG_OUTPUT;
    SAY(out,
        "%s (%s%s): %lld of %lld elements of output %lld are wrong; the first is at %s: %.6g, expected %.6g; the "
        "largest "
        "error is %.3g of the output's scale",
        where, family_text(set->family), set->param_set ? ", parameters randomised" : "",
        (long long)integer(v, "different"), (long long)integer(v, "elements"), (long long)integer(v, "output"), place,
        number(v, "got"), number(v, "want"), worst);
    return false;
}

/* Looks at the outputs of some of the calls just made. */
static bool check_calls(struct run *r, const json_t *reply, const int *calls, int n, const int *slots, int n_slots,
                        const struct modset *sets, const char *where) {
    struct modcase *c = r->c;
    bool read[CHECKED_CALLS * MODCASE_MAX_OUTPUTS] = {false};
    struct err e = {0};
    enum status st = on_gpu(r->j) ? ST_OK : modcase_result_room(&r->j->cases, snapshot_bytes(c, n), &e);
    if (st != ST_OK) {
        judge_trouble(r->out, st, &e);
        return false;
    }
    snapshot(r, reply, calls, n, read);
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *said = NULL;
    open_request(&q, "describe");
    js_begin(&q, "calls", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, calls[i]);
    js_end(&q, ']');
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n_slots; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    if (!request(r, &q, -1, r->j->o->run_timeout_s, where, &said, NULL)) return false;
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const json_t *one = json_array_get(json_object_get(said, "calls"), (size_t)i);
        const json_t *outputs = json_object_get(one, "outputs");
        CLEANUP_JSON json_t *judged = json_array(), *verdict = NULL;
        if (!json_equal(json_object_get(one, "structure"), json_object_get(c->loaded, "structure")) ||
            (int)json_array_size(outputs) != c->n_outputs) {
            char text[300];
            const char *got = json_string_value(json_object_get(one, "structure"));
            snprintf(text, sizeof text, "returns %.100s, expected %.100s (T is a tensor)", got ? got : "?",
                     json_string_value(json_object_get(c->loaded, "structure")));
            return wrong_kind(r, where, OUTCOME_WRONG_SHAPE, text);
        }
        for (int k = 0; k < c->n_outputs; k++) {
            if (!check_output(r, json_array_get(outputs, (size_t)k), k, at, read[i * c->n_outputs + k], judged, where))
                return false;
            at += (c->output_bytes[k] + 255) / 256 * 256;
        }
        st = modcase_judge(&r->j->cases, c, LANE_ANSWER, &sets[calls[i]], slots[calls[i]], judged, &verdict, &e);
        if (st != ST_OK) {
            judge_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
            return false;
        }
        if (!note_judgement(r, verdict, &sets[calls[i]], where)) return false;
    }
    return true;
}

/* ---- correctness ---- */

static bool run_trial(struct run *r, int t) {
    struct modset set = r->c->trials[t];
    char where[48];
    struct err e = {0};
    int slot = t % r->c->slots;
    int64_t ns = 0;
    CLEANUP_JSON json_t *reply = NULL;
    snprintf(where, sizeof where, "test %d of %d", t + 1, r->c->n_trials);
    enum status st = modcase_stage(&r->j->cases, r->c, LANE_ANSWER, &set, &slot, 1, &e);
    if (st != ST_OK) {
        judge_trouble(r->out, st, &e);
        return false;
    }
    double left = r->deadline_s - clock_now_s();
    if (left < 0.05) left = 0.05;
    bool good = poison(r, 1 + (int)(rng_u64(r->random, 5, ++r->random_step) % 254)) && ready(r, &slot, 1, where) &&
                call(r, &slot, 1, &set, left, where, &reply, &ns) && poison(r, 0) &&
                check_calls(r, reply, &(int){0}, 1, &slot, 1, &set, where);
    if (!good) return false;
    if (t == 0 || (double)ns * 1e-9 < r->call_s) r->call_s = (double)ns * 1e-9;
    r->out->tests_passed++;
    return true;
}

/* ---- timing ---- */

static bool empty_requests(struct run *r) {
    double times[5];
    for (int i = 0; i < 5; i++) {
        int64_t ns = 0;
        CLEANUP_JSON json_t *reply = NULL;
        if (!call(r, NULL, 0, &r->c->trials[0], r->j->o->run_timeout_s, "between calls", &reply, &ns)) return false;
        times[i] = (double)ns;
    }
    r->empty_ns = (int64_t)timing_median(times, 5);
    return true;
}

/* One side's turn: n calls on fresh inputs. The answer's outputs are looked at, some of them, chosen afterwards. */
static bool turn(struct run *r, enum modcase_lane lane, const struct modset *sets, int n, double *seconds) {
    int slots[MAX_CALLS];
    struct err e = {0};
    int64_t ns = 0;
    CLEANUP_JSON json_t *reply = NULL;
    for (int i = 0; i < n; i++) slots[i] = i;
    enum status st = modcase_stage(&r->j->cases, r->c, lane, sets, slots, n, &e);
    if (st != ST_OK) {
        judge_trouble(r->out, st, &e);
        return false;
    }
    if (!ready(r, slots, n, "between calls") ||
        !call(r, slots, n, &sets[0], r->j->o->run_timeout_s, "in a timed call", &reply, &ns))
        return false;
    *seconds = fmax((double)(ns - r->empty_ns), (double)n) * 1e-9 / n;
    if (lane == LANE_REFERENCE) return true;
    int last_with[CHECKED_CALLS], checked = n < CHECKED_CALLS ? n : CHECKED_CALLS;
    for (int i = 0; i < checked; i++) {
        int pick = n <= CHECKED_CALLS ? i : (int)(rng_u64(r->random, 6, ++r->random_step) % (uint64_t)n);
        for (int later = n - 1; later > pick; later--)
            if (pointer_of(reply, later, 0) == pointer_of(reply, pick, 0) && pointer_of(reply, pick, 0) != 0 &&
                r->c->output_bytes[0] > 0) {
                r->one_at_a_time = true; /* seen only now: this round does not count */
                pick = later;
            }
        last_with[i] = pick;
    }
    if (!check_calls(r, reply, last_with, checked, slots, n, sets, "in a timed call")) {
        enum outcome o = r->out->outcome;
        if (o == OUTCOME_WRONG_OUTPUT || o == OUTCOME_NOT_FINITE) r->out->outcome = OUTCOME_UNSTABLE;
        return false;
    }
    if (modrun_children(&r->r) > 0)
        return wrong_kind(r, "in a timed call", OUTCOME_HIDDEN_WORK, "processes of the answer's own are running");
    return true;
}

static void stats_of(const double *seconds, int n, int calls, struct run_stats *out) {
    double sum = 0, square = 0;
    out->min_ms = INFINITY;
    for (int i = 0; i < n; i++) {
        double ms = seconds[i] * 1e3;
        sum += ms;
        out->min_ms = fmin(out->min_ms, ms);
        out->max_ms = fmax(out->max_ms, ms);
    }
    out->mean_ms = sum / n;
    for (int i = 0; i < n; i++) square += (seconds[i] * 1e3 - out->mean_ms) * (seconds[i] * 1e3 - out->mean_ms);
    out->std_ms = n > 1 ? sqrt(square / (n - 1)) : 0;
    out->calls = calls;
}

/* The process that runs eager calls of the problem. */
static bool reference_up(struct run *answer, struct run *ref, struct err *e, enum status *st) {
    struct module_judge *j = answer->j;
    *st = ST_OK;
    if (j->current == answer->c && j->reference.outer > 0) {
        ref->r = j->reference;
        ref->up = true;
        return true;
    }
    drop_reference(j);
    *st = modcase_open_lane(&j->cases, answer->c, LANE_REFERENCE, e);
    if (*st == ST_OK) *st = fork_run(ref, e);
    if (*st != ST_OK) return false;
    /* Module in training mode, parameters as initialised, as KernelBench times it. */
    if (!load_answer(ref, answer->c->code, false) || !attach(ref, LANE_REFERENCE) || !build(ref, 0)) {
        *st = FAIL(e, ST_INVALID, "the reference: %s", ref->out->message);
        if (ref->up) modrun_end(&ref->r, NULL, NULL, NULL, 0);
        return false;
    }
    j->current = answer->c;
    j->reference = ref->r;
    return true;
}

static int calls_for(double seconds_per_call, int limit) {
    double n = ceil(request_s / fmax(seconds_per_call, 1e-7));
    return (int)fmax(1, fmin(n, limit));
}

/* Eager and the answer in turns. Warm-up first, then rounds until the calls asked for are made; on until the interval
 * is narrow, if that was asked for; never beyond the budget, but at least three rounds. */
static void measure(struct run *r) {
    struct module_judge *j = r->j;
    struct verdict ignored = {.max_error = 0};
    struct run ref = {.j = j, .c = r->c, .out = &ignored, .random = r->random};
    struct err e = {0};
    enum status st;
    if (!reference_up(r, &ref, &e, &st)) {
        judge_trouble(r->out, st, &e);
        return;
    }
    double eager[TIMING_MAX_ROUNDS], mine[TIMING_MAX_ROUNDS], begun = clock_now_s();
    bool good = empty_requests(r) && empty_requests(&ref);
    double one[2] = {0, 0};
    int limit = r->c->slots < MAX_CALLS ? r->c->slots : MAX_CALLS;
    struct modset sets[MAX_CALLS];
    /* Two warm-ups each, the second with as many calls as the first one's time suggests. */
    int n = 1;
    for (int w = 0; w < 3 && good; w++) {
        for (int i = 0; i < n; i++) sets[i] = modcase_timed_set(r->c, r->next_set++);
        good = turn(&ref, LANE_REFERENCE, sets, n, &one[0]) && turn(r, LANE_ANSWER, sets, n, &one[1]);
        if (r->one_at_a_time) limit = 1;
        n = calls_for(fmin(one[0], one[1]), limit);
        /* More calls than wanted in all are of no use for slow ones. */
        if (n > 1 && fmax(one[0], one[1]) * n > 0.5) n = calls_for(fmax(one[0], one[1]), limit);
    }
    int wanted = j->o->timed_calls / n;
    wanted = wanted < (int)min_rounds ? (int)min_rounds : wanted;
    wanted = wanted > (int)max_round_count ? (int)max_round_count : wanted;
    int rounds = 0, timed = 0;
    struct timing_ratio ratio = {0};
    /* With few calls a request, a round is several requests on either side. */
    int repeats = (int)fmax(1, fmin(32, j->o->timed_calls / (double)(n * wanted)));
    while (good && rounds < TIMING_MAX_ROUNDS) {
        double sum[2] = {0, 0};
        for (int k = 0; k < repeats && good; k++) {
            bool answer_first = (rounds + k) % 2 == 1;
            for (int i = 0; i < n; i++) sets[i] = modcase_timed_set(r->c, r->next_set++);
            double s[2] = {0, 0};
            if (answer_first) good = turn(r, LANE_ANSWER, sets, n, &s[1]) && turn(&ref, LANE_REFERENCE, sets, n, &s[0]);
            if (!answer_first)
                good = turn(&ref, LANE_REFERENCE, sets, n, &s[0]) && turn(r, LANE_ANSWER, sets, n, &s[1]);
            sum[0] += s[0];
            sum[1] += s[1];
        }
        if (!good) break;
        if (r->one_at_a_time && n > 1) { /* found out only now: begin again with single calls */
            n = limit = 1;
            rounds = timed = 0;
            continue;
        }
        eager[rounds] = sum[0] / repeats;
        mine[rounds] = sum[1] / repeats;
        rounds++;
        timed += n * repeats;
        if (rounds < 3) continue;
        ratio = timing_compare(eager, mine, rounds);
        bool narrow = j->o->interval <= 0 || (ratio.high - ratio.low) <= j->o->interval * ratio.ratio;
        if ((rounds >= wanted && narrow) || clock_now_s() - begun > j->o->timing_budget_s) break;
    }
    if (!ref.up || ref.r.outer == 0 || ref.out->outcome != OUTCOME_CORRECT) {
        /* The reference failed where it had worked before. */
        if (ref.r.dead || ref.r.late || !ref.up) {
            j->reference = ref.r;
            drop_reference(j);
        }
    }
    if (!good) {
        if (r->out->outcome == OUTCOME_CORRECT) {
            r->out->outcome = OUTCOME_INFRASTRUCTURE;
            SAY(r->out, "the reference failed while it was timed: %.600s", ref.out->message);
        }
        return;
    }
    struct verdict *v = r->out;
    v->speedup = ratio.ratio;
    v->speedup_low = ratio.low;
    v->speedup_high = ratio.high;
    v->eager_ms = timing_median(eager, rounds) * 1e3;
    v->kernel_ms = timing_median(mine, rounds) * 1e3;
    stats_of(eager, rounds, timed, &v->eager);
    stats_of(mine, rounds, timed, &v->kernel);
}

/* ---- one answer ---- */

static bool run_tests(struct run *r) {
    bool good = attach(r, LANE_ANSWER) && build(r, 0);
    bool both = false;
    for (int t = 0; t < r->c->n_trials; t++) both |= r->c->trials[t].param_set == 1;
    if (good && both) good = build(r, 1);
    for (int t = 0; t < r->c->n_trials && good; t++) good = run_trial(r, t);
    return good;
}

void module_verify(struct module_judge *j, const struct problem *p, const char *source, struct verdict *out) {
    struct err e = {0};
    struct run r = {.j = j, .out = out};
    out->outcome = OUTCOME_INFRASTRUCTURE;
    enum status st = modcase_get(&j->cases, p->code, &r.c, &e);
    if (st == ST_OK && r.c != j->current) {
        drop_reference(j);
        modcase_drop_others(&j->cases, r.c);
    }
    r.random = rng_u64(j->seed, hash_str(source), 2);
    if (st == ST_OK) st = modcase_open_lane(&j->cases, r.c, LANE_ANSWER, &e);
    if (st == ST_OK) st = fork_run(&r, &e);
    if (st != ST_OK) {
        judge_trouble(out, st, &e);
        return;
    }
    out->outcome = OUTCOME_CORRECT; /* until something else turns out */
    out->max_error = 0;
    if (load_answer(&r, source, true)) {
        double t0 = clock_now_s();
        out->tests_total = r.c->n_trials;
        r.deadline_s = t0 + j->o->run_timeout_s;
        bool good = run_tests(&r);
        double t1 = clock_now_s();
        out->run_s = t1 - t0;
        if (good && j->o->measure) {
            measure(&r);
            out->time_s = clock_now_s() - t1;
        }
    }
    if (out->tests_passed == 0 && out->outcome != OUTCOME_WRONG_OUTPUT && out->outcome != OUTCOME_NOT_FINITE)
        out->max_error = (double)NAN;
    if (r.up) modrun_end(&r.r, NULL, NULL, NULL, 0);
    if (on_gpu(j)) modcase_close_lane(&j->cases, r.c, LANE_ANSWER);
}
