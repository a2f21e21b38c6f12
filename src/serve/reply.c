/* Whole replies. A choice at a time, so that a large one is made while it is sent. Fields that were not asked for are
 * there, and null: clients of vLLM look for some of them without asking whether they are there. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "serve/generation.h"

enum { WHOLE_BYTES = 256 << 10 };

static void put_text_choice(struct generation *g, struct str *out, int i, struct piece *p) {
    const int k = i / g->a.n;
    js_put_strn(out, "text", str_c(&p->text), p->text.len);
    put_logprobs(g, out, p);
    put_finish(g, out, i);
    if (g->n_prompts > 1 && !g->a.has_seed) js_put_i64(out, "seed", (int64_t)g->seed[k]);
    if (g->a.return_ids)
        put_ids(out, "prompt_token_ids", g->prompt[k].p, g->prompt[k].len);
    else
        js_put_null(out, "prompt_token_ids");
    if (g->a.prompt_logprobs >= 0)
        put_prompt_logprobs(g, out, "prompt_logprobs", k);
    else
        js_put_null(out, "prompt_logprobs");
}

static void put_message_choice(struct generation *g, struct str *out, int i, struct piece *p) {
    js_begin(out, "message", '{');
    js_put_str(out, "role", "assistant");
    js_put_strn(out, "content", str_c(&p->text), p->text.len);
    js_put_null(out, "refusal");
    if (g->think >= 0 && !g->a.no_reasoning && p->reasoning.len > 0) {
        js_put_strn(out, "reasoning_content", p->reasoning.p, p->reasoning.len);
        js_put_strn(out, "reasoning", p->reasoning.p, p->reasoning.len);
    }
    js_end(out, '}');
    put_logprobs(g, out, p);
    put_finish(g, out, i);
}

static void put_choice(struct generation *g, struct str *out, int i) {
    struct piece p = {0};
    if (g->a.echo) piece_add_prompt(g, i, &p);
    const bool ended = piece_add_drawn(g, i, &p, INT32_MAX);
    ASSERT(ended);
    js_begin(out, NULL, '{');
    js_put_i64(out, "index", i);
    if (g->a.api == ASK_CHAT)
        put_message_choice(g, out, i, &p);
    else if (g->a.api == ASK_COMPLETIONS)
        put_text_choice(g, out, i, &p);
    else {
        put_logprobs(g, out, &p);
        put_finish(g, out, i);
    }
    if (g->a.return_ids || g->a.api == ASK_GENERATE) {
        js_begin(out, "token_ids", '[');
        str_add(out, str_c(&p.ids), p.ids.len);
        js_end(out, ']');
    } else {
        js_put_null(out, "token_ids");
    }
    js_end(out, '}');
    piece_free(&p);
}

static void put_end(struct generation *g, struct str *out) {
    js_end(out, ']');
    put_usage(g, out);
    if (g->a.api == ASK_CHAT && g->a.return_ids)
        put_ids(out, "prompt_token_ids", g->prompt[0].p, g->prompt[0].len);
    else if (g->a.api == ASK_CHAT)
        js_put_null(out, "prompt_token_ids");
    if (g->a.api == ASK_COMPLETIONS) {
        js_end(out, '}');
        return;
    }
    if (g->a.prompt_logprobs >= 0)
        put_prompt_logprobs(g, out, "prompt_logprobs", 0);
    else
        js_put_null(out, "prompt_logprobs");
    js_end(out, '}');
}

/* http_more_fn: the next choice, or the end. */
static enum http_more more(struct http_exchange *x, struct str *out) {
    struct generation *g = http_state(x);
    if (g->head.len > 0) { /* what was made before it was known to be long */
        str_add(out, g->head.p, g->head.len);
        str_free(&g->head);
        return HTTP_MORE;
    }
    if (g->next_sample < g->n_samples) {
        /* Choices are separated here: the appender of JSON does not see those that have left. */
        if (g->next_sample > 0 && out->len == 0) str_addc(out, ',');
        put_choice(g, out, g->next_sample++);
        return HTTP_MORE;
    }
    put_end(g, out);
    return HTTP_END;
}

void generation_reply(struct generation *g) {
    struct str out = STR_INIT;
    put_head(g, &out, false);
    js_begin(&out, "choices", '[');
    while (g->next_sample < g->n_samples && out.len < WHOLE_BYTES) put_choice(g, &out, g->next_sample++);
    if (g->next_sample == g->n_samples) {
        put_end(g, &out);
        http_reply_json(g->x, 200, &out);
        return;
    }
    g->head = out;
    http_stream(g->x, 200, "application/json", NULL, more);
}
