/* tensor: the contract between model code and the code that computes. Owns the view type, the op contract (ops.h) and
 * the backend table (backend.h). May include base only. Start at ops.h.
 *
 * Dimension letters, fixed for the whole program:
 *   T rows (tokens of a packed batch)   S sequences     D hidden        F feed-forward   V vocabulary
 *   H query heads   G key/value heads   K head dim      L layers        R LoRA rank      N, M outputs, rows of a matmul
 */
#ifndef KERNELRL_TENSOR_H
#define KERNELRL_TENSOR_H

#include "base/base.h"

enum dtype { DT_F32, DT_F16, DT_BF16 };
static inline size_t dtype_bytes(enum dtype t) { return t == DT_F32 ? 4 : 2; }

/* A view of rows: element (r,c) is data[r*ld + c]. Never owns. Whether data is a host or a device address is known to
 * the backend alone. */
struct tensor {
    void *data;
    enum dtype dt;
    int64_t rows, cols, ld;
};

static inline struct tensor tensor_of(void *p, enum dtype dt, int64_t rows, int64_t cols) {
    return (struct tensor){p, dt, rows, cols, cols};
}
static inline struct tensor tensor_f32(float *p, int64_t rows, int64_t cols, int64_t ld) {
    return (struct tensor){p, DT_F32, rows, cols, ld};
}
static inline struct tensor tensor_full(float *p, int64_t rows, int64_t cols) {
    return tensor_f32(p, rows, cols, cols);
}
/* Columns [c0, c0+n) of a view: how q, k and v are cut out of the fused projection. */
static inline struct tensor tensor_cols(struct tensor t, int64_t c0, int64_t n) {
    ASSERT(c0 >= 0 && n >= 0 && c0 + n <= t.cols);
    return (struct tensor){(char *)t.data + (size_t)c0 * dtype_bytes(t.dt), t.dt, t.rows, n, t.ld};
}
/* Rows [r0, r0+n). */
static inline struct tensor tensor_rows(struct tensor t, int64_t r0, int64_t n) {
    ASSERT(r0 >= 0 && n >= 0 && r0 + n <= t.rows);
    return (struct tensor){(char *)t.data + (size_t)(r0 * t.ld) * dtype_bytes(t.dt), t.dt, n, t.cols, t.ld};
}

#endif
