/* Products y = x W^T of few rows, on compute capability 9.0: what takes time is reading W, once, and waiting for the
 * kernel before. What a multiprocessor can take in binds next: all of them read all of x.
 *
 * A block has all rows of x, up to 64 for each of its warpgroups (wgmma.cuh), and 8 NT rows of W, so many that the
 * blocks are as many as multiprocessors or fewer. One warp asks the copy engine for panels of 64 columns of both,
 * several a stage and some stages ahead; the warpgroups multiply them as they come. Panels of W are asked for before
 * the kernel in front has ended, those of x afterwards. Of the 64 rows that a warpgroup multiplies those that x does
 * not have are whatever lies behind; their results are not kept.
 *
 * An output is one chain over k in ascending order, in steps of 16, whatever the sizes of tiles: whether its bits are
 * those of cuBLASLt's algorithms cublas.c finds out. */
#include "cuda/shared/copy_engine.cuh"

enum { MOST_STAGES = 24 };
enum { OTHER_BYTES = 1024 /* of shared memory: barriers */, NARROW_BYTES = 150 << 10 };
static_assert(CU_FEW_ROWS == 2 * (int)WG_ROWS, "of one or two warpgroups");

/* Blocks with few rows of W spend their time on barriers: they have more panels a stage. Nor do they need all of the
 * shared memory; with NARROW_BYTES their places are free while blocks of the kernel in front are still there. */
static __host__ __device__ constexpr bool is_narrow(int eights) { return eights < 18; }
static __host__ __device__ constexpr int panels_of(int eights) { return is_narrow(eights) ? 2 : 1; }

struct few {
    struct matrix_map x, w;
    void *y;
    const float *bias;
    int64_t ldy, T, N, part_step;
    int end, tiles, panels; /* blocks and panels of a part */
    int stages, stage_rows; /* rows of DEPTH columns of a stage */
    int x_rows;             /* T in eights */
};

/* ---- the kernel --------------------------------------------------------------------------------------------- */

#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
static __device__ __forceinline__ void put_pair16(const struct few &g, int64_t row, int64_t n, uint32_t pair) {
    *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(g.y) + row * g.ldy + n) = pair;
}
static __device__ __forceinline__ float2 *pair32(const struct few &g, int64_t row, int64_t n) {
    return reinterpret_cast<float2 *>(static_cast<float *>(g.y) + row * g.ldy + n);
}
#endif

/* Behind the warpgroups that multiply is the warp that asks: of two, a whole warpgroup, which can leave them registers
 * (all start with 168). */
template <int GROUPS> constexpr int threads_of() { return GROUPS * WG_THREADS + (GROUPS == 1 ? 32 : (int)WG_THREADS); }

/* Of HALVES 2 a block has the same 8 NT rows of both halves of W. */
template <int NT, int HALVES, int GROUPS>
static __global__ void __launch_bounds__(threads_of<GROUPS>(), 1) few_kernel(const __grid_constant__ struct few g) {
#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
    DYNAMIC_SHARED(shared);
    enum { MULTIPLIERS = GROUPS * WG_THREADS, SIDE = NT * 8, PANELS = panels_of(NT * HALVES) };
    uint16_t *const stage = aligned_tiles(shared); /* [stages][panels of x, of W's halves] */
    const int part = (int)blockIdx.x / g.tiles;
    const int n0 = (int)blockIdx.x % g.tiles * SIDE, half_n = (int)g.N;
    const auto place = [&](int at, int row) { return stage + (at * g.stage_rows + row) * DEPTH; };
    const int w_row = PANELS * g.x_rows; /* of a stage */
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
    const auto multiply = [&](int at, int panel) {
        wgmma_fence();
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            const uint16_t *const x = place(at, p * g.x_rows + warp / 4 * WG_ROWS);
            const uint16_t *const w = place(at, w_row + p * SIDE);
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    wgmma_narrow(acc[h], x, w + h * PANELS * (SIDE * DEPTH), k, panel > 0 || p > 0 || k > 0);
        }
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
    let_next_begin();
    if (threadIdx.x == 0) {
        announce(g.w);
        announce(g.x);
        for (int s = 0; s < g.stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], MULTIPLIERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= MULTIPLIERS / 32) {
        if (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == MULTIPLIERS / 32) {
            const auto ask_w = [&](int at, int panel) {
                barrier_expect(&full[at], (unsigned)g.stage_rows * DEPTH * 2);
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    fetch(place(at, w_row + h * PANELS * SIDE), g.w, part, panel, n0 + h * half_n, &full[at]);
            };
            const auto ask_x = [&](int at, int panel) { fetch(place(at, 0), g.x, part, panel, 0, &full[at]); };
            if (elected())
                for (int s = 0; s < g.stages; s++) ask_w(s, s * PANELS);
            wait_for_before();
            if (elected())
                for (int s = 0; s < g.stages; s++) ask_x(s, s * PANELS);
            int at = 0;
            unsigned parity = 0;
            for (int panel = g.stages * PANELS; panel < g.panels; panel += PANELS) {
                barrier_wait(&empty[at], parity);
                if (elected()) {
                    ask_w(at, panel);
                    ask_x(at, panel);
                }
                if (++at == g.stages) at = 0, parity ^= 1;
            }
        }
    } else {
        if (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        wait_for_before();
        begin();
        int at = 0, before = 0;
        unsigned parity = 0;
        for (int panel = 0; panel < g.panels; panel += PANELS) {
            barrier_wait(&full[at], parity);
            multiply(at, panel);
            wgmma_wait<1>();
            if (panel > 0 && lane == 0) barrier_arrive(&empty[before]);
            before = at;
            if (++at == g.stages) at = 0, parity ^= 1;
        }
        wgmma_wait<0>();
        end();
    }
#else
    begin();
    for (int panel = 0; panel < g.panels; panel += PANELS) {
        __syncthreads();
        fetch_now(place(0, 0), g.x, part, panel, 0, g.x_rows, PANELS);
        for (int h = 0; h < HALVES; h++)
            fetch_now(place(0, w_row + h * PANELS * SIDE), g.w, part, panel, n0 + h * half_n, SIDE, PANELS);
        __syncthreads();
        if (threadIdx.x < MULTIPLIERS) multiply(0, panel);
    }
    if (threadIdx.x < MULTIPLIERS) end();
#endif
#endif
}

/* ---- launching ---------------------------------------------------------------------------------------------- */

/* What a block has of W at a time: so many times eight rows (0: there is no such kernel), of two halves each or not;
 * the blocks of a part of the sum; and of x's rows and its own DEPTH columns the panels of a stage, and stages. */
struct few_shape {
    int eights, halves, tiles, panels, panel_bytes, stages, behind_bytes;
};

static bool shape_with(const struct cu_dev *d, const struct cu_few *f, int eights, int halves, struct few_shape *s) {
    const int64_t N = f->end == CU_FEW_SWIGLU || halves == 1 ? f->N : f->N / 2, tiles = ceil_div(N, 8 * eights);
    const int rows = (int)ceil_div(f->T, 8) * 8, all = f->T <= WG_ROWS ? WG_ROWS : 2 * WG_ROWS;
    *s = {eights, halves, (int)tiles, panels_of(eights * halves), (rows + 8 * eights * halves) * DEPTH * 2, 0, 0};
    s->behind_bytes = (all - rows) * DEPTH * 2; /* the last warpgroup reads on behind the rows of x */
    const int have = d->max_shared - OTHER_BYTES, stage = s->panels * s->panel_bytes;
    const int use = is_narrow(eights * halves) && have > NARROW_BYTES ? (int)NARROW_BYTES : have;
    const int room = use - WG_ALIGN - s->behind_bytes;
    const int steps = (int)ceil_div(f->K / DEPTH, s->panels), most = steps < MOST_STAGES ? steps : (int)MOST_STAGES;
    s->stages = room / stage < most ? room / stage : most;
    return tiles <= d->sm_count / f->parts && s->stages >= (steps > 1 ? 2 : 1);
}

static struct few_shape shape_of(const struct cu_dev *d, const struct cu_few *f) {
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 9, 12, 18}, pairs[] = {5, 9, 12, 18};
    struct few_shape s;
    if (f->end != CU_FEW_SWIGLU)
        for (const int n : sizes)
            if (shape_with(d, f, n, 1, &s)) return s;
    if (f->end == CU_FEW_SWIGLU || (f->end == CU_FEW_BF16 && f->N % 16 == 0 && f->parts == 1))
        for (const int n : pairs)
            if (shape_with(d, f, n, 2, &s)) return s;
    return {0, 0, 0, 0, 0, 0, 0};
}

extern "C" int cu_few_takes(const struct cu_dev *d, const struct cu_few *f) {
    return d->wgmma && f->T > 0 && f->T <= CU_FEW_ROWS && f->N > 0 && f->N % 8 == 0 && f->K > 0 && f->K % DEPTH == 0 &&
           (((uintptr_t)f->x | (uintptr_t)f->w | (uintptr_t)f->y | (uintptr_t)(f->ldx * 2) | (uintptr_t)(f->ldw * 2)) &
            15) == 0 &&
           f->ldy % 8 == 0 && shape_of(d, f).eights > 0;
}

template <int NT, int HALVES, int GROUPS>
static int start(const struct cu_dev *d, const struct few &g, int parts, int shared) {
    auto *kernel = few_kernel<NT, HALVES, GROUPS>;
    const int rc =
        (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d->max_shared - OTHER_BYTES);
    return rc ? rc : LAUNCH_SOON(kernel, g.tiles * parts, threads_of<GROUPS>(), shared, d, g);
}

extern "C" int cu_few(const struct cu_dev *d, const struct cu_few *f) {
    if (f->T <= 0 || f->N <= 0) return 0;
    const struct few_shape s = shape_of(d, f);
    const int64_t rows = f->end == CU_FEW_SWIGLU ? 2 * f->N : f->N;
    struct few g = {};
    g.x.p = f->x, g.x.rows = f->T, g.x.cols = f->K, g.x.ld = f->ldx;
    g.w.p = f->w, g.w.rows = rows, g.w.cols = f->K, g.w.ld = f->ldw;
    g.y = f->y, g.bias = f->bias, g.ldy = f->ldy, g.T = f->T, g.N = rows / s.halves, g.part_step = f->part_step;
    g.end = f->end, g.tiles = s.tiles, g.panels = (int)(f->K / DEPTH), g.x_rows = (int)ceil_div(f->T, 8) * 8;
    g.stages = s.stages;
    g.stage_rows = s.panels * s.panel_bytes / (DEPTH * 2);
    int rc = map_matrix(&g.x, f->parts, g.x_rows, s.panels);
    if (!rc) rc = map_matrix(&g.w, f->parts, 8 * s.eights, s.panels);
    if (rc) return rc;
    const int parts = (int)f->parts, shared = s.stages * s.panels * s.panel_bytes + WG_ALIGN + s.behind_bytes;
    const bool one = f->T <= WG_ROWS;
#define SIZE(n, h)                      \
    if (s.eights == n && s.halves == h) \
    return one ? start<n, h, 1>(d, g, parts, shared) : start<n, h, 2>(d, g, parts, shared)
    SIZE(1, 1);
    SIZE(2, 1);
    SIZE(3, 1);
    SIZE(4, 1);
    SIZE(5, 1);
    SIZE(6, 1);
    SIZE(9, 1);
    SIZE(12, 1);
    SIZE(18, 1);
    SIZE(5, 2);
    SIZE(9, 2);
    SIZE(12, 2);
    SIZE(18, 2);
#undef SIZE
    return (int)cudaErrorInvalidValue;
}
