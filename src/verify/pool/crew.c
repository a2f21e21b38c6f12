#include "verify/pool/crew.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "verify/pool/link.h"
#include "verify/pool/places.h"

enum { TERMS_MAX = 8, FDS_A_SLOT = 3 };
static const double first_pause_s = 0.2, longest_pause_s = 30, hello_s = 60;

struct crew_job {
    char j[33];
    int attempt;
    bool begun, alone;
    double begun_s, budget_s;
    char *line;
    size_t n;
    struct crew_job *next;
};

enum slot_state { SLOT_DOWN, SLOT_STARTING, SLOT_UP, SLOT_REFUSED, SLOT_DRAINING };

struct crew_slot {
    struct line_link link;
    char label[40];
    enum slot_state state;
    double retry_at, pause_s, heard_s, started_s;
    struct crew_job *jobs; /* at hand there */
    double probe;
};

struct kept_terms {
    char run[17];
    char *line;
    size_t n;
};

struct crew {
    struct crew_options o;
    crew_up_fn *up;
    void *ctx;
    struct crew_slot *slot;
    int n, ahead;
    struct crew_job *waiting;
    struct kept_terms terms[TERMS_MAX]; /* the oldest first */
    int n_terms;
    struct pool_message *hello; /* of the first worker that said it */
    bool ready, draining, told_draining;
    char why[LINK_WHY_BYTES];
    struct pollfd *fds;
    int told_slots; /* what `slots` said last */
    double last_step_s;
};

/* ---- jobs ---------------------------------------------------------------------------------------------------------*/

static struct crew_job **find_in(struct crew_job **list, const char *j) {
    while (*list && strcmp((*list)->j, j) != 0) list = &(*list)->next;
    return list;
}

static void append(struct crew_job **list, struct crew_job *job) {
    while (*list) list = &(*list)->next;
    job->next = NULL;
    *list = job;
}

static struct crew_job *take_off(struct crew_job **at) {
    struct crew_job *job = *at;
    *at = job->next;
    job->next = NULL;
    return job;
}

static void free_job(struct crew_job *job) {
    free(job->line);
    free(job);
}

static int count(const struct crew_job *list) {
    int n = 0;
    for (; list; list = list->next) n++;
    return n;
}

static void up_line(struct crew *c, struct str *line) {
    struct pool_message m;
    struct err e;
    line->len--; /* without its newline */
    line->p[line->len] = 0;
    if (pool_message_read(line->p, line->len, "crew", &m, &e) == ST_OK) c->up(c->ctx, &m, line->p, line->len);
    pool_message_free(&m);
}

static void up_about(struct crew *c, enum message_type t, const struct crew_job *job, const char *reason) {
    CLEANUP_STR struct str line = STR_INIT;
    pool_put_about(t, job->j, job->attempt, 1, reason, &line);
    up_line(c, &line);
}

int crew_jobs(const struct crew *c) {
    int n = count(c->waiting);
    for (int i = 0; i < c->n; i++) n += count(c->slot[i].jobs);
    return n;
}

int crew_slots(const struct crew *c) {
    int n = 0;
    for (int i = 0; i < c->n; i++) n += c->slot[i].state == SLOT_UP || c->slot[i].state == SLOT_STARTING;
    return n;
}

int crew_free(const struct crew *c) {
    int n = -count(c->waiting);
    for (int i = 0; i < c->n && !c->draining; i++) n += c->slot[i].state == SLOT_UP && !c->slot[i].jobs;
    return n > 0 ? n : 0;
}

int crew_ahead(const struct crew *c) { return c->ahead; }

bool crew_cares(const struct crew *c, const char *j) {
    const double recent = clock_now_s() - fmin(6, c->o.lease_s);
    for (const struct crew_job *job = c->waiting; job; job = job->next)
        if (strcmp(job->j, j) == 0) return true;
    for (int i = 0; i < c->n; i++)
        for (const struct crew_job *job = c->slot[i].jobs; job; job = job->next)
            if (strcmp(job->j, j) == 0) return c->slot[i].heard_s > recent;
    return false;
}

/* The slot that a job goes to now; NULL: it waits. One that is to be alone wants a slot without any other. */
static struct crew_slot *slot_for(struct crew *c, const struct crew_job *job) {
    struct crew_slot *best = NULL;
    int least = job->alone ? 1 : c->ahead + 1;
    for (int i = 0; i < c->n; i++) {
        struct crew_slot *s = &c->slot[i];
        const int n = count(s->jobs);
        if (s->state != SLOT_UP || n >= least || (s->jobs && s->jobs->alone)) continue;
        best = s;
        least = n;
    }
    return best;
}

static void hand_out(struct crew *c) {
    for (struct crew_job **at = &c->waiting; *at;) {
        struct crew_slot *s = slot_for(c, *at);
        if (!s) {
            at = &(*at)->next;
            continue;
        }
        struct crew_job *job = take_off(at);
        link_send(&s->link, job->line, job->n);
        link_send(&s->link, "\n", 1);
        append(&s->jobs, job);
    }
}

void crew_job(struct crew *c, const struct pool_message *m, const char *line, size_t n) {
    struct crew_job *job = xcalloc(1, sizeof *job);
    snprintf(job->j, sizeof job->j, "%s", m->j);
    job->attempt = m->attempt;
    job->alone = m->job.alone;
    job->budget_s = m->job.budget_s;
    job->line = xstrndup(line, n);
    job->n = n;
    if (c->draining) {
        up_about(c, MESSAGE_RETURNED, job, c->why);
        free_job(job);
        return;
    }
    append(&c->waiting, job);
    hand_out(c);
}

void crew_cancel(struct crew *c, const struct pool_message *m, const char *line, size_t n) {
    struct crew_job **at = m->j ? find_in(&c->waiting, m->j) : &c->waiting;
    if (m->j && *at) {
        struct crew_job *job = take_off(at);
        up_about(c, MESSAGE_RETURNED, job, "nobody wants it any more");
        free_job(job);
        return;
    }
    for (int i = 0; i < c->n; i++) {
        if (m->j && !*find_in(&c->slot[i].jobs, m->j)) continue;
        link_send(&c->slot[i].link, line, n);
        link_send(&c->slot[i].link, "\n", 1);
    }
}

void crew_terms(struct crew *c, const struct pool_message *m, const char *line, size_t n) {
    int at = 0;
    while (at < c->n_terms && strcmp(c->terms[at].run, m->terms.run) != 0) at++;
    if (at == TERMS_MAX) at = 0;
    if (at < c->n_terms) { /* the latest stands last: a worker is ready for that one */
        free(c->terms[at].line);
        memmove(&c->terms[at], &c->terms[at + 1], (size_t)(--c->n_terms - at) * sizeof c->terms[0]);
    }
    struct kept_terms *t = &c->terms[c->n_terms++];
    snprintf(t->run, sizeof t->run, "%s", m->terms.run);
    t->line = xstrndup(line, n);
    t->n = n;
    for (int i = 0; i < c->n; i++) {
        if (c->slot[i].state != SLOT_UP) continue;
        link_send(&c->slot[i].link, line, n);
        link_send(&c->slot[i].link, "\n", 1);
    }
}

/* ---- slots --------------------------------------------------------------------------------------------------------*/

static void tell_slots(struct crew *c) {
    const int n = crew_slots(c);
    if (!c->hello || n == c->told_slots) return;
    CLEANUP_STR struct str line = STR_INIT;
    c->told_slots = n;
    pool_put_slots(n, 1, 0, 0, n > 0 ? NULL : c->why, &line);
    up_line(c, &line);
}

static void slot_start(struct crew *c, struct crew_slot *s) {
    struct err e;
    s->started_s = s->heard_s = clock_now_s();
    if (link_start(&s->link, &e) == ST_OK) {
        s->state = SLOT_STARTING;
        return;
    }
    log_warn("%s", e.msg);
    s->state = SLOT_DOWN;
    s->retry_at = clock_now_s() + s->pause_s;
    s->pause_s = fmin(2 * s->pause_s, longest_pause_s);
    (void)c;
}

/* The process of a slot has ended, or is ended: its jobs go on elsewhere, or are told lost. */
static void slot_down(struct crew *c, struct crew_slot *s, const char *why) {
    char reason[LINK_WHY_BYTES + 80];
    const bool drained = s->state == SLOT_DRAINING, refused = s->state == SLOT_REFUSED;
    link_stop(&s->link, why ? 0 : 0.5);
    snprintf(reason, sizeof reason, "%s: %s", s->label, why ? why : s->link.why);
    while (s->jobs) {
        struct crew_job *job = take_off(&s->jobs);
        if (job->begun || c->draining) {
            up_about(c, job->begun ? MESSAGE_LOST : MESSAGE_RETURNED, job, reason);
            free_job(job);
        } else {
            job->next = c->waiting; /* it came before those that wait */
            c->waiting = job;
        }
    }
    s->state = SLOT_DOWN;
    s->retry_at = clock_now_s() + (drained || refused ? 600 : s->pause_s);
    s->pause_s = fmin(2 * s->pause_s, longest_pause_s);
    if (!drained && !refused && !c->draining) log_warn("%s", reason);
    tell_slots(c);
}

static void keep_hello(struct crew *c, const struct pool_message *m, const char *line, size_t n) {
    struct err ignored;
    if (c->hello) return;
    c->hello = xmalloc(sizeof *c->hello);
    if (pool_message_read(line, n, "crew", c->hello, &ignored) != ST_OK) return; /* it was read before */
    c->hello->slots = c->told_slots = crew_slots(c);
    c->ahead = m->ahead;
    CLEANUP_STR struct str text = STR_INIT;
    pool_put_hello(c->hello, &text);
    up_line(c, &text);
}

static void slot_hello(struct crew *c, struct crew_slot *s, const struct pool_message *m, const char *line, size_t n) {
    s->state = SLOT_UP;
    keep_hello(c, m, line, n);
    for (int i = 0; i < c->n_terms; i++) {
        link_send(&s->link, c->terms[i].line, c->terms[i].n);
        link_send(&s->link, "\n", 1);
    }
}

/* A worker that cannot be used is ended; what it says goes up when there is no other. */
static void slot_refused(struct crew *c, struct crew_slot *s, const struct pool_message *m, const char *line,
                         size_t n) {
    log_warn("%s: %s", s->label, m->reason ? m->reason : "refused");
    s->state = SLOT_REFUSED;
    if (crew_slots(c) == 0) c->up(c->ctx, m, line, n);
}

static void job_over(struct crew *c, struct crew_slot *s, const struct pool_message *m, const char *line, size_t n) {
    struct crew_job **at = find_in(&s->jobs, m->j);
    if (*at) free_job(take_off(at));
    if (m->type == MESSAGE_VERDICT) s->pause_s = first_pause_s;
    c->up(c->ctx, m, line, n);
}

static void slot_line(struct crew *c, struct crew_slot *s, const char *line, size_t n) {
    struct pool_message m;
    struct err e;
    s->heard_s = clock_now_s();
    if (pool_message_read(line, n, s->label, &m, &e) != ST_OK) {
        log_warn("%s", e.msg);
        pool_message_free(&m);
        return;
    }
    switch (m.type) {
    case MESSAGE_HELLO: slot_hello(c, s, &m, line, n); break;
    case MESSAGE_BEAT: s->probe = m.probe; break;
    case MESSAGE_READY:
        if (!c->ready) c->up(c->ctx, &m, line, n);
        c->ready = true;
        break;
    case MESSAGE_BEGUN: {
        struct crew_job **at = find_in(&s->jobs, m.j);
        if (*at) {
            (*at)->begun = true;
            (*at)->begun_s = clock_now_s();
        }
        c->up(c->ctx, &m, line, n);
        break;
    }
    case MESSAGE_DRAINING:
        s->state = SLOT_DRAINING;
        snprintf(c->why, sizeof c->why, "%s: %s", s->label, m.reason ? m.reason : "");
        log_warn("%s", c->why);
        tell_slots(c);
        break;
    case MESSAGE_REFUSED:
        if (m.j)
            job_over(c, s, &m, line, n);
        else
            slot_refused(c, s, &m, line, n);
        break;
    case MESSAGE_VERDICT:
    case MESSAGE_LOST:
    case MESSAGE_RETURNED: job_over(c, s, &m, line, n); break;
    default: break;
    }
    pool_message_free(&m);
}

static void slot_read(struct crew *c, struct crew_slot *s) {
    char *line;
    uint64_t n;
    const bool open = link_read(&s->link);
    for (enum line_kind k; (k = link_line(&s->link, &line, &n)) != LINE_NONE;) {
        if (k == LINE_WHOLE)
            slot_line(c, s, line, (size_t)n);
        else
            log_warn("%s: a line of %llu bytes; passed over", s->label, (unsigned long long)n);
    }
    if (!open) slot_down(c, s, NULL);
}

/* ---- time ---------------------------------------------------------------------------------------------------------*/

static void slot_look(struct crew *c, struct crew_slot *s, double now) {
    char why[80];
    if (s->state == SLOT_DOWN) {
        if (now >= s->retry_at && !c->draining) slot_start(c, s);
        return;
    }
    if (s->state == SLOT_REFUSED) {
        slot_down(c, s, "it cannot be used");
        return;
    }
    const double most = s->state == SLOT_STARTING ? fmax(hello_s, c->o.lease_s) : c->o.lease_s;
    if (now - s->heard_s > most) {
        snprintf(why, sizeof why, "silent for %.0f s", now - s->heard_s);
        slot_down(c, s, why);
        return;
    }
    for (const struct crew_job *job = s->jobs; job; job = job->next)
        if (job->begun && now - job->begun_s > job->budget_s) {
            snprintf(why, sizeof why, "a job took more than its %.0f s", job->budget_s);
            slot_down(c, s, why);
            return;
        }
}

static void look_around(struct crew *c) {
    const double now = clock_now_s();
    /* What nobody could hear, because this process stood still itself, is no silence. */
    const double late = c->last_step_s > 0 ? now - c->last_step_s - 1 : 0;
    for (int i = 0; i < c->n; i++) {
        if (late > 0) c->slot[i].heard_s += late;
        slot_look(c, &c->slot[i], now);
    }
    c->last_step_s = now;
    hand_out(c);
    bool usable = false;
    for (int i = 0; i < c->n; i++) usable |= c->slot[i].state != SLOT_DRAINING && c->slot[i].retry_at < now + 300;
    if (usable || c->draining || c->told_draining) return;
    CLEANUP_STR struct str line = STR_INIT;
    c->told_draining = true;
    pool_put_draining(c->why, &line);
    up_line(c, &line);
    crew_drain(c, c->why);
}

void crew_drain(struct crew *c, const char *why) {
    CLEANUP_STR struct str line = STR_INIT;
    if (c->draining) return;
    c->draining = true;
    snprintf(c->why, sizeof c->why, "%s", why);
    while (c->waiting) {
        struct crew_job *job = take_off(&c->waiting);
        up_about(c, MESSAGE_RETURNED, job, c->why);
        free_job(job);
    }
    pool_put_drain(&line);
    for (int i = 0; i < c->n; i++)
        if (link_is_running(&c->slot[i].link)) link_send(&c->slot[i].link, line.p, line.len);
}

bool crew_has_ended(const struct crew *c) {
    for (int i = 0; i < c->n; i++)
        if (link_is_running(&c->slot[i].link)) return false;
    return c->draining;
}

static int slot_fds(const struct crew_slot *s, struct pollfd *fds) {
    const bool up = link_is_running(&s->link);
    fds[0] = (struct pollfd){.fd = up ? s->link.from : -1, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = up ? s->link.err : -1, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = up && link_has_output(&s->link) ? s->link.to : -1, .events = POLLOUT};
    return FDS_A_SLOT;
}

void crew_step(struct crew *c, struct pollfd *extra, int n_extra, double seconds) {
    int n = 0;
    look_around(c);
    for (int i = 0; i < c->n; i++) {
        if (link_is_running(&c->slot[i].link)) (void)link_write(&c->slot[i].link);
        n += slot_fds(&c->slot[i], c->fds + n);
    }
    c->fds = xrealloc(c->fds, (size_t)(n + n_extra) * sizeof *c->fds);
    if (n_extra > 0) memcpy(c->fds + n, extra, (size_t)n_extra * sizeof *extra);
    (void)poll(c->fds, (nfds_t)(n + n_extra), (int)(fmin(seconds, 0.2) * 1000));
    if (n_extra > 0) memcpy(extra, c->fds + n, (size_t)n_extra * sizeof *extra);
    for (int i = 0; i < c->n; i++) {
        struct crew_slot *s = &c->slot[i];
        const struct pollfd *f = c->fds + (ptrdiff_t)i * FDS_A_SLOT;
        if (f[1].fd >= 0 && f[1].revents) link_read_err(&s->link);
        if (f[2].fd >= 0 && f[2].revents) (void)link_write(&s->link);
        if (f[0].fd >= 0 && f[0].revents) slot_read(c, s);
    }
    hand_out(c);
}

double crew_probe(const struct crew *c) {
    double worst = (double)NAN;
    for (int i = 0; i < c->n; i++)
        if (!isnan(c->slot[i].probe) && !(fabs(log(c->slot[i].probe)) <= fabs(log(worst)))) worst = c->slot[i].probe;
    return worst;
}

const struct pool_message *crew_hello(const struct crew *c) { return c->hello; }

/* ---- start and end ------------------------------------------------------------------------------------------------*/

enum status crew_start(const struct crew_options *o, crew_up_fn *up, void *ctx, struct crew **out, struct err *e) {
    struct worker_place *place;
    int n;
    TRY(worker_places(o->slots, o->gpu, o->n_gpus, &place, &n, e));
    struct crew *c = xcalloc(1, sizeof *c);
    *c = (struct crew){.o = *o, .up = up, .ctx = ctx, .n = n};
    c->slot = xcalloc((size_t)n, sizeof *c->slot);
    c->fds = xcalloc((size_t)n * FDS_A_SLOT + 1, sizeof *c->fds);
    for (int i = 0; i < n; i++) {
        struct crew_slot *s = &c->slot[i];
        snprintf(s->label, sizeof s->label, "slot %d", i);
        link_init(&s->link, s->label);
        worker_command(&s->link, &place[i], o->program, o->name, o->args);
        s->pause_s = first_pause_s;
        s->probe = (double)NAN;
        slot_start(c, s);
    }
    free(place);
    *out = c;
    return ST_OK;
}

void crew_close(struct crew *c) {
    if (!c) return;
    for (int i = 0; i < c->n; i++) link_free(&c->slot[i].link);
    for (int i = 0; i < c->n; i++)
        while (c->slot[i].jobs) free_job(take_off(&c->slot[i].jobs));
    while (c->waiting) free_job(take_off(&c->waiting));
    for (int i = 0; i < c->n_terms; i++) free(c->terms[i].line);
    if (c->hello) pool_message_free(c->hello);
    free(c->hello);
    free(c->slot);
    free(c->fds);
    free(c);
}
