/* The gradient of attention in bfloat16 with the products of warpgroups (wgmma.cuh): what attention_grad.cu
 * computes, on compute capability 9.0, where reading fragments out of shared memory and not the tensor cores would bind
 * otherwise. The sums have one owner and a fixed order here too.
 *
 * In dkv90_kernel two warpgroups share a block's keys and take every other tile of query pairs; the second's sums are
 * added to the first's at the end. So a block is done in half the time, which matters where the first keys of a
 * sequence are seen by all of a group's pairs and there are not many more blocks than multiprocessors. */
#include "cuda/bf16/attention_grad.cuh"
#include "cuda/shared/wgmma.cuh"

enum { ROWS = CU_GRAD16_TILE, STAGES = 2, GROUPS = 2 };
static_assert(ROWS == (int)WG_ROWS, "a warpgroup has a tile's rows");

/* n / d for 0 <= n < 2^32 / d, by a product's upper half. */
struct divider {
    uint32_t d, magic;
    __device__ __forceinline__ explicit divider(int by) : d((uint32_t)by), magic(by > 1 ? 0xffffffffu / d + 1 : 0) {}
    __device__ __forceinline__ int of(int n) const { return magic ? (int)(((uint64_t)(uint32_t)n * magic) >> 32) : n; }
};

/* The pieces of 64 rows that a thread copies: chunk `chunk` of the rows first, first + STEP, ... */
template <int DP> struct copier {
    enum { CHUNKS = DP / 8, STEP = WG_THREADS / CHUNKS };
    int chunk, first;
    bool any; /* of a head's elements */
    __device__ __forceinline__ copier(int thread, int K)
        : chunk(thread % CHUNKS), first(thread / CHUNKS), any(thread % CHUNKS * 8 < K) {}
    __device__ __forceinline__ void ask(uint16_t *tile, int row, const uint16_t *head, bool in) const {
        async_copy16(tile + wg_at(row, chunk), in && any ? head + chunk * 8 : head, in && any);
    }
};

/* ---- delta --------------------------------------------------------------------------------------------------------
 */

/* fold[row][head] = what the exponent of a probability is less the score's part, log2(1/sum) - max log2(e), and
 * delta = dO . O. Sixteen lanes a (row, head), eight elements each. */
static __global__ void __launch_bounds__(ROW_THREADS) fold90_kernel(const struct cu_attn_grad16 a) {
    const int lane = threadIdx.x % LANES, j = lane * 8;
    const int64_t n = a.q.rows * a.H;
    float2 *const fold = reinterpret_cast<float2 *>(a.delta);
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < n;
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES)) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / a.H, h = at % a.H;
        const float s = fold_sum(delta_part(a, t, h, j));
        if (i < n && lane == 0) fold[at] = make_float2(fmaf(a.stats[2 * at], -LOG2E, log2f(a.stats[2 * at + 1])), s);
    }
}

/* ---- dQ -----------------------------------------------------------------------------------------------------------
 */

template <int DP> static __global__ void __launch_bounds__(WG_THREADS, 2) dq90_kernel(const struct cu_attn_grad16 a) {
    DYNAMIC_SHARED(shared);
    enum { TILE = ROWS * DP, STEPS = DP / 16 };
    uint16_t *const tiles = aligned_tiles(shared); /* Q, dO, [STAGES][K, V] */
    const struct cu_attn_task task = a.task[blockIdx.x];
    const int K = (int)a.K, rep = (int)(a.H / a.G), lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int row0 = threadIdx.x / 32 * 16;
    const struct divider by_rep(rep);
    const struct copier<DP> copy(threadIdx.x, K);
    const int n = (int)task.past + by_rep.of(task.pair0 + task.pairs - 1) + 1;
    const auto ask_keys = [&](int stage, int j0) {
        uint16_t *const to = tiles + (2 + 2 * stage) * TILE;
#pragma unroll
        for (int r = copy.first; r < ROWS; r += copier<DP>::STEP) {
            const int j = j0 + r;
            const bool in = j < n;
            const int64_t row = !in ? task.row : j < task.past ? task.past_row + j : task.row + (j - task.past);
            copy.ask(to, r, a.k.p + row * a.k.ld + task.g * K, in);
            copy.ask(to + TILE, r, a.v.p + row * a.v.ld + task.g * K, in);
        }
        async_group();
    };
    const auto place_of = [&](int p, int64_t &row, int64_t &head) {
        const int q = by_rep.of(p);
        row = task.row + q;
        head = (int64_t)task.g * rep + (p - q * rep);
    };
#pragma unroll
    for (int r = copy.first; r < ROWS; r += copier<DP>::STEP) {
        int64_t row, head;
        const bool in = r < task.pairs;
        place_of(task.pair0 + (in ? r : 0), row, head);
        copy.ask(tiles, r, a.q.p + row * a.q.ld + head * K, in);
        copy.ask(tiles + TILE, r, a.d_o.p + row * a.d_o.ld + head * K, in);
    }
    int own[2]; /* keys that rows g and g+8 see */
    float shift[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row0 + g + 8 * half;
        int64_t row, head;
        own[half] = 0;
        shift[half] = delta[half] = 0;
        if (i >= task.pairs) continue;
        place_of(task.pair0 + i, row, head);
        const float2 fold = reinterpret_cast<const float2 *>(a.delta)[row * a.H + head];
        own[half] = (int)(task.past + (row - task.row)) + 1;
        shift[half] = fold.x;
        delta[half] = fold.y;
    }
    const int first_own = (int)task.past + by_rep.of(task.pair0) + 1; /* keys that all of the pairs see */
    float dq[DP / 8][4];
    clear(dq);
    ask_keys(0, 0); /* in one group with the queries */
    for (int j0 = 0, stage = 0; j0 < n; j0 += ROWS, stage ^= 1) {
        if (j0 + ROWS < n) {
            ask_keys(stage ^ 1, j0 + ROWS);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        wg_publish();
        __syncthreads();
        const uint16_t *const keys = tiles + (2 + 2 * stage) * TILE, *const values = keys + TILE;
        float s[ROWS / 8][4], dp[ROWS / 8][4];
        clear(s);
        clear(dp);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++) wgmma_rows(s, tiles, keys, k, k > 0);
        wgmma_commit();
#pragma unroll
        for (int k = 0; k < STEPS; k++) wgmma_rows(dp, tiles + TILE, values, k, k > 0);
        wgmma_commit();
        wgmma_wait<1>();
#pragma unroll
        for (int t = 0; t < ROWS / 8; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[t][e] = power_of_two(fmaf(s[t][e], LOG2E, shift[e / 2]));
        if (j0 + ROWS > first_own) {
#pragma unroll
            for (int t = 0; t < ROWS / 8; t++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (j0 + t * 8 + c * 2 + e % 2 >= own[e / 2]) s[t][e] = 0;
        }
        wgmma_wait<0>();
        uint32_t ds[ROWS / 16][4];
#pragma unroll
        for (int t = 0; t < ROWS / 8; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) s[t][e] = s[t][e] * (dp[t][e] - delta[e / 2]);
            if (t % 2) as_left(ds[t / 2], s[t - 1], s[t]);
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROWS / 16; k++) wgmma_columns(dq, ds[k], keys, k);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads(); /* the next round overwrites this stage */
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (own[half] == 0) continue;
        int64_t row, head;
        place_of(task.pair0 + row0 + g + 8 * half, row, head);
        uint16_t *const out = a.dq.p + row * a.dq.ld + head * K;
#pragma unroll
        for (int i = 0; i < DP / 8; i++) {
            if (i * 8 >= K) break;
            *reinterpret_cast<uint32_t *>(out + i * 8 + c * 2) = bf16_pair(dq[i][2 * half], dq[i][2 * half + 1]);
        }
    }
}

/* ---- dK and dV ----------------------------------------------------------------------------------------------------
 */

/* Rows of the products are keys here, columns are query pairs. What belongs to a pair: fold90_kernel's two numbers and
 * the last key it sees. */
struct pair_facts {
    float2 fold[ROWS];
    int seen[ROWS];
};

/* The next tiles of pairs that see any of a task's keys. Own keys are seen from their own row on. */
struct pair_walk {
    struct cu_attn_user u;
    int user, pair0, pairs;
    bool self;
    __device__ __forceinline__ void begin() {
        u = {0, 0, 0, 0};
        user = -1, pair0 = 0, pairs = 0;
        self = false;
    }
    /* On by one tile; false at the end, and then for good. */
    __device__ __forceinline__ bool next(const struct cu_attn_grad16 &a, const struct cu_key_task &task, int rep) {
        if (user >= task.n_users) return false;
        pair0 += ROWS;
        while (pair0 >= pairs) {
            if (++user >= task.n_users) return false;
            u = a.user[task.user0 + user];
            self = task.row0 >= u.row && task.row0 < u.row + u.len;
            pairs = self || task.row0 < u.past_row + u.past ? (int)u.len * rep : 0;
            pair0 = self ? (int)(task.row0 - u.row) * rep : 0;
        }
        return true;
    }
};

template <int DP>
static __global__ void __launch_bounds__(GROUPS *WG_THREADS, 1) dkv90_kernel(const struct cu_attn_grad16 a) {
    DYNAMIC_SHARED(shared);
    enum { TILE = ROWS * DP, STEPS = DP / 16 };
    uint16_t *const tiles = aligned_tiles(shared); /* K, V, [GROUPS][STAGES][Q, dO] */
    const int group = threadIdx.x / WG_THREADS, thread = threadIdx.x % WG_THREADS;
    uint16_t *const mine = tiles + (2 + group * STAGES * 2) * TILE;
    struct pair_facts *const facts =
        reinterpret_cast<struct pair_facts *>(tiles + (2 + GROUPS * STAGES * 2) * TILE) + group * STAGES;
    const struct cu_key_task task = a.key_task[blockIdx.x];
    const int K = (int)a.K, rep = (int)(a.H / a.G), lane = thread % 32, g = lane / 4, c = lane % 4;
    const int row0 = thread / 32 * 16;
    const struct divider by_rep(rep);
    const struct copier<DP> copy(thread, K);
    struct pair_walk at;
    at.begin();
    const auto ask_pairs = [&](int stage) {
        uint16_t *const to = mine + 2 * stage * TILE;
#pragma unroll
        for (int r = copy.first; r < ROWS; r += copier<DP>::STEP) {
            const bool in = at.pair0 + r < at.pairs;
            const int p = in ? at.pair0 + r : at.pair0, q = by_rep.of(p);
            const int64_t row = at.u.row + q, head = (int64_t)task.g * rep + (p - q * rep);
            copy.ask(to, r, a.q.p + row * a.q.ld + head * K, in);
            copy.ask(to + TILE, r, a.d_o.p + row * a.d_o.ld + head * K, in);
        }
        if (thread < ROWS) {
            const bool in = at.pair0 + thread < at.pairs;
            const int p = in ? at.pair0 + thread : at.pair0, q = by_rep.of(p);
            const int64_t i = (at.u.row + q) * a.H + (int64_t)task.g * rep + (p - q * rep);
            async_copy8(&facts[stage].fold[thread].x, a.delta + 2 * i, in);
            facts[stage].seen[thread] = in ? (int)at.u.past + q : -1;
        }
        async_group();
    };
    /* Places of this thread's keys among the present user's; one that it does not see is behind all. `all`: every pair
     * of the tile sees every key. */
    int pos[2], next_pos[2];
    bool all, next_all;
    const auto places = [&](int(&to)[2], bool &every) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row0 + g + 8 * half;
            const int64_t r = task.row0 + i;
            to[half] = INT32_MAX;
            if (i >= task.rows) continue;
            if (at.self)
                to[half] = (int)(at.u.past + r - at.u.row);
            else if (r >= at.u.past_row && r < at.u.past_row + at.u.past)
                to[half] = (int)(r - at.u.past_row);
        }
        const int first_seen = (int)at.u.past + by_rep.of(at.pair0);
        const int64_t last = task.row0 + task.rows - 1;
        every = task.rows == ROWS && at.pair0 + ROWS <= at.pairs &&
                (at.self ? at.u.past + last - at.u.row <= first_seen
                         : task.row0 >= at.u.past_row && last < at.u.past_row + at.u.past);
    };

    /* both warpgroups' threads copy the keys: half of the rows each, then the values */
#pragma unroll
    for (int r = copy.first; r < ROWS; r += copier<DP>::STEP) {
        const bool in = r < task.rows;
        const struct cu_mat16 m = group ? a.v : a.k;
        copy.ask(tiles + group * TILE, r, m.p + (task.row0 + (in ? r : 0)) * m.ld + task.g * K, in);
    }
    async_group();
    float dk[DP / 8][4], dv[DP / 8][4];
    clear(dk);
    clear(dv);
    bool more = at.next(a, task, rep);
    for (int i = 0; i < group; i++) more = at.next(a, task, rep);
    if (more) {
        ask_pairs(0);
        places(next_pos, next_all);
        async_wait<1>();
    } else {
        async_wait<0>();
    }
    wg_publish();
    __syncthreads(); /* keys and values are there */
    for (int stage = 0; more; stage ^= 1) {
        pos[0] = next_pos[0], pos[1] = next_pos[1], all = next_all;
        for (int i = 0; i < GROUPS; i++) more = at.next(a, task, rep);
        if (more) {
            ask_pairs(stage ^ 1);
            places(next_pos, next_all);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        wg_publish();
        wg_barrier(group);
        const uint16_t *const q = mine + 2 * stage * TILE, *const d_o = q + TILE;
        const struct pair_facts *const of = &facts[stage];
        float p[ROWS / 8][4], ds[ROWS / 8][4];
        clear(p);
        clear(ds);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++) wgmma_rows(p, tiles, q, k, k > 0);
        wgmma_commit();
#pragma unroll
        for (int k = 0; k < STEPS; k++) wgmma_rows(ds, tiles + TILE, d_o, k, k > 0);
        wgmma_commit();
        wgmma_wait<1>();
#pragma unroll
        for (int t = 0; t < ROWS / 8; t++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const float shift = of->fold[t * 8 + c * 2 + odd].x;
                p[t][odd] = power_of_two(fmaf(p[t][odd], LOG2E, shift));
                p[t][2 + odd] = power_of_two(fmaf(p[t][2 + odd], LOG2E, shift));
            }
        if (!all) {
#pragma unroll
            for (int t = 0; t < ROWS / 8; t++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const int seen = of->seen[t * 8 + c * 2 + odd];
                    if (pos[0] > seen) p[t][odd] = 0;
                    if (pos[1] > seen) p[t][2 + odd] = 0;
                }
        }
        uint32_t left[ROWS / 16][4], left_ds[ROWS / 16][4];
#pragma unroll
        for (int k = 0; k < ROWS / 16; k++) as_left(left[k], p[2 * k], p[2 * k + 1]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROWS / 16; k++) wgmma_columns(dv, left[k], d_o, k);
        wgmma_commit();
        wgmma_wait<1>(); /* all but this last product: dP is there */
#pragma unroll
        for (int t = 0; t < ROWS / 8; t++) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const float delta = of->fold[t * 8 + c * 2 + odd].y;
                ds[t][odd] = p[t][odd] * (ds[t][odd] - delta);
                ds[t][2 + odd] = p[t][2 + odd] * (ds[t][2 + odd] - delta);
            }
            if (t % 2) as_left(left_ds[t / 2], ds[t - 1], ds[t]);
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < ROWS / 16; k++) wgmma_columns(dk, left_ds[k], q, k);
        wgmma_commit();
        wgmma_wait<0>();
        wg_barrier(group); /* the next round overwrites this stage */
    }
    /* The first warpgroup ends dK, the second dV; each hands its part of the other's over. */
    __syncthreads();
    float *const given = reinterpret_cast<float *>(tiles + 2 * TILE); /* [GROUPS][DP / 2][WG_THREADS] */
    const int half_floats = DP / 2 * WG_THREADS;
#pragma unroll
    for (int i = 0; i < DP / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            given[group * half_floats + (i * 4 + e) * WG_THREADS + thread] = group ? dk[i][e] : dv[i][e];
    __syncthreads();
    const struct cu_mat16 to = group ? a.dv : a.dk;
#pragma unroll
    for (int i = 0; i < DP / 8; i++) {
        if (i * 8 >= K) break;
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float other = given[!group * half_floats + (i * 4 + e) * WG_THREADS + thread];
            x[e] = group ? other + dv[i][e] : dk[i][e] + other;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row0 + g + 8 * half;
            if (r >= task.rows) continue;
            *reinterpret_cast<uint32_t *>(to.p + (task.row0 + r) * to.ld + task.g * K + i * 8 + c * 2) =
                bf16_pair(x[2 * half], x[2 * half + 1]);
        }
    }
}

template <int DP> static int gradient90(const struct cu_dev *d, const struct cu_attn_grad16 *a) {
    const int tile = ROWS * DP * (int)sizeof(uint16_t);
    const int dq_bytes = (2 + 2 * STAGES) * tile + WG_ALIGN;
    const int dkv_bytes =
        (2 + GROUPS * STAGES * 2) * tile + GROUPS * STAGES * (int)sizeof(struct pair_facts) + WG_ALIGN;
    auto *dq = dq90_kernel<DP>;
    auto *dkv = dkv90_kernel<DP>;
    int rc = LAUNCH(fold90_kernel, grid_for(d, a->q.rows * a->H, ROW_THREADS / LANES), ROW_THREADS, 0, d->stream, *a);
    if (!rc) rc = ALLOW_SHARED(dq, dq_bytes);
    if (!rc) rc = ALLOW_SHARED(dkv, dkv_bytes);
    if (!rc) rc = LAUNCH(dq, a->n_tasks, WG_THREADS, dq_bytes, d->stream, *a);
    if (!rc && a->n_key_tasks > 0) rc = LAUNCH(dkv, a->n_key_tasks, GROUPS * WG_THREADS, dkv_bytes, d->stream, *a);
    return rc;
}

extern "C" int cu_attention_grad90(const struct cu_dev *d, const struct cu_attn_grad16 *a) {
    if (a->n_tasks <= 0) return 0;
    return a->K <= 64 ? gradient90<64>(d, a) : gradient90<128>(d, a);
}
