#include <stdlib.h>
void kernel(const float *restrict x, float *restrict out) {
    volatile char *p = malloc((size_t)64 << 30);
    for (size_t i = 0; i < (size_t)64 << 30; i += 4096) p[i] = 1;
    out[0] = x[0] + p[5];
}
