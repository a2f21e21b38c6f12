/* The backward pass of a batch, by hand, layer by layer in reverse (layer.h). Norm and SwiGLU outputs and rotated q, k
 * are recomputed from what forward kept (struct layer_acts): they are cheap, and keeping them would double the memory.
 * Where memory is short the rest is recomputed, too, from the layer's input (model_layer_recall). */
#include "model/layer.h"

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
            struct tensor lg = tensor_full(w->logits, n, V);
            model_wanted_logits(m, b, j, lg);
            fused_logits_grad(be, dl_of(m, j, n), lg, b->targets + j, w->ones);
        }
        struct tensor hs = act_full(m, w->hs, rows, D);
        be->gather_scaled(be, hs, hn, b->rows + i, g + i);
        if (w->full) {
            be->linear_dw(be, grad_of(m, m->head.w), dl_of(m, i, rows), hs, m->head.dt);
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
        if (!w->keep_logits) model_wanted_logits(m, b, i, lg);
        be->gather_rows(be, hc, hn, b->rows + i);
        fused_logits_grad(be, lg, lg, b->targets + i, g + i);
        lora_backward(m, behind, LORA_OF_HN, lg, model_head_xa(m, i), dt);
        lora_dx(m, behind, LORA_OF_HN, dhc, lg, &m->head, dt);
        be->scatter_add_rows(be, dh, dhc, b->rows + i, NULL);
        lora_a_grad(m, behind, LORA_OF_HN, hc, dt);
        if (w->full) be->linear_dw(be, grad_of(m, m->head.w), lg, hc, m->head.dt);
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

    m->values_there &= !w->full;
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
