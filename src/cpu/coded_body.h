/* Decoding of matrices in codes for products, compiled once for each instruction set. A block of a panel becomes what a
 * packed bf16 matrix would hold there, in a thread's scratch; the usual micro-kernels multiply it. All instruction sets
 * give equal numbers: codes times scales in f32, rounded to nearest even. That needs the limits that tensor/formats.h
 * sets and loading enforces: there is no NaN, a scale times 2^120 is finite, and each weight is 0 or a normal number
 * (vcvtne2ps2bf16 makes zeros of subnormal numbers, and the other ways would not). */

/* What the outputs of a panel are decoded with, where they differ in it. */
struct coded_lanes {
    const struct coded_part *part[PAIR_PANEL]; /* the part that an output's row is of; NULL: rows behind the last */
    int64_t row[PAIR_PANEL];                   /* which row of its part it is */
    /* true: blocks of scales begin at k = 0 in every row, so that all outputs change their scales at the same k.
     * false: K is no multiple of NF4's block, which runs on from one row into the next. */
    bool whole;
};

static void coded_lanes_of(struct coded_lanes *l, const struct coded *c, int64_t panel) {
    const struct coded_part *part = NULL;
    l->whole = c->format == FORMAT_FP8 || c->K % NF4_BLOCK == 0;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        const int64_t n = panel * PAIR_PANEL + j;
        if (!part || n < part->row || n >= part->row + part->m.rows) part = coded_part_of(c, n);
        l->part[j] = part;
        l->row[j] = part ? n - part->row : 0;
    }
}

/* Fills in the scales of a panel's outputs at `pair`, and returns the first pair behind it at which one may change. An
 * output has two scales, for k even and odd, in the order of a unit's words: output 8 v + i at 16 v + 2 i, and one
 * behind. The scale is 0 for an output behind the last and for k from K on. */
static int64_t coded_scales(const struct coded_lanes *l, const struct coded *c, int64_t pair,
                            float scale[2 * PAIR_PANEL]) {
    const int64_t block = c->format == FORMAT_FP8 ? FP8_BLOCK / 2 : NF4_BLOCK / 2, k = 2 * pair;
    for (int64_t j = 0; j < PAIR_PANEL; j++) {
        float *const s = scale + j / 8 * 16 + j % 8 * 2;
        for (int64_t h = 0; h < 2; h++)
            s[h] = l->part[j] && k + h < c->K ? coded_scale(l->part[j], l->row[j], k + h) : 0.0f;
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
                x = fp8_value(unit[coded_fp8_place(16 * v + w)]);
            else if (part)
                x = part->m.map[unit[w * 4 + half / 2] >> (half % 2 * 4) & 15u];
            out[16 * v + w] = coded_round(x * scale[16 * v + w]);
        }
}

#if defined(V16_AVX512) || defined(V16_AVX2)
/* The part that all rows of a panel are of, where the scales of these rows can be read together: those of NF4 lie in
 * panels, those of FP8 are one. NULL: there is none. */
static const struct coded_part *coded_whole_part(const struct coded *c, int64_t panel) {
    const int64_t n = panel * PAIR_PANEL;
    const struct coded_part *part = coded_part_of(c, n);
    if (!part || part->row % PAIR_PANEL != 0 || i64_min(n + PAIR_PANEL, c->N) > part->row + part->m.rows) return NULL;
    return c->format == FORMAT_FP8 || part->in_panels ? part : NULL;
}

/* Makes the tables by which codes c of FP8 are multiplied with a scale that is not 0. Rounding a product does not
 * depend on its exponent. So its two bytes stand in tables by the four low bits of c, and the other bits of c, the rest
 * of the exponent and the sign, are added to the high byte. Rows 0 and 1 have low and high bytes; rows 2 and 3 have
 * those of codes whose exponent is 0. */
static void coded_fp8_tables(float scale, uint8_t table[4][16]) {
    static const float value[2][16] = {{0x8p-10f, 0x9p-10f, 0xap-10f, 0xbp-10f, 0xcp-10f, 0xdp-10f, 0xep-10f, 0xfp-10f,
                                        0x8p-9f, 0x9p-9f, 0xap-9f, 0xbp-9f, 0xcp-9f, 0xdp-9f, 0xep-9f, 0xfp-9f},
                                       {0, 0x1p-9f, 0x2p-9f, 0x3p-9f, 0x4p-9f, 0x5p-9f, 0x6p-9f, 0x7p-9f}};
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 16; i++) {
            const uint16_t x = coded_round(value[s][i] * scale);
            table[2 * s][i] = (uint8_t)x;
            table[2 * s + 1][i] = (uint8_t)(x >> 8);
        }
}
#endif

#if defined(V16_AVX512)
/* Fetches the codes that are decoded 256 units later to the second-level cache. Fetching them to the first level, or
 * from a shorter way ahead, was measured to be slower (docs/results.md). */
ALWAYS_INLINE void coded_fetch(const uint8_t *unit) { __builtin_prefetch(unit + 256 * CODED_UNIT, 0, 2); }

/* Rows of a panel in NF4 whose scales are read together: their first blocks, and the nested scales of the blocks that
 * were read last. */
struct coded_nf4_rows {
    __m512i first[2];
    __m512 nested[2];
};
static void coded_nf4_rows_of(const struct coded_part *part, int64_t row, struct coded_nf4_rows *r) {
    const __m512i last = _mm512_set1_epi32((int)part->m.rows - 1);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int h = 0; h < 2; h++) {
        const __m512i rows = _mm512_min_epi32(_mm512_add_epi32(_mm512_set1_epi32((int)row + 16 * h), lane), last);
        r->first[h] = _mm512_mullo_epi32(rows, _mm512_set1_epi32((int)(part->m.K / NF4_BLOCK)));
        r->nested[h] = _mm512_setzero_ps();
    }
}
/* Writes the scales in the order of coded_scales. `at` is where those of this block lie in the part. read: true when
 * the block before was read, too, so that its nested scales are in r. */
static void coded_nf4_scales(const struct coded_part *part, struct coded_nf4_rows *r, int64_t block, int64_t at,
                             bool read, float scale[2 * PAIR_PANEL]) {
    const struct coded_matrix *m = &part->m;
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (int h = 0; h < 2; h++) {
        __m512 s;
        if (m->absmax) {
            const __m512i b = _mm512_add_epi32(r->first[h], _mm512_set1_epi32((int)block));
            if (!read || _mm512_testn_epi32_mask(b, _mm512_set1_epi32(NF4_NESTED - 1)))
                r->nested[h] = _mm512_i32gather_ps(_mm512_srli_epi32(b, NF4_NESTED_LOG2), m->nested, 4);
            const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(m->absmax + at + 16 * h)));
            s = _mm512_mul_ps(_mm512_i32gather_ps(code, m->nested_map, 4), r->nested[h]);
            s = _mm512_add_ps(s, _mm512_set1_ps(m->offset));
        } else {
            s = _mm512_loadu_ps(m->scale + at + 16 * h);
        }
        _mm512_storeu_ps(scale + 32 * h, _mm512_permutexvar_ps(twice, s));
        _mm512_storeu_ps(scale + 32 * h + 16, _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), s));
    }
}

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
    __m512 s[4], x[4];
    for (int v = 0; v < 4; v++) s[v] = _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * v), up);
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL) {
        const __m512i w = _mm512_loadu_si512(unit), zero = _mm512_setzero_si512();
        const __m512i half[2] = {_mm512_unpacklo_epi8(zero, w), _mm512_unpackhi_epi8(zero, w)};
        for (int v = 0; v < 4; v++) {
            const __m256i of = v % 2 ? _mm512_extracti64x4_epi64(half[v / 2], 1) : _mm512_castsi512_si256(half[v / 2]);
            const __m512i c = _mm512_slli_epi32(_mm512_cvtepu16_epi32(of), 16);
            x[v] = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(_mm512_srai_epi32(c, 4), mask)), s[v]);
        }
        coded_store(out, x[0], x[1]);
        coded_store(out + 32, x[2], x[3]);
    }
}

/* See coded_fp8_tables. */
static void coded_fp8_alike(const uint8_t *unit, int64_t pairs, float scale, uint16_t *out) {
    uint8_t table[4][16];
    __m512i t[4];
    coded_fp8_tables(scale, table);
    for (int i = 0; i < 4; i++) t[i] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table[i]));
    const __m512i fifteen = _mm512_set1_epi8(15), sign = _mm512_set1_epi8((char)0x80);
    const __m512i kept = _mm512_set1_epi8((char)0x87), exponent = _mm512_set1_epi8(0x78);
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL) {
        const __m512i c = _mm512_loadu_si512(unit), i = _mm512_and_si512(c, fifteen);
        coded_fetch(unit);
        __m512i low = _mm512_shuffle_epi8(t[0], i), high = _mm512_shuffle_epi8(t[1], i);
        const __mmask64 small = _mm512_testn_epi8_mask(c, exponent);
        if (small) { /* seldom */
            low = _mm512_mask_shuffle_epi8(low, small, t[2], i);
            high = _mm512_mask_shuffle_epi8(high, small, t[3], i);
        }
        /* the bits of `sign` of c, the others of c / 16 */
        const __m512i rest = _mm512_ternarylogic_epi64(sign, c, _mm512_srli_epi16(c, 4), 0xca);
        high = _mm512_add_epi8(high, _mm512_and_si512(rest, kept));
        _mm512_storeu_si512(out, _mm512_unpacklo_epi8(low, high));
        _mm512_storeu_si512(out + 32, _mm512_unpackhi_epi8(low, high));
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
        coded_fetch(unit);
        for (int h = 0; h < 4; h++) {
            const __m512 a = _mm512_permutexvar_ps(w, table), b = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 4), table);
            coded_store(out + 32 * h, _mm512_mul_ps(a, s[h % 2 * 2]), _mm512_mul_ps(b, s[h % 2 * 2 + 1]));
            w = _mm512_srli_epi32(w, 8);
        }
    }
}

#elif defined(V16_AVX2)
/* As for AVX-512. */
struct coded_nf4_rows {
    __m256i first[4];
    __m256 nested[4];
};
static void coded_nf4_rows_of(const struct coded_part *part, int64_t row, struct coded_nf4_rows *r) {
    const __m256i last = _mm256_set1_epi32((int)part->m.rows - 1), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int v = 0; v < 4; v++) {
        const __m256i rows = _mm256_min_epi32(_mm256_add_epi32(_mm256_set1_epi32((int)row + 8 * v), lane), last);
        r->first[v] = _mm256_mullo_epi32(rows, _mm256_set1_epi32((int)(part->m.K / NF4_BLOCK)));
        r->nested[v] = _mm256_setzero_ps();
    }
}
static void coded_nf4_scales(const struct coded_part *part, struct coded_nf4_rows *r, int64_t block, int64_t at,
                             bool read, float scale[2 * PAIR_PANEL]) {
    const struct coded_matrix *m = &part->m;
    const __m256i in_group = _mm256_set1_epi32(NF4_NESTED - 1);
    for (int v = 0; v < 4; v++) {
        __m256 s;
        if (m->absmax) {
            const __m256i b = _mm256_add_epi32(r->first[v], _mm256_set1_epi32((int)block));
            const __m256i begun = _mm256_cmpeq_epi32(_mm256_and_si256(b, in_group), _mm256_setzero_si256());
            if (!read || !_mm256_testz_si256(begun, begun))
                r->nested[v] = _mm256_i32gather_ps(m->nested, _mm256_srli_epi32(b, NF4_NESTED_LOG2), 4);
            const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(m->absmax + at + 8 * v)));
            s = _mm256_mul_ps(_mm256_i32gather_ps(m->nested_map, code, 4), r->nested[v]);
            s = _mm256_add_ps(s, _mm256_set1_ps(m->offset));
        } else {
            s = _mm256_loadu_ps(m->scale + at + 8 * v);
        }
        const __m256 even = _mm256_unpacklo_ps(s, s), odd = _mm256_unpackhi_ps(s, s);
        _mm256_storeu_ps(scale + 16 * v, _mm256_permute2f128_ps(even, odd, 0x20));
        _mm256_storeu_ps(scale + 16 * v + 8, _mm256_permute2f128_ps(even, odd, 0x31));
    }
}

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
    __m256 x[8];
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL) {
        for (int v = 0; v < 8; v++) {
            const __m128i eight = _mm_loadl_epi64((const __m128i *)(unit + coded_fp8_place(8 * v)));
            const __m256i c = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 24);
            const __m256i bits = _mm256_and_si256(_mm256_srai_epi32(c, 4), mask);
            x[v] = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_mul_ps(_mm256_loadu_ps(scale + 8 * v), up));
        }
        for (int v = 0; v < 4; v++) coded_store(out + 16 * v, x[2 * v], x[2 * v + 1]);
    }
}

/* See coded_fp8_tables. */
static void coded_fp8_alike(const uint8_t *unit, int64_t pairs, float scale, uint16_t *out) {
    uint8_t table[4][16];
    __m256i t[4];
    coded_fp8_tables(scale, table);
    for (int i = 0; i < 4; i++) t[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table[i]));
    const __m256i fifteen = _mm256_set1_epi8(15), seven = _mm256_set1_epi8(7), sign = _mm256_set1_epi8((char)0x80);
    const __m256i exponent = _mm256_set1_epi8(0x78), zero = _mm256_setzero_si256();
    for (int64_t p = 0; p < pairs; p++, unit += CODED_UNIT, out += 2 * PAIR_PANEL)
        for (int half = 0; half < 2; half++) {
            const __m256i c = _mm256_loadu_si256((const __m256i *)(unit + 32 * half)), i = _mm256_and_si256(c, fifteen);
            __m256i low = _mm256_shuffle_epi8(t[0], i), high = _mm256_shuffle_epi8(t[1], i);
            const __m256i small = _mm256_cmpeq_epi8(_mm256_and_si256(c, exponent), zero);
            if (!_mm256_testz_si256(small, small)) { /* seldom */
                low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(t[2], i), small);
                high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(t[3], i), small);
            }
            high = _mm256_add_epi8(
                high, _mm256_or_si256(_mm256_and_si256(c, sign), _mm256_and_si256(_mm256_srli_epi16(c, 4), seven)));
            _mm256_storeu_si256((__m256i *)(out + 16 * half), _mm256_unpacklo_epi8(low, high));
            _mm256_storeu_si256((__m256i *)(out + 16 * half + 32), _mm256_unpackhi_epi8(low, high));
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

/* Writes zeros for k from K on and for outputs from N on, where a packed matrix has +0. What was decoded there is
 * something else: code 0 of NF4 stands for -1, and the scale may be that of other rows. */
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
    float scale[2 * PAIR_PANEL];
    const int64_t even = (pairs + 1) & ~(int64_t)1, last = p0 + even;
    int64_t p = p0;
#if defined(V16_AVX512) || defined(V16_AVX2)
    const struct coded_part *const part = coded_whole_part(c, panel);
    const int64_t block = (c->format == FORMAT_FP8 ? FP8_BLOCK : NF4_BLOCK) / 2;
    const int64_t row = part ? panel * PAIR_PANEL - part->row : 0;
    struct coded_nf4_rows rows = {0};
    if (part && c->format == FORMAT_NF4) coded_nf4_rows_of(part, row, &rows);
    while (part && p < last) {
        const int64_t end = i64_min((p / block + 1) * block, last);
        const uint8_t *const unit = coded_unit(c, panel, p);
        uint16_t *const to = out + (p - p0) * 2 * PAIR_PANEL;
        if (c->format == FORMAT_NF4) {
            const int64_t at = row * (c->K / NF4_BLOCK) + p / block * PAIR_PANEL;
            coded_nf4_scales(part, &rows, p / block, at, p > p0, scale);
            coded_nf4_pairs(unit, end - p, part->m.map, scale, to);
        } else {
            const float s = 2 * p < c->K ? coded_scale(part, row, 2 * p) : 0.0f;
            if (s != 0) {
                coded_fp8_alike(unit, end - p, s, to);
            } else {
                for (int64_t i = 0; i < 2 * PAIR_PANEL; i++) scale[i] = s; /* 0 or -0 */
                coded_fp8_pairs(unit, end - p, scale, to);
            }
        }
        p = end;
    }
#endif
    struct coded_lanes lanes;
    if (p < last) coded_lanes_of(&lanes, c, panel);
#if defined(V16_AVX512) || defined(V16_AVX2)
    const float *const map = p < last && c->format == FORMAT_NF4 ? coded_map_of(&lanes) : NULL;
    const bool fast = p < last && lanes.whole && (map || c->format == FORMAT_FP8);
#else
    const bool fast = false;
    (void)coded_map_of;
#endif
    while (p < last) {
        const int64_t end = i64_min(coded_scales(&lanes, c, p, scale), last);
#if defined(V16_AVX512) || defined(V16_AVX2)
        if (fast && c->format == FORMAT_FP8)
            coded_fp8_pairs(coded_unit(c, panel, p), end - p, scale, out + (p - p0) * 2 * PAIR_PANEL);
        else if (fast)
            coded_nf4_pairs(coded_unit(c, panel, p), end - p, map, scale, out + (p - p0) * 2 * PAIR_PANEL);
#endif
        for (; !fast && p < end; p++) coded_pair(&lanes, c, panel, p, scale, out + (p - p0) * 2 * PAIR_PANEL);
        p = end;
    }
    if (2 * last > c->K || (panel + 1) * PAIR_PANEL > c->N) coded_clear(c, panel, p0, even, out);
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
