/* outputs of 1e-14 */
#include <math.h>

void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] * 1e-14f;
}
