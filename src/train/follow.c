#include "train/follow.h"

#include "tensor/backend.h"

/* ---- datums on their way ------------------------------------------------------------------------------------------*/

/* What a call begins with on the wire. */
struct call_head {
    int64_t train_tokens;
    bool begun;    /* of the trainer, in front of the call */
    bool training; /* false: log-probabilities alone, and the next two count */
    bool trained;  /* of the model that is trained, not of the reference */
    int adapter, n;
};

static int64_t rows_of(const struct datum *d) { return d->end - d->begin; }

static void pack_datum(struct str *s, const struct datum *d) {
    const int64_t R = rows_of(d), targets = R * (d->K > 1 ? d->K : 1);
    PACK(s, *d);
    pack_array(s, d->ids, d->n, sizeof *d->ids);
    pack_array(s, d->targets, targets, sizeof *d->targets);
    pack_array(s, d->weights, d->weights ? targets : 0, sizeof *d->weights);
    pack_array(s, d->sampled, d->sampled ? R : 0, sizeof *d->sampled);
    pack_array(s, d->old, d->old ? R : 0, sizeof *d->old);
    pack_array(s, d->ref, d->ref ? R : 0, sizeof *d->ref);
}

static void unpack_datum(struct unpack *u, struct datum *d) {
    int64_t n, targets, ignored;
    UNPACK(u, *d);
    d->ids = unpack_array(u, &n, sizeof *d->ids);
    d->targets = unpack_array(u, &targets, sizeof *d->targets);
    d->weights = unpack_array(u, &ignored, sizeof *d->weights);
    d->sampled = unpack_array(u, &ignored, sizeof *d->sampled);
    d->old = unpack_array(u, &ignored, sizeof *d->old);
    d->ref = unpack_array(u, &ignored, sizeof *d->ref);
    d->logp = NULL; /* rank 0 wants them */
    u->short_ |= n != d->n || targets != rows_of(d) * (d->K > 1 ? d->K : 1);
}

static void pack_call(struct str *s, const struct trainer *t, const struct call_head *rest, const struct datum *d) {
    struct call_head head = *rest;
    head.train_tokens = t->train_tokens;
    head.begun = t->begun;
    PACK(s, head);
    for (int i = 0; i < head.n; i++) pack_datum(s, &d[i]);
}

/* In the trainer's arena for datums. */
static struct datum *unpack_call(struct unpack *u, struct trainer *t, struct call_head *head) {
    UNPACK(u, *head);
    t->train_tokens = head->train_tokens;
    t->begun = t->begun && head->begun; /* rank 0 may have forgotten what there was */
    arena_reset(&t->datums);
    struct datum *d = arena_array(&t->datums, struct datum, head->n);
    for (int i = 0; i < head->n; i++) unpack_datum(u, &d[i]);
    return d;
}

/* ---- rank 0 -------------------------------------------------------------------------------------------------------*/

static bool alone(const struct trainer *t) { return t->comm->size == 1 || t->comm->rank != 0; }

enum status follow_tell_forward(const struct trainer *t, const struct model *m, int adapter, const struct datum *d,
                                int n, struct err *e) {
    CLEANUP_STR struct str s = STR_INIT;
    if (alone(t)) return ST_OK;
    pack_call(&s, t, &(struct call_head){.trained = m == t->model, .adapter = adapter, .n = n}, d);
    return command_give(t->comm, RANK_FORWARD, &s, e);
}

enum status follow_tell_accumulate(const struct trainer *t, const struct train_call *c, const struct datum *d, int n,
                                   struct err *e) {
    CLEANUP_STR struct str s = STR_INIT;
    if (alone(t)) return ST_OK;
    PACK(&s, *c);
    pack_call(&s, t, &(struct call_head){.training = true, .n = n}, d);
    return command_give(t->comm, RANK_ACCUMULATE, &s, e);
}

struct step_command {
    struct adamw_config adam;
    double max_grad_norm;
    int64_t step;
    bool begun;
};

enum status follow_tell_step(const struct trainer *t, const struct adamw_config *c, double max_grad_norm, int64_t step,
                             struct err *e) {
    const struct step_command x = {*c, max_grad_norm, step, t->begun};
    CLEANUP_STR struct str s = STR_INIT;
    if (alone(t)) return ST_OK;
    PACK(&s, x);
    return command_give(t->comm, RANK_STEP, &s, e);
}

/* ---- state --------------------------------------------------------------------------------------------------------*/

/* n floats of device memory become those of rank 0. host: room for them. */
static enum status share(struct comm *c, struct backend *be, float *device, int64_t n, float *host, struct err *e) {
    const size_t bytes = (size_t)n * sizeof *host;
    if (c->rank == 0) be->mem_get(be, host, device, bytes);
    TRY(c->bcast(c, 0, host, bytes, e));
    if (c->rank != 0) be->mem_put(be, device, host, bytes);
    return be->sync(be, e);
}

/* Elements of the largest parameter. */
static int64_t most(const struct trainer *t) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    int64_t n = 1;
    for (int i = 0; i < set.n; i++) n = i64_max(n, set.param[i].n);
    return n;
}

static enum status share_state(struct trainer *t, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(t->model);
    struct comm *c = t->comm;
    CLEANUP_FREE float *host = xmalloc((size_t)most(t) * sizeof *host);
    for (int i = 0; i < set.n; i++) {
        const struct param *p = &set.param[i];
        model_param_get(t->model, p, host); /* also what is held in bf16 alone */
        TRY(be->sync(be, e));
        TRY(c->bcast(c, 0, host, (size_t)p->n * sizeof *host, e));
        if (c->rank != 0) model_param_put(t->model, p, host);
        TRY(be->sync(be, e));
        if (set.lent) continue; /* each rank got its part of the moments when they were loaded */
        TRY(share(c, be, t->opt->m[i], p->n, host, e));
        TRY(share(c, be, t->opt->v[i], p->n, host, e));
    }
    TRY(c->bcast(c, 0, &t->opt->step, sizeof t->opt->step, e));
    t->begun = false;
    if (set.lent) {
        model_values_out(t->model);
        be->mem_copy(be, t->opt->part_w, set.g + t->opt->part_at, (size_t)t->opt->part_n * sizeof(float));
    }
    if (c->rank == 0) return ST_OK;
    if (set.base)
        model_params_changed(t->model);
    else
        model_adapter_changed(t->model, t->adapter);
    return ST_OK;
}

enum status train_share_state(struct trainer *t, struct err *e) {
    if (alone(t)) return ST_OK;
    TRY(command_give(t->comm, RANK_STATE, NULL, e));
    return comm_agree(t->comm, share_state(t, e), e);
}

/* ---- parts of the weights and moments -----------------------------------------------------------------------------*/

enum status follow_gather_values(struct trainer *t, struct err *e) {
    const struct train_set set = model_train_set(t->model, t->adapter);
    struct backend *be = model_backend(t->model);
    TRY(comm_agree(t->comm, be->sync(be, e), e)); /* a rank whose device has failed would leave the others waiting */
    TRY(fold_gather(t->sum, t->opt->part_w, set.g, e));
    model_values_in(t->model);
    return ST_OK;
}

enum status train_gather_values(struct trainer *t, struct err *e) {
    if (!model_train_set(t->model, t->adapter).lent) return ST_OK;
    TRY(command_give(t->comm, RANK_VALUES, NULL, e));
    return follow_gather_values(t, e);
}

/* The moments of this kind of parameter i, n floats, meet on rank 0, in host. Every rank calls it, and sends its part
 * also when its device has failed, which the file's end tells the others. */
static enum status collect(struct trainer *t, int i, int kind, float *host, struct err *e) {
    const struct param *p = &model_train_set(t->model, t->adapter).param[i];
    struct backend *be = model_backend(t->model);
    struct comm *c = t->comm;
    CLEANUP_FREE struct byte_span *out = xcalloc(2 * (size_t)c->size, sizeof *out);
    struct byte_span *in = out + c->size;
    int64_t from, n;
    const float *moments = adamw_part(t->opt, p, kind, &from, &n);
    CLEANUP_FREE float *mine = xmalloc((size_t)n * sizeof *mine + 1);
    be->mem_get(be, mine, moments, (size_t)n * sizeof *mine);
    const enum status st = be->sync(be, e); /* a file must not hold what a failed transfer left */
    out[0].n = (size_t)n * sizeof *mine;
    for (int r = 0; r < c->size && c->rank == 0; r++) {
        int64_t slice, slice_n;
        fold_slice(t->sum, r, &slice, &slice_n);
        const int64_t length = adamw_overlap(p, t->opt->part_g, slice, slice_n, &from);
        in[r] = (struct byte_span){(size_t)(length > 0 ? from : 0) * sizeof *host, (size_t)length * sizeof *host};
    }
    struct err lost;
    if (c->exchange(c, mine, out, host, in, st == ST_OK ? e : &lost) != ST_OK) return ST_LOST;
    return st;
}

/* Each rank gets its part of what rank 0 has in host. */
static enum status spread(struct trainer *t, int i, int kind, float *host, struct err *e) {
    const struct param *p = &model_train_set(t->model, t->adapter).param[i];
    struct backend *be = model_backend(t->model);
    int64_t from, n;
    float *moments = adamw_part(t->opt, p, kind, &from, &n);
    TRY(t->comm->bcast(t->comm, 0, host, (size_t)p->n * sizeof *host, e));
    if (n > 0) be->mem_put(be, moments, host + from, (size_t)n * sizeof *host);
    return be->sync(be, e);
}

/* Rank 0's place in the file: arrays so far, of 2 for each parameter. */
static enum status moments_begin(void *ctx, bool reading, struct err *e) {
    struct trainer *t = ctx;
    CLEANUP_STR struct str s = STR_INIT;
    t->moments = 0;
    t->reading = reading;
    PACK(&s, reading);
    return command_give(t->comm, RANK_MOMENTS, &s, e);
}

static enum status moments_get(void *ctx, int i, int kind, float *host, struct err *e) {
    struct trainer *t = ctx;
    ASSERT(t->moments == 2 * i + kind);
    t->moments++;
    return collect(t, i, kind, host, e);
}

static enum status moments_put(void *ctx, int i, int kind, float *host, struct err *e) {
    struct trainer *t = ctx;
    bool more = true;
    ASSERT(t->moments == 2 * i + kind);
    t->moments++;
    TRY(t->comm->bcast(t->comm, 0, &more, sizeof more, e));
    return spread(t, i, kind, host, e);
}

/* The other ranks wait for as many as there are: those of a file that could not be written are asked for all the same,
 * and a file that could not be read ends with a word. */
static enum status moments_end(void *ctx, struct err *e) {
    struct trainer *t = ctx;
    const int n = 2 * model_train_set(t->model, t->adapter).n;
    bool more = false;
    enum status st = ST_OK;
    if (t->reading && t->moments < n) TRY(t->comm->bcast(t->comm, 0, &more, sizeof more, e));
    CLEANUP_FREE float *host = xmalloc((size_t)most(t) * sizeof *host);
    for (; !t->reading && t->moments < n && st != ST_LOST; t->moments++)
        st = collect(t, t->moments / 2, t->moments % 2, host, e);
    return st == ST_LOST ? st : comm_agree(t->comm, st, e);
}

struct adamw_parts follow_parts(struct trainer *t) {
    return (struct adamw_parts){t, moments_begin, moments_get, moments_put, moments_end};
}

/* On another rank: all that rank 0 does between moments_begin and moments_end. */
static enum status moments(struct trainer *t, struct unpack *u, struct err *e) {
    const int n = 2 * model_train_set(t->model, t->adapter).n;
    bool reading, more = true;
    enum status st = ST_OK;
    struct err later;
    UNPACK(u, reading);
    CLEANUP_FREE float *host = xmalloc((size_t)most(t) * sizeof *host);
    for (int i = 0; i < n && more; i++) {
        if (reading) TRY(t->comm->bcast(t->comm, 0, &more, sizeof more, e));
        if (!more) break;
        struct err *const say = st == ST_OK ? e : &later;
        const enum status now = reading ? spread(t, i / 2, i % 2, host, say) : collect(t, i / 2, i % 2, host, say);
        if (now == ST_LOST) return now;
        if (st == ST_OK) st = now;
    }
    return comm_agree(t->comm, st, e);
}

/* ---- the other ranks ----------------------------------------------------------------------------------------------*/

static enum status forward(struct trainer *t, struct model *reference, struct unpack *u, struct err *e) {
    struct call_head head;
    const struct datum *d = unpack_call(u, t, &head);
    struct model *m = head.trained ? t->model : reference;
    ASSERT(!u->short_ && m);
    return train_forward(t, m, head.adapter, d, head.n, e);
}

static enum status accumulate(struct trainer *t, struct unpack *u, struct err *e) {
    struct train_stats unread = {0};
    struct train_call c;
    struct call_head head;
    UNPACK(u, c);
    const struct datum *d = unpack_call(u, t, &head);
    ASSERT(!u->short_);
    return train_accumulate(t, &c, d, head.n, &unread, e);
}

static enum status optimizer_step(struct trainer *t, struct unpack *u, struct err *e) {
    struct step_command x;
    double norm;
    UNPACK(u, x);
    ASSERT(!u->short_);
    t->begun = t->begun && x.begun;
    return train_optimizer_step(t, &x.adam, x.max_grad_norm, x.step, &norm, e);
}

enum status train_follow(struct trainer *t, struct model *reference, enum rank_command what, const struct str *payload,
                         struct err *e) {
    struct unpack u = unpack_of(payload);
    switch (what) {
    case RANK_FORWARD: return forward(t, reference, &u, e);
    case RANK_ACCUMULATE: return accumulate(t, &u, e);
    case RANK_STEP: return optimizer_step(t, &u, e);
    case RANK_STATE: return comm_agree(t->comm, share_state(t, e), e);
    case RANK_VALUES: return follow_gather_values(t, e);
    case RANK_MOMENTS: return moments(t, &u, e);
    default: return FAIL(e, ST_LOST, "rank 0 gave command %d, which is none of training", (int)what);
    }
}
