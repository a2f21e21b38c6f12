/* The gradient of attention in bfloat16 on tensor cores, over the packed sequences of training. With P = softmax(q k^T)
 * recomputed from stats and delta = dO . O (FlashAttention-2, Dao 2023, section 3.1):
 *   dV += P^T dO,  dS = P (dO V^T - delta),  dQ = dS K,  dK += dS^T Q.   (q already holds the 1/sqrt(K).)
 * Two kernels compute the scores once each, so that every sum has one owner and a fixed order: in dq_kernel a block
 * owns query pairs (struct cu_attn_task) and walks their keys; in dkv_kernel a block owns keys and walks all pairs that
 * see them, in order of (sequence, query row, head). Sums are float32, P and dS are rounded to bfloat16 for their
 * products.
 *
 * A tile is 64 rows of shared memory of DP elements, in chunks of 8 (16 bytes); chunk c of row r lies at place
 * c ^ (r % 8), so that the eight rows a matrix load takes are in different banks. A warp has 16 of the block's rows. */
#include "cuda/bf16/attention_grad.cuh"
#include "cuda/shared/async.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = CU_GRAD16_TILE, STAGES = 2 };
static_assert(ROWS == 16 * WARPS, "a warp has a fragment's sixteen rows");

/* ---- shared memory ------------------------------------------------------------------------------------------------
 */

template <int DP> static __device__ __forceinline__ int tile_at(int row, int chunk) {
    return row * DP + (chunk ^ (row & 7)) * 8;
}

/* Asks for 64 rows of K elements: row_ptr(r) where r < rows, zeros behind. */
template <int DP, typename F>
static __device__ __forceinline__ void ask_rows(uint16_t *tile, int rows, int K, F row_ptr) {
    enum { CHUNKS = DP / 8 };
    const int chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int r = threadIdx.x / CHUNKS; r < ROWS; r += THREADS / CHUNKS) {
        const bool in = r < rows && chunk * 8 < K;
        async_copy16(tile + tile_at<DP>(r, chunk), row_ptr(in ? r : 0) + (in ? chunk * 8 : 0), in);
    }
}

/* Fragments of a tile: of a product's left side its rows row0..row0+15 at step k (16 wide); of the right side, two
 * groups of eight columns, that are rows n0..n0+15 of the tile, at step k; and the same where the tile's rows row0..
 * are what is summed over and its columns from 16 n on are the product's. */
template <int DP>
static __device__ __forceinline__ void load_left(uint32_t (&a)[4], const uint16_t *tile, int row0, int k) {
    const int lane = threadIdx.x % 32, m = lane / 8;
    load_matrices<false>(a, tile + tile_at<DP>(row0 + m % 2 * 8 + lane % 8, 2 * k + m / 2));
}
template <int DP>
static __device__ __forceinline__ void load_right(uint32_t (&b)[4], const uint16_t *tile, int n0, int k) {
    const int lane = threadIdx.x % 32, m = lane / 8;
    load_matrices<false>(b, tile + tile_at<DP>(n0 + m / 2 * 8 + lane % 8, 2 * k + m % 2));
}
template <int DP>
static __device__ __forceinline__ void load_summed(uint32_t (&b)[4], const uint16_t *tile, int row0, int n) {
    const int lane = threadIdx.x % 32, m = lane / 8;
    load_matrices<true>(b, tile + tile_at<DP>(row0 + m % 2 * 8 + lane % 8, 2 * n + m / 2));
}

/* ---- delta --------------------------------------------------------------------------------------------------------
 */

/* delta[row][head] = dO . O: sixteen lanes a (row, head), eight elements each. */
static __global__ void __launch_bounds__(ROW_THREADS) delta16_kernel(const struct cu_attn_grad16 a) {
    const int lane = threadIdx.x % LANES, j = lane * 8;
    const int64_t n = a.q.rows * a.H;
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < n;
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES)) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / a.H, h = at % a.H;
        const float s = fold_sum(delta_part(a, t, h, j));
        if (i < n && lane == 0) a.delta[at] = s;
    }
}

/* ---- dQ -----------------------------------------------------------------------------------------------------------
 */

/* Keys are taken 32 at a time out of tiles of 64: the scores of more would not fit the registers. */
template <int DP> static __global__ void __launch_bounds__(THREADS, 2) dq16_kernel(const struct cu_attn_grad16 a) {
    DYNAMIC_SHARED(shared);
    enum { TILE = ROWS * DP, STEPS = DP / 16 };
    uint16_t *const tiles = reinterpret_cast<uint16_t *>(shared); /* [STAGES][K, V] */
    const struct cu_attn_task task = a.task[blockIdx.x];
    const int K = (int)a.K, rep = (int)(a.H / a.G), lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int row0 = threadIdx.x / 32 * 16, n = (int)task.past + (task.pair0 + task.pairs - 1) / rep + 1;
    const auto ask_keys = [&](int stage, int j0) {
        const auto key_row = [&](int r) {
            const int j = j0 + r;
            return j < task.past ? task.past_row + j : task.row + (j - task.past);
        };
        ask_rows<DP>(tiles + 2 * stage * TILE, n - j0, K,
                     [&](int r) { return a.k.p + key_row(r) * a.k.ld + task.g * K; });
        ask_rows<DP>(tiles + (2 * stage + 1) * TILE, n - j0, K,
                     [&](int r) { return a.v.p + key_row(r) * a.v.ld + task.g * K; });
        async_group();
    };
    const auto pair_row = [&](int p) { return task.row + p / rep; };
    const auto pair_at = [&](struct cu_mat16 m, int p) {
        return m.p + pair_row(p) * m.ld + (task.g * rep + p % rep) * K;
    };

    /* q and dO as left sides, through the first stage's place */
    uint32_t q[STEPS][4], d_o[STEPS][4];
    ask_rows<DP>(tiles, task.pairs, K, [&](int r) { return pair_at(a.q, task.pair0 + r); });
    ask_rows<DP>(tiles + TILE, task.pairs, K, [&](int r) { return pair_at(a.d_o, task.pair0 + r); });
    async_group();
    async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        load_left<DP>(q[k], tiles, row0, k);
        load_left<DP>(d_o[k], tiles + TILE, row0, k);
    }
    __syncthreads();
    int own[2]; /* keys that rows g and g+8 see */
    float shift[2], inv[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row0 + g + 8 * half, p = task.pair0 + i;
        own[half] = 0;
        shift[half] = inv[half] = delta[half] = 0;
        if (i >= task.pairs) continue;
        const int64_t at = pair_row(p) * a.H + task.g * rep + p % rep;
        own[half] = (int)task.past + p / rep + 1;
        shift[half] = -(a.stats[2 * at] * LOG2E);
        inv[half] = a.stats[2 * at + 1];
        delta[half] = a.delta[at];
    }
    float dq[DP / 8][4];
    clear(dq);
    ask_keys(0, 0);
    for (int j0 = 0, stage = 0; j0 < n; j0 += ROWS, stage ^= 1) {
        if (j0 + ROWS < n) {
            ask_keys(stage ^ 1, j0 + ROWS);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncthreads();
        const uint16_t *const keys = tiles + 2 * stage * TILE, *const values = keys + TILE;
#pragma unroll
        for (int part = 0; part < ROWS; part += 32) {
            float s[4][4], dp[4][4];
            clear(s);
            clear(dp);
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int t = 0; t < 4; t += 2) {
                    uint32_t b[4];
                    load_right<DP>(b, keys, part + t * 8, k);
                    mma(s[t], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
                    mma(s[t + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
                    load_right<DP>(b, values, part + t * 8, k);
                    mma(dp[t], d_o[k][0], d_o[k][1], d_o[k][2], d_o[k][3], b[0], b[1]);
                    mma(dp[t + 1], d_o[k][0], d_o[k][1], d_o[k][2], d_o[k][3], b[2], b[3]);
                }
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int half = e / 2, key = j0 + part + t * 8 + c * 2 + e % 2;
                    const float w = power_of_two(fmaf(s[t][e], LOG2E, shift[half])) * inv[half];
                    s[t][e] = key < own[half] ? w * (dp[t][e] - delta[half]) : 0.0f;
                }
#pragma unroll
            for (int t = 0; t < 4; t += 2) {
                uint32_t ds[4];
                as_left(ds, s[t], s[t + 1]);
#pragma unroll
                for (int i = 0; i < DP / 16; i++) {
                    uint32_t b[4];
                    load_summed<DP>(b, keys, part + t * 8, i);
                    mma(dq[2 * i], ds[0], ds[1], ds[2], ds[3], b[0], b[1]);
                    mma(dq[2 * i + 1], ds[0], ds[1], ds[2], ds[3], b[2], b[3]);
                }
            }
        }
        __syncthreads(); /* the next round overwrites this stage */
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (own[half] == 0) continue;
        uint16_t *const out = pair_at(a.dq, task.pair0 + row0 + g + 8 * half);
#pragma unroll
        for (int i = 0; i < DP / 8; i++) {
            if (i * 8 >= K) break;
            *reinterpret_cast<uint32_t *>(out + i * 8 + c * 2) = bf16_pair(dq[i][2 * half], dq[i][2 * half + 1]);
        }
    }
}

/* ---- dK and dV ----------------------------------------------------------------------------------------------------
 */

/* Rows of the products are keys here, columns are query pairs. What belongs to a pair: its maximum and 1/sum, delta,
 * and the last key it sees. */
struct pair_stats {
    float2 max_inv[ROWS];
    float delta[ROWS];
    int seen[ROWS];
};
template <int DP> static __global__ void __launch_bounds__(THREADS, 2) dkv16_kernel(const struct cu_attn_grad16 a) {
    DYNAMIC_SHARED(shared);
    enum { TILE = ROWS * DP, STEPS = DP / 16 };
    uint16_t *const tiles = reinterpret_cast<uint16_t *>(shared); /* K, V, [STAGES][Q, dO] */
    struct pair_stats *const stats = reinterpret_cast<struct pair_stats *>(tiles + (2 + 2 * STAGES) * TILE);
    const struct cu_key_task task = a.key_task[blockIdx.x];
    const int K = (int)a.K, rep = (int)(a.H / a.G), lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int row0 = threadIdx.x / 32 * 16;
    struct cu_attn_user u = {0, 0, 0, 0};
    int user = -1, pair0 = 0, pairs = 0;
    bool self = false;
    /* On to the next pairs that see any of the keys; false at the end. Own keys are seen from their own row on. */
    const auto advance = [&]() {
        pair0 += ROWS;
        while (pair0 >= pairs) {
            if (++user >= task.n_users) return false;
            u = a.user[task.user0 + user];
            self = task.row0 >= u.row && task.row0 < u.row + u.len;
            pairs = self || task.row0 < u.past_row + u.past ? (int)u.len * rep : 0;
            pair0 = self ? (int)(task.row0 - u.row) * rep : 0;
        }
        return true;
    };
    const auto ask_pairs = [&](int stage) {
        uint16_t *const to = tiles + (2 + 2 * stage) * TILE;
        const auto pair_at = [&](struct cu_mat16 m, int r) {
            const int p = pair0 + r;
            return m.p + (u.row + p / rep) * m.ld + (task.g * rep + p % rep) * K;
        };
        ask_rows<DP>(to, pairs - pair0, K, [&](int r) { return pair_at(a.q, r); });
        ask_rows<DP>(to + TILE, pairs - pair0, K, [&](int r) { return pair_at(a.d_o, r); });
        if (threadIdx.x < ROWS) {
            const int r = threadIdx.x, p = pair0 + r;
            const bool in = p < pairs;
            const int64_t at = in ? (u.row + p / rep) * a.H + task.g * rep + p % rep : 0;
            async_copy8(&stats[stage].max_inv[r].x, a.stats + 2 * at, in);
            async_copy4(&stats[stage].delta[r], a.delta + at, in);
            stats[stage].seen[r] = in ? (int)u.past + p / rep : -1;
        }
        async_group();
    };
    /* Places of this thread's keys among the present user's; one that it does not see is behind all. */
    int pos[2], next_pos[2];
    const auto places = [&](int(&to)[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row0 + g + 8 * half;
            const int64_t r = task.row0 + i;
            to[half] = INT32_MAX;
            if (i >= task.rows) continue;
            if (self)
                to[half] = (int)(u.past + r - u.row);
            else if (r >= u.past_row && r < u.past_row + u.past)
                to[half] = (int)(r - u.past_row);
        }
    };

    ask_rows<DP>(tiles, task.rows, K, [&](int r) { return a.k.p + (task.row0 + r) * a.k.ld + task.g * K; });
    ask_rows<DP>(tiles + TILE, task.rows, K, [&](int r) { return a.v.p + (task.row0 + r) * a.v.ld + task.g * K; });
    float dk[DP / 8][4], dv[DP / 8][4];
    clear(dk);
    clear(dv);
    bool more = advance();
    if (more) ask_pairs(0);
    places(next_pos);
    for (int stage = 0; more; stage ^= 1) {
        pos[0] = next_pos[0], pos[1] = next_pos[1];
        more = advance();
        if (more) {
            ask_pairs(stage ^ 1);
            places(next_pos);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncthreads();
        const uint16_t *const q = tiles + (2 + 2 * stage) * TILE, *const d_o = q + TILE;
        const struct pair_stats *const of = &stats[stage];
        float p[ROWS / 8][4], ds[ROWS / 8][4];
        clear(p);
        clear(ds);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t left[4];
            load_left<DP>(left, tiles, row0, k);
#pragma unroll
            for (int t = 0; t < ROWS / 8; t += 2) {
                uint32_t b[4];
                load_right<DP>(b, q, t * 8, k);
                mma(p[t], left[0], left[1], left[2], left[3], b[0], b[1]);
                mma(p[t + 1], left[0], left[1], left[2], left[3], b[2], b[3]);
            }
        }
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t left[4];
            load_left<DP>(left, tiles + TILE, row0, k);
#pragma unroll
            for (int t = 0; t < ROWS / 8; t += 2) {
                uint32_t b[4];
                load_right<DP>(b, d_o, t * 8, k);
                mma(ds[t], left[0], left[1], left[2], left[3], b[0], b[1]);
                mma(ds[t + 1], left[0], left[1], left[2], left[3], b[2], b[3]);
            }
        }
#pragma unroll
        for (int t = 0; t < ROWS / 8; t++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int col = t * 8 + c * 2 + odd;
                const float2 s = of->max_inv[col];
                const float shift = -(s.x * LOG2E), delta = of->delta[col];
                const int seen = of->seen[col];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int e = 2 * half + odd;
                    const bool on = pos[half] <= seen;
                    const float w = power_of_two(fmaf(p[t][e], LOG2E, shift)) * s.y;
                    p[t][e] = on ? w : 0.0f;
                    ds[t][e] = on ? w * (ds[t][e] - delta) : 0.0f;
                }
            }
#pragma unroll
        for (int t = 0; t < ROWS / 8; t += 2) {
            uint32_t left_p[4], left_ds[4];
            as_left(left_p, p[t], p[t + 1]);
            as_left(left_ds, ds[t], ds[t + 1]);
#pragma unroll
            for (int i = 0; i < DP / 16; i++) {
                uint32_t b[4];
                load_summed<DP>(b, d_o, t * 8, i);
                mma(dv[2 * i], left_p[0], left_p[1], left_p[2], left_p[3], b[0], b[1]);
                mma(dv[2 * i + 1], left_p[0], left_p[1], left_p[2], left_p[3], b[2], b[3]);
                load_summed<DP>(b, q, t * 8, i);
                mma(dk[2 * i], left_ds[0], left_ds[1], left_ds[2], left_ds[3], b[0], b[1]);
                mma(dk[2 * i + 1], left_ds[0], left_ds[1], left_ds[2], left_ds[3], b[2], b[3]);
            }
        }
        __syncthreads(); /* the next round overwrites this stage */
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row0 + g + 8 * half;
        if (i >= task.rows) continue;
        uint16_t *const to_k = a.dk.p + (task.row0 + i) * a.dk.ld + task.g * K;
        uint16_t *const to_v = a.dv.p + (task.row0 + i) * a.dv.ld + task.g * K;
#pragma unroll
        for (int j = 0; j < DP / 8; j++) {
            if (j * 8 >= K) break;
            *reinterpret_cast<uint32_t *>(to_k + j * 8 + c * 2) = bf16_pair(dk[j][2 * half], dk[j][2 * half + 1]);
            *reinterpret_cast<uint32_t *>(to_v + j * 8 + c * 2) = bf16_pair(dv[j][2 * half], dv[j][2 * half + 1]);
        }
    }
}

template <int DP> static int gradient16(const struct cu_dev *d, const struct cu_attn_grad16 *a) {
    const int tile = ROWS * DP * (int)sizeof(uint16_t);
    const int dq_bytes = 2 * STAGES * tile,
              dkv_bytes = (2 + 2 * STAGES) * tile + STAGES * (int)sizeof(struct pair_stats);
    if (dkv_bytes > d->max_shared) return (int)cudaErrorInvalidValue;
    auto *dq = dq16_kernel<DP>;
    auto *dkv = dkv16_kernel<DP>;
    int rc = LAUNCH(delta16_kernel, grid_for(d, a->q.rows * a->H, ROW_THREADS / LANES), ROW_THREADS, 0, d->stream, *a);
    if (!rc) rc = ALLOW_SHARED(dq, dq_bytes);
    if (!rc) rc = ALLOW_SHARED(dkv, dkv_bytes);
    if (!rc) rc = LAUNCH(dq, a->n_tasks, THREADS, dq_bytes, d->stream, *a);
    if (!rc && a->n_key_tasks > 0) rc = LAUNCH(dkv, a->n_key_tasks, THREADS, dkv_bytes, d->stream, *a);
    return rc;
}

extern "C" int cu_attention_grad16(const struct cu_dev *d, const struct cu_attn_grad16 *a) {
    if (a->n_tasks <= 0) return 0;
    return a->K <= 64 ? gradient16<64>(d, a) : gradient16<128>(d, a);
}
