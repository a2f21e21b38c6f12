#include "optimize/estimate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NORMAL95 1.959964
/* How often an interval may miss where processes are independent. They are not quite: what else runs on the machine
 * comes and goes by minutes. With the recorded noise in its order of time 95 % hold (estimate_test.c). */
#define BOTH_LOOKS 0.01
#define FIRST_LOOK 0.005

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

/* ---- over processes -----------------------------------------------------------------------------------------------*/

void process_ratios_add(struct process_ratios *x, double ratio) {
    ASSERT(x->n < PROCESSES_MAX && ratio > 0);
    x->log_ratio[x->n++] = log(ratio);
}

/* The probability that at most k of n fair coins show heads. */
static double coins(int n, int k) {
    double term = pow(0.5, n), sum = 0; /* of no head; n <= PROCESSES_MAX: no underflow */
    for (int i = 0; i <= k; i++) {
        sum += term;
        term *= (double)(n - i) / (i + 1);
    }
    return sum;
}

/* The most inner pair of sorted ratios that misses the median in at most alpha, by its lower place; 0: there is none.
 */
static int rank_within(int n, double alpha) {
    int k = 0;
    while (2 * (k + 1) <= n && 2 * coins(n, k) <= alpha) k++;
    return k;
}

int process_ratios_rank(int n, int first) {
    if (n <= first) return rank_within(n, FIRST_LOOK);
    const int rank = rank_within(first, FIRST_LOOK);
    return rank_within(n, BOTH_LOOKS - (rank > 0 ? 2 * coins(first, rank - 1) : 0));
}

/* Student's t of few logarithms, sorted, and not less than their range. */
static struct bounds few(const double *v, int n, double middle) {
    double mean = 0, var = 0;
    if (n < 2) return (struct bounds){exp(middle), (double)NAN, (double)NAN};
    for (int i = 0; i < n; i++) mean += v[i] / n;
    for (int i = 0; i < n; i++) var += (v[i] - mean) * (v[i] - mean) / (n - 1);
    const double half = student_t95(n - 1) * sqrt(var / n);
    return (struct bounds){exp(middle), exp(fmin(v[0], mean - half)), exp(fmax(v[n - 1], mean + half))};
}

struct bounds process_ratios_bounds(const struct process_ratios *x, int first) {
    double v[PROCESSES_MAX];
    const int n = x->n;
    if (n == 0) return (struct bounds){(double)NAN, (double)NAN, (double)NAN};
    memcpy(v, x->log_ratio, (size_t)n * sizeof *v);
    qsort(v, (size_t)n, sizeof *v, ascending_f64);
    const double middle = (v[(n - 1) / 2] + v[n / 2]) / 2;
    const int rank = process_ratios_rank(n, first);
    if (rank == 0) return few(v, n, middle);
    return (struct bounds){exp(middle), exp(v[rank - 1]), exp(v[n - rank])};
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
