#include "model/declare.h"

#include <stdlib.h>

static struct stored *add_stored(struct declared *d) {
    struct model *m = d->m;
    if (m->n_stored == d->cap_stored) {
        d->cap_stored = d->cap_stored ? 2 * d->cap_stored : 64;
        m->stored = xrealloc(m->stored, (size_t)d->cap_stored * sizeof *m->stored);
    }
    return &m->stored[m->n_stored++];
}

void declare_matrix(struct declared *d, struct weight *w, int64_t N, int64_t K, bool multiplied) {
    *w = (struct weight){.N = N, .K = K};
    *add_stored(d) = (struct stored){.matrix = w, .n = N * K, .multiplied = multiplied};
}

void declare_vector(struct declared *d, float **v, int64_t n) { *add_stored(d) = (struct stored){.vector = v, .n = n}; }

static void add_param(struct declared *d, enum arch_module at, int layer, const char *what, struct param p,
                      struct param_place place) {
    struct model *m = d->m;
    if (m->n_param == d->cap_param) {
        d->cap_param = d->cap_param ? 2 * d->cap_param : 64;
        m->param = xrealloc(m->param, (size_t)d->cap_param * sizeof *m->param);
        m->place = xrealloc(m->place, (size_t)d->cap_param * sizeof *m->place);
    }
    CLEANUP_STR struct str name = STR_INIT;
    arch_tensor(m->cfg.arch, at, layer, what, &name);
    p.name = arena_strdup(&m->names, name.p);
    m->param[m->n_param] = p;
    m->place[m->n_param++] = place;
}

void declare_rows(struct declared *d, enum arch_module at, int layer, struct weight *w, int64_t row, int64_t rows) {
    add_param(d, at, layer, "weight", (struct param){.n = rows * w->K, .nd = 2, .dim = {rows, w->K}},
              (struct param_place){.in = w, .row = row});
}

void declare_part(struct declared *d, enum arch_module at, int layer, const char *what, float **v, int64_t first,
                  int64_t n) {
    add_param(d, at, layer, what, (struct param){.n = n, .nd = 1, .dim = {n, 0}},
              (struct param_place){.vector = v, .row = first});
}

const char *declared_name(struct model *m, enum arch_module at) {
    CLEANUP_STR struct str name = STR_INIT;
    arch_tensor(m->cfg.arch, at, 0, "weight", &name);
    return arena_strdup(&m->names, name.p);
}

int64_t declared_matrix_elements(const struct model *m) {
    int64_t n = 0;
    for (int i = 0; i < m->n_stored; i++)
        if (m->stored[i].matrix) n += m->stored[i].n;
    return n;
}

/* Fills in the places from a slab; without memory it only counts. */
static void hand_out(struct model *m, struct carve *slab) {
    for (int i = 0; i < m->n_stored; i++) {
        const struct stored *s = &m->stored[i];
        if (s->vector) {
            *s->vector = carve(slab, s->n);
            continue;
        }
        s->matrix->dt = m->dt;
        s->matrix->w = m->bf16_only ? NULL : carve(slab, s->n);
    }
}

enum status declared_lay_out(struct model *m, struct err *e) {
    struct carve slab = {0};
    int64_t cap = 0;
    hand_out(m, &slab);
    m->n_w = slab.used;
    TRY(space_grow(m, &m->w, &cap, m->n_w, "the weights", e));
    m->be->mem_zero(m->be, m->w, (size_t)m->n_w * sizeof(float)); /* the gaps between tensors */
    slab = (struct carve){.base = m->w};
    hand_out(m, &slab);
    for (int i = 0; i < m->n_param; i++) {
        const struct param_place *at = &m->place[i];
        float *const base = at->vector ? *at->vector : at->in->w;
        m->param[i].w = base ? base + at->row * (at->vector ? 1 : at->in->K) : NULL;
    }
    return ST_OK;
}

void declared_pack(struct model *m) {
    for (int i = 0; i < m->n_stored; i++)
        if (m->stored[i].multiplied) m->be->weight_pack(m->be, m->stored[i].matrix);
}

void declared_free(struct model *m) {
    for (int i = 0; i < m->n_stored; i++)
        if (m->stored[i].matrix) m->be->weight_free(m->be, m->stored[i].matrix);
    free(m->stored);
    free(m->param);
    free(m->place);
}
