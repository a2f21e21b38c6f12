/* bandit: which of several arms to pull, by Thompson sampling over what each has paid. A pay-off lies in [0, 1]; an
 * arm's belief is a beta distribution, so that little-known arms are tried and poor ones are left (Thompson 1933). */
#ifndef KERNELRL_OPTIMIZE_BANDIT_H
#define KERNELRL_OPTIMIZE_BANDIT_H

#include "base/rng.h"

struct bandit_arm {
    double paid, missed; /* sums of pay-offs and of 1 - pay-off */
    int n;               /* times pulled */
};
void bandit_pay(struct bandit_arm *a, double pay_off);
/* A draw of what the arm pays, from its belief; prior_paid and prior_missed > 0 are what is believed before anything
 * was seen. */
double bandit_draw(const struct bandit_arm *a, double prior_paid, double prior_missed, struct rng *r);

/* The same with what the arm has paid elsewhere, which counts as at most BANDIT_ELSEWHERE pulls, for a prior; half a
 * pull of either kind stands in front of both. */
enum { BANDIT_ELSEWHERE = 4 };
double bandit_draw_with(const struct bandit_arm *a, const struct bandit_arm *elsewhere, struct rng *r);

/* A draw from the gamma distribution of shape > 0 and scale 1 (Marsaglia and Tsang 2000). */
double gamma_draw(double shape, struct rng *r);

#endif
