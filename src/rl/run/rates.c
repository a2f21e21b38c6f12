#include "rl/run/rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "io/json.h"

enum { BOOTSTRAP_DRAWS = 2000, EVAL_BATCH = 64 /* samples in flight */ };

struct rate_interval bootstrap(statistic_fn *f, const void *ctx, int n) {
    struct rate_interval r = {NAN, NAN, NAN};
    if (n == 0) return r;
    int *pick = xmalloc((size_t)n * sizeof *pick);
    double *draw = xmalloc(BOOTSTRAP_DRAWS * sizeof *draw);
    for (int i = 0; i < n; i++) pick[i] = i;
    r.mean = f(ctx, pick, n);
    struct rng rng = rng_make(0x626f6f74, (uint64_t)n);
    int used = 0;
    for (int d = 0; d < BOOTSTRAP_DRAWS; d++) {
        for (int i = 0; i < n; i++) pick[i] = (int)rng_below(&rng, (uint64_t)n);
        double v = f(ctx, pick, n);
        if (isfinite(v)) draw[used++] = v;
    }
    qsort(draw, (size_t)used, sizeof *draw, ascending_f64);
    if (used > 0) {
        r.low = draw[(int)(0.025 * (used - 1))];
        r.high = draw[(int)ceil(0.975 * (used - 1))];
    }
    free(pick);
    free(draw);
    return r;
}

/* A problem without a single verdict says nothing about the model. */
#define RATE(field)                                                       \
    static double rate_##field(const void *ctx, const int *pick, int n) { \
        const struct eval_problem *p = ctx;                               \
        double sum = 0;                                                   \
        int judged = 0;                                                   \
        for (int i = 0; i < n; i++)                                       \
            if (p[pick[i]].n > 0) {                                       \
                sum += p[pick[i]].field;                                  \
                judged++;                                                 \
            }                                                             \
        return judged ? sum / judged : (double)NAN;                       \
    }
RATE(parsed)
RATE(compiled)
RATE(correct)
RATE(fast)

static double geometric_speedup(const void *ctx, const int *pick, int n) {
    const struct eval_problem *p = ctx;
    double sum = 0;
    int64_t count = 0;
    for (int i = 0; i < n; i++) {
        sum += p[pick[i]].log_speedup * p[pick[i]].n_correct;
        count += p[pick[i]].n_correct;
    }
    return count ? exp(sum / (double)count) : NAN;
}

static void add_episode(struct eval_problem *p, const struct episode *ep) {
    const struct verdict *v = &ep->verdict;
    p->n++;
    p->parsed += ep->kernel != NULL;
    p->compiled += outcome_stage(v->outcome) >= STAGE_COMPILE;
    if (v->outcome != OUTCOME_CORRECT) return;
    p->correct += 1;
    p->fast += v->speedup > 1;
    if (v->speedup > 0) {
        p->log_speedup += log(v->speedup);
        p->best_speedup = fmax(p->best_speedup, v->speedup);
        p->n_correct++;
    }
}

void eval_begin(struct eval_result *r, int n_problems, int n_samples, double temperature) {
    *r = (struct eval_result){.n_problems = n_problems, .n_samples = n_samples, .temperature = temperature};
    r->items = xcalloc((size_t)n_problems, sizeof *r->items);
}

void eval_count(struct eval_result *r, int i, const struct sample_group *g) {
    struct eval_problem *p = &r->items[i];
    p->problem = g->problem;
    for (int j = 0; j < g->n; j++) {
        p->tokens += g->ep[j].sample.n;
        if (g->ep[j].present)
            add_episode(p, &g->ep[j]);
        else
            p->missing++;
    }
    r->tokens += p->tokens;
    r->missing += p->missing;
    if (p->n > 0) {
        p->parsed /= p->n;
        p->compiled /= p->n;
        p->correct /= p->n;
        p->fast /= p->n;
    }
    if (p->n_correct > 0) p->log_speedup /= p->n_correct;
}

void eval_summarise(struct eval_result *r) {
    int n = r->n_problems;
    r->parsed = bootstrap(rate_parsed, r->items, n);
    r->compiled = bootstrap(rate_compiled, r->items, n);
    r->correct = bootstrap(rate_correct, r->items, n);
    r->fast = bootstrap(rate_fast, r->items, n);
    r->speedup = bootstrap(geometric_speedup, r->items, n);
    r->mean_tokens = n ? (double)r->tokens / ((double)n * r->n_samples) : 0;
}

void eval_part(const struct eval_result *all, int first, int n, struct eval_result *out) {
    ASSERT(first >= 0 && n >= 0 && first + n <= all->n_problems);
    eval_begin(out, n, all->n_samples, all->temperature);
    for (int i = 0; i < n; i++) {
        out->items[i] = all->items[first + i];
        out->tokens += out->items[i].tokens;
        out->missing += out->items[i].missing;
    }
    eval_summarise(out);
}

/* The answer that a trajectory is judged by: its first one, or of several turns the fastest correct one, else the
 * last. */
static const struct episode *best_turn(const struct trajectory *t) {
    const struct episode *best = t->turn[t->n_turns - 1];
    for (int i = t->n_turns - 1; i >= 0; i--) {
        const struct episode *ep = t->turn[i];
        if (ep->verdict.outcome != OUTCOME_CORRECT) continue;
        if (best->verdict.outcome != OUTCOME_CORRECT || ep->verdict.speedup >= best->verdict.speedup) best = ep;
    }
    return best;
}

static void count_task(struct eval_result *r, int i, const struct rollout *x, int task, int n_samples) {
    struct sample_group g = {.problem = x->group[task].problem, .n = n_samples};
    g.ep = xcalloc((size_t)n_samples, sizeof *g.ep);
    for (int k = 0; k < x->n_trajectories; k++)
        if (x->trajectory[k].task == task) g.ep[x->trajectory[k].sample] = *best_turn(&x->trajectory[k]);
    eval_count(r, i, &g);
    free(g.ep);
}

enum status eval_rollouts(const struct actor *a, const struct problem *const *problems, int n,
                          const struct rollout_params *p, struct eval_result *out, struct err *e) {
    const int n_samples = p->o.group_size;
    eval_begin(out, n, n_samples, p->o.temperature);
    int step = p->at_once > 0 ? p->at_once : EVAL_BATCH / n_samples > 0 ? EVAL_BATCH / n_samples : 1;
    for (int begin = 0; begin < n; begin += step) {
        int chunk = n - begin < step ? n - begin : step;
        struct rollout x = {0};
        struct rollout_params mine = *p;
        mine.eval = true;
        mine.first_task = begin;
        mine.stream = UINT64_C(0xe5a1000000) + (uint64_t)begin;
        enum status st = rollout_run(a, problems + begin, chunk, &mine, &x, NULL, e);
        for (int i = 0; st == ST_OK && i < chunk; i++) count_task(out, begin + i, &x, i, n_samples);
        rollout_free(&x);
        if (st != ST_OK) {
            eval_free(out);
            return st;
        }
    }
    eval_summarise(out);
    return ST_OK;
}

enum status eval_run(const struct actor *a, const struct problem *const *problems, int n, int n_samples,
                     double temperature, int max_tokens, uint64_t seed, struct eval_result *out, struct err *e) {
    const struct rollout_params p = {
        .o = {.group_size = n_samples, .max_tokens = max_tokens, .temperature = temperature}, .seed = seed};
    return eval_rollouts(a, problems, n, &p, out, e);
}

void eval_free(struct eval_result *r) {
    free(r->items);
    *r = (struct eval_result){0};
}

static double mean_exp(const void *ctx, const int *pick, int n) {
    const double *d = ctx;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += d[pick[i]];
    return exp(sum / n);
}

struct rate_interval eval_paired_speed(const struct eval_result *before, const struct eval_result *after,
                                       int *n_paired) {
    ASSERT(before->n_problems == after->n_problems);
    double *d = xmalloc((size_t)before->n_problems * sizeof *d + 1);
    int n = 0;
    for (int i = 0; i < before->n_problems; i++) {
        const struct eval_problem *b = &before->items[i], *x = &after->items[i];
        if (b->n_correct > 0 && x->n_correct > 0) d[n++] = x->log_speedup - b->log_speedup;
    }
    struct rate_interval r = bootstrap(mean_exp, d, n);
    free(d);
    *n_paired = n;
    return r;
}

static void json_interval(struct str *s, const char *name, struct rate_interval v) {
    if (isnan(v.mean))
        str_addf(s, ", \"%s\": null", name);
    else
        str_addf(s, ", \"%s\": {\"mean\": %.6g, \"low\": %.6g, \"high\": %.6g}", name, v.mean, v.low, v.high);
}

void eval_to_json(const struct eval_result *r, struct str *out) {
    str_addf(out, "{\"problems\": %d, \"samples\": %d, \"temperature\": %g, \"missing\": %d, \"mean_tokens\": %.1f",
             r->n_problems, r->n_samples, r->temperature, r->missing, r->mean_tokens);
    json_interval(out, "parse", r->parsed);
    json_interval(out, "compile", r->compiled);
    json_interval(out, "correct", r->correct);
    json_interval(out, "fast_1", r->fast);
    json_interval(out, "speedup", r->speedup);
    str_adds(out, ", \"items\": [");
    for (int i = 0; i < r->n_problems; i++) {
        const struct eval_problem *p = &r->items[i];
        str_addf(out, "%s{\"problem\": ", i ? ", " : "");
        js_add_quoted(out, p->problem->key, strlen(p->problem->key));
        str_addf(out,
                 ", \"n\": %d, \"parse\": %.4g, \"compile\": %.4g, \"correct\": %.4g, "
                 "\"fast_1\": %.4g, \"speedup\": %.4g}",
                 p->n, p->parsed, p->compiled, p->correct, p->fast, p->n_correct ? exp(p->log_speedup) : 0.0);
    }
    str_adds(out, "]}");
}
