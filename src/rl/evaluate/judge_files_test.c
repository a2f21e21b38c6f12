/* Which verdicts of a folder may be kept when it is judged again. */
#include "rl/evaluate/judge_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *settings_of(struct verify_options o) {
    static char text[2][VERIFY_RUN_SETTINGS];
    static int turn;
    char *out = text[turn ^= 1];
    verify_run_settings(&o, out, VERIFY_RUN_SETTINGS);
    return out;
}

static void each_option_counts(void **state) {
    (void)state;
    static const struct verify_options changed[] = {
        {.backend = BACKEND_triton},
        {.scoring = SCORING_COMPAT},
        {.device = "cuda:0"},
        {.precision = "bf16"},
        {.compat_cpu_inputs = true},
        {.lint_strict = true},
        {.staged = STAGED_ON},
        {.single_input = true},
        {.allow_library = true},
        {.timing_method = TIMING_do_bench},
        {.timed_calls = 7},
        {.warm_calls = 3},
        {.trim = 0.25},
        {.timing_budget_s = 3},
        {.interval = 0.1},
        {.threads = 2},
        {.trials = 9},
        {.compile_timeout_s = 60},
        {.run_timeout_s = 0.5},
        {.run_timeout_s = 60},
        {.memory_bytes = 1 << 20},
        {.measure = true},
    };
    const size_t n = sizeof changed / sizeof changed[0];
    assert_string_equal(settings_of((struct verify_options){0}), settings_of((struct verify_options){0}));
    for (size_t i = 0; i < n; i++) {
        assert_string_not_equal(settings_of(changed[i]), settings_of((struct verify_options){0}));
        for (size_t k = 0; k < i; k++) assert_string_not_equal(settings_of(changed[i]), settings_of(changed[k]));
    }
    /* What does not: where objects are kept, who else works, how it is told. */
    assert_string_equal(settings_of((struct verify_options){.cache_dir = "/tmp", .compile_jobs = 2, .seed = 5}),
                        settings_of((struct verify_options){0}));
    char little[20];
    verify_run_settings(&changed[0], little, sizeof little); /* cut, not overrun */
    assert_true(strlen(little) == sizeof little - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_option_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
