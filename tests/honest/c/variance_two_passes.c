/* the mean first, float */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float sum = 0, squares = 0;
        for (long i = 0; i < X_D1; i++) sum += a[i] + 20;
        const float mean = sum / X_D1;
        for (long i = 0; i < X_D1; i++) squares += (a[i] + 20 - mean) * (a[i] + 20 - mean);
        out[r] = squares / (X_D1 - 1);
    }
}
