/* An object of 8 GB: the compiler, the assembler or the file's limit ends it. */
static float table[2000000000u] = {[1999999999u] = 1};
void kernel(const float *restrict x, float *restrict out) {
    for (long i = 0; i < OUT_N; i++) out[i] = x[i] + table[i];
}
