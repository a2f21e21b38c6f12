/* Tests of args: values of every type, what is refused and how, and help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/args.h"
#include "cli/cli.h"

enum colour { RED, GREEN, BLUE };

struct demo {
    bool json, fast, quiet, loud, exact;
    int small;
    int64_t large;
    uint64_t seed;
    double share;
    float part;
    const char *text, *word, *place;
    enum colour colour;
    int n_item;
    const char *item[4];
};

static enum status take_item(void *values, const char *text, struct err *e) {
    struct demo *d = values;
    if (!*text) return FAIL(e, ST_USAGE, "expected some text");
    d->item[d->n_item++] = text;
    return ST_OK;
}

static bool is_place(const char *text) { return strcmp(text, "here") == 0 || strcmp(text, "there") == 0; }

#define D struct demo
static const struct args_flag demo_flags[] = {
    FLAG_SECTION("Numbers"),
    FLAG_INT(D, small, "small", "N", 1, 100, "3", "A step is measured that many times.", .letter = 'n'),
    FLAG_INT(D, large, "large", "BYTES", -5, INT64_MAX, NULL, "The memory that may be taken.", .of = "run"),
    FLAG_INT(D, seed, "seed", "N", 0, INT64_MAX, "0", "Numbers are drawn from that stream."),
    FLAG_FLOAT(D, share, "share", "X", 0.25, 1, "0.5", "That share of the times is left out."),
    FLAG_FLOAT(D, part, "part", "X", 0, 2, NULL,
               "That part is taken, a sentence that is long enough to need a second "
               "line, on which it goes on below its own beginning."),
    FLAG_SECTION("One command's own"),
    FLAG_BOOL(D, fast, "fast", "It is fast.", .of = "run list"),
    FLAG_SECTION("What is done"),
    FLAG_TEXT(D, text, "output", "FILE", NULL, "The result is written there.", .letter = 'o', .alias = "out"),
    FLAG_TEXT(D, place, "place", "P", NULL, "It is done there.", .valid = is_place, .expected = "here or there"),
    FLAG_CHOICE(D, word, "word", "W", "fp32|bf16", "fp32", "Matrices are held in it."),
    FLAG_CHOICE(D, colour, "colour", "C", "red|green|blue", "red", "Curves are drawn in it."),
    FLAG_CHOICE(D, exact, "numerics", "HOW", "fast|exact", "fast", "Sums are made that way."),
    FLAG_CALL(take_item, "item", "TEXT", NULL, "An item is added.", .repeats = true),
    FLAG_BOOL(D, json, "json", "The result is one JSON object.", .letter = 'j'),
    FLAG_BOOL(D, quiet, "quiet", "Nothing is said.", .letter = 'q'),
    FLAG_NOT(D, loud, "not-loud", "The name is longer than the column of names, and its sentence stands below it."),
};
static const struct args_sub demo_subs[] = {
    {.name = "run", .words = "NAME...", .min = 1, .max = 2, .expected = "the NAME of a run", .help = "A run begins."},
    {.name = "list", .help = "Runs are listed."},
    {.name = "pass", .words = "NAME [ANYTHING]...", .min = 1, .max = -1, .help = "Others look at it.", .rest = true},
};
static const struct args_command demo = {
    .name = "demo",
    .usage = "run NAME... [FLAG]...\nlist [FLAG]...",
    .about = "It shows what a table can say.",
    .flags = demo_flags,
    .n_flags = ARRAY_LEN(demo_flags),
    .subs = demo_subs,
    .n_subs = ARRAY_LEN(demo_subs),
    .notes = "Exit status: 0.",
};
static const struct args_command words = {
    .name = "words", .usage = "[WORD]", .flags = demo_flags, .n_flags = ARRAY_LEN(demo_flags), .max_words = 1};
static const struct args_command keys = {.name = "keys",
                                         .usage = "[key=value]...",
                                         .flags = demo_flags,
                                         .n_flags = ARRAY_LEN(demo_flags),
                                         .max_words = -1,
                                         .keys = true};

static struct demo d;
static struct args a;
static char *argv_copy[24], line[512], said[4096];

/* Parses a line of blank-separated arguments, with standard output and error in `said`. */
static bool parse(const struct args_command *c, const char *text) {
    int argc = 0;
    char *rest = line;
    snprintf(line, sizeof line, "%s", text);
    d = (struct demo){.loud = true};
    for (char *one; (one = strsep(&rest, " "));) argv_copy[argc++] = one;
    argv_copy[argc] = NULL;
    FILE *f = tmpfile();
    assert_non_null(f);
    const int memory = fileno(f);
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    dup2(memory, STDOUT_FILENO);
    dup2(memory, STDERR_FILENO);
    const bool good = args_parse(c, argc, argv_copy, &d, &a);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    rewind(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    fclose(f);
    return good;
}

static void accepts(const struct args_command *c, const char *text) {
    if (!parse(c, text)) fail_msg("%s: %s", text, said);
    assert_string_equal(said, "");
}

/* The command ends with 2, the first line of what it says is `message`, and the usage follows. */
static void refuses(const struct args_command *c, const char *text, const char *message) {
    assert_false(parse(c, text));
    assert_int_equal(a.code, 2);
    char *end = strchr(said, '\n');
    assert_non_null(end);
    assert_true(str_has_prefix(end, "\nusage: kernelrl "));
    *end = 0;
    assert_string_equal(said, message);
}

static void values_of_every_type(void **state) {
    (void)state;
    accepts(&words,
            "words --small 7 --large=-5 --seed 9223372036854775807 --share 0.25 --part=2 --output= --word bf16");
    assert_int_equal(d.small, 7);
    assert_int_equal(d.large, -5);
    assert_true(d.seed == INT64_MAX);
    assert_true(d.share == 0.25 && d.part == 2.0f);
    assert_string_equal(d.text, "");
    assert_string_equal(d.word, "bf16");
    assert_true(d.loud);
    accepts(&words, "words --colour blue --numerics exact --json --not-loud --item a --item=b --item a");
    assert_int_equal(d.colour, BLUE);
    assert_true(d.exact && d.json && !d.loud && !d.quiet);
    assert_int_equal(d.n_item, 3);
    assert_string_equal(d.item[1], "b");
    assert_true(args_has(&words, &a, "item") && args_has(&words, &a, "json") && !args_has(&words, &a, "small"));
    accepts(&words, "words --numerics fast --colour red");
    assert_false(d.exact);
    accepts(&words, "words");
    assert_int_equal(a.n_words, 0);
}

static void spellings(void **state) {
    (void)state;
    accepts(&words, "words -n5 -jq -o x");
    assert_true(d.small == 5 && d.json && d.quiet);
    assert_string_equal(d.text, "x");
    accepts(&words, "words -jn 6 w --out y");
    assert_true(d.json && d.small == 6);
    assert_string_equal(d.text, "y");
    assert_int_equal(a.n_words, 1);
    assert_string_equal(a.word[0], "w");
    accepts(&words, "words --json -- --json");
    assert_string_equal(a.word[0], "--json");
    accepts(&words, "words -");
    assert_string_equal(a.word[0], "-");
    accepts(&words, "words --output --json"); /* what follows is the value, whatever it looks like */
    assert_string_equal(d.text, "--json");
    assert_false(d.json);
    accepts(&words, "words --small 7 --small 7 --json --json"); /* the same once more says nothing new */
}

static void what_is_refused(void **state) {
    (void)state;
    refuses(&words, "words --small x", "kernelrl: --small: expected a whole number from 1 to 100, got \"x\"");
    refuses(&words, "words --small 0", "kernelrl: --small: expected a whole number from 1 to 100, got \"0\"");
    refuses(&words, "words -n 101", "kernelrl: --small: expected a whole number from 1 to 100, got \"101\"");
    refuses(&words, "words --small 5.0", "kernelrl: --small: expected a whole number from 1 to 100, got \"5.0\"");
    refuses(&words, "words --small=", "kernelrl: --small: expected a whole number from 1 to 100, got \"\"");
    refuses(&words, "words --small", "kernelrl: --small: expected a whole number from 1 to 100, got nothing");
    refuses(&words, "words --large -6", "kernelrl: --large: expected a whole number of at least -5, got \"-6\"");
    refuses(&words, "words --share 0.2", "kernelrl: --share: expected a number from 0.25 to 1, got \"0.2\"");
    refuses(&words, "words --share nan", "kernelrl: --share: expected a number from 0.25 to 1, got \"nan\"");
    refuses(&words, "words --colour pink", "kernelrl: --colour: expected red, green or blue, got \"pink\"");
    refuses(&words, "words --colour re", "kernelrl: --colour: expected red, green or blue, got \"re\"");
    refuses(&words, "words --colour red|green", "kernelrl: --colour: expected red, green or blue, got \"red|green\"");
    refuses(&words, "words --output", "kernelrl: --output: expected FILE, got nothing");
    refuses(&words, "words --place=no", "kernelrl: --place: expected here or there, got \"no\"");
    refuses(&words, "words --place", "kernelrl: --place: expected here or there, got nothing");
    refuses(&words, "words --item=", "kernelrl: --item: expected some text");
    refuses(&words, "words --json=1", "kernelrl: --json: takes no value, got \"1\"");
    refuses(&words, "words --smal 3", "kernelrl: words: unknown flag --smal; did you mean --small?");
    refuses(&words, "words --outt=3", "kernelrl: words: unknown flag --outt; did you mean --out?");
    refuses(&words, "words --hlep", "kernelrl: words: unknown flag --hlep; did you mean --help?");
    refuses(&words, "words --frobnicate", "kernelrl: words: unknown flag --frobnicate");
    refuses(&words, "words -jx", "kernelrl: words: unknown flag -x");
    refuses(&words, "words --small 3 -n 4", "kernelrl: --small: given twice, as \"3\" and as \"4\"");
    refuses(&words, "words a b", "kernelrl: words: unexpected argument \"b\"");
}

static void subcommands(void **state) {
    (void)state;
    accepts(&demo, "demo --json run a --large 3 b");
    assert_string_equal(a.sub->name, "run");
    assert_int_equal(a.n_words, 2);
    assert_string_equal(a.word[1], "b");
    accepts(&demo, "demo pass --json a --json=1 --bogus --help");
    assert_int_equal(a.n_words, 4);
    assert_string_equal(a.word[3], "--help");
    assert_true(d.json);
    refuses(&demo, "demo", "kernelrl: demo: expected run, list or pass");
    refuses(&demo, "demo lst", "kernelrl: demo: unknown command \"lst\"; did you mean \"list\"?");
    refuses(&demo, "demo frobnicate", "kernelrl: demo: expected run, list or pass, got \"frobnicate\"");
    refuses(&demo, "demo run", "kernelrl: demo run: expected the NAME of a run");
    refuses(&demo, "demo run a b c", "kernelrl: demo run: expected the NAME of a run");
    refuses(&demo, "demo pass", "kernelrl: demo pass: expected NAME [ANYTHING]...");
    refuses(&demo, "demo list a", "kernelrl: demo: unexpected argument \"a\"");
    refuses(&demo, "demo list --large 3", "kernelrl: demo: --large means nothing to list; it is for run");
}

/* A command with keys beside its flags gets back what it does not know, in order. */
static void keys_are_left(void **state) {
    (void)state;
    accepts(&keys, "keys --config f --small 3 lr=1 --lr 2 -x --json");
    assert_true(d.small == 3 && d.json);
    const char *const left[] = {"--config", "f", "lr=1", "--lr", "2", "-x"};
    assert_int_equal(a.n_words, ARRAY_LEN(left));
    for (size_t i = 0; i < ARRAY_LEN(left); i++) assert_string_equal(a.word[i], left[i]);
}

static void help_of_a_table(void **state) {
    (void)state;
    static const char want[] =
        "usage: kernelrl demo run NAME... [FLAG]...\n"
        "       kernelrl demo list [FLAG]...\n"
        "\n"
        "It shows what a table can say.\n"
        "\n"
        "Commands:\n"
        "  run NAME...               A run begins.\n"
        "  list                      Runs are listed.\n"
        "  pass NAME [ANYTHING]...   Others look at it.\n"
        "\n"
        "Numbers:\n"
        "  -n, --small N             A step is measured that many times (1 to 100; default 3).\n"
        "  --large BYTES             The memory that may be taken (at least -5; for run).\n"
        "  --seed N                  Numbers are drawn from that stream (default 0).\n"
        "  --share X                 That share of the times is left out (0.25 to 1; default 0.5).\n"
        "  --part X                  That part is taken, a sentence that is long enough to need a second\n"
        "                            line, on which it goes on below its own beginning (0 to 2).\n"
        "\n"
        "One command's own, for run or list:\n"
        "  --fast                    It is fast.\n"
        "\n"
        "What is done:\n"
        "  -o, --output, --out FILE  The result is written there.\n"
        "  --place P                 It is done there.\n"
        "  --word W                  Matrices are held in it (fp32 or bf16; default fp32).\n"
        "  --colour C                Curves are drawn in it (red, green or blue; default red).\n"
        "  --numerics HOW            Sums are made that way (fast or exact; default fast).\n"
        "  --item TEXT               An item is added (may be repeated).\n"
        "  -j, --json                The result is one JSON object.\n"
        "  -q, --quiet               Nothing is said.\n"
        "  --not-loud                The name is longer than the column of names, and its sentence stands\n"
        "                            below it.\n"
        "\n"
        "Exit status: 0.\n";
    static const char *const asks[] = {"demo --help", "demo -h", "demo list --json --help", "demo -jh"};
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        assert_false(parse(&demo, asks[i]));
        assert_int_equal(a.code, 0);
        assert_string_equal(said, want);
    }
}

/* Every flag stands in its own help; lines are short, and end in no blank; no letter or name is there twice. */
static void check_table(const struct args_command *c) {
    CLEANUP_STR struct str help = STR_INIT;
    args_help(c, &help);
    for (size_t i = 0; i < c->n_flags; i++) {
        const struct args_flag *f = &c->flags[i];
        CLEANUP_STR struct str label = STR_INIT;
        str_adds(&label, "\n  ");
        if (f->type == ARGS_SECTION) continue;
        args_flag_label(f, &label);
        if (!strstr(help.p, label.p)) fail_msg("%s: no help of%s", c->name, label.p);
        if (f->help[strlen(f->help) - 1] != '.') fail_msg("%s:%s: no sentence: %s", c->name, label.p, f->help);
        for (size_t k = 0; k < i; k++) {
            const struct args_flag *g = &c->flags[k];
            if (g->type == ARGS_SECTION) continue;
            assert_false(f->letter && f->letter == g->letter);
            assert_false(f->name && g->name && strcmp(f->name, g->name) == 0);
        }
    }
    for (const char *p = help.p, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end);
        if (end - p > ARGS_COLUMNS) fail_msg("%s: %.*s: over %d columns", c->name, (int)(end - p), p, ARGS_COLUMNS);
        if (end > p && end[-1] == ' ') fail_msg("%s: a blank at the end: %.*s", c->name, (int)(end - p), p);
    }
    for (size_t i = 0; c->more && c->more[i]; i++) check_table(c->more[i]);
}

static void every_command(void **state) {
    (void)state;
    check_table(&demo);
#define X(name, table) check_table(&table);
    COMMAND_TABLES(X)
#undef X
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_type), cmocka_unit_test(spellings),     cmocka_unit_test(what_is_refused),
        cmocka_unit_test(subcommands),          cmocka_unit_test(keys_are_left), cmocka_unit_test(help_of_a_table),
        cmocka_unit_test(every_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
