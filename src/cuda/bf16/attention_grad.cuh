/* What the two kernels of attention's gradient in bfloat16 share: attention_grad.cu and, with warpgroups,
 * attention_grad90.cu. */
#ifndef KERNELRL_CUDA_BF16_ATTENTION_GRAD_CUH
#define KERNELRL_CUDA_BF16_ATTENTION_GRAD_CUH

#include "cuda/shared/attention.cuh"
#include "cuda/shared/bf16.cuh"

/* A 16 x 16 piece of a product's result, two groups of eight columns, as the left side of the next product. */
static __device__ __forceinline__ void as_left(uint32_t (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = bf16_pair(x[0], x[1]);
    a[1] = bf16_pair(x[2], x[3]);
    a[2] = bf16_pair(y[0], y[1]);
    a[3] = bf16_pair(y[2], y[3]);
}
template <int N> static __device__ __forceinline__ void clear(float (&x)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
}

/* The part of dO . O of query row t and head h that elements j..j+7 have; zero behind the head's K. */
static __device__ __forceinline__ float delta_part(const struct cu_attn_grad16 &a, int64_t t, int64_t h, int j) {
    if (j >= a.K) return 0;
    const uint4 x = load16(a.d_o.p + t * a.d_o.ld + h * a.K + j), y = load16(a.o.p + t * a.o.ld + h * a.K + j);
    float s = fmaf(high_float(x.x), high_float(y.x), low_float(x.x) * low_float(y.x));
    s = fmaf(high_float(x.y), high_float(y.y), fmaf(low_float(x.y), low_float(y.y), s));
    s = fmaf(high_float(x.z), high_float(y.z), fmaf(low_float(x.z), low_float(y.z), s));
    return fmaf(high_float(x.w), high_float(y.w), fmaf(low_float(x.w), low_float(y.w), s));
}

#endif
