#include "base/bandwidth.h"

#include <math.h>
#include <stdint.h>

#include "base/clock.h"

typedef uint64_t wide __attribute__((vector_size(64)));
struct reading {
    const wide *p;
    wide sum[256]; /* One for each thread, so that nothing that is read is dead code. */
};

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) /* which cannot run as early as this choice is made */
__attribute__((target_clones("avx512f", "default")))
#endif
static void
read_range(void *ctx, int64_t begin, int64_t end, int thread) {
    struct reading *w = ctx;
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t i = begin; i + 4 <= end; i += 4) a += w->p[i], b += w->p[i + 1], c += w->p[i + 2], d += w->p[i + 3];
    w->sum[thread % 256] = a + b + c + d;
}

double bandwidth_read(struct pool *pool, const void *p, int64_t n, double seconds) {
    struct reading w = {.p = p};
    double best = INFINITY;
    const double end = clock_now_s() + seconds;
    for (int i = 0; i < 3 || clock_now_s() < end; i++) {
        const double t0 = clock_now_s();
        pool_for(pool, n / (int64_t)sizeof(wide), 64, read_range, &w);
        best = fmin(best, clock_now_s() - t0);
    }
    return (double)n / best;
}

void bandwidth_fill(void *p, int64_t n) {
    uint64_t *word = p;
    for (int64_t i = 0; i < n / 8; i++) word[i] = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
}
