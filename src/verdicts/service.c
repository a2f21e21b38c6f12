#include "verdicts/service.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "verdicts/internal.h"

enum { MAX_RECALLED = 100000, FORGET_EVERY_S = 3600 };

/* ---- who waits ----------------------------------------------------------------------------------------------------*/

struct verdicts_waiter *verdicts_wait(struct verdicts *v, struct http_exchange *x, double seconds) {
    struct verdicts_waiter *w = xcalloc(1, sizeof *w);
    w->v = v;
    w->x = x;
    w->next = v->waiters;
    w->at = &v->waiters;
    if (w->next) w->next->at = &w->next;
    v->waiters = w;
    http_set_state(x, w);
    if (seconds > 0) http_wake_after(x, seconds);
    return w;
}

void verdicts_stop_waiting(struct verdicts_waiter *w) {
    if (!w) return;
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
    free(w);
}

static void wake(struct verdicts *v, const struct verdicts_note *n, bool all) {
    for (struct verdicts_waiter *w = v->waiters, *next; w; w = next) {
        next = w->next;
        if (all || (w->job && w->job == n->id) || (w->batch && w->batch == n->batch)) http_wake(w->x);
    }
}

/* ---- the desk's thread --------------------------------------------------------------------------------------------*/

static void on_begun(void *ctx, struct desk_work *work) {
    const struct verdicts_flight *f = ctx;
    struct err e;
    (void)work;
    if (jobs_begin(f->v->jobs, f->id, &e) != ST_OK) log_error("%s", e.msg);
}

static void write_down(const struct verdicts_flight *f) {
    struct verdicts *v = f->v;
    const struct desk_work *w = f->work;
    CLEANUP_STR struct str result = STR_INIT;
    struct err e;
    enum status st;
    if (!w->judged) {
        st = jobs_put_back(v->jobs, f->id, &e); /* the server ends; of a job that was cancelled this does nothing */
    } else {
        str_addc(&result, '{');
        js_put_str(&result, "config", w->config->name);
        js_put_str(&result, "problem", w->key);
        desk_put_result(w, &result);
        result.p[0] = ','; /* members that follow others */
        st = jobs_end(v->jobs, f->id, desk_has_verdict(w) ? JOB_SUCCEEDED : JOB_FAILED, str_c(&result), w->settings,
                      w->item.verdict.cached, &e);
    }
    if (st != ST_OK) log_error("%s", e.msg);
}

void verdicts_signal(const struct verdicts *v) {
    const uint64_t one = 1;
    while (write(v->fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* The lock is held. */
static void note_end(struct verdicts *v, int64_t id, int64_t batch) {
    if (v->n_notes == v->cap_notes) {
        v->cap_notes = v->cap_notes ? 2 * v->cap_notes : 64;
        v->note = xrealloc(v->note, v->cap_notes * sizeof *v->note);
    }
    v->note[v->n_notes++] = (struct verdicts_note){id, batch};
    verdicts_signal(v);
}

static void on_done(void *ctx, struct desk_work *w) {
    struct verdicts_flight *f = ctx;
    struct verdicts *v = f->v;
    write_down(f);
    pthread_mutex_lock(&v->lock);
    struct verdicts_flight **at = &v->flights;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    v->n_flights--;
    if (w->judged) {
        const double now = clock_now_s(), since = now - v->last_end;
        v->of_class[outcome_class(w->item.verdict.outcome) & 127]++;
        v->cached += w->item.verdict.cached;
        if (v->last_end > 0 && since < 60) v->pace_s = v->pace_s > 0 ? 0.95 * v->pace_s + 0.05 * since : since;
        v->last_end = now;
    }
    note_end(v, f->id, f->batch);
    pthread_mutex_unlock(&v->lock);
    desk_work_free(w);
    free(f);
}

struct recalling {
    const struct judge *judge;
    int64_t n;
};

static void recall_one(void *ctx, const char *result) {
    struct recalling *r = ctx;
    CLEANUP_JSON json_t *o = NULL;
    struct err e;
    struct verdict v;
    struct digest key;
    if (job_result_parse(result, &o, &e) != ST_OK) return;
    const json_t *verdict = json_object_get(o, "verdict");
    const char *answer = json_string_value(json_object_get(verdict, "answer"));
    if (!answer || strlen(answer) != sizeof key.hex - 1 || !digest_readable(answer)) return;
    if (verdict_from_json(verdict, "a kept verdict", &v, &e) != ST_OK) return;
    memcpy(key.hex, answer, sizeof key.hex);
    r->judge->recall(r->judge->ctx, &key, &v);
    r->n++;
}

static void recall(void *ctx, const char *settings, const struct judge *judge) {
    const struct verdicts *v = ctx;
    struct recalling r = {judge, 0};
    struct err e;
    if (!judge->recall) return;
    if (jobs_recall(v->jobs, settings, MAX_RECALLED, recall_one, &r, &e) != ST_OK) log_error("%s", e.msg);
    if (r.n > 0) log_info("%lld verdicts of these settings are known from earlier", (long long)r.n);
}

/* ---- jobs to the desk ---------------------------------------------------------------------------------------------*/

static void fail_job(struct verdicts *v, const struct job_row *r, const struct verdict_refusal *why) {
    CLEANUP_STR struct str result = STR_INIT;
    struct err e;
    str_addc(&result, '{');
    js_put_null(&result, "verdict");
    js_put_null(&result, "reward");
    verdict_refusal_json(why, "error", &result);
    result.p[0] = ',';
    if (jobs_end(v->jobs, r->id, JOB_FAILED, str_c(&result), NULL, false, &e) != ST_OK) log_error("%s", e.msg);
    pthread_mutex_lock(&v->lock);
    note_end(v, r->id, r->batch);
    pthread_mutex_unlock(&v->lock);
}

/* Gives one job to the desk. A job whose problem is not here any more fails: the server was begun anew with less. */
static void give(struct verdicts *v, const struct job_row *r) {
    CLEANUP_JSON json_t *request = NULL;
    struct verdict_refusal why;
    struct desk_work *w;
    struct err e;
    if (js_parse(r->request, strlen(r->request), r->name, &request, &e) != ST_OK) {
        (void)verdict_refuse(&why, 500, NULL, NULL, "%.500s", e.msg);
        fail_job(v, r, &why);
        return;
    }
    if (!desk_prepare(v->desk, request, &w, &why)) {
        fail_job(v, r, &why);
        return;
    }
    struct verdicts_flight *f = xmalloc(sizeof *f);
    *f = (struct verdicts_flight){.v = v, .work = w, .id = r->id, .batch = r->batch};
    w->begun = on_begun;
    w->done = on_done;
    w->ctx = f;
    pthread_mutex_lock(&v->lock);
    f->next = v->flights;
    v->flights = f;
    v->n_flights++;
    pthread_mutex_unlock(&v->lock);
    json_decref(request); /* what the work keeps of it is the desk's alone from here on */
    request = NULL;
    desk_submit(v->desk, w);
}

static int flights(struct verdicts *v) {
    pthread_mutex_lock(&v->lock);
    const int n = v->n_flights;
    pthread_mutex_unlock(&v->lock);
    return n;
}

void verdicts_feed(struct verdicts *v) {
    struct err e;
    bool found = true;
    while (!v->draining && found && flights(v) < VERDICTS_AHEAD) {
        struct job_row r;
        if (jobs_take(v->jobs, &r, &found, &e) != ST_OK) {
            log_error("%s", e.msg);
            return;
        }
        if (found) give(v, &r);
        job_row_free(&r);
    }
    if (clock_now_s() - v->forgot < FORGET_EVERY_S) return;
    v->forgot = clock_now_s();
    if (jobs_forget_old(v->jobs, &e) != ST_OK) log_error("%s", e.msg);
}

enum status verdicts_cancel(struct verdicts *v, int64_t id, struct err *e) {
    static const char result[] = ",\"verdict\":null,\"reward\":null,\"error\":{\"message\":\"cancelled\",\"type\":"
                                 "\"no_verdict\",\"param\":null,\"code\":\"cancelled\"}";
    TRY(jobs_end(v->jobs, id, JOB_CANCELLED, result, NULL, false, e));
    pthread_mutex_lock(&v->lock);
    for (struct verdicts_flight *f = v->flights; f; f = f->next)
        if (f->id == id) desk_withdraw(v->desk, f->work);
    pthread_mutex_unlock(&v->lock);
    return ST_OK;
}

/* http_fd_fn: jobs are over, or prompts are made. */
static void collect(void *verdicts) {
    struct verdicts *v = verdicts;
    uint64_t count;
    if (read(v->fd, &count, sizeof count) < 0 && errno != EAGAIN) log_error("eventfd: %s", strerror(errno));
    pthread_mutex_lock(&v->lock);
    struct verdicts_note *notes = v->note;
    const size_t n = v->n_notes;
    v->note = NULL;
    v->n_notes = v->cap_notes = 0;
    pthread_mutex_unlock(&v->lock);
    problem_prompts_collect(v);
    verdicts_feed(v);
    for (size_t i = 0; i < n; i++) wake(v, &notes[i], false);
    free(notes);
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

uint64_t verdicts_owner(const struct http_exchange *x) {
    const char *bearer = http_header(x, "authorization"), *key = http_header(x, "x-api-key");
    return bearer ? hash_str(bearer) : key ? hash_str(key) : 0;
}

void verdicts_reply_trouble(struct http_exchange *x, const struct err *e) {
    log_error("%s", e->msg);
    http_reply_error(x, 503, "jobs", NULL, "the file of jobs cannot be used");
}

void verdicts_reply_refusal(struct http_exchange *x, const struct verdict_refusal *why) {
    http_reply_error(x, why->status, why->code, *why->param ? why->param : NULL, "%s", why->message);
}

static void draining(void *verdicts) {
    struct verdicts *v = verdicts;
    v->draining = true;
    wake(v, NULL, true);
}

struct http_front verdicts_front(struct verdicts *v) {
    return (struct http_front){.name = "verify",
                               .route = verdicts_routes,
                               .n_routes = verdicts_n_routes,
                               .ctx = v,
                               .metrics = verdicts_put_metrics,
                               .draining = draining};
}

struct http_front verdicts_gyms_front(struct verdicts *v) {
    return (struct http_front){.name = "gyms", .route = gyms_routes, .n_routes = gyms_n_routes, .ctx = v};
}

enum status verdicts_open(const struct verdicts_options *o, struct verdicts **out, struct err *e) {
    struct verdicts *v = xcalloc(1, sizeof *v);
    *out = NULL;
    v->o = o;
    v->desk_options = o->desk;
    v->desk_options.recall = recall;
    v->desk_options.recall_ctx = v;
    v->forgot = clock_now_s();
    v->prompts = first_prompts_open();
    pthread_mutex_init(&v->lock, NULL);
    v->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status st = v->fd >= 0 ? ST_OK : FAIL(e, ST_IO, "eventfd: %s", strerror(errno));
    if (st == ST_OK) st = jobs_open(o->jobs, &v->jobs, e);
    if (st == ST_OK) st = desk_open(&v->desk_options, &v->desk, e);
    if (st != ST_OK) {
        verdicts_close(v);
        return st;
    }
    const struct jobs_counts left = jobs_open_ones(v->jobs);
    if (left.total > 0) log_info("%lld jobs of an earlier process are taken up", (long long)left.total);
    *out = v;
    return ST_OK;
}

enum status verdicts_attach(struct verdicts *v, struct http_server *http, struct err *e) {
    v->http = http;
    TRY(http_watch_fd(http, v->fd, collect, v, e));
    verdicts_feed(v);
    return ST_OK;
}

void verdicts_close(struct verdicts *v) {
    if (!v) return;
    first_prompts_close(v->prompts);
    problem_prompts_collect(v);
    desk_close(v->desk);
    jobs_close(v->jobs);
    if (v->fd >= 0) close(v->fd);
    free(v->note);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
