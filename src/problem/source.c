/* Where problems come from: .py files, KernelBench checkouts and other folder trees, JSON lines, Parquet, data sets of
 * the Hugging Face Hub, the built-in set. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/home.h"
#include "io/hub.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/parquet.h"
#include "problem/problem.h"

enum { MAX_CODE_BYTES = 1 << 20, MAX_LINE_BYTES = 4 << 20, MAX_PATH = 4096, MAX_PARQUET_BYTES = 1 << 28 };

/* While loading, items grow in malloc'ed memory. The caller sees an array in the arena. */
struct loader {
    struct problem_set *set;
    struct problem *items;
    size_t n, cap;
};

static void push(struct loader *l, struct problem p) {
    if (l->n == l->cap) l->items = xrealloc(l->items, sizeof *l->items * (l->cap = l->cap ? l->cap * 2 : 64));
    l->items[l->n++] = p;
}

/* Returns the number in front of the underscore of "12_Name.py" or "12_Name"; 0 when there is none. */
static int leading_id(const char *name) {
    long v = 0;
    const char *c = name;
    for (; isdigit((unsigned char)*c) && v < 1000000000; c++) v = v * 10 + (*c - '0');
    return c > name && *c == '_' ? (int)v : 0;
}

/* Returns 3 for "level3" or "level_3"; 0 for other names. */
static int level_of_dir(const char *dir) {
    if (!str_has_prefix(dir, "level")) return 0;
    const char *c = dir + 5;
    if (*c == '_') c++;
    int64_t v;
    return parse_i64(c, &v) && v > 0 && v < 1000 ? (int)v : 0;
}

static const char *last_component(const char *path, size_t *len) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/') at--;
    *len = n - at;
    return path + at;
}

static enum status load_py(struct loader *l, const char *path, const char *key, int level, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t n;
    TRY(fs_read(path, MAX_CODE_BYTES, &text, &n, e));
    if (memchr(text, 0, n)) return FAIL(e, ST_PARSE, "%s: is not a text file", path);
    if (!strstr(text, "class Model") || !strstr(text, "get_inputs"))
        return FAIL(e, ST_PARSE, "%s: is not a KernelBench problem: expected class Model and get_inputs()", path);
    size_t len;
    const char *file = last_component(path, &len);
    struct arena *a = &l->set->arena;
    const char *name = arena_strndup(a, file, len > 3 ? len - 3 : len);
    push(l, (struct problem){.key = key ? arena_strdup(a, key) : name,
                             .name = name,
                             .code = arena_strndup(a, text, n),
                             .level = level,
                             .problem_id = leading_id(name)});
    return ST_OK;
}

static int by_id(const void *pa, const void *pb) {
    const struct problem *a = pa, *b = pb;
    if (a->level != b->level) return a->level < b->level ? -1 : 1;
    if (a->problem_id != b->problem_id) return a->problem_id < b->problem_id ? -1 : 1;
    return strcmp(a->key, b->key);
}

/* Takes every .py file below dir. The level comes from the nearest levelN folder. In a folder tree, Python files that
 * are no problems (KernelBench's own sources, __init__.py) are passed over. */
static enum status walk(struct loader *l, const char *root, const char *dir, int level, int depth, struct err *e) {
    if (depth > 12) return FAIL(e, ST_INVALID, "%s: folders nested too deep", dir);
    char **names = NULL;
    size_t n = 0;
    TRY(fs_list(dir, &names, &n, e));
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        char path[MAX_PATH];
        if (names[i][0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) >= (int)sizeof path) {
            st = FAIL(e, ST_INVALID, "%s/%s: path too long", dir, names[i]);
        } else if (fs_is_dir(path)) {
            int lv = level_of_dir(names[i]);
            st = walk(l, root, path, lv ? lv : level, depth + 1, e);
        } else if (str_has_suffix(names[i], ".py") && (leading_id(names[i]) > 0 || level > 0)) {
            char key[MAX_PATH];
            const char *rel = path + strlen(root);
            while (*rel == '/') rel++;
            snprintf(key, sizeof key, "%.*s", (int)(strlen(rel) - 3), rel);
            st = load_py(l, path, key, level, e);
        }
    }
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
    return st;
}

static enum status load_rows(struct loader *l, const char *dir, struct err *e);

static enum status load_dir(struct loader *l, const char *dir, struct err *e) {
    char sub[MAX_PATH];
    size_t len;
    const char *base = last_component(dir, &len);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)len, base);
    snprintf(sub, sizeof sub, "%s/KernelBench", dir);
    const char *root = fs_is_dir(sub) ? sub : dir;
    TRY(walk(l, root, root, level_of_dir(name), 0, e));
    /* A data set of the Hub has files such as data/SPLIT-00000-of-00001.parquet. */
    if (l->n == 0) TRY(load_rows(l, dir, e));
    if (l->n == 0)
        return FAIL(e, ST_INVALID,
                    "%s: no problems: expected files levelN/ID_Name.py with class Model, or rows in .jsonl or .parquet",
                    dir);
    if (l->n > 1) qsort(l->items, l->n, sizeof *l->items, by_id);
    return ST_OK;
}

static enum status parse_split(const char *text, const char *where, enum split *out, struct err *e) {
    if (!text || strcmp(text, "train") == 0)
        *out = SPLIT_TRAIN;
    else if (strcmp(text, "test") == 0)
        *out = SPLIT_TEST;
    else
        return FAIL(e, ST_PARSE, "%s: split: expected \"train\" or \"test\", got \"%s\"", where, text);
    return ST_OK;
}

/* Reads small whole numbers: level, problem_id, difficulty. The data set's tools write level as "level_1" at times. */
static enum status small_int(const json_t *row, const char *where, const char *key, int *out, struct err *e) {
    const json_t *v = json_object_get(row, key);
    if (!v || json_is_null(v)) return ST_OK;
    if (json_is_string(v) && strcmp(key, "level") == 0) {
        int lv = level_of_dir(json_string_value(v));
        int64_t n;
        if (!lv && parse_i64(json_string_value(v), &n) && n > 0 && n < 1000) lv = (int)n;
        if (lv) {
            *out = lv;
            return ST_OK;
        }
    }
    int64_t n = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
    if (n < 0 || n > INT32_MAX) return FAIL(e, ST_PARSE, "%s: %s: expected a whole number >= 0", where, key);
    *out = (int)n;
    return ST_OK;
}

/* Reads all rows and closes r. A row that names no split has that of its file. */
static enum status read_rows(struct loader *l, struct jsonl_reader *r, const char *path, enum split of_file,
                             struct err *e) {
    struct arena *a = &l->set->arena;
    const size_t before = l->n;
    enum status st = ST_OK;
    for (;;) {
        const char *line;
        size_t len;
        TRY_GOTO(jsonl_next(r, &line, &len, e), done);
        if (!line) break;
        char where[MAX_PATH + 32];
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(r));
        CLEANUP_JSON json_t *row = NULL;
        TRY_GOTO(js_parse(line, len, where, &row, e), done);
        if (!json_is_object(row)) {
            st = FAIL(e, ST_PARSE, "%s: expected an object with the columns code, level, name, problem_id", where);
            goto done;
        }
        struct problem p = {0};
        const char *code, *name, *key = NULL, *split = NULL, *ops = NULL;
        static const char *const needed[] = {"code", "level", "name", "problem_id"};
        for (size_t i = 0; i < ARRAY_LEN(needed); i++)
            if (!json_object_get(row, needed[i])) {
                st = FAIL(e, ST_PARSE, "%s: column %s is missing: expected code, level, name, problem_id", where,
                          needed[i]);
                goto done;
            }
        TRY_GOTO(js_get_str(row, where, "code", &code, e), done);
        TRY_GOTO(js_get_str(row, where, "name", &name, e), done);
        TRY_GOTO(js_opt_str(row, where, "key", &key, e), done);
        TRY_GOTO(js_opt_str(row, where, "split", &split, e), done);
        TRY_GOTO(js_opt_str(row, where, "ops", &ops, e), done);
        TRY_GOTO(small_int(row, where, "level", &p.level, e), done);
        TRY_GOTO(small_int(row, where, "problem_id", &p.problem_id, e), done);
        TRY_GOTO(small_int(row, where, "difficulty", &p.difficulty, e), done);
        p.split = of_file;
        if (split) TRY_GOTO(parse_split(split, where, &p.split, e), done);
        if (!strstr(code, "class Model")) {
            st = FAIL(e, ST_PARSE, "%s: code: expected a module with class Model", where);
            goto done;
        }
        p.code = arena_strdup(a, code);
        p.name = arena_strdup(a, name);
        p.ops = ops ? arena_strdup(a, ops) : NULL;
        p.key = key ? arena_strdup(a, key) : p.level ? arena_printf(a, "level%d/%s", p.level, name) : p.name;
        push(l, p);
    }
    if (l->n == before) st = FAIL(e, ST_INVALID, "%s: no problems", path);
done:
    jsonl_close(r);
    return st;
}

static enum status load_jsonl(struct loader *l, const char *path, enum split split, struct err *e) {
    struct jsonl_reader *r = NULL;
    TRY(jsonl_open(path, MAX_LINE_BYTES, &r, e));
    return read_rows(l, r, path, split, e);
}

static enum status load_parquet(struct loader *l, const char *path, enum split split, struct err *e) {
    CLEANUP_STR struct str rows = STR_INIT;
    TRY(parquet_to_jsonl(path, NULL, MAX_PARQUET_BYTES, &rows, e));
    return read_rows(l, jsonl_open_memory(path, str_c(&rows), rows.len, false, MAX_LINE_BYTES), path, split, e);
}

/* Takes every .jsonl file below dir, else every .parquet file. The Hub's data sets name their split in front of the
 * file's name: test-00000-of-00001.parquet. */
static enum status walk_rows(struct loader *l, const char *dir, bool parquet, int depth, struct err *e) {
    if (depth > 12) return FAIL(e, ST_INVALID, "%s: folders nested too deep", dir);
    char **names = NULL;
    size_t n = 0;
    TRY(fs_list(dir, &names, &n, e));
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        char path[MAX_PATH];
        const char *name = names[i];
        const enum split split =
            str_has_prefix(name, "test-") || str_has_prefix(name, "test.") ? SPLIT_TEST : SPLIT_TRAIN;
        if (name[0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
            st = FAIL(e, ST_INVALID, "%s/%s: path too long", dir, name);
        else if (fs_is_dir(path))
            st = walk_rows(l, path, parquet, depth + 1, e);
        else if (parquet && str_has_suffix(name, ".parquet"))
            st = load_parquet(l, path, split, e);
        else if (!parquet && (str_has_suffix(name, ".jsonl") || str_has_suffix(name, ".jsonl.zst")))
            st = load_jsonl(l, path, split, e);
    }
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
    return st;
}

static enum status load_rows(struct loader *l, const char *dir, struct err *e) {
    TRY(walk_rows(l, dir, false, 0, e));
    return l->n == 0 ? walk_rows(l, dir, true, 0, e) : ST_OK;
}

/* Returns whether a name is a file's. A file that does not exist is not the name of a data set. */
static bool is_row_file(const char *name) {
    return str_has_suffix(name, ".jsonl") || str_has_suffix(name, ".jsonl.zst") || str_has_suffix(name, ".parquet");
}

/* Loads a data set of the Hub by its name. It is downloaded, unless it is in the cache, and then read like any
 * folder. */
static enum status load_hub(struct loader *l, const char *name, struct err *e) {
    const struct hub_request r = {.kind = HUB_DATASET, .name = name};
    CLEANUP_FREE char *dir = NULL;
    if (hub_open(&r, &dir, e) != ST_OK)
        return err_note(e, "%s: no file or folder of that name, and as a data set on the Hub", name);
    return load_dir(l, dir, e);
}

/* Loads the built-in set, which problems/index.jsonl lists. The code lies beside it in levelN/NAME.py. */
static enum status load_builtin(struct loader *l, struct err *e) {
    char path[MAX_PATH], file[MAX_PATH + 256];
    struct arena *a = &l->set->arena;
    struct jsonl_reader *r = NULL;
    snprintf(path, sizeof path, "%s/problems/index.jsonl", home_dir());
    TRY(jsonl_open(path, MAX_LINE_BYTES, &r, e));
    enum status st = ST_OK;
    for (;;) {
        const char *line, *key, *name, *split, *ops;
        size_t len;
        TRY_GOTO(jsonl_next(r, &line, &len, e), done);
        if (!line) break;
        char where[MAX_PATH + 32];
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(r));
        CLEANUP_JSON json_t *row = NULL;
        TRY_GOTO(js_parse(line, len, where, &row, e), done);
        TRY_GOTO(js_get_str(row, where, "key", &key, e), done);
        TRY_GOTO(js_get_str(row, where, "name", &name, e), done);
        TRY_GOTO(js_get_str(row, where, "split", &split, e), done);
        TRY_GOTO(js_get_str(row, where, "ops", &ops, e), done);
        if (strstr(key, "..")) {
            st = FAIL(e, ST_PARSE, "%s: key: expected levelN/NAME, got \"%s\"", where, key);
            goto done;
        }
        snprintf(file, sizeof file, "%s/problems/%s.py", home_dir(), key);
        TRY_GOTO(load_py(l, file, key, 0, e), done);
        struct problem *p = &l->items[l->n - 1];
        TRY_GOTO(small_int(row, where, "level", &p->level, e), done);
        TRY_GOTO(small_int(row, where, "problem_id", &p->problem_id, e), done);
        TRY_GOTO(small_int(row, where, "difficulty", &p->difficulty, e), done);
        TRY_GOTO(parse_split(split, where, &p->split, e), done);
        p->name = arena_strdup(a, name);
        p->ops = arena_strdup(a, ops);
    }
    if (l->n == 0) st = FAIL(e, ST_INVALID, "%s: no problems", path);
done:
    jsonl_close(r);
    return st;
}

static int by_key(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static enum status check_unique(const struct loader *l, const char *source, struct err *e) {
    const char **keys = xcalloc(l->n, sizeof *keys);
    enum status st = ST_OK;
    for (size_t i = 0; i < l->n; i++) keys[i] = l->items[i].key;
    qsort(keys, l->n, sizeof *keys, by_key);
    for (size_t i = 1; i < l->n && st == ST_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            st = FAIL(e, ST_INVALID, "%s: two problems have the key \"%s\"", source, keys[i]);
    free(keys);
    return st;
}

enum status problem_set_load(const char *source, struct problem_set *out, struct err *e) {
    *out = (struct problem_set){.arena = ARENA_INIT};
    struct loader l = {.set = out};
    const char *root = getenv("KERNELBENCH_ROOT");
    if (!source || !*source) source = root && *root ? root : "builtin";
    enum status st;
    if (strcmp(source, "builtin") == 0)
        st = load_builtin(&l, e);
    else if (fs_is_dir(source))
        st = load_dir(&l, source, e);
    else if (!fs_is_file(source) && hub_is_name(source) && !is_row_file(source) && !str_has_suffix(source, ".py"))
        st = load_hub(&l, source, e);
    else if (!fs_is_file(source))
        st = FAIL(e, ST_IO, "%s: no such file or folder (nor \"builtin\", nor a data set ORGANISATION/NAME)", source);
    else if (str_has_suffix(source, ".py"))
        st = load_py(&l, source, NULL, 0, e);
    else if (str_has_suffix(source, ".jsonl") || str_has_suffix(source, ".jsonl.zst"))
        st = load_jsonl(&l, source, SPLIT_TRAIN, e);
    else if (str_has_suffix(source, ".parquet"))
        st = load_parquet(&l, source, SPLIT_TRAIN, e);
    else
        st = FAIL(e, ST_UNSUPPORTED, "%s: expected \"builtin\", a .py, .jsonl or .parquet file, or a folder", source);
    if (st == ST_OK) st = check_unique(&l, source, e);
    if (st == ST_OK) {
        out->count = l.n;
        out->items = arena_array(&out->arena, struct problem, l.n);
        memcpy(out->items, l.items, sizeof *l.items * l.n);
    } else {
        problem_set_free(out);
    }
    free(l.items);
    return st;
}

/* Finds the line of a module that says how large its batch is: its number and what follows that. */
static const char *find_batch(const char *code, int64_t *batch, const char **end) {
    static const char *const names[] = {"batch_size = ", "batch = ", "num_rows = "};
    for (const char *line = code; line; line = strchr(line, '\n'), line += line != NULL)
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            if (!str_has_prefix(line, names[i])) continue;
            const char *number = line + strlen(names[i]);
            char text[16];
            const size_t n = strspn(number, "0123456789");
            *end = number + n;
            snprintf(text, sizeof text, "%.*s", (int)n, number);
            if (n < sizeof text && (**end == '\n' || **end == 0) && parse_i64(text, batch)) return number;
        }
    return NULL;
}

size_t problem_set_enlarge(struct problem_set *s, int64_t factor) {
    size_t n = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct problem *p = &s->items[i];
        int64_t batch = 0;
        const char *end = NULL, *number = find_batch(p->code, &batch, &end);
        if (!number || factor < 2 || batch < 1 || batch > INT32_MAX / factor) continue;
        p->code =
            arena_printf(&s->arena, "%.*s%lld%s", (int)(number - p->code), p->code, (long long)(batch * factor), end);
        p->key = arena_printf(&s->arena, "%s@%lld", p->key, (long long)factor);
        n++;
    }
    return n;
}

void problem_set_free(struct problem_set *s) {
    arena_free(&s->arena);
    *s = (struct problem_set){.arena = ARENA_INIT};
}

const struct problem *problem_find(const struct problem_set *s, const char *key) {
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->items[i].key, key) == 0) return &s->items[i];
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->items[i].name, key) == 0) return &s->items[i];
    const char *slash = strchr(key, '/');
    if (!slash || slash - key > 9) return NULL;
    char level[16];
    int64_t lv, id;
    snprintf(level, sizeof level, "%.*s", (int)(slash - key), key);
    if (!parse_i64(level, &lv) || !parse_i64(slash + 1, &id)) return NULL;
    for (size_t i = 0; i < s->count; i++)
        if (s->items[i].level == lv && s->items[i].problem_id == id) return &s->items[i];
    return NULL;
}
