#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

size_t utf8_char_len(const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0) return 0;
    if (p[0] < 0x80) return 1;
    /* The second byte's range depends on the first: that is where overlong forms and surrogates are excluded. */
    size_t len;
    unsigned lo = 0x80, hi = 0xBF;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        len = 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        len = 3;
        if (p[0] == 0xE0) lo = 0xA0;
        if (p[0] == 0xED) hi = 0x9F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        len = 4;
        if (p[0] == 0xF0) lo = 0x90;
        if (p[0] == 0xF4) hi = 0x8F;
    } else {
        return 0;
    }
    if (n < len || p[1] < lo || p[1] > hi) return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return len;
}

size_t utf8_valid_prefix(const char *p, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t w; /* eight ASCII bytes at once: nearly all text is ASCII */
        if (n - i >= 8 && (memcpy(&w, p + i, 8), (w & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        size_t len = utf8_char_len(p + i, n - i);
        if (len == 0) break;
        i += len;
    }
    return i;
}

bool unicode_is_space(const char *p, size_t n) {
    utf8proc_int32_t c;
    if (utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &c) < 1) return false;
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static const char replacement[] = "\xEF\xBF\xBD";

bool utf8_repair_begins(const struct utf8_repair *r, char b) {
    return r->n == 0 || (uint8_t)b < r->lo || (uint8_t)b > r->hi;
}

static void add_bytes(struct str *out, const char *p, size_t n) {
    if (out) str_add(out, p, n);
}

void utf8_repair_end(struct utf8_repair *r, struct str *out) {
    if (r->n > 0) add_bytes(out, replacement, 3);
    r->n = 0;
}

void utf8_repair_add(struct utf8_repair *r, char b, struct str *out) {
    const uint8_t c = (uint8_t)b;
    if (!utf8_repair_begins(r, b)) {
        r->held[r->n++] = b;
        r->lo = 0x80;
        r->hi = 0xBF;
        if (r->n < r->need) return;
        add_bytes(out, r->held, r->n);
        r->n = 0;
        return;
    }
    utf8_repair_end(r, out);
    if (c < 0x80) {
        add_bytes(out, &b, 1);
    } else if (c < 0xC2 || c > 0xF4) {
        add_bytes(out, replacement, 3);
    } else {
        r->held[0] = b;
        r->n = 1;
        r->need = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        r->lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
        r->hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    }
}

bool unicode_is_plain(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xCC) return false; /* U+0300 is CC 80 */
    return true;
}

/* Marks that Unicode got after version 9. Hugging Face's tokenizers, whose tables end there, take them for characters
 * that begin anew: no mark moves over them, and nothing is composed across them. */
/* clang-format off */
static const utf8proc_int32_t young[][2] = {
    {0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba},
    {0x1715, 0x1715}, {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac},
    {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
};
/* clang-format on */

static bool is_young(utf8proc_int32_t c) {
    for (size_t i = 0; i < ARRAY_LEN(young) && c >= young[i][0]; i++)
        if (c <= young[i][1]) return true;
    return false;
}

/* A combining mark with its place, so that an unstable sort gives the stable (canonical) order. */
struct mark {
    utf8proc_int32_t cp;
    uint32_t at;
    int ccc;
};

static int mark_cmp(const void *a, const void *b) {
    const struct mark *x = a, *y = b;
    if (x->ccc != y->ccc) return x->ccc < y->ccc ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int combining_class(utf8proc_int32_t cp) {
    const int ccc = utf8proc_get_property(cp)->combining_class;
    return ccc != 0 && is_young(cp) ? 0 : ccc;
}

/* Canonical ordering of cp[0..n). utf8proc's own is a bubble sort, quadratic on long runs of marks. */
static void canonical_order(utf8proc_int32_t *cp, size_t n) {
    struct mark *run = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < n;) {
        if (combining_class(cp[i]) == 0) {
            i++;
            continue;
        }
        size_t m = 0;
        for (; i + m < n; m++) {
            int ccc = combining_class(cp[i + m]);
            if (ccc == 0) break;
            if (m == cap) {
                cap = cap ? cap * 2 : 16;
                run = xrealloc(run, cap * sizeof *run);
            }
            run[m] = (struct mark){cp[i + m], (uint32_t)m, ccc};
        }
        if (m > 1) {
            qsort(run, m, sizeof *run, mark_cmp);
            for (size_t k = 0; k < m; k++) cp[i + k] = run[k].cp;
        }
        i += m;
    }
    free(run);
}

/* Composes cp[0..n) and appends it. */
static void compose(utf8proc_int32_t *cp, size_t n, struct str *out) {
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    ASSERT(composed >= 0);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        utf8proc_uint8_t b[4];
        utf8proc_ssize_t k = utf8proc_encode_char(cp[i], b);
        str_add(out, (const char *)b, (size_t)k);
    }
}

void unicode_nfc(const char *p, size_t n, struct str *out) {
    size_t cap = n + 32, len = 0;
    CLEANUP_FREE utf8proc_int32_t *cp = xmalloc(cap * sizeof *cp);
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)p + i, (utf8proc_ssize_t)(n - i), &c);
        ASSERT(k > 0); /* the caller passes well-formed text */
        i += (size_t)k;
        if (cap - len < 32) { /* no character decomposes canonically into more than 4 */
            cap *= 2;
            cp = xrealloc(cp, cap * sizeof *cp);
        }
        int boundary = 0;
        utf8proc_ssize_t m =
            utf8proc_decompose_char(c, cp + len, (utf8proc_ssize_t)(cap - len), UTF8PROC_DECOMPOSE, &boundary);
        ASSERT(m > 0 && m <= 32);
        len += (size_t)m;
    }
    canonical_order(cp, len);
    for (size_t from = 0, i = 0; i <= len; i++) { /* a young mark ends one piece and begins the next */
        if (i < len && !is_young(cp[i])) continue;
        compose(cp + from, i - from, out);
        if (i < len) compose(cp + i, 1, out);
        from = i + 1;
    }
}
