/* Log-probabilities of drawn tokens and the drawing itself, a block a row of logits. The sums of logprob are those of
 * tensor/ops.h, sixteen strided chains folded 8+8, 4+4, ...: all threads compute exponentials into shared memory, and
 * sixteen of them add up. The host takes the logarithm, so that its bits are the host's wherever it is needed. */
#include "cuda/bf16.cuh"

enum { THREADS = 512, CHUNK = 8192, CELL = CHUNK / THREADS };

/* Largest of x over the block; NaN is passed over. */
static __device__ __forceinline__ float block_max(float x, float *shared) {
    for (int w = 16; w >= 1; w /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, w, 32));
    __syncthreads(); /* shared may still be read from before */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) x = fmaxf(x, shared[i]);
    return x;
}

struct row_sums {
    float max, s, w;
};

/* Maximum, sum of exp(x - max) and of exp(x - max) (x - max); valid in thread 0. `e` and `d` hold CHUNK floats each. */
static __device__ struct row_sums sums_of(const float *x, int64_t V, float *e, float *d, float *shared) {
    const int tid = threadIdx.x;
    float top = MINUS_INFINITY;
    for (int64_t j = tid; j < V; j += THREADS) top = fmaxf(top, x[j]);
    struct row_sums r = {block_max(top, shared), 0, 0};
    for (int64_t j0 = 0; j0 < V; j0 += CHUNK) {
        const int n = (int)min64(CHUNK, V - j0);
        for (int j = tid; j < n; j += THREADS) {
            d[j] = x[j0 + j] - r.max;
            e[j] = exp_lane(d[j]);
        }
        __syncthreads();
        if (tid < LANES) { /* lane j takes every sixteenth; CHUNK is a multiple, so chunks join without a seam */
#pragma unroll 8
            for (int j = tid; j < n; j += LANES) {
                r.s = r.s + e[j];
                r.w = fmaf(e[j], d[j], r.w);
            }
        }
        __syncthreads();
    }
    if (tid < 32) { /* whole warps must fold; lanes 16 to 31 hold zeros of no use */
        r.s = fold_sum(r.s);
        r.w = fold_sum(r.w);
    }
    return r;
}

static __global__ void __launch_bounds__(THREADS)
    logprob_stats_kernel(struct cu_row_stats *out, struct cu_mat logits, const int32_t *targets) {
    DYNAMIC_SHARED(chunk);
    __shared__ float shared[THREADS / 32];
    const float *x = logits.p + (int64_t)blockIdx.x * logits.ld;
    const struct row_sums r = sums_of(x, logits.cols, chunk, chunk + CHUNK, shared);
    if (threadIdx.x == 0) {
        const int32_t id = targets[blockIdx.x];
        out[blockIdx.x] = {id, x[id], r.max, r.s, r.w};
    }
}

enum { SHARED = 2 * CHUNK * (int)sizeof(float) };

extern "C" int cu_logprob_stats(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits,
                                const int32_t *targets) {
    if (logits.rows <= 0) return 0;
    const int rc =
        (int)cudaFuncSetAttribute(logprob_stats_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED);
    return rc ? rc : LAUNCH(logprob_stats_kernel, logits.rows, THREADS, SHARED, d->stream, out, logits, targets);
}

/* Weights exp((x - max) / T) of a chunk, those under min_p left out; a cell is CELL neighbours. Returns this thread's
 * cell's sum. */
static __device__ float weigh_chunk(float *e, const float *x, int64_t j0, int64_t limit, float max, float scale,
                                    float min_p) {
    const int n = (int)min64(CHUNK, limit - j0);
    __syncthreads();
    for (int j = threadIdx.x; j < CHUNK; j += THREADS) {
        const float w = j < n ? exp_lane((x[j0 + j] - max) * scale) : 0.0f;
        e[j] = w < min_p ? 0.0f : w;
    }
    __syncthreads();
    float s = 0;
    for (int i = 0; i < CELL; i++) s = s + e[threadIdx.x * CELL + i];
    return s;
}

/* Running sums over the cells of a chunk, in double, in a fixed order; cum[THREADS]. */
static __device__ void scan_cells(double *cum, float cell) {
    cum[threadIdx.x] = (double)cell;
    __syncthreads();
    for (int by = 1; by < THREADS; by *= 2) {
        const double add = (int)threadIdx.x >= by ? cum[threadIdx.x - by] : 0.0;
        __syncthreads();
        cum[threadIdx.x] = cum[threadIdx.x] + add;
        __syncthreads();
    }
}

enum { CHUNKS_MAX = 1024 };

static __global__ void __launch_bounds__(THREADS)
    draw_kernel(struct cu_row_stats *out, struct cu_mat logits, int32_t limit, const struct cu_draw *how) {
    DYNAMIC_SHARED(chunk);
    __shared__ float shared[THREADS / 32];
    __shared__ float chunk_sum[CHUNKS_MAX];
    __shared__ double cum[THREADS];
    __shared__ int chosen[2];
    __shared__ double target;
    const float *x = logits.p + (int64_t)blockIdx.x * logits.ld;
    const struct cu_draw h = how[blockIdx.x];
    const int tid = threadIdx.x;
    const struct row_sums r = sums_of(x, logits.cols, chunk, chunk + CHUNK, shared);

    float top = MINUS_INFINITY;
    for (int64_t j = tid; j < limit; j += THREADS) top = fmaxf(top, x[j]);
    const float max = block_max(top, shared);
    if (h.scale == 0) { /* greedy: the first of the largest */
        int first = limit;
        for (int64_t j = tid; j < limit; j += THREADS)
            if (x[j] == max && (int)j < first) first = (int)j;
        int *const firsts = reinterpret_cast<int *>(chunk);
        __syncthreads();
        firsts[tid] = first;
        __syncthreads();
        if (tid == 0) {
            for (int i = 1; i < THREADS; i++) first = firsts[i] < first ? firsts[i] : first;
            chosen[1] = first;
        }
    } else {
        const int n_chunks = (int)ceil_div(limit, CHUNK);
        for (int k = 0; k < n_chunks; k++) {
            scan_cells(cum, weigh_chunk(chunk, x, (int64_t)k * CHUNK, limit, max, h.scale, h.min_p));
            if (tid == 0) chunk_sum[k] = (float)cum[THREADS - 1];
            __syncthreads();
        }
        if (tid == 0) {
            double all = 0, before = 0;
            for (int k = 0; k < n_chunks; k++) all = all + (double)chunk_sum[k];
            const double want = h.u * all;
            int k = 0;
            while (k + 1 < n_chunks && before + (double)chunk_sum[k] <= want) before = before + (double)chunk_sum[k++];
            chosen[0] = k;
            target = want - before;
        }
        __syncthreads();
        const int64_t j0 = (int64_t)chosen[0] * CHUNK;
        scan_cells(cum, weigh_chunk(chunk, x, j0, limit, max, h.scale, h.min_p));
        if (tid == 0) { /* the first cell whose running sum passes the target, then the element in it */
            int low = 0, high = THREADS - 1;
            while (low < high) {
                const int mid = (low + high) / 2;
                if (cum[mid] > target)
                    high = mid;
                else
                    low = mid + 1;
            }
            double sum = low ? cum[low - 1] : 0.0;
            int at = -1;
            for (int i = low * CELL; i < (low + 1) * CELL && i < limit - j0; i++) {
                if (chunk[i] > 0) at = i;
                sum = sum + (double)chunk[i];
                if (sum > target && at == i) break;
            }
            if (at < 0) /* rounding only: the last that has weight, at or before the cell */
                for (at = (int)min64(low * CELL, limit - j0 - 1); at > 0 && !(chunk[at] > 0);) at--;
            chosen[1] = (int)j0 + at;
        }
    }
    __syncthreads();
    if (tid == 0) {
        const int32_t id = max - max == 0 && chosen[1] < limit ? chosen[1] : -1;
        out[blockIdx.x] = {id, id < 0 ? 0.0f : x[id], r.max, r.s, r.w};
    }
}

extern "C" int cu_draw(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits, int32_t limit,
                       const struct cu_draw *how) {
    if (logits.rows <= 0) return 0;
    if (ceil_div(limit, CHUNK) > CHUNKS_MAX) return (int)cudaErrorInvalidValue;
    const int rc = (int)cudaFuncSetAttribute(draw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED);
    return rc ? rc : LAUNCH(draw_kernel, logits.rows, THREADS, SHARED, d->stream, out, logits, limit, how);
}
