/* follow: the training step on the other ranks of a run. Rank 0 calls train_accumulate() and the like (step.h), which
 * tell the others; each of them carries the call out in train_follow(). Internal to train but for train_follow() and
 * train_share_state(). */
#ifndef KERNELRL_TRAIN_FOLLOW_H
#define KERNELRL_TRAIN_FOLLOW_H

#include "dist/command.h"
#include "train/step.h"

/* Carries out a command of train (RANK_FORWARD and the like) on a rank other than 0. reference and its adapter: the
 * model whose log-probabilities train_forward() may be asked for beside the trained one; NULL: there is none. An error
 * other than ST_LOST is one that rank 0 has, too. */
enum status train_follow(struct trainer *t, struct model *reference, enum rank_command what, const struct str *payload,
                         struct err *e) MUST_USE;
/* Rank 0 gives its weights, moments and count of updates to all ranks: before the first step, and whenever it has
 * loaded others. */
enum status train_share_state(struct trainer *t, struct err *e) MUST_USE;

/* Rank 0, in front of model_save: where each rank has a part of the float32 weights (trainer_open), the model gets all
 * of them, until the next train_accumulate. Nothing happens where it has them. */
enum status train_gather_values(struct trainer *t, struct err *e) MUST_USE;
/* Its work on every rank. An error of one is everybody's, and nothing has been sent then. Queued, as fold_gather. */
enum status follow_gather_values(struct trainer *t, struct err *e) MUST_USE;
/* How the parts of a trainer's moments meet. */
struct adamw_parts follow_parts(struct trainer *t);

/* Rank 0: tells the others. Nothing happens on one rank, or on another one. */
enum status follow_tell_forward(const struct trainer *t, const struct model *m, int adapter, const struct datum *d,
                                int n, struct err *e) MUST_USE;
enum status follow_tell_accumulate(const struct trainer *t, const struct train_call *c, const struct datum *d, int n,
                                   struct err *e) MUST_USE;
enum status follow_tell_step(const struct trainer *t, const struct adamw_config *c, double max_grad_norm, int64_t step,
                             struct err *e) MUST_USE;

#endif
