/* Plans of the attention ops: see attention.c. A plan's arrays are kept between calls. */
#ifndef KERNELRL_CPU_ATTENTION_H
#define KERNELRL_CPU_ATTENTION_H

#include "cpu/cpu.h"

struct attn_plan {
    struct attn_task *task;
    int64_t n_tasks, cap_tasks, max_keys;
    int64_t *cut; /* [threads+1] */
    int cap_bins; /* cut has room for so many threads. */
    /* Only for the gradient, [cap_seq]. next: the next member of a sequence's family. last: the last member so far of
     * the family that a sequence heads, -1 where it heads none. Then the cost of that family. */
    int32_t *next, *last;
    int64_t *cost;
    int cap_seq;
};
void attn_plan_forward(struct attn_plan *p, const struct attn_seq *seq, int n_seq, struct attn_shape s, int threads);
/* A sequence with a past belongs to the family of the sequence whose first row is its past_row. */
void attn_plan_grad(struct attn_plan *p, const struct attn_seq *seq, int n_seq, struct attn_shape s, int threads);
void attn_plan_free(struct attn_plan *p);

#endif
