void kernel(const float *restrict x, float *restrict out) {}
