/* Normal forms: what two answers may differ in and be one, and what not; plans in first lines. */
#include "optimize/source_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char prototype[] = "void kernel(const float *restrict x, float *restrict out);\n#define OUT_N 10\n";

static bool same_c(const char *a, const char *b) {
    const struct digest x = source_normal(a, prototype, false), y = source_normal(b, prototype, false);
    return digest_equal(&x, &y);
}
static bool same_python(const char *a, const char *b) {
    const struct digest x = source_normal(a, "class Model", true), y = source_normal(b, "class Model", true);
    return digest_equal(&x, &y);
}

#define C "void kernel(const float *restrict x, float *restrict out) "

static void equal_answers(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {C "{ for (int i = 0; i < OUT_N; i++) out[i] = x[i]; }",
         C "{\n\tfor (int k=0;k<OUT_N;k++)\n  out[k]=x[k];\n}\n"},
        {C "{ /* a plan */ out[0] = 1; }", "// plan: b\n" C "{ out[0] = 1; // done\n}"},
        {"#include <math.h>\n" C "{ float m = 0; out[0] = m; }",
         "#include <math.h>\n\n" C "{ float q = 0; out[0] = q; }"},
        {C "{ const char *s = \"a // b\"; out[0] = s[0]; }", C "{ const char *t = \"a // b\" ; out[0] = t[0]; }"},
    };
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (!same_c(pairs[i][0], pairs[i][1])) fail_msg("differ: %s | %s", pairs[i][0], pairs[i][1]);
    assert_true(same_python("def f(a):\n    return a  # one\n", "# two\ndef f(b):\n    return b\n\n"));
}

static void different_answers(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {C "{ out[0] = 1; }", C "{ out[0] = 2; }"},
        {C "{ out[0] = x[0]; }", C "{ out[0] = out[0]; }"},
        {C "{ int a = 1, b = 2; out[0] = a - b; }", C "{ int a = 1, b = 2; out[0] = b - a; }"},
        {C "{ out[0] = expf(x[0]); }", C "{ out[0] = logf(x[0]); }"},
        {"#pragma omp parallel for\n" C "{ out[0] = 1; }", C "{ out[0] = 1; }"},
        {"#define A 1\n" C "{ out[0] = A; }", "#define A 1 " C "{ out[0] = A; }"},
        {C "{ out[0] = 1e-5f; }", C "{ out[0] = 1e5f; }"},
        {C "{ out[0] = \"a b\"[0]; }", C "{ out[0] = \"ab\"[0]; }"},
        {C "{ int ab = 1; out[0] = ab; }", C "{ inta b = 1; out[0] = b; }"},
    };
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (same_c(pairs[i][0], pairs[i][1])) fail_msg("equal: %s | %s", pairs[i][0], pairs[i][1]);
    assert_false(same_python("if a:\n    b = 1\nc = 2\n", "if a:\n    b = 1\n    c = 2\n"));
    assert_false(same_python("x.relu()\n", "x.gelu()\n"));
}

/* Names of any text do not matter, and nothing that is not there is read. */
static void any_text(void **state) {
    (void)state;
    static const char *const texts[] = {"", "/*", "\"", "'\\", "#", "//", "0x", "a", " ", "\n\n", "/* \" */ '", "#\n#"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        (void)source_normal(texts[i], NULL, false);
        (void)source_normal(texts[i], prototype, true);
        free(source_plan(texts[i]));
    }
}

static void plans_of_first_lines(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"// plan: fused, parallel\nvoid kernel();", "fused, parallel"},
        {"\n# plan:  one block a row \nimport torch", "one block a row"},
        {"/* plan: tiles */\n", "tiles"},
        {"int plan: 3;", NULL},
        {"a\nb\nc\n// plan: too late\n", NULL},
        {"// plan:   \n", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP_FREE char *plan = source_plan(rows[i][0]);
        if (!rows[i][1]) assert_null(plan);
        if (rows[i][1]) assert_string_equal(plan ? plan : "(none)", rows[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_answers), cmocka_unit_test(different_answers),
                                       cmocka_unit_test(any_text), cmocka_unit_test(plans_of_first_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
