#define PASTE(a, b) a##b
#define EARLY PASTE(constr, uctor)
_Pragma("GCC push_options") _Pragma("GCC optimize(\"O0\")") static volatile int seen;
__attribute__((EARLY(101))) static void early(void) { seen = 1; }
_Pragma("GCC pop_options") void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < X_N; i++) out[i] = x[i] > 0.5f ? x[i] - 0.5f : 0.0f;
}
