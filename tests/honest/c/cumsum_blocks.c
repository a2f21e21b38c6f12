/* a scan by blocks of 64, float */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * OUT_D1;
        float carry = 0;
        for (long k = 0; k < X_D1; k += 64) {
            float part = 0;
            for (long i = k; i < k + 64; i++) o[i] = carry + (part += a[i]);
            carry += part;
        }
    }
}
