#include "rl/run/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "io/json.h"
#include "io/jsonl.h"

enum { LINE_MAX_BYTES = 64 << 20 };

static void put_sample(const struct eval_samples *s, const struct eval_sample *x, struct str *out) {
    struct str verdict = STR_INIT;
    const struct problem *p = s->problems[x->problem];
    verdict_to_json(&x->verdict, &verdict);
    js_begin(out, NULL, '{');
    js_put_str(out, "problem", p->key);
    js_put_str(out, "code", digest_of(p->code, strlen(p->code)).hex);
    js_put_i64(out, "sample", x->sample);
    js_put_i64(out, "turn", x->turn);
    js_put_i64(out, "tokens", x->tokens);
    js_put_bool(out, "format_ok", x->format_ok);
    js_put_bool(out, "present", x->present);
    str_adds(out, ",\"verdict\":");
    str_add(out, str_c(&verdict), verdict.len);
    js_put_str(out, "kernel", x->kernel);
    js_put_str(out, "text", x->text);
    js_end(out, '}');
    str_addc(out, '\n');
    str_free(&verdict);
}

static void push(struct eval_samples *s, const struct eval_sample *x) {
    if (s->n == s->cap) s->items = xrealloc(s->items, (size_t)(s->cap = s->cap ? 2 * s->cap : 256) * sizeof *s->items);
    s->items[s->n] = *x;
    s->items[s->n].kernel = x->kernel ? arena_strdup(&s->arena, x->kernel) : NULL;
    s->items[s->n++].text = arena_strdup(&s->arena, x->text ? x->text : "");
}

static enum status read_sample(struct eval_samples *s, const json_t *row, const char *where, struct err *e) {
    struct eval_sample x = {.problem = -1};
    const char *key, *code, *kernel = NULL, *text;
    int64_t sample, turn, tokens;
    json_t *verdict;
    TRY(js_get_str(row, where, "problem", &key, e));
    TRY(js_get_str(row, where, "code", &code, e));
    TRY(js_get_i64(row, where, "sample", &sample, e));
    TRY(js_get_i64(row, where, "turn", &turn, e));
    TRY(js_get_i64(row, where, "tokens", &tokens, e));
    TRY(js_get_bool(row, where, "format_ok", &x.format_ok, e));
    TRY(js_get_bool(row, where, "present", &x.present, e));
    TRY(js_get_object(row, where, "verdict", &verdict, e));
    TRY(verdict_from_json(verdict, where, &x.verdict, e));
    TRY(js_opt_str(row, where, "kernel", &kernel, e));
    TRY(js_get_str(row, where, "text", &text, e));
    for (int i = 0; i < s->n_problems && x.problem < 0; i++)
        if (strcmp(s->problems[i]->key, key) == 0) x.problem = i;
    if (x.problem < 0) return ST_OK; /* of a larger choice of problems; it stays in the file */
    const char *now = s->problems[x.problem]->code;
    if (!digest_matches(code, now, strlen(now)))
        return FAIL(
            e, ST_INVALID,
            "%s: problem %s has changed since this evaluation was begun; give another output_path, or remove %s to "
            "begin again",
            where, key, s->path);
    x.sample = (int)sample;
    x.turn = (int)turn;
    x.tokens = (int)tokens;
    x.kernel = kernel;
    x.text = text;
    push(s, &x);
    return ST_OK;
}

/* The first line says what the file is and what was asked for; the line in which the settings differ is shown. */
static enum status check_header(const json_t *row, const char *path, const char *settings, struct err *e) {
    const char *old;
    int64_t version;
    TRY(js_get_i64(row, path, "version", &version, e));
    TRY(js_get_str(row, path, "settings", &old, e));
    if (version != 1) return FAIL(e, ST_UNSUPPORTED, "%s: version %lld, expected 1", path, (long long)version);
    const char *a = old, *b = settings;
    while (*a || *b) {
        const size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n) != 0)
            return FAIL(
                e, ST_INVALID,
                "%s was begun with other settings (\"%.*s\", now \"%.*s\"); give another output_path, or remove it "
                "to begin again",
                path, (int)n, a, (int)m, b);
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    return ST_OK;
}

static enum status read_file(struct eval_samples *s, const char *settings, bool *empty, struct err *e) {
    struct jsonl_reader *r;
    enum status st;
    *empty = true;
    if (!fs_is_file(s->path)) return ST_OK;
    TRY(jsonl_open(s->path, LINE_MAX_BYTES, &r, e));
    for (;;) {
        const char *line;
        size_t n;
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        char where[4200];
        snprintf(where, sizeof where, "%s:%lld", s->path, (long long)jsonl_line(r));
        CLEANUP_JSON json_t *row = NULL;
        if ((st = js_parse(line, n, where, &row, e)) != ST_OK) {
            if (jsonl_is_torn(r)) st = ST_OK; /* what a killed writer left; the next append removes it */
            break;
        }
        st = *empty ? check_header(row, s->path, settings, e) : read_sample(s, row, where, e);
        *empty = false;
        if (st != ST_OK) break;
    }
    jsonl_close(r);
    return st;
}

enum status eval_samples_open(const char *path, const char *settings, const struct problem *const *problems,
                              int n_problems, struct eval_samples *out, struct err *e) {
    *out = (struct eval_samples){.arena = ARENA_INIT, .n_problems = n_problems, .path = xstrdup(path)};
    out->problems = xcalloc((size_t)n_problems + 1, sizeof *out->problems);
    memcpy(out->problems, problems, (size_t)n_problems * sizeof *problems);
    bool empty;
    CLEANUP_STR struct str line = STR_INIT;
    enum status st = read_file(out, settings, &empty, e);
    if (st == ST_OK) st = jsonl_append_open(path, &out->file, NULL, e);
    if (st == ST_OK && empty) {
        js_begin(&line, NULL, '{');
        js_put_i64(&line, "version", 1);
        js_put_str(&line, "settings", settings);
        js_end(&line, '}');
        st = jsonl_append(out->file, line.p, line.len, e);
    }
    if (st != ST_OK) eval_samples_close(out);
    return st;
}

enum status eval_samples_add(struct eval_samples *s, const struct eval_sample *items, int n, struct err *e) {
    CLEANUP_STR struct str lines = STR_INIT;
    for (int i = 0; i < n; i++) {
        put_sample(s, &items[i], &lines);
        push(s, &items[i]);
    }
    if (n == 0 || !s->file) return ST_OK;
    TRY(jsonl_append(s->file, lines.p, lines.len, e));
    return jsonl_sync(s->file, e);
}

void eval_samples_close(struct eval_samples *s) {
    jsonl_append_close(s->file);
    arena_free(&s->arena);
    free(s->problems);
    free(s->items);
    free(s->path);
    *s = (struct eval_samples){0};
}

int eval_samples_of(const struct eval_samples *s, int problem) {
    int n = 0;
    for (int64_t i = 0; i < s->n; i++) n += s->items[i].problem == problem && s->items[i].turn == 0;
    return n;
}
