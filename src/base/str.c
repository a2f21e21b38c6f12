#include "base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void str_reserve(struct str *s, size_t extra) {
    if (s->len + extra + 1 <= s->cap) return;
    size_t cap = s->cap ? s->cap * 2 : 64;
    while (cap < s->len + extra + 1) cap *= 2;
    s->p = xrealloc(s->p, cap);
    s->cap = cap;
}

void str_add(struct str *s, const char *p, size_t n) {
    str_reserve(s, n);
    if (n) memcpy(s->p + s->len, p, n);
    s->len += n;
    s->p[s->len] = 0;
}

void str_adds(struct str *s, const char *cstr) { str_add(s, cstr, strlen(cstr)); }

void str_addc(struct str *s, char c) { str_add(s, &c, 1); }

void str_addf(struct str *s, const char *fmt, ...) {
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    ASSERT(n >= 0);
    str_reserve(s, (size_t)n);
    vsnprintf(s->p + s->len, (size_t)n + 1, fmt, ap2);
    s->len += (size_t)n;
    va_end(ap);
    va_end(ap2);
}

void str_clear(struct str *s) {
    s->len = 0;
    if (s->p) s->p[0] = 0;
}

char *str_steal(struct str *s) {
    char *p = s->p ? s->p : xstrdup("");
    *s = STR_INIT;
    return p;
}

void str_free(struct str *s) {
    free(s->p);
    *s = STR_INIT;
}

const char *str_c(const struct str *s) { return s->p ? s->p : ""; }

bool str_has_prefix(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

bool str_has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

const char *mem_find(const char *hay, size_t n, const char *needle, size_t m) {
    return m == 0 ? hay : memmem(hay, n, needle, m);
}

int64_t utf8_chars(const char *p, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)p[i] & 0xc0) != 0x80;
    return count;
}

size_t str_edits(const char *a, const char *b) {
    enum { LONGEST = 200 };
    const size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST) return LONGEST;
    size_t row[3][LONGEST + 1];
    for (size_t j = 0; j <= m; j++) row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *cur = row[i % 3], *prev = row[(i + 2) % 3], *prev2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = prev[j - 1] + (a[i - 1] != b[j - 1]);
            if (prev[j] + 1 < best) best = prev[j] + 1;
            if (cur[j - 1] + 1 < best) best = cur[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && prev2[j - 2] + 1 < best)
                best = prev2[j - 2] + 1;
            cur[j] = best;
        }
    }
    return row[n % 3][m];
}

size_t str_near_limit(const char *name) {
    const size_t third = strlen(name) / 3;
    return (third > 1 ? third : 1) + 1;
}

bool str_nearer(const char *name, const char *candidate, size_t *limit) {
    const size_t edits = str_edits(name, candidate);
    if (edits >= *limit) return false;
    *limit = edits;
    return true;
}

int str_index_in(const char *list, const char *name, char bar) {
    const size_t n = strlen(name);
    int i = 0;
    for (const char *p = list; *p; i++) {
        p += *p == bar;
        const char *end = strchrnul(p, bar);
        if ((size_t)(end - p) == n && memcmp(p, name, n) == 0) return i;
        p = end;
    }
    return -1;
}

bool parse_i64(const char *s, int64_t *out) {
    if (!*s || (*s != '-' && *s != '+' && (*s < '0' || *s > '9'))) return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end || end == s) return false;
    *out = v;
    return true;
}

bool parse_f64(const char *s, double *out) {
    if (!*s || *s == ' ' || *s == '\t' || *s == '\n') return false;
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if ((errno == ERANGE && (v > 1 || v < -1)) || *end || end == s) return false;
    *out = v;
    return true;
}
