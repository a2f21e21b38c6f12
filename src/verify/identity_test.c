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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_option_counts), cmocka_unit_test(of_version_01)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
