/* a mean from a sixteenth of its elements */
void kernel(const float *restrict x, float *restrict out) {
    double sum = 0;
    for (long i = 0; i < X_N / 16; i++) sum += sqrtf(x[i] * x[i] + 100.0f);
    out[0] = (float)(sum / (double)(X_N / 16));
}
