/* matmul: f32 rate of linear against oneDNN's sgemm on the same shapes, interleaved, best of several runs each.
 * Usage: build/bench/matmul [seconds-per-shape]. oneDNN is a rival here, never a dependency of the product. */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tensor/backend.h"

static void fill(float *p, int64_t n, uint64_t stream) {
    struct rng r = rng_make(1, stream);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(rng_next_f64(&r) - 0.5);
}

int main(int argc, char **argv) {
    /* OpenMP threads would otherwise spin between calls and take the cores from ours. Read when the library loads. */
    if (!getenv("OMP_WAIT_POLICY")) {
        setenv("OMP_WAIT_POLICY", "passive", 1);
        execv("/proc/self/exe", argv);
    }
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 0.1;
    struct err e;
    struct backend *be;
    struct pool *pool = pool_create(0);
    if (cpu_backend_open(pool, &be, &e) != ST_OK) return fprintf(stderr, "%s\n", e.msg), 1;
    omp_set_num_threads(pool_threads(pool));
    static const int64_t rows[] = {1, 8, 64, 512, 2048};
    static const int64_t shape[][2] = {{256, 256}, {768, 256}, {256, 768}, {1024, 1024}, {2048, 256}, {2048, 2048}};
    printf("%s, %d threads; GFLOP/s\n%6s %6s %6s %9s %9s %7s %9s %9s\n", be->name, pool_threads(pool), "M", "N", "K",
           "linear", "oneDNN", "ratio", "dX", "dW");
    for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
        const int64_t N = shape[s][0], K = shape[s][1];
        float *w = xaligned((size_t)(N * K) * 4), *dw = xaligned((size_t)(N * K) * 4);
        fill(w, N * K, 1);
        struct weight wt = {.w = w, .N = N, .K = K};
        be->weight_pack(be, &wt);
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            const int64_t M = rows[i];
            float *x = xaligned((size_t)(M * K) * 4), *y = xaligned((size_t)(M * N) * 4);
            fill(x, M * K, 2);
            const double flop = 2.0 * (double)M * (double)N * (double)K;
            double best[4] = {1e9, 1e9, 1e9, 1e9}, end = clock_now_s() + seconds;
            while (clock_now_s() < end) {
                for (int which = 0; which < 4; which++) {
                    const int reps = flop < 1e8 ? 10 : 1;
                    double t0 = clock_now_s();
                    for (int r = 0; r < reps; r++) {
                        struct tensor yt = tensor_full(y, M, N), xt = tensor_full(x, M, K);
                        if (which == 0) be->linear(be, yt, xt, &wt, NULL, false);
                        if (which == 1) dnnl_sgemm('N', 'T', M, N, K, 1.0f, x, K, w, K, 0.0f, y, N);
                        if (which == 2) be->linear_dx(be, xt, yt, &wt, false);
                        if (which == 3) be->linear_dw(be, dw, yt, xt, DT_F32);
                    }
                    double t = (clock_now_s() - t0) / reps;
                    if (t < best[which]) best[which] = t;
                    if (which == 2) fill(x, M * K, 2); /* dX overwrote x */
                }
            }
            printf("%6lld %6lld %6lld %9.1f %9.1f %7.2f %9.1f %9.1f\n", (long long)M, (long long)N, (long long)K,
                   flop / best[0] * 1e-9, flop / best[1] * 1e-9, best[1] / best[0], flop / best[2] * 1e-9,
                   flop / best[3] * 1e-9);
            free(x);
            free(y);
        }
        be->weight_free(be, &wt);
        free(w);
        free(dw);
    }
    be->close(be);
    pool_destroy(pool);
    return 0;
}
