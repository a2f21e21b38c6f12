/* The access log: a JSON line a request. Keys, queries and bodies never stand in it. */
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "http/internal.h"
#include "io/json.h"

enum { MAX_WAITING_BYTES = 1 << 20 };

void http_log_text(struct http_exchange *x, const char *name, const char *value) {
    str_addf(&x->log, ",\"%s\":", name);
    js_add_quoted(&x->log, value, strlen(value));
}

void access_log_add(struct http_server *s, const struct http_exchange *x) {
    const double now = (double)clock_now_ns();
    struct timespec t;
    struct tm utc;
    char when[40];
    if (s->o.log_fd < 0) return;
    if (x->front == 0 && x->status < 400 && !s->o.log_all) return;
    if (s->access_log.len > MAX_WAITING_BYTES) {
        s->log_dropped++;
        return;
    }
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    struct str *l = &s->access_log;
    str_addf(l, "{\"time\":\"%s.%03ldZ\",\"id\":", when, t.tv_nsec / 1000000);
    js_add_quoted(l, x->id, strlen(x->id));
    str_adds(l, ",\"method\":");
    js_add_quoted(l, x->method, strlen(x->method));
    str_adds(l, ",\"path\":");
    const char *path = x->path ? x->path : "";
    js_add_quoted(l, path, strnlen(path, 500));
    str_addf(l, ",\"status\":%d,\"left\":%s,\"body_bytes\":%lld,\"reply_bytes\":%lld,\"ms\":%.3f", x->status,
             x->gone ? "true" : "false", (long long)x->received, (long long)x->sent, (now - (double)x->began) * 1e-6);
    str_add(l, str_c(&x->log), x->log.len);
    str_adds(l, "}\n");
}

/* Writes what is there, unless nobody reads it at present. */
void access_log_flush(struct http_server *s) {
    struct pollfd p = {.fd = s->o.log_fd, .events = POLLOUT};
    size_t at = 0;
    while (at < s->access_log.len && poll(&p, 1, 0) == 1 && (p.revents & POLLOUT)) {
        /* A pipe that can be written takes so much without waiting. */
        const size_t left = s->access_log.len - at, n = left < 4096 ? left : 4096;
        const ssize_t wrote = write(p.fd, s->access_log.p + at, n);
        if (wrote <= 0) break;
        at += (size_t)wrote;
    }
    if (at == 0) return;
    if (at == s->access_log.len) {
        if (s->access_log.cap > (64 << 10))
            str_free(&s->access_log);
        else
            str_clear(&s->access_log);
        return;
    }
    struct str rest = STR_INIT;
    str_add(&rest, s->access_log.p + at, s->access_log.len - at);
    str_free(&s->access_log);
    s->access_log = rest;
}
