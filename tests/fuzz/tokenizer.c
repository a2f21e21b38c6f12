/* Fuzz target: the first byte picks what the rest is. Even: text for a small built-in tokenizer, which must give any
 * bytes back. Odd: a tokenizer.json, which is refused with a message or works. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static char dir[] = "/tmp/kernelrl_fuzz_tokenizer_XXXXXX", path[64];
static struct tokenizer *plain, *splitting, *stepping;

static void remove_dir(void) {
    tokenizer_close(plain);
    tokenizer_close(splitting);
    tokenizer_close(stepping);
    struct err e;
    if (fs_remove(dir, &e) != ST_OK) fprintf(stderr, "%s\n", e.msg);
}

static void write_json(const void *text, size_t n) {
    FILE *f = fopen(path, "wb");
    ASSERT(f && fwrite(text, 1, n, f) == n && fclose(f) == 0);
}

static struct tokenizer *open_builtin(const char *pre_tokenizer) {
    static const char head[] =
        "{\"added_tokens\":[{\"id\":270,\"content\":\"<|im_end|>\",\"special\":true},"
        "{\"id\":271,\"content\":\"<think>\",\"special\":false},{\"id\":272,\"content\":\"<\",\"special\":false}],"
        "\"pre_tokenizer\":";
    static const char *const tokens[] = {"ab", "aa", "abab", "fo", "for", "<t", "++", "=="};
    static const char merges[] = "\"a b\",\"a a\",\"ab ab\",\"f o\",\"fo r\",\"< t\",\"+ +\",\"= =\"";
    struct str s = STR_INIT;
    str_addf(&s, "%s%s,\"model\":{\"type\":\"BPE\",\"merges\":[%s],\"vocab\":{", head, pre_tokenizer, merges);
    for (int b = 0; b < 256; b++) str_addf(&s, "%s\"\\u%04x\":%d", b ? "," : "", bytelevel_char((unsigned char)b), b);
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) str_addf(&s, ",\"%s\":%zu", tokens[i], 256 + i);
    str_adds(&s, "}}}");
    write_json(s.p, s.len);
    str_free(&s);
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_open(dir, &t, &e) != ST_OK) fprintf(stderr, "%s\n", e.msg);
    ASSERT(t);
    return t;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    ASSERT(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    plain = open_builtin("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}");
    splitting = open_builtin("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}");
    stepping = open_builtin(
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}|\\\\b\"},"
        "\"behavior\":\"Isolated\"},{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s\"},\"behavior\":"
        "\"MergedWithNext\"},"
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-f]\"},\"behavior\":\"Contiguous\"},{\"type\":\"Punctuation\","
        "\"behavior\":\"MergedWithPrevious\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]"
        "}");
    atexit(remove_dir);
    return 0;
}

/* Encoding gives known ids, no more than there are bytes, and decodes to the text. */
static void check_round_trip(struct tokenizer *t, const char *text, size_t n, bool specials, bool exact) {
    struct ids ids = {0};
    struct str back = STR_INIT, joined = STR_INIT;
    tokenizer_encode(t, text, n, specials, &ids);
    tokenizer_decode(t, ids.p, ids.len, false, &back);
    for (size_t i = 0; i < ids.len; i++) {
        ASSERT(ids.p[i] >= 0 && ids.p[i] < tokenizer_vocab(t));
        size_t m;
        const char *p = tokenizer_bytes(t, ids.p[i], &m);
        ASSERT(m > 0);
        str_add(&joined, p, m);
    }
    ASSERT(joined.len == back.len && memcmp(str_c(&joined), str_c(&back), back.len) == 0);
    if (exact) ASSERT(ids.len <= n && back.len == n && memcmp(str_c(&back), text, n) == 0);
    ids_free(&ids);
    str_free(&back);
    str_free(&joined);
}

/* What stands around a text is tokens. */
static void check_around(const struct ids *ids, const struct tokenizer *t) {
    for (size_t i = 0; i < ids->len; i++) {
        size_t n;
        tokenizer_bytes(t, ids->p[i], &n);
        ASSERT(n > 0);
    }
}

static void fuzz_file(const uint8_t *data, size_t size) {
    write_json(data, size);
    struct tokenizer *t = NULL;
    struct err e = {0};
    enum status st = tokenizer_open(dir, &t, &e);
    if (st != ST_OK) {
        ASSERT(!t && e.code == st && strstr(e.msg, dir));
        return;
    }
    static const char text[] = "for a == <think>\n  b\xff";
    /* What changes the text, or leaves some of it out, the file names; a name may be spelled in escapes. */
    static const char *const changes[] = {"normal", "\\u", "Removed", "add_prefix_space", "strip"};
    bool exact = true;
    for (size_t i = 0; i < ARRAY_LEN(changes); i++)
        exact = exact && !mem_find((const char *)data, size, changes[i], strlen(changes[i]));
    check_round_trip(t, text, sizeof text - 1, false, exact);
    check_round_trip(t, text, sizeof text - 1, true, exact);
    check_around(tokenizer_before(t), t);
    check_around(tokenizer_after(t), t);
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    if (data[0] & 1) {
        fuzz_file(data + 1, size - 1);
        return 0;
    }
    char *text = xmalloc(size);
    memcpy(text, data + 1, size - 1);
    for (int specials = 0; specials < 2; specials++) {
        check_round_trip(plain, text, size - 1, specials, true);
        check_round_trip(splitting, text, size - 1, specials, true);
        check_round_trip(stepping, text, size - 1, specials, true);
    }
    free(text);
    return 0;
}
