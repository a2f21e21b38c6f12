#include "verify/timing.h"

#include <math.h>
#include <string.h>

double timing_median(const double *x, int n) {
    ASSERT(n >= 1 && n <= TIMING_MAX_ROUNDS);
    double v[TIMING_MAX_ROUNDS];
    memcpy(v, x, (size_t)n * sizeof *v);
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && v[j - 1] > v[j]; j--) {
            double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

struct timing_ratio timing_compare(const double *eager, const double *candidate, int n) {
    /* 97.5 % quantiles of Student's t with n - 1 degrees of freedom. */
    static const double t975[TIMING_MAX_ROUNDS] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                                   2.306, 2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131};
    struct timing_ratio r;
    double mean = 0, square = 0;
    r.ratio = timing_median(eager, n) / timing_median(candidate, n);
    for (int i = 0; i < n; i++) mean += log(eager[i] / candidate[i]) / n;
    for (int i = 0; i < n; i++) {
        double d = log(eager[i] / candidate[i]) - mean;
        square += d * d;
    }
    double half = n > 1 ? t975[n - 1] * sqrt(square / (n - 1) / n) : 0;
    r.low = fmin(exp(mean - half), r.ratio);
    r.high = fmax(exp(mean + half), r.ratio);
    return r;
}
