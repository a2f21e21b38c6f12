#include "rl/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sample takes part when it was judged, has an advantage, and is not masked for being cut off. */
static bool trains(const struct train_options *o, const struct episode *ep) {
    return ep->present && ep->advantage != 0 && ep->sample.n > 0 &&
           !(o->mask_truncated && ep->sample.stop == STOP_LENGTH);
}

static int64_t group_rows(const struct train_options *o, const struct group *g) {
    int64_t rows = 0;
    for (int j = 0; j < g->n; j++)
        if (trains(o, &g->ep[j])) rows += g->ep[j].sample.n - 1;
    return rows + (int64_t)g->prompt.len;
}

static bool group_trains(const struct train_options *o, const struct group *g) {
    for (int j = 0; j < g->n; j++)
        if (trains(o, &g->ep[j])) return true;
    return false;
}

/* Views of groups, each of at most train_tokens rows where a single sample allows: a larger group is cut between its
 * samples, and every part carries the prompt again. parts: room for as many as there are samples. Returns their number.
 */
static int cut_groups(const struct train_options *o, struct group *const *groups, int n, struct group *parts) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        const struct group *g = groups[i];
        const int64_t prompt = (int64_t)g->prompt.len;
        int64_t rows = prompt;
        int begin = 0, samples = 0; /* of the part that is growing */
        bool continued = false;
        for (int j = 0; j < g->n; j++) {
            if (!trains(o, &g->ep[j])) continue;
            const int64_t more = g->ep[j].sample.n - 1;
            if (samples > 0 && rows + more > o->train_tokens) {
                parts[count++] =
                    (struct group){.prompt = g->prompt, .ep = g->ep + begin, .n = j - begin, .continued = continued};
                continued = true;
                begin = j;
                samples = 0;
                rows = prompt;
            }
            rows += more;
            samples++;
        }
        if (samples > 0)
            parts[count++] =
                (struct group){.prompt = g->prompt, .ep = g->ep + begin, .n = g->n - begin, .continued = continued};
    }
    return count;
}

/* The end of the micro-batch that begins at parts[i]. */
static int micro_end(const struct train_options *o, const struct group *parts, int i, int n) {
    int64_t rows = group_rows(o, &parts[i]);
    int j = i + 1;
    while (j < n && rows + group_rows(o, &parts[j]) <= o->train_tokens) rows += group_rows(o, &parts[j++]);
    return j;
}

/* Adds what the user can do about it. */
static enum status explain_memory(const struct train_options *o, enum status st, struct err *e) {
    if (st != ST_MEMORY) return st;
    struct err first = *e;
    return FAIL(e, ST_MEMORY, "%s; a train_tokens below %lld (and a shorter longest answer) needs less", first.msg,
                (long long)o->train_tokens);
}

void update_space_free(struct update_space *s) {
    arena_free(&s->step);
    arena_free(&s->micro);
}

/* One micro-batch in the arena's memory, laid out as model.h wants it: each prompt once, then its samples as segments
 * that continue it. */
struct micro {
    int32_t *ids, *rows, *targets;
    struct segment *seg;
    float *logq, *adv, *logp, *entropy, *g;
    double *scale;   /* loss normaliser of each token */
    bool *is_prompt; /* a token of the prompt: trained on with prompt_loss_weight, left out of the statistics */
    int64_t T, N;
    int n_seg;
    bool recorded; /* every sample carries the log-probabilities it was drawn with */
};

static void micro_build(const struct train_options *o, const struct group *groups, int n, int64_t batch_tokens,
                        int batch_samples, struct arena *memory, struct micro *b) {
    int64_t T = 0, N = 0, S = 0;
    for (int i = 0; i < n; i++) {
        T += group_rows(o, &groups[i]);
        S++;
        if (o->prompt_loss_weight > 0 && !groups[i].continued) N += (int64_t)groups[i].prompt.len - 1;
        for (int j = 0; j < groups[i].n; j++)
            if (trains(o, &groups[i].ep[j])) {
                N += groups[i].ep[j].sample.n;
                S++;
            }
    }
    arena_reset(memory);
    *b = (struct micro){
        .ids = arena_array(memory, int32_t, T),
        .rows = arena_array(memory, int32_t, N),
        .targets = arena_array(memory, int32_t, N),
        .seg = arena_array(memory, struct segment, S),
        .logq = arena_array(memory, float, N),
        .adv = arena_array(memory, float, N),
        .logp = arena_array(memory, float, N),
        .entropy = arena_array(memory, float, N),
        .g = arena_array(memory, float, N),
        .scale = arena_array(memory, double, N),
        .is_prompt = arena_array(memory, bool, N),
        .recorded = true,
    };
    for (int i = 0; i < n; i++) {
        const struct group *g = &groups[i];
        int prompt_seg = b->n_seg++;
        b->seg[prompt_seg] = (struct segment){b->T, (int64_t)g->prompt.len, -1};
        memcpy(b->ids + b->T, g->prompt.p, g->prompt.len * sizeof *b->ids);
        b->T += (int64_t)g->prompt.len;
        int64_t last_prompt_row = b->T - 1;
        for (int64_t t = 1; o->prompt_loss_weight > 0 && !g->continued && t < (int64_t)g->prompt.len; t++, b->N++) {
            b->rows[b->N] = (int32_t)(last_prompt_row + t - (int64_t)g->prompt.len);
            b->targets[b->N] = g->prompt.p[t];
            b->adv[b->N] = (float)o->prompt_loss_weight;
            b->scale[b->N] = 1.0 / (double)batch_tokens;
            b->is_prompt[b->N] = true;
        }
        for (int j = 0; j < g->n; j++) {
            const struct episode *ep = &g->ep[j];
            if (!trains(o, ep)) continue;
            int len = ep->sample.n;
            b->recorded &= ep->sample.logp != NULL;
            double scale = o->loss_norm == NORM_TOKENS      ? 1.0 / (double)batch_tokens
                           : o->loss_norm == NORM_SEQUENCES ? 1.0 / ((double)batch_samples * len)
                                                            : 1.0 / ((double)batch_samples * (double)o->max_tokens);
            for (int t = 0; t < len; t++, b->N++) {
                b->rows[b->N] = (int32_t)(t == 0 ? last_prompt_row : b->T + t - 1);
                b->targets[b->N] = ep->sample.ids[t];
                b->logq[b->N] = ep->sample.logp ? ep->sample.logp[t] : 0;
                b->adv[b->N] = (float)ep->advantage;
                b->scale[b->N] = scale;
            }
            if (len == 1) continue; /* the only token is predicted by the prompt */
            b->seg[b->n_seg++] = (struct segment){b->T, len - 1, prompt_seg};
            memcpy(b->ids + b->T, ep->sample.ids, (size_t)(len - 1) * sizeof *b->ids);
            b->T += len - 1;
        }
    }
    ASSERT(b->T == T && b->N == N);
}

/* What stopped the step, and where it began as far as that can be seen. */
static enum status not_finite(struct model *m, const char *what, int64_t opt_step, struct err *e) {
    char where[400] = "weights, activations and gradients are finite";
    model_find_nonfinite(m, FIND_WEIGHTS | FIND_ACTIVATIONS | FIND_GRADIENTS, where, sizeof where);
    return FAIL(e, ST_FAILED, "%s is not finite at optimizer step %lld: %s", what, (long long)opt_step, where);
}

static enum status micro_train(struct model *m, const struct train_options *o, struct micro *b, bool on_policy,
                               int64_t opt_step, struct update_stats *s, struct err *e) {
    struct train_batch batch = {b->ids, b->T, b->seg, b->n_seg, b->rows, b->targets, b->N, false};
    TRY(model_forward(m, &batch, b->logp, b->entropy, NULL, e));
    for (int64_t i = 0; i < b->N; i++)
        if (!isfinite(b->logp[i])) return not_finite(m, "the log-probability of a token", opt_step, e);
    struct loss_params p = {(enum loss_kind)(o->loss_fn + LOSS_REINFORCE), o->clip_low, o->clip_high};
    for (int64_t i = 0; i < b->N; i++) {
        loss_token_grad(&p, b->logp + i, b->recorded ? b->logq + i : NULL, b->adv + i, 1, b->scale[i], b->g + i,
                        b->is_prompt[i] ? NULL : &s->loss);
        if (b->is_prompt[i]) continue;
        s->entropy += b->entropy[i];
        if (on_policy && b->recorded) s->kl_before = fmax(s->kl_before, fabs((double)b->logp[i] - (double)b->logq[i]));
    }
    if (on_policy && s->kl_before != 0)
        return FAIL(e, ST_FAILED,
                    "the trainer's log-probabilities differ from the sampler's by up to %g before any update; sampling "
                    "and training must agree bit for bit",
                    s->kl_before);
    s->rows += b->T;
    return model_backward(m, &batch, b->g, e);
}

static double schedule(const struct train_options *o, int64_t opt_step) {
    if (opt_step < o->warmup_steps) return o->learning_rate * (double)(opt_step + 1) / (double)o->warmup_steps;
    return o->learning_rate;
}

enum status update_policy(struct model *m, struct adamw *opt, const struct train_options *o, struct update_space *space,
                          struct group *groups, int n_groups, int64_t *opt_step, struct update_stats *out,
                          struct err *e) {
    *out = (struct update_stats){0};
    arena_reset(&space->step);
    struct group **kept = arena_array(&space->step, struct group *, n_groups);
    int n_kept = 0;
    for (int i = 0; i < n_groups; i++)
        if (group_trains(o, &groups[i])) kept[n_kept++] = &groups[i];
    out->groups_trained = n_kept;
    int substeps = (int)i64_min(o->num_substeps, n_kept);
    for (int sub = 0; sub < substeps; sub++) {
        int begin = n_kept * sub / substeps, end = n_kept * (sub + 1) / substeps;
        int64_t tokens = 0;
        int samples = 0;
        for (int i = begin; i < end; i++)
            for (int j = 0; j < kept[i]->n; j++)
                if (trains(o, &kept[i]->ep[j])) {
                    tokens += kept[i]->ep[j].sample.n;
                    samples++;
                }
        model_zero_grad(m);
        struct group *parts = arena_array(&space->step, struct group, samples);
        int n_parts = cut_groups(o, kept + begin, end - begin, parts);
        for (int i = 0, next; i < n_parts; i = next) {
            next = micro_end(o, parts, i, n_parts);
            struct micro b;
            micro_build(o, parts + i, next - i, tokens, samples, &space->micro, &b);
            TRY(explain_memory(o, micro_train(m, o, &b, sub == 0, *opt_step, out, e), e));
        }
        int n_params;
        const struct param *params = model_params(m, &n_params);
        out->grad_norm = model_grad_norm(m);
        if (!isfinite(out->grad_norm)) return not_finite(m, "the gradient", *opt_step, e);
        double clip = o->max_grad_norm > 0 && out->grad_norm > o->max_grad_norm ? o->max_grad_norm / out->grad_norm : 1;
        out->learning_rate = schedule(o, *opt_step);
        struct adamw_config c = {out->learning_rate, o->adam.beta1, o->adam.beta2, o->adam.eps, o->weight_decay};
        adamw_step(opt, params, n_params, &c, clip, false);
        model_params_changed(m);
        ++*opt_step;
    }
    return ST_OK;
}

enum status update_nll(struct model *m, const struct train_options *o, struct update_space *space, struct group *groups,
                       int n_groups, double *sum, int64_t *tokens, struct err *e) {
    *sum = 0;
    *tokens = 0;
    int samples = 0;
    arena_reset(&space->step);
    struct group **all = arena_array(&space->step, struct group *, n_groups);
    for (int i = 0; i < n_groups; i++) {
        all[i] = &groups[i];
        samples += groups[i].n;
    }
    struct group *parts = arena_array(&space->step, struct group, samples);
    int n_parts = cut_groups(o, all, n_groups, parts);
    for (int i = 0, next; i < n_parts; i = next) {
        next = micro_end(o, parts, i, n_parts);
        struct micro b;
        micro_build(o, parts + i, next - i, 1, 1, &space->micro, &b);
        struct train_batch batch = {b.ids, b.T, b.seg, b.n_seg, b.rows, b.targets, b.N, true};
        TRY(explain_memory(o, model_forward(m, &batch, b.logp, NULL, NULL, e), e));
        for (int64_t k = 0; k < b.N; k++) {
            if (b.is_prompt[k]) continue;
            *sum -= (double)b.logp[k];
            ++*tokens;
        }
    }
    return ST_OK;
}
