/* datums: where a prompt ends, and how a call is cut. */
#include "tinker/datums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 100, LONGEST = 64 };

static struct err e;
static struct arena memory;

/* Datums of so many tokens each, all of them 1 but the last one, whose number it is. */
struct case_datum {
    int64_t n;
    float weight[LONGEST];
};
static enum status make(const struct case_datum *c, int n, struct datums *out) {
    struct wire_datum *d = arena_array(&memory, struct wire_datum, n);
    for (int i = 0; i < n; i++) {
        d[i] = (struct wire_datum){.ids = arena_array(&memory, int32_t, c[i].n), .n = c[i].n};
        d[i].tensor = arena_array(&memory, struct wire_tensor, 2);
        d[i].n_tensors = 2;
        const struct wire_tensor shape = {.nd = 1, .dim = {c[i].n}, .n = c[i].n};
        d[i].tensor[0] = d[i].tensor[1] = shape;
        d[i].tensor[0].name = "target_tokens";
        d[i].tensor[0].dtype = WIRE_I64;
        d[i].tensor[0].i = arena_array(&memory, int64_t, c[i].n);
        d[i].tensor[1].name = "weights";
        d[i].tensor[1].dtype = WIRE_F32;
        d[i].tensor[1].f = (float *)(uintptr_t)c[i].weight;
        for (int64_t k = 0; k < c[i].n; k++) d[i].ids[k] = k + 1 < c[i].n ? 1 : i;
    }
    const struct wire_training r = {.model_id = "m", .loss_fn = "cross_entropy", .seq_id = 1, .datum = d, .n = n};
    e = (struct err){0};
    return datums_make(&r, VOCAB, LONGEST, &memory, out, &e);
}

static void test_prompts(void **state) {
    (void)state;
    const struct case_datum c[] = {{4, {0, 0, 0.5F, 0}},  /* up to the first weight, and its row */
                                   {4, {0, -0.0F, 0, 1}}, /* which -0 is, too */
                                   {4, {0, 0, 0, 0}},     /* nothing is learned */
                                   {4, {1, 0, 0, 0}}};
    static const int64_t want[] = {3, 2, 4, 1};
    struct datums x;
    assert_int_equal(make(c, 4, &x), ST_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(x.d[i].prompt, want[i]);
}

/* Neighbours with one prompt count its rows once. */
static void test_groups(void **state) {
    (void)state;
    const struct case_datum c[] = {{10, {0, 0, 0, 0, 0, 0, 0, 1}},
                                   {10, {0, 0, 0, 0, 0, 0, 0, 1}},
                                   {10, {0, 0, 0, 0, 0, 0, 0, 1}},
                                   {10, {0, 0, 0, 0, 1}}};
    static const struct {
        int64_t tokens;
        int end[4]; /* of the group that begins at the first datum, behind the first group, ... */
    } cases[] = {{1, {1, 2, 3, 4}}, {12, {2, 3, 4, 4}}, {14, {3, 4, 4, 4}}, {23, {3, 4, 4, 4}}, {24, {4, 4, 4, 4}}};
    struct datums x;
    assert_int_equal(make(c, 4, &x), ST_OK);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        datums_cut(&x, cases[i].tokens, &memory);
        int at = 0;
        for (int k = 0; at < x.n; k++) {
            const int end = datums_group_end(&x, at);
            if (end != cases[i].end[k]) fail_msg("%d rows: a group from %d to %d", (int)cases[i].tokens, at, end);
            struct datums alone = {.d = x.d + at, .n = end - at};
            datums_cut(&alone, cases[i].tokens, &memory);
            assert_int_equal(datums_group_end(&alone, 0), alone.n); /* a call of this group alone is not cut */
            at = end;
        }
    }
}

/* Each target of a token is a row of the head: a datum with many is several with the same text, each of which has some
 * of its columns, and the answer has all of them in their order. */
static void test_many_targets(void **state) {
    (void)state;
    enum { ROWS = 2, MOST = 2 * DATUM_MAX_TARGETS + 5 };
    static const int widths[] = {1, DATUM_MAX_TARGETS, DATUM_MAX_TARGETS + 1, MOST};
    static const int pieces[] = {1, 1, 2, 3};
    for (size_t c = 0; c < ARRAY_LEN(widths); c++) {
        const int K = widths[c];
        struct wire_tensor t[] = {
            {.name = "target_tokens", .dtype = WIRE_I64, .nd = 2, .dim = {ROWS, K}, .n = ROWS * K},
            {.name = "weights", .dtype = WIRE_F32, .nd = 2, .dim = {ROWS, K}, .n = ROWS * K},
        };
        t[0].i = arena_array(&memory, int64_t, ROWS * K);
        t[1].f = arena_array(&memory, float, ROWS *K);
        for (int i = 0; i < ROWS * K; i++) {
            t[0].i[i] = i % VOCAB;
            t[1].f[i] = (float)i;
        }
        struct wire_datum d = {.ids = (int32_t[]){1, 1}, .n = ROWS, .tensor = t, .n_tensors = 2};
        const struct wire_datum twice[] = {d, d};
        const struct wire_training r = {
            .model_id = "m", .loss_fn = "cross_entropy", .seq_id = 1, .datum = (struct wire_datum *)twice, .n = 2};
        struct datums x;
        e = (struct err){0};
        assert_int_equal(datums_make(&r, VOCAB, LONGEST, &memory, &x, &e), ST_OK);
        assert_int_equal(x.n, 2 * pieces[c]);
        assert_int_equal(x.work, x.tokens * pieces[c]);
        assert_int_equal(x.tokens, 2 * ROWS);
        for (int i = 0; i < x.n; i++) {
            assert_int_equal(x.of[i], i / pieces[c]);
            assert_true(x.d[i].K <= DATUM_MAX_TARGETS);
            for (int64_t k = 0; k < ROWS * i64_max(1, x.d[i].K); k++) {
                assert_int_equal(x.d[i].targets[k], (int)x.d[i].weights[k] % VOCAB);
                x.d[i].logp[k] = x.d[i].weights[k];
            }
        }
        CLEANUP_STR struct str out = STR_INIT;
        struct wire_output o;
        datums_put_output(&x, 0, &memory, &out);
        assert_int_equal(wire_read_output(out.p, out.len, &memory, &o, &e), ST_OK);
        assert_int_equal(o.n, 2);
        for (int i = 0; i < 2; i++) assert_memory_equal(o.datum[i].logp, t[1].f, (size_t)(ROWS * K) * sizeof(float));
    }
}

/* Texts of one token share their rows: their parts are cut by targets. */
static void test_targets_of_one_token(void **state) {
    (void)state;
    enum { TOKENS = 3, K = 10 * DATUM_MAX_TARGETS + 1 };
    struct wire_tensor t[] = {
        {.name = "target_tokens", .dtype = WIRE_I64, .nd = 2, .dim = {1, K}, .n = K},
        {.name = "weights", .dtype = WIRE_F32, .nd = 2, .dim = {1, K}, .n = K},
    };
    t[0].i = arena_array(&memory, int64_t, K);
    t[1].f = arena_array(&memory, float, K);
    memset(t[0].i, 0, K * sizeof *t[0].i);
    memset(t[1].f, 0, K * sizeof *t[1].f);
    struct wire_datum d = {.ids = (int32_t[]){1}, .n = 1, .tensor = t, .n_tensors = 2};
    const struct wire_training r = {.model_id = "m", .loss_fn = "cross_entropy", .seq_id = 1, .datum = &d, .n = 1};
    struct datums x;
    assert_int_equal(datums_make(&r, VOCAB, LONGEST, &memory, &x, &e), ST_OK);
    assert_int_equal(x.n, 11);
    datums_cut(&x, TOKENS, &memory);
    for (int at = 0, end; at < x.n; at = end) {
        end = datums_group_end(&x, at);
        assert_int_equal(end, at + TOKENS < 11 ? at + TOKENS : 11);
    }
    datums_cut(&x, 11, &memory);
    assert_int_equal(datums_group_end(&x, 0), 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompts), cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_many_targets),
                                       cmocka_unit_test(test_targets_of_one_token)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_free(&memory);
    return failed;
}
