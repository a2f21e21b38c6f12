/* The queue: requests from submission to result. Any thread submits, cancels and takes results; the stepping thread
 * (engine.c) begins and ends requests. All lists lie under one lock, which nobody holds for longer than a walk over
 * them. A running ticket's request, samples and status are the stepping thread's alone until the ticket is in `ended`;
 * `cancelled` is atomic. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/internal.h"

/* ---- what can be run ----------------------------------------------------------------------------------------------*/

/* The last token is never fed back, so it needs no position. */
int request_limit(const struct engine *en, const struct request *r) {
    return (int)i64_min(r->params.max_tokens, (int64_t)en->cfg.max_positions - r->n_prompt + 1);
}

int64_t request_positions(const struct engine *en, const struct request *r) {
    return i64_max(r->n_prompt, (int64_t)r->n_prompt + request_limit(en, r) - 1);
}

static enum status check_stops(const struct engine *en, const struct sample_params *p, struct err *e) {
    if (p->n_stop_ids < 0 || p->n_stop_strings < 0 || p->n_stop_strings > MAX_STOP_STRINGS)
        return FAIL(e, ST_INVALID, "%d stop ids and %d stop strings, expected 0 or more, and at most %d strings",
                    p->n_stop_ids, p->n_stop_strings, MAX_STOP_STRINGS);
    for (int i = 0; i < p->n_stop_strings; i++) {
        const size_t n = strlen(p->stop_strings[i]);
        if (n < 1 || n > MAX_STOP_STRING_BYTES)
            return FAIL(e, ST_INVALID, "stop string %d has %zu bytes, expected 1..%d", i, n, MAX_STOP_STRING_BYTES);
    }
    if (p->n_stop_strings > 0 && !en->opt.token_bytes)
        return FAIL(e, ST_INVALID, "stop strings need the engine's token_bytes");
    return ST_OK;
}

static enum status check_ids(const char *what, const int32_t *ids, int n, int32_t limit, struct err *e) {
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= limit)
            return FAIL(e, ST_INVALID, "%s %d is %d, expected 0..%d", what, i, ids[i], limit - 1);
    return ST_OK;
}

static enum status check_number(const char *what, int n, int64_t most, struct err *e) {
    if (n >= 0 && n <= most) return ST_OK;
    return FAIL(e, ST_INVALID, "%s has %d entries, expected 0..%lld", what, n, (long long)most);
}

static enum status check_penalties(const struct sample_params *p, struct err *e) {
    if (!(p->frequency_penalty >= -2 && p->frequency_penalty <= 2))
        return FAIL(e, ST_INVALID, "frequency_penalty is %g, expected a number in [-2,2]",
                    (double)p->frequency_penalty);
    if (!(p->presence_penalty >= -2 && p->presence_penalty <= 2))
        return FAIL(e, ST_INVALID, "presence_penalty is %g, expected a number in [-2,2]", (double)p->presence_penalty);
    if (!(p->repetition_penalty >= 0 && p->repetition_penalty <= 1e6f))
        return FAIL(e, ST_INVALID, "repetition_penalty is %g, expected a number > 0 (1: off)",
                    (double)p->repetition_penalty);
    return ST_OK;
}

static enum status check_bad_words(const struct engine *en, const struct sample_params *p, struct err *e) {
    TRY(check_number("bad_words", p->n_bad_words, MAX_BAD_WORDS, e));
    for (int i = 0; i < p->n_bad_words; i++) {
        const struct token_run *w = &p->bad_words[i];
        if (w->n < 1 || w->n > MAX_BAD_WORD_TOKENS)
            return FAIL(e, ST_INVALID, "bad_words %d has %d tokens, expected 1..%d", i, w->n, MAX_BAD_WORD_TOKENS);
        if (check_ids("token", w->ids, w->n, en->opt.vocab_limit, e) != ST_OK) return err_note(e, "bad_words %d", i);
    }
    return ST_OK;
}

/* What changes the logits. */
static enum status check_processors(const struct engine *en, const struct sample_params *p, struct err *e) {
    TRY(check_penalties(p, e));
    TRY(check_number("logit_bias", p->n_logit_bias, MAX_LOGIT_BIAS, e));
    for (int i = 0; i < p->n_logit_bias; i++) {
        const struct logit_bias *b = &p->logit_bias[i];
        if (b->id < 0 || b->id >= en->opt.vocab_limit)
            return FAIL(e, ST_INVALID, "logit_bias names id %d, expected 0..%d", b->id, en->opt.vocab_limit - 1);
        if (!(b->value < INFINITY)) /* nor NaN */
            return FAIL(e, ST_INVALID, "logit_bias of id %d is %g, expected a finite number", b->id, (double)b->value);
    }
    TRY(check_number("allowed_token_ids", p->n_allowed_ids, en->cfg.V, e));
    TRY(check_ids("allowed_token_ids", p->allowed_ids, p->n_allowed_ids, en->opt.vocab_limit, e));
    return check_bad_words(en, p, e);
}

static enum status check_params(const struct engine *en, const struct request *r, struct err *e) {
    const struct sample_params *p = &r->params;
    const int least = r->prompt_logprobs ? 0 : 1;
    if (p->max_tokens < least) return FAIL(e, ST_INVALID, "max_tokens is %d, expected >= %d", p->max_tokens, least);
    if (p->min_tokens < 0 || p->min_tokens > p->max_tokens)
        return FAIL(e, ST_INVALID, "min_tokens is %d, expected 0..%d, which is max_tokens", p->min_tokens,
                    p->max_tokens);
    if (!(p->temperature >= 0 && p->temperature <= 1e6f))
        return FAIL(e, ST_INVALID, "temperature is %g, expected a number >= 0", (double)p->temperature);
    if (p->top_k < 0) return FAIL(e, ST_INVALID, "top_k is %d, expected >= 0 (0: off)", p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return FAIL(e, ST_INVALID, "top_p is %g, expected a number in (0,1]", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return FAIL(e, ST_INVALID, "min_p is %g, expected a number in [0,1]", (double)p->min_p);
    TRY(check_processors(en, p, e));
    return check_stops(en, p, e);
}

static enum status check(const struct engine *en, const struct request *r, struct err *e) {
    if (r->n_prompt < 1) return FAIL(e, ST_INVALID, "the prompt is empty");
    if (r->n_prompt > en->cfg.max_positions)
        return FAIL(e, ST_INVALID, "the prompt has %d tokens, the model's positions end at %d", r->n_prompt,
                    en->cfg.max_positions);
    TRY(check_ids("prompt token", r->prompt, r->n_prompt, en->cfg.V, e));
    if (r->n_samples < 1) return FAIL(e, ST_INVALID, "n_samples is %d, expected >= 1", r->n_samples);
    if (r->queue < 0 || r->queue >= ENGINE_QUEUES)
        return FAIL(e, ST_INVALID, "queue is %d, expected 0..%d", r->queue, ENGINE_QUEUES - 1);
    if (r->top_logprobs < 0 || r->top_logprobs > MAX_LOGPROBS || r->top_logprobs > en->cfg.V)
        return FAIL(e, ST_INVALID, "top_logprobs is %d, expected 0..%lld", r->top_logprobs,
                    (long long)i64_min(MAX_LOGPROBS, en->cfg.V));
    if (r->n_logprob_ids < 0 || r->n_logprob_ids > MAX_LOGPROBS)
        return FAIL(e, ST_INVALID, "%d logprob_ids, expected 0..%d", r->n_logprob_ids, MAX_LOGPROBS);
    TRY(check_ids("logprob_ids", r->logprob_ids, r->n_logprob_ids, en->cfg.V, e));
    return check_params(en, r, e);
}

enum status request_check(const struct engine *en, const struct request *r, int64_t label, struct err *e) {
    const enum status st = check(en, r, e);
    if (st != ST_OK) err_note(e, "request %lld", (long long)label);
    return st;
}

/* ---- tickets ------------------------------------------------------------------------------------------------------*/

void sample_logprobs_make(struct sample *s, const struct request *r, int n) {
    const size_t tops = (size_t)n * (size_t)r->top_logprobs, ids = (size_t)n * (size_t)r->n_logprob_ids;
    if (tops > 0) {
        s->top_ids = xmalloc(tops * sizeof *s->top_ids);
        s->top_logp = xmalloc(tops * sizeof *s->top_logp);
    }
    if (ids > 0) s->id_logp = xmalloc(ids * sizeof *s->id_logp);
}

struct ticket *ticket_new(const struct engine *en, const struct request *r, int64_t label, struct sample *samples) {
    struct ticket *t = xcalloc(1, sizeof *t);
    t->req = *r;
    t->label = label;
    t->samples = samples;
    if (r->params.max_tokens > 0)
        for (int i = 0; i < r->n_samples; i++) sample_logprobs_make(&samples[i], r, request_limit(en, r));
    return t;
}

void ticket_free(struct ticket *t) {
    if (!t) return;
    sample_free(&t->prompt);
    free(t->copies);
    free(t);
}

/* Copies n bytes to *at, which moves on, and returns where they are now. */
static void *copy_to(char **at, const void *from, size_t n) {
    void *to = *at;
    if (n > 0) memcpy(to, from, n);
    *at += n;
    return to;
}

static int32_t *copy_ids(char **at, const int32_t *ids, int n) { return copy_to(at, ids, (size_t)n * sizeof *ids); }

/* Bytes of all that a request points to. */
static size_t pointed_to(const struct request *r) {
    const struct sample_params *p = &r->params;
    size_t ids = (size_t)r->n_prompt + (size_t)r->n_logprob_ids + (size_t)p->n_stop_ids + (size_t)p->n_allowed_ids,
           strings = 0;
    for (int i = 0; i < p->n_bad_words; i++) ids += (size_t)p->bad_words[i].n;
    for (int i = 0; i < p->n_stop_strings; i++) strings += strlen(p->stop_strings[i]) + 1;
    return (size_t)p->n_stop_strings * sizeof *p->stop_strings + (size_t)p->n_bad_words * sizeof *p->bad_words +
           (size_t)p->n_logit_bias * sizeof *p->logit_bias + ids * sizeof(int32_t) + strings;
}

/* Makes the ticket the owner of all that its request points to. What holds pointers comes first, then numbers, then
 * text: each begins where its type may. */
static void own_copies(struct ticket *t) {
    struct request *r = &t->req;
    struct sample_params *p = &r->params;
    char *at = t->copies = xmalloc(pointed_to(r) + 1);
    const char **texts = copy_to(&at, p->stop_strings, (size_t)p->n_stop_strings * sizeof *p->stop_strings);
    struct token_run *words = copy_to(&at, p->bad_words, (size_t)p->n_bad_words * sizeof *p->bad_words);
    p->logit_bias = copy_to(&at, p->logit_bias, (size_t)p->n_logit_bias * sizeof *p->logit_bias);
    r->prompt = copy_ids(&at, r->prompt, r->n_prompt);
    r->logprob_ids = copy_ids(&at, r->logprob_ids, r->n_logprob_ids);
    p->stop_ids = copy_ids(&at, p->stop_ids, p->n_stop_ids);
    p->allowed_ids = copy_ids(&at, p->allowed_ids, p->n_allowed_ids);
    for (int i = 0; i < p->n_bad_words; i++) words[i].ids = copy_ids(&at, words[i].ids, words[i].n);
    for (int i = 0; i < p->n_stop_strings; i++)
        texts[i] = copy_to(&at, p->stop_strings[i], strlen(p->stop_strings[i]) + 1);
    p->stop_strings = texts;
    p->bad_words = words;
}

static void append(struct ticket_list *l, struct ticket *t) {
    t->next = NULL;
    if (l->last)
        l->last->next = t;
    else
        l->first = t;
    l->last = t;
}

static void take_from(struct ticket_list *l, struct ticket *t) {
    struct ticket *before = NULL;
    for (struct ticket *i = l->first; i != t; i = i->next) before = i;
    if (before)
        before->next = t->next;
    else
        l->first = t->next;
    if (l->last == t) l->last = before;
}

void ticket_end(struct engine *en, struct ticket *t, struct ticket_list *from) {
    for (int i = 0; i < t->req.n_samples; i++) {
        struct sample *s = &t->samples[i];
        if (t->status != ST_OK)
            sample_free(s);
        else if (!s->ids && t->req.params.max_tokens > 0)
            s->stop = STOP_CANCELLED; /* never begun */
    }
    if (t->to_score > 0) sample_free(&t->prompt); /* it was not read to its end */
    pthread_mutex_lock(&en->lock);
    take_from(from, t);
    append(&en->ended, t);
    en->n_waiting -= from == &en->waiting;
    en->n_running -= from == &en->running;
    en->n_ended++;
    en->n_failed += t->status != ST_OK;
    pthread_mutex_unlock(&en->lock);
}

/* ---- the queue, from within ---------------------------------------------------------------------------------------*/

void queue_init(struct engine *en) {
    pthread_condattr_t attr;
    pthread_mutex_init(&en->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&en->wake, &attr);
    pthread_condattr_destroy(&attr);
}

/* A ticket of engine_submit(), with the samples that it made. */
static void free_submitted(struct ticket *t) {
    for (int i = 0; i < t->req.n_samples; i++) sample_free(&t->samples[i]);
    free(t->samples);
    ticket_free(t);
}

void queue_free(struct engine *en) {
    struct ticket_list *const lists[] = {&en->waiting, &en->running, &en->ended};
    for (size_t l = 0; l < ARRAY_LEN(lists); l++)
        for (struct ticket *t = lists[l]->first, *next; t; t = next) {
            next = t->next;
            free_submitted(t);
        }
    free(en->dropped);
    pthread_cond_destroy(&en->wake);
    pthread_mutex_destroy(&en->lock);
}

bool queue_busy(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    const bool busy = en->n_waiting + en->n_running > 0;
    pthread_mutex_unlock(&en->lock);
    return busy;
}

bool queue_paused(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    const bool paused = en->paused > 0;
    pthread_mutex_unlock(&en->lock);
    return paused;
}

/* Under the lock. */
static void put(struct engine *en, struct ticket *t) {
    t->number = ++en->last_ticket;
    append(&en->waiting, t);
    en->n_waiting++;
    pthread_cond_broadcast(&en->wake);
}

void queue_put(struct engine *en, struct ticket *t) {
    pthread_mutex_lock(&en->lock);
    put(en, t);
    pthread_mutex_unlock(&en->lock);
}

void queue_start(struct engine *en, struct ticket *t) {
    pthread_mutex_lock(&en->lock);
    t->begun_ns = clock_now_ns();
    take_from(&en->waiting, t);
    append(&en->running, t);
    en->n_waiting--;
    en->n_running++;
    en->last_turn[t->req.queue] = ++en->begun;
    pthread_mutex_unlock(&en->lock);
}

struct ticket *queue_next(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    struct ticket *next = en->waiting.first;
    for (struct ticket *t = next; t; t = t->next)
        if (en->last_turn[t->req.queue] < en->last_turn[next->req.queue]) next = t;
    pthread_mutex_unlock(&en->lock);
    return next;
}

void queue_mark_ending(struct engine *en) {
    struct ticket_list *const lists[] = {&en->running, &en->waiting};
    pthread_mutex_lock(&en->lock);
    atomic_store(&en->n_cancelled, 0);
    for (size_t l = 0; l < ARRAY_LEN(lists); l++)
        for (struct ticket *t = lists[l]->first; t; t = t->next)
            t->ending = t->status != ST_OK || atomic_load(&t->cancelled);
    pthread_mutex_unlock(&en->lock);
}

struct ticket *queue_ending(struct engine *en, const struct ticket_list *l) {
    pthread_mutex_lock(&en->lock);
    struct ticket *t = l->first;
    while (t && !t->ending) t = t->next;
    pthread_mutex_unlock(&en->lock);
    return t;
}

/* Under the lock. */
static void cancel(struct engine *en, struct ticket *t) {
    if (!atomic_exchange(&t->cancelled, true)) atomic_fetch_add(&en->n_cancelled, 1);
}

void queue_cancel_all(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    for (struct ticket *t = en->running.first; t; t = t->next) cancel(en, t);
    for (struct ticket *t = en->waiting.first; t; t = t->next) cancel(en, t);
    pthread_mutex_unlock(&en->lock);
}

struct ticket *queue_take(struct engine *en, int64_t number) {
    pthread_mutex_lock(&en->lock);
    struct ticket *t = en->ended.first;
    while (t && number != 0 && t->number != number) t = t->next;
    if (t) take_from(&en->ended, t);
    pthread_mutex_unlock(&en->lock);
    return t;
}

void queue_step_begins(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    en->stepping = true;
    pthread_mutex_unlock(&en->lock);
}

void queue_step_ends(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    en->stepping = false;
    en->under_way_too = en->under_way > 0;
    en->load = (struct engine_load){.samples = en->n_order};
    if (en->kv) {
        en->load.blocks = en->n_blocks;
        en->load.blocks_free = kv_available(en->kv);
    }
    pthread_mutex_unlock(&en->lock);
}

static bool list_has(const struct ticket_list *l, int adapter) {
    for (const struct ticket *t = l->first; t; t = t->next)
        if (t->req.adapter == adapter) return true;
    return false;
}

bool queue_has(struct engine *en, int adapter, bool waiting) {
    pthread_mutex_lock(&en->lock);
    const bool has = list_has(&en->running, adapter) || (waiting && list_has(&en->waiting, adapter));
    pthread_mutex_unlock(&en->lock);
    return has;
}

/* ---- the queue, from without --------------------------------------------------------------------------------------*/

enum status engine_submit(struct engine *en, const struct request *r, int64_t *ticket, struct err *e) {
    *ticket = 0;
    TRY(check(en, r, e));
    struct ticket *t = ticket_new(en, r, 0, xcalloc((size_t)r->n_samples, sizeof(struct sample)));
    own_copies(t);
    pthread_mutex_lock(&en->lock);
    const bool gone = adapter_is_dropped(en, r->adapter);
    if (!gone) put(en, t);
    *ticket = t->label = t->number;
    pthread_mutex_unlock(&en->lock);
    if (!gone) return ST_OK;
    free_submitted(t);
    return FAIL(e, ST_INVALID, "adapter %d has been dropped", r->adapter);
}

void engine_cancel(struct engine *en, int64_t ticket) {
    pthread_mutex_lock(&en->lock);
    struct ticket *t = en->running.first;
    while (t && t->number != ticket) t = t->next;
    if (!t)
        for (t = en->waiting.first; t && t->number != ticket;) t = t->next;
    if (t) cancel(en, t);
    pthread_cond_broadcast(&en->wake);
    pthread_mutex_unlock(&en->lock);
}

bool engine_poll(struct engine *en, int64_t ticket, struct engine_result *out) {
    *out = (struct engine_result){0};
    struct ticket *t = queue_take(en, ticket);
    if (!t) return false;
    *out = (struct engine_result){.ticket = t->number,
                                  .status = t->status,
                                  .err = t->err,
                                  .samples = t->samples,
                                  .n_samples = t->status == ST_OK ? t->req.n_samples : 0,
                                  .prompt = t->prompt,
                                  .begun_ns = t->begun_ns};
    t->prompt = (struct sample){0};
    ticket_free(t);
    return true;
}

void engine_result_free(struct engine_result *r) {
    for (int i = 0; i < r->n_samples; i++) sample_free(&r->samples[i]);
    free(r->samples);
    sample_free(&r->prompt);
    *r = (struct engine_result){0};
}

/* Under the lock: whether a step has something to do. */
static bool has_work(const struct engine *en) {
    if (en->under_way_too || atomic_load(&en->n_cancelled) > 0) return true;
    return en->paused == 0 && en->n_waiting + en->n_running > 0;
}

bool engine_wait(struct engine *en, double timeout_s) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double seconds = fmin(fmax(timeout_s, 0), 1e6);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - floor(seconds)) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&en->lock);
    int late = 0;
    while (!has_work(en) && !en->stop_waiting && late == 0) late = pthread_cond_timedwait(&en->wake, &en->lock, &until);
    en->stop_waiting = false;
    const bool work = has_work(en);
    pthread_mutex_unlock(&en->lock);
    return work;
}

void engine_stop_waiting(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    en->stop_waiting = true;
    pthread_cond_broadcast(&en->wake);
    pthread_mutex_unlock(&en->lock);
}

void engine_pause(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    en->paused++;
    pthread_mutex_unlock(&en->lock);
}

void engine_resume(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    ASSERT(en->paused > 0);
    en->paused--;
    pthread_cond_broadcast(&en->wake);
    pthread_mutex_unlock(&en->lock);
}

bool engine_paused(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    const bool at_rest = en->paused > 0 && !en->stepping && !en->under_way_too;
    pthread_mutex_unlock(&en->lock);
    return at_rest;
}

struct engine_load engine_load(struct engine *en) {
    pthread_mutex_lock(&en->lock);
    struct engine_load now = en->load;
    now.waiting = en->n_waiting;
    now.running = en->n_running;
    pthread_mutex_unlock(&en->lock);
    return now;
}
