/* Cases of the matrix products, with float32 and with bf16 weights, and of bias_grad. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "opcheck/cases.h"

/* M, N, K. The last ones reach the large tiles of a large device. */
static const int64_t sizes[][SHAPE] = {
    {0, 5, 3},         {1, 1, 1},        {1, 64, 128},    {2, 65, 129},    {5, 15, 0},      {3, 17, 31},
    {6, 16, 16},       {7, 17, 127},     {8, 63, 130},    {9, 64, 31},     {11, 130, 31},   {12, 48, 64},
    {13, 1, 257},      {16, 128, 32},    {17, 130, 33},   {64, 70, 20},    {1, 200, 5},     {3, 300, 70},
    {250, 33, 40},     {4, 96, 1030},    {33, 64, 600},   {129, 257, 65},  {260, 257, 33},  {500, 20, 9},
    {300, 132, 48},    {131, 516, 72},   {400, 300, 100}, {512, 128, 256}, {700, 1000, 65}, {2200, 1030, 130},
    {2048, 1536, 256}, {16384, 256, 64},
};
const struct shape_list shapes_product = {sizes, (int)ARRAY_LEN(sizes)};

static const int64_t small[][SHAPE] = {{1, 1, 1}, {3, 5, 4}, {5, 7, 6}};

enum { X, W, Y, BIAS };

static void product_cost(const struct op_case *c, double *flop, double *bytes) {
    const double M = (double)c->s[0], N = (double)c->s[1], K = (double)c->s[2];
    *flop = 2 * M * N * K;
    *bytes = 4 * (M * N + M * K) + (c->dt == DT_BF16 ? 2 : 4) * N * K;
}

/* An operand of a bf16 product is rounded before it is multiplied. */
static double factor(const struct op_case *c, double x) {
    return c->dt == DT_BF16 ? (double)bf16_rounded((float)x) : x;
}

/* Subnormal numbers become zero. */
static inline float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x; }

/* The oracle computes SIDE sums side by side, because most of a check's time is spent here. */
enum { SIDE = 8 };

/* s[q] + the sum of a_k b_kq for k = 0..n-1, in the order of tensor/ops.h. b has SIDE columns, and the factors of bf16
 * are rounded already. */
static inline __attribute__((always_inline)) void chains(const struct op_case *c, float *s, const float *a,
                                                         const float *b, int64_t n) {
    if (c->dt == DT_F32) {
        for (int64_t k = 0; k < n; k++)
            for (int q = 0; q < SIDE; q++) s[q] = fmaf(a[k], b[k * SIDE + q], s[q]);
    } else if (!c->tiles) {
        for (int64_t k = 0; k < n; k += 2)
            for (int64_t i = k + 1; i >= k;
                 i--) /* The odd one of a pair comes first. It is a product of zeros where it is missing. */
                for (int q = 0; q < SIDE; q++)
                    s[q] = flushed(fmaf(i < n ? a[i] : 0, i < n ? b[i * SIDE + q] : 0, flushed(s[q])));
    } else {
        for (int64_t k0 = 0; k0 < n; k0 += 32) {
            float sum[2][SIDE] = {{0}};
            for (int64_t i = k0; i < k0 + 32; i++)
                for (int q = 0; q < SIDE; q++)
                    sum[i % 2][q] = flushed(fmaf(i < n ? a[i] : 0, i < n ? b[i * SIDE + q] : 0, sum[i % 2][q]));
            for (int q = 0; q < SIDE; q++) s[q] = flushed(flushed(s[q]) + flushed(sum[0][q] + sum[1][q]));
        }
    }
}

/* Without an instruction for it, fmaf is a function of the library, and takes ten times as long. */
static void chains_plain(const struct op_case *c, float *s, const float *a, const float *b, int64_t n) {
    chains(c, s, a, b, n);
}
#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void chains_fused(const struct op_case *c, float *s, const float *a,
                                                             const float *b, int64_t n) {
    chains(c, s, a, b, n);
}
#else
#define chains_fused chains_plain
#endif
static bool fuses(void) {
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

/* A matrix of floats, its rows end to end: operand i, or its transpose, as factors. The caller frees it. */
static float *factors(const struct op_case *c, double *const v[], int i, bool transposed) {
    const int64_t R = c->a[i].rows, C = c->a[i].cols;
    float *p = xaligned((size_t)i64_max(R * C, 1) * sizeof *p);
    for (int64_t r = 0; r < R; r++)
        for (int64_t j = 0; j < C; j++) p[transposed ? j * R + r : r * C + j] = (float)factor(c, v[i][at(c, i, r, j)]);
    return p;
}

/* out[r,j] = begin + <row r of a, row j of b>. Frees a and b. */
static void expect_product(const struct op_case *c, double *const v[], int out, float *a, float *b, int64_t n,
                           bool accumulate, int bias) {
    void (*const sums)(const struct op_case *, float *, const float *, const float *, int64_t) =
        fuses() ? chains_fused : chains_plain;
    const int64_t cols = c->a[out].cols;
    float *const side = xaligned((size_t)i64_max(n, 1) * SIDE * sizeof *side);
    for (int64_t j0 = 0; j0 < cols; j0 += SIDE) {
        /* Behind the last column there are copies of it. */
        const int width = (int)i64_min(cols - j0, SIDE);
        for (int64_t k = 0; k < n; k++)
            for (int q = 0; q < SIDE; q++) side[k * SIDE + q] = b[(j0 + i64_min(q, width - 1)) * n + k];
        for (int64_t r = 0; r < c->a[out].rows; r++) {
            float s[SIDE] = {0};
            for (int q = 0; q < width; q++)
                s[q] = accumulate ? (float)v[out][at(c, out, r, j0 + q)]
                       : bias     ? (float)v[bias][at(c, bias, 0, j0 + q)]
                                  : 0.0f;
            sums(c, s, a + r * n, side, n);
            for (int q = 0; q < width; q++) v[out][at(c, out, r, j0 + q)] = (double)s[q];
        }
    }
    free(side);
    free(a);
    free(b);
}

/* ---- linear: variants 0 plain, 1 with bias, 2 accumulating, 3 without a float32 weight --------------------------- */

static void linear_build(struct op_case *c) {
    const int64_t M = c->s[0], N = c->s[1], K = c->s[2];
    c->rows = M;
    c->weight = W;
    operand_add(c, X, "x", IN, M, K, PER_ROW, 1);
    operand_add(c, W, "w", IN, N, K, SOLID, 1);
    operand_add(c, Y, "y", c->variant == 2 ? INOUT : OUT, M, N, PER_ROW, 1);
    if (c->variant == 1) operand_add(c, BIAS, "bias", IN, 1, N, SOLID, 1);
}
static void linear_bf16_build(struct op_case *c) {
    c->dt = DT_BF16;
    c->alone = c->variant == 3;
    linear_build(c);
}
static void linear_call(const struct op_case *c, struct side *s) {
    s->be->linear(s->be, side_view(c, s, Y), side_view(c, s, X), &s->w, side_floats(c, s, BIAS), c->variant == 2);
}
static void linear_expect(const struct op_case *c, double *const v[]) {
    expect_product(c, v, Y, factors(c, v, X, false), factors(c, v, W, false), c->s[2], c->variant == 2,
                   c->a[BIAS].name ? BIAS : 0);
}
const struct op_functions op_linear = {
    .build = linear_build, .call = linear_call, .expect = linear_expect, .cost = product_cost, .batch = {0, 70, 130}};
const struct op_functions op_linear_bf16 = {.build = linear_bf16_build,
                                            .call = linear_call,
                                            .expect = linear_expect,
                                            .cost = product_cost,
                                            .batch = {0, 70, 130}};

/* ---- linear_dx: variants 0 overwriting, 1 accumulating, 2 without a float32 weight ------------------------------- */

enum { DY, DW_W, DX, FORWARD_X };

static void linear_dx_build(struct op_case *c) {
    const int64_t M = c->s[0], N = c->s[1], K = c->s[2];
    c->rows = M;
    c->weight = DW_W;
    operand_add(c, DY, "dy", IN, M, N, PER_ROW, 1);
    operand_add(c, DW_W, "w", IN, N, K, SOLID, 1);
    operand_add(c, DX, "dx", c->variant == 1 ? INOUT : OUT, M, K, PER_ROW, 1);
    operand_add(c, FORWARD_X, "x", WRT, M, K, PER_ROW, 1);
}
static void linear_dx_bf16_build(struct op_case *c) {
    c->dt = DT_BF16;
    c->alone = c->variant == 2;
    linear_dx_build(c);
}
static void linear_dx_call(const struct op_case *c, struct side *s) {
    s->be->linear_dx(s->be, side_view(c, s, DX), side_view(c, s, DY), &s->w, c->variant == 1);
}
static void linear_dx_expect(const struct op_case *c, double *const v[]) {
    expect_product(c, v, DX, factors(c, v, DY, false), factors(c, v, DW_W, true), c->s[1], c->variant == 1, 0);
}
static double linear_dx_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t m = 0; m < c->s[0]; m++)
        for (int64_t n = 0; n < c->s[1]; n++) {
            double y = 0;
            for (int64_t k = 0; k < c->s[2]; k++)
                y += v[FORWARD_X][at(c, FORWARD_X, m, k)] * factor(c, v[DW_W][at(c, DW_W, n, k)]);
            loss += factor(c, v[DY][at(c, DY, m, n)]) * y;
        }
    return loss;
}
const struct op_functions op_linear_dx = {.build = linear_dx_build,
                                          .call = linear_dx_call,
                                          .expect = linear_dx_expect,
                                          .loss = linear_dx_loss,
                                          .cost = product_cost,
                                          .pair = {{FORWARD_X, DX, false}},
                                          .small = small,
                                          .n_small = (int)ARRAY_LEN(small),
                                          .batch = {0, 130, 70}};
const struct op_functions op_linear_dx_bf16 = {.build = linear_dx_bf16_build,
                                               .call = linear_dx_call,
                                               .expect = linear_dx_expect,
                                               .loss = linear_dx_loss,
                                               .cost = product_cost,
                                               .pair = {{FORWARD_X, DX, false}},
                                               .small = small,
                                               .n_small = (int)ARRAY_LEN(small),
                                               .batch = {0, 130, 70}};

/* ---- linear_dw --------------------------------------------------------------------------------------------------- */

enum { DW_X = 1, DW = 2, FORWARD_W = 3 };

static void linear_dw_build(struct op_case *c) {
    const int64_t M = c->s[0], N = c->s[1], K = c->s[2];
    c->rows = M;
    operand_add(c, DY, "dy", IN, M, N, PER_ROW, 1);
    operand_add(c, DW_X, "x", IN, M, K, PER_ROW, 1);
    operand_add(c, DW, "dw", INOUT, N, K, SOLID, 1);
    operand_add(c, FORWARD_W, "w", WRT, N, K, SOLID, 1);
}
static void linear_dw_bf16_build(struct op_case *c) {
    c->dt = DT_BF16;
    linear_dw_build(c);
}
static void linear_dw_call(const struct op_case *c, struct side *s) {
    s->be->linear_dw(s->be, side_floats(c, s, DW), side_view(c, s, DY), side_view(c, s, DW_X), c->dt);
}
static void linear_dw_expect(const struct op_case *c, double *const v[]) {
    /* There are no rows, so nothing is added, not even a zero to a subnormal number. */
    if (c->s[0] == 0) return;
    expect_product(c, v, DW, factors(c, v, DY, true), factors(c, v, DW_X, true), c->s[0], true, 0);
}
static double linear_dw_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t m = 0; m < c->s[0]; m++)
        for (int64_t n = 0; n < c->s[1]; n++) {
            double y = 0;
            for (int64_t k = 0; k < c->s[2]; k++)
                y += factor(c, v[DW_X][at(c, DW_X, m, k)]) * v[FORWARD_W][at(c, FORWARD_W, n, k)];
            loss += factor(c, v[DY][at(c, DY, m, n)]) * y;
        }
    return loss;
}
static void linear_dw_cost(const struct op_case *c, double *flop, double *bytes) {
    const double M = (double)c->s[0], N = (double)c->s[1], K = (double)c->s[2];
    *flop = 2 * M * N * K;
    *bytes = 4 * (M * N + M * K) + 8 * N * K;
}
const struct op_functions op_linear_dw = {.build = linear_dw_build,
                                          .call = linear_dw_call,
                                          .expect = linear_dw_expect,
                                          .loss = linear_dw_loss,
                                          .cost = linear_dw_cost,
                                          .pair = {{FORWARD_W, DW, false}},
                                          .small = small,
                                          .n_small = (int)ARRAY_LEN(small),
                                          .batch = {0, 70, 130}};
const struct op_functions op_linear_dw_bf16 = {.build = linear_dw_bf16_build,
                                               .call = linear_dw_call,
                                               .expect = linear_dw_expect,
                                               .loss = linear_dw_loss,
                                               .cost = linear_dw_cost,
                                               .pair = {{FORWARD_W, DW, false}},
                                               .small = small,
                                               .n_small = (int)ARRAY_LEN(small),
                                               .batch = {0, 70, 130}};

/* ---- bias_grad --------------------------------------------------------------------------------------------------- */

static const int64_t small_rows[][SHAPE] = {{1, 1}, {5, 7}};
enum { BG_DB = 1, BG_BIAS = 2 };

static void bias_grad_build(struct op_case *c) {
    c->rows = c->s[0];
    operand_add(c, DY, "dy", IN, c->s[0], c->s[1], PER_ROW, 1);
    operand_add(c, BG_DB, "db", INOUT, 1, c->s[1], SOLID, 1);
    operand_add(c, BG_BIAS, "bias", WRT, 1, c->s[1], SOLID, 1);
}
static void bias_grad_call(const struct op_case *c, struct side *s) {
    s->be->bias_grad(s->be, side_floats(c, s, BG_DB), side_view(c, s, DY));
}
static void bias_grad_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->s[0]; t++)
        for (int64_t j = 0; j < c->s[1]; j++) {
            double *db = &v[BG_DB][at(c, BG_DB, 0, j)];
            *db = (double)((float)*db + (float)v[DY][at(c, DY, t, j)]);
        }
}
static double bias_grad_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t t = 0; t < c->s[0]; t++)
        for (int64_t j = 0; j < c->s[1]; j++) loss += v[DY][at(c, DY, t, j)] * v[BG_BIAS][at(c, BG_BIAS, 0, j)];
    return loss;
}
static void bias_grad_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 4 * (double)c->s[1] * ((double)c->s[0] + 2);
}
const struct op_functions op_bias_grad = {.build = bias_grad_build,
                                          .call = bias_grad_call,
                                          .expect = bias_grad_expect,
                                          .loss = bias_grad_loss,
                                          .cost = bias_grad_cost,
                                          .pair = {{BG_BIAS, BG_DB, false}},
                                          .small = small_rows,
                                          .n_small = (int)ARRAY_LEN(small_rows),
                                          .batch = {0, 70}};
