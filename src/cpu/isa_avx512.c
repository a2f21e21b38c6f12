/* The kernels for CPUs with AVX-512F and AVX-512BW. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx2,fma,prefer-vector-width=512")
#define V16_AVX512
#define KERNELS cpu_kernels_avx512
#define BF16_PAIRS cpu_pairs_avx512
#define KERNELS_NAME "avx512"
#include "cpu/kernels_body.h"
#else
typedef int isa_avx512_unused;
#endif
