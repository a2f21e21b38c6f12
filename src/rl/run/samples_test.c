/* The samples of an evaluation: files of versions that named problems by XXH3-128 are gone on with. */
#include "rl/run/samples.h"

#include "rl/test_util.h"

static const struct problem relu = {.key = "level1/1_ReLU", .code = "class Model: relu"};
static const char settings[] = "seed 1\n";

static enum status open_samples(struct eval_samples *s) {
    const struct problem *const problems[] = {&relu};
    return eval_samples_open(in_tmp("samples.jsonl"), settings, problems, 1, s, &err);
}

static void goes_on_with_either_name(void **state) {
    (void)state;
    struct eval_samples s;
    struct eval_sample x = {.text = "t", .kernel = "k", .verdict = {.outcome = OUTCOME_CRASH}};
    CHECK(open_samples(&s));
    CHECK(eval_samples_add(&s, &x, 1, &err));
    eval_samples_close(&s);
    CLEANUP_FREE char *text = read_file(in_tmp("samples.jsonl"));
    char *code = strstr(text, digest_of(relu.code, strlen(relu.code)).hex);
    assert_non_null(code);
    /* XXH3-128 of the problem's code, as an older version would have written it; then that of another text. */
    static const char *const old[] = {"cf65a371d7573a9d1a2453cbaee60670", "cf65a371d7573a9d1a2453cbaee60671"};
    for (int i = 0; i < 2; i++) {
        CLEANUP_STR struct str file = STR_INIT;
        str_add(&file, text, (size_t)(code - text));
        str_adds(&file, old[i]);
        str_adds(&file, code + 64);
        write_file(in_tmp("samples.jsonl"), str_c(&file));
        if (i == 1) {
            CHECK_FAILS(open_samples(&s), ST_INVALID, "has changed");
            break;
        }
        CHECK(open_samples(&s));
        assert_int_equal(s.n, 1);
        x.sample = 1;
        CHECK(eval_samples_add(&s, &x, 1, &err));
        eval_samples_close(&s);
        CHECK(open_samples(&s));
        assert_int_equal(eval_samples_of(&s, 0), 2);
        eval_samples_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(goes_on_with_either_name)};
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
