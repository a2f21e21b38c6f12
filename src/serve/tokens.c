/* /tokenize, /detokenize and /tokenizer_info. */
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "io/json.h"
#include "serve/generation.h"

static bool member(const json_t *o, const char *name, bool *out, struct ask_error *e) {
    const json_t *v = json_object_get(o, name);
    return !v || json_is_null(v) || ask_bool(v, name, out, e);
}

static void put_tokens(const struct serve *s, struct str *out, const struct ids *v, bool texts) {
    const struct tokenizer *t = model_thread_policy(s->thread)->tok;
    js_begin(out, NULL, '{');
    js_put_i64(out, "count", (int64_t)v->len);
    js_put_i64(out, "max_model_len", s->max_len);
    put_ids(out, "tokens", v->p, v->len);
    if (!texts) {
        js_put_null(out, "token_strs");
        js_end(out, '}');
        return;
    }
    js_begin(out, "token_strs", '[');
    for (size_t i = 0; i < v->len; i++) {
        CLEANUP_STR struct str text = STR_INIT;
        size_t n;
        const char *p = tokenizer_bytes(t, v->p[i], &n);
        detokenize_bytes(p, n, &text);
        js_put_strn(out, NULL, str_c(&text), text.len);
    }
    js_end(out, ']');
    js_end(out, '}');
}

/* The text of {"prompt": ...}, or of llama.cpp's {"content": ...}. */
static bool text_of(const json_t *o, struct ask_text *out, struct ask_error *e) {
    const char *name = json_object_get(o, "prompt") ? "prompt" : "content";
    return ask_string(json_object_get(o, name), name, out, e);
}

static bool tokenize(struct serve *s, const json_t *o, const char *body, size_t n, struct ids *out, bool *texts,
                     struct ask_error *e) {
    struct ask_text text = {0};
    bool whole = true;
    if (!member(o, "return_token_strs", texts, e) || !member(o, "with_pieces", texts, e)) return false;
    if (json_object_get(o, "messages")) { /* a body of a chat: its prompt */
        struct ask a;
        const bool fine = ask_parse(ASK_CHAT, body, n, &s->limits, &a, e) && prompts_of_messages(s, &a, out, e);
        ask_free(&a);
        return fine;
    }
    if (!text_of(o, &text, e) || !member(o, "add_special_tokens", &whole, e)) return false;
    (whole ? tokenizer_encode_whole : tokenizer_encode)(model_thread_policy(s->thread)->tok, text.p, text.n, true, out);
    return true;
}

void tokenize_begin(void *serve, struct exchange *x) {
    struct serve *s = serve;
    struct ask_error e;
    struct ids ids = {0};
    bool texts = false;
    size_t n;
    const char *body = http_body(x, &n);
    CLEANUP_JSON json_t *o = NULL;
    if (!serve_is_up(s, x)) return;
    if (!ask_object(body, n, &o, &e) || !tokenize(s, o, body, n, &ids, &texts, &e)) {
        reply_ask_error(x, &e);
    } else {
        struct str out = STR_INIT;
        put_tokens(s, &out, &ids, texts);
        http_reply_json(x, 200, &out);
    }
    ids_free(&ids);
}

void detokenize_begin_request(void *serve, struct exchange *x) {
    struct serve *s = serve;
    struct ask_error e;
    struct arena mem = ARENA_INIT;
    struct ask_ids ids;
    size_t n;
    const char *body = http_body(x, &n);
    CLEANUP_JSON json_t *o = NULL;
    if (!serve_is_up(s, x)) return;
    if (!ask_object(body, n, &o, &e) ||
        !ask_id_list(&mem, json_object_get(o, "tokens"), "tokens", s->limits.vocab, &ids, &e)) {
        reply_ask_error(x, &e);
    } else {
        struct str out = STR_INIT, raw = STR_INIT, text = STR_INIT;
        tokenizer_decode(model_thread_policy(s->thread)->tok, ids.p, (size_t)ids.n, false, &raw);
        detokenize_bytes(str_c(&raw), raw.len, &text);
        js_begin(&out, NULL, '{');
        js_put_strn(&out, "prompt", str_c(&text), text.len);
        js_end(&out, '}');
        str_free(&raw);
        str_free(&text);
        http_reply_json(x, 200, &out);
    }
    arena_free(&mem);
}

/* What stands in the model's tokenizer_config.json. */
void tokenizer_info_begin(void *serve, struct exchange *x) {
    struct serve *s = serve;
    struct str out = STR_INIT;
    struct err ignored;
    CLEANUP_JSON json_t *o = NULL;
    if (!serve_is_up(s, x)) return;
    CLEANUP_FREE char *path = fs_join(model_thread_policy(s->thread)->folder, "tokenizer_config.json");
    if (js_load(path, 16 << 20, &o, &ignored) != ST_OK || !json_is_object(o)) {
        json_decref(o);
        o = json_object();
    }
    if (!json_object_get(o, "tokenizer_class"))
        json_object_set_new(o, "tokenizer_class", json_string("Qwen2Tokenizer"));
    js_put_json(&out, NULL, o);
    http_reply_json(x, 200, &out);
}
