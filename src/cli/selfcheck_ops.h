/* ops: kernelrl selfcheck ops. */
#ifndef KERNELRL_SELFCHECK_OPS_H
#define KERNELRL_SELFCHECK_OPS_H

/* argv[0] is "ops". Returns the exit code: 0 when nothing failed, 1 when something did, 2 for usage. */
int selfcheck_ops(int argc, char **argv);

#endif
