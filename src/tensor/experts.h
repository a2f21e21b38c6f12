/* experts: the ops of a mixture of experts, where each row goes through k of E experts. A backend with such a table
 * computes mixtures (backend.h); without one a model with experts is refused by name. As for the other ops, the classes
 * of ops.h hold: all of these are E and I but for expert_linear_dw, which is E.
 *
 * A pair is a row and one of its experts: pair t*k + j is row t and the j-th of its experts by ascending id. Pairs lie
 * in places: [T*k] rows sorted by expert, those of one expert by row. So the rows of an expert lie together, and a
 * product with its matrix is a product of those rows. Everything that the structs here point at is device memory, so a
 * backend need not tell the host which experts were chosen.
 *
 * - route: of the logits [T,E], float32, the k largest; of equal ones the lower id. With m the largest of the row,
 *   p_e = exp_f32(l_e - m) / s, s being their sum over the row (16 lanes, ops.h). The weight of a chosen expert is p_e,
 *   or, where normalised, p_e / (the sum of the chosen ones' p, by ascending id). It fills in all of the routing.
 * given: r->expert has the choices, which are taken as they are.
 * - route_grad: d loss / d logits, [T,E], overwritten, for dweight [T,k], d loss / d weight. Where normalised, with w
 * the weights and c = sum_j dweight_j w_j (j ascending), it is w_e (dweight_e - c) for the chosen, else 0. Otherwise it
 * is p_e (dweight_e - c) with c = sum_j dweight_j p_j, and dweight_e is 0 for those that were not chosen.
 * - rows_of: the places whose rows are in [row, row + n), for each expert.
 * - gather: y[place] = x[row of the place], where weighted times weight[pair]; rounded where y alone is in bfloat16.
 * - linear: for each expert e, rows lo[e] to hi[e] of y are scale (x W^T) with w[e]: a product, and then one
 *   multiplication. Where it accumulates, the product begins at y, and scale is 1. Other rows stay as they are. A row's
 *   bits depend on that row and on w[e] alone. They are those of the backend's linear, but for bfloat16 on a GPU with
 *   cuBLASLt, whose products sum in another order.
 * - linear_dx: the same with linear_dx.
 * - gates: y = swiglu of linear of gather of x, in bfloat16, with the bits of the three; xp and gu, which have room for
 *   what gather and linear give, are undefined afterwards. NULL, or false:
 *   the backend does not do this in one, and nothing has been done.
 * - linear_lora: linear with w over all places (back: linear_dx), and then, for each of n sites, whose outputs are
 *   columns of y, the same with the site's b of each expert, added to it: site s reads columns [s R, (s + 1) R) of t, R
 *   being what its b takes. The bits are those of the products one after the other. NULL, or false: as for gates.
 * - linear_dw: linear_dw over the places of each expert, into dw + e * stride.
 * - combine: y[t] begins at z[t] (z.data NULL: at 0; y may be z). Then, j ascending, y = fma(weight_j, o[place], y), or
 *   without weights y = y + o[place].
 * - dot: dweight[pair] = <a[place], b[place]>: 16 lanes of fused multiply-adds, folded as in ops.h.
 * - scale: x[place] *= weight[pair]. */
#ifndef KERNELRL_TENSOR_EXPERTS_H
#define KERNELRL_TENSOR_EXPERTS_H

#include "tensor/backend.h"

enum { EXPERTS_MAX = 1024 }; /* of a layer */

struct routing {
    int64_t T, E, k;
    int32_t *expert; /* [T,k] */
    float *weight;   /* [T,k] */
    int32_t *place;  /* [T,k] of each pair */
    int32_t *pair;   /* [T*k] of each place */
    int32_t *begin;  /* [E+1]: places [begin[e], begin[e+1]) are those of expert e */
};

/* Places [lo[e], hi[e]) of each expert e. */
struct expert_places {
    int32_t *lo, *hi; /* [E] each */
};

struct expert_ops {
    void (*route)(struct backend *be, const struct routing *r, struct tensor logits, bool normalised, bool given);
    void (*route_grad)(struct backend *be, struct tensor dlogits, const struct routing *r, const float *dweight,
                       struct tensor logits, bool normalised);
    void (*rows_of)(struct backend *be, struct expert_places at, const struct routing *r, int64_t row, int64_t n);
    void (*gather)(struct backend *be, struct tensor y, struct tensor x, const struct routing *r, bool weighted);
    void (*linear)(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, int64_t E,
                   struct expert_places at, float scale, bool accumulate);
    bool (*gates)(struct backend *be, struct tensor y, struct tensor gu, struct tensor xp, struct tensor x,
                  const struct weight *w, const struct routing *r);
    bool (*linear_lora)(struct backend *be, struct tensor y, struct tensor x, const struct weight *w,
                        const struct routing *r, struct tensor t, const struct lora_site_args *site, int n, bool back);
    void (*linear_dx)(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w, int64_t E,
                      struct expert_places at, float scale, bool accumulate);
    /* dt: of the weights whose gradients these are. */
    void (*linear_dw)(struct backend *be, float *dw, int64_t stride, struct tensor dy, struct tensor x, int64_t E,
                      struct expert_places at, enum dtype dt);
    void (*combine)(struct backend *be, struct tensor y, struct tensor z, struct tensor o, const struct routing *r,
                    bool weighted);
    void (*dot)(struct backend *be, float *dweight, struct tensor a, struct tensor b, const struct routing *r);
    void (*scale)(struct backend *be, struct tensor x, const struct routing *r);
};

/* Pieces of a routing of T rows, of 4 bytes each. */
static inline int64_t routing_words(int64_t T, int64_t E, int64_t k) { return 4 * T * k + E + 1; }
/* The routing in such memory. */
static inline struct routing routing_in(void *memory, int64_t T, int64_t E, int64_t k) {
    int32_t *const at = memory;
    return (struct routing){.T = T,
                            .E = E,
                            .k = k,
                            .expert = at,
                            .weight = (float *)(void *)(at + T * k),
                            .place = at + 2 * T * k,
                            .pair = at + 3 * T * k,
                            .begin = at + 4 * T * k};
}
/* All places of each expert. */
static inline struct expert_places routing_places(const struct routing *r) {
    return (struct expert_places){r->begin, r->begin + 1};
}

#endif
