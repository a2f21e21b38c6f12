/* pupil: the model that an update teaches, and who computes the log-probabilities, gradients and optimizer steps of an
 * update: the trainer of a model that is loaded here, or a server (hosted/hosted.h). */
#ifndef KERNELRL_RL_LEARN_PUPIL_H
#define KERNELRL_RL_LEARN_PUPIL_H

#include "hosted/hosted.h"

/* What a KL penalty compares with: another model, or the one that is trained, its rows through another adapter or none
 * (struct segment): that takes no second copy of the weights. */
struct kl_reference {
    struct model *model; /* NULL: none */
    int adapter;
};

/* Borrowed, all of it. */
struct pupil {
    struct trainer *trainer;              /* NULL: the server */
    const struct kl_reference *reference; /* of the trainer; a server has its own. NULL: none */
    struct hosted *hosted;
    struct arena *datums; /* for the caller's datums */
};
struct pupil pupil_here(struct trainer *t, const struct kl_reference *reference);

/* As train_forward (of the reference, or of what is trained), train_forget, train_accumulate and train_optimizer_step.
 * With a server `exact` of a call is not asked for, and what was begun is forgotten with the session. */
enum status pupil_forward(const struct pupil *l, bool reference, const struct datum *d, int n, struct err *e) MUST_USE;
void pupil_forget(const struct pupil *l);
enum status pupil_accumulate(const struct pupil *l, const struct train_call *c, const struct datum *d, int n,
                             struct train_stats *stats, struct err *e) MUST_USE;
enum status pupil_step(const struct pupil *l, const struct adamw_config *c, double max_grad_norm, int64_t step,
                       double *grad_norm, struct err *e) MUST_USE;

#endif
