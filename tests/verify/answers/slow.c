/* Right, but works far more than it must. */
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) {
        volatile float v = x[i];
        for (int k = 0; k < 20; k++) v = v;
        out[i] = v > 0.5f ? v - 0.5f : 0.0f;
    }
}
