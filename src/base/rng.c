#include "base/rng.h"

#include <math.h>
#include <string.h>

void rng_block(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)stream,
             c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t w[4];
    rng_block(seed, stream, counter, w);
    return (uint64_t)w[0] << 32 | w[1];
}

double rng_f64(uint64_t seed, uint64_t stream, uint64_t counter) {
    return (double)(rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

struct rng rng_make(uint64_t seed, uint64_t stream) {
    return (struct rng){seed, stream, 0};
}

uint64_t rng_next(struct rng *r) { return rng_u64(r->seed, r->stream, r->counter++); }

double rng_next_f64(struct rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }

uint64_t rng_below(struct rng *r, uint64_t n) {
    ASSERT(n >= 1);
    /* The incomplete last interval is rejected. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    uint64_t v;
    do v = rng_next(r);
    while (v >= limit);
    return v % n;
}

double rng_normal(struct rng *r) {
    double u = 1.0 - rng_next_f64(r), v = rng_next_f64(r);
    return sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v);
}

void rng_shuffle(struct rng *r, void *items, size_t n, size_t size) {
    unsigned char *p = items, tmp[256];
    ASSERT(size <= sizeof tmp);
    for (size_t i = n; i > 1; i--) {
        size_t j = rng_below(r, i);
        memcpy(tmp, p + (i - 1) * size, size);
        memcpy(p + (i - 1) * size, p + j * size, size);
        memcpy(p + j * size, tmp, size);
    }
}
