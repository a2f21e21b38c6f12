/* The server: its socket, its loop, and how it ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/internal.h"

enum {
    SWEEP_MS = 250,
    OVER_LIMIT = 64,
    SPARE_DESCRIPTORS = 256,
    UNSENT_BYTES = 128 << 10, /* of a connection: what the kernel takes before its client reads it */
};

/* ---- connections --------------------------------------------------------------------------------------------------*/

static void set_option(int fd, int level, int option, int value) {
    /* A socket that has no such option works without it. */
    if (setsockopt(fd, level, option, &value, sizeof value) != 0) log_debug("setsockopt: %s", strerror(errno));
}

/* The kernel ends the connection of a peer that has vanished without a word, a little later than the write deadline. So
 * a client that only stops reading is cut off, and counted, by the deadline. UNSENT_BYTES bounds what the kernel holds
 * for such a client. */
static void watch_peer(const struct http_server *s, int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)fmin((s->o.write_s + 10) * 1e3, 1e9));
}

static void conn_open(struct http_server *s, struct MHD_Connection *mhd, void **context) {
    struct conn *c = xcalloc(1, sizeof *c);
    *context = c;
    c->s = s;
    c->mhd = mhd;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    c->head_deadline = clock_now_ns() + (int64_t)(s->o.header_s * 1e9);
    c->over_limit = s->n_conns >= s->o.max_connections;
    c->next = s->conns;
    if (s->conns) s->conns->before = c;
    s->conns = c;
    s->n_conns++;
    s->counts.connections++;
    watch_peer(s, c->fd);
    watch_add(s, c);
}

static void conn_close(struct conn *c) {
    struct http_server *s = c->s;
    if (c->x) { /* its head was never complete */
        c->x->gone = true;
        exchange_end(c->x);
    }
    watch_remove(s, c);
    if (c->linger) watch_linger(s, c);
    if (c->before)
        c->before->next = c->next;
    else
        s->conns = c->next;
    if (c->next) c->next->before = c->before;
    s->n_conns--;
    free(c);
}

static void connection_changed(void *server, struct MHD_Connection *mhd, void **context,
                               enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        conn_open(server, mhd, context);
    else if (*context)
        conn_close(*context);
}

/* MHD_AcceptPolicyCallback. OVER_LIMIT / 2 connections beyond the limit get 503; further ones are closed as they
 * come. */
static enum MHD_Result may_connect(void *server, const struct sockaddr *address, socklen_t bytes) {
    struct http_server *s = server;
    (void)address, (void)bytes;
    if (s->n_conns < s->o.max_connections + OVER_LIMIT / 2) return MHD_YES;
    s->counts.refused_connections++;
    return MHD_NO;
}

static void library_says(void *server, const char *format, va_list ap) {
    char line[500];
    (void)server;
    vsnprintf(line, sizeof line, format, ap);
    line[strcspn(line, "\n")] = 0;
    log_debug("http: %s", line);
}

/* ---- options ------------------------------------------------------------------------------------------------------*/

static double or_default(double value, double usual) { return value > 0 ? value : usual; }

static void set_limits(struct http_server *s) {
    struct http_options *o = &s->o;
    struct rlimit files = {1024, 1024};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0 && getrlimit(RLIMIT_NOFILE, &files) != 0) files.rlim_cur = 1024;
    }
    const int64_t room = i64_max((int64_t)i64_min((int64_t)files.rlim_cur, 1 << 20) - SPARE_DESCRIPTORS, 16);
    if (o->max_connections <= 0) o->max_connections = 10000;
    o->max_connections = (int)i64_min(o->max_connections, room);
    if (o->max_body <= 0) o->max_body = 16 << 20;
    if (o->max_bodies <= 0) o->max_bodies = 256 << 20;
    o->header_s = or_default(o->header_s, 10);
    o->body_s = or_default(o->body_s, 60);
    o->idle_s = or_default(o->idle_s, 75);
    o->write_s = or_default(o->write_s, 60);
    o->drain_s = or_default(o->drain_s, 30);
}

/* Digests of keys, with their names among those of the guard. Two keys of one name would be taken for one. */
static enum status take_keys(struct guard *g, const char *const *texts, size_t n, struct digest **out, struct err *e) {
    *out = xcalloc(n + 1, sizeof **out);
    for (size_t i = 0; i < n; i++) {
        struct key_name *named = &g->key_name[g->n_key_names];
        const char *key;
        TRY(guard_split_key(texts[i], named->name, &key, e));
        named->key = (*out)[i] = digest_of(key, strlen(key));
        if (!*named->name) continue;
        for (size_t k = 0; k < g->n_key_names; k++)
            if (strcmp(g->key_name[k].name, named->name) == 0)
                return FAIL(e, ST_CONFIG, "two keys have the name %s", named->name);
        g->n_key_names++;
    }
    return ST_OK;
}

static char **copies(const char *const *texts, size_t n) {
    char **c = xcalloc(n + 1, sizeof *c);
    for (size_t i = 0; i < n; i++) c[i] = xstrdup(texts[i]);
    return c;
}

static enum status check_texts(const struct http_options *o, struct err *e) {
    for (size_t i = 0; i < o->n_origins; i++)
        if (!strstr(o->origins[i], "://"))
            return FAIL(e, ST_CONFIG, "origin \"%s\": expected SCHEME://HOST, with a port where there is one",
                        o->origins[i]);
    return ST_OK;
}

/* ---- the socket ---------------------------------------------------------------------------------------------------*/

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static int bound_port(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    if (a.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)(void *)&a)->sin_port);
    return ntohs(((struct sockaddr_in6 *)(void *)&a)->sin6_port);
}

static enum status listen_at(struct http_server *s, const struct addrinfo *a, const char *host, struct err *e) {
    const int one = 1;
    s->listen_fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0 || setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(s->listen_fd, a->ai_addr, a->ai_addrlen) != 0 || listen(s->listen_fd, 1024) != 0)
        return FAIL(e, ST_IO, "cannot listen at %s, port %d: %s", host, s->o.port, strerror(errno));
    s->port = bound_port(s->listen_fd);
    return ST_OK;
}

static enum status open_socket(struct http_server *s, struct err *e) {
    const char *host = s->o.host ? s->o.host : "127.0.0.1";
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *a = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", s->o.port);
    const int wrong = getaddrinfo(host, port, &hints, &a);
    if (wrong != 0) return FAIL(e, ST_CONFIG, "host %s: %s", host, gai_strerror(wrong));
    const bool local = is_loopback(a->ai_addr), keys = s->guard.n_keys > 0;
    s->guard.check_host = local && !keys;
    enum status st = ST_OK;
    if (!local && !keys && !s->o.no_key)
        st = FAIL(e, ST_CONFIG,
                  "host %s is no loopback address, and there is no API key: anybody who reaches the port could use the "
                  "server. Give a key, or say that none is wanted",
                  host);
    if (st == ST_OK) st = listen_at(s, a, host, e);
    freeaddrinfo(a);
    return st;
}

/* ---- begin --------------------------------------------------------------------------------------------------------*/

static enum status add_to_loop(struct http_server *s, int fd, int index, struct err *e) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0) return ST_OK;
    return FAIL(e, ST_IO, "epoll: %s", strerror(errno));
}

/* Indices of the loop's descriptors that are no watched_fd. */
enum { LOOP_LIBRARY = HTTP_MAX_WATCHED, LOOP_HANGUPS };

static enum status start_library(struct http_server *s, struct err *e) {
    const unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                           (s->listen_fd < 0 ? MHD_USE_NO_LISTEN_SOCKET : 0);
    const struct MHD_OptionItem listening[] = {{MHD_OPTION_LISTEN_SOCKET, s->listen_fd, NULL},
                                               {MHD_OPTION_END, 0, NULL}},
                                nothing[] = {{MHD_OPTION_END, 0, NULL}};
    s->mhd = MHD_start_daemon(flags, 0, may_connect, s, request_handler, s, MHD_OPTION_EXTERNAL_LOGGER, library_says, s,
                              MHD_OPTION_ARRAY, s->listen_fd < 0 ? nothing : listening, MHD_OPTION_CONNECTION_LIMIT,
                              (unsigned)(s->o.max_connections + OVER_LIMIT), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                              (size_t)HTTP_POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_STRICT_FOR_CLIENT,
                              1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_URI_LOG_CALLBACK,
                              request_line_received, s, MHD_OPTION_NOTIFY_CONNECTION, connection_changed, s,
                              MHD_OPTION_NOTIFY_COMPLETED, request_completed, s, MHD_OPTION_END);
    if (!s->mhd) return FAIL(e, ST_IO, "libmicrohttpd does not start: %s", strerror(errno));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    TRY(add_to_loop(s, info->epoll_fd, LOOP_LIBRARY, e));
    return add_to_loop(s, s->hangup_fd, LOOP_HANGUPS, e);
}

static enum status start(struct http_server *s, struct err *e) {
    TRY(check_texts(&s->o, e));
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0) return FAIL(e, ST_IO, "epoll: %s", strerror(errno));
    TRY(watch_open(s, e));
    if (s->o.port >= 0) TRY(open_socket(s, e));
    return start_library(s, e);
}

enum status http_server_open(const struct http_options *o, struct http_server **out, struct err *e) {
    struct http_server *s = xcalloc(1, sizeof *s);
    *out = NULL;
    s->o = *o;
    s->epoll_fd = s->listen_fd = s->hangup_fd = -1;
    s->started = clock_now_ns();
    if (getrandom(&s->id_key, sizeof s->id_key, 0) != sizeof s->id_key) s->id_key = (uint64_t)s->started;
    s->guard = (struct guard){.key_name = xcalloc(o->n_keys + o->n_admin_keys + 1, sizeof *s->guard.key_name),
                              .n_keys = o->n_keys,
                              .n_admin_keys = o->n_admin_keys,
                              .admin = o->admin,
                              .hosts = copies(o->hosts, o->n_hosts),
                              .n_hosts = o->n_hosts,
                              .origins = copies(o->origins, o->n_origins),
                              .n_origins = o->n_origins};
    set_limits(s);
    ASSERT(o->n_fronts < HTTP_MAX_FRONTS);
    s->front[s->n_fronts++] = &core_front;
    for (size_t i = 0; i < o->n_fronts; i++) s->front[s->n_fronts++] = &o->front[i];
    for (int i = 0; i < s->n_fronts; i++)
        s->counts.routes[i] = xcalloc(s->front[i]->n_routes, sizeof *s->counts.routes[i]);
    enum status st = take_keys(&s->guard, o->keys, o->n_keys, &s->guard.keys, e);
    if (st == ST_OK) st = take_keys(&s->guard, o->admin_keys, o->n_admin_keys, &s->guard.admin_keys, e);
    if (st == ST_OK) st = start(s, e);
    if (st != ST_OK) {
        http_server_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

int http_port(const struct http_server *s) { return s->port; }

enum status http_watch_fd(struct http_server *s, int fd, http_fd_fn *fn, void *ctx, struct err *e) {
    ASSERT(s->n_watched < HTTP_MAX_WATCHED);
    TRY(add_to_loop(s, fd, s->n_watched, e));
    s->watched[s->n_watched++] = (struct watched_fd){fd, fn, ctx};
    return ST_OK;
}

enum status http_adopt(struct http_server *s, int fd, struct err *e) {
    struct sockaddr_in local = {.sin_family = AF_INET};
    if (MHD_add_connection(s->mhd, fd, (struct sockaddr *)&local, sizeof local) == MHD_YES) return ST_OK;
    return FAIL(e, ST_IO, "the connection is not taken on: %s", strerror(errno));
}

/* ---- the loop -----------------------------------------------------------------------------------------------------*/

/* Milliseconds until the library wants to run again, at most `most`. */
static int library_wants(const struct http_server *s, int most) {
    MHD_UNSIGNED_LONG_LONG t;
    return MHD_get_timeout(s->mhd, &t) == MHD_YES && t < (MHD_UNSIGNED_LONG_LONG)most ? (int)t : most;
}

static void cut_all(struct http_server *s) {
    s->cut_since = clock_now_ns();
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->x) exchange_event(c->x, HTTP_CUT);
}

static void look_at_drain(struct http_server *s, int64_t now) {
    const double s_ago = (double)(now - s->drain_since) * 1e-9;
    if (s->drain_since != 0 && s->cut_since == 0 && s_ago > s->o.drain_s && s->n_exchanges > 0) cut_all(s);
}

enum status http_step(struct http_server *s, int timeout_ms, struct err *e) {
    struct epoll_event ev[HTTP_MAX_WATCHED + 2];
    int64_t now = clock_now_ns();
    const int64_t sweep_in = (s->next_sweep - now + 999999) / 1000000;
    if (timeout_ms > sweep_in) timeout_ms = sweep_in > 0 ? (int)sweep_in : 0;
    const int n = epoll_wait(s->epoll_fd, ev, ARRAY_LEN(ev), library_wants(s, timeout_ms));
    if (n < 0 && errno != EINTR) return FAIL(e, ST_IO, "epoll: %s", strerror(errno));
    /* Hang-ups come first: the library may give up their connections. */
    watch_hangups(s);
    for (int i = 0; i < n; i++)
        if (ev[i].data.u32 < HTTP_MAX_WATCHED) s->watched[ev[i].data.u32].fn(s->watched[ev[i].data.u32].ctx);
    int turns = 0;
    do {
        if (MHD_run(s->mhd) == MHD_NO) return FAIL(e, ST_IO, "libmicrohttpd does not run");
    } while (++turns < 4 && library_wants(s, 1) == 0);
    now = clock_now_ns();
    if (now >= s->next_sweep) {
        watch_sweep(s, now);
        look_at_drain(s, now);
        s->next_sweep = now + SWEEP_MS * 1000000LL;
    }
    if (s->access_log.len > 0) access_log_flush(s);
    return ST_OK;
}

enum status http_run(struct http_server *s, struct err *e) {
    while (!http_drained(s)) TRY(http_step(s, SWEEP_MS, e));
    return ST_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------------------*/

void http_drain(struct http_server *s) {
    if (s->drain_since != 0) {
        cut_all(s);
        return;
    }
    s->drain_since = clock_now_ns();
    s->next_sweep = 0;
    if (s->listen_fd >= 0) {
        MHD_quiesce_daemon(s->mhd);
        close(s->listen_fd);
        s->listen_fd = -1;
    }
    for (int i = 0; i < s->n_fronts; i++)
        if (s->front[i]->draining) s->front[i]->draining(s->front[i]->ctx);
}

bool http_draining(const struct http_server *s) { return s->drain_since != 0; }

bool http_drained(const struct http_server *s) {
    if (s->drain_since == 0) return false;
    return s->n_exchanges == 0 || (s->cut_since != 0 && clock_now_ns() - s->cut_since > 1000000000);
}

void http_server_close(struct http_server *s) {
    if (!s) return;
    if (s->mhd) {
        for (struct conn *c = s->conns; c; c = c->next)
            if (c->x) exchange_lose(c->x);
        MHD_run(s->mhd); /* the library wants nothing suspended at its end */
        MHD_stop_daemon(s->mhd);
        s->listen_fd = -1; /* which the library has closed */
    }
    access_log_flush(s);
    if (s->listen_fd >= 0) close(s->listen_fd);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    watch_close(s);
    guard_free(&s->guard);
    for (int i = 0; i < s->n_fronts; i++) free(s->counts.routes[i]);
    str_free(&s->access_log);
    free(s);
}
