#include <stdlib.h>
void kernel(const float *restrict x, float *restrict out) {
    for (;;) {
        volatile char *p = malloc(64 << 20);
        p[0] = 1;
        out[0] = x[0];
    }
}
