/* Arena: memory that dies together. One arena per lifetime (a file, a request, an episode, a step); nothing in it is
 * freed alone. Blocks grow by doubling; arena_reset keeps the blocks, so a loop that resets stops allocating. */
#ifndef KERNELRL_ARENA_H
#define KERNELRL_ARENA_H

#include "base/base.h"

struct arena_block;
struct arena {
    struct arena_block *head; /* current block */
    size_t block_bytes;       /* size of the next new block */
};

#define ARENA_INIT ((struct arena){0})

/* 16-byte aligned, zeroed. */
void *arena_alloc(struct arena *a, size_t n) __attribute__((returns_nonnull));
#define arena_new(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define arena_array(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))
char *arena_strndup(struct arena *a, const char *s, size_t n) __attribute__((returns_nonnull));
char *arena_strdup(struct arena *a, const char *s) __attribute__((returns_nonnull));
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3) __attribute__((returns_nonnull));
void arena_reset(struct arena *a);
void arena_free(struct arena *a);
size_t arena_bytes(const struct arena *a); /* bytes held from the system */

#endif
