/* What LoRA does in a pass, forward and backward. Adapters themselves are in adapter.c, their files in peft.c. */
#include "model/layer.h"

const int lora_first[LORA_INPUTS + 1] = {MODULE_Q, MODULE_O, MODULE_GATE, MODULE_DOWN, MODULE_HEAD, LORA_SITES};

void lora_site_dims(const struct model_config *c, int layer, int site, int64_t *in, int64_t *out) {
    const struct layer_block *const *b = layer < c->L ? layer_blocks(c, layer) : NULL;
    for (int k = 0; b && k < LAYER_BLOCKS; k++)
        if (site >= (int)b[k]->first_site && site < (int)b[k]->end_site) {
            b[k]->site_dims(c, (enum arch_module)site, in, out);
            return;
        }
    *in = c->D; /* the head's */
    *out = c->V;
}

static bool in_experts(const struct model_config *c, int layer, enum lora_input input) {
    return layer < c->L && c->sparse[layer] && (input == LORA_OF_H2 || input == LORA_OF_ACT);
}

int64_t lora_copies(const struct model_config *c, int layer, enum lora_input input) {
    return in_experts(c, layer, input) ? c->E : 1;
}

int64_t lora_rows_at(const struct model_config *c, int layer, enum lora_input input, int64_t T) {
    return in_experts(c, layer, input) ? T * c->top_k : T;
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

/* True: the first half of LoRA, x A^T, is computed in front of the base's product. */
static bool lora_splits(const struct model *m) { return fused_lora_splits(m->be, m->act); }

/* ---- groups -------------------------------------------------------------------------------------------------------*/

const struct lora_group *lora_groups(const struct lora *l, enum lora_input input, int *n) {
    *n = l->groups[input];
    return &l->group[lora_first[input]];
}

static int64_t group_elements(const struct lora_group *g, int64_t rows) {
    return (rows * g->a->N + LORA_ALIGN - 1) / LORA_ALIGN * LORA_ALIGN;
}

int64_t lora_xa_elements(const struct lora *l, enum lora_input input, int64_t rows) {
    int n;
    int64_t all = 0;
    const struct lora_group *g = lora_groups(l, input, &n);
    for (int i = 0; i < n; i++) all += group_elements(&g[i], rows);
    return all;
}

struct tensor lora_xa(const struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
                      void *xa, int64_t rows) {
    int n;
    int64_t before = 0;
    for (const struct lora_group *q = lora_groups(l, input, &n); q < g; q++) before += group_elements(q, rows);
    return act_full(m, (char *)xa + (size_t)before * dtype_bytes(m->act), rows, g->a->N);
}

int lora_sites(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
               struct tensor y, struct lora_site_args site[LORA_SITES_MAX]) {
    int n = 0;
    int64_t col = 0;
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, l->layer, s, &in, &out);
        if (g->sites >> s & 1) site[n++] = (struct lora_site_args){l->b[s], tensor_cols(y, col, out)};
        col += out;
    }
    return n;
}

bool lora_alone(const struct model *m, const struct lora_runs *l, int64_t T, int layer, enum lora_input input) {
    return l->n == 1 && l->run[0].n == T && l->run[0].adapter->layer[layer].groups[input] == 1 && lora_splits(m);
}

bool lora_none(const struct lora_runs *l, int layer, enum lora_input input) {
    for (int i = 0; i < l->n; i++)
        if (l->run[i].adapter->layer[layer].groups[input] > 0) return false;
    return true;
}

/* ---- forward ------------------------------------------------------------------------------------------------------*/

/* y += t B^T of each site */
static void group_up(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
                     struct tensor y, struct tensor t) {
    struct lora_site_args site[LORA_SITES_MAX];
    const int n = lora_sites(m, l, g, input, y, site);
    fused_lora_up(m->be, t, site, n);
}

/* True: lora_begin computes x A^T; false: lora_forward does. */
static bool goes_first(const struct model *m, const struct lora_runs *l, int layer, enum lora_input input) {
    return l->n == 1 && l->run[0].adapter->layer[layer].groups[input] == 1 && lora_splits(m);
}

/* The backend knows one xa at a time (tensor/backend.h). With several adapters or groups, both halves of one are
 * computed before those of the next. */
void lora_begin(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor x,
                void *xa) {
    if (!goes_first(m, l, layer, input)) return;
    const struct lora_rows *r = &l->run[0];
    const struct lora *of = &r->adapter->layer[layer];
    int n;
    const struct lora_group *g = lora_groups(of, input, &n);
    fused_lora_down(m->be, lora_xa(m, of, g, input, xa, r->n), tensor_rows(x, r->row, r->n), g->a, g->scale);
}

void lora_forward(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor y,
                  struct tensor x, void *xa) {
    for (int i = 0; i < l->n; i++) {
        const struct lora_rows *r = &l->run[i];
        const struct lora *of = &r->adapter->layer[layer];
        int n;
        const struct lora_group *g = lora_groups(of, input, &n);
        for (int k = 0; k < n; k++) {
            struct tensor t = lora_xa(m, of, &g[k], input, xa, r->n);
            if (!goes_first(m, l, layer, input))
                fused_lora_down(m->be, t, tensor_rows(x, r->row, r->n), g[k].a, g[k].scale);
            group_up(m, of, &g[k], input, tensor_rows(y, r->row, r->n), t);
        }
    }
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 * All rows of a batch that is trained on are of one adapter: check_batch in forward.c sees to it. */

const struct lora *lora_in_pass(const struct model *m, int layer, enum lora_input input) {
    const struct adapter *ad = m->ts.of;
    return ad && ad->layer[layer].groups[input] > 0 ? &ad->layer[layer] : NULL;
}

static void group_backward(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
                           struct tensor dy, void *xa, void *dt) {
    struct backend *be = m->be;
    struct lora_site_args site[LORA_SITES_MAX];
    const int n = lora_sites(m, l, g, input, dy, site);
    struct tensor x = lora_xa(m, l, g, input, xa, dy.rows), t = lora_xa(m, l, g, input, dt, dy.rows);
    for (int i = 0; i < n; i++) {
        float *const db = lora_grad_of(m, site[i].b->w);
        const int64_t col = i * g->rank;
        /* dB = dy^T (scale x A^T) */
        if (xa && db) be->linear_dw(be, db, site[i].y, tensor_cols(x, col, g->rank), m->act);
        if (dt) fused_lora_dt(be, tensor_cols(t, col, g->rank), site[i].y, site[i].b, g->scale);
    }
}

void lora_backward(struct model *m, int layer, enum lora_input input, struct tensor dy, void *xa, void *dt) {
    const struct lora *l = lora_in_pass(m, layer, input);
    int n;
    if (!l) return;
    const struct lora_group *g = lora_groups(l, input, &n);
    for (int k = 0; k < n; k++) group_backward(m, l, &g[k], input, dy, xa, dt);
}

void lora_a_grad(struct model *m, int layer, enum lora_input input, struct tensor x, void *dt) {
    const struct lora *l = lora_in_pass(m, layer, input);
    int n;
    if (!l) return;
    const struct lora_group *g = lora_groups(l, input, &n);
    for (int k = 0; k < n; k++) {
        float *const da = lora_grad_of(m, g[k].a->w);
        if (da) m->be->linear_dw(m->be, da, lora_xa(m, l, &g[k], input, dt, x.rows), x, m->act);
    }
}

/* In bfloat16 the thin products come first: the first then writes dx without reading it, and the wide one has time to.
 */
void lora_dx(struct model *m, int layer, enum lora_input input, struct tensor dx, struct tensor dy,
             const struct weight *w, void *dt) {
    const struct lora *l = lora_in_pass(m, layer, input);
    const bool first = l && m->act == DT_BF16;
    int n = 0;
    const struct lora_group *g = l ? lora_groups(l, input, &n) : NULL;
    if (!first) m->be->linear_dx(m->be, dx, dy, w, false);
    for (int k = 0; k < n; k++)
        m->be->linear_dx(m->be, dx, lora_xa(m, l, &g[k], input, dt, dx.rows), g[k].a, !first || k > 0);
    if (first) m->be->linear_dx(m->be, dx, dy, w, true);
}
