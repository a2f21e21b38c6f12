#include "verdicts/desk.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "rl/evaluate/answer_reward.h"
#include "verdicts/shelf.h"

enum { MAX_JUDGES = 4 };
static const double look_up_s = 0.2;

/* A judge for one kind of settings. */
struct desk_judge {
    struct str identity; /* what decides its verdicts; empty: the place is free */
    char settings[DESK_SETTINGS_BYTES];
    struct judge_owner owner;
    bool is_jailed; /* true: for one hostile problem and one batch */
    int n_flights;  /* with its stream */
    int64_t used;
};

struct desk_list {
    struct desk_work *first, **end;
};

struct desk {
    struct desk_options o;
    struct shelf *shelf;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct desk_list queue;
    volatile bool closing; /* read without the lock, too */
    /* The desk's thread alone, but that `wake` needs the lock. */
    struct desk_judge judge[MAX_JUDGES];
    struct desk_work *flights; /* with streams, in no order */
    int64_t turn;
};
static_assert(offsetof(struct desk_work, item) == 0, "an item is the beginning of its work");

/* ---- lists --------------------------------------------------------------------------------------------------------*/

static void list_begin(struct desk_list *l) { *l = (struct desk_list){NULL, &l->first}; }

static void list_add(struct desk_list *l, struct desk_work *w) {
    w->next = NULL;
    *l->end = w;
    l->end = &w->next;
}

static struct desk_work *list_take_at(struct desk_list *l, struct desk_work **at) {
    struct desk_work *w = *at;
    *at = w->next;
    if (!w->next) l->end = at;
    w->next = NULL;
    return w;
}

/* ---- from a request to work ---------------------------------------------------------------------------------------*/

const struct desk_options *desk_options_of(const struct desk *d) { return &d->o; }

const struct desk_config *desk_config_named(const struct desk *d, const char *name) {
    for (size_t i = 0; i < d->o.n_configs; i++)
        if (!name || strcmp(d->o.config[i].name, name) == 0) return &d->o.config[i];
    return NULL;
}

static void choose_options(const struct verdict_ask *a, struct verify_options *o) {
    if (a->backend >= 0) o->backend = (enum verify_backend)a->backend;
    if (a->trials >= 0) o->trials = a->trials;
    if (a->timed_calls >= 0) o->timed_calls = a->timed_calls;
    if (a->measure >= 0) o->measure = a->measure;
    if (a->single_input >= 0) o->single_input = a->single_input;
    if (a->staged >= 0) o->staged = (enum staging)a->staged;
    if (a->timing_method >= 0) o->timing_method = (enum timing_method)a->timing_method;
}

static struct reward_known known_of(const struct verdict_ask *a) {
    struct reward_known known = answer_of_file;
    known.tokens = a->tokens >= 0;
    return known;
}

static bool find_problem(struct desk *d, struct desk_work *w, struct verdict_refusal *why) {
    const struct verdict_ask *a = &w->ask;
    if (a->code) {
        if (!d->o.any_problem)
            return verdict_refuse(why, 403, "problems_known", "problem.code",
                                  "problem.code: the text of a problem is not run here; name one by its key");
        w->own = (struct problem){.key = a->id && *a->id ? a->id : "problem", .name = "problem", .code = a->code};
        w->item.problem = &w->own;
        w->options.jail_problem |= d->o.jail_problems;
        return true;
    }
    if (!shelf_find(d->shelf, a->source ? a->source : w->config->source, a->key, &w->item.problem, why)) return false;
    w->key = a->key;
    return true;
}

static bool prepare(struct desk *d, struct desk_work *w, struct verdict_refusal *why) {
    struct err e;
    if (!verdict_ask_read(w->request, &w->ask, why)) return false;
    const struct verdict_ask *a = &w->ask;
    w->config = desk_config_named(d, a->config);
    if (!w->config)
        return verdict_refuse(why, 404, "config_not_found", "config", "config: there is no configuration \"%.100s\"",
                              a->config);
    w->options = w->config->verify;
    choose_options(a, &w->options);
    if (answer_weights_check(&w->config->weights.weights, known_of(a), &e) != ST_OK)
        return verdict_refuse(why, 400, NULL, "tokens",
                              "tokens: it is needed, since the configuration \"%.100s\" pays by an answer's length",
                              w->config->name);
    if (!find_problem(d, w, why)) return false;
    if (a->extract)
        (void)rollout_read(backend_info(w->options.backend), a->solution, strlen(a->solution), &w->answer);
    else
        rollout_read_file(a->solution, &w->answer);
    w->answer.tokens = a->tokens >= 0 ? a->tokens : 0;
    w->item.source = w->answer.kernel;
    w->item.again = a->force;
    w->name = verify_key(w->item.problem, w->item.source);
    return true;
}

bool desk_prepare(struct desk *d, json_t *request, struct desk_work **out, struct verdict_refusal *why) {
    struct desk_work *w = xcalloc(1, sizeof *w);
    w->request = json_incref(request);
    *out = NULL;
    if (!prepare(d, w, why)) {
        desk_work_free(w);
        return false;
    }
    *out = w;
    return true;
}

void desk_work_free(struct desk_work *w) {
    if (!w) return;
    free(w->answer.kernel);
    json_decref(w->request);
    free(w);
}

bool desk_problem(struct desk *d, const char *source, const char *key, const struct problem **out,
                  struct verdict_refusal *why) {
    return shelf_find(d->shelf, source ? source : d->o.config[0].source, key, out, why);
}

const struct problem *desk_problem_of_text(struct desk *d, const char *code, const char **source) {
    const struct problem *p = shelf_find_text(d->shelf, code, source);
    return p && !*source && d->o.config[0].source ? NULL : p; /* without a source a request means the configuration's */
}

const struct problem_set *desk_problems(struct desk *d, const char *source) {
    return shelf_set(d->shelf, source ? source : d->o.config[0].source);
}

/* ---- the result ---------------------------------------------------------------------------------------------------*/

bool desk_has_verdict(const struct desk_work *w) { return w->judged && outcome_class(w->item.verdict.outcome) != 'I'; }

static void put_missing(const struct desk_work *w, struct str *out) {
    js_begin(out, "error", '{');
    js_put_str(out, "message", w->item.verdict.message);
    js_put_str(out, "type", "no_verdict");
    js_put_null(out, "param");
    js_put_str(out, "code", outcome_name(w->item.verdict.outcome));
    js_end(out, '}');
}

void desk_put_result(const struct desk_work *w, struct str *out) {
    CLEANUP_STR struct str verdict = STR_INIT;
    if (!desk_has_verdict(w)) { /* nothing that a client could take for a bad verdict */
        js_put_null(out, "verdict");
        js_put_null(out, "reward");
        if (w->judged)
            put_missing(w, out);
        else
            js_put_null(out, "error");
        return;
    }
    verdict_to_json(&w->item.verdict, &verdict);
    verdict.len--; /* the object goes on */
    js_put_str(&verdict, "settings", w->settings);
    js_put_str(&verdict, "answer", w->name.hex);
    js_end(&verdict, '}');
    str_adds(out, ",\"verdict\":");
    str_add(out, verdict.p, verdict.len);
    answer_put(&w->answer, true, out);
    js_put_null(out, "error");
}

/* ---- the desk's thread --------------------------------------------------------------------------------------------*/

static void finish(struct desk_work *w, bool judged) {
    struct err e;
    w->answer.verdict = w->item.verdict;
    w->answer.present = false;
    w->judged = judged;
    if (judged && answer_reward(&w->config->weights, known_of(&w->ask), "answer", &w->answer, &e) != ST_OK) {
        log_error("%s", e.msg); /* prepare() has asked for all that a reward needs */
        w->answer.present = false;
    }
    w->judge = NULL;
    w->next = NULL;
    w->done(w->ctx, w);
}

/* No judge can be had. */
static void fail_work(struct desk_work *w, const struct err *e) {
    w->item.verdict = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE, .max_error = (double)NAN};
    snprintf(w->item.verdict.message, sizeof w->item.verdict.message, "%s", e->msg);
    finish(w, true);
}

static void begin(struct desk_work *w) {
    w->attempts++;
    if (w->begun) w->begun(w->ctx, w);
}

static void close_judge(struct desk *d, struct desk_judge *j) {
    pthread_mutex_lock(&d->lock); /* nobody wakes it meanwhile */
    judge_close(&j->owner);
    str_free(&j->identity);
    *j = (struct desk_judge){0};
    pthread_mutex_unlock(&d->lock);
}

/* A free place, or that of the judge that was used least lately. NULL: all are at work. */
static struct desk_judge *place_for_judge(struct desk *d) {
    struct desk_judge *oldest = NULL;
    for (int i = 0; i < MAX_JUDGES; i++) {
        struct desk_judge *j = &d->judge[i];
        if (j->identity.len == 0) return j;
        if (j->n_flights == 0 && (!oldest || j->used < oldest->used)) oldest = j;
    }
    if (oldest) close_judge(d, oldest);
    return oldest;
}

/* The judge of these options, opened where it is not there yet. NULL: with ST_OK all places are taken for now. */
static enum status judge_for(struct desk *d, const struct verify_options *o, struct desk_judge **out, struct err *e) {
    CLEANUP_STR struct str identity = STR_INIT;
    struct judge_owner owner;
    *out = NULL;
    verify_identity(o, &identity);
    for (int i = 0; i < MAX_JUDGES && !o->jail_problem; i++)
        if (d->judge[i].identity.len == identity.len && strcmp(str_c(&d->judge[i].identity), identity.p) == 0) {
            *out = &d->judge[i];
            d->judge[i].used = ++d->turn;
            return ST_OK;
        }
    struct desk_judge *j = place_for_judge(d);
    if (!j) return ST_OK;
    TRY(judge_open(o->jail_problem ? &(struct pool_options){0} : &d->o.pool, o, NULL, &owner, e));
    pthread_mutex_lock(&d->lock);
    j->owner = owner;
    j->identity = identity;
    identity = STR_INIT;
    j->is_jailed = o->jail_problem;
    j->used = ++d->turn;
    snprintf(j->settings, sizeof j->settings, "%016llx",
             (unsigned long long)judge_identity_hash(&j->owner.judge, o).now);
    pthread_mutex_unlock(&d->lock);
    if (d->o.recall) d->o.recall(d->o.recall_ctx, j->settings, &j->owner.judge);
    *out = j;
    return ST_OK;
}

/* A verdict has come, or is missing; for this time. True: the work is done. */
static bool take_verdict(struct desk_work *w, const struct desk_judge *j, bool final) {
    snprintf(w->settings, sizeof w->settings, "%s", j->settings);
    if (!final && w->item.verdict.outcome == OUTCOME_INFRASTRUCTURE && w->attempts < DESK_ATTEMPTS && !w->withdrawn) {
        log_warn("an answer has no verdict: %.300s; judging it again", w->item.verdict.message);
        return false;
    }
    finish(w, true);
    return true;
}

static void back_into_queue(struct desk *d, struct desk_work *w) {
    pthread_mutex_lock(&d->lock);
    list_add(&d->queue, w);
    pthread_mutex_unlock(&d->lock);
}

/* Judges a batch of one kind of settings in this process. */
static void judge_batch(struct desk *d, struct desk_judge *j, struct desk_work *const *batch, size_t n) {
    struct verify_item items[DESK_BATCH];
    struct err e = {0};
    for (size_t i = 0; i < n; i++) {
        begin(batch[i]);
        items[i] = batch[i]->item;
    }
    const enum status st = j->owner.judge.batch(j->owner.judge.ctx, items, n, &d->closing, &e);
    for (size_t i = 0; i < n; i++) {
        batch[i]->item.verdict = items[i].verdict;
        if (st == ST_CANCELLED) { /* the desk closes */
            finish(batch[i], false);
            continue;
        }
        if (st != ST_OK) {
            batch[i]->item.verdict = (struct verdict){.outcome = OUTCOME_INFRASTRUCTURE, .max_error = (double)NAN};
            snprintf(batch[i]->item.verdict.message, sizeof batch[i]->item.verdict.message, "%s", e.msg);
        }
        if (!take_verdict(batch[i], j, false)) back_into_queue(d, batch[i]);
    }
    /* Beyond repair, or a hostile problem, which must not be there while others are judged. */
    if (st != ST_OK || j->is_jailed) close_judge(d, j);
}

/* Whether one verifier may judge both. A hostile problem shares its verifier with nothing. */
static bool same_settings(const struct desk_work *a, const struct desk_work *b) {
    CLEANUP_STR struct str x = STR_INIT, y = STR_INIT;
    if (a->options.jail_problem != b->options.jail_problem) return false;
    if (a->options.jail_problem && strcmp(a->item.problem->code, b->item.problem->code) != 0) return false;
    if (memcmp(&a->options, &b->options, sizeof a->options) == 0) return true;
    verify_identity(&a->options, &x);
    verify_identity(&b->options, &y);
    return strcmp(x.p, y.p) == 0;
}

/* Takes the oldest work and what is judged as it is, at most DESK_BATCH. The lock is held. */
static size_t take_batch(struct desk *d, struct desk_work **batch) {
    size_t n = 0;
    for (struct desk_work **at = &d->queue.first; *at && n < DESK_BATCH;) {
        if (n > 0 && !same_settings(batch[0], *at))
            at = &(*at)->next;
        else
            batch[n++] = list_take_at(&d->queue, at);
    }
    return n;
}

/* What was withdrawn leaves the queue. The lock is held, but not meanwhile. */
static void drop_withdrawn(struct desk *d) {
    for (struct desk_work **at = &d->queue.first; *at;) {
        if (!(*at)->withdrawn && !d->closing) {
            at = &(*at)->next;
            continue;
        }
        struct desk_work *w = list_take_at(&d->queue, at);
        pthread_mutex_unlock(&d->lock);
        finish(w, false);
        pthread_mutex_lock(&d->lock);
        at = &d->queue.first;
    }
}

static void land(struct desk *d, const struct desk_work *w) {
    struct desk_work **at = &d->flights;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    w->judge->n_flights--;
}

/* Takes back from the streams what nobody wants any more, as far as they give it. */
static void recall_withdrawn(struct desk *d, bool all) {
    struct desk_work *next;
    for (struct desk_work *w = d->flights; w; w = next) {
        next = w->next;
        const struct judge *j = &w->judge->owner.judge;
        if (!(all || w->withdrawn) || !j->stream->withdraw(j->ctx, &w->item)) continue;
        land(d, w);
        finish(w, false);
    }
}

/* Takes verdicts from the streams, waiting a little where there are none. */
static void collect(struct desk *d) {
    struct verify_item *done[DESK_BATCH];
    int n_streams = 0;
    for (int i = 0; i < MAX_JUDGES; i++) n_streams += d->judge[i].n_flights > 0;
    for (int i = 0; i < MAX_JUDGES; i++) {
        struct desk_judge *j = &d->judge[i];
        if (j->n_flights == 0) continue;
        const struct judge_stream *s = j->owner.judge.stream;
        const size_t n = s->collect(j->owner.judge.ctx, done, DESK_BATCH, look_up_s / n_streams);
        for (size_t k = 0; k < n; k++) {
            struct desk_work *w = (struct desk_work *)done[k];
            s->settle(j->owner.judge.ctx, done[k], true);
            land(d, w);
            (void)take_verdict(w, j, true); /* the judge has asked as often as it will */
        }
    }
}

/* One round for work of one kind of settings. */
static void judge_some(struct desk *d, struct desk_work **batch, size_t n) {
    struct desk_judge *j;
    struct err e = {0};
    const enum status st = judge_for(d, &batch[0]->options, &j, &e);
    if (st != ST_OK || !j) {
        for (size_t i = 0; i < n; i++) {
            if (st != ST_OK)
                fail_work(batch[i], &e);
            else
                back_into_queue(d, batch[i]);
        }
        return;
    }
    if (!j->owner.judge.stream) {
        judge_batch(d, j, batch, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        begin(batch[i]);
        batch[i]->judge = j;
        batch[i]->next = d->flights;
        d->flights = batch[i];
        j->n_flights++;
        j->owner.judge.stream->submit(j->owner.judge.ctx, &batch[i]->item);
    }
}

static void *desk_main(void *desk) {
    struct desk *d = desk;
    struct desk_work *batch[DESK_BATCH];
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->queue.first && !d->closing && !d->flights) pthread_cond_wait(&d->changed, &d->lock);
        drop_withdrawn(d);
        if (d->closing && !d->flights) break;
        const size_t n = take_batch(d, batch);
        const bool closing = d->closing;
        pthread_mutex_unlock(&d->lock);
        if (n > 0) judge_some(d, batch, n);
        recall_withdrawn(d, closing);
        if (d->flights) collect(d);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < MAX_JUDGES; i++)
        if (d->judge[i].identity.len > 0) close_judge(d, &d->judge[i]);
    return NULL;
}

/* The lock is held. */
static void wake(struct desk *d) {
    pthread_cond_broadcast(&d->changed);
    for (int i = 0; i < MAX_JUDGES; i++)
        if (d->judge[i].identity.len > 0 && d->judge[i].owner.judge.stream)
            d->judge[i].owner.judge.stream->wake(d->judge[i].owner.judge.ctx);
}

void desk_submit(struct desk *d, struct desk_work *w) {
    pthread_mutex_lock(&d->lock);
    list_add(&d->queue, w);
    wake(d);
    pthread_mutex_unlock(&d->lock);
}

void desk_withdraw(struct desk *d, struct desk_work *w) {
    pthread_mutex_lock(&d->lock);
    w->withdrawn = true;
    wake(d);
    pthread_mutex_unlock(&d->lock);
}

/* ---- begin and end ------------------------------------------------------------------------------------------------*/

enum status desk_open(const struct desk_options *o, struct desk **out, struct err *e) {
    struct desk *d = xcalloc(1, sizeof *d);
    *out = NULL;
    ASSERT(o->n_configs > 0);
    d->o = *o;
    list_begin(&d->queue);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->shelf = shelf_open(o->any_source, o->max_factor);
    enum status st = shelf_load(d->shelf, "builtin", e);
    for (size_t i = 0; i < o->n_configs && st == ST_OK; i++) st = shelf_load(d->shelf, o->config[i].source, e);
    for (size_t i = 0; i < o->n_sources && st == ST_OK; i++) st = shelf_load(d->shelf, o->source[i], e);
    if (st == ST_OK) {
        d->started = pthread_create(&d->thread, NULL, desk_main, d) == 0;
        if (!d->started) st = FAIL(e, ST_IO, "the thread that judges does not start");
    }
    if (st != ST_OK) {
        desk_close(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

void desk_close(struct desk *d) {
    if (!d) return;
    if (d->started) {
        pthread_mutex_lock(&d->lock);
        d->closing = true;
        wake(d);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    shelf_close(d->shelf);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}
