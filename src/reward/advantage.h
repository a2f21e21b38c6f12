/* advantage: scores -> how much better than expected each sample was. The first column of the table advantage x loss x
 * normaliser (docs/configuration.md); the losses are train/loss.h, the normalisers update.c. To try another advantage,
 * add a row here and a line in advantage.c. */
#ifndef KERNELRL_REWARD_ADVANTAGE_H
#define KERNELRL_REWARD_ADVANTAGE_H

#include "base/base.h"
#include "base/choice.h"

/* X(value, name in a configuration) */
#define ADVANTAGE_LIST(X)                                                                                             \
    X(ADVANTAGE_CENTER, center)           /* r - mean of the group            (Dr. GRPO, 2503.20783) */               \
    X(ADVANTAGE_STD, std)                 /* (r - mean) / (std + 1e-6)        (GRPO, 2402.03300) */                   \
    X(ADVANTAGE_LEAVE_ONE, leave_one_out) /* r - mean of the others           (RLOO, 2402.14740) */                   \
    X(ADVANTAGE_NONE, none)               /* r                                (REINFORCE, reward-weighted) */         \
    X(ADVANTAGE_BATCH_MEAN, batch_mean)   /* r - mean of the batch */                                                 \
    X(ADVANTAGE_BATCH_STD, batch_std)     /* that over the batch's std        (REINFORCE++, 2501.03262) */            \
    X(ADVANTAGE_EMA, ema)                 /* r - running mean of the batches' means; the first batch takes its own */ \
    X(ADVANTAGE_MAXRL, maxrl)             /* (r - mean) / (mean + 1e-6), scores >= 0 */                               \
    X(ADVANTAGE_EXPONENTIAL, exponential) /* exp((r - mean) / temperature), at most 20  (RWR) */                      \
    X(ADVANTAGE_ENTROPIC, entropic)       /* exp(b r) / mean of exp(b r) - 1  (TTT-Discover, 2601.16175) */           \
    X(ADVANTAGE_MAX_K, max_k)             /* what the sample adds to the best of k (max@k, 2505.15201) */             \
    X(ADVANTAGE_BEST, best) /* 1 for the `keep` best of the group among those over `threshold`, else 0 (best-of-N) */
enum advantage_kind { CHOICE_ENUM(ADVANTAGE_LIST) };
struct advantage_params {
    enum advantage_kind kind;
    /* Advantages below zero are multiplied by this in [0,1]: 1 is the plain policy gradient, 0 learns from the better
     * half alone, and what lies between tempers the push away from bad samples, whose mass goes to whatever is next
     * likely (tapered REINFORCE, 2503.14286). */
    double negative_scale;
    bool drop_constant;    /* leave groups of equal scores out, where the advantage is a difference */
    int keep;              /* BEST */
    double threshold;      /* BEST */
    double temperature;    /* EXPONENTIAL, > 0 */
    double entropic_beta;  /* ENTROPIC: b; 0: as much as takes the weights ln 2 away from equal ones, in KL */
    int max_k;             /* MAX_K: k >= 2 */
    double baseline_decay; /* EMA, in [0,1) */
};
/* One sample's entry. Samples of a group need not stand together: in multi-turn runs a group is all turns of all
 * trajectories of a problem. */
struct advantage_sample {
    int group;        /* 0 .. n_groups-1 */
    bool present;     /* false: its verdict is missing; it gets 0 and counts for nobody */
    double score;     /* or return */
    double advantage; /* out */
    bool constant;    /* out: all present scores of its group are equal, or it is the only one */
    bool takes_part;  /* out: present, and not left out as part of a constant group */
};
/* Fills the outputs of n samples. *baseline: the running mean, NaN before the first batch; only EMA reads and moves it.
 * Returns the number of constant groups. */
int advantage_batch(const struct advantage_params *p, struct advantage_sample *s, int n, int n_groups,
                    double *baseline);

#endif
