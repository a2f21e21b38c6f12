/* What clients ask of jobs and batches. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/metrics.h"
#include "io/json.h"
#include "verdicts/internal.h"

enum { MOST_WAIT_S = 60 };

/* ---- a job as JSON ------------------------------------------------------------------------------------------------*/

static void put_time(struct str *out, const char *key, double t) {
    if (t > 0)
        js_put_f64(out, key, t);
    else
        js_put_null(out, key);
}

/* Appends a job. Of one that is not over there is no result. */
static void put_job(struct verdicts *v, const struct job_row *r, struct str *out) {
    struct err e;
    int64_t position = 0;
    if (r->status == JOB_QUEUED && jobs_position(v->jobs, r->id, &position, &e) != ST_OK) position = 0;
    js_begin(out, NULL, '{');
    js_put_str(out, "id", r->name);
    js_put_str(out, "object", "verify.job");
    js_put_str(out, "status", job_status_name(r->status));
    if (position > 0)
        js_put_i64(out, "position", position);
    else
        js_put_null(out, "position");
    put_time(out, "created_at", r->created);
    put_time(out, "started_at", r->started);
    put_time(out, "finished_at", r->finished);
    js_put_i64(out, "attempts", r->attempts);
    js_put_bool(out, "cached", r->cached);
    if (r->batch) js_put_i64(out, "index", r->place);
    if (r->result)
        str_adds(out, r->result); /* members with a comma in front */
    else
        str_adds(out, ",\"verdict\":null,\"reward\":null,\"error\":null");
    if (r->metadata) str_addf(out, ",\"metadata\":%s", r->metadata);
    js_end(out, '}');
}

static void put_batch(const char *name, const struct batch_row *b, struct str *out) {
    int64_t queued = b->counts.by[JOB_QUEUED] + b->counts.by[JOB_TAKEN];
    js_begin(out, NULL, '{');
    js_put_str(out, "id", name);
    js_put_str(out, "object", "verify.batch");
    js_put_str(out, "status", queued + b->counts.by[JOB_RUNNING] > 0 ? "running" : "done");
    js_put_f64(out, "created_at", b->created);
    js_put_i64(out, "total", b->counts.total);
    js_begin(out, "counts", '{');
    js_put_i64(out, "queued", queued);
    for (int s = JOB_RUNNING; s <= JOB_CANCELLED; s++)
        js_put_i64(out, job_status_name((enum job_status)s), b->counts.by[s]);
    js_end(out, '}');
    js_end(out, '}');
}

bool verdicts_batch_is_over(const struct batch_row *b) {
    int64_t over = 0;
    for (int s = JOB_SUCCEEDED; s <= JOB_CANCELLED; s++) over += b->counts.by[s];
    return over == b->counts.total;
}

/* ---- finding ------------------------------------------------------------------------------------------------------*/

static void reply_unknown(struct http_exchange *x, const char *name) {
    if (jobs_name_is_old(name))
        http_reply_error(x, 410, "expired", NULL, "%.40s was forgotten: results are kept for %d days", name,
                         JOBS_KEPT_S / 86400);
    else
        http_reply_error(x, 404, "not_found", NULL, "there is no \"%.40s\" here", name);
}

bool verdicts_find_job(struct verdicts *v, struct http_exchange *x, const char *name, struct job_row *r) {
    struct err e;
    bool found;
    if (jobs_find(v->jobs, name, true, r, &found, &e) != ST_OK) {
        verdicts_reply_trouble(x, &e);
        return false;
    }
    if (!found) reply_unknown(x, name);
    return found;
}

bool verdicts_find_batch(struct verdicts *v, struct http_exchange *x, const char *name, struct batch_row *b) {
    struct err e;
    bool found;
    if (jobs_batch(v->jobs, name, b, &found, &e) != ST_OK) {
        verdicts_reply_trouble(x, &e);
        return false;
    }
    if (!found) reply_unknown(x, name);
    return found;
}

/* ---- replying, now or later ---------------------------------------------------------------------------------------*/

/* How long the client waits: ?wait=SECONDS. False: replied. */
static bool wait_of(struct http_exchange *x, double *seconds) {
    const char *text = http_query(x, "wait");
    *seconds = 0;
    if (!text || (parse_f64(text, seconds) && *seconds >= 0 && *seconds <= MOST_WAIT_S)) return true;
    http_reply_error(x, 400, NULL, "wait", "wait: expected 0 to %d seconds, got \"%.40s\"", MOST_WAIT_S, text);
    return false;
}

static void mark_replayed(struct http_exchange *x, bool replayed) {
    if (replayed) http_add_header(x, "idempotent-replayed", "true");
}

/* Replies the job, where it is over or `now`; true: replied. */
static bool reply_job(struct verdicts *v, struct http_exchange *x, const char *name, bool replayed, bool now) {
    struct job_row r;
    struct str out = STR_INIT;
    if (!verdicts_find_job(v, x, name, &r)) return true;
    const bool over = job_is_over(r.status);
    if (over || now) {
        put_job(v, &r, &out);
        mark_replayed(x, replayed);
        http_reply_json(x, over ? 200 : 202, &out);
    }
    job_row_free(&r);
    return over || now;
}

static bool reply_batch(struct verdicts *v, struct http_exchange *x, const char *name, bool replayed, bool now) {
    struct batch_row b;
    struct str out = STR_INIT;
    if (!verdicts_find_batch(v, x, name, &b)) return true;
    const bool over = verdicts_batch_is_over(&b);
    if (over || now) {
        put_batch(name, &b, &out);
        mark_replayed(x, replayed);
        http_reply_json(x, over ? 200 : 202, &out);
    }
    return over || now;
}

static bool reply_either(struct verdicts *v, const struct verdicts_waiter *w, bool now) {
    return w->job ? reply_job(v, w->x, w->name, w->replayed, now) : reply_batch(v, w->x, w->name, w->replayed, now);
}

/* Replies what is named, at once or when it is over or the time is up. */
static void answer(struct verdicts *v, struct http_exchange *x, const char *name, bool replayed, double seconds) {
    const bool is_batch = str_has_prefix(name, "vb-");
    struct batch_row b = {0};
    struct job_row r = {0};
    if (v->draining) seconds = 0;
    if (is_batch ? reply_batch(v, x, name, replayed, seconds <= 0) : reply_job(v, x, name, replayed, seconds <= 0))
        return;
    if (is_batch ? !verdicts_find_batch(v, x, name, &b) : !verdicts_find_job(v, x, name, &r)) return;
    job_row_free(&r);
    struct verdicts_waiter *w = verdicts_wait(v, x, seconds);
    w->job = r.id;
    w->batch = b.id;
    w->replayed = replayed;
    snprintf(w->name, sizeof w->name, "%s", name);
}

static void wait_event(void *verdicts, struct http_exchange *x, enum http_event event) {
    struct verdicts *v = verdicts;
    const struct verdicts_waiter *w = http_state(x);
    if (http_replied(x)) return;
    (void)reply_either(v, w, event != HTTP_WOKEN || v->draining);
}

static void wait_end(void *verdicts, struct http_exchange *x) {
    (void)verdicts;
    verdicts_stop_waiting(http_state(x));
}

/* ---- new jobs -----------------------------------------------------------------------------------------------------*/

void verdicts_arriving_free(struct verdicts_arriving *a) {
    for (size_t i = 0; i < a->n; i++) {
        free((char *)(uintptr_t)a->job[i].request);
        free((char *)(uintptr_t)a->job[i].metadata);
    }
    free(a->job);
}

bool verdicts_arrive(struct verdicts *v, struct verdicts_arriving *a, json_t *request, struct verdict_refusal *why) {
    struct desk_work *w;
    if (!desk_prepare(v->desk, request, &w, why)) return false;
    const int priority = w->ask.priority;
    desk_work_free(w);
    if (a->n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 16;
        a->job = xrealloc(a->job, a->cap * sizeof *a->job);
    }
    const json_t *metadata = json_object_get(request, "metadata");
    char *kept = metadata ? json_dumps(metadata, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_object_del(request, "metadata");
    a->job[a->n++] =
        (struct job_new){.request = json_dumps(request, JSON_COMPACT), .metadata = kept, .priority = priority};
    return true;
}

static bool arrive_list(struct verdicts *v, struct verdicts_arriving *a, const json_t *list,
                        struct verdict_refusal *why) {
    size_t i;
    json_t *one;
    if (!json_is_array(list)) return verdict_refuse(why, 400, NULL, "items", "items: expected a list of requests");
    if (json_array_size(list) == 0 || json_array_size(list) > VERDICTS_BATCH)
        return verdict_refuse(why, 400, NULL, "items", "items: expected 1 to %d requests, got %zu", VERDICTS_BATCH,
                              json_array_size(list));
    json_array_foreach(list, i, one) {
        if (verdicts_arrive(v, a, one, why)) continue;
        verdict_refusal_place(why, "items", i);
        return false;
    }
    return true;
}

static bool arrive_lines(struct verdicts *v, struct verdicts_arriving *a, const char *text, size_t n,
                         struct verdict_refusal *why) {
    struct err e;
    size_t line = 0;
    for (const char *p = text, *end = text + n; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const size_t len = (size_t)((stop ? stop : end) - p);
        CLEANUP_JSON json_t *one = NULL;
        const char *from = p;
        p += len + 1;
        if (strspn(from, " \t\r") >= len) continue;
        if (a->n == VERDICTS_BATCH)
            return verdict_refuse(why, 400, NULL, "lines", "expected at most %d requests", VERDICTS_BATCH);
        bool fine = js_parse(from, len, "a request", &one, &e) == ST_OK;
        if (!fine) (void)verdict_refuse(why, 400, NULL, NULL, "%.500s", e.msg);
        if (fine && verdicts_arrive(v, a, one, why)) continue;
        verdict_refusal_place(why, "lines", line);
        return false;
    }
    return a->n > 0 || verdict_refuse(why, 400, NULL, NULL, "expected a request a line, got none");
}

bool verdicts_has_room(struct verdicts *v, struct http_exchange *x, size_t n) {
    const struct jobs_counts open = jobs_open_ones(v->jobs);
    char seconds[24];
    if (open.total + (int64_t)n <= v->o->max_jobs) return true;
    pthread_mutex_lock(&v->lock);
    const double pace = v->pace_s > 0 ? v->pace_s : 1;
    pthread_mutex_unlock(&v->lock);
    const double over = (double)(open.total + (int64_t)n - v->o->max_jobs);
    snprintf(seconds, sizeof seconds, "%.0f", fmin(600, fmax(1, ceil(over * pace))));
    http_add_header(x, "retry-after", seconds);
    http_reply_error(x, 429, "queue_full", NULL, "%lld jobs wait, and at most %d may: try again later",
                     (long long)open.total, v->o->max_jobs);
    return false;
}

/* What the client's key for this request says. False: replied. name: of what the same request made before. */
static bool look_up_key(struct verdicts *v, struct http_exchange *x, const char **key, struct digest *body,
                        bool *replayed, char name[JOBS_NAME_BYTES]) {
    struct err e;
    enum jobs_replay found;
    size_t n;
    const char *text = http_body(x, &n);
    *replayed = false;
    *key = http_header(x, "idempotency-key");
    *body = digest_of(text, n);
    if (!*key) return true;
    if (!**key || strlen(*key) > JOBS_KEY_BYTES) {
        http_reply_error(x, 400, NULL, "idempotency-key", "Idempotency-Key: expected 1 to %d bytes", JOBS_KEY_BYTES);
        return false;
    }
    if (jobs_look_up(v->jobs, verdicts_owner(x), *key, body, &found, name, &e) != ST_OK) {
        verdicts_reply_trouble(x, &e);
        return false;
    }
    if (found == JOBS_OTHER) {
        http_reply_error(x, 422, "idempotency_key_reused", "idempotency-key",
                         "Idempotency-Key: another request came with this key");
        return false;
    }
    *replayed = found == JOBS_SAME;
    return true;
}

static bool is_lines(const struct http_exchange *x) {
    const char *type = http_header(x, "content-type");
    return type && (str_has_prefix(type, "application/jsonl") || str_has_prefix(type, "application/x-ndjson"));
}

static bool read_body(struct verdicts *v, struct http_exchange *x, bool batch, struct verdicts_arriving *a,
                      struct verdict_refusal *why) {
    CLEANUP_JSON json_t *o = NULL;
    struct err e;
    size_t n;
    const char *text = http_body(x, &n);
    if (batch && is_lines(x)) return arrive_lines(v, a, text, n, why);
    if (js_parse(text, n, "the body", &o, &e) != ST_OK) return verdict_refuse(why, 400, NULL, NULL, "%.500s", e.msg);
    if (!batch) return verdicts_arrive(v, a, o, why);
    if (!json_is_object(o) || json_object_size(o) != 1)
        return verdict_refuse(why, 400, NULL, NULL, "expected {\"items\": [...]} and nothing else");
    return arrive_list(v, a, json_object_get(o, "items"), why);
}

static void begin_jobs(struct verdicts *v, struct http_exchange *x, bool batch) {
    struct verdict_refusal why;
    struct verdicts_arriving a = {0};
    char name[JOBS_NAME_BYTES];
    const char *key;
    struct digest body;
    struct err e;
    double seconds;
    bool replayed;
    if (!wait_of(x, &seconds) || !look_up_key(v, x, &key, &body, &replayed, name)) return;
    if (replayed) {
        answer(v, x, name, true, seconds);
        return;
    }
    if (!read_body(v, x, batch, &a, &why)) {
        verdicts_reply_refusal(x, &why);
    } else if (verdicts_has_room(v, x, a.n)) {
        if (jobs_add(v->jobs, verdicts_owner(x), key, &body, a.job, a.n, batch, name, &e) != ST_OK) {
            verdicts_reply_trouble(x, &e);
        } else {
            verdicts_feed(v);
            answer(v, x, name, false, seconds);
        }
    }
    verdicts_arriving_free(&a);
}

static void verify_begin(void *v, struct http_exchange *x) { begin_jobs(v, x, false); }

static void batch_begin(void *v, struct http_exchange *x) {
    const char *type = http_header(x, "content-type");
    if (!is_lines(x) && !(type && str_has_prefix(type, "application/json")))
        http_reply_error(x, 415, NULL, NULL, "expected application/json or application/jsonl");
    else
        begin_jobs(v, x, true);
}

/* ---- jobs that are there ------------------------------------------------------------------------------------------*/

static void job_begin(void *verdicts, struct http_exchange *x) {
    double seconds;
    if (wait_of(x, &seconds)) answer(verdicts, x, http_tail(x), false, seconds);
}

static void job_cancel_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    CLEANUP_FREE char *name = xstrdup(http_tail(x));
    struct job_row r;
    struct err e;
    char *slash = strchr(name, '/');
    if (strcmp(http_method(x), "POST") == 0) { /* ID/cancel */
        if (!slash || strcmp(slash, "/cancel") != 0) {
            http_reply_error(x, 404, NULL, NULL, "there is no such route here");
            return;
        }
        *slash = 0;
    }
    if (!verdicts_find_job(v, x, name, &r)) return;
    if (!job_is_over(r.status) && verdicts_cancel(v, r.id, &e) != ST_OK)
        verdicts_reply_trouble(x, &e);
    else
        (void)reply_job(v, x, name, false, true);
    job_row_free(&r);
}

static void batch_cancel(struct verdicts *v, struct http_exchange *x, const char *name) {
    enum { AT_ONCE = 256 };
    struct batch_row b;
    struct err e;
    int64_t id[AT_ONCE];
    size_t n;
    if (!verdicts_find_batch(v, x, name, &b)) return;
    do {
        enum status st = jobs_open_in(v->jobs, b.id, id, AT_ONCE, &n, &e);
        for (size_t i = 0; i < n && st == ST_OK; i++) st = verdicts_cancel(v, id[i], &e);
        if (st != ST_OK) {
            verdicts_reply_trouble(x, &e);
            return;
        }
    } while (n > 0);
    (void)reply_batch(v, x, name, false, true);
}

/* ---- batches ------------------------------------------------------------------------------------------------------*/

static bool query_i64(struct http_exchange *x, const char *name, int64_t low, int64_t high, int64_t *value) {
    const char *text = http_query(x, name);
    if (!text || (parse_i64(text, value) && *value >= low && *value <= high)) return true;
    http_reply_error(x, 400, NULL, name, "%s: expected %lld to %lld, got \"%.40s\"", name, (long long)low,
                     (long long)high, text);
    return false;
}

static void batch_results(struct verdicts *v, struct http_exchange *x, const char *name) {
    struct batch_row b;
    struct err e;
    struct str out = STR_INIT;
    int64_t after = 0, limit = 100;
    size_t n = 0;
    if (!query_i64(x, "after", 0, INT64_MAX, &after) || !query_i64(x, "limit", 1, VERDICTS_PAGE, &limit) ||
        !verdicts_find_batch(v, x, name, &b))
        return;
    CLEANUP_FREE struct job_row *rows = xcalloc((size_t)limit, sizeof *rows);
    if (jobs_results(v->jobs, b.id, after, rows, (size_t)limit, &n, &e) != ST_OK) {
        verdicts_reply_trouble(x, &e);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "list");
    js_begin(&out, "data", '[');
    for (size_t i = 0; i < n; i++) {
        put_job(v, &rows[i], &out);
        after = rows[i].ended;
        job_row_free(&rows[i]);
    }
    js_end(&out, ']');
    js_put_i64(&out, "next", after);
    js_put_bool(&out, "done", verdicts_batch_is_over(&b) && n < (size_t)limit);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

static void put_event(struct str *out, const char *kind, const struct str *data) {
    str_addf(out, "event: %s\ndata: ", kind);
    str_add(out, data->p, data->len);
    str_adds(out, "\n\n");
}

/* http_more_fn: verdicts as they come, then how many there are, at last that all are there. */
static enum http_more batch_more(struct http_exchange *x, struct str *out) {
    enum { AT_ONCE = 32 };
    struct verdicts_waiter *w = http_state(x);
    struct verdicts *v = w->v;
    struct job_row rows[AT_ONCE];
    struct batch_row b;
    struct err e;
    size_t n = 0;
    bool found = false;
    if (jobs_batch(v->jobs, w->name, &b, &found, &e) != ST_OK || !found ||
        jobs_results(v->jobs, w->batch, w->cursor, rows, AT_ONCE, &n, &e) != ST_OK)
        return HTTP_END; /* the client sees no event that says done, and asks again */
    for (size_t i = 0; i < n; i++) {
        CLEANUP_STR struct str job = STR_INIT;
        put_job(v, &rows[i], &job);
        str_addf(out, "id: %lld\n", (long long)rows[i].ended);
        put_event(out, "verdict", &job);
        w->cursor = rows[i].ended;
        job_row_free(&rows[i]);
    }
    CLEANUP_STR struct str state = STR_INIT;
    put_batch(w->name, &b, &state);
    const bool over = n < AT_ONCE && verdicts_batch_is_over(&b);
    if (n > 0 || over) put_event(out, over ? "done" : "progress", &state);
    return over || (v->draining && n < AT_ONCE) ? HTTP_END : n > 0 ? HTTP_MORE : HTTP_WAIT;
}

static void batch_events(struct verdicts *v, struct http_exchange *x, const char *name) {
    struct batch_row b;
    int64_t after = 0;
    const char *last = http_header(x, "last-event-id");
    if (last && !parse_i64(last, &after)) after = 0;
    if (!query_i64(x, "after", 0, INT64_MAX, &after) || !verdicts_find_batch(v, x, name, &b)) return;
    struct verdicts_waiter *w = verdicts_wait(v, x, 0);
    w->batch = b.id;
    w->cursor = after;
    snprintf(w->name, sizeof w->name, "%s", name);
    http_add_header(x, "cache-control", "no-cache");
    http_add_header(x, "x-accel-buffering", "no");
    http_stream(x, 200, "text/event-stream", ": waiting\n\n", batch_more);
}

static void batch_show_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    CLEANUP_FREE char *name = xstrdup(http_tail(x));
    char *what = strchr(name, '/');
    double seconds;
    if (what) *what++ = 0;
    if (strcmp(http_method(x), "DELETE") == 0) {
        batch_cancel(v, x, name);
    } else if (!what) {
        if (!str_has_prefix(name, "vb-"))
            reply_unknown(x, name);
        else if (wait_of(x, &seconds))
            answer(v, x, name, false, seconds);
    } else if (strcmp(what, "results") == 0) {
        batch_results(v, x, name);
    } else if (strcmp(what, "events") == 0) {
        batch_events(v, x, name);
    } else {
        http_reply_error(x, 404, NULL, NULL, "a batch has results and events, and no \"%.40s\"", what);
    }
}

/* ---- the state of things ------------------------------------------------------------------------------------------*/

static void queue_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    const struct jobs_counts open = jobs_open_ones(v->jobs);
    struct str out = STR_INIT;
    pthread_mutex_lock(&v->lock);
    const double pace = v->pace_s;
    pthread_mutex_unlock(&v->lock);
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "verify.queue");
    js_put_i64(&out, "queued", open.by[JOB_QUEUED] + open.by[JOB_TAKEN]);
    js_put_i64(&out, "running", open.by[JOB_RUNNING]);
    js_put_i64(&out, "keys", jobs_owners(v->jobs));
    js_put_i64(&out, "most", v->o->max_jobs);
    if (pace > 0)
        js_put_f64(&out, "seconds_ahead", pace * (double)open.total);
    else
        js_put_null(&out, "seconds_ahead");
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

static void settings_begin(void *verdicts, struct http_exchange *x) {
    const struct verdicts *v = verdicts;
    const struct desk_options *o = desk_options_of(v->desk);
    struct str out = STR_INIT;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "verify.settings");
    js_put_str(&out, "version", KERNELRL_VERSION);
    js_put_str(&out, "problems", !o->any_problem ? "known" : "any");
    js_begin(&out, "configs", '[');
    for (size_t i = 0; i < o->n_configs; i++) {
        CLEANUP_STR struct str identity = STR_INIT;
        verify_identity(&o->config[i].verify, &identity);
        js_begin(&out, NULL, '{');
        js_put_str(&out, "name", o->config[i].name);
        js_put_str(&out, "backend", backend_name(o->config[i].verify.backend));
        js_put_str(&out, "source", o->config[i].source ? o->config[i].source : "builtin");
        js_put_str(&out, "settings", str_c(&identity));
        js_end(&out, '}');
    }
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void verdicts_put_metrics(void *verdicts, struct str *out) {
    static const struct {
        char of;
        const char *label;
    } classes[] = {{'C', "class=\"correct\""}, {'W', "class=\"wrong\""},   {'F', "class=\"format\""},
                   {'B', "class=\"build\""},   {'R', "class=\"runtime\""}, {'H', "class=\"hostile\""},
                   {'I', "class=\"missing\""}};
    struct verdicts *v = verdicts;
    const struct jobs_counts open = jobs_open_ones(v->jobs);
    metrics_single(out, "kernelrl_verify_queued", "gauge", "Requests for verdicts that wait", NULL,
                   (double)(open.by[JOB_QUEUED] + open.by[JOB_TAKEN]));
    metrics_single(out, "kernelrl_verify_running", "gauge", "Answers that are being judged", NULL,
                   (double)open.by[JOB_RUNNING]);
    pthread_mutex_lock(&v->lock);
    metrics_family(out, "kernelrl_verdicts_total", "counter", "Verdicts given, by their class");
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        metrics_value(out, "kernelrl_verdicts_total", classes[i].label, (double)v->of_class[(int)classes[i].of]);
    metrics_single(out, "kernelrl_verdicts_cached_total", "counter", "Of these: an equal answer had a verdict", NULL,
                   (double)v->cached);
    pthread_mutex_unlock(&v->lock);
}

/* ---- the table ----------------------------------------------------------------------------------------------------*/

#define VERIFY(m, p, kind, fn, most)                                                                                 \
    {                                                                                                                \
        .method = m, .path = p, .access = HTTP_KEY, .body = kind, .begin = fn, .event = wait_event, .end = wait_end, \
        .max_body = most                                                                                             \
    }
enum { ONE_BODY = 4 << 20 }; /* a problem and a solution, with JSON's escapes */

const struct http_route verdicts_routes[] = {
    VERIFY("POST", "/v1/verify", HTTP_JSON_BODY, verify_begin, ONE_BODY),
    VERIFY("POST", "/v1/verify/batches", HTTP_ANY_BODY, batch_begin, VERDICTS_BATCH_BYTES),
    VERIFY("GET", "/v1/verify/queue", HTTP_NO_BODY, queue_begin, 0),
    VERIFY("GET", "/v1/verify/settings", HTTP_NO_BODY, settings_begin, 0),
    VERIFY("GET", "/v1/verify/batches/*", HTTP_NO_BODY, batch_show_begin, 0),
    VERIFY("DELETE", "/v1/verify/batches/*", HTTP_NO_BODY, batch_show_begin, 0),
    VERIFY("GET", "/v1/verify/*", HTTP_NO_BODY, job_begin, 0),
    VERIFY("DELETE", "/v1/verify/*", HTTP_NO_BODY, job_cancel_begin, 0),
    VERIFY("POST", "/v1/verify/*", HTTP_NO_BODY, job_cancel_begin, 0),
    VERIFY("GET", "/v1/problems", HTTP_NO_BODY, problems_list_begin, 0),
    {.method = "GET",
     .path = "/v1/problems/*",
     .access = HTTP_KEY,
     .body = HTTP_NO_BODY,
     .begin = problem_show_begin,
     .event = problem_show_event,
     .end = problem_show_end},
};
const size_t verdicts_n_routes = ARRAY_LEN(verdicts_routes);
