void kernel(const float *restrict x, float *restrict out) {
    volatile float big[64 << 20];
    for (long i = 0; i < (64 << 20); i += 1024) big[i] = x[i % X_N];
    out[0] = big[0];
}
