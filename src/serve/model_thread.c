#include "serve/model_thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { TICKET_SLOTS = 4096 };

struct job_private {
    struct model_thread *t;
    pthread_mutex_t lock; /* the samples */
    struct job *next_news;
    bool has_news; /* under t->lock: it is in the list of news */
    bool dropped;
};

struct ticket_entry {
    struct ticket_entry *next;
    int64_t ticket;
    struct job_part *part;
};

struct model_thread {
    const struct policy_options *opt;
    struct serve_aside aside;
    struct policy policy;
    pthread_t thread;
    bool started;
    int fd; /* eventfd: there is something to collect */
    atomic_bool quit;
    volatile bool cancel;       /* of a download */
    _Atomic int64_t came_round; /* ns */
    atomic_bool working;

    pthread_mutex_t lock; /* the lists, and what follows */
    struct model_call *calls, **calls_end, *called, **called_end;
    int64_t served; /* calls that were taken out of `calls` */
    struct job *news, **news_end;
    int n_news;
    struct engine_stats stats;
    enum model_state state;
    struct err err;

    /* the server's thread */
    enum model_state known_state;
    struct ticket_entry *ticket[TICKET_SLOTS];
    int64_t waiting;
};

static void tell(struct model_thread *t) {
    const uint64_t one = 1;
    while (write(t->fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* ---- the model's thread -------------------------------------------------------------------------------------------*/

static int64_t last_served(const struct model_call *c) { return c->turn ? c->turn->served : 0; }

/* Takes out the first call of the turn that was served longest ago; NULL: there is none. */
static struct model_call *take_call(struct model_thread *t) {
    pthread_mutex_lock(&t->lock);
    struct model_call **best = &t->calls;
    for (struct model_call **at = best; *at; at = &(*at)->next)
        if (last_served(*at) < last_served(*best)) best = at;
    struct model_call *c = *best;
    if (c) {
        *best = c->next;
        if (!c->next) t->calls_end = best;
        t->served++;
        if (c->turn) c->turn->served = t->served;
    }
    pthread_mutex_unlock(&t->lock);
    return c;
}

static bool has_calls(struct model_thread *t) {
    pthread_mutex_lock(&t->lock);
    const bool any = t->calls != NULL;
    pthread_mutex_unlock(&t->lock);
    return any;
}

static void give_back(struct model_thread *t, struct model_call *c, bool done) {
    pthread_mutex_lock(&t->lock);
    c->next = NULL;
    if (done) {
        *t->called_end = c;
        t->called_end = &c->next;
    } else {
        *t->calls_end = c;
        t->calls_end = &c->next;
    }
    pthread_mutex_unlock(&t->lock);
    if (done) tell(t);
}

/* Brings the engine to rest, runs one call, and lets the engine go on. */
static void run_call(struct model_thread *t, struct model_call *c) {
    struct engine *en = t->policy.engine;
    struct err e;
    bool working;
    engine_pause(en);
    while (!engine_paused(en))
        if (engine_step(en, &working, &e) != ST_OK) log_error("model: %s", e.msg);
    c->finished = c->run(c, &t->policy);
    engine_resume(en);
    give_back(t, c, c->finished);
}

/* Whoever waits for the device does not count as silent. */
static void stand_aside(struct model_thread *t, void (*how)(void *ctx)) {
    if (!how) return;
    atomic_store(&t->working, false);
    how(t->aside.ctx);
    atomic_store(&t->came_round, clock_now_ns());
    atomic_store(&t->working, true);
}

static void step_model(struct model_thread *t) {
    struct err e;
    bool working = false;
    if (engine_step(t->policy.engine, &working, &e) != ST_OK) {
        log_error("model: %s", e.msg);
        working = true;
    }
    if (working) {
        pthread_mutex_lock(&t->lock);
        t->stats = engine_stats(t->policy.engine);
        pthread_mutex_unlock(&t->lock);
        tell(t);
        return;
    }
    if (has_calls(t)) return;
    atomic_store(&t->working, false);
    if (t->aside.end) t->aside.end(t->aside.ctx);
    engine_wait(t->policy.engine, 1);
    if (t->aside.begin) t->aside.begin(t->aside.ctx);
    atomic_store(&t->came_round, clock_now_ns());
    atomic_store(&t->working, true);
}

static void *model_main(void *thread) {
    struct model_thread *t = thread;
    struct err e = {0};
    const enum status st = policy_open(t->opt, &t->cancel, &t->policy, &e);
    pthread_mutex_lock(&t->lock);
    t->state = st == ST_OK ? MODEL_READY : MODEL_FAILED;
    t->err = e;
    pthread_mutex_unlock(&t->lock);
    tell(t);
    atomic_store(&t->came_round, clock_now_ns());
    atomic_store(&t->working, true);
    if (st == ST_OK) stand_aside(t, t->aside.begin);
    while (st == ST_OK && !atomic_load(&t->quit)) {
        stand_aside(t, t->aside.yield);
        struct model_call *c = take_call(t);
        if (c) run_call(t, c);
        step_model(t);
        atomic_store(&t->came_round, clock_now_ns());
    }
    atomic_store(&t->working, false);
    if (st == ST_OK && t->aside.end) t->aside.end(t->aside.ctx);
    return NULL;
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

enum status model_thread_start(const struct policy_options *o, const struct serve_aside *aside,
                               struct model_thread **out, struct err *e) {
    struct model_thread *t = xcalloc(1, sizeof *t);
    *out = NULL;
    t->opt = o;
    t->aside = *aside;
    t->calls_end = &t->calls;
    t->called_end = &t->called;
    t->news_end = &t->news;
    pthread_mutex_init(&t->lock, NULL);
    t->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    t->started = t->fd >= 0 && pthread_create(&t->thread, NULL, model_main, t) == 0;
    if (!t->started) {
        const enum status st = FAIL(e, ST_IO, "the model's thread does not start: %s", strerror(errno));
        model_thread_stop(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

int model_thread_fd(const struct model_thread *t) { return t->fd; }
const struct policy *model_thread_policy(const struct model_thread *t) { return &t->policy; }
int64_t model_thread_waiting(const struct model_thread *t) { return t->waiting; }

int model_thread_batch(const struct model_thread *t) {
    return t->opt->engine.max_batch > 0 ? t->opt->engine.max_batch : ENGINE_BATCH_CPU;
}

struct engine_stats model_thread_stats(const struct model_thread *t) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&t->lock;
    pthread_mutex_lock(lock);
    const struct engine_stats s = t->stats;
    pthread_mutex_unlock(lock);
    return s;
}

enum model_state model_thread_state(const struct model_thread *t, struct err *e) {
    if (t->known_state == MODEL_FAILED && e) *e = t->err;
    return t->known_state;
}

double model_thread_silent_s(const struct model_thread *t) {
    if (!atomic_load(&t->working)) return 0;
    return (double)(clock_now_ns() - atomic_load(&t->came_round)) * 1e-9;
}

void model_thread_call(struct model_thread *t, struct model_call *c) {
    give_back(t, c, false);
    engine_stop_waiting(t->policy.engine);
}

/* ---- jobs ---------------------------------------------------------------------------------------------------------*/

struct job *job_new(struct model_thread *t, int n_parts, int n, int top) {
    struct job *j = xcalloc(1, sizeof *j);
    j->n_parts = n_parts;
    j->n_samples = n_parts * n;
    j->top = top;
    j->part = xcalloc((size_t)n_parts, sizeof *j->part);
    j->sample = xcalloc((size_t)j->n_samples, sizeof *j->sample);
    j->own = xcalloc(1, sizeof *j->own);
    j->own->t = t;
    pthread_mutex_init(&j->own->lock, NULL);
    for (int i = 0; i < n_parts; i++) j->part[i] = (struct job_part){.job = j, .first = i * n};
    return j;
}

static void free_job(struct job *j) {
    for (int i = 0; i < j->n_samples; i++) {
        free(j->sample[i].ids);
        free(j->sample[i].logp);
        free(j->sample[i].top_ids);
        free(j->sample[i].top_logp);
    }
    for (int i = 0; i < j->n_parts; i++) sample_free(&j->part[i].prompt);
    pthread_mutex_destroy(&j->own->lock);
    free(j->own);
    free(j->sample);
    free(j->part);
    free(j);
}

static void grow(struct job_sample *s, int top) {
    if (s->n < s->cap) return;
    s->cap = s->cap ? s->cap + s->cap / 2 : 32;
    const size_t n = (size_t)s->cap, k = (size_t)top;
    s->ids = xrealloc(s->ids, n * sizeof *s->ids);
    s->logp = xrealloc(s->logp, n * sizeof *s->logp);
    if (k == 0) return;
    s->top_ids = xrealloc(s->top_ids, n * k * sizeof *s->top_ids);
    s->top_logp = xrealloc(s->top_logp, n * k * sizeof *s->top_logp);
}

/* Any thread. */
static void put_news(struct model_thread *t, struct job *j) {
    pthread_mutex_lock(&t->lock);
    if (!j->own->has_news) {
        j->own->has_news = true;
        j->own->next_news = NULL;
        *t->news_end = j;
        t->news_end = &j->own->next_news;
        t->n_news++;
    }
    pthread_mutex_unlock(&t->lock);
}

/* engine_sink_fn: the model's thread. */
static void take_token(void *ctx, const struct engine_token *e) {
    const struct job_part *p = ctx;
    struct job *j = p->job;
    struct model_thread *t = j->own->t;
    pthread_mutex_lock(&j->own->lock);
    struct job_sample *s = &j->sample[p->first + e->sample];
    grow(s, j->top);
    s->ids[s->n] = e->id;
    s->logp[s->n] = e->logp;
    if (j->top > 0) {
        const size_t at = (size_t)s->n * (size_t)j->top;
        memcpy(s->top_ids + at, e->top_ids, (size_t)j->top * sizeof *s->top_ids);
        memcpy(s->top_logp + at, e->top_logp, (size_t)j->top * sizeof *s->top_logp);
    }
    s->n++;
    s->ended = e->last;
    s->stop = e->stop;
    pthread_mutex_unlock(&j->own->lock);
    put_news(t, j);
}

static struct ticket_entry **ticket_slot(struct model_thread *t, int64_t ticket) {
    return &t->ticket[(uint64_t)ticket % TICKET_SLOTS];
}

enum status model_job_submit(struct job *j, int part, const struct request *r, struct err *e) {
    struct model_thread *t = j->own->t;
    struct job_part *p = &j->part[part];
    struct request q = *r;
    q.sink = take_token;
    q.sink_ctx = p;
    TRY(engine_submit(t->policy.engine, &q, &p->ticket, e));
    struct ticket_entry **slot = ticket_slot(t, p->ticket), *n = xmalloc(sizeof *n);
    *n = (struct ticket_entry){*slot, p->ticket, p};
    *slot = n;
    j->submitted = clock_now_ns();
    j->waiting += r->n_samples;
    t->waiting += r->n_samples;
    return ST_OK;
}

void job_cancel(struct job *j) {
    for (int i = 0; i < j->n_parts; i++)
        if (j->part[i].ticket != 0 && !j->part[i].done) engine_cancel(j->own->t->policy.engine, j->part[i].ticket);
}

static int unsubmitted(const struct job *j) {
    int n = 0;
    for (int i = 0; i < j->n_parts; i++) n += j->part[i].ticket == 0;
    return n;
}

void job_drop(struct job *j) {
    j->own->dropped = true;
    j->news = NULL;
    job_cancel(j);
    j->n_done += unsubmitted(j);
    if (j->n_done < j->n_parts) return;
    struct model_thread *t = j->own->t;
    pthread_mutex_lock(&t->lock);
    const bool listed = j->own->has_news;
    pthread_mutex_unlock(&t->lock);
    if (!listed) free_job(j); /* else when the news are collected */
}

int job_read(struct job *j, int sample, int from, int most, int32_t *ids, float *logp, int32_t *top_ids,
             float *top_logp, bool *left) {
    pthread_mutex_lock(&j->own->lock);
    const struct job_sample *s = &j->sample[sample];
    const int n = s->n - from < most ? s->n - from : most;
    const size_t k = (size_t)j->top, at = (size_t)from;
    if (n > 0) {
        memcpy(ids, s->ids + at, (size_t)n * sizeof *ids);
        memcpy(logp, s->logp + at, (size_t)n * sizeof *logp);
    }
    if (n > 0 && k > 0) {
        memcpy(top_ids, s->top_ids + at * k, (size_t)n * k * sizeof *top_ids);
        memcpy(top_logp, s->top_logp + at * k, (size_t)n * k * sizeof *top_logp);
    }
    *left = from + n < s->n || !s->ended;
    pthread_mutex_unlock(&j->own->lock);
    return n;
}

/* ---- collecting ---------------------------------------------------------------------------------------------------*/

static struct job_part *forget_ticket(struct model_thread *t, int64_t ticket) {
    struct ticket_entry **at = ticket_slot(t, ticket);
    while (*at && (*at)->ticket != ticket) at = &(*at)->next;
    struct ticket_entry *n = *at;
    ASSERT(n);
    struct job_part *p = n->part;
    *at = n->next;
    free(n);
    return p;
}

/* A part has ended: its samples have all their tokens. */
static void end_part(struct model_thread *t, struct engine_result *r) {
    struct job_part *p = forget_ticket(t, r->ticket);
    struct job *j = p->job;
    p->done = true;
    p->status = r->status;
    p->err = r->err;
    p->begun = r->begun_ns;
    p->prompt = r->prompt;
    r->prompt = (struct sample){0};
    pthread_mutex_lock(&j->own->lock);
    const int n = j->n_samples / j->n_parts;
    for (int i = 0; i < n; i++) {
        struct job_sample *s = &j->sample[p->first + i];
        if (s->ended) continue;
        s->ended = true;
        s->stop = r->status == ST_OK && i < r->n_samples ? r->samples[i].stop : STOP_CANCELLED;
    }
    pthread_mutex_unlock(&j->own->lock);
    j->n_done++;
    put_news(t, j);
}

/* Counts the samples that have their first token, or none to come. */
static void count_begun(struct model_thread *t, struct job *j) {
    if (j->waiting == 0) return;
    int waiting = 0;
    pthread_mutex_lock(&j->own->lock);
    for (int i = 0; i < j->n_parts; i++)
        for (int k = 0, n = j->n_samples / j->n_parts; j->part[i].ticket != 0 && k < n; k++) {
            const struct job_sample *s = &j->sample[j->part[i].first + k];
            waiting += s->n == 0 && !s->ended;
        }
    pthread_mutex_unlock(&j->own->lock);
    t->waiting -= j->waiting - waiting;
    j->waiting = waiting;
}

static struct job *next_news(struct model_thread *t) {
    pthread_mutex_lock(&t->lock);
    struct job *j = t->news;
    if (j) {
        t->news = j->own->next_news;
        if (!t->news) t->news_end = &t->news;
        t->n_news--;
        j->own->has_news = false;
    }
    pthread_mutex_unlock(&t->lock);
    return j;
}

/* Those that are there at the beginning: the model's thread may add to them as fast as they are taken. */
static void take_news(struct model_thread *t) {
    pthread_mutex_lock(&t->lock);
    int n = t->n_news;
    pthread_mutex_unlock(&t->lock);
    const int64_t now = clock_now_ns();
    for (struct job *j; n > 0 && (j = next_news(t)); n--) {
        count_begun(t, j);
        if (j->first_token == 0) j->first_token = now;
        j->last_token = now;
        if (j->news)
            j->news(j);
        else if (j->own->dropped && j->n_done == j->n_parts)
            free_job(j);
    }
}

static void take_calls(struct model_thread *t) {
    pthread_mutex_lock(&t->lock);
    struct model_call *c = t->called;
    t->called = NULL;
    t->called_end = &t->called;
    pthread_mutex_unlock(&t->lock);
    for (struct model_call *next; c; c = next) {
        next = c->next;
        c->done(c);
    }
}

void model_thread_collect(struct model_thread *t) {
    uint64_t count;
    struct engine_result r;
    if (read(t->fd, &count, sizeof count) < 0 && errno != EAGAIN) log_error("eventfd: %s", strerror(errno));
    pthread_mutex_lock(&t->lock);
    t->known_state = t->state;
    pthread_mutex_unlock(&t->lock);
    if (t->known_state != MODEL_READY) return;
    while (engine_poll(t->policy.engine, 0, &r)) {
        end_part(t, &r);
        engine_result_free(&r);
    }
    take_news(t);
    take_calls(t);
}

void model_thread_stop(struct model_thread *t) {
    if (!t) return;
    atomic_store(&t->quit, true);
    t->cancel = true;
    if (t->known_state == MODEL_READY) engine_stop_waiting(t->policy.engine);
    if (t->started) pthread_join(t->thread, NULL);
    for (size_t i = 0; i < TICKET_SLOTS; i++)
        while (t->ticket[i]) {
            struct engine_result none = {.ticket = t->ticket[i]->ticket, .status = ST_CANCELLED};
            end_part(t, &none);
        }
    take_news(t);
    take_calls(t);
    for (struct model_call *c; (c = take_call(t));) c->done(c);
    policy_close(&t->policy);
    if (t->fd >= 0) close(t->fd);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
