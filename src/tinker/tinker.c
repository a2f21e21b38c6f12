#include "tinker/tinker.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "dist/comm.h"
#include "tinker/internal.h"

const struct tinker_options tinker_defaults = {
    .train_tokens = 8192,
    .max_awake = 8,
    .max_models = 64,
    .rest_bytes = 512LL << 20,
    .keep_s = 300,
    .max_queue = 4096,
    .max_held = 1LL << 30,
    .max_results = 256LL << 20,
    .reread_s = 60,
    .forget_s = 600,
    .key_models = 16,
    .key_tokens = 1LL << 25,
    .key_bytes = INT64_MAX,
};

/* ---- what routes share --------------------------------------------------------------------------------------------*/

double tinker_now_s(void) { return clock_now_s(); }

void reply_detail(struct http_exchange *x, int status, const char *fmt, ...) {
    char text[1400];
    CLEANUP_STR struct str told = STR_INIT;
    struct str out = STR_INIT;
    va_list ap;
    if (!x) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    http_tell_without_paths(&told, text);
    js_begin(&out, NULL, '{');
    js_put_str(&out, "detail", str_c(&told));
    js_end(&out, '}');
    http_reply_json(x, status, &out);
}

void reply_empty(struct http_exchange *x) {
    struct str out = STR_INIT;
    str_adds(&out, "{}");
    http_reply_json(x, 200, &out);
}

json_t *body_json(struct http_exchange *x) {
    struct incoming in = {.x = x};
    in.body = http_body(x, &in.n);
    return incoming_json(&in);
}

const char *body_name(struct http_exchange *x, const char *member, json_t **j) {
    struct err e = {0};
    const char *name;
    *j = body_json(x);
    if (!*j) return NULL;
    if (js_get_str(*j, "body", member, &name, &e) == ST_OK) return name;
    reply_detail(x, 422, "%s", e.msg);
    return NULL;
}

enum status read_json(const struct incoming *in, json_t **out, struct err *e) {
    json_error_t why;
    /* Without JSON_ALLOW_NUL: a name with a NUL inside would be read up to there. */
    json_t *j = json_loadb(in->body, in->n, JSON_REJECT_DUPLICATES, &why);
    *out = NULL;
    if (!j) return FAIL(e, ST_PARSE, "body:%d:%d: %s", why.line, why.column, why.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return FAIL(e, ST_INVALID, "body: expected an object");
    }
    *out = j;
    return ST_OK;
}

json_t *incoming_json(const struct incoming *in) {
    json_t *j;
    struct err e = {0};
    const enum status st = read_json(in, &j, &e);
    if (st != ST_OK) reply_detail(in->x, st == ST_PARSE ? 400 : 422, "%s", e.msg);
    return j;
}

bool model_is_up(struct tinker *t, struct http_exchange *x) {
    if (!t->restored && serve_ready(t->serve)) store_go_on(t);
    if (t->restored) return true;
    http_add_header(x, "retry-after", "1");
    reply_detail(x, 503, "the model is being loaded");
    return false;
}

struct digest body_digest(const struct http_exchange *x) {
    size_t n;
    const char *body = http_body(x, &n);
    return digest_of(body, n);
}

static struct tinker_session *session_find(const struct tinker *t, const char *id) {
    struct tinker_session *s = t->sessions;
    while (s && strcmp(s->id, id) != 0) s = s->next;
    return s;
}
struct tinker_run *run_find(const struct tinker *t, const char *id) {
    struct tinker_run *r = t->runs;
    while (r && strcmp(r->id, id) != 0) r = r->next;
    return r;
}
struct tinker_sampler *sampler_find(const struct tinker *t, const char *id) {
    struct tinker_sampler *m = t->samplers;
    while (m && strcmp(m->id, id) != 0) m = m->next;
    return m;
}

static bool session_is_seen(struct tinker *t, const struct http_exchange *x, const struct tinker_session *s) {
    return !x || tenant_sees(tenant_of(t, x), s->tenant->id);
}
struct tinker_session *session_seen(struct tinker *t, const struct http_exchange *x, const char *id) {
    struct tinker_session *s = session_find(t, id);
    return s && session_is_seen(t, x, s) ? s : NULL;
}
struct tinker_run *run_seen(struct tinker *t, const struct http_exchange *x, const char *id) {
    struct tinker_run *r = run_find(t, id);
    return r && session_is_seen(t, x, r->session) ? r : NULL;
}
struct tinker_sampler *sampler_seen(struct tinker *t, const struct http_exchange *x, const char *id) {
    struct tinker_sampler *m = sampler_find(t, id);
    return m && session_is_seen(t, x, m->session) ? m : NULL;
}

struct tinker_session *session_of(struct tinker *t, struct http_exchange *x, const char *id) {
    struct tinker_session *s = session_seen(t, x, id);
    if (!s)
        reply_detail(x, 403, "there is no session \"%.200s\" here", id);
    else if (s->finished)
        reply_detail(x, 410, "the session %s has ended", id);
    if (!s || s->finished) return NULL;
    s->heard = tinker_now_s();
    return s;
}

/* ---- sessions -----------------------------------------------------------------------------------------------------*/

static void client_config_begin(void *tinker, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)tinker;
    /* The first two make versions 0.22 to 0.24 send the same requests as later ones. The last one tells a client of
     * this program that asample knows the member "stream" (calls.h). */
    str_adds(&out, "{\"proto_write_fwdbwd\":true,\"fwd_via_fwdbwd\":true,\"sample_max_concurrent_requests\":512,"
                   "\"sample_use_retrieve_futures\":true,\"sample_join_sampling_session\":true,"
                   "\"kernelrl_streams\":true}");
    http_reply_json(x, 200, &out);
}

static void dynamic_config_begin(void *tinker, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)tinker;
    str_adds(&out, "{\"sample_cancel_enabled\":true}");
    http_reply_json(x, 200, &out);
}

static void telemetry_begin(void *tinker, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)tinker;
    str_adds(&out, "{\"status\":\"accepted\"}");
    http_reply_json(x, 200, &out);
}

static void healthz_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    struct str out = STR_INIT;
    if (!model_is_up(t, x)) return;
    str_adds(&out, "{\"status\":\"ok\"}");
    http_reply_json(x, 200, &out);
}

bool random_name(char out[40]) {
    uint64_t r[2];
    if (getrandom(r, sizeof r, 0) != sizeof r) return false;
    snprintf(out, 40, "%08x-%04x-4%03x-a%03x-%012llx", (unsigned)(r[0] >> 32), (unsigned)(r[0] >> 16) & 0xffffU,
             (unsigned)r[0] & 0xfffU, (unsigned)(r[1] >> 48) & 0xfffU, (unsigned long long)(r[1] & 0xffffffffffffULL));
    return true;
}

static int living_sessions(const struct tinker *t, const struct tinker_tenant *b) {
    int n = 0;
    for (const struct tinker_session *s = t->sessions; s; s = s->next) n += !s->finished && s->tenant == b;
    return n;
}

static void create_session_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = body_json(x);
    struct err e = {0};
    struct str out = STR_INIT;
    const char *name = NULL, *project = NULL;
    const json_t *metadata;
    if (!j || !model_is_up(t, x)) return;
    if (call_read_label(j, "display_name", &name, &e) != ST_OK ||
        call_read_label(j, "project_id", &project, &e) != ST_OK || call_read_metadata(j, &metadata, &e) != ST_OK) {
        reply_detail(x, 422, "%s", e.msg);
        return;
    }
    if (living_sessions(t, tenant_of(t, x)) >= SESSIONS) {
        reply_detail(x, 429, "there are %d sessions, as many as there may be at a time: end one", SESSIONS);
        return;
    }
    struct tinker_session *s = xcalloc(1, sizeof *s);
    if (!random_name(s->id)) {
        free(s);
        reply_detail(x, 500, "no random numbers: %s", strerror(errno));
        return;
    }
    s->project = project ? xstrdup(project) : NULL;
    s->made = (int64_t)time(NULL);
    s->name = name ? xstrdup(name) : NULL;
    s->metadata = metadata ? json_dumps(metadata, JSON_COMPACT) : NULL;
    s->tenant = tenant_of(t, x);
    s->samples = -1;
    s->heard = tinker_now_s();
    s->next = t->sessions;
    t->sessions = s;
    if (store_session(t, s, &e) != ST_OK) { /* it will be forgotten like one that is not heard of */
        reply_detail(x, 503, "%s", e.msg);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "session_id", s->id);
    js_put_str(&out, "type", "create_session");
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

static void heartbeat_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = NULL;
    struct str out = STR_INIT;
    const char *id = body_name(x, "session_id", &j);
    if (!id || !model_is_up(t, x) || !session_of(t, x, id)) return;
    str_adds(&out, "{\"type\":\"session_heartbeat\"}");
    http_reply_json(x, 200, &out);
}

/* Nothing of a session that has ended is under way. */
static bool is_quiet(const struct tinker *t, const struct tinker_session *s) {
    for (const struct tinker_run *r = t->runs; r; r = r->next)
        if (r->session == s && r->busy) return false;
    return true;
}

void session_settle(struct tinker *t, struct tinker_session *s) {
    if (!is_quiet(t, s)) return;
    futures_drop(t, s);
    if (!atomic_load(&t->closing)) store_end_session(t, s, true); /* the next server goes on with it */
    for (struct tinker_run *r = t->runs; r; r = r->next) {
        if (r->session != s || r->gone) continue;
        struct task *w = task_make(t, TASK_DROP);
        r->gone = true;
        w->run = r;
        task_begin(w);
    }
    for (struct tinker_sampler *m = t->samplers; m; m = m->next) {
        if (m->session != s || m->gone) continue;
        m->gone = true;
        m->went = tinker_now_s();
        if (!m->ready || m->adapter == ADAPTER_BASE) continue;
        struct task *w = task_make(t, TASK_DROP);
        w->adapter = m->adapter;
        m->ready = false;
        task_begin(w);
    }
}

void session_finish(struct tinker *t, struct tinker_session *s, const char *reason) {
    static const char *const reasons[] = {"interrupted", "success", "errored"};
    if (s->finished) return;
    s->finished = true;
    s->ended = tinker_now_s();
    s->reason = reasons[0];
    for (size_t i = 0; reason && i < ARRAY_LEN(reasons); i++)
        if (strcmp(reason, reasons[i]) == 0) s->reason = reasons[i];
    store_end_session(t, s, false);
    for (struct tinker_run *r = t->runs; r; r = r->next)
        if (r->session == s) run_fail_held(t, r, "the session has ended");
    samplings_end(t, s);
    for (struct tinker_sampler *m = t->samplers; m; m = m->next)
        if (m->session == s) completions_wake(m); /* they are told that the session has ended */
    if (s->samples >= 0) close(s->samples);
    s->samples = -1;
    session_settle(t, s);
}

/* sessions/ID/finish and sessions/search */
static void session_post_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    const char *tail = http_tail(x), *slash = strchr(tail, '/');
    if (!model_is_up(t, x)) return;
    if (strcmp(tail, "search") == 0) {
        sessions_search_begin(t, x);
        return;
    }
    if (!slash || strcmp(slash, "/finish") != 0) {
        reply_detail(x, 404, "there is no such call");
        return;
    }
    CLEANUP_FREE char *id = xstrndup(tail, (size_t)(slash - tail));
    struct tinker_session *s = session_seen(t, x, id);
    if (!s) {
        reply_detail(x, 403, "there is no session \"%.200s\" here", id);
        return;
    }
    CLEANUP_JSON json_t *j = body_json(x);
    if (!j) return;
    session_finish(t, s, json_string_value(json_object_get(json_object_get(j, "reason"), "type")));
    reply_empty(x);
}

void tinker_tick(struct tinker *t) {
    const double now = tinker_now_s();
    if (!t->restored && serve_ready(t->serve)) store_go_on(t);
    if (now - t->ticked < 5) return;
    t->ticked = now;
    futures_age(t, now);
    futures_trim(t, now);
    completions_age(t, now);
    runs_mind_gaps(t, now);
    checkpoints_age(t, (int64_t)time(NULL));
    for (struct tinker_session *s = t->sessions; s; s = s->next)
        if (!s->finished && now - s->heard > SESSION_S) {
            const char *name = s->tenant->name;
            log_info("tinker: session %s%s%s: not heard of for %d minutes, ended", s->id, name ? " of " : "",
                     name ? name : "", SESSION_S / 60);
            session_finish(t, s, NULL);
        }
    ended_forget(t, now);
}

/* ---- routes -------------------------------------------------------------------------------------------------------*/

static void unknown_begin(void *tinker, struct http_exchange *x) {
    const char *version = http_header(x, "x-sdk-version");
    (void)tinker;
    log_warn("tinker: %s %.200s is not known here (client %.50s)", http_method(x), http_path(x),
             version ? version : "without a version");
    reply_detail(x, 404, "this server does not have this call");
}

/* JSON that is read on the server's thread: some 20 ms at most. Longest are lists of requests whose results a client
 * has fetched, some 60 bytes each. */
enum { MAX_JSON = 512 << 10 };
#define API "/api/v1/"
#define POST(p, fn) \
    { .method = "POST", .path = API p, .access = HTTP_KEY, .body = HTTP_JSON_BODY, .max_body = MAX_JSON, .begin = fn }
#define GET(p, fn) \
    { .method = "GET", .path = API p, .access = HTTP_KEY, .begin = fn }

static const struct http_route routes[] = {
    {.method = "GET", .path = API "healthz", .access = HTTP_OPEN, .begin = healthz_begin},
    POST("client/config", client_config_begin),
    POST("client/dynamic_config", dynamic_config_begin),
    {.method = "POST", .path = API "telemetry", .access = HTTP_KEY, .body = HTTP_JSON_BODY, .begin = telemetry_begin},
    POST("create_session", create_session_begin),
    POST("session_heartbeat", heartbeat_begin),
    POST("sessions/*", session_post_begin),
    POST("create_model", create_model_begin),
    POST("load_weights", load_weights_begin),
    POST("get_info", get_info_begin),
    {.method = "POST",
     .path = API "forward_backward",
     .access = HTTP_KEY,
     .body = HTTP_ANY_BODY,
     .begin = forward_backward_begin,
     .event = reading_event,
     .end = reading_end},
    POST("optim_step", optim_step_begin),
    POST("save_weights", save_weights_begin),
    POST("save_weights_for_sampler", save_sampler_begin),
    POST("save_weights_external", save_external_begin),
    {.method = "POST",
     .path = API "retrieve_futures",
     .access = HTTP_KEY,
     .body = HTTP_JSON_BODY,
     .max_body = MAX_JSON,
     .begin = retrieve_many_begin,
     .event = retrieve_many_event,
     .end = retrieve_many_end},
    POST("create_sampling_session", create_sampler_begin),
    POST("join_sampling_session", join_sampler_begin),
    {.method = "POST",
     .path = API "asample",
     .access = HTTP_KEY,
     .body = HTTP_JSON_BODY,
     .begin = sample_begin,
     .event = reading_event,
     .end = reading_end},
    POST("cancel_future", cancel_begin),
    {.method = "POST",
     .path = API "retrieve_future",
     .access = HTTP_KEY,
     .body = HTTP_JSON_BODY,
     .max_body = MAX_JSON,
     .begin = retrieve_begin,
     .event = retrieve_event,
     .end = retrieve_end},
    GET("get_server_capabilities", capabilities_begin),
    GET("training_runs", runs_list_begin),
    GET("training_runs/*", run_get_begin),
    {.method = "DELETE", .path = API "training_runs/*", .access = HTTP_KEY, .begin = run_delete_begin},
    {.method = "POST",
     .path = API "training_runs/*",
     .access = HTTP_KEY,
     .body = HTTP_OPTIONAL_JSON,
     .max_body = MAX_JSON,
     .begin = run_post_begin},
    {.method = "PUT",
     .path = API "training_runs/*",
     .access = HTTP_KEY,
     .body = HTTP_JSON_BODY,
     .max_body = MAX_JSON,
     .begin = run_put_begin},
    GET("checkpoints", checkpoints_list_begin),
    POST("weights_info", weights_info_begin),
    POST("copy_weights", copy_weights_begin),
    GET("billing/usage/checkpoints/current", storage_usage_begin),
    GET("samplers/*", sampler_get_begin),
    GET("sessions", sessions_list_begin),
    GET("sessions/*", session_get_begin),
    {.method = "PUT",
     .path = API "sessions/*",
     .access = HTTP_KEY,
     .body = HTTP_JSON_BODY,
     .max_body = MAX_JSON,
     .begin = session_project_begin},
    {.method = "GET", .path = API "files/*", .access = HTTP_OPEN, .begin = file_get_begin},
    {.method = "GET", .path = API "*", .access = HTTP_KEY, .begin = unknown_begin},
    {.method = "POST", .path = API "*", .access = HTTP_KEY, .body = HTTP_ANY_BODY, .begin = unknown_begin},
};

struct http_front tinker_front(struct tinker *t) {
    return (struct http_front){
        .name = "tinker", .route = routes, .n_routes = ARRAY_LEN(routes), .ctx = t, .metrics = tenants_metrics};
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

enum status tinker_open(const struct tinker_options *o, struct serve *s, struct tinker **out, struct err *e) {
    struct tinker *t = xcalloc(1, sizeof *t);
    *out = NULL;
    ASSERT(*o->dir == '/');
    t->o = o;
    t->completions = (int64_t)time(NULL) << 20; /* above those of the server before */
    t->serve = s;
    t->thread = serve_thread(s);
    enum status st = comm_open("self", NULL, &t->comm, e);
    if (st == ST_OK) st = checkpoints_open(t, e);
    if (st == ST_OK) st = store_open(t, e);
    if (st == ST_OK)
        *out = t;
    else
        tinker_close(t);
    return st;
}

static void finish_tasks(struct tinker *t) {
    while (t->n_tasks > 0) {
        struct pollfd p = {.fd = model_thread_fd(t->thread), .events = POLLIN};
        poll(&p, 1, 100);
        model_thread_collect(t->thread);
    }
}

/* The model's thread ends what it does for the clients, and gives up what it has for them. */
static void close_models(struct tinker *t) {
    if (!serve_ready(t->serve)) return;
    atomic_store(&t->closing, true);
    finish_tasks(t);
    task_begin(task_make(t, TASK_CLOSE));
    finish_tasks(t);
}

void tinker_close(struct tinker *t) {
    if (!t) return;
    for (struct tinker_session *s = t->sessions; s; s = s->next) {
        s->finished = true;
        for (struct tinker_run *r = t->runs; r; r = r->next)
            if (r->session == s) run_fail_held(t, r, "the server is ending");
    }
    samplings_end(t, NULL);
    close_models(t);
    futures_drop(t, NULL);
    for (struct tinker_run *r = t->runs, *next; r; r = next) {
        next = r->next;
        ended_run_free(r);
    }
    for (struct tinker_sampler *m = t->samplers, *next; m; m = next) {
        next = m->next;
        ended_sampler_free(m);
    }
    for (struct tinker_session *s = t->sessions, *next; s; s = next) {
        next = s->next;
        ended_session_free(s);
    }
    checkpoints_close(t);
    tenants_free(t);
    comm_close(t->comm);
    free(t->trained.run);
    free(t->session_folder);
    free(t->sampled);
    free(t);
}
