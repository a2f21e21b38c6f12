/* lease: one machine for the model and the verifier. The model works while nobody needs quiet and looks up at its step
 * borders; who measures times waits for such a border and has the cores to itself until it is done. */
#ifndef KERNELRL_VERIFY_QUIET_LEASE_H
#define KERNELRL_VERIFY_QUIET_LEASE_H

#include "base/base.h"

struct lease;
struct lease *lease_create(void);
void lease_free(struct lease *l); /* NULL is fine */
/* The model's side. begin waits until it is not quiet any more; yield stands aside while quiet is wanted. NULL: nothing
 * is shared. */
void lease_begin(struct lease *l);
void lease_yield(struct lease *l);
void lease_end(struct lease *l);
/* The verifier's side (verify_options.quiet): waits for the border, or gives the machine back. ctx is the lease. */
void lease_quiet(void *ctx, bool on);
/* Seconds the model stood aside for. */
double lease_quiet_s(struct lease *l);

#endif
