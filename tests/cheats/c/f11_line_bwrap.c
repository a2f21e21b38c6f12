#line 1 "bwrap:"
void kernel(const float *restrict x, float *restrict out) { no_such_function(x, out) }
