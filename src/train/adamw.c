#include "train/adamw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "tensor/backend.h"

/* Each array begins at a multiple of 64 bytes. */
static int64_t padded(int64_t n) { return (n + 15) & ~(int64_t)15; }

static int64_t largest(const struct param *p, int n) {
    int64_t most = 1;
    for (int i = 0; i < n; i++) most = i64_max(most, p[i].n);
    return most;
}

/* Where a parameter's moments begin, in floats. Parameters that lie in one slab have them at the distances they have
 * themselves, so that runs of them can be updated at once; others have them end to end. Returns the floats of one kind.
 */
static int64_t lay_out(const struct param *p, int n_params, int64_t *at) {
    const float *low = n_params > 0 ? p[0].w : NULL, *high = low;
    int64_t sum = 0;
    for (int i = 0; i < n_params; i++) {
        at[i] = sum;
        sum += padded(p[i].n);
        if ((uintptr_t)p[i].w < (uintptr_t)low) low = p[i].w;
        if ((uintptr_t)(p[i].w + p[i].n) > (uintptr_t)high) high = p[i].w + p[i].n;
    }
    const int64_t span = (int64_t)(((uintptr_t)high - (uintptr_t)low) / sizeof(float));
    if (padded(span) > sum) return sum;
    for (int i = 0; i < n_params; i++) at[i] = (int64_t)(((uintptr_t)p[i].w - (uintptr_t)low) / sizeof(float));
    return padded(span);
}

/* The parameters' numbers as their addresses ascend: neighbours in memory need not be neighbours in the list. */
struct placed {
    uintptr_t at;
    int i;
};
static int lower(const void *a, const void *b) {
    const struct placed *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}
static int *in_memory(const struct param *p, int n) {
    CLEANUP_FREE struct placed *placed = xcalloc((size_t)n + 1, sizeof *placed);
    int *order = xcalloc((size_t)n + 1, sizeof *order);
    for (int i = 0; i < n; i++) placed[i] = (struct placed){(uintptr_t)p[i].w, i};
    qsort(placed, (size_t)n, sizeof *placed, lower);
    for (int i = 0; i < n; i++) order[i] = placed[i].i;
    return order;
}

enum status adamw_create(struct backend *be, const struct param *p, int n_params, struct adamw **out, struct err *e) {
    *out = NULL;
    CLEANUP_FREE int64_t *at = xcalloc((size_t)n_params + 1, sizeof *at);
    const int64_t floats = lay_out(p, n_params, at);
    const int64_t bytes = 2 * floats * (int64_t)sizeof(float), have = be->mem_available(be);
    float *slab = bytes < have ? be->mem_alloc(be, (size_t)bytes) : NULL;
    if (!slab)
        return FAIL(e, ST_MEMORY, "the optimizer's moments need %.2f GB, of which %.2f GB are free",
                    (double)bytes * 1e-9, (double)have * 1e-9);
    be->mem_zero(be, slab, (size_t)bytes);
    struct adamw *a = xcalloc(1, sizeof *a);
    *a = (struct adamw){.be = be, .slab = slab, .n_params = n_params};
    a->m = xcalloc((size_t)n_params, sizeof *a->m);
    a->v = xcalloc((size_t)n_params, sizeof *a->v);
    for (int i = 0; i < n_params; i++) {
        a->m[i] = slab + at[i];
        a->v[i] = slab + floats + at[i];
    }
    a->order = in_memory(p, n_params);
    *out = a;
    return ST_OK;
}

enum status adamw_create_part(struct backend *be, int n_params, const float *g, int64_t at, int64_t n,
                              const struct adamw_parts *parts, struct adamw **out, struct err *e) {
    *out = NULL;
    const int64_t room = padded(n), bytes = 3 * room * (int64_t)sizeof(float), have = be->mem_available(be);
    float *slab = bytes < have ? be->mem_alloc(be, (size_t)i64_max(bytes, 1)) : NULL;
    if (!slab)
        return FAIL(e, ST_MEMORY,
                    "a part of the weights and the optimizer's moments needs %.2f GB, of which %.2f GB "
                    "are free",
                    (double)bytes * 1e-9, (double)have * 1e-9);
    be->mem_zero(be, slab, (size_t)bytes);
    struct adamw *a = *out = xcalloc(1, sizeof *a);
    *a = (struct adamw){.be = be,
                        .slab = slab,
                        .n_params = n_params,
                        .part_w = slab,
                        .part_m = slab + room,
                        .part_v = slab + 2 * room,
                        .part_at = at,
                        .part_n = n,
                        .part_g = g,
                        .parts = *parts};
    a->order = xcalloc((size_t)n_params + 1, sizeof *a->order);
    for (int i = 0; i < n_params; i++) a->order[i] = i;
    return ST_OK;
}

void adamw_free(struct adamw *a) {
    if (!a) return;
    a->be->mem_free(a->be, a->slab);
    free(a->m);
    free(a->v);
    free(a->order);
    free(a);
}

static bool decays_of(const struct param *p, const struct adamw_config *c, bool decay_all) {
    return c->weight_decay != 0 && (decay_all || p->nd > 1);
}

/* Whether parameter j lies, as do its gradient and its moments, where the n elements from parameter i on end, but for a
 * gap that fills up 64 bytes. Gaps hold zeros, and an update leaves zeros. */
static bool follows(const struct adamw *a, const struct param *p, int i, int64_t n, int j) {
    const uintptr_t from = (uintptr_t)p[i].w, to = (uintptr_t)p[j].w, end = from + (size_t)n * sizeof(float);
    return to >= end && to - end < 64 && (uintptr_t)p[j].g - (uintptr_t)p[i].g == to - from &&
           (uintptr_t)a->m[j] - (uintptr_t)a->m[i] == to - from && (uintptr_t)a->v[j] - (uintptr_t)a->v[i] == to - from;
}

int64_t adamw_overlap(const struct param *p, const float *g, int64_t at, int64_t n, int64_t *from) {
    const int64_t place = p->g - g, begin = i64_max(place, at), end = i64_min(place + p->n, at + n);
    *from = begin - place;
    return i64_max(0, end - begin);
}

static int64_t part_of(const struct adamw *a, const struct param *p, int64_t *from) {
    return adamw_overlap(p, a->part_g, a->part_at, a->part_n, from);
}

float *adamw_part(const struct adamw *a, const struct param *p, int kind, int64_t *from, int64_t *n) {
    *n = part_of(a, p, from);
    return (kind ? a->part_v : a->part_m) + (*n > 0 ? p->g - a->part_g + *from - a->part_at : 0);
}

static void step_part(struct adamw *a, const struct param *p, const struct adamw_args *x) {
    int64_t from;
    const int64_t n = part_of(a, p, &from), at = p->g - a->part_g + from - a->part_at;
    if (n > 0) a->be->adamw(a->be, a->part_w + at, a->part_m + at, a->part_v + at, p->g + from, n, x);
}

/* The n elements from parameter i on. */
static void step_whole(struct adamw *a, const struct param *p, int i, int64_t n, const struct adamw_args *x) {
    a->be->adamw(a->be, p[i].w, a->m[i], a->v[i], p[i].g, n, x);
}

void adamw_step(struct adamw *a, const struct param *p, int n_params, const struct adamw_config *c, double grad_scale,
                bool decay_all) {
    ASSERT(n_params == a->n_params);
    a->step++;
    const double bias1 = 1 - pow(c->beta1, (double)a->step), bias2 = 1 - pow(c->beta2, (double)a->step);
    for (int at = 0, end; at < n_params; at = end) {
        const int i = a->order[at];
        const bool decays = decays_of(&p[i], c, decay_all);
        int64_t n = p[i].n;
        for (end = at + 1; end < n_params && !a->part_g; end++) {
            const int j = a->order[end];
            if (decays_of(&p[j], c, decay_all) != decays || !follows(a, p, i, n, j)) break;
            n = p[j].w - p[i].w + p[j].n;
        }
        const struct adamw_args x = {.beta1 = (float)c->beta1,
                                     .beta2 = (float)c->beta2,
                                     .eps = (float)c->eps,
                                     .scale = (float)grad_scale,
                                     .decay = decays ? (float)(1 - c->learning_rate * c->weight_decay) : 1,
                                     .step_size = (float)(c->learning_rate / bias1),
                                     .inv_sqrt_bias2 = (float)(1 / sqrt(bias2))};
        if (a->part_g)
            step_part(a, &p[i], &x);
        else
            step_whole(a, p, i, n, &x);
    }
}

/* Gives st_write the moments one after the other: entry 2i is m of parameter i, 2i+1 its v. */
struct moment_fetch {
    const struct adamw *a;
    const struct param *p;
    float *host;
};

static enum status fetch_moment(void *ctx, size_t i, const void **data, struct err *e) {
    const struct moment_fetch *x = ctx;
    struct backend *be = x->a->be;
    *data = x->host;
    if (x->a->part_g) return x->a->parts.get(x->a->parts.ctx, (int)(i / 2), i % 2, x->host, e);
    be->mem_get(be, x->host, i % 2 ? x->a->v[i / 2] : x->a->m[i / 2], (size_t)x->p[i / 2].n * sizeof(float));
    return be->sync(be, e); /* a file must not hold what a failed transfer left */
}

/* All parts are through, however far this one has come. The first error counts, but that a part is lost counts more. */
static enum status parts_end(const struct adamw *a, enum status st, struct err *e) {
    struct err later;
    if (!a->part_g || st == ST_LOST) return st;
    const enum status end = a->parts.end(a->parts.ctx, &later);
    if (end == ST_OK || (st != ST_OK && end != ST_LOST)) return st;
    *e = later;
    return end;
}

enum status adamw_save(const struct adamw *a, const struct param *p, const char *path, struct err *e) {
    struct arena arena = ARENA_INIT;
    size_t n = (size_t)a->n_params;
    struct st_entry *entries = arena_array(&arena, struct st_entry, 2 * n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 2; k++) {
            struct st_entry *t = &entries[2 * i + k];
            *t = (struct st_entry){.name = arena_printf(&arena, "%c.%s", k ? 'v' : 'm', p[i].name),
                                   .dtype = ST_DTYPE_F32,
                                   .from = ST_DTYPE_F32,
                                   .nd = p[i].nd};
            for (int d = 0; d < p[i].nd; d++) t->dim[d] = p[i].dim[d];
        }
    const char *metadata[] = {"step", arena_printf(&arena, "%lld", (long long)a->step), NULL};
    CLEANUP_FREE float *host = xmalloc((size_t)largest(p, a->n_params) * sizeof *host);
    struct moment_fetch x = {a, p, host};
    enum status st = a->part_g ? a->parts.begin(a->parts.ctx, false, e) : ST_OK;
    if (st == ST_OK) {
        st = st_write_fetched(path, entries, 2 * n, metadata, fetch_moment, &x, e);
        st = parts_end(a, st, e);
    }
    arena_free(&arena);
    return st;
}

enum status adamw_load(struct adamw *a, const struct param *p, int n_params, const char *path, struct err *e) {
    ASSERT(n_params == a->n_params);
    struct st_file f;
    TRY(st_open(path, &f, e));
    enum status st = ST_OK;
    const char *step = st_metadata(&f, "step");
    if (!step || !parse_i64(step, &a->step) || a->step < 0)
        st = FAIL(e, ST_PARSE, "%s: metadata \"step\": expected a number of updates", path);
    CLEANUP_FREE float *host = xmalloc((size_t)largest(p, n_params) * sizeof *host);
    struct backend *be = a->be;
    const bool begun = st == ST_OK && a->part_g;
    if (begun) st = a->parts.begin(a->parts.ctx, true, e);
    for (int i = 0; st == ST_OK && i < n_params; i++)
        for (int k = 0; st == ST_OK && k < 2; k++) {
            char name[512];
            snprintf(name, sizeof name, "%c.%s", k ? 'v' : 'm', p[i].name);
            const struct st_tensor *t;
            st = st_get(&f, name, p[i].nd, p[i].dim, &t, e);
            if (st == ST_OK) st = st_check_finite(t, e);
            if (st == ST_OK) st = st_read_f32(t, host, e);
            if (st == ST_OK && a->part_g)
                st = a->parts.put(a->parts.ctx, i, k, host, e);
            else if (st == ST_OK)
                be->mem_put(be, k ? a->v[i] : a->m[i], host, (size_t)p[i].n * sizeof(float));
        }
    if (begun) st = parts_end(a, st, e);
    st_close(&f);
    return st == ST_OK ? be->sync(be, e) : st;
}
