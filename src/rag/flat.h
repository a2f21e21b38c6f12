/* flat: exact search for the largest inner products, over vectors in a file of FAISS's IndexFlatIP.
 *
 * Layout of the file (faiss/impl/index_write.cpp): fourcc "IxFI"; i32 dimension; i64 vectors; i64 1 << 20, twice; u8 1
 * (trained); i32 0 (inner product); u64 number of floats; the vectors, row-major float32. All is little-endian. 45
 * bytes stand in front of the vectors.
 *
 * A search that read all vectors would wait for memory: 48,000 x 1,536 floats are 295 MB. So a copy of them in 8 bits
 * is kept, in planes of fewer bits. The upper four bits of all rows are read first. They bound every product from above
 * (Cauchy-Schwarz on the rounding errors). The k rows that look best are read in full: a row whose bound is below their
 * scores cannot be among the best. The next bits, and at last the vectors, are read only of the rows that are left. The
 * result is exact. */
#ifndef KERNELRL_FLAT_H
#define KERNELRL_FLAT_H

#include "base/err.h"
#include "base/pool.h"

enum { FLAT_HEADER_BYTES = 45, FLAT_DIM_MAX = 8192 };

struct flat;
/* Maps PATH and makes the copy in planes (n * (dim + 45) bytes of memory, with dim rounded up to a multiple of 512).
 * The pool is borrowed, for searches, too. NULL: one thread. ST_PARSE for a file that is cut or is no such index,
 * ST_UNSUPPORTED for another kind of FAISS index. */
enum status flat_open(const char *path, struct pool *pool, struct flat **out, struct err *e) MUST_USE;
void flat_close(struct flat *f); /* f may be NULL. */
int64_t flat_count(const struct flat *f);
int flat_dim(const struct flat *f);

struct flat_hit {
    int64_t id; /* row */
    float score;
};
/* Finds the k rows with the largest inner products with query[dim] among those with allowed[row] (NULL: all rows), the
 * best first, and equal scores by row. Returns how many there are: fewer than k when there are fewer rows. The query
 * must be finite. */
int flat_search(struct flat *f, const float *query, int k, const uint8_t *allowed, struct flat_hit *hits);
/* How many rows' vectors the last search has read in full. */
int64_t flat_rescored(const struct flat *f);

/* Writes an index at PATH from a file of n * dim floats and nothing else. PATH appears complete or not at all. */
enum status flat_write(const char *path, const char *rows_path, int64_t n, int dim, struct err *e) MUST_USE;

#endif
