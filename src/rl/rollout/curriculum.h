/* curriculum: which problems a step samples, and what of the options changes over a run.
 *
 * Problems are grouped by level (or difficulty label), lowest first. Learned are all groups up to one; the next one,
 * the frontier, has a share p of each batch. While the mean correct rate of the learned groups over `window` steps is
 * at least `trigger`, p grows by `increment` a step, from start_share to end_share. There, once the frontier's own rate
 * meets the trigger as well, it is learned too and the next group begins. Which problems a batch holds is a function of
 * seed, step and this state, and the state is part of a checkpoint. */
#ifndef KERNELRL_RL_ROLLOUT_CURRICULUM_H
#define KERNELRL_RL_ROLLOUT_CURRICULUM_H

#include "io/json.h"
#include "problem/problem.h"
#include "rl/options/options.h"
#include "rl/rollout/rollout.h"

enum { CURRICULUM_GROUPS = 8, CURRICULUM_WINDOW = 64 };
struct curriculum {
    const struct problem **pool; /* [n] borrowed problems, by group */
    int n, n_groups;
    int begin[CURRICULUM_GROUPS + 1]; /* of each group in pool */
    int key[CURRICULUM_GROUPS];       /* its level or difficulty */
    /* State. */
    int learned; /* the last learned group */
    double share;
    struct curriculum_rates { /* of the last steps, oldest first */
        double rate[CURRICULUM_WINDOW];
        int n;
    } known, frontier;
};
/* Sorts the problems into groups; the state of a new run. */
void curriculum_init(struct curriculum *c, const struct train_options *o, const struct problem *const *problems, int n);
void curriculum_free(struct curriculum *c);
/* The step's batch, `batch` of them: from each of the two parts without repetition while it lasts. */
void curriculum_pick(const struct curriculum *c, const struct train_options *o, int64_t step, int batch,
                     const struct problem **out);
/* Learns from a step's verdicts. */
void curriculum_update(struct curriculum *c, const struct train_options *o, const struct rollout *r);
/* Appends the state as a JSON member "curriculum", and reads it from a checkpoint's state (absent: stays). */
void curriculum_save(const struct curriculum *c, struct str *out);
enum status curriculum_load(struct curriculum *c, const json_t *state, const char *where, struct err *e) MUST_USE;

/* The options of a step: those of the run with what its schedule says at this share of it. */
struct train_options schedule_at(const struct train_options *o, double progress);

#endif
