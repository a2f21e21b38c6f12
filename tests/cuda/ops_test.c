/* The CUDA backend against the CPU backend, op by op, bit by bit: odd sizes, strides, misaligned views, shared
 * prefixes, caches, NaN and infinities. Then the speed of each op at the shapes of a 5M-parameter model. cuda_ops
 * [--no-speed] PLUGIN.so With tests/cuda/emulate built as the plugin it runs without a GPU. Data are random and never
 * zero, outputs start as other random numbers, rows have guards behind them that must survive. Ends with "N passed, N
 * failed", one a group. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tensor/backend.h"

static struct backend *cpu, *gpu;
static bool emulated;

/* ---- arrays that both sides have ------------------------------------------------------------------------------------
 */

/* n floats on each side, equal at first. */
struct arr {
    float *c, *d;
    int64_t n;
};
static struct arr made[256]; /* of the current case */
static int n_made;
static uint64_t stream;

static void stop(const char *what) {
    printf("STOPPED: %s\n", what);
    exit(2);
}

static void sync_or_stop(const char *op) {
    struct err e;
    if (gpu->sync(gpu, &e) == ST_OK) return;
    printf("%s: %s\n", op, e.msg);
    stop("the device failed; nothing after it can be trusted");
}

static struct arr arr_of(const float *src, int64_t n) {
    struct arr a = {xaligned((size_t)n * sizeof(float)), NULL, n};
    memcpy(a.c, src, (size_t)n * sizeof(float));
    a.d = gpu->mem_alloc(gpu, (size_t)n * sizeof(float));
    if (!a.d || n_made == (int)ARRAY_LEN(made)) stop("no memory for a case");
    gpu->mem_put(gpu, a.d, a.c, (size_t)n * sizeof(float));
    return made[n_made++] = a;
}

static float *randoms(int64_t n, float scale) {
    float *p = xaligned((size_t)i64_max(n, 1) * sizeof(float));
    struct rng r = rng_make(11, ++stream);
    for (int64_t i = 0; i < n; i++) {
        p[i] = scale * (float)rng_normal(&r);
        if (p[i] == 0) p[i] = scale;
    }
    return p;
}

static struct arr arr_random(int64_t n, float scale) {
    float *p = randoms(n, scale);
    struct arr a = arr_of(p, i64_max(n, 1));
    free(p);
    return a;
}

/* A view of an arr: `pad` columns of guard behind each row, `off` floats before the first. */
struct mat {
    struct arr a;
    int64_t rows, cols, ld, off;
};
static struct mat mat_random(int64_t rows, int64_t cols, int64_t pad, int64_t off, float scale) {
    return (struct mat){arr_random(off + rows * (cols + pad) + 8, scale), rows, cols, cols + pad, off};
}
static struct tensor tc(struct mat m) { return tensor_f32(m.a.c + m.off, m.rows, m.cols, m.ld); }
static struct tensor td(struct mat m) { return tensor_f32(m.a.d + m.off, m.rows, m.cols, m.ld); }
static void set(struct mat m, int64_t r, int64_t c, float v) {
    m.a.c[m.off + r * m.ld + c] = v;
    gpu->mem_put(gpu, m.a.d + m.off + r * m.ld + c, &v, sizeof v);
}

static int32_t *indices(int64_t n, int64_t below) {
    int32_t *p = xcalloc((size_t)i64_max(n, 1), sizeof *p);
    struct rng r = rng_make(12, ++stream);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)rng_below(&r, (uint64_t)below);
    return p;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------
 */

static struct {
    const char *name;
    int64_t cases, elements, differ, max_ulp, allowed_ulp;
    double max_rel;
    bool shown;
} group;
static int passed, failed;

static int64_t ordered(float f) { /* neighbours in value are neighbours here */
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i < 0 ? -(int64_t)(i & 0x7fffffff) : i;
}

static void compare(const float *want, const float *got, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        group.elements++;
        if (memcmp(want + i, got + i, sizeof(float)) == 0 || (isnan(want[i]) && isnan(got[i]))) continue;
        int64_t ulp = isnan(want[i]) || isnan(got[i]) ? INT64_MAX : llabs(ordered(want[i]) - ordered(got[i]));
        if (ulp == 0) ulp = 1; /* +0 and -0 */
        group.differ++;
        group.max_ulp = i64_max(group.max_ulp, ulp);
        group.max_rel =
            fmax(group.max_rel, fabs((double)got[i] - (double)want[i]) / fmax(fabs((double)want[i]), 1e-30));
        if (!group.shown && ulp > group.allowed_ulp) {
            printf("  %s case %lld: %s[%lld of %lld] = %.9g, expected %.9g\n", group.name, (long long)group.cases, what,
                   (long long)i, (long long)n, (double)got[i], (double)want[i]);
            group.shown = true;
        }
    }
}

static void check(struct arr a, const char *what) {
    float *got = xaligned((size_t)a.n * sizeof(float));
    gpu->mem_get(gpu, got, a.d, (size_t)a.n * sizeof(float));
    sync_or_stop(group.name);
    compare(a.c, got, a.n, what);
    free(got);
}

static void group_begin(const char *name, int64_t allowed_ulp) {
    memset(&group, 0, sizeof group);
    group.name = name;
    group.allowed_ulp = allowed_ulp;
}

static void case_end(void) {
    group.cases++;
    for (int i = 0; i < n_made; i++) {
        free(made[i].c);
        gpu->mem_free(gpu, made[i].d);
    }
    n_made = 0;
    sync_or_stop(group.name);
}

static void group_end(void) {
    const bool ok = group.max_ulp <= group.allowed_ulp && group.elements > 0;
    ok ? passed++ : failed++;
    printf("%-6s %-22s %3lld cases %10lld values %8lld differ", ok ? "PASS" : "FAIL", group.name,
           (long long)group.cases, (long long)group.elements, (long long)group.differ);
    if (group.differ) printf(", at most %lld ulp, %.2g relative", (long long)group.max_ulp, group.max_rel);
    printf(group.allowed_ulp ? " (T: %lld ulp)\n" : " (E)\n", (long long)group.allowed_ulp);
    fflush(stdout);
}

static void report(const char *name, bool ok) {
    ok ? passed++ : failed++;
    printf("%-6s %s\n", ok ? "PASS" : "FAIL", name);
    fflush(stdout);
}

/* ---- products -------------------------------------------------------------------------------------------------------
 */

/* M, N, K. The last ones reach the large tiles of a large device. */
static const int64_t products[][3] = {{0, 5, 3},      {1, 1, 1},      {1, 64, 128},    {2, 65, 129},    {5, 15, 0},
                                      {3, 17, 31},    {6, 16, 16},    {7, 17, 127},    {8, 63, 130},    {12, 48, 64},
                                      {13, 1, 257},   {64, 70, 20},   {1, 200, 5},     {250, 33, 40},   {129, 257, 65},
                                      {260, 257, 33}, {300, 132, 48}, {400, 300, 100}, {512, 128, 256}, {131, 516, 72}};
static const int64_t big_products[][3] = {{2200, 1030, 130}, {2048, 1536, 256}, {700, 1000, 65}, {16384, 256, 64}};

static void product_case(const char *op, const int64_t s[3], int64_t pad, int64_t off, int odd) {
    const int64_t M = s[0], N = s[1], K = s[2];
    struct mat x = mat_random(M, K, pad, off, 1), y = mat_random(M, N, pad, off, 1);
    struct arr w = arr_random(N * K, 1), bias = arr_random(N, 1);
    if (odd && M && K) {
        set(x, 0, 0, INFINITY);
        set(x, M - 1, K - 1, odd == 1 ? NAN : 1e-42f);
    }
    struct weight wc = {.w = w.c, .N = N, .K = K}, wd = {.w = w.d, .N = N, .K = K};
    cpu->weight_pack(cpu, &wc);
    gpu->weight_pack(gpu, &wd);
    for (int mode = 0; mode < 3; mode++) {
        if (strcmp(op, "linear") == 0) {
            cpu->linear(cpu, tc(y), tc(x), &wc, mode == 1 ? bias.c : NULL, mode == 2);
            gpu->linear(gpu, td(y), td(x), &wd, mode == 1 ? bias.d : NULL, mode == 2);
            check(y.a, "y");
        } else if (strcmp(op, "linear_dx") == 0) {
            cpu->linear_dx(cpu, tc(x), tc(y), &wc, mode == 2);
            gpu->linear_dx(gpu, td(x), td(y), &wd, mode == 2);
            check(x.a, "dx");
        } else {
            cpu->linear_dw(cpu, w.c, tc(y), tc(x));
            gpu->linear_dw(gpu, w.d, td(y), td(x));
            check(w, "dw");
        }
    }
    cpu->weight_free(cpu, &wc);
    gpu->weight_free(gpu, &wd);
    case_end();
}

static void test_product(const char *op) {
    group_begin(op, 0);
    for (size_t i = 0; i < ARRAY_LEN(products); i++)
        for (int view = 0; view < 3; view++)
            product_case(op, products[i], view == 1 ? 3 : 4 * (view > 1), view == 1, 0);
    for (size_t i = 0; i < ARRAY_LEN(big_products) && !emulated; i++) product_case(op, big_products[i], 4, 4, 0);
    product_case(op, (int64_t[]){5, 20, 30}, 2, 0, 1);
    product_case(op, (int64_t[]){70, 65, 33}, 0, 0, 2);
    group_end();
}

/* ---- rows -----------------------------------------------------------------------------------------------------------
 */

static const int64_t row_shapes[][2] = {{0, 8},   {1, 1},    {3, 15},    {2, 16},   {5, 17},   {7, 63},  {9, 64},
                                        {31, 65}, {300, 33}, {129, 256}, {257, 96}, {17, 129}, {6, 2048}};

static void test_rmsnorm(void) {
    group_begin("rmsnorm", 0);
    for (size_t i = 0; i < ARRAY_LEN(row_shapes); i++)
        for (int odd = 0; odd < 2; odd++) {
            const int64_t T = row_shapes[i][0], n = row_shapes[i][1];
            struct mat x = mat_random(T, n, 3 * odd, odd, 2), y = mat_random(T, n, odd, 0, 1);
            struct arr gain = arr_random(n, 1);
            if (odd && T) set(x, T - 1, n - 1, i % 2 ? NAN : INFINITY);
            cpu->rmsnorm(cpu, tc(y), tc(x), gain.c, 1e-6f);
            gpu->rmsnorm(gpu, td(y), td(x), gain.d, 1e-6f);
            check(y.a, "y");
            case_end();
        }
    group_end();
}

static void test_rmsnorm_grad(void) {
    group_begin("rmsnorm_grad", 0);
    for (size_t i = 0; i < ARRAY_LEN(row_shapes); i++)
        for (int mode = 0; mode < 4; mode++) {
            const int64_t T = row_shapes[i][0], n = row_shapes[i][1];
            struct mat x = mat_random(T, n, mode, mode, 2), dx = mat_random(T, n, 1, 0, 1),
                       dy = mat_random(T, n, 0, 0, 1);
            struct arr gain = arr_random(n, 1), dg = arr_random(n, 1);
            const bool with_gain = mode < 3;
            cpu->rmsnorm_grad(cpu, tc(dx), with_gain ? dg.c : NULL, tc(dy), tc(x), gain.c, 1e-6f, mode & 1);
            gpu->rmsnorm_grad(gpu, td(dx), with_gain ? dg.d : NULL, td(dy), td(x), gain.d, 1e-6f, mode & 1);
            check(dx.a, "dx");
            check(dg, "dgain");
            case_end();
        }
    group_end();
}

static void test_rope(bool grad) {
    static const int64_t shape[][4] = {{0, 2, 1, 8},    {1, 1, 1, 2},    {17, 4, 2, 64},  {140, 4, 2, 22},
                                       {300, 2, 2, 32}, {65, 6, 3, 128}, {130, 3, 1, 34}, {33, 2, 1, 256}};
    group_begin(grad ? "rope_grad" : "rope", 0);
    for (size_t i = 0; i < ARRAY_LEN(shape); i++)
        for (int norm = 0; norm < 3; norm++) { /* none; with; with, but no gradients of gains */
            const int64_t T = shape[i][0], H = shape[i][1], G = shape[i][2], K = shape[i][3], P = 200;
            const int64_t pad = norm == 1 ? 3 : 0;
            struct mat qkv = mat_random(T, (H + 2 * G) * K, pad, pad, 1), d = mat_random(T, (H + 2 * G) * K, pad, 0, 1);
            struct mat qk = mat_random(T, (H + G) * K, pad, 0, 1);
            struct arr cs = arr_random(P * K / 2, 1), sn = arr_random(P * K / 2, 1), gain = arr_random(2 * K, 1);
            struct arr dg = arr_random(2 * K, 1);
            int32_t *pos = indices(T, P);
            const struct rope_args ac = {H,    G, K, pos, cs.c, sn.c, norm ? gain.c : NULL, norm ? gain.c + K : NULL,
                                         1e-6f};
            const struct rope_args ad = {H,    G, K, pos, cs.d, sn.d, norm ? gain.d : NULL, norm ? gain.d + K : NULL,
                                         1e-6f};
            if (grad) {
                const bool with = norm == 1;
                cpu->rope_grad(cpu, tc(d), with ? dg.c : NULL, with ? dg.c + K : NULL, tc(qkv), &ac);
                gpu->rope_grad(gpu, td(d), with ? dg.d : NULL, with ? dg.d + K : NULL, td(qkv), &ad);
            } else {
                cpu->rope(cpu, tc(qk), tc(qkv), &ac);
                gpu->rope(gpu, td(qk), td(qkv), &ad);
            }
            free(pos);
            check(qk.a, "qk");
            check(d.a, "dqkv");
            check(dg, "gain gradient");
            case_end();
        }
    group_end();
}

static void test_swiglu(bool grad) {
    static const int64_t shape[][2] = {{0, 3}, {1, 1}, {7, 17}, {3, 64}, {129, 65}, {64, 768}};
    static const float ends[] = {200, -200, 88.3f, -88.3f, 87.3f, -87.3f, 1e-42f, -0.0f, INFINITY, -INFINITY, NAN};
    group_begin(grad ? "swiglu_grad" : "swiglu", 0);
    for (size_t i = 0; i < ARRAY_LEN(shape); i++)
        for (int pad = 0; pad < 4; pad += 3) {
            const int64_t T = shape[i][0], F = shape[i][1];
            struct mat gu = mat_random(T, 2 * F, pad, pad, 3), dgu = mat_random(T, 2 * F, pad, 0, 1);
            struct mat y = mat_random(T, F, pad, 1, 1), dy = mat_random(T, F, 0, 0, 1);
            for (size_t k = 0; k < ARRAY_LEN(ends) && T > 2 && (int64_t)k < F; k++) set(gu, 1, (int64_t)k, ends[k]);
            if (grad) {
                cpu->swiglu_grad(cpu, tc(dgu), tc(dy), tc(gu));
                gpu->swiglu_grad(gpu, td(dgu), td(dy), td(gu));
                check(dgu.a, "dgu");
            } else {
                cpu->swiglu(cpu, tc(y), tc(gu));
                gpu->swiglu(gpu, td(y), td(gu));
                check(y.a, "y");
            }
            case_end();
        }
    group_end();
}

static void test_logprob(bool grad) {
    static const int64_t shape[][2] = {{0, 9},  {1, 1},    {1, 16},   {3, 17},   {40, 31},  {5, 2048},
                                       {9, 33}, {65, 257}, {2, 5000}, {300, 48}, {17, 1023}};
    group_begin(grad ? "logprob_grad" : "logprob", grad ? 0 : 1);
    for (size_t i = 0; i < ARRAY_LEN(shape); i++)
        for (int mode = 0; mode < 3; mode++) {
            const int64_t n = shape[i][0], V = shape[i][1];
            struct mat x = mat_random(n, V, mode, mode, 4);
            struct arr out = arr_random(2 * n + 2, 1); /* only its host side is used */
            float *got = xaligned((size_t)out.n * sizeof(float)), *g = randoms(n, 1);
            memcpy(got, out.c, (size_t)out.n * sizeof(float));
            int32_t *target = indices(n, V);
            if (mode == 2 && n > 2) { /* masked out, the only one left, not a number */
                for (int64_t v = 0; v < V; v++) set(x, 0, v, v == target[0] ? 1.0f : -INFINITY);
                set(x, 1, V - 1, NAN);
                set(x, 2, 0, -500);
            }
            if (grad) {
                cpu->logprob_grad(cpu, tc(x), target, g);
                gpu->logprob_grad(gpu, td(x), target, g);
                check(x.a, "x");
            } else {
                cpu->logprob(cpu, out.c, mode ? out.c + n : NULL, tc(x), target);
                gpu->logprob(gpu, got, mode ? got + n : NULL, td(x), target);
                sync_or_stop("logprob");
                compare(out.c, got, out.n, "logp, entropy");
                check(x.a, "logits");
            }
            free(got), free(g), free(target);
            case_end();
        }
    group_end();
}

/* ---- rows by index, elementwise, optimizer --------------------------------------------------------------------------
 */

static void test_rows(void) {
    static const int64_t shape[][3] = {{0, 3, 4},    {1, 1, 1},     {5, 17, 3},     {64, 64, 10},
                                       {200, 33, 7}, {1000, 65, 2}, {300, 256, 100}}; /* T, cols, table rows */
    static const char *const names[] = {"embed", "embed_grad", "gather_rows", "scatter_add_rows"};
    for (int op = 0; op < 4; op++) {
        group_begin(names[op], 0);
        for (size_t i = 0; i < ARRAY_LEN(shape); i++)
            for (int64_t pad = 0; pad < 4; pad += 3) {
                const int64_t T = shape[i][0], n = shape[i][1], R = shape[i][2];
                struct mat x = mat_random(T, n, pad, pad, 1), table = mat_random(R, n, op < 2 ? 0 : pad, 0, 1);
                int32_t *ids = indices(T, R);
                for (int side = 0; side < 2; side++) {
                    struct backend *b = side ? gpu : cpu;
                    struct tensor xt = side ? td(x) : tc(x), tt = side ? td(table) : tc(table);
                    if (op == 0) b->embed(b, xt, tt.data, ids);
                    if (op == 1) b->embed_grad(b, tt.data, xt, ids);
                    if (op == 2) b->gather_rows(b, xt, tt, ids);
                    if (op == 3) b->scatter_add_rows(b, tt, xt, ids);
                }
                memset(ids, 0, (size_t)T * sizeof *ids); /* they have been read when the op returns */
                free(ids);
                check(x.a, "rows");
                check(table.a, "table");
                case_end();
            }
        group_end();
    }
}

/* More indices than the transfer ring holds at a time, without a sync between. */
static void test_ring(void) {
    group_begin("index transfers", 0);
    const int64_t T = 16384, rounds = 250;
    struct mat table = mat_random(777, 1, 0, 0, 1), y = mat_random(T, 1, 0, 0, 1), sum = mat_random(T, 1, 0, 0, 1);
    for (int64_t i = 0; i < rounds; i++) {
        int32_t *ids = indices(T, 777);
        cpu->gather_rows(cpu, tc(y), tc(table), ids);
        cpu->axpby(cpu, tc(sum), 1, tc(y), 1);
        gpu->gather_rows(gpu, td(y), td(table), ids);
        gpu->axpby(gpu, td(sum), 1, td(y), 1);
        memset(ids, 0, (size_t)T * sizeof *ids);
        free(ids);
    }
    check(sum.a, "sum");
    case_end();
    const int64_t N = 3000000; /* and one that is larger than it */
    if (!emulated) {
        struct mat big = mat_random(N, 1, 0, 0, 1);
        int32_t *ids = indices(N, 777);
        cpu->scatter_add_rows(cpu, tc(table = mat_random(777, 1, 0, 0, 1)), tc(big), ids);
        gpu->scatter_add_rows(gpu, td(table), td(big), ids);
        free(ids);
        check(table.a, "table");
        case_end();
    }
    group_end();
}

static void test_elementwise(void) {
    static const int64_t shape[][2] = {{0, 3}, {1, 1}, {5, 17}, {64, 64}, {300, 33}, {129, 128}};
    static const float factor[][2] = {{1, 0}, {0, 0}, {0.37f, 0}, {1, 1}, {-0.7f, 0.3f}, {0, 0.9f}};
    group_begin("axpby", 0);
    for (size_t i = 0; i < ARRAY_LEN(shape); i++)
        for (size_t f = 0; f < ARRAY_LEN(factor); f++)
            for (int64_t pad = 0; pad < 5; pad += 2) {
                struct mat x = mat_random(shape[i][0], shape[i][1], pad, pad, 1);
                struct mat y = mat_random(shape[i][0], shape[i][1], pad, 0, 1);
                if (shape[i][0] > 2) set(y, 0, 0, NAN), set(x, 1, 0, INFINITY);
                const bool alias = f % 2 == 0 && pad == 2;
                cpu->axpby(cpu, alias ? tc(x) : tc(y), factor[f][0], tc(x), factor[f][1]);
                gpu->axpby(gpu, alias ? td(x) : td(y), factor[f][0], td(x), factor[f][1]);
                check(y.a, "y");
                check(x.a, "x");
                case_end();
            }
    group_end();

    group_begin("bias_grad", 0);
    static const int64_t bias[][2] = {{0, 3}, {1, 1}, {63, 31}, {64, 32}, {65, 33}, {1000, 129}, {129, 512}};
    for (size_t i = 0; i < ARRAY_LEN(bias); i++) {
        struct mat dy = mat_random(bias[i][0], bias[i][1], (int64_t)i % 3, 0, 1);
        struct arr db = arr_random(bias[i][1], 1);
        cpu->bias_grad(cpu, db.c, tc(dy));
        gpu->bias_grad(gpu, db.d, td(dy));
        check(db, "db");
        case_end();
    }
    group_end();

    static const int64_t sizes[] = {0, 1, 17, 1023, 1024, 1025, 32768, 32769, 70001, 1000000};
    group_begin("adamw", 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes) - (emulated ? 1 : 0); i++) {
        const int64_t n = sizes[i];
        struct arr w = arr_random(n, 1), m = arr_random(n, 0.1f), v = arr_random(n, 0.01f), g = arr_random(n, 1);
        for (int64_t j = 0; j < v.n; j++) v.c[j] = fabsf(v.c[j]);
        gpu->mem_put(gpu, v.d, v.c, (size_t)v.n * sizeof(float));
        const struct adamw_args a = {0.9f, 0.98f, 1e-8f, 0.77f, 0.9999f, 3e-3f, 1.3f};
        cpu->adamw(cpu, w.c, m.c, v.c, g.c, n, &a);
        gpu->adamw(gpu, w.d, m.d, v.d, g.d, n, &a);
        check(w, "w"), check(m, "m"), check(v, "v");
        case_end();
    }
    group_end();

    group_begin("sum_squares", 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct arr x = arr_random(sizes[i], 1.7f);
        const double a = cpu->sum_squares(cpu, x.c, sizes[i]), b = gpu->sum_squares(gpu, x.d, sizes[i]);
        float fa[2], fb[2]; /* all 64 bits */
        memcpy(fa, &a, sizeof a), memcpy(fb, &b, sizeof b);
        compare(fa, fb, 2, "sum");
        case_end();
    }
    group_end();
}

/* ---- attention ------------------------------------------------------------------------------------------------------
 */

static const int64_t heads[][3] = {{4, 2, 64}, {6, 3, 10},  {3, 1, 70},  {2, 2, 32},  {8, 1, 128},
                                   {5, 5, 3},  {2, 1, 256}, {14, 2, 64}, {4, 4, 130}, {2, 1, 63}};

/* Sequences packed end to end; prefix[i] >= 0: the past of i is the first past[i] rows of that sequence. */
struct packing {
    int n;
    int64_t len[12];
    int prefix[12];
    int64_t past[12]; /* 0: all of the prefix */
};
static const struct packing packings[] = {
    {1, {1}, {-1}, {0}},
    {5, {70, 1, 40, 0, 19}, {-1, 0, 0, 0, -1}, {0}},
    {6, {130, 66, 3, 64, 65, 17}, {-1, 0, 0, -1, 3, 3}, {0}},
    {4, {0, 5, 33, 63}, {-1, -1, 1, 1}, {0}},
    {5, {90, 20, 30, 1, 128}, {-1, 0, 0, 0, -1}, {0, 33, 90, 64, 0}},
    {10, {250, 120, 119, 121, 64, 100, 31, 32, 33, 16}, {-1, 0, 0, 0, 0, -1, 5, 5, 5, 5}, {0}},
};

static int64_t pack(const struct packing *p, struct attn_seq *seq) {
    int64_t row = 0;
    for (int i = 0; i < p->n; i++) {
        const int f = p->prefix[i];
        seq[i] = (struct attn_seq){.row = row, .len = p->len[i]};
        if (f >= 0) {
            seq[i].past = p->past[i] ? p->past[i] : seq[f].len;
            seq[i].past_row = seq[f].row;
        }
        row += p->len[i];
    }
    return row;
}

static void attention_case(const int64_t hd[3], const struct packing *p, int view, bool grad) {
    struct attn_seq seq[12];
    const int64_t T = pack(p, seq), H = hd[0], G = hd[1], K = hd[2];
    const struct attn_shape s = {H, G, K, 0};
    const int64_t pad = view ? 3 : 0;
    struct mat q = mat_random(T, H * K, pad, view, 1.5f / sqrtf((float)K)), k = mat_random(T, G * K, pad, 0, 1);
    struct mat v = mat_random(T, G * K, pad, view, 1), o = mat_random(T, H * K, pad, 0, 1);
    struct arr stats = arr_random(T * H * 2, 1);
    cpu->attention(cpu, tc(o), stats.c, tc(q), tc(k), tc(v), seq, p->n, s);
    gpu->attention(gpu, td(o), stats.d, td(q), td(k), td(v), seq, p->n, s);
    if (!grad) {
        check(o.a, "o");
        check(stats, "stats");
        cpu->attention(cpu, tc(o), NULL, tc(q), tc(v), tc(k), seq, p->n, s);
        gpu->attention(gpu, td(o), NULL, td(q), td(v), td(k), seq, p->n, s);
        check(o.a, "o without stats");
    } else {
        struct mat dq = mat_random(T, H * K, pad, 0, 1), dk = mat_random(T, G * K, pad, view, 1);
        struct mat dv = mat_random(T, G * K, pad, 0, 1), d_o = mat_random(T, H * K, pad, 0, 1);
        cpu->attention_grad(cpu, tc(dq), tc(dk), tc(dv), tc(d_o), tc(o), stats.c, tc(q), tc(k), tc(v), seq, p->n, s);
        gpu->attention_grad(gpu, td(dq), td(dk), td(dv), td(d_o), td(o), stats.d, td(q), td(k), td(v), seq, p->n, s);
        check(dq.a, "dq");
        check(dk.a, "dk");
        check(dv.a, "dv");
    }
    case_end();
}

static void test_attention(bool grad) {
    group_begin(grad ? "attention_grad" : "attention", 0);
    for (size_t h = 0; h < ARRAY_LEN(heads); h++)
        for (size_t p = 0; p < ARRAY_LEN(packings); p++) {
            if (emulated && p == 5 && h > 1) continue; /* minutes */
            attention_case(heads[h], &packings[p], (h + p) % 2, grad);
        }
    group_end();
}

/* Out of caches: decode (a row each) with pasts around the block size, and longer runs behind a past. */
static void test_cached(void) {
    static const int64_t past[] = {0, 1, 15, 16, 17, 62, 63, 64, 65, 127, 128, 129, 200};
    static const int64_t len[][13] = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                      {3, 0, 1, 2, 4, 1, 2, 3, 4, 1, 2, 3, 4},
                                      {70, 1, 5, 0, 65, 3, 1, 64, 2, 1, 40, 1, 17}};
    enum { S = 13 };
    for (int op = 0; op < 2; op++) {
        group_begin(op ? "attention, cached" : "kv_write", 0);
        for (size_t h = 0; h < ARRAY_LEN(heads); h++)
            for (size_t run = 0; run < ARRAY_LEN(len); run++) {
                const int64_t H = heads[h][0], G = heads[h][1], K = heads[h][2], Kp = kv_pad_dim(K), cap = 320;
                struct attn_seq fc[S], fd[S], oc[S], od[S]; /* fill and own, on either side */
                struct arr kb[S], vb[S];
                int64_t T = 0;
                for (int i = 0; i < S; i++) {
                    kb[i] = arr_random(G * cap * K, 1);
                    vb[i] = arr_random(G * cap * Kp, 1);
                    fc[i] = (struct attn_seq){T, past[i], 0, 0, kb[i].c, vb[i].c};
                    oc[i] = (struct attn_seq){T + past[i], len[run][i], past[i], 0, kb[i].c, vb[i].c};
                    fd[i] = fc[i], od[i] = oc[i];
                    fd[i].kblk = od[i].kblk = kb[i].d;
                    fd[i].vblk = od[i].vblk = vb[i].d;
                    T += past[i] + len[run][i];
                }
                const struct attn_shape s = {H, G, K, cap};
                struct mat q = mat_random(T, H * K, (int64_t)run, 0, 1.5f / sqrtf((float)K));
                struct mat k = mat_random(T, G * K, (int64_t)run, 1, 1), v = mat_random(T, G * K, 0, 0, 1);
                struct mat o = mat_random(T, H * K, 1, 0, 1);
                struct arr stats = arr_random(T * H * 2, 1);
                cpu->kv_write(cpu, tc(k), tc(v), fc, S, s);
                gpu->kv_write(gpu, td(k), td(v), fd, S, s);
                cpu->kv_write(cpu, tc(k), tc(v), oc, S, s);
                gpu->kv_write(gpu, td(k), td(v), od, S, s);
                if (op) {
                    float *st[2] = {run == 1 ? stats.c : NULL, run == 1 ? stats.d : NULL};
                    cpu->attention(cpu, tc(o), st[0], tc(q), tc(k), tc(v), oc, S, s);
                    gpu->attention(gpu, td(o), st[1], td(q), td(k), td(v), od, S, s);
                    check(o.a, "o");
                    check(stats, "stats");
                }
                for (int i = 0; i < S && !op; i++) {
                    check(kb[i], "keys");
                    check(vb[i], "values");
                }
                case_end();
            }
        group_end();
    }
}

static void test_memory(backend_plugin_open_fn *open_plugin) {
    char msg[512] = "";
    struct backend *none = NULL;
    report("a plugin of another version is refused",
           open_plugin(BACKEND_ABI + 1, 0, NULL, &none, msg, sizeof msg) && msg[0]);
    msg[0] = 0;
    report("a device that is not there is refused",
           open_plugin(BACKEND_ABI, 999, NULL, &none, msg, sizeof msg) && msg[0]);
    struct err e;
    void *huge = gpu->mem_alloc(gpu, (size_t)1 << 46);
    report("too much memory gives NULL and harms nothing", !huge && gpu->sync(gpu, &e) == ST_OK);
    report("memory available", gpu->mem_available(gpu) > 0);
    float host[100], back[100];
    for (int i = 0; i < 100; i++) host[i] = (float)i + 0.5f;
    float *a = gpu->mem_alloc(gpu, sizeof host), *b = gpu->mem_alloc(gpu, sizeof host);
    gpu->mem_put(gpu, a, host, sizeof host);
    gpu->mem_copy(gpu, b, a, sizeof host);
    gpu->mem_zero(gpu, a, 40);
    gpu->mem_get(gpu, back, b, sizeof back);
    bool ok = gpu->sync(gpu, &e) == ST_OK && memcmp(host, back, sizeof host) == 0;
    gpu->mem_get(gpu, back, a, sizeof back);
    for (int i = 0; i < 100; i++) ok &= back[i] == (i < 10 ? 0 : host[i]);
    report("put, copy, zero, get", ok && gpu->sync(gpu, &e) == ST_OK);
    gpu->mem_free(gpu, a);
    gpu->mem_free(gpu, b);
    gpu->mem_free(gpu, NULL);
}

/* ---- speed: D 256, F 768, V 2048, H 4, G 2, K 64 --------------------------------------------------------------------
 */

enum { T_SPEED = 16384, D = 256, F = 768, V = 2048, H = 4, G = 2, HD = 64 };

static double total_ms;
/* Runs the statement until 60 ms have gone by, prints its time and rate. flop and bytes per run; layers: how often a
 * training step runs it. */
#define SPEED(name, flop, bytes, per_step, statement)                          \
    do {                                                                       \
        statement;                                                             \
        statement;                                                             \
        sync_or_stop(name);                                                    \
        int n_ = 0;                                                            \
        const double t0_ = clock_now_s();                                      \
        do {                                                                   \
            for (int i_ = 0; i_ < 5; i_++, n_++) statement;                    \
            sync_or_stop(name);                                                \
        } while (clock_now_s() - t0_ < 0.06);                                  \
        const double s_ = (clock_now_s() - t0_) / n_;                          \
        total_ms += s_ * 1e3 * (per_step);                                     \
        printf("  %-28s %9.1f us", name, s_ * 1e6);                            \
        if ((flop) > 0) printf(" %7.2f TFLOP/s", (double)(flop) / s_ * 1e-12); \
        if ((bytes) > 0) printf(" %7.0f GB/s", (double)(bytes) / s_ * 1e-9);   \
        printf("  x %g a step\n", (double)(per_step));                         \
        fflush(stdout);                                                        \
    } while (0)

static void speed(void) {
    const int64_t T = T_SPEED, Q = (H + 2 * G) * HD;
    printf("speed at T = %lld, D %d F %d V %d H %d G %d K %d, 6 layers\n", (long long)T, D, F, V, H, G, HD);
    static const struct {
        const char *name;
        int64_t N, K;
        double per_step;
    } w[] = {{"qkv", (H + 2 * G) * HD, D, 6},
             {"o", D, H * HD, 6},
             {"gate_up", 2 * F, D, 6},
             {"down", D, F, 6},
             {"head", V, D, 1}};
    for (size_t i = 0; i < ARRAY_LEN(w); i++) {
        const int64_t N = w[i].N, K = w[i].K;
        struct mat x = mat_random(T, K, 0, 0, 1), y = mat_random(T, N, 0, 0, 1);
        struct arr m = arr_random(N * K, 0.05f);
        struct weight wt = {.w = m.d, .N = N, .K = K};
        gpu->weight_pack(gpu, &wt);
        const double flop = 2.0 * (double)(T * N * K);
        char name[64];
        const double twice = strcmp(w[i].name, "head") == 0 ? 2 : 1; /* logits are computed again for the gradient */
        snprintf(name, sizeof name, "linear %s", w[i].name);
        SPEED(name, flop, 0, w[i].per_step * twice, gpu->linear(gpu, td(y), td(x), &wt, NULL, false));
        snprintf(name, sizeof name, "linear_dx %s", w[i].name);
        SPEED(name, flop, 0, w[i].per_step, gpu->linear_dx(gpu, td(x), td(y), &wt, false));
        snprintf(name, sizeof name, "linear_dw %s", w[i].name);
        SPEED(name, flop, 0, w[i].per_step, gpu->linear_dw(gpu, m.d, td(y), td(x)));
        case_end();
    }
    struct mat x = mat_random(T, D, 0, 0, 1), y = mat_random(T, D, 0, 0, 1), dx = mat_random(T, D, 0, 0, 1);
    struct mat gu = mat_random(T, 2 * F, 0, 0, 1), dgu = mat_random(T, 2 * F, 0, 0, 1), act = mat_random(T, F, 0, 0, 1);
    struct mat qkv = mat_random(T, Q, 0, 0, 1), dqkv = mat_random(T, Q, 0, 0, 1),
               qk = mat_random(T, (H + G) * HD, 0, 0, 1);
    struct mat o = mat_random(T, H * HD, 0, 0, 1), d_o = mat_random(T, H * HD, 0, 0, 1);
    struct mat logits = mat_random(T, V, 0, 0, 4), table = mat_random(V, D, 0, 0, 1);
    struct arr gain = arr_random(D, 1), dgain = arr_random(D, 1), rot = arr_random(1024 * HD, 1),
               stats = arr_random(T * H * 2, 1);
    struct arr p[4];
    for (int i = 0; i < 4; i++) p[i] = arr_random(5000000, 0.1f);
    gpu->axpby(gpu, tensor_full(p[2].d, 1, 5000000), 0, tensor_full(p[1].d, 1, 5000000), 0);
    int32_t *ids = indices(T, V), *pos = indices(T, 400), *all = xcalloc((size_t)T, sizeof *all);
    for (int64_t i = 0; i < T; i++) all[i] = (int32_t)i;
    float *logp = xcalloc((size_t)T, sizeof *logp), *ent = xcalloc((size_t)T, sizeof *ent), *g = randoms(T, 1);
    const struct rope_args ra = {H, G, HD, pos, rot.d, rot.d, gain.d, gain.d, 1e-6f};
    /* Groups of a 250-token prompt and four answers of 120. */
    struct attn_seq seq[200];
    int n = 0;
    for (int64_t row = 0; row + 730 <= T; row += 730) {
        seq[n++] = (struct attn_seq){.row = row, .len = 250};
        for (int i = 0; i < 4; i++)
            seq[n++] = (struct attn_seq){.row = row + 250 + 120 * i, .len = 120, .past = 250, .past_row = row};
    }
    double keys = 0;
    for (int i = 0; i < n; i++) keys += (double)seq[i].len * ((double)seq[i].past + (double)(seq[i].len + 1) / 2);
    const struct attn_shape s = {H, G, HD, 0};
    struct tensor tq = tensor_cols(td(qk), 0, H * HD), tk = tensor_cols(td(qk), H * HD, G * HD),
                  tv = tensor_cols(td(qkv), (H + G) * HD, G * HD);
    struct tensor dq = tensor_cols(td(dqkv), 0, H * HD), dk = tensor_cols(td(dqkv), H * HD, G * HD),
                  dv = tensor_cols(td(dqkv), (H + G) * HD, G * HD);
    const double rows = (double)T, row = 4.0 * rows * D;
    gpu->axpby(gpu, td(dqkv), 0, td(qkv), 0);
    SPEED("attention", 4.0 * keys * H * HD, 0, 6, gpu->attention(gpu, td(o), stats.d, tq, tk, tv, seq, n, s));
    SPEED("attention_grad", 10.0 * keys * H * HD, 0, 6,
          gpu->attention_grad(gpu, dq, dk, dv, td(d_o), td(o), stats.d, tq, tk, tv, seq, n, s));
    SPEED("rmsnorm", 0, 2 * row, 25, gpu->rmsnorm(gpu, td(y), td(x), gain.d, 1e-6f));
    SPEED("rmsnorm_grad", 0, 6 * row, 13, gpu->rmsnorm_grad(gpu, td(dx), dgain.d, td(y), td(x), gain.d, 1e-6f, true));
    SPEED("rope", 0, 4.0 * 2 * rows * (H + G) * HD, 12, gpu->rope(gpu, td(qk), td(qkv), &ra));
    SPEED("rope_grad", 0, 4.0 * 5 * rows * (H + G) * HD, 6,
          gpu->rope_grad(gpu, td(dqkv), dgain.d, dgain.d + HD, td(qkv), &ra));
    SPEED("swiglu", 0, 4.0 * 3 * rows * F, 12, gpu->swiglu(gpu, td(act), td(gu)));
    SPEED("swiglu_grad", 0, 4.0 * 5 * rows * F, 6, gpu->swiglu_grad(gpu, td(dgu), td(act), td(gu)));
    SPEED("axpby", 0, 2 * row, 18, gpu->axpby(gpu, td(y), 1, td(x), 0));
    SPEED("bias_grad", 0, 4.0 * rows * (double)Q, 0, gpu->bias_grad(gpu, qk.a.d, td(dqkv)));
    SPEED("embed", 0, 2 * row, 1, gpu->embed(gpu, td(x), table.a.d, ids));
    SPEED("embed_grad", 0, row, 1, gpu->embed_grad(gpu, table.a.d, td(x), ids));
    SPEED("gather_rows", 0, 2 * row, 2, gpu->gather_rows(gpu, td(y), td(x), all));
    SPEED("scatter_add_rows", 0, 3 * row, 1, gpu->scatter_add_rows(gpu, td(y), td(x), all));
    SPEED("logprob", 0, 4.0 * rows * V, 1, gpu->logprob(gpu, logp, ent, td(logits), ids));
    SPEED("logprob_grad", 0, 8.0 * rows * V, 1, gpu->logprob_grad(gpu, td(logits), ids, g));
    const struct adamw_args aa = {0.9f, 0.98f, 1e-8f, 0.77f, 0.9999f, 3e-3f, 1.3f};
    SPEED("adamw, 5M", 0, 4.0 * 7 * 5e6, 1, gpu->adamw(gpu, p[0].d, p[1].d, p[2].d, p[3].d, 5000000, &aa));
    SPEED("sum_squares, 5M", 0, 4.0 * 5e6, 1, gpu->sum_squares(gpu, p[0].d, 5000000));
    printf("  one step of these: %.1f ms, %.0f rows/s forward and backward\n", total_ms, (double)T / total_ms * 1e3);

    /* Sampling: 512 sequences, a row each, behind 300 keys. */
    enum { S = 512, CAP = 384 };
    static struct attn_seq dec[S];
    struct arr kb = arr_random((int64_t)S * G * CAP * HD, 1), vb = arr_random((int64_t)S * G * CAP * HD, 1);
    for (int i = 0; i < S; i++)
        dec[i] = (struct attn_seq){i, 1, 300, 0, kb.d + (int64_t)i * G * CAP * HD, vb.d + (int64_t)i * G * CAP * HD};
    const struct attn_shape sc = {H, G, HD, CAP};
    tq.rows = tk.rows = tv.rows = S;
    SPEED("kv_write, 512 rows", 0, 16.0 * S * G * HD, 0, gpu->kv_write(gpu, tk, tv, dec, S, sc));
    SPEED("decode, 512 x 300 keys", 4.0 * S * 301 * H * HD, 8.0 * S * 301 * G * HD, 0,
          gpu->attention(gpu, tensor_f32(o.a.d, S, H * HD, H * HD), NULL, tq, tk, tv, dec, S, sc));
    struct weight wt = {.w = table.a.d, .N = V, .K = D}, wo = {.w = table.a.d, .N = D, .K = D};
    SPEED("linear head, 512 rows", 2.0 * S * V * D, 0, 0,
          gpu->linear(gpu, tensor_f32(logits.a.d, S, V, V), tensor_f32(x.a.d, S, D, D), &wt, NULL, false));
    SPEED("linear o, 512 rows", 2.0 * S * D * D, 0, 0,
          gpu->linear(gpu, tensor_f32(y.a.d, S, D, D), tensor_f32(x.a.d, S, D, D), &wo, NULL, false));
    free(ids), free(pos), free(all), free(logp), free(ent), free(g);
    case_end();
}

int main(int argc, char **argv) {
    const char *path = NULL;
    bool with_speed = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--no-speed") == 0)
            with_speed = false;
        else if (argv[i][0] == '-' || path)
            return fprintf(stderr, "usage: cuda_ops [--no-speed] PLUGIN.so\n"), 2;
        else
            path = argv[i];
    }
    if (!path) return fprintf(stderr, "usage: cuda_ops [--no-speed] PLUGIN.so\n"), 2;
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = plugin ? dlsym(plugin, "kernelrl_cuda_open") : NULL;
    if (!symbol) return fprintf(stderr, "%s: %s\n", path, dlerror()), 2;
    backend_plugin_open_fn *open_plugin;
    memcpy(&open_plugin, &symbol, sizeof open_plugin);
    struct err e;
    char msg[512] = "";
    struct pool *pool = pool_create(0);
    if (cpu_backend_open(pool, &cpu, &e) != ST_OK) return fprintf(stderr, "%s\n", e.msg), 2;
    if (open_plugin(BACKEND_ABI, 0, pool, &gpu, msg, sizeof msg) != 0) return fprintf(stderr, "%s: %s\n", path, msg), 2;
    emulated = strstr(gpu->name, "emulated") != NULL;
    printf("%s against cpu %s, %d threads\n", gpu->name, cpu->name, pool_threads(pool));

    test_memory(open_plugin);
    test_product("linear");
    test_product("linear_dx");
    test_product("linear_dw");
    test_rmsnorm();
    test_rmsnorm_grad();
    test_rope(false);
    test_rope(true);
    test_swiglu(false);
    test_swiglu(true);
    test_logprob(false);
    test_logprob(true);
    test_rows();
    test_ring();
    test_elementwise();
    test_cached();
    test_attention(false);
    test_attention(true);
    if (with_speed && !emulated) speed();
    gpu->close(gpu);
    cpu->close(cpu);
    pool_destroy(pool);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
