/* Which problems a step holds as success rises, what a checkpoint keeps of it, and the schedule of options. */
#include "rl/rollout/curriculum.h"

#include <math.h>

#include "rl/test_util.h"

enum { EACH = 10, LEVELS = 3 };
static struct problem problem[LEVELS * EACH];
static const struct problem *all[LEVELS * EACH];

static struct train_options options(const char *assignment) {
    struct train_options o;
    struct config c;
    config_init(&c, &train_schema, &o);
    CHECK(config_set(&c, assignment, &err));
    CHECK(train_options_finish(&c, &o, &err));
    config_free(&c); /* the strings are not looked at */
    for (int i = 0; i < LEVELS * EACH; i++) {
        problem[i] = (struct problem){.level = 1 + i % LEVELS, .difficulty = 3 - i % LEVELS, .problem_id = i};
        all[i] = &problem[i];
    }
    return o;
}

/* A step in which these shares of the learned levels' and the next level's answers are correct. */
static void step(struct curriculum *c, const struct train_options *o, double known, double next) {
    struct episode ep[40] = {0};
    struct sample_group g[2] = {
        {.problem = c->pool[c->begin[c->learned]], .ep = ep, .n = 20},
        {.problem = c->pool[c->begin[c->learned + 1] - (c->learned + 1 == c->n_groups)], .ep = ep + 20, .n = 20}};
    for (int i = 0; i < 40; i++) {
        ep[i].present = true;
        ep[i].verdict.outcome = i % 20 < 20 * (i < 20 ? known : next) ? OUTCOME_CORRECT : OUTCOME_WRONG_OUTPUT;
    }
    const struct rollout r = {.group = g, .n = c->learned + 1 < c->n_groups ? 2 : 1};
    curriculum_update(c, o, &r);
}

static double share_of(const struct curriculum *c, const struct train_options *o, int level, int64_t steps) {
    const struct problem *batch[8];
    int count = 0;
    for (int64_t s = 0; s < steps; s++) {
        curriculum_pick(c, o, s, 8, batch);
        for (int i = 0; i < 8; i++) count += batch[i]->level == level;
    }
    return (double)count / (double)(8 * steps);
}

static void rises_with_success(void **state) {
    (void)state;
    const struct train_options o = options("curriculum.enabled=true");
    struct curriculum c;
    curriculum_init(&c, &o, all, LEVELS * EACH);
    assert_int_equal(c.n_groups, 3);
    assert_true(fabs(share_of(&c, &o, 2, 500) - 0.1) < 0.02); /* start_share */
    assert_true(share_of(&c, &o, 3, 100) == 0);
    for (int i = 0; i < 50; i++) step(&c, &o, 0.3, 0.9); /* below the trigger */
    assert_true(c.share == 0.1 && c.learned == 0);
    step(&c, &o, 1, 0);
    assert_true(c.share == 0.1 || c.share > 0.1); /* the window's mean decides, not one step */
    for (int i = 0; i < 4; i++) step(&c, &o, 0.4, 0);
    const double before = c.share;
    step(&c, &o, 0.5, 0);
    assert_true(fabs(c.share - before - 0.05) < 1e-12);
    for (int i = 0; i < 50; i++) step(&c, &o, 0.5, 0.1);
    assert_true(fabs(c.share - 0.5) < 1e-12 && c.learned == 0); /* end_share, until the next level works as well */
    assert_true(fabs(share_of(&c, &o, 2, 500) - 0.5) < 0.02);
    for (int i = 0; i < 5; i++) step(&c, &o, 0.5, 0.5);
    assert_true(c.learned == 1 && c.share == 0.1);
    assert_true(fabs(share_of(&c, &o, 3, 500) - 0.1) < 0.02);
    assert_true(share_of(&c, &o, 1, 100) > 0.3 && share_of(&c, &o, 2, 100) > 0.3);
    for (int i = 0; i < 100; i++) step(&c, &o, 0.9, 0.9);
    assert_int_equal(c.learned, 2);
    step(&c, &o, 1, 1); /* nothing is left to begin */
    assert_true(fabs(share_of(&c, &o, 3, 200) - 1.0 / 3) < 0.1);
    curriculum_free(&c);
}

static void picks_are_a_function_of_the_state(void **state) {
    (void)state;
    struct train_options o = options("curriculum.by_difficulty=true");
    o.curriculum.enabled = true;
    struct curriculum c, again;
    curriculum_init(&c, &o, all, LEVELS * EACH);
    for (int i = 0; i < 12; i++) step(&c, &o, 0.6, 0.2);
    CLEANUP_STR struct str s = STR_INIT;
    CLEANUP_JSON json_t *json = NULL;
    js_begin(&s, NULL, '{');
    curriculum_save(&c, &s);
    js_end(&s, '}');
    CHECK(js_parse(s.p, s.len, "state", &json, &err));
    curriculum_init(&again, &o, all, LEVELS * EACH);
    CHECK(curriculum_load(&again, json, "state", &err));
    assert_true(again.share == c.share && again.learned == c.learned && again.known.n == c.known.n);
    for (int64_t at = 0; at < 20; at++) {
        const struct problem *a[8], *b[8];
        curriculum_pick(&c, &o, at, 8, a);
        curriculum_pick(&again, &o, at, 8, b);
        assert_memory_equal(a, b, sizeof a);
        for (int i = 0; i < 8; i++) assert_true(a[i]->difficulty <= 2);
        for (int i = 0; i < 8; i++) /* no problem twice while there are others */
            for (int k = 0; k < i; k++) assert_true(a[i] != a[k]);
    }
    CLEANUP_JSON json_t *bad = NULL;
    const char *text = "{\"curriculum\":{\"learned\":7,\"share\":0.1,\"known\":[],\"frontier\":[]}}";
    CHECK(js_parse(text, strlen(text), "state", &bad, &err));
    CHECK_FAILS(curriculum_load(&again, bad, "state", &err), ST_PARSE, "there are 3 groups");
    CHECK(curriculum_load(&again, json_object_get(json, "curriculum"), "state", &err)); /* none in it: stays */
    curriculum_free(&c);
    curriculum_free(&again);
}

static void schedule(void **state) {
    (void)state;
    struct train_options o = options("reward_speed_weight=2");
    assert_true(schedule_at(&o, 0).reward.speed == 2);
    o.schedule.speed_from = 0.2;
    o.schedule.speed_until = 0.6;
    const double at[] = {0, 0.2, 0.3, 0.4, 0.6, 1}, want[] = {0, 0, 0.5, 1, 2, 2};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        const struct train_options now = schedule_at(&o, at[i]);
        assert_true(fabs(now.reward.speed - want[i]) < 1e-12);
    }
    o.reward.partial_correct = true;
    assert_true(schedule_at(&o, 0.99).reward.partial_correct);
    o.schedule.partial_until = 0.5;
    assert_true(schedule_at(&o, 0.49).reward.partial_correct);
    assert_false(schedule_at(&o, 0.5).reward.partial_correct);
    o.plan_weight = 0.1; /* half a cosine from 0.1 to 0.01 */
    assert_true(schedule_at(&o, 1).plan_weight == 0.1);
    o.schedule.plan_weight_end = 0.01;
    assert_true(fabs(schedule_at(&o, 0.5).plan_weight - 0.055) < 1e-12);
    assert_true(fabs(schedule_at(&o, 1).plan_weight - 0.01) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rises_with_success),
        cmocka_unit_test(picks_are_a_function_of_the_state),
        cmocka_unit_test(schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
