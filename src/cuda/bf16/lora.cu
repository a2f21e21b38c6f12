/* LoRA over many rows: the sums of gemm.cu's kernels for few rows, in the same order, with what rows share fetched
 * once. */
#include "cuda/shared/bf16.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS };

/* ---- t = scale x A^T ----------------------------------------------------------------------------------------------
 */

/* A block has 32 rows and 32 of A's; its warps share k, each OWN of the CUDA_LORA_CHAINS chains over pieces of 32 that
 * are added in order at the end. A warp asks for AHEAD pieces together: it is their number on a multiprocessor that
 * keeps memory busy. A chain's part lies in shared memory as the fragments do, a float4 a thread. */
enum { DOWN_ROWS = 32, DOWN_COLS = 32, DOWN_WARPS = 8, DOWN_THREADS = 32 * DOWN_WARPS, AHEAD = 2 };
enum { OWN = CUDA_LORA_CHAINS / DOWN_WARPS, DOWN_BYTES = CUDA_LORA_CHAINS * DOWN_ROWS * DOWN_COLS * 4 };

static __global__ void __launch_bounds__(DOWN_THREADS, 2) lora_down_many_kernel(const struct cu_lora l) {
    DYNAMIC_SHARED(shared);
    float4 *const part = reinterpret_cast<float4 *>(shared); /* [CUDA_LORA_CHAINS][2][4][32] */
    const int64_t cols = l.n * l.R, per_row = ceil_div(cols, DOWN_COLS);
    const int64_t m0 = blockIdx.x / per_row * DOWN_ROWS, n0 = blockIdx.x % per_row * DOWN_COLS;
    const int64_t pieces = ceil_div(l.K, 32), each = ceil_div(pieces, CUDA_LORA_CHAINS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane / 4, c = lane % 4;
    const uint16_t *x[4], *a[4]; /* in place of rows that are not there the last one */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = l.x.p + min64(m0 + i * 8 + r, l.T - 1) * l.x.row + c * 8;
        a[i] = l.a.p + min64(n0 + i * 8 + r, cols - 1) * l.a.row + c * 8;
    }
    for (int own = 0; own < OWN; own++) {
        const int chain = warp * OWN + own;
        const int64_t begin = chain * each * 32, end = min64((chain + 1) * each, pieces) * 32, last = l.K - c * 8;
        float acc[2][4][4];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[t][i][0] = acc[t][i][1] = acc[t][i][2] = acc[t][i][3] = 0;
        for (int64_t k = begin; k < end; k += 32 * AHEAD) {
            uint4 u[AHEAD][4], v[AHEAD][4];
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                const bool in = k + p * 32 < end && k + p * 32 < last;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u[p][i] = in ? load16(x[i] + k + p * 32) : zero4();
                    v[p][i] = in ? load16(a[i] + k + p * 32) : zero4();
                }
            }
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                if (k + p * 32 >= end) break;
#pragma unroll
                for (int t = 0; t < 2; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++) mma_piece(acc[t][i], u[p][2 * t], u[p][2 * t + 1], v[p][i]);
            }
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[((chain * 2 + t) * 4 + i) * 32 + lane] =
                    make_float4(acc[t][i][0], acc[t][i][1], acc[t][i][2], acc[t][i][3]);
    }
    __syncthreads();
    static_assert(DOWN_THREADS == 2 * 4 * 32, "a thread finishes four outputs");
    float s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int chain = 0; chain < CUDA_LORA_CHAINS; chain++) {
        const float4 p = part[chain * DOWN_THREADS + threadIdx.x];
        s[0] = s[0] + p.x, s[1] = s[1] + p.y, s[2] = s[2] + p.z, s[3] = s[3] + p.w;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int64_t m = m0 + warp / 4 * 16 + r + e / 2 * 8, n = n0 + warp % 4 * 8 + c * 2 + e % 2;
        if (m < l.T && n < cols) l.t[m * cols + n] = bf16_of(l.scale * s[e]);
    }
}

extern "C" int cu_lora_down_many(const struct cu_dev *d, const struct cu_lora *l) {
    const int rc =
        (int)cudaFuncSetAttribute(lora_down_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, DOWN_BYTES);
    const int64_t blocks = ceil_div(l->T, DOWN_ROWS) * ceil_div(l->n * l->R, DOWN_COLS);
    return rc ? rc : LAUNCH(lora_down_many_kernel, blocks, DOWN_THREADS, DOWN_BYTES, d->stream, *l);
}

/* ---- y += t B^T ---------------------------------------------------------------------------------------------------
 */

/* A warp has 32 columns of TILES_OF times 16 rows. Column p of its i-th group of eight is really column p / 2 * 8 + 2 i
 * + p % 2: a thread's results are eight neighbours then, which it adds to what is there with wide loads and stores. */
enum { BLOCK_N = 32 * WARPS, TILES = ROWS / 16 };
template <int PIECES, int TILES_OF>
static __global__ void __launch_bounds__(THREADS) lora_up_many_kernel(const struct cu_lora l) {
    let_next_begin();
    int64_t at = blockIdx.x % l.up_blocks;
    const int64_t m0 = blockIdx.x / l.up_blocks * (16 * TILES_OF);
    int site = 0;
    while (at >= ceil_div(l.site[site].N, BLOCK_N)) at -= ceil_div(l.site[site++].N, BLOCK_N);
    const struct cu_lora_site &s = l.site[site];
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int64_t n0 = at * BLOCK_N + threadIdx.x / 32 * 32, ldt = l.n * l.R, n = n0 + c * 8;
    const uint16_t *const t = l.t + site * l.R;
    if (n0 >= s.N) return;
    uint4 b[PIECES][4];
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t col = n0 + r / 2 * 8 + i * 2 + r % 2;
            const bool in = col < s.N && p * 32 + c * 8 < l.R;
            b[p][i] = in ? load16(s.b.p + col * s.b.row + p * 32 + c * 8) : zero4();
        }
    /* What there is of y is asked for ahead, as far as eight registers of four words hold it: three tiles in bfloat16,
     * one in float32. t, which lies in the cache, a tile ahead. */
    uint4 old[8], side[2][PIECES][2];
    const auto in = [&](int64_t row) { return row < l.T && n < s.N; };
    const auto at16 = [&](int64_t row) {
        return reinterpret_cast<uint4 *>(static_cast<uint16_t *>(s.y) + row * s.ldy + n);
    };
    const auto at32 = [&](int64_t row) {
        return reinterpret_cast<uint4 *>(static_cast<float *>(s.y) + row * s.ldy + n);
    };
    const auto fetch16 = [&](int tile) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m0 + tile * 16 + r + 8 * half;
            if (in(row)) old[tile % 4 * 2 + half] = *at16(row);
        }
    };
    const auto fetch32 = [&](int tile) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m0 + tile * 16 + r + 8 * half;
            if (!in(row)) continue;
            old[tile % 2 * 4 + half * 2] = at32(row)[0];
            old[tile % 2 * 4 + half * 2 + 1] = at32(row)[1];
        }
    };
    const auto fetch_side = [&](int tile) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m0 + tile * 16 + r + 8 * half;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                const int64_t k = p * 32 + c * 8;
                side[tile % 2][p][half] = row < l.T && k < l.R ? load16(t + row * ldt + k) : zero4();
            }
        }
    };
    fetch_side(0);
    if (s.y16) {
        fetch16(0);
        fetch16(1);
        fetch16(2);
    } else {
        fetch32(0);
    }
#pragma unroll
    for (int tile = 0; tile < TILES_OF; tile++) {
        const int64_t m = m0 + tile * 16 + r;
        if (tile + 1 < TILES_OF) fetch_side(tile + 1);
        if (s.y16 && tile + 3 < TILES_OF) fetch16(tile + 3);
        if (!s.y16 && tile + 1 < TILES_OF) fetch32(tile + 1);
        float acc[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int i = 0; i < 4; i++) mma_piece(acc[i], side[tile % 2][p][0], side[tile % 2][p][1], b[p][i]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m + 8 * half;
            if (!in(row)) continue;
            if (s.y16) {
                const uint4 o = old[tile % 4 * 2 + half];
                const uint32_t was[4] = {o.x, o.y, o.z, o.w};
                uint32_t now[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    now[i] = bf16_pair(acc[i][2 * half] + low_float(was[i]), acc[i][2 * half + 1] + high_float(was[i]));
                *at16(row) = make_uint4(now[0], now[1], now[2], now[3]);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                uint4 v = old[tile % 2 * 4 + half * 2 + i / 2];
                v.x = __float_as_uint(acc[i][2 * half] + __uint_as_float(v.x));
                v.y = __float_as_uint(acc[i][2 * half + 1] + __uint_as_float(v.y));
                v.z = __float_as_uint(acc[i + 1][2 * half] + __uint_as_float(v.z));
                v.w = __float_as_uint(acc[i + 1][2 * half + 1] + __uint_as_float(v.w));
                at32(row)[i / 2] = v;
            }
        }
    }
}

template <int PIECES, int TILES_OF> static int up(const struct cu_dev *d, const struct cu_lora *l) {
    auto *kernel = lora_up_many_kernel<PIECES, TILES_OF>;
    return LAUNCH(kernel, ceil_div(l->T, 16 * TILES_OF) * l->up_blocks, THREADS, 0, d->stream, *l);
}

extern "C" int cu_lora_up_many(const struct cu_dev *d, struct cu_lora *l) {
    l->up_blocks = 0;
    for (int i = 0; i < l->n; i++) l->up_blocks += ceil_div(l->site[i].N, BLOCK_N);
    if (l->T < CUDA_LORA_MANY) return l->R <= 32 ? up<1, ROWS / 16>(d, l) : up<2, ROWS / 16>(d, l);
    return l->R <= 32 ? up<1, ROWS / 8>(d, l) : up<2, ROWS / 8>(d, l);
}

/* ---- SwiGLU of y + t B^T ------------------------------------------------------------------------------------------
 */

/* A warp has 32 columns, of gates and of what they gate, of 16 TILES rows; columns as above. Only 16 rows where there
 * are few: then it is more warps that keep memory busy. */
template <int PIECES, int TILES_OF>
static __global__ void __launch_bounds__(THREADS) lora_swiglu_kernel(const struct cu_lora l, const struct cu_mat16 y) {
    let_next_begin();
    const int64_t per_row = ceil_div(y.cols, BLOCK_N), m0 = blockIdx.x / per_row * (16 * TILES_OF);
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int64_t n0 = blockIdx.x % per_row * BLOCK_N + threadIdx.x / 32 * 32, ldt = 2 * l.R, n = n0 + c * 8;
    if (n0 >= y.cols) return;
    uint4 b[2][PIECES][4];
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t col = n0 + r / 2 * 8 + i * 2 + r % 2;
                const bool in = col < y.cols && p * 32 + c * 8 < l.R;
                b[s][p][i] = in ? load16(l.site[s].b.p + col * l.site[s].b.row + p * 32 + c * 8) : zero4();
            }
#pragma unroll
    for (int tile = 0; tile < TILES_OF; tile++) {
        const int64_t m = m0 + tile * 16 + r;
        if (m0 + tile * 16 >= l.T) return;
        uint4 old[2][2];
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const bool in = m + 8 * half < l.T && n < y.cols;
                old[s][half] =
                    in ? load16(static_cast<const uint16_t *>(l.site[s].y) + (m + 8 * half) * l.site[s].ldy + n)
                       : zero4();
            }
        float acc[2][4][4];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint16_t *const t = l.t + s * l.R;
#pragma unroll
            for (int i = 0; i < 4; i++) acc[s][i][0] = acc[s][i][1] = acc[s][i][2] = acc[s][i][3] = 0;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                const int64_t k = p * 32 + c * 8;
                const uint4 u = m < l.T && k < l.R ? load16(t + m * ldt + k) : zero4(),
                            v = m + 8 < l.T && k < l.R ? load16(t + (m + 8) * ldt + k) : zero4();
#pragma unroll
                for (int i = 0; i < 4; i++) mma_piece(acc[s][i], u, v, b[s][p][i]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = m + 8 * half;
            if (row >= l.T || n >= y.cols) continue;
            uint32_t out[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t sum[2];
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const uint32_t was[4] = {old[s][half].x, old[s][half].y, old[s][half].z, old[s][half].w};
                    sum[s] = bf16_pair(acc[s][i][2 * half] + low_float(was[i]),
                                       acc[s][i][2 * half + 1] + high_float(was[i]));
                }
                out[i] = bf16_pair(gate16(low_float(sum[0]), low_float(sum[1])),
                                   gate16(high_float(sum[0]), high_float(sum[1])));
            }
            *reinterpret_cast<uint4 *>(y.p + row * y.ld + n) = make_uint4(out[0], out[1], out[2], out[3]);
        }
    }
}

extern "C" int cu_lora_takes_swiglu(const struct cu_lora *l, struct cu_mat16 y) {
    if (l->n != 2 || l->R % 8 != 0 || l->R > 64 || ((uintptr_t)l->t & 15) != 0) return 0;
    for (int i = 0; i < 2; i++) {
        const struct cu_lora_site *s = &l->site[i];
        if (!s->y16 || !s->b.vec || s->N != y.cols || ((uintptr_t)s->y & 15) != 0 || s->ldy % 8 != 0) return 0;
    }
    return y.cols % 8 == 0 && ((uintptr_t)y.p & 15) == 0 && y.ld % 8 == 0;
}

template <int PIECES> static int swiglu(const struct cu_dev *d, const struct cu_lora *l, struct cu_mat16 y) {
    const int64_t wide = ceil_div(y.cols, BLOCK_N);
    if (l->T < CUDA_LORA_MANY)
        return LAUNCH((lora_swiglu_kernel<PIECES, 1>), ceil_div(l->T, 16) * wide, THREADS, 0, d->stream, *l, y);
    return LAUNCH((lora_swiglu_kernel<PIECES, TILES>), ceil_div(l->T, ROWS) * wide, THREADS, 0, d->stream, *l, y);
}

extern "C" int cu_lora_swiglu(const struct cu_dev *d, const struct cu_lora *l, struct cu_mat16 y) {
    if (cu_lora_takes_many(l, y)) return cu_lora_swiglu_many(d, l, y, 0);
    return l->R <= 32 ? swiglu<1>(d, l, y) : swiglu<2>(d, l, y);
}

/* ---- which ---------------------------------------------------------------------------------------------------------
 */

/* Over few rows the many narrow blocks of the kernel for few occupy a GPU better. */
extern "C" int cu_lora_takes_down(const struct cu_dev *d, const struct cu_lora *l) {
    const int64_t blocks = ceil_div(l->T, DOWN_ROWS) * ceil_div(l->n * l->R, DOWN_COLS);
    return blocks >= d->sm_count && l->T >= CUDA_LORA_MANY && l->K % 8 == 0 && l->x.vec && l->a.vec &&
           DOWN_BYTES <= d->max_shared;
}

extern "C" int cu_lora_takes_up(const struct cu_dev *d, const struct cu_lora *l) {
    int64_t blocks = 0;
    if (l->R % 8 != 0 || l->R > 64 || ((uintptr_t)l->t & 15) != 0) return 0;
    for (int i = 0; i < l->n; i++) {
        const struct cu_lora_site *s = &l->site[i];
        if (!s->b.vec || s->N % 8 != 0 || ((uintptr_t)s->y & 15) != 0 || s->ldy % (s->y16 ? 8 : 4) != 0) return 0;
        blocks += ceil_div(s->N, BLOCK_N);
    }
    return l->T >= CUDA_LORA_MANY || (l->T > ROWS / 2 && ceil_div(l->T, ROWS) * blocks >= d->sm_count);
}
