/* Attention forward: softmax(q k^T) v over tiles of query pairs and keys. The contract's order needs the maximum of a
 * row's scores before the first exp. So the kernel passes over the keys twice and computes scores twice. That costs
 * half as much again in products, and needs no memory for scores, however long the sequence is. */
#include "cuda/shared/attention.cuh"

struct attn_args {
    struct cu_attn a;
    int vec_q, vec_k, vec_v;
};

template <class T>
static __global__ void __launch_bounds__(ATTN_THREADS, T::MIN_BLOCKS) attention_kernel(const struct attn_args args) {
    DYNAMIC_SHARED(shared);
    float *const sq = shared, *const skv = sq + T::ROWS * T::LD, *const sp = skv + T::KEYS * T::LD;
    const struct cu_attn &a = args.a;
    const struct cu_attn_task task = a.task[blockIdx.x];
    const int64_t K = a.K, rep = a.H / a.G, Kp = padded_dim(K), g = task.g;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, quads = quads_of(K);
    /* The last row has so many keys. */
    const int64_t n = task.past + (task.pair0 + task.pairs - 1) / rep + 1;
    const int32_t *const table = task.table >= 0 ? a.table + task.table : NULL;
    const float *const kt = a.kv + g * K * KV_BLOCK, *const vc = a.kv + g * KV_BLOCK * Kp + a.G * K * KV_BLOCK;

    stage_rows<T::ROWS, T::DP, T::LD>(sq, task.pairs, K, args.vec_q, [&](int r) {
        const int64_t p = task.pair0 + r;
        return a.q.p + (task.row + p / rep) * a.q.ld + (g * rep + p % rep) * K;
    });
    auto stage_keys = [&](int64_t j0) {
        if (table)
            stage_cached_keys<T::KEYS, T::DP, T::LD>(skv, kt + table[j0 / KV_BLOCK] * a.kv_stride, j0, n, K);
        else
            stage_rows<T::KEYS, T::DP, T::LD>(skv, n - j0, K, args.vec_k, [&](int r) {
                return a.k.p + key_row(task.row, task.past, task.past_row, j0 + r) * a.k.ld + g * K;
            });
    };
    auto stage_values = [&](int64_t j0) {
        if (table) {
            const float *const block = vc + table[j0 / KV_BLOCK] * a.kv_stride + j0 % KV_BLOCK * Kp;
            stage_rows<T::KEYS, T::DP, T::LD>(skv, n - j0, K, K % 4 == 0, [&](int r) { return block + r * Kp; });
        } else
            stage_rows<T::KEYS, T::DP, T::LD>(skv, n - j0, K, args.vec_v, [&](int r) {
                return a.v.p + key_row(task.row, task.past, task.past_row, j0 + r) * a.v.ld + g * K;
            });
    };

    int own[T::NR]; /* How many keys each of this thread's rows sees. */
    float max[T::NR], tail[T::NR], sum[T::NR], out[T::NR][T::ND], s[T::NR][T::NC];
#pragma unroll
    for (int i = 0; i < T::NR; i++) {
        const int64_t p = task.pair0 + ty * T::NR + i;
        own[i] = ty * T::NR + i < task.pairs ? (int)(task.past + p / rep + 1) : 0;
        max[i] = __int_as_float(0xff800000); /* This is -infinity. */
        tail[i] = sum[i] = 0;
#pragma unroll
        for (int e = 0; e < T::ND; e++) out[i][e] = 0;
    }

    for (int64_t j0 = 0; j0 < n; j0 += T::KEYS) {
        __syncthreads();
        stage_keys(j0);
        __syncthreads();
        dot_tile<T>(s, sq, skv, quads);
#pragma unroll
        for (int i = 0; i < T::NR; i++)
#pragma unroll
            for (int j = 0; j < T::NC; j++) {
                const int b = (int)j0 + 16 * j; /* A block of sixteen keys, one of which belongs to this lane. */
                if (b + 16 <= own[i])
                    max[i] = max[i] > s[i][j] ? max[i] : s[i][j];
                else if (b < own[i])
                    tail[i] = s[i][j];
            }
    }
#pragma unroll
    for (int i = 0; i < T::NR; i++) max[i] = max_tail(fold_max(max[i]), tail[i], own[i] % LANES);

    for (int64_t j0 = 0; j0 < n; j0 += T::KEYS) {
        if (n > T::KEYS) { /* Otherwise the scores of the first pass are still there. */
            __syncthreads();
            stage_keys(j0);
            __syncthreads();
            dot_tile<T>(s, sq, skv, quads);
        }
#pragma unroll
        for (int i = 0; i < T::NR; i++)
#pragma unroll
            for (int j = 0; j < T::NC; j++) {
                const int col = tx + 16 * j;
                const float e = (int)j0 + col < own[i] ? exp_lane(s[i][j] - max[i]) : 0.0f;
                sum[i] = sum[i] + e;
                sp[(ty * T::NR + i) * T::LDP + col] = e;
            }
        __syncthreads();
        stage_values(j0);
        __syncthreads();
        add_tile<T>(out, sp, skv, (int)min64(T::KEYS, n - j0));
    }

#pragma unroll
    for (int i = 0; i < T::NR; i++) {
        const float inv = 1.0f / fold_sum(sum[i]);
        if (own[i] == 0) continue;
        const int64_t p = task.pair0 + ty * T::NR + i, row = task.row + p / rep, h = g * rep + p % rep;
        float *const o = a.o.p + row * a.o.ld + h * K;
        each_output<T>(out[i], K, [&](int d, float x) { o[d] = x * inv; });
        if (a.stats && tx == 0) {
            a.stats[(row * a.H + h) * 2] = max[i];
            a.stats[(row * a.H + h) * 2 + 1] = inv;
        }
    }
}

template <class T> static constexpr int64_t forward_shared() {
    return (int64_t)sizeof(float) * (T::ROWS * T::LD + T::KEYS * T::LD + T::ROWS * T::LDP);
}

using tile_64 = tile<64, 4, 4>;
using tile_128 = tile<128, 4, 4>;
using tile_256 = tile<256, 2, 2>;

extern "C" int cu_attn_tile(const struct cu_dev *d, int64_t K) {
    if (K <= 64 && forward_shared<tile_64>() <= d->max_shared) return tile_64::ROWS;
    if (K <= 128 && forward_shared<tile_128>() <= d->max_shared) return tile_128::ROWS;
    if (K <= CU_ATTN_MAX_K && forward_shared<tile_256>() <= d->max_shared) return tile_256::ROWS;
    return 0;
}

template <class T> static int forward(const struct cu_dev *d, const struct attn_args &args) {
    auto *kernel = attention_kernel<T>;
    const int rc = ALLOW_SHARED(kernel, forward_shared<T>());
    if (rc) return rc;
    return LAUNCH(kernel, args.a.n_tasks, ATTN_THREADS, forward_shared<T>(), d->stream, args);
}

extern "C" int cu_attention(const struct cu_dev *d, const struct cu_attn *a) {
    if (a->n_tasks <= 0) return 0;
    const struct attn_args args = {*a, mat_vec(a->q, a->K), mat_vec(a->k, a->K), mat_vec(a->v, a->K)};
    if (a->K <= 64) return forward<tile_64>(d, args);
    if (a->K <= 128) return forward<tile_128>(d, args);
    return forward<tile_256>(d, args);
}

/* ---- decode: a few query pairs against a cache. Scores stay in shared memory; a thread takes a key, then an output
 * --- */

enum { DECODE_THREADS = 128 };

static __global__ void __launch_bounds__(DECODE_THREADS) decode_kernel(const struct cu_attn a, int64_t ld) {
    DYNAMIC_SHARED(shared);
    const struct cu_attn_task task = a.task[blockIdx.x];
    const int64_t K = a.K, rep = a.H / a.G, Kp = padded_dim(K), g = task.g;
    const int pairs = task.pairs, tid = threadIdx.x;
    const int64_t n = task.past + (task.pair0 + pairs - 1) / rep + 1;
    const int32_t *const table = a.table + task.table;
    const float *const kt = a.kv + g * K * KV_BLOCK, *const vc = a.kv + g * KV_BLOCK * Kp + a.G * K * KV_BLOCK;
    float *const sq = shared, *const inv = sq + K * CU_DECODE_PAIRS,
                 *const sc = inv + CU_DECODE_PAIRS; /* sc[pair][ld] */

    for (int64_t i = tid; i < K * CU_DECODE_PAIRS; i += DECODE_THREADS) {
        const int64_t p = i % CU_DECODE_PAIRS, d = i / CU_DECODE_PAIRS, q = task.pair0 + p;
        sq[i] = p < pairs ? a.q.p[(task.row + q / rep) * a.q.ld + (g * rep + q % rep) * K + d] : 0.0f;
    }
    __syncthreads();
    for (int64_t j = tid; j < n; j += DECODE_THREADS) {
        const float *const key = kt + table[j / KV_BLOCK] * a.kv_stride + j % KV_BLOCK;
        float s[CU_DECODE_PAIRS] = {0};
        if (pairs <= 2) { /* These are the usual shares of a grouped-query head. There are two chains, not eight. */
#pragma unroll 8
            for (int64_t d = 0; d < K; d++) {
                const float x = key[d * KV_BLOCK];
                s[0] = fmaf(sq[d * CU_DECODE_PAIRS], x, s[0]);
                s[1] = fmaf(sq[d * CU_DECODE_PAIRS + 1], x, s[1]);
            }
        } else {
#pragma unroll 4
            for (int64_t d = 0; d < K; d++) {
                const float x = key[d * KV_BLOCK];
#pragma unroll
                for (int p = 0; p < CU_DECODE_PAIRS; p++) s[p] = fmaf(sq[d * CU_DECODE_PAIRS + p], x, s[p]);
            }
        }
#pragma unroll
        for (int p = 0; p < CU_DECODE_PAIRS; p++)
            if (p < pairs) sc[p * ld + j] = s[p];
    }
    __syncthreads();
    { /* Sixteen threads work on a pair. */
        const int lane = tid % LANES, p = tid / LANES, at = p < pairs ? p : 0;
        const int64_t q = task.pair0 + at, own = task.past + q / rep + 1, full = own & ~(int64_t)(LANES - 1);
        float *const x = sc + at * ld;
        float max = __int_as_float(0xff800000), sum = 0;
        for (int64_t j = lane; j < full; j += LANES) max = max > x[j] ? max : x[j];
        max = max_tail(fold_max(max), full + lane < own ? x[full + lane] : 0.0f, (int)(own - full));
        __syncthreads(); /* Idle groups have read pair 0's scores, which must not be replaced while they read. */
        for (int64_t j = lane; j < n && p < pairs; j += LANES) {
            const float e = j < own ? exp_lane(x[j] - max) : 0.0f;
            sum = sum + e;
            x[j] = e;
        }
        const float r = 1.0f / fold_sum(sum);
        if (p < pairs && lane == 0) {
            inv[p] = r;
            if (a.stats) {
                float *const st = a.stats + ((task.row + q / rep) * a.H + g * rep + q % rep) * 2;
                st[0] = max;
                st[1] = r;
            }
        }
    }
    __syncthreads();
    for (int64_t i = tid; i < pairs * K; i += DECODE_THREADS) {
        const int64_t p = i / K, d = i % K, q = task.pair0 + p;
        const float *const w = sc + p * ld, *const v = vc + d;
        float s = 0;
        for (int64_t j0 = 0; j0 < n; j0 += KV_BLOCK) {
            const float *const block = v + table[j0 / KV_BLOCK] * a.kv_stride;
            const int m = (int)min64(KV_BLOCK, n - j0);
#pragma unroll 8
            for (int j = 0; j < m; j++) s = fmaf(w[j0 + j], block[j * Kp], s);
        }
        a.o.p[(task.row + q / rep) * a.o.ld + (g * rep + q % rep) * K + d] = s * inv[p];
    }
}

static int64_t decode_shared(int64_t pairs, int64_t keys, int64_t K) {
    return (int64_t)sizeof(float) * (K * CU_DECODE_PAIRS + CU_DECODE_PAIRS + pairs * keys);
}

extern "C" int cu_decode_fits(const struct cu_dev *d, int64_t pairs, int64_t keys, int64_t K) {
    return pairs <= CU_DECODE_PAIRS && decode_shared(pairs, keys, K) <= d->max_shared;
}

extern "C" int cu_attention_decode(const struct cu_dev *d, const struct cu_attn *a) {
    if (a->n_tasks <= 0) return 0;
    const int64_t bytes = decode_shared(a->max_pairs, a->max_keys, a->K);
    const int rc = ALLOW_SHARED(decode_kernel, bytes);
    if (rc) return rc;
    return LAUNCH(decode_kernel, a->n_tasks, DECODE_THREADS, bytes, d->stream, *a, a->max_keys);
}
