/* The static rules on small texts, and on the tables of cheats and honest answers: advice must not depend on comments,
 * strings or spelling tricks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "rl/evaluate/score.h"
#include "verify/static_check.h"

static bool found(enum verify_backend b, const char *source, const char *rule, int line) {
    struct static_findings f;
    static_check(b, "fp32", source, &f);
    for (int i = 0; i < f.n; i++)
        if (strcmp(f.items[i].rule, rule) == 0 && (line == 0 || f.items[i].line == line)) return true;
    return false;
}

static void python_side(void **state) {
    (void)state;
    enum verify_backend b = BACKEND_torch_cpu;
    assert_true(found(b, "x = 1\ntry:\n    y()\nexcept E:\n    pass\n", "code_bypass", 2));
    assert_true(found(b, "x = 1\ntry:\n    y()\nexcept E:\n    pass\n", "code_bypass", 5));
    assert_false(found(b, "# try: pass\ns = 'try: pass'\nt = \"\"\"\ntry:\npass\n\"\"\"\n", "code_bypass", 0));
    /* A hash in a string does not hide what follows; a quote in a comment does not either. */
    assert_true(found(b, "s = '#'; import threading\n", "thread_injection", 1));
    assert_true(found(b, "# it's\nimport threading\n", "thread_injection", 2));
    assert_true(found(b, "s = r'\\'\nimport threading\n", "thread_injection", 2));
    assert_true(found(b, "s = 'a\\'b'; import threading\n", "thread_injection", 1));
    assert_true(found(b, "torch.cuda.synchronize = lambda: None\n", "timing_event_patch", 1));
    assert_true(found(b, "torch . cuda \\\n . synchronize = f\n", "timing_event_patch", 0));
    assert_false(found(b, "if torch.cuda.synchronize == f: g()\n", "timing_event_patch", 0));
    assert_true(found(b, "setattr(torch.cuda, 'synchronize', f)\n", "timing_event_patch", 1));
    assert_true(found(b, "torch.allclose = f\n", "patches_torch", 1));
    assert_false(found(b, "y = torch.allclose(a, b)\n", "patches_torch", 0));
    assert_true(found(b, "class L(torch.Tensor):\n    x = 1\n", "lazy_eval", 1));
    assert_true(found(b, "exec(code)\n", "dynamic_code", 1));
    assert_true(found(b, "y = x.half()\n", "precision_downgrade", 1));
    struct static_findings f;
    static_check(b, "fp16", "y = x.half()\n", &f);
    assert_int_equal(f.n, 0);
}

static void c_side(void **state) {
    (void)state;
    const char *code = "from torch.utils.cpp_extension import load_inline\nCUDA = '''\n#include <torch/extension.h>\n"
                       "// at::mm in a comment\n__global__ void k() {}\nvoid f() { at::mm(a, b); }\n'''\n";
    assert_true(found(BACKEND_cuda, code, "library_call", 6));
    assert_false(found(BACKEND_cuda, code, "library_call", 4));
    assert_false(found(BACKEND_cuda, code, "no_backend_code", 0));
    assert_true(found(BACKEND_cuda, "# __global__ load_inline\nclass ModelNew: x = 1\n", "no_backend_code", 0));
    assert_true(found(BACKEND_triton, "import triton\n", "no_backend_code", 0));
    assert_true(found(BACKEND_c, "/* \n */ void f(void) { system(\"ls\"); }", "reaches_outside", 2));
    assert_false(found(BACKEND_c, "void f(void) { const char *s = \"system(\"; }", "reaches_outside", 0));
    assert_true(found(BACKEND_c, "#define J(a, b) a##b\n", "token_pasting", 1));
    struct static_findings f;
    CLEANUP_STR struct str text = STR_INIT;
    static_check(BACKEND_c, "fp32", "static float *kept; int f(void) { return fork(); }", &f);
    findings_text(&f, &text);
    assert_string_equal(str_c(&text), "thread_injection:1 static_state:1");
    assert_string_equal(findings_strict(&f)->rule, "thread_injection");
}

static void odd_texts(void **state) {
    (void)state;
    struct static_findings f;
    static const char *const texts[] = {"",   "'",       "\"\"\"", "r'\\", "/*", "\\", "#", "'''\n__global__ /*",
                                        "b'", "\xff\xfe"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        for (int b = 0; b < N_BACKENDS; b++) static_check((enum verify_backend)b, "fp32", texts[i], &f);
}

static void figures(void **state) {
    (void)state;
    const struct scored s[] = {{true, 2}, {true, 0.5}, {false, 3}, {true, 0}};
    assert_true(score_fast_p(s, 4, 0) == 0.5);
    assert_true(score_fast_p(s, 4, 1) == 0.25);
    assert_true(score_fast_p(s, 4, 2) == 0);
    assert_true(score_geomean(s, 4) > 0.999999 && score_geomean(s, 4) < 1.000001);
    assert_true(score_pass_at_k(10, 0, 1) == 0);
    assert_true(score_pass_at_k(10, 10, 5) == 1);
    assert_true(score_pass_at_k(3, 2, 2) == 1);
    double p = score_pass_at_k(10, 3, 2); /* 1 - C(7,2)/C(10,2) = 1 - 21/45 */
    assert_true(p > 0.53333 && p < 0.53334);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(python_side),
        cmocka_unit_test(c_side),
        cmocka_unit_test(odd_texts),
        cmocka_unit_test(figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
