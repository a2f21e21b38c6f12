/* Routes of the server itself: health and metrics. */
#include <string.h>

#include "http/internal.h"

/* The first front end that is not well; NULL: all are. */
static const struct http_front *unwell(const struct http_server *s, struct http_health *h) {
    *h = (struct http_health){.ok = true};
    for (int i = 1; i < s->n_fronts; i++) {
        const struct http_front *f = s->front[i];
        if (!f->health) continue;
        *h = f->health(f->ctx);
        if (!h->ok) return f;
    }
    return NULL;
}

static void health(void *ctx, struct http_exchange *x) {
    struct http_health h;
    struct str body = STR_INIT;
    (void)ctx;
    if (x->s->drain_since != 0) {
        http_reply_error(x, 503, "draining", NULL, "the server is ending");
        return;
    }
    if (unwell(x->s, &h)) {
        http_add_header(x, "retry-after", "1");
        http_reply_error(x, 503, h.code, NULL, "%s", h.message);
        return;
    }
    str_adds(&body, "{\"status\":\"ok\"}");
    http_reply_json(x, 200, &body);
}

/* The process answers; it is dead only when its work is stuck. */
static void liveness(void *ctx, struct http_exchange *x) {
    struct http_health h;
    struct str body = STR_INIT;
    (void)ctx;
    if (unwell(x->s, &h) && strcmp(h.code, "stuck") == 0) {
        http_reply_error(x, 503, h.code, NULL, "%s", h.message);
        return;
    }
    str_adds(&body, "{\"status\":\"ok\"}");
    http_reply_json(x, 200, &body);
}

/* ---- metrics ------------------------------------------------------------------------------------------------------*/

static void put_requests(const struct http_server *s, struct str *out) {
    static const char *const class_name[] = {"left", "1xx", "2xx", "3xx", "4xx", "5xx"};
    metrics_family(out, "kernelrl_http_requests_total", "counter",
                   "HTTP requests by route and class of status; left: the client did not wait for the end");
    for (int f = 0; f <= s->n_fronts; f++)
        for (size_t r = 0; r < (f < s->n_fronts ? s->front[f]->n_routes : 1); r++)
            for (size_t k = 0; k < ARRAY_LEN(class_name); k++) {
                const int64_t n = f < s->n_fronts ? s->counts.routes[f][r][k] : s->counts.no_route[k];
                CLEANUP_STR struct str labels = STR_INIT;
                if (n == 0) continue;
                metrics_label(&labels, "method", f < s->n_fronts ? s->front[f]->route[r].method : "");
                metrics_label(&labels, "route", f < s->n_fronts ? s->front[f]->route[r].path : "");
                metrics_label(&labels, "status", class_name[k]);
                metrics_value(out, "kernelrl_http_requests_total", labels.p, (double)n);
            }
}

static void put_connections(const struct http_server *s, struct str *out) {
    static const char *const deadline_name[] = {CHOICE_NAMES(DEADLINE_LIST)};
    const struct http_counts *n = &s->counts;
    metrics_single(out, "kernelrl_http_connections", "gauge", "Open connections", NULL, s->n_conns);
    metrics_single(out, "kernelrl_http_exchanges", "gauge", "Requests that are being served", NULL, s->n_exchanges);
    metrics_single(out, "kernelrl_http_body_bytes", "gauge", "Bytes of request bodies in memory", NULL,
                   (double)s->bodies);
    metrics_single(out, "kernelrl_http_connections_total", "counter", "Connections that were accepted", NULL,
                   (double)n->connections);
    metrics_family(out, "kernelrl_http_refused_total", "counter", "Requests refused for want of room");
    metrics_value(out, "kernelrl_http_refused_total", "reason=\"connections\"", (double)n->refused_connections);
    metrics_value(out, "kernelrl_http_refused_total", "reason=\"bodies\"", (double)n->refused_bodies);
    metrics_family(out, "kernelrl_http_timeouts_total", "counter", "Connections ended by a deadline");
    for (int d = 0; d < N_DEADLINES; d++) {
        CLEANUP_STR struct str labels = STR_INIT;
        metrics_label(&labels, "deadline", deadline_name[d]);
        metrics_value(out, "kernelrl_http_timeouts_total", labels.p, (double)n->timed_out[d]);
    }
    metrics_single(out, "kernelrl_access_log_dropped_total", "counter", "Lines of the access log that nobody took",
                   NULL, (double)s->log_dropped);
    metrics_single(out, "kernelrl_uptime_seconds", "gauge", "Seconds since the server listens", NULL,
                   (double)(clock_now_ns() - s->started) * 1e-9);
}

static void metrics(void *ctx, struct http_exchange *x) {
    struct str out = STR_INIT;
    (void)ctx;
    put_requests(x->s, &out);
    put_connections(x->s, &out);
    for (int i = 1; i < x->s->n_fronts; i++)
        if (x->s->front[i]->metrics) x->s->front[i]->metrics(x->s->front[i]->ctx, &out);
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/health", .access = HTTP_OPEN, .begin = health},
    {.method = "GET", .path = "/v1/health", .access = HTTP_OPEN, .begin = health},
    {.method = "GET", .path = "/ready", .access = HTTP_OPEN, .begin = health},
    {.method = "GET", .path = "/liveness", .access = HTTP_OPEN, .begin = liveness},
    {.method = "GET", .path = "/metrics", .access = HTTP_KEY, .begin = metrics},
};
const struct http_front core_front = {.name = "server", .route = routes, .n_routes = ARRAY_LEN(routes)};
