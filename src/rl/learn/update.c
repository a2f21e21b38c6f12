#include "rl/learn/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "rl/learn/expert_shift.h"

/* A sample takes part when it was judged, has an advantage or is kept without, and is not masked for being cut off. */
static bool trains(const struct train_options *o, const struct episode *ep) {
    return ep->present && (ep->advantage != 0 || ep->kept) && ep->sample.n > 0 &&
           !(o->update.mask_truncated && ep->sample.stop == STOP_LENGTH);
}

static bool group_trains(const struct train_options *o, const struct sample_group *g) {
    for (int j = 0; j < g->n; j++)
        if (trains(o, &g->ep[j])) return true;
    return false;
}

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

/* A sample as a datum: its last token predicts nothing. All in the arena's memory. */
static struct datum datum_of(const struct sample_group *g, const struct episode *ep, struct arena *memory) {
    const int64_t prompt = (int64_t)g->prompt.len, n = ep->sample.n;
    int32_t *ids = arena_array(memory, int32_t, prompt + n);
    memcpy(ids, g->prompt.p, (size_t)prompt * sizeof *ids);
    memcpy(ids + prompt, ep->sample.ids, (size_t)n * sizeof *ids);
    return (struct datum){.ids = ids,
                          .n = prompt + n - 1,
                          .prompt = prompt,
                          .begin = prompt - 1,
                          .end = prompt + n - 1,
                          .targets = ids + prompt};
}

static const float *repeated(float x, int64_t n, struct arena *memory) {
    float *a = arena_array(memory, float, n);
    for (int64_t i = 0; i < n; i++) a[i] = x;
    return a;
}

/* The samples that train, as datums; they live in the pupil's arena until the update ends. */
static struct datum *datums_of(const struct pupil *l, const struct train_options *o, struct sample_group *const *groups,
                               int n, int64_t tokens, int samples) {
    struct arena *memory = l->datums;
    struct datum *d = arena_array(memory, struct datum, samples);
    int at = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i]->n; j++) {
            const struct episode *ep = &groups[i]->ep[j];
            if (!trains(o, ep)) continue;
            struct datum *x = &d[at++];
            *x = datum_of(groups[i], ep, memory);
            x->weights =
                ep->token_advantage ? ep->token_advantage : repeated((float)ep->advantage, ep->sample.n, memory);
            x->sampled = ep->sample.logp;
            x->old = ep->old_logp;
            x->ref = ep->ref_logp;
            x->scale = normaliser(o, tokens, samples, ep->sample.n);
            x->stale = groups[i]->stale > 0;
        }
    return d;
}

/* A KL penalty that is paid in the reward is no term of the loss. */
static struct loss_params policy_loss(const struct train_options *o) {
    struct loss_params p = o->update.loss;
    if (o->update.kl_penalty_in == KL_IN_REWARD) p.kl_coef = 0;
    return p;
}

double update_learning_rate(const struct train_options *o, int64_t opt_step) {
    const double rate = o->update.adam.learning_rate;
    return opt_step < o->warmup_steps ? rate * ((double)(opt_step + 1) / (double)o->warmup_steps) : rate;
}

/* Samples that train, and their tokens. */
static int count_samples(const struct train_options *o, struct sample_group *const *groups, int n, int64_t *tokens) {
    int samples = 0;
    *tokens = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i]->n; j++)
            if (trains(o, &groups[i]->ep[j])) {
                *tokens += groups[i]->ep[j].sample.n;
                samples++;
            }
    return samples;
}

/* Log-probabilities of all samples that train: of the reference into ref_logp of the episodes, or into old_logp. */
static enum status score(const struct pupil *l, const struct train_options *o, struct sample_group *const *groups,
                         int n, bool reference, struct err *e) {
    int64_t tokens;
    const int samples = count_samples(o, groups, n, &tokens);
    struct datum *d = arena_array(l->datums, struct datum, samples);
    int at = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i]->n; j++) {
            struct episode *ep = &groups[i]->ep[j];
            if (!trains(o, ep)) continue;
            float **to = reference ? &ep->ref_logp : &ep->old_logp;
            if (!*to) *to = xmalloc((size_t)ep->sample.n * sizeof **to);
            d[at] = datum_of(groups[i], ep, l->datums);
            d[at++].logp = *to;
        }
    return pupil_forward(l, reference, d, samples, e);
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
static enum status compare_with(const struct pupil *l, const struct train_options *o,
                                struct sample_group *const *groups, int n, struct err *e) {
    bool stale = false;
    for (int i = 0; i < n; i++) stale |= groups[i]->stale > 0;
    if (stale) TRY(score(l, o, groups, n, false, e));
    if (o->update.loss.kl_coef <= 0) return ST_OK;
    TRY(score(l, o, groups, n, true, e));
    if (o->update.kl_penalty_in == KL_IN_REWARD) kl_into_advantages(o, groups, n);
    return ST_OK;
}

/* One optimizer step on the groups. first: nothing has been updated since they were sampled. */
static enum status minibatch(const struct pupil *l, const struct train_options *o, struct sample_group *const *groups,
                             int n, bool first, int64_t *opt_step, struct update_stats *out, struct err *e) {
    int64_t tokens;
    const int samples = count_samples(o, groups, n, &tokens);
    const struct train_call call = {
        .loss = policy_loss(o), .step = *opt_step, .on_policy = first, .exact = o->numerics == NUMERICS_EXACT};
    struct train_stats s = {.loss = out->loss, .entropy = out->entropy, .kl_before = out->kl_before, .rows = out->rows};
    pupil_forget(l);
    const enum status st = pupil_accumulate(l, &call, datums_of(l, o, groups, n, tokens, samples), samples, &s, e);
    out->loss = s.loss;
    out->entropy = s.entropy;
    out->kl_before = s.kl_before;
    out->rows = s.rows;
    TRY(st);
    struct adamw_config c = o->update.adam;
    c.learning_rate = update_learning_rate(o, *opt_step);
    TRY(pupil_step(l, &c, o->update.max_grad_norm, *opt_step, &out->grad_norm, e));
    out->learning_rate = c.learning_rate;
    ++*opt_step;
    ++out->optimizer_steps;
    return ST_OK;
}

static enum status all_passes(const struct pupil *l, const struct train_options *o, struct sample_group *groups,
                              int n_groups, int64_t *opt_step, struct update_stats *out, struct err *e) {
    struct trainer *t = l->trainer;
    *out = (struct update_stats){.expert_shift = (double)NAN};
    struct expert_shift shift;
    arena_reset(l->datums);
    struct sample_group **kept = arena_array(l->datums, struct sample_group *, n_groups);
    int n_kept = 0;
    for (int i = 0; i < n_groups; i++)
        if (group_trains(o, &groups[i])) kept[n_kept++] = &groups[i];
    out->groups_trained = n_kept;
    TRY(compare_with(l, o, kept, n_kept, e));
    if (t) TRY(expert_shift_begin(&shift, &t->datums, t->model, t->adapter, kept, n_kept, t->train_tokens, e));
    const int substeps = (int)i64_min(o->update.num_substeps, n_kept);
    const int64_t before =
        *opt_step; /* the shuffles are a function of the seed and this, so that they can be resumed */
    for (int epoch = 0; epoch < i64_max(1, o->update.update_epochs); epoch++) {
        struct rng r = rng_make((uint64_t)o->seed, UINT64_C(0x6d696e6900000000) + (uint64_t)(before + epoch));
        if (substeps > 1) rng_shuffle(&r, kept, (size_t)n_kept, sizeof(struct sample_group *));
        for (int sub = 0; sub < substeps; sub++) {
            const int begin = n_kept * sub / substeps, end = n_kept * (sub + 1) / substeps;
            TRY(minibatch(l, o, kept + begin, end - begin, epoch == 0 && sub == 0, opt_step, out, e));
        }
    }
    if (!t) return ST_OK;
    return expert_shift_end(&shift, t->model, &out->expert_shift, e);
}

static void stand_aside(void *lease) { lease_yield(lease); }

enum status update_policy_by(const struct pupil *l, const struct train_options *o, struct lease *lease,
                             struct sample_group *groups, int n_groups, int64_t *opt_step, struct update_stats *out,
                             struct err *e) {
    struct trainer *t = l->trainer;
    if (!t) return all_passes(l, o, groups, n_groups, opt_step, out, e); /* it is not this machine that computes */
    t->train_tokens = o->update.train_tokens;
    t->border = lease ? stand_aside : NULL;
    t->border_ctx = lease;
    lease_begin(lease);
    const enum status st = all_passes(l, o, groups, n_groups, opt_step, out, e);
    lease_end(lease);
    return st;
}

enum status update_policy(struct trainer *t, const struct kl_reference *reference, const struct train_options *o,
                          struct lease *lease, struct sample_group *groups, int n_groups, int64_t *opt_step,
                          struct update_stats *out, struct err *e) {
    const struct pupil l = pupil_here(t, reference);
    return update_policy_by(&l, o, lease, groups, n_groups, opt_step, out, e);
}
