#include "cpu/experts.h"

#include <string.h>

#include "cpu/cpu.h"

/* Less work than this stays with the caller, as in cpu.c. */
enum { MIN_ELEMENTS = 1 << 14 };
static int64_t grain_of(int64_t elements_per_row) { return i64_max(1, MIN_ELEMENTS / i64_max(1, elements_per_row)); }

static float *row_at(struct tensor t, int64_t row) { return (float *)t.data + row * t.ld; }

static const struct cpu_kernels *kernels(void) { return cpu_isa_current()->k; }

/* ---- routing ----------------------------------------------------------------------------------------------------- */

struct route_work {
    const struct routing *r;
    struct tensor logits, dlogits;
    const float *dweight;
    bool normalised, given;
};

/* The k largest of n numbers, the lower id of equal ones, by ascending id. With a NaN among the numbers any k are
 * taken: all weights are NaN then. */
static void choose(int32_t *id, const float *l, int64_t n, int64_t k) {
    int64_t have = 0;
    for (int64_t e = 0; e < n; e++) {
        int64_t at = have;
        while (at > 0 && l[e] > l[id[at - 1]]) at--;
        if (at == k) continue;
        if (have < k) have++;
        memmove(&id[at + 1], &id[at], (size_t)(have - 1 - at) * sizeof *id);
        id[at] = (int32_t)e;
    }
    for (int64_t i = 1; i < k; i++) /* few: by insertion */
        for (int64_t j = i; j > 0 && id[j] < id[j - 1]; j--) {
            const int32_t higher = id[j - 1];
            id[j - 1] = id[j];
            id[j] = higher;
        }
}

static void route_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct route_work *w = ctx;
    const int64_t E = w->r->E, k = w->r->k;
    float p[EXPERTS_MAX];
    for (int64_t t = begin; t < end; t++) {
        const float *l = row_at(w->logits, t), all = kernels()->softmax_row(p, l, E);
        int32_t *id = w->r->expert + t * k;
        float *weight = w->r->weight + t * k, sum = 0;
        if (!w->given) choose(id, l, E, k);
        for (int64_t j = 0; j < k; j++) sum += weight[j] = p[id[j]] / all;
        for (int64_t j = 0; j < k && w->normalised; j++) weight[j] /= sum;
    }
}

/* Sorts the pairs by expert, and those of one expert by row. */
static void sort_pairs(const struct routing *r) {
    const int64_t n = r->T * r->k;
    int32_t next[EXPERTS_MAX + 1] = {0};
    for (int64_t i = 0; i < n; i++) next[r->expert[i] + 1]++;
    for (int64_t e = 0; e < r->E; e++) next[e + 1] += next[e];
    memcpy(r->begin, next, (size_t)(r->E + 1) * sizeof *next);
    for (int64_t i = 0; i < n; i++) {
        const int32_t at = next[r->expert[i]]++;
        r->place[i] = at;
        r->pair[at] = (int32_t)i;
    }
}

static void cpu_route(struct backend *be, const struct routing *r, struct tensor logits, bool normalised, bool given) {
    ASSERT(logits.rows == r->T && logits.cols == r->E && r->E <= EXPERTS_MAX && r->k >= 1 && r->k <= r->E);
    struct route_work w = {.r = r, .logits = logits, .normalised = normalised, .given = given};
    pool_for(be->pool, r->T, grain_of(16 * r->E), route_rows, &w);
    sort_pairs(r);
}

static void route_grad_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct route_work *w = ctx;
    const int64_t E = w->r->E, k = w->r->k;
    float p[EXPERTS_MAX];
    for (int64_t t = begin; t < end; t++) {
        const int32_t *id = w->r->expert + t * k;
        const float *weight = w->r->weight + t * k, *dw = w->dweight + t * k;
        float *out = row_at(w->dlogits, t), c = 0;
        for (int64_t j = 0; j < k; j++) c += dw[j] * weight[j]; /* without normalisation the weights are p */
        const float all = w->normalised ? 1 : kernels()->softmax_row(p, row_at(w->logits, t), E);
        for (int64_t e = 0; e < E; e++) out[e] = w->normalised ? 0 : p[e] / all * -c;
        for (int64_t j = 0; j < k; j++) out[id[j]] = weight[j] * (dw[j] - c);
    }
}

static void cpu_route_grad(struct backend *be, struct tensor dlogits, const struct routing *r, const float *dweight,
                           struct tensor logits, bool normalised) {
    ASSERT(dlogits.rows == r->T && dlogits.cols == r->E && logits.rows == r->T && logits.cols == r->E);
    struct route_work w = {.r = r, .logits = logits, .dlogits = dlogits, .dweight = dweight, .normalised = normalised};
    pool_for(be->pool, r->T, grain_of(16 * r->E), route_grad_rows, &w);
}

/* The first place in [lo, hi) whose pair is not below `pair`; an expert's pairs ascend. */
static int32_t first_place(const struct routing *r, int32_t lo, int32_t hi, int64_t pair) {
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (r->pair[mid] < pair)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void cpu_rows_of(struct backend *be, struct expert_places at, const struct routing *r, int64_t row, int64_t n) {
    (void)be;
    for (int64_t e = 0; e < r->E; e++) {
        at.lo[e] = first_place(r, r->begin[e], r->begin[e + 1], row * r->k);
        at.hi[e] = first_place(r, at.lo[e], r->begin[e + 1], (row + n) * r->k);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void gather_places(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct experts_args *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        float *y = row_at(p->y, i);
        const float w = p->r->weight[p->r->pair[i]];
        memcpy(y, row_at(p->x, p->r->pair[i] / p->r->k), (size_t)p->x.cols * sizeof(float));
        for (int64_t c = 0; p->weighted && c < p->x.cols; c++) y[c] *= w;
    }
}

static void cpu_gather(struct backend *be, struct tensor y, struct tensor x, const struct routing *r, bool weighted) {
    ASSERT(y.rows == r->T * r->k && x.rows == r->T && x.cols == y.cols);
    struct experts_args a = {.r = r, .x = x, .y = y, .weighted = weighted};
    pool_for(be->pool, y.rows, grain_of(y.cols), gather_places, &a);
}

static void cpu_combine(struct backend *be, struct tensor y, struct tensor z, struct tensor o, const struct routing *r,
                        bool weighted) {
    ASSERT(y.rows == r->T && o.rows == r->T * r->k && o.cols == y.cols && (!z.data || z.cols == y.cols));
    struct experts_args a = {.r = r, .x = o, .y = y, .z = z, .weighted = weighted};
    pool_for(be->pool, y.rows, grain_of(y.cols * r->k), kernels()->combine, &a);
}

static void cpu_dot(struct backend *be, float *dweight, struct tensor a, struct tensor b, const struct routing *r) {
    ASSERT(a.rows == r->T * r->k && b.rows == a.rows && a.cols == b.cols);
    struct experts_args args = {.r = r, .x = a, .z = b, .dweight = dweight};
    pool_for(be->pool, a.rows, grain_of(2 * a.cols), kernels()->dot, &args);
}

static void scale_places(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct experts_args *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        float *x = row_at(p->x, i);
        const float w = p->r->weight[p->r->pair[i]];
        for (int64_t c = 0; c < p->x.cols; c++) x[c] *= w;
    }
}

static void cpu_scale(struct backend *be, struct tensor x, const struct routing *r) {
    ASSERT(x.rows == r->T * r->k);
    struct experts_args a = {.r = r, .x = x};
    pool_for(be->pool, x.rows, grain_of(x.cols), scale_places, &a);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Only experts that have rows cost anything. */
#define EACH_EXPERT(e, n, at, E)                         \
    for (int64_t e = 0, n; e < (E); e++)                 \
        if ((n = (int64_t)(at).hi[e] - (at).lo[e]) <= 0) \
            continue;                                    \
        else

static void cpu_expert_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, int64_t E,
                              struct expert_places at, float scale, bool accumulate) {
    ASSERT(scale == 1 || !accumulate);
    EACH_EXPERT(e, n, at, E) {
        const struct tensor part = tensor_rows(y, at.lo[e], n);
        be->linear(be, part, tensor_rows(x, at.lo[e], n), &w[e], NULL, accumulate);
        if (scale != 1) be->axpby(be, part, scale, part, 0);
    }
}

static void cpu_expert_linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w,
                                 int64_t E, struct expert_places at, float scale, bool accumulate) {
    ASSERT(scale == 1 || !accumulate);
    EACH_EXPERT(e, n, at, E) {
        const struct tensor part = tensor_rows(dx, at.lo[e], n);
        be->linear_dx(be, part, tensor_rows(dy, at.lo[e], n), &w[e], accumulate);
        if (scale != 1) be->axpby(be, part, scale, part, 0);
    }
}

static void cpu_expert_linear_dw(struct backend *be, float *dw, int64_t stride, struct tensor dy, struct tensor x,
                                 int64_t E, struct expert_places at, enum dtype dt) {
    EACH_EXPERT(e, n, at, E) {
        be->linear_dw(be, dw + e * stride, tensor_rows(dy, at.lo[e], n), tensor_rows(x, at.lo[e], n), dt);
    }
}

const struct expert_ops cpu_experts = {
    .route = cpu_route,
    .route_grad = cpu_route_grad,
    .rows_of = cpu_rows_of,
    .gather = cpu_gather,
    .linear = cpu_expert_linear,
    .linear_dx = cpu_expert_linear_dx,
    .linear_dw = cpu_expert_linear_dw,
    .combine = cpu_combine,
    .dot = cpu_dot,
    .scale = cpu_scale,
};
