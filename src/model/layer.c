#include "model/layer.h"

#include "model/declare.h"

static const struct layer_block *const dense[LAYER_BLOCKS] = {&attention_block, &ffn_block};
static const struct layer_block *const sparse[LAYER_BLOCKS] = {&attention_block, &moe_block};
static const struct layer_block *const mixed[LAYER_KINDS_MAX] = {&attention_block, &ffn_block, &moe_block};

const struct layer_block *const *layer_blocks(const struct model_config *c, int i) {
    return c->sparse[i] ? sparse : dense;
}

const struct layer_block *const *layer_kinds(const struct model_config *c, int *n) {
    int n_sparse = 0;
    for (int i = 0; i < c->L; i++) n_sparse += c->sparse[i];
    const bool both = n_sparse > 0 && n_sparse < c->L;
    *n = both ? LAYER_KINDS_MAX : LAYER_BLOCKS;
    return both ? mixed : n_sparse > 0 ? sparse : dense;
}

void layer_declare(struct declared *d, int i) {
    const struct layer_block *const *b = layer_blocks(&d->m->cfg, i);
    for (int k = 0; k < LAYER_BLOCKS; k++) b[k]->declare(d, i);
}

void layer_keep(const struct model *m, struct carve *s, int i, int64_t T, float *x, struct layer_acts *a) {
    int n = LAYER_BLOCKS;
    const struct layer_block *const *b = i == LAYER_ANY ? layer_kinds(&m->cfg, &n) : layer_blocks(&m->cfg, i);
    const bool trained = !x;
    *a = (struct layer_acts){.x = {x}}; /* nothing of an earlier batch stays: xa, above all */
    for (int k = 0; k < n; k++) {
        if (k > 0 && k < LAYER_BLOCKS) a->x[k] = trained ? carve(s, T * m->cfg.D) : x;
        b[k]->keep(m, s, T, trained, a);
    }
}

void layer_scratch(const struct model *m, struct carve *s, int64_t T, struct pass *p) {
    int n;
    const struct layer_block *const *b = layer_kinds(&m->cfg, &n);
    for (int k = 0; k < n; k++) b[k]->scratch(m, s, T, p);
}

void layer_scratch_back(const struct model *m, struct carve *s, int64_t T, struct train_space *w) {
    int n;
    const struct layer_block *const *b = layer_kinds(&m->cfg, &n);
    for (int k = 0; k < n; k++) b[k]->scratch_back(m, s, T, w);
}

void layer_forward(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *out) {
    const struct layer_block *const *b = layer_blocks(&m->cfg, i);
    for (int k = 0; k < LAYER_BLOCKS; k++) b[k]->forward(m, i, p, a, a->x[k], k + 1 < LAYER_BLOCKS ? a->x[k + 1] : out);
}

void layer_backward(struct model *m, int i, const struct layer_acts *a, struct tensor dx) {
    const struct layer_block *const *b = layer_blocks(&m->cfg, i);
    for (int k = LAYER_BLOCKS - 1; k >= 0; k--) b[k]->backward(m, i, a, a->x[k], dx);
}

/* ---- what blocks share ------------------------------------------------------------------------------------------- */

void layer_add_product(struct model *m, int i, struct pass *p, const struct layer_acts *a, enum lora_input input,
                       struct tensor y, struct tensor x, const struct weight *w, struct tensor z) {
    void *const xa = xa_of(p, a, input);
    lora_begin(m, &p->lora, i, input, x, xa);
    fused_linear_add(m->be, y, x, w, z);
    lora_forward(m, &p->lora, i, input, y, x, xa);
}

struct tensor layer_dh(const struct model *m) {
    return tensor_of(m->ts.dh, fused_norm_dy(m->be, m->act), m->ts.T, m->cfg.D);
}

void layer_norm_backward(struct model *m, struct tensor dx, struct tensor h, struct tensor dh, struct tensor x,
                         const float *gain) {
    fused_norm_back(m->be, dx, h, dh, x, gain, m->cfg.rms_eps, grad_of(m, gain));
}

void layer_dw(struct model *m, const struct weight *w, struct tensor dy, struct tensor x) {
    if (m->ts.full) m->be->linear_dw(m->be, grad_of(m, w->w), dy, x, w->dt);
}
