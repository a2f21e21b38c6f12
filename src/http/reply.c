/* Replies: whole ones, errors, streams and files. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/internal.h"
#include "io/json.h"

/* ---- errors -------------------------------------------------------------------------------------------------------*/

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 408: return "timeout";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    }
    return status >= 500 ? "server_error" : "invalid_request_error";
}

void http_error_json(struct str *out, int status, const char *code, const char *param, const char *message) {
    js_begin(out, NULL, '{');
    js_begin(out, "error", '{');
    js_put_str(out, "message", message);
    js_put_str(out, "type", error_type(status));
    js_put_str(out, "param", param);
    js_put_str(out, "code", code);
    js_end(out, '}');
    js_end(out, '}');
}

void http_reply_error(struct http_exchange *x, int status, const char *code, const char *param, const char *fmt, ...) {
    char message[2048];
    struct str body = STR_INIT;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    http_error_json(&body, status, code, param, message);
    if (code) http_log_text(x, "code", code);
    http_reply_json(x, status, &body);
}

void conn_reply_raw(const struct conn *c, int status, const char *code, const char *message) {
    CLEANUP_STR struct str body = STR_INIT, all = STR_INIT;
    http_error_json(&body, status, code, NULL, message);
    str_addf(&all,
             "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %zu\r\n\r\n%s",
             status, MHD_get_reason_phrase_for((unsigned)status), body.len, body.p);
    /* Nothing has been sent for this request yet, so the socket has room; bytes that it does not take are lost. */
    const ssize_t sent = send(c->fd, all.p, all.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent;
}

/* ---- whole replies ------------------------------------------------------------------------------------------------*/

void http_add_header(struct http_exchange *x, const char *name, const char *value) {
    struct header *h = xcalloc(1, sizeof *h);
    *h = (struct header){x->headers, xstrdup(name), xstrdup(value)};
    x->headers = h;
}

static void put_header(struct MHD_Response *r, const char *name, const char *value) {
    if (MHD_add_response_header(r, name, value) == MHD_NO)
        assert_failed("a header that can be sent", __FILE__, __LINE__, name);
}

/* Makes r the reply of x, and lets x go on to send it. */
static void finish(struct http_exchange *x, int status, const char *content_type, struct MHD_Response *r) {
    ASSERT(r && !x->response);
    const char *origin = http_header(x, "Origin");
    if (content_type) put_header(r, "content-type", content_type);
    put_header(r, "x-request-id", x->id);
    put_header(r, "x-content-type-options", "nosniff");
    if (origin && guard_origin_listed(&x->s->guard, origin)) {
        put_header(r, "access-control-allow-origin", origin);
        put_header(r, "access-control-expose-headers", "x-request-id, retry-after");
        put_header(r, "vary", "origin");
    }
    for (const struct header *h = x->headers; h; h = h->next) put_header(r, h->name, h->value);
    if (x->s->drain_since != 0) put_header(r, "connection", "close");
    x->response = r;
    x->status = status;
    exchange_resume(x);
}

/* Takes what is in `out`, or asks the route for more. */
static void refill(struct http_exchange *x) {
    x->out_at = 0;
    if (x->out.cap > 2 * HTTP_POOL_BYTES)
        str_free(&x->out);
    else
        str_clear(&x->out);
    const enum http_more got = x->more(x, &x->out);
    x->ended = got == HTTP_END || (x->cut && got == HTTP_WAIT);
    if (x->ping_now && got == HTTP_WAIT && !x->ended) str_adds(&x->out, x->ping);
    x->ping_now = false;
}

/* MHD_ContentReaderCallback. */
static ssize_t read_out(void *exchange, uint64_t position, char *buffer, size_t room) {
    struct http_exchange *x = exchange;
    (void)position;
    x->given = 0;
    if (x->gone) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (x->out_at == x->out.len && !x->ended) refill(x);
    const size_t left = x->out.len - x->out_at, n = left < room ? left : room;
    if (n == 0 && x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0 && x->c->half_closed) {
        exchange_lose(x);
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (n == 0) {
        exchange_suspend(x);
        return 0;
    }
    memcpy(buffer, x->out.p + x->out_at, n);
    x->out_at += n;
    x->sent += (int64_t)n;
    x->given = x->quiet_since = clock_now_ns();
    return (ssize_t)n;
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct str *body) {
    const size_t n = body->len;
    struct MHD_Response *r;
    if (n > HTTP_REPLY_PIECE) {
        x->out = *body;
        x->ended = true;
        r = MHD_create_response_from_callback(n, HTTP_REPLY_PIECE / 4, read_out, x, NULL);
    } else {
        r = MHD_create_response_from_buffer(n, str_steal(body), MHD_RESPMEM_MUST_FREE);
        x->sent = (int64_t)n;
    }
    *body = STR_INIT;
    finish(x, status, content_type, r);
}

void http_reply_json(struct http_exchange *x, int status, struct str *body) {
    http_reply(x, status, "application/json", body);
}

void http_reply_file(struct http_exchange *x, int fd, int64_t offset, int64_t n, const char *content_type) {
    x->sent = n;
    finish(x, 200, content_type, MHD_create_response_from_fd_at_offset64((uint64_t)n, fd, (uint64_t)offset));
}

void http_stream(struct http_exchange *x, int status, const char *content_type, const char *ping, http_more_fn *more) {
    x->more = more;
    x->ping = ping;
    x->quiet_since = clock_now_ns();
    http_add_header(x, "cache-control", "no-cache");
    http_add_header(x, "x-accel-buffering", "no");
    finish(x, status, content_type, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_out, x, NULL));
}
