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

/* A row's logits as its sixteen threads have them: number lane + 16 i of them is at(i). Rows of up to 16 EACH logits
 * lie in registers; EACH 0: in memory. */
template <int EACH> struct row_logits {
    const float *l;
    int64_t E;
    int lane;
    float v[EACH > 0 ? EACH : 1];

    __device__ __forceinline__ row_logits(const float *from, int64_t n, int self) : l(from), E(n), lane(self) {
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = has(i) ? l[lane + i * LANES] : 0.0f;
    }
    __device__ __forceinline__ int each() const { return EACH > 0 ? EACH : (int)ceil_div(E, LANES); }
    __device__ __forceinline__ bool has(int i) const { return lane + i * LANES < E; }
    __device__ __forceinline__ float at(int i) const { return EACH > 0 ? v[EACH > 0 ? i : 0] : l[lane + i * LANES]; }
};

/* The largest of a row and the sum of exp(l - largest), as softmax_row of the CPU has them. All sixteen threads get
 * both. */
template <int EACH> static __device__ __forceinline__ float2 softmax_of(const struct row_logits<EACH> &l) {
    float m = l.l[0], s = 0;
#pragma unroll
    for (int i = 0; i < l.each(); i++)
        if (l.has(i)) m = l.at(i) > m ? l.at(i) : m;
    m = fold_max(m);
#pragma unroll
    for (int i = 0; i < l.each(); i++)
        if (l.has(i)) s = s + exp_lane(l.at(i) - m);
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
template <int EACH> static __device__ __forceinline__ int next_best(const struct row_logits<EACH> &l, uint64_t &taken) {
    struct contender b = {0, -1};
#pragma unroll
    for (int i = 0; i < l.each(); i++)
        if (l.has(i) && !(taken >> i & 1)) b = better(b, contender{l.at(i), (float)(l.lane + i * LANES)});
    for (int w = LANES / 2; w >= 1; w /= 2) {
        struct contender o;
        o.value = __shfl_down_sync(FULL_WARP, b.value, w, LANES);
        o.id = __shfl_down_sync(FULL_WARP, b.id, w, LANES);
        b = better(b, o);
    }
    const int id = (int)__shfl_sync(FULL_WARP, b.id, 0, LANES);
    if (id % LANES == l.lane) taken |= (uint64_t)1 << (id / LANES);
    return id;
}

/* The places of so few pairs that one block has them all, by counting for each the pairs in front of it. chosen: the
 * pairs' experts, in shared memory. */
static __device__ __forceinline__ void sort_few(const struct cu_routing &r, const int *chosen) {
    const int n = (int)(r.T * r.k), self = threadIdx.x;
    for (int e = self; e <= (int)r.E; e += ROW_THREADS) {
        int front = 0;
        for (int i = 0; i < n; i++) front += chosen[i] < e;
        r.begin[e] = front;
    }
    if (self >= n) return;
    int place = 0;
    for (int i = 0; i < n; i++) place += chosen[i] < chosen[self] || (chosen[i] == chosen[self] && i < self);
    r.place[self] = place;
    r.pair[place] = self;
}

/* Up to sixteen experts a row, one a thread. SORTS: there are no more rows than one block has, and it sorts, too. */
template <int EACH, bool SORTS>
static __global__ void __launch_bounds__(ROW_THREADS)
    route_kernel(const struct cu_routing r, struct cu_mat logits, int normalised, int given) {
    __shared__ int chosen[SORTS ? ROW_THREADS : 1];
    const int lane = threadIdx.x % LANES, k = (int)r.k;
    let_next_begin();
    wait_for_before();
    ROW_LOOP(r.T) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, r.T - 1);
        const struct row_logits<EACH> l(logits.p + t * logits.ld, r.E, lane);
        const float2 s = softmax_of(l);
        const bool mine = row < r.T && lane < k;
        uint64_t taken = 0;
        float id = 0, sum = 0;
        if (given) {
            id = lane < k ? (float)r.expert[t * k + lane] : 0.0f;
        } else {
            float found = 0, at = 0; /* the lane-th best, and how many of the chosen have lower ids */
            for (int n = 0; n < k; n++) {
                const float e = (float)next_best(l, taken);
                if (lane == n) found = e;
            }
            for (int n = 0; n < k; n++) at = at + (__shfl_sync(FULL_WARP, found, n, LANES) < found ? 1.0f : 0.0f);
            for (int n = 0; n < k; n++) {
                const float other = __shfl_sync(FULL_WARP, found, n, LANES),
                            place = __shfl_sync(FULL_WARP, at, n, LANES);
                if (place == (float)lane) id = other;
            }
            if (mine) r.expert[t * k + lane] = (int32_t)id;
        }
        float w = exp_lane(l.l[(int)id] - s.x) / s.y;
        for (int j = 0; j < k; j++) sum = sum + __shfl_sync(FULL_WARP, w, j, LANES);
        if (normalised) w = w / sum;
        if (mine) r.weight[t * k + lane] = w;
        if (SORTS && mine) chosen[t * k + lane] = (int)id;
    }
    if (!SORTS) return;
    __syncthreads();
    sort_few(r, chosen);
}

/* More than sixteen of them: one thread has the row's. */
static __global__ void __launch_bounds__(ROW_THREADS)
    route_many_kernel(const struct cu_routing r, struct cu_mat logits, int normalised, int given) {
    const int lane = threadIdx.x % LANES;
    ROW_LOOP(r.T) {
        const int64_t row = base + threadIdx.x / LANES, t = min64(row, r.T - 1);
        const struct row_logits<0> l(logits.p + t * logits.ld, r.E, lane);
        int32_t *id = r.expert + t * r.k;
        float *weight = r.weight + t * r.k;
        const bool writes = row < r.T && lane == 0;
        const float2 s = softmax_of(l);
        uint64_t taken = 0;
        for (int64_t n = 0; n < r.k && !given; n++) {
            const int e = next_best(l, taken);
            if (!writes) continue;
            int64_t at = n; /* by ascending id */
            for (; at > 0 && id[at - 1] > e; at--) id[at] = id[at - 1];
            id[at] = e;
        }
        if (!writes) continue;
        float sum = 0;
        for (int64_t j = 0; j < r.k; j++) {
            const float w = exp_lane(l.l[id[j]] - s.x) / s.y;
            weight[j] = w;
            sum = sum + w;
        }
        for (int64_t j = 0; j < r.k && normalised; j++) weight[j] = weight[j] / sum;
    }
}

/* A block an expert: it counts what goes to experts in front of its own, and puts its pairs behind that, in order. Each
 * thread has `each` neighbours of the pairs, a multiple of four. Counts are exact up to 2^24. */
static __global__ void sort_kernel(const struct cu_routing r, int64_t each) {
    __shared__ float in_front[32], in_warp[32];
    const int64_t n = r.T * r.k, e = blockIdx.x, first = threadIdx.x * each, end = min64(first + each, n);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    let_next_begin();
    wait_for_before();
    float front = 0, own = 0;
    const auto count = [&](unsigned id) {
        front = front + (id < (unsigned)e ? 1.0f : 0.0f);
        own = own + (id == (unsigned)e ? 1.0f : 0.0f);
    };
#pragma unroll 4
    for (int64_t i = first; i + 4 <= end; i += 4) {
        const uint4 four = load16(r.expert + i);
        count(four.x), count(four.y), count(four.z), count(four.w);
    }
    for (int64_t i = max64(first, end / 4 * 4); i < end; i++) count((unsigned)r.expert[i]);
    float sum = own;
    for (int by = 1; by < 32; by *= 2) {
        const float left = __shfl_sync(FULL_WARP, sum, lane >= by ? lane - by : lane, 32);
        if (lane >= by) sum = sum + left;
    }
    for (int w = 16; w >= 1; w /= 2) front = front + __shfl_xor_sync(FULL_WARP, front, w, 32);
    if (lane == 31) in_front[warp] = front, in_warp[warp] = sum;
    __syncthreads();
    int64_t begin = 0, place = (int64_t)(sum - own);
    for (int w = 0; w < warps; w++) {
        begin += (int64_t)in_front[w];
        if (w < warp) place += (int64_t)in_warp[w];
    }
    if (threadIdx.x == 0) {
        r.begin[e] = (int32_t)begin;
        if (e == r.E - 1) r.begin[r.E] = (int32_t)n;
    }
    place += begin;
    for (int64_t i = first; i < end && own > 0; i++) {
        if (r.expert[i] != e) continue;
        r.place[i] = (int32_t)place;
        r.pair[place++] = (int32_t)i;
    }
}

extern "C" int cu_route(const struct cu_dev *d, const struct cu_routing *r, struct cu_mat logits, int normalised,
                        int given) {
    const int64_t n = r->T * r->k, threads = n <= 8192 ? 256 : 1024;
    int rc = 0;
    if (r->T > 0 && r->T <= ROW_THREADS / LANES && r->k <= LANES && r->E <= 8 * LANES)
        return LAUNCH_SOON((route_kernel<8, true>), 1, ROW_THREADS, 0, d, *r, logits, normalised, given);
    if (r->T > 0 && r->k > LANES)
        rc = LAUNCH(route_many_kernel, row_grid(d, r->T), ROW_THREADS, 0, d->stream, *r, logits, normalised, given);
    else if (r->T > 0 && r->E <= 8 * LANES)
        rc = LAUNCH_SOON((route_kernel<8, false>), row_grid(d, r->T), ROW_THREADS, 0, d, *r, logits, normalised, given);
    else if (r->T > 0)
        rc = LAUNCH_SOON((route_kernel<0, false>), row_grid(d, r->T), ROW_THREADS, 0, d, *r, logits, normalised, given);
    return rc ? rc : LAUNCH_SOON(sort_kernel, r->E, threads, 0, d, *r, ceil_div(n, threads * 4) * 4);
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
        const float2 s = softmax_of(row_logits<0>(l, r.E, lane));
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
    gather_kernel(struct cu_rows_any y, struct cu_rows_any x, const struct cu_routing r, int weighted) {
    EACH_ELEMENT(i, y.rows * y.cols) {
        const int64_t row = i / y.cols, col = i % y.cols;
        const float v = value_at(x, r.pair[row] / r.k, col);
        put_at(y, row, col, weighted ? v * r.weight[r.pair[row]] : v);
    }
}

/* Sixteen bytes at a time, of whichever type. */
static __host__ __device__ __forceinline__ int size_of(const struct cu_rows_any &x) { return x.narrow ? 2 : 4; }
static bool by_sixteens(const struct cu_rows_any &x) {
    return x.cols * size_of(x) % 16 == 0 && x.ld * size_of(x) % 16 == 0 && ((uintptr_t)x.p & 15) == 0;
}
static __device__ __forceinline__ uint4 *sixteen_at(const struct cu_rows_any &x, int64_t row, int64_t at) {
    return reinterpret_cast<uint4 *>(static_cast<char *>(x.p) + row * x.ld * size_of(x)) + at;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    gather_vec_kernel(struct cu_rows_any y, struct cu_rows_any x, const struct cu_routing r) {
    const int64_t per_row = y.cols * size_of(y) / 16;
    let_next_begin();
    wait_for_before();
    EACH_ELEMENT(i, y.rows * per_row) {
        const int64_t row = i / per_row, at = i % per_row;
        *sixteen_at(y, row, at) = *sixteen_at(x, r.pair[row] / r.k, at);
    }
}

/* Eight neighbours in float32 at a time, which are rounded. */
static __global__ void __launch_bounds__(ROW_THREADS)
    gather_round_kernel(struct cu_rows_any y, struct cu_rows_any x, const struct cu_routing r, int weighted) {
    const int64_t per_row = y.cols / 8;
    let_next_begin();
    wait_for_before();
    EACH_ELEMENT(i, y.rows * per_row) {
        const int64_t row = i / per_row, at = i % per_row;
        const int pair = r.pair[row];
        const float4 *const from = reinterpret_cast<const float4 *>(sixteen_at(x, pair / r.k, 2 * at));
        const float w = weighted ? r.weight[pair] : 1.0f; /* times 1 changes nothing */
        const float4 a = from[0], b = from[1];
        *sixteen_at(y, row, at) = make_uint4(bf16_pair(a.x * w, a.y * w), bf16_pair(a.z * w, a.w * w),
                                             bf16_pair(b.x * w, b.y * w), bf16_pair(b.z * w, b.w * w));
    }
}

extern "C" int cu_expert_gather(const struct cu_dev *d, struct cu_rows_any y, struct cu_rows_any x,
                                const struct cu_routing *r, int weighted) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    const bool sixteens = by_sixteens(y) && by_sixteens(x);
    if (sixteens && y.narrow && !x.narrow)
        return LAUNCH_SOON(gather_round_kernel, grid_for(d, n / 8, ROW_THREADS), ROW_THREADS, 0, d, y, x, *r, weighted);
    if (sixteens && y.narrow == x.narrow && !weighted)
        return LAUNCH_SOON(gather_vec_kernel, grid_for(d, n * size_of(y) / 16, ROW_THREADS), ROW_THREADS, 0, d, y, x,
                           *r);
    return LAUNCH(gather_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, y, x, *r, weighted);
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

/* Four neighbours in float32 at a time. */
static __global__ void __launch_bounds__(ROW_THREADS)
    combine_vec_kernel(struct cu_mat y, struct cu_mat z, struct cu_mat o, const struct cu_routing r, int weighted) {
    const int64_t per_row = y.cols / 4;
    let_next_begin();
    wait_for_before();
    EACH_ELEMENT(i, y.rows * per_row) {
        const int64_t row = i / per_row, col = i % per_row * 4;
        float4 s = z.p ? *reinterpret_cast<const float4 *>(z.p + row * z.ld + col) : make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int64_t j = row * r.k; j < (row + 1) * r.k; j++) {
            const float4 v = *reinterpret_cast<const float4 *>(o.p + r.place[j] * o.ld + col);
            if (weighted) {
                const float w = r.weight[j];
                s = make_float4(fmaf(w, v.x, s.x), fmaf(w, v.y, s.y), fmaf(w, v.z, s.z), fmaf(w, v.w, s.w));
            } else {
                s = make_float4(s.x + v.x, s.y + v.y, s.z + v.z, s.w + v.w);
            }
        }
        *reinterpret_cast<float4 *>(y.p + row * y.ld + col) = s;
    }
}

extern "C" int cu_expert_combine(const struct cu_dev *d, struct cu_rows_any y, struct cu_mat z, struct cu_mat o,
                                 const struct cu_routing *r, int weighted) {
    const int64_t n = y.rows * y.cols;
    if (n <= 0) return 0;
    if (!y.narrow && y.cols % 4 == 0 && aligned16(y.p, y.ld) && aligned16(z.p, z.ld) && aligned16(o.p, o.ld)) {
        const struct cu_mat wide = {static_cast<float *>(y.p), y.rows, y.cols, y.ld};
        return LAUNCH_SOON(combine_vec_kernel, grid_for(d, n / 4, ROW_THREADS), ROW_THREADS, 0, d, wide, z, o, *r,
                           weighted);
    }
    return LAUNCH(combine_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, y, z, o, *r, weighted);
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

static __device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, float w) {
    return bf16_pair(low_float(pair) * w, high_float(pair) * w);
}
static __global__ void __launch_bounds__(ROW_THREADS)
    scale_vec_kernel(struct cu_rows_any x, const struct cu_routing r) {
    const int64_t per_row = x.cols * size_of(x) / 16;
    let_next_begin();
    wait_for_before();
    EACH_ELEMENT(i, x.rows * per_row) {
        const int64_t row = i / per_row;
        uint4 *const at = sixteen_at(x, row, i % per_row);
        const float w = r.weight[r.pair[row]];
        if (x.narrow) {
            const uint4 v = *at;
            *at = make_uint4(scaled_pair(v.x, w), scaled_pair(v.y, w), scaled_pair(v.z, w), scaled_pair(v.w, w));
        } else {
            float4 *const to = reinterpret_cast<float4 *>(at);
            const float4 v = *to;
            *to = make_float4(v.x * w, v.y * w, v.z * w, v.w * w);
        }
    }
}

extern "C" int cu_expert_scale(const struct cu_dev *d, struct cu_rows_any x, const struct cu_routing *r) {
    const int64_t n = x.rows * x.cols;
    if (n <= 0) return 0;
    if (by_sixteens(x))
        return LAUNCH_SOON(scale_vec_kernel, grid_for(d, n * size_of(x) / 16, ROW_THREADS), ROW_THREADS, 0, d, x, *r);
    return LAUNCH(scale_kernel, grid_for(d, n, ROW_THREADS), ROW_THREADS, 0, d->stream, x, *r);
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
