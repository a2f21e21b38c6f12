/* loop: reinforcement learning from problems to a better model. */
#ifndef KERNELRL_RL_LOOP_LOOP_H
#define KERNELRL_RL_LOOP_LOOP_H

#include "rl/options/options.h"

/* Trains as the options say, in o->log_path; resumes when that directory holds checkpoints. cancel (may be NULL) is
 * polled; a cancelled run drops the step it is in, saves a checkpoint and returns ST_CANCELLED. */
enum status train_run(const struct train_options *o, const char *resolved_yaml, const volatile bool *cancel,
                      struct err *e) MUST_USE;

#endif
