/* policy: a model that can be asked. Owns what it takes to open one: its folder, tokenizer and chat style, the device,
 * the weights with an adapter or without, and the engine that samples. Knows neither problems nor rewards. A caller
 * that needs everything calls policy_open(); one that plans the device's memory in between, or needs no engine, calls
 * its three parts. */
#ifndef KERNELRL_POLICY_POLICY_H
#define KERNELRL_POLICY_POLICY_H

#include "engine/engine.h"
#include "io/hub.h"
#include "text/chat.h"

struct pool;

/* What is named: a folder, also one of the installation ("models/tiny"), or a name on a Hub (find_model.h). */
struct policy_source {
    const char *key; /* where the name came from, for messages: "--model" */
    const char *name;
    const char *revision; /* NULL or "": main */
    enum hub_kind kind;   /* what is wanted of it, see struct policy_options */
};
struct policy_random {  /* weights that are drawn */
    const char *config; /* path of the config.json that has their shape */
    uint64_t seed;
};
struct policy_lora { /* a new adapter, the model's own; rank 0: none */
    int rank;
    float alpha;
    uint64_t seed;
    unsigned parts;  /* as in struct adapter_shape; 0: attention and MLP */
    int expert_rank; /* as there */
};
struct policy_options {
    enum expert_files expert_files; /* as model_expert_files takes it; auto is of every model */
    /* HUB_MODEL: all of it. HUB_TOKENIZER: the tokenizer alone; the weights are `random`. HUB_PROMPT: no weights, for
     * who only makes prompts: the model has a shape and computes nothing, and no device and no engine are opened. */
    struct policy_source model;
    /* What the policy begins with; name NULL or "": the model as it is. HUB_ADAPTER: a PEFT adapter. HUB_CHECKPOINT:
     * that, or full weights. */
    struct policy_source start;
    struct policy_random random;
    const char *device; /* cpu, cuda, cuda:N */
    struct pool *pool;  /* borrowed; NULL: the policy's own, one thread for each CPU */
    struct model_options weights;
    struct policy_lora lora;
    const char *style; /* a name of text/chat.h; NULL or "": the model's own */
    bool thinking;     /* of the model's own styles the one in which it thinks */
    bool no_chat;      /* true: a model whose chat template is not known, or that has none, is opened all the same */
    /* The ids that the tokenizer lacks are left out, and token_bytes is set, in any case. */
    struct engine_options engine;
};

struct policy {
    char *folder;       /* of the model, where its tokenizer is */
    char *start;        /* of what it begins with, or NULL */
    bool start_adapter; /* true: that is an adapter */
    struct tokenizer *tok;
    enum chat_style style; /* N_CHAT_STYLES: none, and no_style says why */
    char *no_style;        /* or NULL */
    struct pool *pool, *own_pool;
    struct backend *be;
    struct model *model;
    struct engine *engine;
};

/* Opens all of it. ST_CONFIG: there is no such model, adapter or style; else as those that open the parts. What is
 * wrong with names, tokenizer, style or device is said before weights are read. After an error the policy is to be
 * closed, too. cancel ends a download; NULL: nothing does. */
enum status policy_open(const struct policy_options *o, const volatile bool *cancel, struct policy *p,
                        struct err *e) MUST_USE;
/* Its parts, in this order: all but weights and engine; the weights; the engine. */
enum status policy_begin(const struct policy_options *o, const volatile bool *cancel, struct policy *p,
                         struct err *e) MUST_USE;
enum status policy_load(const struct policy_options *o, struct policy *p, struct err *e) MUST_USE;
enum status policy_engine(const struct policy_options *o, struct policy *p, struct err *e) MUST_USE;
void policy_close(struct policy *p); /* zero is fine */

/* The weights that a policy that has begun begins with, once more: without gradients and not trained. The caller's. */
enum status policy_load_reference(const struct policy_options *o, const struct policy *p, struct model **out,
                                  struct err *e) MUST_USE;

#endif
