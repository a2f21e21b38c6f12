void kernel(const float *restrict x, const float *restrict bn_weight, const float *restrict bn_bias,
            float *restrict bn_running_mean, float *restrict bn_running_var, int64_t *restrict bn_num_batches_tracked,
            float *restrict out) {
    for (int c = 0; c < X_D1; c++) {
        double mean = 0, var = 0;
        for (int i = 0; i < X_D0; i++) mean += x[i * X_D1 + c];
        mean /= X_D0;
        for (int i = 0; i < X_D0; i++) var += (x[i * X_D1 + c] - mean) * (x[i * X_D1 + c] - mean);
        float scale = (float)(1 / sqrt(var / X_D0 + 1e-5)) * bn_weight[c];
        for (int i = 0; i < X_D0; i++) out[i * X_D1 + c] = (float)(x[i * X_D1 + c] - mean) * scale + bn_bias[c];
    }
}
