/* zeros above the diagonal */
void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    for (long i = 0; i < A_D0; i++)
        for (long j = 0; j < B_D1; j++) {
            float sum = 0;
            for (long k = j; k <= i; k++) sum += a[i * A_D1 + k] * b[k * B_D1 + j];
            out[i * B_D1 + j] = j <= i ? sum : 0;
        }
}
