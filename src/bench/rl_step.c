/* `kernelrl bench rlstep`: a step of reinforcement learning without its verdicts. The engine samples answers of a fixed
 * length to random prompts, and update_policy, which holds the trainer's log-probabilities to the sampler's, makes one
 * optimizer step of them with random advantages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "engine/engine.h"
#include "io/json.h"
#include "rl/learn/update.h"

struct rl_step {
    int prompts, answers;
    int64_t prompt_tokens, new_tokens;
    struct train_options o;
    struct sample_group *group; /* [prompts] */
    struct request *request;    /* [prompts] */
    struct sample *sample;      /* [prompts * answers] */
    int64_t opt_step;
};

static void rl_step_open(struct rl_step *s, const struct model_config *c) {
    const int n = s->prompts * s->answers;
    s->group = xcalloc((size_t)s->prompts, sizeof *s->group);
    s->request = xcalloc((size_t)s->prompts, sizeof *s->request);
    s->sample = xcalloc((size_t)n, sizeof *s->sample);
    for (int i = 0; i < s->prompts; i++) {
        struct rng r = rng_make(9, (uint64_t)i);
        struct sample_group *g = &s->group[i];
        int32_t *ids = xmalloc((size_t)s->prompt_tokens * sizeof *ids);
        for (int64_t t = 0; t < s->prompt_tokens; t++) ids[t] = (int32_t)rng_below(&r, (uint64_t)c->V);
        g->prompt = (struct ids){.p = ids, .len = (size_t)s->prompt_tokens, .cap = (size_t)s->prompt_tokens};
        g->n = s->answers;
        g->ep = xcalloc((size_t)s->answers, sizeof *g->ep);
        for (int j = 0; j < s->answers; j++) {
            g->ep[j].present = g->ep[j].has_return = true;
            g->ep[j].advantage = j % 2 ? -1 : 1;
        }
        s->request[i] = (struct request){.prompt = ids,
                                         .n_prompt = (int)s->prompt_tokens,
                                         .n_samples = s->answers,
                                         .id = (uint64_t)i,
                                         .params = {.temperature = 1, .top_p = 1, .max_tokens = (int)s->new_tokens}};
    }
}

static void rl_step_close(struct rl_step *s) {
    for (int i = 0; i < s->prompts; i++) {
        for (int j = 0; j < s->answers; j++) sample_free(&s->group[i].ep[j].sample);
        free(s->group[i].ep);
        free(s->group[i].prompt.p);
    }
    free(s->group);
    free(s->request);
    free(s->sample);
}

/* Where the user left it open, rows of a micro-batch, now that the cache is there: a prompt with all its answers, or
 * with half of them and so on, so that the device's memory holds what the backward pass asks for and nothing is
 * computed again. */
static void choose_rows(struct rl_step *s, struct model *m) {
    const int64_t room = model_backend(m)->mem_available(model_backend(m)), slack = room / 20;
    int n = s->answers;
    s->o.update.train_tokens = 1024;
    if (room == INT64_MAX) return;
    for (;; n = (n + 1) / 2) {
        s->o.update.train_tokens = s->prompt_tokens + n * (s->new_tokens - 1);
        if (n == 1 || model_activation_bytes(m, s->o.update.train_tokens, s->o.update.train_tokens, 0) <= room - slack)
            break;
    }
    model_limit_activations(m, room - slack);
}

/* One step with other random numbers than the last; times[0]: sampling, times[1]: the update. */
static enum status rl_step(struct rl_step *s, struct model *m, struct engine *en, struct trainer *t, uint64_t seed,
                           double times[2], struct err *e) {
    const double t0 = clock_now_s();
    struct update_stats stats;
    for (int i = 0; i < s->prompts; i++) s->request[i].params.seed = seed;
    TRY(engine_run(en, s->request, s->prompts, s->sample, NULL, NULL, e));
    for (int i = 0; i < s->prompts; i++)
        for (int j = 0; j < s->answers; j++) {
            struct episode *ep = &s->group[i].ep[j];
            sample_free(&ep->sample);
            ep->sample = s->sample[i * s->answers + j];
        }
    if (s->o.update.train_tokens == 0) choose_rows(s, m);
    const double t1 = clock_now_s();
    TRY(update_policy(t, NULL, &s->o, NULL, s->group, s->prompts, &s->opt_step, &stats, e));
    TRY(model_backend(m)->sync(model_backend(m), e));
    times[0] = t1 - t0;
    times[1] = clock_now_s() - t1;
    return ST_OK;
}

/* Sampling: a prefill of each prompt, then one step a token for all answers at once; training as in bench_train. */
static double limit_s(const struct bench *b, struct model *m, const struct rl_step *s) {
    const struct model_config *c = model_cfg(m);
    const double P = s->prompts, S = s->answers, p = (double)s->prompt_tokens, n = (double)s->new_tokens;
    const double keys = P * (p + S * n / 2); /* cached at a time, in the middle; prompts are shared */
    const double rows = P * (p + S * (n - 1)), pairs = P * (p * (p + 1) / 2 + S * ((n - 1) * p + (n - 1) * n / 2));
    int n_params;
    const struct param *param = model_params(m, &n_params);
    double trained = 0;
    for (int i = 0; i < n_params; i++) trained += (double)param[i].n;
    return bench_step_limit_s(b, m, P * p, P, P * p * (p + 1) / 2, 0) +
           (n - 1) * bench_step_limit_s(b, m, P * S, P * S, P * S * (p + n / 2), keys) +
           bench_train_flop(c, s->o.lora_rank == 0, rows, P * S * n, pairs) / b->limits.flop_s +
           28 * trained / b->limits.bytes_s;
}

static enum status measure(struct bench *b, struct model *m, struct rl_step *s, struct engine *en,
                           struct trainer *trainer, double *t, int repeat, struct err *e) {
    enum status st = ST_OK;
    for (int k = -1; st == ST_OK && k < repeat; k++) { /* one to warm up */
        double times[2];
        st = rl_step(s, m, en, trainer, (uint64_t)(k + 2), times, e);
        for (int part = 0; st == ST_OK && k >= 0 && part < 2; part++) t[part * repeat + k] = times[part];
        if (st == ST_OK && k >= 0) t[2 * repeat + k] = times[0] + times[1];
    }
    if (st != ST_OK) return st;
    const int64_t peak = b->be->mem_peak ? b->be->mem_peak(b->be) : 0;
    const enum dtype dt = strcmp(model_dtype(m), "bf16") == 0 ? DT_BF16 : DT_F32;
    if (!b->o->planned) TRY(bench_limits_raise(b, model_cfg(m), dt, e));
    const struct bench_times step = bench_times(t + 2 * repeat, repeat);
    const struct model_memory mem = model_memory(m);
    const double tokens = (double)s->prompts * s->answers * (double)s->new_tokens;
    struct str line = STR_INIT;
    char label[80];
    bench_line(b, "rlstep", model_dtype(m), &line);
    js_put_i64(&line, "batch", s->prompts);
    js_put_i64(&line, "answers", s->answers);
    js_put_i64(&line, "tokens", s->prompt_tokens);
    js_put_i64(&line, "new_tokens", s->new_tokens);
    js_put_i64(&line, "lora_rank", s->o.lora_rank);
    js_put_i64(&line, "train_tokens", s->o.update.train_tokens);
    js_put_f64(&line, "sample_s", bench_times(t, repeat).median);
    js_put_f64(&line, "update_s", bench_times(t + repeat, repeat).median);
    js_put_i64(&line, "kv_bytes", engine_stats(en).kv_bytes);
    js_put_i64(&line, "activation_bytes", mem.activation_bytes);
    js_put_i64(&line, "recomputed_layers", mem.recomputed_layers);
    if (b->o->planned) js_put_i64(&line, "device_planned_bytes", plan_asked(&b->plan));
    if (peak > 0) js_put_i64(&line, "device_peak_bytes", peak);
    snprintf(label, sizeof label, "%d x %d answers of %lld tokens", s->prompts, s->answers, (long long)s->new_tokens);
    bench_line_end(b, &line, label, &step, tokens / step.median, "token", b->o->planned ? 0 : limit_s(b, m, s));
    return ST_OK;
}

/* The keys of `train` that such a step would have. Released by config_free. */
static enum status step_keys(const struct bench_options *o, int prompts, struct config *c, struct train_options *out,
                             struct err *e) {
    CLEANUP_STR struct str dtype = STR_INIT;
    CLEANUP_STR struct str base = STR_INIT;
    str_addf(&dtype, "dtype=%s", o->dtype);
    str_addf(&base, "base_dtype=%s", o->base_dtype ? o->base_dtype : "auto");
    config_init(c, &train_schema, out);
    TRY(config_set(c, str_c(&dtype), e));
    TRY(config_set(c, str_c(&base), e));
    TRY(train_options_finish(c, out, e));
    out->device = o->device;
    out->lora_rank = o->full ? 0 : o->lora_rank;
    out->lora_expert_rank = o->full ? 0 : o->lora_expert_rank;
    out->rollout.max_tokens = (int)o->new_tokens;
    out->actor.prompt_tokens = o->tokens;
    out->dataset_builder.batch_size = prompts;
    out->rollout.group_size = o->answers;
    if (o->train_tokens > 0 || !o->planned) out->update.train_tokens = o->train_tokens;
    return ST_OK;
}

static int prompts_of(const struct bench_options *o) { return o->n_batch ? o->batch[0] : 8; }

enum status bench_rl_plan(struct bench *b, const char *config, struct err *e) {
    struct config keys;
    struct train_options o;
    const struct paper device = paper_of(b->be);
    enum status st = step_keys(b->o, prompts_of(b->o), &keys, &o, e);
    if (st == ST_OK) st = train_plan(&o, config, &device, &b->plan, e);
    config_free(&keys);
    return st;
}

enum status bench_rl_step(struct bench *b, struct model *m, struct err *e) {
    const struct bench_options *o = b->o;
    const struct model_config *c = model_cfg(m);
    const int repeat = o->repeat ? (int)o->repeat : 1;
    struct rl_step s = {
        .prompts = prompts_of(o), .answers = o->answers, .prompt_tokens = o->tokens, .new_tokens = o->new_tokens};
    if (o->fast)
        return FAIL(
            e, ST_USAGE,
            "bench rlstep: --numerics fast: the trainer's log-probabilities would not be the sampler's, and the "
            "step is refused then");
    if (o->n_batch > 1) return FAIL(e, ST_USAGE, "bench rlstep: --batch: expected one number of prompts");
    struct config keys;
    struct engine *en = NULL;
    struct comm *comm = NULL;
    struct trainer *trainer = NULL;
    enum status st;
    TRY_GOTO(step_keys(o, s.prompts, &keys, &s.o, e), out);
    if (o->planned) model_limit_activations(m, b->plan.activation_budget);
    if (!o->full) TRY_GOTO(bench_lora(b, m, e), out);
    TRY_GOTO(model_train_prepare(m, o->full ? TRAIN_FULL : TRAIN_LORA, e), out);
    TRY_GOTO(comm_open("self", NULL, &comm, e), out);
    TRY_GOTO(trainer_open(comm, m, ADAPTER_OWN, s.o.update.train_tokens, &trainer, e), out);
    struct engine_options eo = {.max_batch = s.prompts * s.answers};
    if (o->planned)
        eo = (struct engine_options){.max_batch = engine_batch_on(o->device), .memory_bytes = b->plan.kv_budget};
    TRY_GOTO(engine_open(m, &eo, &en, e), out);
    rl_step_open(&s, c);
    double *t = xcalloc((size_t)(3 * repeat), sizeof *t);
    bench_begin(b);
    st = o->planned ? ST_OK : bench_limits_raise(b, c, strcmp(model_dtype(m), "bf16") == 0 ? DT_BF16 : DT_F32, e);
    if (st == ST_OK) st = measure(b, m, &s, en, trainer, t, repeat, e);
    free(t);
    rl_step_close(&s);
out:
    engine_close(en);
    trainer_close(trainer);
    comm_close(comm);
    config_free(&keys);
    return st;
}
