/* Products with matrices in codes: every instruction set this machine has gives the bits of the decoded matrix, over
 * odd sizes, several parts and tables, few rows and many, in float32 and in bf16; and what is put comes back decoded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/test_util.h"

enum { N_ISA = 5, N_BE = 2 * N_ISA };

static int setup(void **state) {
    (void)state;
    return open_backends(N_ISA);
}

static uint16_t *random_bf16(int64_t n, uint64_t stream) {
    uint16_t *w = xmalloc((size_t)n * sizeof *w + 1);
    struct rng r = rng_make(3, stream);
    for (int64_t i = 0; i < n; i++) w[i] = coded_round(0.05f * (float)rng_normal(&r));
    return w;
}

static float widened(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The matrix in codes, of parts with these numbers of rows, and what it means. */
struct matrix {
    int64_t N, K;
    int n_parts;
    struct coded_matrix part[3];
    uint16_t *means; /* [N,K] */
    float own_map[NF4_CODES];
};

static struct matrix make(enum weight_format f, const int64_t rows[3], int64_t K) {
    struct matrix m = {.K = K};
    for (int i = 0; i < 3; i++) m.N += rows[i];
    m.means = xmalloc((size_t)(m.N * K) * sizeof *m.means + 1);
    int64_t at = 0;
    for (int i = 0; i < 3; i++) {
        if (rows[i] == 0) continue;
        uint16_t *w = random_bf16(rows[i] * K, (uint64_t)i);
        struct coded_matrix *p = &m.part[m.n_parts++];
        format_of(f)->quantise(w, rows[i], K, two, p);
        if (f == FORMAT_FP8) /* every code, subnormals among them */
            for (int64_t k = 0; k < rows[i] * K; k += 3)
                if ((k / 3 & 0x7f) != 0x7f) ((uint8_t *)(uintptr_t)p->codes)[k] = (uint8_t)(k / 3);
        format_of(f)->decode(p, 0, rows[i] * K, m.means + at);
        at += rows[i] * K;
        free(w);
    }
    return m;
}

static void matrix_free(struct matrix *m) {
    for (int i = 0; i < m->n_parts; i++) coded_release(&m->part[i]);
    free(m->means);
}

/* The last part has a table of its own: its products take another way. */
static void own_table(struct matrix *m) {
    struct coded_matrix *p = &m->part[m->n_parts - 1];
    memcpy(m->own_map, p->map, sizeof m->own_map);
    m->own_map[3] += 0.01f;
    p->map = m->own_map;
    format_of(FORMAT_NF4)->decode(p, 0, p->rows * m->K, m->means + (m->N - p->rows) * m->K);
}

static struct weight put_coded(struct backend *b, const struct matrix *m, enum dtype dt) {
    struct weight w = {.N = m->N, .K = m->K, .dt = dt, .format = m->part[0].format};
    int64_t row = 0;
    for (int i = 0; i < m->n_parts; i++) {
        b->weight_put_coded(b, &w, row, &m->part[i]);
        row += m->part[i].rows;
    }
    return w;
}

static void same(const float *a, const float *b, int64_t n, const char *name, const char *what, int64_t M, int64_t N,
                 int64_t K) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: %s: %lld x %lld x %lld: element %lld: %a is not %a", name, what, (long long)M, (long long)N,
                     (long long)K, (long long)i, (double)a[i], (double)b[i]);
}

/* All products of M rows against those of the decoded matrix. */
static void products(struct backend *b, const struct matrix *m, enum dtype dt, int64_t M) {
    const int64_t N = m->N, K = m->K, n = M * N, k = M * K;
    float *plain = xmalloc((size_t)(N * K) * sizeof *plain + 1), *x = randoms(k, 11, 1), *dy = randoms(n, 12, 1);
    float *bias = randoms(N, 13, 1), *y0 = randoms(n, 14, 1), *dx0 = randoms(k, 15, 1);
    for (int64_t i = 0; i < N * K; i++) plain[i] = widened(m->means[i]);
    struct weight w = {.w = plain, .N = N, .K = K, .dt = dt}, c = put_coded(b, m, dt);
    b->weight_pack(b, &w);
    for (int v = 0; v < 3; v++) { /* plain, with a bias, onto what is there */
        float *y1 = copy_of(y0, n), *y2 = copy_of(y0, n), *dx1 = copy_of(dx0, k), *dx2 = copy_of(dx0, k);
        b->linear(b, tensor_full(y1, M, N), tensor_full(x, M, K), &w, v == 1 ? bias : NULL, v == 2);
        b->linear(b, tensor_full(y2, M, N), tensor_full(x, M, K), &c, v == 1 ? bias : NULL, v == 2);
        same(y2, y1, n, b->name, "linear", M, N, K);
        b->linear_dx(b, tensor_full(dx1, M, K), tensor_full(dy, M, N), &w, v == 2);
        b->linear_dx(b, tensor_full(dx2, M, K), tensor_full(dy, M, N), &c, v == 2);
        same(dx2, dx1, k, b->name, "linear_dx", M, N, K);
        free(y1), free(y2), free(dx1), free(dx2);
    }
    b->weight_free(b, &w);
    b->weight_free(b, &c);
    assert_null(c.packed);
    free(plain), free(x), free(dy), free(bias), free(y0), free(dx0);
}

static const int64_t shapes[][4] = {/* rows of three parts, K */
                                    {1, 0, 0, 1},      {3, 2, 0, 5},     {64, 0, 0, 64},
                                    {40, 20, 33, 128}, {17, 15, 1, 70},  {130, 10, 5, 192},
                                    {32, 32, 32, 320}, {5, 200, 9, 129}, {33, 1, 1, 1088}};

static void every_way(enum weight_format f) {
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct matrix m = make(f, shapes[i], shapes[i][3]);
        for (int table = 0; table < 1 + (f == FORMAT_NF4 && m.n_parts > 1); table++) {
            if (table) own_table(&m);
            for (int b = 0; b < N_BE; b++)
                for (int rows = 0; be[b] && rows < 4; rows++) {
                    static const int64_t few[] = {1, 7, 16, 61};
                    if ((b % 2 == 1) != (rows % 2 == 1)) continue;
                    products(be[b], &m, DT_F32, few[rows]);
                    products(be[b], &m, DT_BF16, few[rows]);
                }
        }
        matrix_free(&m);
    }
}

static void test_fp8(void **state) {
    (void)state;
    every_way(FORMAT_FP8);
}

static void test_nf4(void **state) {
    (void)state;
    every_way(FORMAT_NF4);
}

/* Scales that are not in codes themselves, and rows as many as a training batch has. */
static void test_plain_scales_and_many_rows(void **state) {
    (void)state;
    const int64_t rows[3] = {96, 0, 0}, K = 256, blocks = nf4_blocks(96, K);
    struct matrix m = make(FORMAT_NF4, rows, K);
    float *scale = xmalloc((size_t)blocks * sizeof *scale);
    for (int64_t b = 0; b < blocks; b++) scale[b] = nf4_scale(&m.part[0], b) * 1.25f;
    m.part[0].scale = scale;
    m.part[0].absmax = NULL;
    format_of(FORMAT_NF4)->decode(&m.part[0], 0, 96 * K, m.means);
    for (int b = 1; b < N_BE; b += 2) {
        if (!be[b]) continue;
        products(be[b], &m, DT_BF16, 2);
        if (strcmp(be[b]->name, "reference") != 0) products(be[b], &m, DT_BF16, 1700), products(be[b], &m, DT_F32, 500);
    }
    free(scale);
    matrix_free(&m);
}

/* The least numbers that a file of NF4 may have: their products are normal numbers, or zeros, so a processor that takes
 * subnormal numbers for zero gives the same bits. */
static void test_least_numbers(void **state) {
    (void)state;
    const int64_t rows[3] = {33, 0, 0}, K = 128, blocks = nf4_blocks(33, K);
    struct matrix m = make(FORMAT_NF4, rows, K);
    float *scale = xmalloc((size_t)blocks * sizeof *scale);
    for (int64_t b = 0; b < blocks; b++) scale[b] = b % 2 ? CODED_SMALLEST_SCALE : 0.0f;
    memcpy(m.own_map, nf4_map, sizeof m.own_map);
    for (int i = 0; i < NF4_CODES; i++)
        m.own_map[i] = (i % 2 ? 1.0f : -1.0f) * (1 + 0.1f * (float)(i / 2)) * CODED_SMALLEST_MAP;
    m.part[0].scale = scale;
    m.part[0].map = m.own_map;
    m.part[0].absmax = NULL;
    format_of(FORMAT_NF4)->decode(&m.part[0], 0, 33 * K, m.means);
    for (int b = 0; b < N_BE; b++) {
        if (!be[b]) continue;
        products(be[b], &m, DT_F32, 7);
        products(be[b], &m, DT_BF16, 7);
    }
    free(scale);
    matrix_free(&m);
}

/* FP8's scales may lie at their limits. Of 160 rows the second block has 32, a panel of its own. */
static void test_scales_of_fp8(void **state) {
    (void)state;
    const int64_t rows[3] = {160, 0, 0}, K = 256;
    const float scale[4] = {-0.0f, -0.02f, CODED_LARGEST_SCALE, CODED_SMALLEST_SCALE};
    struct matrix m = make(FORMAT_FP8, rows, K);
    m.part[0].scale = scale;
    format_of(FORMAT_FP8)->decode(&m.part[0], 0, 160 * K, m.means);
    for (int b = 0; b < N_BE; b++) {
        if (!be[b]) continue;
        products(be[b], &m, DT_F32, 7);
        products(be[b], &m, DT_BF16, 7);
    }
    matrix_free(&m);
}

static void test_put_and_get(void **state) {
    (void)state;
    for (int f = FORMAT_FP8; f < FORMAT_COUNT; f++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            struct matrix m = make((enum weight_format)f, shapes[i], shapes[i][3]);
            uint16_t *back = xmalloc((size_t)(m.N * m.K) * sizeof *back + 1);
            struct backend *b = be[1];
            struct weight w = put_coded(b, &m, DT_BF16);
            b->weight_get(b, &w, 0, m.N, back);
            assert_memory_equal(back, m.means, (size_t)(m.N * m.K) * sizeof *back);
            b->weight_put_coded(b, &w, 0, &m.part[0]); /* once more, in its place */
            memset(back, 1, (size_t)(m.N * m.K) * sizeof *back);
            b->weight_get(b, &w, m.N - 1, 1, back);
            assert_memory_equal(back, m.means + (m.N - 1) * m.K, (size_t)m.K * sizeof *back);
            b->weight_free(b, &w);
            free(back);
            matrix_free(&m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp8),
                                       cmocka_unit_test(test_nf4),
                                       cmocka_unit_test(test_plain_scales_and_many_rows),
                                       cmocka_unit_test(test_least_numbers),
                                       cmocka_unit_test(test_scales_of_fp8),
                                       cmocka_unit_test(test_put_and_get)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
