/* Threads are allowed, but only so many. */
int pthread_create(unsigned long *, const void *, void *(*)(void *), void *);
static void *forever(void *arg) {
    for (;;) {}
    return arg;
}
void kernel(const float *restrict x, float *restrict out) {
    unsigned long id;
    for (int i = 0; i < 100000; i++)
        if (pthread_create(&id, 0, forever, 0) != 0) __builtin_trap();
    out[0] = x[0];
}
