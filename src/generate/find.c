#include "generate/find.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "generate/generator.h"

#define STREAM_PREFIX "generated/"

static bool is_builtin(const char *source) {
    if (!source || !*source) source = getenv("KERNELBENCH_ROOT");
    return !source || !*source || strcmp(source, "builtin") == 0;
}

/* Reads "SEED_INDEX". Returns false for anything else. */
static bool read_place(const char *text, uint64_t *seed, uint64_t *index) {
    const size_t n = strcspn(text, "_");
    CLEANUP_FREE char *first = xstrndup(text, n);
    int64_t s, i;
    const char *second = text + n + (text[n] != 0);
    /* A key has digits alone, and no zero in front. */
    if (strspn(first, "0123456789") != n || strspn(second, "0123456789") != strlen(second)) return false;
    if ((*first == '0' && first[1]) || (*second == '0' && second[1])) return false;
    if (!parse_i64(first, &s) || !parse_i64(second, &i)) return false;
    *seed = (uint64_t)s;
    *index = (uint64_t)i;
    return true;
}

/* Makes the problem that a key "generated/SEED_INDEX" names, with the generator's own settings, in the set's arena. */
static enum status make_again(struct problem_set *set, const char *key, const struct problem **out, struct err *e) {
    struct generator *g;
    struct gen_item item;
    uint64_t seed, index;
    if (!read_place(key + strlen(STREAM_PREFIX), &seed, &index))
        return FAIL(e, ST_INVALID, "%s: expected " STREAM_PREFIX "SEED_INDEX, two whole numbers", key);
    TRY(generator_open(NULL, &g, e));
    generator_make(g, seed, index, &set->arena, &item);
    generator_close(g);
    struct problem *made = arena_new(&set->arena, struct problem);
    *made = item.problem;
    *out = made;
    return ST_OK;
}

/* Cuts "@FACTOR" off `key`, a copy of name, and returns the factor. Returns 1, and leaves key whole, when name does not
 * end in a factor of at least 2. */
static int64_t split_factor(const char *name, char *key) {
    const char *at = strrchr(name, '@');
    int64_t factor;
    if (!at || !parse_i64(at + 1, &factor) || factor < 2) return 1;
    key[at - name] = 0;
    return factor;
}

/* A copy of p, in the set's arena, with a batch `factor` times as large; NULL when its batch cannot be so large. */
static const struct problem *enlarged(struct problem_set *set, const struct problem *p, int64_t factor) {
    struct problem *copy = arena_new(&set->arena, struct problem);
    *copy = *p;
    struct problem_set one = {.arena = set->arena, .items = copy, .count = 1};
    const size_t changed = problem_set_enlarge(&one, factor);
    set->arena = one.arena; /* The copy's text lies there. */
    return changed == 1 ? copy : NULL;
}

static enum status no_problem(const struct problem_set *set, const char *source, const char *name, struct err *e) {
    const char *near = NULL;
    size_t limit = str_near_limit(name);
    for (size_t i = 0; i < set->count; i++)
        if (str_nearer(name, set->items[i].key, &limit)) near = set->items[i].key;
    if (str_has_prefix(name, "composed/"))
        return FAIL(e, ST_INVALID,
                    "%s: no such problem; one that a model has proposed (roles.proposals) is not made again by its key",
                    name);
    if (near) return FAIL(e, ST_INVALID, "%s: no such problem; did you mean %s?", name, near);
    if (strchr(name, '@') && !is_builtin(source))
        return FAIL(e, ST_INVALID, "%s: no such problem; KEY@FACTOR is for built-in and generated problems", name);
    return FAIL(e, ST_INVALID, "%s: no such file and no such problem; expected a key such as %s", name,
                set->items[0].key);
}

static enum status load(struct problem_set *set, const char *source, struct err *e) {
    return set->items ? ST_OK : problem_set_load(source, set, e);
}

enum status problem_named(struct problem_set *set, const char *source, const char *name, const struct problem **out,
                          struct err *e) {
    CLEANUP_FREE char *key = xstrdup(name);
    const int64_t factor = split_factor(name, key);
    if (!set->items && fs_is_file(name)) {
        TRY(problem_set_load(name, set, e));
        *out = set->items;
        return set->count == 1 ? ST_OK : FAIL(e, ST_INVALID, "%s: expected one problem, found %zu", name, set->count);
    }
    *out = NULL;
    const bool of_stream = str_has_prefix(key, STREAM_PREFIX);
    if (!of_stream || (source && *source)) {
        TRY(load(set, source, e));
        if ((*out = problem_find(set, name))) return ST_OK;
    }
    if (of_stream)
        TRY(make_again(set, key, out, e));
    else if (factor > 1 && is_builtin(source))
        *out = problem_find(set, key);
    if (!*out) return no_problem(set, source, name, e);
    if (factor == 1 || (*out = enlarged(set, *out, factor))) return ST_OK;
    return FAIL(e, ST_INVALID, "%s: its batch cannot be %lld times as large", name, (long long)factor);
}
