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
/* As a proof reports it: one ratio a process, because fresh processes differ by more than one of them can know. The
 * middle one is reported. Its interval lies between two of the sorted ratios and holds whatever their distribution is:
 * of n processes each lies above the true median with probability 1/2. So "the whole interval lies above 1" is a sign
 * test over the processes. A proof looks twice: behind `first` processes, and behind more where those disagree. Both
 * looks together miss in less than 1 % where processes are independent, and in less than 5 % where they are as
 * dependent as those of bench/results/timing_noise.tsv, one after the other on a busy machine. */
enum { PROCESSES_MAX = 200 };
struct process_ratios {
    int n;
    double log_ratio[PROCESSES_MAX];
};
void process_ratios_add(struct process_ratios *x, double ratio);
/* The middle ratio and its interval. n > first: the second look. With too few processes for that
 * (process_ratios_rank() is 0) the interval is Student's t of the logarithms, no narrower than their range, and shows
 * nothing; with one process low and high are NaN. first >= 1. */
struct bounds process_ratios_bounds(const struct process_ratios *x, int first);
/* Which of n sorted ratios bounds the interval from below, from 1; 0: n are too few. */
int process_ratios_rank(int n, int first);

/* The two-sided 95 % quantile of Student's t. df >= 1. */
double student_t95(int df);

#endif
