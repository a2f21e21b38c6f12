#include "dist/fold.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"

/* Floats of a slice that travel at a time: what arrives of them takes as many bytes for each rank. */
enum { CHUNK = 1 << 24 };

struct fold {
    struct comm *comm;
    struct backend *be;
    float *sum; /* of this rank's slice, [slice_n] */
    int64_t n, slice_at, slice_n, chunk;
    /* Several ranks: the same part of all leaves, one behind the other, on the device [size, chunk] or, through host
     * memory, [chunk]; the leaf and what arrives in host memory, NULL where devices reach each other; which bytes go
     * where. */
    float *arrived, *leaf_host, *arrived_host;
    struct byte_span *out, *in; /* [size] */
};

/* Slices of whole runs of SUM_BLOCK, as even as can be. */
static void slice_of(int64_t n, int size, int rank, int64_t *at, int64_t *count) {
    const int64_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    const int64_t begin = blocks * rank / size * SUM_BLOCK, end = blocks * (rank + 1) / size * SUM_BLOCK;
    *at = i64_min(begin, n);
    *count = i64_min(end, n) - *at;
}

static bool direct(const struct fold *f) { return f->be->peers == f->comm->size && f->comm->size > 1; }

enum status fold_open(struct comm *c, struct backend *be, int64_t n, struct fold **out, struct err *e) {
    struct fold *f = *out = xcalloc(1, sizeof *f);
    *f = (struct fold){.comm = c, .be = be, .n = n};
    slice_of(n, c->size, c->rank, &f->slice_at, &f->slice_n);
    f->chunk = i64_min(CHUNK, n / c->size / SUM_BLOCK * SUM_BLOCK + SUM_BLOCK);
    const int64_t room = (f->slice_n + 16) & ~(int64_t)15; /* what lies behind begins at 64 bytes */
    const int64_t arrive = c->size == 1 ? 0 : f->chunk * (direct(f) ? c->size : 1);
    const int64_t bytes = (room + arrive) * (int64_t)sizeof(float), have = be->mem_available(be);
    f->sum = bytes < have ? be->mem_alloc(be, (size_t)bytes) : NULL;
    if (!f->sum) {
        fold_close(f);
        *out = NULL;
        return FAIL(e, ST_MEMORY, "the sum of the gradients needs %.2f GB, of which %.2f GB are free",
                    (double)bytes * 1e-9, (double)have * 1e-9);
    }
    if (c->size == 1) return ST_OK;
    f->arrived = f->sum + room;
    f->out = xcalloc((size_t)c->size, sizeof *f->out);
    f->in = xcalloc((size_t)c->size, sizeof *f->in);
    if (direct(f)) return ST_OK;
    f->leaf_host = xmalloc((size_t)n * sizeof *f->leaf_host);
    f->arrived_host = xmalloc((size_t)(f->chunk * c->size) * sizeof *f->arrived_host);
    return ST_OK;
}

void fold_close(struct fold *f) {
    if (!f) return;
    f->be->mem_free(f->be, f->sum);
    free(f->leaf_host);
    free(f->arrived_host);
    free(f->out);
    free(f->in);
    free(f);
}

void fold_begin(struct fold *f) { f->be->mem_zero(f->be, f->sum, (size_t)f->slice_n * sizeof(float)); }

/* acc += x as 1 x + 1 acc: products by one are exact, so that each element is rounded once. Rows of SUM_BLOCK, and the
 * rest as one row. */
static void add(struct backend *be, float *acc, const float *x, int64_t n) {
    const int64_t rows = n / SUM_BLOCK, at = rows * SUM_BLOCK;
    float *const from = (float *)(uintptr_t)x; /* which axpby does not write */
    if (rows > 0) be->axpby(be, tensor_full(acc, rows, SUM_BLOCK), 1, tensor_full(from, rows, SUM_BLOCK), 1);
    if (n > at) be->axpby(be, tensor_full(acc + at, 1, n - at), 1, tensor_full(from + at, 1, n - at), 1);
}

static struct byte_span floats(int64_t at, int64_t n) {
    return (struct byte_span){(size_t)at * sizeof(float), (size_t)n * sizeof(float)};
}

/* Floats of a slice of n that its chunk from `at` on has. */
static int64_t chunk_of(const struct fold *f, int64_t n, int64_t at) { return i64_max(0, i64_min(f->chunk, n - at)); }

/* Where the chunk from `at` on of each rank's slice lies in a leaf, and where those of this rank's slice arrive. */
static void lay_out(struct fold *f, bool leaf, const int *owner, int leaves, int64_t at) {
    for (int r = 0; r < f->comm->size; r++) {
        int64_t slice, n;
        slice_of(f->n, f->comm->size, r, &slice, &n);
        f->out[r] = floats(slice + at, leaf ? chunk_of(f, n, at) : 0);
        f->in[r] = floats(r * f->chunk, 0);
    }
    for (int i = 0; i < leaves; i++) f->in[owner[i]] = floats(owner[i] * f->chunk, chunk_of(f, f->slice_n, at));
}

/* Chunks of the longest slice: all ranks go through as many. */
static int64_t longest_slice(const struct fold *f) {
    return ((f->n + SUM_BLOCK - 1) / SUM_BLOCK + f->comm->size - 1) / f->comm->size * SUM_BLOCK;
}

/* Devices reach each other: all is queued. */
static enum status add_direct(struct fold *f, const float *leaf, const int *owner, int leaves) {
    struct backend *be = f->be;
    for (int64_t at = 0; at < longest_slice(f); at += f->chunk) {
        const int64_t n = chunk_of(f, f->slice_n, at);
        lay_out(f, leaf != NULL, owner, leaves, at);
        be->peers_exchange(be, leaf, f->out, f->arrived, f->in);
        for (int i = 0; i < leaves && n > 0; i++)
            add(be, f->sum + at, owner[i] == f->comm->rank ? leaf + f->slice_at + at : f->arrived + owner[i] * f->chunk,
                n);
    }
    return ST_OK;
}

/* Waits for the device; the first failure stays. A rank whose device has failed goes on to send what it has, for which
 * the others wait: its caller agrees with theirs that the sum is none. */
static enum status synced(struct backend *be, enum status st, struct err *e) {
    struct err later;
    const enum status now = be->sync(be, st == ST_OK ? e : &later);
    return st == ST_OK ? now : st;
}

static enum status exchange(struct fold *f, float *to, enum status st, struct err *e) {
    struct err lost;
    if (f->comm->exchange(f->comm, f->leaf_host, f->out, to, f->in, &lost) == ST_OK) return st;
    *e = lost;
    return ST_LOST;
}

static enum status add_through_host(struct fold *f, const float *leaf, const int *owner, int leaves, struct err *e) {
    struct backend *be = f->be;
    enum status st = ST_OK;
    if (leaf) {
        be->mem_get(be, f->leaf_host, leaf, (size_t)f->n * sizeof *leaf);
        st = synced(be, st, e);
    }
    for (int64_t at = 0; at < longest_slice(f); at += f->chunk) {
        const int64_t n = chunk_of(f, f->slice_n, at);
        lay_out(f, leaf != NULL, owner, leaves, at);
        st = exchange(f, f->arrived_host, st, e);
        if (st == ST_LOST) return st;
        for (int i = 0; i < leaves && n > 0; i++) {
            be->mem_put(be, f->arrived, f->arrived_host + owner[i] * f->chunk, (size_t)n * sizeof(float));
            add(be, f->sum + at, f->arrived, n);
        }
        st = synced(be, st, e); /* the next chunk is written to the same memory */
    }
    return st;
}

enum status fold_add(struct fold *f, const float *leaf, const int *owner, int leaves, struct err *e) {
    if (f->comm->size > 1)
        return direct(f) ? add_direct(f, leaf, owner, leaves) : add_through_host(f, leaf, owner, leaves, e);
    ASSERT(leaf && leaves == 1);
    add(f->be, f->sum, leaf, f->n);
    return ST_OK;
}

float *fold_sum(struct fold *f) {
    ASSERT(f->comm->size == 1);
    return f->sum;
}

void fold_slice(const struct fold *f, int rank, int64_t *at, int64_t *count) {
    slice_of(f->n, f->comm->size, rank, at, count);
}

enum status fold_end(struct fold *f, float *sum, struct err *e) { return fold_gather(f, f->sum, sum, e); }

enum status fold_gather(struct fold *f, const float *slice, float *whole, struct err *e) {
    struct comm *c = f->comm;
    struct backend *be = f->be;
    be->mem_copy(be, whole + f->slice_at, slice, (size_t)f->slice_n * sizeof(float));
    if (c->size == 1) return ST_OK;
    for (int r = 0; r < c->size; r++) {
        int64_t at, n;
        slice_of(f->n, c->size, r, &at, &n);
        f->out[r] = floats(f->slice_at, f->slice_n);
        f->in[r] = floats(at, n);
    }
    if (direct(f)) {
        be->peers_exchange(be, whole, f->out, whole, f->in);
        return ST_OK;
    }
    be->mem_get(be, f->leaf_host + f->slice_at, slice, (size_t)f->slice_n * sizeof(float));
    const enum status st = exchange(f, f->leaf_host, synced(be, ST_OK, e), e);
    if (st == ST_LOST) return st;
    be->mem_put(be, whole, f->leaf_host, (size_t)f->n * sizeof(float));
    return synced(be, st, e);
}
