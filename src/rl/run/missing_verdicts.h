/* missing: answers without a verdict (class I), counted by problem over a run. An answer without one is left out of its
 * group, which is right where the machine failed, and a way out of punishment for who can bring it about: a problem
 * some of whose answers lack a verdict again and again, beside others of the same group that have theirs, is not
 * learned from in such a group. A pure function of the verdicts in the order of the steps, so a repetition of the run
 * drops the same groups. */
#ifndef KERNELRL_RL_RUN_MISSING_VERDICTS_H
#define KERNELRL_RL_RUN_MISSING_VERDICTS_H

#include "rl/run/metrics.h"

struct missing_problem { /* since the first of its answers lacked a verdict */
    char *key;
    int64_t answers, missing; /* missing: beside others of the group that have theirs */
    int64_t groups;           /* with such */
};
struct missing { /* zero at first */
    struct missing_problem *problem;
    int n, cap;
    /* of the last step */
    int64_t answers, without, dropped; /* dropped: groups */
};
/* From so many groups on, and above that share of a problem's answers, such groups are dropped. */
enum { MISSING_GROUPS = 3 };
extern const double missing_share;

/* Counts a step's answers, which have been scored, and takes the returns of the dropped groups away: their advantages
 * are 0. The first time that a problem comes to this a warning says so. */
void missing_count(struct missing *m, struct rollout *r);
/* Takes the counts of a step back that was not finished and will be made again. */
void missing_count_back(struct missing *m, const struct rollout *r);
/* missing/...: the share of the step's answers, groups dropped, and for each problem of the step that has lacked some
 * verdict its share so far. */
void missing_metrics(const struct missing *m, const struct rollout *r, struct metrics *l);
/* Tells the log the problems with the largest shares, at most five. Nothing where there are none. */
void missing_log(const struct missing *m);
/* DIR/missing.json of a checkpoint; none where nothing has been missing. Loading a checkpoint without one is fine. */
enum status missing_save(const struct missing *m, const char *dir, struct err *e) MUST_USE;
enum status missing_load(struct missing *m, const char *dir, struct err *e) MUST_USE;
void missing_free(struct missing *m);

#endif
