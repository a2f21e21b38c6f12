/* The kernels for CPUs with AVX2 and FMA. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define V16_AVX2
#define KERNELS cpu_kernels_avx2
#define BF16_PAIRS cpu_pairs_avx2
#define KERNELS_NAME "avx2"
#include "cpu/kernels_body.h"
#else
typedef int isa_avx2_unused;
#endif
