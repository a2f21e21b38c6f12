/* The engine over a tiny random model: a sample does not depend on the batch around it, logprobs are the trainer's bit
 * for bit, filters, stopping, budgets, cancellation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "tensor/backend.h"

enum { V = 50 };
static const char config[] =
    "{\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":50,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":700,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false}";

static struct pool *pool;
static struct backend *be; /* the CPU: parameters can be written in place */
static struct model *model;

/* A fresh model gives nearly uniform distributions; larger weights make them uneven, so that the tests can tell. */
static int set_up(void **state) {
    (void)state;
    struct err e = {0};
    pool = pool_create(2);
    if (cpu_backend_open(pool, &be, &e) != ST_OK) fail_msg("%s", e.msg);
    if (model_init(config, 11, NULL, be, &model, &e) != ST_OK) fail_msg("%s", e.msg);
    if (model_train_prepare(model, TRAIN_FULL, &e) != ST_OK) fail_msg("%s", e.msg);
    int n;
    const struct param *p = model_params(model, &n);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p[i].n && p[i].nd == 2; k++) p[i].w[k] *= 12;
    model_params_changed(model);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    model_free(model);
    be->close(be);
    pool_destroy(pool);
    return 0;
}

/* Tokens spell letters: 'a' + id % 26, so that strings have something to match. */
static const char *letter(void *ctx, int32_t id, size_t *n) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    (void)ctx;
    *n = 1;
    return letters + id % 26;
}

static struct engine *open_engine(int64_t memory_bytes, int max_batch, int32_t limit) {
    const struct engine_options o = {
        .memory_bytes = memory_bytes, .max_batch = max_batch, .vocab_limit = limit, .token_bytes = letter};
    struct engine *en = NULL;
    struct err e = {0};
    if (engine_open(model, &o, &en, &e) != ST_OK) fail_msg("%s", e.msg);
    return en;
}

static void run_ok(struct engine *en, const struct request *r, int n, struct sample *out) {
    struct err e = {0};
    if (engine_run(en, r, n, out, NULL, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
}

static void free_all(struct sample *s, int n) {
    for (int i = 0; i < n; i++) sample_free(&s[i]);
}

static void assert_same(const struct sample *a, const struct sample *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->stop, b->stop);
    size_t n = (size_t)a->n;
    assert_true(memcmp(a->ids, b->ids, n * sizeof *a->ids) == 0);
    assert_true(memcmp(a->logp, b->logp, n * sizeof *a->logp) == 0);
    assert_true(memcmp(a->entropy, b->entropy, n * sizeof *a->entropy) == 0);
}

static int32_t prompt_ids[8][600];

/* Eight requests of different lengths (one longer than a prefill chunk), sample counts and parameters. */
static int mixed_requests(struct request *r) {
    static const int32_t stop[] = {7, 13};
    static const char *const strings[] = {"ab", "xyz"};
    const int length[8] = {5, 1, 64, 65, 600, 130, 3, 17}, samples[8] = {1, 4, 3, 1, 2, 5, 1, 2};
    int total = 0;
    for (int i = 0; i < 8; i++) {
        struct rng g = rng_make(99, (uint64_t)i);
        for (int k = 0; k < length[i]; k++) prompt_ids[i][k] = (int32_t)rng_below(&g, V);
        r[i] = (struct request){
            .prompt = prompt_ids[i], .n_prompt = length[i], .n_samples = samples[i], .id = 1000 + (uint64_t)i};
        r[i].params = (struct sample_params){.temperature = i % 3 ? 1.0f : 0.7f,
                                             .top_k = i % 4 == 3 ? 5 : 0,
                                             .top_p = i % 4 == 2 ? 0.8f : 1,
                                             .max_tokens = 10 + 6 * i,
                                             .seed = 5};
        if (i % 2) {
            r[i].params.stop_ids = stop;
            r[i].params.n_stop_ids = 2;
        } else {
            r[i].params.stop_strings = strings;
            r[i].params.n_stop_strings = 2;
        }
        total += samples[i];
    }
    return total;
}

static void batch_does_not_matter(void **state) {
    (void)state;
    struct request r[8];
    int total = mixed_requests(r);
    struct sample all[32], one[32];
    struct engine *big = open_engine(0, 0, 0);
    run_ok(big, r, 8, all);
    int stopped = 0;
    for (int i = 0; i < total; i++) stopped += all[i].stop != STOP_LENGTH;
    assert_in_range(stopped, 1, total - 1);
    /* Groups that do not fit at once, down to a single sample. */
    static const int batches[] = {1, 2, 3, 7, 64};
    for (size_t b = 0; b < ARRAY_LEN(batches); b++) {
        struct engine *small = open_engine(0, batches[b], 0);
        run_ok(small, r, 8, one);
        for (int i = 0; i < total; i++) assert_same(&all[i], &one[i]);
        free_all(one, total);
        engine_close(small);
    }
    /* Each request alone, on the engine that has run before. */
    for (int i = 0, at = 0; i < 8; at += r[i].n_samples, i++) {
        run_ok(big, &r[i], 1, one);
        for (int k = 0; k < r[i].n_samples; k++) assert_same(&all[at + k], &one[k]);
        free_all(one, r[i].n_samples);
    }
    /* Samples of a group differ from each other, and another seed gives other samples. */
    assert_true(all[1].n != all[2].n || memcmp(all[1].ids, all[2].ids, (size_t)all[1].n * 4) != 0);
    r[1].params.seed = 6;
    run_ok(big, &r[1], 1, one);
    bool differs = false;
    for (int k = 0; k < 4; k++)
        differs = differs || one[k].n != all[1 + k].n || memcmp(one[k].ids, all[1 + k].ids, (size_t)one[k].n * 4) != 0;
    assert_true(differs);
    free_all(one, 4);
    free_all(all, total);
    engine_close(big);
}

/* The trainer's forward over prompt and answers gives the recorded numbers bit for bit. */
static void logprobs_are_the_trainers(void **state) {
    (void)state;
    struct request r[8];
    int total = mixed_requests(r);
    struct sample out[32];
    struct engine *en = open_engine(0, 6, 0);
    run_ok(en, r, 8, out);
    for (int i = 0, at = 0; i < 8; at += r[i].n_samples, i++) {
        int32_t ids[2000], rows[2000], targets[2000];
        float logp[2000], entropy[2000];
        struct segment seg[9] = {{0, r[i].n_prompt, -1, 0}};
        int64_t T = r[i].n_prompt, N = 0;
        memcpy(ids, r[i].prompt, (size_t)T * sizeof *ids);
        for (int k = 0; k < r[i].n_samples; k++) {
            const struct sample *s = &out[at + k];
            seg[k + 1] = (struct segment){T, s->n, 0, 0};
            for (int t = 0; t < s->n; t++) {
                rows[N] = (int32_t)(t == 0 ? r[i].n_prompt - 1 : T + t - 1);
                targets[N++] = s->ids[t];
                ids[T + t] = s->ids[t];
            }
            T += s->n;
        }
        const struct train_batch b = {ids, T, seg, r[i].n_samples + 1, rows, targets, N, false};
        struct err e = {0};
        if (model_forward(model, &b, logp, entropy, NULL, &e) != ST_OK) fail_msg("%s", e.msg);
        N = 0;
        for (int k = 0; k < r[i].n_samples; k++) {
            size_t n = (size_t)out[at + k].n;
            assert_true(memcmp(out[at + k].logp, logp + N, n * sizeof(float)) == 0);
            assert_true(memcmp(out[at + k].entropy, entropy + N, n * sizeof(float)) == 0);
            N += (int64_t)n;
        }
    }
    free_all(out, total);
    engine_close(en);
}

/* However little memory there is, down to the longest sample alone, and however prompts are cut: the same samples.
 * Prefixes are found in the cache, or not. */
static void memory_does_not_matter(void **state) {
    (void)state;
    struct request r[8];
    int total = mixed_requests(r);
    struct sample all[32], one[32];
    struct engine *big = open_engine(0, 0, 0);
    run_ok(big, r, 8, all);
    assert_int_equal(engine_stats(big).preemptions, 0);
    const int64_t block = kv_block_bytes(model);
    static const struct {
        int blocks, batch, prefill;
        bool no_cache, preempts;
    } cases[] = {
        {10, 0, 0, false, true},  {10, 0, 0, true, true},  {10, 2, 7, false, true}, {11, 0, 64, false, true},
        {13, 7, 1, false, false}, {13, 7, 1, true, false}, {16, 0, 0, true, true},  {24, 64, 100, false, false},
        {0, 1, 65, true, false},  {0, 7, 1, false, false}, {0, 64, 3, true, false},
    };
    bool preempted = false;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct engine_options o = {.memory_bytes = cases[i].blocks * block + block - 1,
                                         .max_batch = cases[i].batch,
                                         .prefill_tokens = cases[i].prefill,
                                         .no_prefix_cache = cases[i].no_cache,
                                         .token_bytes = letter};
        struct engine_options own = o;
        if (cases[i].blocks == 0) own.memory_bytes = 0;
        struct engine *en = NULL;
        struct err e = {0};
        if (engine_open(model, &own, &en, &e) != ST_OK) fail_msg("%s", e.msg);
        for (int round = 0; round < 2; round++) { /* the second time the cache knows much */
            run_ok(en, r, 8, one);
            const struct engine_stats s = engine_stats(en);
            for (int k = 0; k < total; k++) assert_same(&all[k], &one[k]);
            if (cases[i].blocks) assert_true(s.kv_bytes <= cases[i].blocks * block);
            if (cases[i].no_cache) assert_int_equal(s.cached_tokens, 0);
            if (round && !cases[i].no_cache && cases[i].blocks == 0) assert_true(s.cached_tokens >= 600 / 64 * 64);
            preempted |= s.preemptions > 0;
            if (cases[i].preempts && s.preemptions == 0) fail_msg("case %zu: nothing was preempted", i);
            free_all(one, total);
        }
        engine_close(en);
    }
    assert_true(preempted);
    free_all(all, total);
    engine_close(big);
}

/* The samples of a request share one prefill; a prompt that begins like another takes over what that has computed; a
 * token in front that differs is noticed; other weights share nothing. */
static void prefixes_are_shared(void **state) {
    (void)state;
    static int32_t prompt[3][200];
    struct request r[3];
    struct sample s[12], want[12];
    for (int i = 0; i < 3; i++) {
        struct rng g = rng_make(7, 1);
        for (int k = 0; k < 200; k++) prompt[i][k] = (int32_t)rng_below(&g, V);
        r[i] = (struct request){.prompt = prompt[i], .n_prompt = 200, .n_samples = 4, .id = 50};
        r[i].params = (struct sample_params){.temperature = 1, .top_p = 1, .max_tokens = 20, .seed = 3};
    }
    prompt[1][150] = (prompt[1][150] + 1) % V; /* shares two blocks with the first */
    prompt[2][0] = (prompt[2][0] + 1) % V;     /* and this one none, although all later tokens are equal */
    struct engine_options o = {.no_prefix_cache = true};
    struct engine *plain = NULL, *en = open_engine(0, 0, 0);
    struct err e = {0};
    assert_int_equal(engine_open(model, &o, &plain, &e), ST_OK);
    /* Something else first: the cache starts anew when a run needs a larger one. */
    static int32_t other[200];
    struct request first[3];
    for (int i = 0; i < 3; i++) {
        first[i] = r[i];
        first[i].prompt = other;
    }
    run_ok(en, first, 3, s);
    free_all(s, 12);
    const int cached[] = {0, 128, 0};
    for (int i = 0; i < 3; i++) {
        run_ok(plain, &r[i], 1, &want[4 * i]);
        assert_int_equal(engine_stats(plain).prefilled_tokens, 200);
        run_ok(en, &r[i], 1, &s[4 * i]);
        assert_int_equal(engine_stats(en).cached_tokens, cached[i]);
        assert_int_equal(engine_stats(en).prefilled_tokens, 200 - cached[i]);
        for (int k = 0; k < 4; k++) assert_same(&s[4 * i + k], &want[4 * i + k]);
    }
    free_all(s, 12);
    /* All at once, and again. */
    for (int round = 0; round < 2; round++) {
        run_ok(en, r, 3, s);
        assert_int_equal(engine_stats(en).cached_tokens, 3 * 192);
        for (int k = 0; k < 12; k++) assert_same(&s[k], &want[k]);
        free_all(s, 12);
    }
    model_params_changed(model);
    run_ok(en, &r[0], 1, s);
    assert_int_equal(engine_stats(en).cached_tokens, 0);
    for (int k = 0; k < 4; k++) assert_same(&s[k], &want[k]);
    free_all(s, 4);
    free_all(want, 12);
    engine_close(plain);
    engine_close(en);
}

/* The requests of mixed_requests under the base, the model's own adapter and two others, all in one run: each sample is
 * what its request gives alone, in any batch and however little memory there is. That prompts begin alike helps only
 * those of one adapter. */
static void adapters_are_mixed(void **state) {
    (void)state;
    enum { ADAPTERS = 4, REQUESTS = 8 * ADAPTERS };
    static const int adapter[ADAPTERS] = {ADAPTER_BASE, ADAPTER_OWN, 1, 2};
    struct err e = {0};
    for (int k = 0; k < 3; k++) { /* the last one stays the own one */
        if (model_lora_init(model, 2 + 3 * k, 8, (uint64_t)k, &e) != ST_OK) fail_msg("%s", e.msg);
        if (model_train_prepare(model, TRAIN_LORA, &e) != ST_OK) fail_msg("%s", e.msg);
        int n;
        const struct param *p = model_params(model, &n);
        for (int i = 1; i < n; i += 2) { /* B */
            struct rng r = rng_make(5 + (uint64_t)k, (uint64_t)i);
            for (int64_t j = 0; j < p[i].n; j++) p[i].w[j] = 0.3f * (float)rng_normal(&r);
        }
        model_params_changed(model);
        if (k < 2) assert_int_equal(model_adapter_keep(model), k + 1);
    }
    struct request base[8], r[REQUESTS];
    const int total = mixed_requests(base);
    struct sample want[ADAPTERS * 32], got[ADAPTERS * 32];
    for (int i = 0; i < REQUESTS; i++) {
        r[i] = base[i / ADAPTERS];
        r[i].adapter = adapter[i % ADAPTERS];
    }
    int apart = 0;
    for (int i = 0, at = 0; i < REQUESTS; at += r[i].n_samples, i++) {
        struct engine *one = open_engine(0, 1, 0); /* nothing is remembered of another */
        run_ok(one, &r[i], 1, &want[at]);
        engine_close(one);
        const struct sample *mine = &want[at], *before = &want[at - (i % ADAPTERS ? r[i].n_samples : 0)];
        apart += i % ADAPTERS && mine->logp[0] != before->logp[0];
    }
    assert_int_equal(apart, REQUESTS / ADAPTERS * (ADAPTERS - 1)); /* each adapter does something of its own */
    static const struct {
        int blocks, batch, prefill;
        bool no_cache;
    } cases[] = {{0, 0, 0, false}, {0, 5, 3, true}, {10, 0, 0, false}, {11, 7, 64, true}, {13, 3, 1, false}};
    bool preempted = false;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct engine_options o = {.memory_bytes = cases[i].blocks * kv_block_bytes(model),
                                         .max_batch = cases[i].batch,
                                         .prefill_tokens = cases[i].prefill,
                                         .no_prefix_cache = cases[i].no_cache,
                                         .token_bytes = letter};
        struct engine *en = NULL;
        if (engine_open(model, &o, &en, &e) != ST_OK) fail_msg("%s", e.msg);
        for (int round = 0; round < 2; round++) {
            run_ok(en, r, REQUESTS, got);
            for (int k = 0; k < ADAPTERS * total; k++) assert_same(&want[k], &got[k]);
            free_all(got, ADAPTERS * total);
            const struct engine_stats s = engine_stats(en);
            preempted |= s.preemptions > 0;
            /* No two requests share a prompt and an adapter. The second round finds what the first has left. */
            if (i == 0) assert_true(round ? s.cached_tokens >= ADAPTERS * (600 / 64 * 64) : s.cached_tokens == 0);
        }
        engine_close(en);
    }
    assert_true(preempted);
    free_all(want, ADAPTERS * total);

    struct engine *en = open_engine(0, 0, 0);
    r[3].adapter = 3;
    assert_int_equal(engine_run(en, r, REQUESTS, got, NULL, NULL, &e), ST_INVALID);
    assert_non_null(strstr(e.msg, "request 3: there is no adapter 3"));
    engine_close(en);
    model_adapter_drop(model, 1);
    model_adapter_drop(model, 2);
    (void)model_adapter_keep(model);
    model_adapter_drop(model, 3); /* and the own one: the other tests' model again */
    if (model_train_prepare(model, TRAIN_FULL, &e) != ST_OK) fail_msg("%s", e.msg);
}

struct allocations {
    uint64_t last;
    int64_t last_done;
    int steps, quiet;
};

/* Three arrays for each sample that ends, nothing else. */
static bool count_allocations(void *ctx, int64_t tokens, int done, int total) {
    (void)tokens, (void)total;
    struct allocations *a = ctx;
    const uint64_t now = base_allocations();
    if (a->steps++) {
        assert_int_equal(now - a->last, 3 * (done - a->last_done));
        a->quiet += done == a->last_done;
    }
    a->last = now;
    a->last_done = done;
    return true;
}

static void *no_alloc(struct backend *b, size_t bytes) {
    (void)b, (void)bytes;
    fail_msg("device memory was allocated in the step loop");
    return NULL;
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    struct request r[8];
    const int total = mixed_requests(r);
    struct sample s[32];
    struct err e = {0};
    for (int tight = 0; tight < 2; tight++) {
        struct engine *en = open_engine(tight ? 11 * kv_block_bytes(model) : 0, 0, 0);
        run_ok(en, r, 8, s); /* buffers grow to their size */
        free_all(s, total);
        struct allocations a = {0};
        void *(*const alloc)(struct backend *, size_t) = be->mem_alloc;
        be->mem_alloc = no_alloc;
        const enum status st = engine_run(en, r, 8, s, count_allocations, &a, &e);
        be->mem_alloc = alloc;
        assert_int_equal(st, ST_OK);
        assert_true(a.quiet > 20);
        free_all(s, total);
        engine_close(en);
    }
}

/* Device memory an engine takes, counted. */
static int64_t taken, most;
static void *(*real_alloc)(struct backend *, size_t);
static void *counting_alloc(struct backend *b, size_t bytes) {
    taken += (int64_t)bytes;
    most = i64_max(most, taken);
    return real_alloc(b, bytes);
}

static void budget_is_never_exceeded(void **state) {
    (void)state;
    struct request r[8];
    const int total = mixed_requests(r);
    struct sample s[32];
    const int64_t block = kv_block_bytes(model);
    struct engine *warm = open_engine(0, 0, 0); /* the model's own buffers are no part of the budget */
    run_ok(warm, r, 8, s);
    free_all(s, total);
    engine_close(warm);
    real_alloc = be->mem_alloc;
    be->mem_alloc = counting_alloc;
    for (int64_t budget = 10 * block; budget < 40 * block; budget += 3 * block + block / 2) {
        taken = most = 0;
        struct engine *en = open_engine(budget, 0, 0);
        run_ok(en, r, 8, s);
        assert_true(most > budget / 2 && most <= budget);
        free_all(s, total);
        engine_close(en);
    }
    be->mem_alloc = real_alloc;
    /* One block less than the longest sample needs: says whose and how much. */
    struct engine *en = open_engine(10 * block - 1, 0, 0);
    struct err e = {0};
    assert_int_equal(engine_run(en, r, 8, s, NULL, NULL, &e), ST_MEMORY);
    assert_non_null(strstr(e.msg, "request 4"));
    engine_close(en);
}

/* A broken model is reported with the request it broke on, and leaves an engine that works. */
static void bad_logits(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 0, 0);
    static const int32_t bad_prompt[] = {1, 2, 49};
    struct request r[2];
    struct sample s[3], want;
    struct err e = {0};
    r[0] = (struct request){.prompt = bad_prompt, .n_prompt = 2, .n_samples = 1, .id = 77};
    r[0].params = (struct sample_params){.temperature = 0, .top_p = 1, .max_tokens = 3};
    r[1] = r[0];
    r[1].n_prompt = 3;
    r[1].n_samples = 2;
    r[1].id = 78;
    run_ok(en, r, 1, &want);
    int n;
    const struct param *p = model_params(model, &n);
    float *row = p[0].w + 49 * 32; /* the embedding of token 49 */
    const float old = *row;
    *row = NAN;
    model_params_changed(model);
    assert_int_equal(engine_run(en, r, 2, s, NULL, NULL, &e), ST_FAILED);
    assert_non_null(strstr(e.msg, "request 1 (id 78), sample 0"));
    assert_non_null(strstr(e.msg, "not finite after 3 tokens"));
    *row = old;
    model_params_changed(model);
    run_ok(en, r, 1, s);
    assert_same(&s[0], &want);
    sample_free(&s[0]);
    sample_free(&want);
    engine_close(en);
}

static struct request plain_request(int n_samples, int max_tokens, float temperature) {
    static const int32_t prompt[] = {1, 2, 3, 4};
    return (struct request){.prompt = prompt,
                            .n_prompt = 4,
                            .n_samples = n_samples,
                            .id = 3,
                            .params = {.temperature = temperature, .top_p = 1, .max_tokens = max_tokens, .seed = 9}};
}

static void greedy_and_top_1(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 0, 0);
    struct request r[3] = {plain_request(1, 40, 0), plain_request(1, 40, 1.5f), plain_request(1, 40, 1)};
    r[1].params.top_k = 1;
    r[2].params.top_p = 1e-6f;
    struct sample s[3];
    run_ok(en, r, 3, s);
    assert_int_equal(s[0].n, 40);
    assert_same(&s[0], &s[1]);
    assert_same(&s[0], &s[2]);
    free_all(s, 3);
    engine_close(en);

    /* Ties go to the lowest id. */
    struct sampler sp;
    float x[4] = {0, 2, 2, 1};
    sampler_init(&sp, 4, 4);
    struct sample_params p = {.temperature = 0, .top_p = 1};
    assert_int_equal(sampler_draw(&sp, x, &p, 0.99), 1);
    p = (struct sample_params){.temperature = 1, .top_k = 1, .top_p = 1};
    assert_int_equal(sampler_draw(&sp, x, &p, 0.99), 1);
    x[3] = NAN;
    assert_int_equal(sampler_draw(&sp, x, &p, 0.5), -1);
    sampler_free(&sp);
}

static void vocab_limit_holds(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 0, 10), *full = open_engine(0, 0, 0);
    struct request r = plain_request(8, 30, 2);
    struct sample s[8], t[8];
    run_ok(en, &r, 1, s);
    run_ok(full, &r, 1, t);
    bool above = false;
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < s[i].n; k++) {
            assert_in_range(s[i].ids[k], 0, 9);
            above = above || t[i].ids[k] >= 10;
        }
    assert_true(above);
    free_all(s, 8);
    free_all(t, 8);
    engine_close(en);
    engine_close(full);
}

/* Which ids a filter lets through, by scanning u. */
static void allowed(struct sampler *sp, const float *x, const struct sample_params *p, bool *seen, int n) {
    memset(seen, 0, (size_t)n);
    for (int i = 0; i < 2000; i++) {
        int32_t id = sampler_draw(sp, x, p, (i + 0.5) / 2000);
        assert_in_range(id, 0, n - 1);
        seen[id] = true;
    }
}

static void filters_cut_where_they_should(void **state) {
    (void)state;
    /* Probabilities 0.1, 0.4, 0.2, 0.05, 0.25. */
    const float x[5] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.05f), logf(0.25f)};
    static const struct {
        int top_k;
        float top_p, temperature;
        bool want[5];
        float min_p;
    } cases[] = {
        {0, 1, 1, {1, 1, 1, 1, 1}, 0},
        {2, 1, 1, {0, 1, 0, 0, 1}, 0},
        {0, 0.39f, 1, {0, 1, 0, 0, 0}, 0},
        {0, 0.41f, 1, {0, 1, 0, 0, 1}, 0},
        {0, 0.66f, 1, {0, 1, 1, 0, 1}, 0},
        {0, 0.94f, 1, {1, 1, 1, 0, 1}, 0},
        {2, 0.6f, 1, {0, 1, 0, 0, 0}, 0}, /* 0.4 of the 0.65 that top-k leaves is 0.615 */
        {2, 0.63f, 1, {0, 1, 0, 0, 1}, 0},
        {0, 0.41f, 0.5f, {0, 1, 0, 0, 0}, 0}, /* 0.59 at temperature 1/2 */
        {99, 1, 1, {1, 1, 1, 1, 1}, 0},
        {0, 1, 1, {0, 1, 1, 0, 1}, 0.26f}, /* a bound of 0.104 */
        {0, 1, 1, {1, 1, 1, 0, 1}, 0.24f},
        {0, 1, 1, {0, 1, 0, 0, 0}, 1},
        {0, 1, 0.5f, {0, 1, 0, 0, 1}, 0.3f}, /* 0.25 squared over 0.4 squared is 0.39, 0.2 squared 0.25 */
        {4, 1, 1, {0, 1, 1, 0, 1}, 0.26f},
        {2, 1, 1, {0, 1, 0, 0, 1}, 0.26f},
        {0, 0.94f, 1, {0, 1, 1, 0, 1}, 0.26f},
        {0, 0.41f, 1, {0, 1, 0, 0, 1}, 0.26f}, /* top-p counts before min-p cuts */
        {0, 0.999f, 1, {0, 1, 0, 0, 1}, 0.6f},
    };
    struct sampler sp;
    sampler_init(&sp, 5, 5);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct sample_params p = {.temperature = cases[i].temperature,
                                        .top_k = cases[i].top_k,
                                        .top_p = cases[i].top_p,
                                        .min_p = cases[i].min_p};
        bool seen[5];
        allowed(&sp, x, &p, seen, 5);
        if (memcmp(seen, cases[i].want, sizeof seen) != 0) fail_msg("case %zu", i);
    }
    sampler_free(&sp);
}

/* Many ids: the drawn one is where the running sum of probabilities passes u, in ascending order of id, and with top-p
 * in order of probability. */
static void large_vocabulary(void **state) {
    (void)state;
    enum { N = 3001 };
    static float x[N];
    static double p[N];
    struct rng g = rng_make(4, 4);
    struct sampler sp;
    sampler_init(&sp, N + 50, N);
    for (int round = 0; round < 4; round++) {
        double total = 0, sum = 0;
        for (int i = 0; i < N; i++) {
            x[i] = (float)(round * 3 * rng_normal(&g));
            p[i] = exp((double)x[i]);
            total += p[i];
        }
        struct sample_params par = {.temperature = 1, .top_p = 1};
        for (int i = 0, k = 0; i < N; i++) {
            sum += p[i] / total;
            for (; k < 2000 && (k + 0.5) / 2000 < sum - 1e-6; k++)
                if ((k + 0.5) / 2000 > sum - p[i] / total + 1e-6)
                    assert_int_equal(sampler_draw(&sp, x, &par, (k + 0.5) / 2000), i);
        }
        par.top_p = 0.7f;
        /* The nucleus: ids whose more probable rivals (or equal ones with lower ids) have less than 0.7 together. */
        static bool seen[N];
        memset(seen, 0, sizeof seen);
        for (int k = 0; k < 4000; k++) seen[sampler_draw(&sp, x, &par, (k + 0.5) / 4000)] = true;
        for (int i = 0; i < N; i++) {
            double above = 0;
            for (int k = 0; k < N; k++) above += p[k] > p[i] || (p[k] == p[i] && k < i) ? p[k] / total : 0;
            if (above > 0.7 + 1e-6) assert_false(seen[i]);
            if (above < 0.7 - 1e-6 && p[i] / total > 3e-4) assert_true(seen[i]);
        }
    }
    sampler_free(&sp);
}

/* Pearson's chi-square of 20000 first tokens against the model's own distribution, at two temperatures and filtered. */
static void distribution(void **state) {
    (void)state;
    enum { N = 20000 };
    struct engine *en = open_engine(0, 0, 0);
    struct request r = plain_request(N, 1, 1);
    struct sample *s = xcalloc(N, sizeof *s);
    struct kv_cache *kv;
    struct err e = {0};
    float logits[V];
    const int seq = 0, n = 4;
    assert_int_equal(kv_create(model, 1, 4, 0, &kv, &e), ST_OK);
    assert_int_equal(model_step(model, kv, 1, &seq, &n, r.prompt, logits, &e), ST_OK);
    kv_free(kv);
    for (int round = 0; round < 3; round++) {
        r.params.temperature = round == 1 ? 2.0f : 1.0f;
        r.params.top_k = round == 2 ? 12 : 0;
        r.params.seed = 100 + (uint64_t)round;
        double p[V], total = 0;
        for (int v = 0; v < V; v++) {
            int above = 0;
            for (int w = 0; w < V; w++) above += logits[w] > logits[v];
            p[v] =
                r.params.top_k && above >= r.params.top_k ? 0 : exp((double)logits[v] / (double)r.params.temperature);
            total += p[v];
        }
        run_ok(en, &r, 1, s);
        double count[V] = {0}, chi = 0, rest_p = 0, rest_n = 0;
        for (int i = 0; i < N; i++) count[s[i].ids[0]]++;
        int cells = 0;
        for (int v = 0; v < V; v++) {
            double expected = p[v] / total * N;
            if (expected < 10) { /* rare ids share a cell */
                rest_p += expected;
                rest_n += count[v];
                if (expected == 0) assert_true(count[v] == 0);
                continue;
            }
            chi += (count[v] - expected) * (count[v] - expected) / expected;
            cells++;
        }
        if (rest_p >= 5) {
            chi += (rest_n - rest_p) * (rest_n - rest_p) / rest_p;
            cells++;
        }
        assert_true(cells >= 4);
        /* Wilson and Hilferty's bound at about 1 in 10^6; the draw is fixed by the seed, so this cannot flake. */
        double df = cells - 1, a = 1 - 2 / (9 * df) + 4.75 * sqrt(2 / (9 * df));
        if (chi > df * a * a * a) fail_msg("round %d: chi-square %.1f with %.0f degrees of freedom", round, chi, df);
        free_all(s, N);
    }
    free(s);
    engine_close(en);
}

static void stop_strings(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 0, 0);
    struct request r = plain_request(1, 60, 1);
    struct sample full, cut;
    run_ok(en, &r, 1, &full);
    assert_int_equal(full.stop, STOP_LENGTH);
    /* Take three letters out of the middle of the answer: the first place where they occur is where it must stop. */
    char text[61], needle[4] = {0};
    size_t n;
    for (int i = 0; i < 60; i++) text[i] = *letter(NULL, full.ids[i], &n);
    text[60] = 0;
    memcpy(needle, text + 30, 3);
    const char *const strings[] = {"not in letters!", needle};
    r.params.stop_strings = strings;
    r.params.n_stop_strings = 2;
    run_ok(en, &r, 1, &cut);
    assert_int_equal(cut.stop, STOP_STRING);
    assert_int_equal(cut.n, strstr(text, needle) - text + 3);
    assert_true(memcmp(cut.ids, full.ids, (size_t)cut.n * 4) == 0);
    assert_true(memcmp(cut.logp, full.logp, (size_t)cut.n * 4) == 0);
    sample_free(&cut);
    /* A stop id wins over a string on the same token; the stop token is part of the sample. */
    const int32_t id = full.ids[strstr(text, needle) - text + 2];
    r.params.stop_ids = &id;
    r.params.n_stop_ids = 1;
    run_ok(en, &r, 1, &cut);
    assert_int_equal(cut.stop, STOP_TOKEN);
    assert_int_equal(cut.ids[cut.n - 1], id);
    for (int i = 0; i + 1 < cut.n; i++) assert_int_not_equal(cut.ids[i], id);
    sample_free(&cut);
    sample_free(&full);
    engine_close(en);
}

static bool stop_after_20(void *ctx, int64_t tokens, int done, int total) {
    int *calls = ctx;
    ++*calls;
    assert_true(done <= total);
    return tokens < 20;
}

static void cancellation(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 2, 0);
    struct request r = plain_request(6, 50, 1);
    struct sample s[6];
    int calls = 0;
    struct err e = {0};
    assert_int_equal(engine_run(en, &r, 1, s, stop_after_20, &calls, &e), ST_OK);
    assert_int_equal(calls, 10); /* two sequences: the first step gives two tokens, so does each after it */
    assert_int_equal(s[0].n, 10);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(s[i].stop, STOP_CANCELLED);
        assert_int_equal(s[i].n > 0, i < 2);
    }
    free_all(s, 6);
    struct sample again[6];
    run_ok(en, &r, 1, again); /* the engine is as good as new */
    for (int i = 0; i < 6; i++) assert_int_equal(again[i].n, 50);
    free_all(again, 6);
    engine_close(en);
}

static void budget(void **state) {
    (void)state;
    /* 2 layers, 2 kv heads, 64 keys of 8 + 16 (padded) floats. */
    const int64_t one = 2 * 2 * 64 * (8 + 16) * 4;
    struct request r = plain_request(5, 30, 1);
    struct sample s[5], t[5];
    struct err e = {0};
    struct engine *en = open_engine(one - 1, 0, 0);
    assert_int_equal(engine_run(en, &r, 1, s, NULL, NULL, &e), ST_MEMORY);
    char want[32];
    snprintf(want, sizeof want, "%lld bytes", (long long)one);
    assert_non_null(strstr(e.msg, want));
    engine_close(en);
    en = open_engine(one, 0, 0); /* room for one is enough for all, one after the other */
    run_ok(en, &r, 1, s);
    engine_close(en);
    en = open_engine(0, 0, 0);
    run_ok(en, &r, 1, t);
    for (int i = 0; i < 5; i++) assert_same(&s[i], &t[i]);
    free_all(s, 5);
    free_all(t, 5);
    engine_close(en);
}

static void positions_end(void **state) {
    (void)state;
    static int32_t prompt[700];
    struct engine *en = open_engine(0, 0, 0);
    struct request r = plain_request(2, 1000000, 1);
    struct sample s[2];
    r.prompt = prompt;
    r.n_prompt = 690;
    run_ok(en, &r, 1, s);
    assert_int_equal(s[0].n, 11); /* ten more positions, and the token that the last of them predicts */
    assert_int_equal(s[0].stop, STOP_LENGTH);
    free_all(s, 2);
    engine_close(en);
}

static void bad_requests(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 0, 0);
    const int32_t bad_id[] = {3, V};
    const char *const empty[] = {""};
    static int32_t too_long[701];
    static char long_string[MAX_STOP_STRING_BYTES + 2];
    memset(long_string, 'a', MAX_STOP_STRING_BYTES + 1);
    const char *const too_long_string[] = {"ok", long_string};
    const char *many[MAX_STOP_STRINGS + 1];
    for (int i = 0; i <= MAX_STOP_STRINGS; i++) many[i] = "stop";
    enum { CASES = 12 };
    struct request r[CASES];
    for (int i = 0; i < CASES; i++) r[i] = plain_request(1, 4, 1);
    r[0].n_prompt = 0;
    r[1].prompt = bad_id;
    r[1].n_prompt = 2;
    r[2].n_samples = 0;
    r[3].params.max_tokens = 0;
    r[4].params.temperature = NAN;
    r[5].params.top_p = 0;
    r[6].params.top_k = -1;
    r[7].params.stop_strings = empty;
    r[7].params.n_stop_strings = 1;
    r[8].prompt = too_long;
    r[8].n_prompt = 701;
    r[9].params.min_p = 1.5f;
    r[10].params.stop_strings = many;
    r[10].params.n_stop_strings = MAX_STOP_STRINGS + 1;
    r[11].params.stop_strings = too_long_string;
    r[11].params.n_stop_strings = 2;
    static const char *const want[] = {"prompt is empty", "prompt token 1",  "n_samples",
                                       "max_tokens",      "temperature",     "top_p",
                                       "top_k",           "stop string 0",   "701 tokens",
                                       "min_p",           "65 stop strings", "stop string 1 has 1025 bytes"};
    struct sample s;
    for (int i = 0; i < CASES; i++) {
        struct err e = {0};
        assert_int_equal(engine_run(en, &r[i], 1, &s, NULL, NULL, &e), ST_INVALID);
        if (!strstr(e.msg, want[i])) fail_msg("expected \"%s\" in: %s", want[i], e.msg);
    }
    engine_close(en);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_does_not_matter),
        cmocka_unit_test(logprobs_are_the_trainers),
        cmocka_unit_test(memory_does_not_matter),
        cmocka_unit_test(prefixes_are_shared),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(budget_is_never_exceeded),
        cmocka_unit_test(bad_logits),
        cmocka_unit_test(greedy_and_top_1),
        cmocka_unit_test(vocab_limit_holds),
        cmocka_unit_test(filters_cut_where_they_should),
        cmocka_unit_test(large_vocabulary),
        cmocka_unit_test(distribution),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(cancellation),
        cmocka_unit_test(budget),
        cmocka_unit_test(positions_end),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(adapters_are_mixed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
