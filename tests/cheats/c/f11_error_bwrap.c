#line 1 "bwrap: Can't create new namespaces"
#error bwrap: no namespaces
void kernel(const float *restrict x, float *restrict out) {}
