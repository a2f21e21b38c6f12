/* update: groups with advantages -> gradients -> one optimizer step. */
#ifndef KERNELRL_RL_LEARN_UPDATE_H
#define KERNELRL_RL_LEARN_UPDATE_H

#include "rl/learn/pupil.h"
#include "rl/options/options.h"
#include "rl/rollout/rollout.h"
#include "train/step.h"

struct update_stats {
    struct loss_stats loss;
    double entropy;   /* sum over trained tokens */
    double grad_norm; /* before clipping; of the last substep */
    double learning_rate;
    double kl_before; /* largest |logp - logq| seen before any update of this batch: 0 when sampler == trainer */
    int64_t rows;     /* rows forwarded, prompts included */
    int groups_trained, optimizer_steps;
    /* In a mixture of experts: the share of pairs of a row and a layer whose experts the whole update changed, as
     * expert_shift.h looks at them; else NaN. */
    double expert_shift;
};

/* Trains on the groups that teach something: update_epochs passes of num_substeps optimizer steps, each on an equal
 * share of the groups, shuffled where there are several. The trainer cuts a minibatch into micro-batches of at most
 * train_tokens rows (train/step.h). Samples of groups that are stale are scored with the model as it is before the
 * first step; with kl_penalty_coef also with the reference (else NULL). The lease is stood aside for between
 * micro-batches, as while sampling; NULL: nobody measures times. *opt_step counts optimizer steps. ST_FAILED when a
 * log-probability or the gradient is not finite, or differs from the sampler's where it must not: the message says
 * where, and the update that was about to be made has not been made. */
enum status update_policy(struct trainer *t, const struct kl_reference *reference, const struct train_options *o,
                          struct lease *lease, struct sample_group *groups, int n_groups, int64_t *opt_step,
                          struct update_stats *out, struct err *e) MUST_USE;
/* The same by a trainer or a server; a server works on no lease. */
enum status update_policy_by(const struct pupil *l, const struct train_options *o, struct lease *lease,
                             struct sample_group *groups, int n_groups, int64_t *opt_step, struct update_stats *out,
                             struct err *e) MUST_USE;
/* The rate of an optimizer step: update.adam.learning_rate, or less during the warm-up. */
double update_learning_rate(const struct train_options *o, int64_t opt_step);

#endif
