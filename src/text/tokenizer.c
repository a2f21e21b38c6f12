/* Loading tokenizers in Hugging Face's two layouts, and encoding and decoding with them. The merging itself is bpe.c,
 * the cutting into words split.c, normalisation unicode.c. */
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/unicode.h"

enum { MAX_FILE_BYTES = 256 << 20, MAX_WORD_BYTES = 64 << 20 };

struct tokenizer {
    struct bpe bpe;
    struct splitter *split;
    bool nfc;
    int32_t *added; /* ids of the added tokens, longest text first: the leftmost, longest one is recognised */
    size_t n_added;
    bool added_starts[256]; /* whether any added token starts with the byte */
    struct str normal;      /* scratch of tokenizer_encode */
};

void ids_add(struct ids *v, int32_t id) {
    if (v->len == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 64;
        v->p = xrealloc(v->p, v->cap * sizeof *v->p);
    }
    v->p[v->len++] = id;
}

void ids_free(struct ids *v) {
    free(v->p);
    *v = (struct ids){0};
}

/* ---- loading ------------------------------------------------------------------------------------------------------*/

static void json_cleanup(json_t **j) { json_decref(*j); }
#define CLEANUP_JSON __attribute__((cleanup(json_cleanup)))

static enum status read_json(const char *path, json_t **out, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t n;
    TRY(fs_read(path, MAX_FILE_BYTES, &text, &n, e));
    json_error_t je;
    *out = json_loadb(text, n, 0, &je);
    if (!*out) return FAIL(e, ST_PARSE, "%s:%d:%d: %s", path, je.line, je.column, je.text);
    if (json_is_object(*out)) return ST_OK;
    json_decref(*out);
    *out = NULL;
    return FAIL(e, ST_PARSE, "%s: expected a JSON object", path);
}

static const char *type_of(const json_t *j) {
    const char *s = json_string_value(json_object_get(j, "type"));
    return s ? s : "(no type)";
}

/* A key that must be absent, null, false or empty, because we do not do what it asks for. */
static enum status require_off(const json_t *obj, const char *where, const char *key, struct err *e) {
    const json_t *v = json_object_get(obj, key);
    if (!v || json_is_null(v) || json_is_false(v)) return ST_OK;
    if (json_is_string(v) && json_string_length(v) == 0) return ST_OK;
    if (json_is_number(v) && json_number_value(v) == 0) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "%s.%s: not supported; expected null, false or nothing", where, key);
}

static enum status load_normalizer(struct tokenizer *t, const json_t *j, struct err *e) {
    if (!j || json_is_null(j)) return ST_OK;
    if (strcmp(type_of(j), "NFC") == 0) {
        t->nfc = true;
        return ST_OK;
    }
    if (strcmp(type_of(j), "Sequence") == 0) {
        size_t i;
        const json_t *step;
        json_array_foreach(json_object_get(j, "normalizers"), i, step) TRY(load_normalizer(t, step, e));
        return ST_OK;
    }
    return FAIL(e, ST_UNSUPPORTED, "normalizer.type: \"%s\" is not supported; expected NFC or null", type_of(j));
}

static enum status load_split(struct tokenizer *t, const json_t *j, struct err *e) {
    const char *pattern = json_string_value(json_object_get(json_object_get(j, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(j, "behavior"));
    if (!pattern) return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer Split.pattern: expected {\"Regex\": \"...\"}");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer Split.behavior: \"%s\" is not supported; expected Isolated",
                    behavior ? behavior : "");
    TRY(require_off(j, "pre_tokenizer Split", "invert", e));
    if (t->split) return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: more than one Split is not supported");
    TRY(splitter_create(pattern, &t->split, e));
    return ST_OK;
}

static enum status load_pre_tokenizer(struct tokenizer *t, const json_t *j, bool *byte_level, struct err *e) {
    if (!j || json_is_null(j)) return ST_OK;
    const char *type = type_of(j);
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *step;
        json_array_foreach(json_object_get(j, "pretokenizers"), i, step)
            TRY(load_pre_tokenizer(t, step, byte_level, e));
        return ST_OK;
    }
    if (*byte_level) return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: \"%s\" after ByteLevel is not supported", type);
    if (strcmp(type, "Split") == 0) return load_split(t, j, e);
    if (strcmp(type, "ByteLevel") == 0) {
        TRY(require_off(j, "pre_tokenizer ByteLevel", "add_prefix_space", e));
        *byte_level = true;
        const json_t *use = json_object_get(j, "use_regex");
        if (use && !json_is_true(use)) return ST_OK; /* absent means true */
        if (t->split) return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: Split and ByteLevel.use_regex together");
        return splitter_create(SPLIT_GPT2, &t->split, e);
    }
    return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer.type: \"%s\" is not supported; expected Split and ByteLevel", type);
}

static enum status load_vocab(struct tokenizer *t, json_t *vocab, struct err *e) {
    CLEANUP_STR struct str buf = STR_INIT;
    const char *key;
    json_t *v;
    json_object_foreach(vocab, key, v) {
        if (!json_is_integer(v)) return FAIL(e, ST_PARSE, "vocab[\"%.60s\"]: expected an integer id", key);
        json_int_t id = json_integer_value(v);
        size_t n = strlen(key);
        str_clear(&buf);
        str_add(&buf, key, n); /* room for n bytes */
        n = bytelevel_unspell(key, n, buf.p);
        TRY(bpe_add_token(&t->bpe, buf.p, n, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, false, false, e));
    }
    return ST_OK;
}

static enum status add_merge(struct tokenizer *t, const char *l, size_t nl, const char *r, size_t nr, struct str *buf,
                             struct err *e) {
    str_clear(buf);
    str_add(buf, l, nl);
    str_add(buf, r, nr); /* room for both */
    size_t ul = bytelevel_unspell(l, nl, buf->p), ur = bytelevel_unspell(r, nr, buf->p + ul);
    return bpe_add_merge(&t->bpe, buf->p, ul, buf->p + ul, ur, e);
}

/* "a b": the alphabet has no space, so the only one separates. */
static enum status add_merge_line(struct tokenizer *t, const char *s, size_t n, struct str *buf, struct err *e) {
    const char *sp = memchr(s, ' ', n);
    if (!sp || sp == s || sp + 1 == s + n || memchr(sp + 1, ' ', n - (size_t)(sp + 1 - s)))
        return FAIL(e, ST_PARSE, "merge \"%.*s\": expected two tokens separated by one space", (int)(n < 60 ? n : 60),
                    s);
    return add_merge(t, s, (size_t)(sp - s), sp + 1, n - (size_t)(sp + 1 - s), buf, e);
}

static enum status load_merges(struct tokenizer *t, const json_t *merges, struct err *e) {
    CLEANUP_STR struct str buf = STR_INIT;
    size_t i;
    const json_t *m;
    json_array_foreach(merges, i, m) {
        const json_t *l = json_array_get(m, 0), *r = json_array_get(m, 1);
        enum status st;
        if (json_is_string(m)) {
            st = add_merge_line(t, json_string_value(m), json_string_length(m), &buf, e);
        } else if (json_array_size(m) == 2 && json_is_string(l) && json_is_string(r)) {
            st = add_merge(t, json_string_value(l), json_string_length(l), json_string_value(r), json_string_length(r),
                           &buf, e);
        } else {
            st = FAIL(e, ST_PARSE, "expected \"a b\" or [\"a\", \"b\"]");
        }
        if (st != ST_OK) return err_note(e, "merges[%zu]", i);
    }
    return ST_OK;
}

static enum status load_added(struct tokenizer *t, const json_t *j, int64_t id, struct err *e) {
    const char *content = json_string_value(json_object_get(j, "content"));
    if (!content) return FAIL(e, ST_PARSE, "content: expected a string");
    TRY(require_off(j, content, "lstrip", e));
    TRY(require_off(j, content, "rstrip", e));
    TRY(require_off(j, content, "single_word", e));
    if (id < 0 || id > INT32_MAX) return FAIL(e, ST_INVALID, "id: expected an integer >= 0");
    /* A "normalized" token is looked for in the normalised text; with ASCII contents NFC makes no difference. */
    if (json_is_true(json_object_get(j, "normalized")) && !unicode_is_plain(content, strlen(content)))
        return FAIL(e, ST_UNSUPPORTED, "\"%s\": normalized: not supported for this text", content);
    return bpe_add_token(&t->bpe, content, strlen(content), (int32_t)id, true,
                         json_is_true(json_object_get(j, "special")), e);
}

static enum status load_one_file(struct tokenizer *t, const char *path, struct err *e) {
    CLEANUP_JSON json_t *root = NULL;
    TRY(read_json(path, &root, e));
    json_t *model = json_object_get(root, "model");
    const char *type = model ? json_string_value(json_object_get(model, "type")) : NULL;
    if (!json_is_object(model)) return FAIL(e, ST_PARSE, "%s: model missing; expected an object", path);
    if (type && strcmp(type, "BPE") != 0)
        return FAIL(e, ST_UNSUPPORTED, "%s: model.type: \"%s\" is not supported; expected BPE", path, type);
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab)) return FAIL(e, ST_PARSE, "%s: model.vocab missing; expected an object", path);
    if (!json_is_array(merges))
        return FAIL(e, ST_PARSE, "%s: model.merges missing; expected a list (a BPE tokenizer is nothing without)",
                    path);
    static const char *const off[] = {"dropout",  "unk_token",    "continuing_subword_prefix", "end_of_word_suffix",
                                      "fuse_unk", "byte_fallback"};
    enum status st = ST_OK;
    bool byte_level = false;
    for (size_t i = 0; i < ARRAY_LEN(off) && st == ST_OK; i++) st = require_off(model, "model", off[i], e);
    if (st == ST_OK) st = load_normalizer(t, json_object_get(root, "normalizer"), e);
    if (st == ST_OK) st = load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), &byte_level, e);
    if (st == ST_OK && !byte_level)
        st = FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: no ByteLevel step; only byte-level BPE is supported");
    const json_t *decoder = json_object_get(root, "decoder");
    if (st == ST_OK && decoder && !json_is_null(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        st = FAIL(e, ST_UNSUPPORTED, "decoder.type: \"%s\" is not supported; expected ByteLevel", type_of(decoder));
    if (st == ST_OK && !t->split) st = splitter_create(SPLIT_QWEN2, &t->split, e);
    if (st == ST_OK) st = load_vocab(t, vocab, e);
    if (st == ST_OK) st = load_merges(t, merges, e);
    if (st == ST_OK) st = bpe_finish(&t->bpe, e);
    t->bpe.whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    size_t i;
    const json_t *a;
    if (st == ST_OK) json_array_foreach(json_object_get(root, "added_tokens"), i, a) {
            const json_t *id = json_object_get(a, "id");
            st = load_added(t, a, json_is_integer(id) ? (int64_t)json_integer_value(id) : -1, e);
            if (st != ST_OK) {
                err_note(e, "added_tokens[%zu]", i);
                break;
            }
        }
    return st == ST_OK ? ST_OK : err_note(e, "%s", path);
}

static enum status load_merges_txt(struct tokenizer *t, const char *path, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    CLEANUP_STR struct str buf = STR_INIT;
    size_t n;
    TRY(fs_read(path, MAX_FILE_BYTES, &text, &n, e));
    int line = 0;
    for (const char *p = text, *end = text + n, *next; p < end; p = next) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        next = eol ? eol + 1 : end;
        size_t len = (size_t)((eol ? eol : end) - p);
        line++;
        if (len && p[len - 1] == '\r') len--;
        /* Only the header is a comment: "# #" is a merge. */
        if (len == 0 || (line == 1 && str_has_prefix(p, "#version"))) continue;
        if (add_merge_line(t, p, len, &buf, e) != ST_OK) return err_note(e, "%s:%d", path, line);
    }
    return ST_OK;
}

static enum status load_two_files(struct tokenizer *t, const char *dir, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *vocab = NULL, *config = NULL;
    str_addf(&path, "%s/vocab.json", dir);
    TRY(read_json(path.p, &vocab, e));
    if (load_vocab(t, vocab, e) != ST_OK) return err_note(e, "%s", path.p);
    str_clear(&path);
    str_addf(&path, "%s/merges.txt", dir);
    TRY(load_merges_txt(t, path.p, e));
    if (bpe_finish(&t->bpe, e) != ST_OK) return err_note(e, "%s/vocab.json", dir);
    /* This layout does not say how text is cut; the models that come in it are Qwen2's. */
    t->nfc = true;
    TRY(splitter_create(SPLIT_QWEN2, &t->split, e));
    str_clear(&path);
    str_addf(&path, "%s/tokenizer_config.json", dir);
    if (!fs_is_file(path.p)) return ST_OK;
    TRY(read_json(path.p, &config, e));
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, v) {
        int64_t id;
        if (!parse_i64(key, &id)) id = -1;
        if (load_added(t, v, id, e) != ST_OK) return err_note(e, "%s: added_tokens_decoder[\"%s\"]", path.p, key);
    }
    return ST_OK;
}

static int longer_first(const void *a, const void *b, void *ctx) {
    const struct bpe *bpe = ctx;
    const struct bpe_token *x = &bpe->tok[*(const int32_t *)a], *y = &bpe->tok[*(const int32_t *)b];
    if (x->n != y->n) return x->n > y->n ? -1 : 1;
    return memcmp(x->p, y->p, x->n);
}

static void index_added(struct tokenizer *t) {
    struct bpe *b = &t->bpe;
    for (int32_t id = 0; id < b->n_tok; id++) t->n_added += b->tok[id].added;
    t->added = xcalloc(t->n_added + 1, sizeof *t->added);
    size_t n = 0;
    for (int32_t id = 0; id < b->n_tok; id++) {
        if (!b->tok[id].added) continue;
        t->added[n++] = id;
        t->added_starts[(unsigned char)b->tok[id].p[0]] = true;
    }
    qsort_r(t->added, t->n_added, sizeof *t->added, longer_first, b);
}

enum status tokenizer_open(const char *dir, struct tokenizer **out, struct err *e) {
    struct tokenizer *t = xcalloc(1, sizeof *t);
    bpe_init(&t->bpe);
    CLEANUP_STR struct str one = STR_INIT, two = STR_INIT;
    str_addf(&one, "%s/tokenizer.json", dir);
    str_addf(&two, "%s/vocab.json", dir);
    enum status st;
    *out = NULL;
    if (fs_is_file(one.p))
        st = load_one_file(t, one.p, e);
    else if (fs_is_file(two.p))
        st = load_two_files(t, dir, e);
    else
        st = FAIL(e, ST_IO, "%s: no tokenizer: expected tokenizer.json, or vocab.json and merges.txt", dir);
    if (st != ST_OK) {
        tokenizer_close(t);
        return st;
    }
    index_added(t);
    *out = t;
    return ST_OK;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    bpe_free(&t->bpe);
    splitter_free(t->split);
    free(t->added);
    str_free(&t->normal);
    free(t);
}

int32_t tokenizer_vocab(const struct tokenizer *t) { return t->bpe.n_tok; }

/* ---- encoding -----------------------------------------------------------------------------------------------------*/

struct sink {
    struct bpe *bpe;
    struct ids *out;
};

static void encode_word(void *ctx, const char *p, size_t n) {
    struct sink *s = ctx;
    for (; n > MAX_WORD_BYTES; p += MAX_WORD_BYTES, n -= MAX_WORD_BYTES) /* bounds the scratch memory */
        bpe_word(s->bpe, p, MAX_WORD_BYTES, s->out);
    bpe_word(s->bpe, p, n, s->out);
}

/* Text without added tokens. Bytes that are no UTF-8 are words of their own: they survive decoding as they are. */
static void encode_plain(struct tokenizer *t, const char *p, size_t n, struct ids *out) {
    struct sink sink = {&t->bpe, out};
    while (n) {
        size_t good = utf8_valid_prefix(p, n), bad = 0;
        if (good && t->nfc && !unicode_is_plain(p, good)) {
            str_clear(&t->normal);
            unicode_nfc(p, good, &t->normal);
            splitter_run(t->split, t->normal.p, t->normal.len, encode_word, &sink);
        } else if (good) {
            splitter_run(t->split, p, good, encode_word, &sink);
        }
        while (good + bad < n && utf8_char_len(p + good + bad, n - good - bad) == 0) bad++;
        if (bad) encode_word(&sink, p + good, bad);
        p += good + bad;
        n -= good + bad;
    }
}

/* The longest added token at the start of p[0..n), or -1. */
static int32_t added_at(const struct tokenizer *t, const char *p, size_t n) {
    if (!t->added_starts[(unsigned char)p[0]]) return -1;
    for (size_t i = 0; i < t->n_added; i++) {
        const struct bpe_token *a = &t->bpe.tok[t->added[i]];
        if (a->n <= n && memcmp(a->p, p, a->n) == 0) return t->added[i];
    }
    return -1;
}

void tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool specials, struct ids *out) {
    if (!specials) {
        encode_plain(t, text, n, out);
        return;
    }
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        int32_t id = added_at(t, text + i, n - i);
        if (id < 0) {
            i++;
            continue;
        }
        encode_plain(t, text + done, i - done, out);
        ids_add(out, id);
        done = i += t->bpe.tok[id].n;
    }
    encode_plain(t, text + done, n - done, out);
}

/* ---- decoding -----------------------------------------------------------------------------------------------------*/

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n) {
    if (id < 0 || id >= t->bpe.n_tok || !t->bpe.tok[id].p) {
        *n = 0;
        return "";
    }
    *n = t->bpe.tok[id].n;
    return t->bpe.tok[id].p;
}

bool tokenizer_special(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->bpe.n_tok && t->bpe.tok[id].p && t->bpe.tok[id].special;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct str *out) {
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *p = tokenizer_bytes(t, ids[i], &len);
        if (!skip_special || !tokenizer_special(t, ids[i])) str_add(out, p, len);
    }
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token) { return bpe_find(&t->bpe, token, strlen(token)); }
