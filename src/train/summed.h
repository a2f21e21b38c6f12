/* summed: the losses of the Tinker protocol. Each is a plain sum over tokens, its clips are bounds of the ratio itself,
 * and gspo's ratio belongs to each token with its own gradient. loss.h has the losses of this program's own loop, which
 * differ in these points. Source: the protocol's public documentation; the formulas stand beside the names. */
#ifndef KERNELRL_SUMMED_H
#define KERNELRL_SUMMED_H

#include "base/choice.h"
#include "base/err.h"

/* w: the weight or advantage of a token, r = exp(logp - sampled), [low, high]: the clip, c(x) = x clipped. */
#define SUMMED_LIST(X)                                                                                                \
    X(SUMMED_CROSS_ENTROPY, cross_entropy)             /* -w logp; w is any real number */                            \
    X(SUMMED_IMPORTANCE_SAMPLING, importance_sampling) /* -r w */                                                     \
    X(SUMMED_PPO, ppo)                                 /* -min(r w, c(r) w) */                                        \
    X(SUMMED_CISPO, cispo)                             /* -c(r) w logp; c(r) carries no gradient */                   \
    X(SUMMED_DRO, dro)                                 /* -(w logp - beta/2 (logp - sampled)^2), also where w is 0 */ \
    X(SUMMED_GSPO, gspo)                               /* -min(s w, c(s) w), s = exp(mean of logp - sampled over the  \
                                                          mask) times exp(logp - logp without gradient) */
enum summed_kind { CHOICE_ENUM(SUMMED_LIST) };
struct summed_loss {
    enum summed_kind kind;
    double low, high, beta;
};
struct summed_sequence {
    int64_t n;
    const float *logp;    /* [n] under the model being trained */
    const float *weights; /* [n] */
    const float *sampled; /* [n]; NULL only for cross_entropy */
    const float *mask;    /* [n] of gspo: tokens that are not 0 belong to the mean; NULL: all do */
};
/* Writes g[i] = dloss/dlogp[i] and adds the loss to *loss. A token of weight 0 adds nothing, whatever its ratio is, but
 * for dro. ST_INVALID: the loss or the gradient of a token is not finite; the message names the token. */
enum status summed_grad(const struct summed_loss *l, const struct summed_sequence *s, float *g, double *loss,
                        struct err *e) MUST_USE;

#endif
