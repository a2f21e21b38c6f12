#include "train/loss.h"

#include <math.h>

void loss_token_grad(const struct loss_params *p, const float *logp, const float *logq, const float *adv, int64_t n,
                     double scale, float *g, struct loss_stats *stats) {
    bool likelihood = p->kind == LOSS_CROSS_ENTROPY || p->kind == LOSS_REINFORCE;
    ASSERT(likelihood || logq);
    for (int64_t i = 0; i < n; i++) {
        double a = adv[i], d = logq ? (double)logp[i] - (double)logq[i] : 0, r = exp(d), loss, grad;
        bool clipped = false;
        switch (p->kind) {
        case LOSS_IMPORTANCE_SAMPLING:
            loss = -r * a;
            grad = -r * a;
            break;
        case LOSS_PPO: {
            double lo = 1 - p->clip_low, hi = 1 + p->clip_high, rc = r < lo ? lo : r > hi ? hi : r;
            clipped = rc * a < r * a; /* the clipped branch is the minimum: no gradient */
            loss = -(clipped ? rc * a : r * a);
            grad = clipped ? 0 : -r * a;
            break;
        }
        case LOSS_CISPO: {
            double hi = 1 + p->clip_high, rc = r > hi ? hi : r;
            clipped = rc < r;
            loss = -rc * a * logp[i];
            grad = -rc * a;
            break;
        }
        case LOSS_CROSS_ENTROPY:
        case LOSS_REINFORCE:
        default:
            loss = -a * logp[i];
            grad = -a;
            break;
        }
        g[i] = (float)(scale * grad);
        if (!stats) continue;
        stats->loss += loss;
        stats->ratio += r;
        stats->kl += r - d - 1;
        stats->kl_max = fmax(stats->kl_max, fabs(d));
        stats->clipped += clipped;
        stats->n++;
    }
}
