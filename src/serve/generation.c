#include "serve/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"

/* ---- making one ---------------------------------------------------------------------------------------------------*/

static uint64_t draw_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = (uint64_t)clock_now_ns();
    return seed >> 1; /* so that it is a positive number wherever it is read */
}

/* The request's own id becomes the tail of the reply's, where it can be one. */
static void make_id(struct generation *g) {
    static const char *const prefix[] = {[ASK_COMPLETIONS] = "cmpl-", [ASK_CHAT] = "chatcmpl-", [ASK_GENERATE] = ""};
    const char *given = g->a.request_id;
    if (given && *given && strlen(given) <= 128) {
        snprintf(g->id, sizeof g->id, "%s%s", prefix[g->a.api], given);
        return;
    }
    snprintf(g->id, sizeof g->id, "%s%016llx%08llx", prefix[g->a.api], (unsigned long long)draw_seed(),
             (unsigned long long)(draw_seed() >> 32));
}

/* Think tokens are split off where the model has them and nobody wants them in the text. */
static void find_think_tokens(struct generation *g, const struct tokenizer *t) {
    g->think = g->think_end = -1;
    if (g->a.api != ASK_CHAT || g->s->o->inline_reasoning) return;
    const int32_t begin = tokenizer_id(t, "<think>"), end = tokenizer_id(t, "</think>");
    if (begin < 0 || end < 0) return;
    g->think = begin;
    g->think_end = end;
}

static void make_samples(struct generation *g) {
    const struct ask *a = &g->a;
    const struct detokenize_options o = {.tokenizer = model_thread_policy(g->s->thread)->tok,
                                         .stop_strings = a->stop.p,
                                         .n_stop_strings = a->stop.n,
                                         .min_tokens = a->min_tokens,
                                         .include_stop = a->include_stop,
                                         .skip_special = !a->keep_special};
    g->sample = xcalloc((size_t)g->n_samples, sizeof *g->sample);
    const bool in_thought = g->think >= 0 && a->generation_prompt && !a->continue_final &&
                            chat_opens_thought(model_thread_policy(g->s->thread)->style);
    for (int i = 0; i < g->n_samples; i++) {
        detokenize_begin(&g->sample[i].text, &o);
        if (in_thought) g->sample[i].part = PART_REASONING;
    }
}

static struct generation *make(struct serve *s, struct http_exchange *x) {
    struct generation *g = xcalloc(1, sizeof *g);
    g->s = s;
    g->x = x;
    g->created = (int64_t)time(NULL);
    g->next = s->generations;
    if (g->next) g->next->before = g;
    s->generations = g;
    http_set_state(x, g);
    return g;
}

static bool fill(struct generation *g, struct tokenizer *t, struct ask_error *e) {
    const struct ask *a = &g->a;
    g->n_prompts = a->api == ASK_CHAT ? 1 : a->n_prompts;
    g->n_samples = g->n_prompts * a->n;
    g->top = (int)i64_max(i64_max(a->logprobs, a->prompt_logprobs), 0);
    g->prompt = xcalloc((size_t)g->n_prompts, sizeof *g->prompt);
    g->seed = xcalloc((size_t)g->n_prompts, sizeof *g->seed);
    for (int k = 0; k < g->n_prompts; k++) g->seed[k] = a->has_seed ? (uint64_t)a->seed : draw_seed();
    make_id(g);
    find_think_tokens(g, t);
    return prompts_make(g, t, e);
}

/* ---- metrics and the log ------------------------------------------------------------------------------------------*/

static void note_end(struct generation *g) {
    struct serve_metrics *m = &g->s->metrics;
    const struct job *j = g->job;
    const double now = (double)clock_now_ns() * 1e-9, begun = (double)j->submitted * 1e-9;
    int64_t prompt = 0, drawn = 0;
    bool complete = j->n_done == j->n_parts;
    for (int k = 0; k < g->n_prompts; k++) prompt += (int64_t)g->prompt[k].len;
    for (int i = 0; complete && i < g->n_samples; i++) {
        const struct job_sample *s = &j->sample[i];
        drawn += s->n;
        m->stopped += s->stop == STOP_TOKEN || s->stop == STOP_STRING;
        m->too_long += s->stop == STOP_LENGTH;
        m->aborted += s->stop == STOP_CANCELLED;
        histogram_add(&m->generated_tokens, s->n);
    }
    http_log_text(g->x, "model", g->model);
    http_log_number(g->x, "prompt_tokens", prompt);
    http_log_number(g->x, "completion_tokens", drawn);
    histogram_add(&m->prompt_tokens, (double)prompt);
    m->prompt += prompt;
    if (!complete) {
        m->left_waiting += j->waiting == g->n_samples;
        m->left_running += j->waiting < g->n_samples;
        m->aborted += g->n_samples;
        return;
    }
    m->generated += drawn;
    histogram_add(&m->whole, now - begun);
    if (j->first_token == 0 || drawn == 0 || j->part[0].begun == 0) return;
    const double first = (double)j->first_token * 1e-9, last = (double)j->last_token * 1e-9,
                 left_queue = (double)j->part[0].begun * 1e-9;
    histogram_add(&m->first_token, first - begun);
    histogram_add(&m->queued, left_queue - begun);
    histogram_add(&m->prefill, first - left_queue);
    histogram_add(&m->decode, last - first);
    histogram_add(&m->inference, last - left_queue);
    if (drawn > g->n_samples)
        histogram_add(&m->between_tokens, (last - first) * g->n_samples / (double)(drawn - g->n_samples));
}

/* ---- admission ----------------------------------------------------------------------------------------------------*/

/* Seconds until what waits has probably begun. */
static int retry_after(const struct serve *s) {
    const double waiting = (double)model_thread_waiting(s->thread), done = s->metrics.whole.sum;
    int64_t n = 0;
    for (int i = 0; i <= s->metrics.whole.n; i++) n += s->metrics.whole.count[i];
    const double each = n > 0 ? done / (double)n : 1, at_once = model_thread_batch(s->thread);
    return (int)i64_max(1, i64_min(60, (int64_t)(waiting * each / at_once)));
}

static bool has_room(struct generation *g) {
    struct serve *s = g->s;
    const int64_t waiting = model_thread_waiting(s->thread) + s->n_held;
    char seconds[16];
    if (waiting == 0 || waiting + g->n_samples <= s->o->max_queue) return true;
    snprintf(seconds, sizeof seconds, "%d", retry_after(s));
    http_add_header(g->x, "retry-after", seconds);
    s->metrics.refused_queue++;
    http_reply_error(g->x, 429, "queue_full", NULL,
                     "%lld sequences wait, and the request has %d; the limit is %d (--max-queue)", (long long)waiting,
                     g->n_samples, s->o->max_queue);
    return false;
}

static void hold(struct generation *g) {
    if (!g->held) g->s->n_held += g->n_samples;
    g->held = true;
    serve_wait(g->s, g->x);
}

static void release(struct generation *g) {
    if (g->held) g->s->n_held -= g->n_samples;
    g->held = false;
}

static int status_of(enum status st) {
    return st == ST_INVALID || st == ST_MEMORY || st == ST_CONFIG || st == ST_PARSE || st == ST_UNSUPPORTED ? 400 : 500;
}

static bool submit(struct generation *g, int adapter) {
    struct err e;
    g->job = job_new(g->s->thread, g->n_prompts, g->a.n, g->top);
    for (int k = 0; k < g->n_prompts; k++) {
        const enum status st = prompts_submit(g, k, adapter, &e);
        if (st == ST_OK) continue;
        job_drop(g->job);
        g->job = NULL;
        http_reply_failure(g->x, status_of(st), NULL, NULL, &e);
        return false;
    }
    return true;
}

static void job_news(struct job *j) {
    struct generation *g = j->ctx;
    http_wake(g->x);
}

/* Submits the request, or leaves it waiting for its adapter or for the end of a pause. */
static void admit(struct generation *g) {
    struct serve *s = g->s;
    struct served_model *m = serve_model(s, g->x, g->a.model);
    struct err e;
    bool ready;
    if (!m) return;
    if (!g->held && !has_room(g)) return;
    if (s->pausing == PAUSE_WAITING) {
        hold(g);
        return;
    }
    const enum status st = models_use(&s->models, m, &ready, &e);
    if (st != ST_OK) {
        http_reply_failure(g->x, status_of(st), NULL, "model", &e);
        return;
    }
    if (!ready) {
        hold(g);
        return;
    }
    release(g);
    g->model = xstrdup(m->name);
    g->called = xstrdup(g->a.model && *g->a.model && strcmp(g->a.model, "default") != 0 ? g->a.model : m->name);
    memcpy(g->fingerprint, m->fingerprint, sizeof g->fingerprint);
    make_samples(g);
    if (!submit(g, m->adapter)) return;
    g->job->ctx = g;
    g->job->news = job_news;
    if (g->a.stream) generation_stream(g);
}

static struct generation *of_work(struct work *w) {
    return (struct generation *)(void *)((char *)w - offsetof(struct generation, work));
}

/* Any thread. */
static void parse(struct work *w, struct tokenizer *t) {
    struct generation *g = of_work(w);
    if (t)
        g->fine =
            ask_parse(g->a.api, str_c(&w->body), w->body.len, &g->s->limits, &g->a, &g->error) && fill(g, t, &g->error);
    else
        g->error = (struct ask_error){.status = 500, .message = "the tokenizer cannot be opened"};
}

static void free_generation(struct generation *g);

static void parsed(struct work *w) {
    struct generation *g = of_work(w);
    if (!w->x) {
        free_generation(g);
        return;
    }
    serve_note_unknown(g->s, &g->a);
    if (!g->fine) {
        reply_ask_error(w->x, &g->error);
        return;
    }
    http_wake_after(w->x, g->s->o->max_wait_s);
    admit(g);
}

static void begin(struct serve *s, struct http_exchange *x, enum ask_api api) {
    if (!serve_is_up(s, x)) return;
    struct generation *g = make(s, x);
    g->a.api = api;
    g->work = (struct work){.run = parse, .done = parsed};
    work_begin(&g->work, s, x);
}

void completions_begin(void *serve, struct http_exchange *x) { begin(serve, x, ASK_COMPLETIONS); }
void chat_begin(void *serve, struct http_exchange *x) { begin(serve, x, ASK_CHAT); }
void generate_begin(void *serve, struct http_exchange *x) { begin(serve, x, ASK_GENERATE); }

/* ---- what happens -------------------------------------------------------------------------------------------------*/

/* The request comes to nothing: a reply that has begun says so at its end. */
static void fail(struct generation *g, int status, const char *code, const char *why) {
    g->failed = true;
    g->failed_status = status;
    g->failed_code = code;
    g->failed_why = why;
    if (g->job) job_cancel(g->job);
    if (http_replied(g->x)) {
        http_wake(g->x);
        return;
    }
    http_add_header(g->x, "retry-after", "5");
    http_reply_error(g->x, status, code, NULL, "%s", why);
}

static void reply_failed_part(struct generation *g, const struct job_part *p) {
    const int status = status_of(p->status);
    if (status >= 500) http_add_header(g->x, "x-should-retry", "false");
    http_reply_failure(g->x, status, status >= 500 ? "engine_error" : NULL, NULL, &p->err);
}

static void look_for_end(struct generation *g) {
    const struct job *j = g->job;
    for (int k = 0; k < j->n_parts; k++)
        if (j->part[k].done && j->part[k].status != ST_OK) {
            reply_failed_part(g, &j->part[k]);
            return;
        }
    if (j->n_done == j->n_parts) generation_reply(g);
}

void generation_event(void *serve, struct http_exchange *x, enum http_event e) {
    struct generation *g = http_state(x);
    struct serve *s = serve;
    if (!g || g->failed) return;
    switch (e) {
    case HTTP_WOKEN:
        if (g->job)
            look_for_end(g);
        else if (!g->work.pending)
            admit(g);
        break;
    case HTTP_TIME_UP:
        if (g->job && g->job->waiting < g->n_samples) break;
        s->metrics.refused_wait++;
        fail(g, 503, "busy", "the request has waited too long for its first token");
        break;
    case HTTP_CUT: fail(g, 503, "draining", "the server is ending"); break;
    }
}

static void free_generation(struct generation *g) {
    for (int k = 0; g->prompt && k < g->n_prompts; k++) ids_free(&g->prompt[k]);
    for (int i = 0; g->sample && i < g->n_samples; i++) detokenize_free(&g->sample[i].text);
    free(g->prompt);
    ids_free(&g->bad_ids);
    free(g->bad_words);
    free(g->seed);
    free(g->sample);
    free(g->model);
    free(g->called);
    str_free(&g->head);
    ask_free(&g->a);
    free(g);
}

void generation_end(void *serve, struct http_exchange *x) {
    struct generation *g = http_state(x);
    struct serve *s = serve;
    if (!g) return;
    serve_stop_waiting(s, x);
    release(g);
    if (g->job) {
        note_end(g);
        job_drop(g->job);
    }
    if (g->before)
        g->before->next = g->next;
    else
        s->generations = g->next;
    if (g->next) g->next->before = g->before;
    if (work_end(&g->work)) free_generation(g);
}
