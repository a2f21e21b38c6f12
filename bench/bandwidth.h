/* The rate at which all threads of a pool read memory: the limit of whatever streams weights. For the programs in
 * bench/. */
#ifndef KERNELRL_BENCH_BANDWIDTH_H
#define KERNELRL_BENCH_BANDWIDTH_H

#include "base/clock.h"
#include "base/pool.h"

typedef uint64_t read_wide __attribute__((vector_size(64)));
struct read_work {
    const read_wide *p;
    read_wide sum[256]; /* by thread, so that nothing read is dead */
};

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "default")))
#endif
static void
read_range(void *ctx, int64_t begin, int64_t end, int thread) {
    struct read_work *w = ctx;
    read_wide a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t i = begin; i + 4 <= end; i += 4) a += w->p[i], b += w->p[i + 1], c += w->p[i + 2], d += w->p[i + 3];
    w->sum[thread] = a + b + c + d;
}

/* Bytes a second, best of what fits into `seconds` (three times at least). p is 64-byte aligned. */
static double read_bandwidth(struct pool *pool, const void *p, int64_t bytes, double seconds) {
    static struct read_work w;
    w.p = p;
    double best = 1e9;
    const double end = clock_now_s() + seconds;
    for (int i = 0; i < 3 || clock_now_s() < end; i++) {
        const double t0 = clock_now_s();
        pool_for(pool, bytes / 64, 64, read_range, &w);
        const double t = clock_now_s() - t0;
        best = t < best ? t : best;
    }
    return (double)bytes / best;
}

#endif
