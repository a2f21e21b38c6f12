/* timing: what a timing method asks for, and how measurements become a ratio with an interval. */
#ifndef KERNELRL_TIMING_H
#define KERNELRL_TIMING_H

#include "verify/verify.h"

/* Every OTHER_TIMED-th timed set is of another family than shipped inputs, if the reference tolerates that family.
 * Otherwise an answer could recognise the clock's calls by the distribution of their inputs. Half of the remaining sets
 * are touched: the problem made them, and then one element of one input was changed so that the output shows it. An
 * answer that samples a part of the inputs, finds them as usual and skips its work misses that element. A touched set
 * takes as long as any other. Which sets are changed is secret. */
enum { OTHER_TIMED = 4 };

/* How a pair of answer and reference is timed. Whatever the method: our own clock, the two in turns, inputs that
 * neither has seen, outputs checked. */
struct timing_plan {
    int calls;            /* timed calls of either side */
    int warm_calls;       /* before them, at least */
    double warm_s, rep_s; /* > 0: until the slower side has worked for so long, instead of counts */
    double trim;          /* share of the times that is dropped at either end before the mean; 0.5: the median */
    double interval;      /* go on until the 95 % interval is this narrow, as a share of the ratio; 0: do not */
    double patience_s;    /* but not for longer than this (timing_patience_s()); 0: until the budget is spent */
    bool single;          /* one call a request, each timed by itself; else as many as take some milliseconds */
    bool whole;           /* what a request costs beside its calls is not taken off */
    bool device;          /* the ratio is that of device times in kernels */
};
/* o's method, with what o sets by itself in the place of the method's own. o->timed_calls > 0. */
struct timing_plan timing_plan_of(const struct verify_options *o);

/* Mean of n >= 1 values without the floor(n * trim) smallest and as many of the largest; trim 0 is the mean, from 0.5
 * on the median. */
double timing_centre(const double *x, int n, double trim);
#define timing_median(x, n) timing_centre(x, n, 0.5)
/* The smallest value that a share p of n >= 1 values does not exceed; p in [0, 1]. */
double timing_quantile(const double *x, int n, double p);

enum { TIMING_BLOCKS = 15 };
struct timing_ratio {
    double ratio;
    double low, high; /* 95 %: Student's t over the log ratios of up to TIMING_BLOCKS blocks, widened to the ratio */
};
/* eager[i] and candidate[i], i < n, were measured one after the other; all > 0. The ratio of the means (trim 0) or
 * medians (0.5); with what is between, the geometric mean of the pairs' ratios without that share at either end: a
 * machine that goes faster and slower does so for both of a pair. */
struct timing_ratio timing_compare(const double *eager, const double *candidate, int n, double trim);

/* For how long to go on behind the calls that the plan asks for, while the ratio's interval is wider than wanted; 0:
 * until the budget is spent. Longer for calls of less than 0.1 ms, which take more requests, and where the interval is
 * twice as wide: somebody else is at work, and may soon have done. */
double timing_patience_s(const struct timing_plan *p, const struct timing_ratio *r, double seconds_per_call);

/* A device is asked whether it is at rest by a small piece of work behind whatever it still does. How long that takes
 * when it is: the middle of the last findings behind the reference's calls. */
enum { TIMING_USUAL = 33 };
struct timing_rest {
    double usual_s[TIMING_USUAL];
    int n; /* findings so far */
};
/* Whether the device that took drain_s for such a piece of work is at rest, give or take slack; true where nothing is
 * known yet. is_usual: it is the first piece behind the reference's calls, a finding for later. */
bool timing_at_rest(struct timing_rest *r, double drain_s, bool is_usual, double slack);
/* By how much longer the device works behind a candidate's requests than behind eager ones, by the centres of n >= 1
 * times each; 0 when that is no more than slack. Whatever share of a request's work is put behind its reply, and in
 * whichever requests, the centres of both parts add up to that of the whole. */
double timing_hidden(const double *eager_rest, const double *candidate_rest, int n, double trim, double slack);

/* Whether a ratio that was measured in requests of many calls is more than what requests of one call explain, in which
 * nothing overlaps: lone_s, what those take beside empty ones, eager's and the candidate's, each known to slack_s: how
 * soon a device is seen at rest may differ by 0.3 ms between two processes, each time. */
bool timing_overlaps(double ratio, const double lone_s[2], double slack_s);

#endif
