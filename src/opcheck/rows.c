/* Cases of the ops that work on rows: norms, rotary embedding, SwiGLU, log-probabilities, and their gradients. */
#include <math.h>

#include "opcheck/cases.h"

/* T, n */
static const int64_t rows[][SHAPE] = {{0, 8},   {1, 1},    {3, 15},    {2, 16},   {5, 17},   {7, 63},   {9, 64},
                                      {31, 65}, {300, 33}, {129, 256}, {257, 96}, {17, 129}, {6, 2048}, {1000, 129}};
const struct shape_list shapes_row = {rows, (int)ARRAY_LEN(rows)};

/* For the gradient of a norm. n = 1 is not among them: there the gradient is what two equal terms leave over. */
static const int64_t norms[][SHAPE] = {{0, 8},   {1, 5},    {3, 15},    {2, 16},   {5, 17},   {7, 63},   {9, 64},
                                       {31, 65}, {300, 33}, {129, 256}, {257, 96}, {17, 129}, {6, 2048}, {1000, 129}};
const struct shape_list shapes_norm = {norms, (int)ARRAY_LEN(norms)};

#define V(i, r, j) (v[(i)][at(c, (int)(i), (r), (j))])

/* ---- rmsnorm ----------------------------------------------------------------------------------------------------- */

#define EPS 1e-5f
enum { RN_X, RN_GAIN, RN_Y, RN_DY = 2, RN_DX = 3, RN_DGAIN = 4 };

static void rmsnorm_build(struct op_case *c) {
    c->rows = c->s[0];
    operand_add(c, RN_X, "x", IN, c->s[0], c->s[1], PER_ROW, 2);
    operand_add(c, RN_GAIN, "gain", IN, 1, c->s[1], SOLID, 1);
    operand_add(c, RN_Y, "y", OUT, c->s[0], c->s[1], PER_ROW, 1);
}
static void rmsnorm_call(const struct op_case *c, struct side *s) {
    s->be->rmsnorm(s->be, side_view(c, s, RN_Y), side_view(c, s, RN_X), side_floats(c, s, RN_GAIN), EPS);
}
static double rstd(const double *x, int64_t n) {
    double s = 0;
    for (int64_t j = 0; j < n; j++) s += x[j] * x[j];
    return 1 / sqrt(s / (double)n + (double)EPS);
}
static void rmsnorm_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->rows; t++) {
        const double r = rstd(&V(RN_X, t, 0), c->s[1]);
        for (int64_t j = 0; j < c->s[1]; j++) V(RN_Y, t, j) = V(RN_X, t, j) * r * V(RN_GAIN, 0, j);
    }
}
static void rmsnorm_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 4 * (2 * (double)c->s[0] * (double)c->s[1] + (double)c->s[1]);
}
const struct op_functions op_rmsnorm = {
    .build = rmsnorm_build, .call = rmsnorm_call, .expect = rmsnorm_expect, .cost = rmsnorm_cost, .batch = {0, 133}};

/* Variants: bit 0 accumulates dx, bit 1 wants no gradient of the gain. */
static void rmsnorm_grad_build(struct op_case *c) {
    c->rows = c->s[0];
    operand_add(c, RN_X, "x", IN, c->s[0], c->s[1], PER_ROW, 2);
    operand_add(c, RN_GAIN, "gain", IN, 1, c->s[1], SOLID, 1);
    operand_add(c, RN_DY, "dy", IN, c->s[0], c->s[1], PER_ROW, 1);
    operand_add(c, RN_DX, "dx", c->variant & 1 ? INOUT : OUT, c->s[0], c->s[1], PER_ROW, 1);
    if (!(c->variant & 2)) operand_add(c, RN_DGAIN, "dgain", INOUT, 1, c->s[1], SOLID, 1);
}
static void rmsnorm_grad_call(const struct op_case *c, struct side *s) {
    s->be->rmsnorm_grad(s->be, side_view(c, s, RN_DX), side_floats(c, s, RN_DGAIN), side_view(c, s, RN_DY),
                        side_view(c, s, RN_X), side_floats(c, s, RN_GAIN), EPS, c->variant & 1);
}
/* dy_i/dx_j = gain_i (r [i = j] - x_i x_j r^3 / n) */
static void rmsnorm_grad_expect(const struct op_case *c, double *const v[]) {
    const int64_t n = c->s[1];
    for (int64_t t = 0; t < c->rows; t++) {
        const double r = rstd(&V(RN_X, t, 0), n);
        double dot = 0;
        for (int64_t j = 0; j < n; j++) dot += V(RN_DY, t, j) * V(RN_GAIN, 0, j) * V(RN_X, t, j);
        for (int64_t j = 0; j < n; j++) {
            const double old = c->variant & 1 ? V(RN_DX, t, j) : 0;
            V(RN_DX, t, j) = old + r * V(RN_DY, t, j) * V(RN_GAIN, 0, j) - V(RN_X, t, j) * dot * r * r * r / (double)n;
            if (v[RN_DGAIN]) V(RN_DGAIN, 0, j) += V(RN_DY, t, j) * V(RN_X, t, j) * r;
        }
    }
}
static double rmsnorm_grad_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t t = 0; t < c->rows; t++) {
        const double r = rstd(&V(RN_X, t, 0), c->s[1]);
        for (int64_t j = 0; j < c->s[1]; j++) loss += V(RN_DY, t, j) * V(RN_X, t, j) * r * V(RN_GAIN, 0, j);
    }
    return loss;
}
static void rmsnorm_grad_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 4 * (3 + (double)(c->variant & 1)) * (double)c->s[0] * (double)c->s[1] + 12 * (double)c->s[1];
}
static const int64_t rmsnorm_small[][SHAPE] = {{1, 3}, {4, 17}};
const struct op_functions op_rmsnorm_grad = {.build = rmsnorm_grad_build,
                                             .call = rmsnorm_grad_call,
                                             .expect = rmsnorm_grad_expect,
                                             .loss = rmsnorm_grad_loss,
                                             .cost = rmsnorm_grad_cost,
                                             .pair = {{RN_X, RN_DX, false}, {RN_GAIN, RN_DGAIN, false}},
                                             .small = rmsnorm_small,
                                             .n_small = (int)ARRAY_LEN(rmsnorm_small),
                                             .batch = {0, 133}};

/* ---- rope: T, H, G, K; variants 0 without QK-norm, 1 with it, 2 (gradient) with it but no gradients of gains -------
 */

static const int64_t ropes[][SHAPE] = {{0, 2, 1, 8},    {1, 1, 1, 2},    {17, 4, 2, 64},  {140, 4, 2, 22},
                                       {300, 2, 2, 32}, {65, 6, 3, 128}, {130, 3, 1, 34}, {33, 2, 1, 256}};
const struct shape_list shapes_rope = {ropes, (int)ARRAY_LEN(ropes)};

enum { POSITIONS = 200 };
enum { RO_QKV, RO_COS, RO_SIN, RO_POS, RO_QGAIN, RO_KGAIN, RO_QK, RO_D = 6, RO_DQ, RO_DK };

static void rope_inputs(struct op_case *c) {
    const int64_t T = c->s[0], K = c->s[3];
    c->rows = T;
    operand_add(c, RO_QKV, "qkv", IN, T, (c->s[1] + 2 * c->s[2]) * K, PER_ROW, 1);
    operand_add(c, RO_COS, "cos", IN, POSITIONS, K / 2, SOLID, 1);
    operand_add(c, RO_SIN, "sin", IN, POSITIONS, K / 2, SOLID, 1);
    operand_index(c, RO_POS, "pos", T, POSITIONS);
    if (c->variant == 0) return;
    operand_add(c, RO_QGAIN, "q_gain", IN, 1, K, SOLID, 1);
    operand_add(c, RO_KGAIN, "k_gain", IN, 1, K, SOLID, 1);
}
static struct rope_args rope_args(const struct op_case *c, const struct side *s) {
    return (struct rope_args){c->s[1],
                              c->s[2],
                              c->s[3],
                              side_index(c, s, RO_POS),
                              side_floats(c, s, RO_COS),
                              side_floats(c, s, RO_SIN),
                              side_floats(c, s, RO_QGAIN),
                              side_floats(c, s, RO_KGAIN),
                              EPS};
}
static void rope_build(struct op_case *c) {
    rope_inputs(c);
    operand_add(c, RO_QK, "qk", OUT, c->s[0], (c->s[1] + c->s[2]) * c->s[3], PER_ROW, 1);
}
static void rope_call(const struct op_case *c, struct side *s) {
    const struct rope_args a = rope_args(c, s);
    s->be->rope(s->be, side_view(c, s, RO_QK), side_view(c, s, RO_QKV), &a);
}
/* Elements j and j + K/2 of head h of row t after the op. */
static void rotated(const struct op_case *c, double *const v[], int64_t t, int64_t h, int64_t j, double r,
                    double out[2]) {
    const int64_t H = c->s[1], K = c->s[3], half = K / 2, gain = h < H ? RO_QGAIN : RO_KGAIN;
    const int32_t pos = c->a[RO_POS].index[c->a[RO_POS].off + t];
    double a = V(RO_QKV, t, h * K + j), b = V(RO_QKV, t, h * K + j + half);
    if (c->variant) {
        a *= r * V(gain, 0, j);
        b *= r * V(gain, 0, j + half);
    }
    const double co = V(RO_COS, pos, j), si = V(RO_SIN, pos, j), scale = h < H ? 1 / sqrt((double)K) : 1;
    out[0] = scale * (a * co - b * si);
    out[1] = scale * (b * co + a * si);
}
static void rope_expect(const struct op_case *c, double *const v[]) {
    const int64_t K = c->s[3];
    double out[2];
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t h = 0; h < c->s[1] + c->s[2]; h++) {
            const double r = rstd(&V(RO_QKV, t, h * K), K);
            for (int64_t j = 0; j < K / 2; j++) {
                rotated(c, v, t, h, j, r, out);
                V(RO_QK, t, h * K + j) = out[0];
                V(RO_QK, t, h * K + j + K / 2) = out[1];
            }
        }
}
static void rope_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 8 * (double)c->s[0] * (double)((c->s[1] + c->s[2]) * c->s[3]);
}
const struct op_functions op_rope = {
    .build = rope_build, .call = rope_call, .expect = rope_expect, .cost = rope_cost, .batch = {0, 3, 1, 22}};

static void rope_grad_build(struct op_case *c) {
    rope_inputs(c);
    operand_add(c, RO_D, "dqkv", INOUT, c->s[0], c->a[RO_QKV].cols, PER_ROW, 1);
    if (c->variant != 1) return;
    operand_add(c, RO_DQ, "dq_gain", INOUT, 1, c->s[3], SOLID, 1);
    operand_add(c, RO_DK, "dk_gain", INOUT, 1, c->s[3], SOLID, 1);
}
static void rope_grad_call(const struct op_case *c, struct side *s) {
    const struct rope_args a = rope_args(c, s);
    s->be->rope_grad(s->be, side_view(c, s, RO_D), side_floats(c, s, RO_DQ), side_floats(c, s, RO_DK),
                     side_view(c, s, RO_QKV), &a);
}
/* The columns behind the heads that turn pass through as they are. */
static double rope_grad_loss(const struct op_case *c, double *const v[]) {
    const int64_t K = c->s[3];
    double loss = 0, out[2];
    for (int64_t t = 0; t < c->rows; t++) {
        for (int64_t j = (c->s[1] + c->s[2]) * K; j < c->a[RO_D].cols; j++) loss += V(RO_D, t, j) * V(RO_QKV, t, j);
        for (int64_t h = 0; h < c->s[1] + c->s[2]; h++) {
            const double r = rstd(&V(RO_QKV, t, h * K), K);
            for (int64_t j = 0; j < K / 2; j++) {
                rotated(c, v, t, h, j, r, out);
                loss += V(RO_D, t, h * K + j) * out[0] + V(RO_D, t, h * K + j + K / 2) * out[1];
            }
        }
    }
    return loss;
}
static void rope_grad_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 12 * (double)c->s[0] * (double)((c->s[1] + c->s[2]) * c->s[3]);
}
static const int64_t rope_small[][SHAPE] = {{1, 1, 1, 4}, {3, 2, 1, 6}};
const struct op_functions op_rope_grad = {
    .build = rope_grad_build,
    .call = rope_grad_call,
    .loss = rope_grad_loss,
    .cost = rope_grad_cost,
    .pair = {{RO_QKV, RO_D, true}, {RO_QGAIN, RO_DQ, false}, {RO_KGAIN, RO_DK, false}},
    .small = rope_small,
    .n_small = (int)ARRAY_LEN(rope_small),
    .batch = {0, 3, 1, 22}};

/* ---- swiglu ------------------------------------------------------------------------------------------------------ */

/* T, F */
static const int64_t swiglus[][SHAPE] = {{0, 3}, {1, 1}, {7, 17}, {3, 64}, {129, 65}, {40, 33}, {64, 768}};
const struct shape_list shapes_swiglu = {swiglus, (int)ARRAY_LEN(swiglus)};

enum { SW_GU, SW_Y, SW_DY = 1, SW_DGU };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void swiglu_build(struct op_case *c) {
    c->rows = c->s[0];
    operand_add(c, SW_GU, "gu", IN, c->s[0], 2 * c->s[1], PER_ROW, 3);
    operand_add(c, SW_Y, "y", OUT, c->s[0], c->s[1], PER_ROW, 1);
}
static void swiglu_call(const struct op_case *c, struct side *s) {
    s->be->swiglu(s->be, side_view(c, s, SW_Y), side_view(c, s, SW_GU));
}
static void swiglu_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < c->s[1]; j++) {
            const double g = V(SW_GU, t, j);
            V(SW_Y, t, j) = g * sigmoid(g) * V(SW_GU, t, c->s[1] + j);
        }
}
static void swiglu_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 12 * (double)c->s[0] * (double)c->s[1];
}
const struct op_functions op_swiglu = {
    .build = swiglu_build, .call = swiglu_call, .expect = swiglu_expect, .cost = swiglu_cost, .batch = {0, 133}};

static void swiglu_grad_build(struct op_case *c) {
    c->rows = c->s[0];
    operand_add(c, SW_GU, "gu", IN, c->s[0], 2 * c->s[1], PER_ROW, 3);
    operand_add(c, SW_DY, "dy", IN, c->s[0], c->s[1], PER_ROW, 1);
    operand_add(c, SW_DGU, "dgu", OUT, c->s[0], 2 * c->s[1], PER_ROW, 1);
}
static void swiglu_grad_call(const struct op_case *c, struct side *s) {
    s->be->swiglu_grad(s->be, side_view(c, s, SW_DGU), side_view(c, s, SW_DY), side_view(c, s, SW_GU));
}
static void swiglu_grad_expect(const struct op_case *c, double *const v[]) {
    const int64_t F = c->s[1];
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < F; j++) {
            const double g = V(SW_GU, t, j), up = V(SW_GU, t, F + j), dy = V(SW_DY, t, j), s = sigmoid(g);
            V(SW_DGU, t, j) = dy * up * (s + g * s * (1 - s));
            V(SW_DGU, t, F + j) = dy * g * s;
        }
}
static double swiglu_grad_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t j = 0; j < c->s[1]; j++) {
            const double g = V(SW_GU, t, j);
            loss += V(SW_DY, t, j) * g * sigmoid(g) * V(SW_GU, t, c->s[1] + j);
        }
    return loss;
}
static void swiglu_grad_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 20 * (double)c->s[0] * (double)c->s[1];
}
static const int64_t swiglu_small[][SHAPE] = {{1, 1}, {3, 19}};
const struct op_functions op_swiglu_grad = {.build = swiglu_grad_build,
                                            .call = swiglu_grad_call,
                                            .expect = swiglu_grad_expect,
                                            .loss = swiglu_grad_loss,
                                            .cost = swiglu_grad_cost,
                                            .pair = {{SW_GU, SW_DGU, false}},
                                            .small = swiglu_small,
                                            .n_small = (int)ARRAY_LEN(swiglu_small),
                                            .batch = {0, 133}};

/* ---- logprob ----------------------------------------------------------------------------------------------------- */

/* T, V */
static const int64_t logits[][SHAPE] = {{0, 9},  {1, 1},    {1, 16},   {3, 17},   {40, 31},  {5, 2048},
                                        {9, 33}, {65, 257}, {2, 5000}, {300, 48}, {17, 1023}};
const struct shape_list shapes_logits = {logits, (int)ARRAY_LEN(logits)};

enum { LP_X, LP_TARGET, LP_LOGP, LP_ENTROPY, LP_G = 2 };

/* When values are special, there is also a row with everything but its target masked out. */
static void logits_build(struct op_case *c, enum operand_role role) {
    c->rows = c->s[0];
    operand_add(c, LP_X, "logits", role, c->s[0], c->s[1], PER_ROW, 4);
    operand_index(c, LP_TARGET, "targets", c->s[0], c->s[1]);
    for (int64_t j = 0; c->special == 2 && c->rows > 1 && j < c->s[1]; j++)
        c->a[LP_X].init[at(c, LP_X, 1, j)] = j == c->a[LP_TARGET].index[1] ? 1.0f : -INFINITY;
}
/* Variant 1 wants no entropy. */
static void logprob_build(struct op_case *c) {
    logits_build(c, IN);
    operand_add(c, LP_LOGP, "logp", OUT, c->s[0], 1, PER_ROW | SOLID | ON_HOST, 1);
    if (c->variant == 0) operand_add(c, LP_ENTROPY, "entropy", OUT, c->s[0], 1, PER_ROW | SOLID | ON_HOST, 1);
}
static void logprob_call(const struct op_case *c, struct side *s) {
    s->be->logprob(s->be, side_floats(c, s, LP_LOGP), side_floats(c, s, LP_ENTROPY), side_view(c, s, LP_X),
                   side_index(c, s, LP_TARGET));
}
static double log_sum_exp(const double *x, int64_t n) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) max = fmax(max, x[j]);
    for (int64_t j = 0; j < n; j++) sum += exp(x[j] - max);
    return max + log(sum);
}
static int32_t target_of(const struct op_case *c, int64_t t) { return c->a[LP_TARGET].index[c->a[LP_TARGET].off + t]; }
static void logprob_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->rows; t++) {
        const double lse = log_sum_exp(&V(LP_X, t, 0), c->s[1]);
        V(LP_LOGP, t, 0) = V(LP_X, t, target_of(c, t)) - lse;
        if (!v[LP_ENTROPY]) continue;
        V(LP_ENTROPY, t, 0) = 0;
        for (int64_t j = 0; j < c->s[1]; j++) {
            const double lp = V(LP_X, t, j) - lse;
            V(LP_ENTROPY, t, 0) -= exp(lp) * lp;
        }
    }
}
static void logprob_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 4 * (double)c->s[0] * (double)c->s[1];
}
const struct op_functions op_logprob = {
    .build = logprob_build, .call = logprob_call, .expect = logprob_expect, .cost = logprob_cost, .batch = {0, 133}};

static void logprob_grad_build(struct op_case *c) {
    logits_build(c, INOUT);
    operand_add(c, LP_G, "g", IN, c->s[0], 1, PER_ROW | SOLID | ON_HOST, 1);
}
static void logprob_grad_call(const struct op_case *c, struct side *s) {
    s->be->logprob_grad(s->be, side_view(c, s, LP_X), side_index(c, s, LP_TARGET), side_floats(c, s, LP_G));
}
static void logprob_grad_expect(const struct op_case *c, double *const v[]) {
    for (int64_t t = 0; t < c->rows; t++) {
        const double lse = log_sum_exp(&V(LP_X, t, 0), c->s[1]);
        for (int64_t j = 0; j < c->s[1]; j++)
            V(LP_X, t, j) = V(LP_G, t, 0) * ((j == target_of(c, t)) - exp(V(LP_X, t, j) - lse));
    }
}
static double logprob_grad_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    for (int64_t t = 0; t < c->rows; t++)
        loss += V(LP_G, t, 0) * (V(LP_X, t, target_of(c, t)) - log_sum_exp(&V(LP_X, t, 0), c->s[1]));
    return loss;
}
static void logprob_grad_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = 0;
    *bytes = 8 * (double)c->s[0] * (double)c->s[1];
}
static const int64_t logits_small[][SHAPE] = {{1, 2}, {4, 21}};
const struct op_functions op_logprob_grad = {.build = logprob_grad_build,
                                             .call = logprob_grad_call,
                                             .expect = logprob_grad_expect,
                                             .loss = logprob_grad_loss,
                                             .cost = logprob_grad_cost,
                                             .pair = {{LP_X, LP_X, true}},
                                             .small = logits_small,
                                             .n_small = (int)ARRAY_LEN(logits_small),
                                             .batch = {0, 133}};
