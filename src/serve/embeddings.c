/* POST /v1/embeddings. The model's thread computes them, some rows between two steps of the engine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "serve/generation.h"

enum { ROWS_AT_ONCE = 1024, MAX_PENDING = 256 };

struct embedding {
    struct model_call call; /* the first member */
    struct work work;       /* its body, until it is parsed and tokenised */
    struct serve *s;
    struct http_exchange *x; /* NULL: the client has left */
    struct ask_error error;
    bool fine;
    struct arena mem;
    struct ids ids; /* of all texts, end to end */
    int64_t *start; /* [n + 1] */
    float *out;     /* [n, D] */
    int n, done, D, adapter;
    bool last, base64, computed, submitted, held, truncate;
    char *model;
    enum status status;
    struct err err;
};

/* Sentence-transformers' file says how. A model without one was made to write. */
enum serve_pooling embeddings_pooling(const char *folder) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_JSON json_t *o = NULL;
    struct err ignored;
    str_addf(&path, "%s/1_Pooling/config.json", folder);
    if (js_load(path.p, 1 << 16, &o, &ignored) != ST_OK) return SERVE_POOLING_OFF;
    if (json_is_true(json_object_get(o, "pooling_mode_lasttoken"))) return SERVE_POOLING_LAST;
    return json_is_true(json_object_get(o, "pooling_mode_mean_tokens")) ? SERVE_POOLING_MEAN : SERVE_POOLING_OFF;
}

/* ---- the request --------------------------------------------------------------------------------------------------*/

static bool parse_format(const json_t *o, struct embedding *m, struct ask_error *e) {
    const json_t *format = json_object_get(o, "encoding_format"), *dimensions = json_object_get(o, "dimensions"),
                 *truncate = json_object_get(o, "truncate_prompt_tokens");
    const char *name = json_string_value(format);
    if (format && !json_is_null(format)) {
        const int at = name ? str_index_in("float|base64", name, '|') : -1;
        if (at < 0) return ask_fail(e, NULL, "encoding_format", "encoding_format: expected float or base64");
        m->base64 = at == 1;
    }
    if (dimensions && !json_is_null(dimensions) && json_integer_value(dimensions) != m->D)
        return ask_fail(e, "unsupported_parameter", "dimensions",
                        "dimensions: this model's vectors have %d numbers and are not cut", m->D);
    if (truncate && !json_is_null(truncate)) {
        int64_t n;
        if (!ask_int(truncate, "truncate_prompt_tokens", -1, INT32_MAX, &n, e)) return false;
        m->truncate = n != 0;
    }
    return true;
}

/* The tokens of one text, with what the model's tokenizer puts around it. */
static bool add_text(struct embedding *m, struct tokenizer *t, const struct ask_prompt *q, struct ask_error *e) {
    const struct serve *s = m->s;
    struct ids v = {0};
    if (q->is_text) {
        tokenizer_encode_whole(t, q->text.p, q->text.n, true, &v);
    } else {
        for (int i = 0; i < q->n_ids; i++) ids_add(&v, q->ids[i]);
    }
    const size_t most = (size_t)s->max_len, n = v.len;
    const size_t from = n > most && m->truncate ? n - most : 0;
    for (size_t i = from; i < n; i++) ids_add(&m->ids, v.p[i]);
    ids_free(&v);
    if (n > most && !m->truncate)
        return ask_fail(e, "context_length_exceeded", "input",
                        "This model's maximum context length is %zu tokens. However, an input has %zu tokens.", most,
                        n);
    return n > 0 || ask_fail(e, NULL, "input", "input: expected at least one token");
}

static bool parse(struct embedding *m, struct tokenizer *t, const struct str *body, struct ask_error *e) {
    CLEANUP_JSON json_t *o = NULL;
    struct ask_prompt *text;
    if (!ask_object(str_c(body), body->len, &o, e) || !parse_format(o, m, e)) return false;
    const char *model = json_string_value(json_object_get(o, "model"));
    m->model = xstrdup(model ? model : "");
    if (!ask_prompts(&m->mem, json_object_get(o, "input"), "input", &m->s->limits, &text, &m->n, e)) return false;
    m->start = xcalloc((size_t)m->n + 1, sizeof *m->start);
    bool fine = true;
    for (int i = 0; i < m->n && fine; i++) {
        fine = add_text(m, t, &text[i], e);
        m->start[i + 1] = (int64_t)m->ids.len;
    }
    return fine;
}

/* ---- the model's thread -------------------------------------------------------------------------------------------*/

/* The sum of rows, or the last one, scaled to length 1. */
static void pool_rows(const float *rows, int64_t n, int64_t D, float *out) {
    CLEANUP_FREE double *sum = xcalloc((size_t)D, sizeof *sum);
    double norm = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t k = 0; k < D; k++) sum[k] += (double)rows[r * D + k];
    for (int64_t k = 0; k < D; k++) norm += sum[k] * sum[k];
    norm = norm > 0 ? sqrt(norm) : 1;
    for (int64_t k = 0; k < D; k++) out[k] = (float)(sum[k] / norm);
}

/* One pass over the texts first..first + n. */
static enum status pass(struct embedding *m, struct policy *p, int first, int n) {
    const int64_t from = m->start[first], T = m->start[first + n] - from, D = m->D, N = m->last ? n : T;
    CLEANUP_FREE struct segment *seg = xcalloc((size_t)n, sizeof *seg);
    CLEANUP_FREE int32_t *rows = xmalloc((size_t)N * sizeof *rows);
    CLEANUP_FREE float *hidden = xmalloc((size_t)N * (size_t)D * sizeof *hidden);
    for (int i = 0; i < n; i++) {
        const int64_t at = m->start[first + i] - from, end = m->start[first + i + 1] - from;
        seg[i] = (struct segment){at, end - at, -1, m->adapter};
        if (m->last) rows[i] = (int32_t)(end - 1);
    }
    for (int64_t r = 0; !m->last && r < T; r++) rows[r] = (int32_t)r;
    const struct train_batch b = {
        .ids = m->ids.p + from, .T = T, .seg = seg, .n_seg = n, .rows = rows, .N = N, .forward_only = true};
    TRY(model_forward(p->model, &b, NULL, NULL, hidden, &m->err));
    for (int i = 0; i < n; i++)
        pool_rows(hidden + (m->last ? i : seg[i].start) * D, m->last ? 1 : seg[i].len, D, m->out + (first + i) * D);
    return ST_OK;
}

static bool run(struct model_call *c, struct policy *p) {
    struct embedding *m = (struct embedding *)c;
    int n = 1;
    while (m->done + n < m->n && m->start[m->done + n + 1] - m->start[m->done] <= ROWS_AT_ONCE) n++;
    m->status = pass(m, p, m->done, n);
    m->done += n;
    return m->status != ST_OK || m->done == m->n;
}

/* ---- the reply ----------------------------------------------------------------------------------------------------*/

static void add_base64(struct str *out, const unsigned char *p, size_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const unsigned b =
            (unsigned)p[i] << 16 | (i + 1 < n ? (unsigned)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        str_addc(out, digit[b >> 18]);
        str_addc(out, digit[b >> 12 & 63]);
        str_addc(out, i + 1 < n ? digit[b >> 6 & 63] : '=');
        str_addc(out, i + 2 < n ? digit[b & 63] : '=');
    }
}

static void put_vector(const struct embedding *m, struct str *out, const float *v) {
    if (m->base64) { /* little-endian float32, as this machine has them */
        CLEANUP_STR struct str text = STR_INIT;
        add_base64(&text, (const unsigned char *)v, (size_t)m->D * sizeof *v);
        js_put_strn(out, "embedding", text.p, text.len);
        return;
    }
    js_begin(out, "embedding", '[');
    for (int k = 0; k < m->D; k++) put_f32(out, NULL, v[k]);
    js_end(out, ']');
}

static void reply(struct embedding *m, struct http_exchange *x) {
    struct str out = STR_INIT;
    if (!m->call.finished) {
        http_reply_error(x, 503, "draining", NULL, "the server is ending");
        return;
    }
    if (m->status != ST_OK) {
        http_reply_failure(x, 500, "engine_error", NULL, &m->err);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "list");
    js_begin(&out, "data", '[');
    for (int i = 0; i < m->n; i++) {
        js_begin(&out, NULL, '{');
        js_put_str(&out, "object", "embedding");
        js_put_i64(&out, "index", i);
        put_vector(m, &out, m->out + (int64_t)i * m->D);
        js_end(&out, '}');
    }
    js_end(&out, ']');
    js_put_str(&out, "model", *m->model ? m->model : m->s->models.first->name);
    js_begin(&out, "usage", '{');
    js_put_i64(&out, "prompt_tokens", (int64_t)m->ids.len);
    js_put_i64(&out, "total_tokens", (int64_t)m->ids.len);
    js_end(&out, '}');
    js_end(&out, '}');
    http_log_number(x, "prompt_tokens", (int64_t)m->ids.len);
    http_reply_json(x, 200, &out);
}

static void free_embedding(struct embedding *m) {
    arena_free(&m->mem);
    ids_free(&m->ids);
    free(m->start);
    free(m->out);
    free(m->model);
    free(m);
}

static void computed(struct model_call *c) {
    struct embedding *m = (struct embedding *)c;
    m->computed = true;
    m->s->n_embeddings--;
    if (m->x)
        http_wake(m->x);
    else
        free_embedding(m);
}

/* ---- the route ----------------------------------------------------------------------------------------------------*/

static void admit(struct embedding *m, struct http_exchange *x) {
    struct serve *s = m->s;
    struct served_model *model = serve_model(s, x, m->model);
    struct err e;
    bool ready;
    if (!model) return;
    if (models_use(&s->models, model, &ready, &e) != ST_OK) {
        http_reply_failure(x, 400, NULL, "model", &e);
        return;
    }
    if (!ready) {
        serve_wait(s, x);
        return;
    }
    m->adapter = model->adapter;
    m->out = xcalloc((size_t)m->n * (size_t)m->D, sizeof *m->out);
    m->call = (struct model_call){.run = run, .done = computed};
    m->submitted = true;
    s->n_embeddings++;
    model_thread_call(s->thread, &m->call);
}

static struct embedding *of_work(struct work *w) {
    return (struct embedding *)(void *)((char *)w - offsetof(struct embedding, work));
}

/* Any thread. */
static void run_parse(struct work *w, struct tokenizer *t) {
    struct embedding *m = of_work(w);
    if (t) m->fine = parse(m, t, &w->body, &m->error);
}

static void parsed(struct work *w) {
    struct embedding *m = of_work(w);
    if (!w->x)
        free_embedding(m);
    else if (!m->fine)
        reply_ask_error(w->x, &m->error);
    else
        admit(m, w->x);
}

void embeddings_begin(void *serve, struct http_exchange *x) {
    struct serve *s = serve;
    if (!serve_is_up(s, x)) return;
    const enum serve_pooling pooling = s->pooling;
    if (pooling == SERVE_POOLING_OFF) {
        http_reply_error(x, 400, "unsupported_parameter", "model",
                         "this model is not made for embeddings: the server's --embeddings says how to make some");
        return;
    }
    if (s->n_embeddings >= MAX_PENDING) {
        http_add_header(x, "retry-after", "1");
        http_reply_error(x, 429, "queue_full", NULL, "%d requests for embeddings wait, the limit", MAX_PENDING);
        return;
    }
    struct embedding *m = xcalloc(1, sizeof *m);
    m->s = s;
    m->x = x;
    m->D = model_cfg(model_thread_policy(s->thread)->model)->D;
    m->last = pooling == SERVE_POOLING_LAST;
    m->error = (struct ask_error){.status = 500, .message = "the tokenizer cannot be opened"};
    m->work = (struct work){.run = run_parse, .done = parsed};
    http_set_state(x, m);
    work_begin(&m->work, s, x);
}

void embeddings_event(void *serve, struct http_exchange *x, enum http_event e) {
    struct embedding *m = http_state(x);
    (void)serve;
    if (!m || e != HTTP_WOKEN || m->work.pending) return;
    if (!m->submitted)
        admit(m, x);
    else if (m->computed)
        reply(m, x);
}

void embeddings_end(void *serve, struct http_exchange *x) {
    struct embedding *m = http_state(x);
    if (!m) return;
    serve_stop_waiting(serve, x);
    m->x = NULL;
    if (work_end(&m->work) && (!m->submitted || m->computed)) free_embedding(m);
}
