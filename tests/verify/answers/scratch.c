size_t scratch_bytes(void) { return X_N * sizeof(float); }
void kernel(const float *restrict x, float *restrict out, void *scratch) {
    float *t = scratch;
    for (long i = 0; i < X_N; i++) t[i] = x[i] - 0.5f;
    for (long i = 0; i < X_N; i++) out[i] = t[i] > 0 ? t[i] : 0;
}
