/* Attention: out = x + attention(norm(x) Wqkv^T + bqkv) Wo^T. */
#include "model/declare.h"
#include "model/layer.h"

static int64_t q_cols(const struct model_config *c) { return (int64_t)c->H * c->K; }
static int64_t kv_cols(const struct model_config *c) { return (int64_t)c->G * c->K; }

/* The projections of one tensor, cut up. q and k are those that rope gives, and so are v in bfloat16. */
struct heads {
    struct tensor qkv, qk, q, k, v;
};
static struct heads heads_of(const struct model *m, float *qkv, void *qk, int64_t T) {
    const struct model_config *c = &m->cfg;
    const int64_t HK = q_cols(c), GK = kv_cols(c);
    struct heads h = {.qkv = tensor_full(qkv, T, HK + 2 * GK), .qk = act_full(m, qk, T, qk_cols(m))};
    h.q = tensor_cols(h.qk, 0, HK);
    h.k = tensor_cols(h.qk, HK, GK);
    h.v = tensor_cols(m->act == DT_F32 ? h.qkv : h.qk, HK + GK, GK);
    return h;
}

static struct rope_args rope_of(const struct model *m, const struct attention_weights *w, const int32_t *pos) {
    const struct model_config *c = &m->cfg;
    return (struct rope_args){c->H, c->G, c->K, pos, m->cos_t, m->sin_t, w->qn, w->kn, c->rms_eps};
}

static void attention_declare(struct declared *d, int i) {
    static const enum arch_module part[] = {MODULE_Q, MODULE_K, MODULE_V};
    const struct model_config *c = &d->m->cfg;
    struct attention_weights *w = &d->m->layer[i].attention;
    const int64_t HK = q_cols(c), GK = kv_cols(c), rows[] = {HK, GK, GK}, first[] = {0, HK, HK + GK};
    declare_vector(d, &w->ln, c->D);
    declare_part(d, MODULE_LN1, i, "weight", &w->ln, 0, c->D);
    declare_matrix(d, &w->wqkv, HK + 2 * GK, c->D, true);
    if (c->arch->qkv_bias) declare_vector(d, &w->bqkv, HK + 2 * GK);
    for (int j = 0; j < 3; j++) {
        declare_rows(d, part[j], i, &w->wqkv, first[j], rows[j]);
        if (c->arch->qkv_bias) declare_part(d, part[j], i, "bias", &w->bqkv, first[j], rows[j]);
    }
    if (c->arch->qk_norm) {
        declare_vector(d, &w->qn, c->K);
        declare_part(d, MODULE_Q_NORM, i, "weight", &w->qn, 0, c->K);
        declare_vector(d, &w->kn, c->K);
        declare_part(d, MODULE_K_NORM, i, "weight", &w->kn, 0, c->K);
    }
    declare_matrix(d, &w->wo, c->D, HK, true);
    declare_rows(d, MODULE_O, i, &w->wo, 0, c->D);
}

static void attention_keep(const struct model *m, struct carve *s, int64_t T, bool trained, struct layer_acts *a) {
    a->qkv = carve(s, T * qkv_cols(&m->cfg));
    a->o = carve_act(m, s, T * q_cols(&m->cfg));
    a->stats = trained ? carve(s, T * m->cfg.H * 2) : NULL;
}

static void attention_scratch(const struct model *m, struct carve *s, int64_t T, struct pass *p) {
    p->qk = carve_act(m, s, T * qk_cols(m));
}

static void attention_scratch_back(const struct model *m, struct carve *s, int64_t T, struct train_space *w) {
    w->d_o = carve_act(m, s, T * q_cols(&m->cfg));
    w->dqkv = carve_act(m, s, T * qkv_cols(&m->cfg));
}

static void attention_forward(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *x,
                              float *out) {
    struct backend *be = m->be;
    const struct attention_weights *w = &m->layer[i].attention;
    const struct model_config *c = &m->cfg;
    const int64_t T = p->T, D = c->D;
    const struct attn_shape shape = {c->H, c->G, c->K, p->kv, p->kv_stride};
    const struct rope_args rope = rope_of(m, w, p->pos);
    const struct heads g = heads_of(m, a->qkv, p->qk, T);
    struct tensor h = act_full(m, p->h, T, D), o = act_full(m, a->o, T, q_cols(c));

    be->rmsnorm(be, h, tensor_full(x, T, D), w->ln, c->rms_eps);
    lora_begin(m, &p->lora, i, LORA_OF_H1, h, xa_of(p, a, LORA_OF_H1));
    be->linear(be, g.qkv, h, &w->wqkv, w->bqkv, false);
    lora_forward(m, &p->lora, i, LORA_OF_H1, g.qkv, h, xa_of(p, a, LORA_OF_H1));
    if (p->kv)
        fused_rope_kv(be, g.qk, g.qkv, g.k, g.v, &rope, p->seq, p->n_seq, shape);
    else
        be->rope(be, g.qk, g.qkv, &rope);
    be->attention(be, o, a->stats, g.q, g.k, g.v, p->seq, p->n_seq, shape);
    if (out) layer_add_product(m, i, p, a, LORA_OF_O, tensor_full(out, T, D), o, &w->wo, tensor_full(x, T, D));
}

static void attention_backward(struct model *m, int i, const struct layer_acts *a, const float *x, struct tensor dx) {
    struct backend *be = m->be;
    const struct attention_weights *w = &m->layer[i].attention;
    const struct model_config *c = &m->cfg;
    const struct train_space *ts = &m->ts;
    const int64_t T = ts->T, D = c->D, HK = q_cols(c), GK = kv_cols(c);
    void *const dt = ts->p.xa;
    const struct heads g = heads_of(m, a->qkv, ts->p.qk, T);
    const struct rope_args rope = rope_of(m, w, ts->pos);
    struct tensor h = act_full(m, ts->p.h, T, D), dh = layer_dh(m), o = act_full(m, a->o, T, HK);
    struct tensor d_o = act_full(m, ts->d_o, T, HK), dqkv = act_full(m, ts->dqkv, T, HK + 2 * GK);

    lora_backward(m, i, LORA_OF_O, dx, a->xa[LORA_OF_O], dt);
    lora_a_grad(m, i, LORA_OF_O, o, dt);
    lora_dx(m, i, LORA_OF_O, d_o, dx, &w->wo, dt);
    layer_dw(m, &w->wo, dx, o);
    be->rope(be, g.qk, g.qkv, &rope);
    struct tensor dk = tensor_cols(dqkv, HK, GK), dv = tensor_cols(dqkv, HK + GK, GK);
    if (m->act == DT_F32) be->axpby(be, tensor_cols(dqkv, HK, 2 * GK), 0.0f, tensor_cols(g.qkv, HK, 2 * GK), 0);
    be->attention_grad(be, tensor_cols(dqkv, 0, HK), dk, dv, d_o, o, a->stats, g.q, g.k, g.v, ts->seq, ts->p.n_seq,
                       (struct attn_shape){c->H, c->G, c->K, NULL, 0});
    be->rope_grad(be, dqkv, grad_of(m, w->qn), grad_of(m, w->kn), g.qkv, &rope);
    lora_backward(m, i, LORA_OF_H1, dqkv, a->xa[LORA_OF_H1], dt);
    lora_dx(m, i, LORA_OF_H1, dh, dqkv, &w->wqkv, dt);
    layer_norm_backward(m, dx, h, dh, tensor_full((float *)x, T, D), w->ln);
    lora_a_grad(m, i, LORA_OF_H1, h, dt);
    layer_dw(m, &w->wqkv, dqkv, h);
    if (ts->full && w->bqkv) be->bias_grad(be, grad_of(m, w->bqkv), dqkv);
}

static int attention_kept(const struct model *m, const struct layer_acts *a, struct kept_array list[KEPT_MAX]) {
    list[0] = (struct kept_array){a->qkv, DT_F32, qkv_cols(&m->cfg), "queries, keys and values"};
    list[1] = (struct kept_array){a->o, m->act, q_cols(&m->cfg), "attention"};
    return 2;
}

static void attention_site(const struct model_config *c, enum arch_module site, int64_t *in, int64_t *out) {
    *in = site == MODULE_O ? q_cols(c) : c->D;
    *out = site == MODULE_O ? c->D : site == MODULE_Q ? q_cols(c) : kv_cols(c);
}

const struct layer_block attention_block = {
    .declare = attention_declare,
    .keep = attention_keep,
    .scratch = attention_scratch,
    .scratch_back = attention_scratch_back,
    .forward = attention_forward,
    .backward = attention_backward,
    .kept = attention_kept,
    .first_site = MODULE_Q,
    .end_site = MODULE_GATE,
    .site_dims = attention_site,
};
