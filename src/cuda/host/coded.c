/* Weights in codes on the device: where their codes and scales lie, and the scratch that they are expanded to. The
 * codes of each tensor of a file lie as in the file. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/host.h"

struct coded_weight {
    int n;
    bool one_table; /* true: the parts have the same tables */
    struct device_part {
        int64_t row;
        struct cu_coded m;
        void *mem;                            /* m, then all that m views */
        float tables[NF4_CODES + NF4_SCALES]; /* on the host: map and nested_map */
    } part[CODED_PARTS];
};

/* Copies an array behind what is there. NULL without one. */
static const void *keep(struct backend *be, char **at, const void *src, int64_t bytes) {
    void *const p = *at;
    if (!src) return NULL;
    be->mem_put(be, p, src, (size_t)bytes);
    *at += cuda_up16(bytes);
    return p;
}

/* Codes and NF4's scales, as they lie in the file or, by way of the scratch of expansions, in units. */
static void put_codes(struct cuda_backend *c, const struct weight *w, const struct coded_matrix *m,
                      struct device_part *part, char **at) {
    const bool nf4 = m->format == FORMAT_NF4;
    const int64_t n = m->rows * m->K, bytes = nf4 ? (n + 1) / 2 : n, blocks = nf4 ? cuda_coded_blocks(m) : 0;
    const int64_t each = (int64_t)sizeof(float), scales = m->absmax ? blocks : blocks * each;
    const void *const scale = m->absmax ? (const void *)m->absmax : m->scale;
    const bool units = cu_coded_takes_units(m->format, m->rows, m->K);
    char *file = *at, *const to = *at;
    if (units && !(file = cuda_scratch(c, "weight", CUDA_CODED, cuda_expanded_bytes(w->dt, w->N, w->K)))) return;
    part->m.codes = keep(&c->be, &file, m->codes, bytes);
    const void *const kept = nf4 ? keep(&c->be, &file, scale, scales) : NULL;
    part->m.absmax = m->absmax ? kept : NULL;
    part->m.scale = m->absmax ? NULL : kept;
    if (!units) {
        *at = file;
        return;
    }
    const int unit = cu_coded_unit(m->format, m->absmax != NULL);
    cuda_ok(c, "weight", cu_coded_order(&c->dev, &part->m, unit, (uint8_t *)to));
    part->m.unit = unit;
    part->m.codes = (uint8_t *)to;
    if (m->absmax) part->m.absmax = part->m.codes;
    part->m.scale = NULL;
    *at += n / (CU_STRIP * 64) * unit;
}

void coded_put(struct backend *be, struct weight *w, int64_t row, const struct coded_matrix *m) {
    ASSERT(m->format == w->format && m->K == w->K && row >= 0 && row + m->rows <= w->N);
    struct cuda_backend *c = (struct cuda_backend *)be;
    if (!w->packed) w->packed = xcalloc(1, sizeof(struct coded_weight));
    struct coded_weight *cw = w->packed;
    int i = 0;
    while (i < cw->n && cw->part[i].row != row) i++;
    ASSERT(i < CODED_PARTS);
    struct device_part *part = &cw->part[i];
    if (i == cw->n) {
        cw->n++;
        part->row = row;
        part->mem = pieces_take(&c->pieces, be, cuda_coded_bytes(m));
    }
    if (!part->mem) {
        cuda_refuse(c, "weight", "out of device memory");
        return;
    }
    const bool nf4 = m->format == FORMAT_NF4;
    memset(part->tables, 0, sizeof part->tables);
    if (m->map) memcpy(part->tables, m->map, NF4_CODES * sizeof(float));
    if (m->absmax) memcpy(part->tables + NF4_CODES, m->nested_map, NF4_SCALES * sizeof(float));
    const int64_t blocks = cuda_coded_blocks(m), each = (int64_t)sizeof(float);
    char *at = (char *)part->mem + CUDA_CODED_WORDS;
    part->m = (struct cu_coded){.format = m->format, .rows = m->rows, .K = m->K, .offset = m->offset};
    put_codes(c, w, m, part, &at);
    if (!nf4) part->m.scale = keep(be, &at, m->scale, blocks * each);
    part->m.map = keep(be, &at, nf4 ? m->map : NULL, NF4_CODES * each);
    part->m.nested = keep(be, &at, m->absmax ? m->nested : NULL, format_blocks(blocks, NF4_NESTED) * each);
    part->m.nested_map = keep(be, &at, m->absmax ? m->nested_map : NULL, NF4_SCALES * each);
    ASSERT(at <= (char *)part->mem + cuda_coded_bytes(m));
    cw->one_table = true;
    for (int k = 1; k < cw->n; k++)
        cw->one_table &= memcmp(cw->part[k].tables, cw->part[0].tables, sizeof part->tables) == 0;
    _Static_assert(sizeof part->m <= CUDA_CODED_WORDS, "a part begins with them");
    be->mem_put(be, part->mem, &part->m, sizeof part->m);
}

void coded_free(struct backend *be, struct weight *w) {
    struct coded_weight *cw = w->packed;
    struct pieces *const pieces = &((struct cuda_backend *)be)->pieces;
    for (int i = 0; cw && i < cw->n; i++) pieces_give(pieces, be, cw->part[i].mem);
    free(cw);
}

bool coded_expand(struct cuda_backend *c, const char *op, const struct weight *w, struct weight *plain) {
    *plain = *w;
    if (!format_is_coded(w->format)) return true;
    const struct coded_weight *cw = w->packed;
    const bool wide = w->dt == DT_F32;
    const size_t each = wide ? sizeof(float) : sizeof(uint16_t);
    char *const out = cuda_scratch(c, op, CUDA_CODED, cuda_expanded_bytes(w->dt, w->N, w->K));
    if (!out) return false;
    *plain = (struct weight){.w = wide ? (float *)(void *)out : NULL,
                             .N = w->N,
                             .K = w->K,
                             .dt = w->dt,
                             .format = wide ? FORMAT_F32 : FORMAT_BF16,
                             .packed = out};
    if (!NOTE(c, "expand", ADDRESS(cw), ADDRESS(out), (uint64_t)w->N, (uint64_t)w->K)) return !c->error[0];
    for (int i = 0; i < cw->n; i++)
        if (!cuda_ok(c, op, cu_expand(&c->dev, &cw->part[i].m, out + (size_t)(cw->part[i].row * w->K) * each, wide)))
            return false;
    return true;
}

bool coded_group_room(struct cuda_backend *c, const char *op, const struct weight *w, struct cu_group *g) {
    const int64_t each = cuda_expanded_bytes(w->dt, w->N, w->K);
    char *const out = cuda_scratch(c, op, CUDA_CODED, cuda_experts_bytes(w->dt, g->n, w->N, w->K));
    for (int i = 0; out && i < g->n; i++) g->w[i] = out + i * each;
    return out != NULL;
}

bool coded_expand_group(struct cuda_backend *c, const char *op, const struct weight *w, const struct cu_group *g) {
    const struct coded_weight *first = w->packed;
    const int64_t each = cuda_expanded_bytes(w->dt, w->N, w->K), bytes = (int64_t)dtype_bytes(w->dt);
    for (int i = 0; i < first->n; i++) {
        const struct device_part *like = &first->part[i];
        struct cu_group parts = *g;
        for (int j = 0; j < g->n; j++) {
            const struct coded_weight *cw = w[j].packed;
            int at = 0;
            while (at < cw->n && cw->part[at].row != like->row) at++;
            ASSERT(at < cw->n && cw->part[at].m.rows == like->m.rows && cw->part[at].m.format == like->m.format);
            parts.w[j] = cw->part[at].mem;
        }
        char *const out = (char *)(uintptr_t)g->w[0] + like->row * w->K * bytes;
        if (!cuda_ok(c, op, cu_expand_group(&c->dev, &like->m, &parts, out, each, w->dt == DT_F32))) return false;
    }
    return true;
}

static bool alike(const struct device_part *a, const struct device_part *b) {
    return a->row == b->row && a->m.rows == b->m.rows && a->m.unit == b->m.unit && a->m.format == b->m.format;
}

bool coded_group_of(const struct weight *w, struct cu_group *g, struct cu_coded_group *codes) {
    const struct coded_weight *like = w->packed;
    const struct device_part *const first = &like->part[0];
    const int64_t rows = first->m.rows + (like->n > 1 ? like->part[1].m.rows : 0);
    if (like->n > 2 || first->row != 0 || !first->m.unit || rows != w->N) return false;
    for (int i = 0; i < g->n; i++) {
        const struct coded_weight *cw = w[i].packed;
        if (cw->n != like->n || !cw->one_table) return false;
        for (int k = 0; k < cw->n; k++)
            if (!alike(&cw->part[k], &like->part[k])) return false;
    }
    codes->format = w->format;
    codes->rows = first->m.rows;
    for (int i = 0; i < g->n; i++) {
        const struct coded_weight *cw = w[i].packed;
        g->w[i] = cw->part[0].mem;
        codes->second[i] = cw->n > 1 ? cw->part[1].mem : NULL;
    }
    return true;
}

void coded_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    struct cuda_backend *c = cuda_begin(be, "weight_get");
    struct weight narrow = *w, plain;
    narrow.dt = DT_BF16;
    if (c && coded_expand(c, "weight_get", &narrow, &plain))
        be->mem_get(be, dst, (const uint16_t *)plain.packed + row * w->K, (size_t)(rows * w->K) * sizeof *dst);
}

bool coded_is_expanded(const struct cuda_backend *c, const void *p) {
    const struct device_slab *s = &c->slab[CUDA_CODED];
    return s->p && (const char *)p >= (char *)s->p && (const char *)p < (char *)s->p + s->bytes;
}

bool coded_few_of(const struct weight *w, struct cu_coded_few *out) {
    if (!format_is_coded(w->format)) return false;
    const struct coded_weight *cw = w->packed;
    int64_t row = 0;
    out->n_parts = cw->n;
    for (int i = 0; i < cw->n; i++) { /* in the order of rows */
        const struct device_part *p = &cw->part[i];
        if (p->row != row || !p->m.unit || !cw->one_table) return false;
        out->part[i] = cw->part[i].m;
        row += cw->part[i].m.rows;
    }
    return row == w->N;
}
