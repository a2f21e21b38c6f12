/* Log-probabilities of drawn tokens and the drawing itself, a block a row of logits. The sums of logprob are those of
 * tensor/ops.h, sixteen strided chains folded 8+8, 4+4, ...: all threads compute exponentials into shared memory, and
 * sixteen of them add up a chunk while the others compute the next one. The host takes the logarithm, so that its bits
 * are the host's wherever it is needed. */
#include "cuda/bf16.cuh"

enum { THREADS = 512, PER = 8, CHUNK = THREADS * PER, CHUNKS_MAX = 256, WARPS = THREADS / 32 };

/* This thread's PER neighbours of the chunk at j0; `rest` where the row has ended. */
static __device__ __forceinline__ void load_run(float (&v)[PER], const float *x, int64_t j0, int64_t n, int vec,
                                                float rest) {
    const int64_t j = j0 + (int64_t)threadIdx.x * PER;
    if (vec && j + PER <= n) {
#pragma unroll
        for (int i = 0; i < PER; i += 4) {
            const float4 f = *reinterpret_cast<const float4 *>(x + j + i);
            v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < PER; i++) v[i] = j + i < n ? x[j + i] : rest;
}

/* The largest over the block of two values; NaN is passed over. */
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

/* Maxima of the row, and of its first `limit` elements. */
static __device__ float2 maxima(const float *x, int64_t V, int64_t limit, int vec, float2 *shared) {
    float2 m = make_float2(MINUS_INFINITY, MINUS_INFINITY);
#pragma unroll 2
    for (int64_t j0 = 0; j0 < V; j0 += CHUNK) {
        float v[PER];
        load_run(v, x, j0, V, vec, MINUS_INFINITY);
        const int64_t j = j0 + (int64_t)threadIdx.x * PER;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            m.x = fmaxf(m.x, v[i]);
            if (j + i < limit) m.y = fmaxf(m.y, v[i]);
        }
    }
    return block_max(m, shared);
}

/* What a block shares. */
struct work {
    float *e, *d; /* exponentials and their exponents: two buffers of CHUNK each, used in turn */
    float *part;  /* [CHUNKS_MAX][WARPS] sums of a warp's weights */
};

/* Weight exp((x - max) / T) of one element, 0 under min_p. */
static __device__ __forceinline__ float weight_of(float x, float max, const struct cu_draw &h) {
    const float w = exp_lane((x - max) * h.scale);
    return w < h.min_p ? 0.0f : w;
}

struct row_sums {
    float s, w;
};

/* Sums of exp(x - max) and of exp(x - max) (x - max), in the first 16 threads; and, where `how` is given, of the
 * weights by chunk and warp. */
static __device__ struct row_sums sums_of(const float *x, int64_t V, int64_t limit, float2 max, int vec,
                                          const struct cu_draw *how, const struct work &k) {
    const int tid = threadIdx.x;
    struct row_sums r = {0, 0};
    int turn = 0;
    float v[PER], next[PER];
    load_run(next, x, 0, V, vec, MINUS_INFINITY);
    for (int64_t j0 = 0; j0 < V; j0 += CHUNK, turn++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) v[i] = next[i];
        if (j0 + CHUNK < V) load_run(next, x, j0 + CHUNK, V, vec, MINUS_INFINITY); /* while this one is worked on */
        const int64_t j = j0 + (int64_t)tid * PER;
        float *const e = k.e + turn % 2 * CHUNK + tid * PER, *const d = k.d + turn % 2 * CHUNK + tid * PER;
        /* Four at a time: single words of threads eight words apart would share banks. */
#pragma unroll
        for (int i = 0; i < PER; i += 4) {
            const float4 f = make_float4(v[i] - max.x, v[i + 1] - max.x, v[i + 2] - max.x, v[i + 3] - max.x);
            *reinterpret_cast<float4 *>(d + i) = f;
            *reinterpret_cast<float4 *>(e + i) =
                make_float4(exp_lane(f.x), exp_lane(f.y), exp_lane(f.z), exp_lane(f.w));
        }
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (how && j + i < limit) sum = sum + weight_of(v[i], max.y, *how);
        if (how) {
            sum = warp_sum(sum);
            if (tid % 32 == 0) k.part[turn * WARPS + tid / 32] = sum;
        }
        __syncthreads();   /* one is enough: these buffers are written again after the next */
        if (tid < LANES) { /* lane j takes every sixteenth; CHUNK is a multiple, so chunks join without a seam */
            const int n = (int)min64(CHUNK, V - j0);
            const float *const ce = k.e + turn % 2 * CHUNK, *const cd = k.d + turn % 2 * CHUNK;
#pragma unroll 16
            for (int i = tid; i < n; i += LANES) {
                r.s = r.s + ce[i];
                r.w = fmaf(ce[i], cd[i], r.w);
            }
        }
    }
    if (tid < 32) { /* whole warps must fold; lanes 16 to 31 hold zeros of no use */
        r.s = fold_sum(r.s);
        r.w = fold_sum(r.w);
    }
    return r;
}

enum { SHARED = (4 * CHUNK + CHUNKS_MAX * WARPS) * (int)sizeof(float) };

static __global__ void __launch_bounds__(THREADS)
    logprob_stats_kernel(struct cu_row_stats *out, struct cu_mat logits, const int32_t *targets, int vec) {
    DYNAMIC_SHARED(shared);
    __shared__ float2 tops[WARPS];
    const float *x = logits.p + (int64_t)blockIdx.x * logits.ld;
    const struct work k = {shared, shared + 2 * CHUNK, shared + 4 * CHUNK};
    const float2 max = maxima(x, logits.cols, 0, vec, tops);
    const struct row_sums r = sums_of(x, logits.cols, 0, max, vec, nullptr, k);
    if (threadIdx.x == 0) {
        const int32_t id = targets[blockIdx.x];
        out[blockIdx.x] = {id, x[id], max.x, r.s, r.w};
    }
}

static int row_vec(struct cu_mat logits) { return aligned16(logits.p, logits.ld); }

extern "C" int cu_logprob_stats(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits,
                                const int32_t *targets) {
    if (logits.rows <= 0) return 0;
    const int rc =
        (int)cudaFuncSetAttribute(logprob_stats_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED);
    return rc ? rc
              : LAUNCH(logprob_stats_kernel, logits.rows, THREADS, SHARED, d->stream, out, logits, targets,
                       row_vec(logits));
}

/* x[j] becomes g (onehot[j] - exp(x[j] - max) / sum), a block a row. */
static __global__ void __launch_bounds__(THREADS)
    logprob_grad_row_kernel(struct cu_mat logits, const int32_t *targets, const float *g, int vec) {
    DYNAMIC_SHARED(shared);
    __shared__ float2 tops[WARPS];
    __shared__ float total;
    float *const x = logits.p + (int64_t)blockIdx.x * logits.ld;
    const int64_t V = logits.cols, target = targets[blockIdx.x];
    const struct work k = {shared, shared + 2 * CHUNK, shared + 4 * CHUNK};
    const float2 max = maxima(x, V, 0, vec, tops);
    const struct row_sums r = sums_of(x, V, 0, max, vec, nullptr, k);
    if (threadIdx.x == 0) total = r.s;
    __syncthreads();
    const float gt = g[blockIdx.x], c = -gt / total;
#pragma unroll 2
    for (int64_t j0 = 0; j0 < V; j0 += CHUNK) {
        float v[PER];
        load_run(v, x, j0, V, vec, 0.0f);
        const int64_t j = j0 + (int64_t)threadIdx.x * PER;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = c * exp_lane(v[i] - max.x);
            if (j + i == target) v[i] = v[i] + gt;
        }
        if (vec && j + PER <= V) {
#pragma unroll
            for (int i = 0; i < PER; i += 4)
                *reinterpret_cast<float4 *>(x + j + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
            continue;
        }
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (j + i < V) x[j + i] = v[i];
    }
}

extern "C" int cu_logprob_grad_long(const struct cu_dev *d, struct cu_mat logits, const int32_t *targets,
                                    const float *g) {
    if (logits.rows <= 0) return 0;
    const int rc =
        (int)cudaFuncSetAttribute(logprob_grad_row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED);
    return rc ? rc
              : LAUNCH(logprob_grad_row_kernel, logits.rows, THREADS, SHARED, d->stream, logits, targets, g,
                       row_vec(logits));
}

/* The same where logprob has just left the maximum and the sum: pieces of PIECE elements, and no order to keep. */
enum { PIECE = 4 * CHUNK };
static __global__ void __launch_bounds__(THREADS)
    logprob_grad_known_kernel(struct cu_mat logits, const int32_t *targets, const float *g,
                              const struct cu_row_stats *stats, int vec) {
    const int64_t V = logits.cols, pieces = ceil_div(V, PIECE), row = blockIdx.x / pieces;
    const int64_t begin = blockIdx.x % pieces * PIECE, end = min64(begin + PIECE, V), target = targets[row];
    float *const x = logits.p + row * logits.ld;
    const float max = stats[row].max, gt = g[row], c = -gt / stats[row].s;
    for (int64_t j = begin + (int64_t)threadIdx.x * 4; j < end; j += THREADS * 4) {
        float v[4];
        if (vec && j + 4 <= end) {
            const float4 f = *reinterpret_cast<const float4 *>(x + j);
            v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = j + i < end ? x[j + i] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = c * exp_lane(v[i] - max);
            if (j + i == target) v[i] = v[i] + gt;
        }
        if (vec && j + 4 <= end) {
            *reinterpret_cast<float4 *>(x + j) = make_float4(v[0], v[1], v[2], v[3]);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (j + i < end) x[j + i] = v[i];
    }
}

extern "C" int cu_logprob_grad_known(const struct cu_dev *d, struct cu_mat logits, const int32_t *targets,
                                     const float *g, const struct cu_row_stats *stats) {
    if (logits.rows <= 0) return 0;
    return LAUNCH(logprob_grad_known_kernel, logits.rows * ceil_div(logits.cols, PIECE), THREADS, 0, d->stream, logits,
                  targets, g, stats, row_vec(logits));
}

/* The id at which the running sum of weights passes u times their total: chunk, warp and element in turn, each sum in
 * an order of its own that the row alone decides. By one thread but for the weights of the chunk. */
static __device__ int pick(const float *x, int64_t limit, float max, int vec, const struct cu_draw &h,
                           const struct work &k, int *chosen, double *target) {
    const int chunks = (int)ceil_div(limit, (int64_t)CHUNK), tid = threadIdx.x;
    double *const totals = reinterpret_cast<double *>(k.e); /* [chunks] */
    __syncthreads();                                        /* the chains have been read */
    for (int c = tid; c < chunks; c += THREADS) {
        double sum = 0;
        for (int w = 0; w < WARPS; w++) sum = sum + (double)k.part[c * WARPS + w];
        totals[c] = sum;
    }
    __syncthreads();
    if (tid == 0) {
        double all = 0, before = 0;
        for (int c = 0; c < chunks; c++) all = all + totals[c];
        const double want = h.u * all;
        int c = 0, w = 0;
        while (c + 1 < chunks && before + totals[c] <= want) before = before + totals[c++];
        while (w + 1 < WARPS && before + (double)k.part[c * WARPS + w] <= want)
            before = before + (double)k.part[c * WARPS + w++];
        chosen[0] = c;
        chosen[1] = w;
        *target = want - before;
    }
    __syncthreads();
    float *const weights = k.d; /* [CHUNK] */
    float v[PER];
    const int64_t j0 = (int64_t)chosen[0] * CHUNK;
    load_run(v, x, j0, limit, vec, MINUS_INFINITY);
#pragma unroll
    for (int i = 0; i < PER; i++) weights[tid * PER + i] = weight_of(v[i], max, h);
    __syncthreads();
    int at = -1;
    if (tid == 0) {
        const int first = chosen[1] * 32 * PER;
        double sum = 0;
        for (int i = first; i < first + 32 * PER; i++) {
            if (!(weights[i] > 0)) continue;
            at = i;
            sum = sum + (double)weights[i];
            if (sum > *target) break;
        }
        if (at < 0) /* rounding only: the nearest that has weight */
            for (at = first; at > 0 && !(weights[at] > 0);) at--;
    }
    return (int)j0 + at;
}

static __global__ void __launch_bounds__(THREADS)
    draw_kernel(struct cu_row_stats *out, struct cu_mat logits, int32_t limit, const struct cu_draw *how, int vec) {
    DYNAMIC_SHARED(shared);
    __shared__ float2 tops[WARPS];
    __shared__ int chosen[2];
    __shared__ double target;
    const float *x = logits.p + (int64_t)blockIdx.x * logits.ld;
    const struct work k = {shared, shared + 2 * CHUNK, shared + 4 * CHUNK};
    const struct cu_draw h = how[blockIdx.x];
    const int tid = threadIdx.x;
    const float2 max = maxima(x, logits.cols, limit, vec, tops);
    const struct row_sums r = sums_of(x, logits.cols, limit, max, vec, h.scale > 0 ? &h : nullptr, k);
    int id;
    if (h.scale > 0) {
        id = pick(x, limit, max.y, vec, h, k, chosen, &target);
    } else { /* greedy: the first of the largest */
        int first = limit;
        for (int64_t j0 = 0; j0 < limit; j0 += CHUNK) {
            float v[PER];
            load_run(v, x, j0, limit, vec, MINUS_INFINITY);
#pragma unroll
            for (int i = PER - 1; i >= 0; i--) {
                const int64_t j = j0 + (int64_t)tid * PER + i;
                if (v[i] == max.y && j < first) first = (int)j;
            }
        }
        int *const firsts = reinterpret_cast<int *>(k.e);
        __syncthreads();
        firsts[tid] = first;
        __syncthreads();
        for (int i = 0; tid == 0 && i < THREADS; i++) first = firsts[i] < first ? firsts[i] : first;
        id = first;
    }
    if (tid == 0) {
        if (!(max.y - max.y == 0) || id >= limit) id = -1; /* NaN or infinite */
        out[blockIdx.x] = {id, id < 0 ? 0.0f : x[id], max.x, r.s, r.w};
    }
}

extern "C" int cu_draw(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits, int32_t limit,
                       const struct cu_draw *how) {
    if (logits.rows <= 0) return 0;
    if (ceil_div(logits.cols, (int64_t)CHUNK) > CHUNKS_MAX) return (int)cudaErrorInvalidValue;
    const int rc = (int)cudaFuncSetAttribute(draw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED);
    return rc ? rc
              : LAUNCH(draw_kernel, logits.rows, THREADS, SHARED, d->stream, out, logits, limit, how, row_vec(logits));
}
