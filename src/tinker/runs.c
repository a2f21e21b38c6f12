/* Models that clients train: their making, and their calls in the order of seq_id, each once. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fs.h"
#include "base/log.h"
#include "tinker/internal.h"

static void run_take_body(struct tinker *t, struct http_exchange *x, enum call_kind kind);

/* ---- order --------------------------------------------------------------------------------------------------------*/

/* Puts a call, or with work NULL a number that is spent, at its place. */
static void hold(struct tinker_run *r, int64_t seq, struct task *w) {
    struct tinker_held **at = &r->held, *h = xmalloc(sizeof *h);
    while (*at && (*at)->seq < seq) at = &(*at)->next;
    *h = (struct tinker_held){*at, seq, w, tinker_now_s()};
    *at = h;
    r->calls++;
    r->last_used = (int64_t)time(NULL);
    if (!w) return;
    r->session->tenant->held_bytes += w->bytes;
    r->session->tenant->tokens += w->tokens;
}

void run_fail_held(struct tinker *t, struct tinker_run *r, const char *why) {
    (void)t;
    for (struct tinker_held *h; (h = r->held);) {
        r->held = h->next;
        r->next_seq = h->seq + 1;
        if (h->task && h->task->future) future_fail(h->task->future, "user", why);
        task_free(h->task);
        free(h);
    }
}

/* A save asks when its turn comes, since the saves before it have taken their bytes by then. False: the call has
 * failed, and is given up. */
static bool may_begin(struct tinker *t, struct task *w) {
    struct err e = {0};
    if (w->kind != TASK_SAVE || tenant_may_save(t, w->run->session->tenant, &e) == ST_OK) return true;
    future_fail(w->future, "user", e.msg);
    store_result(w->run, w->seq, w->future);
    task_free(w);
    return false;
}

void run_go_on(struct tinker *t, struct tinker_run *r) {
    if (r->corrupt) run_fail_held(t, r, "the model could not be made");
    while (!r->busy && r->held && r->held->seq == r->next_seq) {
        struct tinker_held *h = r->held;
        r->held = h->next;
        r->next_seq++;
        if (h->task && may_begin(t, h->task)) {
            r->busy = true;
            task_begin(h->task);
        }
        free(h);
    }
}

void runs_mind_gaps(struct tinker *t, double now) {
    for (struct tinker_run *r = t->runs; r; r = r->next) {
        if (r->busy || !r->held || r->held->seq <= r->next_seq || now - r->held->since < GAP_S) continue;
        log_warn("%s: call %lld never came, those behind it fail", r->id, (long long)r->next_seq);
        run_fail_held(t, r, "a call with a smaller seq_id never came");
    }
}

/* A call that fails before its turn: its number is used up. */
static void spend(struct tinker *t, struct http_exchange *x, struct tinker_run *r, int64_t seq, struct future *f,
                  const char *why) {
    future_fail(f, "user", why);
    if (x) store_result(r, seq, f);
    future_promise(x, f, r->id);
    hold(r, seq, NULL);
    run_go_on(t, r);
}

/* Whether the model's thread has a call of the tenant, so that some of its bytes will go. */
static bool is_busy(const struct tinker *t, const struct tinker_tenant *b) {
    const struct tinker_run *r = t->runs;
    while (r && !(r->busy && r->session->tenant == b)) r = r->next;
    return r != NULL;
}

/* A call that its run may take on; NULL: x has its reply. With `spent` the call cannot be read: its future fails with
 * this message at once, and its number is used up. tokens: that it makes wait. */
static struct future *accept(struct tinker *t, const struct incoming *in, struct tinker_run *r, int64_t seq,
                             const struct digest *content, int64_t tokens, const char *spent) {
    const struct tinker_tenant *b = r->session->tenant;
    CLEANUP_STR struct str id = STR_INIT;
    struct http_exchange *x = in->x;
    struct err e = {0};
    str_addf(&id, "%s#%lld", r->id, (long long)seq);
    if (r->gone || r->session->finished) {
        reply_detail(x, 410, "the session of the model %s has ended", r->id);
        return NULL;
    }
    r->session->heard = tinker_now_s();
    if (seq < 1 || (x && seq >= r->next_seq + CALL_MAX_AHEAD)) {
        reply_detail(x, 400, "seq_id %lld: expected 1 or more, and at most %d beyond the next one, which is %lld",
                     (long long)seq, CALL_MAX_AHEAD, (long long)r->next_seq);
        return NULL;
    }
    if (future_repeated(t, x, id.p, content, r->id)) return NULL;
    if (seq < r->next_seq) {
        reply_detail(x, 410, "call %lld of the model %s is over, and its result is gone", (long long)seq, r->id);
        return NULL;
    }
    /* The call whose turn it is is taken on where nothing else would end: those behind it wait for it. */
    if (x && b->held_bytes > t->o->max_held && (seq > r->next_seq || is_busy(t, b))) {
        reply_detail(x, 429, "too many bytes of calls wait for their turn");
        return NULL;
    }
    if (x && (futures_full(t, b, x) || (seq > r->next_seq && tenant_has_enough(t, b, x, tokens)))) return NULL;
    if (x && store_call(r, in, seq, content, &e) != ST_OK) {
        reply_detail(x, 503, "%s", e.msg);
        return NULL;
    }
    struct future *f = future_make(t, id.p, r->session, content);
    if (!spent && !r->corrupt) return f;
    spend(t, x, r, seq, f, spent ? spent : "the model could not be made");
    return NULL;
}

/* Takes a call on and answers it. */
static void submit(struct tinker *t, struct http_exchange *x, struct tinker_run *r, int64_t seq, struct future *f,
                   struct task *w) {
    w->run = r;
    w->seq = seq;
    w->future = f;
    future_promise(x, f, r->id);
    hold(r, seq, w);
    run_go_on(t, r);
}

/* The run of a call whose body has these; NULL: x has its reply. */
static struct tinker_run *run_of(struct tinker *t, struct http_exchange *x, const char *id) {
    struct tinker_run *r = id ? run_seen(t, x, id) : NULL;
    if (!r) reply_detail(x, 404, "there is no model \"%.200s\" here", id ? id : "");
    return r;
}

/* ---- forward_backward ---------------------------------------------------------------------------------------------*/

static void read_training(struct call_reading *r) {
    r->status = wire_read_training(r->in.body, r->in.n, &r->mem, &r->training, &r->err);
    if (r->status == ST_OK)
        r->status = datums_make(&r->training, r->vocab, r->max_tokens, &r->mem, &r->datums, &r->err);
    if (*r->training.model_id && r->training.seq_id > 0) return;
    if (r->status == ST_OK) (void)FAIL(&r->err, ST_PARSE, "model_id or seq_id is missing");
    r->refused = 400;
}

static void take_training(struct call_reading *g) {
    struct tinker *t = g->t;
    const struct wire_training *q = &g->training;
    struct tinker_run *r = run_of(t, g->in.x, q->model_id);
    if (!r) return;
    struct future *f =
        accept(t, &g->in, r, q->seq_id, &g->content, g->datums.work, g->status == ST_OK ? NULL : g->err.msg);
    if (!f) return;
    struct task *w = task_make(t, TASK_TRAIN);
    w->mem = g->mem;
    g->mem = ARENA_INIT;
    w->datums = g->datums;
    w->bytes = (int64_t)arena_bytes(&w->mem);
    w->tokens = w->datums.work;
    submit(t, g->in.x, r, q->seq_id, f, w);
}

void forward_backward_begin(void *tinker, struct http_exchange *x) {
    if (model_is_up(tinker, x)) reading_begin(tinker, x, CALL_TRAIN, read_training, take_training);
}

/* ---- optim_step ---------------------------------------------------------------------------------------------------*/

static void take_step(struct tinker *t, const struct incoming *in) {
    struct http_exchange *x = in->x;
    CLEANUP_JSON json_t *j = incoming_json(in);
    struct call_optim call;
    struct err e = {0};
    struct tinker_run *r;
    if (!j) return;
    const enum status st = call_read_optim(j, &call, &e);
    if (st != ST_OK && (!call.model_id || call.seq_id < 1)) {
        reply_detail(x, 400, "%s", e.msg);
        return;
    }
    if (!(r = run_of(t, x, call.model_id))) return;
    const struct digest d = digest_of(in->body, in->n);
    struct future *f = accept(t, in, r, call.seq_id, &d, 0, st == ST_OK ? NULL : e.msg);
    if (!f) return;
    struct task *w = task_make(t, TASK_STEP);
    w->optim = call;
    w->optim.model_id = NULL;
    submit(t, x, r, call.seq_id, f, w);
}

void optim_step_begin(void *tinker, struct http_exchange *x) { run_take_body(tinker, x, CALL_STEP); }

/* ---- saving -------------------------------------------------------------------------------------------------------*/

/* A sampler without a name, of the weights as they are when the call's turn comes. */
static void submit_snapshot(struct tinker *t, struct http_exchange *x, struct tinker_run *r, const struct call_save *c,
                            const struct digest *d, struct future *f) {
    CLEANUP_STR struct str id = STR_INIT;
    str_addf(&id, "%s:sample:%lld", r->session->id, (long long)c->sampler_seq_id);
    if (sampler_find(t, id.p)) {
        spend(t, x, r, c->seq_id, f, "sampling_session_seq_id was used before");
        return;
    }
    struct task *w = task_make(t, TASK_SNAPSHOT);
    w->sampler = sampler_add(t, r->session, id.p, r->base);
    w->sampler->content = *d;
    w->sampler->run = r;
    w->folder = store_sampler_folder(t, r->session, c->sampler_seq_id);
    submit(t, x, r, c->seq_id, f, w);
}

/* Whether a name is taken by a checkpoint that another call made, or is about to make. */
static bool name_is_taken(struct tinker *t, const struct tinker_run *r, enum checkpoint_kind kind, const char *name,
                          const char *call) {
    const struct checkpoint_path p = {r->id, (char *)(uintptr_t)name, kind};
    const struct tinker_checkpoint *c = checkpoint_find(t, &p);
    for (const struct task *w = t->tasks; w; w = w->next)
        if (w->run == r && w->checkpoint && w->checkpoint->kind == kind && strcmp(w->checkpoint->name, name) == 0)
            return true;
    return c && (!c->call || strcmp(c->call, call) != 0);
}

static void take_save(struct tinker *t, const struct incoming *in, enum checkpoint_kind kind) {
    struct http_exchange *x = in->x;
    CLEANUP_JSON json_t *j = incoming_json(in);
    struct call_save call;
    struct err e = {0};
    struct tinker_run *r;
    if (!j) return;
    enum status st = call_read_save(j, kind == CHECKPOINT_SAMPLER, &call, &e);
    if (st != ST_OK && (!call.model_id || call.seq_id < 1)) {
        reply_detail(x, 400, "%s", e.msg);
        return;
    }
    if (!(r = run_of(t, x, call.model_id))) return;
    const struct digest d = digest_of(in->body, in->n);
    struct future *f = accept(t, in, r, call.seq_id, &d, 0, st == ST_OK ? NULL : e.msg);
    if (!f) return;
    if (!call.name) {
        submit_snapshot(t, x, r, &call, &d, f);
        return;
    }
    if (!call.overwrite && name_is_taken(t, r, kind, call.name, f->id)) {
        spend(t, x, r, call.seq_id, f, "there is a checkpoint of this name already: take another name, or overwrite");
        return;
    }
    struct task *w = task_make(t, TASK_SAVE);
    w->checkpoint = checkpoint_make(r, kind, &call, f->id);
    w->folder = checkpoint_dir(t, w->checkpoint);
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "tinker://%s/%s/%s", r->id, checkpoint_kind_names[kind], call.name);
    w->path = str_steal(&path);
    submit(t, x, r, call.seq_id, f, w);
}

void save_weights_begin(void *tinker, struct http_exchange *x) { run_take_body(tinker, x, CALL_SAVE_WEIGHTS); }
void save_sampler_begin(void *tinker, struct http_exchange *x) { run_take_body(tinker, x, CALL_SAVE_SAMPLER); }
void save_external_begin(void *tinker, struct http_exchange *x) { run_take_body(tinker, x, CALL_SAVE_EXTERNAL); }

/* ---- making -------------------------------------------------------------------------------------------------------*/

static char *copy_json(const json_t *j) { return j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL; }

/* A run that begins with this work, which makes it. */
static void begin_run(struct tinker *t, const struct incoming *in, struct tinker_session *s, int64_t number,
                      const char *id, const struct adapter_shape *shape, const char *base, const json_t *metadata,
                      struct future *f, struct task *w) {
    struct tinker_run *r = xcalloc(1, sizeof *r);
    *r = (struct tinker_run){.next = t->runs,
                             .session = s,
                             .id = xstrdup(id),
                             .metadata = copy_json(metadata),
                             .base = xstrdup(base),
                             .number = number,
                             .shape = *shape,
                             .next_seq = 1,
                             .busy = true,
                             .log = -1,
                             .last_used = (int64_t)time(NULL)};
    struct err e = {0};
    t->runs = r;
    w->run = r;
    w->future = f;
    w->creates = true;
    future_promise(in->x, f, r->id);
    if (store_run(t, r, in, &f->content, &e) != ST_OK) {
        r->corrupt = true;
        r->busy = false;
        future_fail(f, "server", e.msg);
        task_free(w);
        return;
    }
    if (!in->x) store_resume(r, w);
    task_begin(w);
}

static int living_models(const struct tinker *t) {
    int n = 0;
    for (const struct tinker_run *r = t->runs; r; r = r->next) n += !r->gone;
    return n;
}

/* The future of a model that is to be made; NULL: x has its reply. *id: the model's, which the caller frees. */
static struct future *accept_model(struct tinker *t, struct http_exchange *x, struct tinker_session *s, int64_t number,
                                   const struct digest *d, char **id) {
    CLEANUP_STR struct str name = STR_INIT, call = STR_INIT;
    str_addf(&name, "%s:train:%lld", s->id, (long long)number);
    str_addf(&call, "%s#make", name.p);
    *id = NULL;
    if (future_repeated(t, x, call.p, d, name.p)) return NULL;
    if (run_find(t, name.p)) {
        reply_detail(x, 400, "model_seq_id %lld was used before", (long long)number);
        return NULL;
    }
    if (x && futures_full(t, s->tenant, x)) return NULL;
    if (x && living_models(t) >= t->o->max_models) { /* the client tries again for some minutes */
        reply_detail(x, 429, "the server has as many models as it may have: end a session, or try again later");
        return NULL;
    }
    *id = str_steal(&name);
    return future_make(t, call.p, s, d);
}

static void refuse(struct http_exchange *x, struct future *f, const char *model, const char *why) {
    future_fail(f, "user", why);
    future_promise(x, f, model);
}

static void take_create(struct tinker *t, const struct incoming *in) {
    struct http_exchange *x = in->x;
    CLEANUP_JSON json_t *j = incoming_json(in);
    CLEANUP_FREE char *id = NULL;
    struct call_create_model call;
    struct tinker_session *s;
    struct err e = {0};
    if (!j) return;
    const enum status st = call_read_create_model(j, &call, &e);
    if (st != ST_OK && st != ST_UNSUPPORTED) {
        reply_detail(x, 422, "%s", e.msg);
        return;
    }
    if (!(s = session_of(t, x, call.session_id))) return;
    const struct digest d = digest_of(in->body, in->n);
    struct future *f = accept_model(t, x, s, call.model_seq_id, &d, &id);
    if (!f) return;
    const struct adapter_shape shape = {.rank = (int)call.rank,
                                        .alpha = LORA_ALPHA,
                                        .parts = (call.train_attn ? ADAPTER_ATTENTION : 0U) |
                                                 (call.train_mlp ? ADAPTER_MLP : 0U) |
                                                 (call.train_unembed ? ADAPTER_HEAD : 0U)};
    if (st == ST_UNSUPPORTED) {
        refuse(x, f, id, e.msg);
    } else if (!call.base_model || !serve_is_base(t->serve, call.base_model)) {
        refuse(x, f, id, "base_model: this server has another base model: see get_server_capabilities");
    } else if (call.rank < 1 || call.rank > CALL_MAX_RANK) {
        refuse(x, f, id, "lora_config: rank: expected 1 to 1024");
    } else if (shape.parts == 0) {
        refuse(x, f, id, "lora_config: one of train_attn, train_mlp and train_unembed at least must be true");
    } else if (x && tenant_may_add_model(t, s->tenant, &e) != ST_OK) {
        refuse(x, f, id, e.msg);
    } else {
        struct task *w = task_make(t, TASK_CREATE);
        const struct digest random = digest_of(id, strlen(id));
        w->seed = call.seeded ? call.seed : hash_str(random.hex);
        begin_run(t, in, s, call.model_seq_id, id, &shape, call.base_model, call.user_metadata, f, w);
    }
}

void create_model_begin(void *tinker, struct http_exchange *x) { run_take_body(tinker, x, CALL_CREATE); }

/* Weights of a checkpoint for a model: work that reads them. NULL: *e says why not. */
static struct task *load_task(struct tinker *t, const struct incoming *in, const struct call_load *call,
                              struct tinker_checkpoint **from, struct err *e) {
    if (checkpoint_at(t, in->x ? tenant_of(t, in->x) : NULL, call->path, from, e) != ST_OK) return NULL;
    if (call->base_model && !serve_is_base(t->serve, call->base_model)) {
        (void)FAIL(e, ST_INVALID, "base_model: the checkpoint is of another base model");
        return NULL;
    }
    if (call->optimizer && !(*from)->moments) {
        (void)FAIL(e, ST_INVALID, "%s has no state of the optimizer: load it without, or a checkpoint of kind weights",
                   call->path);
        return NULL;
    }
    struct task *w = task_make(t, TASK_LOAD);
    w->folder = checkpoint_dir(t, *from);
    w->path = xstrdup(call->path);
    w->optimizer = call->optimizer;
    return w;
}

static void load_new(struct tinker *t, const struct incoming *in, const struct call_load *call) {
    struct http_exchange *x = in->x;
    CLEANUP_FREE char *id = NULL;
    struct tinker_checkpoint *from;
    struct err e = {0};
    struct tinker_session *s = session_of(t, x, call->session_id);
    if (!s) return;
    const struct digest d = digest_of(in->body, in->n);
    struct future *f = accept_model(t, x, s, call->model_seq_id, &d, &id);
    if (!f) return;
    struct task *w = load_task(t, in, call, &from, &e);
    if (w && x && tenant_may_add_model(t, s->tenant, &e) != ST_OK) {
        task_free(w);
        w = NULL;
    }
    if (w)
        begin_run(t, in, s, call->model_seq_id, id, &from->shape, call->base_model ? call->base_model : from->base,
                  call->user_metadata, f, w);
    else
        refuse(x, f, id, e.msg);
}

static void load_into(struct tinker *t, const struct incoming *in, const struct call_load *call) {
    struct tinker_checkpoint *from;
    struct err e = {0};
    struct tinker_run *r = run_of(t, in->x, call->model_id);
    if (!r) return;
    const struct digest d = digest_of(in->body, in->n);
    struct task *w = load_task(t, in, call, &from, &e);
    struct future *f = accept(t, in, r, call->seq_id, &d, 0, w ? NULL : e.msg);
    if (f)
        submit(t, in->x, r, call->seq_id, f, w);
    else
        task_free(w);
}

static void take_load(struct tinker *t, const struct incoming *in) {
    CLEANUP_JSON json_t *j = incoming_json(in);
    struct call_load call;
    struct err e = {0};
    if (!j) return;
    if (call_read_load(j, &call, &e) != ST_OK)
        reply_detail(in->x, 400, "%s", e.msg);
    else if (call.session_id)
        load_new(t, in, &call);
    else
        load_into(t, in, &call);
}

void load_weights_begin(void *tinker, struct http_exchange *x) { run_take_body(tinker, x, CALL_LOAD); }

/* ---- from a client, and from the store ----------------------------------------------------------------------------*/

void run_take(struct tinker *t, const struct incoming *in) {
    switch (in->kind) {
    case CALL_TRAIN: reading_now(t, in, read_training, take_training); return;
    case CALL_STEP: take_step(t, in); return;
    case CALL_SAVE_WEIGHTS: take_save(t, in, CHECKPOINT_WEIGHTS); return;
    case CALL_SAVE_SAMPLER: take_save(t, in, CHECKPOINT_SAMPLER); return;
    case CALL_SAVE_EXTERNAL: take_save(t, in, CHECKPOINT_EXTERNAL); return;
    case CALL_LOAD: take_load(t, in); return;
    case CALL_CREATE: take_create(t, in); return;
    default: return;
    }
}

static void run_take_body(struct tinker *t, struct http_exchange *x, enum call_kind kind) {
    struct incoming in = {.x = x, .kind = kind};
    if (!model_is_up(t, x)) return;
    in.body = http_body(x, &in.n);
    run_take(t, &in);
}

void run_over(struct tinker *t, struct tinker_run *r, int64_t seq) {
    hold(r, seq, NULL);
    run_go_on(t, r);
}
