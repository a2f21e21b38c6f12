/* Fuzz target: bodies of requests for tokens, of any bytes. The first byte picks the API. What is taken keeps to its
 * ranges; what is refused says why, in UTF-8, with a status of the client's fault. */
#include <math.h>
#include <string.h>

#include "io/json.h"
#include "serve/ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct ask_limits limits = {
    .vocab = 100, .max_n = 8, .max_prompts = 16, .max_samples = 32, .max_messages = 16, .max_logprobs = 5};

static void check_ids(const struct ask_ids *v) {
    for (int i = 0; i < v->n; i++) ASSERT(v->p[i] >= 0 && v->p[i] < limits.vocab);
}

static void check_prompts(const struct ask *a) {
    ASSERT(a->n_prompts >= 1 && a->n_prompts <= limits.max_prompts);
    for (int i = 0; i < a->n_prompts; i++) {
        const struct ask_prompt *p = &a->prompt[i];
        if (p->is_end) continue;
        if (p->is_text) {
            ASSERT(p->text.n > 0 && p->text.p[p->text.n] == 0);
        } else {
            ASSERT(p->n_ids > 0);
            check_ids(&(struct ask_ids){p->ids, p->n_ids});
        }
    }
}

static void check_messages(const struct ask *a) {
    ASSERT(a->n_messages >= 1 && a->n_messages <= limits.max_messages);
    for (int i = 0; i < a->n_messages; i++) {
        const struct chat_message *m = &a->message[i];
        ASSERT(strcmp(m->role, "system") == 0 || strcmp(m->role, "user") == 0 || strcmp(m->role, "assistant") == 0 ||
               strcmp(m->role, "tool") == 0);
        ASSERT(m->content && m->n_calls >= 0);
        for (int k = 0; k < m->n_calls; k++) ASSERT(m->calls[k].name && m->calls[k].arguments);
    }
}

static void check(const struct ask *a) {
    if (a->api == ASK_CHAT)
        check_messages(a);
    else
        check_prompts(a);
    ASSERT(a->n >= 1 && a->n <= limits.max_n);
    ASSERT(a->max_tokens >= -1 && a->min_tokens >= 0 && (a->max_tokens < 0 || a->min_tokens <= a->max_tokens));
    ASSERT(a->temperature >= 0 && a->temperature <= 2 && a->top_p > 0 && a->top_p <= 1 && a->min_p >= 0 &&
           a->min_p <= 1);
    ASSERT(a->top_k >= 0 && a->repetition_penalty > 0 && fabs(a->frequency_penalty) <= 2);
    ASSERT(a->logprobs >= -1 && a->logprobs <= limits.max_logprobs);
    ASSERT(a->prompt_logprobs >= -1 && a->prompt_logprobs <= limits.max_logprobs);
    ASSERT(a->stop.n >= 0 && a->stop.n <= MAX_STOP_STRINGS);
    for (int i = 0; i < a->stop.n; i++)
        ASSERT(strlen(a->stop.p[i]) >= 1 && strlen(a->stop.p[i]) <= MAX_STOP_STRING_BYTES);
    for (int i = 0; i < a->n_bias; i++)
        ASSERT(a->bias[i].id >= 0 && a->bias[i].id < limits.vocab && !isnan(a->bias[i].value));
    check_ids(&a->stop_ids);
    check_ids(&a->allowed_ids);
    ASSERT(!a->stream || a->prompt_logprobs < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const enum ask_api apis[] = {ASK_COMPLETIONS, ASK_CHAT, ASK_GENERATE};
    struct ask a;
    struct ask_error e = {0};
    if (size < 1) return 0;
    if (ask_parse(apis[data[0] % 3], (const char *)data + 1, size - 1, &limits, &a, &e)) {
        check(&a);
    } else {
        ASSERT(e.status == 400 && e.message[0]);
        /* It goes into a reply as it is. */
        CLEANUP_STR struct str s = STR_INIT;
        js_put_str(&s, NULL, e.message);
        ASSERT(js_utf8_prefix(s.p, s.len) == s.len);
    }
    ask_free(&a);
    return 0;
}
