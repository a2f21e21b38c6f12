/* Ops without a product or a row sum: elementwise ops, rows by index, column sums, the optimizer, cache writes. */
#include "cuda/shared/device.cuh"
#include "tensor/ops.h"

enum { THREADS = 256 };

#define ELEMENT_LOOP(i, n)                                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step_ = (int64_t)gridDim.x * blockDim.x; i < (n); \
         i += step_)

static __global__ void axpby_kernel(struct cu_mat y, float a, struct cu_mat x, float b) {
    const int64_t cols = y.cols;
    ELEMENT_LOOP(i, y.rows * cols) {
        const int64_t r = i / cols, j = i % cols;
        float *out = y.p + r * y.ld + j;
        if (a == 0 && b == 0)
            *out = 0;
        else if (b == 0)
            *out = a * x.p[r * x.ld + j];
        else
            *out = a * x.p[r * x.ld + j] + b * *out;
    }
}

/* The usual case: rows whose length, stride and address allow access to 16 bytes at a time. */
static __global__ void axpby4_kernel(struct cu_mat y, float a, struct cu_mat x, float b) {
    const int64_t cols = y.cols / 4;
    ELEMENT_LOOP(i, y.rows * cols) {
        const int64_t r = i / cols, j = i % cols * 4;
        float4 *out = reinterpret_cast<float4 *>(y.p + r * y.ld + j);
        float4 v = make_float4(0, 0, 0, 0);
        if (a != 0 || b != 0) {
            v = *reinterpret_cast<const float4 *>(x.p + r * x.ld + j);
            v.x = a * v.x, v.y = a * v.y, v.z = a * v.z, v.w = a * v.w;
        }
        if (b != 0) {
            const float4 o = *out;
            v.x = v.x + b * o.x, v.y = v.y + b * o.y, v.z = v.z + b * o.z, v.w = v.w + b * o.w;
        }
        *out = v;
    }
}

extern "C" int cu_axpby(const struct cu_dev *d, struct cu_mat y, float a, struct cu_mat x, float b) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    if (y.cols % 4 == 0 && aligned16(y.p, y.ld) && aligned16(x.p, x.ld))
        return LAUNCH(axpby4_kernel, grid_for(d, n / 4, THREADS), THREADS, 0, d->stream, y, a, x, b);
    return LAUNCH(axpby_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, a, x, b);
}

extern "C" int cu_probe(void) {
    cudaFuncAttributes a;
    return (int)cudaFuncGetAttributes(&a, axpby_kernel);
}

static __global__ void gather_kernel(struct cu_mat y, const float *x, int64_t ldx, const int32_t *rows,
                                     const int32_t *drawn) {
    const int64_t cols = y.cols;
    ELEMENT_LOOP(i, y.rows * cols) {
        const int64_t r = i / cols, j = i % cols;
        y.p[r * y.ld + j] = x[row_or_drawn(rows[r], drawn) * ldx + j];
    }
}

extern "C" int cu_gather_rows(const struct cu_dev *d, struct cu_mat y, const float *x, int64_t ldx, const int32_t *rows,
                              const int32_t *drawn) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    return LAUNCH(gather_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, x, ldx, rows, drawn);
}

/* One block works on a destination and a run of columns. It adds the rows in order. */
static __global__ void scatter_kernel(float *y, int64_t ldy, struct cu_mat x, const float *scale, const int32_t *dst,
                                      const int32_t *start, const int32_t *order) {
    const int64_t per_row = ceil_div(x.cols, (int64_t)blockDim.x), u = (int64_t)blockIdx.x / per_row;
    const int64_t j = (int64_t)blockIdx.x % per_row * blockDim.x + threadIdx.x;
    if (j >= x.cols) return;
    float *out = y + (int64_t)dst[u] * ldy + j;
    float s = *out;
    const int32_t end = start[u + 1];
#pragma unroll 8
    for (int32_t i = start[u]; i < end; i++) {
        const float v = x.p[(int64_t)order[i] * x.ld + j];
        s = s + (scale ? scale[order[i]] * v : v);
    }
    *out = s;
}

extern "C" int cu_scatter_add_rows(const struct cu_dev *d, float *y, int64_t ldy, struct cu_mat x, const float *scale,
                                   int64_t n_dst, const int32_t *dst, const int32_t *start, const int32_t *order) {
    if (n_dst <= 0 || x.cols <= 0) return 0;
    const int threads = x.cols <= 64 ? 64 : 128;
    return LAUNCH(scatter_kernel, n_dst * ceil_div(x.cols, threads), threads, 0, d->stream, y, ldy, x, scale, dst,
                  start, order);
}

/* ---- column sums: a block fetches BIAS_ROWS rows of 32 columns together, and one warp adds them up in order ---------
 */

/* Rows pass through shared memory, BIAS_ROWS at a time. The next ones are fetched while the first warp adds these
 * up. */
enum { BIAS_COLS = 32, BIAS_ROWS = 128 };

static __global__ void __launch_bounds__(THREADS) bias_grad_kernel(float *db, struct cu_mat dy) {
    __shared__ float tile[2][BIAS_ROWS][BIAS_COLS];
    enum { PER = BIAS_ROWS * BIAS_COLS / THREADS };
    const int col = threadIdx.x % BIAS_COLS, first = threadIdx.x / BIAS_COLS;
    const int64_t j = (int64_t)blockIdx.x * BIAS_COLS + col;
    float s = first == 0 && j < dy.cols ? db[j] : 0, next[PER];
    const auto fetch = [&](int64_t t0) {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int64_t t = t0 + first + i * (THREADS / BIAS_COLS);
            next[i] = j < dy.cols && t < dy.rows ? dy.p[t * dy.ld + j] : 0;
        }
    };
    int buf = 0;
    fetch(0);
    for (int64_t t0 = 0; t0 < dy.rows; t0 += BIAS_ROWS, buf ^= 1) {
#pragma unroll
        for (int i = 0; i < PER; i++) tile[buf][first + i * (THREADS / BIAS_COLS)][col] = next[i];
        fetch(t0 + BIAS_ROWS);
        __syncthreads(); /* One barrier is enough, because the next pass writes the other buffer. */
        if (first == 0) {
            const int n = (int)min64(BIAS_ROWS, dy.rows - t0);
#pragma unroll 16
            for (int r = 0; r < n; r++) s = s + tile[buf][r][col];
        }
    }
    if (first == 0 && j < dy.cols) db[j] = s;
}

extern "C" int cu_bias_grad(const struct cu_dev *d, float *db, struct cu_mat dy) {
    if (dy.rows <= 0 || dy.cols <= 0) return 0;
    return LAUNCH(bias_grad_kernel, ceil_div(dy.cols, BIAS_COLS), THREADS, 0, d->stream, db, dy);
}

/* ---- optimizer -----------------------------------------------------------------------------------------------------
 */

static __device__ __forceinline__ void adamw_one(float &w, float &m, float &v, float g, const struct cu_adamw &a) {
    const float gi = g * a.scale, wi = w * a.decay;
    m = m + (1.0f - a.beta1) * (gi - m);
    v = v * a.beta2 + (1.0f - a.beta2) * gi * gi;
    w = wi - a.step_size * m / (sqrtf(v) * a.inv_sqrt_bias2 + a.eps);
}
static __global__ void adamw_kernel(float *w, float *m, float *v, const float *g, int64_t n, struct cu_adamw a) {
    ELEMENT_LOOP(i, n) adamw_one(w[i], m[i], v[i], g[i], a);
}
/* Four elements at a time: n is a multiple of four, and everything is aligned to 16 bytes. */
static __global__ void __launch_bounds__(THREADS)
    adamw4_kernel(float *w, float *m, float *v, const float *g, int64_t n, struct cu_adamw a) {
    ELEMENT_LOOP(i, n / 4) {
        float4 *const pw = reinterpret_cast<float4 *>(w) + i, *const pm = reinterpret_cast<float4 *>(m) + i,
                      *const pv = reinterpret_cast<float4 *>(v) + i;
        const float4 gi = reinterpret_cast<const float4 *>(g)[i];
        float4 wi = *pw, mi = *pm, vi = *pv;
        adamw_one(wi.x, mi.x, vi.x, gi.x, a);
        adamw_one(wi.y, mi.y, vi.y, gi.y, a);
        adamw_one(wi.z, mi.z, vi.z, gi.z, a);
        adamw_one(wi.w, mi.w, vi.w, gi.w, a);
        *pm = mi;
        *pv = vi;
        *pw = wi;
    }
}

extern "C" int cu_adamw(const struct cu_dev *d, float *w, float *m, float *v, const float *g, int64_t n,
                        const struct cu_adamw *a) {
    const int64_t fours =
        aligned16(w, 4) && aligned16(m, 4) && aligned16(v, 4) && aligned16(g, 4) ? n & ~(int64_t)3 : 0;
    int rc = 0;
    if (fours > 0)
        rc = LAUNCH(adamw4_kernel, grid_for(d, fours / 4, THREADS), THREADS, 0, d->stream, w, m, v, g, fours, *a);
    if (rc || n <= fours) return rc;
    w += fours, m += fours, v += fours, g += fours;
    return LAUNCH(adamw_kernel, grid_for(d, n - fours, THREADS), THREADS, 0, d->stream, w, m, v, g, n - fours, *a);
}

static __device__ __forceinline__ double square(float x) { return (double)x * (double)x; }
static __device__ __forceinline__ double square(double x) { return x; } /* Makes the sum a sum of squares. */

/* sums[b] = the sum of the squares of SUM_BLOCK floats, or of so many sums. A warp takes 32 blocks, one for each
 * thread. Its threads fetch pieces of all 32 blocks together, so that reads are coalesced. */
template <typename T>
static __global__ void __launch_bounds__(32) square_blocks_kernel(double *sums, const T *x, int64_t n) {
    __shared__ T piece[32][33];
    const int lane = threadIdx.x;
    const int64_t b0 = (int64_t)blockIdx.x * 32;
    double s = 0;
    for (int64_t c = 0; c < SUM_BLOCK; c += 32) {
#pragma unroll
        for (int r = 0; r < 32; r++) {
            const int64_t i = (b0 + r) * SUM_BLOCK + c + lane;
            piece[r][lane] = i < n ? x[i] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 32; k++) s = s + square(piece[lane][k]);
        __syncthreads();
    }
    if ((b0 + lane) * SUM_BLOCK < n) sums[b0 + lane] = s;
}

static __global__ void __launch_bounds__(THREADS) sum_blocks_kernel(double *out, const double *sums, int64_t blocks) {
    __shared__ double piece[THREADS];
    double s = 0;
    for (int64_t b0 = 0; b0 < blocks; b0 += THREADS) {
        if (b0 + threadIdx.x < blocks) piece[threadIdx.x] = sums[b0 + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            const int n = (int)min64(THREADS, blocks - b0);
            for (int i = 0; i < n; i++) s = s + piece[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = s;
}

static int64_t sum_blocks(int64_t n) { return n > 0 ? ceil_div(n, (int64_t)SUM_BLOCK) : 0; }

extern "C" int cu_sum_squares(const struct cu_dev *d, double *out, double *sums, const float *x, int64_t n) {
    const int64_t blocks = sum_blocks(n), runs = sum_blocks(blocks);
    double *const of_runs = sums + blocks;
    int rc = 0;
    if (blocks > 0) rc = LAUNCH(square_blocks_kernel<float>, ceil_div(blocks, 32), 32, 0, d->stream, sums, x, n);
    if (blocks > 0 && !rc)
        rc = LAUNCH(square_blocks_kernel<double>, ceil_div(runs, 32), 32, 0, d->stream, of_runs, sums, blocks);
    return rc ? rc : LAUNCH(sum_blocks_kernel, 1, THREADS, 0, d->stream, out, of_runs, runs);
}

/* ---- cache ---------------------------------------------------------------------------------------------------------
 */

/* One thread block works on a task. tensor/ops.h has the layout. */
static __global__ void __launch_bounds__(THREADS)
    kv_write_kernel(struct cu_mat k, struct cu_mat v, const struct cu_kv_task *tasks, int64_t G, int64_t K, int64_t Kp,
                    float *kv, int64_t kv_stride) {
    const struct cu_kv_task t = tasks[blockIdx.x];
    float *const keys = kv + t.block * kv_stride, *const values = keys + G * K * KV_BLOCK;
    const int64_t n = t.rows * G * Kp;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const int64_t r = i / (G * Kp), g = i / Kp % G, d = i % Kp, slot = t.slot + r;
        if (d < K) {
            keys[(g * K + d) * KV_BLOCK + slot] = k.p[(t.row + r) * k.ld + g * K + d];
            values[(g * KV_BLOCK + slot) * Kp + d] = v.p[(t.row + r) * v.ld + g * K + d];
        } else {
            values[(g * KV_BLOCK + slot) * Kp + d] = 0;
        }
    }
}

extern "C" int cu_kv_write(const struct cu_dev *d, struct cu_mat k, struct cu_mat v, const struct cu_kv_task *task,
                           int64_t n_tasks, int64_t G, int64_t K, float *kv, int64_t kv_stride) {
    if (n_tasks <= 0) return 0;
    return LAUNCH(kv_write_kernel, n_tasks, THREADS, 0, d->stream, k, v, task, G, K, kv_pad_dim(K), kv, kv_stride);
}
