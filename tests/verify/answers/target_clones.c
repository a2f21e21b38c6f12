/* Versions for several processors: resolvers run when it is loaded, nothing else does. */
__attribute__((target_clones("default", "avx2", "avx512f"))) static void relu(const float *x, float *out, long n) {
    for (long i = 0; i < n; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
void kernel(const float *restrict x, float *restrict out) {
    if (__builtin_cpu_supports("sse2")) relu(x, out, X_N);
}
