/* Statistics of an evaluation against values worked out by hand, its file of samples, and its reports. */
#include "rl/run/summary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "io/json.h"
#include "rl/evaluate/report.h"

static struct err e;
static char dir[] = "/tmp/kernelrl_summary_XXXXXX";

static void ok(enum status st) {
    if (st != ST_OK) fail_msg("%s", e.msg);
}
static void refused(enum status st, const char *part) {
    assert_int_not_equal(st, ST_OK);
    if (!strstr(e.msg, part)) fail_msg("\"%s\" lacks \"%s\"", e.msg, part);
}
static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want)))) fail_msg("%.9g, expected %.9g", got, want);
}
static const char *path_of(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Three problems: A has 4 samples, B 4, C none with a verdict. */
static const struct problem problems[] = {
    {.key = "level1/1_A", .name = "1_A", .code = "a", .level = 1, .problem_id = 1},
    {.key = "level1/2_B", .name = "2_B", .code = "b", .level = 1, .problem_id = 2},
    {.key = "level2/1_C", .name = "1_C", .code = "c", .level = 2, .problem_id = 1}};
static const struct problem *const all[] = {&problems[0], &problems[1], &problems[2]};

static struct eval_sample sample(int problem, int number, int turn, enum outcome outcome, double speedup) {
    return (struct eval_sample){.problem = problem,
                                .sample = number,
                                .turn = turn,
                                .kernel = outcome == OUTCOME_NO_KERNEL ? NULL : "void kernel(void) {}",
                                .text = "text",
                                .tokens = 10,
                                .format_ok = true,
                                .present = outcome_class(outcome) != 'I',
                                .verdict = {.outcome = outcome, .speedup = speedup, .max_error = NAN}};
}

static void fill(struct eval_samples *s) {
    const struct eval_sample items[] = {
        sample(0, 0, 0, OUTCOME_CORRECT, 2),
        sample(0, 1, 0, OUTCOME_CORRECT, 0.5),
        sample(0, 2, 0, OUTCOME_COMPILE_ERROR, 0),
        sample(0, 3, 0, OUTCOME_NO_KERNEL, 0),
        sample(1, 0, 0, OUTCOME_WRONG_OUTPUT, 0),
        sample(1, 1, 0, OUTCOME_SANDBOX_VIOLATION, 0),
        sample(1, 2, 0, OUTCOME_COMPILE_ERROR, 0),
        sample(1, 2, 1, OUTCOME_CORRECT, 8), /* repaired in its second turn */
        sample(1, 2, 2, OUTCOME_CORRECT, 4),
        sample(1, 3, 0, OUTCOME_CRASH, 0),
        sample(2, 0, 0, OUTCOME_INFRASTRUCTURE, 0),
    };
    ok(eval_samples_open(path_of("s.jsonl"), "temperature: 1\nseed: 0\n", all, 3, s, &e));
    ok(eval_samples_add(s, items, (int)ARRAY_LEN(items), &e));
}

static void check_summary(const struct summary *m) {
    near(m->parsed.mean, (0.75 + 1.0) / 2); /* C does not count */
    near(m->compiled.mean, (0.5 + 1.0) / 2);
    near(m->correct.mean, (0.5 + 0.25) / 2);
    near(m->cheats.mean, (0 + 0.25) / 2);
    near(m->solved.mean, 1);
    near(m->fast[0].mean, (0.5 + 0.25) / 2);
    near(m->fast[1].mean, (0.25 + 0.25) / 2); /* 0.5 is not faster than 0.5 */
    near(m->fast[5].mean, (0 + 0.25) / 2);    /* nor 2 than 2 */
    near(m->best_fast[3].mean, 1);
    near(m->best_fast[5].mean, 0.5);
    near(m->geomean.mean, 2); /* 2, 0.5, 8 */
    near(m->best_geomean.mean, 4);
    near(m->best_mean.mean, 5);
    near(m->best_median.mean, 5);
    near(m->pass[0].mean, (0.5 + 0.25) / 2);
    near(m->pass[1].mean, (pass_at_k(4, 2, 2) + pass_at_k(4, 1, 2)) / 2);
    assert_true(isnan(m->pass[2].mean)); /* nobody has five samples */
    assert_true(m->correct.low <= m->correct.mean && m->correct.mean <= m->correct.high);
    assert_int_equal(m->missing, 1);
    assert_int_equal(m->samples, 9);
    assert_int_equal(m->items[1].n, 4);
    assert_int_equal(m->items[2].n, 0);
    near(m->items[1].best, 8);
}

static void statistics(void **state) {
    (void)state;
    near(pass_at_k(5, 2, 1), 0.4);
    near(pass_at_k(10, 3, 5), 1 - 21.0 / 252);
    near(pass_at_k(3, 0, 1), 0);
    near(pass_at_k(3, 1, 3), 1);
    struct eval_samples s;
    struct summary m, back;
    fill(&s);
    summarise(&s, &m);
    check_summary(&m);
    assert_int_equal(m.tokens, 110);
    assert_int_equal(m.items[0].best_sample, 0);
    assert_int_equal(m.items[1].best_sample, 2);

    /* There and back through the report. */
    const struct report_config c = {"runs/x", "org/m", "c", "builtin, test split", 0, 4, 3, 1, "a CPU"};
    struct arena a = ARENA_INIT;
    CLEANUP_STR struct str json = STR_INIT, md = STR_INIT;
    report_json(&c, &s, &m, &json);
    ok(fs_write_atomic(path_of("r.json"), json.p, json.len, &e));
    ok(report_load(path_of("r.json"), &a, &back, &e));
    back.tokens = m.tokens;
    check_summary(&back);
    assert_string_equal(back.items[1].key, "level1/2_B");
    /* What earlier programs look for. */
    CLEANUP_JSON json_t *j = NULL;
    ok(js_parse(json.p, json.len, "r", &j, &e));
    json_t *metrics = json_object_get(j, "metrics"), *first = json_array_get(json_object_get(j, "results"), 0);
    assert_int_equal(json_integer_value(json_object_get(metrics, "num_problems")), 3);
    assert_int_equal(json_integer_value(json_object_get(metrics, "num_correct")), 2);
    near(json_number_value(json_object_get(metrics, "mean_speedup")), 5);
    near(json_number_value(json_object_get(first, "best_speedup")), 2);
    assert_true(json_is_true(json_object_get(first, "best_correct")));
    assert_int_equal(json_array_size(json_object_get(first, "samples")), 4);
    report_markdown(&c, &m, "r.svg", &md);
    assert_non_null(strstr(md.p, "| correct | 37.5 % |"));
    assert_non_null(strstr(md.p, "| level1/2_B | 4 | 4 | 1 | 1 | 8.00x |"));
    assert_non_null(strstr(md.p, "| level2/1_C | 0 | 0 | 0 | 0 | - |"));
    ok(fs_write_atomic(path_of("r.json"), "{\"results\": [], \"metrics\": {}}", 30, &e));
    struct summary none;
    refused(report_load(path_of("r.json"), &a, &none, &e), "not a report");
    summary_free(&m);
    summary_free(&back);
    arena_free(&a);
    eval_samples_close(&s);
    ok(fs_remove(path_of("s.jsonl"), &e));
}

static struct summary made(int n, const int *correct, int of, double log_speed) {
    struct problem_summary *items = xcalloc((size_t)n, sizeof *items);
    struct summary m;
    static char keys[64][8];
    for (int i = 0; i < n; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        items[i] =
            (struct problem_summary){.key = keys[i], .n = of, .parsed = of, .compiled = of, .correct = correct[i]};
        for (int k = 0; k < FAST_P; k++) items[i].faster[k] = correct[i];
        items[i].timed = correct[i];
        items[i].log_speedup = correct[i] ? log_speed : 0;
    }
    summary_of(items, n, &m);
    return m;
}

/* Without timing nobody knows what share is fast: neither a report nor a comparison says 0 %. */
static void untimed(void **state) {
    (void)state;
    const int some[4] = {4, 2, 0, 3}, none[4] = {0};
    struct summary timed = made(4, some, 4, log(2)), not_timed = made(4, some, 4, log(2)), wrong = made(4, none, 4, 0);
    for (int i = 0; i < 4; i++) {
        not_timed.items[i].timed = 0;
        for (int k = 1; k < FAST_P; k++) not_timed.items[i].faster[k] = 0;
    }
    summary_of(not_timed.items, 4, &not_timed);
    near(not_timed.fast[0].mean, 9.0 / 16);
    assert_true(isnan(not_timed.fast[1].mean) && isnan(not_timed.best_fast[3].mean) && !isnan(timed.fast[3].mean));
    near(wrong.fast[3].mean, 0); /* nothing right is nothing fast */
    const struct report_config c = {"", "org/m", "c", "builtin, test split", 0, 4, 1, 1, "a CPU"};
    CLEANUP_STR struct str text = STR_INIT, md = STR_INIT, svg = STR_INIT, both = STR_INIT;
    report_text(&not_timed, &text);
    report_markdown(&c, &not_timed, NULL, &md);
    assert_null(strstr(text.p, "fast_1"));
    assert_null(strstr(md.p, "fast_1"));
    assert_non_null(strstr(md.p, "no correct answer was timed"));
    const char *names[2] = {"timed", "not"};
    const struct summary *sums[2] = {&timed, &not_timed};
    report_svg(names, sums, 2, &svg);
    assert_null(strstr(svg.p, "nan"));
    assert_non_null(strstr(svg.p, "no correct answer was timed"));
    struct comparison x;
    ok(summary_compare(&timed, &not_timed, &x, &e));
    assert_true(isnan(x.item[4].change.mean) && isnan(x.item[5].p) && !isnan(x.item[2].change.mean));
    report_comparison(&x, "a", "b", false, &both);
    assert_null(strstr(both.p, "fast_1"));
    summary_free(&timed);
    summary_free(&not_timed);
    summary_free(&wrong);
}

static void comparing(void **state) {
    (void)state;
    int before[20], after[20], mixed[20];
    for (int i = 0; i < 20; i++) {
        before[i] = i % 3;
        after[i] = i % 3 + 2;
        mixed[i] = i % 2 ? before[i] + 1 : before[i] ? before[i] - 1 : 0;
    }
    struct summary a = made(20, before, 4, log(1.0)), b = made(20, after, 4, log(3.0)),
                   same = made(20, before, 4, log(1.0)), m = made(20, mixed, 4, log(1.0)), few = made(5, after, 4, 0);
    struct comparison c;
    ok(summary_compare(&a, &b, &c, &e));
    assert_int_equal(c.n_common, 20);
    assert_string_equal(c.item[2].name, "correct");
    near(c.item[2].change.mean, 0.5);
    assert_true(c.item[2].p < 0.001 && c.item[2].change.low > 0.4);
    assert_string_equal(c.item[7].name, "speed-up");
    near(c.item[7].change.mean, 3);
    assert_int_equal(c.item[7].n, 13); /* solved by both */
    ok(summary_compare(&a, &same, &c, &e));
    near(c.item[2].change.mean, 0);
    near(c.item[2].p, 1);
    ok(summary_compare(&a, &m, &c, &e));
    assert_true(c.item[2].p > 0.1 && c.item[2].change.low < 0 && c.item[2].change.high > 0);
    ok(summary_compare(&a, &few, &c, &e));
    assert_int_equal(c.n_common, 5);
    assert_int_equal(c.only_a, 15);
    few.n_problems = 0;
    refused(summary_compare(&a, &few, &c, &e), "no problem in common");
    CLEANUP_STR struct str text = STR_INIT;
    ok(summary_compare(&a, &b, &c, &e));
    report_comparison(&c, "before", "after", true, &text);
    assert_non_null(strstr(text.p, "| correct | 23.8 % | 73.8 % | +50.0 |"));
    assert_non_null(strstr(text.p, "| speed-up where both solve | 1.00x | 3.00x | x 3.00 |"));
    summary_free(&a);
    summary_free(&b);
    summary_free(&same);
    summary_free(&m);
    summary_free(&few);
}

static void resuming(void **state) {
    (void)state;
    static const char settings[] = "temperature: 1\nseed: 0\n";
    struct eval_samples s;
    fill(&s);
    eval_samples_close(&s);
    ok(eval_samples_open(path_of("s.jsonl"), settings, all, 3, &s, &e));
    assert_int_equal(s.n, 11);
    assert_int_equal(eval_samples_of(&s, 1), 4);
    assert_int_equal(s.items[7].turn, 1);
    near(s.items[7].verdict.speedup, 8);
    assert_null(s.items[3].kernel);
    eval_samples_close(&s);
    ok(eval_samples_open(path_of("s.jsonl"), settings, all + 1, 1, &s, &e)); /* fewer problems: the others stay */
    assert_int_equal(s.n, 6);
    assert_int_equal(s.items[0].problem, 0);
    eval_samples_close(&s);

    CLEANUP_FREE char *text = NULL;
    size_t n;
    ok(fs_read(path_of("s.jsonl"), 1 << 20, &text, &n, &e));
    ok(fs_write_atomic(path_of("s.jsonl"), text, n - 9, &e)); /* killed while it wrote the last one */
    ok(eval_samples_open(path_of("s.jsonl"), settings, all, 3, &s, &e));
    assert_int_equal(s.n, 10);
    const struct eval_sample more = sample(2, 0, 0, OUTCOME_CORRECT, 1);
    ok(eval_samples_add(&s, &more, 1, &e));
    eval_samples_close(&s);
    ok(eval_samples_open(path_of("s.jsonl"), settings, all, 3, &s, &e));
    assert_int_equal(s.n, 11);
    eval_samples_close(&s);

    refused(eval_samples_open(path_of("s.jsonl"), "temperature: 1\nseed: 1\n", all, 3, &s, &e),
            "other settings (\"seed: 0\", now \"seed: 1\")");
    struct problem changed = problems[1];
    changed.code = "b, but another one";
    const struct problem *const other[] = {&problems[0], &changed};
    refused(eval_samples_open(path_of("s.jsonl"), settings, other, 2, &s, &e), "level1/2_B has changed");
    ok(eval_samples_open(path_of("s.jsonl"), settings, all, 3, &s, &e)); /* and nothing was lost */
    assert_int_equal(s.n, 11);
    eval_samples_close(&s);
    refused(eval_samples_open("/nonexistent/s.jsonl", settings, all, 3, &s, &e), "/nonexistent/s.jsonl");
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(statistics), cmocka_unit_test(comparing),
                                       cmocka_unit_test(untimed), cmocka_unit_test(resuming)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
