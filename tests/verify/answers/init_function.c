/* The linker takes a function of this name for what the loader is to call. */
static volatile int seen;
void _init(void) { seen = 1; }
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
