/* str: a growing byte string. It ends with a NUL once something was written to it. It owns its memory; str_free
 * releases it. */
#ifndef KERNELRL_STR_H
#define KERNELRL_STR_H

#include "base/base.h"

struct str {
    char *p;
    size_t len, cap;
};
#define STR_INIT ((struct str){0})
#define CLEANUP_STR __attribute__((cleanup(str_free)))

void str_add(struct str *s, const char *p, size_t n);
void str_adds(struct str *s, const char *cstr);
void str_addc(struct str *s, char c);
void str_addf(struct str *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
void str_reserve(struct str *s, size_t n); /* Makes room for n bytes more, and the zero behind them. */
void str_clear(struct str *s);             /* Keeps the memory. */
char *str_steal(struct str *s);            /* The caller frees it. It is never NULL. */
void str_free(struct str *s);
const char *str_c(const struct str *s); /* "" when empty */

bool str_has_prefix(const char *s, const char *prefix);
bool str_has_suffix(const char *s, const char *suffix);
/* Returns the first occurrence of needle in hay[0..n), or NULL. */
const char *mem_find(const char *hay, size_t n, const char *needle, size_t m);
/* How many characters of UTF-8 are in p[0..n): the bytes that continue none. */
int64_t utf8_chars(const char *p, size_t n);
/* How many edits (insert, delete, replace, swap of neighbours) lead from a to b: optimal string alignment. For strings
 * above 200 bytes it is 200. */
size_t str_edits(const char *a, const char *b);
/* For "did you mean": finds the candidate that is nearest to a name, if one is near. LIMIT starts as
 * str_near_limit(name), one more than a third of its length. A candidate with fewer edits lowers it, and is nearer than
 * all before. */
size_t str_near_limit(const char *name);
bool str_nearer(const char *name, const char *candidate, size_t *limit);
/* Returns the index of a name in a list "a|b" (or with another bar), or -1. A bar at the list's start is passed
 * over. */
int str_index_in(const char *list, const char *name, char bar);
/* These parse numbers. They accept the whole string or nothing. */
bool parse_i64(const char *s, int64_t *out);
bool parse_f64(const char *s, double *out);

#endif
