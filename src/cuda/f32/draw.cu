/* Log-probabilities of drawn tokens, their gradient, and the drawing itself, for long rows of logits.
 *
 * A block of the first kernel takes a chunk of a row and reads it once. It finds the chunk's maximum and, in the order
 * of tensor/ops.h, its sums; for a draw it also finds the sums of the weights of each warp's run. Then a block of the
 * second kernel, one a row, puts the chunks together and picks. These are two kernels because the second needs more
 * registers and waits more, while as many blocks as possible of the first are to run at a time. The host takes the
 * logarithm, so that its bits are the host's wherever it is needed. */
#include "cuda/shared/bf16.cuh"
#include "tensor/ops.h"

enum { THREADS = 512, PER = 8, CHUNK = THREADS * PER, CHUNKS_MAX = 256, WARPS = CUDA_CHUNK_WARPS };
static_assert((int)CHUNK == (int)LOGIT_CHUNK, "the order of tensor/ops.h");
static_assert((int)WARPS == THREADS / 32, "the warps of a chunk");

/* What is known about a chunk. */
struct chunk_sums {
    float max, s, w;   /* Of all its ids. */
    float top, first;  /* top: the largest logit of an id below the limit. first: the first id with that logit, counted
                          from the chunk's begin. */
    float part[WARPS]; /* Sums of exp((x - top) / T), of ids below the limit. */
};
static_assert(sizeof(struct chunk_sums) == (int)CUDA_CHUNK_FLOATS * sizeof(float), "as cuda_chunks_bytes counts");

/* Which element of a chunk is a thread's i-th. With RUN a thread has PER neighbours. Without it, it has groups of four,
 * which lie beside those of the threads beside it. */
template <bool RUN> static __device__ __forceinline__ int place(int i) {
    return RUN ? (int)threadIdx.x * PER + i : i / 4 * (4 * THREADS) + (int)threadIdx.x * 4 + i % 4;
}

/* Reads this thread's elements of the chunk at j0. Elements behind the end of the row become `rest`. */
template <bool RUN>
static __device__ __forceinline__ void load_run(float (&v)[PER], const float *x, int64_t j0, int64_t n, int vec,
                                                float rest) {
#pragma unroll
    for (int i = 0; i < PER; i += 4) {
        const int64_t j = j0 + place<RUN>(i);
        if (vec && j + 4 <= n) {
            const float4 f = *reinterpret_cast<const float4 *>(x + j);
            v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) v[i + e] = j + e < n ? x[j + e] : rest;
        }
    }
}

/* The largest of two values over the block. NaN is passed over. */
static __device__ __forceinline__ float2 block_max(float2 m, float2 *shared) {
    for (int w = 16; w >= 1; w /= 2) {
        m.x = fmaxf(m.x, __shfl_xor_sync(FULL_WARP, m.x, w, 32));
        m.y = fmaxf(m.y, __shfl_xor_sync(FULL_WARP, m.y, w, 32));
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) {
        m.x = fmaxf(m.x, shared[i].x);
        m.y = fmaxf(m.y, shared[i].y);
    }
    return m;
}

static __device__ __forceinline__ float finite_or_zero(float m) { return m == MINUS_INFINITY ? 0.0f : m; }

/* The weight exp((x - max) / T) of one element. It is 0 under min_p. */
static __device__ __forceinline__ float weight_of(float x, float max, const struct cu_draw &h) {
    const float w = exp_lane((x - max) * h.scale);
    return w < h.min_p ? 0.0f : w;
}

/* What the threads of a block share about a chunk: its exponentials and exponents, and the maxima and first ids of
 * warps. */
struct draw_work {
    float *e, *d; /* [CHUNK] */
    float2 *tops; /* [WARPS] */
    float *firsts;
};
/* What the threads of a block share about a row: the maxima, factors, pairs of sums and totals of its chunks and, to
 * pick from, the weights of each warp's run. */
struct row_work {
    float *max, *top, *scale, *sums; /* [CHUNKS_MAX], [2 * CHUNKS_MAX] */
    double *total;                   /* [CHUNKS_MAX] */
    float *part, *weights;           /* [CHUNKS_MAX][WARPS], [CHUNK] */
    double *lane;                    /* [32] */
    int *chosen;                     /* [2]: the chunk and the warp that were chosen. */
};

/* Computes the sums of a chunk. All of them end up in the first thread, part[] in the first thread of each warp. */
template <bool DRAW>
static __device__ void chunk_of(struct chunk_sums *out, const float *x, int64_t V, int64_t limit, int64_t j0, int vec,
                                const struct cu_draw *how, const struct draw_work &k) {
    const int tid = threadIdx.x;
    const bool weigh = DRAW && how->scale > 0;
    /* ^For a draw: how many of this thread's ids are below the limit. */
    const int below = DRAW ? (int)max64(0, min64(limit - j0 - tid * PER, PER)) : 0;
    float v[PER];
    load_run<DRAW>(v, x, j0, V, vec, MINUS_INFINITY);
    float2 max = make_float2(MINUS_INFINITY, MINUS_INFINITY);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        max.x = fmaxf(max.x, v[i]);
        if (DRAW && i < below) max.y = fmaxf(max.y, v[i]);
    }
    max = block_max(max, k.tops);
    const float own = finite_or_zero(max.x), top = finite_or_zero(max.y);
    const bool same = weigh && how->scale == 1.0f && top == own;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i += 4) {
        float e[4], d[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            d[q] = v[i + q] - own;
            e[q] = exp_lane(d[q]);
            if (weigh && i + q < below) sum = sum + (same ? e[q] : exp_lane((v[i + q] - top) * how->scale));
        }
        *reinterpret_cast<float4 *>(k.e + place<DRAW>(i)) = make_float4(e[0], e[1], e[2], e[3]);
        *reinterpret_cast<float4 *>(k.d + place<DRAW>(i)) = make_float4(d[0], d[1], d[2], d[3]);
    }
    if (weigh) {
        sum = warp_sum(sum);
        if (tid % 32 == 0) out->part[tid / 32] = sum;
    } else if (DRAW) { /* The draw is greedy. */
        float first = CHUNK;
#pragma unroll
        for (int i = PER - 1; i >= 0; i--)
            if (i < below && v[i] == max.y) first = (float)(tid * PER + i);
        for (int w = 16; w >= 1; w /= 2) first = fminf(first, __shfl_xor_sync(FULL_WARP, first, w, 32));
        if (tid % 32 == 0) k.firsts[tid / 32] = first;
    }
    __syncthreads();
    if (tid >= 32) return;
    float s = 0, w = 0;
    if (tid < LANES) {
        const int n = (int)min64(CHUNK, V - j0);
#pragma unroll 16
        for (int i = tid; i < n; i += LANES) {
            s = s + k.e[i];
            w = fmaf(k.e[i], k.d[i], w);
        }
    }
    s = fold_sum(s);
    w = fold_sum(w);
    if (tid > 0) return;
    float first = CHUNK;
    for (int i = 0; DRAW && !weigh && i < WARPS; i++) first = fminf(first, k.firsts[i]);
    out->max = max.x, out->s = s, out->w = w, out->top = max.y, out->first = first;
}

struct row_sums {
    float max, top, s, w;
};

/* Computes the sums of a row. s and w end up in the first thread only. k.scale gets the factors of the chunks'
 * weights. */
static __device__ struct row_sums row_of_chunks(const struct chunk_sums *sums, int chunks, float scale,
                                                const struct row_work &k) {
    struct row_sums r = {MINUS_INFINITY, MINUS_INFINITY, 0, 0};
    for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
        k.max[c] = sums[c].max;
        k.top[c] = sums[c].top;
        k.sums[2 * c] = sums[c].s;
        k.sums[2 * c + 1] = sums[c].w;
    }
    __syncthreads();
    for (int c = 0; c < chunks; c++) {
        r.max = fmaxf(r.max, k.max[c]);
        r.top = fmaxf(r.top, k.top[c]);
    }
    for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
        k.scale[c] = exp_lane((finite_or_zero(k.top[c]) - r.top) * scale);
        k.total[c] = (double)exp_lane(finite_or_zero(k.max[c]) - r.max);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int c = 0; c < chunks; c++) {
            const float f = (float)k.total[c];
            r.s = fmaf(f, k.sums[2 * c], r.s);
            r.w = fmaf(f, fmaf(k.sums[2 * c], finite_or_zero(k.max[c]) - r.max, k.sums[2 * c + 1]), r.w);
        }
    return r;
}

/* Returns, in the first thread, the id at which the running sum of weights passes u times their total. Chunk, warp,
 * thread and element are found in turn. Each sum has an order of its own, which depends only on the row. */
static __device__ int pick(const struct chunk_sums *sums, const float *x, int64_t limit, float max, int vec,
                           const struct cu_draw &h, const struct row_work &k) {
    const int chunks = (int)ceil_div(limit, (int64_t)CHUNK), tid = threadIdx.x;
    float *const part = k.part;
    float v[PER];
    __syncthreads(); /* By now the first thread has read the totals. */
    if (h.min_p > 0) {
        /* Only now is it known which weights count. */
        for (int c = 0; c < chunks; c++) {
            float sum = 0;
            load_run<true>(v, x, (int64_t)c * CHUNK, limit, vec, MINUS_INFINITY);
#pragma unroll
            for (int i = 0; i < PER; i++) sum = sum + weight_of(v[i], max, h);
            sum = warp_sum(sum);
            if (tid % 32 == 0) part[c * WARPS + tid / 32] = sum;
        }
    } else {
        for (int i = tid; i < chunks * WARPS; i += THREADS)
            part[i] = sums[i / WARPS].part[i % WARPS] * k.scale[i / WARPS];
    }
    __syncthreads();
    for (int c = tid; c < chunks; c += THREADS) {
        double sum = 0;
        for (int w = 0; w < WARPS; w++) sum = sum + (double)part[c * WARPS + w];
        k.total[c] = sum;
    }
    __syncthreads();
    double target = 0;
    if (tid == 0) {
        double all = 0, before = 0;
        for (int c = 0; c < chunks; c++) all = all + k.total[c];
        const double want = h.u * all;
        int c = 0, w = 0;
        while (c + 1 < chunks && before + k.total[c] <= want) before = before + k.total[c++];
        while (w + 1 < WARPS && before + (double)part[c * WARPS + w] <= want)
            before = before + (double)part[c * WARPS + w++];
        k.chosen[0] = c;
        k.chosen[1] = w;
        target = want - before;
    }
    __syncthreads();
    float *const weights = k.weights; /* Only those of the chosen warp are needed. */
    const int first = k.chosen[1] * 32 * PER;
    const int64_t j0 = (int64_t)k.chosen[0] * CHUNK;
    if (tid / 32 == k.chosen[1]) {
        double sum = 0;
        load_run<true>(v, x, j0, limit, vec, MINUS_INFINITY);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            weights[tid * PER + i] = weight_of(v[i], max, h);
            sum = sum + (double)weights[tid * PER + i];
        }
        k.lane[tid % 32] = sum;
    }
    __syncthreads();
    if (tid > 0) return 0;
    double sum = 0;
    int t = 0, at = -1;
    while (t + 1 < 32 && sum + k.lane[t] <= target) sum = sum + k.lane[t++];
    for (int i = first + t * PER; i < first + 32 * PER; i++) {
        if (!(weights[i] > 0)) continue;
        at = i;
        sum = sum + (double)weights[i];
        if (sum > target) break;
    }
    /* Only rounding leads here: the nearest id that has weight is taken. */
    if (at < 0)
        for (at = first + t * PER; at > first && !(weights[at] > 0);) at--;
    return (int)j0 + at;
}

/* One block works on a chunk. Without DRAW it computes log-probabilities, and `how` is NULL. One thread in 32 adds up a
 * chunk's exponentials, so as many blocks as fit are to run at a time. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 890
#define CHUNK_BLOCKS 3 /* A multiprocessor has 1536 threads. */
#else
#define CHUNK_BLOCKS 4
#endif
template <bool DRAW>
static __global__ void __launch_bounds__(THREADS, CHUNK_BLOCKS)
    chunk_kernel(struct chunk_sums *sums, struct cu_mat logits, int32_t limit, const struct cu_draw *how, int chunks,
                 int vec) {
    __shared__ __align__(16) float e[CHUNK], d[CHUNK];
    __shared__ float2 tops[WARPS];
    __shared__ float firsts[WARPS];
    const struct draw_work k = {e, d, tops, firsts};
    const int64_t row = blockIdx.x / (unsigned)chunks, c = blockIdx.x % (unsigned)chunks;
    let_next_begin();
    struct cu_draw h = {0, 0, 0};
    if (DRAW) h = how[row];
    chunk_of<DRAW>(sums + row * chunks + c, logits.p + row * logits.ld, logits.cols, limit, c * CHUNK, vec,
                   DRAW ? &h : nullptr, k);
}

/* One block works on a row, from its chunks' sums. Without DRAW it computes the log-probabilities of the targets; then
 * blocks may have any width. */
template <bool DRAW>
static __global__ void __launch_bounds__(THREADS)
    row_kernel(struct cu_row_stats *out, int32_t *drawn, struct cu_mat logits, int32_t limit, const int32_t *targets,
               const struct cu_draw *how, const struct chunk_sums *sums, int chunks, int vec) {
    __shared__ __align__(16) float part[DRAW ? CHUNKS_MAX * WARPS : 1], weights[DRAW ? (int)CHUNK : 1];
    __shared__ float max[CHUNKS_MAX], top[CHUNKS_MAX], scale[CHUNKS_MAX], pairs[2 * CHUNKS_MAX];
    __shared__ double total[CHUNKS_MAX], lane[32];
    __shared__ int chosen[2];
    const struct row_work k = {max, top, scale, pairs, total, part, weights, lane, chosen};
    const int64_t row = blockIdx.x;
    const float *x = logits.p + row * logits.ld;
    const struct chunk_sums *const mine = sums + row * chunks;
    wait_for_before();
    struct cu_draw h = {0, 0, 0};
    if (DRAW) h = how[row];
    const struct row_sums r = row_of_chunks(mine, chunks, h.scale, k);
    int id = 0;
    if (!DRAW) {
        id = targets[row];
    } else if (h.scale > 0) {
        id = pick(mine, x, limit, r.top, vec, h, k);
    } else { /* Greedy: the first of the largest logits. */
        int at = 0;
        while (at + 1 < chunks && !(k.top[at] == r.top)) at++;
        id = at * CHUNK + (int)mine[at].first;
    }
    if (threadIdx.x > 0) return;
    if (DRAW && (!(r.top - r.top == 0) || id >= limit)) id = -1; /* The largest logit is NaN or infinite. */
    out[row] = {id, id < 0 ? 0.0f : x[id], r.max, r.s, r.w};
    if (DRAW) drawn[row] = id;
}

static int row_vec(struct cu_mat logits) { return aligned16(logits.p, logits.ld); }

extern "C" int cu_logprob_stats(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits,
                                const int32_t *targets, void *scratch) {
    enum { FEW = 64 };
    const int64_t chunks = ceil_div(logits.cols, (int64_t)CHUNK);
    struct chunk_sums *const sums = static_cast<struct chunk_sums *>(scratch);
    if (logits.rows <= 0) return 0;
    if (chunks > CHUNKS_MAX) return (int)cudaErrorInvalidValue;
    const int vec = row_vec(logits), rc = LAUNCH(chunk_kernel<false>, logits.rows * chunks, THREADS, 0, d->stream, sums,
                                                 logits, 0, nullptr, (int)chunks, vec);
    return rc ? rc
              : LAUNCH_SOON(row_kernel<false>, logits.rows, FEW, 0, d, out, nullptr, logits, 0, targets, nullptr, sums,
                            (int)chunks, vec);
}

extern "C" int cu_draw(const struct cu_dev *d, struct cu_row_stats *out, int32_t *drawn, struct cu_mat logits,
                       int32_t limit, const struct cu_draw *how, void *scratch) {
    const int64_t chunks = ceil_div(logits.cols, (int64_t)CHUNK);
    struct chunk_sums *const sums = static_cast<struct chunk_sums *>(scratch);
    if (logits.rows <= 0) return 0;
    if (chunks > CHUNKS_MAX) return (int)cudaErrorInvalidValue;
    const int vec = row_vec(logits), rc = LAUNCH(chunk_kernel<true>, logits.rows * chunks, THREADS, 0, d->stream, sums,
                                                 logits, limit, how, (int)chunks, vec);
    return rc ? rc
              : LAUNCH_SOON(row_kernel<true>, logits.rows, THREADS, 0, d, out, drawn, logits, limit, nullptr, how, sums,
                            (int)chunks, vec);
}

/* x = -g / s exp(x - max), and g more at the target. Where `rounded` is not NULL (then vec is set), the result goes
 * only there. */
static __global__ void __launch_bounds__(THREADS)
    logits_grad_kernel(struct cu_mat logits, uint16_t *rounded, const int32_t *targets,
                       const struct cu_row_stats *stats, const float *g, int chunks, int vec) {
    const int64_t row = blockIdx.x / (unsigned)chunks, j0 = (int64_t)(blockIdx.x % (unsigned)chunks) * CHUNK;
    const int64_t V = logits.cols;
    float *x = logits.p + row * logits.ld, v[PER];
    const float max = stats[row].max, c = -g[row] / stats[row].s;
    const int64_t target = targets[row];
    load_run<false>(v, x, j0, V, vec, 0.0f);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] = c * exp_lane(v[i] - max);
        if (j0 + place<false>(i) == target) v[i] = v[i] + g[row];
    }
#pragma unroll
    for (int i = 0; i < PER; i += 4) {
        const int64_t j = j0 + place<false>(i);
        if (vec && j + 4 <= V) {
            if (!rounded)
                *reinterpret_cast<float4 *>(x + j) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
            else
                *reinterpret_cast<uint2 *>(rounded + row * V + j) =
                    make_uint2(bf16_pair(v[i], v[i + 1]), bf16_pair(v[i + 2], v[i + 3]));
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (j + e < V) x[j + e] = v[i + e];
        }
    }
}

extern "C" int cu_logits_grad(const struct cu_dev *d, struct cu_mat logits, uint16_t *rounded, const int32_t *targets,
                              const struct cu_row_stats *stats, const float *g) {
    const int64_t chunks = ceil_div(logits.cols, (int64_t)CHUNK);
    if (logits.rows <= 0) return 0;
    if (rounded && (logits.cols % PER != 0 || !row_vec(logits))) return (int)cudaErrorInvalidValue;
    return LAUNCH(logits_grad_kernel, logits.rows * chunks, THREADS, 0, d->stream, logits, rounded, targets, stats, g,
                  (int)chunks, row_vec(logits));
}
