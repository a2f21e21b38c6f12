#include "verify/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct timing_plan timing_plan_of(const struct verify_options *o) {
    struct timing_plan p = {.calls = o->timed_calls, .trim = 0.25, .interval = 0.03, .patience_s = 0.5};
    switch (o->timing_method) {
    case TIMING_interleaved: break;
    case TIMING_calibrated:
        p = (struct timing_plan){
            .calls = o->timed_calls, .warm_calls = 20, .trim = 0.1, .interval = 0.02, .single = true};
        break;
    /* KernelBench's. Its warm-ups are 3, its figure is the mean. */
    case TIMING_cuda_event: p = (struct timing_plan){.calls = o->timed_calls, .warm_calls = 3, .single = true}; break;
    case TIMING_do_bench: /* triton.testing.do_bench: 25 ms of warm-up, 100 ms of calls, whatever was asked for */
        p = (struct timing_plan){.warm_calls = 3, .warm_s = 0.025, .rep_s = 0.1, .single = true};
        break;
    case TIMING_do_bench_impl: /* all calls are given out, then waited for once */
        p = (struct timing_plan){.calls = o->timed_calls, .warm_calls = 3};
        break;
    case TIMING_host_time:
        p = (struct timing_plan){.calls = o->timed_calls, .warm_calls = 3, .single = true, .whole = true};
        break;
    case TIMING_nsight_python_time:
        p = (struct timing_plan){.calls = o->timed_calls, .warm_calls = 3, .single = true, .device = true};
        break;
    }
    if (o->warm_calls > 0) p.warm_calls = o->warm_calls;
    if (o->trim > 0) p.trim = o->trim;
    if (o->interval > 0) {
        p.interval = o->interval;
        p.patience_s = 0;
    }
    return p;
}

double timing_centre(const double *x, int n, double trim) {
    ASSERT(n >= 1 && trim >= 0);
    CLEANUP_FREE double *v = xmalloc((size_t)n * sizeof *v);
    memcpy(v, x, (size_t)n * sizeof *v);
    qsort(v, (size_t)n, sizeof *v, ascending_f64);
    int drop = (int)fmin(floor(n * trim), (n - 1) / 2);
    double sum = 0;
    for (int i = drop; i < n - drop; i++) sum += v[i];
    return sum / (n - 2 * drop);
}

double timing_quantile(const double *x, int n, double p) {
    ASSERT(n >= 1 && p >= 0 && p <= 1);
    CLEANUP_FREE double *v = xmalloc((size_t)n * sizeof *v);
    memcpy(v, x, (size_t)n * sizeof *v);
    qsort(v, (size_t)n, sizeof *v, ascending_f64);
    return v[(int)fmax(ceil(p * n) - 1, 0)];
}

/* 97.5 % quantile of Student's t with d degrees of freedom: known values, then Cornish and Fisher's expansion. */
static double t975(int d) {
    static const double known[] = {0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
    return d < (int)ARRAY_LEN(known) ? known[d] : 1.960 + 2.372 / d + 2.823 / ((double)d * d);
}

/* Centre of eager over centre of candidate. */
static double ratio_of(const double *eager, const double *candidate, int n, double trim) {
    if (trim <= 0 || trim >= 0.5) return timing_centre(eager, n, trim) / timing_centre(candidate, n, trim);
    CLEANUP_FREE double *logs = xmalloc((size_t)n * sizeof *logs);
    for (int i = 0; i < n; i++) logs[i] = log(eager[i] / candidate[i]);
    return exp(timing_centre(logs, n, trim));
}

struct timing_ratio timing_compare(const double *eager, const double *candidate, int n, double trim) {
    struct timing_ratio r;
    int blocks = n < TIMING_BLOCKS ? n : TIMING_BLOCKS;
    double logs[TIMING_BLOCKS], mean = 0, square = 0;
    r.ratio = ratio_of(eager, candidate, n, trim);
    for (int i = 0; i < blocks; i++) {
        int from = (int)((int64_t)n * i / blocks), to = (int)((int64_t)n * (i + 1) / blocks);
        logs[i] = log(ratio_of(eager + from, candidate + from, to - from, trim));
        mean += logs[i] / blocks;
    }
    for (int i = 0; i < blocks; i++) square += (logs[i] - mean) * (logs[i] - mean);
    double half = blocks > 1 ? t975(blocks - 1) * sqrt(square / (blocks - 1) / blocks) : 0;
    r.low = fmin(exp(mean - half), r.ratio);
    r.high = fmax(exp(mean + half), r.ratio);
    return r;
}

double timing_patience_s(const struct timing_plan *p, const struct timing_ratio *r, double seconds_per_call) {
    static const double short_call_s = 1e-4, most_s = 2;
    const bool wide = r->high - r->low > 2 * p->interval * r->ratio;
    if (p->patience_s <= 0) return 0;
    return wide || seconds_per_call < short_call_s ? fmax(p->patience_s, most_s) : p->patience_s;
}

bool timing_at_rest(struct timing_rest *r, double drain_s, bool is_usual, double slack) {
    const int known = r->n < TIMING_USUAL ? r->n : TIMING_USUAL;
    const bool at_rest = known == 0 || drain_s - timing_median(r->usual_s, known) <= slack;
    if (is_usual) r->usual_s[r->n++ % TIMING_USUAL] = drain_s;
    return at_rest;
}

double timing_hidden(const double *eager_rest, const double *candidate_rest, int n, double trim, double slack) {
    const double more = timing_centre(candidate_rest, n, trim) - timing_centre(eager_rest, n, trim);
    return more > slack ? more : 0;
}

bool timing_overlaps(double ratio, const double lone_s[2], double slack_s) {
    static const double factor = 1.15;
    const double least_s = lone_s[1] - slack_s; /* of the candidate */
    return least_s > 0 && ratio > factor * (fmax(lone_s[0], 0) + slack_s) / least_s;
}
