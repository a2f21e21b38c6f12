/* The gradient of attention. With P = softmax(q k^T), recomputed from stats, and delta = dO . O:
 *     dV += P^T dO,  dS = P (dO V^T - delta),  dQ = dS K,  dK += dS^T Q      (q already holds the 1/sqrt(K))
 * For dq, a block owns query pairs and walks over keys. For dk and dv, a block owns key rows and walks over all rows
 * that see them, in the order (sequence, query row, head). So every sum has one owner and a fixed order. Both compute
 * the scores. */
#include "cuda/shared/attention.cuh"

struct grad_args {
    struct cu_attn a;
    int vec_q, vec_k, vec_v, vec_o;
};

/* delta[row][head] = dO . O, by sixteen lanes for each row and head. */
static __global__ void __launch_bounds__(ROW_THREADS) delta_kernel(const struct cu_attn a) {
    const int lane = threadIdx.x % LANES;
    const int64_t n = a.q.rows * a.H;
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < n;
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES)) {
        const int64_t i = base + threadIdx.x / LANES, at = min64(i, n - 1), t = at / a.H, h = at % a.H;
        const float *const x = a.d_o.p + t * a.d_o.ld + h * a.K, *const y = a.o.p + t * a.o.ld + h * a.K;
        float s = 0;
        for (int64_t d = lane; d < a.K; d += LANES) s = fmaf(x[d], y[d], s);
        s = fold_sum(s);
        if (i < n && lane == 0) a.delta[at] = s;
    }
}

template <class T>
static __global__ void __launch_bounds__(ATTN_THREADS, T::MIN_BLOCKS) dq_kernel(const struct grad_args args) {
    DYNAMIC_SHARED(shared);
    float *const sq = shared, *const sdo = sq + T::ROWS * T::LD, *const sk = sdo + T::ROWS * T::LD,
                 *const sv = sk + T::KEYS * T::LD, *const sp = sv + T::KEYS * T::LD;
    const struct cu_attn &a = args.a;
    const struct cu_attn_task task = a.task[blockIdx.x];
    const int64_t K = a.K, rep = a.H / a.G, g = task.g;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, quads = quads_of(K);
    const int64_t n = task.past + (task.pair0 + task.pairs - 1) / rep + 1;
    const auto pair_at = [&](struct cu_mat m, int64_t p) {
        return m.p + (task.row + p / rep) * m.ld + (g * rep + p % rep) * K;
    };

    stage_rows<T::ROWS, T::DP, T::LD>(sq, task.pairs, K, args.vec_q,
                                      [&](int r) { return pair_at(a.q, task.pair0 + r); });
    stage_rows<T::ROWS, T::DP, T::LD>(sdo, task.pairs, K, args.vec_o,
                                      [&](int r) { return pair_at(a.d_o, task.pair0 + r); });
    int own[T::NR];
    float max[T::NR], inv[T::NR], delta[T::NR], out[T::NR][T::ND], s[T::NR][T::NC], dp[T::NR][T::NC];
#pragma unroll
    for (int i = 0; i < T::NR; i++) {
        const int64_t p = task.pair0 + ty * T::NR + i;
        own[i] = 0;
        max[i] = inv[i] = delta[i] = 0;
        if (ty * T::NR + i < task.pairs) {
            const int64_t at = (task.row + p / rep) * a.H + g * rep + p % rep;
            own[i] = (int)(task.past + p / rep + 1);
            max[i] = a.stats[2 * at];
            inv[i] = a.stats[2 * at + 1];
            delta[i] = a.delta[at];
        }
#pragma unroll
        for (int e = 0; e < T::ND; e++) out[i][e] = 0;
    }
    for (int64_t j0 = 0; j0 < n; j0 += T::KEYS) {
        __syncthreads();
        stage_rows<T::KEYS, T::DP, T::LD>(sk, n - j0, K, args.vec_k, [&](int r) {
            return a.k.p + key_row(task.row, task.past, task.past_row, j0 + r) * a.k.ld + g * K;
        });
        stage_rows<T::KEYS, T::DP, T::LD>(sv, n - j0, K, args.vec_v, [&](int r) {
            return a.v.p + key_row(task.row, task.past, task.past_row, j0 + r) * a.v.ld + g * K;
        });
        __syncthreads();
        dot_tile<T>(s, sq, sk, quads);
        dot_tile<T>(dp, sdo, sv, quads);
#pragma unroll
        for (int i = 0; i < T::NR; i++)
#pragma unroll
            for (int j = 0; j < T::NC; j++) {
                const int col = tx + 16 * j;
                const float w = exp_lane(s[i][j] - max[i]) * inv[i], x = w * (dp[i][j] - delta[i]);
                sp[(ty * T::NR + i) * T::LDP + col] = (int)j0 + col < own[i] ? x : 0.0f;
            }
        __syncthreads();
        add_tile<T>(out, sp, sk, (int)min64(T::KEYS, n - j0));
    }
#pragma unroll
    for (int i = 0; i < T::NR; i++) {
        if (own[i] == 0) continue;
        float *const dq = pair_at(a.dq, task.pair0 + ty * T::NR + i);
        each_output<T>(out[i], K, [&](int d, float x) { dq[d] = x; });
    }
}

/* Rows are keys here and columns are query pairs. */
template <class T>
static __global__ void __launch_bounds__(ATTN_THREADS, T::MIN_BLOCKS) dkv_kernel(const struct grad_args args) {
    DYNAMIC_SHARED(shared);
    float *const sk = shared, *const sv = sk + T::ROWS * T::LD, *const sq = sv + T::ROWS * T::LD,
                 *const sdo = sq + T::KEYS * T::LD, *const sp = sdo + T::KEYS * T::LD,
                 *const sd = sp + T::ROWS * T::LDP;
    const struct cu_attn &a = args.a;
    const struct cu_key_task task = a.key_task[blockIdx.x];
    const int64_t K = a.K, rep = a.H / a.G, g = task.g;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, quads = quads_of(K);

    stage_rows<T::ROWS, T::DP, T::LD>(sk, task.rows, K, args.vec_k,
                                      [&](int r) { return a.k.p + (task.row0 + r) * a.k.ld + g * K; });
    stage_rows<T::ROWS, T::DP, T::LD>(sv, task.rows, K, args.vec_v,
                                      [&](int r) { return a.v.p + (task.row0 + r) * a.v.ld + g * K; });
    for (int32_t n = 0; n < task.n_users; n++) {
        const struct cu_attn_user u = a.user[task.user0 + n];
        const bool self = task.row0 >= u.row && task.row0 < u.row + u.len;
        const int64_t pairs = u.len * rep;
        int pos[T::NR]; /* The place of this thread's keys among the user's. -1: the user does not see them. */
#pragma unroll
        for (int i = 0; i < T::NR; i++) {
            const int64_t r = task.row0 + ty * T::NR + i;
            if (ty * T::NR + i >= task.rows)
                pos[i] = -1;
            else if (self)
                pos[i] = (int)(u.past + r - u.row);
            else
                pos[i] = r >= u.past_row && r < u.past_row + u.past ? (int)(r - u.past_row) : -1;
        }
        float dk[T::NR][T::ND], dv[T::NR][T::ND], s[T::NR][T::NC], dp[T::NR][T::NC];
#pragma unroll
        for (int i = 0; i < T::NR; i++)
#pragma unroll
            for (int e = 0; e < T::ND; e++) dk[i][e] = dv[i][e] = 0;
        /* A sequence's own keys are seen from their own row on. */
        for (int64_t p0 = self ? (task.row0 - u.row) * rep : 0; p0 < pairs; p0 += T::KEYS) {
            const int64_t left = min64(T::KEYS, pairs - p0);
            const auto pair_at = [&](struct cu_mat m, int64_t p) {
                return m.p + (u.row + p / rep) * m.ld + (g * rep + p % rep) * K;
            };
            __syncthreads();
            stage_rows<T::KEYS, T::DP, T::LD>(sq, left, K, args.vec_q, [&](int r) { return pair_at(a.q, p0 + r); });
            stage_rows<T::KEYS, T::DP, T::LD>(sdo, left, K, args.vec_o, [&](int r) { return pair_at(a.d_o, p0 + r); });
            __syncthreads();
            dot_tile<T>(s, sk, sq, quads);
            dot_tile<T>(dp, sv, sdo, quads);
#pragma unroll
            for (int j = 0; j < T::NC; j++) {
                const int col = tx + 16 * j;
                const int64_t p = p0 + col;
                /* This pair sees keys up to this one. */
                const int seen = col < left ? (int)(u.past + p / rep) : -1;
                const int64_t at = col < left ? (u.row + p / rep) * a.H + g * rep + p % rep : 0;
                const float max = a.stats[2 * at], inv = a.stats[2 * at + 1], delta = a.delta[at];
#pragma unroll
                for (int i = 0; i < T::NR; i++) {
                    const bool on = pos[i] >= 0 && pos[i] <= seen;
                    const float w = exp_lane(s[i][j] - max) * inv, x = w * (dp[i][j] - delta);
                    sp[(ty * T::NR + i) * T::LDP + col] = on ? w : 0.0f;
                    sd[(ty * T::NR + i) * T::LDP + col] = on ? x : 0.0f;
                }
            }
            __syncthreads();
            add_tile<T>(dv, sp, sdo, (int)left);
            add_tile<T>(dk, sd, sq, (int)left);
        }
#pragma unroll
        for (int i = 0; i < T::NR; i++) {
            if (pos[i] < 0) continue;
            const int64_t r = task.row0 + ty * T::NR + i;
            float *const to_k = a.dk.p + r * a.dk.ld + g * K, *const to_v = a.dv.p + r * a.dv.ld + g * K;
            each_output<T>(dk[i], K, [&](int d, float x) { to_k[d] = to_k[d] + x; });
            each_output<T>(dv[i], K, [&](int d, float x) { to_v[d] = to_v[d] + x; });
        }
    }
}

template <class T> static constexpr int64_t dq_shared() {
    return (int64_t)sizeof(float) * (2 * T::ROWS * T::LD + 2 * T::KEYS * T::LD + T::ROWS * T::LDP);
}
template <class T> static constexpr int64_t dkv_shared() {
    return dq_shared<T>() + (int64_t)sizeof(float) * T::ROWS * T::LDP;
}

using tile_64 = tile<64, 4, 4>;
using tile_64s = tile<64, 2, 2>; /* For devices with less shared memory. */
using tile_128 = tile<128, 4, 4>;
using tile_128s = tile<128, 2, 2>;
using tile_256 = tile<256, 2, 2>;

template <class T> static int gradient(const struct cu_dev *d, const struct grad_args &args) {
    const struct cu_attn *a = &args.a;
    auto *dq = dq_kernel<T>;
    auto *dkv = dkv_kernel<T>;
    int rc = LAUNCH(delta_kernel, grid_for(d, a->q.rows * a->H, ROW_THREADS / LANES), ROW_THREADS, 0, d->stream, *a);
    if (!rc) rc = ALLOW_SHARED(dq, dq_shared<T>());
    if (!rc) rc = ALLOW_SHARED(dkv, dkv_shared<T>());
    if (!rc) rc = LAUNCH(dq, a->n_tasks, ATTN_THREADS, dq_shared<T>(), d->stream, args);
    if (!rc && a->n_key_tasks > 0) rc = LAUNCH(dkv, a->n_key_tasks, ATTN_THREADS, dkv_shared<T>(), d->stream, args);
    return rc;
}

/* Returns 1 + the index of the first tile that serves K and fits; 0: there is none. */
static int choose(const struct cu_dev *d, int64_t K) {
    const int64_t most = d->max_shared;
    if (K <= 64 && dkv_shared<tile_64>() <= most) return 1;
    if (K <= 64 && dkv_shared<tile_64s>() <= most) return 2;
    if (K <= 128 && dkv_shared<tile_128>() <= most) return 3;
    if (K <= 128 && dkv_shared<tile_128s>() <= most) return 4;
    if (K <= CU_ATTN_MAX_K && dkv_shared<tile_256>() <= most) return 5;
    return 0;
}

extern "C" int cu_attn_grad_tile(const struct cu_dev *d, int64_t K) {
    static const int rows[] = {0, tile_64::ROWS, tile_64s::ROWS, tile_128::ROWS, tile_128s::ROWS, tile_256::ROWS};
    return rows[choose(d, K)];
}

extern "C" int cu_attention_grad(const struct cu_dev *d, const struct cu_attn *a) {
    if (a->n_tasks <= 0) return 0;
    const struct grad_args args = {*a, mat_vec(a->q, a->K), mat_vec(a->k, a->K), mat_vec(a->v, a->K),
                                   mat_vec(a->d_o, a->K)};
    switch (choose(d, a->K)) {
    case 1: return gradient<tile_64>(d, args);
    case 2: return gradient<tile_64s>(d, args);
    case 3: return gradient<tile_128>(d, args);
    case 4: return gradient<tile_128s>(d, args);
    case 5: return gradient<tile_256>(d, args);
    default: return (int)cudaErrorInvalidValue;
    }
}
