/* Products of bf16 pairs, compiled once for each instruction set over the vector types of vec16.h. p16 is sixteen
 * pairs. v_dp(acc, a, b) adds a.odd*b.odd, then a.even*b.even. Each is a fused multiply-add that takes subnormal
 * operands and results for zero, as vdpbf16ps does (V16_BF16). On other instruction sets the halves are widened to f32.
 * The bits are equal everywhere.
 *
 * Defines BF16_PAIRS, the table of this instruction set. PAIRS_NO_GEMM leaves the product to the file that includes
 * this one. */

/* ---- sixteen pairs ----------------------------------------------------------------------------------------------- */

/* Rounds to nearest even. Subnormals become zero and NaNs quiet, as with vcvtneps2bf16. */
static inline uint16_t bf16_round(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    if ((u & 0x7f800000u) == 0) return (uint16_t)(u >> 16 & 0x8000u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#if defined(V16_AVX512)
typedef __m512i p16;
ALWAYS_INLINE p16 p_load(const uint16_t *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void p_store(uint16_t *p, p16 a) { _mm512_storeu_si512(p, a); }
ALWAYS_INLINE p16 p_set1(const uint16_t *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
/* Rounds sixteen floats into the low halves of the lanes. */
ALWAYS_INLINE __m512i p_round_low(v16 x) {
#if defined(V16_BF16)
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
#else
    const __m512i u = _mm512_castps_si512(x), all = _mm512_set1_epi32(0x7fffffff), exp = _mm512_set1_epi32(0x7f800000);
    const __m512i mag = _mm512_and_si512(u, all), high = _mm512_srli_epi32(u, 16);
    __m512i r =
        _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1))));
    r = _mm512_srli_epi32(r, 16);
    r = _mm512_mask_and_epi32(r, _mm512_testn_epi32_mask(u, exp), high, _mm512_set1_epi32(0x8000));
    return _mm512_mask_or_epi32(r, _mm512_cmpgt_epi32_mask(mag, exp), high, _mm512_set1_epi32(0x40));
#endif
}
ALWAYS_INLINE void p_round_store(uint16_t *p, v16 x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(p_round_low(x)));
}
/* Makes pairs (even, odd) of rounded floats. */
ALWAYS_INLINE p16 p_round_pair(v16 even, v16 odd) {
    return _mm512_or_si512(p_round_low(even), _mm512_slli_epi32(p_round_low(odd), 16));
}
#if defined(V16_BF16)
ALWAYS_INLINE v16 v_dp(v16 acc, p16 a, p16 b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
#else
ALWAYS_INLINE v16 p_odd(p16 a) { return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u))); }
ALWAYS_INLINE v16 p_even(p16 a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
#endif

#elif defined(V16_AVX2)
typedef struct {
    __m256i lo, hi;
} p16;
ALWAYS_INLINE p16 p_load(const uint16_t *p) {
    return (p16){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 16))};
}
ALWAYS_INLINE p16 p_set1(const uint16_t *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (p16){_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
ALWAYS_INLINE v16 p_odd(p16 a) {
    const __m256i m = _mm256_set1_epi32((int)0xffff0000u);
    return (v16){_mm256_castsi256_ps(_mm256_and_si256(a.lo, m)), _mm256_castsi256_ps(_mm256_and_si256(a.hi, m))};
}
ALWAYS_INLINE v16 p_even(p16 a) {
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}

#else
typedef struct {
    uint16_t h[32];
} p16;
ALWAYS_INLINE p16 p_load(const uint16_t *p) {
    p16 r;
    memcpy(r.h, p, sizeof r.h);
    return r;
}
ALWAYS_INLINE p16 p_set1(const uint16_t *p) {
    p16 r;
    for (int i = 0; i < 16; i++) memcpy(r.h + 2 * i, p, 2 * sizeof *p);
    return r;
}
ALWAYS_INLINE float p_flush(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7f800000u) == 0) u &= 0x80000000u;
    memcpy(&x, &u, sizeof x);
    return x;
}
ALWAYS_INLINE float p_widen(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return p_flush(x);
}
ALWAYS_INLINE v16 v_dp(v16 acc, p16 a, p16 b) {
    for (int i = 0; i < 16; i++) {
        float c = p_flush(acc.f[i]);
        c = p_flush(__builtin_fmaf(p_widen(a.h[2 * i + 1]), p_widen(b.h[2 * i + 1]), c));
        acc.f[i] = p_flush(__builtin_fmaf(p_widen(a.h[2 * i]), p_widen(b.h[2 * i]), c));
    }
    return acc;
}
#endif

/* With widened pairs the processor itself must take subnormals for zero: bits 6 and 15 of MXCSR. */
#if (defined(V16_AVX512) || defined(V16_AVX2)) && !defined(V16_BF16)
ALWAYS_INLINE v16 v_dp(v16 acc, p16 a, p16 b) { return v_fma(p_even(a), p_even(b), v_fma(p_odd(a), p_odd(b), acc)); }
UNUSED static unsigned subnormals_off(void) {
    const unsigned old = _mm_getcsr();
    _mm_setcsr(old | 0x8040u);
    return old;
}
UNUSED static void subnormals_restore(unsigned old) { _mm_setcsr(old); }
#else
UNUSED static unsigned subnormals_off(void) { return 0; }
UNUSED static void subnormals_restore(unsigned old) { (void)old; }
#endif

#if !defined(V16_AVX512)
ALWAYS_INLINE void p_round_store(uint16_t *p, v16 x) {
    float t[16];
    v_store(t, x);
    for (int i = 0; i < 16; i++) p[i] = bf16_round(t[i]);
}
#endif

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static void pair_round_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct round_args *p = ctx;
    const int64_t n = p->x.cols;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)p->x.data + t * p->x.ld;
        /* lda is a multiple of 32, so whole vectors fit. */
        uint16_t *out = p->out + t * p->lda;
        int64_t j = 0;
        for (; j + 16 <= n; j += 16) p_round_store(out + j, v_load(x + j));
        if (j < n) p_round_store(out + j, v_load_n(x + j, n - j)), j += 16;
        if (j < p->lda) memset(out + j, 0, (size_t)(p->lda - j) * sizeof *out);
    }
}

/* Reads sixteen columns of x from row t on, as 16 vectors of pairs (x[t+2i][j], x[t+2i+1][j]), with zeros beyond T and
 * n. */
#if defined(V16_AVX512)
ALWAYS_INLINE p16 pair_of_rows(const struct tensor *x, int64_t t, int64_t j) {
    const float *a = (const float *)x->data + t * x->ld + j;
    const int64_t n = x->cols - j;
    const v16 even = t < x->rows ? v_load_n(a, n) : v_zero(), odd = t + 1 < x->rows ? v_load_n(a + x->ld, n) : v_zero();
    return p_round_pair(even, odd);
}

/* Transposes 16x16 lanes of 32 bits: pairs of lanes, then pairs of two lanes, then quarters of 128 bits twice. */
ALWAYS_INLINE void transpose16(__m512i r[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
#endif

static void pair_round_transposed(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct round_args *p = ctx;
    for (int64_t j = begin; j < end; j += 16) {
        const int64_t cols = i64_min(16, end - j);
        for (int64_t t = 0; t < p->lda; t += 32) {
#if defined(V16_AVX512)
            __m512i r[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) r[i] = pair_of_rows(&p->x, t + 2 * i, j);
            transpose16(r);
            for (int64_t i = 0; i < cols; i++) p_store(p->out + (j + i) * p->lda + t, r[i]);
#else
            for (int64_t s = t; s < t + 32; s++) {
                const float *x = (const float *)p->x.data + s * p->x.ld + j;
                for (int64_t i = 0; i < cols; i++)
                    p->out[(j + i) * p->lda + s] = s < p->x.rows ? bf16_round(x[i]) : (uint16_t)0;
            }
#endif
        }
    }
}

static void pair_pack_transposed(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct round_args *p = ctx;
    for (int64_t panel = begin; panel < end; panel++) {
        uint16_t *out = p->out + panel * p->lda * PAIR_PANEL;
        for (int64_t t = 0; t < p->lda; t += 2)
            for (int64_t j = 0; j < PAIR_PANEL; j += 16) {
                uint16_t *pair = out + (t / 2 * PAIR_PANEL + j) * 2;
#if defined(V16_AVX512)
                p_store(pair, panel * PAIR_PANEL + j < p->x.cols ? pair_of_rows(&p->x, t, panel * PAIR_PANEL + j)
                                                                 : _mm512_setzero_si512());
#else
                for (int64_t i = 0; i < 16; i++)
                    for (int64_t h = 0; h < 2; h++) {
                        const int64_t col = panel * PAIR_PANEL + j + i;
                        const bool in = col < p->x.cols && t + h < p->x.rows;
                        pair[2 * i + h] =
                            in ? bf16_round(((const float *)p->x.data)[(t + h) * p->x.ld + col]) : (uint16_t)0;
                    }
#endif
            }
    }
}

/* ---- linear_dx reads the weight of linear ------------------------------------------------------------------------ */

/* Writes up to PAIR_KC pairs of rows n0, n0+1, ... (n0 a multiple of PAIR_PANEL) of the packed matrix, for its columns
 * [c0, c0+PAIR_PANEL): out [pair of rows][PAIR_PANEL] of (w[n][c], w[n+1][c]). Every 64 bits of a panel hold a 2x2
 * block of the matrix. The 64-bit words are transposed, and the two middle elements of each change places. */
static void pairs_of_rows(uint16_t *out, const struct gemm16 *g, int64_t n0, int64_t pairs, int64_t c0) {
    /* So many pairs of columns there are. */
    const int64_t words = i64_min(PAIR_PANEL / 2, (g->b_pad - c0) / 2);
    for (int64_t i0 = 0; i0 < pairs; i0 += PAIR_PANEL / 2) {
        uint16_t block[PAIR_PANEL * PAIR_PANEL]; /* Of a matrix in codes: its part of 16 pairs. */
        const int64_t first = n0 + 2 * i0;
        const uint16_t *src = g->coded ? block : pair_panel(g->b, first / PAIR_PANEL, g->b_pad) + c0 * PAIR_PANEL;
        uint16_t *dst = out + i0 * PAIR_PANEL * 2;
        const int64_t rows = i64_min(PAIR_PANEL / 2, pairs - i0);
        if (g->coded) coded_block(g->coded, (g->row0 + first) / PAIR_PANEL, c0 / 2, words, block);
        if (words < PAIR_PANEL / 2) memset(dst, 0, (size_t)(rows * PAIR_PANEL * 2) * sizeof *dst);
#if defined(V16_AVX512)
        const int64_t step = g->coded ? 0 : 6 * g->b_pad * PAIR_PANEL;
        for (int64_t i = 0; i < rows; i += 8)
            for (int64_t j = 0; j < words; j += 8) { /* words is a multiple of 16. */
                __m512i r[8], t[8];
                for (int k = 0; k < 8; k++) /* Pieces lie far apart, so the sixth from here is fetched. */
                    __builtin_prefetch(src + step + ((j + k) * PAIR_PANEL / 2 + i) * 4, 0, 2);
#pragma GCC unroll 8
                for (int k = 0; k < 8; k++) {
                    /* Memory holds a b c d, with rows (a b) and (c d). The middle two of every 64 bits change
                     * places. */
                    const __m512i x = _mm512_loadu_si512(src + ((j + k) * PAIR_PANEL / 2 + i) * 4);
                    const __m512i b = _mm512_and_si512(_mm512_slli_epi64(x, 16), _mm512_set1_epi64(0xffff00000000));
                    const __m512i c = _mm512_and_si512(_mm512_srli_epi64(x, 16), _mm512_set1_epi64(0xffff0000));
                    r[k] = _mm512_ternarylogic_epi64(_mm512_set1_epi64(0xffffffff0000), _mm512_or_si512(b, c), x, 0xca);
                }
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++) {
                    t[2 * k] = _mm512_unpacklo_epi64(r[2 * k], r[2 * k + 1]);
                    t[2 * k + 1] = _mm512_unpackhi_epi64(r[2 * k], r[2 * k + 1]);
                }
#pragma GCC unroll 2
                for (int k = 0; k < 2; k++) {
                    r[k] = _mm512_shuffle_i64x2(t[k], t[k + 2], 0x88);
                    r[k + 2] = _mm512_shuffle_i64x2(t[k], t[k + 2], 0xdd);
                    r[k + 4] = _mm512_shuffle_i64x2(t[k + 4], t[k + 6], 0x88);
                    r[k + 6] = _mm512_shuffle_i64x2(t[k + 4], t[k + 6], 0xdd);
                }
#pragma GCC unroll 2
                for (int k = 0; k < 2; k++) {
                    t[k] = _mm512_shuffle_i64x2(r[k], r[k + 4], 0x88);
                    t[k + 4] = _mm512_shuffle_i64x2(r[k], r[k + 4], 0xdd);
                    t[k + 2] = _mm512_shuffle_i64x2(r[k + 2], r[k + 6], 0x88);
                    t[k + 6] = _mm512_shuffle_i64x2(r[k + 2], r[k + 6], 0xdd);
                }
#pragma GCC unroll 8
                for (int k = 0; k < 8; k++)
                    if (i + k < rows) _mm512_storeu_si512(dst + ((i + k) * PAIR_PANEL / 2 + j) * 4, t[k]);
            }
#else
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < words; j++) {
                const uint16_t *s = src + (j * PAIR_PANEL / 2 + i) * 4;
                uint16_t *d = dst + (i * PAIR_PANEL / 2 + j) * 4;
                d[0] = s[0], d[1] = s[2], d[2] = s[1], d[3] = s[3];
            }
#endif
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

#ifndef PAIRS_NO_GEMM

/* Multiplies mr rows by nv vectors of columns over `pairs` pairs. Each step also fetches `lines` cache lines from
 * `ahead` on, for the next block. bias NULL: c holds the old values, or begins at zero. */
typedef void pair_micro_fn(int64_t pairs, const uint16_t *a, int64_t lda, const uint16_t *b, const uint16_t *ahead,
                           float *c, int64_t ldc, const float *bias, enum micro_init init);

ALWAYS_INLINE void pair_micro(const int mr, const int nv, const int lines, int64_t pairs, const uint16_t *a,
                              int64_t lda, const uint16_t *b, const uint16_t *ahead, float *c, int64_t ldc,
                              const float *bias, enum micro_init init) {
    v16 acc[12][2];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++) {
            if (init == INIT_ZERO)
                acc[i][j] = v_zero();
            else
                acc[i][j] = v_load(init == INIT_BIAS ? bias + 16 * j : c + i * ldc + 16 * j);
        }
    for (int64_t k = 0; k < pairs; k++) {
        p16 bv[2];
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++) bv[j] = p_load(b + 32 * j);
#pragma GCC unroll 4
        for (int j = 0; j < lines; j++) __builtin_prefetch(ahead + 32 * j, 0, lines == 1 ? 2 : 3);
#pragma GCC unroll 12
        for (int i = 0; i < mr; i++) {
            const p16 av = p_set1(a + i * lda);
#pragma GCC unroll 2
            for (int j = 0; j < nv; j++) acc[i][j] = v_dp(acc[i][j], av, bv[j]);
        }
        a += 2;
        b += 2 * PAIR_PANEL;
        ahead += 32 * lines;
    }
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 2
        for (int j = 0; j < nv; j++) v_store(c + i * ldc + 16 * j, acc[i][j]);
}

#define PAIR_MICRO(mr, nv, lines)                                                                          \
    static __attribute__((noinline)) void pair_micro_##mr##_##nv##_##lines(                                \
        int64_t pairs, const uint16_t *a, int64_t lda, const uint16_t *b, const uint16_t *ahead, float *c, \
        int64_t ldc, const float *bias, enum micro_init init) {                                            \
        pair_micro(mr, nv, lines, pairs, a, lda, b, ahead, c, ldc, bias, init);                            \
    }
/* `lines`: with several passes of rows over a block, each pass fetches 1 line a step of the next block into the
 * second-level cache, so that memory works all the time. A single pass is a stream: it fetches the 2 lines of the step
 * PAIR_AHEAD elements on. */
enum { PAIR_AHEAD = 4096 };
#define PAIR_MICRO_12(nv, lines) \
    PAIR_MICRO(1, nv, lines)     \
    PAIR_MICRO(2, nv, lines)     \
    PAIR_MICRO(3, nv, lines)     \
    PAIR_MICRO(4, nv, lines)     \
    PAIR_MICRO(5, nv, lines)     \
    PAIR_MICRO(6, nv, lines)     \
    PAIR_MICRO(7, nv, lines)     \
    PAIR_MICRO(8, nv, lines)     \
    PAIR_MICRO(9, nv, lines) PAIR_MICRO(10, nv, lines) PAIR_MICRO(11, nv, lines) PAIR_MICRO(12, nv, lines)
#define PAIR_ROW_12(nv, lines)                                                                 \
    pair_micro_1_##nv##_##lines, pair_micro_2_##nv##_##lines, pair_micro_3_##nv##_##lines,     \
        pair_micro_4_##nv##_##lines, pair_micro_5_##nv##_##lines, pair_micro_6_##nv##_##lines, \
        pair_micro_7_##nv##_##lines, pair_micro_8_##nv##_##lines, pair_micro_9_##nv##_##lines, \
        pair_micro_10_##nv##_##lines, pair_micro_11_##nv##_##lines, pair_micro_12_##nv##_##lines
#if V16_NV == 4
PAIR_MICRO_12(2, 2)
PAIR_MICRO_12(2, 1)
enum { PAIR_ROWS = 12, PAIR_WIDE = 12 };
static pair_micro_fn *const pair_table[2][PAIR_ROWS] = {{PAIR_ROW_12(2, 2)}, {PAIR_ROW_12(2, 1)}};
#else
PAIR_MICRO(1, 2, 2)
PAIR_MICRO(2, 2, 2)
PAIR_MICRO(1, 2, 1)
PAIR_MICRO(2, 2, 1)
PAIR_MICRO(3, 1, 1)
PAIR_MICRO(4, 1, 1)
/* So many rows fill the registers with one panel's width, more with half of it. */
enum { PAIR_ROWS = 4, PAIR_WIDE = 2 };
static pair_micro_fn *const pair_table[2][PAIR_ROWS] = {
    {pair_micro_1_2_2, pair_micro_2_2_2, pair_micro_3_1_1, pair_micro_4_1_1},
    {pair_micro_1_2_1, pair_micro_2_2_1, pair_micro_3_1_1, pair_micro_4_1_1}};
#endif

/* Multiplies a whole panel's width of columns. c and bias must hold that many. ahead: the block that comes after b. */
static void pair_panel_product(int64_t m, int64_t pairs, const uint16_t *a, int64_t lda, const uint16_t *b,
                               const uint16_t *ahead, float *c, int64_t ldc, const float *bias, enum micro_init init) {
    const int64_t passes = (m + PAIR_ROWS - 1) / PAIR_ROWS, rows = m / passes, more = m % passes;
    pair_micro_fn *const *fn = pair_table[passes > 1];
    if (passes == 1) ahead = b + PAIR_AHEAD;
    for (int64_t i = 0, pass = 0; i < m; pass++) { /* Rows are shared out evenly: 16 rows are 8+8, not 12+4. */
        const int64_t mr = rows + (pass < more), columns = mr <= PAIR_WIDE ? PAIR_PANEL : PAIR_PANEL / 2;
        /* This is one half of the next block, or the other. */
        const uint16_t *fetch = ahead + (pass & 1) * pairs * PAIR_PANEL;
        for (int64_t j = 0; j < PAIR_PANEL; j += columns)
            fn[mr - 1](pairs, a + i * lda, lda, b + 2 * j, fetch, c + i * ldc + j, ldc, bias ? bias + j : NULL, init);
        i += mr;
    }
}

/* The last panel is narrower: its product is made in a buffer of whole panels. */
static void pair_edge_product(int64_t m, int64_t nc, int64_t pairs, const uint16_t *a, int64_t lda, const uint16_t *b,
                              const uint16_t *ahead, float *c, int64_t ldc, const float *bias, enum micro_init init) {
    float t[12 * PAIR_PANEL];
    memset(t, 0, sizeof t);
    for (int64_t i = 0; i < m; i += 12) {
        const int64_t mr = i64_min(12, m - i);
        for (int64_t r = 0; r < mr; r++)
            if (init != INIT_ZERO)
                memcpy(t + r * PAIR_PANEL, init == INIT_BIAS ? bias : c + (i + r) * ldc, (size_t)nc * sizeof *t);
        pair_panel_product(mr, pairs, a + i * lda, lda, b, ahead, t, PAIR_PANEL, NULL,
                           init == INIT_ZERO ? INIT_ZERO : INIT_LOAD);
        for (int64_t r = 0; r < mr; r++) memcpy(c + (i + r) * ldc, t + r * PAIR_PANEL, (size_t)nc * sizeof *t);
    }
}

static void pair_gemm_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct gemm16 *g = ctx;
    uint16_t *scratch = g->b_rows || g->coded ? g->scratch + (int64_t)thread * PAIR_SCRATCH : NULL;
    const int64_t all = (g->K + 1) / 2, most = g->coded && !g->b_rows ? CODED_KC : PAIR_KC;
    const unsigned saved = subnormals_off();
    for (int64_t item = begin; item < end; item++) {
        int64_t panel, r0;
        gemm16_item(g, item, &panel, &r0);
        const int64_t n0 = panel * PAIR_PANEL, nc = i64_min(PAIR_PANEL, g->N - n0), m = i64_min(g->chunk, g->M - r0);
        float *c = g->c + r0 * g->ldc + n0;
        const float *bias = g->bias ? g->bias + n0 : NULL;
        enum micro_init init = g->accumulate ? INIT_LOAD : bias ? INIT_BIAS : INIT_ZERO;
        int64_t p0 = 0;
        do { /* This runs once for an empty reduction, which still writes c. */
            const int64_t pairs = i64_min(most, all - p0);
            const uint16_t *b = scratch, *a = g->a + r0 * g->lda + 2 * p0;
            if (g->coded) subnormals_restore(saved); /* The products' own way does not decode codes. */
            if (g->b_rows)
                pairs_of_rows(scratch, g, 2 * p0, pairs, n0);
            else if (g->coded)
                coded_block(g->coded, panel, p0, pairs, scratch);
            else
                b = pair_panel(g->b, panel, g->b_pad) + p0 * PAIR_PANEL * 2;
            if (g->coded) subnormals_off();
            const uint16_t *ahead = b == scratch ? b : b + pairs * PAIR_PANEL * 2;
            if (nc == PAIR_PANEL)
                pair_panel_product(m, pairs, a, g->lda, b, ahead, c, g->ldc, bias, init);
            else
                pair_edge_product(m, nc, pairs, a, g->lda, b, ahead, c, g->ldc, bias, init);
            init = INIT_LOAD;
            p0 += most;
        } while (p0 < all);
    }
    subnormals_restore(saved);
}

const struct cpu_pair_kernels BF16_PAIRS = {pair_gemm_items, pair_round_rows, pair_round_transposed,
                                            pair_pack_transposed};
#endif
