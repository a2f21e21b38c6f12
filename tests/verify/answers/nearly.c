/* One element in a quarter of a million is off by a hundredth. */
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
    out[123457] += 0.01f;
}
