/* Products y = x W^T of at most 64 rows with a matrix in codes, on compute capability 9.0: what takes time is reading
 * the codes, once, and decoding them.
 *
 * A warpgroup has 64 rows of W, which are the rows of its product, over all of k; x's rows are the columns. Its threads
 * read the codes of their own fragments (codes.cuh) straight into registers, some panels of 64 columns ahead, decode
 * them there, and multiply: W is never in shared memory, and no barrier stands between a code and its product. Panels
 * of x come by the copy engine, asked for by one warp, and are shared by the warpgroups of a block.
 *
 * An output is one chain over k in ascending order, in steps of 16, as in few_rows_gemm.cu. Whether the bits are those
 * of the other products cublas.c finds out. */
#include "cuda/shared/codes.cuh"
#include "cuda/shared/copy_engine.cuh"

enum { W_ROWS = WG_ROWS, X_STAGES = 8, MOST_GROUPS = 5 };

struct coded_few {
    struct matrix_map x;
    void *y;
    const float *bias;
    int64_t ldy, T, part_step;
    int end, tiles, blocks, panels; /* of a part of the sum: tiles of W, blocks, panels */
    int groups, across;             /* warpgroups of a block that multiply; panels of W along all of K */
    int n_parts;
    struct cu_coded part[CODED_PARTS];
};

#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
/* The codes and scales of a panel of a warpgroup's tile, for one thread. */
template <int FORMAT> struct panel_codes {
    struct fragment<FORMAT> f;
    float scale[2]; /* FP8: of the panel. NF4: the scales' scales of both rows, or the scales. */
    uint32_t absmax[2];
};

template <int FORMAT>
static __device__ __forceinline__ void panel_load(struct panel_codes<FORMAT> &p, const struct cu_coded &m, int64_t row,
                                                  int panel, int warp, int lane) {
    const int64_t across = m.K / DEPTH, tile = row / W_ROWS * across + panel;
    fragment_load(p.f, m.codes, tile, warp, lane);
    if (FORMAT == FORMAT_FP8) {
        p.scale[0] = p.scale[1] = m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + panel * DEPTH / FP8_BLOCK];
    }
#pragma unroll
    for (int i = 0; i < 2 * (FORMAT == FORMAT_NF4); i++) {
        const int64_t block = (row + warp * 16 + lane / 4 + 8 * i) * across + panel;
        p.absmax[i] = m.absmax ? m.absmax[block] : 0;
        p.scale[i] = m.absmax ? m.nested[block / NF4_NESTED] : m.scale[block];
    }
}
#endif

/* The product of one warpgroup with a warp behind all that asks for x. */
template <int NT, int FORMAT, int GROUPS, int AHEAD>
static __global__ void __launch_bounds__(GROUPS *WG_THREADS + 32, 1)
    coded_few_kernel(const __grid_constant__ struct coded_few g) {
#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
    DYNAMIC_SHARED(shared);
    __shared__ float map[FORMAT == FORMAT_NF4 ? NF4_CODES : 1][32], nested_map[FORMAT == FORMAT_NF4 ? NF4_SCALES : 1];
    enum { X_ROWS = 8 * NT, STAGE = X_ROWS * DEPTH };
    uint16_t *const stage = aligned_tiles(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4, sum_part = (int)blockIdx.x / g.blocks;
    const int wanted = (int)blockIdx.x % g.blocks * g.groups + group;
    const bool live = group < g.groups && wanted < g.tiles; /* others repeat the last tile and keep nothing */
    int64_t row = (int64_t)(wanted < g.tiles ? wanted : g.tiles - 1) * W_ROWS; /* of the part of W, below */
    const int64_t n0 = row + warp % 4 * 16 + lane / 4;
    int of = 0;
    while (of + 1 < g.n_parts && row >= g.part[of].rows) row -= g.part[of++].rows;
    const struct cu_coded &m = g.part[of];
    const int first = sum_part * g.panels;
    float acc[NT][4];
    struct panel_codes<FORMAT> codes[AHEAD];
    const auto load = [&](struct panel_codes<FORMAT> &p, int panel) {
        if (panel < g.panels) panel_load(p, m, row, first + panel, warp % 4, lane);
    };
    /* One panel: decoded, then multiplied by the panel of x in `at`. Its place is free for another then. */
    const auto multiply = [&](struct panel_codes<FORMAT> &p, const uint16_t *x, int panel) {
        uint32_t a[4][4];
        float low, high;
        if (FORMAT == FORMAT_FP8) {
            low = high = p.scale[0] * FP8_UP;
        } else {
            low = m.absmax ? nested_map[p.absmax[0]] * p.scale[0] + m.offset : p.scale[0];
            high = m.absmax ? nested_map[p.absmax[1]] * p.scale[1] + m.offset : p.scale[1];
        }
#pragma unroll
        for (int s = 0; s < 4; s++) fragment_decode<FORMAT>(a[s], p.f, s, low, high, map, lane);
        load(p, panel + AHEAD);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) wgmma_narrow(acc, a[s], x, s, panel > 0 || s > 0);
        wgmma_commit();
        wgmma_wait<0>();
    };
    const auto end = [&]() {
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t t = i * 8 + lane % 4 * 2 + e % 2, n = n0 + e / 2 * 8;
                if (!live || t >= g.T) continue;
                if (g.end == CU_FEW_BF16) {
                    static_cast<uint16_t *>(g.y)[t * g.ldy + n] = bf16_of(acc[i][e]);
                    continue;
                }
                float *const y = static_cast<float *>(g.y) + sum_part * g.part_step + t * g.ldy + n;
                *y = g.bias ? acc[i][e] + g.bias[n] : g.end == CU_FEW_ADD ? acc[i][e] + *y : acc[i][e];
            }
    };
    if (FORMAT == FORMAT_NF4) { /* weights are there before any kernel of a pass */
        for (int i = threadIdx.x; i < NF4_CODES * 32; i += blockDim.x) map[i / 32][i % 32] = g.part[0].map[i / 32];
        for (int i = threadIdx.x; g.part[0].absmax && i < NF4_SCALES; i += blockDim.x)
            nested_map[i] = g.part[0].nested_map[i];
    }
#ifdef WGMMA_DEVICE
    __shared__ uint64_t full[X_STAGES], empty[X_STAGES];
    let_next_begin();
    const bool asks = group >= g.groups;
    if (threadIdx.x == 0) {
        announce(g.x);
        for (int s = 0; s < X_STAGES; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], (unsigned)g.groups * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (!asks) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) load(codes[i], i);
    }
    __syncthreads();
    wait_for_before();
    if (asks) {
        for (int panel = 0; panel < g.panels; panel++) {
            const int at = panel % X_STAGES;
            if (panel >= X_STAGES) barrier_wait(&empty[at], (unsigned)(panel / X_STAGES - 1) & 1);
            if (elected()) {
                barrier_expect(&full[at], STAGE * 2);
                fetch(stage + at * STAGE, g.x, sum_part, panel, 0, &full[at]);
            }
            __syncwarp();
        }
    } else {
#pragma unroll
        for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
        for (int panel0 = 0; panel0 < g.panels; panel0 += AHEAD) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int panel = panel0 + i, at = panel % X_STAGES;
                if (panel < g.panels) {
                    barrier_wait(&full[at], (unsigned)(panel / X_STAGES) & 1);
                    multiply(codes[i], stage + at * STAGE, panel);
                    if (lane == 0) barrier_arrive(&empty[at]);
                }
            }
        }
        end();
    }
#else
    for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    for (int i = 0; i < AHEAD && group < g.groups; i++) load(codes[i], i);
    for (int panel = 0; panel < g.panels; panel++) {
        __syncthreads();
        fetch_now(stage, g.x, sum_part, panel, 0, X_ROWS, 1);
        __syncthreads();
        if (group < g.groups) multiply(codes[panel % AHEAD], stage, panel);
    }
    if (group < g.groups) end();
#endif
#endif
}

/* ---- launching ---------------------------------------------------------------------------------------------- */

/* All parts have one table of values and one of scales: those of the first serve all. */
extern "C" int cu_coded_few_takes(const struct cu_dev *d, const struct cu_coded_few *f) {
    const struct cu_few *w = &f->few;
    for (int i = 0; i < f->n_parts; i++)
        if (!f->part[i].fragments || f->part[i].format != f->part[0].format || !f->part[i].absmax != !f->part[0].absmax)
            return 0;
    return d->wgmma && f->n_parts > 0 && w->T > 0 && w->T <= CU_CODED_ROWS && w->N % W_ROWS == 0 && w->K % DEPTH == 0 &&
           w->K > 0 && w->end != CU_FEW_SWIGLU && w->ldx % 8 == 0 && ((uintptr_t)w->x & 15) == 0;
}

template <int NT, int FORMAT, int GROUPS, int AHEAD>
static int start(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    auto *kernel = coded_few_kernel<NT, FORMAT, GROUPS, AHEAD>;
    const int shared = X_STAGES * 8 * NT * DEPTH * 2 + WG_ALIGN;
    int rc = map_matrix(&g.x, f->few.parts, 8 * NT, 1);
    if (!rc) rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return rc ? rc : LAUNCH_SOON(kernel, g.blocks * (int)f->few.parts, g.groups * WG_THREADS + 32, shared, d, g);
}

template <int NT> static int start_format(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    const bool fp8 = f->part[0].format == FORMAT_FP8;
    if (g.groups <= 2) return fp8 ? start<NT, FORMAT_FP8, 2, 6>(d, g, f) : start<NT, FORMAT_NF4, 2, 8>(d, g, f);
    return fp8 ? start<NT, FORMAT_FP8, MOST_GROUPS, 2>(d, g, f) : start<NT, FORMAT_NF4, MOST_GROUPS, 3>(d, g, f);
}

extern "C" int cu_coded_few(const struct cu_dev *d, const struct cu_coded_few *f) {
    const struct cu_few *w = &f->few;
    struct coded_few g = {};
    g.x.p = w->x, g.x.rows = w->T, g.x.cols = w->K, g.x.ld = w->ldx;
    g.y = w->y, g.bias = w->bias, g.ldy = w->ldy, g.T = w->T, g.part_step = w->part_step, g.end = w->end;
    g.tiles = (int)(w->N / W_ROWS), g.panels = (int)(w->K / DEPTH);
    g.groups = 1; /* as few as give every multiprocessor a block at most */
    while (g.groups < MOST_GROUPS && ceil_div(g.tiles, g.groups) * w->parts > d->sm_count) g.groups++;
    g.blocks = (int)ceil_div(g.tiles, g.groups);
    g.n_parts = f->n_parts;
    for (int i = 0; i < f->n_parts; i++) g.part[i] = f->part[i];
    if (w->T <= 8) return start_format<1>(d, g, f);
    if (w->T <= 16) return start_format<2>(d, g, f);
    if (w->T <= 32) return start_format<4>(d, g, f);
    return start_format<8>(d, g, f);
}
