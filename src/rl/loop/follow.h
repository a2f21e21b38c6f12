/* follow: a training run on the ranks other than 0, which hold the model, sample and train with rank 0 (ranks/ranks.h),
 * and know neither problems nor verdicts nor the run directory. */
#ifndef KERNELRL_RL_LOOP_FOLLOW_H
#define KERNELRL_RL_LOOP_FOLLOW_H

#include "ranks/ranks.h"
#include "rl/learn/session.h"
#include "rl/options/options.h"

/* Opens the ranks as the keys `ranks` and `peer_timeout` say, compares them with each other, and lets their devices
 * reach each other; resolved_yaml is the configuration. */
enum status follow_open(const char *ranks, double peer_timeout, const char *resolved_yaml, struct backend *be,
                        struct comm **out, struct err *e) MUST_USE;
/* On a rank other than 0: the launcher hands signals to all ranks, and rank 0 decides what they mean. */
void follow_ignore_signals(void);
/* The end of a run with this status on rank 0: the other ranks, which wait for commands, end too. Where a rank is lost
 * (ST_LOST), or cannot be told, this does not return: the job ends with COMM_LOST_EXIT. */
void follow_dismiss(struct comm *c, enum status st);
/* The whole run of `train` on a rank other than 0. */
enum status follow_run(const struct train_options *o, const char *resolved_yaml, struct err *e) MUST_USE;

#endif
