#include "io/config.h"

#include <inttypes.h>
#include <libfyaml.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "base/str.h"
#include "io/json.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_KEY_BYTES = 200, MAX_DEPTH = 16 };

/* The section a short key may leave out. */
static const char SHORT_SECTION[] = "dataset_builder.";

/* ---- keys ---------------------------------------------------------------------------------------------------------
 */

static const struct config_key *find_exact(const struct config_schema *s, const char *name) {
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->key[i].name, name) == 0) return &s->key[i];
    return NULL;
}

static const struct config_key *find_short(const struct config_schema *s, const char *name) {
    const struct config_key *k = find_exact(s, name);
    if (k) return k;
    char full[sizeof SHORT_SECTION + MAX_KEY_BYTES];
    if (snprintf(full, sizeof full, "%s%s", SHORT_SECTION, name) >= (int)sizeof full) return NULL;
    return find_exact(s, full);
}

static const struct config_alias *find_alias(const struct config_schema *s, const char *name) {
    char full[sizeof SHORT_SECTION + MAX_KEY_BYTES];
    snprintf(full, sizeof full, "%s%.*s", SHORT_SECTION, (int)MAX_KEY_BYTES, name);
    for (size_t i = 0; i < s->alias_count; i++)
        if (strcmp(s->alias[i].name, name) == 0 || strcmp(s->alias[i].name, full) == 0) return &s->alias[i];
    return NULL;
}

/* The key of a name, or of the one it stands for. */
static const struct config_key *find_any(const struct config_schema *s, const char *name) {
    const struct config_key *k = find_short(s, name);
    const struct config_alias *a = k ? NULL : find_alias(s, name);
    return a && a->key ? find_exact(s, a->key) : k;
}

/* A value for a name that sets nothing. */
static enum status take_alias(const struct config_alias *a, const char *where, bool is_null, struct err *e) {
    if (is_null) return ST_OK;
    if (a->refused) return FAIL(e, ST_CONFIG, "%s: %s: %s", where, a->name, a->doc);
    log_warn("%s: %s has no effect: %s", where, a->name, a->doc);
    return ST_OK;
}

static bool is_section(const struct config_schema *s, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < s->count; i++)
        if (strncmp(s->key[i].name, name, n) == 0 && s->key[i].name[n] == '.') return true;
    for (size_t i = 0; i < s->alias_count; i++)
        if (strncmp(s->alias[i].name, name, n) == 0 && s->alias[i].name[n] == '.') return true;
    return false;
}

/* The known key nearest to name, by full path or by last part; NULL when none is near. */
static const char *suggest(const struct config_schema *s, const char *name) {
    const char *best = NULL, *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    size_t limit = str_near_limit(leaf);
    for (size_t i = 0; i < s->count; i++) {
        const char *full = s->key[i].name, *d = strrchr(full, '.');
        const bool nearer = str_nearer(name, full, &limit);
        if (str_nearer(leaf, d ? d + 1 : full, &limit) || nearer) best = full;
    }
    return best;
}

static enum status unknown_key(const struct config_schema *s, const char *where, const char *name, struct err *e) {
    const char *near = suggest(s, name);
    if (near) return FAIL(e, ST_CONFIG, "%s: unknown key \"%s\"; did you mean \"%s\"?", where, name, near);
    return FAIL(e, ST_CONFIG, "%s: unknown key \"%s\"", where, name);
}

/* ---- allowed values -----------------------------------------------------------------------------------------------
 */

struct number_interval {
    double lo, hi;
    bool lo_open, hi_open;
};

/* "[1,4]", "(0,)", "(,8)"; a missing bound is infinite. The text is the schema's, so a mistake asserts. */
static struct number_interval parse_interval(const char *text) {
    struct number_interval r = {-INFINITY, INFINITY, true, true};
    if (!text) return r;
    char *end;
    const char *p = text + 1;
    ASSERT(text[0] == '[' || text[0] == '(');
    if (*p != ',') {
        r.lo = strtod(p, &end);
        r.lo_open = text[0] == '(';
        p = end;
    }
    ASSERT(*p == ',');
    p++;
    if (*p != ')' && *p != ']') {
        r.hi = strtod(p, &end);
        p = end;
        r.hi_open = *p == ')';
    }
    ASSERT((*p == ')' || *p == ']') && p[1] == 0);
    return r;
}

static bool in_interval(double v, const char *text) {
    struct number_interval r = parse_interval(text);
    return (r.lo_open ? v > r.lo : v >= r.lo) && (r.hi_open ? v < r.hi : v <= r.hi);
}

static void describe_interval(const char *text, struct str *out) {
    struct number_interval r = parse_interval(text);
    bool lo = isfinite(r.lo), hi = isfinite(r.hi);
    if (lo && hi && !r.lo_open && !r.hi_open) {
        str_addf(out, " from %.10g to %.10g", r.lo, r.hi);
        return;
    }
    if (lo) str_addf(out, " %s %.10g", r.lo_open ? ">" : ">=", r.lo);
    if (lo && hi) str_adds(out, " and");
    if (hi) str_addf(out, " %s %.10g", r.hi_open ? "<" : "<=", r.hi);
}

/* Index of a name in "a|b|c", or -1. */
static int choice_index(const char *allowed, const char *name) {
    size_t n = strlen(name);
    int i = 0;
    for (const char *p = allowed; p; i++) {
        const char *bar = strchr(p, '|');
        size_t len = bar ? (size_t)(bar - p) : strlen(p);
        if (len == n && memcmp(p, name, n) == 0) return i;
        p = bar ? bar + 1 : NULL;
    }
    return -1;
}

static void add_choice(const char *allowed, int index, struct str *out) {
    const char *p = allowed;
    while (index-- > 0) {
        p = strchr(p, '|');
        ASSERT(p);
        p++;
    }
    str_add(out, p, strcspn(p, "|"));
}

/* What a value of the key looks like: "a number > 0", "one of grpo, rloo". */
static void describe_key(const struct config_key *k, struct str *out) {
    switch (k->type) {
    case CONFIG_BOOL: str_adds(out, "true or false"); break;
    case CONFIG_INT:
        str_adds(out, "a whole number");
        describe_interval(k->allowed, out);
        break;
    case CONFIG_FLOAT:
        str_adds(out, "a number");
        describe_interval(k->allowed, out);
        break;
    case CONFIG_STRING: str_adds(out, "text"); break;
    case CONFIG_ENUM:
        str_adds(out, "one of ");
        for (const char *p = k->allowed; *p; p++) str_adds(out, *p == '|' ? ", " : (char[]){*p, 0});
        break;
    case CONFIG_STRINGS: str_adds(out, "a list of texts"); break;
    }
    if (k->optional) str_adds(out, ", or null");
}

/* ---- storing one value --------------------------------------------------------------------------------------------
 */

/* A value as a source gave it. Exactly one of text and item is set, or is_null. */
struct given {
    const char *text;
    const char *const *item; /* a list */
    size_t count;
    bool is_null; /* a plain null */
};

/* `on` and `off` are YAML 1.1's; files that other programs wrote have them. */
static bool parse_bool(const char *s, bool *out) {
    static const char *const yes[] = {"true", "True", "TRUE", "on", "On", "ON"}, *const no[] = {"false", "False",
                                                                                                "FALSE", "off",
                                                                                                "Off",   "OFF"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (strcmp(s, yes[i]) == 0) return *out = true, true;
        if (strcmp(s, no[i]) == 0) return *out = false, true;
    }
    return false;
}

static void *field(const struct config *c, const struct config_key *k) { return (char *)c->values + k->offset; }

/* "a,b, c" or "[a, b]" into the arena; empty text gives an empty list. */
static struct config_strings split_list(struct arena *a, const char *text) {
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    char *copy = arena_strndup(a, text, n);
    if (copy[strspn(copy, " ")] == 0) return (struct config_strings){0};
    size_t count = 1;
    for (const char *p = copy; *p; p++) count += *p == ',';
    const char **item = arena_array(a, const char *, count);
    char *p = copy;
    for (size_t i = 0; i < count; i++) {
        char *comma = strchr(p, ','), *next = comma ? comma + 1 : NULL;
        if (comma) *comma = 0;
        p += strspn(p, " ");
        for (size_t len = strlen(p); len > 0 && p[len - 1] == ' '; len--) p[len - 1] = 0;
        item[i] = p;
        p = next;
    }
    return (struct config_strings){item, count};
}

static bool is_narrow(const struct config_key *k) { return k->bytes < sizeof(int64_t); }

static void put_int(struct config *c, const struct config_key *k, int64_t value) {
    if (is_narrow(k))
        *(int *)field(c, k) = (int)value;
    else
        *(int64_t *)field(c, k) = value;
}

static int64_t get_int(const struct config *c, const struct config_key *k) {
    return is_narrow(k) ? *(const int *)field(c, k) : *(const int64_t *)field(c, k);
}

/* True: every allowed value fits the field. */
static bool fits_field(const struct config_key *k) {
    if (k->type != CONFIG_INT || !is_narrow(k)) return true;
    const struct number_interval r = parse_interval(k->allowed);
    return r.lo >= INT_MIN && r.hi <= INT_MAX;
}

static bool store_list(struct config *c, const struct config_key *k, const struct given *g) {
    struct config_strings *dst = field(c, k);
    if (g->text) {
        *dst = split_list(&c->arena, g->text);
        return true;
    }
    const char **item = arena_array(&c->arena, const char *, g->count + 1);
    for (size_t i = 0; i < g->count; i++) item[i] = arena_strdup(&c->arena, g->item[i]);
    *dst = (struct config_strings){item, g->count};
    return true;
}

static void store_unset(struct config *c, const struct config_key *k) {
    void *dst = field(c, k);
    switch (k->type) {
    case CONFIG_INT: *(int64_t *)dst = CONFIG_UNSET_INT; break;
    case CONFIG_FLOAT: *(double *)dst = CONFIG_UNSET_FLOAT; break;
    case CONFIG_STRING: *(const char **)dst = NULL; break;
    case CONFIG_ENUM: *(int *)dst = CONFIG_UNSET_ENUM; break;
    default: ASSERT(false); /* no other type is ever optional */
    }
}

/* Stores the value when it fits the key. */
static bool store(struct config *c, const struct config_key *k, const struct given *g) {
    if (g->is_null) {
        if (k->optional) {
            store_unset(c, k);
            return true;
        }
        return store(c, k, &(struct given){.text = k->def});
    }
    if (k->type == CONFIG_STRINGS) return store_list(c, k, g);
    if (!g->text) return false;
    void *dst = field(c, k);
    int64_t i;
    double d;
    switch (k->type) {
    case CONFIG_BOOL: return parse_bool(g->text, dst);
    case CONFIG_INT:
        /* CONFIG_UNSET_INT is no value. */
        if (!parse_i64(g->text, &i) || i == CONFIG_UNSET_INT || !in_interval((double)i, k->allowed)) return false;
        put_int(c, k, i);
        return true;
    case CONFIG_FLOAT:
        if (!parse_f64(g->text, &d) || !isfinite(d) || !in_interval(d, k->allowed)) return false;
        *(double *)dst = d;
        return true;
    case CONFIG_ENUM: {
        int index = choice_index(k->allowed, g->text);
        if (index < 0) return false;
        *(int *)dst = index;
        return true;
    }
    default: *(const char **)dst = arena_strdup(&c->arena, g->text); return true;
    }
}

static enum status bad_value(const struct config_key *k, const char *where, const char *got, struct err *e) {
    CLEANUP_STR struct str want = STR_INIT;
    describe_key(k, &want);
    return FAIL(e, ST_CONFIG, "%s: %s: expected %s, got %s", where, k->name, str_c(&want), got);
}

static void set_source(struct config *c, const struct config_key *k, const char *source) {
    c->source[k - c->schema->key] = source;
}

void config_init(struct config *c, const struct config_schema *schema, void *values) {
    *c = (struct config){.schema = schema, .values = values};
    memset(values, 0, schema->values_bytes);
    c->source = arena_array(&c->arena, const char *, schema->count + 1);
    for (size_t i = 0; i < schema->count; i++) {
        const struct config_key *k = &schema->key[i];
        struct given g = {.text = k->def};
        if (k->optional && strcmp(k->def, "null") == 0) g = (struct given){.is_null = true};
        ASSERT(strlen(k->name) <= MAX_KEY_BYTES);
        ASSERT(fits_field(k) && "an int does not hold all that its key allows");
        bool fits = store(c, k, &g);
        ASSERT(fits && "a default breaks its key's rule");
        c->source[i] = "default";
    }
}

void config_free(struct config *c) {
    arena_free(&c->arena);
    *c = (struct config){0};
}

/* ---- YAML ---------------------------------------------------------------------------------------------------------
 */

struct yaml {
    struct config *c;
    const char *name, *text;
    size_t len;
    bool *seen; /* per key: set by this file */
};

/* Appends the source line and a caret to the message: "   12 | learning_rate: fast". line and column count from 0. */
static enum status with_caret(const struct yaml *y, int line, int column, struct err *e) {
    const char *p = y->text, *end = y->text + y->len;
    for (int i = 0; i < line && p < end; i++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        p = nl ? nl + 1 : end;
    }
    const char *nl = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
    int n = (int)((nl ? nl : end) - p), at = column;
    if (!e || n > 160 || at > n) return ST_CONFIG;
    size_t used = strlen(e->msg);
    /* Tabs stay tabs in front of the caret, so that it stands under its column. */
    char pad[161];
    for (int i = 0; i < at; i++) pad[i] = p[i] == '\t' ? '\t' : ' ';
    pad[at] = 0;
    snprintf(e->msg + used, sizeof e->msg - used, "\n%6d | %.*s\n       | %s^", line + 1, n, p, pad);
    return ST_CONFIG;
}

/* Where a node stands; `fallback` is for nodes without text of their own (an empty value). */
static struct fy_mark node_mark(struct fy_node *n, struct fy_mark fallback) {
    struct fy_token *t = n && fy_node_is_scalar(n) ? fy_node_get_scalar_token(n) : NULL;
    const struct fy_mark *m = t ? fy_token_start_mark(t) : NULL;
    if (!m) return fallback;
    struct fy_mark at = *m;
    enum fy_node_style style = fy_node_get_style(n);
    /* A quoted scalar's token begins behind its quote. */
    if ((style == FYNS_SINGLE_QUOTED || style == FYNS_DOUBLE_QUOTED) && at.column > 0) at.column--;
    return at;
}

static const char *place(const struct yaml *y, struct fy_mark m) {
    return arena_printf(&y->c->arena, "%s:%d:%d", y->name, m.line + 1, m.column + 1);
}

/* Copies a scalar. NULL when it holds a NUL byte, which no value may. */
static const char *scalar_text(struct arena *a, struct fy_node *n) {
    size_t len = 0;
    const char *s = fy_node_get_scalar(n, &len);
    if (s && memchr(s, 0, len)) return NULL;
    return arena_strndup(a, s ? s : "", len);
}

static bool is_plain_null(struct fy_node *n) {
    if (!n) return true;
    if (!fy_node_is_scalar(n) || fy_node_is_alias(n) || fy_node_get_style(n) != FYNS_PLAIN) return false;
    size_t len = 0;
    const char *s = fy_node_get_scalar(n, &len);
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < ARRAY_LEN(nulls); i++)
        if (len == strlen(nulls[i]) && (len == 0 || memcmp(s, nulls[i], len) == 0)) return true;
    return false;
}

static enum status load_value(struct yaml *y, const struct config_key *k, struct fy_node *n, struct fy_mark key_mark,
                              struct err *e) {
    struct arena *a = &y->c->arena;
    struct fy_mark m = node_mark(n, key_mark);
    const char *where = place(y, m), *got = NULL;
    size_t i = (size_t)(k - y->c->schema->key);
    if (y->seen[i]) {
        (void)FAIL(e, ST_CONFIG, "%s: %s: given twice in this file", where, k->name);
        return with_caret(y, m.line, m.column, e);
    }
    y->seen[i] = true;

    struct given g = {0};
    if (is_plain_null(n)) {
        g.is_null = true;
        got = "null";
    } else if (fy_node_is_alias(n)) {
        got = "an alias (aliases are not supported here)";
    } else if (fy_node_is_mapping(n)) {
        got = "a map";
    } else if (fy_node_is_sequence(n)) {
        got = "a list";
        size_t count = 0;
        const char **item = arena_array(a, const char *, (size_t)fy_node_sequence_item_count(n) + 1);
        void *it = NULL;
        for (struct fy_node *x; (x = fy_node_sequence_iterate(n, &it));) {
            item[count] = fy_node_is_scalar(x) && !fy_node_is_alias(x) ? scalar_text(a, x) : NULL;
            if (!item[count++]) {
                (void)bad_value(k, where, "a list with something else in it", e);
                return with_caret(y, m.line, m.column, e);
            }
        }
        g.item = item;
        g.count = count;
    } else {
        g.text = scalar_text(a, n);
        got = g.text ? arena_printf(a, "\"%.100s\"", g.text) : "text with a NUL byte";
    }
    bool usable = g.is_null || g.text || (g.item && k->type == CONFIG_STRINGS);
    if (usable && store(y->c, k, &g)) {
        set_source(y->c, k, where);
        return ST_OK;
    }
    (void)bad_value(k, where, got, e);
    return with_caret(y, m.line, m.column, e);
}

static enum status load_map(struct yaml *y, struct fy_node *map, const char *prefix, int depth, struct err *e) {
    const struct config_schema *s = y->c->schema;
    void *it = NULL;
    for (struct fy_node_pair *p; (p = fy_node_mapping_iterate(map, &it));) {
        struct fy_node *key = fy_node_pair_key(p), *value = fy_node_pair_value(p);
        struct fy_mark m = node_mark(key, (struct fy_mark){0});
        const char *leaf = key && fy_node_is_scalar(key) ? scalar_text(&y->c->arena, key) : NULL;
        if (!leaf || depth > MAX_DEPTH) {
            (void)FAIL(e, ST_CONFIG, "%s: %s", place(y, m), leaf ? "nested too deep" : "expected a key");
            return with_caret(y, m.line, m.column, e);
        }
        const char *name = arena_printf(&y->c->arena, "%s%s", prefix, leaf);
        const struct config_alias *alias = find_alias(s, name);
        const struct config_key *k = find_exact(s, alias && alias->key ? alias->key : name);
        if (k) {
            TRY(load_value(y, k, value, m, e));
        } else if (alias) {
            if (take_alias(alias, place(y, m), is_plain_null(value), e) != ST_OK)
                return with_caret(y, m.line, m.column, e);
        } else if (is_section(s, name)) {
            if (is_plain_null(value)) continue; /* a section with all its keys commented out */
            if (!fy_node_is_mapping(value)) {
                (void)FAIL(e, ST_CONFIG, "%s: %s: expected a map of keys", place(y, node_mark(value, m)), name);
                return with_caret(y, m.line, m.column, e);
            }
            TRY(load_map(y, value, arena_printf(&y->c->arena, "%s.", name), depth + 1, e));
        } else {
            (void)unknown_key(s, place(y, m), name, e);
            return with_caret(y, m.line, m.column, e);
        }
    }
    return ST_OK;
}

/* The first error that libfyaml collected, in our form. Its lines and columns count from 1. */
static enum status yaml_error(const struct yaml *y, struct fy_diag *diag, struct err *e) {
    void *it = NULL;
    const struct fy_diag_error *d = fy_diag_errors_iterate(diag, &it);
    if (!d || !d->msg) return FAIL(e, ST_CONFIG, "%s: not a YAML document", y->name);
    (void)FAIL(e, ST_CONFIG, "%s:%d:%d: %s", y->name, d->line, d->column, d->msg);
    return with_caret(y, d->line - 1, d->column - 1, e);
}

static void discard(struct fy_diag *diag, void *user, const char *buf, size_t len) {
    (void)diag;
    (void)user;
    (void)buf;
    (void)len;
}

/* A parser that keeps its errors to itself. The caller destroys both, the parser first. */
static struct fy_parser *quiet_parser(struct fy_diag **diag) {
    struct fy_diag_cfg dcfg;
    fy_diag_cfg_default(&dcfg);
    dcfg.output_fn = discard;
    dcfg.fp = NULL;
    *diag = fy_diag_create(&dcfg);
    ASSERT(*diag);
    fy_diag_set_collect_errors(*diag, true);
    struct fy_parse_cfg cfg = {.flags = FYPCF_JSON_NONE, .diag = *diag};
    struct fy_parser *parser = fy_parser_create(&cfg);
    ASSERT(parser);
    return parser;
}

/* libfyaml is kept from bytes that are no text: some make it loop for ever (version 0.7.12, in a directive line). */
static enum status check_text(const struct yaml *y, struct err *e) {
    size_t good = js_utf8_prefix(y->text, y->len), i = 0;
    int line = 1, column = 1;
    for (; i < good; i++) {
        unsigned char ch = (unsigned char)y->text[i];
        if ((ch < 0x20 && ch != '\t' && ch != '\n' && ch != '\r') || ch == 0x7f) break;
        column++;
        if (ch != '\n') continue;
        line++;
        column = 1;
    }
    if (i == y->len) return ST_OK;
    return FAIL(e, ST_CONFIG, "%s:%d:%d: expected UTF-8 text, got byte 0x%02x", y->name, line, column,
                (unsigned char)y->text[i]);
}

/* True: two quotes of single-quoted text ('' each) meet: nothing between them, or only the end of a line. */
static bool quotes_meet(const char *p, size_t n) {
    bool one = false, space = false, line = false; /* behind one, with this since */
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && p[i] == '\'' && p[i + 1] == '\'') {
            if (one && (line || !space)) return true;
            one = true;
            space = line = false;
            i++;
        } else if (p[i] == '\n' || p[i] == '\r') {
            line = true;
        } else if (p[i] == ' ' || p[i] == '\t') {
            space = true;
        } else {
            one = false;
        }
    }
    return false;
}

/* And from quotes side by side within single quotes, 'a''''b': version 0.7.12 makes one more of them, for which the
 * text behind them is cut, and leaks. Errors of the text are found later, by whoever reads it whole. */
static enum status check_quotes(const struct yaml *y, struct err *e) {
    if (!memmem(y->text, y->len, "''", 2)) return ST_OK;
    struct fy_diag *diag;
    struct fy_parser *parser = quiet_parser(&diag);
    enum status st = ST_OK;
    const bool given = fy_parser_set_string(parser, y->text, y->len) == 0;
    for (struct fy_event *event; given && st == ST_OK && (event = fy_parser_parse(parser));) {
        struct fy_token *t = event->type == FYET_SCALAR ? event->scalar.value : NULL;
        const struct fy_mark *from = t ? fy_token_start_mark(t) : NULL, *to = t ? fy_token_end_mark(t) : NULL;
        if (from && to && fy_scalar_token_get_style(t) == FYSS_SINGLE_QUOTED && from->input_pos <= to->input_pos &&
            to->input_pos <= y->len && quotes_meet(y->text + from->input_pos, to->input_pos - from->input_pos)) {
            const int column = from->column > 0 ? from->column - 1 : 0; /* it begins behind its quote */
            (void)FAIL(e, ST_CONFIG, "%s:%d:%d: several quotes side by side within single quotes: use double quotes",
                       y->name, from->line + 1, column + 1);
            st = with_caret(y, from->line, column, e);
        }
        fy_parser_event_free(parser, event);
    }
    fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    return st;
}

enum status config_load_text(struct config *c, const char *name, const char *text, size_t len, struct err *e) {
    struct yaml y = {.c = c, .name = arena_strdup(&c->arena, name), .text = text, .len = len};
    y.seen = arena_array(&c->arena, bool, c->schema->count + 1);
    TRY(check_text(&y, e));
    TRY(check_quotes(&y, e));
    struct fy_diag *diag;
    struct fy_parser *parser = quiet_parser(&diag);
    enum status st = ST_OK;
    struct fy_document *doc = NULL;
    if (len > 0 && fy_parser_set_string(parser, text, len) == 0) doc = fy_parse_load_document(parser);
    if (len > 0 && fy_diag_got_error(diag)) {
        st = yaml_error(&y, diag, e);
    } else if (doc) {
        struct fy_node *root = fy_document_root(doc);
        struct fy_document *second = NULL;
        if (is_plain_null(root))
            ; /* only comments */
        else if (!fy_node_is_mapping(root))
            st = FAIL(e, ST_CONFIG, "%s: expected a map of keys at the top level", name);
        else
            st = load_map(&y, root, "", 0, e);
        if (st == ST_OK) {
            second = fy_parse_load_document(parser);
            if (fy_diag_got_error(diag))
                st = yaml_error(&y, diag, e);
            else if (second)
                st = FAIL(e, ST_CONFIG, "%s: expected one YAML document, found more", name);
        }
        if (second) fy_parse_document_destroy(parser, second);
    }
    if (doc) fy_parse_document_destroy(parser, doc);
    fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    return st;
}

enum status config_load(struct config *c, const char *path, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t len = 0;
    if (*path != '/' && access(path, F_OK) != 0) { /* such as configs/quickstart.yaml of a program that is installed */
        const char *ours = arena_printf(&c->arena, "%s/%s", home_dir(), path);
        if (fs_is_file(ours)) path = ours;
    }
    TRY(fs_read(path, MAX_FILE_BYTES, &text, &len, e));
    return config_load_text(c, path, text, len, e);
}

/* ---- command line -------------------------------------------------------------------------------------------------
 */

static const char CMDLINE[] = "command line";

static enum status set_text(struct config *c, const struct config_key *k, const char *value, struct err *e) {
    struct given g = {.text = value};
    /* An optional string can be unset, so the word null is taken for that; quotes make it text. */
    if (strcmp(value, "null") == 0 || (k->optional && (strcmp(value, "None") == 0 || strcmp(value, "~") == 0)))
        g = (struct given){.is_null = true};
    else if (k->type == CONFIG_STRING && strcmp(value, "\"null\"") == 0)
        g.text = "null";
    if (store(c, k, &g)) {
        set_source(c, k, CMDLINE);
        return ST_OK;
    }
    return bad_value(k, CMDLINE, g.is_null ? "null" : arena_printf(&c->arena, "\"%.100s\"", value), e);
}

enum status config_set(struct config *c, const char *assignment, struct err *e) {
    const char *eq = strchr(assignment, '=');
    if (!eq || eq == assignment)
        return FAIL(e, ST_CONFIG, "%s: expected key=value, got \"%.100s\"", CMDLINE, assignment);
    const char *name = arena_strndup(&c->arena, assignment, (size_t)(eq - assignment));
    const struct config_key *k = find_any(c->schema, name);
    if (k) return set_text(c, k, eq + 1, e);
    const struct config_alias *a = find_alias(c->schema, name);
    return a ? take_alias(a, CMDLINE, strcmp(eq + 1, "null") == 0, e) : unknown_key(c->schema, CMDLINE, name, e);
}

enum status config_preset(struct config *c, const char *source, const char *assignment, struct err *e) {
    const char *eq = strchr(assignment, '=');
    ASSERT(eq);
    const struct config_key *k = find_short(c->schema, arena_strndup(&c->arena, assignment, (size_t)(eq - assignment)));
    ASSERT(k && "a preset of an unknown key");
    if (strcmp(c->source[k - c->schema->key], "default") != 0) return ST_OK;
    TRY(set_text(c, k, eq + 1, e));
    set_source(c, k, arena_strdup(&c->arena, source));
    return ST_OK;
}

/* "--some-key[=value]" into its key; *value is NULL without '='. */
static enum status parse_flag(struct config *c, const char *arg, const struct config_key **k, const char **value,
                              struct err *e) {
    const char *eq = strchr(arg, '=');
    *value = eq ? eq + 1 : NULL;
    char *name = arena_strndup(&c->arena, arg + 2, eq ? (size_t)(eq - arg - 2) : strlen(arg + 2));
    for (char *p = name; *p; p++)
        if (*p == '-') *p = '_';
    *k = find_any(c->schema, name);
    if (*k) return ST_OK;
    const struct config_alias *a = find_alias(c->schema, name);
    return a ? FAIL(e, ST_CONFIG, "%s: %s: %s", CMDLINE, a->name, a->doc) : unknown_key(c->schema, CMDLINE, name, e);
}

/* A word alone: a folder is most likely the model's. */
static enum status no_assignment(const struct config_schema *s, const char *arg, struct err *e) {
    const bool model = fs_is_dir(arg) && find_any(s, "model_name");
    return FAIL(e, ST_USAGE, "%s: expected key=value or --key value, got \"%.100s\"%s%.100s%s", CMDLINE, arg,
                model ? "; did you mean model_name=" : "", model ? arg : "", model ? "?" : "");
}

enum status config_args(struct config *c, int argc, char **argv, struct err *e) {
    /* Two passes: files first, wherever they stand; then everything else. */
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < argc; i++) {
            const char *arg = argv[i], *file = NULL;
            if (strcmp(arg, "--config") == 0) {
                if (i + 1 >= argc) return FAIL(e, ST_USAGE, "%s: --config: expected a file", CMDLINE);
                file = argv[++i];
            } else if (str_has_prefix(arg, "--config=")) {
                file = arg + strlen("--config=");
            }
            if (file) {
                if (pass == 0) TRY(config_load(c, file, e));
                continue;
            }
            if (!str_has_prefix(arg, "--")) {
                if (pass == 0) continue;
                if (!strchr(arg, '=')) return no_assignment(c->schema, arg, e);
                TRY(config_set(c, arg, e));
                continue;
            }
            const struct config_key *k;
            const char *value;
            TRY(parse_flag(c, arg, &k, &value, e));
            bool ignored;
            if (!value && k->type == CONFIG_BOOL && (i + 1 >= argc || !parse_bool(argv[i + 1], &ignored)))
                value = "true";
            if (!value) {
                if (i + 1 >= argc) return FAIL(e, ST_USAGE, "%s: %s: expected a value", CMDLINE, arg);
                value = argv[++i];
            }
            if (pass == 1) TRY(set_text(c, k, value, e));
        }
    }
    return ST_OK;
}

const char *config_source(const struct config *c, const char *key) {
    const struct config_key *k = find_exact(c->schema, key);
    ASSERT(k && "not a key of this schema");
    return c->source[k - c->schema->key];
}

enum status config_reject(const struct config *c, const char *key, struct err *e, const char *fmt, ...) {
    char msg[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return FAIL(e, ST_CONFIG, "%s: %s: %s", config_source(c, key), key, msg);
}

/* ---- output -------------------------------------------------------------------------------------------------------
 */

static void dump_value(const struct config *c, const struct config_key *k, struct str *out) {
    const void *v = field(c, k);
    switch (k->type) {
    case CONFIG_BOOL: str_adds(out, *(const bool *)v ? "true" : "false"); break;
    case CONFIG_INT:
        if (get_int(c, k) == CONFIG_UNSET_INT)
            str_adds(out, "null");
        else
            str_addf(out, "%" PRId64, get_int(c, k));
        break;
    case CONFIG_FLOAT:
        if (isnan(*(const double *)v))
            str_adds(out, "null");
        else
            js_add_number(out, *(const double *)v);
        break;
    case CONFIG_STRING: {
        const char *s = *(const char *const *)v;
        if (s)
            js_add_quoted(out, s, strlen(s)); /* a JSON string is a YAML string */
        else
            str_adds(out, "null");
        break;
    }
    case CONFIG_ENUM:
        if (*(const int *)v == CONFIG_UNSET_ENUM)
            str_adds(out, "null");
        else
            add_choice(k->allowed, *(const int *)v, out);
        break;
    case CONFIG_STRINGS: {
        const struct config_strings *l = v;
        str_addc(out, '[');
        for (size_t i = 0; i < l->count; i++) {
            if (i) str_adds(out, ", ");
            js_add_quoted(out, l->item[i], strlen(l->item[i]));
        }
        str_addc(out, ']');
        break;
    }
    }
}

/* All keys below prefix ("" or "section."), in schema order; a section appears where its first key stands. */
static void dump_section(const struct config *c, const char *prefix, int indent, struct str *out) {
    const struct config_schema *s = c->schema;
    size_t n = strlen(prefix);
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->key[i].name;
        if (strncmp(name, prefix, n) != 0) continue;
        const char *leaf = name + n, *dot = strchr(leaf, '.');
        if (!dot) {
            str_addf(out, "%*s%s: ", indent, "", leaf);
            dump_value(c, &s->key[i], out);
            str_addc(out, '\n');
            continue;
        }
        char section[MAX_KEY_BYTES + 2];
        snprintf(section, sizeof section, "%.*s", (int)(dot + 1 - name), name);
        size_t first = 0;
        while (!str_has_prefix(s->key[first].name, section)) first++;
        if (first != i) continue;
        str_addf(out, "%*s%.*s:\n", indent, "", (int)(dot - leaf), leaf);
        dump_section(c, section, indent + 2, out);
    }
}

void config_dump(const struct config *c, struct str *out) { dump_section(c, "", 0, out); }

static void help_key(const struct config_key *k, struct str *out) {
    str_addf(out, "%s: ", k->name);
    describe_key(k, out);
    str_addf(out, "; default %s\n", k->def[0] ? k->def : "\"\"");
    /* The doc, wrapped at 100 columns. */
    int column = 0;
    for (const char *p = k->doc; *p;) {
        size_t word = strcspn(p, " \n");
        if (column > 0 && column + 1 + (int)word > 96) {
            str_addc(out, '\n');
            column = 0;
        }
        str_adds(out, column ? " " : "    ");
        str_add(out, p, word);
        column += (int)word + (column ? 1 : 0);
        p += word;
        p += strspn(p, " \n");
    }
    str_addc(out, '\n');
}

/* Returns how many bytes of a key's name are its section; 0 at the top level. */
static size_t section_bytes(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

/* Returns whether a key is of the section that the first n bytes of NAME call. */
static bool is_in_section(const struct config_key *k, const char *name, size_t n) {
    return section_bytes(k->name) == n && strncmp(k->name, name, n) == 0;
}

/* Returns whether key i is the first one of its section. */
static bool begins_section(const struct config_schema *s, size_t i) {
    const size_t n = section_bytes(s->key[i].name);
    for (size_t k = 0; k < i; k++)
        if (is_in_section(&s->key[k], s->key[i].name, n)) return false;
    return true;
}

/* Returns the heading of the topic that begins with key i, or NULL. */
static const char *topic_from(const struct config_schema *s, size_t i) {
    for (size_t t = 0; t < s->topic_count; t++)
        if (strcmp(s->topic[t].from, s->key[i].name) == 0) return s->topic[t].heading;
    return NULL;
}

/* How keys are written, for a terminal or a document. */
struct key_style {
    void (*section)(const char *name, size_t n, struct str *out); /* n 0: the top level */
    void (*topic)(const char *section, size_t n, const char *topic, struct str *out);
    void (*key)(const struct config_key *k, struct str *out);
};

/* The keys that are written: those of a schema that another one, which may be NULL, does not have. */
struct key_choice {
    const struct config_schema *s, *without;
    const struct key_style *style;
};

static bool is_wanted(const struct key_choice *c, size_t i) {
    return !c->without || !find_exact(c->without, c->s->key[i].name);
}

/* Appends the keys of a section (its name is the first n bytes of NAME) that are of a topic; NULL: of none. */
static void write_topic(const struct key_choice *c, const char *name, size_t n, const char *topic, struct str *out) {
    const char *now = NULL;
    for (size_t i = 0; i < c->s->count; i++) {
        if (!is_in_section(&c->s->key[i], name, n)) continue;
        const char *begins = topic_from(c->s, i);
        if (begins) now = begins;
        if ((topic ? now && strcmp(now, topic) == 0 : !now) && is_wanted(c, i)) c->style->key(&c->s->key[i], out);
    }
}

/* Appends the keys of a section: those without a topic, then topic by topic. */
static void write_section(const struct key_choice *c, const char *name, size_t n, struct str *out) {
    const struct config_schema *s = c->s;
    write_topic(c, name, n, NULL, out);
    for (size_t i = 0; i < s->count; i++) {
        const char *topic = is_in_section(&s->key[i], name, n) ? topic_from(s, i) : NULL;
        bool shown = false;
        for (size_t k = 0; topic && k < i && !shown; k++) {
            const char *before = is_in_section(&s->key[k], name, n) ? topic_from(s, k) : NULL;
            shown = before && strcmp(before, topic) == 0;
        }
        CLEANUP_STR struct str keys = STR_INIT;
        if (!topic || shown) continue;
        write_topic(c, name, n, topic, &keys);
        if (keys.len == 0) continue;
        c->style->topic(name, n, topic, out);
        str_add(out, keys.p, keys.len);
    }
}

/* Appends all keys, section by section, the top level first. A schema without sections has no headings. */
static void write_all(const struct key_choice *c, struct str *out) {
    const struct config_schema *s = c->s;
    bool nested = false;
    for (size_t i = 0; i < s->count; i++) nested |= section_bytes(s->key[i].name) > 0;
    if (nested) c->style->section("", 0, out);
    write_section(c, "", 0, out);
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->key[i].name;
        const size_t n = section_bytes(name);
        CLEANUP_STR struct str keys = STR_INIT;
        if (n == 0 || !begins_section(s, i)) continue;
        write_section(c, name, n, &keys);
        if (keys.len == 0) continue;
        c->style->section(name, n, out);
        str_add(out, keys.p, keys.len);
    }
}

/* ---- help ---------------------------------------------------------------------------------------------------------*/

static void help_section(const char *name, size_t n, struct str *out) {
    if (n == 0)
        str_adds(out, "Keys of the top level:\n\n");
    else
        str_addf(out, "\nKeys of %.*s:\n\n", (int)n, name);
}

static void help_topic(const char *section, size_t n, const char *topic, struct str *out) {
    (void)section, (void)n;
    str_addf(out, "%s  %s\n\n", out->len == 0 || str_has_suffix(str_c(out), "\n\n") ? "" : "\n", topic);
}

static const struct key_style help_style = {help_section, help_topic, help_key};

enum status config_help(const struct config_schema *schema, const char *key, struct str *out, struct err *e) {
    const struct config_key *k = key ? find_short(schema, key) : NULL;
    if (k) {
        help_key(k, out);
        return ST_OK;
    }
    const struct config_alias *a = key && !k ? find_alias(schema, key) : NULL;
    if (a) {
        str_addf(out, "%s: %s%s%s%s\n", a->name, a->key ? "another name of " : "", a->key ? a->key : "",
                 a->key ? ". " : "", a->doc);
        return a->key ? config_help(schema, a->key, out, e) : ST_OK;
    }
    if (key && !is_section(schema, key)) return unknown_key(schema, "help", key, e);
    if (!key) {
        write_all(&(struct key_choice){.s = schema, .style = &help_style}, out);
        return ST_OK;
    }
    const size_t n = strlen(key);
    for (size_t i = 0; i < schema->count; i++)
        if (strncmp(schema->key[i].name, key, n) == 0 && schema->key[i].name[n] == '.') help_key(&schema->key[i], out);
    return ST_OK;
}

/* ---- Markdown -----------------------------------------------------------------------------------------------------*/

static void table_head(struct str *out) { str_adds(out, "| key | values | default | meaning |\n|---|---|---|---|\n"); }

static void markdown_section(const char *name, size_t n, struct str *out) {
    if (n > 0) str_addf(out, "\n### `%.*s`\n\n", (int)n, name);
}

static void markdown_topic(const char *section, size_t n, const char *topic, struct str *out) {
    if (out->len) str_addc(out, '\n');
    if (n == 0)
        str_addf(out, "### %s\n\n", topic);
    else
        str_addf(out, "#### `%.*s`: %s\n\n", (int)n, section, topic);
}

static void markdown_key(const struct config_key *k, struct str *out) {
    if (!str_has_suffix(str_c(out), "|\n")) table_head(out);
    str_addf(out, "| `%s` | ", k->name);
    describe_key(k, out);
    str_addf(out, " | `%s` | %s |\n", k->def[0] ? k->def : "\"\"", k->doc);
}

void config_markdown(const struct config_schema *schema, const struct config_schema *without, struct str *out) {
    static const struct key_style style = {markdown_section, markdown_topic, markdown_key};
    write_all(&(struct key_choice){.s = schema, .without = without, .style = &style}, out);
}
