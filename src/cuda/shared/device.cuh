/* What the kernels share: exp and the sums in sixteen lanes of tensor/ops.h, vector access, launching. The kernels are
 * compiled with -fmad=false: only what fmaf() names is fused, and division and square root round correctly. */
#ifndef KERNELRL_CUDA_SHARED_DEVICE_CUH
#define KERNELRL_CUDA_SHARED_DEVICE_CUH

#include <cuda_runtime.h>

#ifndef LAUNCH /* The emulation of tests/cuda brings a LAUNCH of its own. */
/* clang-format off */
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                                       \
    ((kernel)<<<(unsigned)(grid), (unsigned)(block), (size_t)(shared), (cudaStream_t)(stream)>>>(__VA_ARGS__), \
     (int)cudaGetLastError())
/* The same for a kernel that begins with wait_for_before(). Its blocks may start while the kernel before it on the
 * stream ends. */
#define LAUNCH_SOON(kernel, grid, block, shared, dev, ...) \
    launch_soon((dev), (kernel), (unsigned)(grid), (unsigned)(block), (size_t)(shared), __VA_ARGS__)
/* clang-format on */
#define DYNAMIC_SHARED(name)                             \
    extern __shared__ __align__(16) float dyn_shared_[]; \
    float *name = dyn_shared_
#endif

#include "cuda/shared/kernels.h"

/* Waits until everything is there that the kernels before this one on the stream have written. All threads of all
 * blocks must call it. Where the hardware starts kernels one after the other anyway, it does nothing. */
static __device__ __forceinline__ void wait_for_before(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Once all blocks have called it, blocks of the next kernel may start, as far as there is room. */
static __device__ __forceinline__ void let_next_begin(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef LAUNCH_SOON
template <typename... P, typename... A>
static inline int launch_soon(const struct cu_dev *d, void (*kernel)(P...), unsigned grid, unsigned block,
                              size_t shared, A... args) {
    cudaLaunchAttribute soon = {};
    cudaLaunchConfig_t how = {};
    soon.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    soon.val.programmaticStreamSerializationAllowed = 1;
    how.gridDim = dim3(grid);
    how.blockDim = dim3(block);
    how.dynamicSmemBytes = shared;
    how.stream = (cudaStream_t)d->stream;
    how.attrs = &soon;
    how.numAttrs = d->overlaps ? 1 : 0;
    return (int)cudaLaunchKernelEx(&how, kernel, static_cast<P>(args)...);
}
#else
#define LAUNCH_SOON(kernel, grid, block, shared, dev, ...) \
    LAUNCH(kernel, grid, block, shared, (dev)->stream, __VA_ARGS__)
#endif

enum { LANES = 16 };        /* A row has so many partial sums, and as many threads work on it. */
enum { ROW_THREADS = 256 }; /* So many threads has a block in kernels that give LANES threads to each row. */

#define FULL_WARP 0xffffffffu

static __device__ __forceinline__ int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static __device__ __forceinline__ int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* exp_f32 of tensor/ops.h: 2^n e^r with n = round(x / ln 2), and e^r by its Taylor series to r^7. */
static __device__ __forceinline__ float exp_lane(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer. */
    const float xc = 88.3f < x ? 88.3f : x;
    const float t = fmaf(xc, 1.44269504f, magic);
    const float n = t - magic;
    float r = fmaf(n, -0.693359375f, xc);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* This is 2^n: n sits in the low bits of t. */
    const float scale = __uint_as_float((__float_as_uint(t) + 127u) << 23);
    return xc < -87.3f ? 0.0f : p * scale;
}

static __device__ __forceinline__ float sigmoid_lane(float g) { return 1.0f / (1.0f + exp_lane(0.0f - g)); }

/* Folds of sixteen neighbouring threads: 8+8, 4+4, 2+2, 1+1. All of them get the result. Whole warps must call them. */
static __device__ __forceinline__ float fold_sum(float a) {
    for (int w = LANES / 2; w >= 1; w /= 2) a = a + __shfl_down_sync(FULL_WARP, a, w, LANES);
    return __shfl_sync(FULL_WARP, a, 0, LANES);
}
static __device__ __forceinline__ float fold_max(float a) {
    for (int w = LANES / 2; w >= 1; w /= 2) {
        const float b = __shfl_down_sync(FULL_WARP, a, w, LANES);
        a = a > b ? a : b;
    }
    return __shfl_sync(FULL_WARP, a, 0, LANES);
}
/* Continues from the maximum of a row's full blocks over the n < 16 elements behind them, in order, because NaN makes
 * the order matter. `mine` is this lane's element of the unfinished block. */
static __device__ __forceinline__ float max_tail(float best, float mine, int n) {
    for (int i = 0; i < LANES; i++) {
        const float x = __shfl_sync(FULL_WARP, mine, i, LANES);
        if (i < n) best = best > x ? best : x;
    }
    return best;
}

/* The number of a row. A number below 0 stands for a row that was drawn: see cu_gather_rows. */
static __device__ __forceinline__ int64_t row_or_drawn(int32_t row, const int32_t *drawn) {
    if (row >= 0) return row;
    const int32_t id = drawn[-1 - row];
    return id < 0 ? 0 : id;
}

static __host__ __device__ __forceinline__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* How many blocks n items get: no more than a few waves, because kernels stride over the rest. */
static inline int64_t grid_for(const struct cu_dev *d, int64_t items, int64_t per_block) {
    const int64_t blocks = ceil_div(items, per_block), most = (int64_t)d->sm_count * 32;
    return blocks < most ? blocks : most;
}

static inline int aligned16(const void *p, int64_t ld) { return ((uintptr_t)p & 15) == 0 && (ld & 3) == 0; }

#endif
