void kernel(const float *restrict x, float *restrict out) { memset(out, 0, OUT_N * sizeof *out); }
