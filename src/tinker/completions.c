/* Completions: which requests of a sampler have ended. A client asks for all of them in one poll, instead of one poll a
 * request, and then fetches the results (futures.c). It says which number it has seen last. */
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

enum { CLONE_STEP = 1000000000 /* between the requests' numbers of clients that share a sampler */ };

void completion_add(struct tinker *t, struct tinker_sampler *m, const struct future *f, int64_t seq) {
    struct completions *c = &m->completed;
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 16;
        c->item = xrealloc(c->item, (size_t)c->cap * sizeof *c->item);
    }
    c->item[c->n++] = (struct completion){.number = ++t->completions,
                                          .clone = seq / CLONE_STEP,
                                          .id = xstrdup(f->id),
                                          .since = tinker_now_s(),
                                          .failed = f->state == FUTURE_FAILED,
                                          .bytes = (int64_t)f->result.len};
    completions_wake(m);
}

void completions_wake(const struct tinker_sampler *m) {
    for (int i = 0; i < m->completed.n_polls; i++) http_wake(m->completed.poll[i]);
}

/* The first n of them go. */
static void forget(struct completions *c, int n) {
    for (int i = 0; i < n; i++) free(c->item[i].id);
    c->n -= n;
    if (n > 0) memmove(c->item, c->item + n, (size_t)c->n * sizeof *c->item);
}

void completions_age(struct tinker *t, double now) {
    for (struct tinker_sampler *m = t->samplers; m; m = m->next) {
        int n = 0;
        while (n < m->completed.n &&
               (m->gone || now - m->completed.item[n].since > RESULT_S || !future_find(t, m->completed.item[n].id)))
            n++;
        forget(&m->completed, n);
    }
}

void completions_free(struct tinker_sampler *m) {
    forget(&m->completed, m->completed.n);
    free(m->completed.item);
    free(m->completed.poll);
}

/* ---- the poll -----------------------------------------------------------------------------------------------------*/

struct many {
    const char *sampler;
    int64_t clone, cursor; /* cursor: the number seen last */
    double timeout;
};

static enum status read_many(const json_t *j, struct many *out, struct err *e) {
    json_t *target;
    *out = (struct many){.timeout = POLL_S};
    TRY(js_get_object(j, "body", "target", &target, e));
    TRY(js_get_str(target, "body: target", "sampling_session_id", &out->sampler, e));
    TRY(js_opt_i64(target, "body: target", "cloned_sampler_id", &out->clone, e));
    TRY(js_opt_i64(j, "body", "prev_cursor", &out->cursor, e));
    return js_opt_f64(j, "body", "timeout", &out->timeout, e);
}

static void put_completion(struct str *out, const struct completion *c) {
    js_begin(out, NULL, '{');
    js_put_str(out, "state", c->failed ? "failed" : "finished");
    js_put_str(out, "request_id", c->id);
    if (!c->failed) js_put_i64(out, "response_payload_uncompressed_size", c->bytes);
    js_end(out, '}');
}

/* Replies with what has ended since; without `always` only where there is something. */
static bool reply_many(struct http_exchange *x, const struct completions *c, const struct many *q, bool always) {
    struct str out = STR_INIT;
    /* A cursor beyond the last number is that of a server whose clock was ahead: the client is told all again. */
    int64_t cursor = c->n > 0 && q->cursor > c->item[c->n - 1].number ? 0 : q->cursor;
    bool any = false;
    js_begin(&out, NULL, '{');
    js_begin(&out, "completions", '[');
    for (int i = 0; i < c->n; i++) {
        if (c->item[i].number <= cursor || c->item[i].clone != q->clone) continue;
        put_completion(&out, &c->item[i]);
        any = true;
    }
    js_end(&out, ']');
    if (c->n > 0) cursor = c->item[c->n - 1].number;
    js_put_i64(&out, "cursor", cursor);
    js_end(&out, '}');
    if (any || always)
        http_reply_json(x, 200, &out);
    else
        str_free(&out);
    return any || always;
}

/* What the client has fetched counts as fetched, though its connection broke before all of it was sent. */
static void note_retrieved(struct tinker *t, const struct http_exchange *x, const json_t *j) {
    const json_t *ids = json_object_get(j, "retrieved_request_ids"), *id;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)ids, i, id) {
        struct future *f = json_is_string(id) ? future_seen(t, x, json_string_value(id)) : NULL;
        if (f && f->state != FUTURE_WAITS) future_read(t, f);
    }
}

/* Takes out what the client has been told: it says how far it has seen. A cursor beyond the last number is not ours. */
static void forget_told(struct completions *c, const struct many *q) {
    int left = 0;
    if (c->n == 0 || q->cursor > c->item[c->n - 1].number) return;
    for (int i = 0; i < c->n; i++)
        if (c->item[i].clone == q->clone && c->item[i].number <= q->cursor)
            free(c->item[i].id);
        else
            c->item[left++] = c->item[i];
    c->n = left;
}

static struct tinker_sampler *read_poll(struct tinker *t, struct http_exchange *x, json_t **j, struct many *q) {
    struct err e = {0};
    if (!(*j = body_json(x))) return NULL;
    if (read_many(*j, q, &e) != ST_OK) {
        reply_detail(x, 422, "%s", e.msg);
        return NULL;
    }
    struct tinker_sampler *m = sampler_seen(t, x, q->sampler);
    if (!m)
        reply_detail(x, 404, "there is no sampling session \"%.200s\" here", q->sampler);
    else if (m->session->finished)
        reply_detail(x, 410, "the session of the sampler %s has ended", m->id);
    return http_replied(x) ? NULL : m;
}

void retrieve_many_begin(void *tinker, struct http_exchange *x) {
    CLEANUP_JSON json_t *j = NULL;
    struct many q;
    if (!model_is_up(tinker, x)) return;
    struct tinker_sampler *m = read_poll(tinker, x, &j, &q);
    if (!m) return;
    struct completions *c = &m->completed;
    m->session->heard = tinker_now_s();
    note_retrieved(tinker, x, j);
    forget_told(c, &q);
    if (reply_many(x, c, &q, !(q.timeout > 0))) return;
    if (c->n_polls == c->cap_polls) {
        c->cap_polls = c->cap_polls ? 2 * c->cap_polls : 2;
        c->poll = xrealloc(c->poll, (size_t)c->cap_polls * sizeof(struct http_exchange *));
    }
    c->poll[c->n_polls++] = x;
    http_set_state(x, m);
    http_wake_after(x, q.timeout < POLL_S ? q.timeout : POLL_S);
}

void retrieve_many_event(void *tinker, struct http_exchange *x, enum http_event e) {
    CLEANUP_JSON json_t *j = NULL;
    struct many q;
    const struct tinker_sampler *m = read_poll(tinker, x, &j, &q);
    if (m) (void)reply_many(x, &m->completed, &q, e != HTTP_WOKEN);
}

void retrieve_many_end(void *tinker, struct http_exchange *x) {
    struct tinker_sampler *m = http_state(x);
    (void)tinker;
    for (int i = 0; m && i < m->completed.n_polls; i++)
        if (m->completed.poll[i] == x) {
            m->completed.poll[i] = m->completed.poll[--m->completed.n_polls];
            return;
        }
}
