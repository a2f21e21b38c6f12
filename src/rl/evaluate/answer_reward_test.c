/* What a run would pay for an answer of another program, and what must be known of the answer. */
#include "rl/evaluate/answer_reward.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct err e;

static void configured(struct config *c, struct train_options *o, const char *const *keys) {
    config_init(c, &train_schema, o);
    for (; *keys; keys++)
        if (config_set(c, *keys, &e) != ST_OK) fail_msg("%s", e.msg);
    if (train_options_finish(c, o, &e) != ST_OK) fail_msg("%s", e.msg);
}
#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Each part that has a weight must be known, and no other. */
static void what_is_paid_for_must_be_known(void **state) {
    (void)state;
    static const struct {
        const char *key, *more, *missing;
        size_t known; /* offset in struct reward_known */
        enum outcome outcome;
    } cases[] = {
        {"reward_format_weight=0.1", "seed=1", "format_ok", offsetof(struct reward_known, format), OUTCOME_CORRECT},
        {"format_penalty=0.1", "reward_format_weight=0", "format_ok", offsetof(struct reward_known, format),
         OUTCOME_CORRECT},
        {"reward_thinking_weight=0.1", "seed=1", "thought_chars", offsetof(struct reward_known, thought),
         OUTCOME_CORRECT},
        {"reward_length_weight=0.1", "seed=1", "kernel_chars", offsetof(struct reward_known, kernel), OUTCOME_CORRECT},
        {"overlong_penalty=0.1", "overlong_buffer_tokens=5", "tokens", offsetof(struct reward_known, tokens),
         OUTCOME_CORRECT},
        {"reward_speed_weight=0.1", "seed=1", "speedup", offsetof(struct reward_known, speed), OUTCOME_CORRECT},
        {"partial_correctness=true", "seed=1", "tests_total", offsetof(struct reward_known, tests),
         OUTCOME_WRONG_OUTPUT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct config c;
        struct train_options o;
        configured(&c, &o, KEYS(cases[i].key, cases[i].more));
        const struct rollout_params p = answer_weights(&o, 1);
        struct reward_known known = {true, true, true, true, true, true};
        struct episode ep = {.verdict = {.outcome = cases[i].outcome}, .format_ok = true};
        assert_int_equal(answer_reward(&p, known, "here", &ep, &e), ST_OK);
        *(bool *)((char *)&known + cases[i].known) = false;
        assert_int_equal(answer_reward(&p, known, "here", &ep, &e), ST_INVALID);
        if (strncmp(e.msg, "here: ", 6) != 0 || !strstr(e.msg, cases[i].missing)) fail_msg("%s", e.msg);
        ep.verdict.outcome = OUTCOME_TOO_FAST; /* a cheat is paid for nothing */
        assert_int_equal(answer_reward(&p, known, "here", &ep, &e), ST_OK);
        ep.verdict.outcome = OUTCOME_INFRASTRUCTURE;
        assert_int_equal(answer_reward(&p, known, "here", &ep, &e), ST_OK);
        assert_false(ep.present);
        config_free(&c);
    }
}

/* The total is that of training; a part that nobody knows is none. */
static void the_reward_is_that_of_training(void **state) {
    (void)state;
    struct config c;
    struct train_options o;
    configured(&c, &o, KEYS("reward_speed_weight=0.5", "schedule.speed_until=0.5", "reward_length_weight=0.25"));
    struct episode ep = {.verdict = {.outcome = OUTCOME_CORRECT, .speedup = 2}, .format_ok = true, .kernel_chars = 900};
    static const double shares[] = {0, 0.25, 0.5, 1}, speed[] = {0, 0.5, 1, 1};
    for (size_t i = 0; i < ARRAY_LEN(shares); i++) {
        const struct rollout_params p = answer_weights(&o, shares[i]);
        assert_int_equal(
            answer_reward(&p, (struct reward_known){.format = true, .kernel = true, .speed = true}, "x", &ep, &e),
            ST_OK);
        assert_true(ep.present && ep.reward.total == rollout_reward(&p, &ep).total);
        assert_true(fabs(ep.reward.total - (1.3 + speed[i] + 0.25 * (1 - 400. / 7500))) < 1e-12);
        assert_true(isnan(ep.reward.think) && !isnan(ep.reward.length));
    }
    config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_paid_for_must_be_known),
        cmocka_unit_test(the_reward_is_that_of_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
