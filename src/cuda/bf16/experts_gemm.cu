/* Products of the rows of many experts on tensor cores, y = x W^T or x W, in bfloat16 (kernels.h, cu_experts_gemm). Of
 * few rows what takes time is to read the matrices once; of many it is the products.
 *
 * A block finds out which tile of which expert is its own (group.cuh). It copies strips of STRIP columns of k to shared
 * memory, several strips ahead. A warp has WM rows of the tile and WN columns; sixteens of rows that the expert does
 * not have are left out.
 *
 * Matrices in codes (FORMAT) are copied as codes, in units (codes.cuh). A warp has sixteen rows of W, asks for their
 * units, and decodes those of a strip into one of two strips of numbers, while other warps multiply the one before.
 *
 * An output is one chain over pieces of 32 of k in ascending order, with the order within a piece that bf16.cuh says:
 * the bits are those of cu_gemm16, for every shape of a tile. */
#include "cuda/shared/async.cuh"
#include "cuda/shared/codes.cuh"
#include "cuda/shared/group.cuh"

enum grouped_way { FORWARD, GATES, BACK };

struct grouped {
    struct cu_gemm16 g;
    struct cu_plus plus; /* n 0: nothing is added */
    int64_t tiles_n;
    int pairs; /* true: two neighbours of c are aligned to their size */
};

/* Where chunk `chunk` of eight neighbours along k of a row lies in a strip [rows][STRIP]. A warp reads four chunks of
 * eight rows at a time, two rows in one go, and writes what it has decoded to a chunk of eight rows in one go. */
template <int STRIP> static __device__ __forceinline__ int along_k(int row, int chunk) {
    return row * STRIP + (chunk ^ ((row & 1) << 2 | (row >> 1 & 3))) * 8;
}
/* The same for a strip [STRIP][cols], of which the tensor cores' loads take the same chunk of rows 0, 1, 8, 9, 16, 17,
 * 24 and 25, or of as many rows behind each of these. */
static __device__ __forceinline__ int across_k(int k, int chunk, int cols) {
    return k * cols + (chunk ^ ((k & 1) | (k >> 3 & 3) << 1)) * 8;
}

template <int N> struct number { static constexpr int value = N; };

/* Two neighbours of an output. */
static __device__ __forceinline__ void put_two(const struct grouped &a, int64_t m, int64_t n, float x, float y) {
    const struct cu_gemm16 &g = a.g;
    if (g.alpha != 0.0f) x = g.alpha * x, y = g.alpha * y;
    if (g.c16) {
        uint16_t *const c = static_cast<uint16_t *>(g.c) + m * g.ldc + n;
        if (a.pairs) {
            uint32_t *const at = reinterpret_cast<uint32_t *>(c);
            if (g.accumulate) x = x + low_float(*at), y = y + high_float(*at);
            *at = bf16_pair(x, y);
            return;
        }
        c[0] = bf16_of(g.accumulate ? x + bf16_float(c[0]) : x);
        c[1] = bf16_of(g.accumulate ? y + bf16_float(c[1]) : y);
    } else {
        float *const c = static_cast<float *>(g.c) + m * g.ldc + n;
        if (a.pairs) {
            float2 *const at = reinterpret_cast<float2 *>(c);
            *at = g.accumulate ? make_float2(x + at->x, y + at->y) : make_float2(x, y);
            return;
        }
        c[0] = g.accumulate ? x + c[0] : x;
        c[1] = g.accumulate ? y + c[1] : y;
    }
}

/* Elements k to k + 8 of a row of what is added, t with its K elements and w of the matrix; zeros behind K. */
static __device__ __forceinline__ uint4 thin_row(const struct cu_plus &p, const uint16_t *t, int k) {
    uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (k + i < p.K) v[i / 2] |= (uint32_t)t[k + i] << (16 * (i % 2));
    return make_uint4(v[0], v[1], v[2], v[3]);
}
static __device__ __forceinline__ uint4 thin_column(const struct cu_plus &p, const float *w, int k) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = k + i < p.K ? w[(k + i) * p.step] : 0.0f;
    return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}

enum { PANEL = 64 /* columns of a unit */, SCALES = CU_STRIP * 4 /* bytes of a unit's scales, and of theirs */ };
/* What a warp's unit has in shared memory: codes, NF4's scales or their codes, FP8's scale or the scales' scales. */
template <int FORMAT> struct unit_room {
    enum { SCALE = unit_codes<FORMAT>::BYTES + SCALES, BYTES = SCALE + SCALES };
};
template <> struct unit_room<FORMAT_BF16> {
    enum { SCALE, BYTES = 0 };
};
struct no_codes {};
template <int FORMAT> struct codes_of { typedef struct cu_coded_group type; };
template <> struct codes_of<FORMAT_BF16> { typedef struct no_codes type; };

template <int BM, int BN, int STRIP, int STAGES, int FORMAT> constexpr int shared_bytes() {
    return STAGES * BM * STRIP * 2 + (FORMAT == FORMAT_BF16 ? STAGES : 2) * BN * STRIP * 2 +
           STAGES * (BN / CU_STRIP) * (STRIP / PANEL) * unit_room<FORMAT>::BYTES;
}
template <int BM, int BN, int WM, int WN> __host__ __device__ constexpr int threads_of() {
    return BM / WM * (BN / WN) * 32;
}

/* Of a matrix in codes: what a warp decodes, which is sixteen rows of the tile's. */
template <int BN, int STRIP, grouped_way WAY, int FORMAT> struct warp_units {
    enum { NF4 = FORMAT == FORMAT_NF4, PANELS = STRIP / PANEL, ROOM = unit_room<FORMAT>::BYTES, MAPS = NF4 ? 32 : 1 };
    struct cu_coded m;
    const uint8_t *from; /* the unit of the first columns */
    uint8_t *room;       /* of the warp's units in stage 0 */
    int64_t row;         /* of the part, where the unit begins */
    float (*map)[MAPS], *nested_map;
    int lane, low, high; /* low, high: where row lane / 4 of the unit, and the one eight behind it, lie in the tile */
    bool live;           /* false: the matrix has no such rows, and what is in the tile for them is not looked at */

    __device__ __forceinline__ void begin(const struct cu_group &e, const struct cu_coded_group &codes, int expert,
                                          uint16_t *rooms, int64_t n0, int64_t N, int warp, int own_lane) {
        __shared__ float maps[NF4 ? NF4_CODES : 1][MAPS], scales[NF4 ? NF4_SCALES : 1];
        const int half = BN / CU_STRIP / 2; /* of the warps: those behind it have what the gates gate */
        const int number = WAY == GATES ? warp % half : warp;
        const bool gated = WAY == GATES && warp >= half;
        lane = own_lane;
        low = (WAY == GATES ? number * 32 + gated * 8 : number * 16) + lane / 4;
        high = low + (WAY == GATES ? 16 : 8);
        live = n0 + number * CU_STRIP < N;
        row = live ? n0 + number * CU_STRIP + gated * N : 0;
        const bool second = row >= codes.rows;
        m = *static_cast<const struct cu_coded *>(second ? codes.second[expert] : e.w[expert]);
        row -= second ? codes.rows : 0;
        from = m.codes + unit_at(m, row, 0);
        room = reinterpret_cast<uint8_t *>(rooms) + warp * PANELS * ROOM;
        map = maps, nested_map = scales;
        if constexpr (NF4) {
            for (int i = threadIdx.x; i < NF4_CODES * MAPS; i += blockDim.x) maps[i / MAPS][i % MAPS] = m.map[i / MAPS];
            for (int i = threadIdx.x; m.absmax && i < NF4_SCALES; i += blockDim.x) scales[i] = m.nested_map[i];
            __syncthreads();
        }
    }
    __device__ __forceinline__ uint8_t *room_of(int stage, int i) const {
        return room + (stage * (BN / CU_STRIP) * PANELS + i) * ROOM;
    }
    static __device__ __forceinline__ void copy16(uint8_t *to, const uint8_t *p) {
        async_copy16(reinterpret_cast<uint16_t *>(to), reinterpret_cast<const uint16_t *>(p), true);
    }
    __device__ __forceinline__ void ask(int k0, int K, int stage) const {
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            if (!live || k0 + i * PANEL >= K) break;
            const int panel = k0 / PANEL + i, more = unit_codes<FORMAT>::BYTES + lane * 16;
            uint8_t *const to = room_of(stage, i);
            const uint8_t *const unit = from + panel * m.unit;
            float *const scale = reinterpret_cast<float *>(to + unit_room<FORMAT>::SCALE);
#pragma unroll
            for (int j = 0; j < unit_codes<FORMAT>::LOADS; j++)
                copy16(to + j * 512 + lane * 16, unit + j * 512 + lane * 16);
            if (more < m.unit) copy16(to + more, unit + more);
            if (!NF4) {
                if (lane == 0) async_copy4(scale, fp8_scale_at(m, row, panel), true);
            } else if (m.absmax && lane < CU_STRIP) {
                async_copy4(scale + lane, nested_at(m, row + lane, panel), true);
            }
        }
    }
    /* Writes a strip's rows to the tile. The warp's own copies of the strip have come. */
    __device__ __forceinline__ void decode(uint16_t *tile, int k0, int K, int stage) const {
        const auto nf4 = [&](uint32_t word, int i) {
            return make_float2(map[word >> (8 * i) & 15u][lane % MAPS], map[word >> (8 * i + 4) & 15u][lane % MAPS]);
        };
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            if (!live || k0 + i * PANEL >= K) break;
            const uint8_t *const unit = room_of(stage, i);
            const float *const scale = reinterpret_cast<const float *>(unit + unit_room<FORMAT>::SCALE);
            struct unit_codes<FORMAT> u;
            unit_load(u, unit, lane);
            float2 by; /* the scales of rows lane / 4 and eight behind it; NF4's may be in codes with scales of their
                          own */
            if constexpr (NF4)
                by = unit_scales(m, unit, lane, make_float2(scale[lane / 4], scale[lane / 4 + 8]), nested_map);
            else
                by = make_float2(scale[0], scale[0]);
#pragma unroll
            for (int s = 0; s < PANEL / 16; s++) {
                uint32_t a[4];
                unit_decode<FORMAT>(a, u, s, by, nf4);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int chunk = i * (PANEL / 8) + 2 * s + j / 2;
                    uint16_t *const to = tile + along_k<STRIP>(j % 2 ? high : low, chunk);
                    reinterpret_cast<uint32_t *>(to)[lane % 4] = a[j];
                }
            }
        }
    }
};

/* GATES: of W's 2N rows the upper N make the gates, the lower N what they gate; in a tile eights of both take turns. */
template <int BM, int BN, int WM, int WN, int STRIP, int STAGES, int BLOCKS, grouped_way WAY, int FORMAT>
static __global__ void __launch_bounds__(threads_of<BM, BN, WM, WN>(), BLOCKS)
    experts_kernel(const struct grouped args, const struct cu_group e, const typename codes_of<FORMAT>::type codes) {
    enum { THREADS = threads_of<BM, BN, WM, WN>(), CHUNKS = STRIP / 8, CODED = FORMAT != FORMAT_BF16 };
    enum { MT = WM / 16, NT = WN / 8, PER = THREADS / CHUNKS, X_ROWS = (BM + PER - 1) / PER, W_TURNS = BN / PER };
    static_assert(MT <= 4 && (WAY != GATES || (PER % 8 == 0 && NT % 2 == 0)), "a warp has gates and what they gate");
    enum { COLS = WAY == GATES ? BN / 2 : BN, ACROSS = BN / 8, DOWN = THREADS / ACROSS };
    DYNAMIC_SHARED(shared);
    let_next_begin();
    wait_for_before();
    const struct group_tile t = group_find(e, blockIdx.x / args.tiles_n, BM);
    if (t.expert < 0) return;
    const struct cu_gemm16 &g = args.g;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, r = lane / 4, c = lane % 4;
    const int64_t n0 = blockIdx.x % args.tiles_n * COLS, m0 = t.lo + t.tile * BM;
    const int K = (int)g.K;
    const int rows = (int)min64(t.rows - t.tile * BM, BM), wm = warp / (BN / WN) * WM, wn = warp % (BN / WN) * WN;
    uint16_t *const sx = reinterpret_cast<uint16_t *>(shared), *const sw = sx + STAGES * BM * STRIP;
    struct warp_units<BN, STRIP, WAY, FORMAT> units;
    if constexpr (CODED) units.begin(e, codes, t.expert, sw + 2 * BN * STRIP, n0, g.N, warp, lane);

    /* What this thread copies of each strip: a chunk of every PER-th row of x, and of W. */
    const int chunk = tid % CHUNKS, row0 = tid / CHUNKS;
    const uint16_t *from_x[X_ROWS];
#pragma unroll
    for (int i = 0; i < X_ROWS; i++) {
        const int64_t m = m0 + min64(row0 + i * PER, rows - 1);
        from_x[i] = g.a.p + (e.pair ? e.pair[m] / e.per_row : m) * g.a.row + chunk * 8;
    }
    const int k_down = tid / ACROSS, w_chunk = WAY == BACK ? tid % ACROSS : chunk;
    const int64_t n_first = n0 + (WAY == BACK ? w_chunk * 8 : WAY == GATES ? row0 / 16 * 8 + row0 % 8 : row0);
    const int64_t w_first = WAY == BACK ? k_down * g.b.step + n_first
                                        : (n_first + (WAY == GATES && row0 / 8 % 2 ? g.N : 0)) * g.b.row + chunk * 8;
    const uint16_t *const from_w = CODED ? NULL : static_cast<const uint16_t *>(e.w[t.expert]) + w_first;
    const auto w_turn = [&](int i) -> int64_t { /* from the first of this thread's rows of W to number i */
                                                if (WAY == BACK) return i * DOWN * g.b.step;
                                                if (WAY != GATES) return i * PER * g.b.row;
                                                return PER == 8 ? (i / 2 * 8 + i % 2 * g.N) * g.b.row
                                                                : i * (PER / 2) * g.b.row;
    };
    const int64_t w_column = WAY == BACK ? g.b.step : 1; /* from one k to the next */
    const auto ask = [&](int k0, int stage) {
        uint16_t *const x = sx + stage * (BM * STRIP), *const to = sw + stage * (BN * STRIP);
        const bool in = k0 + chunk * 8 < K;
#pragma unroll
        for (int i = 0; i < X_ROWS; i++)
            if (row0 + i * PER < rows) async_copy16(x + along_k<STRIP>(row0 + i * PER, chunk), from_x[i] + k0, in);
        if constexpr (CODED) {
            units.ask(k0, K, stage);
            return;
        }
        const uint16_t *const w = from_w + k0 * w_column;
#pragma unroll
        for (int i = 0; i < W_TURNS; i++) {
            if (WAY == BACK) {
                const int k = k_down + i * DOWN;
                async_copy16(to + across_k(k, w_chunk, BN), w + w_turn(i), k0 + k < K && n_first < g.N);
            } else {
                const bool has = n_first + (WAY == GATES ? i * PER / 16 * 8 : i * PER) < g.N;
                async_copy16(to + along_k<STRIP>(row0 + i * PER, chunk), w + w_turn(i), in && has);
            }
        }
    };

    float acc[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
    /* A strip's products of the warp's first LIVE sixteens of rows; b: the strip of W. */
    const auto multiply = [&](auto live, int k0, int stage, const uint16_t *b) {
        constexpr int LIVE = decltype(live)::value;
        const uint16_t *const x = sx + stage * (BM * STRIP);
#pragma unroll
        for (int p = 0; p < STRIP / 32; p++) {
            if (k0 + p * 32 >= K) break;
            uint4 u[LIVE], v[LIVE];
#pragma unroll
            for (int i = 0; i < LIVE; i++) {
                u[i] = load16(x + along_k<STRIP>(wm + i * 16 + r, p * 4 + c));
                v[i] = load16(x + along_k<STRIP>(wm + i * 16 + r + 8, p * 4 + c));
            }
#pragma unroll
            for (int j = 0; j < NT; j++) {
                uint4 y;
                if (WAY == BACK) {
                    uint32_t q[4];
                    const int k = p * 32 + lane % 8 / 2 * 8 + lane % 2 + lane / 8 * 2;
                    load_matrices<true>(q, b + across_k(k, wn / 8 + j, BN));
                    y = make_uint4(q[0], q[1], q[2], q[3]);
                } else {
                    y = load16(b + along_k<STRIP>(wn + j * 8 + r, p * 4 + c));
                }
#pragma unroll
                for (int i = 0; i < LIVE; i++) mma_piece(acc[i][j], u[i], v[i], y);
            }
        }
    };
    const auto all = [&](auto live) {
        for (int s = 0; s < STAGES - 1; s++) {
            if (s * STRIP < K) ask(s * STRIP, s);
            async_group();
        }
        int stage = 0, next = STAGES - 1;
        for (int k0 = 0; k0 < K; k0 += STRIP) {
            async_wait<STAGES - 2>();
            uint16_t *const w = sw + (CODED ? k0 / STRIP % 2 : stage) * (BN * STRIP);
            if constexpr (CODED) units.decode(w, k0, K, stage);
            __syncthreads();
            if (k0 + (STAGES - 1) * STRIP < K) ask(k0 + (STAGES - 1) * STRIP, next);
            async_group();
            multiply(live, k0, stage, w);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            next = next + 1 == STAGES ? 0 : next + 1;
        }
    };
    const int sixteens = (rows + 15) / 16; /* of the whole block: all its warps wait at the same barriers */
    if (sixteens >= MT)
        all(number<MT>());
    else if (MT > 2 && sixteens == 3)
        all(number < MT < 3 ? MT : 3 > ());
    else if (MT > 1 && sixteens == 2)
        all(number < MT < 2 ? MT : 2 > ());
    else
        all(number<1>());

    const struct cu_plus &p = args.plus;
    if (WAY != GATES && p.n > 0 && n0 + wn < g.N) { /* all columns of the warp are of one site */
        const int site = (int)(n0 + wn) / (int)p.N;
        const int64_t first = n0 + wn - site * p.N;
        const float *const w = p.b[site] + t.expert * p.stride;
        uint4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) b[j] = thin_column(p, w + (first + j * 8 + r) * p.row, c * 8);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            const int row = wm + i * 16 + r;
            const uint16_t *const from = p.t + (m0 + row) * p.ldt + site * p.K;
            const uint4 u = row < rows ? thin_row(p, from, c * 8) : zero4(),
                        v = row + 8 < rows ? thin_row(p, from + 8 * p.ldt, c * 8) : zero4();
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float more[4] = {0, 0, 0, 0};
                mma_piece(more, u, v, b[j]);
#pragma unroll
                for (int q = 0; q < 4; q++)
                    acc[i][j][q] = (g.c16 ? bf16_float(bf16_of(acc[i][j][q])) : acc[i][j][q]) + more[q];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = wm + i * 16 + half * 8 + r;
            if (row >= rows) continue;
            if (WAY == GATES) {
#pragma unroll
                for (int j = 0; j < NT; j += 2) {
                    const int64_t n = n0 + (wn + j * 8) / 2 + c * 2;
                    if (n >= g.N) continue;
                    const float *const left = &acc[i][j][half * 2], *const right = &acc[i][j + 1][half * 2];
                    const uint32_t gate = bf16_pair(left[0], left[1]), up = bf16_pair(right[0], right[1]);
                    put_two(args, m0 + row, n, gate16(low_float(gate), low_float(up)),
                            gate16(high_float(gate), high_float(up)));
                }
            } else {
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    const int64_t n = n0 + wn + j * 8 + c * 2;
                    if (n < g.N) put_two(args, m0 + row, n, acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
                }
            }
        }
}

/* ---- launching ----------------------------------------------------------------------------------------------------
 */

template <int BM, int BN, int WM, int WN, int STRIP, int STAGES, int BLOCKS, grouped_way WAY, int FORMAT>
static int start(const struct cu_dev *d, struct grouped a, const struct cu_group *e,
                 const typename codes_of<FORMAT>::type &codes) {
    static_assert(FORMAT == FORMAT_BF16 || threads_of<BM, BN, WM, WN>() / 32 == BN / CU_STRIP, "a warp has a strip");
    auto *kernel = experts_kernel<BM, BN, WM, WN, STRIP, STAGES, BLOCKS, WAY, FORMAT>;
    constexpr int bytes = shared_bytes<BM, BN, STRIP, STAGES, FORMAT>();
    const int rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc) return rc;
    a.tiles_n = ceil_div(a.g.N, WAY == GATES ? BN / 2 : BN);
    return LAUNCH_SOON(kernel, group_tiles(*e, a.g.M, BM) * a.tiles_n, (threads_of<BM, BN, WM, WN>()), bytes, d, a, *e,
                       codes);
}

/* The shape of a tile for so few rows in all, or so many rows an expert in the mean. It changes no bits. */
enum { LEAST_ROWS = 16, FEW_ROWS = 6, SOME_ROWS = 80 };
template <grouped_way WAY, int FORMAT>
static int pick(const struct cu_dev *d, const struct grouped &a, const struct cu_group *e,
                const typename codes_of<FORMAT>::type &codes) {
    if (a.g.M <= LEAST_ROWS) return start<16, 64, 16, 16, 128, 4, 2, WAY, FORMAT>(d, a, e, codes);
    if (a.g.M <= FEW_ROWS * e->n) return start<16, 128, 16, 16, 64, 5, 2, WAY, FORMAT>(d, a, e, codes);
    if constexpr (FORMAT == FORMAT_BF16)
        if (a.g.M > SOME_ROWS * e->n) return start<128, 128, 64, 32, 64, 3, 2, WAY, FORMAT>(d, a, e, codes);
    return start<64, 128, 64, 16, 64, 4, 2, WAY, FORMAT>(d, a, e, codes);
}

static bool is_back(const struct cu_gemm16 *g) { return g->b.row == 1 && g->b.step != 1; }

extern "C" int cu_experts_takes(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e) {
    bool fits = d->max_shared >= shared_bytes<128, 128, 64, 3, FORMAT_BF16>() && g->a.vec && !g->bias &&
                g->N % 8 == 0 && g->K % 8 == 0 && (is_back(g) ? g->b.step : g->b.row) % 8 == 0;
    for (int i = 0; i < e->n; i++) fits = fits && ((uintptr_t)e->w[i] & 15) == 0;
    return fits;
}

/* Of more rows each tile of W would be decoded more than once. */
extern "C" int cu_experts_takes_codes(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e) {
    return cu_experts_takes(d, g, e) && d->max_shared >= shared_bytes<64, 128, 64, 4, FORMAT_FP8>() && !is_back(g) &&
           g->N % CU_STRIP == 0 && g->K % PANEL == 0 && g->M <= SOME_ROWS * e->n;
}

extern "C" int cu_experts_gemm(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e, int gates,
                               const struct cu_plus *plus, const struct cu_coded_group *codes) {
    if (g->M <= 0 || g->N <= 0 || g->K <= 0 || e->n <= 0) return 0;
    const int size = g->c16 ? 2 : 4;
    const struct cu_plus none = {};
    const struct no_codes plain = {};
    const struct grouped a = {*g, plus ? *plus : none, 0,
                              ((uintptr_t)g->c & (uintptr_t)(2 * size - 1)) == 0 && g->ldc % 2 == 0};
    if (codes && codes->format == FORMAT_FP8)
        return gates ? pick<GATES, FORMAT_FP8>(d, a, e, *codes) : pick<FORWARD, FORMAT_FP8>(d, a, e, *codes);
    if (codes) return gates ? pick<GATES, FORMAT_NF4>(d, a, e, *codes) : pick<FORWARD, FORMAT_NF4>(d, a, e, *codes);
    if (gates) return pick<GATES, FORMAT_BF16>(d, a, e, plain);
    return is_back(g) ? pick<BACK, FORMAT_BF16>(d, a, e, plain) : pick<FORWARD, FORMAT_BF16>(d, a, e, plain);
}
