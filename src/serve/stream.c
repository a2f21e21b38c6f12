/* Replies that are streamed: server-sent events. Chunks are made when the client can take them, so several tokens that
 * wait for a slow client leave together. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "serve/generation.h"

enum { CHUNK_TOKENS = 256 };

/* A chunk is the head, its choices, and what ends it. */
static void begin_chunk(const struct generation *g, struct str *out) {
    str_adds(out, "data: ");
    str_add(out, g->head.p, g->head.len);
}

static void end_chunk(const struct generation *g, struct str *out) {
    if (g->a.usage_always)
        put_usage(g, out);
    else if (g->a.usage)
        js_put_null(out, "usage");
    str_adds(out, "}\n\n");
}

static bool has_text(const struct generation *g, const struct piece *p) {
    return p->text.len > 0 || (p->reasoning.len > 0 && !g->a.no_reasoning);
}

static void put_delta(const struct generation *g, struct str *out, const struct piece *p, bool first) {
    js_begin(out, "delta", '{');
    if (first) {
        js_put_str(out, "role", "assistant");
        js_put_str(out, "content", "");
    } else {
        if (p->reasoning.len > 0 && !g->a.no_reasoning) {
            js_put_strn(out, "reasoning_content", p->reasoning.p, p->reasoning.len);
            js_put_strn(out, "reasoning", p->reasoning.p, p->reasoning.len);
        }
        if (p->text.len > 0) js_put_strn(out, "content", p->text.p, p->text.len);
    }
    js_end(out, '}');
}

static void put_choice(const struct generation *g, struct str *out, int i, const struct piece *p, bool first,
                       bool last) {
    const int k = i / g->a.n;
    js_begin(out, "choices", '[');
    js_begin(out, NULL, '{');
    js_put_i64(out, "index", i);
    if (g->a.api == ASK_CHAT)
        put_delta(g, out, p, first);
    else
        js_put_strn(out, "text", str_c(&p->text), p->text.len);
    if (p->n > 0 || p->tokens.len > 0)
        put_logprobs(g, out, p);
    else
        js_put_null(out, "logprobs");
    if (last) {
        put_finish(g, out, i);
    } else {
        js_put_null(out, "finish_reason");
        js_put_null(out, "stop_reason");
    }
    if (g->a.api == ASK_COMPLETIONS && g->n_prompts > 1 && !g->a.has_seed && last)
        js_put_i64(out, "seed", (int64_t)g->seed[k]);
    if (g->a.return_ids && first && g->a.api == ASK_COMPLETIONS)
        put_ids(out, "prompt_token_ids", g->prompt[k].p, g->prompt[k].len);
    if (g->a.return_ids) {
        js_begin(out, "token_ids", '[');
        str_add(out, str_c(&p->ids), p->ids.len);
        js_end(out, ']');
    }
    js_end(out, '}');
    js_end(out, ']');
    if (g->a.return_ids && first && g->a.api == ASK_CHAT)
        put_ids(out, "prompt_token_ids", g->prompt[k].p, g->prompt[k].len);
}

/* Whether a sample can be rendered yet: with echo and log-probabilities those of the prompt come with the end. */
static bool is_ready(const struct generation *g, int i) {
    return !(g->a.echo && g->a.logprobs >= 0) || g->job->part[i / g->a.n].done;
}

/* The first chunk of a message says whose it is. It goes before n tokens, which are counted already. */
static void first_message_chunk(struct generation *g, struct str *out, int i, int n) {
    const struct piece none = {0};
    g->completion_tokens -= n;
    begin_chunk(g, out);
    put_choice(g, out, i, &none, true, false);
    end_chunk(g, out);
    g->completion_tokens += n;
    g->sample[i].begun = true;
}

/* What sample i has that is new. False: nothing. */
static bool add_chunk(struct generation *g, struct str *out, int i) {
    struct gen_sample *m = &g->sample[i];
    struct piece p = {0};
    if (m->ended || !is_ready(g, i)) return false;
    const bool chat = g->a.api == ASK_CHAT, first = !m->begun;
    if (first && g->a.echo) piece_add_prompt(g, i, &p);
    const bool last = piece_add_drawn(g, i, &p, CHUNK_TOKENS);
    const bool any = last || p.n > 0 || p.text.len > 0;
    /* Ids and log-probabilities go out with the tokens; else a chunk has text. */
    const bool worth =
        last || has_text(g, &p) || (p.n > 0 && (g->a.return_ids || g->a.logprobs >= 0)) || (any && g->a.usage_always);
    if (worth && chat && first) first_message_chunk(g, out, i, p.n);
    if (worth) {
        begin_chunk(g, out);
        put_choice(g, out, i, &p, first && !chat, last);
        end_chunk(g, out);
        m->begun = true;
    }
    piece_free(&p);
    return worth;
}

static void add_error(const struct generation *g, struct str *out, int status, const char *code, const char *message) {
    (void)g;
    str_adds(out, "data: ");
    CLEANUP_STR struct str body = STR_INIT;
    http_error_json(&body, status, code, NULL, message);
    str_add(out, body.p, body.len);
    str_adds(out, "\n\n");
}

/* An error ends the stream: of a part that failed, or of all. */
static bool add_failure(const struct generation *g, struct str *out) {
    if (g->failed) {
        add_error(g, out, g->failed_status, g->failed_code, g->failed_why);
        return true;
    }
    for (int k = 0; k < g->job->n_parts; k++) {
        const struct job_part *p = &g->job->part[k];
        if (!p->done || p->status == ST_OK) continue;
        CLEANUP_STR struct str told = STR_INIT;
        http_tell_without_paths(&told, p->err.msg);
        add_error(g, out, 500, "engine_error", str_c(&told));
        return true;
    }
    return false;
}

static void add_last(struct generation *g, struct str *out) {
    if (g->a.usage) {
        begin_chunk(g, out);
        js_begin(out, "choices", '[');
        js_end(out, ']');
        put_usage(g, out);
        str_adds(out, "}\n\n");
    }
    str_adds(out, "data: [DONE]\n\n");
}

/* http_more_fn: one chunk of each sample that has something new. */
static enum http_more more(struct http_exchange *x, struct str *out) {
    struct generation *g = http_state(x);
    int ended = 0;
    if (add_failure(g, out)) {
        str_adds(out, "data: [DONE]\n\n");
        g->done = true;
        return HTTP_END;
    }
    for (int i = 0; i < g->n_samples; i++) {
        add_chunk(g, out, i);
        ended += g->sample[i].ended;
    }
    if (ended < g->n_samples) return out->len > 0 ? HTTP_MORE : HTTP_WAIT;
    add_last(g, out);
    g->done = true;
    return HTTP_END;
}

void generation_stream(struct generation *g) {
    put_head(g, &g->head, true);
    http_stream(g->x, 200, "text/event-stream; charset=utf-8", ": ping\n\n", more);
}
