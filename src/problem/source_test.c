/* Loaders: every kind of source, and errors that name file, line and column. */
#include "problem/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"

static struct err e;
static char dir[] = "/tmp/kernelrl_source_XXXXXX";
static const char module[] =
    "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    "def get_inputs():\n    return [torch.rand(4)]\n";

static const char *put(const char *name, const char *text) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *slash = strrchr(path, '/');
    *slash = 0;
    assert_int_equal(fs_mkdirs(path, &e), ST_OK);
    *slash = '/';
    assert_int_equal(fs_write_atomic(path, text, strlen(text), &e), ST_OK);
    return path;
}

static void flags_are(int level, int id, const char *name, const char *expected) {
    CLEANUP_STR struct str s = STR_INIT;
    problem_flags(&(struct problem){.key = name, .name = name, .level = level, .problem_id = id}, &s);
    assert_string_equal(str_c(&s), expected);
}

/* Known defects stand with their problem, not with whatever has its number. */
static void known_defects(void **state) {
    (void)state;
    flags_are(1, 23, "23_Softmax", "zeros_pass");
    flags_are(1, 23, "23_Softmax.py", "zeros_pass");
    flags_are(1, 100, "100_HingeLoss", "input_blind estimable large_inputs");
    flags_are(2, 66, "66_Matmul_Dropout_Softmax", "random");
    flags_are(2, 51, "51_Gemm_Subtract_GlobalAvgPool_LogSumExp_GELU_ResidualAdd", "shortcut");
    flags_are(4, 1, "1_EleutherAI-gpt-neo-2p7B_bs32_seq256", "integers");
    flags_are(1, 23, "23_something_else", "");
    flags_are(2, 23, "23_Softmax", "");
    flags_are(1, 1, "1_Square_matrix_multiplication_", "");
    flags_are(0, 0, "softmax", "");
}

static void must_load(const char *source, struct problem_set *s) {
    if (problem_set_load(source, s, &e) != ST_OK) fail_msg("%s", e.msg);
}
static void must_fail(const char *source, const char *text1, const char *text2) {
    struct problem_set s;
    assert_int_not_equal(problem_set_load(source, &s, &e), ST_OK);
    if (!strstr(e.msg, text1) || !strstr(e.msg, text2)) fail_msg("\"%s\" lacks \"%s\" or \"%s\"", e.msg, text1, text2);
}

static void one_file(void **state) {
    (void)state;
    struct problem_set s;
    must_load(put("one/19_ReLU.py", module), &s);
    assert_int_equal(s.count, 1);
    assert_string_equal(s.items[0].name, "19_ReLU");
    assert_int_equal(s.items[0].problem_id, 19);
    assert_string_equal(s.items[0].code, module);
    assert_null(s.items[0].ops);
    problem_set_free(&s);
    must_fail(put("one/20_Bad.py", "print('hello')\n"), "20_Bad.py", "class Model");
    must_fail("/nonexistent/x.py", "/nonexistent/x.py", "no such file");
    must_fail(put("one/x.txt", "x"), "x.txt", ".jsonl");
}

/* Sixteen times the batch, and nothing else, of every built-in problem; a module without that line stays as it is. */
static void enlarged(void **state) {
    (void)state;
    struct problem_set s, large;
    must_load("builtin", &s);
    must_load("builtin", &large);
    assert_int_equal(problem_set_enlarge(&large, 16), s.count);
    for (size_t i = 0; i < s.count; i++) {
        static const char *const names[] = {"\nbatch_size = ", "\nbatch = ", "\nnum_rows = "};
        const char *a = s.items[i].code, *b = large.items[i].code;
        size_t same = 0;
        while (a[same] && a[same] == b[same]) same++;
        const char *line = a + same; /* the first digit that differs, or a later one */
        while (line > a && line[-1] != '\n') line--;
        bool named = false;
        for (size_t k = 0; k < ARRAY_LEN(names); k++) named |= str_has_prefix(line, names[k] + 1);
        assert_true(named);
        const char *number = strchr(line, '=') + 1, *other = b + (number - a);
        char *a_end, *b_end;
        assert_int_equal(16 * strtoll(number, &a_end, 10), strtoll(other, &b_end, 10));
        assert_string_equal(a_end, b_end);
        assert_true(str_has_suffix(large.items[i].key, "@16"));
        assert_memory_equal(large.items[i].key, s.items[i].key, strlen(s.items[i].key));
    }
    assert_int_equal(problem_set_enlarge(&large, 1), 0);
    assert_int_equal(problem_set_enlarge(&large, INT64_C(1) << 31), 0); /* too large */
    problem_set_free(&s);
    problem_set_free(&large);
    must_load(put("one/19_ReLU.py", "class Model: pass\nrows = 4\nbatch_size = 4 * rows\ndef get_inputs(): pass\n"),
              &s);
    assert_int_equal(problem_set_enlarge(&s, 2), 0);
    problem_set_free(&s);
}

static void folder_tree(void **state) {
    (void)state;
    char root[200];
    struct problem_set s;
    put("kb/KernelBench/level2/10_B.py", module);
    put("kb/KernelBench/level1/2_A.py", module);
    put("kb/KernelBench/level1/10_C.py", module);
    put("kb/src/tool.py", "print()\n");
    snprintf(root, sizeof root, "%s/kb", dir);
    must_load(root, &s);
    assert_int_equal(s.count, 3);
    assert_string_equal(s.items[0].key, "level1/2_A");
    assert_string_equal(s.items[1].key, "level1/10_C"); /* by number, not by letter */
    assert_string_equal(s.items[2].key, "level2/10_B");
    assert_int_equal(s.items[2].level, 2);
    assert_ptr_equal(problem_find(&s, "level2/10_B"), &s.items[2]);
    assert_ptr_equal(problem_find(&s, "10_C"), &s.items[1]);
    assert_ptr_equal(problem_find(&s, "1/2"), &s.items[0]);
    assert_null(problem_find(&s, "3/2"));
    assert_null(problem_find(&s, "nothing"));
    problem_set_free(&s);
    /* the environment names the default source */
    assert_int_equal(setenv("KERNELBENCH_ROOT", root, 1), 0);
    must_load(NULL, &s);
    assert_int_equal(s.count, 3);
    problem_set_free(&s);
    must_load("builtin", &s);
    assert_true(s.count > 3);
    problem_set_free(&s);
    unsetenv("KERNELBENCH_ROOT");
    snprintf(root, sizeof root, "%s/none", dir);
    assert_int_equal(fs_mkdirs(root, &e), ST_OK);
    must_fail(root, "none", "no problems");
}

static void json_lines(void **state) {
    (void)state;
    struct problem_set s;
    must_load(put("ok.jsonl",
                  "{\"code\":\"class Model: pass\",\"level\":1,\"name\":\"3_X\",\"problem_id\":3}\n\n"
                  "{\"code\":\"class Model: pass\",\"level\":\"level_2\",\"name\":\"4_Y\",\"problem_id\":4,\"key\":"
                  "\"mine\",\"split\":\"test\",\"ops\":\"relu sum\",\"difficulty\":2}\n"),
              &s);
    assert_int_equal(s.count, 2);
    assert_string_equal(s.items[0].key, "level1/3_X");
    assert_int_equal(s.items[0].split, SPLIT_TRAIN);
    assert_int_equal(s.items[0].difficulty, 0);
    assert_string_equal(s.items[1].key, "mine");
    assert_int_equal(s.items[1].level, 2);
    assert_int_equal(s.items[1].split, SPLIT_TEST);
    assert_int_equal(s.items[1].difficulty, 2);
    assert_string_equal(s.items[1].ops, "relu sum");
    problem_set_free(&s);

    static const struct {
        const char *text, *where, *what;
    } bad[] = {
        {"{\"code\":\"class Model: pass\",\"level\":1,\"name\":\"a\",\"problem_id\":1}\n{\"code\":\"class "
         "Model\",\"level\":1,"
         "\"name\":\"b\"}\n",
         "bad.jsonl:2", "problem_id is missing"},
        {"{\"level\":1,\"name\":\"a\",\"problem_id\":1}\n", "bad.jsonl:1", "code is missing"},
        {"{\"code\":7,\"level\":1,\"name\":\"a\",\"problem_id\":1}\n", "bad.jsonl:1", "code"},
        {"{\"code\":\"class Model\",\"level\":-1,\"name\":\"a\",\"problem_id\":1}\n", "bad.jsonl:1", "level"},
        {"{\"code\":\"class Model\",\"level\":1,\"name\":\"a\",\"problem_id\":\"x\"}\n", "bad.jsonl:1", "problem_id"},
        {"{\"code\":\"def f(): pass\",\"level\":1,\"name\":\"a\",\"problem_id\":1}\n", "bad.jsonl:1", "class Model"},
        {"{\"code\":\"class Model\",\"level\":1,\"name\":\"a\",\"problem_id\":1,\"split\":\"dev\"}\n", "bad.jsonl:1",
         "train"},
        {"[1]\n", "bad.jsonl:1", "object"},
        {"{\"code\":\n", "bad.jsonl:1", ""},
        {"\n", "bad.jsonl", "no problems"},
        {"{\"code\":\"class Model\",\"level\":1,\"name\":\"a\",\"problem_id\":1}\n{\"code\":\"class "
         "Model\",\"level\":1,\"name\":\"a\",\"problem_id\":2}\n",
         "bad.jsonl", "level1/a"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) must_fail(put("bad.jsonl", bad[i].text), bad[i].where, bad[i].what);
}

static void builtin(void **state) {
    (void)state;
    struct problem_set s;
    must_load("builtin", &s);
    size_t tests[4] = {0}, all[4] = {0};
    for (size_t i = 0; i < s.count; i++) {
        const struct problem *p = &s.items[i];
        assert_in_range(p->level, 1, 3);
        assert_in_range(p->difficulty, 1, 3);
        assert_non_null(p->ops);
        assert_non_null(strstr(p->code, "def get_init_inputs("));
        all[p->level]++;
        tests[p->level] += p->split == SPLIT_TEST;
    }
    assert_true(s.count >= 100);
    assert_int_equal(tests[1] + tests[2] + tests[3], 48);
    for (int l = 1; l <= 3; l++) assert_true(tests[l] >= 10 && tests[l] < all[l]);
    problem_set_free(&s);
}

/* The whole public benchmark, where its rows are at hand. */
static void kernelbench_rows(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    for (int level = 1; level <= 3; level++) {
        char path[400];
        struct problem_set s;
        snprintf(path, sizeof path, "%s/kernelbench/level_%d.jsonl", data, level);
        must_load(path, &s);
        assert_true(s.count > 20);
        for (size_t i = 0; i < s.count; i++) assert_int_equal(s.items[i].level, level);
        problem_set_free(&s);
    }
}

static char python[300] = "python3"; /* KERNELRL_PYTHON where it is set */

static int run_python(const char *code, const char *argument) {
    int status;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(126);
        execlp(python, python, "-c", code, argument, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* A data set as huggingface_hub leaves it: one file a split, some of them compressed or in Parquet. */
static void folder_of_rows(void **state) {
    (void)state;
    struct problem_set s;
    char root[200];
    put("rows/data/train-00000-of-00001.jsonl",
        "{\"code\":\"class Model: pass\",\"level\":2,\"name\":\"1_A\",\"problem_id\":1}\n");
    put("rows/data/test-00000-of-00001.jsonl",
        "{\"code\":\"class Model: pass\",\"level\":1,\"name\":\"2_B\",\"problem_id\":2}\n"
        "{\"code\":\"class Model: pass\",\"level\":1,\"name\":\"1_C\",\"problem_id\":1,\"split\":\"train\"}\n");
    put("rows/.cache/x.jsonl", "not looked at");
    snprintf(root, sizeof root, "%s/rows", dir);
    must_load(root, &s);
    assert_int_equal(s.count, 3);
    assert_string_equal(s.items[0].key, "level1/1_C");
    assert_int_equal(s.items[0].split, SPLIT_TRAIN); /* its own word counts, not its file's */
    assert_int_equal(s.items[1].split, SPLIT_TEST);
    assert_int_equal(s.items[2].split, SPLIT_TRAIN);
    problem_set_free(&s);
    put("rows/data/bad.jsonl", "{}\n");
    must_fail(root, "rows/data/bad.jsonl:1", "code is missing");
}

static void no_pyarrow(void **state) {
    (void)state;
    const char *path = put("rows.parquet", "PAR1");
    setenv("KERNELRL_PYTHON", "/nonexistent/python", 1);
    must_fail(path, "rows.parquet", "pyarrow");
    char fake[200]; /* a Python without it ends with status 3 */
    snprintf(fake, sizeof fake, "%s/python", dir);
    assert_int_equal(fs_write_atomic(fake, "#!/bin/sh\nexit 3\n", 17, &e), ST_OK);
    assert_int_equal(chmod(fake, 0755), 0);
    setenv("KERNELRL_PYTHON", fake, 1);
    must_fail(path, fake, "pip install pyarrow");
    assert_int_equal(fs_write_atomic(fake, "#!/bin/sh\necho one >&2\necho two >&2\nexit 1\n", 42, &e), ST_OK);
    assert_int_equal(chmod(fake, 0755), 0);
    must_fail(path, "rows.parquet", "could not read it: two");
    unsetenv("KERNELRL_PYTHON");
}

static void parquet_rows(void **state) {
    (void)state;
    char path[200];
    if (run_python("import pyarrow.parquet", NULL) != 0) {
        printf("skipped: no Python with pyarrow (KERNELRL_PYTHON)\n");
        skip();
    }
    struct problem_set s;
    snprintf(path, sizeof path, "%s/parquet", dir);
    assert_int_equal(fs_mkdirs(path, &e), ST_OK);
    snprintf(path, sizeof path, "%s/parquet/level_1-00000-of-00001.parquet", dir);
    static const char write_rows[] =
        "import sys, pyarrow as a, pyarrow.parquet as q; q.write_table(a.table({'code': ['class Model:\\n  \\u00e9'] "
        "* 300, 'level': [1] * 300, 'name': [f'{i}_X' for i in range(300)], 'problem_id': list(range(300))}), "
        "sys.argv[1])";
    assert_int_equal(run_python(write_rows, path), 0);
    setenv("KERNELRL_PYTHON", python, 1);
    must_load(path, &s);
    assert_int_equal(s.count, 300);
    assert_string_equal(s.items[299].key, "level1/299_X");
    assert_string_equal(s.items[7].code, "class Model:\n  \xc3\xa9");
    problem_set_free(&s);
    snprintf(path, sizeof path, "%s/parquet", dir);
    must_load(path, &s);
    assert_int_equal(s.count, 300);
    problem_set_free(&s);
    must_fail(put("bad.parquet", "PAR1 and nothing more PAR1"), "bad.parquet", "could not read it");
    unsetenv("KERNELRL_PYTHON");
}

static int setup(void **state) {
    (void)state;
    unsetenv("KERNELBENCH_ROOT");
    const char *given = getenv("KERNELRL_PYTHON");
    if (given && *given) snprintf(python, sizeof python, "%s", given);
    unsetenv("KERNELRL_PYTHON");
    return mkdtemp(dir) ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_defects), cmocka_unit_test(one_file),       cmocka_unit_test(folder_tree),
        cmocka_unit_test(json_lines),    cmocka_unit_test(builtin),        cmocka_unit_test(kernelbench_rows),
        cmocka_unit_test(enlarged),      cmocka_unit_test(folder_of_rows), cmocka_unit_test(no_pyarrow),
        cmocka_unit_test(parquet_rows),
    };
    return cmocka_run_group_tests_name("problem sources", tests, setup, teardown);
}
