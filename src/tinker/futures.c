/* Futures: what a call is answered with at once, and the long polls that wait for the rest. */
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

static struct future **slot_of(const struct tinker *t, const char *id) {
    return (struct future **)(uintptr_t)&t->future[hash_str(id) % FUTURE_SLOTS];
}

struct future *future_find(const struct tinker *t, const char *id) {
    struct future *f = *slot_of(t, id);
    while (f && strcmp(f->id, id) != 0) f = f->next;
    return f;
}

struct future *future_seen(struct tinker *t, const struct http_exchange *x, const char *id) {
    struct future *f = future_find(t, id);
    return f && tenant_sees(tenant_of(t, x), f->owner->tenant->id) ? f : NULL;
}

struct future *future_make(struct tinker *t, const char *id, struct tinker_session *owner,
                           const struct digest *content) {
    struct future **slot = slot_of(t, id), *f = xcalloc(1, sizeof *f);
    *f =
        (struct future){.next = *slot, .id = xstrdup(id), .owner = owner, .content = *content, .since = tinker_now_s()};
    *slot = f;
    return f;
}

/* Everybody who waits for it looks again. */
static void wake(struct future *f) {
    struct http_exchange **polls = f->poll;
    const int n = f->n_polls;
    f->poll = NULL;
    f->n_polls = f->cap_polls = 0;
    for (int i = 0; i < n; i++) {
        http_wake(polls[i]);
        http_set_state(polls[i], NULL); /* of one whose client has left, too */
    }
    free(polls);
}

static struct kept_results *kept_of(const struct future *f) { return &f->owner->tenant->kept; }

/* What a future takes that is done. */
static int64_t bytes_of(const struct future *f) { return (int64_t)(sizeof *f + f->result.len); }

/* It counts no more. */
static void forget_bytes(struct future *f) {
    const int64_t n = f->state == FUTURE_WAITS ? 0 : bytes_of(f);
    kept_of(f)->bytes -= n;
    if (f->read == 0) kept_of(f)->unread -= n;
}

void future_read(const struct tinker *t, struct future *f) {
    if (f->sampled) store_sample_over(t, f);
    f->sampled = false;
    if (f->read == 0) kept_of(f)->unread -= bytes_of(f);
    f->read = tinker_now_s();
}

void future_done(struct future *f, struct str *result, bool proto) {
    f->state = FUTURE_DONE;
    f->proto = proto;
    f->result = *result;
    *result = STR_INIT;
    f->since = tinker_now_s();
    kept_of(f)->bytes += bytes_of(f);
    kept_of(f)->unread += bytes_of(f);
    wake(f);
}

void future_fail(struct future *f, const char *category, const char *message) {
    CLEANUP_STR struct str told = STR_INIT;
    http_tell_without_paths(&told, message);
    forget_bytes(f);
    f->state = FUTURE_FAILED;
    f->proto = false;
    str_clear(&f->result);
    js_begin(&f->result, NULL, '{');
    js_put_str(&f->result, "error", str_c(&told));
    js_put_str(&f->result, "category", category);
    js_end(&f->result, '}');
    f->since = tinker_now_s();
    kept_of(f)->bytes += bytes_of(f);
    kept_of(f)->unread += bytes_of(f);
    wake(f);
}

/* What the user can change is the user's; a device, a file and a lost process are the server's. */
void future_end(struct future *f, enum status st, const struct err *e) {
    const bool server = st == ST_IO || st == ST_MEMORY || st == ST_DEVICE || st == ST_CANCELLED || st == ST_LOST;
    future_fail(f, server ? "server" : "user", e->msg);
}

void future_promise(struct http_exchange *x, const struct future *f, const char *model_id) {
    struct str out = STR_INIT;
    if (!x) return;
    js_begin(&out, NULL, '{');
    js_put_str(&out, "request_id", f->id);
    if (model_id) js_put_str(&out, "model_id", model_id);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

bool future_repeated(struct tinker *t, struct http_exchange *x, const char *id, const struct digest *content,
                     const char *model_id) {
    const struct future *f = future_find(t, id);
    if (!f) return false;
    if (digest_equal(&f->content, content))
        future_promise(x, f, model_id);
    else
        reply_detail(x, 400, "the number of this call (%s) was used for another call before", id);
    return true;
}

/* ---- going --------------------------------------------------------------------------------------------------------*/

static void drop(struct future **at) {
    struct future *f = *at;
    *at = f->next;
    forget_bytes(f);
    f->id[0] = 0; /* who waits for it is told that it is gone */
    wake(f);
    str_free(&f->result);
    free(f->id);
    free(f);
}

void futures_drop(struct tinker *t, const struct tinker_session *owner) {
    for (int i = 0; i < FUTURE_SLOTS; i++)
        for (struct future **at = &t->future[i]; *at;)
            if (!owner || (*at)->owner == owner)
                drop(at);
            else
                at = &(*at)->next;
}

void futures_age(struct tinker *t, double now) {
    for (int i = 0; i < FUTURE_SLOTS; i++)
        for (struct future **at = &t->future[i]; *at;)
            if ((*at)->state != FUTURE_WAITS && now - (*at)->since > RESULT_S) {
                if ((*at)->sampled) store_sample_over(t, *at); /* the next server need not sample it again */
                drop(at);
            } else {
                at = &(*at)->next;
            }
}

/* Results that may go: the tenant's that were fetched, and not lately. */
static struct future **fetched(const struct tinker *t, const struct tinker_tenant *b, double before, size_t *n) {
    struct future **list = NULL;
    size_t cap = 0;
    *n = 0;
    for (int i = 0; i < FUTURE_SLOTS; i++)
        for (struct future *f = t->future[i]; f; f = f->next) {
            if (f->owner->tenant != b || f->read <= 0 || f->read > before) continue;
            if (*n == cap) list = xrealloc(list, (cap = cap ? 2 * cap : 256) * sizeof(struct future *));
            list[(*n)++] = f;
        }
    return list;
}

static int by_read(const void *a, const void *b) {
    const struct future *x = *(struct future *const *)a, *y = *(struct future *const *)b;
    return (x->read > y->read) - (x->read < y->read);
}

void futures_trim(struct tinker *t, double now) {
    for (const struct tinker_tenant *b = t->tenants; b; b = b->next) {
        size_t n;
        if (b->kept.bytes <= t->o->max_results) continue;
        CLEANUP_FREE struct future **list = fetched(t, b, now - t->o->reread_s, &n);
        if (n > 0) qsort(list, n, sizeof *list, by_read);
        for (size_t i = 0; i < n && b->kept.bytes > t->o->max_results; i++) {
            struct future **at = slot_of(t, list[i]->id);
            while (*at != list[i]) at = &(*at)->next;
            drop(at);
        }
    }
}

bool futures_full(const struct tinker *t, const struct tinker_tenant *b, struct http_exchange *x) {
    if (b->kept.unread <= t->o->max_results) return false;
    reply_detail(x, 429, "results of %lld bytes wait to be fetched: fetch them first", (long long)b->kept.unread);
    return true;
}

/* ---- polls --------------------------------------------------------------------------------------------------------*/

static void reply_not_yet(struct http_exchange *x) {
    struct str out = STR_INIT;
    str_adds(&out, "{\"queue_state\":\"active\"}");
    http_reply_json(x, 408, &out);
}

static void reply_result(const struct tinker *t, struct http_exchange *x, struct future *f) {
    struct str out = STR_INIT;
    future_read(t, f);
    str_add(&out, f->result.p, f->result.len);
    if (f->proto)
        http_reply(x, 200, "application/x-protobuf", &out);
    else
        http_reply_json(x, 200, &out);
}

static void reply_lost(struct http_exchange *x) {
    reply_detail(x, 410, "there is no result of this request any more: its session has ended, or it is too old");
}

void retrieve_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = NULL;
    const char *id = body_name(x, "request_id", &j);
    if (!id) return;
    struct future *f = future_seen(t, x, id);
    if (!f && !t->restored) { /* it may come back */
        http_wake_after(x, 1);
        return;
    }
    if (!f) {
        reply_lost(x);
        return;
    }
    if (f->state != FUTURE_WAITS) {
        reply_result(t, x, f);
        return;
    }
    if (f->n_polls == f->cap_polls) {
        f->cap_polls = f->cap_polls ? 2 * f->cap_polls : 2;
        f->poll = xrealloc(f->poll, (size_t)f->cap_polls * sizeof(struct http_exchange *));
    }
    f->poll[f->n_polls++] = x;
    http_set_state(x, f);
    http_wake_after(x, POLL_S);
}

static void stop_waiting(struct http_exchange *x) {
    struct future *f = http_state(x);
    http_set_state(x, NULL);
    for (int i = 0; f && i < f->n_polls; i++)
        if (f->poll[i] == x) {
            f->poll[i] = f->poll[--f->n_polls];
            return;
        }
}

void retrieve_event(void *tinker, struct http_exchange *x, enum http_event e) {
    const struct tinker *t = tinker;
    struct future *f = http_state(x);
    if (e == HTTP_WOKEN && f && !f->id[0])
        reply_lost(x);
    else if (e == HTTP_WOKEN && f && f->state != FUTURE_WAITS)
        reply_result(t, x, f);
    else
        reply_not_yet(x);
    stop_waiting(x);
}

void retrieve_end(void *tinker, struct http_exchange *x) {
    (void)tinker;
    stop_waiting(x);
}
