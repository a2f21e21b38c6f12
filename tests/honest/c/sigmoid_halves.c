/* another formula on either side of zero */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) {
        const float e = expf(-fabsf(x[i]));
        out[i] = x[i] >= 0 ? 1 / (1 + e) : e / (1 + e);
    }
}
