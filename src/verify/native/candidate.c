#include "verify/native/candidate.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

/* ---- the socket ---- */

enum receive { RECEIVED, RECEIVE_TIMEOUT, RECEIVE_CLOSED, RECEIVE_GARBAGE };

/* Receives one message. pid, when not NULL, gets the number that the sender's process has here, as the kernel says
 * it. */
static enum receive receive(int fd, double deadline_s, struct wire_reply *r, pid_t *pid) {
    for (;;) {
        double left = deadline_s - clock_now_s();
        struct timespec t = {0, 0};
        if (left > 0) {
            t.tv_sec = (time_t)left;
            t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
        }
        struct pollfd pf = {.fd = fd, .events = POLLIN};
        int n = ppoll(&pf, 1, &t, NULL);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) {
            if (clock_now_s() < deadline_s) continue;
            return RECEIVE_TIMEOUT;
        }
        union {
            char bytes[CMSG_SPACE(sizeof(struct ucred))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {r, sizeof *r};
        struct msghdr m = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return RECEIVE_CLOSED;
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); pid && h; h = CMSG_NXTHDR(&m, h))
            if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_CREDENTIALS) {
                struct ucred who;
                memcpy(&who, CMSG_DATA(h), sizeof who);
                *pid = who.pid;
            }
        if (got != (ssize_t)sizeof *r || (m.msg_flags & MSG_TRUNC)) return RECEIVE_GARBAGE;
        r->text[sizeof r->text - 1] = 0;
        return RECEIVED;
    }
}

static bool send_setup(int fd, const struct sets *s, const struct candidate_options *o, bool count_processes) {
    struct {
        struct wire_setup setup;
        struct wire_arg args[WIRE_MAX_ARGS];
    } m = {.setup = {.magic = WIRE_MAGIC,
                     .n_args = (uint32_t)s->spec->n_args,
                     .slots = (uint32_t)s->slots,
                     .param_sets = SETS_PARAM_SETS,
                     .read_only_bytes = s->read_only_bytes,
                     .read_write_bytes = s->read_write_bytes,
                     .param_stride = s->param_stride,
                     .input_base = SETS_PARAM_SETS * s->param_stride,
                     .input_stride = s->input_stride,
                     .output_stride = s->output_stride,
                     .memory_bytes = (uint64_t)o->memory_bytes,
                     .cpu_s = o->cpu_s,
                     .max_processes = count_processes ? 64 + 2 * (uint32_t)o->threads : 0}};
    for (int i = 0; i < s->spec->n_args; i++) {
        struct wire_arg *w = &m.args[i];
        if (s->output_at[i] >= 0)
            *w = (struct wire_arg){.region = WIRE_OUTPUT, .offset = (uint64_t)s->output_at[i]};
        else if (s->param_at[i] >= 0)
            *w = (struct wire_arg){.region = WIRE_PARAM, .offset = (uint64_t)s->param_at[i]};
        else
            *w = (struct wire_arg){.region = WIRE_INPUT, .offset = (uint64_t)s->input_at[i]};
        if (s->param_at[i] >= 0) {
            w->is_buffer_of_params = 1;
            w->param_offset = (uint64_t)s->param_at[i];
        }
    }
    size_t n = sizeof m.setup + (size_t)s->spec->n_args * sizeof m.args[0];
    return send(fd, &m, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* ---- life ---- */

static void signal_runner(const struct candidate *c, int number) {
    if (c->runner_pidfd >= 0) syscall(SYS_pidfd_send_signal, c->runner_pidfd, number, NULL, 0);
}

/* Stops all threads of the runner. */
static void stop_runner(struct candidate *c) {
    signal_runner(c, SIGSTOP);
    process_stop_threads(c->runner);
    c->cpu_ns = process_cpu_ns(c->runner);
}

static void note_moved(struct candidate *c) {
    const int64_t now = process_cpu_ns(c->runner);
    if (now > c->cpu_ns) c->moved_ns += now - c->cpu_ns;
    c->cpu_ns = now;
}

double candidate_moved_s(struct candidate *c) {
    note_moved(c);
    const double s = (double)c->moved_ns * 1e-9;
    c->moved_ns = 0;
    return s;
}

static enum status launch(struct candidate *c, const struct jail *jail, const struct sets *sets, const void *object,
                          size_t object_bytes, const struct candidate_options *o, struct err *e) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return FAIL(e, ST_SANDBOX, "socketpair: %s", strerror(errno));
    c->socket = pair[0];
    CLEANUP_FD int theirs = pair[1];
    CLEANUP_FD int answer = process_memfd("answer", object, object_bytes);
    c->stderr_fd = process_memfd("answer-stderr", NULL, 0);
    int on = 1;
    if (answer < 0 || c->stderr_fd < 0 || setsockopt(c->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
        return FAIL(e, ST_SANDBOX, "candidate: %s", strerror(errno));
    char threads[64];
    snprintf(threads, sizeof threads, "OMP_NUM_THREADS=%d", o->threads);
    char *env[] = {threads,
                   (char[]){"OMP_WAIT_POLICY=passive"},
                   (char[]){"OMP_DYNAMIC=false"},
                   (char[]){"MALLOC_ARENA_MAX=2"},
                   (char[]){"PATH=/usr/bin:/bin"},
                   NULL};
    struct jail_runner r = {.runner_path = o->runner_path,
                            .answer_fd = answer,
                            .socket_fd = theirs,
                            .read_only_fd = sets->read_only_fd,
                            .read_write_fd = sets->lanes[o->lane].fd,
                            .stderr_fd = c->stderr_fd,
                            .environment = env};
    if (!send_setup(c->socket, sets, o, !jail->weak)) return FAIL(e, ST_SANDBOX, "candidate: %s", strerror(errno));
    return jail_start_runner(jail, &r, &c->process, e);
}

enum status candidate_start(struct candidate *c, const struct jail *jail, const struct sets *sets, const void *object,
                            size_t object_bytes, const struct candidate_options *o, uint64_t nonce_seed,
                            double timeout_s, enum call_result *result, char *text, size_t text_size, struct err *e) {
    *c = (struct candidate){
        .process = PROCESS_NONE, .runner_pidfd = -1, .socket = -1, .stderr_fd = -1, .nonce_key = nonce_seed};
    text[0] = 0;
    enum status st = launch(c, jail, sets, object, object_bytes, o, e);
    if (st != ST_OK) {
        candidate_end(c, NULL, NULL, NULL, 0);
        return st;
    }
    struct wire_reply r;
    pid_t pid = 0;
    enum receive got = receive(c->socket, clock_now_s() + 10, &r, &pid);
    if (got != RECEIVED || r.op != WIRE_HELLO || pid <= 0) {
        char said[300];
        int sig, code;
        candidate_end(c, &sig, &code, said, sizeof said);
        return FAIL(e, ST_SANDBOX, "the runner did not start (%s; exit %d, signal %d) %s",
                    got == RECEIVE_TIMEOUT ? "no word within 10 s" : "it ended", code, sig, said);
    }
    c->runner = pid;
    c->runner_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    got = receive(c->socket, clock_now_s() + timeout_s, &r, NULL);
    *result = CALL_DONE;
    if (got == RECEIVE_TIMEOUT)
        *result = CALL_TIMEOUT;
    else if (got == RECEIVE_CLOSED)
        *result = CALL_DIED;
    else if (got == RECEIVED && r.op == WIRE_READY) {
        c->has_prepare = r.value != 0;
        stop_runner(c);
    } else if (got == RECEIVED && r.op == WIRE_FAULT) {
        c->fault = (enum wire_fault)r.value;
        *result = CALL_DIED;
    } else if (got == RECEIVED && r.op == WIRE_FAILED) {
        c->fault = (enum wire_fault)r.value;
        *result = CALL_NOT_LOADED;
        snprintf(text, text_size, "%s", r.text);
    } else
        *result = CALL_FORGED;
    return ST_OK;
}

enum call_result candidate_call(struct candidate *c, enum wire_op op, int count, int param_set, double timeout_s,
                                int64_t *ns) {
    /* A reply must echo a number that did not exist before the request, and that does not follow from earlier numbers.
     * So a reply that was prepared earlier cannot echo it. */
    c->nonce = hmac_u64(c->nonce_key, "nonce", ++c->asked, NULL, 0);
    struct wire_request q = {.op = op, .count = (uint32_t)count, .param_set = (uint32_t)param_set, .nonce = c->nonce};
    note_moved(c);
    c->asked_ns = clock_now_ns();
    signal_runner(c, SIGCONT);
    if (send(c->socket, &q, sizeof q, MSG_NOSIGNAL) != (ssize_t)sizeof q) return CALL_DIED;
    return candidate_wait(c, timeout_s, ns);
}

enum call_result candidate_wait(struct candidate *c, double timeout_s, int64_t *ns) {
    struct wire_reply r;
    enum receive got = receive(c->socket, clock_now_s() + timeout_s, &r, NULL);
    *ns = clock_now_ns() - c->asked_ns;
    if (got == RECEIVED && r.op == WIRE_DONE) stop_runner(c);
    if (got == RECEIVE_TIMEOUT) return CALL_TIMEOUT;
    if (got == RECEIVE_CLOSED) return CALL_DIED;
    if (got == RECEIVED && r.op == WIRE_FAULT) {
        c->fault = r.value <= WIRE_FAULT_STACK ? (enum wire_fault)r.value : WIRE_FAULT_OTHER;
        return CALL_DIED;
    }
    if (got != RECEIVED || r.op != WIRE_DONE || r.nonce != c->nonce) return CALL_FORGED;
    if (r.value == WIRE_FAULT_MEMORY) c->fault = WIRE_FAULT_MEMORY;
    return CALL_DONE;
}

void candidate_end(struct candidate *c, int *sig, int *exit_code, char *text, size_t text_size) {
    int status = 0, number = 0, code = -1;
    /* A process that died by itself is gone within moments, or somewhat longer when it has many threads. Waiting that
     * long tells how it died. */
    if (sig && c->process.pid > 0 && process_wait(&c->process, clock_now_s() + 1, &status)) {
        if (WIFSIGNALED(status)) number = WTERMSIG(status);
        /* bubblewrap reports its child's signal as a shell does. */
        else if (WEXITSTATUS(status) > 128)
            number = WEXITSTATUS(status) - 128;
        else
            code = WEXITSTATUS(status);
    }
    signal_runner(c, SIGKILL);
    /* With the runner gone, bubblewrap ends by itself. This is waited for, because a jail that is still being torn down
     * would disturb the times of the next answer. */
    if (c->process.pid > 0 && c->runner_pidfd >= 0) process_wait(&c->process, clock_now_s() + 2, &status);
    process_kill(&c->process);
    if (sig) *sig = number;
    if (exit_code) *exit_code = code;
    if (text && text_size) {
        ssize_t n = c->stderr_fd >= 0 ? pread(c->stderr_fd, text, text_size - 1, 0) : 0;
        text[n > 0 ? n : 0] = 0;
    }
    if (c->runner_pidfd >= 0) close(c->runner_pidfd);
    if (c->socket >= 0) close(c->socket);
    if (c->stderr_fd >= 0) close(c->stderr_fd);
    *c = (struct candidate){.process = PROCESS_NONE, .runner_pidfd = -1, .socket = -1, .stderr_fd = -1};
}
