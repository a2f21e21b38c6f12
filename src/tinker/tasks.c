/* Tasks: work for clients that train. The model's thread runs a task between two sampling steps, and cuts a large batch
 * into pieces with sampling steps between them, so that neither samplers nor other clients wait for all of it.
 *
 * A model is at rest when its optimizer moments and its sum of gradients have been moved to host memory, and its
 * weights to host memory or to a file, as the engine has room. */
#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "base/log.h"
#include "tensor/backend.h"
#include "tinker/internal.h"

/* So many adapters of samplers have their weights on the device. Older ones have them in host memory until somebody
 * asks for them. */
enum { MAX_AWAKE_SAMPLERS = 16 };

static bool run_task(struct model_call *c, struct policy *p);
static void task_done(struct model_call *c);

struct task *task_make(struct tinker *t, enum task_kind kind) {
    struct task *w = xcalloc(1, sizeof *w);
    w->call.run = run_task;
    w->call.done = task_done;
    w->t = t;
    w->kind = kind;
    w->next = t->tasks;
    w->link = &t->tasks;
    if (w->next) w->next->link = &w->next;
    return t->tasks = w;
}

void task_free(struct task *w) {
    if (!w) return;
    *w->link = w->next;
    if (w->next) w->next->link = w->link;
    if (w->run) w->run->session->tenant->held_bytes -= w->bytes;
    if (w->run) w->run->session->tenant->tokens -= w->tokens;
    arena_free(&w->mem);
    train_mark_free(&w->mark);
    str_free(&w->result);
    checkpoint_free(w->checkpoint);
    free(w->folder);
    free(w->path);
    free(w);
}

void task_begin(struct task *w) {
    const struct tinker_session *s = w->run ? w->run->session : w->sampler ? w->sampler->session : NULL;
    w->t->n_tasks++;
    w->call.turn = s ? &s->tenant->turn : NULL;
    model_thread_call(w->t->thread, &w->call);
}

/* ---- which models are awake ---------------------------------------------------------------------------------------*/

static void list_add(struct trained *l, struct tinker_run *r) {
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->run = xrealloc(l->run, (size_t)l->cap * sizeof(struct tinker_run *));
    }
    l->run[l->n++] = r;
}

static void list_remove(struct trained *l, const struct tinker_run *r) {
    for (int i = 0; i < l->n; i++)
        if (l->run[i] == r) l->run[i--] = l->run[--l->n];
}

/* Puts one model to rest: of all but `but` and those in the middle of a call, the one that was used longest ago. False:
 * no model has been put to rest. */
static bool rest_one(struct tinker *t, const struct tinker_run *but) {
    struct tinker_run *oldest = NULL;
    struct err e = {0};
    for (int i = 0; i < t->trained.n; i++) {
        struct tinker_run *r = t->trained.run[i];
        if (r == but || r->half_done || r->trainer->rest || (oldest && r->used > oldest->used)) continue;
        oldest = r;
    }
    if (!oldest) return false;
    if (trainer_rest(oldest->trainer, NULL, &e) != ST_OK) {
        log_warn("%s cannot be put to rest: %s", oldest->id, e.msg);
        return false;
    }
    struct engine *en = model_thread_policy(t->thread)->engine;
    if (engine_adapter_rest(en, oldest->adapter, &e) != ST_OK)
        log_warn("%s: its weights stay on the device: %s", oldest->id, e.msg);
    return true;
}

static int count_awake(const struct tinker *t) {
    int n = 0;
    for (int i = 0; i < t->trained.n; i++) n += !t->trained.run[i]->trainer->rest;
    return n;
}

/* Puts models other than r to rest, as far as possible, until one more may be awake. */
static void make_room(struct tinker *t, const struct tinker_run *r) {
    while (count_awake(t) >= t->o->max_awake && rest_one(t, r)) {}
}

/* Wakes the task's model. Where memory is short, other models are put to rest for it. */
static enum status wake_run(struct task *w, struct err *e) {
    struct tinker_run *r = w->run;
    enum status st;
    if (!r->trainer) return FAIL(e, ST_FAILED, "the model %s could not be made", r->id);
    r->used = ++w->t->uses;
    if (!r->trainer->rest) return ST_OK;
    make_room(w->t, r);
    do {
        *e = (struct err){0};
        st = trainer_wake(r->trainer, e);
    } while (st == ST_MEMORY && rest_one(w->t, r));
    return st;
}

/* Adds a sampler's adapter, and puts the oldest awake ones beyond MAX_AWAKE_SAMPLERS to rest. The engine wakes an
 * adapter when a request asks for it. */
static void keep_sampler(struct tinker *t, struct policy *p, int adapter) {
    struct err e;
    if (t->n_sampled == t->cap_sampled) {
        t->cap_sampled = t->cap_sampled ? 2 * t->cap_sampled : 64;
        t->sampled = xrealloc(t->sampled, (size_t)t->cap_sampled * sizeof *t->sampled);
    }
    t->sampled[t->n_sampled++] = adapter;
    int awake = 0;
    for (int i = t->n_sampled; i-- > 0;) {
        struct adapter_info a;
        if (!model_adapter_info(p->model, t->sampled[i], &a) || a.place != ADAPTER_AWAKE) continue;
        if (++awake > MAX_AWAKE_SAMPLERS && engine_adapter_rest(p->engine, t->sampled[i], &e) != ST_OK)
            log_debug("sampler: %s", e.msg);
    }
}

/* ---- models -------------------------------------------------------------------------------------------------------*/

/* Makes a trainer for an adapter. A load that asks for the optimizer also reads its moments from the task's folder.
 * After an error *out may be set; the caller closes it. */
static enum status open_trainer(struct task *w, struct policy *p, int adapter, struct trainer **out, struct err *e) {
    TRY(model_adapter_prepare(p->model, adapter, e));
    TRY(trainer_open(w->t->comm, p->model, adapter, w->t->o->train_tokens, out, e));
    if (!w->optimizer) return ST_OK;
    const struct train_set s = model_train_set(p->model, adapter);
    CLEANUP_FREE char *file = fs_join(w->folder, "optimizer.safetensors");
    return adamw_load((*out)->opt, s.param, s.n, file, e);
}

/* Makes or loads an adapter, and its trainer. After an error neither is left. */
static enum status make_once(struct task *w, struct policy *p, int *adapter, struct trainer **trainer, struct err *e) {
    *adapter = 0;
    *trainer = NULL;
    enum status st = w->kind == TASK_CREATE ? model_adapter_create(p->model, &w->run->shape, w->seed, adapter, e)
                                            : model_adapter_load(p->model, w->folder, adapter, e);
    if (st != ST_OK) return st;
    st = open_trainer(w, p, *adapter, trainer, e);
    if (st == ST_OK) return st;
    trainer_close(*trainer);
    model_adapter_release(p->model, *adapter);
    model_adapter_drop(p->model, *adapter);
    return st;
}

/* Gives up the trainer and the adapter of a run. The run itself stays. */
static void drop_run(struct task *w, struct policy *p, struct tinker_run *r) {
    struct err e;
    if (!r->trainer) return;
    list_remove(&w->t->trained, r);
    trainer_close(r->trainer);
    r->trainer = NULL;
    model_adapter_release(p->model, r->adapter);
    if (engine_adapter_drop(p->engine, r->adapter, &e) != ST_OK) log_warn("%s: %s", r->id, e.msg);
}

/* Gives the run a new adapter or that of a checkpoint. What the run had before is dropped only when all has gone well.
 */
static enum status make_model(struct task *w, struct policy *p, struct err *e) {
    struct tinker_run *r = w->run;
    struct trainer *trainer;
    enum status st;
    int adapter;
    make_room(w->t, r);
    do {
        *e = (struct err){0};
        st = make_once(w, p, &adapter, &trainer, e);
    } while (st == ST_MEMORY && rest_one(w->t, r));
    if (st != ST_OK) return st;
    drop_run(w, p, r);
    r->adapter = adapter;
    r->trainer = trainer;
    r->used = ++w->t->uses;
    list_add(&w->t->trained, r);
    struct adapter_info a;
    if (model_adapter_info(p->model, adapter, &a)) w->shape = a.shape;
    js_begin(&w->result, NULL, '{');
    if (w->path) js_put_str(&w->result, "path", w->path);
    js_put_str(&w->result, "model_id", r->id);
    js_put_str(&w->result, "type", w->path ? "load_weights" : "create_model");
    js_end(&w->result, '}');
    return ST_OK;
}

/* ---- training -----------------------------------------------------------------------------------------------------*/

static enum status train_group(struct task *w, struct policy *p, int end, struct err *e) {
    struct tinker_run *r = w->run;
    struct datums *x = &w->datums;
    if (x->forward_only) {
        TRY(train_forward(r->trainer, p->model, r->adapter, x->d + w->at, end - w->at, e));
        return datums_loss(x, w->at, end, &w->loss, e);
    }
    const struct train_call c = {.summed = &x->loss, .step = r->trainer->opt->step + 1};
    struct train_stats s = {.loss.loss = w->loss};
    TRY(train_accumulate(r->trainer, &c, x->d + w->at, end - w->at, &s, e));
    w->loss = s.loss.loss;
    return ST_OK;
}

/* Trains on the next group of datums. *more is true while groups are left: the thread then calls again. After an error
 * the gradients are what they were before the call. */
static enum status train(struct task *w, struct policy *p, bool *more, struct err *e) {
    struct tinker_run *r = w->run;
    struct datums *x = &w->datums;
    enum status st = ST_OK;
    if (w->at == 0) {
        TRY(wake_run(w, e));
        datums_cut(x, w->t->o->train_tokens, &w->mem);
        if (!x->forward_only) TRY(train_mark_take(r->trainer, &w->mark, e));
        r->half_done = true;
    }
    const int end = datums_group_end(x, w->at);
    st = train_group(w, p, end, e);
    if (st != ST_OK && w->at > 0) err_note(e, "of the datums from %d on", x->of[w->at]);
    w->at = end;
    *more = st == ST_OK && end < x->n;
    if (*more) return ST_OK;
    r->half_done = false;
    struct err again = {0};
    if (st != ST_OK && !x->forward_only && train_mark_restore(r->trainer, &w->mark, &again) != ST_OK)
        log_error("%s: the gradients of the calls before are lost: %s", r->id, again.msg);
    train_mark_free(&w->mark);
    if (st != ST_OK) return st;
    w->proto = true;
    datums_put_output(x, w->loss, &w->mem, &w->result);
    return ST_OK;
}

static enum status step(struct task *w, struct err *e) {
    const struct call_optim *o = &w->optim;
    /* eps is never 0: a weight whose moments are 0 would become 0 / 0. */
    const struct adamw_config c = {.learning_rate = o->learning_rate,
                                   .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps > (double)FLT_MIN ? o->eps : (double)FLT_MIN,
                                   .weight_decay = o->weight_decay};
    double norm;
    TRY(wake_run(w, e));
    struct trainer *t = w->run->trainer;
    const uint64_t history = t->history;
    const enum status st = train_optimizer_step(t, &c, o->grad_clip_norm, t->opt->step + 1, &norm, e);
    if (st != ST_OK) {
        t->history = history;
        train_forget(t);
        err_note(e, "no step was made, and the gradients are given up");
        return st;
    }
    struct backend *be = model_backend(t->model);
    if (be->sync) TRY(be->sync(be, e));
    js_begin(&w->result, NULL, '{');
    js_begin(&w->result, "metrics", '{');
    js_put_f64(&w->result, "grad_norm", norm);
    js_put_i64(&w->result, "step", t->opt->step);
    js_end(&w->result, '}');
    js_end(&w->result, '}');
    return ST_OK;
}

/* ---- saving -------------------------------------------------------------------------------------------------------*/

static int64_t bytes_in(const char *dir) {
    char **names;
    size_t n;
    int64_t sum = 0;
    struct err e;
    if (fs_list(dir, &names, &n, &e) != ST_OK) return 0;
    for (size_t i = 0; i < n; i++) {
        CLEANUP_FREE char *path = fs_join(dir, names[i]);
        struct stat s;
        if (stat(path, &s) == 0) sum += s.st_size;
        free(names[i]);
    }
    free(names);
    return sum;
}

/* Writes the checkpoint into dir, and then gives the folder its name, w->folder. */
static enum status write_checkpoint(struct task *w, struct policy *p, const char *dir, struct err *e) {
    const struct tinker_run *r = w->run;
    TRY(fs_remove(dir, e));
    TRY(fs_mkdirs(dir, e));
    TRY(model_adapter_save(p->model, r->adapter, dir, e));
    if (w->checkpoint->moments) {
        const struct train_set s = model_train_set(p->model, r->adapter);
        CLEANUP_FREE char *file = fs_join(dir, "optimizer.safetensors");
        TRY(adamw_save(r->trainer->opt, s.param, file, e));
    }
    struct adapter_info a; /* a load may have changed the run's shape since the call came */
    if (model_adapter_info(p->model, r->adapter, &a)) w->checkpoint->shape = a.shape;
    w->checkpoint->bytes = bytes_in(dir);
    TRY(checkpoint_describe(w->checkpoint, dir, e));
    if (rename(dir, w->folder) == 0) return ST_OK;
    return FAIL(e, ST_IO, "%s: %s", w->folder, strerror(errno));
}

static enum status save(struct task *w, struct policy *p, struct err *e) {
    static const char *const types[] = {"save_weights", "save_weights_for_sampler", "save_weights_external"};
    CLEANUP_STR struct str dir = STR_INIT;
    TRY(wake_run(w, e));
    str_addf(&dir, "%s.new", w->folder);
    const enum status st = write_checkpoint(w, p, dir.p, e);
    if (st != ST_OK) {
        struct err ignored;
        if (fs_remove(dir.p, &ignored) != ST_OK) log_warn("%s", ignored.msg);
        return st;
    }
    js_begin(&w->result, NULL, '{');
    js_put_str(&w->result, "path", w->path);
    if (w->checkpoint->kind == CHECKPOINT_EXTERNAL) js_put_i64(&w->result, "size_bytes", w->checkpoint->bytes);
    js_put_str(&w->result, "type", types[w->checkpoint->kind]);
    js_end(&w->result, '}');
    return ST_OK;
}

/* Copies the model's adapter, as it is now, for a sampler without a name. */
static enum status snapshot(struct task *w, struct policy *p, struct err *e) {
    enum status st;
    TRY(wake_run(w, e));
    do {
        *e = (struct err){0};
        st = model_adapter_copy(p->model, w->run->adapter, &w->adapter, e);
    } while (st == ST_MEMORY && rest_one(w->t, w->run));
    TRY(st);
    keep_sampler(w->t, p, w->adapter);
    store_snapshot(w, p);
    js_begin(&w->result, NULL, '{');
    js_put_str(&w->result, "sampling_session_id", w->sampler->id);
    js_put_str(&w->result, "type", "save_weights_for_sampler");
    js_end(&w->result, '}');
    return ST_OK;
}

/* Loads a checkpoint's adapter for a sampler. */
static enum status open_sampler(struct task *w, struct policy *p, struct err *e) {
    enum status st;
    do {
        *e = (struct err){0};
        st = engine_adapter_load(p->engine, w->folder, &w->adapter, e);
    } while (st == ST_MEMORY && rest_one(w->t, NULL));
    if (st == ST_OK) keep_sampler(w->t, p, w->adapter);
    return st;
}

static void drop_adapter(struct tinker *t, struct policy *p, int adapter) {
    struct err e;
    for (int i = 0; i < t->n_sampled; i++)
        if (t->sampled[i] == adapter) {
            memmove(t->sampled + i, t->sampled + i + 1, (size_t)(t->n_sampled - i - 1) * sizeof *t->sampled);
            t->n_sampled--;
            i--;
        }
    if (engine_adapter_drop(p->engine, adapter, &e) != ST_OK) log_warn("sampler: %s", e.msg);
}

/* ---- the call -----------------------------------------------------------------------------------------------------*/

static enum status task_step(struct task *w, struct policy *p, bool *more, struct err *e) {
    switch (w->kind) {
    case TASK_CREATE:
    case TASK_LOAD: return make_model(w, p, e);
    case TASK_TRAIN: return train(w, p, more, e);
    case TASK_STEP: return step(w, e);
    case TASK_SAVE: return save(w, p, e);
    case TASK_SNAPSHOT: return snapshot(w, p, e);
    case TASK_OPEN_SAMPLER: return open_sampler(w, p, e);
    case TASK_DROP:
        if (w->run) drop_run(w, p, w->run);
        if (w->adapter > 0) drop_adapter(w->t, p, w->adapter);
        return ST_OK;
    case TASK_CLOSE:
        while (w->t->trained.n > 0) drop_run(w, p, w->t->trained.run[0]);
        return ST_OK;
    default: return ST_OK;
    }
}

static bool run_task(struct model_call *c, struct policy *p) {
    struct task *w = (struct task *)c;
    bool more = false;
    if (atomic_load(&w->t->closing) && w->kind != TASK_CLOSE && w->kind != TASK_DROP)
        w->status = FAIL(&w->err, ST_CANCELLED, "the server is ending");
    else
        w->status = task_step(w, p, &more, &w->err);
    if (more) return false;
    if (w->status == ST_OK && (w->kind == TASK_STEP || w->kind == TASK_LOAD)) store_state(w, p);
    if (w->kind == TASK_TRAIN && w->run) w->run->half_done = false;
    return true;
}

/* ---- after a task, on the server's thread -------------------------------------------------------------------------*/

static void end_sampler(struct task *w) {
    struct tinker_sampler *m = w->sampler;
    m->adapter = w->adapter;
    m->ready = w->status == ST_OK;
    m->failed = !m->ready;
    m->err = w->err;
    if (m->gone && m->ready) { /* the sampler's session has ended since the task began */
        struct task *drop = task_make(w->t, TASK_DROP);
        drop->adapter = m->adapter;
        m->ready = false;
        task_begin(drop);
    }
    sampler_is_ready(w->t, m);
    if (m->run) samplers_trim(w->t, m->run);
}

static void task_done(struct model_call *c) {
    struct task *w = (struct task *)c;
    struct tinker *t = w->t;
    struct tinker_run *r = w->run;
    t->n_tasks--;
    if (w->sampler) end_sampler(w);
    if (w->kind == TASK_SAVE && w->status == ST_OK) {
        checkpoint_add(t, w->checkpoint);
        w->checkpoint = NULL;
    }
    if (w->creates && w->status != ST_OK) r->corrupt = true;
    if (w->kind == TASK_LOAD && w->status == ST_OK) r->shape = w->shape;
    if (w->future && w->status == ST_OK)
        future_done(w->future, &w->result, w->proto);
    else if (w->future)
        future_end(w->future, w->status, &w->err);
    if (r && w->seq > 0 && !atomic_load(&t->closing)) store_result(r, w->seq, w->future);
    if (w->kept) store_trim(t, r, w->seq);
    const bool of_run = r && w->kind != TASK_DROP;
    task_free(w);
    if (!of_run) return;
    r->busy = false;
    if (r->session->finished)
        session_settle(t, r->session);
    else
        run_go_on(t, r);
}
