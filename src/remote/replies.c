#include "remote/replies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "io/json.h"
#include "io/jsonl.h"

enum { LINE_MAX_BYTES = 80 << 20, FIRST_SLOTS = 256 };

struct kept_reply {
    struct digest request; /* "": an empty slot */
    struct remote_reply reply;
};
struct replies {
    struct arena arena;      /* texts */
    struct kept_reply *slot; /* [cap], a power of two; open addressing */
    size_t n, cap;
    struct jsonl_writer *file;
};

static struct kept_reply *slot_of(const struct replies *r, const struct digest *request) {
    size_t i = hash_bytes(request->hex, sizeof request->hex, 0) & (r->cap - 1);
    while (*r->slot[i].request.hex && !digest_equal(&r->slot[i].request, request)) i = (i + 1) & (r->cap - 1);
    return &r->slot[i];
}

static void grow(struct replies *r) {
    struct kept_reply *old = r->slot;
    const size_t n = r->cap;
    r->cap = n ? 2 * n : FIRST_SLOTS;
    r->slot = xcalloc(r->cap, sizeof *r->slot);
    for (size_t i = 0; i < n; i++)
        if (*old[i].request.hex) *slot_of(r, &old[i].request) = old[i];
    free(old);
}

static void remember(struct replies *r, const struct digest *request, const struct remote_reply *reply) {
    if (2 * (r->n + 1) > r->cap) grow(r);
    struct kept_reply *k = slot_of(r, request);
    r->n += !*k->request.hex;
    k->request = *request;
    k->reply = *reply;
    k->reply.text = arena_strdup(&r->arena, reply->text);
}

static enum status read_line(struct replies *r, const char *line, size_t n, const char *where, struct err *e) {
    CLEANUP_JSON json_t *o = NULL;
    const char *hex, *text, *finish = "";
    struct remote_reply reply = {.prompt_tokens = -1, .answer_tokens = -1};
    struct digest request;
    TRY(js_parse(line, n, where, &o, e));
    TRY(js_get_str(o, where, "request", &hex, e));
    TRY(js_get_str(o, where, "text", &text, e));
    TRY(js_opt_str(o, where, "finish", &finish, e));
    TRY(js_opt_i64(o, where, "prompt_tokens", &reply.prompt_tokens, e));
    TRY(js_opt_i64(o, where, "completion_tokens", &reply.answer_tokens, e));
    if (strlen(hex) + 1 != sizeof request.hex)
        return FAIL(e, ST_PARSE, "%s: request: expected 64 hexadecimal digits", where);
    memcpy(request.hex, hex, sizeof request.hex);
    snprintf(reply.finish, sizeof reply.finish, "%s", finish);
    struct str copy = STR_INIT;
    str_adds(&copy, text);
    reply.text = str_steal(&copy);
    remember(r, &request, &reply);
    free(reply.text);
    return ST_OK;
}

static enum status read_all(struct replies *r, const char *path, struct err *e) {
    struct jsonl_reader *in = NULL;
    TRY(jsonl_open(path, LINE_MAX_BYTES, &in, e));
    enum status st = ST_OK;
    while (st == ST_OK) {
        const char *line;
        size_t n;
        char where[4200];
        if ((st = jsonl_next(in, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(in));
        st = read_line(r, line, n, where, e);
    }
    jsonl_close(in);
    return st;
}

enum status replies_open(const char *path, struct replies **out, struct err *e) {
    struct replies *r = xcalloc(1, sizeof *r);
    grow(r);
    enum status st = jsonl_append_open(path, &r->file, NULL, e);
    if (st == ST_OK) st = read_all(r, path, e);
    if (st == ST_OK)
        *out = r;
    else
        replies_close(r);
    return st;
}

void replies_close(struct replies *r) {
    if (!r) return;
    jsonl_append_close(r->file);
    arena_free(&r->arena);
    free(r->slot);
    free(r);
}

bool replies_find(const struct replies *r, const struct digest *request, struct remote_reply *out) {
    const struct kept_reply *k = slot_of(r, request);
    if (!*k->request.hex) return false;
    *out = k->reply;
    out->text = xstrdup(k->reply.text);
    return true;
}

enum status replies_add(struct replies *r, const struct digest *request, const struct remote_reply *reply,
                        struct err *e) {
    CLEANUP_STR struct str line = STR_INIT;
    js_begin(&line, NULL, '{');
    js_put_str(&line, "request", request->hex);
    js_put_str(&line, "text", reply->text);
    js_put_str(&line, "finish", reply->finish);
    if (reply->prompt_tokens >= 0) js_put_i64(&line, "prompt_tokens", reply->prompt_tokens);
    if (reply->answer_tokens >= 0) js_put_i64(&line, "completion_tokens", reply->answer_tokens);
    js_end(&line, '}');
    TRY(jsonl_append(r->file, line.p, line.len, e));
    TRY(jsonl_sync(r->file, e));
    remember(r, request, reply);
    return ST_OK;
}
