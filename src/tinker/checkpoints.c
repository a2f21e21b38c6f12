/* Checkpoints: the table of tinker:// names, and a folder for each: the adapter in PEFT form, the optimizer's moments
 * where it restores training, and checkpoint.json, which says what it is. Folders have names of the server's own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "tinker/internal.h"

enum { MAX_DESCRIPTION = 1 << 20 };
static const char description[] = "checkpoint.json";

char *checkpoint_dir(const struct tinker *t, const struct tinker_checkpoint *c) {
    return fs_join(t->folder, c->folder);
}

/* A name for a checkpoint's folder, which nobody can guess. */
static char *folder_name(void) {
    CLEANUP_STR struct str folder = STR_INIT;
    uint64_t random[2] = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random) random[0] = (uint64_t)clock();
    str_addf(&folder, "%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    return str_steal(&folder);
}

struct tinker_checkpoint *checkpoint_make(const struct tinker_run *r, enum checkpoint_kind kind,
                                          const struct call_save *call, const char *id) {
    struct tinker_checkpoint *c = xcalloc(1, sizeof *c);
    const int64_t now = (int64_t)time(NULL);
    *c = (struct tinker_checkpoint){.run = xstrdup(r->id),
                                    .name = xstrdup(call->name),
                                    .base = xstrdup(r->base),
                                    .folder = folder_name(),
                                    .call = xstrdup(id),
                                    .kind = kind,
                                    .shape = r->shape,
                                    .moments = kind == CHECKPOINT_WEIGHTS,
                                    .made = now,
                                    .expires = call->ttl_s > 0 ? now + call->ttl_s : 0,
                                    .metadata =
                                        call->user_metadata ? json_dumps(call->user_metadata, JSON_COMPACT) : NULL};
    memcpy(c->owner, r->session->tenant->id, sizeof c->owner);
    c->project = r->session->project ? xstrdup(r->session->project) : NULL;
    return c;
}

/* ---- on disk ------------------------------------------------------------------------------------------------------*/

enum status checkpoint_describe(const struct tinker_checkpoint *c, const char *dir, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, description);
    CLEANUP_STR struct str s = STR_INIT;
    checkpoint_put(&s, c);
    if (s.len > MAX_DESCRIPTION) return FAIL(e, ST_INVALID, "what is told of the checkpoint is too long");
    return fs_write_atomic(path, s.p, s.len, e);
}

/* A folder that a server before this one wrote. What is not whole is removed. */
static void find_one(struct tinker *t, const char *folder) {
    CLEANUP_FREE char *dir = fs_join(t->folder, folder), *path = fs_join(dir, description);
    CLEANUP_JSON json_t *j = NULL;
    struct tinker_checkpoint *c = xcalloc(1, sizeof *c);
    struct err e = {0};
    if (str_has_suffix(folder, ".new")) { /* a server was killed while it wrote it */
        if (fs_remove(dir, &e) != ST_OK) log_warn("%s", e.msg);
        checkpoint_free(c);
        return;
    }
    c->folder = xstrdup(folder);
    if (js_load(path, MAX_DESCRIPTION, &j, &e) == ST_OK && checkpoint_parse(j, path, c, &e) == ST_OK) {
        const struct tinker_checkpoint *same = checkpoint_find(t, &(struct checkpoint_path){c->run, c->name, c->kind});
        if (same && same->made > c->made) /* two of a name were left by a server that was killed */
            checkpoint_remove(t, c);
        else
            checkpoint_add(t, c);
        return;
    }
    log_warn("%s is no checkpoint, and is left alone: %s", dir, e.msg);
    checkpoint_free(c);
}

enum status checkpoints_open(struct tinker *t, struct err *e) {
    char **names;
    size_t n;
    t->folder = fs_join(t->o->dir, "checkpoints");
    TRY(fs_mkdirs(t->folder, e));
    TRY(fs_list(t->folder, &names, &n, e));
    for (size_t i = 0; i < n; i++) {
        find_one(t, names[i]);
        free(names[i]);
    }
    free(names);
    return ST_OK;
}

void checkpoints_close(struct tinker *t) {
    for (struct tinker_checkpoint *c = t->checkpoints, *next; c; c = next) {
        next = c->next;
        checkpoint_free(c);
    }
    t->checkpoints = NULL;
    free(t->folder);
}

/* ---- the table ----------------------------------------------------------------------------------------------------*/

struct tinker_checkpoint *checkpoint_find(const struct tinker *t, const struct checkpoint_path *p) {
    struct tinker_checkpoint *c = t->checkpoints;
    while (c && (c->kind != p->kind || strcmp(c->name, p->name) != 0 || strcmp(c->run, p->run) != 0)) c = c->next;
    return c;
}

bool checkpoint_seen(const struct tinker_checkpoint *c, const struct tinker_tenant *by) {
    return c->public || tenant_sees(by, c->owner);
}

enum status checkpoint_at(const struct tinker *t, const struct tinker_tenant *by, const char *path,
                          struct tinker_checkpoint **out, struct err *e) {
    struct arena a = ARENA_INIT;
    struct checkpoint_path p;
    enum status st = call_read_path(path, &a, &p, e);
    *out = st == ST_OK ? checkpoint_find(t, &p) : NULL;
    if (*out && !checkpoint_seen(*out, by)) *out = NULL;
    if (st == ST_OK && !*out) st = FAIL(e, ST_INVALID, "there is no checkpoint %.300s here", path);
    arena_free(&a);
    return st;
}

/* Newest first. */
void checkpoint_add(struct tinker *t, struct tinker_checkpoint *c) {
    const struct checkpoint_path p = {c->run, c->name, c->kind};
    struct tinker_checkpoint *old = checkpoint_find(t, &p), **at = &t->checkpoints;
    if (old) checkpoint_remove(t, old); /* though the clock may have been put back since */
    while (*at && (*at)->made > c->made) at = &(*at)->next;
    c->next = *at;
    *at = c;
}

void checkpoint_remove(struct tinker *t, struct tinker_checkpoint *c) {
    CLEANUP_FREE char *dir = checkpoint_dir(t, c);
    struct err e;
    for (struct tinker_checkpoint **at = &t->checkpoints; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    if (fs_remove(dir, &e) != ST_OK) log_warn("%s", e.msg);
    checkpoint_free(c);
}

void checkpoints_age(struct tinker *t, int64_t now) {
    for (struct tinker_checkpoint *c = t->checkpoints, *next; c; c = next) {
        next = c->next;
        if (c->expires > 0 && c->expires <= now) checkpoint_remove(t, c);
    }
}

struct tinker_checkpoint *checkpoint_of_call(const struct tinker *t, const struct tinker_tenant *by, const char *call) {
    struct tinker_checkpoint *c = t->checkpoints;
    while (c && (!c->call || strcmp(c->call, call) != 0 || strcmp(c->owner, by->id) != 0)) c = c->next;
    return c;
}

/* Another name for each file of a folder but its description. The files never change. */
static enum status link_files(const char *from, const char *to, struct err *e) {
    char **names;
    size_t n;
    enum status st = ST_OK;
    TRY(fs_list(from, &names, &n, e));
    for (size_t i = 0; i < n; i++) {
        CLEANUP_FREE char *old = fs_join(from, names[i]), *new = fs_join(to, names[i]);
        if (st == ST_OK && strcmp(names[i], description) != 0 && link(old, new) != 0)
            st = FAIL(e, ST_IO, "%s: %s", new, strerror(errno));
        free(names[i]);
    }
    free(names);
    return st;
}

enum status checkpoint_copy(struct tinker *t, const struct tinker_checkpoint *from, const struct checkpoint_copy *own,
                            struct err *e) {
    struct tinker_checkpoint *c = xcalloc(1, sizeof *c);
    *c = (struct tinker_checkpoint){.run = xstrdup(own->run),
                                    .name = xstrdup(from->name),
                                    .base = xstrdup(from->base),
                                    .folder = folder_name(),
                                    .call = xstrdup(own->call),
                                    .project = own->project ? xstrdup(own->project) : NULL,
                                    .kind = from->kind,
                                    .shape = from->shape,
                                    .moments = from->moments,
                                    .bytes = from->bytes,
                                    .made = (int64_t)time(NULL),
                                    .expires = own->expires,
                                    .metadata = from->metadata ? xstrdup(from->metadata) : NULL};
    snprintf(c->owner, sizeof c->owner, "%s", own->owner);
    CLEANUP_FREE char *source = checkpoint_dir(t, from), *dir = checkpoint_dir(t, c);
    enum status st = fs_mkdirs(dir, e);
    if (st == ST_OK) st = link_files(source, dir, e);
    if (st == ST_OK) st = checkpoint_describe(c, dir, e);
    if (st == ST_OK) {
        checkpoint_add(t, c);
        return ST_OK;
    }
    struct err ignored;
    if (fs_remove(dir, &ignored) != ST_OK) log_warn("%s", ignored.msg);
    checkpoint_free(c);
    return st;
}

/* ---- as JSON ------------------------------------------------------------------------------------------------------*/

void put_time(struct str *out, const char *key, int64_t unix_s) {
    char text[40];
    struct tm tm;
    const time_t at = (time_t)unix_s;
    if (!gmtime_r(&at, &tm)) tm = (struct tm){.tm_mday = 1, .tm_year = 70}; /* the year is beyond what there is */
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    js_put_str(out, key, text);
}

void put_checkpoint(struct str *out, const char *key, const struct tinker_checkpoint *c) {
    CLEANUP_STR struct str id = STR_INIT, path = STR_INIT;
    CLEANUP_JSON json_t *metadata = c->metadata ? json_loads(c->metadata, 0, NULL) : NULL;
    str_addf(&id, "%s/%s", checkpoint_kind_names[c->kind], c->name);
    str_addf(&path, "tinker://%s/%s", c->run, id.p);
    js_begin(out, key, '{');
    js_put_str(out, "checkpoint_id", id.p);
    js_put_str(out, "checkpoint_type", checkpoint_type_names[c->kind]);
    put_time(out, "time", c->made);
    js_put_str(out, "tinker_path", path.p);
    js_put_i64(out, "size_bytes", c->bytes);
    js_put_bool(out, "public", c->public);
    if (metadata) js_put_json(out, "user_metadata", metadata);
    if (c->expires > 0) put_time(out, "expires_at", c->expires);
    js_end(out, '}');
}
