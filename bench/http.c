/* What the HTTP layer alone adds to a streamed token: a thread writes the time into N streams every BEAT milliseconds,
 * as an engine would after a step, and a client in another process reads when it gets there. Usage: build/bench/http
 * [STREAMS [BEAT_MS [SECONDS]]]. Prints one JSON object: latencies in milliseconds, and the processor time that a token
 * took in the server's thread in microseconds. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "http/http.h"

enum { MOST = 4096 };

static struct {
    struct http_exchange *x;
    bool due;
} stream[MOST];
static int n_streams;
static int64_t tokens;
static _Atomic int64_t beat_ns; /* the time of the last beat */
static atomic_bool quit;
static int event_fd;

/* ---- the server ---------------------------------------------------------------------------------------------------*/

static enum http_more more(struct http_exchange *x, struct str *out) {
    bool *due = http_state(x);
    if (!*due) return HTTP_WAIT;
    *due = false;
    tokens++;
    str_addf(out,
             "data: {\"id\":\"cmpl-0123456789abcdef01234567\",\"object\":\"text_completion\",\"created\":1700000000,"
             "\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":null}],"
             "\"at\":%lld}\n\n",
             (long long)beat_ns);
    return HTTP_MORE;
}

static void begin(void *ctx, struct http_exchange *x) {
    (void)ctx;
    stream[n_streams].x = x;
    http_set_state(x, &stream[n_streams].due);
    n_streams++;
    http_stream(x, 200, "text/event-stream", NULL, more);
}

static void wake_all(void *ctx) {
    uint64_t n;
    (void)ctx;
    if (read(event_fd, &n, sizeof n) < 0) return;
    for (int i = 0; i < n_streams; i++) {
        stream[i].due = true;
        http_wake(stream[i].x);
    }
}

static void *beat(void *ms) {
    const uint64_t one = 1;
    const struct timespec pause = {0, *(const int *)ms * 1000000L};
    while (!atomic_load(&quit)) {
        nanosleep(&pause, NULL);
        beat_ns = clock_now_ns();
        if (write(event_fd, &one, sizeof one) < 0) break;
    }
    return NULL;
}

/* ---- the client ---------------------------------------------------------------------------------------------------*/

static int join(int port) {
    static const char request[] = "GET /s HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0 ||
        write(fd, request, sizeof request - 1) != (ssize_t)sizeof request - 1) {
        perror("connect");
        _exit(1);
    }
    return fd;
}

/* Reads for so many seconds, and writes the latencies seen to the pipe. */
static void client(int port, int n, double seconds, int out) {
    const int epoll = epoll_create1(0);
    for (int i = 0; i < n; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.fd = join(port)};
        epoll_ctl(epoll, EPOLL_CTL_ADD, ev.data.fd, &ev);
    }
    const double from = clock_now_s();
    while (clock_now_s() - from < seconds) {
        struct epoll_event ev[256];
        const int got = epoll_wait(epoll, ev, 256, 100);
        for (int i = 0; i < got; i++) {
            char buf[8192];
            const ssize_t k = recv(ev[i].data.fd, buf, sizeof buf - 1, 0);
            if (k <= 0) _exit(1);
            buf[k] = 0;
            const char *at = strstr(buf, "\"at\":");
            if (!at || clock_now_s() - from < 0.5) continue; /* the first half second warms up */
            const double ms = (double)(clock_now_ns() - strtoll(at + 5, NULL, 10)) * 1e-6;
            if (write(out, &ms, sizeof ms) != sizeof ms) _exit(1);
        }
    }
    _exit(0);
}

/* ---- both ---------------------------------------------------------------------------------------------------------*/

static double thread_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec) * 1e-6;
}

static void run(int n, int ms, double seconds) {
    static const struct http_route route = {.method = "GET", .path = "/s", .access = HTTP_OPEN, .begin = begin};
    const struct http_front front = {.name = "bench", .route = &route, .n_routes = 1};
    const struct http_options o = {.log_fd = -1, .front = &front, .n_fronts = 1};
    struct http_server *s;
    struct err e;
    int out[2];
    pthread_t t;
    event_fd = eventfd(0, EFD_NONBLOCK);
    if (http_server_open(&o, &s, &e) != ST_OK || http_watch_fd(s, event_fd, wake_all, NULL, &e) != ST_OK ||
        pipe(out) != 0) {
        fprintf(stderr, "http: %s\n", e.msg);
        exit(1);
    }
    const pid_t child = fork();
    if (child == 0) client(http_port(s), n, seconds, out[1]);
    close(out[1]);
    pthread_create(&t, NULL, beat, &ms);
    double *v = xmalloc((size_t)(seconds * 1e3 / ms + 10) * (size_t)n * sizeof *v);
    size_t got = 0;
    for (struct pollfd p = {.fd = out[0], .events = POLLIN};;) {
        if (http_step(s, 10, &e) != ST_OK) break;
        if (poll(&p, 1, 0) != 1) continue;
        const ssize_t k = read(out[0], v + got, 512 * sizeof *v);
        if (k <= 0) break;
        got += (size_t)k / sizeof *v;
    }
    atomic_store(&quit, true);
    pthread_join(t, NULL);
    waitpid(child, NULL, 0);
    qsort(v, got, sizeof *v, ascending_f64);
    printf(
        "{\"streams\": %d, \"tokens\": %lld, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"cpu_us\": %.2f}\n",
        n, (long long)tokens, v[got / 2], v[got * 99 / 100], v[got - 1], thread_seconds() / (double)tokens * 1e6);
    http_server_close(s);
    free(v);
}

int main(int argc, char **argv) {
    int64_t v[3] = {200, 20, 5};
    bool fine = argc <= 4;
    for (int i = 1; i < argc && fine; i++) fine = parse_i64(argv[i], &v[i - 1]) && v[i - 1] >= 1 && v[i - 1] <= MOST;
    if (!fine) return fprintf(stderr, "usage: http [STREAMS [BEAT_MS [SECONDS]]]\n"), 2;
    run((int)v[0], (int)v[1], (double)v[2]);
    return 0;
}
