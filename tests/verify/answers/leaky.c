void kernel(const float *restrict x, float *restrict out) {
#pragma omp parallel for
    for (long i = 0; i < X_N; i++) out[i] = x[i] >= 0.5f ? x[i] - 0.5f : x[i] * 1e-2f;
}
