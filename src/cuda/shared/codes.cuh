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

/* The scale of a block of the list; it lies at place `at` of absmax or of the scales. */
static __device__ __forceinline__ float nf4_scale_of(const struct cu_coded &m, int64_t block, int64_t at) {
    return m.absmax ? m.nested_map[m.absmax[at]] * m.nested[block / NF4_NESTED] + m.offset : m.scale[at];
}
/* Code i of the list. */
static __device__ __forceinline__ unsigned nf4_code_of(const struct cu_coded &m, int64_t i) {
    return i % 2 ? m.codes[i / 2] & 15u : (unsigned)m.codes[i / 2] >> 4;
}

/* Weight i of the list. */
static __device__ __forceinline__ float coded_value(const struct cu_coded &m, int64_t i) {
    if (m.format == FORMAT_NF4) return m.map[nf4_code_of(m, i)] * nf4_scale_of(m, i / NF4_BLOCK, i / NF4_BLOCK);
    const int64_t row = i / m.K, k = i % m.K;
    return fp8_small(m.codes[i], 0) * (m.scale[row / FP8_BLOCK * ceil_div(m.K, FP8_BLOCK) + k / FP8_BLOCK] * FP8_UP);
}

/* ---- fragments ----
 * Tiles of 64 rows and 64 columns, tile after tile along K. Warp w of the four that read a tile has its rows 16 w..,
 * and its lane (g, c) = (lane / 4, lane % 4) has of step s (columns 16 s..) what mma wants of the first operand: of the
 * rows g and g + 8 the columns 2c, 2c+1, then of both the columns 2c+8, 2c+9. These eight codes are bytes of two words,
 * or half-bytes of one, the first lowest. A lane's words of the four steps lie in 16 bytes, or (FP8) twice 16 bytes,
 * 512 apart. */
template <int FORMAT> struct fragment {
    enum { LOADS = FORMAT == FORMAT_FP8 ? 2 : 1, WARP_BYTES = LOADS * 512, TILE_BYTES = 4 * WARP_BYTES };
    uint4 w[LOADS];
};
template <int FORMAT>
static __device__ __forceinline__ void fragment_load(struct fragment<FORMAT> &f, const uint8_t *codes, int64_t tile,
                                                     int warp, int lane) {
    const uint8_t *const p = codes + tile * fragment<FORMAT>::TILE_BYTES + warp * fragment<FORMAT>::WARP_BYTES;
#pragma unroll
    for (int i = 0; i < fragment<FORMAT>::LOADS; i++)
        f.w[i] = *reinterpret_cast<const uint4 *>(p + i * 512 + lane * 16);
}
/* Word i of a vector. */
static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
/* Step s, decoded: the registers of mma's first operand. low and high: the scales of the rows g and g + 8 (FP8: times
 * FP8_UP, and equal). map: the values of NF4, entry by entry for each lane. */
template <int FORMAT>
static __device__ __forceinline__ void fragment_decode(uint32_t (&a)[4], const struct fragment<FORMAT> &f, int s,
                                                       float low, float high, const float (*map)[32], int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float scale = i % 2 ? high : low;
        float x, y;
        if (FORMAT == FORMAT_FP8) {
            const uint32_t codes = word_of(f.w[s / 2 % fragment<FORMAT>::LOADS], s % 2 * 2 + i / 2);
            x = fp8_small(codes, i % 2 * 2), y = fp8_small(codes, i % 2 * 2 + 1);
        } else {
            const uint32_t codes = word_of(f.w[0], s) >> (8 * i);
            x = map[codes & 15u][lane], y = map[codes >> 4 & 15u][lane];
        }
        a[i] = bf16_pair(x * scale, y * scale);
    }
}

#endif
