/* Finds added tokens as the tokenizers library of Hugging Face does, to the byte. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "text/split.h"
#include "text/unicode.h"

static bool has(const uint64_t bits[4], unsigned char b) { return bits[b >> 6] >> (b & 63) & 1; }
static void set(uint64_t bits[4], unsigned char b) { bits[b >> 6] |= (uint64_t)1 << (b & 63); }

void added_add(struct added_set *s, struct added_token t) {
    ASSERT(t.n > 0);
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 16;
        s->tok = xrealloc(s->tok, s->cap * sizeof *s->tok);
    }
    s->tok[s->n++] = t;
}

static int by_first_then_longer(const void *a, const void *b) {
    const struct added_token *x = a, *y = b;
    if (*x->p != *y->p) return (unsigned char)*x->p < (unsigned char)*y->p ? -1 : 1;
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    return memcmp(x->p, y->p, x->n);
}

enum status added_finish(struct added_set *s, struct err *e) {
    if (s->n == 0) return ST_OK;
    qsort(s->tok, s->n, sizeof *s->tok, by_first_then_longer);
    s->two = xcalloc(256, sizeof *s->two);
    bool words = false;
    for (size_t i = 0; i < s->n; i++) {
        const unsigned char *p = (const unsigned char *)s->tok[i].p;
        set(s->first, p[0]);
        if (s->tok[i].n > 1)
            set(s->two[p[0]], p[1]);
        else
            memset(s->two[p[0]], 0xff, sizeof s->two[p[0]]);
        words |= s->tok[i].single_word;
    }
    /* One word character, as \w means it in Rust's regex crate, which the tokenizers library uses. */
    return words ? splitter_create("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]", &s->word, e) : ST_OK;
}

void added_free(struct added_set *s) {
    splitter_free(s->word);
    free(s->tok);
    free(s->two);
    *s = (struct added_set){0};
}

/* The longest token that begins at p and ends before p + n. NULL: there is none. */
static const struct added_token *token_at(const struct added_set *s, const char *p, size_t n) {
    const unsigned char *u = (const unsigned char *)p;
    if (!has(s->first, u[0]) || (n > 1 && !has(s->two[u[0]], u[1]))) return NULL;
    size_t lo = 0, hi = s->n;
    while (lo < hi) { /* the first one with this byte */
        const size_t mid = (lo + hi) / 2;
        if ((unsigned char)*s->tok[mid].p < u[0])
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < s->n && *s->tok[lo].p == *p; lo++)
        if (s->tok[lo].n <= n && memcmp(s->tok[lo].p, p, s->tok[lo].n) == 0) return &s->tok[lo];
    return NULL;
}

/* Where the character in front of p begins. p itself: the text begins there, or what is in front of it is no UTF-8. */
static const char *char_before(const char *text, const char *p) {
    for (int k = 1; k <= 4 && p - k >= text; k++)
        if (utf8_char_len(p - k, (size_t)k) == (size_t)k) return p - k;
    return p;
}

static void note_match(void *ctx, const char *p, size_t n, bool match) {
    (void)p;
    (void)n;
    *(bool *)ctx = match;
}

/* True: p[0..n), which is one character or nothing, is a word character. */
static bool is_word(const struct added_set *s, const char *p, size_t n) {
    bool yes = false;
    if (n > 0) splitter_run(s->word, p, n, note_match, &yes);
    return yes;
}

/* True: no word character is in front of [begin, end) or behind it. */
static bool stands_alone(const struct added_set *s, const char *text, size_t n, const char *begin, const char *end) {
    const char *before = char_before(text, begin);
    return !is_word(s, before, (size_t)(begin - before)) &&
           !is_word(s, end, utf8_char_len(end, (size_t)(text + n - end)));
}

static const char *strip_left(const char *text, const char *p) {
    for (const char *q; (q = char_before(text, p)) < p && unicode_is_space(q, (size_t)(p - q)); p = q) continue;
    return p;
}

static const char *strip_right(const char *p, const char *end) {
    for (size_t k; (k = utf8_char_len(p, (size_t)(end - p))) > 0 && unicode_is_space(p, k); p += k) continue;
    return p;
}

void added_run(const struct added_set *s, const char *text, size_t n, added_fn *fn, void *ctx) {
    const char *end = text + n, *done = text;
    for (const char *p = text; s->n > 0 && p < end;) {
        const struct added_token *t = token_at(s, p, (size_t)(end - p));
        if (!t) {
            p++;
            continue;
        }
        const char *from = p, *to = p + t->n;
        p = to; /* in front of what rstrip adds below: a token of white space is found there, too, and overlaps */
        if (t->single_word && !stands_alone(s, text, n, from, to)) continue;
        if (t->lstrip) from = strip_left(text, from);
        if (t->lstrip && from < done) from = done;
        if (t->rstrip) to = strip_right(to, end);
        if (done < from) fn(ctx, done, (size_t)(from - done), -1);
        fn(ctx, from, (size_t)(to - from), t->id);
        done = to;
    }
    if (done < end) fn(ctx, done, (size_t)(end - done), -1);
}
