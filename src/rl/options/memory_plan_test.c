/* The plan of a run's memory against what the same model really takes; what is chosen fits; what cannot fit is refused
 * with the numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "rl/options/memory_plan.h"
#include "train/step.h"

static const char small[] = "{\"model_type\":\"qwen2\",\"vocab_size\":90,\"hidden_size\":48,\"intermediate_size\":72,"
                            "\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                            "\"max_position_embeddings\":400,\"tie_word_embeddings\":false}";
static const char seven[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":3584,\"num_hidden_layers\":28,"
    "\"intermediate_size\":18944,\"num_attention_heads\":28,\"num_key_value_heads\":4,\"vocab_size\":152064,"
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":32768}";
#define GIB ((int64_t)1 << 30)

static struct err err;
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

/* Options of `train` after these keys. */
static void options(struct train_options *o, struct config *c, const char *const *keys, int n) {
    char *argv[16];
    for (int i = 0; i < n; i++) argv[i] = strdup(keys[i]);
    config_init(c, &train_schema, o);
    CHECK(config_args(c, n, argv, &err));
    CHECK(train_options_finish(c, o, &err));
    for (int i = 0; i < n; i++) free(argv[i]);
}

/* ---- against the real thing: the CPU's backend, whose allocations are counted --------------------------------------
 */

static struct backend cpu; /* as it was opened */
static int64_t taken;

static void *counted_alloc(struct backend *be, size_t bytes) {
    taken += ((int64_t)bytes + 255) & ~(int64_t)255;
    return cpu.mem_alloc(be, bytes);
}
static int64_t since(int64_t *before) {
    const int64_t n = taken - *before;
    *before = taken;
    return n;
}

static void compare(bool lora, int levels) {
    enum { T = 256 };
    const char *const keys[] = {lora ? "lora_rank=6" : "lora_rank=0", "train_tokens=256", "max_tokens=100",
                                "prompt_max_tokens=60", "dtype=f32"};
    struct train_options o;
    struct config c;
    struct pool *pool = pool_create(1);
    struct backend *be;
    CHECK(cpu_backend_open(pool, &be, &err));
    options(&o, &c, keys, 5);
    cpu = *be;
    be->mem_alloc = counted_alloc;
    be->logit_chunk_bytes = 40 * 90 * 4; /* a few chunks */
    struct paper device = paper_of(be);
    struct train_plan p;
    device.bytes = GIB;
    CHECK(train_plan(&o, small, &device, &p, &err));
    assert_int_equal(p.recomputed, 0);
    const int64_t budget = levels ? (p.activations_least + p.activations_most) / 2 : p.activations_most;
    if (levels) {
        o.activation_memory = budget;
        CHECK(train_plan(&o, small, &device, &p, &err));
        assert_in_range(p.recomputed, 1, 3);
        assert_true(p.activations <= budget && p.activations >= p.activations_least);
    }
    assert_int_equal(p.library + p.reference + p.verifier, 0);
    assert_int_equal(p.context, 160);
    assert_int_equal(p.rows, T);

    struct model *m;
    struct comm *comm;
    struct trainer *trainer;
    int64_t before = taken;
    const struct model_options mo = {.dtype = "f32", .frozen = lora, .activation_memory = budget};
    CHECK(model_init(small, 1, &mo, be, &m, &err));
    assert_int_equal(since(&before), p.weights);
    if (lora) CHECK(model_lora_init(m, 6, 1, 1, &err));
    CHECK(model_train_prepare(m, lora ? TRAIN_LORA : TRAIN_FULL, &err));
    assert_int_equal(since(&before), p.trained);
    CHECK(comm_open("self", NULL, &comm, &err));
    CHECK(trainer_open(comm, m, ADAPTER_OWN, 1, &trainer, &err));
    assert_int_equal(since(&before), p.moments);
    int32_t ids[T] = {0}, rows[T] = {0};
    float logp[T], g[T] = {0};
    const struct segment seg = {0, T, -1, 0};
    const struct train_batch batch = {ids, T, &seg, 1, rows, ids, T, false};
    CHECK(model_forward(m, &batch, logp, NULL, NULL, &err));
    CHECK(model_backward(m, &batch, g, &err));
    const struct model_memory mem = model_memory(m);
    assert_int_equal(mem.activation_bytes, p.activations);
    assert_int_equal(mem.recomputed_layers, p.recomputed);
    trainer_close(trainer);
    comm_close(comm);
    model_free(m);
    be->close(be);
    pool_destroy(pool);
    config_free(&c);
}

static void test_as_taken(void **state) {
    (void)state;
    for (int levels = 0; levels < 2; levels++) {
        compare(true, levels);
        compare(false, levels);
    }
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

static void test_choices_fit(void **state) {
    (void)state;
    static const char *const keys[] = {"device=cuda", "lora_rank=32", "max_tokens=1024", "prompt_max_tokens=512",
                                       "group_size=16"};
    struct train_options o;
    struct config c;
    options(&o, &c, keys, 5);
    int recomputed = 1000, fitting = 0;
    int64_t kv = 0, kv_budget = 0;
    for (int64_t memory = 12; memory <= 140; memory += 8) {
        const struct paper device = paper_cuda(memory * GIB);
        struct train_plan p;
        const enum status st = train_plan(&o, seven, &device, &p, &err);
        if (st != ST_OK) {
            assert_int_equal(st, ST_MEMORY);
            assert_int_equal(fitting, 0);
            continue;
        }
        fitting++;
        assert_true(plan_total(&p) <= p.available);
        assert_true(p.activations <= p.activation_budget && p.kv >= p.kv_least && p.kv <= p.kv_wanted);
        assert_true(p.kv_budget >= p.kv);
        assert_true(plan_total(&p) - p.kv - p.activations + p.kv_budget + p.activation_budget <= p.available);
        assert_true(p.recomputed <= recomputed && p.kv >= kv);
        recomputed = p.recomputed;
        kv = p.kv;
        kv_budget = p.kv_budget;
    }
    assert_true(fitting > 10);
    assert_true(kv_budget > kv);     /* and it may have more than the plan needs */
    assert_int_equal(recomputed, 0); /* 140 GiB are enough for everything */
    /* LoRA of 7 billion parameters on a card of 48 GB, of which a driver takes some. */
    const struct paper card = paper_cuda(44 * GIB);
    struct train_plan p;
    CHECK(train_plan(&o, seven, &card, &p, &err));
    assert_in_range(p.recomputed, 1, 27);
    assert_true(p.weights > 14 * GIB && p.weights < 15 * GIB);
    /* Half the answers at a time need no more; the verifier on the same card needs some. */
    o.verify.backend = 3;
    struct train_plan shared;
    CHECK(train_plan(&o, seven, &card, &shared, &err));
    assert_int_equal(shared.verifier, PLAN_VERIFIER);
    assert_true(shared.recomputed >= p.recomputed && plan_total(&shared) <= shared.available);
    o.verify.device = "cuda:1";
    CHECK(train_plan(&o, seven, &card, &shared, &err));
    assert_int_equal(shared.verifier, 0);
    config_free(&c);
}

/* What a KL penalty compares with: a second model where all parameters are trained; with LoRA nothing, or the adapter
 * that the run goes on from. */
static void test_reference(void **state) {
    (void)state;
    static const char *const keys[][4] = {
        {"device=cuda", "lora_rank=0", "kl_penalty_coef=0.1", "load_checkpoint_path=x"},
        {"device=cuda", "lora_rank=32", "kl_penalty_coef=0.1", "seed=1"},
        {"device=cuda", "lora_rank=32", "kl_penalty_coef=0.1", "load_checkpoint_path=x"},
        {"device=cuda", "lora_rank=32", "kl_penalty_coef=0", "load_checkpoint_path=x"}};
    struct train_plan p[4];
    for (int i = 0; i < 4; i++) {
        struct train_options o;
        struct config c;
        options(&o, &c, keys[i], 4);
        const struct paper device = paper_cuda(400 * GIB);
        CHECK(train_plan(&o, seven, &device, &p[i], &err));
        config_free(&c);
    }
    assert_true(p[0].reference > 14 * GIB && p[0].reference < 15 * GIB);
    assert_int_equal(p[1].reference, 0);
    assert_in_range(p[2].reference, p[2].trained / 2,
                    p[2].trained - 1); /* weights and their packed copies, no gradients */
    assert_int_equal(p[3].reference, 0);
}

static void test_refusal(void **state) {
    (void)state;
    static const char *const keys[] = {"device=cuda", "lora_rank=0"};
    struct train_options o;
    struct config c;
    options(&o, &c, keys, 2);
    const struct paper device = paper_cuda(80 * GIB);
    struct train_plan p;
    assert_int_equal(train_plan(&o, seven, &device, &p, &err), ST_MEMORY);
    assert_non_null(strstr(err.msg, "training needs at least "));
    assert_non_null(strstr(err.msg, "of which 80.0 GiB are free"));
    assert_true(p.moments > 56 * GIB); /* of two floats a parameter and more */
    assert_true(plan_total(&p) > device.bytes);
    config_free(&c);
}

/* A step that has few tokens takes less than train_tokens rows. */
static void test_small_step(void **state) {
    (void)state;
    static const char *const keys[] = {"batch_size=1", "group_size=2", "max_tokens=10", "prompt_max_tokens=60",
                                       "lora_rank=4"};
    struct train_options o;
    struct config c;
    options(&o, &c, keys, 5);
    const struct paper device = paper_cuda(GIB);
    struct train_plan p;
    CHECK(train_plan(&o, small, &device, &p, &err));
    assert_int_equal(p.rows, 80);
    assert_int_equal(p.answers, 2);
    o.mode = MODE_MULTI_TURN;
    o.rollout.max_turns = 3;
    CHECK(train_plan(&o, small, &device, &p, &err));
    assert_int_equal(p.rows, 240);
    config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_taken), cmocka_unit_test(test_choices_fit),
                                       cmocka_unit_test(test_reference), cmocka_unit_test(test_refusal),
                                       cmocka_unit_test(test_small_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
