/* Products with bf16 weights: every instruction set this machine has against the oracle of naive.c, bit for bit, over
 * odd sizes, strides and values; rows that do not depend on their batch; storage of weights that have no float32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/naive.h"
#include "cpu/test_util.h"

enum { N_ISA = 5, N_BE = 2 * N_ISA, AMX = 4 };

static int setup(void **state) {
    (void)state;
    return open_backends(N_ISA);
}

/* Some values that rounding and flushing treat specially. */
static void spice(float *p, int64_t n, uint64_t stream) {
    static const float odd_ones[] = {0.0f,         -0.0f,       1e-39f,      -1e-40f,      1.1754942e-38f,  0x1p-126f,
                                     -0x1.8p-126f, 1.00390625f, 1.01171875f, -1.00390637f, 0x1.fffffep127f, 3e-20f,
                                     -2e-19f,      0x1.01p-70f};
    struct rng r = rng_make(18, stream);
    for (int64_t i = 0; i < n; i += 1 + (int64_t)rng_below(&r, 7)) p[i] = odd_ones[rng_below(&r, ARRAY_LEN(odd_ones))];
}

static void same_bits(const float *a, const float *b, int64_t n, const char *name, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof(float)) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: %s: element %lld: %a is not %a", name, what, (long long)i, (double)a[i], (double)b[i]);
}

/* M, N, K; leading dimensions are a little larger, and what lies between rows must survive. */
static const int64_t sizes[][3] = {{0, 5, 3},    {1, 1, 1},     {1, 64, 128},  {2, 65, 129},  {5, 15, 0},
                                   {6, 16, 16},  {7, 17, 127},  {8, 63, 130},  {9, 64, 31},   {12, 48, 64},
                                   {13, 1, 257}, {16, 128, 32}, {17, 130, 33}, {33, 64, 600}, {32, 70, 20},
                                   {1, 200, 5},  {50, 33, 40},  {3, 300, 70},  {200, 20, 9},  {4, 96, 1030}};

static void products(float scale, bool special) {
    for (size_t c = 0; c < ARRAY_LEN(sizes); c++) {
        const int64_t M = sizes[c][0], N = sizes[c][1], K = sizes[c][2], ldx = K + 3, ldy = N + 5;
        float *x = randoms(M * ldx, 1, scale), *w = randoms(N * K, 2, scale), *y0 = randoms(M * ldy, 3, scale);
        float *dx0 = randoms(M * ldx, 4, scale), *dw0 = randoms(N * K, 5, scale), *bias = randoms(N, 6, scale);
        if (special) spice(x, M * ldx, 1), spice(w, N * K, 2), spice(y0, M * ldy, 3), spice(dx0, M * ldx, 4);
        for (int tiles = 0; tiles < 2; tiles++) { /* the two orders of addition; the oracle is slow, so once each */
            float *want_y[3], *want_dx[3], *want_dw = copy_of(dw0, N * K);
            for (int v = 0; v < 3; v++) { /* plain, onto what is there, with a bias */
                want_y[v] = copy_of(y0, M * ldy);
                want_dx[v] = copy_of(dx0, M * ldx);
                ref_product_bf16(want_y[v], ldy, x, ldx, 1, w, K, 1, v == 2 ? bias : NULL, v == 1, M, N, K, tiles);
                ref_product_bf16(want_dx[v], ldx, y0, ldy, 1, w, 1, K, NULL, v == 1, M, K, N, tiles);
            }
            ref_product_bf16(want_dw, K, y0, 1, ldy, x, 1, ldx, NULL, true, N, K, M, tiles);
            for (int i = tiles ? 2 * AMX : 0; i < (tiles ? N_BE : 2 * AMX); i++) {
                if (!be[i]) continue;
                struct backend *b = be[i];
                struct weight wt = {.w = w, .N = N, .K = K, .dt = DT_BF16};
                b->weight_pack(b, &wt);
                b->weight_pack(b, &wt); /* a second time over the first */
                for (int v = 0; v < 3; v++) {
                    float *y = copy_of(y0, M * ldy), *dx = copy_of(dx0, M * ldx);
                    b->linear(b, tensor_f32(y, M, N, ldy), tensor_f32(x, M, K, ldx), &wt, v == 2 ? bias : NULL, v == 1);
                    same_bits(y, want_y[v], M * ldy, b->name, "linear");
                    b->linear_dx(b, tensor_f32(dx, M, K, ldx), tensor_f32(y0, M, N, ldy), &wt, v == 1);
                    same_bits(dx, want_dx[v], M * ldx, b->name, "linear_dx");
                    free(y), free(dx);
                }
                float *dw = copy_of(dw0, N * K);
                b->linear_dw(b, dw, tensor_f32(y0, M, N, ldy), tensor_f32(x, M, K, ldx), DT_BF16);
                same_bits(dw, want_dw, N * K, b->name, "linear_dw");
                free(dw);
                b->weight_free(b, &wt);
            }
            for (int v = 0; v < 3; v++) free(want_y[v]), free(want_dx[v]);
            free(want_dw);
        }
        free(x), free(w), free(y0), free(dx0), free(dw0), free(bias);
    }
}

static void test_products(void **state) {
    (void)state;
    products(1, false);
}
static void test_small_and_special_values(void **state) {
    (void)state;
    products(1e-19f, false); /* products around the smallest normal number */
    products(1, true);
}

/* The rounding itself, over bits of every exponent. */
static void test_rounding(void **state) {
    (void)state;
    enum { N = 1 << 16 };
    float *x = xaligned(N * sizeof *x);
    struct rng r = rng_make(19, 0);
    for (int i = 0; i < N; i++) {
        uint32_t u = (uint32_t)rng_next(&r);
        if (i % 4 == 0) u = (u & 0xffff0000u) | 0x8000u; /* halfway */
        memcpy(x + i, &u, sizeof u);
    }
    const struct cpu_pair_kernels *all[] = {&cpu_pairs_reference, be[2] ? &cpu_pairs_avx2 : NULL,
                                            be[4] ? &cpu_pairs_avx512 : NULL, be[6] ? &cpu_pairs_avx512bf16 : NULL};
    uint16_t *out = xaligned(N * sizeof *out);
    for (int i = 0; i < 4; i++) {
        if (!all[i]) continue;
        struct round_args a = {tensor_full(x, 1, N), out, N};
        all[i]->round(&a, 0, 1, 0);
        for (int j = 0; j < N; j++) {
            const uint32_t u = (uint32_t)out[j] << 16;
            float got;
            memcpy(&got, &u, sizeof got);
            if (isnan(x[j]) ? !isnan(got) || !(out[j] & 0x40) : memcmp(&got, &(float){ref_bf16(x[j])}, 4) != 0)
                fail_msg("%s: %a rounds to %a, got %a", isa[i], (double)x[j], (double)ref_bf16(x[j]), (double)got);
        }
    }
    free(x), free(out);
}

/* A row's bits are the same in every batch and on one thread and two. */
static void test_rows_alone(void **state) {
    (void)state;
    static const int64_t batch[] = {1, 2, 3, 7, 8, 16, 17, 64, 129, 1024};
    const int64_t N = 200, K = 328, most = 1024;
    float *x = randoms(most * K, 21, 1), *w = randoms(N * K, 22, 1), *bias = randoms(N, 23, 1);
    float *y = xaligned((size_t)(most * N) * 4), *dx = xaligned((size_t)(most * K) * 4);
    for (int i = 2; i < N_BE; i++) { /* the reference takes too long, and has been compared */
        if (!be[i]) continue;
        struct backend *b = be[i];
        struct weight wt = {.w = w, .N = N, .K = K, .dt = DT_BF16};
        b->weight_pack(b, &wt);
        float *want_y = xaligned((size_t)(most * N) * 4), *want_dx = xaligned((size_t)(most * K) * 4);
        b->linear(b, tensor_full(want_y, most, N), tensor_full(x, most, K), &wt, bias, false);
        b->linear_dx(b, tensor_full(want_dx, most, K), tensor_full(want_y, most, N), &wt, false);
        for (int64_t t = 3; t < most; t += 17) { /* alone */
            b->linear(b, tensor_full(y, 1, N), tensor_full(x + t * K, 1, K), &wt, bias, false);
            same_bits(y, want_y + t * N, N, b->name, "a row alone");
            b->linear_dx(b, tensor_full(dx, 1, K), tensor_full(y, 1, N), &wt, false);
            same_bits(dx, want_dx + t * K, K, b->name, "a gradient alone");
        }
        for (size_t s = 0; s < ARRAY_LEN(batch); s++) {
            const int64_t M = batch[s], from = (most - M) / 2;
            b->linear(b, tensor_full(y, M, N), tensor_full(x + from * K, M, K), &wt, bias, false);
            same_bits(y, want_y + from * N, M * N, b->name, "a row in a batch");
            b->linear_dx(b, tensor_full(dx, M, K), tensor_full(y, M, N), &wt, false);
            same_bits(dx, want_dx + from * K, M * K, b->name, "a gradient in a batch");
        }
        b->weight_free(b, &wt);
        free(want_y), free(want_dx);
    }
    free(x), free(w), free(bias), free(y), free(dx);
}

/* Weights without float32: rows put in parts come back as they were, multiply and embed as packed ones do. */
static void test_weights_alone(void **state) {
    (void)state;
    static const int64_t shape[][2] = {{1, 1}, {130, 37}, {64, 64}, {200, 96}};
    for (size_t c = 0; c < ARRAY_LEN(shape); c++) {
        const int64_t N = shape[c][0], K = shape[c][1], T = 9;
        float *master = randoms(N * K, 31, 1), *x = randoms(T * K, 32, 1);
        uint16_t *bits = xaligned((size_t)(N * K) * 2), *back = xaligned((size_t)(N * K) * 2);
        for (int64_t i = 0; i < N * K; i++) {
            uint32_t u;
            memcpy(&u, &(float){ref_bf16(master[i])}, sizeof u);
            bits[i] = (uint16_t)(u >> 16);
        }
        for (int i = 0; i < N_BE; i++) {
            if (!be[i]) continue;
            struct backend *b = be[i];
            struct weight packed = {.w = master, .N = N, .K = K, .dt = DT_BF16}, put = {.N = N, .K = K, .dt = DT_BF16};
            b->weight_pack(b, &packed);
            const int64_t cut[] = {0, N / 3, N / 2, N};
            for (int j = 0; j < 3; j++) b->weight_put(b, &put, cut[j], cut[j + 1] - cut[j], bits + cut[j] * K);
            memset(back, 0, (size_t)(N * K) * 2);
            b->weight_get(b, &put, N / 2, N - N / 2, back + N / 2 * K);
            b->weight_get(b, &put, 0, N / 2, back);
            assert_memory_equal(back, bits, (size_t)(N * K) * 2);
            float *y0 = xaligned((size_t)(T * N) * 4), *y1 = xaligned((size_t)(T * N) * 4);
            b->linear(b, tensor_full(y0, T, N), tensor_full(x, T, K), &packed, NULL, false);
            b->linear(b, tensor_full(y1, T, N), tensor_full(x, T, K), &put, NULL, false);
            same_bits(y1, y0, T * N, b->name, "put weights");
            int32_t ids[9];
            for (int t = 0; t < 9; t++) ids[t] = (int32_t)(t * 7919 % N);
            float *rows = xaligned((size_t)(T * (K + 2)) * 4);
            b->embed(b, tensor_f32(rows, T, K, K + 2), &put, ids);
            for (int64_t t = 0; t < T; t++)
                for (int64_t k = 0; k < K; k++) assert_true(rows[t * (K + 2) + k] == ref_bf16(master[ids[t] * K + k]));
            b->weight_free(b, &packed);
            b->weight_free(b, &put);
            assert_null(put.packed);
            free(y0), free(y1), free(rows);
        }
        free(master), free(x), free(bits), free(back);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),      cmocka_unit_test(test_small_and_special_values),
        cmocka_unit_test(test_rounding),      cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_weights_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
