/* Tests of the small pure parts: advantages and feedback. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "policy/feedback.h"
#include "policy/prompt.h"
#include "reward/advantage.h"

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

/* By hand, with k = 2: of the pairs of 1 2 3 the 2 wins one by 1, the 3 one by 2 and one by 1. Then against all subsets
 * of drawn groups, and the weights of `entropic` against their definition. */
static void advantages_for_the_best(void **state) {
    (void)state;
    struct advantage_params p = {.kind = ADVANTAGE_MAX_K, .max_k = 2};
    check_advantages(p, NAN, (double[]){0, 1.0 / 3, 0, 1, 0, 0});
    p.max_k = 3;
    check_advantages(p, NAN, (double[]){0, 0, 0, 1, 0, 0});
    p = (struct advantage_params){.kind = ADVANTAGE_ENTROPIC, .entropic_beta = 1};
    const double mean = (exp(1) + exp(2) + exp(3)) / 3;
    check_advantages(p, NAN, (double[]){exp(1) / mean - 1, exp(2) / mean - 1, 0, exp(3) / mean - 1, 0, 0});
    enum { N = 7 };
    for (uint64_t draw = 0; draw < 20; draw++) {
        struct advantage_sample s[N];
        double want[N] = {0}, baseline = NAN, kl = 0;
        const int k = 2 + (int)(draw % 5);
        for (uint64_t i = 0; i < N; i++)
            s[i] = (struct advantage_sample){.present = true, .score = floor(4 * rng_f64(draw, 1, i))};
        s[0].score = 9; /* one is the best */
        int subsets = 0;
        for (int set = 0; set < 1 << N; set++) {
            if (__builtin_popcount((unsigned)set) != k) continue;
            subsets++;
            for (int i = 0; i < N; i++) {
                double with = -1, without = -1;
                if (!(set >> i & 1)) continue;
                for (int j = 0; j < N; j++) {
                    if (set >> j & 1) with = fmax(with, s[j].score);
                    if (set >> j & 1 && j != i) without = fmax(without, s[j].score);
                }
                want[i] += with - without;
            }
        }
        p = (struct advantage_params){.kind = ADVANTAGE_MAX_K, .max_k = k, .negative_scale = 1};
        advantage_batch(&p, s, N, 1, &baseline);
        for (int i = 0; i < N; i++) assert_true(fabs(s[i].advantage - want[i] / subsets) < 1e-12);
        p.kind = ADVANTAGE_ENTROPIC;
        advantage_batch(&p, s, N, 1, &baseline);
        double sum = 0;
        for (int i = 0; i < N; i++) {
            const double w = (s[i].advantage + 1) / N;
            sum += s[i].advantage;
            kl += w > 0 ? w * log(w * N) : 0;
        }
        assert_true(fabs(sum) < 1e-9 && fabs(kl - log(2)) < 1e-6);
    }
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

static void expect_full(struct verdict v, const char *backend, const char *const *says, const char *never) {
    struct str s = STR_INIT;
    feedback_render_full(&v, backend_named(backend), &s);
    for (; *says; says++)
        if (!strstr(s.p, *says)) fail_msg("expected \"%s\" in: %s", *says, s.p);
    if (never && strstr(s.p, never)) fail_msg("\"%s\" in: %s", never, s.p);
    str_free(&s);
}
#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Status, compiled, tests, speed, details and advice for every category. A CUDA fault is a crash, not wrong output. */
static void full_feedback(void **state) {
    (void)state;
    expect_full((struct verdict){.outcome = OUTCOME_NO_KERNEL}, "c", SAYS("no kernel found", "one fenced block"),
                "Compiled");
    expect_full((struct verdict){.outcome = OUTCOME_COMPILE_ERROR, .message = "kernel.c:3: error: x"}, "c",
                SAYS("the build failed\nCompiled: no\nDetails:\n```\nkernel.c:3: error: x\n```\nFix the syntax"),
                "Tests");
    expect_full((struct verdict){.outcome = OUTCOME_CRASH, .message = "CUDA error: an illegal memory access"}, "triton",
                SAYS("it crashed\nCompiled: yes", "CUDA error: an illegal", "masks", "PyTorch operators"), NULL);
    expect_full(
        (struct verdict){.outcome = OUTCOME_WRONG_OUTPUT, .tests_passed = 2, .tests_total = 5, .message = "out"},
        "cuda_native", SAYS("the output is wrong", "Tests passed: 2 of 5", "barriers"), "PyTorch operators");
    expect_full((struct verdict){.outcome = OUTCOME_CORRECT, .tests_passed = 5, .tests_total = 5, .speedup = 0.5}, "c",
                SAYS("slower than PyTorch", "Speed: 0.50x PyTorch", "vector loops"), "Details");
    expect_full((struct verdict){.outcome = OUTCOME_CORRECT, .speedup = 2}, "cuda", SAYS("correct\n", "make it faster"),
                "slower");
    expect_full((struct verdict){.outcome = OUTCOME_SANDBOX_VIOLATION}, "c", SAYS("not allowed"), NULL);
    struct verdict trace = {.outcome = OUTCOME_CRASH,
                            .message =
                                "Traceback (most recent call last):\n  File \"x.py\", line 3\n\nValueError: y\n"};
    expect_full(trace, "triton", SAYS("```\nValueError: y\n```"), "Traceback");
    memset(trace.message, 'z', sizeof trace.message - 1); /* 800 characters at most */
    struct str s = STR_INIT;
    feedback_render_full(&trace, NULL, &s);
    assert_true(s.len < 1000 && s.len > 800);
    str_free(&s);
}

static const struct problem problem = {.key = "k", .code = "class Model: pass\n"};

/* The backends' prompts, precision and hardware; version 1 stays as it is. */
static void prompts(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct chat_message m[2];
    struct err e;
    struct str hardware = STR_INIT;
    const struct prompt_example *examples;
    assert_null(backend_named("fortran"));
    assert_int_equal(prompt_examples("c", 1, &examples), 1);
    assert_int_equal(prompt_examples("c", 9, &examples), 3);
    assert_int_equal(prompt_examples("triton", 3, &examples), 1);
    assert_int_equal(prompt_hardware("H200", &hardware, &e), ST_OK);
    const struct prompt_input in = {.problem = &problem,
                                    .backend = backend_named("triton"),
                                    .think = true,
                                    .precision = "BF16 (bfloat16)",
                                    .hardware = str_c(&hardware),
                                    .examples = examples,
                                    .n_examples = 1};
    prompt_build(&in, &a, m);
    assert_non_null(strstr(m[0].content, "Triton kernels"));
    assert_non_null(strstr(m[0].content, "<think>"));
    const char *const parts[] = {"Example 1:",
                                 "add_kernel",
                                 "Hardware:\nNVIDIA H200 (Hopper)",
                                 "4800 GB/s",
                                 "Module:\n```python\nclass Model",
                                 "Precision: BF16"};
    const char *at = m[1].content;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        at = strstr(at, parts[i]);
        if (!at) fail_msg("no \"%s\", or not in its place, in: %s", parts[i], m[1].content);
    }
    assert_null(strstr(m[1].content, "Prototype"));
    const char *const names[] = {"c", "cuda_native", "triton", "cuda", "torch_cpu"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) { /* an example answer is one that the parser finds again */
        const struct backend_info *b = backend_named(names[i]);
        assert_true(prompt_examples(names[i], 1, &examples) == 1);
        struct str s = STR_INIT;
        struct parsed p;
        prompt_answer(b, examples[0].kernel, &s);
        parse_completion(s.p, s.len, prompt_language(b), &p);
        assert_true(p.format_ok && p.kernel.n + 1 == strlen(examples[0].kernel));
        str_free(&s);
    }
    str_clear(&hardware);
    assert_int_equal(prompt_hardware("cpu", &hardware, &e), ST_OK);
    assert_non_null(strstr(hardware.p, "threads"));
    assert_int_equal(prompt_hardware("Voodoo2", &hardware, &e), ST_CONFIG);
    assert_non_null(strstr(e.msg, "H200"));
    str_free(&hardware);
    arena_free(&a);
}

/* Whether a think block is asked for is one decision: what the system says, what a prompt of any turn says and what its
 * feedback says agree, for every backend. */
static void no_thought_is_asked_for(void **state) {
    (void)state;
    const char *const names[] = {"c", "cuda_native", "triton", "cuda", "torch_cpu"};
    const struct verdict failed = {.outcome = OUTCOME_COMPILE_ERROR, .message = "error: what"};
    const struct spec spec = {0};
    for (size_t b = 0; b < ARRAY_LEN(names); b++)
        for (int think = 0; think < 2; think++)
            for (int turn = 0; turn < 2; turn++)
                for (int full = 0; full < 2; full++) {
                    struct arena a = ARENA_INIT;
                    struct chat_message m[2];
                    struct str feedback = STR_INIT;
                    const struct backend_info *backend = backend_named(names[b]);
                    if (full)
                        feedback_render_full(&failed, backend, &feedback);
                    else
                        feedback_render(&failed, &feedback);
                    const struct prompt_attempt attempt = {.kernel = "k", .feedback = str_c(&feedback)};
                    prompt_build(&(struct prompt_input){.problem = &problem,
                                                        .spec = &spec,
                                                        .backend = backend,
                                                        .think = think,
                                                        .attempts = &attempt,
                                                        .n_attempts = turn},
                                 &a, m);
                    assert_true((strstr(m[0].content, "<think>") != NULL) == think);
                    assert_null(strcasestr(m[1].content, "think"));
                    str_free(&feedback);
                    arena_free(&a);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages),
        cmocka_unit_test(advantages_for_the_best),
        cmocka_unit_test(advantages_of_few),
        cmocka_unit_test(feedback_texts),
        cmocka_unit_test(full_feedback),
        cmocka_unit_test(prompts),
        cmocka_unit_test(no_thought_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
