/* round: which rank computes which micro-batches of a round. Ranks wait for each other at its end. Internal to train.
 */
#ifndef KERNELRL_TRAIN_ROUND_H
#define KERNELRL_TRAIN_ROUND_H

#include <stdint.h>

enum { ROUND_WIDTH = 4 }; /* the most micro-batches that a rank has of a round: with more, ranks wait little for less */

/* owner[i]: the rank of the micro-batch of rows[i] rows, at most `width` a rank; n <= ranks * width. The largest that
 * is left goes to the rank that has the fewest rows (LPT, Graham 1969). With a width of 1 rank r has the r-th. The
 * numbers alone decide, so that all ranks find the same. */
void round_assign(const int64_t *rows, int n, int ranks, int width, int *owner);

#endif
