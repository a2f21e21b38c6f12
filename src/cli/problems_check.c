#include "cli/problems.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/pychild.h"
#include "rag/module_text.h"

enum { OUTPUT_MAX_BYTES = 64 << 20 };

/* What check.py says of the problems, as JSON lines in their order. */
static enum status run_references(const struct problem *const *problems, size_t n, double timeout_s, struct str *out,
                                  struct err *e) {
    struct str lines = STR_INIT;
    char path[] = "/tmp/kernelrl_problems_XXXXXX", limit[32];
    const int fd = mkstemp(path);
    if (fd < 0) return FAIL(e, ST_IO, "%s: cannot be made", path);
    for (size_t i = 0; i < n; i++) {
        js_begin(&lines, NULL, '{');
        js_put_str(&lines, "key", problems[i]->key);
        js_put_str(&lines, "code", problems[i]->code);
        js_end(&lines, '}');
        str_addc(&lines, '\n');
    }
    snprintf(limit, sizeof limit, "%g", timeout_s);
    const char *const args[] = {path, limit, NULL};
    enum status st = fs_write_all(fd, str_c(&lines), lines.len) ? ST_OK : FAIL(e, ST_IO, "%s: cannot be written", path);
    if (st == ST_OK) st = pychild_run("check.py", args, "problems check", "PyTorch", OUTPUT_MAX_BYTES, out, e);
    close(fd);
    unlink(path);
    str_free(&lines);
    return st;
}

/* Calls fn for each line of check.py's. */
typedef enum status finding_fn(void *ctx, size_t i, const json_t *row, struct err *e);
static enum status each_finding(const struct str *text, size_t n, finding_fn *fn, void *ctx, struct err *e) {
    struct jsonl_reader *r = jsonl_open_memory("check.py", str_c(text), text->len, false, OUTPUT_MAX_BYTES);
    enum status st = ST_OK;
    size_t i = 0;
    for (; st == ST_OK; i++) {
        const char *line;
        size_t len;
        if ((st = jsonl_next(r, &line, &len, e)) != ST_OK || !line) break;
        CLEANUP_JSON json_t *row = NULL;
        if (i == n)
            st = FAIL(e, ST_WORKER, "check.py: more than %zu lines", n);
        else if ((st = js_parse(line, len, "check.py", &row, e)) == ST_OK)
            st = fn(ctx, i, row, e);
    }
    jsonl_close(r);
    if (st == ST_OK && i < n) st = FAIL(e, ST_WORKER, "check.py: %zu lines for %zu problems", i, n);
    return st;
}

/* ---- check --------------------------------------------------------------------------------------------------------*/

struct checking {
    bool json;
    int bad;
};

static enum status print_finding(void *ctx, size_t i, const json_t *row, struct err *e) {
    struct checking *c = ctx;
    const char *key, *name;
    json_t *findings, *text;
    (void)i;
    TRY(js_get_str(row, "check.py", "key", &key, e));
    TRY(js_get_object(row, "check.py", "findings", &findings, e));
    if (c->json) {
        struct str s = STR_INIT;
        js_put_json(&s, NULL, row);
        puts(str_c(&s));
        str_free(&s);
    }
    c->bad += json_object_size(findings) > 0;
    json_object_foreach(findings, name, text) {
        if (!c->json) printf("%-40s %-16s %s\n", key, name, json_string_value(text) ? json_string_value(text) : "");
    }
    return ST_OK;
}

enum status problems_check(const struct problem *const *problems, size_t n, double timeout_s, bool json, int *bad,
                           struct err *e) {
    CLEANUP_STR struct str out = STR_INIT;
    struct checking c = {.json = json};
    TRY(run_references(problems, n, timeout_s, &out, e));
    TRY(each_finding(&out, n, print_finding, &c, e));
    *bad = c.bad;
    if (!json) printf("%zu problems, %d with findings\n", n, c.bad);
    return ST_OK;
}

/* ---- label --------------------------------------------------------------------------------------------------------*/

struct label {
    int difficulty, nn, lines, ops;
    double eager_ms; /* NaN: not measured, or it does not run */
};

static void read_text(const char *code, struct label *l) {
    struct arena a = ARENA_INIT;
    struct module_text m;
    for (const char *p = code; (p = strstr(p, "nn.")) != NULL; p += 3) l->nn++;
    for (const char *p = code; *p;) {
        const size_t n = strcspn(p, "\n");
        l->lines += strspn(p, " \t\r") < n;
        p += n + (p[n] == '\n');
    }
    module_text_read(code, strlen(code), &a, &m);
    l->ops = m.n_ops;
    arena_free(&a);
}

static enum status take_time(void *ctx, size_t i, const json_t *row, struct err *e) {
    struct label *l = ctx;
    l[i].eager_ms = NAN;
    return js_opt_f64(row, "check.py", "eager_ms", &l[i].eager_ms, e);
}

/* Thirds of those that were measured; what does not run has no label (0). */
static void label_by_cost(struct label *l, size_t n) {
    CLEANUP_FREE double *t = xmalloc((n + 1) * sizeof *t);
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(l[i].eager_ms)) t[used++] = l[i].eager_ms;
    qsort(t, used, sizeof *t, ascending_f64);
    for (size_t i = 0; i < n; i++)
        l[i].difficulty = isnan(l[i].eager_ms)              ? 0
                          : l[i].eager_ms < t[used / 3]     ? 1
                          : l[i].eager_ms < t[used * 2 / 3] ? 2
                                                            : 3;
}

enum status problems_label(const struct problem *const *problems, size_t n, enum label_method how, double timeout_s,
                           const char *path, struct err *e) {
    CLEANUP_FREE struct label *l = xcalloc(n + 1, sizeof *l);
    CLEANUP_STR struct str out = STR_INIT, checked = STR_INIT;
    for (size_t i = 0; i < n; i++) {
        l[i].eager_ms = NAN;
        read_text(problems[i]->code, &l[i]);
        if (how == LABEL_TEXT)
            l[i].difficulty = l[i].nn <= 1 && l[i].lines < 30 ? 1 : l[i].nn <= 3 && l[i].lines < 80 ? 2 : 3;
        else if (how == LABEL_OPERATORS)
            l[i].difficulty = l[i].ops <= 1 ? 1 : l[i].ops <= 5 ? 2 : 3;
    }
    if (how == LABEL_COST) {
        TRY(run_references(problems, n, timeout_s, &checked, e));
        TRY(each_finding(&checked, n, take_time, l, e));
        label_by_cost(l, n);
    }
    for (size_t i = 0; i < n; i++) {
        js_begin(&out, NULL, '{');
        js_put_str(&out, "key", problems[i]->key);
        js_put_i64(&out, "problem_id", problems[i]->problem_id);
        js_put_i64(&out, "difficulty", l[i].difficulty);
        js_put_i64(&out, "nn", l[i].nn);
        js_put_i64(&out, "lines", l[i].lines);
        js_put_i64(&out, "operators", l[i].ops);
        if (how == LABEL_COST) js_put_f64(&out, "eager_ms", l[i].eager_ms);
        js_end(&out, '}');
        str_addc(&out, '\n');
    }
    if (path) return fs_write_atomic(path, str_c(&out), out.len, e);
    fputs(str_c(&out), stdout);
    return ST_OK;
}
