/* bandwidth: how fast memory can be read here, the limit that measurements are compared with. */
#ifndef KERNELRL_BANDWIDTH_H
#define KERNELRL_BANDWIDTH_H

#include "base/pool.h"

/* Bytes a second at which all threads read n bytes of host memory at p (64-byte aligned): the best of what fits into
 * `seconds`, three times at least. */
double bandwidth_read(struct pool *pool, const void *p, int64_t n, double seconds);
/* Contents to time on, never zeros: n bytes (a multiple of 8) at p. */
void bandwidth_fill(void *p, int64_t n);

#endif
