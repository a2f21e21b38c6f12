/* sums in double */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * OUT_D1;
        double sum = 0;
        for (long i = 0; i < X_D1; i++) sum += (double)a[i] * a[i];
        for (long i = 0; i < X_D1; i++) o[i] = a[i] / sqrtf((float)(sum / X_D1 + 1e-6));
    }
}
