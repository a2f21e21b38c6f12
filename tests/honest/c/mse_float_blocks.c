/* float by blocks of a row */
#include <math.h>

void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    float sum = 0;
    for (long r = 0; r < A_D0; r++) {
        float part = 0;
        for (long i = r * A_D1; i < (r + 1) * A_D1; i++) part += (a[i] - b[i]) * (a[i] - b[i]);
        sum += part;
    }
    out[0] = sum / A_N;
}
