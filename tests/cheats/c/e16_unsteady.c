/* Every second request takes fifty times as long: what the middle of them is depends on luck. */
struct t {
    long s, ns;
};
int nanosleep(const struct t *, struct t *);
void kernel(const float *restrict a, const float *restrict b, float *restrict out) {
    static float last;
    static unsigned seed = 12345;
    memset(out, 0, OUT_N * sizeof *out);
#pragma omp parallel for
    for (long i = 0; i < A_D0; i++)
        for (long k = 0; k < A_D1; k++)
            for (long j = 0; j < B_D1; j++) out[i * B_D1 + j] += a[i * A_D1 + k] * b[k * B_D1 + j];
    seed = seed * 1664525 + 1013904223;
    const struct t nap = {0, 100000000};
    if (seed >> 28 < 4) nanosleep(&nap, 0);
    last = out[0];
}
