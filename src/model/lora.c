/* What LoRA does in a pass, forward and backward. Adapters themselves are in adapter.c, their files in peft.c. */
#include "model/internal.h"

const int lora_first[LORA_INPUTS + 1] = {MODULE_Q, MODULE_O, MODULE_GATE, MODULE_DOWN, MODULE_HEAD, LORA_SITES};

void lora_site_dims(const struct model_config *c, int site, int64_t *in, int64_t *out) {
    const int64_t HK = (int64_t)c->H * c->K, GK = (int64_t)c->G * c->K;
    const int64_t ins[LORA_SITES] = {c->D, c->D, c->D, HK, c->D, c->D, c->F, c->D};
    const int64_t outs[LORA_SITES] = {HK, GK, GK, c->D, c->F, c->F, c->D, c->V};
    *in = ins[site];
    *out = outs[site];
}

/* ---- whose rows ---------------------------------------------------------------------------------------------------*/

void runs_add(struct lora_runs *l, const struct adapter *ad, int64_t row, int64_t n) {
    if (!ad || n == 0) return;
    struct lora_rows *last = l->n > 0 ? &l->run[l->n - 1] : NULL;
    if (last && last->adapter == ad && last->row + last->n == row)
        last->n += n;
    else
        l->run[l->n++] = (struct lora_rows){ad, row, n};
}

struct lora_runs runs_within(const struct lora_runs *l, int64_t row, int64_t n, struct lora_rows *room) {
    struct lora_runs out = {.run = room};
    for (int i = 0; i < l->n; i++) {
        const struct lora_rows *r = &l->run[i];
        const int64_t from = i64_max(r->row, row), to = i64_min(r->row + r->n, row + n);
        if (from < to) room[out.n++] = (struct lora_rows){r->adapter, from - row, to - from};
    }
    return out;
}

/* Whether the backend has ops for it. */
static bool lora_fused(const struct model *m) { return m->be->lora_down && m->act == DT_BF16; }

bool lora_alone(const struct model *m, const struct lora_runs *l, int64_t T, int layer, enum lora_input input) {
    return l->n == 1 && l->run[0].n == T && l->run[0].adapter->layer[layer].a[input].w && lora_fused(m);
}

bool lora_none(const struct lora_runs *l, int layer, enum lora_input input) {
    for (int i = 0; i < l->n; i++)
        if (l->run[i].adapter->layer[layer].a[input].w) return false;
    return true;
}

/* ---- forward ------------------------------------------------------------------------------------------------------*/

static void lora_down(struct model *m, const struct lora_rows *r, int layer, enum lora_input input, struct tensor x,
                      void *xa) {
    const struct weight *a = &r->adapter->layer[layer].a[input];
    if (a->w) m->be->lora_down(m->be, tensor_rows(x, r->row, r->n), a, act_full(m, xa, r->n, a->N), r->adapter->scale);
}

int lora_sites(struct model *m, const struct lora *l, enum lora_input input, struct tensor y,
               struct lora_site_args site[LORA_SITES_MAX]) {
    int n = 0;
    int64_t col = 0;
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, s, &in, &out);
        if (l->b[s].w) site[n++] = (struct lora_site_args){&l->b[s], tensor_cols(y, col, out)};
        col += out;
    }
    return n;
}

/* The rows of one adapter; x and y are those rows. */
static void lora_of_rows(struct model *m, const struct adapter *ad, int layer, enum lora_input input, struct tensor y,
                         struct tensor x, void *xa) {
    const struct lora *l = &ad->layer[layer];
    const struct weight *a = &l->a[input];
    if (!a->w) return;
    struct backend *be = m->be;
    struct tensor t = act_full(m, xa, x.rows, a->N);
    if (lora_fused(m)) {
        struct lora_site_args site[LORA_SITES_MAX];
        be->lora_up(be, t, site, lora_sites(m, l, input, y, site));
        return;
    }
    be->linear(be, t, x, a, NULL, false);
    be->axpby(be, t, ad->scale, t, 0);
    int64_t row = 0, col = 0; /* of A and of y */
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, s, &in, &out);
        if (l->b[s].w) {
            be->linear(be, tensor_cols(y, col, out), tensor_cols(t, row, ad->rank), &l->b[s], NULL, true);
            row += ad->rank;
        }
        col += out;
    }
}

/* The backend knows one xa at a time (tensor/backend.h): with several adapters each goes both ways before the next. */
void lora_begin(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor x,
                void *xa) {
    if (l->n == 1 && lora_fused(m)) lora_down(m, &l->run[0], layer, input, x, xa);
}

void lora_forward(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor y,
                  struct tensor x, void *xa) {
    for (int i = 0; i < l->n; i++) {
        const struct lora_rows *r = &l->run[i];
        if (l->n > 1 && lora_fused(m)) lora_down(m, r, layer, input, x, xa);
        lora_of_rows(m, r->adapter, layer, input, tensor_rows(y, r->row, r->n), tensor_rows(x, r->row, r->n), xa);
    }
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 * All rows of a batch that is trained on are of one adapter: check_batch in forward.c sees to it. */

/* What the batch's adapter has there, or NULL. */
static const struct lora *trained_at(const struct model *m, int layer, enum lora_input input) {
    const struct adapter *ad = m->ts.of;
    return ad && ad->layer[layer].a[input].w ? &ad->layer[layer] : NULL;
}

void lora_backward(struct model *m, int layer, enum lora_input input, struct tensor dy, void *xa, void *dt) {
    const struct lora *l = trained_at(m, layer, input);
    if (!l) return;
    struct backend *be = m->be;
    const int64_t R = m->ts.of->rank, cols = l->a[input].N;
    const float scale = m->ts.of->scale;
    const bool at_once = be->lora_dt && m->act == DT_BF16;
    struct tensor t = act_full(m, dt, dy.rows, cols), x = act_full(m, xa, dy.rows, cols);
    int64_t row = 0, col = 0; /* of A and of dy */
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, s, &in, &out);
        struct tensor d = tensor_cols(dy, col, out);
        col += out;
        if (!l->b[s].w) continue;
        float *const db = lora_grad_of(m, l->b[s].w);
        if (xa && db) be->linear_dw(be, db, d, tensor_cols(x, row, R), m->act); /* dB = dy^T (scale x A^T) */
        if (dt && at_once)
            be->lora_dt(be, tensor_cols(t, row, R), d, &l->b[s], scale);
        else if (dt)
            be->linear_dx(be, tensor_cols(t, row, R), d, &l->b[s], false);
        row += R;
    }
    if (dt && !at_once) be->axpby(be, t, scale, t, 0);
}

void lora_a_grad(struct model *m, int layer, enum lora_input input, struct tensor x, void *dt) {
    const struct lora *l = trained_at(m, layer, input);
    float *const da = l ? lora_grad_of(m, l->a[input].w) : NULL;
    if (da) m->be->linear_dw(m->be, da, act_full(m, dt, x.rows, l->a[input].N), x, m->act);
}

/* In bfloat16 the thin product comes first: it then writes dx without reading it, and the wide one has time to. */
void lora_dx(struct model *m, int layer, enum lora_input input, struct tensor dx, struct tensor dy,
             const struct weight *w, void *dt) {
    const struct lora *l = trained_at(m, layer, input);
    const bool first = l && m->act == DT_BF16;
    if (first) m->be->linear_dx(m->be, dx, act_full(m, dt, dx.rows, l->a[input].N), &l->a[input], false);
    m->be->linear_dx(m->be, dx, dy, w, first);
    if (l && !first) m->be->linear_dx(m->be, dx, act_full(m, dt, dx.rows, l->a[input].N), &l->a[input], true);
}
