#include "train/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "tensor/backend.h"
#include "train/audit.h"
#include "train/follow.h"
#include "train/round.h"

/* Several ranks: a rank has up to ROUND_WIDTH leaves of a round where the gradients of all but one take at most so many
 * floats: 1 GiB, six times an adapter of rank 32 of a 7B model. */
#define SPARE_FLOATS (INT64_C(1) << 28)

enum status trainer_prepare(const struct comm *c, struct model *m, bool lora, struct err *e) {
    const bool lent = c->size > 1 && strcmp(model_dtype(m), "bf16") == 0;
    return model_train_prepare(m, lora ? TRAIN_LORA : lent ? TRAIN_FULL_LENT : TRAIN_FULL, e);
}

/* Leaves that a rank may have in a round, and room for all but one of them. */
static enum status open_spare(struct trainer *t, const struct train_set *s, struct err *e) {
    struct backend *be = model_backend(t->model);
    t->width = t->comm->size == 1 ? 1 : (int)i64_min(ROUND_WIDTH, 1 + SPARE_FLOATS / s->n_g);
    if (t->width == 1) return ST_OK;
    const int64_t bytes = (t->width - 1) * s->n_g * (int64_t)sizeof(float), have = be->mem_available(be);
    t->spare = bytes < have ? be->mem_alloc(be, (size_t)bytes) : NULL;
    if (t->spare) return ST_OK;
    return FAIL(e, ST_MEMORY, "gradients of %d micro-batches need %.2f GB, of which %.2f GB are free", t->width - 1,
                (double)bytes * 1e-9, (double)have * 1e-9);
}

static enum status open_moments(struct trainer *t, const struct train_set *s, struct err *e) {
    struct backend *be = model_backend(t->model);
    if (!s->lent) return adamw_create(be, s->param, s->n, &t->opt, e);
    int64_t at, n;
    const struct adamw_parts parts = follow_parts(t);
    fold_slice(t->sum, t->comm->rank, &at, &n);
    return adamw_create_part(be, s->n, s->g, at, n, &parts, &t->opt, e);
}

enum status trainer_open(struct comm *c, struct model *m, int adapter, int64_t train_tokens, struct trainer **out,
                         struct err *e) {
    const struct train_set s = model_train_set(m, adapter);
    *out = NULL;
    if (!s.g) return FAIL(e, ST_INVALID, "adapter %d is not prepared for training (model_adapter_prepare)", adapter);
    struct trainer *t = *out = xcalloc(1, sizeof *t);
    *t = (struct trainer){.comm = c, .model = m, .adapter = adapter, .base = s.base, .train_tokens = train_tokens};
    t->leaves = xcalloc((size_t)c->size, sizeof *t->leaves);
    t->busy_s = xcalloc(2 * (size_t)c->size, sizeof *t->busy_s);
    t->audit_every = AUDIT_EVERY;
    enum status st = fold_open(c, model_backend(m), s.n_g, &t->sum, e);
    if (st == ST_OK) st = open_spare(t, &s, e);
    if (st == ST_OK) st = open_moments(t, &s, e);
    if (st == ST_OK) return ST_OK;
    trainer_close(t);
    *out = NULL;
    return st;
}

void trainer_close(struct trainer *t) {
    if (!t) return;
    struct backend *be = model_backend(t->model);
    adamw_free(t->opt);
    fold_close(t->sum);
    be->mem_free(be, t->spare);
    free(t->leaves);
    free(t->busy_s);
    rest_free(t->rest);
    arena_free(&t->datums);
    arena_free(&t->parts);
    arena_free(&t->micro);
    free(t);
}

static int targets_a_row(const struct datum *d) { return d->K > 1 ? d->K : 1; }
static int64_t targets_of(const struct datum *d) { return (d->end - d->begin) * targets_a_row(d); }

/* ---- what is refused ----------------------------------------------------------------------------------------------*/

static bool all_finite(const float *x, int64_t n) {
    for (int64_t i = 0; x && i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static enum status check_ids(const char *what, const int32_t *ids, int64_t n, int32_t V, int at, struct err *e) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= V)
            return FAIL(e, ST_INVALID, "datum %d: %s %lld is %d, expected 0 to %d", at, what, (long long)i, ids[i],
                        V - 1);
    return ST_OK;
}

static enum status check_shape(const struct model_config *c, const struct datum *d, int at, struct err *e) {
    if (d->n < 1) return FAIL(e, ST_INVALID, "datum %d has no tokens", at);
    if (d->n > c->max_positions)
        return FAIL(e, ST_INVALID, "datum %d has %lld tokens, the model takes %d", at, (long long)d->n,
                    c->max_positions);
    if (d->prompt < 1 || d->prompt > d->n)
        return FAIL(e, ST_INVALID, "datum %d: the prompt has %lld of %lld tokens, expected 1 to all of them", at,
                    (long long)d->prompt, (long long)d->n);
    if (d->begin < 0 || d->begin >= d->end || d->end > d->n)
        return FAIL(e, ST_INVALID, "datum %d: rows %lld to %lld predict, of %lld; expected at least one", at,
                    (long long)d->begin, (long long)d->end, (long long)d->n);
    TRY(check_ids("token", d->ids, d->n, c->V, at, e));
    return check_ids("target", d->targets, targets_of(d), c->V, at, e);
}

static enum status check_loss(const struct loss_params *p, const struct datum *d, int at, struct err *e) {
    static const char *const names[] = {CHOICE_NAMES(LOSS_LIST)};
    const int64_t n = d->end - d->begin;
    const bool plain = p->kind == LOSS_CROSS_ENTROPY || p->kind == LOSS_REINFORCE;
    if (!d->weights || !all_finite(d->weights, targets_of(d)) || !isfinite(d->scale))
        return FAIL(e, ST_INVALID, "datum %d: a weight or the scale is missing or not finite", at);
    if (d->likelihood) return ST_OK;
    if (targets_a_row(d) > 1) {
        if (!plain || p->kl_coef != 0 || p->entropy_coef != 0 || d->sampled || d->old)
            return FAIL(e, ST_INVALID,
                        "datum %d has %d targets a row, which cross_entropy takes, without KL, entropy and recorded "
                        "log-probabilities",
                        at, d->K);
        return ST_OK;
    }
    if (!plain && !d->old && !d->sampled)
        return FAIL(e, ST_INVALID, "datum %d: the loss %s needs the sampler's log-probabilities", at, names[p->kind]);
    if (p->kl_coef != 0 && !d->ref)
        return FAIL(e, ST_INVALID, "datum %d: a KL term needs the reference's log-probabilities", at);
    if (!all_finite(d->sampled, n) || !all_finite(d->old, n) || !all_finite(d->ref, n))
        return FAIL(e, ST_INVALID, "datum %d: a recorded log-probability is not finite", at);
    return ST_OK;
}

static enum status check_summed(const struct trainer *t, const struct summed_loss *l, const struct datum *d, int at,
                                struct err *e) {
    const int64_t n = targets_of(d);
    if (t->comm->size > 1) return FAIL(e, ST_INVALID, "a summed loss is of one rank alone");
    if (!isfinite(l->low) || !isfinite(l->high) || !isfinite(l->beta))
        return FAIL(e, ST_INVALID, "a parameter of the loss is not finite");
    if (!d->weights || !all_finite(d->weights, n))
        return FAIL(e, ST_INVALID, "datum %d: a weight or advantage is missing or not finite", at);
    if (l->kind == SUMMED_CROSS_ENTROPY) return ST_OK;
    if (targets_a_row(d) > 1)
        return FAIL(e, ST_INVALID, "datum %d has %d targets a row, which cross_entropy alone takes", at, d->K);
    if (!d->sampled) return FAIL(e, ST_INVALID, "datum %d: the loss needs the sampler's log-probabilities", at);
    for (int64_t i = 0; i < n; i++) {
        const bool counts =
            d->weights[i] != 0 || l->kind == SUMMED_DRO || (l->kind == SUMMED_GSPO && (!d->mask || d->mask[i] != 0));
        if (counts && !isfinite(d->sampled[i]))
            return FAIL(e, ST_INVALID, "datum %d: the sampler's log-probability of token %lld is not finite", at,
                        (long long)i);
    }
    return ST_OK;
}

/* ---- datums -> micro-batches --------------------------------------------------------------------------------------*/

/* Datums [begin, end) share a prompt and stay together: so many rows. */
struct datum_part {
    int begin, end;
    int64_t rows;
};

static bool same_prompt(const struct datum *a, const struct datum *b) {
    return a->prompt == b->prompt && memcmp(a->ids, b->ids, (size_t)a->prompt * sizeof *a->ids) == 0;
}

/* Parts of a run of datums that share a prompt, each of at most `most` rows where a single datum allows, the first ones
 * as large as they may be. A datum that predicts inside the prompt alone takes no rows of its own and goes with the
 * next. parts: room for as many as there are datums, or NULL. Returns their number. */
static int cut_run(const struct datum *d, int begin, int end, int64_t most, struct datum_part *parts) {
    const int64_t prompt = d[begin].prompt;
    int64_t rows = prompt;
    int count = 0;
    bool answers = false; /* true: the part that is growing has a datum that goes on behind the prompt */
    for (int i = begin; i <= end; i++) {
        const int64_t more = i < end ? d[i].n - prompt : 0;
        if (i == end || (answers && rows + more > most)) {
            if (parts) parts[count] = (struct datum_part){begin, i, rows};
            count++;
            begin = i;
            rows = prompt;
            answers = false;
        }
        rows += more;
        answers |= i < end && (d[i].n > prompt || d[i].end >= prompt);
    }
    return count;
}

/* Parts of all datums: as few as there can be, and as even ones: a small rest would occupy a GPU badly. */
static int cut(int64_t train_tokens, const struct datum *d, int n, struct datum_part *parts) {
    int count = 0;
    for (int begin = 0, end; begin < n; begin = end) {
        end = begin + 1;
        while (end < n && same_prompt(&d[begin], &d[end])) end++;
        const int fewest = cut_run(d, begin, end, train_tokens, NULL);
        int64_t low = 0, high = train_tokens; /* high is enough for so few, low is not */
        while (fewest > 1 && high - low > 1) {
            const int64_t middle = low + (high - low) / 2;
            if (cut_run(d, begin, end, middle, NULL) > fewest)
                low = middle;
            else
                high = middle;
        }
        count += cut_run(d, begin, end, high, parts + count);
    }
    return count;
}

/* The end of the micro-batch that begins at parts[i]. */
static int micro_end(int64_t train_tokens, const struct datum_part *parts, int i, int n) {
    int64_t rows = parts[i].rows;
    int j = i + 1;
    while (j < n && rows + parts[j].rows <= train_tokens) rows += parts[j++].rows;
    return j;
}

int train_leaves(const struct datum *d, int n, int64_t train_tokens, int *end) {
    CLEANUP_FREE struct datum_part *parts = xmalloc((size_t)n * sizeof *parts);
    const int n_parts = cut(train_tokens, d, n, parts);
    int leaves = 0;
    for (int i = 0; i < n_parts;) {
        i = micro_end(train_tokens, parts, i, n_parts);
        end[leaves++] = parts[i - 1].end;
    }
    return leaves;
}

/* One micro-batch, laid out as model.h wants it: each prompt once, then what its datums go on with as segments that
 * continue it. The targets of its datums [begin, end) lie one behind the other. */
struct micro {
    struct train_batch batch;
    float *logp, *entropy, *g;
    const struct datum_part *parts; /* [n_parts] */
    int n_parts, begin, end;
    int owner;         /* the rank that computes it */
    const float *leaf; /* on that rank: its gradient, in device memory */
};

/* What is known of a micro-batch without its rows, and room for what comes of its targets. */
static void micro_outline(struct arena *memory, const struct datum *d, const struct datum_part *parts, int n,
                          struct micro *b) {
    *b = (struct micro){.begin = parts[0].begin, .end = parts[n - 1].end, .parts = parts, .n_parts = n};
    for (int i = 0; i < n; i++) b->batch.T += parts[i].rows;
    for (int i = b->begin; i < b->end; i++) b->batch.N += targets_of(&d[i]);
    b->logp = arena_array(memory, float, b->batch.N);
    b->entropy = arena_array(memory, float, b->batch.N);
    b->g = arena_array(memory, float, b->batch.N);
}

/* Lays out the rows of a micro-batch that has its outline. */
static void micro_build(struct arena *memory, const struct datum *d, int adapter, struct micro *b) {
    const struct datum_part *parts = b->parts;
    const int n = b->n_parts;
    int64_t T = b->batch.T, N = b->batch.N, S = 0;
    int32_t *ids = arena_array(memory, int32_t, T), *rows = arena_array(memory, int32_t, N),
            *targets = arena_array(memory, int32_t, N);
    struct segment *seg = arena_array(memory, struct segment, n + b->end - b->begin);
    T = N = 0;
    for (int i = 0; i < n; i++) {
        const int64_t prompt = d[parts[i].begin].prompt, start = T, prompt_seg = S;
        seg[S++] = (struct segment){start, prompt, -1, adapter};
        memcpy(ids + start, d[parts[i].begin].ids, (size_t)prompt * sizeof *ids);
        T += prompt;
        for (int j = parts[i].begin; j < parts[i].end; j++) {
            const int64_t own = d[j].n - prompt, K = targets_a_row(&d[j]);
            memcpy(targets + N, d[j].targets, (size_t)targets_of(&d[j]) * sizeof *targets);
            for (int64_t r = d[j].begin; r < d[j].end; r++)
                for (int64_t k = 0; k < K; k++) rows[N++] = (int32_t)(r < prompt ? start + r : T + r - prompt);
            if (own == 0) continue;
            seg[S++] = (struct segment){T, own, (int)prompt_seg, adapter};
            memcpy(ids + T, d[j].ids + prompt, (size_t)own * sizeof *ids);
            T += own;
        }
    }
    b->batch =
        (struct train_batch){.ids = ids, .T = T, .seg = seg, .n_seg = (int)S, .rows = rows, .targets = targets, .N = N};
}

static void hand_out(const struct micro *b, const struct datum *d) {
    int64_t at = 0;
    for (int i = b->begin; i < b->end; at += targets_of(&d[i++]))
        if (d[i].logp) memcpy(d[i].logp, b->logp + at, (size_t)targets_of(&d[i]) * sizeof *b->logp);
}

/* ---- forward and backward -----------------------------------------------------------------------------------------*/

/* What stopped the step, and where it began as far as that can be seen. */
static enum status not_finite(const struct trainer *t, const char *what, int64_t step, struct err *e) {
    char where[400] = "weights, activations and gradients are finite";
    model_find_nonfinite(t->model, t->adapter, FIND_WEIGHTS | FIND_ACTIVATIONS | FIND_GRADIENTS, where, sizeof where);
    return FAIL(e, ST_FAILED, "%s is not finite at optimizer step %lld: %s", what, (long long)step, where);
}

/* Adds what the user can do about it. */
static enum status explain_memory(const struct trainer *t, enum status st, struct err *e) {
    if (st != ST_MEMORY) return st;
    struct err first = *e;
    return FAIL(e, ST_MEMORY, "%s; a train_tokens below %lld (and a shorter longest answer) needs less", first.msg,
                (long long)t->train_tokens);
}

static enum status datum_grad(const struct train_call *c, const struct datum *d, const struct micro *b, int64_t at,
                              struct train_stats *s, struct err *e) {
    const struct loss_params likelihood = {.kind = LOSS_CROSS_ENTROPY};
    struct loss_sequence q = {.n = targets_of(d), .logp = b->logp + at, .entropy = b->entropy + at, .adv = d->weights};
    if (c->summed) {
        const struct summed_sequence x = {targets_of(d), b->logp + at, d->weights, d->sampled, d->mask};
        return summed_grad(c->summed, &x, b->g + at, &s->loss.loss, e);
    }
    if (d->likelihood) {
        loss_grad(&likelihood, &q, d->scale, b->g + at, NULL);
        return ST_OK;
    }
    q.sampled = d->sampled;
    q.old = d->old ? d->old : d->sampled;
    q.ref = c->loss.kl_coef != 0 ? d->ref : NULL;
    loss_grad(&c->loss, &q, d->scale, b->g + at, &s->loss);
    for (int64_t i = 0; i < q.n; i++) {
        s->entropy += q.entropy[i];
        if (c->on_policy && q.sampled && !d->stale)
            s->kl_before = fmax(s->kl_before, fabs((double)q.logp[i] - (double)q.sampled[i]));
    }
    return ST_OK;
}

static enum status micro_forward(const struct trainer *t, const struct train_call *c, struct micro *b, struct err *e) {
    TRY(model_forward(t->model, &b->batch, b->logp, b->entropy, NULL, e));
    for (int64_t i = 0; i < b->batch.N; i++)
        if (!isfinite(b->logp[i])) return not_finite(t, "the log-probability of a token", c->step, e);
    return ST_OK;
}

/* From log-probabilities to d loss / d log-probability, and to what the statistics want. */
static enum status micro_losses(const struct train_call *c, const struct datum *d, struct micro *b,
                                struct train_stats *s, struct err *e) {
    hand_out(b, d);
    const double earlier = s->kl_before;
    int64_t at = 0;
    s->kl_before = 0;
    for (int i = b->begin; i < b->end; at += targets_of(&d[i++]))
        if (datum_grad(c, &d[i], b, at, s, e) != ST_OK) return err_note(e, "datum %d", i);
    const bool differs = s->kl_before != 0;
    s->kl_before = fmax(s->kl_before, earlier);
    if (c->on_policy && differs && c->exact)
        return FAIL(e, ST_FAILED,
                    "the trainer's log-probabilities differ from the sampler's by up to %g before any update; sampling "
                    "and training must agree bit for bit",
                    s->kl_before);
    s->rows += b->batch.T;
    return ST_OK;
}

/* A leaf: the gradient of this micro-batch alone, in the set's slab. */
static enum status micro_leaf(struct trainer *t, const struct micro *b, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(t->model);
    be->mem_zero(be, set.g, (size_t)set.n_g * sizeof(float));
    TRY(model_backward(t->model, &b->batch, b->g, e));
    if (t->leaf_done) t->leaf_done(t->leaf_done_ctx, set.g, set.n_g);
    return ST_OK;
}

/* What the rank does with its own micro-batch of a round; c NULL: log-probabilities alone. */
static enum status micro_work(struct trainer *t, struct model *m, int adapter, const struct train_call *c,
                              const struct datum *d, struct micro *b, struct train_stats *s, struct err *e) {
    struct backend *be = model_backend(m);
    micro_build(&t->micro, d, adapter, b);
    if (t->border) {
        if (be->sync) TRY(be->sync(be, e));
        t->border(t->border_ctx);
    }
    if (!c) {
        b->batch.forward_only = true;
        return model_forward(m, &b->batch, b->logp, NULL, NULL, e);
    }
    TRY(micro_forward(t, c, b, e));
    TRY(micro_losses(c, d, b, s, e));
    return micro_leaf(t, b, e);
}

/* The log-probabilities, and for training the entropies, of each micro-batch become everybody's. */
static enum status share(struct comm *c, struct micro *b, int n, bool entropy, struct err *e) {
    for (int i = 0; i < n && c->size > 1; i++) {
        const size_t bytes = (size_t)b[i].batch.N * sizeof(float);
        TRY(c->bcast(c, b[i].owner, b[i].logp, bytes, e));
        if (entropy) TRY(c->bcast(c, b[i].owner, b[i].entropy, bytes, e));
    }
    return ST_OK;
}

/* ---- leaves computed twice ----------------------------------------------------------------------------------------*/

/* The number of a leaf that lies in the set's slab, and of its log-probabilities. */
static enum status leaf_hash(struct trainer *t, const struct micro *b, uint64_t *hash, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    return audit_hash(model_backend(t->model), set.g, set.n_g, b->logp, b->batch.N, hash, e);
}

/* This rank computes a leaf, whosever it is. */
static enum status leaf_again(struct trainer *t, const struct train_call *c, const struct datum *d,
                              const struct micro *of, uint64_t *hash, struct err *e) {
    struct train_stats unread = {0};
    struct micro b;
    micro_outline(&t->micro, d, of->parts, of->n_parts, &b);
    TRY(micro_work(t, t->model, t->adapter, c, d, &b, &unread, e));
    return leaf_hash(t, &b, hash, e);
}

/* A rank's name, and what it computed. */
struct said {
    char host[64];
    uint64_t own, other; /* numbers of its own leaf, and of the one that it computed again */
};

/* Leaf number `owner` of the round differs between two ranks: all compute it, to find out who is wrong. */
static enum status settle(struct trainer *t, const struct train_call *c, const struct datum *d, const struct micro *b,
                          const struct said *said, int owner, int other, struct err *e) {
    struct comm *comm = t->comm;
    uint64_t mine = 0;
    CLEANUP_FREE uint64_t *again = xcalloc((size_t)comm->size, sizeof *again);
    TRY(comm_agree(comm, leaf_again(t, c, d, &b[owner], &mine, e), e));
    TRY(comm->allgather(comm, &mine, sizeof mine, again, e));
    const struct audit_dispute dispute = {owner, other, said[owner].own, said[other].other, again};
    const int wrong = audit_wrong(&dispute, comm->size);
    if (wrong < 0)
        return FAIL(
            e, ST_DEVICE,
            "rank %d on %s and rank %d on %s compute different gradients from the same micro-batch at optimizer "
            "step %lld; which of them is wrong cannot be told",
            owner, said[owner].host, other, said[other].host, (long long)c->step);
    return FAIL(e, ST_DEVICE,
                "rank %d on %s computes wrong gradients: at optimizer step %lld its numbers are not those of the other "
                "ranks; without that device the same command goes on from the last checkpoint",
                wrong, said[wrong].host, (long long)c->step);
}

/* Each of the round's n leaves is computed by a second rank, too, and compared. */
static enum status audit_round(struct trainer *t, const struct train_call *c, const struct datum *d,
                               const struct micro *b, int n, struct err *e) {
    struct comm *comm = t->comm;
    const int64_t number = t->rounds / t->audit_every;
    struct said mine = {.host = ""};
    enum status st = ST_OK;
    gethostname(mine.host, sizeof mine.host - 1);
    if (comm->rank < n) st = leaf_hash(t, &b[comm->rank], &mine.own, e);
    for (int r = 0; r < n && st == ST_OK; r++)
        if (audit_other(r, comm->size, number) == comm->rank) st = leaf_again(t, c, d, &b[r], &mine.other, e);
    TRY(comm_agree(comm, st, e));
    CLEANUP_FREE struct said *all = xcalloc((size_t)comm->size, sizeof *all);
    TRY(comm->allgather(comm, &mine, sizeof mine, all, e));
    t->audited += n;
    for (int r = 0; r < n; r++) {
        const int other = audit_other(r, comm->size, number);
        if (all[r].own != all[other].other) return settle(t, c, d, b, all, r, other, e);
    }
    return ST_OK;
}

/* All ranks agree on what came of work on their devices. Where devices reach each other, another rank may be waiting
 * for bytes from the one that has failed, and would never come here: the job ends. */
static enum status agree(struct trainer *t, enum status st, struct err *e) {
    if (st != ST_DEVICE || t->comm->size == 1 || model_backend(t->model)->peers != t->comm->size)
        return comm_agree(t->comm, st, e);
    const struct err first = *e;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    return FAIL(e, ST_LOST, "rank %d on %s: %.900s", t->comm->rank, host, first.msg);
}

/* ---- rounds -------------------------------------------------------------------------------------------------------*/

/* Who computes which of a round's n micro-batches, at most `width` a rank. */
static void assign(struct arena *memory, struct micro *b, int n, int ranks, int width) {
    int64_t *rows = arena_array(memory, int64_t, n);
    int *owner = arena_array(memory, int, n);
    for (int i = 0; i < n; i++) rows[i] = b[i].batch.T;
    round_assign(rows, n, ranks, width, owner);
    for (int i = 0; i < n; i++) b[i].owner = owner[i];
}

/* This rank's micro-batches of a round. Their gradients stay: the last one's in the set's slab, the others' in `spare`.
 */
static enum status work(struct trainer *t, struct model *m, int adapter, const struct train_call *c,
                        const struct datum *d, struct micro *b, int n, struct train_stats *s, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(m);
    const double begin = clock_now_s();
    struct micro *last = NULL;
    for (int i = 0, kept = 0; i < n; i++) {
        if (b[i].owner != t->comm->rank) continue;
        if (last && c) {
            float *const place = t->spare + kept++ * set.n_g;
            be->mem_copy(be, place, set.g, (size_t)set.n_g * sizeof(float));
            last->leaf = place;
        }
        TRY(explain_memory(t, micro_work(t, m, adapter, c, d, &b[i], s, e), e));
        last = &b[i];
        last->leaf = set.g;
    }
    if (last && t->comm->size > 1) TRY(be->sync(be, e)); /* for its time */
    if (last) t->busy += clock_now_s() - begin;
    return ST_OK;
}

/* Adds the leaves in their order, as many at a time as are of different ranks; also where this rank's device has
 * failed, because the others wait for what it sends. */
static enum status fold(struct trainer *t, const struct micro *b, int n, struct err *e) {
    int *owner = arena_array(&t->micro, int, n);
    enum status st = ST_OK;
    struct err later;
    for (int i = 0; i < n && st != ST_LOST;) {
        const float *leaf = NULL;
        int k = 0;
        for (bool again = false; i < n && !again;) {
            for (int j = 0; j < k; j++) again |= owner[j] == b[i].owner;
            if (again) break;
            if (b[i].owner == t->comm->rank) leaf = b[i].leaf;
            owner[k++] = b[i++].owner;
        }
        const enum status now = fold_add(t->sum, leaf, owner, k, st == ST_OK ? e : &later);
        if (st != ST_OK && now == ST_LOST) *e = later;
        if (st == ST_OK || now == ST_LOST) st = now;
    }
    return st;
}

/* A round: the next n micro-batches. What the statistics add up they add up on every rank, from the first token to the
 * last, so that their bits do not depend on who computed what. */
static enum status micro_round(struct trainer *t, struct model *m, int adapter, const struct train_call *c,
                               const struct datum *d, struct micro *b, int n, bool audited, struct train_stats *s,
                               struct err *e) {
    struct comm *comm = t->comm;
    struct train_stats unread = {0};
    const bool alone = comm->size == 1;
    enum status st = work(t, m, adapter, c, d, b, n, alone ? s : &unread, e);
    TRY(alone ? st : agree(t, st, e));
    TRY(share(comm, b, n, c != NULL, e));
    for (int i = 0; i < n; i++) {
        if (!c) hand_out(&b[i], d);
        if (c && !alone) TRY(micro_losses(c, d, &b[i], s, e));
        if (c) t->leaves[b[i].owner]++;
    }
    if (!c) return ST_OK;
    st = fold(t, b, n, e);
    TRY(alone || st == ST_LOST ? st : agree(t, st, e));
    if (audited) TRY(audit_round(t, c, d, b, n, e));
    t->rounds += (n + comm->size - 1) / comm->size;
    return ST_OK;
}

/* All micro-batches of a call. c NULL: log-probabilities alone. A round that is audited has one micro-batch a rank, and
 * none goes past the next such round. */
static enum status micro_batches(struct trainer *t, struct model *m, int adapter, const struct train_call *c,
                                 const struct datum *d, int n, struct train_stats *s, struct err *e) {
    const int ranks = t->comm->size;
    arena_reset(&t->parts);
    struct datum_part *parts = arena_array(&t->parts, struct datum_part, n);
    struct micro *b = arena_array(&t->parts, struct micro, ranks * t->width);
    const int n_parts = cut(t->train_tokens, d, n, parts);
    for (int i = 0; i < n_parts;) {
        const int64_t since = c && ranks > 1 && t->audit_every > 0 ? t->rounds % t->audit_every : -1;
        const int width = since < 0 ? t->width : since == 0 ? 1 : (int)i64_min(t->width, t->audit_every - since);
        int leaves = 0;
        arena_reset(&t->micro);
        for (int next; i < n_parts && leaves < ranks * width; i = next) {
            next = micro_end(t->train_tokens, parts, i, n_parts);
            micro_outline(&t->micro, d, parts + i, next - i, &b[leaves++]);
        }
        assign(&t->micro, b, leaves, ranks, width);
        TRY(micro_round(t, m, adapter, c, d, b, leaves, since == 0, s, e));
    }
    return ST_OK;
}

/* The parameters are those that the trainer was opened for. */
static enum status check_prepared(const struct trainer *t, struct err *e) {
    const struct train_set s = model_train_set(t->model, t->adapter);
    if (t->rest) return FAIL(e, ST_INVALID, "the trainer of adapter %d is at rest (trainer_wake)", t->adapter);
    if (s.g && s.base == t->base) return ST_OK;
    return FAIL(e, ST_INVALID, "adapter %d is not prepared for training any more", t->adapter);
}

static void begin(struct trainer *t) {
    if (!t->begun) fold_begin(t->sum);
    t->begun = true;
}

static enum status check_datums(const struct trainer *t, const struct train_call *c, const struct datum *d, int n,
                                struct err *e) {
    for (int i = 0; i < n; i++) {
        TRY(check_shape(model_cfg(t->model), &d[i], i, e));
        TRY(c->summed ? check_summed(t, c->summed, &d[i], i, e) : check_loss(&c->loss, &d[i], i, e));
    }
    return ST_OK;
}

static uint64_t hash_array(const void *p, int64_t n, size_t element, uint64_t hash) {
    return p ? hash_bytes(p, (size_t)n * element, hash) : hash_bytes("", 1, hash);
}

/* All that decides the gradient, beside the weights. Fields, since structs have gaps. */
static uint64_t history_of_call(const struct train_call *c, int64_t train_tokens, const struct datum *d, int n,
                                uint64_t hash) {
    const struct loss_params *p = &c->loss;
    const double loss[] = {p->kind,     p->clip_low,   p->clip_high,      p->clip_dual,
                           p->dro_beta, p->correction, p->correction_low, p->correction_high,
                           p->kl_coef,  p->kl,         p->entropy_coef,   (double)train_tokens};
    hash = hash_bytes(loss, sizeof loss, hash);
    for (int i = 0; i < n; i++) {
        const struct datum *x = &d[i];
        const int64_t R = x->end - x->begin, shape[] = {x->n, x->prompt, x->begin, x->end, targets_a_row(x)};
        const double more[] = {x->scale, x->stale, x->likelihood};
        hash = hash_bytes(shape, sizeof shape, hash);
        hash = hash_bytes(more, sizeof more, hash);
        hash = hash_array(x->ids, x->n, sizeof *x->ids, hash);
        hash = hash_array(x->targets, targets_of(x), sizeof *x->targets, hash);
        hash = hash_array(x->weights, targets_of(x), sizeof *x->weights, hash);
        hash = hash_array(x->sampled, R, sizeof *x->sampled, hash);
        hash = hash_array(x->old, R, sizeof *x->old, hash);
        hash = hash_array(x->ref, R, sizeof *x->ref, hash);
        if (c->summed) hash = hash_array(x->mask, R, sizeof *x->mask, hash);
    }
    if (!c->summed) return hash;
    const double summed[] = {c->summed->kind, c->summed->low, c->summed->high, c->summed->beta};
    return hash_bytes(summed, sizeof summed, hash);
}

static uint64_t history_of_step(const struct adamw_config *c, double max_grad_norm, uint64_t hash) {
    const double step[] = {c->learning_rate, c->beta1, c->beta2, c->eps, c->weight_decay, max_grad_norm};
    return hash_bytes(step, sizeof step, hash);
}

enum status train_accumulate(struct trainer *t, const struct train_call *c, const struct datum *d, int n,
                             struct train_stats *stats, struct err *e) {
    TRY(check_prepared(t, e));
    TRY(check_datums(t, c, d, n, e));
    TRY(follow_tell_accumulate(t, c, d, n, e));
    begin(t);
    t->history = history_of_call(c, t->train_tokens, d, n, t->history);
    return comm_agree(t->comm, micro_batches(t, t->model, t->adapter, c, d, n, stats, e), e);
}

enum status train_forward(struct trainer *t, struct model *m, int adapter, const struct datum *d, int n,
                          struct err *e) {
    for (int i = 0; i < n; i++) TRY(check_shape(model_cfg(m), &d[i], i, e));
    TRY(follow_tell_forward(t, m, adapter, d, n, e));
    return micro_batches(t, m, adapter, NULL, d, n, NULL, e);
}

void train_forget(struct trainer *t) { t->begun = false; }

enum status train_mark_take(struct trainer *t, struct train_mark *out, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(t->model);
    *out = (struct train_mark){t->begun, t->history, NULL};
    TRY(check_prepared(t, e));
    if (t->comm->size > 1) return FAIL(e, ST_INVALID, "a mark is of one rank alone");
    if (!t->begun) return ST_OK;
    out->sum = xmalloc((size_t)set.n_g * sizeof(float));
    be->mem_get(be, out->sum, fold_sum(t->sum), (size_t)set.n_g * sizeof(float));
    return be->sync ? be->sync(be, e) : ST_OK;
}

enum status train_mark_restore(struct trainer *t, const struct train_mark *k, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(t->model);
    TRY(check_prepared(t, e));
    if (k->begun) be->mem_put(be, fold_sum(t->sum), k->sum, (size_t)set.n_g * sizeof(float));
    t->begun = k->begun;
    t->history = k->history;
    return be->sync ? be->sync(be, e) : ST_OK;
}

void train_mark_free(struct train_mark *k) {
    free(k->sum);
    k->sum = NULL;
}

/* Everybody's seconds become known to everybody. */
static enum status share_times(struct trainer *t, struct err *e) {
    double *all = t->busy_s + t->comm->size;
    TRY(t->comm->allgather(t->comm, &t->busy, sizeof t->busy, all, e));
    for (int r = 0; r < t->comm->size; r++) t->busy_s[r] += all[r];
    t->busy = 0;
    return ST_OK;
}

enum status train_optimizer_step(struct trainer *t, const struct adamw_config *c, double max_grad_norm, int64_t step,
                                 double *grad_norm, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(t->model);
    TRY(check_prepared(t, e));
    TRY(follow_tell_step(t, c, max_grad_norm, step, e));
    begin(t);
    TRY(share_times(t, e));
    t->history = history_of_step(c, max_grad_norm, t->history);
    enum status st = fold_end(t->sum, set.g, e);
    if (st == ST_LOST) return st;
    const double norm = *grad_norm = sqrt(be->sum_squares(be, set.g, set.n_g));
    if (st == ST_OK) st = be->sync(be, e);
    TRY(agree(t, st, e)); /* nobody's weights change by a sum of which a rank's part is missing */
    if (!isfinite(norm)) return not_finite(t, "the gradient", step, e);
    adamw_step(t->opt, set.param, set.n, c, max_grad_norm > 0 && norm > max_grad_norm ? max_grad_norm / norm : 1,
               false);
    if (set.lent) TRY(follow_gather_values(t, e));
    if (set.base)
        model_params_changed(t->model);
    else
        model_adapter_changed(t->model, t->adapter);
    train_forget(t);
    return ST_OK;
}

/* ---- at rest ------------------------------------------------------------------------------------------------------*/

/* What a trainer has beside each parameter of its set: as many arrays of the same size. */
enum { MOMENT_1, MOMENT_2, SUM, KINDS };
static const char *const kinds[KINDS] = {"m", "v", "sum"};

/* The arrays that rest, as parameters: of each kind one for each parameter. */
static int rest_list(const struct trainer *t, struct arena *names, struct param **out) {
    const struct train_set s = model_train_set(t->model, t->adapter);
    const int n_kinds = t->rest_sum ? KINDS : SUM;
    struct param *p = *out = arena_array(names, struct param, n_kinds * s.n);
    for (int k = 0; k < n_kinds; k++)
        for (int i = 0; i < s.n; i++) {
            float *const at[KINDS] = {t->opt->m[i], t->opt->v[i], fold_sum(t->sum) + (s.param[i].g - s.g)};
            *p = s.param[i];
            p->name = arena_printf(names, "%s.%s", kinds[k], s.param[i].name);
            (p++)->w = at[k];
        }
    return n_kinds * s.n;
}

static void give_memory(struct trainer *t) {
    adamw_free(t->opt);
    fold_close(t->sum);
    t->opt = NULL;
    t->sum = NULL;
    model_adapter_release(t->model, t->adapter);
}

static enum status take_memory(struct trainer *t, struct err *e) {
    struct backend *be = model_backend(t->model);
    TRY(model_adapter_wake(t->model, t->adapter, e));
    TRY(model_adapter_prepare(t->model, t->adapter, e));
    const struct train_set s = model_train_set(t->model, t->adapter);
    TRY(adamw_create(be, s.param, s.n, &t->opt, e));
    TRY(fold_open(t->comm, be, s.n_g, &t->sum, e));
    fold_begin(t->sum);
    return ST_OK;
}

enum status trainer_rest(struct trainer *t, const char *path, struct err *e) {
    struct arena names = ARENA_INIT;
    struct param *p;
    if (t->base) return FAIL(e, ST_INVALID, "a trainer of all weights cannot rest, one of an adapter can");
    if (t->comm->size > 1) return FAIL(e, ST_INVALID, "a trainer of several ranks cannot rest");
    if (t->rest && rest_path(t->rest))
        return FAIL(e, ST_INVALID, "the trainer of adapter %d is at rest in %s already", t->adapter,
                    rest_path(t->rest));
    if (t->rest) return path ? rest_to_file(t->rest, path, e) : ST_OK;
    TRY(check_prepared(t, e));
    t->rest_sum = t->begun;
    const int n = rest_list(t, &names, &p);
    const enum status st = rest_store(model_backend(t->model), p, n, path, &t->rest, e);
    arena_free(&names);
    TRY(st);
    t->rest_step = t->opt->step;
    give_memory(t);
    return ST_OK;
}

enum status trainer_wake(struct trainer *t, struct err *e) {
    struct arena names = ARENA_INIT;
    struct param *p;
    if (!t->rest) return ST_OK;
    enum status st = take_memory(t, e);
    if (st == ST_OK) {
        const int n = rest_list(t, &names, &p);
        st = rest_load(model_backend(t->model), t->rest, p, n, e);
        arena_free(&names);
    }
    if (st != ST_OK) {
        give_memory(t);
        return st;
    }
    t->opt->step = t->rest_step;
    rest_free(t->rest);
    t->rest = NULL;
    return ST_OK;
}
