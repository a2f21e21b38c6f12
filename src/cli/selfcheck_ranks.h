/* ranks: kernelrl selfcheck ranks. */
#ifndef KERNELRL_SELFCHECK_RANKS_H
#define KERNELRL_SELFCHECK_RANKS_H

#include "base/args.h"

/* argv[0] is "ranks". Returns the exit code: 0 when all ranks are alike and compute the same bits, 1 when not, 2 for
 * usage. */
extern const struct args_command ranks_command;
int selfcheck_ranks(int argc, char **argv);

#endif
