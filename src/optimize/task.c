#include "optimize/task.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "io/json.h"
#include "io/pychild.h"

enum { REPLY_MAX = 16 << 20 };

void tasks_free(struct tasks *t) {
    for (int i = 0; i < t->n; i++) population_free(&t->items[i].found);
    free(t->items);
    problem_set_free(&t->set);
    arena_free(&t->arena);
    *t = (struct tasks){0};
}

void task_trouble(struct tasks *t, int task, const char *why) {
    t->items[task].trouble = arena_strdup(&t->arena, *why ? why : "the problem fails");
}

/* "a/b/my_block.py" gives "my_block". */
static char *stem(struct arena *a, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = strlen(name);
    return arena_strndup(a, name, str_has_suffix(name, ".py") ? n - 3 : n);
}

static enum status read_shape(struct arena *a, const json_t *row, const char *where, struct search_task *t,
                              struct err *e) {
    const char *label, *code;
    const int s = t->n_shapes;
    TRY(js_get_str(row, where, "label", &label, e));
    TRY(js_get_str(row, where, "code", &code, e));
    TRY(js_get_f64(row, where, "weight", &t->weight[s], e));
    t->label[s] = arena_strdup(a, label);
    t->shape[s] = (struct problem){
        .key = s ? arena_printf(a, "%s[%d]", t->key, s) : t->key, .name = t->key, .code = arena_strdup(a, code)};
    t->n_shapes++;
    return ST_OK;
}

static enum status read_task(struct arena *a, const char *path, const struct str *text, struct search_task *t,
                             struct err *e) {
    CLEANUP_JSON json_t *o = NULL;
    json_t *shapes;
    const char *module;
    double sum = 0;
    TRY(js_parse(str_c(text), text->len, path, &o, e));
    TRY(js_get_str(o, path, "module", &module, e));
    TRY(js_get_array(o, path, "shapes", &shapes, e));
    const size_t n = json_array_size(shapes);
    if (n < 1 || n > SHAPES_MAX) return FAIL(e, ST_PARSE, "%s: shapes: expected 1 to %d, got %zu", path, SHAPES_MAX, n);
    t->key = stem(a, path);
    t->folder = "";
    t->module = arena_strdup(a, module);
    for (size_t i = 0; i < n; i++) TRY(read_shape(a, json_array_get(shapes, i), path, t, e));
    for (int i = 0; i < t->n_shapes; i++) sum += t->weight[i];
    for (int i = 0; i < t->n_shapes; i++) t->weight[i] /= sum;
    return ST_OK;
}

enum status task_of_file(const char *path, const char *module, struct tasks *out, struct err *e) {
    CLEANUP_STR struct str text = STR_INIT;
    const bool named = module && *module;
    const char *const args[] = {path, named ? module : NULL, NULL};
    *out = (struct tasks){0};
    if (!fs_is_file(path)) return FAIL(e, ST_IO, "%s: no such file", path);
    TRY(pychild_run("module_file.py", args, path, "torch", REPLY_MAX, &text, e));
    out->items = xcalloc(1, sizeof *out->items);
    out->n = 1;
    return read_task(&out->arena, path, &text, &out->items[0], e);
}

void tasks_of_problems(const struct problem *const *problems, int n, struct tasks *out) {
    *out = (struct tasks){.items = xcalloc((size_t)n + 1, sizeof *out->items), .n = n};
    for (int i = 0; i < n; i++) {
        struct search_task *t = &out->items[i];
        struct problem p = *problems[i];
        p.key = arena_strdup(&out->arena, p.key);
        p.name = arena_strdup(&out->arena, p.name ? p.name : p.key);
        p.code = arena_strdup(&out->arena, p.code);
        p.ops = p.ops ? arena_strdup(&out->arena, p.ops) : NULL;
        char *folder = arena_strdup(&out->arena, p.key);
        for (char *c = folder; *c; c++)
            if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) *c = '_';
        *t = (struct search_task){.key = p.key, .folder = folder, .module = "Model", .n_shapes = 1};
        t->shape[0] = p;
        t->label[0] = "";
        t->weight[0] = 1;
    }
}
