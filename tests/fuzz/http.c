/* Fuzz target: what a client writes on a connection, of any bytes, in pieces of any size, to a server with a front end
 * of each kind of route. The first byte says how it is cut. A piece may end the connection, or only its half. Nothing
 * may crash, leak or hang; whatever is answered begins as HTTP; every exchange that began ends. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int begun, ended;
static struct http_exchange *waits;

static void reply(struct http_exchange *x) {
    struct str s = STR_INIT;
    size_t n;
    const char *body = http_body(x, &n);
    str_add(&s, body, n);
    http_reply(x, 200, "application/octet-stream", &s);
}
static void now(void *ctx, struct http_exchange *x) {
    (void)ctx;
    begun++;
    reply(x);
}
static void later(void *ctx, struct http_exchange *x) {
    (void)ctx;
    begun++;
    waits = x;
}
static void event(void *ctx, struct http_exchange *x, enum http_event e) {
    (void)ctx, (void)e;
    reply(x);
}
static enum http_more more(struct http_exchange *x, struct str *out) {
    (void)x;
    str_adds(out, "data: x\n\n");
    return (out->len + (size_t)begun) % 3 ? HTTP_END : HTTP_MORE;
}
static void stream(void *ctx, struct http_exchange *x) {
    (void)ctx;
    begun++;
    http_stream(x, 200, "text/event-stream", NULL, more);
}
static void end(void *ctx, struct http_exchange *x) {
    (void)ctx;
    ended++;
    if (waits == x) waits = NULL;
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/n", .access = HTTP_OPEN, .begin = now, .end = end},
    {.method = "POST", .path = "/n", .access = HTTP_OPEN, .body = HTTP_ANY_BODY, .begin = now, .end = end},
    {.method = "POST", .path = "/j", .access = HTTP_OPEN, .body = HTTP_JSON_BODY, .begin = now, .end = end},
    {.method = "POST", .path = "/k", .access = HTTP_KEY, .body = HTTP_NO_BODY, .begin = now, .end = end},
    {.method = "GET", .path = "/w", .access = HTTP_OPEN, .begin = later, .event = event, .end = end},
    {.method = "GET", .path = "/s", .access = HTTP_OPEN, .begin = stream, .end = end},
    {.method = "GET", .path = "/t/*", .access = HTTP_OPEN, .begin = now, .end = end},
};

static struct http_server *open_server(void) {
    static const char *const keys[] = {"k"}, *const pages[] = {"http://a"};
    const struct http_front front = {.name = "fuzz", .route = routes, .n_routes = ARRAY_LEN(routes)};
    static struct http_front kept;
    kept = front;
    struct http_server *s;
    struct err e;
    const struct http_options o = {.port = -1,
                                   .keys = keys,
                                   .n_keys = 1,
                                   .origins = pages,
                                   .n_origins = 1,
                                   .max_body = 1000,
                                   .max_bodies = 2000,
                                   .log_fd = -1,
                                   .front = &kept,
                                   .n_fronts = 1};
    if (http_server_open(&o, &s, &e) != ST_OK) assert_failed(e.msg, __FILE__, __LINE__, __func__);
    return s;
}

static void turn(struct http_server *s, int n) {
    struct err e;
    for (int i = 0; i < n; i++)
        if (http_step(s, 0, &e) != ST_OK) assert_failed(e.msg, __FILE__, __LINE__, __func__);
    if (waits && begun % 2) http_wake(waits);
}

/* Takes what is there; the first bytes of all must be those of HTTP. */
static void hear(int fd, char first[8], size_t *n_first) {
    char buf[4096];
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
        for (ssize_t i = 0; i < n && *n_first < 8; i++) first[(*n_first)++] = buf[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct http_server *s;
    int fd[2];
    struct err e;
    char first[8];
    size_t n_first = 0;
    if (size < 1) return 0;
    if (!s) s = open_server();
    begun = ended = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) != 0) return 0;
    if (http_adopt(s, fd[1], &e) != ST_OK) assert_failed(e.msg, __FILE__, __LINE__, __func__);
    const size_t piece = (size_t)(data[0] & 63) + 1;
    for (size_t at = 1; at < size; at += piece) {
        const size_t n = size - at < piece ? size - at : piece;
        if (send(fd[0], data + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) break;
        turn(s, 1);
        hear(fd[0], first, &n_first);
    }
    turn(s, 3);
    hear(fd[0], first, &n_first);
    if (data[0] & 64) shutdown(fd[0], SHUT_WR);
    turn(s, 2);
    hear(fd[0], first, &n_first);
    close(fd[0]);
    turn(s, 4);
    ASSERT(begun == ended);
    ASSERT(memcmp(first, "HTTP/1.", n_first < 7 ? n_first : 7) == 0);
    return 0;
}
