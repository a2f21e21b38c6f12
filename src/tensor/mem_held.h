/* mem_held: which blocks of a device's memory are held, how many bytes they have together and the most that were held
 * at a time. For backends, each of which counts its own; sizes are counted in whole units of 256 bytes. */
#ifndef KERNELRL_TENSOR_MEM_HELD_H
#define KERNELRL_TENSOR_MEM_HELD_H

#include <stdlib.h>

#include "base/base.h"

struct mem_block {
    const void *p;
    int64_t bytes;
};
struct mem_held {
    struct mem_block *block; /* [n]; freed by the owner */
    int64_t n, cap, bytes, peak;
};

static inline int64_t mem_held_size(int64_t bytes) { return (bytes + 255) & ~(int64_t)255; }

static inline void mem_held_add(struct mem_held *h, const void *p, int64_t bytes) {
    if (h->n == h->cap) {
        h->cap = 2 * h->cap + 64;
        h->block = xrealloc(h->block, (size_t)h->cap * sizeof *h->block);
    }
    h->block[h->n++] = (struct mem_block){p, mem_held_size(bytes)};
    h->bytes += mem_held_size(bytes);
    h->peak = i64_max(h->peak, h->bytes);
}

/* The youngest are found first. An address that is not held, NULL among them, changes nothing. */
static inline void mem_held_drop(struct mem_held *h, const void *p) {
    for (int64_t i = h->n - 1; p && i >= 0; i--) {
        if (h->block[i].p != p) continue;
        h->bytes -= h->block[i].bytes;
        h->block[i] = h->block[--h->n];
        return;
    }
}

#endif
