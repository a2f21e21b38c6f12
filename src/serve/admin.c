/* What changes the server while it runs: adapters, pauses, requests that are ended. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"
#include "serve/generation.h"

/* ---- adapters -----------------------------------------------------------------------------------------------------*/

struct admin_state { /* of an exchange that waits */
    struct serve *s;
    struct http_exchange *x; /* NULL: it has ended meanwhile */
    bool json, done, loading, pausing;
    enum status status;
    struct err err;
    char name[256];
};

static struct admin_state *admin_state(struct serve *s, struct http_exchange *x) {
    struct admin_state *a = xcalloc(1, sizeof *a);
    a->s = s;
    a->x = x;
    http_set_state(x, a);
    return a;
}

static void reply_text(struct http_exchange *x, bool json, const char *text) {
    struct str out = STR_INIT;
    str_adds(&out, json ? "{\"status\":\"ok\"}" : text);
    http_reply(x, 200, json ? "application/json" : "text/plain; charset=utf-8", &out);
}

/* models_done_fn */
static void loaded(void *ctx, enum status st, const struct err *e) {
    struct admin_state *a = ctx;
    a->done = true;
    a->loading = false;
    a->status = st;
    if (st != ST_OK) a->err = *e;
    if (a->x)
        http_wake(a->x);
    else
        free(a);
}

/* The folder that a client names: it lies in the one that the server allows, wherever links lead. */
static bool allowed_folder(const struct serve *s, const char *path, char *out, struct ask_error *e) {
    char root[PATH_MAX];
    struct str within = STR_INIT;
    if (!s->o->adapter_dir)
        return ask_fail(e, NULL, "lora_path", "adapters of clients are off: the server has no --adapter-dir");
    if (!realpath(s->o->adapter_dir, root))
        return ask_fail(e, NULL, "lora_path", "the server's --adapter-dir is not there");
    if (*path == '/')
        str_adds(&within, path);
    else
        str_addf(&within, "%s/%s", root, path);
    const bool there = realpath(within.p, out) != NULL && fs_is_dir(out);
    str_free(&within);
    const size_t n = strlen(root);
    if (there && strncmp(out, root, n) == 0 && (out[n] == '/' || out[n] == 0)) return true;
    ask_fail(e, NULL, "lora_path", "there is no folder \"%.300s\" in the server's --adapter-dir", path);
    e->status = 404;
    return false;
}

static bool text_member(const json_t *o, const char *name, char *out, size_t room, struct ask_error *e) {
    struct ask_text t = {0};
    if (!ask_string(json_object_get(o, name), name, &t, e)) return false;
    if (t.n == 0 || t.n >= room || strlen(t.p) != t.n)
        return ask_fail(e, NULL, name, "%s: expected a text of 1 to %zu bytes", name, room - 1);
    snprintf(out, room, "%s", t.p);
    return true;
}

struct adapter_ask {
    char name[201], path[PATH_MAX], folder[PATH_MAX];
    bool in_place;
};

static bool parse_adapter(const struct serve *s, struct http_exchange *x, struct adapter_ask *a, bool by_prime,
                          struct ask_error *e) {
    CLEANUP_JSON json_t *o = NULL;
    size_t n;
    const char *body = http_body(x, &n);
    if (!ask_object(body, n, &o, e) || !text_member(o, "lora_name", a->name, sizeof a->name, e) ||
        !text_member(o, "lora_path", a->path, sizeof a->path, e))
        return false;
    const json_t *in_place = json_object_get(o, "load_inplace");
    a->in_place = by_prime;
    if (in_place && !json_is_null(in_place) && !ask_bool(in_place, "load_inplace", &a->in_place, e)) return false;
    return allowed_folder(s, a->path, a->folder, e);
}

static void load(struct serve *s, struct http_exchange *x, bool json) {
    struct adapter_ask a = {.in_place = false};
    struct ask_error e;
    if (!serve_is_up(s, x)) return;
    if (!parse_adapter(s, x, &a, json, &e)) {
        reply_ask_error(x, &e);
        return;
    }
    const struct served_model *m = models_find(&s->models, a.name);
    if (strcmp(a.name, "default") == 0 || (m && (!m->dir || strcmp(m->name, a.name) != 0))) {
        http_reply_error(x, 400, NULL, "lora_name", "\"%s\" is the name of a model that is no adapter", a.name);
    } else if (m && !a.in_place) {
        http_reply_error(
            x, 400, NULL, "lora_name",
            "the adapter \"%s\" is loaded already; load_inplace replaces it, /v1/unload_lora_adapter takes "
            "it away",
            a.name);
    } else {
        struct admin_state *st = admin_state(s, x);
        st->json = json;
        st->loading = true;
        snprintf(st->name, sizeof st->name, "%s", a.name);
        models_load(&s->models, a.name, a.folder, loaded, st);
    }
}

void adapter_load_begin(void *serve, struct http_exchange *x) { load(serve, x, false); }
void adapter_load_json_begin(void *serve, struct http_exchange *x) { load(serve, x, true); }

void adapter_unload_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    CLEANUP_JSON json_t *o = NULL;
    char name[201];
    struct ask_error e;
    struct err why;
    size_t n;
    const char *body = http_body(x, &n);
    if (!serve_is_up(s, x)) return;
    if (!ask_object(body, n, &o, &e) || !text_member(o, "lora_name", name, sizeof name, &e)) {
        reply_ask_error(x, &e);
        return;
    }
    const enum status st = models_remove(&s->models, name, &why);
    if (st == ST_OK) {
        CLEANUP_STR struct str text = STR_INIT;
        str_addf(&text, "Success: LoRA adapter '%s' removed successfully.", name);
        reply_text(x, false, text.p);
        return;
    }
    http_reply_error(x, st == ST_CONFIG ? 404 : 400, NULL, "lora_name", "%s", why.msg);
}

void admin_event(void *serve, struct http_exchange *x, enum http_event e) {
    struct admin_state *a = http_state(x);
    (void)serve;
    if (!a || e != HTTP_WOKEN) return;
    if (a->pausing) {
        if (a->s->pausing != PAUSE_WAITING)
            reply_text(x, true, NULL);
        else
            serve_wait(a->s, x);
        return;
    }
    if (!a->done) return;
    if (a->status != ST_OK) {
        http_reply_error(x, 400, NULL, "lora_path", "%s", a->err.msg);
        return;
    }
    CLEANUP_STR struct str text = STR_INIT;
    str_addf(&text, "Success: LoRA adapter '%s' added successfully.", a->name);
    reply_text(x, a->json, text.p);
}

void admin_end(void *serve, struct http_exchange *x) {
    struct admin_state *a = http_state(x);
    if (!a) return;
    serve_stop_waiting(serve, x);
    a->x = NULL;
    if (!a->loading) free(a);
}

/* ---- pauses -------------------------------------------------------------------------------------------------------*/

static struct engine *engine_of(const struct serve *s) { return model_thread_policy(s->thread)->engine; }

static void reach_pause(struct serve *s) {
    engine_pause(engine_of(s));
    s->pausing = PAUSED;
}

void pause_look(struct serve *s) {
    for (const struct generation *g = s->generations; g; g = g->next)
        if (g->job && g->job->n_done < g->job->n_parts) return;
    reach_pause(s);
    serve_wake_waiting(s);
}

struct forget_call {
    struct model_call call;
};

static bool run_forget(struct model_call *c, struct policy *p) {
    struct err e;
    (void)c;
    if (engine_forget(p->engine, &e) != ST_OK) log_error("model: %s", e.msg);
    return true;
}

static void forgot(struct model_call *c) { free(c); }

/* What is in flight is computed anew behind a pause in which weights may have changed. */
static void forget(struct serve *s) {
    struct forget_call *c = xcalloc(1, sizeof *c);
    c->call = (struct model_call){.run = run_forget, .done = forgot};
    model_thread_call(s->thread, &c->call);
}

static bool query_is_true(const struct http_exchange *x, const char *name, bool usual) {
    const char *v = http_query(x, name);
    return v ? strcmp(v, "true") == 0 || strcmp(v, "True") == 0 || strcmp(v, "1") == 0 : usual;
}

static void abort_all(struct serve *s) {
    for (struct generation *g = s->generations; g; g = g->next)
        if (g->job) job_cancel(g->job);
}

void pause_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    const char *mode = http_query(x, "mode");
    if (!serve_is_up(s, x)) return;
    const int m = str_index_in("abort|wait|keep", mode ? mode : "abort", '|');
    if (m < 0) {
        http_reply_error(x, 400, NULL, "mode", "mode: expected abort, wait or keep, got %.100s", mode);
        return;
    }
    if (s->pausing == PAUSE_NONE) {
        s->pausing = PAUSE_WAITING;
        if (m == 0) abort_all(s);
        if (m == 2) reach_pause(s);
    }
    if (query_is_true(x, "clear_cache", true)) forget(s);
    if (s->pausing == PAUSE_WAITING) pause_look(s);
    if (s->pausing == PAUSED) {
        reply_text(x, true, NULL);
        return;
    }
    admin_state(s, x)->pausing = true;
    serve_wait(s, x);
}

void resume_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    if (!serve_is_up(s, x)) return;
    if (s->pausing == PAUSED) engine_resume(engine_of(s));
    s->pausing = PAUSE_NONE;
    serve_wake_waiting(s);
    reply_text(x, true, NULL);
}

void is_paused_begin(void *serve, struct http_exchange *x) {
    const struct serve *s = serve;
    struct str out = STR_INIT;
    js_begin(&out, NULL, '{');
    js_put_bool(&out, "is_paused", s->pausing != PAUSE_NONE);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void reset_cache_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    if (!serve_is_up(s, x)) return;
    forget(s);
    reply_text(x, true, NULL);
}

/* ---- requests -----------------------------------------------------------------------------------------------------*/

static bool is_named(const struct generation *g, const char *id) {
    return strcmp(g->id, id) == 0 || strcmp(http_request_id(g->x), id) == 0 ||
           (g->a.request_id && strcmp(g->a.request_id, id) == 0);
}

void abort_requests_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    CLEANUP_JSON json_t *o = NULL;
    struct ask_error e;
    size_t n, i;
    json_t *id;
    const char *body = http_body(x, &n);
    if (!serve_is_up(s, x)) return;
    if (!ask_object(body, n, &o, &e)) {
        reply_ask_error(x, &e);
        return;
    }
    const json_t *ids = json_object_get(o, "request_ids");
    if (!json_is_array(ids)) {
        http_reply_error(x, 400, NULL, "request_ids", "request_ids: expected a list of ids");
        return;
    }
    json_array_foreach(ids, i, id) {
        for (struct generation *g = s->generations; g && json_is_string(id); g = g->next)
            if (g->job && is_named(g, json_string_value(id))) job_cancel(g->job);
    }
    reply_text(x, true, NULL);
}

/* ---- about the server ---------------------------------------------------------------------------------------------*/

void world_size_begin(void *serve, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)serve;
    str_adds(&out, "{\"world_size\":1}");
    http_reply_json(x, 200, &out);
}

void server_info_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    struct str out = STR_INIT;
    if (!serve_is_up(s, x)) return;
    const struct policy *p = model_thread_policy(s->thread);
    js_begin(&out, NULL, '{');
    js_begin(&out, "vllm_config", '{');
    js_begin(&out, "model_config", '{');
    js_put_str(&out, "model", s->models.base->name);
    js_put_str(&out, "dtype", strcmp(model_dtype(p->model), "bf16") == 0 ? "bfloat16" : "float32");
    js_put_str(&out, "logprobs_mode", s->o->processed_logprobs ? "processed_logprobs" : "raw_logprobs");
    js_put_i64(&out, "max_model_len", s->max_len);
    js_put_i64(&out, "max_logprobs", s->limits.max_logprobs);
    js_end(&out, '}');
    js_end(&out, '}');
    js_put_str(&out, "version", KERNELRL_VERSION);
    js_put_str(&out, "renderer", chat_style_name(p->style));
    js_put_str(&out, "system_fingerprint", s->models.base->fingerprint);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void version_begin(void *serve, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)serve;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "version", KERNELRL_VERSION);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}
