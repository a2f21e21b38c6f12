/* expert_shift: how many choices of experts an update changes, in a mixture of experts. The same rows are forwarded
 * before and after it. */
#ifndef KERNELRL_RL_LEARN_EXPERT_SHIFT_H
#define KERNELRL_RL_LEARN_EXPERT_SHIFT_H

#include "base/arena.h"
#include "model/model.h"
#include "rl/rollout/rollout.h"

struct expert_shift {
    struct train_batch batch; /* T 0: there is nothing to compare */
    int32_t *before, *after;  /* [L][T][top_k] */
};

/* Rows of the groups' samples in turn go through an adapter of the model as it is: at most `rows`, what a micro-batch
 * may have, and EXPERT_SHIFT_ROWS; a first sample that is longer alone. Memory is the arena's, which must live on until
 * the end. Nothing happens in a model without experts. */
enum { EXPERT_SHIFT_ROWS = 2048 };
enum status expert_shift_begin(struct expert_shift *x, struct arena *memory, struct model *m, int adapter,
                               struct sample_group *const *groups, int n, int64_t rows, struct err *e) MUST_USE;
/* *share: of the pairs of a row and a layer with experts, how many have another set of experts now; NaN without any. */
enum status expert_shift_end(struct expert_shift *x, struct model *m, double *share, struct err *e) MUST_USE;

#endif
