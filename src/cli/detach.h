/* detach: a command goes on in the background, with its output in a file. */
#ifndef KERNELRL_DETACH_H
#define KERNELRL_DETACH_H

#include <sys/types.h>

#include "base/err.h"

/* Forks. In the child it returns ST_OK with *child 0: a session of its own, no terminal, standard output and error
 * appended to LOG_PATH. In the parent it returns once the child has been up for a while (*child is its id), or fails
 * with the last lines of the file when the child ended before. Call it before any thread is started. */
enum status cli_detach(const char *log_path, double wait_s, pid_t *child, struct err *e) MUST_USE;

#endif
