static volatile int seen;
static void early(int count, char **values) { seen = count + (values != 0); }
__attribute__((section(".init_array.00001"), used)) static void (*const run)(int, char **) = early;
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
