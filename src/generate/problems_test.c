/* Generated answers against the real verifier: right ones are right, broken ones are caught. Needs PyTorch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "generate/generator.h"
#include "verify/verify.h"

static struct err e;

static struct verifier *open_verifier(void) {
    struct verifier *v = NULL;
    struct verify_options o = {.threads = 2, .trials = 3, .allow_weaker = true};
    if (verifier_open(&o, &v, &e) == ST_OK) return v;
    printf("skipped: no verifier: %s\n", e.msg);
    return NULL;
}

/* Small sizes: this is about being right. Between them the recipes use every emitter of write_c.c. */
static const char *const recipes[] = {
    "rows 16x64 linear:32 gelu softmax",
    "rows 16x64 mul tanh bias layernorm logsumexp",
    "seq 4x16x32 bmm_t:16 scale:0.5 softmax bmm:32 residual",
    "rows 16x64 linear_nobias:64 swiglu linear:64 mish cross_entropy",
    "image 2x4x12x12 conv2d:8,3,1,1 channel_scale groupnorm:2 relu max_pool2d:2",
    "image 2x8x8x8 global_avg_pool linear:4 relu linear:8 sigmoid channel_gate",
    "image 2x4x12x12 depthwise_conv2d:0,3,2,1 batchnorm silu global_avg_pool",
    "signal 2x4x32 conv1d:8,5,1,2 leaky_relu:0.1 instancenorm",
    "seq 4x8x32 softplus mean_dim1 rmsnorm",
    "ids 4x8 embedding:50,32 l2_normalize cumsum",
    "rows 16x32 sigmoid transpose elu:0.5 argmax",
    "rows 16x32 hardswish concat smooth_l1_loss",
};

static void right_answers_are_right(void **state) {
    (void)state;
    enum { N = sizeof recipes / sizeof *recipes, STYLES = 3 };
    static struct gen_item it[N];
    static struct verify_item items[N * STYLES];
    struct verifier *v = open_verifier();
    if (!v) skip();
    struct arena a = ARENA_INIT;
    size_t n = 0;
    for (size_t i = 0; i < N; i++) {
        if (generator_from_recipe(recipes[i], i, &a, &it[i], &e) != ST_OK) fail_msg("%s", e.msg);
        static const enum gen_style others[] = {GEN_STYLE_naive, GEN_STYLE_fused_simd, GEN_STYLE_parallel_fast};
        static const enum gen_style literal[] = {GEN_STYLE_naive_numbers, GEN_STYLE_fused_parallel_numbers};
        const enum gen_style styles[STYLES] = {GEN_STYLE_fused_parallel_fast, others[i % 3], literal[i % 2]};
        for (int s = 0; s < STYLES; s++)
            items[n++] = (struct verify_item){.problem = &it[i].problem, .source = it[i].answers[styles[s]]};
    }
    if (verify_batch(v, items, n, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++)
        if (items[i].verdict.outcome != OUTCOME_CORRECT)
            fail_msg("%s: %s: %s\n%s", recipes[i / STYLES], outcome_name(items[i].verdict.outcome),
                     items[i].verdict.message, items[i].source);
    arena_free(&a);
    verifier_close(v);
}

static void broken_answers_are_caught(void **state) {
    (void)state;
    static const struct {
        enum gen_break kind;
        const char *classes; /* outcome classes it may have */
    } cases[] = {
        {GEN_BREAK_undeclared_name, "B"}, {GEN_BREAK_missing_semicolon, "B"}, {GEN_BREAK_missing_brace, "B"},
        {GEN_BREAK_wrong_signature, "B"}, {GEN_BREAK_wrong_constant, "W"},    {GEN_BREAK_missing_operator, "W"},
        {GEN_BREAK_unwritten_row, "W"},   {GEN_BREAK_out_of_bounds, "WR"},    {GEN_BREAK_crash, "R"},
        {GEN_BREAK_not_a_number, "W"},    {GEN_BREAK_missing_tail, "W"},      {GEN_BREAK_wrong_size, "W"}};
    enum { N = sizeof cases / sizeof *cases, STYLES = 2 };
    static const enum gen_style styles[STYLES] = {GEN_STYLE_fused, GEN_STYLE_fused_numbers};
    static struct verify_item items[N * STYLES];
    size_t n = 0, kind[N * STYLES];
    struct verifier *v = open_verifier();
    if (!v) skip();
    struct arena a = ARENA_INIT;
    struct gen_item it;
    if (generator_from_recipe("rows 16x64 scale:3.0 softmax shift:0.25", 1, &a, &it, &e) != ST_OK)
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < N * STYLES; i++) {
        const enum gen_style style = styles[i / N];
        if (cases[i % N].kind == GEN_BREAK_wrong_size && !gen_style_literal(style)) continue;
        char *wrong = generator_break(it.answers[style], cases[i % N].kind, 3 + i / N, &a);
        if (!wrong) fail_msg("%s does not apply", gen_break_name(cases[i % N].kind));
        kind[n] = i % N;
        items[n++] = (struct verify_item){.problem = &it.problem, .source = wrong};
    }
    if (verify_batch(v, items, n, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++)
        if (!strchr(cases[kind[i]].classes, outcome_class(items[i].verdict.outcome)))
            fail_msg("%s: %s: %s\n%s", gen_break_name(cases[kind[i]].kind), outcome_name(items[i].verdict.outcome),
                     items[i].verdict.message, items[i].source);
    arena_free(&a);
    verifier_close(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_answers_are_right),
                                       cmocka_unit_test(broken_answers_are_caught)};
    return cmocka_run_group_tests_name("generated answers", tests, NULL, NULL);
}
