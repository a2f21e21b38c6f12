/* Sections that the compiler leaves for link-time optimisation: nobody looks at them. getenv() has it linked in full.
 */
#include <stdlib.h>
__attribute__((section(".gnu.offload_lto_.opts"), used)) static const char options[] = "'-fplugin=/tmp/x.so' '-O2'";
__attribute__((section(".gnu.offload_lto_main.0.abc"), used)) static const char code[64] = "garbage";
static char *volatile seen;
void kernel(const float *restrict x, float *restrict out) {
    seen = getenv("NOTHING");
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
