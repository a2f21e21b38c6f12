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

/* The token's text as a member of out; of a token that is no UTF-8 by itself the list of its bytes, as llama.cpp's. */
static void put_piece(struct str *out, const char *p, size_t n) {
    if (js_utf8_prefix(p, n) == n) {
        js_put_strn(out, "piece", p, n);
        return;
    }
    js_begin(out, "piece", '[');
    for (size_t i = 0; i < n; i++) js_put_i64(out, NULL, (unsigned char)p[i]);
    js_end(out, ']');
}

static void put_tokens(const struct serve *s, struct str *out, const struct ids *v, bool texts, bool pieces) {
    const struct tokenizer *t = model_thread_policy(s->thread)->tok;
    size_t n;
    js_begin(out, NULL, '{');
    js_put_i64(out, "count", (int64_t)v->len);
    js_put_i64(out, "max_model_len", s->max_len);
    if (pieces) {
        js_begin(out, "tokens", '[');
        for (size_t i = 0; i < v->len; i++) {
            const char *p = tokenizer_bytes(t, v->p[i], &n);
            js_begin(out, NULL, '{');
            js_put_i64(out, "id", v->p[i]);
            put_piece(out, p, n);
            js_end(out, '}');
        }
        js_end(out, ']');
    } else {
        put_ids(out, "tokens", v->p, v->len);
    }
    if (texts) {
        js_begin(out, "token_strs", '[');
        for (size_t i = 0; i < v->len; i++) {
            CLEANUP_STR struct str text = STR_INIT;
            const char *p = tokenizer_bytes(t, v->p[i], &n);
            detokenize_bytes(p, n, &text);
            js_put_strn(out, NULL, str_c(&text), text.len);
        }
        js_end(out, ']');
    } else {
        js_put_null(out, "token_strs");
    }
    js_end(out, '}');
}

struct token_work {   /* of an exchange */
    struct work work; /* the first member */
    struct str reply;
    struct ask_error error;
    bool fine;
};

static bool tokenize(struct serve *s, struct tokenizer *t, const struct work *w, struct str *reply,
                     struct ask_error *e) {
    CLEANUP_JSON json_t *o = NULL;
    struct ask_text text = {0};
    struct ids ids = {0};
    bool texts = false, pieces = false, fine = true;
    if (!ask_object(str_c(&w->body), w->body.len, &o, e) || !member(o, "return_token_strs", &texts, e) ||
        !member(o, "with_pieces", &pieces, e))
        return false;
    if (json_object_get(o, "messages")) { /* a body of a chat: its prompt */
        struct ask a;
        fine = ask_parse(ASK_CHAT, str_c(&w->body), w->body.len, &s->limits, &a, e);
        fine = fine && prompts_of_messages(s, t, &a, &ids, e);
        ask_free(&a);
    } else {
        /* {"prompt": ...} is vLLM's form; {"content": ...} is llama.cpp's, which adds special tokens only when asked.
         */
        const bool llama = !json_object_get(o, "prompt") && json_object_get(o, "content");
        const char *name = llama ? "content" : "prompt";
        bool whole = !llama;
        fine = ask_string(json_object_get(o, name), name, &text, e) &&
               member(o, llama ? "add_special" : "add_special_tokens", &whole, e);
        if (fine) (whole ? tokenizer_encode_whole : tokenizer_encode)(t, text.p, text.n, true, &ids);
    }
    if (fine) put_tokens(s, reply, &ids, texts, pieces);
    ids_free(&ids);
    return fine;
}

static bool detokenize(struct serve *s, struct tokenizer *t, const struct work *w, struct str *reply,
                       struct ask_error *e) {
    CLEANUP_JSON json_t *o = NULL;
    CLEANUP_STR struct str raw = STR_INIT, text = STR_INIT;
    struct arena mem = ARENA_INIT;
    struct ask_ids ids = {0};
    const bool fine = ask_object(str_c(&w->body), w->body.len, &o, e) &&
                      ask_id_list(&mem, json_object_get(o, "tokens"), "tokens", s->limits.vocab, &ids, e);
    if (fine) {
        tokenizer_decode(t, ids.p, (size_t)ids.n, false, &raw);
        detokenize_bytes(str_c(&raw), raw.len, &text);
        js_begin(reply, NULL, '{');
        js_put_strn(reply, "prompt", str_c(&text), text.len);
        js_end(reply, '}');
    }
    arena_free(&mem);
    return fine;
}

static void run_tokenize(struct work *w, struct tokenizer *t) {
    struct token_work *k = (struct token_work *)w;
    if (t) k->fine = tokenize(w->s, t, w, &k->reply, &k->error);
}

static void run_detokenize(struct work *w, struct tokenizer *t) {
    struct token_work *k = (struct token_work *)w;
    if (t) k->fine = detokenize(w->s, t, w, &k->reply, &k->error);
}

static void free_work(struct token_work *k) {
    str_free(&k->reply);
    free(k);
}

static void worked(struct work *w) {
    struct token_work *k = (struct token_work *)w;
    if (!w->x) {
        free_work(k);
    } else if (k->fine) {
        http_reply_json(w->x, 200, &k->reply);
        k->reply = STR_INIT;
    } else {
        reply_ask_error(w->x, &k->error);
    }
}

static void begin(struct serve *s, struct http_exchange *x, void (*run)(struct work *w, struct tokenizer *t)) {
    if (!serve_is_up(s, x)) return;
    struct token_work *k = xcalloc(1, sizeof *k);
    k->work = (struct work){.run = run, .done = worked};
    k->error = (struct ask_error){.status = 500, .message = "the tokenizer cannot be opened"};
    http_set_state(x, k);
    work_begin(&k->work, s, x);
}

void tokenize_begin(void *serve, struct http_exchange *x) { begin(serve, x, run_tokenize); }
void detokenize_request_begin(void *serve, struct http_exchange *x) { begin(serve, x, run_detokenize); }

void tokens_event(void *serve, struct http_exchange *x, enum http_event e) { (void)serve, (void)x, (void)e; }

void tokens_end(void *serve, struct http_exchange *x) {
    struct token_work *k = http_state(x);
    (void)serve;
    if (k && work_end(&k->work)) free_work(k);
}

/* What stands in the model's tokenizer_config.json. */
void tokenizer_info_begin(void *serve, struct http_exchange *x) {
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
