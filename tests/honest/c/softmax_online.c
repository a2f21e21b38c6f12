/* the largest and the sum in one pass */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * OUT_D1;
        float m = -INFINITY, sum = 0;
        for (long i = 0; i < X_D1; i++) {
            const float before = m;
            m = fmaxf(m, a[i]);
            sum = sum * expf(before - m) + expf(a[i] - m);
        }
        for (long i = 0; i < X_D1; i++) o[i] = expf(a[i] - m) / sum;
    }
}
