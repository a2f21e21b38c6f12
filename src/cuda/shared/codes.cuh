/* Turns quantised weights (codes, tensor/formats.h) into float32 in kernels: the value of the code times its scale.
 * Each operation is rounded, in the order of tensor/formats.h. The weights of a matrix, row by row, are its list. */
#ifndef KERNELRL_CUDA_SHARED_CODES_CUH
#define KERNELRL_CUDA_SHARED_CODES_CUH

#include "cuda/shared/bf16.cuh"

/* The value of the FP8 code in byte `at` (0..3) of a word, times 2^-120: the code's bits as they are, at the place of a
 * float's. */
static __device__ __forceinline__ float fp8_small(uint32_t word, int at) {
    const int32_t top = (int32_t)(word << (24 - 8 * at));
    return __uint_as_float((uint32_t)(top >> 4) & 0x87f00000u);
}
/* 2^120, which makes good for fp8_small. A scale times this is exact, because no scale is above CODED_LARGEST_SCALE. */
#define FP8_UP __uint_as_float((127u + 120u) << 23)

/* The scale of a block of NF4, which may itself be in codes (absmax). */
static __device__ __forceinline__ float nf4_scale_of(const struct cu_coded &m, int64_t block) {
    return m.absmax ? m.nested_map[m.absmax[block]] * m.nested[block / NF4_NESTED] + m.offset : m.scale[block];
}
/* The NF4 code of weight i of the list. Even i lie in the high half of a byte; in a unit they lie in the low half. */
static __device__ __forceinline__ unsigned nf4_code_of(const struct cu_coded &m, int64_t i) {
    return i % 2 ? m.codes[i / 2] & 15u : (unsigned)m.codes[i / 2] >> 4;
}

/* The value of weight i of the list. */
static __device__ __forceinline__ float coded_value(const struct cu_coded &m, int64_t i) {
    if (m.format == FORMAT_NF4) return m.map[nf4_code_of(m, i)] * nf4_scale_of(m, i / NF4_BLOCK);
    const int64_t row = i / m.K, k = i % m.K;
    return fp8_small(m.codes[i], 0) * (m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + k / FP8_BLOCK] * FP8_UP);
}

/* The values of two FP8 codes: x of the low byte, y of the byte above it. Both ways give the same bits. */
static __device__ __forceinline__ float2 fp8_pair(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t half;
    float2 v;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(half) : "h"((uint16_t)codes));
    asm("{ .reg .f16 x, y;\nmov.b32 {x, y}, %2;\ncvt.f32.f16 %0, x;\ncvt.f32.f16 %1, y; }"
        : "=f"(v.x), "=f"(v.y)
        : "r"(half));
    return v;
#else
    return make_float2(fp8_small(codes, 0) * FP8_UP, fp8_small(codes, 1) * FP8_UP);
#endif
}

/* ---- units ----
 * A unit holds the codes of CU_STRIP rows and 64 columns in the order in which a warp wants them for the tensor core's
 * product (mma, bf16.cuh), which takes four steps of 16 columns. Let g = lane / 4 and c = lane % 4. In each step a lane
 * needs eight codes: columns 2c and 2c+1 of row g, the same of row g + 8, then columns 2c+8 and 2c+9 of row g and of
 * row g + 8. In FP8 they are the bytes of two words, in NF4 the half-bytes of one word, in this order from the lowest.
 * So the four steps of a lane take 16 bytes in NF4, at 16 * lane. In FP8 they take two times 16 bytes: the first two
 * steps at 16 * lane, the others 512 bytes behind them. Behind the codes a unit of NF4 has the scales (or their codes,
 * absmax) of its rows, those of rows g and g + 8 side by side. */
template <int FORMAT> struct unit_codes {
    enum { LOADS = FORMAT == FORMAT_FP8 ? 2 : 1, BYTES = LOADS * 512 };
    uint4 w[LOADS];
};
/* Where in m.codes the unit of a row, and of the 64 columns from 64 * panel on, begins. */
static __device__ __forceinline__ int64_t unit_at(const struct cu_coded &m, int64_t row, int64_t panel) {
    return (row / CU_STRIP * (m.K / 64) + panel) * m.unit;
}
template <int FORMAT>
static __device__ __forceinline__ void unit_load(struct unit_codes<FORMAT> &u, const uint8_t *unit, int lane) {
#pragma unroll
    for (int i = 0; i < unit_codes<FORMAT>::LOADS; i++)
        u.w[i] = *reinterpret_cast<const uint4 *>(unit + i * 512 + lane * 16);
}
/* The scales of rows g and g + 8 of a unit of NF4. nested: what unit_nested gives. */
static __device__ __forceinline__ float2 unit_scales(const struct cu_coded &m, const uint8_t *unit, int lane,
                                                     float2 nested, const float *nested_map) {
    const uint8_t *const p = unit + unit_codes<FORMAT_NF4>::BYTES;
    if (!m.absmax) return reinterpret_cast<const float2 *>(p)[lane / 4];
    const uint32_t both = reinterpret_cast<const uint16_t *>(p)[lane / 4];
    return make_float2(nested_map[both & 255u] * nested.x + m.offset, nested_map[both >> 8] * nested.y + m.offset);
}
/* Where NF4's scales are in codes: the scale of the code that a row has for a panel. */
static __device__ __forceinline__ const float *nested_at(const struct cu_coded &m, int64_t row, int64_t panel) {
    return &m.nested[(row * (m.K / NF4_BLOCK) + panel) / NF4_NESTED];
}
/* The same of rows g and g + 8 of a unit that begins with `row`; zeros where scales are no codes. */
static __device__ __forceinline__ float2 unit_nested(const struct cu_coded &m, int64_t row, int64_t panel, int lane) {
    if (!m.absmax) return make_float2(0, 0);
    return make_float2(*nested_at(m, row + lane / 4, panel), *nested_at(m, row + lane / 4 + 8, panel));
}
static __device__ __forceinline__ const float *fp8_scale_at(const struct cu_coded &m, int64_t row, int64_t panel) {
    return &m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + panel * 64 / FP8_BLOCK];
}
/* Word i of a vector. */
static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
/* Decodes step s of a unit into the registers of mma's first operand, in bfloat16. scale: of rows g and g + 8.
 * nf4(word, i) gives the values of the two NF4 codes in byte i of a word. */
template <int FORMAT, typename F>
static __device__ __forceinline__ void unit_decode(uint32_t (&a)[4], const struct unit_codes<FORMAT> &u, int s,
                                                   float2 scale, F nf4) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float by = i % 2 ? scale.y : scale.x;
        const uint32_t word = FORMAT == FORMAT_FP8 ? word_of(u.w[s / 2 % unit_codes<FORMAT>::LOADS], s % 2 * 2 + i / 2)
                                                   : word_of(u.w[0], s);
        const float2 v = FORMAT == FORMAT_FP8 ? fp8_pair(i % 2 ? word >> 16 : word) : nf4(word, i);
        a[i] = bf16_pair(v.x * by, v.y * by);
    }
}

#endif
