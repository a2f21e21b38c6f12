#include "rl/options/scale_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* 8 prompts of 512 tokens with 16 answers of 1,024, as bench rlstep measures them. */
static const struct scale_rates seven = {"7B", {217, 3227, 11247, 24008}, 16923};
static struct scale_step step_of(int64_t train_tokens) {
    return (struct scale_step){8, 16, 512, 1024, train_tokens, 80740352, &seven};
}

static void test_leaves(void **state) {
    (void)state;
    static const struct {
        int64_t train_tokens;
        int ranks;
        int64_t leaves, rounds;
        double idle;
    } of[] = {{16880, 1, 8, 8, 0},   {16880, 8, 8, 1, 0},       {16384, 4, 16, 4, 0},  {4096, 4, 48, 12, 0},
              {1024, 8, 128, 16, 0}, {16880, 3, 8, 3, 1.0 / 9}, {33760, 8, 4, 1, 0.5}, {1000000, 2, 1, 1, 0.5}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const struct scale_step s = step_of(of[i].train_tokens);
        const struct scale_point p = scale_point_of(&s, of[i].ranks);
        assert_int_equal(p.leaves, of[i].leaves);
        assert_int_equal(p.rounds, of[i].rounds);
        assert_true(fabs(p.idle - of[i].idle) < 1e-12);
    }
}

static void test_fold(void **state) {
    (void)state;
    const struct scale_step s = step_of(16880);
    assert_int_equal(scale_point_of(&s, 1).fold_bytes, 0);
    assert_int_equal(scale_point_of(&s, 4).fold_bytes, 3 * 4 * s.trained / 4 * 3); /* two rounds and the sum */
    assert_int_equal(scale_point_of(&s, 8).fold_bytes, 2 * 4 * s.trained / 8 * 7);
}

static void test_seconds(void **state) {
    (void)state;
    struct scale_step s = step_of(16880);
    const struct scale_point one = scale_point_of(&s, 1), eight = scale_point_of(&s, 8);
    assert_true(fabs(one.train_s / 8.1 - 1) < 0.03);             /* measured on an H200 */
    assert_true(one.sample_s < 8.7 && one.sample_s > 0.8 * 8.7); /* its contexts are longer than the rate's */
    assert_true(fabs(eight.sample_s - 1024 * 16 / 3227.0) < 1e-9);
    assert_true(fabs(eight.train_s * 8 - one.train_s) < 1e-9);
    s.groups = 64;
    assert_true(fabs(scale_point_of(&s, 8).sample_s - one.sample_s) < 1e-9);
    assert_true(fabs(scale_point_of(&s, 1).sample_s - 4 * 1024 * 256 / 24008.0) < 1e-9); /* 256 at a time */
    s.rates = NULL;
    assert_true(isnan(scale_point_of(&s, 2).sample_s) && isnan(scale_point_of(&s, 2).train_s));
    struct str out = STR_INIT;
    scale_table(&s, &out);
    assert_non_null(strstr(out.p, "unknown"));
    assert_null(strstr(out.p, "nan"));
    str_free(&out);
}

static void test_rates(void **state) {
    (void)state;
    const double gib = 1 << 30;
    const struct train_plan p = {.layers = 28, .weights = (int64_t)(14.19 * gib)},
                            other = {.layers = 28, .weights = (int64_t)(15.5 * gib)};
    assert_non_null(scale_rates_of(&p, true));
    assert_null(scale_rates_of(&p, false));
    assert_null(scale_rates_of(&other, true));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_leaves), cmocka_unit_test(test_fold),
                                       cmocka_unit_test(test_seconds), cmocka_unit_test(test_rates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
