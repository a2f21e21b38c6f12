#include "rl/run/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

enum { PERMUTATIONS = 20000 };

const double fast_p[FAST_P] = {0, 0.5, 0.8, 1, 1.5, 2};
const int pass_k[PASS_K] = {1, 2, 5, 10, 20, 50, 100, 200};

double pass_at_k(int n, int c, int k) {
    if (n - c < k) return 1;
    double miss = 1;
    for (int i = n - c + 1; i <= n; i++) miss *= 1 - (double)k / i;
    return 1 - miss;
}

/* ---- counting -----------------------------------------------------------------------------------------------------*/

/* Rank of a turn among those of a conversation: correct above compiled above the rest, faster above slower. */
static double rank_of(const struct eval_sample *x) {
    if (!x->present) return -1;
    if (x->verdict.outcome == OUTCOME_CORRECT) return 3 + fmax(0, x->verdict.speedup);
    return outcome_stage(x->verdict.outcome) >= STAGE_COMPILE ? 2 : x->kernel ? 1 : 0;
}

static void count(struct problem_summary *p, const struct eval_sample *x) {
    const struct verdict *v = &x->verdict;
    const bool compiles = outcome_stage(v->outcome) >= STAGE_COMPILE;
    p->n++;
    p->parsed += x->kernel != NULL;
    if (compiles && p->compiled++ == 0 && p->correct == 0) p->best_sample = x->sample;
    p->cheats += outcome_class(v->outcome) == 'H';
    if (v->outcome != OUTCOME_CORRECT) return;
    if (p->correct++ == 0) p->best_sample = x->sample;
    for (int k = 0; k < FAST_P; k++) p->faster[k] += fast_p[k] == 0 || v->speedup > fast_p[k];
    if (!(v->speedup > 0)) return;
    p->log_speedup += (log(v->speedup) - p->log_speedup) / ++p->timed;
    if (v->speedup > p->best) {
        p->best = v->speedup;
        p->best_sample = x->sample;
    }
}

static int by_sample(const void *a, const void *b) {
    const struct eval_sample *x = *(const struct eval_sample *const *)a, *y = *(const struct eval_sample *const *)b;
    if (x->problem != y->problem) return x->problem - y->problem;
    if (x->sample != y->sample) return x->sample - y->sample;
    return x->turn - y->turn;
}

/* ---- statistics over problems -------------------------------------------------------------------------------------*/

/* What a mean over problems is taken of, and whether a problem has it. */
typedef double value_fn(const struct problem_summary *p, int k);
struct mean {
    const struct problem_summary *items;
    value_fn *value; /* NaN: the problem does not count */
    int k;
};

static double mean_of(const void *ctx, const int *pick, int n) {
    const struct mean *m = ctx;
    double sum = 0;
    int used = 0;
    for (int i = 0; i < n; i++) {
        const double v = m->value(&m->items[pick[i]], m->k);
        if (isnan(v)) continue;
        sum += v;
        used++;
    }
    return used ? sum / used : (double)NAN;
}

static double share(const struct problem_summary *p, int count_) { return p->n ? (double)count_ / p->n : (double)NAN; }
static double v_parsed(const struct problem_summary *p, int k) { return (void)k, share(p, p->parsed); }
static double v_compiled(const struct problem_summary *p, int k) { return (void)k, share(p, p->compiled); }
static double v_correct(const struct problem_summary *p, int k) { return (void)k, share(p, p->correct); }
static double v_cheats(const struct problem_summary *p, int k) { return (void)k, share(p, p->cheats); }
static double v_fast(const struct problem_summary *p, int k) { return share(p, p->faster[k]); }
static double v_best_fast(const struct problem_summary *p, int k) { return p->n ? p->faster[k] > 0 : (double)NAN; }
static double v_solved(const struct problem_summary *p, int k) { return (void)k, p->n ? p->correct > 0 : (double)NAN; }
static double v_pass(const struct problem_summary *p, int k) {
    return p->n ? pass_at_k(p->n, p->correct, k) : (double)NAN;
}
static double v_best(const struct problem_summary *p, int k) { return (void)k, p->best > 0 ? p->best : (double)NAN; }
static double v_log_best(const struct problem_summary *p, int k) {
    return (void)k, p->best > 0 ? log(p->best) : (double)NAN;
}

static struct rate_interval interval_of(const struct summary *s, value_fn *value, int k) {
    const struct mean m = {s->items, value, k};
    return bootstrap(mean_of, &m, s->n_problems);
}

static struct rate_interval exponential(struct rate_interval v) {
    return (struct rate_interval){exp(v.mean), exp(v.low), exp(v.high)};
}

static double geomean_of_samples(const void *ctx, const int *pick, int n) {
    const struct problem_summary *p = ctx;
    double sum = 0;
    int64_t used = 0;
    for (int i = 0; i < n; i++) {
        sum += p[pick[i]].log_speedup * p[pick[i]].timed;
        used += p[pick[i]].timed;
    }
    return used ? exp(sum / (double)used) : (double)NAN;
}

static double median_of_best(const void *ctx, const int *pick, int n) {
    const struct problem_summary *p = ctx;
    CLEANUP_FREE double *v = xmalloc((size_t)n * sizeof *v + 1);
    int used = 0;
    for (int i = 0; i < n; i++)
        if (p[pick[i]].best > 0) v[used++] = p[pick[i]].best;
    if (used == 0) return NAN;
    qsort(v, (size_t)used, sizeof *v, ascending_f64);
    return used % 2 ? v[used / 2] : (v[used / 2 - 1] + v[used / 2]) / 2;
}

/* Right answers, none of which was timed: how fast they are is not known. */
static bool untimed(const struct summary *s) {
    int correct = 0, timed = 0;
    for (int i = 0; i < s->n_problems; i++) {
        correct += s->items[i].correct;
        timed += s->items[i].timed;
    }
    return correct > 0 && timed == 0;
}

void summary_of(struct problem_summary *items, int n, struct summary *out) {
    int fewest = 0;
    *out = (struct summary){.items = items, .n_problems = n};
    for (int i = 0; i < n; i++)
        if (items[i].n > 0 && (fewest == 0 || items[i].n < fewest)) fewest = items[i].n;
    out->parsed = interval_of(out, v_parsed, 0);
    out->compiled = interval_of(out, v_compiled, 0);
    out->correct = interval_of(out, v_correct, 0);
    out->cheats = interval_of(out, v_cheats, 0);
    out->solved = interval_of(out, v_solved, 0);
    const struct rate_interval unknown = {NAN, NAN, NAN};
    for (int k = 0; k < FAST_P; k++) {
        const bool known = fast_p[k] == 0 || !untimed(out);
        out->fast[k] = known ? interval_of(out, v_fast, k) : unknown;
        out->best_fast[k] = known ? interval_of(out, v_best_fast, k) : unknown;
    }
    for (int k = 0; k < PASS_K; k++) out->pass[k] = pass_k[k] <= fewest ? interval_of(out, v_pass, pass_k[k]) : unknown;
    out->geomean = bootstrap(geomean_of_samples, items, n);
    out->best_geomean = exponential(interval_of(out, v_log_best, 0));
    out->best_mean = interval_of(out, v_best, 0);
    out->best_median = bootstrap(median_of_best, items, n);
}

void summarise(const struct eval_samples *s, struct summary *out) {
    struct problem_summary *items = xcalloc((size_t)s->n_problems + 1, sizeof *items);
    int64_t samples = 0, tokens = 0;
    int missing = 0;
    for (int i = 0; i < s->n_problems; i++) {
        const struct problem *p = s->problems[i];
        items[i] =
            (struct problem_summary){.key = p->key, .name = p->name, .level = p->level, .problem_id = p->problem_id};
    }
    CLEANUP_FREE const struct eval_sample **order = xmalloc(((size_t)s->n + 1) * sizeof *order);
    for (int64_t i = 0; i < s->n; i++) order[i] = &s->items[i];
    qsort(order, (size_t)s->n, sizeof *order, by_sample);
    for (int64_t i = 0, end; i < s->n; i = end) {
        const struct eval_sample *first = order[i], *best = first;
        for (end = i; end < s->n && order[end]->problem == first->problem && order[end]->sample == first->sample;
             end++) {
            if (rank_of(order[end]) > rank_of(best)) best = order[end];
            tokens += order[end]->tokens;
        }
        samples++;
        if (best->present)
            count(&items[best->problem], best);
        else
            missing++;
    }
    summary_of(items, s->n_problems, out);
    out->samples = samples;
    out->tokens = tokens;
    out->missing = missing;
}

void summary_free(struct summary *s) {
    free(s->items);
    *s = (struct summary){0};
}

/* ---- comparing ----------------------------------------------------------------------------------------------------*/

static double plain_mean(const void *ctx, const int *pick, int n) {
    const double *d = ctx;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += d[pick[i]];
    return n ? sum / n : (double)NAN;
}

/* Two-sided: how often swapping A and B at random in each problem gives a mean at least as far from 0. One is added to
 * both counts, so that p is never 0. */
static double permutation_p(const double *d, int n) {
    double observed = 0;
    int64_t as_far = 0;
    for (int i = 0; i < n; i++) observed += d[i];
    struct rng r = rng_make(0x7065726d, (uint64_t)n);
    for (int t = 0; t < PERMUTATIONS; t++) {
        double sum = 0;
        uint64_t bits = 0;
        for (int i = 0; i < n; i++) {
            if (i % 64 == 0) bits = rng_next(&r);
            sum += bits >> i % 64 & 1 ? d[i] : -d[i];
        }
        as_far += fabs(sum) >= fabs(observed) * (1 - 1e-12);
    }
    return (double)(as_far + 1) / (PERMUTATIONS + 1);
}

static void compare_values(const double *a, const double *b, int n, bool log_scale, struct difference *out) {
    CLEANUP_FREE double *d = xmalloc((size_t)n * sizeof *d + 1);
    for (int i = 0; i < n; i++) d[i] = b[i] - a[i];
    out->n = n;
    out->a = bootstrap(plain_mean, a, n);
    out->b = bootstrap(plain_mean, b, n);
    out->change = bootstrap(plain_mean, d, n);
    out->p = n ? permutation_p(d, n) : (double)NAN;
    if (!log_scale) return;
    out->a = exponential(out->a);
    out->b = exponential(out->b);
    out->change = exponential(out->change);
}

static double v_log_speed(const struct problem_summary *p, int k) {
    return (void)k, p->timed ? p->log_speedup : (double)NAN;
}

enum status summary_compare(const struct summary *a, const struct summary *b, struct comparison *out, struct err *e) {
    static const struct {
        const char *name;
        value_fn *value;
        int k;
    } what[DIFFERENCES] = {{"parse", v_parsed, 0},  {"compile", v_compiled, 0},  {"correct", v_correct, 0},
                           {"solved", v_solved, 0}, {"fast_1", v_fast, 3},       {"fast_1.5", v_fast, 4},
                           {"cheat", v_cheats, 0},  {"speed-up", v_log_speed, 0}};
    const int n = a->n_problems;
    CLEANUP_FREE int *partner = xmalloc((size_t)n * sizeof *partner + 1);
    CLEANUP_FREE double *x = xmalloc((size_t)n * sizeof *x + 1), *y = xmalloc((size_t)n * sizeof *y + 1);
    *out = (struct comparison){0};
    for (int i = 0; i < n; i++) {
        partner[i] = -1;
        for (int k = 0; k < b->n_problems && partner[i] < 0; k++)
            if (strcmp(a->items[i].key, b->items[k].key) == 0) partner[i] = k;
        out->n_common += partner[i] >= 0;
    }
    out->only_a = n - out->n_common;
    out->only_b = b->n_problems - out->n_common;
    if (out->n_common == 0) return FAIL(e, ST_INVALID, "the two evaluations have no problem in common");
    for (int m = 0; m < DIFFERENCES; m++) {
        int used = 0;
        for (int i = 0; i < n; i++) {
            if (partner[i] < 0 || (what[m].value == v_fast && (untimed(a) || untimed(b)))) continue;
            x[used] = what[m].value(&a->items[i], what[m].k);
            y[used] = what[m].value(&b->items[partner[i]], what[m].k);
            used += !isnan(x[used]) && !isnan(y[used]);
        }
        out->item[m].name = what[m].name;
        compare_values(x, y, used, what[m].value == v_log_speed, &out->item[m]);
    }
    return ST_OK;
}
