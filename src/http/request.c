/* What happens to a request before its route's begin() is called: its head is checked, its route is found, and its body
 * is read. The library is libmicrohttpd, which calls the functions at the end of this file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "http/internal.h"

/* ---- the head as it came ------------------------------------------------------------------------------------------*/

/* What a head says about where the body ends, and how long the head is as the library understood it. */
struct request_head {
    int content_lengths, encodings, hosts;
    bool chunked;
    int n;        /* headers */
    size_t bytes; /* of the names, the values, their colons and line ends */
    const char *content_length;
};

static enum MHD_Result look(void *head, enum MHD_ValueKind kind, const char *name, size_t name_bytes, const char *value,
                            size_t value_bytes) {
    struct request_head *h = head;
    (void)kind;
    h->n++;
    h->bytes += name_bytes + value_bytes + 3;
    if (strcasecmp(name, "Content-Length") == 0) {
        h->content_lengths++;
        h->content_length = value;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->encodings++;
        h->chunked = value && strcasecmp(value, "chunked") == 0;
    } else if (strcasecmp(name, "Host") == 0) {
        h->hosts++;
    }
    return MHD_YES;
}

/* True: the head had only lines of the form "Name: value" or "Name:value", each ended by CR LF.
 * The library also takes bare line feeds, folded lines and NUL bytes in values, and does not tell. But it says how many
 * bytes the head had. Lines of the right form have the bytes of `least`, and at most one blank each. Where the head had
 * fewer bytes, it had bare line feeds; where it had more, the library has cut or joined a value, or a client has padded
 * one, which no honest client does. */
static bool has_counted_bytes(const struct http_exchange *x, const struct request_head *h, const char *version) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const size_t least = strlen(x->method) + strlen(x->target) + strlen(version) + 4 + h->bytes + 2;
    return info && info->header_size >= least && info->header_size <= least + (size_t)h->n;
}

/* Reads from the head how many bytes the body has, into x->announced, which stays -1 for a chunked body. Returns what
 * is wrong with the head; NULL: nothing is. */
static const char *read_head(struct http_exchange *x, const char *version) {
    struct request_head h = {0};
    MHD_get_connection_values_n(x->c->mhd, MHD_HEADER_KIND, look, &h);
    if (!has_counted_bytes(x, &h, version))
        return "the head of the request is malformed: every line ends with CR LF, and none is folded or padded";
    if (h.hosts > 1) return "more than one Host header";
    if (h.content_lengths > 1) return "more than one Content-Length header";
    if (h.encodings > 0 && h.content_lengths > 0) return "both Content-Length and Transfer-Encoding";
    if (h.encodings > 1 || (h.encodings == 1 && !h.chunked)) return "Transfer-Encoding: expected chunked, once";
    if (h.content_length) x->announced = strtoll(h.content_length, NULL, 10);
    if (h.encodings == 0 && !h.content_length) x->announced = 0;
    return NULL;
}

/* ---- refusals -----------------------------------------------------------------------------------------------------*/

/* Gives the library x->response to send. */
static enum MHD_Result send_reply(struct http_exchange *x) {
    const enum MHD_Result sent = MHD_queue_response(x->c->mhd, (unsigned)x->status, x->response);
    x->phase = PHASE_REPLY;
    x->given = clock_now_ns();
    return sent;
}

/* Sends x->response, which refuses the request. close false: a small body is read and dropped first, so that the
 * connection can serve another request. A body that is large or of unknown length is not read, nor one that the client
 * sends only when asked (Expect). */
static enum MHD_Result refuse(struct http_exchange *x, bool close) {
    const char *expect = http_header(x, "Expect");
    const bool small = x->announced >= 0 && x->announced <= HTTP_DISCARD_BYTES;
    x->phase = PHASE_DISCARD;
    x->body_began = clock_now_ns();
    if (!close && x->announced == 0) return MHD_YES; /* the library's next call sends it (go_on) */
    if (!close && small && !expect) return MHD_YES;
    x->c->linger = x->announced != 0;
    return send_reply(x);
}

/* Returns from the caller with a reply that refuses the request. */
#define REFUSE(x, close, ...)             \
    do {                                  \
        http_reply_error(x, __VA_ARGS__); \
        return refuse(x, close);          \
    } while (0)

static void add_close(struct http_exchange *x) { http_add_header(x, "connection", "close"); }

/* ---- routes -------------------------------------------------------------------------------------------------------*/

/* A path that ends in * takes all paths that begin like it and go on; *tail is then what stands in the place of *. */
static bool fits_path(const struct http_route *r, const char *path, const char **tail) {
    const size_t n = strlen(r->path);
    *tail = NULL;
    if (n == 0 || r->path[n - 1] != '*') return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n - 1) != 0 || !path[n - 1]) return false;
    *tail = path + n - 1;
    return true;
}

static bool fits_method(const struct http_route *r, const char *method) {
    return strcmp(r->method, method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

/* Finds the route, x->route; NULL: there is none. allow gets the methods of all routes of this path. */
static void find_route(struct http_exchange *x, struct str *allow) {
    for (int f = 0; f < x->s->n_fronts; f++)
        for (size_t i = 0; i < x->s->front[f]->n_routes; i++) {
            const struct http_route *r = &x->s->front[f]->route[i];
            const char *tail;
            if (!fits_path(r, x->path, &tail)) continue;
            str_addf(allow, "%s%s", allow->len ? ", " : "", strcmp(r->method, "GET") == 0 ? "GET, HEAD" : r->method);
            if (x->route || !fits_method(r, x->method)) continue;
            x->front = f;
            x->route = r;
            x->tail = tail;
        }
}

/* ---- the check of a head ------------------------------------------------------------------------------------------*/

/* True: a browser asks, by OPTIONS, whether a page of a listed origin may call this server (CORS). */
static bool is_preflight(const struct http_exchange *x) {
    return strcmp(x->method, "OPTIONS") == 0 && guard_origin_listed(&x->s->guard, http_header(x, "Origin")) &&
           http_header(x, "Access-Control-Request-Method");
}

/* The status is 200, as with other servers: some clients take no other. */
static enum MHD_Result answer_preflight(struct http_exchange *x) {
    struct str none = STR_INIT;
    const char *headers = http_header(x, "Access-Control-Request-Headers");
    http_add_header(x, "access-control-allow-methods", "GET, POST, DELETE");
    http_add_header(x, "access-control-allow-headers",
                    headers && guard_header_names(headers) ? headers : "authorization, content-type");
    http_add_header(x, "access-control-max-age", "600");
    http_reply(x, 200, NULL, &none);
    return refuse(x, false);
}

/* Checks the key and the origin. *refused true: the request has been refused. */
static enum MHD_Result check_access(struct http_exchange *x, bool *refused) {
    *refused = true;
    const enum http_access wants = x->route->access;
    const bool metrics = x->s->o.metrics_open && strcmp(x->route->path, "/metrics") == 0;
    const enum guard_answer a = wants == HTTP_OPEN || metrics
                                    ? GUARD_YES
                                    : guard_key(&x->s->guard, http_header(x, "Authorization"),
                                                http_header(x, "X-Api-Key"), wants == HTTP_ADMIN);
    if (a == GUARD_NO_KEY || a == GUARD_WRONG_KEY) {
        http_add_header(x, "www-authenticate", "Bearer");
        REFUSE(x, false, 401, "invalid_api_key", NULL,
               a == GUARD_NO_KEY ? "no API key: give one as \"Authorization: Bearer KEY\" or \"X-API-Key: KEY\""
                                 : "the API key is wrong");
    }
    if (a == GUARD_NOT_ADMIN)
        REFUSE(x, false, 403, NULL, NULL,
               "%s changes what the server does: it needs the server's --admin, or a key of --admin-key", x->path);
    if (strcmp(x->method, "GET") != 0 && strcmp(x->method, "HEAD") != 0 &&
        !guard_origin(&x->s->guard, http_header(x, "Origin"), http_header(x, "Host")))
        REFUSE(x, false, 403, NULL, NULL, "pages of %.200s may not call this server: see --cors-origin",
               http_header(x, "Origin"));
    const char *name = http_key_name(x);
    if (name) http_log_text(x, "key", name);
    *refused = false;
    return MHD_YES;
}

static bool is_json(const char *type) {
    static const char json[] = "application/json";
    if (!type || strncasecmp(type, json, sizeof json - 1) != 0) return false;
    const char *rest = type + sizeof json - 1;
    return *rest == 0 || *rest == ';' || *rest == ' ';
}

static enum MHD_Result check_body(struct http_exchange *x) {
    const struct http_route *r = x->route;
    const int64_t most = r->max_body > 0 ? r->max_body : x->s->o.max_body;
    const char *encoding = http_header(x, "Content-Encoding");
    const bool json = r->body == HTTP_JSON_BODY || (r->body == HTTP_OPTIONAL_JSON && x->announced != 0);
    if (json && !is_json(http_header(x, "Content-Type")))
        REFUSE(x, false, 415, NULL, NULL, "content-type: expected application/json");
    if (r->body != HTTP_ANY_BODY && encoding && strcasecmp(encoding, "identity") != 0)
        REFUSE(x, false, 415, NULL, NULL, "content-encoding: expected none, got %.100s", encoding);
    if (x->announced > most)
        REFUSE(x, false, 413, "request_too_large", NULL, "the body has %lld bytes, the limit is %lld",
               (long long)x->announced, (long long)most);
    if (x->announced > 0 && x->s->bodies + x->announced > x->s->o.max_bodies) {
        x->s->counts.refused_bodies++;
        http_add_header(x, "retry-after", "1");
        REFUSE(x, false, 503, "busy", NULL, "the bodies that are being read have their limit of %lld bytes",
               (long long)x->s->o.max_bodies);
    }
    if (x->announced > 0) { /* all of it counts from now on; memory is taken only as its bytes come in */
        x->body_bytes = x->announced;
        x->s->bodies += x->body_bytes;
    }
    x->phase = PHASE_BODY;
    x->body_began = clock_now_ns();
    return MHD_YES;
}

/* True: the route is one of the server's own, such as /health, which answer even while the server drains. */
static bool is_always_answered(const struct http_exchange *x) { return x->front == 0; }

static enum MHD_Result check_route(struct http_exchange *x) {
    CLEANUP_STR struct str allow = STR_INIT;
    bool refused;
    if (!guard_host(&x->s->guard, http_header(x, "Host")))
        REFUSE(x, false, 421, NULL, NULL, "Host: this server is localhost, 127.0.0.1 or [::1] (see --allowed-host)");
    if (is_preflight(x)) return answer_preflight(x);
    find_route(x, &allow);
    if (!x->route && allow.len > 0) {
        http_add_header(x, "allow", allow.p);
        REFUSE(x, false, 405, NULL, NULL, "%s %.200s: expected %s", x->method, x->path, allow.p);
    }
    if (x->s->drain_since != 0 && !(x->route && is_always_answered(x))) {
        http_add_header(x, "retry-after", "5");
        REFUSE(x, false, 503, "draining", NULL, "the server is ending");
    }
    if (!x->route) REFUSE(x, false, 404, NULL, NULL, "there is no %.200s here", x->path);
    const enum MHD_Result done = check_access(x, &refused);
    return refused ? done : check_body(x);
}

static enum MHD_Result check_head(struct http_exchange *x, const char *method, const char *version) {
    const char *id;
    snprintf(x->method, sizeof x->method, "%s", method);
    x->s->n_exchanges++;
    x->counted = true;
    const char *wrong = read_head(x, version);
    if ((id = http_header(x, "X-Request-Id")) && guard_request_id(id)) snprintf(x->id, sizeof x->id, "%s", id);
    if (wrong || strlen(method) >= sizeof x->method || !guard_target(x->target)) {
        add_close(x);
        REFUSE(x, true, 400, NULL, NULL, "%s", wrong ? wrong : "the request line is malformed");
    }
    x->path = guard_path(x->target);
    if (x->c->over_limit) {
        x->s->counts.refused_connections++;
        add_close(x);
        http_add_header(x, "retry-after", "1");
        REFUSE(x, true, 503, "busy", NULL, "there are %d connections, the limit", x->s->o.max_connections);
    }
    return check_route(x);
}

/* ---- the body -----------------------------------------------------------------------------------------------------*/

/* Refuses a request in the middle of its body. The library takes no reply before the body's end, which may never come.
 * So the reply is written straight to the socket, and the connection ends. */
static enum MHD_Result cut_body(struct http_exchange *x, int status, const char *code, const char *message) {
    conn_reply_raw(x->c, status, code, message);
    x->status = status;
    x->c->linger = true;
    return MHD_NO;
}

static enum MHD_Result take_body(struct http_exchange *x, const char *data, size_t *bytes) {
    const int64_t most = x->route && x->route->max_body > 0 ? x->route->max_body : x->s->o.max_body;
    const int64_t n = (int64_t)*bytes;
    x->received += n;
    *bytes = 0;
    if (x->phase == PHASE_DISCARD || x->route->body == HTTP_NO_BODY) {
        if (x->received <= 2 * HTTP_DISCARD_BYTES) return MHD_YES;
        return cut_body(x, 413, "request_too_large",
                        x->phase == PHASE_DISCARD ? "the body of a refused request is too long"
                                                  : "this address takes no body, and the one sent is too long");
    }
    if (x->received > most) return cut_body(x, 413, "request_too_large", "the body is over the limit");
    if (x->announced < 0) {
        if (x->s->bodies + n > x->s->o.max_bodies) {
            x->s->counts.refused_bodies++;
            return cut_body(x, 503, "busy", "the bodies that are being read have their limit");
        }
        x->body_bytes += n;
        x->s->bodies += n;
    }
    str_add(&x->body, data, (size_t)n);
    return MHD_YES;
}

/* The whole body has been read, or a suspended exchange goes on. */
static enum MHD_Result go_on(struct http_exchange *x) {
    if (x->gone) return MHD_NO;
    if (x->phase == PHASE_BODY) {
        if (x->route->body == HTTP_JSON_BODY && x->body.len == 0)
            http_reply_error(x, 400, NULL, NULL, "the body is empty; expected a JSON object");
        else
            exchange_begin(x);
    }
    if (x->response) return send_reply(x);
    if (x->c->half_closed) {
        x->gone = true;
        return MHD_NO;
    }
    exchange_suspend(x);
    return MHD_YES;
}

/* ---- what the library calls ---------------------------------------------------------------------------------------*/

static struct conn *conn_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void *request_line_received(void *server, const char *target, struct MHD_Connection *mhd) {
    struct conn *c = conn_of(mhd);
    (void)server;
    if (!c) return NULL;
    if (c->x) exchange_end(c->x);
    c->x = exchange_new(c, target);
    return c->x;
}

enum MHD_Result request_handler(void *server, struct MHD_Connection *c, const char *url, const char *method,
                                const char *version, const char *data, size_t *bytes, void **px) {
    struct http_exchange *x = *px;
    (void)server, (void)url, (void)c;
    if (!x) return MHD_NO;
    if (x->phase == PHASE_HEAD) return check_head(x, method, version);
    if (*bytes > 0) return take_body(x, data, bytes);
    return go_on(x);
}

void request_completed(void *server, struct MHD_Connection *c, void **px, enum MHD_RequestTerminationCode why) {
    struct http_exchange *x = *px;
    (void)server, (void)c;
    if (!x) return;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) x->gone = true;
    exchange_end(x);
    *px = NULL;
}
