/* fold: the sum of gradients over micro-batches. A leaf is the gradient of one micro-batch, begun at zero. The sum is
 * ((0 + leaf 0) + leaf 1) + ..., in the order of the batch, each addition rounded once in float32. So it depends on the
 * leaves and their order alone, and whoever computes a leaf, on whichever rank, the bits of the sum are the same.
 * Several ranks add some leaves at a time, each of another rank. Each rank owns a slice of the sum, is sent that slice
 * of every leaf, and adds them in the order of the leaves. */
#ifndef KERNELRL_DIST_FOLD_H
#define KERNELRL_DIST_FOLD_H

#include "dist/comm.h"

struct backend; /* tensor/backend.h */

struct fold;
/* A sum of n floats, in the backend's memory; both are borrowed. ST_MEMORY: it does not fit. */
enum status fold_open(struct comm *c, struct backend *be, int64_t n, struct fold **out, struct err *e) MUST_USE;
void fold_close(struct fold *f); /* NULL is fine */

void fold_begin(struct fold *f); /* the sum is 0 */
/* Adds the next `leaves` leaves: the i-th is that of rank owner[i], and no rank has two. leaf: this rank's, n floats of
 * the backend's memory; NULL where it has none of them. Every rank calls it. On one rank it is queued: a device's error
 * surfaces at its next sync. Where the device of one of several ranks fails, that rank alone is told, here and in the
 * calls below, and the others have floats that are none: before anybody uses a sum, all agree (comm_agree). */
enum status fold_add(struct fold *f, const float *leaf, const int *owner, int leaves, struct err *e) MUST_USE;
/* On one rank: the sum so far, n floats, for who moves it elsewhere and back. */
float *fold_sum(struct fold *f);
/* Copies the sum to n floats of the backend's memory, on all ranks. Queued likewise. */
enum status fold_end(struct fold *f, float *sum, struct err *e) MUST_USE;
/* As fold_end, with floats of the caller's: each rank gives those of its slice, and all get all of them. */
enum status fold_gather(struct fold *f, const float *slice, float *whole, struct err *e) MUST_USE;
/* The slice that rank owns: floats [*at, *at + *count) of the n. */
void fold_slice(const struct fold *f, int rank, int64_t *at, int64_t *count);

#endif
