/* loss: policy-gradient and likelihood losses. Every loss is one scalar per token, g = dloss/dlogp; the model turns it
 * into g * (onehot - softmax), so a new loss is a new line here and nothing else.
 *
 * Three policies meet in a token: the one that sampled it (sampled), the one at the start of the update (old; the same
 * one unless samples are stale) and the one being trained (logp). Ratios are r = exp(logp - old); how far old has left
 * sampled is corrected by a weight that carries no gradient, rho = exp(old - sampled), cut or masked. */
#ifndef KERNELRL_LOSS_H
#define KERNELRL_LOSS_H

#include "base/base.h"

enum loss_kind {
    LOSS_REINFORCE,           /* -A logp */
    LOSS_IMPORTANCE_SAMPLING, /* -r A */
    LOSS_PPO,   /* -min(r A, clip(r, 1-clip_low, 1+clip_high) A)  (1707.06347); clip_dual c > 0: where A < 0 at most
                   -c A (1912.09729) */
    LOSS_CISPO, /* -stopgrad(clip(r, 0, 1+clip_high)) A logp      (2506.13585) */
    LOSS_GSPO,  /* PPO's with one ratio a sequence, s = exp(mean of logp - old)  (2507.18071) */
    LOSS_DRO,   /* -(A logp - beta/2 (logp - old)^2)               (2405.19107) */
    LOSS_CROSS_ENTROPY, /* -A logp; A is the weight of the token */
};
enum ratio_correction {                        /* the weight made of rho */
                        CORRECT_NONE,          /* 1 */
                        CORRECT_TRUNCATE,      /* min(rho, high): TIS */
                        CORRECT_MASK,          /* rho inside [low, high], else 0: IcePop */
                        CORRECT_SEQUENCE_MASK, /* of the whole sequence: 1 while its geometric mean of rho is inside
                                                  [low, high], else 0 */
};
/* Estimators of KL(policy || reference) from samples of the policy, d = logp - ref. */
enum kl_estimator {
    KL_K1, /* d: as a loss its expected gradient is 0, it belongs into the reward */
    KL_K2, /* d^2/2: the right gradient on-policy */
    KL_K3, /* exp(-d) + d - 1: never negative */
};
struct loss_params {
    enum loss_kind kind;
    double clip_low, clip_high, clip_dual, dro_beta;
    enum ratio_correction correction;
    double correction_low, correction_high;
    double kl_coef; /* times the estimate, added to the loss; needs ref */
    enum kl_estimator kl;
    double entropy_coef; /* times the entropy, taken off the loss; needs entropy */
};
/* One sample's n tokens. */
struct loss_sequence {
    int64_t n;
    const float *logp;    /* under the model being trained */
    const float *old;     /* at the start of the update; NULL only for the likelihood losses */
    const float *sampled; /* while sampling; NULL: old */
    const float *ref;     /* under the reference model; NULL without a KL term */
    const float *entropy; /* of each distribution, nats; NULL without an entropy term */
    const float *adv;     /* advantage or weight A */
};
struct loss_stats { /* sums over tokens; the caller divides by n */
    double loss, ratio, clipped, masked;
    double k1, k2, k3; /* estimators of KL(sampler || trainer): -d, d^2/2, exp(d) - d - 1 with d = logp - sampled */
    double ref_kl;     /* the chosen estimator of KL(trainer || reference) */
    double d_max, ratio_max;
    int64_t n;
};
/* Writes g[i] = scale * dloss/dlogp[i] and adds to the stats (may be NULL). The entropy's gradient is the score
 * function's: coef * min(r, 2) * (logp + entropy), whose mean over tokens of the policy is d(-coef * entropy). */
void loss_grad(const struct loss_params *p, const struct loss_sequence *s, double scale, float *g,
               struct loss_stats *stats);

#endif
