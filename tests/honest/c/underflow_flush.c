/* denormals are flushed to zero */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) {
        const float y = expf(-100 * x[i] * x[i]);
        out[i] = y < 1.17549435e-38f ? 0 : y;
    }
}
