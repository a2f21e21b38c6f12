#include "rl/learn/texts.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct texts {
    struct remote *remote;
    const char *url;
};

static const char *given(const char *text) { return text && *text ? text : NULL; }

enum status texts_open(const struct sampler_options *o, const char *model, const volatile bool *cancel,
                       struct texts **out, struct err *e) {
    const char *url = given(o->base_url) ? o->base_url : server_address(o->server_type), *key, *from;
    ASSERT(url);
    TRY(server_key(o->api_key_env, o->server_type, url, &key, &from, e));
    const struct remote_options ro = {.base_url = url,
                                      .model = model,
                                      .key = key,
                                      .key_from = from,
                                      .reasoning_effort = given(o->reasoning_effort),
                                      .replies = o->replies,
                                      .in_flight = o->in_flight,
                                      .tries = o->tries,
                                      .timeout_s = o->timeout_s,
                                      .cancel = cancel};
    struct texts *t = xcalloc(1, sizeof *t);
    t->url = url;
    const enum status st = remote_open(&ro, &t->remote, e);
    if (st != ST_OK) {
        free(t);
        return st;
    }
    log_info("answers come from %s at %s%s%s", model, url, key ? ", with the key of " : "", key ? from : "");
    *out = t;
    return ST_OK;
}

void texts_close(struct texts *t) {
    if (!t) return;
    const struct remote_usage u = remote_usage(t->remote);
    if (u.answers + u.replayed > 0)
        log_info("%s: %lld answers (%lld more were on disk), %lld tokens of prompts and %lld of answers, %lld requests "
                 "tried again",
                 t->url, (long long)u.answers, (long long)u.replayed, (long long)u.prompt_tokens,
                 (long long)u.answer_tokens, (long long)u.retries);
    remote_close(t->remote);
    free(t);
}

struct remote_usage texts_usage(const struct texts *t) {
    return remote_usage(t->remote);
}

bool texts_is_elsewhere(const struct texts *t) { return !remote_is_here(t->url); }

/* ---- asking -------------------------------------------------------------------------------------------------------*/

/* A run of the server's model: replies become answers as they come. */
struct asking {
    struct remote_reply *reply;
    struct text_answer *out;
    int n;
    int64_t tokens;
    engine_progress_fn *progress;
    void *ctx;
};

static void pass_on(struct asking *a) {
    for (int i = 0; i < a->n; i++) {
        struct remote_reply *r = &a->reply[i];
        if (!r->text) continue;
        a->out[i] = (struct text_answer){.text = r->text,
                                         .tokens = i64_max(0, r->answer_tokens),
                                         .stop = strcmp(r->finish, "length") == 0 ? STOP_LENGTH : STOP_TOKEN};
        a->tokens += a->out[i].tokens;
        r->text = NULL;
    }
}

static bool on_progress(void *ctx, int done) {
    struct asking *a = ctx;
    pass_on(a);
    return !a->progress || a->progress(a->ctx, a->tokens, done, a->n);
}

static enum status ask(void *ctx, const struct text_request *req, int n, struct text_answer *out,
                       engine_progress_fn *progress, void *progress_ctx, struct err *e) {
    struct texts *t = ctx;
    struct asking a = {.out = out, .n = n, .progress = progress, .ctx = progress_ctx};
    struct remote_request *q = xcalloc((size_t)n + 1, sizeof *q);
    struct remote_message(*m)[2] = xcalloc((size_t)n + 1, sizeof *m);
    a.reply = xcalloc((size_t)n + 1, sizeof *a.reply);
    for (int i = 0; i < n; i++) {
        m[i][0] = (struct remote_message){"system", req[i].system};
        m[i][1] = (struct remote_message){"user", req[i].user};
        q[i] = (struct remote_request){.messages = m[i],
                                       .n_messages = 2,
                                       .temperature = req[i].temperature,
                                       .min_p = req[i].min_p,
                                       .max_tokens = req[i].max_tokens,
                                       .seed = req[i].seed};
    }
    const enum status st = remote_run(t->remote, q, n, a.reply, on_progress, &a, e);
    if (st == ST_OK) pass_on(&a);
    for (int i = 0; st != ST_OK && i < n; i++) {
        free(out[i].text);
        out[i].text = NULL;
    }
    free(a.reply);
    free(m);
    free(q);
    return st;
}

struct actor_texts texts_actor(struct texts *t) {
    return (struct actor_texts){ask, t};
}
