/* supervise: a command that is started again when it loses a process, alone or as the ranks of an MPI job. */
#ifndef KERNELRL_CLI_SUPERVISE_H
#define KERNELRL_CLI_SUPERVISE_H

#include "base/err.h"

/* Runs this program with the arguments (argv[0] is the command's name; NULL behind the last one), ranks > 1: as so many
 * ranks by mpirun. When it ends because a process was lost (COMM_LOST_EXIT, a signal, or what a launcher makes of one)
 * it is run again, up to `restarts` times. *exit_status: how it ended in the end, COMM_LOST_EXIT where the last loss
 * was one too many. ST_USAGE: there is no mpirun. */
enum status cli_supervise(char **argv, int ranks, int64_t restarts, int *exit_status, struct err *e) MUST_USE;

#endif
