#include "remote/remote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/json.h"
#include "remote/failure.h"
#include "remote/replies.h"

#define MAX_WAIT_S 60.0        /* between two tries, of our own accord */
#define MAX_ASKED_WAIT_S 300.0 /* that a server may ask for */
enum { FEW_TRIES = 3, POLL_MS = 100 };

struct remote {
    struct remote_options o;
    char *url; /* of the completions */
    bool here;
    const char *ca_file;
    struct replies *replies;
    struct remote_usage usage;
    bool reached;                 /* the server has answered something */
    bool without[DROP_MIN_P + 1]; /* what it does not take */
    CURLM *multi;
    struct call *call; /* [o.in_flight] */
};

/* ---- opening ------------------------------------------------------------------------------------------------------*/

/* Takes an address apart. False: it is none that can be asked. */
static bool look_at(const char *base_url, bool *here, bool *has_password) {
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *user = NULL;
    bool fine = curl_url_set(u, CURLUPART_URL, base_url, 0) == CURLUE_OK &&
                curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK;
    fine = fine && (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    *here = fine && (strcmp(host, "localhost") == 0 || str_has_prefix(host, "127.") || strcmp(host, "[::1]") == 0);
    *has_password = fine && curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_OK;
    curl_free(scheme);
    curl_free(host);
    curl_free(user);
    curl_url_cleanup(u);
    return fine;
}

bool remote_is_here(const char *base_url) {
    bool here, has_password;
    (void)call_library();
    return look_at(base_url, &here, &has_password) && here;
}

static enum status check_address(const char *url, bool *here, struct err *e) {
    bool has_password;
    if (!look_at(url, here, &has_password))
        return FAIL(e, ST_CONFIG, "base_url: expected the address of a server, http://HOST:PORT/v1, got \"%s\"", url);
    if (has_password)
        return FAIL(e, ST_CONFIG,
                    "base_url: expected an address without a user or password; keys come from the environment");
    return ST_OK;
}

enum status remote_open(const struct remote_options *o, struct remote **out, struct err *e) {
    static const char tail[] = "/chat/completions";
    ASSERT(o->in_flight >= 1 && o->tries >= 1 && o->timeout_s > 0);
    struct remote *r = xcalloc(1, sizeof *r);
    struct str url = STR_INIT;
    r->o = *o;
    r->ca_file = call_library();
    str_adds(&url, o->base_url);
    while (url.len > 0 && url.p[url.len - 1] == '/') url.p[--url.len] = 0;
    if (!str_has_suffix(str_c(&url), tail)) str_adds(&url, tail);
    r->url = str_steal(&url);
    enum status st = check_address(o->base_url, &r->here, e);
    if (st == ST_OK && o->replies) st = replies_open(o->replies, &r->replies, e);
    if (st == ST_OK) {
        r->multi = curl_multi_init();
        r->call = xcalloc((size_t)o->in_flight, sizeof *r->call);
        *out = r;
    } else {
        remote_close(r);
    }
    return st;
}

void remote_close(struct remote *r) {
    if (!r) return;
    for (int i = 0; r->call && i < r->o.in_flight; i++) call_free(&r->call[i]);
    if (r->multi) curl_multi_cleanup(r->multi);
    replies_close(r->replies);
    free(r->call);
    free(r->url);
    free(r);
}

struct remote_usage remote_usage(const struct remote *r) {
    return r->usage;
}

/* ---- requests -----------------------------------------------------------------------------------------------------*/

/* without: fields that are left out; NULL: none are, as requests are known by. */
static void put_request(const struct remote *r, const struct remote_request *q, const bool *without, struct str *out) {
    js_begin(out, NULL, '{');
    js_put_str(out, "model", r->o.model);
    js_begin(out, "messages", '[');
    for (int i = 0; i < q->n_messages; i++) {
        js_begin(out, NULL, '{');
        js_put_str(out, "role", q->messages[i].role);
        js_put_str(out, "content", q->messages[i].content);
        js_end(out, '}');
    }
    js_end(out, ']');
    js_put_f64(out, "temperature", q->temperature);
    if (q->min_p > 0 && !(without && without[DROP_MIN_P])) js_put_f64(out, "min_p", q->min_p);
    js_put_i64(out, without && without[DROP_MAX_TOKENS] ? "max_completion_tokens" : "max_tokens", q->max_tokens);
    /* Some servers take 32 bits, with a sign. */
    const int64_t seed = (int64_t)(without ? q->seed & INT32_MAX : q->seed & INT64_MAX);
    if (!(without && without[DROP_SEED])) js_put_i64(out, "seed", seed);
    if (r->o.reasoning_effort) js_put_str(out, "reasoning_effort", r->o.reasoning_effort);
    js_end(out, '}');
}

/* ---- a run --------------------------------------------------------------------------------------------------------*/

enum task_state { TASK_WAITS, TASK_ASKED, TASK_DONE };
struct remote_task {
    enum task_state state;
    int tries, unheard, nonsense; /* tries so far, and those of them of a kind that passes seldom */
    double not_before_s;
    struct digest key;
};
struct run {
    struct remote *r;
    const struct remote_request *req;
    struct remote_reply *out;
    struct remote_task *task; /* [n] */
    int *task_of;             /* [in_flight]: what a call is for; -1: it is free */
    int n, done, active;
    int limit, streak;   /* requests in flight at most, and answers since that changed */
    double hold_until_s; /* the server is busy */
    bool warned;
};

/* In (0.75, 1], so that requests that failed together do not come again together. */
static double jitter(const struct run *x, int i) {
    return 1 - 0.25 * rng_f64(x->req[i].seed, UINT64_C(0x72657472), (uint64_t)x->task[i].tries);
}

static enum status begin(struct run *x, int slot, int i, struct err *e) {
    struct remote *r = x->r;
    struct call *c = &r->call[slot];
    const struct call_setup s = {
        .url = r->url, .key = r->o.key, .ca_file = r->ca_file, .here = r->here, .timeout_s = r->o.timeout_s};
    str_clear(&c->request);
    put_request(r, &x->req[i], r->without, &c->request);
    TRY(call_begin(c, &s, e));
    if (curl_multi_add_handle(r->multi, c->curl) != CURLM_OK) return FAIL(e, ST_FAILED, "libcurl: no more transfers");
    x->task_of[slot] = i;
    x->task[i].state = TASK_ASKED;
    x->active++;
    return ST_OK;
}

static enum status begin_what_may(struct run *x, struct err *e) {
    const double now = clock_now_s();
    if (now < x->hold_until_s) return ST_OK;
    for (int slot = 0, i = 0; slot < x->r->o.in_flight && x->active < x->limit; slot++) {
        if (x->task_of[slot] >= 0) continue;
        while (i < x->n && (x->task[i].state != TASK_WAITS || x->task[i].not_before_s > now)) i++;
        if (i == x->n) break;
        TRY(begin(x, slot, i, e));
    }
    return ST_OK;
}

static enum status keep(struct run *x, int i, const struct remote_reply *reply, struct err *e) {
    struct remote *r = x->r;
    if (r->replies) {
        const enum status st = replies_add(r->replies, &x->task[i].key, reply, e);
        if (st != ST_OK) {
            free(reply->text);
            return st;
        }
    }
    r->usage.answers++;
    r->usage.prompt_tokens += i64_max(0, reply->prompt_tokens);
    r->usage.answer_tokens += i64_max(0, reply->answer_tokens);
    x->out[i] = *reply;
    x->task[i].state = TASK_DONE;
    x->done++;
    if (++x->streak >= x->limit && x->limit < r->o.in_flight) {
        x->limit++;
        x->streak = 0;
    }
    return ST_OK;
}

/* Whether a task that failed so may be tried again. */
static bool may_go_on(const struct run *x, struct remote_task *t, const struct remote_failure *f) {
    const int few = x->r->o.tries < FEW_TRIES ? x->r->o.tries : FEW_TRIES;
    t->unheard += f->kind == FAILURE_UNHEARD;
    t->nonsense += f->kind == FAILURE_NONSENSE;
    if (f->kind == FAILURE_FINAL || t->tries >= x->r->o.tries) return false;
    /* Who has never heard of a server need not wait long for it. */
    if (f->kind == FAILURE_UNHEARD && t->unheard >= (x->r->reached ? few : 2)) return false;
    return t->nonsense < few;
}

static enum status again(struct run *x, int i, const struct call *c, const struct remote_failure *f, struct err *e) {
    struct remote_task *t = &x->task[i];
    struct remote *r = x->r;
    t->state = TASK_WAITS;
    if (f->kind == FAILURE_FIELD && !r->without[f->drop]) {
        r->without[f->drop] = true;
        log_warn("%s; it is left out from here on", f->err.msg);
    }
    if (f->kind == FAILURE_FIELD) return ST_OK; /* at once, without that field */
    t->tries++;
    if (!may_go_on(x, t, f) || c->wait_s > MAX_ASKED_WAIT_S) {
        *e = f->err;
        if (c->wait_s > MAX_ASKED_WAIT_S)
            return FAIL(e, ST_IO, "%s; it asks to wait %.0f s: the same command goes on from here", f->err.msg,
                        c->wait_s);
        return f->err.code;
    }
    const double first_s = r->o.backoff_s > 0 ? r->o.backoff_s : 1;
    const double ours_s = fmin(first_s * ldexp(1, t->tries - 1), MAX_WAIT_S) * jitter(x, i);
    const double wait_s = c->wait_s >= 0 ? c->wait_s : ours_s, now = clock_now_s();
    t->not_before_s = now + wait_s;
    r->usage.retries++;
    if (f->kind == FAILURE_BUSY) {
        x->hold_until_s = fmax(x->hold_until_s, now + wait_s);
        x->limit = x->limit > 1 ? x->limit / 2 : 1;
        x->streak = 0;
    }
    log_progress_end();
    if (x->warned)
        log_debug("%s; trying again in %.1f s", f->err.msg, wait_s);
    else
        log_warn("%s; trying again in %.1f s", f->err.msg, wait_s);
    x->warned = true;
    return ST_OK;
}

/* Takes what has ended. */
static enum status take(struct run *x, struct err *e) {
    struct remote *r = x->r;
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(r->multi, &left));) {
        struct call *c;
        struct remote_reply reply;
        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
        call_end(c, m->data.result);
        curl_multi_remove_handle(r->multi, c->curl);
        const int slot = (int)(c - r->call), i = x->task_of[slot];
        x->task_of[slot] = -1;
        x->active--;
        r->reached |= c->status > 0;
        const struct remote_failure f = failure_of(&r->o, c, &reply);
        if (f.kind == FAILURE_NONE)
            TRY(keep(x, i, &reply, e));
        else
            TRY(again(x, i, c, &f, e));
    }
    return ST_OK;
}

static enum status go(struct run *x, remote_progress_fn *progress, void *ctx, struct err *e) {
    const volatile bool *cancel = x->r->o.cancel;
    for (;;) {
        int running;
        if ((progress && !progress(ctx, x->done)) || (cancel && *cancel))
            return FAIL(e, ST_CANCELLED, "interrupted; the same command goes on from here");
        if (x->done == x->n) return ST_OK;
        TRY(begin_what_may(x, e));
        if (curl_multi_perform(x->r->multi, &running) != CURLM_OK) return FAIL(e, ST_FAILED, "libcurl: failed");
        const int before = x->done;
        TRY(take(x, e));
        if (x->done == before) curl_multi_poll(x->r->multi, NULL, 0, POLL_MS, NULL);
    }
}

/* What is on disk already. */
static void recall(struct run *x) {
    for (int i = 0; i < x->n; i++) {
        CLEANUP_STR struct str text = STR_INIT;
        put_request(x->r, &x->req[i], NULL, &text);
        x->task[i].key = digest_of(text.p, text.len);
        if (!x->r->replies || !replies_find(x->r->replies, &x->task[i].key, &x->out[i])) continue;
        x->task[i].state = TASK_DONE;
        x->done++;
        x->r->usage.replayed++;
    }
}

enum status remote_run(struct remote *r, const struct remote_request *req, int n, struct remote_reply *out,
                       remote_progress_fn *progress, void *ctx, struct err *e) {
    struct run x = {.r = r, .req = req, .out = out, .n = n, .limit = r->o.in_flight};
    x.task = xcalloc((size_t)n + 1, sizeof *x.task);
    x.task_of = xmalloc((size_t)r->o.in_flight * sizeof *x.task_of);
    for (int i = 0; i < r->o.in_flight; i++) x.task_of[i] = -1;
    for (int i = 0; i < n; i++) out[i] = (struct remote_reply){0};
    recall(&x);
    struct err mine = {0}; /* the caller's stays as it was when all goes well */
    const enum status st = go(&x, progress, ctx, &mine);
    for (int slot = 0; slot < r->o.in_flight; slot++)
        if (x.task_of[slot] >= 0) curl_multi_remove_handle(r->multi, r->call[slot].curl);
    for (int i = 0; st != ST_OK && i < n; i++) remote_reply_free(&out[i]);
    if (st != ST_OK && e) *e = mine;
    free(x.task);
    free(x.task_of);
    return st;
}
