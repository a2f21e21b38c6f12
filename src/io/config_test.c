#include "io/config.h"

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

#define DEMO_LOSSES(X) X(DEMO_GRPO, grpo) X(DEMO_RLOO, rloo) X(DEMO_PPO, ppo)
#define DEMO_FALLBACKS(X) X(DEMO_A, a) X(DEMO_B, b)
enum demo_loss { CHOICE_ENUM(DEMO_LOSSES) };
struct demo {
    double learning_rate;
    int64_t batch_size;
    int loss;
    bool save;
    const char *model_name;
    const char *note;
    int64_t limit;
    double top;
    int fallback;
    struct config_strings tags;
    struct { /* as who uses the values has them */
        int before, trials, after;
        enum demo_loss kind;
    } part;
    struct {
        int64_t level;
        const char *backend;
        struct {
            double speed;
        } reward;
    } dataset_builder;
    struct {
        int64_t level, turns;
    } multiturn_dataset_builder;
};

static const struct config_key demo_keys[] = {
    KEY_FLOAT(struct demo, learning_rate, "1e-5", "(0,)", "Step size of Adam."),
    KEY_INT(struct demo, batch_size, "8", "[1,4096]", "Problems a step."),
    KEY_CHOICE(struct demo, loss, DEMO_LOSSES, "grpo", "The loss."),
    KEY_BOOL(struct demo, save, "true", "Whether to save."),
    KEY_STRING(struct demo, model_name, "Qwen/Qwen3-0.6B", "Checkpoint."),
    KEY_STRING_OPT(struct demo, note, "null", "Free text."),
    KEY_INT_OPT(struct demo, limit, "null", "[1,)", "Stop after so many steps."),
    KEY_FLOAT_OPT(struct demo, top, "0.5", "[0,1)", "Some share."),
    KEY_CHOICE_OPT(struct demo, fallback, DEMO_FALLBACKS, "null", "Some choice."),
    KEY_STRINGS(struct demo, tags, "x, y", "Some words."),
    KEY_INT_AT(struct demo, "trials", part.trials, "3", "[-5,100]", "Trials of a part."),
    KEY_CHOICE_AT(struct demo, "part_loss", part.kind, DEMO_LOSSES, "rloo", "The loss of a part."),
    KEY_INT(struct demo, dataset_builder.level, "1", "[1,4]", "KernelBench level."),
    KEY_STRING(struct demo, dataset_builder.backend, "triton", "Backend."),
    KEY_INT(struct demo, multiturn_dataset_builder.level, "2", "[1,4]", "KernelBench level."),
    KEY_FLOAT(struct demo, dataset_builder.reward.speed, "1", "[0,10]", "Weight of speed."),
    KEY_INT(struct demo, multiturn_dataset_builder.turns, "4", "[1,)", "Turns."),
};
static const struct config_alias demo_aliases[] = {
    {"bs", "batch_size", false, "Short."},
    {"dataset_builder.hosted", NULL, true, "There is no hosted service here."},
    {"dataset_builder.shards", NULL, false, "Everything is one shard."},
};
static const struct config_schema schema = {.key = demo_keys,
                                            .count = ARRAY_LEN(demo_keys),
                                            .values_bytes = sizeof(struct demo),
                                            .alias = demo_aliases,
                                            .alias_count = ARRAY_LEN(demo_aliases)};

static struct demo v;
static struct config c;
static struct err e;

static int setup(void **state) {
    (void)state;
    config_init(&c, &schema, &v);
    e = (struct err){0};
    return 0;
}

static int teardown(void **state) {
    (void)state;
    config_free(&c);
    return 0;
}

static enum status load(const char *text) { return config_load_text(&c, "x.yaml", text, strlen(text), &e); }

static void defaults(void **state) {
    (void)state;
    assert_true(v.learning_rate == 1e-5);
    assert_int_equal(v.batch_size, 8);
    assert_int_equal(v.loss, DEMO_GRPO);
    assert_true(v.save);
    assert_string_equal(v.model_name, "Qwen/Qwen3-0.6B");
    assert_null(v.note);
    assert_true(v.limit == CONFIG_UNSET_INT);
    assert_true(v.top == 0.5);
    assert_int_equal(v.fallback, CONFIG_UNSET_ENUM);
    assert_int_equal(v.tags.count, 2);
    assert_string_equal(v.tags.item[1], "y");
    assert_int_equal(v.multiturn_dataset_builder.level, 2);
    assert_string_equal(config_source(&c, "loss"), "default");
}

static void loads_yaml(void **state) {
    (void)state;
    assert_int_equal(load("# a comment\n"
                          "learning_rate: 2.5e-4\n"
                          "loss: rloo\n"
                          "save: False\n"
                          "note: \"null\"\n"
                          "limit: 7\n"
                          "top: ~\n"
                          "fallback: b\n"
                          "tags: [one, 'two, three']\n"
                          "dataset_builder:\n"
                          "  level: 3\n"
                          "  backend: 'c'   # native\n"
                          "  reward: {speed: 0.25}\n"
                          "multiturn_dataset_builder.turns: 9\n"),
                     ST_OK);
    assert_true(v.learning_rate == 2.5e-4);
    assert_int_equal(v.loss, DEMO_RLOO);
    assert_false(v.save);
    assert_string_equal(v.note, "null");
    assert_int_equal(v.limit, 7);
    assert_true(isnan(v.top));
    assert_int_equal(v.fallback, 1);
    assert_int_equal(v.tags.count, 2);
    assert_string_equal(v.tags.item[1], "two, three");
    assert_int_equal(v.dataset_builder.level, 3);
    assert_string_equal(v.dataset_builder.backend, "c");
    assert_true(v.dataset_builder.reward.speed == 0.25);
    assert_int_equal(v.multiturn_dataset_builder.turns, 9);
    assert_int_equal(v.multiturn_dataset_builder.level, 2);
    assert_string_equal(config_source(&c, "dataset_builder.level"), "x.yaml:11:10");
    /* A null takes an optional back; comments alone and nothing at all are fine. */
    assert_int_equal(load("limit: null\nnote:\ndataset_builder:\n"), ST_OK);
    assert_true(v.limit == CONFIG_UNSET_INT);
    assert_null(v.note);
    assert_int_equal(load("# ''''\nnote: 'it''s '' ''it'''\ntags: ['''', \"''''\"]\n"), ST_OK);
    assert_string_equal(v.note, "it's ' 'it'");
    assert_string_equal(v.tags.item[0], "'");
    assert_string_equal(v.tags.item[1], "''''");
    assert_int_equal(load("# nothing\n"), ST_OK);
    assert_int_equal(load(""), ST_OK);
    assert_int_equal(load("save: off\n"), ST_OK);
    assert_false(v.save);
    assert_int_equal(load("save: 'on'\n"), ST_OK);
    assert_true(v.save);
}

/* Every mistake with the message it must give (its beginning) and the values untouched. */
static void yaml_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"# c\n\nlearning_rate: fast\n", "x.yaml:3:16: learning_rate: expected a number > 0, got \"fast\"\n"
                                         "     3 | learning_rate: fast\n"
                                         "       |                ^"},
        {"learning_rate: 0\n", "x.yaml:1:16: learning_rate: expected a number > 0, got \"0\""},
        {"learning_rate: .nan\n", "x.yaml:1:16: learning_rate: expected a number > 0, got \".nan\""},
        {"learning_rate: nan\n", "x.yaml:1:16: learning_rate: expected a number > 0, got \"nan\""},
        {"batch_size: 2.5\n", "x.yaml:1:13: batch_size: expected a whole number from 1 to 4096, got \"2.5\""},
        {"batch_size: 4097\n", "x.yaml:1:13: batch_size: expected a whole number from 1 to 4096, got \"4097\""},
        {"batch_size: 99999999999999999999\n", "x.yaml:1:13: batch_size: expected a whole number"},
        {"batch_size: [1]\n", "x.yaml:1:"},
        {"batch_size: {a: 1}\n", "x.yaml:1:1: batch_size: expected a whole number from 1 to 4096, got a map"},
        {"loss: gRPO\n", "x.yaml:1:7: loss: expected one of grpo, rloo, ppo, got \"gRPO\""},
        {"loss: gr\n", "x.yaml:1:7: loss: expected one of"},
        {"save: yes please\n", "x.yaml:1:7: save: expected true or false, got \"yes please\""},
        {"limit: 0\n", "x.yaml:1:8: limit: expected a whole number >= 1, or null, got \"0\""},
        {"top: 1\n", "x.yaml:1:6: top: expected a number >= 0 and < 1, or null, got \"1\""},
        {"learning_rte: 1\n", "x.yaml:1:1: unknown key \"learning_rte\"; did you mean \"learning_rate\"?"},
        {"dataset_builder:\n  lvl: 1\n", "x.yaml:2:3: unknown key \"dataset_builder.lvl\""},
        {"backend: c\n", "x.yaml:1:1: unknown key \"backend\"; did you mean \"dataset_builder.backend\"?"},
        {"zzzzzzzz: 1\n", "x.yaml:1:1: unknown key \"zzzzzzzz\"\n"},
        {"dataset_builder: 3\n", "x.yaml:1:18: dataset_builder: expected a map of keys"},
        {"tags: [a, [b]]\n", "x.yaml:1:1: tags: expected a list of texts, got a list with something else in it"},
        {"batch_size: 1\nbatch_size: 2\n", "x.yaml:2:1: "},
        {"dataset_builder.level: 1\ndataset_builder: {level: 2}\n",
         "x.yaml:2:26: dataset_builder.level: given twice in this file"},
        {"- a\n- b\n", "x.yaml: expected a map of keys at the top level"},
        {"batch_size: 1\n---\nbatch_size: 2\n", "x.yaml: expected one YAML document, found more"},
        {"batch_size: &a 1\nlimit: *a\n", "x.yaml:2:"},
        {"loss: [grpo\n", "x.yaml:"},
        {"batch_size: 1\n\tloss: grpo\n", "x.yaml:1:13: invalid multiline plain key\n     1 | batch_size: 1\n"},
        {"loss: ppo\nnote: \xff\n", "x.yaml:2:7: expected UTF-8 text, got byte 0xff"},
        {"loss: ppo\x01\n", "x.yaml:1:10: expected UTF-8 text, got byte 0x01"},
        {"%:\361\n", "x.yaml:1:3: expected UTF-8 text, got byte 0xf1"},
        {"loss: ppo\nnote: 'a''''b'\n",
         "x.yaml:2:7: several quotes side by side within single quotes: use double quotes\n"
         "     2 | note: 'a''''b'\n       |       ^"},
        {"note: 'a''\n  ''b'\n", "x.yaml:1:7: several quotes side by side within single quotes: use double quotes"},
        {"note: \"a\\0b\"\n", "x.yaml:1:7: note: expected text, or null, got text with a NUL byte"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        teardown(NULL);
        setup(NULL);
        assert_int_equal(load(cases[i].text), ST_CONFIG);
        if (!str_has_prefix(e.msg, cases[i].message))
            fail_msg("case %zu: got: %s\nwant: %s", i, e.msg, cases[i].message);
        assert_true(v.learning_rate == 1e-5);
    }
}

static void sets_from_arguments(void **state) {
    (void)state;
    assert_int_equal(config_set(&c, "level=3", &e), ST_OK); /* dataset_builder's, never the multi-turn copy */
    assert_int_equal(v.dataset_builder.level, 3);
    assert_int_equal(v.multiturn_dataset_builder.level, 2);
    assert_int_equal(config_set(&c, "reward.speed=2", &e), ST_OK);
    assert_true(v.dataset_builder.reward.speed == 2);
    assert_int_equal(config_set(&c, "multiturn_dataset_builder.level=4", &e), ST_OK);
    assert_int_equal(v.multiturn_dataset_builder.level, 4);
    assert_int_equal(config_set(&c, "note=a=b", &e), ST_OK); /* split at the first = */
    assert_string_equal(v.note, "a=b");
    assert_int_equal(config_set(&c, "note=None", &e), ST_OK);
    assert_null(v.note);
    assert_int_equal(config_set(&c, "note=", &e), ST_OK);
    assert_string_equal(v.note, "");
    assert_int_equal(config_set(&c, "tags=[p, q r ,s]", &e), ST_OK);
    assert_int_equal(v.tags.count, 3);
    assert_string_equal(v.tags.item[1], "q r");
    assert_int_equal(config_set(&c, "tags=", &e), ST_OK);
    assert_int_equal(v.tags.count, 0);
    assert_string_equal(config_source(&c, "tags"), "command line");

    assert_int_equal(config_set(&c, "turns=3", &e), ST_CONFIG); /* only in the multi-turn section */
    assert_string_equal(e.msg,
                        "command line: unknown key \"turns\"; did you mean \"multiturn_dataset_builder.turns\"?");
    assert_int_equal(config_set(&c, "batch_size=many", &e), ST_CONFIG);
    assert_string_equal(e.msg, "command line: batch_size: expected a whole number from 1 to 4096, got \"many\"");
    assert_int_equal(config_set(&c, "batch_size", &e), ST_CONFIG);
    assert_int_equal(config_set(&c, "=3", &e), ST_CONFIG);
    assert_int_equal(v.batch_size, 8);
}

static void parses_argument_lists(void **state) {
    (void)state;
    char dir[] = "/tmp/kernelrl_config_XXXXXX", file[64], flag[80];
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/a.yaml", dir);
    snprintf(flag, sizeof flag, "--config=%s", file);
    assert_int_equal(fs_write_atomic(file, "batch_size: 5\nloss: ppo\n", 24, &e), ST_OK);
    char *args[] = {"batch_size=6",   "--learning-rate", "0.5",    flag,  "--save",
                    "--model-name=m", "batch_size=7",    "--loss", "rloo"};
    assert_int_equal(config_args(&c, ARRAY_LEN(args), args, &e), ST_OK);
    assert_int_equal(v.batch_size, 7); /* the last one wins, and files come first wherever they stand */
    assert_int_equal(v.loss, DEMO_RLOO);
    assert_true(v.learning_rate == 0.5);
    assert_true(v.save);
    assert_string_equal(v.model_name, "m");
    char *off[] = {"--save", "false", "--level", "2"};
    assert_int_equal(config_args(&c, ARRAY_LEN(off), off, &e), ST_OK);
    assert_false(v.save);
    assert_int_equal(v.dataset_builder.level, 2);

    char *bad[][2] = {{"--nonsense", "1"}, {"loose", "x=1"}, {"--loss", NULL}, {"--config", NULL}};
    static const enum status code[] = {ST_CONFIG, ST_USAGE, ST_USAGE, ST_USAGE};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(config_args(&c, bad[i][1] ? 2 : 1, bad[i], &e), code[i]);
    char *missing[] = {"--config", "/nonexistent/x.yaml"};
    assert_int_equal(config_args(&c, 2, missing, &e), ST_IO);
    assert_non_null(strstr(e.msg, "/nonexistent/x.yaml"));
    assert_int_equal(fs_remove(dir, &e), ST_OK);
}

static void dump_loads_again(void **state) {
    (void)state;
    assert_int_equal(load("note: \"it's: #1\\n\\u00e9 - [x]\"\nlearning_rate: 0.1\ntop: null\nlimit: 12\n"
                          "tags: ['a, b', \"c\\\"\", '']\nfallback: a\nmodel_name: 'null'\nloss: ppo\n"
                          "dataset_builder: {reward: {speed: 0.30000000000000004}}\n"),
                     ST_OK);
    CLEANUP_STR struct str first = STR_INIT, second = STR_INIT;
    config_dump(&c, &first);
    struct demo w;
    struct config d;
    config_init(&d, &schema, &w);
    if (config_load_text(&d, "dump.yaml", first.p, first.len, &e) != ST_OK) fail_msg("%s", e.msg);
    config_dump(&d, &second);
    assert_string_equal(str_c(&first), str_c(&second));
    assert_string_equal(w.note, v.note);
    assert_true(w.dataset_builder.reward.speed == 0.30000000000000004);
    assert_true(isnan(w.top));
    assert_int_equal(w.tags.count, 3);
    assert_string_equal(w.tags.item[0], "a, b");
    assert_string_equal(w.model_name, "null");
    /* A section is opened once though another key stands between its keys. */
    assert_null(strstr(strstr(str_c(&first), "\ndataset_builder:\n") + 1, "\ndataset_builder:\n"));
    config_free(&d);
}

static void help_and_reject(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    assert_int_equal(config_help(&schema, "level", &out, &e), ST_OK);
    assert_string_equal(str_c(&out), "dataset_builder.level: a whole number from 1 to 4; default 1\n"
                                     "    KernelBench level.\n");
    str_clear(&out);
    assert_int_equal(config_help(&schema, "multiturn_dataset_builder", &out, &e), ST_OK);
    assert_non_null(strstr(str_c(&out), "multiturn_dataset_builder.turns"));
    assert_null(strstr(str_c(&out), "learning_rate"));
    str_clear(&out);
    assert_int_equal(config_help(&schema, NULL, &out, &e), ST_OK);
    assert_non_null(strstr(str_c(&out), "learning_rate: a number > 0; default 1e-5\n"));
    const char *heading = strstr(str_c(&out), "\nKeys of dataset_builder:\n\n"); /* its keys stand below it */
    assert_true(str_has_prefix(str_c(&out), "Keys of the top level:\n\n") && heading);
    assert_non_null(strstr(heading, "\ndataset_builder.level: "));
    assert_null(strstr(heading, "\nlearning_rate: "));
    assert_int_equal(config_help(&schema, "lrning_rate", &out, &e), ST_CONFIG);
    assert_non_null(strstr(e.msg, "did you mean \"learning_rate\"?"));

    assert_int_equal(load("batch_size: 9\n"), ST_OK);
    assert_int_equal(config_reject(&c, "batch_size", &e, "must be even, got %d", 9), ST_CONFIG);
    assert_string_equal(e.msg, "x.yaml:1:13: batch_size: must be even, got 9");
}

#define MARKDOWN_HEAD "| key | values | default | meaning |\n|---|---|---|---|\n"

/* Topics gather keys that stand apart, in each section for itself; keys in front of the first one come first. */
static void topics(void **state) {
    (void)state;
    struct values {
        int64_t a, b, c, d;
        struct {
            int64_t e, f;
        } part;
    };
    static const struct config_key keys[] = {
        KEY_INT(struct values, a, "1", NULL, "First."),      KEY_INT(struct values, b, "1", NULL, "Second."),
        KEY_INT(struct values, part.e, "1", NULL, "Inner."), KEY_INT(struct values, c, "1", NULL, "Third."),
        KEY_INT(struct values, d, "1", NULL, "Fourth."),     KEY_INT(struct values, part.f, "1", NULL, "Last."),
    };
    static const struct config_topic all[] = {{"b", "One"}, {"c", "Two"}, {"d", "One"}, {"part.f", "One"}};
    const struct config_schema s = {
        .key = keys, .count = ARRAY_LEN(keys), .values_bytes = sizeof(struct values), .topic = all, .topic_count = 4};
    CLEANUP_STR struct str out = STR_INIT;
    assert_int_equal(config_help(&s, NULL, &out, &e), ST_OK);
    assert_string_equal(str_c(&out), "Keys of the top level:\n\n"
                                     "a: a whole number; default 1\n    First.\n"
                                     "\n  One\n\n"
                                     "b: a whole number; default 1\n    Second.\n"
                                     "d: a whole number; default 1\n    Fourth.\n"
                                     "\n  Two\n\n"
                                     "c: a whole number; default 1\n    Third.\n"
                                     "\nKeys of part:\n\n"
                                     "part.e: a whole number; default 1\n    Inner.\n"
                                     "\n  One\n\n"
                                     "part.f: a whole number; default 1\n    Last.\n");
    /* The same as Markdown, without the keys that another schema has. */
    const struct config_schema other = {.key = keys + 1, .count = 2, .values_bytes = sizeof(struct values)};
    str_clear(&out);
    config_markdown(&s, &other, &out);
    assert_string_equal(str_c(&out), MARKDOWN_HEAD
                        "| `a` | a whole number | `1` | First. |\n"
                        "\n### One\n\n" MARKDOWN_HEAD "| `d` | a whole number | `1` | Fourth. |\n"
                        "\n### Two\n\n" MARKDOWN_HEAD "| `c` | a whole number | `1` | Third. |\n"
                        "\n### `part`\n\n"
                        "#### `part`: One\n\n" MARKDOWN_HEAD "| `part.f` | a whole number | `1` | Last. |\n");
}

/* Names of other programs: another name of a key, one that is refused, one that sets nothing. Null is always taken. */
static void other_names(void **state) {
    (void)state;
    struct str help = STR_INIT;
    assert_int_equal(load("bs: 16\ndataset_builder: {hosted: null, shards: 3}\n"), ST_OK);
    assert_int_equal(v.batch_size, 16);
    assert_int_equal(load("bs: 1\nbatch_size: 2\n"), ST_CONFIG); /* one key given twice */
    assert_int_equal(load("dataset_builder: {hosted: yes}\n"), ST_CONFIG);
    assert_non_null(strstr(e.msg, "x.yaml:1:19: dataset_builder.hosted: There is no hosted service here."));
    assert_int_equal(config_set(&c, "bs=32", &e), ST_OK);
    assert_int_equal(v.batch_size, 32);
    assert_int_equal(config_set(&c, "hosted=null", &e), ST_OK);
    assert_int_equal(config_set(&c, "hosted=x", &e), ST_CONFIG);
    assert_int_equal(config_set(&c, "shards=7", &e), ST_OK);
    assert_int_equal(config_args(&c, 2, (char *[]){(char[]){"--bs"}, (char[]){"64"}}, &e), ST_OK);
    assert_int_equal(v.batch_size, 64);
    assert_int_equal(config_args(&c, 2, (char *[]){(char[]){"--shards"}, (char[]){"1"}}, &e), ST_CONFIG);
    assert_int_equal(config_help(&schema, "bs", &help, &e), ST_OK);
    assert_non_null(strstr(str_c(&help), "another name of batch_size"));
    str_free(&help);
}

/* Null takes the default of a key that is not optional; a preset gives way to what was set. */
static void null_and_presets(void **state) {
    (void)state;
    assert_int_equal(config_set(&c, "batch_size=2", &e), ST_OK);
    assert_int_equal(load("batch_size: null\nlearning_rate:\n"), ST_OK);
    assert_int_equal(v.batch_size, 8);
    assert_true(v.learning_rate == 1e-5);
    assert_int_equal(config_preset(&c, "preset x", "batch_size=100", &e), ST_OK);
    assert_int_equal(v.batch_size, 8); /* the file said so */
    assert_int_equal(config_preset(&c, "preset x", "dataset_builder.level=3", &e), ST_OK);
    assert_int_equal(v.dataset_builder.level, 3);
    assert_string_equal(config_source(&c, "dataset_builder.level"), "preset x");
    assert_int_equal(config_preset(&c, "preset x", "dataset_builder.reward.speed=11", &e), ST_CONFIG);
}

/* A key may set an int or an enum anywhere in the struct, under a name of its own. What lies beside it stays. */
static void fields_of_other_structs(void **state) {
    (void)state;
    CLEANUP_STR struct str dump = STR_INIT;
    assert_int_equal(v.part.trials, 3);
    assert_int_equal(v.part.kind, DEMO_RLOO);
    v.part.before = v.part.after = -1;
    assert_int_equal(load("trials: -5\npart_loss: ppo\n"), ST_OK);
    assert_int_equal(v.part.trials, -5);
    assert_int_equal(v.part.kind, DEMO_PPO);
    assert_int_equal(config_set(&c, "trials=100", &e), ST_OK);
    assert_int_equal(v.part.trials, 100);
    assert_true(v.part.before == -1 && v.part.after == -1);
    assert_int_equal(config_set(&c, "trials=101", &e), ST_CONFIG);
    assert_int_equal(config_set(&c, "trials=4294967297", &e), ST_CONFIG);
    assert_int_equal(config_set(&c, "part.trials=1", &e), ST_CONFIG); /* the path is no name of it */
    assert_string_equal(config_source(&c, "trials"), "command line");
    config_dump(&c, &dump);
    assert_non_null(strstr(str_c(&dump), "\ntrials: 100\npart_loss: ppo\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topics),
        cmocka_unit_test_setup_teardown(other_names, setup, teardown),
        cmocka_unit_test_setup_teardown(null_and_presets, setup, teardown),
        cmocka_unit_test_setup_teardown(fields_of_other_structs, setup, teardown),
        cmocka_unit_test_setup_teardown(defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(loads_yaml, setup, teardown),
        cmocka_unit_test_setup_teardown(yaml_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(sets_from_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(parses_argument_lists, setup, teardown),
        cmocka_unit_test_setup_teardown(dump_loads_again, setup, teardown),
        cmocka_unit_test_setup_teardown(help_and_reject, setup, teardown),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
