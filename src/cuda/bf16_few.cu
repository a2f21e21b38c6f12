/* Products y = x W^T of few rows, on compute capability 9.0: what takes time is reading W, once, from all
 * multiprocessors, and waiting for the kernel before.
 *
 * A block has all rows of x, 64 for each of its warpgroups (wgmma.cuh), those that are not there being zeros, and 8 NT
 * rows of W, so many that the blocks are as many as multiprocessors or fewer. One thread asks the copy engine for tiles
 * of 64 columns of both, some stages ahead; the warpgroups multiply them as they come. Tiles of W are asked for before
 * the kernel in front has ended, those of x afterwards. The blocks of a cluster each fetch a part of the rows of x and
 * give it to all of them.
 *
 * An output is one chain over k in ascending order, in steps of 16, whatever the sizes of tiles: whether its bits are
 * those of cuBLASLt's algorithms lt.c finds out. */
#include "cuda/wgmma.cuh"

#ifndef KERNELRL_EMULATED
#include <cuda.h>
#include <dlfcn.h>
#else
#define __grid_constant__
#endif

enum { DEPTH = 64, MOST_STAGES = 24, MOST_CLUSTER = 4 };
enum { ROOM_BEHIND_ATTENTION = 76 << 10 /* what its blocks leave of a multiprocessor's shared memory */ };
static_assert(CU_FEW_ROWS == 4 * (int)WG_ROWS, "of up to four warpgroups");

/* A matrix as the copy engine sees it: `rows` x `cols`, in boxes of DEPTH columns. */
struct matrix_map {
#ifndef KERNELRL_EMULATED
    CUtensorMap map;
#endif
    const uint16_t *p;
    int64_t rows, cols, ld;
};
struct few {
    struct matrix_map x, w;
    void *y;
    const float *bias;
    int64_t ldy, T, N, K, parts, part_step, blocks;   /* blocks: of a part, whole clusters */
    int end, cluster, rounds, stages, stage_elements; /* rounds: tiles of a block, `blocks` apart */
};

/* ---- the copy engine, and barriers that count its bytes (PTX ISA, "Tensor Copy Instructions" and "mbarrier")
 * -----------
 */

#ifdef WGMMA_DEVICE
static __device__ __forceinline__ unsigned at_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void barrier_init(uint64_t *b, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at_shared(b)), "r"(arrivals) : "memory");
}
/* This thread's arrival, and `bytes` that are to come. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at_shared(b)), "r"(bytes) : "memory");
}
/* Until the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, unsigned parity) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at_shared(b)), "r"(parity)
                     : "memory");
    }
}
/* An arrival at the same barrier of block `rank` of the cluster. It says that reading is over: there is nothing written
 * that others would have to see, and so no need of the wider release that waits for memory. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *b, unsigned rank) {
    asm volatile("{ .reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at_shared(b)),
                 "r"(rank)
                 : "memory");
}
/* For nothing but barriers made (and fenced) before it, and arrivals. */
static __device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
static __device__ __forceinline__ unsigned cluster_rank() {
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* The map's box from (row, col) on, elements outside the matrix being zeros. */
static __device__ __forceinline__ void fetch(uint16_t *to, const struct matrix_map &m, int col, int row, uint64_t *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(at_shared(to)),
                 "l"(&m.map), "r"(col), "r"(row), "r"(at_shared(b))
                 : "memory");
}
/* The same, to the same place in all blocks of the cluster, whose barriers there count it. */
static __device__ __forceinline__ void fetch_for_all(uint16_t *to, const struct matrix_map &m, int col, int row,
                                                     uint64_t *b, unsigned cluster) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(at_shared(to)),
                 "l"(&m.map), "r"(col), "r"(row), "r"(at_shared(b)), "h"((uint16_t)((1u << cluster) - 1))
                 : "memory");
}
#elif !defined(__CUDACC__)
/* A box of `rows` rows, by all threads of the block. */
static void fetch_now(uint16_t *to, const struct matrix_map &m, int64_t col, int64_t row, int rows) {
    for (int i = (int)threadIdx.x; i < rows * 8; i += (int)blockDim.x) {
        const int64_t r = row + i / 8, k = col + i % 8 * 8;
        for (int e = 0; e < 8; e++)
            to[wg_at(i / 8, i % 8) + e] = r < m.rows && k + e < m.cols ? m.p[r * m.ld + k + e] : 0;
    }
}
#endif

/* ---- the kernel
 * -------------------------------------------------------------------------------------------------------
 */

#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
static __device__ __forceinline__ void put_pair16(const struct few &g, int64_t row, int64_t n, uint32_t pair) {
    *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(g.y) + row * g.ldy + n) = pair;
}
static __device__ __forceinline__ float2 *pair32(const struct few &g, int64_t row, int64_t n) {
    return reinterpret_cast<float2 *>(static_cast<float *>(g.y) + row * g.ldy + n);
}
#endif

/* Behind the warpgroups that multiply is the warp that asks: of several, a whole warpgroup, which can leave them
 * registers (all start with 168 of two and with 96 of four). */
template <int GROUPS> constexpr int threads_of() { return GROUPS * WG_THREADS + (GROUPS == 1 ? 32 : (int)WG_THREADS); }
template <int GROUPS> static __device__ __forceinline__ void give_registers() {
#ifdef WGMMA_DEVICE
    if (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (GROUPS == 4) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
}
template <int GROUPS> static __device__ __forceinline__ void take_registers() {
#ifdef WGMMA_DEVICE
    if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if (GROUPS == 4) asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
#endif
}

/* Of HALVES 2 a block has the same 8 NT rows of both halves of W. */
template <int NT, int HALVES, int GROUPS>
static __global__ void __launch_bounds__(threads_of<GROUPS>(), 1) few_kernel(const __grid_constant__ struct few g) {
#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
    DYNAMIC_SHARED(shared);
    enum { MULTIPLIERS = GROUPS * WG_THREADS, ROWS = GROUPS * WG_ROWS };
    enum { TILE = WG_ROWS * DEPTH, OF_X = GROUPS * TILE, SIDE = NT * 8 * DEPTH };
    uint16_t *const stage = aligned_tiles(shared); /* [stages][x, W's halves] */
    const int blocks = (int)g.blocks, part = (int)blockIdx.x / blocks, further = blocks * NT * 8;
    const int k0 = part * (int)g.K, half_n = (int)g.N, steps = (int)ceil_div(g.K, DEPTH);
    int n0 = (int)blockIdx.x % blocks * NT * 8;
    float acc[HALVES][NT][4];
    /* What the products are added to is asked for ahead of them. */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t row0 = warp * 16 + lane / 4;
    const bool adds = g.bias || g.end == CU_FEW_ADD;
    float2 plus[HALVES == 1 ? NT : 1][2];
    const auto begin = [&]() {
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < NT; i++) acc[h][i][0] = acc[h][i][1] = acc[h][i][2] = acc[h][i][3] = 0;
#pragma unroll
        for (int half = 0; half < 2 * (HALVES == 1); half++)
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const int64_t n = n0 + i * 8 + lane % 4 * 2, row = row0 + 8 * half;
                plus[i][half] = !adds || n >= g.N || row >= g.T ? make_float2(0, 0)
                                : g.bias                        ? make_float2(g.bias[n], g.bias[n + 1])
                                                                : *pair32(g, row, n);
            }
    };
    const auto multiply = [&](int at, int step) {
        const uint16_t *const both = stage + at * g.stage_elements, *const x = both + warp / 4 * TILE,
                              *const w = both + OF_X;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) wgmma_narrow(acc[h], x, w + h * SIDE, k, step > 0 || k > 0);
        wgmma_commit();
    };
    const auto end = [&]() {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = row0 + 8 * half;
            if (row >= g.T) break;
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const int64_t n = n0 + i * 8 + lane % 4 * 2;
                if (n >= g.N) break;
                const float *const a = &acc[0][i][2 * half], *const b = &acc[HALVES - 1][i][2 * half];
                if (HALVES == 2) {
                    const uint32_t left = bf16_pair(a[0], a[1]), right = bf16_pair(b[0], b[1]);
                    if (g.end == CU_FEW_SWIGLU) {
                        put_pair16(g, row, n,
                                   bf16_pair(gate16(low_float(left), low_float(right)),
                                             gate16(high_float(left), high_float(right))));
                    } else {
                        put_pair16(g, row, n, left);
                        put_pair16(g, row, n + g.N, right);
                    }
                } else if (g.end == CU_FEW_BF16) {
                    put_pair16(g, row, n, bf16_pair(a[0], a[1]));
                } else {
                    const float2 p = plus[i][half];
                    *pair32(g, row, part * g.part_step + n) =
                        adds ? make_float2(a[0] + p.x, a[1] + p.y) : make_float2(a[0], a[1]);
                }
            }
        }
    };
#ifdef WGMMA_DEVICE
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES];
    const unsigned cluster = (unsigned)g.cluster, rank = cluster > 1 ? cluster_rank() : 0;
    let_next_begin();
    if (threadIdx.x == 0) {
        for (int s = 0; s < g.stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], MULTIPLIERS / 32 * cluster);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (cluster > 1)
        cluster_barrier();
    else
        __syncthreads();
    if (warp >= MULTIPLIERS / 32) {
        give_registers<GROUPS>();
        if (threadIdx.x == MULTIPLIERS) {
            const int rows = ROWS / (int)cluster, first = rows * (int)rank;
            const auto ask_w = [&](int at, int step) {
                uint16_t *const to = stage + at * g.stage_elements + OF_X;
                barrier_expect(&full[at], (unsigned)g.stage_elements * 2);
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    fetch(to + h * SIDE, g.w, k0 + step * DEPTH, n0 + h * half_n, &full[at]);
            };
            const auto ask_x = [&](int at, int step) {
                uint16_t *const to = stage + at * g.stage_elements + first * DEPTH;
                if (cluster > 1)
                    fetch_for_all(to, g.x, k0 + step * DEPTH, first, &full[at], cluster);
                else
                    fetch(to, g.x, k0 + step * DEPTH, 0, &full[at]);
            };
            for (int s = 0; s < g.stages; s++) ask_w(s, s);
            wait_for_before();
            for (int s = 0; s < g.stages; s++) ask_x(s, s);
            int at = 0, first_step = g.stages;
            unsigned parity = 0;
            for (int round = 0; round < g.rounds; round++, first_step = 0, n0 += further)
                for (int s = first_step; s < steps; s++) {
                    barrier_wait(&empty[at], parity);
                    ask_w(at, s);
                    ask_x(at, s);
                    if (++at == g.stages) at = 0, parity ^= 1;
                }
        }
        if (cluster > 1) cluster_barrier(); /* while others may arrive here nobody leaves */
    } else {
        take_registers<GROUPS>();
        wait_for_before();
        int at = 0;
        unsigned parity = 0;
        for (int round = 0; round < g.rounds; round++, n0 += further) {
            int before = 0;
            begin();
            for (int s = 0; s < steps; s++) {
                barrier_wait(&full[at], parity);
                multiply(at, s);
                wgmma_wait<1>();
                if (s > 0 && lane < (int)cluster) barrier_arrive_at(&empty[before], (unsigned)lane);
                before = at;
                if (++at == g.stages) at = 0, parity ^= 1;
            }
            wgmma_wait<0>();
            if (lane < (int)cluster) barrier_arrive_at(&empty[before], (unsigned)lane);
            end();
        }
        if (cluster > 1) cluster_barrier();
    }
#else
    for (int round = 0; round < g.rounds; round++, n0 += further) {
        begin();
        for (int s = 0; s < steps; s++) {
            __syncthreads();
            fetch_now(stage, g.x, k0 + s * DEPTH, 0, ROWS);
            for (int h = 0; h < HALVES; h++)
                fetch_now(stage + OF_X + h * SIDE, g.w, k0 + s * DEPTH, n0 + h * half_n, NT * 8);
            __syncthreads();
            if (threadIdx.x < MULTIPLIERS) multiply(0, s);
        }
        if (threadIdx.x < MULTIPLIERS) end();
    }
#endif
#endif
}

/* ---- launching
 * --------------------------------------------------------------------------------------------------------
 */

/* How many times eight rows of W a block has at a time, whether of two halves each, its warpgroups, how many rounds of
 * that, and the blocks of a part: the smallest tiles for the fewest rounds. */
struct few_shape {
    int eights, halves, groups, rounds;
    int64_t blocks;
};
enum { MOST_ROUNDS = 16 };

static struct few_shape shape_of(const struct cu_dev *d, const struct cu_few *f) {
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 9, 12, 18}, pairs[] = {5, 9, 12, 18};
    const int groups = f->T <= WG_ROWS ? 1 : f->T <= 2 * WG_ROWS ? 2 : 4, most = groups < 4 ? 18 : 9 /* registers */;
    const int64_t room = d->sm_count / f->parts / f->cluster * f->cluster;
    const int64_t N = f->end == CU_FEW_SWIGLU ? f->N : f->N / 2;
    const bool one = f->end != CU_FEW_SWIGLU, two = !one || (f->end == CU_FEW_BF16 && f->N % 16 == 0 && f->parts == 1);
    const auto blocks = [&](int64_t rows, int n, int rounds) {
        return ceil_div(ceil_div(ceil_div(rows, 8 * n), rounds), f->cluster) * f->cluster;
    };
    for (int r = 1; r <= MOST_ROUNDS && room > 0; r++) {
        for (const int n : sizes)
            if (one && n <= most && blocks(f->N, n, r) <= room) return {n, 1, groups, r, blocks(f->N, n, r)};
        for (const int n : pairs)
            if (two && n <= most && blocks(N, n, r) <= room) return {n, 2, groups, r, blocks(N, n, r)};
    }
    return {0, 0, 0, 0, 0};
}

extern "C" int cu_few_takes(const struct cu_dev *d, const struct cu_few *f) {
    return d->wgmma && f->T > 0 && f->T <= CU_FEW_ROWS && f->N > 0 && f->N % 8 == 0 && f->K > 0 && f->K % 8 == 0 &&
           (f->parts == 1 || f->K % DEPTH == 0) && f->cluster >= 1 && f->cluster <= MOST_CLUSTER &&
           (((uintptr_t)f->x | (uintptr_t)f->w | (uintptr_t)f->y | (uintptr_t)(f->ldx * 2) | (uintptr_t)(f->ldw * 2)) &
            15) == 0 &&
           f->ldy % 8 == 0 && shape_of(d, f).eights > 0;
}

/* Fills in the map of boxes of `box` rows. */
static int map_matrix(struct matrix_map *m, int box) {
#ifndef KERNELRL_EMULATED
    typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                               const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                               CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    /* The driver's, which the runtime has loaded; no library to link names it. */
    static void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    static encode_fn *const encode =
        reinterpret_cast<encode_fn *>(driver ? dlsym(driver, "cuTensorMapEncodeTiled") : nullptr);
    const cuuint64_t size[2] = {(cuuint64_t)m->cols, (cuuint64_t)m->rows}, step[1] = {(cuuint64_t)m->ld * 2};
    const cuuint32_t boxes[2] = {DEPTH, (cuuint32_t)box}, ones[2] = {1, 1};
    if (!encode) return (int)cudaErrorNotSupported;
    return encode(&m->map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t *>(m->p), size, step, boxes, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : (int)cudaErrorInvalidValue;
#else
    return (void)m, (void)box, 0;
#endif
}

template <int NT, int HALVES, int GROUPS> static int start(const struct cu_dev *d, const struct few &g, int shared) {
    auto *kernel = few_kernel<NT, HALVES, GROUPS>;
    enum { THREADS = threads_of<GROUPS>() };
    const int rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d->max_shared - 1024);
    if (rc) return rc;
#ifndef KERNELRL_EMULATED
    cudaLaunchAttribute a[2] = {};
    cudaLaunchConfig_t how = {};
    a[0].id = cudaLaunchAttributeClusterDimension;
    a[0].val.clusterDim.x = (unsigned)g.cluster;
    a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
    a[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[1].val.programmaticStreamSerializationAllowed = 1;
    how.gridDim = dim3((unsigned)(g.blocks * g.parts));
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = (size_t)shared;
    how.stream = (cudaStream_t)d->stream;
    how.attrs = a;
    how.numAttrs = d->overlaps ? 2 : 1;
    return (int)cudaLaunchKernelEx(&how, kernel, g);
#else
    return LAUNCH(kernel, g.blocks * g.parts, THREADS, shared, d->stream, g);
#endif
}

extern "C" int cu_few(const struct cu_dev *d, const struct cu_few *f) {
    if (f->T <= 0 || f->N <= 0) return 0;
    const struct few_shape s = shape_of(d, f);
    const int64_t cols = f->K * f->parts, rows = f->end == CU_FEW_SWIGLU ? 2 * f->N : f->N;
    struct few g = {};
    g.x.p = f->x, g.x.rows = f->T, g.x.cols = cols, g.x.ld = f->ldx;
    g.w.p = f->w, g.w.rows = rows, g.w.cols = cols, g.w.ld = f->ldw;
    g.y = f->y, g.bias = f->bias, g.ldy = f->ldy, g.T = f->T, g.N = rows / s.halves, g.K = f->K;
    g.parts = f->parts, g.part_step = f->part_step, g.blocks = s.blocks, g.rounds = s.rounds, g.end = f->end,
    g.cluster = f->cluster;
    const int stage = (WG_ROWS * s.groups + 8 * s.eights * s.halves) * DEPTH * 2;
    const int most = d->max_shared - 1024 - WG_ALIGN; /* the barriers, too, take some */
    const int room = f->behind_attention && most > ROOM_BEHIND_ATTENTION ? (int)ROOM_BEHIND_ATTENTION : most;
    const int steps = (int)ceil_div(f->K, DEPTH), fit = room / stage < MOST_STAGES ? room / stage : (int)MOST_STAGES;
    if (fit < 1) return (int)cudaErrorInvalidValue;
    g.stages = fit < steps ? fit : steps;
    g.stage_elements = stage / 2;
    int rc = map_matrix(&g.x, WG_ROWS * s.groups / f->cluster);
    if (!rc) rc = map_matrix(&g.w, 8 * s.eights);
    if (rc) return rc;
    const int shared = g.stages * stage + WG_ALIGN;
#define SIZE(n, h)                      \
    if (s.eights == n && s.halves == h) \
    return s.groups == 1 ? start<n, h, 1>(d, g, shared) : s.groups == 2 ? start<n, h, 2>(d, g, shared) : MANY(n, h)
#define MANY(n, h) start<n, h, 4>(d, g, shared)
    SIZE(1, 1);
    SIZE(2, 1);
    SIZE(3, 1);
    SIZE(4, 1);
    SIZE(5, 1);
    SIZE(6, 1);
    SIZE(9, 1);
    SIZE(5, 2);
    SIZE(9, 2);
#undef MANY
#define MANY(n, h) (int)cudaErrorInvalidValue
    SIZE(12, 1);
    SIZE(18, 1);
    SIZE(12, 2);
    SIZE(18, 2);
#undef MANY
#undef SIZE
    return (int)cudaErrorInvalidValue;
}
