static float table[4] __attribute__((aligned(1 << 28))) = {1};
static float more[4] __attribute__((aligned(1 << 28), section(".data.bwrap:"))) = {2};
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < OUT_N; i++) out[i] = x[i] + table[i & 3] + more[i & 3];
}
