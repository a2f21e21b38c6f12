/* lines: lines of bounded length out of a stream of bytes. A line that is too long is passed over without being kept,
 * so no sender can make a reader hold more than one line. */
#ifndef KERNELRL_VERIFY_POOL_LINES_H
#define KERNELRL_VERIFY_POOL_LINES_H

#include "base/base.h"

enum line_kind {
    LINE_NONE,    /* no whole line is there */
    LINE_WHOLE,   /* one is */
    LINE_TOO_LONG /* one has ended that was longer than allowed; it is gone */
};

struct line_reader {
    char *p;
    size_t begin, end, cap; /* what is not handed out yet lies in p[begin, end) */
    size_t scanned;         /* no newline lies in p[begin, scanned) */
    size_t max;             /* bytes of a line without its newline */
    bool skipping;          /* true: what comes up to the next newline is dropped */
    uint64_t skipped;       /* bytes of the line that is dropped, so far */
};
struct line_reader line_reader_make(size_t max_bytes);
void line_reader_free(struct line_reader *r);
/* Takes bytes of the stream. Lines handed out before are gone. */
void line_reader_feed(struct line_reader *r, const char *bytes, size_t n);
/* The next line, without its newline, with a NUL behind it, valid until the next feed; *n is its length, of one that
 * was too long the length it had. Empty lines are passed over. */
enum line_kind line_reader_next(struct line_reader *r, char **line, uint64_t *n);

#endif
