/* bandwidth: how fast memory can be read on this machine. Measurements are compared with this limit. */
#ifndef KERNELRL_BANDWIDTH_H
#define KERNELRL_BANDWIDTH_H

#include "base/pool.h"

/* Returns the bytes a second at which all threads read n bytes of host memory at p (aligned to 64 bytes): the best of
 * as many times as fit into `seconds`, at least three. */
double bandwidth_read(struct pool *pool, const void *p, int64_t n, double seconds);
/* Fills n bytes (a multiple of 8) at p with contents to measure on. They are never zeros. */
void bandwidth_fill(void *p, int64_t n);

#endif
