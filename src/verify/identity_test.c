/* Which options count as what decided a verdict; what earlier versions wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "verify/verify.h"

#define SOME_BACKEND BACKEND_triton
#define SOME_SCORING SCORING_COMPAT
#define SOME_STAGING STAGED_ON
#define SOME_TIMING TIMING_do_bench
#define SOME_TEXT "x"
#define SOME_BOOL true
#define SOME_INT 7
#define SOME_I64 7
#define SOME_U64 7
#define SOME_F64 0.1

static const struct {
    struct verify_options o;
    bool decides;
    const char *name;
} changed[] = {
#define X(type, field, decides) {{.field = SOME_##type}, decides, #field},
    VERIFY_OPTION_LIST(X)
#undef X
};

static void each_option_counts(void **state) {
    (void)state;
    const struct verify_options none = {0};
    struct str all[ARRAY_LEN(changed)], usual = STR_INIT;
    verify_identity(&none, &usual);
    for (size_t i = 0; i < ARRAY_LEN(changed); i++) {
        all[i] = STR_INIT;
        verify_identity(&changed[i].o, &all[i]);
        const bool differs = strcmp(str_c(&all[i]), str_c(&usual)) != 0;
        if (differs != changed[i].decides) fail_msg("%s", changed[i].name);
        assert_int_equal(verify_identity_hash(&changed[i].o).now != verify_identity_hash(&none).now, differs);
        for (size_t k = 0; k < i; k++)
            if (changed[i].decides && changed[k].decides) assert_string_not_equal(str_c(&all[i]), str_c(&all[k]));
    }
    for (size_t i = 0; i < ARRAY_LEN(changed); i++) str_free(&all[i]);
    str_free(&usual);
}

/* Golden: verdicts that version 0.1 has written are read on. */
static void of_version_01(void **state) {
    (void)state;
    CLEANUP_STR struct str text = STR_INIT;
    const struct verify_options o = {.backend = BACKEND_c,
                                     .precision = "fp32",
                                     .trials = 5,
                                     .timed_calls = 100,
                                     .threads = 2,
                                     .run_timeout_s = 10,
                                     .memory_bytes = 1 << 20,
                                     .measure = true};
    verify_identity_of_files_01(&o, &text);
    assert_string_equal(str_c(&text),
                        "c fp32 hardened default trials=5 timed=100 inputs=device library=0 measure=1 "
                        "timing=interleaved warmup=0 trim=0 interval=0 staged=0 single=0 timeout=10 memory=1.04858e+06 "
                        "threads=2");
    assert_true(verify_identity_hash(&o).before == UINT64_C(0x82e8ce2e9fd563d4));
}

/* Golden, with a value of its own for each option that decides: verdicts of this version and of 0.1 are found again. A
 * change of the first text means that no verdict that this version has written is read on. */
static void of_every_option(void **state) {
    (void)state;
    CLEANUP_STR struct str now = STR_INIT, before = STR_INIT;
    const struct verify_options o = {.backend = BACKEND_triton,
                                     .scoring = SCORING_COMPAT,
                                     .device = "cuda:1",
                                     .precision = "bf16",
                                     .compat_cpu_inputs = true,
                                     .lint_strict = true,
                                     .staged = STAGED_ON,
                                     .single_input = true,
                                     .allow_library = true,
                                     .timing_method = TIMING_do_bench,
                                     .timed_calls = 50,
                                     .warm_calls = 4,
                                     .trim = 0.1,
                                     .timing_budget_s = 9.5,
                                     .interval = 0.02,
                                     .python = "p",
                                     .cache_dir = "c",
                                     .threads = 3,
                                     .compile_jobs = 2,
                                     .trials = 7,
                                     .compile_timeout_s = 11.5,
                                     .run_timeout_s = 12.25,
                                     .memory_bytes = 3 << 20,
                                     .seed = 1,
                                     .measure = true,
                                     .allow_weaker = true};
    verify_identity(&o, &now);
    verify_identity_of_files_01(&o, &before);
    assert_string_equal(str_c(&now),
                        "backend=triton scoring=compat device=cuda:1 precision=bf16 compat_cpu_inputs=true "
                        "lint_strict=true staged=on single_input=true allow_library=true timing_method=do_bench "
                        "timed_calls=50 warm_calls=4 trim=0.10000000000000001 timing_budget_s=9.5 interval=0.02 "
                        "threads=3 trials=7 compile_timeout_s=11.5 run_timeout_s=12.25 memory_bytes=3145728 "
                        "measure=true");
    assert_string_equal(str_c(&before),
                        "triton bf16 compat cuda:1 trials=7 timed=50 inputs=cpu library=1 measure=1 timing=do_bench "
                        "warmup=4 trim=0.1 interval=0.02 staged=1 single=1 timeout=12.25 compile=11.5 budget=9.5 "
                        "strict=1 memory=3.14573e+06 threads=3");
    assert_true(verify_identity_hash(&o).now == UINT64_C(0x75e8851249566ed));
    assert_true(verify_identity_hash(&o).before == UINT64_C(0xdd7c343d37aa39b9));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_option_counts), cmocka_unit_test(of_version_01),
                                       cmocka_unit_test(of_every_option)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
