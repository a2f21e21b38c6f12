/* kernelrl selfcheck golden: passes on the golden models, fails when a number is off or unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/str.h"
#include "bench/onpolicy.h"
#include "cli/cli.h"

static struct err err;

static int check(const char *dir) {
    char *argv[] = {(char *)"selfcheck", (char *)"golden", (char *)(uintptr_t)dir, NULL};
    return cmd_selfcheck(3, argv);
}

static void copy_file(const char *from, const char *to, const char *name, const char *find, char replace) {
    CLEANUP_STR struct str a = STR_INIT, b = STR_INIT;
    str_addf(&a, "%s/%s", from, name);
    str_addf(&b, "%s/%s", to, name);
    CLEANUP_FREE char *data = NULL;
    size_t n;
    assert_int_equal(fs_read(a.p, 1u << 28, &data, &n, &err), ST_OK);
    if (find) {
        char *hit = (char *)(uintptr_t)mem_find(data, n, find, strlen(find));
        assert_non_null(hit);
        hit[strlen(find) - 1] = replace;
    } else if (replace) {
        data[n - 2] = (char)(data[n - 2] ^ replace);
    }
    assert_int_equal(fs_write_atomic(b.p, data, n, &err), ST_OK);
}

static void test_golden(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const char *const name[] = {"qwen2_tied", "qwen3", "llama3", "qwen3_moe"};
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        CLEANUP_STR struct str dir = STR_INIT, sub = STR_INIT;
        str_addf(&dir, "%s/golden/%s", data, name[i]);
        assert_int_equal(check(dir.p), 0);

        /* A copy with one weight changed, then with a quantity under a name that nobody checks. */
        char tmp[] = "/tmp/kernelrl-selfcheck-XXXXXX";
        assert_non_null(mkdtemp(tmp));
        str_addf(&sub, "%s/adapter", tmp);
        assert_int_equal(fs_mkdirs(sub.p, &err), ST_OK);
        copy_file(dir.p, tmp, "config.json", NULL, 0);
        copy_file(dir.p, tmp, "adapter/adapter_config.json", NULL, 0);
        copy_file(dir.p, tmp, "adapter/adapter_model.safetensors", NULL, 0);
        copy_file(dir.p, tmp, "expected.safetensors", NULL, 0);
        copy_file(dir.p, tmp, "model.safetensors", NULL, 0x7f);
        assert_int_equal(check(tmp), 1);
        copy_file(dir.p, tmp, "model.safetensors", NULL, 0);
        copy_file(dir.p, tmp, "expected.safetensors", "\"hidden_2", '9');
        assert_int_equal(check(tmp), 1);
        copy_file(dir.p, tmp, "expected.safetensors", "\"full_loss", 'z');
        assert_int_equal(check(tmp), 1);
        assert_int_equal(fs_remove(tmp, &err), ST_OK);
    }
}

/* Bases in codes: in both types; a matrix that decodes to another number is seen. */
static void test_golden_codes(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const char *const name[] = {"qwen3_fp8", "qwen2_nf4"};
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        CLEANUP_STR struct str dir = STR_INIT, sub = STR_INIT;
        str_addf(&dir, "%s/golden/%s", data, name[i]);
        char *argv[] = {(char *)"selfcheck", (char *)"golden", dir.p, (char *)"--dtype", (char *)"bf16", NULL};
        assert_int_equal(check(dir.p), 0);
        assert_int_equal(cmd_selfcheck(5, argv), 0);
        char tmp[] = "/tmp/kernelrl-selfcheck-XXXXXX";
        assert_non_null(mkdtemp(tmp));
        str_addf(&sub, "%s/adapter", tmp);
        assert_int_equal(fs_mkdirs(sub.p, &err), ST_OK);
        static const char *const files[] = {"config.json", "adapter/adapter_config.json",
                                            "adapter/adapter_model.safetensors", "expected.safetensors",
                                            "model.safetensors"};
        for (size_t k = 0; k < ARRAY_LEN(files); k++) copy_file(dir.p, tmp, files[k], NULL, 0);
        copy_file(dir.p, tmp, "decoded.safetensors", NULL, 0x01);
        assert_int_equal(check(tmp), 1);
        copy_file(dir.p, tmp, "decoded.safetensors", "q_proj", 'z');
        assert_int_equal(check(tmp), 1);
        assert_int_equal(fs_remove(tmp, &err), ST_OK);
    }
}

/* The parser moves flags in argv, so each call has its own. */
static int measure(char *dir, char *file) {
    char *argv[] = {(char *)"selfcheck", (char *)"golden", dir, (char *)"--measure", file, NULL};
    return cmd_selfcheck(5, argv);
}

/* What was measured, a line each, and no limit: another weight is a larger number and no failure. */
static void test_measure(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    char tmp[] = "/tmp/kernelrl-measure-XXXXXX";
    assert_non_null(mkdtemp(tmp));
    CLEANUP_STR struct str dir = STR_INIT, file = STR_INIT;
    CLEANUP_FREE char *lines = NULL;
    str_addf(&dir, "%s/golden/llama3", data);
    str_addf(&file, "%s/lines", tmp);
    assert_int_equal(measure(dir.p, file.p), 0);
    assert_int_equal(fs_read(file.p, 1 << 20, &lines, NULL, &err), ST_OK);
    static const char *const what[] = {"{\"what\":\"logits\",\"max\":",
                                       "{\"what\":\"greedy\",\"differ\":0,\"tokens\":40}",
                                       "\"what\":\"loss\",\"value\":",
                                       "\"what\":\"full_loss\",\"value\":",
                                       "\"fullgrad.model.norm.weight\",\"norm\":",
                                       "lora_B.weight\",\"norm\":"};
    for (size_t i = 0; i < ARRAY_LEN(what); i++)
        if (!strstr(lines, what[i])) fail_msg("no %s in %s", what[i], lines);
    assert_int_equal(measure(dir.p, tmp), 1); /* a folder */
    assert_int_equal(fs_remove(tmp, &err), ST_OK);
}

static int onpolicy(const char *dir, const char *key, const char *value, const char *tokens) {
    char *argv[] = {(char *)"selfcheck",
                    (char *)"onpolicy",
                    (char *)"--model",
                    (char *)(uintptr_t)dir,
                    (char *)"--tokens",
                    (char *)(uintptr_t)tokens,
                    (char *)"--threads",
                    (char *)"2",
                    (char *)(uintptr_t)key,
                    (char *)(uintptr_t)value,
                    NULL};
    return cmd_selfcheck(key ? 10 : 8, argv);
}

/* Models without a tokenizer: prompts are random ids. */
static void test_onpolicy(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const char *const name[] = {"qwen2_tied", "qwen3", "llama3", "qwen3_moe"};
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        CLEANUP_STR struct str dir = STR_INIT, adapter = STR_INIT;
        str_addf(&dir, "%s/golden/%s", data, name[i]);
        str_addf(&adapter, "%s/adapter", dir.p);
        assert_int_equal(onpolicy(dir.p, NULL, NULL, "3000"), 0);
        assert_int_equal(onpolicy(dir.p, "--adapter", adapter.p, "300"), 0);
        assert_int_equal(onpolicy(dir.p, "--lora-rank", "3", "300"), 0);
        assert_int_equal(onpolicy(dir.p, "--adapters", "3", "300"), 0);
        assert_int_equal(onpolicy(dir.p, "--dtype", "bf16", "1000"), 0);
        assert_int_equal(onpolicy(dir.p, "--adapter", dir.p, "300"), 1); /* no adapter there */
        assert_int_equal(onpolicy(dir.p, NULL, NULL, "1"), 0);
    }
}

static int check_bf16(char *dir) {
    char *argv[] = {(char *)"selfcheck", (char *)"golden", dir, (char *)"--dtype", (char *)"bf16", NULL};
    return cmd_selfcheck(5, argv);
}

/* A mixture in bf16 is held to the experts of float32; a router of another model is seen all the same. */
static void test_golden_mixture(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    CLEANUP_STR struct str dir = STR_INIT, sub = STR_INIT;
    str_addf(&dir, "%s/golden/qwen3_moe", data);
    char tmp[] = "/tmp/kernelrl-selfcheck-XXXXXX";
    assert_non_null(mkdtemp(tmp));
    assert_int_equal(check_bf16(dir.p), 0);
    str_addf(&sub, "%s/adapter", tmp);
    assert_int_equal(fs_mkdirs(sub.p, &err), ST_OK);
    static const char *const files[] = {"adapter/adapter_config.json", "adapter/adapter_model.safetensors",
                                        "expected.safetensors", "model.safetensors"};
    for (size_t k = 0; k < ARRAY_LEN(files); k++) copy_file(dir.p, tmp, files[k], NULL, 0);
    copy_file(dir.p, tmp, "config.json", "\"num_experts_per_tok\": 2", '3');
    assert_int_equal(check_bf16(tmp), 1);
    copy_file(dir.p, tmp, "config.json", NULL, 0);
    assert_int_equal(check_bf16(tmp), 0);
    assert_int_equal(fs_remove(tmp, &err), ST_OK);
}

static void test_onpolicy_codes(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const char *const name[] = {"qwen3_fp8", "qwen2_nf4"};
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        CLEANUP_STR struct str dir = STR_INIT, plain = STR_INIT, adapter = STR_INIT;
        str_addf(&dir, "%s/golden/%s", data, name[i]);
        str_addf(&plain, "%s/golden/%s", data, i ? "qwen2_tied" : "qwen3");
        str_addf(&adapter, "%s/adapter", dir.p);
        assert_int_equal(onpolicy(dir.p, "--adapter", adapter.p, "100"), 0);
        assert_int_equal(onpolicy(dir.p, "--adapters", "3", "100"), 0);
        assert_int_equal(onpolicy(plain.p, "--base-dtype", name[i] + 6, "100"), 0);
        str_clear(&plain);
        str_addf(&plain, "%s/golden/qwen3_moe", data);
        assert_int_equal(onpolicy(plain.p, "--base-dtype", name[i] + 6, "100"), 0);
        assert_int_equal(onpolicy(dir.p, "--base-dtype", i ? "fp8" : "nf4", "100"), 1);
    }
}

static void test_onpolicy_usage(void **state) {
    (void)state;
    assert_int_equal(onpolicy("/nonexistent", NULL, NULL, "10"), 2);
    assert_int_equal(onpolicy("x", NULL, NULL, "0"), 2);
    assert_int_equal(onpolicy("x", "--lora-rank", "0", "10"), 2);
    assert_int_equal(onpolicy("x", "--adapters", "0", "10"), 2);
    assert_int_equal(onpolicy("x", "--device", "tpu", "10"), 2);
    assert_int_equal(onpolicy("x", "extra", "words", "10"), 2);
    char *bare[] = {(char *)"selfcheck", (char *)"onpolicy", NULL};
    assert_int_equal(cmd_selfcheck(2, bare), 2);
}

static void test_bits_compare(void **state) {
    (void)state;
    const float a[] = {1, -2, 0.0f, NAN, 3, INFINITY};
    float b[ARRAY_LEN(a)];
    struct bits_tally t = {0};
    memcpy(b, a, sizeof b);
    bits_compare(&t, a, b, ARRAY_LEN(a));
    assert_true(t.n == 6 && t.differ == 0 && t.max_diff == 0); /* equal bits, NaN and infinity too */
    b[1] = nextafterf(b[1], 0);
    b[2] = -0.0f; /* equal as a number, not as bits */
    bits_compare(&t, a, b, ARRAY_LEN(a));
    assert_true(t.n == 12 && t.differ == 2 && t.max_diff == fabs((double)a[1] - (double)b[1]));
    b[4] = NAN;
    bits_compare(&t, a, b, ARRAY_LEN(a));
    assert_true(t.differ == 5 && isinf(t.max_diff));
}

static void test_usage(void **state) {
    (void)state;
    char *argv[] = {(char *)"selfcheck", NULL};
    assert_int_equal(cmd_selfcheck(1, argv), 2);
    assert_int_not_equal(check("/nonexistent"), 0);
    char *bad[] = {(char *)"selfcheck", (char *)"golden", (char *)"x", (char *)"--device", (char *)"tpu", NULL};
    assert_int_equal(cmd_selfcheck(5, bad), 2);
    assert_int_equal(cmd_selfcheck(4, bad), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),         cmocka_unit_test(test_measure),
                                       cmocka_unit_test(test_usage),          cmocka_unit_test(test_onpolicy),
                                       cmocka_unit_test(test_golden_codes),   cmocka_unit_test(test_golden_mixture),
                                       cmocka_unit_test(test_onpolicy_codes), cmocka_unit_test(test_onpolicy_usage),
                                       cmocka_unit_test(test_bits_compare)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
