#include "model/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

void blocks_init(struct block_pool *p, int32_t n) {
    uint32_t buckets = 16;
    while (buckets < 2 * (uint32_t)n && buckets < UINT32_C(1) << 30) buckets *= 2;
    *p = (struct block_pool){.n = n, .n_unheld = n, .first = n ? 0 : -1, .last = n - 1, .mask = buckets - 1};
    p->block = xcalloc((size_t)n + 1, sizeof *p->block);
    p->bucket = xmalloc(buckets * sizeof *p->bucket);
    for (uint32_t i = 0; i < buckets; i++) p->bucket[i] = -1;
    for (int32_t i = 0; i < n; i++) {
        p->block[i].prev = i - 1;
        p->block[i].next = i + 1 < n ? i + 1 : -1;
    }
}

void blocks_free(struct block_pool *p) {
    free(p->block);
    free(p->bucket);
    *p = (struct block_pool){0};
}

/* ---- the list of blocks nobody holds ------------------------------------------------------------------------------*/

static void unlink_unheld(struct block_pool *p, int32_t b) {
    const struct block *x = &p->block[b];
    if (x->prev >= 0)
        p->block[x->prev].next = x->next;
    else
        p->first = x->next;
    if (x->next >= 0)
        p->block[x->next].prev = x->prev;
    else
        p->last = x->prev;
    p->n_unheld--;
}

static void link_unheld(struct block_pool *p, int32_t b, bool at_end) {
    struct block *x = &p->block[b];
    x->prev = at_end ? p->last : -1;
    x->next = at_end ? -1 : p->first;
    if (x->prev >= 0)
        p->block[x->prev].next = b;
    else
        p->first = b;
    if (x->next >= 0)
        p->block[x->next].prev = b;
    else
        p->last = b;
    p->n_unheld++;
}

/* ---- content ------------------------------------------------------------------------------------------------------*/

static uint64_t hash_of(uint64_t parent, const int32_t *ids) { return hash_bytes(ids, KV_BLOCK * sizeof *ids, parent); }

static void unpublish(struct block_pool *p, int32_t b) {
    struct block *x = &p->block[b];
    if (!x->published) return;
    int32_t *at = &p->bucket[x->hash & p->mask];
    while (*at != b) at = &p->block[*at].chain;
    *at = x->chain;
    x->published = false;
}

/* Publications count from 1; beginnings -1, -2, ... are 0 and downwards from the largest number. */
static uint64_t number_of(const struct block_pool *p, int32_t parent) {
    if (parent < 0) return (uint64_t)((int64_t)parent + 1);
    ASSERT(p->block[parent].published);
    return p->block[parent].number;
}

int32_t blocks_find(const struct block_pool *p, int32_t parent, const int32_t *ids) {
    const uint64_t number = number_of(p, parent), hash = hash_of(number, ids);
    for (int32_t b = p->bucket[hash & p->mask]; b >= 0; b = p->block[b].chain) {
        const struct block *x = &p->block[b];
        if (x->hash == hash && x->parent == number && memcmp(x->ids, ids, sizeof x->ids) == 0) return b;
    }
    return -1;
}

int32_t blocks_publish(struct block_pool *p, int32_t b, int32_t parent) {
    struct block *x = &p->block[b];
    ASSERT(x->refs > 0 && !x->published);
    const int32_t known = blocks_find(p, parent, x->ids);
    if (known >= 0) return known;
    x->parent = number_of(p, parent);
    x->hash = hash_of(x->parent, x->ids);
    x->number = ++p->numbers;
    x->published = true;
    x->chain = p->bucket[x->hash & p->mask];
    p->bucket[x->hash & p->mask] = b;
    return b;
}

void blocks_forget(struct block_pool *p) {
    for (int32_t b = 0; b < p->n; b++) unpublish(p, b);
}

/* ---- holding ------------------------------------------------------------------------------------------------------*/

int32_t blocks_take(struct block_pool *p) {
    const int32_t b = p->first;
    if (b < 0) return -1;
    unlink_unheld(p, b);
    unpublish(p, b);
    p->block[b].refs = 1;
    return b;
}

void blocks_hold(struct block_pool *p, int32_t b) {
    if (p->block[b].refs == 0) unlink_unheld(p, b);
    p->block[b].refs++;
}

void blocks_drop(struct block_pool *p, int32_t b) {
    struct block *x = &p->block[b];
    ASSERT(x->refs > 0);
    if (--x->refs == 0) link_unheld(p, b, x->published);
}

void blocks_check(const struct block_pool *p) {
    int32_t unheld = 0, prev = -1, published = 0, chained = 0;
    for (int32_t b = p->first; b >= 0; prev = b, b = p->block[b].next, unheld++) {
        ASSERT(p->block[b].refs == 0 && p->block[b].prev == prev && unheld < p->n);
    }
    ASSERT(prev == p->last && unheld == p->n_unheld);
    for (int32_t b = 0; b < p->n; b++) {
        ASSERT(p->block[b].refs >= 0);
        unheld -= p->block[b].refs == 0;
        published += p->block[b].published;
    }
    ASSERT(unheld == 0);
    for (uint32_t i = 0; i <= p->mask; i++)
        for (int32_t b = p->bucket[i]; b >= 0; b = p->block[b].chain, chained++)
            ASSERT(p->block[b].published && (p->block[b].hash & p->mask) == i && chained < p->n);
    ASSERT(chained == published);
}
