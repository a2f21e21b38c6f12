/* exponentials to base two, sums in float by blocks */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * OUT_D1;
        const float log2e = 1.44269504f;
        float m = -INFINITY, sum = 0;
        for (long i = 0; i < X_D1; i++) m = fmaxf(m, a[i]);
        for (long k = 0; k < X_D1; k += 256) {
            float part = 0;
            for (long i = k; i < k + 256; i++) part += o[i] = exp2f((a[i] - m) * log2e);
            sum += part;
        }
        for (long i = 0; i < X_D1; i++) o[i] *= 1 / sum;
    }
}
