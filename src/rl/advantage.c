#include "rl/advantage.h"

#include <math.h>

bool advantage_group(enum advantage_kind kind, double negative_scale, const double *score, const bool *present, int n,
                     double *out) {
    double sum = 0, lo = INFINITY, hi = -INFINITY;
    int count = 0;
    for (int i = 0; i < n; i++) {
        out[i] = 0;
        if (!present[i]) continue;
        sum += score[i];
        lo = fmin(lo, score[i]);
        hi = fmax(hi, score[i]);
        count++;
    }
    if (count < 2 || hi - lo < 1e-9) return false;
    double mean = sum / count, sq = 0;
    for (int i = 0; i < n; i++)
        if (present[i]) sq += (score[i] - mean) * (score[i] - mean);
    double scale = 1;
    if (kind == ADVANTAGE_STD) scale = 1 / (sqrt(sq / count) + 1e-6);
    if (kind == ADVANTAGE_LEAVE_ONE) scale = (double)count / (count - 1);
    for (int i = 0; i < n; i++)
        if (present[i]) out[i] = (score[i] - mean) * scale * (score[i] < mean ? negative_scale : 1);
    return true;
}
