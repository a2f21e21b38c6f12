#include "verify/pool/lines.h"

#include <stdlib.h>
#include <string.h>

struct line_reader line_reader_make(size_t max_bytes) {
    return (struct line_reader){.max = max_bytes};
}

void line_reader_free(struct line_reader *r) {
    free(r->p);
    *r = (struct line_reader){.max = r->max};
}

/* The first bytes of what is left of a stream, of which no line is needed: they end the dropped line or belong to it.
 */
static void skip(struct line_reader *r, const char **bytes, size_t *n) {
    const char *end = memchr(*bytes, '\n', *n);
    const size_t gone = end ? (size_t)(end - *bytes) : *n;
    r->skipped += gone;
    *bytes += gone; /* its newline stays: it says that the line has ended */
    *n -= gone;
}

static void keep(struct line_reader *r, const char *bytes, size_t n) {
    if (r->begin > 0) {
        memmove(r->p, r->p + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->scanned -= r->begin;
        r->begin = 0;
    }
    if (r->end + n > r->cap) {
        r->cap = 2 * (r->end + n);
        r->p = xrealloc(r->p, r->cap);
    }
    memcpy(r->p + r->end, bytes, n);
    r->end += n;
}

void line_reader_feed(struct line_reader *r, const char *bytes, size_t n) {
    if (r->skipping && r->begin == r->end) skip(r, &bytes, &n);
    if (n > 0) keep(r, bytes, n);
}

enum line_kind line_reader_next(struct line_reader *r, char **line, uint64_t *n) {
    for (;;) {
        char *newline = r->scanned < r->end ? memchr(r->p + r->scanned, '\n', r->end - r->scanned) : NULL;
        const size_t length = (newline ? (size_t)(newline - r->p) : r->end) - r->begin;
        if (r->skipping || length > r->max) {
            r->skipping = true;
            r->skipped += length;
            r->begin = r->scanned = r->begin + length;
            if (!newline) return LINE_NONE;
            r->begin = r->scanned = r->begin + 1;
            *n = r->skipped;
            *line = NULL;
            r->skipping = false;
            r->skipped = 0;
            return LINE_TOO_LONG;
        }
        if (!newline) {
            r->scanned = r->end;
            return LINE_NONE;
        }
        *line = r->p + r->begin;
        *newline = 0;
        r->begin = r->scanned = r->begin + length + 1;
        if (length == 0) continue;
        *n = length;
        return LINE_WHOLE;
    }
}
