#include "rl/loop/sft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "model/arch.h"
#include "rl/learn/update.h"
#include "rl/options/find_model.h"
#include "rl/run/run.h"
#include "tensor/backend.h"
#include "text/chat.h"
#include "train/adamw.h"

enum { ROW_MAX_BYTES = 4 << 20 };

void sft_encode_completion(struct tokenizer *t, const char *text, size_t n, struct ids *out) {
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
    int32_t end = tokenizer_id(t, "<|im_end|>");
    if (end >= 0) ids_add(out, end);
}

/* ---- rows -> groups -----------------------------------------------------------------------------------------------*/

struct dataset {
    struct sample_group *groups; /* one prompt each; advantages are the weights of the rows: 1 */
    int n, cap;
    int64_t rows, too_long, tokens;
};

static void dataset_free(struct dataset *d) {
    groups_free(d->groups, d->n);
    free(d->groups);
    *d = (struct dataset){0};
}

static void add_row(struct dataset *d, struct ids *prompt, const struct ids *completion) {
    struct sample_group *g = d->n > 0 ? &d->groups[d->n - 1] : NULL;
    if (!g || g->prompt.len != prompt->len || memcmp(g->prompt.p, prompt->p, prompt->len * sizeof *prompt->p) != 0) {
        if (d->n == d->cap) {
            d->cap = d->cap ? 2 * d->cap : 1024;
            d->groups = xrealloc(d->groups, (size_t)d->cap * sizeof *d->groups);
        }
        g = &d->groups[d->n++];
        *g = (struct sample_group){.prompt = *prompt};
        *prompt = (struct ids){0};
    }
    g->ep = xrealloc(g->ep, (size_t)(g->n + 1) * sizeof *g->ep);
    struct episode *ep = &g->ep[g->n++];
    *ep = (struct episode){.present = true, .advantage = 1, .sample = {.n = (int)completion->len, .stop = STOP_TOKEN}};
    ep->sample.ids = xmalloc(completion->len * sizeof *completion->p);
    memcpy(ep->sample.ids, completion->p, completion->len * sizeof *completion->p);
    d->rows++;
    d->tokens += (int64_t)completion->len;
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
        messages[n++] = (struct chat_message){"user", json_string_value(prompt)};
    } else if (json_is_array(prompt) && json_array_size(prompt) <= ARRAY_LEN(messages)) {
        for (size_t i = 0; i < json_array_size(prompt); i++, n++) {
            const json_t *m = json_array_get(prompt, i);
            TRY(js_get_str(m, where, "role", &messages[n].role, e));
            TRY(js_get_str(m, where, "content", &messages[n].content, e));
        }
    } else {
        return FAIL(e, ST_PARSE, "%s: prompt: expected a string or a list of at most %zu messages", where,
                    ARRAY_LEN(messages));
    }
    struct ids p = {0}, c = {0};
    chat_encode(tok, style, messages, n, true, &p);
    sft_encode_completion(tok, completion, strlen(completion), &c);
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
    struct backend *be;
    struct model *model;
    struct tokenizer *tok;
    char *tokenizer_dir, *state_dir;
    int lock_fd; /* of the output: two that train into it would mix */
    struct adamw *opt;
    struct dataset data, valid;
    int64_t step, steps, opt_step, groups_per_step;
    struct train_options now; /* the options of a step, for update_policy */
    struct update_space space;
};

static double learning_rate(const struct sft_options *o, int64_t step, int64_t steps) {
    const double rate = o->update.adam.learning_rate;
    if (step < o->warmup_steps) return rate * (double)(step + 1) / (double)o->warmup_steps;
    double x = steps > o->warmup_steps ? (double)(step - o->warmup_steps) / (double)(steps - o->warmup_steps) : 1;
    double low = o->min_lr_ratio;
    return rate * (low + (1 - low) * 0.5 * (1 + cos(3.14159265358979 * fmin(1, x))));
}

static int64_t group_size_rows(const struct sample_group *g) {
    int64_t n = (int64_t)g->prompt.len;
    for (int i = 0; i < g->n; i++) n += g->ep[i].sample.n;
    return n;
}

/* Groups of one step: a window into the shuffled order of the epoch, of about batch_tokens rows on average. */
static int step_groups(const struct sft *s, int64_t step, struct sample_group *out) {
    int64_t n = s->data.n, epoch = -1;
    int32_t *order = xmalloc((size_t)n * sizeof *order);
    for (int64_t i = 0; i < s->groups_per_step; i++) {
        int64_t at = step * s->groups_per_step + i;
        if (at / n != epoch) {
            epoch = at / n;
            for (int32_t k = 0; k < n; k++) order[k] = k;
            struct rng r = rng_make((uint64_t)s->o->seed, UINT64_C(0x736674) + (uint64_t)epoch);
            rng_shuffle(&r, order, (size_t)n, sizeof *order);
        }
        out[i] = s->data.groups[order[at % n]];
    }
    free(order);
    return (int)s->groups_per_step;
}

/* Mean negative log-likelihood per completion token. */
static enum status validate(struct sft *s, double *nll, struct err *e) {
    double sum = 0;
    int64_t tokens = 0;
    TRY(update_nll(s->model, &s->now, &s->space, s->valid.groups, s->valid.n, &sum, &tokens, e));
    *nll = sum / (double)tokens;
    return ST_OK;
}

static enum status save(struct sft *s, struct err *e) {
    return checkpoint_replace(s->state_dir, s->step, s->opt_step, NULL, s->model, s->o->lora_rank > 0, "f32", s->opt,
                              s->tokenizer_dir, e);
}

/* An update failed before it changed anything (there is one a step): what was trained so far is kept. */
static void keep_state(struct sft *s, int64_t first_step) {
    char where[400];
    struct err e;
    if (s->step == first_step || model_find_nonfinite(s->model, FIND_WEIGHTS, where, sizeof where)) return;
    if (save(s, &e) != ST_OK)
        log_warn("the state before step %lld could not be saved: %s", (long long)s->step + 1, e.msg);
}

static enum status train(struct sft *s, const volatile bool *cancel, struct err *e) {
    const struct sft_options *o = s->o;
    struct sample_group *batch = xcalloc((size_t)s->groups_per_step, sizeof *batch);
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
        int n = step_groups(s, s->step, batch);
        struct update_stats u;
        s->now.update.adam.learning_rate = learning_rate(o, s->step, s->steps);
        if ((st = update_policy(s->model, s->opt, NULL, &s->now, &s->space, batch, n, &s->opt_step, &u, e)) != ST_OK) {
            keep_state(s, first);
            break;
        }
        s->step++;
        loss += u.loss.loss / (double)u.loss.n;
        rows += u.rows;
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
    free(batch);
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
    TRY(checkpoint_write(o->output, s->step, s->opt_step, NULL, s->model, o->lora_rank > 0, dtypes[o->save_dtype], NULL,
                         s->tokenizer_dir, e));
    TRY(fs_remove(s->state_dir, e));
    log_info("%s: done", o->output);
    return ST_OK;
}

static enum status open_model(struct sft *s, const volatile bool *cancel, struct err *e) {
    const struct sft_options *o = s->o;
    const struct model_options mo = {
        .dtype = dtype_names[o->dtype], .frozen = o->lora_rank > 0, .activation_memory = o->activation_memory};
    if (o->model_name) {
        TRY(locate("model_name", HUB_MODEL, o->model_name, o->model_revision, cancel, &s->tokenizer_dir, e));
        TRY(model_load(s->tokenizer_dir, &mo, s->be, &s->model, e));
        model_set_name(s->model, o->model_name);
    } else {
        if (!o->init_config || !o->tokenizer)
            return FAIL(e, ST_CONFIG, "sft: give model_name, or init_config and tokenizer to start from nothing");
        CLEANUP_FREE char *text = NULL;
        TRY(fs_read(o->init_config, 1 << 20, &text, NULL, e));
        TRY(locate("tokenizer", HUB_TOKENIZER, o->tokenizer, NULL, cancel, &s->tokenizer_dir, e));
        if (model_init(text, (uint64_t)o->seed, &mo, s->be, &s->model, e) != ST_OK)
            return err_note(e, "%s", o->init_config);
    }
    if (o->lora_rank > 0) TRY(model_lora_init(s->model, (int)o->lora_rank, (float)o->lora_alpha, (uint64_t)o->seed, e));
    TRY(tokenizer_open(s->tokenizer_dir, &s->tok, e));
    const struct model_config *c = model_cfg(s->model);
    if (tokenizer_vocab(s->tok) > c->V)
        return FAIL(e, ST_INVALID, "%s: the tokenizer has %d ids, the model's vocab_size is %d", s->tokenizer_dir,
                    tokenizer_vocab(s->tok), c->V);
    return model_train_prepare(s->model, o->lora_rank > 0 ? TRAIN_LORA : TRAIN_FULL, e);
}

static enum status open_data(struct sft *s, struct err *e) {
    const struct sft_options *o = s->o;
    enum chat_style style;
    TRY(chat_style_choose(o->renderer_name, model_cfg(s->model)->arch->chat, false, &style, e));
    const int64_t longest = i64_min(o->max_length, model_cfg(s->model)->max_positions);
    TRY(load_dataset(o->data, s->tok, style, longest, &s->data, e));
    if (o->valid) TRY(load_dataset(o->valid, s->tok, style, longest, &s->valid, e));
    int64_t total = 0;
    for (int i = 0; i < s->data.n; i++) total += group_size_rows(&s->data.groups[i]);
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

enum status sft_run(const struct sft_options *o, const volatile bool *cancel, struct err *e) {
    struct sft s = {.o = o, .lock_fd = -1, .now = {.update = o->update}};
    s.now.update.num_substeps = 1; /* all of a batch makes one optimizer step */
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
    TRY_GOTO(backend_open(o->device, s.pool, &s.be, e), out);
    TRY_GOTO(fs_mkdirs(o->output, e), out);
    TRY_GOTO(run_lock(o->output, &s.lock_fd, e), out);
    TRY_GOTO(open_model(&s, cancel, e), out);
    TRY_GOTO(open_data(&s, e), out);
    int n;
    const struct param *params = model_params(s.model, &n);
    TRY_GOTO(adamw_create(s.be, params, n, &s.opt, e), out);
    TRY_GOTO(checkpoint_recover(s.state_dir, e), out);
    if (!fs_is_file(probe.p) && is_finished(&s)) {
        log_info("%s: already trained for %lld steps; remove it to start over", o->output, (long long)s.steps);
        goto out;
    }
    if (fs_is_file(probe.p)) {
        TRY_GOTO(checkpoint_read(s.state_dir, &s.step, &s.opt_step, s.model, o->lora_rank > 0, s.opt, e), out);
        log_info("%s: going on from step %lld", o->output, (long long)s.step);
    }
    TRY_GOTO(checkpoint_room(o->output, params, n, e), out);
    st = train(&s, cancel, e);
out:
    str_free(&probe);
    adamw_free(s.opt);
    update_space_free(&s.space);
    dataset_free(&s.data);
    dataset_free(&s.valid);
    if (s.tok) tokenizer_close(s.tok);
    model_free(s.model);
    if (s.be) s.be->close(s.be);
    pool_destroy(s.pool);
    if (s.lock_fd >= 0) close(s.lock_fd);
    free(s.tokenizer_dir);
    free(s.state_dir);
    return st;
}
