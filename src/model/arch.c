#include "model/arch.h"

#include <string.h>

/* The names that Llama began with and most decoders have. A model has q_norm and k_norm only where its row says
 * qk_norm, and the router and the experts only where its row says experts. Every row shares these names so far. */
static const char *const llama_modules[N_MODULES] = {
    [MODULE_EMBED] = "model.embed_tokens",
    [MODULE_LN1] = "model.layers.*.input_layernorm",
    [MODULE_Q] = "model.layers.*.self_attn.q_proj",
    [MODULE_K] = "model.layers.*.self_attn.k_proj",
    [MODULE_V] = "model.layers.*.self_attn.v_proj",
    [MODULE_Q_NORM] = "model.layers.*.self_attn.q_norm",
    [MODULE_K_NORM] = "model.layers.*.self_attn.k_norm",
    [MODULE_O] = "model.layers.*.self_attn.o_proj",
    [MODULE_LN2] = "model.layers.*.post_attention_layernorm",
    [MODULE_GATE] = "model.layers.*.mlp.gate_proj",
    [MODULE_UP] = "model.layers.*.mlp.up_proj",
    [MODULE_DOWN] = "model.layers.*.mlp.down_proj",
    [MODULE_FINAL_NORM] = "model.norm",
    [MODULE_HEAD] = "lm_head",
    [MODULE_ROUTER] = "model.layers.*.mlp.gate",
    [MODULE_EXPERT_GATE] = "model.layers.*.mlp.experts.*.gate_proj",
    [MODULE_EXPERT_UP] = "model.layers.*.mlp.experts.*.up_proj",
    [MODULE_EXPERT_DOWN] = "model.layers.*.mlp.experts.*.down_proj",
};

static const struct arch rows[] = {
    {.name = "Qwen2ForCausalLM",
     .embedder = "Qwen2Model",
     .type = "qwen2",
     .chat = "qwen2.5",
     .module = llama_modules,
     .qkv_bias = true,
     .default_positions = 32768},
    {.name = "Qwen3ForCausalLM",
     .embedder = "Qwen3Model",
     .type = "qwen3",
     .chat = "qwen3",
     .module = llama_modules,
     .qk_norm = true,
     .default_positions = 32768},
    {.name = "Qwen3MoeForCausalLM",
     .embedder = "Qwen3MoeModel",
     .type = "qwen3_moe",
     .chat = "qwen3",
     .module = llama_modules,
     .qk_norm = true,
     .experts = true,
     .default_positions = 32768},
    {.name = "LlamaForCausalLM",
     .embedder = "LlamaModel",
     .type = "llama",
     .module = llama_modules,
     .default_positions = 2048},
    {.name = "MistralForCausalLM",
     .embedder = "MistralModel",
     .type = "mistral",
     .module = llama_modules,
     .sliding_window = true,
     .default_positions = 131072},
    {.name = "SeedOssForCausalLM",
     .embedder = "SeedOssModel",
     .type = "seed_oss",
     .module = llama_modules,
     .qkv_bias = true,
     .default_positions = 524288},
};

const struct arch *arch_row(int i) { return i >= 0 && i < (int)ARRAY_LEN(rows) ? &rows[i] : NULL; }

const struct arch *arch_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct arch *a = &rows[i];
        if (strcmp(name, a->name) == 0 || strcmp(name, a->embedder) == 0 || strcmp(name, a->type) == 0) return a;
    }
    return NULL;
}

void arch_list(const char *last, struct str *out) {
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        str_addf(out, "%s%s", i == 0 ? "" : i + 1 < ARRAY_LEN(rows) ? ", " : last, rows[i].name);
}

void arch_expert_tensor(const struct arch *a, enum arch_module at, int layer, int64_t expert, const char *what,
                        struct str *out) {
    const long long number[] = {layer, expert};
    const char *name = a->module[at];
    for (size_t i = 0; *name; i++) {
        const size_t front = strcspn(name, "*");
        str_add(out, name, front);
        name += front;
        if (!*name) break;
        ASSERT(i < ARRAY_LEN(number));
        str_addf(out, "%lld", number[i]);
        name++;
    }
    str_addf(out, ".%s", what);
}

void arch_tensor(const struct arch *a, enum arch_module at, int layer, const char *what, struct str *out) {
    arch_expert_tensor(a, at, layer, 0, what, out);
}

void arch_fused_experts(const struct arch *a, enum arch_module at, int layer, struct str *out) {
    const char *name = a->module[at], *dot = strrchr(name, '.');
    const size_t front = strcspn(name, "*"), second = front + 1 + strcspn(name + front + 1, "*");
    str_add(out, name, front);
    str_addf(out, "%d", layer);
    str_add(out, name + front + 1, second - front - 1); /* ".mlp.experts." */
    str_adds(out, at == MODULE_EXPERT_DOWN ? dot + 1 : "gate_up_proj");
}

const char *arch_short_name(const struct arch *a, enum arch_module at) {
    const char *dot = strrchr(a->module[at], '.');
    return dot ? dot + 1 : a->module[at];
}

int arch_layer(const struct arch *a, const char *tensor) {
    const char *layers = a->module[MODULE_Q]; /* All modules of a layer have the same words in front of its number. */
    const size_t front = strcspn(layers, "*");
    if (strncmp(tensor, layers, front) != 0) return -1;
    int layer = -1;
    for (const char *p = tensor + front; *p >= '0' && *p <= '9' && layer < 1000000; p++)
        layer = (layer < 0 ? 0 : 10 * layer) + (*p - '0');
    return layer;
}
