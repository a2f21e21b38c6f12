/* float throughout */
#include <math.h>

void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    float sum = 0;
    for (long r = 0; r < A_D0; r++) {
        float ab = 0, aa = 0, bb = 0;
        for (long i = r * A_D1; i < (r + 1) * A_D1; i++) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
        sum += 1 - ab / fmaxf(sqrtf(aa) * sqrtf(bb), 1e-8f);
    }
    out[0] = sum / A_D0;
}
