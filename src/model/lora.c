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

/* ---- groups -------------------------------------------------------------------------------------------------------*/

const struct lora_group *lora_groups(const struct lora *l, enum lora_input input, int *n) {
    *n = l->groups[input];
    return &l->group[lora_first[input]];
}

static int64_t group_elements(const struct lora_group *g, int64_t rows) {
    return (rows * g->a.N + LORA_ALIGN - 1) / LORA_ALIGN * LORA_ALIGN;
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
    return act_full(m, (char *)xa + (size_t)before * dtype_bytes(m->act), rows, g->a.N);
}

int lora_sites(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
               struct tensor y, struct lora_site_args site[LORA_SITES_MAX]) {
    int n = 0;
    int64_t col = 0;
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, s, &in, &out);
        if (g->sites >> s & 1) site[n++] = (struct lora_site_args){&l->b[s], tensor_cols(y, col, out)};
        col += out;
    }
    return n;
}

bool lora_alone(const struct model *m, const struct lora_runs *l, int64_t T, int layer, enum lora_input input) {
    return l->n == 1 && l->run[0].n == T && l->run[0].adapter->layer[layer].groups[input] == 1 && lora_fused(m);
}

bool lora_none(const struct lora_runs *l, int layer, enum lora_input input) {
    for (int i = 0; i < l->n; i++)
        if (l->run[i].adapter->layer[layer].groups[input] > 0) return false;
    return true;
}

/* ---- forward ------------------------------------------------------------------------------------------------------*/

/* t = scale x A^T */
static void group_down(struct model *m, const struct lora_group *g, struct tensor x, struct tensor t) {
    if (lora_fused(m)) {
        m->be->lora_down(m->be, x, &g->a, t, g->scale);
        return;
    }
    m->be->linear(m->be, t, x, &g->a, NULL, false);
    m->be->axpby(m->be, t, g->scale, t, 0);
}

/* y += t B^T of each site */
static void group_up(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
                     struct tensor y, struct tensor t) {
    struct lora_site_args site[LORA_SITES_MAX];
    const int n = lora_sites(m, l, g, input, y, site);
    if (lora_fused(m)) {
        m->be->lora_up(m->be, t, site, n);
        return;
    }
    for (int i = 0; i < n; i++)
        m->be->linear(m->be, site[i].y, tensor_cols(t, i * g->rank, g->rank), site[i].b, NULL, true);
}

/* Whether lora_begin has gone down already. */
static bool goes_first(const struct model *m, const struct lora_runs *l, int layer, enum lora_input input) {
    return l->n == 1 && l->run[0].adapter->layer[layer].groups[input] == 1 && lora_fused(m);
}

/* The backend knows one xa at a time (tensor/backend.h): with several adapters or groups each goes both ways before the
 * next. */
void lora_begin(struct model *m, const struct lora_runs *l, int layer, enum lora_input input, struct tensor x,
                void *xa) {
    if (!goes_first(m, l, layer, input)) return;
    const struct lora_rows *r = &l->run[0];
    const struct lora *of = &r->adapter->layer[layer];
    int n;
    const struct lora_group *g = lora_groups(of, input, &n);
    group_down(m, g, tensor_rows(x, r->row, r->n), lora_xa(m, of, g, input, xa, r->n));
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
            if (!goes_first(m, l, layer, input)) group_down(m, &g[k], tensor_rows(x, r->row, r->n), t);
            group_up(m, of, &g[k], input, tensor_rows(y, r->row, r->n), t);
        }
    }
}

/* ---- backward -----------------------------------------------------------------------------------------------------
 * All rows of a batch that is trained on are of one adapter: check_batch in forward.c sees to it. */

/* What the batch's adapter has there, or NULL. */
static const struct lora *trained_at(const struct model *m, int layer, enum lora_input input) {
    const struct adapter *ad = m->ts.of;
    return ad && ad->layer[layer].groups[input] > 0 ? &ad->layer[layer] : NULL;
}

static void group_backward(struct model *m, const struct lora *l, const struct lora_group *g, enum lora_input input,
                           struct tensor dy, void *xa, void *dt) {
    struct backend *be = m->be;
    struct lora_site_args site[LORA_SITES_MAX];
    const bool at_once = be->lora_dt && m->act == DT_BF16;
    const int n = lora_sites(m, l, g, input, dy, site);
    struct tensor x = lora_xa(m, l, g, input, xa, dy.rows), t = lora_xa(m, l, g, input, dt, dy.rows);
    for (int i = 0; i < n; i++) {
        float *const db = lora_grad_of(m, site[i].b->w);
        const int64_t col = i * g->rank;
        /* dB = dy^T (scale x A^T) */
        if (xa && db) be->linear_dw(be, db, site[i].y, tensor_cols(x, col, g->rank), m->act);
        if (dt && at_once)
            be->lora_dt(be, tensor_cols(t, col, g->rank), site[i].y, site[i].b, g->scale);
        else if (dt)
            be->linear_dx(be, tensor_cols(t, col, g->rank), site[i].y, site[i].b, false);
    }
    if (dt && !at_once) be->axpby(be, t, g->scale, t, 0);
}

void lora_backward(struct model *m, int layer, enum lora_input input, struct tensor dy, void *xa, void *dt) {
    const struct lora *l = trained_at(m, layer, input);
    int n;
    if (!l) return;
    const struct lora_group *g = lora_groups(l, input, &n);
    for (int k = 0; k < n; k++) group_backward(m, l, &g[k], input, dy, xa, dt);
}

void lora_a_grad(struct model *m, int layer, enum lora_input input, struct tensor x, void *dt) {
    const struct lora *l = trained_at(m, layer, input);
    int n;
    if (!l) return;
    const struct lora_group *g = lora_groups(l, input, &n);
    for (int k = 0; k < n; k++) {
        float *const da = lora_grad_of(m, g[k].a.w);
        if (da) m->be->linear_dw(m->be, da, lora_xa(m, l, &g[k], input, dt, x.rows), x, m->act);
    }
}

/* In bfloat16 the thin products come first: the first then writes dx without reading it, and the wide one has time to.
 */
void lora_dx(struct model *m, int layer, enum lora_input input, struct tensor dx, struct tensor dy,
             const struct weight *w, void *dt) {
    const struct lora *l = trained_at(m, layer, input);
    const bool first = l && m->act == DT_BF16;
    int n = 0;
    const struct lora_group *g = l ? lora_groups(l, input, &n) : NULL;
    if (!first) m->be->linear_dx(m->be, dx, dy, w, false);
    for (int k = 0; k < n; k++)
        m->be->linear_dx(m->be, dx, lora_xa(m, l, &g[k], input, dt, dx.rows), &g[k].a, !first || k > 0);
    if (first) m->be->linear_dx(m->be, dx, dy, w, true);
}
