/* base: the ground floor. It owns memory arenas, strings, errors, logging, hashing, random numbers, threads, files and
 * the clock. It may include nothing of the rest of the program. Start reading at err.h, then arena.h. */
#ifndef KERNELRL_BASE_H
#define KERNELRL_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KERNELRL_VERSION "0.3.0"

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define UNUSED __attribute__((unused))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Cleanup attributes: `CLEANUP_FREE char *p = ...` frees when the scope ends. */
void base_cleanup_free(void *pp);
void base_cleanup_fd(int *fd);
#define CLEANUP_FREE __attribute__((cleanup(base_cleanup_free)))
#define CLEANUP_FD __attribute__((cleanup(base_cleanup_fd)))

/* ASSERT states what a correct program can never violate. It stays in release builds. Input is never asserted. */
void assert_failed(const char *expr, const char *file, int line, const char *func) __attribute__((noreturn, cold));
#define ASSERT(x) ((x) ? (void)0 : assert_failed(#x, __FILE__, __LINE__, __func__))

static inline int64_t i64_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t i64_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Bytes [at, at + n) of a buffer. */
struct byte_span {
    size_t at, n;
};

/* A comparison for qsort: doubles, the smallest first. */
int ascending_f64(const void *a, const void *b);

/* Allocation that cannot fail quietly: it prints the size and aborts. For sizes that input controls, check a limit
 * first. */
void *xmalloc(size_t n) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull));
void *xrealloc(void *p, size_t n) __attribute__((returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *xstrndup(const char *s, size_t n) __attribute__((malloc, returns_nonnull));
/* Returns memory that is aligned to 64 bytes and zeroed. free() releases it. */
void *xaligned(size_t n) __attribute__((malloc, returns_nonnull));
/* How often the functions above have been called so far, in all threads. Tests of loops that must not allocate compare
 * it. */
uint64_t base_allocations(void);

#endif
