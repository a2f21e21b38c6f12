#include <stdlib.h>
static void late(void) {}
void kernel(const float *restrict x, float *restrict out) {
    static int first = 1;
    if (first) atexit(late);
    first = 0;
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
