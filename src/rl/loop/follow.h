/* follow: a training run on the ranks other than 0, which hold the model, sample and train with rank 0 (ranks/ranks.h),
 * and know neither problems nor verdicts nor the run directory. */
#ifndef KERNELRL_RL_LOOP_FOLLOW_H
#define KERNELRL_RL_LOOP_FOLLOW_H

#include "ranks/ranks.h"
#include "rl/learn/session.h"
#include "rl/options/options.h"

/* Opens the ranks as the keys say, compares them with each other, and lets their devices reach each other;
 * resolved_yaml is the configuration. */
enum status follow_open(const struct train_options *o, const char *resolved_yaml, struct backend *be, struct comm **out,
                        struct err *e) MUST_USE;
/* The whole run of a rank other than 0. */
enum status follow_run(const struct train_options *o, const char *resolved_yaml, struct err *e) MUST_USE;

#endif
