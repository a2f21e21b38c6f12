#include "cli/runs_dashboard.h"

#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "dashboard/dashboard.h"

struct served_page {
    struct http_server *http;
    int signals;
};

/* http_fd_fn */
static void on_signal(void *ctx) {
    struct served_page *s = ctx;
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof info) == sizeof info) http_drain(s->http);
}

static enum status serve_page(struct served_page *s, struct dashboard *d, struct err *e) {
    TRY(dashboard_attach(d, s->http, e));
    TRY(http_watch_fd(s->http, s->signals, on_signal, s, e));
    printf("http://127.0.0.1:%d/dashboard\n", http_port(s->http));
    fflush(stdout);
    return http_run(s->http, e);
}

enum status runs_dashboard(const char *runs_dir, int port, struct err *e) {
    struct served_page s = {0};
    struct dashboard *d;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before there are threads */
    s.signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s.signals < 0) return FAIL(e, ST_IO, "signals cannot be waited for");
    enum status st = dashboard_open(runs_dir, &d, e);
    if (st == ST_OK) {
        const struct http_front front = dashboard_front(d);
        const struct http_options o = {.port = port, .log_fd = -1, .drain_s = 1, .front = &front, .n_fronts = 1};
        st = http_server_open(&o, &s.http, e);
        if (st == ST_OK) st = serve_page(&s, d, e);
        http_server_close(s.http);
        dashboard_close(d);
    }
    close(s.signals);
    return st;
}
