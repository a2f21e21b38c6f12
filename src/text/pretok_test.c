/* What stands around the merging of tokens: patterns, the steps that cut, added tokens, post-processors. Against words
 * spelled out here, and against tests/tokenizers/golden.jsonl, which Hugging Face's tokenizers 0.23 wrote
 * (tests/clients/random_tokenizers.py --golden). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/fs.h"
#include "base/home.h"
#include "text/added.h"
#include "text/newer.h"
#include "text/pattern.h"
#include "text/postproc.h"
#include "text/pretok.h"
#include "text/split.h"
#include "text/tokenizer.h"

static struct err err;

static void put(void *ctx, const char *p, size_t n) { str_addf(ctx, "[%.*s]", (int)n, p); }

static json_t *parse(const char *text) {
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!j) fail_msg("no JSON: %s", text);
    return j;
}

/* Steps, and ByteLevel behind them. */
static enum status load(const char *steps, struct pretok **p) {
    CLEANUP_STR struct str text = STR_INIT;
    str_addf(&text,
             "{\"type\":\"Sequence\",\"pretokenizers\":[%s{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
             "\"use_regex\":false}]}",
             steps);
    json_t *j = parse(text.p);
    const enum status st = pretok_load(j, p, &err);
    json_decref(j);
    return st;
}

static void cuts(const char *steps, const char *text, const char *want) {
    struct pretok *p;
    CLEANUP_STR struct str got = STR_INIT;
    if (load(steps, &p) != ST_OK) fail_msg("%s", err.msg);
    pretok_run(p, text, strlen(text), put, &got);
    assert_string_equal(str_c(&got), want);
    pretok_free(p);
}

#define SPLIT(pattern, behavior, more) \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\"" more "},"
#define DASH(behavior) SPLIT("{\"String\":\"-\"}", behavior, "")

static void behaviors(void **state) {
    (void)state;
    static const char text[] = "the-final--countdown-";
    cuts(DASH("Isolated"), text, "[the][-][final][-][-][countdown][-]");
    cuts(DASH("Removed"), text, "[the][final][countdown]");
    cuts(DASH("MergedWithPrevious"), text, "[the-][final-][-][countdown-]");
    cuts(DASH("MergedWithNext"), text, "[the][-final][-][-countdown][-]");
    cuts(DASH("Contiguous"), text, "[the][-][final][--][countdown][-]");
    cuts(SPLIT("{\"Regex\":\"[a-z]+\"}", "Removed", ",\"invert\":true"), text, "[the][final][countdown]");
    cuts(SPLIT("{\"Regex\":\"-\"}", "MergedWithPrevious", ",\"invert\":true"), "--a-b", "[-][-a][-b]");
    cuts(SPLIT("{\"String\":\".*\\\\\"}", "Isolated", ""), "a.*\\b.c", "[a][.*\\][b.c]"); /* a text is no pattern */
    cuts("", text, "[the-final--countdown-]");
    cuts(DASH("Isolated"), "", "");
}

static void other_steps(void **state) {
    (void)state;
    cuts("{\"type\":\"Digits\",\"individual_digits\":true},", "a12\u0663b\u00bd", "[a][1][2][\u0663][b][\u00bd]");
    cuts("{\"type\":\"Digits\"},", "a12\u0663b", "[a][12\u0663][b]");
    cuts("{\"type\":\"Punctuation\"},", "a$b!?", "[a][$][b][!][?]");
    cuts("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},", "a$b!?", "[a][$][b][!?]");
    cuts(DASH("Isolated") "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]},", "a-1b", "[a][-][1][b]");
    static const char prefix[] = "{\"type\":\"Sequence\",\"pretokenizers\":[" DASH(
        "Isolated") "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}]}";
    json_t *j = parse(prefix);
    struct pretok *p;
    CLEANUP_STR struct str got = STR_INIT;
    assert_int_equal(pretok_load(j, &p, &err), ST_OK);
    pretok_run(p, "a b- c", 6, put, &got); /* each piece of the step before gets a space, unless it has one */
    assert_string_equal(got.p, "[ a][ b][ -][ c]");
    pretok_free(p);
    json_decref(j);
}

static void steps_refused(void **state) {
    (void)state;
    static const struct {
        const char *steps, *says;
        enum status st;
    } cases[] = {
        {"{\"type\":\"Metaspace\"},", "\"Metaspace\" is not supported", ST_UNSUPPORTED},
        {"{},", "(no type)", ST_UNSUPPORTED},
        {"{\"type\":\"ByteLevel\",\"use_regex\":false},", "\"ByteLevel\" after ByteLevel", ST_UNSUPPORTED},
        {SPLIT("{\"Regex\":\"a\"}", "Other", ""), "Split.behavior: \"Other\"", ST_UNSUPPORTED},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"}},", "Split.behavior: \"\"", ST_UNSUPPORTED},
        {SPLIT("{\"Glob\":\"a\"}", "Isolated", ""), "Split.pattern: expected", ST_UNSUPPORTED},
        {SPLIT("{\"Regex\":\"\"}", "Isolated", ""), "Split.pattern: expected", ST_UNSUPPORTED},
        {SPLIT("{\"Regex\":\"a(b\"}", "Isolated", ""), "a(b", ST_PARSE},
        {SPLIT("{\"Regex\":\"[a&&b]\"}", "Isolated", ""), "Split.pattern: regular expression: \"&&\"", ST_UNSUPPORTED},
        {"{\"type\":\"Punctuation\",\"behavior\":1},", "Punctuation.behavior", ST_UNSUPPORTED},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pretok *p;
        if (load(cases[i].steps, &p) != cases[i].st) fail_msg("%s: another status: %s", cases[i].steps, err.msg);
        assert_null(p);
        if (!strstr(err.msg, cases[i].says)) fail_msg("\"%s\" lacks \"%s\"", err.msg, cases[i].says);
    }
    struct pretok *p;
    CLEANUP_STR struct str many = STR_INIT;
    for (int i = 0; i < 40; i++) str_adds(&many, DASH("Isolated"));
    assert_int_equal(load(many.p, &p), ST_UNSUPPORTED);
}

/* ---- patterns -----------------------------------------------------------------------------------------------------*/

static void put_piece(void *ctx, const char *p, size_t n, bool match) {
    str_addf(ctx, match ? "[%.*s]" : "(%.*s)", (int)n, p);
}

static void matches(const char *pattern, const char *text, const char *want) {
    struct splitter *s;
    CLEANUP_STR struct str got = STR_INIT;
    if (splitter_create(pattern, &s, &err) != ST_OK) fail_msg("%s", err.msg);
    splitter_run(s, text, strlen(text), put_piece, &got);
    assert_string_equal(str_c(&got), want);
    splitter_free(s);
}

/* What Oniguruma and PCRE2 read in different ways, as Oniguruma reads it. */
static void dialect(void **state) {
    (void)state;
    matches("\\h+", "fa 0g", "[fa]( )[0](g)");
    matches("[\\h_]+\\H", "f_x", "[f_x]");
    matches("\\v", "a\nb\x0b", "(a\nb)[\x0b]");
    matches("^.", "ab\ncd", "[a](b\n)[c](d)"); /* at the beginning of each line */
    matches(".$", "ab\ncd", "(a)[b](\nc)[d]");
    matches("\\u00e9|\\x{e8}|\\x41", "A\u00e9\u00e8", "[A][\u00e9][\u00e8]");
    matches("\\p{Han}+", "\u4e00\u3005\u3001", "[\u4e00\u3005](\u3001)"); /* a script, not its extensions */
    matches("\\p{^L}\\P{^L}", "1a", "[1a]");
    matches("[a[bc]d]+", "abcde", "[abcd](e)"); /* a class in a class */
    matches("[\\b]", "a\bb", "(a)[\b](b)");
    matches("{a", "{a", "[{a]");
    matches("a{2,}|b{1,2}|c{3}", "aaabbbccc", "[aaa][bb][b][ccc]");
    matches("(?i)'S|\u00e9", "'\u017f\u00c9", "['\u017f][\u00c9]");
    matches("a?+.|b++", "abb", "[ab][b]");
}

static void dialect_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {"[^\\W]", "[a[^b]]",      "[[:alpha:]]", "[a&&b]", "\\R",     "\\X",
                                           "\\K",    "\\G",          "a{,3}",       "a{2}+",  "a{2}?",   "a(?i)b",
                                           "(?m:.)", "(?x: )",       "(?<n>a)",     "(a)\\1", "\\k<n>",  "\\xe9",
                                           "\\u12",  "\\x{1234567}", "\\p{Foo",     "\\pL",   "[]a]",    "\\",
                                           "\\p{}",  "(?",           "\\x",         "[\\R]",  "\\p{Foo}"};
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        struct splitter *s;
        const enum status st = splitter_create(patterns[i], &s, &err);
        if (st != ST_UNSUPPORTED && st != ST_PARSE) fail_msg("%s is taken", patterns[i]);
        assert_null(s);
        assert_non_null(strstr(err.msg, "regular expression"));
    }
}

/* Letters and signs of Unicode 15 and 16 are what they are, and stay in the text. */
static void newer_characters(void **state) {
    (void)state;
    matches("\\p{L}+", ".\U00031350\U000105c0\ua7cb.", "(.)[\U00031350\U000105c0\ua7cb](.)");
    matches("\\p{S}", "a\U0001fae8\u31ef", "(a)[\U0001fae8][\u31ef]");
    matches("\\p{Han}", "\U0002ebf0", "[\U0002ebf0]");
    CLEANUP_STR struct str s = STR_INIT;
    assert_false(newer_replace("a\u00e9\u4e00\U0001f600", 10, &s));
    assert_int_equal(s.len, 0);
    str_adds(&s, "x");
    assert_true(newer_replace("a\u0897b", 5, &s));
    assert_string_equal(s.p, "xa\u085bb");
}

/* ---- added tokens -------------------------------------------------------------------------------------------------*/

static void put_added(void *ctx, const char *p, size_t n, int32_t id) {
    if (id >= 0)
        str_addf(ctx, "<%d:%.*s>", id, (int)n, p);
    else
        put(ctx, p, n);
}

static void finds(const struct added_set *s, const char *text, const char *want) {
    CLEANUP_STR struct str got = STR_INIT;
    added_run(s, text, strlen(text), put_added, &got);
    assert_string_equal(str_c(&got), want);
}

static void added_tokens(void **state) {
    (void)state;
    struct added_set s = {0};
    finds(&s, "ab", "[ab]");
    finds(&s, "", "");
    added_add(&s, (struct added_token){.p = "<l>", .n = 3, .id = 1, .lstrip = true});
    added_add(&s, (struct added_token){.p = "<r>", .n = 3, .id = 2, .rstrip = true});
    added_add(&s, (struct added_token){.p = "<r>+", .n = 4, .id = 3});
    added_add(&s, (struct added_token){.p = "w", .n = 1, .id = 4, .single_word = true});
    added_add(&s, (struct added_token){.p = "  ", .n = 2, .id = 5});
    added_add(&s, (struct added_token){.p = "\u00e9", .n = 2, .id = 6});
    assert_int_equal(added_finish(&s, &err), ST_OK);
    finds(&s, "a<r>+<r", "[a]<3:<r>+>[<r]");                 /* the longest one */
    finds(&s, "a \u3000\n<l> b", "[a]<1: \u3000\n<l>>[ b]"); /* white space of any kind */
    finds(&s, "<r>\t <l>", "<2:<r>\t ><1:<l>>");             /* which goes with one of them */
    finds(&s, "<r>  x", "<2:<r>  ><5:  >[x]");               /* and may be a token all the same */
    finds(&s, "w,w w\u0301w \u00e9w_w", "<4:w>[,]<4:w>[ w\u0301w ]<6:\u00e9>[w_w]");
    finds(&s, "ww w", "[ww ]<4:w>");
    finds(&s, "\xc3 \xff<l>\xa9", "[\xc3 \xff]<1:<l>>[\xa9]"); /* no UTF-8: no white space, no word */
    finds(&s, "\xffw\xff", "[\xff]<4:w>[\xff]");
    added_free(&s);
}

/* ---- post-processors ----------------------------------------------------------------------------------------------*/

static void around(const char *text, const char *want) {
    json_t *j = text ? parse(text) : NULL;
    struct ids before = {0}, after = {0};
    CLEANUP_STR struct str got = STR_INIT;
    if (postproc_load(j, &before, &after, &err) != ST_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < before.len; i++) str_addf(&got, "%d ", before.p[i]);
    str_adds(&got, "A");
    for (size_t i = 0; i < after.len; i++) str_addf(&got, " %d", after.p[i]);
    assert_string_equal(got.p, want);
    ids_free(&before);
    ids_free(&after);
    json_decref(j);
}

#define TEMPLATE(single, ids)                              \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single \
    "],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":" ids "}}}"
#define SPECIAL "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"
#define TEXT_A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"

static void post_processors(void **state) {
    (void)state;
    around(NULL, "A");
    around("null", "A");
    around("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "A");
    around(TEMPLATE(SPECIAL "," TEXT_A, "[7]"), "7 A");
    around(TEMPLATE(TEXT_A "," SPECIAL "," SPECIAL, "[7,8]"), "A 7 8 7 8");
    around("{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",2],\"cls\":[\"<s>\",1]}", "1 A 2");
    around("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE(
               SPECIAL "," TEXT_A, "[7]") ",{\"type\":\"BertProcessing\",\"sep\":[\"b\",2],\"cls\":[\"a\",1]}]}",
           "1 7 A 2");
    static const struct {
        const char *text, *says;
        enum status st;
    } bad[] = {
        {"{\"type\":\"Other\"}", "\"Other\" is not supported", ST_UNSUPPORTED},
        {"{}", "(no type)", ST_UNSUPPORTED},
        {TEMPLATE(SPECIAL, "[7]"), "the Sequence A once, got 0", ST_UNSUPPORTED},
        {TEMPLATE(TEXT_A "," TEXT_A, "[7]"), "got 2", ST_UNSUPPORTED},
        {TEMPLATE(TEXT_A ",{\"Sequence\":{\"id\":\"B\"}}", "[7]"), "single[1]", ST_UNSUPPORTED},
        {TEMPLATE(TEXT_A ",{}", "[7]"), "single[1]", ST_UNSUPPORTED},
        {TEMPLATE(TEXT_A "," SPECIAL, "[-1]"), "expected ids", ST_PARSE},
        {TEMPLATE(TEXT_A "," SPECIAL, "null"), "no ids of \"<s>\"", ST_PARSE},
        {TEMPLATE(TEXT_A ",{\"SpecialToken\":{\"id\":\"x\"}}", "[1]"), "no ids of \"x\"", ST_PARSE},
        {"{\"type\":\"BertProcessing\",\"cls\":[\"a\"]}", "expected ids", ST_PARSE},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct ids before = {0}, after = {0};
        json_t *j = parse(bad[i].text);
        if (postproc_load(j, &before, &after, &err) != bad[i].st) fail_msg("%s: another status", bad[i].text);
        if (!strstr(err.msg, bad[i].says)) fail_msg("\"%s\" lacks \"%s\"", err.msg, bad[i].says);
        ids_free(&before);
        ids_free(&after);
        json_decref(j);
    }
}

/* ---- against Hugging Face's tokenizers ----------------------------------------------------------------------------*/

static struct tokenizer *open_file(const json_t *file) {
    char dir[] = "/tmp/pretok_test.XXXXXX";
    CLEANUP_STR struct str path = STR_INIT;
    assert_non_null(mkdtemp(dir));
    str_addf(&path, "%s/tokenizer.json", dir);
    assert_int_equal(json_dump_file(file, path.p, JSON_COMPACT), 0);
    struct tokenizer *t;
    if (tokenizer_open(dir, &t, &err) != ST_OK) fail_msg("%s", err.msg);
    assert_int_equal(fs_remove(dir, &err), ST_OK);
    return t;
}

static void same_ids(struct tokenizer *t, const char *name, const json_t *row) {
    const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids");
    struct ids got = {0};
    tokenizer_encode_whole(t, json_string_value(text), json_string_length(text), true, &got);
    bool same = got.len == json_array_size(want);
    for (size_t i = 0; same && i < got.len; i++) same = json_integer_value(json_array_get(want, i)) == got.p[i];
    if (!same) fail_msg("%s: %s", name, json_string_value(text));
    ids_free(&got);
}

static void golden(void **state) {
    (void)state;
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/tests/tokenizers/golden.jsonl", home_dir());
    FILE *f = fopen(path.p, "r");
    if (!f) fail_msg("%s", path.p);
    char *line = NULL, name[64] = "";
    size_t cap = 0, rows = 0, kinds = 0;
    struct tokenizer *t = NULL;
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0;) {
        json_t *j = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        const json_t *file = json_object_get(j, "tokenizer");
        if (file) {
            tokenizer_close(t);
            t = open_file(file);
            snprintf(name, sizeof name, "%s", json_string_value(json_object_get(j, "name")));
            kinds++;
        } else {
            assert_non_null(t);
            same_ids(t, name, j);
            rows++;
        }
        json_decref(j);
    }
    assert_true(kinds >= 10 && rows >= 40 * kinds);
    tokenizer_close(t);
    free(line);
    fclose(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaviors),    cmocka_unit_test(other_steps),     cmocka_unit_test(steps_refused),
        cmocka_unit_test(dialect),      cmocka_unit_test(dialect_refused), cmocka_unit_test(newer_characters),
        cmocka_unit_test(added_tokens), cmocka_unit_test(post_processors), cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
