/* blocks: who holds which block of the KV cache. Bookkeeping on the host alone, it knows no device and no layout.
 *
 * A block is held by any number of sequences (a shared prefix) or by none. A full block may be published under its
 * tokens and everything in front of them; it stays findable after its last holder dropped it, until its memory is
 * needed: blocks nobody holds are taken in the order in which they were dropped, those without content first.
 *
 * A find compares all tokens: the block's own one by one, and those in front through the unique number that every
 * publication gets, so a hit is never another prefix of equal hash. Since whoever holds a block holds those in front of
 * it and drops them last, a prefix is never taken from under a block that continues it. */
#ifndef KERNELRL_BLOCKS_H
#define KERNELRL_BLOCKS_H

#include "tensor/ops.h"

struct block {
    int32_t refs;
    int32_t prev, next; /* in the list of blocks nobody holds; -1 at its ends */
    int32_t chain;      /* next in its hash bucket */
    bool published;
    uint64_t hash;
    uint64_t number, parent; /* of this publication and of the one in front of it */
    int32_t ids[KV_BLOCK];   /* tokens, as many as the holder has written */
};
struct block_pool {
    struct block *block; /* [n] */
    int32_t n, n_unheld;
    int32_t first, last; /* of the list: the next to be taken, and the last dropped */
    int32_t *bucket;     /* [mask+1] */
    uint32_t mask;
    uint64_t numbers; /* given so far */
};

void blocks_init(struct block_pool *p, int32_t n);
void blocks_free(struct block_pool *p);
/* Takes a block nobody holds, content lost, and holds it once; -1 when there is none. */
int32_t blocks_take(struct block_pool *p);
void blocks_hold(struct block_pool *p, int32_t b);
void blocks_drop(struct block_pool *p, int32_t b);
/* Publishes block b, whose KV_BLOCK tokens are in ids, behind the published block `parent`; a negative number names one
 * of many beginnings, and what is behind one is never found behind another. Returns b, or the block that was published
 * with the same content before: the caller had better hold that one. */
int32_t blocks_publish(struct block_pool *p, int32_t b, int32_t parent);
/* The block with these KV_BLOCK tokens behind parent (negative: a beginning), or -1. Holds nothing. */
int32_t blocks_find(const struct block_pool *p, int32_t parent, const int32_t *ids);
/* Nothing is findable any more. Blocks stay held as they are, but must not become anybody's parent. */
void blocks_forget(struct block_pool *p);
/* Checks every invariant (asserts); for tests. */
void blocks_check(const struct block_pool *p);

#endif
