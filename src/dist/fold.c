#include "dist/fold.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"

struct fold {
    struct comm *comm;
    struct backend *be;
    float *sum; /* of this rank's slice, [slice_n] */
    int64_t n, slice_at, slice_n;
    /* Several ranks: a leaf on its way, [n]; the slices that came, one behind the other, in host memory and on the
     * device; which bytes go where. */
    float *leaf, *slices, *device;
    struct comm_part *out, *in; /* [size] */
};

/* Slices of whole runs of SUM_BLOCK, as even as can be; the first ones are larger. */
static void slice_of(int64_t n, int size, int rank, int64_t *at, int64_t *count) {
    const int64_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    const int64_t begin = blocks * rank / size * SUM_BLOCK, end = blocks * (rank + 1) / size * SUM_BLOCK;
    *at = i64_min(begin, n);
    *count = i64_min(end, n) - *at;
}

enum status fold_open(struct comm *c, struct backend *be, int64_t n, struct fold **out, struct err *e) {
    const bool several = c->size > 1;
    int64_t at, count;
    *out = NULL;
    slice_of(n, c->size, c->rank, &at, &count);
    const int64_t room = (count + 16) & ~(int64_t)15; /* a buffer behind another one begins at 64 bytes */
    const int64_t bytes = (several ? 2 : 1) * room * (int64_t)sizeof(float), have = be->mem_available(be);
    float *sum = bytes < have ? be->mem_alloc(be, (size_t)bytes) : NULL;
    if (!sum)
        return FAIL(e, ST_MEMORY, "the sum of the gradients needs %.2f GB, of which %.2f GB are free",
                    (double)bytes * 1e-9, (double)have * 1e-9);
    struct fold *f = *out = xcalloc(1, sizeof *f);
    *f = (struct fold){.comm = c, .be = be, .sum = sum, .n = n, .slice_at = at, .slice_n = count};
    if (!several) return ST_OK;
    f->device = sum + room;
    f->leaf = xmalloc((size_t)n * sizeof *f->leaf);
    f->slices = xmalloc((size_t)(count * c->size + 1) * sizeof *f->slices);
    f->out = xcalloc((size_t)c->size, sizeof *f->out);
    f->in = xcalloc((size_t)c->size, sizeof *f->in);
    return ST_OK;
}

void fold_close(struct fold *f) {
    if (!f) return;
    f->be->mem_free(f->be, f->sum);
    free(f->leaf);
    free(f->slices);
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

/* Part r of the floats [at, at + n), as bytes of a buffer. */
static struct comm_part floats(int64_t at, int64_t n) {
    return (struct comm_part){(size_t)at * sizeof(float), (size_t)n * sizeof(float)};
}

enum status fold_add(struct fold *f, const float *leaf, int leaves, struct err *e) {
    struct comm *c = f->comm;
    struct backend *be = f->be;
    ASSERT(leaves <= c->size && (leaf != NULL) == (c->rank < leaves));
    if (c->size == 1) {
        add(be, f->sum, leaf, f->n);
        return ST_OK;
    }
    for (int r = 0; r < c->size; r++) {
        int64_t at, n;
        slice_of(f->n, c->size, r, &at, &n);
        f->out[r] = floats(at, leaf ? n : 0);
        f->in[r] = floats(r * f->slice_n, r < leaves ? f->slice_n : 0);
    }
    if (leaf) be->mem_get(be, f->leaf, leaf, (size_t)f->n * sizeof *leaf);
    if (leaf) TRY(be->sync(be, e));
    TRY(c->exchange(c, f->leaf, f->out, f->slices, f->in, e));
    for (int r = 0; r < leaves && f->slice_n > 0; r++) {
        be->mem_put(be, f->device, f->slices + r * f->slice_n, (size_t)f->slice_n * sizeof(float));
        add(be, f->sum, f->device, f->slice_n);
    }
    return be->sync(be, e); /* the next round writes to the same buffers */
}

enum status fold_end(struct fold *f, float *sum, struct err *e) {
    struct comm *c = f->comm;
    struct backend *be = f->be;
    if (c->size == 1) {
        be->mem_copy(be, sum, f->sum, (size_t)f->n * sizeof(float));
        return ST_OK;
    }
    be->mem_get(be, f->slices, f->sum, (size_t)f->slice_n * sizeof(float));
    TRY(be->sync(be, e));
    for (int r = 0; r < c->size; r++) {
        int64_t at, n;
        slice_of(f->n, c->size, r, &at, &n);
        f->out[r] = floats(0, f->slice_n);
        f->in[r] = floats(at, n);
    }
    TRY(c->exchange(c, f->slices, f->out, f->leaf, f->in, e));
    be->mem_put(be, sum, f->leaf, (size_t)f->n * sizeof(float));
    return be->sync(be, e);
}
