#line 1 "bwrap: setting up uid map"
#pragma message "bwrap: permission denied"
#warning bwrap: permission denied
void kernel(const float *restrict x, float *restrict out) { undeclared = 1; }
