/* eval: how good a policy is on a problem set. Rates are means over problems of the mean over samples, so every problem
 * counts the same (one without any verdict does not count); intervals are 95 % percentile bootstraps over problems
 * (2,000 draws, fixed seed). */
#ifndef KERNELRL_RL_RUN_RATES_H
#define KERNELRL_RL_RUN_RATES_H

#include "rl/rollout/rollout.h"

struct rate_interval {
    double mean, low, high;
};
/* A statistic of a multiset of items, given by their numbers. */
typedef double statistic_fn(const void *ctx, const int *pick, int n);
/* The statistic of all n items and its 95 % percentile bootstrap over them (2,000 draws, fixed seed). Draws that are
 * not finite do not count; NaN without items. */
struct rate_interval bootstrap(statistic_fn *f, const void *ctx, int n);

struct eval_problem { /* per problem, over its samples */
    const struct problem *problem;
    int n;                                  /* samples with a verdict */
    double parsed, compiled, correct, fast; /* rates; fast_1: correct and faster than eager */
    int missing;                            /* samples without one */
    int64_t tokens;                         /* sampled */
    int n_correct;
    double best_speedup; /* of its correct answers; 0 when none */
    double log_speedup;  /* mean ln(speed-up) over correct samples; 0 when none */
};
struct eval_result {
    struct eval_problem *items; /* owned */
    int n_problems, n_samples;
    double temperature;
    struct rate_interval parsed, compiled, correct, fast, speedup; /* speedup: geometric mean over correct samples */
    double mean_tokens;
    int64_t tokens;
    int missing; /* samples without a verdict */
};

/* n_samples answers per problem at the temperature (0: greedy, then n_samples should be 1). */
enum status eval_run(const struct actor *a, const struct problem *const *problems, int n, int n_samples,
                     double temperature, int max_tokens, uint64_t seed, struct eval_result *out,
                     struct err *e) MUST_USE;
/* The same with turns and everything else that p says: a trajectory counts by its fastest correct turn. p's group_size
 * is the number of samples; its stream and first_task are not read. */
enum status eval_rollouts(const struct actor *a, const struct problem *const *problems, int n,
                          const struct rollout_params *p, struct eval_result *out, struct err *e) MUST_USE;
/* What eval_run is made of: an empty result; the judged samples of problem i (once a problem); rates and intervals. */
void eval_begin(struct eval_result *r, int n_problems, int n_samples, double temperature);
void eval_count(struct eval_result *r, int i, const struct sample_group *g);
void eval_summarise(struct eval_result *r);
void eval_free(struct eval_result *r);
/* The result that problems [first, first + n) alone would have given. eval_free(). */
void eval_part(const struct eval_result *all, int first, int n, struct eval_result *out);

/* Geometric mean over the problems solved in both of (speed-up after / speed-up before). */
struct rate_interval eval_paired_speed(const struct eval_result *before, const struct eval_result *after,
                                       int *n_paired);

/* One JSON object, problems included (docs/formats.md). */
void eval_to_json(const struct eval_result *r, struct str *out);

#endif
