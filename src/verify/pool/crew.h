/* crew: the workers of one host, one process a slot, behind one stream of lines. A slot whose process dies gets a new
 * one; a job that was being judged there is told lost, one that only waited goes to another slot. The parent of a crew
 * may talk to a network, because the verifier and the secret of a run are in the children alone. */
#ifndef KERNELRL_VERIFY_POOL_CREW_H
#define KERNELRL_VERIFY_POOL_CREW_H

#include <poll.h>

#include "verify/pool/hardware.h"
#include "verify/pool/hosts.h"
#include "verify/pool/protocol.h"

enum { CREW_EXTRA_ARGS = 12 };

struct crew_options {
    const char *program;               /* of the workers; NULL: this one */
    const char *args[CREW_EXTRA_ARGS]; /* further arguments of each, ended by NULL */
    const char *name;                  /* of the host; NULL: this machine's */
    int slots;                         /* on processors; 0: one a GPU */
    const int *gpu;                    /* numbers of GPUs as the driver counts; n_gpus 0: all that are visible */
    int n_gpus;
    double lease_s; /* a worker that is silent for so long is ended */
};
struct crew;
/* A line of a worker that is meant for whoever gave the jobs, with what it says. */
typedef void crew_up_fn(void *ctx, const struct pool_message *m, const char *line, size_t n);

/* Starts the workers. ST_DEVICE: there is no such GPU. */
enum status crew_start(const struct crew_options *o, crew_up_fn *up, void *ctx, struct crew **out,
                       struct err *e) MUST_USE;
void crew_close(struct crew *c); /* ends the workers; NULL is fine */

/* A line `open`: all workers get it, also those that start later. */
void crew_terms(struct crew *c, const struct pool_message *m, const char *line, size_t n);
/* A line `job`. */
void crew_job(struct crew *c, const struct pool_message *m, const char *line, size_t n);
/* A line `cancel`. */
void crew_cancel(struct crew *c, const struct pool_message *m, const char *line, size_t n);
/* No more jobs: what is begun comes to its end. */
void crew_drain(struct crew *c, const char *why);

/* Waits at most so many seconds for workers and for `extra` descriptors, and does what is to be done. */
void crew_step(struct crew *c, struct pollfd *extra, int n_extra, double seconds);

int crew_slots(const struct crew *c); /* that can be used, at this time */
int crew_jobs(const struct crew *c);  /* at hand */
/* Whether who has a job at hand there gives signs of life; false, too, where nobody has it. */
bool crew_cares(const struct crew *c, const char *j);
int crew_ahead(const struct crew *c);      /* jobs that may wait at each slot */
int crew_free(const struct crew *c);       /* jobs that slots could begin at once */
bool crew_has_ended(const struct crew *c); /* behind a drain */
double crew_probe(const struct crew *c);   /* the latest null probe furthest from 1; NaN: none */
/* Classes and name of the host; NULL before the first worker has said who it is. */
const struct pool_message *crew_hello(const struct crew *c);

#endif
