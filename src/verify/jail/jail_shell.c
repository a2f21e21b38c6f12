#include "verify/jail/jail_shell.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "verify/jail/wire.h"

void shell_init(struct shell *s, const struct jail *jail, const char *runner, const struct jail_file *extra,
                double timeout_s) {
    *s = (struct shell){.jail = jail,
                        .runner = jail->weak ? NULL : runner,
                        .extra = extra,
                        .timeout_s = timeout_s,
                        .process = PROCESS_NONE,
                        .socket = -1};
}

void shell_close(struct shell *s) {
    if (s->socket >= 0) close(s->socket);
    s->socket = -1;
    /* The first process of the jail's namespace ends with it, and so do all others. */
    process_kill(&s->process);
}

/* Returns whether there is something to read, or the other side has gone. */
static bool wait_readable(int fd, double deadline_s) {
    for (;;) {
        double left = deadline_s - clock_now_s();
        struct pollfd pf = {.fd = fd, .events = POLLIN};
        int r = poll(&pf, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (r > 0) return true;
        if (r == 0 && left <= 0) return false;
    }
}

/* Starts a jail and returns once it is up. From then on, only a script or the machine ends it. */
static enum status start(struct shell *s, struct err *e) {
    static const double most_s = 20;
    int pair[2], up = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return FAIL(e, ST_SANDBOX, "socketpair: %s", strerror(errno));
    enum status st = jail_start_shell(s->jail, s->runner, pair[1], s->extra, s->timeout_s, &s->process, e);
    close(pair[1]);
    s->socket = pair[0];
    if (st == ST_OK && (!wait_readable(s->socket, clock_now_s() + most_s) ||
                        recv(s->socket, &up, sizeof up, 0) != (ssize_t)sizeof up || up != WIRE_SHELL_UP))
        st = FAIL(e, ST_SANDBOX, "the compiler's jail did not come up");
    if (st != ST_OK) shell_close(s);
    return st;
}

static bool ask(struct shell *s, const char *script, char *const *args, const int fds[3]) {
    char text[WIRE_SHELL_BYTES];
    size_t n = strlen(script) + 1;
    ASSERT(n <= sizeof text);
    memcpy(text, script, n);
    for (int i = 0; args[i]; i++) {
        size_t m = strlen(args[i]) + 1;
        ASSERT(n + m <= sizeof text && i < WIRE_SHELL_ARGS);
        memcpy(text + n, args[i], m);
        n += m;
    }
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {text, n};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(3 * sizeof(int));
    memcpy(CMSG_DATA(c), fds, 3 * sizeof(int));
    return sendmsg(s->socket, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Runs this script in a jail of its own. */
static enum shell_result run_once(struct shell *s, const char *script, char *const *args, const char *tmp_dir,
                                  const int fds[3], int *status, struct err *e) {
    struct process p;
    if (jail_start_compiler(s->jail, script, args, tmp_dir, fds, s->timeout_s, &p, e) != ST_OK) return SHELL_BROKEN;
    if (process_wait(&p, clock_now_s() + s->timeout_s, status)) return SHELL_ENDED;
    process_kill(&p);
    return SHELL_SLOW;
}

enum shell_result shell_run(struct shell *s, const char *script, char *const *args, const char *tmp_dir,
                            const int fds[3], int *status, struct err *e) {
    if (!s->runner) return run_once(s, script, args, tmp_dir, fds, status, e);
    for (int deaths = 0; deaths < 2;) {
        const bool fresh = s->socket < 0;
        if (fresh && start(s, e) != ST_OK) return SHELL_BROKEN;
        if (ask(s, script, args, fds)) {
            if (!wait_readable(s->socket, clock_now_s() + s->timeout_s)) {
                shell_close(s);
                return SHELL_SLOW;
            }
            if (recv(s->socket, status, sizeof *status, 0) == (ssize_t)sizeof *status) return SHELL_ENDED;
        }
        /* The jail has gone, perhaps before it had the script. The script is sent once more, to a new jail. */
        shell_close(s);
        deaths += fresh;
    }
    return SHELL_DIED;
}
