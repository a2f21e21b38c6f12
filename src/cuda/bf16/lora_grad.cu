/* Gradients of LoRA's thin matrices: sums over rows of a wide matrix W [T,N] times a thin one S [T,R]. What takes time
 * is reading W, once.
 *
 * Both operands of the tensor core's product have the row, which is summed over, as their slow dimension. A sum does
 * not care which row stands where, nor a tile which column: thread (g, c) takes four whole rows, 4c .. 4c+3, of eight
 * neighbours of W and four of S, and pairs of rows become the words of a fragment by exchanging halves. */
#include "cuda/shared/bf16.cuh"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    GROUP = 16 /* rows */,
    COLS = CUDA_THIN_COLS,
    THIN = CUDA_THIN_R,
    VALUES = COLS * THIN / 32
};
static_assert((int)CUDA_THIN_ROWS == WARPS * GROUP, "a part has work for each warp");
enum { AHEAD = 2, SHARED = WARPS * COLS * THIN * 4 };

/* Words of rows a and b: their low halves, and their high halves. */
static __device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
static __device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

static __device__ __forceinline__ uint32_t word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A block has COLS columns of W, THIN of S and a part of the rows, groups of which its warps take in turn. Their sums
 * are added in the order of warps, those of parts in the order of rows: by fold_kernel, where there are several. */
static __global__ void __launch_bounds__(THREADS, 2) thin_kernel(const struct cu_thin a, float *to, int accumulate) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int64_t strips = ceil_div(a.N, COLS), chunks = ceil_div(a.R, THIN);
    const int64_t n0 = blockIdx.x % strips * COLS, r0 = blockIdx.x / strips % chunks * THIN;
    const int64_t part = blockIdx.x / (strips * chunks);
    const int64_t begin = part * a.part_rows, end = min64(begin + a.part_rows, a.T);
    const bool in_w = n0 + g * 8 < a.N, in_s = r0 + g * 4 < a.R;
    const uint16_t *const w = a.w + n0 + g * 8, *const s = a.s + r0 + g * 4;
    float acc[4][4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
    for (int64_t t0 = begin + warp * GROUP; t0 < end; t0 += AHEAD * WARPS * GROUP) {
        uint4 x[AHEAD][4];
        uint2 y[AHEAD][4];
#pragma unroll
        for (int p = 0; p < AHEAD; p++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int64_t t = t0 + p * (WARPS * GROUP) + c * 4 + q;
                x[p][q] = t < end && in_w ? load16(w + t * a.ldw) : zero4();
                y[p][q] = t < end && in_s ? *reinterpret_cast<const uint2 *>(s + t * a.lds) : make_uint2(0, 0);
            }
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            uint32_t b[4][2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint2 one = y[p][2 * h], two = y[p][2 * h + 1];
                b[0][h] = low_halves(one.x, two.x), b[1][h] = high_halves(one.x, two.x);
                b[2][h] = low_halves(one.y, two.y), b[3][h] = high_halves(one.y, two.y);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t r[4] = {word(x[p][0], i), word(x[p][1], i), word(x[p][2], i), word(x[p][3], i)};
                const uint32_t a0 = low_halves(r[0], r[1]), a1 = high_halves(r[0], r[1]), a2 = low_halves(r[2], r[3]),
                               a3 = high_halves(r[2], r[3]);
#pragma unroll
                for (int j = 0; j < 4; j++) mma(acc[i][j], a0, a1, a2, a3, b[j][0], b[j][1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) shared[(warp * VALUES + (i * 4 + j) * 4 + e) * 32 + lane] = acc[i][j][e];
    __syncthreads();
#pragma unroll
    for (int k = warp; k < VALUES; k += WARPS) {
        float sum = 0;
#pragma unroll
        for (int v = 0; v < WARPS; v++) sum = sum + shared[(v * VALUES + k) * 32 + lane];
        const int i = k / 16, j = k / 4 % 4, e = k % 4;
        const int64_t n = n0 + g * 8 + 2 * i + e / 2, r = r0 + (2 * c + e % 2) * 4 + j;
        if (n >= a.N || r >= a.R) continue;
        float *const at = to + part * a.N * a.R + (a.wide_rows ? n * a.R + r : r * a.N + n);
        *at = accumulate ? *at + sum : sum;
    }
}

static __global__ void fold_kernel(float *out, const float *parts, int64_t n, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int64_t p = 0; p < count; p++) sum = sum + parts[p * n + i];
    out[i] = out[i] + sum;
}

extern "C" int cu_thin(const struct cu_dev *d, const struct cu_thin *a, float *parts) {
    const int64_t count = ceil_div(a->T, a->part_rows), n = a->N * a->R;
    const int64_t blocks = ceil_div(a->N, COLS) * ceil_div(a->R, THIN) * count;
    if (a->T <= 0 || n <= 0) return 0;
    int rc = (int)cudaFuncSetAttribute(thin_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (!rc) rc = LAUNCH(thin_kernel, blocks, THREADS, SHARED, d->stream, *a, count > 1 ? parts : a->out, count == 1);
    if (!rc && count > 1) rc = LAUNCH(fold_kernel, ceil_div(n, 256), 256, 0, d->stream, a->out, parts, n, count);
    return rc;
}

extern "C" int cu_thin_takes(const struct cu_dev *d, const struct cu_thin *a) {
    return cuda_thin_takes(a->T, a->N, a->R) && a->lds % 4 == 0 && a->ldw % 8 == 0 &&
           (((uintptr_t)a->w & 15) | ((uintptr_t)a->s & 7)) == 0 && SHARED <= d->max_shared;
}
