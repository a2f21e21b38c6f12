/* comm: the ranks of a run, and bytes between them. A rank is one process with one device. No call adds floats: what is
 * summed over ranks is summed by fold.h, in an order that the number of ranks does not change. "self" is a run of one
 * rank. Several ranks speak through a plugin for the MPI that started them (mpi/plugin.c), so that the program builds
 * and runs where there is no MPI. May include tensor and base. Start here, then fold.h. */
#ifndef KERNELRL_DIST_COMM_H
#define KERNELRL_DIST_COMM_H

#include <stddef.h>

#include "base/err.h"

/* One thread of a rank makes all calls but abort(). An error is ST_LOST and means that a rank or the way to it is
 * lost: nothing but abort() and close() may follow. Calls wait without a limit; a peer that has gone silent ends the
 * job (comm_options.peer_timeout_s). */
struct comm {
    int rank, size, local_rank; /* this one, of so many; its number on its machine */
    const char *library;        /* "self", or what carries the bytes: "Open MPI 4.1.4" */
    /* Every rank calls the next four at the same place in its work. bcast: the n bytes of root's p are in everybody's
     * p. allgather: all [size, n] holds everybody's n bytes, by rank. exchange: out[r] of `from` goes to rank r, and
     * in[r] of `to` comes from it; both have `size` parts, of any length, and the two ends name the same one. max_i64:
     * v[i] becomes the largest of all ranks'. */
    enum status (*bcast)(struct comm *c, int root, void *p, size_t n, struct err *e);
    enum status (*allgather)(struct comm *c, const void *mine, size_t n, void *all, struct err *e);
    enum status (*exchange)(struct comm *c, const void *from, const struct byte_span *out, void *to,
                            const struct byte_span *in, struct err *e);
    enum status (*max_i64)(struct comm *c, int64_t *v, int n, struct err *e);
    /* From one rank to another, which calls recv with the same n. Messages of one rank arrive in their order.
     * ST_INVALID: there is no such other rank. send may return before the other side has called recv. */
    enum status (*send)(struct comm *c, int to, const void *p, size_t n, struct err *e);
    enum status (*recv)(struct comm *c, int from, void *p, size_t n, struct err *e);
    /* Whether a message waits that recv would take, from any rank; *from and *n say which. Does not wait. */
    enum status (*probe)(struct comm *c, bool *there, int *from, size_t *n, struct err *e);
    /* Ends the job on all ranks with this exit status, where the launcher lets it. Does not return. Any thread's. */
    void (*abort)(struct comm *c, int exit_status);
    /* Set by who has work that waits for other ranks beside these calls (ranks_join_devices), the context first:
     * whatever ends this process because a rank is lost calls it before, from any thread, so that nothing waits for
     * that rank. NULL: nothing does. */
    void (*_Atomic stop_waiting)(void *ctx);
    void *stop_waiting_ctx;
    void (*close)(struct comm *c);
};

enum { COMM_LOST_EXIT = 75 }; /* exit status of a job that lost a rank: started again it may succeed (EX_TEMPFAIL) */

struct comm_options {
    double
        peer_timeout_s; /* a rank that was not heard of for so long is lost: the job ends with COMM_LOST_EXIT. 0: 60 */
};

/* how: "self"; "auto", the ranks that a launcher (mpirun, srun) has started, or self where none has; "mpi", which also
 * takes a run of one rank to MPI. o may be NULL. Call it once in a process, after every child that will fork again (the
 * verifier) has been started. ST_UNSUPPORTED: another word. ST_CONFIG: "auto", and srun has started several processes
 * without an MPI. ST_DEVICE: there is no plugin for this launcher's MPI, or it cannot be loaded; the message says what
 * to do. */
enum status comm_open(const char *how, const struct comm_options *o, struct comm **out, struct err *e) MUST_USE;
void comm_close(struct comm *c); /* NULL is fine */

/* How many ranks a launcher has started, and which of them this is, before any plugin is loaded: one where there is no
 * launcher. */
struct comm_launch {
    int rank, size, local_rank, local_size; /* local: on this machine */
    const char *mpi;                        /* the ABI that it speaks, "openmpi" or "mpich"; NULL: no launcher */
};
struct comm_launch comm_launched(void);

/* All ranks end a piece of work with their own outcome: ST_OK on all of them, or a failure on all. The message of the
 * lowest rank that failed reaches the ranks that did not, with its rank and its machine. */
enum status comm_agree(struct comm *c, enum status mine, struct err *e) MUST_USE;

/* ---- for the plugin -----------------------------------------------------------------------------------------------*/

enum { COMM_PLUGIN_ABI = 2 };
#define COMM_PLUGIN_OPEN "kernelrl_mpi_open"
/* Returns 0, or another value with the reason in why. */
typedef int comm_plugin_open_fn(int abi, const struct comm_options *o, struct comm **out, char *why, size_t why_bytes);

#endif
