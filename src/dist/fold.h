/* fold: the sum of gradients over micro-batches. A leaf is the gradient of one micro-batch, begun at zero. The sum is
 * ((0 + leaf 0) + leaf 1) + ..., in the order of the batch, each addition rounded once in float32. So it depends on the
 * leaves and their order alone, and whoever computes a leaf, on whichever rank, the bits of the sum are the same. */
#ifndef KERNELRL_DIST_FOLD_H
#define KERNELRL_DIST_FOLD_H

#include "dist/comm.h"

struct backend; /* tensor/backend.h */

struct fold;
/* A sum of n floats, in the backend's memory; both are borrowed. ST_MEMORY: it does not fit. */
enum status fold_open(struct comm *c, struct backend *be, int64_t n, struct fold **out, struct err *e) MUST_USE;
void fold_close(struct fold *f); /* NULL is fine */

void fold_begin(struct fold *f); /* the sum is 0 */
/* Adds the next leaf, n floats of the backend's memory. Queued: a device's error surfaces at its next sync. */
void fold_add(struct fold *f, const float *leaf);
/* The sum so far, n floats, for who moves it elsewhere and back. */
float *fold_sum(struct fold *f);
/* Copies the sum to n floats of the backend's memory. Queued likewise. */
void fold_end(struct fold *f, float *sum);

#endif
