/* Copies from global to shared memory that nobody waits for until async_wait. Where the code is not compiled for a
 * device by nvcc, they happen at once. */
#ifndef KERNELRL_CUDA_SHARED_ASYNC_CUH
#define KERNELRL_CUDA_SHARED_ASYNC_CUH

#include "cuda/shared/bf16.cuh"

/* Copies 16 bytes from global to shared memory, or writes zeros, without waiting. async_wait<n> waits for all but the
 * last n groups. */
static __device__ __forceinline__ void async_copy16(uint16_t *to, const uint16_t *from, bool in) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(in ? 16 : 0));
#else
    *reinterpret_cast<uint4 *>(to) = in ? load16(from) : zero4();
#endif
}
/* The same to an address in shared memory that is computed before. Copies side by side then differ only by what they
 * add to it. */
#ifdef __CUDA_ARCH__
typedef unsigned shared_place;
static __device__ __forceinline__ shared_place place_of(void *p) { return (unsigned)__cvta_generic_to_shared(p); }
#else
typedef char *shared_place;
static __device__ __forceinline__ shared_place place_of(void *p) { return static_cast<char *>(p); }
#endif
static __device__ __forceinline__ void async_copy16_at(shared_place to, const uint16_t *from) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
#else
    *reinterpret_cast<uint4 *>(to) = load16(from);
#endif
}
static __device__ __forceinline__ void async_copy8(float *to, const float *from, bool in) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(in ? 8 : 0));
#else
    to[0] = in ? from[0] : 0.0f;
    to[1] = in ? from[1] : 0.0f;
#endif
}
static __device__ __forceinline__ void async_copy4(float *to, const float *from, bool in) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(in ? 4 : 0));
#else
    *to = in ? *from : 0.0f;
#endif
}
static __device__ __forceinline__ void async_group(void) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> static __device__ __forceinline__ void async_wait(void) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
