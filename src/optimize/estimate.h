/* optimize: a module in, a faster one out, proven. Owns the search over answers at test time: populations, prompts that
 * show what was found, the choice among prompts, racing, learning between rounds, the proof and the report. Samples,
 * judges and trains with what rl has. Start at optimize.h, then search.c.
 *
 * estimate: a ratio of times as several measurements know it. Each measurement was made in processes of its own; it
 * knows its own spread, and two of them differ by more than that (where memory lies, on which processor a thread was
 * put). */
#ifndef KERNELRL_OPTIMIZE_ESTIMATE_H
#define KERNELRL_OPTIMIZE_ESTIMATE_H

#include "base/base.h"

/* Sums over measurements, in logarithms; zero at first. */
struct estimate {
    int n;
    double sum, sum_sq; /* of the ratios */
    double within;      /* of the squared half widths of their own intervals, as standard errors */
};
/* One more measurement: a ratio with its 95 % interval; low <= 0: the interval is not known. */
void estimate_add(struct estimate *x, double ratio, double low, double high);

struct bounds {
    double ratio, low, high; /* NaN without a measurement */
};
/* While searching: few measurements, so their own spreads count, and between measurements what is usual
 * (ESTIMATE_BETWEEN, a standard deviation of log ratios). */
#define ESTIMATE_BETWEEN 0.03
struct bounds estimate_bounds(const struct estimate *x);
/* As a proof reports it: from the differences between measurements, Student's t with n - 1 degrees of freedom, 95 %;
 * but never narrower than the measurements' own spreads and a hundredth between them. With one measurement the interval
 * is that of estimate_bounds(). */
struct bounds estimate_proof(const struct estimate *x);

/* The two-sided 95 % quantile of Student's t. df >= 1. */
double student_t95(int df);

#endif
