/* kernelrl selfcheck onpolicy: samples tokens through the engine and computes their log-probabilities once more with
 * the trainer's forward pass, packed in another order. On-policy learning stands on these being the same numbers, so
 * they are compared as bit patterns. Also compared: batch sizes, thread counts, memory for few, and greedy answers
 * alone and in a batch. With several adapters every batch mixes them, some of which act on the head, and the same
 * prompts are answered under each. */
#include "bench/onpolicy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fs.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "model/arch.h"
#include "policy/find_model.h"
#include "problem/problem.h"
#include "tensor/backend.h"
#include "tensor/formats.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

enum {
    SEED = 20250101,
    ANSWER_MAX = 96,  /* tokens */
    SAMPLES_MAX = 4,  /* of a request */
    PACK_ROWS = 1024, /* of a training batch */
    GREEDY_REQUESTS = 12,
};
static const int batch_sizes[] = {1, 7, 64, 256};

struct onpolicy_options {
    const char *model, *adapter, *device, *dtype, *base_dtype;
    int lora_rank, threads, adapters;
    int64_t tokens;
    char *model_dir, *adapter_dir; /* owned */
};

/* The last batch size is worth its time on a device only. */
static int n_batch_sizes(const struct onpolicy_options *o) {
    return (int)ARRAY_LEN(batch_sizes) - (strcmp(o->device, "cpu") == 0);
}

void bits_compare(struct bits_tally *t, const float *a, const float *b, int64_t n) {
    t->n += n;
    for (int64_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        if (x == y) continue;
        const double d = fabs((double)a[i] - (double)b[i]);
        t->differ++;
        t->max_diff = isnan(d) ? (double)INFINITY : fmax(t->max_diff, d);
    }
}

static void report(const char *what, const struct bits_tally *t, struct bits_tally *sum) {
    printf("%-44s %9lld tokens, %lld differ, max |diff| %g\n", what, (long long)t->n, (long long)t->differ,
           t->max_diff);
    fflush(stdout);
    sum->n += t->n;
    sum->differ += t->differ;
    sum->max_diff = fmax(sum->max_diff, t->max_diff);
}

/* ---- model ------------------------------------------------------------------------------------------------------- */

struct subject {
    struct pool *pool;
    struct backend *be;
    struct model *model;
    int32_t vocab_limit;
};

static void subject_close(struct subject *p) {
    model_free(p->model);
    if (p->be) p->be->close(p->be);
    pool_destroy(p->pool);
    *p = (struct subject){0};
}

enum status random_adapter(struct model *m, int rank, unsigned parts, uint64_t seed, struct err *e) {
    TRY(model_lora_create(m, &(struct adapter_shape){rank, 2.0f * (float)rank, parts, 0}, seed, e));
    TRY(model_train_prepare(m, TRAIN_LORA, e)); /* model_params() lists the adapter now */
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 1; i < n; i += 2) { /* A, B, A, B, ... */
        struct rng r = rng_make(seed, 1000 + (uint64_t)i);
        CLEANUP_FREE float *host = xmalloc((size_t)p[i].n * sizeof *host);
        for (int64_t k = 0; k < p[i].n; k++) host[k] = 0.02f * (float)rng_normal(&r);
        model_param_put(m, &p[i], host);
    }
    model_params_changed(m);
    return ST_OK;
}

/* The caller closes it, also after an error. */
static enum status subject_open(const struct onpolicy_options *o, int threads, int32_t vocab_limit, struct subject *p,
                                struct err *e) {
    *p = (struct subject){.vocab_limit = vocab_limit};
    p->pool = pool_create(threads);
    TRY(backend_open(o->device, p->pool, &p->be, e));
    const struct model_options mo = {.dtype = o->dtype, .base_dtype = o->base_dtype, .frozen = true};
    TRY(model_load(o->model_dir, &mo, p->be, &p->model, e));
    static const int ranks[] = {8, 5, 32, 16}; /* 5: rows that do not line up */
    static const unsigned parts[] = {ADAPTER_LAYERS | ADAPTER_HEAD, ADAPTER_LAYERS, ADAPTER_HEAD};
    for (int i = 0; i < o->adapters; i++) {
        TRY(random_adapter(p->model, ranks[(size_t)i % ARRAY_LEN(ranks)], parts[(size_t)i % ARRAY_LEN(parts)],
                           SEED + 1 + (uint64_t)i, e));
        (void)model_adapter_keep(p->model);
    }
    if (o->adapter_dir) return model_lora_load(p->model, o->adapter_dir, e);
    return o->lora_rank > 0 ? random_adapter(p->model, o->lora_rank, ADAPTER_LAYERS, SEED, e) : ST_OK;
}

/* How many adapters there are: the base, that of the options if any, and the random ones. */
static int n_adapters(const struct onpolicy_options *o) { return 1 + (o->adapter || o->lora_rank > 0) + o->adapters; }

/* The i-th of them: ADAPTER_OWN, 1, 2, ... and the base; without others the own one alone, which may be the base. */
static int adapter_at(const struct onpolicy_options *o, int i) {
    if (o->adapters == 0) return ADAPTER_OWN;
    const bool own = o->adapter || o->lora_rank > 0;
    i %= n_adapters(o);
    return i + 1 == n_adapters(o) ? ADAPTER_BASE : own ? i : i + 1;
}

/* ---- what is sampled --------------------------------------------------------------------------------------------- */

struct workload {
    struct arena arena;
    struct request *req;
    int *first; /* index of the first sample of each request */
    int n, n_samples;
    int64_t tokens;
};

/* A prompt of the n-th kind: a problem as the user's message, every third one cut short anywhere; or random ids. */
static void make_prompt(struct tokenizer *tok, enum chat_style style, const struct problem_set *problems,
                        const struct model_config *c, int i, struct rng *r, struct ids *out) {
    const size_t longest =
        (size_t)(c->max_positions > 2 * ANSWER_MAX ? c->max_positions - ANSWER_MAX : (c->max_positions + 1) / 2);
    out->len = 0;
    if (tok) {
        const struct chat_message m = {.role = "user", .content = problems->items[(size_t)i % problems->count].code};
        chat_encode(tok, style, &m, 1, CHAT_GENERATE, out);
        if (i % 3 == 2) out->len = 1 + (size_t)rng_below(r, out->len);
    } else {
        const uint64_t n = 1 + rng_below(r, longest < 300 ? longest : 300);
        for (uint64_t k = 0; k < n; k++) ids_add(out, (int32_t)rng_below(r, (uint64_t)c->V));
    }
    if (out->len > longest) out->len = longest;
}

/* Requests of 1 to SAMPLES_MAX samples, prompts and answers of mixed lengths, `tokens` tokens in all. Nothing stops an
 * answer but its length. */
static enum status make_workload(const struct onpolicy_options *o, const struct model_config *c, int64_t tokens,
                                 struct workload *w, int32_t *vocab_limit, struct err *e) {
    *w = (struct workload){0};
    struct tokenizer *tok = NULL;
    struct problem_set problems = {0};
    struct ids prompt = {0};
    enum chat_style style = CHAT_QWEN25;
    enum status st;
    CLEANUP_STR struct str probe = STR_INIT;
    str_addf(&probe, "%s/tokenizer.json", o->model_dir);
    *vocab_limit = 0;
    if (fs_is_file(probe.p)) {
        struct err unknown; /* the prompts only have to be prompts */
        if (chat_template_style(o->model_dir, NULL, c->arch->chat, false, &style, &unknown) != ST_OK)
            style = CHAT_QWEN25;
        TRY_GOTO(tokenizer_open(o->model_dir, &tok, e), out);
        TRY_GOTO(problem_set_load("builtin", &problems, e), out);
        *vocab_limit = tokenizer_vocab(tok);
    }
    struct rng r = rng_make(SEED, 1);
    int cap = 0;
    /* Short enough that the largest batch is full for half of the time. */
    const int64_t fills = tokens / batch_sizes[n_batch_sizes(o) - 1];
    const int64_t longest_answer = i64_min(ANSWER_MAX, i64_max(8, fills));
    while (w->tokens < tokens) {
        if (w->n == cap) {
            cap = cap ? 2 * cap : 64;
            w->req = xrealloc(w->req, (size_t)cap * sizeof *w->req);
            w->first = xrealloc(w->first, (size_t)cap * sizeof *w->first);
        }
        make_prompt(tok, style, &problems, c, w->n, &r, &prompt);
        int32_t *ids = arena_array(&w->arena, int32_t, prompt.len);
        memcpy(ids, prompt.p, prompt.len * sizeof *ids);
        int64_t most = i64_min(longest_answer, c->max_positions - (int64_t)prompt.len), left = tokens - w->tokens;
        int samples = 1 + (int)rng_below(&r, SAMPLES_MAX);
        int64_t len = 1 + (int64_t)rng_below(&r, (uint64_t)most);
        if (samples * len > left) {
            samples = 1;
            len = i64_min(len, left);
        }
        w->first[w->n] = w->n_samples;
        w->req[w->n] = (struct request){
            .prompt = ids,
            .n_prompt = (int)prompt.len,
            .n_samples = samples,
            .id = (uint64_t)w->n,
            .adapter = adapter_at(o, w->n),
            .params = {.temperature = w->n % 4 == 3 ? 0.7f : 1.0f, .top_p = 1, .max_tokens = (int)len, .seed = SEED}};
        w->n++;
        w->n_samples += samples;
        w->tokens += samples * len;
    }
    st = ST_OK;
out:
    ids_free(&prompt);
    problem_set_free(&problems);
    if (tok) tokenizer_close(tok);
    return st;
}

static void workload_free(struct workload *w) {
    arena_free(&w->arena);
    free(w->req);
    free(w->first);
}

/* ---- sampler ----------------------------------------------------------------------------------------------------- */

static bool on_progress(void *ctx, int64_t tokens, int done, int total) {
    log_progress("  %s: %lld tokens, %d of %d answers", (const char *)ctx, (long long)tokens, done, total);
    return !*interrupt_flag();
}

/* The samples of requests [0, n) in out, to be freed also after an error. */
static enum status sample_within(const struct subject *p, int max_batch, int64_t memory_bytes,
                                 const struct request *req, int n, struct sample *out, const char *what,
                                 struct engine_stats *stats, struct err *e) {
    const struct engine_options eo = {
        .memory_bytes = memory_bytes, .max_batch = max_batch, .vocab_limit = p->vocab_limit};
    struct engine *en;
    TRY(engine_open(p->model, &eo, &en, e));
    enum status st = engine_run(en, req, n, out, on_progress, (void *)(uintptr_t)what, e);
    *stats = engine_stats(en);
    engine_close(en);
    log_progress_end();
    if (st == ST_OK && *interrupt_flag()) return FAIL(e, ST_CANCELLED, "interrupted");
    return st;
}

static enum status sample_requests(const struct subject *p, int max_batch, const struct request *req, int n,
                                   struct sample *out, const char *what, struct err *e) {
    struct engine_stats stats;
    return sample_within(p, max_batch, 0, req, n, out, what, &stats, e);
}

static struct sample *samples_new(int n) { return xcalloc((size_t)n + 1, sizeof(struct sample)); }

static void samples_free(struct sample *s, int n) {
    for (int i = 0; i < n; i++) sample_free(&s[i]);
    free(s);
}

/* Tokens and log-probabilities of the same sample made twice. From the first token that differs on everything does. */
static void compare_samples(struct bits_tally *t, const struct sample *a, const struct sample *b, int n) {
    for (int i = 0; i < n; i++) {
        int same = 0;
        while (same < a[i].n && same < b[i].n && a[i].ids[same] == b[i].ids[same]) same++;
        bits_compare(t, a[i].logp, b[i].logp, same);
        const int longest = a[i].n > b[i].n ? a[i].n : b[i].n;
        if (same == longest) continue;
        t->n += longest - same;
        t->differ += longest - same;
        t->max_diff = (double)INFINITY;
    }
}

/* ---- trainer ----------------------------------------------------------------------------------------------------- */

struct pack { /* a training batch that grows */
    int32_t *ids, *rows, *targets;
    struct segment *seg;
    float *want, *got; /* the sampler's and the trainer's log-probabilities */
    int64_t T, N, cap;
    int n_seg;
    bool mixed; /* not of the own adapter alone */
};

static void pack_reserve(struct pack *k, int64_t rows) {
    if (k->T + rows <= k->cap && k->N + rows <= k->cap) return;
    k->cap = 2 * (i64_max(k->T, k->N) + rows);
    const size_t n = (size_t)k->cap;
    k->ids = xrealloc(k->ids, n * sizeof *k->ids);
    k->rows = xrealloc(k->rows, n * sizeof *k->rows);
    k->targets = xrealloc(k->targets, n * sizeof *k->targets);
    k->seg = xrealloc(k->seg, (n + 1) * sizeof *k->seg);
    k->want = xrealloc(k->want, n * sizeof *k->want);
    k->got = xrealloc(k->got, n * sizeof *k->got);
}

static void pack_free(struct pack *k) {
    free(k->ids);
    free(k->rows);
    free(k->targets);
    free(k->seg);
    free(k->want);
    free(k->got);
}

/* A segment of the prompt's and the sample's ids, each when wanted; the last token of a sample predicts nothing. */
static void add_segment(struct pack *k, const struct request *q, const struct sample *s, int prefix) {
    const int64_t start = k->T, prompt = q->n_prompt, own = s ? s->n - 1 : 0;
    if (prefix < 0) {
        memcpy(k->ids + k->T, q->prompt, (size_t)prompt * sizeof *k->ids);
        k->T += prompt;
    }
    if (own > 0) memcpy(k->ids + k->T, s->ids, (size_t)own * sizeof *k->ids);
    k->T += own;
    const int64_t last_prompt_row = prefix < 0 ? start + prompt - 1 : k->seg[prefix].start + prompt - 1;
    for (int64_t t = 0; s && t < s->n; t++, k->N++) {
        k->rows[k->N] = (int32_t)(t == 0 ? last_prompt_row : k->T - own + t - 1);
        k->targets[k->N] = s->ids[t];
        k->want[k->N] = s->logp[t];
    }
    if (k->T > start) k->seg[k->n_seg++] = (struct segment){start, k->T - start, prefix, q->adapter};
    k->mixed |= q->adapter != ADAPTER_OWN;
}

static enum status pack_flush(struct pack *k, struct model *m, struct bits_tally *t, struct err *e) {
    if (k->N == 0) return ST_OK;
    const struct train_batch b = {k->ids, k->T, k->seg, k->n_seg, k->rows, k->targets, k->N, k->mixed};
    TRY(model_forward(m, &b, k->got, NULL, NULL, e));
    bits_compare(t, k->want, k->got, k->N);
    k->T = k->N = 0;
    k->n_seg = 0;
    k->mixed = false;
    return ST_OK;
}

/* Requests in an order of their own; half of them with the prompt once and their samples as segments that continue it,
 * as the trainer packs a group, the others with every sample behind a prompt of its own. */
static enum status compare_training(const struct subject *p, const struct workload *w, int n_req,
                                    const struct sample *s, uint64_t order_seed, struct bits_tally *t, struct err *e) {
    struct pack k = {0};
    struct rng r = rng_make(SEED, 100 + order_seed);
    CLEANUP_FREE int32_t *order = xmalloc((size_t)n_req * sizeof *order);
    for (int i = 0; i < n_req; i++) order[i] = i;
    rng_shuffle(&r, order, (size_t)n_req, sizeof *order);
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < n_req; i++) {
        const struct request *q = &w->req[order[i]];
        const struct sample *own = &s[w->first[order[i]]];
        int32_t turn[SAMPLES_MAX] = {0, 1, 2, 3};
        rng_shuffle(&r, turn, (size_t)q->n_samples, sizeof *turn);
        const bool shared = rng_below(&r, 2) == 0;
        pack_reserve(&k, (int64_t)q->n_samples * (q->n_prompt + q->params.max_tokens));
        const int prefix = shared ? k.n_seg : -1;
        if (shared) add_segment(&k, q, NULL, -1);
        for (int j = 0; j < q->n_samples; j++) add_segment(&k, q, &own[turn[j]], prefix);
        if (k.T >= PACK_ROWS) st = pack_flush(&k, p->model, t, e);
    }
    if (st == ST_OK) st = pack_flush(&k, p->model, t, e);
    pack_free(&k);
    return st;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Sampler against trainer with every batch size; fills first with the samples of batch size 1. */
static enum status check_batches(const struct subject *p, const struct workload *w, int n_sizes, struct sample *first,
                                 struct bits_tally *policy, struct bits_tally *other, struct err *e) {
    for (int i = 0; i < n_sizes; i++) {
        char what[80];
        struct bits_tally train = {0}, batch = {0};
        struct sample *s = i == 0 ? first : samples_new(w->n_samples);
        snprintf(what, sizeof what, "sampled %d at a time, and trained", batch_sizes[i]);
        enum status st = sample_requests(p, batch_sizes[i], w->req, w->n, s, what, e);
        if (st == ST_OK) st = compare_training(p, w, w->n, s, (uint64_t)i, &train, e);
        if (st == ST_OK) report(what, &train, policy);
        if (st == ST_OK && i > 0) {
            compare_samples(&batch, first, s, w->n_samples);
            snprintf(what, sizeof what, "sampled 1 and %d at a time", batch_sizes[i]);
            report(what, &batch, other);
        }
        if (i > 0) samples_free(s, w->n_samples);
        TRY(st);
    }
    return ST_OK;
}

/* Greedy answers one by one in an engine of their own, and all in one batch. */
static enum status check_greedy(const struct subject *p, const struct workload *w, struct bits_tally *sum,
                                struct err *e) {
    struct request req[GREEDY_REQUESTS];
    int n = w->n < GREEDY_REQUESTS ? w->n : GREEDY_REQUESTS;
    struct sample *alone = samples_new(n), *together = samples_new(n);
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < n; i++) {
        req[i] = w->req[i];
        req[i].n_samples = 1;
        req[i].params.temperature = 0;
        st = sample_requests(p, 1, &req[i], 1, &alone[i], "greedy, alone", e);
    }
    if (st == ST_OK) st = sample_requests(p, 64, req, n, together, "greedy, in a batch", e);
    if (st == ST_OK) {
        struct bits_tally t = {0};
        compare_samples(&t, alone, together, n);
        report("greedy, alone and in a batch", &t, sum);
    }
    samples_free(alone, n);
    samples_free(together, n);
    return st;
}

/* The first prompts under every adapter, one by one in an engine of their own, all in one batch, and trained. That no
 * two adapters give a prompt the same answer shows that each is one. */
static enum status check_adapters(const struct onpolicy_options *o, const struct subject *p,
                                  const struct workload *from, struct bits_tally *policy, struct bits_tally *other,
                                  struct err *e) {
    enum { PROMPTS = 4 };
    const int of_each = n_adapters(o), prompts = from->n < PROMPTS ? from->n : PROMPTS, n = prompts * of_each;
    struct workload w = {
        .req = xcalloc((size_t)n, sizeof *w.req), .first = xcalloc((size_t)n, sizeof *w.first), .n = n};
    struct sample *alone = samples_new(n), *together = samples_new(n);
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < n; i++) {
        w.first[i] = i;
        w.req[i] = from->req[i / of_each];
        w.req[i].n_samples = 1;
        w.req[i].adapter = adapter_at(o, i % of_each);
        st = sample_requests(p, 1, &w.req[i], 1, &alone[i], "an adapter, alone", e);
    }
    if (st == ST_OK) st = sample_requests(p, 64, w.req, n, together, "every adapter, in a batch", e);
    struct bits_tally same = {0}, train = {0};
    if (st == ST_OK) st = compare_training(p, &w, n, together, 20, &train, e);
    for (int i = 0; st == ST_OK && i < n; i++)
        for (int j = i / of_each * of_each; j < i; j++)
            if (memcmp(together[i].logp, together[j].logp, sizeof *together[i].logp) == 0)
                st = FAIL(e, ST_FAILED, "adapters %d and %d give the same first token of prompt %d, with the same bits",
                          w.req[j].adapter, w.req[i].adapter, i / of_each);
    if (st == ST_OK) {
        compare_samples(&same, alone, together, n);
        report("a prompt with every adapter, and trained", &train, policy);
        report("a prompt with every adapter, alone and mixed", &same, other);
    }
    samples_free(alone, n);
    samples_free(together, n);
    workload_free(&w);
    return st;
}

/* A third of the work once more, many at a time with memory for few: samples give up their keys and values to others,
 * which are computed again later. */
static enum status check_preemption(const struct subject *p, const struct workload *w, const struct sample *first,
                                    struct bits_tally *sum, struct err *e) {
    const int n = (w->n + 2) / 3, n_samples = n < w->n ? w->first[n] : w->n_samples;
    int64_t longest = 0;
    for (int i = 0; i < n; i++) longest = i64_max(longest, w->req[i].n_prompt + w->req[i].params.max_tokens);
    const int64_t bytes = 4 * ((longest + KV_BLOCK - 1) / KV_BLOCK) * kv_block_bytes(p->model);
    struct engine_stats stats = {0};
    struct sample *s = samples_new(n_samples);
    enum status st = sample_within(p, 64, bytes, w->req, n, s, "64 at a time in little memory", &stats, e);
    if (st == ST_OK) {
        struct bits_tally t = {0};
        char what[80];
        compare_samples(&t, first, s, n_samples);
        snprintf(what, sizeof what, "1 and 64 at a time, preempted %lld times", (long long)stats.preemptions);
        report(what, &t, sum);
    }
    samples_free(s, n_samples);
    return st;
}

/* A part of the work once more with another number of threads. The model is loaded anew: its backend has the threads.
 */
static enum status check_threads(const struct onpolicy_options *o, int threads, int32_t vocab_limit,
                                 const struct workload *w, const struct sample *first, struct bits_tally *policy,
                                 struct bits_tally *other, struct err *e) {
    const int n = (w->n + 2) / 3, n_samples = n < w->n ? w->first[n] : w->n_samples;
    struct subject p;
    struct sample *s = samples_new(n_samples);
    struct bits_tally train = {0}, t = {0};
    char what[80];
    enum status st;
    TRY_GOTO(subject_open(o, threads, vocab_limit, &p, e), out);
    snprintf(what, sizeof what, "%d thread%s, sampled 7 at a time, and trained", threads, threads > 1 ? "s" : "");
    TRY_GOTO(sample_requests(&p, 7, w->req, n, s, what, e), out);
    TRY_GOTO(compare_training(&p, w, n, s, (uint64_t)(10 + threads), &train, e), out);
    report(what, &train, policy);
    compare_samples(&t, first, s, n_samples);
    snprintf(what, sizeof what, "%d thread%s and the number above", threads, threads > 1 ? "s" : "");
    report(what, &t, other);
out:
    subject_close(&p);
    samples_free(s, n_samples);
    return st;
}

static enum status run(struct onpolicy_options *o, struct bits_tally *policy, struct bits_tally *other, struct err *e) {
    const volatile bool *cancel = interrupt_flag();
    struct subject p = {0};
    struct workload w = {0};
    struct sample *first = NULL;
    enum status st;
    TRY_GOTO(locate("--model", HUB_MODEL, o->model, NULL, cancel, &o->model_dir, e), out);
    if (o->adapter) TRY_GOTO(locate("--adapter", HUB_ADAPTER, o->adapter, NULL, cancel, &o->adapter_dir, e), out);
    TRY_GOTO(subject_open(o, o->threads, 0, &p, e), out);
    const int sizes = n_batch_sizes(o);
    TRY_GOTO(make_workload(o, model_cfg(p.model), (o->tokens + sizes - 1) / sizes, &w, &p.vocab_limit, e), out);
    printf("%s on %s, %d threads: %d prompts, %d answers%s", o->model, p.be->name, pool_threads(p.pool), w.n,
           w.n_samples,
           o->adapter     ? ", with the adapter"
           : o->lora_rank ? ", with a random adapter"
                          : "");
    if (o->adapters) printf(", mixed with %d random adapter%s and the base", o->adapters, o->adapters > 1 ? "s" : "");
    printf("\n");
    first = samples_new(w.n_samples);
    TRY_GOTO(check_batches(&p, &w, sizes, first, policy, other, e), out);
    TRY_GOTO(check_greedy(&p, &w, other, e), out);
    if (o->adapters) TRY_GOTO(check_adapters(o, &p, &w, policy, other, e), out);
    TRY_GOTO(check_preemption(&p, &w, first, other, e), out);
    const int threads = pool_threads(p.pool);
    const int32_t vocab_limit = p.vocab_limit;
    subject_close(&p); /* before another is loaded: two may be more than memory holds */
    for (int k = 1; k <= 2; k++)
        if (k != threads) TRY_GOTO(check_threads(o, k, vocab_limit, &w, first, policy, other, e), out);
out:
    subject_close(&p);
    if (first) samples_free(first, w.n_samples);
    workload_free(&w);
    free(o->model_dir);
    free(o->adapter_dir);
    return st;
}

#define A struct onpolicy_options
static const struct args_flag flags[] = {
    FLAG_TEXT(A, model, "model", "MODEL", NULL, "The model: a folder, or a name on the Hub."),
    FLAG_TEXT(A, adapter, "adapter", "MODEL", NULL, "This adapter is put on it, named likewise."),
    FLAG_INT(A, lora_rank, "lora-rank", "R", 1, 4096, NULL, "A random adapter of this rank is put on it."),
    FLAG_INT(A, adapters, "adapters", "N", 1, 64, NULL,
             "Every batch mixes so many random adapters, of layers and head, and the base."),
    FLAG_INT(A, tokens, "tokens", "N", 1, (int64_t)1 << 32, "12000", "So many tokens, at least, are compared."),
    FLAG_INT(A, threads, "threads", "N", 0, 1024, "0, all CPUs", "So many threads work."),
    FLAG_TEXT(A, device, "device", "NAME", "cpu", "The device: cpu, cuda or cuda:N.", .valid = backend_device_valid,
              .expected = "cpu, cuda or cuda:N"),
    FLAG_CHOICE(A, dtype, "dtype", "TYPE", "auto|f32|bf16", "auto", "Matrices are held and multiplied in it."),
    FLAG_CHOICE(A, base_dtype, "base-dtype", "TYPE", CHOICE_TEXT(BASE_DTYPE_LIST), "auto",
                "The layers' matrices are held in it; auto is as the checkpoint has them."),
};
#undef A

const struct args_command onpolicy_command = {
    .name = "selfcheck onpolicy",
    .usage = "--model MODEL [FLAG]...",
    .about = "Samples tokens, computes their log-probabilities once more as the trainer does, and compares the bits.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

int selfcheck_onpolicy(int argc, char **argv) {
    struct onpolicy_options o = {.device = "cpu", .tokens = 12000};
    struct args given;
    if (!args_parse(&onpolicy_command, argc, argv, &o, &given)) return given.code;
    if (!o.model) return args_wrong(&onpolicy_command, &given, "--model is needed");
    if (o.adapter && o.lora_rank)
        return args_wrong(&onpolicy_command, &given, "--adapter and --lora-rank exclude each other");
    struct bits_tally policy = {0}, other = {0};
    struct err e = {0};
    if (run(&o, &policy, &other, &e) != ST_OK) return args_report(&e);
    const int64_t differ = policy.differ + other.differ;
    printf("%lld tokens, %lld differ, max |diff| %g\n", (long long)policy.n, (long long)differ,
           fmax(policy.max_diff, other.max_diff));
    return differ == 0 && policy.n >= o.tokens ? 0 : 1;
}
