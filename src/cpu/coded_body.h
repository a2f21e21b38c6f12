/* Decoding of matrices in codes for products, compiled once for each instruction set. A block of a panel becomes what a
 * packed bf16 matrix would hold there, in a thread's scratch; the usual micro-kernels multiply it. All instruction sets
 * give equal numbers: codes times scales in f32, rounded to nearest even. That needs the limits that tensor/formats.h
 * sets and loading enforces: there is no NaN, a scale times 2^120 is finite, and each weight is 0 or a normal number
 * (vcvtne2ps2bf16 makes zeros of subnormal numbers, and the other ways would not). */

/* What a panel's outputs are decoded with. */
struct coded_lanes {
    const struct coded_part *part[PAIR_PANEL]; /* the part that an output's row is of; NULL: rows behind the last */
    int64_t block[PAIR_PANEL];                 /* the row's first scale */
    /* true: blocks of scales begin at k = 0 in every row, so that all outputs change their scales at the same k.
     * false: K is no multiple of NF4's block, which runs on from one row into the next. */
    bool whole;
    bool alike; /* true: all outputs that there are have the same scales */
};

static void coded_lanes_of(struct coded_lanes *l, const struct coded *c, int64_t panel) {
    const struct coded_part *part = NULL;
    const int64_t across = format_blocks(c->K, FP8_BLOCK);
    l->whole = c->format == FORMAT_FP8 || c->K % NF4_BLOCK == 0;
    l->alike = c->format == FORMAT_FP8;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        const int64_t n = panel * PAIR_PANEL + j;
        if (!part || n < part->row || n >= part->row + part->m.rows) part = coded_part_of(c, n);
        const int64_t row = part ? n - part->row : 0;
        l->part[j] = part;
        l->block[j] = c->format == FORMAT_FP8 ? row / FP8_BLOCK * across : row * c->K / NF4_BLOCK;
        l->alike &= part == l->part[0] ? l->block[j] == l->block[0] : n >= c->N;
    }
}

/* Where blocks are whole. */
static float coded_scale_at(const struct coded_lanes *l, const struct coded *c, int64_t j, int64_t k) {
    const struct coded_matrix *m = &l->part[j]->m;
    return c->format == FORMAT_FP8 ? m->scale[l->block[j] + k / FP8_BLOCK] : nf4_scale(m, l->block[j] + k / NF4_BLOCK);
}

/* Fills in the scales of a panel's outputs at `pair`, and returns the first pair behind it at which one may change. An
 * output has two scales, for k even and odd, in the order of a unit's words: output 8 v + i at 16 v + 2 i, and one
 * behind. The scale is 0 for an output behind the last and for k from K on. */
static int64_t coded_scales(const struct coded_lanes *l, const struct coded *c, int64_t panel, int64_t pair,
                            float scale[2 * PAIR_PANEL]) {
    const int64_t block = c->format == FORMAT_FP8 ? FP8_BLOCK / 2 : NF4_BLOCK / 2, k = 2 * pair;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        const struct coded_part *part = l->part[j];
        float *const s = scale + j / 8 * 16 + j % 8 * 2;
        if (l->whole) {
            s[0] = s[1] = part && k < c->K ? coded_scale_at(l, c, j, k) : 0.0f;
            continue;
        }
        const int64_t at = part ? (panel * PAIR_PANEL + j - part->row) * c->K + k : 0;
        for (int64_t h = 0; h < 2; h++) s[h] = part && k + h < c->K ? nf4_scale(&part->m, (at + h) / NF4_BLOCK) : 0.0f;
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

#elif defined(V16_AVX2)
/* Sixteen products, rounded: eight pairs of the packed matrix. */
ALWAYS_INLINE void coded_store(uint16_t *out, __m256 a, __m256 b) {
    const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    const __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b);
    const __m256i p = _mm256_add_epi32(x, _mm256_add_epi32(half, _mm256_and_si256(_mm256_srli_epi32(x, 16), one)));
    const __m256i q = _mm256_add_epi32(y, _mm256_add_epi32(half, _mm256_and_si256(_mm256_srli_epi32(y, 16), one)));
    const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(p, 16), _mm256_srli_epi32(q, 16));
    _mm256_storeu_si256((__m256i *)out, _mm256_permute4x64_epi64(both, 0xd8));
}

static void coded_fp8_pairs(const uint8_t *unit, int64_t pairs, const float scale[2 * PAIR_PANEL], uint16_t *out) {
    const __m256i mask = _mm256_set1_epi32((int)0x87f00000u);
    const __m256 up = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23));
    __m256 s[8];
    for (int v = 0; v < 8; v++) s[v] = _mm256_mul_ps(_mm256_loadu_ps(scale + 8 * v), up);
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL) {
        __m256i a = _mm256_loadu_si256((const __m256i *)unit), b = _mm256_loadu_si256((const __m256i *)(unit + 32));
        for (int v = 0; v < 4; v++) {
            const __m256i x = _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(a, 24 - 8 * v), 4), mask);
            const __m256i y = _mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(b, 24 - 8 * v), 4), mask);
            coded_store(out + 16 * v, _mm256_mul_ps(_mm256_castsi256_ps(x), s[2 * v]),
                        _mm256_mul_ps(_mm256_castsi256_ps(y), s[2 * v + 1]));
        }
    }
}

/* Outputs that have one scale, which is not 0. But for its exponent, a rounded product depends on a code's three lowest
 * bits: it comes from a table, and the code's exponent is added. Codes with an exponent of 0 have eight products of
 * their own. */
static void coded_fp8_alike(const uint8_t *unit, int64_t pairs, float scale, uint16_t *out) {
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        const uint16_t exponent_8 = coded_round(2.0f * (1.0f + (float)(i - 8) * 0.125f) * scale);
        const uint16_t x = i < 8 ? coded_round((float)i * 0x1p-9f * scale) : (uint16_t)(exponent_8 - (8 << 7));
        low[i] = (uint8_t)x;
        high[i] = (uint8_t)(x >> 8);
    }
    const __m256i low_of = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)low));
    const __m256i high_of = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)high));
    const __m256i by_byte =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    const __m256i magnitude = _mm256_set1_epi8(0x7f), seven = _mm256_set1_epi8(7), eight = _mm256_set1_epi8(8);
    const __m256i kept = _mm256_set1_epi16((short)0x8780), zero = _mm256_setzero_si256();
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL) {
        const __m256i a = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)unit), by_byte);
        const __m256i b = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(unit + 32)), by_byte);
        for (int half = 0; half < 2; half++) {
            /* Codes of outputs 16 half to 16 half + 15 */
            const __m256i mixed = half ? _mm256_unpackhi_epi32(a, b) : _mm256_unpacklo_epi32(a, b);
            const __m256i c = _mm256_permutevar8x32_epi32(mixed, order);
            const __m256i of =
                _mm256_or_si256(_mm256_and_si256(c, seven), _mm256_min_epu8(_mm256_and_si256(c, magnitude), eight));
            const __m256i l = _mm256_shuffle_epi8(low_of, of), h = _mm256_shuffle_epi8(high_of, of);
            const __m256i e0 = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(zero, c), 4), kept);
            const __m256i e1 = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(zero, c), 4), kept);
            _mm256_storeu_si256((__m256i *)(out + 32 * half), _mm256_add_epi16(_mm256_unpacklo_epi8(l, h), e0));
            _mm256_storeu_si256((__m256i *)(out + 32 * half + 16), _mm256_add_epi16(_mm256_unpackhi_epi8(l, h), e1));
        }
    }
}

ALWAYS_INLINE __m256 coded_looked_up(__m256 first, __m256 last, __m256i w) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, w), _mm256_permutevar8x32_ps(last, w),
                            _mm256_castsi256_ps(_mm256_slli_epi32(w, 28)));
}

static void coded_nf4_pairs(const uint8_t *unit, int64_t pairs, const float *map, const float scale[2 * PAIR_PANEL],
                            uint16_t *out) {
    const __m256 first = _mm256_loadu_ps(map), last = _mm256_loadu_ps(map + 8);
    for (int64_t p = 0; p < pairs; p += 2, unit += CODED_UNIT, out += 4 * PAIR_PANEL) {
        __m256i a = _mm256_loadu_si256((const __m256i *)unit), b = _mm256_loadu_si256((const __m256i *)(unit + 32));
        for (int v = 0; v < 8; v++) {
            const float *const s = scale + v % 4 * 16;
            coded_store(out + 16 * v, _mm256_mul_ps(coded_looked_up(first, last, a), _mm256_loadu_ps(s)),
                        _mm256_mul_ps(coded_looked_up(first, last, b), _mm256_loadu_ps(s + 8)));
            a = _mm256_srli_epi32(a, 4);
            b = _mm256_srli_epi32(b, 4);
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
#if defined(V16_AVX512) || defined(V16_AVX2)
    const float *const map = c->format == FORMAT_NF4 ? coded_map_of(&lanes) : NULL;
    const bool fast = lanes.whole && (map || c->format == FORMAT_FP8);
#else
    const bool fast = false;
    (void)coded_map_of;
#endif
    for (int64_t p = p0; p < p0 + even;) {
#if defined(V16_AVX2)
        const float one = lanes.alike && 2 * p < c->K ? coded_scale_at(&lanes, c, 0, 2 * p) : 0.0f;
        if (one > 0) {
            const int64_t next = i64_min((p / (FP8_BLOCK / 2) + 1) * (FP8_BLOCK / 2), p0 + even);
            coded_fp8_alike(coded_unit(c, panel, p), next - p, one, out + (p - p0) * 2 * PAIR_PANEL);
            p = next;
            continue;
        }
#endif
        const int64_t end = i64_min(coded_scales(&lanes, c, panel, p, scale), p0 + even);
#if defined(V16_AVX512) || defined(V16_AVX2)
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
