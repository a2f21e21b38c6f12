/* Attention in bfloat16, over cached keys and values (the layout of tensor/ops.h), on tensor cores.
 *
 * Keys are taken in units of UNIT from position 0 on. A unit gives, of a query row, the maximum m of its scores, the
 * sum l of exp(score - m) and the sum o of exp(score - m) v; units are then merged in ascending order:
 *     m' = max(m, m_u),  l' = l e^(m-m') + l_u e^(m_u-m'),  o' likewise.
 * Everything in a row's result depends on that row and the positions alone, so one thread may walk all units (prefill,
 * training), or each unit may be done by another warp and merged behind (decode): the bits are the same. A warp has a
 * tile of 16 query pairs (see struct cu_attn_task); what it reads goes straight into fragments. */
#include "cuda/shared/async.cuh"
#include "cuda/shared/bf16.cuh"
#include "tensor/ops.h"

enum { UNIT = CUDA_UNIT, PIECES = UNIT / 32, TILE_PAIRS = CUDA_SPLIT_PAIRS, WARPS = 4, THREADS = 32 * WARPS };
static_assert(UNIT % KV_BLOCK == 0 && KV_BLOCK % 32 == 0, "a piece of 32 keys lies in one block");

/* What a warp knows of its tile. */
template <int DP> struct query_tile {
    uint4 x[DP / 32], y[DP / 32]; /* rows g and g+8 */
    int own[2];                   /* keys they see */
    int keys;                     /* that exist: those of the tile's last row */
    int all_see;                  /* keys that every row sees */
    int g, c;

    __device__ __forceinline__ void load(const struct cu_attn16 &a, const struct cu_attn_task &t, int first) {
        const int lane = threadIdx.x % 32;
        g = lane / 4, c = lane % 4;
        const int rep = (int)a.H / (int)a.G, past = (int)t.past;
        const int last = first + TILE_PAIRS < t.pairs ? first + TILE_PAIRS - 1 : t.pairs - 1;
        const bool one_row = t.pair0 + last < rep; /* as in decode: no division then */
        keys = past + (one_row ? 0 : (t.pair0 + last) / rep) + 1;
        all_see = past + (one_row ? 0 : (t.pair0 + first) / rep) + 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = first + g + 8 * half;
            const bool in = at < t.pairs;
            const int p = t.pair0 + (in ? at : 0), row = one_row ? 0 : p / rep, head = t.g * rep + p - row * rep;
            own[half] = in ? past + row + 1 : 0;
            const uint16_t *q = a.q.p + (t.row + row) * a.q.ld + head * a.K;
#pragma unroll
            for (int i = 0; i < DP / 32; i++) {
                const bool there = in && i * 32 + c * 8 < a.K;
                const uint4 v = there ? load16(q + i * 32 + c * 8) : zero4();
                if (half)
                    y[i] = v;
                else
                    x[i] = v;
            }
        }
    }
};

/* A unit's exponentials as fragments for the product with the values, its maxima and sums. */
struct unit_weights {
    uint32_t p[PIECES][2][4];
    float m[2], l[2];
};

/* Keys of a piece are dealt to columns so that the exponentials need no exchange: column n of its t-th group of eight
 * is key (n / 2) * 8 + t * 2 + n % 2, as the two steps of mma_piece take them. */

/* The exponentials of a unit's scores, which are overwritten. */
template <int DP>
static __device__ __forceinline__ void weigh_unit(struct unit_weights &w, float (&s)[PIECES][4][4],
                                                  const struct query_tile<DP> &q, int key0) {
    if (key0 + UNIT > q.all_see) { /* the sequence's end; rows that are not there take any numbers */
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int key = key0 + j * 32 + q.c * 8 + t * 2 + e % 2;
                    if (key >= q.own[e / 2]) s[j][t][e] = MINUS_INFINITY;
                }
    }
    w.m[0] = w.m[1] = MINUS_INFINITY;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) w.m[e / 2] = fmaxf(w.m[e / 2], s[j][t][e]);
#pragma unroll
    for (int half = 0; half < 2; half++) w.m[half] = quad_max(w.m[half]);
    /* A row that sees none of the unit has maximum -infinity: 0 in its place makes all its exponentials 0. */
    const float scaled[2] = {w.m[0] == MINUS_INFINITY ? 0.0f : -(w.m[0] * LOG2E),
                             w.m[1] == MINUS_INFINITY ? 0.0f : -(w.m[1] * LOG2E)};
    w.l[0] = w.l[1] = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][t][e] = power_of_two(fmaf(s[j][t][e], LOG2E, scaled[e / 2]));
                w.l[e / 2] = w.l[e / 2] + s[j][t][e];
            }
            w.p[j][t / 2][t % 2 * 2] = bf16_pair(s[j][t][0], s[j][t][1]);
            w.p[j][t / 2][t % 2 * 2 + 1] = bf16_pair(s[j][t][2], s[j][t][3]);
        }
#pragma unroll
    for (int half = 0; half < 2; half++) w.l[half] = quad_sum(w.l[half]);
}

/* Values of keys that are not there yet may be NaN in memory: zero is put in their place. */
static __device__ __forceinline__ uint32_t keep_below(uint32_t pair, int key, int keys) {
    return key + 1 < keys ? pair : key < keys ? pair & 0xffffu : 0u;
}
static __device__ __forceinline__ uint4 only_below(uint4 v, int key, int keys) {
    if (key + 8 <= keys) return v;
    return make_uint4(keep_below(v.x, key, keys), keep_below(v.y, key + 2, keys), keep_below(v.z, key + 4, keys),
                      keep_below(v.w, key + 6, keys));
}
/* The values at p of eight keys from `key` on. */
template <int DP>
static __device__ __forceinline__ uint4 below(const struct query_tile<DP> &q, const uint16_t *p, int key) {
    return key < q.keys ? only_below(load16(p), key, q.keys) : zero4();
}
/* One row's merge: the factors of what is there and of the unit. */
struct merge {
    float m, l, old, add;
    __device__ __forceinline__ void begin() {
        m = MINUS_INFINITY;
        l = 0;
    }
    __device__ __forceinline__ bool next(float m_u, float l_u) {
        if (m_u == MINUS_INFINITY) return false; /* sees none of it: nothing changes, not even the sign of a zero */
        const float top = fmaxf(m, m_u);
        old = power_of_two((m - top) * LOG2E);
        add = power_of_two((m_u - top) * LOG2E);
        l = fmaf(l_u, add, l * old);
        m = top;
        return true;
    }
};

/* Walking: a block has up to WARPS tiles of a task, whose keys and values pass through shared memory a unit at a time;
 * the next unit's keys are asked for before the values of this one are added up. Chunk j of 8 elements of a row r of
 * keys (or of a dimension r of values) lies at place j ^ 4 (r % 2): neighbouring rows are in different banks. */
template <int DP> struct unit_tile { uint16_t keys[UNIT * DP], values[UNIT / KV_BLOCK][DP * KV_BLOCK]; };
template <int DP> static __device__ __forceinline__ int key_at(int key, int chunk) {
    return key * DP + (chunk ^ (key & 1) * 4) * 8;
}
static __device__ __forceinline__ int value_at(int dim, int chunk) {
    return dim * KV_BLOCK + (chunk ^ (dim & 1) * 4) * 8;
}

/* All 64 keys (values) of the blocks that have any key below `keys`. */
template <int DP>
static __device__ __forceinline__ void ask_keys(struct unit_tile<DP> *u, const struct cu_attn16 &a,
                                                const int32_t *table, int64_t kv_head, int key0, int keys) {
    enum { CHUNKS = DP / 8 };
    const int chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int block = 0; block < UNIT / KV_BLOCK; block++) {
        const bool in = key0 + block * KV_BLOCK < keys && chunk * 8 < a.K;
        const uint16_t *from = a.kv;
        if (in) from += table[key0 / KV_BLOCK + block] * a.kv_stride + kv_head * KV_BLOCK * a.K + chunk * 8;
        for (int r = threadIdx.x / CHUNKS; r < KV_BLOCK; r += THREADS / CHUNKS)
            async_copy16(u->keys + key_at<DP>(block * KV_BLOCK + r, chunk), in ? from + r * a.K : from, in);
    }
    async_group();
}
template <int DP>
static __device__ __forceinline__ void ask_values(struct unit_tile<DP> *u, const struct cu_attn16 &a,
                                                  const int32_t *table, int64_t kv_head, int key0, int keys) {
    enum { CHUNKS = KV_BLOCK / 8 };
    const int chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int block = 0; block < UNIT / KV_BLOCK; block++) {
        if (key0 + block * KV_BLOCK >= keys) break;
        const uint16_t *const from =
            a.kv + table[key0 / KV_BLOCK + block] * a.kv_stride + (a.G * a.K + kv_head * a.K) * KV_BLOCK + chunk * 8;
        for (int d = threadIdx.x / CHUNKS; d < a.K; d += THREADS / CHUNKS)
            async_copy16(u->values[block] + value_at(d, chunk), from + d * KV_BLOCK, true);
    }
    async_group();
}

/* A unit's weights, and its values added to what there is of o. A product waits for the one before it: four sums go
 * side by side. ALL: every row sees every key of the unit. */
template <int DP, bool ALL>
static __device__ __forceinline__ void walk_scores(struct unit_weights &w, const struct unit_tile<DP> *u,
                                                   const struct query_tile<DP> &q, int key0, int K) {
    float s[PIECES][4][4];
    const int r = q.g / 2 * 8 + q.g % 2;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
#pragma unroll
        for (int n = 0; n < 4; n++) s[j][n][0] = s[j][n][1] = s[j][n][2] = s[j][n][3] = 0;
#pragma unroll
        for (int i = 0; i < DP / 32; i++) {
            const bool any = (ALL || key0 + j * 32 < q.keys) && i * 32 + q.c * 8 < K;
            uint4 k[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                k[n] = any ? load16(u->keys + key_at<DP>(j * 32 + r + n * 2, i * 4 + q.c)) : zero4();
#pragma unroll
            for (int n = 0; n < 4; n++) mma(s[j][n], q.x[i].x, q.y[i].x, q.x[i].y, q.y[i].y, k[n].x, k[n].y);
#pragma unroll
            for (int n = 0; n < 4; n++) mma(s[j][n], q.x[i].z, q.y[i].z, q.x[i].w, q.y[i].w, k[n].z, k[n].w);
        }
    }
    weigh_unit<DP>(w, s, q, key0);
}

template <int DP, bool ALL>
static __device__ __forceinline__ void walk_values(float (&o)[DP / 8][4], const struct unit_weights &w,
                                                   const struct unit_tile<DP> *u, const struct query_tile<DP> &q,
                                                   const struct merge (&row)[2], const bool (&on)[2], int key0, int K) {
    enum { SIDE = 4 };
#pragma unroll
    for (int i = 0; i < DP / 8; i += SIDE) {
        if (i * 8 >= K) break; /* what is behind K in a group is not written either */
        float x[SIDE][4];
#pragma unroll
        for (int n = 0; n < SIDE; n++) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const int block = j * 32 / KV_BLOCK, chunk = j * 32 % KV_BLOCK / 8 + q.c;
            const uint32_t(&p)[2][4] = w.p[j];
            uint4 v[SIDE];
#pragma unroll
            for (int n = 0; n < SIDE; n++) {
                const uint16_t *const from = u->values[block] + value_at((i + n) * 8 + q.g, chunk);
                v[n] = ALL ? load16(from) : below<DP>(q, from, key0 + j * 32 + q.c * 8);
            }
#pragma unroll
            for (int n = 0; n < SIDE; n++) mma(x[n], p[0][0], p[0][1], p[0][2], p[0][3], v[n].x, v[n].y);
#pragma unroll
            for (int n = 0; n < SIDE; n++) mma(x[n], p[1][0], p[1][1], p[1][2], p[1][3], v[n].z, v[n].w);
        }
#pragma unroll
        for (int n = 0; n < SIDE; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (on[e / 2]) o[i + n][e] = fmaf(x[n][e], row[e / 2].add, o[i + n][e] * row[e / 2].old);
    }
}

template <int DP> static __global__ void __launch_bounds__(THREADS, 2) walk_kernel(const struct cu_attn16 a) {
    DYNAMIC_SHARED(shared);
    struct unit_tile<DP> *const u = reinterpret_cast<struct unit_tile<DP> *>(shared);
    const struct cu_attn_task t = a.task[blockIdx.x];
    const int first = (int)threadIdx.x / 32 * TILE_PAIRS;
    const int64_t rep = a.H / a.G;
    const int all_keys = t.pairs > 0 ? (int)(t.past + (t.pair0 + t.pairs - 1) / rep + 1) : 0;
    const int32_t *table = a.table + t.table;
    struct query_tile<DP> q;
    q.keys = q.all_see = 0;
    if (first < t.pairs) q.load(a, t, first);
    float o[DP / 8][4];
#pragma unroll
    for (int i = 0; i < DP / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    struct merge row[2];
    row[0].begin();
    row[1].begin();
    if (all_keys > 0) ask_keys<DP>(u, a, table, t.g, 0, all_keys);
    for (int key0 = 0; key0 < all_keys; key0 += UNIT) {
        const bool mine = key0 < q.keys; /* a warp whose tile sees none of the unit only waits */
        struct unit_weights w;
        bool on[2];
        ask_values<DP>(u, a, table, t.g, key0, all_keys);
        async_wait<1>();
        __syncthreads(); /* the keys are there */
        if (mine) {
            if (key0 + UNIT <= q.all_see)
                walk_scores<DP, true>(w, u, q, key0, (int)a.K);
            else
                walk_scores<DP, false>(w, u, q, key0, (int)a.K);
            on[0] = row[0].next(w.m[0], w.l[0]);
            on[1] = row[1].next(w.m[1], w.l[1]);
        }
        async_wait<0>();
        __syncthreads(); /* the values are there, and nobody reads the keys any more */
        if (key0 + UNIT < all_keys) ask_keys<DP>(u, a, table, t.g, key0 + UNIT, all_keys);
        if (mine) {
            if (key0 + UNIT <= q.all_see)
                walk_values<DP, true>(o, w, u, q, row, on, key0, (int)a.K);
            else
                walk_values<DP, false>(o, w, u, q, row, on, key0, (int)a.K);
        }
        __syncthreads(); /* the next round overwrites the values */
    }
    if (first >= t.pairs) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = first + q.g + 8 * half;
        if (at >= t.pairs) continue;
        const int64_t p = t.pair0 + at, r = t.row + p / rep, head = t.g * rep + p % rep;
        const float inv = 1.0f / row[half].l;
        uint16_t *out = a.o.p + r * a.o.ld + head * a.K;
#pragma unroll
        for (int i = 0; i < DP / 8; i++) {
            if (i * 8 >= a.K) break;
            *reinterpret_cast<uint32_t *>(out + i * 8 + q.c * 2) =
                bf16_pair(o[i][2 * half] * inv, o[i][2 * half + 1] * inv);
        }
        if (a.stats && q.c == 0) {
            a.stats[(r * a.H + head) * 2] = row[half].m;
            a.stats[(r * a.H + head) * 2 + 1] = inv;
        }
    }
}

/* Decode: a block has a task's units [run, run + 1) * run_units, one after the other. Its keys and values pass
 * through shared memory, keys [UNIT][DP], then values [DP][UNIT]: the next unit's keys are asked for as soon as the
 * scores of this one are there, its values as soon as this one's are added up, so that some are always on their way.
 * Lines are 16 bytes; of odd rows the halves of 64 bytes change places, so that what a warp reads, 64 bytes of eight
 * rows, comes from all banks alike. */
enum { LINE = 8 }; /* elements */
static __device__ __forceinline__ int line_at(int row, int line, int per_row) {
    return (row * per_row + (line ^ (row & 1) << 2)) * LINE;
}

/* Where the two blocks of a unit begin; past the last key the first one stands for both. */
struct unit_blocks {
    const uint16_t *first, *second;
    __device__ __forceinline__ void find(const struct cu_attn16 &a, const int32_t *table, int key0, int keys) {
        first = a.kv + table[key0 / KV_BLOCK] * a.kv_stride;
        second = key0 + KV_BLOCK < keys ? a.kv + table[key0 / KV_BLOCK + 1] * a.kv_stride : first;
    }
};

/* Of heads as wide as the tile, as most are, a copy is one instruction. */
template <int DP>
static __device__ __forceinline__ void ask_unit_keys(uint16_t *to, const struct cu_attn16 &a,
                                                     const struct unit_blocks &b, int kv_head, int key0, int keys) {
    enum { PER_KEY = DP / LINE, STEP = THREADS / PER_KEY, TO = STEP * PER_KEY * LINE * 2 };
    static_assert(STEP % 2 == 0 && KV_BLOCK % STEP == 0,
                  "a thread's rows are all even or all odd, and in blocks alike");
    const int row = (int)threadIdx.x / PER_KEY, line = (int)threadIdx.x % PER_KEY, width = (int)a.K;
    const int64_t from = ((int64_t)kv_head * KV_BLOCK + row) * width + line * LINE;
    if (width == DP) {
        const shared_place at = place_of(to + line_at(row, line, PER_KEY));
        const uint16_t *const first = b.first + from, *const second = b.second + from;
        const int left = keys - key0 - row;
#pragma unroll
        for (int i = 0; i < UNIT; i += STEP)
            if (i < left) async_copy16_at(at + i / STEP * TO, (i < KV_BLOCK ? first : second) + i % KV_BLOCK * DP);
    } else if (line * LINE < width) {
#pragma unroll 1
        for (int i = 0; i < UNIT; i += STEP)
            if (key0 + i + row < keys)
                async_copy16(to + line_at(i + row, line, PER_KEY),
                             (i < KV_BLOCK ? b.first : b.second) + from + i % KV_BLOCK * width, true);
    }
    async_group();
}
template <int DP>
static __device__ __forceinline__ void ask_unit_values(uint16_t *to, const struct cu_attn16 &a,
                                                       const struct unit_blocks &b, int kv_head, int key0, int keys) {
    enum { PER_DIM = UNIT / LINE, STEP = THREADS / PER_DIM, TO = STEP * PER_DIM * LINE * 2 };
    static_assert(STEP % 2 == 0, "a thread's rows are all even or all odd");
    const int row = (int)threadIdx.x / PER_DIM, line = (int)threadIdx.x % PER_DIM, key = line * LINE;
    const uint16_t *from =
        (key < KV_BLOCK ? b.first : b.second) + ((a.G + kv_head) * a.K + row) * KV_BLOCK + key % KV_BLOCK;
    if (key0 + key >= keys) { /* none of its eight keys is there */
    } else if (a.K == DP) {
        const shared_place at = place_of(to + line_at(row, line, PER_DIM));
#pragma unroll
        for (int i = 0; i < DP; i += STEP) async_copy16_at(at + i / STEP * TO, from + i * KV_BLOCK);
    } else {
#pragma unroll 1
        for (int i = 0; i < DP; i += STEP)
            if (i + row < (int)a.K) async_copy16(to + line_at(i + row, line, PER_DIM), from + i * KV_BLOCK, true);
    }
    async_group();
}

/* A warp's part of a unit: the scores of its piece of the keys, and the sums over the unit of every fourth eight
 * dimensions of the values. A product waits for the one before it on the same sum: the sums take turns. ALL: heads are
 * as wide as the tile, and every key of the unit exists. */
template <int DP, bool ALL>
static __device__ __forceinline__ void unit_scores(float (&s)[4][4], const uint16_t *keys,
                                                   const struct query_tile<DP> &q, int piece, bool any, int K) {
#pragma unroll
    for (int i = 0; i < 4; i++) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
    for (int j = 0; j < DP / 32; j++) {
        uint4 k[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            k[i] = ALL || (any && j * 32 + q.c * 8 < K) ? load16(keys + line_at(piece + i * 2, j * 4 + q.c, DP / LINE))
                                                        : zero4();
#pragma unroll
        for (int i = 0; i < 4; i++) mma(s[i], q.x[j].x, q.y[j].x, q.x[j].y, q.y[j].y, k[i].x, k[i].y);
#pragma unroll
        for (int i = 0; i < 4; i++) mma(s[i], q.x[j].z, q.y[j].z, q.x[j].w, q.y[j].w, k[i].z, k[i].w);
    }
}
template <int DP, bool ALL>
static __device__ __forceinline__ void unit_values(float (&u)[DP / 8 / WARPS][4], const struct unit_weights &w,
                                                   const uint16_t *values, const struct query_tile<DP> &q, int warp,
                                                   int key0, int K) {
    enum { MINE = DP / 8 / WARPS };
#pragma unroll
    for (int i = 0; i < MINE; i++) u[i][0] = u[i][1] = u[i][2] = u[i][3] = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const uint32_t(&p)[2][4] = w.p[j];
        uint4 v[MINE];
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int d0 = (i * WARPS + warp) * 8;
            const uint16_t *const from = values + line_at(d0 + q.g, j * 4 + q.c, UNIT / LINE);
            v[i] = ALL ? load16(from) : d0 < K ? below<DP>(q, from, key0 + j * 32 + q.c * 8) : zero4();
        }
#pragma unroll
        for (int i = 0; i < MINE; i++) mma(u[i], p[0][0], p[0][1], p[0][2], p[0][3], v[i].x, v[i].y);
#pragma unroll
        for (int i = 0; i < MINE; i++) mma(u[i], p[1][0], p[1][1], p[1][2], p[1][3], v[i].z, v[i].w);
    }
}

/* A warp scores a piece of a unit's keys, all warps share the scores, and each adds up the values of every fourth eight
 * dimensions. Where one block has all of a task's units it merges them as walk_kernel does. Otherwise their results lie
 * in part: [unit][pair][DP] of o, and behind all of them [unit][pair][2] of m and l; units of a task are neighbours,
 * from task.part on. The last block of a task to come merges them; count[task] is 0 before and after. */
template <int DP> static __device__ void merge_units(const struct cu_attn16 &a, const struct cu_attn_task &t, int rep);

template <int DP>
static __global__ void __launch_bounds__(THREADS, CU_UNIT_BLOCKS) unit_kernel(const struct cu_attn16 a) {
    static_assert(PIECES == WARPS, "a warp a piece");
    static_assert(UNIT == 2 * KV_BLOCK, "a unit is two blocks");
    enum { MINE = DP / 8 / WARPS };
    DYNAMIC_SHARED(dynamic);
    __shared__ float4 shared[PIECES][4][32];
    __shared__ int last;
    uint16_t *const keys = reinterpret_cast<uint16_t *>(dynamic), *const values = keys + UNIT * DP;
    const unsigned early = (unsigned)(a.late * a.runs[0]);
    const int late = blockIdx.x >= early;
    const unsigned at_run = blockIdx.x - (late ? early : 0), runs = (unsigned)a.runs[late];
    const unsigned task = (late ? (unsigned)a.late : 0) + at_run / runs, run = at_run % runs;
    const int run_units = (int)a.run_units[late];
    const struct cu_attn_task t = a.task[task];
    const int warp = threadIdx.x / 32, rep = (int)a.H / (int)a.G;
    let_next_begin();
    if (t.pairs == 0) { /* a place that is kept free */
        wait_for_before();
        return;
    }
    const int all_keys = (int)t.past + (t.pair0 + t.pairs - 1) / rep + 1, units = (all_keys + UNIT - 1) / UNIT;
    const int begin = (int)run * run_units;
    const int end = begin + run_units < units ? begin + run_units : units;
    /* Of earlier steps' keys and values those are asked for while the kernel before this one still writes the new. */
    const bool settled = a.settled && (begin + 1) * UNIT <= (int)t.past;
    if (!settled || begin >= units) wait_for_before();
    if (begin >= units) return;
    const bool whole = begin == 0 && end == units;
    const int32_t *const table = a.table + t.table;
    struct unit_blocks blocks;
    blocks.find(a, table, begin * UNIT, all_keys);
    ask_unit_keys<DP>(keys, a, blocks, t.g, begin * UNIT, all_keys);
    ask_unit_values<DP>(values, a, blocks, t.g, begin * UNIT, all_keys);
    if (settled) wait_for_before();
    struct query_tile<DP> q;
    q.load(a, t, 0);
    float o[MINE][4];
    struct merge row[2];
#pragma unroll
    for (int i = 0; i < MINE; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    row[0].begin();
    row[1].begin();
    for (int unit = begin; unit < end; unit++) {
        const int key0 = unit * UNIT, next = key0 + UNIT, piece = warp * 32 + q.g / 2 * 8 + q.g % 2;
        const bool more = unit + 1 < end, all = a.K == DP && next <= all_keys;
        if (more) blocks.find(a, table, next, all_keys);
        float s[PIECES][4][4];
        struct unit_weights w;
        async_wait<1>();
        __syncthreads(); /* the keys are there */
        {
            float mine[4][4];
            if (all)
                unit_scores<DP, true>(mine, keys, q, piece, true, DP);
            else
                unit_scores<DP, false>(mine, keys, q, piece, key0 + warp * 32 < all_keys, (int)a.K);
#pragma unroll
            for (int i = 0; i < 4; i++)
                shared[warp][i][threadIdx.x % 32] = make_float4(mine[i][0], mine[i][1], mine[i][2], mine[i][3]);
        }
        __syncthreads(); /* all scores are there, and nobody reads the keys any more */
        if (more)
            ask_unit_keys<DP>(keys, a, blocks, t.g, next, all_keys);
        else
            async_group(); /* an empty one, so that their number is the same */
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 x = shared[j][i][threadIdx.x % 32];
                s[j][i][0] = x.x, s[j][i][1] = x.y, s[j][i][2] = x.z, s[j][i][3] = x.w;
            }
        weigh_unit<DP>(w, s, q, key0);
        const bool on[2] = {row[0].next(w.m[0], w.l[0]), row[1].next(w.m[1], w.l[1])};
        async_wait<1>();
        __syncthreads(); /* the values are there */
        const int64_t at = t.part + unit;
        float *const part = a.part + at * TILE_PAIRS * DP;
        float u[MINE][4];
        if (all)
            unit_values<DP, true>(u, w, values, q, warp, key0, DP);
        else
            unit_values<DP, false>(u, w, values, q, warp, key0, (int)a.K);
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int d0 = (i * WARPS + warp) * 8;
            if (d0 >= a.K) break;
            if (whole) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (on[e / 2]) o[i][e] = fmaf(u[i][e], row[e / 2].add, o[i][e] * row[e / 2].old);
                continue;
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (q.g + 8 * half < t.pairs)
                    *reinterpret_cast<float2 *>(part + (q.g + 8 * half) * DP + d0 + q.c * 2) =
                        make_float2(u[i][2 * half], u[i][2 * half + 1]);
        }
        if (!whole && warp == 0 && q.c == 0) {
            float *const ml = a.part + a.part_units * TILE_PAIRS * DP;
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<float2 *>(ml + (at * TILE_PAIRS + q.g + 8 * half) * 2) =
                    make_float2(w.m[half], w.l[half]);
        }
        if (!more) break;
        __syncthreads(); /* nobody reads the values any more */
        ask_unit_values<DP>(values, a, blocks, t.g, next, all_keys);
    }
    if (whole) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int pair = q.g + 8 * half;
            if (pair >= t.pairs) continue;
            const int p = t.pair0 + pair;
            const int64_t r = t.row + p / rep, head = t.g * rep + p % rep;
            const float inv = 1.0f / row[half].l;
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                const int d0 = (i * WARPS + warp) * 8;
                if (d0 >= a.K) break;
                *reinterpret_cast<uint32_t *>(a.o.p + r * a.o.ld + head * a.K + d0 + q.c * 2) =
                    bf16_pair(o[i][2 * half] * inv, o[i][2 * half + 1] * inv);
            }
            if (a.stats && warp == 0 && q.c == 0) {
                a.stats[(r * a.H + head) * 2] = row[half].m;
                a.stats[(r * a.H + head) * 2 + 1] = inv;
            }
        }
        return;
    }
    __syncthreads(); /* what all threads wrote, thread 0 makes known */
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&a.count[task], 1u) + 1 == (unsigned)((units + run_units - 1) / run_units);
        if (last) a.count[task] = 0;
        __threadfence();
    }
    __syncthreads();
    if (last) merge_units<DP>(a, t, rep);
}

/* Four dimensions of a query pair a thread. */
template <int DP> static __device__ void merge_units(const struct cu_attn16 &a, const struct cu_attn_task &t, int rep) {
    const float *const ml = a.part + a.part_units * TILE_PAIRS * DP;
    for (int i = threadIdx.x; i < t.pairs * (DP / 4); i += THREADS) {
        const int pair = i / (DP / 4), d = i % (DP / 4) * 4;
        if (d >= a.K) continue;
        const int p = t.pair0 + pair, own = (int)t.past + p / rep + 1;
        const int64_t r = t.row + p / rep, head = t.g * rep + p % rep;
        struct merge row;
        row.begin();
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int unit = 0; unit * UNIT < own; unit++) {
            const int64_t at = (int64_t)(t.part + unit) * TILE_PAIRS + pair;
            const float2 s = load_fresh(ml + at * 2);
            const float4 v = load_fresh4(a.part + at * DP + d);
            if (!row.next(s.x, s.y)) continue;
            x.x = fmaf(v.x, row.add, x.x * row.old);
            x.y = fmaf(v.y, row.add, x.y * row.old);
            x.z = fmaf(v.z, row.add, x.z * row.old);
            x.w = fmaf(v.w, row.add, x.w * row.old);
        }
        const float inv = 1.0f / row.l;
        *reinterpret_cast<uint2 *>(a.o.p + r * a.o.ld + head * a.K + d) =
            make_uint2(bf16_pair(x.x * inv, x.y * inv), bf16_pair(x.z * inv, x.w * inv));
        if (a.stats && d == 0) {
            a.stats[(r * a.H + head) * 2] = row.m;
            a.stats[(r * a.H + head) * 2 + 1] = inv;
        }
    }
}

template <int DP> static int walk(const struct cu_dev *d, const struct cu_attn16 *a) {
    const int bytes = (int)sizeof(struct unit_tile<DP>);
    auto *kernel = walk_kernel<DP>;
    const int rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return rc ? rc : LAUNCH(kernel, a->n_tasks, THREADS, bytes, d->stream, *a);
}

extern "C" int cu_attention16(const struct cu_dev *d, const struct cu_attn16 *a) {
    if (a->n_tasks <= 0) return 0;
    return a->K <= 64 ? walk<64>(d, a) : walk<128>(d, a);
}

template <int DP> static int launch_units(const struct cu_dev *d, const struct cu_attn16 *a) {
    const int shared = 2 * UNIT * DP * (int)sizeof(uint16_t);
    const int64_t blocks = a->late * a->runs[0] + (a->n_tasks - a->late) * a->runs[1];
    const int rc = (int)cudaFuncSetAttribute(unit_kernel<DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return rc ? rc : LAUNCH_SOON(unit_kernel<DP>, blocks, THREADS, shared, d, *a);
}

extern "C" int cu_attention16_decode(const struct cu_dev *d, const struct cu_attn16 *a) {
    if (a->n_tasks <= 0) return 0;
    return a->K <= 64 ? launch_units<64>(d, a) : launch_units<128>(d, a);
}

/* ---- the cache ----------------------------------------------------------------------------------------------------
 */

/* A block a task; neighbouring threads take neighbouring dimensions of a key, and neighbouring keys of a value. */
static __global__ void kv_write16_kernel(struct cu_mat16 k, struct cu_mat16 v, const struct cu_kv_task *tasks,
                                         int64_t G, int64_t K, uint16_t *kv, int64_t kv_stride) {
    const struct cu_kv_task t = tasks[blockIdx.x];
    uint16_t *const block = kv + t.block * kv_stride;
    const int64_t cols = G * K, n = t.rows * cols;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t r = i / cols, j = i % cols;
        block[(j / K * KV_BLOCK + t.slot + r) * K + j % K] = k.p[(t.row + r) * k.ld + j];
    }
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t r = i % t.rows, j = i / t.rows;
        block[(cols + j) * KV_BLOCK + t.slot + r] = v.p[(t.row + r) * v.ld + j];
    }
}

extern "C" int cu_kv_write16(const struct cu_dev *d, struct cu_mat16 k, struct cu_mat16 v,
                             const struct cu_kv_task *task, int64_t n_tasks, int64_t G, int64_t K, uint16_t *kv,
                             int64_t kv_stride) {
    if (n_tasks <= 0) return 0;
    return LAUNCH(kv_write16_kernel, n_tasks, 256, 0, d->stream, k, v, task, G, K, kv, kv_stride);
}
