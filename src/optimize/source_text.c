#include "optimize/source_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_LINES = 3, PLAN_MAX = 200 };

/* ---- the normal form ----------------------------------------------------------------------------------------------*/

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Words of the languages themselves, and what answers call that is not in the problem: these keep their names. */
static const char *const words[] = {
    "auto",   "break",  "case",     "char",    "const",    "continue", "default", "do",      "double", "else",
    "enum",   "extern", "float",    "for",     "goto",     "if",       "inline",  "int",     "long",   "register",
    "return", "short",  "signed",   "sizeof",  "static",   "struct",   "switch",  "typedef", "union",  "unsigned",
    "void",   "while",  "restrict", "int64_t", "int32_t",  "uint16_t", "uint8_t", "size_t",  "bool",   "kernel",
    "pragma", "omp",    "include",  "define",  "parallel", "simd",     "def",     "class",   "self",   "import",
    "from",   "as",     "in",       "not",     "and",      "or",       "lambda",  "None",    "True",   "False",
    "with",   "yield",  "try",      "except",  "torch",    "nn",       "tl",      "triton",  "forward"};

struct normal { /* names of the text in the order of their appearance */
    char **name;
    size_t n, cap;
    const char *kept;
    struct str out;
};

static bool has_word(const char *text, const char *p, size_t n) {
    for (const char *hit = text; hit && (hit = mem_find(hit, strlen(hit), p, n)); hit++)
        if ((hit == text || !in_name(hit[-1])) && !in_name(hit[n])) return true;
    return false;
}

static bool is_called_or_member(const char *p, size_t n, const char *start) {
    return p[n] == '(' || (p > start && p[-1] == '.');
}

static bool keeps_its_name(const struct normal *x, const char *p, size_t n, const char *start) {
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strlen(words[i]) == n && memcmp(words[i], p, n) == 0) return true;
    /* A function that is called, a member of an object: of a library, mostly. */
    return is_called_or_member(p, n, start) || (x->kept && has_word(x->kept, p, n));
}

static void add_name(struct normal *x, const char *p, size_t n, const char *start) {
    if (keeps_its_name(x, p, n, start)) {
        str_add(&x->out, p, n);
        return;
    }
    size_t i = 0;
    while (i < x->n && (strlen(x->name[i]) != n || memcmp(x->name[i], p, n) != 0)) i++;
    if (i == x->n) {
        if (x->n == x->cap) x->name = xrealloc(x->name, (x->cap = x->cap ? 2 * x->cap : 64) * sizeof *x->name);
        x->name[x->n++] = xstrndup(p, n);
    }
    str_addf(&x->out, "$%zu", i);
}

/* The end of a comment that begins at p; p when none does. */
static const char *behind_comment(const char *p, bool is_python) {
    if (is_python ? *p == '#' : p[0] == '/' && p[1] == '/') return p + strcspn(p, "\n");
    if (is_python || p[0] != '/' || p[1] != '*') return p;
    const char *end = strstr(p + 2, "*/");
    return end ? end + 2 : p + strlen(p);
}

static const char *behind_string(const char *p) {
    const char quote = *p++;
    while (*p && *p != quote && *p != '\n') p += 1 + (*p == '\\' && p[1]);
    return *p == quote ? p + 1 : p;
}

/* Blanks: of Python's lines the indentation and the line's end count, of C's directives their end. */
static const char *take_blanks(struct normal *x, const char *p, bool is_python, bool in_directive) {
    bool line = false;
    const char *from = p;
    for (; isspace((unsigned char)*p); p++)
        if (*p == '\n') {
            line = true;
            from = p + 1;
        }
    const bool first = x->out.len == 0 || x->out.p[x->out.len - 1] == '\n';
    if (line && (is_python || in_directive) && !first) str_addc(&x->out, '\n');
    if (is_python && *p && *p != '#' && (line || first)) str_add(&x->out, from, (size_t)(p - from));
    return p;
}

struct digest source_normal(const char *source, const char *kept, bool is_python) {
    struct normal x = {.kept = kept};
    bool in_directive = false;
    for (const char *p = source; *p;) {
        const char *end = behind_comment(p, is_python);
        if (end > p) {
            p = end;
        } else if (isspace((unsigned char)*p)) {
            const char *next = take_blanks(&x, p, is_python, in_directive);
            in_directive &= mem_find(p, (size_t)(next - p), "\n", 1) == NULL;
            p = next;
        } else if (*p == '"' || *p == '\'') {
            end = behind_string(p);
            str_add(&x.out, p, (size_t)(end - p));
            p = end;
        } else if (isalpha((unsigned char)*p) || *p == '_') {
            for (end = p; in_name(*end);) end++;
            /* Two words need something between them. */
            if (x.out.len > 0 && in_name(x.out.p[x.out.len - 1])) str_addc(&x.out, ' ');
            add_name(&x, p, (size_t)(end - p), source);
            p = end;
        } else {
            in_directive |= *p == '#';
            /* A number keeps its letters: 0x1f, 1e5f. */
            for (end = p + 1; isdigit((unsigned char)*p) && (in_name(*end) || *end == '.');) end++;
            if (isdigit((unsigned char)*p) && x.out.len > 0 && in_name(x.out.p[x.out.len - 1])) str_addc(&x.out, ' ');
            str_add(&x.out, p, (size_t)(end - p));
            p = end;
        }
    }
    const struct digest d = digest_of(str_c(&x.out), x.out.len);
    for (size_t i = 0; i < x.n; i++) free(x.name[i]);
    free(x.name);
    str_free(&x.out);
    return d;
}

/* ---- the plan -----------------------------------------------------------------------------------------------------*/

char *source_plan(const char *source) {
    const char *line = source;
    for (int i = 0; i < PLAN_LINES && line; i++) {
        const size_t n = strcspn(line, "\n");
        const char *plan = mem_find(line, n, "plan:", 5);
        if (plan && line[strspn(line, " \t")] && strchr("/#*", line[strspn(line, " \t")])) {
            const char *p = plan + 5, *end = line + n;
            while (p < end && isspace((unsigned char)*p)) p++;
            while (end > p && (isspace((unsigned char)end[-1]) || end[-1] == '/' || end[-1] == '*')) end--;
            return end > p && end - p <= PLAN_MAX ? xstrndup(p, (size_t)(end - p)) : NULL;
        }
        line = line[n] ? line + n + 1 : NULL;
    }
    return NULL;
}
