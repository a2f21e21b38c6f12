/* The text of tokens as they come: for random tokens of any bytes, stop strings and options, against a search over all
 * bytes at once; and the cases that have failed elsewhere. */
#include "text/detokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/rng.h"
#include "text/bpe.h"

enum { WORDS = 300, FIRST_WORD = 256, SPECIAL = FIRST_WORD + WORDS, N_SPECIAL = 3, PLAIN_ADDED = SPECIAL + N_SPECIAL };
static const char *const special_text[N_SPECIAL] = {"<|ab|>", "<|end|>", "<|é|>"};
static struct tokenizer *tok;

/* Few bytes, so that stop strings occur by chance: letters, and parts of é, €, 😀 and of what is no UTF-8. */
static char some_byte(struct rng *r) {
    static const char few[] = "aaabbbbcc\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xE0\xED\xF4\x90\xA0\xFF\xC0";
    return few[rng_below(r, sizeof few - 1)];
}

/* Ids 0..255 are the bytes, then words of 1 to 6 bytes, then added tokens: three special ones, one that is not. */
static int set_up(void **state) {
    (void)state;
    struct rng rng = rng_make(3, 3);
    struct str js = STR_INIT, path = STR_INIT;
    struct err e = {0};
    str_adds(&js, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                  "\"added_tokens\":[");
    for (int i = 0; i < N_SPECIAL; i++)
        str_addf(&js, "{\"id\":%d,\"content\":\"%s\",\"special\":true},", SPECIAL + i, special_text[i]);
    str_addf(&js, "{\"id\":%d,\"content\":\"<think>\",\"special\":false}],\"model\":{\"type\":\"BPE\",\"merges\":[],",
             PLAIN_ADDED);
    str_adds(&js, "\"vocab\":{\"\\u0100\":0");
    for (int b = 1; b < 256; b++) str_addf(&js, ",\"\\u%04x\":%d", bytelevel_char((unsigned char)b), b);
    for (int i = 0; i < WORDS; i++) { /* a number in front makes them different */
        char word[9];
        int n = snprintf(word, 4, "%d", i % 3 ? i : 0);
        for (uint64_t k = 1 + rng_below(&rng, 5); k > 0; k--) word[n++] = some_byte(&rng);
        str_adds(&js, ",\"");
        for (int k = 0; k < n; k++) str_addf(&js, "\\u%04x", bytelevel_char((unsigned char)word[k]));
        str_addf(&js, "\":%d", FIRST_WORD + i);
    }
    str_adds(&js, "}}}");
    char dir[] = "/tmp/detokenize_test.XXXXXX";
    assert_non_null(mkdtemp(dir));
    str_addf(&path, "%s/tokenizer.json", dir);
    assert_int_equal(fs_write_atomic(path.p, js.p, js.len, &e), ST_OK);
    if (tokenizer_open(dir, &tok, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_int_equal(fs_remove(dir, &e), ST_OK);
    str_free(&js);
    str_free(&path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tokenizer_close(tok);
    return 0;
}

/* ---- the same over all bytes at once ---- */

/* Bytes of the character at p[0..n), or of the longest beginning of one that is there; at least 1. */
static size_t subpart(const char *p, size_t n, bool *whole) {
    *whole = utf8_char_len(p, n) > 0;
    if (*whole) return utf8_char_len(p, n);
    for (size_t k = n < 3 ? n : 3; k > 1; k--)
        for (size_t more = 1; k + more <= 4; more++) {
            char made[4] = {0};
            memcpy(made, p, k);
            memset(made + k, '\xBF', more); /* k > 1: what follows the second byte is any */
            if (utf8_char_len(made, k + more) == k + more) return k;
        }
    return 1;
}

/* Whether the bytes end within a character that further ones could complete. */
static bool is_open(const char *p, size_t n) {
    size_t last = 0, k = 0;
    bool whole = true;
    for (size_t i = 0; i < n; i += k) {
        k = subpart(p + i, n - i, &whole);
        last = i;
    }
    if (whole || last + k < n) return false;
    bool could = false;
    char made[4];
    memcpy(made, p + last, k);
    for (int next = 0x80; next < 0xC0 && k < 4; next++) {
        memset(made + k, 0x80, 4 - k);
        made[k] = (char)next;
        for (size_t all = k + 1; all <= 4; all++) could |= utf8_char_len(made, all) == all;
    }
    return could;
}

struct by_hand {
    char bytes[4000]; /* of all tokens */
    bool shown[4000]; /* whether each is text */
    size_t n;         /* bytes */
    size_t from[500]; /* where each token begins in them */
    struct str text;  /* what all of it gives */
    int stop;         /* the string that ends it, or -1 */
    int last;         /* the token that does, or the number of tokens */
    int64_t offset[500];
};

static void to_text(const struct by_hand *h, size_t n, struct str *out) {
    char seen[4000];
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (h->shown[i]) seen[m++] = h->bytes[i];
    for (size_t i = 0; i < m;) {
        bool whole;
        const size_t k = subpart(seen + i, m - i, &whole);
        str_add(out, whole ? seen + i : "\xEF\xBF\xBD", whole ? k : 3);
        i += k;
    }
}

/* Where each shown byte's character begins in the text, in characters. */
static void place_by_hand(struct by_hand *h, int n_tokens) {
    char seen[4000];
    int64_t at[4001], character = 0;
    size_t m = 0, place[4001];
    for (size_t i = 0; i < h->n; i++) {
        place[i] = m;
        if (h->shown[i]) seen[m++] = h->bytes[i];
    }
    for (size_t i = 0; i < m; character++) {
        bool whole;
        const size_t k = subpart(seen + i, m - i, &whole);
        for (size_t j = 0; j < k; j++) at[i + j] = character;
        i += k;
    }
    at[m] = character;
    place[h->n] = m;
    for (int t = 0; t < n_tokens; t++) {
        const size_t begin = h->from[t], end = t + 1 < n_tokens ? h->from[t + 1] : h->n;
        if (begin < end && h->shown[begin])
            h->offset[t] = at[place[begin]];
        else /* no text */
            h->offset[t] = place[begin] == 0 ? 0 : at[place[begin] - 1] + !is_open(seen, place[begin]);
    }
}

static void work_out(const struct detokenize_options *o, const int32_t *ids, int n, struct by_hand *h) {
    h->n = 0;
    h->stop = -1;
    h->last = n;
    h->text = STR_INIT;
    size_t cut = 0;
    for (int t = 0; t < n; t++) {
        size_t m;
        const char *p = tokenizer_bytes(tok, ids[t], &m);
        h->from[t] = h->n;
        for (size_t i = 0; i < m; i++) {
            h->shown[h->n] = !(o->skip_special && ids[t] >= SPECIAL && ids[t] < PLAIN_ADDED);
            h->bytes[h->n++] = p[i];
            for (int k = 0; k < o->n_stop_strings && h->last == n && t >= o->min_tokens; k++) {
                const size_t length = strlen(o->stop_strings[k]);
                if (length > h->n || memcmp(h->bytes + h->n - length, o->stop_strings[k], length) != 0) continue;
                if (h->stop >= 0 && strlen(o->stop_strings[h->stop]) >= length) continue;
                h->stop = k;
                cut = o->include_stop ? h->n : h->n - length;
            }
            if (h->stop >= 0 && h->last == n) h->last = t;
        }
    }
    to_text(h, h->stop >= 0 ? cut : h->n, &h->text);
    place_by_hand(h, n);
}

/* Bytes at the end that may become a stop string. */
static size_t may_become(const struct detokenize_options *o, const char *bytes, size_t n) {
    size_t most = 0;
    for (int k = 0; k < o->n_stop_strings; k++)
        for (size_t m = strlen(o->stop_strings[k]) - 1; m > most; m--)
            if (m <= n && memcmp(bytes + n - m, o->stop_strings[k], m) == 0) most = m;
    return most;
}

/* What can be given out behind n bytes: the same as if all ended there, without what may become a stop string and
 * without a character that is not complete. */
static void final_by_hand(const struct detokenize_options *o, const struct by_hand *h, size_t n, struct str *out) {
    const size_t sure = n - may_become(o, h->bytes, n);
    char seen[4000];
    size_t m = 0;
    for (size_t i = 0; i < sure; i++)
        if (h->shown[i]) seen[m++] = h->bytes[i];
    for (size_t i = 0; i < m;) {
        bool whole;
        const size_t k = subpart(seen + i, m - i, &whole);
        if (!whole && i + k == m && is_open(seen, m)) return;
        str_add(out, whole ? seen + i : "\xEF\xBF\xBD", whole ? k : 3);
        i += k;
    }
}

static void assert_equal_text(const struct str *a, const struct str *b) {
    if (a->len != b->len || memcmp(str_c(a), str_c(b), a->len) != 0)
        fail_msg("\"%s\", expected \"%s\"", str_c(a), str_c(b));
}

static void check(const struct detokenize_options *o, const int32_t *ids, int n) {
    static struct by_hand h;
    work_out(o, ids, n, &h);
    struct detokenizer d;
    struct str got = STR_INIT, want = STR_INIT;
    detokenize_begin(&d, o);
    for (int t = 0; t < n; t++) {
        const bool ended = detokenize_add(&d, ids[t], DETOKENIZE_DRAWN, &got);
        assert_int_equal(ended, t >= h.last);
        assert_int_equal(d.offset, h.offset[t]);
        assert_int_equal(utf8_valid_prefix(str_c(&got), got.len), got.len);
        if (ended) continue;
        str_clear(&want);
        final_by_hand(o, &h, t + 1 < n ? h.from[t + 1] : h.n, &want);
        assert_equal_text(&got, &want);
    }
    detokenize_end(&d, &got);
    detokenize_end(&d, &got); /* once is enough */
    assert_int_equal(d.stop, h.stop);
    assert_equal_text(&got, &h.text);
    detokenize_free(&d);
    str_free(&got);
    str_free(&want);
    str_free(&h.text);
}

/* A stop string: letters, or a piece of what will come. */
static char *some_string(struct rng *r, const int32_t *ids, int n) {
    struct str s = STR_INIT;
    if (rng_below(r, 3) == 0 && n > 0) {
        struct str all = STR_INIT;
        tokenizer_decode(tok, ids, (size_t)n, false, &all);
        const size_t from = rng_below(r, all.len + 1), most = all.len - from;
        for (size_t i = 0; i < most && i < 1 + rng_below(r, 12); i++)
            if (all.p[from + i]) str_addc(&s, all.p[from + i]);
        str_free(&all);
    }
    while (s.len == 0 || rng_below(r, 2)) str_addc(&s, "abc"[rng_below(r, 3)]);
    return str_steal(&s);
}

static void any_tokens_and_stops(void **state) {
    (void)state;
    int stopped = 0, whole = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct rng r = rng_make(seed, 1);
        int32_t ids[120];
        const int n = (int)rng_below(&r, seed % 4 ? 30 : 120);
        const int32_t last = rng_below(&r, 2) ? PLAIN_ADDED + 2 : SPECIAL; /* one more than there are: no text */
        for (int i = 0; i < n; i++)
            ids[i] = rng_below(&r, 3) ? (int32_t)(unsigned char)some_byte(&r) : (int32_t)rng_below(&r, (uint64_t)last);
        char *strings[4];
        struct detokenize_options o = {.tokenizer = tok,
                                       .stop_strings = (const char *const *)strings,
                                       .n_stop_strings = (int)rng_below(&r, 5),
                                       .min_tokens = rng_below(&r, 3) ? 0 : (int)rng_below(&r, 12),
                                       .include_stop = rng_below(&r, 2),
                                       .skip_special = rng_below(&r, 2)};
        for (int i = 0; i < o.n_stop_strings; i++) strings[i] = some_string(&r, ids, n);
        check(&o, ids, n);
        struct detokenizer d;
        struct str text = STR_INIT;
        detokenize_begin(&d, &o);
        bool ended = false;
        for (int i = 0; i < n && !ended; i++) ended = detokenize_add(&d, ids[i], DETOKENIZE_DRAWN, &text);
        stopped += ended;
        whole += !ended && o.n_stop_strings > 0;
        detokenize_free(&d);
        str_free(&text);
        for (int i = 0; i < o.n_stop_strings; i++) free(strings[i]);
    }
    assert_true(stopped > 500 && whole > 200);
}

/* ---- single cases ---- */

/* Text, one byte a token, with the answer's end by a stop string or not. */
static void expect(const char *text, const char *const *stops, int n_stops, const char *want, int stop) {
    const bool broken = stop >= 0 && utf8_valid_prefix(stops[stop], strlen(stops[stop])) ==
                                         0; /* what it is cut from is not text then */
    for (int include = 0; include < (broken ? 1 : 2); include++) {
        struct detokenizer d;
        struct str got = STR_INIT, all = STR_INIT;
        const struct detokenize_options o = {
            .tokenizer = tok, .stop_strings = stops, .n_stop_strings = n_stops, .include_stop = include};
        detokenize_begin(&d, &o);
        for (const char *p = text; *p; p++)
            if (detokenize_add(&d, (unsigned char)*p, DETOKENIZE_DRAWN, &got)) break;
        detokenize_end(&d, &got);
        assert_int_equal(d.stop, stop);
        str_adds(&all, want);
        if (include && stop >= 0) str_adds(&all, stops[stop]);
        assert_equal_text(&got, &all);
        detokenize_free(&d);
        str_free(&got);
        str_free(&all);
    }
}

static void what_has_failed_elsewhere(void **state) {
    (void)state;
    expect("one STOP two", (const char *const[]){"STOP"}, 1, "one ", 0);
    expect("STOP", (const char *const[]){"STOP"}, 1, "", 0);
    expect("one STO", (const char *const[]){"STOP"}, 1, "one STO", -1);
    expect("abcd", (const char *const[]){"abcde", "bc"}, 2, "a", 1);    /* one begins another's place */
    expect("abc", (const char *const[]){"abc", "ab"}, 2, "", 1);        /* what ends first */
    expect("xabc", (const char *const[]){"c", "abc", "bc"}, 3, "x", 1); /* what begins first */
    expect("aaab", (const char *const[]){"aab"}, 1, "a", 0);
    expect("ababac", (const char *const[]){"abac"}, 1, "ab", 0);
    expect("\xE2\x82\xAC!", (const char *const[]){"\xAC!"}, 1, "\xEF\xBF\xBD", 0); /* out of the middle of a € */
    expect("\xE2\x82", (const char *const[]){"!"}, 1, "\xEF\xBF\xBD", -1);
    expect("\xF0\x9F\x98\x80", (const char *const[]){"\xF0\x9F\x98\x81"}, 1, "\xF0\x9F\x98\x80", -1);
    expect("\xF0\x9F\x98\x81", (const char *const[]){"\xF0\x9F\x98\x81"}, 1, "", 0);
    expect("plain", NULL, 0, "plain", -1);
}

/* As Python decodes them with errors="replace". */
static void ill_formed_bytes(void **state) {
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"a\xE2\x82z", "a" R "z"},
        {"\xF0\x9F\x98", R},
        {"\xF0\x80\x80\x80", R R R R},
        {"\xE0\x80", R R},
        {"\xED\xA0\x80", R R R},
        {"\xF4\x90\x80", R R R},
        {"\xC0\xAF\xC1\xF5\xFF", R R R R R},
        {"\x80\xE2\xE2\x82\xAC", R R "\xE2\x82\xAC"},
        {"\xF1\x80\x80\xE1\x80\xC2", R R R},
        {"\xC3\xA9\xC3", "\xC3\xA9" R},
    };
#undef R
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str got = STR_INIT;
        detokenize_bytes(cases[i].bytes, strlen(cases[i].bytes), &got);
        assert_string_equal(str_c(&got), cases[i].want);
        str_free(&got);
    }
    struct str got = STR_INIT;
    detokenize_bytes("a\0b", 3, &got);
    assert_int_equal(got.len, 3);
    str_free(&got);
}

/* A prompt in front: its special tokens are text, a stop string in it or beginning in it is none, offsets go on. */
static void behind_a_prompt(void **state) {
    (void)state;
    static const char *const stops[] = {"ab"};
    const struct detokenize_options o = {
        .tokenizer = tok, .stop_strings = stops, .n_stop_strings = 1, .skip_special = true};
    static const struct {
        int32_t id;
        enum detokenize_kind kind;
        const char *so_far;
        int64_t offset;
        bool ended;
    } rows[] = {
        {'a', DETOKENIZE_PROMPT, "a", 0, false},
        {'b', DETOKENIZE_PROMPT, "ab", 1, false},
        {SPECIAL + 1, DETOKENIZE_PROMPT, "ab<|end|>", 2, false},
        {0xC3, DETOKENIZE_PROMPT, "ab<|end|>", 9, false},
        {0xA9, DETOKENIZE_DRAWN, "ab<|end|>\xC3\xA9", 9, false}, /* the prompt's character */
        {SPECIAL + 1, DETOKENIZE_DRAWN, "ab<|end|>\xC3\xA9", 10, false},
        {'a', DETOKENIZE_DRAWN, "ab<|end|>\xC3\xA9", 10, false},
        {'a', DETOKENIZE_DRAWN,
         "ab<|end|>\xC3\xA9"
         "a",
         11, false},
        {'b', DETOKENIZE_DRAWN,
         "ab<|end|>\xC3\xA9"
         "a",
         12, true},
        {'c', DETOKENIZE_DRAWN,
         "ab<|end|>\xC3\xA9"
         "a",
         13, true},
    };
    struct detokenizer d;
    struct str got = STR_INIT;
    detokenize_begin(&d, &o);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(detokenize_add(&d, rows[i].id, rows[i].kind, &got), rows[i].ended);
        assert_string_equal(str_c(&got), rows[i].so_far);
        assert_int_equal(d.offset, rows[i].offset);
    }
    detokenize_free(&d);
    str_free(&got);
    /* Its last letter is no beginning of a stop string. */
    detokenize_begin(&d, &o);
    assert_false(detokenize_add(&d, 'a', DETOKENIZE_PROMPT, &got));
    assert_false(detokenize_add(&d, 'b', DETOKENIZE_DRAWN, &got));
    detokenize_end(&d, &got);
    assert_string_equal(str_c(&got), "ab");
    detokenize_free(&d);
    str_free(&got);
}

/* A token that ends the sample is no text, unless what ends it is asked for; what was held back is. */
static void ended_by_id(void **state) {
    (void)state;
    static const char *const stops[] = {"abc"};
    static const struct {
        int32_t id;
        bool include, skip;
        const char *want;
    } cases[] = {{'c', false, false, "xab"},         {'c', true, true, "xabc"}, /* an id wins over a string */
                 {SPECIAL + 1, false, false, "xab"}, {SPECIAL + 1, true, false, "xab<|end|>"},
                 {SPECIAL + 1, true, true, "xab"},   {PLAIN_ADDED, true, true, "xab<think>"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct detokenize_options o = {.tokenizer = tok,
                                             .stop_strings = stops,
                                             .n_stop_strings = 1,
                                             .include_stop = cases[i].include,
                                             .skip_special = cases[i].skip};
        struct detokenizer d;
        struct str got = STR_INIT;
        detokenize_begin(&d, &o);
        for (const char *p = "xab"; *p; p++) assert_false(detokenize_add(&d, *p, DETOKENIZE_DRAWN, &got));
        assert_string_equal(got.p, "x");
        assert_false(detokenize_add(&d, cases[i].id, DETOKENIZE_STOP, &got));
        assert_int_equal(d.offset, 3);
        detokenize_end(&d, &got);
        assert_string_equal(got.p, cases[i].want);
        detokenize_free(&d);
        str_free(&got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_tokens_and_stops), cmocka_unit_test(what_has_failed_elsewhere),
        cmocka_unit_test(ill_formed_bytes),     cmocka_unit_test(behind_a_prompt),
        cmocka_unit_test(ended_by_id),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
