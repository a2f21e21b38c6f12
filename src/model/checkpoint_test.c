/* Checkpoints as they are published: the configurations of Qwen2.5-Coder and Qwen3 with all their keys (only the sizes
 * are smaller), bfloat16, one file or shards under an index, with what else such files hold. The names of the tensors
 * are spelled out here, not asked of the model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/model.h"
#include "tensor/backend.h"

#define QWEN25_CODER(tied)                                                                                        \
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": 43, "              \
    "\"eos_token_id\": 43, \"hidden_act\": \"silu\", \"hidden_size\": 24, \"initializer_range\": 0.02, "          \
    "\"intermediate_size\": 40, \"max_position_embeddings\": 32768, \"max_window_layers\": 24, "                  \
    "\"model_type\": \"qwen2\", \"num_attention_heads\": 6, \"num_hidden_layers\": 3, "                           \
    "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, \"sliding_window\": 32768, " \
    "\"tie_word_embeddings\": " tied ", \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.44.0\", "    \
    "\"use_cache\": true, \"use_mrope\": false, \"use_sliding_window\": false, \"vocab_size\": 48}"
static const char qwen3[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"bos_token_id\": 43, \"eos_token_id\": 45, \"head_dim\": 16, \"hidden_act\": \"silu\", \"hidden_size\": 24, "
    "\"initializer_range\": 0.02, \"intermediate_size\": 40, \"max_position_embeddings\": 40960, "
    "\"max_window_layers\": 28, \"model_type\": \"qwen3\", \"num_attention_heads\": 6, \"num_hidden_layers\": 3, "
    "\"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000, "
    "\"sliding_window\": null, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
    "\"transformers_version\": \"4.51.0\", \"use_cache\": true, \"use_sliding_window\": false, \"vocab_size\": 48}";
enum { V = 48, D = 24, F = 40, L = 3, H = 6, G = 2, MAX_TENSORS = 64, SHARDS = 3 };

static struct err err;
static struct backend *be;
static struct arena arena;
static char tmp_dir[] = "/tmp/kernelrl-checkpoint-XXXXXX";
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static int setup(void **state) {
    (void)state;
    log_set_level(LOG_ERROR);
    return mkdtemp(tmp_dir) && cpu_backend_open(NULL, &be, &err) == ST_OK ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    be->close(be);
    arena_free(&arena);
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

static const char *path(const char *dir, const char *name) {
    return arena_printf(&arena, "%s/%s/%s", tmp_dir, dir, name);
}

static void put_text(const char *dir, const char *name, const char *text) {
    CHECK(fs_mkdirs(arena_printf(&arena, "%s/%s", tmp_dir, dir), &err));
    CHECK(fs_write_atomic(path(dir, name), text, strlen(text), &err));
}

struct tensors {
    struct st_entry e[MAX_TENSORS];
    size_t n;
};

static void add(struct tensors *t, const char *name, int64_t d0, int64_t d1) {
    const int64_t n = d0 * (d1 ? d1 : 1);
    uint16_t *v = arena_array(&arena, uint16_t, n);
    for (int64_t i = 0; i < n; i++)
        v[i] = st_f32_to_bf16((float)rng_f64(3, t->n, (uint64_t)i) - 0.5f + (d1 ? 0.0f : 1.0f));
    assert_true(t->n < MAX_TENSORS);
    t->e[t->n++] = (struct st_entry){.name = arena_strdup(&arena, name),
                                     .dtype = ST_DTYPE_BF16,
                                     .from = ST_DTYPE_BF16,
                                     .nd = d1 ? 2 : 1,
                                     .dim = {d0, d1},
                                     .data = v};
}

static void add_layer(struct tensors *t, int i, const char *what, int64_t d0, int64_t d1) {
    add(t, arena_printf(&arena, "model.layers.%d.%s", i, what), d0, d1);
}

/* In the order of their names, as transformers writes them. */
static void fill(struct tensors *t, bool is_qwen3, bool tied) {
    const int64_t K = is_qwen3 ? 16 : D / H;
    *t = (struct tensors){.n = 0};
    if (!tied) add(t, "lm_head.weight", V, D);
    add(t, "model.embed_tokens.weight", V, D);
    for (int i = 0; i < L; i++) {
        add_layer(t, i, "input_layernorm.weight", D, 0);
        add_layer(t, i, "mlp.down_proj.weight", D, F);
        add_layer(t, i, "mlp.gate_proj.weight", F, D);
        add_layer(t, i, "mlp.up_proj.weight", F, D);
        add_layer(t, i, "post_attention_layernorm.weight", D, 0);
        if (!is_qwen3) add_layer(t, i, "self_attn.k_proj.bias", G * K, 0);
        if (is_qwen3) add_layer(t, i, "self_attn.k_norm.weight", K, 0);
        add_layer(t, i, "self_attn.k_proj.weight", G * K, D);
        add_layer(t, i, "self_attn.o_proj.weight", D, H * K);
        if (!is_qwen3) add_layer(t, i, "self_attn.q_proj.bias", H * K, 0);
        if (is_qwen3) add_layer(t, i, "self_attn.q_norm.weight", K, 0);
        add_layer(t, i, "self_attn.q_proj.weight", H * K, D);
        if (!is_qwen3) add_layer(t, i, "self_attn.v_proj.bias", G * K, 0);
        add_layer(t, i, "self_attn.v_proj.weight", G * K, D);
    }
    add(t, "model.norm.weight", D, 0);
}

/* Runs of tensors in shards, and the index over them. */
static void write_shards(const char *dir, const struct tensors *t) {
    CLEANUP_STR struct str index = STR_INIT;
    str_adds(&index, "{\"metadata\": {\"total_size\": 12345}, \"weight_map\": {");
    for (size_t s = 0; s < SHARDS; s++) {
        const char *name = arena_printf(&arena, "model-%05zu-of-%05d.safetensors", s + 1, SHARDS);
        const size_t from = t->n * s / SHARDS, to = t->n * (s + 1) / SHARDS;
        CHECK(fs_mkdirs(arena_printf(&arena, "%s/%s", tmp_dir, dir), &err));
        CHECK(st_write(path(dir, name), t->e + from, to - from, NULL, &err));
        for (size_t i = from; i < to; i++) str_addf(&index, "%s\"%s\": \"%s\"", i ? ", " : "", t->e[i].name, name);
    }
    str_adds(&index, "}}");
    put_text(dir, "model.safetensors.index.json", index.p);
}

static struct model *load(const char *dir) {
    struct model *m;
    CHECK(model_load(arena_printf(&arena, "%s/%s", tmp_dir, dir), NULL, be, &m, &err));
    return m;
}

/* Every parameter has the values of the tensor of its name, and there is none besides. */
static void same_values(struct model *m, const struct tensors *t) {
    int n;
    const struct param *p = model_params(m, &n);
    assert_int_equal(n, (int)t->n);
    for (size_t k = 0; k < t->n; k++) {
        int i = 0;
        while (i < n && strcmp(p[i].name, t->e[k].name) != 0) i++;
        if (i == n) fail_msg("no parameter %s", t->e[k].name);
        const uint16_t *want = t->e[k].data;
        for (int64_t j = 0; j < p[i].n; j++)
            if (p[i].w[j] != st_bf16_to_f32(want[j])) fail_msg("%s[%lld] differs", p[i].name, (long long)j);
    }
}

static void score(struct model *m, float logp[5]) {
    static const int32_t ids[] = {1, 47, 3, 9, 9, 20}, rows[] = {0, 1, 2, 3, 4};
    const struct segment seg = {0, 6, -1, 0};
    const struct train_batch b = {
        .ids = ids, .T = 6, .seg = &seg, .n_seg = 1, .rows = rows, .targets = ids + 1, .N = 5, false};
    CHECK(model_forward(m, &b, logp, NULL, NULL, &err));
}

static void check_layouts(const char *name, const char *config, bool is_qwen3, bool tied) {
    struct tensors t;
    fill(&t, is_qwen3, tied);
    const char *shards = arena_printf(&arena, "%s-shards", name), *whole = arena_printf(&arena, "%s-whole", name);
    put_text(shards, "config.json", config);
    put_text(whole, "config.json", config);
    write_shards(shards, &t);
    CHECK(st_write(path(whole, "model.safetensors"), t.e, t.n, NULL, &err));
    struct model *a = load(shards), *b = load(whole);
    same_values(a, &t);
    same_values(b, &t);
    float x[5], y[5];
    score(a, x);
    score(b, y);
    assert_memory_equal(x, y, sizeof x);
    model_free(a);
    model_free(b);
}

static void test_published_layouts(void **state) {
    (void)state;
    check_layouts("coder", QWEN25_CODER("true"), false, true);
    check_layouts("coder-7b", QWEN25_CODER("false"), false, false); /* the larger ones have a head of their own */
    check_layouts("qwen3", qwen3, true, true);
}

/* Reads what was logged since log_open_file. */
static char *logged(void) {
    char *text;
    log_close_file();
    CHECK(fs_read(path(".", "log"), 1 << 20, &text, NULL, &err));
    CHECK(fs_remove(path(".", "log"), &err));
    return text;
}

static void test_more_than_is_needed(void **state) {
    (void)state;
    struct tensors t;
    fill(&t, false, true);
    const size_t own = t.n;
    add(&t, "lm_head.weight", V, D); /* a copy of the embedding, as some tools write it */
    add_layer(&t, 0, "self_attn.rotary_emb.inv_freq", 2, 0);
    put_text("more", "config.json", QWEN25_CODER("true"));
    write_shards("more", &t);
    CHECK(log_open_file(path(".", "log"), &err));
    model_free(load("more"));
    CLEANUP_FREE char *quiet = logged();
    assert_string_equal(quiet, "");

    add(&t, "visual.patch_embed.weight", 4, 4);
    add(&t, "value_head.weight", 1, D);
    write_shards("more", &t);
    CHECK(log_open_file(path(".", "log"), &err));
    struct model *m = load("more");
    CLEANUP_FREE char *text = logged();
    const char *said = strstr(text, "2 tensors are of no use to this architecture: value_head.weight, visual.patch");
    if (!said) fail_msg("not warned of the tensors: %s", text);
    assert_null(strstr(said + strlen("2 tensors are of no use"), "of no use")); /* once */
    t.n = own;
    same_values(m, &t);
    model_free(m);
}

static void refused(const char *dir, enum status want, const char *one, const char *two) {
    struct model *m = NULL;
    err = (struct err){0};
    assert_int_equal(model_load(arena_printf(&arena, "%s/%s", tmp_dir, dir), NULL, be, &m, &err), want);
    if (!strstr(err.msg, one) || !strstr(err.msg, two)) fail_msg("\"%s\" lacks \"%s\" or \"%s\"", err.msg, one, two);
}

static void test_less_than_is_needed(void **state) {
    (void)state;
    struct tensors t;
    fill(&t, false, false);
    put_text("less", "config.json", QWEN25_CODER("false"));
    struct tensors cut = t;
    cut.n -= 2; /* the last layer's v_proj.weight and the final norm */
    write_shards("less", &cut);
    refused("less", ST_INVALID, "less: 2 of 39 tensors are missing in model.safetensors or its shards: ",
            "model.layers.2.self_attn.v_proj.weight, model.norm.weight");
    cut.n = 3;
    write_shards("less", &cut);
    refused("less", ST_INVALID, "36 of 39 tensors are missing in model.safetensors or its shards: model.layers.0.",
            ", ...");
    write_shards("less", &t);
    CHECK(fs_remove(path("less", "model-00002-of-00003.safetensors"), &err));
    refused("less", ST_IO, "model-00002-of-00003.safetensors", "No such file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_layouts),
        cmocka_unit_test(test_more_than_is_needed),
        cmocka_unit_test(test_less_than_is_needed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
