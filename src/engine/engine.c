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
#include "engine/engine.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/str.h"
#include "engine/sampler.h"
#include "tensor/backend.h"

int engine_batch_on(const char *device) { return strcmp(device, "cpu") == 0 ? ENGINE_BATCH_CPU : ENGINE_BATCH_GPU; }

struct flight { /* a sequence in flight */
    int req;
    int sample; /* this one; of a prompt, the next to start */
    int left;   /* samples to start from this prompt; 0: a sample */
    int seq;    /* of the cache; -1: preempted */
    int limit;  /* tokens to draw */
    int n;      /* tokens drawn */
    int feed;   /* tokens the step at hand feeds */
    int row;    /* of the last step's logits, or -1 */
    int next;   /* its place in the step that is under way behind that one, or -1 */
    bool drawn; /* the device drew from it: en->drawn[row] */
    uint64_t stream;
    const int32_t *tokens; /* the prompt, or own_tokens */
    int32_t *own_tokens;   /* [token_cap] prompt and drawn tokens */
    float *logp, *entropy; /* [limit_cap] */
    struct str tail;       /* last bytes, for stop strings */
};
struct engine {
    struct model *m;
    struct engine_options opt;
    struct model_config cfg;
    struct sampler sampler;
    struct kv_cache *kv;
    int64_t n_blocks, budget; /* of kv; bytes it may take */
    struct engine_stats stats;
    /* of the current run; the arrays are kept between runs */
    int cap;                               /* sequences in flight at most */
    struct flight *slot, **order, **spare; /* [cap]; order: oldest first */
    int *free_seq, *step_seq, *step_n;
    int n_order, n_spare, n_free;
    int token_cap, limit_cap;
    int32_t *token_slab;
    float *logp_slab;
    int32_t *step_ids;
    float *logits, *kept_logits; /* [cap, V], [V] */
    struct step_want *want;      /* [cap], where the device draws */
    struct step_drawn *drawn;
    struct draw *draw;            /* [cap], of a step that is not waited for */
    struct flight **at_row;       /* [cap] */
    const struct flight *kept_by; /* the prompt that waits with its logits in kept_logits, or NULL */
};

/* The state of engine_run that its helpers share. */
struct engine_batch {
    struct engine *en;
    const struct request *req;
    int n_req;
    struct sample *out;
    int *first_out; /* [n_req] index in out of a request's first sample */
    int next_req;   /* not in flight yet */
    int slots;      /* samples in flight at most */
    int under_way;  /* sequences of the step that has begun and not ended; 0: there is none */
    bool made_room; /* since waiting sequences were last let in */
    int64_t tokens;
    int done, total;
    struct err *e;
};

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
    *s = (struct sample){0};
}

/* ---- memory -------------------------------------------------------------------------------------------------------*/

static int64_t blocks_of(int64_t tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

int64_t engine_kv_blocks(int64_t slots, int64_t positions, int64_t prompt_blocks) {
    return slots * blocks_of(positions) + prompt_blocks;
}

static void drop_kv(struct engine *en) {
    kv_free(en->kv);
    en->kv = NULL;
    en->n_blocks = 0;
}

/* Makes the cache hold `want` blocks, or as many as the budget allows, but at least `least`, those of request `longest`
 * alone. A cache that is big enough stays, with what it remembers. */
static enum status reserve_kv(struct engine *en, int64_t want, int64_t least, int longest, struct err *e) {
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
            "request %d: the KV cache of its longest sample takes %lld bytes, the budget is %lld bytes; shorten "
            "the prompt or max_tokens, or raise the budget",
            longest, (long long)(least * bytes), (long long)en->budget);
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

enum status engine_open(struct model *m, const struct engine_options *o, struct engine **out, struct err *e) {
    *out = NULL;
    const struct model_config *c = model_cfg(m);
    if (o->memory_bytes < 0 || o->max_batch < 0 || o->vocab_limit < 0 || o->prefill_tokens < 0)
        return FAIL(e, ST_INVALID,
                    "engine: memory_bytes, max_batch, vocab_limit and prefill_tokens: expected values >= 0");
    struct engine *en = xcalloc(1, sizeof *en);
    en->m = m;
    en->opt = *o;
    en->cfg = *c;
    if (en->opt.max_batch == 0) en->opt.max_batch = ENGINE_BATCH_CPU;
    if (en->opt.prefill_tokens == 0) en->opt.prefill_tokens = ENGINE_PREFILL;
    if (en->opt.vocab_limit == 0 || en->opt.vocab_limit > c->V) en->opt.vocab_limit = c->V;
    sampler_init(&en->sampler, c->V, en->opt.vocab_limit);
    en->kept_logits = xmalloc((size_t)c->V * sizeof(float));
    *out = en;
    return ST_OK;
}

void engine_close(struct engine *en) {
    if (!en) return;
    drop_kv(en);
    for (int i = 0; i < en->cap; i++) str_free(&en->slot[i].tail);
    sampler_free(&en->sampler);
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

/* ---- requests -----------------------------------------------------------------------------------------------------*/

/* Tokens a sample may have: the last one is never fed back, so it needs no position. */
static int token_limit(const struct engine *en, const struct request *r) {
    return (int)i64_min(r->params.max_tokens, (int64_t)en->cfg.max_positions - r->n_prompt + 1);
}

/* Positions of a request's longest sample. */
static int64_t positions(const struct engine *en, const struct request *r) {
    return (int64_t)r->n_prompt + token_limit(en, r) - 1;
}

static enum status check_params(const struct engine *en, const struct sample_params *p, int index, struct err *e) {
    if (p->max_tokens < 1)
        return FAIL(e, ST_INVALID, "request %d: max_tokens is %d, expected >= 1", index, p->max_tokens);
    if (!(p->temperature >= 0 && p->temperature <= 1e6f))
        return FAIL(e, ST_INVALID, "request %d: temperature is %g, expected a number >= 0", index,
                    (double)p->temperature);
    if (p->top_k < 0) return FAIL(e, ST_INVALID, "request %d: top_k is %d, expected >= 0 (0: off)", index, p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return FAIL(e, ST_INVALID, "request %d: top_p is %g, expected a number in (0,1]", index, (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return FAIL(e, ST_INVALID, "request %d: min_p is %g, expected a number in [0,1]", index, (double)p->min_p);
    if (p->n_stop_ids < 0 || p->n_stop_strings < 0 || p->n_stop_strings > MAX_STOP_STRINGS)
        return FAIL(e, ST_INVALID,
                    "request %d: %d stop ids and %d stop strings, expected 0 or more, and at most %d strings", index,
                    p->n_stop_ids, p->n_stop_strings, MAX_STOP_STRINGS);
    for (int i = 0; i < p->n_stop_strings; i++) {
        const size_t n = strlen(p->stop_strings[i]);
        if (n < 1 || n > MAX_STOP_STRING_BYTES)
            return FAIL(e, ST_INVALID, "request %d: stop string %d has %zu bytes, expected 1..%d", index, i, n,
                        MAX_STOP_STRING_BYTES);
    }
    if (p->n_stop_strings > 0 && !en->opt.token_bytes)
        return FAIL(e, ST_INVALID, "request %d: stop strings need the engine's token_bytes", index);
    return ST_OK;
}

static enum status check_request(const struct engine *en, const struct request *r, int index, struct err *e) {
    if (r->n_prompt < 1) return FAIL(e, ST_INVALID, "request %d: the prompt is empty", index);
    if (r->n_prompt > en->cfg.max_positions)
        return FAIL(e, ST_INVALID, "request %d: the prompt has %d tokens, the model's positions end at %d", index,
                    r->n_prompt, en->cfg.max_positions);
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= en->cfg.V)
            return FAIL(e, ST_INVALID, "request %d: prompt token %d is %d, expected 0..%d", index, i, r->prompt[i],
                        en->cfg.V - 1);
    if (!model_adapter_there(en->m, r->adapter))
        return FAIL(e, ST_INVALID, "request %d: there is no adapter %d", index, r->adapter);
    if (r->n_samples < 1) return FAIL(e, ST_INVALID, "request %d: n_samples is %d, expected >= 1", index, r->n_samples);
    return check_params(en, &r->params, index, e);
}

/* ---- drawing and stopping -----------------------------------------------------------------------------------------*/

/* Adds the token's bytes and says whether a stop string is complete. It may have begun in an earlier token, so as many
 * bytes as the longest stop string could still use are kept. */
static bool stop_string_hit(const struct engine *en, struct flight *f, const struct sample_params *p, int32_t id) {
    size_t n, longest = 0;
    const char *bytes = en->opt.token_bytes(en->opt.token_ctx, id, &n);
    str_add(&f->tail, bytes, n);
    for (int i = 0; i < p->n_stop_strings; i++) {
        size_t m = strlen(p->stop_strings[i]);
        if (mem_find(f->tail.p, f->tail.len, p->stop_strings[i], m)) return true;
        if (m > longest) longest = m;
    }
    if (f->tail.len >= longest) {
        size_t drop = f->tail.len - (longest - 1);
        memmove(f->tail.p, f->tail.p + drop, f->tail.len - drop);
        f->tail.len -= drop;
    }
    return false;
}

static struct sample *out_of(const struct engine_batch *r, const struct flight *f) {
    return &r->out[r->first_out[f->req] + f->sample];
}

/* Adds a drawn token to its sample; *finished when it was the last. */
static enum status accept_token(struct engine_batch *r, struct flight *f, int32_t id, float logp, float entropy,
                                bool *finished) {
    struct engine *en = r->en;
    const struct request *q = &r->req[f->req];
    const struct sample_params *p = &q->params;
    if (id < 0 || !isfinite(logp))
        return FAIL(r->e, ST_FAILED,
                    "request %d (id %llu), sample %d: the model gives logits that are not finite after %d tokens",
                    f->req, (unsigned long long)q->id, f->sample, q->n_prompt + f->n);
    f->own_tokens[q->n_prompt + f->n] = id;
    f->logp[f->n] = logp;
    f->entropy[f->n] = entropy;
    f->n++;
    r->tokens++;
    *finished = true;
    for (int i = 0; i < p->n_stop_ids; i++) {
        if (id != p->stop_ids[i]) continue;
        out_of(r, f)->stop = STOP_TOKEN;
        return ST_OK;
    }
    if (p->n_stop_strings > 0 && stop_string_hit(en, f, p, id)) {
        out_of(r, f)->stop = STOP_STRING;
        return ST_OK;
    }
    out_of(r, f)->stop = STOP_LENGTH;
    *finished = f->n == f->limit;
    return ST_OK;
}

/* For the token behind n drawn ones. */
static double random_at(const struct engine_batch *r, const struct flight *f, int n) {
    return rng_f64(r->req[f->req].params.seed, f->stream, (uint64_t)n);
}
static double random_of(const struct engine_batch *r, const struct flight *f) { return random_at(r, f, f->n); }

/* Draws the next token of a sample from its row of logits. */
static enum status take_token(struct engine_batch *r, struct flight *f, const float *logits, bool *finished) {
    struct engine *en = r->en;
    float entropy = 0;
    const int32_t id = sampler_draw(&en->sampler, logits, &r->req[f->req].params, random_of(r, f));
    const float logp = id < 0 ? NAN : logprob_row(logits, en->cfg.V, id, &entropy);
    return accept_token(r, f, id, logp, entropy, finished);
}

/* What a step is to do with the last row of f, which feeds all it has or a part. The device draws for samples, unless
 * top-k or top-p ask for an order; the first tokens of a prompt's samples are all drawn from one row, here. */
static struct step_want want_of(const struct engine_batch *r, const struct flight *f, bool all) {
    const struct sample_params *p = &r->req[f->req].params;
    if (!all) return (struct step_want){.what = STEP_NOTHING};
    if (f->left > 0 || (p->top_k > 0 && p->temperature > 0) || (p->top_p < 1 && p->temperature > 0))
        return (struct step_want){.what = STEP_LOGITS};
    return (struct step_want){STEP_DRAW, {p->temperature, p->min_p, p->temperature > 0 ? random_of(r, f) : 0}};
}

/* ---- sequences in flight ------------------------------------------------------------------------------------------*/

static int known_tokens(const struct engine_batch *r, const struct flight *f) { return r->req[f->req].n_prompt + f->n; }

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

/* Skips what the cache remembers; the last token is always fed, for its logits. */
static void skip_cached(struct engine_batch *r, struct flight *f) {
    struct engine *en = r->en;
    if (en->opt.no_prefix_cache) return;
    const int64_t len = kv_len(en->kv, f->seq);
    en->stats.cached_tokens += kv_match(en->kv, f->seq, f->tokens + len, known_tokens(r, f) - 1 - len);
}

/* Gives a sequence without blocks a place in the cache, when there is memory for the tokens it has and for one more
 * block of everyone else; alone it always gets it. */
static bool enter(struct engine_batch *r, struct flight *f, int running) {
    struct engine *en = r->en;
    ASSERT(en->n_free > 0);
    f->seq = en->free_seq[--en->n_free];
    kv_set_adapter(en->kv, f->seq, r->req[f->req].adapter);
    skip_cached(r, f);
    const int64_t need = blocks_of(known_tokens(r, f)) - kv_len(en->kv, f->seq) / KV_BLOCK;
    if (running == 0 || need + running <= kv_available(en->kv)) return true;
    en->stats.cached_tokens -= kv_len(en->kv, f->seq);
    give_back_seq(en, f);
    return false;
}

/* Lets preempted sequences in again, then new prompts, oldest first. A prompt starts while there is a slot for one of
 * its samples at least, so only the youngest prompt can have more samples than slots. */
static void enter_all(struct engine_batch *r) {
    struct engine *en = r->en;
    int running = 0, room = r->slots;
    r->made_room = false;
    for (int i = 0; i < en->n_order; i++) {
        struct flight *f = en->order[i];
        if (f->seq < 0 && !enter(r, f, running)) return;
        running++;
        room -= f->left > 0 ? f->left : 1;
    }
    for (; room > 0 && r->next_req < r->n_req; r->next_req++) {
        const struct request *q = &r->req[r->next_req];
        struct flight *f = insert_flight(en, en->n_order);
        f->req = r->next_req;
        f->sample = 0;
        f->left = q->n_samples;
        f->tokens = q->prompt;
        if (!enter(r, f, running)) {
            en->spare[en->n_spare++] = en->order[--en->n_order];
            return;
        }
        running++;
        room -= f->left;
    }
}

/* Turns a flight whose cache ends with the prompt into the sample `sample` of its request. */
static void begin_sample(struct engine_batch *r, struct flight *f, int sample) {
    const struct request *q = &r->req[f->req];
    f->sample = sample;
    f->left = 0;
    f->limit = token_limit(r->en, q);
    const uint64_t key[2] = {q->id, (uint64_t)sample};
    f->stream = hash_bytes(key, sizeof key, 0);
    memcpy(f->own_tokens, q->prompt, (size_t)q->n_prompt * sizeof *q->prompt);
    f->tokens = f->own_tokens;
}

/* The arrays of a sample that has ended, as long as it is. */
static void deliver(const struct engine_batch *r, const struct flight *f) {
    struct sample *s = out_of(r, f);
    const size_t n = (size_t)f->n;
    s->n = f->n;
    s->ids = xmalloc((n + 1) * sizeof *s->ids);
    s->logp = xmalloc((n + 1) * sizeof *s->logp);
    s->entropy = xmalloc((n + 1) * sizeof *s->entropy);
    memcpy(s->ids, f->own_tokens + r->req[f->req].n_prompt, n * sizeof *s->ids);
    memcpy(s->logp, f->logp, n * sizeof *s->logp);
    memcpy(s->entropy, f->entropy, n * sizeof *s->entropy);
}

static void finish(struct engine_batch *r, int at) {
    struct engine *en = r->en;
    struct flight *f = en->order[at];
    deliver(r, f);
    give_back_seq(en, f);
    r->made_room = true;
    en->n_order--;
    memmove(en->order + at, en->order + at + 1, (size_t)(en->n_order - at) * sizeof(struct flight *));
    en->spare[en->n_spare++] = f;
    r->done++;
}

/* ---- a step -------------------------------------------------------------------------------------------------------*/

/* Decides what each sequence feeds and takes the blocks for it, oldest first; the youngest are preempted when blocks
 * run out. */
static enum status plan(struct engine_batch *r) {
    struct engine *en = r->en;
    int budget = en->opt.prefill_tokens;
    for (int i = 0; i < en->n_order; i++) {
        en->order[i]->row = -1;
        en->order[i]->feed = 0;
    }
    for (int i = 0; i < en->n_order && en->order[i]->seq >= 0; i++) {
        struct flight *f = en->order[i];
        if (en->kept_by == f) continue; /* has its logits */
        const bool decode = f->left == 0 && known_tokens(r, f) - kv_len(en->kv, f->seq) == 1;
        if (!decode) skip_cached(r, f); /* what others have computed since */
        const int64_t pending = known_tokens(r, f) - kv_len(en->kv, f->seq);
        const int n = decode ? 1 : (int)i64_min(pending, budget);
        if (n == 0) continue;
        while (f->seq >= 0 && !kv_reserve(en->kv, f->seq, n)) {
            int youngest = en->n_order - 1;
            while (en->order[youngest]->seq < 0) youngest--;
            if (youngest == 0)
                return FAIL(r->e, ST_MEMORY, "request %d: the KV cache is too small for one sequence", f->req);
            preempt_from(en, youngest);
        }
        if (f->seq < 0) break; /* it was the youngest itself */
        f->feed = n;
        if (decode)
            en->stats.decoded_tokens++;
        else
            en->stats.prefilled_tokens += n;
        budget -= decode ? 0 : n;
    }
    return ST_OK;
}

/* The smallest adapter above `last` that feeds; INT_MAX: none. */
static int next_adapter(const struct engine_batch *r, int last) {
    const struct engine *en = r->en;
    int next = INT_MAX;
    for (int i = 0; i < en->n_order; i++) {
        const int a = r->req[en->order[i]->req].adapter;
        if (en->order[i]->feed > 0 && a > last && a < next) next = a;
    }
    return next;
}

/* Fills step_* with what is fed, each adapter's rows together; returns the number of sequences. */
static int lay_out(struct engine_batch *r) {
    struct engine *en = r->en;
    int count = 0, n_ids = 0;
    for (int a = INT_MIN; (a = next_adapter(r, a)) < INT_MAX;)
        for (int i = 0; i < en->n_order; i++) {
            struct flight *f = en->order[i];
            if (f->feed == 0 || r->req[f->req].adapter != a) continue;
            const int64_t len = kv_len(en->kv, f->seq);
            memcpy(en->step_ids + n_ids, f->tokens + len, (size_t)f->feed * sizeof *en->step_ids);
            en->step_seq[count] = f->seq;
            en->step_n[count] = f->feed;
            en->want[count] = want_of(r, f, f->feed == known_tokens(r, f) - len);
            f->drawn = model_can_draw(en->m) && en->want[count].what == STEP_DRAW;
            f->row = count++;
            n_ids += f->feed;
        }
    return count;
}

/* Starts samples of the prompt at `at`, whose logits are there, while there are slots and blocks for them: each will
 * soon need one. *at moves on behind what is left of it. */
static enum status start_samples(struct engine_batch *r, int *at, int *samples, const float *logits) {
    struct engine *en = r->en;
    struct flight *p = en->order[*at];
    while (p->left > 0 && *samples < r->slots && (*at == 0 || kv_available(en->kv) > *samples)) {
        struct flight *f = p;
        const int sample = p->sample;
        const bool last = p->left == 1;
        if (!last) {
            f = insert_flight(en, *at);
            f->req = p->req;
            f->seq = en->free_seq[--en->n_free];
            kv_share(en->kv, f->seq, p->seq);
            p->sample++;
            p->left--;
        } else if (en->kept_by == p) {
            en->kept_by = NULL;
        }
        begin_sample(r, f, sample);
        bool finished;
        TRY(take_token(r, f, logits, &finished));
        if (finished) {
            finish(r, *at);
            if (last) --*at;
        } else {
            ++*samples;
            if (!last) ++*at;
        }
        if (last) return ST_OK;
    }
    return ST_OK;
}

/* Draws from the logits of a step: the next token of samples, the first of new ones. */
static enum status draw(struct engine_batch *r) {
    struct engine *en = r->en;
    int samples = 0;
    for (int i = 0; i < en->n_order; i++) {
        struct flight *f = en->order[i];
        if (f->left > 0) continue;
        if (f->row >= 0 && kv_len(en->kv, f->seq) == known_tokens(r, f)) {
            bool finished;
            const struct step_drawn *d = &en->drawn[f->row];
            TRY(f->drawn ? accept_token(r, f, d->id, d->logp, d->entropy, &finished)
                         : take_token(r, f, en->logits + (int64_t)f->row * en->cfg.V, &finished));
            if (finished) {
                finish(r, i--);
                continue;
            }
        }
        samples++;
    }
    for (int i = 0; i < en->n_order; i++) {
        struct flight *p = en->order[i];
        const bool kept = en->kept_by == p;
        if (p->left == 0 || p->seq < 0 || (!kept && (p->row < 0 || kv_len(en->kv, p->seq) < known_tokens(r, p))))
            continue;
        const float *logits = kept ? en->kept_logits : en->logits + (int64_t)p->row * en->cfg.V;
        TRY(start_samples(r, &i, &samples, logits));
        if (i < 0 || en->order[i] != p || p->left == 0 || kept) continue;
        if (!en->kept_by) { /* waits for slots or blocks */
            memcpy(en->kept_logits, logits, (size_t)en->cfg.V * sizeof(float));
            en->kept_by = p;
        } else {
            preempt_from(en, i); /* an older prompt waits for blocks already */
        }
    }
    return ST_OK;
}

/* ---- steps ahead --------------------------------------------------------------------------------------------------*/

/* While every sequence feeds the token it has drawn last, the next step is asked for before the tokens of the one under
 * way are known: the device fills them in, and does not wait for the host. A sequence that turns out to have ended with
 * its token leaves a row behind that nobody reads. New sequences come in when no step is under way. */

/* Whether the step laid out feeds one token of each of its sequences, which the device then draws for. */
static bool only_decodes(const struct engine_batch *r, int count) {
    const struct engine *en = r->en;
    if (!model_can_begin(en->m, count)) return false;
    for (int i = 0; i < en->n_order; i++)
        if (en->order[i]->row >= 0 && !(en->order[i]->drawn && en->order[i]->feed == 1)) return false;
    return true;
}

/* Whether somebody is left out of the step under way who has a token to feed, or waits for the room that sequences have
 * made which have ended. */
static bool must_let_in(const struct engine_batch *r) {
    const struct engine *en = r->en;
    bool waiting = r->next_req < r->n_req;
    for (int i = 0; i < en->n_order; i++) {
        const struct flight *f = en->order[i];
        if (f->left == 0 && f->seq >= 0 && f->row < 0) return true;
        waiting |= f->left > 0 || f->seq < 0;
    }
    return waiting && r->made_room;
}

/* Begins the step behind the one under way, of `rows` sequences, with those whose next token is not their last; *count
 * is their number, 0 where it cannot be. */
static enum status begin_next(struct engine_batch *r, int rows, int *count) {
    struct engine *en = r->en;
    int n = 0;
    *count = 0;
    if (must_let_in(r)) return ST_OK;
    for (int i = 0; i < rows; i++) en->at_row[i] = NULL;
    for (int i = 0; i < en->n_order; i++)
        if (en->order[i]->row >= 0) en->at_row[en->order[i]->row] = en->order[i];
    for (int i = 0; i < rows; i++) { /* in their order, which keeps an adapter's together */
        struct flight *f = en->at_row[i];
        if (!f || f->n + 1 >= f->limit) continue;
        if (!kv_reserve(en->kv, f->seq, 1)) return ST_OK;
        const struct sample_params *p = &r->req[f->req].params;
        en->step_seq[n] = f->seq;
        en->step_ids[n] = -1 - i;
        en->draw[n++] = (struct draw){p->temperature, p->min_p, p->temperature > 0 ? random_at(r, f, f->n + 1) : 0};
    }
    if (n == 0 || !model_can_begin(en->m, n)) return ST_OK;
    TRY(model_step_begin(en->m, en->kv, n, en->step_seq, en->step_ids, en->draw, en->opt.vocab_limit, r->e));
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
static enum status go_on(struct engine_batch *r) {
    struct engine *en = r->en;
    int next;
    TRY(begin_next(r, r->under_way, &next));
    TRY(model_step_end(en->m, en->drawn, r->e));
    TRY(draw(r));
    for (int i = 0; i < en->n_order; i++) {
        en->order[i]->row = en->order[i]->next;
        en->order[i]->next = -1;
    }
    r->under_way = next;
    return ST_OK;
}

static enum status step(struct engine_batch *r) {
    struct engine *en = r->en;
    if (r->under_way > 0) return go_on(r);
    enter_all(r);
    TRY(plan(r));
    const int count = lay_out(r);
    if (count > 0 && only_decodes(r, count)) {
        for (int i = 0; i < count; i++) en->draw[i] = en->want[i].draw;
        TRY(model_step_begin(en->m, en->kv, count, en->step_seq, en->step_ids, en->draw, en->opt.vocab_limit, r->e));
        en->stats.steps++;
        r->under_way = count;
        return go_on(r);
    }
    if (count > 0) {
        TRY(model_can_draw(en->m)
                ? model_step_draw(en->m, en->kv, count, en->step_seq, en->step_n, en->step_ids, en->want,
                                  en->opt.vocab_limit, en->drawn, en->logits, r->e)
                : model_step(en->m, en->kv, count, en->step_seq, en->step_n, en->step_ids, en->logits, r->e));
        en->stats.steps++;
    }
    const int done = r->done, started = en->n_order;
    TRY(draw(r));
    ASSERT(count > 0 || r->done > done || en->n_order > started);
    return ST_OK;
}

/* ---- the run ------------------------------------------------------------------------------------------------------*/

static enum status run_all(struct engine_batch *r, engine_progress_fn *progress, void *ctx) {
    struct engine *en = r->en;
    while (r->done < r->total) {
        TRY(step(r));
        if (progress && !progress(ctx, r->tokens, r->done, r->total)) {
            for (int i = 0; i < en->n_order; i++)
                if (en->order[i]->left == 0) deliver(r, en->order[i]);
            for (int i = 0; i < r->total; i++) /* those in flight, and those that never began */
                if (!r->out[i].ids) r->out[i].stop = STOP_CANCELLED;
            for (int i = 0; i < en->n_order; i++)
                if (en->order[i]->left == 0) out_of(r, en->order[i])->stop = STOP_CANCELLED;
            break;
        }
    }
    return ST_OK;
}

/* Empties the engine, before a run and behind it. What the cache remembers stays. */
static void clear(struct engine *en) {
    en->n_order = 0;
    en->kept_by = NULL;
    en->n_spare = en->n_free = en->cap;
    for (int i = 0; i < en->cap; i++) {
        en->slot[i].seq = -1;
        en->spare[i] = &en->slot[i];
        en->free_seq[i] = en->cap - 1 - i;
    }
    for (int i = 0; en->kv && i <= en->opt.max_batch; i++) kv_reset(en->kv, i);
}

enum status engine_run(struct engine *en, const struct request *req, int n_req, struct sample *out,
                       engine_progress_fn *progress, void *ctx, struct err *e) {
    struct engine_batch r = {.en = en, .req = req, .n_req = n_req, .out = out, .e = e};
    int64_t longest = 0, total = 0, prompts = 0;
    int limit = 0, longest_req = 0;
    for (int i = 0; i < n_req; i++) {
        TRY(check_request(en, &req[i], i, e));
        const int64_t len = positions(en, &req[i]);
        if (len > longest) {
            longest = len;
            longest_req = i;
        }
        limit = (int)i64_max(limit, token_limit(en, &req[i]));
        prompts += blocks_of(req[i].n_prompt);
        total += req[i].n_samples;
    }
    if (total == 0) return ST_OK;
    if (total > INT32_MAX / 2) return FAIL(e, ST_INVALID, "%lld samples in one run are too many", (long long)total);
    r.total = (int)total;
    memset(out, 0, (size_t)total * sizeof *out);
    r.slots = (int)i64_min(total, en->opt.max_batch);
    TRY(reserve_kv(en, engine_kv_blocks(r.slots, longest, prompts), blocks_of(longest), longest_req, e));
    reserve_flights(en, r.slots + 1, (int)longest + 1, limit);
    en->stats = (struct engine_stats){.kv_bytes = en->n_blocks * kv_block_bytes(en->m)};
    CLEANUP_FREE int *first_out = xmalloc((size_t)n_req * sizeof(int));
    r.first_out = first_out;
    for (int i = 0, at = 0; i < n_req; i++) {
        first_out[i] = at;
        at += req[i].n_samples;
    }
    clear(en);
    enum status st = run_all(&r, progress, ctx);
    while (model_steps_begun(en->m) > 0 && model_step_end(en->m, en->drawn, NULL) == ST_OK) {} /* nobody's */
    clear(en);
    if (st != ST_OK) {
        for (int i = 0; i < r.total; i++) sample_free(&out[i]);
        drop_kv(en); /* nothing a failed step may have left is remembered */
    }
    return st;
}
