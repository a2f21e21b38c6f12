/* Fuzz target: tokens of any bytes, stop strings and options. What comes out piece by piece is well-formed UTF-8 and,
 * together, what a search over all bytes at once gives. The first byte holds the options, the second the number of stop
 * strings; each begins with its length; the rest are token ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "text/bpe.h"
#include "text/detokenize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { WORDS = 8, FIRST_SPECIAL = 256 + WORDS };
static struct tokenizer *tok;

static void close_tokenizer(void) { tokenizer_close(tok); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const char *const words[WORDS] = {"ab",       "abab",     "ba\xE2\x82", "\xAC z",
                                             "\xF0\x9F", "\x98\x80", "\xE2",       "<|"};
    char dir[] = "/tmp/kernelrl_fuzz_detokenize_XXXXXX", path[64];
    ASSERT(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    struct str s = STR_INIT;
    str_addf(&s,
             "{\"added_tokens\":[{\"id\":%d,\"content\":\"<|end|>\",\"special\":true},"
             "{\"id\":%d,\"content\":\"<think>\",\"special\":false}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
             "\"add_prefix_space\":false,\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{",
             FIRST_SPECIAL, FIRST_SPECIAL + 1);
    for (int b = 0; b < 256; b++) str_addf(&s, "%s\"\\u%04x\":%d", b ? "," : "", bytelevel_char((unsigned char)b), b);
    for (int i = 0; i < WORDS; i++) {
        str_adds(&s, ",\"");
        for (const char *p = words[i]; *p; p++) str_addf(&s, "\\u%04x", bytelevel_char((unsigned char)*p));
        str_addf(&s, "\":%d", 256 + i);
    }
    str_adds(&s, "}}}");
    struct err e = {0};
    ASSERT(fs_write_atomic(path, s.p, s.len, &e) == ST_OK);
    if (tokenizer_open(dir, &tok, &e) != ST_OK) fprintf(stderr, "%s\n", e.msg);
    ASSERT(tok && fs_remove(dir, &e) == ST_OK);
    str_free(&s);
    atexit(close_tokenizer);
    return 0;
}

/* A byte is itself, but for the highest ones, which are the longer tokens, and one that no tokenizer has. */
static int32_t id_of(uint8_t b) { return b < 245 ? b : 256 + (b - 245); }

/* The whole text, and which string has ended it (or -1) with which token. */
static int all_at_once(const struct detokenize_options *o, const int32_t *ids, size_t n, size_t *last,
                       struct str *out) {
    struct str bytes = STR_INIT, shown = STR_INIT, text = STR_INIT;
    int stop = -1;
    size_t end = 0;
    for (size_t t = 0; t < n && stop < 0; t++) {
        size_t m;
        const char *p = tokenizer_bytes(tok, ids[t], &m);
        for (size_t i = 0; i < m && stop < 0; i++) {
            str_addc(&bytes, p[i]);
            str_addc(&shown, !(o->skip_special && tokenizer_special(tok, ids[t])));
            end = bytes.len;
            for (int k = 0; k < o->n_stop_strings && t >= (size_t)o->min_tokens; k++) {
                const size_t length = strlen(o->stop_strings[k]);
                if (length > bytes.len || memcmp(bytes.p + bytes.len - length, o->stop_strings[k], length) != 0)
                    continue;
                if (stop < 0 || length > strlen(o->stop_strings[stop])) stop = k;
            }
        }
        *last = t;
    }
    if (stop >= 0 && !o->include_stop) end -= strlen(o->stop_strings[stop]);
    for (size_t i = 0; i < end; i++)
        if (shown.p[i]) str_addc(&text, bytes.p[i]);
    detokenize_bytes(text.p, text.len, out);
    str_free(&bytes);
    str_free(&shown);
    str_free(&text);
    return stop;
}

static void check(const struct detokenize_options *o, const int32_t *ids, size_t n) {
    struct detokenizer d;
    struct str got = STR_INIT, want = STR_INIT;
    size_t last = 0, t = 0;
    int64_t offset = 0;
    detokenize_begin(&d, o);
    const int stop = all_at_once(o, ids, n, &last, &want);
    for (bool ended = false; t < n && !ended; t++) {
        const size_t had = got.len;
        ended = detokenize_add(&d, ids[t], DETOKENIZE_DRAWN, &got);
        ASSERT(utf8_valid_prefix(str_c(&got) + had, got.len - had) == got.len - had);
        ASSERT(d.offset >= offset && d.offset <= d.begun);
        offset = d.offset;
    }
    ASSERT(d.stop == stop && (stop < 0 ? t == n : t == last + 1));
    detokenize_end(&d, &got);
    ASSERT(got.len == want.len && memcmp(str_c(&got), str_c(&want), got.len) == 0);
    ASSERT(stop >= 0 || d.begun == utf8_chars(str_c(&got), got.len));
    detokenize_free(&d);
    str_free(&got);
    str_free(&want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    enum { MOST = 5 };
    char *strings[MOST];
    struct detokenize_options o = {.tokenizer = tok,
                                   .stop_strings = (const char *const *)strings,
                                   .include_stop = data[0] & 1,
                                   .skip_special = data[0] & 2,
                                   .min_tokens = data[0] >> 4};
    size_t at = 2;
    for (int most = data[1] % (MOST + 1); o.n_stop_strings < most && at < size;) {
        const size_t n = data[at++] % 9;
        struct str s = STR_INIT;
        for (size_t i = 0; i < n && at < size; i++, at++)
            if (data[at]) str_addc(&s, (char)data[at]);
        if (s.len > 0) strings[o.n_stop_strings++] = str_steal(&s);
        str_free(&s);
    }
    const size_t n = size - at < 600 ? size - at : 600;
    int32_t *ids = xmalloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = id_of(data[at + i]);
    check(&o, ids, n);
    free(ids);
    for (int i = 0; i < o.n_stop_strings; i++) free(strings[i]);
    return 0;
}
