/* update: groups with advantages -> gradients -> one optimizer step. */
#ifndef KERNELRL_RL_LEARN_UPDATE_H
#define KERNELRL_RL_LEARN_UPDATE_H

#include "base/arena.h"
#include "rl/options/options.h"
#include "rl/rollout/rollout.h"
#include "train/adamw.h"

struct update_stats {
    struct loss_stats loss;
    double entropy;   /* sum over trained tokens */
    double grad_norm; /* before clipping; of the last substep */
    double learning_rate;
    double kl_before; /* largest |logp - logq| seen before any update of this batch: 0 when sampler == trainer */
    int64_t rows;     /* rows forwarded, prompts included */
    int groups_trained, optimizer_steps;
};

/* Memory of micro-batches, kept between calls: zero at first, freed by update_space_free. It grows to what the largest
 * batch needs and then no more. */
struct update_space {
    struct arena step, micro;
    struct lease *lease; /* stood aside for between micro-batches, as while sampling; NULL: nobody measures times */
};
void update_space_free(struct update_space *s);

/* What a KL penalty compares with: another model, or the one that is trained, its rows through another adapter or none
 * (struct segment): that takes no second copy of the weights. */
struct kl_reference {
    struct model *model; /* NULL: none */
    int adapter;
};

/* Trains on the groups that teach something: update_epochs passes of num_substeps optimizer steps, each on an equal
 * share of the groups, shuffled where there are several. A minibatch is cut into micro-batches of at most train_tokens
 * rows; a larger group is cut between its samples, a single sample never. Samples of groups that are stale are scored
 * with the model as it is before the first step; with kl_penalty_coef also with the reference (else NULL).
 * *opt_step counts optimizer steps. ST_FAILED when a log-probability or the gradient is not finite, or differs from the
 * sampler's where it must not: the message says where, and the update that was about to be made has not been made. */
enum status update_policy(struct model *m, struct adamw *opt, const struct kl_reference *reference,
                          const struct train_options *o, struct update_space *space, struct sample_group *groups,
                          int n_groups, int64_t *opt_step, struct update_stats *out, struct err *e) MUST_USE;
/* The rate of an optimizer step: update.adam.learning_rate, or less during the warm-up. */
double update_learning_rate(const struct train_options *o, int64_t opt_step);

/* Negative log-likelihood of the groups' samples: sum over tokens, in nats, and the number of tokens. */
enum status update_nll(struct model *m, const struct train_options *o, struct update_space *space,
                       struct sample_group *groups, int n_groups, double *sum, int64_t *tokens, struct err *e) MUST_USE;

#endif
