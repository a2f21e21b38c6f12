/* Answers without a verdict: what is counted of them, which groups are dropped for them, and what a checkpoint keeps.
 */
#include "rl/run/missing_verdicts.h"

#include <math.h>

#include "rl/run/watch_runs.h"
#include "rl/test_util.h"

enum { TASKS = 3, SAMPLES = 8 };
static struct rollout made; /* the last step's */
static struct problem problem[TASKS] = {{.key = "a/1"}, {.key = "b/2"}, {.key = "c/3"}};

/* A step of a group for each problem, of which so many answers have no verdict. *dropped[k]: whether group k was. */
static void step(struct missing *m, const int without[TASKS], bool dropped[TASKS], struct metrics *l) {
    static struct episode ep[TASKS][SAMPLES];
    static struct sample_group g[TASKS];
    for (int k = 0; k < TASKS; k++) {
        g[k] = (struct sample_group){.problem = &problem[k], .ep = ep[k], .n = SAMPLES, .task = k};
        for (int j = 0; j < SAMPLES; j++) ep[k][j].present = ep[k][j].has_return = j >= without[k];
    }
    struct rollout r = {.group = g, .n = TASKS, .n_tasks = TASKS};
    made = r;
    missing_count(m, &r);
    for (int k = 0; k < TASKS; k++) {
        dropped[k] = !ep[k][SAMPLES - 1].has_return && without[k] < SAMPLES;
        for (int j = 0; j < SAMPLES; j++) /* all of a group or none */
            assert_int_equal(ep[k][j].has_return, !dropped[k] && ep[k][j].present);
    }
    if (l) missing_metrics(m, &r, l);
}

static double value_of(const struct metrics *l, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->m[i].name, name) == 0) return l->m[i].value;
    return NAN;
}

/* Who loses a verdict now and then keeps its groups; who does so again and again loses them, and from then on only
 * those in which a verdict is missing. */
static void drops_what_repeats(void **state) {
    (void)state;
    struct missing m = {0};
    bool dropped[TASKS];
    for (int i = 0; i < 100; i++) {
        struct metrics l = {0};
        const int without[TASKS] = {i % 2 == 0 ? 1 : 0, i % 40 == 39 ? 1 : 0, 0};
        step(&m, without, dropped, &l);
        assert_int_equal(dropped[0], i % 2 == 0 && i >= 4); /* the third group of the kind */
        assert_false(dropped[1] || dropped[2]);
        assert_true(value_of(&l, "missing/groups_dropped") == dropped[0]);
        assert_true(value_of(&l, "missing/share") == (without[0] + without[1]) / (double)(TASKS * SAMPLES));
        assert_true(isnan(value_of(&l, "missing/problem/c/3")));
        if (i == 99) assert_true(value_of(&l, "missing/problem/a/1") == 50.0 / 800);
        metrics_free(&l);
    }
    missing_log(&m);
    missing_free(&m);
}

/* A machine that gives no verdict at all takes nothing from groups that have theirs. */
static void failure_of_the_machine(void **state) {
    (void)state;
    struct missing m = {0};
    bool dropped[TASKS];
    for (int i = 0; i < 20; i++) step(&m, (const int[TASKS]){SAMPLES, SAMPLES, SAMPLES}, dropped, NULL);
    for (int i = 0; i < 2; i++) {
        step(&m, (const int[TASKS]){3, 2, 1}, dropped, NULL);
        assert_false(dropped[0] || dropped[1] || dropped[2]);
    }
    for (int i = 0; i < 20; i++) {
        step(&m, (const int[TASKS]){0}, dropped, NULL);
        assert_false(dropped[0] || dropped[1] || dropped[2]);
    }
    missing_free(&m);
}

/* From a checkpoint on the same groups are dropped as without one. */
static void goes_on_from_a_checkpoint(void **state) {
    (void)state;
    struct missing whole = {0}, parts = {0};
    bool a[TASKS], b[TASKS];
    int dropped = 0;
    CHECK(missing_load(&parts, tmp_dir, &err)); /* there is none */
    CHECK(missing_save(&parts, tmp_dir, &err));
    assert_false(fs_is_file(in_tmp("missing.json")));
    for (int i = 0; i < 40; i++) {
        const int without[TASKS] = {i % 3 == 0, i % 7 == 0 ? 2 : 0, i % 11 == 0 ? 7 : 0};
        step(&whole, without, a, NULL);
        step(&parts, without, b, NULL);
        if (i % 5 == 0) { /* a step that failed is made again */
            missing_count_back(&parts, &made);
            step(&parts, without, b, NULL);
        }
        assert_memory_equal(a, b, sizeof a);
        dropped += a[2];
        CHECK(missing_save(&parts, tmp_dir, &err));
        missing_free(&parts);
        CHECK(missing_load(&parts, tmp_dir, &err));
    }
    assert_true(dropped > 0 && whole.n == 3);
    missing_free(&whole);
    missing_free(&parts);
    write_file(in_tmp("missing.json"), "{\"a/1\": {\"answers\": 1, \"missing\": 2, \"groups\": 1}}");
    CHECK_FAILS(missing_load(&parts, tmp_dir, &err), ST_PARSE, "a/1");
    missing_free(&parts);
}

/* Who looks at the run from outside finds the problems, the one with the largest share first. */
static void is_told_by_problem(void **state) {
    (void)state;
    struct run_last l;
    write_file(in_tmp("metrics.jsonl"), "{\"step\":0,\"missing/share\":0.5,\"missing/problem/a/1\":0.9}\n"
                                        "{\"step\":1,\"missing/problem/b/2\":0.25,\"reward/mean\":1}\n"
                                        "{\"step\":2,\"missing/problem/a/1\":0.125,\"missing/problem/c/3\":null}\n");
    CHECK(run_last_read(tmp_dir, "missing/problem/", &l, &err));
    assert_int_equal(l.n, 2);
    assert_string_equal(l.item[0].name, "b/2");
    assert_string_equal(l.item[1].name, "a/1");
    assert_true(l.item[0].value == 0.25 && l.item[1].value == 0.125);
    run_last_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drops_what_repeats),
        cmocka_unit_test(failure_of_the_machine),
        cmocka_unit_test(goes_on_from_a_checkpoint),
        cmocka_unit_test(is_told_by_problem),
    };
    return cmocka_run_group_tests_name("missing", tests, make_tmp_dir, remove_tmp_dir);
}
