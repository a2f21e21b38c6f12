/* host_lease: one machine, or one GPU, for all processes of kernelrl that work on it. A lease is a lock on a file,
 * which the kernel takes away when its process ends, however it ends. Many may share a lease while they compile and
 * test; who measures times has it alone. Who wants it alone goes in front of those who come later to share it. */
#ifndef KERNELRL_VERIFY_HOST_LEASE_H
#define KERNELRL_VERIFY_HOST_LEASE_H

#include "base/err.h"

struct host_lease {
    int gate, room; /* descriptors */
    char path[200]; /* of the room; the gate has ".gate" behind it */
};
#define HOST_LEASE_NONE ((struct host_lease){.gate = -1, .room = -1})

/* Opens the files of NAME ("cpu", "gpu-UUID") in KERNELRL_LEASE_DIR, else /run/lock, else /tmp; nothing is locked yet.
 * Processes in containers of one machine need a folder that they share. ST_IO. */
enum status host_lease_open(const char *name, struct host_lease *out, struct err *e) MUST_USE;
void host_lease_close(struct host_lease *l);

/* Waits at most so many seconds (a negative number: for ever). False: somebody else has it still. What the caller held
 * before is given up first. */
bool host_lease_share(struct host_lease *l, double seconds) MUST_USE;
bool host_lease_take(struct host_lease *l, double seconds) MUST_USE; /* alone */
void host_lease_release(struct host_lease *l);
/* True: somebody waits to have it alone. For who shares it and can stand aside. */
bool host_lease_wanted(const struct host_lease *l);

#endif
