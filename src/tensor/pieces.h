/* pieces: memory of a device for weights, many of which share a chunk where each alone would be rounded up.
 *
 * Above 1 MiB cudaMalloc hands out whole pages of 2 MiB. Below it a page is cut into as many pieces of one size as it
 * holds (docs/lab-notes.md has what was measured). A mixture has 18,000 matrices of such sizes.
 *
 * A piece that would be rounded up by more than 1/16 of its size lies in a chunk with others. The rest are asked for
 * one by one, in whole pages. A chunk is made for a number of pieces of one size: at least so many that it is not
 * rounded up by more than 1/16. It may be larger, up to 64 MiB and 1/16 of what all chunks have; it is the size that
 * such pieces fill best. So all chunks together are larger than their pieces by 1/16 and one chunk at most, while sizes
 * are alike.
 *
 * The backend that allocates uses this, and so does the one that plans. Both count a whole chunk as held. */
#ifndef KERNELRL_TENSOR_PIECES_H
#define KERNELRL_TENSOR_PIECES_H

#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"

#define PIECES_PAGE ((int64_t)2 << 20)
#define PIECES_CHUNK ((int64_t)64 << 20)

struct piece_place {
    int64_t at, bytes; /* multiples of 256 */
};
struct pieces_chunk {
    char *p;
    int64_t bytes, held;       /* of the chunk; of its pieces */
    struct piece_place *piece; /* [n], by `at` */
    int n, cap;
};
struct pieces {
    struct pieces_chunk *chunk; /* [n] */
    int n, cap;
    int64_t bytes; /* of all chunks */
};

/* What cudaMalloc takes for so many bytes, 256 at least. */
static inline int64_t pieces_rounded(int64_t bytes) {
    if (bytes <= PIECES_PAGE / 2) return PIECES_PAGE / (PIECES_PAGE / bytes);
    return (bytes + PIECES_PAGE - 1) / PIECES_PAGE * PIECES_PAGE;
}
/* What is asked of the device for so many bytes, so that what is counted is what the device takes. Sizes below a page
 * are rounded up by a page's cut, not by asking for more. */
static inline int64_t pieces_asked(int64_t bytes) { return bytes <= PIECES_PAGE / 2 ? bytes : pieces_rounded(bytes); }
static inline bool pieces_round_well(int64_t bytes) { return pieces_rounded(bytes) - bytes <= bytes / 16; }

/* How many pieces of a size a new chunk has room for. */
static inline int64_t pieces_together(const struct pieces *ps, int64_t bytes) {
    const int64_t most = i64_min(ps->bytes / 16, PIECES_CHUNK);
    int64_t best = 1, rest = pieces_rounded(bytes) - bytes;
    for (int64_t k = 2; !pieces_round_well(best * bytes) || k * bytes <= most; k++) {
        const int64_t left = pieces_rounded(k * bytes) - k * bytes;
        if (left * best > rest * k) continue; /* more of a chunk of k would be for nobody */
        best = k;
        rest = left;
    }
    return best;
}

/* The first gap of the chunk that is large enough. NULL without one. */
static inline void *pieces_place(struct pieces_chunk *c, int64_t bytes) {
    if (c->bytes - c->held < bytes) return NULL;
    int64_t at = 0;
    int i = 0;
    for (; i < c->n && c->piece[i].at - at < bytes; i++) at = c->piece[i].at + c->piece[i].bytes;
    if (c->bytes - at < bytes) return NULL;
    if (c->n == c->cap) {
        c->cap = 2 * c->cap + 16;
        c->piece = xrealloc(c->piece, (size_t)c->cap * sizeof *c->piece);
    }
    memmove(&c->piece[i + 1], &c->piece[i], (size_t)(c->n - i) * sizeof *c->piece);
    c->piece[i] = (struct piece_place){at, bytes};
    c->n++;
    c->held += bytes;
    return c->p + at;
}

/* Memory for `bytes` bytes, aligned to 256, from be->mem_alloc. NULL when there is none. Given back by pieces_give. */
static inline void *pieces_take(struct pieces *ps, struct backend *be, int64_t bytes) {
    bytes = (i64_max(bytes, 1) + 255) & ~(int64_t)255;
    if (pieces_round_well(bytes)) return be->mem_alloc(be, (size_t)pieces_asked(bytes));
    for (int i = 0; i < ps->n; i++) {
        void *const p = pieces_place(&ps->chunk[i], bytes);
        if (p) return p;
    }
    struct pieces_chunk made = {0};
    for (int64_t k = pieces_together(ps, bytes); k > 0 && !made.p; k /= 2) { /* smaller ones of a device that is full */
        made.bytes = pieces_asked(k * bytes);
        made.p = be->mem_alloc(be, (size_t)made.bytes);
    }
    if (!made.p) return NULL;
    if (ps->n == ps->cap) {
        ps->cap = 2 * ps->cap + 16;
        ps->chunk = xrealloc(ps->chunk, (size_t)ps->cap * sizeof *ps->chunk);
    }
    ps->bytes += made.bytes;
    ps->chunk[ps->n] = made;
    return pieces_place(&ps->chunk[ps->n++], bytes);
}

/* Gives back what pieces_take has returned, NULL among it; and a chunk with its last piece. */
static inline void pieces_give(struct pieces *ps, struct backend *be, void *p) {
    int i = 0;
    while (i < ps->n && ((char *)p < ps->chunk[i].p || (char *)p >= ps->chunk[i].p + ps->chunk[i].bytes)) i++;
    if (i == ps->n) {
        be->mem_free(be, p);
        return;
    }
    struct pieces_chunk *const c = &ps->chunk[i];
    int at = 0;
    while (at < c->n && c->p + c->piece[at].at != (char *)p) at++;
    ASSERT(at < c->n);
    c->held -= c->piece[at].bytes;
    memmove(&c->piece[at], &c->piece[at + 1], (size_t)(--c->n - at) * sizeof *c->piece);
    if (c->n > 0) return;
    be->mem_free(be, c->p);
    ps->bytes -= c->bytes;
    free(c->piece);
    *c = ps->chunk[--ps->n];
}

/* Forgets all, as a backend is closed. */
static inline void pieces_close(struct pieces *ps) {
    for (int i = 0; i < ps->n; i++) free(ps->chunk[i].piece);
    free(ps->chunk);
    *ps = (struct pieces){0};
}

#endif
