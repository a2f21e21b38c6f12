#include "dashboard/dashboard.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/hash.h"
#include "rl/view/view.h"

enum { PATH_PARTS = 8, JOBS_MAX = 256 };

/* One request for data. It belongs to the queue, then to the thread, then to the list of what is done; `x` is the
 * server thread's alone and becomes NULL when the client leaves. */
struct dashboard_job {
    struct dashboard_job *next;
    struct http_exchange *x;
    char *path;                   /* what stands behind /api/runs, split into parts */
    const char *part[PATH_PARTS]; /* the run's name first */
    int n_parts;
    char **query; /* [N_QUERY]: NULL where the request has none */
    struct str out;
    enum status status;
    struct err err;
    bool is_csv;
    bool is_stream; /* true: the request is for events, and asks again every second */
    char *told;     /* of events: what the client knows. The server's thread's alone */
    struct dashboard *owner;
    bool is_done; /* true: the server's thread has it back, and frees it with the exchange. That thread's alone */
};

enum query {
    Q_NAMES,
    Q_POINTS,
    Q_CURSOR,
    Q_LIMIT,
    Q_STEP_FROM, /* this one and those behind it choose answers */
    Q_STEP_TO,
    Q_PROBLEM,
    Q_OUTCOME,
    Q_CLASS,
    Q_STOP,
    Q_ROLE,
    Q_REWARD_MIN,
    Q_REWARD_MAX,
    Q_SPEEDUP_MIN,
    Q_SPEEDUP_MAX,
    Q_TEXT,
    Q_SORT,
    N_QUERY
};
static const char *const query_names[N_QUERY] = {
    "names", "points", "cursor",     "limit",      "step_from",   "step_to",     "problem", "outcome", "class",
    "stop",  "role",   "reward_min", "reward_max", "speedup_min", "speedup_max", "text",    "sort"};

struct dashboard {
    bool is_draining; /* true: streams end. The server's thread's alone */
    struct run_view *view;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct dashboard_job *first, **last; /* waiting */
    struct dashboard_job *done;
    int waiting;
    bool end;
    int fd; /* an eventfd: something is done */
};

static void job_free(struct dashboard_job *j) {
    for (int i = 0; i < N_QUERY; i++) free(j->query[i]);
    free(j->query);
    free(j->path);
    free(j->told);
    str_free(&j->out);
    free(j);
}

/* ---- the thread ---------------------------------------------------------------------------------------------------*/

static enum status whole(const struct dashboard_job *j, enum query q, int64_t usual, int64_t *out, struct err *e) {
    *out = usual;
    if (!j->query[q] || (parse_i64(j->query[q], out) && *out >= 0)) return ST_OK;
    return FAIL(e, ST_USAGE, "%s: expected a whole number from 0 on", query_names[q]);
}

static enum status episodes(struct dashboard *d, struct dashboard_job *j) {
    struct view_query q = view_query_all();
    TRY(whole(j, Q_CURSOR, q.cursor, &q.cursor, &j->err));
    TRY(whole(j, Q_LIMIT, q.limit, &q.limit, &j->err));
    for (int i = Q_STEP_FROM; i < N_QUERY; i++)
        if (j->query[i]) TRY(view_query_set(&q, query_names[i], j->query[i], &j->err));
    return view_episodes(d->view, j->part[0], &q, &j->out, &j->err);
}

/* Numbers in the path, from part 2 on. */
static bool numbers(const struct dashboard_job *j, int n, int64_t *out) {
    if (j->n_parts != n + 2) return false;
    for (int i = 0; i < n; i++)
        if (!parse_i64(j->part[i + 2], &out[i]) || out[i] < 0) return false;
    return true;
}

static enum status answer(struct dashboard *d, struct dashboard_job *j) {
    const char *run = j->part[0], *what = j->n_parts > 1 ? j->part[1] : "";
    struct err *e = &j->err;
    int64_t n[4], points;
    if (j->n_parts == 0) return view_runs(d->view, &j->out, e);
    if (j->n_parts == 1) return view_run(d->view, run, &j->out, e);
    if (j->is_stream) return view_state(d->view, run, &j->out, e);
    if (j->n_parts == 2 && strcmp(what, "problem") == 0)
        return view_problem(j->query[Q_PROBLEM] ? j->query[Q_PROBLEM] : "", &j->out, e);
    if (j->n_parts == 2 && strcmp(what, "episodes") == 0) return episodes(d, j);
    if (j->n_parts == 2 && strcmp(what, "best") == 0) return view_best(d->view, run, &j->out, e);
    if (j->n_parts == 2 && strcmp(what, "metrics") == 0) {
        TRY(whole(j, Q_POINTS, 500, &points, e));
        return view_metrics(d->view, run, j->query[Q_NAMES] ? j->query[Q_NAMES] : "", points, &j->out, e);
    }
    if (j->n_parts == 2 && strcmp(what, "metrics.csv") == 0) {
        j->is_csv = true;
        return view_csv(d->view, run, j->query[Q_NAMES], &j->out, e);
    }
    if (strcmp(what, "group") == 0 && numbers(j, 2, n)) return view_group(d->view, run, n[0], n[1], &j->out, e);
    if (strcmp(what, "episode") == 0 && numbers(j, 4, n))
        return view_episode(d->view, run, n[0], n[1], n[2], n[3], j->query[Q_ROLE], &j->out, e);
    return FAIL(e, ST_IO, "there is nothing of that name");
}

static void *read_runs(void *ctx) {
    struct dashboard *d = ctx;
    const uint64_t one = 1;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->first && !d->end) pthread_cond_wait(&d->more, &d->lock);
        if (d->end) break;
        struct dashboard_job *j = d->first;
        d->first = j->next;
        if (!d->first) d->last = &d->first;
        const bool is_wanted = j->x != NULL;
        pthread_mutex_unlock(&d->lock);
        if (is_wanted) j->status = answer(d, j);
        pthread_mutex_lock(&d->lock);
        j->next = d->done;
        d->done = j;
        if (write(d->fd, &one, sizeof one) != sizeof one) break; /* a counter of 64 bits: never full */
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the server's side --------------------------------------------------------------------------------------------*/

/* Data that the client has already are not sent again. The tag is a hash of the very bytes. */
static void reply_data(struct dashboard_job *j) {
    char tag[24];
    const char *known = http_header(j->x, "if-none-match");
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)hash_bytes(str_c(&j->out), j->out.len, 0));
    http_add_header(j->x, "cache-control", "private, no-cache");
    http_add_header(j->x, "etag", tag);
    if (known && strcmp(known, tag) == 0) {
        str_clear(&j->out);
        http_reply(j->x, 304, "application/json", &j->out);
    } else {
        http_reply_json(j->x, 200, &j->out);
    }
}

/* http_more_fn: an event whenever the run's state is another one. */
static enum http_more more_events(struct http_exchange *x, struct str *out) {
    struct dashboard_job *j = http_state(x);
    if (j->owner->is_draining) return HTTP_END;
    if (!j->is_done) return HTTP_WAIT;
    if (j->status != ST_OK) {
        str_adds(out, "event: gone\ndata: {}\n\n");
        return HTTP_END;
    }
    if (!j->told || strcmp(j->told, str_c(&j->out)) != 0) {
        free(j->told);
        j->told = xstrdup(str_c(&j->out));
        str_addf(out, "event: state\ndata: %s\n\n", j->told);
    }
    return HTTP_WAIT;
}

static void reply(struct dashboard_job *j) {
    if (j->status == ST_OK && j->is_stream) {
        http_add_header(j->x, "cache-control", "no-store");
        http_stream(j->x, 200, "text/event-stream", ": ping\n\n", more_events);
        http_wake_after(j->x, 1);
        return;
    }
    if (j->status == ST_OK && j->is_csv) {
        http_add_header(j->x, "content-disposition", "attachment; filename=metrics.csv");
        http_reply(j->x, 200, "text/csv; charset=utf-8", &j->out);
    } else if (j->status == ST_OK) {
        reply_data(j);
    } else {
        const int code = j->status == ST_IO ? 404 : j->status == ST_USAGE ? 400 : 500;
        http_reply_error(j->x, code, code == 404 ? "not_found" : NULL, NULL, "%s", j->err.msg);
    }
}

/* http_fd_fn */
static void on_done(void *ctx) {
    struct dashboard *d = ctx;
    uint64_t count;
    if (read(d->fd, &count, sizeof count) != sizeof count) return;
    pthread_mutex_lock(&d->lock);
    struct dashboard_job *done = d->done;
    d->done = NULL;
    pthread_mutex_unlock(&d->lock);
    while (done) {
        struct dashboard_job *j = done;
        done = j->next;
        d->waiting--;
        j->is_done = true;
        if (j->x)
            http_wake(j->x);
        else
            job_free(j);
    }
}

static void split(struct dashboard_job *j) {
    char *p = j->path;
    while (*p == '/') p++;
    while (*p && j->n_parts < PATH_PARTS) {
        char *slash = strchr(p, '/');
        j->part[j->n_parts++] = p;
        if (!slash) return;
        *slash = 0;
        p = slash + 1;
    }
}

static void enqueue(struct dashboard *d, struct dashboard_job *j) {
    j->next = NULL;
    j->is_done = false;
    d->waiting++;
    pthread_mutex_lock(&d->lock);
    *d->last = j;
    d->last = &j->next;
    pthread_cond_signal(&d->more);
    pthread_mutex_unlock(&d->lock);
}

static void data_begin(void *ctx, struct http_exchange *x) {
    struct dashboard *d = ctx;
    if (d->waiting >= JOBS_MAX) {
        http_add_header(x, "retry-after", "1");
        http_reply_error(x, 429, "queue_full", NULL, "%d requests are waiting", JOBS_MAX);
        return;
    }
    struct dashboard_job *j = xcalloc(1, sizeof *j);
    j->query = xcalloc(N_QUERY, sizeof *j->query);
    j->x = x;
    j->path = xstrdup(http_path(x) + strlen("/api/runs"));
    for (int i = 0; i < N_QUERY; i++) {
        const char *v = http_query(x, query_names[i]);
        if (v && *v) j->query[i] = xstrdup(v);
    }
    split(j);
    j->owner = d;
    j->is_stream = j->n_parts == 2 && strcmp(j->part[1], "events") == 0;
    http_set_state(x, j);
    enqueue(d, j);
}

static void data_event(void *ctx, struct http_exchange *x, enum http_event e) {
    struct dashboard *d = ctx;
    struct dashboard_job *j = http_state(x);
    if (e == HTTP_WOKEN) {
        reply(j);
    } else if (!http_replied(x)) {
        http_reply_error(x, 503, "draining", NULL, "the server ends");
    } else if (e == HTTP_CUT || d->is_draining) {
        d->is_draining = true;
        http_wake(x);
    } else {
        if (j->is_done && d->waiting < JOBS_MAX) {
            str_clear(&j->out);
            enqueue(d, j);
        }
        http_wake_after(x, 1);
    }
}

static void data_end(void *ctx, struct http_exchange *x) {
    struct dashboard *d = ctx;
    struct dashboard_job *j = http_state(x);
    if (!j) return;
    if (j->is_done) {
        job_free(j);
        return;
    }
    pthread_mutex_lock(&d->lock);
    j->x = NULL; /* on_done frees it */
    pthread_mutex_unlock(&d->lock);
}

static void send_file(struct http_exchange *x, const char *name) {
    const struct dashboard_file *f = dashboard_file(name);
    struct str body = STR_INIT;
    if (!f) {
        http_reply_error(x, 404, "not_found", NULL, "the page has no such file");
        return;
    }
    http_add_header(
        x, "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'none'");
    http_add_header(x, "referrer-policy", "no-referrer");
    http_add_header(x, "cache-control", "no-cache");
    str_add(&body, f->bytes, (size_t)(f->end - f->bytes));
    http_reply(x, 200, f->content_type, &body);
}

static void page_begin(void *ctx, struct http_exchange *x) {
    (void)ctx;
    send_file(x, "index.html");
}

static void file_begin(void *ctx, struct http_exchange *x) {
    (void)ctx;
    send_file(x, http_tail(x));
}

static void root_begin(void *ctx, struct http_exchange *x) {
    struct str body = STR_INIT;
    (void)ctx;
    http_add_header(x, "location", "/dashboard");
    str_adds(&body, "see /dashboard\n");
    http_reply(x, 302, "text/plain; charset=utf-8", &body);
}

/* The page's own files hold no data, so that the page can ask for the key that the data need. */
static const struct http_route routes[] = {
    {"GET", "/", HTTP_OPEN, HTTP_NO_BODY, root_begin, NULL, NULL, 0},
    {"GET", "/dashboard", HTTP_OPEN, HTTP_NO_BODY, page_begin, NULL, NULL, 0},
    {"GET", "/dashboard/*", HTTP_OPEN, HTTP_NO_BODY, file_begin, NULL, NULL, 0},
    {"GET", "/api/runs", HTTP_KEY, HTTP_NO_BODY, data_begin, data_event, data_end, 0},
    {"GET", "/api/runs/*", HTTP_KEY, HTTP_NO_BODY, data_begin, data_event, data_end, 0},
};

static void draining(void *ctx) { ((struct dashboard *)ctx)->is_draining = true; }

struct http_front dashboard_front(struct dashboard *d) {
    return (struct http_front){
        .name = "dashboard", .route = routes, .n_routes = ARRAY_LEN(routes), .ctx = d, .draining = draining};
}

enum status dashboard_attach(struct dashboard *d, struct http_server *s, struct err *e) {
    return http_watch_fd(s, d->fd, on_done, d, e);
}

enum status dashboard_open(const char *runs_dir, struct dashboard **out, struct err *e) {
    struct dashboard *d = xcalloc(1, sizeof *d);
    *out = NULL;
    d->last = &d->first;
    d->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->fd < 0) {
        free(d);
        return FAIL(e, ST_IO, "eventfd: %s", strerror(errno));
    }
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->more, NULL);
    d->view = view_open(runs_dir);
    const int wrong = pthread_create(&d->thread, NULL, read_runs, d);
    ASSERT(wrong == 0);
    *out = d;
    return ST_OK;
}

static void free_all(struct dashboard_job *j) {
    while (j) {
        struct dashboard_job *next = j->next;
        job_free(j);
        j = next;
    }
}

void dashboard_close(struct dashboard *d) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->end = true;
    pthread_cond_signal(&d->more);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    free_all(d->first);
    free_all(d->done);
    view_close(d->view);
    pthread_cond_destroy(&d->more);
    pthread_mutex_destroy(&d->lock);
    close(d->fd);
    free(d);
}
