static float table[1l << 32] = {1};
void kernel(const float *restrict x, float *restrict out) { out[0] = table[(long)x[0]]; }
