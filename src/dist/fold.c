#include "dist/fold.h"

#include <stdlib.h>

#include "tensor/backend.h"

struct fold {
    struct comm *comm;
    struct backend *be;
    float *sum; /* [n] */
    int64_t n;
};

enum status fold_open(struct comm *c, struct backend *be, int64_t n, struct fold **out, struct err *e) {
    *out = NULL;
    const int64_t bytes = n * (int64_t)sizeof(float), have = be->mem_available(be);
    float *sum = bytes < have ? be->mem_alloc(be, (size_t)bytes) : NULL;
    if (!sum)
        return FAIL(e, ST_MEMORY, "the sum of the gradients needs %.2f GB, of which %.2f GB are free",
                    (double)bytes * 1e-9, (double)have * 1e-9);
    *out = xcalloc(1, sizeof **out);
    **out = (struct fold){c, be, sum, n};
    return ST_OK;
}

void fold_close(struct fold *f) {
    if (!f) return;
    f->be->mem_free(f->be, f->sum);
    free(f);
}

void fold_begin(struct fold *f) { f->be->mem_zero(f->be, f->sum, (size_t)f->n * sizeof(float)); }

/* acc += x as 1 x + 1 acc: products by one are exact, so that each element is rounded once. Rows of SUM_BLOCK, and the
 * rest as one row. */
static void add(struct backend *be, float *acc, const float *x, int64_t n) {
    const int64_t rows = n / SUM_BLOCK, at = rows * SUM_BLOCK;
    float *const from = (float *)(uintptr_t)x; /* which axpby does not write */
    if (rows > 0) be->axpby(be, tensor_full(acc, rows, SUM_BLOCK), 1, tensor_full(from, rows, SUM_BLOCK), 1);
    if (n > at) be->axpby(be, tensor_full(acc + at, 1, n - at), 1, tensor_full(from + at, 1, n - at), 1);
}

void fold_add(struct fold *f, const float *leaf) { add(f->be, f->sum, leaf, f->n); }

float *fold_sum(struct fold *f) { return f->sum; }

void fold_end(struct fold *f, float *sum) { f->be->mem_copy(f->be, sum, f->sum, (size_t)f->n * sizeof(float)); }
