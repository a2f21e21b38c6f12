#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/clock.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "cpu/bf16_pairs.h"
#include "io/json.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static double bandwidth(struct bench *b) {
    const int64_t n = 256 << 20; /* far more than a cache holds */
    void *p = packed_alloc((size_t)n);
    bandwidth_fill(p, n);
    const double rate = bandwidth_read(b->pool, p, n, 0.3);
    free(p);
    return rate;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

enum { PERIOD = 65521 }; /* numbers drawn; then they repeat, and as a prime at other places of each row */

enum status bench_random(struct backend *be, int64_t n, uint64_t stream, float **out, struct err *e) {
    *out = be->mem_alloc(be, (size_t)n * sizeof(float));
    if (!*out) return FAIL(e, ST_MEMORY, "%.3f GB of device memory for random numbers", (double)n * 4e-9);
    CLEANUP_FREE float *host = xmalloc((size_t)n * sizeof *host);
    struct rng r = rng_make(2, stream);
    for (int64_t i = 0; i < n; i++) host[i] = i < PERIOD ? (float)(rng_next_f64(&r) - 0.5) : host[i - PERIOD];
    be->mem_put(be, *out, host, (size_t)n * sizeof *host);
    return be->sync(be, e);
}

enum status bench_weight(struct backend *be, int64_t N, int64_t K, enum dtype dt, struct weight *w, float **master,
                         struct err *e) {
    *w = (struct weight){.N = N, .K = K, .dt = dt};
    *master = NULL;
    if (dt == DT_BF16) {
        CLEANUP_FREE uint16_t *bits = xmalloc((size_t)(N * K) * sizeof *bits);
        struct rng r = rng_make(3, (uint64_t)N);
        for (int64_t i = 0; i < N * K; i++) /* of both signs, about a hundredth */
            bits[i] = i < PERIOD ? (uint16_t)(0x3c00 | (rng_next(&r) & 0x81ff)) : bits[i - PERIOD];
        be->weight_put(be, w, 0, N, bits);
        return be->sync(be, e);
    }
    TRY(bench_random(be, N * K, 3, master, e));
    w->w = *master;
    be->weight_pack(be, w);
    return be->sync(be, e);
}

static enum status product_rate(struct backend *be, int64_t N, int64_t K, enum dtype dt, double *flop_s,
                                struct err *e) {
    const int64_t T = 2048;
    struct weight w = {0};
    float *master = NULL, *x = NULL, *y = NULL;
    enum status st;
    TRY_GOTO(bench_weight(be, N, K, dt, &w, &master, e), out);
    TRY_GOTO(bench_random(be, T * K, 4, &x, e), out);
    TRY_GOTO(bench_random(be, T * N, 5, &y, e), out);
    for (int i = 0; i < 5; i++) {
        const double t0 = clock_now_s();
        be->linear(be, tensor_full(y, T, N), tensor_full(x, T, K), &w, NULL, false);
        TRY_GOTO(be->sync(be, e), out);
        const double rate = 2.0 * (double)T * (double)N * (double)K / (clock_now_s() - t0);
        if (rate > *flop_s) *flop_s = rate;
    }
out:
    be->weight_free(be, &w);
    be->mem_free(be, master);
    be->mem_free(be, x);
    be->mem_free(be, y);
    return st;
}

/* n random numbers of type dt in device memory, drawn once and then doubled by copies. */
static enum status device_random(struct backend *be, int64_t n, enum dtype dt, void **out, struct err *e) {
    const int64_t bytes = n * (int64_t)dtype_bytes(dt);
    *out = be->mem_alloc(be, (size_t)bytes);
    if (!*out) return FAIL(e, ST_MEMORY, "%.3f GB of device memory for random numbers", (double)bytes * 1e-9);
    CLEANUP_FREE uint32_t *host = xmalloc(PERIOD * sizeof *host);
    struct rng r = rng_make(7, 1);
    for (int i = 0; i < PERIOD; i++) /* about a hundredth, of both signs, as a float or as two of bfloat16 */
        host[i] = 0x3c003c00u | ((uint32_t)rng_next(&r) & 0x81ff81ffu);
    int64_t have = i64_min(bytes, (int64_t)(PERIOD * sizeof *host));
    be->mem_put(be, *out, host, (size_t)have);
    for (; have < bytes; have *= 2) be->mem_copy(be, (char *)*out + have, *out, (size_t)i64_min(have, bytes - have));
    return be->sync(be, e);
}

/* A device is faster than calls to it: several in a row are timed, and once a run. */
static enum status device_limits(struct bench *b, const struct model_config *c, enum dtype dt, struct err *e) {
    static struct bench_limits known;
    enum { CALLS = 10 };
    struct backend *be = b->be;
    const int64_t n = (int64_t)2 << 30, T = 8192, N = 2 * (int64_t)c->F, K = c->D;
    const enum dtype act = dt == DT_BF16 ? be->act : DT_F32;
    void *a = NULL, *d = NULL, *x = NULL, *y = NULL;
    struct weight w = {0};
    float *master = NULL;
    enum status st = ST_OK;
    for (int turn = 0; known.flop_s == 0 && turn < 1; turn++) {
        TRY_GOTO(device_random(be, n / 4, DT_F32, &a, e), out);
        TRY_GOTO(device_random(be, n / 4, DT_F32, &d, e), out);
        TRY_GOTO(device_random(be, T * K, act, &x, e), out);
        TRY_GOTO(device_random(be, T * N, act, &y, e), out);
        TRY_GOTO(bench_weight(be, N, K, dt, &w, &master, e), out);
        double bytes_s = 0, flop_s = 0;
        for (int i = 0; i < 4; i++) {
            double t0 = clock_now_s();
            for (int k = 0; k < CALLS; k++) be->mem_copy(be, d, a, (size_t)n);
            TRY_GOTO(be->sync(be, e), out);
            bytes_s = fmax(bytes_s, 2.0 * (double)n * CALLS / (clock_now_s() - t0));
            t0 = clock_now_s();
            for (int k = 0; k < CALLS; k++)
                be->linear(be, tensor_of(y, act, T, N), tensor_of(x, act, T, K), &w, NULL, false);
            TRY_GOTO(be->sync(be, e), out);
            if (i > 0) flop_s = fmax(flop_s, 2.0 * (double)T * (double)N * (double)K * CALLS / (clock_now_s() - t0));
        }
        known = (struct bench_limits){bytes_s, flop_s};
    }
    b->limits = known;
out:
    be->weight_free(be, &w);
    be->mem_free(be, master);
    be->mem_free(be, a);
    be->mem_free(be, d);
    be->mem_free(be, x);
    be->mem_free(be, y);
    return st;
}

enum status bench_limits_raise(struct bench *b, const struct model_config *c, enum dtype dt, struct err *e) {
    struct bench_limits *l = &b->limits;
    if (strcmp(b->o->device, "cpu") != 0) return device_limits(b, c, dt, e);
    const double bytes_s = bandwidth(b);
    if (bytes_s > l->bytes_s) l->bytes_s = bytes_s;
    TRY(product_rate(b->be, 2 * (int64_t)c->F, c->D, dt, &l->flop_s, e));
    TRY(product_rate(b->be, c->D, c->F, dt, &l->flop_s, e));
    return product_rate(b->be, (int64_t)c->H * c->K, c->D, dt, &l->flop_s, e);
}

/* One product of `rows` rows: forward, gradient of the input, gradient of the weight. The weights take turns, so that
 * each comes from memory as it would in a model. */
static enum status bench_product(struct bench *b, const char *matrix, int64_t rows, struct weight *weight,
                                 int n_weights, enum dtype dt, struct err *e) {
    static const char *const names[] = {"forward", "dx", "dw"};
    enum { MOST = 1000 };
    struct backend *be = b->be;
    const int64_t N = weight->N, K = weight->K, repeat = i64_min(MOST, b->o->repeat); /* 0: as time allows */
    const double flop = 2.0 * (double)(rows * N) * (double)K, bytes = (double)(N * K) * (double)dtype_bytes(dt);
    float *x = NULL, *y = NULL, *dw = NULL;
    enum status st;
    TRY_GOTO(bench_random(be, rows * K, 6, &x, e), out);
    TRY_GOTO(bench_random(be, rows * N, 7, &y, e), out);
    if (rows >= 64) TRY_GOTO(bench_random(be, N * K, 8, &dw, e), out);
    for (int op = 0; op < (rows >= 64 ? 3 : 1); op++) { /* few rows are decoding, which has no gradients */
        double t[MOST], end = clock_now_s() + 0.4;
        int n = -2; /* two to warm up */
        for (; repeat ? n < repeat : n < 5 || (n < MOST && clock_now_s() < end); n++) {
            const struct tensor xt = tensor_full(x, rows, K), yt = tensor_full(y, rows, N);
            const struct weight *w = &weight[(n + 2) % n_weights];
            const double t0 = clock_now_s();
            if (op == 0) be->linear(be, yt, xt, w, NULL, false);
            if (op == 1) be->linear_dx(be, xt, yt, w, false);
            if (op == 2) be->linear_dw(be, dw, yt, xt, dt);
            TRY_GOTO(be->sync(be, e), out);
            if (n >= 0) t[n] = clock_now_s() - t0;
        }
        /* A product may be the fastest there was: then it is the limit. */
        const struct bench_times times = bench_times(t, n);
        if (flop / times.low > b->limits.flop_s) b->limits.flop_s = flop / times.low;
        const double limit = bench_limit_s(&b->limits, op == 2 ? 2 * bytes : bytes, flop);
        struct str s = STR_INIT;
        char label[80];
        bench_line(b, "matmul", dt == DT_BF16 ? "bf16" : "f32", &s);
        js_put_str(&s, "op", names[op]);
        js_put_str(&s, "matrix", matrix);
        js_put_i64(&s, "rows", rows);
        js_put_i64(&s, "outputs", N);
        js_put_i64(&s, "inputs", K);
        snprintf(label, sizeof label, "%-7s %-7s %4lld rows", names[op], matrix, (long long)rows);
        bench_line_end(b, &s, label, &times, flop / times.median * 1e-9, "gflop", limit);
    }
out:
    be->mem_free(be, x);
    be->mem_free(be, y);
    be->mem_free(be, dw);
    return st;
}

enum status bench_matmul(struct bench *b, const struct model_config *c, enum dtype dt, struct err *e) {
    static const int usual[] = {512, 64, 16, 1};
    const int *rows = b->o->n_batch ? b->o->batch : usual, n = b->o->n_batch ? b->o->n_batch : (int)ARRAY_LEN(usual);
    const struct {
        const char *name;
        int64_t N, K;
    } matrix[] = {{"qkv", (int64_t)(c->H + 2 * c->G) * c->K, c->D},
                  {"o", c->D, (int64_t)c->H * c->K},
                  {"gate_up", 2 * (int64_t)c->F, c->D},
                  {"down", c->D, c->F},
                  {"head", c->V, c->D}};
    for (size_t i = 0; i < ARRAY_LEN(matrix); i++) {
        enum { MOST = 512 };
        const int64_t bytes = matrix[i].N * matrix[i].K * (int64_t)dtype_bytes(dt);
        const int n_weights = (int)i64_max(1, i64_min(MOST, ((int64_t)128 << 20) / bytes)); /* more than caches hold */
        struct weight *w = xcalloc((size_t)n_weights, sizeof *w);
        float **master = xcalloc((size_t)n_weights, sizeof *master);
        enum status st = ST_OK;
        for (int k = 0; st == ST_OK && k < n_weights; k++)
            st = bench_weight(b->be, matrix[i].N, matrix[i].K, dt, &w[k], &master[k], e);
        bench_begin(b);
        if (st == ST_OK) st = bench_limits_raise(b, c, dt, e);
        for (int k = 0; st == ST_OK && k < n; k++) st = bench_product(b, matrix[i].name, rows[k], w, n_weights, dt, e);
        for (int k = 0; k < n_weights; k++) {
            b->be->weight_free(b->be, &w[k]);
            b->be->mem_free(b->be, master[k]);
        }
        free(w);
        free(master);
        TRY(st);
    }
    return ST_OK;
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

struct bench_times bench_times(double *t, int n) {
    qsort(t, (size_t)n, sizeof *t, ascending_f64);
    const double median = n % 2 ? t[n / 2] : (t[n / 2 - 1] + t[n / 2]) / 2;
    return (struct bench_times){median, t[0], t[n - 1], (t[(n - 1) * 3 / 4] - t[(n - 1) / 4]) / median};
}
