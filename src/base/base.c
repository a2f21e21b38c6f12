#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void base_cleanup_free(void *pp) { free(*(void **)pp); }

void base_cleanup_fd(int *fd) {
    if (*fd >= 0) close(*fd);
}

void assert_failed(const char *expr, const char *file, int line, const char *func) {
    fprintf(stderr, "%s:%d: %s: assertion failed: %s\n", file, line, func, expr);
    abort();
}

static void out_of_memory(size_t n) {
    fprintf(stderr, "kernelrl: out of memory (asked for %zu bytes)\n", n);
    abort();
}

static _Atomic uint64_t allocations;

static void count(void) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); }

uint64_t base_allocations(void) { return atomic_load_explicit(&allocations, memory_order_relaxed); }

void *xmalloc(size_t n) {
    count();
    void *p = malloc(n ? n : 1);
    if (!p) out_of_memory(n);
    return p;
}

void *xcalloc(size_t n, size_t size) {
    count();
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p) out_of_memory(n * size);
    return p;
}

void *xrealloc(void *p, size_t n) {
    count();
    void *q = realloc(p, n ? n : 1);
    if (!q) out_of_memory(n);
    return q;
}

char *xstrndup(const char *s, size_t n) {
    char *d = xmalloc(n + 1);
    memcpy(d, s, n);
    d[n] = 0;
    return d;
}

char *xstrdup(const char *s) { return xstrndup(s, strlen(s)); }

void *xaligned(size_t n) {
    count();
    size_t rounded = (n + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, rounded ? rounded : 64);
    if (!p) out_of_memory(n);
    memset(p, 0, rounded ? rounded : 64);
    return p;
}

int ascending_f64(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
