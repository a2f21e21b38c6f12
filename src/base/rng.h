/* rng: random numbers by counters. A value is a pure function of (seed, stream, counter), so a sample never depends on
 * its batch, its thread or the order of calls. Philox4x32-10 (Salmon et al., SC 2011). */
#ifndef KERNELRL_RNG_H
#define KERNELRL_RNG_H

#include "base/base.h"

/* The four 32-bit words of the block (seed, stream, counter). */
void rng_block(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);
uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
/* Uniform in [0,1) with 53 bits. */
double rng_f64(uint64_t seed, uint64_t stream, uint64_t counter);

/* A sequential view of one stream, for code that draws many values in a fixed order. */
struct rng {
    uint64_t seed, stream, counter;
};
struct rng rng_make(uint64_t seed, uint64_t stream);
uint64_t rng_next(struct rng *r);
double rng_next_f64(struct rng *r);
/* Uniform in [0,n), n >= 1, without modulo bias. */
uint64_t rng_below(struct rng *r, uint64_t n);
double rng_normal(struct rng *r); /* Mean 0, variance 1 (Box-Muller). */
/* Shuffles n items of the given size (Fisher-Yates). */
void rng_shuffle(struct rng *r, void *items, size_t n, size_t size);

#endif
