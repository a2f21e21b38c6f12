/* by erff */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
}
