/* relay: a pool's way to a queue: a process of its own that speaks in lines with the pool, as a worker does, and with
 * the server. What it is told it keeps until it has a verdict, so that a server that has lost everything gets it again.
 */
#ifndef KERNELRL_VERIFY_POOL_RELAY_H
#define KERNELRL_VERIFY_POOL_RELAY_H

#include "base/base.h"

struct relay_options {
    const char *url, *folder; /* of the server; of credentials, NULL: none */
    const char *family; /* "cuda", "cpu": the first host of that kind decides the class; NULL: the pool knows it */
    double lease_s, beat_s;
    int in, out;
};
/* Serves until its input ends. Returns the exit status. */
int relay_run(const struct relay_options *o);

#endif
