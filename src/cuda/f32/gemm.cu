/* The float32 matrix product c = a b (kernels.h, cu_gemm) behind the ops linear, linear_dx and linear_dw. A block of
 * threads computes a tile of c and keeps it in registers; it copies strips of a and b into two buffers of shared memory
 * in turn. Each number of c belongs to one thread, which adds up its products over k in ascending order, by one fused
 * multiply-add (FMA) a step. Dividing k among threads would be faster for linear_dw, and would change the bits. */
#include "cuda/shared/group.cuh"

struct gemm_args {
    struct cu_gemm g;
    int64_t tiles_n;
    int vec_a, vec_b, vec_c; /* true: the matrix may be read and written 16 bytes at a time */
};

/* One strip of a or b: ROWS of its indices m or n, and BK of its indices k. THREADS threads copy it from global memory,
 * through registers, into s[BK][LD]; what is outside of the matrix becomes 0. KC true: neighbours along k are
 * neighbours in memory; false: neighbours along m or n are. */
template <int ROWS, int BK, int THREADS, bool KC> struct strip {
    static constexpr int QUADS = ROWS * BK / 4 / THREADS; /* of 4 floats, for each thread */
    static constexpr int LD = ROWS + 4;
    static_assert(QUADS * THREADS * 4 == ROWS * BK, "threads must share a strip evenly");
    float4 reg[QUADS];

    __device__ __forceinline__ void load(const float *p, int64_t ld, int64_t r0, int64_t rows, int64_t k0, int64_t K,
                                         bool vec, int tid) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int q = tid + i * THREADS;
            const int64_t r = r0 + (KC ? q / (BK / 4) : q % (ROWS / 4) * 4);
            const int64_t k = k0 + (KC ? q % (BK / 4) * 4 : q / (ROWS / 4));
            const float *src = KC ? p + r * ld + k : p + k * ld + r;
            const bool in = KC ? r < rows : k < K; /* the row in memory exists */
            /* How many elements are left in that row. */
            const int64_t left = in ? (KC ? K - k : rows - r) : 0;
            float4 v = make_float4(0, 0, 0, 0);
            if (vec && left >= 4) {
                v = *reinterpret_cast<const float4 *>(src);
            } else {
                if (left > 0) v.x = src[0];
                if (left > 1) v.y = src[1];
                if (left > 2) v.z = src[2];
                if (left > 3) v.w = src[3];
            }
            reg[i] = v;
        }
    }
    __device__ __forceinline__ void store(float *s, int tid) const {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int q = tid + i * THREADS;
            if (KC) {
                float *dst = s + q % (BK / 4) * 4 * LD + q / (BK / 4);
                dst[0] = reg[i].x;
                dst[LD] = reg[i].y;
                dst[2 * LD] = reg[i].z;
                dst[3 * LD] = reg[i].w;
            } else {
                *reinterpret_cast<float4 *>(s + q / (ROWS / 4) * LD + q % (ROWS / 4) * 4) = reg[i];
            }
        }
    }
};

/* Which N rows (or columns) of a tile of BLOCK rows (or columns) thread t has: N / W groups of W neighbours each, of
 * which at(t, i) is number i. The threads' groups of 16 bytes lie side by side, so that a read of them is fast. */
template <int N, int BLOCK> struct frag {
    static constexpr int W = N < 4 ? N : 4;
    static __device__ __forceinline__ int at(int t, int i) { return i / W * (BLOCK / (N / W)) + t * W + i % W; }
    static __device__ __forceinline__ void read(float *f, const float *s, int t) {
#pragma unroll
        for (int i = 0; i < N; i += W) {
            if constexpr (W == 4) {
                const float4 v = *reinterpret_cast<const float4 *>(s + at(t, i));
                f[i] = v.x, f[i + 1] = v.y, f[i + 2] = v.z, f[i + 3] = v.w;
            } else {
                const float2 v = *reinterpret_cast<const float2 *>(s + at(t, i));
                f[i] = v.x, f[i + 1] = v.y;
            }
        }
    }
};

/* Computes a tile of BM x BN, of which each thread has TM x TN. AK and BKC: KC of the strips of a and of b. */
template <int BM, int BN, int BK, int TM, int TN, int MIN_BLOCKS, bool AK, bool BKC>
static __device__ __forceinline__ void gemm_tile(const struct gemm_args &args, int64_t tile) {
    constexpr int THREADS = BM / TM * (BN / TN);
    using strip_a = strip<BM, BK, THREADS, AK>;
    using strip_b = strip<BN, BK, THREADS, BKC>;
    using frag_m = frag<TM, BM>;
    using frag_n = frag<TN, BN>;
    __shared__ __align__(16) float sa[2][BK * strip_a::LD];
    __shared__ __align__(16) float sb[2][BK * strip_b::LD];
    const struct cu_gemm &g = args.g;
    const int tid = threadIdx.x, tx = tid % (BN / TN), ty = tid / (BN / TN);
    const int64_t m0 = tile / args.tiles_n * BM, n0 = tile % args.tiles_n * BN;

    float acc[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const int64_t m = m0 + frag_m::at(ty, i), n = n0 + frag_n::at(tx, j);
            acc[i][j] = 0;
            if (m < g.M && n < g.N) {
                if (g.accumulate) acc[i][j] = g.c[m * g.ldc + n];
                if (g.bias) acc[i][j] = g.bias[n];
            }
        }

    strip_a ra;
    strip_b rb;
    if (g.K > 0) {
        ra.load(g.a, g.lda, m0, g.M, 0, g.K, args.vec_a, tid);
        rb.load(g.b, g.ldb, n0, g.N, 0, g.K, args.vec_b, tid);
        ra.store(sa[0], tid);
        rb.store(sb[0], tid);
    }
    __syncthreads();
    int buf = 0;
    for (int64_t k0 = 0; k0 < g.K; k0 += BK) {
        const bool more = k0 + BK < g.K;
        if (more) {
            ra.load(g.a, g.lda, m0, g.M, k0 + BK, g.K, args.vec_a, tid);
            rb.load(g.b, g.ldb, n0, g.N, k0 + BK, g.K, args.vec_b, tid);
        }
        const float *pa = sa[buf], *pb = sb[buf];
        /* The last strip may be longer than what is left of k. Its steps stop at K: a further step would add 0*0, and
         * turn a sum of -0 into +0. */
        if (k0 + BK <= g.K) {
#pragma unroll
            for (int k = 0; k < BK; k++) {
                float fa[TM], fb[TN];
                frag_m::read(fa, pa + k * strip_a::LD, ty);
                frag_n::read(fb, pb + k * strip_b::LD, tx);
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < TN; j++) acc[i][j] = fmaf(fa[i], fb[j], acc[i][j]);
            }
        } else {
            const int n = (int)(g.K - k0);
#pragma unroll 1
            for (int k = 0; k < n; k++) {
                float fa[TM], fb[TN];
                frag_m::read(fa, pa + k * strip_a::LD, ty);
                frag_n::read(fb, pb + k * strip_b::LD, tx);
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < TN; j++) acc[i][j] = fmaf(fa[i], fb[j], acc[i][j]);
            }
        }
        if (more) { /* no thread reads the other buffer any more: its last reads were in front of the last barrier */
            ra.store(sa[buf ^ 1], tid);
            rb.store(sb[buf ^ 1], tid);
        }
        __syncthreads();
        buf ^= 1;
    }

#pragma unroll
    for (int i = 0; i < TM; i++) {
        const int64_t m = m0 + frag_m::at(ty, i);
        if (m >= g.M) continue;
        float *row = g.c + m * g.ldc;
#pragma unroll
        for (int j = 0; j < TN; j += frag_n::W) {
            const int64_t n = n0 + frag_n::at(tx, j);
            if (frag_n::W == 4 && args.vec_c && n + 4 <= g.N) {
                *reinterpret_cast<float4 *>(row + n) =
                    make_float4(acc[i][j], acc[i][j + 1], acc[i][(j + 2) % TN], acc[i][(j + 3) % TN]);
            } else {
#pragma unroll
                for (int u = 0; u < frag_n::W; u++)
                    if (n + u < g.N) row[n + u] = acc[i][j + u];
            }
        }
    }
}

template <int BM, int BN, int BK, int TM, int TN, int MIN_BLOCKS, bool AK, bool BKC>
__global__ void __launch_bounds__(BM / TM * (BN / TN), MIN_BLOCKS) gemm_kernel(const struct gemm_args args) {
    gemm_tile<BM, BN, BK, TM, TN, MIN_BLOCKS, AK, BKC>(args, blockIdx.x);
}

template <int BM, int BN, int BK, int TM, int TN, int MIN_BLOCKS, bool AK, bool BKC>
static int run(const struct cu_dev *d, struct gemm_args args) {
    args.tiles_n = ceil_div(args.g.N, BN);
    const int64_t tiles = ceil_div(args.g.M, BM) * args.tiles_n;
    auto *kernel = gemm_kernel<BM, BN, BK, TM, TN, MIN_BLOCKS, AK, BKC>;
    return LAUNCH(kernel, tiles, BM / TM * (BN / TN), 0, d->stream, args);
}

/* Picks the largest tile that makes at least one tile for each multiprocessor; where none does, the smallest. Large
 * tiles read a and b less often; small ones keep more multiprocessors at work. The bits are the same. */
template <bool AK, bool BKC> static int pick(const struct cu_dev *d, const struct gemm_args &args) {
    const int64_t M = args.g.M, N = args.g.N;
    if (ceil_div(M, 128) * ceil_div(N, 128) >= d->sm_count) return run<128, 128, 16, 8, 8, 2, AK, BKC>(d, args);
    if (ceil_div(M, 64) * ceil_div(N, 64) >= d->sm_count) return run<64, 64, 16, 4, 4, 3, AK, BKC>(d, args);
    return run<32, 32, 32, 2, 4, 4, AK, BKC>(d, args);
}

extern "C" int cu_gemm(const struct cu_dev *d, enum cu_gemm_kind kind, const struct cu_gemm *g) {
    if (g->M <= 0 || g->N <= 0) return 0;
    struct gemm_args args = {*g, 0, aligned16(g->a, g->lda), aligned16(g->b, g->ldb), aligned16(g->c, g->ldc)};
    if (kind == CU_GEMM_NT) return pick<true, true>(d, args);
    if (kind == CU_GEMM_NN) return pick<true, false>(d, args);
    return pick<false, false>(d, args);
}

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

enum { GROUP_ROWS = 32, GROUP_COLS = 32 };

template <bool BKC>
static __global__ void __launch_bounds__(128, 4) gemm_group_kernel(struct gemm_args args, const struct cu_group e) {
    const struct group_tile t = group_find(e, blockIdx.x / args.tiles_n, GROUP_ROWS);
    if (t.expert < 0) return;
    args.g.a += t.lo * args.g.lda;
    args.g.c += t.lo * args.g.ldc;
    args.g.b = static_cast<const float *>(e.w[t.expert]);
    args.g.M = t.rows;
    gemm_tile<GROUP_ROWS, GROUP_COLS, 32, 2, 4, 4, true, BKC>(args, t.tile * args.tiles_n + blockIdx.x % args.tiles_n);
}

/* The sum over an expert's rows, for CU_GEMM_TN, which always accumulates: an expert without rows changes nothing. */
static __global__ void __launch_bounds__(128, 4)
    gemm_group_rows_kernel(struct gemm_args args, const struct cu_group e, int64_t tiles) {
    const int64_t x = blockIdx.x / tiles, lo = e.lo[x], rows = e.hi[x] - lo;
    if (rows <= 0) return;
    args.g.a += lo * args.g.lda;
    args.g.b += lo * args.g.ldb;
    args.g.c += x * e.stride;
    args.g.K = rows;
    gemm_tile<GROUP_ROWS, GROUP_COLS, 32, 2, 4, 4, false, false>(args, blockIdx.x % tiles);
}

extern "C" int cu_gemm_group(const struct cu_dev *d, enum cu_gemm_kind kind, const struct cu_gemm *g,
                             const struct cu_group *e) {
    if (g->M <= 0 || g->N <= 0 || g->K <= 0 || e->n <= 0) return 0;
    struct gemm_args args = {*g, ceil_div(g->N, GROUP_COLS), aligned16(g->a, g->lda), 1, aligned16(g->c, g->ldc)};
    if (kind == CU_GEMM_TN) {
        const int64_t tiles = ceil_div(g->M, GROUP_ROWS) * args.tiles_n;
        args.vec_b = aligned16(g->b, g->ldb);
        args.vec_c = args.vec_c && e->stride % 4 == 0;
        return LAUNCH(gemm_group_rows_kernel, tiles * e->n, 128, 0, d->stream, args, *e, tiles);
    }
    for (int i = 0; i < e->n; i++) args.vec_b &= aligned16(e->w[i], g->ldb);
    const int64_t blocks = group_tiles(*e, g->M, GROUP_ROWS) * args.tiles_n;
    if (kind == CU_GEMM_NT) return LAUNCH(gemm_group_kernel<true>, blocks, 128, 0, d->stream, args, *e);
    return LAUNCH(gemm_group_kernel<false>, blocks, 128, 0, d->stream, args, *e);
}
