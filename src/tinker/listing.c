/* What there is: models, checkpoints, samplers, sessions; and what is done to checkpoints by their names. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "model/arch.h"
#include "tinker/internal.h"

enum { MAX_LIMIT = 1000, LINK_S = 900 };

/* A page of a list, by the query of a request. */
struct page {
    int64_t limit, offset;
};
static struct page page_of(const struct http_exchange *x, int64_t usual) {
    struct page p = {usual, 0};
    const char *limit = http_query(x, "limit"), *offset = http_query(x, "offset");
    int64_t v;
    if (limit && parse_i64(limit, &v) && v >= 0) p.limit = i64_min(v, MAX_LIMIT);
    if (offset && parse_i64(offset, &v) && v >= 0) p.offset = v;
    return p;
}

static void put_cursor(struct str *out, const struct page *p, int64_t total) {
    js_begin(out, "cursor", '{');
    js_put_i64(out, "offset", p->offset);
    js_put_i64(out, "limit", p->limit);
    js_put_i64(out, "total_count", total);
    js_end(out, '}');
}

static void put_optimizer(struct str *out) {
    js_begin(out, "optimizer_config", '{');
    js_put_str(out, "type", "adamw");
    js_end(out, '}');
}

static void put_metadata(struct str *out, const char *metadata) {
    CLEANUP_JSON json_t *j = metadata ? json_loads(metadata, 0, NULL) : NULL;
    if (j)
        js_put_json(out, "user_metadata", j);
    else
        js_put_null(out, "user_metadata");
}

/* ---- models -------------------------------------------------------------------------------------------------------*/

void get_info_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = NULL;
    struct str out = STR_INIT;
    const char *id = body_name(x, "model_id", &j);
    if (!id || !model_is_up(t, x)) return;
    const struct tinker_run *r = run_seen(t, x, id);
    if (!r) {
        reply_detail(x, 404, "there is no model \"%.200s\" here", id);
        return;
    }
    const struct policy *p = model_thread_policy(t->thread);
    CLEANUP_FREE char *folder = t->o->tokenizer ? NULL : realpath(p->folder, NULL);
    js_begin(&out, NULL, '{');
    js_put_str(&out, "type", "get_info");
    js_put_str(&out, "model_id", r->id);
    js_put_bool(&out, "is_lora", true);
    js_put_i64(&out, "lora_rank", r->shape.rank);
    js_put_str(&out, "model_name", r->base);
    put_optimizer(&out);
    js_begin(&out, "model_data", '{');
    js_put_str(&out, "arch", model_cfg(p->model)->arch->name);
    js_put_str(&out, "model_name", r->base);
    js_put_str(&out, "tokenizer_id", t->o->tokenizer ? t->o->tokenizer : folder ? folder : p->folder);
    js_end(&out, '}');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

static void put_model(struct tinker *t, struct str *out, const char *name) {
    const struct policy *p = model_thread_policy(t->thread);
    js_begin(out, NULL, '{');
    js_put_str(out, "model_name", name);
    js_put_i64(out, "max_context_length", model_cfg(p->model)->max_positions);
    js_put_bool(out, "trainable", true);
    js_put_bool(out, "sampleable", true);
    js_end(out, '}');
}

void capabilities_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    struct str out = STR_INIT;
    if (!model_is_up(t, x)) return;
    js_begin(&out, NULL, '{');
    js_begin(&out, "supported_models", '[');
    for (int i = 0; serve_base_name(t->serve, i); i++) put_model(t, &out, serve_base_name(t->serve, i));
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* The newest checkpoint of a kind, or null. */
static void put_last(const struct tinker *t, struct str *out, const char *key, const char *run,
                     enum checkpoint_kind kind) {
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next)
        if (c->kind == kind && strcmp(c->run, run) == 0) {
            put_checkpoint(out, key, c);
            return;
        }
    js_put_null(out, key);
}

/* A model that a client has trained, or of which only a server before this one knew: its checkpoints are left. */
struct listed_run {
    const char *id, *base, *metadata, *project;
    int rank;
    bool corrupt;
    int64_t used;
    bool there; /* true: it is a model of this server */
};

static void put_run(const struct tinker *t, struct str *out, const struct listed_run *r) {
    js_begin(out, NULL, '{');
    js_put_str(out, "training_run_id", r->id);
    js_put_str(out, "base_model", r->base);
    js_put_str(out, "model_owner", "local");
    js_put_bool(out, "is_lora", true);
    js_put_bool(out, "corrupted", r->corrupt);
    js_put_i64(out, "lora_rank", r->rank);
    put_time(out, "last_request_time", r->used);
    put_last(t, out, "last_checkpoint", r->id, CHECKPOINT_WEIGHTS);
    put_last(t, out, "last_sampler_checkpoint", r->id, CHECKPOINT_SAMPLER);
    put_metadata(out, r->metadata);
    js_end(out, '}');
}

static int newer(const void *a, const void *b) {
    const struct listed_run *x = a, *y = b;
    return (y->used > x->used) - (y->used < x->used);
}

/* What is known of one run stands together, first what says most: a model that is there, then the newest checkpoint. */
static int by_run(const void *a, const void *b) {
    const struct listed_run *x = a, *y = b;
    const int order = strcmp(x->id, y->id);
    return order ? order : x->there != y->there ? y->there - x->there : newer(a, b);
}

/* All that a tenant sees, newest first. The caller frees the list. */
static struct listed_run *list_runs(const struct tinker *t, const struct tinker_tenant *by, int *n) {
    int cap = 1, all = 0;
    for (const struct tinker_run *r = t->runs; r; r = r->next) cap++;
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next) cap++;
    struct listed_run *l = xcalloc((size_t)cap, sizeof *l);
    for (const struct tinker_run *r = t->runs; r; r = r->next)
        if (tenant_sees(by, r->session->tenant->id))
            l[all++] = (struct listed_run){r->id,         r->base,    r->metadata,  r->session->project,
                                           r->shape.rank, r->corrupt, r->last_used, true};
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next)
        if (tenant_sees(by, c->owner))
            l[all++] =
                (struct listed_run){c->run, c->base, c->metadata, c->project, c->shape.rank, false, c->made, false};
    qsort(l, (size_t)all, sizeof *l, by_run);
    *n = 0;
    for (int i = 0; i < all; i++)
        if (*n == 0 || strcmp(l[*n - 1].id, l[i].id) != 0) l[(*n)++] = l[i];
    qsort(l, (size_t)*n, sizeof *l, newer);
    return l;
}

/* Leaves those of a project in the list; NULL or "": all. Returns their number. */
static int keep_project(struct listed_run *l, int n, const char *project) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (!project || !*project || (l[i].project && strcmp(l[i].project, project) == 0)) l[kept++] = l[i];
    return kept;
}

void runs_list_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    const struct page p = page_of(x, 20);
    struct str out = STR_INIT;
    int n;
    if (!model_is_up(t, x)) return;
    CLEANUP_FREE struct listed_run *l = list_runs(t, tenant_of(t, x), &n);
    n = keep_project(l, n, http_query(x, "project_id"));
    js_begin(&out, NULL, '{');
    js_begin(&out, "training_runs", '[');
    for (int64_t i = p.offset; i < n && i < p.offset + p.limit; i++) put_run(t, &out, &l[i]);
    js_end(&out, ']');
    put_cursor(&out, &p, n);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

/* Those of a run, or all. Of public ones of another tenant only a run's are listed. */
static void reply_checkpoints(struct tinker *t, struct http_exchange *x, const char *run) {
    const struct page p = run ? (struct page){MAX_LIMIT, 0} : page_of(x, 100);
    struct str out = STR_INIT;
    int64_t n = 0;
    const struct tinker_tenant *by = tenant_of(t, x);
    js_begin(&out, NULL, '{');
    js_begin(&out, "checkpoints", '[');
    for (const struct tinker_checkpoint *c = t->checkpoints; c; c = c->next) {
        if (run ? strcmp(run, c->run) != 0 || !checkpoint_seen(c, by) : !tenant_sees(by, c->owner)) continue;
        if (n >= p.offset && (run || n < p.offset + p.limit)) put_checkpoint(&out, NULL, c);
        n++;
    }
    js_end(&out, ']');
    put_cursor(&out, &p, n);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void checkpoints_list_begin(void *tinker, struct http_exchange *x) { reply_checkpoints(tinker, x, NULL); }

static void show_run(struct tinker *t, struct http_exchange *x, const char *id) {
    struct str out = STR_INIT;
    int n, k = 0;
    if (!model_is_up(t, x)) return;
    CLEANUP_FREE struct listed_run *l = list_runs(t, tenant_of(t, x), &n);
    while (k < n && strcmp(l[k].id, id) != 0) k++;
    if (k == n) {
        reply_detail(x, 404, "there is no training run \"%.200s\" here", id);
        return;
    }
    put_run(t, &out, &l[k]);
    http_reply_json(x, 200, &out);
}

/* The checkpoint of a URL that the client may read or, with `own`, change, and what follows its name; NULL: x has its
 * reply. */
static struct tinker_checkpoint *checkpoint_of(struct tinker *t, struct http_exchange *x, bool own, char rest[32]) {
    const struct tinker_tenant *by = tenant_of(t, x);
    struct arena a = ARENA_INIT;
    struct checkpoint_path p;
    struct err e = {0};
    const char *tail;
    struct tinker_checkpoint *c = NULL;
    if (call_read_checkpoint_url(http_tail(x), &a, &p, &tail, &e) != ST_OK) {
        reply_detail(x, 404, "%s", e.msg);
    } else {
        snprintf(rest, 32, "%s", tail);
        c = checkpoint_find(t, &p);
        if (c && !(own ? tenant_sees(by, c->owner) : checkpoint_seen(c, by))) c = NULL;
        if (!c)
            reply_detail(x, 404, "there is no checkpoint tinker://%.200s/%s/%s", p.run, checkpoint_kind_names[p.kind],
                         p.name);
    }
    arena_free(&a);
    return c;
}

/* Addresses of the files of an external checkpoint, which nobody can guess. They end with what is said here, with the
 * server, and when the checkpoint is not public any more. */
static void reply_urls(struct http_exchange *x, struct tinker_checkpoint *c) {
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    const char *host = http_header(x, "host");
    const double now = tinker_now_s();
    struct str out = STR_INIT;
    if (!(*c->link && now < c->link_ends) && !random_name(c->link)) {
        reply_detail(x, 500, "no random numbers: %s", strerror(errno));
        return;
    }
    c->link_ends = now + LINK_S;
    js_begin(&out, NULL, '{');
    js_begin(&out, "urls", '{');
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        CLEANUP_STR struct str url = STR_INIT;
        str_addf(&url, "http://%s/api/v1/files/%s/%s", host ? host : "localhost", c->link, files[i]);
        js_put_str(&out, files[i], url.p);
    }
    js_end(&out, '}');
    put_time(&out, "expires", (int64_t)time(NULL) + LINK_S);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* The checkpoint of files/LINK/..., or NULL. */
static const struct tinker_checkpoint *linked(const struct tinker *t, const char *tail) {
    const double now = tinker_now_s();
    const size_t n = strcspn(tail, "/");
    const struct tinker_checkpoint *c = t->checkpoints;
    while (c && !(n > 0 && strlen(c->link) == n && strncmp(c->link, tail, n) == 0 && now < c->link_ends)) c = c->next;
    return c;
}

void file_get_begin(void *tinker, struct http_exchange *x) {
    const struct tinker *t = tinker;
    const char *tail = http_tail(x), *slash = strchr(tail, '/');
    const struct tinker_checkpoint *c = linked(t, tail);
    if (!c || !slash ||
        (strcmp(slash + 1, "adapter_config.json") != 0 && strcmp(slash + 1, "adapter_model.safetensors") != 0)) {
        reply_detail(x, 404, "there is no such file");
        return;
    }
    CLEANUP_FREE char *dir = checkpoint_dir(t, c), *path = fs_join(dir, slash + 1);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) != 0) {
        if (fd >= 0) close(fd);
        reply_detail(x, 404, "there is no such file");
        return;
    }
    http_reply_file(x, fd, 0, s.st_size, "application/octet-stream");
}

/* GET training_runs/RUN, RUN/checkpoints, RUN/checkpoints/KIND/NAME/external_weights_urls */
void run_get_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    static const char list[] = "/checkpoints";
    const char *tail = http_tail(x), *at = strstr(tail, list);
    char rest[32];
    if (!at) {
        show_run(t, x, tail);
        return;
    }
    if (!at[sizeof list - 1] || strcmp(at + sizeof list - 1, "/") == 0) {
        CLEANUP_FREE char *run = xstrndup(tail, (size_t)(at - tail));
        reply_checkpoints(t, x, run);
        return;
    }
    struct tinker_checkpoint *c = checkpoint_of(t, x, false, rest);
    if (!c) return;
    if (strcmp(rest, "external_weights_urls") == 0 && c->kind == CHECKPOINT_EXTERNAL)
        reply_urls(x, c);
    else
        reply_detail(x, 404, "files of checkpoints are those of external_weights: call save_weights_external");
}

/* Whether other tenants may read the checkpoint. */
static void publish(struct tinker *t, struct http_exchange *x, struct tinker_checkpoint *c, bool public) {
    CLEANUP_FREE char *dir = checkpoint_dir(t, c);
    const bool before = c->public;
    struct err e = {0};
    c->public = public;
    if (checkpoint_describe(c, dir, &e) == ST_OK) {
        if (!public) *c->link = 0; /* who had its addresses may not have the files any more */
        reply_empty(x);
        return;
    }
    c->public = before;
    reply_detail(x, 500, "%s", e.msg);
}

/* DELETE training_runs/RUN/checkpoints/KIND/NAME and .../publish */
void run_delete_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    char rest[32];
    struct tinker_checkpoint *c = checkpoint_of(t, x, true, rest);
    if (!c) return;
    if (strcmp(rest, "publish") == 0) {
        publish(t, x, c, false);
    } else if (*rest) {
        reply_detail(x, 404, "there is no such call");
    } else {
        checkpoint_remove(t, c);
        reply_empty(x);
    }
}

/* POST training_runs/RUN/checkpoints/KIND/NAME/publish */
void run_post_begin(void *tinker, struct http_exchange *x) {
    char rest[32];
    struct tinker_checkpoint *c = checkpoint_of(tinker, x, true, rest);
    if (!c) return;
    if (strcmp(rest, "publish") == 0)
        publish(tinker, x, c, true);
    else
        reply_detail(x, 404, "there is no such call");
}

/* PUT .../ttl */
void run_put_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = body_json(x);
    struct err e = {0};
    int64_t ttl = 0;
    char rest[32];
    if (!j) return;
    struct tinker_checkpoint *c = checkpoint_of(t, x, true, rest);
    if (!c) return;
    if (strcmp(rest, "ttl") != 0) {
        reply_detail(x, 404, "there is no such call");
        return;
    }
    if (js_opt_i64(j, "body", "ttl_seconds", &ttl, &e) != ST_OK || ttl < 0 || ttl > 10LL * 366 * 86400) {
        reply_detail(x, 422, "body: ttl_seconds: expected null, or seconds up to ten years");
        return;
    }
    const int64_t before = c->expires;
    CLEANUP_FREE char *dir = checkpoint_dir(t, c);
    c->expires = ttl > 0 ? (int64_t)time(NULL) + ttl : 0;
    if (checkpoint_describe(c, dir, &e) == ST_OK) {
        reply_empty(x);
        return;
    }
    c->expires = before;
    reply_detail(x, 500, "%s", e.msg);
}

void weights_info_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    CLEANUP_JSON json_t *j = NULL;
    struct err e = {0};
    struct tinker_checkpoint *c;
    struct str out = STR_INIT;
    const char *path = body_name(x, "tinker_path", &j);
    if (!path) return;
    if (checkpoint_at(t, tenant_of(t, x), path, &c, &e) != ST_OK) {
        reply_detail(x, 404, "%s", e.msg);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "base_model", c->base);
    js_put_bool(&out, "is_lora", true);
    js_put_i64(&out, "lora_rank", c->shape.rank);
    js_put_bool(&out, "train_unembed", c->shape.parts & ADAPTER_HEAD);
    js_put_bool(&out, "train_mlp", c->shape.parts & ADAPTER_MLP);
    js_put_bool(&out, "train_attn", c->shape.parts & ADAPTER_ATTENTION);
    put_optimizer(&out);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* ---- samplers and sessions ----------------------------------------------------------------------------------------*/

void sampler_get_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    struct str out = STR_INIT;
    if (!model_is_up(t, x)) return;
    const struct tinker_sampler *m = sampler_seen(t, x, http_tail(x));
    if (!m) {
        reply_detail(x, 404, "there is no sampler \"%.200s\" here", http_tail(x));
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "sampler_id", m->id);
    js_put_str(&out, "base_model", m->base);
    if (m->path) js_put_str(&out, "model_path", m->path);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void sessions_list_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    const struct page p = page_of(x, 20);
    const struct tinker_tenant *by = tenant_of(t, x);
    struct str out = STR_INIT;
    int64_t n = 0;
    if (!model_is_up(t, x)) return;
    js_begin(&out, NULL, '{');
    js_begin(&out, "sessions", '[');
    for (const struct tinker_session *s = t->sessions; s; s = s->next) {
        if (!tenant_sees(by, s->tenant->id)) continue;
        if (n >= p.offset && n < p.offset + p.limit) js_put_str(&out, NULL, s->id);
        n++;
    }
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

void session_get_begin(void *tinker, struct http_exchange *x) {
    struct tinker *t = tinker;
    struct str out = STR_INIT;
    if (!model_is_up(t, x)) return;
    const struct tinker_session *s = session_seen(t, x, http_tail(x));
    if (strchr(http_tail(x), '/')) { /* sessions/ID/trace_export */
        reply_detail(x, 404, "this server does not have this call");
        return;
    }
    if (!s) {
        reply_detail(x, 404, "there is no session \"%.200s\" here", http_tail(x));
        return;
    }
    js_begin(&out, NULL, '{');
    js_begin(&out, "training_run_ids", '[');
    for (const struct tinker_run *r = t->runs; r; r = r->next)
        if (r->session == s) js_put_str(&out, NULL, r->id);
    js_end(&out, ']');
    js_begin(&out, "sampler_ids", '[');
    for (const struct tinker_sampler *m = t->samplers; m; m = m->next)
        if (m->session == s) js_put_str(&out, NULL, m->id);
    js_end(&out, ']');
    put_metadata(&out, s->metadata);
    js_put_str(&out, "display_name", s->name);
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}
