/* From tokens to JSON: texts, log-probabilities, ids. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "serve/generation.h"

void piece_clear(struct piece *p) {
    struct str *const all[] = {&p->text,   &p->reasoning, &p->ids,     &p->tokens,
                               &p->values, &p->tops,      &p->offsets, &p->content};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) str_clear(all[i]);
    p->n = 0;
}

void piece_free(struct piece *p) {
    struct str *const all[] = {&p->text,   &p->reasoning, &p->ids,     &p->tokens,
                               &p->values, &p->tops,      &p->offsets, &p->content};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) str_free(all[i]);
    *p = (struct piece){0};
}

static const struct tokenizer *tokenizer_of(const struct generation *g) {
    return model_thread_policy(g->s->thread)->tok;
}

/* ---- numbers and tokens -------------------------------------------------------------------------------------------*/

/* The shortest decimal that is this float32 again; minus infinity is -9999.0, as OpenAI and vLLM have it. */
static void add_f32(struct str *out, float v) {
    if (isnan(v))
        str_adds(out, "null");
    else
        js_add_f32(out, isinf(v) ? (v < 0 ? -9999.0f : 9999.0f) : v);
}

void put_f32(struct str *out, const char *key, float v) {
    js_put_null(out, key);
    out->len -= 4; /* the key stands there */
    add_f32(out, v);
}

/* The text of one token, as JSON. True: it is not UTF-8 alone, so that another token may have the same text. */
static bool add_token_text(const struct generation *g, struct str *out, int32_t id) {
    if (g->a.tokens_as_ids || g->a.api == ASK_GENERATE) {
        str_addf(out, "\"token_id:%d\"", id);
        return false;
    }
    CLEANUP_STR struct str text = STR_INIT;
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer_of(g), id, &n);
    detokenize_bytes(bytes, n, &text);
    js_add_quoted(out, str_c(&text), text.len);
    return text.len != n || (n > 0 && memcmp(text.p, bytes, n) != 0);
}

static void add_bytes(const struct generation *g, struct str *out, int32_t id) {
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer_of(g), id, &n);
    str_addc(out, '[');
    for (size_t i = 0; i < n; i++) str_addf(out, "%s%d", i > 0 ? "," : "", (unsigned char)bytes[i]);
    str_addc(out, ']');
}

void put_ids(struct str *out, const char *key, const int32_t *ids, size_t n) {
    js_begin(out, key, '[');
    for (size_t i = 0; i < n; i++) str_addf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    js_end(out, ']');
}

/* ---- log-probabilities --------------------------------------------------------------------------------------------*/

struct place { /* a token with what is known of its place */
    int32_t id;
    float logp;             /* NaN: it follows nothing */
    const int32_t *top_ids; /* [top of the engine], most probable first */
    const float *top_logp;
};

static void comma(struct str *s) {
    if (s->len > 0) str_addc(s, ',');
}

/* {"token": logprob, ...} of the k most probable ones and the token itself; of two with one text the more probable. */
static void add_top_dict(const struct generation *g, struct str *out, const struct place *t, int k) {
    CLEANUP_STR struct str odd = STR_INIT, key = STR_INIT; /* odd: keys that could come again, a line each */
    bool own = false, first = true;
    if (isnan(t->logp)) {
        str_adds(out, "null");
        return;
    }
    str_addc(out, '{');
    for (int i = 0; i <= k; i++) {
        const bool last = i == k;
        if (last && own) break;
        const int32_t id = last ? t->id : t->top_ids[i];
        own |= id == t->id;
        str_clear(&key);
        if (add_token_text(g, &key, id)) {
            str_addc(&key, '\n');
            if (mem_find(str_c(&odd), odd.len, key.p, key.len)) continue;
            str_add(&odd, key.p, key.len);
            key.len--;
        }
        if (!first) str_addc(out, ',');
        first = false;
        str_add(out, key.p, key.len);
        str_addc(out, ':');
        add_f32(out, last ? t->logp : t->top_logp[i]);
    }
    str_addc(out, '}');
}

static void add_legacy(const struct generation *g, struct piece *p, const struct place *t, int64_t offset) {
    comma(&p->tokens);
    add_token_text(g, &p->tokens, t->id);
    comma(&p->values);
    add_f32(&p->values, t->logp);
    comma(&p->tops);
    add_top_dict(g, &p->tops, t, g->a.logprobs);
    comma(&p->offsets);
    str_addf(&p->offsets, "%lld", (long long)offset);
}

static void add_entry(const struct generation *g, struct str *out, int32_t id, float logp) {
    str_adds(out, "{\"token\":");
    add_token_text(g, out, id);
    str_adds(out, ",\"logprob\":");
    add_f32(out, logp);
    str_adds(out, ",\"bytes\":");
    add_bytes(g, out, id);
}

static void add_content(const struct generation *g, struct piece *p, const struct place *t) {
    comma(&p->content);
    add_entry(g, &p->content, t->id, t->logp);
    str_adds(&p->content, ",\"top_logprobs\":[");
    for (int i = 0; i < g->a.logprobs; i++) {
        if (i > 0) str_addc(&p->content, ',');
        add_entry(g, &p->content, t->top_ids[i], t->top_logp[i]);
        str_addc(&p->content, '}');
    }
    str_adds(&p->content, "]}");
}

void put_logprobs(const struct generation *g, struct str *out, const struct piece *p) {
    if (g->a.logprobs < 0) {
        js_put_null(out, "logprobs");
        return;
    }
    js_begin(out, "logprobs", '{');
    if (g->a.api == ASK_COMPLETIONS) {
        const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
        const struct str *const lists[] = {&p->tokens, &p->values, &p->tops, &p->offsets};
        for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
            js_begin(out, keys[i], '[');
            str_add(out, str_c(lists[i]), lists[i]->len);
            js_end(out, ']');
        }
    } else {
        js_begin(out, "content", '[');
        str_add(out, str_c(&p->content), p->content.len);
        js_end(out, ']');
        if (g->a.api == ASK_CHAT) js_put_null(out, "refusal");
    }
    js_end(out, '}');
}

static void add_prompt_entry(const struct generation *g, struct str *out, int32_t id, float logp, int rank) {
    CLEANUP_STR struct str key = STR_INIT, text = STR_INIT;
    size_t n;
    str_addf(&key, "%d", id);
    js_begin(out, key.p, '{');
    put_f32(out, "logprob", logp);
    js_put_i64(out, "rank", rank);
    const char *bytes = tokenizer_bytes(tokenizer_of(g), id, &n);
    detokenize_bytes(bytes, n, &text);
    js_put_strn(out, "decoded_token", str_c(&text), text.len);
    js_end(out, '}');
}

void put_prompt_logprobs(const struct generation *g, struct str *out, const char *key, int prompt) {
    const struct sample *p = &g->job->part[prompt].prompt;
    const size_t top = (size_t)g->top;
    const int k = g->a.prompt_logprobs;
    js_begin(out, key, '[');
    for (int i = 0; i < p->n; i++) {
        bool own = false;
        if (i == 0) {
            js_put_null(out, NULL);
            continue;
        }
        js_begin(out, NULL, '{');
        for (int r = 0; r < k; r++) {
            const size_t at = (size_t)i * top + (size_t)r;
            own |= p->top_ids[at] == p->ids[i];
            add_prompt_entry(g, out, p->top_ids[at], p->top_logp[at], r + 1);
        }
        if (!own) add_prompt_entry(g, out, p->ids[i], p->logp[i], p->rank[i]);
        js_end(out, '}');
    }
    js_end(out, ']');
}

/* ---- pieces -------------------------------------------------------------------------------------------------------*/

/* Takes blank lines away where a part of a message begins. */
static size_t leading_newlines(const struct str *s, size_t from) {
    size_t n = 0;
    while (from + n < s->len && s->p[from + n] == '\n') n++;
    return n;
}

static void add_part(struct str *to, struct str *text, bool begins, enum message_part *next, enum message_part then) {
    const size_t skip = begins ? leading_newlines(text, 0) : 0;
    str_add(to, str_c(text) + skip, text->len - skip);
    if (begins && skip < text->len) *next = then;
}

/* A message's text goes to where the sample is: thoughts, or what it says. */
static void add_text(const struct generation *g, struct gen_sample *m, struct piece *p, struct str *text, int32_t id) {
    if (g->think < 0) {
        str_add(&p->text, str_c(text), text->len);
        return;
    }
    if (m->part == PART_BEGIN) m->part = id == g->think ? PART_REASONING : PART_CONTENT;
    if (m->part == PART_REASONING && id == g->think) return;
    if (m->part == PART_REASONING && id == g->think_end) {
        static const char mark[] = "</think>";
        if (text->len >= sizeof mark - 1 && memcmp(text->p + text->len - sizeof mark + 1, mark, sizeof mark - 1) == 0)
            text->len -= sizeof mark - 1;
        str_add(&p->reasoning, str_c(text), text->len);
        m->part = PART_REASONING_ENDED;
        return;
    }
    if (m->part == PART_REASONING)
        add_part(&p->reasoning, text, false, &m->part, PART_REASONING);
    else
        add_part(&p->text, text, m->part == PART_REASONING_ENDED, &m->part, PART_CONTENT);
}

static void add_place(struct generation *g, int sample, struct piece *p, const struct place *t,
                      enum detokenize_kind kind) {
    struct gen_sample *m = &g->sample[sample];
    CLEANUP_STR struct str text = STR_INIT;
    detokenize_add(&m->text, t->id, kind, &text);
    if (kind == DETOKENIZE_PROMPT)
        str_add(&p->text, str_c(&text), text.len);
    else
        add_text(g, m, p, &text, t->id);
    if (g->a.logprobs >= 0 && g->a.api == ASK_COMPLETIONS)
        add_legacy(g, p, t, m->text.offset);
    else if (g->a.logprobs >= 0)
        add_content(g, p, t);
    if (kind == DETOKENIZE_PROMPT) return;
    str_addf(&p->ids, "%s%d", p->ids.len ? "," : "", t->id);
    p->n++;
}

void piece_add_prompt(struct generation *g, int sample, struct piece *p) {
    const int k = sample / g->a.n;
    const struct sample *known = &g->job->part[k].prompt;
    const size_t top = (size_t)g->top;
    for (size_t i = 0; i < g->prompt[k].len; i++) {
        struct place t = {.id = g->prompt[k].p[i], .logp = NAN};
        if (known->logp && i > 0) t.logp = known->logp[i];
        if (known->top_ids) {
            t.top_ids = known->top_ids + i * top;
            t.top_logp = known->top_logp + i * top;
        }
        add_place(g, sample, p, &t, DETOKENIZE_PROMPT);
    }
}

bool piece_add_drawn(struct generation *g, int sample, struct piece *p, int most) {
    enum { ROOM = 32 };
    struct gen_sample *m = &g->sample[sample];
    const struct job_sample *s = &g->job->sample[sample];
    int32_t ids[ROOM], top_ids[ROOM * MAX_LOGPROBS];
    float logp[ROOM], top_logp[ROOM * MAX_LOGPROBS];
    bool left = true;
    for (int n = 1; most > 0 && n > 0 && left; most -= n) {
        n = job_read(g->job, sample, m->at, most < ROOM ? most : ROOM, ids, logp, top_ids, top_logp, &left);
        for (int i = 0; i < n; i++) {
            const struct place t = {ids[i], logp[i], top_ids + (size_t)i * (size_t)g->top,
                                    top_logp + (size_t)i * (size_t)g->top};
            const bool stop = !left && i == n - 1 && s->stop == STOP_TOKEN;
            add_place(g, sample, p, &t, stop ? DETOKENIZE_STOP : DETOKENIZE_DRAWN);
        }
        m->at += n;
        g->completion_tokens += n;
    }
    if (left) return false;
    CLEANUP_STR struct str rest = STR_INIT;
    detokenize_end(&m->text, &rest);
    add_text(g, m, p, &rest, -1);
    m->ended = true;
    return true;
}

/* ---- members ------------------------------------------------------------------------------------------------------*/

static bool is_own_stop(const struct generation *g, int32_t id) {
    for (int i = 0; i < g->a.stop_ids.n; i++)
        if (g->a.stop_ids.p[i] == id) return true;
    return false;
}

void put_finish(const struct generation *g, struct str *out, int sample) {
    static const char *const reason[] = {
        [STOP_TOKEN] = "stop", [STOP_STRING] = "stop", [STOP_LENGTH] = "length", [STOP_CANCELLED] = "abort"};
    const struct job_sample *s = &g->job->sample[sample];
    const int stop = g->sample[sample].text.stop;
    js_put_str(out, "finish_reason", reason[s->stop]);
    if (g->a.api == ASK_GENERATE) return;
    if (s->stop == STOP_TOKEN && s->n > 0 && is_own_stop(g, s->ids[s->n - 1]))
        js_put_i64(out, "stop_reason", s->ids[s->n - 1]);
    else
        js_put_str(out, "stop_reason", s->stop == STOP_STRING && stop >= 0 ? g->a.stop.p[stop] : NULL);
}

void put_usage(const struct generation *g, struct str *out) {
    int64_t prompt = 0;
    for (int k = 0; k < g->n_prompts; k++) prompt += (int64_t)g->prompt[k].len;
    js_begin(out, "usage", '{');
    js_put_i64(out, "prompt_tokens", prompt);
    js_put_i64(out, "completion_tokens", g->completion_tokens);
    js_put_i64(out, "total_tokens", prompt + g->completion_tokens);
    js_put_null(out, "prompt_tokens_details");
    js_end(out, '}');
}

void put_head(const struct generation *g, struct str *out, bool chunk) {
    const bool chat = g->a.api == ASK_CHAT;
    bool one_seed = true;
    for (int k = 1; k < g->n_prompts; k++) one_seed &= g->seed[k] == g->seed[0];
    js_begin(out, NULL, '{');
    js_put_str(out, g->a.api == ASK_GENERATE ? "request_id" : "id", g->id);
    if (g->a.api != ASK_GENERATE) {
        js_put_str(out, "object", !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
        js_put_i64(out, "created", g->created);
    }
    js_put_str(out, "model", g->called);
    js_put_str(out, "system_fingerprint", g->fingerprint);
    if (one_seed) js_put_i64(out, "seed", (int64_t)g->seed[0]);
}
