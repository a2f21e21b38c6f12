/* Adapters whose sites have ranks and alphas of their own (PEFT's rank_pattern and alpha_pattern), against adapters
 * that mean the same without: the same bits, forward and backward. That PEFT itself agrees,
 * tests/clients/architectures.sh shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"
#include "model/model.h"
#include "tensor/backend.h"

static const char config[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":19,\"hidden_size\":12,"
                             "\"intermediate_size\":10,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}";
enum { T = 9, N = 8 };
static const int32_t ids[T] = {3, 1, 4, 1, 5, 9, 2, 6, 5}, rows[N] = {0, 1, 2, 3, 4, 5, 6, 7},
                     targets[N] = {1, 4, 1, 5, 9, 2, 6, 5};
static const float g[N] = {1, -0.5f, 0.25f, 2, -1, 0.75f, -0.125f, 0.5f};
static const struct segment whole = {0, T, -1, ADAPTER_OWN};
static const struct train_batch batch = {
    .ids = ids, .T = T, .seg = &whole, .n_seg = 1, .rows = rows, .targets = targets, .N = N};

static struct err err;
static struct backend *be;
static char dir[] = "/tmp/kernelrl-peft-XXXXXX";
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static int setup(void **state) {
    (void)state;
    log_set_level(LOG_ERROR);
    return mkdtemp(dir) && cpu_backend_open(NULL, &be, &err) == ST_OK ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    be->close(be);
    return fs_remove(dir, &err) == ST_OK ? 0 : 1;
}

/* A model with an adapter of rank 3 and alpha 3, whose B are not zero. */
static struct model *with_adapter(void) {
    struct model *m;
    int n;
    CHECK(model_init(config, 1, NULL, be, &m, &err));
    CHECK(model_lora_init(m, 3, 3, 5, &err));
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    const struct param *p = model_params(m, &n);
    for (int i = 1; i < n; i += 2)
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] = (float)((k * 7 + i) % 11 - 5) * 0.0625f;
    model_params_changed(m);
    return m;
}

static void rewrite(const char *key, const char *value) {
    CLEANUP_FREE char *path = fs_join(dir, "adapter_config.json");
    CLEANUP_JSON json_t *j = NULL;
    CHECK(js_load(path, 1 << 20, &j, &err));
    json_object_set_new(j, key, json_loads(value, JSON_DECODE_ANY, NULL));
    CLEANUP_FREE char *text = json_dumps(j, 0);
    CHECK(fs_write_atomic(path, text, strlen(text), &err));
}

static void run(struct model *m, float logp[N]) {
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    CHECK(model_forward(m, &batch, logp, NULL, NULL, &err));
    CHECK(model_backward(m, &batch, g, &err));
}

/* Both give the same log-probabilities and gradients, but for those of B in `scaled`, which are `factor` times those of
 * the first. Gradients below an input with two groups are sums in another order: off by the last bits. */
static void compare(struct model *a, struct model *b, const char *scaled, float factor) {
    float one[N], two[N];
    int n, n_b;
    run(a, one);
    run(b, two);
    assert_memory_equal(one, two, sizeof one);
    const struct param *p = model_params(a, &n), *q = model_params(b, &n_b);
    assert_int_equal(n, n_b);
    for (int i = 0; i < n; i++) {
        assert_string_equal(p[i].name, q[i].name);
        const float f = strstr(p[i].name, scaled) && strstr(p[i].name, "lora_B") ? factor : 1;
        float most = 0;
        for (int64_t k = 0; k < p[i].n; k++) most = fmaxf(most, fabsf(q[i].g[k]));
        assert_true(most > 0);
        for (int64_t k = 0; k < p[i].n; k++)
            assert_true(fabsf(p[i].g[k] * f - q[i].g[k]) <= (factor == 1 ? 0 : 1e-5f * most));
    }
}

/* Every rank and alpha by a pattern, in the place of r and lora_alpha. */
static void test_all_by_patterns(void **state) {
    (void)state;
    struct model *m = with_adapter(), *same = with_adapter();
    CHECK(model_lora_save(m, dir, &err));
    rewrite("r", "8");
    rewrite("lora_alpha", "16");
    rewrite("rank_pattern", "{\"[qk]_proj\": 3, \"v_proj|o_proj\": 3, \".*mlp.*\": 3}");
    rewrite("alpha_pattern", "{\"layers.0.*\": 3, \"model.layers.1.(mlp|self_attn).[a-z]+_proj\": 3}");
    CHECK(model_lora_load(same, dir, &err));
    compare(m, same, "none", 1);
    model_free(m);
    model_free(same);
}

/* Twice the scale is twice the B. The site is a group of its own then. */
static void test_one_alpha(void **state) {
    (void)state;
    static const char *const keys[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct model *m = with_adapter(), *other = with_adapter();
        CLEANUP_STR struct str pattern = STR_INIT;
        int n;
        CHECK(model_lora_save(m, dir, &err));
        str_addf(&pattern, "{\"%s\": 6}", keys[i]);
        rewrite("alpha_pattern", pattern.p);
        CHECK(model_lora_load(other, dir, &err));
        CHECK(model_lora_save(other, dir, &err)); /* and once more from what it writes */
        CHECK(model_lora_load(other, dir, &err));
        const struct param *p = model_params(m, &n);
        for (int k = 0; k < n; k++)
            if (strstr(p[k].name, keys[i]) && strstr(p[k].name, "lora_B"))
                for (int64_t c = 0; c < p[k].n; c++) p[k].w[c] *= 2;
        model_params_changed(m);
        compare(m, other, keys[i], 2);
        model_free(m);
        model_free(other);
    }
}

/* The first key that fits counts, the end of a name must fit, and a key that fits nothing is nothing. */
static void test_which_key(void **state) {
    (void)state;
    struct model *m = with_adapter(), *same = with_adapter();
    CHECK(model_lora_save(m, dir, &err));
    rewrite("rank_pattern",
            "{\"proj\": 9, \"self_attn\": 9, \"lm_head\": 9, \"q_pro\": 9, \"_proj\": 9, \"x.q_proj\": 9, "
            "\"q_proj\": 3, \".*\": 3, \"k_proj\": 9}");
    CHECK(model_lora_load(same, dir, &err));
    compare(m, same, "none", 1);
    model_free(m);
    model_free(same);
}

static void test_refusals(void **state) {
    (void)state;
    struct model *m = with_adapter();
    CHECK(model_lora_save(m, dir, &err));
    static const struct {
        const char *key, *value, *says;
        enum status st;
    } cases[] = {
        {"rank_pattern", "[1]", "rank_pattern: expected an object", ST_PARSE},
        {"rank_pattern", "{\"q_proj\": 0}", "rank_pattern: model.layers.0.self_attn.q_proj: expected an integer",
         ST_INVALID},
        {"rank_pattern", "{\"q_proj\": 2.5}", "expected an integer in 1..4096", ST_INVALID},
        {"rank_pattern", "{\"q_proj\": 5000}", "expected an integer in 1..4096", ST_INVALID},
        {"rank_pattern", "{\"(\": 2}", "rank_pattern: \"(\" is no regular expression", ST_INVALID},
        {"rank_pattern", "{\"layers.1.mlp.up_proj\": 2}", "layers.1.mlp.up_proj.lora_A", ST_INVALID},
        {"alpha_pattern", "{\"o_proj\": -1}", "alpha_pattern: model.layers.0.self_attn.o_proj: expected a number > 0",
         ST_INVALID},
        {"alpha_pattern", "{\"(a*)*b(a*)*c(.*)*x\": 1}", "", ST_OK},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        rewrite("rank_pattern", "null");
        rewrite("alpha_pattern", "{}");
        rewrite(cases[i].key, cases[i].value);
        int index;
        if (model_adapter_load(m, dir, &index, &err) != cases[i].st) fail_msg("%s: another status", cases[i].value);
        if (cases[i].st != ST_OK && (!strstr(err.msg, cases[i].says) || !strstr(err.msg, "adapter_")))
            fail_msg("\"%s\" lacks \"%s\"", err.msg, cases[i].says);
    }
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_by_patterns), cmocka_unit_test(test_one_alpha),
                                       cmocka_unit_test(test_which_key), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
