/* The members of a line of JSON. Nearly all lines of a run are objects of plain numbers and ASCII texts; those are read
 * here, some ten times as fast as a general reader does. All others go to that reader, with the same outcome. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "rl/view/internal.h"

static void skip_blanks(const char **p) {
    while (**p == ' ') ++*p;
}

/* The text up to its closing quote, which *p is behind then. false: it has escapes, or bytes that are not of ASCII. */
static bool plain_text(const char **p, const char **text, size_t *n) {
    if (**p != '"') return false;
    const char *c = *text = *p + 1;
    while (*c >= ' ' && *c < 127 && *c != '"' && *c != '\\') c++;
    if (*c != '"') return false;
    *n = (size_t)(c - *text);
    *p = c + 1;
    return true;
}

static bool digits(const char **p) {
    const char *begin = *p;
    while (**p >= '0' && **p <= '9') ++*p;
    return *p > begin;
}

static bool plain_number(const char **p, struct line_member *m) {
    const char *begin = *p, *c = begin;
    if (*c == '-') c++;
    const char *first = c;
    if (!digits(&c) || (*first == '0' && c - first > 1) || c - first > 18) return false;
    m->kind = MEMBER_WHOLE;
    if (*c == '.') {
        c++;
        m->kind = MEMBER_REAL;
        if (!digits(&c)) return false;
    }
    if (*c == 'e' || *c == 'E') {
        c++;
        m->kind = MEMBER_REAL;
        if (*c == '+' || *c == '-') c++;
        if (!digits(&c)) return false;
    }
    if (m->kind == MEMBER_WHOLE) {
        for (const char *d = first; d < c; d++) m->whole = 10 * m->whole + (*d - '0');
        if (*begin == '-') m->whole = -m->whole;
        m->real = (double)m->whole;
    } else {
        m->real = strtod(begin, NULL);
    }
    *p = c;
    return m->real - m->real == 0; /* one that overflows is refused by the other reader */
}

static struct line_member *add(struct line_members *s) {
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->m = xrealloc(s->m, s->cap * sizeof *s->m);
    }
    struct line_member *m = &s->m[s->n++];
    *m = (struct line_member){0};
    return m;
}

static bool is_key(const struct line_member *m, const char *key, size_t n) {
    return m->n_key == n && memcmp(m->key, key, n) == 0;
}

static const struct line_member *find_from(const struct line_members *s, size_t first, const char *key, size_t n) {
    for (size_t i = first; i < s->n; i++)
        if (is_key(&s->m[i], key, n)) return &s->m[i];
    return NULL;
}

static bool plain_object(const char **p, struct line_members *s, bool is_inner);

/* What stands for an object: of "reward" its total, of others nothing. */
static bool inner_object(const char **p, struct line_members *s, struct line_member *m) {
    const size_t first = s->n;
    if (!plain_object(p, s, true)) return false;
    const struct line_member *total = is_key(m, "reward", 6) ? find_from(s, first, "total", 5) : NULL;
    m->kind = MEMBER_OTHER;
    if (total && (total->kind == MEMBER_WHOLE || total->kind == MEMBER_REAL)) {
        m->kind = total->kind;
        m->whole = total->whole;
        m->real = total->real;
    }
    s->n = first;
    return true;
}

static bool plain_value(const char **p, struct line_members *s, struct line_member *m, bool is_inner) {
    static const char *const words[] = {"null", "true", "false"};
    if (**p == '"') {
        m->kind = MEMBER_TEXT;
        return plain_text(p, &m->text, &m->n_text);
    }
    if (**p == '{') return !is_inner && inner_object(p, s, m);
    for (size_t i = 0; **p >= 'a' && i < ARRAY_LEN(words); i++) {
        if (strncmp(*p, words[i], strlen(words[i])) != 0) continue;
        m->kind = MEMBER_OTHER;
        *p += strlen(words[i]);
        return true;
    }
    return plain_number(p, m);
}

/* Adds the members of an object, and leaves *p behind it. false: it has what is not plain; s holds a part of it. */
static bool plain_object(const char **p, struct line_members *s, bool is_inner) {
    const size_t first = s->n;
    if (*(*p)++ != '{') return false;
    for (;;) {
        struct line_member m = {0};
        skip_blanks(p);
        if (!plain_text(p, &m.key, &m.n_key) || find_from(s, first, m.key, m.n_key)) return false;
        skip_blanks(p);
        if (*(*p)++ != ':') return false;
        skip_blanks(p);
        if (!plain_value(p, s, &m, is_inner)) return false;
        *add(s) = m;
        skip_blanks(p);
        if (**p == '}') return ++*p, true;
        if (*(*p)++ != ',') return false;
    }
}

static struct line_member member_of(const char *key, const json_t *v) {
    struct line_member m = {.key = key, .n_key = strlen(key), .kind = MEMBER_OTHER};
    const bool is_total = json_is_object(v) && strcmp(key, "reward") == 0;
    if (is_total) v = json_object_get(v, "total");
    if (json_is_string(v) && !is_total) {
        m.kind = MEMBER_TEXT;
        m.text = json_string_value(v);
        m.n_text = strlen(m.text);
    } else if (json_is_number(v)) {
        m.kind = json_is_integer(v) ? MEMBER_WHOLE : MEMBER_REAL;
        m.whole = json_integer_value(v);
        m.real = json_number_value(v);
    }
    return m;
}

enum status members_read(struct line_members *s, const char *line, size_t n, const char *where, struct err *e) {
    *s = (struct line_members){0};
    const char *p = line;
    if (n > 0 && plain_object(&p, s, false) && p == line + n) return ST_OK;
    s->n = 0;
    TRY(js_parse(line, n, where, &s->whole, e));
    const char *key;
    json_t *v;
    if (!json_is_object(s->whole)) return FAIL(e, ST_PARSE, "%s: expected an object", where);
    json_object_foreach(s->whole, key, v) { *add(s) = member_of(key, v); }
    return ST_OK;
}

const struct line_member *members_find(const struct line_members *s, const char *key) {
    return find_from(s, 0, key, strlen(key));
}

void members_free(struct line_members *s) {
    free(s->m);
    json_decref(s->whole);
    *s = (struct line_members){0};
}
