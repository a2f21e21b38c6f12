/* The device side of the emulation: a block's threads are coroutines that run until a barrier; blocks run one after the
 * other. See cuda_runtime_api.h. */
#ifndef KERNELRL_EMULATE_CUDA_RUNTIME_H
#define KERNELRL_EMULATE_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>

#include <functional>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct emulated_index {
    unsigned x;
};
extern emulated_index threadIdx, blockIdx, blockDim, gridDim;

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline float __int_as_float(int i) { return __uint_as_float((unsigned)i); }

void emulate_barrier(bool warp);
float emulate_exchange(float mine, int from_lane);
void *emulate_shared(void);
void emulate_mma(float (&c)[4], const uint32_t mine[6]); /* mma.sync.m16n8k16, row.col, bf16 into f32 */
/* ldmatrix.x4: `row` is that of row lane % 8 of matrix lane / 8. */
void emulate_group_barrier(void); /* of the 128 threads of a warpgroup */
/* wgmma.m64nNk16 of bf16 into f32, done at once: c [n/8][4] a thread. a: four registers, or NULL and a tile that begins
 * at a_tile, summed over along its rows; b likewise, or, summed, with the rows that are summed over: the next 64
 * columns lie `panel` bytes behind. Tiles have the swizzle of 128 bytes and 1024 bytes from eight rows to the next. */
void emulate_wgmma(float *c, int n, const uint32_t *a, const uint16_t *a_tile, const uint16_t *b_tile, bool summed,
                   int panel, bool add);
void emulate_load_matrices(uint32_t (&r)[4], const uint16_t *row, bool transposed);
void emulate_launch(int64_t grid, int block, int64_t shared, const std::function<void()> &body);

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline void __syncthreads(void) { emulate_barrier(false); }
static inline void __syncwarp(void) { emulate_barrier(true); }
static inline float __shfl_sync(unsigned mask, float v, int lane, int width) {
    (void)mask;
    const int self = (int)(threadIdx.x % 32);
    return emulate_exchange(v, self / width * width + lane % width);
}
static inline float __shfl_down_sync(unsigned mask, float v, int by, int width) {
    (void)mask;
    const int self = (int)(threadIdx.x % 32);
    return emulate_exchange(v, self % width + by < width ? self + by : self);
}

static inline float __shfl_xor_sync(unsigned mask, float v, int by, int width = 32) {
    (void)mask, (void)width;
    return emulate_exchange(v, (int)(threadIdx.x % 32) ^ by);
}

static inline void __threadfence(void) {}
static inline unsigned atomicAdd(unsigned *p, unsigned n) { return *p += n, *p - n; }

template <typename F> static inline cudaError_t cudaFuncSetAttribute(F *f, int what, int value) {
    (void)f, (void)what;
    return emulate_end(value <= 232448 ? cudaSuccess : cudaErrorInvalidValue);
}
template <typename F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, F *f) {
    (void)a, (void)f;
    return emulate_end(emulate_fault("image") ? cudaErrorNoKernelImageForDevice : cudaSuccess);
}

/* Arguments are copied, as a real launch does: a captured one runs when they are gone. */
template <typename... P, typename... A>
static inline int emulate_run(int64_t grid, int block, int64_t shared, void (*kernel)(P...), A... args) {
    emulate_launch(grid, block, shared, [=] { kernel(args...); });
    return cudaGetLastError();
}
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
    ((void)(stream), emulate_run((int64_t)(grid), (int)(block), (int64_t)(shared), (kernel), __VA_ARGS__))
#define DYNAMIC_SHARED(name) float *name = static_cast<float *>(emulate_shared())

#endif
