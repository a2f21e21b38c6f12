/* The parts of a search by themselves: beliefs, plans, populations, races, shares, budgets, and a candidate's line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "optimize/arms.h"
#include "optimize/budget.h"
#include "optimize/proof.h"
#include "optimize/racing.h"
#include "optimize/share.h"

static struct err e;
#define CHECK(x)                                 \
    do {                                         \
        if ((x) != ST_OK) fail_msg("%s", e.msg); \
    } while (0)

/* ---- bandit -------------------------------------------------------------------------------------------------------*/

/* Mean and variance of drawn gamma and beta numbers, within five of their own deviations. */
static void draws(void **state) {
    (void)state;
    enum { N = 20000 };
    static const double shapes[] = {0.3, 1, 2.5, 40};
    struct rng r = rng_make(1, 2);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        double sum = 0, sq = 0;
        for (int k = 0; k < N; k++) {
            const double x = gamma_draw(shapes[i], &r);
            assert_true(x >= 0 && isfinite(x));
            sum += x;
            sq += x * x;
        }
        const double mean = sum / N, var = sq / N - mean * mean;
        assert_true(fabs(mean - shapes[i]) < 5 * sqrt(shapes[i] / N));
        assert_true(fabs(var - shapes[i]) < 0.12 * shapes[i] + 0.02);
    }
    const struct bandit_arm a = {.paid = 3, .missed = 7};
    double sum = 0;
    for (int k = 0; k < N; k++) sum += bandit_draw(&a, 1, 1, &r);
    assert_true(fabs(sum / N - 4.0 / 12) < 0.01);
}

/* Two arms of 0.3 and 0.6: after a hundred pulls the better one has most of them. */
static void the_better_arm(void **state) {
    (void)state;
    struct bandit_arm a[2] = {{0}};
    struct rng r = rng_make(7, 7);
    for (int i = 0; i < 200; i++) {
        const int pick = bandit_draw(&a[1], 0.5, 0.5, &r) > bandit_draw(&a[0], 0.5, 0.5, &r);
        bandit_pay(&a[pick], rng_next_f64(&r) < (pick ? 0.6 : 0.3));
    }
    assert_true(a[1].n > 140 && a[0].n > 3);
    bandit_pay(&a[0], 7); /* a pay-off is at most 1 */
    assert_true(a[0].missed >= 0);
}

/* ---- plans --------------------------------------------------------------------------------------------------------*/

static void plan_choices(void **state) {
    (void)state;
    struct plans p = {0};
    struct rng r = rng_make(3, 1);
    CLEANUP_STR struct str out = STR_INIT;
    assert_false(plans_draw(&p, &r, &out));
    for (int i = 0; i < 40; i++) { /* names pay, numbers do not; the rest does not matter */
        plans_note(&p, i % 2 ? "fused, names" : "fused, numbers", i % 2, true);
        plans_note(&p, "separate,  numbers ", 0, i % 2);
    }
    plans_note(&p, "three, places, here", 1, true); /* of another form: passed over */
    plans_note(&p, "", 1, true);
    plans_note(&p, NULL, 1, true);
    assert_int_equal(p.n_places, 2);
    assert_int_equal(p.place[0].n, 2);
    assert_int_equal(p.place[1].n, 2);
    int names = 0;
    for (int i = 0; i < 100; i++) {
        str_clear(&out);
        assert_true(plans_draw(&p, &r, &out));
        names += str_has_suffix(out.p, ", names");
    }
    assert_true(names > 90);
    int first = 0;
    for (int i = 0; i < 200; i++) { /* either place changes, and nothing else */
        str_clear(&out);
        assert_true(plans_change(&p, "fused, names", &r, &out));
        assert_true(strcmp(out.p, "separate, names") == 0 || strcmp(out.p, "fused, numbers") == 0);
        first += str_has_prefix(out.p, "separate");
    }
    assert_true(first > 60 && first < 140);
    assert_false(plans_change(&p, "one, two, three", &r, &out));
    plans_free(&p);
}

/* ---- populations --------------------------------------------------------------------------------------------------*/

static struct search_candidate *add(struct population *p, const char *kernel, const char *plan, double speed) {
    struct search_candidate c = {.same_as = -1, .kernel = xstrdup(kernel), .plan = plan ? xstrdup(plan) : NULL};
    const struct verdict v = {.outcome = speed > 0 ? OUTCOME_CORRECT : OUTCOME_WRONG_OUTPUT,
                              .tests_total = 5,
                              .tests_passed = speed > 0 ? 5 : (int)(-speed),
                              .speedup = speed > 0 ? speed : 0,
                              .speedup_low = speed * 0.95,
                              .speedup_high = speed * 1.05};
    const double one = 1;
    c.normal = digest_of(kernel, strlen(kernel));
    c.same_as = population_same(p, &c, p->n);
    candidate_add_verdict(&c, &v);
    candidate_judged(&c, &one, 1);
    return population_add(p, &c);
}

static void elites_and_failures(void **state) {
    (void)state;
    struct population p = {.novelty = true};
    int list[4];
    struct rng r = rng_make(1, 1);
    assert_int_equal(population_best(&p), -1);
    assert_int_equal(population_draw_elite(&p, ANY_ISLAND, -1, &r), -1);
    add(&p, "a", "x", 1.0);
    add(&p, "b", "x", 2.0);
    add(&p, "c", "y", 1.5);
    add(&p, "d", NULL, 0.5);
    add(&p, "b", "x", 9.0); /* known: it does not count */
    add(&p, "e", "z", -3);  /* fails two tests of five */
    add(&p, "f", "z", -1);
    assert_int_equal(p.c[4].same_as, 1);
    assert_int_equal(population_best(&p), 1);
    assert_int_equal(population_elites(&p, ANY_ISLAND, list, 4), 3);
    assert_int_equal(list[0], 1);
    assert_int_equal(list[1], 2);
    assert_int_equal(list[2], 3);
    assert_int_equal(population_elites(&p, ANY_ISLAND, list, 2), 2);
    assert_int_equal(list[1], 2);
    assert_int_equal(population_elites(&p, 1, list, 4), 0); /* all are of island 0 */
    int first = 0, failed = 0;
    for (int i = 0; i < 400; i++) {
        first += population_draw_elite(&p, ANY_ISLAND, -1, &r) == 1;
        assert_int_not_equal(population_draw_elite(&p, ANY_ISLAND, 1, &r), 1);
        const int f = population_draw_failed(&p, ANY_ISLAND, &r);
        assert_true(f == 5 || f == 6);
        failed += f == 5;
    }
    assert_true(first > 150 && first < 250 && failed > 150 && failed < 250);
    population_free(&p);
}

/* A second look that fails takes an answer out; one that is missing changes nothing. */
static void judged_again(void **state) {
    (void)state;
    struct population p = {.novelty = true};
    struct search_candidate *c = add(&p, "a", "x", 2);
    const double one = 1;
    struct verdict v = {.outcome = OUTCOME_INFRASTRUCTURE};
    candidate_judged_again(c, &v, &one, 1);
    assert_true(c->correct && c->judged == 2 && c->estimate.n == 1);
    v = (struct verdict){.outcome = OUTCOME_CORRECT, .speedup = 1, .speedup_low = 0.9, .speedup_high = 1.1};
    candidate_judged_again(c, &v, &one, 1);
    assert_true(fabs(candidate_speed(c) - sqrt(2)) < 1e-9);
    v = (struct verdict){.outcome = OUTCOME_UNSTABLE};
    candidate_judged_again(c, &v, &one, 1);
    assert_true(!c->correct && candidate_verdict(c)->outcome == OUTCOME_UNSTABLE);
    assert_int_equal(population_best(&p), -1);
    population_free(&p);
}

static void races(void **state) {
    (void)state;
    struct population p = {.novelty = true};
    int pick[RACE_MOST];
    assert_int_equal(race_next(&p, pick), 0);
    add(&p, "a", "1", 2.00);
    assert_int_equal(race_next(&p, pick), 0); /* alone */
    add(&p, "b", "2", 1.95);
    add(&p, "c", "3", 1.90);
    add(&p, "d", "4", 0.50); /* cannot win */
    add(&p, "e", "5", -1);
    assert_int_equal(race_next(&p, pick), 2); /* the better half of three */
    assert_int_equal(pick[0], 0);
    assert_int_equal(pick[1], 1);
    const double one = 1;
    struct verdict v = {.outcome = OUTCOME_CORRECT, .speedup = 2, .speedup_low = 1.99, .speedup_high = 2.01};
    for (int round = 0; round < 10 && race_next(&p, pick) > 0; round++) { /* it ends */
        const int n = race_next(&p, pick);
        for (int i = 0; i < n; i++) candidate_judged_again(&p.c[pick[i]], &v, &one, 1);
        assert_true(round < 8);
    }
    assert_int_equal(race_next(&p, pick), 0);
    assert_true(p.c[0].judged <= RACE_MEASUREMENTS && p.c[3].judged == 1);
    population_free(&p);
}

static void pay_offs(void **state) {
    (void)state;
    struct population p = {.novelty = true};
    const double best = candidate_speed(add(&p, "a", "x", 2));
    assert_true(arm_pay_off(&p.c[0], best) == 1);
    assert_true(fabs(arm_pay_off(add(&p, "b", "x", 1), best) - (0.25 + 0.75 * 0.25)) < 1e-9);
    assert_true(fabs(arm_pay_off(add(&p, "c", "x", -4), best) - (0.02 + 0.08 * 0.8)) < 1e-9);
    p.c[2].verdict[0].outcome = OUTCOME_COMPILE_ERROR;
    p.c[2].verdict[0].tests_total = 0;
    assert_true(arm_pay_off(&p.c[2], best) == 0);
    p.c[2].verdict[0].outcome = OUTCOME_HIDDEN_WORK;
    assert_true(arm_pay_off(&p.c[2], best) == 0);
    population_free(&p);
}

/* ---- shares -------------------------------------------------------------------------------------------------------*/

static void shares(void **state) {
    (void)state;
    struct search_task items[3] = {{.key = "a"}, {.key = "b"}, {.key = "c"}};
    struct tasks t = {.items = items, .n = 3};
    struct optimize_options o = {.verdicts = 90, .search = {.wave_answers = 16, .wave_problems = 2}};
    struct share out[4];
    struct share_state s = {0};
    o.search.share = SHARE_EQUAL;
    assert_int_equal(share_wave(&o, &t, &s, out), 2);
    assert_true(out[0].task == 0 && out[1].task == 1 && out[0].answers == 16);
    items[0].spent = items[0].sampled = 16;
    s.spent = s.sampled = 16;
    assert_int_equal(share_wave(&o, &t, &s, out), 2);
    assert_true(out[0].task == 1 && out[1].task == 2);
    items[0].spent = 30;
    items[1].spent = 28;
    items[1].sampled = 56; /* half of its answers were known */
    items[2].trouble = "broken";
    s.spent = 58;
    assert_int_equal(share_wave(&o, &t, &s, out), 1);
    assert_true(out[0].task == 1 && out[0].answers == 4); /* two verdicts are left */
    items[1].sampled = 10000;                             /* nothing new comes of it */
    assert_int_equal(share_wave(&o, &t, &s, out), 0);
    /* By gain: who has gained goes on, who has not waits; an untried one comes first. */
    struct search_task three[3] = {{.key = "a", .waves = 2}, {.key = "b", .waves = 2}, {.key = "c"}};
    t.items = three;
    o.search.share = SHARE_GAIN;
    o.search.wave_problems = 1;
    s = (struct share_state){0};
    share_note(&three[0], 1, 1.5);
    share_note(&three[1], 2, 2);
    assert_int_equal(share_wave(&o, &t, &s, out), 1);
    assert_int_equal(out[0].task, 2);
    three[2].waves = 3;
    assert_int_equal(share_wave(&o, &t, &s, out), 1);
    assert_int_equal(out[0].task, 0);
    /* Time: what is left is enough for a few answers alone. */
    o = (struct optimize_options){.budget_s = 100, .search = {.wave_answers = 16, .wave_problems = 1}};
    s = (struct share_state){.sampled = 90, .elapsed_s = 90};
    assert_int_equal(share_wave(&o, &t, &s, out), 1);
    assert_int_equal(out[0].answers, 10);
    s.elapsed_s = 100;
    assert_int_equal(share_wave(&o, &t, &s, out), 0);
}

/* ---- budgets ------------------------------------------------------------------------------------------------------*/

static void budgets(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double seconds;
    } rows[] = {{"90", 90}, {"90s", 90}, {"30m", 1800}, {"2h", 7200}, {"1h30m", 5400}, {"0.5m", 30}};
    static const char *const bad[] = {"", "0", "m", "30x", "-5", "1h-", "ten", "1e999", "nan"};
    double seconds;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CHECK(budget_seconds(rows[i].text, &seconds, &e));
        assert_true(fabs(seconds - rows[i].seconds) < 1e-9);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (budget_seconds(bad[i], &seconds, &e) == ST_OK) fail_msg("\"%s\" was taken: %g", bad[i], seconds);
}

static void deadlines(void **state) {
    (void)state;
    struct time_limit *d;
    volatile bool cancel = false;
    CHECK(time_limit_start(&cancel, 0.1, &d, &e));
    const double from = clock_now_s();
    while (!*time_limit_flag(d) && clock_now_s() - from < 30) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_true(*time_limit_flag(d) && time_limit_passed(d) && clock_now_s() - from >= 0.09);
    time_limit_end(d);
    CHECK(time_limit_start(&cancel, 3600, &d, &e));
    assert_false(*time_limit_flag(d));
    cancel = true;
    const double then = clock_now_s();
    while (!*time_limit_flag(d) && clock_now_s() - then < 30) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_true(*time_limit_flag(d) && !time_limit_passed(d));
    time_limit_end(d);
    time_limit_end(NULL);
}

/* ---- on disk ------------------------------------------------------------------------------------------------------*/

static void lines(void **state) {
    (void)state;
    struct search_candidate c = {.id = 9, .wave = 2, .group = 1, .sample = 3, .arm = ARM_CROSS, .island = 1}, back;
    const double weights[] = {0.75, 0.25};
    struct verdict v = {.outcome = OUTCOME_CORRECT, .tests_passed = 5, .tests_total = 5, .max_error = 1e-6};
    c.n_parents = 2;
    c.parent[0] = 4;
    c.parent[1] = 7;
    c.same_as = -1;
    c.kernel = xstrdup("void kernel() { /* \xc3\xa9 \" */ }");
    c.plan = xstrdup("a, b");
    c.normal = digest_of("x", 1);
    c.format_ok = true;
    c.tokens = 120;
    c.spent = 10;
    c.at_s = 12.5;
    c.reward = 1.25;
    v.speedup = 2;
    v.speedup_low = 1.8;
    v.speedup_high = 2.2;
    candidate_add_verdict(&c, &v);
    v.speedup = 4;
    candidate_add_verdict(&c, &v);
    candidate_judged(&c, weights, 2);
    assert_true(fabs(candidate_speed(&c) - pow(2, 0.75) * pow(4, 0.25)) < 1e-9);
    CLEANUP_STR struct str line = STR_INIT, again = STR_INIT;
    CLEANUP_JSON json_t *row = NULL;
    candidate_put(&c, "level1/1_X", &line);
    CHECK(js_parse(line.p, line.len, "line", &row, &e));
    CHECK(candidate_get(row, "line", weights, 2, &back, &e));
    candidate_put(&back, "level1/1_X", &again);
    assert_string_equal(line.p, again.p);
    assert_true(back.correct && back.judged == 1 && back.estimate.n == 1);
    candidate_free(&back);
    static const char *const bad[][2] = {{"arm", "\"none\""},    {"parents", "[9]"}, {"same_as", "9"},
                                         {"parents", "[1,2,3]"}, {"id", "-1"},       {"verdicts", "[{}]"},
                                         {"tokens", "\"many\""}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_error_t je;
        json_t *copy = json_deep_copy(row);
        json_object_set_new(copy, bad[i][0], json_loads(bad[i][1], JSON_DECODE_ANY, &je));
        if (candidate_get(copy, "line", weights, 2, &back, &e) == ST_OK) fail_msg("%s was taken", bad[i][0]);
        assert_true(str_has_prefix(e.msg, "line: "));
        candidate_free(&back);
        json_decref(copy);
    }
    candidate_free(&c);
}

/* What a proof may take: what is given, else a tenth of the search's time, and enough for torch.compile where asked. */
static void bound_of_the_proof(void **state) {
    (void)state;
    struct optimize_options o = {.proof = {.compile = true}};
    assert_true(proof_seconds(&o) == 300);
    o.proof.compile = false;
    assert_true(proof_seconds(&o) == 120);
    o.budget_s = 7200;
    assert_true(proof_seconds(&o) == 720);
    o.proof.seconds = 7;
    assert_true(proof_seconds(&o) == 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws),        cmocka_unit_test(the_better_arm), cmocka_unit_test(plan_choices),
        cmocka_unit_test(judged_again), cmocka_unit_test(races),          cmocka_unit_test(elites_and_failures),
        cmocka_unit_test(pay_offs),     cmocka_unit_test(shares),         cmocka_unit_test(budgets),
        cmocka_unit_test(deadlines),    cmocka_unit_test(lines),          cmocka_unit_test(bound_of_the_proof)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
