/* advantage: scores of a group -> how much better than its peers each sample was. */
#ifndef KERNELRL_ADVANTAGE_H
#define KERNELRL_ADVANTAGE_H

#include "base/base.h"

enum advantage_kind {
    ADVANTAGE_CENTER,    /* r - mean            (Dr. GRPO, 2503.20783) */
    ADVANTAGE_STD,       /* (r - mean) / (std + 1e-6)  (GRPO, 2402.03300) */
    ADVANTAGE_LEAVE_ONE, /* r - mean of the others      (RLOO, 2402.14740) */
};
/* score[i] where present[i]; a sample that is not present (verdict missing) gets 0. Advantages below zero are
 * multiplied by negative_scale in [0,1]: 1 is the plain policy gradient, 0 learns from the better half alone, and what
 * lies between tempers the push away from bad samples, whose mass goes to whatever is next likely (tapered REINFORCE,
 * 2503.14286). Returns false, and all zeros, when the present scores are equal or fewer than two: such a group teaches
 * nothing. */
bool advantage_group(enum advantage_kind kind, double negative_scale, const double *score, const bool *present, int n,
                     double *out);

#endif
