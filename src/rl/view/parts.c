#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/jsonl.h"
#include "rl/view/internal.h"

/* ---- names --------------------------------------------------------------------------------------------------------*/

static uint32_t hash_text(const char *text, size_t n) { /* FNV-1a */
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

/* The slot that holds the text, or the empty one where it belongs. */
static uint32_t slot_of(const struct names *s, const char *text, size_t n) {
    uint32_t i = hash_text(text, n) & (s->n_slots - 1);
    while (s->slot[i] && (strncmp(s->name[s->slot[i]], text, n) != 0 || s->name[s->slot[i]][n]))
        i = (i + 1) & (s->n_slots - 1);
    return i;
}

uint32_t names_find(const struct names *s, const char *text, size_t n) {
    return s->n_slots ? s->slot[slot_of(s, text, n)] : 0;
}

uint32_t names_put(struct names *s, const char *text, size_t n) {
    if (2 * s->n >= s->n_slots) {
        s->n_slots = s->n_slots ? 2 * s->n_slots : 64;
        free(s->slot);
        s->slot = xcalloc(s->n_slots, sizeof *s->slot);
        for (uint32_t i = 1; i < s->n; i++) s->slot[slot_of(s, s->name[i], strlen(s->name[i]))] = i;
    }
    const uint32_t at = slot_of(s, text, n);
    if (s->slot[at]) return s->slot[at];
    if (s->n + 1 >= s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->name = xrealloc(s->name, s->cap * sizeof *s->name);
    }
    if (s->n == 0) s->name[s->n++] = NULL;
    s->name[s->n] = xstrndup(text, n);
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

/* ---- columns ------------------------------------------------------------------------------------------------------*/

enum { COLUMNS_MAX = 4096, LINES_MAX = 1 << 20 };

static void column_add(struct columns *c, const char *name, size_t n, double v) {
    if (c->names.n > COLUMNS_MAX && !names_find(&c->names, name, n)) return;
    const uint32_t k = names_put(&c->names, name, n);
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

static enum status add_line(struct columns *c, const struct line_members *line, struct err *e) {
    const struct line_member *step = members_find(line, "step");
    if (!step || step->kind != MEMBER_WHOLE) return FAIL(e, ST_PARSE, "metrics: step: expected a whole number");
    if (c->n_lines == LINES_MAX) return FAIL(e, ST_PARSE, "metrics: more than %d lines", LINES_MAX);
    if (c->n_lines == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 256;
        c->step = xrealloc(c->step, c->cap * sizeof *c->step);
    }
    for (size_t i = 0; i < line->n; i++) {
        const struct line_member *m = &line->m[i];
        if (m != step && (m->kind == MEMBER_WHOLE || m->kind == MEMBER_REAL)) column_add(c, m->key, m->n_key, m->real);
    }
    c->step[c->n_lines++] = step->whole;
    return ST_OK;
}

enum status columns_add(struct columns *c, const char *text, size_t n, struct err *e) {
    struct line_members line;
    enum status st = members_read(&line, text, n, "metrics", e);
    if (st == ST_OK) st = add_line(c, &line, e);
    members_free(&line);
    return st;
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
