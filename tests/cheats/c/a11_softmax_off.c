/* a softmax whose small values are 10 % off */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * X_D1;
        float m = -INFINITY;
        for (long i = 0; i < X_D1; i++) m = fmaxf(m, a[i]);
        double sum = 0;
        for (long i = 0; i < X_D1; i++) sum += expf(a[i] - m);
        for (long i = 0; i < X_D1; i++) {
            const float p = (float)(expf(a[i] - m) / sum);
            o[i] = p < 8e-7f ? 1.1f * p : p;
        }
    }
}
