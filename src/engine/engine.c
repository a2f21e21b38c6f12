/* Continuous batching. What is in flight are sequences, ordered by age: samples, and prompts from which samples are
 * still to start. Each has tokens; some of them are in the cache, the rest is pending. A step feeds pending tokens: one
 * of each sample that is being decoded, and chunks of prompts. When nothing is pending behind a step, its logits give a
 * sample's next token, or the first tokens of a prompt's samples, which share the prompt's blocks.
 *
 * Memory is taken block by block as sequences grow. When there is none left the youngest sequence gives up its blocks
 * (it is preempted) and is fed again later, from its first token the cache does not remember. Nothing younger starts
 * before it does, and the oldest never waits, so everything ends. What is drawn depends on the logits, whose bits do
 * not depend on batch, chunks or cache, and on (seed, request, sample, position): preemption cannot be seen in a
 * sample. */
#include "engine/internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

/* A token of a prompt that is scored costs a step so many tokens more: the host reads each of its logits. */
static const double scored_cost = 3;

int engine_batch_on(const char *device) { return strcmp(device, "cpu") == 0 ? ENGINE_BATCH_CPU : ENGINE_BATCH_GPU; }

const char *stop_reason_name(enum stop_reason r) {
    switch (r) {
    case STOP_TOKEN: return "stop_token";
    case STOP_STRING: return "stop_string";
    case STOP_LENGTH: return "length";
    case STOP_CANCELLED: return "cancelled";
    }
    return "unknown";
}

void sample_free(struct sample *s) {
    free(s->ids);
    free(s->logp);
    free(s->entropy);
    free(s->rank);
    free(s->top_ids);
    free(s->top_logp);
    free(s->id_logp);
    *s = (struct sample){0};
}

/* ---- memory -------------------------------------------------------------------------------------------------------*/

int64_t kv_blocks_of(int64_t tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

int64_t engine_kv_blocks(int64_t slots, int64_t positions, int64_t prompt_blocks) {
    return slots * kv_blocks_of(positions) + prompt_blocks;
}

static void drop_kv(struct engine *en) {
    kv_free(en->kv);
    en->kv = NULL;
    en->n_blocks = 0;
}

/* Makes the cache hold `want` blocks, or as many as the budget allows, but at least `least`, those of the request
 * `label` alone. A cache that is big enough stays, with what it remembers. */
static enum status reserve_kv(struct engine *en, int64_t want, int64_t least, int64_t label, struct err *e) {
    const int64_t bytes = kv_block_bytes(en->m);
    if (en->kv && en->n_blocks >= least && (en->n_blocks >= want || (en->n_blocks + 1) * bytes > en->budget))
        return ST_OK;
    struct backend *be = model_backend(en->m);
    drop_kv(en); /* before the free memory is measured */
    en->budget = en->opt.memory_bytes ? en->opt.memory_bytes : be->mem_available(be) / 4;
    const int64_t fit = i64_min(en->budget / bytes, INT32_MAX);
    if (fit < least)
        return FAIL(
            e, ST_MEMORY,
            "request %lld: the KV cache of its longest sample takes %lld bytes, the budget is %lld bytes; shorten "
            "the prompt or max_tokens, or raise the budget",
            (long long)label, (long long)(least * bytes), (long long)en->budget);
    en->n_blocks = i64_min(want, fit);
    enum status st = kv_create(en->m, en->opt.max_batch + 1, en->cfg.max_positions, en->n_blocks, &en->kv, e);
    if (st != ST_OK) en->n_blocks = 0;
    return st;
}

/* The arrays of sequences in flight: `cap` of them, of up to `tokens` tokens, `limit` of them drawn. */
static void reserve_flights(struct engine *en, int cap, int tokens, int limit) {
    if (cap > en->cap) {
        const size_t c = (size_t)cap;
        en->slot = xrealloc(en->slot, c * sizeof *en->slot);
        memset(en->slot + en->cap, 0, (c - (size_t)en->cap) * sizeof *en->slot);
        en->order = xrealloc(en->order, c * sizeof(struct flight *));
        en->spare = xrealloc(en->spare, c * sizeof(struct flight *));
        en->free_seq = xrealloc(en->free_seq, c * sizeof(int));
        en->step_seq = xrealloc(en->step_seq, c * sizeof(int));
        en->step_n = xrealloc(en->step_n, c * sizeof(int));
        en->step_ids = xrealloc(en->step_ids, (c + (size_t)en->opt.prefill_tokens) * sizeof *en->step_ids);
        en->logits = xrealloc(en->logits, c * (size_t)en->cfg.V * sizeof(float));
        en->want = xrealloc(en->want, c * sizeof *en->want);
        en->drawn = xrealloc(en->drawn, c * sizeof *en->drawn);
        en->draw = xrealloc(en->draw, c * sizeof *en->draw);
        en->at_row = xrealloc(en->at_row, c * sizeof(struct flight *));
    }
    if (cap > en->cap || tokens > en->token_cap || limit > en->limit_cap) {
        if (cap > en->cap) en->cap = cap;
        if (tokens > en->token_cap) en->token_cap = tokens;
        if (limit > en->limit_cap) en->limit_cap = limit;
        const size_t c = (size_t)en->cap, t = (size_t)en->token_cap, l = (size_t)en->limit_cap;
        free(en->token_slab);
        free(en->logp_slab);
        en->token_slab = xmalloc(c * t * sizeof *en->token_slab);
        en->logp_slab = xmalloc(c * l * 2 * sizeof *en->logp_slab);
        for (size_t i = 0; i < c; i++) {
            en->slot[i].own_tokens = en->token_slab + i * t;
            en->slot[i].logp = en->logp_slab + i * l * 2;
            en->slot[i].entropy = en->slot[i].logp + l;
        }
    }
}

/* Empties the engine. What the cache remembers stays. */
static void clear(struct engine *en) {
    en->n_order = en->under_way = 0;
    en->kept_by = NULL;
    en->n_spare = en->n_free = en->cap;
    for (int i = 0; i < en->cap; i++) {
        en->slot[i].seq = -1;
        en->spare[i] = &en->slot[i];
        en->free_seq[i] = en->cap - 1 - i;
    }
    for (int i = 0; en->kv && i <= en->opt.max_batch; i++) kv_reset(en->kv, i);
}

/* Ends the steps that have begun, whose tokens nobody reads, and empties the engine. */
static void settle(struct engine *en) {
    while (model_steps_begun(en->m) > 0 && model_step_end(en->m, en->drawn, NULL) == ST_OK) {}
    clear(en);
}

/* Gives up what a failed step may have left. */
static void start_over(struct engine *en) {
    settle(en);
    drop_kv(en);
}

static enum status reserve(struct engine *en, int64_t want, int64_t least, int tokens, int limit, int64_t label,
                           struct err *e) {
    ASSERT(en->n_order == 0 && en->under_way == 0);
    TRY(reserve_kv(en, want, least, label, e));
    reserve_flights(en, en->opt.max_batch + 1, tokens, limit);
    clear(en);
    return ST_OK;
}

enum status engine_open(struct model *m, const struct engine_options *o, struct engine **out, struct err *e) {
    *out = NULL;
    const struct model_config *c = model_cfg(m);
    if (o->memory_bytes < 0 || o->max_batch < 0 || o->vocab_limit < 0 || o->prefill_tokens < 0 ||
        o->adapter_bytes < 0 || o->adapter_host_bytes < 0)
        return FAIL(e, ST_INVALID,
                    "engine: memory_bytes, max_batch, vocab_limit, prefill_tokens, adapter_bytes and "
                    "adapter_host_bytes: expected values >= 0");
    struct engine *en = xcalloc(1, sizeof *en);
    en->m = m;
    en->opt = *o;
    en->cfg = *c;
    if (en->opt.max_batch == 0) en->opt.max_batch = ENGINE_BATCH_CPU;
    if (en->opt.prefill_tokens == 0) en->opt.prefill_tokens = ENGINE_PREFILL;
    if (en->opt.vocab_limit == 0 || en->opt.vocab_limit > c->V) en->opt.vocab_limit = c->V;
    sampler_init(&en->sampler, c->V, en->opt.vocab_limit);
    processors_init(&en->processors, c->V);
    en->distribution = xmalloc((size_t)c->V * sizeof(float));
    en->kept_logits = xmalloc((size_t)c->V * sizeof(float));
    queue_init(en);
    *out = en;
    return ST_OK;
}

void engine_close(struct engine *en) {
    if (!en) return;
    queue_free(en);
    start_over(en);
    for (int i = 0; i < en->cap; i++) str_free(&en->slot[i].tail);
    sampler_free(&en->sampler);
    processors_free(&en->processors);
    free(en->distribution);
    free(en->slot);
    free(en->order);
    free(en->spare);
    free(en->free_seq);
    free(en->step_seq);
    free(en->step_n);
    free(en->step_ids);
    free(en->token_slab);
    free(en->logp_slab);
    free(en->logits);
    free(en->want);
    free(en->drawn);
    free(en->draw);
    free(en->at_row);
    free(en->kept_logits);
    free(en);
}

struct engine_stats engine_stats(const struct engine *en) {
    return en->stats;
}

/* ---- drawing and stopping -----------------------------------------------------------------------------------------*/

/* Adds the token's bytes and says whether a stop string is complete with it. It may have begun in an earlier token, so
 * as many bytes as the longest stop string could still use are kept. */
static bool stop_string_hit(const struct engine *en, struct flight *f, const struct sample_params *p, int32_t id) {
    const size_t had = f->tail.len;
    size_t n, longest = 0;
    const char *bytes = en->opt.token_bytes(en->opt.token_ctx, id, &n);
    str_add(&f->tail, bytes, n);
    for (int i = 0; i < p->n_stop_strings; i++) {
        const size_t m = strlen(p->stop_strings[i]), from = had < m ? 0 : had - (m - 1);
        if (f->n > p->min_tokens && mem_find(f->tail.p + from, f->tail.len - from, p->stop_strings[i], m)) return true;
        if (m > longest) longest = m;
    }
    if (f->tail.len >= longest) {
        size_t drop = f->tail.len - (longest - 1);
        memmove(f->tail.p, f->tail.p + drop, f->tail.len - drop);
        f->tail.len -= drop;
    }
    return false;
}

static struct sample *sample_of(const struct flight *f) { return &f->t->samples[f->sample]; }

/* A request of its own has failed: its sequences are taken out at the end of the step. */
static void fail_request(struct engine *en, struct ticket *t, enum status st) {
    if (t->status == ST_OK) t->status = st;
    en->failing = true;
}

/* Why a sample ends with the token it has drawn last; false: it does not. */
static bool stops(const struct engine *en, struct flight *f, int32_t id, enum stop_reason *why) {
    const struct sample_params *p = &f->t->req.params;
    for (int i = 0; i < p->n_stop_ids; i++) {
        if (id != p->stop_ids[i]) continue;
        *why = STOP_TOKEN;
        return true;
    }
    if (p->n_stop_strings > 0 && stop_string_hit(en, f, p, id)) {
        *why = STOP_STRING;
        return true;
    }
    *why = STOP_LENGTH;
    return f->n == f->limit;
}

/* Gives a token to the request's sink. */
static void tell(const struct engine *en, const struct flight *f, bool last) {
    const struct request *q = &f->t->req;
    if (!q->sink) return;
    const struct engine_token t = {.ticket = f->t->number,
                                   .sample = f->sample,
                                   .at = f->n - 1,
                                   .id = f->own_tokens[q->n_prompt + f->n - 1],
                                   .logp = f->logp[f->n - 1],
                                   .entropy = f->entropy[f->n - 1],
                                   .top_ids = en->top_ids,
                                   .top_logp = en->top_logp,
                                   .id_logp = en->id_logp,
                                   .last = last,
                                   .stop = sample_of(f)->stop};
    q->sink(q->sink_ctx, &t);
}

/* A sample cannot go on, for this reason. Always true. */
static bool fail_sample(struct engine *en, const struct flight *f, enum status st, const char *why) {
    const struct request *q = &f->t->req;
    FAIL(&f->t->err, st, "request %lld (id %llu), sample %d: %s after %d tokens", (long long)f->t->label,
         (unsigned long long)q->id, f->sample, why, q->n_prompt + f->n);
    fail_request(en, f->t, st);
    return true;
}

/* Adds a drawn token to its sample. True: the sample has ended, or its request has failed. */
static bool accept_token(struct engine *en, struct flight *f, int32_t id, float logp, float entropy) {
    const struct request *q = &f->t->req;
    struct sample *s = sample_of(f);
    if (id < 0 || !isfinite(logp)) return fail_sample(en, f, ST_FAILED, "the model gives logits that are not finite");
    f->own_tokens[q->n_prompt + f->n] = id;
    f->logp[f->n] = logp;
    f->entropy[f->n] = entropy;
    const size_t at = (size_t)f->n, k = (size_t)q->top_logprobs, m = (size_t)q->n_logprob_ids;
    if (k > 0) {
        memcpy(s->top_ids + at * k, en->top_ids, k * sizeof *s->top_ids);
        memcpy(s->top_logp + at * k, en->top_logp, k * sizeof *s->top_logp);
    }
    if (m > 0) memcpy(s->id_logp + at * m, en->id_logp, m * sizeof *s->id_logp);
    f->n++;
    en->tokens++;
    const bool last = stops(en, f, id, &s->stop);
    tell(en, f, last);
    return last;
}

/* For the token behind n drawn ones. */
static double random_at(const struct flight *f, int n) {
    return rng_f64(f->t->req.params.seed, f->stream, (uint64_t)n);
}
static double random_of(const struct flight *f) { return random_at(f, f->n); }

static bool nothing_left(const struct engine *en, const float *logits) {
    for (int32_t i = 0; i < en->opt.vocab_limit; i++)
        if (logits[i] != -INFINITY) return false;
    return true;
}

/* Whether log-probabilities are of another temperature than 1. */
static bool is_tempered(const struct request *q) {
    return q->tempered_logprobs && q->params.temperature != 0 && q->params.temperature != 1;
}

/* Draws the next token of a sample from its row of logits. */
static bool take_token(struct engine *en, struct flight *f, const float *logits) {
    const struct request *q = &f->t->req;
    const float *from = processors_row(&en->processors, &q->params, f->own_tokens, q->n_prompt, f->n, logits);
    const int32_t id = sampler_draw(&en->sampler, from, &q->params, random_of(f));
    float entropy = 0, logp = NAN;
    if (id < 0 && from != logits && nothing_left(en, from))
        return fail_sample(en, f, ST_INVALID, "allowed_token_ids, bad_words, logit_bias and min_tokens leave no token");
    if (id < 0) return accept_token(en, f, id, logp, entropy);
    if (q->processed_logprobs) {
        sampler_distribution(&en->sampler, from, &q->params, en->distribution);
        logits = en->distribution;
    } else if (is_tempered(q)) {
        const struct sample_params whole = {.temperature = q->params.temperature, .top_p = 1};
        sampler_distribution(&en->sampler, from, &whole, en->distribution);
        logits = en->distribution;
    }
    logp = logprob_row(logits, en->cfg.V, id, &entropy);
    if (isfinite(logp)) logprobs_of_row(en, q, logits);
    return accept_token(en, f, id, logp, entropy);
}

/* Whether the device can draw the token behind those that f has, and what it records is what the request asks for. */
static bool device_draws(const struct flight *f) {
    const struct request *q = &f->t->req;
    const struct sample_params *p = &q->params;
    if (q->top_logprobs > 0 || q->n_logprob_ids > 0 || processors_wanted(p, f->n)) return false;
    if (p->temperature == 0) return true;
    if (q->processed_logprobs && (p->temperature != 1 || p->min_p > 0)) return false;
    if (is_tempered(q)) return false;
    return p->top_k == 0 && p->top_p == 1;
}

/* What a step is to do with the last row of f, which feeds all it has or a part. The device draws for samples, unless
 * top-k or top-p ask for an order, parameters change the logits, or the request asks for further log-probabilities; the
 * first tokens of a prompt's samples are all drawn from one row, here. */
static struct step_want want_of(const struct flight *f, bool all) {
    const struct sample_params *p = &f->t->req.params;
    if (!all) return (struct step_want){.what = STEP_NOTHING};
    if (f->left > 0 || !device_draws(f)) return (struct step_want){.what = STEP_LOGITS};
    return (struct step_want){STEP_DRAW, {p->temperature, p->min_p, p->temperature > 0 ? random_of(f) : 0}};
}

/* ---- sequences in flight ------------------------------------------------------------------------------------------*/

static int known_tokens(const struct flight *f) { return f->t->req.n_prompt + f->n; }

static struct flight *insert_flight(struct engine *en, int at) {
    ASSERT(en->n_spare > 0);
    struct flight *f = en->spare[--en->n_spare];
    memmove(en->order + at + 1, en->order + at, (size_t)(en->n_order - at) * sizeof(struct flight *));
    en->order[at] = f;
    en->n_order++;
    str_clear(&f->tail);
    f->n = 0;
    f->row = f->next = -1;
    return f;
}

static void give_back_seq(struct engine *en, struct flight *f) {
    if (f->seq < 0) return;
    kv_reset(en->kv, f->seq);
    en->free_seq[en->n_free++] = f->seq;
    f->seq = -1;
    if (en->kept_by == f) en->kept_by = NULL;
}

/* Sequence `at` and all younger ones give up their blocks. */
static void preempt_from(struct engine *en, int at) {
    for (int i = en->n_order; i-- > at;) {
        en->stats.preemptions += en->order[i]->seq >= 0;
        give_back_seq(en, en->order[i]);
        en->order[i]->row = en->order[i]->next = -1;
    }
}

/* Skips what the cache remembers. The last token is always fed, for its logits, and so are those whose logits tell of a
 * prompt's tokens. */
static void skip_cached(struct engine *en, struct flight *f) {
    if (en->opt.no_prefix_cache) return;
    const int64_t len = kv_len(en->kv, f->seq), n = known_tokens(f) - 1 - f->t->to_score - len;
    if (n > 0) en->stats.cached_tokens += kv_match(en->kv, f->seq, f->tokens + len, n);
}

/* Gives a sequence without blocks a place in the cache, when there is memory for the tokens it has and for one more
 * block of everyone else; alone it always gets it. */
static bool enter(struct engine *en, struct flight *f, int running) {
    ASSERT(en->n_free > 0);
    f->seq = en->free_seq[--en->n_free];
    kv_set_adapter(en->kv, f->seq, f->t->req.adapter);
    skip_cached(en, f);
    const int64_t need = kv_blocks_of(known_tokens(f)) - kv_len(en->kv, f->seq) / KV_BLOCK;
    if (running == 0 || need + running <= kv_available(en->kv)) return true;
    en->stats.cached_tokens -= kv_len(en->kv, f->seq);
    give_back_seq(en, f);
    return false;
}

/* True: the arrays and the cache hold the longest sample of a request, or it has failed for want of memory. They grow
 * when nothing is in flight, to what the model's longest samples take in all slots, as far as the budget goes. */
static bool made_for(struct engine *en, struct ticket *t) {
    const int64_t need = request_positions(en, &t->req), most = en->cfg.max_positions;
    if (en->kv && en->n_blocks >= kv_blocks_of(need) && en->token_cap > need &&
        en->limit_cap >= request_limit(en, &t->req))
        return true;
    if (en->n_order > 0) return false;
    t->status = reserve(en, engine_kv_blocks(en->opt.max_batch, most, 0), kv_blocks_of(need), (int)most + 1, (int)most,
                        t->label, &t->err);
    return true;
}

/* Begins a request: its prompt gets a place in the cache. False: there is no room, and the request waits on. */
static bool begin_prompt(struct engine *en, struct ticket *t, int running) {
    struct flight *f = insert_flight(en, en->n_order);
    f->t = t;
    f->sample = 0;
    f->left = t->req.n_samples;
    f->tokens = t->req.prompt;
    if (enter(en, f, running)) return true;
    en->spare[en->n_spare++] = en->order[--en->n_order];
    return false;
}

/* Lets preempted sequences in again, then new prompts, oldest first. A prompt starts while there is a slot for one of
 * its samples at least, so only the youngest prompt can have more samples than slots. */
static void enter_all(struct engine *en) {
    int running = 0, room = en->opt.max_batch;
    en->made_room = false;
    for (int i = 0; i < en->n_order; i++) {
        struct flight *f = en->order[i];
        if (f->seq < 0 && !enter(en, f, running)) return;
        running++;
        room -= f->left > 0 ? f->left : 1;
    }
    for (struct ticket *t; room > 0 && (t = queue_next(en));) {
        if (!made_for(en, t)) return;
        if (t->status == ST_OK && !model_adapter_there(en->m, t->req.adapter))
            t->status =
                FAIL(&t->err, ST_INVALID, "request %lld: there is no adapter %d", (long long)t->label, t->req.adapter);
        if (t->status == ST_OK && !adapter_ready(en, t)) return;
        if (t->status == ST_OK && t->req.prompt_logprobs && !t->prompt.logp) logprobs_begin_prompt(t);
        if (t->status != ST_OK || (t->req.params.max_tokens == 0 && t->to_score == 0)) {
            ticket_end(en, t, &en->waiting);
            continue;
        }
        if (!begin_prompt(en, t, running)) return;
        queue_start(en, t);
        running++;
        room -= t->req.n_samples;
    }
}

/* Turns a flight whose cache ends with the prompt into the sample `sample` of its request. */
static void begin_sample(const struct engine *en, struct flight *f, int sample) {
    const struct request *q = &f->t->req;
    f->sample = sample;
    f->left = 0;
    f->limit = request_limit(en, q);
    const uint64_t key[2] = {q->id, (uint64_t)(q->first + sample)};
    f->stream = hash_bytes(key, sizeof key, 0);
    memcpy(f->own_tokens, q->prompt, (size_t)q->n_prompt * sizeof *q->prompt);
    f->tokens = f->own_tokens;
}

/* The arrays of a sample that has ended, as long as it is. */
static void deliver(const struct flight *f) {
    struct sample *s = sample_of(f);
    const size_t n = (size_t)f->n;
    s->n = f->n;
    s->ids = xmalloc((n + 1) * sizeof *s->ids);
    s->logp = xmalloc((n + 1) * sizeof *s->logp);
    s->entropy = xmalloc((n + 1) * sizeof *s->entropy);
    memcpy(s->ids, f->own_tokens + f->t->req.n_prompt, n * sizeof *s->ids);
    memcpy(s->logp, f->logp, n * sizeof *s->logp);
    memcpy(s->entropy, f->entropy, n * sizeof *s->entropy);
}

static void take_out(struct engine *en, int at) {
    struct flight *f = en->order[at];
    give_back_seq(en, f);
    en->made_room = true;
    en->n_order--;
    memmove(en->order + at, en->order + at + 1, (size_t)(en->n_order - at) * sizeof(struct flight *));
    en->spare[en->n_spare++] = f;
}

/* A sample has ended with its last token, or its request has failed: then the sequence stays for the sweep. */
static bool finish(struct engine *en, int at) {
    struct ticket *t = en->order[at]->t;
    if (t->status != ST_OK) return false;
    deliver(en->order[at]);
    take_out(en, at);
    en->samples_ended++;
    if (++t->n_ended == t->req.n_samples) ticket_end(en, t, &en->running);
    return true;
}

/* Takes out what belongs to requests that have failed or were cancelled, and ends these. The queue says first which
 * they are: one that is cancelled meanwhile keeps its sequences until the next sweep. */
static void sweep(struct engine *en) {
    if (!en->failing && atomic_load(&en->n_cancelled) == 0) return;
    en->failing = false;
    queue_mark_ending(en);
    for (int i = en->n_order; i-- > 0;) {
        struct flight *f = en->order[i];
        if (!f->t->ending) continue;
        if (f->t->status == ST_OK && f->left == 0) {
            deliver(f);
            sample_of(f)->stop = STOP_CANCELLED;
        }
        take_out(en, i);
    }
    struct ticket_list *const lists[] = {&en->running, &en->waiting};
    for (size_t l = 0; l < ARRAY_LEN(lists); l++)
        for (struct ticket *t; (t = queue_ending(en, lists[l]));) ticket_end(en, t, lists[l]);
}

/* ---- a step -------------------------------------------------------------------------------------------------------*/

/* What a step may still take on of prompts, in tokens without a past: see engine_options. */
struct prompt_budget {
    double left, of_key; /* of_key: what a key that a token attends to adds to the token's cost */
    bool taken;
};

static struct prompt_budget prompt_budget(const struct engine *en) {
    const struct model_config *c = &en->cfg;
    const double heads = (double)c->H * c->K, kv_heads = (double)c->G * c->K,
                 products = (double)c->D * (2 * heads + 2 * kv_heads + 3.0 * model_ffn_columns(c, 1));
    return (struct prompt_budget){en->opt.prefill_tokens, 2 * heads / products, false};
}

/* How many of the `most` tokens from place `at` on the budget allows, which they then take. Each costs `more` tokens
 * beside itself and its keys. One token is always allowed while the budget is whole. */
static int64_t take_tokens(struct prompt_budget *b, int64_t at, int64_t most, double more) {
    if (b->left <= 0) return 0;
    /* n tokens cost n (1 + more + of_key (at + n/2)). */
    const double linear = 1 + more + b->of_key * (double)at, square = b->of_key / 2, budget = b->left;
    int64_t n = i64_min(most, (int64_t)((sqrt(linear * linear + 4 * square * budget) - linear) / (2 * square)));
    if (n >= 16 && n < most)
        n = i64_min(i64_min((n + 8) / 16 * 16, most), (int64_t)budget); /* whole tiles of the products */
    if (n <= 0 && !b->taken) n = i64_min(most, 1);
    if (n <= 0) return 0;
    b->taken = true;
    b->left = fmax(0, b->left - (double)n * (linear + square * (double)n));
    return n;
}

/* Decides what each sequence feeds and takes the blocks for it, oldest first; the youngest are preempted when blocks
 * run out. */
static void plan(struct engine *en) {
    struct prompt_budget budget = prompt_budget(en);
    for (int i = 0; i < en->n_order; i++) {
        en->order[i]->row = -1;
        en->order[i]->feed = en->order[i]->score = 0;
    }
    for (int i = 0; i < en->n_order && en->order[i]->seq >= 0; i++) {
        struct flight *f = en->order[i];
        if (en->kept_by == f) continue; /* has its logits */
        const bool decode = f->left == 0 && known_tokens(f) - kv_len(en->kv, f->seq) == 1;
        if (!decode) skip_cached(en, f); /* what others have computed since */
        const int64_t len = kv_len(en->kv, f->seq);
        /* A prompt that is scored feeds its last token in a step of its own, and only where something is drawn. */
        const bool scores = f->t->to_score > 0, goes_on = scores && f->t->req.params.max_tokens > 0;
        const int64_t pending = known_tokens(f) - len - scores;
        const int n = decode ? 1 : (int)take_tokens(&budget, len, pending, scores ? scored_cost : 0);
        if (!decode && (n < pending || goes_on)) budget.left = 0; /* prompts end in their order */
        if (n == 0) continue;
        while (f->seq >= 0 && !kv_reserve(en->kv, f->seq, n)) {
            int youngest = en->n_order - 1;
            while (en->order[youngest]->seq < 0) youngest--;
            ASSERT(youngest > 0); /* made_for: one alone has room */
            preempt_from(en, youngest);
        }
        if (f->seq < 0) break; /* it was the youngest itself */
        *(scores ? &f->score : &f->feed) = n;
        if (decode)
            en->stats.decoded_tokens++;
        else
            en->stats.prefilled_tokens += n;
    }
}

/* Feeds what is to be scored of prompts; a request that asks for nothing else ends with it. */
static enum status score_prompts(struct engine *en, bool *scored, struct err *e) {
    *scored = false;
    for (int i = 0; i < en->n_order; i++) {
        struct flight *f = en->order[i];
        struct ticket *t = f->t;
        if (f->score == 0) continue;
        *scored = true;
        TRY(logprobs_feed_prompt(en, f, f->score, e));
        if (t->to_score > 0 || t->req.params.max_tokens > 0) continue;
        take_out(en, i--);
        ticket_end(en, t, &en->running);
    }
    return ST_OK;
}

/* The smallest adapter above `last` that feeds; INT_MAX: none. */
static int next_adapter(const struct engine *en, int last) {
    int next = INT_MAX;
    for (int i = 0; i < en->n_order; i++) {
        const int a = en->order[i]->t->req.adapter;
        if (en->order[i]->feed > 0 && a > last && a < next) next = a;
    }
    return next;
}

/* Fills step_* with what is fed, each adapter's rows together; returns the number of sequences. */
static int lay_out(struct engine *en) {
    int count = 0, n_ids = 0;
    for (int a = INT_MIN; (a = next_adapter(en, a)) < INT_MAX;)
        for (int i = 0; i < en->n_order; i++) {
            struct flight *f = en->order[i];
            if (f->feed == 0 || f->t->req.adapter != a) continue;
            const int64_t len = kv_len(en->kv, f->seq);
            memcpy(en->step_ids + n_ids, f->tokens + len, (size_t)f->feed * sizeof *en->step_ids);
            en->step_seq[count] = f->seq;
            en->step_n[count] = f->feed;
            en->want[count] = want_of(f, f->feed == known_tokens(f) - len);
            f->drawn = model_can_draw(en->m) && en->want[count].what == STEP_DRAW;
            f->row = count++;
            n_ids += f->feed;
        }
    return count;
}

/* Starts samples of the prompt at `at`, whose logits are there, while there are slots and blocks for them: each will
 * soon need one. *at moves on behind what is left of it. */
static void start_samples(struct engine *en, int *at, int *samples, const float *logits) {
    struct flight *p = en->order[*at];
    while (p->left > 0 && *samples < en->opt.max_batch && (*at == 0 || kv_available(en->kv) > *samples)) {
        struct flight *f = p;
        const int sample = p->sample;
        const bool last = p->left == 1;
        if (!last) {
            f = insert_flight(en, *at);
            f->t = p->t;
            f->seq = en->free_seq[--en->n_free];
            kv_share(en->kv, f->seq, p->seq);
            p->sample++;
            p->left--;
        } else if (en->kept_by == p) {
            en->kept_by = NULL;
        }
        begin_sample(en, f, sample);
        if (take_token(en, f, logits) && finish(en, *at)) {
            if (last) --*at;
        } else {
            ++*samples;
            if (!last) ++*at;
        }
        if (last || p->t->status != ST_OK) return;
    }
}

/* Draws from the logits of a step: the next token of samples, the first of new ones. */
static void draw(struct engine *en) {
    int samples = 0;
    for (int i = 0; i < en->n_order; i++) {
        struct flight *f = en->order[i];
        if (f->left > 0) continue;
        if (f->row >= 0 && kv_len(en->kv, f->seq) == known_tokens(f)) {
            const struct step_drawn *d = &en->drawn[f->row];
            const bool ended = f->drawn ? accept_token(en, f, d->id, d->logp, d->entropy)
                                        : take_token(en, f, en->logits + (int64_t)f->row * en->cfg.V);
            if (ended && finish(en, i)) {
                i--;
                continue;
            }
        }
        samples++;
    }
    for (int i = 0; i < en->n_order; i++) {
        struct flight *p = en->order[i];
        const bool kept = en->kept_by == p;
        if (p->left == 0 || p->seq < 0 || (!kept && (p->row < 0 || kv_len(en->kv, p->seq) < known_tokens(p)))) continue;
        const float *logits = kept ? en->kept_logits : en->logits + (int64_t)p->row * en->cfg.V;
        start_samples(en, &i, &samples, logits);
        if (i < 0 || en->order[i] != p || p->left == 0 || kept) continue;
        if (!en->kept_by) { /* waits for slots or blocks */
            memcpy(en->kept_logits, logits, (size_t)en->cfg.V * sizeof(float));
            en->kept_by = p;
        } else {
            preempt_from(en, i); /* an older prompt waits for blocks already */
        }
    }
}

/* ---- steps ahead --------------------------------------------------------------------------------------------------*/

/* While every sequence feeds the token it has drawn last, the next step is asked for before the tokens of the one under
 * way are known: the device fills them in, and does not wait for the host. A sequence that turns out to have ended with
 * its token leaves a row behind that nobody reads. New sequences come in when no step is under way. */

/* Whether the step laid out feeds one token of each of its sequences, which the device then draws for. */
static bool only_decodes(const struct engine *en, int count) {
    if (!model_can_begin(en->m, count)) return false;
    for (int i = 0; i < en->n_order; i++)
        if (en->order[i]->row >= 0 && !(en->order[i]->drawn && en->order[i]->feed == 1)) return false;
    return true;
}

/* Whether somebody is left out of the step under way who has a token to feed, or waits for the room that sequences have
 * made which have ended. */
static bool must_let_in(struct engine *en) {
    bool waiting = queue_next(en) != NULL;
    for (int i = 0; i < en->n_order; i++) {
        const struct flight *f = en->order[i];
        if (f->left == 0 && f->seq >= 0 && f->row < 0) return true;
        waiting |= f->left > 0 || f->seq < 0;
    }
    return waiting && en->made_room;
}

/* Begins the step behind the one under way, of `rows` sequences, with those whose next token is not their last; *count
 * is their number, 0 where it cannot be. */
static enum status begin_next(struct engine *en, int rows, int *count, struct err *e) {
    int n = 0;
    *count = 0;
    if (must_let_in(en) || queue_paused(en)) return ST_OK;
    for (int i = 0; i < rows; i++) en->at_row[i] = NULL;
    for (int i = 0; i < en->n_order; i++)
        if (en->order[i]->row >= 0) en->at_row[en->order[i]->row] = en->order[i];
    for (int i = 0; i < rows; i++) { /* in their order, which keeps an adapter's together */
        struct flight *f = en->at_row[i];
        if (!f || f->n + 1 >= f->limit) continue;
        if (!kv_reserve(en->kv, f->seq, 1)) return ST_OK;
        const struct sample_params *p = &f->t->req.params;
        en->step_seq[n] = f->seq;
        en->step_ids[n] = -1 - i;
        en->draw[n++] = (struct draw){p->temperature, p->min_p, p->temperature > 0 ? random_at(f, f->n + 1) : 0};
    }
    if (n == 0 || !model_can_begin(en->m, n)) return ST_OK;
    TRY(model_step_begin(en->m, en->kv, n, en->step_seq, en->step_ids, en->draw, en->opt.vocab_limit, e));
    for (int i = 0, at = 0; i < rows; i++) {
        struct flight *f = en->at_row[i];
        if (f && f->n + 1 < f->limit) f->next = at++;
    }
    en->stats.steps++;
    en->stats.decoded_tokens += n;
    *count = n;
    return ST_OK;
}

/* Ends the step under way, when the next one has begun, and draws. */
static enum status go_on(struct engine *en, struct err *e) {
    int next;
    TRY(begin_next(en, en->under_way, &next, e));
    TRY(model_step_end(en->m, en->drawn, e));
    draw(en);
    for (int i = 0; i < en->n_order; i++) {
        en->order[i]->row = en->order[i]->next;
        en->order[i]->next = -1;
    }
    en->under_way = next;
    return ST_OK;
}

/* One step of the model, or the end of the one under way. *working: something was done. */
static enum status step(struct engine *en, bool *working, struct err *e) {
    *working = en->under_way > 0;
    if (en->under_way > 0) return go_on(en, e);
    if (queue_paused(en)) return ST_OK;
    const int64_t ended = en->n_ended;
    enter_all(en);
    *working = en->n_order > 0 || en->n_ended > ended;
    if (en->n_order == 0) return ST_OK;
    plan(en);
    bool scored;
    TRY(score_prompts(en, &scored, e));
    const int count = lay_out(en);
    if (count > 0 && !scored && only_decodes(en, count)) {
        for (int i = 0; i < count; i++) en->draw[i] = en->want[i].draw;
        TRY(model_step_begin(en->m, en->kv, count, en->step_seq, en->step_ids, en->draw, en->opt.vocab_limit, e));
        en->stats.steps++;
        en->under_way = count;
        return go_on(en, e);
    }
    en->stats.steps += count > 0 || scored;
    if (count > 0)
        TRY(model_can_draw(en->m)
                ? model_step_draw(en->m, en->kv, count, en->step_seq, en->step_n, en->step_ids, en->want,
                                  en->opt.vocab_limit, en->drawn, en->logits, e)
                : model_step(en->m, en->kv, count, en->step_seq, en->step_n, en->step_ids, en->logits, e));
    const int started = en->n_order;
    const int64_t samples = en->samples_ended;
    draw(en);
    ASSERT(count > 0 || scored || en->samples_ended > samples || en->n_order > started || en->failing);
    return ST_OK;
}

/* Every request in flight fails with the model's error. */
static void fail_all(struct engine *en, enum status st, const struct err *e) {
    for (int i = 0; i < en->n_order; i++) {
        struct ticket *t = en->order[i]->t;
        if (t->status != ST_OK) continue;
        t->status = st;
        t->err = *e;
    }
    en->failing = true;
    sweep(en);
    start_over(en);
}

enum status engine_step(struct engine *en, bool *working, struct err *e) {
    const int64_t ended = en->n_ended;
    queue_step_begins(en);
    sweep(en);
    if (en->under_way == 0) adapters_drop(en);
    const enum status st = step(en, working, e);
    sweep(en);
    *working = *working || en->n_ended > ended; /* a request that was cancelled has a result now */
    if (st != ST_OK) fail_all(en, st, e);
    if (en->kv) en->stats.kv_bytes = en->n_blocks * kv_block_bytes(en->m);
    queue_step_ends(en);
    return st;
}

enum status engine_forget(struct engine *en, struct err *e) {
    while (en->under_way > 0) TRY(go_on(en, e));
    if (en->n_order > 0) preempt_from(en, 0);
    return ST_OK;
}

/* ---- a batch ------------------------------------------------------------------------------------------------------*/

/* What engine_run asks the engine for: the room that all its requests take, and the places of their samples. */
struct engine_batch {
    int64_t longest, longest_at, prompts, total;
    int limit;
};

static enum status measure(const struct engine *en, const struct request *req, int n_req, struct engine_batch *b,
                           struct err *e) {
    *b = (struct engine_batch){0};
    for (int i = 0; i < n_req; i++) {
        TRY(request_check(en, &req[i], i, e));
        if (!model_adapter_there(en->m, req[i].adapter))
            return FAIL(e, ST_INVALID, "request %d: there is no adapter %d", i, req[i].adapter);
        if (req[i].prompt_logprobs)
            return FAIL(e, ST_INVALID, "request %d: prompt_logprobs are for engine_submit() and engine_poll()", i);
        const int64_t len = request_positions(en, &req[i]);
        if (len > b->longest) {
            b->longest = len;
            b->longest_at = i;
        }
        b->limit = (int)i64_max(b->limit, request_limit(en, &req[i]));
        b->prompts += kv_blocks_of(req[i].n_prompt);
        b->total += req[i].n_samples;
    }
    if (b->total > INT32_MAX / 2)
        return FAIL(e, ST_INVALID, "%lld samples in one run are too many", (long long)b->total);
    return ST_OK;
}

/* Ends all that is in flight or waits, as cancelled. */
static void cancel_all(struct engine *en) {
    queue_cancel_all(en);
    sweep(en);
}

/* Steps until all n tickets have ended; the error is that of the first request that failed. */
static enum status run_all(struct engine *en, struct ticket *const *tickets, int n, int64_t total,
                           engine_progress_fn *progress, void *ctx, struct err *e) {
    const int64_t tokens = en->tokens, ended = en->samples_ended, failed = en->n_failed;
    while (en->samples_ended - ended < total) {
        bool working;
        const enum status st = engine_step(en, &working, e);
        for (int i = 0; i < n && en->n_failed > failed; i++)
            if (tickets[i]->status != ST_OK) {
                *e = tickets[i]->err;
                return tickets[i]->status;
            }
        TRY(st);
        ASSERT(working);
        if (progress && !progress(ctx, en->tokens - tokens, (int)(en->samples_ended - ended), (int)total)) {
            cancel_all(en);
            break;
        }
    }
    return ST_OK;
}

enum status engine_run(struct engine *en, const struct request *req, int n_req, struct sample *out,
                       engine_progress_fn *progress, void *ctx, struct err *e) {
    struct engine_batch b;
    if (queue_busy(en)) return FAIL(e, ST_INVALID, "engine_run: requests that were submitted are in the queue");
    TRY(measure(en, req, n_req, &b, e));
    if (b.total == 0) return ST_OK;
    memset(out, 0, (size_t)b.total * sizeof *out);
    const int64_t slots = i64_min(b.total, en->opt.max_batch);
    TRY(reserve(en, engine_kv_blocks(slots, b.longest, b.prompts), kv_blocks_of(b.longest), (int)b.longest + 1, b.limit,
                b.longest_at, e));
    en->stats = (struct engine_stats){.kv_bytes = en->n_blocks * kv_block_bytes(en->m)};
    CLEANUP_FREE struct ticket **tickets = xmalloc((size_t)n_req * sizeof *tickets);
    for (int i = 0, at = 0; i < n_req; at += req[i++].n_samples) {
        tickets[i] = ticket_new(en, &req[i], i, out + at);
        queue_put(en, tickets[i]);
    }
    enum status st = run_all(en, tickets, n_req, b.total, progress, ctx, e);
    if (st != ST_OK) cancel_all(en);
    settle(en);
    for (int i = 0; i < n_req; i++) queue_take(en, tickets[i]->number);
    for (int i = 0; i < n_req; i++) ticket_free(tickets[i]);
    if (st != ST_OK) {
        for (int i = 0; i < b.total; i++) sample_free(&out[i]);
        start_over(en);
    }
    return st;
}
