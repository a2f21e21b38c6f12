/* The product of a router with rows in bfloat16 (kernels.h, cu_router16): few columns, in float32. A block has a tile
 * of the output, and copies strips of STRIP columns of x and W to shared memory, several ahead; of W it asks for the
 * first ones before the kernel in front has ended. Each number of the output belongs to one thread, which adds up its
 * products over k in ascending order: the bits are those of cu_gemm with x widened. */
#include "cuda/shared/async.cuh"

enum { STRIP = 64, LD_W = STRIP + 4 /* floats */, LD_X = STRIP + 8, HIGH = 8 };

struct router {
    struct cu_mat y;
    struct cu_mat16 x;
    const float *w; /* [y.cols][x.cols] */
};

template <int WIDE, int TM, int TN, int STAGES> constexpr int shared_bytes() {
    return STAGES * (WIDE * TN * LD_W * 4 + HIGH * TM * LD_X * 2);
}

/* A thread has TM rows and TN columns, HIGH and WIDE apart. */
template <int WIDE, int TM, int TN, int STAGES>
static __global__ void __launch_bounds__(WIDE *HIGH) router_kernel(struct router a) {
    enum { THREADS = WIDE * HIGH, ROWS = HIGH * TM, COLS = WIDE * TN };
    DYNAMIC_SHARED(shared);
    float *const sw = shared;
    uint16_t *const sx = reinterpret_cast<uint16_t *>(sw + STAGES * COLS * LD_W);
    const int tid = threadIdx.x, tx = tid % WIDE, ty = tid / WIDE;
    const int K = (int)a.x.cols;
    const int64_t tiles_n = ceil_div(a.y.cols, COLS);
    const int64_t m0 = blockIdx.x / tiles_n * ROWS, n0 = blockIdx.x % tiles_n * COLS;
    /* What this thread copies of each strip: four columns of every HIGH-th row of W, with eight of x's columns in turn.
     */
    enum { W_CHUNKS = STRIP / 4, X_CHUNKS = STRIP / 8, W_PER = THREADS / W_CHUNKS, X_PER = THREADS / X_CHUNKS };
    const int w_row = tid / W_CHUNKS, w_k = tid % W_CHUNKS * 4, x_row = tid / X_CHUNKS, x_k = tid % X_CHUNKS * 8;
    const float *const from_w = a.w + (n0 + w_row) * K + w_k;
    const uint16_t *const from_x = a.x.p + (m0 + x_row) * a.x.ld + x_k;
    const auto ask_w = [&](int k0, int stage) {
        float *const to = sw + stage * (COLS * LD_W) + w_row * LD_W + w_k;
#pragma unroll
        for (int i = 0; i < COLS / W_PER; i++)
            async_copy16(reinterpret_cast<uint16_t *>(to + i * W_PER * LD_W),
                         reinterpret_cast<const uint16_t *>(from_w + i * W_PER * (int64_t)K + k0),
                         n0 + w_row + i * W_PER < a.y.cols && k0 + w_k < K);
    };
    const auto ask_x = [&](int k0, int stage) {
        uint16_t *const to = sx + stage * (ROWS * LD_X) + x_row * LD_X + x_k;
#pragma unroll
        for (int i = 0; i < (ROWS + X_PER - 1) / X_PER; i++)
            if (x_row + i * X_PER < ROWS)
                async_copy16(to + i * X_PER * LD_X, from_x + i * X_PER * a.x.ld + k0,
                             m0 + x_row + i * X_PER < a.x.rows && k0 + x_k < K);
    };
    float acc[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) acc[i][j] = 0;
    /* Eight columns of this thread's rows of both. Those of the next eight are asked for while these are multiplied. */
    uint4 u[2][TM];
    float4 v[2][TN][2];
    const auto take = [&](int at, const uint16_t *x, const float *w) {
#pragma unroll
        for (int i = 0; i < TM; i++) u[at][i] = load16(x + i * HIGH * LD_X);
#pragma unroll
        for (int j = 0; j < TN; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                v[at][j][half] = *reinterpret_cast<const float4 *>(w + j * WIDE * LD_W + half * 4);
    };
    const auto add = [&](int at) {
        const auto step = [&](float(&x)[TM], float(&w)[TN]) {
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) acc[i][j] = fmaf(x[i], w[j], acc[i][j]);
        };
        float x[8][TM], w[8][TN];
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const uint4 q = u[at][i];
            x[0][i] = low_float(q.x), x[1][i] = high_float(q.x), x[2][i] = low_float(q.y), x[3][i] = high_float(q.y);
            x[4][i] = low_float(q.z), x[5][i] = high_float(q.z), x[6][i] = low_float(q.w), x[7][i] = high_float(q.w);
        }
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const float4 l = v[at][j][0], h = v[at][j][1];
            w[0][j] = l.x, w[1][j] = l.y, w[2][j] = l.z, w[3][j] = l.w;
            w[4][j] = h.x, w[5][j] = h.y, w[6][j] = h.z, w[7][j] = h.w;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) step(x[k], w[k]);
    };
    let_next_begin();
    for (int s = 0; s < STAGES - 1 && s * STRIP < K; s++) ask_w(s * STRIP, s);
    wait_for_before();
    for (int s = 0; s < STAGES - 1; s++) {
        if (s * STRIP < K) ask_x(s * STRIP, s);
        async_group();
    }
    int stage = 0, last = STAGES - 1;
    for (int k0 = 0; k0 < K; k0 += STRIP) {
        async_wait<STAGES - 2>();
        __syncthreads();
        const int next = k0 + (STAGES - 1) * STRIP;
        if (next < K) {
            ask_w(next, last);
            ask_x(next, last);
        }
        async_group();
        const float *const w = sw + stage * (COLS * LD_W) + tx * LD_W;
        const uint16_t *const x = sx + stage * (ROWS * LD_X) + ty * LD_X;
        if (k0 + STRIP <= K) {
            take(0, x, w);
#pragma unroll
            for (int k = 0; k < STRIP; k += 8) {
                if (k + 8 < STRIP) take((k / 8 + 1) % 2, x + k + 8, w + k + 8);
                add(k / 8 % 2);
            }
        } else {
            for (int k = 0; k0 + k < K; k += 8) {
                take(0, x + k, w + k);
                add(0);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        last = last + 1 == STAGES ? 0 : last + 1;
    }
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const int64_t m = m0 + ty + i * HIGH, n = n0 + tx + j * WIDE;
            if (m < a.y.rows && n < a.y.cols) a.y.p[m * a.y.ld + n] = acc[i][j];
        }
}

template <int WIDE, int TM, int TN, int STAGES> static int start(const struct cu_dev *d, const struct router &a) {
    auto *kernel = router_kernel<WIDE, TM, TN, STAGES>;
    constexpr int bytes = shared_bytes<WIDE, TM, TN, STAGES>();
    const int rc = (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc) return rc;
    return LAUNCH_SOON(kernel, ceil_div(a.y.rows, HIGH * TM) * ceil_div(a.y.cols, WIDE * TN), WIDE * HIGH, bytes, d, a);
}

extern "C" int cu_router16_takes(const struct cu_dev *d, struct cu_mat16 x, const float *w) {
    return d->max_shared >= shared_bytes<16, 4, 4, 4>() && x.cols % 8 == 0 && x.ld % 8 == 0 &&
           (((uintptr_t)x.p | (uintptr_t)w) & 15) == 0;
}

/* Few outputs have a thread each, in many small blocks; many rows a register tile. The bits are the same. */
extern "C" int cu_router16(const struct cu_dev *d, struct cu_mat y, struct cu_mat16 x, const float *w) {
    const struct router a = {y, x, w};
    const int64_t each = y.rows * y.cols / d->sm_count; /* outputs of a multiprocessor */
    if (y.rows <= 0 || y.cols <= 0) return 0;
    if (each <= 32) return start<4, 1, 1, 16>(d, a);
    if (each <= 512) return start<16, 1, 1, 8>(d, a);
    if (each <= 2048) return start<16, 2, 2, 6>(d, a);
    return start<16, 4, 4, 4>(d, a);
}
