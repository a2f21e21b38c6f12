/* Scores of verdicts against figures worked out by hand, stage presets, returns over turns. */
#include "reward/reward.h"

#include <math.h>

#include "io/json.h"
#include "rl/options/options.h"
#include "rl/test_util.h"

static bool near(double a, double b) { return fabs(a - b) < 1e-9; }

static const struct verdict wrong = {.outcome = OUTCOME_WRONG_OUTPUT, .tests_passed = 2, .tests_total = 5};
static struct verdict timed(double speedup) {
    return (struct verdict){.outcome = OUTCOME_CORRECT, .tests_passed = 5, .tests_total = 5, .speedup = speedup};
}

static struct reward score(const struct reward_weights *w, const struct verdict *v) {
    return reward_score(w, &(struct reward_input){
                               .verdict = v, .format_ok = true, .kernel_chars = 1000, .tokens = 10, .max_tokens = 100});
}

/* Weights that a configuration gives: defaults and these assignments. */
static struct reward_weights weights(const char *const *assignments) {
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    for (; *assignments; assignments++) CHECK(config_set(&c, *assignments, &err));
    CHECK(train_options_finish(&c, &o, &err));
    const struct reward_weights w = o.reward;
    config_free(&c);
    return w;
}
#define WEIGHTS(...) weights((const char *const[]){__VA_ARGS__, NULL})

static void parts(void **state) {
    (void)state;
    struct reward_weights w = {.format = 0.1, .compile = 0.2, .correct = 0.3, .speed = 1, .speed_cap = 3};
    struct verdict v = timed(0.5);
    assert_true(near(score(&w, &v).total, 1.1)); /* slower still earns its ratio */
    v = timed(20);
    assert_true(near(score(&w, &v).total, 3.6));
    v = timed(0); /* not timed */
    assert_true(near(score(&w, &v).total, 0.6));
    v = wrong;
    v.speedup = 9;
    assert_true(near(score(&w, &v).total, 0.3)); /* format and compile credit */
    w.partial_correct = true;
    assert_true(near(score(&w, &v).total, 0.42));
    v.outcome = OUTCOME_COMPILE_ERROR;
    assert_true(near(score(&w, &v).total, 0.1));
    v.outcome = OUTCOME_SANDBOX_VIOLATION;
    assert_true(score(&w, &v).total == 0);
    w.cheating_penalty = 0.5;
    assert_true(score(&w, &v).total == -0.5);
    v = timed(3);
    w.shape = SPEED_EXCESS;
    assert_true(score(&w, &v).speed == 2);
    w.shape = SPEED_LOG;
    assert_true(score(&w, &v).speed == 2);
    w.check_excessive = true; /* not believed */
    w.excessive = 2.5;
    const struct reward r = score(&w, &v);
    assert_true(r.speed == 0 && r.correct == 1);
    w.format_penalty = 0.25;
    const struct reward_input unformatted = {.verdict = &wrong, .max_tokens = 100};
    assert_true(near(reward_score(&w, &unformatted).total, 0.2 + 0.3 * 0.4 - 0.25));
}

/* Lines between the bounds; what a correct kernel's length and every thought's length are worth. */
static void lengths(void **state) {
    (void)state;
    const struct reward_weights w = WEIGHTS("reward_length_weight=1", "reward_thinking_weight=1");
    const struct verdict good = timed(0);
    const struct {
        int64_t kernel, thought;
        double length, think;
    } rows[] = {{500, 1, 1, 1},       {4250, 3000, 0.5, 0.85},        {8000, 4000, 0, 0.7},
                {9999, 9999, 0, 0.7}, {501, 2000, 1 - 1 / 7500.0, 1}, {0, 0, 1, 0.5}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct reward r =
            reward_score(&w, &(struct reward_input){&good, true, rows[i].thought, rows[i].kernel, 10, 100});
        assert_true(near(r.length, rows[i].length) && near(r.think, rows[i].think));
        assert_true(near(r.total, 0.1 + 0.2 + 1 + rows[i].length + rows[i].think));
    }
    assert_true(score(&w, &wrong).length == 0); /* a short wrong kernel is no shorter right one */
}

/* The last tokens of the allowance cost (DAPO's soft punishment): nothing at 80 of 100, half at 90, all at 100. */
static void overlong(void **state) {
    (void)state;
    const struct reward_weights w = WEIGHTS("overlong_buffer_tokens=20", "overlong_penalty=2");
    const int64_t tokens[] = {10, 80, 90, 100};
    const double want[] = {0, 0, -0.5, -1};
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        const struct reward r = reward_score(&w, &(struct reward_input){&wrong, true, 0, 10, tokens[i], 100});
        assert_true(near(r.overlong, want[i]) && near(r.total, 0.3 + 2 * want[i]));
    }
}

/* The published vectors of the systems before this one, where their rule is kept. */
static void vectors(void **state) {
    (void)state;
    const struct reward_weights standard =
        WEIGHTS("reward_preset=default", "speed_reward=excess", "speed_max_reward=10");
    const double speed[] = {0, 0.5, 3, 20}, want[] = {0.3, 0.3, 2.3, 10.3};
    for (size_t i = 0; i < ARRAY_LEN(speed); i++) {
        const struct verdict v = timed(speed[i]);
        assert_true(near(score(&standard, &v).total, want[i]));
    }
    /* Kevin's own: 0.3 for correct, plus T_eager / T_kernel. */
    const struct reward_weights kevin = WEIGHTS("reward_preset=default", "speed_max_reward=10");
    const struct verdict slow = timed(0.5);
    assert_true(near(score(&kevin, &slow).total, 0.8));

    const struct reward_weights s1 = WEIGHTS("reward_preset=stage1");
    struct verdict v = wrong;
    assert_true(near(score(&s1, &v).total, 0.88));
    v.tests_passed = 0; /* it compiles: that is what stage 1 teaches */
    assert_true(near(score(&s1, &v).total, 0.8));
    v = timed(7);
    assert_true(near(score(&s1, &v).total, 1.0));
    const struct reward_weights s2 = WEIGHTS("reward_preset=stage2"), s3 = WEIGHTS("reward_preset=stage3"),
                                sparse = WEIGHTS("reward_preset=sparse");
    assert_true(near(score(&s2, &wrong).total, 0.1 + 0.2 + 0.7 * 0.4));
    v = timed(2);
    assert_true(near(score(&s3, &v).total, 0.05 + 0.1 + 0.5 + 0.35 * 2));
    assert_true(near(score(&s3, &wrong).total, 0.15)); /* all or nothing */
    assert_true(near(score(&sparse, &v).total, 1 + 0.5 * 2));
    assert_true(near(score(&sparse, &wrong).total, 0));
    /* What the configuration sets stays. */
    const struct reward_weights own = WEIGHTS("reward_preset=stage1", "reward_compile_weight=0.6");
    assert_true(near(own.compile, 0.6) && near(own.format, 0.3));
    /* REINFORCE's: syntax times (0.7 correct + 0.3 speed-up); what does not compile scores nothing. */
    const struct reward_weights r = WEIGHTS("reward_format_weight=0", "reward_compile_weight=0",
                                            "reward_correctness_weight=0.7", "reward_speed_weight=0.3");
    assert_true(near(score(&r, &v).total, 0.7 + 0.3 * 2));
    const struct verdict broken = {.outcome = OUTCOME_COMPILE_ERROR};
    assert_true(score(&r, &broken).total == 0);
}

static void plan_and_code(void **state) {
    (void)state;
    const struct reward_weights w = WEIGHTS("reward_speed_weight=2");
    const struct verdict v = timed(1.5);
    struct reward r = score(&w, &v);
    assert_true(near(r.plan, 3) && near(r.code, 1.3) && near(r.plan + r.code, r.total));
    r = score(&w, &wrong);
    assert_true(r.plan == 0 && near(r.code, r.total));
}

static void returns(void **state) {
    (void)state;
    double s[] = {0.2, 0.3, 0.8, 1.0};
    const double want[] = {0.512, 0.78, 1.2, 1.0};
    reward_returns(s, 4, 0.4, s);
    for (int i = 0; i < 4; i++) assert_true(near(s[i], want[i]));
    /* Solved at turn 0, 1, 2, 3: an earlier solution never earns less than a later one. */
    double before = INFINITY;
    for (int solved = 0; solved < 4; solved++) {
        double x[4] = {0};
        x[solved] = 1;
        reward_returns(x, 4, 0.4, x);
        assert_true(x[0] < before && near(x[0], pow(0.4, solved)));
        before = x[0];
    }
}

/* An answer of somebody else has the score of one's own. What nobody knows is NaN where nothing is paid for it, and
 * refused where something is. */
static void answers_of_others(void **state) {
    (void)state;
    struct reward_weights w = {.correct = 0.3, .speed = 1, .speed_cap = 3, .length_max = 5000, .cheating_penalty = 1};
    const struct verdict none = {.outcome = OUTCOME_NO_KERNEL}, cheat = {.outcome = OUTCOME_SANDBOX_VIOLATION},
                         good = timed(2);
    const struct reward_known all = {true, true, true, true, true, true}, verdict_alone = {.speed = true};
    struct reward_input in = {.format_ok = true, .thought_chars = 7, .kernel_chars = 1000, .tokens = 95};
    in.max_tokens = 100;
    const struct verdict *const verdicts[] = {&good, &wrong, &none, &cheat};
    struct reward r, own;
    for (size_t i = 0; i < ARRAY_LEN(verdicts); i++) {
        in.verdict = verdicts[i];
        own = reward_score(&w, &in);
        CHECK(reward_score_known(&w, &in, all, "here", &r, &err));
        assert_memory_equal(&r, &own, sizeof r);
        CHECK(reward_score_known(&w, &in, verdict_alone, "here", &r, &err));
        assert_true(r.total == own.total);
        const bool is_cheat = verdicts[i] == &cheat;
        assert_int_equal(isnan(r.format), !is_cheat && verdicts[i] != &none); /* no kernel, no format */
        assert_int_equal(isnan(r.think), !is_cheat);
        assert_int_equal(isnan(r.length), verdicts[i] == &good);
        assert_true(!isnan(r.overlong));
    }
    w.overlong_buffer = 10;
    in.verdict = &good;
    CHECK(reward_score_known(&w, &in, verdict_alone, "here", &r, &err));
    assert_true(isnan(r.overlong));
    w.overlong_penalty = 1;
    CHECK_FAILS(reward_score_known(&w, &in, verdict_alone, "here", &r, &err), ST_INVALID, "here: tokens is not known");
    in.verdict = &cheat;
    CHECK(reward_score_known(&w, &in, (struct reward_known){0}, "here", &r, &err));
}

static void as_json(void **state) {
    (void)state;
    struct reward r = {.format = 1, .speed = 0.5, .length = (double)NAN, .total = 1.25};
    for (int k = 0; k < 2; k++) {
        CLEANUP_STR struct str s = STR_INIT;
        CLEANUP_JSON json_t *all = NULL;
        js_begin(&s, NULL, '{');
        r.preference = k * 0.75;
        reward_to_json(&r, k == 0, &s);
        js_end(&s, '}');
        CHECK(js_parse(s.p, s.len, "reward", &all, &err));
        const json_t *o = json_object_get(all, "reward");
        assert_int_equal((int)json_object_size(o), 8 + k);
        assert_int_equal(json_is_null(json_object_get(o, "total")), k);
        assert_true(k == 1 || near(json_number_value(json_object_get(o, "total")), 1.25));
        assert_true(near(json_number_value(json_object_get(o, "speed")), 0.5));
        assert_true(json_is_null(json_object_get(o, "length")));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_of_others), cmocka_unit_test(as_json),  cmocka_unit_test(parts),
        cmocka_unit_test(lengths),           cmocka_unit_test(overlong), cmocka_unit_test(vectors),
        cmocka_unit_test(plan_and_code),     cmocka_unit_test(returns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
