/* Tests of the small pure parts: parsing, feedback, rewards, advantages. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rl/advantage.h"
#include "rl/feedback.h"
#include "rl/parse.h"
#include "rl/prompt.h"
#include "rl/reward.h"

static void parse_table(void **state) {
    (void)state;
    static const struct {
        const char *text, *kernel, *thought;
        bool format_ok;
    } cases[] = {
        {"<KERNEL>\n```c\nA\n```\n</KERNEL>", "A", NULL, true},
        {"<KERNEL>\nA;\n</KERNEL>", "A;", NULL, true},
        {"<KERNEL>\n```\nA\n```\n</KERNEL>", "A", NULL, true},
        {"<think>\nplan\n</think>\n\n<KERNEL>\n```c\nA\n```\n</KERNEL>", "A", "plan", true},
        {"plan\n</think>\n<KERNEL>\n```c\nA\n```\n</KERNEL>", "A", "plan", true}, /* opened by the prompt */
        {"<think>\n<KERNEL>\n```c\ndraft\n```\n</KERNEL>\n</think>\n<KERNEL>\n```c\nA\n```\n</KERNEL>", "A",
         "<KERNEL>\n```c\ndraft\n```\n</KERNEL>", true},
        {"<KERNEL>\n```c\ndraft\n```\n</KERNEL> better:\n<KERNEL>\n```c\nA\n```\n</KERNEL>", "A", NULL, true},
        {"<KERNEL>\n```c\nA\n```\n</KERNEL>\n<KERNEL>\n```c\ncut", "A", NULL, true}, /* last complete one */
        {"<KERNEL> <KERNEL>\n```c\nA\n```\n</KERNEL>", "A", NULL, true},
        {"<KERNEL>\n```python\nx\n```\n</KERNEL>", NULL, NULL, false},
        {"<KERNEL>\n```c\nnever closed", NULL, NULL, false},
        {"<KERNEL>\n```c\nnever closed\n</KERNEL>", NULL, NULL, false},
        {"<KERNEL></KERNEL>", NULL, NULL, false},
        {"<KERNEL>\n```c\n\n```\n</KERNEL>", NULL, NULL, false},
        {"```c\nA\n```", "A", NULL, false},
        {"```python\nimport torch\n```\nthen\n```c\nA\n```\n", "A", NULL, false},
        {"```c\nA\n```\nand ```json\n{}\n```", "A", NULL, false},
        {"text ```c inline``` only", NULL, NULL, false},
        {"<think>\nforever", NULL, "forever", false},
        {"<think>hm <KERNEL>\n```c\nA\n```\n</KERNEL>", "A", "hm <KERNEL>\n```c\nA\n```\n</KERNEL>", true},
        {"", NULL, NULL, false},
        {"</think>", NULL, NULL, false},
        {"</KERNEL><KERNEL>", NULL, NULL, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct parsed p;
        parse_completion(cases[i].text, strlen(cases[i].text), &p);
        const char *want = cases[i].kernel;
        if (want ? !p.kernel.p || p.kernel.n != strlen(want) || memcmp(p.kernel.p, want, p.kernel.n)
                 : p.kernel.p != NULL)
            fail_msg("case %zu: kernel \"%.*s\"", i, (int)p.kernel.n, p.kernel.p ? p.kernel.p : "");
        want = cases[i].thought;
        if (want ? !p.thought.p || p.thought.n != strlen(want) || memcmp(p.thought.p, want, p.thought.n)
                 : p.thought.p != NULL)
            fail_msg("case %zu: thought \"%.*s\"", i, (int)p.thought.n, p.thought.p ? p.thought.p : "");
        if (p.format_ok != cases[i].format_ok) fail_msg("case %zu: format_ok %d", i, p.format_ok);
    }
    struct parsed p;
    const char *t = "x</think>I fuse both loops.\n<KERNEL>\nA\n</KERNEL>";
    parse_completion(t, strlen(t), &p);
    assert_int_equal(p.summary.n, strlen("I fuse both loops."));
}

/* What prompt_answer writes, parse_completion reads. */
static void parse_inverts_answer(void **state) {
    (void)state;
    struct str s = STR_INIT;
    const char *kernel = "// plan: x\nvoid kernel(void) {\n  int a = 1;\n}";
    prompt_answer(kernel, &s);
    struct parsed p;
    parse_completion(s.p, s.len, &p);
    assert_true(p.format_ok && p.kernel.n == strlen(kernel) && memcmp(p.kernel.p, kernel, p.kernel.n) == 0);
    str_free(&s);
}

static void rewards(void **state) {
    (void)state;
    struct reward_weights w = {.format = 0.1, .compile = 0.2, .correct = 0.3, .speed = 1, .speed_cap = 3};
    struct verdict v = {.outcome = OUTCOME_CORRECT, .speedup = 0.5};
    assert_true(fabs(reward_score(&w, &v, true, false).total - 1.1) < 1e-12); /* slower still earns its ratio */
    v.speedup = 20;
    assert_true(fabs(reward_score(&w, &v, true, false).total - 3.6) < 1e-12);
    v.speedup = 0; /* not timed */
    assert_true(fabs(reward_score(&w, &v, true, false).total - 0.6) < 1e-12);
    v = (struct verdict){.outcome = OUTCOME_WRONG_OUTPUT, .tests_passed = 2, .tests_total = 5, .speedup = 9};
    assert_true(fabs(reward_score(&w, &v, true, false).total - 0.3) < 1e-12); /* format and compile credit */
    w.partial_correct = true;
    assert_true(fabs(reward_score(&w, &v, true, false).total - 0.42) < 1e-12);
    v.outcome = OUTCOME_COMPILE_ERROR;
    assert_true(fabs(reward_score(&w, &v, true, false).total - 0.1) < 1e-12);
    v.outcome = OUTCOME_SANDBOX_VIOLATION;
    assert_true(reward_score(&w, &v, true, true).total == 0);
    v = (struct verdict){.outcome = OUTCOME_CORRECT, .speedup = 3};
    w.shape = SPEED_EXCESS;
    assert_true(reward_score(&w, &v, true, false).speed == 2);
    w.shape = SPEED_LOG;
    assert_true(reward_score(&w, &v, true, false).speed == 2);
}

static void advantages(void **state) {
    (void)state;
    double r[] = {1, 2, 3, 100}, a[4];
    bool here[] = {true, true, true, false};
    assert_true(advantage_group(ADVANTAGE_CENTER, 1, r, here, 4, a));
    assert_true(a[0] == -1 && a[1] == 0 && a[2] == 1 && a[3] == 0);
    assert_true(advantage_group(ADVANTAGE_CENTER, 0.25, r, here, 4, a));
    assert_true(a[0] == -0.25 && a[1] == 0 && a[2] == 1 && a[3] == 0);
    assert_true(advantage_group(ADVANTAGE_LEAVE_ONE, 1, r, here, 4, a));
    assert_true(fabs(a[0] - (1 - 2.5)) < 1e-12);
    assert_true(advantage_group(ADVANTAGE_STD, 1, r, here, 4, a));
    assert_true(fabs(a[2] - 1 / (sqrt(2.0 / 3) + 1e-6)) < 1e-9);
    double same[] = {2, 2, 2, 7};
    assert_false(advantage_group(ADVANTAGE_STD, 1, same, here, 4, a));
    assert_true(a[0] == 0 && a[3] == 0);
    bool one[] = {false, true, false, false};
    assert_false(advantage_group(ADVANTAGE_CENTER, 1, r, one, 4, a));
}

static void feedback_texts(void **state) {
    (void)state;
    struct str s = STR_INIT;
    struct verdict v = {.outcome = OUTCOME_CORRECT, .speedup = 1.2345};
    feedback_render(&v, &s);
    assert_string_equal(s.p, "correct, 1.23x the speed of PyTorch");
    str_clear(&s);
    v.outcome = OUTCOME_COMPILE_ERROR;
    memset(v.message, 'x', sizeof v.message - 1);
    v.message[700] = '\n';
    feedback_render(&v, &s);
    assert_true(str_has_prefix(s.p, "does not compile\nxxx"));
    assert_int_equal(s.len, strlen("does not compile\n") + 700);
    str_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_table), cmocka_unit_test(parse_inverts_answer), cmocka_unit_test(rewards),
        cmocka_unit_test(advantages),  cmocka_unit_test(feedback_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
