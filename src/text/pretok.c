#include "text/pretok.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "text/pattern.h"
#include "text/split.h"

/* What becomes of matches and of what lies between them, as tokenizer.json calls it. */
static const char *const behaviors[] = {"Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext", "Removed"};
enum behavior { ISOLATED, CONTIGUOUS, WITH_PREVIOUS, WITH_NEXT, REMOVED };

struct pretok_cut {
    const char *p;
    size_t n;
    bool match;
};
/* A step cuts by a pattern, or puts a space in front where there is none (split NULL). */
struct step {
    struct splitter *split;
    enum behavior behavior;
    bool invert;            /* true: matches are what lies between, and the other way round */
    struct pretok_cut *cut; /* of a run; not for ISOLATED */
    size_t n, cap;
    struct str spaced; /* of a run */
};
enum { MAX_STEPS = 32 };
struct pretok {
    struct step step[MAX_STEPS];
    int n;
    bool byte_level; /* true: ByteLevel has come; nothing may come behind it */
    pretok_fn *fn;   /* of a run */
    void *ctx;
};

/* ---- loading ------------------------------------------------------------------------------------------------------*/

static enum status add_step(struct pretok *p, struct step **out, struct err *e) {
    if (p->n == MAX_STEPS) return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: more than %d steps", MAX_STEPS);
    *out = &p->step[p->n++];
    return ST_OK;
}

static enum status add_split(struct pretok *p, const char *pattern, enum behavior behavior, bool invert,
                             struct err *e) {
    struct step *s = NULL;
    TRY(add_step(p, &s, e));
    s->behavior = behavior;
    s->invert = invert;
    return splitter_create(pattern, &s->split, e);
}

static enum status behavior_of(const json_t *j, const char *type, const char *name, enum behavior *out, struct err *e) {
    const json_t *v = json_object_get(j, "behavior");
    if (v) name = json_string_value(v);
    for (size_t i = 0; name && i < ARRAY_LEN(behaviors); i++) {
        if (strcmp(name, behaviors[i]) != 0) continue;
        *out = (enum behavior)i;
        return ST_OK;
    }
    return FAIL(e, ST_UNSUPPORTED,
                "pre_tokenizer %s.behavior: \"%s\" is not supported; expected Isolated, Contiguous, "
                "MergedWithPrevious, MergedWithNext or Removed",
                type, name ? name : "");
}

static enum status load_split(struct pretok *p, const json_t *j, struct err *e) {
    const json_t *pattern = json_object_get(j, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    const json_t *given = regex ? regex : text;
    enum behavior behavior = ISOLATED;
    CLEANUP_STR struct str quoted = STR_INIT;
    const char *s = json_string_value(given);
    if (!s || !*s || strlen(s) != json_string_length(given))
        return FAIL(e, ST_UNSUPPORTED,
                    "pre_tokenizer Split.pattern: expected {\"Regex\": \"...\"} or {\"String\": \"...\"}");
    TRY(behavior_of(j, "Split", "", &behavior, e));
    if (!regex) pattern_quote(s, &quoted);
    if (add_split(p, regex ? s : quoted.p, behavior, json_is_true(json_object_get(j, "invert")), e) == ST_OK)
        return ST_OK;
    return err_note(e, "pre_tokenizer Split.pattern");
}

static enum status load_byte_level(struct pretok *p, const json_t *j, struct err *e) {
    const json_t *regex = json_object_get(j, "use_regex"), *space = json_object_get(j, "add_prefix_space");
    struct step *s = NULL;
    p->byte_level = true;
    if (json_is_true(space)) TRY(add_step(p, &s, e));
    if (regex && !json_is_true(regex)) return ST_OK; /* absent means true */
    return add_split(p, SPLIT_GPT2, ISOLATED, false, e);
}

static enum status load_step(struct pretok *p, const json_t *j, int depth, struct err *e) {
    const char *type = json_string_value(json_object_get(j, "type"));
    if (!type) type = "(no type)";
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        size_t i;
        const json_t *step;
        json_array_foreach(json_object_get(j, "pretokenizers"), i, step) TRY(load_step(p, step, depth + 1, e));
        return ST_OK;
    }
    if (p->byte_level) return FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: \"%s\" after ByteLevel is not supported", type);
    if (strcmp(type, "Split") == 0) return load_split(p, j, e);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(p, j, e);
    if (strcmp(type, "Digits") == 0)
        return add_split(p, "\\p{N}", json_is_true(json_object_get(j, "individual_digits")) ? ISOLATED : CONTIGUOUS,
                         false, e);
    if (strcmp(type, "Punctuation") == 0) { /* Hugging Face's knows that of Unicode 8; what is newer is rare */
        enum behavior behavior = ISOLATED;
        TRY(behavior_of(j, type, "Isolated", &behavior, e));
        return add_split(p, "[\\p{P}$+<=>\\^`|~]", behavior, false, e);
    }
    return FAIL(
        e, ST_UNSUPPORTED,
        "pre_tokenizer.type: \"%s\" is not supported; expected Sequence, Split, Digits, Punctuation and ByteLevel",
        type);
}

enum status pretok_load(const json_t *j, struct pretok **out, struct err *e) {
    struct pretok *p = xcalloc(1, sizeof *p);
    enum status st = ST_OK;
    *out = NULL;
    if (j && !json_is_null(j)) st = load_step(p, j, 0, e);
    if (st == ST_OK && !p->byte_level)
        st = FAIL(e, ST_UNSUPPORTED, "pre_tokenizer: no ByteLevel step; only byte-level BPE is supported");
    if (st != ST_OK) {
        pretok_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

enum status pretok_pattern(const char *pattern, struct pretok **out, struct err *e) {
    struct pretok *p = xcalloc(1, sizeof *p);
    *out = NULL;
    const enum status st = add_split(p, pattern, ISOLATED, false, e);
    if (st != ST_OK) {
        pretok_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void pretok_free(struct pretok *p) {
    if (!p) return;
    for (int i = 0; i < p->n; i++) {
        splitter_free(p->step[i].split);
        free(p->step[i].cut);
        str_free(&p->step[i].spaced);
    }
    free(p);
}

/* ---- running ------------------------------------------------------------------------------------------------------*/

static void run_step(struct pretok *p, int i, const char *text, size_t n);

/* A piece of a step; its context is the step's place. */
struct at_step {
    struct pretok *p;
    int i;
};

static void pass_on(void *ctx, const char *piece, size_t n, bool match) {
    const struct at_step *a = ctx;
    (void)match;
    run_step(a->p, a->i + 1, piece, n);
}

/* Adds a piece that begins where the last one ends; `with_last` makes it longer instead. */
static void keep(struct step *s, struct pretok_cut x, bool with_last) {
    if (with_last && s->n > 0) {
        s->cut[s->n - 1].n += x.n;
        return;
    }
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->cut = xrealloc(s->cut, s->cap * sizeof *s->cut);
    }
    s->cut[s->n++] = x;
}

static void collect(void *ctx, const char *piece, size_t n, bool match) {
    const struct at_step *a = ctx;
    struct step *s = &a->p->step[a->i];
    keep(s, (struct pretok_cut){piece, n, match != s->invert}, false);
}

/* The pieces put together as the behavior says. A run of matches one behind the other is parted, all but Contiguous. */
static void merge(struct step *s) {
    const size_t n = s->n;
    bool before = false; /* whether the piece before was a match */
    s->n = 0;
    for (size_t i = 0; i < n; i++) {
        const struct pretok_cut x = s->cut[i];
        if (s->behavior == CONTIGUOUS)
            keep(s, x, x.match == before);
        else if (s->behavior == WITH_PREVIOUS)
            keep(s, x, x.match && !before);
        else if (s->behavior == WITH_NEXT)
            keep(s, x, !x.match && before);
        else if (!x.match)
            keep(s, x, false);
        before = x.match;
    }
}

static void run_step(struct pretok *p, int i, const char *text, size_t n) {
    if (n == 0) return;
    if (i == p->n) {
        p->fn(p->ctx, text, n);
        return;
    }
    struct step *s = &p->step[i];
    struct at_step at = {p, i};
    if (!s->split) {
        str_clear(&s->spaced);
        if (*text != ' ') str_addc(&s->spaced, ' ');
        str_add(&s->spaced, text, n);
        run_step(p, i + 1, s->spaced.p, s->spaced.len);
    } else if (s->behavior == ISOLATED) {
        splitter_run(s->split, text, n, pass_on, &at);
    } else {
        s->n = 0;
        splitter_run(s->split, text, n, collect, &at);
        merge(s);
        for (size_t k = 0; k < s->n; k++) run_step(p, i + 1, s->cut[k].p, s->cut[k].n);
    }
}

void pretok_run(struct pretok *p, const char *text, size_t n, pretok_fn *fn, void *ctx) {
    p->fn = fn;
    p->ctx = ctx;
    run_step(p, 0, text, n);
}
