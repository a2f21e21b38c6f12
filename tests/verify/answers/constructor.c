__attribute__((constructor)) static void before(void) {}
void kernel(const float *restrict x, float *restrict out) { out[0] = x[0]; }
