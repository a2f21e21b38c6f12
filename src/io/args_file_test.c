/* Flags from a YAML file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/args_file.h"

struct demo {
    int64_t max_queue;
    double wait;
    bool open;
    const char *name, *config;
    int n_keys;
    const char *keys[4];
};

static enum status take_key(void *values, const char *text, struct err *e) {
    struct demo *d = values;
    if (d->n_keys == 4) return FAIL(e, ST_USAGE, "too many");
    d->keys[d->n_keys++] = text;
    return ST_OK;
}

#define D struct demo
static const struct args_flag flags[] = {
    FLAG_SECTION("All"),
    FLAG_INT(D, max_queue, "max-queue", "N", 1, 100, "5", "Some wait."),
    FLAG_FLOAT(D, wait, "wait", "S", 0, 10, "1", "So long."),
    FLAG_BOOL(D, open, "open", "It is open."),
    FLAG_TEXT(D, name, "name", "NAME", NULL, "A name."),
    FLAG_TEXT(D, config, "config", "FILE", NULL, "A file."),
    FLAG_CALL(take_key, "key", "KEY", NULL, "A key.", .repeats = true),
};
#undef D
static const struct args_command command = {
    .name = "demo", .usage = "[FLAG]...", .flags = flags, .n_flags = ARRAY_LEN(flags)};

static char path[64];

static void write_file(const char *text) {
    snprintf(path, sizeof path, "/tmp/args_file_test.%d", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The values of a command line with that file. */
static struct demo with(const char *text, int argc, const char *const *words, struct args_file *file) {
    struct demo d = {.max_queue = 5};
    struct args given;
    struct err e = {0};
    write_file(text);
    char *argv[8] = {(char *)(uintptr_t) "demo"};
    for (int i = 0; i < argc; i++) argv[i + 1] = (char *)(uintptr_t)words[i];
    assert_true(args_parse(&command, argc + 1, argv, &d, &given));
    if (args_file_load(&command, path, &given, argc + 1, argv, file, &e) != ST_OK) fail_msg("%s", e.msg);
    d = (struct demo){.max_queue = 5};
    assert_true(args_parse(&command, file->argc, file->argv, &d, &given));
    remove(path);
    return d;
}

static void test_values(void **state) {
    (void)state;
    struct args_file file;
    struct demo d = with("max_queue: 7\nwait: 0.5\nopen: true\nname: \"a b\"\nkey: [x, y]\n", 0, NULL, &file);
    assert_true(d.max_queue == 7 && d.wait == 0.5 && d.open && strcmp(d.name, "a b") == 0);
    assert_true(d.n_keys == 2 && strcmp(d.keys[1], "y") == 0);
    args_file_free(&file);
    d = with("open: false\n", 0, NULL, &file);
    assert_true(!d.open && d.max_queue == 5);
    args_file_free(&file);
}

static void test_command_line_wins(void **state) {
    (void)state;
    struct args_file file;
    const char *const words[] = {"--max-queue", "9", "--key", "z", "--name=c"};
    const struct demo d = with("max_queue: 7\nname: a\nkey: x\n", 5, words, &file);
    assert_true(d.max_queue == 9 && strcmp(d.name, "c") == 0);
    assert_true(d.n_keys == 2 && strcmp(d.keys[0], "x") == 0 && strcmp(d.keys[1], "z") == 0);
    args_file_free(&file);
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {{"max_queu: 7\n", ":1:1: unknown key \"max_queu\"; did you mean \"max_queue\""},
                 {"name: a\nname: b\n", "name"},
                 {"open: 5\n", ":1:7: open: expected"},
                 {"name: [a]\n", "name"},
                 {"config: x\n", "unknown key \"config\""},
                 {"name: {a: b}\n", "name"}};
    const struct args none = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct args_file file;
        struct err e = {0};
        char *argv[] = {(char *)(uintptr_t) "demo", NULL};
        write_file(cases[i].text);
        assert_int_equal(args_file_load(&command, path, &none, 1, argv, &file, &e), ST_CONFIG);
        if (!strstr(e.msg, cases[i].said)) fail_msg("%s: %s", cases[i].text, e.msg);
        args_file_free(&file);
        remove(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_command_line_wins),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
