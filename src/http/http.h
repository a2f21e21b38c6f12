/* http: an HTTP/1.1 server that other rooms put their routes into. Owns connections, the check of requests, keys,
 * limits, deadlines, replies, streams, the access log and the drain at the end. Knows nothing of models. May include
 * io.
 *
 * One thread does all of it: http_run() calls libmicrohttpd, the front ends and nothing that blocks. A front end is a
 * table of routes. Whoever works in other threads gives the server a file descriptor (http_watch_fd) and wakes its
 * exchanges from there. An exchange is one request and its reply; this is its life:
 *
 *     begin(x)      the body is in. The route replies (http_reply, http_stream, http_reply_file), or leaves x waiting
 *     event(x, e)   while x waits: somebody called http_wake(x), its time is up, or the server ends
 *     more(x, out)  of a stream: the client can take more
 *     end(x)        once, whatever came of it: all was sent, or the client has left. It gives up the route's state
 *
 * A client that leaves while its exchange waits or streams is noticed at once, and end() follows. A half-closed
 * connection counts as one whose client has left, unless its reply is there already. */
#ifndef KERNELRL_HTTP_HTTP_H
#define KERNELRL_HTTP_HTTP_H

#include "base/err.h"
#include "base/hash.h"
#include "base/str.h"

struct http_server;
struct http_exchange;

enum http_access {
    HTTP_OPEN,  /* anybody */
    HTTP_KEY,   /* who has a key, where there are keys */
    HTTP_ADMIN, /* who may change what the server does */
};
enum http_body {
    HTTP_NO_BODY,       /* a body is read and forgotten */
    HTTP_JSON_BODY,     /* of content type application/json, without an encoding; else 415 */
    HTTP_OPTIONAL_JSON, /* that, or no body */
    HTTP_ANY_BODY,      /* the route looks at content type and encoding itself */
};
/* None comes behind a whole reply, however long it takes to send. */
enum http_event {
    HTTP_WOKEN,   /* http_wake() */
    HTTP_TIME_UP, /* the time of http_wake_after() */
    HTTP_CUT,     /* the server ends: the exchange must end now. A stream writes its last bytes */
};
enum http_more {
    HTTP_WAIT, /* out has nothing; http_wake() asks again */
    HTTP_MORE, /* out has bytes, and there may be more at once */
    HTTP_END,  /* out has the last bytes, or none */
};
typedef enum http_more http_more_fn(struct http_exchange *x, struct str *out);

struct http_route {
    const char *method; /* "GET" has HEAD with it */
    const char *path;   /* all of it, or with a final "*" what it begins with: see http_tail */
    enum http_access access;
    enum http_body body;
    void (*begin)(void *ctx, struct http_exchange *x);
    void (*event)(void *ctx, struct http_exchange *x, enum http_event e); /* NULL: the route never waits */
    void (*end)(void *ctx, struct http_exchange *x);                      /* NULL: the route has no state */
    int64_t max_body;                                                     /* bytes; 0: the server's limit */
};
/* What a front end's health is: its own words, and the type and code of an error. */
struct http_health {
    bool ok;
    const char *message, *code;
};
struct http_front {
    const char *name;
    const struct http_route *route;
    size_t n_routes;
    void *ctx;
    struct http_health (*health)(void *ctx);     /* NULL: always well */
    void (*metrics)(void *ctx, struct str *out); /* NULL: none */
    void (*draining)(void *ctx);                 /* NULL: nothing. The server admits no more from here on */
};

struct http_options {
    const char *host;                            /* an address or a name; NULL: 127.0.0.1 */
    int port;                                    /* 0: one that is free */
    const char *const *keys, *const *admin_keys; /* each a key, or a name, a blank and a key */
    size_t n_keys, n_admin_keys;
    bool admin;        /* true: every caller may use routes of HTTP_ADMIN, too */
    bool no_key;       /* true: without keys, too, it may listen on addresses other than loopback */
    bool metrics_open; /* true: /metrics asks for no key */
    const char *const *origins, *const *hosts; /* of pages that may call; names that the server goes by */
    size_t n_origins, n_hosts;
    int max_connections;          /* 0: 10,000, or what the system allows */
    int64_t max_body, max_bodies; /* bytes, of one body and of all that are being read; 0: 16 MiB, 256 MiB */
    double header_s, body_s, idle_s, write_s, drain_s; /* deadlines; 0: 10, 60, 75, 60, 30 seconds */
    int log_fd;                                        /* of the access log; -1: none */
    bool log_all; /* true: requests of /health and /metrics that went well are logged, too */
    const struct http_front *front;
    size_t n_fronts;
};

/* Listens. ST_CONFIG: keys, addresses or origins that make no sense; ST_IO: the port is taken, or the like. The fronts
 * and their routes are borrowed, the rest is copied. */
enum status http_server_open(const struct http_options *o, struct http_server **out, struct err *e) MUST_USE;
int http_port(const struct http_server *s);
/* Calls fn when fd can be read, from the server's thread. The descriptor is borrowed and taken out at the end. */
typedef void http_fd_fn(void *ctx);
enum status http_watch_fd(struct http_server *s, int fd, http_fd_fn *fn, void *ctx, struct err *e) MUST_USE;
/* Serves until a drain has ended. */
enum status http_run(struct http_server *s, struct err *e) MUST_USE;
/* One turn of http_run: waits up to so many milliseconds. */
enum status http_step(struct http_server *s, int timeout_ms, struct err *e) MUST_USE;
/* From here on health is bad, nobody connects and new requests get 503. What is admitted goes on, for drain_s seconds;
 * a second call cuts it. */
void http_drain(struct http_server *s);
bool http_draining(const struct http_server *s);
bool http_drained(const struct http_server *s); /* true: nothing is left to do */
/* Takes on a connection that somebody else accepted; the descriptor becomes the server's. For tests. */
enum status http_adopt(struct http_server *s, int fd, struct err *e) MUST_USE;
/* Ends all exchanges and connections. NULL is fine. */
void http_server_close(struct http_server *s);

/* ---- the request --------------------------------------------------------------------------------------------------*/

const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);                     /* decoded */
const char *http_tail(const struct http_exchange *x);                     /* what stood for the "*" of the route */
const char *http_query(const struct http_exchange *x, const char *name);  /* decoded, or NULL */
const char *http_header(const struct http_exchange *x, const char *name); /* or NULL */
/* The key that the client has shown; false: it has shown none that the server knows. */
bool http_key(const struct http_exchange *x, struct digest *out);
const char *http_key_name(const struct http_exchange *x); /* its name; NULL: it has none */
const char *http_body(const struct http_exchange *x, size_t *bytes);
void http_take_body(struct http_exchange *x, struct str *out); /* the caller's from now on */
const char *http_request_id(const struct http_exchange *x);
struct http_server *http_server_of(const struct http_exchange *x);
void *http_state(const struct http_exchange *x);
void http_set_state(struct http_exchange *x, void *state);

/* ---- the reply ----------------------------------------------------------------------------------------------------*/

/* A header of the reply that follows. */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
/* Takes the bytes of body. */
void http_reply(struct http_exchange *x, int status, const char *content_type, struct str *body);
void http_reply_json(struct http_exchange *x, int status, struct str *body);
/* n bytes of a file from offset on; the descriptor becomes the server's. */
void http_reply_file(struct http_exchange *x, int fd, int64_t offset, int64_t n, const char *content_type);
/* The reply of an error: {"error": {message, type, param, code}}. param and code may be NULL. The type is that of the
 * status: invalid_request_error, authentication_error, ... */
void http_reply_error(struct http_exchange *x, int status, const char *code, const char *param, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
/* Appends what a client may read of a message: "[path]" stands where it names a place in the server's file system, and
 * what is behind an unquoted path up to ": ", "; " or ", " goes with it. The log has the whole message then. Paths that
 * do not begin at the root are left. */
void http_tell_without_paths(struct str *out, const char *message);
/* The reply of an error whose message says what failed on the server, without paths. */
void http_reply_failure(struct http_exchange *x, int status, const char *code, const char *param, const struct err *e);
/* The object {"error": ...} alone. */
void http_error_json(struct str *out, int status, const char *code, const char *param, const char *message);
/* A reply whose bytes more() makes. ping: what is sent after 15 s of silence; NULL: nothing. */
void http_stream(struct http_exchange *x, int status, const char *content_type, const char *ping, http_more_fn *more);
/* True: the exchange has its reply, or a stream that has begun. */
bool http_replied(const struct http_exchange *x);
/* While x waits: calls event(x, HTTP_WOKEN), or of a stream more(). */
void http_wake(struct http_exchange *x);
/* Calls event(x, HTTP_TIME_UP) in so many seconds, once; also of a stream. */
void http_wake_after(struct http_exchange *x, double seconds);
/* Adds a member to the exchange's line in the access log: `,"name":value`, as JSON. */
void http_log_number(struct http_exchange *x, const char *name, int64_t value);
void http_log_text(struct http_exchange *x, const char *name, const char *value);

#endif
