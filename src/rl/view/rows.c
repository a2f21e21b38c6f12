/* Rows of answers: read from lines of the index, kept in the orders that a page asks for. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "rl/view/internal.h"

/* ---- a line -------------------------------------------------------------------------------------------------------*/

#define FIELD(key, kind, member) \
    { key, sizeof(key) - 1, kind, offsetof(struct view_row, member) }
/* The keys of a line, in the order in which they are written. */
static const struct row_field {
    const char *key;
    size_t n;                               /* bytes of the key */
    enum { WHOLE, SMALL, TEXT, REAL } kind; /* int64_t, int32_t, a number of names, double */
    size_t at;
} fields[] = {
    FIELD("frame", WHOLE, frame),       FIELD("at", WHOLE, at),
    FIELD("bytes", WHOLE, bytes),       FIELD("step", WHOLE, step),
    FIELD("group", SMALL, group),       FIELD("sample", SMALL, sample),
    FIELD("turn", SMALL, turn),         FIELD("role", TEXT, role),
    FIELD("problem", TEXT, problem),    FIELD("stop", TEXT, stop),
    FIELD("tokens", SMALL, tokens),     FIELD("reward", REAL, reward),
    FIELD("return", REAL, ret),         FIELD("advantage", REAL, advantage),
    FIELD("outcome", TEXT, outcome),    FIELD("class", TEXT, class),
    FIELD("passed_stage", TEXT, stage), FIELD("speedup", REAL, speedup),
    FIELD("speedup_low", REAL, low),    FIELD("speedup_high", REAL, high),
};

/* The field of this key. *next is where it is looked for first. NULL: a key that no page shows. */
static const struct row_field *field_of(const struct line_member *m, size_t *next) {
    for (size_t k = 0; k < ARRAY_LEN(fields); k++) {
        const size_t i = *next + k < ARRAY_LEN(fields) ? *next + k : *next + k - ARRAY_LEN(fields);
        if (fields[i].n != m->n_key || memcmp(fields[i].key, m->key, m->n_key) != 0) continue;
        *next = i + 1;
        return &fields[i];
    }
    return NULL;
}

/* What does not fit a field is not there. */
static void set(struct names *s, struct view_row *x, const struct row_field *f, const struct line_member *m) {
    void *to = (char *)x + f->at;
    const bool is_number = m->kind == MEMBER_WHOLE || m->kind == MEMBER_REAL;
    switch (f->kind) {
    case WHOLE: *(int64_t *)to = m->kind == MEMBER_WHOLE ? m->whole : -1; break;
    case SMALL:
        *(int32_t *)to = m->kind == MEMBER_WHOLE && m->whole >= 0 && m->whole <= INT32_MAX ? (int32_t)m->whole : -1;
        break;
    case TEXT: *(uint32_t *)to = m->kind == MEMBER_TEXT ? names_put(s, m->text, m->n_text) : 0; break;
    case REAL: *(double *)to = is_number ? m->real : (double)NAN; break;
    }
}

/* Takes the row for the best of its problem if its speed-up is the greatest so far. */
static void note_best(struct view_rows *r, uint32_t i) {
    const struct view_row *x = &r->row[i];
    if (!x->outcome || !x->problem || isnan(x->speedup)) return;
    if (strcmp(r->names.name[x->outcome], "correct") != 0) return;
    if (x->problem >= r->n_best) {
        const uint32_t n = x->problem + 256;
        r->best = xrealloc(r->best, n * sizeof *r->best);
        memset(r->best + r->n_best, 0, (n - r->n_best) * sizeof *r->best);
        r->n_best = n;
    }
    uint32_t *best = &r->best[x->problem];
    if (*best == 0 || x->speedup > r->row[*best - 1].speedup) *best = i + 1;
}

static enum status add_row(struct view_rows *r, const struct line_members *line, struct err *e) {
    const double none = (double)NAN;
    struct view_row x = {.frame = -1, .at = -1, .bytes = -1, .step = -1};
    size_t next = 0;
    x.group = x.sample = x.turn = x.tokens = -1;
    x.reward = x.ret = x.advantage = x.speedup = x.low = x.high = none;
    for (size_t i = 0; i < line->n; i++) {
        const struct row_field *f = field_of(&line->m[i], &next);
        if (f) set(&r->names, &x, f, &line->m[i]);
    }
    if (x.frame < 0 || x.at < 0 || x.bytes < 0 || x.step < 0) return FAIL(e, ST_PARSE, "row: not a row of the index");
    if (r->n > 0 && x.frame < r->row[r->n - 1].frame)
        return FAIL(e, ST_PARSE, "row: its frame lies before the last one");
    if (r->n == ROWS_MAX) return FAIL(e, ST_PARSE, "row: more than %d rows", ROWS_MAX);
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap + r->cap / 2 : 1024;
        r->row = xrealloc(r->row, r->cap * sizeof *r->row);
    }
    r->row[r->n++] = x;
    note_best(r, (uint32_t)(r->n - 1));
    return ST_OK;
}

enum status rows_add(struct view_rows *r, const char *text, size_t n, struct err *e) {
    struct line_members line;
    enum status st = members_read(&line, text, n, "row", e);
    if (st == ST_OK) st = add_row(r, &line, e);
    members_free(&line);
    return st;
}

void rows_free(struct view_rows *r) {
    for (int i = 0; i < N_SORTS; i++) free(r->order[i].row);
    free(r->best);
    str_free(&r->best_json);
    free(r->row);
    names_free(&r->names);
    *r = (struct view_rows){0};
}

/* ---- orders -------------------------------------------------------------------------------------------------------*/

struct ranked {
    double key;
    uint32_t row;
};

static double key_of(const struct view_row *x, enum view_sort sort) {
    switch (sort) {
    case SORT_REWARD: return x->reward;
    case SORT_ADVANTAGE: return x->advantage;
    case SORT_SPEEDUP: return x->speedup;
    case SORT_TOKENS: return x->tokens;
    default: return (double)x->step;
    }
}

/* The greatest first, of equal ones the newest; what has no number comes last. */
static int greatest_first(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (isnan(x->key) != isnan(y->key)) return isnan(x->key) ? 1 : -1;
    if (!isnan(x->key) && x->key != y->key) return x->key < y->key ? 1 : -1;
    return x->row < y->row ? 1 : -1;
}

const uint32_t *rows_order(struct view_rows *r, enum view_sort sort) {
    struct view_order *o = &r->order[sort];
    const size_t added = r->n - o->n;
    if (added == 0) return o->row;
    struct ranked *p = xmalloc(added * sizeof *p);
    for (size_t i = 0; i < added; i++) p[i] = (struct ranked){key_of(&r->row[o->n + i], sort), (uint32_t)(o->n + i)};
    qsort(p, added, sizeof *p, greatest_first);
    o->row = xrealloc(o->row, r->n * sizeof *o->row);
    size_t old = o->n, new = added; /* how many of each are not in their places yet: the least are, at the end */
    while (new > 0) {
        const struct ranked last =
            old > 0 ? (struct ranked){key_of(&r->row[o->row[old - 1]], sort), o->row[old - 1]} : *p;
        if (old > 0 && greatest_first(&last, &p[new - 1]) > 0)
            o->row[old + new - 1] = o->row[old - 1], old--;
        else
            o->row[old + new - 1] = p[new - 1].row, new --;
    }
    free(p);
    o->n = r->n;
    return o->row;
}

/* How many rows of the order by steps have a greater step than this one. */
static size_t above(const struct view_rows *r, const uint32_t *order, int64_t step) {
    size_t lo = 0;
    for (size_t hi = r->n; lo < hi;) {
        const size_t mid = lo + (hi - lo) / 2;
        if (r->row[order[mid]].step > step)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const uint32_t *rows_of_step(struct view_rows *r, int64_t step, size_t *n) {
    const uint32_t *order = rows_order(r, SORT_STEP);
    const size_t first = above(r, order, step);
    *n = above(r, order, step - 1) - first;
    return order + first;
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------*/

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

const char *rows_best_json(struct view_rows *r) {
    if (r->best_json.len > 0 && r->best_of == r->n) return r->best_json.p;
    str_clear(&r->best_json);
    js_begin(&r->best_json, NULL, '[');
    for (uint32_t i = 0; i < r->n_best; i++)
        if (r->best[i]) row_json(r, &r->row[r->best[i] - 1], NULL, &r->best_json);
    js_end(&r->best_json, ']');
    r->best_of = r->n;
    return r->best_json.p;
}
