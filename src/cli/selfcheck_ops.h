/* ops: kernelrl selfcheck ops. */
#ifndef KERNELRL_SELFCHECK_OPS_H
#define KERNELRL_SELFCHECK_OPS_H

#include "base/args.h"

/* argv[0] is "ops". Returns the exit code: 0 when nothing failed, 1 when something did, 2 for usage. */
extern const struct args_command ops_command;
int selfcheck_ops(int argc, char **argv);

#endif
