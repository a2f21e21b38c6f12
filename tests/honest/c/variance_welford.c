/* one pass by Welford's recurrence */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float mean = 0, squares = 0;
        for (long i = 0; i < X_D1; i++) {
            const float v = a[i] + 20, d = v - mean;
            mean += d / (float)(i + 1);
            squares += d * (v - mean);
        }
        out[r] = squares / (X_D1 - 1);
    }
}
