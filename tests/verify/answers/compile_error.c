void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = undeclared_name + x[i];
}
