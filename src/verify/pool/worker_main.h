/* worker_main: the process behind `kernelrl verify-worker`, with the judge as an argument: a program of the tests has
 * the same process with a stand-in that judges nothing. */
#ifndef KERNELRL_VERIFY_POOL_WORKER_MAIN_H
#define KERNELRL_VERIFY_POOL_WORKER_MAIN_H

#include "verify/pool/hosts.h"
#include "verify/pool/worker.h"

struct worker_args {       /* the command's flags */
    int slots, gpu, ahead; /* gpu, ahead -1: not given */
    const char *gpus, *cpus, *name, *python, *cache_dir;
    const char *nats, *credentials, *secret; /* of a farm; NULL: none */
    bool allow_weaker, no_cache;
    double beat_s, probe_s, lease_s;
};
#define WORKER_ARGS_INIT \
    { .slots = 1, .gpu = -1, .ahead = -1, .beat_s = 2, .probe_s = 600, .lease_s = 30 }

/* One slot judges in this process; several are processes of their own, which this one feeds. with NULL: the verifier.
 * Returns the exit status. */
int worker_main(const struct worker_args *a, const struct worker_judge *with);

#endif
