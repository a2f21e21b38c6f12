/* Samplers, and what is sampled through them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

static void job_news(struct job *j);

struct tinker_sampler *sampler_add(struct tinker *t, struct tinker_session *s, const char *id, const char *base) {
    struct tinker_sampler *m = xcalloc(1, sizeof *m);
    *m = (struct tinker_sampler){
        .next = t->samplers, .session = s, .id = xstrdup(id), .base = xstrdup(base), .adapter = ADAPTER_BASE};
    return t->samplers = m;
}

/* Where clients may sample; NULL: x has its reply. */
static struct tinker_sampler *sampler_of(struct tinker *t, struct http_exchange *x, const char *id) {
    struct tinker_sampler *m = sampler_seen(t, x, id);
    if (!m)
        reply_detail(x, 404, "there is no sampling session \"%.200s\" here", id);
    else if (m->session->finished)
        reply_detail(x, 410, "the session of the sampler %s has ended", id);
    else if (m->gone)
        reply_detail(x, 410, "the sampler %s is gone: of those without a name a model has the last %d", id, SNAPSHOTS);
    return m && !m->gone && !m->session->finished ? m : NULL;
}

/* ---- create_sampling_session --------------------------------------------------------------------------------------*/

static void reply_sampler(struct http_exchange *x, const struct tinker_sampler *m) {
    struct str out = STR_INIT;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "sampling_session_id", m->id);
    js_put_str(&out, "type", "create_sampling_session");
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void sampler_open_folder(struct tinker *t, struct tinker_sampler *m, char *folder) {
    struct task *w = task_make(t, TASK_OPEN_SAMPLER);
    w->sampler = m;
    w->folder = folder;
    task_begin(w);
}

static int living_samplers(const struct tinker *t, const struct tinker_tenant *b) {
    int n = 0;
    for (const struct tinker_sampler *m = t->samplers; m; m = m->next) n += !m->gone && m->session->tenant == b;
    return n;
}

void sampler_take(struct tinker *t, const struct incoming *in) {
    struct http_exchange *x = in->x;
    CLEANUP_JSON json_t *j = incoming_json(in);
    CLEANUP_STR struct str id = STR_INIT;
    struct call_sampler call;
    struct tinker_checkpoint *c = NULL;
    struct tinker_session *s;
    struct err e = {0};
    if (!j) return;
    if (call_read_sampler(j, &call, &e) != ST_OK) {
        reply_detail(x, 422, "%s", e.msg);
        return;
    }
    if (!(s = session_of(t, x, call.session_id))) return;
    str_addf(&id, "%s:sample:%lld", s->id, (long long)call.sampler_seq_id);
    const struct digest d = digest_of(in->body, in->n);
    struct tinker_sampler *m = sampler_find(t, id.p);
    if (m && digest_equal(&m->content, &d)) {
        reply_sampler(x, m);
        return;
    }
    enum status st = ST_INVALID;
    if (m)
        reply_detail(x, 400, "sampling_session_seq_id %lld was used before", (long long)call.sampler_seq_id);
    else if (x && living_samplers(t, s->tenant) >= SAMPLERS)
        reply_detail(x, 429, "there are %d samplers, as many as there may be at a time: end a session", SAMPLERS);
    else if (call.base_model && !serve_is_base(t->serve, call.base_model))
        reply_detail(x, 404, "this server does not have the model \"%.200s\": see get_server_capabilities",
                     call.base_model);
    else if (call.model_path && checkpoint_at(t, x ? tenant_of(t, x) : NULL, call.model_path, &c, &e) != ST_OK)
        reply_detail(x, 404, "%s", e.msg);
    else if (x && (st = store_sampler(t, s, in, &d, &e)) != ST_OK)
        reply_detail(x, 503, "%s", e.msg);
    else
        st = ST_OK;
    if (st != ST_OK) return;
    m = sampler_add(t, s, id.p, call.base_model ? call.base_model : c->base);
    m->content = d;
    m->ready = !c;
    if (c) m->path = xstrdup(call.model_path);
    if (c) sampler_open_folder(t, m, checkpoint_dir(t, c));
    if (x) reply_sampler(x, m);
}

void create_sampler_begin(void *tinker, struct http_exchange *x) {
    struct incoming in = {.x = x, .kind = CALL_SAMPLER};
    if (!model_is_up(tinker, x)) return;
    in.body = http_body(x, &in.n);
    sampler_take(tinker, &in);
}

/* A number for one of the clients that share a sampler: they number their requests from a billion times it on. */
void join_sampler_begin(void *tinker, struct http_exchange *x) {
    CLEANUP_JSON json_t *j = NULL;
    struct str out = STR_INIT;
    const char *id = body_name(x, "sampling_session_id", &j);
    if (!id || !model_is_up(tinker, x)) return;
    struct tinker_sampler *m = sampler_of(tinker, x, id);
    if (!m) return;
    js_begin(&out, NULL, '{');
    js_put_i64(&out, "client_counter", ++m->joined);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* ---- asample ------------------------------------------------------------------------------------------------------*/

static void sampling_free(struct sampling *q) {
    if (q->tokens > 0) {
        struct tinker_tenant *b = q->sampler->session->tenant;
        b->tokens -= q->tokens;
        b->sequences -= q->call.n_samples;
        b->held_bytes -= q->bytes;
    }
    arena_free(&q->mem);
    free(q);
}

static void unlink_sampling(struct sampling **list, const struct sampling *q) {
    while (*list && *list != q) list = &(*list)->next;
    if (*list) *list = q->next;
}

/* The ids that target_prompt_logprobs names, each once, in *out [*n]; each target becomes its place among them.
 * ST_UNSUPPORTED: too many. */
static enum status name_targets(struct sampling *q, int32_t vocab, int32_t **out, int *n, struct err *e) {
    const struct call_sample *c = &q->call;
    *out = arena_array(&q->mem, int32_t, CALL_MAX_TARGETS);
    *n = 0;
    if (!c->target) return ST_OK;
    CLEANUP_FREE uint8_t *place = xcalloc((size_t)vocab, 1); /* of an id, from 1; 0: it has none yet */
    _Static_assert(CALL_MAX_TARGETS <= UINT8_MAX, "a place fits");
    for (int64_t i = 0; i < c->n_listed; i++) {
        const int64_t id = c->target[i];
        if (id < 0) continue;
        if (id >= vocab)
            return FAIL(e, ST_INVALID, "target_prompt_logprobs: %lld is no id of this model", (long long)id);
        if (place[id] == 0 && *n == CALL_MAX_TARGETS)
            return FAIL(e, ST_UNSUPPORTED,
                        "target_prompt_logprobs: more than %d different ids in one request are not supported here",
                        CALL_MAX_TARGETS);
        if (place[id] == 0) {
            (*out)[(*n)++] = (int32_t)id;
            place[id] = (uint8_t)*n;
        }
        c->target[i] = place[id] - 1;
    }
    return ST_OK;
}

static enum status check_ids(const struct call_sample *c, const struct model_config *m, struct err *e) {
    const int64_t most = m->max_positions, n = c->n_prompt;
    for (int64_t i = 0; i < n; i++)
        if (c->prompt[i] >= m->V)
            return FAIL(e, ST_INVALID, "prompt: token %lld is %d, expected 0 to %d", (long long)i, c->prompt[i],
                        m->V - 1);
    if (n + (c->max_tokens < 0 ? 1 : c->max_tokens) > most)
        return FAIL(
            e, ST_INVALID,
            "the prompt has %lld tokens and max_tokens is %lld: together they exceed the context window of %lld",
            (long long)n, (long long)c->max_tokens, (long long)most);
    return ST_OK;
}

/* Makes the engine's request of the call. */
static enum status make_request(struct sampling *q, struct err *e) {
    const struct policy *p = model_thread_policy(q->t->thread);
    const struct model_config *m = model_cfg(p->model);
    const struct call_sample *c = &q->call;
    const struct stop_set own = answer_stops(p->tok, p->style, m, true);
    int32_t *stops = arena_array(&q->mem, int32_t, CALL_MAX_STOPS + ARRAY_LEN(own.ids)), *named;
    int n_stops = 0, n_named;
    uint64_t seed = c->seed;
    TRY(check_ids(c, m, e));
    TRY(name_targets(q, m->V, &named, &n_named, e));
    if (c->top_prompt > m->V || c->top_sample > m->V) return FAIL(e, ST_INVALID, "more top log-probabilities than ids");
    for (int i = 0; i < c->n_stop_ids; i++) stops[n_stops++] = c->stop_id[i];
    for (int i = 0; !c->stops_off && i < own.n; i++) stops[n_stops++] = own.ids[i];
    if (!c->seeded) seed = hash_str(digest_of(q->future->id, strlen(q->future->id)).hex);
    const int top = (int)i64_max(c->top_prompt, c->top_sample);
    q->request = (struct request){
        .prompt = c->prompt,
        .n_prompt = (int)c->n_prompt,
        .n_samples = (int)c->n_samples,
        .id = c->stream,
        .first = (int)c->first,
        .adapter = q->sampler->adapter,
        .queue = 1, /* the requests of the OpenAI API are in the other one */
        .params = {.temperature = (float)c->temperature,
                   .top_k = (int)c->top_k,
                   .top_p = (float)c->top_p,
                   .max_tokens = (int)(c->max_tokens < 0 ? m->max_positions - c->n_prompt : c->max_tokens),
                   .stop_ids = stops,
                   .n_stop_ids = n_stops,
                   .stop_strings = (const char *const *)c->stop_text,
                   .n_stop_strings = c->n_stop_texts,
                   .seed = seed},
        .top_logprobs = top,
        .logprob_ids = named,
        .n_logprob_ids = n_named,
        .prompt_logprobs = c->prompt_logprobs || c->top_prompt > 0 || c->target,
        .tempered_logprobs = true};
    return ST_OK;
}

/* ---- turns --------------------------------------------------------------------------------------------------------*/

/* The engine lets requests in as they come. So a tenant's requests wait here, and the engine gets them in parts, each
 * time of the tenant of whom it has least. With several keys one tenant's samples take so many places of a batch that
 * others find some: at most three times as many as are left free. */

static int batch_of(const struct tinker *t) { return model_thread_batch(t->thread); }
static bool takes_turns(const struct tinker *t) { return t->o->n_keys > 1; }

/* Its future has what came of it. */
static void over(struct sampling *q) { completion_add(q->t, q->sampler, q->future, q->call.seq_id); }

/* Samples of the part that comes next. */
static int64_t next_part(const struct sampling *q) {
    return i64_min(q->part, q->call.n_samples - (int64_t)q->n_given * q->part);
}

static bool may_enter(const struct tinker *t, const struct tinker_tenant *b) {
    const int64_t n = next_part(b->queued), free = batch_of(t) - t->inside - n;
    return !takes_turns(t) || (b->inside == 0 ? free >= 0 || t->inside == 0 : b->inside + n <= 3 * free);
}

static void unqueue(struct sampling *q) {
    struct tinker_tenant *b = q->sampler->session->tenant;
    struct sampling **at = &b->queued;
    while (*at && *at != q) at = &(*at)->next_queued;
    if (!*at) return;
    *at = q->next_queued;
    if (!q->next_queued) b->queued_end = at;
}

/* The engine has so many more samples of the request. */
static void count_inside(struct sampling *q, int64_t more) {
    q->inside += more;
    q->sampler->session->tenant->inside += more;
    q->t->inside += more;
}

/* Takes a request out of all lists, with what the engine has of it. */
static void give_up(struct sampling *q) {
    unqueue(q);
    unlink_sampling(&q->t->samplings, q);
    count_inside(q, -q->inside);
    job_drop(q->job);
    q->job = NULL;
}

static enum status give_part(struct sampling *q, struct err *e) {
    struct request r = q->request;
    r.first += q->n_given * q->part;
    r.n_samples = (int)next_part(q);
    if (q->n_given > 0) r.prompt_logprobs = false; /* the first part tells them */
    TRY(model_job_submit(q->job, q->n_given, &r, e));
    q->n_given++;
    count_inside(q, r.n_samples);
    return ST_OK;
}

/* Gives the engine what may enter. */
static void pump(struct tinker *t) {
    for (;;) {
        struct tinker_tenant *next = NULL;
        struct err e = {0};
        for (struct tinker_tenant *b = t->tenants; b; b = b->next)
            if (b->queued && may_enter(t, b) && (!next || b->inside < next->inside)) next = b;
        if (!next) return;
        struct sampling *q = next->queued;
        const enum status st = give_part(q, &e);
        if (st != ST_OK) {
            give_up(q);
            future_end(q->future, st, &e);
            over(q);
            sampling_free(q);
        } else if (q->n_given == q->n_parts) {
            unqueue(q);
        }
    }
}

/* Puts a request at the end of its tenant's queue. */
static enum status enqueue(struct sampling *q, struct err *e) {
    struct tinker *t = q->t;
    struct tinker_tenant *b = q->sampler->session->tenant;
    TRY(make_request(q, e));
    const int n = (int)q->call.n_samples;
    q->part = takes_turns(t) ? (int)i64_min(n, i64_max(1, batch_of(t) / 8)) : n;
    q->n_parts = (n + q->part - 1) / q->part;
    q->job = job_new(t->thread, q->n_parts, q->part, q->request.top_logprobs);
    q->job->ctx = q;
    q->job->news = job_news;
    q->next_queued = NULL;
    *b->queued_end = q;
    b->queued_end = &q->next_queued;
    q->next = t->samplings;
    t->samplings = q;
    return ST_OK;
}

/* ---- its result ---------------------------------------------------------------------------------------------------*/

/* The k most probable ids of each of n places, of `of` that are there. A place that follows nothing has none. */
static struct wire_topk topk(struct arena *a, const int32_t *ids, const float *logp, int n, int k, int of) {
    int32_t *out_ids = arena_array(a, int32_t, (int64_t)n * k);
    float *out = arena_array(a, float, (int64_t)n *k);
    if (k == 0) return (struct wire_topk){0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            const bool there = ids[i * of + j] >= 0 && !isnan(logp[i * of + j]);
            out_ids[i * k + j] = there ? ids[i * of + j] : 0;
            out[i * k + j] = there ? logp[i * of + j] : WIRE_NO_LOGP;
        }
    return (struct wire_topk){out_ids, out, k, n};
}

static const float *prompt_logp(struct sampling *q, const struct sample *p) {
    const int64_t last = q->call.prompt_last_n;
    float *out = arena_array(&q->mem, float, p->n);
    for (int i = 0; i < p->n; i++) out[i] = i == 0 || (last >= 0 && i < p->n - last) ? NAN : p->logp[i];
    return out;
}

static const struct wire_tensor *target_logp(struct sampling *q, const struct sample *p) {
    const struct call_sample *c = &q->call;
    const int64_t rows = c->n_prompt - 1, n = q->request.n_logprob_ids;
    struct wire_tensor *t = arena_new(&q->mem, struct wire_tensor);
    *t = (struct wire_tensor){.dtype = WIRE_F32,
                              .nd = 2,
                              .dim = {rows, c->n_targets},
                              .n = rows * c->n_targets,
                              .crow = c->target_crow,
                              .col = c->target_col};
    t->f = arena_array(&q->mem, float, c->n_listed);
    for (int64_t r = 0, i = 0; r < rows; r++)
        for (const int64_t end = t->crow ? t->crow[r + 1] : (r + 1) * c->n_targets; i < end; i++)
            t->f[i] = c->target[i] < 0 ? NAN : p->id_logp[(r + 1) * n + c->target[i]];
    return t;
}

static void put_result(struct sampling *q, struct str *out) {
    const struct call_sample *c = &q->call;
    const struct job *j = q->job;
    const struct sample *p = &j->part[0].prompt;
    const int n = (int)c->n_samples;
    struct wire_sequence *s = arena_array(&q->mem, struct wire_sequence, n);
    struct wire_sample result = {.sequence = s, .n = n};
    for (int i = 0; i < n; i++) {
        const struct job_sample *from = &j->sample[i];
        s[i] = (struct wire_sequence){
            .by_length = from->stop == STOP_LENGTH,
            .ids = from->ids,
            .logp = from->logp,
            .n = from->n,
            .top = topk(&q->mem, from->top_ids, from->top_logp, from->n, (int)c->top_sample, j->top)};
    }
    if (c->prompt_logprobs) {
        result.prompt_logp = prompt_logp(q, p);
        result.n_prompt = p->n;
    }
    if (c->top_prompt > 0) result.top = topk(&q->mem, p->top_ids, p->top_logp, p->n, (int)c->top_prompt, j->top);
    if (c->target) result.target = target_logp(q, p);
    wire_put_sample(out, &result);
}

/* The first part that failed, or the first one. */
static const struct job_part *worst_part(const struct job *j) {
    for (int i = 0; i < j->n_parts; i++)
        if (j->part[i].status != ST_OK) return &j->part[i];
    return &j->part[0];
}

/* The job has news: it is over, or goes on. */
static void job_news(struct job *j) {
    struct sampling *q = j->ctx;
    struct tinker *t = q->t;
    struct str out = STR_INIT;
    int64_t inside = 0;
    for (int i = 0; i < q->n_given; i++)
        if (!j->part[i].done) inside += i64_min(q->part, q->call.n_samples - (int64_t)i * q->part);
    const bool room = inside != q->inside;
    count_inside(q, inside - q->inside);
    if (j->n_done == j->n_parts) {
        const struct job_part *part = worst_part(j);
        q->sampler->session->heard = tinker_now_s();
        if (part->status == ST_OK) {
            put_result(q, &out);
            future_done(q->future, &out, true);
        } else {
            future_end(q->future, part->status, &part->err);
        }
        over(q);
        give_up(q);
        sampling_free(q);
    }
    if (room) pump(t);
}

/* Begins a request whose sampler is ready, or fails it. */
static void begin(struct sampling *q) {
    struct tinker *t = q->t;
    struct err e = q->sampler->err;
    const enum status st = q->sampler->failed ? e.code : enqueue(q, &e);
    if (st == ST_OK) {
        pump(t);
        return;
    }
    future_end(q->future, st, &e);
    over(q);
    sampling_free(q);
}

bool sampler_is_used(const struct tinker *t, const struct tinker_sampler *m) {
    const struct sampling *q = t->samplings;
    while (q && q->sampler != m) q = q->next;
    return q || m->waiting;
}

void samplers_trim(struct tinker *t, const struct tinker_run *r) {
    int n = 0;
    for (struct tinker_sampler *m = t->samplers; m; m = m->next) { /* the newest first */
        if (m->run != r || !(m->ready || m->failed) || m->gone || ++n <= SNAPSHOTS || sampler_is_used(t, m)) continue;
        m->gone = true;
        m->went = tinker_now_s();
        completions_wake(m);
        if (!m->ready) continue;
        struct task *w = task_make(t, TASK_DROP);
        w->adapter = m->adapter;
        m->ready = false;
        task_begin(w);
    }
}

void sampler_is_ready(struct tinker *t, struct tinker_sampler *m) {
    struct sampling *q = m->waiting;
    (void)t;
    m->waiting = NULL;
    for (struct sampling *next; q; q = next) {
        next = q->next;
        begin(q);
    }
}

/* {"request_id": ..., "sample_sequence_ids": [...]} */
static void promise(struct http_exchange *x, const struct future *f, int64_t n) {
    struct str out = STR_INIT;
    if (!x) return;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "request_id", f->id);
    js_begin(&out, "sample_sequence_ids", '[');
    for (int64_t i = 0; i < n; i++) {
        CLEANUP_STR struct str id = STR_INIT;
        str_addf(&id, "%s:%lld", f->id, (long long)i);
        js_put_str(&out, NULL, id.p);
    }
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* Tokens that a request makes wait: those of its prompt, and all that may be drawn. */
static int64_t tokens_of(const struct tinker *t, const struct call_sample *c) {
    const int64_t most = model_cfg(model_thread_policy(t->thread)->model)->max_positions;
    return c->n_prompt + c->n_samples * (c->max_tokens < 0 ? most : i64_min(c->max_tokens, most));
}

/* Whether the tenant has to wait; x has its reply, 429, then. */
static bool is_too_much(const struct tinker *t, const struct tinker_tenant *b, struct http_exchange *x,
                        const struct call_sample *c) {
    if (futures_full(t, b, x) || tenant_has_enough(t, b, x, tokens_of(t, c))) return true;
    if (b->sequences > 0 && b->held_bytes > t->o->max_held) {
        reply_detail(x, 429, "%lld bytes of calls wait for their turn: try again in a second",
                     (long long)b->held_bytes);
        return true;
    }
    if (b->sequences == 0 || b->sequences + c->n_samples <= t->o->max_queue) return false;
    reply_detail(x, 429, "%lld sequences are being sampled or wait for it: try again in a second",
                 (long long)b->sequences);
    return true;
}

/* The future of a request; NULL: x has its reply. */
static struct future *accept(struct tinker *t, const struct call_reading *r, struct tinker_sampler *m,
                             const struct call_sample *c) {
    struct http_exchange *x = r->in.x;
    CLEANUP_STR struct str id = STR_INIT;
    struct err e = {0};
    str_addf(&id, "%s#%lld", m->id, (long long)c->seq_id);
    struct future *f = future_find(t, id.p);
    if (f && digest_equal(&f->content, &r->content)) {
        promise(x, f, c->n_samples);
        return NULL;
    }
    if (f) {
        reply_detail(x, 400, "the number of this call (%s) was used for another call before", id.p);
        return NULL;
    }
    if (x && is_too_much(t, m->session->tenant, x, c)) return NULL;
    if (x && store_sample(t, m->session, &r->in, &r->content, &e) != ST_OK) {
        reply_detail(x, 503, "%s", e.msg);
        return NULL;
    }
    f = future_make(t, id.p, m->session, &r->content);
    f->sampled = true;
    return f;
}

static void count_waiting(struct sampling *q) {
    struct tinker_tenant *b = q->sampler->session->tenant;
    q->tokens = tokens_of(q->t, &q->call);
    q->bytes = (int64_t)arena_bytes(&q->mem);
    b->tokens += q->tokens;
    b->sequences += q->call.n_samples;
    b->held_bytes += q->bytes;
}

static void read_sample(struct call_reading *r) {
    CLEANUP_JSON json_t *j;
    r->status = read_json(&r->in, &j, &r->err);
    if (r->status == ST_PARSE) r->refused = 400;
    if (r->status == ST_INVALID) r->refused = 422;
    if (r->refused) return;
    r->status = call_read_sample(j, &r->mem, &r->sample, &r->err);
    if (r->status != ST_OK && r->status != ST_UNSUPPORTED) r->refused = 422;
}

static void take_sample(struct call_reading *r) {
    struct tinker *t = r->t;
    struct http_exchange *x = r->in.x;
    struct sampling *q = xcalloc(1, sizeof *q);
    q->t = t;
    q->mem = r->mem;
    r->mem = ARENA_INIT;
    q->call = r->sample;
    q->sampler = sampler_of(t, x, q->call.sampler_id);
    if (q->sampler) q->future = accept(t, r, q->sampler, &q->call);
    if (!q->future) {
        sampling_free(q);
        return;
    }
    q->sampler->session->heard = tinker_now_s();
    promise(x, q->future, q->call.n_samples);
    if (r->status != ST_OK) {
        future_end(q->future, r->status, &r->err);
        over(q);
        sampling_free(q);
        return;
    }
    count_waiting(q);
    if (q->sampler->ready || q->sampler->failed) {
        begin(q);
    } else {
        q->next = q->sampler->waiting;
        q->sampler->waiting = q;
    }
}

void sample_begin(void *tinker, struct http_exchange *x) {
    if (model_is_up(tinker, x)) reading_begin(tinker, x, CALL_SAMPLE, read_sample, take_sample);
}

void sample_take(struct tinker *t, const struct incoming *in) { reading_now(t, in, read_sample, take_sample); }

/* The request of this future; NULL: it is not in the list. */
static struct sampling *find(struct sampling *list, const struct future *f) {
    while (list && list->future != f) list = list->next;
    return list;
}

void cancel_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = NULL;
    const char *id = body_name(x, "request_id", &j);
    if (!id) return;
    struct future *f = future_seen(t, x, id);
    struct sampling *q = f ? find(t->samplings, f) : NULL;
    if (q) give_up(q);
    for (struct tinker_sampler *m = t->samplers; f && m && !q; m = m->next)
        if ((q = find(m->waiting, f))) unlink_sampling(&m->waiting, q);
    if (q) {
        future_fail(f, "user", "the request was cancelled by its client");
        over(q);
        sampling_free(q);
        pump(t);
    }
    reply_empty(x); /* of any request: it may be over by now */
}

void samplings_end(struct tinker *t, const struct tinker_session *s) {
    for (struct sampling *q = t->samplings, *next; q; q = next) {
        next = q->next;
        if (s && q->sampler->session != s) continue;
        give_up(q);
        sampling_free(q);
    }
    for (struct tinker_sampler *m = t->samplers; m; m = m->next)
        for (struct sampling *q; (!s || m->session == s) && (q = m->waiting);) {
            m->waiting = q->next;
            sampling_free(q);
        }
    pump(t);
}
