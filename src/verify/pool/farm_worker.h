/* farm_worker: a host of a farm: a crew that is fed from a queue. This process holds the key that takes jobs of its
 * class and posts verdicts; the verifiers are its children and know nothing of the queue. */
#ifndef KERNELRL_VERIFY_POOL_FARM_WORKER_H
#define KERNELRL_VERIFY_POOL_FARM_WORKER_H

#include "verify/pool/crew.h"

struct farm_worker_options {
    const char *url, *folder; /* of the server; of credentials, NULL: none */
    struct crew_options crew;
    bool cache; /* verdicts of other hosts are looked up, and own ones are kept for them */
};
/* Serves until it is told to end (SIGTERM), which it does within 30 s. Returns the exit status. */
int farm_worker_run(const struct farm_worker_options *o);

#endif
