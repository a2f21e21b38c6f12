/* The queue: whatever the order of submissions, cancellations, pauses, changes of adapters and steps, a finished sample
 * has the bits that engine_run() gives its request alone. KERNELRL_TEST_DEVICE (cpu) names another device. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/rng.h"
#include "engine/internal.h"
#include "tensor/backend.h"

enum { V = 50, TEMPLATES = 12, ADAPTERS = 2, LONGEST = 150 };
static const char config[] =
    "{\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":50,\"hidden_size\":32,"
    "\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":400,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false}";

static struct pool *pool;
static struct backend *be;
static struct model *model;
static char folder[64]; /* the adapters' files */

static void must(enum status st, const struct err *e) {
    if (st != ST_OK) fail_msg("%s", e->msg);
}

/* Every matrix, or every second one from `first` on, gets random numbers of that deviation. */
static void fill_params(int first, int step, float deviation, uint64_t seed) {
    int n;
    const struct param *p = model_params(model, &n);
    for (int i = first; i < n; i += step) {
        if (p[i].nd != 2) continue;
        float *w = malloc((size_t)p[i].n * sizeof *w);
        struct rng r = rng_make(seed, (uint64_t)i);
        for (int64_t k = 0; k < p[i].n; k++) w[k] = deviation * (float)rng_normal(&r);
        model_param_put(model, &p[i], w);
        free(w);
    }
    model_params_changed(model);
}

static const char *adapter_dir(int k) {
    static char path[128];
    snprintf(path, sizeof path, "%s/adapter%d", folder, k);
    return path;
}

static void open_model(const char *dtype) {
    struct err e = {0};
    const struct model_options o = {.dtype = dtype};
    must(model_init(config, 11, &o, be, &model, &e), &e);
    must(model_train_prepare(model, TRAIN_FULL, &e), &e);
    fill_params(0, 1, 0.25f, 3);
    for (int k = 0; k < ADAPTERS; k++) {
        must(model_lora_init(model, 2 + 3 * k, 8, (uint64_t)k, &e), &e);
        must(model_train_prepare(model, TRAIN_LORA, &e), &e);
        fill_params(1, 2, 0.3f, 5 + (uint64_t)k); /* B */
        must(model_lora_save(model, adapter_dir(k), &e), &e);
        const int kept = model_adapter_keep(model);
        model_adapter_drop(model, kept);
    }
}

static int set_up(void **state) {
    (void)state;
    struct err e = {0};
    const char *device = getenv("KERNELRL_TEST_DEVICE");
    pool = pool_create(2);
    must(backend_open(device ? device : "cpu", pool, &be, &e), &e);
    snprintf(folder, sizeof folder, "/tmp/kernelrl-queue-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    struct err e = {0};
    must(fs_remove(folder, &e), &e);
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

static struct engine *open_engine(int blocks, int max_batch, int prefill) {
    const struct engine_options o = {.memory_bytes = (blocks ? blocks : 300) * kv_block_bytes(model),
                                     .max_batch = max_batch,
                                     .prefill_tokens = prefill,
                                     .token_bytes = letter};
    struct engine *en = NULL;
    struct err e = {0};
    must(engine_open(model, &o, &en, &e), &e);
    return en;
}

/* ---- requests, and what each gives alone ---- */

static int32_t prompt_ids[TEMPLATES][LONGEST];
static struct request template[TEMPLATES]; /* adapter: -1 the base, else 1 + the number of a file */
static struct sample want[TEMPLATES][4];
static float prompt_logp[TEMPLATES][LONGEST], prompt_entropy[TEMPLATES][LONGEST]; /* of the pass that training makes */

static void make_templates(void) {
    static const int32_t stop[] = {7, 13}, named[] = {3, 49, 0};
    static const char *const strings[] = {"ab", "xyz"};
    static const struct token_run words[] = {{named, 1}, {stop, 2}};
    static const struct logit_bias bias[] = {{13, 1.5f}, {20, -100}};
    static const int length[] = {5, 1, 64, 65, LONGEST, 130};
    for (int i = 0; i < TEMPLATES; i++) {
        struct rng g = rng_make(99, (uint64_t)(i % 8)); /* some begin alike */
        for (int k = 0; k < LONGEST; k++) prompt_ids[i][k] = (int32_t)rng_below(&g, V);
        template[i] = (struct request){.prompt = prompt_ids[i],
                                       .n_prompt = length[i % 6],
                                       .n_samples = 1 + i % 4,
                                       .id = i % 2 ? 0 : 1000 + (uint64_t)i,
                                       .adapter = i % 3 ? i % 3 : ADAPTER_BASE,
                                       .top_logprobs = i % 5 == 4 ? 3 : 0};
        template[i].params = (struct sample_params){.temperature = i % 3 ? 1.0f : 0.7f,
                                                    .top_k = i % 4 == 3 ? 5 : 0,
                                                    .top_p = i % 4 == 2 ? 0.8f : 1,
                                                    .max_tokens = 10 + 4 * i,
                                                    .seed = 5 + (uint64_t)i};
        if (i % 3 == 1) {
            template[i].params.frequency_penalty = 0.4f;
            template[i].params.repetition_penalty = 1.2f;
            template[i].params.bad_words = words;
            template[i].params.n_bad_words = 2;
            template[i].processed_logprobs = i % 2;
        } else if (i % 4 == 3) {
            template[i].params.logit_bias = bias;
            template[i].params.n_logit_bias = 2;
            template[i].params.min_tokens = 12;
        }
        if (i % 7 == 6) {
            template[i].logprob_ids = named;
            template[i].n_logprob_ids = 3;
        }
        if (i % 2) {
            template[i].params.stop_ids = stop;
            template[i].params.n_stop_ids = 2;
        } else if (i % 4 == 0) {
            template[i].params.stop_strings = strings;
            template[i].params.n_stop_strings = 2;
        }
    }
}

static void forward_prompt(int i, int adapter) {
    struct err e = {0};
    const struct request *r = &template[i];
    const struct segment all = {.len = r->n_prompt, .prefix = -1, .adapter = adapter};
    int32_t rows[LONGEST];
    for (int k = 0; k < LONGEST; k++) rows[k] = k;
    const struct train_batch b = {.ids = r->prompt,
                                  .T = r->n_prompt,
                                  .seg = &all,
                                  .n_seg = 1,
                                  .rows = rows,
                                  .targets = r->prompt + 1,
                                  .N = r->n_prompt - 1,
                                  .forward_only = true};
    must(model_forward(model, &b, prompt_logp[i] + 1, prompt_entropy[i] + 1, NULL, &e), &e);
}

static void run_alone(void) {
    struct err e = {0};
    int index[ADAPTERS];
    for (int k = 0; k < ADAPTERS; k++) must(model_adapter_load(model, adapter_dir(k), &index[k], &e), &e);
    for (int i = 0; i < TEMPLATES; i++) {
        struct engine *one = open_engine(0, 1, 0);
        struct request r = template[i];
        if (r.adapter > 0) r.adapter = index[r.adapter - 1];
        must(engine_run(one, &r, 1, want[i], NULL, NULL, &e), &e);
        engine_close(one);
        if (r.n_prompt > 1) forward_prompt(i, r.adapter);
    }
    for (int k = 0; k < ADAPTERS; k++) model_adapter_drop(model, index[k]);
}

static void free_want(void) {
    for (int i = 0; i < TEMPLATES; i++)
        for (int k = 0; k < template[i].n_samples; k++) sample_free(&want[i][k]);
}

static void same_bits(const void *a, const void *b, size_t n) { assert_true(n == 0 || memcmp(a, b, n) == 0); }

/* The first n tokens of a sample are those of the one that ran alone. */
static void assert_begins_alike(const struct sample *a, const struct sample *alone, const struct request *r) {
    const size_t n = (size_t)a->n, top = n * (size_t)r->top_logprobs, named = n * (size_t)r->n_logprob_ids;
    assert_true(a->n <= alone->n);
    same_bits(a->ids, alone->ids, n * sizeof *a->ids);
    same_bits(a->logp, alone->logp, n * sizeof *a->logp);
    same_bits(a->entropy, alone->entropy, n * sizeof *a->entropy);
    same_bits(a->top_ids, alone->top_ids, top * sizeof *a->top_ids);
    same_bits(a->top_logp, alone->top_logp, top * sizeof *a->top_logp);
    same_bits(a->id_logp, alone->id_logp, named * sizeof *a->id_logp);
}

/* ---- random schedules ---- */

enum { MOST = 400 };
struct schedule {
    struct engine *en;
    struct rng rng;
    int adapter[ADAPTERS]; /* the index that is submitted with now */
    int what[MOST + 1];    /* of which template a ticket is; tickets are numbered from 1 */
    bool scored[MOST + 1]; /* true: its prompt's log-probabilities are asked for */
    bool drawn[MOST + 1];  /* true: samples are asked for */
    bool ended[MOST + 1];
    int64_t last;
    int n_ended, n_whole, n_scored, paused;
};

static void submit_one(struct schedule *s) {
    const int i = (int)rng_below(&s->rng, TEMPLATES);
    struct request r = template[i];
    struct err e = {0};
    int32_t *prompt = malloc((size_t)r.n_prompt * sizeof *prompt); /* the engine keeps copies */
    memcpy(prompt, r.prompt, (size_t)r.n_prompt * sizeof *prompt);
    r.prompt = prompt;
    struct token_run words[2] = {{0}};
    struct logit_bias bias[2] = {{0}};
    for (int k = 0; k < r.params.n_bad_words; k++) words[k] = r.params.bad_words[k];
    for (int k = 0; k < r.params.n_logit_bias; k++) bias[k] = r.params.logit_bias[k];
    r.params.bad_words = words;
    r.params.logit_bias = bias;
    if (r.adapter > 0) r.adapter = s->adapter[r.adapter - 1];
    const uint64_t dice = rng_below(&s->rng, 6);
    r.prompt_logprobs = dice < 2;
    if (dice == 0) r.params.max_tokens = r.params.min_tokens = 0;
    must(engine_submit(s->en, &r, &s->last, &e), &e);
    s->what[s->last] = i;
    s->scored[s->last] = dice < 2;
    s->drawn[s->last] = dice > 0;
    memset(prompt, 0xff, (size_t)r.n_prompt * sizeof *prompt);
    memset(words, 0xff, sizeof words);
    memset(bias, 0xff, sizeof bias);
    free(prompt);
}

/* A prompt that was cancelled has all its log-probabilities, or none. */
static void assert_scored(const struct sample *p, int i) {
    if (p->n == 0) return;
    assert_int_equal(p->n, template[i].n_prompt);
    same_bits(p->logp + 1, prompt_logp[i] + 1, (size_t)(p->n - 1) * sizeof *p->logp);
    same_bits(p->entropy + 1, prompt_entropy[i] + 1, (size_t)(p->n - 1) * sizeof *p->entropy);
}

static void take_results(struct schedule *s) {
    struct engine_result r;
    while (engine_poll(s->en, 0, &r)) {
        const int i = s->what[r.ticket];
        if (r.status != ST_OK) fail_msg("%s", r.err.msg);
        assert_false(s->ended[r.ticket]);
        assert_int_equal(r.n_samples, template[i].n_samples);
        assert_scored(&r.prompt, i);
        if (!s->scored[r.ticket]) assert_int_equal(r.prompt.n, 0);
        s->n_scored += r.prompt.n > 0;
        for (int k = 0; k < r.n_samples; k++) {
            if (!s->drawn[r.ticket]) continue;
            assert_begins_alike(&r.samples[k], &want[i][k], &template[i]);
            if (r.samples[k].stop == STOP_CANCELLED) continue;
            assert_true(!s->scored[r.ticket] || r.prompt.n > 0);
            assert_int_equal(r.samples[k].n, want[i][k].n);
            assert_int_equal(r.samples[k].stop, want[i][k].stop);
            s->n_whole++;
        }
        s->ended[r.ticket] = true;
        s->n_ended++;
        engine_result_free(&r);
    }
}

static void replace_adapter(struct schedule *s) {
    struct err e = {0};
    const int k = (int)rng_below(&s->rng, ADAPTERS), old = s->adapter[k];
    engine_pause(s->en);
    for (bool working = true; working;) must(engine_step(s->en, &working, &e), &e); /* the step under way */
    assert_true(engine_paused(s->en));
    must(engine_adapter_load(s->en, adapter_dir(k), &s->adapter[k], &e), &e);
    must(engine_adapter_drop(s->en, old, &e), &e);
    engine_resume(s->en);
    struct request r = template[1];
    int64_t ticket;
    r.adapter = old;
    assert_int_equal(engine_submit(s->en, &r, &ticket, &e), ST_INVALID);
}

static void act(struct schedule *s) {
    struct err e = {0};
    bool working;
    const uint64_t dice = rng_below(&s->rng, 100);
    if (dice < 25 && s->last < MOST) {
        submit_one(s);
    } else if (dice < 32 && s->last > 0) {
        engine_cancel(s->en, 1 + (int64_t)rng_below(&s->rng, (uint64_t)s->last));
    } else if (dice < 35) {
        engine_pause(s->en);
        s->paused++;
    } else if (dice < 40 && s->paused > 0) {
        engine_resume(s->en);
        s->paused--;
    } else if (dice < 42) {
        must(engine_forget(s->en, &e), &e);
    } else if (dice < 45) {
        replace_adapter(s);
    } else {
        for (uint64_t n = 1 + rng_below(&s->rng, 6); n > 0; n--) must(engine_step(s->en, &working, &e), &e);
    }
    take_results(s);
}

/* An emulated device is slow: there a shorter schedule must do. */
static int actions(void) { return getenv("KERNELRL_TEST_DEVICE") ? 60 : 400; }

static void run_schedule(uint64_t seed, int blocks, int max_batch, int prefill) {
    struct schedule s = {.en = open_engine(blocks, max_batch, prefill), .rng = rng_make(seed, 1)};
    struct err e = {0};
    for (int k = 0; k < ADAPTERS; k++) must(engine_adapter_load(s.en, adapter_dir(k), &s.adapter[k], &e), &e);
    for (int i = 0; i < actions(); i++) act(&s);
    while (s.paused-- > 0) engine_resume(s.en);
    for (bool working = true; working;) {
        must(engine_step(s.en, &working, &e), &e);
        take_results(&s);
    }
    assert_int_equal(s.n_ended, s.last);
    assert_true(s.n_whole > actions() / 10 && s.n_scored > actions() / 40);
    assert_true(!engine_wait(s.en, 0));
    for (int k = 0; k < ADAPTERS; k++) must(engine_adapter_drop(s.en, s.adapter[k], &e), &e);
    bool working;
    must(engine_step(s.en, &working, &e), &e);
    for (int k = 0; k < ADAPTERS; k++) assert_false(model_adapter_there(model, s.adapter[k]));
    engine_close(s.en);
}

static void schedules(const char *dtype) {
    open_model(dtype);
    make_templates();
    run_alone();
    int most = 0;
    for (int i = 0; i < TEMPLATES; i++) most = want[i][0].n > most ? want[i][0].n : most;
    assert_true(most > 20);
    for (uint64_t seed = 1; seed <= (uint64_t)(actions() < 100 ? 1 : 3); seed++) {
        run_schedule(seed, 0, 0, 0);
        run_schedule(seed + 10, 6, 0, 0); /* sequences lose their blocks */
        run_schedule(seed + 20, 9, 3, 7);
    }
    free_want();
    model_free(model);
}

static void any_schedule_f32(void **state) {
    (void)state;
    schedules("f32");
}

static void any_schedule_bf16(void **state) {
    (void)state;
    if (!be->bf16) {
        printf("skipped: the device has no bf16\n");
        skip();
    }
    schedules("bf16");
}

/* ---- single requests ---- */

static struct request plain(int n_prompt, int max_tokens) {
    return (struct request){.prompt = prompt_ids[4],
                            .n_prompt = n_prompt,
                            .n_samples = 1,
                            .adapter = ADAPTER_BASE,
                            .params = {.temperature = 1, .top_p = 1, .max_tokens = max_tokens, .seed = 8}};
}

static struct engine_result finish(struct engine *en, const struct request *r) {
    struct err e = {0};
    int64_t ticket;
    struct engine_result got;
    must(engine_submit(en, r, &ticket, &e), &e);
    assert_false(engine_poll(en, ticket, &got));
    for (bool working = true; working;) must(engine_step(en, &working, &e), &e);
    assert_true(engine_poll(en, ticket, &got));
    return got;
}

struct heard {
    int n, last;
    int32_t ids[64], top[64];
    float logp[64], named[64];
};

static void listen(void *ctx, const struct engine_token *t) {
    struct heard *h = ctx;
    assert_int_equal(t->at, h->n);
    assert_int_equal(h->last, 0);
    h->ids[h->n] = t->id;
    h->logp[h->n] = t->logp;
    h->top[h->n] = t->top_ids[0];
    h->named[h->n++] = t->id_logp[1];
    h->last = t->last;
}

/* A sink hears every token once, in order; what it hears is what the sample has. */
static void sinks(void **state) {
    (void)state;
    open_model("f32");
    make_templates();
    struct engine *en = open_engine(0, 0, 0);
    static const int32_t named[] = {1, 2};
    struct heard h = {0};
    struct request r = plain(20, 30);
    r.sink = listen;
    r.sink_ctx = &h;
    r.top_logprobs = 1;
    r.logprob_ids = named;
    r.n_logprob_ids = 2;
    struct engine_result got = finish(en, &r);
    const struct sample *s = &got.samples[0];
    assert_int_equal(h.n, 30);
    assert_int_equal(s->n, 30);
    assert_true(h.last);
    same_bits(h.ids, s->ids, 30 * sizeof *h.ids);
    same_bits(h.logp, s->logp, 30 * sizeof *h.logp);
    same_bits(h.top, s->top_ids, 30 * sizeof *h.top);
    for (int i = 0; i < 30; i++) same_bits(&h.named[i], &s->id_logp[2 * i + 1], sizeof(float));
    engine_result_free(&got);
    engine_close(en);
    model_free(model);
}

/* Further log-probabilities are those of the logits; a prompt's are the bits that sampling gave its tokens. */
static void logprobs(void **state) {
    (void)state;
    open_model("f32");
    make_templates();
    struct engine *en = open_engine(0, 0, 0);
    enum { PROMPT = 70, ANSWER = 40, T = PROMPT + ANSWER, TOP = 5 };
    static const int32_t named[] = {11, 48};
    struct request r = plain(PROMPT, ANSWER);
    r.top_logprobs = TOP;
    r.logprob_ids = named;
    r.n_logprob_ids = 2;
    struct engine_result first = finish(en, &r);
    const struct sample *s = &first.samples[0];
    assert_int_equal(s->n, ANSWER);
    int32_t all[T];
    memcpy(all, prompt_ids[4], PROMPT * sizeof *all);
    memcpy(all + PROMPT, s->ids, ANSWER * sizeof *all);

    struct request again = r;
    again.prompt = all;
    again.n_prompt = T;
    again.prompt_logprobs = again.prompt_ranks = true;
    again.params.max_tokens = 0;
    struct engine_result second = finish(en, &again);
    const struct sample *p = &second.prompt;
    assert_int_equal(p->n, T);
    assert_true(first.begun_ns > 0 && second.begun_ns > 0 && !s->rank);
    assert_int_equal(second.samples[0].n, 0);
    assert_true(isnan(p->logp[0]) && isnan(p->top_logp[0]) && p->top_ids[0] == -1);
    same_bits(p->ids, all, sizeof all);
    same_bits(p->logp + PROMPT, s->logp, ANSWER * sizeof *s->logp);
    same_bits(p->entropy + PROMPT, s->entropy, ANSWER * sizeof *s->entropy);
    same_bits(p->top_ids + PROMPT * TOP, s->top_ids, ANSWER * TOP * sizeof *s->top_ids);
    same_bits(p->top_logp + PROMPT * TOP, s->top_logp, ANSWER * TOP * sizeof *s->top_logp);
    same_bits(p->id_logp + PROMPT * 2, s->id_logp, ANSWER * 2 * sizeof *s->id_logp);

    float *logits = malloc(T * V * sizeof *logits);
    const struct segment segment = {0, T, -1, ADAPTER_BASE};
    const struct train_batch batch = {all, T, &segment, 1, NULL, NULL, 0, true};
    struct err e = {0};
    must(model_logits(model, &batch, logits, &e), &e);
    for (int i = 1; i < T; i++) {
        const float *row = logits + (i - 1) * V;
        const float *top = p->top_logp + i * TOP;
        int better = 0, rank = 1;
        for (int v = 0; v < V; v++) better += row[v] > row[p->top_ids[i * TOP + TOP - 1]];
        assert_true(better < TOP);
        for (int v = 0; v < V; v++) rank += row[v] > row[all[i]] || (row[v] == row[all[i]] && v < all[i]);
        assert_int_equal(p->rank[i], rank);
        assert_true(rank > TOP || p->top_ids[i * TOP + rank - 1] == all[i]);
        for (int k = 0; k < TOP; k++) {
            const float logp = logprob_row(row, V, p->top_ids[i * TOP + k], NULL);
            same_bits(&logp, &top[k], sizeof logp);
            assert_true(k == 0 || top[k - 1] >= top[k]);
        }
        const float logp = logprob_row(row, V, named[1], NULL);
        same_bits(&logp, &p->id_logp[2 * i + 1], sizeof logp);
    }
    free(logits);
    engine_result_free(&first);
    engine_result_free(&second);
    engine_close(en);
    model_free(model);
}

/* The farther tokens lie behind the beginning of their prompt, the fewer a step takes on, and never more than are set.
 */
static void far_tokens_cost_more(void **state) {
    (void)state;
    struct err e = {0};
    struct engine_result got;
    bool working = true;
    int64_t ticket, fed = 0, part[LONGEST];
    int n = 0;
    open_model("f32");
    make_templates();
    struct engine *en;
    must(engine_open(model, &(struct engine_options){.max_batch = 2, .prefill_tokens = 12}, &en, &e), &e);
    const struct request r = plain(LONGEST, 1);
    must(engine_submit(en, &r, &ticket, &e), &e);
    for (; working && fed < LONGEST; fed += part[n++]) {
        const int64_t before = engine_stats(en).prefilled_tokens;
        must(engine_step(en, &working, &e), &e);
        part[n] = engine_stats(en).prefilled_tokens - before;
        assert_true(part[n] >= 1 && part[n] <= 12);
        /* The prompt's end may leave less than a step can take. */
        assert_true(n == 0 || part[n] <= part[n - 1]);
    }
    assert_int_equal(fed, LONGEST);
    assert_true(part[0] > 2 * part[n - 2]); /* a key costs 1 / 144 of a token in this model */
    while (working) must(engine_step(en, &working, &e), &e);
    assert_true(engine_poll(en, ticket, &got));
    engine_result_free(&got);
    engine_close(en);
    model_free(model);
}

/* While somebody is being decoded, prompts that are scored are fed in parts: each step gives him his token. */
static void scoring_takes_turns(void **state) {
    (void)state;
    struct err e = {0};
    struct engine_result got;
    bool working = true;
    int64_t decoding, long_one, short_one;
    open_model("f32");
    make_templates();
    struct engine *en;
    must(engine_open(model, &(struct engine_options){.max_batch = 4, .prefill_tokens = 64}, &en, &e), &e);
    struct request r = plain(10, 60), scored = plain(LONGEST, 0);
    must(engine_submit(en, &r, &decoding, &e), &e);
    must(engine_step(en, &working, &e), &e);
    scored.prompt_logprobs = true;
    must(engine_submit(en, &scored, &long_one, &e), &e);
    scored.n_prompt = 5;
    must(engine_submit(en, &scored, &short_one, &e), &e);
    int steps = 0, most = 0;
    for (; !engine_poll(en, long_one, &got); steps++) {
        const struct engine_stats before = engine_stats(en);
        assert_false(engine_poll(en, short_one, &got)); /* it is younger */
        must(engine_step(en, &working, &e), &e);
        const struct engine_stats after = engine_stats(en);
        assert_int_equal(after.decoded_tokens, before.decoded_tokens + 1);
        assert_int_equal(after.steps, before.steps + 1);
        most = (int)i64_max(most, after.prefilled_tokens - before.prefilled_tokens);
    }
    assert_int_equal(got.prompt.n, LONGEST);
    assert_true(steps >= LONGEST / 16 && steps < LONGEST / 4 && most <= 20);
    engine_result_free(&got);
    while (working) must(engine_step(en, &working, &e), &e);
    assert_true(engine_poll(en, short_one, &got) && got.prompt.n == 5);
    engine_result_free(&got);
    assert_true(engine_poll(en, decoding, &got) && got.samples[0].n == 60);
    engine_result_free(&got);
    /* One that is cancelled half way has no log-probabilities, and holds nothing back. */
    scored.n_prompt = LONGEST;
    must(engine_submit(en, &scored, &long_one, &e), &e);
    must(engine_step(en, &working, &e), &e);
    must(engine_step(en, &working, &e), &e);
    engine_cancel(en, long_one);
    must(engine_step(en, &working, &e), &e);
    assert_true(working && engine_poll(en, long_one, &got) &&
                got.prompt.n == 0); /* who waits for results hears of it */
    engine_result_free(&got);
    must(engine_step(en, &working, &e), &e);
    assert_true(!working);
    /* So it is in a pause. */
    must(engine_submit(en, &r, &decoding, &e), &e);
    must(engine_step(en, &working, &e), &e);
    engine_pause(en);
    while (working) must(engine_step(en, &working, &e), &e);
    engine_cancel(en, decoding);
    must(engine_step(en, &working, &e), &e);
    assert_true(working && engine_poll(en, decoding, &got) && got.samples[0].stop == STOP_CANCELLED);
    engine_result_free(&got);
    engine_resume(en);
    engine_close(en);
    model_free(model);
}

/* With one place, a request of the second queue waits for the one that runs and at most one more, though six of the
 * first queue came before; each queue keeps its own order. */
static void queues_take_turns(void **state) {
    (void)state;
    enum { ALL = 9 };
    static const int queue[ALL] = {0, 0, 0, 0, 0, 0, 1, 1, 1}, order[ALL] = {0, 6, 1, 7, 2, 8, 3, 4, 5};
    struct err e = {0};
    int64_t ticket[ALL];
    int ended = 0;
    bool working = true;
    open_model("f32");
    make_templates();
    struct engine *en = open_engine(0, 1, 64);
    for (int i = 0; i < ALL; i++) {
        struct request r = plain(10, 3);
        r.queue = queue[i];
        must(engine_submit(en, &r, &ticket[i], &e), &e);
    }
    while (working) {
        struct engine_result got;
        must(engine_step(en, &working, &e), &e);
        for (int i = 0; i < ALL; i++) {
            if (!engine_poll(en, ticket[i], &got)) continue;
            assert_int_equal(i, order[ended++]);
            engine_result_free(&got);
        }
    }
    assert_int_equal(ended, ALL);
    struct request r = plain(10, 3);
    r.queue = ENGINE_QUEUES;
    assert_int_equal(engine_submit(en, &r, &ticket[0], &e), ST_INVALID);
    engine_close(en);
    model_free(model);
}

/* A request whose adapter gives no finite logits fails; the others go on to the bits that they have alone. */
static void one_fails_alone(void **state) {
    (void)state;
    struct err e = {0};
    open_model("f32");
    make_templates();
    run_alone();
    must(model_lora_init(model, 4, 8, 1, &e), &e);
    must(model_train_prepare(model, TRAIN_LORA, &e), &e);
    fill_params(0, 1, INFINITY, 1);
    struct engine *en = open_engine(0, 0, 0);
    int64_t good[2], bad;
    must(engine_submit(en, &template[0], &good[0], &e), &e);
    struct request r = template[0];
    r.adapter = ADAPTER_OWN;
    must(engine_submit(en, &r, &bad, &e), &e);
    must(engine_submit(en, &template[0], &good[1], &e), &e);
    for (bool working = true; working;) must(engine_step(en, &working, &e), &e);
    struct engine_result got;
    assert_true(engine_poll(en, bad, &got));
    assert_int_equal(got.status, ST_FAILED);
    assert_non_null(strstr(got.err.msg, "request 2"));
    assert_non_null(strstr(got.err.msg, "not finite"));
    assert_int_equal(got.n_samples, 0);
    engine_result_free(&got);
    for (int i = 0; i < 2; i++) {
        assert_true(engine_poll(en, good[i], &got));
        assert_int_equal(got.status, ST_OK);
        assert_int_equal(got.samples[0].n, want[0][0].n);
        assert_begins_alike(&got.samples[0], &want[0][0], &template[0]);
        engine_result_free(&got);
    }
    r.adapter = 77;
    must(engine_submit(en, &r, &bad, &e), &e);
    bool working;
    must(engine_step(en, &working, &e), &e);
    assert_true(working && engine_poll(en, bad, &got));
    assert_non_null(strstr(got.err.msg, "there is no adapter 77"));
    engine_result_free(&got);
    engine_close(en);
    free_want();
    model_free(model);
}

/* The queue says which requests end, and then they are taken out. One that is cancelled in between keeps its sequences
 * until the next sweep, and ends then with what it has. */
static void cancelled_during_a_sweep(void **state) {
    (void)state;
    struct err e = {0};
    open_model("f32");
    make_templates();
    struct engine *en = open_engine(0, 1, 0); /* one sample at a time: the second request waits */
    struct request r = template[8];
    r.adapter = ADAPTER_BASE;
    r.n_samples = 1;
    int64_t ticket[2];
    bool working;
    for (int i = 0; i < 2; i++) must(engine_submit(en, &r, &ticket[i], &e), &e);
    for (int i = 0; i < 4; i++) must(engine_step(en, &working, &e), &e);
    assert_int_equal(engine_load(en).running, 1);
    queue_mark_ending(en);
    for (int i = 0; i < 2; i++) engine_cancel(en, ticket[i]);
    assert_null(queue_ending(en, &en->running));
    assert_null(queue_ending(en, &en->waiting));
    assert_true(engine_wait(en, 0));
    must(engine_step(en, &working, &e), &e);
    for (int i = 0; i < 2; i++) {
        struct engine_result got;
        assert_true(engine_poll(en, ticket[i], &got));
        assert_int_equal(got.status, ST_OK);
        assert_int_equal(got.samples[0].stop, STOP_CANCELLED);
        assert_true(i == 0 ? got.samples[0].n > 0 : got.samples[0].n == 0);
        engine_result_free(&got);
    }
    assert_int_equal(engine_load(en).samples, 0);
    assert_int_equal(engine_load(en).blocks_free, engine_load(en).blocks);
    struct engine_result got = finish(en, &r); /* what was taken out disturbs nobody */
    struct sample alone;
    must(engine_run(en, &r, 1, &alone, NULL, NULL, &e), &e);
    assert_int_equal(got.samples[0].n, alone.n);
    assert_begins_alike(&got.samples[0], &alone, &r);
    sample_free(&alone);
    engine_result_free(&got);
    engine_close(en);
    model_free(model);
}

static void bad_submissions(void **state) {
    (void)state;
    open_model("f32");
    make_templates();
    struct engine *en = open_engine(3, 0, 0);
    struct err e = {0};
    struct engine_result got;
    int64_t ticket = 9;
    bool working;
    struct request r = plain(10, 0);
    assert_int_equal(engine_submit(en, &r, &ticket, &e), ST_INVALID);
    assert_string_equal(e.msg, "max_tokens is 0, expected >= 1");
    assert_int_equal(ticket, 0);
    r = plain(10, 5);
    r.top_logprobs = V + 1;
    assert_int_equal(engine_submit(en, &r, &ticket, &e), ST_INVALID);
    assert_string_equal(e.msg, "top_logprobs is 51, expected 0..50");
    r = plain(10, 5);
    r.prompt_logprobs = true;
    struct sample s;
    assert_int_equal(engine_run(en, &r, 1, &s, NULL, NULL, &e), ST_INVALID);
    assert_int_equal(engine_adapter_drop(en, 4, &e), ST_INVALID);
    /* One that does not fit into the budget fails alone. */
    r = plain(LONGEST, 200);
    must(engine_submit(en, &r, &ticket, &e), &e);
    assert_int_equal(engine_run(en, &r, 1, &s, NULL, NULL, &e), ST_INVALID);
    must(engine_step(en, &working, &e), &e);
    assert_true(engine_poll(en, 0, &got));
    assert_int_equal(got.status, ST_MEMORY);
    engine_result_free(&got);
    r = plain(20, 5);
    got = finish(en, &r);
    assert_int_equal(got.samples[0].n, 5);
    engine_result_free(&got);
    assert_false(engine_wait(en, 0.01));
    engine_stop_waiting(en);
    assert_false(engine_wait(en, 60));
    engine_close(en);
    model_free(model);
}

/* ---- two threads ---- */

struct other {
    struct engine *en;
    int64_t ticket[60];
};

static void *submit_all(void *ctx) {
    struct other *o = ctx;
    struct err e = {0};
    struct rng rng = rng_make(4, 4);
    for (int i = 0; i < 60; i++) {
        struct request r = template[3 * (i % 4)];
        if (engine_submit(o->en, &r, &o->ticket[i], &e) != ST_OK) return NULL;
        if (i % 10 == 9) engine_cancel(o->en, o->ticket[i - (int)rng_below(&rng, 9)]);
        if (i % 20 == 11) engine_pause(o->en);
        (void)engine_paused(o->en);
        (void)engine_load(o->en);
        if (i % 3 == 2) usleep(200);
        if (i % 20 == 13) engine_resume(o->en);
    }
    return o;
}

static void two_threads(void **state) {
    (void)state;
    open_model("f32");
    make_templates();
    run_alone();
    struct other o = {.en = open_engine(0, 0, 0)};
    struct err e = {0};
    pthread_t thread;
    void *done = NULL;
    assert_int_equal(pthread_create(&thread, NULL, submit_all, &o), 0);
    int ended = 0, whole = 0;
    for (bool working; ended < 60;) {
        if (engine_wait(o.en, 0.05)) must(engine_step(o.en, &working, &e), &e);
        for (struct engine_result r; engine_poll(o.en, 0, &r); ended++) {
            const int i = 3 * (int)((r.ticket - 1) % 4);
            for (int k = 0; k < r.n_samples; k++) {
                assert_begins_alike(&r.samples[k], &want[i][k], &template[i]);
                whole += r.samples[k].n == want[i][k].n;
            }
            engine_result_free(&r);
        }
    }
    pthread_join(thread, &done);
    assert_ptr_equal(done, &o);
    assert_true(whole > 50);
    engine_close(o.en);
    free_want();
    model_free(model);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_schedule_f32),
                                       cmocka_unit_test(any_schedule_bf16),
                                       cmocka_unit_test(sinks),
                                       cmocka_unit_test(logprobs),
                                       cmocka_unit_test(far_tokens_cost_more),
                                       cmocka_unit_test(scoring_takes_turns),
                                       cmocka_unit_test(queues_take_turns),
                                       cmocka_unit_test(one_fails_alone),
                                       cmocka_unit_test(cancelled_during_a_sweep),
                                       cmocka_unit_test(bad_submissions),
                                       cmocka_unit_test(two_threads)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
