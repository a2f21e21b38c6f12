/* Gradients of bfloat16 activations, themselves in bfloat16: the host side of grad.cu, attention_grad.cu and
 * attention_grad90.cu. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "cuda/host/host.h"

static struct cu_mat16 mat16(struct tensor t) {
    ASSERT(t.dt == DT_BF16);
    return (struct cu_mat16){t.data, t.rows, t.cols, t.ld};
}
static bool lined_up(struct tensor t) { return ((uintptr_t)t.data | (size_t)t.ld * 2) % 16 == 0; }

void bf16_swiglu_grad(struct cuda_backend *c, struct tensor dgu, struct tensor dy, struct tensor gu) {
    cuda_ok(c, "swiglu_grad", cu_swiglu_grad16(&c->dev, mat16(dgu), mat16(dy), mat16(gu)));
}

void bf16_swiglu_both(struct cuda_backend *c, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu) {
    int done = 0;
    if (cuda_ok(c, "swiglu_both", cu_swiglu_both16(&c->dev, mat16(dgu), mat16(y), mat16(dy), mat16(gu), &done)) &&
        !done && cuda_ok(c, "swiglu_both", cu_swiglu16(&c->dev, mat16(y), mat16(gu))))
        bf16_swiglu_grad(c, dgu, dy, gu);
}

/* The products that come next take dx's rounding from where it is left beside dx. */
void bf16_rmsnorm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                       const float *gain, float eps, float *dgain) {
    ASSERT(dx.rows == x.rows && dy.rows == x.rows && dx.cols == x.cols && dy.cols == x.cols);
    struct cuda_backend *c = cuda_begin_product(be, "rmsnorm_back");
    if (!c) return;
    const struct cu_mat of = mat_of(dx);
    uint16_t *const rounded = bf16_rounding_room(c, dx);
    int done = 0;
    c->rounded.data = NULL;
    float *const partial =
        dgain ? cuda_scratch(c, "rmsnorm_back", CUDA_SCRATCH, cuda_norm_back_bytes(x.rows, x.cols)) : NULL;
    if (dgain && !partial) return;
    if (!cuda_ok(
            c, "rmsnorm_back",
            cu_rmsnorm_back16(&c->dev, of, mat16(y), mat16(dy), mat_of(x), gain, eps, rounded, dgain, partial, &done)))
        return;
    if (done && rounded) c->rounded = dx;
    struct tensor *const wide[] = {&dy};
    if (done || !bf16_widen(c, "rmsnorm_back", wide, 1)) return;
    be->rmsnorm(be, y, x, gain, eps);
    be->rmsnorm_grad(be, dx, dgain, dy, x, gain, eps, true);
}

bool bf16_bias_grad(struct cuda_backend *c, float *db, struct tensor dy) {
    float *const partial = cuda_scratch(c, "bias_grad", CUDA_SCRATCH, cuda_bias_grad_bytes(dy.rows, dy.cols));
    int done = 0;
    return !partial || !cuda_ok(c, "bias_grad", cu_bias_grad16(&c->dev, db, mat16(dy), partial, &done)) || done;
}

/* The gradient at x A^T: scale dy B. */
void bf16_lora_dt(struct backend *be, struct tensor dt, struct tensor dy, const struct weight *b, float scale) {
    struct cuda_backend *c = cuda_begin_product(be, "lora_dt");
    ASSERT(dt.dt == DT_BF16 && dt.rows == dy.rows && dt.cols == b->K && dy.cols == b->N && scale != 0.0f);
    if (c) bf16_linear_dx(c, dt, dy, b, scale, false);
}

void bf16_rope_grad(struct cuda_backend *c, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                    const struct cu_rope *a) {
    const int64_t heads = dqkv.rows * (a->H + a->G);
    float *s = cuda_scratch(c, "rope_grad", CUDA_SCRATCH, cuda_block_sums_bytes(heads, dqkv.rows, 2 * a->K));
    if (s)
        cuda_ok(c, "rope_grad", cu_rope_grad16(&c->dev, mat16(dqkv), dq_gain, dk_gain, mat_of(qkv), a, s, s + heads));
}

void bf16_attention_grad(struct cuda_backend *c, struct tensor dq, struct tensor dk, struct tensor dv,
                         struct tensor d_o, struct tensor o, const float *stats, struct tensor q, struct tensor k,
                         struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    ASSERT(s.K % 16 == 0 && s.K <= 128);
    ASSERT(lined_up(q) && lined_up(k) && lined_up(v) && lined_up(o) && lined_up(d_o));
    ASSERT(lined_up(dq) && lined_up(dk) && lined_up(dv));
    struct cu_attn lists = {0};
    if (!plan_grad(c, &lists, seq, n_seq, s, CU_GRAD16_TILE)) return;
    struct cu_attn_grad16 a = {.q = mat16(q),
                               .k = mat16(k),
                               .v = mat16(v),
                               .o = mat16(o),
                               .d_o = mat16(d_o),
                               .dq = mat16(dq),
                               .dk = mat16(dk),
                               .dv = mat16(dv),
                               .stats = stats,
                               .H = s.H,
                               .G = s.G,
                               .K = s.K,
                               .task = lists.task,
                               .n_tasks = lists.n_tasks,
                               .key_task = lists.key_task,
                               .n_key_tasks = lists.n_key_tasks,
                               .user = lists.user};
    a.delta = cuda_scratch(c, "attention_grad", CUDA_SCRATCH, cuda_attention_grad_bytes(DT_BF16, q.rows, s.H));
    if (!a.delta) return;
    cuda_ok(c, "attention_grad", c->dev.wgmma ? cu_attention_grad90(&c->dev, &a) : cu_attention_grad16(&c->dev, &a));
}
