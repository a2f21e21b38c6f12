/* What codes of tensor/formats.h mean, for kernels: code times scale in float32, each operation rounded. */
#ifndef KERNELRL_CUDA_SHARED_CODES_CUH
#define KERNELRL_CUDA_SHARED_CODES_CUH

#include "cuda/shared/bf16.cuh"

/* Byte `at` (0..3) of a word of FP8 codes, times 2^-120. */
static __device__ __forceinline__ float fp8_small(uint32_t word, int at) {
    const int32_t top = (int32_t)(word << (24 - 8 * at));
    return __uint_as_float((uint32_t)(top >> 4) & 0x87f00000u);
}
#define FP8_UP __uint_as_float((127u + 120u) << 23) /* a scale times this is exact: CODED_LARGEST_SCALE */

static __device__ __forceinline__ float nf4_scale_of(const struct cu_coded &m, int64_t block) {
    return m.absmax ? m.nested_map[m.absmax[block]] * m.nested[block / NF4_NESTED] + m.offset : m.scale[block];
}
/* Code i of the list. */
static __device__ __forceinline__ unsigned nf4_code_of(const struct cu_coded &m, int64_t i) {
    return i % 2 ? m.codes[i / 2] & 15u : (unsigned)m.codes[i / 2] >> 4;
}

/* Weight i of the list. */
static __device__ __forceinline__ float coded_value(const struct cu_coded &m, int64_t i) {
    if (m.format == FORMAT_NF4) return m.map[nf4_code_of(m, i)] * nf4_scale_of(m, i / NF4_BLOCK);
    const int64_t row = i / m.K, k = i % m.K;
    return fp8_small(m.codes[i], 0) * (m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + k / FP8_BLOCK] * FP8_UP);
}

#endif
