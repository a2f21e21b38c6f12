/* What a server that is killed leaves to the next one. A session has a folder:
 *
 *   session.json      its name and metadata; without it the session has ended
 *   samplers          calls that made samplers of the base model and of checkpoints
 *   sample-N/         weights of a sampler without a name, of the last few
 *   asample           requests to sample, and which of them have had their results fetched
 *   train-N/calls     a model's calls and what came of them, in the order of their coming; the first one makes it
 *   train-N/state-K/  its weights and moments behind call K, when it had no gradients
 *
 * A call is written down before it is answered. The next server reads the newest state and computes the calls behind it
 * again, which gives the same bits. A file of calls is read up to its first record that is not whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "tinker/internal.h"
#include "tinker/records.h"

enum { MAX_SESSION = 1 << 20 };
/* Behind the numbers of enum call_kind: what came of a call, and a call whose body is not needed any more. */
enum { RESULT_JSON = 32, RESULT_PROTO = 33, RESULT_FAILED = 34, CALL_IS_OVER = 64, SAMPLE_IS_OVER = 65 };
enum { TRIM_BYTES = 16 << 20 };
static const char session_file[] = "session.json", calls_file[] = "calls", samplers_file[] = "samplers",
                  samples_file[] = "asample";

/* ---- files of records --------------------------------------------------------------------------------------------*/

static enum status append(int fd, uint32_t kind, int64_t seq, const char *content, const void *body, size_t n,
                          struct err *e) {
    CLEANUP_STR struct str s = STR_INIT;
    record_put(&s, kind, seq, content, body, n);
    if (fs_write_all(fd, s.p, s.len)) return ST_OK;
    return FAIL(e, ST_IO, "a call cannot be kept: %s", strerror(errno));
}

static enum status open_log(const char *path, int *fd, struct err *e) {
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    return *fd >= 0 ? ST_OK : FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
}

/* ---- sessions and samplers ----------------------------------------------------------------------------------------*/

static char *folder_of(const struct tinker *t, const struct tinker_session *s) {
    return fs_join(t->session_folder, s->id);
}

enum status store_session(const struct tinker *t, const struct tinker_session *s, struct err *e) {
    CLEANUP_FREE char *dir = folder_of(t, s), *path = fs_join(dir, session_file);
    CLEANUP_STR struct str out = STR_INIT;
    TRY(fs_mkdirs(dir, e));
    session_put(&out, s, s->tenant->id);
    return fs_write_atomic(path, out.p, out.len, e);
}

void store_end_session(const struct tinker *t, const struct tinker_session *s, bool all) {
    CLEANUP_FREE char *dir = folder_of(t, s), *path = fs_join(dir, session_file);
    struct err e;
    if (fs_remove(all ? dir : path, &e) != ST_OK) log_warn("%s", e.msg);
}

char *store_sampler_folder(const struct tinker *t, const struct tinker_session *s, int64_t number) {
    CLEANUP_FREE char *dir = folder_of(t, s);
    char name[40];
    snprintf(name, sizeof name, "sample-%lld", (long long)number);
    return fs_join(dir, name);
}

enum status store_sampler(const struct tinker *t, const struct tinker_session *s, const struct incoming *in,
                          const struct digest *content, struct err *e) {
    CLEANUP_FREE char *dir = folder_of(t, s), *path = fs_join(dir, samplers_file);
    int fd;
    TRY(open_log(path, &fd, e));
    const enum status st = append(fd, CALL_SAMPLER, 0, content->hex, in->body, in->n, e);
    close(fd);
    return st;
}

/* Writes an adapter into a folder, which is there as a whole or not at all. */
static enum status write_adapter(const struct policy *p, int adapter, const struct adamw *moments, const char *folder,
                                 struct err *e) {
    CLEANUP_STR struct str dir = STR_INIT;
    str_addf(&dir, "%s.new", folder);
    TRY(fs_remove(dir.p, e));
    TRY(fs_mkdirs(dir.p, e));
    TRY(model_adapter_save(p->model, adapter, dir.p, e));
    if (moments) {
        const struct train_set s = model_train_set(p->model, adapter);
        CLEANUP_FREE char *file = fs_join(dir.p, "optimizer.safetensors");
        TRY(adamw_save(moments, s.param, file, e));
    }
    TRY(fs_remove(folder, e));
    return rename(dir.p, folder) == 0 ? ST_OK : FAIL(e, ST_IO, "%s: %s", folder, strerror(errno));
}

/* A folder more of a run's samplers; the oldest one goes. Takes the name. */
static void add_snapshot(struct tinker_run *r, char *folder) {
    char *oldest = r->snapshot[KEPT_SNAPSHOTS - 1];
    struct err e;
    if (oldest && fs_remove(oldest, &e) != ST_OK) log_warn("%s", e.msg);
    free(oldest);
    memmove(r->snapshot + 1, r->snapshot, (KEPT_SNAPSHOTS - 1) * sizeof *r->snapshot);
    r->snapshot[0] = folder;
}

void store_snapshot(struct task *w, struct policy *p) {
    struct err e = {0};
    if (write_adapter(p, w->run->adapter, NULL, w->folder, &e) == ST_OK)
        add_snapshot(w->run, xstrdup(w->folder));
    else
        log_warn("a restart will not find the sampler %s: %s", w->sampler->id, e.msg);
}

/* ---- requests to sample -------------------------------------------------------------------------------------------*/

static uint64_t content_hash(const struct record *c) { return hash_bytes(c->content, sizeof c->content, 0); }

static int by_number(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The requests of a file of which no result was fetched, as records. */
static int unfetched(const struct fs_map *m, struct str *out) {
    CLEANUP_FREE uint64_t *over = NULL;
    struct record c;
    const char *body;
    size_t n_over = 0, cap = 0;
    int n = 0;
    for (size_t at = 0; record_next(m->data, m->len, &at, &c, &body);) {
        if (c.kind != SAMPLE_IS_OVER) continue;
        if (n_over == cap) over = xrealloc(over, (cap = cap ? 2 * cap : 256) * sizeof *over);
        over[n_over++] = content_hash(&c);
    }
    if (n_over > 0) qsort(over, n_over, sizeof *over, by_number);
    for (size_t at = 0; record_next(m->data, m->len, &at, &c, &body);) {
        const uint64_t hash = content_hash(&c);
        if (c.kind != CALL_SAMPLE || (n_over > 0 && bsearch(&hash, over, n_over, sizeof *over, by_number))) continue;
        record_put(out, c.kind, c.seq, c.content, body, c.n);
        n++;
    }
    return n;
}

static char *samples_path(const struct tinker *t, const struct tinker_session *s) {
    CLEANUP_FREE char *dir = folder_of(t, s);
    return fs_join(dir, samples_file);
}

/* Leaves out of the file what nobody needs. */
static enum status trim_samples(const struct tinker *t, struct tinker_session *s, struct err *e) {
    CLEANUP_FREE char *path = samples_path(t, s);
    CLEANUP_STR struct str out = STR_INIT;
    struct fs_map m;
    TRY(fs_map_open(path, &m, e));
    s->unfetched = unfetched(&m, &out);
    fs_map_close(&m);
    TRY(fs_write_atomic(path, out.p, out.len, e));
    close(s->samples);
    s->samples_bytes = (int64_t)out.len;
    s->samples_trim = i64_max(TRIM_BYTES, 2 * s->samples_bytes);
    return open_log(path, &s->samples, e);
}

static enum status put_sample(const struct tinker *t, struct tinker_session *s, uint32_t kind, const char *content,
                              const char *body, size_t n, struct err *e) {
    CLEANUP_FREE char *path = samples_path(t, s);
    if (s->samples < 0) TRY(open_log(path, &s->samples, e));
    TRY(append(s->samples, kind, 0, content, body, n, e));
    s->samples_bytes += (int64_t)(sizeof(struct record) + n);
    return s->samples_bytes > i64_max(s->samples_trim, TRIM_BYTES) ? trim_samples(t, s, e) : ST_OK;
}

enum status store_sample(const struct tinker *t, struct tinker_session *s, const struct incoming *in,
                         const struct digest *content, struct err *e) {
    TRY(put_sample(t, s, CALL_SAMPLE, content->hex, in->body, in->n, e));
    s->unfetched++;
    return ST_OK;
}

void store_sample_over(const struct tinker *t, const struct future *f) {
    struct tinker_session *s = f->owner;
    struct err e = {0};
    if (s->finished || s->samples < 0) return;
    if (put_sample(t, s, SAMPLE_IS_OVER, f->content.hex, "", 0, &e) != ST_OK) log_warn("%s", e.msg);
    if (--s->unfetched > 0) return;
    s->samples_bytes = 0;
    if (ftruncate(s->samples, 0) != 0) log_warn("%s: requests to sample: %s", s->id, strerror(errno));
}

/* ---- models and their calls ---------------------------------------------------------------------------------------*/

enum status store_run(const struct tinker *t, struct tinker_run *r, const struct incoming *in,
                      const struct digest *content, struct err *e) {
    CLEANUP_FREE char *dir = folder_of(t, r->session), *path = NULL;
    char name[40];
    snprintf(name, sizeof name, "train-%lld", (long long)r->number);
    r->dir = fs_join(dir, name);
    r->kept_at = clock_now_s();
    path = fs_join(r->dir, calls_file);
    TRY(fs_mkdirs(r->dir, e));
    TRY(open_log(path, &r->log, e));
    return in->x ? append(r->log, in->kind, 0, content->hex, in->body, in->n, e) : ST_OK;
}

void store_close_run(struct tinker_run *r) {
    if (r->log >= 0) close(r->log);
    r->log = -1;
    free(r->dir);
    r->dir = NULL;
    for (int i = 0; i < KEPT_SNAPSHOTS; i++) free(r->snapshot[i]);
}

enum status store_call(struct tinker_run *r, const struct incoming *in, int64_t seq, const struct digest *content,
                       struct err *e) {
    if (r->log_broken) return FAIL(e, ST_IO, "calls of %s cannot be kept", r->id);
    const enum status st = append(r->log, in->kind, seq, content->hex, in->body, in->n, e);
    r->log_broken = st != ST_OK; /* half a record may stand there, and nothing may follow it */
    return st;
}

static void put_result(struct tinker_run *r, int64_t seq, uint32_t kind, const struct str *result) {
    struct err e = {0};
    if (r->log_broken) return;
    r->log_broken = append(r->log, kind, seq, NULL, result->p, result->len, &e) != ST_OK;
    if (r->log_broken) log_warn("%s: %s", r->id, e.msg);
}

void store_result(struct tinker_run *r, int64_t seq, const struct future *f) {
    if (r->log < 0) return;
    put_result(r, seq, f->state == FUTURE_FAILED ? RESULT_FAILED : f->proto ? RESULT_PROTO : RESULT_JSON, &f->result);
}

/* ---- states -------------------------------------------------------------------------------------------------------*/

static char *state_folder(const struct tinker_run *r, int64_t seq) {
    char name[40];
    snprintf(name, sizeof name, "state-%lld", (long long)seq);
    return fs_join(r->dir, name);
}

void store_state(struct task *w, struct policy *p) {
    struct tinker_run *r = w->run;
    struct err e = {0};
    const double now = clock_now_s();
    if (w->resumed || (w->kind == TASK_STEP && now - r->kept_at < w->t->o->keep_s)) return;
    CLEANUP_FREE char *folder = state_folder(r, w->seq);
    if (w->seq > 0) put_result(r, w->seq, RESULT_JSON, &w->result); /* before the state, which the call is over with */
    if (r->log_broken) return;
    if (write_adapter(p, r->adapter, r->trainer->opt, folder, &e) == ST_OK)
        w->kept = true;
    else
        log_warn("the state of %s could not be kept: %s", r->id, e.msg);
    r->kept_at = now;
}

/* The newest state; -1: there is none. Others are removed. */
static int64_t newest_state(const char *dir) {
    char **names;
    size_t n;
    int64_t newest = -1;
    struct err e;
    if (fs_list(dir, &names, &n, &e) != ST_OK) return -1;
    for (size_t i = 0; i < n; i++) {
        char *end;
        if (strncmp(names[i], "state-", 6) != 0) continue;
        const long long seq = strtoll(names[i] + 6, &end, 10);
        if (!*end && seq > newest) newest = seq;
    }
    for (size_t i = 0; i < n; i++) {
        char *end;
        CLEANUP_FREE char *path = fs_join(dir, names[i]);
        const bool state = strncmp(names[i], "state-", 6) == 0;
        const long long seq = state ? strtoll(names[i] + 6, &end, 10) : 0;
        if (state && (*end || seq < newest) && fs_remove(path, &e) != ST_OK) log_warn("%s", e.msg);
        free(names[i]);
    }
    free(names);
    return newest;
}

/* What of a file of calls is needed where the state behind `seq` is there. */
static void put_needed(struct tinker *t, const struct tinker_run *r, const struct fs_map *m, int64_t seq,
                       struct str *out) {
    struct record c;
    const char *body;
    for (size_t at = 0; record_next(m->data, m->len, &at, &c, &body);) {
        CLEANUP_STR struct str id = STR_INIT;
        str_addf(&id, "%s#%lld", r->id, (long long)c.seq);
        const bool over = c.seq > 0 && c.seq <= seq;
        if (over && !future_find(t, id.p)) continue; /* its result is too old to be asked for */
        const bool drop = over && c.kind < CALL_SAMPLER && c.kind != CALL_SAVE_SAMPLER;
        record_put(out, drop ? c.kind | CALL_IS_OVER : c.kind, c.seq, c.content, body, drop ? 0 : c.n);
    }
}

void store_trim(struct tinker *t, struct tinker_run *r, int64_t seq) {
    CLEANUP_FREE char *path = fs_join(r->dir, calls_file);
    CLEANUP_STR struct str out = STR_INIT;
    struct fs_map m;
    struct err e = {0};
    if (fs_map_open(path, &m, &e) != ST_OK) {
        log_warn("%s", e.msg);
        return;
    }
    put_needed(t, r, &m, seq, &out);
    fs_map_close(&m);
    if (fs_write_atomic(path, out.p, out.len, &e) != ST_OK) {
        log_warn("%s", e.msg);
        return;
    }
    close(r->log);
    if (open_log(path, &r->log, &e) != ST_OK) {
        log_warn("%s", e.msg);
        r->log_broken = true;
    }
    (void)newest_state(r->dir);
}

/* ---- the next server ----------------------------------------------------------------------------------------------*/

void store_resume(struct tinker_run *r, struct task *w) {
    const int64_t seq = newest_state(r->dir);
    if (seq < 0) return;
    w->kind = TASK_LOAD;
    w->resumed = w->optimizer = true;
    free(w->folder);
    w->folder = state_folder(r, seq);
    r->next_seq = seq + 1;
}

/* The whole records of a file. */
struct store_log {
    struct store_entry {
        struct record r;
        const char *body;
    } * entry;
    size_t n, cap, bytes;
};

static void read_log(const struct fs_map *m, struct store_log *out) {
    struct store_entry one;
    *out = (struct store_log){0};
    while (record_next(m->data, m->len, &out->bytes, &one.r, &one.body)) {
        if (out->n == out->cap) {
            out->cap = out->cap ? 2 * out->cap : 256;
            out->entry = xrealloc(out->entry, out->cap * sizeof *out->entry);
        }
        out->entry[out->n++] = one;
    }
}

static bool is_result(const struct store_entry *c) { return c->r.kind >= RESULT_JSON && c->r.kind <= RESULT_FAILED; }

/* What came of a call; NULL: it is not known. */
static const struct store_entry *find_result(const struct store_log *l, int64_t seq) {
    for (size_t i = l->n; i-- > 0;)
        if (l->entry[i].r.seq == seq && is_result(&l->entry[i])) return &l->entry[i];
    return NULL;
}

/* A call that is over: its future, with its result. */
static void restore_result(struct tinker *t, struct tinker_run *r, const struct record *call,
                           const struct store_entry *result) {
    CLEANUP_STR struct str id = STR_INIT, bytes = STR_INIT;
    struct digest content = {{0}};
    memcpy(content.hex, call->content, sizeof call->content);
    str_addf(&id, "%s#%lld", r->id, (long long)call->seq);
    struct future *f = future_make(t, id.p, r->session, &content);
    str_add(&bytes, result->body, result->r.n);
    future_done(f, &bytes, result->r.kind == RESULT_PROTO);
    future_read(t, f); /* most were; who was not told yet asks soon */
}

/* A sampler without a name, of a call that is over; its weights are there if it is one of the last. */
static void restore_snapshot(struct tinker *t, struct tinker_run *r, const struct record *c, const char *body) {
    const struct incoming in = {.body = body, .n = c->n};
    CLEANUP_JSON json_t *j = incoming_json(&in);
    CLEANUP_STR struct str id = STR_INIT;
    struct call_save call;
    struct err e;
    if (!j || call_read_save(j, true, &call, &e) != ST_OK || call.name) return;
    char *folder = store_sampler_folder(t, r->session, call.sampler_seq_id);
    str_addf(&id, "%s:sample:%lld", r->session->id, (long long)call.sampler_seq_id);
    if (!fs_is_dir(folder) || sampler_find(t, id.p)) {
        free(folder);
        return;
    }
    struct tinker_sampler *m = sampler_add(t, r->session, id.p, r->base);
    memcpy(m->content.hex, c->content, sizeof c->content);
    m->run = r;
    add_snapshot(r, xstrdup(folder));
    sampler_open_folder(t, m, folder);
}

/* Whether a call made a checkpoint: not a sampler without a name. */
static bool makes_checkpoint(uint32_t kind, const struct store_entry *entry) {
    const struct incoming in = {.body = entry->body, .n = entry->r.n};
    struct call_save call;
    struct err e;
    if (kind == CALL_SAVE_WEIGHTS || kind == CALL_SAVE_EXTERNAL) return true;
    if (kind != CALL_SAVE_SAMPLER) return false;
    CLEANUP_JSON json_t *j = incoming_json(&in);
    return j && call_read_save(j, true, &call, &e) == ST_OK && call.name;
}

static void restore_call(struct tinker *t, struct tinker_run *r, const struct store_log *l,
                         const struct store_entry *entry, int64_t kept) {
    const struct record *c = &entry->r;
    const uint32_t kind = c->kind & ~(uint32_t)CALL_IS_OVER;
    const struct store_entry *result = find_result(l, c->seq);
    const bool over = c->seq <= kept;
    if (over && kind == CALL_SAVE_SAMPLER) restore_snapshot(t, r, c, entry->body);
    if (over && result) restore_result(t, r, c, result);
    if (over) return;
    /* A checkpoint may have been deleted since. A call that failed does so again, though memory may be there now; but a
     * step that failed has given the gradients up, and has to do that again, too. */
    if (result && (makes_checkpoint(kind, entry) || (result->r.kind == RESULT_FAILED && kind != CALL_STEP))) {
        restore_result(t, r, c, result);
        run_over(t, r, c->seq);
        return;
    }
    run_take(t, &(struct incoming){.kind = (enum call_kind)kind, .body = entry->body, .n = c->n});
}

static void restore_run(struct tinker *t, struct tinker_session *s, const char *dir, const char *name) {
    CLEANUP_FREE char *folder = fs_join(dir, name), *path = fs_join(folder, calls_file);
    CLEANUP_STR struct str id = STR_INIT;
    struct tinker_run *r = NULL;
    struct fs_map m;
    struct store_log l;
    struct err e;
    if (fs_map_open(path, &m, &e) != ST_OK) {
        log_warn("tinker: %s", e.msg);
        return;
    }
    read_log(&m, &l);
    /* Nothing may follow half a record. */
    const bool whole = l.bytes == m.len || truncate(path, (off_t)l.bytes) == 0;
    str_addf(&id, "%s:train:%s", s->id, name + strlen("train-"));
    if (l.n > 0) {
        const struct store_entry *c = &l.entry[0];
        run_take(t, &(struct incoming){.kind = (enum call_kind)c->r.kind, .body = c->body, .n = c->r.n});
        r = run_find(t, id.p);
    }
    const int64_t kept = r ? r->next_seq - 1 : 0;
    for (size_t i = 1; r && i < l.n; i++)
        if (!is_result(&l.entry[i])) restore_call(t, r, &l, &l.entry[i], kept);
    if (r && !whole) atomic_store(&r->log_broken, true);
    if (!r) log_warn("tinker: the model %s could not be made again", id.p);
    free(l.entry);
    fs_map_close(&m);
}

static void restore_samplers(struct tinker *t, const char *dir) {
    CLEANUP_FREE char *path = fs_join(dir, samplers_file);
    struct fs_map m;
    struct record c;
    struct err e;
    const char *body;
    if (!fs_is_file(path) || fs_map_open(path, &m, &e) != ST_OK) return;
    for (size_t at = 0; record_next(m.data, m.len, &at, &c, &body);)
        sampler_take(t, &(struct incoming){.kind = CALL_SAMPLER, .body = body, .n = c.n});
    fs_map_close(&m);
}

/* Requests of which nobody has had the result are sampled again, with the same result. */
static void restore_samples(struct tinker *t, struct tinker_session *s) {
    CLEANUP_FREE char *path = samples_path(t, s);
    struct fs_map m;
    struct record c;
    struct err e = {0};
    const char *body;
    enum status st = fs_is_file(path) ? open_log(path, &s->samples, &e) : ST_INVALID;
    if (st == ST_OK) st = trim_samples(t, s, &e);
    if (st == ST_OK) st = fs_map_open(path, &m, &e);
    if (st != ST_OK) return;
    for (size_t at = 0; record_next(m.data, m.len, &at, &c, &body);)
        sample_take(t, &(struct incoming){.kind = CALL_SAMPLE, .body = body, .n = c.n});
    fs_map_close(&m);
}

static struct tinker_session *restore_session(struct tinker *t, const char *dir, const char *id, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, session_file);
    CLEANUP_JSON json_t *j = NULL;
    const char *owner;
    struct tinker_session *s = xcalloc(1, sizeof *s);
    enum status st = js_load(path, MAX_SESSION, &j, e);
    if (st == ST_OK && strlen(id) >= sizeof s->id) st = FAIL(e, ST_PARSE, "%s: no session has this name", path);
    if (st == ST_OK) st = session_parse(j, path, s, &owner, e);
    if (st != ST_OK) {
        free(s);
        return NULL;
    }
    memcpy(s->id, id, strlen(id) + 1);
    s->tenant = tenant_by_id(t, owner);
    s->heard = tinker_now_s();
    s->samples = -1;
    s->next = t->sessions;
    return t->sessions = s;
}

static void go_on_with(struct tinker *t, const char *id) {
    CLEANUP_FREE char *dir = fs_join(t->session_folder, id);
    char **names;
    size_t n;
    struct err e;
    struct tinker_session *s = restore_session(t, dir, id, &e);
    CLEANUP_FREE char *path = fs_join(dir, session_file);
    if (!s && fs_is_file(path)) log_warn("tinker: a session is left alone: %s", e.msg);
    if (!s && !fs_is_file(path) && fs_remove(dir, &e) != ST_OK) log_warn("%s", e.msg); /* it has ended */
    if (!s) return;
    if (fs_list(dir, &names, &n, &e) != ST_OK) return;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], "train-", 6) == 0) restore_run(t, s, dir, names[i]);
        free(names[i]);
    }
    free(names);
    restore_samplers(t, dir);
    restore_samples(t, s);
    log_info("tinker: session %s goes on", id);
}

void store_go_on(struct tinker *t) {
    char **names;
    size_t n;
    struct err e;
    t->restored = true;
    if (fs_list(t->session_folder, &names, &n, &e) != ST_OK) {
        log_warn("tinker: %s", e.msg);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        go_on_with(t, names[i]);
        free(names[i]);
    }
    free(names);
}

enum status store_open(struct tinker *t, struct err *e) {
    t->session_folder = fs_join(t->o->dir, "sessions");
    return fs_mkdirs(t->session_folder, e);
}
