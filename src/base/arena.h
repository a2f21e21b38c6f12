/* Arena: memory that dies together. There is one arena for each lifetime (a file, a request, an episode, a step).
 * Nothing in it is freed alone. Blocks grow by doubling. arena_reset keeps the blocks, so a loop that resets stops
 * allocating. */
#ifndef KERNELRL_ARENA_H
#define KERNELRL_ARENA_H

#include "base/base.h"

struct arena_block;
struct arena {
    struct arena_block *head; /* The current block. */
    size_t block_bytes;       /* The size of the next new block. */
};

#define ARENA_INIT ((struct arena){0})

/* Returns memory that is aligned to 16 bytes and zeroed. */
void *arena_alloc(struct arena *a, size_t n) __attribute__((returns_nonnull));
#define arena_new(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define arena_array(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))
char *arena_strndup(struct arena *a, const char *s, size_t n) __attribute__((returns_nonnull));
char *arena_strdup(struct arena *a, const char *s) __attribute__((returns_nonnull));
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3) __attribute__((returns_nonnull));
void arena_reset(struct arena *a);
void arena_free(struct arena *a);
size_t arena_bytes(const struct arena *a); /* How many bytes it holds from the system. */

#endif
