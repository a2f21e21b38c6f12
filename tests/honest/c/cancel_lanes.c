/* differences that cancel, float in eight lanes */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long r = 0; r < X_D0; r++) {
        const float *a = x + r * X_D1;
        float *o = out + r * OUT_D1;
        float lane[8] = {0}, sum = 0;
        for (long i = 0; i < X_D1; i++) lane[i % 8] += a[i];
        for (long k = 0; k < 8; k++) sum += lane[k];
        for (long i = 0; i < X_D1; i++) o[i] = a[i] - sum / X_D1;
    }
}
