#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/json.h"
#include "io/jsonl.h"
#include "rl/view/internal.h"

/* ---- names --------------------------------------------------------------------------------------------------------*/

static uint32_t hash_text(const char *text) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

/* The slot that holds the text, or the empty one where it belongs. */
static uint32_t slot_of(const struct names *s, const char *text) {
    uint32_t i = hash_text(text) & (s->n_slots - 1);
    while (s->slot[i] && strcmp(s->name[s->slot[i]], text) != 0) i = (i + 1) & (s->n_slots - 1);
    return i;
}

uint32_t names_find(const struct names *s, const char *text) { return s->n_slots ? s->slot[slot_of(s, text)] : 0; }

uint32_t names_put(struct names *s, const char *text) {
    if (2 * s->n >= s->n_slots) {
        s->n_slots = s->n_slots ? 2 * s->n_slots : 64;
        free(s->slot);
        s->slot = xcalloc(s->n_slots, sizeof *s->slot);
        for (uint32_t i = 1; i < s->n; i++) s->slot[slot_of(s, s->name[i])] = i;
    }
    const uint32_t at = slot_of(s, text);
    if (s->slot[at]) return s->slot[at];
    if (s->n + 1 >= s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->name = xrealloc(s->name, s->cap * sizeof *s->name);
    }
    if (s->n == 0) s->name[s->n++] = NULL;
    s->name[s->n] = xstrdup(text);
    return s->slot[at] = s->n++;
}

void names_free(struct names *s) {
    for (uint32_t i = 1; i < s->n; i++) free(s->name[i]);
    free(s->name);
    free(s->slot);
    *s = (struct names){0};
}

/* ---- files --------------------------------------------------------------------------------------------------------*/

int open_plain(int dir, const char *name, struct stat *st) {
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return -1;
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode)) return fd;
    close(fd);
    return -1;
}

static bool is_same(const struct tail *t, int fd, const struct stat *st) {
    char now[sizeof t->last];
    if (t->dev != st->st_dev || t->ino != st->st_ino || st->st_size < t->at) return false;
    return pread(fd, now, t->n_last, (off_t)(t->at - (int64_t)t->n_last)) == (ssize_t)t->n_last &&
           memcmp(now, t->last, t->n_last) == 0;
}

static void remember(struct tail *t, const char *line, size_t n, int64_t at) {
    t->n_last = n < sizeof t->last - 1 ? n : sizeof t->last - 1;
    memcpy(t->last, line + n - t->n_last, t->n_last);
    t->last[t->n_last++] = '\n';
    t->at = at;
}

enum status tail_read(struct tail *t, int fd, const struct stat *st, size_t max_line, take_line_fn *take, void *ctx,
                      bool *again, struct err *e) {
    *again = t->at > 0 && !is_same(t, fd, st);
    if (*again) {
        *t = (struct tail){0};
        return ST_OK;
    }
    t->dev = st->st_dev;
    t->ino = st->st_ino;
    const int own = dup(fd);
    if (own < 0) return FAIL(e, ST_IO, "%s", strerror(errno));
    struct jsonl_reader *r = jsonl_open_fd(own, "line", false, max_line);
    const int64_t base = t->at;
    enum status s = jsonl_start_at(r, base, e);
    while (s == ST_OK) {
        const char *line;
        size_t n;
        if ((s = jsonl_next(r, &line, &n, e)) != ST_OK || !line || jsonl_is_torn(r)) break;
        if ((s = take(ctx, line, n, e)) == ST_OK) remember(t, line, n, base + jsonl_offset(r) + (int64_t)n + 1);
    }
    jsonl_close(r);
    return s;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------*/

static int64_t whole(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

/* A number that a row holds in 32 bits; what does not fit is not there. */
static int32_t small(const json_t *o, const char *key) {
    const int64_t v = whole(o, key);
    return v >= 0 && v <= INT32_MAX ? (int32_t)v : -1;
}

static double real(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static uint32_t text(struct names *s, const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_string(v) ? names_put(s, json_string_value(v)) : 0;
}

enum status rows_add(struct view_rows *r, const char *line, size_t n, struct err *e) {
    CLEANUP_JSON json_t *o = NULL;
    TRY(js_parse(line, n, "row", &o, e));
    const int64_t frame = whole(o, "frame"), at = whole(o, "at"), bytes = whole(o, "bytes"), step = whole(o, "step");
    if (frame < 0 || at < 0 || bytes < 0 || step < 0) return FAIL(e, ST_PARSE, "row: not a row of the index");
    if (r->n > 0 && frame < r->row[r->n - 1].frame) return FAIL(e, ST_PARSE, "row: its frame lies before the last one");
    if (r->n == ROWS_MAX) return FAIL(e, ST_PARSE, "row: more than %d rows", ROWS_MAX);
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap + r->cap / 2 : 1024;
        r->row = xrealloc(r->row, r->cap * sizeof *r->row);
    }
    const json_t *reward = json_object_get(o, "reward");
    struct names *s = &r->names;
    r->row[r->n++] = (struct view_row){.frame = frame,
                                       .at = at,
                                       .bytes = bytes,
                                       .step = step,
                                       .group = small(o, "group"),
                                       .sample = small(o, "sample"),
                                       .turn = small(o, "turn"),
                                       .tokens = small(o, "tokens"),
                                       .problem = text(s, o, "problem"),
                                       .role = text(s, o, "role"),
                                       .stop = text(s, o, "stop"),
                                       .outcome = text(s, o, "outcome"),
                                       .class = text(s, o, "class"),
                                       .stage = text(s, o, "passed_stage"),
                                       .reward = json_is_object(reward) ? real(reward, "total") : real(o, "reward"),
                                       .ret = real(o, "return"),
                                       .advantage = real(o, "advantage"),
                                       .speedup = real(o, "speedup"),
                                       .low = real(o, "speedup_low"),
                                       .high = real(o, "speedup_high")};
    return ST_OK;
}

void rows_free(struct view_rows *r) {
    free(r->row);
    names_free(&r->names);
    *r = (struct view_rows){0};
}

static void put_number(struct str *out, const char *key, int64_t v) {
    if (v < 0)
        js_put_null(out, key);
    else
        js_put_i64(out, key, v);
}

void row_json(const struct view_rows *r, const struct view_row *x, const char *key, struct str *out) {
    char *const *name = r->names.name;
    js_begin(out, key, '{');
    js_put_i64(out, "step", x->step);
    put_number(out, "group", x->group);
    put_number(out, "sample", x->sample);
    put_number(out, "turn", x->turn);
    put_number(out, "tokens", x->tokens);
    const struct {
        const char *key;
        uint32_t text;
    } texts[] = {{"problem", x->problem}, {"role", x->role},   {"stop", x->stop},
                 {"outcome", x->outcome}, {"class", x->class}, {"passed_stage", x->stage}};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        js_put_str(out, texts[i].key, texts[i].text ? name[texts[i].text] : NULL);
    const struct {
        const char *key;
        double v;
    } reals[] = {{"reward", x->reward},   {"return", x->ret},      {"advantage", x->advantage},
                 {"speedup", x->speedup}, {"speedup_low", x->low}, {"speedup_high", x->high}};
    for (size_t i = 0; i < ARRAY_LEN(reals); i++) js_put_f64(out, reals[i].key, reals[i].v);
    js_end(out, '}');
}

/* ---- columns ------------------------------------------------------------------------------------------------------*/

enum { COLUMNS_MAX = 4096, LINES_MAX = 1 << 20 };

static void column_add(struct columns *c, const char *name, double v) {
    if (c->names.n > COLUMNS_MAX && !names_find(&c->names, name)) return;
    const uint32_t k = names_put(&c->names, name);
    if (k >= c->n_columns) {
        const uint32_t cap = k + 64;
        c->column = xrealloc(c->column, cap * sizeof *c->column);
        memset(c->column + c->n_columns, 0, (cap - c->n_columns) * sizeof *c->column);
        c->n_columns = cap;
    }
    struct column *col = &c->column[k];
    if (col->n == col->cap) {
        col->cap = col->cap ? 2 * col->cap : 16;
        col->line = xrealloc(col->line, col->cap * sizeof *col->line);
        col->value = xrealloc(col->value, col->cap * sizeof *col->value);
    }
    col->line[col->n] = (int64_t)c->n_lines;
    col->value[col->n++] = v;
}

enum status columns_add(struct columns *c, const char *line, size_t n, struct err *e) {
    CLEANUP_JSON json_t *o = NULL;
    int64_t step;
    TRY(js_parse(line, n, "metrics", &o, e));
    TRY(js_get_i64(o, "metrics", "step", &step, e));
    if (c->n_lines == LINES_MAX) return FAIL(e, ST_PARSE, "metrics: more than %d lines", LINES_MAX);
    if (c->n_lines == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 256;
        c->step = xrealloc(c->step, c->cap * sizeof *c->step);
    }
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v) {
        if (json_is_number(v) && strcmp(key, "step") != 0) column_add(c, key, json_number_value(v));
    }
    c->step[c->n_lines++] = step;
    return ST_OK;
}

void columns_free(struct columns *c) {
    for (uint32_t i = 0; i < c->n_columns; i++) {
        free(c->column[i].line);
        free(c->column[i].value);
    }
    free(c->column);
    free(c->step);
    names_free(&c->names);
    *c = (struct columns){0};
}
