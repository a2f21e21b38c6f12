#include "hosted/link.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/json.h"
#include "remote/call.h"
#include "remote/remote.h"

#define POST_TIMEOUT_S 60.0
#define POLL_TIMEOUT_S 45.0
#define MAX_WAIT_S 10.0   /* between two tries */
#define SHORT_POLL_S 0.25 /* a server that answers "not yet" at once is asked no more often */
enum { STEP_MS = 100, BEAT_S = 10, BAD_POLLS = 3, SAID_MAX = 600 };

struct link {
    struct link_options o;
    char *base; /* .../api/v1/ */
    bool here;
    const char *ca_file;
    char *key_line; /* "X-API-Key: ...", or NULL */
    CURLM *multi;
    struct slot *slot; /* [o.in_flight] */
};

/* A call that has begun. */
struct slot {
    struct call call;
    struct link_call *of; /* NULL: none */
    char *request_id;     /* NULL: there is no promise yet */
    bool busy;            /* true: a transfer is under way */
    double not_before_s;  /* else: when the next one begins */
    double begun_s;       /* of the transfer */
    int tries, bad_polls; /* failures, one after another */
    double trouble_s;     /* since when; 0: there is none */
};

/* ---- opening ------------------------------------------------------------------------------------------------------*/

static enum status check(const char *url, struct err *e) {
    CURLU *u = curl_url();
    char *scheme = NULL, *user = NULL;
    const bool fine = curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                      curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                      (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) &&
                      curl_url_get(u, CURLUPART_USER, &user, 0) != CURLUE_OK;
    curl_free(scheme);
    curl_free(user);
    curl_url_cleanup(u);
    if (fine) return ST_OK;
    return FAIL(
        e, ST_CONFIG,
        "base_url (or TINKER_BASE_URL): expected the address of a server, http://HOST:PORT, without a user; got "
        "\"%s\"",
        url);
}

enum status link_open(const struct link_options *o, struct link **out, struct err *e) {
    CLEANUP_STR struct str base = STR_INIT, key = STR_INIT;
    const char *ca_file = call_library();
    *out = NULL;
    ASSERT(o->in_flight >= 1 && o->patience_s > 0);
    TRY(check(o->base_url, e));
    struct link *l = *out = xcalloc(1, sizeof *l);
    str_adds(&base, o->base_url);
    while (base.len > 0 && base.p[base.len - 1] == '/') base.p[--base.len] = 0;
    str_adds(&base, "/api/v1/");
    if (o->key) str_addf(&key, "X-API-Key: %s", o->key);
    *l = (struct link){.o = *o,
                       .base = str_steal(&base),
                       .here = remote_is_here(o->base_url),
                       .ca_file = ca_file,
                       .key_line = o->key ? str_steal(&key) : NULL,
                       .multi = curl_multi_init(),
                       .slot = xcalloc((size_t)o->in_flight, sizeof(struct slot))};
    return ST_OK;
}

void link_close(struct link *l) {
    if (!l) return;
    for (int i = 0; i < l->o.in_flight; i++) call_free(&l->slot[i].call);
    curl_multi_cleanup(l->multi);
    free(l->slot);
    free(l->key_line);
    free(l->base);
    free(l);
}

void link_call_free(struct link_call *c) {
    str_free(&c->body);
    str_free(&c->result);
}

/* ---- one transfer -------------------------------------------------------------------------------------------------*/

/* How a call is made; lines: room for three and NULL. */
static struct call_setup setup(const struct link *l, bool proto_body, bool proto_result, const char *url,
                               double timeout_s, const char *lines[4]) {
    int n = 0;
    lines[n++] = proto_body ? "Content-Type: application/x-protobuf" : "Content-Type: application/json";
    lines[n++] = proto_result ? "Accept: application/x-protobuf" : "Accept: application/json";
    if (l->key_line) lines[n++] = l->key_line;
    lines[n] = NULL;
    return (struct call_setup){
        .url = url, .header = lines, .ca_file = l->ca_file, .here = l->here, .timeout_s = timeout_s};
}

static enum status transfer(struct link *l, struct slot *s, struct err *e) {
    CLEANUP_STR struct str url = STR_INIT;
    const char *lines[4];
    const struct link_call *of = s->of;
    const bool poll = s->request_id != NULL;
    if (of->url)
        str_adds(&url, of->url);
    else
        str_addf(&url, "%s%s", l->base, poll ? "retrieve_future" : of->path);
    str_clear(&s->call.request);
    if (poll) {
        js_begin(&s->call.request, NULL, '{');
        js_put_str(&s->call.request, "request_id", s->request_id);
        js_put_bool(&s->call.request, "allow_metadata_only", false);
        js_end(&s->call.request, '}');
    } else {
        str_add(&s->call.request, of->body.p, of->body.len);
    }
    struct call_setup how =
        setup(l, !poll && of->proto_body, poll && of->proto, url.p, poll ? POLL_TIMEOUT_S : POST_TIMEOUT_S, lines);
    if (!poll) how.method = of->method;
    how.to = of->to;
    if (of->url) {
        static const char *const none[] = {NULL};
        how.header = none;
        how.here = remote_is_here(of->url);
    }
    TRY(call_begin(&s->call, &how, e));
    if (curl_multi_add_handle(l->multi, s->call.curl) != CURLM_OK) return FAIL(e, ST_IO, "libcurl: no more transfers");
    s->busy = true;
    s->begun_s = clock_now_s();
    return ST_OK;
}

/* What a body says that is no result: its "detail" or "error", or its beginning. */
static void said(const struct link *l, const struct str *body, char *out, size_t room) {
    CLEANUP_JSON json_t *j = NULL;
    struct err ignored;
    const char *text = str_c(body);
    if (js_parse(text, body->len, "answer", &j, &ignored) == ST_OK) {
        const json_t *d = json_object_get(j, "detail"), *r = json_object_get(j, "error");
        if (json_is_string(d)) text = json_string_value(d);
        if (json_is_string(r)) text = json_string_value(r);
    }
    size_t n = 0;
    for (; *text && n + 1 < room; text++) out[n++] = (unsigned char)*text < ' ' ? ' ' : *text;
    out[n] = 0;
    const size_t m = l->o.key ? strlen(l->o.key) : 0;
    for (char *p = out; m > 3 && (p = strstr(p, l->o.key)); p++) memset(p, '*', m);
}

static enum status refused(const struct link *l, const struct slot *s, struct err *e) {
    char text[SAID_MAX];
    said(l, &s->call.body, text, sizeof text);
    if (s->call.status == 401 || s->call.status == 403)
        return FAIL(e, ST_CONFIG, "%s refuses %s (%ld): %s; the key comes from TINKER_API_KEY", l->o.base_url,
                    s->of->path, s->call.status, text);
    return FAIL(e, s->call.status >= 500 ? ST_IO : ST_CONFIG, "%s: %s: %ld: %s", l->o.base_url, s->of->path,
                s->call.status, text);
}

static void end_slot(struct slot *s) {
    free(s->request_id);
    s->request_id = NULL;
    s->of = NULL;
    s->tries = s->bad_polls = 0;
    s->trouble_s = s->not_before_s = 0;
}

static void finish(struct slot *s) {
    s->of->result = s->call.body;
    s->call.body = STR_INIT;
    s->of->done = true;
    end_slot(s);
}

/* The next try of something that may pass. */
static enum status again(const struct link *l, struct slot *s, struct err *e) {
    const double now = clock_now_s();
    if (s->trouble_s == 0) s->trouble_s = now;
    if (now - s->trouble_s > l->o.patience_s) {
        if (s->call.code == CURLE_OK) return refused(l, s, e);
        return FAIL(e, ST_IO, "%s is out of reach since %.0f s: %s; the same command goes on when it is back",
                    l->o.base_url, now - s->trouble_s, curl_easy_strerror(s->call.code));
    }
    double wait = fmin(0.5 * exp2(s->tries < 8 ? s->tries : 8), MAX_WAIT_S);
    if (s->call.wait_s >= 0) wait = fmin(s->call.wait_s, 60);
    if (s->tries++ == 2)
        log_info("%s: %s is tried again: %s", l->o.base_url, s->of->path,
                 s->call.code == CURLE_OK ? "it is busy or in trouble" : curl_easy_strerror(s->call.code));
    s->not_before_s = now + wait;
    return ST_OK;
}

/* ---- what came ----------------------------------------------------------------------------------------------------*/

static enum status nonsense(const struct link *l, const struct slot *s, struct err *e) {
    char text[SAID_MAX];
    said(l, &s->call.body, text, sizeof text);
    return FAIL(e, ST_IO, "%s: %s: an answer that is none: %.200s", l->o.base_url, s->of->path, text);
}

static enum status posted(const struct link *l, struct slot *s, struct err *e) {
    CLEANUP_JSON json_t *j = NULL;
    struct err ignored;
    const char *id;
    if (s->of->direct) {
        finish(s);
        return ST_OK;
    }
    if (js_parse(str_c(&s->call.body), s->call.body.len, "answer", &j, &ignored) != ST_OK ||
        js_get_str(j, "answer", "request_id", &id, &ignored) != ST_OK)
        return nonsense(l, s, e);
    s->request_id = xstrdup(id);
    s->not_before_s = 0;
    return ST_OK;
}

static enum status not_yet(struct slot *s) {
    const double now = clock_now_s();
    s->not_before_s = now - s->begun_s < SHORT_POLL_S ? now + SHORT_POLL_S : 0;
    return ST_OK;
}

static enum status polled_json(const struct link *l, struct slot *s, struct err *e) {
    CLEANUP_JSON json_t *j = NULL;
    struct err ignored;
    char text[SAID_MAX];
    if (js_parse(str_c(&s->call.body), s->call.body.len, "answer", &j, &ignored) != ST_OK) return nonsense(l, s, e);
    const char *type = json_string_value(json_object_get(j, "type"));
    const char *state = json_string_value(json_object_get(j, "status"));
    if (json_is_string(json_object_get(j, "error"))) {
        const char *category = json_string_value(json_object_get(j, "category"));
        said(l, &s->call.body, text, sizeof text);
        return FAIL(e, category && strcmp(category, "user") == 0 ? ST_CONFIG : ST_IO, "%s: %s: %s", l->o.base_url,
                    s->of->path, text);
    }
    if ((type && strcmp(type, "try_again") == 0) || (state && strcmp(state, "complete_metadata") == 0))
        return not_yet(s);
    if (s->of->proto) return nonsense(l, s, e);
    finish(s);
    return ST_OK;
}

static enum status lost(const struct link *l, struct slot *s, struct err *e) {
    if (!s->of->renew) return refused(l, s, e);
    free(s->request_id);
    s->request_id = NULL;
    s->of->renew(s->of->ctx, s->of);
    return again(l, s, e);
}

/* A transfer has ended. */
static enum status arrived(const struct link *l, struct slot *s, CURLcode code, struct err *e) {
    const bool poll = s->request_id != NULL;
    const char *type = NULL;
    s->busy = false;
    call_end(&s->call, code);
    const long status = s->call.status;
    if (code == CURLE_OPERATION_TIMEDOUT && poll && clock_now_s() - s->begun_s >= POLL_TIMEOUT_S - 1) return not_yet(s);
    if (s->call.too_long) return nonsense(l, s, e);
    if (code == CURLE_WRITE_ERROR) return FAIL(e, ST_IO, "%s: what comes cannot be written", s->of->path);
    if (code != CURLE_OK) return again(l, s, e);
    if (status == 408 && poll) {
        s->trouble_s = s->tries = 0;
        return not_yet(s);
    }
    if (status == 408 || status == 409 || status == 429 || status == 402 || status >= 500) return again(l, s, e);
    if (status == 410 && poll) return lost(l, s, e);
    if (status == 400 && poll && s->bad_polls++ < BAD_POLLS) return again(l, s, e);
    if (status < 200 || status > 299) return refused(l, s, e);
    s->trouble_s = s->tries = 0;
    if (!poll) return posted(l, s, e);
    curl_easy_getinfo(s->call.curl, CURLINFO_CONTENT_TYPE, &type);
    if (!type || !strcasestr(type, "x-protobuf")) return polled_json(l, s, e);
    if (!s->of->proto) return nonsense(l, s, e);
    finish(s);
    return ST_OK;
}

/* ---- many ---------------------------------------------------------------------------------------------------------*/

struct running {
    struct link *l;
    struct link_call *calls;
    int n, begun, done;
};

static enum status begin_what_may(struct running *x, struct err *e) {
    const double now = clock_now_s();
    for (int i = 0; i < x->l->o.in_flight; i++) {
        struct slot *s = &x->l->slot[i];
        if (!s->of && x->begun < x->n) s->of = &x->calls[x->begun++];
        if (s->of && !s->busy && s->not_before_s <= now) TRY(transfer(x->l, s, e));
    }
    return ST_OK;
}

/* *came: something ended, so that there may be more to begin. *news: a call is done. */
static enum status take_what_came(struct running *x, bool *came, bool *news, struct err *e) {
    struct link *l = x->l;
    int active, queued;
    curl_multi_perform(l->multi, &active);
    for (const CURLMsg *m; (m = curl_multi_info_read(l->multi, &queued));) {
        struct slot *s = l->slot;
        if (m->msg != CURLMSG_DONE) continue;
        while (s->call.curl != m->easy_handle) s++;
        const CURLcode code = m->data.result;
        curl_multi_remove_handle(l->multi, m->easy_handle);
        const struct link_call *of = s->of;
        TRY(arrived(l, s, code, e));
        x->done += of->done;
        *came = true;
        *news |= of->done;
    }
    return ST_OK;
}

static void stop_all(struct link *l) {
    for (int i = 0; i < l->o.in_flight; i++) {
        struct slot *s = &l->slot[i];
        if (s->busy) curl_multi_remove_handle(l->multi, s->call.curl);
        s->busy = false;
        end_slot(s);
    }
}

static bool in_trouble(const struct link *l) {
    bool any = false;
    for (int i = 0; i < l->o.in_flight; i++) any |= l->slot[i].of && l->slot[i].trouble_s > 0;
    return any;
}

enum status link_run(struct link *l, struct link_call *calls, int n, link_progress_fn *progress, void *ctx,
                     struct err *e) {
    struct running x = {.l = l, .calls = calls, .n = n};
    double told_s = clock_now_s();
    enum status st = ST_OK;
    while (st == ST_OK && x.done < n) {
        bool came = false, news = false;
        st = begin_what_may(&x, e);
        if (st == ST_OK) st = take_what_came(&x, &came, &news, e);
        if (st != ST_OK || x.done == n) break;
        if (l->o.cancel && *l->o.cancel && in_trouble(l))
            st = FAIL(e, ST_IO, "interrupted while %s is out of reach", l->o.base_url);
        if (st == ST_OK && progress && (news || clock_now_s() - told_s > STEP_MS * 1e-3)) {
            told_s = clock_now_s();
            if (!progress(ctx, x.done)) st = FAIL(e, ST_CANCELLED, "interrupted");
        }
        if (st == ST_OK && !came) curl_multi_poll(l->multi, NULL, 0, STEP_MS, NULL);
    }
    stop_all(l);
    return st;
}

/* ---- signs of life ------------------------------------------------------------------------------------------------*/

struct heartbeat {
    const struct link *l;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ending;
    struct str body;
};

static void beat(struct heartbeat *h, struct call *c) {
    CLEANUP_STR struct str url = STR_INIT;
    const char *lines[4];
    struct err e;
    str_addf(&url, "%ssession_heartbeat", h->l->base);
    const struct call_setup how = setup(h->l, false, false, url.p, BEAT_S, lines);
    str_clear(&c->request);
    str_add(&c->request, h->body.p, h->body.len);
    if (call_begin(c, &how, &e) == ST_OK) call_end(c, curl_easy_perform(c->curl));
}

static void *beat_all(void *arg) {
    struct heartbeat *h = arg;
    struct call c = {0};
    pthread_mutex_lock(&h->lock);
    while (!h->ending) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += BEAT_S;
        if (pthread_cond_timedwait(&h->wake, &h->lock, &until) == 0 || h->ending) continue;
        pthread_mutex_unlock(&h->lock);
        beat(h, &c);
        pthread_mutex_lock(&h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    call_free(&c);
    return NULL;
}

struct heartbeat *heartbeat_begin(const struct link *l, const char *session_id) {
    struct heartbeat *h = xcalloc(1, sizeof *h);
    pthread_condattr_t monotonic;
    h->l = l;
    js_begin(&h->body, NULL, '{');
    js_put_str(&h->body, "session_id", session_id);
    js_put_str(&h->body, "type", "session_heartbeat");
    js_end(&h->body, '}');
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    ASSERT(pthread_create(&h->thread, NULL, beat_all, h) == 0);
    return h;
}

void heartbeat_end(struct heartbeat *h) {
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->ending = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    str_free(&h->body);
    free(h);
}
