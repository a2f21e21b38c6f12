/* Products in bfloat16 on tensor cores without shared memory: a plain one, for where cuBLASLt is missing or has no
 * algorithm, and those of LoRA, whose one side is so thin that they are about latency and not about rate. Each output
 * is one chain over pieces of 32 in ascending order (LoRA's first product: sixteen such chains, added in order),
 * whatever the number of rows. */
#include "cuda/shared/bf16.cuh"
#include "cuda/shared/group.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, TILES = 4, BLOCK_N = WARPS * TILES * 8 };

/* Eight neighbours along k of row r, zeros outside. */
static __device__ __forceinline__ uint4 load_eight(const struct cu_side16 &s, int64_t r, int64_t rows, int64_t k,
                                                   int64_t K) {
    if (r >= rows || k >= K) return zero4();
    const uint16_t *p = s.p + r * s.row + k * s.step;
    if (s.vec && k + 8 <= K) return load16(p);
    uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (k + i < K) v[i / 2] |= (uint32_t)p[i * s.step] << (16 * (i % 2));
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* True: two neighbours of c can be read and written as one number of twice the size. */
static __device__ __forceinline__ bool in_pairs(const struct cu_gemm16 &g) {
    return g.N % 2 == 0 && g.ldc % 2 == 0 && ((uintptr_t)g.c & (g.c16 ? 3 : 7)) == 0;
}
/* What is there of c at (m, n) and (m, n + 1) where the product is added to it, else 0. */
static __device__ __forceinline__ float2 old_pair(const struct cu_gemm16 &g, int64_t m, int64_t n, bool pairs) {
    float2 v = make_float2(0, 0);
    if (!g.accumulate || m >= g.M || n >= g.N) return v;
    const bool both = n + 1 < g.N;
    if (g.c16) {
        const uint16_t *const c = static_cast<const uint16_t *>(g.c) + m * g.ldc + n;
        if (pairs) {
            const uint32_t p = *reinterpret_cast<const uint32_t *>(c);
            return make_float2(low_float(p), high_float(p));
        }
        v.x = bf16_float(c[0]);
        if (both) v.y = bf16_float(c[1]);
    } else {
        const float *const c = static_cast<const float *>(g.c) + m * g.ldc + n;
        if (pairs) return *reinterpret_cast<const float2 *>(c);
        v.x = c[0];
        if (both) v.y = c[1];
    }
    return v;
}
static __device__ __forceinline__ void put_pair(const struct cu_gemm16 &g, int64_t m, int64_t n, float x, float y,
                                                float2 old, bool pairs) {
    if (m >= g.M || n >= g.N) return;
    const bool both = n + 1 < g.N;
    if (g.alpha != 0.0f) x = g.alpha * x, y = g.alpha * y;
    if (g.bias) {
        x = x + g.bias[n];
        if (both) y = y + g.bias[n + 1];
    }
    if (g.accumulate) x = x + old.x, y = y + old.y;
    if (g.c16) {
        uint16_t *const c = static_cast<uint16_t *>(g.c) + m * g.ldc + n;
        if (pairs) {
            *reinterpret_cast<uint32_t *>(c) = bf16_pair(x, y);
            return;
        }
        c[0] = bf16_of(x);
        if (both) c[1] = bf16_of(y);
    } else {
        float *const c = static_cast<float *>(g.c) + m * g.ldc + n;
        if (pairs) {
            *reinterpret_cast<float2 *>(c) = make_float2(x, y);
            return;
        }
        c[0] = x;
        if (both) c[1] = y;
    }
}

static __device__ void product_tile(const struct cu_gemm16 &g, int64_t m0, int64_t n0) {
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const bool pairs = in_pairs(g);
    float acc[TILES][4];
    float2 old[TILES][2]; /* all asked for ahead of the products */
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
        old[i][0] = old_pair(g, m0 + r, n0 + i * 8 + c * 2, pairs);
        old[i][1] = old_pair(g, m0 + r + 8, n0 + i * 8 + c * 2, pairs);
    }
#pragma unroll 2
    for (int64_t k = 0; k < g.K; k += 32) {
        const uint4 x = load_eight(g.a, m0 + r, g.M, k + c * 8, g.K),
                    y = load_eight(g.a, m0 + r + 8, g.M, k + c * 8, g.K);
#pragma unroll
        for (int i = 0; i < TILES; i++) mma_piece(acc[i], x, y, load_eight(g.b, n0 + i * 8 + r, g.N, k + c * 8, g.K));
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        put_pair(g, m0 + r, n0 + i * 8 + c * 2, acc[i][0], acc[i][1], old[i][0], pairs);
        put_pair(g, m0 + r + 8, n0 + i * 8 + c * 2, acc[i][2], acc[i][3], old[i][1], pairs);
    }
}

static __global__ void __launch_bounds__(THREADS) gemm16_kernel(const struct cu_gemm16 g) {
    const int64_t tiles_n = ceil_div(g.N, BLOCK_N);
    const int64_t n0 = blockIdx.x % tiles_n * BLOCK_N + threadIdx.x / 32 * (TILES * 8);
    if (n0 < g.N) product_tile(g, blockIdx.x / tiles_n * 16, n0);
}

extern "C" int cu_gemm16(const struct cu_dev *d, const struct cu_gemm16 *g) {
    if (g->M <= 0 || g->N <= 0) return 0;
    return LAUNCH(gemm16_kernel, ceil_div(g->M, 16) * ceil_div(g->N, BLOCK_N), THREADS, 0, d->stream, *g);
}

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

static __global__ void __launch_bounds__(THREADS) gemm16_group_kernel(struct cu_gemm16 g, const struct cu_group e) {
    const int64_t tiles_n = ceil_div(g.N, BLOCK_N);
    const struct group_tile t = group_find(e, blockIdx.x / tiles_n, 16);
    const int64_t n0 = blockIdx.x % tiles_n * BLOCK_N + threadIdx.x / 32 * (TILES * 8);
    if (t.expert < 0 || n0 >= g.N) return;
    g.a.p += t.lo * g.a.row;
    g.b.p = static_cast<const uint16_t *>(e.w[t.expert]);
    g.c = g.c16 ? static_cast<void *>(static_cast<uint16_t *>(g.c) + t.lo * g.ldc)
                : static_cast<void *>(static_cast<float *>(g.c) + t.lo * g.ldc);
    g.M = t.rows;
    product_tile(g, t.tile * 16, n0);
}

static __global__ void __launch_bounds__(THREADS)
    gemm16_group_rows_kernel(struct cu_gemm16 g, const struct cu_group e, int64_t tiles) {
    const int64_t tiles_n = ceil_div(g.N, BLOCK_N), x = blockIdx.x / tiles, at = blockIdx.x % tiles;
    const int64_t n0 = at % tiles_n * BLOCK_N + threadIdx.x / 32 * (TILES * 8), lo = e.lo[x], rows = e.hi[x] - lo;
    if (rows <= 0 || n0 >= g.N) return;
    g.a.p += lo * g.a.step;
    g.b.p += lo * g.b.step;
    g.c = static_cast<float *>(g.c) + x * e.stride;
    g.K = rows;
    product_tile(g, at / tiles_n * 16, n0);
}

extern "C" int cu_gemm16_group(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e,
                               int over_rows) {
    if (g->M <= 0 || g->N <= 0 || g->K <= 0 || e->n <= 0) return 0;
    const int64_t tiles_n = ceil_div(g->N, BLOCK_N), tiles = ceil_div(g->M, 16) * tiles_n;
    if (over_rows) return LAUNCH(gemm16_group_rows_kernel, tiles * e->n, THREADS, 0, d->stream, *g, *e, tiles);
    return LAUNCH(gemm16_group_kernel, group_tiles(*e, g->M, 16) * tiles_n, THREADS, 0, d->stream, *g, *e);
}

/* ---- LoRA ----------------------------------------------------------------------------------------------------------
 */

enum { CHAINS = CUDA_LORA_CHAINS, DOWN_WIDE = CUDA_LORA_WIDE / 8, DOWN_BLOCKS = 4 };

/* t = scale x A^T: BLOCKS blocks have 16 rows and 8 NT of A's, their warps share k, a chain each. Of few rows they are
 * narrow, so that there are many; of more rows wide, so that there are not many more than multiprocessors that the
 * product beside leaves idle. There a long k is shared by several blocks, of which the last to end adds the chains:
 * the product would be done before one block. AHEAD pieces are asked for together. */
template <int NT, int AHEAD, int BLOCKS>
static __global__ void __launch_bounds__(32 * CHAINS / BLOCKS) lora_down_kernel(const struct cu_lora l) {
    enum { WARPS = CHAINS / BLOCKS, THREADS = 32 * WARPS };
    alignas(16) __shared__ float shared[BLOCKS == 1 ? CHAINS : 1][NT][32][4];
    __shared__ unsigned before;
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int64_t tile = blockIdx.x / BLOCKS, cols = l.n * l.R, per_row = ceil_div(cols, 8 * NT);
    const int64_t m0 = tile / per_row * 16, n0 = tile % per_row * (8 * NT);
    const int64_t pieces = ceil_div(l.K, 32), each = ceil_div(pieces, CHAINS);
    const int chain = blockIdx.x % BLOCKS * WARPS + threadIdx.x / 32;
    const int64_t begin = chain * each * 32, end = min64((chain + 1) * each, pieces) * 32;
    float(*const part)[NT][32][4] =
        BLOCKS == 1 ? shared : reinterpret_cast<float(*)[NT][32][4]>(l.part) + tile * CHAINS;
    float acc[NT][4];
#pragma unroll
    for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    if (l.x.vec && l.a.vec && l.K % 32 == 0) { /* in place of rows and pieces that are not there the last ones */
        const uint16_t *const x = l.x.p + min64(m0 + r, l.T - 1) * l.x.row + c * 8, *const y =
                                                                                        l.x.p +
                                                                                        min64(m0 + r + 8, l.T - 1) *
                                                                                            l.x.row +
                                                                                        c * 8;
        const uint16_t *a[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) a[j] = l.a.p + min64(n0 + j * 8 + r, cols - 1) * l.a.row + c * 8;
        for (int64_t k0 = begin; k0 < end; k0 += 32 * AHEAD) {
            uint4 u[AHEAD], v[AHEAD], w[AHEAD][NT];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int64_t k = min64(k0 + i * 32, end - 32);
                u[i] = load16(x + k), v[i] = load16(y + k);
#pragma unroll
                for (int j = 0; j < NT; j++) w[i][j] = load16(a[j] + k);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (k0 + i * 32 >= end) break;
#pragma unroll
                for (int j = 0; j < NT; j++) mma_piece(acc[j], u[i], v[i], w[i][j]);
            }
        }
    } else {
        for (int64_t k = begin; k < end; k += 32) {
            const uint4 u = load_eight(l.x, m0 + r, l.T, k + c * 8, l.K),
                        v = load_eight(l.x, m0 + r + 8, l.T, k + c * 8, l.K);
#pragma unroll
            for (int j = 0; j < NT; j++) mma_piece(acc[j], u, v, load_eight(l.a, n0 + j * 8 + r, cols, k + c * 8, l.K));
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j++)
        *reinterpret_cast<float4 *>(part[chain][j][lane]) = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
    if (BLOCKS > 1) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) before = atomicAdd(l.count + tile, 1u);
    }
    __syncthreads();
    if (BLOCKS > 1) {
        if (before != BLOCKS - 1) return;
        if (threadIdx.x == 0) l.count[tile] = 0;
        __threadfence();
    }
    for (int at = threadIdx.x; at < 32 * NT; at += THREADS) {
        const int j = at / 32, who = at % 32;
        float4 p[CHAINS];
        float s[4] = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < CHAINS; w++)
            p[w] = BLOCKS == 1 ? *reinterpret_cast<const float4 *>(part[w][j][who]) : load_fresh4(part[w][j][who]);
#pragma unroll
        for (int w = 0; w < CHAINS; w++)
            s[0] = s[0] + p[w].x, s[1] = s[1] + p[w].y, s[2] = s[2] + p[w].z, s[3] = s[3] + p[w].w;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t m = m0 + who / 4 + e / 2 * 8, n = n0 + j * 8 + who % 4 * 2 + e % 2;
            if (m < l.T && n < cols) l.t[m * cols + n] = bf16_of(l.scale * s[e]);
        }
    }
}

/* y += t B^T, all sites side by side. */
static __global__ void __launch_bounds__(THREADS) lora_up_kernel(const struct cu_lora l) {
    let_next_begin();
    int64_t at = blockIdx.x % l.up_blocks;
    const int64_t m0 = blockIdx.x / l.up_blocks * 16;
    int site = 0;
    while (at >= ceil_div(l.site[site].N, BLOCK_N)) at -= ceil_div(l.site[site++].N, BLOCK_N);
    const struct cu_lora_site &s = l.site[site];
    const struct cu_side16 t = {l.t + site * l.R, l.n * l.R, 1, l.R % 8 == 0};
    const int64_t n0 = at * BLOCK_N + threadIdx.x / 32 * (TILES * 8);
    if (s.N % 2 || s.ldy % 2 || ((uintptr_t)s.y & 7)) {
        const struct cu_gemm16 g = {t, s.b, s.y, s.y16, s.ldy, nullptr, 1, l.T, s.N, l.R, 0};
        product_tile(g, m0, n0);
        return;
    }
    /* The same sums; what they are added to is asked for first, two neighbours at a time. */
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    float acc[TILES][4], old[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t m = m0 + r + 8 * half, n = n0 + i * 8 + c * 2;
            acc[i][2 * half] = acc[i][2 * half + 1] = old[i][2 * half] = old[i][2 * half + 1] = 0;
            if (m >= l.T || n >= s.N) continue;
            if (s.y16) {
                const uint32_t v = *reinterpret_cast<const uint32_t *>(static_cast<uint16_t *>(s.y) + m * s.ldy + n);
                old[i][2 * half] = low_float(v), old[i][2 * half + 1] = high_float(v);
            } else {
                const float2 v = *reinterpret_cast<const float2 *>(static_cast<float *>(s.y) + m * s.ldy + n);
                old[i][2 * half] = v.x, old[i][2 * half + 1] = v.y;
            }
        }
    if (t.vec && s.b.vec) {
        const uint16_t *const p = t.p + min64(m0 + r, l.T - 1) * t.row, *const q =
                                                                            t.p + min64(m0 + r + 8, l.T - 1) * t.row;
        for (int64_t k = c * 8; k - c * 8 < l.R; k += 32) {
            const bool in = k < l.R;
            const uint4 x = in ? load16(p + k) : zero4(), y = in ? load16(q + k) : zero4();
            uint4 b[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++)
                b[i] = in ? load16(s.b.p + min64(n0 + i * 8 + r, s.N - 1) * s.b.row + k) : zero4();
#pragma unroll
            for (int i = 0; i < TILES; i++) mma_piece(acc[i], x, y, b[i]);
        }
    } else {
        for (int64_t k = 0; k < l.R; k += 32) {
            const uint4 x = load_eight(t, m0 + r, l.T, k + c * 8, l.R),
                        y = load_eight(t, m0 + r + 8, l.T, k + c * 8, l.R);
#pragma unroll
            for (int i = 0; i < TILES; i++)
                mma_piece(acc[i], x, y, load_eight(s.b, n0 + i * 8 + r, s.N, k + c * 8, l.R));
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t m = m0 + r + 8 * half, n = n0 + i * 8 + c * 2;
            const float a = acc[i][2 * half] + old[i][2 * half], b = acc[i][2 * half + 1] + old[i][2 * half + 1];
            if (m >= l.T || n >= s.N) continue;
            if (s.y16)
                *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(s.y) + m * s.ldy + n) = bf16_pair(a, b);
            else
                *reinterpret_cast<float2 *>(static_cast<float *>(s.y) + m * s.ldy + n) = make_float2(a, b);
        }
}

static __global__ void nothing_kernel(int unused) { (void)unused; }
extern "C" int cu_nothing(const struct cu_dev *d) { return LAUNCH(nothing_kernel, 1, 32, 0, d->stream, 0); }

extern "C" int cu_lora_down(const struct cu_dev *d, const struct cu_lora *l) {
    if (l->T <= 0 || l->n <= 0) return 0;
    if (cu_lora_takes_down(d, l)) return cu_lora_down_many(d, l);
    const int64_t high = ceil_div(l->T, 16), cols = l->n * l->R, shared = cuda_lora_tiles(l->T, l->K, cols);
    if (shared > 0)
        return LAUNCH((lora_down_kernel<DOWN_WIDE, 4, DOWN_BLOCKS>), shared * DOWN_BLOCKS, 32 * CHAINS / DOWN_BLOCKS, 0,
                      d->stream, *l);
    if (l->T > CUDA_LORA_FEW && cols > 8)
        return LAUNCH((lora_down_kernel<DOWN_WIDE, 4, 1>), high * ceil_div(cols, 8 * DOWN_WIDE), 32 * CHAINS, 0,
                      d->stream, *l);
    return LAUNCH((lora_down_kernel<1, 8, 1>), high * ceil_div(cols, 8), 32 * CHAINS, 0, d->stream, *l);
}

extern "C" int cu_lora_up(const struct cu_dev *d, struct cu_lora *l) {
    if (l->T <= 0 || l->n <= 0) return 0;
    l->up_blocks = 0;
    for (int i = 0; i < l->n; i++) l->up_blocks += ceil_div(l->site[i].N, BLOCK_N);
    if (cu_lora_takes_up(d, l)) return cu_lora_up_many(d, l);
    return LAUNCH(lora_up_kernel, ceil_div(l->T, 16) * l->up_blocks, THREADS, 0, d->stream, *l);
}

/* ---- checks of algorithms ------------------------------------------------------------------------------------------
 */

/* differ[0] += whether row at[i] of y is not row i of want, in bits. A block a row. */
static __global__ void rows_differ_kernel(int32_t *differ, const uint8_t *y, int64_t ldy, const uint8_t *want,
                                          int64_t ld, int64_t bytes, int64_t rows, int64_t wanted) {
    const int64_t i = blockIdx.x, at = wanted > 1 ? i * (rows - 1) / (wanted - 1) : 0;
    for (int64_t j = threadIdx.x; j < bytes; j += blockDim.x)
        if (y[at * ldy + j] != want[i * ld + j]) differ[i] = 1;
}

extern "C" int cu_rows_differ(const struct cu_dev *d, int32_t *differ, const void *y, int64_t ldy_bytes,
                              const void *want, int64_t ld_bytes, int64_t bytes, int64_t rows, int64_t wanted) {
    return LAUNCH(rows_differ_kernel, wanted, 256, 0, d->stream, differ, static_cast<const uint8_t *>(y), ldy_bytes,
                  static_cast<const uint8_t *>(want), ld_bytes, bytes, rows, wanted);
}

/* x's row i * (rows - 1) / (wanted - 1) becomes row i of src: where rows_differ looks. */
static __global__ void spread_rows_kernel(uint16_t *x, const uint16_t *src, int64_t K, int64_t rows, int64_t wanted) {
    const int64_t i = blockIdx.x, at = wanted > 1 ? i * (rows - 1) / (wanted - 1) : 0;
    for (int64_t j = threadIdx.x; j < K; j += blockDim.x) x[at * K + j] = src[i * K + j];
}

extern "C" int cu_spread_rows(const struct cu_dev *d, uint16_t *x, const uint16_t *src, int64_t K, int64_t rows,
                              int64_t wanted) {
    return LAUNCH(spread_rows_kernel, wanted, 256, 0, d->stream, x, src, K, rows, wanted);
}
