#include "rag/module_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { SHINGLE_TOKENS = 4, EXPAND_DEPTH = 4, NEST_MAX = 64, PENDING_MAX = 256 };

enum node_kind { T_NAME, T_NUMBER, T_STRING, T_OP, T_LINE /* end of a logical line */ };
struct text_token {
    enum node_kind kind;
    int n; /* bytes */
    const char *p;
};

struct source_text {
    struct arena *arena;
    struct text_token *t; /* [n], and one T_LINE behind it */
    int n;
};

/* ---- tokens -------------------------------------------------------------------------------------------------------*/

static bool is_name_start(char c) { return isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80; }
static bool is_name(char c) { return is_name_start(c) || isdigit((unsigned char)c); }

/* Returns how many bytes the string literal at p[0..n) has, its prefix included; 0 when there is none. */
static size_t string_length(const char *p, size_t n) {
    size_t at = 0;
    while (at < n && at < 2 && strchr("rRbBfFuU", p[at])) at++;
    if (at == n || (p[at] != '"' && p[at] != '\'')) return 0;
    const char quote = p[at];
    const bool triple = n - at >= 3 && p[at + 1] == quote && p[at + 2] == quote;
    for (at += triple ? 3 : 1; at < n; at++) {
        if (p[at] == '\\')
            at++;
        else if (!triple && (p[at] == quote || p[at] == '\n'))
            return at + 1;
        else if (triple && n - at >= 3 && p[at] == quote && p[at + 1] == quote && p[at + 2] == quote)
            return at + 3;
    }
    return n;
}

static struct source_text scan(const char *p, size_t n, struct arena *a) {
    struct source_text s = {.arena = a, .t = arena_array(a, struct text_token, n + 2)};
    int depth = 0;
    for (size_t i = 0; i < n;) {
        const char c = p[i];
        size_t len = 1;
        if (c == '#') {
            while (i < n && p[i] != '\n') i++;
            continue;
        }
        if (c == '\\' && i + 1 < n && p[i + 1] == '\n') {
            i += 2;
            continue;
        }
        if (c == '\n') {
            if (depth == 0 && s.n > 0 && s.t[s.n - 1].kind != T_LINE)
                s.t[s.n++] = (struct text_token){T_LINE, 1, p + i};
            i++;
            continue;
        }
        if (isspace((unsigned char)c)) {
            i++;
            continue;
        }
        enum node_kind kind = T_OP;
        if ((len = string_length(p + i, n - i)) > 0) {
            kind = T_STRING;
        } else if (is_name_start(c)) {
            for (len = 1; i + len < n && is_name(p[i + len]);) len++;
            kind = T_NAME;
        } else if (isdigit((unsigned char)c) || (c == '.' && i + 1 < n && isdigit((unsigned char)p[i + 1]))) {
            for (len = 1; i + len < n && (is_name(p[i + len]) || p[i + len] == '.' ||
                                          ((p[i + len] == '-' || p[i + len] == '+') && strchr("eE", p[i + len - 1])));)
                len++;
            kind = T_NUMBER;
        } else {
            len = i + 1 < n && ((c == '*' && p[i + 1] == '*') || (c == '/' && p[i + 1] == '/') ||
                                (strchr("=!<>+-*/@", c) && p[i + 1] == '='))
                      ? 2
                      : 1;
            if (strchr("([{", c)) depth++;
            if (strchr(")]}", c) && depth > 0) depth--;
        }
        if (i + len > n) len = n - i;
        s.t[s.n++] = (struct text_token){kind, (int)len, p + i};
        i += len;
    }
    s.t[s.n] = (struct text_token){T_LINE, 0, p + n};
    return s;
}

static bool is(const struct text_token *t, const char *text) {
    return t->kind != T_STRING && t->kind != T_LINE && (size_t)t->n == strlen(text) &&
           memcmp(t->p, text, (size_t)t->n) == 0;
}
static bool same(const struct text_token *x, const struct text_token *y) {
    return x->n == y->n && memcmp(x->p, y->p, (size_t)x->n) == 0;
}

/* ---- operators ----------------------------------------------------------------------------------------------------*/

/* Returns one name for the layer, the function and the method of an operator: nn.MaxPool2d, F.max_pool2d and
 * max_pool2d. */
static const char *canonical(struct arena *a, const struct text_token *t) {
    static const char *const synonyms[][2] = {
        {"mm", "matmul"},       {"bmm", "matmul"},        {"multiply", "mul"}, {"subtract", "sub"},
        {"divide", "div"},      {"clip", "clamp"},        {"swish", "silu"},   {"logsoftmax2", "logsoftmax"},
        {"power", "pow"},       {"absolute", "abs"},      {"concat", "cat"},   {"concatenate", "cat"},
        {"sigmoid", "sigmoid"}, {"transpose", "permute"}, {"t", "permute"},
    };
    char *out = arena_strndup(a, t->p, (size_t)t->n), *w = out;
    for (const char *r = out; *r; r++)
        if (*r != '_') *w++ = (char)tolower((unsigned char)*r);
    *w = 0;
    for (size_t i = 0; i < ARRAY_LEN(synonyms); i++)
        if (strcmp(out, synonyms[i][0]) == 0) return synonyms[i][1];
    return out;
}

/* Returns whether a call moves no numbers, or only shapes them: such calls say little about what is computed. */
static bool is_ignored(const char *op) {
    static const char *const names[] = {
        "size",     "shape",      "contiguous", "view",       "reshape",
        "to",       "float",      "cuda",       "dim",        "detach",
        "clone",    "append",     "items",      "format",     "join",
        "len",      "range",      "super",      "init",       "int",
        "numel",    "type",       "typeas",     "astype",     "isinstance",
        "print",    "list",       "tuple",      "zip",        "enumerate",
        "identity", "sequential", "modulelist", "moduledict", "parameter",
        "dropout",  "device",     "cpu",        "item",       "expandas",
        "expand",   "flatten",    "unsqueeze",  "squeeze",    "registerbuffer",
        "ones",     "zeros",      "randn",      "rand",       "empty",
        "tensor",   "arange",     "set",        "dict",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(op, names[i]) == 0) return true;
    return false;
}

struct member { /* self.NAME = ... in __init__ */
    const struct text_token *name;
    int begin, end; /* The tokens of the right side. */
};
struct class_text {
    const struct text_token *name;
    struct member *members;
    int n_members;
    /* The tokens of the body of forward(). begin 0: it has none. */
    int begin, end;
};
struct class_reader {
    struct source_text *s;
    struct class_text *classes;
    int n_classes;
    struct module_text *out;
};

static int line_end(const struct source_text *s, int i) {
    while (i < s->n && s->t[i].kind != T_LINE) i++;
    return i;
}

/* Returns the column of the first token of a line. Python's blocks end where it falls back. */
static int column(const struct source_text *s, int i) {
    const char *p = s->t[i].p, *first = s->t[0].p;
    int n = 0;
    while (p > first && p[-1] != '\n') {
        p--;
        n++;
    }
    return n;
}

static void find_classes(struct class_reader *r) {
    struct source_text *s = r->s;
    r->classes = arena_array(s->arena, struct class_text, s->n + 1);
    struct class_text *c = NULL;
    for (int i = 0; i < s->n; i = line_end(s, i) + 1) {
        const int end = line_end(s, i);
        if (is(&s->t[i], "class") && i + 1 < end) {
            c = &r->classes[r->n_classes++];
            *c = (struct class_text){.name = &s->t[i + 1], .members = NULL};
        } else if (c && is(&s->t[i], "def") && i + 1 < end && is(&s->t[i + 1], "forward")) {
            const int col = column(s, i);
            int k = end + 1;
            while (k < s->n && column(s, k) > col) k = line_end(s, k) + 1;
            c->begin = end + 1;
            c->end = k < s->n ? k : s->n;
        } else if (c && i + 4 < end && is(&s->t[i], "self") && is(&s->t[i + 1], ".") && is(&s->t[i + 3], "=")) {
            if ((c->n_members & (c->n_members + 1)) == 0) { /* at 0, 1, 3, 7 ... */
                struct member *more = arena_array(s->arena, struct member, 2 * c->n_members + 2);
                if (c->n_members) memcpy(more, c->members, (size_t)c->n_members * sizeof *more);
                c->members = more;
            }
            c->members[c->n_members++] = (struct member){&s->t[i + 2], i + 4, end};
        }
    }
}

static void add_op(struct class_reader *r, const char *op) {
    if (!is_ignored(op) && r->out->n_ops < MODULE_OPS_MAX) r->out->ops[r->out->n_ops++] = op;
}

static const struct class_text *class_named(const struct class_reader *r, const struct text_token *name) {
    for (int i = 0; i < r->n_classes; i++)
        if (same(r->classes[i].name, name)) return &r->classes[i];
    return NULL;
}

static void walk(struct class_reader *r, const struct class_text *c, int begin, int end, int depth);

/* Adds the operators that a call of NAME stands for: those of a class of this file, else its own name. */
static void call(struct class_reader *r, const struct text_token *name, int depth) {
    const struct class_text *c = class_named(r, name);
    if (c && c->begin && depth < EXPAND_DEPTH)
        walk(r, c, c->begin, c->end, depth + 1);
    else if (!c)
        add_op(r, canonical(r->s->arena, name));
}

/* Adds what self.NAME(...) stands for: what the constructor put there. Sequential's parts come in their order. */
static void call_member(struct class_reader *r, const struct class_text *c, const struct text_token *name, int depth) {
    for (int i = 0; i < c->n_members; i++) {
        const struct member *m = &c->members[i];
        if (!same(m->name, name)) continue;
        bool called = false;
        for (int k = m->begin; k < m->end; k++) {
            const struct text_token *t = &r->s->t[k];
            if (t->kind != T_NAME || !is(t + 1, "(") || !isupper((unsigned char)t->p[0])) continue;
            call(r, t, depth);
            called = true;
        }
        if (!called && m->end > m->begin && r->s->t[m->end - 1].kind == T_NAME) /* self.act = F.relu */
            add_op(r, canonical(r->s->arena, &r->s->t[m->end - 1]));
        return;
    }
    for (int i = 0; i < r->n_classes; i++) /* It is a method of this class, which is not worth following. */
        if (c == &r->classes[i]) return;
}

/* A bracket. A nested call is emitted when its bracket closes, which is the order in which calls are computed.
 * Arithmetic is emitted when the expression around it ends. */
struct frame {
    int name;    /* The token of the callee. -1: a plain bracket. */
    bool member; /* true: self.NAME( */
    int pending; /* Arithmetic waits from here on. */
};

static const char *arithmetic(const struct text_token *t) {
    static const char *const ops[][2] = {{"+", "add"},  {"-", "sub"},  {"*", "mul"},  {"/", "div"},  {"@", "matmul"},
                                         {"**", "pow"}, {"+=", "add"}, {"-=", "sub"}, {"*=", "mul"}, {"/=", "div"}};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        if (is(t, ops[i][0])) return ops[i][1];
    return NULL;
}

static void walk(struct class_reader *r, const struct class_text *c, int begin, int end, int depth) {
    const struct text_token *t = r->s->t;
    struct frame stack[NEST_MAX] = {{.name = -1}};
    const char *pending[PENDING_MAX];
    /* mute: inside the arguments of an ignored call, which was opened at this level. */
    int top = 0, n_pending = 0, mute = -1;
    for (int i = begin; i < end; i++) {
        const struct text_token *x = &t[i];
        if (x->kind == T_LINE || is(x, ",")) {
            for (int k = stack[top].pending; k < n_pending; k++) add_op(r, pending[k]);
            n_pending = stack[top].pending;
        } else if (is(x, "(") || is(x, "[") || is(x, "{")) {
            if (top + 1 == NEST_MAX) return; /* nobody writes this */
            struct frame f = {.name = -1, .pending = n_pending};
            if (is(x, "(") && i > begin && t[i - 1].kind == T_NAME) {
                f.name = i - 1;
                f.member = i - begin >= 3 && is(&t[i - 2], ".") && is(&t[i - 3], "self");
            }
            stack[++top] = f;
            const bool shaping =
                is(x, "[") || (f.name >= 0 && !f.member && is_ignored(canonical(r->s->arena, &t[f.name])));
            if (mute < 0 && shaping) mute = top;
        } else if (is(x, ")") || is(x, "]") || is(x, "}")) {
            const struct frame f = stack[top];
            for (int k = f.pending; mute < 0 && k < n_pending; k++) add_op(r, pending[k]);
            n_pending = f.pending;
            if (mute < 0 && f.name >= 0) {
                if (f.member)
                    call_member(r, c, &t[f.name], depth);
                else
                    call(r, &t[f.name], depth);
            }
            if (mute == top) mute = -1;
            if (top > 0) top--;
        } else if (mute < 0 && n_pending < PENDING_MAX && i > begin) {
            const struct text_token *before = x - 1;
            const bool binary =
                before->kind == T_NAME || before->kind == T_NUMBER || is(before, ")") || is(before, "]");
            const char *op = binary ? arithmetic(x) : NULL;
            if (op) pending[n_pending++] = op;
        }
    }
}

static void read_ops(struct class_reader *r) {
    const struct class_text *main_class = NULL;
    for (int i = 0; i < r->n_classes; i++) {
        const struct class_text *c = &r->classes[i];
        /* Model is taken, else the last class. */
        if (c->begin && (!main_class || !is(main_class->name, "Model"))) main_class = c;
    }
    r->out->ops = arena_array(r->s->arena, const char *, MODULE_OPS_MAX);
    if (main_class) walk(r, main_class, main_class->begin, main_class->end, 0);
}

/* ---- names and shingles -------------------------------------------------------------------------------------------*/

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void read_tokens(struct source_text *s, struct module_text *out) {
    uint64_t run[SHINGLE_TOKENS] = {0};
    int seen = 0;
    out->names = arena_array(s->arena, const char *, s->n + 1);
    out->shingles = arena_array(s->arena, uint64_t, s->n + 1);
    for (int i = 0; i < s->n; i++) {
        const struct text_token *t = &s->t[i];
        if (t->kind == T_LINE || t->kind == T_STRING) continue;
        if (t->kind == T_NAME) {
            char *name = arena_strndup(s->arena, t->p, (size_t)t->n);
            for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
            out->names[out->n_names++] = name;
        }
        memmove(run, run + 1, sizeof run - sizeof *run);
        run[SHINGLE_TOKENS - 1] = t->kind == T_NUMBER ? 1 : hash_bytes(t->p, (size_t)t->n, 2);
        if (++seen >= SHINGLE_TOKENS) out->shingles[out->n_shingles++] = hash_bytes(run, sizeof run, 0);
    }
    qsort(out->shingles, (size_t)out->n_shingles, sizeof *out->shingles, by_value);
    int n = 0;
    for (int i = 0; i < out->n_shingles; i++)
        if (i == 0 || out->shingles[i] != out->shingles[n - 1]) out->shingles[n++] = out->shingles[i];
    out->n_shingles = n;
}

void module_text_read(const char *code, size_t n, struct arena *a, struct module_text *out) {
    *out = (struct module_text){0};
    struct source_text s = scan(code, n, a);
    struct class_reader r = {.s = &s, .out = out};
    find_classes(&r);
    read_ops(&r);
    read_tokens(&s, out);
}

double module_text_similarity(const struct module_text *x, const struct module_text *y) {
    int i = 0, k = 0, common = 0;
    while (i < x->n_shingles && k < y->n_shingles) {
        if (x->shingles[i] == y->shingles[k]) {
            common++;
            i++;
            k++;
        } else if (x->shingles[i] < y->shingles[k]) {
            i++;
        } else {
            k++;
        }
    }
    const int either = x->n_shingles + y->n_shingles - common;
    return x->n_shingles && y->n_shingles ? (double)common / either : 0;
}

double module_text_ops_similarity(const struct module_text *x, const struct module_text *y) {
    /* How many of x's operators so far are in common with y's first k. */
    int common[MODULE_OPS_MAX + 1] = {0};
    if (x->n_ops == 0 && y->n_ops == 0) return 1;
    for (int i = 0; i < x->n_ops; i++)
        for (int k = 1, diagonal = 0; k <= y->n_ops; k++) {
            const int above = common[k];
            common[k] = strcmp(x->ops[i], y->ops[k - 1]) == 0 ? diagonal + 1
                        : above > common[k - 1]               ? above
                                                              : common[k - 1];
            diagonal = above;
        }
    return 2.0 * common[y->n_ops] / (x->n_ops + y->n_ops);
}

bool module_text_is_copy(const struct module_text *x, const struct module_text *y) {
    const double ops = module_text_ops_similarity(x, y);
    if (ops == 1 && x->n_ops > 0) return true;
    return ops >= MODULE_COPY_SIMILARITY && module_text_similarity(x, y) >= MODULE_COPY_SIMILARITY;
}
