#include "train/summed.h"

#include <math.h>

static double clip(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

struct summed_term { /* a token's loss, and its derivative by logp */
    double loss, grad;
};

/* The smaller of two products; the clipped one has no gradient. */
static struct summed_term clipped(const struct summed_loss *l, double r, double w) {
    const double plain = r * w, cut = clip(r, l->low, l->high) * w;
    return plain <= cut ? (struct summed_term){-plain, -plain} : (struct summed_term){-cut, 0};
}

/* r: the token's ratio, or the sequence's for gspo. */
static struct summed_term term_of(const struct summed_loss *l, double w, double logp, double d, double r) {
    switch (l->kind) {
    case SUMMED_IMPORTANCE_SAMPLING: return (struct summed_term){-r * w, -r * w};
    case SUMMED_PPO:
    case SUMMED_GSPO: return clipped(l, r, w);
    case SUMMED_CISPO: {
        const double c = clip(r, l->low, l->high);
        return (struct summed_term){-c * w * logp, -c * w};
    }
    case SUMMED_DRO: return (struct summed_term){-(w * logp - 0.5 * l->beta * d * d), -(w - l->beta * d)};
    case SUMMED_CROSS_ENTROPY:
    default: return (struct summed_term){-w * logp, -w};
    }
}

/* exp of the mean over the mask; 1 where the mask is empty. */
static double sequence_ratio(const struct summed_sequence *s) {
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->mask && s->mask[i] == 0) continue;
        sum += (double)s->logp[i] - (double)s->sampled[i];
        n++;
    }
    return n ? exp(sum / (double)n) : 1;
}

enum status summed_grad(const struct summed_loss *l, const struct summed_sequence *s, float *g, double *loss,
                        struct err *e) {
    ASSERT(s->sampled || l->kind == SUMMED_CROSS_ENTROPY);
    const double whole = l->kind == SUMMED_GSPO ? sequence_ratio(s) : 1;
    for (int64_t i = 0; i < s->n; i++) {
        const double w = s->weights[i], logp = s->logp[i], d = s->sampled ? logp - (double)s->sampled[i] : 0;
        g[i] = 0;
        if (w == 0 && l->kind != SUMMED_DRO) continue;
        const struct summed_term t = term_of(l, w, logp, d, l->kind == SUMMED_GSPO ? whole : exp(d));
        g[i] = (float)t.grad;
        if (!isfinite(t.loss) || !isfinite(g[i]))
            return FAIL(e, ST_INVALID,
                        "token %lld: its loss is not finite: log-probability %g, that of the sampler %g, weight or "
                        "advantage %g",
                        (long long)i, logp, logp - d, w);
        *loss += t.loss;
    }
    return ST_OK;
}
