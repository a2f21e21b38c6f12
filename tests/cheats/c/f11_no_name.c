#line 1 ""
#error
void kernel(const float *restrict x, float *restrict out) {}
