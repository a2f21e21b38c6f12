/* share: which problems a wave works on, and how many answers each gets. */
#ifndef KERNELRL_OPTIMIZE_SHARE_H
#define KERNELRL_OPTIMIZE_SHARE_H

#include "optimize/options.h"
#include "optimize/task.h"

struct share { /* of a task in a wave */
    int task, answers;
};
/* What a wave may use: what is on record of the search so far, and no clock. */
struct share_state {
    int64_t spent, sampled; /* of all tasks */
    double elapsed_s;
};
/* At most o->search.wave_problems tasks; returns their number, 0 when the budget is spent. share: gain gives the wave
 * to those that it may bring most, equal to those that had least. */
int share_wave(const struct optimize_options *o, const struct tasks *t, const struct share_state *s, struct share *out);
/* How many more verdicts a task may have; INT64_MAX without a bound. */
int64_t share_left(const struct optimize_options *o, const struct tasks *t, int task, int64_t spent_by_all);
/* A wave has changed the speed of a task's best answer from `before` to `after` (0: none was correct). */
void share_note(struct search_task *t, double before, double after);

#endif
