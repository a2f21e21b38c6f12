/* Threads are allowed, but only so many. */
struct t {
    long s, n;
};
int nanosleep(const struct t *, struct t *);
int pthread_create(unsigned long *, const void *, void *(*)(void *), void *);
static void *forever(void *arg) {
    struct t d = {1000, 0};
    for (;;) nanosleep(&d, 0);
    return arg;
}
void kernel(const float *restrict x, float *restrict out) {
    unsigned long id;
    for (int i = 0; i < 100000; i++)
        if (pthread_create(&id, 0, forever, 0) != 0) __builtin_trap();
    out[0] = x[0];
}
