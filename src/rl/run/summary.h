/* summary: what the samples of an evaluation say about a model. Every problem counts the same: rates are means over
 * problems of the mean over samples, intervals 95 % bootstraps over problems. A sample is one conversation: the best of
 * its turns counts. A problem without a verdict does not count. */
#ifndef KERNELRL_RL_RUN_SUMMARY_H
#define KERNELRL_RL_RUN_SUMMARY_H

#include "rl/run/rates.h"
#include "rl/run/samples.h"

enum { FAST_P = 6, PASS_K = 8 };
extern const double fast_p[FAST_P]; /* 0, 0.5, 0.8, 1, 1.5, 2 */
extern const int pass_k[PASS_K];    /* 1, 2, 5, 10, 20, 50, 100, 200 */

struct problem_summary {
    const char *key, *name;
    int level, problem_id;
    int n;                                 /* samples with a verdict */
    int parsed, compiled, correct, cheats; /* of them */
    int faster[FAST_P];                    /* correct and faster than fast_p times PyTorch, strictly, as KernelBench */
    int timed;                             /* correct ones with a speed-up */
    double log_speedup;                    /* mean ln over those */
    double best;                           /* largest speed-up of a correct sample; 0: none */
    int best_sample;                       /* whose it is; else the first that compiles, else 0 */
};
struct summary {
    struct problem_summary *items; /* [n_problems], owned */
    int n_problems, missing;       /* missing: samples without a verdict */
    int64_t samples, tokens;
    struct rate_interval parsed, compiled, correct, cheats;
    struct rate_interval fast[FAST_P];      /* share of samples; NaN, above 0, when no right one was timed */
    struct rate_interval best_fast[FAST_P]; /* share of problems whose best sample is that fast */
    struct rate_interval pass[PASS_K];      /* NaN unless every problem that counts has k samples */
    struct rate_interval solved, buildable; /* share of problems with a correct, a compiling sample */
    struct rate_interval geomean;           /* speed-up over all correct samples */
    struct rate_interval best_geomean, best_mean, best_median; /* over the best of each solved problem */
};
void summarise(const struct eval_samples *s, struct summary *out);
/* The same from counts: takes over items (malloc'ed). samples, tokens and missing are the caller's to set. */
void summary_of(struct problem_summary *items, int n, struct summary *out);
void summary_free(struct summary *s);

/* 1 - C(n-c, k) / C(n, k): the chance that k of n samples, c of them correct, hold a correct one (Chen et al. 2021). */
double pass_at_k(int n, int c, int k);

/* ---- comparing ----------------------------------------------------------------------------------------------------*/

/* A difference between two evaluations on the problems both have: B minus A (speed: the ratio B over A), its bootstrap
 * interval over problems, and the two-sided p of a permutation test that swaps A and B problem by problem (20,000
 * draws, fixed seed). NaN where one of the two is not known. */
struct difference {
    const char *name; /* "correct", "fast_1", ... */
    struct rate_interval a, b, change;
    double p;
    int n; /* problems it rests on */
};
enum { DIFFERENCES = 8 };
struct comparison {
    struct difference item[DIFFERENCES]; /* parse, compile, correct, solved, fast_1, fast_1.5, cheat, speed-up */
    int n_common, only_a, only_b;
};
/* ST_INVALID when the two have no problem in common. */
enum status summary_compare(const struct summary *a, const struct summary *b, struct comparison *out,
                            struct err *e) MUST_USE;

#endif
