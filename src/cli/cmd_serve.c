/* kernelrl serve: models for clients of the OpenAI API. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/serve_model.h"
#include "cli/serve_verify.h"
#include "cli/verify_hosts.h"
#include "dashboard/dashboard.h"
#include "http/http.h"
#include "io/args_file.h"
#include "policy/find_model.h"
#include "serve/serve.h"
#include "tensor/backend.h"
#include "tensor/formats.h"
#include "tinker/tinker.h"

enum { MAX_LIST = 256 };

struct list {
    const char *item[MAX_LIST];
    size_t n;
};
struct pairs {
    struct serve_name item[MAX_LIST];
    size_t n;
};

struct serve_command_options {
    struct arena mem; /* the names of adapters and aliases */
    const char *config, *model, *renderer, *device, *dtype, *base_dtype, *host, *key_file, *adapter_dir, *access_log,
        *runs_dir;
    bool thinking, admin, no_key, metrics_open, strict_length, log_all;
    int threads, port, max_batch, prefill_tokens, max_connections;
    int64_t kv_memory, max_body, max_bodies;
    double header_s, body_s, idle_s, write_s, drain_s;
    int logprobs_mode, reasoning, embeddings;
    struct pairs adapters, aliases;
    struct list keys, admin_keys, hosts, origins;
    struct serve_options serve;
    struct serve_verify_options verify;
    struct tinker_options tinker; /* dir NULL: the protocol is not spoken */
    char *rest_dir;               /* of adapters at rest */
};

static enum status add_text(struct list *l, const char *text, struct err *e) {
    if (!*text || l->n == MAX_LIST) return FAIL(e, ST_USAGE, "expected up to %d texts, none empty", MAX_LIST);
    l->item[l->n++] = text;
    return ST_OK;
}

/* NAME=VALUE, where NAME may hold no "=". */
static enum status add_pair(struct arena *mem, struct pairs *p, const char *text, struct err *e) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1] || p->n == MAX_LIST)
        return FAIL(e, ST_USAGE, "expected NAME=VALUE, got \"%.200s\"", text);
    p->item[p->n++] = (struct serve_name){arena_strndup(mem, text, (size_t)(equals - text)), equals + 1};
    return ST_OK;
}

#define O struct serve_command_options
static enum status take_key(void *o, const char *t, struct err *e) { return add_text(&((O *)o)->keys, t, e); }
static enum status take_admin_key(void *o, const char *t, struct err *e) {
    return add_text(&((O *)o)->admin_keys, t, e);
}
static enum status take_host(void *o, const char *t, struct err *e) { return add_text(&((O *)o)->hosts, t, e); }
static enum status take_origin(void *o, const char *t, struct err *e) { return add_text(&((O *)o)->origins, t, e); }
static enum status take_adapter(void *o, const char *t, struct err *e) {
    return add_pair(&((O *)o)->mem, &((O *)o)->adapters, t, e);
}
static enum status take_alias(void *o, const char *t, struct err *e) {
    return add_pair(&((O *)o)->mem, &((O *)o)->aliases, t, e);
}

static enum status add_name(const char **list, size_t *n, size_t most, const char *text, struct err *e) {
    if (!*text || *n == most) return FAIL(e, ST_USAGE, "expected up to %zu texts, none empty", most);
    list[(*n)++] = text;
    return ST_OK;
}
static enum status take_config(void *o, const char *t, struct err *e) {
    struct serve_verify_options *v = &((O *)o)->verify;
    return add_name(v->config, &v->n_configs, ARRAY_LEN(v->config), t, e);
}
static enum status take_source(void *o, const char *t, struct err *e) {
    struct serve_verify_options *v = &((O *)o)->verify;
    return add_name(v->source, &v->n_sources, ARRAY_LEN(v->source), t, e);
}

static const struct args_flag flags[] = {
    FLAG_SECTION("Model"),
    FLAG_TEXT(O, model, "model", "MODEL", NULL,
              "The model: a folder, a name on the Hub (ORG/NAME or ORG/NAME@REVISION), an adapter's folder, or a run, "
              "whose checkpoints are models RUN@STEP. Clients call it by this very text."),
    FLAG_CALL(take_adapter, "adapter", "NAME=DIR", NULL, "The adapter in that folder is a model of that name.",
              .repeats = true),
    FLAG_CALL(take_alias, "alias", "NAME=MODEL", NULL, "The model has that name, too.", .repeats = true),
    FLAG_INT(O, serve.max_adapters, "max-adapters", "N", 1, 1000, "16",
             "So many adapters are held at a time; another one takes the place of that which was used least lately."),
    FLAG_TEXT(O, renderer, "renderer", "NAME", "the model's", "The chat format: " CHAT_STYLE_EXPECTED "."),
    FLAG_BOOL(O, thinking, "thinking", "Without a word from the client the model is asked to think first."),
    FLAG_CHOICE(O, reasoning, "reasoning", "WHERE", "split|inline", "split",
                "What a model thinks in a chat stands beside the message's content, or in it."),
    FLAG_CHOICE(O, embeddings, "embeddings", "HOW", "auto|off|mean|last", "auto",
                "How a text's vector comes from those of its tokens; auto is what the model's folder says, or off."),
    FLAG_CHOICE(O, logprobs_mode, "logprobs-mode", "MODE", "raw|processed", "raw",
                "Log-probabilities are those of the model, or of the distribution that is drawn from."),
    FLAG_SECTION("Device"),
    FLAG_TEXT(O, device, "device", "NAME", "cpu", "The device: cpu, cuda, or cuda:N for the N-th GPU from 0.",
              .valid = backend_device_valid, .expected = "cpu, cuda or cuda:N"),
    FLAG_CHOICE(O, dtype, "dtype", "TYPE", "auto|f32|bf16", "auto",
                "Matrices are held and multiplied in it; auto is bf16 from 100 million parameters on where the device "
                "has it."),
    FLAG_CHOICE(O, base_dtype, "base-dtype", "TYPE", CHOICE_TEXT(BASE_DTYPE_LIST), "auto",
                "The layers' matrices are held in it: fp8 and nf4 mean the bf16 matrices that they decode to, auto is "
                "as the checkpoint has them."),
    FLAG_INT(O, kv_memory, "kv-memory", "BYTES", 0, INT64_MAX, "a quarter of what is free",
             "Keys and values may take so much memory."),
    FLAG_INT(O, max_batch, "max-batch", "N", 0, 65536, "0, what suits the device",
             "So many sequences are decoded together."),
    FLAG_INT(O, prefill_tokens, "prefill-tokens", "N", 0, 65536, "0, 384 on a CPU and 512 elsewhere",
             "A step takes on so many tokens of prompts at most. Fewer make everybody wait less for a long prompt, and "
             "the prompt take longer."),
    FLAG_INT(O, threads, "threads", "N", 0, 1024, "0, all CPUs", "So many threads work for the model."),
    FLAG_SECTION("Verdicts"),
    FLAG_BOOL(O, verify.on, "verify", "Clients get verdicts, too, at /v1/verify (docs/verdict-service.md)."),
    FLAG_BOOL(O, verify.only, "verify-only", "There are verdicts and no model."),
    FLAG_CALL(
        take_config, "verify-config", "FILE", "what `train` has by itself",
        "Requests may name this configuration, by its file's name without the ending: answers are judged and paid "
        "as in a run with it. The first one counts where a request names none.",
        .repeats = true),
    FLAG_TEXT(O, verify.backend, "verify-backend", "B", "c", "Without a configuration answers are of this backend."),
    FLAG_CALL(take_source, "problem-source", "SRC", NULL,
              "Requests may name this source of problems beside builtin and those of the configurations.",
              .repeats = true),
    FLAG_CHOICE(
        O, verify.problems, "problems", "WHICH", "known|any|auto", "auto",
        "With any a request may bring the text of a problem, which runs jailed; auto is any on loopback and known "
        "elsewhere."),
    FLAG_TEXT(O, verify.jobs, "jobs", "FILE", "verify-jobs.sqlite", "Requests and verdicts are kept in this file."),
    FLAG_INT(O, verify.max_jobs, "max-jobs", "N", 1, 10000000, "10000",
             "So many requests may wait for verdicts; further ones get 429."),
    VERIFY_HOSTS_FLAGS(O, verify.pool),
    FLAG_SECTION("Server"),
    FLAG_TEXT(O, config, "config", "FILE", NULL,
              "Flags are read from a YAML file, too: max_queue: 100, api_key: [A, B]. The command line wins."),
    FLAG_TEXT(O, host, "host", "ADDRESS", "127.0.0.1", "The address to listen at."),
    FLAG_INT(O, port, "port", "PORT", 0, 65535, "8000", "The port; 0 takes a free one and says which."),
    FLAG_CALL(take_key, "api-key", "KEY", "those of KERNELRL_API_KEYS, with commas between them",
              "Clients must show one of the keys. \"NAME KEY\" gives it a name for logs and metrics.", .repeats = true),
    FLAG_TEXT(O, key_file, "api-key-file", "FILE", NULL, "The file holds further keys, a line each."),
    FLAG_BOOL(O, no_key, "insecure-no-key", "Without a key the server may listen elsewhere than on loopback."),
    FLAG_BOOL(O, admin, "admin",
              "Who may use the server may also load and unload adapters, pause it, and end requests of others."),
    FLAG_CALL(take_admin_key, "admin-key", "KEY", NULL, "Who shows this key may do that.", .repeats = true),
    FLAG_TEXT(O, adapter_dir, "adapter-dir", "DIR", NULL, "Adapters that clients load lie in this folder."),
    FLAG_CALL(take_host, "allowed-host", "NAME", NULL,
              "Without a key and on loopback, requests may call the server by this name, too.", .repeats = true),
    FLAG_CALL(take_origin, "cors-origin", "URL", NULL, "Pages of this origin may call the server.", .repeats = true),
    FLAG_TEXT(O, runs_dir, "dashboard", "DIR", NULL,
              "The page at /dashboard shows the runs in this folder (docs/dashboard.md); its data need a key where "
              "there are keys."),
    FLAG_BOOL(O, metrics_open, "metrics-open", "/metrics needs no key."),
    FLAG_SECTION("Training"),
    FLAG_TEXT(O, tinker.dir, "tinker", "DIR", NULL,
              "Clients of the Tinker protocol train and sample at /api/v1; their checkpoints lie in this folder. "
              "docs/tinker.md has what is understood."),
    FLAG_TEXT(O, tinker.tokenizer, "tinker-tokenizer", "NAME", "the model's folder",
              "Those clients are told to load this tokenizer: a folder of theirs, or a name on the Hub."),
    FLAG_INT(O, tinker.max_models, "tinker-models", "N", 1, 100000, "64", "They train so many models at a time."),
    FLAG_INT(O, tinker.max_awake, "tinker-awake", "N", 1, 10000, "8",
             "So many of these are on the device; the others rest in host memory."),
    FLAG_INT(O, tinker.rest_bytes, "tinker-rest", "BYTES", 0, INT64_MAX, "536870912",
             "Samplers at rest take so much host memory; more of them lie in files, DIR/resting."),
    FLAG_INT(O, tinker.key_models, "tinker-key-models", "N", 1, 100000, "16",
             "Where there are keys, each of them trains so many models at a time."),
    FLAG_INT(O, tinker.key_tokens, "tinker-key-tokens", "N", 1, INT64_MAX, "33554432",
             "Where there are keys, so many tokens of each may wait to be trained on and sampled; then its clients are "
             "told to wait."),
    FLAG_INT(O, tinker.key_bytes, "tinker-key-bytes", "BYTES", 1, INT64_MAX, "no limit",
             "Where there are keys, no checkpoint is saved for one whose checkpoints take so many bytes."),
    FLAG_INT(O, tinker.keep_s, "tinker-keep", "SECONDS", 0, 86400, "300",
             "Weights and moments of a model are written down so often: a restart computes again what came since."),
    FLAG_INT(O, tinker.train_tokens, "train-tokens", "N", 1, 1 << 30, "8192",
             "So many tokens are trained on at once, where one text allows; more take more memory."),
    FLAG_SECTION("Limits"),
    FLAG_INT(O, serve.max_queue, "max-queue", "N", 1, 1000000, "1024",
             "So many sequences may wait; further requests get 429."),
    FLAG_FLOAT(O, serve.max_wait_s, "max-wait", "SECONDS", 0.1, 1e6, "600",
               "A request waits so long for its first token, then gets 503."),
    FLAG_INT(O, serve.max_len, "max-len", "N", 2, INT32_MAX, "what the model can",
             "A prompt and its answer have so many tokens together at most."),
    FLAG_INT(O, serve.max_n, "max-n", "N", 1, 4096, "128", "A request has so many answers to a prompt at most."),
    FLAG_INT(O, serve.max_samples, "max-sequences", "N", 1, 65536, "4096",
             "A request has so many prompts times answers at most."),
    FLAG_INT(O, serve.max_logprobs, "max-logprobs", "K", 0, MAX_LOGPROBS, "20",
             "A request gets so many log-probabilities a token at most."),
    FLAG_BOOL(O, serve.strict_length, "strict-length",
              "A request whose max_tokens does not fit the context is refused; otherwise its answer is shorter."),
    FLAG_INT(O, max_body, "max-body", "BYTES", 1024, INT64_MAX, "16777216", "A request's body has so many bytes."),
    FLAG_INT(O, max_bodies, "max-bodies", "BYTES", 1024, INT64_MAX, "268435456",
             "All bodies that are being read have so many bytes together."),
    FLAG_INT(O, max_connections, "max-connections", "N", 1, 1000000, "10000", "So many connections may be open."),
    FLAG_FLOAT(O, header_s, "header-timeout", "SECONDS", 0.1, 3600, "10", "A request's head comes within this time."),
    FLAG_FLOAT(O, body_s, "body-timeout", "SECONDS", 0.1, 3600, "60",
               "A request's body comes within this time, and at 1 KiB a second or faster."),
    FLAG_FLOAT(O, idle_s, "idle-timeout", "SECONDS", 0.1, 3600, "75",
               "A connection waits so long for its next request."),
    FLAG_FLOAT(O, write_s, "write-timeout", "SECONDS", 0.1, 3600, "60",
               "A client that reads nothing so long is cut off."),
    FLAG_FLOAT(O, drain_s, "drain-timeout", "SECONDS", 0, 86400, "30",
               "After SIGTERM or Ctrl-C what is admitted may take so long; a second one ends it."),
    FLAG_SECTION("Log"),
    FLAG_TEXT(O, access_log, "access-log", "FILE", "standard error",
              "A JSON line a request goes to this file; \"off\": none is written."),
    FLAG_BOOL(O, log_all, "log-all", "/health and /metrics are in it, too."),
};
#undef O

const struct args_command serve_command = {
    .name = "serve",
    .usage = "--model MODEL [FLAG]...\n--model MODEL --verify [FLAG]...\n--verify-only [FLAG]...",
    .about = "Serves a model and its adapters to clients of the OpenAI API, and verdicts to trainers.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .notes = "POST /v1/completions, /v1/chat/completions, /v1/embeddings; GET /v1/models, /health, /metrics; "
             "docs/serving.md has the others, docs/verdict-service.md those of --verify.",
};

/* ---- keys ---------------------------------------------------------------------------------------------------------*/

/* Adds the parts of a text between separators; the text is cut up. */
static enum status add_parts(struct list *l, char *text, const char *separators, struct err *e) {
    char *rest = NULL;
    for (char *p = strtok_r(text, separators, &rest); p; p = strtok_r(NULL, separators, &rest)) {
        while (*p == ' ') p++;
        size_t n = strlen(p);
        while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\r')) p[--n] = 0;
        if (n > 0) TRY(add_text(l, p, e));
    }
    return ST_OK;
}

/* *texts own what the list points to. */
static enum status find_keys(struct serve_command_options *o, char *texts[2], struct err *e) {
    const char *given = getenv("KERNELRL_API_KEYS");
    if (given) {
        texts[0] = xstrdup(given);
        TRY(add_parts(&o->keys, texts[0], ",", e));
    }
    if (!o->key_file) return ST_OK;
    size_t n;
    TRY(fs_read(o->key_file, 1 << 20, &texts[1], &n, e));
    const size_t before = o->keys.n;
    TRY(add_parts(&o->keys, texts[1], "\n", e));
    return o->keys.n > before ? ST_OK : FAIL(e, ST_CONFIG, "--api-key-file: %s has no key", o->key_file);
}

/* ---- signals ------------------------------------------------------------------------------------------------------*/

struct stopper {
    struct http_server *http;
    int fd;
};

/* http_fd_fn */
static void on_signal(void *ctx) {
    struct stopper *s = ctx;
    struct signalfd_siginfo info;
    if (read(s->fd, &info, sizeof info) != sizeof info) return;
    log_info(http_draining(s->http) ? "stopping at once"
                                    : "stopping when what is admitted has ended; once more to stop at once");
    http_drain(s->http);
}

/* The signals that end the server are read by its loop, so no thread may be interrupted by them. */
static int open_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* Tells systemd, where it has asked to be told (sd_notify). */
static void notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || !*path || strlen(path) >= sizeof a.sun_path) return;
    memcpy(a.sun_path, path, strlen(path));
    if (*path == '@') a.sun_path[0] = 0;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    const socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, n) < 0)
        log_debug("NOTIFY_SOCKET: not told");
    close(fd);
}

/* ---- the command --------------------------------------------------------------------------------------------------*/

static enum status open_log(const char *name, int *fd, struct err *e) {
    *fd = STDERR_FILENO;
    if (!name || strcmp(name, "-") == 0) return ST_OK;
    *fd = -1;
    if (strcmp(name, "off") == 0) return ST_OK;
    *fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return *fd >= 0 ? ST_OK : FAIL(e, ST_IO, "--access-log: %s cannot be written", name);
}

/* The host as it stands in an address: [::1]. */
static const char *shown_host(const struct serve_command_options *o) {
    static char text[300];
    snprintf(text, sizeof text, strchr(o->host, ':') ? "[%s]" : "%s", o->host);
    return text;
}

/* What is served: a model, verdicts, or both. */
struct served {
    struct serve *model;
    struct tinker *tinker; /* NULL: the model's clients do not train */
    struct serve_verify *verify;
    struct dashboard *dashboard; /* NULL: no runs are shown */
};
enum { FRONTS_MAX = 5 };

static bool is_ready(const struct served *s) { return !s->model || serve_ready(s->model); }

static enum status run_loop(const struct served *s, struct http_server *http, const struct serve_command_options *o,
                            struct err *e) {
    bool ready = false;
    while (!http_drained(http)) {
        TRY(http_step(http, 250, e));
        if (s->tinker) tinker_tick(s->tinker);
        if (ready || !is_ready(s)) continue;
        ready = true;
        log_info("%s is ready at http://%s:%d/v1", s->model ? o->model : "the verdict service", shown_host(o),
                 http_port(http));
        notify("READY=1");
    }
    notify("STOPPING=1");
    return ST_OK;
}

static enum status attach(const struct served *s, struct http_server *http, struct err *e) {
    if (s->model) TRY(serve_attach(s->model, http, e));
    if (s->verify) TRY(verdicts_attach(serve_verify_service(s->verify), http, e));
    return s->dashboard ? dashboard_attach(s->dashboard, http, e) : ST_OK;
}

static enum status serve_with(const struct served *s, const struct serve_command_options *o, struct err *e) {
    struct http_front front[FRONTS_MAX];
    size_t n = 0;
    if (s->model) front[n++] = serve_front(s->model);
    if (s->tinker) front[n++] = tinker_front(s->tinker);
    if (s->verify) front[n++] = verdicts_front(serve_verify_service(s->verify));
    if (s->verify) front[n++] = verdicts_gyms_front(serve_verify_service(s->verify));
    if (s->dashboard) front[n++] = dashboard_front(s->dashboard);
    struct http_options h = {.host = o->host,
                             .port = o->port,
                             .keys = o->keys.item,
                             .n_keys = o->keys.n,
                             .admin_keys = o->admin_keys.item,
                             .n_admin_keys = o->admin_keys.n,
                             .admin = o->admin,
                             .no_key = o->no_key,
                             .metrics_open = o->metrics_open,
                             .origins = o->origins.item,
                             .n_origins = o->origins.n,
                             .hosts = o->hosts.item,
                             .n_hosts = o->hosts.n,
                             .max_connections = o->max_connections,
                             .max_body = o->max_body,
                             .max_bodies = o->max_bodies,
                             .header_s = o->header_s,
                             .body_s = o->body_s,
                             .idle_s = o->idle_s,
                             .write_s = o->write_s,
                             .drain_s = o->drain_s,
                             .log_all = o->log_all,
                             .front = front,
                             .n_fronts = n};
    struct stopper stop = {.fd = open_signals()};
    TRY(open_log(o->access_log, &h.log_fd, e));
    enum status st = http_server_open(&h, &stop.http, e);
    if (st == ST_OK) {
        log_info("listening at http://%s:%d", shown_host(o), http_port(stop.http));
        st = http_watch_fd(stop.http, stop.fd, on_signal, &stop, e);
        if (st == ST_OK) st = attach(s, stop.http, e);
        if (st == ST_OK) st = run_loop(s, stop.http, o, e);
        http_server_close(stop.http);
    }
    if (h.log_fd > STDERR_FILENO) close(h.log_fd);
    close(stop.fd);
    return st;
}

/* Says their paths from the root on: clients are told what fails without those (http_tell_without_paths). */
static enum status check_adapters(struct serve_command_options *o, struct err *e) {
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) return FAIL(e, ST_IO, "the working directory: %s", strerror(errno));
    for (size_t i = 0; i < o->adapters.n; i++) {
        struct serve_name *a = &o->adapters.item[i];
        CLEANUP_FREE char *config = fs_join(a->value, "adapter_config.json");
        if (!fs_is_file(config)) return FAIL(e, ST_CONFIG, "--adapter %s: there is no %s", a->name, config);
        if (*a->value != '/') a->value = arena_printf(&o->mem, "%s/%s", here, a->value);
    }
    return ST_OK;
}

static int prefill_on(const struct serve_command_options *o) {
    if (o->prefill_tokens > 0) return o->prefill_tokens;
    return strcmp(o->device, "cpu") == 0 ? ENGINE_PREFILL_SERVED_CPU : ENGINE_PREFILL;
}

/* Makes the folder of --tinker, and says its path from the root on. */
static enum status make_tinker_dir(struct serve_command_options *o, struct err *e) {
    char path[PATH_MAX];
    TRY(fs_mkdirs(o->tinker.dir, e));
    if (!realpath(o->tinker.dir, path)) return FAIL(e, ST_IO, "%s: %s", o->tinker.dir, strerror(errno));
    o->tinker.dir = arena_strdup(&o->mem, path);
    return ST_OK;
}

/* Puts together what the flags and the model's folder say. */
static enum status gather(struct serve_command_options *o, const struct serve_model *m, struct err *e) {
    struct serve_options *s = &o->serve;
    for (size_t i = 0; i < m->n_adapters; i++) {
        if (o->adapters.n == MAX_LIST) return FAIL(e, ST_CONFIG, "%s: more than %d adapters", o->model, MAX_LIST);
        o->adapters.item[o->adapters.n++] = m->adapters[i];
    }
    s->policy =
        (struct policy_options){.model = {"--model", m->base, m->revision, HUB_MODEL},
                                .start = {"--model", m->start, NULL, HUB_CHECKPOINT},
                                .device = o->device,
                                .weights = {.dtype = o->dtype, .base_dtype = o->base_dtype, .frozen = true},
                                .style = o->renderer ? o->renderer : m->renderer,
                                .thinking = o->thinking,
                                .no_chat = true,
                                .engine = {.memory_bytes = o->kv_memory,
                                           .max_batch = o->max_batch > 0 ? o->max_batch : engine_batch_on(o->device),
                                           .prefill_tokens = prefill_on(o)}};
    if (o->tinker.dir) { /* samplers of clients that train come by the hundred */
        TRY(make_tinker_dir(o, e));
        o->rest_dir = fs_join(o->tinker.dir, "resting");
        s->policy.engine.adapter_dir = o->rest_dir;
        s->policy.engine.adapter_host_bytes = o->tinker.rest_bytes;
    }
    s->adapters = o->adapters.item;
    s->n_adapters = o->adapters.n;
    s->aliases = o->aliases.item;
    s->n_aliases = o->aliases.n;
    s->preferred = m->preferred;
    s->adapter_dir = o->adapter_dir;
    s->processed_logprobs = o->logprobs_mode == 1;
    s->inline_reasoning = o->reasoning == 1;
    s->embeddings = (enum serve_pooling)o->embeddings;
    if (m->start) { /* full weights go by the name of their run */
        static struct serve_name run;
        run = (struct serve_name){o->model, m->base};
        if (s->n_aliases == MAX_LIST) return FAIL(e, ST_CONFIG, "more than %d aliases", MAX_LIST);
        o->aliases.item[s->n_aliases++] = run;
        s->preferred = o->model;
    }
    return check_adapters(o, e);
}

/* Opens what is to be served. */
static enum status open_served(struct serve_command_options *o, struct pool *pool, struct serve_model *model,
                               struct served *s, struct err *e) {
    const bool verify = o->verify.on || o->verify.only;
    if (o->model) TRY(serve_model_find(o->model, model, e));
    if (o->model) TRY(gather(o, model, e));
    o->serve.policy.pool = pool;
    if (verify) TRY(serve_verify_open(&o->verify, o->host, o->model ? o->device : NULL, &s->verify, e));
    if (verify) o->serve.aside = serve_verify_aside(s->verify);
    if (o->model) TRY(serve_open(&o->serve, &s->model, e));
    if (o->tinker.dir) TRY(tinker_open(&o->tinker, s->model, &s->tinker, e));
    return o->runs_dir ? dashboard_open(o->runs_dir, &s->dashboard, e) : ST_OK;
}

/* Weights of adapters come and go for as long as clients train. Blocks of this size go back to the system when they are
 * freed, up to so many at a time. Left alone, the C library raises its limit and takes such blocks from heaps, where
 * freed ones leave holes that the process keeps. */
static void return_large_blocks(void) {
    enum { LARGE_BLOCK = 128 << 10, MOST_BLOCKS = 16384 };
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
    mallopt(M_MMAP_MAX, MOST_BLOCKS);
}

static enum status run(struct serve_command_options *o, struct err *e) {
    struct serve_model model = {0};
    struct served s = {0};
    char *texts[2] = {NULL, NULL};
    const int signals = open_signals(); /* before there are threads */
    if (signals >= 0) close(signals);
    if (o->tinker.dir) return_large_blocks();
    struct pool *pool = o->model ? pool_create(o->threads) : NULL;
    enum status st = find_keys(o, texts, e);
    o->tinker.n_keys = (int)(o->keys.n + o->admin_keys.n);
    if (st == ST_OK) st = open_served(o, pool, &model, &s, e);
    if (st == ST_OK) st = serve_with(&s, o, e);
    if (st == ST_OK && s.model && serve_failed(s.model, e)) st = e->code;
    if (st == ST_OK && s.model && !serve_ready(s.model)) _exit(0); /* it is being loaded, which nothing can cut short */
    dashboard_close(s.dashboard);
    tinker_close(s.tinker);
    serve_close(s.model);
    serve_verify_close(s.verify);
    if (pool) pool_destroy(pool);
    free(o->rest_dir);
    serve_model_free(&model);
    free(texts[0]);
    free(texts[1]);
    return st;
}

static const struct serve_command_options usual = {
    .device = "cpu",
    .host = "127.0.0.1",
    .port = 8000,
    .header_s = 10,
    .body_s = 60,
    .idle_s = 75,
    .write_s = 60,
    .drain_s = 30,
    .verify = {.jobs = "verify-jobs.sqlite", .max_jobs = 10000, .problems = SERVE_PROBLEMS_AUTO}};

/* Refuses a flag that means nothing to what is served. Returns 0, or the exit code. */
static int check_flags(const struct args *given, const struct serve_command_options *o) {
    static const char *const of_verdicts[] = {"verify-config", "verify-backend", "problem-source", "problems",
                                              "jobs",          "max-jobs",       "verify-hosts",   "verify-class"};
    static const char *const of_model[] = {"adapter",     "alias",      "max-adapters", "renderer",       "thinking",
                                           "reasoning",   "embeddings", "device",       "logprobs-mode",  "dtype",
                                           "base-dtype",  "kv-memory",  "max-batch",    "prefill-tokens", "threads",
                                           "adapter-dir", "tinker"};
    static const char *const of_tinker[] = {"tinker-tokenizer", "tinker-models",     "tinker-awake",
                                            "tinker-keep",      "tinker-key-models", "tinker-key-tokens",
                                            "tinker-key-bytes", "tinker-rest",       "train-tokens"};
    if (!o->model && !o->verify.only) return args_wrong(&serve_command, given, "--model is needed");
    if (o->model && o->verify.only)
        return args_wrong(&serve_command, given, "--verify-only: there is no model with it; --verify has both");
    for (size_t i = 0; i < ARRAY_LEN(of_verdicts) && !o->verify.on && !o->verify.only; i++)
        if (args_has(&serve_command, given, of_verdicts[i]))
            return args_wrong(&serve_command, given, "--%s means nothing without --verify", of_verdicts[i]);
    for (size_t i = 0; i < ARRAY_LEN(of_tinker) && !o->tinker.dir; i++)
        if (args_has(&serve_command, given, of_tinker[i]))
            return args_wrong(&serve_command, given, "--%s means nothing without --tinker", of_tinker[i]);
    for (size_t i = 0; i < ARRAY_LEN(of_model) && o->verify.only; i++)
        if (args_has(&serve_command, given, of_model[i]))
            return args_wrong(&serve_command, given, "--%s means nothing with --verify-only", of_model[i]);
    return 0;
}

int cmd_serve(int argc, char **argv) {
    const struct args_command *c = &serve_command;
    struct serve_command_options *o = xmalloc(sizeof *o);
    struct args given;
    struct args_file file = {0};
    struct err e = {0};
    int code = 1;
    *o = usual;
    o->serve = serve_defaults;
    o->tinker = tinker_defaults;
    if (!args_parse(c, argc, argv, o, &given)) {
        code = given.code;
    } else if (o->config && args_file_load(c, o->config, &given, argc, argv, &file, &e) != ST_OK) {
        code = args_report(&e);
    } else {
        arena_free(&o->mem);
        *o = usual;
        o->serve = serve_defaults;
        o->tinker = tinker_defaults;
        if (file.argc > 0 ? !args_parse(c, file.argc, file.argv, o, &given) : !args_parse(c, argc, argv, o, &given))
            code = given.code;
        else if ((code = check_flags(&given, o)) == 0)
            code = run(o, &e) == ST_OK ? 0 : args_report(&e);
    }
    args_file_free(&file);
    arena_free(&o->mem);
    free(o);
    return code;
}
