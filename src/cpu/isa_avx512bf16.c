/* Products of bf16 pairs for CPUs with AVX512_BF16. isa_avx512.c has the other kernels. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512bf16,avx2,fma,prefer-vector-width=512")
#define V16_AVX512
#define V16_BF16
#define BF16_PAIRS cpu_pairs_avx512bf16
#include "cpu/coded.h"
#include "cpu/vec16.h"

#include "cpu/coded_body.h"

#include "cpu/bf16_pairs_body.h"
#else
typedef int isa_avx512bf16_unused;
#endif
