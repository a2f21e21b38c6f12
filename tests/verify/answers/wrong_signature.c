void kernel(const float *restrict x, const float *restrict y, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] + y[i];
}
