/* Parameters that change the logits: golden rows, rules of which id may be drawn, and whole samples against a loop of
 * its own over the model's logits, in double. */
#include "engine/processors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "tensor/backend.h"

enum { V = 50, LIMIT = 46, PROMPT = 9, ANSWER = 40 };
static const char config[] =
    "{\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":50,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"max_position_embeddings\":300,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false}";

static struct pool *pool;
static struct backend *be;
static struct model *model;
static const int32_t prompt[PROMPT] = {1, 2, 3, 2, 17, 44, 8, 30, 2};

static void must(enum status st, const struct err *e) {
    if (st != ST_OK) fail_msg("%s", e->msg);
}

static int set_up(void **state) {
    (void)state;
    struct err e = {0};
    pool = pool_create(2);
    must(cpu_backend_open(pool, &be, &e), &e);
    must(model_init(config, 11, NULL, be, &model, &e), &e);
    must(model_train_prepare(model, TRAIN_FULL, &e), &e);
    int n;
    const struct param *p = model_params(model, &n);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p[i].n && p[i].nd == 2; k++) p[i].w[k] *= 12; /* uneven distributions */
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

static const char *letter(void *ctx, int32_t id, size_t *n) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    (void)ctx;
    *n = 1;
    return letters + id % 26;
}

static struct engine *open_engine(int blocks, int max_batch) {
    const struct engine_options o = {.memory_bytes = blocks * kv_block_bytes(model),
                                     .max_batch = max_batch,
                                     .vocab_limit = LIMIT,
                                     .token_bytes = letter};
    struct engine *en = NULL;
    struct err e = {0};
    must(engine_open(model, &o, &en, &e), &e);
    return en;
}

static struct request plain(float temperature, int max_tokens) {
    return (struct request){.prompt = prompt,
                            .n_prompt = PROMPT,
                            .n_samples = 1,
                            .params = {.temperature = temperature, .top_p = 1, .max_tokens = max_tokens, .seed = 4}};
}

static struct sample run_one(struct engine *en, const struct request *r) {
    struct sample s;
    struct err e = {0};
    must(engine_run(en, r, 1, &s, NULL, NULL, &e), &e);
    return s;
}

static void assert_same(const struct sample *a, const struct sample *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->stop, b->stop);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_memory_equal(a->logp, b->logp, (size_t)a->n * sizeof *a->logp);
    assert_memory_equal(a->entropy, b->entropy, (size_t)a->n * sizeof *a->entropy);
}

/* ---- one row ---- */

/* Computed with NumPy in float32 from the definitions of Hugging Face and of OpenAI's parameter details. */
static void golden_rows(void **state) {
    (void)state;
    static const float logits[10] = {0.5f, -1.25f, 2.75f, 3.1f, -0.3f, 1.9f, 0, 4.2f, -2.6f, 0.7f};
    static const int32_t tokens[] = {1, 2, 2, 6, /* drawn: */ 3, 1, 3, 3, 8};
    static const struct logit_bias bias[] = {{3, 1.4f}, {7, -2.2f}};
    static const struct {
        float repetition, frequency, presence;
        int n_bias;
        float want[10];
    } cases[] = {
        {1.3f, 0, 0, 0, {0.5f, -1.625f, 2.1153846f, 2.3846154f, -0.3f, 1.9f, 0, 4.2f, -3.3799996f, 0.7f}},
        {0, 0.7f, 0, 0, {0.5f, -1.95f, 2.75f, 1.0f, -0.3f, 1.9f, 0, 4.2f, -3.3f, 0.7f}},
        {1, 0, -0.3f, 0, {0.5f, -0.95f, 2.75f, 3.3999999f, -0.3f, 1.9f, 0, 4.2f, -2.3f, 0.7f}},
        {0, 0, 0, 2, {0.5f, -1.25f, 2.75f, 4.5f, -0.3f, 1.9f, 0, 1.9999998f, -2.6f, 0.7f}},
        {1.3f, 0.7f, -0.3f, 2, {0.5f, -2.025f, 2.1153846f, 1.6615386f, -0.3f, 1.9f, 0, 1.9999998f, -3.7799995f, 0.7f}},
    };
    struct processors s;
    processors_init(&s, 10);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct sample_params p = {.repetition_penalty = cases[i].repetition,
                                        .frequency_penalty = cases[i].frequency,
                                        .presence_penalty = cases[i].presence,
                                        .logit_bias = bias,
                                        .n_logit_bias = cases[i].n_bias};
        for (int again = 0; again < 2; again++) {
            const float *got = processors_row(&s, &p, tokens, 4, 5, logits);
            if (memcmp(got, cases[i].want, sizeof logits) != 0) fail_msg("case %zu", i);
        }
    }
    const struct sample_params none[] = {
        {.top_k = 3, .top_p = 0.5f, .min_p = 0.1f, .temperature = 0.3f, .max_tokens = 4},
        {.repetition_penalty = 1},
        {.min_tokens = 5},
        {.min_tokens = 5, .stop_ids = tokens, .n_stop_ids = 2}, /* they are drawn */
    };
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        assert_ptr_equal(processors_row(&s, &none[i], tokens, 4, 5, logits), logits);
    processors_free(&s);
}

/* Which of the ids 0..5 may follow the tokens. */
static const char *who_may(const struct sample_params *p, const int32_t *tokens, int n_prompt, int n) {
    static const float logits[6] = {1, -1, 2, 0, 3, 4};
    static char out[7];
    struct processors s;
    processors_init(&s, 6);
    const float *row = processors_row(&s, p, tokens, n_prompt, n, logits);
    size_t at = 0;
    for (int i = 0; i < 6; i++) {
        if (row[i] == -INFINITY) continue;
        assert_true(row[i] == logits[i]);
        out[at++] = (char)('0' + i);
    }
    out[at] = 0;
    processors_free(&s);
    return out;
}

static void what_may_be_drawn(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 2, 3, /* drawn: */ 1, 2, 3, 1}, one[] = {5}, two[] = {1, 4},
                         three[] = {3, 1, 0}, whole[] = {1, 2, 3, 1, 2}, longer[] = {3, 1, 2, 3, 1, 3},
                         allowed[] = {4, 0, 4, 3}, stops[] = {2, 99, -1};
    const struct token_run words[] = {{one, 1}, {two, 2}, {three, 3}, {whole, 5}, {longer, 6}};
    struct sample_params p = {.bad_words = words, .n_bad_words = 5};
    assert_string_equal(who_may(&p, tokens, 3, 4), "13"); /* `longer` would begin in the prompt */
    assert_string_equal(who_may(&p, tokens, 3, 3), "01234");
    assert_string_equal(who_may(&p, tokens, 3, 1), "0123");
    assert_string_equal(who_may(&p, tokens, 3, 0), "01234"); /* nor does the prompt's end count */
    p = (struct sample_params){.allowed_ids = allowed, .n_allowed_ids = 4};
    assert_string_equal(who_may(&p, tokens, 3, 4), "034");
    p.bad_words = words;
    p.n_bad_words = 5;
    assert_string_equal(who_may(&p, tokens, 3, 4), "3");
    p = (struct sample_params){.min_tokens = 3, .stop_ids = stops, .n_stop_ids = 3};
    assert_string_equal(who_may(&p, tokens, 3, 2), "01345");
    assert_string_equal(who_may(&p, tokens, 3, 3), "012345");
}

/* ---- samples ---- */

/* What is computed here of the row behind `n` tokens, from the model's own logits. */
struct by_hand {
    float raw[V];
    double x[V]; /* before temperature */
    double p[V]; /* of the distribution drawn from */
};

static void raw_logits(const int32_t *ids, int n, float *row) {
    struct err e = {0};
    static float all[(PROMPT + ANSWER) * V];
    const struct segment segment = {0, n, -1, ADAPTER_OWN};
    const struct train_batch b = {ids, n, &segment, 1, NULL, NULL, 0, true};
    must(model_logits(model, &b, all, &e), &e);
    memcpy(row, all + (n - 1) * V, V * sizeof *row);
}

static void normalize(double *p) {
    double sum = 0;
    for (int v = 0; v < V; v++) sum += p[v];
    for (int v = 0; v < V; v++) p[v] /= sum;
}

/* Of the ids, those with the largest p: as many as `count`, and as reach `mass` of the whole. */
static void keep_top(double *p, int count, double mass) {
    double sum = 0, all = 0;
    bool keep[V] = {false};
    for (int v = 0; v < V; v++) all += p[v];
    for (int k = 0; k < count && sum < mass * all; k++) {
        int best = -1;
        for (int v = 0; v < V; v++)
            if (!keep[v] && (best < 0 || p[v] > p[best])) best = v;
        keep[best] = true;
        sum += p[best];
    }
    for (int v = 0; v < V; v++) p[v] = keep[v] ? p[v] : 0;
}

static void work_out(const struct sample_params *p, const int32_t *ids, int n, struct by_hand *h) {
    int everywhere[V] = {0}, drawn[V] = {0};
    raw_logits(ids, PROMPT + n, h->raw);
    for (int i = 0; i < PROMPT + n; i++) everywhere[ids[i]]++;
    for (int i = 0; i < n; i++) drawn[ids[PROMPT + i]]++;
    for (int v = 0; v < V; v++) h->x[v] = (double)h->raw[v];
    for (int i = 0; i < p->n_logit_bias; i++) h->x[p->logit_bias[i].id] += (double)p->logit_bias[i].value;
    double most = -INFINITY;
    for (int v = 0; v < V; v++) {
        const double r = p->repetition_penalty > 0 ? (double)p->repetition_penalty : 1;
        if (everywhere[v]) h->x[v] = h->x[v] > 0 ? h->x[v] / r : h->x[v] * r;
        h->x[v] -= (double)p->frequency_penalty * drawn[v] + (drawn[v] ? (double)p->presence_penalty : 0);
        if (v < LIMIT) most = fmax(most, h->x[v]);
    }
    const double T = p->temperature > 0 ? (double)p->temperature : 1;
    for (int v = 0; v < V; v++) h->p[v] = exp((h->x[v] - most) / T);
    const bool filtered = p->temperature > 0 && (p->top_k > 0 || p->top_p < 1 || p->min_p > 0);
    for (int v = LIMIT; filtered && v < V; v++) h->p[v] = 0;
    if (filtered && p->top_k > 0) keep_top(h->p, p->top_k, 2);
    if (filtered && p->top_p < 1) keep_top(h->p, V, (double)p->top_p);
    for (int v = 0; filtered && v < V; v++) h->p[v] = h->p[v] < (double)p->min_p ? 0 : h->p[v];
    normalize(h->p);
}

static const struct logit_bias some_bias[] = {{3, 2.5f}, {20, -100}, {41, 1}, {7, -INFINITY}};
static const struct sample_params changing[] = {
    {.frequency_penalty = 1.5f},
    {.presence_penalty = 1.2f},
    {.frequency_penalty = -0.2f, .presence_penalty = -1},
    {.repetition_penalty = 1.4f},
    {.repetition_penalty = 0.8f},
    {.logit_bias = some_bias, .n_logit_bias = 4},
    {.logit_bias = some_bias, .n_logit_bias = 3, .repetition_penalty = 1.1f, .frequency_penalty = 0.5f},
    {.temperature = 0},
};

static struct sample_params as_greedy(size_t i) {
    struct sample_params p = changing[i];
    p.top_p = 1;
    p.max_tokens = ANSWER;
    return p;
}

/* A greedy sample follows the largest of the logits that are worked out here; its log-probabilities are the model's
 * own. Each case gives another sample. */
static void greedy_follows_the_formulas(void **state) {
    (void)state;
    struct engine *en = open_engine(0, 0);
    struct sample seen[ARRAY_LEN(changing)];
    for (size_t i = 0; i < ARRAY_LEN(changing); i++) {
        struct request r = plain(0, ANSWER);
        r.params = as_greedy(i);
        const struct sample s = seen[i] = run_one(en, &r);
        int32_t ids[PROMPT + ANSWER];
        memcpy(ids, prompt, sizeof prompt);
        memcpy(ids + PROMPT, s.ids, (size_t)s.n * sizeof *ids);
        assert_int_equal(s.n, ANSWER);
        for (int t = 0; t < s.n; t++) {
            struct by_hand h;
            work_out(&r.params, ids, t, &h);
            for (int v = 0; v < LIMIT; v++)
                if (h.x[v] > h.x[s.ids[t]] + 1e-5) fail_msg("case %zu, token %d: %d is better", i, t, v);
            float entropy;
            const float logp = logprob_row(h.raw, V, s.ids[t], &entropy);
            assert_true(logp == s.logp[t] && entropy == s.entropy[t]);
        }
        for (size_t k = 0; k < i; k++) assert_true(memcmp(seen[k].ids, s.ids, ANSWER * sizeof *s.ids) != 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(changing); i++) sample_free(&seen[i]);
    engine_close(en);
}

/* Processed log-probabilities are those of the distribution that was drawn from; raw ones have other bits, and the same
 * tokens. */
static void processed_logprobs(void **state) {
    (void)state;
    enum { TOP = 6, NAMED = 3 };
    static const int32_t named[NAMED] = {20, 3, 49};
    static const struct sample_params filters[] = {
        {.temperature = 0.6f},
        {.temperature = 1, .top_k = 4},
        {.temperature = 1.5f, .top_p = 0.7f},
        {.temperature = 1, .min_p = 0.2f},
        {.temperature = 0.9f, .top_k = 12, .top_p = 0.8f, .min_p = 0.05f},
        {.temperature = 1, .frequency_penalty = 1, .logit_bias = some_bias, .n_logit_bias = 3},
        {.temperature = 0, .presence_penalty = 0.5f},
        {.temperature = 1},
        {.temperature = 0},
    };
    struct engine *en = open_engine(0, 0);
    for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
        struct request r = plain(1, ANSWER);
        r.params = filters[i];
        if (r.params.top_p == 0) r.params.top_p = 1;
        r.params.max_tokens = ANSWER;
        struct sample bare = run_one(en, &r);
        r.processed_logprobs = true;
        struct sample lone = run_one(en, &r);
        r.top_logprobs = TOP;
        r.logprob_ids = named;
        r.n_logprob_ids = NAMED;
        struct sample s = run_one(en, &r);
        assert_same(&lone, &s);
        assert_memory_equal(bare.ids, s.ids, ANSWER * sizeof *s.ids);
        const bool same = i + 2 >= ARRAY_LEN(filters);
        assert_int_equal(memcmp(bare.logp, s.logp, ANSWER * sizeof *s.logp) == 0, same);
        assert_int_equal(memcmp(bare.entropy, s.entropy, ANSWER * sizeof *s.logp) == 0, same);
        int32_t ids[PROMPT + ANSWER];
        memcpy(ids, prompt, sizeof prompt);
        memcpy(ids + PROMPT, s.ids, ANSWER * sizeof *ids);
        for (int t = 0; t < ANSWER; t++) {
            struct by_hand h;
            double entropy = 0;
            work_out(&r.params, ids, t, &h);
            for (int v = 0; v < V; v++) entropy -= h.p[v] > 0 ? h.p[v] * log(h.p[v]) : 0;
            assert_true(fabs((double)s.logp[t] - log(h.p[s.ids[t]])) < 1e-4);
            assert_true(fabs((double)s.entropy[t] - entropy) < 1e-4);
            for (int k = 0; k < TOP + NAMED; k++) {
                const int32_t id = k < TOP ? s.top_ids[t * TOP + k] : named[k - TOP];
                const float logp = k < TOP ? s.top_logp[t * TOP + k] : s.id_logp[t * NAMED + k - TOP];
                const double want = log(h.p[id]);
                if (isinf(want) ? logp != -INFINITY : fabs((double)logp - want) > 1e-4)
                    fail_msg("case %zu, token %d, id %d: %g, expected %g", i, t, id, (double)logp, want);
                assert_true(k == 0 || k >= TOP || logp <= s.top_logp[t * TOP + k - 1]);
            }
        }
        sample_free(&bare);
        sample_free(&lone);
        sample_free(&s);
    }
    engine_close(en);
}

/* A sample that its parameters change is the same alone, beside others, and where memory is so short that sequences
 * lose their blocks; those beside it are what they are without it. */
static void batch_and_memory_do_not_matter(void **state) {
    (void)state;
    enum { N = 2 * (int)ARRAY_LEN(changing), LONG = 150 };
    static const int32_t stop[] = {5, 33};
    struct request r[N];
    struct sample alone[N], got[N];
    struct err e = {0};
    for (int i = 0; i < N; i++) {
        r[i] = plain(1, LONG);
        r[i].params.seed = 9 + (uint64_t)i;
        r[i].id = (uint64_t)i;
        if (i % 2 == 0) continue; /* untouched ones between them */
        r[i].params = changing[i / 2];
        r[i].params.temperature = i % 4 == 1 ? 0 : 0.9f;
        r[i].params.top_p = i % 3 ? 1 : 0.9f;
        r[i].params.max_tokens = LONG;
        r[i].params.stop_ids = stop;
        r[i].params.n_stop_ids = i % 5 ? 2 : 0;
        r[i].params.min_tokens = 20 * (i % 4);
        r[i].processed_logprobs = i % 4 == 3;
    }
    struct engine *one = open_engine(0, 1);
    for (int i = 0; i < N; i++) alone[i] = run_one(one, &r[i]);
    engine_close(one);
    static const int blocks[] = {0, 7, 4};
    for (size_t k = 0; k < ARRAY_LEN(blocks); k++) {
        struct engine *en = open_engine(blocks[k], 0);
        must(engine_run(en, r, N, got, NULL, NULL, &e), &e);
        for (int i = 0; i < N; i++) assert_same(&alone[i], &got[i]);
        for (int i = 0; i < N; i++) sample_free(&got[i]);
        assert_int_equal(engine_stats(en).preemptions > 0, blocks[k] > 0);
        engine_close(en);
    }
    for (int i = 0; i < N; i++) sample_free(&alone[i]);
}

/* ---- stops ---- */

static bool stops_at(const char *text, int n, const char *const *strings, int n_strings) {
    for (int i = 0; i < n_strings; i++) {
        const int m = (int)strlen(strings[i]);
        if (m <= n && memcmp(text + n - m, strings[i], (size_t)m) == 0) return true;
    }
    return false;
}

static void min_tokens_hold_stops_off(void **state) {
    (void)state;
    static const char *const strings[] = {"a", "mk", "b"};
    static const int32_t ids[] = {4, 9, 27};
    struct engine *en = open_engine(0, 0);
    int delayed = 0, longest = 0;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct request r = plain(1.3f, ANSWER);
        r.params.seed = seed;
        struct sample full = run_one(en, &r);
        char text[ANSWER];
        size_t one;
        for (int i = 0; i < ANSWER; i++) text[i] = *letter(NULL, full.ids[i], &one);
        r.params.stop_strings = strings;
        r.params.n_stop_strings = 3;
        for (int least = 0; least <= ANSWER; least += 1 + least / 3) {
            r.params.min_tokens = least;
            struct sample s = run_one(en, &r);
            int want = least + 1;
            while (want < ANSWER && !stops_at(text, want, strings, 3)) want++;
            if (want > ANSWER) want = ANSWER;
            assert_int_equal(s.n, want);
            assert_memory_equal(s.ids, full.ids, (size_t)want * sizeof *s.ids);
            assert_memory_equal(s.logp, full.logp, (size_t)want * sizeof *s.logp);
            delayed += least > 0 && s.stop == STOP_STRING;
            sample_free(&s);
        }
        r.params.n_stop_strings = 0;
        r.params.stop_ids = ids;
        r.params.n_stop_ids = 3;
        for (int least = 0; least < ANSWER; least += 7) {
            r.params.min_tokens = least;
            struct sample s = run_one(en, &r);
            assert_true(s.n > least);
            for (int i = 0; i + 1 < s.n; i++)
                for (int k = 0; k < 3; k++) assert_int_not_equal(s.ids[i], ids[k]);
            if (s.n < ANSWER) assert_int_equal(s.stop, STOP_TOKEN);
            longest = s.n > longest ? s.n : longest;
            sample_free(&s);
        }
        sample_free(&full);
    }
    assert_true(delayed > 20 && longest > 28);
    engine_close(en);
}

/* Parameters that leave nothing to draw end their own request, with a message; others go on. */
static void nothing_to_draw(void **state) {
    (void)state;
    static const int32_t only[] = {6, 8}, six[] = {6}, eight[] = {8, 8};
    static const struct token_run words[] = {{six, 1}, {eight, 2}};
    struct engine *en = open_engine(0, 0);
    struct request r = plain(1, 5), other = plain(1, 5);
    struct err e = {0};
    int64_t bad, good;
    r.params.allowed_ids = only;
    r.params.n_allowed_ids = 2;
    r.params.bad_words = words;
    r.params.n_bad_words = 2;
    must(engine_submit(en, &r, &bad, &e), &e);
    must(engine_submit(en, &other, &good, &e), &e);
    for (bool working = true; working;) must(engine_step(en, &working, &e), &e);
    struct engine_result got;
    assert_true(engine_poll(en, bad, &got));
    assert_int_equal(got.status, ST_INVALID);
    assert_string_equal(got.err.msg,
                        "request 1 (id 0), sample 0: allowed_token_ids, bad_words, logit_bias and min_tokens "
                        "leave no token after 10 tokens");
    engine_result_free(&got);
    assert_true(engine_poll(en, good, &got));
    assert_int_equal(got.status, ST_OK);
    assert_int_equal(got.samples[0].n, 5);
    engine_result_free(&got);
    r.params.n_bad_words = 1;
    struct sample s = run_one(en, &r);
    for (int i = 0; i < 5; i++) assert_int_equal(s.ids[i], 8);
    sample_free(&s);
    engine_close(en);
}

static void what_is_refused(void **state) {
    (void)state;
    static const int32_t outside[] = {1, LIMIT};
    static const struct logit_bias wrong_id[] = {{1, 1}, {-1, 1}}, wrong_value[] = {{2, NAN}},
                                   infinite[] = {{2, INFINITY}};
    static const struct token_run empty[] = {{outside, 1}, {outside, 0}}, unknown[] = {{outside, 1}, {outside, 2}};
    static const struct {
        struct sample_params p;
        const char *want;
    } cases[] = {
        {{.frequency_penalty = 2.5f}, "frequency_penalty is 2.5, expected a number in [-2,2]"},
        {{.presence_penalty = NAN}, "presence_penalty is nan, expected a number in [-2,2]"},
        {{.repetition_penalty = -1}, "repetition_penalty is -1, expected a number > 0 (1: off)"},
        {{.logit_bias = wrong_id, .n_logit_bias = 2}, "logit_bias names id -1, expected 0..45"},
        {{.logit_bias = wrong_value, .n_logit_bias = 1}, "logit_bias of id 2 is nan, expected a finite number"},
        {{.logit_bias = infinite, .n_logit_bias = 1}, "logit_bias of id 2 is inf, expected a finite number"},
        {{.n_logit_bias = MAX_LOGIT_BIAS + 1}, "logit_bias has 1025 entries, expected 0..1024"},
        {{.allowed_ids = outside, .n_allowed_ids = 2}, "allowed_token_ids 1 is 46, expected 0..45"},
        {{.n_allowed_ids = V + 1}, "allowed_token_ids has 51 entries, expected 0..50"},
        {{.bad_words = empty, .n_bad_words = 2}, "bad_words 1 has 0 tokens, expected 1..1024"},
        {{.bad_words = unknown, .n_bad_words = 2}, "bad_words 1: token 1 is 46, expected 0..45"},
        {{.n_bad_words = MAX_BAD_WORDS + 1}, "bad_words has 1025 entries, expected 0..1024"},
        {{.min_tokens = 9}, "min_tokens is 9, expected 0..8, which is max_tokens"},
        {{.min_tokens = -1}, "min_tokens is -1, expected 0..8, which is max_tokens"},
    };
    struct engine *en = open_engine(0, 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request r = plain(1, 8);
        struct err e = {0};
        int64_t ticket;
        r.params = cases[i].p;
        r.params.top_p = 1;
        r.params.max_tokens = 8;
        assert_int_equal(engine_submit(en, &r, &ticket, &e), ST_INVALID);
        assert_string_equal(e.msg, cases[i].want);
    }
    engine_close(en);
}

/* Tempered log-probabilities belong to the whole distribution at the request's temperature: the tokens stay what they
 * are, filters take nothing away, and without filters they are the processed ones, bit for bit. */
static void tempered_logprobs(void **state) {
    (void)state;
    static const struct sample_params params[] = {
        {.temperature = 0.6f, .top_p = 1},
        {.temperature = 1.5f, .top_k = 4, .top_p = 0.7f},
        {.temperature = 0.9f, .top_k = 12, .top_p = 0.8f, .min_p = 0.05f},
        {.temperature = 1, .top_k = 4, .top_p = 1},
        {.temperature = 0, .top_p = 1},
    };
    struct engine *en = open_engine(0, 0);
    for (size_t i = 0; i < ARRAY_LEN(params); i++) {
        struct request r = plain(1, ANSWER);
        r.params = params[i];
        r.params.max_tokens = ANSWER;
        const float T = r.params.temperature;
        struct sample bare = run_one(en, &r);
        r.tempered_logprobs = true;
        struct sample s = run_one(en, &r);
        assert_memory_equal(bare.ids, s.ids, ANSWER * sizeof *s.ids);
        assert_int_equal(memcmp(bare.logp, s.logp, ANSWER * sizeof *s.logp) == 0, T == 0 || T == 1);
        if (i == 0) {
            r.tempered_logprobs = false;
            r.processed_logprobs = true;
            struct sample processed = run_one(en, &r);
            assert_same(&processed, &s);
            sample_free(&processed);
        }
        int32_t ids[PROMPT + ANSWER];
        memcpy(ids, prompt, sizeof prompt);
        memcpy(ids + PROMPT, s.ids, ANSWER * sizeof *ids);
        const struct sample_params whole = {.temperature = T == 0 ? 1 : T, .top_p = 1};
        for (int t = 0; t < ANSWER; t++) {
            struct by_hand h;
            work_out(&whole, ids, t, &h);
            assert_true(fabs((double)s.logp[t] - log(h.p[s.ids[t]])) < 1e-4);
        }
        sample_free(&bare);
        sample_free(&s);
    }
    engine_close(en);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_rows),
        cmocka_unit_test(what_may_be_drawn),
        cmocka_unit_test(greedy_follows_the_formulas),
        cmocka_unit_test(processed_logprobs),
        cmocka_unit_test(tempered_logprobs),
        cmocka_unit_test(batch_and_memory_do_not_matter),
        cmocka_unit_test(min_tokens_hold_stops_off),
        cmocka_unit_test(nothing_to_draw),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
