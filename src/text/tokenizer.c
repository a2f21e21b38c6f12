/* Loading tokenizers in Hugging Face's two layouts, and encoding and decoding with them. The merging itself is bpe.c,
 * the cutting into words pretok.c, added tokens added.c, normalisation unicode.c. */
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/postproc.h"
#include "text/pretok.h"
#include "text/split.h"
#include "text/unicode.h"

enum { MAX_FILE_BYTES = 256 << 20, MAX_WORD_BYTES = 64 << 20 };

struct tokenizer {
    struct bpe bpe;
    struct pretok *pretok;
    bool nfc;
    struct added_set raw, normalized; /* added tokens, looked for in the text as it is, and then in its normal form */
    struct ids before, after;         /* what the post-processor puts around a text */
    struct str normal;                /* scratch of tokenizer_encode */
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

/* True: the spelling is in the byte-level alphabet. One that is not stands for itself. */
static bool is_spelled(const char *key, size_t n, const char *bytes, size_t n_bytes) {
    if (n != n_bytes || memcmp(key, bytes, n) != 0) return true;
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~') return false;
    return true;
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
        const size_t len = bytelevel_unspell(key, n, buf.p);
        TRY(bpe_add_token(&t->bpe, buf.p, len, id < 0 || id > INT32_MAX ? -1 : (int32_t)id,
                          is_spelled(key, n, buf.p, len) ? BPE_WORD : BPE_RAW, false, e));
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
    const json_t *text = json_object_get(j, "content");
    const char *content = json_string_value(text);
    if (!content) return FAIL(e, ST_PARSE, "content: expected a string");
    if (id < 0 || id > INT32_MAX) return FAIL(e, ST_INVALID, "id: expected an integer >= 0");
    const size_t n = strlen(content);
    const bool normalized = json_is_true(json_object_get(j, "normalized"));
    TRY(bpe_add_token(&t->bpe, content, n, (int32_t)id, BPE_ADDED, json_is_true(json_object_get(j, "special")), e));
    struct added_token a = {.id = (int32_t)id,
                            .lstrip = json_is_true(json_object_get(j, "lstrip")),
                            .rstrip = json_is_true(json_object_get(j, "rstrip")),
                            .single_word = json_is_true(json_object_get(j, "single_word"))};
    a.p = tokenizer_bytes(t, (int32_t)id, &a.n);
    if (normalized && t->nfc && utf8_valid_prefix(content, n) == n && !unicode_is_plain(content, n)) {
        str_clear(&t->normal);
        unicode_nfc(content, n, &t->normal);
        a.n = t->normal.len;
        a.p = arena_strndup(&t->bpe.mem, t->normal.p, a.n);
    }
    added_add(normalized ? &t->normalized : &t->raw, a);
    return ST_OK;
}

/* Undoes the spelling of the alphabet, and nothing else. */
static enum status check_decoder(const json_t *j, struct err *e) {
    if (!j || json_is_null(j) || strcmp(type_of(j), "ByteLevel") == 0) return ST_OK;
    return FAIL(e, ST_UNSUPPORTED, "decoder.type: \"%s\" is not supported; expected ByteLevel", type_of(j));
}

/* A vocabulary has a token for each byte, so there is nothing unknown that unk_token and fuse_unk could be for. */
static enum status check_model(const json_t *model, struct err *e) {
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
    for (size_t i = 0; i < ARRAY_LEN(off); i++) TRY(require_off(model, "model", off[i], e));
    return ST_OK;
}

static enum status load_all_added(struct tokenizer *t, const json_t *list, struct err *e) {
    size_t i;
    const json_t *a;
    json_array_foreach(list, i, a) {
        const json_t *id = json_object_get(a, "id");
        if (load_added(t, a, json_is_integer(id) ? (int64_t)json_integer_value(id) : -1, e) != ST_OK)
            return err_note(e, "added_tokens[%zu]", i);
    }
    return ST_OK;
}

/* What the post-processor puts around a text must be tokens. */
static enum status check_around(const struct tokenizer *t, const struct ids *ids, struct err *e) {
    for (size_t i = 0; i < ids->len; i++) {
        size_t n;
        tokenizer_bytes(t, ids->p[i], &n);
        if (n == 0) return FAIL(e, ST_INVALID, "post_processor: there is no token %d", ids->p[i]);
    }
    return ST_OK;
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
    enum status st = check_model(model, e);
    if (st == ST_OK) st = load_normalizer(t, json_object_get(root, "normalizer"), e);
    if (st == ST_OK) st = pretok_load(json_object_get(root, "pre_tokenizer"), &t->pretok, e);
    if (st == ST_OK) st = check_decoder(json_object_get(root, "decoder"), e);
    if (st == ST_OK) st = postproc_load(json_object_get(root, "post_processor"), &t->before, &t->after, e);
    if (st == ST_OK) st = load_vocab(t, vocab, e);
    if (st == ST_OK) st = load_merges(t, merges, e);
    if (st == ST_OK) st = bpe_finish(&t->bpe, e);
    t->bpe.whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    if (st == ST_OK) st = load_all_added(t, json_object_get(root, "added_tokens"), e);
    if (st == ST_OK) st = check_around(t, &t->before, e);
    if (st == ST_OK) st = check_around(t, &t->after, e);
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

/* This layout does not say how text is cut; the class of the tokenizer does. Qwen2's need none. */
static enum status choose_by_class(struct tokenizer *t, const json_t *config, const char *where, struct err *e) {
    static const struct {
        const char *name, *pattern;
        bool nfc;
    } classes[] = {{"Qwen2Tokenizer", SPLIT_QWEN2, true},
                   {"Qwen2TokenizerFast", SPLIT_QWEN2, true},
                   {"GPT2Tokenizer", SPLIT_GPT2, false},
                   {"GPT2TokenizerFast", SPLIT_GPT2, false}};
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    if (!name) name = classes[0].name;
    for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
        if (strcmp(name, classes[i].name) != 0) continue;
        t->nfc = classes[i].nfc;
        return pretok_pattern(classes[i].pattern, &t->pretok, e);
    }
    return FAIL(e, ST_UNSUPPORTED,
                "%s: tokenizer_class: \"%s\" is not supported without a tokenizer.json; save_pretrained() of its "
                "tokenizer in transformers writes one",
                where, name);
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
    str_clear(&path);
    str_addf(&path, "%s/tokenizer_config.json", dir);
    const bool configured = fs_is_file(path.p);
    if (configured) TRY(read_json(path.p, &config, e));
    TRY(choose_by_class(t, config, path.p, e));
    if (!configured) return ST_OK;
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, v) {
        int64_t id;
        if (!parse_i64(key, &id)) id = -1;
        if (load_added(t, v, id, e) != ST_OK) return err_note(e, "%s: added_tokens_decoder[\"%s\"]", path.p, key);
    }
    return ST_OK;
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
    if (st == ST_OK) st = added_finish(&t->raw, e);
    if (st == ST_OK) st = added_finish(&t->normalized, e);
    if (st != ST_OK) {
        tokenizer_close(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    bpe_free(&t->bpe);
    pretok_free(t->pretok);
    added_free(&t->raw);
    added_free(&t->normalized);
    ids_free(&t->before);
    ids_free(&t->after);
    str_free(&t->normal);
    free(t);
}

int32_t tokenizer_vocab(const struct tokenizer *t) { return t->bpe.n_tok; }

/* ---- encoding -----------------------------------------------------------------------------------------------------*/

/* Where the ids go. */
struct sink {
    struct tokenizer *t;
    bool specials;
    struct ids *out;
};

static void encode_word(void *ctx, const char *p, size_t n) {
    struct sink *s = ctx;
    for (; n > MAX_WORD_BYTES; p += MAX_WORD_BYTES, n -= MAX_WORD_BYTES) /* bounds the scratch memory */
        bpe_word(&s->t->bpe, p, MAX_WORD_BYTES, s->out);
    bpe_word(&s->t->bpe, p, n, s->out);
}

/* Well-formed text in its normal form, or a token that was found in it. */
static void encode_normal(void *ctx, const char *p, size_t n, int32_t id) {
    struct sink *s = ctx;
    if (id >= 0)
        ids_add(s->out, id);
    else
        pretok_run(s->t->pretok, p, n, encode_word, s);
}

static void encode_well_formed(struct sink *s, const char *p, size_t n) {
    struct tokenizer *t = s->t;
    if (t->nfc && !unicode_is_plain(p, n)) {
        str_clear(&t->normal);
        unicode_nfc(p, n, &t->normal);
        p = t->normal.p;
        n = t->normal.len;
    }
    if (s->specials)
        added_run(&t->normalized, p, n, encode_normal, s);
    else
        encode_normal(s, p, n, -1);
}

/* Any text, or a token that was found in it. Bytes that are no UTF-8 are words of their own: they survive decoding as
 * they are. */
static void encode_raw(void *ctx, const char *p, size_t n, int32_t id) {
    struct sink *s = ctx;
    if (id >= 0) {
        ids_add(s->out, id);
        return;
    }
    while (n) {
        size_t good = utf8_valid_prefix(p, n), bad = 0;
        if (good) encode_well_formed(s, p, good);
        while (good + bad < n && utf8_char_len(p + good + bad, n - good - bad) == 0) bad++;
        if (bad) encode_word(s, p + good, bad);
        p += good + bad;
        n -= good + bad;
    }
}

void tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool specials, struct ids *out) {
    struct sink s = {t, specials, out};
    if (specials)
        added_run(&t->raw, text, n, encode_raw, &s);
    else
        encode_raw(&s, text, n, -1);
}

static void add_ids(struct ids *out, const struct ids *more) {
    for (size_t i = 0; i < more->len; i++) ids_add(out, more->p[i]);
}

void tokenizer_encode_whole(struct tokenizer *t, const char *text, size_t n, bool specials, struct ids *out) {
    add_ids(out, &t->before);
    tokenizer_encode(t, text, n, specials, out);
    add_ids(out, &t->after);
}

const struct ids *tokenizer_before(const struct tokenizer *t) { return &t->before; }
const struct ids *tokenizer_after(const struct tokenizer *t) { return &t->after; }

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
