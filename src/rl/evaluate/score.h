/* score: figures over many verdicts, as KernelBench defines them. */
#ifndef KERNELRL_RL_EVALUATE_SCORE_H
#define KERNELRL_RL_EVALUATE_SCORE_H

#include <stdbool.h>
#include <stddef.h>

/* One answer: whether it is correct, and the baseline's time over its own; 0 where it was not timed. */
struct scored {
    bool correct;
    double speedup;
};

/* Share of answers that are correct and faster than p times the baseline; n includes failures. p = 0 counts all that
 * are correct and timed. NaN for n = 0. */
double score_fast_p(const struct scored *s, size_t n, double p);
/* Geometric mean of the ratios of correct, timed answers; NaN when there are none. */
double score_geomean(const struct scored *s, size_t n);
/* Unbiased estimate that one of k answers is correct, from n of which c are: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021,
 * "Evaluating Large Language Models Trained on Code"). 1 when n - c < k. */
double score_pass_at_k(size_t n, size_t c, size_t k);

#endif
