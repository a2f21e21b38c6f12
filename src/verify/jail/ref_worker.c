#include "verify/jail/ref_worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "io/json.h"
#include "verify/jail/channel.h"
#include "verify/jail/time_account.h"

static const double start_timeout_s = 120; /* A cold torch on a slow disk takes long. */
static const double last_words_s = 2;      /* Python 3.13 closes the socket before it says why it ends. */

static bool is_zygote(const struct refworker *w) { return w->role != WORKER_REFERENCE; }

/* ---- messages ---- */

static enum status lost(struct refworker *w, struct err *e, const char *what) {
    char tail[300] = "";
    off_t end = w->stderr_fd >= 0 ? lseek(w->stderr_fd, 0, SEEK_END) : 0;
    if (end > 0) {
        off_t from = end > (off_t)sizeof tail - 1 ? end - ((off_t)sizeof tail - 1) : 0;
        ssize_t n = pread(w->stderr_fd, tail, sizeof tail - 1, from);
        tail[n > 0 ? n : 0] = 0;
        while (n > 0 && tail[n - 1] == '\n') tail[--n] = 0;
    }
    return FAIL(e, ST_WORKER, "%s (%s): %s%s%s", w->name, w->python, what, tail[0] ? ": " : "", tail);
}

enum status refworker_parse_reply(const char *text, size_t n, json_t **reply, struct err *e) {
    *reply = NULL;
    json_error_t je;
    json_t *root = json_loadb(text, n, 0, &je);
    if (!json_is_object(root)) {
        json_decref(root);
        return FAIL(e, ST_WORKER, "reference worker: the reply is not a JSON object");
    }
    const json_t *ok = json_object_get(root, "ok");
    if (json_is_true(ok)) {
        *reply = root;
        return ST_OK;
    }
    const char *kind = json_string_value(json_object_get(root, "kind"));
    const char *text_of = json_string_value(json_object_get(root, "error"));
    enum status st;
    if (json_is_false(ok) && kind && text_of)
        st = FAIL(e,
                  strcmp(kind, KIND_PROBLEM) == 0  ? ST_INVALID
                  : strcmp(kind, KIND_MEMORY) == 0 ? ST_MEMORY
                  : strcmp(kind, KIND_IMPORT) == 0 ? ST_UNSUPPORTED
                                                   : ST_WORKER,
                  "%s", text_of);
    else
        st = FAIL(e, ST_WORKER, "reference worker: a reply needs ok, or kind and error");
    json_decref(root);
    return st;
}

static enum status receive_reply(struct refworker *w, double timeout_s, json_t **reply, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    int status;
    switch (channel_receive(w->socket, clock_now_s() + timeout_s, MAX_MESSAGE_BYTES, &text, NULL)) {
    case CHANNEL_OK: return refworker_parse_reply(str_c(&text), text.len, reply, e);
    case CHANNEL_LATE: return lost(w, e, "no reply in time");
    case CHANNEL_CLOSED:
        (void)process_wait(&w->process, clock_now_s() + last_words_s, &status);
        return lost(w, e, "it ended");
    case CHANNEL_TOO_LONG: break;
    }
    return lost(w, e, "a reply over 64 MiB");
}

enum status refworker_call_fds(struct refworker *w, const struct str *request, const int *fds, int n_fds,
                               double timeout_s, json_t **reply, struct err *e) {
    *reply = NULL;
    if (w->socket < 0) return FAIL(e, ST_WORKER, "%s: not running", w->name);
    const double t0 = clock_now_s();
    if (!channel_send(w->socket, request->p, request->len, fds, n_fds)) return lost(w, e, "it has gone");
    enum status st = receive_reply(w, timeout_s, reply, e);
    spent_note(w->name, str_c(request), clock_now_s() - t0);
    return st;
}

enum status refworker_call(struct refworker *w, const struct str *request, int fd, double timeout_s, json_t **reply,
                           struct err *e) {
    return refworker_call_fds(w, request, &fd, fd >= 0, timeout_s, reply, e);
}

/* ---- starting ---- */

/* Makes the environment: the program's own with the thread settings on top. Threads that wait sleep at once, in the
 * worker as in the answer. So neither disturbs the other's turn, and PyTorch builds with two thread pools (OpenMP and a
 * BLAS of its own) do not compete with themselves for the cores. Spinning made a small linear layer 3 to 16 times
 * slower on two cores. */
static char **worker_environment(const struct refworker *w, struct arena *a) {
    /* An answer's process may inherit these: where programs, libraries and models are, and which GPU is meant. There
     * are no secrets among them. */
    static const char *const passed[] = {"PATH=",
                                         "LD_LIBRARY_PATH=",
                                         "PYTHONPATH=",
                                         "VIRTUAL_ENV=",
                                         "LANG=",
                                         "LC_ALL=",
                                         "CUDA_VISIBLE_DEVICES=",
                                         "CUDA_HOME=",
                                         "CUDA_PATH=",
                                         "CUDA_DEVICE_ORDER=",
                                         "NVIDIA_VISIBLE_DEVICES=",
                                         "HOME=",
                                         "XDG_CACHE_HOME=",
                                         "HF_HOME=",
                                         "HF_HUB_CACHE=",
                                         "HUGGINGFACE_HUB_CACHE=",
                                         "THUNDERKITTENS_ROOT="};
    static const char *const own[] = {"OMP_NUM_THREADS=", "MKL_NUM_THREADS=", "OPENBLAS_NUM_THREADS=",
                                      "OMP_WAIT_POLICY=", "GOMP_SPINCOUNT=",  "PYTHONUNBUFFERED="};
    size_t n = 0, m = 0;
    while (environ[n]) n++;
    char **env = arena_array(a, char *, n + ARRAY_LEN(own) + 3);
    for (size_t i = 0; i < n; i++) {
        bool mine = false;
        for (size_t k = 0; k < ARRAY_LEN(own); k++) mine |= str_has_prefix(environ[i], own[k]);
        bool wanted = !is_zygote(w) && !w->jail;
        for (size_t k = 0; k < ARRAY_LEN(passed); k++) wanted |= str_has_prefix(environ[i], passed[k]);
        if (!mine && wanted) env[m++] = environ[i];
    }
    for (size_t k = 0; k < 3; k++) env[m++] = arena_printf(a, "%s%d", own[k], w->threads);
    env[m++] = arena_strdup(a, "OMP_WAIT_POLICY=passive");
    /* Looking for a GPU must not wake the driver in a process that forks. */
    if (is_zygote(w)) env[m++] = arena_strdup(a, "PYTORCH_NVML_BASED_CUDA_CHECK=1");
    if (w->role == WORKER_INTERPRETING_ZYGOTE) env[m++] = arena_strdup(a, "TRITON_INTERPRET=1");
    return env;
}

static enum status start(struct refworker *w, struct err *e) {
    struct arena a = ARENA_INIT;
    enum status st;
    char *script = arena_printf(&a, "%s/worker/kernelrl_worker/__main__.py", home_dir());
    int pair[2] = {-1, -1};
    CLEANUP_FD int filter = -1;
    json_t *hello = NULL;
    if (!fs_is_file(script)) {
        st = FAIL(e, ST_IO, "%s: missing; set KERNELRL_HOME to the directory that holds worker/", script);
        goto done;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        st = FAIL(e, ST_WORKER, "socketpair: %s", strerror(errno));
        goto done;
    }
    w->stderr_fd = process_memfd("worker-stderr", NULL, 0);
    if (w->jail) filter = process_memfd("filter", w->jail->python_filter, w->jail->python_filter_bytes);
    char *argv[] = {w->python,
                    arena_strdup(&a, "-B"),
                    script,
                    arena_printf(&a, "%d", w->threads),
                    is_zygote(w) ? arena_strdup(&a, "zygote")
                    : w->jail    ? arena_strdup(&a, "jailed")
                                 : NULL,
                    NULL};
    struct process_start s = {.path = w->python,
                              .argv = argv,
                              .envp = worker_environment(w, &a),
                              .fds = {-1, -1, w->stderr_fd, pair[1], filter},
                              .n_fds = w->jail ? 5 : 4};
    TRY_GOTO(process_start(&s, &w->process, e), done);
    close(pair[1]);
    w->socket = pair[0];
    pair[0] = pair[1] = -1;
    TRY_GOTO(receive_reply(w, start_timeout_s, &hello, e), done);
    int64_t protocol = 0;
    const char *torch = NULL, *version = NULL;
    TRY_GOTO(js_get_i64(hello, "reference worker", "protocol", &protocol, e), done);
    TRY_GOTO(js_get_str(hello, "reference worker", "torch", &torch, e), done);
    TRY_GOTO(js_get_str(hello, "reference worker", "python", &version, e), done);
    if (protocol != PROTOCOL)
        st = FAIL(e, ST_WORKER, "reference worker: protocol %lld, expected %d", (long long)protocol, PROTOCOL);
    snprintf(w->torch, sizeof w->torch, "%s", torch);
    snprintf(w->python_version, sizeof w->python_version, "%s", version);
    w->generation++;
done:
    json_decref(hello);
    if (pair[0] >= 0) close(pair[0]);
    if (pair[1] >= 0) close(pair[1]);
    if (st != ST_OK) refworker_close(w);
    arena_free(&a);
    return st;
}

void refworker_close(struct refworker *w) {
    process_kill(&w->process);
    if (w->socket >= 0) close(w->socket);
    if (w->stderr_fd >= 0) close(w->stderr_fd);
    w->socket = w->stderr_fd = -1;
}

enum status refworker_restart(struct refworker *w, struct err *e) {
    /* The same Python has started before. What ends it now, such as a killer of processes that is short of memory, may
     * not be there a moment later. */
    enum status st = ST_WORKER;
    for (int i = 0; i < 3 && st == ST_WORKER; i++) {
        refworker_close(w);
        st = start(w, e);
    }
    return st;
}

enum status refworker_open(struct refworker *w, const char *python, int threads, enum worker_role role,
                           const struct jail *jail, struct err *e) {
    *w = (struct refworker){.process = PROCESS_NONE,
                            .socket = -1,
                            .stderr_fd = -1,
                            .threads = threads,
                            .role = role,
                            .jail = jail,
                            .name = role != WORKER_REFERENCE ? "Python for answers" : "reference worker"};
    if (jail && jail->weak)
        return FAIL(e, ST_SANDBOX, "a problem that is not trusted needs the whole jail: install bubblewrap");
    bool option = python && *python;
    if (!option) python = getenv("KERNELRL_PYTHON");
    bool given = python && *python;
    const char *const usual[] = {"./.venv/bin/python", "python3", "/usr/bin/python3"};
    const char *const one[] = {python};
    const char *const *try = given ? one : usual;
    CLEANUP_STR struct str tried = STR_INIT;
    for (size_t i = 0; i < (given ? 1 : ARRAY_LEN(usual)); i++) {
        struct err why = {0};
        if (!process_find(try[i], w->python, sizeof w->python)) {
            if (given)
                return FAIL(e, ST_WORKER, "%s: %s: no such program", option ? "sandbox.python" : "KERNELRL_PYTHON",
                            python);
            continue;
        }
        if (start(w, &why) == ST_OK) return ST_OK;
        str_addf(&tried, "%s%s (%.200s)", tried.len ? "; " : "", w->python, why.msg);
    }
    return FAIL(e, ST_WORKER,
                "no Python with PyTorch: tried %s. Install it (apt-get install python3-torch python3-setuptools, or "
                "pip install torch setuptools in .venv) or point KERNELRL_PYTHON at a Python that has both",
                tried.len ? tried.p : "nothing");
}
