/* A policy: opened in full and in part, with weights that are read, drawn or left out; refused before its weights are
 * read; closed after every failure. */
#include "policy/policy.h"

#include "base/pool.h"
#include "rl/test_util.h"

/* A model's folder with random weights, as training leaves one. */
static void write_model(const char *dir, uint64_t seed) {
    struct model *m;
    CHECK(model_init(tiny_config, seed, NULL, test_backend(), &m, &err));
    CHECK(model_save(m, dir, "f32", &err));
    model_free(m);
    write_byte_tokenizer(dir);
}

static struct policy_options options_of(const char *dir) {
    return (struct policy_options){
        .model = {"--model", dir, NULL, HUB_MODEL}, .device = "cpu", .weights = {.dtype = "f32", .frozen = true}};
}

static struct sample answer(struct policy *p) {
    const int32_t prompt[] = {65, 66, 67};
    struct sample s;
    const struct request r = {.prompt = prompt,
                              .n_prompt = 3,
                              .n_samples = 1,
                              .params = {.temperature = 1, .top_p = 1, .max_tokens = 9, .seed = 5}};
    CHECK(engine_run(p->engine, &r, 1, &s, NULL, NULL, &err));
    for (int i = 0; i < s.n; i++) assert_true(s.ids[i] < tokenizer_vocab(p->tok));
    return s;
}
static bool same(const struct sample *a, const struct sample *b) {
    return a->n == b->n && memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) == 0 &&
           memcmp(a->logp, b->logp, (size_t)a->n * sizeof *a->logp) == 0;
}

static void opens_what_is_named(void **state) {
    (void)state;
    write_model(in_tmp("one"), 1);
    write_model(in_tmp("two"), 2);
    struct policy a, b, c, d;
    struct pool *pool = pool_create(2);
    struct policy_options o = options_of(in_tmp("one"));
    CHECK(policy_open(&o, NULL, &a, &err));
    assert_true(a.pool == a.own_pool && !a.start && a.style == CHAT_QWEN3_NOTHINK);
    o.pool = pool; /* two policies on one pool; the second begins with other weights */
    o.thinking = true;
    CHECK(policy_open(&o, NULL, &b, &err));
    assert_true(b.pool == pool && !b.own_pool && b.style == CHAT_QWEN3);
    o.start = (struct policy_source){"--checkpoint", in_tmp("two"), NULL, HUB_CHECKPOINT};
    o.style = "qwen3_instruct";
    CHECK(policy_open(&o, NULL, &c, &err));
    assert_true(!c.start_adapter && c.style == CHAT_QWEN3_INSTRUCT);
    struct sample s[4] = {answer(&a), answer(&b), answer(&c)};
    assert_true(same(&s[0], &s[1]) && !same(&s[0], &s[2]));

    /* An adapter, made here and loaded there. */
    CHECK(model_lora_init(c.model, 3, 6, 1, &err));
    int n;
    CHECK(model_train_prepare(c.model, TRAIN_LORA, &err));
    const struct param *p = model_params(c.model, &n);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += 0.3f;
    model_params_changed(c.model);
    CHECK(model_lora_save(c.model, in_tmp("adapter"), &err));
    o.model.name = in_tmp("two");
    o.start.name = in_tmp("adapter");
    CHECK(policy_open(&o, NULL, &d, &err));
    assert_true(d.start_adapter);
    struct sample with = answer(&c);
    s[3] = answer(&d);
    assert_true(same(&with, &s[3]) && !same(&with, &s[2]));
    struct model *reference; /* the base under the adapter */
    CHECK(policy_load_reference(&o, &d, &reference, &err));
    model_free(reference);
    for (int i = 0; i < 4; i++) sample_free(&s[i]);
    sample_free(&with);
    policy_close(&a);
    policy_close(&b);
    policy_close(&c);
    policy_close(&d);
    policy_close(&d); /* zero is fine */
    pool_destroy(pool);
}

/* The model that comes with the program, by its name in the installation. */
static void opens_the_embedded_model(void **state) {
    (void)state;
    struct policy p;
    const struct policy_options o = options_of("models/tiny");
    CHECK(policy_open(&o, NULL, &p, &err));
    struct sample s = answer(&p);
    assert_true(s.n > 0);
    sample_free(&s);
    policy_close(&p);
}

static void draws_weights(void **state) {
    (void)state;
    CHECK(fs_mkdirs(in_tmp("words"), &err));
    write_byte_tokenizer(in_tmp("words"));
    CHECK(fs_write_atomic(in_tmp("shape.json"), tiny_config, strlen(tiny_config), &err));
    struct policy_options o = options_of(in_tmp("words")); /* no model is there */
    o.model.kind = HUB_TOKENIZER;
    o.random.config = in_tmp("shape.json");
    static const uint64_t seeds[] = {7, 7, 8};
    struct sample s[3];
    for (int i = 0; i < 3; i++) {
        struct policy p;
        o.random.seed = seeds[i];
        CHECK(policy_open(&o, NULL, &p, &err));
        assert_string_equal(p.folder, o.model.name);
        s[i] = answer(&p);
        policy_close(&p);
    }
    assert_true(same(&s[0], &s[1]) && !same(&s[0], &s[2]));
    for (int i = 0; i < 3; i++) sample_free(&s[i]);
    struct policy p;
    o.random.config = in_tmp("no_shape.json");
    CHECK_FAILS(policy_open(&o, NULL, &p, &err), ST_IO, "no_shape.json");
    policy_close(&p);
}

/* Prompts need no weights: that there are none is not even noticed, and neither is a device. */
static void has_a_shape_without_weights(void **state) {
    (void)state;
    write_model(in_tmp("shape"), 1);
    CHECK(fs_remove(in_tmp("shape/model.safetensors"), &err));
    struct policy p;
    struct policy_options o = options_of(in_tmp("shape"));
    o.model.kind = HUB_PROMPT;
    o.device = NULL;
    CHECK(policy_begin(&o, NULL, &p, &err));
    CHECK(policy_load(&o, &p, &err));
    assert_true(!p.pool && !p.engine && p.tok && p.style == CHAT_QWEN3_NOTHINK);
    assert_int_equal(model_cfg(p.model)->L, 2);
    policy_close(&p);
    o.style = "no_such_style";
    CHECK_FAILS(policy_begin(&o, NULL, &p, &err), ST_CONFIG, "no_such_style");
    policy_close(&p);
}

/* What fails after the weights were read. */
static void closes_after_late_failures(void **state) {
    (void)state;
    write_model(in_tmp("late"), 1);
    CHECK(fs_mkdirs(in_tmp("late_adapter"), &err));
    CHECK(fs_write_atomic(in_tmp("late_adapter/adapter_config.json"), "{}", 2, &err));
    struct policy_options rank = options_of(in_tmp("late")), adapter = rank, engine = rank;
    rank.lora.rank = 5000;
    adapter.start = (struct policy_source){"--adapter", in_tmp("late_adapter"), NULL, HUB_CHECKPOINT};
    engine.engine.memory_bytes = -1;
    const struct {
        const struct policy_options *o;
        const char *message;
    } rows[] = {{&rank, "LoRA rank"}, {&adapter, "late_adapter"}, {&engine, "memory_bytes"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct policy p;
        err = (struct err){0};
        const enum status st = policy_open(rows[i].o, NULL, &p, &err);
        if (st == ST_OK || !p.model || !strstr(err.msg, rows[i].message))
            fail_msg("row %zu: status %d, %s", i, (int)st, err.msg);
        policy_close(&p);
    }
}

/* The weights are no weights, and nobody reads them: what is wrong beside them is said first. */
static void wrong_names_come_before_weights(void **state) {
    (void)state;
    write_model(in_tmp("bad"), 1);
    CHECK(fs_write_atomic(in_tmp("bad/model.safetensors"), "nothing", 7, &err));
    struct policy p;
    struct policy_options o = options_of(in_tmp("bad"));
    CHECK_FAILS(policy_open(&o, NULL, &p, &err), ST_PARSE, "model.safetensors");
    policy_close(&p);
    const struct {
        const char *message;
        enum status status;
        int what;
    } rows[] = {
        {"--model: no directory \"nowhere/at/all\"", ST_CONFIG, 0},
        {"--adapter: no directory \"nowhere/at/all\"", ST_CONFIG, 1},
        {"chat style \"no_such_style\"", ST_CONFIG, 2},
        {"gpu9", ST_CONFIG, 3},
        {"the tokenizer has 261 ids, the model 40 rows", ST_INVALID, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        o = options_of(in_tmp("bad"));
        switch (rows[i].what) {
        case 0: o.model.name = "nowhere/at/all"; break;
        case 1: o.start = (struct policy_source){"--adapter", "nowhere/at/all", NULL, HUB_ADAPTER}; break;
        case 2: o.style = "no_such_style"; break;
        case 3: o.device = "gpu9"; break;
        default: {
            char small[2048], *at;
            snprintf(small, sizeof small, "%s", tiny_config);
            at = strstr(small, "\"vocab_size\":");
            assert_non_null(at);
            at += strlen("\"vocab_size\":");
            memset(at, ' ', strcspn(at, ","));
            memcpy(at, "40", 2);
            at = strstr(small, "\"eos_token_id\":");
            assert_non_null(at);
            at += strlen("\"eos_token_id\":");
            memset(at, ' ', strcspn(at, ",}"));
            memcpy(at, "7", 1);
            CHECK(fs_write_atomic(in_tmp("bad/config.json"), small, strlen(small), &err));
        }
        }
        err = (struct err){0};
        const enum status st = policy_open(&o, NULL, &p, &err);
        policy_close(&p);
        if (st != rows[i].status || !strstr(err.msg, rows[i].message))
            fail_msg("row %zu: status %d, %s", i, (int)st, err.msg);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_what_is_named),
        cmocka_unit_test(opens_the_embedded_model),
        cmocka_unit_test(draws_weights),
        cmocka_unit_test(has_a_shape_without_weights),
        cmocka_unit_test(closes_after_late_failures),
        cmocka_unit_test(wrong_names_come_before_weights),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
