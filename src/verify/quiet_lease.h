/* lease: one machine for the model and the verifier. The model works while nobody needs quiet and looks up at its step
 * borders; who measures times waits for such a border and has the cores to itself until it is done. */
#ifndef KERNELRL_VERIFY_QUIET_LEASE_H
#define KERNELRL_VERIFY_QUIET_LEASE_H

#include "base/err.h"

struct lease;
struct lease *lease_create(void);
/* The same with the processes of a machine (host_lease.h): the model shares its lease "cpu" while it works, and stands
 * aside for verifier workers, which measure in processes of their own. ST_IO. */
enum status lease_create_on_host(struct lease **out, struct err *e) MUST_USE;
void lease_free(struct lease *l); /* NULL is fine */
/* The model's side. begin waits until it is not quiet any more; yield stands aside while quiet is wanted. NULL: nothing
 * is shared. */
void lease_begin(struct lease *l);
void lease_yield(struct lease *l);
void lease_end(struct lease *l);
/* The side of a verifier in this process (verify_options.quiet): waits for the border, or gives the machine back. ctx
 * is the lease. */
void lease_quiet(void *ctx, bool on);
/* Seconds the model stood aside for. */
double lease_quiet_s(struct lease *l);

#endif
