/* loss: policy-gradient and likelihood losses. Every loss is one scalar per token, g = dloss/dlogp; the model turns it
 * into g * (onehot - softmax), so a new loss is a new line here and nothing else. */
#ifndef KERNELRL_LOSS_H
#define KERNELRL_LOSS_H

#include "base/base.h"

enum loss_kind {
    LOSS_CROSS_ENTROPY,       /* -A logp; A is the weight of the token */
    LOSS_REINFORCE,           /* -A logp */
    LOSS_IMPORTANCE_SAMPLING, /* -r A,               r = exp(logp - logq) */
    LOSS_PPO,                 /* -min(r A, clip(r, 1-clip_low, 1+clip_high) A)  (1707.06347) */
    LOSS_CISPO,               /* -stopgrad(clip(r, 0, 1+clip_high)) A logp      (2506.13585) */
};
struct loss_params {
    enum loss_kind kind;
    double clip_low, clip_high;
};
struct loss_stats { /* sums over tokens; the caller divides by n */
    double loss, kl, ratio, clipped;
    double kl_max; /* largest |logp - logq| */
    int64_t n;
};
/* For each of n tokens: logp under the model being trained, logq recorded while sampling (ignored by the likelihood
 * losses; may be NULL for them), advantage A. Writes g[i] = scale * dloss/dlogp and adds to the stats (may be NULL).
 * kl is the estimator exp(d) - d - 1 with d = logp - logq, taken over samples of q. */
void loss_token_grad(const struct loss_params *p, const float *logp, const float *logq, const float *adv, int64_t n,
                     double scale, float *g, struct loss_stats *stats);

#endif
