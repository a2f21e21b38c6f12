/* From what a client sends to what the engine takes: token ids, and a request. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/answer.h"
#include "serve/generation.h"

/* ---- token ids ----------------------------------------------------------------------------------------------------*/

bool prompts_of_messages(const struct serve *s, struct tokenizer *t, const struct ask *a, struct ids *out,
                         struct ask_error *e) {
    const struct policy *p = model_thread_policy(s->thread);
    enum chat_style style = p->style;
    struct err why = {0};
    if (style == N_CHAT_STYLES) return ask_fail(e, NULL, "messages", "%s", p->no_style);
    if (chat_check(style, a->message, (size_t)a->n_messages, &why) != ST_OK)
        return ask_fail(e, NULL, "messages", "%s", why.msg);
    if (a->thinking != ASK_THINK_DEFAULT) style = chat_style_thinking(style, a->thinking == ASK_THINK);
    chat_encode(t, style, a->message, (size_t)a->n_messages, a->end, out);
    return true;
}

static bool too_long(const struct serve *s, const struct ask *a, int64_t n, struct ask_error *e) {
    return ask_fail(e, "context_length_exceeded", a->api == ASK_CHAT ? "messages" : "prompt",
                    "This model's maximum context length is %d tokens. However, the prompt has %lld tokens. Please "
                    "reduce the length of the prompt.",
                    s->max_len, (long long)n);
}

/* Keeps the last tokens, or the first, where that is asked for. */
static void truncate_prompt(const struct serve *s, const struct ask *a, struct ids *v) {
    const int64_t room = i64_max(s->max_len - i64_max(a->max_tokens, 1), 1);
    const size_t keep = a->truncate < 0 ? (size_t)room : (size_t)a->truncate;
    if (a->truncate == 0 || v->len <= keep) return;
    if (!a->truncate_right) memmove(v->p, v->p + (v->len - keep), keep * sizeof *v->p);
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

static void add_prompt(struct tokenizer *t, const struct ask_prompt *q, bool whole, struct ids *out) {
    if (q->is_end) {
        const int32_t end = tokenizer_id(t, "<|endoftext|>");
        if (end >= 0) ids_add(out, end);
    } else if (q->is_text) {
        (whole ? tokenizer_encode_whole : tokenizer_encode)(t, q->text.p, q->text.n, true, out);
    } else {
        for (int i = 0; i < q->n_ids; i++) ids_add(out, q->ids[i]);
    }
}

/* The runs of tokens that a word may be: as it stands, and behind a blank where that is another token of the same
 * length, as vLLM does it. */
static void add_word(struct generation *g, struct tokenizer *t, const char *word) {
    struct ids plain = {0}, blank = {0};
    CLEANUP_STR struct str with_blank = STR_INIT;
    while (*word == ' ') word++;
    str_addf(&with_blank, " %s", word);
    tokenizer_encode(t, word, strlen(word), false, &plain);
    tokenizer_encode(t, with_blank.p, with_blank.len, false, &blank);
    const struct ids *const both[] = {&plain, &blank};
    for (int i = 0; i < 2; i++) {
        const struct ids *v = both[i];
        if (v->len == 0 || (i == 1 && (v->len != plain.len || v->p[0] == plain.p[0]))) continue;
        g->bad_words[g->n_bad_words++] = (struct token_run){NULL, (int)v->len};
        for (size_t k = 0; k < v->len; k++) ids_add(&g->bad_ids, v->p[k]);
    }
    ids_free(&plain);
    ids_free(&blank);
}

static void make_bad_words(struct generation *g, struct tokenizer *t) {
    const struct ask_texts *w = &g->a.bad_words;
    if (w->n == 0) return;
    g->bad_words = xcalloc((size_t)w->n * 2, sizeof *g->bad_words);
    for (int i = 0; i < w->n; i++) add_word(g, t, w->p[i]);
    const int32_t *at = g->bad_ids.p;
    for (int i = 0; i < g->n_bad_words; i++) {
        g->bad_words[i].ids = at;
        at += g->bad_words[i].n;
    }
}

bool prompts_make(struct generation *g, struct tokenizer *t, struct ask_error *e) {
    const struct ask *a = &g->a;
    const struct serve *s = g->s;
    for (int k = 0; k < g->n_prompts; k++) {
        struct ids *v = &g->prompt[k];
        if (a->api != ASK_CHAT)
            add_prompt(t, &a->prompt[k], a->special_tokens, v);
        else if (!prompts_of_messages(s, t, a, v, e))
            return false;
        truncate_prompt(s, a, v);
        if (!check_length(s, a, v, e)) return false;
    }
    make_bad_words(g, t);
    return true;
}

/* ---- the engine's request -----------------------------------------------------------------------------------------*/

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

/* Tokens that the context has room for behind a prompt. */
static int room_behind(const struct generation *g, int k) { return g->s->max_len - (int)g->prompt[k].len; }

static int answer_limit(const struct generation *g, int k) {
    const int room = room_behind(g, k);
    if (g->a.max_tokens >= 0) return (int)i64_min(g->a.max_tokens, room);
    return g->a.api == ASK_COMPLETIONS ? (int)i64_min(16, room) : room;
}

enum status prompts_submit(struct generation *g, int k, int adapter, struct err *e) {
    const struct ask *a = &g->a;
    int n_stops;
    CLEANUP_FREE int32_t *stops = stop_ids(g, &n_stops);
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
                   /* What the context shortens is not refused for the least that was asked for. */
                   .min_tokens = (int)i64_min(a->min_tokens, room_behind(g, k)),
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
                   .bad_words = g->bad_words,
                   .n_bad_words = g->n_bad_words},
    };
    return model_job_submit(g->job, k, &r, e);
}
