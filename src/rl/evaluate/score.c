#include "rl/evaluate/score.h"

#include <math.h>

double score_fast_p(const struct scored *s, size_t n, double p) {
    size_t fast = 0;
    for (size_t i = 0; i < n; i++) fast += s[i].correct && s[i].speedup > p;
    return n ? (double)fast / (double)n : (double)NAN;
}

double score_geomean(const struct scored *s, size_t n) {
    double sum = 0;
    size_t timed = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i].correct && s[i].speedup > 0) {
            sum += log(s[i].speedup);
            timed++;
        }
    return timed ? exp(sum / (double)timed) : (double)NAN;
}

double score_pass_at_k(size_t n, size_t c, size_t k) {
    double fail = 1;
    if (n - c < k) return 1;
    for (size_t i = n - c + 1; i <= n; i++) fail *= 1 - (double)k / (double)i;
    return 1 - fail;
}
