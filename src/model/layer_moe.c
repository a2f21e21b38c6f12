/* A mixture of experts: h = norm(x), and out = x + the sum over the chosen experts e, by ascending id, of
 * w_e swiglu(h Wgu,e^T) Wd,e^T. The router's logits h Wr^T are float32 and not rounded; tensor/experts.h says how they
 * choose, and how the rows of an expert come to lie together. Below, P = T top_k rows are sorted so. */
#include "model/declare.h"
#include "model/layer.h"

static void moe_declare(struct declared *d, int i) {
    const struct model_config *c = &d->m->cfg;
    struct moe_weights *w = &d->m->layer[i].moe;
    const int64_t D = c->D, F = c->moe_F, E = c->E;
    w->wgu = xcalloc((size_t)E, sizeof *w->wgu);
    w->wd = xcalloc((size_t)E, sizeof *w->wd);
    declare_vector(d, &w->ln, D);
    declare_part(d, MODULE_LN2, i, "weight", &w->ln, 0, D);
    declare_exact(d, &w->router, E, D);
    declare_rows(d, MODULE_ROUTER, i, &w->router, 0, E);
    for (int64_t e = 0; e < E; e++) declare_matrix(d, &w->wgu[e], 2 * F, D, true);
    for (int64_t e = 0; e < E; e++) declare_matrix(d, &w->wd[e], D, F, true);
    for (int64_t e = 0; e < E; e++) {
        declare_expert_rows(d, MODULE_EXPERT_GATE, i, e, &w->wgu[e], 0, F);
        declare_expert_rows(d, MODULE_EXPERT_UP, i, e, &w->wgu[e], F, F);
        declare_expert_rows(d, MODULE_EXPERT_DOWN, i, e, &w->wd[e], 0, D);
    }
}

static int64_t pairs_of(const struct model *m, int64_t T) { return T * m->cfg.top_k; }

static void moe_keep(const struct model *m, struct carve *s, int64_t T, bool trained, struct layer_acts *a) {
    const struct model_config *c = &m->cfg;
    (void)trained;
    a->router = carve(s, T * c->E);
    a->routing = carve(s, routing_words(T, c->E, c->top_k));
    a->moe_gu = carve_act(m, s, pairs_of(m, T) * 2 * c->moe_F);
}

static void moe_scratch(const struct model *m, struct carve *s, int64_t T, struct pass *p) {
    const struct model_config *c = &m->cfg;
    p->moe_x = carve(s, pairs_of(m, T) * c->D);
    p->moe_a = carve_act(m, s, pairs_of(m, T) * c->moe_F);
    p->places = (struct expert_places){(int32_t *)(void *)carve(s, c->E), (int32_t *)(void *)carve(s, c->E)};
}

static void moe_scratch_back(const struct model *m, struct carve *s, int64_t T, struct train_space *w) {
    const struct model_config *c = &m->cfg;
    w->moe_dy = carve(s, pairs_of(m, T) * c->D);
    w->moe_da = carve_act(m, s, pairs_of(m, T) * c->moe_F);
    w->moe_dgu = carve_act(m, s, pairs_of(m, T) * 2 * c->moe_F);
    w->d_weight = carve(s, pairs_of(m, T));
    w->d_router = carve(s, T * c->E);
}

static void moe_forward(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *x, float *out) {
    struct backend *be = m->be;
    const struct expert_ops *ops = be->experts;
    const struct model_config *c = &m->cfg;
    const struct moe_weights *w = &m->layer[i].moe;
    const int64_t T = p->T, P = pairs_of(m, T), D = c->D, F = c->moe_F, E = c->E;
    const struct routing r = routing_in(a->routing, T, E, c->top_k);
    struct tensor h = act_full(m, p->h, T, D), logits = tensor_full(a->router, T, E);
    struct tensor hp = act_full(m, p->moe_x, P, D), o = tensor_full(p->moe_x, P, D); /* hp has been read before o is */
    struct tensor gu = act_full(m, a->moe_gu, P, 2 * F), act = act_full(m, p->moe_a, P, F);
    be->rmsnorm(be, h, tensor_full(x, T, D), w->ln, c->rms_eps);
    be->linear(be, logits, h, &w->router, NULL, false);
    int32_t *const seen = p->experts ? p->experts + i * P : NULL;
    if (seen && p->given) be->mem_put(be, r.expert, seen, (size_t)P * sizeof *seen);
    ops->route(be, &r, logits, c->norm_topk, seen && p->given);
    if (seen && !p->given) be->mem_get(be, seen, r.expert, (size_t)P * sizeof *seen);
    const bool again = !p->kv && !m->ts.forward_only; /* the backward pass asks for gu again */
    if (out && !again && lora_none(&p->lora, i, LORA_OF_H2)) {
        fused_expert_gates(be, act, gu, hp, h, w->wgu, &r);
    } else {
        ops->gather(be, hp, h, &r, false);
        lora_experts_linear(m, &p->lora, i, LORA_OF_H2, &r, p->places, gu, hp, w->wgu, xa_of(p, a, LORA_OF_H2));
        if (!out) return;
        be->swiglu(be, act, gu);
    }
    lora_experts_linear(m, &p->lora, i, LORA_OF_ACT, &r, p->places, o, act, w->wd, xa_of(p, a, LORA_OF_ACT));
    ops->combine(be, tensor_full(out, T, D), tensor_full(x, T, D), o, &r, true);
}

/* dW of each expert's matrix where the base is trained. */
static void experts_dw(struct model *m, const struct weight *w, struct tensor dy, struct tensor x,
                       const struct routing *r) {
    const int64_t stride = carve_size(w->N * w->K);
    if (m->ts.full) m->be->experts->linear_dw(m->be, grad_of(m, w->w), stride, dy, x, r->E, routing_places(r), w->dt);
}

/* The gradient at a row of an expert's output is its weight times that of the block's output, dy. It is taken without
 * the weight first: then the weight's own gradient, <dy, o>, is <da, a>, with da the gradient at the expert's a. So o
 * is not computed again. */
static void moe_backward(struct model *m, int i, const struct layer_acts *a, const float *x, struct tensor dx) {
    struct backend *be = m->be;
    const struct expert_ops *ops = be->experts;
    const struct model_config *c = &m->cfg;
    const struct moe_weights *w = &m->layer[i].moe;
    const struct train_space *ts = &m->ts;
    const int64_t T = ts->T, P = pairs_of(m, T), D = c->D, F = c->moe_F, E = c->E;
    const struct routing r = routing_in(a->routing, T, E, c->top_k);
    void *const dt = ts->p.xa;
    struct tensor h = act_full(m, ts->p.h, T, D), dh = layer_dh(m), hp = act_full(m, ts->p.moe_x, P, D);
    struct tensor gu = act_full(m, a->moe_gu, P, 2 * F), act = act_full(m, ts->p.moe_a, P, F);
    struct tensor dy = act_full(m, ts->moe_dy, P, D), dhp = tensor_full(ts->moe_dy, P, D); /* dy has been read first */
    struct tensor da = act_full(m, ts->moe_da, P, F);
    struct tensor dgu = act_full(m, ts->moe_dgu, P, 2 * F);
    struct tensor logits = tensor_full(a->router, T, E), dlogits = tensor_full(ts->d_router, T, E);

    ops->gather(be, dy, dx, &r, false);
    lora_experts_backward(m, i, LORA_OF_ACT, &r, dy, NULL, dt);
    lora_experts_dx(m, i, LORA_OF_ACT, &r, da, dy, w->wd, dt);
    be->swiglu(be, act, gu);
    ops->dot(be, ts->d_weight, da, act, &r);
    ops->scale(be, da, &r);
    ops->gather(be, dy, dx, &r, true);
    be->swiglu_grad(be, dgu, da, gu);
    experts_dw(m, w->wd, dy, act, &r);
    lora_experts_backward(m, i, LORA_OF_ACT, &r, dy, a->xa[LORA_OF_ACT], dt);
    lora_experts_a_grad(m, i, LORA_OF_ACT, &r, act, dt);
    lora_experts_backward(m, i, LORA_OF_H2, &r, dgu, a->xa[LORA_OF_H2], dt);
    lora_experts_dx(m, i, LORA_OF_H2, &r, dhp, dgu, w->wgu, dt);
    ops->combine(be, dh, (struct tensor){0}, dhp, &r, false);
    ops->route_grad(be, dlogits, &r, ts->d_weight, logits, c->norm_topk);
    be->linear_dx(be, dh, dlogits, &w->router, true);
    layer_norm_backward(m, dx, h, dh, tensor_full((float *)x, T, D), w->ln);
    ops->gather(be, hp, h, &r, false);
    experts_dw(m, w->wgu, dgu, hp, &r);
    lora_experts_a_grad(m, i, LORA_OF_H2, &r, hp, dt);
    layer_dw(m, &w->router, dlogits, h);
}

static int moe_kept(const struct model *m, const struct layer_acts *a, struct kept_array list[KEPT_MAX]) {
    list[0] = (struct kept_array){a->router, DT_F32, m->cfg.E, "router"};
    list[1] = (struct kept_array){a->moe_gu, m->act, 2 * pairs_of(m, m->cfg.moe_F), "experts' gate and up projection"};
    return 2;
}

static void moe_site(const struct model_config *c, enum arch_module site, int64_t *in, int64_t *out) {
    *in = site == MODULE_DOWN ? c->moe_F : c->D;
    *out = site == MODULE_DOWN ? c->D : c->moe_F;
}

const struct layer_block moe_block = {
    .declare = moe_declare,
    .keep = moe_keep,
    .scratch = moe_scratch,
    .scratch_back = moe_scratch_back,
    .forward = moe_forward,
    .backward = moe_backward,
    .kept = moe_kept,
    .first_site = MODULE_GATE,
    .end_site = N_PROJECTIONS,
    .site_dims = moe_site,
};
