#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "tensor/ops.h"

struct sampler_item {
    float x;
    int32_t id;
};

void sampler_init(struct sampler *s, int64_t V, int32_t limit) {
    *s = (struct sampler){V, limit, xmalloc((size_t)limit * sizeof *s->p), xmalloc((size_t)limit * sizeof *s->order)};
}

void sampler_free(struct sampler *s) {
    free(s->p);
    free(s->order);
    *s = (struct sampler){0};
}

static bool before(struct sampler_item a, struct sampler_item b) { return a.x != b.x ? a.x > b.x : a.id < b.id; }

static void sift_down(struct sampler_item *h, int32_t n, int32_t i) {
    struct sampler_item x = h[i];
    for (int32_t kid; (kid = 2 * i + 1) < n; i = kid) {
        if (kid + 1 < n && before(h[kid + 1], h[kid])) kid++;
        if (!before(h[kid], x)) break;
        h[i] = h[kid];
    }
    h[i] = x;
}

/* Moves the largest item of a heap of n to its end. */
static struct sampler_item pop(struct sampler_item *h, int32_t n) {
    struct sampler_item top = h[0];
    h[0] = h[n - 1];
    h[n - 1] = top;
    if (n > 2) sift_down(h, n - 1, 0);
    return top;
}

/* The candidates in order of logit, from the end of `order` downwards, until top-k and top-p are met; draws from them.
 * A heap, because the cut is usually short: building it is linear, each candidate costs log V. */
static int32_t draw_filtered(struct sampler *s, const float *logits, const struct sample_params *par, double all,
                             double u) {
    int32_t n = s->limit, kept = 0;
    struct sampler_item *h = s->order;
    for (int32_t i = 0; i < n; i++) h[i] = (struct sampler_item){logits[i], i};
    for (int32_t i = n / 2; i-- > 0;) sift_down(h, n, i);
    int32_t k = par->top_k > 0 && par->top_k < n ? par->top_k : n;
    double mass = 0, total = all;
    if (k < n) { /* top-p is a share of what top-k leaves */
        total = 0;
        for (; kept < k; kept++) total += (double)s->p[pop(h, n - kept).id];
    }
    double want = par->top_p < 1 ? (double)par->top_p * total : INFINITY;
    int32_t used = 0;
    while (used < k && mass < want) { /* at least one: top_p > 0 */
        if (used == kept) {
            pop(h, n - kept);
            kept++;
        }
        mass += (double)s->p[h[n - 1 - used].id];
        used++;
    }
    double target = u * mass, sum = 0;
    for (int32_t i = 0; i < used; i++) {
        sum += (double)s->p[h[n - 1 - i].id];
        if (sum > target) return h[n - 1 - i].id;
    }
    return h[n - 1].id; /* rounding only: u is below 1 */
}

int32_t sampler_draw(struct sampler *s, const float *logits, const struct sample_params *par, double u) {
    int32_t n = s->limit, best = 0;
    bool finite = true;
    for (int32_t i = 0; i < n; i++) {
        finite = finite && isfinite(logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    if (!finite) return -1;
    if (par->temperature == 0) return best;
    for (int32_t i = 0; i < n; i++) s->p[i] = (logits[i] - logits[best]) / par->temperature;
    exp_f32(s->p, s->p, n);
    double all = 0;
    for (int32_t i = 0; i < n; i++) all += (double)s->p[i];
    if ((par->top_k > 0 && par->top_k < n) || par->top_p < 1) return draw_filtered(s, logits, par, all, u);
    double target = u * all, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)s->p[i];
        if (sum > target) return i;
    }
    return best; /* rounding only */
}
