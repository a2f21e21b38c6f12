/* Mixtures of experts on a device: the host side of experts.cu and of the products of groups in gemm.cu and
 * f32/gemm.cu. The host never learns which experts were chosen. What a sampling step calls can be recorded (record.c).
 */
#include <cuda_runtime_api.h>

#include "cuda/host/host.h"
#include "tensor/experts.h"

static struct cu_rows_any any(struct tensor t) {
    return (struct cu_rows_any){t.data, t.rows, t.cols, t.ld, t.dt == DT_BF16};
}

static struct cu_routing routing_of(const struct routing *r) {
    return (struct cu_routing){r->T, r->E, r->k, r->expert, r->place, r->pair, r->begin, r->weight};
}
#define OF_ROUTING(r) ADDRESS((r)->expert), (uint64_t)(r)->T, (uint64_t)(r)->E, (uint64_t)(r)->k

static void route(struct backend *be, const struct routing *r, struct tensor logits, bool normalised, bool given) {
    ASSERT(logits.rows == r->T && logits.cols == r->E && r->E <= CU_EXPERTS_MOST && r->k >= 1 && r->k <= r->E);
    struct cuda_backend *c = cuda_begin(be, "route");
    const struct cu_routing own = routing_of(r);
    if (c && NOTE(c, "route", OF_ROUTING(r), OF_TENSOR(logits), normalised, given))
        cuda_ok(c, "route", cu_route(&c->dev, &own, mat_of(logits), normalised, given));
}

static void route_grad(struct backend *be, struct tensor dlogits, const struct routing *r, const float *dweight,
                       struct tensor logits, bool normalised) {
    struct cuda_backend *c = cuda_begin(be, "route_grad");
    const struct cu_routing own = routing_of(r);
    if (c && NOTE(c, "route_grad", OF_ROUTING(r), OF_TENSOR(dlogits), OF_TENSOR(logits), ADDRESS(dweight), normalised))
        cuda_ok(c, "route_grad", cu_route_grad(&c->dev, mat_of(dlogits), &own, dweight, mat_of(logits), normalised));
}

static void rows_of(struct backend *be, struct expert_places at, const struct routing *r, int64_t row, int64_t n) {
    struct cuda_backend *c = cuda_begin(be, "expert_rows");
    const struct cu_routing own = routing_of(r);
    if (c && NOTE(c, "expert_rows", OF_ROUTING(r), ADDRESS(at.lo), ADDRESS(at.hi), (uint64_t)row, (uint64_t)n))
        cuda_ok(c, "expert_rows", cu_expert_rows(&c->dev, at.lo, at.hi, &own, row, n));
}

static void gather(struct backend *be, struct tensor y, struct tensor x, const struct routing *r, bool weighted) {
    ASSERT(y.rows == r->T * r->k && x.rows == r->T && x.cols == y.cols && (x.dt == y.dt || y.dt == DT_BF16));
    struct cuda_backend *c = cuda_begin(be, "expert_gather");
    const struct cu_routing own = routing_of(r);
    if (c && NOTE(c, "expert_gather", OF_ROUTING(r), OF_TENSOR(y), OF_TENSOR(x), weighted))
        cuda_ok(c, "expert_gather", cu_expert_gather(&c->dev, any(y), any(x), &own, weighted));
}

static void combine(struct backend *be, struct tensor y, struct tensor z, struct tensor o, const struct routing *r,
                    bool weighted) {
    ASSERT(y.rows == r->T && o.rows == r->T * r->k && o.cols == y.cols && (!z.data || z.cols == y.cols));
    struct cuda_backend *c = cuda_begin(be, "expert_combine");
    const struct cu_routing own = routing_of(r);
    const struct cu_mat from = z.data ? mat_of(z) : (struct cu_mat){0};
    if (c && NOTE(c, "expert_combine", OF_ROUTING(r), OF_TENSOR(y), OF_TENSOR(z), OF_TENSOR(o), weighted))
        cuda_ok(c, "expert_combine", cu_expert_combine(&c->dev, any(y), from, mat_of(o), &own, weighted));
}

static void dot(struct backend *be, float *dweight, struct tensor a, struct tensor b, const struct routing *r) {
    ASSERT(a.rows == r->T * r->k && b.rows == a.rows && a.cols == b.cols);
    struct cuda_backend *c = cuda_begin(be, "expert_dot");
    const struct cu_routing own = routing_of(r);
    if (c && NOTE(c, "expert_dot", OF_ROUTING(r), ADDRESS(dweight), OF_TENSOR(a), OF_TENSOR(b)))
        cuda_ok(c, "expert_dot", cu_expert_dot(&c->dev, dweight, any(a), any(b), &own));
}

static void scale(struct backend *be, struct tensor x, const struct routing *r) {
    ASSERT(x.rows == r->T * r->k);
    struct cuda_backend *c = cuda_begin(be, "expert_scale");
    const struct cu_routing own = routing_of(r);
    if (c && NOTE(c, "expert_scale", OF_ROUTING(r), OF_TENSOR(x)))
        cuda_ok(c, "expert_scale", cu_expert_scale(&c->dev, any(x), &own));
}

/* ---- products -----------------------------------------------------------------------------------------------------
 */

/* Experts [first, first + CU_GROUP_MOST), as far as there are, without matrices. */
static struct cu_group group_from(int64_t E, int64_t first, struct expert_places at) {
    return (struct cu_group){.lo = at.lo + first, .hi = at.hi + first, .n = (int)i64_min(CU_GROUP_MOST, E - first)};
}
/* The same with them. Those in codes come to lie in scratch: write_codes puts them there. *sign: a number that the
 * matrices make. False: an error. */
static bool group_of(struct cuda_backend *c, const char *op, const struct weight *w, int64_t E, int64_t first,
                     struct expert_places at, struct cu_group *g, uint64_t *sign) {
    *g = group_from(E, first, at);
    *sign = (uint64_t)first;
    const bool coded = format_is_coded(w->format);
    if (coded && !coded_group_room(c, op, w + first, g)) return false;
    for (int i = 0; i < g->n; i++) {
        const struct weight *x = &w[first + i];
        ASSERT(x->format == w->format);
        if (!coded) g->w[i] = x->dt == DT_BF16 ? x->packed : x->w;
        *sign = (*sign ^ ADDRESS(g->w[i])) * 0x9e3779b97f4a7c15ull;
        if (coded) *sign = (*sign ^ ADDRESS(x->packed)) * 0x9e3779b97f4a7c15ull;
    }
    return true;
}
static bool write_codes(struct cuda_backend *c, const char *op, const struct weight *w, const struct cu_group *g) {
    return !format_is_coded(w->format) || coded_expand_group(c, op, w, g);
}

static struct cu_side16 side(const void *p, int64_t row, int64_t step) {
    return (struct cu_side16){p, row, step, step == 1 && cuda_lines_up(p, row, 2)};
}

/* The product of all experts of the group, w the first one's matrix: with codes inside, or with what they expand to. */
static void multiply(struct cuda_backend *c, const char *op, const struct weight *w, const struct cu_gemm16 *p,
                     const struct cu_group *g, bool gates, const struct cu_plus *plus) {
    if (format_is_coded(w->format) && cu_experts_takes_codes(&c->dev, p, g)) {
        struct cu_coded_group codes;
        struct cu_group in_codes = *g;
        if (coded_group_of(w, &in_codes, &codes)) {
            cuda_ok(c, op, cu_experts_gemm(&c->dev, p, &in_codes, gates, plus, &codes));
            return;
        }
    }
    if (write_codes(c, op, w, g))
        cuda_ok(c, op,
                cu_experts_takes(&c->dev, p, g) ? cu_experts_gemm(&c->dev, p, g, gates, plus, NULL)
                                                : cu_gemm16_group(&c->dev, p, g, false));
}

/* y = x W^T of each expert, or x W where back. */
static void group_product(struct cuda_backend *c, const char *op, struct tensor y, struct tensor x,
                          const struct weight *w, int64_t E, struct expert_places at, float factor, bool accumulate,
                          bool back) {
    const int64_t N = back ? w->K : w->N, K = back ? w->N : w->K;
    if (y.rows == 0) return;
    op = profile_name(c, op, N, K);
    if (w->dt == DT_BF16 && !bf16_factor(c, op, &x)) return;
    for (int64_t first = 0; first < E; first += CU_GROUP_MOST) {
        uint64_t sign;
        struct cu_group g;
        if (!group_of(c, op, w, E, first, at, &g, &sign)) return;
        if (!NOTE(c, op, OF_TENSOR(y), OF_TENSOR(x), sign, (uint64_t)E, ADDRESS(at.lo), ADDRESS(at.hi), accumulate))
            continue;
        if (w->dt == DT_BF16) {
            struct cu_side16 b = back ? side(g.w[0], 1, w->K) : side(g.w[0], w->K, 1);
            for (int i = 1; i < g.n && !back; i++) b.vec = b.vec && cuda_lines_up(g.w[i], w->K, 2);
            const struct cu_gemm16 p = {
                side(x.data, x.ld, 1),   b, y.data, y.dt == DT_BF16, y.ld, NULL, accumulate, y.rows, N, K,
                factor == 1 ? 0 : factor};
            multiply(c, op, w + first, &p, &g, false, NULL);
            continue;
        }
        if (!write_codes(c, op, w + first, &g)) return;
        const struct cu_gemm p = {x.data, NULL, y.data, x.ld, w->K, y.ld, NULL, accumulate, y.rows, N, K};
        cuda_ok(c, op, cu_gemm_group(&c->dev, back ? CU_GEMM_NN : CU_GEMM_NT, &p, &g));
    }
}

/* float32 is multiplied by the factor afterwards, as on the CPU. */
static void product(struct backend *be, const char *op, struct tensor y, struct tensor x, const struct weight *w,
                    int64_t E, struct expert_places at, float factor, bool accumulate, bool back) {
    ASSERT(factor == 1 || !accumulate);
    struct cuda_backend *c = cuda_begin(be, op);
    if (!c) return;
    group_product(c, op, y, x, w, E, at, factor, accumulate, back);
    if (w->dt == DT_F32 && factor != 1 && y.rows > 0 && NOTE(c, op, OF_TENSOR(y), (uint64_t)E, ADDRESS(at.lo)))
        cuda_ok(c, op, cu_expert_multiply(&c->dev, mat_of(y), at.lo, at.hi, E, factor));
}

static void linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, int64_t E,
                   struct expert_places at, float factor, bool accumulate) {
    ASSERT(y.rows == x.rows && y.cols == w->N && x.cols == w->K);
    product(be, "expert_linear", y, x, w, E, at, factor, accumulate, false);
}

static bool gates(struct backend *be, struct tensor y, struct tensor gu, struct tensor xp, struct tensor x,
                  const struct weight *w, const struct routing *r) {
    static const char op[] = "expert_gates";
    ASSERT(y.rows == r->T * r->k && 2 * y.cols == w->N && x.rows == r->T && x.cols == w->K);
    struct cuda_backend *c = cuda_begin(be, op);
    (void)gu, (void)xp;
    if (!c || y.rows == 0) return true; /* after an error, or of no rows, nothing is to be done */
    uint64_t sign;
    struct cu_group g;
    if (w->dt != DT_BF16 || x.dt != DT_BF16 || y.dt != DT_BF16 || r->E > CU_GROUP_MOST) return false;
    if (!group_of(c, op, w, r->E, 0, routing_places(r), &g, &sign)) return true;
    const struct cu_gemm16 p = {
        side(x.data, x.ld, 1), side(g.w[0], w->K, 1), y.data, 1, y.ld, NULL, false, y.rows, y.cols, w->K, 0};
    if (!cu_experts_takes(&c->dev, &p, &g)) return false;
    g.pair = r->pair;
    g.per_row = (int32_t)r->k;
    if (NOTE(c, op, OF_TENSOR(y), OF_TENSOR(x), OF_ROUTING(r), sign)) multiply(c, op, w, &p, &g, true, NULL);
    return true;
}

/* The sites as one launch takes them; false: it does not. */
static bool plus_of(struct tensor y, struct tensor t, const struct lora_site_args *site, int n, int64_t E, bool back,
                    struct cu_plus *p) {
    const struct weight *b = site[0].b;
    const int64_t N = back ? b->K : b->N, K = back ? b->N : b->K, stride = E > 1 ? b[1].w - b[0].w : 0;
    if (n > CU_PLUS_SITES || n * N != y.cols || N % CU_PLUS_COLUMNS || K > CU_PLUS_MOST || b->dt != DT_BF16)
        return false;
    *p = (struct cu_plus){t.data, t.ld, N, back ? 1 : K, back ? N : 1, stride, n, (int)K, {NULL}};
    for (int s = 0; s < n; s++) {
        b = site[s].b;
        const bool there = (char *)site[s].y.data == (char *)y.data + (size_t)(s * N) * dtype_bytes(y.dt);
        if (!there || (back ? b->K : b->N) != N || (back ? b->N : b->K) != K) return false;
        for (int64_t e = 0; e < E; e++)
            if (!b[e].w || b[e].w != b[0].w + e * stride) return false;
        p->b[s] = b[0].w;
    }
    return true;
}

static bool linear_lora(struct backend *be, struct tensor y, struct tensor x, const struct weight *w,
                        const struct routing *r, struct tensor t, const struct lora_site_args *site, int n, bool back) {
    const char *op = back ? "expert_linear_dx_lora" : "expert_linear_lora";
    const int64_t N = back ? w->K : w->N, K = back ? w->N : w->K;
    struct cuda_backend *c = cuda_begin(be, op);
    struct cu_plus plus;
    struct cu_group g;
    uint64_t sign;
    if (!c || y.rows == 0) return true; /* as in gates */
    if (w->dt != DT_BF16 || t.dt != DT_BF16 || r->E > CU_GROUP_MOST || !plus_of(y, t, site, n, r->E, back, &plus))
        return false;
    op = profile_name(c, op, N, K);
    if (!bf16_factor(c, op, &x) || !group_of(c, op, w, r->E, 0, routing_places(r), &g, &sign)) return true;
    const struct cu_gemm16 p = {side(x.data, x.ld, 1),
                                back ? side(g.w[0], 1, w->K) : side(g.w[0], w->K, 1),
                                y.data,
                                y.dt == DT_BF16,
                                y.ld,
                                NULL,
                                false,
                                y.rows,
                                N,
                                K,
                                0};
    if (!cu_experts_takes(&c->dev, &p, &g)) return false;
    if (NOTE(c, op, OF_TENSOR(y), OF_TENSOR(x), OF_ROUTING(r), OF_TENSOR(t), sign, ADDRESS(plus.b[0]), back))
        multiply(c, op, w, &p, &g, false, &plus);
    return true;
}

static void linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w, int64_t E,
                      struct expert_places at, float factor, bool accumulate) {
    ASSERT(dx.rows == dy.rows && dy.cols == w->N && dx.cols == w->K);
    product(be, "expert_linear_dx", dx, dy, w, E, at, factor, accumulate, true);
}

static void linear_dw(struct backend *be, float *dw, int64_t stride, struct tensor dy, struct tensor x, int64_t E,
                      struct expert_places at, enum dtype dt) {
    ASSERT(dy.rows == x.rows);
    struct cuda_backend *c = cuda_begin(be, "expert_linear_dw");
    const char *op = c ? profile_name(c, "expert_linear_dw", dy.cols, x.cols) : NULL;
    if (!c || x.rows == 0 || (dt == DT_BF16 && !bf16_factors(c, op, &dy, &x))) return;
    for (int64_t first = 0; first < E; first += CU_GROUP_MOST) {
        struct cu_group g = group_from(E, first, at);
        g.stride = stride;
        float *const out = dw + first * stride;
        if (!NOTE(c, op, OF_TENSOR(dy), OF_TENSOR(x), ADDRESS(out), (uint64_t)first)) continue;
        if (dt == DT_BF16) {
            const struct cu_gemm16 p = {
                side(dy.data, 1, dy.ld), side(x.data, 1, x.ld), out, 0, x.cols, NULL, 1, dy.cols, x.cols, x.rows, 0};
            cuda_ok(c, op, cu_gemm16_group(&c->dev, &p, &g, true));
            continue;
        }
        const struct cu_gemm p = {dy.data, x.data, out, dy.ld, x.ld, x.cols, NULL, true, dy.cols, x.cols, x.rows};
        cuda_ok(c, op, cu_gemm_group(&c->dev, CU_GEMM_TN, &p, &g));
    }
}

const struct expert_ops cuda_experts = {
    .route = route,
    .route_grad = route_grad,
    .rows_of = rows_of,
    .gather = gather,
    .linear = linear,
    .gates = gates,
    .linear_lora = linear_lora,
    .linear_dx = linear_dx,
    .linear_dw = linear_dw,
    .combine = combine,
    .dot = dot,
    .scale = scale,
};
