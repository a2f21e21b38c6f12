#include "tinker/datums.h"

#include <math.h>
#include <string.h>

static const char *const loss_names[] = {CHOICE_NAMES(SUMMED_LIST)};

/* What each loss takes beside target_tokens. */
struct inputs {
    bool weights, policy /* logprobs and advantages */, mask, clip, beta;
    double low, high; /* defaults */
};
static const struct inputs inputs_of[] = {
    [SUMMED_CROSS_ENTROPY] = {.weights = true},
    [SUMMED_IMPORTANCE_SAMPLING] = {.policy = true},
    [SUMMED_PPO] = {.policy = true, .clip = true, .low = 0.8, .high = 1.2},
    [SUMMED_CISPO] = {.policy = true, .clip = true, .low = 0, .high = 4},
    [SUMMED_DRO] = {.policy = true, .beta = true},
    [SUMMED_GSPO] = {.policy = true, .mask = true, .clip = true, .low = 1 - 3e-4, .high = 1 + 4e-4},
};
static const double dro_beta = 0.05;

/* ---- the loss -----------------------------------------------------------------------------------------------------*/

static enum status find_loss(const char *name, enum summed_kind *out, struct err *e) {
    for (size_t i = 0; i < ARRAY_LEN(loss_names); i++)
        if (strcmp(name, loss_names[i]) == 0) {
            *out = (enum summed_kind)i;
            return ST_OK;
        }
    if (strcmp(name, "stable_reinforce") == 0)
        return FAIL(e, ST_UNSUPPORTED,
                    "the loss function 'stable_reinforce' is not supported here, since its formula is "
                    "not public: use loss_fn 'importance_sampling'");
    if (strcmp(name, "custom") == 0)
        return FAIL(e, ST_UNSUPPORTED,
                    "the loss function 'custom' is not supported here: use forward_backward_custom, "
                    "which computes the loss at the client");
    return FAIL(e, ST_UNSUPPORTED,
                "unknown loss function '%.100s': expected cross_entropy, importance_sampling, ppo, cispo, dro or gspo",
                name);
}

static enum status read_loss(const struct wire_training *r, struct summed_loss *out, struct err *e) {
    TRY(find_loss(r->loss_fn, &out->kind, e));
    const struct inputs *in = &inputs_of[out->kind];
    out->low = in->low;
    out->high = in->high;
    out->beta = in->beta ? dro_beta : 0;
    for (int i = 0; i < r->n_options; i++) {
        const struct wire_option *o = &r->option[i];
        double *to = NULL;
        if (in->clip && strcmp(o->name, "clip_low_threshold") == 0) to = &out->low;
        if (in->clip && strcmp(o->name, "clip_high_threshold") == 0) to = &out->high;
        if (in->beta && strcmp(o->name, "beta") == 0) to = &out->beta;
        if (!to)
            return FAIL(e, ST_UNSUPPORTED, "loss_fn_config: the loss '%s' has no option '%.100s'", r->loss_fn, o->name);
        if (o->text || !isfinite(o->number))
            return FAIL(e, ST_INVALID, "loss_fn_config: %s: expected a finite number", o->name);
        *to = o->number;
    }
    if (out->low > out->high)
        return FAIL(e, ST_INVALID, "loss_fn_config: clip_low_threshold %g is above clip_high_threshold %g", out->low,
                    out->high);
    return ST_OK;
}

/* ---- a datum ------------------------------------------------------------------------------------------------------*/

/* Its tensors by name. */
struct tensors {
    const struct wire_tensor *targets, *weights, *logprobs, *advantages, *mask;
};

static enum status sort_tensors(const struct wire_datum *w, const char *loss, const struct inputs *in, int at,
                                struct tensors *t, struct err *e) {
    *t = (struct tensors){0};
    for (int i = 0; i < w->n_tensors; i++) {
        const struct wire_tensor *x = &w->tensor[i];
        if (strcmp(x->name, "target_tokens") == 0)
            t->targets = x;
        else if (in->weights && strcmp(x->name, "weights") == 0)
            t->weights = x;
        else if (in->policy && strcmp(x->name, "logprobs") == 0)
            t->logprobs = x;
        else if (in->policy && strcmp(x->name, "advantages") == 0)
            t->advantages = x;
        else if (in->mask && strcmp(x->name, "sequence_ratio_mask") == 0)
            t->mask = x;
        else
            return FAIL(e, ST_UNSUPPORTED, "datum %d: loss_fn_inputs: the loss '%s' takes no '%.100s'", at, loss,
                        x->name);
    }
    return ST_OK;
}

/* A tensor of the shape of the targets. */
static enum status need(const struct wire_tensor *x, const char *name, const struct wire_tensor *like, int at,
                        struct err *e) {
    if (!x) return FAIL(e, ST_INVALID, "datum %d: loss_fn_inputs: %s is missing", at, name);
    if (x->dtype != WIRE_F32) return FAIL(e, ST_INVALID, "datum %d: loss_fn_inputs: %s must be float32", at, name);
    if (x->nd != like->nd || memcmp(x->dim, like->dim, (size_t)x->nd * sizeof *x->dim) != 0)
        return FAIL(e, ST_INVALID, "datum %d: loss_fn_inputs: %s has not the shape of target_tokens", at, name);
    return ST_OK;
}

static enum status check_targets(const struct wire_tensor *t, int64_t n, bool soft, int at, struct err *e) {
    if (!t) return FAIL(e, ST_INVALID, "datum %d: loss_fn_inputs: target_tokens is missing", at);
    if (t->dtype != WIRE_I64) return FAIL(e, ST_INVALID, "datum %d: loss_fn_inputs: target_tokens must be int64", at);
    if (t->nd > (soft ? 2 : 1) || t->dim[0] != n || t->n == 0)
        return FAIL(e, ST_INVALID, "datum %d: target_tokens must have the shape [%lld]%s, one row for each input token",
                    at, (long long)n, soft ? " or [N, K]" : "");
    return ST_OK;
}

static enum status copy_targets(const struct wire_tensor *t, int32_t vocab, int at, struct arena *a, int32_t **out,
                                struct err *e) {
    *out = arena_array(a, int32_t, t->n);
    for (int64_t i = 0; i < t->n; i++) {
        if (t->i[i] < 0 || t->i[i] >= vocab)
            return FAIL(e, ST_INVALID, "datum %d: target token %lld is %lld, expected 0 to %d", at, (long long)i,
                        (long long)t->i[i], vocab - 1);
        (*out)[i] = (int32_t)t->i[i];
    }
    return ST_OK;
}

/* The tokens before the first one that is learned, and one: what neighbours with the same prompt share. A weight of -0
 * counts as one that is learned: a client can say so where an answer begins whose first weights are zero. */
static int64_t prompt_length(const float *weights, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < width; k++)
            if (weights[r * width + k] != 0 || signbit(weights[r * width + k])) return r + 1;
    return rows;
}

static enum status make_datum(const struct wire_datum *w, const struct wire_training *r, const struct inputs *in,
                              int32_t vocab, int64_t max_tokens, int at, struct arena *a, struct datum *d,
                              struct err *e) {
    struct tensors t;
    int32_t *targets;
    if (w->other != WIRE_NOTHING)
        return FAIL(e, ST_UNSUPPORTED, "datum %d: %s are not supported here", at,
                    w->other == WIRE_IMAGE ? "images" : "audio tokens (dmel)");
    if (w->n < 1) return FAIL(e, ST_INVALID, "datum %d has no tokens", at);
    if (w->n > max_tokens)
        return FAIL(e, ST_INVALID, "datum %d has %lld tokens, the model takes %lld", at, (long long)w->n,
                    (long long)max_tokens);
    for (int64_t i = 0; i < w->n; i++)
        if (w->ids[i] < 0 || w->ids[i] >= vocab)
            return FAIL(e, ST_INVALID, "datum %d: token %lld is %d, expected 0 to %d", at, (long long)i, w->ids[i],
                        vocab - 1);
    TRY(sort_tensors(w, r->loss_fn, in, at, &t, e));
    TRY(check_targets(t.targets, w->n, in->weights, at, e));
    if (in->weights) TRY(need(t.weights, "weights", t.targets, at, e));
    if (in->policy) TRY(need(t.logprobs, "logprobs", t.targets, at, e));
    if (in->policy) TRY(need(t.advantages, "advantages", t.targets, at, e));
    if (in->mask) TRY(need(t.mask, "sequence_ratio_mask", t.targets, at, e));
    TRY(copy_targets(t.targets, vocab, at, a, &targets, e));
    const int64_t width = t.targets->nd == 2 ? t.targets->dim[1] : 1;
    const float *weights = in->weights ? t.weights->f : t.advantages->f;
    *d = (struct datum){.ids = w->ids,
                        .n = w->n,
                        .prompt = prompt_length(weights, w->n, width),
                        .end = w->n,
                        .K = t.targets->nd == 2 ? (int)width : 0,
                        .targets = targets,
                        .weights = weights,
                        .sampled = in->policy ? t.logprobs->f : NULL,
                        .mask = in->mask ? t.mask->f : NULL,
                        .scale = 1,
                        .logp = arena_array(a, float, t.targets->n)};
    return ST_OK;
}

/* ---- requests -----------------------------------------------------------------------------------------------------*/

static int64_t pieces_of(const struct datum *d) {
    return i64_max(1, (d->K + DATUM_MAX_TARGETS - 1) / DATUM_MAX_TARGETS);
}

/* Columns [from, from + width) of x [rows, K], whose numbers have four bytes. */
static void *columns(const void *x, int64_t rows, int64_t K, int64_t from, int64_t width, struct arena *a) {
    char *out = arena_alloc(a, (size_t)(4 * rows * width));
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + 4 * r * width, (const char *)x + 4 * (r * K + from), (size_t)(4 * width));
    return out;
}

/* A part of a wide datum's targets. Its prompt is one token, since parts that share their rows take the memory of all
 * their targets at once. Parts of a text of one token share it all the same: datums_cut() bounds them. */
static struct datum piece_of(const struct datum *d, int64_t from, struct arena *a) {
    const int64_t rows = d->end - d->begin, width = i64_min(DATUM_MAX_TARGETS, d->K - from);
    struct datum p = *d;
    p.prompt = 1;
    p.K = (int)width;
    p.targets = columns(d->targets, rows, d->K, from, width, a);
    p.weights = columns(d->weights, rows, d->K, from, width, a);
    p.logp = arena_array(a, float, rows *width);
    return p;
}

static enum status lay_out(struct datums *x, struct arena *a, struct err *e) {
    int64_t n = 0;
    for (int i = 0; i < x->n_asked; i++) n += pieces_of(&x->asked[i]);
    if (n > INT32_MAX) return FAIL(e, ST_INVALID, "the request has too many targets: send fewer at once");
    x->d = arena_array(a, struct datum, n);
    x->of = arena_array(a, int, n);
    for (int i = 0; i < x->n_asked; i++) {
        const struct datum *d = &x->asked[i];
        const int64_t pieces = pieces_of(d);
        for (int64_t k = 0; k < pieces; k++) {
            x->of[x->n] = i;
            x->d[x->n++] = pieces == 1 ? *d : piece_of(d, k * DATUM_MAX_TARGETS, a);
            x->work += d->n;
        }
    }
    return ST_OK;
}

enum status datums_make(const struct wire_training *r, int32_t vocab, int64_t max_tokens, struct arena *a,
                        struct datums *out, struct err *e) {
    *out = (struct datums){.n_asked = r->n, .forward_only = r->forward_only};
    TRY(read_loss(r, &out->loss, e));
    if (r->n == 0) return FAIL(e, ST_INVALID, "the request has no datum");
    out->asked = arena_array(a, struct datum, r->n);
    for (int i = 0; i < r->n; i++) {
        TRY(make_datum(&r->datum[i], r, &inputs_of[out->loss.kind], vocab, max_tokens, i, a, &out->asked[i], e));
        out->tokens += out->asked[i].n;
    }
    return lay_out(out, a, e);
}

/* The trainer's leaves; but texts that share their rows may have any number of targets for few rows, and are cut where
 * these are more than train_tokens rows of the widest datum have. */
void datums_cut(struct datums *x, int64_t train_tokens, struct arena *a) {
    const int64_t most = i64_min(train_tokens, INT32_MAX) * DATUM_MAX_TARGETS;
    int *leaf = arena_array(a, int, x->n), n = 0;
    const int leaves = train_leaves(x->d, x->n, train_tokens, leaf);
    x->end = arena_array(a, int, x->n);
    for (int k = 0, i = 0; k < leaves; k++) {
        for (int64_t targets = 0; i < leaf[k]; i++) {
            const int64_t more = (x->d[i].end - x->d[i].begin) * i64_max(1, x->d[i].K);
            if (targets > 0 && targets + more > most) {
                x->end[n++] = i;
                targets = 0;
            }
            targets += more;
        }
        x->end[n++] = leaf[k];
    }
}

int datums_group_end(const struct datums *x, int at) {
    int k = 0;
    while (x->end[k] <= at) k++;
    return x->end[k];
}

enum status datums_loss(const struct datums *x, int begin, int end, double *loss, struct err *e) {
    for (int i = begin; i < end; i++) {
        const struct datum *d = &x->d[i];
        const struct summed_sequence s = {(d->end - d->begin) * i64_max(d->K, 1), d->logp, d->weights, d->sampled,
                                          d->mask};
        CLEANUP_FREE float *g = xmalloc((size_t)s.n * sizeof *g);
        if (summed_grad(&x->loss, &s, g, loss, e) != ST_OK) return err_note(e, "datum %d", x->of[i]);
    }
    return ST_OK;
}

/* Puts what the pieces of wide datums have got in its place. */
static void gather(const struct datums *x) {
    for (int i = 0, from = 0; i < x->n; i++) {
        const struct datum *d = &x->d[i], *to = &x->asked[x->of[i]];
        if (d->K == to->K) continue;
        if (i == 0 || x->of[i - 1] != x->of[i]) from = 0;
        for (int64_t r = 0; r < d->end - d->begin; r++)
            memcpy(to->logp + r * to->K + from, d->logp + r * d->K, (size_t)d->K * sizeof *d->logp);
        from += d->K;
    }
}

void datums_put_output(const struct datums *x, double loss, struct arena *a, struct str *out) {
    struct wire_output_datum *d = arena_array(a, struct wire_output_datum, x->n_asked);
    const struct wire_metric metric[] = {{"loss:sum", loss}, {"tokens:sum", (double)x->tokens}};
    gather(x);
    for (int i = 0; i < x->n_asked; i++)
        d[i] = (struct wire_output_datum){x->asked[i].logp, x->asked[i].n, x->asked[i].K};
    wire_put_output(out, &(struct wire_output){"logprobs", d, x->n_asked, metric, ARRAY_LEN(metric)});
}
