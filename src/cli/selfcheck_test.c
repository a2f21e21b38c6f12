/* kernelrl selfcheck golden: passes on the golden models, fails when a number is off or unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/str.h"
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
    static const char *const name[] = {"qwen2_tied", "qwen3"};
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_usage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
