#include "serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "serve/generation.h"

const struct serve_options serve_defaults = {
    .max_adapters = 16,
    .max_queue = 1024,
    .max_wait_s = 600,
    .max_logprobs = 20,
    .max_n = 128,
    .max_samples = 4096,
    .max_prompts = 2048,
    .max_messages = 4096,
};

enum { STUCK_S = 30 };

/* ---- what routes share --------------------------------------------------------------------------------------------*/

void reply_ask_error(struct http_exchange *x, const struct ask_error *e) {
    http_reply_error(x, e->status, e->code, *e->param ? e->param : NULL, "%s", e->message);
}

bool serve_is_up(struct serve *s, struct http_exchange *x) {
    if (serve_ready(s)) return true;
    http_add_header(x, "retry-after", "1");
    http_reply_error(x, 503, "loading", NULL, "the model is being loaded");
    return false;
}

struct served_model *serve_model(struct serve *s, struct http_exchange *x, const char *name) {
    struct served_model *m = models_find(&s->models, name);
    if (!m)
        http_reply_error(x, 404, "model_not_found", "model", "the model \"%.200s\" does not exist: see /v1/models",
                         name);
    return m;
}

void serve_wait(struct serve *s, struct http_exchange *x) {
    for (int i = 0; i < s->n_waiting; i++)
        if (s->waiting[i] == x) return;
    if (s->n_waiting == s->cap_waiting) {
        s->cap_waiting = s->cap_waiting ? 2 * s->cap_waiting : 16;
        s->waiting = xrealloc(s->waiting, (size_t)s->cap_waiting * sizeof(struct http_exchange *));
    }
    s->waiting[s->n_waiting++] = x;
}

void serve_stop_waiting(struct serve *s, const struct http_exchange *x) {
    for (int i = 0; i < s->n_waiting; i++)
        if (s->waiting[i] == x) {
            memmove(s->waiting + i, s->waiting + i + 1,
                    (size_t)(s->n_waiting - i - 1) * sizeof(struct http_exchange *));
            s->n_waiting--;
            return;
        }
}

/* Each that waits looks again, in the order in which they came; who is still to wait says so anew. */
void serve_wake_waiting(struct serve *s) {
    const int n = s->n_waiting;
    struct http_exchange **list = xmalloc(((size_t)n + 1) * sizeof(struct http_exchange *));
    if (n > 0) memcpy(list, s->waiting, (size_t)n * sizeof(struct http_exchange *));
    s->n_waiting = 0;
    for (int i = 0; i < n; i++) http_wake(list[i]);
    free(list);
}

void serve_note_unknown(struct serve *s, const struct ask *a) {
    for (int i = 0; i < a->n_unknown; i++) {
        int k = 0;
        while (k < s->n_unknown && strcmp(s->unknown[k], a->unknown[i]) != 0) k++;
        if (k < s->n_unknown || s->n_unknown == MAX_UNKNOWN_FIELDS) continue;
        s->unknown[s->n_unknown++] = xstrdup(a->unknown[i]);
        log_info("a request has the field \"%s\", which nobody knows here: ignored, and not said again", a->unknown[i]);
    }
}

/* ---- routes -------------------------------------------------------------------------------------------------------*/

#define GENERATION(p, fn)                                                                     \
    {                                                                                         \
        .method = "POST", .path = p, .access = HTTP_KEY, .body = HTTP_JSON_BODY, .begin = fn, \
        .event = generation_event, .end = generation_end                                      \
    }
#define GET(p, who, fn) \
    { .method = "GET", .path = p, .access = who, .begin = fn }
#define TOKENS(p, fn)                                                                                                \
    {                                                                                                                \
        .method = "POST", .path = p, .access = HTTP_KEY, .body = HTTP_JSON_BODY, .begin = fn, .event = tokens_event, \
        .end = tokens_end                                                                                            \
    }
#define ADMIN(p, kind, fn)                                                                                  \
    {                                                                                                       \
        .method = "POST", .path = p, .access = HTTP_ADMIN, .body = kind, .begin = fn, .event = admin_event, \
        .end = admin_end                                                                                    \
    }

#define EMBEDDINGS(p)                                                                                       \
    {                                                                                                       \
        .method = "POST", .path = p, .access = HTTP_KEY, .body = HTTP_JSON_BODY, .begin = embeddings_begin, \
        .event = embeddings_event, .end = embeddings_end                                                    \
    }

/* Clients that were given an address without /v1 call the same without it. */
static const struct http_route routes[] = {
    GENERATION("/v1/completions", completions_begin),
    GENERATION("/completions", completions_begin),
    GENERATION("/v1/chat/completions", chat_begin),
    GENERATION("/chat/completions", chat_begin),
    GENERATION("/inference/v1/generate", generate_begin),
    EMBEDDINGS("/v1/embeddings"),
    EMBEDDINGS("/embeddings"),
    GET("/v1/models", HTTP_OPEN, models_list_begin),
    GET("/models", HTTP_OPEN, models_list_begin),
    GET("/v1/models/*", HTTP_OPEN, model_show_begin),
    TOKENS("/tokenize", tokenize_begin),
    TOKENS("/v1/tokenize", tokenize_begin),
    TOKENS("/detokenize", detokenize_request_begin),
    TOKENS("/v1/detokenize", detokenize_request_begin),
    GET("/tokenizer_info", HTTP_KEY, tokenizer_info_begin),
    GET("/v1/tokenizer_info", HTTP_KEY, tokenizer_info_begin),
    ADMIN("/v1/load_lora_adapter", HTTP_JSON_BODY, adapter_load_begin),
    ADMIN("/load_lora_adapter", HTTP_JSON_BODY, adapter_load_json_begin),
    ADMIN("/v1/unload_lora_adapter", HTTP_JSON_BODY, adapter_unload_begin),
    ADMIN("/pause", HTTP_NO_BODY, pause_begin),
    ADMIN("/resume", HTTP_NO_BODY, resume_begin),
    ADMIN("/reset_prefix_cache", HTTP_NO_BODY, reset_cache_begin),
    ADMIN("/abort_requests", HTTP_JSON_BODY, abort_requests_begin),
    GET("/is_paused", HTTP_KEY, is_paused_begin),
    GET("/get_world_size", HTTP_KEY, world_size_begin),
    GET("/server_info", HTTP_KEY, server_info_begin),
    GET("/version", HTTP_OPEN, version_begin),
};

static struct http_health health(void *serve) {
    const struct serve *s = serve;
    struct http_health h = {.ok = true};
    if (!serve_ready(s))
        h = (struct http_health){false, "the model is being loaded", "loading"};
    else if (model_thread_silent_s(s->thread) > STUCK_S)
        h = (struct http_health){false, "requests wait, and the model has made no step for 30 seconds", "stuck"};
    return h;
}

/* A pause ends with the server: what is admitted is to end. */
static void draining(void *serve) {
    struct serve *s = serve;
    if (s->pausing == PAUSED) engine_resume(model_thread_policy(s->thread)->engine);
    s->pausing = PAUSE_NONE;
    serve_wake_waiting(s);
}

struct http_front serve_front(struct serve *s) {
    return (struct http_front){.name = "openai",
                               .route = routes,
                               .n_routes = ARRAY_LEN(routes),
                               .ctx = s,
                               .health = health,
                               .metrics = serve_put_metrics,
                               .draining = draining};
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

static enum status name_models(struct serve *s, struct err *e) {
    const struct serve_options *o = s->o;
    models_begin(&s->models, s->thread, o->policy.model.name, o->max_adapters);
    for (size_t i = 0; i < o->n_adapters; i++)
        TRY(models_add(&s->models, o->adapters[i].name, o->adapters[i].value, e));
    for (size_t i = 0; i < o->n_aliases; i++)
        TRY(models_add_alias(&s->models, o->aliases[i].name, o->aliases[i].value, e));
    if (o->preferred) models_prefer(&s->models, o->preferred);
    for (size_t i = 0; i < o->n_aliases; i++)
        if (!models_find(&s->models, o->aliases[i].name))
            return FAIL(e, ST_CONFIG, "alias %s: there is no model \"%s\"", o->aliases[i].name, o->aliases[i].value);
    return ST_OK;
}

enum status serve_open(const struct serve_options *o, struct serve **out, struct err *e) {
    struct serve *s = xcalloc(1, sizeof *s);
    *out = NULL;
    s->o = o;
    serve_metrics_begin(&s->metrics);
    enum status st = model_thread_start(&o->policy, &o->aside, &s->thread, e);
    if (st == ST_OK) st = work_thread_start(s, &s->worker, e);
    if (st == ST_OK) st = name_models(s, e);
    if (st != ST_OK) {
        serve_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

struct model_thread *serve_thread(const struct serve *s) {
    return s->thread;
}

const char *serve_base_name(const struct serve *s, int i) {
    if (i == 0) return s->models.base->name;
    for (const struct served_model *m = s->models.first; m; m = m->next)
        if (m->alias_of && models_find(&s->models, m->name) == s->models.base && --i == 0) return m->name;
    return NULL;
}

bool serve_is_base(const struct serve *s, const char *name) {
    const char *is;
    for (int i = 0; (is = serve_base_name(s, i)); i++)
        if (strcmp(is, name) == 0) return true;
    return false;
}

bool serve_ready(const struct serve *s) { return s->models.known; }

bool serve_failed(const struct serve *s, struct err *e) { return model_thread_state(s->thread, e) == MODEL_FAILED; }

static void become_ready(struct serve *s) {
    const struct policy *p = model_thread_policy(s->thread);
    const struct model_config *c = model_cfg(p->model);
    s->max_len = c->max_positions;
    if (s->o->max_len > 0 && s->o->max_len < s->max_len) s->max_len = s->o->max_len;
    s->stops = answer_stops(p->tok, p->style, c, true);
    s->limits = (struct ask_limits){.vocab = tokenizer_vocab(p->tok),
                                    .max_n = s->o->max_n,
                                    .max_prompts = s->o->max_prompts,
                                    .max_samples = s->o->max_samples,
                                    .max_messages = s->o->max_messages,
                                    .max_logprobs = (int)i64_min(i64_min(s->o->max_logprobs, MAX_LOGPROBS), c->V)};
    s->pooling = s->o->embeddings == SERVE_POOLING_AUTO ? embeddings_pooling(p->folder) : s->o->embeddings;
    s->identifying = true;
    models_identify(&s->models);
}

/* http_fd_fn: the model's thread has done something. */
static void collect(void *serve) {
    struct serve *s = serve;
    const int64_t changes = s->models.changes;
    model_thread_collect(s->thread);
    const enum model_state state = model_thread_state(s->thread, NULL);
    if (state == MODEL_FAILED && !http_draining(s->http)) http_drain(s->http);
    if (state == MODEL_READY && !s->identifying) become_ready(s);
    if (s->pausing == PAUSE_WAITING) pause_look(s);
    if (s->models.changes != changes) serve_wake_waiting(s);
}

enum status serve_attach(struct serve *s, struct http_server *http, struct err *e) {
    s->http = http;
    TRY(http_watch_fd(http, work_thread_fd(s->worker), work_thread_collect, s->worker, e));
    return http_watch_fd(http, model_thread_fd(s->thread), collect, s, e);
}

void serve_close(struct serve *s) {
    if (!s) return;
    work_thread_stop(s->worker);
    model_thread_stop(s->thread);
    models_free(&s->models);
    for (int i = 0; i < s->n_unknown; i++) free(s->unknown[i]);
    free(s->waiting);
    free(s);
}
