/* Weight formats: decoding by the words of formats.h, the quantisers against naive ones, and what a matrix takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tensor/formats.h"

static float widened(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint16_t *random_bf16(int64_t n, uint64_t stream) {
    uint16_t *w = xmalloc((size_t)n * sizeof *w + 1);
    struct rng r = rng_make(3, stream);
    for (int64_t i = 0; i < n; i++) w[i] = coded_round(0.05f * (float)rng_normal(&r));
    return w;
}

static void test_table(void **state) {
    (void)state;
    assert_int_equal(format_find("nf4"), FORMAT_NF4);
    assert_int_equal(format_find("int3"), -1);
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct format *x = format_of((enum weight_format)f);
        assert_int_equal(format_find(x->name), f);
        assert_int_equal(format_is_coded((enum weight_format)f), x->decode != NULL);
        assert_int_equal(x->trainable, f == FORMAT_F32);
    }
    static const char *const choices[] = {CHOICE_NAMES(BASE_DTYPE_LIST)};
    for (int f = FORMAT_BF16; f < FORMAT_COUNT; f++)
        assert_string_equal(choices[f], format_of((enum weight_format)f)->name);
    /* Bytes a weight of a large matrix, as published: 1.0002 and 0.5159. */
    const double n = 18944.0 * 3584;
    assert_true(fabs((double)format_of(FORMAT_FP8)->bytes(18944, 3584) / n - 1.0002) < 1e-4);
    assert_true(fabs((double)format_of(FORMAT_NF4)->bytes(18944, 3584) / n - 0.5159) < 1e-4);
    assert_true(format_of(FORMAT_BF16)->bytes(3, 5) == 30);
}

/* All codes by their definition: sign, 4 bits of exponent with bias 7, 3 bits of mantissa. */
static void test_fp8_values(void **state) {
    (void)state;
    for (int c = 0; c < 256; c++) {
        if ((c & 0x7f) == 0x7f) continue;
        const int e = c >> 3 & 15, m = c & 7;
        const double x = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        assert_true((double)fp8_value((uint8_t)c) == (c & 0x80 ? -x : x));
    }
    assert_true(fp8_value(0x7e) == 448.0f);
}

/* Every code is the nearest one, the even one of two that are equally near. */
static void test_fp8_quantiser(void **state) {
    (void)state;
    const int64_t rows = 200, K = 150;
    uint16_t *w = random_bf16(rows * K, 1);
    memset(w, 0, (size_t)(128 * K) * sizeof *w); /* blocks of zeros */
    w[190 * K + 3] = coded_round(-1e-9f);        /* rounds to a zero of its sign */
    struct coded_matrix m;
    fp8_quantise(w, rows, K, NULL, &m);
    for (int64_t i = 0; i < rows * K; i++) {
        const float s = m.scale[i / K / 128 * 2 + i % K / 128], x = widened(w[i]) / s;
        const uint8_t got = m.codes[i];
        assert_int_not_equal(got & 0x7f, 0x7f);
        const double d = fabs((double)fp8_value(got) - (double)x);
        for (int c = 0; c < 256; c++) {
            if ((c & 0x7f) == 0x7f || (c & 0x80) != (got & 0x80)) continue;
            const double other = fabs((double)fp8_value((uint8_t)c) - (double)x);
            if (other < d || (other == d && c != got && got % 2 == 1))
                fail_msg("element %lld: %g is %02x and not %02x", (long long)i, (double)x, got, c);
        }
    }
    assert_true(m.scale[0] == 1.0f && m.scale[1] == 1.0f);
    float most = 0; /* of the last block */
    for (int64_t i = 128 * K; i < rows * K; i++)
        if (i % K >= 128) most = fmaxf(most, fabsf(widened(w[i])));
    assert_true(m.scale[3] == most / 448.0f);
    free(w);
    coded_release(&m);
}

/* Nearest codes, scales whose codes are nearest, and a decoding that is code times scale. */
static void nf4_case(int64_t rows, int64_t K, uint64_t stream) {
    uint16_t *w = random_bf16(rows * K, stream), *out = xmalloc((size_t)(rows * K) * sizeof *out);
    for (int64_t i = 64; i < 128 && i < rows * K; i++) w[i] = 0;
    struct coded_matrix m;
    nf4_quantise(w, rows, K, NULL, &m);
    const int64_t n = rows * K, blocks = nf4_blocks(rows, K);
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) {
        float most = 0;
        for (int64_t i = b * 64; i < n && i < (b + 1) * 64; i++) most = fmaxf(most, fabsf(widened(w[i])));
        sum += (double)most;
        for (int64_t i = b * 64; i < n && i < (b + 1) * 64; i++) {
            const float x = most > 0 ? widened(w[i]) * (1.0f / most) : 0;
            const float d = fabsf(m.map[nf4_code(&m, i)] - x);
            for (int c = 0; c < NF4_CODES; c++) assert_true(fabsf(m.map[c] - x) >= d - 1e-7f);
        }
        const float part = most - m.offset, scale = m.nested[b / 256], d = fabsf(nf4_scale(&m, b) - most);
        assert_true(fabsf(part) <= scale * 1.000001f);
        for (int c = 0; c < NF4_SCALES; c++) assert_true(fabsf(m.nested_map[c] * scale - part) >= d - 1e-6f);
    }
    assert_true(m.offset == (float)(sum / (double)blocks));
    format_of(FORMAT_NF4)->decode(&m, 0, n, out);
    for (int64_t i = 0; i < n; i++) assert_true(out[i] == coded_round(m.map[nf4_code(&m, i)] * nf4_scale(&m, i / 64)));
    uint16_t piece[3]; /* from anywhere */
    format_of(FORMAT_NF4)->decode(&m, n / 3, 3, piece);
    assert_memory_equal(piece, out + n / 3, sizeof piece);
    free(w), free(out);
    coded_release(&m);
}

static void test_nf4_quantiser(void **state) {
    (void)state;
    nf4_case(64, 64, 1);
    nf4_case(301, 61, 2); /* blocks that cross rows, an odd number of weights, a second group of scales */
    nf4_case(3, 5, 3);
}

static void test_threads(void **state) {
    (void)state;
    struct pool *three = pool_create(3);
    uint16_t *w = random_bf16(500 * 200, 5);
    for (int f = FORMAT_FP8; f < FORMAT_COUNT; f++) {
        uint16_t *a = xmalloc(200000), *b = xmalloc(200000);
        struct coded_matrix one, many;
        format_of((enum weight_format)f)->quantise(w, 500, 200, NULL, &one);
        format_of((enum weight_format)f)->quantise(w, 500, 200, three, &many);
        format_of((enum weight_format)f)->decode(&one, 0, 100000, a);
        format_of((enum weight_format)f)->decode(&many, 0, 100000, b);
        assert_memory_equal(a, b, 200000);
        free(a), free(b);
        coded_release(&one), coded_release(&many);
    }
    free(w);
    pool_destroy(three);
}

/* A part decodes to what it decodes to in the whole. */
static void test_rows(void **state) {
    (void)state;
    enum { ROWS = 400, K = 256, FIRST = 128, PART = 200 };
    uint16_t *w = random_bf16((int64_t)ROWS * K, 6);
    static uint16_t whole[ROWS * K], part[PART * K];
    for (int f = FORMAT_FP8; f < FORMAT_COUNT; f++) {
        struct coded_matrix m;
        format_of((enum weight_format)f)->quantise(w, ROWS, K, NULL, &m);
        assert_true(coded_rows_fit(&m, FIRST));
        assert_false(coded_rows_fit(&m, 3));
        const struct coded_matrix rows = coded_rows(&m, FIRST, PART);
        format_of((enum weight_format)f)->decode(&m, 0, ROWS * K, whole);
        format_of((enum weight_format)f)->decode(&rows, 0, PART * K, part);
        assert_memory_equal(part, whole + FIRST * K, sizeof part);
        coded_release(&m);
    }
    free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table),         cmocka_unit_test(test_fp8_values),
                                       cmocka_unit_test(test_fp8_quantiser), cmocka_unit_test(test_nf4_quantiser),
                                       cmocka_unit_test(test_threads),       cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
