/* Decoding of matrices in codes for products, compiled once for each instruction set. A block of a panel becomes what a
 * packed bf16 matrix would hold there, in a thread's scratch; the usual micro-kernels multiply it. All instruction sets
 * give equal numbers: codes times scales in f32, rounded to nearest even. That needs the limits that tensor/formats.h
 * sets and loading enforces: there is no NaN, a scale times 2^120 is finite, and each weight is 0 or a normal number
 * (vcvtne2ps2bf16 makes zeros of subnormal numbers, and the other ways would not). */

/* What a panel's outputs are decoded with. */
struct coded_lanes {
    const struct coded_part *part[PAIR_PANEL]; /* the part that an output's row is of; NULL: rows behind the last */
    /* true: blocks of scales begin at k = 0 in every row, so that all outputs change their scales at the same k.
     * false: K is no multiple of NF4's block, which runs on from one row into the next. */
    bool whole;
};

static void coded_lanes_of(struct coded_lanes *l, const struct coded *c, int64_t panel) {
    const struct coded_part *part = NULL;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        const int64_t n = panel * PAIR_PANEL + j;
        if (!part || n < part->row || n >= part->row + part->m.rows) part = coded_part_of(c, n);
        l->part[j] = part;
    }
    l->whole = c->format == FORMAT_FP8 || c->K % NF4_BLOCK == 0;
}

static float coded_scale_of(const struct coded *c, const struct coded_part *part, int64_t n, int64_t k) {
    const int64_t row = n - part->row;
    return c->format == FORMAT_FP8 ? part->m.scale[row / FP8_BLOCK * format_blocks(c->K, FP8_BLOCK) + k / FP8_BLOCK]
                                   : nf4_scale(&part->m, (row * c->K + k) / NF4_BLOCK);
}

/* Fills in the scales of a panel's outputs at `pair`, and returns the first pair behind it at which one may change. An
 * output has two scales, for k even and odd, in the order of a unit's words: output 8 v + i at 16 v + 2 i, and one
 * behind. The scale is 0 for an output behind the last and for k from K on. */
static int64_t coded_scales(const struct coded_lanes *l, const struct coded *c, int64_t panel, int64_t pair,
                            float scale[2 * PAIR_PANEL]) {
    const int64_t block = c->format == FORMAT_FP8 ? FP8_BLOCK / 2 : NF4_BLOCK / 2;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        const struct coded_part *part = l->part[j];
        for (int64_t h = 0; h < 2; h++) {
            const int64_t k = l->whole ? 2 * pair : 2 * pair + h;
            scale[j / 8 * 16 + j % 8 * 2 + h] =
                part && k < c->K ? coded_scale_of(c, part, panel * PAIR_PANEL + j, k) : 0.0f;
        }
    }
    return l->whole ? (pair / block + 1) * block : pair + 1;
}

/* The NF4 table that all outputs of a panel share; NULL when two of them differ. */
static const float *coded_map_of(const struct coded_lanes *l) {
    const float *map = NULL;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        if (!l->part[j]) continue;
        if (map && memcmp(map, l->part[j]->m.map, NF4_CODES * sizeof *map) != 0) return NULL;
        map = l->part[j]->m.map;
    }
    return map;
}

/* One pair by plain C: any layout of scales and tables. */
static void coded_pair(const struct coded_lanes *l, const struct coded *c, int64_t panel, int64_t pair,
                       const float scale[2 * PAIR_PANEL], uint16_t *out) {
    const uint8_t *const unit = coded_unit(c, panel, pair);
    for (int64_t v = 0; v < PAIR_PANEL / 8; v++)
        for (int64_t w = 0; w < 16; w++) {
            const int64_t j = 8 * v + w / 2, half = pair % 2 * 4 + v;
            const struct coded_part *part = l->part[j];
            float x = 0;
            if (part && c->format == FORMAT_FP8)
                x = fp8_value(unit[w * 4 + v]);
            else if (part)
                x = part->m.map[unit[w * 4 + half / 2] >> (half % 2 * 4) & 15u];
            out[16 * v + w] = coded_round(x * scale[16 * v + w]);
        }
}

#if defined(V16_AVX512)
/* Two vectors of products, rounded: sixteen pairs of the packed matrix. */
ALWAYS_INLINE void coded_store(uint16_t *out, __m512 a, __m512 b) {
#if defined(V16_BF16)
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(b, a));
#else
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    const __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    const __m512i p = _mm512_add_epi32(x, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(x, 16), one)));
    const __m512i q = _mm512_add_epi32(y, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(y, 16), one)));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(p, 16)));
    _mm256_storeu_si256((__m256i *)(out + 16), _mm512_cvtepi32_epi16(_mm512_srli_epi32(q, 16)));
#endif
}

static void coded_fp8_pairs(const uint8_t *unit, int64_t pairs, const float scale[2 * PAIR_PANEL], uint16_t *out) {
    /* A code's bits, moved to their places in a float, are its value times 2^-120. */
    const __m512i mask = _mm512_set1_epi32((int)0x87f00000u);
    const __m512 up = _mm512_castsi512_ps(_mm512_set1_epi32((127 + 120) << 23));
    __m512 s[4];
    for (int v = 0; v < 4; v++) s[v] = _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * v), up);
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL) {
        const __m512i w = _mm512_loadu_si512(unit);
        __builtin_prefetch(unit + 64 * CODED_UNIT);
        const __m512i c0 = _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(w, 24), 4), mask);
        const __m512i c1 = _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(w, 16), 4), mask);
        const __m512i c2 = _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(w, 8), 4), mask);
        const __m512i c3 = _mm512_and_si512(_mm512_srai_epi32(w, 4), mask);
        coded_store(out, _mm512_mul_ps(_mm512_castsi512_ps(c0), s[0]), _mm512_mul_ps(_mm512_castsi512_ps(c1), s[1]));
        coded_store(out + 32, _mm512_mul_ps(_mm512_castsi512_ps(c2), s[2]),
                    _mm512_mul_ps(_mm512_castsi512_ps(c3), s[3]));
    }
}

/* pairs is even, because a unit holds two. */
static void coded_nf4_pairs(const uint8_t *unit, int64_t pairs, const float *map, const float scale[2 * PAIR_PANEL],
                            uint16_t *out) {
    const __m512 table = _mm512_loadu_ps(map);
    __m512 s[4];
    for (int v = 0; v < 4; v++) s[v] = _mm512_loadu_ps(scale + 16 * v);
    for (int64_t p = 0; p < pairs; p += 2, unit += CODED_UNIT, out += 4 * PAIR_PANEL) {
        __m512i w = _mm512_loadu_si512(unit);
        __builtin_prefetch(unit + 64 * CODED_UNIT);
        for (int h = 0; h < 4; h++) {
            const __m512 a = _mm512_permutexvar_ps(w, table), b = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 4), table);
            coded_store(out + 32 * h, _mm512_mul_ps(a, s[h % 2 * 2]), _mm512_mul_ps(b, s[h % 2 * 2 + 1]));
            w = _mm512_srli_epi32(w, 8);
        }
    }
}
#endif

/* Writes zeros for k from K on and for outputs from N on. Their scale of 0 is not enough: code 0 of NF4 stands for -1,
 * which gives -0, and a packed matrix has +0 there. */
static void coded_clear(const struct coded *c, int64_t panel, int64_t p0, int64_t pairs, uint16_t *out) {
    for (int64_t p = i64_max(0, c->K / 2 - p0); p < pairs; p++)
        for (int64_t j = 0; j < 2 * PAIR_PANEL; j++)
            if (2 * (p0 + p) + j % 2 >= c->K) out[p * 2 * PAIR_PANEL + j] = 0;
    for (int64_t p = 0; p < pairs && (panel + 1) * PAIR_PANEL > c->N; p++)
        for (int64_t j = i64_max(0, c->N - panel * PAIR_PANEL); j < PAIR_PANEL; j++)
            out[(p * PAIR_PANEL + j) * 2] = out[(p * PAIR_PANEL + j) * 2 + 1] = 0;
}

/* Decodes pairs [p0, p0 + pairs) of a panel to what a packed bf16 matrix has there: out [pairs][PAIR_PANEL][2]. p0 is
 * even, because a unit of NF4 holds two pairs; where `pairs` is odd, out has room for one more, which is written, too.
 * The processor must not take subnormal numbers for zero (MXCSR) during the call: moved to its place in a float, an
 * FP8 code with an exponent of 0 is one. */
UNUSED static void coded_block(const struct coded *c, int64_t panel, int64_t p0, int64_t pairs, uint16_t *out) {
    struct coded_lanes lanes;
    float scale[2 * PAIR_PANEL];
    coded_lanes_of(&lanes, c, panel);
    const int64_t even = (pairs + 1) & ~(int64_t)1;
#if defined(V16_AVX512)
    const float *const map = c->format == FORMAT_NF4 ? coded_map_of(&lanes) : NULL;
    const bool fast = lanes.whole && (map || c->format == FORMAT_FP8);
#else
    const bool fast = false;
    (void)coded_map_of;
#endif
    for (int64_t p = p0; p < p0 + even;) {
        const int64_t end = i64_min(coded_scales(&lanes, c, panel, p, scale), p0 + even);
#if defined(V16_AVX512)
        if (fast && c->format == FORMAT_FP8)
            coded_fp8_pairs(coded_unit(c, panel, p), end - p, scale, out + (p - p0) * 2 * PAIR_PANEL);
        else if (fast)
            coded_nf4_pairs(coded_unit(c, panel, p), end - p, map, scale, out + (p - p0) * 2 * PAIR_PANEL);
#endif
        for (; !fast && p < end; p++) coded_pair(&lanes, c, panel, p, scale, out + (p - p0) * 2 * PAIR_PANEL);
        p = end;
    }
    if (2 * (p0 + even) > c->K || (panel + 1) * PAIR_PANEL > c->N) coded_clear(c, panel, p0, even, out);
}

static inline float coded_widened(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Decodes for products in f32, y = x W': out [kc][PANEL] is [k][n] of the transposed matrix, k from k0 on and n from n0
 * on, with 0 for n from N on. kc is at most GEMM_KC; k0 is even, and n0 a multiple of PAIR_PANEL. */
UNUSED static void coded_columns_f32(const struct coded *c, int64_t k0, int64_t kc, int64_t n0, float *out) {
    uint16_t pairs[GEMM_KC * PAIR_PANEL];
    for (int64_t at = 0; at < PANEL; at += PAIR_PANEL) {
        if (n0 + at >= c->N) {
            for (int64_t k = 0; k < kc; k++) memset(out + k * PANEL + at, 0, PAIR_PANEL * sizeof *out);
            continue;
        }
        coded_block(c, (n0 + at) / PAIR_PANEL, k0 / 2, (kc + 1) / 2, pairs);
        for (int64_t k = 0; k < kc; k++)
            for (int64_t j = 0; j < PAIR_PANEL; j++)
                out[k * PANEL + at + j] = coded_widened(pairs[(k / 2 * PAIR_PANEL + j) * 2 + k % 2]);
    }
}

/* Decodes for products in f32, dx = dy W: out [rows][PANEL] is [n][k] of the matrix itself, n from n0 on and k from k0
 * on, with 0 for k from K on. n0 is a multiple of PAIR_PANEL, k0 is even, and n0 + rows is at most N. */
UNUSED static void coded_rows_f32(const struct coded *c, int64_t n0, int64_t rows, int64_t k0, float *out) {
    uint16_t pairs[PANEL * PAIR_PANEL];
    const int64_t cols = i64_min(PANEL, c->k_pad - k0);
    for (int64_t n = n0; n < n0 + rows; n++) {
        if ((n - n0) % PAIR_PANEL == 0) coded_block(c, n / PAIR_PANEL, k0 / 2, cols / 2, pairs);
        float *const row = out + (n - n0) * PANEL;
        for (int64_t k = 0; k < PANEL; k++)
            row[k] = k < cols ? coded_widened(pairs[(k / 2 * PAIR_PANEL + n % PAIR_PANEL) * 2 + k % 2]) : 0.0f;
    }
}
