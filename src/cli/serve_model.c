#include "cli/serve_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"
#include "rl/options/options.h"

static bool has(const char *dir, const char *file) {
    CLEANUP_FREE char *path = fs_join(dir, file);
    return fs_is_file(path);
}

/* ---- a run --------------------------------------------------------------------------------------------------------*/

struct checkpoint {
    const char *name, *dir;
    int64_t step; /* INT64_MAX: the final one */
    bool adapter;
};

static int newest_first(const void *a, const void *b) {
    const struct checkpoint *x = a, *y = b;
    return x->step < y->step ? 1 : x->step > y->step ? -1 : 0;
}

/* The checkpoints of a run that are complete enough to be served, the newest first. */
static enum status list_checkpoints(const char *run, struct serve_model *m, struct checkpoint **out, size_t *n,
                                    struct err *e) {
    CLEANUP_FREE char *folder = fs_join(run, "checkpoints");
    char **names = NULL;
    size_t count = 0;
    *n = 0;
    if (fs_is_dir(folder)) TRY(fs_list(folder, &names, &count, e));
    struct checkpoint *list = arena_array(&m->mem, struct checkpoint, count + 1);
    for (size_t i = 0; i < count; i++) {
        CLEANUP_FREE char *dir = fs_join(folder, names[i]);
        struct checkpoint c = {.step = INT64_MAX};
        if (strcmp(names[i], "final") == 0 || parse_i64(names[i], &c.step)) {
            c.adapter = has(dir, "adapter_config.json");
            c.name = arena_strdup(&m->mem, names[i]);
            c.dir = arena_strdup(&m->mem, dir);
            if (c.adapter ? has(dir, "adapter_model.safetensors") : has(dir, "config.json")) list[(*n)++] = c;
        }
        free(names[i]);
    }
    free(names);
    qsort(list, *n, sizeof *list, newest_first);
    *out = list;
    return *n > 0 ? ST_OK : FAIL(e, ST_CONFIG, "%s: the run has no checkpoint yet", run);
}

static enum status read_run(const char *run, struct serve_model *m, struct err *e) {
    CLEANUP_FREE char *path = fs_join(run, "config.yaml");
    struct train_options *o = xcalloc(1, train_schema.values_bytes);
    struct config c;
    config_init(&c, &train_schema, o);
    const enum status st = config_load(&c, path, e);
    if (st == ST_OK) {
        m->base = arena_strdup(&m->mem, o->model_name);
        m->revision = arena_strdup(&m->mem, o->model_revision);
        if (o->renderer_name) m->renderer = arena_strdup(&m->mem, o->renderer_name);
    }
    config_free(&c);
    free(o);
    return st;
}

static enum status find_run(const char *name, struct serve_model *m, struct err *e) {
    struct checkpoint *c;
    size_t n;
    TRY(read_run(name, m, e));
    TRY(list_checkpoints(name, m, &c, &n, e));
    m->preferred = name;
    m->adapters = arena_array(&m->mem, struct serve_name, n + 1);
    if (!c[0].adapter) { /* one base at a time: the newest */
        m->start = c[0].dir;
        m->preferred = NULL;
        if (n > 1) log_info("%s: its checkpoints hold full weights: serving %s alone", name, c[0].name);
        return ST_OK;
    }
    m->adapters[m->n_adapters++] = (struct serve_name){name, c[0].dir};
    for (size_t i = 0; i < n; i++)
        if (c[i].adapter)
            m->adapters[m->n_adapters++] =
                (struct serve_name){arena_printf(&m->mem, "%s@%s", name, c[i].name), c[i].dir};
    return ST_OK;
}

/* ---- an adapter ---------------------------------------------------------------------------------------------------*/

static enum status find_adapter(const char *name, struct serve_model *m, struct err *e) {
    CLEANUP_FREE char *path = fs_join(name, "adapter_config.json");
    CLEANUP_JSON json_t *o = NULL;
    const char *base;
    TRY(js_load(path, 1 << 20, &o, e));
    TRY(js_get_str(o, path, "base_model_name_or_path", &base, e));
    m->base = arena_strdup(&m->mem, base);
    m->adapters = arena_new(&m->mem, struct serve_name);
    m->adapters[m->n_adapters++] = (struct serve_name){name, name};
    m->preferred = name;
    return ST_OK;
}

enum status serve_model_find(const char *name, struct serve_model *out, struct err *e) {
    CLEANUP_FREE char *checkpoints = fs_join(name, "checkpoints");
    *out = (struct serve_model){.base = name};
    if (has(name, "config.yaml") && fs_is_dir(checkpoints)) return find_run(name, out, e);
    if (has(name, "adapter_config.json") && !has(name, "config.json")) return find_adapter(name, out, e);
    return ST_OK;
}

void serve_model_free(struct serve_model *m) { arena_free(&m->mem); }
