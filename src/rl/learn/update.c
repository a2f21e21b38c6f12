#include "rl/learn/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tensor/backend.h"

/* A sample takes part when it was judged, has an advantage or is kept without, and is not masked for being cut off. */
static bool trains(const struct train_options *o, const struct episode *ep) {
    return ep->present && (ep->advantage != 0 || ep->kept) && ep->sample.n > 0 &&
           !(o->update.mask_truncated && ep->sample.stop == STOP_LENGTH);
}

static int64_t group_rows(const struct train_options *o, const struct sample_group *g) {
    int64_t rows = 0;
    for (int j = 0; j < g->n; j++)
        if (trains(o, &g->ep[j])) rows += g->ep[j].sample.n - 1;
    return rows + (int64_t)g->prompt.len;
}

static bool group_trains(const struct train_options *o, const struct sample_group *g) {
    for (int j = 0; j < g->n; j++)
        if (trains(o, &g->ep[j])) return true;
    return false;
}

/* Views of a group, each of at most `most` rows where a single sample allows, the first ones as large as they may be.
 * parts: room for as many as there are samples, or NULL. Returns their number. */
static int cut_group(const struct train_options *o, const struct sample_group *g, int64_t most,
                     struct sample_group *parts) {
    const int64_t prompt = (int64_t)g->prompt.len;
    int64_t rows = prompt;
    int count = 0, begin = 0, samples = 0; /* the last two of the part that is growing */
    for (int j = 0; j <= g->n; j++) {
        const bool end = j == g->n;
        if (!end && !trains(o, &g->ep[j])) continue;
        const int64_t more = end ? 0 : g->ep[j].sample.n - 1;
        if (samples > 0 && (end || rows + more > most)) {
            if (parts)
                parts[count] = (struct sample_group){.prompt = g->prompt,
                                                     .ep = g->ep + begin,
                                                     .n = j - begin,
                                                     .stale = g->stale,
                                                     .continued = count > 0};
            count++;
            begin = j;
            samples = 0;
            rows = prompt;
        }
        rows += more;
        samples++;
    }
    return count;
}

/* Views of groups, each of at most train_tokens rows where a single sample allows: a larger group is cut between its
 * samples, and every part carries the prompt again. As few parts as there can be, and as even ones: a small rest would
 * occupy a GPU badly. parts: room for as many as there are samples. Returns their number. */
static int cut_groups(const struct train_options *o, struct sample_group *const *groups, int n,
                      struct sample_group *parts) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        const int fewest = cut_group(o, groups[i], o->update.train_tokens, NULL);
        int64_t low = 0, high = o->update.train_tokens; /* high is enough for so few, low is not */
        while (fewest > 1 && high - low > 1) {
            const int64_t middle = low + (high - low) / 2;
            if (cut_group(o, groups[i], middle, NULL) > fewest)
                low = middle;
            else
                high = middle;
        }
        count += cut_group(o, groups[i], high, parts + count);
    }
    return count;
}

/* The end of the micro-batch that begins at parts[i]. */
static int micro_end(const struct train_options *o, const struct sample_group *parts, int i, int n) {
    int64_t rows = group_rows(o, &parts[i]);
    int j = i + 1;
    while (j < n && rows + group_rows(o, &parts[j]) <= o->update.train_tokens) rows += group_rows(o, &parts[j++]);
    return j;
}

/* Adds what the user can do about it. */
static enum status explain_memory(const struct train_options *o, enum status st, struct err *e) {
    if (st != ST_MEMORY) return st;
    struct err first = *e;
    return FAIL(e, ST_MEMORY, "%s; a train_tokens below %lld (and a shorter longest answer) needs less", first.msg,
                (long long)o->update.train_tokens);
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
    float *adv, *logp, *entropy, *g;
    struct piece *piece;
    int64_t T, N;
    int n_seg, n_piece;
};
/* A sample's tokens in a micro-batch, or a prompt's that are trained on with prompt_loss_weight. */
struct piece {
    struct episode *ep; /* NULL: a prompt, left out of the statistics */
    int64_t begin, n;
    double scale; /* one over the loss normaliser */
    bool stale;
};

static double normaliser(const struct train_options *o, int64_t batch_tokens, int batch_samples, int len) {
    switch (o->update.loss_norm) {
    case NORM_SEQUENCES: return 1.0 / ((double)batch_samples * len);
    case NORM_CONSTANT: return 1.0 / ((double)batch_samples * (double)o->rollout.max_tokens);
    case NORM_SAMPLES: return 1.0 / batch_samples;
    case NORM_SUM: return 1;
    case NORM_TOKENS:
    default: return 1.0 / (double)batch_tokens;
    }
}

static void micro_build(const struct train_options *o, const struct sample_group *groups, int n, int64_t batch_tokens,
                        int batch_samples, struct arena *memory, struct micro *b) {
    int64_t T = 0, N = 0, S = 0;
    for (int i = 0; i < n; i++) {
        T += group_rows(o, &groups[i]);
        S++;
        if (o->update.prompt_loss_weight > 0 && !groups[i].continued) N += (int64_t)groups[i].prompt.len - 1;
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
        .adv = arena_array(memory, float, N),
        .logp = arena_array(memory, float, N),
        .entropy = arena_array(memory, float, N),
        .g = arena_array(memory, float, N),
        .piece = arena_array(memory, struct piece, S + n),
    };
    for (int i = 0; i < n; i++) {
        const struct sample_group *g = &groups[i];
        int prompt_seg = b->n_seg++;
        b->seg[prompt_seg] = (struct segment){b->T, (int64_t)g->prompt.len, -1, 0};
        memcpy(b->ids + b->T, g->prompt.p, g->prompt.len * sizeof *b->ids);
        b->T += (int64_t)g->prompt.len;
        int64_t last_prompt_row = b->T - 1;
        if (o->update.prompt_loss_weight > 0 && !g->continued)
            b->piece[b->n_piece++] =
                (struct piece){NULL, b->N, (int64_t)g->prompt.len - 1, 1.0 / (double)batch_tokens, false};
        for (int64_t t = 1; o->update.prompt_loss_weight > 0 && !g->continued && t < (int64_t)g->prompt.len;
             t++, b->N++) {
            b->rows[b->N] = (int32_t)(last_prompt_row + t - (int64_t)g->prompt.len);
            b->targets[b->N] = g->prompt.p[t];
            b->adv[b->N] = (float)o->update.prompt_loss_weight;
        }
        for (int j = 0; j < g->n; j++) {
            struct episode *ep = &g->ep[j];
            if (!trains(o, ep)) continue;
            int len = ep->sample.n;
            b->piece[b->n_piece++] =
                (struct piece){ep, b->N, len, normaliser(o, batch_tokens, batch_samples, len), g->stale > 0};
            for (int t = 0; t < len; t++, b->N++) {
                b->rows[b->N] = (int32_t)(t == 0 ? last_prompt_row : b->T + t - 1);
                b->targets[b->N] = ep->sample.ids[t];
                b->adv[b->N] = ep->token_advantage ? ep->token_advantage[t] : (float)ep->advantage;
            }
            if (len == 1) continue; /* the only token is predicted by the prompt */
            b->seg[b->n_seg++] = (struct segment){b->T, len - 1, prompt_seg, 0};
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

/* A KL penalty that is paid in the reward is no term of the loss. */
static struct loss_params policy_loss(const struct train_options *o) {
    struct loss_params p = o->update.loss;
    if (o->update.kl_penalty_in == KL_IN_REWARD) p.kl_coef = 0;
    return p;
}

static enum status micro_train(struct model *m, const struct train_options *o, struct micro *b, bool on_policy,
                               int64_t opt_step, struct update_stats *s, struct err *e) {
    struct train_batch batch = {b->ids, b->T, b->seg, b->n_seg, b->rows, b->targets, b->N, false};
    TRY(model_forward(m, &batch, b->logp, b->entropy, NULL, e));
    for (int64_t i = 0; i < b->N; i++)
        if (!isfinite(b->logp[i])) return not_finite(m, "the log-probability of a token", opt_step, e);
    const struct loss_params policy = policy_loss(o), likelihood = {.kind = LOSS_CROSS_ENTROPY};
    for (int k = 0; k < b->n_piece; k++) {
        const struct piece *x = &b->piece[k];
        struct loss_sequence q = {
            .n = x->n, .logp = b->logp + x->begin, .entropy = b->entropy + x->begin, .adv = b->adv + x->begin};
        if (!x->ep) {
            loss_grad(&likelihood, &q, x->scale, b->g + x->begin, NULL);
            continue;
        }
        q.sampled = x->ep->sample.logp;
        q.old = x->ep->old_logp ? x->ep->old_logp : q.sampled;
        q.ref = policy.kl_coef > 0 ? x->ep->ref_logp : NULL;
        loss_grad(&policy, &q, x->scale, b->g + x->begin, &s->loss);
        for (int64_t i = 0; i < x->n; i++) {
            s->entropy += q.entropy[i];
            if (on_policy && q.sampled && !x->stale)
                s->kl_before = fmax(s->kl_before, fabs((double)q.logp[i] - (double)q.sampled[i]));
        }
    }
    if (on_policy && s->kl_before != 0 && o->numerics == NUMERICS_EXACT)
        return FAIL(e, ST_FAILED,
                    "the trainer's log-probabilities differ from the sampler's by up to %g before any update; sampling "
                    "and training must agree bit for bit",
                    s->kl_before);
    s->rows += b->T;
    return model_backward(m, &batch, b->g, e);
}

double update_learning_rate(const struct train_options *o, int64_t opt_step) {
    const double rate = o->update.adam.learning_rate;
    return opt_step < o->warmup_steps ? rate * ((double)(opt_step + 1) / (double)o->warmup_steps) : rate;
}

/* A border between micro-batches: who waits for quiet gets it, once the device has done what is queued. */
static enum status stand_aside(struct model *m, const struct update_space *space, struct err *e) {
    if (!space->lease) return ST_OK;
    struct backend *be = model_backend(m);
    if (be->sync) TRY(be->sync(be, e));
    lease_yield(space->lease);
    return ST_OK;
}

/* Log-probabilities of all samples that train, under m with this adapter: into ref_logp of the episodes, or old_logp.
 */
static enum status score(struct model *m, int adapter, const struct train_options *o, struct update_space *space,
                         struct sample_group *const *groups, int n, int n_samples, bool reference, struct err *e) {
    struct sample_group *parts = arena_array(&space->step, struct sample_group, n_samples);
    int n_parts = cut_groups(o, groups, n, parts);
    for (int i = 0, next; i < n_parts; i = next) {
        next = micro_end(o, parts, i, n_parts);
        struct micro b;
        micro_build(o, parts + i, next - i, 1, 1, &space->micro, &b);
        for (int k = 0; k < b.n_seg; k++) b.seg[k].adapter = adapter;
        struct train_batch batch = {b.ids, b.T, b.seg, b.n_seg, b.rows, b.targets, b.N, true};
        TRY(stand_aside(m, space, e));
        TRY(explain_memory(o, model_forward(m, &batch, b.logp, NULL, NULL, e), e));
        for (int k = 0; k < b.n_piece; k++) {
            struct piece *x = &b.piece[k];
            if (!x->ep) continue;
            float **at = reference ? &x->ep->ref_logp : &x->ep->old_logp;
            if (!*at) *at = xmalloc((size_t)x->n * sizeof **at);
            memcpy(*at, b.logp + x->begin, (size_t)x->n * sizeof **at);
        }
    }
    return ST_OK;
}

/* KL in the reward: A_t += coef * sum over u >= t of discount^(u-t) * (mean of d - d_u), d = logp - ref at the start of
 * the update, the mean over all trained tokens. */
static void kl_into_advantages(const struct train_options *o, struct sample_group *const *groups, int n) {
    double sum = 0;
    int64_t tokens = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < groups[i]->n; j++) {
                struct episode *ep = &groups[i]->ep[j];
                if (!trains(o, ep)) continue;
                const float *old = ep->old_logp ? ep->old_logp : ep->sample.logp;
                const int len = ep->sample.n;
                float *adv = ep->token_advantage;
                if (pass == 0) {
                    if (!adv) {
                        ep->token_advantage = adv = xmalloc((size_t)len * sizeof *adv);
                        for (int t = 0; t < len; t++) adv[t] = (float)ep->advantage;
                    }
                    for (int t = 0; t < len; t++) sum += (double)old[t] - (double)ep->ref_logp[t];
                    tokens += len;
                    continue;
                }
                double later = 0;
                for (int t = len - 1; t >= 0; t--) {
                    const double less = sum / (double)tokens - ((double)old[t] - (double)ep->ref_logp[t]);
                    later = less + o->update.kl_discount_factor * later;
                    adv[t] += (float)(o->update.loss.kl_coef * later);
                }
            }
}

/* What the samples are compared with, beside the model itself. */
static enum status compare_with(struct model *m, const struct kl_reference *reference, const struct train_options *o,
                                struct update_space *space, struct sample_group *const *groups, int n, struct err *e) {
    int samples = 0;
    bool stale = false;
    for (int i = 0; i < n; i++) {
        samples += groups[i]->n;
        stale |= groups[i]->stale > 0;
    }
    if (stale) TRY(score(m, ADAPTER_OWN, o, space, groups, n, samples, false, e));
    if (o->update.loss.kl_coef <= 0) return ST_OK;
    ASSERT(reference && reference->model);
    TRY(score(reference->model, reference->adapter, o, space, groups, n, samples, true, e));
    if (o->update.kl_penalty_in == KL_IN_REWARD) kl_into_advantages(o, groups, n);
    return ST_OK;
}

static enum status optimizer_step(struct model *m, struct adamw *opt, const struct train_options *o, int64_t *opt_step,
                                  struct update_stats *out, struct err *e) {
    int n_params;
    const struct param *params = model_params(m, &n_params);
    out->grad_norm = model_grad_norm(m);
    if (!isfinite(out->grad_norm)) return not_finite(m, "the gradient", *opt_step, e);
    double clip = o->update.max_grad_norm > 0 && out->grad_norm > o->update.max_grad_norm
                      ? o->update.max_grad_norm / out->grad_norm
                      : 1;
    out->learning_rate = update_learning_rate(o, *opt_step);
    struct adamw_config c = o->update.adam;
    c.learning_rate = out->learning_rate;
    adamw_step(opt, params, n_params, &c, clip, false);
    model_params_changed(m);
    ++*opt_step;
    ++out->optimizer_steps;
    return ST_OK;
}

/* One optimizer step on the groups. first: nothing has been updated since they were sampled. */
static enum status minibatch(struct model *m, struct adamw *opt, const struct train_options *o,
                             struct update_space *space, struct sample_group *const *groups, int n, bool first,
                             int64_t *opt_step, struct update_stats *out, struct err *e) {
    int64_t tokens = 0;
    int samples = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i]->n; j++)
            if (trains(o, &groups[i]->ep[j])) {
                tokens += groups[i]->ep[j].sample.n;
                samples++;
            }
    model_zero_grad(m);
    struct sample_group *parts = arena_array(&space->step, struct sample_group, samples);
    int n_parts = cut_groups(o, groups, n, parts);
    for (int i = 0, next; i < n_parts; i = next) {
        next = micro_end(o, parts, i, n_parts);
        struct micro b;
        micro_build(o, parts + i, next - i, tokens, samples, &space->micro, &b);
        TRY(stand_aside(m, space, e));
        TRY(explain_memory(o, micro_train(m, o, &b, first, *opt_step, out, e), e));
    }
    return optimizer_step(m, opt, o, opt_step, out, e);
}

static enum status all_passes(struct model *m, struct adamw *opt, const struct kl_reference *reference,
                              const struct train_options *o, struct update_space *space, struct sample_group *groups,
                              int n_groups, int64_t *opt_step, struct update_stats *out, struct err *e) {
    *out = (struct update_stats){0};
    arena_reset(&space->step);
    struct sample_group **kept = arena_array(&space->step, struct sample_group *, n_groups);
    int n_kept = 0;
    for (int i = 0; i < n_groups; i++)
        if (group_trains(o, &groups[i])) kept[n_kept++] = &groups[i];
    out->groups_trained = n_kept;
    TRY(compare_with(m, reference, o, space, kept, n_kept, e));
    const int substeps = (int)i64_min(o->update.num_substeps, n_kept);
    const int64_t before =
        *opt_step; /* the shuffles are a function of the seed and this, so that they can be resumed */
    for (int epoch = 0; epoch < i64_max(1, o->update.update_epochs); epoch++) {
        struct rng r = rng_make((uint64_t)o->seed, UINT64_C(0x6d696e6900000000) + (uint64_t)(before + epoch));
        if (substeps > 1) rng_shuffle(&r, kept, (size_t)n_kept, sizeof(struct sample_group *));
        for (int sub = 0; sub < substeps; sub++) {
            const int begin = n_kept * sub / substeps, end = n_kept * (sub + 1) / substeps;
            TRY(minibatch(m, opt, o, space, kept + begin, end - begin, epoch == 0 && sub == 0, opt_step, out, e));
        }
    }
    return ST_OK;
}

enum status update_policy(struct model *m, struct adamw *opt, const struct kl_reference *reference,
                          const struct train_options *o, struct update_space *space, struct sample_group *groups,
                          int n_groups, int64_t *opt_step, struct update_stats *out, struct err *e) {
    lease_begin(space->lease);
    const enum status st = all_passes(m, opt, reference, o, space, groups, n_groups, opt_step, out, e);
    lease_end(space->lease);
    return st;
}

enum status update_nll(struct model *m, const struct train_options *o, struct update_space *space,
                       struct sample_group *groups, int n_groups, double *sum, int64_t *tokens, struct err *e) {
    *sum = 0;
    *tokens = 0;
    int samples = 0;
    arena_reset(&space->step);
    struct sample_group **all = arena_array(&space->step, struct sample_group *, n_groups);
    for (int i = 0; i < n_groups; i++) {
        all[i] = &groups[i];
        samples += groups[i].n;
    }
    struct sample_group *parts = arena_array(&space->step, struct sample_group, samples);
    int n_parts = cut_groups(o, all, n_groups, parts);
    for (int i = 0, next; i < n_parts; i = next) {
        next = micro_end(o, parts, i, n_parts);
        struct micro b;
        micro_build(o, parts + i, next - i, 1, 1, &space->micro, &b);
        struct train_batch batch = {b.ids, b.T, b.seg, b.n_seg, b.rows, b.targets, b.N, true};
        TRY(explain_memory(o, model_forward(m, &batch, b.logp, NULL, NULL, e), e));
        for (int k = 0; k < b.n_piece; k++) {
            if (!b.piece[k].ep) continue;
            for (int64_t t = 0; t < b.piece[k].n; t++) *sum -= (double)b.logp[b.piece[k].begin + t];
            *tokens += b.piece[k].n;
        }
    }
    return ST_OK;
}
