/* Products y = x W^T of at most 64 rows with a matrix in codes, on compute capability 9.0: what takes time is reading
 * the codes, once, and decoding them.
 *
 * A strip is 16 rows of W, which are the rows of mma's product, over all of k; x's rows are its columns. A warp reads
 * the codes of its fragments (codes.cuh) straight into registers, some panels of 64 columns ahead, decodes them there,
 * and multiplies: W is never in shared memory. Panels of x come by the copy engine, asked for by one warp, and are
 * shared by all strips of a block.
 *
 * An output is one chain over k in ascending order, in steps of 16, as in few_rows_gemm.cu. Whether the bits are those
 * of the other products cublas.c finds out. A matrix with few rows has few chains, and one warp alone decodes slowly.
 * So a strip may have a team of warps: each decodes every so manieth slice of the strip and then waits for the sums so
 * far, adds its products, and hands the sums on. */
#include "cuda/shared/codes.cuh"
#include "cuda/shared/copy_engine.cuh"

enum { STRIP = 16, SLICE = 4 /* panels of a stage of x, and of a slice */, MOST_STAGES = 16, LANES_OF_WARP = 32 };
enum { KEPT_BYTES = 6 << 10 /* of shared memory: barriers and tables */ };
/* Strips of a block at most, by the warps of a team: registers bind. */
template <int TEAM> struct most {
    enum { STRIPS = TEAM == 1 ? 18 : TEAM == 2 ? 5 : 3, THREADS = (STRIPS * TEAM + 1) * LANES_OF_WARP };
};

struct coded_few {
    struct matrix_map x;
    void *y;
    const float *bias;
    int64_t ldy, T, part_step;
    int end, all_strips, blocks, panels; /* of a part of the sum: strips, blocks, panels */
    int strips, across, stages;          /* strips of a block; panels of W along all of K; stages of x */
    int n_parts;
    struct cu_coded part[CODED_PARTS];
};

#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
/* The codes and scales of a panel of a strip, for one thread. */
template <int FORMAT> struct panel_codes {
    struct fragment<FORMAT> f;
    float scale[2]; /* FP8: of the panel. NF4: of both rows, the scales or the scales' scales. */
    uint32_t absmax;
};

template <int FORMAT>
static __device__ __forceinline__ void panel_load(struct panel_codes<FORMAT> &p, const struct cu_coded &m, int64_t row,
                                                  int panel, int lane) {
    const int64_t across = m.K / DEPTH, tile = row / WG_ROWS * across + panel;
    const int warp = (int)(row % WG_ROWS) / STRIP;
    fragment_load(p.f, m.codes, tile, warp, lane);
    if (FORMAT == FORMAT_FP8) {
        p.scale[0] = p.scale[1] = m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + panel * DEPTH / FP8_BLOCK];
        return;
    }
    const int64_t at = cu_fragment_scale(row + lane / 4, panel, across);
    if (m.absmax) {
        const int64_t block = (row + lane / 4) * across + panel;
        p.absmax = *reinterpret_cast<const uint16_t *>(m.absmax + at);
        p.scale[0] = m.nested[block / NF4_NESTED];
        p.scale[1] = m.nested[(block + 8 * across) / NF4_NESTED];
    } else {
        const float2 s = *reinterpret_cast<const float2 *>(m.scale + at);
        p.scale[0] = s.x, p.scale[1] = s.y;
    }
}

/* acc += the panel of W times the panel of x [8 NT rows][64]. */
template <int NT>
static __device__ __forceinline__ void panel_multiply(float (&acc)[NT][4], const uint32_t (&a)[4][4], const uint16_t *x,
                                                      int lane) {
    uint32_t b[4];
    if constexpr (NT == 1) {
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
            load_matrices<false>(b, x + lane % 8 * DEPTH + (((2 * s + lane / 8) ^ (lane & 7)) * 8));
            mma(acc[0], a[s][0], a[s][1], a[s][2], a[s][3], b[0], b[1]);
            mma(acc[0], a[s + 1][0], a[s + 1][1], a[s + 1][2], a[s + 1][3], b[2], b[3]);
        }
    } else {
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < NT; i += 2) {
                load_matrices<false>(b, x + (i * 8 + lane / 16 * 8 + lane % 8) * DEPTH +
                                            (((2 * s + lane / 8 % 2) ^ (lane & 7)) * 8));
                mma(acc[i], a[s][0], a[s][1], a[s][2], a[s][3], b[0], b[1]);
                mma(acc[i + 1], a[s][0], a[s][1], a[s][2], a[s][3], b[2], b[3]);
            }
    }
}
#endif

/* Blocks of g.strips teams of TEAM warps, and a warp behind all that asks for x. */
template <int NT, int FORMAT, int TEAM>
static __global__ void __launch_bounds__(most<TEAM>::THREADS, 1)
    coded_few_kernel(const __grid_constant__ struct coded_few g) {
#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
    DYNAMIC_SHARED(shared);
    __shared__ float map[FORMAT == FORMAT_NF4 ? NF4_CODES : 1][LANES_OF_WARP];
    __shared__ float nested_map[FORMAT == FORMAT_NF4 ? NF4_SCALES : 1];
    /* ahead: panels whose codes are on their way while one is multiplied. */
    enum { X_ROWS = 8 * NT, PANEL = X_ROWS * DEPTH, AHEAD = TEAM > 1 || FORMAT == FORMAT_NF4 ? 4 : 2 };
    uint16_t *const stage = aligned_tiles(shared);
    const int warp = threadIdx.x / LANES_OF_WARP, lane = threadIdx.x % LANES_OF_WARP;
    const int strip = warp / TEAM, turn = warp % TEAM, sum_part = (int)blockIdx.x / g.blocks;
    const int wanted = (int)blockIdx.x % g.blocks * g.strips + strip;
    const bool asks = strip >= g.strips;
    const bool live = !asks && wanted < g.all_strips; /* others repeat the last strip and keep nothing */
    int64_t row = (int64_t)(wanted < g.all_strips ? wanted : g.all_strips - 1) * STRIP; /* of the part of W, below */
    const int64_t n0 = row + lane / 4;
    int of = 0;
    while (of + 1 < g.n_parts && row >= g.part[of].rows) row -= g.part[of++].rows;
    const struct cu_coded &m = g.part[of];
    const int first = sum_part * g.panels;
    float acc[NT][4];
    struct panel_codes<FORMAT> codes[AHEAD];
    const auto load = [&](struct panel_codes<FORMAT> &p, int panel) {
        if (panel < g.panels) panel_load(p, m, row, first + panel, lane);
    };
    const auto decode = [&](uint32_t (&a)[4][4], const struct panel_codes<FORMAT> &p) {
        float low, high;
        if (FORMAT == FORMAT_FP8) {
            low = high = p.scale[0] * FP8_UP;
        } else {
            low = m.absmax ? nested_map[p.absmax & 255u] * p.scale[0] + m.offset : p.scale[0];
            high = m.absmax ? nested_map[p.absmax >> 8] * p.scale[1] + m.offset : p.scale[1];
        }
#pragma unroll
        for (int s = 0; s < 4; s++) fragment_decode<FORMAT>(a[s], p.f, s, low, high, map, lane);
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
    /* The sums that a strip's team hands on. */
    float4 *const sums = reinterpret_cast<float4 *>(stage + g.stages * SLICE * PANEL) + strip * NT * LANES_OF_WARP + lane;
    const auto hand_on = [&]() {
#pragma unroll
        for (int i = 0; i < NT; i++) sums[i * LANES_OF_WARP] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    };
    const auto take_over = [&]() {
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const float4 v = sums[i * LANES_OF_WARP];
            acc[i][0] = v.x, acc[i][1] = v.y, acc[i][2] = v.z, acc[i][3] = v.w;
        }
    };
    const int slices = (int)ceil_div(g.panels, SLICE);
#pragma unroll
    for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    if (FORMAT == FORMAT_NF4) { /* weights are there before any kernel of a pass */
        for (int i = threadIdx.x; i < NF4_CODES * LANES_OF_WARP; i += blockDim.x)
            map[i / LANES_OF_WARP][i % LANES_OF_WARP] = g.part[0].map[i / LANES_OF_WARP];
        for (int i = threadIdx.x; g.part[0].absmax && i < NF4_SCALES; i += blockDim.x)
            nested_map[i] = g.part[0].nested_map[i];
    }
#ifdef WGMMA_DEVICE
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES], baton[TEAM > 1 ? most<TEAM>::STRIPS : 1][TEAM];
    let_next_begin();
    if (threadIdx.x == 0) {
        announce(g.x);
        for (int s = 0; s < g.stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], (unsigned)g.strips);
        }
        for (int i = 0; TEAM > 1 && i < g.strips; i++)
            for (int t = 0; t < TEAM; t++) barrier_init(&baton[i][t], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (!asks) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) load(codes[i], turn * SLICE + i);
    }
    __syncthreads();
    wait_for_before();
    if (asks) {
        int at = 0;
        unsigned parity = 1; /* the first round finds places empty */
        for (int slice = 0; slice < slices; slice++) {
            barrier_wait(&empty[at], parity);
            if (elected()) {
                barrier_expect(&full[at], SLICE * PANEL * 2);
                fetch(stage + at * SLICE * PANEL, g.x, sum_part, slice * SLICE, 0, &full[at]);
            }
            __syncwarp();
            if (++at == g.stages) at = 0, parity ^= 1;
        }
    } else if (TEAM == 1) {
        int at = 0;
        unsigned parity = 0;
        for (int panel0 = 0; panel0 < g.panels; panel0 += SLICE) {
            const uint16_t *const x = stage + at * SLICE * PANEL;
            barrier_wait(&full[at], parity);
#pragma unroll
            for (int i = 0; i < SLICE; i++) {
                const int panel = panel0 + i;
                if (panel < g.panels) {
                    uint32_t a[4][4];
                    decode(a, codes[i % AHEAD]);
                    load(codes[i % AHEAD], panel + AHEAD);
                    panel_multiply(acc, a, x + i * PANEL, lane);
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[at]);
            if (++at == g.stages) at = 0, parity ^= 1;
        }
        end();
    } else {
        int at = turn % g.stages;
        unsigned parity = (unsigned)(turn / g.stages) & 1, handed = 0;
        for (int slice = turn; slice < slices; slice += TEAM) {
            const uint16_t *const x = stage + at * SLICE * PANEL;
            uint32_t a[SLICE][4][4];
#pragma unroll
            for (int i = 0; i < SLICE; i++) {
                if (slice * SLICE + i < g.panels) decode(a[i], codes[i]);
                load(codes[i], (slice + TEAM) * SLICE + i);
            }
            barrier_wait(&full[at], parity);
            if (slice > 0) {
                barrier_wait(&baton[strip][turn], handed & 1);
                handed++;
                take_over();
            }
#pragma unroll
            for (int i = 0; i < SLICE; i++)
                if (slice * SLICE + i < g.panels) panel_multiply(acc, a[i], x + i * PANEL, lane);
            if (slice + 1 < slices)
                hand_on();
            else
                end();
            __syncwarp();
            if (lane == 0) {
                if (slice + 1 < slices) barrier_arrive(&baton[strip][(turn + 1) % TEAM]);
                barrier_arrive(&empty[at]);
            }
            at += TEAM;
            while (at >= g.stages) at -= g.stages, parity ^= 1;
        }
    }
#else
    for (int slice = 0; slice < slices; slice++) {
        __syncthreads();
        fetch_now(stage, g.x, sum_part, slice * SLICE, 0, X_ROWS, SLICE);
        __syncthreads();
        const bool mine = !asks && slice % TEAM == turn;
        if (mine && TEAM > 1 && slice > 0) take_over();
        for (int i = 0; i < SLICE && mine; i++) {
            const int panel = slice * SLICE + i;
            uint32_t a[4][4];
            if (panel >= g.panels) break;
            load(codes[0], panel);
            decode(a, codes[0]);
            panel_multiply(acc, a, stage + i * PANEL, lane);
        }
        if (mine && TEAM > 1) hand_on();
        if (mine && slice + 1 == slices) end();
    }
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
    return d->wgmma && f->n_parts > 0 && w->T > 0 && w->T <= CU_CODED_ROWS && w->N % WG_ROWS == 0 &&
           w->K % DEPTH == 0 && w->K > 0 && w->end != CU_FEW_SWIGLU && w->ldx % 8 == 0 && ((uintptr_t)w->x & 15) == 0;
}

template <int NT, int FORMAT, int TEAM>
static int start(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    auto *kernel = coded_few_kernel<NT, FORMAT, TEAM>;
    const int stage = SLICE * 8 * NT * DEPTH * 2, sums = TEAM > 1 ? g.strips * NT * LANES_OF_WARP * 16 : 0;
    const int slices = (int)ceil_div(g.panels, SLICE), room = (d->max_shared - KEPT_BYTES - WG_ALIGN - sums) / stage;
    g.stages = room < slices ? room : slices;
    if (g.stages > MOST_STAGES) g.stages = MOST_STAGES;
    const int shared = g.stages * stage + sums + WG_ALIGN;
    int rc = map_matrix(&g.x, f->few.parts, 8 * NT, SLICE);
    if (!rc) rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    const int threads = (g.strips * TEAM + 1) * LANES_OF_WARP;
    return rc ? rc : LAUNCH_SOON(kernel, g.blocks * (int)f->few.parts, threads, shared, d, g);
}

/* As few strips a block as let every multiprocessor have a block at most; more waves of blocks where that is too many. */
template <int NT, int FORMAT>
static int start_teams(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    const int64_t each = ceil_div(g.all_strips * f->few.parts, d->sm_count), waves = ceil_div(each, (int)most<1>::STRIPS);
    g.strips = (int)ceil_div(each, waves);
    while (ceil_div(g.all_strips, g.strips) * f->few.parts > waves * d->sm_count && g.strips < most<1>::STRIPS)
        g.strips++;
    g.blocks = (int)ceil_div(g.all_strips, g.strips);
    if (g.strips <= most<3>::STRIPS) return start<NT, FORMAT, 3>(d, g, f);
    if (g.strips <= most<2>::STRIPS) return start<NT, FORMAT, 2>(d, g, f);
    return start<NT, FORMAT, 1>(d, g, f);
}

template <int NT> static int start_format(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    const bool fp8 = f->part[0].format == FORMAT_FP8;
    return fp8 ? start_teams<NT, FORMAT_FP8>(d, g, f) : start_teams<NT, FORMAT_NF4>(d, g, f);
}

extern "C" int cu_coded_few(const struct cu_dev *d, const struct cu_coded_few *f) {
    const struct cu_few *w = &f->few;
    struct coded_few g = {};
    g.x.p = w->x, g.x.rows = w->T, g.x.cols = w->K, g.x.ld = w->ldx;
    g.y = w->y, g.bias = w->bias, g.ldy = w->ldy, g.T = w->T, g.part_step = w->part_step, g.end = w->end;
    g.all_strips = (int)(w->N / STRIP), g.panels = (int)(w->K / DEPTH);
    g.n_parts = f->n_parts;
    for (int i = 0; i < f->n_parts; i++) g.part[i] = f->part[i];
    if (w->T <= 8) return start_format<1>(d, g, f);
    if (w->T <= 16) return start_format<2>(d, g, f);
    if (w->T <= 32) return start_format<4>(d, g, f);
    return start_format<8>(d, g, f);
}
