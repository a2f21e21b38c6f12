#include "io/pychild.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fs.h"
#include "base/home.h"

enum { MESSAGE_BYTES = 400, ARGS_MAX = 8 };

struct child {
    pid_t pid;
    int out, err; /* out: its standard output. err: a file with what it wrote to standard error. */
};

static void child_close(struct child *c) {
    if (c->out >= 0) close(c->out);
    if (c->err >= 0) close(c->err);
}

static enum status child_start(struct child *c, const char *python, char *script, const char *const *args,
                               struct err *e) {
    int fd[2];
    *c = (struct child){.out = -1, .err = memfd_create("pychild-stderr", MFD_CLOEXEC)};
    if (c->err < 0 || pipe2(fd, O_CLOEXEC) != 0) {
        child_close(c);
        return FAIL(e, ST_WORKER, "%s: %s", python, strerror(errno));
    }
    c->out = fd[0];
    char *argv[ARGS_MAX + 4] = {(char *)(uintptr_t)python, (char[]){"-B"}, script};
    for (int i = 0; i < ARGS_MAX && args[i]; i++) argv[3 + i] = (char *)(uintptr_t)args[i];
    posix_spawn_file_actions_t a;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&a, fd[1], 1);
    posix_spawn_file_actions_adddup2(&a, c->err, 2);
    const int failed = posix_spawnp(&c->pid, python, &a, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&a);
    close(fd[1]);
    if (!failed) return ST_OK;
    child_close(c);
    return FAIL(e, ST_WORKER, "%s: %s", python, strerror(failed));
}

/* Reads all that the child prints. False past max_bytes; then the child is killed. */
static bool child_read(const struct child *c, size_t max_bytes, struct str *out) {
    CLEANUP_FREE char *buf = xmalloc(1 << 16);
    size_t total = 0;
    for (;;) {
        const ssize_t n = read(c->out, buf, 1 << 16);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return true;
        total += (size_t)n;
        if (total > max_bytes) {
            kill(c->pid, SIGKILL);
            return false;
        }
        str_add(out, buf, (size_t)n);
    }
}

static int child_wait(const struct child *c) {
    int status = 0;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Copies the last line of its standard error: in a traceback that line says what went wrong. */
static void last_line(const struct child *c, char *out, size_t size) {
    char text[4096];
    const off_t end = lseek(c->err, 0, SEEK_END), from = end > (off_t)sizeof text ? end - (off_t)sizeof text : 0;
    ssize_t n = pread(c->err, text, sizeof text - 1, from);
    if (n < 0) n = 0;
    while (n > 0 && text[n - 1] == '\n') n--;
    text[n] = 0;
    const char *line = strrchr(text, '\n');
    snprintf(out, size, "%s", line ? line + 1 : text);
}

enum status pychild_run(const char *script, const char *const *args, const char *what, const char *needs,
                        size_t max_bytes, struct str *out, struct err *e) {
    struct str path = STR_INIT;
    str_addf(&path, "%s/worker/kernelrl_worker/%s", home_dir(), script);
    CLEANUP_FREE char *file = str_steal(&path);
    const char *given = getenv("KERNELRL_PYTHON");
    const char *const one[] = {given}, *const usual[] = {"./.venv/bin/python", "python3", "/usr/bin/python3"};
    const bool is_given = given && *given;
    const char *const *pythons = is_given ? one : usual;
    const size_t n = is_given ? 1 : ARRAY_LEN(usual), before = out->len;
    enum status st = ST_WORKER;
    char tried[600] = "", why[MESSAGE_BYTES];
    if (!fs_is_file(file))
        return FAIL(e, ST_IO, "%s: missing; set KERNELRL_HOME to the directory that holds worker/", file);
    for (size_t i = 0; i < n && st == ST_WORKER; i++) {
        struct child c;
        struct err ignored;
        if (child_start(&c, pythons[i], file, args, &ignored) != ST_OK) continue;
        const bool fits = child_read(&c, max_bytes, out);
        const int code = child_wait(&c);
        last_line(&c, why, sizeof why);
        child_close(&c);
        if (!fits)
            st = FAIL(e, ST_INVALID, "%s: more than %zu bytes of rows", what, max_bytes);
        else if (code == 0)
            st = ST_OK;
        else if (code != PYCHILD_LACKING)
            st = FAIL(e, ST_PARSE, "%s: %s could not read it: %s", what, pythons[i], why);
        const size_t at = strlen(tried);
        if (st == ST_WORKER) snprintf(tried + at, sizeof tried - at, "%s%s", at ? ", " : "", pythons[i]);
        if (st != ST_OK && out->p) { /* Half of the output counts as none. */
            out->len = before;
            out->p[before] = 0;
        }
    }
    if (st != ST_WORKER) return st;
    return FAIL(e, ST_WORKER, "%s: needs a Python with %s (tried %s); point KERNELRL_PYTHON at one", what, needs,
                *tried     ? tried
                : is_given ? given
                           : "all that there are");
}
