/* clang-format off */
/* The name of a header may hold what looks like the beginning of a comment. */
#define HAS __has_##include
#if HAS(<a/*b>) || 1
#endif
static int volatile seen;
__attribute__((constructor)) static void early(void) { seen = 1; }
/* */
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
