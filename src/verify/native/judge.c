/* Judges one answer: its tests, its times, and what the verdict says about it. */
#include "verify/native/judge.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "verify/native/candidate.h"
#include "verify/timing.h"
#include "verify/worker_constants.h"

enum { ROUNDS = 7, FEW_ROUNDS = 3, LONE_ROUNDS = 5 };
/* A timed request takes at least this long. So the messages around it, and waking the threads that slept during the
 * other side's turn, are a small part of it. */
static const double request_s = 2e-3;
/* The number of calls in a request is estimated from this many calls, or from twice the time of a request. A single
 * short call mostly shows how long the waking of threads takes. */
enum { WARM_CALLS = 8 };
/* A ratio above this is measured again, in a fresh process, before it counts. */
static const double believable_ratio = 10;
/* When all rounds would take longer than this, because the answer is slow, it is timed in fewer rounds. */
static const double timing_budget_s = 0.7;
/* An answer is loaded within this time. Nothing of it should run then. */
static const double load_timeout_s = 3;
/* One measurement, from loading to the last request, may take so many times what the tests together may take. An answer
 * that passes the tests needs less. */
static const double timed_share = 1.5;
/* Processor time that a process may use around a request while it should stand still: its threads need some to come to
 * rest. */
static const double most_moved_s = 60e-6;
/* When the turns of the reference take more than most_slowed times what it takes while no answer lives, an answer may
 * have slowed it down. The known value is some measurements old, so the reference is asked again only when its turns
 * take more than most_suspect times that. It is asked a few times at first: other work on the machine explains most
 * differences. */
static const double most_slowed = 1.1, most_suspect = 1.25;
enum { FEW_ALONE = 3 };
/* When the interval of a ratio is this wide, its upper end over its lower one, means count in the place of medians,
 * because the cause is slow requests. The answer is unsteady when two more things hold. Its times spread by at least
 * most_spread times the square of the spread that the reference's times have in the same turns: a machine that is busy
 * with something else spreads both. And its slow requests took at least held_s more in all. */
static const double widest_interval = 4, most_spread = 4, held_s = 0.05;
/* A ratio above least_gain is compared with the ratio in requests of one call each, in which an answer cannot work on
 * the inputs of several calls at once. This is done where the reference's calls are long enough: what such a request
 * costs beside its call (threads that wake up) is known to within lone_slack_s. */
static const double least_gain = 1.15, lone_slack_s = 60e-6;

/* ---- messages ---- */

/* Writes "out[2][3]" for an element of argument a, or its flat index when that would not fit. */
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
    const char *inputs = strcmp(info->family, FAMILY_SIGNED) == 0    ? "inputs of both signs"
                         : strcmp(info->family, FAMILY_TOUCHED) == 0 ? "one input element changed"
                         : strcmp(info->family, FAMILY_SPIKES) == 0  ? "inputs with a few large elements"
                         : strcmp(info->family, FAMILY_SCALED) == 0  ? "large inputs of both signs"
                                                                     : "inputs as the problem makes them";
    if (r->unwritten > 0)
        VERDICT_SAY(v, "%s: %lld of %lld elements of %s were never written, the first wrong one is %s", where,
                    (long long)r->unwritten, (long long)a->count, a->name, name);
    else
        VERDICT_SAY(
            v,
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

/* Turns a dead runner's wait status and last message into a verdict. */
static void judge_death(struct verdict *v, struct candidate *c, const char *where) {
    enum wire_fault fault = c->fault;
    int sig, code;
    char said[300];
    candidate_end(c, &sig, &code, said, sizeof said);
    first_line(said);
    if (sig == SIGSYS) {
        v->outcome = OUTCOME_SANDBOX_VIOLATION;
        VERDICT_SAY(v, "%s: made a system call that the sandbox forbids (a process, a file, the network or a signal)",
                    where);
    } else if (fault == WIRE_FAULT_READ_ONLY) {
        v->outcome = OUTCOME_OUT_OF_BOUNDS;
        VERDICT_SAY(v, "%s: wrote into an input or a parameter, or far outside of an output (segmentation fault)",
                    where);
    } else if (fault == WIRE_FAULT_MEMORY) {
        v->outcome = OUTCOME_MEMORY_LIMIT;
        VERDICT_SAY(v, "%s: an allocation was refused by the memory limit, then it crashed", where);
    } else if (sig == SIGXCPU) {
        v->outcome = OUTCOME_TIMEOUT;
        VERDICT_SAY(v, "%s: used up its processor time", where);
    } else if (sig > 0) {
        v->outcome = OUTCOME_CRASH;
        VERDICT_SAY(v, "%s: crashed with signal %d (%s%s)%s%s", where, sig, strsignal(sig),
                    fault == WIRE_FAULT_STACK ? ", stack overflow: large local arrays?" : "", said[0] ? ": " : "",
                    said);
    } else {
        v->outcome = OUTCOME_CRASH;
        VERDICT_SAY(v, "%s: the process ended by itself (exit status %d)%s%s", where, code, said[0] ? ": " : "", said);
    }
}

/* Turns a call that has failed into a verdict, and ends the candidate. */
static void judge_call(struct verdict *v, struct candidate *c, enum call_result r, const char *where, double waited_s) {
    switch (r) {
    case CALL_DONE: return;
    case CALL_TIMEOUT:
        candidate_end(c, NULL, NULL, NULL, 0);
        v->outcome = OUTCOME_TIMEOUT;
        VERDICT_SAY(v, "%s: no result after %.1f s", where, waited_s);
        return;
    case CALL_FORGED:
        candidate_end(c, NULL, NULL, NULL, 0);
        v->outcome = OUTCOME_SANDBOX_VIOLATION;
        VERDICT_SAY(v, "%s: wrote to the verifier's channel", where);
        return;
    case CALL_DIED:
    case CALL_NOT_LOADED: judge_death(v, c, where); return;
    }
}

/* ---- one answer ---- */

struct native_run {
    struct native_judge *j;
    struct reference *ref;
    struct compile_batch *beside; /* Compilers that may run at the same time. NULL: there are none. */
    struct verdict *out;
    struct judge_timed *timed; /* Set once the answer's tests are over. */
    int lane;                  /* The lane of the reference's sets that it uses. */
    struct candidate c;
    bool prepared[SETS_PARAM_SETS];
    double deadline_since_s; /* The time that the tests may take is counted from here. */
    int64_t fastest_ns;      /* The shortest time of the correctness calls. */
    int64_t empty_ns;        /* The time of an empty request. */
    double left_s;           /* What is left of the time that a measurement may take of the answer's doing. */
    int count;           /* How many calls a timed request has. 0: the verdict is decided, and nothing more is timed. */
    double call_s;       /* The estimated time of a call. */
    int window;          /* The first of its own timed sets; later the first set of its rounds. */
    double mine[ROUNDS]; /* The times as measured. */
};

/* Starts the candidate, a second time when the jail does not come up. False: the verdict is decided, and the candidate
 * has ended. */
static bool start_answer(struct native_run *r, const struct compile_job *job) {
    struct verdict *out = r->out;
    struct native_judge *j = r->j;
    struct err e = {0};
    struct candidate_options o = {
        .runner_path = j->runner,
        .threads = j->o->threads,
        .memory_bytes = j->o->memory_bytes,
        .lane = r->lane,
        .cpu_s = (uint64_t)((1 + timed_share) * j->o->run_timeout_s * j->o->threads) + 5,
    };
    char text[300];
    const double limit_s = fmin(load_timeout_s, j->o->run_timeout_s);
    enum call_result result = CALL_DONE;
    enum status st = ST_FAILED;
    for (int attempt = 0; attempt < 2 && st != ST_OK; attempt++)
        st = candidate_start(&r->c, j->jail, &r->ref->sets, job->object, job->object_bytes, &o,
                             hmac_u64(j->o->seed, "nonces", ++j->serial, NULL, 0), limit_s, &result, text, sizeof text,
                             &e);
    if (st != ST_OK) {
        out->outcome = OUTCOME_INFRASTRUCTURE;
        VERDICT_SAY(out, "%s", e.msg);
        return false;
    }
    if (result == CALL_NOT_LOADED) {
        bool memory = r->c.fault == WIRE_FAULT_MEMORY;
        candidate_end(&r->c, NULL, NULL, NULL, 0);
        out->outcome = memory ? OUTCOME_MEMORY_LIMIT : OUTCOME_CRASH;
        VERDICT_SAY(out, "cannot be loaded: %s", text);
        return false;
    }
    judge_call(out, &r->c, result, "while loading", limit_s);
    return result == CALL_DONE;
}

/* Makes one request within the time that the tests have left. While compilers run beside it, an answer has only a part
 * of the processors, so that time is not counted. */
static enum call_result call_in_time(struct native_run *r, enum wire_op op, int param_set, int64_t *ns) {
    bool asked = false;
    for (;;) {
        double busy = r->beside ? compile_busy_s(r->beside, r->deadline_since_s) : 0;
        double left = r->deadline_since_s + r->j->o->run_timeout_s + busy - clock_now_s();
        if (asked && left <= 0) return CALL_TIMEOUT;
        enum call_result result =
            asked ? candidate_wait(&r->c, left, ns) : candidate_call(&r->c, op, 1, param_set, left, ns);
        if (result != CALL_TIMEOUT) return result;
        asked = true;
    }
}

/* Runs prepare() for a parameter set, the first time that it is needed. */
static bool prepare(struct native_run *r, int param_set) {
    struct verdict *out = r->out;
    if (!r->c.has_prepare || r->prepared[param_set]) return true;
    int64_t ns = 0;
    enum call_result result = call_in_time(r, WIRE_PREPARE, param_set, &ns);
    judge_call(out, &r->c, result, "prepare()", r->j->o->run_timeout_s);
    if (result != CALL_DONE) return false;
    out->prepare_ms = fmax(out->prepare_ms, (double)ns * 1e-6);
    r->prepared[param_set] = true;
    return true;
}

/* Looks at one slot after a call. The guards come first, since damage there explains the rest. Returns whether
 * everything is as it should be. */
static bool check_slot(struct native_run *r, int slot, int set, const char *where) {
    struct verdict *out = r->out;
    const struct sets *s = &r->ref->sets;
    int arg;
    struct compare_result cmp;
    if (!sets_guards_hold(s, r->lane, slot, &arg)) {
        out->outcome = OUTCOME_OUT_OF_BOUNDS;
        VERDICT_SAY(out, "%s: wrote outside of %s (its %lld elements are all that it may write)", where,
                    s->spec->args[arg].name, (long long)s->spec->args[arg].count);
        return false;
    }
    sets_compare(s, r->lane, slot, set, &arg, &cmp);
    if (!(out->max_error >= cmp.max_error)) out->max_error = cmp.max_error;
    if (arg < 0) return true;
    out->outcome = r->c.fault == WIRE_FAULT_MEMORY ? OUTCOME_MEMORY_LIMIT : difference_outcome(&cmp);
    say_difference(out, s, set, arg, &cmp, where);
    return false;
}

/* Makes one call on a correctness set, and looks at it while the answer stands still. False: the call did not come
 * back, and the candidate has ended. Else *passed says whether the outputs are right. */
static bool run_test(struct native_run *r, int t, const char *where, bool *passed) {
    int64_t ns = 0;
    int param_set = r->ref->sets.info[t].param_set;
    if (!prepare(r, param_set)) return false;
    sets_stage(&r->ref->sets, r->lane, 0, t);
    enum call_result result = call_in_time(r, WIRE_CALL, param_set, &ns);
    if (result != CALL_DONE) {
        judge_call(r->out, &r->c, result, where, r->j->o->run_timeout_s);
        return false;
    }
    if (ns < r->fastest_ns) r->fastest_ns = ns;
    *passed = check_slot(r, 0, t, where);
    return true;
}

/* Runs all correctness sets, whichever of them fail. The verdict tells of the first failure. Returns whether all have
 * passed and the candidate lives. */
static bool run_tests(struct native_run *r) {
    struct verdict *out = r->out;
    struct verdict first = {0};
    bool failed = false, passed;
    r->deadline_since_s = clock_now_s();
    r->fastest_ns = INT64_MAX;
    for (int t = 0; t < out->tests_total; t++) {
        char where[64];
        snprintf(where, sizeof where, "test %d of %d", t + 1, out->tests_total);
        if (!run_test(r, t, where, &passed)) return false;
        if (passed) {
            out->tests_passed++;
        } else if (!failed) {
            failed = true;
            first = *out;
            if (r->j->o->staged == STAGED_ON) break;
        }
    }
    if (!failed) return true;
    out->outcome = first.outcome;
    memcpy(out->message, first.message, sizeof out->message);
    candidate_end(&r->c, NULL, NULL, NULL, 0);
    return false;
}

/* ---- times ---- */

/* An idle machine needs 7 to 15 us for a request without calls. The answer's process is the one that replies. So it is
 * believed only up to this limit, which is one per cent of a timed request. */
static const int64_t most_empty_ns = 20000;
static const double most_empty_share = 0.01;

/* Makes one request of a measurement, within what is left of the time for all of them. False: the verdict is decided,
 * and the candidate has ended. */
static bool measured_call(struct native_run *r, int count, const char *where, int64_t *ns) {
    const double limit_s = fmin(r->left_s, r->j->o->run_timeout_s);
    enum call_result result = candidate_call(&r->c, WIRE_CALL, count, 0, fmax(limit_s, 0), ns);
    r->left_s -= (double)*ns * 1e-9;
    judge_call(r->out, &r->c, result, where, limit_s);
    return result == CALL_DONE;
}

/* Finds the time of an empty request, which is taken off the others. It is the smallest of a few, because a larger one
 * is noise from somebody else. */
static bool empty_request(struct native_run *r) {
    r->empty_ns = most_empty_ns;
    for (int i = 0; i < 5; i++) {
        int64_t one = 0;
        if (!measured_call(r, 0, "between calls", &one)) return false;
        if (one < r->empty_ns) r->empty_ns = one;
    }
    return true;
}

/* How many timed sets one answer gets. Answers that are alive at once have sets of their own. So what an answer knows
 * about its inputs, or has computed, is of no use to another one, whatever they share (the processor's caches, futexes
 * on their inputs). */
static int sets_of_one(const struct native_judge *j, const struct reference *ref) {
    const int share = reference_timed_capacity(j->references, ref) / SETS_LANES;
    return share > ROUNDS + 1 ? share : ROUNDS + 1;
}

/* The most calls that a request may have, so that the answer's sets suffice for all rounds. */
static int request_limit(const struct native_judge *j, const struct reference *ref) {
    int limit = (sets_of_one(j, ref) - LONE_ROUNDS) / (ROUNDS + 1);
    if (limit < 1) limit = 1;
    return limit < ref->sets.slots ? limit : ref->sets.slots;
}

/* Makes one timed request on `count` fresh sets. They are written while the candidate stands still, so that none of its
 * threads sees them before the clock runs. Everything that it wrote is checked while it stands still again, and it
 * stays stopped, because the next turn is somebody else's. False: the verdict is decided, and the candidate has
 * ended. */
static bool timed_request(struct native_run *r, int first, int count, double *seconds) {
    struct sets *s = &r->ref->sets;
    int64_t ns = 0;
    for (int i = 0; i < count; i++) sets_stage(s, r->lane, i, reference_timed_set(r->j->references, first + i));
    if (!measured_call(r, count, "in a timed call", &ns)) return false;
    bool good = true;
    for (int i = 0; i < count && good; i++)
        good = check_slot(r, i, reference_timed_set(r->j->references, first + i), "in a timed call");
    if (!good) {
        if (r->out->outcome != OUTCOME_OUT_OF_BOUNDS) r->out->outcome = OUTCOME_UNSTABLE;
        candidate_end(&r->c, NULL, NULL, NULL, 0);
        return false;
    }
    /* Time also counts that the candidate used since its last turn, and behind this reply while its outputs were looked
     * at. */
    ns += (int64_t)(fmax(candidate_moved_s(&r->c) - most_moved_s, 0) * 1e9);
    /* Next to nothing is taken off a request that could have had more calls, and is short because calls were slow when
     * their number was decided. What stays is at least a nanosecond a call, so that a ratio is always defined. */
    const bool full = count >= request_limit(r->j, r->ref);
    const double off_ns = full ? (double)r->empty_ns : fmin((double)r->empty_ns, most_empty_share * (double)ns);
    *seconds = fmax((double)ns - off_ns, (double)count) * 1e-9 / count;
    return true;
}

static int calls_per_request(double seconds_per_call, int limit) {
    return (int)fmin(fmax(ceil(request_s / seconds_per_call), 1), limit);
}

/* How many sets the estimates use. */
static int warm_window(int limit) { return limit < WARM_CALLS ? limit : WARM_CALLS; }

/* How many calls an estimate is made from, when one takes about so long. */
static int warm_calls(double seconds_per_call, int limit) {
    return calls_per_request(seconds_per_call / 2, warm_window(limit));
}

/* Makes a first estimate of the time of one eager call. */
static enum status estimate_eager(struct references *refs, struct reference *ref, struct err *e) {
    if (ref->eager_s > 0) return ST_OK;
    TRY(reference_time(refs, ref, 0, 1, ref->n_timed, 0, &ref->eager_s, e));
    int calls = warm_calls(ref->eager_s, WARM_CALLS);
    if (calls == 1) return ST_OK;
    TRY(reference_time(refs, ref, 0, calls, ref->n_timed, 1, &ref->eager_s, e));
    ref->eager_s /= calls;
    return ST_OK;
}

/* Finds how long a call takes, and from that how many calls go into a request. */
static enum status warm_up(struct native_run *r, int *next_set, struct err *e) {
    if (!empty_request(r)) return ST_OK;
    candidate_moved_s(&r->c); /* During the tests nobody's time was taken. */
    int limit = request_limit(r->j, r->ref);
    int calls = warm_calls(fmax((double)(r->fastest_ns - r->empty_ns), 1000) * 1e-9, limit);
    r->window = *next_set;
    *next_set += calls;
    TRY(reference_make_timed(r->j->references, r->ref, *next_set, e));
    if (timed_request(r, r->window, calls, &r->call_s)) r->count = calls_per_request(r->call_s, limit);
    return ST_OK;
}

/* The largest value over the smallest one. */
static double spread(const double *x, int n) { return timing_quantile(x, n, 1) / timing_quantile(x, n, 0); }

static void note_times(struct native_run *r, const double *eager, int rounds) {
    struct verdict *out = r->out;
    struct timing_ratio ratio = timing_compare(eager, r->mine, rounds, 0.5);
    const double its = spread(eager, rounds), middle_s = timing_median(r->mine, rounds);
    const double more_s = (timing_centre(r->mine, rounds, 0) - middle_s) * rounds * r->count;
    const bool wide = ratio.high > widest_interval * ratio.low;
    if (wide) ratio = timing_compare(eager, r->mine, rounds, 0);
    r->timed->erratic = wide && spread(r->mine, rounds) > most_spread * its * its && more_s > held_s;
    out->speedup = ratio.ratio;
    out->speedup_low = ratio.low;
    out->speedup_high = ratio.high;
    out->eager_ms = timing_centre(eager, rounds, wide ? 0 : 0.5) * 1e3;
    out->kernel_ms = timing_centre(r->mine, rounds, wide ? 0 : 0.5) * 1e3;
}

/* Makes the sets that timing will probably want, while compilers keep the other processors busy. If this fails, the
 * trouble comes up again when the sets are used. */
static void make_sets_early(struct native_run *r) {
    struct err ignored = {0};
    double call_s = fmax((double)r->fastest_ns, 1000) * 1e-9;
    int limit = request_limit(r->j, r->ref), calls = calls_per_request(call_s, limit);
    int rounds = call_s * calls * ROUNDS > timing_budget_s ? FEW_ROUNDS : ROUNDS;
    int n = warm_window(limit) + rounds * calls;
    if (reference_make_timed(r->j->references, r->ref, n, &ignored) != ST_OK) log_debug("%s", ignored.msg);
}

static void refuse_times(struct verdict *v, enum outcome o) {
    v->outcome = o;
    v->speedup = v->speedup_low = v->speedup_high = v->eager_ms = v->kernel_ms = 0;
}

/* Returns whether requests of one call each have a say about this answer, too. */
static bool wants_lone(const struct native_run *r) {
    return r->count > 1 && r->out->speedup > least_gain && r->ref->eager_s > 2 * lone_slack_s;
}

/* Makes rounds of one call each. In these an answer cannot read weights once for all calls of a request, or do the work
 * of all calls in the first one. Where the answer's ratio is higher than these rounds explain, their ratio counts. */
static enum status take_lone_turns(struct native_judge *j, struct reference *ref, struct native_run *const *runs, int n,
                                   int *next_set, struct err *e) {
    double eager[LONE_ROUNDS], mine[SETS_LANES][LONE_ROUNDS];
    int wanted = 0;
    for (int k = 0; k < n; k++) {
        if (!wants_lone(runs[k])) continue;
        wanted++;
        runs[k]->window = *next_set;
        *next_set += LONE_ROUNDS;
    }
    if (wanted == 0) return ST_OK;
    TRY(reference_make_timed(j->references, ref, *next_set, e));
    for (int i = 0; i < LONE_ROUNDS; i++) {
        TRY(reference_time(j->references, ref, i, 1, ref->n_timed, i + 1, &eager[i], e));
        for (int k = 0; k < n; k++) {
            struct native_run *r = runs[(k + i) % n];
            double *took = &mine[(k + i) % n][i];
            if (!wants_lone(r)) continue;
            if (timed_request(r, r->window + i, 1, took)) {
                *took = fmax(*took - (double)r->empty_ns * 1e-9, 1e-9);
                continue;
            }
            r->count = 0;
            refuse_times(r->out, r->out->outcome);
        }
    }
    for (int k = 0; k < n; k++) {
        struct verdict *v = runs[k]->out;
        if (!wants_lone(runs[k])) continue;
        const double lone_s[2] = {timing_median(eager, LONE_ROUNDS), timing_median(mine[k], LONE_ROUNDS)};
        if (!timing_overlaps(v->speedup, lone_s, lone_slack_s)) continue;
        const struct timing_ratio ratio = timing_compare(eager, mine[k], LONE_ROUNDS, 0.5);
        log_debug("calls overlap: ratio %.3f in requests of %d, %.3f one by one", v->speedup, runs[k]->count,
                  ratio.ratio);
        v->speedup = ratio.ratio;
        v->speedup_low = ratio.low;
        v->speedup_high = ratio.high;
        v->kernel_ms = v->eager_ms / ratio.ratio;
    }
    return ST_OK;
}

/* Makes rounds in which eager PyTorch has its turn first and then each candidate, on sets of its own. These begin at
 * *next_set, which is moved behind them. So what is still staged from another candidate's turn, and what another one
 * has computed, never comes up again. The order of the candidates rotates, so that on average each is equally far from
 * eager PyTorch. */
static enum status take_turns(struct native_judge *j, struct reference *ref, struct native_run *const *runs, int n,
                              int *next_set, struct err *e) {
    struct references *refs = j->references;
    double eager[ROUNDS], longest_s = 0;
    for (int k = 0; k < n; k++) longest_s = fmax(longest_s, runs[k]->call_s * runs[k]->count);
    if (n == 0) return ST_OK;
    /* A slow answer gets few rounds, but more than one: one round has no interval. */
    const int rounds = longest_s * ROUNDS > timing_budget_s ? FEW_ROUNDS : ROUNDS, base = *next_set;
    for (int k = 0; k < n; k++) {
        runs[k]->window = *next_set;
        *next_set += rounds * runs[k]->count;
    }
    TRY(reference_make_timed(refs, ref, *next_set, e));
    TRY(estimate_eager(refs, ref, e));
    int filled = ref->n_timed, eager_count = calls_per_request(ref->eager_s, filled < 64 ? filled : 64);
    for (int i = 0; i < rounds; i++) {
        double total;
        TRY(reference_time(refs, ref, base + i * eager_count, eager_count, filled, i + 1, &total, e));
        eager[i] = total / eager_count;
        for (int k = 0; k < n; k++) {
            struct native_run *r = runs[(k + i) % n];
            if (r->count > 0 && !timed_request(r, r->window + i * r->count, r->count, &r->mine[i])) r->count = 0;
        }
    }
    ref->eager_s = timing_median(eager, rounds);
    for (int k = 0; k < n; k++)
        if (runs[k]->count > 0) note_times(runs[k], eager, rounds);
    return take_lone_turns(j, ref, runs, n, next_set, e);
}

/* Times candidates that are up and correct, all of one problem. Those with short calls share the turns of eager
 * PyTorch. A candidate that needs longer would keep the others waiting, and has turns of its own. */
static enum status measure(struct native_judge *j, struct reference *ref, struct native_run *runs, int n,
                           struct err *e) {
    struct native_run *together[SETS_LANES] = {0};
    int n_together = 0, next_set = 0;
    for (int k = 0; k < n; k++) {
        TRY(warm_up(&runs[k], &next_set, e));
        if (runs[k].count > 0 && runs[k].call_s <= 2 * request_s) together[n_together++] = &runs[k];
    }
    TRY(take_turns(j, ref, together, n_together, &next_set, e));
    for (int k = 0; k < n; k++) {
        struct native_run *alone = &runs[k];
        if (alone->count > 0 && alone->call_s > 2 * request_s) TRY(take_turns(j, ref, &alone, 1, &next_set, e));
    }
    return ST_OK;
}

static bool is_timed(const struct verdict *v) { return v->outcome == OUTCOME_CORRECT && v->speedup > 0; }

/* One in five calls of the reference alone takes longer than this. So the noise of the machine is in it. */
static double usual_s(const struct reference *ref) { return timing_quantile(ref->alone, ref->n_alone, 0.8); }

/* Returns whether the reference took more than so many times what it takes alone, beside any of these answers. */
static bool any_slower(const struct native_run *runs, int n, double times, const struct reference *ref) {
    bool any = false;
    for (int k = 0; k < n; k++) any |= is_timed(runs[k].out) && runs[k].out->eager_ms * 1e-3 > times * usual_s(ref);
    return any;
}

/* Notes one more time of a call of the reference alone. The oldest one makes room. */
static void note_alone(struct reference *ref, double call_s) {
    if (ref->n_alone == REFERENCE_ALONE) memmove(ref->alone, ref->alone + 1, (REFERENCE_ALONE - 1) * sizeof call_s);
    ref->n_alone -= ref->n_alone == REFERENCE_ALONE;
    ref->alone[ref->n_alone++] = call_s;
}

/* Times the reference while no answer lives. An answer stands still in the reference's turns, but the kernel may still
 * work for it: timers, queues, what it does about memory. So the reference is timed alone once for a problem, and again
 * when its turns took longer than that. What it takes alone counts then, unless a second measurement shows that
 * somebody else was the cause. */
static enum status control(struct native_judge *j, struct reference *ref, struct native_run *runs, int n,
                           struct err *e) {
    const int filled = ref->n_timed;
    double turns_s = 0;
    for (int k = 0; k < n; k++)
        if (is_timed(runs[k].out)) turns_s = runs[k].out->eager_ms * 1e-3;
    if (turns_s == 0) return ST_OK;
    const bool known = ref->n_alone > 0;
    if (known && !any_slower(runs, n, most_suspect, ref)) {
        /* No answer can make the reference faster than it is. So what is known about it is old. */
        if (turns_s < timing_quantile(ref->alone, ref->n_alone, 0.2)) note_alone(ref, turns_s);
        return ST_OK;
    }
    const int count = calls_per_request(ref->eager_s, filled < 64 ? filled : 64), few = known ? FEW_ALONE : ROUNDS;
    for (int i = 0; i < REFERENCE_ALONE && (i < few || any_slower(runs, n, most_slowed, ref)); i++) {
        double took;
        TRY(reference_time(j->references, ref, i * count % filled, count, filled, i + 1, &took, e));
        note_alone(ref, took / count);
    }
    const double alone_s = timing_median(ref->alone, ref->n_alone);
    for (int k = 0; k < n; k++) {
        struct verdict *v = runs[k].out;
        if (!any_slower(&runs[k], 1, most_slowed, ref)) continue;
        const double part = fmin(alone_s * 1e3 / v->eager_ms, 1);
        log_debug("the reference took %.4g ms beside an answer, %.4g ms alone", v->eager_ms, alone_s * 1e3);
        v->eager_ms *= part;
        v->speedup *= part;
        v->speedup_low *= part;
        v->speedup_high *= part;
        runs[k].timed->slowed = true;
    }
    return ST_OK;
}

static void measure_all(struct native_judge *j, struct reference *ref, struct native_run *runs, int n) {
    struct err e = {0};
    enum status st = measure(j, ref, runs, n, &e);
    /* Does nothing to those that have ended already. */
    for (int k = 0; k < n; k++) candidate_end(&runs[k].c, NULL, NULL, NULL, 0);
    const bool measured = st == ST_OK;
    if (measured) st = control(j, ref, runs, n, &e);
    /* Only those that neither have their times nor have failed by themselves. Times without this control do not
     * count. */
    for (int k = 0; k < n && st != ST_OK; k++)
        if (runs[k].out->outcome == OUTCOME_CORRECT && (measured || !(runs[k].out->speedup > 0)))
            verdict_of_trouble(runs[k].out, st, &e);
}

static void quiet(const struct native_judge *j, bool on) {
    if (j->o->quiet) j->o->quiet(j->o->quiet_ctx, on);
}

/* ---- entry points ---- */

/* How many answers may run at once. There must be room for the memory that they may use together, and timed sets for
 * each. */
static int lanes(const struct native_judge *j, const struct reference *ref) {
    int64_t free_bytes = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    int64_t most = ref->has_sets ? reference_timed_capacity(j->references, ref) / sets_of_one(j, ref) : 1;
    return (int)i64_max(1, i64_min(i64_min(SETS_LANES, most), free_bytes / 2 / j->o->memory_bytes));
}

/* Times some answers of judge_timing(), at most SETS_LANES. */
static enum status time_some(struct native_judge *j, struct reference *ref, struct judge_timed *timed, int n,
                             struct err *e) {
    struct native_run runs[SETS_LANES];
    int up = 0;
    /* The problem's sets may have been dropped meanwhile. */
    TRY(reference_make_tests(j->references, ref, e));
    TRY(sets_open_lanes(&ref->sets, n, e));
    for (int k = 0; k < n; k++) {
        struct native_run *r = &runs[up];
        bool passed = false;
        *r = (struct native_run){.j = j,
                                 .ref = ref,
                                 .out = timed[k].out,
                                 .timed = &timed[k],
                                 .lane = k,
                                 .deadline_since_s = clock_now_s(),
                                 .fastest_ns = timed[k].fastest_ns};
        r->out->prepare_ms = 0;
        sets_wipe(&ref->sets, k);
        /* A first call starts the answer's threads. It is checked like any other call. */
        if (!start_answer(r, timed[k].job) || !run_test(r, 0, "in a second process", &passed)) continue;
        r->left_s = timed_share * j->o->run_timeout_s - (clock_now_s() - r->deadline_since_s);
        if (passed) {
            up++;
            continue;
        }
        if (r->out->outcome != OUTCOME_OUT_OF_BOUNDS) r->out->outcome = OUTCOME_UNSTABLE;
        candidate_end(&r->c, NULL, NULL, NULL, 0);
    }
    measure_all(j, ref, runs, up);
    return ST_OK;
}

/* Returns whether the reference works while no answer lives. */
static bool works_alone(struct native_judge *j, struct reference *ref) {
    struct err ignored = {0};
    double seconds;
    return reference_make_timed(j->references, ref, 1, &ignored) == ST_OK &&
           reference_time(j->references, ref, 0, 1, 1, 0, &seconds, &ignored) == ST_OK;
}

static bool is_trouble(const struct verdict *v) { return outcome_class(v->outcome) == 'I'; }

/* Times an answer once more, in a fresh process and alone, when its times are hard to believe. The slower of both
 * measurements counts. Trouble of ours is doubted, too: an answer that brings it about twice, while the reference works
 * once the answer is gone, is itself the cause. */
static void doubt(struct native_judge *j, struct reference *ref, struct judge_timed *t) {
    const struct verdict before = *t->out;
    const bool spoilt = is_trouble(&before), erratic = t->erratic, slowed = t->slowed;
    struct err e = {0};
    if (!spoilt && before.outcome != OUTCOME_CORRECT) return;
    if (!spoilt && !erratic && !slowed && before.speedup <= believable_ratio) return;
    for (int troubles = spoilt; troubles < 2; troubles++) {
        t->out->outcome = OUTCOME_CORRECT;
        t->out->message[0] = 0;
        t->out->speedup = 0;
        t->erratic = t->slowed = false;
        enum status st = time_some(j, ref, t, 1, &e);
        if (st != ST_OK) verdict_of_trouble(t->out, st, &e);
        if (!is_trouble(t->out)) break;
    }
    t->out->remeasured = true;
    if (is_trouble(t->out)) {
        if (!works_alone(j, ref)) return;
        refuse_times(t->out, OUTCOME_HIDDEN_WORK);
        VERDICT_SAY(t->out, "the reference fails while the answer lives, and only then");
    } else if (t->out->outcome == OUTCOME_CORRECT && erratic && t->erratic) {
        VERDICT_SAY(t->out,
                    "in a timed call: twice its times were between %.3g and %.3g of the reference's, which is steady",
                    1 / t->out->speedup_high, 1 / t->out->speedup_low);
        refuse_times(t->out, OUTCOME_UNSTABLE);
    } else if (!spoilt && t->out->outcome == OUTCOME_CORRECT && t->out->speedup > before.speedup &&
               (!slowed || t->slowed)) {
        *t->out = before;
        t->out->remeasured = true;
    } else if (slowed && !t->slowed && t->out->outcome == OUTCOME_CORRECT && t->out->speedup > believable_ratio) {
        doubt(j, ref, t); /* The first measurement did not count, so this one is the only one so far. */
    }
}

bool judge_tests(struct native_judge *j, struct reference *ref, const struct compile_job *job,
                 struct compile_batch *beside, struct verdict *out, int64_t *fastest_ns) {
    struct err e = {0};
    enum status st = reference_make_tests(j->references, ref, &e);
    if (st != ST_OK) {
        verdict_of_trouble(out, st, &e);
        return false;
    }
    struct native_run r = {.j = j, .ref = ref, .beside = beside, .out = out};
    double t0 = clock_now_s();
    out->tests_total = j->o->trials;
    sets_wipe(&ref->sets, r.lane);
    bool good = start_answer(&r, job) && run_tests(&r);
    double t1 = clock_now_s();
    out->run_s = t1 - t0;
    if (!good) return false;
    out->outcome = OUTCOME_CORRECT;
    *fastest_ns = r.fastest_ns;
    if (j->o->measure && compile_idle(beside)) {
        struct judge_timed t = {.job = job, .fastest_ns = r.fastest_ns, .out = out};
        r.timed = &t;
        r.left_s = timed_share * j->o->run_timeout_s;
        quiet(j, true);
        measure_all(j, ref, &r, 1);
        doubt(j, ref, &t);
        quiet(j, false);
        out->time_s = clock_now_s() - t1;
        return false;
    }
    candidate_end(&r.c, NULL, NULL, NULL, 0);
    if (j->o->measure) make_sets_early(&r);
    return j->o->measure;
}

void judge_timing(struct native_judge *j, struct reference *ref, struct judge_timed *timed, int n) {
    int at_once = lanes(j, ref), parts = (n + at_once - 1) / at_once;
    for (int p = 0, from = 0; p < parts; p++) {
        int m = (n - from) / (parts - p); /* Parts of about the same size. */
        struct err e = {0};
        double t0 = clock_now_s();
        enum status st = time_some(j, ref, timed + from, m, &e);
        for (int k = from; k < from + m; k++) {
            if (st != ST_OK)
                verdict_of_trouble(timed[k].out, st, &e);
            else
                doubt(j, ref, &timed[k]);
            timed[k].out->time_s = (clock_now_s() - t0) / m;
        }
        from += m;
    }
}
