/* The backward pass, by hand, layer by layer in reverse. Norm and SwiGLU outputs and rotated q, k are recomputed from
 * what forward kept (struct layer_acts): they are cheap, and keeping them would double the memory. Where memory is
 * short the rest is recomputed, too, from the layer's input (model_layer_recall). */
#include "model/internal.h"

/* Whether the backend does what norm_backward asks for in one op, which takes dh in bfloat16. */
static bool norm_in_one(const struct model *m) { return m->be->rmsnorm_back && m->act == DT_BF16; }

/* h = norm(x) once more, for the gradients of what read it; dx += the norm's gradient, dh being that of h. */
static void norm_backward(struct model *m, struct tensor dx, struct tensor h, struct tensor dh, struct tensor x,
                          const float *gain) {
    struct backend *be = m->be;
    const float eps = m->cfg.rms_eps;
    if (norm_in_one(m)) {
        be->rmsnorm_back(be, dx, h, dh, x, gain, eps, grad_of(m, gain));
        return;
    }
    be->rmsnorm(be, h, x, gain, eps);
    be->rmsnorm_grad(be, dx, grad_of(m, gain), dh, x, gain, eps, true);
}

static void layer_backward(struct model *m, int i, const struct layer_acts *a, struct tensor dx) {
    struct backend *be = m->be;
    const struct layer *l = &m->layer[i];
    const struct model_config *c = &m->cfg;
    struct train_space *w = &m->ts;
    const int64_t T = w->T, D = c->D, F = c->F, K = c->K, HK = c->H * K, GK = c->G * K;
    const bool full = w->full;
    void *const dt = w->p.xa;
    const float eps = c->rms_eps;
    struct tensor x_in = tensor_full(a->x_in, T, D), x_mid = tensor_full(a->x_mid, T, D), h = act_full(m, w->p.h, T, D);
    struct tensor gu = act_full(m, a->gu, T, 2 * F), act = act_full(m, w->p.a, T, F), o = act_full(m, a->o, T, HK);
    struct tensor da = act_full(m, w->da, T, F), dgu = act_full(m, w->dgu, T, 2 * F);
    struct tensor dh = norm_in_one(m) ? act_full(m, w->dh, T, D) : tensor_full(w->dh, T, D);
    struct tensor d_o = act_full(m, w->d_o, T, HK), qkv = tensor_full(a->qkv, T, HK + 2 * GK);
    struct tensor qk = act_full(m, w->p.qk, T, qk_cols(m)), dqkv = act_full(m, w->dqkv, T, HK + 2 * GK);

    /* x_out = x_mid + swiglu(norm(x_mid) Wgu^T) Wd^T */
    lora_backward(m, i, LORA_OF_ACT, dx, a->xa[LORA_OF_ACT], dt);
    lora_dx(m, i, LORA_OF_ACT, da, dx, &l->wd, dt);
    if (be->swiglu_both && gu.dt == DT_BF16) {
        be->swiglu_both(be, dgu, act, da, gu);
    } else {
        be->swiglu(be, act, gu);
        be->swiglu_grad(be, dgu, da, gu);
    }
    if (full) be->linear_dw(be, grad_of(m, l->wd.w), dx, act, m->dt);
    lora_a_grad(m, i, LORA_OF_ACT, act, dt);
    lora_backward(m, i, LORA_OF_H2, dgu, a->xa[LORA_OF_H2], dt);
    lora_dx(m, i, LORA_OF_H2, dh, dgu, &l->wgu, dt);
    norm_backward(m, dx, h, dh, x_mid, l->ln2);
    if (full) be->linear_dw(be, grad_of(m, l->wgu.w), dgu, h, m->dt);
    lora_a_grad(m, i, LORA_OF_H2, h, dt);

    /* x_mid = x_in + attention(norm(x_in) Wqkv^T) Wo^T */
    lora_backward(m, i, LORA_OF_O, dx, a->xa[LORA_OF_O], dt);
    lora_a_grad(m, i, LORA_OF_O, o, dt);
    lora_dx(m, i, LORA_OF_O, d_o, dx, &l->wo, dt);
    if (full) be->linear_dw(be, grad_of(m, l->wo.w), dx, o, m->dt);
    const struct rope_args rope = {c->H, c->G, K, w->pos, m->cos_t, m->sin_t, l->qn, l->kn, eps};
    be->rope(be, qk, qkv, &rope);
    struct tensor dk = tensor_cols(dqkv, HK, GK), dv = tensor_cols(dqkv, HK + GK, GK);
    if (m->act == DT_F32) be->axpby(be, tensor_cols(dqkv, HK, 2 * GK), 0.0f, tensor_cols(qkv, HK, 2 * GK), 0);
    be->attention_grad(be, tensor_cols(dqkv, 0, HK), dk, dv, d_o, o, a->stats, tensor_cols(qk, 0, HK),
                       tensor_cols(qk, HK, GK), tensor_cols(m->act == DT_F32 ? qkv : qk, HK + GK, GK), w->seq,
                       w->p.n_seq, (struct attn_shape){c->H, c->G, K, NULL, 0});
    be->rope_grad(be, dqkv, grad_of(m, l->qn), grad_of(m, l->kn), qkv, &rope);
    lora_backward(m, i, LORA_OF_H1, dqkv, a->xa[LORA_OF_H1], dt);
    lora_dx(m, i, LORA_OF_H1, dh, dqkv, &l->wqkv, dt);
    norm_backward(m, dx, h, dh, x_in, l->ln1);
    lora_a_grad(m, i, LORA_OF_H1, h, dt);
    if (full) {
        be->linear_dw(be, grad_of(m, l->wqkv.w), dqkv, h, m->dt);
        if (l->bqkv) be->bias_grad(be, grad_of(m, l->bqkv), dqkv);
    }
}

/* A head that is trained, or an adapter's part of it, given d logp / d logits in bfloat16 (or once more): g scales the
 * other factor. The runs of rows are the same whether they were kept or not, and so are the bits. */
static void head_backward16(struct model *m, const struct train_batch *b, const float *g) {
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V, run = head_run(m), R = head_rank(m, w->of);
    struct tensor hn = act_full(m, w->hn, w->T, D);
    for (int64_t i = 0; i < b->N; i += run) {
        const int64_t end = i64_min(i + run, b->N), rows = end - i;
        for (int64_t j = i; !w->keep_logits && j < end; j += w->chunk) {
            const int64_t n = i64_min(w->chunk, end - j);
            struct tensor hc = act_full(m, w->hc, n, D), lg = tensor_full(w->logits, n, V);
            be->gather_rows(be, hc, hn, b->rows + j);
            model_wanted_logits(m, j, lg, hc);
            be->logprob_grad16(be, dl_of(m, j, n), lg, b->targets + j, w->ones);
        }
        struct tensor hs = act_full(m, w->hs, rows, D);
        be->gather_scaled(be, hs, hn, b->rows + i, g + i);
        if (w->full) {
            be->linear_dw(be, grad_of(m, m->head.w), dl_of(m, i, rows), hs, m->dt);
        } else { /* a run is a chunk then */
            be->gather_scaled(be, act_full(m, w->head_xs, rows, R), act_full(m, model_head_xa(m, i), rows, R), w->count,
                              g + i);
            lora_backward(m, m->cfg.L, LORA_OF_HN, dl_of(m, i, rows), w->head_xs, NULL);
            lora_a_grad(m, m->cfg.L, LORA_OF_HN, hs, model_head_dt(m, i));
        }
    }
}

/* The same in float32: logits in chunks, kept or once more, then g (onehot - softmax). */
static void head_backward(struct model *m, const struct train_batch *b, const float *g, struct tensor dh) {
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    const int behind = m->cfg.L;
    void *const dt = w->p.xa;
    struct tensor hn = act_full(m, w->hn, w->T, D);
    for (int64_t i = 0; i < b->N; i += w->chunk) {
        const int64_t n = i64_min(w->chunk, b->N - i);
        struct tensor hc = act_full(m, w->hc, n, D), dhc = tensor_full(w->dhc, n, D);
        struct tensor lg = tensor_full(logits_of(w, i, V), n, V);
        be->gather_rows(be, hc, hn, b->rows + i);
        if (!w->keep_logits) model_wanted_logits(m, i, lg, hc);
        be->logprob_grad(be, lg, b->targets + i, g + i);
        lora_backward(m, behind, LORA_OF_HN, lg, model_head_xa(m, i), dt);
        lora_dx(m, behind, LORA_OF_HN, dhc, lg, &m->head, dt);
        be->scatter_add_rows(be, dh, dhc, b->rows + i, NULL);
        lora_a_grad(m, behind, LORA_OF_HN, hc, dt);
        if (w->full) be->linear_dw(be, grad_of(m, m->head.w), lg, hc, m->dt);
    }
    w->keep_logits = false; /* they are gradients now: another backward pass computes them once more */
}

enum status model_backward(struct model *m, const struct train_batch *b, const float *g, struct err *e) {
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t T = b->T, D = m->cfg.D;
    if (!m->full && m->n_prepared == 0)
        return FAIL(e, ST_INVALID, "backward: nothing is prepared for training (model_train_prepare)");
    if (w->T != T || w->N != b->N)
        return FAIL(e, ST_INVALID, "backward: this batch was not the last one forwarded with the present weights");
    if (w->forward_only)
        return FAIL(e, ST_INVALID, "backward: the batch was forwarded with forward_only, which keeps nothing for it");
    struct tensor dx = tensor_full(w->dx, T, D), dh = tensor_full(w->dh, T, D);

    if (be->pass_begin) be->pass_begin(be, 0);
    be->mem_zero(be, w->dh, (size_t)(T * D) * sizeof(float));
    if (w->dhn) be->scatter_add_rows(be, dh, tensor_full(w->dhn, b->N, D), b->rows, g);
    if (head_trained(m) && w->dl)
        head_backward16(m, b, g);
    else if (head_trained(m))
        head_backward(m, b, g, dh);
    be->rmsnorm_grad(be, dx, grad_of(m, m->final_norm), dh, tensor_full(w->x_last, T, D), m->final_norm, m->cfg.rms_eps,
                     false);
    for (int i = m->cfg.L - 1; i >= 0; i--) {
        model_layer_recall(m, i);
        layer_backward(m, i, &w->layer[i], dx);
    }
    if (w->full) be->embed_grad(be, grad_of(m, model_table(m)->w), dx, b->ids);
    if (be->pass_end) be->pass_end(be);
    return be->sync(be, e);
}
