#include "rl/learn/pupil.h"

struct pupil pupil_here(struct trainer *t, const struct kl_reference *reference) {
    return (struct pupil){.trainer = t, .reference = reference, .datums = &t->datums};
}

enum status pupil_forward(const struct pupil *l, bool reference, const struct datum *d, int n, struct err *e) {
    struct trainer *t = l->trainer;
    if (!t) return hosted_forward(l->hosted, reference, d, n, e);
    ASSERT(!reference || (l->reference && l->reference->model));
    return reference ? train_forward(t, l->reference->model, l->reference->adapter, d, n, e)
                     : train_forward(t, t->model, t->adapter, d, n, e);
}

void pupil_forget(const struct pupil *l) {
    if (l->trainer) train_forget(l->trainer);
}

enum status pupil_accumulate(const struct pupil *l, const struct train_call *c, const struct datum *d, int n,
                             struct train_stats *stats, struct err *e) {
    return l->trainer ? train_accumulate(l->trainer, c, d, n, stats, e)
                      : hosted_accumulate(l->hosted, c, d, n, stats, e);
}

enum status pupil_step(const struct pupil *l, const struct adamw_config *c, double max_grad_norm, int64_t step,
                       double *grad_norm, struct err *e) {
    return l->trainer ? train_optimizer_step(l->trainer, c, max_grad_norm, step, grad_norm, e)
                      : hosted_step(l->hosted, c, max_grad_norm, grad_norm, e);
}
