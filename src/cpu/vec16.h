/* v16: sixteen float lanes. They are one AVX-512 register, two AVX2 registers, or an array. Every function gives the
 * same bits in all three. Only isa_*.c include this file, after defining V16_AVX512, V16_AVX2 or nothing. */
#ifndef KERNELRL_CPU_VEC16_H
#define KERNELRL_CPU_VEC16_H

#include <string.h>

#include "base/base.h"

#if defined(V16_AVX512) || defined(V16_AVX2)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else /* Arrays gain nothing from it, and sanitizers take minutes over the result. */
#define ALWAYS_INLINE static __attribute__((noinline, unused))
#endif

#if defined(V16_AVX512)
#include <immintrin.h>
typedef __m512 v16;
ALWAYS_INLINE __mmask16 v_mask(int64_t n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u); }
ALWAYS_INLINE v16 v_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE v16 v_set1(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
ALWAYS_INLINE v16 v_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
ALWAYS_INLINE void v_store_n(float *p, v16 a, int64_t n) { _mm512_mask_storeu_ps(p, v_mask(n), a); }
ALWAYS_INLINE v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
ALWAYS_INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
/* a < b ? a : b and a > b ? a : b. With a NaN the second operand is taken. */
ALWAYS_INLINE v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
ALWAYS_INLINE v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
/* 2^n times a, where t = n + 1.5*2^23 as a float, so that n sits in the low bits of t. */
ALWAYS_INLINE v16 v_scale2(v16 a, v16 t) {
    __m512i n = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127)), 23);
    return _mm512_mul_ps(a, _mm512_castsi512_ps(n));
}
/* a where !(x < lim), else 0. */
ALWAYS_INLINE v16 v_zero_below(v16 a, v16 x, v16 lim) {
    return _mm512_maskz_mov_ps((__mmask16)~_mm512_cmp_ps_mask(x, lim, _CMP_LT_OQ), a);
}
ALWAYS_INLINE v16 v_first(v16 a, int64_t n) { return _mm512_maskz_mov_ps(v_mask(n), a); } /* Lanes >= n become 0. */
#define V16_NV 4

#elif defined(V16_AVX2)
#include <immintrin.h>
typedef struct {
    __m256 lo, hi;
} v16;
ALWAYS_INLINE v16 v_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
ALWAYS_INLINE v16 v_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ALWAYS_INLINE v16 v_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ALWAYS_INLINE void v_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
ALWAYS_INLINE v16 v_load_n(const float *p, int64_t n) {
    if (n >= 16) return v_load(p);
    float t[16] = {0};
    memcpy(t, p, (size_t)n * sizeof(float));
    return v_load(t);
}
ALWAYS_INLINE void v_store_n(float *p, v16 a, int64_t n) {
    if (n >= 16) {
        v_store(p, a);
        return;
    }
    float t[16];
    v_store(t, a);
    memcpy(p, t, (size_t)n * sizeof(float));
}
ALWAYS_INLINE v16 v_fma(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
ALWAYS_INLINE v16 v_add(v16 a, v16 b) { return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
ALWAYS_INLINE v16 v_sub(v16 a, v16 b) { return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
ALWAYS_INLINE v16 v_mul(v16 a, v16 b) { return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
ALWAYS_INLINE v16 v_div(v16 a, v16 b) { return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
ALWAYS_INLINE v16 v_min(v16 a, v16 b) { return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
ALWAYS_INLINE v16 v_max(v16 a, v16 b) { return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
ALWAYS_INLINE __m256 v_scale2_half(__m256 a, __m256 t) {
    __m256i n = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(n));
}
ALWAYS_INLINE v16 v_scale2(v16 a, v16 t) { return (v16){v_scale2_half(a.lo, t.lo), v_scale2_half(a.hi, t.hi)}; }
ALWAYS_INLINE v16 v_zero_below(v16 a, v16 x, v16 lim) {
    return (v16){_mm256_andnot_ps(_mm256_cmp_ps(x.lo, lim.lo, _CMP_LT_OQ), a.lo),
                 _mm256_andnot_ps(_mm256_cmp_ps(x.hi, lim.hi, _CMP_LT_OQ), a.hi)};
}
ALWAYS_INLINE v16 v_first(v16 a, int64_t n) {
    float t[16];
    v_store(t, a);
    for (int64_t i = n; i < 16; i++) t[i] = 0;
    return v_load(t);
}
#define V16_NV 1

#else /* Plain C is correct on any machine, and is what "reference" means. */
typedef struct {
    float f[16];
} v16;
#define V16_LANES(expr)                            \
    v16 r_;                                        \
    for (int i = 0; i < 16; i++) r_.f[i] = (expr); \
    return r_
ALWAYS_INLINE v16 v_zero(void) { V16_LANES(0.0f); }
ALWAYS_INLINE v16 v_set1(float x) { V16_LANES(x); }
ALWAYS_INLINE v16 v_load(const float *p) { V16_LANES(p[i]); }
ALWAYS_INLINE void v_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }
ALWAYS_INLINE v16 v_load_n(const float *p, int64_t n) { V16_LANES(i < n ? p[i] : 0.0f); }
ALWAYS_INLINE void v_store_n(float *p, v16 a, int64_t n) { memcpy(p, a.f, (size_t)(n < 16 ? n : 16) * sizeof(float)); }
ALWAYS_INLINE v16 v_fma(v16 a, v16 b, v16 c) { V16_LANES(__builtin_fmaf(a.f[i], b.f[i], c.f[i])); }
ALWAYS_INLINE v16 v_add(v16 a, v16 b) { V16_LANES(a.f[i] + b.f[i]); }
ALWAYS_INLINE v16 v_sub(v16 a, v16 b) { V16_LANES(a.f[i] - b.f[i]); }
ALWAYS_INLINE v16 v_mul(v16 a, v16 b) { V16_LANES(a.f[i] * b.f[i]); }
ALWAYS_INLINE v16 v_div(v16 a, v16 b) { V16_LANES(a.f[i] / b.f[i]); }
ALWAYS_INLINE v16 v_min(v16 a, v16 b) { V16_LANES(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
ALWAYS_INLINE v16 v_max(v16 a, v16 b) { V16_LANES(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
ALWAYS_INLINE float v_scale2_lane(float a, float t) {
    uint32_t n;
    memcpy(&n, &t, sizeof n);
    n = (n + 127u) << 23;
    float s;
    memcpy(&s, &n, sizeof s);
    return a * s;
}
ALWAYS_INLINE v16 v_scale2(v16 a, v16 t) { V16_LANES(v_scale2_lane(a.f[i], t.f[i])); }
ALWAYS_INLINE v16 v_zero_below(v16 a, v16 x, v16 lim) { V16_LANES(x.f[i] < lim.f[i] ? 0.0f : a.f[i]); }
ALWAYS_INLINE v16 v_first(v16 a, int64_t n) { V16_LANES(i < n ? a.f[i] : 0.0f); }
#undef V16_LANES
#define V16_NV 1
#endif

/* The fixed fold of sixteen lanes: 8+8, 4+4, 2+2, 1+1. The maximum goes the same way. */
#if defined(V16_AVX512) || defined(V16_AVX2)
ALWAYS_INLINE float v_sum(v16 a) {
#if defined(V16_AVX512)
    __m256 e =
        _mm256_add_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
#else
    __m256 e = _mm256_add_ps(a.lo, a.hi);
#endif
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
ALWAYS_INLINE float v_maximum(v16 a) {
#if defined(V16_AVX512)
    __m256 e =
        _mm256_max_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
#else
    __m256 e = _mm256_max_ps(a.lo, a.hi);
#endif
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
#else
ALWAYS_INLINE float v_sum(v16 a) {
    for (int w = 8; w >= 1; w /= 2)
        for (int i = 0; i < w; i++) a.f[i] += a.f[i + w];
    return a.f[0];
}
ALWAYS_INLINE float v_maximum(v16 a) {
    for (int w = 8; w >= 1; w /= 2)
        for (int i = 0; i < w; i++) a.f[i] = a.f[i] > a.f[i + w] ? a.f[i] : a.f[i + w];
    return a.f[0];
}
#endif

/* exp(x) = 2^n e^r with n = round(x / ln 2) and |r| <= ln2/2, and e^r by its Taylor series to r^7 (the next term is
 * 5e-9 relative). ln 2 is split in two, so that r keeps its low bits. tensor/ops.h has the contract (exp_f32). */
ALWAYS_INLINE v16 v_exp(v16 x) {
    /* 1.5 * 2^23: adding it rounds to an integer. */
    const v16 magic = v_set1(12582912.0f);
    v16 xc = v_min(v_set1(88.3f), x);
    v16 t = v_fma(xc, v_set1(1.44269504f), magic);
    v16 n = v_sub(t, magic);
    v16 r = v_fma(n, v_set1(-0.693359375f), xc);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    v16 p = v_set1(1.0f / 5040.0f);
    p = v_fma(p, r, v_set1(1.0f / 720.0f));
    p = v_fma(p, r, v_set1(1.0f / 120.0f));
    p = v_fma(p, r, v_set1(1.0f / 24.0f));
    p = v_fma(p, r, v_set1(1.0f / 6.0f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_zero_below(v_scale2(p, t), xc, v_set1(-87.3f));
}

#endif
