/* What LoRA does in a mixture of experts, where each expert has matrices of its own. The rows are sorted by expert, and
 * by adapter's runs within one, since the rows of an expert keep their order. */
#include "model/layer.h"

void lora_experts_linear(struct model *m, const struct lora_runs *l, int layer, enum lora_input input,
                         const struct routing *r, struct expert_places at, struct tensor y, struct tensor x,
                         const struct weight *w, void *xa) {
    const struct expert_ops *ops = m->be->experts;
    const struct lora_rows *only = l->n == 1 && l->run[0].row == 0 && l->run[0].n == r->T ? &l->run[0] : NULL;
    int groups = 0;
    const struct lora_group *one = only ? lora_groups(&only->adapter->layer[layer], input, &groups) : NULL;
    if (groups == 1) { /* one adapter has all rows */
        const struct lora *of = &only->adapter->layer[layer];
        struct lora_site_args site[LORA_SITES_MAX];
        const int sites = lora_sites(m, of, one, input, y, site);
        const struct tensor t = lora_xa(m, of, one, input, xa, x.rows);
        ops->linear(m->be, t, x, one->a, r->E, routing_places(r), one->scale, false);
        fused_expert_lora(m->be, y, x, w, r, t, site, sites, false);
        return;
    }
    ops->linear(m->be, y, x, w, r->E, routing_places(r), 1, false);
    for (int i = 0; i < l->n; i++) {
        const struct lora_rows *run = &l->run[i];
        const struct lora *of = &run->adapter->layer[layer];
        const bool whole = run->row == 0 && run->n == r->T;
        int n;
        const struct lora_group *g = lora_groups(of, input, &n);
        if (n > 0 && !whole) ops->rows_of(m->be, at, r, run->row, run->n);
        const struct expert_places here = whole ? routing_places(r) : at;
        for (int k = 0; k < n; k++) {
            struct lora_site_args site[LORA_SITES_MAX];
            const int sites = lora_sites(m, of, &g[k], input, y, site);
            struct tensor t = lora_xa(m, of, &g[k], input, xa, x.rows);
            ops->linear(m->be, t, x, g[k].a, r->E, here, g[k].scale, false);
            for (int s = 0; s < sites; s++)
                ops->linear(m->be, site[s].y, tensor_cols(t, s * g[k].rank, g[k].rank), site[s].b, r->E, here, 1, true);
        }
    }
}

void lora_experts_backward(struct model *m, int layer, enum lora_input input, const struct routing *r, struct tensor dy,
                           void *xa, void *dt) {
    const struct expert_ops *ops = m->be->experts;
    const struct lora *l = lora_in_pass(m, layer, input);
    const struct expert_places all = routing_places(r);
    int n = 0;
    const struct lora_group *g = l ? lora_groups(l, input, &n) : NULL;
    for (int k = 0; k < n; k++) {
        struct lora_site_args site[LORA_SITES_MAX];
        const int sites = lora_sites(m, l, &g[k], input, dy, site);
        for (int s = 0; s < sites; s++) {
            const struct weight *b = site[s].b;
            float *const db = lora_grad_of(m, b->w);
            const int64_t col = s * g[k].rank, R = g[k].rank;
            if (xa && db)
                ops->linear_dw(m->be, db, carve_size(b->N * b->K), site[s].y,
                               tensor_cols(lora_xa(m, l, &g[k], input, xa, dy.rows), col, R), r->E, all, m->act);
            ops->linear_dx(m->be, tensor_cols(lora_xa(m, l, &g[k], input, dt, dy.rows), col, R), site[s].y, b, r->E,
                           all, g[k].scale, false);
        }
    }
}

void lora_experts_a_grad(struct model *m, int layer, enum lora_input input, const struct routing *r, struct tensor x,
                         void *dt) {
    const struct lora *l = lora_in_pass(m, layer, input);
    int n = 0;
    const struct lora_group *g = l ? lora_groups(l, input, &n) : NULL;
    for (int k = 0; k < n; k++) {
        const struct weight *a = g[k].a;
        float *const da = lora_grad_of(m, a->w);
        if (da)
            m->be->experts->linear_dw(m->be, da, carve_size(a->N * a->K), lora_xa(m, l, &g[k], input, dt, x.rows), x,
                                      r->E, routing_places(r), m->act);
    }
}

void lora_experts_dx(struct model *m, int layer, enum lora_input input, const struct routing *r, struct tensor dx,
                     struct tensor dy, const struct weight *w, void *dt) {
    const struct expert_ops *ops = m->be->experts;
    const struct lora *l = lora_in_pass(m, layer, input);
    const struct expert_places all = routing_places(r);
    int n = 0;
    const struct lora_group *g = l ? lora_groups(l, input, &n) : NULL;
    if (n == 1) {
        const struct lora_site_args site = {g->a, dx};
        fused_expert_lora(m->be, dx, dy, w, r, lora_xa(m, l, g, input, dt, dx.rows), &site, 1, true);
        return;
    }
    ops->linear_dx(m->be, dx, dy, w, r->E, all, 1, false);
    for (int k = 0; k < n; k++)
        ops->linear_dx(m->be, dx, lora_xa(m, l, &g[k], input, dt, dx.rows), g[k].a, r->E, all, 1, true);
}
