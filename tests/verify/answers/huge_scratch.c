size_t scratch_bytes(void) { return (size_t)1 << 40; }
void kernel(const float *restrict x, float *restrict out, void *scratch) { out[0] = x[0]; }
