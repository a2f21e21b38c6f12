/* The copy engine of compute capability 9.0 for matrices in bfloat16: maps, copies of boxes to shared memory, and the
 * barriers that count what has come. Elsewhere fetch_now does the copies. */
#ifndef KERNELRL_CUDA_SHARED_COPY_ENGINE_CUH
#define KERNELRL_CUDA_SHARED_COPY_ENGINE_CUH

#include "cuda/shared/wgmma.cuh"

#ifndef KERNELRL_EMULATED
#include <cuda.h>
#include <dlfcn.h>
#else
#define __grid_constant__
#endif

enum { DEPTH = 64 /* columns of a panel */ };

/* A matrix as the copy engine sees it: parts of `cols` columns side by side, each in panels of DEPTH columns. */
struct matrix_map {
#ifndef KERNELRL_EMULATED
    CUtensorMap map;
#endif
    const uint16_t *p;
    int64_t rows, cols, ld;
};
/* PTX ISA, "Tensor Copy Instructions" and "mbarrier": a barrier counts the bytes that come. */
#ifdef WGMMA_DEVICE
static __device__ __forceinline__ unsigned at_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void barrier_init(uint64_t *b, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at_shared(b)), "r"(arrivals) : "memory");
}
/* This thread's arrival, and `bytes` that are to come. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at_shared(b)), "r"(bytes) : "memory");
}
/* Until the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, unsigned parity) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at_shared(b)), "r"(parity)
                     : "memory");
    }
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at_shared(b)) : "memory");
}
/* True: this is the one thread of its warp that acts for all. */
static __device__ __forceinline__ bool elected() {
    unsigned is;
    asm volatile("{ .reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p; }" : "=r"(is));
    return is != 0;
}
static __device__ __forceinline__ void announce(const struct matrix_map &m) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&m.map) : "memory");
}
/* The map's box of panels from `panel` of a part on and rows from `row` on, panel by panel; zeros for what the part has
 * not. */
static __device__ __forceinline__ void fetch(uint16_t *to, const struct matrix_map &m, int part, int panel, int row,
                                             uint64_t *b) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(at_shared(to)),
                 "l"(&m.map), "r"(0), "r"(row), "r"(panel), "r"(part), "r"(at_shared(b))
                 : "memory");
}
#elif !defined(__CUDACC__)
/* A box of `rows` rows and `panels` panels, by all threads of the block. */
static void fetch_now(uint16_t *to, const struct matrix_map &m, int part, int panel, int row, int rows, int panels) {
    for (int i = (int)threadIdx.x; i < panels * rows * 8; i += (int)blockDim.x) {
        const int64_t r = row + i / 8 % rows, k = (panel + i / 8 / rows) * (int64_t)DEPTH + i % 8 * 8;
        for (int e = 0; e < 8; e++)
            to[i / 8 / rows * rows * DEPTH + wg_at(i / 8 % rows, i % 8) + e] =
                r < m.rows && k < m.cols ? m.p[r * m.ld + part * m.cols + k + e] : 0;
    }
}
#endif

/* Fills in the map of boxes of so many rows and panels. */
static int map_matrix(struct matrix_map *m, int64_t parts, int box_rows, int box_panels) {
#ifndef KERNELRL_EMULATED
    typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                               const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                               CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    /* The driver's, which the runtime has loaded; no library to link names it. */
    static void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    static encode_fn *const encode =
        reinterpret_cast<encode_fn *>(driver ? dlsym(driver, "cuTensorMapEncodeTiled") : nullptr);
    const cuuint64_t size[4] = {DEPTH, (cuuint64_t)m->rows, (cuuint64_t)m->cols / DEPTH, (cuuint64_t)parts};
    /* bytes from row to row, from panel to panel, from part to part */
    const cuuint64_t step[3] = {(cuuint64_t)m->ld * 2, DEPTH * 2, (cuuint64_t)m->cols * 2};
    const cuuint32_t box[4] = {DEPTH, (cuuint32_t)box_rows, (cuuint32_t)box_panels, 1}, ones[4] = {1, 1, 1, 1};
    if (!encode) return (int)cudaErrorNotSupported;
    return encode(&m->map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<uint16_t *>(m->p), size, step, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : (int)cudaErrorInvalidValue;
#else
    return (void)m, (void)parts, (void)box_rows, (void)box_panels, 0;
#endif
}

#endif
