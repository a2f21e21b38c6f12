/* Times ModelNew answers. Answer and reference take turns, on our clock. */
#include "verify/torch/clock.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "verify/timing.h"
#include "verify/torch/calls.h"
#include "verify/torch/failure.h"
#include "verify/torch/gpu.h"
#include "verify/torch/load.h"
#include "verify/torch/outputs.h"
#include "verify/torch/process.h"
#include "verify/torch/reference.h"
#include "verify/torch/request.h"
#include "verify/torch/spares.h"

/* A timed request of many calls takes at least this long, so that the messages around it are a small part of it. On a
 * GPU these messages take longer, and vary more. The request of the slower side is not made longer than long_request_s
 * for that. */
static const double cpu_request_s = 4e-3, gpu_request_s = 10e-3, long_request_s = 0.1;
static const int64_t large_output_bytes = 256 << 20, large_input_bytes = 1 << 30;
/* So many requests in a row may pass without a look at their large outputs. */
enum { MOST_UNLOOKED = 7 };
/* Each side has at least MIN_REQUESTS requests (GPU_MIN_REQUESTS on a GPU), and at most MAX_REQUESTS. The numbers are
 * even, so that each side comes first equally often. */
enum { MIN_REQUESTS = 6, GPU_MIN_REQUESTS = 16, MAX_REQUESTS = 1 << 14 };
/* A device that is busy for this much longer than usual after a reply may have had work left to do. When that is so in
 * the middle of all requests, it had. A single request says little, because it takes a message to another process to
 * find out. */
static const double late_slack_s = 200e-6;
/* Processor time that a process may use between two of its timed requests while it is stopped. Coming to rest takes
 * some tens of microseconds, and now and then more, where somebody else has the processor. A process that has come to
 * rest uses none (most_still_s, CPU). */
static const double most_moved_s = 300e-6, most_still_s = 30e-6;
/* Processor time that an answer uses while it comes to rest is not charged up to settling_factor times what the
 * reference uses for that, and settling_s more. */
static const double settling_factor = 2, settling_s = 30e-6;
/* The turns of the reference are believed when they take no more than this many times what its calls take without an
 * answer. */
static const double most_slowed = 1.05;
/* When the turns of the reference take more than this many times what is known, the reference is asked again without
 * the answer. When they take more than this many times what it takes then, the measurement is made once more: if other
 * work slowed it down and has ended meanwhile, that was the answer's bad luck. */
static const double much_slowed = 1.1;
/* The reference is asked so many times for that, at least and at most. Requests whose numbers of calls differ by no
 * more than the factor alike_calls are compared. */
enum { LEAST_CONTROLS = 4, MOST_CONTROLS = 16 };
static const double alike_calls = 1.5;
/* When they have taken this long, fewer than MOST_CONTROLS requests are made. */
static const double long_control_s = 0.5;
/* A ratio says nothing when the spread of the answer's requests, slow ones to quick ones, is this many times the spread
 * of the reference's in the same turns, and the upper end of the interval is this many times the lower one. */
static const double wild_spread = 3, wild_interval = 2;
/* A ratio that is larger than this is measured again before it counts. */
static const double believable_ratio = 10;
enum { MOST_TRACES = 20, MOST_DRAINS = 200, MOST_TOLD = 100 };
/* What the first call of a request costs is looked for in LEAST_PAIRS to MOST_PAIRS pairs of requests in each group.
 * There are fewer than MOST_PAIRS when they take pairs_s in all. It is not looked for where calls are so slow that it
 * is lost in a single call. */
enum { GROUPS = 3, LEAST_PAIRS = 3, MOST_PAIRS = 15, LONG_CALLS = 8 };
static const double pairs_s = 0.25, long_of_pair_s = 8e-3, slow_call_s = 20e-3, gpu_slow_call_s = 2.5e-3,
                    gpu_slow_reference_s = 10e-3, most_first_s = 1e-3;
/* Requests of one call each show whether the calls of longer requests overlap. There are so many pairs of them. */
enum { LONE_PAIRS = 6 };
/* How exactly the time of a call is known from requests of one call, once empty requests and the higher cost of first
 * calls are taken off. On a CPU such requests are not made where calls are too short to tell, or where the answer gains
 * less than least_gain. */
static const double gpu_lone_slack_s = 400e-6, lone_slack_s = 60e-6, least_gain = 1.15;
/* An empty request takes 0.02 to 0.5 ms. What makes it slower than most_empty_s is somebody else's doing. In requests
 * that take longer than long_enough_s it is a small part. */
static const double most_empty_s = 1e-3, long_enough_s = 3e-3;

/* The times of one request. */
struct request_time {
    double reply_s; /* Until its reply. */
    double rest_s;  /* GPU: from its reply until the device was seen at rest. */
};

/* Seconds that requests took, as the clock shows them. */
struct samples {
    double *eager, *mine;           /* Until the reply: of the reference, of the answer. */
    double *eager_rest, *mine_rest; /* From the reply until the device was seen at rest. */
    int n, capacity;
};

static void samples_add(struct samples *s, const struct request_time *eager, const struct request_time *mine) {
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        double **const all[] = {&s->eager, &s->mine, &s->eager_rest, &s->mine_rest};
        for (size_t i = 0; i < ARRAY_LEN(all); i++) *all[i] = xrealloc(*all[i], (size_t)s->capacity * sizeof(double));
    }
    s->eager[s->n] = eager->reply_s;
    s->mine[s->n] = mine->reply_s;
    s->eager_rest[s->n] = eager->rest_s;
    s->mine_rest[s->n++] = mine->rest_s;
}

static void samples_free(struct samples *s) {
    free(s->eager);
    free(s->mine);
    free(s->eager_rest);
    free(s->mine_rest);
    *s = (struct samples){.n = 0};
}

/* A pair of processes that are timed. */
struct timed_pair {
    struct torch_answer *answer, *ref;
    struct timing_plan plan;
    struct modset sets[MAX_CALLS];
    int limit; /* How many calls a request may have. */
    int n;     /* How many calls a request has now. */
    struct samples samples;
    struct samples empty; /* Requests for no calls. Only the reference's (eager) are used. */
    double most_empty_s;  /* What empty requests take without an answer. 0: unknown. */
    struct timing_rest usual;
    bool flushed;          /* GPU, true: its cache is empty, and nothing has run since. */
    int ref_slots;         /* How many slots of the reference's lane have inputs. */
    int staged;            /* How many rounds of large inputs there have been. */
    int rounds;            /* How many rounds of long requests there have been since empty ones are known. */
    int turns;             /* How many turns with calls the answer has had. */
    int moved[2];          /* How many turns there were in front of which a side had not stood still: [0] the
                            * reference's, [1] the answer's. */
    double first_s;        /* What the first call of a request costs beyond an empty request and beyond what the other
                            * calls cost. */
    int asked;             /* How many requests with calls the reference has been sent. */
    double begun_waited_s; /* How long the answer had let us wait before it was timed. */
    double settling[TIMING_USUAL]; /* CPU: processor time that the reference took to come to rest, the last times. */
    int n_settling;                /* CPU: how many such times there have been. */
};

/* What a request for no calls costs. Only the reference's empty requests count, because an answer could be slow at them
 * in order to have more taken off. It is their lower quartile, because what they take beyond that may be somebody
 * else's doing. */
static double empty_s(const struct timed_pair *d) {
    const struct samples *s = &d->empty;
    const double most_s = d->most_empty_s > 0 ? fmin(d->most_empty_s, most_empty_s) : most_empty_s;
    return s->n == 0 ? 0 : fmin(timing_quantile(s->eager, s->n, 0.25), most_s);
}

/* How long the answer has let us wait since its timing began, for calls and for whatever else it was asked. The
 * reference's requests do not count. */
static double waited_s(const struct timed_pair *d) { return d->answer->process.run.waited_s - d->begun_waited_s; }

/* How long the answer may let us wait in all. An honest answer that is slow is asked for less (warm_up(),
 * take_turns()). */
static double budget_s(const struct timed_pair *d) {
    const struct verify_options *o = d->answer->j->o;
    return o->timing_budget_s + o->run_timeout_s;
}

/* Processor time that a process has used though it was told to stand still, beyond what honest ones use. It counts as
 * time of its request. On a CPU this is what it has used while it came to rest, compared with the reference, and nearly
 * all that it has used since. On a GPU it is both together. */
static double moved_beyond_s(struct timed_pair *d, struct torch_answer *r) {
    const double moved_s = modrun_moved_s(&r->process.run), settled_s = modrun_settled_s(&r->process.run);
    if (!r->process.run.settles) return fmax(moved_s - most_moved_s, 0);
    if (r == d->ref) d->settling[d->n_settling++ % TIMING_USUAL] = settled_s;
    const int known = d->n_settling < TIMING_USUAL ? d->n_settling : TIMING_USUAL;
    const double usual_s = known > 0 ? timing_median(d->settling, known) : most_moved_s;
    const double slack_s = fmin(settling_factor * usual_s + settling_s, most_moved_s);
    return fmax(moved_s - most_still_s, 0) + fmax(settled_s - slack_s, 0);
}

/* Seconds that the calls of one request take in all: the duration of the request, without what a request costs beside
 * its calls (an empty request and first_s). On a busy machine these two costs may be found larger than they are. So a
 * quarter of what exceeds an empty request always stays. What is taken off is what the reference's requests cost, and
 * an answer's (mine) may cost less. In requests of many calls the difference is next to nothing. But it may be the
 * answer's doing that its requests have few calls: its outputs lie in the same memory, or its calls were slow when
 * their number was decided. Then no more is taken off than from requests that are long enough. */
static double calls_s(const struct timed_pair *d, double request, double empty, bool mine) {
    static const double most_share = 1.0 / 12;
    if (d->plan.whole) return request;
    double off = empty + d->first_s;
    if (mine && is_hardened(d->answer->j)) {
        if (d->answer->clock.one_at_a_time) return request;
        if (d->n < d->limit) off = fmin(off, most_share * request);
    }
    return fmax(fmax(request - off, (request - empty) / 4), d->n * 1e-9);
}

/* Writes fresh sets of inputs for both sides. Where they have gigabytes, the reference, which remembers nothing, gets
 * fresh ones in one of LARGE_ROUNDS rounds only. An answer always gets fresh ones. */
static bool stage_both(struct timed_pair *d, int n) {
    enum { LARGE_ROUNDS = 8 };
    struct torch_answer *r = d->answer;
    int slots[MAX_CALLS];
    struct err e = {0};
    bool large = on_gpu(r->j) && is_hardened(r->j) && !r->c->mutates && n * r->c->input_bytes > large_input_bytes;
    bool both = !large || n > d->ref_slots || d->staged++ % LARGE_ROUNDS == 0;
    if (both) d->ref_slots = n;
    for (int i = 0; i < n; i++) {
        d->sets[i] = modcase_timed_set(r->c, r->clock.next_set++);
        slots[i] = i;
    }
    enum status st = modcase_stage(&r->j->cases, r->c, true, both, d->sets, slots, n, &e);
    if (st != ST_OK) verdict_of_trouble(r->out, st, &e);
    d->flushed = true;
    return st == ST_OK;
}

/* What the device still does after an answer's reply is seen from a process of our own: the next small piece of work of
 * that process waits for the device, or finds outputs that are not there. */
static bool drain(struct torch_answer *r, double *seconds) {
    struct err e = {0};
    enum status st = modcase_drain(&r->j->cases, r->c, seconds, &e);
    if (st != ST_OK) verdict_of_trouble(r->out, st, &e);
    return st == ST_OK;
}

/* One timed request of one side: calls on the first n slots. Where the lane has fewer slots, the calls beyond them are
 * on slot 0. The inputs were staged while the process stood still, and it stands still again afterwards. */
static bool timed_request(struct timed_pair *d, struct torch_answer *r, int n, json_t **reply, struct request_time *t) {
    int slots[MAX_CALLS];
    int64_t ns = 0;
    double one_s = 0;
    *t = (struct request_time){0, 0};
    for (int i = 0; i < n; i++) slots[i] = i < r->c->slots ? i : 0;
    if (on_gpu(r->j) && !d->flushed && !drain(d->answer, &one_s))
        return false; /* Both sides begin with an empty cache. */
    d->flushed = on_gpu(r->j);
    double timeout_s = r->j->o->run_timeout_s;
    d->asked += r == d->ref && n > 0;
    if (r == d->answer) timeout_s = fmin(timeout_s, fmax(budget_s(d) - waited_s(d), 0.05));
    if (!run_call(r, slots, n, &d->sets[0], timeout_s, "in a timed call", reply, &ns)) return false;
    /* We wait until the device has nothing left to do. The device takes turns between processes, so what is left of an
     * answer's work would slow the other side down. */
    const double replied = clock_now_s();
    for (int i = 0; on_gpu(r->j); i++) {
        if (!drain(d->answer, &one_s)) return false;
        t->rest_s = clock_now_s() - replied;
        /* The reference's requests with calls show what is usual: behind them the device comes over from a process that
         * has really worked. */
        if (timing_at_rest(&d->usual, one_s, r == d->ref && n > 0 && i == 0, late_slack_s)) break;
        if (i == MOST_DRAINS)
            return run_reject(d->answer, "in a timed call", OUTCOME_HIDDEN_WORK, "the device does not come to rest");
    }
    /* A process that has worked while it should have stood still has had the inputs before the clock ran, or the
     * processors in the other side's turn. */
    const double beyond_s = n > 0 ? moved_beyond_s(d, r) : 0;
    d->turns += r == d->answer && n > 0;
    d->moved[r == d->answer] += beyond_s > (r->process.run.settles ? most_moved_s : 0);
    t->reply_s = (double)ns * 1e-9 + (r == d->answer ? beyond_s : 0);
    return true;
}

/* Whether some output of calls a and b lies in the same place. */
static bool same_memory(const struct torch_answer *r, const json_t *reply, int a, int b) {
    for (int k = 0; k < r->c->n_outputs; k++) {
        const uint64_t at = run_pointer(reply, a, k);
        if (r->c->output_bytes[k] > 0 && at != 0 && at == run_pointer(reply, b, k)) return true;
    }
    return false;
}

/* Looks at the outputs of some of the answer's calls, which are chosen only now. *n_checked: at those of how many
 * calls. */
static bool check_timed(struct torch_answer *r, const json_t *reply, const struct modset *sets, int n, int *n_checked) {
    int slots[MAX_CALLS];
    for (int i = 0; i < n; i++) slots[i] = i;
    /* Two calls are looked at, and more where there are many short ones. On a GPU it stays at two, because each look
     * takes longer than such calls. */
    int last_with[CHECKED_CALLS], most = on_gpu(r->j) || n < 12 ? 2 : n < 4 * CHECKED_CALLS ? n / 4 : CHECKED_CALLS;
    int checked = n < most ? n : most;
    /* Looking at many bytes takes longer than making them. So one call is looked at then. On a GPU, where there are
     * many requests, this is done for one request in four, which is decided only now, and when there has been no look
     * for long. */
    int64_t bytes = 0;
    for (int k = 0; k < r->c->n_outputs; k++) bytes += r->c->output_bytes[k];
    if (bytes > large_output_bytes) {
        const bool looked = !on_gpu(r->j) || r->clock.next_set <= 4 || r->process.memory == MEMORY_CONFIRM ||
                            r->clock.unlooked >= MOST_UNLOOKED || rng_u64(r->random, 8, ++r->random_step) % 4 == 0;
        checked = looked ? 1 : 0;
        r->clock.unlooked = looked ? 0 : r->clock.unlooked + 1;
    }
    *n_checked = checked;
    for (int i = 0; i < checked; i++) {
        int pick = n == checked ? i : (int)(rng_u64(r->random, 6, ++r->random_step) % (uint64_t)n);
        for (int later = n - 1; later > pick; later--)
            if (same_memory(r, reply, later, pick)) {
                r->clock.one_at_a_time = true; /* This is seen only now, so this round does not count. */
                pick = later;
            }
        last_with[i] = pick;
    }
    if (checked > 0 && run_check_calls(r, reply, last_with, checked, slots, n, sets, "in a timed call"))
        run_note_confirmed(r);
    else if (checked > 0 && !run_look_again(r)) {
        enum outcome o = r->out->outcome;
        if (o == OUTCOME_WRONG_OUTPUT || o == OUTCOME_NOT_FINITE) r->out->outcome = OUTCOME_UNSTABLE;
        return false;
    }
    if (modrun_children(&r->process.run) > 0)
        return run_reject(r, "in a timed call", OUTCOME_HIDDEN_WORK, "processes of the answer's own are running");
    return true;
}

/* Asks the reference the same things about its outputs as the answer was asked, so that it comes to its next turn in
 * the same state. Nobody looks at what it says. */
static bool describe_same(struct torch_answer *ref, int n, int checked) {
    CLEANUP_STR struct str q = STR_INIT;
    if (checked == 0) return true;
    run_open_request(&q, "describe");
    js_begin(&q, "calls", '[');
    for (int i = 0; i < checked; i++) js_put_i64(&q, NULL, i);
    js_end(&q, ']');
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, i);
    js_end(&q, ']');
    return run_simple(ref, &q, -1, ref->j->o->run_timeout_s, "between calls");
}

/* Sends a request for no calls to either side, which is as cold as the others. */
static bool empty_requests(struct timed_pair *d) {
    struct torch_answer *sides[2] = {d->ref, d->answer};
    struct request_time t[2];
    /* Both are stopped first. What the answer did beside the reference's request would be taken off the answer's own
     * time. */
    for (int i = 0; i < 2; i++) modrun_pause(&sides[i]->process.run);
    for (int i = 0; i < 2; i++) {
        CLEANUP_JSON json_t *reply = NULL;
        if (!timed_request(d, sides[i], 0, &reply, &t[i])) return false;
    }
    samples_add(&d->empty, &t[0], &t[1]);
    return true;
}

/* true: this round needs no empty requests. In long requests the cost of an empty one is a small part, and it is known
 * by now. So only one round in ONE_IN has them. */
static bool few_are_enough(struct timed_pair *d, const struct request_time t[2]) {
    enum { KNOWN = 8, ONE_IN = 4 };
    return on_gpu(d->ref->j) && d->empty.n >= KNOWN && fmin(t[0].reply_s, t[1].reply_s) > long_enough_s &&
           ++d->rounds % ONE_IN != 0;
}

/* One round: both sides' turns, one after the other, on the same fresh inputs. Neither side sees the inputs before its
 * clock runs: tensor objects are made first, then both processes are stopped, then the inputs are written. Nothing
 * happens between the turns, because threads that spin or sleep in the other process, and checks, would fall on one
 * side. recorded: the answer's kernels are listed, and its process is told so in front of the round. The times of such
 * a round do not count. */
static bool round_of(struct timed_pair *d, bool answer_first, bool recorded, struct request_time t[2]) {
    int slots[MAX_CALLS];
    json_t *replies[2] = {NULL, NULL}; /* Of the reference, of the answer. */
    struct torch_answer *sides[2] = {d->ref, d->answer};
    for (int i = 0; i < d->n; i++) slots[i] = i;
    if (recorded && !run_record(d->answer, true, NULL)) return false;
    if (!run_ready_both(d->ref, d->answer, slots, d->n, "between calls")) return false;
    for (int i = 0; i < 2; i++) modrun_pause(&sides[i]->process.run);
    if (!stage_both(d, d->n)) return false;
    bool good = true;
    for (int i = 0; i < 2 && good; i++) {
        int side = answer_first ? !i : i;
        good = timed_request(d, sides[side], d->n, &replies[side], &t[side]);
    }
    int checked = 0;
    if (good && recorded) {
        CLEANUP_JSON json_t *kernels = NULL;
        good = run_record(d->answer, false, &kernels) && run_account(d->answer, kernels);
        d->ref->process.own_streams = d->answer->process.own_streams;
    }
    good = good && check_timed(d->answer, replies[1], d->sets, d->n, &checked) && describe_same(d->ref, d->n, checked);
    for (int i = 0; i < 2; i++) json_decref(replies[i]);
    d->flushed = d->flushed && checked == 0;
    good = good && (few_are_enough(d, t) || empty_requests(d));
    if (good && waited_s(d) > budget_s(d)) {
        char text[80];
        snprintf(text, sizeof text, "they took more than %.1f s in all", budget_s(d));
        return run_reject(d->answer, "in timed calls", OUTCOME_TIMEOUT, text);
    }
    return good;
}

static void stats_of(const double *seconds, int n, int calls, struct run_stats *out) {
    double sum = 0, square = 0;
    *out = (struct run_stats){.min_ms = INFINITY, .calls = calls};
    for (int i = 0; i < n; i++) {
        double ms = seconds[i] * 1e3;
        sum += ms;
        out->min_ms = fmin(out->min_ms, ms);
        out->max_ms = fmax(out->max_ms, ms);
    }
    out->mean_ms = sum / n;
    for (int i = 0; i < n; i++) square += (seconds[i] * 1e3 - out->mean_ms) * (seconds[i] * 1e3 - out->mean_ms);
    out->std_ms = n > 1 ? sqrt(square / (n - 1)) : 0;
}

/* A request for one call of the reference, whose kernels are listed. The caller json_decref's *recorded. */
static bool record_reference(struct timed_pair *d, json_t **recorded) {
    CLEANUP_JSON json_t *reply = NULL;
    int64_t ns = 0;
    d->flushed = false;
    return run_call(d->ref, &(int){0}, 1, d->sets, d->ref->j->o->run_timeout_s, "between calls", &reply, &ns) &&
           run_record(d->ref, false, recorded);
}

/* Once CUPTI has looked at a process, the launches of that process take longer. CUPTI has looked at the answer
 * (account_kernels in judge.c), so this has it look at a new reference, too. */
static bool same_tools(struct timed_pair *d) {
    CLEANUP_JSON json_t *ignored = NULL;
    if (!on_gpu(d->ref->j) || !is_hardened(d->ref->j)) return true;
    return run_record(d->ref, true, NULL) && run_ready(d->ref, &(int){0}, 1, "between calls") && stage_both(d, 1) &&
           record_reference(d, &ignored);
}

/* How many calls a request gets: so many that the faster side's requests are long enough, and the slower side's not
 * much too long. */
static int calls_for(const struct timed_pair *d, const double seconds_per_call[2]) {
    const double request_s = on_gpu(d->ref->j) ? gpu_request_s : cpu_request_s;
    const double least = fmax(fmin(seconds_per_call[0], seconds_per_call[1]), 1e-7);
    const double most = fmax(fmax(seconds_per_call[0], seconds_per_call[1]), 1e-7);
    return (int)fmax(1, fmin(d->limit, fmin(ceil(request_s / least), ceil(long_request_s / most))));
}

/* Whether a call took less time than writing its outputs takes, which no call can. The verdict says so then. Inputs are
 * not counted, because it is not known how much of them has to be read. 8 TB/s is more than any single GPU has, and 400
 * GB/s is more than two threads of a processor get. */
static bool below_floor(struct torch_answer *r, double seconds) {
    const double bytes_per_s = on_gpu(r->j) ? 8e12 : 4e11;
    double bytes = 0;
    for (int k = 0; k < r->c->n_outputs; k++) bytes += (double)r->c->output_bytes[k];
    if (bytes < 64e6 || seconds >= bytes / bytes_per_s) return false; /* Small outputs may stay in a cache. */
    r->out->outcome = OUTCOME_TOO_FAST;
    VERDICT_SAY(r->out, "%.4g ms for a call that writes %.4g MB", seconds * 1e3, bytes * 1e-6);
    return true;
}

/* Finds first_s. The first call of a request finds everything cold: code, caches, a device that another process has
 * used. This cost belongs to the request, not to its calls. Requests of one call and of more calls lie on a line, and
 * the line shows the cost where it begins. Only the reference is asked, as with empty requests: so whatever an answer
 * does about its own first calls, no more is taken off. For the same reason it is the least of three findings, and not
 * much more than the smallest times of all show. about_s: what the reference's calls seem to take. *call_s: what they
 * take. */
static bool measure_first(struct timed_pair *d, double about_s, double *call_s) {
    double took[2][GROUPS][MOST_PAIRS], begun = clock_now_s(); /* [0]: requests of one call, [1]: of more. */
    const int more = (int)fmax(2, fmin(LONG_CALLS, long_of_pair_s / fmax(about_s, 1e-6)));
    const int distinct = more < d->ref->c->slots ? more : d->ref->c->slots;
    double least[2] = {INFINITY, INFINITY};
    int slots[LONG_CALLS], n = 0;
    for (int i = 0; i < LONG_CALLS; i++) slots[i] = i;
    for (; n < GROUPS * MOST_PAIRS && (n < GROUPS * LEAST_PAIRS || clock_now_s() - begun < pairs_s); n++) {
        for (int i = 0; i < 2; i++) {
            CLEANUP_JSON json_t *reply = NULL;
            if (!run_ready(d->ref, slots, distinct, "between calls")) return false;
            modrun_pause(&d->ref->process.run);
            if (!stage_both(d, distinct)) return false;
            struct request_time t;
            if (!timed_request(d, d->ref, i ? more : 1, &reply, &t)) return false;
            took[i][n % GROUPS][n / GROUPS] = t.reply_s;
            least[i] = fmin(least[i], t.reply_s);
        }
    }
    const double least_s = least[0] - fmax((least[1] - least[0]) / (more - 1), 0) - empty_s(d);
    d->first_s = fmin(2 * fmax(least_s, 0) + 50e-6, most_first_s);
    for (int g = 0; g < GROUPS; g++) {
        const double one_s = timing_quantile(took[0][g], n / GROUPS, 0.25);
        const double more_s = timing_quantile(took[1][g], n / GROUPS, 0.25);
        const double slope_s = fmax((more_s - one_s) / (more - 1), 1e-7);
        d->first_s = fmin(d->first_s, fmax(one_s - slope_s - empty_s(d), 0));
        *call_s = g == 0 ? slope_s : fmin(*call_s, slope_s);
    }
    /* The reference is the same process as beside other answers. They could have slowed it down, too, so the least
     * finding of all counts. */
    static const double least_factor = 1.25, least_slack_s = 30e-6;
    double *least_first_s = &d->answer->c->control.first_s;
    if (*least_first_s > 0) d->first_s = fmin(d->first_s, least_factor * *least_first_s + least_slack_s);
    *least_first_s = fmin(*least_first_s > 0 ? *least_first_s : d->first_s, fmax(d->first_s, 1e-9));
    return true;
}

/* Whether the cost of a first call is more than noise in these requests. It has to be so for the faster side, and the
 * slower side must not take too long to find out. */
static bool first_matters(const struct timed_pair *d, const struct request_time t[2]) {
    if (d->plan.whole) return false;
    if (!on_gpu(d->ref->j)) return t[0].reply_s < slow_call_s;
    return t[0].reply_s < gpu_slow_reference_s && fmin(t[0].reply_s, t[1].reply_s) < gpu_slow_call_s;
}

/* Warms both sides up, and finds how many calls go into a request. While calls get faster, and their number grows by
 * more than a quarter, this goes on for some more rounds. False: there was trouble, or the verdict is there. */
static bool warm_up(struct timed_pair *d) {
    enum { ROUNDS = 4, MOST_ROUNDS = 9 };
    struct request_time request[2] = {{0, 0}, {0, 0}};
    double call[2], worked_s = 0, slope_s = INFINITY;
    bool growing = false;
    d->n = 1;
    for (int rounds = 0, calls = 0; rounds < ROUNDS || calls < d->plan.warm_calls || worked_s < d->plan.warm_s ||
                                    (growing && rounds < MOST_ROUNDS);
         rounds++) {
        if (!round_of(d, rounds % 2 == 1, false, request)) return false;
        if (d->answer->clock.one_at_a_time) d->limit = 1;
        if (rounds >= 1 && waited_s(d) > d->answer->j->o->run_timeout_s / 2) break; /* A slow answer is warm by now. */
        /* This is not done in the first round, because the first calls of all are slow ones. */
        if (rounds == 1 && first_matters(d, request) && !measure_first(d, request[0].reply_s - empty_s(d), &slope_s))
            return false;
        calls += d->n;
        for (int i = 0; i < 2; i++) call[i] = calls_s(d, request[i].reply_s, empty_s(d), i == 1) / d->n;
        worked_s += fmax(call[0], call[1]) * d->n;
        call[0] = fmin(call[0], slope_s);
        const int before = d->n;
        if (rounds >= 1 && rounds < MOST_ROUNDS) {
            const int wanted = calls_for(d, call);
            growing = 4 * wanted > 5 * before;
            if (rounds < ROUNDS - 1 || growing) d->n = wanted;
        }
    }
    d->answer->clock.phase = PHASE_TURNS;
    return true;
}

/* Seconds of work that the answer leaves on the device behind the reply to a request. They are charged to all of its
 * requests. */
static double hidden_s(const struct timed_pair *d) {
    const struct samples *s = &d->samples;
    return s->n == 0 ? 0 : timing_hidden(s->eager_rest, s->mine_rest, s->n, d->plan.trim, late_slack_s);
}

/* Seconds that a call took, for each sample of the reference, or of the answer (mine). The caller frees it. */
static double *calls_of(const struct timed_pair *d, bool mine) {
    double *out = xmalloc((size_t)(d->samples.n + 1) * sizeof *out), empty = empty_s(d);
    const double *requests = mine ? d->samples.mine : d->samples.eager, more_s = mine ? hidden_s(d) : 0;
    for (int i = 0; i < d->samples.n; i++) out[i] = calls_s(d, requests[i] + more_s, empty, mine) / d->n;
    return out;
}

/* Looks whose kernels run in timed calls, in a round whose calls are asked for like those of all others. The request to
 * list kernels goes through the harness in the answer's own process. So an answer that patches the harness, or sees
 * CUPTI at work, can tell this round from the others. The answer's times and outputs are judged in other rounds. */
static bool recorded_round(struct timed_pair *d) {
    struct request_time ignored[2];
    struct torch_answer *r = d->answer;
    if (!on_gpu(r->j) || !is_hardened(r->j)) return true;
    return round_of(d, rng_u64(r->random, 12, ++r->random_step) % 2, true, ignored);
}

/* Makes requests in turns until the plan is fulfilled, the budget is spent, or *good is false. */
static struct timing_ratio take_turns(struct timed_pair *d, bool *good) {
    const struct verify_options *o = d->answer->j->o;
    struct samples *s = &d->samples;
    struct timing_ratio ratio = {0};
    double begun = clock_now_s(), enough_since = 0, worked_s = 0;
    const int least = on_gpu(d->ref->j) ? GPU_MIN_REQUESTS : MIN_REQUESTS;
    int recorded_at = (int)(rng_u64(d->answer->random, 13, ++d->answer->random_step) % (uint64_t)least);
    s->n = 0;
    while (s->n < MAX_REQUESTS) {
        struct request_time one[2] = {{0, 0}, {0, 0}};
        const bool apart = d->answer->process.own_streams;
        if (s->n == recorded_at) {
            recorded_at = -1;
            *good = recorded_round(d);
        }
        *good = *good && round_of(d, s->n % 2 == 1, false, one);
        if (!*good) break;
        const bool single = d->answer->clock.one_at_a_time && d->n > 1;
        /* Either was found out only now. So the turns begin again, with single calls, or with waiting for each call. */
        if (single || apart != d->answer->process.own_streams) {
            if (single) d->n = d->limit = 1;
            s->n = 0;
            continue;
        }
        samples_add(s, &one[0], &one[1]);
        worked_s += calls_s(d, fmax(one[0].reply_s, one[1].reply_s), empty_s(d), false);
        if (s->n < 3) continue;
        const bool late = fmax(clock_now_s() - begun, waited_s(d)) > o->timing_budget_s;
        bool enough = d->plan.rep_s > 0 ? worked_s >= d->plan.rep_s : s->n * d->n >= d->plan.calls;
        if (!late && (!enough || s->n < least || s->n % 2 == 1)) continue;
        CLEANUP_FREE double *eager = calls_of(d, false), *mine = calls_of(d, true);
        ratio = timing_compare(eager, mine, s->n, d->plan.trim);
        if (d->answer->process.memory == MEMORY_CONFIRM && s->n < MAX_REQUESTS)
            continue; /* A wrong output has not been explained yet. */
        if (late || d->plan.interval <= 0 || ratio.high - ratio.low <= d->plan.interval * ratio.ratio) break;
        if (enough_since <= 0) enough_since = clock_now_s();
        const double patience_s = timing_patience_s(&d->plan, &ratio, worked_s / (s->n * d->n));
        if (patience_s > 0 && clock_now_s() - enough_since > patience_s) break;
    }
    return ratio;
}

/* Whether the answer gains more on the reference in requests of many calls than in requests of one call, in which
 * nothing can overlap. An answer can gain so on streams or threads that it does not join, and of which the list of
 * kernels says nothing. Or it works on the inputs of all calls at once, and reads weights once for all of them. The
 * time of a request of one call counts until the device is at rest, whatever the reply says. */
static bool overlaps(struct timed_pair *d, double ratio, bool *good) {
    double took[2][LONE_PAIRS], empty[LONE_PAIRS], lone_s[2];
    const int n = d->n, known = d->empty.n < LONE_PAIRS ? d->empty.n : LONE_PAIRS;
    const double slack_s = on_gpu(d->ref->j) ? gpu_lone_slack_s : lone_slack_s;
    if (!is_hardened(d->ref->j) || n == 1 || known == 0) return false;
    if (!on_gpu(d->ref->j)) {
        CLEANUP_FREE double *eager = calls_of(d, false);
        if (ratio <= least_gain || timing_centre(eager, d->samples.n, d->plan.trim) < 2 * slack_s) return false;
    }
    d->n = 1;
    for (int i = 0; i < LONE_PAIRS && *good; i++) {
        struct request_time t[2] = {{0, 0}, {0, 0}};
        *good = round_of(d, i % 2 == 1, false, t);
        for (int side = 0; side < 2; side++) took[side][i] = t[side].reply_s + t[side].rest_s;
    }
    d->n = n;
    if (!*good) return false;
    for (int i = 0; i < known; i++) {
        const int at = d->empty.n - known + i;
        empty[i] = d->empty.eager[at] + d->empty.eager_rest[at];
    }
    for (int side = 0; side < 2; side++)
        lone_s[side] = timing_median(took[side], LONE_PAIRS) - timing_median(empty, known) - d->first_s;
    const bool found = timing_overlaps(ratio, lone_s, slack_s);
    if (found)
        log_debug("calls overlap: ratio %.3f in requests of %d, one by one %.1f:%.1f us", ratio, n, lone_s[0] * 1e6,
                  lone_s[1] * 1e6);
    return found;
}

/* Measures the ratio, of calls that do not overlap. If calls have been found to overlap, each request has one call. An
 * answer that hides streams may hide work behind replies, too. So on a GPU nothing is then taken off for what a request
 * costs. */
static struct timing_ratio take_all_turns(struct timed_pair *d, bool *good) {
    struct timing_ratio ratio = {0};
    bool apart;
    do { /* This is done once more where the answer's streams are seen only after the turns. */
        apart = d->answer->process.own_streams;
        ratio = take_turns(d, good);
        *good = *good && recorded_round(d);
    } while (*good && apart != d->answer->process.own_streams);
    if (*good && overlaps(d, ratio.ratio, good)) {
        d->n = 1;
        if (on_gpu(d->ref->j)) {
            d->limit = 1;
            d->answer->clock.one_at_a_time = true;
        }
        ratio = take_turns(d, good);
    }
    return ratio;
}

/* Device time that a request spent in kernels, in seconds, as CUPTI has seen it. 0: there were no kernels. */
static double device_s(const json_t *recorded) {
    const json_t *kernels = json_object_get(recorded, "kernels");
    double ns = 0;
    for (size_t i = 0; i < json_array_size(kernels); i++)
        ns += (double)json_integer_value(json_array_get(json_array_get(kernels, i), 2));
    return ns * 1e-9;
}

/* Times by the plan's `device`: what the kernels of both sides take. The processes themselves list their kernels. So in
 * hardened scoring the clock's ratio stays the upper bound. */
static bool time_kernels(struct timed_pair *d, struct timing_ratio *ratio) {
    struct samples s = {0};
    const struct timing_ratio wall = *ratio;
    bool good = true;
    int wanted = d->plan.calls < MOST_TRACES ? d->plan.calls : MOST_TRACES;
    for (int i = 0; i < wanted && good; i++) {
        CLEANUP_JSON json_t *mine = NULL, *its = NULL, *reply = NULL;
        int64_t ns = 0;
        good = run_record(d->answer, true, NULL) && run_record(d->ref, true, NULL) &&
               run_ready_both(d->ref, d->answer, &(int){0}, 1, "between calls");
        modrun_pause(&d->ref->process.run);
        modrun_pause(&d->answer->process.run);
        good =
            good && stage_both(d, 1) && record_reference(d, &its) &&
            run_call(d->answer, &(int){0}, 1, d->sets, d->ref->j->o->run_timeout_s, "in a timed call", &reply, &ns) &&
            run_record(d->answer, false, &mine);
        if (good) {
            const struct request_time t[2] = {{fmax(device_s(its), 1e-9), 0}, {fmax(device_s(mine), 1e-9), 0}};
            samples_add(&s, &t[0], &t[1]);
        }
    }
    if (good) {
        *ratio = timing_compare(s.eager, s.mine, s.n, d->plan.trim);
        if (is_hardened(d->answer->j) && wall.ratio < ratio->ratio)
            *ratio = wall;
        else {
            samples_free(&d->samples);
            d->samples = s;
            d->n = 1;
            d->plan.whole = true; /* Nothing is to be taken off these times. */
            return true;
        }
    }
    samples_free(&s);
    return good;
}

/* Logs what was measured, before anything is taken off, for whoever doubts the clock. */
static void tell(const struct timed_pair *d) {
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(
        &s,
        "timed requests of %d calls, an empty one %.1f us, first calls %.1f us more, hidden %.1f us (at rest after "
        "%.1f:%.1f us); us, reference:answer:",
        d->n, empty_s(d) * 1e6, d->first_s * 1e6, hidden_s(d) * 1e6,
        timing_median(d->samples.eager_rest, d->samples.n) * 1e6,
        timing_median(d->samples.mine_rest, d->samples.n) * 1e6);
    for (int i = 0; i < d->samples.n && i < MOST_TOLD; i++)
        str_addf(&s, " %.0f:%.0f", d->samples.eager[i] * 1e6, d->samples.mine[i] * 1e6);
    log_debug("%s", str_c(&s));
}

/* ---- the reference without an answer ---- */

/* In the place of an answer's turn, so much memory is written to. It is more than most last-level caches have for one
 * processor. So the reference is not quicker without an answer just because its caches stayed warm. On a GPU the
 * referee's draining has this effect. */
enum { SWEEP_BYTES = 64 << 20 };
static void sweep(volatile unsigned char *p) {
    enum { LINE = 64 };
    for (size_t i = 0; i < SWEEP_BYTES; i += LINE) p[i] = 1;
}

/* Makes requests of the reference as in turns, but without the answer. It stops when they take so long that requests of
 * wanted_s are explained, or when there have been enough. *request_s and *empty_request_s: the medians of what requests
 * with calls and empty ones took. False: the reference has failed. */
static bool run_control(struct timed_pair *d, double wanted_s, double *request_s, double *empty_request_s) {
    double took[MOST_CONTROLS], empty[MOST_CONTROLS];
    const double begun = clock_now_s();
    CLEANUP_FREE unsigned char *swept = on_gpu(d->ref->j) ? NULL : xmalloc(SWEEP_BYTES);
    int slots[MAX_CALLS], n = 0;
    for (int i = 0; i < d->n; i++) slots[i] = i;
    while (n < MOST_CONTROLS) {
        CLEANUP_JSON json_t *reply = NULL, *nothing = NULL;
        struct request_time t, none;
        if (!run_ready(d->ref, slots, d->n, "between calls")) return false;
        modrun_pause(&d->ref->process.run);
        if (!stage_both(d, d->n)) return false;
        if (n % 2 == 1 && swept) sweep(swept);
        if (!timed_request(d, d->ref, d->n, &reply, &t)) return false;
        if (!timed_request(d, d->ref, 0, &nothing, &none)) return false;
        took[n] = t.reply_s;
        empty[n++] = none.reply_s;
        *request_s = timing_median(took, n);
        *empty_request_s = timing_median(empty, n);
        const bool late = clock_now_s() - begun > long_control_s;
        if (n % 2 == 0 && (late || n >= LEAST_CONTROLS) && *request_s * most_slowed >= wanted_s) break;
        if (n >= LEAST_CONTROLS && late) break;
    }
    return true;
}

/* Seconds of a call, as known from requests with about so many calls of the same process. NULL: nothing is known. */
static double *known_control(struct modcontrol *k, int calls) {
    double *best = NULL, least = alike_calls;
    for (size_t i = 0; i < ARRAY_LEN(k->of); i++) {
        if (k->of[i].calls == 0) continue;
        const double apart = fmax((double)k->of[i].calls / calls, (double)calls / k->of[i].calls);
        if (apart > least) continue;
        least = apart;
        best = &k->of[i].call_s;
    }
    return best;
}

/* Something may slow the reference down beside an answer that stands still. Whatever it is, what counts is what the
 * reference takes without an answer. It is asked for that after the answer has ended: the first time, and whenever its
 * turns took longer than is known. A machine that was busier during the turns looks the same, so nobody is accused.
 * False: the reference has failed. */
static bool control(struct timed_pair *d, struct timing_ratio *ratio, bool *slowed) {
    struct modcontrol *k = &d->answer->c->control;
    const int n = d->samples.n;
    if (!is_hardened(d->answer->j) || d->plan.device || n == 0) return true;
    double *known = known_control(k, d->n);
    CLEANUP_FREE double *eager = calls_of(d, false);
    const double turn_s = timing_centre(eager, n, d->plan.trim);
    if (known && turn_s <= much_slowed * *known) {
        /* No answer makes the reference faster than it is. But the quickest turns of all are luck, so the known time
         * follows them slowly. */
        if (turn_s < *known) *known += (turn_s - *known) / 4;
        return true;
    }
    const double in_turns_s = timing_centre(d->samples.eager, n, d->plan.trim), before_s = empty_s(d);
    double request_s, alone_s;
    run_retire(d->answer);
    if (!run_control(d, in_turns_s, &request_s, &alone_s)) return false;
    const double call_s = calls_s(d, request_s, fmin(before_s, alone_s), false) / d->n;
    log_debug("without the answer: %.1f us a call in requests of %d, in turns %.1f; empty ones %.1f, in turns %.1f us",
              call_s * 1e6, d->n, turn_s * 1e6, alone_s * 1e6, before_s * 1e6);
    if (known)
        *known = fmin(call_s, turn_s);
    else {
        k->of[k->next].calls = d->n;
        k->of[k->next].call_s = fmin(call_s, turn_s);
        k->next = (k->next + 1) % (int)ARRAY_LEN(k->of);
    }
    if (in_turns_s <= most_slowed * request_s) return true;
    *slowed = in_turns_s > much_slowed * request_s;
    /* All turns are made shorter by the same share. And no more is taken off for messages than they cost without the
     * answer. */
    for (int i = 0; i < n; i++) d->samples.eager[i] *= request_s / in_turns_s;
    d->most_empty_s = alone_s;
    CLEANUP_FREE double *alone = calls_of(d, false), *mine = calls_of(d, true);
    *ratio = timing_compare(alone, mine, n, d->plan.trim);
    return true;
}

/* Whether the answer's times are so far apart that the ratio says nothing, while the reference's in the same turns are
 * not. */
static bool is_wild(const struct timed_pair *d, const struct timing_ratio *ratio) {
    const int n = d->samples.n;
    if (n < MIN_REQUESTS || ratio->high < wild_interval * ratio->low) return false;
    const double its = timing_quantile(d->samples.eager, n, 0.9) / timing_quantile(d->samples.eager, n, 0.1);
    const double mine = timing_quantile(d->samples.mine, n, 0.9) / timing_quantile(d->samples.mine, n, 0.1);
    return mine >= wild_spread * its;
}

/* ---- one measurement ---- */

enum measured {
    MEASURED,         /* The verdict has the times, or another outcome. */
    REFERENCE_FAILED, /* The reference has failed beside the answer. */
    WILD,             /* The answer's times are too far apart (is_wild). */
    SLOWED            /* The reference was slower beside the answer than without it. */
};

/* How the reference failed, and what it had been asked for until then. */
struct failure {
    int requests; /* How many requests with calls it had been sent. 0: it could not be brought up. */
    int calls;    /* How many calls the last requests had. */
    struct err e;
    enum status st;
};

/* The times, or that they are too short to be true, go into the verdict. */
static void write_times(const struct timed_pair *d, const struct timing_ratio *ratio) {
    struct torch_answer *r = d->answer;
    struct verdict *v = r->out;
    const int n = d->samples.n;
    CLEANUP_FREE double *eager = calls_of(d, false), *mine = calls_of(d, true);
    if (is_hardened(r->j) && below_floor(r, timing_centre(mine, n, d->plan.trim))) return;
    v->speedup = ratio->ratio;
    v->speedup_low = ratio->low;
    v->speedup_high = ratio->high;
    v->eager_ms = timing_centre(eager, n, d->plan.trim) * 1e3;
    v->kernel_ms = timing_centre(mine, n, d->plan.trim) * 1e3;
    stats_of(eager, n, n * d->n, &v->eager);
    stats_of(mine, n, n * d->n, &v->kernel);
}

/* Measures once. The times, or another outcome, go into the verdict. This holds for WILD times, too, and for times
 * beside a SLOWED reference, whose own times are then those without the answer. REFERENCE_FAILED: the reference failed
 * beside the answer, and *f says how. */
static enum measured measure(struct torch_answer *r, struct failure *f) {
    struct module_judge *j = r->j;
    struct verdict ignored = {.max_error = 0}, *v = r->out;
    struct torch_answer ref = {.j = j, .c = r->c, .out = &ignored, .random = r->random};
    struct timed_pair d = {.answer = r, .ref = &ref, .plan = timing_plan_of(j->o), .limit = 1};
    struct timing_ratio ratio = {0};
    enum measured result = MEASURED;
    const bool known = j->current == r->c && j->reference.outer > 0;
    r->clock.phase = PHASE_WARM_UP;
    r->clock.unseen = 0;
    ref.process.own_streams = r->process.own_streams;
    d.begun_waited_s = r->process.run.waited_s;
    *f = (struct failure){.requests = 0};
    if (!reference_up(r, &ref, &f->e, &f->st)) return REFERENCE_FAILED;
    if (r->c->control.process != (long)ref.process.run.pid)
        r->c->control = (struct modcontrol){.process = (long)ref.process.run.pid};
    modrun_moved_s(&r->process.run); /* Nobody's time was taken during the trials, so these numbers begin here. */
    modrun_moved_s(&ref.process.run);
    modrun_settled_s(&r->process.run);
    modrun_settled_s(&ref.process.run);
    /* Both run on the same processor, in turns. A reference that ran before has that processor already. */
    if (j->place.cpu >= 0 && !(place_on(&j->place, r->process.run.pid) && place_on(&j->place, ref.process.run.pid)))
        log_debug("what is timed is not bound to a processor");
    spares_renew(j); /* Spares get their contexts meanwhile. A reference that was missing has taken one of them. */
    if (!d.plan.single) d.limit = r->c->slots < MAX_CALLS ? r->c->slots : MAX_CALLS;
    bool good = known || same_tools(&d);
    good = good && warm_up(&d);
    if (good) ratio = take_all_turns(&d, &good);
    /* Where the reference moves as well, somebody else's work keeps processes from coming to rest. */
    if (good && is_hardened(j) && 2 * d.moved[1] > d.turns && 2 * d.moved[0] <= d.moved[1])
        good =
            run_reject(r, "in front of timed calls", OUTCOME_HIDDEN_WORK, "it worked while it should have stood still");
    if (good && d.plan.device) good = time_kernels(&d, &ratio);
    if (good) tell(&d);
    if (good && is_wild(&d, &ratio)) result = WILD;
    bool slowed = false;
    good = good && control(&d, &ratio, &slowed);
    if (slowed && result == MEASURED) result = SLOWED;
    j->reference = ref.process.run;
    if (ref.process.run.dead || ref.process.run.late || !ref.process.up || ignored.outcome != OUTCOME_CORRECT)
        reference_drop(j);
    if (!good && v->outcome == OUTCOME_CORRECT) { /* The reference failed where it had worked before. */
        result = REFERENCE_FAILED;
        f->requests = d.asked;
        f->calls = d.n;
        f->st = FAIL(&f->e, ST_WORKER, "the reference failed while it was timed: %.600s", ignored.message);
    }
    if (good) write_times(&d, &ratio);
    samples_free(&d.samples);
    samples_free(&d.empty);
    json_decref(ref.process.segments);
    return result;
}

/* Starts the answer anew in a new process. False: the verdict is there. */
static bool start_again(struct torch_answer *r) {
    struct verdict *v = r->out;
    struct err e = {0};
    const double compile_s = v->compile_s;
    run_retire(r);
    r->clock.phase = PHASE_WARM_UP;
    modcase_close_lane(&r->j->cases, r->c, LANE_ANSWER); /* The first process may have written there. */
    enum status st = modcase_open_lane(&r->j->cases, r->c, LANE_ANSWER, &e);
    if (st == ST_OK) st = run_fork(r, &e);
    if (st != ST_OK) {
        verdict_of_trouble(v, st, &e);
        return false;
    }
    const bool good = run_load(r, r->source, true) && run_attach(r, LANE_ANSWER) && run_build(r, 0);
    v->compile_s = compile_s;
    return good;
}

/* Whether the reference works while no answer is alive, when it is asked for as many calls. */
static bool works_alone(struct torch_answer *r, const struct failure *f) {
    struct verdict ignored = {.max_error = 0};
    struct torch_answer ref = {.j = r->j, .c = r->c, .out = &ignored, .random = r->random};
    struct timed_pair d = {.answer = r, .ref = &ref, .plan = timing_plan_of(r->j->o), .limit = 1};
    int slots[MAX_CALLS];
    struct err e = {0};
    enum status st;
    reference_drop(r->j);
    if (!reference_up(r, &ref, &e, &st)) return false;
    bool good = true;
    for (int i = 0; i < MAX_CALLS; i++) slots[i] = i;
    for (int i = 0; i < f->requests && good; i++) {
        CLEANUP_JSON json_t *reply = NULL;
        struct request_time t;
        good = run_ready(&ref, slots, f->calls, "between calls");
        if (good) modrun_pause(&ref.process.run);
        good = good && stage_both(&d, f->calls) && timed_request(&d, &ref, f->calls, &reply, &t);
    }
    r->j->reference = ref.process.run;
    if (!good) reference_drop(r->j);
    json_decref(ref.process.segments);
    return good;
}

/* Measures, and finds out whose fault it is when the reference fails. It is the answer's doing if the reference fails
 * beside the answer, works without it, and does both again with a fresh process of the answer. Else it is our trouble,
 * or the problem's. */
static enum measured measure_fairly(struct torch_answer *r) {
    struct failure f;
    enum measured result = measure(r, &f);
    for (int times = 1; result == REFERENCE_FAILED; times++) {
        run_retire(r);
        if (r->out->outcome != OUTCOME_CORRECT) break; /* The verdict is there already. */
        const bool works = works_alone(r, &f);
        if (r->out->outcome != OUTCOME_CORRECT) break; /* The referee was lost. */
        if (!works || (times > 1 && !is_hardened(r->j))) {
            verdict_of_trouble(r->out, f.st, &f.e);
            break;
        }
        if (times > 1) {
            run_reject(r, "in timed calls", OUTCOME_HIDDEN_WORK, "the reference fails only beside it");
            break;
        }
        log_debug("%s; it works without the answer: once more", f.e.msg);
        if (!start_again(r)) break;
        result = measure(r, &f);
    }
    return result;
}

/* Measures again in a new process. The slower of both measurements counts, and none of them where both are wild. */
static void measure_again(struct torch_answer *r, bool wild) {
    struct verdict *v = r->out, before = *v;
    v->speedup = 0;
    v->remeasured = true;
    wild = start_again(r) && measure_fairly(r) == WILD && wild;
    if (v->outcome != OUTCOME_CORRECT) return;
    if (wild) {
        v->speedup = v->speedup_low = v->speedup_high = 0;
        run_reject(r, "in timed calls", OUTCOME_UNSTABLE, "its times are too far apart, and the reference's are not");
        return;
    }
    if (v->speedup <= before.speedup) return;
    *v = before;
    v->remeasured = true;
}

/* Measures again in a new process, because the machine may have been busier during the turns than after them. The
 * better of both measurements counts. Neither of them is more than what the reference takes without the answer allows.
 */
static enum measured measure_fresh(struct torch_answer *r) {
    struct verdict *v = r->out, before = *v;
    v->speedup = 0;
    const enum measured result = start_again(r) ? measure_fairly(r) : MEASURED;
    if (v->outcome == OUTCOME_CORRECT && v->speedup < before.speedup) *v = before;
    return result;
}

void module_measure(struct torch_answer *r) {
    const struct verify_options *o = r->j->o;
    if (o->quiet) o->quiet(o->quiet_ctx, true);
    spares_settle(r->j);
    enum measured result = measure_fairly(r);
    if (result == SLOWED && r->out->outcome == OUTCOME_CORRECT) result = measure_fresh(r);
    const bool wild = result == WILD && is_hardened(r->j);
    if (is_hardened(r->j) && r->out->outcome == OUTCOME_CORRECT && (wild || r->out->speedup > believable_ratio))
        measure_again(r, wild);
    if (o->quiet) o->quiet(o->quiet_ctx, false);
}
