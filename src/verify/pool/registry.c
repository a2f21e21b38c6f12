#include "verify/pool/registry.h"

#include <math.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "verify/pool/farm.h"
#include "verify/pool/jetstream.h"

enum { MOST = 4096 };
static const double answer_s = 15, connect_s = 30;

struct registry {
    struct js *js;
    json_t *hosts, *queues; /* arrays */
    int open;               /* questions without an answer */
    char why[300];
};

static void ask(struct registry *r, const char *subject, const char *body, js_reply_fn *fn) {
    r->open++;
    js_request(r->js, subject, body, answer_s, fn, r);
}

static void on_entry(void *ctx, const struct js_reply *reply) {
    struct registry *r = ctx;
    const json_t *message = reply->good ? json_object_get(reply->json, "message") : NULL;
    const char *data = json_string_value(json_object_get(message, "data"));
    r->open--;
    if (!data) return;
    const size_t n = strlen(data);
    CLEANUP_FREE char *text = xmalloc(n + 4);
    const int got = EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)data, (int)n);
    const size_t length = got > 0 ? strnlen(text, (size_t)got) : 0; /* padding decodes to NULs */
    json_t *host = length > 0 ? json_loadb(text, length, 0, NULL) : NULL;
    if (host && json_is_object(host))
        json_array_append_new(r->hosts, host);
    else
        json_decref(host);
}

static void on_entries(void *ctx, const struct js_reply *reply) {
    struct registry *r = ctx;
    const json_t *subjects = reply->good ? json_object_get(json_object_get(reply->json, "state"), "subjects") : NULL;
    const char *subject;
    json_t *unused;
    r->open--;
    if (!reply->good) snprintf(r->why, sizeof r->why, "%s", reply->error);
    json_object_foreach((json_t *)(uintptr_t)subjects, subject, unused) {
        CLEANUP_STR struct str body = STR_INIT;
        js_begin(&body, NULL, '{');
        js_put_str(&body, "last_by_subj", subject);
        js_end(&body, '}');
        ask(r, "$JS.API.STREAM.MSG.GET." FARM_WORKERS, body.p, on_entry);
    }
}

static void on_consumers(void *ctx, const struct js_reply *reply) {
    struct registry *r = ctx;
    r->open--;
    const json_t *list = reply->good ? json_object_get(reply->json, "consumers") : NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        json_t *q = json_object();
        json_object_set(q, "name", json_object_get(c, "name"));
        json_object_set(q, "waiting", json_object_get(c, "num_pending"));
        json_object_set(q, "at_hosts", json_object_get(c, "num_ack_pending"));
        json_object_set(q, "redelivered", json_object_get(c, "num_redelivered"));
        json_array_append_new(r->queues, q);
    }
}

static enum status collect(struct registry *r, const char *url, struct err *e) {
    bool asked = false;
    for (const double until = clock_now_s() + connect_s; clock_now_s() < until;) {
        struct pollfd p = {.fd = js_fd(r->js), .events = POLLIN};
        (void)poll(&p, 1, 50);
        js_step(r->js);
        if (js_connected(r->js) && !asked) {
            asked = true;
            ask(r, "$JS.API.STREAM.INFO." FARM_WORKERS, "{\"subjects_filter\":\">\"}", on_entries);
            ask(r, "$JS.API.CONSUMER.LIST." FARM_JOBS, "", on_consumers);
        }
        if (asked && r->open == 0) return r->why[0] ? FAIL(e, ST_WORKER, "%s: %s", url, r->why) : ST_OK;
    }
    char why[200];
    js_why(r->js, why, sizeof why);
    return FAIL(e, ST_WORKER, "%s: %s%s%s", url, asked ? "no answer" : "no connection", why[0] ? ": " : "", why);
}

static int by_name(const void *a, const void *b) {
    const json_t *const *x = a, *const *y = b;
    const char *p = json_string_value(json_object_get(*x, "host")), *q = json_string_value(json_object_get(*y, "host"));
    return strcmp(p ? p : "", q ? q : "");
}

static void show_hosts(const json_t *hosts, struct str *out) {
    const size_t n = json_array_size(hosts);
    CLEANUP_FREE const json_t **sorted = xcalloc(n + 1, sizeof *sorted);
    for (size_t i = 0; i < n; i++) sorted[i] = json_array_get(hosts, i);
    qsort(sorted, n, sizeof *sorted, by_name);
    str_addf(out, "%-20s %5s %5s %7s %-9s %s\n", "host", "slots", "jobs", "probe", "state", "classes");
    for (size_t i = 0; i < n; i++) {
        const json_t *h = sorted[i], *probe = json_object_get(h, "probe"), *classes = json_object_get(h, "classes");
        const char *name = json_string_value(json_object_get(h, "host")),
                   *why = json_string_value(json_object_get(h, "reason"));
        const bool draining = json_is_true(json_object_get(h, "draining"));
        char read[20] = "-";
        if (json_is_number(probe)) snprintf(read, sizeof read, "%.3f", json_number_value(probe));
        str_addf(out, "%-20s %5lld %5lld %7s %-9s", name ? name : "?",
                 (long long)json_integer_value(json_object_get(h, "slots")),
                 (long long)json_integer_value(json_object_get(h, "jobs")), read, draining ? "draining" : "ready");
        for (size_t k = 0; k < json_array_size(classes); k++) {
            const char *class = json_string_value(json_array_get(classes, k));
            if (class) str_addf(out, "%s%s", k ? ", " : " ", class);
        }
        if (why) str_addf(out, " (%s)", why);
        str_addc(out, '\n');
    }
    if (n == 0) str_adds(out, "no host is registered\n");
}

static void show_queues(const json_t *queues, struct str *out) {
    str_addf(out, "\n%-44s %8s %8s %11s\n", "queue", "waiting", "at hosts", "redelivered");
    for (size_t i = 0; i < json_array_size(queues); i++) {
        const json_t *q = json_array_get(queues, i);
        const char *name = json_string_value(json_object_get(q, "name"));
        str_addf(out, "%-44s %8lld %8lld %11lld\n", name ? name : "?",
                 (long long)json_integer_value(json_object_get(q, "waiting")),
                 (long long)json_integer_value(json_object_get(q, "at_hosts")),
                 (long long)json_integer_value(json_object_get(q, "redelivered")));
    }
}

enum status registry_show(const char *url, const char *folder, bool json, struct str *out, struct err *e) {
    struct registry r = {.hosts = json_array(), .queues = json_array()};
    const struct js_options connection = {.url = url, .name = "kernelrl verifiers", .folder = folder, .ping_s = 5};
    enum status st = js_open(&connection, &r.js, e);
    if (st == ST_OK) st = collect(&r, url, e);
    if (st == ST_OK && json) {
        js_begin(out, NULL, '{');
        js_put_json(out, "hosts", r.hosts);
        js_put_json(out, "queues", r.queues);
        js_end(out, '}');
        str_addc(out, '\n');
    } else if (st == ST_OK) {
        show_hosts(r.hosts, out);
        show_queues(r.queues, out);
    }
    js_close(r.js);
    json_decref(r.hosts);
    json_decref(r.queues);
    return st;
}
