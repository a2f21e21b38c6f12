/* Row and elementwise ops with bfloat16 on one side. Norms add up a row in an order of their own: a block a row, each
 * thread over every 256th quad, then a tree. */
#include "cuda/shared/bf16.cuh"
#include "tensor/ops.h"

enum { THREADS = 256 };

#define ELEMENT_LOOP(i, n)                                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step_ = (int64_t)gridDim.x * blockDim.x; i < (n); \
         i += step_)

/* Sum over the block in a fixed order; every thread gets it. */
static __device__ __forceinline__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float s = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) s = s + shared[i];
    return s;
}

/* A row of up to QUADS * 1024 elements stays in registers; longer ones are read twice. With PARTS, x is what it was and
 * the parts; then it is vec, and no longer than that. */
enum { QUADS = 4 };
template <int PARTS>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm16_kernel(struct cu_mat16 y, struct cu_mat x, const float *gain, float eps, int vec, const float *part) {
    __shared__ float shared[THREADS / 32];
    const int64_t n = x.cols;
    float *const in = x.p + (int64_t)blockIdx.x * x.ld;
    uint16_t *out = y.p + (int64_t)blockIdx.x * y.ld;
    const int tid = threadIdx.x;
    float4 g[QUADS]; /* no kernel of this pass writes it */
    if (vec) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int64_t j = ((int64_t)i * THREADS + tid) * 4;
            g[i] = j < n ? *reinterpret_cast<const float4 *>(gain + j) : make_float4(0, 0, 0, 0);
        }
    }
    let_next_begin();
    wait_for_before();
    if (vec) {
        float4 v[QUADS];
        float s = 0;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int64_t j = ((int64_t)i * THREADS + tid) * 4;
            v[i] = j < n ? *reinterpret_cast<const float4 *>(in + j) : make_float4(0, 0, 0, 0);
        }
        if (PARTS > 0) {
            float4 p[PARTS > 0 ? PARTS : 1][QUADS];
#pragma unroll
            for (int k = 0; k < PARTS; k++)
#pragma unroll
                for (int i = 0; i < QUADS; i++) {
                    const int64_t j = ((int64_t)i * THREADS + tid) * 4;
                    const float *const from = part + ((int64_t)k * x.rows + blockIdx.x) * n + j;
                    p[k][i] = j < n ? *reinterpret_cast<const float4 *>(from) : make_float4(0, 0, 0, 0);
                }
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                const int64_t j = ((int64_t)i * THREADS + tid) * 4;
#pragma unroll
                for (int k = 0; k < PARTS; k++)
                    v[i] = make_float4(v[i].x + p[k][i].x, v[i].y + p[k][i].y, v[i].z + p[k][i].z, v[i].w + p[k][i].w);
                if (j < n) *reinterpret_cast<float4 *>(in + j) = v[i];
            }
        }
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            s = fmaf(v[i].w, v[i].w, fmaf(v[i].z, v[i].z, fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, s))));
        for (int64_t j = ((int64_t)QUADS * THREADS + tid) * 4; j < n; j += THREADS * 4)
            for (int e = 0; e < 4; e++) s = fmaf(in[j + e], in[j + e], s);
        const float r = 1.0f / sqrtf(block_sum(s, shared) / (float)n + eps);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int64_t j = ((int64_t)i * THREADS + tid) * 4;
            if (j >= n) break;
            *reinterpret_cast<uint2 *>(out + j) = make_uint2(bf16_pair(v[i].x * r * g[i].x, v[i].y * r * g[i].y),
                                                             bf16_pair(v[i].z * r * g[i].z, v[i].w * r * g[i].w));
        }
        for (int64_t j = ((int64_t)QUADS * THREADS + tid) * 4; j < n; j += THREADS * 4)
            for (int e = 0; e < 4; e++) out[j + e] = bf16_of(in[j + e] * r * gain[j + e]);
        return;
    }
    float s = 0;
    for (int64_t j = tid; j < n; j += THREADS) s = fmaf(in[j], in[j], s);
    const float r = 1.0f / sqrtf(block_sum(s, shared) / (float)n + eps);
    for (int64_t j = tid; j < n; j += THREADS) out[j] = bf16_of(in[j] * r * gain[j]);
}

/* Which of the two ways is a matter of the model's width alone, not of where a row lies. */
extern "C" int cu_rmsnorm16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x, const float *gain, float eps) {
    if (x.rows <= 0) return 0;
    const int vec = x.cols % 4 == 0;
    if (vec && !(aligned16(x.p, x.ld) && aligned16(gain, 4) && ((uintptr_t)y.p & 7) == 0 && (y.ld & 3) == 0))
        return (int)cudaErrorInvalidValue;
    return LAUNCH_SOON(rmsnorm16_kernel<0>, x.rows, THREADS, 0, d, y, x, gain, eps, vec, (const float *)nullptr);
}

extern "C" int cu_rmsnorm16_parts(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x, const float *gain,
                                  float eps, const float *part) {
    if (x.rows <= 0) return 0;
    return LAUNCH_SOON(rmsnorm16_kernel<CUDA_LONG_PARTS>, x.rows, THREADS, 0, d, y, x, gain, eps, 1, part);
}

static __global__ void add_parts_kernel(struct cu_mat x, const float *part, int64_t n) {
    ELEMENT_LOOP(i, x.rows * x.cols) {
        float *const to = x.p + i / x.cols * x.ld + i % x.cols;
        float v = *to;
        for (int64_t k = 0; k < n; k++) v = v + part[k * x.rows * x.cols + i];
        *to = v;
    }
}

extern "C" int cu_add_parts(const struct cu_dev *d, struct cu_mat x, const float *part, int64_t n) {
    if (x.rows <= 0 || n <= 0) return 0;
    return LAUNCH(add_parts_kernel, grid_for(d, x.rows * x.cols, THREADS), THREADS, 0, d->stream, x, part, n);
}

/* ---- rotary embedding: sixteen threads a head, as in rows.cu; values are only rounded ------------------------------
 */

/* A head of one row: x to y by its LANES threads, r of its norm. */
static __device__ __forceinline__ void rotate_head(uint16_t *y, const float *x, const struct cu_rope &a,
                                                   const float *gain, float r, int64_t pos, float scale) {
    const int64_t half = a.K / 2;
    const float *cs = a.cos_t + pos * half, *sn = a.sin_t + pos * half;
#pragma unroll 4
    for (int64_t j = threadIdx.x % LANES; j < half; j += LANES) {
        float u = x[j], w = x[half + j];
        if (gain) {
            u = u * r * gain[j];
            w = w * r * gain[half + j];
        }
        y[j] = bf16_of((u * cs[j] - w * sn[j]) * scale);
        y[half + j] = bf16_of((w * cs[j] + u * sn[j]) * scale);
    }
}
/* Whole warps must call. */
static __device__ __forceinline__ float norm_of_head(const float *x, const struct cu_rope &a) {
    float s = 0;
    if (a.q_gain || a.k_gain)
        for (int64_t j = threadIdx.x % LANES; j < a.K; j += LANES) s = fmaf(x[j], x[j], s);
    return 1.0f / sqrtf(fold_sum(s) / (float)a.K + a.eps);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    rope16_kernel(struct cu_mat16 qk, struct cu_mat qkv, struct cu_rope a) {
    const int lane = threadIdx.x % LANES;
    const int64_t heads = a.H + 2 * a.G, n = qk.rows * heads;
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < n;
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES)) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / heads, h = at % heads;
        const float *x = qkv.p + t * qkv.ld + h * a.K, *gain = h < a.H ? a.q_gain : a.k_gain;
        uint16_t *y = qk.p + t * qk.ld + h * a.K;
        const float r = norm_of_head(x, a);
        if (i >= n) continue;
        if (h >= a.H + a.G) {
            for (int64_t j = lane; j < a.K; j += LANES) y[j] = bf16_of(x[j]);
            continue;
        }
        rotate_head(y, x, a, gain, r, a.pos[t], h < a.H ? a.q_scale : 1.0f);
    }
}

/* `parts` blocks a task: sixteen heads of queries and keys each, and the last one the values, where neighbouring
 * threads take neighbouring keys. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rope_kv16_kernel(struct cu_mat16 qk, struct cu_mat qkv, struct cu_rope a, const struct cu_kv_task *tasks,
                     uint16_t *kv, int64_t kv_stride, unsigned parts) {
    wait_for_before();
    let_next_begin();
    const struct cu_kv_task t = tasks[blockIdx.x / parts];
    const unsigned part = blockIdx.x % parts;
    uint16_t *const block = kv + t.block * kv_stride;
    if (part + 1 == parts) {
        const unsigned n = (unsigned)(t.rows * a.G * a.K), rows = (unsigned)t.rows;
        const float *const v = qkv.p + t.row * qkv.ld + (a.H + a.G) * a.K;
        for (unsigned i = threadIdx.x; i < n; i += ROW_THREADS)
            block[(a.G * a.K + i / rows) * KV_BLOCK + t.slot + i % rows] = bf16_of(v[i % rows * qkv.ld + i / rows]);
        return;
    }
    const int64_t mine = (int64_t)part * (ROW_THREADS / LANES) + threadIdx.x / LANES, h = min64(mine, a.H + a.G - 1);
    const bool query = h < a.H;
    for (int64_t r = 0; r < t.rows; r++) {
        const int64_t row = t.row + r;
        const float *x = qkv.p + row * qkv.ld + h * a.K;
        uint16_t *y = query ? qk.p + row * qk.ld + h * a.K : block + ((h - a.H) * KV_BLOCK + t.slot + r) * a.K;
        const float norm = norm_of_head(x, a);
        if (mine == h) rotate_head(y, x, a, query ? a.q_gain : a.k_gain, norm, a.pos[row], query ? a.q_scale : 1.0f);
    }
}

extern "C" int cu_rope_kv16(const struct cu_dev *d, struct cu_mat16 qk, struct cu_mat qkv, const struct cu_rope *a,
                            const struct cu_kv_task *task, int64_t n_tasks, uint16_t *kv, int64_t kv_stride) {
    if (n_tasks <= 0) return 0;
    const int64_t parts = ceil_div(a->H + a->G, ROW_THREADS / LANES) + 1;
    return LAUNCH_SOON(rope_kv16_kernel, n_tasks * parts, ROW_THREADS, 0, d, qk, qkv, *a, task, kv, kv_stride,
                       (unsigned)parts);
}

/* Without norms of heads: four pairs an item, and a thread has asked for all of its items before it turns the first. */
enum { ROPE_ITEMS = 4 };
static __global__ void __launch_bounds__(THREADS)
    rope16_plain_kernel(struct cu_mat16 qk, struct cu_mat qkv, struct cu_rope a) {
    const int half = (int)a.K / 2, per_head = half / 4, turned = (int)(a.H + a.G), heads = turned + (int)a.G;
    const int per_row = heads * per_head;
    const int64_t n = qk.rows * per_row,
                  first = (int64_t)blockIdx.x * (THREADS * ROPE_ITEMS) + threadIdx.x; /* < 2^32 */
    float4 u[ROPE_ITEMS], w[ROPE_ITEMS], c[ROPE_ITEMS], s[ROPE_ITEMS];
    int64_t row[ROPE_ITEMS];
    int head[ROPE_ITEMS], to[ROPE_ITEMS];
#pragma unroll
    for (int i = 0; i < ROPE_ITEMS; i++) {
        const int64_t item = first + i * THREADS;
        if (item >= n) break;
        row[i] = (unsigned)item / (unsigned)per_row;
        const int in_row = (int)(item - row[i] * per_row), h = in_row / per_head, j = in_row % per_head * 4;
        const float *const x = qkv.p + row[i] * qkv.ld + h * (int)a.K + j;
        head[i] = h;
        to[i] = h * (int)a.K + j;
        u[i] = *reinterpret_cast<const float4 *>(x);
        w[i] = *reinterpret_cast<const float4 *>(x + half);
        if (h >= turned) continue;
        const int64_t at = (int64_t)a.pos[row[i]] * half + j;
        c[i] = *reinterpret_cast<const float4 *>(a.cos_t + at);
        s[i] = *reinterpret_cast<const float4 *>(a.sin_t + at);
    }
#pragma unroll
    for (int i = 0; i < ROPE_ITEMS; i++) {
        if (first + i * THREADS >= n) break;
        float4 p = u[i], q = w[i];
        if (head[i] < turned) {
            const float scale = head[i] < a.H ? a.q_scale : 1.0f;
            p = make_float4((u[i].x * c[i].x - w[i].x * s[i].x) * scale, (u[i].y * c[i].y - w[i].y * s[i].y) * scale,
                            (u[i].z * c[i].z - w[i].z * s[i].z) * scale, (u[i].w * c[i].w - w[i].w * s[i].w) * scale);
            q = make_float4((w[i].x * c[i].x + u[i].x * s[i].x) * scale, (w[i].y * c[i].y + u[i].y * s[i].y) * scale,
                            (w[i].z * c[i].z + u[i].z * s[i].z) * scale, (w[i].w * c[i].w + u[i].w * s[i].w) * scale);
        }
        uint16_t *const y = qk.p + row[i] * qk.ld + to[i];
        *reinterpret_cast<uint2 *>(y) = make_uint2(bf16_pair(p.x, p.y), bf16_pair(p.z, p.w));
        *reinterpret_cast<uint2 *>(y + half) = make_uint2(bf16_pair(q.x, q.y), bf16_pair(q.z, q.w));
    }
}

extern "C" int cu_rope16(const struct cu_dev *d, struct cu_mat16 qk, struct cu_mat qkv, const struct cu_rope *a) {
    if (qk.rows <= 0) return 0;
    const int64_t heads = qk.rows * (a->H + 2 * a->G);
    if (!a->q_gain && !a->k_gain && a->K % 8 == 0 && aligned16(qkv.p, qkv.ld) && aligned16(a->cos_t, 4) &&
        aligned16(a->sin_t, 4) && ((uintptr_t)qk.p & 7) == 0 && qk.ld % 4 == 0)
        return LAUNCH(rope16_plain_kernel, ceil_div(qk.rows * (a->H + 2 * a->G) * (a->K / 8), THREADS * ROPE_ITEMS),
                      THREADS, 0, d->stream, qk, qkv, *a);
    return LAUNCH(rope16_kernel, grid_for(d, heads, ROW_THREADS / LANES), ROW_THREADS, 0, d->stream, qk, qkv, *a);
}

/* ---- SwiGLU --------------------------------------------------------------------------------------------------------
 */

static __global__ void swiglu16_kernel(struct cu_mat16 y, struct cu_mat16 gu) {
    const int64_t F = y.cols;
    ELEMENT_LOOP(i, y.rows * F) {
        const int64_t t = i / F, j = i % F;
        const uint16_t *g = gu.p + t * gu.ld + j;
        y.p[t * y.ld + j] = bf16_of(gate16(bf16_float(g[0]), bf16_float(g[F])));
    }
}

/* Eight at a time. */
static __global__ void swiglu16_vec_kernel(struct cu_mat16 y, struct cu_mat16 gu) {
    wait_for_before();
    const int64_t F = y.cols, per_row = F / 8;
    ELEMENT_LOOP(i, y.rows * per_row) {
        const int64_t t = i / per_row, j = i % per_row * 8;
        const uint4 g = load16(gu.p + t * gu.ld + j), u = load16(gu.p + t * gu.ld + F + j);
        const uint4 out =
            make_uint4(bf16_pair(gate16(low_float(g.x), low_float(u.x)), gate16(high_float(g.x), high_float(u.x))),
                       bf16_pair(gate16(low_float(g.y), low_float(u.y)), gate16(high_float(g.y), high_float(u.y))),
                       bf16_pair(gate16(low_float(g.z), low_float(u.z)), gate16(high_float(g.z), high_float(u.z))),
                       bf16_pair(gate16(low_float(g.w), low_float(u.w)), gate16(high_float(g.w), high_float(u.w))));
        *reinterpret_cast<uint4 *>(y.p + t * y.ld + j) = out;
    }
}

static int vec8(struct cu_mat16 m) { return ((uintptr_t)m.p & 15) == 0 && m.ld % 8 == 0; }

extern "C" int cu_swiglu16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat16 gu) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    if (y.cols % 8 == 0 && vec8(y) && vec8(gu))
        return LAUNCH_SOON(swiglu16_vec_kernel, grid_for(d, n / 8, 128), 128, 0, d, y, gu);
    return LAUNCH(swiglu16_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, gu);
}

/* ---- conversions ---------------------------------------------------------------------------------------------------
 */

static __global__ void round_kernel(struct cu_mat16 y, struct cu_mat x) {
    ELEMENT_LOOP(i, y.rows * y.cols) {
        const int64_t t = i / y.cols, j = i % y.cols;
        y.p[t * y.ld + j] = bf16_of(x.p[t * x.ld + j]);
    }
}
static __global__ void round_vec_kernel(struct cu_mat16 y, struct cu_mat x) {
    const int64_t per_row = y.cols / 4;
    ELEMENT_LOOP(i, y.rows * per_row) {
        const int64_t t = i / per_row, j = i % per_row * 4;
        const float4 v = *reinterpret_cast<const float4 *>(x.p + t * x.ld + j);
        *reinterpret_cast<uint2 *>(y.p + t * y.ld + j) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
    }
}

extern "C" int cu_round16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    if (y.cols % 4 == 0 && aligned16(x.p, x.ld) && ((uintptr_t)y.p & 7) == 0 && y.ld % 4 == 0)
        return LAUNCH(round_vec_kernel, grid_for(d, n / 4, THREADS), THREADS, 0, d->stream, y, x);
    return LAUNCH(round_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, x);
}

static __global__ void widen_kernel(struct cu_mat y, struct cu_mat16 x, const int32_t *rows, const int32_t *drawn) {
    ELEMENT_LOOP(i, y.rows * y.cols) {
        const int64_t t = i / y.cols, j = i % y.cols, from = rows ? row_or_drawn(rows[t], drawn) : t;
        y.p[t * y.ld + j] = bf16_float(x.p[from * x.ld + j]);
    }
}

extern "C" int cu_widen16(const struct cu_dev *d, struct cu_mat y, struct cu_mat16 x, const int32_t *rows,
                          const int32_t *drawn) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    return LAUNCH(widen_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, x, rows, drawn);
}

static __global__ void gather16_kernel(struct cu_mat16 y, struct cu_mat16 x, const int32_t *rows) {
    ELEMENT_LOOP(i, y.rows * y.cols) {
        const int64_t t = i / y.cols, j = i % y.cols;
        y.p[t * y.ld + j] = x.p[rows[t] * x.ld + j];
    }
}

extern "C" int cu_gather16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat16 x, const int32_t *rows) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    return LAUNCH(gather16_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, x, rows);
}

static __global__ void gather_scaled16_kernel(struct cu_mat16 y, struct cu_mat16 x, const int32_t *rows,
                                              const float *scale) {
    ELEMENT_LOOP(i, y.rows * y.cols) {
        const int64_t t = i / y.cols, j = i % y.cols;
        y.p[t * y.ld + j] = bf16_of(scale[t] * bf16_float(x.p[rows[t] * x.ld + j]));
    }
}

extern "C" int cu_gather_scaled16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat16 x, const int32_t *rows,
                                  const float *scale) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    return LAUNCH(gather_scaled16_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, y, x, rows, scale);
}

/* Uniform numbers in (-1, 1), the same for the same place and seed (the finaliser of splitmix64). */
static __global__ void random16_kernel(uint16_t *p, int64_t n, uint64_t seed) {
    ELEMENT_LOOP(i, n) {
        uint64_t z = seed + (uint64_t)i * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        p[i] = bf16_of((float)(int32_t)((z >> 40) & 0xffffff) * (1.0f / 8388608.0f) - 1.0f);
    }
}

extern "C" int cu_random16(const struct cu_dev *d, uint16_t *p, int64_t n, uint64_t seed) {
    if (n <= 0) return 0;
    return LAUNCH(random16_kernel, grid_for(d, n, THREADS), THREADS, 0, d->stream, p, n, seed);
}
