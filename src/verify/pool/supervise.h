/* supervise: a worker of several slots: one stream of lines in front of a crew. */
#ifndef KERNELRL_VERIFY_POOL_SUPERVISE_H
#define KERNELRL_VERIFY_POOL_SUPERVISE_H

#include "verify/pool/crew.h"

/* Serves lines from `in` to `out` until the input ends or the crew has drained. Returns the exit status: 0 behind a
 * drain. */
int supervise_run(const struct crew_options *o, int in, int out, double beat_s);

#endif
