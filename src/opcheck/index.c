/* Cases of the ops on rows by index, of axpby and of the optimizer. */
#include <math.h>
#include <string.h>

#include "opcheck/cases.h"

#define V(i, r, j) (v[(i)][at(c, (int)(i), (r), (j))])

/* T, n, R */
static const int64_t tables[][SHAPE] = {{0, 3, 4},    {1, 1, 1},     {5, 17, 3},      {64, 64, 10},   {200, 33, 7},
                                        {9, 37, 130}, {1000, 65, 2}, {300, 256, 100}, {16384, 1, 777}};
const struct shape_list shapes_table = {tables, (int)ARRAY_LEN(tables)};
static const int64_t table_small[][SHAPE] = {{1, 1, 1}, {7, 5, 3}};

/* The rows (T of them), the table that they come from or go to, the indices, and factors of the rows. */
enum { ROW, TABLE, IDS, FORWARD_TABLE, FACTOR };

static void rows_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 8 * (double)c->s[0] * (double)c->s[1];
}
static void add_rows_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 12 * (double)c->s[0] * (double)c->s[1];
}

/* ---- embed, gather_rows ------------------------------------------------------------------------------------------ */

static void taking_build(struct op_case *c, unsigned table_flags) {
    c->rows = c->s[0];
    operand_add(c, ROW, "x", OUT, c->s[0], c->s[1], PER_ROW, 1);
    operand_add(c, TABLE, "table", IN, c->s[2], c->s[1], table_flags, 1);
    operand_index(c, IDS, "ids", c->s[0], c->s[2]);
}
static void taking_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < c->s[1]; j++) {
            const double x = V(TABLE, c->a[IDS].index[t], j);
            V(ROW, t, j) = c->alone ? (double)bf16_rounded((float)x) : x;
        }
}
static void embed_build(struct op_case *c) {
    c->weight = TABLE;
    taking_build(c, SOLID);
}
static void embed_call(const struct op_case *c, struct side *s) {
    s->be->embed(s->be, side_view(c, s, ROW), &s->w, side_index(c, s, IDS));
}
const struct op_functions op_embed = {
    .build = embed_build, .call = embed_call, .expect = taking_expect, .cost = rows_cost, .batch = {0, 33, 7}};

/* Variants: 0 has float32 values, which it takes; 1 has only bf16. */
static void embed_bf16_build(struct op_case *c) {
    c->dt = DT_BF16;
    c->alone = c->variant == 1;
    embed_build(c);
}
const struct op_functions op_embed_bf16 = {
    .build = embed_bf16_build, .call = embed_call, .expect = taking_expect, .cost = rows_cost, .batch = {0, 33, 7}};

static void gather_rows_build(struct op_case *c) { taking_build(c, 0); }
static void gather_rows_call(const struct op_case *c, struct side *s) {
    s->be->gather_rows(s->be, side_view(c, s, ROW), side_view(c, s, TABLE), side_index(c, s, IDS));
}
const struct op_functions op_gather_rows = {.build = gather_rows_build,
                                            .call = gather_rows_call,
                                            .expect = taking_expect,
                                            .cost = rows_cost,
                                            .batch = {0, 33, 7}};

/* ---- embed_grad, scatter_add_rows -------------------------------------------------------------------------------- */

static void adding_build(struct op_case *c, unsigned table_flags) {
    c->rows = c->s[0];
    operand_add(c, ROW, "dx", IN, c->s[0], c->s[1], PER_ROW, 1);
    operand_add(c, TABLE, "dtable", INOUT, c->s[2], c->s[1], table_flags, 1);
    operand_index(c, IDS, "ids", c->s[0], c->s[2]);
    operand_add(c, FORWARD_TABLE, "table", WRT, c->s[2], c->s[1], table_flags, 1);
}
static void adding_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < c->s[1]; j++) {
            double *sum = &V(TABLE, c->a[IDS].index[t], j);
            const float x = (float)V(ROW, t, j), term = v[FACTOR] ? (float)V(FACTOR, t, 0) * x : x;
            *sum = (double)((float)*sum + term);
        }
}
static double adding_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < c->s[1]; j++)
            loss += (v[FACTOR] ? V(FACTOR, t, 0) : 1) * V(ROW, t, j) * V(FORWARD_TABLE, c->a[IDS].index[t], j);
    return loss;
}
static void embed_grad_build(struct op_case *c) { adding_build(c, SOLID); }
static void embed_grad_call(const struct op_case *c, struct side *s) {
    s->be->embed_grad(s->be, side_floats(c, s, TABLE), side_view(c, s, ROW), side_index(c, s, IDS));
}
const struct op_functions op_embed_grad = {.build = embed_grad_build,
                                           .call = embed_grad_call,
                                           .expect = adding_expect,
                                           .loss = adding_loss,
                                           .cost = add_rows_cost,
                                           .pair = {{FORWARD_TABLE, TABLE, false}},
                                           .small = table_small,
                                           .n_small = (int)ARRAY_LEN(table_small),
                                           .batch = {0, 33, 7}};

/* Variants: 0 takes rows as they are; 1 has a factor for each row. */
static void scatter_add_rows_build(struct op_case *c) {
    adding_build(c, 0);
    if (c->variant == 1) operand_add(c, FACTOR, "scale", IN, c->s[0], 1, PER_ROW | SOLID | ON_HOST, 1);
}
static void scatter_add_rows_call(const struct op_case *c, struct side *s) {
    s->be->scatter_add_rows(s->be, side_view(c, s, TABLE), side_view(c, s, ROW), side_index(c, s, IDS),
                            side_floats(c, s, FACTOR));
}
const struct op_functions op_scatter_add_rows = {.build = scatter_add_rows_build,
                                                 .call = scatter_add_rows_call,
                                                 .expect = adding_expect,
                                                 .loss = adding_loss,
                                                 .cost = add_rows_cost,
                                                 .pair = {{FORWARD_TABLE, TABLE, false}},
                                                 .small = table_small,
                                                 .n_small = (int)ARRAY_LEN(table_small),
                                                 .batch = {0, 33, 7}};

/* ---- axpby: variants are pairs of factors, the last one with y in place of x --------------------------------------
 */

static const float axpby_factor[][2] = {{1, 0}, {0, 0}, {0.37f, 0}, {1, 1}, {-0.7f, 0.3f}, {0, 0.9f}, {0.37f, 0.5f}};
enum { AX_X, AX_Y, AX_ALIAS = 6 };

static void axpby_build(struct op_case *c) {
    const bool reads_y = axpby_factor[c->variant][1] != 0;
    c->rows = c->s[0];
    if (c->variant != AX_ALIAS) operand_add(c, AX_X, "x", IN, c->s[0], c->s[1], PER_ROW, 1);
    operand_add(c, AX_Y, "y", reads_y ? INOUT : OUT, c->s[0], c->s[1], PER_ROW, 1);
}
static void axpby_call(const struct op_case *c, struct side *s) {
    const float *f = axpby_factor[c->variant];
    s->be->axpby(s->be, side_view(c, s, AX_Y), f[0], side_view(c, s, c->variant == AX_ALIAS ? AX_Y : AX_X), f[1]);
}
static void axpby_expect(const struct op_case *c, double *const v[]) {
    const float a = axpby_factor[c->variant][0], b = axpby_factor[c->variant][1];
    const int from = c->variant == AX_ALIAS ? AX_Y : AX_X;
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < c->s[1]; j++) {
            const float x = (float)V(from, t, j), y = (float)V(AX_Y, t, j);
            V(AX_Y, t, j) = (double)(a == 0 && b == 0 ? 0.0f : b == 0 ? a * x : a * x + b * y);
        }
}
static void axpby_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = (axpby_factor[c->variant][1] != 0 ? 12 : 8) * (double)c->s[0] * (double)c->s[1];
}
const struct op_functions op_axpby = {
    .build = axpby_build, .call = axpby_call, .expect = axpby_expect, .cost = axpby_cost, .batch = {0, 133}};

/* ---- adamw, sum_squares: n ----------------------------------------------------------------------------------------
 */

static const int64_t lengths[][SHAPE] = {{0},     {1},     {17},      {1000},
                                         {1023},  {1024},  {1025},    {32768},
                                         {32769}, {70001}, {1000000}, {(int64_t)SUM_BLOCK * (1 << 14) + 4099}};
const struct shape_list shapes_length = {lengths, (int)ARRAY_LEN(lengths)};

enum { AW_W, AW_M, AW_V, AW_G };
static const struct adamw_args adam = {0.9f, 0.98f, 1e-8f, 0.77f, 0.9999f, 3e-3f, 1.3f};

static void adamw_build(struct op_case *c) {
    operand_add(c, AW_W, "w", INOUT, 1, c->s[0], SOLID, 1);
    operand_add(c, AW_M, "m", INOUT, 1, c->s[0], SOLID, 0.1f);
    operand_add(c, AW_V, "v", INOUT, 1, c->s[0], SOLID, 0.01f);
    operand_add(c, AW_G, "g", IN, 1, c->s[0], SOLID, 1);
    /* They are sums of squares. */
    for (int64_t j = 0; j < c->s[0]; j++) c->a[AW_V].init[j] = fabsf(c->a[AW_V].init[j]);
}
static void adamw_call(const struct op_case *c, struct side *s) {
    s->be->adamw(s->be, side_floats(c, s, AW_W), side_floats(c, s, AW_M), side_floats(c, s, AW_V),
                 side_floats(c, s, AW_G), c->s[0], &adam);
}
/* Each operation is rounded once, in the order in which tensor/ops.h writes them. */
static void adamw_expect(const struct op_case *c, double *const v[]) {
    for (int64_t j = 0; j < c->s[0]; j++) {
        const float g = (float)v[AW_G][j] * adam.scale, w = (float)v[AW_W][j] * adam.decay;
        const float d = g - (float)v[AW_M][j], step = (1 - adam.beta1) * d;
        const float m = (float)v[AW_M][j] + step;
        const float kept = (float)v[AW_V][j] * adam.beta2, weighted = (1 - adam.beta2) * g;
        const float square = weighted * g, second = kept + square;
        const float root = sqrtf(second) * adam.inv_sqrt_bias2, below = root + adam.eps, above = adam.step_size * m;
        v[AW_M][j] = (double)m;
        v[AW_V][j] = (double)second;
        v[AW_W][j] = (double)(w - above / below);
    }
}
static void adamw_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 28 * (double)c->s[0];
}
const struct op_functions op_adamw = {
    .build = adamw_build, .call = adamw_call, .expect = adamw_expect, .cost = adamw_cost, .batch = {70001}};

/* The sum is a double: its 64 bits are kept in two floats. */
enum { SQ_X, SQ_SUM };

static void put_double(double x, float out[2]) { memcpy(out, &x, sizeof x); }

static void sum_squares_build(struct op_case *c) {
    operand_add(c, SQ_X, "x", IN, 1, c->s[0], SOLID, 1.7f);
    operand_add(c, SQ_SUM, "sum", OUT, 1, 2, SOLID | ON_HOST, 1);
}
static void sum_squares_call(const struct op_case *c, struct side *s) {
    put_double(s->be->sum_squares(s->be, side_floats(c, s, SQ_X), c->s[0]), side_floats(c, s, SQ_SUM));
}
static void sum_squares_expect(const struct op_case *c, double *const v[]) {
    double total = 0;
    for (int64_t run = 0, runs = (int64_t)SUM_BLOCK * SUM_BLOCK; run < c->s[0]; run += runs) {
        double all = 0;
        for (int64_t i = run; i < c->s[0] && i < run + runs; i += SUM_BLOCK) {
            double s = 0;
            for (int64_t j = i; j < c->s[0] && j < i + SUM_BLOCK; j++) s += v[SQ_X][j] * v[SQ_X][j];
            all += s;
        }
        total += all;
    }
    float halves[2];
    put_double(total, halves);
    v[SQ_SUM][0] = (double)halves[0];
    v[SQ_SUM][1] = (double)halves[1];
}
static void sum_squares_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 4 * (double)c->s[0];
}
const struct op_functions op_sum_squares = {.build = sum_squares_build,
                                            .call = sum_squares_call,
                                            .expect = sum_squares_expect,
                                            .cost = sum_squares_cost,
                                            .batch = {70001}};
