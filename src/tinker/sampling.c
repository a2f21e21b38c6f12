/* Samplers, and what is sampled through them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

struct tinker_sampler *sampler_add(struct tinker *t, struct tinker_session *s, const char *id, const char *base) {
    struct tinker_sampler *m = xcalloc(1, sizeof *m);
    *m = (struct tinker_sampler){
        .next = t->samplers, .session = s, .id = xstrdup(id), .base = xstrdup(base), .adapter = ADAPTER_BASE};
    return t->samplers = m;
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
    else if (call.base_model && !serve_is_base(t->serve, call.base_model))
        reply_detail(x, 404, "this server does not have the model \"%.200s\": see get_server_capabilities",
                     call.base_model);
    else if (call.model_path && checkpoint_at(t, call.model_path, &c, &e) != ST_OK)
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

/* ---- asample ------------------------------------------------------------------------------------------------------*/

static void sampling_free(struct sampling *q) {
    json_decref(q->json);
    arena_free(&q->mem);
    free(q);
}

static void unlink_sampling(struct sampling **list, const struct sampling *q) {
    while (*list && *list != q) list = &(*list)->next;
    if (*list) *list = q->next;
}

/* Ids that are named by target_prompt_logprobs, each once. ST_UNSUPPORTED: too many. */
static enum status target_ids(struct sampling *q, int32_t vocab, int32_t **out, int *n, struct err *e) {
    const struct call_sample *c = &q->call;
    const int64_t cells = c->target ? (c->n_prompt - 1) * c->n_targets : 0;
    *out = arena_array(&q->mem, int32_t, CALL_MAX_TARGETS);
    *n = 0;
    for (int64_t i = 0; i < cells; i++) {
        int k = 0;
        if (c->target[i] < 0) continue;
        if (c->target[i] >= vocab)
            return FAIL(e, ST_INVALID, "target_prompt_logprobs: %lld is no id of this model", (long long)c->target[i]);
        while (k < *n && (*out)[k] != c->target[i]) k++;
        if (k < *n) continue;
        if (*n == CALL_MAX_TARGETS)
            return FAIL(e, ST_UNSUPPORTED,
                        "target_prompt_logprobs: more than %d different ids in one request are not supported here",
                        CALL_MAX_TARGETS);
        (*out)[(*n)++] = (int32_t)c->target[i];
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

/* Hands a request to the engine. */
static enum status submit(struct sampling *q, struct err *e) {
    struct tinker *t = q->t;
    const struct policy *p = model_thread_policy(t->thread);
    const struct model_config *m = model_cfg(p->model);
    const struct call_sample *c = &q->call;
    const struct stop_set own = answer_stops(p->tok, p->style, m, true);
    int32_t stops[CALL_MAX_STOPS + ARRAY_LEN(own.ids)], *named;
    int n_stops = 0, n_named;
    uint64_t seed = c->seed;
    TRY(check_ids(c, m, e));
    TRY(target_ids(q, m->V, &named, &n_named, e));
    if (c->top_prompt > m->V || c->top_sample > m->V) return FAIL(e, ST_INVALID, "more top log-probabilities than ids");
    for (int i = 0; i < c->n_stop_ids; i++) stops[n_stops++] = c->stop_id[i];
    for (int i = 0; !c->stops_off && i < own.n; i++) stops[n_stops++] = own.ids[i];
    if (!c->seeded) seed = hash_str(digest_of(q->future->id, strlen(q->future->id)).hex);
    const int top = (int)i64_max(c->top_prompt, c->top_sample);
    const struct request r = {
        .prompt = c->prompt,
        .n_prompt = (int)c->n_prompt,
        .n_samples = (int)c->n_samples,
        .id = c->stream,
        .first = (int)c->first,
        .adapter = q->sampler->adapter,
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
    q->job = job_new(t->thread, 1, (int)c->n_samples, top);
    q->job->ctx = q;
    const enum status st = model_job_submit(q->job, 0, &r, e);
    if (st != ST_OK) {
        job_drop(q->job);
        q->job = NULL;
    }
    return st;
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
    struct wire_tensor *t = arena_new(&q->mem, struct wire_tensor);
    struct err e;
    int32_t *named;
    int n;
    *t = (struct wire_tensor){.dtype = WIRE_F32, .nd = 2, .dim = {c->n_prompt - 1, c->n_targets}};
    t->n = t->dim[0] * t->dim[1];
    t->f = arena_array(&q->mem, float, t->n);
    if (target_ids(q, INT32_MAX, &named, &n, &e) != ST_OK) n = 0; /* it went well when the request was made */
    for (int64_t i = 0; i < t->n; i++) {
        int k = 0;
        while (k < n && named[k] != c->target[i]) k++;
        t->f[i] = k < n ? p->id_logp[(i / c->n_targets + 1) * n + k] : NAN;
    }
    return t;
}

static void put_result(struct sampling *q, struct str *out) {
    const struct call_sample *c = &q->call;
    const struct job *j = q->job;
    const struct sample *p = &j->part[0].prompt;
    struct wire_sequence *s = arena_array(&q->mem, struct wire_sequence, j->n_samples);
    struct wire_sample result = {.sequence = s, .n = j->n_samples};
    for (int i = 0; i < j->n_samples; i++) {
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

/* The job has news: it is over, or goes on. */
static void job_news(struct job *j) {
    struct sampling *q = j->ctx;
    const struct job_part *part = &j->part[0];
    struct str out = STR_INIT;
    if (j->n_done < j->n_parts) return;
    q->sampler->session->heard = tinker_now_s();
    if (part->status == ST_OK) {
        put_result(q, &out);
        future_done(q->future, &out, true);
    } else {
        future_end(q->future, part->status, &part->err);
    }
    unlink_sampling(&q->t->samplings, q);
    job_drop(j);
    sampling_free(q);
}

/* Begins a request whose sampler is ready, or fails it. */
static void begin(struct sampling *q) {
    struct err e = {0};
    enum status st;
    if (q->sampler->failed) {
        e = q->sampler->err;
        st = e.code;
    } else {
        st = submit(q, &e);
    }
    if (st != ST_OK) {
        future_end(q->future, st, &e);
        sampling_free(q);
        return;
    }
    q->job->news = job_news;
    q->next = q->t->samplings;
    q->t->samplings = q;
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

/* The future of a request; NULL: x has its reply. */
static struct future *accept(struct tinker *t, struct http_exchange *x, const struct tinker_sampler *m,
                             const struct call_sample *c) {
    CLEANUP_STR struct str id = STR_INIT;
    const struct digest d = body_digest(x);
    str_addf(&id, "%s#%lld", m->id, (long long)c->seq_id);
    struct future *f = future_find(t, id.p);
    if (f && digest_equal(&f->content, &d)) {
        promise(x, f, c->n_samples);
        return NULL;
    }
    if (f) {
        reply_detail(x, 400, "the number of this call (%s) was used for another call before", id.p);
        return NULL;
    }
    if (futures_full(t, x)) return NULL;
    if (model_thread_waiting(t->thread) + c->n_samples > t->o->max_queue && model_thread_waiting(t->thread) > 0) {
        reply_detail(x, 429, "%lld sequences wait to be sampled: try again in a second",
                     (long long)model_thread_waiting(t->thread));
        return NULL;
    }
    return future_make(t, id.p, m->session, &d);
}

static struct tinker_sampler *sampler_of(struct tinker *t, struct http_exchange *x, const char *id) {
    struct tinker_sampler *m = sampler_find(t, id);
    if (!m)
        reply_detail(x, 404, "there is no sampling session \"%.200s\" here", id);
    else if (m->gone || m->session->finished)
        reply_detail(x, 410, "the session of the sampler %s has ended", id);
    return http_replied(x) ? NULL : m;
}

void sample_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    json_t *j = body_json(x);
    struct err e = {0};
    if (!j) return;
    struct sampling *q = xcalloc(1, sizeof *q);
    *q = (struct sampling){.t = t, .json = j};
    if (!model_is_up(t, x)) {
        sampling_free(q);
        return;
    }
    const enum status st = call_read_sample(j, &q->mem, &q->call, &e);
    if (st != ST_OK && st != ST_UNSUPPORTED) reply_detail(x, 422, "%s", e.msg);
    if (!http_replied(x)) q->sampler = sampler_of(t, x, q->call.sampler_id);
    if (q->sampler) q->future = accept(t, x, q->sampler, &q->call);
    if (!q->future) {
        sampling_free(q);
        return;
    }
    q->sampler->session->heard = tinker_now_s();
    promise(x, q->future, q->call.n_samples);
    if (st != ST_OK) {
        future_end(q->future, st, &e);
        sampling_free(q);
    } else if (q->sampler->ready || q->sampler->failed) {
        begin(q);
    } else {
        q->next = q->sampler->waiting;
        q->sampler->waiting = q;
    }
}

/* Takes a request out of a list that is of this future, if it is in it. */
static struct sampling *take_out(struct sampling **list, const struct future *f) {
    struct sampling *q = *list;
    while (q && q->future != f) q = q->next;
    if (q) unlink_sampling(list, q);
    return q;
}

void cancel_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = body_json(x);
    struct err e = {0};
    const char *id;
    if (!j) return;
    if (js_get_str(j, "body", "request_id", &id, &e) != ST_OK) {
        reply_detail(x, 422, "%s", e.msg);
        return;
    }
    struct future *f = future_find(t, id);
    struct sampling *q = f ? take_out(&t->samplings, f) : NULL;
    if (q) job_drop(q->job);
    for (struct tinker_sampler *m = t->samplers; f && m && !q; m = m->next) q = take_out(&m->waiting, f);
    if (q) {
        sampling_free(q);
        future_fail(f, "user", "the request was cancelled by its client");
    }
    reply_empty(x); /* of any request: it may be over by now */
}

void samplings_end(struct tinker *t, const struct tinker_session *s) {
    for (struct sampling **at = &t->samplings; *at;) {
        struct sampling *q = *at;
        if (s && q->sampler->session != s) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        job_drop(q->job);
        sampling_free(q);
    }
    for (struct tinker_sampler *m = t->samplers; m; m = m->next)
        for (struct sampling *q; (!s || m->session == s) && (q = m->waiting);) {
            m->waiting = q->next;
            sampling_free(q);
        }
}
