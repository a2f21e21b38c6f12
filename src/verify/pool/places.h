/* places: the slots of this machine, and the command lines of their workers. A slot is one GPU with its share of the
 * processors, or all processors, which workers lease from each other while they measure (host_lease.h). */
#ifndef KERNELRL_VERIFY_POOL_PLACES_H
#define KERNELRL_VERIFY_POOL_PLACES_H

#include "verify/pool/hardware.h"
#include "verify/pool/link.h"

struct worker_place {
    struct gpu_device gpu; /* uuid "": none */
    char cpus[120];        /* processors it is pinned to, "8-11,40"; "": all */
};
/* slots on processors or, where slots is 0, one on each of these GPUs (n_gpus 0: on all that are visible). The caller
 * frees *out. ST_DEVICE: a GPU is not there. */
enum status worker_places(int slots, const int *gpu, int n_gpus, struct worker_place **out, int *n,
                          struct err *e) MUST_USE;
/* Gives the link the command line of a worker in that place. program NULL: this one. name NULL: this machine's. extra:
 * further arguments, ended by NULL; NULL: none. */
void worker_command(struct line_link *l, const struct worker_place *p, const char *program, const char *name,
                    const char *const *extra);
/* Binds this process to the processors of such a text. False: it is none, or none of them may be used. */
bool worker_pin(const char *cpus);

#endif
