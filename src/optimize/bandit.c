#include "optimize/bandit.h"

#include <math.h>

void bandit_pay(struct bandit_arm *a, double pay_off) {
    const double p = fmin(1, fmax(0, pay_off));
    a->paid += p;
    a->missed += 1 - p;
    a->n++;
}

double gamma_draw(double shape, struct rng *r) {
    if (shape < 1) { /* of one more, times a power of a uniform number */
        const double u = 1 - rng_next_f64(r);
        return gamma_draw(shape + 1, r) * pow(u, 1 / shape);
    }
    const double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        const double x = rng_normal(r), v = 1 + c * x, v3 = v * v * v;
        if (v <= 0) continue;
        if (log(1 - rng_next_f64(r)) < 0.5 * x * x + d - d * v3 + d * log(v3)) return d * v3;
    }
}

double bandit_draw(const struct bandit_arm *a, double prior_paid, double prior_missed, struct rng *r) {
    const double x = gamma_draw(prior_paid + a->paid, r), y = gamma_draw(prior_missed + a->missed, r);
    return x / (x + y);
}

double bandit_draw_with(const struct bandit_arm *a, const struct bandit_arm *elsewhere, struct rng *r) {
    const double scale = elsewhere->n > BANDIT_ELSEWHERE ? (double)BANDIT_ELSEWHERE / elsewhere->n : 1;
    return bandit_draw(a, 0.5 + scale * elsewhere->paid, 0.5 + scale * elsewhere->missed, r);
}
