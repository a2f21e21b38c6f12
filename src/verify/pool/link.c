#include "verify/pool/link.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "verify/pool/protocol.h"

enum { PIPE_BYTES = 1 << 20, READ_BYTES = 1 << 16, ERR_LINE_BYTES = 2000 };

void link_init(struct line_link *l, const char *label) {
    *l = (struct line_link){.label = label, .process = PROCESS_NONE, .to = -1, .from = -1, .err = -1};
    l->reader = line_reader_make(PROTOCOL_LINE_BYTES);
    l->err_reader = line_reader_make(ERR_LINE_BYTES);
}

static void add_text(char **list, int max, const char *fmt, va_list a) {
    int n = 0;
    char *text = NULL;
    while (n < max && list[n]) n++;
    ASSERT(n + 1 < max && vasprintf(&text, fmt, a) >= 0);
    list[n] = text;
}

void link_arg(struct line_link *l, const char *fmt, ...) {
    va_list a;
    va_start(a, fmt);
    add_text(l->argv, LINK_ARGS, fmt, a);
    va_end(a);
}

void link_env(struct line_link *l, const char *fmt, ...) {
    va_list a;
    va_start(a, fmt);
    add_text(l->set, LINK_SETS, fmt, a);
    va_end(a);
}

/* This process's environment with what is set for the child; free() it. */
static char **environment(const struct line_link *l) {
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **all = xcalloc(n + LINK_SETS + 1, sizeof *all);
    for (size_t i = 0; i < n; i++) {
        const size_t name = strcspn(environ[i], "=") + 1;
        bool other = true;
        for (int k = 0; k < LINK_SETS && l->set[k]; k++) other &= strncmp(environ[i], l->set[k], name) != 0;
        if (other) all[kept++] = environ[i];
    }
    for (int k = 0; k < LINK_SETS && l->set[k]; k++) all[kept++] = l->set[k];
    return all;
}

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void forget_streams(struct line_link *l) {
    close_fd(&l->to);
    close_fd(&l->from);
    close_fd(&l->err);
    line_reader_free(&l->reader);
    line_reader_free(&l->err_reader);
    str_clear(&l->out);
    l->out_at = 0;
}

/* A pipe whose end `mine` does not block. */
static bool make_pipe(int out[2], int mine) {
    if (pipe2(out, O_CLOEXEC) != 0) return false;
    (void)fcntl(out[1], F_SETPIPE_SZ, PIPE_BYTES); /* as much as is allowed */
    return fcntl(out[mine], F_SETFL, O_NONBLOCK) == 0;
}

enum status link_start(struct line_link *l, struct err *e) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    enum status st;
    ASSERT(!link_is_running(l));
    l->why[0] = 0;
    if (!l->program[0] && !process_find(l->argv[0], l->program, sizeof l->program)) {
        l->program[0] = 0;
        return FAIL(e, ST_WORKER, "%s: no program %s on PATH", l->label, l->argv[0]);
    }
    if (!make_pipe(in, 1) || !make_pipe(out, 0) || !make_pipe(err, 0)) {
        st = FAIL(e, ST_WORKER, "%s: %s", l->label, strerror(errno));
    } else {
        char **const env = environment(l);
        const struct process_start s = {
            .path = l->program, .argv = l->argv, .envp = env, .fds = {in[0], out[1], err[1]}, .n_fds = 3};
        st = process_start(&s, &l->process, e);
        free(env);
    }
    close_fd(&in[0]);
    close_fd(&out[1]);
    close_fd(&err[1]);
    l->to = in[1];
    l->from = out[0];
    l->err = err[0];
    if (st != ST_OK) forget_streams(l);
    return st;
}

void link_stop(struct line_link *l, double grace_s) {
    int status = 0;
    if (!link_is_running(l)) return;
    close_fd(&l->to);
    if (grace_s > 0 && l->err >= 0) link_read_err(l);
    if (process_wait(&l->process, clock_now_s() + grace_s, &status)) {
        if (l->err >= 0) link_read_err(l);
        if (WIFSIGNALED(status))
            snprintf(l->why, sizeof l->why, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else if (!l->why[0])
            snprintf(l->why, sizeof l->why, "ended with status %d", WEXITSTATUS(status));
    } else {
        process_kill(&l->process);
    }
    forget_streams(l);
}

void link_free(struct line_link *l) {
    link_stop(l, 0);
    for (int i = 0; i < LINK_ARGS; i++) free(l->argv[i]);
    for (int i = 0; i < LINK_SETS; i++) free(l->set[i]);
    line_reader_free(&l->reader);
    line_reader_free(&l->err_reader);
    str_free(&l->out);
}

bool link_is_running(const struct line_link *l) { return l->process.pid > 0; }

void link_send(struct line_link *l, const char *bytes, size_t n) {
    if (!link_is_running(l)) return;
    if (l->out_at == l->out.len) {
        str_clear(&l->out);
        l->out_at = 0;
    }
    str_add(&l->out, bytes, n);
}

bool link_has_output(const struct line_link *l) { return l->out_at < l->out.len; }

bool link_write(struct line_link *l) {
    while (link_has_output(l)) {
        const ssize_t n = write(l->to, l->out.p + l->out_at, l->out.len - l->out_at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        l->out_at += (size_t)n;
    }
    return true;
}

bool link_read(struct line_link *l) {
    char bytes[READ_BYTES];
    const ssize_t n = read(l->from, bytes, sizeof bytes);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n > 0) line_reader_feed(&l->reader, bytes, (size_t)n);
    return n > 0;
}

enum line_kind link_line(struct line_link *l, char **line, uint64_t *n) {
    return line_reader_next(&l->reader, line, n);
}

void link_read_err(struct line_link *l) {
    char bytes[4096], *line;
    uint64_t n;
    ssize_t got;
    while ((got = read(l->err, bytes, sizeof bytes)) > 0) {
        line_reader_feed(&l->err_reader, bytes, (size_t)got);
        for (enum line_kind k; (k = line_reader_next(&l->err_reader, &line, &n)) != LINE_NONE;) {
            if (k == LINE_TOO_LONG) continue;
            snprintf(l->why, sizeof l->why, "%s", line);
            if (str_has_prefix(line, "warning: "))
                log_warn("%s: %s", l->label, line + strlen("warning: "));
            else
                log_debug("%s: %s", l->label, line);
        }
    }
    if (got == 0) close_fd(&l->err);
}
