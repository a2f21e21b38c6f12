/* The table of architectures: each row is found by its names, gives the names that checkpoints and adapters have, has
 * chat templates, and stands in the documents; what has no row is refused with the names of those that have one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/arch.h"
#include "model/model.h"
#include "tensor/backend.h"
#include "text/chat.h"

#define SHAPE_OF(layers)                                                                             \
    "\"vocab_size\":20,\"hidden_size\":8,\"intermediate_size\":12,\"num_hidden_layers\":" layers "," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"tie_word_embeddings\":false,"             \
    "\"num_experts\":3,\"num_experts_per_tok\":2,\"moe_intermediate_size\":5}"
#define SHAPE SHAPE_OF("12")

static struct err err;
static struct backend *be;
static char tmp_dir[] = "/tmp/kernelrl-arch-XXXXXX";
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
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

static struct model *make(const char *key, const char *name) {
    CLEANUP_STR struct str config = STR_INIT;
    struct model *m = NULL;
    str_addf(&config, strcmp(key, "model_type") == 0 ? "{\"%s\":\"%s\"," : "{\"%s\":[\"%s\"],", key, name);
    str_adds(&config, SHAPE);
    CHECK(model_init(config.p, 1, NULL, be, &m, &err));
    return m;
}

static void test_each_name_finds_its_row(void **state) {
    (void)state;
    for (int i = 0; arch_row(i); i++) {
        const struct arch *a = arch_row(i);
        const char *const names[] = {a->name, a->embedder, a->type};
        for (size_t k = 0; k < ARRAY_LEN(names); k++) {
            assert_ptr_equal(arch_find(names[k]), a);
            struct model *m = make(k == 2 ? "model_type" : "architectures", names[k]);
            assert_ptr_equal(model_cfg(m)->arch, a);
            assert_int_equal(model_cfg(m)->tied, k == 1); /* an embedder has no head */
            model_free(m);
        }
        for (int k = 0; k < N_MODULES; k++) assert_non_null(a->module[k]);
    }
    assert_null(arch_row(-1));
    assert_null(arch_find("Qwen3"));
    assert_null(arch_find(""));
}

static void test_others_are_refused_with_the_list(void **state) {
    (void)state;
    static const char *const configs[] = {"{\"architectures\":[\"MambaForCausalLM\"]," SHAPE,
                                          "{\"architectures\":[\"MambaForCausalLM\"],\"model_type\":\"qwen3\"," SHAPE,
                                          "{\"model_type\":\"MambaForCausalLM\"," SHAPE, "{" SHAPE};
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct model *m = NULL;
        assert_int_equal(model_init(configs[i], 1, NULL, be, &m, &err), ST_UNSUPPORTED);
        assert_non_null(strstr(err.msg, i < 3 ? "\"MambaForCausalLM\" is not supported" : "\"(none)\" is not"));
        for (int k = 0; arch_row(k); k++)
            if (!strstr(err.msg, arch_row(k)->name)) fail_msg("\"%s\" lacks %s", err.msg, arch_row(k)->name);
    }
    CLEANUP_STR struct str list = STR_INIT;
    arch_list(" or ", &list);
    assert_non_null(strstr(list.p, "Qwen2ForCausalLM"));
    assert_non_null(strstr(list.p, " or "));
    assert_true(str_has_suffix(list.p, "ForCausalLM"));
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool among(const struct param *p, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0) return true;
    return false;
}

/* The names of a file and those of the parameters are the same. */
static void same_names(const struct st_file *f, struct model *m) {
    int n;
    const struct param *p = model_params(m, &n);
    for (size_t k = 0; k < f->count; k++)
        if (!among(p, n, f->tensor[k].name)) fail_msg("no parameter %s", f->tensor[k].name);
    assert_int_equal(n, (int)f->count);
}

/* The names spelled out here, not asked of the table: those of layer 11 and those of no layer. */
static void test_names_of_tensors(void **state) {
    (void)state;
    static const char *const all[] = {
        "model.embed_tokens.weight",
        "model.layers.11.input_layernorm.weight",
        "model.layers.11.self_attn.q_proj.weight",
        "model.layers.11.self_attn.k_proj.weight",
        "model.layers.11.self_attn.v_proj.weight",
        "model.layers.11.self_attn.o_proj.weight",
        "model.layers.11.post_attention_layernorm.weight",
        "model.layers.11.mlp.gate_proj.weight",
        "model.layers.11.mlp.up_proj.weight",
        "model.layers.11.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    };
    static const char *const biases[] = {"model.layers.11.self_attn.q_proj.bias",
                                         "model.layers.11.self_attn.k_proj.bias",
                                         "model.layers.11.self_attn.v_proj.bias"};
    static const char *const norms[] = {"model.layers.11.self_attn.q_norm.weight",
                                        "model.layers.11.self_attn.k_norm.weight"};
    static const char *const archs[] = {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM",
                                        "MistralForCausalLM", "SeedOssForCausalLM"};
    for (int i = 0; i < (int)ARRAY_LEN(archs); i++) {
        struct model *m = make("architectures", archs[i]);
        const bool biased = i == 0 || i == 4;
        int n;
        const struct param *p = model_params(m, &n);
        for (size_t k = 0; k < ARRAY_LEN(all); k++) assert_true(among(p, n, all[k]));
        for (size_t k = 0; k < ARRAY_LEN(biases); k++) assert_int_equal(among(p, n, biases[k]), biased);
        for (size_t k = 0; k < ARRAY_LEN(norms); k++) assert_int_equal(among(p, n, norms[k]), i == 1);
        assert_int_equal(n, 3 + 12 * (9 + (biased ? 3 : i == 1 ? 2 : 0)));
        model_free(m);
    }
}

/* Those of a mixture of experts, and of a dense layer in such a model. */
static void test_names_of_experts(void **state) {
    (void)state;
    static const char *const all[] = {
        "model.layers.11.mlp.gate.weight",
        "model.layers.11.mlp.experts.0.gate_proj.weight",
        "model.layers.11.mlp.experts.2.up_proj.weight",
        "model.layers.11.mlp.experts.1.down_proj.weight",
        "model.layers.11.post_attention_layernorm.weight",
        "model.layers.11.self_attn.q_norm.weight",
        "model.layers.0.mlp.down_proj.weight",
    };
    CLEANUP_STR struct str config = STR_INIT, fused = STR_INIT;
    struct model *m;
    int n;
    str_adds(&config, "{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[0]," SHAPE);
    CHECK(model_init(config.p, 1, NULL, be, &m, &err));
    const struct param *p = model_params(m, &n);
    for (size_t k = 0; k < ARRAY_LEN(all); k++)
        if (!among(p, n, all[k])) fail_msg("no parameter %s", all[k]);
    assert_int_equal(n, 3 + 12 * (6 + 2) + 3 + 11 * (1 + 3 * 3));
    CHECK(model_lora_init(m, 4, 4, 1, &err));
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    p = model_params(m, &n);
    assert_true(among(p, n, "base_model.model.model.layers.11.mlp.experts.2.down_proj.lora_B.weight"));
    assert_true(among(p, n, "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"));
    assert_int_equal(n, 12 * 8 + 6 + 11 * 3 * 6);
    model_free(m);
    arch_fused_experts(arch_find("qwen3_moe"), MODULE_EXPERT_UP, 3, &fused);
    assert_string_equal(fused.p, "model.layers.3.mlp.experts.gate_up_proj");
    str_clear(&fused);
    arch_fused_experts(arch_find("qwen3_moe"), MODULE_EXPERT_DOWN, 11, &fused);
    assert_string_equal(fused.p, "model.layers.11.mlp.experts.down_proj");
}

static void test_names_of_adapters(void **state) {
    (void)state;
    static const char *const sites[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    CLEANUP_STR struct str path = STR_INIT;
    for (int i = 0; arch_row(i); i++) {
        struct model *m = make("architectures", arch_row(i)->name);
        CHECK(model_lora_init(m, 2, 4, 1, &err));
        CHECK(model_train_prepare(m, TRAIN_LORA, &err));
        int n;
        const struct param *p = model_params(m, &n);
        const bool experts = arch_row(i)->experts; /* SHAPE has three; their names are in the test above */
        assert_int_equal(n, experts ? 12 * (8 + 3 * 6) : 12 * 14);
        for (size_t s = 0; !experts && s < ARRAY_LEN(sites); s++)
            for (int layer = 0; layer < 12; layer++)
                for (int ab = 0; ab < 2; ab++) {
                    str_clear(&path);
                    str_addf(&path, "base_model.model.model.layers.%d.%s.lora_%c.weight", layer, sites[s], "AB"[ab]);
                    if (!among(p, n, path.p)) fail_msg("no parameter %s", path.p);
                }
        CHECK(model_lora_save(m, tmp_dir, &err));
        str_clear(&path);
        str_addf(&path, "%s/adapter_config.json", tmp_dir);
        CLEANUP_JSON json_t *j = NULL;
        CHECK(js_load(path.p, 1 << 20, &j, &err));
        const json_t *targets = json_object_get(j, "target_modules");
        assert_int_equal(json_array_size(targets), ARRAY_LEN(sites));
        for (size_t s = 0; s < ARRAY_LEN(sites); s++)
            assert_string_equal(json_string_value(json_array_get(targets, s)), strchr(sites[s], '.') + 1);
        CHECK(model_lora_load(m, tmp_dir, &err));
        model_free(m);
    }
}

/* The message says that the adapter has more layers than the model. */
static void test_adapter_of_a_deeper_model(void **state) {
    (void)state;
    struct model *m = make("architectures", "Qwen3ForCausalLM"), *shallow;
    CHECK(model_lora_init(m, 2, 4, 1, &err));
    CHECK(model_lora_save(m, tmp_dir, &err));
    CHECK(model_init("{\"architectures\":[\"Qwen3ForCausalLM\"]," SHAPE_OF("2"), 1, NULL, be, &shallow, &err));
    assert_int_equal(model_lora_load(shallow, tmp_dir, &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "the model has 2 layers"));
    model_free(m);
    model_free(shallow);
}

static void test_layer_of_a_name(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int layer;
    } cases[] = {{"model.layers.0.mlp.up_proj.weight", 0},
                 {"model.layers.47.self_attn.q_proj.lora_A.weight", 47},
                 {"model.norm.weight", -1},
                 {"model.layers.x", -1},
                 {"model.layers.", -1},
                 {"", -1}};
    for (int i = 0; arch_row(i); i++) {
        for (size_t k = 0; k < ARRAY_LEN(cases); k++)
            assert_int_equal(arch_layer(arch_row(i), cases[k].name), cases[k].layer);
        assert_true(arch_layer(arch_row(i), "model.layers.99999999999999999999.x") > 1 << 16);
    }
}

/* An embedder's file has the names without the outermost module. One that is called a language model may lack a head.
 */
static void test_embedders_names(void **state) {
    (void)state;
    CLEANUP_STR struct str path = STR_INIT, config = STR_INIT;
    struct model *m = make("architectures", "Qwen2Model"), *same = NULL;
    CHECK(model_save(m, tmp_dir, "f32", &err));
    str_addf(&path, "%s/model.safetensors", tmp_dir);
    int n;
    const struct param *p = model_params(m, &n);
    struct st_entry *e = xcalloc((size_t)n, sizeof *e);
    for (int i = 0; i < n; i++) {
        assert_true(str_has_prefix(p[i].name, "model."));
        e[i] = (struct st_entry){.name = p[i].name + strlen("model."),
                                 .dtype = ST_DTYPE_F32,
                                 .from = ST_DTYPE_F32,
                                 .nd = p[i].nd,
                                 .dim = {p[i].dim[0], p[i].dim[1]},
                                 .data = p[i].w};
    }
    CHECK(st_write(path.p, e, (size_t)n, NULL, &err));
    str_addf(&config, "%s/config.json", tmp_dir);
    static const char *const as[] = {"{\"architectures\":[\"Qwen2Model\"]," SHAPE,
                                     "{\"architectures\":[\"Qwen2ForCausalLM\"]," SHAPE};
    for (int k = 0; k < 2; k++) {
        CHECK(fs_write_atomic(config.p, as[k], strlen(as[k]), &err));
        CHECK(model_load(tmp_dir, NULL, be, &same, &err));
        int n_same;
        const struct param *q = model_params(same, &n_same);
        assert_int_equal(n_same, n + k);
        for (int i = 0; i < n; i++) {
            assert_string_equal(q[i].name, p[i].name);
            assert_memory_equal(q[i].w, p[i].w, (size_t)p[i].n * sizeof(float));
        }
        if (k == 1) assert_memory_equal(q[n].w, p[0].w, (size_t)p[0].n * sizeof(float)); /* the head */
        model_free(same);
    }
    free(e);
    model_free(m);
}

/* Files that transformers and PEFT wrote: every name is one that the row gives, and no name is missing. A model whose
 * architecture has no row is refused. */
static void test_golden_models(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        print_message("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const struct {
        const char *name, *arch;
    } golden[] = {{"qwen2_tied", "Qwen2ForCausalLM"},
                  {"qwen3", "Qwen3ForCausalLM"},
                  {"llama3", "LlamaForCausalLM"},
                  {"qwen3_moe", "Qwen3MoeForCausalLM"}};
    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        CLEANUP_STR struct str dir = STR_INIT, adapter = STR_INIT;
        str_addf(&dir, "%s/golden/%s", data, golden[i].name);
        str_addf(&adapter, "%s/adapter", dir.p);
        struct model *m = NULL;
        if (!arch_find(golden[i].arch)) {
            assert_int_equal(model_load(dir.p, NULL, be, &m, &err), ST_UNSUPPORTED);
            assert_non_null(strstr(err.msg, golden[i].arch));
            continue;
        }
        struct st_file f;
        CHECK(st_open_dir(dir.p, &f, &err));
        CHECK(model_load(dir.p, NULL, be, &m, &err));
        assert_string_equal(model_cfg(m)->arch->name, golden[i].arch);
        same_names(&f, m);
        st_close(&f);
        CHECK(model_lora_load(m, adapter.p, &err));
        CHECK(model_train_prepare(m, TRAIN_LORA, &err));
        str_adds(&adapter, "/adapter_model.safetensors");
        CHECK(st_open(adapter.p, &f, &err));
        same_names(&f, m);
        st_close(&f);
        model_free(m);
    }
}

/* ---- the other tables -------------------------------------------------------------------------------------------- */

static void test_each_family_has_templates(void **state) {
    (void)state;
    for (int i = 0; arch_row(i); i++)
        for (int thinking = 0; arch_row(i)->chat && thinking < 2; thinking++) {
            enum chat_style s = N_CHAT_STYLES;
            CHECK(chat_style_choose(NULL, arch_row(i)->chat, thinking, &s, &err));
            assert_true(s < N_CHAT_STYLES);
        }
    assert_string_equal(arch_find("Qwen2ForCausalLM")->chat, "qwen2.5");
    assert_string_equal(arch_find("Qwen3ForCausalLM")->chat, "qwen3");
}

static void test_documents_name_each_row(void **state) {
    (void)state;
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_FREE char *text = NULL;
    str_addf(&path, "%s/docs/models.md", home_dir());
    CHECK(fs_read(path.p, 1 << 20, &text, NULL, &err));
    for (int i = 0; arch_row(i); i++) {
        CLEANUP_STR struct str name = STR_INIT;
        str_addf(&name, "`%s`", arch_row(i)->name);
        if (!strstr(text, name.p)) fail_msg("docs/models.md does not name %s", name.p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_name_finds_its_row),   cmocka_unit_test(test_others_are_refused_with_the_list),
        cmocka_unit_test(test_names_of_tensors),          cmocka_unit_test(test_names_of_adapters),
        cmocka_unit_test(test_adapter_of_a_deeper_model), cmocka_unit_test(test_layer_of_a_name),
        cmocka_unit_test(test_embedders_names),           cmocka_unit_test(test_golden_models),
        cmocka_unit_test(test_each_family_has_templates), cmocka_unit_test(test_documents_name_each_row),
        cmocka_unit_test(test_names_of_experts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
