/* matmul: rates of linear and its gradients against oneDNN on the same shapes, interleaved, best of several runs each.
 * Usage: build/bench/matmul [--json FILE] [seconds-per-shape [f32|bf16]]. oneDNN is a rival here, never a dependency of
 * the product. FILE gets a line for each product and program, with the keys of `kernelrl bench`.
 *  - f32: GFLOP/s beside dnnl_sgemm.
 *  - bf16: the products of Qwen2.5-0.5B beside oneDNN's matmul primitive with weights in the layout it prefers. Ours
 *    also rounds its float32 input, oneDNN is given bf16. `limit` is the time no program can beat, the larger of
 *    bytes / bandwidth and flops / rate; both are measured here: a read of a buffer as large as the weights, and the
 *    best rate of either library at 2048 rows. */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bandwidth.h"
#include "base/clock.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "tensor/backend.h"

static FILE *json; /* or NULL */

static void report(const struct backend *be, const char *dtype, const char *op, const char *program, int64_t M,
                   int64_t N, int64_t K, double seconds) {
    if (!json || seconds >= 1e9) return; /* not measured */
    fprintf(json,
            "{\"bench\":\"matmul\",\"program\":\"%s\",\"dtype\":\"%s\",\"device\":\"%s\",\"threads\":%d,"
            "\"op\":\"%s\",\"rows\":%lld,\"outputs\":%lld,\"inputs\":%lld,\"gflops_per_s\":%.2f,\"low_ms\":%.6f}\n",
            program, dtype, be->name, pool_threads(be->pool), op, (long long)M, (long long)N, (long long)K,
            2e-9 * (double)(M * N) * (double)K / seconds, seconds * 1e3);
}

static void report_all(const struct backend *be, const char *dtype, int64_t M, int64_t N, int64_t K,
                       const double seconds[4]) {
    static const char *const op[] = {"forward", "forward", "dx", "dw"};
    for (int i = 0; i < 4; i++) report(be, dtype, op[i], i == 1 ? "oneDNN" : "kernelrl", M, N, K, seconds[i]);
}

static void fill(float *p, int64_t n, uint64_t stream) {
    struct rng r = rng_make(1, stream);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(rng_next_f64(&r) - 0.5);
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

static void bench_f32(struct backend *be, double seconds) {
    static const int64_t rows[] = {1, 8, 64, 512, 2048};
    static const int64_t shape[][2] = {{256, 256}, {768, 256}, {256, 768}, {1024, 1024}, {2048, 256}, {2048, 2048}};
    printf("%s, %d threads, f32; GFLOP/s\n%6s %6s %6s %9s %9s %7s %9s %9s\n", be->name, pool_threads(be->pool), "M",
           "N", "K", "linear", "oneDNN", "ratio", "dX", "dW");
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
            report_all(be, "f32", M, N, K, best);
            free(x);
            free(y);
        }
        be->weight_free(be, &wt);
        free(w);
        free(dw);
    }
}

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

#define DNNL(x)                                                                                            \
    do {                                                                                                   \
        const dnnl_status_t s_ = (x);                                                                      \
        if (s_ != dnnl_success) fprintf(stderr, "bench/matmul: oneDNN: status %d: " #x "\n", s_), exit(1); \
    } while (0)

struct rival {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_t x, w, y;
    dnnl_primitive_t matmul;
};

static dnnl_memory_t plain_memory(struct rival *r, int64_t rows, int64_t cols, dnnl_data_type_t type,
                                  dnnl_memory_desc_t *d) {
    const dnnl_dims_t dims = {rows, cols};
    DNNL(dnnl_memory_desc_init_by_tag(d, 2, dims, type, dnnl_ab));
    dnnl_memory_t m;
    DNNL(dnnl_memory_create(&m, d, r->engine, DNNL_MEMORY_ALLOCATE));
    return m;
}

static void run_primitive(struct rival *r, dnnl_primitive_t p, int n, const dnnl_exec_arg_t *args) {
    DNNL(dnnl_primitive_execute(p, r->stream, n, args));
    DNNL(dnnl_stream_wait(r->stream));
}

/* w_t: [K,N] bf16 weights, copied into the layout the primitive asks for. */
static void rival_open(struct rival *r, int64_t M, int64_t N, int64_t K, const uint16_t *w_t) {
    dnnl_memory_desc_t xd, yd, wd, plain;
    r->x = plain_memory(r, M, K, dnnl_bf16, &xd);
    r->y = plain_memory(r, M, N, dnnl_f32, &yd);
    const dnnl_dims_t dims = {K, N};
    DNNL(dnnl_memory_desc_init_by_tag(&wd, 2, dims, dnnl_bf16, dnnl_format_tag_any));
    dnnl_matmul_desc_t desc;
    DNNL(dnnl_matmul_desc_init(&desc, &xd, &wd, NULL, &yd));
    dnnl_primitive_desc_t pd;
    DNNL(dnnl_primitive_desc_create(&pd, &desc, NULL, r->engine, NULL));
    const dnnl_memory_desc_t *packed = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    DNNL(dnnl_memory_create(&r->w, packed, r->engine, DNNL_MEMORY_ALLOCATE));
    dnnl_memory_t src = plain_memory(r, K, N, dnnl_bf16, &plain);
    void *p;
    DNNL(dnnl_memory_get_data_handle(src, &p));
    memcpy(p, w_t, (size_t)(K * N) * 2);
    DNNL(dnnl_memory_get_data_handle(r->x, &p));
    memset(p, 0x3e, (size_t)(M * K) * 2); /* 0.186 everywhere */
    dnnl_primitive_desc_t rd;
    DNNL(dnnl_reorder_primitive_desc_create(&rd, &plain, r->engine, packed, r->engine, NULL));
    dnnl_primitive_t reorder;
    DNNL(dnnl_primitive_create(&reorder, rd));
    run_primitive(r, reorder, 2, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, src}, {DNNL_ARG_TO, r->w}});
    DNNL(dnnl_primitive_create(&r->matmul, pd));
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(rd);
    dnnl_primitive_desc_destroy(pd);
    dnnl_memory_destroy(src);
}

static void rival_run(struct rival *r) {
    run_primitive(r, r->matmul, 3,
                  (dnnl_exec_arg_t[]){{DNNL_ARG_SRC, r->x}, {DNNL_ARG_WEIGHTS, r->w}, {DNNL_ARG_DST, r->y}});
}

static void rival_close(struct rival *r) {
    dnnl_primitive_destroy(r->matmul);
    dnnl_memory_destroy(r->x);
    dnnl_memory_destroy(r->w);
    dnnl_memory_destroy(r->y);
}

static void bench_bf16(struct backend *be, double seconds) {
    static const int64_t rows[] = {2048, 512, 64, 16, 8, 1};
    static const int64_t shape[][2] = {{4864, 896}, {896, 896}, {896, 4864}, {151936, 896}};
    struct rival r;
    DNNL(dnnl_engine_create(&r.engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&r.stream, r.engine, dnnl_stream_default_flags));
    printf("%s, %d threads, bf16; GFLOP/s\n%6s %6s %6s %8s %8s %7s %8s %8s %8s %8s %8s\n", be->name,
           pool_threads(be->pool), "M", "N", "K", "linear", "oneDNN", "ratio", "GB/s", "of limit", "oneDNN's", "dX",
           "dW");
    double rate = 0;
    for (size_t s = 0; s < ARRAY_LEN(shape); s++) {
        const int64_t N = shape[s][0], K = shape[s][1];
        struct weight wt = {.N = N, .K = K, .dt = DT_BF16};
        uint16_t *w = xmalloc((size_t)(N * K) * 2);
        struct rng g = rng_make(3, s);
        for (int64_t i = 0; i < N * K; i++) w[i] = (uint16_t)(0x3c00 | (rng_next(&g) & 0x81ff));
        be->weight_put(be, &wt, 0, N, w);
        const double bytes_w = 2.0 * (double)N * (double)K;
        const double gbs = bandwidth_read(be->pool, wt.packed, N * K * 2, 4 * seconds);
        printf("weights %lld x %lld: %.1f MB, read at %.1f GB/s\n", (long long)N, (long long)K, bytes_w * 1e-6,
               gbs * 1e-9);
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            const int64_t M = rows[i];
            if (M * N > 1 << 28) continue; /* a gigabyte of logits: nobody makes so many at once */
            float *x = xaligned((size_t)(M * K) * 4), *y = xaligned((size_t)(M * N) * 4), *dw = NULL;
            fill(x, M * K, 2);
            if (N < 100000) dw = xaligned((size_t)(N * K) * 4);
            rival_open(&r, M, N, K, w);
            const double flop = 2.0 * (double)M * (double)N * (double)K;
            double best[4] = {1e9, 1e9, 1e9, 1e9}, end = clock_now_s() + seconds;
            for (int round = 0; round < 3 || clock_now_s() < end; round++)
                for (int which = 0; which < 4; which++) {
                    if (which >= 2 && M < 64) continue;
                    if (which == 3 && !dw) continue;
                    const int reps = flop < 1e8 ? 10 : 1;
                    struct tensor yt = tensor_full(y, M, N), xt = tensor_full(x, M, K);
                    double t0 = clock_now_s();
                    for (int k = 0; k < reps; k++) {
                        if (which == 0) be->linear(be, yt, xt, &wt, NULL, false);
                        if (which == 1) rival_run(&r);
                        if (which == 2) be->linear_dx(be, xt, yt, &wt, false);
                        if (which == 3) be->linear_dw(be, dw, yt, xt, DT_BF16);
                    }
                    const double t = (clock_now_s() - t0) / reps;
                    if (t < best[which]) best[which] = t;
                    if (which == 2) fill(x, M * K, 2);
                }
            for (int k = 0; k < 2; k++) rate = flop / best[k] > rate ? flop / best[k] : rate;
            const double bytes = bytes_w + 4.0 * (double)M * (double)(N + K);
            const double limit = bytes / gbs > flop / rate ? bytes / gbs : flop / rate;
            printf("%6lld %6lld %6lld %8.1f %8.1f %7.2f %8.1f %8.2f %8.2f", (long long)M, (long long)N, (long long)K,
                   flop / best[0] * 1e-9, flop / best[1] * 1e-9, best[1] / best[0], bytes / best[0] * 1e-9,
                   limit / best[0], limit / best[1]);
            for (int k = 2; k < 4; k++)
                if (best[k] < 1e9) printf(" %8.1f", flop / best[k] * 1e-9);
            printf("\n");
            fflush(stdout);
            report_all(be, "bf16", M, N, K, best);
            rival_close(&r);
            free(x);
            free(y);
            free(dw);
        }
        be->weight_free(be, &wt);
        free(w);
    }
    dnnl_stream_destroy(r.stream);
    dnnl_engine_destroy(r.engine);
}

int main(int argc, char **argv) {
    /* OpenMP threads would otherwise spin between calls and take the cores from ours. Read when the library loads. */
    if (!getenv("OMP_WAIT_POLICY")) {
        setenv("OMP_WAIT_POLICY", "passive", 1);
        execv("/proc/self/exe", argv);
    }
    if (argc > 2 && strcmp(argv[1], "--json") == 0) {
        json = fopen(argv[2], "a");
        if (!json) return fprintf(stderr, "bench/matmul: %s: cannot be written\n", argv[2]), 1;
        argc -= 2;
        argv += 2;
    }
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 0.1;
    const char *only = argc > 2 ? argv[2] : "";
    struct err e;
    struct backend *be;
    struct pool *pool = pool_create(0);
    if (cpu_backend_open(pool, &be, &e) != ST_OK) return fprintf(stderr, "%s\n", e.msg), 1;
    omp_set_num_threads(pool_threads(pool));
    if (strcmp(only, "bf16") != 0) bench_f32(be, seconds);
    if (strcmp(only, "f32") != 0) bench_bf16(be, seconds);
    be->close(be);
    pool_destroy(pool);
    if (json && fclose(json) != 0) return fprintf(stderr, "bench/matmul: the lines could not be written\n"), 1;
    return 0;
}
