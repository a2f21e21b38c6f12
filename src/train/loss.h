/* loss: policy-gradient and likelihood losses. Every loss is one scalar per token, g = dloss/dlogp; the model turns it
 * into g * (onehot - softmax). A new loss is a row of LOSS_LIST, a case in loss.c and a row of its test.
 *
 * Three policies meet in a token: the one that sampled it (sampled), the one at the start of the update (old; the same
 * one unless samples are stale) and the one being trained (logp). Ratios are r = exp(logp - old); how far old has left
 * sampled is corrected by a weight that carries no gradient, rho = exp(old - sampled), cut or masked. */
#ifndef KERNELRL_LOSS_H
#define KERNELRL_LOSS_H

#include "base/base.h"
#include "base/choice.h"

/* X(value, name in a configuration) */
#define LOSS_LIST(X)                                                                                                 \
    X(LOSS_REINFORCE, reinforce)                     /* -A logp */                                                   \
    X(LOSS_IMPORTANCE_SAMPLING, importance_sampling) /* -r A */                                                      \
    X(LOSS_PPO, ppo)                                 /* -min(r A, clip(r, 1-clip_low, 1+clip_high) A)  (1707.06347); \
                                                        clip_dual c > 0: where A < 0 at most -c A  (1912.09729) */   \
    X(LOSS_CISPO, cispo)                             /* -stopgrad(clip(r, 0, 1+clip_high)) A logp  (2506.13585) */   \
    X(LOSS_GSPO, gspo)                               /* PPO's with one ratio a sequence, s = exp(mean of logp - old) \
                                                        (2507.18071) */                                              \
    X(LOSS_DRO, dro)                                 /* -(A logp - beta/2 (logp - old)^2)  (2405.19107) */           \
    X(LOSS_CROSS_ENTROPY, cross_entropy)             /* -A logp; A is the weight of the token */
enum loss_kind { CHOICE_ENUM(LOSS_LIST) };
/* The weight made of rho. */
#define CORRECTION_LIST(X)                                                                              \
    X(CORRECT_NONE, none)                   /* 1 */                                                     \
    X(CORRECT_TRUNCATE, truncate)           /* min(rho, high): TIS */                                   \
    X(CORRECT_MASK, mask)                   /* rho inside [low, high], else 0: IcePop */                \
    X(CORRECT_SEQUENCE_MASK, sequence_mask) /* of the whole sequence: 1 while its geometric mean of rho \
                                               is inside [low, high], else 0 */
enum ratio_correction { CHOICE_ENUM(CORRECTION_LIST) };
/* Estimators of KL(policy || reference) from samples of the policy, d = logp - ref. */
#define KL_LIST(X)                                                                         \
    X(KL_K1, k1) /* d: as a loss its expected gradient is 0, it belongs into the reward */ \
    X(KL_K2, k2) /* d^2/2: the right gradient on-policy */                                 \
    X(KL_K3, k3) /* exp(-d) + d - 1: never negative */
enum kl_estimator { CHOICE_ENUM(KL_LIST) };
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
