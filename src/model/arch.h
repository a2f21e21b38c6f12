/* arch: what an architecture is, in one table: its names in config.json, what it computes that others do not, the names
 * of its tensors, and the family of its chat templates. The rest of the program asks the row.
 * A new architecture is a row here, the flags that its arithmetic needs, and a family in text/chat.h. */
#ifndef KERNELRL_ARCH_H
#define KERNELRL_ARCH_H

#include "base/str.h"

/* The modules that have tensors. LoRA's sites come first: the projections of a layer, those that read the same rows one
 * behind the other, and the head. */
enum arch_module {
    MODULE_Q,
    MODULE_K,
    MODULE_V,
    MODULE_O,
    MODULE_GATE,
    MODULE_UP,
    MODULE_DOWN,
    N_PROJECTIONS,
    MODULE_HEAD = N_PROJECTIONS,
    N_LORA_SITES,
    MODULE_EMBED = N_LORA_SITES,
    MODULE_LN1, /* in front of attention */
    MODULE_Q_NORM,
    MODULE_K_NORM,
    MODULE_LN2, /* in front of the MLP */
    MODULE_FINAL_NORM,
    MODULE_ROUTER, /* of a mixture of experts; each expert has one of each of the next three */
    MODULE_EXPERT_GATE,
    MODULE_EXPERT_UP,
    MODULE_EXPERT_DOWN,
    N_MODULES
};

struct arch {
    const char *name;     /* "Qwen3ForCausalLM": architectures in config.json, and the name in messages */
    const char *embedder; /* "Qwen3Model": the same without a head */
    const char *type;     /* "qwen3": model_type, for files without architectures */
    const char *chat;     /* the family of its chat templates (text/chat.h); NULL: none is known */
    const char *const
        *module;   /* [N_MODULES] names; * stands for the number of the layer, a second one for an expert's */
    bool qkv_bias; /* true: the projections q, k and v have a bias; a config.json that says otherwise is refused */
    bool qk_norm;  /* true: each head of q and k is normalised before the rotary embedding */
    bool experts;  /* true: layers may be mixtures of experts, as config.json says */
    /* true: a number at config.json's key sliding_window makes layers see a window of positions, and is refused when
     * the window is shorter than the context. false: the key says nothing by itself; use_sliding_window: true, which
     * every row refuses, would turn it on. */
    bool sliding_window;
    int32_t default_positions; /* max_position_embeddings, where config.json has none */
};

/* Row i of the table, from 0 on; NULL behind the last one. */
const struct arch *arch_row(int i);
/* The row that config.json means by any of the three names; NULL when there is none. */
const struct arch *arch_find(const char *name);
/* Appends the names of all rows: "A, B and C" where `last` is " and ". */
void arch_list(const char *last, struct str *out);
/* Appends the name of a module's tensor. With MODULE_Q, layer 3 and "weight" that is
 * "model.layers.3.self_attn.q_proj.weight". layer is not used for a module that lies in no layer. */
void arch_tensor(const struct arch *a, enum arch_module at, int layer, const char *what, struct str *out);
/* Like arch_tensor, for a module that each expert has (MODULE_EXPERT_*): the name holds the expert's number, too. */
void arch_expert_tensor(const struct arch *a, enum arch_module at, int layer, int64_t expert, const char *what,
                        struct str *out);
/* Appends the name of the tensor in which some checkpoints hold a module of all experts of a layer, one expert behind
 * the other: "model.layers.3.mlp.experts.down_proj" for MODULE_EXPERT_DOWN. MODULE_EXPERT_GATE and MODULE_EXPERT_UP
 * share "model.layers.3.mlp.experts.gate_up_proj", where each expert's gate lies in front of its up. */
void arch_fused_experts(const struct arch *a, enum arch_module at, int layer, struct str *out);
/* What PEFT calls a site of LoRA among target_modules: "q_proj", "lm_head". */
const char *arch_short_name(const struct arch *a, enum arch_module at);
/* The number of the layer in the name of a tensor of any module; -1 for a tensor of no layer. From a number above a
 * million only the leading digits are read, which is enough to be beyond every model's layers. */
int arch_layer(const struct arch *a, const char *tensor);

#endif
