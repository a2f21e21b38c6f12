/* Gradients of row and elementwise ops in bfloat16: SwiGLU and the rotary embedding with its QK-norm. Sums are float32,
 * results are rounded once. */
#include "cuda/shared/bf16.cuh"
#include "tensor/ops.h"

enum { THREADS = 256, COLUMN_THREADS = 64, MAX_HALF = 4 };

/* ---- SwiGLU -------------------------------------------------------------------------------------------------------
 */

static __device__ __forceinline__ uint32_t gate_pair(uint32_t g, uint32_t u) {
    return bf16_pair(gate16(low_float(g), low_float(u)), gate16(high_float(g), high_float(u)));
}

static __global__ void swiglu_grad16_kernel(struct cu_mat16 dgu, struct cu_mat16 dy, struct cu_mat16 gu) {
    const int64_t F = dy.cols, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < dy.rows * F; i += step) {
        const int64_t t = i / F, j = i % F;
        const uint16_t *const in = gu.p + t * gu.ld + j;
        const struct gate_grad x = grad_of_gate(bf16_float(dy.p[t * dy.ld + j]), bf16_float(in[0]), bf16_float(in[F]));
        dgu.p[t * dgu.ld + j] = bf16_of(x.gate);
        dgu.p[t * dgu.ld + F + j] = bf16_of(x.up);
    }
}

static __device__ __forceinline__ void grad_pair(uint32_t *gate, uint32_t *up, uint32_t d, uint32_t g, uint32_t u) {
    const struct gate_grad low = grad_of_gate(low_float(d), low_float(g), low_float(u));
    const struct gate_grad high = grad_of_gate(high_float(d), high_float(g), high_float(u));
    *gate = bf16_pair(low.gate, high.gate);
    *up = bf16_pair(low.up, high.up);
}

/* Eight at a time; with BOTH also y. */
template <bool BOTH>
static __global__ void swiglu_grad16_vec_kernel(struct cu_mat16 dgu, struct cu_mat16 y, struct cu_mat16 dy,
                                                struct cu_mat16 gu) {
    const int64_t F = dy.cols, per_row = F / 8, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < dy.rows * per_row; i += step) {
        const int64_t t = i / per_row, j = i % per_row * 8;
        const uint4 d = load16(dy.p + t * dy.ld + j), g = load16(gu.p + t * gu.ld + j),
                    u = load16(gu.p + t * gu.ld + F + j);
        uint4 gate, up;
        grad_pair(&gate.x, &up.x, d.x, g.x, u.x);
        grad_pair(&gate.y, &up.y, d.y, g.y, u.y);
        grad_pair(&gate.z, &up.z, d.z, g.z, u.z);
        grad_pair(&gate.w, &up.w, d.w, g.w, u.w);
        if (BOTH)
            *reinterpret_cast<uint4 *>(y.p + t * y.ld + j) =
                make_uint4(gate_pair(g.x, u.x), gate_pair(g.y, u.y), gate_pair(g.z, u.z), gate_pair(g.w, u.w));
        *reinterpret_cast<uint4 *>(dgu.p + t * dgu.ld + j) = gate;
        *reinterpret_cast<uint4 *>(dgu.p + t * dgu.ld + F + j) = up;
    }
}

static int vec8(struct cu_mat16 m) { return ((uintptr_t)m.p & 15) == 0 && m.ld % 8 == 0; }

extern "C" int cu_swiglu_grad16(const struct cu_dev *d, struct cu_mat16 dgu, struct cu_mat16 dy, struct cu_mat16 gu) {
    const int64_t n = dy.rows * dy.cols;
    if (n <= 0) return 0;
    if (dy.cols % 8 == 0 && vec8(dy) && vec8(gu) && vec8(dgu))
        return LAUNCH(swiglu_grad16_vec_kernel<false>, grid_for(d, n / 8, 128), 128, 0, d->stream, dgu, dy, dy, gu);
    return LAUNCH(swiglu_grad16_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, dgu, dy, gu);
}

extern "C" int cu_swiglu_both16(const struct cu_dev *d, struct cu_mat16 dgu, struct cu_mat16 y, struct cu_mat16 dy,
                                struct cu_mat16 gu, int *done) {
    const int64_t n = dy.rows * dy.cols;
    *done = n <= 0 || (dy.cols % 8 == 0 && vec8(y) && vec8(dy) && vec8(gu) && vec8(dgu));
    if (n <= 0 || !*done) return 0;
    return LAUNCH(swiglu_grad16_vec_kernel<true>, grid_for(d, n / 8, 128), 128, 0, d->stream, dgu, y, dy, gu);
}

/* ---- norm ---------------------------------------------------------------------------------------------------------
 */

/* A row at a time, all of which is asked for at once: with xh = x r, dx += r (dy gain - xh mean(dy gain xh)). A block
 * takes one row, or with GAIN up to GAIN_ROWS, of which partial[block] gets the sum of dy xh, rows ascending. */
enum { GAIN_ROWS = CUDA_GAIN_ROWS };
template <int N_THREADS, int QUADS, bool GAIN>
static __global__ void __launch_bounds__(N_THREADS)
    rmsnorm_back16_kernel(struct cu_mat dx, struct cu_mat16 y, struct cu_mat16 dy, struct cu_mat x, const float *gain,
                          float eps, uint16_t *rounded, float *partial) {
    __shared__ float2 parts[2][N_THREADS / 32]; /* of this row and the next: a barrier a row is enough */
    const int64_t n = x.cols, first = (int64_t)blockIdx.x * (GAIN ? GAIN_ROWS : 1);
    const int64_t end = GAIN ? min64(first + GAIN_ROWS, x.rows) : first + 1;
    const int tid = threadIdx.x;
    float4 c[QUADS]; /* the gain's gradient */
#pragma unroll
    for (int i = 0; i < QUADS; i++) c[i] = make_float4(0, 0, 0, 0);
    for (int64_t t = first; t < end; t++) {
        float2 *const part = parts[t & 1];
        float4 u[QUADS], v[QUADS], w[QUADS], g[QUADS];
        uint2 d[QUADS];
        float2 s = make_float2(0, 0); /* of x^2, of dy gain x */
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int64_t j = (i * N_THREADS + tid) * 4;
            const bool in = j < n;
            const float4 none = make_float4(0, 0, 0, 0);
            u[i] = in ? *reinterpret_cast<const float4 *>(x.p + t * x.ld + j) : none;
            d[i] = in ? *reinterpret_cast<const uint2 *>(dy.p + t * dy.ld + j) : make_uint2(0, 0);
            g[i] = in ? *reinterpret_cast<const float4 *>(gain + j) : none;
            w[i] = in ? *reinterpret_cast<const float4 *>(dx.p + t * dx.ld + j) : none;
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            v[i] = make_float4(low_float(d[i].x) * g[i].x, high_float(d[i].x) * g[i].y, low_float(d[i].y) * g[i].z,
                               high_float(d[i].y) * g[i].w);
            s.x = fmaf(u[i].w, u[i].w, fmaf(u[i].z, u[i].z, fmaf(u[i].y, u[i].y, fmaf(u[i].x, u[i].x, s.x))));
            s.y = fmaf(v[i].w, u[i].w, fmaf(v[i].z, u[i].z, fmaf(v[i].y, u[i].y, fmaf(v[i].x, u[i].x, s.y))));
        }
        s = make_float2(warp_sum(s.x), warp_sum(s.y));
        if (tid % 32 == 0) part[tid / 32] = s;
        __syncthreads();
        s = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < N_THREADS / 32; i++) s = make_float2(s.x + part[i].x, s.y + part[i].y);
        const float r = 1.0f / sqrtf(s.x / (float)n + eps), mean = s.y * r / (float)n;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int64_t j = (i * N_THREADS + tid) * 4;
            if (j >= n) break;
            const float4 h = make_float4(u[i].x * r, u[i].y * r, u[i].z * r, u[i].w * r);
            const float4 o = make_float4(fmaf(r, v[i].x - h.x * mean, w[i].x), fmaf(r, v[i].y - h.y * mean, w[i].y),
                                         fmaf(r, v[i].z - h.z * mean, w[i].z), fmaf(r, v[i].w - h.w * mean, w[i].w));
            *reinterpret_cast<float4 *>(dx.p + t * dx.ld + j) = o;
            *reinterpret_cast<uint2 *>(y.p + t * y.ld + j) =
                make_uint2(bf16_pair(h.x * g[i].x, h.y * g[i].y), bf16_pair(h.z * g[i].z, h.w * g[i].w));
            if (rounded)
                *reinterpret_cast<uint2 *>(rounded + t * n + j) = make_uint2(bf16_pair(o.x, o.y), bf16_pair(o.z, o.w));
            if (GAIN)
                c[i] = make_float4(fmaf(low_float(d[i].x), h.x, c[i].x), fmaf(high_float(d[i].x), h.y, c[i].y),
                                   fmaf(low_float(d[i].y), h.z, c[i].z), fmaf(high_float(d[i].y), h.w, c[i].w));
        }
    }
#pragma unroll
    for (int i = 0; GAIN && i < QUADS; i++) {
        const int64_t j = (i * N_THREADS + tid) * 4;
        if (j < n) *reinterpret_cast<float4 *>(partial + (int64_t)blockIdx.x * n + j) = c[i];
    }
}

template <int N_THREADS, int QUADS>
static int norm_back(const struct cu_dev *d, struct cu_mat dx, struct cu_mat16 y, struct cu_mat16 dy, struct cu_mat x,
                     const float *gain, float eps, uint16_t *rounded, float *dgain, float *partial) {
    if (!dgain)
        return LAUNCH((rmsnorm_back16_kernel<N_THREADS, QUADS, false>), x.rows, N_THREADS, 0, d->stream, dx, y, dy, x,
                      gain, eps, rounded, partial);
    const int64_t blocks = ceil_div(x.rows, GAIN_ROWS);
    const int rc = LAUNCH((rmsnorm_back16_kernel<N_THREADS, QUADS, true>), blocks, N_THREADS, 0, d->stream, dx, y, dy,
                          x, gain, eps, rounded, partial);
    return rc ? rc : cu_add_up(d, dgain, partial, blocks, x.cols);
}

extern "C" int cu_rmsnorm_back16(const struct cu_dev *d, struct cu_mat dx, struct cu_mat16 y, struct cu_mat16 dy,
                                 struct cu_mat x, const float *gain, float eps, uint16_t *rounded, float *dgain,
                                 float *partial, int *done) {
    *done = x.rows <= 0 ||
            (cuda_norm_back_takes(x.cols) && aligned16(dx.p, dx.ld) && aligned16(x.p, x.ld) && aligned16(gain, 4) &&
             (((uintptr_t)y.p | (uintptr_t)dy.p) & 7) == 0 && y.ld % 4 == 0 && dy.ld % 4 == 0);
    if (x.rows <= 0 || !*done) return 0;
    if (x.cols <= 1536) return norm_back<128, 3>(d, dx, y, dy, x, gain, eps, rounded, dgain, partial);
    return norm_back<256, 4>(d, dx, y, dy, x, gain, eps, rounded, dgain, partial);
}

/* ---- sums over rows -----------------------------------------------------------------------------------------------
 */

enum { RUNS = 8, SUM_ROWS = CUDA_BIAS_ROWS };

/* out[j] += the sum over b of partial[b][j]: RUNS warps each take every RUNSth b ascending, then theirs in order. */
static __global__ void __launch_bounds__(RUNS * 32)
    add_up_kernel(float *out, const float *partial, int64_t blocks, int64_t n) {
    __shared__ float part[RUNS][32];
    const int col = threadIdx.x % 32, run = threadIdx.x / 32;
    const int64_t j = (int64_t)blockIdx.x * 32 + col;
    float s = 0;
    if (j < n) {
#pragma unroll 8
        for (int64_t b = run; b < blocks; b += RUNS) s = s + partial[b * n + j];
    }
    part[run][col] = s;
    __syncthreads();
    if (run > 0 || j >= n) return;
    s = out[j];
#pragma unroll
    for (int i = 0; i < RUNS; i++) s = s + part[i][col];
    out[j] = s;
}

extern "C" int cu_add_up(const struct cu_dev *d, float *out, const float *partial, int64_t blocks, int64_t n) {
    if (blocks <= 0 || n <= 0) return 0;
    return LAUNCH(add_up_kernel, ceil_div(n, 32), RUNS * 32, 0, d->stream, out, partial, blocks, n);
}

/* partial[block][j] = the sum of SUM_ROWS rows of dy; a lane has two columns, a warp every RUNSth row. */
static __global__ void __launch_bounds__(RUNS * 32) bias_grad16_kernel(float *partial, struct cu_mat16 dy) {
    __shared__ float2 part[RUNS][32];
    const int64_t across = ceil_div(dy.cols, (int64_t)64), t0 = (int64_t)blockIdx.x / across * SUM_ROWS;
    const int lane = threadIdx.x % 32, run = threadIdx.x / 32;
    const int64_t j = (int64_t)blockIdx.x % across * 64 + lane * 2, end = min64(t0 + SUM_ROWS, dy.rows);
    float2 s = make_float2(0, 0);
    if (j < dy.cols) {
#pragma unroll 8
        for (int64_t t = t0 + run; t < end; t += RUNS) {
            const uint32_t v = *reinterpret_cast<const uint32_t *>(dy.p + t * dy.ld + j);
            s = make_float2(s.x + low_float(v), s.y + high_float(v));
        }
    }
    part[run][lane] = s;
    __syncthreads();
    if (run > 0 || j >= dy.cols) return;
#pragma unroll
    for (int i = 1; i < RUNS; i++) s = make_float2(s.x + part[i][lane].x, s.y + part[i][lane].y);
    *reinterpret_cast<float2 *>(partial + t0 / SUM_ROWS * dy.cols + j) = s;
}

extern "C" int cu_bias_grad16(const struct cu_dev *d, float *db, struct cu_mat16 dy, float *partial, int *done) {
    const int64_t blocks = ceil_div(dy.rows, SUM_ROWS);
    *done = cuda_bias_grad_takes(dy.cols) && dy.ld % 2 == 0 && ((uintptr_t)dy.p & 3) == 0;
    if (!*done || dy.rows <= 0 || dy.cols <= 0) return 0;
    const int rc =
        LAUNCH(bias_grad16_kernel, blocks * ceil_div(dy.cols, (int64_t)64), RUNS * 32, 0, d->stream, partial, dy);
    return rc ? rc : cu_add_up(d, db, partial, blocks, dy.cols);
}

/* ---- weights ------------------------------------------------------------------------------------------------------
 */

/* Sixteen blocks an array. */
static __global__ void __launch_bounds__(THREADS) round_list_kernel(const struct cu_round_list l) {
    enum { BLOCKS = 16 };
    const int64_t i = blockIdx.x / BLOCKS, n = l.n[i], step = BLOCKS * THREADS * 4;
    const float *const from = l.from[i];
    uint16_t *const to = l.to[i];
    const bool vec = ((uintptr_t)from & 15) == 0 && ((uintptr_t)to & 7) == 0;
    for (int64_t j = ((int64_t)(blockIdx.x % BLOCKS) * THREADS + threadIdx.x) * 4; j < n; j += step) {
        if (vec && j + 4 <= n) {
            const float4 v = *reinterpret_cast<const float4 *>(from + j);
            *reinterpret_cast<uint2 *>(to + j) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
            continue;
        }
        for (int64_t k = j; k < min64(j + 4, n); k++) to[k] = bf16_of(from[k]);
    }
}

extern "C" int cu_round_list16(const struct cu_dev *d, const struct cu_round_list *l) {
    return l->count > 0 ? LAUNCH(round_list_kernel, l->count * 16, THREADS, 0, d->stream, *l) : 0;
}

/* ---- rotary embedding: sixteen threads a head, as in rows.cu -------------------------------------------------------
 */

/* 1 / root mean square of a head, of the K elements at x; all sixteen threads get it. */
static __device__ __forceinline__ float head_rstd(const float *x, int64_t K, float eps, int lane) {
    float s = 0;
    for (int64_t j = lane; j < K; j += LANES) s = fmaf(x[j], x[j], s);
    return 1.0f / sqrtf(fold_sum(s) / (float)K + eps);
}

/* Gradients (u, w) at (j, j + K/2) turned back. */
struct turned {
    float u, w;
};
static __device__ __forceinline__ struct turned turn_back(const uint16_t *dy, const struct cu_rope &a, int64_t t,
                                                          int64_t h, int64_t j) {
    const int64_t half = a.K / 2;
    const float u = bf16_float(dy[j]), w = bf16_float(dy[half + j]), scale = h < a.H ? a.q_scale : 1.0f;
    const float c = a.cos_t[(int64_t)a.pos[t] * half + j], s = a.sin_t[(int64_t)a.pos[t] * half + j];
    return {(u * c + w * s) * scale, (w * c - u * s) * scale};
}

static __global__ void __launch_bounds__(ROW_THREADS)
    head_rstd_kernel(float *rstd, struct cu_mat qkv, struct cu_rope a) {
    const int lane = threadIdx.x % LANES;
    const int64_t heads = a.H + a.G, n = qkv.rows * heads;
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < n;
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES)) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1);
        const float r = head_rstd(qkv.p + at / heads * qkv.ld + at % heads * a.K, a.K, a.eps, lane);
        if (i < n && lane == 0) rstd[at] = r;
    }
}

/* partial[block][0..K) for the query gain, [K..2K) for the key gain: rows ascending, heads ascending within a row. */
static __global__ void head_gain_kernel(float *partial, struct cu_mat16 dqkv, struct cu_mat qkv, struct cu_rope a,
                                        const float *rstd) {
    const int64_t per_block = ceil_div(2 * a.K, (int64_t)blockDim.x), heads = a.H + a.G, half = a.K / 2;
    const int64_t j = (int64_t)blockIdx.x % per_block * blockDim.x + threadIdx.x, blk = (int64_t)blockIdx.x / per_block;
    if (j >= 2 * a.K) return;
    const int64_t end = min64((blk + 1) * ROW_BLOCK, qkv.rows), k = j % a.K;
    const int64_t h0 = j < a.K ? 0 : a.H, h1 = j < a.K ? a.H : heads;
    float s = 0;
    if (j < a.K ? a.q_gain != NULL : a.k_gain != NULL)
        for (int64_t t = blk * ROW_BLOCK; t < end; t++)
            for (int64_t h = h0; h < h1; h++) {
                const struct turned x = turn_back(dqkv.p + t * dqkv.ld + h * a.K, a, t, h, k % half);
                s = fmaf(k < half ? x.u : x.w, qkv.p[t * qkv.ld + h * a.K + k] * rstd[t * heads + h], s);
            }
    partial[blk * 2 * a.K + j] = s;
}

/* With xh = x r: dx = r (dy gain - xh mean(dy gain xh)). A thread has up to MAX_HALF pairs of a head. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rope_grad16_kernel(struct cu_mat16 dqkv, struct cu_mat qkv, struct cu_rope a) {
    const int lane = threadIdx.x % LANES;
    const int64_t heads = a.H + a.G, half = a.K / 2, n = dqkv.rows * heads;
    const bool norm = a.q_gain || a.k_gain;
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < n;
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES)) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / heads, h = at % heads;
        uint16_t *const dy = dqkv.p + t * dqkv.ld + h * a.K;
        const float *const x = qkv.p + t * qkv.ld + h * a.K, *const gain = h < a.H ? a.q_gain : a.k_gain;
        float u[MAX_HALF], w[MAX_HALF], r = 1, mean = 0;
#pragma unroll
        for (int m = 0; m < MAX_HALF; m++) {
            const int64_t j = lane + m * LANES;
            if (j >= half) break;
            const struct turned v = turn_back(dy, a, t, h, j);
            u[m] = v.u, w[m] = v.w;
        }
        if (norm) { /* the folds are outside the branch on gain: a warp holds two heads */
            r = head_rstd(x, a.K, a.eps, lane);
            float s = 0;
#pragma unroll
            for (int m = 0; m < MAX_HALF; m++) {
                const int64_t j = lane + m * LANES;
                if (j >= half || !gain) break;
                u[m] *= gain[j], w[m] *= gain[half + j];
                s = fmaf(u[m], x[j] * r, s);
                s = fmaf(w[m], x[half + j] * r, s);
            }
            mean = fold_sum(s) / (float)a.K;
        }
        if (i >= n) continue;
#pragma unroll
        for (int m = 0; m < MAX_HALF; m++) {
            const int64_t j = lane + m * LANES;
            if (j >= half) break;
            if (gain) {
                u[m] = (u[m] - x[j] * r * mean) * r;
                w[m] = (w[m] - x[half + j] * r * mean) * r;
            }
            dy[j] = bf16_of(u[m]);
            dy[half + j] = bf16_of(w[m]);
        }
    }
}

/* Without norms of heads, a block a row: four pairs a thread. */
static __global__ void __launch_bounds__(THREADS) rope_grad16_plain_kernel(struct cu_mat16 dqkv, struct cu_rope a) {
    const int64_t t = blockIdx.x;
    const int half = (int)a.K / 2, per_head = half / 4, heads = (int)(a.H + a.G);
    const float *const cs = a.cos_t + (int64_t)a.pos[t] * half, *const sn = a.sin_t + (int64_t)a.pos[t] * half;
    uint16_t *const dy = dqkv.p + t * dqkv.ld;
    for (int i = threadIdx.x; i < heads * per_head; i += THREADS) {
        const int h = i / per_head, j = i % per_head * 4;
        uint2 *const low = reinterpret_cast<uint2 *>(dy + h * (int)a.K + j), *const high = reinterpret_cast<uint2 *>(
                                                                                 dy + h * (int)a.K + half + j);
        const float4 c = *reinterpret_cast<const float4 *>(cs + j), s = *reinterpret_cast<const float4 *>(sn + j);
        const uint2 pu = *low, pw = *high;
        const float4 u = make_float4(low_float(pu.x), high_float(pu.x), low_float(pu.y), high_float(pu.y)),
                     w = make_float4(low_float(pw.x), high_float(pw.x), low_float(pw.y), high_float(pw.y));
        const float scale = h < a.H ? a.q_scale : 1.0f;
        *low = make_uint2(bf16_pair((u.x * c.x + w.x * s.x) * scale, (u.y * c.y + w.y * s.y) * scale),
                          bf16_pair((u.z * c.z + w.z * s.z) * scale, (u.w * c.w + w.w * s.w) * scale));
        *high = make_uint2(bf16_pair((w.x * c.x - u.x * s.x) * scale, (w.y * c.y - u.y * s.y) * scale),
                           bf16_pair((w.z * c.z - u.z * s.z) * scale, (w.w * c.w - u.w * s.w) * scale));
    }
}

extern "C" int cu_rope_grad16(const struct cu_dev *d, struct cu_mat16 dqkv, float *dq_gain, float *dk_gain,
                              struct cu_mat qkv, const struct cu_rope *a, float *rstd, float *partial) {
    if (dqkv.rows <= 0) return 0;
    if (!a->q_gain && !a->k_gain && a->K % 8 == 0 && aligned16(a->cos_t, 4) && aligned16(a->sin_t, 4) &&
        ((uintptr_t)dqkv.p & 7) == 0 && dqkv.ld % 4 == 0)
        return LAUNCH(rope_grad16_plain_kernel, dqkv.rows, THREADS, 0, d->stream, dqkv, *a);
    if (a->K / 2 > MAX_HALF * LANES) return (int)cudaErrorInvalidValue;
    const int64_t heads = dqkv.rows * (a->H + a->G), grid = grid_for(d, heads, ROW_THREADS / LANES);
    int rc = 0;
    if (dq_gain && (a->q_gain || a->k_gain)) { /* before the gradients are overwritten */
        const int64_t blocks = ceil_div(dqkv.rows, ROW_BLOCK), columns = ceil_div(2 * a->K, COLUMN_THREADS);
        rc = LAUNCH(head_rstd_kernel, grid, ROW_THREADS, 0, d->stream, rstd, qkv, *a);
        if (!rc)
            rc = LAUNCH(head_gain_kernel, blocks * columns, COLUMN_THREADS, 0, d->stream, partial, dqkv, qkv, *a, rstd);
        if (!rc) rc = cu_fold_partial(d, dq_gain, partial, blocks, a->K, 2 * a->K);
        if (!rc) rc = cu_fold_partial(d, dk_gain, partial + a->K, blocks, a->K, 2 * a->K);
    }
    return rc ? rc : LAUNCH(rope_grad16_kernel, grid, ROW_THREADS, 0, d->stream, dqkv, qkv, *a);
}
