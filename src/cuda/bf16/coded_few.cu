/* Products y = x W^T of at most 64 rows with a matrix in codes, on compute capability 9.0: what takes time is reading
 * the codes, once, and decoding them.
 *
 * A strip is 16 rows of W, which are the rows of mma's product, over all of k; x's rows are its columns. A block has
 * some strips and all rows of x. One warp asks the copy engine for slices, which are a few panels of 64 columns of x
 * and the units (codes.cuh) of all strips beside them, as many slices ahead as shared memory holds. Codes are asked for
 * before the kernel in front has ended, x afterwards. A warp decodes a unit into registers and multiplies.
 *
 * An output is one chain over k in ascending order, in steps of 16, as in few_rows_gemm.cu. Whether the bits are those
 * of the other products cublas.c finds out. A matrix with few rows has few chains, and one warp alone decodes slowly.
 * So a strip may have a team of warps, which take its slices in turn: a warp decodes its slice, waits for the sums so
 * far, adds its products, and hands the sums on. */
#include <type_traits>

#include "cuda/shared/codes.cuh"
#include "cuda/shared/copy_engine.cuh"

enum { MOST_STAGES = 16, LANES_OF_WARP = 32, BARRIER_BYTES = 2 << 10 };
enum { PAIRS = 256, PAIR_COPIES = 16 /* so that lanes read different banks */ };
/* What a kernel's blocks have: strips at most, by the warps of a team (registers bind), and panels of a slice. GROUPS:
 * whether four strips multiply together, as a warpgroup, which pays for more than 16 rows of x: its products take half
 * the time, read x themselves, and run while other warpgroups decode. */
template <int NT, int TEAM> struct of_kernel {
    enum { GROUPS = TEAM == 1 && NT > 2, STRIPS = GROUPS ? 20 : TEAM == 1 ? 18 : TEAM == 3 ? 3 : 2 };
    enum { THREADS = (STRIPS * TEAM + 1) * LANES_OF_WARP, SLICE = TEAM == 1 ? 2 : 4 };
};

struct coded_few {
    struct matrix_map x;
    void *y;
    const float *bias;
    int64_t ldy, T, part_step;
    int end, all_strips, blocks, panels; /* of a part of the sum: strips, blocks, panels */
    int strips, stages, stage_bytes;     /* of a block; a stage is a slice of x, then of each strip */
    int n_parts;
    struct cu_coded part[CODED_PARTS];
};

#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
/* The second operand of mma for step s of a panel of x: of n-tile i, or, for one n-tile, of the steps s and s + 1. */
template <int NT>
static __device__ __forceinline__ void load_x(uint32_t (&b)[4], const uint16_t *panel, int s, int i, int lane) {
    if (NT == 1)
        load_matrices<false>(b, panel + lane % 8 * DEPTH + (((2 * s + lane / 8) ^ (lane & 7)) * 8));
    else
        load_matrices<false>(b, panel + (i * 8 + lane / 16 * 8 + lane % 8) * DEPTH +
                                    (((2 * s + lane / 8 % 2) ^ (lane & 7)) * 8));
}
static __device__ __forceinline__ void step(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma(acc, a[0], a[1], a[2], a[3], b0, b1);
}
/* The second operands of a panel, ahead of its products where they are few. */
template <int NT> struct x_panel {
    enum { KEPT = NT <= 2, LOADS = KEPT ? 2 * NT : 1 };
    uint32_t b[LOADS][4];
};
template <int NT>
static __device__ __forceinline__ void load_panel(struct x_panel<NT> &x, const uint16_t *panel, int lane) {
    if constexpr (x_panel<NT>::KEPT) {
#pragma unroll
        for (int l = 0; l < x_panel<NT>::LOADS; l++) load_x<NT>(x.b[l], panel, NT == 1 ? 2 * l : l, 0, lane);
    }
}
/* acc += the panel of W times the panel of x [8 NT rows][64], for TILES n-tiles from i0 on if there are more than two.
 */
template <int NT, int TILES>
static __device__ __forceinline__ void multiply(float (&acc)[NT][4], const uint32_t (&a)[4][4],
                                                const struct x_panel<NT> &x, const uint16_t *panel, int lane, int i0) {
    if constexpr (NT <= 2) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int l = NT == 1 ? s / 2 : s, at = NT == 1 ? s % 2 * 2 : 0;
            step(acc[0], a[s], x.b[l][at], x.b[l][at + 1]);
            if (NT == 2) step(acc[NT - 1], a[s], x.b[l][2], x.b[l][3]);
        }
    } else {
        uint32_t b[4][TILES / 2][4];
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < TILES; i += 2) load_x<NT>(b[s][i / 2], panel, s, i0 + i, lane);
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < TILES; i++) step(acc[i0 + i], a[s], b[s][i / 2][i % 2 * 2], b[s][i / 2][i % 2 * 2 + 1]);
    }
}
#endif

#ifdef WGMMA_DEVICE
/* Copies bytes, a multiple of 16, to shared memory; the barrier counts them. */
static __device__ __forceinline__ void fetch_bytes(void *to, const void *from, unsigned bytes, uint64_t *b) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at_shared(to)),
        "l"(from), "r"(bytes), "r"(at_shared(b))
        : "memory");
}
#endif

/* Blocks of g.strips teams of TEAM warps, and a warp behind all that asks. */
template <int NT, int FORMAT, int TEAM>
static __global__ void __launch_bounds__(of_kernel<NT, TEAM>::THREADS, 1)
    coded_few_kernel(const __grid_constant__ struct coded_few g) {
#if defined(WGMMA_DEVICE) || !defined(__CUDACC__)
    DYNAMIC_SHARED(shared);
    enum {
        NF4 = FORMAT == FORMAT_NF4,
        SLICE = of_kernel<NT, TEAM>::SLICE,
        PANEL = 8 * NT * DEPTH,
        X_BYTES = SLICE * PANEL * 2
    };
    enum { BATONS = NT > 4 ? 2 : 1, TILES = NT / BATONS }; /* with two, the next warp begins while this one goes on */
    __shared__ float2 pairs[NF4 ? PAIRS : 1][PAIR_COPIES]; /* the values of the two codes of a byte */
    __shared__ float nested_map[NF4 ? NF4_SCALES : 1];
    uint8_t *const stage = reinterpret_cast<uint8_t *>(aligned_tiles(shared));
    const int warp = threadIdx.x / LANES_OF_WARP, lane = threadIdx.x % LANES_OF_WARP;
    const int strip = warp / TEAM, turn = warp % TEAM, sum_part = (int)blockIdx.x / g.blocks;
    const bool asks = strip >= g.strips;
    const int mine = asks ? (lane < g.strips ? lane : g.strips - 1) : strip; /* the warp that asks: a strip a lane */
    const int wanted = (int)blockIdx.x % g.blocks * g.strips + mine;
    const bool live = wanted < g.all_strips; /* others repeat the last strip and keep nothing */
    int64_t row = (int64_t)(live ? wanted : g.all_strips - 1) * CU_STRIP; /* of the part of W, below */
    const int64_t n0 = row + lane / 4;
    int of = 0;
    while (of + 1 < g.n_parts && row >= g.part[of].rows) row -= g.part[of++].rows;
    const struct cu_coded &m = g.part[of];
    const int first = sum_part * g.panels, slices = (int)ceil_div(g.panels, SLICE);
    float acc[NT][4];
    float2 scale[SLICE]; /* FP8: of the panels. NF4: the scales' scales of both rows */
    /* NF4: the number of the row's first block here. FP8: of the row's first scale, twice. */
    const int block0 = NF4 ? (int)((row + lane / 4) * (m.K / DEPTH)) + first
                           : (int)(row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) * 2) + first;
    const int block8 = block0 + (int)(m.K / DEPTH) * 8;
    const auto load_scales = [&](int slice) {
#pragma unroll
        for (int i = 0; i < SLICE; i++) {
            const int panel = slice * SLICE + i;
            if (panel >= g.panels) break;
            if (!NF4)
                scale[i].x = scale[i].y = m.scale[(block0 + panel) / 2];
            else if (m.absmax)
                scale[i] = make_float2(m.nested[(unsigned)(block0 + panel) / NF4_NESTED],
                                       m.nested[(unsigned)(block8 + panel) / NF4_NESTED]);
        }
    };
    const uint32_t copy = lane % PAIR_COPIES * (uint32_t)sizeof(float2);
    const auto nf4 = [&](uint32_t word, int i) {
        const uint32_t at = (i == 0 ? word << 7 : word >> (8 * i - 7)) & 0x7f80u;
        return *reinterpret_cast<const float2 *>(reinterpret_cast<const char *>(pairs) + (at | copy));
    };
    const auto x_of = [&](int at, int i) {
        return reinterpret_cast<const uint16_t *>(stage + at * g.stage_bytes) + i * PANEL;
    };
    const auto decode = [&](uint32_t(&a)[4][4], int at, int i) {
        const uint8_t *const unit = stage + at * g.stage_bytes + X_BYTES + (strip * SLICE + i) * m.unit;
        struct unit_codes<FORMAT> u;
        unit_load(u, unit, lane);
        const float2 by = NF4 ? unit_scales(m, unit, lane, scale[i], nested_map) : scale[i];
#pragma unroll
        for (int s = 0; s < 4; s++) unit_decode<FORMAT>(a[s], u, s, by, nf4);
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
    float4 *const sums =
        reinterpret_cast<float4 *>(stage + g.stages * g.stage_bytes) + strip * NT * LANES_OF_WARP + lane;
    const auto hand_on = [&](int part) {
#pragma unroll
        for (int i = part * TILES; i < part * TILES + TILES; i++)
            sums[i * LANES_OF_WARP] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    };
    const auto take_over = [&](int part) {
#pragma unroll
        for (int i = part * TILES; i < part * TILES + TILES; i++) {
            const float4 v = sums[i * LANES_OF_WARP];
            acc[i][0] = v.x, acc[i][1] = v.y, acc[i][2] = v.z, acc[i][3] = v.w;
        }
    };
#pragma unroll
    for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    if (NF4) { /* weights are there before any kernel of a pass */
        for (int i = threadIdx.x; i < PAIRS * PAIR_COPIES; i += blockDim.x)
            pairs[i / PAIR_COPIES][i % PAIR_COPIES] =
                make_float2(g.part[0].map[i / PAIR_COPIES % NF4_CODES], g.part[0].map[i / PAIR_COPIES / NF4_CODES]);
        for (int i = threadIdx.x; g.part[0].absmax && i < NF4_SCALES; i += blockDim.x)
            nested_map[i] = g.part[0].nested_map[i];
    }
#ifdef WGMMA_DEVICE
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES],
        baton[TEAM > 1 ? of_kernel<NT, TEAM>::STRIPS : 1][TEAM][BATONS];
    let_next_begin();
    if (threadIdx.x == 0) {
        for (int s = 0; s < g.stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], (unsigned)g.strips);
        }
        for (int i = 0; TEAM > 1 && i < g.strips; i++)
            for (int t = 0; t < TEAM * BATONS; t++) barrier_init(&baton[i][0][t], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (asks) {
        const uint8_t *const units = m.codes + unit_at(m, row, first);
        /* The last lane's expectation is the barrier's arrival. */
        const auto ask_codes = [&](int at, int slice) {
            const int panels = g.panels - slice * SLICE < SLICE ? g.panels - slice * SLICE : (int)SLICE;
            const unsigned bytes = (unsigned)(panels * m.unit);
            if (lane == LANES_OF_WARP - 1) barrier_expect(&full[at], X_BYTES + (unsigned)g.strips * bytes);
            __syncwarp();
            if (lane < g.strips)
                fetch_bytes(stage + at * g.stage_bytes + X_BYTES + lane * SLICE * m.unit,
                            units + (int64_t)slice * SLICE * m.unit, bytes, &full[at]);
        };
        const auto ask_x = [&](int at, int slice) {
            if (lane == 0)
                fetch(reinterpret_cast<uint16_t *>(stage + at * g.stage_bytes), g.x, sum_part, slice * SLICE, 0,
                      &full[at]);
        };
        if (lane == 0) announce(g.x);
        for (int s = 0; s < g.stages; s++) ask_codes(s, s);
        wait_for_before();
        for (int s = 0; s < g.stages; s++) ask_x(s, s);
        int at = 0;
        unsigned parity = 0;
        for (int slice = g.stages; slice < slices; slice++) {
            barrier_wait(&empty[at], parity);
            ask_codes(at, slice);
            ask_x(at, slice);
            if (++at == g.stages) at = 0, parity ^= 1;
        }
        return;
    }
    load_scales(turn);
    unsigned handed = 0;
    /* One slice of the strip. whole: all panels of it are there. */
    const auto take = [&](auto whole, int slice, int at) {
        constexpr bool WHOLE = decltype(whole)::value;
        uint32_t a[TEAM == 1 ? 1 : SLICE][4][4];
        struct x_panel<NT> x[TEAM == 1 ? 1 : SLICE];
#pragma unroll
        for (int i = 0; i < SLICE; i++) {
            if (!WHOLE && slice * SLICE + i >= g.panels) break;
            const int to = TEAM == 1 ? 0 : i;
            load_panel<NT>(x[to], x_of(at, i), lane);
            decode(a[to], at, i);
            if (TEAM == 1) multiply<NT, NT>(acc, a[to], x[to], x_of(at, i), lane, 0);
        }
        load_scales(slice + TEAM);
        if constexpr (TEAM > 1) {
#pragma unroll
            for (int b = 0; b < BATONS; b++) {
                if (slice > 0) {
                    barrier_wait(&baton[strip][turn][b], handed & 1);
                    take_over(b);
                }
#pragma unroll
                for (int i = 0; i < SLICE; i++) {
                    if (!WHOLE && slice * SLICE + i >= g.panels) break;
                    multiply<NT, TILES>(acc, a[i], x[i], x_of(at, i), lane, b * TILES);
                }
                if (slice + 1 == slices) continue;
                hand_on(b);
                __syncwarp();
                if (lane == 0) barrier_arrive(&baton[strip][turn + 1 == TEAM ? 0 : turn + 1][b]);
            }
            handed += slice > 0;
        }
    };
    int at = turn % g.stages;
    unsigned parity = (unsigned)(turn / g.stages) & 1;
    wait_for_before();
    if constexpr (of_kernel<NT, TEAM>::GROUPS) {
        /* The products of a panel end before the next is decoded: the assembler would give two buffers of fragments the
         * same registers. Other warpgroups decode meanwhile. */
        for (int slice = 0; slice < slices; slice++) {
            barrier_wait(&full[at], parity);
#pragma unroll
            for (int i = 0; i < SLICE; i++) {
                if (slice * SLICE + i < g.panels) {
                    uint32_t a[4][4];
                    decode(a, at, i);
                    wgmma_fence();
#pragma unroll
                    for (int s = 0; s < 4; s++) wgmma_narrow(acc, a[s], x_of(at, i), s, true);
                    wgmma_commit();
                    wgmma_wait<0>();
                }
            }
            if (lane == 0) barrier_arrive(&empty[at]);
            load_scales(slice + 1);
            if (++at == g.stages) at = 0, parity ^= 1;
        }
    } else {
        for (int slice = turn; slice < slices; slice += TEAM) {
            barrier_wait(&full[at], parity);
            if ((slice + 1) * SLICE <= g.panels)
                take(std::true_type(), slice, at);
            else
                take(std::false_type(), slice, at);
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[at]);
            at += TEAM;
            while (at >= g.stages) at -= g.stages, parity ^= 1;
        }
    }
    if ((slices - 1) % TEAM == turn) end();
#else
    for (int slice = 0; slice < slices; slice++) {
        const int panels = g.panels - slice * SLICE < SLICE ? g.panels - slice * SLICE : (int)SLICE;
        __syncthreads();
        fetch_now(reinterpret_cast<uint16_t *>(stage), g.x, sum_part, slice * SLICE, 0, 8 * NT, SLICE);
        if (!asks && turn == 0)
            for (int i = lane; i < panels * m.unit; i += LANES_OF_WARP)
                stage[X_BYTES + strip * SLICE * m.unit + i] = m.codes[unit_at(m, row, first + slice * SLICE) + i];
        __syncthreads();
        const bool takes = !asks && slice % TEAM == turn;
        if (takes) load_scales(slice);
        for (int b = 0; b < BATONS && takes && TEAM > 1 && slice > 0; b++) take_over(b);
        for (int i = 0; i < panels && takes; i++) {
            uint32_t a[4][4];
            struct x_panel<NT> x;
            load_panel<NT>(x, x_of(0, i), lane);
            decode(a, 0, i);
            if constexpr (of_kernel<NT, TEAM>::GROUPS)
                for (int s = 0; s < 4; s++) wgmma_narrow(acc, a[s], x_of(0, i), s, true);
            else
                multiply<NT, NT>(acc, a, x, x_of(0, i), lane, 0);
        }
        for (int b = 0; b < BATONS && takes && TEAM > 1; b++) hand_on(b);
        if (takes && slice + 1 == slices) end();
    }
#endif
#endif
}

/* ---- launching ---------------------------------------------------------------------------------------------- */

/* All parts have one table of values and one of scales: those of the first serve all. */
extern "C" int cu_coded_few_takes(const struct cu_dev *d, const struct cu_coded_few *f) {
    const struct cu_few *w = &f->few;
    for (int i = 0; i < f->n_parts; i++)
        if (!f->part[i].unit || f->part[i].format != f->part[0].format || f->part[i].unit != f->part[0].unit) return 0;
    return d->wgmma && f->n_parts > 0 && w->T > 0 && w->T <= CU_CODED_ROWS && w->N % CU_STRIP == 0 &&
           w->K % DEPTH == 0 && w->K > 0 && w->end != CU_FEW_SWIGLU && w->ldx % 8 == 0 && ((uintptr_t)w->x & 15) == 0;
}

/* A team is no larger than there are stages: who waits for a stage's second use must have seen the first. */
template <int NT, int FORMAT, int TEAM>
static int start(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    auto *kernel = coded_few_kernel<NT, FORMAT, TEAM>;
    const int slice = of_kernel<NT, TEAM>::SLICE, slices = (int)ceil_div(g.panels, slice);
    const int sums = TEAM > 1 ? g.strips * NT * LANES_OF_WARP * (int)sizeof(float4) : 0;
    const int tables = BARRIER_BYTES + (FORMAT == FORMAT_NF4 ? PAIRS * PAIR_COPIES * 8 + NF4_SCALES * 4 : 0);
    const int x = slice * 8 * NT * DEPTH * 2;
    g.stage_bytes = (int)ceil_div(x + g.strips * slice * f->part[0].unit, WG_ALIGN) * WG_ALIGN;
    const int room = (d->max_shared - tables - WG_ALIGN - sums) / g.stage_bytes;
    g.stages = room < slices ? room : slices;
    if (g.stages > MOST_STAGES) g.stages = MOST_STAGES;
    if (TEAM > 3 && g.stages < TEAM) return start<NT, FORMAT, 3>(d, g, f);
    if (g.stages < TEAM && g.stages < slices) return (int)cudaErrorInvalidValue;
    const int shared = g.stages * g.stage_bytes + sums + WG_ALIGN;
    int rc = map_matrix(&g.x, f->few.parts, 8 * NT, slice);
    if (!rc) rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    const int threads = (g.strips * TEAM + 1) * LANES_OF_WARP;
    return rc ? rc : LAUNCH_SOON(kernel, g.blocks * (int)f->few.parts, threads, shared, d, g);
}

/* As few strips a block as let every multiprocessor have a block at most; more waves of blocks where that is too many.
 */
template <int NT, int FORMAT>
static int start_teams(const struct cu_dev *d, struct coded_few &g, const struct cu_coded_few *f) {
    const int most = of_kernel<NT, 1>::STRIPS, together = of_kernel<NT, 1>::GROUPS ? WG_ROWS / CU_STRIP : 1;
    const int64_t each = ceil_div(g.all_strips * f->few.parts, d->sm_count), waves = ceil_div(each, most);
    g.strips = (int)ceil_div(each, waves);
    while (ceil_div(g.all_strips, g.strips) * f->few.parts > waves * d->sm_count && g.strips < most) g.strips++;
    if (g.strips > of_kernel<NT, 3>::STRIPS) g.strips = (int)ceil_div(g.strips, together) * together;
    g.blocks = (int)ceil_div(g.all_strips, g.strips);
    if (g.strips <= of_kernel<NT, 5>::STRIPS) return start<NT, FORMAT, 5>(d, g, f);
    if (g.strips <= of_kernel<NT, 3>::STRIPS) return start<NT, FORMAT, 3>(d, g, f);
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
    g.all_strips = (int)(w->N / CU_STRIP), g.panels = (int)(w->K / DEPTH);
    g.n_parts = f->n_parts;
    for (int i = 0; i < f->n_parts; i++) g.part[i] = f->part[i];
    if (w->T <= 8) return start_format<1>(d, g, f);
    if (w->T <= 16) return start_format<2>(d, g, f);
    if (w->T <= 32) return start_format<4>(d, g, f);
    return start_format<8>(d, g, f);
}
