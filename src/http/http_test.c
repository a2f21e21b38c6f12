/* The server over socket pairs, with a front end that does what each test asks for: requests no client may send,
 * bodies, limits, replies of every kind, clients that leave, deadlines, and the drain. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "http/http.h"

/* ---- a front end --------------------------------------------------------------------------------------------------*/

static struct {
    int begun, ended, events[3];
    struct http_exchange *last; /* that waits or streams */
    int64_t body_bytes;
    int to_send; /* pieces that the stream has yet to send */
    bool end_stream, well, drained;
} seen;

static void reply_text(struct http_exchange *x, const char *text) {
    struct str s = STR_INIT;
    str_adds(&s, text);
    http_reply(x, 200, "text/plain", &s);
}

static void echo(void *ctx, struct http_exchange *x) {
    struct str s = STR_INIT;
    size_t n;
    const char *body = http_body(x, &n);
    (void)ctx;
    seen.begun++;
    seen.body_bytes = (int64_t)n;
    str_add(&s, body, n);
    http_reply(x, 200, "application/octet-stream", &s);
}

static void fine(void *ctx, struct http_exchange *x) {
    (void)ctx;
    seen.begun++;
    reply_text(x, "fine");
}

static void tail(void *ctx, struct http_exchange *x) {
    (void)ctx;
    const char *q = http_query(x, "q");
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "%s|%s|%s", http_tail(x), q ? q : "", http_request_id(x));
    reply_text(x, s.p);
}

static void wait_begin(void *ctx, struct http_exchange *x) {
    (void)ctx;
    seen.begun++;
    seen.last = x;
}

static void wait_event(void *ctx, struct http_exchange *x, enum http_event e) {
    (void)ctx;
    seen.events[e]++;
    reply_text(x, e == HTTP_WOKEN ? "woken" : e == HTTP_TIME_UP ? "time is up" : "cut");
}

static void late_begin(void *ctx, struct http_exchange *x) {
    wait_begin(ctx, x);
    http_wake_after(x, 0.05);
}

static void large(void *ctx, struct http_exchange *x) {
    struct str s = STR_INIT;
    (void)ctx;
    for (int i = 0; i < 100000; i++) str_adds(&s, "0123456789");
    http_reply(x, 200, "text/plain", &s);
}

static void long_event(void *ctx, struct http_exchange *x, enum http_event e) {
    seen.events[e]++;
    http_wake_after(x, 0.01);
    large(ctx, x);
}

static void count_end(void *ctx, struct http_exchange *x) {
    (void)ctx;
    seen.ended++;
    if (seen.last == x) seen.last = NULL;
}

static enum http_more more(struct http_exchange *x, struct str *out) {
    (void)x;
    if (seen.to_send > 0) {
        seen.to_send--;
        for (int i = 0; i < 1000; i++) str_adds(out, "0123456789");
        return HTTP_MORE;
    }
    return seen.end_stream ? HTTP_END : HTTP_WAIT;
}

static void stream_begin(void *ctx, struct http_exchange *x) {
    wait_begin(ctx, x);
    http_stream(x, 200, "text/event-stream", ": ping\n\n", more);
}

static void stream_event(void *ctx, struct http_exchange *x, enum http_event e) {
    (void)ctx, (void)x;
    seen.events[e]++;
    seen.end_stream = true;
}

static void file_begin(void *ctx, struct http_exchange *x) {
    FILE *f = tmpfile();
    (void)ctx;
    fputs("0123456789", f);
    fflush(f);
    http_reply_file(x, dup(fileno(f)), 3, 4, "text/plain");
    fclose(f);
}

static struct http_health health(void *ctx) {
    (void)ctx;
    return (struct http_health){seen.well, "not well", "loading"};
}
static void put_metrics(void *ctx, struct str *out) {
    (void)ctx;
    str_adds(out, "own 1\n");
}
static void draining(void *ctx) {
    (void)ctx;
    seen.drained = true;
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/fine", .access = HTTP_OPEN, .begin = fine},
    {.method = "GET", .path = "/keyed", .access = HTTP_KEY, .begin = fine},
    {.method = "POST", .path = "/admin", .access = HTTP_ADMIN, .begin = fine},
    {.method = "POST", .path = "/echo", .access = HTTP_OPEN, .body = HTTP_ANY_BODY, .begin = echo},
    {.method = "POST", .path = "/json", .access = HTTP_OPEN, .body = HTTP_JSON_BODY, .begin = echo},
    {.method = "POST", .path = "/maybe", .access = HTTP_OPEN, .body = HTTP_OPTIONAL_JSON, .begin = echo},
    {.method = "POST", .path = "/small", .access = HTTP_OPEN, .body = HTTP_ANY_BODY, .begin = echo, .max_body = 10},
    {.method = "GET", .path = "/tail/*", .access = HTTP_OPEN, .begin = tail},
    {.method = "GET", .path = "/wait", .access = HTTP_OPEN, .begin = wait_begin, .event = wait_event, .end = count_end},
    {.method = "GET", .path = "/long", .access = HTTP_OPEN, .begin = wait_begin, .event = long_event, .end = count_end},
    {.method = "GET", .path = "/late", .access = HTTP_OPEN, .begin = late_begin, .event = wait_event, .end = count_end},
    {.method = "GET",
     .path = "/stream",
     .access = HTTP_OPEN,
     .begin = stream_begin,
     .event = stream_event,
     .end = count_end},
    {.method = "GET", .path = "/file", .access = HTTP_OPEN, .begin = file_begin},
    {.method = "GET", .path = "/large", .access = HTTP_OPEN, .begin = large},
};
static const struct http_front front = {.name = "test",
                                        .route = routes,
                                        .n_routes = ARRAY_LEN(routes),
                                        .health = health,
                                        .metrics = put_metrics,
                                        .draining = draining};

/* ---- a client -----------------------------------------------------------------------------------------------------*/

static struct http_server *server;

static void open_server(struct http_options o) {
    struct err e = {0};
    memset(&seen, 0, sizeof seen);
    seen.well = true;
    o.front = &front;
    o.n_fronts = 1;
    if (o.log_fd == 0) o.log_fd = -1;
    if (o.port == 0) o.port = -1; /* no socket: connections are adopted */
    assert_int_equal(http_server_open(&o, &server, &e), ST_OK);
}

static void close_server(void) {
    http_server_close(server);
    server = NULL;
}

static void turn(int turns) {
    struct err e;
    for (int i = 0; i < turns; i++) assert_int_equal(http_step(server, 1, &e), ST_OK);
}

static int join(void) {
    int fd[2];
    struct err e;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    assert_int_equal(http_adopt(server, fd[1], &e), ST_OK);
    return fd[0];
}

static void say(int fd, const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t w = send(fd, text + at, n - at, MSG_NOSIGNAL);
        if (w < 0 && errno != EAGAIN) return; /* the server has closed: its reply is what counts */
        if (w > 0) at += (size_t)w;
        turn(1);
    }
}

/* Takes what comes until the server closes, or nothing comes for `quiet` turns and so many milliseconds. True: it
 * closed. */
static bool hear(int fd, struct str *out, int quiet) {
    char buf[4096];
    double since = clock_now_s();
    for (int idle = 0; idle < quiet || clock_now_s() - since < quiet * 1e-3;) {
        const ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n == 0) return true;
        if (n < 0 && errno != EAGAIN) return true;
        if (n > 0) {
            str_add(out, buf, (size_t)n);
            idle = 0;
            since = clock_now_s();
            continue;
        }
        turn(1);
        idle++;
    }
    return false;
}

/* Sends a request of its own connection; *closed (may be NULL): the server closed. */
static void ask_n(const char *request, size_t n, struct str *out, bool *closed) {
    const int fd = join();
    str_clear(out);
    say(fd, request, n);
    const bool c = hear(fd, out, 8);
    if (closed) *closed = c;
    close(fd);
    turn(2);
}
static void ask(const char *request, struct str *out, bool *closed) { ask_n(request, strlen(request), out, closed); }

static int status_of(const struct str *s) { return s->len > 12 ? (int)strtol(s->p + 9, NULL, 10) : 0; }
static bool has(const struct str *s, const char *text) {
    return mem_find(str_c(s), s->len, text, strlen(text)) != NULL;
}
#define H "Host: localhost\r\n"

/* ---- requests that no client may send -----------------------------------------------------------------------------*/

static void test_refused_heads(void **state) {
    (void)state;
    static const struct {
        const char *name, *request;
    } cases[] = {
        {"two lengths", "POST /echo HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"},
        {"different lengths", "POST /echo HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"},
        {"length and encoding",
         "POST /echo HTTP/1.1\r\n" H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
        {"two encodings",
         "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
        {"another encoding", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: gzip\r\n\r\n"},
        {"encodings in one", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
        {"encoding identity", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n"},
        {"negative length", "POST /echo HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n"},
        {"signed length", "POST /echo HTTP/1.1\r\n" H "Content-Length: +1\r\n\r\nx"},
        {"length in hex", "POST /echo HTTP/1.1\r\n" H "Content-Length: 0x1\r\n\r\nx"},
        {"lengths in one", "POST /echo HTTP/1.1\r\n" H "Content-Length: 1, 1\r\n\r\nx"},
        {"no length", "POST /echo HTTP/1.1\r\n" H "Content-Length: \r\n\r\n"},
        {"huge length", "POST /echo HTTP/1.1\r\n" H "Content-Length: 99999999999999999999999\r\n\r\n"},
        {"length over the limit", "POST /echo HTTP/1.1\r\n" H "Content-Length: 9223372036854775807\r\n\r\n"},
        {"no host", "GET /fine HTTP/1.1\r\n\r\n"},
        {"two hosts", "GET /fine HTTP/1.1\r\n" H H "\r\n"},
        {"blank before the colon", "GET /fine HTTP/1.1\r\nHost : localhost\r\n\r\n"},
        {"bare line feeds", "GET /fine HTTP/1.1\nHost: localhost\n\n"},
        {"a folded line", "GET /fine HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n"},
        {"a folded host", "GET /fine HTTP/1.1\r\nHost:\r\n localhost\r\n\r\n"},
        {"a padded value", "GET /fine HTTP/1.1\r\n" H "X:    a\r\n\r\n"},
        {"a header without a colon", "GET /fine HTTP/1.1\r\n" H "nothing\r\n\r\n"},
        {"an absolute target", "GET http://localhost/fine HTTP/1.1\r\n" H "\r\n"},
        {"a target of another host", "GET http://evil.example/fine HTTP/1.1\r\n" H "\r\n"},
        {"a target without slash", "GET fine HTTP/1.1\r\n" H "\r\n"},
        {"two slashes", "GET //fine HTTP/1.1\r\n" H "\r\n"},
        {"an encoded NUL", "GET /fine%00 HTTP/1.1\r\n" H "\r\n"},
        {"dots", "GET /tail/../fine HTTP/1.1\r\n" H "\r\n"},
        {"encoded dots", "GET /tail/%2e%2e/fine HTTP/1.1\r\n" H "\r\n"},
        {"a broken percent", "GET /tail/%4 HTTP/1.1\r\n" H "\r\n"},
        {"a blank in the target", "GET /tail/a b HTTP/1.1\r\n" H "\r\n"},
        {"bytes above ASCII", "GET /tail/\xc3\xa4 HTTP/1.1\r\n" H "\r\n"},
        {"HTTP/0.9", "GET /fine\r\n\r\n"},
        {"HTTP/2.0", "GET /fine HTTP/2.0\r\n" H "\r\n"},
        {"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
        {"a method of lower case", "get /fine HTTP/1.1\r\n" H "\r\n"},
        {"a long method", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA /fine HTTP/1.1\r\n" H "\r\n"},
        {"CONNECT", "CONNECT localhost:80 HTTP/1.1\r\n" H "\r\n"},
        {"TRACE", "TRACE /fine HTTP/1.1\r\n" H "\r\n"},
        {"OPTIONS", "OPTIONS /fine HTTP/1.1\r\n" H "\r\n"},
        {"OPTIONS of all", "OPTIONS * HTTP/1.1\r\n" H "\r\n"},
        {"a chunk size over 64 bits",
         "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n0\r\n\r\n"},
        {"a negative chunk", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n"},
        {"no chunk size", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n\r\nx\r\n0\r\n\r\n"},
        {"a chunk that is longer",
         "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n0\r\n\r\n"},
        {"a space in a chunk size",
         "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1 1\r\nx\r\n0\r\n\r\n"},
    };
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bool closed;
        ask(cases[i].request, &out, &closed);
        const int status = status_of(&out);
        if (!(status >= 400 && status <= 505) && !(closed && out.len == 0))
            fail_msg("%s: %.*s", cases[i].name, (int)out.len, str_c(&out));
    }
    assert_int_equal(seen.begun, 0);
    close_server();
}

/* Bytes that a C string cannot hold. */
static void test_refused_bytes(void **state) {
    (void)state;
    static const char nul_value[] = "GET /fine HTTP/1.1\r\n" H "X: a\0b\r\n\r\n",
                      nul_name[] = "GET /fine HTTP/1.1\r\n" H "X\0Y: a\r\n\r\n",
                      nul_target[] = "GET /fi\0ne HTTP/1.1\r\n" H "\r\n",
                      hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {nul_value, sizeof nul_value - 1}, {nul_name, sizeof nul_name - 1}, {nul_target, sizeof nul_target - 1}};
    CLEANUP_STR struct str out = STR_INIT;
    bool closed;
    open_server((struct http_options){.header_s = 0.3});
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ask_n(cases[i].bytes, cases[i].n, &out, &closed);
        assert_true(status_of(&out) >= 400 || (closed && out.len == 0));
    }
    /* TLS has no line's end: the deadline of the head ends it. */
    const int fd = join();
    say(fd, hello, sizeof hello - 1);
    str_clear(&out);
    assert_true(hear(fd, &out, 2000));
    close(fd);
    assert_int_equal(seen.begun, 0);
    close_server();
}

static void test_large_heads(void **state) {
    (void)state;
    CLEANUP_STR struct str request = STR_INIT, out = STR_INIT;
    bool closed;
    open_server((struct http_options){0});
    str_adds(&request, "GET /fine HTTP/1.1\r\n" H "X: ");
    for (int i = 0; i < 1 << 20; i++) str_addc(&request, 'a');
    str_adds(&request, "\r\n\r\n");
    ask_n(request.p, request.len, &out, &closed);
    assert_true(status_of(&out) == 431 || (closed && out.len == 0));
    str_clear(&request);
    str_adds(&request, "GET /fine HTTP/1.1\r\n" H);
    for (int i = 0; i < 10000; i++) str_addf(&request, "X%d: a\r\n", i);
    str_adds(&request, "\r\n");
    ask_n(request.p, request.len, &out, &closed);
    assert_true(status_of(&out) == 431 || (closed && out.len == 0));
    str_clear(&request);
    str_adds(&request, "GET /");
    for (int i = 0; i < 1 << 18; i++) str_addc(&request, 'a');
    str_adds(&request, " HTTP/1.1\r\n" H "\r\n");
    ask_n(request.p, request.len, &out, &closed);
    assert_true(status_of(&out) == 414 || status_of(&out) == 431 || (closed && out.len == 0));
    assert_int_equal(seen.begun, 0);
    close_server();
}

/* ---- requests that are fine ---------------------------------------------------------------------------------------*/

static void test_replies(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    ask("GET /fine HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    assert_true(has(&out, "\r\n\r\nfine") && has(&out, "x-request-id: req-"));
    ask("GET /fine HTTP/1.1\r\nHost:localhost\r\nX:\r\n\r\n", &out, NULL); /* no blank behind the colon */
    assert_int_equal(status_of(&out), 200);
    ask("HEAD /fine HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 200 && !has(&out, "\r\n\r\nfine"));
    ask("GET /fine HTTP/1.0\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /tail/a%2Fb/c?q=x%20y HTTP/1.1\r\n" H "X-Request-Id: mine-1\r\n\r\n", &out, NULL);
    assert_true(has(&out, "a/b/c|x y|mine-1") && has(&out, "x-request-id: mine-1"));
    ask("GET /tail/x HTTP/1.1\r\n" H "X-Request-Id: a b\r\n\r\n", &out, NULL);
    assert_true(has(&out, "|req-"));
    ask("GET /tail/ HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 404);
    ask("GET /file HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "\r\n\r\n3456"));
    ask("GET /large HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "Content-Length: 1000000") && out.len > 1000000);
    ask("PUT /fine HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", &out, NULL);
    assert_true(status_of(&out) == 405 && has(&out, "allow: GET, HEAD"));
    ask("GET /fine HTTP/1.1\r\n" H "Upgrade: websocket\r\nConnection: upgrade\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    close_server();
}

static void test_errors_have_one_shape(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    ask("GET /nothing HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 404);
    assert_true(has(&out, "{\"error\":{\"message\":\"there is no /nothing here\",\"type\":\"invalid_request_error\","
                          "\"param\":null,\"code\":null}}"));
    assert_true(has(&out, "content-type: application/json"));
    close_server();
}

static void test_bodies(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT, request = STR_INIT;
    open_server((struct http_options){.max_body = 100000});
    ask("POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", &out, NULL);
    assert_true(has(&out, "\r\n\r\nhello"));
    ask("POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nT: x\r\n\r\n",
        &out, NULL);
    assert_true(has(&out, "\r\n\r\nhello"));
    ask("POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi", &out, NULL);
    assert_true(has(&out, "100 Continue") && has(&out, "\r\n\r\nhi"));
    ask("POST /json HTTP/1.1\r\n" H "Content-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}",
        &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("POST /json HTTP/1.1\r\n" H "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", &out, NULL);
    assert_int_equal(status_of(&out), 415);
    ask("POST /json HTTP/1.1\r\n" H "Content-Type: application/jsonx\r\nContent-Length: 2\r\n\r\n{}", &out, NULL);
    assert_int_equal(status_of(&out), 415);
    ask("POST /json HTTP/1.1\r\n" H
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        &out, NULL);
    assert_int_equal(status_of(&out), 415);
    ask("POST /json HTTP/1.1\r\n" H "Content-Type: application/json\r\nContent-Length: 0\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 400);
    ask("POST /maybe HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    str_addf(&request, "POST /echo HTTP/1.1\r\n" H "Content-Length: 100000\r\n\r\n");
    for (int i = 0; i < 10000; i++) str_adds(&request, "0123456789");
    ask_n(request.p, request.len, &out, NULL);
    assert_true(status_of(&out) == 200 && seen.body_bytes == 100000);
    close_server();
}

/* A body over the limit is refused before it is read, and one without a length where the limit is. */
static void test_body_limits(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT, request = STR_INIT;
    bool closed;
    open_server((struct http_options){.max_body = 1000, .max_bodies = 1500});
    ask("POST /echo HTTP/1.1\r\n" H "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n", &out, &closed);
    assert_true(status_of(&out) == 413 && !has(&out, "100 Continue") && closed);
    ask("POST /small HTTP/1.1\r\n" H "Content-Length: 11\r\n\r\n01234567890", &out, &closed);
    assert_true(status_of(&out) == 413 && !closed); /* so small that it is read, and the connection goes on */
    ask("POST /echo HTTP/1.1\r\n" H "Content-Length: 100000\r\n\r\n", &out, &closed);
    assert_true(status_of(&out) == 413 && closed && has(&out, "request_too_large"));
    str_adds(&request, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 11; i++) str_addf(&request, "64\r\n%0100d\r\n", i);
    ask_n(request.p, request.len, &out, &closed);
    assert_true(status_of(&out) == 413 && closed);
    /* Together: what one has announced is not there for another. */
    const int one = join();
    const char *announce = "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\nx";
    say(one, announce, strlen(announce));
    turn(2);
    ask("POST /echo HTTP/1.1\r\n" H "Content-Length: 501\r\nExpect: 100-continue\r\n\r\n", &out, NULL);
    assert_true(status_of(&out) == 503 && has(&out, "retry-after: 1"));
    close(one);
    turn(3);
    ask("POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    assert_int_equal(seen.begun, 1);
    close_server();
}

static void test_pipeline(void **state) {
    (void)state;
    CLEANUP_STR struct str request = STR_INIT, out = STR_INIT;
    open_server((struct http_options){0});
    for (int i = 0; i < 100; i++)
        str_adds(&request, i % 3 == 0   ? "GET /fine HTTP/1.1\r\n" H "\r\n"
                           : i % 3 == 1 ? "POST /echo HTTP/1.1\r\n" H "Content-Length: 4\r\n\r\nfine"
                                        : "POST /json HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nbad");
    const int fd = join();
    say(fd, request.p, request.len);
    assert_false(hear(fd, &out, 20));
    int good = 0, refused = 0;
    for (const char *p = out.p; (p = strstr(p, "HTTP/1.1 ")); p++) {
        good += strncmp(p, "HTTP/1.1 200", 12) == 0;
        refused += strncmp(p, "HTTP/1.1 415", 12) == 0;
    }
    assert_int_equal(good, 67);
    assert_int_equal(refused, 33);
    close(fd);
    close_server();
}

/* Every way to cut a request into two gives one reply. */
static void test_every_split(void **state) {
    (void)state;
    static const char request[] =
        "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nX-A: b\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    for (size_t cut = 1; cut < sizeof request - 1; cut++) {
        const int fd = join();
        say(fd, request, cut);
        turn(1);
        say(fd, request + cut, sizeof request - 1 - cut);
        str_clear(&out);
        hear(fd, &out, 3);
        if (!has(&out, "\r\n\r\nhello")) fail_msg("cut at %zu: %.*s", cut, (int)out.len, str_c(&out));
        close(fd);
        turn(1);
    }
    close_server();
}

/* A client that is reset at any byte of its request leaves nothing behind. */
static void test_every_reset(void **state) {
    (void)state;
    static const char request[] =
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhelloGET /wait HTTP/1.1\r\n" H "\r\n";
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    for (size_t cut = 0; cut < sizeof request; cut++) {
        const int fd = join();
        say(fd, request, cut);
        close(fd);
        turn(2);
    }
    ask("GET /metrics HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(has(&out, "kernelrl_http_connections 1\n") && has(&out, "kernelrl_http_exchanges 1\n") &&
                has(&out, "kernelrl_http_body_bytes 0\n"));
    close_server();
}

/* ---- who may ask --------------------------------------------------------------------------------------------------*/

static void test_access(void **state) {
    (void)state;
    static const char *const keys[] = {"one"}, *const admins[] = {"boss"};
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){.keys = keys, .n_keys = 1, .admin_keys = admins, .n_admin_keys = 1});
    ask("GET /keyed HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 401 && has(&out, "authentication_error") && has(&out, "www-authenticate: Bearer"));
    ask("GET /keyed HTTP/1.1\r\n" H "Authorization: Bearer two\r\n\r\n", &out, NULL);
    assert_true(status_of(&out) == 401 && !has(&out, "two"));
    ask("GET /keyed HTTP/1.1\r\n" H "Authorization: Bearer one\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /keyed HTTP/1.1\r\n" H "X-API-Key: one\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("POST /admin HTTP/1.1\r\n" H "X-API-Key: one\r\nContent-Length: 0\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 403);
    ask("POST /admin HTTP/1.1\r\n" H "X-API-Key: boss\r\nContent-Length: 0\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /fine HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /health HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /metrics HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 401);
    close_server();
}

static void test_pages_of_others(void **state) {
    (void)state;
    static const char *const pages[] = {"https://app.example"};
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){.origins = pages, .n_origins = 1, .admin = true});
    ask("POST /admin HTTP/1.1\r\n" H "Origin: https://evil.example\r\nContent-Length: 0\r\n\r\n", &out, NULL);
    assert_true(status_of(&out) == 403 && !has(&out, "access-control"));
    ask("POST /admin HTTP/1.1\r\n" H "Origin: https://app.example\r\nContent-Length: 0\r\n\r\n", &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "access-control-allow-origin: https://app.example"));
    ask("POST /admin HTTP/1.1\r\n" H "Origin: http://localhost\r\nContent-Length: 0\r\n\r\n", &out, NULL);
    assert_true(status_of(&out) == 200 && !has(&out, "access-control"));
    ask("OPTIONS /json HTTP/1.1\r\n" H "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization\r\n\r\n",
        &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "access-control-allow-headers: authorization"));
    ask("OPTIONS /json HTTP/1.1\r\n" H "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: a\tb\r\n\r\n",
        &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "access-control-allow-headers: authorization, content-type"));
    ask("OPTIONS /json HTTP/1.1\r\n" H "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: \r\n\r\n",
        &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "access-control-allow-headers: authorization, content-type"));
    ask("OPTIONS /json HTTP/1.1\r\n" H "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        &out, NULL);
    assert_true(status_of(&out) == 405 && !has(&out, "access-control"));
    close_server();
}

static void test_names(void **state) {
    (void)state;
    struct http_server *s;
    struct err e = {0};
    const struct http_options o = {.port = 0, .log_fd = -1, .front = &front, .n_fronts = 1};
    const struct http_options anywhere = {.host = "0.0.0.0", .log_fd = -1};
    CLEANUP_STR struct str out = STR_INIT;
    assert_int_equal(http_server_open(&anywhere, &s, &e), ST_CONFIG);
    assert_true(strstr(e.msg, "no API key"));
    assert_int_equal(http_server_open(&o, &server, &e), ST_OK); /* listens on loopback, without a key */
    assert_true(http_port(server) > 0);
    ask("GET /fine HTTP/1.1\r\nHost: evil.example\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 421);
    ask("GET /fine HTTP/1.1\r\nHost: localhost:8000\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    close_server();
}

/* ---- exchanges that wait ------------------------------------------------------------------------------------------*/

static void test_wait(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    const int fd = join();
    say(fd, "GET /wait HTTP/1.1\r\n" H "\r\n", 39);
    turn(3);
    assert_non_null(seen.last);
    assert_false(hear(fd, &out, 3));
    assert_int_equal(out.len, 0);
    http_wake(seen.last);
    hear(fd, &out, 5);
    assert_true(has(&out, "woken") && seen.ended == 1 && seen.events[HTTP_WOKEN] == 1);
    str_clear(&out);
    say(fd, "GET /late HTTP/1.1\r\n" H "\r\n", 39); /* the connection goes on */
    hear(fd, &out, 1000);
    assert_true(has(&out, "time is up") && seen.ended == 2);
    close(fd);
    close_server();
}

/* Clients that leave while their exchange waits or streams: end() follows in the same turn of the loop. */
static void test_leavers(void **state) {
    (void)state;
    static const char *const requests[] = {"GET /wait HTTP/1.1\r\n" H "\r\n", "GET /stream HTTP/1.1\r\n" H "\r\n"};
    open_server((struct http_options){0});
    int ended = 0;
    for (size_t r = 0; r < ARRAY_LEN(requests); r++)
        for (int how = 0; how < 3; how++) {
            const int fd = join();
            say(fd, requests[r], strlen(requests[r]));
            turn(3);
            assert_non_null(seen.last);
            assert_int_equal(seen.ended, ended);
            if (how == 0) close(fd);
            if (how == 1) shutdown(fd, SHUT_WR);
            if (how == 2) shutdown(fd, SHUT_RDWR);
            turn(2);
            assert_int_equal(seen.ended, ++ended);
            assert_null(seen.last);
            if (how > 0) close(fd);
        }
    close_server();
}

/* A process that is being started has the descriptors of this one until it runs its program. So the kernel may know of
 * a connection that has ended here. */
static void test_descriptor_that_lives_on(void **state) {
    (void)state;
    static const char request[] = "GET /fine HTTP/1.1\r\n" H "Connection: close\r\n\r\n";
    CLEANUP_STR struct str out = STR_INIT;
    int fd[2];
    struct err e;
    open_server((struct http_options){0});
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    const int copy = dup(fd[1]);
    assert_int_equal(http_adopt(server, fd[1], &e), ST_OK);
    say(fd[0], request, sizeof request - 1);
    assert_true(hear(fd[0], &out, 8) && has(&out, "fine"));
    turn(2);
    close(fd[0]); /* an event of a connection that nobody has any more */
    turn(2);
    close(copy);
    close_server();
}

/* Who closes his half at once still gets a reply that is there at once. */
static void test_half_close(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    int fd = join();
    say(fd, "GET /fine HTTP/1.1\r\n" H "\r\n", 39);
    shutdown(fd, SHUT_WR);
    assert_true(hear(fd, &out, 5) && has(&out, "fine"));
    close(fd);
    fd = join();
    send(fd, "GET /wait HTTP/1.1\r\n" H "\r\n", 39, 0);
    shutdown(fd, SHUT_WR);
    str_clear(&out);
    assert_true(hear(fd, &out, 20));
    assert_true(out.len == 0 && seen.ended == 1);
    close(fd);
    close_server();
}

static void test_stream(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    const int fd = join();
    seen.to_send = 5;
    say(fd, "GET /stream HTTP/1.1\r\n" H "\r\n", 41);
    hear(fd, &out, 10);
    assert_true(status_of(&out) == 200 && has(&out, "Transfer-Encoding: chunked"));
    assert_true(has(&out, "content-type: text/event-stream") && has(&out, "x-accel-buffering: no"));
    assert_true(out.len > 50000 && out.len < 51500);
    str_clear(&out);
    seen.to_send = 1;
    http_wake(seen.last);
    hear(fd, &out, 10);
    assert_true(out.len > 10000 && !has(&out, "\r\n0\r\n\r\n"));
    seen.end_stream = true;
    http_wake(seen.last);
    hear(fd, &out, 10);
    assert_true(has(&out, "\r\n0\r\n\r\n") && seen.ended == 1);
    close(fd);
    close_server();
}

/* A client that reads nothing is cut off, and holds nobody up. */
static void test_stalled_reader(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){.write_s = 0.3});
    const int fd = join(), live = join();
    seen.to_send = 1000000;
    say(fd, "GET /stream HTTP/1.1\r\n" H "\r\n", 41);
    const double from = clock_now_s();
    while (seen.ended == 0 && clock_now_s() - from < 20) {
        str_clear(&out);
        say(live, "GET /fine HTTP/1.1\r\n" H "\r\n", 39);
        while (!has(&out, "fine")) hear(live, &out, 1);
    }
    assert_int_equal(seen.ended, 1);
    assert_true(seen.to_send > 900000); /* made as it was sent, not ahead */
    close(fd);
    close(live);
    close_server();
}

/* Many that read nothing are all cut off, each by its own deadline, while one that reads slowly is not. What the kernel
 * holds for each of them is bounded: some megabytes would hide for minutes that nobody reads. */
static void test_stalled_readers(void **state) {
    (void)state;
    enum { STALLED = 30 };
    char some[4096];
    int fd[STALLED];
    open_server((struct http_options){.write_s = 1});
    const int slow = join();
    seen.to_send = 1000000;
    for (int i = 0; i < STALLED; i++) say(fd[i] = join(), "GET /stream HTTP/1.1\r\n" H "\r\n", 41);
    say(slow, "GET /stream HTTP/1.1\r\n" H "\r\n", 41);
    const double from = clock_now_s();
    int read = 0;
    while (seen.ended < STALLED && clock_now_s() - from < 60) {
        read += recv(slow, some, sizeof some, 0) > 0;
        turn(1);
    }
    assert_int_equal(seen.ended, STALLED);
    while (recv(slow, some, sizeof some, 0) > 0) {} /* it is still served */
    for (int i = 0; i < 50; i++) turn(1);
    assert_true(read > 2 && recv(slow, some, sizeof some, 0) > 0);
    print_message("%.2f MB taken for each\n", (1000000 - seen.to_send) * 0.01 / (STALLED + 1));
    close(slow);
    for (int i = 0; i < STALLED; i++) close(fd[i]);
    close_server();
}

/* The kernel gives up a client that reads nothing later than the server, which counts it. */
static void test_kernel_is_patient(void **state) {
    (void)state;
    static const double write_s[] = {0, 5}, least[] = {60, 5};
    for (size_t i = 0; i < ARRAY_LEN(write_s); i++) {
        struct err e;
        struct http_options o = {.front = &front, .n_fronts = 1, .log_fd = -1, .write_s = write_s[i]};
        assert_int_equal(http_server_open(&o, &server, &e), ST_OK);
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)http_port(server)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(client, (struct sockaddr *)&to, sizeof to), 0);
        int patience = 0;
        for (int k = 0; k < 200 && patience == 0; k++) {
            turn(1);
            for (int fd = 3; fd < 1000 && patience == 0; fd++) { /* the server's end is one of this process's own */
                socklen_t n = sizeof patience;
                if (fd == client || getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, &n) != 0) patience = 0;
            }
        }
        assert_true(patience > (int)(1000 * least[i]));
        close(client);
        close_server();
    }
}

/* ---- deadlines ----------------------------------------------------------------------------------------------------*/

/* Sends a byte now and then until the server closes, or so many seconds have passed. */
static bool is_cut_while_dripping(int fd, const char *bytes, double seconds) {
    const double from = clock_now_s();
    struct err e;
    for (size_t at = 0; clock_now_s() - from < seconds;) {
        char c;
        if (bytes[at] && send(fd, bytes + at, 1, MSG_NOSIGNAL) == 1) at++;
        const double until = clock_now_s() + 0.02;
        while (clock_now_s() < until) assert_int_equal(http_step(server, 5, &e), ST_OK);
        const ssize_t n = recv(fd, &c, 1, MSG_PEEK);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
        if (n > 0) {
            char buf[2048];
            while (recv(fd, buf, sizeof buf, 0) > 0) {}
        }
    }
    return false;
}

static void test_deadlines(void **state) {
    (void)state;
    char slow_head[4000];
    memset(slow_head, 'a', sizeof slow_head);
    memcpy(slow_head, "GET /", 5);
    slow_head[sizeof slow_head - 1] = 0;
    open_server((struct http_options){.header_s = 0.4, .body_s = 0.8, .idle_s = 0.4});
    int fd = join();
    assert_true(is_cut_while_dripping(fd, slow_head, 10)); /* a head that never ends */
    close(fd);
    fd = join();
    assert_true(is_cut_while_dripping(fd, "", 10)); /* a connection that says nothing */
    close(fd);
    fd = join();
    const char *body = "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n";
    say(fd, body, strlen(body));
    assert_true(is_cut_while_dripping(fd, slow_head, 10));
    close(fd);
    fd = join();
    say(fd, "GET /fine HTTP/1.1\r\n" H "\r\n", 39);
    assert_true(is_cut_while_dripping(fd, slow_head, 10)); /* a second head that never ends */
    close(fd);
    assert_int_equal(seen.begun, 1);
    close_server();
}

static void test_connection_limit(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){.max_connections = 2});
    const int one = join(), two = join();
    turn(2);
    ask("GET /fine HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 503 && has(&out, "retry-after"));
    close(one);
    turn(3);
    ask("GET /fine HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    close(two);
    close_server();
}

/* ---- health, metrics, log, drain ----------------------------------------------------------------------------------*/

static void test_health(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){0});
    ask("GET /health HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 200 && has(&out, "{\"status\":\"ok\"}"));
    seen.well = false;
    ask("GET /health HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(status_of(&out) == 503 && has(&out, "\"message\":\"not well\"") && has(&out, "\"code\":\"loading\""));
    ask("GET /liveness HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /metrics HTTP/1.1\r\n" H "\r\n", &out, NULL);
    assert_true(has(&out, "kernelrl_http_requests_total{method=\"GET\",route=\"/health\",status=\"5xx\"} 1\n"));
    assert_true(has(&out, "own 1\n") && has(&out, "text/plain; version=0.0.4"));
    close_server();
}

static void test_log_has_no_key(void **state) {
    (void)state;
    int fd[2];
    char buf[8192];
    static const char *const keys[] = {"sesame", "ann open"};
    CLEANUP_STR struct str out = STR_INIT;
    assert_int_equal(pipe(fd), 0);
    open_server((struct http_options){.keys = keys, .n_keys = 2, .log_fd = fd[1]});
    ask("GET /keyed HTTP/1.1\r\n" H "X-API-Key: open\r\n\r\n", &out, NULL);
    assert_int_equal(status_of(&out), 200);
    ask("GET /keyed?key=sesame HTTP/1.1\r\n" H "Authorization: Bearer sesame\r\nX-Request-Id: r1\r\n\r\n", &out, NULL);
    ask("GET /keyed HTTP/1.1\r\n" H "Authorization: Bearer guess\r\n\r\n", &out, NULL);
    ask("GET /health HTTP/1.1\r\n" H "\r\n", &out, NULL);
    close_server();
    const ssize_t n = read(fd[0], buf, sizeof buf - 1);
    assert_true(n > 0);
    buf[n] = 0;
    assert_non_null(strstr(buf, "\"id\":\"r1\",\"method\":\"GET\",\"path\":\"/keyed\",\"status\":200"));
    assert_non_null(strstr(buf, "\"status\":401"));
    assert_non_null(strstr(buf, ",\"key\":\"ann\"}\n"));
    assert_null(strstr(buf, "open"));
    assert_null(strstr(buf, "sesame"));
    assert_null(strstr(buf, "guess"));
    assert_null(strstr(buf, "/health"));
    close(fd[0]);
    close(fd[1]);
}

static void test_drain(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){.drain_s = 100});
    const int waits = join(), streams = join(), idle = join(), next = join();
    say(waits, "GET /wait HTTP/1.1\r\n" H "\r\n", 39);
    turn(3);
    struct http_exchange *w = seen.last;
    say(streams, "GET /stream HTTP/1.1\r\n" H "\r\n", 41);
    say(idle, "GET /fine HTTP/1.1\r\n" H "\r\n", 39);
    hear(idle, &out, 3);
    http_drain(server);
    assert_true(seen.drained && http_draining(server) && !http_drained(server));
    assert_true(hear(idle, &out, 1000)); /* idle connections are closed */
    str_clear(&out);
    say(next, "GET /fine HTTP/1.1\r\n" H "\r\n", 39);
    hear(next, &out, 5);
    assert_true(status_of(&out) == 503 && has(&out, "draining") && has(&out, "onnection: close"));
    http_wake(w);
    str_clear(&out);
    assert_true(hear(waits, &out, 1000) && has(&out, "woken"));
    assert_false(http_drained(server));
    http_drain(server); /* once more: what is left is cut */
    str_clear(&out);
    hear(streams, &out, 1000);
    assert_true(seen.events[HTTP_CUT] == 1 && has(&out, "\r\n0\r\n\r\n"));
    assert_true(http_drained(server));
    close(waits);
    close(streams);
    close(idle);
    close(next);
    close_server();
}

/* A client reads a long reply slowly. The time for which its request may wait, and the end of the server, have no say
 * in the reply any more. */
static void test_no_event_behind_the_reply(void **state) {
    (void)state;
    CLEANUP_STR struct str out = STR_INIT;
    open_server((struct http_options){.drain_s = 100});
    const int fd = join();
    say(fd, "GET /long HTTP/1.1\r\n" H "\r\n", 39);
    turn(3);
    http_wake(seen.last);
    for (const double until = clock_now_s() + 0.1; clock_now_s() < until;) turn(1);
    http_drain(server);
    http_drain(server);
    turn(3);
    assert_true(seen.events[HTTP_WOKEN] == 1 && seen.events[HTTP_TIME_UP] == 0 && seen.events[HTTP_CUT] == 0);
    assert_true(hear(fd, &out, 1000));
    const char *body = mem_find(out.p, out.len, "\r\n\r\n", 4);
    assert_non_null(body);
    assert_int_equal(out.p + out.len - (body + 4), 1000000);
    assert_int_equal(seen.ended, 1);
    close(fd);
    close_server();
}

/* A server that ends with everything in flight frees everything. */
static void test_close_in_the_middle(void **state) {
    (void)state;
    open_server((struct http_options){0});
    const int waits = join(), streams = join(), half = join(), body = join();
    say(waits, "GET /wait HTTP/1.1\r\n" H "\r\n", 39);
    say(streams, "GET /stream HTTP/1.1\r\n" H "\r\n", 41);
    say(half, "GET /fine HTT", 13);
    const char *part = "POST /echo HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\nx";
    say(body, part, strlen(part));
    turn(3);
    close_server();
    assert_int_equal(seen.ended, 2);
    close(waits);
    close(streams);
    close(half);
    close(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_heads),
        cmocka_unit_test(test_refused_bytes),
        cmocka_unit_test(test_large_heads),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_errors_have_one_shape),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_body_limits),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_every_reset),
        cmocka_unit_test(test_access),
        cmocka_unit_test(test_pages_of_others),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_leavers),
        cmocka_unit_test(test_descriptor_that_lives_on),
        cmocka_unit_test(test_half_close),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stalled_reader),
        cmocka_unit_test(test_stalled_readers),
        cmocka_unit_test(test_kernel_is_patient),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_log_has_no_key),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_no_event_behind_the_reply),
        cmocka_unit_test(test_close_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
