/* From what a client sends to what the engine takes: token ids, and a request. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/answer.h"
#include "serve/generation.h"

/* ---- token ids ----------------------------------------------------------------------------------------------------*/

void prompts_of_text(struct serve *s, struct ask_text text, bool specials, struct ids *out) {
    tokenizer_encode(model_thread_policy(s->thread)->tok, text.p, text.n, specials, out);
}

bool prompts_of_messages(struct serve *s, const struct ask *a, struct ids *out, struct ask_error *e) {
    const struct policy *p = model_thread_policy(s->thread);
    const enum chat_end end = a->continue_final ? CHAT_CONTINUE : a->generation_prompt ? CHAT_GENERATE : CHAT_CLOSED;
    enum chat_style style = p->style;
    struct err why = {0};
    if (style == N_CHAT_STYLES) return ask_fail(e, NULL, "messages", "%s", p->no_style);
    if (chat_check(style, a->message, (size_t)a->n_messages, &why) != ST_OK)
        return ask_fail(e, NULL, "messages", "%s", why.msg);
    if (a->thinking != ASK_THINK_DEFAULT) style = chat_style_thinking(style, a->thinking == ASK_THINK);
    chat_encode(p->tok, style, a->message, (size_t)a->n_messages, end, out);
    return true;
}

static bool too_long(const struct serve *s, const struct ask *a, int64_t n, struct ask_error *e) {
    return ask_fail(e, "context_length_exceeded", a->api == ASK_CHAT ? "messages" : "prompt",
                    "This model's maximum context length is %d tokens. However, the prompt has %s%lld tokens. Please "
                    "reduce the length of the prompt.",
                    s->max_len, n > s->max_len + 1 && a->api != ASK_GENERATE ? "about " : "", (long long)n);
}

/* Keeps the last tokens, where that is asked for. */
static void truncate_prompt(const struct serve *s, const struct ask *a, struct ids *v) {
    const int64_t room = i64_max(s->max_len - i64_max(a->max_tokens, 1), 1);
    const size_t keep = a->truncate < 0 ? (size_t)room : (size_t)a->truncate;
    if (a->truncate == 0 || v->len <= keep) return;
    memmove(v->p, v->p + (v->len - keep), keep * sizeof *v->p);
    v->len = keep;
}

static bool check_length(const struct serve *s, const struct ask *a, const struct ids *v, struct ask_error *e) {
    const int64_t n = (int64_t)v->len, most = s->max_len;
    if (n < 1) return ask_fail(e, NULL, "prompt", "the prompt has no token");
    if (n > most || (n == most && a->max_tokens != 0)) return too_long(s, a, n, e);
    if (s->o->strict_length && a->max_tokens > 0 && n + a->max_tokens > most)
        return ask_fail(e, "context_length_exceeded", "max_tokens",
                        "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld "
                        "in the prompt, %d in the answer).",
                        (long long)most, (long long)(n + a->max_tokens), (long long)n, a->max_tokens);
    return true;
}

static void add_prompt(struct serve *s, const struct ask_prompt *q, bool whole, struct ids *out) {
    const struct policy *p = model_thread_policy(s->thread);
    if (q->is_end) {
        const int32_t end = tokenizer_id(p->tok, "<|endoftext|>");
        if (end >= 0) ids_add(out, end);
    } else if (q->is_text) {
        (whole ? tokenizer_encode_whole : tokenizer_encode)(p->tok, q->text.p, q->text.n, true, out);
    } else {
        for (int i = 0; i < q->n_ids; i++) ids_add(out, q->ids[i]);
    }
}

bool prompts_make(struct serve *s, struct generation *g, struct ask_error *e) {
    const struct ask *a = &g->a;
    for (int k = 0; k < g->n_prompts; k++) {
        struct ids *v = &g->prompt[k];
        if (a->api == ASK_CHAT) {
            if (!prompts_of_messages(s, a, v, e)) return false;
        } else {
            add_prompt(s, &a->prompt[k], a->special_tokens, v);
        }
        truncate_prompt(s, a, v);
        if (!check_length(s, a, v, e)) return false;
    }
    return true;
}

/* ---- the engine's request -----------------------------------------------------------------------------------------*/

/* The runs of tokens that a word may be: as it stands, and behind a blank where that is another token of the same
 * length, as vLLM does it. */
static void add_word(struct serve *s, const char *word, struct ids *flat, struct token_run *runs, int *n) {
    struct ids plain = {0}, blank = {0};
    CLEANUP_STR struct str with_blank = STR_INIT;
    while (*word == ' ') word++;
    str_addf(&with_blank, " %s", word);
    prompts_of_text(s, (struct ask_text){word, strlen(word)}, false, &plain);
    prompts_of_text(s, (struct ask_text){with_blank.p, with_blank.len}, false, &blank);
    const struct ids *const both[] = {&plain, &blank};
    for (int i = 0; i < 2; i++) {
        const struct ids *v = both[i];
        if (v->len == 0 || (i == 1 && (v->len != plain.len || v->p[0] == plain.p[0]))) continue;
        runs[(*n)++] = (struct token_run){NULL, (int)v->len};
        for (size_t k = 0; k < v->len; k++) ids_add(flat, v->p[k]);
    }
    ids_free(&plain);
    ids_free(&blank);
}

/* *flat owns the ids of the runs. */
static struct token_run *bad_words(struct generation *g, struct ids *flat, int *n) {
    const struct ask_texts *w = &g->a.bad_words;
    struct token_run *runs = xcalloc((size_t)w->n * 2 + 1, sizeof *runs);
    *n = 0;
    for (int i = 0; i < w->n; i++) add_word(g->s, w->p[i], flat, runs, n);
    const int32_t *at = flat->p;
    for (int i = 0; i < *n; i++) {
        runs[i].ids = at;
        at += runs[i].n;
    }
    return runs;
}

/* The ids that end a sample: the request's, and the model's own unless they are to be ignored. malloc'ed. */
static int32_t *stop_ids(const struct generation *g, int *n) {
    const struct ask_ids *more = &g->a.stop_ids;
    const struct stop_set *own = &g->s->stops;
    int32_t *ids = xmalloc(((size_t)more->n + (size_t)own->n + 1) * sizeof *ids);
    *n = 0;
    for (int i = 0; i < more->n; i++) ids[(*n)++] = more->p[i];
    for (int i = 0; !g->a.ignore_eos && i < own->n; i++) ids[(*n)++] = own->ids[i];
    return ids;
}

static int answer_limit(const struct generation *g, int k) {
    const int room = g->s->max_len - (int)g->prompt[k].len;
    if (g->a.max_tokens >= 0) return (int)i64_min(g->a.max_tokens, room);
    return g->a.api == ASK_COMPLETIONS ? (int)i64_min(16, room) : room;
}

enum status prompts_submit(struct generation *g, int k, int adapter, struct err *e) {
    const struct ask *a = &g->a;
    int n_stops, n_words;
    struct ids flat = {0};
    CLEANUP_FREE int32_t *stops = stop_ids(g, &n_stops);
    CLEANUP_FREE struct token_run *words = bad_words(g, &flat, &n_words);
    const struct request r = {
        .prompt = g->prompt[k].p,
        .n_prompt = (int)g->prompt[k].len,
        .n_samples = a->n,
        .adapter = adapter,
        .top_logprobs = g->top,
        /* With max_tokens 0 the engine has nothing else to do. */
        .prompt_logprobs = a->prompt_logprobs >= 0 || (a->echo && a->logprobs >= 0) || a->max_tokens == 0,
        .prompt_ranks = a->prompt_logprobs >= 0,
        .processed_logprobs = g->s->o->processed_logprobs,
        .params = {.temperature = (float)a->temperature,
                   .top_k = a->top_k,
                   .top_p = (float)a->top_p,
                   .min_p = (float)a->min_p,
                   .max_tokens = answer_limit(g, k),
                   .min_tokens = a->min_tokens,
                   .stop_ids = stops,
                   .n_stop_ids = n_stops,
                   .stop_strings = a->stop.p,
                   .n_stop_strings = a->stop.n,
                   .seed = g->seed[k],
                   .repetition_penalty = (float)a->repetition_penalty,
                   .frequency_penalty = (float)a->frequency_penalty,
                   .presence_penalty = (float)a->presence_penalty,
                   .logit_bias = a->bias,
                   .n_logit_bias = a->n_bias,
                   .allowed_ids = a->allowed_ids.p,
                   .n_allowed_ids = a->allowed_ids.n,
                   .bad_words = words,
                   .n_bad_words = n_words},
    };
    const enum status st = job_submit(g->job, k, &r, e);
    ids_free(&flat);
    return st;
}
