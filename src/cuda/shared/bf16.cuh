/* What the bfloat16 kernels share: conversions, the tensor core's 16 x 8 x 16 product, fast powers of two.
 *
 * Fragments without shared memory. In a step of 16 along k, the product of a tile takes from thread (g, c) = (lane / 4,
 * lane % 4) the elements k = 2c, 2c+1, 2c+8, 2c+9 of rows g and g+8 of a, and of row g of b. A sum over k is the same
 * whichever k stands where, as long as a and b agree. So thread (g, c) reads the 8 neighbours k = 8c .. 8c+7 of a piece
 * of 32, which are 16 bytes, and they serve two steps: the first step takes its elements 0..3, the second its elements
 * 4..7. */
#ifndef KERNELRL_CUDA_SHARED_BF16_CUH
#define KERNELRL_CUDA_SHARED_BF16_CUH

#include "cuda/shared/device.cuh"

#define LOG2E 1.44269504f
#define MINUS_INFINITY __int_as_float(0xff800000)

static __device__ __forceinline__ float bf16_float(uint16_t x) { return __uint_as_float((unsigned)x << 16); }
static __device__ __forceinline__ float low_float(uint32_t x) { return __uint_as_float(x << 16); }
static __device__ __forceinline__ float high_float(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

/* Two floats, rounded to nearest even. `low` lies in the low half. */
static __device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#else
    const float x[2] = {low, high};
    uint32_t d = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t u = __float_as_uint(x[i]);
        u = x[i] != x[i] ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        d |= u << (16 * i);
    }
    return d;
#endif
}
static __device__ __forceinline__ uint16_t bf16_of(float x) { return (uint16_t)bf16_pair(x, 0.0f); }

/* 2^x by the device's approximation (2 ulp); 0 for -infinity. */
static __device__ __forceinline__ float power_of_two(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

static __device__ __forceinline__ float sigmoid16(float g) { return 1.0f / (1.0f + power_of_two(-(g * LOG2E))); }
static __device__ __forceinline__ float gate16(float g, float u) { return g * sigmoid16(g) * u; } /* SwiGLU */
/* The gradient of SwiGLU for d. With s = sigmoid(g), it is d u s (1 + g (1 - s)) at g, and d g s at u. */
struct gate_grad {
    float gate, up;
};
static __device__ __forceinline__ struct gate_grad grad_of_gate(float d, float g, float u) {
    const float s = 1.0f / (1.0f + power_of_two(-(g * LOG2E))), slope = s * fmaf(g, 1.0f - s, 1.0f);
    return {d * u * slope, d * (g * s)};
}

/* c += a b, with a 16 x 16 and b 16 x 8, both as fragments. */
static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1) {
#ifdef __CUDA_ARCH__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#elif !defined(__CUDACC__)
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    emulate_mma(c, mine);
#endif
}
/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. Thread (g, c) gets of each the elements
 * (g, 2c) and (g, 2c+1), or, transposed, (2c, g) and (2c+1, g). */
template <bool TRANSPOSED> static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint16_t *row) {
#ifdef __CUDA_ARCH__
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
#elif !defined(__CUDACC__)
    emulate_load_matrices(r, row, TRANSPOSED);
#endif
}

/* Both steps of a piece of 32: x and y are rows g and g+8 of a, b is row g of b. */
static __device__ __forceinline__ void mma_piece(float (&c)[4], uint4 x, uint4 y, uint4 b) {
    mma(c, x.x, y.x, x.y, y.y, b.x, b.y);
    mma(c, x.z, y.z, x.w, y.w, b.z, b.w);
}

static __device__ __forceinline__ uint4 zero4() { return make_uint4(0, 0, 0, 0); }
static __device__ __forceinline__ uint4 load16(const void *p) { return *static_cast<const uint4 *>(p); }

/* Reads what another block has written, past this multiprocessor's own cache. */
static __device__ __forceinline__ float2 load_fresh(const float *p) {
#ifdef __CUDA_ARCH__
    return __ldcg(reinterpret_cast<const float2 *>(p));
#else
    return *reinterpret_cast<const float2 *>(p);
#endif
}
static __device__ __forceinline__ float4 load_fresh4(const float *p) {
#ifdef __CUDA_ARCH__
    return __ldcg(reinterpret_cast<const float4 *>(p));
#else
    return *reinterpret_cast<const float4 *>(p);
#endif
}

/* The sum over the four threads that hold a row of a fragment. */
static __device__ __forceinline__ float quad_sum(float x) {
    x = x + __shfl_xor_sync(FULL_WARP, x, 1, 32);
    return x + __shfl_xor_sync(FULL_WARP, x, 2, 32);
}
static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1, 32));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2, 32));
}
static __device__ __forceinline__ float warp_sum(float x) {
    for (int w = 16; w >= 1; w /= 2) x = x + __shfl_xor_sync(FULL_WARP, x, w, 32);
    return x;
}

#endif
