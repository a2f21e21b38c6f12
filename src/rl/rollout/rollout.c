#include "rl/rollout/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/json.h"
#include "policy/feedback.h"
#include "rl/rollout/raicl.h"

enum { SUMMARY_TOKENS = 150 }; /* of the thought, where the answer says nothing in front of its kernel */

/* ---- prompts ------------------------------------------------------------------------------------------------------*/

struct sample_params rollout_sampling(const struct actor *a, const struct rollout_params *p, int max_tokens,
                                      const struct stop_set *stops) {
    return (struct sample_params){.temperature = (float)p->o.temperature,
                                  .top_p = 1,
                                  .min_p = (float)a->o.min_p,
                                  .max_tokens = max_tokens,
                                  .stop_ids = stops->ids,
                                  .n_stop_ids = stops->n,
                                  .seed = p->seed};
}

static bool has_prototype(const struct actor *a) { return !a->backend || !a->backend->is_module; }

/* What a prompt shows of a trajectory, newest attempts at the end; less and less of it until it fits. */
struct shown {
    const struct trajectory *t; /* NULL: a first turn */
    int attempts, examples;
    bool summaries, details;
};

/* One thing less: the oldest attempt, then the last example, then the model's words, then the feedback's details. */
static bool show_less(struct shown *s) {
    if (s->attempts > 1)
        s->attempts--;
    else if (s->examples > 0)
        s->examples--;
    else if (s->attempts > 0 && s->summaries)
        s->summaries = false;
    else if (s->attempts > 0 && s->details)
        s->details = false;
    else
        return false;
    return true;
}

static const char *feedback_text(const struct actor *a, const struct episode *ep, bool details, struct arena *arena) {
    CLEANUP_STR struct str s = STR_INIT;
    if (a->o.full_feedback)
        feedback_render_full(&ep->verdict, a->backend, &s);
    else
        feedback_render(&ep->verdict, &s);
    if (!details) s.len = strcspn(str_c(&s), "\n");
    return arena_strndup(arena, str_c(&s), s.len);
}

static void build_prompt(const struct actor *a, const struct problem *p, const struct spec *spec,
                         const struct prompt_example *examples, const struct shown *show, struct arena *arena,
                         struct chat_message messages[2]) {
    struct prompt_attempt attempts[PROMPT_ATTEMPTS_MAX];
    for (int i = 0; i < show->attempts; i++) {
        const struct episode *ep = show->t->turn[show->t->n_turns - show->attempts + i];
        attempts[i] = (struct prompt_attempt){.kernel = ep->kernel,
                                              .summary = show->summaries ? ep->summary : NULL,
                                              .feedback = feedback_text(a, ep, show->details, arena)};
    }
    prompt_build(&(struct prompt_input){.problem = p,
                                        .spec = spec,
                                        .backend = a->backend,
                                        .think = a->think,
                                        .precision = a->precision,
                                        .hardware = a->hardware,
                                        .examples = examples,
                                        .n_examples = show->examples,
                                        .attempts = attempts,
                                        .n_attempts = show->attempts},
                 arena, messages);
}

/* Fills out, where there is a tokenizer, and returns how many tokens the messages have; without one a guess: four bytes
 * make a token. */
int64_t rollout_encode(const struct actor *a, const struct chat_message messages[2], struct ids *out) {
    out->len = 0;
    if (!a->tok) return (int64_t)(strlen(messages[0].content) + strlen(messages[1].content)) / 4;
    chat_encode(a->tok, a->style, messages, 2, CHAT_GENERATE, out);
    return (int64_t)out->len;
}

/* The prompt of a problem's first turn (t NULL), or of a trajectory's next one, in at most max_len tokens; its text
 * lies in the arena. Without a tokenizer out stays empty. */
static enum status make_messages(const struct actor *a, const struct problem *p, const struct trajectory *t,
                                 int64_t max_len, struct arena *arena, struct chat_message messages[2], struct ids *out,
                                 struct err *e) {
    const struct spec *spec = NULL;
    if (has_prototype(a)) {
        judging_pause(a->judging); /* the verifier is asked by one thread at a time */
        const enum status st = verifier_spec(a->verifier, p, &spec, e);
        judging_resume(a->judging);
        TRY(st);
    }
    const struct prompt_example *examples = a->examples;
    struct shown show = {.t = t, .examples = a->n_examples, .summaries = true, .details = true};
    if (a->raicl) TRY(raicl_examples(a->raicl, p, &examples, &show.examples, e));
    if (t) show.attempts = a->o.history == HISTORY_ALL ? t->n_turns : 1;
    int64_t len;
    do {
        arena_reset(arena);
        build_prompt(a, p, spec, examples, &show, arena, messages);
        len = rollout_encode(a, messages, out);
    } while (len > max_len && show_less(&show));
    if (len <= max_len) return ST_OK;
    return FAIL(e, ST_INVALID, "the prompt has %lld tokens, %lld are allowed (prompt_max_tokens, max_tokens)",
                (long long)len, (long long)max_len);
}

/* A prompt as the actor takes it: ids, or messages, which are malloc'ed then. */
struct turn_prompt {
    struct ids ids;
    char *message[2];
};

static enum status make_prompt(const struct actor *a, const struct problem *p, const struct trajectory *t,
                               int64_t max_len, struct turn_prompt *out, struct err *e) {
    struct arena arena = ARENA_INIT;
    struct chat_message messages[2];
    const enum status st = make_messages(a, p, t, max_len, &arena, messages, &out->ids, e);
    for (int i = 0; st == ST_OK && a->texts.fn && i < 2; i++) out->message[i] = xstrdup(messages[i].content);
    arena_free(&arena);
    return st;
}

static int64_t longest_prompt(const struct actor *a, int max_tokens) {
    if (a->texts.fn) return a->o.prompt_tokens > 0 ? a->o.prompt_tokens : INT64_MAX;
    const int64_t left = (int64_t)model_cfg(a->model)->max_positions - max_tokens;
    return a->o.prompt_tokens > 0 && a->o.prompt_tokens < left ? a->o.prompt_tokens : left;
}

enum status rollout_prompt(const struct actor *a, const struct problem *p, struct ids *out, struct err *e) {
    struct turn_prompt prompt = {.ids = *out};
    ASSERT(!a->texts.fn);
    const enum status st = make_prompt(a, p, NULL, longest_prompt(a, 0), &prompt, e);
    *out = prompt.ids;
    return st;
}

enum status rollout_messages(const struct actor *a, const struct problem *p, int max_tokens, struct arena *arena,
                             struct chat_message messages[2], struct ids *out, struct err *e) {
    return make_messages(a, p, NULL, a->tok ? longest_prompt(a, max_tokens) : INT64_MAX, arena, messages, out, e);
}

void rollout_put_messages(struct str *out, const char *key, const struct chat_message messages[2]) {
    js_begin(out, key, '[');
    for (int i = 0; i < 2; i++) {
        js_begin(out, NULL, '{');
        js_put_str(out, "role", messages[i].role);
        js_put_str(out, "content", messages[i].content);
        js_end(out, '}');
    }
    js_end(out, ']');
}

enum status rollout_refine_prompt(const struct actor *a, const struct problem *p, struct episode *failed,
                                  int max_tokens, struct ids *out, struct err *e) {
    const struct trajectory t = {.n_turns = 1, .turn = {failed}};
    struct turn_prompt prompt = {.ids = *out};
    ASSERT(!a->texts.fn);
    const enum status st = make_prompt(a, p, &t, longest_prompt(a, max_tokens), &prompt, e);
    *out = prompt.ids;
    return st;
}

/* ---- one turn -----------------------------------------------------------------------------------------------------*/

/* Number of leading tokens whose text ends within the first `bytes` bytes. */
static int tokens_in(const struct actor *a, const struct sample *s, size_t bytes) {
    CLEANUP_STR struct str text = STR_INIT;
    for (int i = 0; i < s->n; i++) {
        tokenizer_decode(a->tok, &s->ids[i], 1, true, &text);
        if (text.len > bytes) return i;
    }
    return s->n;
}

/* The first SUMMARY_TOKENS tokens of a thought; without a tokenizer whole words of some four times as many bytes. */
static char *short_thought(const struct actor *a, struct slice thought) {
    struct ids ids = {0};
    struct str text = STR_INIT;
    if (!a->tok) {
        size_t n = thought.n;
        if (n > 4 * SUMMARY_TOKENS)
            for (n = 4 * SUMMARY_TOKENS; n > 0 && thought.p[n] != ' ' && thought.p[n] != '\n';) n--;
        return xstrndup(thought.p, n);
    }
    tokenizer_encode(a->tok, thought.p, thought.n, false, &ids);
    tokenizer_decode(a->tok, ids.p, ids.len < SUMMARY_TOKENS ? ids.len : SUMMARY_TOKENS, true, &text);
    ids_free(&ids);
    return str_steal(&text);
}

struct parsed rollout_read(const struct backend_info *backend, const char *text, size_t n, struct episode *ep) {
    struct parsed p;
    parse_completion(text, n, prompt_language(backend), &p);
    ep->format_ok = p.format_ok;
    ep->thought_chars = p.thought_chars;
    ep->kernel_chars = p.kernel_chars;
    if (p.kernel.p) ep->kernel = xstrndup(p.kernel.p, p.kernel.n);
    return p;
}

void rollout_read_file(const char *source, struct episode *ep) {
    ep->format_ok = true;
    ep->kernel = xstrdup(source);
    ep->kernel_chars = utf8_chars(source, strlen(source));
}

/* The episode's text becomes its own; it begins with `begun`, which may be NULL. */
static struct parsed read_text(const struct actor *a, const char *begun, char *text, size_t n, struct episode *ep) {
    if (begun) {
        struct str whole = STR_INIT;
        str_adds(&whole, begun);
        str_add(&whole, text, n);
        free(text);
        n = whole.len;
        text = str_steal(&whole);
    }
    const struct parsed p = rollout_read(a->backend, text, n, ep);
    if (p.summary.p)
        ep->summary = xstrndup(p.summary.p, p.summary.n);
    else if (p.thought.p)
        ep->summary = short_thought(a, p.thought);
    ep->text = text;
    return p;
}

static void decode(const struct actor *a, const char *begun, struct episode *ep) {
    struct str text = STR_INIT;
    answer_text(a->tok, &ep->sample, NULL, true, &text);
    const size_t n = text.len;
    const struct parsed p = read_text(a, begun, str_steal(&text), n, ep);
    ep->tokens = ep->sample.n;
    if (p.answer > 0 && !begun) ep->plan_tokens = tokens_in(a, &ep->sample, p.answer);
}

void rollout_decode(const struct actor *a, struct episode *ep) { decode(a, NULL, ep); }

/* A turn while it is sampled: finished samples go to their episodes, and with those to the judge. */
struct turn {
    const struct actor *a;
    const struct rollout_params *p;
    struct rollout *r;
    struct sample *samples;    /* [total], or */
    struct text_answer *texts; /* [total], of an actor that answers in text */
    struct episode **ep;       /* [total], beside them */
    struct journal_place *at;
    const struct sample_group **group;
    int total, taken;
};

static bool has_come(const struct turn *t, int i) {
    return t->texts ? t->texts[i].text != NULL : t->samples[i].ids != NULL;
}

static void take_sample(struct turn *t, int i) {
    struct episode *ep = t->ep[i];
    if (t->texts) {
        ep->tokens = t->texts[i].tokens;
        (void)read_text(t->a, t->group[i]->begun, t->texts[i].text, strlen(t->texts[i].text), ep);
        t->texts[i].text = NULL;
    } else {
        ep->sample = t->samples[i];
        t->samples[i] = (struct sample){0};
        decode(t->a, t->group[i]->begun, ep);
    }
    if (t->a->judging)
        judging_add(t->a->judging, &t->r->verdicts, t->group[i]->problem, ep->kernel, &t->at[i], &ep->verdict);
    t->taken++;
}

static bool on_progress(void *ctx, int64_t tokens, int done, int total) {
    struct turn *t = ctx;
    for (int i = 0; i < t->total && t->taken < done; i++)
        if (has_come(t, i)) take_sample(t, i);
    log_progress("  sampling: %d of %d answers, %lld tokens", done, total, (long long)tokens);
    lease_yield(t->a->lease);
    return !(t->a->cancel && *t->a->cancel);
}

enum status actor_run(const struct actor *a, const struct request *req, int n_req, struct sample *out,
                      engine_progress_fn *progress, void *ctx, struct err *e) {
    lease_begin(a->lease);
    const enum status st = a->policy.fn ? a->policy.fn(a->policy.ctx, req, n_req, out, progress, ctx, e)
                                        : engine_run(a->engine, req, n_req, out, progress, ctx, e);
    lease_end(a->lease);
    char where[400];
    if (st == ST_FAILED && model_find_nonfinite(a->model, ADAPTER_OWN, FIND_WEIGHTS, where, sizeof where)) {
        const struct err first = *e;
        return FAIL(e, ST_FAILED, "%s: %s", first.msg, where);
    }
    return st;
}

/* Samples are drawn already; those that progress has not taken go to their episodes. */
static enum status end_turn(struct turn *t, struct rollout_times *times, double from, struct err *e) {
    if (t->a->cancel && *t->a->cancel) return FAIL(e, ST_CANCELLED, "interrupted");
    for (int i = 0; i < t->total; i++)
        if (has_come(t, i)) take_sample(t, i);
    for (int i = 0; times && i < t->total; i++) times->tokens += t->ep[i]->tokens;
    if (times) times->generate_s += clock_now_s() - from;
    return ST_OK;
}

static struct journal_place place_of(const struct rollout_params *p, const struct sample_group *g, int task, int j) {
    return (struct journal_place){
        .step = p->step, .eval = p->eval, .group = p->first_task + task, .sample = g->first + j, .turn = g->turn};
}

/* The random stream of a group: sample j of it has stream (id, j). */
static uint64_t stream_of(const struct rollout_params *p, const struct sample_group *g, int task) {
    const uint64_t key[3] = {p->stream + (uint64_t)task, (uint64_t)g->turn, (uint64_t)g->first};
    return g->turn == 0 ? key[0] : hash_bytes(key, sizeof key, 0);
}

static enum status play_tokens(struct turn *t, int begin, int first_task, struct rollout_times *times, struct err *e) {
    const struct actor *a = t->a;
    const struct stop_set stops = answer_stops(a->tok, a->style, model_cfg(a->model), false);
    const int n_req = t->r->n - begin;
    const double from = clock_now_s();
    struct request *req = xcalloc((size_t)n_req, sizeof *req);
    t->samples = xcalloc((size_t)t->total, sizeof *t->samples);
    for (int i = 0; i < n_req; i++) {
        const struct sample_group *g = &t->r->group[begin + i];
        req[i] = (struct request){
            .prompt = g->prompt.p,
            .n_prompt = (int)g->prompt.len,
            .n_samples = g->n,
            .id = stream_of(t->p, g, g->task - first_task),
            .params = rollout_sampling(a, t->p, t->p->o.max_tokens, &stops),
        };
    }
    enum status st = actor_run(a, req, n_req, t->samples, on_progress, t, e);
    if (st == ST_OK) st = end_turn(t, times, from, e);
    for (int i = 0; i < t->total; i++) sample_free(&t->samples[i]);
    free(t->samples);
    free(req);
    return st;
}

static struct text_request text_request(const struct actor *a, const struct rollout_params *p,
                                        const struct sample_group *g, int task, int j) {
    const uint64_t key[3] = {p->seed, stream_of(p, g, task), (uint64_t)j};
    return (struct text_request){.system = g->message[0],
                                 .user = g->message[1],
                                 .temperature = p->o.temperature,
                                 .min_p = a->o.min_p,
                                 .max_tokens = p->o.max_tokens,
                                 .seed = hash_bytes(key, sizeof key, 0)};
}

static enum status play_texts(struct turn *t, int begin, int first_task, struct rollout_times *times, struct err *e) {
    const double from = clock_now_s();
    struct text_request *req = xcalloc((size_t)t->total, sizeof *req);
    t->texts = xcalloc((size_t)t->total, sizeof *t->texts);
    for (int i = begin, k = 0; i < t->r->n; i++)
        for (int j = 0; j < t->r->group[i].n; j++)
            req[k++] = text_request(t->a, t->p, &t->r->group[i], t->r->group[i].task - first_task, j);
    enum status st = t->a->texts.fn(t->a->texts.ctx, req, t->total, t->texts, on_progress, t, e);
    if (st == ST_OK) st = end_turn(t, times, from, e);
    for (int i = 0; i < t->total; i++) free(t->texts[i].text);
    free(t->texts);
    free(req);
    return st;
}

/* Samples the groups from `begin` on, which have their prompts. */
static enum status play(const struct actor *a, const struct rollout_params *p, struct rollout *r, int begin,
                        int first_task, struct rollout_times *times, struct err *e) {
    struct turn t = {.a = a, .p = p, .r = r};
    for (int i = begin; i < r->n; i++) t.total += r->group[i].n;
    if (t.total == 0) return ST_OK;
    t.ep = xcalloc((size_t)t.total, sizeof *t.ep);
    t.at = xcalloc((size_t)t.total, sizeof *t.at);
    t.group = xcalloc((size_t)t.total, sizeof *t.group);
    for (int i = begin, k = 0; i < r->n; i++) {
        struct sample_group *g = &r->group[i];
        for (int j = 0; j < g->n; j++, k++) {
            t.ep[k] = &g->ep[j];
            t.group[k] = g;
            t.at[k] = place_of(p, g, g->task - first_task, j);
        }
    }
    const enum status st =
        a->texts.fn ? play_texts(&t, begin, first_task, times, e) : play_tokens(&t, begin, first_task, times, e);
    free(t.ep);
    free(t.at);
    free(t.group);
    return st;
}

enum status rollout_play(const struct actor *a, const struct rollout_params *p, struct rollout *r, int begin,
                         struct err *e) {
    r->judging = a->judging;
    return play(a, p, r, begin, p->first_task, NULL, e);
}

/* ---- tasks and turns ----------------------------------------------------------------------------------------------*/

struct sample_group *rollout_add_group(struct rollout *r, const struct problem *p, struct ids *prompt, int task,
                                       int turn, int first, int n) {
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        r->group = xrealloc(r->group, (size_t)r->cap * sizeof *r->group);
    }
    struct sample_group *g = &r->group[r->n++];
    *g = (struct sample_group){.problem = p, .prompt = *prompt, .task = task, .turn = turn, .first = first, .n = n};
    *prompt = (struct ids){0};
    g->ep = xcalloc((size_t)n, sizeof *g->ep);
    return g;
}

/* The prompt becomes the group's. */
static struct sample_group *add_group(struct rollout *r, const struct problem *p, struct turn_prompt *prompt, int task,
                                      int turn, int first, int n) {
    struct sample_group *g = rollout_add_group(r, p, &prompt->ids, task, turn, first, n);
    for (int i = 0; i < 2; i++) g->message[i] = prompt->message[i];
    return g;
}

static enum status first_turns(const struct actor *a, const struct problem *const *problems, int n,
                               const struct rollout_params *p, struct rollout *r, struct err *e) {
    const int64_t longest = longest_prompt(a, p->o.max_tokens);
    const int total = r->n_trajectories + n * p->o.group_size;
    r->trajectory = xrealloc(r->trajectory, (size_t)(total + 1) * sizeof *r->trajectory);
    for (int i = 0; i < n; i++) {
        struct turn_prompt prompt = {0};
        if (make_prompt(a, problems[i], NULL, longest, &prompt, e) != ST_OK) {
            ids_free(&prompt.ids);
            return err_note(e, "problem %s", problems[i]->key);
        }
        const struct sample_group *g = add_group(r, problems[i], &prompt, r->n_tasks, 0, 0, p->o.group_size);
        for (int j = 0; j < p->o.group_size; j++)
            r->trajectory[r->n_trajectories++] =
                (struct trajectory){.task = r->n_tasks, .sample = j, .n_turns = 1, .turn = {&g->ep[j]}};
        r->n_tasks++;
    }
    return ST_OK;
}

static bool ends(const struct rollout_params *p, const struct episode *ep) {
    if (outcome_class(ep->verdict.outcome) == 'I') return true; /* nothing to tell the model */
    if (!p->o.early_stop || ep->verdict.outcome != OUTCOME_CORRECT) return false;
    return p->o.speedup_threshold <= 0 || ep->verdict.speedup >= p->o.speedup_threshold;
}

/* A group of one for each trajectory that goes on. */
static enum status next_turns(const struct actor *a, const struct rollout_params *p, struct rollout *r,
                              int first_trajectory, int first_group, int first_task, struct err *e) {
    const int64_t longest = longest_prompt(a, p->o.max_tokens);
    for (int k = first_trajectory; k < r->n_trajectories; k++) {
        struct trajectory *t = &r->trajectory[k];
        t->done |= ends(p, t->turn[t->n_turns - 1]);
        if (t->done) continue;
        const struct problem *problem = r->group[first_group + t->task - first_task].problem;
        struct turn_prompt prompt = {0};
        if (make_prompt(a, problem, t, longest, &prompt, e) != ST_OK) {
            ids_free(&prompt.ids);
            if (e->code != ST_INVALID) return err_note(e, "problem %s", problem->key);
            t->done = true; /* its attempt is too long to be shown */
            continue;
        }
        struct sample_group *g = add_group(r, problem, &prompt, t->task, t->n_turns, t->sample, 1);
        t->turn[t->n_turns++] = &g->ep[0];
    }
    return ST_OK;
}

enum status rollout_sample(const struct actor *a, const struct problem *const *problems, int n,
                           const struct rollout_params *p, struct rollout *r, struct rollout_times *times,
                           struct err *e) {
    const int first_task = r->n_tasks, first_group = r->n, first_trajectory = r->n_trajectories;
    ASSERT(p->o.max_turns <= TURNS_MAX);
    r->judging = a->judging;
    TRY(first_turns(a, problems, n, p, r, e));
    TRY(play(a, p, r, first_group, first_task, times, e));
    for (int turn = 1; turn < p->o.max_turns; turn++) {
        const double from = clock_now_s();
        TRY(judging_wait(a->judging, &r->verdicts, e));
        if (times) times->verify_s += clock_now_s() - from;
        const int begin = r->n;
        TRY(next_turns(a, p, r, first_trajectory, first_group, first_task, e));
        TRY(play(a, p, r, begin, first_task, times, e));
    }
    return ST_OK;
}

/* ---- answers alone ------------------------------------------------------------------------------------------------*/

static bool go_on(void *ctx, int64_t tokens, int done, int total) {
    const struct actor *a = ctx;
    log_progress("  sampling: %d of %d answers, %lld tokens", done, total, (long long)tokens);
    return !(a->cancel && *a->cancel);
}

static enum status answers_in_text(const struct actor *a, const struct rollout_params *p, struct sample_group *g,
                                   char **out, struct err *e) {
    struct text_request *req = xcalloc((size_t)g->n, sizeof *req);
    struct text_answer *texts = xcalloc((size_t)g->n, sizeof *texts);
    for (int j = 0; j < g->n; j++) req[j] = text_request(a, p, g, 0, j);
    const enum status st = a->texts.fn(a->texts.ctx, req, g->n, texts, go_on, (void *)(uintptr_t)a, e);
    for (int j = 0; j < g->n; j++) out[j] = texts[j].text;
    free(texts);
    free(req);
    return st;
}

static enum status answers_in_tokens(const struct actor *a, const struct rollout_params *p, struct sample_group *g,
                                     char **out, struct err *e) {
    const struct stop_set stops = answer_stops(a->tok, a->style, model_cfg(a->model), false);
    const struct request r = {.prompt = g->prompt.p,
                              .n_prompt = (int)g->prompt.len,
                              .n_samples = g->n,
                              .id = stream_of(p, g, 0),
                              .params = rollout_sampling(a, p, p->o.max_tokens, &stops)};
    struct sample *samples = xcalloc((size_t)g->n, sizeof *samples);
    const enum status st = actor_run(a, &r, 1, samples, go_on, (void *)(uintptr_t)a, e);
    for (int j = 0; j < g->n; j++) {
        struct str text = STR_INIT;
        if (st == ST_OK) answer_text(a->tok, &samples[j], NULL, true, &text);
        out[j] = str_steal(&text);
        sample_free(&samples[j]);
    }
    free(samples);
    return st;
}

enum status rollout_answers(const struct actor *a, const struct problem *problem, const struct rollout_params *p, int n,
                            char **out, struct str *prompt, struct err *e) {
    struct turn_prompt made = {0};
    memset(out, 0, (size_t)n * sizeof *out);
    enum status st = make_prompt(a, problem, NULL, longest_prompt(a, a->texts.fn ? 0 : p->o.max_tokens), &made, e);
    if (st != ST_OK) err_note(e, "problem %s", problem->key);
    struct sample_group g = {.prompt = made.ids, .message = {made.message[0], made.message[1]}, .n = n};
    if (st == ST_OK) st = a->texts.fn ? answers_in_text(a, p, &g, out, e) : answers_in_tokens(a, p, &g, out, e);
    if (st == ST_OK && a->cancel && *a->cancel)
        st = FAIL(e, ST_CANCELLED, "interrupted; the same command goes on from there");
    if (st == ST_OK && prompt && a->texts.fn) str_addf(prompt, "%s\n\n%s\n", g.message[0], g.message[1]);
    if (st == ST_OK && prompt && !a->texts.fn) tokenizer_decode(a->tok, g.prompt.p, g.prompt.len, false, prompt);
    for (int j = 0; st != ST_OK && j < n; j++) {
        free(out[j]);
        out[j] = NULL;
    }
    groups_free(&g, 1);
    return st;
}

/* ---- scores -------------------------------------------------------------------------------------------------------*/

struct reward_input rollout_reward_input(const struct rollout_params *p, const struct episode *ep) {
    return (struct reward_input){.verdict = &ep->verdict,
                                 .format_ok = ep->format_ok,
                                 .thought_chars = ep->thought_chars,
                                 .kernel_chars = ep->kernel_chars,
                                 .tokens = ep->tokens,
                                 .max_tokens = p->o.max_tokens};
}

struct reward rollout_reward(const struct rollout_params *p, const struct episode *ep) {
    const struct reward_input in = rollout_reward_input(p, ep);
    return reward_score(&p->weights, &in);
}

static void score_trajectory(const struct rollout_params *p, struct trajectory *t) {
    double total[TURNS_MAX], plan[TURNS_MAX], code[TURNS_MAX];
    bool known = true;
    for (int i = 0; i < t->n_turns; i++) {
        struct episode *ep = t->turn[i];
        ep->present = outcome_class(ep->verdict.outcome) != 'I';
        if (ep->present) ep->reward = rollout_reward(p, ep);
        total[i] = ep->reward.total;
        plan[i] = ep->reward.plan;
        code[i] = ep->reward.code;
    }
    reward_returns(total, t->n_turns, p->o.gamma, total);
    reward_returns(plan, t->n_turns, p->o.gamma, plan);
    reward_returns(code, t->n_turns, p->o.gamma, code);
    for (int i = t->n_turns - 1; i >= 0; i--) {
        struct episode *ep = t->turn[i];
        known &= ep->present; /* what a turn led to is not known once a later verdict is missing */
        ep->has_return = known;
        ep->ret = total[i];
        ep->plan_ret = plan[i];
        ep->code_ret = code[i];
    }
}

enum status rollout_score(const struct actor *a, const struct rollout_params *p, struct rollout *r, int first_task,
                          struct rollout_times *times, struct err *e) {
    const double from = clock_now_s();
    const enum status st = judging_wait(a->judging, &r->verdicts, e);
    log_progress_end();
    if (times) times->verify_s += clock_now_s() - from;
    TRY(st);
    for (int k = 0; k < r->n_trajectories; k++)
        if (r->trajectory[k].task >= first_task) score_trajectory(p, &r->trajectory[k]);
    return a->cancel && *a->cancel ? FAIL(e, ST_CANCELLED, "interrupted") : ST_OK;
}

enum status rollout_restore(const struct actor *a, int64_t step, struct rollout *r, const char *where, struct err *e) {
    r->judging = a->judging;
    for (int i = 0; i < r->n; i++) { /* first turns come in the order of their tasks, in front of later ones */
        const struct sample_group *g = &r->group[i];
        if (g->turn > 0) continue;
        if (g->task != r->n_tasks || g->first != 0) return FAIL(e, ST_PARSE, "%s: group %d is out of order", where, i);
        const size_t total = (size_t)(r->n_trajectories + g->n);
        r->trajectory = xrealloc(r->trajectory, (total + 1) * sizeof *r->trajectory);
        for (int j = 0; j < g->n; j++)
            r->trajectory[r->n_trajectories++] =
                (struct trajectory){.task = g->task, .sample = j, .n_turns = 1, .turn = {&g->ep[j]}};
        r->n_tasks++;
    }
    for (int i = 0; i < r->n; i++) {
        struct sample_group *g = &r->group[i];
        struct trajectory *t = NULL;
        for (int k = 0; g->turn > 0 && k < r->n_trajectories && !t; k++)
            if (r->trajectory[k].task == g->task && r->trajectory[k].sample == g->first) t = &r->trajectory[k];
        if (g->turn > 0 && (!t || t->n_turns != g->turn || g->n != 1))
            return FAIL(e, ST_PARSE, "%s: group %d is a turn without the one before it", where, i);
        if (t) t->turn[t->n_turns++] = &g->ep[0];
    }
    const struct rollout_params p = {.step = step};
    for (int i = 0; i < r->n; i++)
        for (int j = 0; j < r->group[i].n; j++) {
            struct sample_group *g = &r->group[i];
            const struct journal_place at = place_of(&p, g, g->task, j);
            rollout_decode(a, &g->ep[j]);
            judging_add(a->judging, &r->verdicts, g->problem, g->ep[j].kernel, &at, &g->ep[j].verdict);
        }
    return ST_OK;
}

enum status rollout_run(const struct actor *a, const struct problem *const *problems, int n,
                        const struct rollout_params *p, struct rollout *r, struct rollout_times *times, struct err *e) {
    const int first_task = r->n_tasks;
    TRY(rollout_sample(a, problems, n, p, r, times, e));
    return rollout_score(a, p, r, first_task, times, e);
}

void groups_free(struct sample_group *groups, int n) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; groups[i].ep && j < groups[i].n; j++) {
            struct episode *ep = &groups[i].ep[j];
            sample_free(&ep->sample);
            free(ep->text);
            free(ep->kernel);
            free(ep->summary);
            free(ep->ref_logp);
            free(ep->old_logp);
            free(ep->token_advantage);
        }
        free(groups[i].ep);
        ids_free(&groups[i].prompt);
        free(groups[i].message[0]);
        free(groups[i].message[1]);
        free(groups[i].begun);
        groups[i] = (struct sample_group){0};
    }
}

void rollout_free(struct rollout *r) {
    if (r->judging) judging_drop(r->judging, &r->verdicts);
    groups_free(r->group, r->n);
    free(r->group);
    free(r->trajectory);
    *r = (struct rollout){0};
}
