/* Load for `kernelrl serve`, and the engine without it: what a server costs.
 *   build/bench/serve engine MODEL N IN OUT [ROUNDS]          engine_run of N requests, all at once
 *   build/bench/serve http PORT [KEY=VALUE]...                 N connections that ask one request after another
 * Keys of http: n=64 (connections), in=128, out=128 (tokens), requests=N, seconds=0 (instead of a number of requests),
 * stream=1, logprobs=-1, same=0 (1: all requests are alike), path=/v1/completions, seed=0, ids=FILE (a line a request:
 * its number and a hash of its token ids). Each prints one JSON object. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/str.h"
#include "policy/policy.h"

enum { VOCAB = 2000 }; /* ids below are ordinary tokens of the embedded model */

static void fill_prompt(int32_t *ids, int n, uint64_t number) {
    struct rng r = rng_make(7, number);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&r, VOCAB);
}

/* ---- the engine alone ---------------------------------------------------------------------------------------------*/

static int run_engine(int argc, char **argv) {
    if (argc < 6) return 2;
    const int n = atoi(argv[3]), in = atoi(argv[4]), out = atoi(argv[5]), rounds = argc > 6 ? atoi(argv[6]) : 1;
    struct policy p;
    struct err e;
    const struct policy_options o = {.model = {"model", argv[2], NULL, HUB_MODEL},
                                     .device = "cpu",
                                     .weights = {.frozen = true},
                                     .engine.max_batch = ENGINE_BATCH_CPU};
    if (policy_open(&o, NULL, &p, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    struct request *req = xcalloc((size_t)n, sizeof *req);
    struct sample *s = xcalloc((size_t)n, sizeof *s);
    int32_t *ids = xmalloc((size_t)n * (size_t)in * sizeof *ids);
    double best = 0;
    for (int r = 0; r < rounds; r++) {
        int64_t tokens = 0;
        for (int i = 0; i < n; i++) {
            fill_prompt(ids + (size_t)i * (size_t)in, in, (uint64_t)(r * n + i));
            req[i] = (struct request){.prompt = ids + (size_t)i * (size_t)in,
                                      .n_prompt = in,
                                      .n_samples = 1,
                                      .params = {.temperature = 1, .top_p = 1, .max_tokens = out, .seed = (uint64_t)i}};
        }
        const double t = clock_now_s();
        if (engine_run(p.engine, req, n, s, NULL, NULL, &e) != ST_OK) {
            fprintf(stderr, "%s\n", e.msg);
            return 1;
        }
        const double took = clock_now_s() - t;
        for (int i = 0; i < n; i++) {
            tokens += s[i].n;
            sample_free(&s[i]);
        }
        if ((double)tokens / took > best) best = (double)tokens / took;
    }
    printf("{\"tokens_per_s\": %.1f}\n", best);
    free(req);
    free(s);
    free(ids);
    policy_close(&p);
    return 0;
}

/* ---- load ---------------------------------------------------------------------------------------------------------*/

struct load {
    int port, n, in, out, stream, logprobs, same;
    int64_t requests, seed;
    double seconds;
    const char *path;
    FILE *ids;
    /* so far */
    int64_t begun, ended, failed, tokens;
    double *first, *between, *whole; /* samples of latencies, s */
    size_t n_first, n_between, n_whole, cap;
    int epoll_fd;
};
struct client {
    int fd;
    int64_t number;
    double began, last;
    bool busy, any;
    struct str in;
    size_t scanned;
    uint64_t hash;
    int64_t tokens;
};

static void note(struct load *l, double **list, size_t *n, double v) {
    if (*n >= l->cap) return;
    (*list)[(*n)++] = v;
}

static int open_connection(const struct load *l) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        perror("connect");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void begin(struct load *l, struct client *c) {
    CLEANUP_STR struct str body = STR_INIT, all = STR_INIT;
    int32_t *ids = xmalloc((size_t)l->in * sizeof *ids);
    c->number = l->begun++;
    fill_prompt(ids, l->in, l->same ? 0 : (uint64_t)(c->number + l->seed));
    str_adds(&body, "{\"prompt\":[");
    for (int i = 0; i < l->in; i++) str_addf(&body, "%s%d", i ? "," : "", ids[i]);
    str_addf(&body, "],\"max_tokens\":%d,\"ignore_eos\":true,\"return_token_ids\":true,\"seed\":%lld,\"stream\":%s",
             l->out, (long long)(l->same ? 0 : c->number + l->seed), l->stream ? "true" : "false");
    if (l->logprobs >= 0) str_addf(&body, ",\"logprobs\":%d", l->logprobs);
    str_addc(&body, '}');
    str_addf(&all,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             l->path, body.len, body.p);
    free(ids);
    str_clear(&c->in);
    c->scanned = 0;
    c->hash = 0;
    c->tokens = 0;
    c->busy = true;
    c->any = false;
    c->began = c->last = clock_now_s();
    for (size_t at = 0; at < all.len;) {
        const ssize_t w = write(c->fd, all.p + at, all.len - at);
        if (w <= 0) {
            perror("write");
            exit(1);
        }
        at += (size_t)w;
    }
}

/* Takes the ids of every complete "token_ids":[...] behind what was looked at. */
static void scan(struct load *l, struct client *c) {
    static const char key[] = "\"token_ids\":[";
    for (;;) {
        const char *from = c->in.p + c->scanned;
        const char *hit = mem_find(from, c->in.len - c->scanned, key, sizeof key - 1);
        if (!hit) {
            const size_t keep = sizeof key; /* a key may be cut */
            if (c->in.len - c->scanned > keep) c->scanned = c->in.len - keep;
            return;
        }
        const char *p = hit + sizeof key - 1, *end = memchr(p, ']', c->in.len - (size_t)(p - c->in.p));
        if (!end) {
            c->scanned = (size_t)(hit - c->in.p);
            return;
        }
        const double now = clock_now_s();
        int64_t got = 0;
        while (p < end) {
            const int32_t id = (int32_t)strtol(p, NULL, 10);
            c->hash = hash_bytes(&id, sizeof id, c->hash);
            got++;
            while (p < end && *p != ',') p++;
            if (p < end) p++;
        }
        if (got > 0) {
            if (!c->any)
                note(l, &l->first, &l->n_first, now - c->began);
            else
                note(l, &l->between, &l->n_between, now - c->last);
            c->any = true;
            c->last = now;
            c->tokens += got;
        }
        c->scanned = (size_t)(end - c->in.p);
    }
}

static bool is_whole(const struct client *c) {
    const char *p = c->in.p;
    if (c->in.len < 16) return false;
    const char *head = mem_find(p, c->in.len, "\r\n\r\n", 4);
    if (!head) return false;
    if (memcmp(p + 9, "200", 3) != 0) return true;
    const char *length = mem_find(p, (size_t)(head - p), "Content-Length: ", 16);
    if (length) return c->in.len >= (size_t)(head - p) + 4 + (size_t)strtol(length + 16, NULL, 10);
    return c->in.len >= 5 && memcmp(p + c->in.len - 5, "0\r\n\r\n", 5) == 0;
}

static void finish(struct load *l, struct client *c) {
    const bool fine = memcmp(c->in.p + 9, "200", 3) == 0 && c->tokens == l->out;
    if (!fine && l->failed++ < 3)
        fprintf(stderr, "request %lld: %lld tokens: %.300s\n", (long long)c->number, (long long)c->tokens, c->in.p);
    note(l, &l->whole, &l->n_whole, clock_now_s() - c->began);
    l->tokens += c->tokens;
    l->ended++;
    c->busy = false;
    if (l->ids) fprintf(l->ids, "%lld %016llx\n", (long long)c->number, (unsigned long long)c->hash);
}

static void take(struct load *l, struct client *c) {
    char buf[65536];
    const ssize_t n = recv(c->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        fprintf(stderr, "request %lld: the server closed the connection\n", (long long)c->number);
        l->failed++;
        l->ended++;
        c->busy = false;
        close(c->fd);
        c->fd = open_connection(l);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev);
        return;
    }
    str_add(&c->in, buf, (size_t)n);
    scan(l, c);
    if (c->busy && is_whole(c)) finish(l, c);
}

static double percentile(double *v, size_t n, double p) {
    if (n == 0) return 0;
    qsort(v, n, sizeof *v, ascending_f64);
    size_t at = (size_t)(p * (double)n);
    return v[at < n ? at : n - 1] * 1e3;
}

static void set_key(struct load *l, const char *arg) {
    const char *v = strchr(arg, '=');
    if (!v) return;
    const struct {
        const char *name;
        int *at;
    } ints[] = {
        {"n=", &l->n},      {"in=", &l->in}, {"out=", &l->out}, {"stream=", &l->stream}, {"logprobs=", &l->logprobs},
        {"same=", &l->same}};
    for (size_t i = 0; i < ARRAY_LEN(ints); i++)
        if (str_has_prefix(arg, ints[i].name)) *ints[i].at = atoi(v + 1);
    if (str_has_prefix(arg, "requests=")) l->requests = atoll(v + 1);
    if (str_has_prefix(arg, "seed=")) l->seed = atoll(v + 1);
    if (str_has_prefix(arg, "seconds=")) l->seconds = atof(v + 1);
    if (str_has_prefix(arg, "path=")) l->path = v + 1;
    if (str_has_prefix(arg, "ids=")) l->ids = fopen(v + 1, "w");
}

static void report(struct load *l, double took) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    const double cpu = (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
                       ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec) * 1e-6;
    printf("{\"requests\": %lld, \"failed\": %lld, \"tokens\": %lld, \"seconds\": %.3f, \"tokens_per_s\": %.1f, "
           "\"client_cpu_s\": %.3f",
           (long long)l->ended, (long long)l->failed, (long long)l->tokens, took, (double)l->tokens / took, cpu);
    const struct {
        const char *name;
        double *v;
        size_t n;
    } all[] = {
        {"ttft_ms", l->first, l->n_first}, {"itl_ms", l->between, l->n_between}, {"e2el_ms", l->whole, l->n_whole}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        printf(", \"%s\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}", all[i].name,
               percentile(all[i].v, all[i].n, 0.5), percentile(all[i].v, all[i].n, 0.99),
               percentile(all[i].v, all[i].n, 1));
    printf("}\n");
}

static int run_load(int argc, char **argv) {
    struct load l = {
        .n = 64, .in = 128, .out = 128, .stream = 1, .logprobs = -1, .path = "/v1/completions", .cap = 4 << 20};
    if (argc < 3) return 2;
    l.port = atoi(argv[2]);
    for (int i = 3; i < argc; i++) set_key(&l, argv[i]);
    if (l.requests == 0) l.requests = l.n;
    l.first = xmalloc(l.cap * sizeof(double));
    l.between = xmalloc(l.cap * sizeof(double));
    l.whole = xmalloc(l.cap * sizeof(double));
    l.epoll_fd = epoll_create1(0);
    struct client *c = xcalloc((size_t)l.n, sizeof *c);
    for (int i = 0; i < l.n; i++) {
        c[i].fd = open_connection(&l);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &c[i]};
        epoll_ctl(l.epoll_fd, EPOLL_CTL_ADD, c[i].fd, &ev);
    }
    const double from = clock_now_s();
    int busy = 0;
    do {
        struct epoll_event ev[256];
        busy = 0;
        for (int i = 0; i < l.n; i++) {
            const bool more = l.seconds > 0 ? clock_now_s() - from < l.seconds : l.begun < l.requests;
            if (!c[i].busy && more) begin(&l, &c[i]);
            busy += c[i].busy;
        }
        const int n = busy > 0 ? epoll_wait(l.epoll_fd, ev, 256, 1000) : 0;
        for (int i = 0; i < n; i++) take(&l, ev[i].data.ptr);
    } while (busy > 0);
    report(&l, clock_now_s() - from);
    if (l.ids) fclose(l.ids);
    return l.failed > 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "engine") == 0) return run_engine(argc, argv);
    if (argc > 1 && strcmp(argv[1], "http") == 0) return run_load(argc, argv);
    fprintf(stderr, "usage: serve engine MODEL N IN OUT [ROUNDS] | serve http PORT [KEY=VALUE]...\n");
    return 2;
}
