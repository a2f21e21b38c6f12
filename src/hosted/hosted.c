#include "hosted/hosted.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "hosted/link.h"
#include "io/json.h"
#include "wire/proto.h"
#include "wire/wire.h"

#define SDK_VERSION "0.38.0" /* of the official client whose calls these are */
enum { KEPT_S = 3600 };      /* so long the server keeps files that are downloaded, if nothing deletes them */
static const char hosted_service[] = "https://tinker.thinkingmachines.dev/services/tinker-prod";

struct hosted {
    struct hosted_options o;
    struct link *link;
    struct heartbeat *heartbeat;
    char *session, *model_id; /* model_id NULL: it samples alone */
    bool streams;             /* true: asample takes random streams as the engine has them */
    int64_t seq;              /* of the model's next call */
    int64_t sampler_seq, sample_seq;
    char *sampler;   /* of the weights as they are; NULL: there is none yet */
    char *reference; /* of the weights that it began with; NULL: there is none yet */
    bool lost;       /* true: what the server has of the model is not known any more */
    uint64_t history;
};

uint64_t *hosted_history(struct hosted *h) { return &h->history; }

/* ---- single calls -------------------------------------------------------------------------------------------------*/

/* A body that is a JSON object, begun. */
static struct link_call json_call(const char *path, bool direct) {
    struct link_call c = {.path = path, .direct = direct};
    js_begin(&c.body, NULL, '{');
    return c;
}

/* Makes the call, whose body ends here, and reads its result, a JSON object. The call is freed. */
static enum status make(struct hosted *h, struct link_call *c, json_t **out, struct err *e) {
    js_end(&c->body, '}');
    *out = NULL;
    enum status st = link_run(h->link, c, 1, NULL, NULL, e);
    if (st == ST_OK) st = js_parse(str_c(&c->result), c->result.len, c->path, out, e);
    link_call_free(c);
    return st;
}

/* Of a call's result one text, the caller's. */
static enum status make_for(struct hosted *h, struct link_call *c, const char *member, char **out, struct err *e) {
    CLEANUP_JSON json_t *j = NULL;
    const char *path = c->path, *text;
    TRY(make(h, c, &j, e));
    TRY(js_get_str(j, path, member, &text, e));
    free(*out);
    *out = xstrdup(text);
    return ST_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------------*/

static enum status begin_session(struct hosted *h, struct err *e) {
    CLEANUP_JSON json_t *flags = NULL;
    struct link_call config = json_call("client/config", true), session = json_call("create_session", true);
    js_put_str(&config.body, "sdk_version", SDK_VERSION);
    enum status st = make(h, &config, &flags, e);
    if (st == ST_OK) st = js_opt_bool(flags, "client/config", "kernelrl_streams", &h->streams, e);
    js_begin(&session.body, "tags", '[');
    js_end(&session.body, ']');
    js_begin(&session.body, "user_metadata", '{');
    js_end(&session.body, '}');
    js_put_str(&session.body, "sdk_version", SDK_VERSION);
    js_put_str(&session.body, "type", "create_session");
    if (st == ST_OK) return make_for(h, &session, "session_id", &h->session, e);
    link_call_free(&session);
    return st;
}

static enum status make_model(struct hosted *h, struct err *e) {
    const struct hosted_options *o = &h->o;
    struct link_call c = json_call(o->path ? "load_weights" : "create_model", false);
    js_put_str(&c.body, "session_id", h->session);
    js_put_i64(&c.body, "model_seq_id", 0);
    if (o->path) {
        js_put_str(&c.body, "path", o->path);
        js_put_bool(&c.body, "optimizer", o->moments);
    } else {
        js_put_str(&c.body, "base_model", o->model);
        js_begin(&c.body, "lora_config", '{');
        js_put_i64(&c.body, "rank", o->rank);
        js_put_i64(&c.body, "seed", (int64_t)o->seed);
        js_put_bool(&c.body, "train_unembed", false); /* as the adapters of this program */
        js_put_bool(&c.body, "train_mlp", true);
        js_put_bool(&c.body, "train_attn", true);
        js_end(&c.body, '}');
    }
    js_begin(&c.body, "optimizer_config", '{');
    js_put_str(&c.body, "type", "adamw");
    js_end(&c.body, '}');
    js_put_str(&c.body, "type", o->path ? "load_weights" : "create_model");
    return make_for(h, &c, "model_id", &h->model_id, e);
}

/* The id of a sampler of a checkpoint, or of the base model. */
static enum status open_sampler(struct hosted *h, const char *path, char **out, struct err *e) {
    struct link_call c = json_call("create_sampling_session", true);
    js_put_str(&c.body, "session_id", h->session);
    js_put_i64(&c.body, "sampling_session_seq_id", h->sampler_seq++);
    if (path)
        js_put_str(&c.body, "model_path", path);
    else
        js_put_str(&c.body, "base_model", h->o.model);
    js_put_str(&c.body, "type", "create_sampling_session");
    return make_for(h, &c, "sampling_session_id", out, e);
}

static const char *given(const char *text) { return text && *text ? text : NULL; }

const char *hosted_address(const char *base_url) {
    const char *url = given(base_url) ? base_url : given(getenv("TINKER_BASE_URL"));
    return url ? url : hosted_service;
}

static enum status find_server(const struct hosted_options *o, struct link_options *l, struct err *e) {
    const char *url = hosted_address(o->base_url), *from = given(o->key_env);
    const char *key = given(getenv(from ? from : "TINKER_API_KEY"));
    if (!key && from) return FAIL(e, ST_CONFIG, "api_key_env: the variable %s is not set", from);
    if (!key && url == hosted_service)
        return FAIL(e, ST_CONFIG,
                    "TINKER_API_KEY is not set: it holds the key for %s; TINKER_BASE_URL names another "
                    "server",
                    url);
    *l = (struct link_options){url, key, o->in_flight, o->patience_s, o->cancel};
    log_info("%s is %s at %s%s%s", o->path ? o->path : o->model, o->trains ? "trained" : "asked", url,
             key ? ", with the key of " : "", key ? (from ? from : "TINKER_API_KEY") : "");
    return ST_OK;
}

enum status hosted_open(const struct hosted_options *o, struct hosted **out, struct err *e) {
    struct link_options l;
    *out = NULL;
    TRY(find_server(o, &l, e));
    struct hosted *h = xcalloc(1, sizeof *h);
    h->o = *o;
    h->seq = 1;
    enum status st = link_open(&l, &h->link, e);
    if (st == ST_OK) st = begin_session(h, e);
    if (st == ST_OK) h->heartbeat = heartbeat_begin(h->link, h->session);
    if (st == ST_OK) st = o->trains ? make_model(h, e) : open_sampler(h, o->path, &h->sampler, e);
    if (st == ST_OK)
        *out = h;
    else
        hosted_close(h);
    return st;
}

/* What became of the session matters to nobody any more: it ends by itself, too. */
static void finish_session(struct hosted *h) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *j = NULL;
    struct err ignored;
    if (!h->session || h->lost) return;
    str_addf(&path, "sessions/%s/finish", h->session);
    struct link_call c = json_call(path.p, true);
    js_begin(&c.body, "reason", '{');
    js_put_str(&c.body, "type", "success");
    js_end(&c.body, '}');
    if (make(h, &c, &j, &ignored) != ST_OK) log_debug("%s", ignored.msg);
}

void hosted_close(struct hosted *h) {
    if (!h) return;
    heartbeat_end(h->heartbeat);
    finish_session(h);
    link_close(h->link);
    free(h->session);
    free(h->model_id);
    free(h->sampler);
    free(h->reference);
    free(h);
}

/* ---- sampling -----------------------------------------------------------------------------------------------------*/

/* A sampler of the weights as they are. */
static enum status need_sampler(struct hosted *h, struct err *e) {
    if (h->sampler) return ST_OK;
    struct link_call c = json_call("save_weights_for_sampler", false);
    js_put_str(&c.body, "model_id", h->model_id);
    js_put_i64(&c.body, "seq_id", h->seq++);
    js_put_i64(&c.body, "sampling_session_seq_id", h->sampler_seq++);
    js_put_str(&c.body, "kind", "snapshot");
    js_put_str(&c.body, "type", "save_weights_for_sampler");
    return make_for(h, &c, "sampling_session_id", &h->sampler, e);
}

/* An asample call, and what its body is made of. */
struct asked {
    struct hosted *h;
    const char *sampler;
    const struct request *r;
    bool prompt_logprobs;
};

static void put_params(const struct asked *q, struct str *out) {
    const struct sample_params *p = &q->r->params;
    const uint64_t key[2] = {q->r->id, (uint64_t)q->r->first};
    js_begin(out, "sampling_params", '{');
    js_put_i64(out, "max_tokens", p->max_tokens);
    js_put_f64(out, "temperature", (double)p->temperature);
    js_put_f64(out, "top_p", (double)p->top_p);
    js_put_i64(out, "top_k", p->top_k > 0 ? p->top_k : -1);
    /* Elsewhere a seed is all that tells requests apart, and 31 bits of it pass everywhere. */
    js_put_i64(out, "seed",
               q->h->streams ? (int64_t)p->seed : (int64_t)(hash_bytes(key, sizeof key, p->seed) & INT32_MAX));
    js_begin(out, "stop", '[');
    for (int i = 0; i < p->n_stop_ids; i++) js_put_i64(out, NULL, p->stop_ids[i]);
    js_end(out, ']');
    js_end(out, '}');
    if (!q->h->streams) return;
    js_begin(out, "stream", '{');
    js_put_i64(out, "id", (int64_t)q->r->id);
    js_put_i64(out, "first", q->r->first);
    js_end(out, '}');
}

static void put_asample(void *ctx, struct link_call *c) {
    const struct asked *q = ctx;
    struct str *out = &c->body;
    str_clear(out);
    js_begin(out, NULL, '{');
    js_put_str(out, "sampling_session_id", q->sampler);
    js_put_i64(out, "seq_id", q->h->sample_seq++);
    js_put_i64(out, "num_samples", q->r->n_samples);
    js_begin(out, "prompt", '{');
    js_begin(out, "chunks", '[');
    js_begin(out, NULL, '{');
    js_put_str(out, "type", "encoded_text");
    js_begin(out, "tokens", '[');
    for (int i = 0; i < q->r->n_prompt; i++) js_put_i64(out, NULL, q->r->prompt[i]);
    js_end(out, ']');
    js_end(out, '}');
    js_end(out, ']');
    js_end(out, '}');
    put_params(q, out);
    js_put_bool(out, "prompt_logprobs", q->prompt_logprobs);
    js_put_str(out, "type", "sample");
    js_end(out, '}');
}

static enum status check_request(const struct request *r, struct err *e) {
    const struct sample_params *p = &r->params;
    if (p->min_p != 0 || p->n_stop_strings > 0 || p->min_tokens > 0 || p->n_logit_bias > 0 || p->n_allowed_ids > 0 ||
        p->n_bad_words > 0 || p->repetition_penalty > 0 || p->frequency_penalty != 0 || p->presence_penalty != 0 ||
        r->top_logprobs > 0 || r->n_logprob_ids > 0 || r->processed_logprobs || r->adapter != 0)
        return FAIL(
            e, ST_UNSUPPORTED,
            "the Tinker protocol samples with temperature, top_k, top_p, max_tokens and ids that stop, and with "
            "nothing else (min_p)");
    return ST_OK;
}

/* One sample, owned by the caller. */
static enum status take_sequence(const struct hosted *h, const struct wire_sequence *s, struct sample *out,
                                 struct err *e) {
    if (s->n < 1 || !s->logp || s->n > INT32_MAX)
        return FAIL(e, ST_IO, "asample: a sample has no tokens or no log-probabilities");
    for (int64_t i = 0; i < s->n; i++)
        if (s->ids[i] < 0 || s->ids[i] >= h->o.vocab || !isfinite(s->logp[i]))
            return FAIL(e, ST_IO, "asample: token %lld of a sample is %d, with the log-probability %g", (long long)i,
                        s->ids[i], (double)s->logp[i]);
    *out = (struct sample){.n = (int)s->n, .stop = s->by_length ? STOP_LENGTH : STOP_TOKEN};
    out->ids = xmalloc((size_t)s->n * sizeof *out->ids);
    out->logp = xmalloc((size_t)s->n * sizeof *out->logp);
    out->entropy = xmalloc((size_t)s->n * sizeof *out->entropy);
    memcpy(out->ids, s->ids, (size_t)s->n * sizeof *out->ids);
    memcpy(out->logp, s->logp, (size_t)s->n * sizeof *out->logp);
    for (int64_t i = 0; i < s->n; i++) out->entropy[i] = NAN;
    return ST_OK;
}

static enum status take_samples(const struct hosted *h, const struct link_call *c, int n, struct sample *out,
                                struct err *e) {
    struct arena a = ARENA_INIT;
    struct wire_sample s;
    enum status st = wire_read_sample(c->result.p, c->result.len, &a, &s, e);
    if (st == ST_OK && s.n != n) st = FAIL(e, ST_IO, "asample: %d samples came, %d were asked for", s.n, n);
    for (int i = 0; st == ST_OK && i < n; i++) st = take_sequence(h, &s.sequence[i], &out[i], e);
    arena_free(&a);
    return st;
}

/* Requests that are being sampled. */
struct drawing {
    struct hosted *h;
    const struct request *req;
    struct link_call *call;
    int n_req, done, total;
    bool *taken;
    struct sample *out;
    int64_t tokens;
    engine_progress_fn *progress;
    void *ctx;
    enum status st; /* of taking what has come */
    struct err err;
};

static void take_what_is_there(struct drawing *s) {
    for (int i = 0, at = 0; i < s->n_req && s->st == ST_OK; at += s->req[i++].n_samples) {
        const int n = s->req[i].n_samples;
        if (s->taken[i] || !s->call[i].done) continue;
        s->st = take_samples(s->h, &s->call[i], n, s->out + at, &s->err);
        s->taken[i] = true;
        str_free(&s->call[i].result);
        for (int j = 0; j < n; j++) s->tokens += s->out[at + j].n;
        s->done += n;
    }
}

static bool on_progress(void *ctx, int done) {
    struct drawing *s = ctx;
    (void)done;
    take_what_is_there(s);
    return s->st == ST_OK && (!s->progress || s->progress(s->ctx, s->tokens, s->done, s->total));
}

/* What went wrong while samples were taken comes first; ST_CANCELLED is no error: who cancels looks at it himself. */
static enum status end_sampling(struct drawing *s, enum status st, struct err *e) {
    if (s->st == ST_OK && st == ST_OK) take_what_is_there(s);
    if (s->st != ST_OK)
        *e = s->err;
    else
        s->st = st;
    if (s->st == ST_CANCELLED) {
        for (int i = 0; i < s->total; i++)
            if (!s->out[i].ids) s->out[i].stop = STOP_CANCELLED;
        return ST_OK;
    }
    for (int i = 0; s->st != ST_OK && i < s->total; i++) {
        sample_free(&s->out[i]);
        s->out[i] = (struct sample){0};
    }
    return s->st;
}

enum status hosted_sample(void *ctx, const struct request *req, int n_req, struct sample *out,
                          engine_progress_fn *progress, void *progress_ctx, struct err *e) {
    struct hosted *h = ctx;
    for (int i = 0; i < n_req; i++) TRY(check_request(&req[i], e));
    TRY(need_sampler(h, e));
    struct drawing s = {.h = h, .req = req, .n_req = n_req, .out = out, .progress = progress, .ctx = progress_ctx};
    struct asked *q = xcalloc((size_t)n_req, sizeof *q);
    s.call = xcalloc((size_t)n_req, sizeof *s.call);
    s.taken = xcalloc((size_t)n_req, sizeof *s.taken);
    for (int i = 0; i < n_req; i++) {
        s.total += req[i].n_samples;
        q[i] = (struct asked){h, h->sampler, &req[i], false};
        s.call[i] = (struct link_call){.path = "asample", .proto = true, .renew = put_asample, .ctx = &q[i]};
        put_asample(&q[i], &s.call[i]);
    }
    for (int i = 0; i < s.total; i++) out[i] = (struct sample){0};
    const enum status st = end_sampling(&s, link_run(h->link, s.call, n_req, on_progress, &s, e), e);
    for (int i = 0; i < n_req; i++) link_call_free(&s.call[i]);
    free(s.call);
    free(s.taken);
    free(q);
    return st;
}

/* ---- datums -------------------------------------------------------------------------------------------------------*/

/* What a leaf's call says, beside tokens and targets. */
enum form {
    FORM_FORWARD, /* log-probabilities alone */
    FORM_WEIGHTS, /* cross_entropy; the weights are minus the gradients that stand in `g`, or are plain (g NULL) */
    FORM_POLICY,  /* a loss of the protocol that takes the sampler's log-probabilities and advantages */
};

static struct wire_tensor *add_tensor(struct wire_datum *w, const char *name, enum wire_dtype dtype, struct arena *a) {
    struct wire_tensor *t = &w->tensor[w->n_tensors++];
    *t = (struct wire_tensor){.name = name, .dtype = dtype, .nd = 1, .dim = {w->n}, .n = w->n};
    if (dtype == WIRE_F32)
        t->f = arena_array(a, float, w->n);
    else
        t->i = arena_array(a, int64_t, w->n);
    return t;
}

/* A row that predicts and teaches nothing has the weight -0. A server of this program learns from it where the answer
 * begins, and shares the rows of the prompt as the trainer does here; to others it is 0. */
static float weight(double x) { return x == 0 ? -0.0F : (float)x; }

/* g [end - begin], of FORM_WEIGHTS. */
static void put_datum(const struct datum *d, enum form form, const float *g, struct arena *a, struct wire_datum *w) {
    *w = (struct wire_datum){.ids = (int32_t *)(uintptr_t)d->ids, .n = d->n};
    w->tensor = arena_array(a, struct wire_tensor, 3);
    int64_t *targets = add_tensor(w, "target_tokens", WIRE_I64, a)->i;
    float *weights = add_tensor(w, form == FORM_POLICY ? "advantages" : "weights", WIRE_F32, a)->f;
    float *sampled = form == FORM_POLICY ? add_tensor(w, "logprobs", WIRE_F32, a)->f : NULL;
    for (int64_t r = 0; r < d->n; r++) {
        const int64_t i = r - d->begin;
        const bool predicts = r >= d->begin && r < d->end;
        targets[r] = predicts ? d->targets[i] : r + 1 < d->n ? d->ids[r + 1] : d->ids[r];
        if (!predicts) continue;
        weights[r] = form == FORM_FORWARD ? -0.0F
                     : g                  ? weight(-(double)g[i])
                                          : weight(d->scale * (double)d->weights[i]);
        if (sampled) sampled[r] = d->sampled[i];
    }
}

/* All that decides a leaf's gradient beside the weights: its body behind the model's name and the call's number. */
static void remember(struct hosted *h, const struct str *body, int64_t seq) {
    CLEANUP_STR struct str head = STR_INIT;
    proto_put_text(&head, 1, h->model_id);
    proto_put_varint(&head, 2, (uint64_t)seq);
    ASSERT(body->len > head.len && memcmp(body->p, head.p, head.len) == 0);
    h->history = hash_bytes(body->p + head.len, body->len - head.len, h->history);
}

/* The body of a leaf's call. g: of its datums one behind the other. */
static void put_leaf(struct hosted *h, const struct train_call *c, const struct datum *d, int n, enum form form,
                     const float *g, struct str *out) {
    static const char *const names[] = {CHOICE_NAMES(LOSS_LIST)};
    struct arena a = ARENA_INIT;
    const struct loss_params *p = &c->loss;
    const bool clipped = form == FORM_POLICY && p->kind != LOSS_IMPORTANCE_SAMPLING;
    const struct wire_option options[] = {
        {"clip_low_threshold", NULL, p->kind == LOSS_PPO ? 1 - p->clip_low : 0},
        {"clip_high_threshold", NULL, 1 + p->clip_high},
    };
    struct wire_datum *w = arena_array(&a, struct wire_datum, n);
    for (int i = 0; i < n; i++) {
        put_datum(&d[i], form, g, &a, &w[i]);
        if (g) g += d[i].end - d[i].begin;
    }
    wire_put_training(out, &(struct wire_training){.model_id = h->model_id,
                                                   .loss_fn = form == FORM_POLICY ? names[p->kind] : "cross_entropy",
                                                   .seq_id = (int32_t)h->seq++,
                                                   .forward_only = form == FORM_FORWARD,
                                                   .datum = w,
                                                   .n = n,
                                                   .option = (struct wire_option *)(uintptr_t)options,
                                                   .n_options = clipped ? (int)ARRAY_LEN(options) : 0});
    arena_free(&a);
}

/* Log-probabilities of a leaf's rows that predict, one datum's behind the other's. */
static enum status read_leaf(const struct link_call *c, const struct datum *d, int n, float *logp, struct err *e) {
    struct arena a = ARENA_INIT;
    struct wire_output o;
    enum status st = wire_read_output(c->result.p, c->result.len, &a, &o, e);
    if (st == ST_OK && o.n != n) st = FAIL(e, ST_IO, "forward_backward: %d datums came back of %d", o.n, n);
    for (int i = 0; st == ST_OK && i < n; i++) {
        const int64_t rows = d[i].end - d[i].begin;
        if (o.datum[i].rows != d[i].n || o.datum[i].width > 1) {
            st = FAIL(e, ST_IO, "forward_backward: datum %d has %lld log-probabilities, expected %lld", i,
                      (long long)o.datum[i].rows, (long long)d[i].n);
            break;
        }
        memcpy(logp, o.datum[i].logp + d[i].begin, (size_t)rows * sizeof *logp);
        for (int64_t r = 0; r < rows; r++)
            if (!isfinite(logp[r])) st = FAIL(e, ST_IO, "forward_backward: a log-probability is not finite");
        logp += rows;
    }
    arena_free(&a);
    return st;
}

static int64_t rows_of(const struct datum *d, int n) {
    int64_t rows = 0;
    for (int i = 0; i < n; i++) rows += d[i].end - d[i].begin;
    return rows;
}

/* A call for each leaf of n datums, begun in their order. g, and logp, which comes back: of all rows that predict. */
static enum status run_leaves(struct hosted *h, const struct train_call *c, const struct datum *d, int n,
                              enum form form, const float *g, float *logp, struct err *e) {
    int *end = xmalloc((size_t)n * sizeof *end);
    const int leaves = train_leaves(d, n, h->o.train_tokens, end);
    struct link_call *call = xcalloc((size_t)leaves, sizeof *call);
    enum status st = ST_OK;
    if (h->lost) st = FAIL(e, ST_IO, "the model's server was lost");
    for (int k = 0, at = 0; st == ST_OK && k < leaves; at = end[k++]) {
        call[k] = (struct link_call){.path = "forward_backward", .proto_body = true, .proto = true};
        put_leaf(h, c, d + at, end[k] - at, form, g, &call[k].body);
        if (g) g += rows_of(d + at, end[k] - at);
        if (form != FORM_FORWARD) remember(h, &call[k].body, h->seq - 1);
    }
    if (st == ST_OK) st = link_run(h->link, call, leaves, NULL, NULL, e);
    h->lost |= st == ST_IO;
    for (int k = 0, at = 0; st == ST_OK && k < leaves; at = end[k++]) {
        st = read_leaf(&call[k], d + at, end[k] - at, logp, e);
        logp += rows_of(d + at, end[k] - at);
    }
    for (int k = 0; k < leaves; k++) link_call_free(&call[k]);
    free(call);
    free(end);
    return st;
}

static void hand_out(const struct datum *d, int n, const float *logp) {
    for (int i = 0; i < n; logp += d[i].end - d[i].begin, i++)
        if (d[i].logp) memcpy(d[i].logp, logp, (size_t)(d[i].end - d[i].begin) * sizeof *logp);
}

/* ---- training -----------------------------------------------------------------------------------------------------*/

/* Of a text its log-probabilities under the weights that the model began with: a sampler's, as it prefills them. */
static enum status forward_reference(struct hosted *h, const struct datum *d, int n, float *logp, struct err *e) {
    if (!h->reference) TRY(open_sampler(h, h->o.reference, &h->reference, e));
    struct arena a = ARENA_INIT;
    struct request *r = arena_array(&a, struct request, n);
    struct asked *q = arena_array(&a, struct asked, n);
    struct link_call *call = arena_array(&a, struct link_call, n);
    for (int i = 0; i < n; i++) {
        int32_t *ids = arena_array(&a, int32_t, d[i].n + 1);
        memcpy(ids, d[i].ids, (size_t)d[i].n * sizeof *ids);
        ids[d[i].n] = d[i].targets[d[i].n - 1 - d[i].begin];
        r[i] = (struct request){.prompt = ids,
                                .n_prompt = (int)d[i].n + 1,
                                .n_samples = 1,
                                .params = {.temperature = 1, .top_p = 1, .max_tokens = 1}};
        q[i] = (struct asked){h, h->reference, &r[i], true};
        call[i] = (struct link_call){.path = "asample", .proto = true, .renew = put_asample, .ctx = &q[i]};
        put_asample(&q[i], &call[i]);
    }
    enum status st = link_run(h->link, call, n, NULL, NULL, e);
    for (int i = 0; st == ST_OK && i < n; i++) {
        struct wire_sample s;
        st = wire_read_sample(call[i].result.p, call[i].result.len, &a, &s, e);
        if (st == ST_OK && s.n_prompt != d[i].n + 1)
            st = FAIL(e, ST_IO, "asample: %lld log-probabilities of a prompt came, expected %lld",
                      (long long)s.n_prompt, (long long)d[i].n + 1);
        for (int64_t t = d[i].begin; st == ST_OK && t < d[i].end; t++) *logp++ = s.prompt_logp[t + 1];
    }
    for (int i = 0; i < n; i++) link_call_free(&call[i]);
    arena_free(&a);
    return st;
}

enum status hosted_forward(struct hosted *h, bool reference, const struct datum *d, int n, struct err *e) {
    const struct train_call plain = {.loss = {.kind = LOSS_CROSS_ENTROPY}};
    float *logp = xmalloc((size_t)rows_of(d, n) * sizeof *logp);
    const enum status st =
        reference ? forward_reference(h, d, n, logp, e) : run_leaves(h, &plain, d, n, FORM_FORWARD, NULL, logp, e);
    if (st == ST_OK) hand_out(d, n, logp);
    free(logp);
    return st;
}

/* Losses of all datums from their log-probabilities, and the gradients by these. */
static void losses(const struct train_call *c, const struct datum *d, int n, const float *logp, float *g,
                   struct train_stats *s) {
    for (int i = 0; i < n; i++) {
        const int64_t rows = d[i].end - d[i].begin;
        const struct loss_sequence q = {.n = rows,
                                        .logp = logp,
                                        .old = d[i].old ? d[i].old : d[i].sampled,
                                        .sampled = d[i].sampled,
                                        .ref = c->loss.kl_coef != 0 ? d[i].ref : NULL,
                                        .adv = d[i].weights};
        loss_grad(&c->loss, &q, d[i].scale, g, &s->loss);
        for (int64_t r = 0; c->on_policy && d[i].sampled && !d[i].stale && r < rows; r++)
            s->kl_before = fmax(s->kl_before, fabs((double)logp[r] - (double)d[i].sampled[r]));
        s->rows += d[i].n;
        logp += rows;
        g += rows;
    }
}

/* Whether the server's own loss is the one that is wanted, with the same bits where its log-probabilities are the
 * sampler's: plain weights always, ratios while they are 1. */
static bool server_knows(const struct train_call *c, const struct datum *d, int n, enum form *form) {
    const struct loss_params *p = &c->loss;
    const bool plain = p->kind == LOSS_REINFORCE || p->kind == LOSS_CROSS_ENTROPY;
    bool fresh = c->on_policy;
    for (int i = 0; i < n; i++) fresh &= !d[i].stale && !d[i].old && d[i].sampled;
    *form = plain ? FORM_WEIGHTS : FORM_POLICY;
    if (p->kl_coef != 0 || (!fresh && (!plain || p->correction != CORRECT_NONE))) return false;
    return plain || p->kind == LOSS_IMPORTANCE_SAMPLING || p->kind == LOSS_CISPO ||
           (p->kind == LOSS_PPO && p->clip_dual == 0);
}

enum status hosted_accumulate(struct hosted *h, const struct train_call *c, const struct datum *d, int n,
                              struct train_stats *stats, struct err *e) {
    const size_t bytes = (size_t)rows_of(d, n) * sizeof(float);
    float *logp = xmalloc(bytes), *g = xmalloc(bytes);
    enum form form;
    enum status st;
    ASSERT(c->loss.entropy_coef == 0 && !c->summed);
    if (server_knows(c, d, n, &form)) {
        st = run_leaves(h, c, d, n, form, NULL, logp, e);
        if (st == ST_OK) losses(c, d, n, logp, g, stats);
    } else {
        st = run_leaves(h, c, d, n, FORM_FORWARD, NULL, logp, e);
        if (st == ST_OK) losses(c, d, n, logp, g, stats);
        if (st == ST_OK) st = run_leaves(h, c, d, n, FORM_WEIGHTS, g, logp, e);
    }
    if (st == ST_OK) hand_out(d, n, logp);
    stats->entropy = NAN;
    free(logp);
    free(g);
    return st;
}

enum status hosted_step(struct hosted *h, const struct adamw_config *c, double max_grad_norm, double *grad_norm,
                        struct err *e) {
    CLEANUP_JSON json_t *j = NULL;
    json_t *metrics;
    *grad_norm = NAN;
    if (h->lost) return FAIL(e, ST_IO, "the model's server was lost");
    struct link_call call = json_call("optim_step", false);
    js_begin(&call.body, "adam_params", '{');
    js_put_f64(&call.body, "learning_rate", c->learning_rate);
    js_put_f64(&call.body, "beta1", c->beta1);
    js_put_f64(&call.body, "beta2", c->beta2);
    js_put_f64(&call.body, "eps", c->eps);
    js_put_f64(&call.body, "weight_decay", c->weight_decay);
    js_put_f64(&call.body, "grad_clip_norm", max_grad_norm);
    js_end(&call.body, '}');
    h->history = hash_bytes(call.body.p, call.body.len, h->history);
    js_put_str(&call.body, "model_id", h->model_id);
    js_put_i64(&call.body, "seq_id", h->seq++);
    js_put_str(&call.body, "type", "optim_step");
    const enum status st = make(h, &call, &j, e);
    h->lost |= st == ST_IO;
    TRY(st);
    free(h->sampler);
    h->sampler = NULL;
    if (js_get_object(j, "optim_step", "metrics", &metrics, e) != ST_OK) return ST_OK; /* names there are free */
    return js_opt_f64(metrics, "optim_step: metrics", "grad_norm", grad_norm, e);
}

enum status hosted_save(struct hosted *h, const char *name, char **path, struct err *e) {
    *path = NULL;
    if (h->lost) return FAIL(e, ST_IO, "the model's server was lost");
    struct link_call c = json_call("save_weights", false);
    js_put_str(&c.body, "model_id", h->model_id);
    js_put_i64(&c.body, "seq_id", h->seq++);
    js_put_str(&c.body, "path", name);
    js_put_bool(&c.body, "overwrite", true);
    js_put_str(&c.body, "type", "save_weights");
    return make_for(h, &c, "path", path, e);
}

/* ---- files of the adapter -----------------------------------------------------------------------------------------*/

/* A call without a body, whose answer is its result. */
static struct link_call bare_call(const char *method, const char *path) {
    return (struct link_call){.method = method, .path = path, .direct = true};
}

/* dir/name, from an address that the server gave; it stands there when it is whole. */
static enum status fetch_file(struct hosted *h, const char *url, const char *dir, const char *name, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, name);
    CLEANUP_STR struct str part = STR_INIT;
    str_addf(&part, "%s.part", path);
    struct link_call c = bare_call("GET", name);
    c.url = url;
    c.to = fopen(part.p, "we");
    if (!c.to) return FAIL(e, ST_IO, "%s: %s", part.p, strerror(errno));
    enum status st = link_run(h->link, &c, 1, NULL, NULL, e);
    link_call_free(&c);
    if ((fflush(c.to) != 0 || fsync(fileno(c.to)) != 0) && st == ST_OK)
        st = FAIL(e, ST_IO, "%s: %s", part.p, strerror(errno));
    fclose(c.to);
    if (st == ST_OK && rename(part.p, path) != 0) st = FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    if (st != ST_OK) unlink(part.p);
    return st;
}

/* at: training_runs/RUN/checkpoints/KIND/NAME. */
static enum status fetch_files(struct hosted *h, const char *at, const char *dir, struct err *e) {
    static const char *const names[] = {"adapter_model.safetensors", "adapter_config.json"};
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *j = NULL;
    json_t *urls;
    str_addf(&path, "%s/external_weights_urls", at);
    struct link_call c = bare_call("GET", path.p);
    enum status st = link_run(h->link, &c, 1, NULL, NULL, e);
    if (st == ST_OK) st = js_parse(str_c(&c.result), c.result.len, path.p, &j, e);
    link_call_free(&c);
    TRY(st);
    TRY(js_get_object(j, path.p, "urls", &urls, e));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *url;
        TRY(js_get_str(urls, path.p, names[i], &url, e));
        TRY(fetch_file(h, url, dir, names[i], e));
    }
    return ST_OK;
}

enum status hosted_download(struct hosted *h, const char *dir, struct err *e) {
    static const char scheme[] = "tinker://";
    CLEANUP_FREE char *path = NULL;
    CLEANUP_STR struct str name = STR_INIT, at = STR_INIT;
    struct err ignored;
    if (h->lost) return FAIL(e, ST_IO, "the model's server was lost");
    struct link_call c = json_call("save_weights_external", false);
    str_addf(&name, "download-%lld", (long long)h->seq);
    js_put_str(&c.body, "model_id", h->model_id);
    js_put_i64(&c.body, "seq_id", h->seq++);
    js_put_str(&c.body, "path", name.p);
    js_put_i64(&c.body, "ttl_seconds", KEPT_S);
    js_put_str(&c.body, "type", "save_weights_external");
    TRY(make_for(h, &c, "path", &path, e));
    const char *run = path + (sizeof scheme - 1), *slash = str_has_prefix(path, scheme) ? strchr(run, '/') : NULL;
    if (!slash)
        return FAIL(e, ST_IO, "save_weights_external: expected a path tinker://RUN/KIND/NAME, got \"%s\"", path);
    str_addf(&at, "training_runs/%.*s/checkpoints%s", (int)(slash - run), run, slash);
    const enum status st = fetch_files(h, at.p, dir, e);
    struct link_call drop = bare_call("DELETE", at.p); /* else its time runs out */
    if (link_run(h->link, &drop, 1, NULL, NULL, &ignored) != ST_OK) log_debug("%s", ignored.msg);
    link_call_free(&drop);
    return st;
}
