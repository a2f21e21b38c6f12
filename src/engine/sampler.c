#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "tensor/ops.h"

enum { BLOCK = 256, LANES = 8 };

struct sampler_item {
    float x;
    int32_t id;
};

void sampler_init(struct sampler *s, int64_t V, int32_t limit) {
    size_t n = (size_t)limit;
    *s = (struct sampler){V, limit, xmalloc(n * sizeof *s->p), xmalloc((n / BLOCK + 1) * sizeof *s->block),
                          xmalloc(n * sizeof *s->order)};
}

void sampler_free(struct sampler *s) {
    free(s->p);
    free(s->block);
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

/* Sums of blocks of the weights, for their total and to find a place in their running sum. Several partial sums,
 * because one chain of additions would take longer than the exponentials. */
static double sum_blocks(struct sampler *s) {
    double all = 0;
    for (int32_t at = 0; at < s->limit; at += BLOCK) {
        int32_t n = s->limit - at < BLOCK ? s->limit - at : BLOCK, i = 0;
        double lane[LANES] = {0}, sum = 0;
        for (; i + LANES <= n; i += LANES)
            for (int k = 0; k < LANES; k++) lane[k] += (double)s->p[at + i + k];
        for (; i < n; i++) lane[0] += (double)s->p[at + i];
        for (int k = 0; k < LANES; k++) sum += lane[k];
        s->block[at / BLOCK] = sum;
        all += sum;
    }
    return all;
}

/* The id at which the running sum of weights passes target. Rounding may carry the search past the end of a block or of
 * all; the last id with weight is meant then. */
static int32_t draw_any(const struct sampler *s, double target) {
    double sum = 0;
    int32_t last = 0, n_block = (s->limit + BLOCK - 1) / BLOCK;
    for (int32_t b = 0; b < n_block; b++) {
        if (sum + s->block[b] <= target && b + 1 < n_block) {
            sum += s->block[b];
            continue;
        }
        for (int32_t i = b * BLOCK; i < s->limit && i < (b + 1) * BLOCK; i++) {
            if (s->p[i] > 0) last = i;
            sum += (double)s->p[i];
            if (sum > target) return i;
        }
        if (last >= b * BLOCK) return last;
    }
    return last;
}

/* What top-k, top-p and min-p leave: the `used` largest of a heap of n, which lie in order at its end. */
struct cut {
    int32_t n, used;
    double mass; /* of their weights */
};

/* Puts the candidates in order of logit, from the end of `order` downwards, until top-k, top-p and min-p are met. The
 * largest weight is 1, so min-p is a bound on the weights.
 * A heap, because the cut is usually short: building it is linear, each candidate costs log n. */
static struct cut cut_tail(struct sampler *s, const float *logits, const struct sample_params *par, double all) {
    int32_t n = 0, kept = 0;
    bool cut_k = par->top_k > 0 && par->top_k < s->limit;
    struct sampler_item *h = s->order;
    /* For top-p alone: all weights below this one are less than 1 - top_p together, so they are never needed. */
    double least = cut_k ? 0 : (1 - (double)par->top_p) * all / (double)s->limit * 0.999;
    if (!cut_k && least < (double)par->min_p) least = (double)par->min_p;
    for (int32_t i = 0; i < s->limit; i++)
        if (!((double)s->p[i] < least)) h[n++] = (struct sampler_item){logits[i], i};
    for (int32_t i = n / 2; i-- > 0;) sift_down(h, n, i);
    int32_t k = cut_k ? par->top_k : n;
    double mass = 0, total = all;
    if (cut_k) { /* top-p is a share of what top-k leaves */
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
        const float weight = s->p[h[n - 1 - used].id];
        if (weight < par->min_p) break;
        mass += (double)weight;
        used++;
    }
    return (struct cut){n, used, mass};
}

static int32_t draw_filtered(struct sampler *s, const float *logits, const struct sample_params *par, double all,
                             double u) {
    const struct cut c = cut_tail(s, logits, par, all);
    const struct sampler_item *h = s->order;
    double target = u * c.mass, sum = 0;
    for (int32_t i = 0; i < c.used; i++) {
        sum += (double)s->p[h[c.n - 1 - i].id];
        if (sum > target) return h[c.n - 1 - i].id;
    }
    return h[c.n - 1].id; /* rounding only: u is below 1 */
}

static int32_t largest(const struct sampler *s, const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < s->limit; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Whether the draw needs the order of the ids; min-p alone does not. */
static bool is_filtered(const struct sampler *s, const struct sample_params *par) {
    return (par->top_k > 0 && par->top_k < s->limit) || par->top_p < 1;
}

/* The weights of all ids, without those that min-p alone leaves out, and their sum. */
static double weigh(struct sampler *s, const float *logits, const struct sample_params *par, float most) {
    const int32_t n = s->limit;
    for (int32_t i = 0; i < n; i++) s->p[i] = (logits[i] - most) / par->temperature;
    exp_f32(s->p, s->p, n);
    if (!is_filtered(s, par) && par->min_p > 0)
        for (int32_t i = 0; i < n; i++) s->p[i] = s->p[i] < par->min_p ? 0 : s->p[i];
    return sum_blocks(s);
}

int32_t sampler_draw(struct sampler *s, const float *logits, const struct sample_params *par, double u) {
    const int32_t best = largest(s, logits);
    if (!isfinite(logits[best])) return -1;
    if (par->temperature == 0) return best;
    const double all = weigh(s, logits, par, logits[best]);
    if (!isfinite(all)) return -1; /* a NaN among the logits */
    return is_filtered(s, par) ? draw_filtered(s, logits, par, all, u) : draw_any(s, u * all);
}

void sampler_distribution(struct sampler *s, const float *logits, const struct sample_params *par, float *out) {
    const float least = SAMPLER_LEFT_OUT, most = logits[largest(s, logits)], T = par->temperature;
    for (int64_t v = 0; v < s->V; v++) {
        const float x = T == 0 || T == 1 ? logits[v] : (logits[v] - most) / T; /* a small T would make them infinite */
        out[v] = x < least ? least : x;
    }
    if (par->temperature == 0 || !(is_filtered(s, par) || par->min_p > 0)) return;
    const double all = weigh(s, logits, par, most);
    for (int64_t v = s->limit; v < s->V; v++) out[v] = least;
    if (!is_filtered(s, par)) {
        for (int32_t i = 0; i < s->limit; i++) out[i] = s->p[i] > 0 ? out[i] : least;
        return;
    }
    const struct cut c = cut_tail(s, logits, par, all);
    for (int32_t i = 0; i < s->limit; i++) s->p[i] = least;
    for (int32_t i = 0; i < c.used; i++) {
        const int32_t id = s->order[c.n - 1 - i].id;
        s->p[id] = out[id];
    }
    for (int32_t i = 0; i < s->limit; i++) out[i] = s->p[i];
}
