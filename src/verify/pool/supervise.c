#include "verify/pool/supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "verify/pool/lines.h"

static volatile sig_atomic_t told_to_end;
static void on_term(int sig) {
    (void)sig;
    told_to_end = 1;
}

struct supervisor {
    struct crew *crew;
    int in, out;
    bool gone; /* true: the parent has gone */
};

static void up(void *ctx, const struct pool_message *m, const char *line, size_t n) {
    struct supervisor *s = ctx;
    (void)m;
    if (s->gone || (fs_write_all(s->out, line, n) && fs_write_all(s->out, "\n", 1))) return;
    s->gone = true;
}

static void say(struct supervisor *s, const struct str *line) { s->gone |= !fs_write_all(s->out, line->p, line->len); }

static void take_line(struct supervisor *s, const char *line, size_t n) {
    CLEANUP_STR struct str reply = STR_INIT;
    struct pool_message m;
    struct err e;
    if (pool_message_read(line, n, "kernelrl verify-worker: standard input", &m, &e) != ST_OK) {
        pool_put_refused(NULL, 0, "line", NULL, NULL, e.msg, &reply);
        say(s, &reply);
    } else if (m.type == MESSAGE_JOB)
        crew_job(s->crew, &m, line, n);
    else if (m.type == MESSAGE_OPEN)
        crew_terms(s->crew, &m, line, n);
    else if (m.type == MESSAGE_CANCEL)
        crew_cancel(s->crew, &m, line, n);
    else if (m.type == MESSAGE_DRAIN)
        crew_drain(s->crew, "it was told to");
    pool_message_free(&m);
}

static void read_lines(struct supervisor *s, struct line_reader *r) {
    char bytes[1 << 16], *line, size[24], most[24];
    uint64_t n;
    const ssize_t got = read(s->in, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
        s->gone = true;
        return;
    }
    line_reader_feed(r, bytes, (size_t)got);
    for (enum line_kind k; (k = line_reader_next(r, &line, &n)) != LINE_NONE;) {
        if (k == LINE_WHOLE) {
            take_line(s, line, (size_t)n);
            continue;
        }
        CLEANUP_STR struct str reply = STR_INIT;
        snprintf(size, sizeof size, "%llu", (unsigned long long)n);
        snprintf(most, sizeof most, "%d", PROTOCOL_LINE_BYTES);
        pool_put_refused(NULL, 0, "size", most, size, "a line of more bytes than a job may have", &reply);
        say(s, &reply);
    }
}

static void beat(struct supervisor *s, double beat_s, double *next) {
    const double now = clock_now_s();
    CLEANUP_STR struct str line = STR_INIT;
    if (now < *next || !crew_hello(s->crew)) return;
    *next = now + beat_s;
    pool_put_beat(crew_jobs(s->crew), crew_probe(s->crew), &line);
    say(s, &line);
}

int supervise_run(const struct crew_options *o, int in, int out, double beat_s) {
    struct supervisor s = {.in = in, .out = out};
    struct err e;
    double next = 0;
    struct sigaction sa = {.sa_handler = on_term};
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (crew_start(o, up, &s, &s.crew, &e) != ST_OK) {
        CLEANUP_STR struct str line = STR_INIT;
        pool_put_refused(NULL, 0, "slots", NULL, NULL, e.msg, &line);
        say(&s, &line);
        log_error("%s", e.msg);
        return 1;
    }
    struct line_reader r = line_reader_make(PROTOCOL_LINE_BYTES);
    bool drain_said = false;
    while (!s.gone && !crew_has_ended(s.crew)) {
        struct pollfd p = {.fd = in, .events = POLLIN};
        crew_step(s.crew, &p, 1, beat_s / 2);
        if (p.revents) read_lines(&s, &r);
        if (told_to_end && !drain_said) {
            CLEANUP_STR struct str line = STR_INIT;
            drain_said = true;
            pool_put_draining("it was asked to end (SIGTERM)", &line);
            say(&s, &line);
            crew_drain(s.crew, "it was asked to end (SIGTERM)");
        }
        beat(&s, beat_s, &next);
    }
    line_reader_free(&r);
    crew_close(s.crew);
    return s.gone;
}
