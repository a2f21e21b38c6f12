/* Copies of checkpoints, projects, the search for sessions, and what checkpoints take. A project is a label of sessions
 * and of what is made in them; nothing else hangs on it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "tinker/internal.h"

/* ---- copies -------------------------------------------------------------------------------------------------------*/

struct copy {
    const char *source, *session, *project; /* one of the last two may be NULL */
    int64_t number, ttl_s;
};

static enum status read_copy(const json_t *j, struct copy *out, struct err *e) {
    static const char where[] = "body";
    const char *token = NULL;
    *out = (struct copy){.number = -1};
    TRY(js_get_str(j, where, "source_path", &out->source, e));
    TRY(js_opt_str(j, where, "session_id", &out->session, e));
    TRY(call_read_label(j, "destination_project_id", &out->project, e));
    TRY(js_opt_i64(j, where, "model_seq_id", &out->number, e));
    TRY(js_opt_i64(j, where, "ttl_seconds", &out->ttl_s, e));
    TRY(js_opt_str(j, where, "weights_access_token", &token, e));
    if (token) return FAIL(e, ST_UNSUPPORTED, "weights_access_token is not supported here: publish the checkpoint");
    if (out->ttl_s != 0 && (out->ttl_s < 3600 || out->ttl_s > 10LL * 366 * 86400))
        return FAIL(e, ST_PARSE, "body: ttl_seconds: expected an hour to ten years");
    if (out->session ? out->number < 0 || out->number > INT32_MAX : !out->project)
        return FAIL(e, ST_PARSE, "body: expected destination_project_id, or session_id and model_seq_id");
    return ST_OK;
}

static void reply_copy(struct http_exchange *x, const struct tinker_checkpoint *c) {
    CLEANUP_STR struct str path = STR_INIT;
    struct str out = STR_INIT;
    str_addf(&path, "tinker://%s/%s/%s", c->run, checkpoint_kind_names[c->kind], c->name);
    js_begin(&out, NULL, '{');
    js_put_str(&out, "tinker_path", path.p);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* The run that the copy is to be of. False: x has its reply. */
static bool name_run(struct tinker *t, struct http_exchange *x, const struct copy *q, struct str *run,
                     const char **project) {
    char id[40];
    *project = q->project;
    if (!q->session) {
        const bool there = random_name(id);
        if (!there) reply_detail(x, 500, "no random numbers: %s", strerror(errno));
        if (there) str_addf(run, "%s:train:0", id);
        return there;
    }
    const struct tinker_session *s = session_of(t, x, q->session);
    if (!s) return false;
    str_addf(run, "%s:train:%lld", s->id, (long long)q->number);
    *project = s->project;
    bool used = run_find(t, run->p) != NULL;
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next) used |= strcmp(c->run, run->p) == 0;
    if (used) reply_detail(x, 400, "model_seq_id %lld was used before", (long long)q->number);
    return !used;
}

void copy_weights_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = body_json(x);
    CLEANUP_STR struct str run = STR_INIT, call = STR_INIT;
    const char *key = http_header(x, "x-idempotency-key"), *project;
    struct tinker_checkpoint *from;
    struct copy q;
    struct err e = {0};
    if (!j || !model_is_up(t, x)) return;
    const struct tinker_tenant *by = tenant_of(t, x);
    str_addf(&call, "copy %s", key ? key : "");
    const struct tinker_checkpoint *done = key ? checkpoint_of_call(t, by, call.p) : NULL;
    if (done) { /* the call was sent again */
        reply_copy(x, done);
        return;
    }
    if (read_copy(j, &q, &e) != ST_OK)
        reply_detail(x, 422, "%s", e.msg);
    else if (checkpoint_at(t, by, q.source, &from, &e) != ST_OK)
        reply_detail(x, 404, "%s", e.msg);
    else if (tenant_may_save(t, by, &e) != ST_OK)
        reply_detail(x, 400, "%s", e.msg);
    if (http_replied(x) || !name_run(t, x, &q, &run, &project)) return;
    const int64_t expires = q.ttl_s > 0 ? (int64_t)time(NULL) + q.ttl_s : 0;
    const struct checkpoint_copy own = {run.p, by->id, call.p, project, expires};
    if (checkpoint_copy(t, from, &own, &e) != ST_OK)
        reply_detail(x, 500, "%s", e.msg);
    else
        reply_copy(x, checkpoint_find(t, &(struct checkpoint_path){run.p, from->name, from->kind}));
}

/* ---- projects -----------------------------------------------------------------------------------------------------*/

/* PUT sessions/ID/project */
void session_project_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = body_json(x);
    const char *tail = http_tail(x), *slash = strchr(tail, '/'), *project;
    struct err e = {0};
    if (!j || !model_is_up(t, x)) return;
    if (!slash || strcmp(slash, "/project") != 0) {
        reply_detail(x, 404, "there is no such call");
        return;
    }
    if (js_get_str(j, "body", "project_id", &project, &e) != ST_OK ||
        call_read_label(j, "project_id", &project, &e) != ST_OK) {
        reply_detail(x, 422, "%s", e.msg);
        return;
    }
    CLEANUP_FREE char *id = xstrndup(tail, (size_t)(slash - tail));
    struct tinker_session *s = session_of(t, x, id);
    if (!s) return;
    char *const before = s->project;
    s->project = xstrdup(project);
    if (store_session(t, s, &e) == ST_OK) {
        free(before);
        reply_empty(x);
        return;
    }
    free(s->project);
    s->project = before;
    reply_detail(x, 503, "%s", e.msg);
}

/* ---- the search ---------------------------------------------------------------------------------------------------*/

struct session_query {
    const char *id, *name; /* or NULL */
    const json_t *projects, *metadata, *statuses;
    int64_t limit;
    const char *cursor_time, *cursor_id; /* NULL: from the newest on */
};

static enum status read_search(const json_t *j, struct session_query *out, struct err *e) {
    json_t *cursor = json_object_get(j, "cursor");
    *out = (struct session_query){.limit = 50};
    TRY(js_opt_str(j, "body", "session_id", &out->id, e));
    TRY(js_opt_str(j, "body", "display_name", &out->name, e));
    TRY(js_opt_i64(j, "body", "limit", &out->limit, e));
    if (out->limit < 1 || out->limit > 200) return FAIL(e, ST_PARSE, "body: limit: expected 1 to 200");
    out->projects = json_object_get(j, "project_ids");
    out->metadata = json_object_get(j, "user_metadata");
    out->statuses = json_object_get(j, "statuses");
    if (!json_is_object(cursor)) return ST_OK;
    TRY(js_get_str(cursor, "body: cursor", "last_created_at", &out->cursor_time, e));
    return js_get_str(cursor, "body: cursor", "last_session_id", &out->cursor_id, e);
}

/* Each word stands somewhere in the name. */
static bool has_words(const char *name, const char *words) {
    CLEANUP_FREE char *text = xstrdup(words);
    char *rest = NULL;
    bool all = name != NULL;
    for (const char *w = strtok_r(text, " ", &rest); all && w; w = strtok_r(NULL, " ", &rest))
        all = strcasestr(name, w) != NULL;
    return all;
}

static bool lists(const json_t *list, const char *text) {
    const json_t *v;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        if (text && json_is_string(v) && strcmp(json_string_value(v), text) == 0) return true;
    }
    return false;
}

static bool has_metadata(const struct tinker_session *s, const json_t *want) {
    if (!json_is_object(want)) return true;
    CLEANUP_JSON json_t *have = s->metadata ? json_loads(s->metadata, 0, NULL) : NULL;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)want, key, v) {
        if (!json_equal(json_object_get(have, key), v)) return false;
    }
    return true;
}

/* Of the states that the protocol knows, a session here is "active" or "client_finished". */
static bool has_status(const struct tinker_session *s, const json_t *statuses) {
    const json_t *v;
    size_t i;
    if (!json_is_array(statuses)) return true;
    json_array_foreach((json_t *)(uintptr_t)statuses, i, v) {
        const char *type = json_string_value(json_object_get(v, "type"));
        const json_t *reasons = json_object_get(v, "reasons");
        if (!type || strcmp(type, s->finished ? "client_finished" : "active") != 0) continue;
        if (!s->finished || !json_is_array(reasons) || lists(reasons, s->reason)) return true;
    }
    return false;
}

static bool matches(const struct tinker_session *s, const struct session_query *q) {
    const bool named = q->name && has_words(s->name, q->name), same = q->id && strcmp(q->id, s->id) == 0;
    if ((q->id || q->name) && !named && !same) return false;
    if (json_is_array(q->projects) && !lists(q->projects, s->project ? s->project : "")) return false;
    return has_metadata(s, q->metadata) && has_status(s, q->statuses);
}

static int newest_first(const void *a, const void *b) {
    const struct tinker_session *x = *(struct tinker_session *const *)a, *y = *(struct tinker_session *const *)b;
    if (x->made != y->made) return x->made < y->made ? 1 : -1;
    return strcmp(y->id, x->id);
}

static void put_status(struct str *out, const struct tinker_session *s) {
    js_begin(out, "status", '{');
    js_put_str(out, "type", s->finished ? "client_finished" : "active");
    if (s->finished) {
        js_begin(out, "reason", '{');
        js_put_str(out, "type", s->reason);
        js_end(out, '}');
    }
    js_end(out, '}');
}

static void put_summary(const struct tinker *t, struct str *out, const struct tinker_session *s) {
    CLEANUP_JSON json_t *metadata = s->metadata ? json_loads(s->metadata, 0, NULL) : NULL;
    const size_t n = strlen(s->id);
    int64_t count = 0, bytes = 0;
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next)
        if (strncmp(c->run, s->id, n) == 0 && c->run[n] == ':') {
            count++;
            bytes += c->bytes;
        }
    js_begin(out, NULL, '{');
    js_put_str(out, "session_id", s->id);
    put_time(out, "created_at", s->made);
    js_put_str(out, "owner", "local");
    js_put_str(out, "project_id", s->project ? s->project : "");
    put_status(out, s);
    js_put_i64(out, "checkpoints_count", count);
    js_put_str(out, "display_name", s->name);
    if (metadata) js_put_json(out, "user_metadata", metadata);
    js_put_i64(out, "checkpoint_storage_bytes", bytes);
    js_end(out, '}');
}

/* Whether the session stands behind the cursor. */
static bool is_behind(const struct tinker_session *s, const struct session_query *q) {
    CLEANUP_STR struct str time = STR_INIT;
    if (!q->cursor_time) return true;
    put_time(&time, NULL, s->made); /* "...Z", and texts of one form are ordered as times are */
    const int order = strncmp(time.p + 1, q->cursor_time, 19);
    return order < 0 || (order == 0 && strcmp(s->id, q->cursor_id) < 0);
}

void sessions_search_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = body_json(x);
    const struct tinker_tenant *by = tenant_of(t, x);
    struct str out = STR_INIT;
    struct session_query q;
    struct err e = {0};
    int64_t n = 0, put = 0;
    if (!j) return;
    if (read_search(j, &q, &e) != ST_OK) {
        reply_detail(x, 422, "%s", e.msg);
        return;
    }
    for (const struct tinker_session *s = t->sessions; s; s = s->next) n++;
    CLEANUP_FREE struct tinker_session **list = xcalloc((size_t)n + 1, sizeof(struct tinker_session *));
    n = 0;
    for (struct tinker_session *s = t->sessions; s; s = s->next)
        if (tenant_sees(by, s->tenant->id) && matches(s, &q) && is_behind(s, &q)) list[n++] = s;
    qsort(list, (size_t)n, sizeof *list, newest_first);
    js_begin(&out, NULL, '{');
    js_begin(&out, "sessions", '[');
    while (put < n && put < q.limit) put_summary(t, &out, list[put++]);
    js_end(&out, ']');
    if (put < n) {
        js_begin(&out, "next_cursor", '{');
        put_time(&out, "last_created_at", list[put - 1]->made);
        js_put_str(&out, "last_session_id", list[put - 1]->id);
        js_end(&out, '}');
    }
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* ---- what checkpoints take ----------------------------------------------------------------------------------------*/

static const char *project_of(const struct tinker_checkpoint *c) { return c->project ? c->project : ""; }

static int by_project(const void *a, const void *b) {
    return strcmp(project_of(*(struct tinker_checkpoint *const *)a), project_of(*(struct tinker_checkpoint *const *)b));
}

/* The n checkpoints of a project. */
static void put_usage(struct str *out, struct tinker_checkpoint *const *c, size_t n) {
    int64_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += c[i]->bytes;
    js_begin(out, NULL, '{');
    js_put_str(out, "project_id", c[0]->project);
    js_put_i64(out, "checkpoint_count", (int64_t)n);
    js_put_i64(out, "size_bytes", bytes);
    js_put_f64(out, "size_gigabytes", (double)bytes * 1e-9);
    js_end(out, '}');
}

/* GET billing/usage/checkpoints/current?project_id=: files that copies share count for each copy. */
void storage_usage_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    const struct tinker_tenant *by = tenant_of(t, x);
    const char *project = http_query(x, "project_id");
    struct str out = STR_INIT;
    size_t n = 0, end;
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next) n++;
    CLEANUP_FREE struct tinker_checkpoint **list = xcalloc(n + 1, sizeof(struct tinker_checkpoint *));
    n = 0;
    for (struct tinker_checkpoint *c = t->checkpoints; c; c = c->next)
        if (tenant_sees(by, c->owner) && (!project || (c->project && strcmp(c->project, project) == 0))) list[n++] = c;
    qsort(list, n, sizeof *list, by_project);
    js_begin(&out, NULL, '{');
    js_begin(&out, "data", '[');
    for (size_t i = 0; i < n; i = end) {
        for (end = i + 1; end < n && by_project(&list[i], &list[end]) == 0;) end++;
        put_usage(&out, list + i, end - i);
    }
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}
