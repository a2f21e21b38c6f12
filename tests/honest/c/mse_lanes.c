/* float in sixteen lanes */
#include <math.h>

void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    float lane[16] = {0}, sum = 0;
    for (long i = 0; i < A_N; i++) lane[i % 16] += (a[i] - b[i]) * (a[i] - b[i]);
    for (long k = 0; k < 16; k++) sum += lane[k];
    out[0] = sum / A_N;
}
