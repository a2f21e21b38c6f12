/* The service as others speak: a resources server of NeMo-Gym, and a server of KernelGYM. Requests become jobs like any
 * other; only their shapes differ (shapes.h). A reply is made of the request's body and of the job, when it is over. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verdicts/internal.h"
#include "verdicts/shapes.h"

enum { MOST_HELD_S = 3600, KEY_BYTES = 140, ONE_BODY = 4 << 20 };

static bool parse_body(struct http_exchange *x, json_t **out, struct verdict_refusal *why) {
    struct err e;
    size_t n;
    const char *text = http_body(x, &n);
    if (js_parse(text, n, "the body", out, &e) != ST_OK) return verdict_refuse(why, 400, NULL, NULL, "%.500s", e.msg);
    return json_is_object(*out) || verdict_refuse(why, 400, NULL, NULL, "expected a JSON object");
}

/* The body of a request that was taken on. */
static json_t *body_again(struct http_exchange *x) {
    struct verdict_refusal why;
    json_t *o = NULL;
    const bool fine = parse_body(x, &o, &why);
    ASSERT(fine);
    return o;
}

/* The result of a job that is over; else NULL. */
static json_t *result_of(const struct job_row *r) {
    struct err e;
    json_t *o = NULL;
    if (r->result && job_result_parse(r->result, &o, &e) != ST_OK) o = NULL;
    return o;
}

/* Writes requests down as jobs, and as a batch where there is a key for one. False: replied. */
static bool add_jobs(struct verdicts *v, struct http_exchange *x, struct verdicts_arriving *a, const char *batch_key,
                     char name[JOBS_NAME_BYTES]) {
    struct err e;
    size_t n;
    const char *text = http_body(x, &n);
    const struct digest body = digest_of(text, n);
    if (!verdicts_has_room(v, x, a->n)) return false;
    if (jobs_add(v->jobs, verdicts_owner(x), batch_key, &body, a->job, a->n, batch_key, name, &e) != ST_OK) {
        verdicts_reply_trouble(x, &e);
        return false;
    }
    verdicts_feed(v);
    return true;
}

/* Waits for a job or a batch by its name. */
static void hold(struct verdicts *v, struct http_exchange *x, const char *name, double seconds) {
    struct job_row r = {0};
    struct batch_row b = {0};
    const bool is_batch = str_has_prefix(name, "vb-");
    if (is_batch ? !verdicts_find_batch(v, x, name, &b) : !verdicts_find_job(v, x, name, &r)) return;
    struct verdicts_waiter *w = verdicts_wait(v, x, fmin(seconds, MOST_HELD_S));
    w->job = r.id;
    w->batch = b.id;
    snprintf(w->name, sizeof w->name, "%s", name);
    job_row_free(&r);
}

static void gym_end(void *verdicts, struct http_exchange *x) {
    (void)verdicts;
    verdicts_stop_waiting(http_state(x));
}

/* ---- NeMo-Gym -----------------------------------------------------------------------------------------------------*/

/* Replies the job where it is over, or `now`. True: replied. A verdict that is missing is an error, so that nobody
 * trains on it. */
static bool nemo_reply(struct verdicts *v, struct http_exchange *x, const char *name, bool now) {
    struct job_row r;
    if (!verdicts_find_job(v, x, name, &r)) return true;
    const bool over = job_is_over(r.status);
    if (over) {
        CLEANUP_JSON json_t *row = body_again(x), *result = result_of(&r);
        struct str out = STR_INIT;
        const char *why = json_string_value(json_object_get(json_object_get(result, "error"), "message"));
        if (nemo_gym_reply(row, result)) {
            js_put_json(&out, NULL, row);
            http_reply_json(x, 200, &out);
        } else {
            http_reply_error(x, 503, "no_verdict", NULL, "there is no verdict: %.500s", why ? why : "nobody knows why");
        }
    } else if (now) {
        http_reply_error(x, 503, "not_judged_yet", NULL, "%s is not judged yet", name);
    }
    job_row_free(&r);
    return over || now;
}

static void nemo_verify_event(void *verdicts, struct http_exchange *x, enum http_event event) {
    struct verdicts *v = verdicts;
    const struct verdicts_waiter *w = http_state(x);
    if (!http_replied(x)) (void)nemo_reply(v, x, w->name, event != HTTP_WOKEN || v->draining);
}

static void nemo_verify_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    struct verdicts_arriving a = {0};
    struct verdict_refusal why;
    CLEANUP_JSON json_t *row = NULL, *request = NULL;
    char name[JOBS_NAME_BYTES];
    if (!parse_body(x, &row, &why) || !nemo_gym_request(row, &request, &why) ||
        !verdicts_arrive(v, &a, request, &why)) {
        verdicts_reply_refusal(x, &why);
    } else if (add_jobs(v, x, &a, NULL, name) && !nemo_reply(v, x, name, v->draining)) {
        hold(v, x, name, MOST_HELD_S);
    }
    verdicts_arriving_free(&a);
}

/* A session has no state: each answer is judged by what its row says. */
static void nemo_seed_begin(void *verdicts, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)verdicts;
    str_adds(&out, "{}");
    http_reply_json(x, 200, &out);
}

static void nemo_mode_begin(void *verdicts, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)verdicts;
    str_adds(&out, "\"stateless\"");
    http_reply_json(x, 200, &out);
}

static void nemo_means_begin(void *verdicts, struct http_exchange *x) {
    CLEANUP_JSON json_t *body = NULL;
    struct verdict_refusal why;
    struct str out = STR_INIT;
    (void)verdicts;
    if (!parse_body(x, &body, &why) || !nemo_gym_means(body, &out, &why))
        verdicts_reply_refusal(x, &why);
    else
        http_reply_json(x, 200, &out);
}

/* ---- KernelGYM: tasks ---------------------------------------------------------------------------------------------*/

static void task_key(const char *kind, const char *id, char out[KEY_BYTES]) {
    snprintf(out, KEY_BYTES, "kernelgym-%s:%s", kind, id);
}

/* The problem of a text that is known is asked for by its key: it needs no jail of its own. */
static void name_problem(struct verdicts *v, json_t *request) {
    json_t *problem = json_object_get(request, "problem");
    const char *source = NULL;
    const struct problem *p =
        desk_problem_of_text(v->desk, json_string_value(json_object_get(problem, "code")), &source);
    if (!p) return;
    json_object_clear(problem);
    json_object_set_new(problem, "key", json_string(p->key));
    if (source) json_object_set_new(problem, "source", json_string(source));
}

/* What was made under this key before. False: replied; *found is then JOBS_NEW. */
static bool look_up(struct verdicts *v, struct http_exchange *x, const char *key, const struct digest *body,
                    enum jobs_replay *found, char name[JOBS_NAME_BYTES]) {
    struct err e;
    if (jobs_look_up(v->jobs, verdicts_owner(x), key, body, found, name, &e) == ST_OK && *found != JOBS_OTHER)
        return true;
    if (*found == JOBS_OTHER)
        http_reply_error(x, 409, "task_exists", NULL, "another request came with this id");
    else
        verdicts_reply_trouble(x, &e);
    *found = JOBS_NEW;
    return false;
}

/* Whether a job is over without a verdict: a task that comes again is judged again then. */
static bool lacks_verdict(struct verdicts *v, const char *name) {
    struct job_row r;
    struct err e;
    bool found;
    if (jobs_find(v->jobs, name, false, &r, &found, &e) != ST_OK || !found) return true;
    return job_is_over(r.status) && r.status != JOB_SUCCEEDED;
}

/* A task on its way to a job, with its key. */
static bool take_task(struct verdicts *v, const json_t *task, struct verdicts_arriving *a, double *wait_s,
                      char key[KEY_BYTES], struct verdict_refusal *why) {
    CLEANUP_JSON json_t *request = NULL;
    if (!kernel_gym_request(task, &request, wait_s, why)) return false;
    name_problem(v, request);
    task_key("task", json_string_value(json_object_get(request, "id")), key);
    return verdicts_arrive(v, a, request, why);
}

/* The id that a job's request has. */
static void put_task(const struct job_row *r, struct str *out) {
    CLEANUP_JSON json_t *request = NULL, *result = result_of(r);
    struct err e;
    const char *id = "";
    if (js_parse(r->request, strlen(r->request), r->name, &request, &e) == ST_OK)
        id = json_string_value(json_object_get(request, "id"));
    kernel_gym_put_result(id ? id : "", r, result, out);
}

static bool task_reply(struct verdicts *v, struct http_exchange *x, const char *name, bool now) {
    struct job_row r;
    struct str out = STR_INIT;
    if (!verdicts_find_job(v, x, name, &r)) return true;
    now |= job_is_over(r.status);
    if (now) {
        put_task(&r, &out);
        http_reply_json(x, 200, &out);
    }
    job_row_free(&r);
    return now;
}

static void evaluate_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    struct verdicts_arriving a = {0};
    struct verdict_refusal why;
    CLEANUP_JSON json_t *task = NULL;
    enum jobs_replay found = JOBS_NEW;
    char name[JOBS_NAME_BYTES], key[KEY_BYTES];
    double wait_s;
    if (!parse_body(x, &task, &why) || !take_task(v, task, &a, &wait_s, key, &why)) {
        verdicts_reply_refusal(x, &why);
    } else {
        const struct digest body = digest_of(a.job[0].request, strlen(a.job[0].request));
        a.job[0].key = key;
        if (look_up(v, x, key, &body, &found, name) &&
            ((found == JOBS_SAME && !lacks_verdict(v, name)) || add_jobs(v, x, &a, NULL, name)) &&
            !task_reply(v, x, name, v->draining))
            hold(v, x, name, wait_s);
    }
    verdicts_arriving_free(&a);
}

/* ---- KernelGYM: batches -------------------------------------------------------------------------------------------*/

static int by_place(const void *a, const void *b) {
    const struct job_row *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

static bool batch_reply(struct verdicts *v, struct http_exchange *x, const char *name, bool now) {
    struct job_row rows[KERNEL_GYM_TASKS];
    struct batch_row b;
    struct err e;
    struct str out = STR_INIT;
    size_t n = 0;
    if (!verdicts_find_batch(v, x, name, &b)) return true;
    const bool over = verdicts_batch_is_over(&b);
    if (!over && !now) return false;
    if (jobs_results(v->jobs, b.id, 0, rows, KERNEL_GYM_TASKS, &n, &e) != ST_OK) {
        verdicts_reply_trouble(x, &e);
        return true;
    }
    CLEANUP_JSON json_t *body = body_again(x);
    qsort(rows, n, sizeof *rows, by_place);
    js_begin(&out, NULL, '{');
    js_put_str(&out, "batch_id", json_string_value(json_object_get(body, "batch_id")));
    js_put_i64(&out, "total_tasks", b.counts.total);
    js_put_i64(&out, "completed_tasks", b.counts.by[JOB_SUCCEEDED]);
    js_put_i64(&out, "failed_tasks", b.counts.by[JOB_FAILED] + b.counts.by[JOB_CANCELLED]);
    js_put_str(&out, "batch_status", kernel_gym_state(over ? JOB_SUCCEEDED : JOB_RUNNING));
    js_begin(&out, "results", '[');
    for (size_t i = 0; i < n; i++) {
        put_task(&rows[i], &out);
        job_row_free(&rows[i]);
    }
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
    return true;
}

static bool take_batch(struct verdicts *v, const json_t *body, struct verdicts_arriving *a,
                       char key[KERNEL_GYM_TASKS][KEY_BYTES], struct verdict_refusal *why) {
    const json_t *tasks = json_object_get(body, "tasks");
    size_t i;
    json_t *task;
    double wait_s;
    if (!json_is_array(tasks) || json_array_size(tasks) == 0 || json_array_size(tasks) > KERNEL_GYM_TASKS)
        return verdict_refuse(why, 400, NULL, "tasks", "tasks: expected a list of 1 to %d tasks", KERNEL_GYM_TASKS);
    json_array_foreach(tasks, i, task) {
        if (take_task(v, task, a, &wait_s, key[i], why)) continue;
        verdict_refusal_place(why, "tasks", i);
        return false;
    }
    for (i = 0; i < a->n; i++) a->job[i].key = key[i];
    return true;
}

static void evaluate_batch_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    struct verdicts_arriving a = {0};
    struct verdict_refusal why;
    CLEANUP_JSON json_t *body = NULL;
    enum jobs_replay found = JOBS_NEW;
    char name[JOBS_NAME_BYTES], key[KEY_BYTES], task[KERNEL_GYM_TASKS][KEY_BYTES];
    const char *id = NULL;
    size_t n;
    const char *text = http_body(x, &n);
    const struct digest digest = digest_of(text, n);
    if (!parse_body(x, &body, &why) || !kernel_gym_id(body, "batch_id", &id, &why) ||
        !take_batch(v, body, &a, task, &why)) {
        verdicts_reply_refusal(x, &why);
    } else {
        task_key("batch", id, key);
        if (look_up(v, x, key, &digest, &found, name) && (found == JOBS_SAME || add_jobs(v, x, &a, key, name)) &&
            !batch_reply(v, x, name, v->draining))
            hold(v, x, name, MOST_HELD_S);
    }
    verdicts_arriving_free(&a);
}

static void evaluate_event(void *verdicts, struct http_exchange *x, enum http_event event) {
    struct verdicts *v = verdicts;
    const struct verdicts_waiter *w = http_state(x);
    const bool now = event != HTTP_WOKEN || v->draining;
    if (http_replied(x)) return;
    (void)(w->batch ? batch_reply(v, x, w->name, now) : task_reply(v, x, w->name, now));
}

/* ---- KernelGYM: tasks that are there ------------------------------------------------------------------------------*/

/* The job of a task. False: replied. */
static bool find_task(struct verdicts *v, struct http_exchange *x, struct job_row *r) {
    char key[KEY_BYTES], name[JOBS_NAME_BYTES];
    enum jobs_replay found = JOBS_NEW;
    if (strlen(http_tail(x)) <= KERNEL_GYM_ID_BYTES) {
        task_key("task", http_tail(x), key);
        if (!look_up(v, x, key, NULL, &found, name)) return false;
    }
    if (found == JOBS_SAME) return verdicts_find_job(v, x, name, r);
    http_reply_error(x, 404, "not_found", NULL, "there is no task \"%.100s\" here", http_tail(x));
    return false;
}

static void status_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    struct job_row r;
    struct str out = STR_INIT;
    struct err e;
    int64_t position = 0;
    if (!find_task(v, x, &r)) return;
    if (r.status == JOB_QUEUED && jobs_position(v->jobs, r.id, &position, &e) != ST_OK) position = 0;
    CLEANUP_JSON json_t *result = result_of(&r);
    kernel_gym_put_status(http_tail(x), &r, result, position, &out);
    http_reply_json(x, 200, &out);
    job_row_free(&r);
}

static void results_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    struct job_row r;
    struct str out = STR_INIT;
    if (!find_task(v, x, &r)) return;
    put_task(&r, &out);
    http_reply_json(x, job_is_over(r.status) ? 200 : 202, &out);
    job_row_free(&r);
}

static void task_cancel_begin(void *verdicts, struct http_exchange *x) {
    struct verdicts *v = verdicts;
    struct job_row r;
    struct err e;
    if (!find_task(v, x, &r)) return;
    if (!job_is_over(r.status) && verdicts_cancel(v, r.id, &e) != ST_OK)
        verdicts_reply_trouble(x, &e);
    else
        (void)task_reply(v, x, r.name, true);
    job_row_free(&r);
}

/* ---- the table ----------------------------------------------------------------------------------------------------*/

const struct http_route gyms_routes[] = {
    {"POST", "/verify", HTTP_KEY, HTTP_JSON_BODY, nemo_verify_begin, nemo_verify_event, gym_end, ONE_BODY},
    {"POST", "/seed_session", HTTP_KEY, HTTP_OPTIONAL_JSON, nemo_seed_begin, NULL, NULL, ONE_BODY},
    {"GET", "/reverify_mode", HTTP_KEY, HTTP_NO_BODY, nemo_mode_begin, NULL, NULL, 0},
    {"POST", "/aggregate_metrics", HTTP_KEY, HTTP_JSON_BODY, nemo_means_begin, NULL, NULL, VERDICTS_BATCH_BYTES},
    {"POST", "/evaluate", HTTP_KEY, HTTP_JSON_BODY, evaluate_begin, evaluate_event, gym_end, ONE_BODY},
    {"POST", "/evaluate/batch", HTTP_KEY, HTTP_JSON_BODY, evaluate_batch_begin, evaluate_event, gym_end,
     VERDICTS_BATCH_BYTES},
    {"GET", "/status/*", HTTP_KEY, HTTP_NO_BODY, status_begin, NULL, NULL, 0},
    {"GET", "/results/*", HTTP_KEY, HTTP_NO_BODY, results_begin, NULL, NULL, 0},
    {"DELETE", "/tasks/*", HTTP_KEY, HTTP_NO_BODY, task_cancel_begin, NULL, NULL, 0},
};
const size_t gyms_n_routes = ARRAY_LEN(gyms_routes);
