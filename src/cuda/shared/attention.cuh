/* The pieces of attention that forward and gradient share: staging of tiles in shared memory, and the two products of a
 * tile. 256 threads stand in a 16 x 16 grid (ty, tx).
 *
 * Thread (ty, tx) owns rows ty*NR + i of a tile, for i < NR. In a score tile, whose columns are keys, it owns the
 * columns tx + 16*j, so that the sixteen threads of one ty are the sixteen lanes of tensor/ops.h. In an output tile,
 * whose columns are the head's dimensions, it owns the quads of columns 4*tx + 64*n + e, for e < 4, so DP is a multiple
 * of 64.
 *
 * Nothing here synchronises: callers do between staging and use. */
#ifndef KERNELRL_CUDA_SHARED_ATTENTION_CUH
#define KERNELRL_CUDA_SHARED_ATTENTION_CUH

#include "cuda/shared/device.cuh"
#include "tensor/ops.h"

enum { ATTN_THREADS = 256 };

/* A tile of 16*NR rows by 16*NC keys, for head dimensions up to DP. Rows are padded by one quad against bank
 * conflicts. */
template <int DP_, int NR_, int NC_> struct tile {
    static constexpr int DP = DP_, NR = NR_, NC = NC_, ROWS = 16 * NR_, KEYS = 16 * NC_;
    static constexpr int LD = DP_ + 4, LDP = KEYS + 4, ND = DP_ / 16;
    /* How many blocks a multiprocessor holds at least. The compiler gets its budget of registers from this number. */
    static constexpr int MIN_BLOCKS = DP_ <= 64 ? 2 : 1;
};

/* Copies ROWS rows of K floats into s[ROWS][LD], with zeros behind K and behind `rows`. row_ptr(r) gives row r. */
template <int ROWS, int DP, int LD, typename F>
static __device__ __forceinline__ void stage_rows(float *s, int64_t rows, int64_t K, int vec, F row_ptr) {
    for (int i = threadIdx.x; i < ROWS * (DP / 4); i += ATTN_THREADS) {
        const int r = i / (DP / 4), c = i % (DP / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (r < rows && c < K) {
            const float *src = row_ptr(r) + c;
            if (vec) { /* Here K is a multiple of 4. */
                v = *reinterpret_cast<const float4 *>(src);
            } else {
                v.x = src[0];
                if (c + 1 < K) v.y = src[1];
                if (c + 2 < K) v.z = src[2];
                if (c + 3 < K) v.w = src[3];
            }
        }
        *reinterpret_cast<float4 *>(s + r * LD + c) = v;
    }
}

/* Copies keys [j0, j0 + ROWS) of a cache into s[ROWS][LD], with zeros for keys from n on and behind K. j0 is a multiple
 * of ROWS, so all of them lie in one block. kt is that block's keys, transposed: [K][KV_BLOCK]. Hence neighbouring
 * threads take neighbouring keys, which lie side by side. */
template <int ROWS, int DP, int LD>
static __device__ __forceinline__ void stage_cached_keys(float *s, const float *kt, int64_t j0, int64_t n, int64_t K) {
    static_assert(KV_BLOCK % ROWS == 0, "a tile of keys lies in one block");
    for (int i = threadIdx.x; i < ROWS * DP; i += ATTN_THREADS) {
        const int r = i % ROWS, c = i / ROWS;
        const int64_t j = j0 + r;
        s[r * LD + c] = j < n && c < K ? kt[c * KV_BLOCK + j % KV_BLOCK] : 0.0f;
    }
}

/* acc[i][j] = a[row] . b[column], one FMA a step in ascending order. The sum runs over `quads` quads: behind K both
 * operands have zeros, which change no bit. */
template <class T>
static __device__ __forceinline__ void dot_tile(float (&acc)[T::NR][T::NC], const float *a, const float *b, int quads) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    a += ty * T::NR * T::LD;
    b += tx * T::LD;
#pragma unroll
    for (int i = 0; i < T::NR; i++)
#pragma unroll
        for (int j = 0; j < T::NC; j++) acc[i][j] = 0;
#pragma unroll 2
    for (int q = 0; q < quads; q++) {
        float4 x[T::NR], y[T::NC];
#pragma unroll
        for (int i = 0; i < T::NR; i++) x[i] = *reinterpret_cast<const float4 *>(a + i * T::LD + q * 4);
#pragma unroll
        for (int j = 0; j < T::NC; j++) y[j] = *reinterpret_cast<const float4 *>(b + j * 16 * T::LD + q * 4);
#pragma unroll
        for (int i = 0; i < T::NR; i++)
#pragma unroll
            for (int j = 0; j < T::NC; j++) {
                float s = acc[i][j];
                s = fmaf(x[i].x, y[j].x, s);
                s = fmaf(x[i].y, y[j].y, s);
                s = fmaf(x[i].z, y[j].z, s);
                acc[i][j] = fmaf(x[i].w, y[j].w, s);
            }
    }
}

/* acc[i][4n+e] += p[row][step] v[step][column] for each step in ascending order, one FMA each. `steps` is rounded up to
 * a multiple of 4; from `steps` on, p and v have zeros. */
template <class T>
static __device__ __forceinline__ void add_tile(float (&acc)[T::NR][T::ND], const float *p, const float *v, int steps) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    p += ty * T::NR * T::LDP;
    v += tx * 4;
    for (int k = 0; k < steps; k += 4) {
        float4 x[T::NR];
#pragma unroll
        for (int i = 0; i < T::NR; i++) x[i] = *reinterpret_cast<const float4 *>(p + i * T::LDP + k);
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int n = 0; n < T::ND / 4; n++) {
                const float4 y = *reinterpret_cast<const float4 *>(v + (k + c) * T::LD + n * 64);
#pragma unroll
                for (int i = 0; i < T::NR; i++) {
                    const float w = c == 0 ? x[i].x : c == 1 ? x[i].y : c == 2 ? x[i].z : x[i].w;
                    acc[i][4 * n] = fmaf(w, y.x, acc[i][4 * n]);
                    acc[i][4 * n + 1] = fmaf(w, y.y, acc[i][4 * n + 1]);
                    acc[i][4 * n + 2] = fmaf(w, y.z, acc[i][4 * n + 2]);
                    acc[i][4 * n + 3] = fmaf(w, y.w, acc[i][4 * n + 3]);
                }
            }
    }
}

/* Hands this thread's columns of row i of an output tile to put(column, value). */
template <class T, typename F>
static __device__ __forceinline__ void each_output(const float (&acc)[T::ND], int64_t K, F put) {
    const int tx = threadIdx.x % 16;
#pragma unroll
    for (int n = 0; n < T::ND / 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int d = tx * 4 + n * 64 + e;
            if (d < K) put(d, acc[4 * n + e]);
        }
}

/* The row of key j in the tensors of new rows and of past ones: the first `past` keys lie from past_row on, the others
 * from row on. */
static __device__ __forceinline__ int64_t key_row(int64_t row, int64_t past, int64_t past_row, int64_t j) {
    return j < past ? past_row + j : row + (j - past);
}

/* kv_pad_dim of tensor/ops.h, on the device. */
static __device__ __forceinline__ int64_t padded_dim(int64_t K) { return (K + 15) & ~(int64_t)15; }
/* How many quads hold K floats. */
static __device__ __forceinline__ int quads_of(int64_t K) { return (int)((K + 3) / 4); }
/* stage_rows' vec: nonzero when the rows of m can be read 16 bytes at a time. */
static inline int mat_vec(struct cu_mat m, int64_t K) { return aligned16(m.p, m.ld) && K % 4 == 0; }

/* Raises a kernel's limit of shared memory when the kernel needs more than every kernel may have. Returns a
 * cudaError_t. */
#define ALLOW_SHARED(kernel, bytes)                                                                       \
    ((bytes) > 48 * 1024                                                                                  \
         ? (int)cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)) \
         : 0)

#endif
