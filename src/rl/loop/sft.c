#include "rl/loop/sft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "policy/policy.h"
#include "rl/learn/update.h"
#include "rl/loop/follow.h"
#include "rl/run/run.h"
#include "text/chat.h"
#include "train/adamw.h"
#include "train/follow.h"

enum { ROW_MAX_BYTES = 4 << 20 };

void sft_encode_completion(struct tokenizer *t, enum chat_style style, const char *text, size_t n, struct ids *out) {
    static const char *const marks[] = {"<think>", "</think>"};
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '<') continue;
        for (size_t k = 0; k < ARRAY_LEN(marks); k++) {
            size_t m = strlen(marks[k]);
            int32_t id = tokenizer_id(t, marks[k]);
            if (id < 0 || n - i < m || memcmp(text + i, marks[k], m) != 0) continue;
            tokenizer_encode(t, text + begin, i - begin, false, out);
            ids_add(out, id);
            begin = i + m;
            i += m - 1;
            break;
        }
    }
    tokenizer_encode(t, text + begin, n - begin, false, out);
    const int32_t end = chat_end_of_turn(style, t);
    if (end >= 0) ids_add(out, end);
}

/* ---- rows -> groups -----------------------------------------------------------------------------------------------*/

struct row { /* a prompt and the answer behind it */
    int32_t *ids;
    int64_t prompt, n; /* tokens of the prompt, and in all */
};
struct dataset {
    struct row *row;
    int64_t rows, cap, too_long, tokens;
    /* Rows [first[i], first[i + 1]) follow one another and have the same prompt: a group. */
    int64_t *first;
    int n, cap_n;
    int64_t longest; /* row */
};

static void dataset_free(struct dataset *d) {
    for (int64_t i = 0; i < d->rows; i++) free(d->row[i].ids);
    free(d->row);
    free(d->first);
    *d = (struct dataset){0};
}

static void add_row(struct dataset *d, const struct ids *prompt, const struct ids *completion) {
    const int64_t n = (int64_t)prompt->len, all = n + (int64_t)completion->len;
    const struct row *last = d->rows > 0 ? &d->row[d->rows - 1] : NULL;
    if (!last || last->prompt != n || memcmp(last->ids, prompt->p, prompt->len * sizeof *prompt->p) != 0) {
        if (d->n + 2 > d->cap_n) {
            d->cap_n = d->cap_n ? 2 * d->cap_n : 1024;
            d->first = xrealloc(d->first, (size_t)d->cap_n * sizeof *d->first);
        }
        d->first[d->n++] = d->rows;
    }
    if (d->rows == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 1024;
        d->row = xrealloc(d->row, (size_t)d->cap * sizeof *d->row);
    }
    struct row *r = &d->row[d->rows++];
    *r = (struct row){.ids = xmalloc((size_t)all * sizeof *r->ids), .prompt = n, .n = all};
    memcpy(r->ids, prompt->p, prompt->len * sizeof *r->ids);
    memcpy(r->ids + n, completion->p, completion->len * sizeof *r->ids);
    d->first[d->n] = d->rows;
    d->tokens += all - n;
    d->longest = i64_max(d->longest, all);
}

/* "prompt" is the user's message or a list of {role, content}; "completion" the assistant's; optional "renderer". */
static enum status read_row(const json_t *row, const char *where, struct tokenizer *tok, enum chat_style style,
                            int64_t max_length, struct dataset *d, struct err *e) {
    const char *completion, *renderer = NULL;
    TRY(js_get_str(row, where, "completion", &completion, e));
    TRY(js_opt_str(row, where, "renderer", &renderer, e));
    if (renderer && chat_style_parse(renderer, &style, e) != ST_OK) return err_note(e, "%s", where);
    struct chat_message messages[64];
    size_t n = 0;
    const json_t *prompt = json_object_get(row, "prompt");
    if (json_is_string(prompt)) {
        messages[n++] = (struct chat_message){.role = "user", .content = json_string_value(prompt)};
    } else if (json_is_array(prompt) && json_array_size(prompt) <= ARRAY_LEN(messages)) {
        for (size_t i = 0; i < json_array_size(prompt); i++, n++) {
            const json_t *m = json_array_get(prompt, i);
            messages[n] = (struct chat_message){0};
            TRY(js_get_str(m, where, "role", &messages[n].role, e));
            TRY(js_get_str(m, where, "content", &messages[n].content, e));
        }
    } else {
        return FAIL(e, ST_PARSE, "%s: prompt: expected a string or a list of at most %zu messages", where,
                    ARRAY_LEN(messages));
    }
    struct ids p = {0}, c = {0};
    chat_encode(tok, style, messages, n, CHAT_GENERATE, &p);
    sft_encode_completion(tok, style, completion, strlen(completion), &c);
    if (p.len > 0 && c.len > 0 && (int64_t)(p.len + c.len) <= max_length)
        add_row(d, &p, &c);
    else
        d->too_long++;
    ids_free(&p);
    ids_free(&c);
    return ST_OK;
}

static enum status load_dataset(const char *path, struct tokenizer *tok, enum chat_style style, int64_t max_length,
                                struct dataset *d, struct err *e) {
    *d = (struct dataset){0};
    struct jsonl_reader *r;
    TRY(jsonl_open(path, ROW_MAX_BYTES, &r, e));
    enum status st;
    for (;;) {
        const char *line;
        size_t n;
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        char where[4200];
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(r));
        CLEANUP_JSON json_t *row = NULL;
        if ((st = js_parse(line, n, where, &row, e)) != ST_OK) break;
        if ((st = read_row(row, where, tok, style, max_length, d, e)) != ST_OK) break;
    }
    jsonl_close(r);
    if (st == ST_OK && d->n == 0)
        st = FAIL(e, ST_INVALID, "%s: no row fits max_length %lld", path, (long long)max_length);
    if (st != ST_OK) dataset_free(d);
    return st;
}

/* ---- training -----------------------------------------------------------------------------------------------------*/

struct sft {
    const struct sft_options *o;
    struct pool *pool;
    struct policy policy;
    char *state_dir;
    int lock_fd; /* of the output: two that train into it would mix */
    struct comm *comm;
    struct trainer *trainer;
    struct dataset data, valid;
    int64_t step, steps, opt_step, groups_per_step;
    float *ones, *prompt_weights; /* [longest row]: weights of answers and of prompts */
};

static double learning_rate(const struct sft_options *o, int64_t step, int64_t steps) {
    const double rate = o->update.adam.learning_rate;
    if (step < o->warmup_steps) return rate * (double)(step + 1) / (double)o->warmup_steps;
    double x = steps > o->warmup_steps ? (double)(step - o->warmup_steps) / (double)(steps - o->warmup_steps) : 1;
    double low = o->min_lr_ratio;
    return rate * (low + (1 - low) * 0.5 * (1 + cos(3.14159265358979 * fmin(1, x))));
}

/* A row's answer as a datum: its last token predicts nothing. */
static struct datum answer_of(const struct row *r, const float *weights, double scale) {
    return (struct datum){.ids = r->ids,
                          .n = r->n - 1,
                          .prompt = r->prompt,
                          .begin = r->prompt - 1,
                          .end = r->n - 1,
                          .targets = r->ids + r->prompt,
                          .weights = weights,
                          .scale = scale};
}
/* Its prompt as one. */
static struct datum prompt_of(const struct row *r, const float *weights, double scale) {
    return (struct datum){.ids = r->ids,
                          .n = r->prompt,
                          .prompt = r->prompt,
                          .begin = 0,
                          .end = r->prompt - 1,
                          .targets = r->ids + 1,
                          .weights = weights,
                          .scale = scale,
                          .likelihood = true};
}

/* The datums of one step, in the arena's memory: a window of groups_per_step groups in the shuffled order of the epoch,
 * of about batch_tokens rows on average. The loss is the mean over the answers' tokens. Returns their number. */
static int step_datums(const struct sft *s, int64_t step, struct arena *memory, struct datum **out) {
    const struct dataset *data = &s->data;
    const int64_t n = data->n;
    int64_t epoch = -1, tokens = 0, rows = 0;
    arena_reset(memory);
    int32_t *order = arena_array(memory, int32_t, n);
    int32_t *group = arena_array(memory, int32_t, s->groups_per_step);
    for (int64_t i = 0; i < s->groups_per_step; i++) {
        const int64_t at = step * s->groups_per_step + i;
        if (at / n != epoch) {
            epoch = at / n;
            for (int32_t k = 0; k < n; k++) order[k] = k;
            struct rng r = rng_make((uint64_t)s->o->seed, UINT64_C(0x736674) + (uint64_t)epoch);
            rng_shuffle(&r, order, (size_t)n, sizeof *order);
        }
        group[i] = order[at % n];
        rows += data->first[group[i] + 1] - data->first[group[i]];
        for (int64_t k = data->first[group[i]]; k < data->first[group[i] + 1]; k++)
            tokens += data->row[k].n - data->row[k].prompt;
    }
    struct datum *d = *out = arena_array(memory, struct datum, rows + s->groups_per_step);
    const double scale = 1.0 / (double)tokens;
    int count = 0;
    for (int64_t i = 0; i < s->groups_per_step; i++) {
        const struct row *first = &data->row[data->first[group[i]]];
        if (s->prompt_weights && first->prompt > 1) d[count++] = prompt_of(first, s->prompt_weights, scale);
        for (int64_t k = data->first[group[i]]; k < data->first[group[i] + 1]; k++)
            d[count++] = answer_of(&data->row[k], s->ones, scale);
    }
    return count;
}

/* Mean negative log-likelihood per completion token. */
static enum status validate(struct sft *s, double *nll, struct err *e) {
    const struct dataset *v = &s->valid;
    struct arena *memory = &s->trainer->datums;
    arena_reset(memory);
    struct datum *d = arena_array(memory, struct datum, v->rows);
    for (int64_t i = 0; i < v->rows; i++) {
        d[i] = answer_of(&v->row[i], NULL, 1);
        d[i].logp = arena_array(memory, float, d[i].end - d[i].begin);
    }
    TRY(train_forward(s->trainer, s->policy.model, ADAPTER_OWN, d, (int)v->rows, e));
    double sum = 0;
    for (int64_t i = 0; i < v->rows; i++)
        for (int64_t t = 0; t < d[i].end - d[i].begin; t++) sum -= (double)d[i].logp[t];
    *nll = sum / (double)v->tokens;
    return ST_OK;
}

static enum status save(struct sft *s, struct err *e) {
    TRY(train_gather_values(s->trainer, e));
    return checkpoint_replace(s->state_dir, s->step, s->opt_step, NULL, s->policy.model, s->o->lora_rank > 0, "f32",
                              s->trainer->opt, s->policy.folder, e);
}

/* An update failed before it changed anything (there is one a step): what was trained so far is kept. */
static void keep_state(struct sft *s, int64_t first_step) {
    char where[400];
    struct err e;
    if (s->step == first_step) return;
    enum status st = train_gather_values(s->trainer, &e);
    if (st == ST_OK && model_find_nonfinite(s->policy.model, ADAPTER_OWN, FIND_WEIGHTS, where, sizeof where)) return;
    if (st == ST_OK) st = save(s, &e);
    if (st != ST_OK) log_warn("the state before step %lld could not be saved: %s", (long long)s->step + 1, e.msg);
}

/* One optimizer step on one batch; its numbers. */
struct sft_step {
    struct train_stats sums;
    double grad_norm, learning_rate;
};
static enum status one_step(struct sft *s, struct sft_step *out, struct err *e) {
    const struct sft_options *o = s->o;
    const struct train_call call = {.loss.kind = LOSS_CROSS_ENTROPY, .step = s->opt_step};
    struct adamw_config adam = o->update.adam;
    struct datum *d;
    const int n = step_datums(s, s->step, &s->trainer->datums, &d);
    adam.learning_rate = learning_rate(o, s->step, s->steps);
    *out = (struct sft_step){.learning_rate = adam.learning_rate};
    TRY(train_accumulate(s->trainer, &call, d, n, &out->sums, e));
    TRY(train_optimizer_step(s->trainer, &adam, o->update.max_grad_norm, s->opt_step, &out->grad_norm, e));
    s->opt_step++;
    s->step++;
    return ST_OK;
}

static enum status train(struct sft *s, const volatile bool *cancel, struct err *e) {
    const struct sft_options *o = s->o;
    double start = clock_now_s(), loss = 0, last = start;
    int64_t first = s->step, rows = 0, count = 0;
    enum status st = ST_OK;
    while (s->step < s->steps && st == ST_OK) {
        if (cancel && *cancel) {
            if (s->step > first && (st = save(s, e)) != ST_OK) break;
            st = FAIL(e, ST_CANCELLED, "interrupted at step %lld of %lld; run again to go on", (long long)s->step,
                      (long long)s->steps);
            break;
        }
        if (o->stop_after_minutes > 0 && clock_now_s() - start > 60 * o->stop_after_minutes) break;
        struct sft_step u;
        if ((st = one_step(s, &u, e)) != ST_OK) {
            if (st != ST_LOST) keep_state(s, first);
            break;
        }
        loss += u.sums.loss.loss / (double)u.sums.loss.n;
        rows += u.sums.rows;
        count++;
        if (s->step % o->log_every == 0 || s->step == s->steps) {
            double now = clock_now_s();
            log_info("sft step %lld/%lld  loss %.4f  grad %.2f  lr %.2e  %.0f tok/s  %.0f s left", (long long)s->step,
                     (long long)s->steps, loss / (double)count, u.grad_norm, u.learning_rate,
                     (double)rows / (now - last),
                     (now - start) / (double)(s->step - first) * (double)(s->steps - s->step));
            loss = 0;
            rows = count = 0;
            last = now;
        }
        if (s->step % o->save_every == 0 && s->step < s->steps) {
            double nll;
            if (s->valid.n > 0 && (st = validate(s, &nll, e)) == ST_OK) log_info("valid loss %.4f", nll);
            if (st == ST_OK) st = save(s, e);
        }
    }
    if (st != ST_OK) return st;
    if (s->valid.n > 0) {
        double nll;
        TRY(validate(s, &nll, e));
        log_info("valid loss %.4f", nll);
    }
    if (s->step < s->steps) {
        log_info("stopping after %g minutes at step %lld of %lld; run again to go on", o->stop_after_minutes,
                 (long long)s->step, (long long)s->steps);
        return save(s, e);
    }
    static const char *const dtypes[] = {CHOICE_NAMES(SAVED_LIST)};
    TRY(train_gather_values(s->trainer, e));
    TRY(checkpoint_write(o->output, s->step, s->opt_step, NULL, s->policy.model, o->lora_rank > 0,
                         dtypes[o->save_dtype], NULL, s->policy.folder, e));
    TRY(fs_remove(s->state_dir, e));
    log_info("%s: done", o->output);
    return ST_OK;
}

static enum status open_model(struct sft *s, const volatile bool *cancel, struct err *e) {
    const struct sft_options *o = s->o;
    const bool lora = o->lora_rank > 0;
    struct policy_options po = {.model = {"model_name", o->model_name, o->model_revision, HUB_MODEL},
                                .device = o->device,
                                .pool = s->pool,
                                .weights = {.dtype = dtype_names[o->dtype],
                                            .base_dtype = base_dtype_names[o->base_dtype],
                                            .frozen = lora,
                                            .activation_memory = o->activation_memory},
                                .expert_files = (enum expert_files)o->lora_expert_files,
                                .lora = {.rank = (int)o->lora_rank,
                                         .alpha = (float)o->lora_alpha,
                                         .seed = (uint64_t)o->seed,
                                         .expert_rank = (int)o->lora_expert_rank},
                                .style = o->renderer_name};
    if (!o->model_name) { /* from nothing: a shape, the tokenizer of another model, random weights */
        if (!o->init_config || !o->tokenizer)
            return FAIL(e, ST_CONFIG, "sft: give model_name, or init_config and tokenizer to start from nothing");
        po.model = (struct policy_source){"tokenizer", o->tokenizer, NULL, HUB_TOKENIZER};
        po.random = (struct policy_random){o->init_config, (uint64_t)o->seed};
    }
    TRY(policy_begin(&po, cancel, &s->policy, e));
    return policy_load(&po, &s->policy, e);
}

static enum status open_data(struct sft *s, struct err *e) {
    const struct sft_options *o = s->o;
    const enum chat_style style = s->policy.style;
    const int64_t longest = i64_min(o->max_length, model_cfg(s->policy.model)->max_positions);
    TRY(load_dataset(o->data, s->policy.tok, style, longest, &s->data, e));
    if (o->valid) TRY(load_dataset(o->valid, s->policy.tok, style, longest, &s->valid, e));
    int64_t total = s->data.tokens; /* prompts once a group */
    for (int i = 0; i < s->data.n; i++) total += s->data.row[s->data.first[i]].prompt;
    s->ones = xmalloc((size_t)s->data.longest * sizeof *s->ones);
    for (int64_t i = 0; i < s->data.longest; i++) s->ones[i] = 1;
    if (o->prompt_loss_weight > 0) {
        s->prompt_weights = xmalloc((size_t)s->data.longest * sizeof *s->prompt_weights);
        for (int64_t i = 0; i < s->data.longest; i++) s->prompt_weights[i] = (float)o->prompt_loss_weight;
    }
    s->groups_per_step = i64_max(1, o->batch_tokens * s->data.n / total);
    s->steps = (s->data.n * o->num_epochs + s->groups_per_step - 1) / s->groups_per_step;
    if (o->max_steps > 0) s->steps = o->max_steps;
    log_info("%s: %lld rows under %d prompts, %lld completion tokens (%lld rows too long); %lld steps of %lld prompts",
             o->data, (long long)s->data.rows, s->data.n, (long long)s->data.tokens, (long long)s->data.too_long,
             (long long)s->steps, (long long)s->groups_per_step);
    return ST_OK;
}

/* The output holds a model that was trained to the end: training it again from nothing is hardly meant. */
static bool is_finished(const struct sft *s) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *state = NULL;
    struct err ignored;
    int64_t step;
    str_addf(&path, "%s/state.json", s->o->output);
    return fs_is_file(path.p) && js_load(path.p, 1 << 16, &state, &ignored) == ST_OK &&
           js_get_i64(state, path.p, "next_step", &step, &ignored) == ST_OK && step >= s->steps;
}

/* The ranks, and the trainer with them. */
static enum status open_trainer(struct sft *s, const char *resolved_yaml, struct err *e) {
    TRY(follow_open(s->o->ranks, s->o->peer_timeout, resolved_yaml, s->policy.be, &s->comm, e));
    enum status st = trainer_prepare(s->comm, s->policy.model, s->o->lora_rank > 0, e);
    if (st == ST_OK)
        st = trainer_open(s->comm, s->policy.model, ADAPTER_OWN, s->o->update.train_tokens, &s->trainer, e);
    return comm_agree(s->comm, st, e);
}

static void close_all(struct sft *s) {
    trainer_close(s->trainer);
    comm_close(s->comm);
    dataset_free(&s->data);
    dataset_free(&s->valid);
    free(s->ones);
    free(s->prompt_weights);
    policy_close(&s->policy);
    pool_destroy(s->pool);
    if (s->lock_fd >= 0) close(s->lock_fd);
    free(s->state_dir);
}

enum status sft_run(const struct sft_options *o, const char *resolved_yaml, const volatile bool *cancel,
                    struct err *e) {
    struct sft s = {.o = o, .lock_fd = -1};
    bool leads = false; /* true: the other ranks wait for commands */
    struct str state = STR_INIT, probe = STR_INIT;
    str_addf(&state, "%s/state", o->output);
    s.state_dir = str_steal(&state);
    str_addf(&probe, "%s/state.json", s.state_dir);
    enum status st;
    if (!*o->data) { /* said before a large model is loaded for nothing */
        st = FAIL(e, ST_CONFIG, "data: expected a .jsonl file of {prompt, completion} rows");
        goto out;
    }
    s.pool = pool_create((int)o->threads);
    TRY_GOTO(fs_mkdirs(o->output, e), out);
    TRY_GOTO(run_lock(o->output, &s.lock_fd, e), out);
    TRY_GOTO(open_model(&s, cancel, e), out);
    TRY_GOTO(open_data(&s, e), out);
    TRY_GOTO(open_trainer(&s, resolved_yaml, e), out);
    leads = true;
    TRY_GOTO(checkpoint_recover(s.state_dir, e), out);
    if (!fs_is_file(probe.p) && is_finished(&s)) {
        log_info("%s: already trained for %lld steps; remove it to start over", o->output, (long long)s.steps);
        goto out;
    }
    if (fs_is_file(probe.p)) {
        TRY_GOTO(
            checkpoint_read(s.state_dir, &s.step, &s.opt_step, s.policy.model, o->lora_rank > 0, s.trainer->opt, e),
            out);
        log_info("%s: going on from step %lld", o->output, (long long)s.step);
    }
    TRY_GOTO(train_share_state(s.trainer, e), out);
    int n;
    const struct param *params = model_params(s.policy.model, &n);
    TRY_GOTO(checkpoint_room(o->output, params, n, e), out);
    st = train(&s, cancel, e);
out:
    str_free(&probe);
    if (leads || (st == ST_LOST && s.comm)) follow_dismiss(s.comm, st);
    close_all(&s);
    return st;
}

enum status sft_follow(const struct sft_options *o, const char *resolved_yaml, struct err *e) {
    struct sft s = {.o = o, .lock_fd = -1};
    enum status st;
    follow_ignore_signals();
    s.pool = pool_create((int)o->threads);
    TRY_GOTO(open_model(&s, NULL, e), out);
    TRY_GOTO(open_trainer(&s, resolved_yaml, e), out);
    struct rank_sampler no_engine = {.comm = s.comm};
    st = ranks_follow(&no_engine, s.trainer, NULL, e);
out:
    if (st == ST_LOST && s.comm) {
        log_error("%s", e->msg);
        s.comm->abort(s.comm, COMM_LOST_EXIT);
    }
    close_all(&s);
    return st;
}
