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
        parse_completion(cases[i].text, strlen(cases[i].text), ANSWER_C, &p);
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
    parse_completion(t, strlen(t), ANSWER_C, &p);
    assert_int_equal(p.summary.n, strlen("I fuse both loops."));
}

/* What prompt_answer writes, parse_completion reads. */
static void parse_inverts_answer(void **state) {
    (void)state;
    struct str s = STR_INIT;
    const char *kernel = "// plan: x\nvoid kernel(void) {\n  int a = 1;\n}";
    prompt_answer(NULL, kernel, &s);
    struct parsed p;
    parse_completion(s.p, s.len, ANSWER_C, &p);
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

/* One group of four, the last one without a verdict, and a group of two with equal scores. */
static const struct advantage_sample six[] = {{0, true, 1, 0, 0, 0}, {0, true, 2, 0, 0, 0},    {1, true, 4, 0, 0, 0},
                                              {0, true, 3, 0, 0, 0}, {0, false, 100, 0, 0, 0}, {1, true, 4, 0, 0, 0}};

static void check_advantages(struct advantage_params p, double baseline, const double want[6]) {
    struct advantage_sample s[6];
    memcpy(s, six, sizeof s);
    if (p.negative_scale == 0) p.negative_scale = 1;
    assert_int_equal(advantage_batch(&p, s, 6, 2, &baseline), 1);
    for (int i = 0; i < 6; i++)
        if (fabs(s[i].advantage - want[i]) > 1e-5)
            fail_msg("advantage %d, sample %d: %g, expected %g", p.kind, i, s[i].advantage, want[i]);
    assert_true(s[2].constant && s[5].constant && !s[0].constant && !s[4].takes_part);
}

/* By hand: group 0 has mean 2 and variance 2/3; the batch 1 2 4 3 4 has mean 2.8 and variance 1.36. */
static void advantages(void **state) {
    (void)state;
    const double std = sqrt(2.0 / 3), batch = sqrt(1.36);
    struct advantage_params p = {.kind = ADVANTAGE_CENTER};
    check_advantages(p, NAN, (double[]){-1, 0, 0, 1, 0, 0});
    p.negative_scale = 0.25;
    check_advantages(p, NAN, (double[]){-0.25, 0, 0, 1, 0, 0});
    p = (struct advantage_params){.kind = ADVANTAGE_STD};
    check_advantages(p, NAN, (double[]){-1 / std, 0, 0, 1 / std, 0, 0});
    p.kind = ADVANTAGE_LEAVE_ONE;
    check_advantages(p, NAN, (double[]){-1.5, 0, 0, 1.5, 0, 0});
    p.kind = ADVANTAGE_NONE;
    check_advantages(p, NAN, (double[]){1, 2, 4, 3, 0, 4});
    p.drop_constant = true; /* nothing is subtracted: a group of equal scores teaches as any other */
    check_advantages(p, NAN, (double[]){1, 2, 4, 3, 0, 4});
    p.kind = ADVANTAGE_BATCH_MEAN;
    check_advantages(p, NAN, (double[]){-1.8, -0.8, 0, 0.2, 0, 0});
    p.drop_constant = false;
    check_advantages(p, NAN, (double[]){-1.8, -0.8, 1.2, 0.2, 0, 1.2});
    p.kind = ADVANTAGE_BATCH_STD;
    check_advantages(p, NAN, (double[]){-1.8 / batch, -0.8 / batch, 1.2 / batch, 0.2 / batch, 0, 1.2 / batch});
    p = (struct advantage_params){.kind = ADVANTAGE_EMA, .baseline_decay = 0.75};
    check_advantages(p, 2.5, (double[]){-1.5, -0.5, 1.5, 0.5, 0, 1.5});
    check_advantages(p, NAN, (double[]){-1.8, -0.8, 1.2, 0.2, 0, 1.2});
    double baseline = 2.0;
    struct advantage_sample s[6];
    memcpy(s, six, sizeof s);
    advantage_batch(&p, s, 6, 2, &baseline);
    assert_true(fabs(baseline - (0.75 * 2.0 + 0.25 * 2.8)) < 1e-12);
    p.kind = ADVANTAGE_MAXRL;
    check_advantages(p, NAN, (double[]){-0.5, 0, 0, 0.5, 0, 0});
    p = (struct advantage_params){.kind = ADVANTAGE_EXPONENTIAL, .temperature = 0.5};
    check_advantages(p, NAN, (double[]){exp(-2), 1, 1, exp(2), 0, 1});
    p.temperature = 0.1; /* exp(10) is cut to 20 */
    check_advantages(p, NAN, (double[]){exp(-10), 1, 1, 20, 0, 1});
    p = (struct advantage_params){.kind = ADVANTAGE_BEST, .keep = 1, .threshold = 0.5};
    check_advantages(p, NAN, (double[]){0, 0, 1, 1, 0, 0}); /* of equals the first */
    p.keep = 2;
    p.threshold = 2;
    check_advantages(p, NAN, (double[]){0, 0, 1, 1, 0, 1}); /* a score must be over the threshold */
}

/* One sample has no peers; no samples have nothing. */
static void advantages_of_few(void **state) {
    (void)state;
    double baseline = NAN;
    const struct advantage_params p = {.kind = ADVANTAGE_LEAVE_ONE, .negative_scale = 1, .drop_constant = true};
    struct advantage_sample s = {.present = true, .score = 3};
    assert_int_equal(advantage_batch(&p, &s, 1, 1, &baseline), 1);
    assert_true(s.advantage == 0 && !s.takes_part && isnan(baseline));
    assert_int_equal(advantage_batch(&p, NULL, 0, 0, &baseline), 0);
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
        cmocka_unit_test(advantages), cmocka_unit_test(advantages_of_few), cmocka_unit_test(feedback_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
