#include "verify/native/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "io/json.h"
#include "verify/timing.h"
#include "verify/worker_constants.h"

/* A problem that needs longer than this on this machine is of no use for training. */
static const double load_timeout_s = 120, fill_timeout_s = 120, time_timeout_s = 60;
/* So many problems keep their sets at once. Beyond that, the sets of the least recently used one are dropped; its
 * interface stays. Counted in bytes, the limit is a share of the machine's memory, with a lower and an upper bound.
 * Timed sets are large, so that caches do not hold them. They are wanted only while the answers to one problem are
 * timed, and are made again in a moment. So less of them is kept. */
enum { MAX_WITH_SETS = 64, MEMORY_SHARE = 48 };
static const int64_t least_kept_bytes = (int64_t)512 << 20, most_kept_bytes = (int64_t)2 << 30;
static const size_t most_timed_bytes = (size_t)256 << 20;

void references_init(struct references *r, struct refworker *worker, int max_tests, uint64_t seed) {
    const int64_t share = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / MEMORY_SHARE;
    *r = (struct references){.worker = worker,
                             .max_tests = max_tests,
                             .most_kept_bytes = (size_t)i64_max(least_kept_bytes, i64_min(most_kept_bytes, share)),
                             .most_timed_bytes = most_timed_bytes,
                             .seed = seed};
}

static void drop_sets(struct references *r, struct reference *p) {
    if (!p->has_sets) return;
    sets_close(&p->sets);
    p->has_sets = false;
    p->n_tests = p->n_timed = 0;
    if (p->loaded_generation == r->worker->generation) {
        CLEANUP_STR struct str q = STR_INIT;
        json_t *reply = NULL;
        struct err ignored = {0};
        str_addf(&q, "{\"op\":\"drop\",\"problem\":%d}", p->id);
        /* A worker that was lost has dropped it, too. */
        if (refworker_call(r->worker, &q, -1, load_timeout_s, &reply, &ignored) != ST_OK) log_debug("%s", ignored.msg);
        json_decref(reply);
    }
    p->loaded_generation = p->attached_generation = 0;
}

void references_free(struct references *r) {
    for (size_t i = 0; i < r->count; i++) {
        struct reference *p = r->items[i];
        if (p->has_sets) sets_close(&p->sets);
        arena_free(&p->arena);
        free(p->code);
        free(p);
    }
    free(r->items);
    *r = (struct references){0};
}

static size_t timed_bytes(const struct reference *p) {
    return (size_t)p->n_timed * (p->sets.input_stride + p->sets.output_stride);
}

static size_t kept_bytes(const struct reference *p) {
    size_t per_set = p->sets.input_stride + p->sets.output_stride;
    return p->sets.read_only_bytes + (size_t)p->sets.n_lanes * p->sets.read_write_bytes +
           SETS_PARAM_SETS * p->sets.param_stride + (size_t)p->n_tests * per_set + timed_bytes(p);
}

static void forget_timed(struct references *r, struct reference *p) {
    sets_forget(&p->sets, r->max_tests, p->n_timed);
    p->n_timed = 0;
}

/* Among all problems but `keep`: the one that was used longest ago and has timed sets, and the one that was used
 * longest ago and has sets at all. NULL: there is none. */
struct kept {
    struct reference *timed, *any;
    size_t timed_bytes, bytes;
    int n;
};
static struct kept kept_of(const struct references *r, const struct reference *keep) {
    struct kept k = {0};
    for (size_t i = 0; i < r->count; i++) {
        struct reference *p = r->items[i];
        if (!p->has_sets) continue;
        k.n++;
        k.bytes += kept_bytes(p);
        k.timed_bytes += timed_bytes(p);
        if (p == keep) continue;
        if (!k.any || p->used < k.any->used) k.any = p;
        if (p->n_timed > 0 && (!k.timed || p->used < k.timed->used)) k.timed = p;
    }
    return k;
}

static void evict_timed(struct references *r, const struct reference *keep) {
    struct kept k;
    while ((k = kept_of(r, keep)).timed && k.timed_bytes > r->most_timed_bytes) forget_timed(r, k.timed);
}

static void evict(struct references *r, const struct reference *keep) {
    for (;;) {
        const struct kept k = kept_of(r, keep);
        if (!k.any || (k.n <= MAX_WITH_SETS && k.bytes <= r->most_kept_bytes)) return;
        if (k.timed && k.n <= MAX_WITH_SETS)
            forget_timed(r, k.timed);
        else
            drop_sets(r, k.any);
    }
}

/* ---- requests ---- */

static uint64_t secret(const struct reference *p, uint64_t stream, uint64_t i) {
    /* An answer sees what is drawn from some of these numbers, and must not find the others. They have 63 bits, so that
     * they are positive in JSON and in PyTorch. */
    return hmac_u64(p->seed, "set", i, &stream, sizeof stream) >> 1;
}

static enum status load(struct references *r, struct reference *p, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "load");
    js_put_i64(&q, "problem", p->id);
    js_put_str(&q, "code", p->code);
    js_begin(&q, "param_seeds", '[');
    for (uint64_t i = 0; i < SETS_PARAM_SETS; i++) js_put_i64(&q, NULL, (int64_t)secret(p, 1, i));
    js_end(&q, ']');
    js_put_bool(&q, "touched", !r->single_input);
    js_end(&q, '}');
    TRY(refworker_call(r->worker, &q, -1, load_timeout_s, &reply, e));
    enum status st = ST_OK;
    p->loaded_generation = r->worker->generation;
    p->attached_generation = 0;
    if (p->spec.n_args == 0) {
        char *text = json_dumps(json_object_get(reply, "spec"), JSON_COMPACT);
        st = text ? spec_parse(&p->arena, text, strlen(text), &p->spec, e)
                  : FAIL(e, ST_WORKER, "reference worker: no spec in the reply");
        if (st != ST_OK) p->spec = (struct spec){0};
        free(text);
    }
    json_decref(reply);
    return st;
}

static void put_offsets(struct str *q, const char *key, const int64_t *at, int n) {
    js_begin(q, key, '[');
    for (int i = 0; i < n; i++) js_put_i64(q, NULL, at[i]);
    js_end(q, ']');
}

static enum status attach(struct references *r, struct reference *p, struct err *e) {
    const struct sets *s = &p->sets;
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "attach");
    js_put_i64(&q, "problem", p->id);
    js_put_i64(&q, "bytes", (int64_t)s->master_bytes);
    js_put_bool(&q, "families", !r->single_input);
    /* The seed of inputs on which the worker tries how much they tell. */
    js_put_i64(&q, "seed", (int64_t)secret(p, 9, 0));
    js_begin(&q, "layout", '{');
    js_put_i64(&q, "param_base", 0);
    js_put_i64(&q, "param_stride", (int64_t)s->param_stride);
    js_put_i64(&q, "set_base", (int64_t)(SETS_PARAM_SETS * s->param_stride));
    js_put_i64(&q, "set_stride", (int64_t)(s->input_stride + s->output_stride));
    js_put_i64(&q, "input_stride", (int64_t)s->input_stride);
    put_offsets(&q, "input", s->input_at, p->spec.n_args);
    put_offsets(&q, "param", s->param_at, p->spec.n_args);
    put_offsets(&q, "output", s->output_at, p->spec.n_args);
    js_end(&q, '}');
    js_end(&q, '}');
    TRY(refworker_call(r->worker, &q, s->master_fd, fill_timeout_s, &reply, e));
    if (p->n_tests == 0) p->blind = json_is_true(json_object_get(reply, "blind"));
    json_decref(reply);
    p->attached_generation = r->worker->generation;
    return ST_OK;
}

/* Makes the worker know the problem, again if need be, and its memory when there is any. */
static enum status connect_once(struct references *r, struct reference *p, struct err *e) {
    if (p->loaded_generation != r->worker->generation) TRY(load(r, p, e));
    if (p->has_sets && p->attached_generation != r->worker->generation) TRY(attach(r, p, e));
    return ST_OK;
}

/* Makes one request. When the worker was lost, it is restarted, everything is said again, and the request is made
 * again, up to three times in all: the first loss may be an old one that nobody has noticed yet. q NULL: only connects.
 */
static enum status ask(struct references *r, struct reference *p, const struct str *q, double timeout_s, json_t **reply,
                       struct err *e) {
    enum status st = ST_OK;
    for (int attempt = 0; attempt < 3; attempt++) {
        st = connect_once(r, p, e);
        if (st == ST_OK && q) st = refworker_call(r->worker, q, -1, timeout_s, reply, e);
        if (st != ST_WORKER) return st;
        log_warn("%s; starting it again", e->msg);
        struct err again = {0};
        if (refworker_restart(r->worker, &again) != ST_OK) return FAIL(e, ST_WORKER, "%s", again.msg);
    }
    return st;
}

/* ST_PARSE: the worker has described something outside of the ABI, which is the problem's doing as well. */
static bool is_fault(enum status st) { return st == ST_INVALID || st == ST_PARSE; }

/* Marks the problem as broken for the verifier's life. This is done only while nothing of an answer lives, and after a
 * second look. */
static enum status mark_broken(struct reference *p, enum status st, const struct err *e) {
    if (!is_fault(st)) return st;
    p->broken = true;
    memcpy(p->error, e->msg, sizeof p->error);
    return ST_INVALID;
}

/* Loads the problem and, where it has memory, attaches that. A worker may fail because of what it holds for other
 * problems, or has been through with them. A problem that is at fault fails in a new worker, too. */
static enum status connect(struct references *r, struct reference *p, struct err *e) {
    enum status st = ask(r, p, NULL, 0, NULL, e);
    if (!is_fault(st)) return st;
    TRY(refworker_restart(r->worker, e));
    return ask(r, p, NULL, 0, NULL, e);
}

enum status reference_get(struct references *r, const char *code, struct reference **out, struct err *e) {
    const struct digest key = digest_of(code, strlen(code));
    struct reference *p = NULL;
    for (size_t i = 0; i < r->count && !p; i++)
        if (digest_equal(&r->items[i]->key, &key)) p = r->items[i];
    if (!p) {
        if (r->count == r->cap) {
            r->cap = r->cap ? r->cap * 2 : 64;
            r->items = xrealloc(r->items, r->cap * sizeof(struct reference *));
        }
        p = xcalloc(1, sizeof *p);
        p->key = key;
        p->code = xstrdup(code);
        p->id = (int)r->count;
        p->seed = hmac_u64(r->seed, "problem", 0, code, strlen(code));
        r->items[r->count++] = p;
    }
    p->used = ++r->clock;
    *out = p;
    if (p->broken) return FAIL(e, ST_INVALID, "%s", p->error);
    if (p->spec.n_args > 0) return ST_OK;
    return mark_broken(p, connect(r, p, e), e);
}

/* ---- sets ---- */

struct input_kind {
    const char *family;
    int param_set;
};
/* Shipped and touched inputs and spikes, which are timed as well, go with the parameters as initialised, the others
 * with disturbed ones. In a blind problem scaled inputs go with both, because only they tell. */
static const struct input_kind
    pattern[] = {{FAMILY_SHIPPED, 0}, {FAMILY_SIGNED, 1}, {FAMILY_TOUCHED, 0}, {FAMILY_SCALED, 1}, {FAMILY_SPIKES, 0}},
    blind_pattern[] = {
        {FAMILY_SHIPPED, 0}, {FAMILY_SCALED, 0}, {FAMILY_SIGNED, 1}, {FAMILY_TOUCHED, 0}, {FAMILY_SCALED, 1}};

/* What a correctness set is made of where the reference does not stand what it should have been made of. */
static struct input_kind instead_of(const char *family) {
    const bool spikes = strcmp(family, FAMILY_SPIKES) == 0;
    return spikes ? (struct input_kind){FAMILY_SIGNED, 1} : (struct input_kind){FAMILY_SHIPPED, 0};
}

struct wanted {
    int set;
    const char *family;
    uint64_t seed;
    int param_set;
    bool usable; /* A result. */
};

static struct wanted wanted(int set, struct input_kind kind, uint64_t seed) {
    return (struct wanted){.set = set, .family = kind.family, .seed = seed, .param_set = kind.param_set};
}

/* What is known about a family. NULL for families of which no timed set is. */
static struct family_seen *seen(struct reference *p, const struct wanted *w) {
    if (w->param_set != 0) return NULL;
    if (strcmp(w->family, FAMILY_SHIPPED) == 0) return &p->shipped;
    if (strcmp(w->family, FAMILY_SIGNED) == 0) return &p->is_signed;
    if (strcmp(w->family, FAMILY_SPIKES) == 0) return &p->spikes;
    return strcmp(w->family, FAMILY_TOUCHED) == 0 ? &p->touched : &p->scaled;
}

/* Widens limit a by limit b. Where the reference is off by more on other inputs, it may be so on these as well. The
 * usual size of an output belongs to its family, and stays. */
static void widen(struct compare_limit *a, const struct compare_limit *b) {
    a->noise = fmax(a->noise, b->noise);
    a->floor = fmax(a->floor, b->floor);
}

/* Reads one set's limits from the reply, one for each compared argument. */
static bool read_limits(const json_t *one, struct compare_limit *limits, int n) {
    const json_t *list = json_object_get(one, "limits");
    if (json_array_size(list) != (size_t)n) return false;
    for (int c = 0; c < n; c++) {
        const json_t *of = json_array_get(list, (size_t)c);
        if (json_array_size(of) != 3) return false;
        limits[c] = (struct compare_limit){.noise = json_number_value(json_array_get(of, 0)),
                                           .floor = json_number_value(json_array_get(of, 1)),
                                           .typical = json_number_value(json_array_get(of, 2))};
    }
    return true;
}

/* Takes over one set's reply. limits has room for one entry for each compared argument. */
static enum status take(struct reference *p, struct wanted *w, const json_t *one, bool with_noise,
                        struct compare_limit *limits, struct err *e) {
    const int n = p->sets.n_compared;
    struct family_seen *family = seen(p, w);
    const bool shipped = family == &p->shipped;
    w->usable = true;
    if (with_noise) {
        double noise = 0;
        if (!read_limits(one, limits, n))
            return FAIL(e, ST_WORKER, "reference worker: limits missing from a fill reply");
        for (int c = 0; c < n; c++) noise = fmax(noise, limits[c].noise);
        w->usable = shipped || (json_is_true(json_object_get(one, "finite")) && noise <= NOISE_MOST);
        for (int c = 0; c < n && family && w->usable; c++) {
            widen(&family->limits[c], &limits[c]);
            family->limits[c].typical = fmax(family->limits[c].typical, limits[c].typical);
        }
        if (family && w->usable && json_is_true(json_object_get(one, "timed"))) family->usable = true;
    } else {
        for (int c = 0; c < n; c++) {
            limits[c] = family->limits[c];
            widen(&limits[c], &p->shipped.limits[c]);
        }
    }
    if (w->usable) sets_note(&p->sets, w->set, w->family, w->param_set, limits);
    return ST_OK;
}

static enum status fill(struct references *r, struct reference *p, struct wanted *w, int n, bool with_noise,
                        struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "fill");
    js_put_i64(&q, "problem", p->id);
    js_put_bool(&q, "noise", with_noise);
    js_begin(&q, "sets", '[');
    for (int i = 0; i < n; i++) {
        js_begin(&q, NULL, '{');
        js_put_i64(&q, "set", w[i].set);
        js_put_str(&q, "family", w[i].family);
        js_put_i64(&q, "seed", (int64_t)w[i].seed);
        js_put_i64(&q, "param_set", w[i].param_set);
        js_end(&q, '}');
    }
    js_end(&q, ']');
    js_end(&q, '}');
    TRY(ask(r, p, &q, fill_timeout_s, &reply, e));
    enum status st = ST_OK;
    const json_t *sets = json_object_get(reply, "sets");
    CLEANUP_FREE struct compare_limit *limits = xcalloc((size_t)p->sets.n_compared, sizeof *limits);
    if (json_array_size(sets) != (size_t)n) st = FAIL(e, ST_WORKER, "reference worker: sets missing from a fill reply");
    for (int i = 0; i < n && st == ST_OK; i++)
        st = take(p, &w[i], json_array_get(sets, (size_t)i), with_noise, limits, e);
    json_decref(reply);
    return st;
}

static void forget_families(struct reference *p) {
    struct family_seen *const families[] = {&p->shipped, &p->is_signed, &p->touched, &p->spikes, &p->scaled};
    const int n = p->sets.n_compared;
    for (size_t f = 0; f < ARRAY_LEN(families); f++) {
        families[f]->usable = false;
        families[f]->limits = arena_array(&p->sets.arena, struct compare_limit, n);
        for (int c = 0; c < n; c++) families[f]->limits[c] = compare_no_limit(p->spec.args[p->sets.compared[c]].type);
    }
}

enum status reference_make_tests(struct references *r, struct reference *p, struct err *e) {
    p->used = ++r->clock;
    if (p->broken) return FAIL(e, ST_INVALID, "%s", p->error);
    if (p->n_tests == r->max_tests) return ST_OK;
    if (!p->has_sets) {
        enum status st = sets_open(&p->sets, &p->spec, r->max_tests, hmac_u64(p->seed, "poison", 0, NULL, 0), e);
        if (st != ST_OK) return mark_broken(p, st, e);
        p->has_sets = true;
        evict(r, p);
        /* This attaches the memory, so the worker writes the parameters. */
        st = connect(r, p, e);
        if (st != ST_OK) {
            drop_sets(r, p); /* The sets lack what comes below. The next call begins anew. */
            return mark_broken(p, st, e);
        }
        sets_stage_params(&p->sets);
        forget_families(p);
    }
    const struct input_kind shipped = {FAMILY_SHIPPED, 0}, *const kinds = p->blind ? blind_pattern : pattern;
    int n = r->max_tests;
    CLEANUP_FREE struct wanted *w = xcalloc((size_t)n, sizeof *w);
    for (int i = 0; i < n; i++)
        w[i] = wanted(i, r->single_input ? shipped : kinds[(size_t)i % ARRAY_LEN(pattern)], secret(p, 3, (uint64_t)i));
    enum status st = ST_OK;
    uint64_t again = 0;
    for (int m = n, left = 0; m > 0 && st == ST_OK; m = left, left = 0) {
        st = fill(r, p, w, m, true, e);
        for (int i = 0; i < m && st == ST_OK; i++)
            if (!w[i].usable) w[left++] = wanted(w[i].set, instead_of(w[i].family), secret(p, 4, ++again));
    }
    if (st != ST_OK) return mark_broken(p, st, e);
    p->n_tests = n;
    return ST_OK;
}

int reference_timed_capacity(const struct references *r, const struct reference *p) {
    return p->sets.n_sets - r->max_tests;
}

int reference_timed_set(const struct references *r, int i) { return r->max_tests + i; }

/* The family of timed set `at`, one of those that are to be of another family than shipped inputs; NULL: the reference
 * stands none. In a blind problem only scaled inputs tell. In others an answer that counts its calls could be wrong for
 * inputs of a family that never came. So spikes and inputs of both signs come by turns: where calls are long an answer
 * has one or two sets of another family, and two of them are of both kinds. */
static const char *other_family(const struct reference *p, uint64_t at) {
    const char *const scaled = p->scaled.usable ? FAMILY_SCALED : NULL;
    const char *const with_signs = p->is_signed.usable && !(scaled && secret(p, 11, at) % 2) ? FAMILY_SIGNED : scaled;
    if (p->blind && scaled) return scaled;
    if (!p->spikes.usable || !with_signs) return p->spikes.usable ? FAMILY_SPIKES : with_signs;
    return (at / OTHER_TIMED + secret(p, 12, 0)) % 2 ? FAMILY_SPIKES : with_signs;
}

/* Finds out which families of the tests the reference stands on parameters as initialised, too. It takes a timed set
 * for that, which is filled again later. */
static enum status survey_timed(struct references *r, struct reference *p, struct err *e) {
    static const char *const families[] = {FAMILY_SIGNED, FAMILY_SCALED};
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const struct input_kind kind = {families[i], 0};
        struct wanted w = wanted(reference_timed_set(r, 0), kind, secret(p, 10, i));
        if (!seen(p, &w)->usable) TRY(fill(r, p, &w, 1, true, e));
    }
    return ST_OK;
}

enum status reference_make_timed(struct references *r, struct reference *p, int n, struct err *e) {
    ASSERT(n <= reference_timed_capacity(r, p));
    enum { CHUNK = 64 };
    struct wanted w[CHUNK];
    if (p->n_timed == 0 && n > 0 && !r->single_input) TRY(survey_timed(r, p, e));
    while (p->n_timed < n) {
        int m = n - p->n_timed < CHUNK ? n - p->n_timed : CHUNK;
        for (int i = 0; i < m; i++) {
            const uint64_t at = (uint64_t)(p->n_timed + i);
            struct input_kind kind = {FAMILY_SHIPPED, 0};
            const bool turn = secret(p, 7, at / OTHER_TIMED) % OTHER_TIMED == at % OTHER_TIMED;
            const char *other = turn ? other_family(p, at) : NULL;
            if (other)
                kind.family = other;
            else if (p->touched.usable && secret(p, 8, at) % 2)
                kind.family = FAMILY_TOUCHED;
            w[i] = wanted(reference_timed_set(r, p->n_timed + i), kind, secret(p, 5, at));
        }
        TRY(fill(r, p, w, m, false, e));
        p->n_timed += m;
        evict_timed(r, p);
    }
    return ST_OK;
}

enum status reference_time(struct references *r, struct reference *p, int first, int count, int modulo, int round,
                           double *seconds, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    json_t *reply = NULL;
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "time");
    js_put_i64(&q, "problem", p->id);
    js_put_i64(&q, "round", round);
    js_begin(&q, "sets", '[');
    for (int i = 0; i < count; i++) js_put_i64(&q, NULL, reference_timed_set(r, (first + i) % modulo));
    js_end(&q, ']');
    js_end(&q, '}');
    TRY(ask(r, p, &q, time_timeout_s, &reply, e));
    *seconds = json_number_value(json_object_get(reply, "seconds"));
    json_decref(reply);
    if (!(*seconds > 0)) return FAIL(e, ST_WORKER, "reference worker: no time in the reply");
    return ST_OK;
}
