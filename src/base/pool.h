/* pool: one fixed set of threads. pool_for cuts [0,n) into contiguous ranges, one per thread: a static partition over
 * outputs, never over a reduction, so that 1 thread and N threads give equal bits. */
#ifndef KERNELRL_POOL_H
#define KERNELRL_POOL_H

#include "base/base.h"

struct pool;
struct pool *pool_create(int n_threads); /* n_threads <= 0: one per CPU this process may use */
void pool_destroy(struct pool *p);       /* NULL is fine */
int pool_threads(const struct pool *p);  /* 1 for NULL */
int pool_cpu_count(void);                /* CPUs this process may use */

/* Calls fn(ctx, begin, end, thread) for disjoint ranges that cover [0,n). The caller's thread takes part (thread 0) and
 * the call returns when all ranges are done. Ranges start at multiples of grain. Not reentrant. NULL pool: runs inline.
 */
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, int thread);
void pool_for(struct pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx);

#endif
