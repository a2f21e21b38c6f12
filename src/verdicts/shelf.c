#include "verdicts/shelf.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "generate/find.h"

enum { MAX_SOURCES = 64, MAX_MADE = 20000 };

/* A problem that no source lists: one of the generator's, or one with another batch. */
struct made_problem {
    char *key;
    const struct problem *problem;
};
struct shelf_source {
    char *name; /* "": the usual one */
    struct problem_set set;
    struct made_problem *made;
    size_t n_made;
};
struct shelf {
    bool any_source;
    int max_factor;
    pthread_mutex_t lock; /* of the sources */
    struct shelf_source *source[MAX_SOURCES];
    int n;
};

struct shelf *shelf_open(bool any_source, int max_factor) {
    struct shelf *s = xcalloc(1, sizeof *s);
    s->any_source = any_source;
    s->max_factor = max_factor;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void shelf_close(struct shelf *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) {
        struct shelf_source *one = s->source[i];
        for (size_t k = 0; k < one->n_made; k++) free(one->made[k].key);
        free(one->made);
        free(one->name);
        problem_set_free(&one->set);
        free(one);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The lock is held. */
static struct shelf_source *find_source(struct shelf *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->source[i]->name, name ? name : "") == 0) return s->source[i];
    return NULL;
}

static enum status load(struct shelf *s, const char *name, struct err *e) {
    if (find_source(s, name)) return ST_OK;
    if (s->n == MAX_SOURCES) return FAIL(e, ST_INVALID, "more than %d sources of problems", MAX_SOURCES);
    struct shelf_source *one = xcalloc(1, sizeof *one);
    const enum status st = problem_set_load(name, &one->set, e);
    if (st != ST_OK) {
        problem_set_free(&one->set);
        free(one);
        return st;
    }
    one->name = xstrdup(name ? name : "");
    s->source[s->n++] = one;
    return ST_OK;
}

enum status shelf_load(struct shelf *s, const char *source, struct err *e) {
    pthread_mutex_lock(&s->lock);
    const enum status st = load(s, source, e);
    pthread_mutex_unlock(&s->lock);
    return st;
}

const struct problem_set *shelf_set(struct shelf *s, const char *source) {
    pthread_mutex_lock(&s->lock);
    const struct shelf_source *one = find_source(s, source);
    pthread_mutex_unlock(&s->lock);
    return one ? &one->set : NULL;
}

static bool allowed_factor(const struct shelf *s, const char *key, struct verdict_refusal *why) {
    const char *at = strrchr(key, '@');
    int64_t factor;
    if (s->max_factor <= 0 || !at || !parse_i64(at + 1, &factor) || factor <= s->max_factor) return true;
    return verdict_refuse(why, 400, NULL, "problem.key", "problem.key: a batch may be %d times as large at most",
                          s->max_factor);
}

static bool find(struct shelf *s, const char *source, const char *key, const struct problem **out,
                 struct verdict_refusal *why) {
    struct err e;
    struct shelf_source *one = find_source(s, source);
    if (!one && s->any_source) {
        if (load(s, source, &e) != ST_OK) return verdict_refuse(why, 400, NULL, "problem.source", "%.500s", e.msg);
        one = find_source(s, source);
    }
    if (!one)
        return verdict_refuse(why, 404, "source_not_found", "problem.source",
                              "problem.source: there is no source \"%.100s\" here", source);
    if ((*out = problem_find(&one->set, key))) return true;
    for (size_t i = 0; i < one->n_made; i++)
        if (strcmp(one->made[i].key, key) == 0) {
            *out = one->made[i].problem;
            return true;
        }
    if (!allowed_factor(s, key, why)) return false;
    if (one->n_made == MAX_MADE)
        return verdict_refuse(why, 503, "too_many_problems", "problem.key",
                              "problem.key: %d problems were made for requests, the limit", MAX_MADE);
    if (problem_named(&one->set, source, key, out, &e) != ST_OK)
        return verdict_refuse(why, 404, "problem_not_found", "problem.key", "%.500s", e.msg);
    one->made = xrealloc(one->made, (one->n_made + 1) * sizeof *one->made);
    one->made[one->n_made++] = (struct made_problem){xstrdup(key), *out};
    return true;
}

bool shelf_find(struct shelf *s, const char *source, const char *key, const struct problem **out,
                struct verdict_refusal *why) {
    pthread_mutex_lock(&s->lock);
    const bool found = find(s, source, key, out, why);
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* The text without blanks around it. */
static const char *trimmed(const char *text, size_t *n) {
    static const char blanks[] = " \t\r\n";
    const char *from = text + strspn(text, blanks);
    *n = strlen(from);
    while (*n > 0 && strchr(blanks, from[*n - 1])) --*n;
    return from;
}

const struct problem *shelf_find_text(struct shelf *s, const char *code, const char **source) {
    size_t n, m;
    const char *wanted = trimmed(code, &n);
    const struct problem *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n && !found; i++)
        for (size_t k = 0; k < s->source[i]->set.count && !found; k++) {
            const struct problem *p = &s->source[i]->set.items[k];
            const char *text = trimmed(p->code, &m);
            if (m != n || memcmp(text, wanted, n) != 0) continue;
            found = p;
            *source = *s->source[i]->name ? s->source[i]->name : NULL;
        }
    pthread_mutex_unlock(&s->lock);
    return found;
}
