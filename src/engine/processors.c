/* Logits processors, in vLLM's order: which ids are allowed, bad words, min_tokens, logit_bias, then the penalties
 * (repetition, frequency, presence). Everything is computed anew from the tokens, so that nothing about a sample has to
 * be kept in step with it: its bits cannot depend on whether it was preempted. */
#include "engine/processors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void processors_init(struct processors *s, int64_t V) {
    const size_t n = (size_t)V;
    *s = (struct processors){V, xmalloc(n * sizeof *s->row), xcalloc(n, sizeof *s->seen)};
}

void processors_free(struct processors *s) {
    free(s->row);
    free(s->seen);
    *s = (struct processors){0};
}

static bool repeats(const struct sample_params *p) { return p->repetition_penalty != 0 && p->repetition_penalty != 1; }

static bool has_penalties(const struct sample_params *p) {
    return p->frequency_penalty != 0 || p->presence_penalty != 0 || repeats(p);
}

bool processors_wanted(const struct sample_params *p, int n) {
    return has_penalties(p) || p->n_logit_bias > 0 || p->n_allowed_ids > 0 || p->n_bad_words > 0 ||
           (n < p->min_tokens && p->n_stop_ids > 0);
}

static void keep_allowed(const struct processors *s, const struct sample_params *p, const float *logits) {
    for (int64_t v = 0; v < s->V; v++) s->row[v] = -INFINITY;
    for (int i = 0; i < p->n_allowed_ids; i++) s->row[p->allowed_ids[i]] = logits[p->allowed_ids[i]];
}

/* A bad word's last token is left out where the tokens drawn end with those before it. */
static void leave_out_bad_words(const struct processors *s, const struct sample_params *p, const int32_t *drawn,
                                int n) {
    for (int i = 0; i < p->n_bad_words; i++) {
        const struct token_run *w = &p->bad_words[i];
        const int before = w->n - 1;
        if (before <= n && memcmp(drawn + n - before, w->ids, (size_t)before * sizeof *drawn) == 0)
            s->row[w->ids[before]] = -INFINITY;
    }
}

static void leave_out_stops(const struct processors *s, const struct sample_params *p) {
    for (int i = 0; i < p->n_stop_ids; i++) {
        const int32_t id = p->stop_ids[i];
        if (id >= 0 && id < s->V) s->row[id] = -INFINITY;
    }
}

/* Each id once: prompt and drawn tokens make no difference here. */
static void penalize_repetition(const struct processors *s, float penalty, const int32_t *tokens, int n) {
    for (int i = 0; i < n; i++) {
        if (s->seen[tokens[i]]++) continue;
        float *x = &s->row[tokens[i]];
        *x = *x > 0 ? *x / penalty : *x * penalty;
    }
    for (int i = 0; i < n; i++) s->seen[tokens[i]] = 0;
}

static void penalize_drawn(const struct processors *s, const struct sample_params *p, const int32_t *drawn, int n) {
    for (int i = 0; i < n; i++) s->seen[drawn[i]]++;
    for (int i = 0; i < n; i++) {
        const int32_t id = drawn[i];
        if (s->seen[id] == 0) continue; /* an earlier place was the first one */
        s->row[id] -= p->frequency_penalty * (float)s->seen[id];
        s->row[id] -= p->presence_penalty;
        s->seen[id] = 0;
    }
}

const float *processors_row(struct processors *s, const struct sample_params *p, const int32_t *tokens, int n_prompt,
                            int n, const float *logits) {
    if (!processors_wanted(p, n)) return logits;
    const int32_t *drawn = tokens + n_prompt;
    if (p->n_allowed_ids > 0)
        keep_allowed(s, p, logits);
    else
        memcpy(s->row, logits, (size_t)s->V * sizeof *s->row);
    leave_out_bad_words(s, p, drawn, n);
    if (n < p->min_tokens) leave_out_stops(s, p);
    for (int i = 0; i < p->n_logit_bias; i++) s->row[p->logit_bias[i].id] += p->logit_bias[i].value;
    if (repeats(p)) penalize_repetition(s, p->repetition_penalty, tokens, n_prompt + n);
    if (p->frequency_penalty != 0 || p->presence_penalty != 0) penalize_drawn(s, p, drawn, n);
    return s->row;
}
