/* Rates, intervals and paired speed over results made by hand; no model and no verifier. */
#include "rl/run/rates.h"

#include <math.h>

#include "io/json.h"
#include "rl/test_util.h"

static void near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, expected %.9g +- %g", got, want, tolerance);
}

static char kernel_text[] = "x";
static const struct problem problems[200] = {
    [0] = {.key = "level1/1_A"}, [1] = {.key = "a\"b\\c"}, [2] = {.key = "lost"}};

static struct episode outcome(enum outcome o, double speedup) {
    return (struct episode){.present = outcome_class(o) != 'I',
                            .kernel = o == OUTCOME_NO_KERNEL ? NULL : kernel_text,
                            .sample = {.n = 10},
                            .verdict = {.outcome = o, .speedup = speedup}};
}

static void count(struct eval_result *r, int i, struct episode *ep, int n) {
    eval_count(r, i, &(struct sample_group){.problem = &problems[i], .ep = ep, .n = n});
}

static void rates_are_means_over_problems(void **state) {
    (void)state;
    struct eval_result r;
    eval_begin(&r, 3, 4, 1);
    struct episode a[] = {outcome(OUTCOME_CORRECT, 4), outcome(OUTCOME_CORRECT, 0.25),
                          outcome(OUTCOME_COMPILE_ERROR, 0), outcome(OUTCOME_NO_KERNEL, 0)};
    struct episode b[] = {outcome(OUTCOME_WRONG_OUTPUT, 0), outcome(OUTCOME_CORRECT, 2),
                          outcome(OUTCOME_INFRASTRUCTURE, 0), outcome(OUTCOME_PROBLEM_ERROR, 0)};
    struct episode c[] = {outcome(OUTCOME_INFRASTRUCTURE, 0), outcome(OUTCOME_INFRASTRUCTURE, 0),
                          outcome(OUTCOME_INFRASTRUCTURE, 0), outcome(OUTCOME_INFRASTRUCTURE, 0)};
    count(&r, 0, a, 4);
    count(&r, 1, b, 4);
    count(&r, 2, c, 4); /* nothing is known of this one: it must not pull the rates down */
    eval_summarise(&r);
    assert_int_equal(r.missing, 6);
    assert_int_equal(r.items[1].n, 2);
    near(r.parsed.mean, (0.75 + 1) / 2, 1e-12);
    near(r.compiled.mean, (0.5 + 1) / 2, 1e-12);
    near(r.correct.mean, (0.5 + 0.5) / 2, 1e-12);
    near(r.fast.mean, (0.25 + 0.5) / 2, 1e-12);
    near(r.speedup.mean, cbrt(4 * 0.25 * 2), 1e-12); /* every correct answer counts the same */
    near(r.mean_tokens, 10, 0);
    assert_true(r.parsed.low >= 0.75 && r.parsed.high <= 1 && r.parsed.low <= r.parsed.mean);

    CLEANUP_STR struct str s = STR_INIT;
    CLEANUP_JSON json_t *j = NULL;
    json_t *items, *interval;
    const char *key;
    double d;
    eval_to_json(&r, &s);
    CHECK(js_parse(s.p, s.len, "eval", &j, &err));
    CHECK(js_get_object(j, "", "correct", &interval, &err));
    CHECK(js_get_f64(interval, "", "mean", &d, &err));
    near(d, 0.5, 0);
    CHECK(js_get_array(j, "", "items", &items, &err));
    assert_int_equal(json_array_size(items), 3);
    CHECK(js_get_str(json_array_get(items, 1), "", "problem", &key, &err));
    assert_string_equal(key, "a\"b\\c");
    CHECK(js_get_f64(json_array_get(items, 1), "", "speedup", &d, &err));
    near(d, 2, 1e-3);
    eval_free(&r);
}

static void nothing_judged_gives_null(void **state) {
    (void)state;
    struct eval_result r;
    eval_begin(&r, 1, 1, 0);
    struct episode lost = outcome(OUTCOME_INFRASTRUCTURE, 0);
    count(&r, 0, &lost, 1);
    eval_summarise(&r);
    assert_true(isnan(r.correct.mean) && isnan(r.speedup.mean));
    CLEANUP_STR struct str s = STR_INIT;
    CLEANUP_JSON json_t *j = NULL;
    eval_to_json(&r, &s);
    CHECK(js_parse(s.p, s.len, "eval", &j, &err));
    assert_true(json_is_null(json_object_get(j, "correct")) && json_is_null(json_object_get(j, "speedup")));
    eval_free(&r);
}

/* Successes of probability `rate`, one answer each for n problems. */
static struct eval_result coin(int n, double rate, uint64_t seed) {
    struct eval_result r;
    eval_begin(&r, n, 1, 1);
    for (int i = 0; i < n; i++) {
        bool good = rng_f64(seed, 1, (uint64_t)i) < rate;
        double speed = exp(0.5 * sqrt(12) * (rng_f64(seed, 2, (uint64_t)i) - 0.5)); /* ln has deviation 0.5 */
        struct episode ep = good ? outcome(OUTCOME_CORRECT, speed) : outcome(OUTCOME_WRONG_OUTPUT, 0);
        count(&r, i, &ep, 1);
    }
    eval_summarise(&r);
    return r;
}

static void intervals_have_the_right_width(void **state) {
    (void)state;
    struct eval_result r = coin(200, 0.4, 1);
    double p = r.correct.mean, half = 1.96 * sqrt(p * (1 - p) / 200);
    near(r.correct.low, p - half, 0.15 * half);
    near(r.correct.high, p + half, 0.15 * half);
    assert_true(r.correct.high - r.correct.low > 0);
    double m = log(r.speedup.mean), spread = 1.96 * 0.5 / sqrt(200 * p);
    near(log(r.speedup.high) - m, spread, 0.25 * spread);
    near(m - log(r.speedup.low), spread, 0.25 * spread);
    near(r.parsed.low, 1, 0); /* no doubt about what is always so */
    near(r.parsed.high, 1, 0);
    struct eval_result again = coin(200, 0.4, 1); /* and the draws are the same ones every time */
    assert_memory_equal(&r.correct, &again.correct, sizeof r.correct);
    eval_free(&again);
    eval_free(&r);

    /* A 95 % interval misses the truth about one time in twenty. */
    int missed = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        r = coin(100, 0.4, 100 + seed);
        missed += r.correct.low > 0.4 || r.correct.high < 0.4;
        eval_free(&r);
    }
    assert_in_range(missed, 1, 8);
}

/* A part is what its problems alone come to. */
static void parts(void **state) {
    (void)state;
    struct eval_result all = coin(50, 0.4, 7), alone = coin(30, 0.4, 7), first, rest;
    struct episode lost = outcome(OUTCOME_INFRASTRUCTURE, 0);
    all.items[49] = (struct eval_problem){0};
    count(&all, 49, &lost, 1);
    for (int i = 0; i < 50; i++) all.items[i].tokens = i;
    eval_part(&all, 0, 30, &first);
    eval_part(&all, 30, 20, &rest);
    assert_memory_equal(&first.correct, &alone.correct, sizeof first.correct);
    assert_memory_equal(&first.speedup, &alone.speedup, sizeof first.speedup);
    near(first.mean_tokens, 14.5, 1e-12);
    near(rest.mean_tokens, 39.5, 1e-12);
    assert_int_equal(first.missing, 0);
    assert_int_equal(rest.missing, 1);
    assert_int_equal(first.n_problems + rest.n_problems, 50);
    double solved = 0;
    for (int i = 30; i < 49; i++) solved += all.items[i].correct;
    near(rest.correct.mean, solved / 19, 1e-12);
    eval_free(&all);
    eval_free(&alone);
    eval_free(&first);
    eval_free(&rest);
}

static void paired_speed(void **state) {
    (void)state;
    struct eval_result before, after;
    eval_begin(&before, 5, 2, 1);
    eval_begin(&after, 5, 2, 1);
    for (int i = 0; i < 5; i++) {
        double speed = 0.5 + i;
        struct episode b[] = {outcome(OUTCOME_CORRECT, speed), outcome(i ? OUTCOME_CORRECT : OUTCOME_CRASH, speed)};
        struct episode a[] = {outcome(OUTCOME_CORRECT, 2 * speed), outcome(OUTCOME_CORRECT, 8 * speed)};
        if (i == 3) a[0] = a[1] = outcome(OUTCOME_CRASH, 0); /* solved before, not after */
        if (i == 4) b[0] = b[1] = outcome(OUTCOME_CRASH, 0); /* the other way round */
        count(&before, i, b, 2);
        count(&after, i, a, 2);
    }
    int n = 0;
    struct rate_interval p = eval_paired_speed(&before, &after, &n);
    assert_int_equal(n, 3);
    near(p.mean, 4, 1e-9); /* the geometric mean of 2 and 8 on each of the three */
    near(p.low, 4, 1e-9);
    near(p.high, 4, 1e-9);
    p = eval_paired_speed(&after, &before, &n);
    near(p.mean, 0.25, 1e-9);
    eval_free(&after);
    eval_begin(&after, 5, 2, 1); /* nothing solved: no pairs */
    p = eval_paired_speed(&before, &after, &n);
    assert_int_equal(n, 0);
    assert_true(isnan(p.mean));
    eval_free(&before);
    eval_free(&after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_means_over_problems),
        cmocka_unit_test(nothing_judged_gives_null),
        cmocka_unit_test(intervals_have_the_right_width),
        cmocka_unit_test(parts),
        cmocka_unit_test(paired_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
