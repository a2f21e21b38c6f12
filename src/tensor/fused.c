#include "tensor/fused.h"

void fused_linear_add(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, struct tensor z) {
    const bool copies = y.data != z.data;
    if (copies && be->linear_add && x.dt == DT_BF16) {
        be->linear_add(be, y, x, w, z);
        return;
    }
    if (copies) be->axpby(be, y, 1.0f, z, 0);
    be->linear(be, y, x, w, NULL, true);
}

void fused_linear_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor x,
                         const struct weight *w) {
    if (be->linear_swiglu && x.dt == DT_BF16) {
        be->linear_swiglu(be, y, gu, x, w);
        return;
    }
    be->linear(be, gu, x, w, NULL, false);
    be->swiglu(be, y, gu);
}

void fused_expert_gates(struct backend *be, struct tensor y, struct tensor gu, struct tensor xp, struct tensor x,
                        const struct weight *w, const struct routing *r) {
    const struct expert_ops *ops = be->experts;
    if (ops->gates && ops->gates(be, y, gu, xp, x, w, r)) return;
    ops->gather(be, xp, x, r, false);
    ops->linear(be, gu, xp, w, r->E, routing_places(r), 1, false);
    be->swiglu(be, y, gu);
}

void fused_expert_lora(struct backend *be, struct tensor y, struct tensor x, const struct weight *w,
                       const struct routing *r, struct tensor t, const struct lora_site_args *site, int n, bool back) {
    const struct expert_ops *ops = be->experts;
    const struct expert_places all = routing_places(r);
    if (ops->linear_lora && ops->linear_lora(be, y, x, w, r, t, site, n, back)) return;
    (back ? ops->linear_dx : ops->linear)(be, y, x, w, r->E, all, 1, false);
    for (int s = 0; s < n; s++) {
        const int64_t R = back ? site[s].b->N : site[s].b->K;
        (back ? ops->linear_dx : ops->linear)(be, site[s].y, tensor_cols(t, s * R, R), site[s].b, r->E, all, 1, true);
    }
}

void fused_rope_kv(struct backend *be, struct tensor qk, struct tensor qkv, struct tensor k, struct tensor v,
                   const struct rope_args *a, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    if (be->rope_kv && qk.dt == DT_BF16) {
        be->rope_kv(be, qk, qkv, a, seq, n_seq, s);
        return;
    }
    be->rope(be, qk, qkv, a);
    be->kv_write(be, k, v, seq, n_seq, s);
}

void fused_swiglu_both(struct backend *be, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu) {
    if (be->swiglu_both && gu.dt == DT_BF16) {
        be->swiglu_both(be, dgu, y, dy, gu);
        return;
    }
    be->swiglu(be, y, gu);
    be->swiglu_grad(be, dgu, dy, gu);
}

enum dtype fused_norm_dy(const struct backend *be, enum dtype act) {
    return be->rmsnorm_back && act == DT_BF16 ? DT_BF16 : DT_F32;
}

void fused_norm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                     const float *gain, float eps, float *dgain) {
    if (fused_norm_dy(be, y.dt) == DT_BF16) {
        be->rmsnorm_back(be, dx, y, dy, x, gain, eps, dgain);
        return;
    }
    be->rmsnorm(be, y, x, gain, eps);
    be->rmsnorm_grad(be, dx, dgain, dy, x, gain, eps, true);
}

enum dtype fused_logits_grad_type(const struct backend *be, enum dtype act) {
    return be->logprob_grad16 && act == DT_BF16 ? DT_BF16 : DT_F32;
}

void fused_logits_grad(struct backend *be, struct tensor dl, struct tensor logits, const int32_t *targets,
                       const float *g) {
    if (dl.dt == DT_BF16)
        be->logprob_grad16(be, dl, logits, targets, g);
    else
        be->logprob_grad(be, logits, targets, g);
}

bool fused_lora_splits(const struct backend *be, enum dtype act) { return be->lora_down && act == DT_BF16; }

void fused_lora_down(struct backend *be, struct tensor t, struct tensor x, const struct weight *a, float scale) {
    if (fused_lora_splits(be, t.dt)) {
        be->lora_down(be, x, a, t, scale);
        return;
    }
    be->linear(be, t, x, a, NULL, false);
    be->axpby(be, t, scale, t, 0);
}

void fused_lora_up(struct backend *be, struct tensor t, const struct lora_site_args *site, int n) {
    if (fused_lora_splits(be, t.dt)) {
        be->lora_up(be, t, site, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        const int64_t R = site[i].b->K;
        be->linear(be, site[i].y, tensor_cols(t, i * R, R), site[i].b, NULL, true);
    }
}

void fused_lora_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor t,
                       const struct lora_site_args *site, int n, bool keep) {
    if (be->lora_swiglu && gu.dt == DT_BF16) {
        be->lora_swiglu(be, y, gu, t, site, n, keep);
        return;
    }
    fused_lora_up(be, t, site, n);
    be->swiglu(be, y, gu);
}

void fused_lora_dt(struct backend *be, struct tensor dt, struct tensor dy, const struct weight *b, float scale) {
    if (be->lora_dt && dt.dt == DT_BF16) {
        be->lora_dt(be, dt, dy, b, scale);
        return;
    }
    be->linear_dx(be, dt, dy, b, false);
    be->axpby(be, dt, scale, dt, 0);
}

void fused_weights_pack(struct backend *be, struct weight *const *w, int n) {
    if (n > 0 && be->weights_pack && w[0]->dt == DT_BF16) {
        be->weights_pack(be, w, n);
        return;
    }
    for (int i = 0; i < n; i++) be->weight_pack(be, w[i]);
}
