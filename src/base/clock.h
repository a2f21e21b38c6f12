/* clock: monotonic time. */
#ifndef KERNELRL_CLOCK_H
#define KERNELRL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline double clock_now_s(void) { return (double)clock_now_ns() * 1e-9; }
/* For less than a second. */
static inline void clock_nap(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

#endif
