#include "optimize/estimate.h"

#include <math.h>

#define NORMAL95 1.959964
#define PROOF_BETWEEN 0.01

void estimate_add(struct estimate *x, double ratio, double low, double high) {
    const double log_ratio = log(ratio), half = low > 0 && high >= low ? log(high / low) / (2 * NORMAL95) : 0;
    x->n++;
    x->sum += log_ratio;
    x->sum_sq += log_ratio * log_ratio;
    x->within += half * half;
}

static struct bounds around(double mean, double half) {
    return (struct bounds){exp(mean), exp(mean - half), exp(mean + half)};
}

struct bounds estimate_bounds(const struct estimate *x) {
    if (x->n == 0) return (struct bounds){(double)NAN, (double)NAN, (double)NAN};
    const double between = ESTIMATE_BETWEEN * ESTIMATE_BETWEEN;
    return around(x->sum / x->n, NORMAL95 * sqrt((x->within / x->n + between) / x->n));
}

struct bounds estimate_proof(const struct estimate *x) {
    if (x->n < 2) return estimate_bounds(x);
    const double mean = x->sum / x->n, var = fmax(0, (x->sum_sq - x->n * mean * mean) / (x->n - 1));
    /* A few measurements may agree by chance: the interval is no narrower than their own spreads, and what is least
     * between two processes, allow. */
    const double least = NORMAL95 * sqrt((x->within / x->n + PROOF_BETWEEN * PROOF_BETWEEN) / x->n);
    return around(mean, fmax(student_t95(x->n - 1) * sqrt(var / x->n), least));
}

double student_t95(int df) {
    static const double table[] = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
                                   2.2010,  2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860};
    ASSERT(df >= 1);
    if (df <= (int)ARRAY_LEN(table)) return table[df - 1];
    /* Cornish and Fisher's expansion; right to four digits from 20 on. */
    const double z = NORMAL95, z3 = z * z * z, z5 = z3 * z * z;
    return z + (z3 + z) / (4.0 * df) + (5 * z5 + 16 * z3 + 3 * z) / (96.0 * df * df);
}
