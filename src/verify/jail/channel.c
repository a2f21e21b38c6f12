#include "verify/jail/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/base.h"
#include "base/clock.h"

static bool send_some(int socket, const char *p, size_t n, const int *fds, int n_fds) {
    while (n > 0) {
        struct iovec iov = {(void *)(uintptr_t)p, n};
        union {
            char bytes[CMSG_SPACE(MAX_MESSAGE_FDS * sizeof(int))];
            struct cmsghdr align;
        } control = {{0}};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
        if (n_fds > 0) {
            m.msg_control = control.bytes;
            m.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
            memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
        }
        ssize_t sent = sendmsg(socket, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        n_fds = 0;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool channel_send(int socket, const char *text, size_t n, const int *fds, int n_fds) {
    ASSERT(n_fds <= MAX_MESSAGE_FDS);
    unsigned char head[4];
    for (int i = 0; i < 4; i++) head[i] = (unsigned char)(n >> (8 * i));
    return send_some(socket, (const char *)head, sizeof head, fds, n_fds) && send_some(socket, text, n, NULL, 0);
}

static enum channel_result receive_some(int socket, char *p, size_t n, double deadline_s, pid_t *sender) {
    while (n > 0) {
        double left = deadline_s - clock_now_s();
        struct timespec t = {0, 0};
        if (left > 0) {
            t.tv_sec = (time_t)left;
            t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
        }
        struct pollfd pf = {.fd = socket, .events = POLLIN};
        int r = ppoll(&pf, 1, &t, NULL);
        if (r < 0 && errno == EINTR) continue;
        if (r == 0) return CHANNEL_LATE;
        union {
            char bytes[CMSG_SPACE(sizeof(struct ucred))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {p, n};
        struct msghdr m = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return CHANNEL_CLOSED;
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); sender && h; h = CMSG_NXTHDR(&m, h))
            if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_CREDENTIALS) {
                struct ucred who;
                memcpy(&who, CMSG_DATA(h), sizeof who);
                *sender = who.pid;
                sender = NULL;
                break;
            }
        p += got;
        n -= (size_t)got;
    }
    return CHANNEL_OK;
}

enum channel_result channel_receive(int socket, double deadline_s, size_t max_bytes, struct str *text, pid_t *sender) {
    unsigned char head[4];
    str_clear(text);
    enum channel_result r = receive_some(socket, (char *)head, sizeof head, deadline_s, sender);
    if (r != CHANNEL_OK) return r;
    size_t n = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (n > max_bytes) return CHANNEL_TOO_LONG;
    /* The announced length is not believed: memory is taken as bytes arrive. */
    char piece[65536];
    while (text->len < n) {
        size_t want = n - text->len < sizeof piece ? n - text->len : sizeof piece;
        r = receive_some(socket, piece, want, deadline_s, NULL);
        if (r != CHANNEL_OK) return r;
        str_add(text, piece, want);
    }
    return CHANNEL_OK;
}
