/* timing: from rounds of interleaved measurements to a ratio with an interval. */
#ifndef KERNELRL_TIMING_H
#define KERNELRL_TIMING_H

#include "base/base.h"

enum { TIMING_MAX_ROUNDS = 16 };

/* Median; sorts a copy. n in [1, TIMING_MAX_ROUNDS]. */
double timing_median(const double *x, int n);

struct timing_ratio {
    double ratio;     /* median eager over median candidate */
    double low, high; /* 95 %: Student's t over the rounds' log ratios, widened to contain the ratio */
};
/* eager[i] and candidate[i], i < n, were measured one after the other; all > 0. */
struct timing_ratio timing_compare(const double *eager, const double *candidate, int n);

#endif
