#include "serve/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "tensor/backend.h"

enum { RETRY_S = 5 };
/* The revision of what decides bits beside weights and device: raised when a change alters them. */
enum { NUMERIC_REVISION = 1 };

/* ---- names --------------------------------------------------------------------------------------------------------*/

static struct served_model *exact(const struct models *m, const char *name) {
    struct served_model *s = m->first;
    while (s && strcmp(s->name, name) != 0) s = s->next;
    return s;
}

static struct served_model *append(struct models *m, const char *name) {
    struct served_model *s = xcalloc(1, sizeof *s), **at = &m->first;
    s->name = xstrdup(name);
    s->created = (int64_t)time(NULL);
    while (*at) at = &(*at)->next;
    *at = s;
    return s;
}

static struct served_model **link_of(struct models *m, const struct served_model *s) {
    struct served_model **at = &m->first;
    while (*at != s) at = &(*at)->next;
    return at;
}

void models_begin(struct models *m, struct model_thread *t, const char *base, int max_loaded) {
    *m = (struct models){.thread = t, .max_loaded = max_loaded};
    m->base = append(m, base);
    m->base->loaded = true;
    m->base->adapter = ADAPTER_OWN;
}

static void free_model(struct served_model *s) {
    free(s->name);
    free(s->dir);
    free(s->alias_of);
    free(s);
}

void models_free(struct models *m) {
    for (struct served_model *s = m->first, *next; s; s = next) {
        next = s->next;
        free_model(s);
    }
    *m = (struct models){0};
}

static enum status check_name(const struct models *m, const char *name, struct err *e) {
    if (!*name || strlen(name) > 200) return FAIL(e, ST_INVALID, "a model's name has 1 to 200 bytes");
    if (strcmp(name, "default") == 0) return FAIL(e, ST_INVALID, "\"default\" is the name of the default model");
    if (exact(m, name)) return FAIL(e, ST_INVALID, "there is a model \"%s\" already", name);
    return ST_OK;
}

enum status models_add(struct models *m, const char *name, const char *dir, struct err *e) {
    TRY(check_name(m, name, e));
    struct served_model *s = append(m, name);
    s->dir = xstrdup(dir);
    s->parent = m->base->name;
    return ST_OK;
}

enum status models_add_alias(struct models *m, const char *name, const char *of, struct err *e) {
    TRY(check_name(m, name, e));
    append(m, name)->alias_of = xstrdup(of);
    return ST_OK;
}

void models_prefer(struct models *m, const char *name) {
    struct served_model *s = exact(m, name);
    if (!s) return;
    *link_of(m, s) = s->next;
    s->next = m->first;
    m->first = s;
}

struct served_model *models_find(const struct models *m, const char *name) {
    struct served_model *s = !name || !*name || strcmp(name, "default") == 0 ? m->first : exact(m, name);
    for (int i = 0; s && s->alias_of && i < 8; i++) s = exact(m, s->alias_of);
    return s && s->alias_of ? NULL : s;
}

/* ---- fingerprints -------------------------------------------------------------------------------------------------*/

static bool decides_bits(const char *file) {
    static const char *const ends[] = {".safetensors", "config.json", "tokenizer.json", "vocab.json", "merges.txt"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (str_has_suffix(file, ends[i])) return strcmp(file, "optimizer.safetensors") != 0;
    return false;
}

/* Goes on with a hash over the files of a folder that decide bits. */
static uint64_t hash_folder(const char *dir, uint64_t h) {
    char **names = NULL;
    size_t n = 0;
    struct err ignored;
    if (fs_list(dir, &names, &n, &ignored) != ST_OK) n = 0;
    for (size_t i = 0; i < n; i++) {
        CLEANUP_FREE char *path = fs_join(dir, names[i]);
        struct fs_map map;
        if (decides_bits(names[i]) && fs_is_file(path) && fs_map_open(path, &map, &ignored) == ST_OK) {
            h = hash_bytes(names[i], strlen(names[i]), h);
            h = hash_bytes(map.data, map.len, h);
            fs_map_close(&map);
        }
        free(names[i]);
    }
    free(names);
    return h;
}

static uint64_t base_hash(const struct policy *p) {
    const char *const words[] = {KERNELRL_VERSION, model_dtype(p->model), p->be->name, chat_style_name(p->style)};
    uint64_t h = NUMERIC_REVISION;
    for (size_t i = 0; i < ARRAY_LEN(words); i++) h = hash_bytes(words[i], strlen(words[i]) + 1, h);
    const char *codes = model_base_codes(p->model);
    if (codes) h = hash_bytes(codes, strlen(codes) + 1, h);
    h = hash_folder(p->folder, h);
    return p->start ? hash_folder(p->start, h) : h;
}

static void put_fingerprint(struct served_model *s, uint64_t h) {
    snprintf(s->fingerprint, sizeof s->fingerprint, "kernelrl-%016llx", (unsigned long long)h);
}

struct identify_call {
    struct model_call call; /* the first member */
    struct models *m;
    uint64_t hash;
};

static bool run_identify(struct model_call *c, struct policy *p) {
    ((struct identify_call *)c)->hash = base_hash(p);
    return true;
}

static void identified(struct model_call *c) {
    struct identify_call *i = (struct identify_call *)c;
    put_fingerprint(i->m->base, i->hash);
    i->m->known = true;
    free(i);
}

void models_identify(struct models *m) {
    struct identify_call *c = xcalloc(1, sizeof *c);
    c->call = (struct model_call){.run = run_identify, .done = identified};
    c->m = m;
    model_thread_call(m->thread, &c->call);
}

/* ---- loading ------------------------------------------------------------------------------------------------------*/

struct model_loading {
    struct model_call call; /* the first member */
    struct models *m;
    char *name, *dir;
    models_done_fn *done;
    void *ctx;
    uint64_t hash; /* of the base, then with the adapter */
    int index;
    bool fresh; /* true: the name was not there when the load began */
    enum status status;
    struct err err;
};

static bool run_load(struct model_call *c, struct policy *p) {
    struct model_loading *l = (struct model_loading *)c;
    l->status = engine_adapter_load(p->engine, l->dir, &l->index, &l->err);
    if (l->status == ST_OK) l->hash = hash_folder(l->dir, l->hash);
    return true;
}

struct drop_call {
    struct model_call call; /* the first member */
    int index;
};

static bool run_drop(struct model_call *c, struct policy *p) {
    struct err e;
    if (engine_adapter_drop(p->engine, ((struct drop_call *)c)->index, &e) != ST_OK) log_error("adapter: %s", e.msg);
    return true;
}

static void dropped(struct model_call *c) { free(c); }

static void drop_index(struct models *m, int index) {
    struct drop_call *c = xcalloc(1, sizeof *c);
    c->call = (struct model_call){.run = run_drop, .done = dropped};
    c->index = index;
    model_thread_call(m->thread, &c->call);
}

static void drop_adapter(struct models *m, struct served_model *s) {
    s->loaded = false;
    m->n_loaded--;
    drop_index(m, s->adapter);
}

/* Gives up the adapter that was used least lately, but for `keep`. Those that run keep theirs until they end. */
static void make_room(struct models *m, const struct served_model *keep) {
    while (m->n_loaded >= m->max_loaded) {
        struct served_model *least = NULL;
        for (struct served_model *s = m->first; s; s = s->next)
            if (s->dir && s->loaded && s != keep && (!least || s->used < least->used)) least = s;
        if (!least) return;
        log_info("adapter %s: given up for another one", least->name);
        drop_adapter(m, least);
    }
}

/* The adapter that was loaded becomes that of its name. */
static void put_loaded(struct models *m, const struct model_loading *l) {
    struct served_model *s = exact(m, l->name);
    if (!s && !l->fresh) { /* the name was taken away meanwhile */
        drop_index(m, l->index);
        return;
    }
    if (!s) {
        s = append(m, l->name);
        s->parent = m->base->name;
    }
    if (s->loaded) drop_adapter(m, s);
    make_room(m, s);
    free(s->dir);
    s->dir = xstrdup(l->dir);
    s->adapter = l->index;
    s->loaded = true;
    s->created = (int64_t)time(NULL);
    s->failed = 0;
    put_fingerprint(s, l->hash);
    m->n_loaded++;
    log_info("adapter %s: loaded from %s", l->name, l->dir);
}

static void loaded(struct model_call *c) {
    struct model_loading *l = (struct model_loading *)c;
    struct models *m = l->m;
    struct served_model *s = exact(m, l->name);
    m->changes++;
    if (s && s->load == l) s->load = NULL;
    if (l->status == ST_OK) {
        put_loaded(m, l);
    } else if (s && !s->loaded) {
        s->failed = clock_now_ns();
        s->err = l->err;
    }
    if (l->done) l->done(l->ctx, l->status, &l->err);
    free(l->name);
    free(l->dir);
    free(l);
}

void models_load(struct models *m, const char *name, const char *dir, models_done_fn *done, void *ctx) {
    struct model_loading *l = xcalloc(1, sizeof *l);
    struct served_model *s = exact(m, name);
    l->call = (struct model_call){.run = run_load, .done = loaded};
    l->m = m;
    l->name = xstrdup(name);
    l->dir = xstrdup(dir);
    l->done = done;
    l->ctx = ctx;
    l->hash = hash_bytes(m->base->fingerprint, strlen(m->base->fingerprint), 0);
    l->fresh = !s;
    l->status = ST_CANCELLED; /* until it has run */
    if (s) s->load = l;
    model_thread_call(m->thread, &l->call);
}

static void note_failure(void *name, enum status st, const struct err *e) {
    if (st != ST_OK && st != ST_CANCELLED) log_error("adapter %s: %s", (const char *)name, e->msg);
    free(name);
}

enum status models_use(struct models *m, struct served_model *s, bool *ready, struct err *e) {
    s->used = ++m->uses;
    *ready = s->loaded;
    if (s->loaded || s->load) return ST_OK;
    if (s->failed != 0 && clock_now_ns() - s->failed < RETRY_S * 1000000000LL) {
        *e = s->err;
        return s->err.code;
    }
    models_load(m, s->name, s->dir, note_failure, xstrdup(s->name));
    return ST_OK;
}

enum status models_remove(struct models *m, const char *name, struct err *e) {
    struct served_model *s = exact(m, name);
    if (!s) return FAIL(e, ST_CONFIG, "there is no model \"%s\"", name);
    if (s == m->base || s->alias_of) return FAIL(e, ST_INVALID, "\"%s\" is no adapter, and stays", name);
    if (s->loaded) drop_adapter(m, s);
    *link_of(m, s) = s->next;
    free_model(s);
    return ST_OK;
}
