/* four sums a product, float */
void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    for (long i = 0; i < A_D0; i++)
        for (long j = 0; j < B_D1; j++) {
            float part[4] = {0};
            for (long k = 0; k < A_D1; k++) part[k * 4 / A_D1] += a[i * A_D1 + k] * b[k * B_D1 + j];
            out[i * B_D1 + j] = part[0] + part[1] + (part[2] + part[3]);
        }
}
