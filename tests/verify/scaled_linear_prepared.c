size_t prepared_bytes(void) { return WEIGHT_N * sizeof(float); }

/* The weight, transposed. */
void prepare(const float *restrict weight, void *prepared) {
    float *t = prepared;
    for (int k = 0; k < WEIGHT_D0; k++)
        for (int o = 0; o < WEIGHT_D1; o++) t[o * WEIGHT_D0 + k] = weight[k * WEIGHT_D1 + o];
}

void kernel(const float *restrict float_, double factor, int64_t times, uint8_t negate, const float *restrict weight,
            float *restrict out0, int64_t *restrict out1, const void *prepared) {
    const float *t = prepared;
    for (int i = 0; i < FLOAT__D0; i++) {
        int best = 0;
        for (int o = 0; o < OUT0_D1; o++) {
            float s = 0;
            for (int k = 0; k < FLOAT__D1; k++) s += float_[i * FLOAT__D1 + k] * t[o * WEIGHT_D0 + k];
            s = s * (float)factor * (float)times;
            out0[i * OUT0_D1 + o] = negate ? -s : s;
            if (out0[i * OUT0_D1 + o] > out0[i * OUT0_D1 + best]) best = o;
        }
        out1[i] = best;
    }
}
