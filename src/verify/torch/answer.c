#include "verify/torch/answer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/json.h"
#include "verify/jail/channel.h"
#include "verify/jail/time_account.h"

enum { MAX_REPLY = 4 << 20 };
static const double fork_timeout_s = 30;
/* How long a process may take to stand still. The system may have to run each of its threads for that. */
static const double most_settling_s = 0.25;

/* ---- the warm Python ---- */

static enum status send_filter(struct zygote *z, const char *name, const void *program, size_t n, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT, hex = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    for (size_t i = 0; i < n; i++) str_addf(&hex, "%02x", ((const unsigned char *)program)[i]);
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "filter");
    js_put_str(&q, "name", name);
    js_put_str(&q, "program", str_c(&hex));
    js_end(&q, '}');
    return refworker_call(&z->worker, &q, -1, fork_timeout_s, &reply, e);
}

static enum status send_filters(struct zygote *z, struct err *e) {
    if (z->generation == z->worker.generation) return ST_OK;
    TRY(send_filter(z, "python", z->jail->python_filter, z->jail->python_filter_bytes, e));
    TRY(send_filter(z, "gpu", z->jail->gpu_filter, z->jail->gpu_filter_bytes, e));
    z->generation = z->worker.generation;
    return ST_OK;
}

enum status zygote_open(struct zygote *z, const struct jail *jail, const char *python, int threads, bool interpret,
                        struct err *e) {
    *z = (struct zygote){.jail = jail};
    pthread_mutex_init(&z->lock, NULL);
    enum status st =
        refworker_open(&z->worker, python, threads, interpret ? WORKER_INTERPRETING_ZYGOTE : WORKER_ZYGOTE, NULL, e);
    if (st == ST_OK) st = send_filters(z, e);
    if (st != ST_OK) zygote_close(z);
    return st;
}

void zygote_close(struct zygote *z) {
    if (!z->jail) return;
    refworker_close(&z->worker);
    pthread_mutex_destroy(&z->lock);
    *z = (struct zygote){0};
}

enum status zygote_prepare(struct zygote *z, int step, struct err *e) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    const double t0 = clock_now_s();
    str_addf(&q, "{\"op\":\"prepare\",\"step\":%d}", step);
    pthread_mutex_lock(&z->lock);
    enum status st = refworker_call(&z->worker, &q, -1, fork_timeout_s, &reply, e);
    pthread_mutex_unlock(&z->lock);
    spent_add("Python for answers", "prepare", clock_now_s() - t0);
    return st;
}

/* The caller holds the lock. The child's number is safe to use, because the zygote collects a child only on a later
 * request. */
static enum status fork_one(struct modrun *r, struct zygote *z, const struct str *q, const int fds[2], struct err *e) {
    CLEANUP_JSON json_t *reply = NULL;
    int64_t pid = 0;
    enum status st = send_filters(z, e);
    if (st == ST_OK) st = refworker_call_fds(&z->worker, q, fds, 2, fork_timeout_s, &reply, e);
    if (st == ST_WORKER) {
        struct err why = *e;
        log_warn("%s; starting it again", why.msg);
        TRY(refworker_restart(&z->worker, e));
        TRY(send_filters(z, e));
        st = refworker_call_fds(&z->worker, q, fds, 2, fork_timeout_s, &reply, e);
    }
    TRY(st);
    TRY(js_get_i64(reply, z->worker.name, "pid", &pid, e));
    r->outer = (pid_t)pid;
    r->outer_pidfd = (int)syscall(SYS_pidfd_open, r->outer, 0);
    return r->outer_pidfd >= 0 ? ST_OK : FAIL(e, ST_SANDBOX, "pidfd_open: %s", strerror(errno));
}

enum status modrun_start(struct modrun *r, struct zygote *z, const struct modrun_options *o, uint64_t nonce_seed,
                         struct err *e) {
    *r = (struct modrun){
        .outer_pidfd = -1, .pidfd = -1, .socket = -1, .stderr_fd = -1, .nonce_key = nonce_seed, .zygote = z};
    CLEANUP_STR struct str q = STR_INIT, text = STR_INIT;
    int pair[2], on = 1;
    bool gpu = strncmp(o->device, "cuda", 4) == 0;
    const bool compilers = gpu || o->compilers;
    r->settles = !gpu;
    js_begin(&q, NULL, '{');
    js_put_str(&q, "op", "fork");
    js_put_str(&q, "filter", compilers ? "gpu" : "python");
    js_put_str(&q, "device", o->device);
    js_put_bool(&q, "gpu", gpu);
    js_put_bool(&q, "weak", z->jail->weak);
    js_put_i64(&q, "threads", o->threads);
    js_put_i64(&q, "memory_bytes", o->memory_bytes);
    js_put_i64(&q, "cpu_s", (int64_t)o->cpu_s);
    js_put_i64(&q, "tmp_bytes", compilers ? 1 << 30 : 128 << 20);
    js_put_i64(&q, "processes", 512);
    js_end(&q, '}');
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return FAIL(e, ST_SANDBOX, "socketpair: %s", strerror(errno));
    r->socket = pair[0];
    CLEANUP_FD int theirs = pair[1];
    r->stderr_fd = process_memfd("answer-stderr", NULL, 0);
    if (r->stderr_fd < 0 || setsockopt(r->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
        return FAIL(e, ST_SANDBOX, "answer: %s", strerror(errno));
    pthread_mutex_lock(&z->lock);
    const double t0 = clock_now_s();
    enum status st = fork_one(r, z, &q, (int[2]){theirs, r->stderr_fd}, e);
    pthread_mutex_unlock(&z->lock);
    close(theirs);
    theirs = -1;
    if (st == ST_OK) {
        enum channel_result got = channel_receive(r->socket, clock_now_s() + fork_timeout_s, MAX_REPLY, &text, &r->pid);
        if (got != CHANNEL_OK || r->pid <= 0) {
            char said[300];
            int sig, code;
            modrun_end(r, &sig, &code, said, sizeof said);
            return FAIL(e, ST_SANDBOX, "the jailed Python did not start (exit %d, signal %d): %s", code, sig, said);
        }
        r->pidfd = (int)syscall(SYS_pidfd_open, r->pid, 0);
        spent_add("process", "start", clock_now_s() - t0);
        if (r->pidfd < 0) st = FAIL(e, ST_SANDBOX, "pidfd_open: %s", strerror(errno));
    }
    if (st != ST_OK) modrun_end(r, NULL, NULL, NULL, 0);
    return st;
}

/* ---- requests ---- */

bool modrun_send(struct modrun *r, const struct str *message, int fd) {
    return channel_send(r->socket, message->p, message->len, &fd, fd >= 0);
}

enum modrun_result modrun_receive(struct modrun *r, double timeout_s, json_t **reply) {
    CLEANUP_STR struct str text = STR_INIT;
    *reply = NULL;
    const double begun = clock_now_s();
    const enum channel_result got = channel_receive(r->socket, begun + timeout_s, MAX_REPLY, &text, NULL);
    r->waited_s += clock_now_s() - begun;
    switch (got) {
    case CHANNEL_OK: break;
    case CHANNEL_LATE: r->late = true; return MODRUN_LATE;
    case CHANNEL_CLOSED: r->dead = true; return MODRUN_DEAD;
    case CHANNEL_TOO_LONG: return MODRUN_FORGED;
    }
    json_t *o = json_loadb(text.p, text.len, 0, NULL);
    if (!json_is_object(o)) {
        json_decref(o);
        return MODRUN_FORGED;
    }
    *reply = o;
    return json_is_false(json_object_get(o, "ok")) ? MODRUN_FAILED : MODRUN_OK;
}

static void signal_to(int pidfd, int number) {
    if (pidfd >= 0) syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

/* true: the thread neither runs nor is in the middle of a system call. It has stopped, or ended. */
static bool thread_stands(long pid, long thread) {
    char path[80], text[200];
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/stat", pid, thread);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    if (n <= 0) return true;
    text[n] = 0;
    const char *name_end = strrchr(text, ')'); /* The name may hold anything. */
    return name_end && name_end[1] == ' ' && strchr("TtZXx", name_end[2]);
}

/* true: all threads of the process stand still. */
static bool stands(pid_t pid) {
    char path[80];
    bool all = true;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *threads = opendir(path);
    for (const struct dirent *one; all && threads && (one = readdir(threads));) {
        const long thread = strtol(one->d_name, NULL, 10);
        if (thread > 0) all = thread_stands((long)pid, thread);
    }
    if (threads) closedir(threads);
    return all;
}

/* Waits until the process stands still, for most_settling_s at most. */
static void settle(const struct modrun *r) {
    static const struct timespec a_while = {.tv_nsec = 20000};
    const double until = clock_now_s() + most_settling_s;
    while (r->pid > 0 && !stands(r->pid) && clock_now_s() < until) nanosleep(&a_while, NULL);
}

void modrun_pause(struct modrun *r) {
    if (!r->stopped) {
        signal_to(r->pidfd, SIGSTOP);
        process_stop_threads(r->pid);
        r->cpu_ns = process_cpu_ns(r->pid);
        if (r->settles) {
            const int64_t told_ns = r->cpu_ns;
            settle(r);
            r->cpu_ns = process_cpu_ns(r->pid);
            if (told_ns > 0 && r->cpu_ns > told_ns) r->settled_ns += r->cpu_ns - told_ns;
        }
    }
    r->stopped = true;
}

void modrun_resume(struct modrun *r) {
    if (r->stopped) {
        const int64_t now = process_cpu_ns(r->pid);
        if (now > r->cpu_ns) r->moved_ns += now - r->cpu_ns;
        signal_to(r->pidfd, SIGCONT);
    }
    r->stopped = false;
}

double modrun_moved_s(struct modrun *r) {
    const double s = (double)r->moved_ns * 1e-9;
    r->moved_ns = 0;
    return s;
}

double modrun_settled_s(struct modrun *r) {
    const double s = (double)r->settled_ns * 1e-9;
    r->settled_ns = 0;
    return s;
}

bool modrun_ask(struct modrun *r, struct str *request, int fd) {
    /* A reply to a call must echo a number that did not exist before and does not follow from earlier ones. A reply
     * that was prepared earlier cannot do so. The number has 53 bits, so that every JSON reader keeps them. */
    r->nonce = hmac_u64(r->nonce_key, "nonce", ++r->asked, NULL, 0) >> 11;
    js_put_i64(request, "nonce", (int64_t)r->nonce);
    js_end(request, '}');
    modrun_resume(r);
    r->dead |= !modrun_send(r, request, fd);
    return !r->dead;
}

bool modrun_asks(const json_t *reply) {
    const char *op = json_string_value(json_object_get(reply, "op"));
    return op && strcmp(op, "build") == 0;
}

/* Receives the next message. With ns, the clock stops when the first byte of the message is there, before it is parsed.
 */
static enum modrun_result next_message(struct modrun *r, double timeout_s, json_t **reply, int64_t *ns) {
    const int64_t begun_ns = clock_now_ns(), until = begun_ns + (int64_t)(timeout_s * 1e9);
    struct pollfd pf = {.fd = r->socket, .events = POLLIN};
    while (ns) {
        int64_t left = until - clock_now_ns();
        struct timespec t = {left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
        if (r->spin) t = (struct timespec){0};
        int n = ppoll(&pf, 1, &t, NULL);
        if (n == 0 && r->spin && left > 0) continue;
        if (n >= 0 || errno != EINTR) break;
    }
    if (ns) {
        const int64_t replied_ns = clock_now_ns();
        *ns = replied_ns - r->asked_ns;
        r->waited_s += (double)(replied_ns - begun_ns) * 1e-9;
        modrun_pause(r);
        timeout_s =
            fmax(0.1, timeout_s - (double)*ns * 1e-9); /* The process has had its time. What it has sent is read now. */
    }
    enum modrun_result result = modrun_receive(r, timeout_s, reply);
    const json_t *echo = *reply ? json_object_get(*reply, "nonce") : NULL;
    if (ns && *reply && !modrun_asks(*reply) && json_integer_value(echo) != (json_int_t)r->nonce) {
        json_decref(*reply);
        *reply = NULL;
        return MODRUN_FORGED;
    }
    return result;
}

enum modrun_result modrun_call(struct modrun *r, struct str *request, int fd, double timeout_s, json_t **reply,
                               int64_t *ns) {
    *reply = NULL;
    r->asked_ns = clock_now_ns();
    if (!modrun_ask(r, request, fd)) return MODRUN_DEAD;
    enum modrun_result result = next_message(r, timeout_s, reply, ns);
    spent_note("process", str_c(request), (double)(clock_now_ns() - r->asked_ns) * 1e-9);
    return result;
}

enum modrun_result modrun_go_on(struct modrun *r, double timeout_s, json_t **reply, int64_t *ns) {
    *reply = NULL;
    modrun_resume(r);
    return next_message(r, timeout_s, reply, ns);
}

/* ---- its memory and its life ---- */

bool modrun_read(const struct modrun *r, uint64_t address, void *to, size_t n) {
    char *p = to;
    while (n > 0) {
        struct iovec here = {p, n}, there = {(void *)(uintptr_t)address, n};
        ssize_t got = process_vm_readv(r->pid, &here, 1, &there, 1, 0);
        if (got <= 0) return false;
        p += got;
        address += (uint64_t)got;
        n -= (size_t)got;
    }
    return true;
}

/* true: this line of /proc/PID/maps is a mapping of this file, and it holds a part of one of the blocks. */
static bool holds(const char *line, const struct stat *file, const struct modrun_block *blocks, int n) {
    unsigned long low, high, inode;
    unsigned int major_of, minor_of;
    if (sscanf(line, "%lx-%lx %*4s %*x %x:%x %lu", &low, &high, &major_of, &minor_of, &inode) != 5) return false;
    if (inode != file->st_ino || makedev(major_of, minor_of) != file->st_dev) return false;
    for (int i = 0; i < n; i++)
        if (blocks[i].address < high && blocks[i].address + blocks[i].bytes > low) return true;
    return false;
}

bool modrun_maps(const struct modrun *r, int fd, const struct modrun_block *blocks, int n) {
    char path[80], line[4400]; /* The line ends with a path. */
    struct stat file;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/maps", (long)r->pid);
    FILE *f = fd >= 0 && fstat(fd, &file) == 0 ? fopen(path, "re") : NULL;
    while (f && !found && fgets(line, sizeof line, f)) found = holds(line, &file, blocks, n);
    if (f) fclose(f);
    return found;
}

/* How many children one thread has started, beside `known`. *first becomes the number of the first one, if it was 0.
 * first may be NULL. */
static int children_of(long pid, long thread, long known, long *first) {
    char path[80], text[4096];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", pid, thread);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *end = text;
    for (long child; (child = strtol(end, &end, 10)) > 0;) {
        if (first && *first == 0) *first = child;
        count += child != known;
    }
    return count;
}

int modrun_children(const struct modrun *r) {
    /* The outermost process has one child, which is the first process in the jail. The children of that one are the
     * answer's process and orphans. */
    char path[80];
    long first = 0, pid = (long)r->pid;
    children_of((long)r->outer, (long)r->outer, 0, &first);
    int others = first > 0 ? children_of(first, first, pid, NULL) : 0;
    /* The answer's own children come next. Each of its threads has a list of its own. */
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *threads = opendir(path);
    for (const struct dirent *one; threads && (one = readdir(threads));) {
        const long thread = strtol(one->d_name, NULL, 10);
        if (thread > 0) others += children_of(pid, thread, 0, NULL);
    }
    if (threads) closedir(threads);
    return others;
}

/* Waits until the process has ended, up to the deadline. False: it has not. */
static bool ended(int pidfd, double deadline_s) {
    if (pidfd < 0) return true;
    for (;;) {
        double left = deadline_s - clock_now_s();
        struct pollfd pf = {.fd = pidfd, .events = POLLIN};
        int n = poll(&pf, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (n < 0 && errno == EINTR) continue;
        return n > 0;
    }
}

/* Asks the zygote how the process, which was its child, ended. */
static int exit_status(struct modrun *r) {
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    struct err ignored = {0};
    str_addf(&q, "{\"op\":\"wait\",\"pid\":%ld}", (long)r->outer);
    pthread_mutex_lock(&r->zygote->lock);
    enum status st = refworker_call(&r->zygote->worker, &q, -1, 10, &reply, &ignored);
    pthread_mutex_unlock(&r->zygote->lock);
    return st == ST_OK ? (int)json_integer_value(json_object_get(reply, "code")) : -1;
}

void modrun_end(struct modrun *r, int *sig, int *exit_code, char *text, size_t text_size) {
    const double t0 = clock_now_s();
    int number = 0, code = -1;
    bool by_itself = sig && r->outer > 0 && ended(r->outer_pidfd, clock_now_s() + 1);
    /* The answer's process is killed first. With it everything in the jail ends, and then the outer processes end by
     * themselves. */
    signal_to(r->pidfd, SIGKILL);
    if (r->outer > 0 && !ended(r->outer_pidfd, clock_now_s() + (r->pidfd >= 0 ? 5 : 0))) {
        signal_to(r->outer_pidfd, SIGKILL);
        ended(r->outer_pidfd, clock_now_s() + 5);
    }
    if (r->outer > 0) {
        int status = exit_status(r);
        if (by_itself && status > 128)
            number = status - 128;
        else if (by_itself)
            code = status;
    }
    if (sig) *sig = number;
    if (exit_code) *exit_code = code;
    if (text && text_size) {
        struct stat sb = {.st_size = 0};
        if (r->stderr_fd >= 0 && fstat(r->stderr_fd, &sb) != 0) sb.st_size = 0;
        const off_t from = sb.st_size >= (off_t)text_size ? sb.st_size - (off_t)text_size + 1 : 0;
        ssize_t n = r->stderr_fd >= 0 ? pread(r->stderr_fd, text, text_size - 1, from) : 0;
        text[n > 0 ? n : 0] = 0;
    }
    if (r->outer_pidfd >= 0) close(r->outer_pidfd);
    if (r->pidfd >= 0) close(r->pidfd);
    if (r->socket >= 0) close(r->socket);
    if (r->stderr_fd >= 0) close(r->stderr_fd);
    spent_add("process", "end", clock_now_s() - t0);
    *r = (struct modrun){.outer_pidfd = -1, .pidfd = -1, .socket = -1, .stderr_fd = -1, .zygote = r->zygote};
}
