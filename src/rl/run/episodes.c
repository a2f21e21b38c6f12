#include "rl/run/episodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "io/json.h"
#include "io/jsonl.h"

enum { ROW_MAX_BYTES = 1 << 20, BATCH_BYTES = 1 << 20 };

struct episodes {
    char *index, *traces; /* paths */
    struct jsonl_writer *w;
};

/* ---- a row --------------------------------------------------------------------------------------------------------*/

/* The keys that are taken over as they are, where the line has them. */
static const char *const of_line[] = {"step", "group",  "sample",    "turn",   "role",   "problem",
                                      "stop", "tokens", "format_ok", "reward", "return", "advantage"};
static const char *const of_verdict[] = {"outcome", "class", "passed_stage", "speedup", "speedup_low", "speedup_high"};

static void copy_keys(struct str *out, const json_t *from, const char *const *keys, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(from, keys[i]);
        if (v) js_put_json(out, keys[i], v);
    }
}

/* Token ids and log-probabilities are nine tenths of a line and stand last in it. They are left out of what is parsed:
 * returns how many bytes stand in front of them, or n. No text in a line holds this mark, because quotes in texts are
 * escaped. */
static size_t without_tokens(const char *line, size_t n) {
    static const char *const marks[] = {",\"prompt_ids\":[", ",\"ids\":["};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        const char *at = mem_find(line, n, marks[i], strlen(marks[i]));
        if (at) n = (size_t)(at - line);
    }
    return n;
}

enum status episode_row(const char *line, size_t n, int64_t frame, int64_t at, const char *where, struct str *out,
                        struct err *e) {
    CLEANUP_STR struct str head = STR_INIT;
    CLEANUP_JSON json_t *row = NULL;
    const size_t used = without_tokens(line, n);
    int64_t step;
    str_add(&head, line, used);
    if (used < n) str_addc(&head, '}');
    TRY(js_parse(str_c(&head), head.len, where, &row, e));
    TRY(js_get_i64(row, where, "step", &step, e));
    js_begin(out, NULL, '{');
    js_put_i64(out, "frame", frame);
    js_put_i64(out, "at", at);
    js_put_i64(out, "bytes", (int64_t)n);
    copy_keys(out, row, of_line, ARRAY_LEN(of_line));
    const json_t *verdict = json_object_get(row, "verdict");
    if (verdict) copy_keys(out, verdict, of_verdict, ARRAY_LEN(of_verdict));
    js_end(out, '}');
    str_addc(out, '\n');
    return ST_OK;
}

/* ---- the file -----------------------------------------------------------------------------------------------------*/

/* Makes the rows of all frames from this byte of the traces on. They are appended in batches, to bound memory. */
static enum status index_from(struct episodes *x, int64_t frame, struct err *e) {
    CLEANUP_STR struct str rows = STR_INIT;
    struct jsonl_reader *r;
    enum status st;
    if (!fs_is_file(x->traces)) return ST_OK;
    TRY(jsonl_open(x->traces, TRACE_LINE_MAX_BYTES, &r, e));
    st = jsonl_start_at(r, frame, e);
    while (st == ST_OK) {
        const char *line;
        size_t n;
        int64_t begin, at;
        char where[4200];
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", x->traces, (long long)jsonl_line(r));
        jsonl_frame(r, &begin, &at);
        st = episode_row(line, n, begin, at, where, &rows, e);
        if (st == ST_OK && rows.len >= BATCH_BYTES) {
            st = jsonl_append(x->w, rows.p, rows.len, e);
            str_clear(&rows);
        }
    }
    if (st == ST_OK && rows.len > 0) st = jsonl_append(x->w, rows.p, rows.len, e);
    jsonl_close(r);
    return st;
}

static enum status make_anew(struct episodes *x, struct err *e) {
    char head[64];
    const int n = snprintf(head, sizeof head, "{\"format\":\"episodes\",\"version\":%d}\n", EPISODES_VERSION);
    TRY(jsonl_append_cut(x->w, 0, e));
    TRY(jsonl_append(x->w, head, (size_t)n, e));
    return index_from(x, 0, e);
}

static bool is_head(const char *line, size_t n, const char *where) {
    CLEANUP_JSON json_t *head = NULL;
    struct err ignored;
    const char *format;
    int64_t version;
    return js_parse(line, n, where, &head, &ignored) == ST_OK &&
           js_get_str(head, where, "format", &format, &ignored) == ST_OK && strcmp(format, "episodes") == 0 &&
           js_get_i64(head, where, "version", &version, &ignored) == ST_OK && version == EPISODES_VERSION;
}

/* Where the last frame begins that the index knows, and where in the index its first row stands. false: the index has
 * no row that this version reads. */
static bool last_frame(const struct episodes *x, int64_t *frame, int64_t *row_at) {
    static const char first[] = "{\"frame\":";
    struct jsonl_reader *r;
    struct err ignored;
    const char *line;
    size_t n;
    *frame = -1;
    *row_at = 0;
    if (jsonl_open(x->index, ROW_MAX_BYTES, &r, &ignored) != ST_OK) return false;
    bool sound = jsonl_next(r, &line, &n, &ignored) == ST_OK && line && is_head(line, n, x->index);
    while (sound) {
        sound = jsonl_next(r, &line, &n, &ignored) == ST_OK;
        if (!sound || !line) break;
        char *end;
        sound = str_has_prefix(line, first);
        if (!sound) break;
        const int64_t begin = strtoll(line + sizeof first - 1, &end, 10);
        sound = *end == ',' && begin >= *frame;
        if (begin == *frame) continue;
        *frame = begin;
        *row_at = jsonl_offset(r);
    }
    jsonl_close(r);
    return sound && *frame >= 0;
}

static enum status bring_level(struct episodes *x, struct err *e) {
    int64_t frame, row_at;
    struct err ignored;
    struct stat traces;
    if (stat(x->traces, &traces) != 0 || !last_frame(x, &frame, &row_at) || frame >= traces.st_size)
        return make_anew(x, e);
    TRY(jsonl_append_cut(x->w, row_at, e));
    return index_from(x, frame, &ignored) == ST_OK ? ST_OK : make_anew(x, e); /* no frame begins there: other traces */
}

enum status episodes_open(const char *dir, struct episodes **out, struct err *e) {
    struct episodes *x = xcalloc(1, sizeof *x);
    x->index = fs_join(dir, EPISODES_FILE);
    x->traces = fs_join(dir, TRACES_FILE);
    enum status st = jsonl_append_open(x->index, &x->w, NULL, e);
    if (st == ST_OK) st = bring_level(x, e);
    if (st != ST_OK) {
        episodes_close(x);
        x = NULL;
    }
    *out = x;
    return st;
}

enum status episodes_add(struct episodes *x, int64_t frame, const char *lines, size_t n, struct err *e) {
    CLEANUP_STR struct str rows = STR_INIT;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(lines + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - lines) - at : n - at;
        TRY(episode_row(lines + at, len, frame, (int64_t)at, x->traces, &rows, e));
        at += len + 1;
    }
    return jsonl_append(x->w, str_c(&rows), rows.len, e);
}

void episodes_close(struct episodes *x) {
    if (!x) return;
    jsonl_append_close(x->w);
    free(x->index);
    free(x->traces);
    free(x);
}

enum status episodes_remove(const char *dir, struct err *e) {
    CLEANUP_FREE char *path = fs_join(dir, EPISODES_FILE);
    return fs_remove(path, e);
}
