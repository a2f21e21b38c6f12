/* Ops that work row by row. Sixteen threads share a row. Thread `lane` takes the elements whose index is congruent to
 * it modulo sixteen. This is the order of tensor/ops.h, and it makes neighbouring threads read neighbouring memory. */
#include "cuda/shared/device.cuh"
#include "tensor/ops.h"

/* The rows of the current block's pass. The callers clamp rows past the end, so that whole warps reach the folds. */
#define ROW_LOOP(n_rows)                                                              \
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < (n_rows); \
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES))

static __device__ __forceinline__ float *row_of(struct cu_mat t, int64_t r) { return t.p + r * t.ld; }

/* 1/sqrt(mean(x^2) + eps). All sixteen threads get it. */
static __device__ __forceinline__ float rstd_of(const float *x, int64_t n, float eps, int lane) {
    float s = 0;
#pragma unroll 4
    for (int64_t j = lane; j < n; j += LANES) s = fmaf(x[j], x[j], s);
    return 1.0f / sqrtf(fold_sum(s) / (float)n + eps);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    rmsnorm_kernel(struct cu_mat y, struct cu_mat x, const float *gain, float eps) {
    const int lane = threadIdx.x % LANES;
    ROW_LOOP(x.rows) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, x.rows - 1);
        const float *in = row_of(x, t);
        const float r = rstd_of(in, x.cols, eps, lane);
        if (row >= x.rows) continue;
        float *out = row_of(y, t);
#pragma unroll 4
        for (int64_t j = lane; j < x.cols; j += LANES) out[j] = in[j] * r * gain[j];
    }
}

static int64_t row_grid(const struct cu_dev *d, int64_t rows) { return grid_for(d, rows, ROW_THREADS / LANES); }

extern "C" int cu_rmsnorm(const struct cu_dev *d, struct cu_mat y, struct cu_mat x, const float *gain, float eps) {
    if (x.rows <= 0) return 0;
    return LAUNCH(rmsnorm_kernel, row_grid(d, x.rows), ROW_THREADS, 0, d->stream, y, x, gain, eps);
}

/* dx (+)= r (dy gain - xh mean(dy gain xh)) with xh = x r. dx may be dy: a thread writes only what no other thread
 * reads. */
static __device__ __forceinline__ void norm_grad_row(float *dx, const float *dy, const float *x, const float *gain,
                                                     int64_t n, float r, int accumulate, int lane, bool live) {
    float s = 0;
#pragma unroll 4
    for (int64_t j = lane; j < n; j += LANES) s = fmaf(dy[j] * gain[j], x[j] * r, s);
    const float mean = -(fold_sum(s) / (float)n);
    if (!live) return;
#pragma unroll 4
    for (int64_t j = lane; j < n; j += LANES) {
        const float out = r * fmaf(x[j] * r, mean, dy[j] * gain[j]);
        dx[j] = accumulate ? dx[j] + out : out;
    }
}

static __global__ void __launch_bounds__(ROW_THREADS)
    rmsnorm_grad_kernel(struct cu_mat dx, struct cu_mat dy, struct cu_mat x, const float *gain, float eps,
                        int accumulate, float *rstd) {
    const int lane = threadIdx.x % LANES;
    ROW_LOOP(x.rows) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, x.rows - 1);
        const bool live = row < x.rows;
        const float *in = row_of(x, t);
        const float r = rstd_of(in, x.cols, eps, lane);
        if (live && lane == 0) rstd[t] = r;
        norm_grad_row(row_of(dx, t), row_of(dy, t), in, gain, x.cols, r, accumulate, lane, live);
    }
}

/* The same for wide rows, with a block a row: all threads fetch the row into shared memory, and sixteen of them add it
 * up. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rmsnorm_grad_wide_kernel(struct cu_mat dx, struct cu_mat dy, struct cu_mat x, const float *gain, float eps,
                             int accumulate, float *rstd) {
    DYNAMIC_SHARED(shared);
    __shared__ float told[2];
    const int64_t t = blockIdx.x, n = x.cols;
    const int tid = threadIdx.x, lane = tid % LANES;
    float *const xh = shared, *const d = shared + n;
    for (int64_t j = tid; j < n; j += ROW_THREADS) {
        xh[j] = row_of(x, t)[j];
        d[j] = row_of(dy, t)[j] * gain[j];
    }
    __syncthreads();
    if (tid < 32) {
        float s = 0;
#pragma unroll 16
        for (int64_t j = lane; j < n; j += LANES) s = fmaf(xh[j], xh[j], s);
        s = fold_sum(s);
        if (tid == 0) rstd[t] = told[0] = 1.0f / sqrtf(s / (float)n + eps);
    }
    __syncthreads();
    const float r = told[0];
    for (int64_t j = tid; j < n; j += ROW_THREADS) xh[j] = xh[j] * r;
    __syncthreads();
    if (tid < 32) {
        float s = 0;
#pragma unroll 16
        for (int64_t j = lane; j < n; j += LANES) s = fmaf(d[j], xh[j], s);
        s = fold_sum(s);
        if (tid == 0) told[1] = -(s / (float)n);
    }
    __syncthreads();
    const float mean = told[1];
    for (int64_t j = tid; j < n; j += ROW_THREADS) {
        const float out = r * fmaf(xh[j], mean, d[j]);
        row_of(dx, t)[j] = accumulate ? row_of(dx, t)[j] + out : out;
    }
}

/* partial[block][j] = the sum of dy xh over the block's rows, with one thread a column. */
static __global__ void gain_partial_kernel(float *partial, struct cu_mat dy, struct cu_mat x, const float *rstd) {
    const int64_t j = (int64_t)blockIdx.x % ceil_div(x.cols, (int64_t)blockDim.x) * blockDim.x + threadIdx.x;
    const int64_t blk = (int64_t)blockIdx.x / ceil_div(x.cols, (int64_t)blockDim.x);
    if (j >= x.cols) return;
    const int64_t end = min64((blk + 1) * ROW_BLOCK, x.rows);
    float s = 0;
#pragma unroll 8
    for (int64_t t = blk * ROW_BLOCK; t < end; t++) s = fmaf(row_of(dy, t)[j], row_of(x, t)[j] * rstd[t], s);
    partial[blk * x.cols + j] = s;
}

/* out[j] += partial[b][j], with b ascending. */
static __global__ void fold_partial_kernel(float *out, const float *partial, int64_t blocks, int64_t n, int64_t ld) {
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    float s = out[j];
#pragma unroll 8
    for (int64_t b = 0; b < blocks; b++) s = s + partial[b * ld + j];
    out[j] = s;
}

enum { COLUMN_THREADS = 64, WIDE_ROW = 512, SHARED_ALWAYS = 47 * 1024 };

extern "C" int cu_fold_partial(const struct cu_dev *d, float *out, const float *partial, int64_t blocks, int64_t n,
                               int64_t ld) {
    return LAUNCH(fold_partial_kernel, ceil_div(n, COLUMN_THREADS), COLUMN_THREADS, 0, d->stream, out, partial, blocks,
                  n, ld);
}

extern "C" int cu_rmsnorm_grad(const struct cu_dev *d, struct cu_mat dx, float *dgain, struct cu_mat dy,
                               struct cu_mat x, const float *gain, float eps, int accumulate, float *rstd,
                               float *partial) {
    if (x.rows <= 0) return 0;
    const int64_t bytes = 2 * x.cols * (int64_t)sizeof(float);
    int rc;
    if (x.cols >= WIDE_ROW && bytes <= SHARED_ALWAYS)
        rc = LAUNCH(rmsnorm_grad_wide_kernel, x.rows, ROW_THREADS, bytes, d->stream, dx, dy, x, gain, eps, accumulate,
                    rstd);
    else
        rc = LAUNCH(rmsnorm_grad_kernel, row_grid(d, x.rows), ROW_THREADS, 0, d->stream, dx, dy, x, gain, eps,
                    accumulate, rstd);
    if (rc || !dgain || x.cols <= 0) return rc;
    const int64_t blocks = ceil_div(x.rows, ROW_BLOCK), columns = ceil_div(x.cols, COLUMN_THREADS);
    rc = LAUNCH(gain_partial_kernel, blocks * columns, COLUMN_THREADS, 0, d->stream, partial, dy, x, rstd);
    if (rc) return rc;
    return cu_fold_partial(d, dgain, partial, blocks, x.cols, x.cols);
}

/* ---- rotary embedding: a row here is one head of one token ---------------------------------------------------------
 */

static __global__ void __launch_bounds__(ROW_THREADS)
    rope_kernel(struct cu_mat qk, struct cu_mat qkv, struct cu_rope a) {
    const int lane = threadIdx.x % LANES;
    const int64_t heads = a.H + a.G, half = a.K / 2, n = qk.rows * heads;
    ROW_LOOP(n) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / heads, h = at % heads;
        const float *x = row_of(qkv, t) + h * a.K, *gain = h < a.H ? a.q_gain : a.k_gain;
        const float *cs = a.cos_t + (int64_t)a.pos[t] * half, *sn = a.sin_t + (int64_t)a.pos[t] * half;
        float *y = row_of(qk, t) + h * a.K;
        const float scale = h < a.H ? a.q_scale : 1.0f;
        /* A warp holds two heads, of which one may be normed and the other not. So the folds stand outside of the
         * branch. */
        const float r = a.q_gain || a.k_gain ? rstd_of(x, a.K, a.eps, lane) : 1.0f;
        if (i >= n) continue;
        for (int64_t j = lane; j < half; j += LANES) {
            float u = x[j], w = x[half + j];
            if (gain) {
                u = u * r * gain[j];
                w = w * r * gain[half + j];
            }
            const float ya = u * cs[j] - w * sn[j], yb = w * cs[j] + u * sn[j];
            y[j] = ya * scale;
            y[half + j] = yb * scale;
        }
    }
}

extern "C" int cu_rope(const struct cu_dev *d, struct cu_mat qk, struct cu_mat qkv, const struct cu_rope *a) {
    if (qk.rows <= 0) return 0;
    return LAUNCH(rope_kernel, row_grid(d, qk.rows * (a->H + a->G)), ROW_THREADS, 0, d->stream, qk, qkv, *a);
}

/* Turns the gradients back in place, and leaves each head's rstd for the steps that follow. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rope_turn_kernel(struct cu_mat dqkv, struct cu_mat qkv, struct cu_rope a, float *rstd) {
    const int lane = threadIdx.x % LANES;
    const int64_t heads = a.H + a.G, half = a.K / 2, n = dqkv.rows * heads;
    ROW_LOOP(n) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / heads, h = at % heads;
        const float *cs = a.cos_t + (int64_t)a.pos[t] * half, *sn = a.sin_t + (int64_t)a.pos[t] * half;
        float *y = row_of(dqkv, t) + h * a.K;
        const float scale = h < a.H ? a.q_scale : 1.0f;
        if (a.q_gain || a.k_gain) {
            const float r = rstd_of(row_of(qkv, t) + h * a.K, a.K, a.eps, lane);
            if (i < n && lane == 0) rstd[at] = r;
        }
        if (i >= n) continue;
        for (int64_t j = lane; j < half; j += LANES) {
            const float u = y[j], w = y[half + j], c = cs[j], s = -sn[j];
            const float ya = u * c - w * s, yb = w * c + u * s;
            y[j] = ya * scale;
            y[half + j] = yb * scale;
        }
    }
}

/* partial[block] has [0..K) for the query gain and [K..2K) for the key gain. Rows ascend, and within a row heads
 * ascend. */
static __global__ void rope_gain_kernel(float *partial, struct cu_mat dqkv, struct cu_mat qkv, struct cu_rope a,
                                        const float *rstd) {
    const int64_t per_block = ceil_div(2 * a.K, (int64_t)blockDim.x), heads = a.H + a.G;
    const int64_t j = (int64_t)blockIdx.x % per_block * blockDim.x + threadIdx.x, blk = (int64_t)blockIdx.x / per_block;
    if (j >= 2 * a.K) return;
    const int64_t end = min64((blk + 1) * ROW_BLOCK, qkv.rows), k = j % a.K;
    const int64_t h0 = j < a.K ? 0 : a.H, h1 = j < a.K ? a.H : heads;
    float s = 0;
    if (j < a.K ? a.q_gain != NULL : a.k_gain != NULL)
        for (int64_t t = blk * ROW_BLOCK; t < end; t++)
#pragma unroll 4
            for (int64_t h = h0; h < h1; h++) {
                const float xh = row_of(qkv, t)[h * a.K + k] * rstd[t * heads + h];
                s = fmaf(row_of(dqkv, t)[h * a.K + k], xh, s);
            }
    partial[blk * 2 * a.K + j] = s;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    rope_norm_grad_kernel(struct cu_mat dqkv, struct cu_mat qkv, struct cu_rope a, const float *rstd) {
    const int lane = threadIdx.x % LANES;
    const int64_t heads = a.H + a.G, n = dqkv.rows * heads;
    ROW_LOOP(n) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / heads, h = at % heads;
        const float *gain = h < a.H ? a.q_gain : a.k_gain;
        float *dy = row_of(dqkv, t) + h * a.K;
        norm_grad_row(dy, dy, row_of(qkv, t) + h * a.K,
                      gain       ? gain
                      : a.q_gain ? a.q_gain
                                 : a.k_gain,
                      a.K, rstd[at], 0, lane, i < n && gain != NULL);
    }
}

extern "C" int cu_rope_grad(const struct cu_dev *d, struct cu_mat dqkv, float *dq_gain, float *dk_gain,
                            struct cu_mat qkv, const struct cu_rope *a, float *rstd, float *partial) {
    if (dqkv.rows <= 0) return 0;
    const int64_t grid = row_grid(d, dqkv.rows * (a->H + a->G));
    int rc = LAUNCH(rope_turn_kernel, grid, ROW_THREADS, 0, d->stream, dqkv, qkv, *a, rstd);
    if (rc || !(a->q_gain || a->k_gain)) return rc;
    if (dq_gain) { /* This comes before the step below, which overwrites the turned gradients. */
        const int64_t blocks = ceil_div(dqkv.rows, ROW_BLOCK), columns = ceil_div(2 * a->K, COLUMN_THREADS);
        rc = LAUNCH(rope_gain_kernel, blocks * columns, COLUMN_THREADS, 0, d->stream, partial, dqkv, qkv, *a, rstd);
        if (rc) return rc;
        rc = cu_fold_partial(d, dq_gain, partial, blocks, a->K, 2 * a->K);
        if (rc) return rc;
        rc = cu_fold_partial(d, dk_gain, partial + a->K, blocks, a->K, 2 * a->K);
        if (rc) return rc;
    }
    return LAUNCH(rope_norm_grad_kernel, grid, ROW_THREADS, 0, d->stream, dqkv, qkv, *a, rstd);
}

/* ---- SwiGLU --------------------------------------------------------------------------------------------------------
 */

static __global__ void swiglu_kernel(struct cu_mat y, struct cu_mat gu) {
    const int64_t F = y.cols, n = y.rows * F, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int64_t t = i / F, j = i % F;
        const float *g = row_of(gu, t) + j;
        row_of(y, t)[j] = g[0] * sigmoid_lane(g[0]) * g[F];
    }
}

static __global__ void swiglu_grad_kernel(struct cu_mat dgu, struct cu_mat dy, struct cu_mat gu) {
    const int64_t F = dy.cols, n = dy.rows * F, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int64_t t = i / F, j = i % F;
        const float g = row_of(gu, t)[j], u = row_of(gu, t)[F + j], d = row_of(dy, t)[j], s = sigmoid_lane(g);
        const float slope = s * fmaf(g, 1.0f - s, 1.0f);
        row_of(dgu, t)[F + j] = d * (g * s);
        row_of(dgu, t)[j] = d * u * slope;
    }
}

extern "C" int cu_swiglu(const struct cu_dev *d, struct cu_mat y, struct cu_mat gu) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    return LAUNCH(swiglu_kernel, grid_for(d, n, 256), 256, 0, d->stream, y, gu);
}

extern "C" int cu_swiglu_grad(const struct cu_dev *d, struct cu_mat dgu, struct cu_mat dy, struct cu_mat gu) {
    const int64_t n = dy.rows * dy.cols;
    if (n <= 0) return 0;
    return LAUNCH(swiglu_grad_kernel, grid_for(d, n, 256), 256, 0, d->stream, dgu, dy, gu);
}

/* ---- log-probabilities ---------------------------------------------------------------------------------------------
 */

static __device__ __forceinline__ float row_max(const float *x, int64_t n, int lane) {
    const int64_t full = n & ~(int64_t)(LANES - 1);
    float m = __int_as_float(0xff800000); /* This is -infinity. */
#pragma unroll 4
    for (int64_t j = lane; j < full; j += LANES) m = m > x[j] ? m : x[j];
    return max_tail(fold_max(m), full + lane < n ? x[full + lane] : 0.0f, (int)(n - full));
}

static __global__ void __launch_bounds__(ROW_THREADS)
    logprob_kernel(struct cu_row_stats *out, struct cu_mat logits, const int32_t *targets) {
    const int lane = threadIdx.x % LANES;
    const int64_t V = logits.cols;
    ROW_LOOP(logits.rows) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, logits.rows - 1);
        const float *x = row_of(logits, t);
        const float max = row_max(x, V, lane);
        float s = 0, w = 0;
#pragma unroll 4
        for (int64_t j = lane; j < V; j += LANES) {
            const float d = x[j] - max, p = exp_lane(d);
            s = s + p;
            w = fmaf(p, d, w);
        }
        w = fold_sum(w);
        s = fold_sum(s);
        if (row >= logits.rows || lane) continue;
        out[t] = {targets[t], x[targets[t]], max, s, w};
    }
}

static __global__ void __launch_bounds__(ROW_THREADS)
    logprob_grad_kernel(struct cu_mat logits, const int32_t *targets, const float *g) {
    const int lane = threadIdx.x % LANES;
    const int64_t V = logits.cols;
    ROW_LOOP(logits.rows) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, logits.rows - 1);
        float *x = row_of(logits, t);
        const float max = row_max(x, V, lane);
        float s = 0;
#pragma unroll 4
        for (int64_t j = lane; j < V; j += LANES) s = s + exp_lane(x[j] - max);
        s = fold_sum(s);
        if (row >= logits.rows) continue;
        const float gt = g[t], c = -gt / s;
        const int64_t target = targets[t];
#pragma unroll 4
        for (int64_t j = lane; j < V; j += LANES) {
            const float y = c * exp_lane(x[j] - max);
            x[j] = j == target ? y + gt : y;
        }
    }
}

extern "C" int cu_logprob_rows(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits,
                               const int32_t *targets) {
    if (logits.rows <= 0) return 0;
    return LAUNCH(logprob_kernel, row_grid(d, logits.rows), ROW_THREADS, 0, d->stream, out, logits, targets);
}

extern "C" int cu_logprob_grad(const struct cu_dev *d, struct cu_mat logits, const int32_t *targets, const float *g) {
    if (logits.rows <= 0) return 0;
    return LAUNCH(logprob_grad_kernel, row_grid(d, logits.rows), ROW_THREADS, 0, d->stream, logits, targets, g);
}
