/* The verifier: takes a batch of answers through lint, compiler, correctness and timing, and decides. Only this process
 * knows the seeds, reads the clock and writes verdicts. */
#include "verify/verify.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/rng.h"
#include "verify/candidate.h"
#include "verify/compile.h"
#include "verify/lint.h"
#include "verify/reference.h"
#include "verify/timing.h"
#include "verify/unit.h"

enum { CACHE_SLOTS = 4096, ROUNDS = 7, FEW_ROUNDS = 3 };
/* A timed request takes at least this long, so that the messages around it, and waking the threads that slept during
 * the other side's turn, are a small part. */
static const double request_s = 2e-3;
/* The number of calls per request is estimated from this many: a single one is mostly the waking of threads. */
enum { WARM_CALLS = 8 };
/* An answer so slow that all rounds would take longer is timed in fewer. */
static const double timing_budget_s = 0.7;

struct cache_slot {
    struct hash128 key;
    bool used;
    struct verdict verdict;
};

struct verifier {
    struct verify_options o;
    struct jail jail;
    struct compiler compiler;
    struct refworker worker;
    struct references references;
    struct cache_slot *cache; /* direct-mapped: a newer verdict replaces an older one */
    char runner[PATH_MAX];
    uint64_t serial; /* of started candidates: their nonces differ */
};

/* ---- opening ---- */

static bool find_runner(char *path, size_t size) {
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = 0;
    /* Beside the program; tests and tools live one level down in the build directory. */
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(path, '/');
        if (!slash) break;
        *slash = 0;
        char probe[PATH_MAX + 32];
        snprintf(probe, sizeof probe, "%s/kernelrl-runner", path);
        if (access(probe, X_OK) == 0 && strlen(probe) < size) {
            memcpy(path, probe, strlen(probe) + 1);
            return true;
        }
    }
    return false;
}

enum status verifier_open(const struct verify_options *o, struct verifier **out, struct err *e) {
    struct verifier *v = xcalloc(1, sizeof *v);
    enum status st = ST_OK;
    *out = NULL;
    v->o = *o;
    v->worker = (struct refworker){.process = PROCESS_NONE, .socket = -1, .stderr_fd = -1};
    if (v->o.threads <= 0) v->o.threads = pool_cpu_count();
    if (v->o.trials <= 0) v->o.trials = 5;
    if (v->o.compile_timeout_s <= 0) v->o.compile_timeout_s = 20;
    if (v->o.run_timeout_s <= 0) v->o.run_timeout_s = 10;
    if (v->o.memory_bytes <= 0) v->o.memory_bytes = (int64_t)2 << 30;
    if (v->o.seed == 0 && getrandom(&v->o.seed, sizeof v->o.seed, 0) != (ssize_t)sizeof v->o.seed) {
        st = FAIL(e, ST_IO, "getrandom: %s", strerror(errno));
        goto fail;
    }
    if (!find_runner(v->runner, sizeof v->runner)) {
        st = FAIL(e, ST_IO, "kernelrl-runner: not found beside the program (run make)");
        goto fail;
    }
    TRY_GOTO(jail_open(&v->jail, v->o.allow_weaker, e), fail);
    TRY_GOTO(compiler_open(&v->compiler, &v->jail, v->o.cache_dir, v->o.compile_timeout_s, v->o.compile_jobs, e), fail);
    TRY_GOTO(refworker_open(&v->worker, v->o.python, v->o.threads, e), fail);
    references_init(&v->references, &v->worker, v->o.trials, v->o.seed);
    v->cache = xcalloc(CACHE_SLOTS, sizeof *v->cache);
    *out = v;
    return ST_OK;
fail:
    verifier_close(v);
    return st;
}

void verifier_close(struct verifier *v) {
    if (!v) return;
    references_free(&v->references);
    refworker_close(&v->worker);
    compiler_close(&v->compiler);
    jail_close(&v->jail);
    free(v->cache);
    free(v);
}

enum status verifier_spec(struct verifier *v, const struct problem *p, const struct spec **out, struct err *e) {
    struct reference *ref;
    enum status st = reference_get(&v->references, p->code, &ref, e);
    if (st != ST_OK) {
        err_note(e, "problem %s", p->key ? p->key : p->name ? p->name : "");
        return st;
    }
    *out = &ref->spec;
    return ST_OK;
}

/* ---- messages ---- */

#define SAY(v, ...) snprintf((v)->message, sizeof(v)->message, __VA_ARGS__)

/* "out[2][3]" for element 1 of argument a; the flat index when that would not fit. */
static void element_name(const struct arg *a, int64_t index, char *text, size_t size) {
    int64_t at[8];
    for (int d = a->nd - 1; d >= 0; d--) {
        at[d] = a->dim[d] ? index % a->dim[d] : 0;
        if (a->dim[d]) index /= a->dim[d];
    }
    size_t n = (size_t)snprintf(text, size, "%.60s", a->name);
    for (int d = 0; d < a->nd && n < size; d++) n += (size_t)snprintf(text + n, size - n, "[%lld]", (long long)at[d]);
}

static void say_difference(struct verdict *v, const struct sets *s, int set, int arg, const struct compare_result *r,
                           const char *where) {
    const struct arg *a = &s->spec->args[arg];
    const struct set_info *info = &s->info[set];
    char name[256];
    element_name(a, r->first, name, sizeof name);
    const char *inputs = strcmp(info->family, "signed") == 0   ? "inputs of both signs"
                         : strcmp(info->family, "scaled") == 0 ? "large inputs of both signs"
                                                               : "inputs as the problem makes them";
    if (r->unwritten > 0)
        SAY(v, "%s: %lld of %lld elements of %s were never written, the first wrong one is %s", where,
            (long long)r->unwritten, (long long)a->count, a->name, name);
    else
        SAY(v,
            "%s (%s): %lld of %lld elements of %s are wrong; first %s is %.6g, expected %.6g; the largest error is "
            "%.3g "
            "of the output's scale",
            where, inputs, (long long)r->different, (long long)a->count, a->name, name, r->got, r->want, r->max_error);
}

static enum outcome difference_outcome(const struct compare_result *r) {
    if (r->unwritten > 0) return OUTCOME_UNWRITTEN;
    return r->not_finite > 0 ? OUTCOME_NOT_FINITE : OUTCOME_WRONG_OUTPUT;
}

static void first_line(char *text) {
    text[strcspn(text, "\n")] = 0;
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32) *p = ' ';
}

/* How a runner that went away went, from its wait status and what it last said. */
static void judge_death(struct verdict *v, struct candidate *c, const char *where) {
    enum wire_fault fault = c->fault;
    int sig, code;
    char said[300];
    candidate_end(c, &sig, &code, said, sizeof said);
    first_line(said);
    if (sig == SIGSYS) {
        v->outcome = OUTCOME_SANDBOX_VIOLATION;
        SAY(v, "%s: made a system call that the sandbox forbids (a process, a file, the network or a signal)", where);
    } else if (fault == WIRE_FAULT_READ_ONLY) {
        v->outcome = OUTCOME_OUT_OF_BOUNDS;
        SAY(v, "%s: wrote into an input or a parameter, or far outside of an output (segmentation fault)", where);
    } else if (fault == WIRE_FAULT_MEMORY) {
        v->outcome = OUTCOME_MEMORY_LIMIT;
        SAY(v, "%s: an allocation was refused by the memory limit, then it crashed", where);
    } else if (sig == SIGXCPU) {
        v->outcome = OUTCOME_TIMEOUT;
        SAY(v, "%s: used up its processor time", where);
    } else if (sig > 0) {
        v->outcome = OUTCOME_CRASH;
        SAY(v, "%s: crashed with signal %d (%s%s)%s%s", where, sig, strsignal(sig),
            fault == WIRE_FAULT_STACK ? ", stack overflow: large local arrays?" : "", said[0] ? ": " : "", said);
    } else {
        v->outcome = OUTCOME_CRASH;
        SAY(v, "%s: the process ended by itself (exit status %d)%s%s", where, code, said[0] ? ": " : "", said);
    }
}

/* Turns a call that did not come back well into a verdict, and ends the candidate. */
static void judge_call(struct verdict *v, struct candidate *c, enum call_result r, const char *where, double waited_s) {
    switch (r) {
    case CALL_DONE: return;
    case CALL_TIMEOUT:
        candidate_end(c, NULL, NULL, NULL, 0);
        v->outcome = OUTCOME_TIMEOUT;
        SAY(v, "%s: no result after %.1f s", where, waited_s);
        return;
    case CALL_FORGED:
        candidate_end(c, NULL, NULL, NULL, 0);
        v->outcome = OUTCOME_SANDBOX_VIOLATION;
        SAY(v, "%s: wrote to the verifier's channel", where);
        return;
    case CALL_DIED:
    case CALL_NOT_LOADED: judge_death(v, c, where); return;
    }
}

/* ---- one answer ---- */

struct run {
    struct verifier *v;
    struct reference *ref;
    struct candidate c;
    bool prepared[SETS_PARAM_SETS];
    int64_t fastest_ns; /* of the correctness calls */
};

/* Starts the candidate, twice when the jail does not come up. False: decided, the candidate is gone. */
static bool start_answer(struct run *r, const struct compile_job *job, struct verdict *out) {
    struct verifier *v = r->v;
    struct err e = {0};
    struct candidate_options o = {
        .runner_path = v->runner,
        .threads = v->o.threads,
        .memory_bytes = v->o.memory_bytes,
        .cpu_s = (uint64_t)((v->o.run_timeout_s * 2 + timing_budget_s * ROUNDS) * v->o.threads) + 5,
    };
    char text[300];
    enum call_result result = CALL_DONE;
    enum status st = ST_FAILED;
    for (int attempt = 0; attempt < 2 && st != ST_OK; attempt++)
        st = candidate_start(&r->c, &v->jail, &r->ref->sets, job->object, job->object_bytes, &o,
                             rng_u64(v->o.seed, 3, ++v->serial), v->o.run_timeout_s, &result, text, sizeof text, &e);
    if (st != ST_OK) {
        out->outcome = OUTCOME_INFRASTRUCTURE;
        SAY(out, "%s", e.msg);
        return false;
    }
    if (result == CALL_NOT_LOADED) {
        bool memory = r->c.fault == WIRE_FAULT_MEMORY;
        candidate_end(&r->c, NULL, NULL, NULL, 0);
        out->outcome = memory ? OUTCOME_MEMORY_LIMIT : OUTCOME_CRASH;
        SAY(out, "cannot be loaded: %s", text);
        return false;
    }
    judge_call(out, &r->c, result, "while loading", v->o.run_timeout_s);
    return result == CALL_DONE;
}

/* Runs prepare() for a parameter set the first time it is needed. */
static bool prepare(struct run *r, int param_set, double deadline_s, struct verdict *out) {
    if (!r->c.has_prepare || r->prepared[param_set]) return true;
    int64_t ns = 0;
    double left = deadline_s - clock_now_s();
    enum call_result result = candidate_call(&r->c, WIRE_PREPARE, 1, param_set, left, &ns);
    judge_call(out, &r->c, result, "prepare()", left);
    if (result != CALL_DONE) return false;
    out->prepare_ms = fmax(out->prepare_ms, (double)ns * 1e-6);
    r->prepared[param_set] = true;
    return true;
}

/* Looks at one slot after a call: guards first, since damage there explains the rest. True: as it should be. */
static bool check_slot(struct run *r, int slot, int set, const char *where, struct verdict *out) {
    const struct sets *s = &r->ref->sets;
    int arg;
    struct compare_result cmp;
    if (!sets_guards_hold(s, slot, &arg)) {
        out->outcome = OUTCOME_OUT_OF_BOUNDS;
        SAY(out, "%s: wrote outside of %s (its %lld elements are all that it may write)", where,
            s->spec->args[arg].name, (long long)s->spec->args[arg].count);
        return false;
    }
    sets_compare(s, slot, set, &arg, &cmp);
    if (!(out->max_error >= cmp.max_error)) out->max_error = cmp.max_error;
    if (arg < 0) return true;
    out->outcome = r->c.fault == WIRE_FAULT_MEMORY ? OUTCOME_MEMORY_LIMIT : difference_outcome(&cmp);
    say_difference(out, s, set, arg, &cmp, where);
    return false;
}

/* All correctness sets, whichever fail; only the first failure is told. True: all passed and the candidate lives. */
static bool run_tests(struct run *r, struct verdict *out) {
    double deadline = clock_now_s() + r->v->o.run_timeout_s;
    struct verdict first = {0};
    bool failed = false;
    r->fastest_ns = INT64_MAX;
    for (int t = 0; t < out->tests_total; t++) {
        char where[64];
        int64_t ns = 0;
        int param_set = r->ref->sets.info[t].param_set;
        snprintf(where, sizeof where, "test %d of %d", t + 1, out->tests_total);
        if (!prepare(r, param_set, deadline, out)) return false;
        sets_stage(&r->ref->sets, 0, t);
        double left = deadline - clock_now_s();
        enum call_result result = candidate_call(&r->c, WIRE_CALL, 1, param_set, left, &ns);
        if (result != CALL_DONE) {
            judge_call(out, &r->c, result, where, r->v->o.run_timeout_s);
            return false;
        }
        candidate_pause(&r->c); /* what is not there when the call returns does not count */
        if (ns < r->fastest_ns) r->fastest_ns = ns;
        bool passed = check_slot(r, 0, t, where, out);
        candidate_resume(&r->c);
        if (passed) {
            out->tests_passed++;
        } else if (!failed) {
            failed = true;
            first = *out;
        }
    }
    if (!failed) return true;
    out->outcome = first.outcome;
    memcpy(out->message, first.message, sizeof out->message);
    candidate_end(&r->c, NULL, NULL, NULL, 0);
    return false;
}

/* The time of an empty request, to be taken off. Smallest of a few: a larger one is somebody else's noise. */
static enum call_result empty_request(struct run *r, int64_t *ns) {
    *ns = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        int64_t one = 0;
        enum call_result result = candidate_call(&r->c, WIRE_CALL, 0, 0, r->v->o.run_timeout_s, &one);
        if (result != CALL_DONE) return result;
        if (one < *ns) *ns = one;
    }
    return CALL_DONE;
}

/* One timed request on `count` fresh sets; everything it wrote is checked while it stands still. */
static bool timed_request(struct run *r, int first, int count, int64_t empty_ns, double *seconds, struct verdict *out) {
    struct sets *s = &r->ref->sets;
    int64_t ns = 0;
    for (int i = 0; i < count; i++) sets_stage(s, i, reference_timed_set(&r->v->references, first + i));
    enum call_result result = candidate_call(&r->c, WIRE_CALL, count, 0, r->v->o.run_timeout_s, &ns);
    candidate_pause(&r->c);
    if (result != CALL_DONE) {
        candidate_resume(&r->c);
        judge_call(out, &r->c, result, "in a timed call", r->v->o.run_timeout_s);
        return false;
    }
    bool good = true;
    for (int i = 0; i < count && good; i++)
        good = check_slot(r, i, reference_timed_set(&r->v->references, first + i), "in a timed call", out);
    candidate_resume(&r->c);
    if (!good) {
        if (out->outcome != OUTCOME_OUT_OF_BOUNDS) out->outcome = OUTCOME_UNSTABLE;
        candidate_end(&r->c, NULL, NULL, NULL, 0);
        return false;
    }
    /* At least a nanosecond per call: a ratio of anything is then defined. */
    *seconds = fmax((double)(ns - empty_ns), (double)count) * 1e-9 / count;
    return true;
}

static int calls_per_request(double seconds_per_call, int limit) {
    return (int)fmin(fmax(ceil(request_s / seconds_per_call), 1), limit);
}

/* First estimate of the time of one eager call. */
static enum status estimate_eager(struct references *refs, struct reference *ref, struct err *e) {
    if (ref->eager_s > 0) return ST_OK;
    TRY(reference_time(refs, ref, 0, 1, ref->n_timed, 0, &ref->eager_s, e));
    if (ref->eager_s > WARM_CALLS * request_s) return ST_OK;
    TRY(reference_time(refs, ref, 0, WARM_CALLS, ref->n_timed, 1, &ref->eager_s, e));
    ref->eager_s /= WARM_CALLS;
    return ST_OK;
}

/* Eager and candidate in turn, each round on sets that this candidate has not seen. */
static enum status measure(struct run *r, struct verdict *out, struct err *e) {
    struct references *refs = &r->v->references;
    struct reference *ref = r->ref;
    int64_t empty_ns;
    enum call_result result = empty_request(r, &empty_ns);
    if (result != CALL_DONE) {
        judge_call(out, &r->c, result, "between calls", r->v->o.run_timeout_s);
        return ST_OK;
    }
    double guess = fmax((double)(r->fastest_ns - empty_ns), 1000) * 1e-9;
    int limit = reference_timed_capacity(refs, ref) / (ROUNDS + 1);
    if (limit > ref->sets.slots) limit = ref->sets.slots;
    int warm = guess > WARM_CALLS * request_s ? 1 : WARM_CALLS < limit ? WARM_CALLS : limit;
    TRY(reference_make_timed(refs, ref, warm, e));
    if (!timed_request(r, 0, warm, empty_ns, &guess, out)) return ST_OK;
    int count = calls_per_request(guess, limit);
    /* Few rounds for an answer that is slow, but never just one: that has no interval. */
    int rounds = guess * count * ROUNDS > timing_budget_s ? FEW_ROUNDS : ROUNDS;
    TRY(reference_make_timed(refs, ref, warm + rounds * count, e));
    TRY(estimate_eager(refs, ref, e));
    int filled = ref->n_timed, eager_count = calls_per_request(ref->eager_s, filled < 64 ? filled : 64);
    double mine[ROUNDS], eager[ROUNDS];
    for (int i = 0; i < rounds; i++) {
        double total;
        int first = warm + i * count;
        TRY(reference_time(refs, ref, first, eager_count, filled, i + 1, &total, e));
        eager[i] = total / eager_count;
        if (!timed_request(r, first, count, empty_ns, &mine[i], out)) return ST_OK;
    }
    struct timing_ratio ratio = timing_compare(eager, mine, rounds);
    ref->eager_s = timing_median(eager, rounds);
    out->speedup = ratio.ratio;
    out->speedup_low = ratio.low;
    out->speedup_high = ratio.high;
    out->eager_ms = ref->eager_s * 1e3;
    out->kernel_ms = timing_median(mine, rounds) * 1e3;
    return ST_OK;
}

/* The outcome for trouble on our side: the problem's fault, or ours. */
static void judge_trouble(struct verdict *v, enum status st, const struct err *e) {
    v->outcome = st == ST_INVALID || st == ST_PARSE ? OUTCOME_PROBLEM_ERROR : OUTCOME_INFRASTRUCTURE;
    SAY(v, "%s", e->msg);
}

static void run_answer(struct verifier *v, struct reference *ref, const struct compile_job *job, struct verdict *out) {
    struct err e = {0};
    enum status st = reference_make_tests(&v->references, ref, &e);
    if (st != ST_OK) {
        judge_trouble(out, st, &e);
        return;
    }
    struct run r = {.v = v, .ref = ref};
    double t0 = clock_now_s();
    out->tests_total = v->o.trials;
    sets_wipe(&ref->sets);
    bool good = start_answer(&r, job, out) && run_tests(&r, out);
    double t1 = clock_now_s();
    out->run_s = t1 - t0;
    if (!good) return;
    out->outcome = OUTCOME_CORRECT;
    if (v->o.measure) {
        st = measure(&r, out, &e);
        if (st != ST_OK) judge_trouble(out, st, &e);
        out->time_s = clock_now_s() - t1;
    }
    candidate_end(&r.c, NULL, NULL, NULL, 0); /* nothing when it has ended already */
}

/* ---- a batch ---- */

struct work {
    struct verify_item *item;
    struct hash128 key;
    struct reference *ref;
    struct compile_job job;
    struct str unit;
    bool decided;
    int same_as; /* an earlier item with the same problem and source; -1 */
};

static struct hash128 item_key(const struct verify_item *it) {
    CLEANUP_STR struct str s = STR_INIT;
    str_adds(&s, it->problem->code);
    str_addc(&s, 0);
    str_adds(&s, it->source);
    return hash_hex(s.p, s.len);
}

static struct cache_slot *cache_slot(struct verifier *v, const struct hash128 *key) {
    return &v->cache[hash_bytes(key->hex, sizeof key->hex, 1) % CACHE_SLOTS];
}

static bool same_key(const struct hash128 *a, const struct hash128 *b) {
    return memcmp(a->hex, b->hex, sizeof a->hex) == 0;
}

/* Everything before the compiler. */
static void prepare_work(struct verifier *v, struct work *all, size_t i) {
    struct work *w = &all[i];
    struct verify_item *it = w->item;
    struct verdict *out = &it->verdict;
    *out = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE, .max_error = (double)NAN};
    w->same_as = -1;
    w->decided = true;
    if (!it->source || !*it->source) {
        out->outcome = OUTCOME_NO_KERNEL;
        SAY(out, "%s", outcome_text(OUTCOME_NO_KERNEL));
        return;
    }
    w->key = item_key(it);
    for (size_t k = 0; k < i; k++)
        if (all[k].same_as < 0 && all[k].key.hex[0] && same_key(&all[k].key, &w->key)) {
            w->same_as = (int)k;
            return;
        }
    const struct cache_slot *slot = cache_slot(v, &w->key);
    if (slot->used && same_key(&slot->key, &w->key)) {
        *out = slot->verdict;
        out->cached = true;
        return;
    }
    struct err e = {0};
    enum status st = reference_get(&v->references, it->problem->code, &w->ref, &e);
    if (st != ST_OK) {
        judge_trouble(out, st, &e);
        return;
    }
    struct lint_facts facts;
    if (!lint_source(it->source, &facts, out->message, sizeof out->message)) {
        out->outcome = OUTCOME_LINT;
        return;
    }
    unit_render(&w->ref->spec, &facts, it->source, &w->unit);
    w->job = (struct compile_job){.unit = w->unit.p, .unit_bytes = w->unit.len};
    w->decided = false;
}

static void after_compiler(struct work *w) {
    struct verdict *out = &w->item->verdict;
    out->compile_s = w->job.seconds;
    if (w->job.result == COMPILE_OK) return;
    static const enum outcome outcomes[] = {[COMPILE_FAILED] = OUTCOME_COMPILE_ERROR,
                                            [COMPILE_SLOW] = OUTCOME_COMPILE_TIMEOUT,
                                            [COMPILE_BROKEN] = OUTCOME_INFRASTRUCTURE};
    out->outcome = outcomes[w->job.result];
    SAY(out, "%s", w->job.message);
    w->decided = true;
}

static void remember(struct verifier *v, const struct work *w) {
    if (!w->key.hex[0] || w->item->verdict.cached || outcome_class(w->item->verdict.outcome) == 'I') return;
    struct cache_slot *slot = cache_slot(v, &w->key);
    slot->used = true;
    slot->key = w->key;
    slot->verdict = w->item->verdict;
}

enum status verify_batch(struct verifier *v, struct verify_item *items, size_t n, const volatile bool *cancel,
                         struct err *e) {
    struct work *all = xcalloc(n + 1, sizeof *all);
    struct compile_job **jobs = xcalloc(n + 1, sizeof *jobs);
    size_t n_jobs = 0;
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++) {
        all[i].item = &items[i];
        prepare_work(v, all, i);
        if (!all[i].decided) jobs[n_jobs++] = &all[i].job;
    }
    if (cancel && *cancel) st = FAIL(e, ST_CANCELLED, "cancelled");
    if (st == ST_OK && n_jobs > 0) compile_all(&v->compiler, jobs, n_jobs, cancel);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        struct work *w = &all[i];
        if (w->decided) continue;
        if (cancel && *cancel) {
            st = FAIL(e, ST_CANCELLED, "cancelled");
            break;
        }
        after_compiler(w);
        if (!w->decided) run_answer(v, w->ref, &w->job, &w->item->verdict);
    }
    for (size_t i = 0; i < n; i++) {
        if (all[i].same_as >= 0)
            items[i].verdict = items[all[i].same_as].verdict;
        else if (st == ST_OK)
            remember(v, &all[i]);
        if (all[i].same_as >= 0 && outcome_class(items[i].verdict.outcome) != 'I') items[i].verdict.cached = true;
        free(all[i].job.object);
        str_free(&all[i].unit);
    }
    free(jobs);
    free(all);
    return st;
}
