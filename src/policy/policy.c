#include "policy/policy.h"

#include <stdlib.h>

#include "base/fs.h"
#include "base/pool.h"
#include "base/str.h"
#include "model/arch.h"
#include "policy/find_model.h"
#include "tensor/backend.h"
#include "tensor/counting.h"
#include "text/chat_template.h"

static const char *token_bytes(void *ctx, int32_t id, size_t *n) { return tokenizer_bytes(ctx, id, n); }

static enum status find(const struct policy_source *s, const volatile bool *cancel, char **folder, struct err *e) {
    return locate(s->key, s->kind, s->name, s->revision, cancel, folder, e);
}

static enum status find_start(const struct policy_source *s, const volatile bool *cancel, struct policy *p,
                              struct err *e) {
    if (!s->name || !*s->name) return ST_OK;
    CLEANUP_STR struct str adapter = STR_INIT;
    TRY(find(s, cancel, &p->start, e));
    str_addf(&adapter, "%s/adapter_config.json", p->start);
    p->start_adapter = s->kind == HUB_ADAPTER || fs_is_file(adapter.p);
    return ST_OK;
}

/* The config.json that the shape of the model comes from. */
static void config_path(const struct policy_options *o, const struct policy *p, struct str *out) {
    if (o->model.kind == HUB_TOKENIZER)
        str_adds(out, o->random.config);
    else
        str_addf(out, "%s/config.json", p->folder);
}

/* How conversations are rendered. A style that was asked for must be there; one that is not may be missing. */
static enum status choose_style(const struct policy_options *o, const char *otherwise, struct policy *p,
                                struct err *e) {
    const enum status st = chat_template_style(p->folder, o->style, otherwise, o->thinking, &p->style, e);
    if (st == ST_OK || !o->no_chat || (o->style && *o->style)) return st;
    p->style = N_CHAT_STYLES;
    p->no_style = xstrdup(e->msg);
    return ST_OK;
}

/* The device; for a shape one that holds nothing. */
static enum status open_device(const struct policy_options *o, struct policy *p, struct err *e) {
    if (o->model.kind == HUB_PROMPT) {
        p->be = paper_open(&(struct paper){0});
        return ST_OK;
    }
    if (!o->pool) p->own_pool = pool_create(0);
    p->pool = o->pool ? o->pool : p->own_pool;
    return backend_open(o->device, p->pool, &p->be, e);
}

enum status policy_begin(const struct policy_options *o, const volatile bool *cancel, struct policy *p, struct err *e) {
    CLEANUP_STR struct str config = STR_INIT;
    struct model_config c;
    ASSERT(o->model.kind == HUB_MODEL || o->model.kind == HUB_TOKENIZER || o->model.kind == HUB_PROMPT);
    *p = (struct policy){0};
    TRY(find(&o->model, cancel, &p->folder, e));
    TRY(find_start(&o->start, cancel, p, e));
    config_path(o, p, &config);
    TRY(model_config_read(config.p, &c, e));
    TRY(choose_style(o, c.arch->chat, p, e));
    TRY(tokenizer_open(p->folder, &p->tok, e));
    if (tokenizer_vocab(p->tok) > c.V)
        return FAIL(e, ST_INVALID, "%s: the tokenizer has %d ids, the model %d rows", p->folder,
                    tokenizer_vocab(p->tok), c.V);
    return open_device(o, p, e);
}

static enum status load(const struct policy_options *o, const struct policy *p, bool frozen, struct model **out,
                        struct err *e) {
    CLEANUP_STR struct str config = STR_INIT;
    const bool full = p->start && !p->start_adapter;
    struct model_options mo = o->weights;
    mo.frozen |= frozen;
    if (o->model.kind != HUB_MODEL && !full) {
        mo.empty = o->model.kind == HUB_PROMPT;
        config_path(o, p, &config);
        return model_init(config.p, o->random.seed, &mo, p->be, out, e);
    }
    TRY(model_load(full ? p->start : p->folder, &mo, p->be, out, e));
    model_set_name(*out, full ? o->start.name : o->model.name);
    return ST_OK;
}

static enum status load_own(const struct policy_options *o, const struct policy *p, struct err *e) {
    if (p->start_adapter) return model_lora_load(p->model, p->start, e);
    const struct adapter_shape shape = {o->lora.rank, o->lora.alpha, o->lora.parts, o->lora.expert_rank};
    return shape.rank > 0 ? model_lora_create(p->model, &shape, o->lora.seed, e) : ST_OK;
}

enum status policy_load(const struct policy_options *o, struct policy *p, struct err *e) {
    TRY(load(o, p, false, &p->model, e));
    TRY(load_own(o, p, e));
    return model_expert_files(p->model, o->expert_files, e);
}

enum status policy_load_reference(const struct policy_options *o, const struct policy *p, struct model **out,
                                  struct err *e) {
    return load(o, p, true, out, e);
}

enum status policy_engine(const struct policy_options *o, struct policy *p, struct err *e) {
    ASSERT(o->model.kind != HUB_PROMPT); /* there is nothing to sample from */
    struct engine_options eo = o->engine;
    eo.vocab_limit = tokenizer_vocab(p->tok);
    eo.token_bytes = token_bytes;
    eo.token_ctx = p->tok;
    return engine_open(p->model, &eo, &p->engine, e);
}

enum status policy_open(const struct policy_options *o, const volatile bool *cancel, struct policy *p, struct err *e) {
    TRY(policy_begin(o, cancel, p, e));
    TRY(policy_load(o, p, e));
    return policy_engine(o, p, e);
}

void policy_close(struct policy *p) {
    engine_close(p->engine);
    if (p->tok) tokenizer_close(p->tok);
    model_free(p->model);
    if (p->be) p->be->close(p->be);
    pool_destroy(p->own_pool);
    free(p->folder);
    free(p->start);
    free(p->no_style);
    *p = (struct policy){0};
}
