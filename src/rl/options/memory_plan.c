#include "rl/options/memory_plan.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "model/model.h"
#include "train/step.h"
#include "verify/verify.h"

/* A prompt that is not limited is taken to have as many tokens. */
enum { PROMPT = 2048 };
#define GIB (1.0 / (1 << 30))

int64_t plan_total(const struct train_plan *p) {
    return p->weights + p->reference + p->trained + p->moments + p->sampling + p->scratch + p->library + p->verifier +
           p->kv + p->activations;
}

int64_t plan_asked(const struct train_plan *p) { return plan_total(p) - p->library - p->verifier; }

static int64_t blocks_of(int64_t tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

/* Everything that lives on paper. Rank 0 of several knows how many there are, and speaks with none. */
struct sketch {
    struct backend *be;
    struct model *m, *reference;
    struct comm comm;
    struct trainer *trainer;
    struct kv_cache *kv;
    int32_t *ids, *rows;
    float *logp, *g, *logits;
    struct step_want *want;
    struct step_drawn *drawn;
};

static void sketch_close(struct sketch *s) {
    if (s->kv) kv_free(s->kv);
    trainer_close(s->trainer);
    model_free(s->m);
    model_free(s->reference);
    s->be->close(s->be);
    free(s->ids);
    free(s->rows);
    free(s->logp);
    free(s->g);
    free(s->logits);
    free(s->want);
    free(s->drawn);
}

/* The first sequence is fed all but the last token of the longest answer. Then fewer and fewer answers that all begin
 * so draw their last one: the sizes of steps that a run records, over as many keys as there ever are. */
static enum status sketch_decode(struct sketch *s, const struct train_plan *p, struct err *e) {
    int seq[ENGINE_BATCH_GPU], n[ENGINE_BATCH_GPU];
    s->want = xcalloc((size_t)p->answers, sizeof *s->want);
    s->drawn = xcalloc((size_t)p->answers, sizeof *s->drawn);
    for (int64_t past = 0; past + 1 < p->context; past += n[0]) {
        n[0] = (int)i64_min(ENGINE_PREFILL, p->context - 1 - past);
        TRY(model_step(s->m, s->kv, 1, &(int){0}, n, s->ids, s->logits, e));
    }
    for (int i = 0; i < (int)p->answers; i++) {
        seq[i] = i + 1;
        n[i] = 1;
        s->want[i] = (struct step_want){.what = STEP_DRAW};
    }
    for (int count = (int)p->answers; count > 0 && model_can_draw(s->m); count--) {
        for (int i = 0; i < count; i++) kv_share(s->kv, seq[i], 0);
        TRY(model_step_draw(s->m, s->kv, count, seq, n, s->ids, s->want, model_cfg(s->m)->V, s->drawn, s->logits, e));
    }
    return ST_OK;
}

/* A sampling step of as many rows as the engine ever asks for, then what answers need at their end. */
static enum status sketch_step(struct sketch *s, const struct train_plan *p, int64_t *bytes, struct err *e) {
    const struct model_config *c = model_cfg(s->m);
    const int count = (int)p->answers;
    int seq[ENGINE_BATCH_GPU], n[ENGINE_BATCH_GPU];
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        seq[i] = i;
        n[i] = i == 0 ? (int)i64_min(i64_min(ENGINE_PREFILL, c->max_positions), p->prompts) : 1;
        total += n[i];
    }
    s->ids = xcalloc((size_t)i64_max(total, i64_max(ENGINE_PREFILL, p->rows)), sizeof *s->ids);
    s->logits = xmalloc((size_t)(count * c->V) * sizeof *s->logits);
    TRY(kv_create(s->m, count + 1, c->max_positions, blocks_of(i64_max(ENGINE_PREFILL, p->context)) + count, &s->kv,
                  e));
    const int64_t before = paper_bytes(s->be);
    TRY(model_step(s->m, s->kv, count, seq, n, s->ids, s->logits, e));
    for (int i = 0; i < count; i++) kv_reset(s->kv, i);
    TRY(sketch_decode(s, p, e));
    *bytes = paper_bytes(s->be) - before;
    kv_free(s->kv);
    s->kv = NULL;
    return ST_OK;
}

/* A micro-batch forward and backward, for what ops take; its own activations are not counted. */
static enum status sketch_train(struct sketch *s, const struct train_plan *p, int64_t *scratch, struct err *e) {
    const int64_t longest = model_cfg(s->m)->max_positions, T = p->rows;
    const int n_seg = (int)((T + longest - 1) / longest);
    struct segment *seg = xcalloc((size_t)n_seg, sizeof *seg);
    s->rows = xcalloc((size_t)T, sizeof *s->rows);
    s->logp = xcalloc((size_t)T, sizeof *s->logp);
    s->g = xcalloc((size_t)T, sizeof *s->g);
    for (int i = 0; i < n_seg; i++) seg[i] = (struct segment){i * longest, i64_min(longest, T - i * longest), -1, 0};
    const struct train_batch batch = {s->ids, T, seg, n_seg, s->rows, s->ids, T, false};
    enum status st = model_forward(s->m, &batch, s->logp, NULL, NULL, e);
    if (st == ST_OK) st = model_backward(s->m, &batch, s->g, e);
    (void)model_grad_norm(s->m);
    *scratch = paper_scratch_bytes(s->be);
    free(seg);
    return st;
}

/* Ranks of the run: those that a launcher has started, or that `train` will start. */
static int ranks_of(const struct train_options *o) {
    const struct comm_launch l = comm_launched();
    if (strcmp(o->ranks, "self") == 0) return 1;
    return l.size > 1 ? l.size : (int)i64_max(1, o->gpus);
}

static enum status measure(const struct train_options *o, const char *config, struct sketch *s, struct train_plan *p,
                           struct err *e) {
    const bool lora = o->lora_rank > 0;
    struct model_options mo = {
        .dtype = dtype_names[o->dtype], .base_dtype = base_dtype_names[o->base_dtype], .frozen = lora, .empty = true};
    mo.activation_memory = INT64_MAX / 2;
    TRY(model_init(config, 0, &mo, s->be, &s->m, e));
    p->weights = paper_bytes(s->be);
    if (o->update.loss.kl_coef > 0 && !lora) {
        mo.frozen = true;
        TRY(model_init(config, 0, &mo, s->be, &s->reference, e));
        p->reference = paper_bytes(s->be) - p->weights;
    }
    int64_t before = paper_bytes(s->be);
    const struct adapter_shape shape = {.rank = (int)o->lora_rank, .alpha = 1, .expert_rank = (int)o->lora_expert_rank};
    if (lora) TRY(model_lora_create(s->m, &shape, 0, e));
    /* The reference is another adapter then: the one a run goes on from, or none. */
    if (o->update.loss.kl_coef > 0 && lora && o->load_checkpoint_path && *o->load_checkpoint_path)
        p->reference = paper_bytes(s->be) - before;
    s->comm = (struct comm){.size = ranks_of(o)};
    s->be->peers = s->comm.size; /* devices that reach each other need room for what arrives */
    TRY(trainer_prepare(&s->comm, s->m, lora, e));
    p->trained = paper_bytes(s->be) - before;
    before += p->trained;
    TRY(trainer_open(&s->comm, s->m, ADAPTER_OWN, 1, &s->trainer, e));
    p->moments = paper_bytes(s->be) - before;

    const struct model_config *c = model_cfg(s->m);
    const int64_t prompt = o->actor.prompt_tokens > 0 ? o->actor.prompt_tokens : PROMPT;
    p->context = i64_min(c->max_positions, prompt + o->rollout.max_tokens);
    /* No more than a step has: every answer of every turn. */
    const int64_t turns = train_options_turns(o),
                  answers = o->dataset_builder.batch_size * turns * o->rollout.group_size;
    p->rows = i64_min(o->update.train_tokens,
                      answers * o->rollout.max_tokens + o->dataset_builder.batch_size * turns * prompt);
    p->rows = i64_max(p->rows, p->context);
    p->answers = i64_min(engine_batch_on(o->device), o->dataset_builder.batch_size * o->rollout.group_size);
    p->prompts =
        o->dataset_builder.batch_size * p->context; /* one that is given up and fed again has its answer, too */
    p->layers = c->L;
    TRY(sketch_step(s, p, &p->sampling, e));
    TRY(sketch_train(s, p, &p->scratch, e));
    /* The answers of a group share their prompt. */
    const int64_t groups = (p->answers + o->rollout.group_size - 1) / o->rollout.group_size;
    p->kv_least = blocks_of(p->context) * kv_block_bytes(s->m);
    p->kv_most =
        (groups * blocks_of(prompt) + p->answers * (blocks_of(o->rollout.max_tokens) + 1)) * kv_block_bytes(s->m);
    p->kv_most = i64_max(p->kv_most, p->kv_least);
    p->kv_wanted = engine_kv_blocks(p->answers, p->context - 1, o->dataset_builder.batch_size * blocks_of(prompt)) *
                   kv_block_bytes(s->m);
    p->kv_wanted = i64_max(p->kv_wanted, p->kv_most);
    p->activations_most = model_activation_bytes(s->m, p->rows, p->rows, 0);
    p->activations_least = i64_min(p->activations_most, model_activation_bytes(s->m, p->rows, p->rows, c->L));
    return ST_OK;
}

/* Half of what is left beyond the least goes to keys and values, as far as they need it, then all to activations. */
static void choose(const struct train_options *o, struct sketch *s, int64_t left, struct train_plan *p) {
    int64_t most = i64_max(p->kv_least, o->kv_memory > 0 ? i64_min(o->kv_memory, p->kv_most) : p->kv_most);
    const int64_t spare = left - p->kv_least - p->activations_least;
    p->kv = i64_min(most, p->kv_least + spare / 2);
    p->activation_budget = left - p->kv;
    if (p->activation_budget > p->activations_most) { /* they cannot use it all */
        p->kv = i64_min(most, left - p->activations_most);
        p->activation_budget = left - p->kv;
    }
    const int64_t unused = i64_max(0, p->activation_budget - p->activations_most);
    p->kv_budget = o->kv_memory > 0 ? i64_max(o->kv_memory, p->kv_least) : p->kv + unused / 2;
    p->activation_budget = left - i64_max(p->kv, i64_min(p->kv_budget, p->kv + unused / 2));
    p->kv = i64_min(p->kv_budget, p->kv_wanted);
    if (o->activation_memory > 0) p->activation_budget = i64_min(p->activation_budget, o->activation_memory);
    int shared = 0;
    p->activations = p->activations_most;
    while (p->activations > p->activation_budget && shared < p->layers) {
        shared += shared ? 1 : 2; /* one that shares with nobody saves nothing */
        p->activations = model_activation_bytes(s->m, p->rows, p->rows, (int)i64_min(shared, p->layers));
    }
    p->recomputed = shared ? (int)i64_min(shared, p->layers) - 1 : 0;
}

/* Whether answers run on the device that the model is on. */
static bool shares_device(const struct train_options *o) {
    const struct backend_info *backend = backend_info(o->verify.backend);
    const char *at = o->verify.device;
    if (strcmp(o->device, "cpu") == 0 || backend->on_cpu) return false;
    if (!at || !*at) return true;
    const int64_t mine = o->device[4] ? strtol(o->device + 5, NULL, 10) : 0;
    return strncmp(at, "cuda", 4) == 0 && (at[4] ? strtol(at + 5, NULL, 10) : 0) == mine;
}

enum status train_plan(const struct train_options *o, const char *config_json, const struct paper *device,
                       struct train_plan *out, struct err *e) {
    *out = (struct train_plan){.available = device->bytes};
    struct paper endless = *device;
    endless.bytes = 0;
    struct sketch s = {.be = paper_open(&endless)};
    enum status st = measure(o, config_json, &s, out, e);
    if (st == ST_OK) {
        if (strcmp(o->device, "cpu") != 0) out->library = PLAN_LIBRARY;
        if (shares_device(o)) out->verifier = PLAN_VERIFIER;
        const int64_t fixed = plan_total(out); /* nothing is chosen yet */
        const int64_t left = (device->bytes > 0 ? device->bytes : INT64_MAX / 2) - fixed,
                      least = out->kv_least + out->activations_least;
        choose(o, &s, i64_max(left, least), out);
        if (left < least)
            st = FAIL(e, ST_MEMORY,
                      "training needs at least %.1f GiB of device memory, of which %.1f GiB are free: weights %.1f, "
                      "trained parameters and moments %.1f, activations of %lld rows with every layer computed again "
                      "%.1f, keys and values of one answer %.1f, sampling %.1f, scratch and libraries %.1f, verifier "
                      "%.1f; smaller train_tokens, max_tokens or lora_rank need less",
                      (double)(fixed + least) * GIB, (double)device->bytes * GIB,
                      (double)(out->weights + out->reference) * GIB, (double)(out->trained + out->moments) * GIB,
                      (long long)out->rows, (double)out->activations_least * GIB, (double)out->kv_least * GIB,
                      (double)out->sampling * GIB, (double)(out->scratch + out->library) * GIB,
                      (double)out->verifier * GIB);
    }
    sketch_close(&s);
    return st;
}

static void row(struct str *out, const char *what, int64_t bytes) {
    if (bytes > 0) str_addf(out, "%-44s %9.2f GiB\n", what, (double)bytes * GIB);
}

void train_plan_table(const struct train_plan *p, struct str *out) {
    row(out, "weights", p->weights);
    row(out, "the reference model's", p->reference);
    row(out, "trained parameters and gradients", p->trained);
    row(out, "the optimizer's moments and the sum of the gradients", p->moments);
    row(out, "sampling step", p->sampling);
    row(out, "ops' scratch", p->scratch);
    row(out, "libraries", p->library);
    row(out, "verifier", p->verifier);
    row(out, "keys and values", p->kv);
    row(out, "activations", p->activations);
    str_addf(out, "%-44s %9.2f GiB", "together", (double)plan_total(p) * GIB);
    if (p->available > 0) str_addf(out, " of %.2f", (double)p->available * GIB);
    str_addf(out,
             "\n%lld rows a micro-batch, %d of %d layers computed again (activations %.2f to %.2f GiB); %lld answers "
             "of %lld tokens with their prompt (keys and values %.2f to %.2f GiB)\n",
             (long long)p->rows, p->recomputed, p->layers, (double)p->activations_least * GIB,
             (double)p->activations_most * GIB, (long long)p->answers, (long long)p->context, (double)p->kv_least * GIB,
             (double)p->kv_most * GIB);
}

void train_plan_line(const struct train_plan *p, struct str *out) {
    str_addf(out,
             "device memory: %.1f of %.1f GiB: weights %.1f, trained and moments %.1f, keys and values %.1f, "
             "activations %.1f (%d of %d layers computed again)",
             (double)plan_total(p) * GIB, (double)p->available * GIB, (double)(p->weights + p->reference) * GIB,
             (double)(p->trained + p->moments) * GIB, (double)p->kv * GIB, (double)p->activations * GIB, p->recomputed,
             p->layers);
}
