/* watch: a run's curves in the terminal. */
#ifndef KERNELRL_RL_RUN_WATCH_H
#define KERNELRL_RL_RUN_WATCH_H

#include "base/err.h"

/* Draws the run in DIR every interval_s seconds until it ends or *cancel; once: a single time. On a terminal each
 * picture takes the place of the one before. */
enum status watch_run(const char *dir, double interval_s, bool once, const volatile bool *cancel,
                      struct err *e) MUST_USE;

#endif
