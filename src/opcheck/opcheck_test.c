/* The CPU's ops by the quick cases of the table, on every instruction set this machine has and on one and two threads;
 * and broken ops, which each mode must find. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opcheck/opcheck.h"

static const char *const isa[] = {"reference", "avx2", "avx512", "avx512bf16", "amx"};
static FILE *sink;
static char *text; /* what was printed so far */
static size_t text_bytes;
static struct pool *two;
static struct err err;

static int setup(void **state) {
    (void)state;
    unsetenv("KERNELRL_CPU");
    two = pool_create(2);
    sink = open_memstream(&text, &text_bytes);
    return sink ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    pool_destroy(two);
    fclose(sink);
    free(text);
    return 0;
}

static struct opcheck_options quick(const char *op) {
    return (struct opcheck_options){.device = "cpu", .op = op, .threads = 2, .quick = true, .out = sink};
}

static void open_env(struct opcheck_env *env, const char *name) {
    *env = (struct opcheck_env){.host = true};
    assert_true(cpu_isa_force("reference"));
    assert_int_equal(cpu_backend_open(NULL, &env->reference, &err), ST_OK);
    assert_true(cpu_isa_force(name));
    assert_int_equal(cpu_backend_open(two, &env->target, &err), ST_OK);
    assert_int_equal(cpu_backend_open(NULL, &env->others[0], &err), ST_OK);
    env->n_others = 1;
}

static void close_env(struct opcheck_env *env) {
    env->reference->close(env->reference);
    env->target->close(env->target);
    env->others[0]->close(env->others[0]);
}

static void run_mode(enum opcheck_mode mode) {
    for (size_t i = 0; i < ARRAY_LEN(isa); i++) {
        if (!cpu_isa_force(isa[i])) {
            print_message("skipped: this CPU has no %s\n", isa[i]);
            continue;
        }
        struct opcheck_env env;
        struct opcheck_tally t = {0};
        const struct opcheck_options o = quick(NULL);
        open_env(&env, isa[i]);
        assert_int_equal(opcheck_mode(&env, mode, &o, &t, &err), ST_OK);
        close_env(&env);
        fflush(sink);
        if (t.failed) fail_msg("%s: %s", isa[i], text);
        assert_true(t.passed >= (mode == OPCHECK_GRAD ? 12 : 27) && t.skipped == 0);
    }
}

static void test_values(void **state) {
    (void)state;
    run_mode(OPCHECK_CHECK);
}
static void test_gradients(void **state) {
    (void)state;
    run_mode(OPCHECK_GRAD);
}
static void test_invariance(void **state) {
    (void)state;
    run_mode(OPCHECK_INVARIANCE);
}

/* ---- broken ops -------------------------------------------------------------------------------------------------- */

static struct backend whole; /* the table before an op was replaced */

static void last_ulp(struct backend *be, struct tensor y, struct tensor gu) { /* one bit of one value in a column */
    whole.swiglu(be, y, gu);
    for (int64_t t = 0; t < y.rows; t++) {
        uint32_t u, *p = (uint32_t *)y.data + t * y.ld;
        memcpy(&u, p, sizeof u);
        u ^= 1;
        memcpy(p, &u, sizeof u);
    }
}
static void past_the_row(struct backend *be, struct tensor y, struct tensor gu) {
    whole.swiglu(be, y, gu);
    if (y.ld > y.cols && y.rows) ((float *)y.data)[y.cols] = 0;
}
static void column_short(struct backend *be, struct tensor y, struct tensor gu) {
    const uint32_t u = 0x7fc0dead;
    whole.swiglu(be, y, gu);
    for (int64_t t = 0; t < y.rows; t++) memcpy((float *)y.data + t * y.ld + y.cols - 1, &u, sizeof u);
}
static void spoils_input(struct backend *be, struct tensor y, struct tensor gu) {
    whole.swiglu(be, y, gu);
    if (gu.rows) *(float *)gu.data += 1;
}
static void by_batch(struct backend *be, struct tensor y, struct tensor gu) { /* rows differ in large batches */
    whole.swiglu(be, y, gu);
    if (y.rows > 64) ((float *)y.data)[3 * y.ld] *= 1.0000002f;
}
static void wrong_gradient(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu) {
    whole.swiglu_grad(be, dgu, dy, gu);
    for (int64_t t = 0; t < dgu.rows; t++) ((float *)dgu.data)[t * dgu.ld] *= 1.001f;
}
static void future_key(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                       struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    struct attn_seq *off = calloc((size_t)n_seq + 1, sizeof *off);
    for (int i = 0; i < n_seq; i++) { /* a key of the past is forgotten */
        off[i] = seq[i];
        if (off[i].past > 1 && !seq[i].blocks) off[i].past--;
    }
    whole.attention(be, o, stats, q, k, v, off, n_seq, s);
    free(off);
}

static struct opcheck_tally with_broken(enum opcheck_mode mode, const char *op,
                                        void (*break_it)(struct backend *target)) {
    struct opcheck_env env;
    struct opcheck_tally t = {0};
    const struct opcheck_options o = quick(op);
    open_env(&env, "reference");
    whole = *env.target;
    break_it(env.target);
    break_it(env.others[0]);
    assert_int_equal(opcheck_mode(&env, mode, &o, &t, &err), ST_OK);
    close_env(&env);
    fflush(sink);
    return t;
}
#define BREAK(name, entry, with) \
    static void name(struct backend *be) { be->entry = with; }
BREAK(break_nothing, swiglu, whole.swiglu)
BREAK(break_ulp, swiglu, last_ulp)
BREAK(break_guard, swiglu, past_the_row)
BREAK(break_column, swiglu, column_short)
BREAK(break_input, swiglu, spoils_input)
BREAK(break_batch, swiglu, by_batch)
BREAK(break_gradient, swiglu_grad, wrong_gradient)
BREAK(break_past, attention, future_key)

static void test_broken_ops_are_found(void **state) {
    (void)state;
    static const struct {
        enum opcheck_mode mode;
        const char *op;
        void (*break_it)(struct backend *);
        int failed;
        const char *says;
    } cases[] = {
        {OPCHECK_CHECK, "swiglu", break_nothing, 0, ""},
        {OPCHECK_CHECK, "swiglu", break_ulp, 1, "reference"},
        {OPCHECK_CHECK, "swiglu", break_guard, 1, "is a guard and was written"},
        {OPCHECK_CHECK, "swiglu", break_column, 1, "was not written"},
        {OPCHECK_CHECK, "swiglu", break_input, 1, "is input and changed"},
        {OPCHECK_INVARIANCE, "swiglu", break_batch, 1, "alone"},
        {OPCHECK_INVARIANCE, "swiglu", break_ulp, 0, ""},
        {OPCHECK_GRAD, "swiglu_grad", break_gradient, 1, "finite difference"},
        {OPCHECK_CHECK, "attention", break_past, 1, "reference"},
        {OPCHECK_INVARIANCE, "attention_cached", break_past, 1, "out of the cache"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const size_t before = (fflush(sink), text_bytes);
        const struct opcheck_tally t = with_broken(cases[i].mode, cases[i].op, cases[i].break_it);
        if (t.failed != cases[i].failed || t.passed != 1 - cases[i].failed || !strstr(text + before, cases[i].says))
            fail_msg("case %zu: %d passed, %d failed: %s", i, t.passed, t.failed, text + before);
    }
}

static void test_run(void **state) {
    (void)state;
    struct opcheck_options o = quick("axpby");
    struct opcheck_tally t = {0};
    o.modes = OPCHECK_CHECK | OPCHECK_GRAD | OPCHECK_INVARIANCE;
    o.json = true;
    const size_t before = (fflush(sink), text_bytes);
    assert_int_equal(opcheck_run(&o, &t, &err), ST_OK);
    assert_true(t.passed == 2 && t.failed == 0); /* not a gradient */
    fflush(sink);
    assert_non_null(strstr(text + before, "\"op\": \"axpby\""));
    assert_non_null(strstr(text + before, "\"pass\": true}"));
    o.op = "axpbz";
    assert_int_equal(opcheck_run(&o, &t, &err), ST_USAGE);
    assert_non_null(strstr(err.msg, "axpby"));
    assert_non_null(strstr(err.msg, "axpbz"));
    o.op = NULL;
    o.device = "cuda:77";
    setenv("KERNELRL_CUDA_PLUGIN", "/nonexistent/plugin.so", 1);
    assert_int_equal(opcheck_run(&o, &t, &err), ST_DEVICE);
    unsetenv("KERNELRL_CUDA_PLUGIN");
}

static void test_perf(void **state) {
    (void)state;
    struct opcheck_options o = quick("kv_write"); /* the smallest operands */
    struct opcheck_tally t = {0};
    o.modes = OPCHECK_PERF;
    for (size_t i = 0; i < ARRAY_LEN(isa); i++) (void)cpu_isa_force(isa[i]); /* the best one */
    const size_t before = (fflush(sink), text_bytes);
    assert_int_equal(opcheck_run(&o, &t, &err), ST_OK);
    fflush(sink);
    assert_int_equal(t.passed, 2); /* models */
    assert_non_null(strstr(text + before, "limits: memory"));
    assert_non_null(strstr(text + before, "% of memory"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),     cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_invariance), cmocka_unit_test(test_broken_ops_are_found),
        cmocka_unit_test(test_run),        cmocka_unit_test(test_perf),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
