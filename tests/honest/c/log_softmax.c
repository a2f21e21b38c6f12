/* float throughout */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * OUT_D1;
        float m = -INFINITY, sum = 0;
        for (long i = 0; i < X_D1; i++) m = fmaxf(m, a[i]);
        for (long i = 0; i < X_D1; i++) sum += expf(a[i] - m);
        const float shift = m + logf(sum);
        for (long i = 0; i < X_D1; i++) o[i] = a[i] - shift;
    }
}
