/* Continuous batching. Work comes in groups: a request and its samples, in request order. A group's prompt is prefilled
 * once, in a sequence of its own, in chunks that ride along with the decoding of everybody else; then each sample gets
 * a copy of that sequence, and the last sample the sequence itself. A sequence that finishes makes room for the next.
 *
 * Reservation keeps this free of deadlock: a group starts when a slot is left after each sample of all earlier groups
 * got one. So only the youngest group ever waits with samples to admit: one sequence beyond the slots holds its prompt,
 * and its prompt's logits are the only ones kept. */
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "base/str.h"
#include "engine/sampler.h"
#include "tensor/backend.h"

enum { DEFAULT_BATCH = 64, PREFILL_TOKENS = 512 /* prompt tokens a step takes on beside the decoding */ };

/* A prompt that is being prefilled, or whose samples are not all admitted yet. */
struct group {
    int req, seq;
    int next_sample, left; /* samples to admit: next_sample .. next_sample + left - 1 */
    int prefilled;
};
struct active { /* a sample that is being decoded */
    int req, seq, limit;
    struct sample *out;
    uint64_t stream;
    struct str tail; /* last bytes, for stop strings */
};
struct engine {
    struct model *m;
    struct engine_options opt;
    struct model_config cfg;
    struct sampler sampler;
    struct kv_cache *kv;
    int n_seq; /* of kv */
    int64_t kv_len, kv_budget;
    /* of the current run, [n_seq] each, kept between runs */
    struct group *group;
    struct active *active;
    int *free_seq, *step_seq, *step_n;
    int n_group, n_active, n_free, cap_seq;
    int32_t *step_ids;
    float *logits, *kept_logits; /* [n_seq, V], [V] */
};

/* The state of engine_run that its helpers share. */
struct run {
    struct engine *en;
    const struct request *req;
    int n_req;
    struct sample *out;
    int *first_out;           /* [n_req] index in out of a request's first sample */
    int next_req, next_count; /* the next group: request, and samples of it already given to groups */
    int slots;                /* sequences decoded together at most */
    bool share;               /* false with a single sequence: every sample prefills for itself */
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

/* Bytes of one sequence's cache of len tokens, by the layout in tensor/ops.h. */
static int64_t seq_bytes(const struct model_config *c, int64_t len) {
    int64_t keys = (len + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
    return (int64_t)c->L * c->G * keys * (c->K + kv_pad_dim(c->K)) * (int64_t)sizeof(float);
}

static void drop_kv(struct engine *en) {
    kv_free(en->kv);
    en->kv = NULL;
    en->n_seq = 0;
    en->kv_len = 0;
}

/* Makes the cache hold up to `want` sequences of len tokens, as many as the budget allows, and the arrays that go with
 * it. A cache that is big enough and within the budget stays. */
static enum status reserve(struct engine *en, int want, int64_t len, struct err *e) {
    int64_t bytes = seq_bytes(&en->cfg, len);
    if (en->kv && en->kv_len >= len && (en->n_seq >= want || (en->n_seq + 1) * bytes > en->kv_budget)) return ST_OK;
    struct backend *be = model_backend(en->m);
    drop_kv(en); /* before the free memory is measured */
    int64_t budget = en->opt.memory_bytes ? en->opt.memory_bytes : be->mem_available(be) / 4;
    int64_t fit = budget / bytes;
    if (fit < 1)
        return FAIL(
            e, ST_MEMORY,
            "KV cache: one sequence of %lld tokens takes %lld bytes, the budget is %lld bytes; shorten the prompt "
            "or max_tokens, or raise the budget",
            (long long)len, (long long)bytes, (long long)budget);
    int n = (int)i64_min(want, fit);
    TRY(kv_create(en->m, n, len, 0, &en->kv, e));
    en->n_seq = n;
    en->kv_len = len;
    en->kv_budget = budget;
    if (n > en->cap_seq) {
        size_t c = (size_t)n;
        en->group = xrealloc(en->group, c * sizeof *en->group);
        en->active = xrealloc(en->active, c * sizeof *en->active);
        memset(en->active + en->cap_seq, 0, (c - (size_t)en->cap_seq) * sizeof *en->active);
        en->free_seq = xrealloc(en->free_seq, c * sizeof(int));
        en->step_seq = xrealloc(en->step_seq, c * sizeof(int));
        en->step_n = xrealloc(en->step_n, c * sizeof(int));
        en->step_ids = xrealloc(en->step_ids, (c + PREFILL_TOKENS) * sizeof *en->step_ids);
        en->logits = xrealloc(en->logits, c * (size_t)en->cfg.V * sizeof(float));
        en->cap_seq = n;
    }
    return ST_OK;
}

enum status engine_open(struct model *m, const struct engine_options *o, struct engine **out, struct err *e) {
    *out = NULL;
    const struct model_config *c = model_cfg(m);
    if (o->memory_bytes < 0 || o->max_batch < 0 || o->vocab_limit < 0)
        return FAIL(e, ST_INVALID, "engine: memory_bytes, max_batch and vocab_limit: expected values >= 0");
    struct engine *en = xcalloc(1, sizeof *en);
    en->m = m;
    en->opt = *o;
    en->cfg = *c;
    if (en->opt.max_batch == 0) en->opt.max_batch = DEFAULT_BATCH;
    if (en->opt.vocab_limit == 0 || en->opt.vocab_limit > c->V) en->opt.vocab_limit = c->V;
    sampler_init(&en->sampler, c->V, en->opt.vocab_limit);
    en->kept_logits = xmalloc((size_t)c->V * sizeof(float));
    *out = en;
    return ST_OK;
}

void engine_close(struct engine *en) {
    if (!en) return;
    drop_kv(en);
    for (int i = 0; i < en->cap_seq; i++) str_free(&en->active[i].tail);
    sampler_free(&en->sampler);
    free(en->group);
    free(en->active);
    free(en->free_seq);
    free(en->step_seq);
    free(en->step_n);
    free(en->step_ids);
    free(en->logits);
    free(en->kept_logits);
    free(en);
}

/* ---- requests -----------------------------------------------------------------------------------------------------*/

/* Tokens a sample may have: the last one is never fed back, so it needs no position. */
static int token_limit(const struct engine *en, const struct request *r) {
    return (int)i64_min(r->params.max_tokens, (int64_t)en->cfg.max_positions - r->n_prompt + 1);
}

static enum status check_request(const struct engine *en, const struct request *r, int index, struct err *e) {
    const struct sample_params *p = &r->params;
    if (r->n_prompt < 1) return FAIL(e, ST_INVALID, "request %d: the prompt is empty", index);
    if (r->n_prompt > en->cfg.max_positions)
        return FAIL(e, ST_INVALID, "request %d: the prompt has %d tokens, the model's positions end at %d", index,
                    r->n_prompt, en->cfg.max_positions);
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= en->cfg.V)
            return FAIL(e, ST_INVALID, "request %d: prompt token %d is %d, expected 0..%d", index, i, r->prompt[i],
                        en->cfg.V - 1);
    if (r->n_samples < 1) return FAIL(e, ST_INVALID, "request %d: n_samples is %d, expected >= 1", index, r->n_samples);
    if (p->max_tokens < 1)
        return FAIL(e, ST_INVALID, "request %d: max_tokens is %d, expected >= 1", index, p->max_tokens);
    if (!(p->temperature >= 0 && p->temperature <= 1e6f))
        return FAIL(e, ST_INVALID, "request %d: temperature is %g, expected a number >= 0", index,
                    (double)p->temperature);
    if (p->top_k < 0) return FAIL(e, ST_INVALID, "request %d: top_k is %d, expected >= 0 (0: off)", index, p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return FAIL(e, ST_INVALID, "request %d: top_p is %g, expected a number in (0,1]", index, (double)p->top_p);
    for (int i = 0; i < p->n_stop_strings; i++)
        if (!p->stop_strings[i][0]) return FAIL(e, ST_INVALID, "request %d: stop string %d is empty", index, i);
    if (p->n_stop_strings > 0 && !en->opt.token_bytes)
        return FAIL(e, ST_INVALID, "request %d: stop strings need the engine's token_bytes", index);
    return ST_OK;
}

/* ---- stopping -----------------------------------------------------------------------------------------------------*/

/* Adds the token's bytes and says whether a stop string is complete. It may have begun in an earlier token, so as many
 * bytes as the longest stop string could still use are kept. */
static bool stop_string_hit(const struct engine *en, struct active *a, const struct sample_params *p, int32_t id) {
    size_t n, longest = 0;
    const char *bytes = en->opt.token_bytes(en->opt.token_ctx, id, &n);
    str_add(&a->tail, bytes, n);
    for (int i = 0; i < p->n_stop_strings; i++) {
        size_t m = strlen(p->stop_strings[i]);
        if (mem_find(a->tail.p, a->tail.len, p->stop_strings[i], m)) return true;
        if (m > longest) longest = m;
    }
    if (a->tail.len >= longest) {
        size_t drop = a->tail.len - (longest - 1);
        memmove(a->tail.p, a->tail.p + drop, a->tail.len - drop);
        a->tail.len -= drop;
    }
    return false;
}

/* Draws the next token of a sample from its row of logits; *finished when it was the last. */
static enum status take_token(struct run *r, struct active *a, const float *logits, bool *finished) {
    struct engine *en = r->en;
    const struct sample_params *p = &r->req[a->req].params;
    struct sample *s = a->out;
    double u = rng_f64(p->seed, a->stream, (uint64_t)s->n);
    int32_t id = sampler_draw(&en->sampler, logits, p, u);
    float logp = id < 0 ? NAN : logprob_row(logits, en->cfg.V, id, &s->entropy[s->n]);
    if (!isfinite(logp))
        return FAIL(r->e, ST_FAILED, "request %d: the model gives logits that are not finite after %d tokens", a->req,
                    r->req[a->req].n_prompt + s->n);
    s->ids[s->n] = id;
    s->logp[s->n] = logp;
    s->n++;
    r->tokens++;
    *finished = true;
    for (int i = 0; i < p->n_stop_ids; i++) {
        if (id != p->stop_ids[i]) continue;
        s->stop = STOP_TOKEN;
        return ST_OK;
    }
    if (p->n_stop_strings > 0 && stop_string_hit(en, a, p, id)) {
        s->stop = STOP_STRING;
        return ST_OK;
    }
    s->stop = STOP_LENGTH;
    *finished = s->n == a->limit;
    return ST_OK;
}

/* ---- groups and samples -------------------------------------------------------------------------------------------*/

/* Starts groups while there are sequences for them. */
static void start_groups(struct run *r) {
    struct engine *en = r->en;
    while (r->next_req < r->n_req) {
        int left = r->share ? r->req[r->next_req].n_samples : 1;
        int room = r->slots - en->n_active;
        for (int i = 0; i < en->n_group; i++) room -= en->group[i].left;
        if (room < 1) return;
        ASSERT(en->n_free > 0);
        int seq = en->free_seq[--en->n_free];
        kv_reset(en->kv, seq);
        en->group[en->n_group++] = (struct group){r->next_req, seq, r->next_count, left, 0};
        r->next_count += left;
        if (r->next_count == r->req[r->next_req].n_samples) {
            r->next_req++;
            r->next_count = 0;
        }
    }
}

static void start_sample(struct run *r, const struct group *g, int seq, struct active *a) {
    const struct request *q = &r->req[g->req];
    struct str tail = a->tail; /* keeps its memory */
    str_clear(&tail);
    *a = (struct active){g->req, seq, token_limit(r->en, q), &r->out[r->first_out[g->req] + g->next_sample], 0, tail};
    const uint64_t key[2] = {q->id, (uint64_t)g->next_sample};
    a->stream = hash_bytes(key, sizeof key, 0);
    size_t n = (size_t)a->limit;
    a->out->ids = xmalloc(n * sizeof(int32_t));
    a->out->logp = xmalloc(n * sizeof(float));
    a->out->entropy = xmalloc(n * sizeof(float));
}

/* The arrays were sized for the longest answer; give back what was not used. */
static void trim(struct sample *s) {
    size_t n = s->n ? (size_t)s->n : 1;
    s->ids = xrealloc(s->ids, n * sizeof(int32_t));
    s->logp = xrealloc(s->logp, n * sizeof(float));
    s->entropy = xrealloc(s->entropy, n * sizeof(float));
}

/* Gives slots to a prefilled group's samples while there are any; each draws its first token. */
static enum status admit(struct run *r, struct group *g, const float *logits) {
    struct engine *en = r->en;
    while (g->left > 0 && en->n_active < r->slots && (g->left == 1 || en->n_free > 0)) {
        int seq = g->seq;
        if (g->left > 1) {
            seq = en->free_seq[--en->n_free];
            kv_share(en->kv, seq, g->seq);
        }
        struct active *a = &en->active[en->n_active];
        start_sample(r, g, seq, a);
        g->next_sample++;
        g->left--;
        en->n_active++;
        bool finished;
        TRY(take_token(r, a, logits, &finished));
        if (finished) { /* already; the next sample may have the sequence */
            trim(a->out);
            en->n_active--;
            en->free_seq[en->n_free++] = seq;
            r->done++;
        }
    }
    return ST_OK;
}

/* One model step: a token of every active sample, and prompt tokens of the groups in order. */
static enum status step(struct run *r) {
    struct engine *en = r->en;
    int count = 0, n_ids = 0, budget = PREFILL_TOKENS;
    for (int i = 0; i < en->n_active; i++) {
        const struct active *a = &en->active[i];
        en->step_seq[count] = a->seq;
        en->step_n[count++] = 1;
        en->step_ids[n_ids++] = a->out->ids[a->out->n - 1];
    }
    int n_decode = count, first = -1; /* first group in this step */
    for (int i = 0; i < en->n_group && budget > 0; i++) {
        struct group *g = &en->group[i];
        const struct request *q = &r->req[g->req];
        if (g->prefilled == q->n_prompt) continue; /* waits for slots */
        int n = q->n_prompt - g->prefilled < budget ? q->n_prompt - g->prefilled : budget;
        memcpy(en->step_ids + n_ids, q->prompt + g->prefilled, (size_t)n * sizeof(int32_t));
        if (first < 0) first = i;
        en->step_seq[count] = g->seq;
        en->step_n[count++] = n;
        n_ids += n;
        budget -= n;
        g->prefilled += n;
    }
    ASSERT(count > 0);
    TRY(model_step(en->m, en->kv, count, en->step_seq, en->step_n, en->step_ids, en->logits, r->e));

    int kept = 0;
    for (int i = 0; i < n_decode; i++) {
        struct active *a = &en->active[i];
        bool finished;
        TRY(take_token(r, a, en->logits + (int64_t)i * en->cfg.V, &finished));
        if (finished) {
            trim(a->out);
            en->free_seq[en->n_free++] = a->seq;
            r->done++;
            continue;
        }
        if (kept != i) { /* swap, so that each slot keeps its own tail buffer */
            struct active t = en->active[kept];
            en->active[kept] = *a;
            *a = t;
        }
        kept++;
    }
    en->n_active = kept;

    int groups = 0;
    for (int i = 0; i < en->n_group; i++) {
        struct group *g = &en->group[i];
        bool ready = g->prefilled == r->req[g->req].n_prompt, now = first >= 0 && i >= first;
        if (ready) {
            const float *row = now ? en->logits + (int64_t)(n_decode + i - first) * en->cfg.V : en->kept_logits;
            TRY(admit(r, g, row));
            if (g->left > 0 && now) memcpy(en->kept_logits, row, (size_t)en->cfg.V * sizeof(float));
        }
        if (g->left > 0) en->group[groups++] = *g;
    }
    en->n_group = groups;
    return ST_OK;
}

/* ---- the run ------------------------------------------------------------------------------------------------------*/

static enum status run_all(struct run *r, engine_progress_fn *progress, void *ctx) {
    struct engine *en = r->en;
    while (r->done < r->total) {
        start_groups(r);
        TRY(step(r));
        if (progress && !progress(ctx, r->tokens, r->done, r->total)) {
            for (int i = 0; i < en->n_active; i++) {
                trim(en->active[i].out);
                en->active[i].out->stop = STOP_CANCELLED;
            }
            for (int i = 0; i < r->total; i++) /* those that never began */
                if (!r->out[i].ids) r->out[i].stop = STOP_CANCELLED;
            break;
        }
    }
    return ST_OK;
}

enum status engine_run(struct engine *en, const struct request *req, int n_req, struct sample *out,
                       engine_progress_fn *progress, void *ctx, struct err *e) {
    struct run r = {.en = en, .req = req, .n_req = n_req, .out = out, .e = e};
    int64_t len = 1, total = 0;
    bool grouped = false;
    for (int i = 0; i < n_req; i++) {
        TRY(check_request(en, &req[i], i, e));
        len = i64_max(len, (int64_t)req[i].n_prompt + token_limit(en, &req[i]) - 1);
        total += req[i].n_samples;
        grouped = grouped || req[i].n_samples > 1;
    }
    if (total == 0) return ST_OK;
    if (total > INT32_MAX / 2) return FAIL(e, ST_INVALID, "%lld samples in one run are too many", (long long)total);
    r.total = (int)total;
    memset(out, 0, (size_t)total * sizeof *out);
    r.slots = (int)i64_min(total, en->opt.max_batch);
    int want = r.slots + (grouped && total > r.slots); /* and one to hold the prompt of a group that waits */
    TRY(reserve(en, want, len, e));
    if (en->n_seq < want) r.slots = grouped && en->n_seq > 1 ? en->n_seq - 1 : en->n_seq;
    r.share = en->n_seq > 1;
    CLEANUP_FREE int *first_out = xmalloc((size_t)n_req * sizeof(int));
    r.first_out = first_out;
    for (int i = 0, at = 0; i < n_req; i++) {
        first_out[i] = at;
        at += req[i].n_samples;
    }
    en->n_active = en->n_group = 0;
    en->n_free = en->n_seq;
    for (int i = 0; i < en->n_seq; i++) en->free_seq[i] = en->n_seq - 1 - i;
    enum status st = run_all(&r, progress, ctx);
    if (st != ST_OK)
        for (int i = 0; i < r.total; i++) sample_free(&out[i]);
    return st;
}
