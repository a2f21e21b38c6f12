/* arms: which prompt the model is asked next. What each kind of prompt has paid is counted anew from the candidates, so
 * that it depends on nothing else. */
#ifndef KERNELRL_OPTIMIZE_ARMS_H
#define KERNELRL_OPTIMIZE_ARMS_H

#include "optimize/options.h"
#include "optimize/plans.h"
#include "optimize/task.h"

struct arms {
    struct bandit_arm arm[N_ARMS], others[N_ARMS]; /* what they have paid for a task, and for the other ones */
    struct plans plans;
    int known; /* answers that all of this rests on */
};
void arms_free(struct arms *a);
/* What the candidates say: those of a task, and with less weight those of the other tasks. */
void arms_count(const struct tasks *t, int task, struct arms *out);
/* What an answer pays, in [0, 1]: little for what does not work, and by how far it came; for what works a quarter, and
 * the rest by the square of its speed over the best one's: the search is for the best. */
double arm_pay_off(const struct search_candidate *c, double best_speed);

/* A prompt to be made. */
struct arm_choice {
    enum arm arm;
    int island, n_parents, parent[PARENTS_MAX];
    char *plan; /* ARM_PLAN; its own */
};
/* The next prompt of a task. has_examples: there are solved problems to show. */
struct arm_choice arms_choose(const struct arms *a, const struct search_task *t, const struct search_options *o,
                              bool has_examples, struct rng *r);

#endif
