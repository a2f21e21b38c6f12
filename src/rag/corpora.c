#include "rag/corpora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fs.h"
#include "io/hub.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/parquet.h"

enum { MAX_PATH = 4096, MAX_LINE_BYTES = 64 << 20, MAX_DEPTH = 12 };
#define MAX_PARQUET_BYTES ((size_t)4 << 30)

static const struct {
    const char *name, *repository, *backend;
} named[] = {
    {"kernelbook", "GPUMODE/KernelBook", "triton"},
    {"sakana", "SakanaAI/AI-CUDA-Engineer-Archive", "cuda"},
};

/* The columns that are read of a Parquet file. Sakana's profiles are ten times as large as all the rest. */
static const char columns[] = "pytorch_code,kernel_code,backend,source,name,speedup,correct,"
                              "python_code,triton_code,entry_point,module_name,"
                              "PyTorch_Code_Module,CUDA_Code,Correct,Level_ID,Op_Name,Kernel_Name,CUDA_Speedup_Native";

struct corpus_reader {
    const struct corpus_filter *filter;
    const volatile bool *cancel;
    corpus_fn *fn;
    void *ctx;
    struct corpus_counts *n;
    const char *label; /* The file's name. It is the source of own rows that name none. */
};

/* ---- one row ------------------------------------------------------------------------------------------------------*/

static bool has(const json_t *row, const char *key) { return json_object_get(row, key) != NULL; }

/* Reads a text column. null counts as empty. */
static enum status text(const json_t *row, const char *where, const char *key, const char **out, struct err *e) {
    *out = "";
    return js_opt_str(row, where, key, out, e);
}

/* Reads a number. The archive's columns are numbers, texts of numbers, or null, depending on who converted it. */
static double number(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    double x;
    if (json_is_number(v)) return json_number_value(v);
    if (json_is_string(v) && parse_f64(json_string_value(v), &x)) return x;
    return NAN;
}

static bool is_true(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    if (json_is_string(v))
        return strcmp(json_string_value(v), "True") == 0 || strcmp(json_string_value(v), "true") == 0;
    return json_is_true(v) || (json_is_number(v) && json_number_value(v) != 0);
}

/* Returns the level of "level_2", "2" or 2; 0 for anything else. */
static int level_of(const json_t *row) {
    const json_t *v = json_object_get(row, "Level_ID");
    const char *s = json_string_value(v);
    if (json_is_number(v)) return (int)json_number_value(v);
    const char *digits = s ? s + strcspn(s, "0123456789") : "";
    return *digits && digits[1] == 0 ? *digits - '0' : 0;
}

static enum status own_row(const json_t *row, const char *where, const struct corpus_reader *rd, struct rag_record *r,
                           struct err *e) {
    TRY(js_get_str(row, where, "pytorch_code", &r->pytorch_code, e));
    TRY(js_get_str(row, where, "kernel_code", &r->kernel_code, e));
    TRY(js_get_str(row, where, "backend", &r->backend, e));
    r->source = rd->label;
    r->name = "";
    TRY(js_opt_str(row, where, "source", &r->source, e));
    TRY(js_opt_str(row, where, "name", &r->name, e));
    TRY(js_opt_f64(row, where, "speedup", &r->speedup, e));
    return js_opt_bool(row, where, "correct", &r->correct, e);
}

static enum status kernelbook_row(const json_t *row, const char *where, struct rag_record *r, struct err *e) {
    r->backend = "triton";
    r->source = "kernelbook";
    TRY(text(row, where, "python_code", &r->pytorch_code, e));
    TRY(text(row, where, "triton_code", &r->kernel_code, e));
    TRY(text(row, where, "entry_point", &r->name, e));
    return *r->name ? ST_OK : text(row, where, "module_name", &r->name, e);
}

static enum status sakana_row(const json_t *row, const char *where, struct rag_record *r, struct err *e) {
    r->backend = "cuda";
    r->source = "sakana";
    r->speedup = number(row, "CUDA_Speedup_Native");
    r->correct = is_true(row, "Correct");
    TRY(text(row, where, "PyTorch_Code_Module", &r->pytorch_code, e));
    TRY(text(row, where, "CUDA_Code", &r->kernel_code, e));
    TRY(text(row, where, "Op_Name", &r->name, e));
    return *r->name ? ST_OK : text(row, where, "Kernel_Name", &r->name, e);
}

/* Takes a record. A row that is kept out is counted under its first reason. */
static enum status take(struct corpus_reader *rd, const struct rag_record *r, int level, struct err *e) {
    const struct corpus_filter *f = rd->filter;
    struct corpus_counts *n = rd->n;
    n->rows++;
    if ((f->backend && strcmp(f->backend, r->backend) != 0) ||
        (level >= 0 && f->sakana_levels && !(level < 32 && f->sakana_levels >> level & 1))) {
        n->elsewhere++;
    } else if (!r->pytorch_code[strspn(r->pytorch_code, " \t\r\n")] ||
               !r->kernel_code[strspn(r->kernel_code, " \t\r\n")]) {
        n->empty++;
    } else if (strlen(r->pytorch_code) > CORPUS_MAX_MODULE_CHARS || strlen(r->kernel_code) > CORPUS_MAX_KERNEL_CHARS) {
        n->too_long++;
    } else if (!r->correct && !f->include_incorrect) {
        n->incorrect++;
    } else {
        n->taken++;
        return rd->fn(rd->ctx, r, e);
    }
    return ST_OK;
}

static enum status read_row(struct corpus_reader *rd, const json_t *row, const char *where, struct err *e) {
    struct rag_record r = {.speedup = NAN, .correct = true};
    int level = -1;
    if (!json_is_object(row)) return FAIL(e, ST_PARSE, "%s: expected an object", where);
    if (has(row, "pytorch_code") && has(row, "kernel_code") && has(row, "backend")) {
        TRY(own_row(row, where, rd, &r, e));
    } else if (has(row, "python_code") && has(row, "triton_code")) {
        TRY(kernelbook_row(row, where, &r, e));
    } else if (has(row, "PyTorch_Code_Module") && has(row, "CUDA_Code")) {
        TRY(sakana_row(row, where, &r, e));
        level = level_of(row);
    } else {
        return FAIL(e, ST_PARSE,
                    "%s: expected the columns pytorch_code, kernel_code and backend; or python_code and triton_code; "
                    "or PyTorch_Code_Module and CUDA_Code",
                    where);
    }
    return take(rd, &r, level, e);
}

/* ---- files --------------------------------------------------------------------------------------------------------*/

typedef enum status row_fn(struct corpus_reader *rd, const json_t *row, const char *where, struct err *e);

/* Reads all rows and closes j. */
static enum status each_row(struct corpus_reader *rd, struct jsonl_reader *j, const char *path, row_fn *fn,
                            struct err *e) {
    enum status st;
    for (;;) {
        const char *line;
        size_t len;
        if ((st = jsonl_next(j, &line, &len, e)) != ST_OK || !line) break;
        char where[MAX_PATH + 32];
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(j));
        CLEANUP_JSON json_t *row = NULL;
        if ((st = js_parse(line, len, where, &row, e)) != ST_OK || (st = fn(rd, row, where, e)) != ST_OK) break;
        if (rd->cancel && *rd->cancel) {
            st = FAIL(e, ST_CANCELLED, "interrupted");
            break;
        }
    }
    jsonl_close(j);
    return st;
}

static bool is_lines(const char *name) { return str_has_suffix(name, ".jsonl") || str_has_suffix(name, ".jsonl.zst"); }

static enum status read_file(struct corpus_reader *rd, const char *path, struct err *e) {
    struct jsonl_reader *j;
    const char *base = strrchr(path, '/');
    rd->label = base ? base + 1 : path;
    if (!str_has_suffix(path, ".parquet")) {
        TRY(jsonl_open(path, MAX_LINE_BYTES, &j, e));
        return each_row(rd, j, path, read_row, e);
    }
    CLEANUP_STR struct str rows = STR_INIT;
    TRY(parquet_to_jsonl(path, columns, MAX_PARQUET_BYTES, &rows, e));
    j = jsonl_open_memory(path, str_c(&rows), rows.len, false, MAX_LINE_BYTES);
    return each_row(rd, j, path, read_row, e);
}

/* The generator's folder has modules by key, and verified right answers to them. */
struct module {
    const char *key, *code;
};
struct generated {
    struct arena arena;
    struct module *items;
    size_t n, cap;
};

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct module *)a)->key, ((const struct module *)b)->key);
}

static enum status keep_module(struct corpus_reader *rd, const json_t *row, const char *where, struct err *e) {
    struct generated *g = rd->ctx;
    const char *key, *code;
    TRY(js_get_str(row, where, "key", &key, e));
    TRY(js_get_str(row, where, "code", &code, e));
    if (g->n == g->cap) g->items = xrealloc(g->items, (g->cap = g->cap ? 2 * g->cap : 256) * sizeof *g->items);
    g->items[g->n].key = arena_strdup(&g->arena, key);
    g->items[g->n++].code = arena_strdup(&g->arena, code);
    return ST_OK;
}

struct answers {
    struct corpus_reader *rd; /* The reader that gets the records. */
    const struct generated *g;
};

static enum status read_answer(struct corpus_reader *inner, const json_t *row, const char *where, struct err *e) {
    const struct answers *x = inner->ctx;
    struct rag_record r = {.backend = "c", .source = "generator", .speedup = NAN, .correct = true};
    const char *key, *outcome = NULL, *broken = NULL;
    TRY(js_get_str(row, where, "key", &key, e));
    TRY(js_get_str(row, where, "source", &r.kernel_code, e));
    TRY(js_opt_str(row, where, "outcome", &outcome, e));
    TRY(js_opt_str(row, where, "broken", &broken, e));
    TRY(js_opt_f64(row, where, "speedup", &r.speedup, e));
    const struct module wanted = {.key = key}, *found = NULL;
    if (x->g->n) found = bsearch(&wanted, x->g->items, x->g->n, sizeof wanted, by_key);
    if (!found) return FAIL(e, ST_PARSE, "%s: key: \"%s\" is not in problems.jsonl beside it", where, key);
    r.name = found->key;
    r.pytorch_code = found->code;
    /* It is verified, nothing less. */
    r.correct = !broken && outcome && strcmp(outcome, "correct") == 0;
    return take(x->rd, &r, -1, e);
}

static enum status read_generated(struct corpus_reader *rd, const char *problems, const char *answers, struct err *e) {
    struct generated g = {.arena = ARENA_INIT};
    struct answers x = {rd, &g};
    struct corpus_reader modules = {.ctx = &g, .cancel = rd->cancel}, inner = {.ctx = &x, .cancel = rd->cancel};
    struct jsonl_reader *j;
    enum status st = jsonl_open(problems, MAX_LINE_BYTES, &j, e);
    if (st == ST_OK) st = each_row(&modules, j, problems, keep_module, e);
    if (g.n) qsort(g.items, g.n, sizeof *g.items, by_key);
    if (st == ST_OK) st = jsonl_open(answers, MAX_LINE_BYTES, &j, e);
    if (st == ST_OK) st = each_row(&inner, j, answers, read_answer, e);
    free(g.items);
    arena_free(&g.arena);
    return st;
}

static enum status read_folder(struct corpus_reader *rd, const char *dir, int depth, int *files, struct err *e) {
    char path[MAX_PATH], beside[MAX_PATH];
    if (depth > MAX_DEPTH) return FAIL(e, ST_INVALID, "%s: folders nested too deep", dir);
    snprintf(path, sizeof path, "%s/problems.jsonl", dir);
    snprintf(beside, sizeof beside, "%s/answers.jsonl", dir);
    if (fs_is_file(path) && fs_is_file(beside)) {
        ++*files;
        return read_generated(rd, path, beside, e);
    }
    char **names = NULL;
    size_t n = 0;
    TRY(fs_list(dir, &names, &n, e));
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        if (names[i][0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) >= (int)sizeof path) {
            st = FAIL(e, ST_INVALID, "%s/%s: path too long", dir, names[i]);
        } else if (fs_is_dir(path)) {
            st = read_folder(rd, path, depth + 1, files, e);
        } else if (is_lines(names[i]) || str_has_suffix(names[i], ".parquet")) {
            ++*files;
            st = read_file(rd, path, e);
        }
    }
    for (size_t i = 0; i < n; i++) free(names[i]);
    free(names);
    return st;
}

const char *corpus_backend(const char *what) {
    for (size_t i = 0; i < ARRAY_LEN(named); i++)
        if (strcmp(what, named[i].name) == 0) return named[i].backend;
    return NULL;
}

enum status corpus_read(const char *what, const struct corpus_filter *f, const volatile bool *cancel, corpus_fn *fn,
                        void *ctx, struct corpus_counts *out, struct err *e) {
    const char *path = what;
    CLEANUP_FREE char *dir = NULL;
    *out = (struct corpus_counts){0};
    for (size_t i = 0; i < ARRAY_LEN(named); i++) {
        if (strcmp(what, named[i].name) != 0) continue;
        const struct hub_request r = {.kind = HUB_DATASET, .name = named[i].repository, .cancel = cancel};
        if (hub_open(&r, &dir, e) != ST_OK) return err_note(e, "corpus %s", what);
        path = dir;
    }
    struct corpus_reader rd = {.filter = f, .cancel = cancel, .fn = fn, .ctx = ctx, .n = out};
    int files = 0;
    if (fs_is_dir(path))
        TRY(read_folder(&rd, path, 0, &files, e));
    else if (fs_is_file(path) && (is_lines(path) || str_has_suffix(path, ".parquet")))
        TRY(read_file(&rd, path, e));
    else
        return FAIL(
            e, ST_INVALID,
            "corpus %s: expected kernelbook, sakana, generator, a .jsonl, .jsonl.zst or .parquet file, or a folder "
            "of such files",
            what);
    return out->rows > 0 ? ST_OK : FAIL(e, ST_INVALID, "corpus %s: not a single row", what);
}
