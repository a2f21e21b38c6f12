/* a mean that cancels, float in sixteen lanes */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    float lane[16] = {0}, sum = 0;
    for (long i = 0; i < X_N; i++) lane[i % 16] += x[i];
    for (long k = 0; k < 16; k++) sum += lane[k];
    out[0] = sum / X_N;
}
