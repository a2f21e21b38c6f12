/* The dense feed-forward part: out = x + swiglu(norm(x) Wgu^T) Wd^T. */
#include "model/declare.h"
#include "model/layer.h"

static void ffn_declare(struct declared *d, int i) {
    const struct model_config *c = &d->m->cfg;
    struct ffn_weights *w = &d->m->layer[i].ffn;
    const int64_t D = c->D, F = c->F;
    declare_vector(d, &w->ln, D);
    declare_part(d, MODULE_LN2, i, "weight", &w->ln, 0, D);
    declare_matrix(d, &w->wgu, 2 * F, D, true);
    declare_rows(d, MODULE_GATE, i, &w->wgu, 0, F);
    declare_rows(d, MODULE_UP, i, &w->wgu, F, F);
    declare_matrix(d, &w->wd, D, F, true);
    declare_rows(d, MODULE_DOWN, i, &w->wd, 0, D);
}

static void ffn_keep(const struct model *m, struct carve *s, int64_t T, bool trained, struct layer_acts *a) {
    (void)trained;
    a->gu = carve_act(m, s, T * 2 * m->cfg.F);
}

static void ffn_scratch(const struct model *m, struct carve *s, int64_t T, struct pass *p) {
    p->a = carve_act(m, s, T * m->cfg.F);
}

static void ffn_scratch_back(const struct model *m, struct carve *s, int64_t T, struct train_space *w) {
    w->da = carve_act(m, s, T * m->cfg.F);
    w->dgu = carve_act(m, s, T * 2 * m->cfg.F);
}

/* act = swiglu(h Wgu^T with LoRA), gu being the product; act.data NULL: only the product. */
static void gate(struct model *m, int i, struct pass *p, const struct layer_acts *a, struct tensor act,
                 struct tensor gu, struct tensor h) {
    struct backend *be = m->be;
    const struct weight *wgu = &m->layer[i].ffn.wgu;
    void *const xa = xa_of(p, a, LORA_OF_H2);
    const bool again = !p->kv && !m->ts.forward_only; /* the backward pass asks for gu again */
    if (act.data && !again && lora_none(&p->lora, i, LORA_OF_H2)) {
        fused_linear_swiglu(be, act, gu, h, wgu);
        return;
    }
    lora_begin(m, &p->lora, i, LORA_OF_H2, h, xa);
    be->linear(be, gu, h, wgu, NULL, false);
    if (act.data && lora_alone(m, &p->lora, p->T, i, LORA_OF_H2)) {
        const struct lora *lora = &p->lora.run[0].adapter->layer[i];
        struct lora_site_args site[LORA_SITES_MAX];
        int groups;
        const struct lora_group *g = lora_groups(lora, LORA_OF_H2, &groups);
        const int n = lora_sites(m, lora, g, LORA_OF_H2, gu, site);
        fused_lora_swiglu(be, act, gu, lora_xa(m, lora, g, LORA_OF_H2, xa, p->T), site, n, again);
        return;
    }
    lora_forward(m, &p->lora, i, LORA_OF_H2, gu, h, xa);
    if (act.data) be->swiglu(be, act, gu);
}

static void ffn_forward(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *x, float *out) {
    struct backend *be = m->be;
    const struct ffn_weights *w = &m->layer[i].ffn;
    const int64_t T = p->T, D = m->cfg.D, F = m->cfg.F;
    struct tensor h = act_full(m, p->h, T, D), gu = act_full(m, a->gu, T, 2 * F);
    struct tensor act = act_full(m, out ? p->a : NULL, T, F);
    be->rmsnorm(be, h, tensor_full(x, T, D), w->ln, m->cfg.rms_eps);
    gate(m, i, p, a, act, gu, h);
    if (out) layer_add_product(m, i, p, a, LORA_OF_ACT, tensor_full(out, T, D), act, &w->wd, tensor_full(x, T, D));
}

static void ffn_backward(struct model *m, int i, const struct layer_acts *a, const float *x, struct tensor dx) {
    struct backend *be = m->be;
    const struct ffn_weights *w = &m->layer[i].ffn;
    const struct train_space *ts = &m->ts;
    const int64_t T = ts->T, D = m->cfg.D, F = m->cfg.F;
    void *const dt = ts->p.xa;
    struct tensor h = act_full(m, ts->p.h, T, D), dh = layer_dh(m), gu = act_full(m, a->gu, T, 2 * F);
    struct tensor act = act_full(m, ts->p.a, T, F), da = act_full(m, ts->da, T, F);
    struct tensor dgu = act_full(m, ts->dgu, T, 2 * F);

    lora_backward(m, i, LORA_OF_ACT, dx, a->xa[LORA_OF_ACT], dt);
    lora_dx(m, i, LORA_OF_ACT, da, dx, &w->wd, dt);
    fused_swiglu_both(be, dgu, act, da, gu);
    layer_dw(m, &w->wd, dx, act);
    lora_a_grad(m, i, LORA_OF_ACT, act, dt);
    lora_backward(m, i, LORA_OF_H2, dgu, a->xa[LORA_OF_H2], dt);
    lora_dx(m, i, LORA_OF_H2, dh, dgu, &w->wgu, dt);
    layer_norm_backward(m, dx, h, dh, tensor_full((float *)x, T, D), w->ln);
    layer_dw(m, &w->wgu, dgu, h);
    lora_a_grad(m, i, LORA_OF_H2, h, dt);
}

static int ffn_kept(const struct model *m, const struct layer_acts *a, struct kept_array list[KEPT_MAX]) {
    list[0] = (struct kept_array){a->gu, m->act, 2 * (int64_t)m->cfg.F, "gate and up projection"};
    return 1;
}

static void ffn_site(const struct model_config *c, enum arch_module site, int64_t *in, int64_t *out) {
    *in = site == MODULE_DOWN ? c->F : c->D;
    *out = site == MODULE_DOWN ? c->D : c->F;
}

const struct layer_block ffn_block = {
    .declare = ffn_declare,
    .keep = ffn_keep,
    .scratch = ffn_scratch,
    .scratch_back = ffn_scratch_back,
    .forward = ffn_forward,
    .backward = ffn_backward,
    .kept = ffn_kept,
    .first_site = MODULE_GATE,
    .end_site = N_PROJECTIONS,
    .site_dims = ffn_site,
};
