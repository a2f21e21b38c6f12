/* pool: one fixed set of threads. pool_for cuts [0,n) into contiguous ranges, one for each thread. This is a static
 * partition over outputs, never over a reduction, so 1 thread and N threads give equal bits. */
#ifndef KERNELRL_POOL_H
#define KERNELRL_POOL_H

#include "base/base.h"

struct pool;
struct pool *pool_create(int n_threads); /* n_threads <= 0: one for each CPU that this process may use. */
void pool_destroy(struct pool *p);       /* p may be NULL. */
int pool_threads(const struct pool *p);  /* 1 for NULL. */
int pool_cpu_count(void);                /* How many CPUs this process may use. */

/* Calls fn(ctx, begin, end, thread) for disjoint ranges that cover [0,n). The caller's thread takes part as thread 0,
 * and the call returns when all ranges are done. Ranges start at multiples of grain. It is not reentrant. With a NULL
 * pool it runs in the caller's thread. */
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, int thread);
void pool_for(struct pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx);

#endif
