#include "rl/rollout/judging.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "verify/jail/time_account.h"

struct judging_order { /* an answer in the queue */
    struct verify_item item;
    struct journal_place at;
    struct verdict *out;
    struct judging_batch *batch;
};

/* An answer that a judge with a stream has. */
struct judging_flight {
    struct judging_order o; /* o.item is what the judge has */
    char place[80];
    struct judging_flight *next, *previous;
};

struct judging {
    struct journal *journal;
    struct judge judge;
    const volatile bool *cancel;
    bool background, closing;
    pthread_t thread;
    pthread_mutex_t lock;   /* of everything below */
    pthread_mutex_t serial; /* whoever uses journal and judge */
    pthread_cond_t changed;
    struct judging_order *queue; /* [cap]; n of them wait, from `first` on: first come, first judged */
    int first, n, cap;
    struct judging_flight *flights; /* with the judge, or collected and not handed on yet; in no order */
    int n_flights;
    double gather_s;
    int waiting; /* callers of judging_wait */
    struct judging_stats stats;
};

static void batch_failed(struct judging_batch *b, enum status st, const struct err *e) {
    if (b->st != ST_OK) return;
    b->st = st;
    b->err = *e;
}

/* The n oldest answers have left the queue. */
static void leave_queue(struct judging *q, int n) {
    q->n -= n;
    q->first = q->n > 0 ? q->first + n : 0;
}

/* A place for one more. */
static struct judging_order *enter_queue(struct judging *q) {
    if (q->first + q->n == q->cap && q->first > q->cap / 2) {
        memmove(q->queue, q->queue + q->first, (size_t)q->n * sizeof *q->queue);
        q->first = 0;
    } else if (q->first + q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 64;
        q->queue = xrealloc(q->queue, (size_t)q->cap * sizeof *q->queue);
    }
    return &q->queue[q->first + q->n++];
}

/* ---- a judge that takes batches -----------------------------------------------------------------------------------*/

/* Judges the oldest answers of the queue, up to the first one of another batch. The lock is held, but not meanwhile. */
static void judge_next(struct judging *q) {
    const struct judging_order *oldest = &q->queue[q->first];
    struct judging_batch *b = oldest->batch;
    int n = 0;
    while (n < q->n && oldest[n].batch == b) n++;
    struct judging_order *orders = xmalloc((size_t)n * sizeof *orders);
    memcpy(orders, oldest, (size_t)n * sizeof *orders);
    leave_queue(q, n);
    const bool give_up = b->st != ST_OK; /* an earlier part of the batch failed */
    pthread_mutex_unlock(&q->lock);

    struct verify_item *items = xcalloc((size_t)n, sizeof *items);
    struct journal_place *at = xmalloc((size_t)n * sizeof *at);
    for (int i = 0; i < n; i++) {
        items[i] = orders[i].item;
        at[i] = orders[i].at;
    }
    struct err e = {0};
    enum status st = ST_OK;
    const double from = clock_now_s();
    pthread_mutex_lock(&q->serial);
    if (!give_up) st = journal_judge(q->journal, &q->judge, items, at, (size_t)n, q->cancel, &e);
    pthread_mutex_unlock(&q->serial);
    const double seconds = clock_now_s() - from;
    CLEANUP_STR struct str spent = STR_INIT;
    spent_take(&spent);
    log_debug("%d answers judged in %.1f s: %s", n, seconds, str_c(&spent));
    for (int i = 0; i < n; i++) {
        if (give_up || st != ST_OK) items[i].verdict = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE};
        *orders[i].out = items[i].verdict;
    }
    free(items);
    free(at);
    free(orders);

    pthread_mutex_lock(&q->lock);
    if (st != ST_OK) batch_failed(b, st, &e);
    b->pending -= n;
    q->stats.busy_s += seconds;
    q->stats.calls++;
    pthread_cond_broadcast(&q->changed);
}

/* More answers may be under way to where a batch of one takes as long as one of sixteen. */
static void gather(struct judging *q) {
    const double until = clock_now_s() + q->gather_s;
    const struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
    while (q->n > 0 && q->waiting == 0 && !q->closing && clock_now_s() < until)
        pthread_cond_timedwait(&q->changed, &q->lock, &at);
}

/* ---- a judge with a stream ----------------------------------------------------------------------------------------*/

/* Seconds in which a group of verdicts comes together, and in which it is noticed that a run is to end. */
static const double group_s = 0.05, look_up_s = 0.2;

static void land(struct judging *q, struct judging_flight *f) {
    if (f->next) f->next->previous = f->previous;
    *(f->previous ? &f->previous->next : &q->flights) = f->next;
    q->n_flights--;
    f->o.batch->pending--;
    free(f);
}

/* The verdict goes to who has asked for it. The lock is held. */
static void deliver(struct judging *q, struct judging_flight *f, enum status st, const struct err *e) {
    if (st != ST_OK) {
        f->o.item.verdict = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE};
        batch_failed(f->o.batch, st, e);
    }
    *f->o.out = f->o.item.verdict;
    land(q, f);
    pthread_cond_broadcast(&q->changed);
}

/* Hands the oldest answer of the queue to the judge, unless the journal has its verdict. The lock is held, but not
 * meanwhile. */
static void stream_one(struct judging *q) {
    struct judging_flight *f = xcalloc(1, sizeof *f);
    f->o = q->queue[q->first];
    leave_queue(q, 1);
    const struct journal_place *at = &f->o.at;
    snprintf(f->place, sizeof f->place, "%lld/%s/%d/%d/%d", (long long)at->step, at->eval ? "eval" : "train", at->group,
             at->sample, at->turn);
    f->o.item.place = f->place;
    f->next = q->flights;
    if (f->next) f->next->previous = f;
    q->flights = f;
    q->n_flights++;
    bool found = f->o.batch->st != ST_OK; /* an earlier part of the batch failed: nobody wants the rest */
    struct err e = f->o.batch->err;
    enum status st = f->o.batch->st;
    if (!found) {
        pthread_mutex_unlock(&q->lock);
        pthread_mutex_lock(&q->serial);
        if (q->journal) st = journal_replay(q->journal, &q->judge, &f->o.at, &f->o.item, &found, &e);
        pthread_mutex_unlock(&q->serial);
        pthread_mutex_lock(&q->lock);
    }
    if (found || st != ST_OK)
        deliver(q, f, st, &e);
    else
        q->judge.stream->submit(q->judge.ctx, &f->o.item);
}

/* Writes the verdicts of n flights that have one, with one wait for the disk. The lock is not held. */
static enum status write_group(struct judging *q, struct verify_item *const *done, size_t n, struct err *e) {
    struct verify_item *items = xcalloc(n, sizeof *items);
    struct journal_place at[JUDGING_GROUP];
    bool fresh[JUDGING_GROUP];
    for (size_t i = 0; i < n; i++) {
        items[i] = *done[i];
        at[i] = ((const struct judging_flight *)done[i])->o.at;
        fresh[i] = outcome_class(items[i].verdict.outcome) != 'I';
    }
    pthread_mutex_lock(&q->serial);
    const enum status st = q->journal ? journal_add(q->journal, items, at, fresh, n, e) : ST_OK;
    pthread_mutex_unlock(&q->serial);
    for (size_t i = 0; i < n; i++) done[i]->verdict = items[i].verdict;
    free(items);
    return st;
}

/* Takes what the judge has found out, at most a group of it, to the journal and to who asked. The lock is held, but not
 * meanwhile. */
static void stream_collect(struct judging *q) {
    static_assert(offsetof(struct judging_flight, o.item) == 0, "an item is the beginning of its flight");
    const struct judge_stream *s = q->judge.stream;
    struct verify_item *done[JUDGING_GROUP];
    struct err e = {0};
    const double from = clock_now_s();
    size_t n, in_flight = (size_t)q->n_flights;
    pthread_mutex_unlock(&q->lock);
    n = s->collect(q->judge.ctx, done, JUDGING_GROUP, look_up_s);
    if (in_flight > JUDGING_GROUP) in_flight = JUDGING_GROUP;
    for (const double until = clock_now_s() + group_s; n > 0 && n < in_flight;) {
        const double left = until - clock_now_s();
        if (left <= 0) break;
        n += s->collect(q->judge.ctx, done + n, JUDGING_GROUP - n, left);
    }
    const enum status st = n > 0 ? write_group(q, done, n, &e) : ST_OK;
    for (size_t i = 0; i < n; i++) s->settle(q->judge.ctx, done[i], st == ST_OK);
    pthread_mutex_lock(&q->lock);
    for (size_t i = 0; i < n; i++) deliver(q, (struct judging_flight *)done[i], st, &e);
    q->stats.busy_s += clock_now_s() - from;
    q->stats.calls += n > 0;
}

/* What the judge has of a batch (NULL: of all) is taken back, as a failure. What was collected has its verdict already.
 */
static void withdraw(struct judging *q, const struct judging_batch *b, enum status st, const struct err *e) {
    struct judging_flight *next;
    for (struct judging_flight *f = q->flights; f; f = next) {
        next = f->next;
        if ((b && f->o.batch != b) || !q->judge.stream->withdraw(q->judge.ctx, &f->o.item)) continue;
        f->o.item.verdict = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE};
        deliver(q, f, st, e);
    }
}

/* One step of a stream: new answers go out, verdicts come in. The lock is held, but not meanwhile. */
static void stream_step(struct judging *q) {
    if (q->cancel && *q->cancel) {
        struct err e;
        const enum status st = FAIL(&e, ST_CANCELLED, "cancelled");
        for (int i = 0; i < q->n; i++) batch_failed(q->queue[q->first + i].batch, st, &e);
        withdraw(q, NULL, st, &e);
    }
    while (q->n > 0 && !q->closing) stream_one(q);
    if (q->n_flights > 0) stream_collect(q);
}

/* ---- the thread ---------------------------------------------------------------------------------------------------*/

static void *run(void *ctx) {
    struct judging *q = ctx;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->n == 0 && q->n_flights == 0 && !q->closing) pthread_cond_wait(&q->changed, &q->lock);
        if (!q->judge.stream) gather(q);
        if (q->closing) break; /* what nobody waits for any more is not judged */
        if (q->judge.stream)
            stream_step(q);
        else if (q->n > 0)
            judge_next(q);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

struct judging *judging_create(struct journal *j, const struct judge *judge, bool background,
                               const volatile bool *cancel) {
    struct judging *q = xcalloc(1, sizeof *q);
    q->journal = j;
    q->judge = *judge;
    q->cancel = cancel;
    pthread_mutex_init(&q->lock, NULL);
    pthread_mutex_init(&q->serial, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    q->background = background && pthread_create(&q->thread, NULL, run, q) == 0;
    return q;
}

void judging_free(struct judging *q) {
    if (!q) return;
    if (q->background) {
        pthread_mutex_lock(&q->lock);
        q->closing = true;
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
        if (q->judge.stream) q->judge.stream->wake(q->judge.ctx);
        pthread_join(q->thread, NULL);
    }
    pthread_mutex_lock(&q->lock);
    if (q->judge.stream) withdraw(q, NULL, ST_OK, NULL);
    ASSERT(q->n_flights == 0);
    pthread_mutex_unlock(&q->lock);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->serial);
    pthread_mutex_destroy(&q->lock);
    free(q->queue);
    free(q);
}

void judging_gather(struct judging *q, double seconds) {
    pthread_mutex_lock(&q->lock);
    q->gather_s = seconds;
    pthread_mutex_unlock(&q->lock);
}

void judging_add(struct judging *q, struct judging_batch *b, const struct problem *problem, const char *source,
                 const struct journal_place *at, struct verdict *out) {
    pthread_mutex_lock(&q->lock);
    *enter_queue(q) =
        (struct judging_order){.item = {.problem = problem, .source = source}, .at = *at, .out = out, .batch = b};
    b->pending++;
    if (q->n + q->n_flights > q->stats.longest) q->stats.longest = q->n + q->n_flights;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (q->judge.stream) q->judge.stream->wake(q->judge.ctx);
}

/* Waits for a change; where a stream is waited for, a line says every PATIENCE_S seconds what for. The lock is held. */
static void wait_for_change(struct judging *q, const struct judging_batch *b, double from, int *said) {
    enum { PATIENCE_S = 30 };
    if (!q->judge.stream) {
        pthread_cond_wait(&q->changed, &q->lock);
        return;
    }
    log_progress("  verdicts: %d still to come", b->pending);
    if (clock_now_s() - from >= (double)PATIENCE_S * (*said + 1)) {
        CLEANUP_STR struct str what = STR_INIT, later = STR_INIT;
        const int others = q->n + q->n_flights - b->pending;
        q->judge.stream->describe(q->judge.ctx, &what);
        if (others > 0) str_addf(&later, " (and %d of batches that were sampled ahead)", others);
        log_info("waiting for %d verdicts%s, for %.0f s: %s", b->pending, str_c(&later), clock_now_s() - from,
                 str_c(&what));
        ++*said;
    }
    const double until = clock_now_s() + 1;
    const struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
    if (q->background)
        pthread_cond_timedwait(&q->changed, &q->lock, &at);
    else
        stream_step(q);
}

enum status judging_wait(struct judging *q, struct judging_batch *b, struct err *e) {
    const double from = clock_now_s();
    pthread_mutex_lock(&q->lock);
    q->waiting++;
    pthread_cond_broadcast(&q->changed);
    for (int said = 0; b->pending > 0;) {
        if (q->background || q->judge.stream)
            wait_for_change(q, b, from, &said);
        else
            judge_next(q);
    }
    q->waiting--;
    log_progress_end();
    q->stats.wait_s += clock_now_s() - from;
    const enum status st = b->st;
    if (st != ST_OK) *e = b->err;
    pthread_mutex_unlock(&q->lock);
    return st;
}

void judging_drop(struct judging *q, struct judging_batch *b) {
    pthread_mutex_lock(&q->lock);
    int kept = 0;
    struct judging_order *queue = q->queue + q->first;
    for (int i = 0; i < q->n; i++) {
        if (queue[i].batch == b)
            b->pending--;
        else
            queue[kept++] = queue[i];
    }
    q->n = kept;
    if (q->judge.stream) withdraw(q, b, ST_OK, NULL);
    while (b->pending > 0) pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void judging_pause(struct judging *q) {
    if (q) pthread_mutex_lock(&q->serial);
}

void judging_resume(struct judging *q) {
    if (q) pthread_mutex_unlock(&q->serial);
}

struct judging_stats judging_stats(struct judging *q) {
    pthread_mutex_lock(&q->lock);
    const struct judging_stats s = q->stats;
    q->stats = (struct judging_stats){.longest = q->n + q->n_flights};
    pthread_mutex_unlock(&q->lock);
    return s;
}
