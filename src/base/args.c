#include "base/args.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* ---- words in lists -----------------------------------------------------------------------------------------------*/

/* Appends "a, b or c" of a list. */
static void join(const char *list, char bar, struct str *out) {
    for (const char *p = list; *p;) {
        p += *p == bar;
        const char *end = strchrnul(p, bar);
        str_add(out, p, (size_t)(end - p));
        if (*end) str_adds(out, strchr(end + 1, bar) ? ", " : " or ");
        p = end;
    }
}

void args_choices(const char *choices, struct str *out) { join(choices, '|', out); }

/* ---- what a flag is called and takes ------------------------------------------------------------------------------*/

/* Appends the name that messages use. */
static void add_name(const struct args_flag *f, struct str *out) {
    if (f->name)
        str_addf(out, "--%s", f->name);
    else
        str_addf(out, "-%c", f->letter);
}

static bool has_range(const struct args_flag *f) {
    return (f->type == ARGS_INT && (f->low != INT64_MIN || f->high != INT64_MAX)) || f->type == ARGS_FLOAT;
}

static void add_range(const struct args_flag *f, const char *from, const char *at_least, struct str *out) {
    if (f->type == ARGS_FLOAT)
        str_addf(out, "%s%.10g to %.10g", from, f->least, f->most);
    else if (f->high == INT64_MAX)
        str_addf(out, "%s%lld", at_least, (long long)f->low);
    else
        str_addf(out, "%s%lld to %lld", from, (long long)f->low, (long long)f->high);
}

/* Appends what a value has to be. */
static void add_expected(const struct args_flag *f, struct str *out) {
    if (f->expected)
        str_adds(out, f->expected);
    else if (f->type == ARGS_CHOICE)
        join(f->choices, '|', out);
    else if (f->type == ARGS_INT || f->type == ARGS_FLOAT) {
        str_adds(out, f->type == ARGS_INT ? "a whole number" : "a number");
        if (has_range(f)) add_range(f, " from ", " of at least ", out);
    } else
        str_adds(out, f->value);
}

void args_flag_label(const struct args_flag *f, struct str *out) {
    if (f->letter) str_addf(out, "-%c%s", f->letter, f->name ? ", " : "");
    if (f->name) str_addf(out, "--%s", f->name);
    if (f->alias) str_addf(out, ", --%s", f->alias);
    if (f->value) str_addf(out, " %s", f->value);
}

/* Appends the range of a flag to its help. Bounds that nobody would come near are left out: they only say what fits
 * into the field. */
static void add_help_range(const struct args_flag *f, struct str *out) {
    struct args_flag shown = *f;
    if (f->type == ARGS_INT && f->high >= INT32_MAX - 1) shown.high = INT64_MAX;
    if (f->type == ARGS_INT && f->low == 0 && shown.high == INT64_MAX) return;
    add_range(&shown, "", "at least ", out);
}

void args_flag_text(const struct args_flag *f, bool with_of, struct str *out) {
    CLEANUP_STR struct str more = STR_INIT;
    if (f->type == ARGS_CHOICE) join(f->choices, '|', &more);
    if (has_range(f)) add_help_range(f, &more);
    if (f->def) str_addf(&more, "%sdefault %s", more.len ? "; " : "", f->def);
    if (f->repeats) str_addf(&more, "%smay be repeated", more.len ? "; " : "");
    if (f->of && with_of) {
        str_adds(&more, more.len ? "; for " : "for ");
        join(f->of, ' ', &more);
    }
    const size_t n = strlen(f->help);
    if (more.len && f->help[n - 1] == '.') /* Text in brackets belongs to the sentence. */
        str_addf(out, "%.*s (%s).", (int)n - 1, f->help, more.p);
    else
        str_adds(out, f->help);
}

/* ---- messages -----------------------------------------------------------------------------------------------------*/

int args_report(const struct err *e) {
    /* An error may come in the middle of a line that is being rewritten. */
    log_progress_end();
    fprintf(stderr, "kernelrl: %s\n", e->msg);
    return status_exit_code(e->code);
}

static int show_usage(const struct args_command *c) {
    CLEANUP_STR struct str s = STR_INIT;
    args_usage(c, &s);
    fputs(str_c(&s), stderr);
    return 2;
}

int args_wrong(const struct args_command *c, const struct args *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "kernelrl: %s%s%s: ", c->name, a->sub ? " " : "", a->sub ? a->sub->name : "");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return show_usage(c);
}

/* ---- values -------------------------------------------------------------------------------------------------------*/

static enum status unexpected(const struct args_flag *f, const char *text, struct err *e) {
    CLEANUP_STR struct str name = STR_INIT, want = STR_INIT;
    add_name(f, &name);
    add_expected(f, &want);
    if (text) return FAIL(e, ST_USAGE, "%s: expected %s, got \"%s\"", name.p, want.p, text);
    return FAIL(e, ST_USAGE, "%s: expected %s, got nothing", name.p, want.p);
}

static enum status set_int(const struct args_flag *f, const char *text, void *field, struct err *e) {
    int64_t n;
    if (!parse_i64(text, &n) || n < f->low || n > f->high) return unexpected(f, text, e);
    if (f->bytes == sizeof(int)) {
        ASSERT(n >= INT32_MIN && n <= INT32_MAX); /* Else the table's range does not fit the field. */
        *(int *)field = (int)n;
    } else
        *(int64_t *)field = n;
    return ST_OK;
}

static enum status set_float(const struct args_flag *f, const char *text, void *field, struct err *e) {
    double x;
    if (!parse_f64(text, &x) || !(x >= f->least && x <= f->most)) return unexpected(f, text, e);
    if (f->bytes == sizeof(float))
        *(float *)field = (float)x;
    else
        *(double *)field = x;
    return ST_OK;
}

static enum status set_choice(const struct args_flag *f, const char *text, void *field, struct err *e) {
    const int i = str_index_in(f->choices, text, '|');
    if (i < 0) return unexpected(f, text, e);
    if (f->is_text)
        *(const char **)field = text;
    else if (f->bytes == sizeof(bool))
        *(bool *)field = i != 0;
    else
        memcpy(field, &i, sizeof i);
    return ST_OK;
}

static enum status set(const struct args_flag *f, const char *text, void *values, struct err *e) {
    void *field = (char *)values + f->offset;
    switch (f->type) {
    case ARGS_BOOL: *(bool *)field = !f->negates; return ST_OK;
    case ARGS_INT: return set_int(f, text, field, e);
    case ARGS_FLOAT: return set_float(f, text, field, e);
    case ARGS_TEXT: *(const char **)field = text; return !f->valid || f->valid(text) ? ST_OK : unexpected(f, text, e);
    case ARGS_CHOICE: return set_choice(f, text, field, e);
    case ARGS_CALL: {
        CLEANUP_STR struct str name = STR_INIT;
        add_name(f, &name);
        return f->call(values, text, e) == ST_OK ? ST_OK : err_note(e, "%s", name.p);
    }
    case ARGS_SECTION: break;
    }
    ASSERT(!"a section is no flag");
    return ST_OK;
}

/* ---- the parser ---------------------------------------------------------------------------------------------------*/

struct args_parser {
    const struct args_command *c;
    int argc, at, kept; /* argv[0 .. kept) are left: the command and its words. */
    char **argv;
    void *values;
    const char *text[ARGS_FLAGS_MAX]; /* The value that each flag was given. */
    bool flags_end;                   /* true: all that follows is words. */
    struct args *out;
    struct err e;
};

static bool is_named(const struct args_flag *f, const char *name) {
    return f->type != ARGS_SECTION &&
           ((f->name && strcmp(f->name, name) == 0) || (f->alias && strcmp(f->alias, name) == 0));
}

static const struct args_flag *find_flag(const struct args_command *c, const char *name, char letter) {
    for (size_t i = 0; i < c->n_flags; i++)
        if (letter ? c->flags[i].letter == letter : is_named(&c->flags[i], name)) return &c->flags[i];
    return NULL;
}

static enum status unknown_flag(struct args_parser *p, const char *name) {
    const char *near = NULL;
    size_t limit = str_near_limit(name);
    for (size_t i = 0; i < p->c->n_flags; i++) {
        const struct args_flag *f = &p->c->flags[i];
        if (f->type == ARGS_SECTION) continue;
        if (f->name && str_nearer(name, f->name, &limit)) near = f->name;
        if (f->alias && str_nearer(name, f->alias, &limit)) near = f->alias;
    }
    if (str_nearer(name, "help", &limit)) near = "help";
    return FAIL(&p->e, ST_USAGE, "%s: unknown flag --%s%s%s%s", p->c->name, name, near ? "; did you mean --" : "",
                near ? near : "", near ? "?" : "");
}

/* Takes one flag and its value; text is NULL where the command line ended. */
static enum status take(struct args_parser *p, const struct args_flag *f, const char *text) {
    const size_t row = (size_t)(f - p->c->flags);
    if (f->value && !text) return unexpected(f, NULL, &p->e);
    if (text && p->text[row] && !f->repeats && strcmp(p->text[row], text) != 0) {
        CLEANUP_STR struct str name = STR_INIT;
        add_name(f, &name);
        return FAIL(&p->e, ST_USAGE, "%s: given twice, as \"%s\" and as \"%s\"", name.p, p->text[row], text);
    }
    p->text[row] = text;
    p->out->given[row] = true;
    return set(f, text, p->values, &p->e);
}

static const char *next_word(struct args_parser *p) { return p->at + 1 < p->argc ? p->argv[++p->at] : NULL; }

/* Takes --name, --name VALUE or --name=VALUE. ST_CANCELLED means that help is asked for. */
static enum status take_long(struct args_parser *p) {
    const char *arg = p->argv[p->at] + 2, *equals = strchr(arg, '=');
    CLEANUP_FREE char *name = xstrndup(arg, equals ? (size_t)(equals - arg) : strlen(arg));
    const struct args_flag *f = find_flag(p->c, name, 0);
    if (!f && strcmp(arg, "help") == 0) return ST_CANCELLED;
    if (!f && p->c->keys) {
        p->argv[p->kept++] = p->argv[p->at];
        return ST_OK;
    }
    if (!f) return unknown_flag(p, name);
    if (f->value) return take(p, f, equals ? equals + 1 : next_word(p));
    if (equals) return FAIL(&p->e, ST_USAGE, "--%s: takes no value, got \"%s\"", name, equals + 1);
    return take(p, f, NULL);
}

/* Takes -l, -l VALUE, -lVALUE, or several letters of flags without values. */
static enum status take_letters(struct args_parser *p) {
    for (const char *l = p->argv[p->at] + 1; *l; l++) {
        const struct args_flag *f = find_flag(p->c, NULL, *l);
        if (!f && *l == 'h') return ST_CANCELLED;
        if (!f && p->c->keys) {
            p->argv[p->kept++] = p->argv[p->at];
            return ST_OK;
        }
        if (!f) return FAIL(&p->e, ST_USAGE, "%s: unknown flag -%c", p->c->name, *l);
        if (f->value) return take(p, f, l[1] ? l + 1 : next_word(p));
        TRY(take(p, f, NULL));
    }
    return ST_OK;
}

static const struct args_sub *find_sub(const struct args_command *c, const char *name) {
    for (size_t i = 0; i < c->n_subs; i++)
        if (strcmp(c->subs[i].name, name) == 0) return &c->subs[i];
    return NULL;
}

static enum status unknown_sub(struct args_parser *p, const char *name) {
    CLEANUP_STR struct str all = STR_INIT, list = STR_INIT;
    const char *near = NULL;
    size_t limit = str_near_limit(name ? name : "");
    for (size_t i = 0; i < p->c->n_subs; i++) {
        str_addf(&all, "%s%s", i ? "|" : "", p->c->subs[i].name);
        if (name && str_nearer(name, p->c->subs[i].name, &limit)) near = p->c->subs[i].name;
    }
    if (near) return FAIL(&p->e, ST_USAGE, "%s: unknown command \"%s\"; did you mean \"%s\"?", p->c->name, name, near);
    join(str_c(&all), '|', &list);
    if (!name) return FAIL(&p->e, ST_USAGE, "%s: expected %s", p->c->name, str_c(&list));
    return FAIL(&p->e, ST_USAGE, "%s: expected %s, got \"%s\"", p->c->name, str_c(&list), name);
}

/* Takes a word that is no flag. The first one is the subcommand, if there are any. */
static enum status take_word(struct args_parser *p) {
    char *word = p->argv[p->at];
    if (p->c->n_subs > 0 && !p->out->sub) {
        p->out->sub = find_sub(p->c, word);
        return p->out->sub ? ST_OK : unknown_sub(p, word);
    }
    p->argv[p->kept++] = word;
    if (p->out->sub && p->out->sub->rest && p->kept - 1 >= p->out->sub->min) p->flags_end = true;
    return ST_OK;
}

/* Checks that the subcommand is there, that every flag is one of its own, and that as many words follow as it takes. */
static enum status check_words(struct args_parser *p) {
    const struct args_command *c = p->c;
    const struct args_sub *s = p->out->sub;
    const int n = p->out->n_words, most = s ? s->max : c->max_words;
    if (c->n_subs > 0 && !s) return unknown_sub(p, NULL);
    for (size_t i = 0; i < c->n_flags && s; i++) {
        const struct args_flag *f = &c->flags[i];
        if (!p->out->given[i] || !f->of || str_index_in(f->of, s->name, ' ') >= 0) continue;
        CLEANUP_STR struct str name = STR_INIT, of = STR_INIT;
        add_name(f, &name);
        join(f->of, ' ', &of);
        return FAIL(&p->e, ST_USAGE, "%s: %s means nothing to %s; it is for %s", c->name, name.p, s->name, of.p);
    }
    if (s && (n < s->min || (most >= 0 && n > most)) && (s->expected || s->words))
        return FAIL(&p->e, ST_USAGE, "%s %s: expected %s", c->name, s->name, s->expected ? s->expected : s->words);
    if (most >= 0 && n > most && !c->keys)
        return FAIL(&p->e, ST_USAGE, "%s: unexpected argument \"%s\"", c->name, p->out->word[most]);
    return ST_OK;
}

static enum status parse(struct args_parser *p) {
    for (; p->at < p->argc; p->at++) {
        const char *arg = p->argv[p->at];
        if (p->flags_end || arg[0] != '-' || !arg[1])
            TRY(take_word(p));
        else if (strcmp(arg, "--") == 0 && !p->c->keys)
            p->flags_end = true;
        else
            TRY(arg[1] == '-' ? take_long(p) : take_letters(p));
    }
    p->out->word = p->argv + 1;
    p->out->n_words = p->kept - 1;
    return check_words(p);
}

bool args_parse(const struct args_command *c, int argc, char **argv, void *values, struct args *out) {
    *out = (struct args){0};
    struct args_parser p = {.c = c, .argc = argc, .at = 1, .kept = 1, .argv = argv, .values = values, .out = out};
    ASSERT(c->n_flags <= ARGS_FLAGS_MAX);
    const enum status st = parse(&p);
    if (st == ST_OK) return true;
    if (st == ST_CANCELLED) {
        CLEANUP_STR struct str help = STR_INIT;
        args_help(c, &help);
        fputs(str_c(&help), stdout);
        out->code = 0;
        return false;
    }
    out->code = args_report(&p.e);
    if (st == ST_USAGE) (void)show_usage(c);
    return false;
}

bool args_has(const struct args_command *c, const struct args *a, const char *name) {
    const struct args_flag *f = find_flag(c, name, 0);
    ASSERT(f);
    return a->given[f - c->flags];
}

/* ---- help ---------------------------------------------------------------------------------------------------------*/

/* Appends text in lines of at most ARGS_COLUMNS. The first one goes on at `column`; the others begin with `indent`
 * blanks. A line end in the text is kept. */
static void wrap(const char *text, size_t column, size_t indent, struct str *out) {
    bool begins = true;
    for (const char *p = text; *p;) {
        if (*p == '\n' || *p == ' ') {
            if (*p++ != '\n') continue;
            str_addf(out, "\n%*s", *p && *p != '\n' ? (int)indent : 0, "");
            column = indent;
            begins = true;
            continue;
        }
        const size_t n = strcspn(p, " \n");
        if (!begins && column + 1 + n > ARGS_COLUMNS) {
            str_addf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!begins) {
            str_addc(out, ' ');
            column++;
        }
        str_add(out, p, n);
        column += n;
        p += n;
        begins = false;
    }
    str_addc(out, '\n');
}

void args_usage(const struct args_command *c, struct str *out) {
    const char *line = c->usage;
    do {
        const size_t n = strcspn(line, "\n");
        CLEANUP_FREE char *one = xstrndup(line, n);
        CLEANUP_STR struct str begin = STR_INIT;
        str_addf(&begin, "%s kernelrl %s%s", line == c->usage ? "usage:" : "      ", c->name, n ? " " : "");
        str_adds(out, str_c(&begin));
        wrap(one, begin.len, 12, out);
        line += n + (line[n] == '\n');
    } while (*line);
}

/* Appends a row of two columns, the second of which begins at `indent`. */
static void add_row(const char *label, const char *text, size_t indent, struct str *out) {
    size_t column = 2 + strlen(label);
    str_addf(out, "  %s", label);
    if (column + 2 > indent) {
        str_addc(out, '\n');
        column = 0;
    }
    str_addf(out, "%*s", (int)(indent - column), "");
    wrap(text, indent, indent, out);
}

void args_sub_label(const struct args_sub *s, struct str *out) {
    str_addf(out, "%s%s%s", s->name, s->words ? " " : "", s->words ? s->words : "");
}

/* The second column stands behind the longest label that leaves room for it. */
static size_t second_column(const struct args_command *c) {
    enum { WIDEST = 30 };
    size_t widest = 0;
    for (size_t i = 0; i < c->n_flags + c->n_subs; i++) {
        CLEANUP_STR struct str label = STR_INIT;
        if (i < c->n_flags)
            args_flag_label(&c->flags[i], &label);
        else
            args_sub_label(&c->subs[i - c->n_flags], &label);
        if (label.len > widest && label.len <= WIDEST) widest = label.len;
    }
    return widest + 4;
}

/* Returns the subcommands that all flags of a section are for; NULL when the flags differ. */
static const char *section_of(const struct args_command *c, size_t section) {
    const char *of = NULL;
    for (size_t i = section + 1; i < c->n_flags && c->flags[i].type != ARGS_SECTION; i++) {
        const char *one = c->flags[i].of;
        if (!one || (of && strcmp(of, one) != 0)) return NULL;
        of = one;
    }
    return of;
}

static void add_flags(const struct args_command *c, size_t indent, struct str *out) {
    const char *of = NULL;
    if (c->n_flags > 0 && c->flags[0].type != ARGS_SECTION) str_adds(out, "\nFlags:\n");
    for (size_t i = 0; i < c->n_flags; i++) {
        CLEANUP_STR struct str label = STR_INIT, text = STR_INIT;
        if (c->flags[i].type == ARGS_SECTION) {
            of = section_of(c, i);
            str_addf(out, "\n%s", c->flags[i].help);
            if (of) str_adds(out, ", for ");
            if (of) join(of, ' ', out);
            str_adds(out, ":\n");
            continue;
        }
        args_flag_label(&c->flags[i], &label);
        args_flag_text(&c->flags[i], !of, &text);
        add_row(label.p, text.p, indent, out);
    }
}

void args_help(const struct args_command *c, struct str *out) {
    const size_t indent = second_column(c);
    args_usage(c, out);
    if (c->about) {
        str_addc(out, '\n');
        wrap(c->about, 0, 0, out);
    }
    if (c->n_subs > 0) str_adds(out, "\nCommands:\n");
    for (size_t i = 0; i < c->n_subs; i++) {
        CLEANUP_STR struct str label = STR_INIT;
        args_sub_label(&c->subs[i], &label);
        add_row(label.p, c->subs[i].help, indent, out);
    }
    add_flags(c, indent, out);
    if (c->notes) {
        str_addc(out, '\n');
        wrap(c->notes, 0, 0, out);
    }
    for (size_t i = 0; c->more && c->more[i]; i++) {
        str_addc(out, '\n');
        args_help(c->more[i], out);
    }
}
