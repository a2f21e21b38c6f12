#include "rl/rollout/judging.h"

#include <math.h>
#include <pthread.h>
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

struct judging {
    struct journal *journal;
    struct verdict_source judge;
    const volatile bool *cancel;
    bool background, closing;
    pthread_t thread;
    pthread_mutex_t lock;   /* of everything below */
    pthread_mutex_t serial; /* whoever uses journal and judge */
    pthread_cond_t changed;
    struct judging_order *queue; /* first come, first judged */
    int n, cap;
    double gather_s;
    int waiting; /* callers of judging_wait */
    struct judging_stats stats;
};

/* Judges the oldest answers of the queue, up to the first one of another batch. The lock is held, but not meanwhile. */
static void judge_next(struct judging *q) {
    struct judging_batch *b = q->queue[0].batch;
    int n = 0;
    while (n < q->n && q->queue[n].batch == b) n++;
    struct judging_order *orders = xmalloc((size_t)n * sizeof *orders);
    memcpy(orders, q->queue, (size_t)n * sizeof *orders);
    q->n -= n;
    memmove(q->queue, q->queue + n, (size_t)q->n * sizeof *orders);
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
    if (st != ST_OK) {
        b->st = st;
        b->err = e;
    }
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

static void *run(void *ctx) {
    struct judging *q = ctx;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->n == 0 && !q->closing) pthread_cond_wait(&q->changed, &q->lock);
        gather(q);
        if (q->closing) break; /* what nobody waits for any more is not judged */
        if (q->n > 0) judge_next(q);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

struct judging *judging_create(struct journal *j, const struct verdict_source *judge, bool background,
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
        pthread_join(q->thread, NULL);
    }
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
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 64;
        q->queue = xrealloc(q->queue, (size_t)q->cap * sizeof *q->queue);
    }
    q->queue[q->n++] =
        (struct judging_order){.item = {.problem = problem, .source = source}, .at = *at, .out = out, .batch = b};
    b->pending++;
    if (q->n > q->stats.longest) q->stats.longest = q->n;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

enum status judging_wait(struct judging *q, struct judging_batch *b, struct err *e) {
    const double from = clock_now_s();
    pthread_mutex_lock(&q->lock);
    q->waiting++;
    pthread_cond_broadcast(&q->changed);
    while (b->pending > 0) {
        if (q->background)
            pthread_cond_wait(&q->changed, &q->lock);
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
    for (int i = 0; i < q->n; i++) {
        if (q->queue[i].batch == b)
            b->pending--;
        else
            q->queue[kept++] = q->queue[i];
    }
    q->n = kept;
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
    q->stats = (struct judging_stats){.longest = q->n};
    pthread_mutex_unlock(&q->lock);
    return s;
}
