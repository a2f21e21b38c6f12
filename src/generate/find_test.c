/* A problem by the name that users and run directories have for it. */
#include "generate/find.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/home.h"
#include "generate/generator.h"

static struct err e;

/* Finds NAME in the built-in set and returns the problem; the set is the caller's to free. */
static const struct problem *find(struct problem_set *set, const char *source, const char *name) {
    const struct problem *p = NULL;
    if (problem_named(set, source, name, &p, &e) != ST_OK) fail_msg("%s: %s", name, e.msg);
    return p;
}

static void refuses(const char *source, const char *name, const char *what) {
    struct problem_set set = {0};
    const struct problem *p;
    assert_int_equal(problem_named(&set, source, name, &p, &e), ST_INVALID);
    if (strncmp(e.msg, name, strlen(name)) != 0 || !strstr(e.msg, what)) fail_msg("%s: %s", name, e.msg);
    problem_set_free(&set);
}

static void a_key_of_the_stream_makes_its_problem(void **state) {
    (void)state;
    struct problem_set set = {0};
    struct arena a = ARENA_INIT;
    struct generator *g;
    assert_int_equal(generator_open(NULL, &g, &e), ST_OK);
    for (uint64_t i = 0; i < 20; i++) {
        struct gen_item item;
        generator_make(g, 1000003, i * 1000, &a, &item);
        const struct problem *p = find(&set, NULL, item.problem.key);
        assert_string_equal(p->key, item.problem.key);
        assert_string_equal(p->code, item.problem.code);
        assert_string_equal(p->ops, item.problem.ops);
        assert_int_equal(p->difficulty, item.problem.difficulty);
        assert_int_equal(p->level, item.problem.level);
    }
    assert_null(set.items); /* no source was needed */
    generator_close(g);
    arena_free(&a);
    problem_set_free(&set);
}

static void one_set_serves_all_kinds(void **state) {
    (void)state;
    struct problem_set set = {0};
    const struct problem *small = find(&set, "builtin", "level1/1_ReLU"), *large = find(&set, "builtin", "1/1@3"),
                         *made = find(&set, "builtin", "generated/0_5"),
                         *also = find(&set, "builtin", "generated/0_5@2");
    assert_string_equal(small->key, "level1/1_ReLU");
    assert_string_equal(large->key, "level1/1_ReLU@3");
    assert_string_equal(also->key, "generated/0_5@2");
    assert_non_null(strstr(small->code, "num_rows = 1960\n"));
    assert_non_null(strstr(large->code, "num_rows = 5880\n"));
    assert_string_not_equal(made->code, also->code);
    assert_int_equal(made->problem_id, also->problem_id);
    assert_int_equal(set.count, 140); /* what is made for a name is none of the source's problems */
    problem_set_free(&set);
}

static void a_source_comes_first(void **state) {
    (void)state;
    char path[] = "/tmp/kernelrl_find_XXXXXX.jsonl";
    const int fd = mkstemps(path, 6);
    assert_true(fd >= 0);
    close(fd);
    static const char rows[] =
        "{\"code\": \"class Model: pass\", \"level\": 1, \"name\": \"a\", \"problem_id\": 1, \"key\": "
        "\"generated/0_5\"}\n"
        "{\"code\": \"class Model: 2\", \"level\": 1, \"name\": \"b\", \"problem_id\": 2, \"key\": \"b@7\"}\n";
    assert_int_equal(fs_write_atomic(path, rows, sizeof rows - 1, &e), ST_OK);
    struct problem_set set = {0};
    assert_string_equal(find(&set, path, "generated/0_5")->code, "class Model: pass");
    assert_string_equal(find(&set, path, "b@7")->code, "class Model: 2");
    assert_string_not_equal(find(&set, path, "generated/0_6")->code, "class Model: pass"); /* the stream's */
    problem_set_free(&set);
    refuses(path, "b@8", "did you mean b@7?");
    refuses(path, "1/1@2", "KEY@FACTOR is for built-in and generated problems");
    refuses("builtin", path, "expected one problem, found 2");
    unlink(path);
}

static void a_file_is_its_problem(void **state) {
    (void)state;
    struct problem_set set = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/problems/level1/3_GELU.py", home_dir());
    assert_string_equal(find(&set, "builtin", path)->name, "3_GELU");
    problem_set_free(&set);
}

static void what_is_no_problem_is_refused(void **state) {
    (void)state;
    refuses("builtin", "level1/1_Relu", "did you mean level1/1_ReLU?");
    refuses("builtin", "nothing like it", "no such file and no such problem");
    static const char *const none[] = {
        "generated/",    "generated/5",    "generated/1_",   "generated/_1",    "generated/-1_2",
        "generated/1_x", "generated/01_2", "generated/1_02", "generated/1_2_3", "generated/99999999999999999999_1"};
    for (size_t i = 0; i < ARRAY_LEN(none); i++) refuses(NULL, none[i], "expected generated/SEED_INDEX");
    refuses("builtin", "composed/3_Linear", "not made again by its key");
    refuses("builtin", "level1/1_ReLU@2000000000", "its batch cannot be 2000000000 times as large");
    refuses("builtin", "level1/1_ReLU@1", "did you mean level1/1_ReLU?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_of_the_stream_makes_its_problem),
        cmocka_unit_test(one_set_serves_all_kinds),
        cmocka_unit_test(a_source_comes_first),
        cmocka_unit_test(a_file_is_its_problem),
        cmocka_unit_test(what_is_no_problem_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
