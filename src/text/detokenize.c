/* Bytes pass three stages: the search for stop strings (Knuth, Morris, Pratt: one state a string, so that a token costs
 * the same whatever came before it), the bytes held back, and the repair of UTF-8. What is held back is the longest end
 * of the bytes that is the beginning of a stop string: only there can one be in the making. */
#include "text/detokenize.h"

#include <stdlib.h>
#include <string.h>

struct detokenize_matcher {
    const char *s;
    size_t n, state; /* state: bytes of s that the bytes so far end with, fewer than n */
    uint16_t *fall;  /* [n] the state that remains where the byte behind i + 1 ones does not fit */
};

static struct detokenize_matcher matcher(const char *s) {
    struct detokenize_matcher m = {.s = s, .n = strlen(s)};
    ASSERT(m.n >= 1 && m.n <= UINT16_MAX);
    m.fall = xcalloc(m.n, sizeof *m.fall);
    for (size_t i = 1, k = 0; i < m.n; i++) {
        while (k > 0 && s[i] != s[k]) k = m.fall[k - 1];
        k += s[i] == s[k];
        m.fall[i] = (uint16_t)k;
    }
    return m;
}

/* True: the string is complete with byte b. */
static bool matcher_add(struct detokenize_matcher *m, char b) {
    while (m->state > 0 && m->s[m->state] != b) m->state = m->fall[m->state - 1];
    m->state += m->s[m->state] == b;
    if (m->state < m->n) return false;
    m->state = m->fall[m->n - 1];
    return true;
}

void detokenize_begin(struct detokenizer *d, const struct detokenize_options *o) {
    *d = (struct detokenizer){.stop = -1, .opt = *o};
    if (o->n_stop_strings == 0) return;
    d->match = xcalloc((size_t)o->n_stop_strings, sizeof *d->match);
    for (int i = 0; i < o->n_stop_strings; i++) d->match[i] = matcher(o->stop_strings[i]);
}

void detokenize_free(struct detokenizer *d) {
    for (int i = 0; d->match && i < d->opt.n_stop_strings; i++) free(d->match[i].fall);
    free(d->match);
    str_free(&d->held);
    str_free(&d->shown);
    *d = (struct detokenizer){.stop = -1};
}

/* Gives out the first n of the bytes held back. */
static void release(struct detokenizer *d, size_t n, struct str *out) {
    for (size_t i = 0; i < n; i++)
        if (d->shown.p[i]) utf8_repair_add(&d->out, d->held.p[i], out);
    d->held.len -= n;
    d->shown.len -= n;
    memmove(d->held.p, d->held.p + n, d->held.len);
    memmove(d->shown.p, d->shown.p + n, d->shown.len);
}

/* The longest of the stop strings that are complete with byte b, or -1; *most: bytes to hold back. */
static int search(struct detokenizer *d, char b, size_t *most) {
    int hit = -1;
    *most = 0;
    for (int i = 0; i < d->opt.n_stop_strings; i++) {
        struct detokenize_matcher *m = &d->match[i];
        if (matcher_add(m, b) && (hit < 0 || m->n > d->match[hit].n)) hit = i;
        if (m->state > *most) *most = m->state;
    }
    return d->n_drawn > d->opt.min_tokens ? hit : -1;
}

/* Where in the text the token's bytes begin, and which characters they bring. */
static void place(struct detokenizer *d, const char *p, size_t n) {
    const bool goes_on = n > 0 ? !utf8_repair_begins(&d->place, p[0]) : d->place.n > 0;
    d->offset = d->begun - goes_on;
    for (size_t i = 0; i < n; i++) {
        d->begun += utf8_repair_begins(&d->place, p[i]);
        utf8_repair_add(&d->place, p[i], NULL);
    }
}

/* Without stop strings nothing is held back but the rest of a character. */
static void add_plain(struct detokenizer *d, const char *p, size_t n, struct str *out) {
    for (size_t i = 0; i < n; i++) utf8_repair_add(&d->out, p[i], out);
}

static bool add_searching(struct detokenizer *d, const char *p, size_t n, bool shown, struct str *out) {
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        str_addc(&d->held, p[i]);
        str_addc(&d->shown, shown);
        d->stop = search(d, p[i], &most);
        if (d->stop < 0) continue;
        release(d, d->held.len - (d->opt.include_stop ? 0 : d->match[d->stop].n), out);
        utf8_repair_end(&d->out, out);
        return true;
    }
    if (n > 0) release(d, d->held.len - most, out);
    return false;
}

bool detokenize_add(struct detokenizer *d, int32_t id, enum detokenize_kind kind, struct str *out) {
    const bool prompt = kind == DETOKENIZE_PROMPT;
    const bool shown = prompt || !(d->opt.skip_special && tokenizer_special(d->opt.tokenizer, id));
    size_t n;
    const char *p = tokenizer_bytes(d->opt.tokenizer, id, &n);
    if (kind == DETOKENIZE_STOP && !d->opt.include_stop) n = 0;
    ASSERT(!prompt || d->n_drawn == 0);
    d->n_drawn += !prompt;
    place(d, p, shown ? n : 0);
    if (d->stop >= 0) return true;
    if (kind == DETOKENIZE_DRAWN && d->opt.n_stop_strings > 0) return add_searching(d, p, n, shown, out);
    if (d->held.len > 0) release(d, d->held.len, out); /* an end by id */
    if (shown) add_plain(d, p, n, out);
    return false;
}

void detokenize_end(struct detokenizer *d, struct str *out) {
    if (d->stop >= 0) return;
    if (d->held.len > 0) release(d, d->held.len, out);
    utf8_repair_end(&d->out, out);
}

void detokenize_bytes(const char *p, size_t n, struct str *out) {
    struct utf8_repair r = {0};
    for (size_t i = 0; i < n; i++) utf8_repair_add(&r, p[i], out);
    utf8_repair_end(&r, out);
}
