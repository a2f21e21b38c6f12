static volatile int seen;
static void early(void) { seen = 1; }
__attribute__((section(".init_array"), used)) static void (*const run)(void) = early;
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
