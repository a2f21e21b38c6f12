/* The verdict journal: what is written is what is read, by place and answer; torn lines; other settings; verdicts. */
#include "rl/rollout/journal.h"

#include <math.h>

#include "rl/test_util.h"

enum { SETTINGS = 0x1234 };
static const struct problem relu = {.key = "level1/1_\"ReLU\"", .code = "class Model: relu"};
static const struct problem gelu = {.key = "level1/2_GELU", .code = "class Model: gelu"};

static struct journal *open_journal(const char *name, uint64_t settings, int64_t first_step) {
    const struct verify_identity identity = {.now = settings, .before = SETTINGS + 7};
    struct journal *j = NULL;
    CHECK(journal_open(in_tmp(name), identity, first_step, NULL, &j, &err));
    return j;
}

/* A verdict with every field of its own, none of which is short in decimal. */
static struct verdict timed_verdict(double x) {
    struct verdict v = {.outcome = OUTCOME_CORRECT,
                        .tests_passed = 4,
                        .tests_total = 5,
                        .speedup = 1.1 * x,
                        .speedup_low = x / 3,
                        .speedup_high = x * 7 / 3,
                        .eager_ms = x / 7,
                        .kernel_ms = x / 11,
                        .prepare_ms = x / 13,
                        .max_error = x * 1e-7 / 3,
                        .compile_s = x / 17,
                        .run_s = x / 19,
                        .time_s = x / 23,
                        .cached = true};
    snprintf(v.message, sizeof v.message, "tab\t \"quoted\" \\ \xc3\xa9 line\nend");
    return v;
}

static void assert_equal_verdict(const struct verdict *a, const struct verdict *b) {
    CLEANUP_STR struct str x = STR_INIT, y = STR_INIT;
    verdict_to_json(a, &x);
    verdict_to_json(b, &y);
    assert_string_equal(x.p, y.p);
    assert_true(a->speedup == b->speedup && a->eager_ms == b->eager_ms && a->kernel_ms == b->kernel_ms);
    assert_true(a->max_error == b->max_error || (isnan(a->max_error) && isnan(b->max_error)));
}

static enum status round_trip(const struct verdict *v, struct verdict *out) {
    CLEANUP_STR struct str s = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    verdict_to_json(v, &s);
    CHECK(js_parse(s.p, s.len, "line", &o, &err));
    return verdict_from_json(o, "line", out, &err);
}

static void verdict_round_trip(void **state) {
    (void)state;
    struct verdict v = timed_verdict(1.2345678901234567), back, again;
    CHECK(round_trip(&v, &back));
    assert_equal_verdict(&v, &back);
    for (int o = 0; o <= OUTCOME_INFRASTRUCTURE; o++) {
        struct verdict x = {.outcome = (enum outcome)o, .max_error = (double)NAN};
        CHECK(round_trip(&x, &back));
        assert_int_equal(back.outcome, o);
        assert_equal_verdict(&x, &back);
    }
    /* Bytes that are no text: three for one, cut at a character's border; after that nothing changes any more. */
    memset(v.message, 0xff, sizeof v.message - 1);
    v.message[sizeof v.message - 1] = 0;
    v.max_error = (double)INFINITY;
    CHECK(round_trip(&v, &back));
    assert_int_equal(strlen(back.message), (sizeof v.message - 1) / 3 * 3);
    CHECK(round_trip(&back, &again));
    assert_equal_verdict(&back, &again);

    static const char *const bad[] = {"{}", "{\"outcome\":\"perfect\"}", "{\"outcome\":\"crash\",\"tests_passed\":-1}"};
    static const char *const says[] = {"outcome", "perfect", "tests_passed"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CLEANUP_JSON json_t *o = NULL;
        CHECK(js_parse(bad[i], strlen(bad[i]), "v", &o, &err));
        CHECK_FAILS(verdict_from_json(o, "file:7", &back, &err), ST_PARSE, says[i]);
        assert_non_null(strstr(err.msg, "file:7"));
    }
}

static struct journal_place here; /* the step of what is added and looked for */
static void at_step(int64_t step, bool eval) { here = (struct journal_place){.step = step, .eval = eval}; }

static struct journal_place place_of(int group, int sample) {
    struct journal_place p = here;
    p.group = group;
    p.sample = sample;
    return p;
}

static bool find(struct journal *j, int group, int sample, const struct problem *p, const char *source,
                 struct verdict *out) {
    const struct verify_item item = {.problem = p, .source = source};
    const struct journal_place at = place_of(group, sample);
    bool found;
    CHECK(journal_find(j, &at, &item, out, &found, &err));
    return found;
}

static void add(struct journal *j, int group, const struct problem *p, const char *source, double speedup) {
    struct verify_item item = {.problem = p, .source = source, .verdict = timed_verdict(speedup)};
    const struct journal_place at = place_of(group, 0);
    const bool fresh = true;
    CHECK(journal_add(j, &item, &at, &fresh, 1, &err));
}

static void finds_by_place_and_answer(void **state) {
    (void)state;
    struct verdict v;
    struct journal *j = open_journal("a.jsonl", SETTINGS, 0);
    at_step(7, false);
    struct verify_item items[6];
    struct journal_place at[6];
    bool fresh[6];
    for (int i = 0; i < 6; i++) { /* two groups of three from number 4 on */
        items[i] = (struct verify_item){.problem = i < 3 ? &relu : &gelu, .source = i % 3 ? "x" : NULL};
        items[i].verdict = timed_verdict(i + 1);
        fresh[i] = i != 4;
        at[i] = place_of(4 + i / 3, i % 3);
    }
    CHECK(journal_add(j, items, at, fresh, 6, &err));
    assert_false(find(j, 4, 0, &relu, NULL, &v)); /* written, but this process has given it itself */
    at_step(7, true);
    add(j, 4, &relu, "x", 50);
    journal_close(j);

    j = open_journal("a.jsonl", SETTINGS, 0);
    for (int i = 0; i < 6; i++) {
        at_step(7, false);
        const struct problem *p = i < 3 ? &relu : &gelu;
        const char *source = i % 3 ? "x" : NULL;
        assert_int_equal(find(j, 4 + i / 3, i % 3, p, source, &v), fresh[i]);
        if (fresh[i]) assert_equal_verdict(&v, &items[i].verdict);
        assert_false(find(j, 4 + i / 3, i % 3, i < 3 ? &gelu : &relu, source, &v)); /* another problem */
        assert_false(find(j, 4 + i / 3, i % 3, p, "other", &v));                    /* another answer */
        assert_false(find(j, 5 + i / 3 * 7, 3, p, source, &v));                     /* another place */
        at_step(8, false);
        assert_false(find(j, 4 + i / 3, i % 3, p, source, &v)); /* another step */
    }
    at_step(7, true); /* an evaluation's are its own */
    assert_true(find(j, 4, 0, &relu, "x", &v));
    assert_true(v.speedup == 1.1 * 50);
    assert_false(find(j, 5, 1, &gelu, "x", &v));
    journal_close(j);
}

static void steps_settings_and_later_lines(void **state) {
    (void)state;
    struct verdict v;
    for (int process = 0; process < 3; process++) { /* the third judges again what the second judged by other rules */
        struct journal *j = open_journal("b.jsonl", process == 1 ? SETTINGS + 1 : SETTINGS, 100);
        for (int64_t step = 9; step >= 0; step--) { /* the order does not matter */
            at_step(step, false);
            add(j, 0, &relu, "x", (double)(100 * process + step + 1));
        }
        journal_close(j);
    }
    struct journal *j = open_journal("b.jsonl", SETTINGS, 4);
    for (int64_t step = 0; step < 10; step++) {
        at_step(step, false);
        assert_int_equal(find(j, 0, 0, &relu, "x", &v), step >= 4); /* earlier ones will not be asked for */
        if (step >= 4) assert_true(v.speedup == 1.1 * (double)(200 + step + 1));
    }
    journal_close(j);
    j = open_journal("b.jsonl", SETTINGS + 1, 4);
    at_step(5, false);
    assert_true(find(j, 0, 0, &relu, "x", &v) && v.speedup == 1.1 * 106);
    journal_close(j);
    /* Verdicts under the identity of an earlier version count; the new ones are written under this one's. */
    j = open_journal("o.jsonl", SETTINGS + 7, 0);
    add(j, 0, &relu, "x", 3);
    journal_close(j);
    j = open_journal("o.jsonl", SETTINGS, 0);
    assert_true(find(j, 0, 0, &relu, "x", &v) && v.speedup == 1.1 * 3);
    journal_close(j);
}

/* Turns of one sample are places of their own; a first turn's line says nothing of turns. */
static void turns(void **state) {
    (void)state;
    struct journal *j = open_journal("t.jsonl", SETTINGS, 0);
    at_step(2, false);
    for (here.turn = 0; here.turn < 3; here.turn++) {
        struct verify_item item = {.problem = &relu, .source = "x", .verdict = timed_verdict(here.turn + 1)};
        const bool fresh = true;
        CHECK(journal_add(j, &item, &here, &fresh, 1, &err));
    }
    journal_close(j);
    CLEANUP_FREE char *text = read_file(in_tmp("t.jsonl"));
    assert_true(str_has_prefix(text, "{\"step\":2,\"eval\":false,\"group\":0,\"sample\":0,\"problem\""));
    assert_non_null(strstr(text, "\"sample\":0,\"turn\":2,"));
    j = open_journal("t.jsonl", SETTINGS, 0);
    struct verdict v;
    for (here.turn = 0; here.turn < 3; here.turn++)
        assert_true(find(j, 0, 0, &relu, "x", &v) && v.speedup == 1.1 * (here.turn + 1));
    assert_false(find(j, 0, 0, &relu, "x", &v));
    journal_close(j);
}

static enum status unlucky(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e) {
    (void)cancel;
    (void)e;
    int *calls = ctx;
    for (size_t i = 0; i < n; i++)
        items[i].verdict = (struct verdict){.outcome = i == 0 && *calls < 2 ? OUTCOME_INFRASTRUCTURE : OUTCOME_CORRECT};
    ++*calls;
    return ST_OK;
}

/* A verdict that is missing is asked for again; one that stays missing is never written. */
static void missing_is_asked_for_again(void **state) {
    (void)state;
    for (int calls = -1; calls < 2; calls += 2) { /* the first time three attempts are too few */
        int made = calls;
        struct journal *j = open_journal("m.jsonl", SETTINGS, 0);
        struct verify_item items[2] = {{.problem = &relu, .source = "a"}, {.problem = &relu, .source = "b"}};
        const struct journal_place at[2] = {{.step = 1}, {.step = 1, .sample = 1}};
        const struct judge judge = {.batch = unlucky, .ctx = &made};
        CHECK(journal_judge(j, &judge, items, at, 2, NULL, &err));
        assert_int_equal(made, calls < 0 ? 2 : 3);
        assert_int_equal(items[0].verdict.outcome, calls < 0 ? OUTCOME_INFRASTRUCTURE : OUTCOME_CORRECT);
        assert_int_equal(journal_replayed(j), calls < 0 ? 0 : 1);
        journal_close(j);
    }
}

/* Who has verdicts one by one, and is interrupted behind the second. */
static enum status interrupted(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel,
                               struct err *e) {
    (void)cancel;
    assert_true(n >= 2);
    for (int i = 0; i < 2; i++) {
        items[i].verdict = timed_verdict(i + 1);
        items[i].judged(items[i].judged_ctx, &items[i]);
    }
    return *(bool *)ctx ? FAIL(e, ST_CANCELLED, "interrupted") : ST_OK;
}

/* A verdict is on disk when it is there, not when the batch is over; once. */
static void written_one_by_one(void **state) {
    (void)state;
    for (int cut = 1; cut >= 0; cut--) {
        bool is_cut = cut;
        struct verdict v;
        struct verify_item items[3] = {
            {.problem = &relu, .source = "a"}, {.problem = &relu, .source = "b"}, {.problem = &relu, .source = "c"}};
        const struct journal_place at[3] = {{.step = 1}, {.step = 1, .sample = 1}, {.step = 1, .sample = 2}};
        const struct judge judge = {.batch = interrupted, .ctx = &is_cut};
        struct journal *j = open_journal(cut ? "cut.jsonl" : "whole.jsonl", SETTINGS, 0);
        assert_int_equal(journal_judge(j, &judge, items, at, cut ? 3 : 2, NULL, &err), cut ? ST_CANCELLED : ST_OK);
        journal_close(j);
        CLEANUP_FREE char *text = read_file(in_tmp(cut ? "cut.jsonl" : "whole.jsonl"));
        int lines = 0;
        for (const char *p = text; *p; p++) lines += *p == '\n';
        assert_int_equal(lines, 2);
        j = open_journal(cut ? "cut.jsonl" : "whole.jsonl", SETTINGS, 0);
        at_step(1, false);
        assert_true(find(j, 0, 0, &relu, "a", &v));
        assert_true(find(j, 0, 1, &relu, "b", &v));
        assert_true(v.speedup == timed_verdict(2).speedup);
        assert_false(find(j, 0, 2, &relu, "c", &v));
        journal_close(j);
    }
}

/* A process killed in the middle of writing: every cut leaves the whole lines, and the next writer goes on. */
static void torn_line(void **state) {
    (void)state;
    struct verdict v;
    struct journal *j = open_journal("c.jsonl", SETTINGS, 0);
    at_step(1, false);
    add(j, 0, &relu, "x", 1);
    add(j, 1, &relu, "y", 2);
    journal_close(j);
    CLEANUP_FREE char *text = read_file(in_tmp("c.jsonl"));
    const size_t first = (size_t)(strchr(text, '\n') + 1 - text), all = strlen(text);
    for (size_t cut = first; cut < all; cut += 13) {
        CHECK(fs_write_atomic(in_tmp("c.jsonl"), text, cut, &err));
        j = open_journal("c.jsonl", SETTINGS, 0);
        at_step(1, false);
        assert_true(find(j, 0, 0, &relu, "x", &v));
        assert_false(find(j, 1, 0, &relu, "y", &v));
        add(j, 1, &relu, "y", 2);
        journal_close(j);
        CLEANUP_FREE char *again = read_file(in_tmp("c.jsonl"));
        assert_string_equal(again, text);
    }
    write_file(in_tmp("c.jsonl"), "{\"step\":1}\n");
    CHECK_FAILS(journal_open(in_tmp("c.jsonl"), (struct verify_identity){.now = SETTINGS}, 0, NULL, &j, &err), ST_PARSE,
                "c.jsonl:1: eval");
    assert_int_not_equal(
        journal_open(in_tmp("no/such/dir.jsonl"), (struct verify_identity){.now = SETTINGS}, 0, NULL, &j, &err), ST_OK);
}

/* What is used is what a replay would read, whatever the verdict holds. */
static void used_verdict_is_the_written_one(void **state) {
    (void)state;
    struct journal *j = open_journal("d.jsonl", SETTINGS, 0);
    struct verify_item item = {.problem = &relu, .source = "x", .verdict = timed_verdict(3)};
    const bool fresh = true;
    memset(item.verdict.message, 0xfe, sizeof item.verdict.message - 1);
    item.verdict.message[sizeof item.verdict.message - 1] = 0;
    at_step(0, false);
    CHECK(journal_add(j, &item, &here, &fresh, 1, &err));
    journal_close(j);
    struct verdict v;
    j = open_journal("d.jsonl", SETTINGS, 0);
    assert_true(find(j, 0, 0, &relu, "x", &v));
    assert_string_equal(v.message, item.verdict.message);
    assert_equal_verdict(&v, &item.verdict);
    journal_close(j);
}

/* Lines that were written when keys were XXH3-128. They are found at their place; as verdicts of equal answers
 * elsewhere they are not believed (verify_test.c). */
static void lines_of_older_versions(void **state) {
    (void)state;
    /* of "class Model: relu", a zero byte and "x" */
    static const char *const keys[] = {"8b242ef848e76247a6d076c2b86a6ddb", "8b242ef848e76247a6d076c2b86a6ddc",
                                       "8b242ef848e76247a6d076c2b86a6dd", "8b242ef848e76247a6d076c2b86a6ddZ"};
    struct verdict v;
    for (int i = 0; i < 4; i++) {
        char path[700];
        CLEANUP_STR struct str line = STR_INIT;
        const struct verdict was = timed_verdict(i + 2);
        snprintf(path, sizeof path, "%s/old%d.jsonl", tmp_dir, i);
        str_addf(&line, "{\"step\":3,\"eval\":false,\"group\":0,\"sample\":0,\"problem\":\"p\",\"answer\":\"%s\",",
                 keys[i]);
        str_addf(&line, "\"settings\":\"%016llx\",\"verdict\":", (unsigned long long)SETTINGS);
        verdict_to_json(&was, &line);
        str_adds(&line, "}\n");
        CHECK(fs_write_atomic(path, line.p, line.len, &err));
        struct journal *j;
        if (i > 1) {
            CHECK_FAILS(journal_open(path, (struct verify_identity){.now = SETTINGS}, 0, NULL, &j, &err), ST_PARSE,
                        "answer");
            continue;
        }
        CHECK(journal_open(path, (struct verify_identity){.now = SETTINGS}, 0, NULL, &j, &err));
        at_step(3, false);
        assert_int_equal(find(j, 0, 0, &relu, "x", &v), i == 0);
        if (i == 0) assert_equal_verdict(&v, &was);
        assert_false(find(j, 0, 0, &relu, "y", &v));
        add(j, 1, &relu, "x", 9); /* goes on with keys of today */
        journal_close(j);
        CHECK(journal_open(path, (struct verify_identity){.now = SETTINGS}, 0, NULL, &j, &err));
        assert_int_equal(find(j, 0, 0, &relu, "x", &v), i == 0);
        assert_true(find(j, 1, 0, &relu, "x", &v) && v.speedup == 1.1 * 9);
        journal_close(j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_older_versions),
        cmocka_unit_test(verdict_round_trip),
        cmocka_unit_test(finds_by_place_and_answer),
        cmocka_unit_test(steps_settings_and_later_lines),
        cmocka_unit_test(turns),
        cmocka_unit_test(missing_is_asked_for_again),
        cmocka_unit_test(written_one_by_one),
        cmocka_unit_test(torn_line),
        cmocka_unit_test(used_verdict_is_the_written_one),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
