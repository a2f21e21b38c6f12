/* Tokenizer: merging order, worst cases, loading errors, added tokens, NFC; and, with KERNELRL_TESTDATA, the ids that
 * Hugging Face's implementation gives for Qwen2's vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/rng.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

/* ---- a small tokenizer.json ---------------------------------------------------------------------------------------*/

#define NFC_ON "\"normalizer\":{\"type\":\"NFC\"},"
#define PRE_QWEN2                                                                                                      \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"          \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\" \
    "r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"              \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
#define PRE_NONE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"

/* Bytes are ids 0..255; further tokens (byte-level spelling) follow, then the added ones. */
static char *make_json(const char *head, const char *const *tokens, int n, const char *merges, const char *added) {
    struct str js = STR_INIT;
    str_addf(&js, "{%s\"added_tokens\":[%s],\"model\":{\"type\":\"BPE\",\"merges\":%s,\"vocab\":{", head, added,
             merges);
    for (int b = 0; b < 256; b++) str_addf(&js, "%s\"\\u%04x\":%d", b ? "," : "", bytelevel_char((unsigned char)b), b);
    for (int i = 0; i < n; i++) str_addf(&js, ",\"%s\":%d", tokens[i], 256 + i);
    str_adds(&js, "}}}");
    return str_steal(&js);
}

static enum status open_text(const char *name, const char *text, struct tokenizer **t, struct err *e) {
    char dir[] = "/tmp/tokenizer_test.XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct str path = STR_INIT;
    str_addf(&path, "%s/%s", dir, name);
    struct err ignored;
    assert_int_equal(fs_write_atomic(path.p, text, strlen(text), &ignored), ST_OK);
    enum status st = tokenizer_open(dir, t, e);
    assert_int_equal(fs_remove(dir, &ignored), ST_OK);
    str_free(&path);
    return st;
}

static struct tokenizer *open_json(char *js) {
    struct err e = {0};
    struct tokenizer *t = NULL;
    if (open_text("tokenizer.json", js, &t, &e) != ST_OK) fail_msg("%s", e.msg);
    free(js);
    return t;
}

static void check_ids(struct tokenizer *t, const char *text, bool specials, const int32_t *want, size_t n) {
    struct ids got = {0};
    tokenizer_encode(t, text, strlen(text), specials, &got);
    assert_int_equal(got.len, n);
    if (n) assert_true(memcmp(got.p, want, n * sizeof *want) == 0);
    ids_free(&got);
}
#define CHECK_IDS(t, text, specials, ...) \
    check_ids(t, text, specials, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* ---- tests --------------------------------------------------------------------------------------------------------*/

static void merges_by_rank_then_left(void **state) {
    (void)state;
    const char *tokens[] = {"bc", "ab", "aa", "abc"};
    struct tokenizer *t = open_json(make_json(PRE_NONE, tokens, 4, "[\"b c\",\"a b\",[\"a\",\"a\"],\"a bc\"]", ""));
    CHECK_IDS(t, "abc", false, 259);             /* bc first, then a + bc */
    CHECK_IDS(t, "abab", false, 257, 257);       /* */
    CHECK_IDS(t, "aaa", false, 258, 'a');        /* leftmost */
    CHECK_IDS(t, "aab", false, 'a', 257);        /* ab outranks aa */
    CHECK_IDS(t, "zabcz", false, 'z', 259, 'z'); /* */
    assert_int_equal(tokenizer_vocab(t), 260);
    assert_int_equal(tokenizer_id(t, "abc"), 259);
    assert_int_equal(tokenizer_id(t, "abd"), -1);
    size_t n;
    tokenizer_bytes(t, 9999, &n);
    assert_int_equal(n, 0);
    tokenizer_close(t);
}

/* The heap against the plain rule: again and again the lowest rank, leftmost. */
static void merges_equal_naive(void **state) {
    (void)state;
    const char *tokens[] = {"aa", "ab", "ba", "bb", "aaa", "abb", "aaab", "bab", "abab", "bbb", "aaaa"};
    static const struct {
        const char *l, *r;
    } merges[] = {{"b", "a"},  {"a", "a"},   {"a", "b"},   {"b", "b"},  {"aa", "a"}, {"a", "bb"},
                  {"ba", "b"}, {"aa", "ab"}, {"ab", "ab"}, {"bb", "b"}, {"aa", "aa"}};
    struct str js = STR_INIT;
    str_addc(&js, '[');
    for (size_t i = 0; i < ARRAY_LEN(merges); i++)
        str_addf(&js, "%s[\"%s\",\"%s\"]", i ? "," : "", merges[i].l, merges[i].r);
    str_addc(&js, ']');
    struct tokenizer *t = open_json(make_json(PRE_NONE, tokens, (int)ARRAY_LEN(tokens), js.p, ""));
    str_free(&js);
    struct rng r = rng_make(1, 2);
    for (int round = 0; round < 300; round++) {
        char text[101], sym[100][8];
        int n = 1 + (int)rng_below(&r, 100), m = n;
        for (int i = 0; i < n; i++) {
            text[i] = rng_below(&r, 2) ? 'a' : 'b';
            sym[i][0] = text[i];
            sym[i][1] = 0;
        }
        text[n] = 0;
        for (;;) {
            int best = -1;
            size_t rank = ARRAY_LEN(merges);
            for (int i = 0; i + 1 < m; i++)
                for (size_t k = 0; k < rank; k++)
                    if (strcmp(sym[i], merges[k].l) == 0 && strcmp(sym[i + 1], merges[k].r) == 0) {
                        rank = k;
                        best = i;
                    }
            if (best < 0) break;
            size_t have = strlen(sym[best]), more = strlen(sym[best + 1]);
            assert_true(have + more < sizeof sym[0]);
            memmove(sym[best] + have, sym[best + 1], more + 1);
            memmove(sym[best + 1], sym[best + 2], (size_t)(m - best - 2) * sizeof sym[0]);
            m--;
        }
        int32_t want[100];
        for (int i = 0; i < m; i++) want[i] = tokenizer_id(t, sym[i]);
        check_ids(t, text, false, want, (size_t)m);
        check_ids(t, text, false, want, (size_t)m); /* and once more, from the cache */
    }
    tokenizer_close(t);
}

static void added_tokens(void **state) {
    (void)state;
    const char *added =
        "{\"id\":300,\"content\":\"<x>\",\"special\":true},{\"id\":301,\"content\":\"<x>y\",\"special\":"
        "false},{\"id\":302,\"content\":\"<\\u00e9>\",\"special\":false}";
    struct tokenizer *t = open_json(make_json(PRE_NONE, NULL, 0, "[]", added));
    CHECK_IDS(t, "a<x>b<x>y<x", true, 'a', 300, 'b', 301, '<', 'x'); /* leftmost, longest */
    CHECK_IDS(t, "<x>", false, '<', 'x', '>');
    CHECK_IDS(t, "<\xc3\xa9>", true, 302);
    assert_int_equal(tokenizer_vocab(t), 303);
    assert_int_equal(tokenizer_id(t, "<x>y"), 301);
    struct str s = STR_INIT;
    const int32_t ids[] = {'a', 300, 301, 280, 5000, -3};
    tokenizer_decode(t, ids, 6, true, &s);
    assert_string_equal(s.p, "a<x>y"); /* unknown ids have no bytes */
    str_clear(&s);
    tokenizer_decode(t, ids, 6, false, &s);
    assert_string_equal(s.p, "a<x><x>y");
    str_free(&s);
    tokenizer_close(t);
}

struct words {
    struct str joined;
};
static void join_word(void *ctx, const char *p, size_t n, bool match) {
    struct words *w = ctx;
    (void)match;
    str_addc(&w->joined, '[');
    str_add(&w->joined, p, n);
    str_addc(&w->joined, ']');
}

static void check_split(const char *pattern, const char *text, const char *want) {
    struct err e = {0};
    struct splitter *s;
    if (splitter_create(pattern, &s, &e) != ST_OK) fail_msg("%s", e.msg);
    struct words w = {STR_INIT};
    splitter_run(s, text, strlen(text), join_word, &w);
    assert_string_equal(str_c(&w.joined), want);
    str_free(&w.joined);
    splitter_free(s);
}

static void splitting(void **state) {
    (void)state;
    check_split(SPLIT_QWEN2, "I'M here,  don't\n\n  x12 = 3;\n",
                "[I]['M][ here][,][ ][ don]['t][\n\n][ ][ x][1][2][ =][ ][3][;\n]");
    check_split(SPLIT_QWEN2, "a\t\tb   ", "[a][\t][\tb][   ]");
    check_split(SPLIT_QWEN2, "a\xc2\x85z\xe1\xa0\x8e\xe1\xa0\x8e.", /* U+0085 is White_Space, U+180E is not */
                "[a][\xc2\x85z][\xe1\xa0\x8e\xe1\xa0\x8e.]");
    check_split(SPLIT_GPT2, "it's 2024 ok", "[it]['s][ 2024][ ok]");
    /* Words as Oniguruma has them: U+0345 (a mark) and U+203F (a connector) belong, U+2460 (a number) does not, U+00B2
     * (another) only outside of a class. */
    check_split("\\w+", "a\u0345z\u203f.b\u2460w\u00b2", "[a\u0345z\u203f][.][b][\u2460][w\u00b2]");
    check_split("[^\\w.]+", "a\u0345\u203f.\u00b2\u2460", "[a\u0345\u203f.][\u00b2\u2460]");
    check_split("\\bor\\b", "or or\u0345 \u00b2or", "[or][ or\u0345 \u00b2or]");
    check_split("b*", "abbac", "[a][bb][a][c]"); /* an empty match is no word, and parts a gap */
    struct err e = {0};
    struct splitter *s;
    assert_int_equal(splitter_create("a(b", &s, &e), ST_PARSE);
    assert_null(s);
    assert_non_null(strstr(e.msg, "a(b"));
}

static void nfc(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"e\xcc\x81", "\xc3\xa9"},                                /* e + acute */
        {"\xe2\x84\xab", "\xc3\x85"},                             /* Angstrom sign */
        {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"}, /* Hangul jamo */
        {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},               /* canonical order */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* a composition exclusion */
        {"\xe2\x80\xa0\xef\xac\x81", "\xe2\x80\xa0\xef\xac\x81"}, /* compatibility forms stay */
        {"\xf0\x9d\x85\x9e", "\xf0\x9d\x85\x97\xf0\x9d\x85\xa5"}, /* a musical symbol */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str s = STR_INIT;
        unicode_nfc(cases[i][0], strlen(cases[i][0]), &s);
        assert_string_equal(s.p, cases[i][1]);
        str_free(&s);
    }
    assert_true(unicode_is_plain("abc\xc3\xa9", 5));
    assert_false(unicode_is_plain("e\xcc\x81", 3));
    struct tokenizer *t = open_json(make_json(NFC_ON PRE_QWEN2, NULL, 0, "[]", ""));
    CHECK_IDS(t, "e\xcc\x81", false, 0xc3, 0xa9);
    tokenizer_close(t);
    t = open_json(make_json(PRE_QWEN2, NULL, 0, "[]", "")); /* no normalizer: bytes as they are */
    CHECK_IDS(t, "e\xcc\x81", false, 'e', 0xcc, 0x81);
    tokenizer_close(t);
}

static void utf8(void **state) {
    (void)state;
    assert_int_equal(utf8_char_len("a", 1), 1);
    assert_int_equal(utf8_char_len("\xf4\x8f\xbf\xbf", 4), 4);
    static const char *const bad[] = {"\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xff", "\xe2\x82"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) assert_int_equal(utf8_char_len(bad[i], strlen(bad[i])), 0);
    assert_int_equal(utf8_valid_prefix("0123456789\xc3\xa9\xff", 13), 12);
}

static void round_trip(struct tokenizer *t, const char *p, size_t n) {
    struct ids ids = {0};
    struct str s = STR_INIT;
    tokenizer_encode(t, p, n, true, &ids);
    tokenizer_decode(t, ids.p, ids.len, false, &s);
    assert_int_equal(s.len, n);
    if (n) assert_true(memcmp(s.p, p, n) == 0);
    str_free(&s);
    ids_free(&ids);
}

static void any_bytes_round_trip(void **state) {
    (void)state;
    const char *tokens[] = {"\\u00c3\\u00a9", "ab"};
    struct tokenizer *t = open_json(
        make_json(PRE_QWEN2, tokens, 2, "[[\"\\u00c3\",\"\\u00a9\"],\"a b\"]", "{\"id\":300,\"content\":\"<x>\"}"));
    struct rng r = rng_make(3, 4);
    char buf[64];
    for (int round = 0; round < 2000; round++) {
        size_t n = rng_below(&r, sizeof buf);
        for (size_t i = 0; i < n; i++) buf[i] = (char)rng_next(&r);
        round_trip(t, buf, n);
    }
    round_trip(t, "\0a\0", 3);
    CHECK_IDS(t, "\xc3\xa9\xc3", false, 256, 0xc3); /* a character cut in two */
    tokenizer_close(t);
}

/* The processor's seconds for words of n bytes, there and back. */
static double long_words_s(struct tokenizer *t, size_t n) {
    char *buf = xmalloc(n);
    const clock_t start = clock();
    for (int c = 0; c < 4; c++) {
        memset(buf, "a \n\xff"[c], n);
        struct ids ids = {0};
        tokenizer_encode(t, buf, n, false, &ids);
        static const size_t parts[] = {4, 2, 2, 1};
        assert_int_equal(ids.len, n / parts[c]);
        ids_free(&ids);
        round_trip(t, buf, n);
    }
    /* Combining marks in descending order of class: a bubble sort's worst case. */
    for (size_t i = 0; i < n; i += 4) memcpy(buf + i, i < n / 2 ? "\xcc\x81\xcc\x81" : "\xcc\xa3\xcc\xa3", 4);
    struct ids ids = {0};
    tokenizer_encode(t, buf, n, false, &ids);
    assert_int_equal(ids.len, n);
    assert_int_equal(ids.p[1], 0xa3);
    ids_free(&ids);
    free(buf);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* One word of a megabyte must not take quadratic time: 16 times the length takes 20 times as long at n log n, 256 times
 * at n^2. */
static void long_words_are_fast(void **state) {
    (void)state;
    const char *tokens[] = {"aa", "aaaa", "\\u0120\\u0120", "\\u010a\\u010a"};
    struct tokenizer *t = open_json(
        make_json(NFC_ON PRE_QWEN2, tokens, 4, "[\"a a\",\"aa aa\",\"\\u0120 \\u0120\",\"\\u010a \\u010a\"]", ""));
    const double small = long_words_s(t, 1 << 16), large = long_words_s(t, 1 << 20);
    print_message("64 KB: %.2f s, 1 MB: %.2f s\n", small, large);
    assert_true(large < 64 * small);
    tokenizer_close(t);
}

static void loading_errors(void **state) {
    (void)state;
    char *no_byte = make_json(PRE_NONE, NULL, 0, "[]", "");
    char *hit = strstr(no_byte, "\"\\u0041\":65,");
    memmove(hit, hit + 12, strlen(hit + 12) + 1);
    const struct {
        char *text;
        const char *want;
    } cases[] = {
        {xstrdup("{"), "tokenizer.json:1:"},
        {xstrdup("{}"), "model missing"},
        {xstrdup("{\"model\":{\"type\":\"Unigram\"}}"), "Unigram"},
        {xstrdup("{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}"), "model.merges missing"},
        {xstrdup("{\"model\":{\"type\":\"BPE\",\"merges\":[]}}"), "model.vocab missing"},
        {make_json("\"normalizer\":{\"type\":\"NFKC\"}," PRE_NONE, NULL, 0, "[]", ""), "NFKC"},
        {make_json("\"pre_tokenizer\":{\"type\":\"Metaspace\"},", NULL, 0, "[]", ""), "Metaspace"},
        {make_json(PRE_NONE "\"decoder\":{\"type\":\"Fuse\"},", NULL, 0, "[]", ""), "Fuse"},
        {make_json(PRE_NONE "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"b\",9],\"cls\":[\"a\",400]},",
                   NULL, 0, "[]", ""),
         "post_processor: there is no token 400"},
        {xstrdup("{\"model\":{\"byte_fallback\":true,\"vocab\":{},\"merges\":[]}}"), "model.byte_fallback"},
        {xstrdup("{\"model\":{\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]}}"),
         "model.end_of_word_suffix"},
        {make_json("", NULL, 0, "[]", ""), "no ByteLevel"},
        {make_json(PRE_NONE, NULL, 0, "[\"a b\"]", ""), "merges[0]"},
        {make_json(PRE_NONE, NULL, 0, "[\"a\"]", ""), "one space"},
        {make_json(PRE_NONE, NULL, 0, "[7]", ""), "merges[0]: expected"},
        {make_json(PRE_NONE, NULL, 0, "[]", "{\"id\":65,\"content\":\"zz\"}"), "id 65 is given to \"A\" and to \"zz\""},
        {make_json(PRE_NONE, NULL, 0, "[]", "{\"content\":\"zz\"}"), "added_tokens[0]: id"},
        {make_json(PRE_NONE, NULL, 0, "[]", "{\"id\":99999999,\"content\":\"zz\"}"), "99999999"},
        {no_byte, "0x41"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = {0};
        struct tokenizer *t;
        assert_int_not_equal(open_text("tokenizer.json", cases[i].text, &t, &e), ST_OK);
        assert_null(t);
        if (!strstr(e.msg, cases[i].want) || !strstr(e.msg, "tokenizer.json"))
            fail_msg("expected \"%s\" in: %s", cases[i].want, e.msg);
        free(cases[i].text);
    }
    struct err e = {0};
    struct tokenizer *t;
    assert_int_not_equal(tokenizer_open("/nonexistent", &t, &e), ST_OK);
    assert_non_null(strstr(e.msg, "/nonexistent"));
    assert_int_not_equal(open_text("vocab.json", "{\"a\":0}", &t, &e), ST_OK); /* merges.txt is missing */
    assert_non_null(strstr(e.msg, "merges.txt"));
}

/* The layout of two files says by its class how text is cut. */
static void two_files(void **state) {
    (void)state;
    char dir[] = "/tmp/tokenizer_test.XXXXXX";
    assert_non_null(mkdtemp(dir));
    CLEANUP_STR struct str path = STR_INIT, vocab = STR_INIT;
    for (int b = 0; b < 256; b++)
        str_addf(&vocab, "%s\"\\u%04x\":%d", b ? "," : "{", bytelevel_char((unsigned char)b), b);
    str_adds(&vocab, ",\"12\":256}");
    static const struct {
        const char *class;
        int n; /* ids of "e\u0301" and of "12" */
    } cases[] = {{NULL, 4}, {"\"Qwen2TokenizerFast\"", 4}, {"\"GPT2Tokenizer\"", 4}, {"\"CodeLlamaTokenizer\"", 0}};
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP_STR struct str config = STR_INIT;
        str_addf(&config, "{\"tokenizer_class\":%s}", cases[i].class ? cases[i].class : "null");
        const char *const texts[] = {vocab.p, "#version: 0.2\n1 2\n", config.p};
        for (size_t k = 0; k < 3; k++) {
            str_clear(&path);
            str_addf(&path, "%s/%s", dir, names[k]);
            assert_int_equal(fs_write_atomic(path.p, texts[k], strlen(texts[k]), &e), ST_OK);
        }
        struct tokenizer *t;
        const enum status st = tokenizer_open(dir, &t, &e);
        if (cases[i].n == 0) {
            assert_int_equal(st, ST_UNSUPPORTED);
            assert_non_null(strstr(e.msg, "CodeLlamaTokenizer"));
            continue;
        }
        assert_int_equal(st, ST_OK);
        if (i < 2)
            CHECK_IDS(t, "e\u030112", false, 0xc3, 0xa9, '1', '2'); /* NFC, and each digit alone */
        else
            CHECK_IDS(t, "e\u030112", false, 'e', 0xcc, 0x81, 256);
        tokenizer_close(t);
    }
    assert_int_equal(fs_remove(dir, &e), ST_OK);
}

/* Beginning-of-text and the like, only where they are asked for; words that are tokens. */
static void whole_texts(void **state) {
    (void)state;
    const char *tokens[] = {"abc", "ab"};
    char *js =
        make_json("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\"}},"
                  "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<x>\":{\"ids\":[300]}}}," PRE_NONE,
                  tokens, 2, "[\"a b\"]", "{\"id\":300,\"content\":\"<x>\",\"special\":true}");
    CLEANUP_STR struct str whole = STR_INIT;
    str_adds(&whole, js);
    struct tokenizer *t = open_json(js);
    struct ids ids = {0};
    tokenizer_encode_whole(t, "<x>abc", 6, true, &ids);
    const int32_t with[] = {300, 300, 257, 'c'}, without[] = {300, '<', 'x', '>', 257, 'c'};
    assert_int_equal(ids.len, 4);
    assert_memory_equal(ids.p, with, sizeof with);
    ids.len = 0;
    tokenizer_encode_whole(t, "<x>abc", 6, false, &ids);
    assert_int_equal(ids.len, 6);
    assert_memory_equal(ids.p, without, sizeof without);
    CHECK_IDS(t, "abc", true, 257, 'c');
    assert_int_equal(tokenizer_before(t)->len, 1);
    assert_int_equal(tokenizer_after(t)->len, 0);
    ids_free(&ids);
    tokenizer_close(t);
    /* A word that is a token of the vocabulary; one that was only added is none. */
    const char *model = strstr(whole.p, "\"model\":{");
    CLEANUP_STR struct str ignoring = STR_INIT;
    str_add(&ignoring, whole.p, (size_t)(model - whole.p));
    str_addf(&ignoring, "\"model\":{\"ignore_merges\":true,%s", model + strlen("\"model\":{"));
    t = open_json(str_steal(&ignoring));
    CHECK_IDS(t, "abc", true, 256);
    CHECK_IDS(t, "<x>", false, '<', 'x', '>');
    tokenizer_close(t);
}

/* ---- with the Qwen2 vocabulary ------------------------------------------------------------------------------------*/

static void qwen2_golden(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data) {
        print_message("skipped: KERNELRL_TESTDATA is not set (the Qwen2 vocabulary and golden ids)\n");
        skip();
    }
    struct str path = STR_INIT;
    struct err e = {0};
    struct tokenizer *t = NULL;
    str_addf(&path, "%s/qwen2-tokenizer", data);
    if (tokenizer_open(path.p, &t, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_id(t, "<|im_end|>"), 151645);
    str_clear(&path);
    str_addf(&path, "%s/golden/qwen2_tokens.jsonl", data);
    FILE *f = fopen(path.p, "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0, lines = 0, bytes = 0;
    double seconds = 0;
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0; lines++) {
        json_t *row = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids"),
                     *decoded = json_object_get(row, "decoded");
        assert_true(json_is_string(text) && json_is_array(want) && json_is_string(decoded));
        struct ids got = {0};
        double start = clock_now_s();
        tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &got);
        seconds += clock_now_s() - start;
        bytes += json_string_length(text);
        if (got.len != json_array_size(want)) fail_msg("line %zu: %zu ids", lines + 1, got.len);
        for (size_t i = 0; i < got.len; i++)
            if (got.p[i] != json_integer_value(json_array_get(want, i))) fail_msg("line %zu, id %zu", lines + 1, i);
        struct str s = STR_INIT;
        tokenizer_decode(t, got.p, got.len, false, &s);
        assert_int_equal(s.len, json_string_length(decoded));
        if (s.len) assert_true(memcmp(s.p, json_string_value(decoded), s.len) == 0);
        str_free(&s);
        ids_free(&got);
        json_decref(row);
    }
    assert_true(lines > 100);
    print_message("%zu lines, %.1f MB/s\n", lines, (double)bytes / seconds / 1e6);
    free(line);
    fclose(f);
    str_free(&path);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_rank_then_left),
        cmocka_unit_test(merges_equal_naive),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(splitting),
        cmocka_unit_test(nfc),
        cmocka_unit_test(utf8),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(long_words_are_fast),
        cmocka_unit_test(loading_errors),
        cmocka_unit_test(two_files),
        cmocka_unit_test(whole_texts),
        cmocka_unit_test(qwen2_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
