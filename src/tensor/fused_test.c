/* Fused blocks. On the CPU, which has none of the fused ops, each generic form gives the bits of the naive loops of
 * ops.h, and leaves what it only reads. Where a backend has the op, the block calls it alone, with the operands in
 * their places, for operands in bfloat16 and no others. That a device's fused ops give the generic forms' numbers is
 * tested with the device, in tests/cuda. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cpu/naive.h"
#include "tensor/fused.h"

enum { T = 7, K = 21, N = 18, F = N / 2, R = 3, SITES = 2 };

static struct backend *be;
static struct err err;
static struct rng rng;

/* ---- the generic forms --------------------------------------------------------------------------------------------*/

static float *values(int64_t n) {
    float *x = be->mem_alloc(be, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)rng_normal(&rng);
    return x;
}

static float *copy_of(const float *x, int64_t n) {
    float *y = be->mem_alloc(be, (size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static struct weight matrix(int64_t rows, int64_t cols) {
    struct weight w = {.w = values(rows * cols), .N = rows, .K = cols, .dt = DT_F32, .format = FORMAT_F32};
    be->weight_pack(be, &w);
    return w;
}

static void matrix_free(struct weight *w) {
    be->weight_free(be, w);
    be->mem_free(be, w->w);
}

static void same(const char *what, const float *got, const float *want, int64_t n) {
    assert_int_equal(be->sync(be, &err), ST_OK);
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s: element %lld is %a, expected %a", what, (long long)i, (double)got[i], (double)want[i]);
}

static void near(const char *what, const float *got, const double *want, int64_t n) {
    assert_int_equal(be->sync(be, &err), ST_OK);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-5 * (1 + fabs(want[i]))))
            fail_msg("%s: element %lld is %g, expected %g", what, (long long)i, (double)got[i], want[i]);
}

static void free_all(float *const *x, size_t n) {
    for (size_t i = 0; i < n; i++) be->mem_free(be, x[i]);
}

static void test_linear_add(void **state) {
    (void)state;
    struct weight w = matrix(N, K);
    float *x = values(T * K), *z = values(T * N), *y = values(T * N), *want = copy_of(z, T * N),
          *before = copy_of(z, T * N);
    ref_linear(want, N, x, K, w.w, NULL, true, T, N, K);
    fused_linear_add(be, tensor_full(y, T, N), tensor_full(x, T, K), &w, tensor_full(z, T, N));
    same("linear_add", y, want, T * N);
    same("linear_add: what is added to", z, before, T * N);
    fused_linear_add(be, tensor_full(z, T, N), tensor_full(x, T, K), &w, tensor_full(z, T, N));
    same("linear_add in place", z, want, T * N);
    free_all((float *[]){x, z, y, want, before}, 5);
    matrix_free(&w);
}

/* y = silu(gate) up in double, and with dy the gradient at gate and up. */
static void swiglu_of(const float *gu, const float *dy, double *y, double *dgu) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t f = 0; f < F; f++) {
            const double gate = (double)gu[t * N + f], up = (double)gu[t * N + F + f], s = 1 / (1 + exp(-gate));
            y[t * F + f] = gate * s * up;
            if (!dy) continue;
            const double d = (double)dy[t * F + f];
            dgu[t * N + f] = d * up * s * (1 + gate * (1 - s));
            dgu[t * N + F + f] = d * gate * s;
        }
}

static void test_swiglu(void **state) {
    (void)state;
    struct weight w = matrix(N, K);
    double want[T * F], dwant[T * N];
    float *x = values(T * K), *gu = values(T * N), *y = values(T * F), *product = values(T * N), *dy = values(T * F),
          *dgu = values(T * N);
    ref_linear(product, N, x, K, w.w, NULL, false, T, N, K);
    swiglu_of(product, dy, want, dwant);
    fused_linear_swiglu(be, tensor_full(y, T, F), tensor_full(gu, T, N), tensor_full(x, T, K), &w);
    near("linear_swiglu", y, want, (int64_t)T * F);
    memset(y, 0, (size_t)(T * F) * sizeof *y);
    fused_swiglu_both(be, tensor_full(dgu, T, N), tensor_full(y, T, F), tensor_full(dy, T, F),
                      tensor_full(product, T, N));
    near("swiglu_both: y", y, want, (int64_t)T * F);
    near("swiglu_both: dgu", dgu, dwant, (int64_t)T * N);
    free_all((float *[]){x, gu, y, product, dy, dgu}, 6);
    matrix_free(&w);
}

static void test_norm_back(void **state) {
    (void)state;
    assert_int_equal(fused_norm_dy(be, DT_F32), DT_F32);
    float *x = values(T * K), *dy = values(T * K), *gain = values(K), *y = values(T * K), *dx = values(T * K),
          *dgain = values(K);
    double want[T * K], dwant[T * K], gwant[K];
    for (int k = 0; k < K; k++) gwant[k] = (double)dgain[k];
    for (int t = 0; t < T; t++) {
        ref_rmsnorm(want + t * K, x + t * K, gain, 1e-6, K);
        ref_rmsnorm_grad(dwant + t * K, gwant, dy + t * K, x + t * K, gain, 1e-6, K);
    }
    for (int i = 0; i < T * K; i++) dwant[i] += (double)dx[i];
    fused_norm_back(be, tensor_full(dx, T, K), tensor_full(y, T, K), tensor_full(dy, T, K), tensor_full(x, T, K), gain,
                    1e-6f, dgain);
    near("norm_back: y", y, want, (int64_t)T * K);
    near("norm_back: dx", dx, dwant, (int64_t)T * K);
    near("norm_back: dgain", dgain, gwant, K);
    free_all((float *[]){x, dy, gain, y, dx, dgain}, 6);
}

static void test_lora(void **state) {
    (void)state;
    assert_false(fused_lora_splits(be, DT_F32));
    struct weight a = matrix(SITES * R, K), b[SITES] = {matrix(F, R), matrix(F, R)};
    float *x = values(T * K), *t = values(T * SITES * R), *down = values(T * SITES * R), *gu = values(T * N),
          *want = copy_of(gu, T * N), *first = copy_of(gu, T * N), *y = values(T * F), *dt = values(T * R),
          *dwant = values(T * R);
    ref_linear(down, SITES * R, x, K, a.w, NULL, false, T, SITES * R, K);
    for (int i = 0; i < T * SITES * R; i++) down[i] *= 0.375f;
    fused_lora_down(be, tensor_full(t, T, SITES * R), tensor_full(x, T, K), &a, 0.375f);
    same("lora_down", t, down, (int64_t)T * SITES * R);
    for (int i = 0; i < SITES; i++) ref_linear(want + i * F, N, down + i * R, SITES * R, b[i].w, NULL, true, T, F, R);
    const struct tensor g = tensor_full(gu, T, N), f = tensor_full(first, T, N), t_of = tensor_full(t, T, SITES * R);
    struct lora_site_args site[SITES] = {{&b[0], tensor_cols(g, 0, F)}, {&b[1], tensor_cols(g, F, F)}};
    fused_lora_up(be, t_of, site, SITES);
    same("lora_up", gu, want, (int64_t)T * N);

    double out[T * F];
    swiglu_of(want, NULL, out, NULL);
    for (int i = 0; i < SITES; i++) site[i].y = tensor_cols(f, i * F, F);
    fused_lora_swiglu(be, tensor_full(y, T, F), f, t_of, site, SITES, true);
    same("lora_swiglu: gu", first, want, (int64_t)T * N);
    near("lora_swiglu: y", y, out, (int64_t)T * F);

    ref_linear_dx(dwant, R, y, F, b[1].w, false, T, F, R);
    for (int i = 0; i < T * R; i++) dwant[i] *= 0.375f;
    fused_lora_dt(be, tensor_full(dt, T, R), tensor_full(y, T, F), &b[1], 0.375f);
    same("lora_dt", dt, dwant, (int64_t)T * R);
    free_all((float *[]){x, t, down, gu, want, first, y, dt, dwant}, 9);
    matrix_free(&a), matrix_free(&b[0]), matrix_free(&b[1]);
}

/* Weights that changed are multiplied as they are now, all of them. */
static void test_weights_pack(void **state) {
    (void)state;
    struct weight w[SITES] = {matrix(N, K), matrix(N, K)};
    float *x = values(T * K), *y = values(T * N), *want = values(T * N);
    for (int i = 0; i < SITES; i++) w[i].w[5] += 3;
    fused_weights_pack(be, (struct weight *[]){&w[0], &w[1]}, SITES);
    fused_weights_pack(be, NULL, 0);
    for (int i = 0; i < SITES; i++) {
        ref_linear(want, N, x, K, w[i].w, NULL, false, T, N, K);
        be->linear(be, tensor_full(y, T, N), tensor_full(x, T, K), &w[i], NULL, false);
        same("weights_pack", y, want, (int64_t)T * N);
        matrix_free(&w[i]);
    }
    free_all((float *[]){x, y, want}, 3);
}

/* ---- which op is called ------------------------------------------------------------------------------------------ */

/* The calls of the ops of a backend whose ops only say that they were called: each has a letter. */
static char calls[32];
static const void *seen[3]; /* the operands of the last fused op */
static void called(char letter, const void *a, const void *b, const void *c) {
    const size_t n = strlen(calls);
    if (n + 1 < sizeof calls) calls[n] = letter;
    seen[0] = a, seen[1] = b, seen[2] = c;
}

static void core_linear(struct backend *b, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                        bool accumulate) {
    (void)b, (void)y, (void)x, (void)w, (void)bias;
    called(accumulate ? 'L' : 'l', NULL, NULL, NULL);
}
static void core_linear_dx(struct backend *b, struct tensor dx, struct tensor dy, const struct weight *w, bool add) {
    (void)b, (void)dx, (void)dy, (void)w, (void)add;
    called('x', NULL, NULL, NULL);
}
static void core_axpby(struct backend *b, struct tensor y, float p, struct tensor x, float q) {
    (void)b, (void)y, (void)p, (void)x, (void)q;
    called('a', NULL, NULL, NULL);
}
static void core_swiglu(struct backend *b, struct tensor y, struct tensor gu) {
    (void)b, (void)y, (void)gu;
    called('s', NULL, NULL, NULL);
}
static void core_swiglu_grad(struct backend *b, struct tensor dgu, struct tensor dy, struct tensor gu) {
    (void)b, (void)dgu, (void)dy, (void)gu;
    called('g', NULL, NULL, NULL);
}
static void core_rope(struct backend *b, struct tensor qk, struct tensor qkv, const struct rope_args *a) {
    (void)b, (void)qk, (void)qkv, (void)a;
    called('r', NULL, NULL, NULL);
}
static void core_kv_write(struct backend *b, struct tensor k, struct tensor v, const struct attn_seq *seq, int n,
                          struct attn_shape s) {
    (void)b, (void)k, (void)v, (void)seq, (void)n, (void)s;
    called('k', NULL, NULL, NULL);
}
static void core_rmsnorm(struct backend *b, struct tensor y, struct tensor x, const float *gain, float eps) {
    (void)b, (void)y, (void)x, (void)gain, (void)eps;
    called('n', NULL, NULL, NULL);
}
static void core_rmsnorm_grad(struct backend *b, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                              const float *gain, float eps, bool accumulate) {
    (void)b, (void)dx, (void)dgain, (void)dy, (void)x, (void)gain, (void)eps;
    called(accumulate ? 'N' : '!', NULL, NULL, NULL); /* the block adds to dx */
}
static void core_pack(struct backend *b, struct weight *w) {
    (void)b, (void)w;
    called('p', NULL, NULL, NULL);
}

static void own_linear_add(struct backend *b, struct tensor y, struct tensor x, const struct weight *w,
                           struct tensor z) {
    (void)b, (void)w;
    called('1', y.data, x.data, z.data);
}
static void own_linear_swiglu(struct backend *b, struct tensor y, struct tensor gu, struct tensor x,
                              const struct weight *w) {
    (void)b, (void)w;
    called('2', y.data, gu.data, x.data);
}
static void own_rope_kv(struct backend *b, struct tensor qk, struct tensor qkv, const struct rope_args *a,
                        const struct attn_seq *seq, int n, struct attn_shape s) {
    (void)b, (void)a, (void)n, (void)s;
    called('3', qk.data, qkv.data, seq);
}
static void own_swiglu_both(struct backend *b, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu) {
    (void)b, (void)gu;
    called('4', dgu.data, y.data, dy.data);
}
static void own_norm_back(struct backend *b, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                          const float *gain, float eps, float *dgain) {
    (void)b, (void)x, (void)gain, (void)eps, (void)dgain;
    called('5', dx.data, y.data, dy.data);
}
static void own_lora_down(struct backend *b, struct tensor x, const struct weight *a, struct tensor xa, float scale) {
    (void)b, (void)scale;
    called('6', x.data, a, xa.data);
}
static void own_lora_up(struct backend *b, struct tensor xa, const struct lora_site_args *site, int n) {
    (void)b, (void)n;
    called('7', xa.data, site, NULL);
}
static void own_lora_swiglu(struct backend *b, struct tensor y, struct tensor gu, struct tensor xa,
                            const struct lora_site_args *site, int n, bool keep) {
    (void)b, (void)site, (void)n, (void)keep;
    called('8', y.data, gu.data, xa.data);
}
static void own_lora_dt(struct backend *b, struct tensor dt, struct tensor dy, const struct weight *w, float scale) {
    (void)b, (void)scale;
    called('9', dt.data, dy.data, w);
}
static void core_logits_grad(struct backend *b, struct tensor logits, const int32_t *targets, const float *g) {
    (void)b, (void)logits, (void)targets, (void)g;
    called('e', NULL, NULL, NULL);
}
static void own_logits_grad(struct backend *b, struct tensor dl, struct tensor logits, const int32_t *targets,
                            const float *g) {
    (void)b, (void)g;
    called('E', dl.data, logits.data, targets);
}
static void own_weights_pack(struct backend *b, struct weight *const *w, int n) {
    (void)b, (void)n;
    called('P', w, NULL, NULL);
}

static const struct backend core = {.linear = core_linear,
                                    .linear_dx = core_linear_dx,
                                    .axpby = core_axpby,
                                    .swiglu = core_swiglu,
                                    .swiglu_grad = core_swiglu_grad,
                                    .rope = core_rope,
                                    .kv_write = core_kv_write,
                                    .rmsnorm = core_rmsnorm,
                                    .rmsnorm_grad = core_rmsnorm_grad,
                                    .logprob_grad = core_logits_grad,
                                    .weight_pack = core_pack};

static void expect(const char *what, const char *want, const void *a, const void *b, const void *c) {
    if (strcmp(calls, want) != 0) fail_msg("%s: the calls are \"%s\", expected \"%s\"", what, calls, want);
    const void *const operand[] = {a, b, c};
    for (int i = 0; a && i < 3; i++)
        if (seen[i] != operand[i]) fail_msg("%s: operand %d is not in its place", what, i);
    memset(calls, 0, sizeof calls);
}

/* All blocks once with a backend. own: it has the fused op for these operands. */
static void each_block(struct backend *b, enum dtype dt, bool own) {
    static char memory[4];
    const struct tensor p = tensor_of(memory, dt, T, N), q = tensor_of(memory + 1, dt, T, N),
                        r = tensor_of(memory + 2, dt, T, N), s = tensor_of(memory + 3, dt, T, N);
    struct weight w = {.N = N, .K = R, .dt = dt}, *const list[] = {&w, &w};
    const struct rope_args rope = {.H = 1};
    const struct attn_seq seq[1] = {{0}};
    const struct lora_site_args site[SITES] = {{&w, p}, {&w, q}};
#define EXPECT(fused, generic, ...)                             \
    do {                                                        \
        if (own)                                                \
            expect(generic " in one", fused, __VA_ARGS__);      \
        else                                                    \
            expect(generic " one by one", generic, NULL, 0, 0); \
    } while (0)
    fused_linear_add(b, p, q, &w, r);
    EXPECT("1", "aL", p.data, q.data, r.data);
    fused_linear_add(b, p, q, &w, p); /* nothing is to be copied: no op does better than the product */
    expect("linear_add in place", "L", NULL, NULL, NULL);
    fused_linear_swiglu(b, p, q, r, &w);
    EXPECT("2", "ls", p.data, q.data, r.data);
    fused_rope_kv(b, p, q, r, s, &rope, seq, 1, (struct attn_shape){0});
    EXPECT("3", "rk", p.data, q.data, seq);
    fused_swiglu_both(b, p, q, r, s);
    EXPECT("4", "sg", p.data, q.data, r.data);
    assert_int_equal(fused_norm_dy(b, dt), own ? DT_BF16 : DT_F32);
    fused_norm_back(b, p, q, r, s, NULL, 0, NULL);
    EXPECT("5", "nN", p.data, q.data, r.data);
    assert_int_equal(fused_logits_grad_type(b, dt), own ? DT_BF16 : DT_F32);
    const int32_t targets[T] = {0};
    fused_logits_grad(b, own ? p : tensor_of(memory, DT_F32, T, N), q, targets, NULL);
    EXPECT("E", "e", p.data, q.data, targets);
    assert_int_equal(fused_lora_splits(b, dt), own);
    fused_lora_down(b, p, q, &w, 1);
    EXPECT("6", "la", q.data, &w, p.data);
    fused_lora_up(b, p, site, SITES);
    EXPECT("7", "LL", p.data, site, NULL);
    fused_lora_swiglu(b, p, q, r, site, SITES, false);
    EXPECT("8", "LLs", p.data, q.data, r.data);
    fused_lora_dt(b, p, q, &w, 1);
    EXPECT("9", "xa", p.data, q.data, &w);
    fused_weights_pack(b, list, SITES);
    EXPECT("P", "pp", list, NULL, NULL);
#undef EXPECT
}

static void test_which_op(void **state) {
    (void)state;
    struct backend none = core, all = core;
    all.linear_add = own_linear_add, all.linear_swiglu = own_linear_swiglu, all.rope_kv = own_rope_kv;
    all.swiglu_both = own_swiglu_both, all.rmsnorm_back = own_norm_back, all.lora_down = own_lora_down;
    all.lora_up = own_lora_up, all.lora_swiglu = own_lora_swiglu, all.lora_dt = own_lora_dt;
    all.weights_pack = own_weights_pack, all.logprob_grad16 = own_logits_grad;
    each_block(&none, DT_F32, false);
    each_block(&none, DT_BF16, false);
    each_block(&all, DT_F32, false);
    each_block(&all, DT_BF16, true);
}

static int setup(void **state) {
    (void)state;
    rng = rng_make(26, 1);
    return cpu_backend_open(NULL, &be, &err) == ST_OK ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    be->close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_add), cmocka_unit_test(test_swiglu),       cmocka_unit_test(test_norm_back),
        cmocka_unit_test(test_lora),       cmocka_unit_test(test_weights_pack), cmocka_unit_test(test_which_op),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
