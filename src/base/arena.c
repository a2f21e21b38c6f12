#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arena_block {
    struct arena_block *next; /* An older, full block. */
    size_t cap, used;
    _Alignas(16) unsigned char data[];
};

static void block_push(struct arena *a, size_t need) {
    size_t cap = a->block_bytes ? a->block_bytes : 4096;
    while (cap < need) cap *= 2;
    a->block_bytes = cap < (64u << 20) ? cap * 2 : cap;
    struct arena_block *b = xmalloc(sizeof *b + cap);
    b->next = a->head;
    b->cap = cap;
    b->used = 0;
    a->head = b;
}

void *arena_alloc(struct arena *a, size_t n) {
    ASSERT(n < ((size_t)1 << 40));
    n = (n + 15) & ~(size_t)15;
    if (!a->head || a->head->cap - a->head->used < n) block_push(a, n);
    void *p = a->head->data + a->head->used;
    a->head->used += n;
    memset(p, 0, n);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    char *d = arena_alloc(a, n + 1);
    memcpy(d, s, n);
    return d;
}

char *arena_strdup(struct arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }

char *arena_printf(struct arena *a, const char *fmt, ...) {
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    ASSERT(n >= 0);
    char *d = arena_alloc(a, (size_t)n + 1);
    vsnprintf(d, (size_t)n + 1, fmt, ap2);
    va_end(ap);
    va_end(ap2);
    return d;
}

/* Keeps only the newest (largest) block. */
void arena_reset(struct arena *a) {
    if (!a->head) return;
    struct arena_block *old = a->head->next;
    while (old) {
        struct arena_block *next = old->next;
        free(old);
        old = next;
    }
    a->head->next = NULL;
    a->head->used = 0;
}

void arena_free(struct arena *a) {
    arena_reset(a);
    free(a->head);
    *a = ARENA_INIT;
}

size_t arena_bytes(const struct arena *a) {
    size_t n = 0;
    for (const struct arena_block *b = a->head; b; b = b->next) n += b->cap;
    return n;
}
