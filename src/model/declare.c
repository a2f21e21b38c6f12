#include "model/declare.h"

#include <stdlib.h>
#include <string.h>

#include "model/coded_file.h"

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
    *add_stored(d) = (struct stored){.matrix = w, .n = N * K, .multiplied = multiplied, .of_layer = d->in_layer};
}

void declare_exact(struct declared *d, struct weight *w, int64_t N, int64_t K) {
    declare_matrix(d, w, N, K, true);
    d->m->stored[d->m->n_stored - 1].exact = true;
}

void declare_vector(struct declared *d, float **v, int64_t n) { *add_stored(d) = (struct stored){.vector = v, .n = n}; }

/* place has all that the parameter's name says. */
static void add_param(struct declared *d, const char *what, struct param p, struct param_place place) {
    struct model *m = d->m;
    if (m->n_param == d->cap_param) {
        d->cap_param = d->cap_param ? 2 * d->cap_param : 64;
        m->param = xrealloc(m->param, (size_t)d->cap_param * sizeof *m->param);
        m->place = xrealloc(m->place, (size_t)d->cap_param * sizeof *m->place);
    }
    CLEANUP_STR struct str name = STR_INIT;
    arch_expert_tensor(m->cfg.arch, place.at, place.layer, place.expert, what, &name);
    p.name = arena_strdup(&m->names, name.p);
    m->param[m->n_param] = p;
    m->place[m->n_param++] = place;
}

void declare_expert_rows(struct declared *d, enum arch_module at, int layer, int64_t expert, struct weight *w,
                         int64_t row, int64_t rows) {
    add_param(d, "weight", (struct param){.n = rows * w->K, .nd = 2, .dim = {rows, w->K}},
              (struct param_place){.in = w, .row = row, .at = at, .layer = layer, .expert = expert});
}

void declare_rows(struct declared *d, enum arch_module at, int layer, struct weight *w, int64_t row, int64_t rows) {
    declare_expert_rows(d, at, layer, 0, w, row, rows);
}

void declare_part(struct declared *d, enum arch_module at, int layer, const char *what, float **v, int64_t first,
                  int64_t n) {
    add_param(d, what, (struct param){.n = n, .nd = 1, .dim = {n, 0}},
              (struct param_place){.vector = v, .row = first, .at = at, .layer = layer});
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

int64_t declared_held_bytes(const struct model *m) {
    int64_t bytes = 0;
    for (int i = 0; i < m->n_stored; i++) {
        const struct weight *w = m->stored[i].matrix;
        if (w && w->format != FORMAT_F32) bytes += format_of(w->format)->bytes(w->N, w->K);
    }
    return bytes;
}

/* How many of a matrix's tensors f has in codes; *named is one that it has not, or the only kind there is. */
static int coded_tensors(const struct model *m, const struct weight *w, const struct st_file *f, int *of,
                         const char **named) {
    int n = 0;
    *of = 0;
    for (int i = 0; i < m->n_param; i++) {
        if (m->place[i].in != w) continue;
        const char *name = name_in(m, f, m->param[i].name);
        const bool coded = coded_in_file(f, name, m->in_file);
        if (!coded || *of == n) *named = name;
        n += coded;
        ++*of;
    }
    return n;
}

enum status declared_choose(struct model *m, const struct st_file *f, bool decoded, struct err *e) {
    const bool makes = !f || m->in_file == FORMAT_F32; /* a checkpoint in codes says itself what is in codes */
    bool any = false;
    for (int i = 0; i < m->n_stored; i++) {
        const struct stored *s = &m->stored[i];
        const char *named = "";
        int of = 1, n = 0;
        if (!s->matrix) continue;
        if (f && m->in_file != FORMAT_F32) n = coded_tensors(m, s->matrix, f, &of, &named);
        if (n > 0 && n < of)
            return FAIL(e, ST_UNSUPPORTED,
                        "tensor \"%s\" is not in %s like those of the same product, and such a mixture is not "
                        "supported",
                        named, format_of(m->in_file)->name);
        if (n > 0 && !s->of_layer && (!s->multiplied || m->cfg.tied))
            return FAIL(e, ST_UNSUPPORTED, "tensor \"%s\": an embedding table in %s is not supported", named,
                        format_of(m->in_file)->name);
        s->matrix->format = n > 0 || (s->of_layer && makes && m->codes != FORMAT_F32) ? m->codes : m->plain;
        if (decoded) s->matrix->format = m->plain;
        if (s->exact && n > 0)
            return FAIL(e, ST_UNSUPPORTED, "tensor \"%s\": a router in %s is not supported", named,
                        format_of(m->in_file)->name);
        if (s->exact) s->matrix->format = FORMAT_F32;
        any |= format_is_coded(s->matrix->format);
    }
    if (!any) m->codes = FORMAT_F32;
    return ST_OK;
}

/* Fills in the places from a slab; without memory it only counts. */
static void hand_out(struct model *m, struct carve *slab) {
    for (int i = 0; i < m->n_stored; i++) {
        const struct stored *s = &m->stored[i];
        if (s->vector) {
            *s->vector = carve(slab, s->n);
            continue;
        }
        s->matrix->dt = s->exact ? DT_F32 : m->dt;
        s->matrix->w = s->matrix->format == FORMAT_F32 ? carve(slab, s->n) : NULL;
    }
}

static void place_params(struct model *m) {
    for (int i = 0; i < m->n_param; i++) {
        const struct param_place *at = &m->place[i];
        float *const base = at->vector ? *at->vector : at->in->w;
        m->param[i].w = base ? base + at->row * (at->vector ? 1 : at->in->K) : NULL;
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
    place_params(m);
    return ST_OK;
}

/* ---- lent ---------------------------------------------------------------------------------------------------------*/

/* Whether passes read the float32 values, and not only a packed copy. */
static bool kept(const struct model *m, const struct stored *s) {
    return s->vector || !s->multiplied || s->exact || s->matrix->dt == DT_F32 || s->matrix == model_table(m);
}

enum status declared_lend(struct model *m, struct err *e) {
    struct carve room = {0};
    int64_t cap = 0;
    for (int i = 0; i < m->n_stored; i++)
        if (kept(m, &m->stored[i])) carve(&room, m->stored[i].n);
    TRY(space_grow(m, &m->keep, &cap, room.used, "the weights that stay in float32", e));
    room = (struct carve){.base = m->keep};
    m->kept = xcalloc((size_t)m->n_stored, sizeof *m->kept);
    for (int i = 0; i < m->n_param; i++) m->param[i].g = m->param[i].w;
    for (int i = 0; i < m->n_stored; i++) {
        const struct stored *s = &m->stored[i];
        float **const at = s->vector ? s->vector : &s->matrix->w;
        if (!kept(m, s) || !*at) continue;
        float *const to = carve(&room, s->n);
        m->kept[m->n_kept++] = (struct kept_values){to - m->keep, *at - m->w, s->n};
        *at = to;
    }
    m->g = m->w;
    place_params(m);
    model_values_in(m);
    return ST_OK;
}

static void copy_kept(struct model *m, bool in) {
    for (int i = 0; i < m->n_kept; i++) {
        const struct kept_values *k = &m->kept[i];
        float *const value = m->keep + k->at, *const slab = m->g + k->of_g;
        m->be->mem_copy(m->be, in ? value : slab, in ? slab : value, (size_t)k->n * sizeof(float));
    }
}

void model_values_out(struct model *m) { copy_kept(m, false); }

void model_values_in(struct model *m) {
    copy_kept(m, true);
    m->values_there = true;
}

float *lent_grad(const struct model *m, const float *w) {
    int low = 0, high = m->n_kept; /* the last piece that does not begin behind w */
    if (w < m->keep || w >= m->keep + m->kept[high - 1].at + m->kept[high - 1].n) return (float *)(uintptr_t)w;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (m->keep + m->kept[middle].at <= w)
            low = middle;
        else
            high = middle;
    }
    return m->g + m->kept[low].of_g + (w - m->keep - m->kept[low].at);
}

void declared_pack(struct model *m) {
    for (int i = 0; i < m->n_stored; i++)
        if (m->stored[i].multiplied && m->stored[i].matrix->w) m->be->weight_pack(m->be, m->stored[i].matrix);
}

void declared_free(struct model *m) {
    for (int i = 0; i < m->n_stored; i++)
        if (m->stored[i].matrix) m->be->weight_free(m->be, m->stored[i].matrix);
    free(m->stored);
    free(m->param);
    free(m->place);
    free(m->kept);
}
