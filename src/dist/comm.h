/* comm: the ranks of a run, and bytes between them. A rank is one process with one device. No call adds floats: what is
 * summed over ranks is summed by fold.h, in an order that the number of ranks does not change. "self" is a run of one
 * rank. May include tensor and base. Start here, then fold.h. */
#ifndef KERNELRL_DIST_COMM_H
#define KERNELRL_DIST_COMM_H

#include "base/err.h"

struct comm {
    int rank, size, local_rank; /* this one, of so many; its number on its machine */
    /* Every rank calls the next three at the same place in its work, with equal n. bcast: the n bytes of root's p are
     * in everybody's p. allgather: all [size, n] holds everybody's n bytes, by rank. max_i64: v[i] becomes the largest
     * of all ranks'. */
    enum status (*bcast)(struct comm *c, int root, void *p, size_t n, struct err *e);
    enum status (*allgather)(struct comm *c, const void *mine, size_t n, void *all, struct err *e);
    enum status (*max_i64)(struct comm *c, int64_t *v, int n, struct err *e);
    /* From one rank to another, which calls recv with the same n. ST_INVALID: there is no such other rank. */
    enum status (*send)(struct comm *c, int to, const void *p, size_t n, struct err *e);
    enum status (*recv)(struct comm *c, int from, void *p, size_t n, struct err *e);
    int64_t (*take)(struct comm *c); /* the next number of a counter that all ranks share, from 0 */
    void (*close)(struct comm *c);
    int64_t counter; /* of take() on one rank */
};

/* how: "self", or "auto", which is self where nothing has started several ranks. ST_UNSUPPORTED: another word. */
enum status comm_open(const char *how, struct comm **out, struct err *e) MUST_USE;
void comm_close(struct comm *c); /* NULL is fine */

/* All ranks end a piece of work with their own outcome: ST_OK on all of them, or a failure on all. A rank that
 * succeeded where another one failed gets that one's status and says so. */
enum status comm_agree(struct comm *c, enum status mine, struct err *e) MUST_USE;

#endif
