/* Mixtures of experts (tensor/experts.h) but for their products: routing, and rows by place. */
#include "cuda/shared/bf16.cuh"
#include "tensor/ops.h"

#define ROW_LOOP(n_rows)                                                              \
    for (int64_t base = (int64_t)blockIdx.x * (ROW_THREADS / LANES); base < (n_rows); \
         base += (int64_t)gridDim.x * (ROW_THREADS / LANES))

static int64_t row_grid(const struct cu_dev *d, int64_t rows) { return grid_for(d, rows, ROW_THREADS / LANES); }

static __device__ __forceinline__ float value_at(const struct cu_rows_any &x, int64_t row, int64_t col) {
    const int64_t at = row * x.ld + col;
    return x.narrow ? bf16_float(static_cast<const uint16_t *>(x.p)[at]) : static_cast<const float *>(x.p)[at];
}
static __device__ __forceinline__ void put_at(const struct cu_rows_any &x, int64_t row, int64_t col, float v) {
    const int64_t at = row * x.ld + col;
    if (x.narrow)
        static_cast<uint16_t *>(x.p)[at] = bf16_of(v);
    else
        static_cast<float *>(x.p)[at] = v;
}

/* ---- routing ------------------------------------------------------------------------------------------------------
 */

/* The largest of a row and the sum of exp(l - largest), as softmax_row of the CPU has them. All sixteen threads get
 * both. */
static __device__ __forceinline__ float2 softmax_of(const float *l, int64_t E, int lane) {
    float m = l[0], s = 0;
    for (int64_t e = lane; e < E; e += LANES) m = l[e] > m ? l[e] : m;
    m = fold_max(m);
    for (int64_t e = lane; e < E; e += LANES) s = s + exp_lane(l[e] - m);
    return make_float2(m, fold_sum(s));
}

struct contender {
    float value, id; /* id -1: none */
};
static __device__ __forceinline__ struct contender better(struct contender a, struct contender b) {
    if (b.id < 0) return a;
    if (a.id < 0) return b;
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

/* The best of a row that is not taken yet; all sixteen threads get its id. */
static __device__ __forceinline__ int next_best(const float *l, int64_t E, int lane, uint64_t &taken) {
    struct contender b = {0, -1};
    for (int64_t e = lane, i = 0; e < E; e += LANES, i++)
        if (!(taken >> i & 1)) b = better(b, contender{l[e], (float)e});
    for (int w = LANES / 2; w >= 1; w /= 2) {
        struct contender o;
        o.value = __shfl_down_sync(FULL_WARP, b.value, w, LANES);
        o.id = __shfl_down_sync(FULL_WARP, b.id, w, LANES);
        b = better(b, o);
    }
    const int id = (int)__shfl_sync(FULL_WARP, b.id, 0, LANES);
    if (id % LANES == lane) taken |= (uint64_t)1 << (id / LANES);
    return id;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    route_kernel(const struct cu_routing r, struct cu_mat logits, int normalised, int given) {
    const int lane = threadIdx.x % LANES;
    ROW_LOOP(r.T) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, r.T - 1);
        const float *l = logits.p + t * logits.ld;
        int32_t *id = r.expert + t * r.k;
        float *weight = r.weight + t * r.k;
        const bool writes = row < r.T && lane == 0;
        const float2 s = softmax_of(l, r.E, lane);
        uint64_t taken = 0;
        for (int64_t n = 0; n < r.k && !given; n++) {
            const int e = next_best(l, r.E, lane, taken);
            if (!writes) continue;
            int64_t at = n; /* by ascending id */
            for (; at > 0 && id[at - 1] > e; at--) id[at] = id[at - 1];
            id[at] = e;
        }
        if (!writes) continue;
        float sum = 0;
        for (int64_t j = 0; j < r.k; j++) {
            const float w = exp_lane(l[id[j]] - s.x) / s.y;
            weight[j] = w;
            sum = sum + w;
        }
        for (int64_t j = 0; j < r.k && normalised; j++) weight[j] = weight[j] / sum;
    }
}

/* A block an expert: it counts what goes to experts in front of its own, and puts its pairs behind that, in order. */
static __global__ void __launch_bounds__(ROW_THREADS) sort_kernel(const struct cu_routing r) {
    __shared__ float in_warp[ROW_THREADS / 32];
    const int64_t n = r.T * r.k, e = blockIdx.x;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float front = 0; /* exact up to 2^24 */
    for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS) front = front + (r.expert[i] < e ? 1.0f : 0.0f);
    for (int w = 16; w >= 1; w /= 2) front = front + __shfl_xor_sync(FULL_WARP, front, w, 32);
    if (lane == 0) in_warp[warp] = front;
    __syncthreads();
    int64_t at = 0;
    for (int w = 0; w < ROW_THREADS / 32; w++) at += (int64_t)in_warp[w];
    __syncthreads();
    if (threadIdx.x == 0) {
        r.begin[e] = (int32_t)at;
        if (e == r.E - 1) r.begin[r.E] = (int32_t)n;
    }
    for (int64_t first = 0; first < n; first += ROW_THREADS) {
        const int64_t i = first + threadIdx.x;
        const bool mine = i < n && r.expert[i] == e;
        float sum = mine ? 1.0f : 0.0f;
        for (int by = 1; by < 32; by *= 2) {
            const float left = __shfl_sync(FULL_WARP, sum, lane >= by ? lane - by : lane, 32);
            if (lane >= by) sum = sum + left;
        }
        if (lane == 31) in_warp[warp] = sum;
        __syncthreads();
        int64_t place = at + (int64_t)sum - 1;
        for (int w = 0; w < ROW_THREADS / 32; w++) {
            if (w < warp) place += (int64_t)in_warp[w];
            at += (int64_t)in_warp[w];
        }
        if (mine) {
            r.place[i] = (int32_t)place;
            r.pair[place] = (int32_t)i;
        }
        __syncthreads();
    }
}

extern "C" int cu_route(const struct cu_dev *d, const struct cu_routing *r, struct cu_mat logits, int normalised,
                        int given) {
    if (r->T > 0) {
        const int rc =
            LAUNCH(route_kernel, row_grid(d, r->T), ROW_THREADS, 0, d->stream, *r, logits, normalised, given);
        if (rc) return rc;
    }
    return LAUNCH(sort_kernel, r->E, ROW_THREADS, 0, d->stream, *r);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    route_grad_kernel(struct cu_mat dlogits, const struct cu_routing r, const float *dweight, struct cu_mat logits,
                      int normalised) {
    const int lane = threadIdx.x % LANES;
    ROW_LOOP(r.T) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, r.T - 1);
        const int32_t *id = r.expert + t * r.k;
        const float *weight = r.weight + t * r.k, *dw = dweight + t * r.k, *l = logits.p + t * logits.ld;
        float *out = dlogits.p + t * dlogits.ld, c = 0;
        for (int64_t j = 0; j < r.k; j++) c = c + dw[j] * weight[j];
        const float2 s = softmax_of(l, r.E, lane);
        if (row >= r.T) continue;
        for (int64_t e = lane; e < r.E; e += LANES) {
            float v = normalised ? 0.0f : exp_lane(l[e] - s.x) / s.y * -c;
            for (int64_t j = 0; j < r.k; j++)
                if (id[j] == e) v = weight[j] * (dw[j] - c);
            out[e] = v;
        }
    }
}

extern "C" int cu_route_grad(const struct cu_dev *d, struct cu_mat dlogits, const struct cu_routing *r,
                             const float *dweight, struct cu_mat logits, int normalised) {
    if (r->T <= 0) return 0;
    return LAUNCH(route_grad_kernel, row_grid(d, r->T), ROW_THREADS, 0, d->stream, dlogits, *r, dweight, logits,
                  normalised);
}

static __device__ __forceinline__ int32_t first_place(const int32_t *pair, int32_t lo, int32_t hi, int64_t from) {
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (pair[mid] < from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    expert_rows_kernel(int32_t *lo, int32_t *hi, const struct cu_routing r, int64_t row, int64_t n) {
    const int64_t e = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (e >= r.E) return;
    const int32_t first = first_place(r.pair, r.begin[e], r.begin[e + 1], row * r.k);
    lo[e] = first;
    hi[e] = first_place(r.pair, first, r.begin[e + 1], (row + n) * r.k);
}

extern "C" int cu_expert_rows(const struct cu_dev *d, int32_t *lo, int32_t *hi, const struct cu_routing *r, int64_t row,
                              int64_t n) {
    return LAUNCH(expert_rows_kernel, ceil_div(r->E, ROW_THREADS), ROW_THREADS, 0, d->stream, lo, hi, *r, row, n);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------
 */

#define EACH_ELEMENT(i, n) \
    for (int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; i < (n); i += (int64_t)gridDim.x * ROW_THREADS)

static __global__ void __launch_bounds__(ROW_THREADS)
    gather_kernel(struct cu_rows_any y, struct cu_rows_any x, const struct cu_routing r) {
    EACH_ELEMENT(i, y.rows * y.cols) {
        const int64_t row = i / y.cols, col = i % y.cols;
        put_at(y, row, col, value_at(x, r.pair[row] / r.k, col));
    }
}

extern "C" int cu_expert_gather(const struct cu_dev *d, struct cu_rows_any y, struct cu_rows_any x,
                                const struct cu_routing *r) {
    const int64_t n = y.rows * y.cols;
    return n <= 0 ? 0 : LAUNCH(gather_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, y, x, *r);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    combine_kernel(struct cu_rows_any y, struct cu_mat z, struct cu_mat o, const struct cu_routing r, int weighted) {
    EACH_ELEMENT(i, y.rows * y.cols) {
        const int64_t row = i / y.cols, col = i % y.cols;
        float s = z.p ? z.p[row * z.ld + col] : 0.0f;
        for (int64_t j = row * r.k; j < (row + 1) * r.k; j++) {
            const float v = o.p[r.place[j] * o.ld + col];
            s = weighted ? fmaf(r.weight[j], v, s) : s + v;
        }
        put_at(y, row, col, s);
    }
}

extern "C" int cu_expert_combine(const struct cu_dev *d, struct cu_rows_any y, struct cu_mat z, struct cu_mat o,
                                 const struct cu_routing *r, int weighted) {
    const int64_t n = y.rows * y.cols;
    return n <= 0
               ? 0
               : LAUNCH(combine_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, y, z, o, *r, weighted);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    dot_kernel(float *dweight, struct cu_rows_any a, struct cu_rows_any b, const struct cu_routing r) {
    const int lane = threadIdx.x % LANES;
    ROW_LOOP(a.rows) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, a.rows - 1);
        float s = 0;
        for (int64_t j = lane; j < a.cols; j += LANES) s = fmaf(value_at(a, t, j), value_at(b, t, j), s);
        s = fold_sum(s);
        if (row < a.rows && lane == 0) dweight[r.pair[row]] = s;
    }
}

extern "C" int cu_expert_dot(const struct cu_dev *d, float *dweight, struct cu_rows_any a, struct cu_rows_any b,
                             const struct cu_routing *r) {
    return a.rows <= 0 ? 0 : LAUNCH(dot_kernel, row_grid(d, a.rows), ROW_THREADS, 0, d->stream, dweight, a, b, *r);
}

static __global__ void __launch_bounds__(ROW_THREADS) scale_kernel(struct cu_rows_any x, const struct cu_routing r) {
    EACH_ELEMENT(i, x.rows * x.cols) {
        const int64_t row = i / x.cols, col = i % x.cols;
        put_at(x, row, col, value_at(x, row, col) * r.weight[r.pair[row]]);
    }
}

extern "C" int cu_expert_scale(const struct cu_dev *d, struct cu_rows_any x, const struct cu_routing *r) {
    const int64_t n = x.rows * x.cols;
    return n <= 0 ? 0 : LAUNCH(scale_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, x, *r);
}

static __global__ void __launch_bounds__(ROW_THREADS)
    multiply_kernel(struct cu_mat y, const int32_t *lo, const int32_t *hi, int64_t E, float factor) {
    for (int64_t e = blockIdx.x; e < E; e += gridDim.x) {
        const int64_t first = lo[e], n = (hi[e] - first) * y.cols;
        for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS) {
            float *const at = y.p + (first + i / y.cols) * y.ld + i % y.cols;
            *at = factor * *at;
        }
    }
}

extern "C" int cu_expert_multiply(const struct cu_dev *d, struct cu_mat y, const int32_t *lo, const int32_t *hi,
                                  int64_t E, float factor) {
    return LAUNCH(multiply_kernel, E, ROW_THREADS, 0, d->stream, y, lo, hi, E, factor);
}

static __global__ void __launch_bounds__(ROW_THREADS) add16_kernel(struct cu_mat16 y, struct cu_mat x) {
    EACH_ELEMENT(i, y.rows * y.cols) {
        const int64_t row = i / y.cols, col = i % y.cols;
        uint16_t *const at = y.p + row * y.ld + col;
        *at = bf16_of(bf16_float(*at) + x.p[row * x.ld + col]);
    }
}

extern "C" int cu_add16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x) {
    const int64_t n = y.rows * y.cols;
    return n <= 0 ? 0 : LAUNCH(add16_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, y, x);
}
