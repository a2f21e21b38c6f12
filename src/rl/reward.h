/* reward: verdict -> score of one turn, a weighted sum of parts in [0, cap]. A cheat scores 0; infrastructure failures
 * have no score (the caller drops the sample). Format and compile credit are paid to answers that do not work yet;
 * speed only to correct ones. */
#ifndef KERNELRL_REWARD_H
#define KERNELRL_REWARD_H

#include "verify/verify.h"

enum speed_shape {
    SPEED_RATIO,  /* T_eager / T_kernel, as Kevin (2507.11948) */
    SPEED_EXCESS, /* max(0, ratio - 1) */
    SPEED_LOG,    /* log2(1 + ratio) */
};
struct reward_weights {
    double format, compile, correct, speed, think;
    enum speed_shape shape;
    double speed_cap;     /* upper limit of the speed part */
    bool partial_correct; /* passed / total instead of all or nothing */
};
struct reward {
    double format, compile, correct, speed, think; /* parts before weighting */
    double total;
};
/* has_thought: the answer holds a non-empty think block. */
struct reward reward_score(const struct reward_weights *w, const struct verdict *v, bool format_ok, bool has_thought);

#endif
