/* Activations within a budget: whatever is recomputed, log-probabilities and gradients keep their bits; the budget is
 * held, and one that is too small is refused; trouble is found in layers whose activations are gone, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/model.h"
#include "tensor/backend.h"

enum { L = 5, V = 90, PROMPT = 30, ANSWER = 25, T = PROMPT + 2 * ANSWER, N = 2 * ANSWER };
static const char qwen3[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":90,\"hidden_size\":40,"
                            "\"intermediate_size\":72,\"num_hidden_layers\":5,\"num_attention_heads\":4,"
                            "\"num_key_value_heads\":2,\"head_dim\":12,\"max_position_embeddings\":400,"
                            "\"tie_word_embeddings\":true}";
static const char qwen2[] = "{\"model_type\":\"qwen2\",\"vocab_size\":90,\"hidden_size\":48,"
                            "\"intermediate_size\":70,\"num_hidden_layers\":5,\"num_attention_heads\":4,"
                            "\"num_key_value_heads\":2,\"max_position_embeddings\":400,"
                            "\"tie_word_embeddings\":false}";

static const char moe[] = "{\"model_type\":\"qwen3_moe\",\"vocab_size\":90,\"hidden_size\":40,"
                          "\"intermediate_size\":72,\"num_hidden_layers\":5,\"num_attention_heads\":4,"
                          "\"num_key_value_heads\":2,\"head_dim\":12,\"max_position_embeddings\":400,"
                          "\"num_experts\":7,\"num_experts_per_tok\":3,\"moe_intermediate_size\":20,"
                          "\"mlp_only_layers\":[0,2],\"tie_word_embeddings\":false}";

static struct pool *pool;
static struct backend *be;
static struct err err;
static int32_t ids[T], rows[N], targets[N];
static float g[N];
static struct segment seg[3] = {{0, PROMPT, -1, 0}, {PROMPT, ANSWER, 0, 0}, {PROMPT + ANSWER, ANSWER, 0, 0}};
static const struct train_batch batch = {ids, T, seg, 3, rows, targets, N, false};

#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static int setup(void **state) {
    (void)state;
    pool = pool_create(2);
    struct rng r = rng_make(3, 0);
    for (int i = 0; i < T; i++) ids[i] = (int32_t)rng_below(&r, V);
    for (int i = 0; i < N; i++) {
        rows[i] = (int32_t)(i % ANSWER ? PROMPT + i - 1 : PROMPT - 1);
        targets[i] = ids[PROMPT + i];
        g[i] = (float)rng_normal(&r);
    }
    if (cpu_backend_open(pool, &be, &err) != ST_OK) return 1;
    be->logit_chunk_bytes = 4096; /* a few chunks */
    return 0;
}

static int teardown(void **state) {
    (void)state;
    be->close(be);
    pool_destroy(pool);
    return 0;
}

/* With weights that matter: random B of LoRA, and matrices large enough to bend what follows. */
static struct model *make(const char *config, const char *dtype, enum train_what what, unsigned parts, int64_t memory) {
    struct model *m;
    const struct model_options opt = {.dtype = dtype, .frozen = what == TRAIN_LORA, .activation_memory = memory};
    CHECK(model_init(config, 5, &opt, be, &m, &err));
    if (what == TRAIN_LORA) CHECK(model_lora_create(m, &(struct adapter_shape){4, 8, parts, 0}, 11, &err));
    CHECK(model_train_prepare(m, what, &err));
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(10, (uint64_t)i);
        for (int64_t j = 0; j < p[i].n; j++) p[i].w[j] += 0.1f * (float)rng_normal(&r);
    }
    model_params_changed(m);
    return m;
}

/* One step's log-probabilities and all gradients, one behind the other; malloc'ed. */
static float *step(struct model *m, int64_t *count) {
    int n;
    const struct param *p = model_params(m, &n);
    int64_t total = N;
    for (int i = 0; i < n; i++) total += p[i].n;
    float *out = xmalloc((size_t)total * sizeof *out), *at = out + N;
    model_zero_grad(m);
    CHECK(model_forward(m, &batch, out, NULL, NULL, &err));
    CHECK(model_backward(m, &batch, g, &err));
    for (int i = 0; i < n; at += p[i++].n) memcpy(at, p[i].g, (size_t)p[i].n * sizeof *at);
    *count = total;
    return out;
}

/* parts: of LoRA. */
static void check_bits(const char *config, const char *dtype, enum train_what what, unsigned parts) {
    const bool head = what == TRAIN_FULL || (parts & ADAPTER_HEAD); /* is trained */
    struct model *m = make(config, dtype, what, parts, 0);
    int64_t n, n_now;
    float *want = step(m, &n);
    bool moved = false;
    for (int64_t i = N; i < n; i++) moved |= want[i] != 0;
    assert_true(moved);
    assert_int_equal(model_memory(m).recomputed_layers, 0); /* a small batch has room */
    assert_true(model_memory(m).logits_kept == head);
    int64_t bytes = model_memory(m).activation_bytes;
    model_free(m);
    /* Each time one byte less than was taken before, until nothing can be saved any more. */
    int most = head ? -1 : 0, rounds = 0; /* the logits go first */
    for (;; rounds++) {
        m = make(config, dtype, what, parts, bytes - 1);
        float logp[N];
        if (model_forward(m, &batch, logp, NULL, NULL, &err) == ST_MEMORY) break;
        float *got = step(m, &n_now);
        const struct model_memory mem = model_memory(m);
        assert_int_equal(n_now, n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        assert_true(mem.activation_bytes < bytes && !mem.logits_kept);
        assert_true(mem.recomputed_layers > most);
        most = mem.recomputed_layers;
        bytes = mem.activation_bytes;
        free(got);
        got = step(m, &n_now); /* and once more in the same memory */
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        free(got);
        model_free(m);
    }
    assert_non_null(strstr(err.msg, "activation_memory"));
    model_free(m);
    assert_int_equal(most, L - 1);
    assert_int_equal(rounds, head ? L : L - 1);
    free(want);
}

static void test_bits(void **state) {
    (void)state;
    check_bits(qwen3, "f32", TRAIN_FULL, 0);
    check_bits(qwen3, "bf16", TRAIN_LORA, ADAPTER_LAYERS);
    check_bits(qwen2, "f32", TRAIN_LORA, ADAPTER_LAYERS);
    check_bits(qwen2, "bf16", TRAIN_FULL, 0);
    check_bits(qwen3, "f32", TRAIN_LORA, ADAPTER_LAYERS | ADAPTER_HEAD);
    check_bits(qwen2, "bf16", TRAIN_LORA, ADAPTER_ATTENTION | ADAPTER_HEAD);
    check_bits(moe, "f32", TRAIN_FULL, 0);
    check_bits(moe, "bf16", TRAIN_LORA, ADAPTER_LAYERS);
}

/* A layer in the middle overflows; what it held is gone by the time somebody asks. */
static void test_find_nonfinite(void **state) {
    (void)state;
    struct model *m = make(qwen3, "f32", TRAIN_FULL, 0, 0);
    float logp[N];
    char where[200];
    CHECK(model_forward(m, &batch, logp, NULL, NULL, &err));
    const int64_t bytes = model_memory(m).activation_bytes;
    model_free(m);
    m = make(qwen3, "f32", TRAIN_FULL, 0, bytes / 5 * 4);
    int n;
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, "model.layers.1.mlp.up_proj.weight") == 0)
            for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] = k % 2 ? 3e38f : -3e38f;
    model_params_changed(m);
    CHECK(model_forward(m, &batch, logp, NULL, NULL, &err));
    assert_true(model_memory(m).recomputed_layers > 1);
    assert_true(model_find_nonfinite(m, ADAPTER_OWN, FIND_ACTIVATIONS, where, sizeof where));
    assert_non_null(strstr(where, "activations of layer 1, gate and up projection"));
    model_free(m);
}

/* Without a backward pass to come nothing is kept for one. */
static void test_forward_only(void **state) {
    (void)state;
    struct model *m = make(qwen2, "f32", TRAIN_FULL, 0, 0), *idle = make(qwen2, "f32", TRAIN_NOTHING, 0, 0);
    float logp[N], same[N];
    CHECK(model_forward(m, &batch, logp, NULL, NULL, &err));
    CHECK(model_forward(idle, &batch, same, NULL, NULL, &err));
    assert_true(model_memory(idle).activation_bytes < model_memory(m).activation_bytes);
    assert_true(model_memory(m).weight_bytes > 0);
    assert_memory_equal(logp, same, sizeof same);
    model_free(m);
    model_free(idle);
    struct train_batch only = batch;
    only.forward_only = true;
    m = make(qwen2, "bf16", TRAIN_LORA, 0, 0);
    CHECK(model_forward(m, &only, logp, NULL, NULL, &err));
    const int64_t bytes = model_memory(m).activation_bytes;
    assert_int_equal(model_backward(m, &only, g, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "forward_only"));
    CHECK(model_forward(m, &batch, same, NULL, NULL, &err));
    assert_memory_equal(logp, same, sizeof same);
    assert_true(bytes < model_memory(m).activation_bytes);
    CHECK(model_backward(m, &batch, g, &err));
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_find_nonfinite),
                                       cmocka_unit_test(test_forward_only)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
