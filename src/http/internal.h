/* What the files of http share: connections, exchanges and the server. All of it belongs to the server's thread. */
#ifndef KERNELRL_HTTP_INTERNAL_H
#define KERNELRL_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "base/choice.h"
#include "base/clock.h"
#include "http/guard.h"
#include "http/http.h"
#include "http/metrics.h"

enum {
    HTTP_POOL_BYTES = 16 << 10,    /* of a connection: its headers, then what it sends */
    HTTP_DISCARD_BYTES = 64 << 10, /* of a refused body that is read, so that the connection can go on */
    HTTP_REPLY_PIECE = 256 << 10,  /* a longer reply goes out in pieces, each with a deadline of its own */
    HTTP_LINGER_MAX = 256,         /* refused connections that are read to their end */
    HTTP_MAX_FRONTS = 8,           /* the server's own among them */
    HTTP_MAX_WATCHED = 8,
};

/* The deadlines that end a connection. X(id, name) */
#define DEADLINE_LIST(X) X(DEADLINE_HEAD, head) X(DEADLINE_BODY, body) X(DEADLINE_IDLE, idle) X(DEADLINE_WRITE, write)
enum deadline { CHOICE_ENUM(DEADLINE_LIST) N_DEADLINES };

/* What becomes of an exchange, in this order; some skip states. */
enum phase {
    PHASE_HEAD,    /* the request line is there */
    PHASE_BODY,    /* the head is there, the body comes in */
    PHASE_DISCARD, /* it is refused, and the rest of a small body is read */
    PHASE_WAITING, /* the route's begin() was called, and there is no reply yet */
    PHASE_REPLY,   /* the library has the reply, or the beginning of a stream */
};

struct conn { /* a connection */
    struct conn *next, *before;
    struct http_server *s;
    struct MHD_Connection *mhd;
    int fd;
    int64_t head_deadline; /* ns; when the head of the next request must be there */
    bool half_closed;      /* true: nothing more comes from the client, who may have left */
    bool idle;             /* true: it has had a request and waits for the next */
    bool over_limit;       /* true: there are too many, and a request gets 503 */
    bool linger;           /* true: bytes of a refused body may still come in, and are read once the connection ends */
    struct http_exchange *x; /* the request that is being served, or NULL */
};

struct http_exchange {
    struct http_server *s;
    struct conn *c;
    int front; /* index into s->front; -1: none */
    const struct http_route *route;
    void *state;
    enum phase phase;
    bool counted;   /* true: its head is complete */
    bool begun;     /* true: the route has had its begin(), and end() will follow */
    bool suspended; /* true: libmicrohttpd leaves the connection alone until it is resumed */
    bool gone;      /* true: the client has left, or is cut off */
    char id[129];
    char method[16];
    char *target, *path; /* as the client wrote it; decoded, without the query */
    const char *tail;
    struct str body;
    int64_t body_bytes;          /* counted among s->bodies */
    int64_t received, announced; /* of the body; announced: -1 when the client did not say */
    struct MHD_Response *response;
    int status;
    struct header {
        struct header *next;
        char *name, *value;
    } * headers; /* of the reply */
    /* streams */
    http_more_fn *more;
    const char *ping;
    struct str out; /* bytes [out_at, len) are to be sent */
    size_t out_at;
    bool ended; /* true: `out` has the last bytes */
    /* times, ns */
    int64_t began, body_began;
    int64_t given;       /* when libmicrohttpd took the last bytes; 0: it has asked for more since, so they are sent */
    int64_t quiet_since; /* of a stream with pings */
    int64_t wake_at;     /* 0: never */
    int64_t sent;        /* bytes of the reply */
    struct str log;      /* further members of its line in the access log */
    bool cut;            /* true: its route has been given the event HTTP_CUT */
    bool ping_now;       /* true: a ping is due */
};

struct watched_fd {
    int fd;
    http_fd_fn *fn;
    void *ctx;
};

struct lingering { /* a connection that was refused and closed: its client may still be sending */
    int fd;
    int64_t until, bytes;
};

struct http_server {
    struct http_options o;
    struct guard guard;
    struct MHD_Daemon *mhd;
    int epoll_fd, listen_fd, port;
    int hangup_fd; /* an epoll set of all connections, for their hang-ups alone */
    struct watched_fd watched[HTTP_MAX_WATCHED];
    const struct http_front *front[HTTP_MAX_FRONTS]; /* the server's own is the first */
    int n_fronts;
    int n_watched;
    struct conn *conns;
    int n_conns, n_exchanges;
    int64_t bodies; /* bytes of bodies in memory */
    int64_t next_sweep;
    int64_t drain_since; /* 0: it does not drain */
    int64_t cut_since;   /* what was left at the drain's end was cut then; 0: it was not */
    struct lingering linger[HTTP_LINGER_MAX];
    int n_linger;
    uint64_t id_key, id_count;
    struct http_counts {
        int64_t (
            *routes[HTTP_MAX_FRONTS])[6]; /* of each front end: by route and class of status; [0]: the client left */
        int64_t no_route[6];
        int64_t connections, refused_connections, refused_bodies;
        int64_t timed_out[N_DEADLINES];
    } counts;
    struct str access_log;
    int64_t log_dropped;
    int64_t started;
};

/* ---- request.c ---- */
void *request_line_received(void *server, const char *target, struct MHD_Connection *c);
enum MHD_Result request_handler(void *server, struct MHD_Connection *c, const char *url, const char *method,
                                const char *version, const char *data, size_t *bytes, void **x);
void request_completed(void *server, struct MHD_Connection *c, void **x, enum MHD_RequestTerminationCode why);

/* ---- exchange.c ---- */
struct http_exchange *exchange_new(struct conn *c, const char *target);
/* Tells the route and the log, and frees x. */
void exchange_end(struct http_exchange *x);
void exchange_begin(struct http_exchange *x); /* calls the route */
void exchange_event(struct http_exchange *x, enum http_event e);
/* The client is gone, or is to go: the connection ends, and with it x. */
void exchange_lose(struct http_exchange *x);
void exchange_give_body_back(struct http_exchange *x);
void exchange_suspend(struct http_exchange *x);
void exchange_resume(struct http_exchange *x);
/* Writes a reply straight to the socket, where the library takes none: in the middle of a body. */
void conn_reply_raw(const struct conn *c, int status, const char *code, const char *message);

/* ---- watch.c ---- */
enum status watch_open(struct http_server *s, struct err *e) MUST_USE;
void watch_close(struct http_server *s);
void watch_add(struct http_server *s, struct conn *c);
void watch_remove(struct http_server *s, const struct conn *c);
void watch_hangups(struct http_server *s);
void watch_sweep(struct http_server *s, int64_t now);
void watch_linger(struct http_server *s, const struct conn *c);

/* ---- core.c: routes of the server itself ---- */
extern const struct http_front core_front;

/* ---- access_log.c ---- */
void access_log_add(struct http_server *s, const struct http_exchange *x);
void access_log_flush(struct http_server *s);

#endif
