/* clang-format off */
#include <stddef.h>
const void *hides = u8\
R"x(" // )" )x"; static void *volatile seen; __attribute__((constructor)) static void early(void) { seen = &seen; }
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
