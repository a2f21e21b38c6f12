/* Log-probabilities beside those of the tokens drawn: of the most probable ids, of named ids, and of a prompt. They
 * have the bits that the token's own would have had, at temperature 1 over the full vocabulary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

enum { LOGPROB_ROWS = 64 }; /* of a prompt, whose logits are in memory at once */

/* Whether logit a of id i comes before logit b of id j. */
static bool before(float a, int32_t i, float b, int32_t j) { return a > b || (a == b && i < j); }

/* The k ids with the largest logits, largest first, smaller ids first among equals. */
static void top_of_row(const float *logits, int64_t V, int k, int32_t *ids) {
    int n = 0;
    for (int32_t v = 0; v < V; v++) {
        if (n == k && !before(logits[v], v, logits[ids[n - 1]], ids[n - 1])) continue;
        int at = n < k ? n++ : n - 1;
        for (; at > 0 && before(logits[v], v, logits[ids[at - 1]], ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = v;
    }
}

/* What is left out has no probability. */
static void left_out(const float *logits, const int32_t *ids, int n, float *logp) {
    for (int i = 0; i < n; i++)
        if (logits[ids[i]] <= SAMPLER_LEFT_OUT) logp[i] = -INFINITY;
}

void logprobs_of_row(struct engine *en, const struct request *r, const float *logits) {
    if (r->top_logprobs > 0) {
        top_of_row(logits, en->cfg.V, r->top_logprobs, en->top_ids);
        logprob_ids(logits, en->cfg.V, en->top_ids, r->top_logprobs, en->top_logp);
        left_out(logits, en->top_ids, r->top_logprobs, en->top_logp);
    }
    if (r->n_logprob_ids > 0) {
        logprob_ids(logits, en->cfg.V, r->logprob_ids, r->n_logprob_ids, en->id_logp);
        left_out(logits, r->logprob_ids, r->n_logprob_ids, en->id_logp);
    }
}

/* The place of an id among all by their logits: 1 is the most probable. */
static int32_t rank_in_row(const float *logits, int64_t V, int32_t id) {
    int32_t rank = 1;
    for (int32_t v = 0; v < V; v++) rank += before(logits[v], v, logits[id], id);
    return rank;
}

/* The first token follows nothing. */
static void first_place(struct sample *s, const struct request *r) {
    s->logp[0] = s->entropy[0] = NAN;
    for (int i = 0; i < r->top_logprobs; i++) {
        s->top_ids[i] = -1;
        s->top_logp[i] = NAN;
    }
    for (int i = 0; i < r->n_logprob_ids; i++) s->id_logp[i] = NAN;
}

void logprobs_begin_prompt(struct ticket *t) {
    const struct request *r = &t->req;
    struct sample *s = &t->prompt;
    const size_t n = (size_t)r->n_prompt;
    s->n = r->n_prompt;
    s->ids = xmalloc(n * sizeof *s->ids);
    s->logp = xmalloc(n * sizeof *s->logp);
    s->entropy = xmalloc(n * sizeof *s->entropy);
    memcpy(s->ids, r->prompt, n * sizeof *s->ids);
    sample_logprobs_make(s, r, r->n_prompt);
    if (r->prompt_ranks) s->rank = xcalloc(n, sizeof *s->rank);
    first_place(s, r);
    t->to_score = r->n_prompt - 1;
}

/* Tokens of a prompt that a step feeds, from place `from` on: the logits of each tell of the token behind it. */
struct prompt_part {
    struct engine *en;
    struct ticket *t;
    int64_t from;
};

static void take_place(void *ctx, int64_t row, const float *logits) {
    const struct prompt_part *p = ctx;
    const struct request *r = &p->t->req;
    struct sample *s = &p->t->prompt;
    const size_t at = (size_t)(p->from + row) + 1, k = (size_t)r->top_logprobs, m = (size_t)r->n_logprob_ids;
    s->logp[at] = logprob_row(logits, p->en->cfg.V, s->ids[at], &s->entropy[at]);
    logprobs_of_row(p->en, r, logits);
    if (k > 0) {
        memcpy(s->top_ids + at * k, p->en->top_ids, k * sizeof *s->top_ids);
        memcpy(s->top_logp + at * k, p->en->top_logp, k * sizeof *s->top_logp);
    }
    if (m > 0) memcpy(s->id_logp + at * m, p->en->id_logp, m * sizeof *s->id_logp);
    if (s->rank) s->rank[at] = rank_in_row(logits, p->en->cfg.V, s->ids[at]);
}

enum status logprobs_feed_prompt(struct engine *en, struct flight *f, int n, struct err *e) {
    struct prompt_part part = {en, f->t, kv_len(en->kv, f->seq)};
    const int room = en->cap < LOGPROB_ROWS ? en->cap : LOGPROB_ROWS;
    TRY(model_step_rows(en->m, en->kv, f->seq, n, f->t->req.prompt + part.from, en->logits, room, take_place, &part,
                        e));
    f->t->to_score = (int)i64_min(f->t->to_score, f->t->req.n_prompt - 1 - (part.from + n));
    return ST_OK;
}
