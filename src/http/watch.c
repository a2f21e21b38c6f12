/* What the library does not watch: clients that leave while their connection is suspended, and deadlines. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/internal.h"

enum {
    SLOW_BODY_BYTES = 1024,  /* so many bytes of a body must come in each second, on average */
    SLOW_BODY_GRACE_S = 8,   /* the average is not looked at before so many seconds */
    LINGER_BYTES = 32 << 20, /* so many bytes of a refused body are read at most */
    PING_S = 15,
};

enum status watch_open(struct http_server *s, struct err *e) {
    s->hangup_fd = epoll_create1(EPOLL_CLOEXEC);
    return s->hangup_fd >= 0 ? ST_OK : FAIL(e, ST_IO, "epoll: %s", strerror(errno));
}

void watch_close(struct http_server *s) {
    for (int i = 0; i < s->n_linger; i++) close(s->linger[i].fd);
    s->n_linger = 0;
    if (s->hangup_fd >= 0) close(s->hangup_fd);
}

void watch_add(struct http_server *s, struct conn *c) {
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLET, .data.ptr = c};
    if (epoll_ctl(s->hangup_fd, EPOLL_CTL_ADD, c->fd, &ev) != 0)
        c->half_closed = true; /* nobody would notice that the client leaves, so the server never waits for it */
}

/* To be called while the descriptor is open. That it is closed is not enough: a process that is being started may have
 * a copy of it, and then the kernel tells of a connection that is no more. */
void watch_remove(struct http_server *s, const struct conn *c) { epoll_ctl(s->hangup_fd, EPOLL_CTL_DEL, c->fd, NULL); }

static void hung_up(struct conn *c, uint32_t events) {
    struct http_exchange *x = c->x;
    c->half_closed = true;
    if (!x || x->gone) return;
    /* A client that has only closed its half still gets a whole reply that is under way. */
    if (x->phase == PHASE_WAITING || (x->phase == PHASE_REPLY && x->more) || (events & (EPOLLHUP | EPOLLERR)))
        exchange_lose(x);
}

void watch_hangups(struct http_server *s) {
    struct epoll_event ev[64];
    int n;
    do {
        n = epoll_wait(s->hangup_fd, ev, ARRAY_LEN(ev), 0);
        for (int i = 0; i < n; i++) hung_up(ev[i].data.ptr, ev[i].events);
    } while (n == (int)ARRAY_LEN(ev));
}

static void time_out(struct conn *c, enum deadline d) {
    c->s->counts.timed_out[d]++;
    if (c->x)
        exchange_lose(c->x);
    else
        shutdown(c->fd, SHUT_RDWR);
}

static bool body_is_late(const struct http_exchange *x, int64_t now) {
    const double s = (double)(now - x->body_began) * 1e-9;
    return s > x->s->o.body_s || (s > SLOW_BODY_GRACE_S && (double)x->received < SLOW_BODY_BYTES * s);
}

static void look_at_exchange(struct conn *c, struct http_exchange *x, int64_t now) {
    const struct http_options *o = &c->s->o;
    if (x->wake_at != 0 && now >= x->wake_at) {
        x->wake_at = 0;
        exchange_event(x, HTTP_TIME_UP);
    }
    switch (x->phase) {
    case PHASE_HEAD:
        if (now > c->head_deadline) time_out(c, DEADLINE_HEAD);
        break;
    case PHASE_BODY:
    case PHASE_DISCARD:
        if (!body_is_late(x, now)) break;
        x->status = 408;
        conn_reply_raw(c, 408, NULL, "the body came too slowly");
        time_out(c, DEADLINE_BODY);
        break;
    case PHASE_WAITING: break;
    case PHASE_REPLY:
        if (x->given != 0 && !x->suspended && (double)(now - x->given) * 1e-9 > o->write_s) {
            time_out(c, DEADLINE_WRITE);
        } else if (x->ping && x->suspended && now - x->quiet_since > PING_S * 1000000000LL) {
            x->ping_now = true;
            exchange_resume(x);
        }
        break;
    }
}

/* Reads what refused clients still send. Closing a socket with unread bytes would reset the connection, and the client
 * could lose the reply. */
static void read_lingering(struct http_server *s, int64_t now) {
    char waste[16 << 10];
    for (int i = 0; i < s->n_linger; i++) {
        struct lingering *l = &s->linger[i];
        ssize_t n;
        do {
            n = recv(l->fd, waste, sizeof waste, MSG_DONTWAIT);
            if (n > 0) l->bytes += n;
        } while (n > 0 && l->bytes < LINGER_BYTES);
        const bool more = n < 0 && (errno == EAGAIN || errno == EINTR);
        if (more && now < l->until) continue;
        close(l->fd);
        *l = s->linger[--s->n_linger];
        i--;
    }
}

void watch_linger(struct http_server *s, const struct conn *c) {
    if (s->n_linger == HTTP_LINGER_MAX) return;
    const int fd = dup(c->fd);
    if (fd < 0) return;
    s->linger[s->n_linger++] = (struct lingering){fd, clock_now_ns() + 3000000000LL, 0};
}

void watch_sweep(struct http_server *s, int64_t now) {
    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->x)
            look_at_exchange(c, c->x, now);
        else if (now > c->head_deadline || (s->drain_since != 0 && c->idle))
            time_out(c, c->idle ? DEADLINE_IDLE : DEADLINE_HEAD);
    }
    read_lingering(s, now);
}
