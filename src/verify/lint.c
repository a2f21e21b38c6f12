#include "verify/lint.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SOURCE_BYTES = 256 * 1024 };

static const char *const allowed_headers[] = {"math.h",   "stddef.h", "stdint.h", "stdbool.h", "string.h",
                                              "stdlib.h", "float.h",  "limits.h", "omp.h",     "immintrin.h"};
static const struct {
    const char *word, *why;
} banned_words[] = {
    {"asm", "inline assembly is not allowed"},
    {"__asm", "inline assembly is not allowed"},
    {"__asm__", "inline assembly is not allowed"},
    {"constructor", "code may only run inside kernel() and prepare()"},
    {"__constructor__", "code may only run inside kernel() and prepare()"},
    {"destructor", "code may only run inside kernel() and prepare()"},
    {"__destructor__", "code may only run inside kernel() and prepare()"},
    {"ifunc", "code may only run inside kernel() and prepare()"},
    {"__ifunc__", "code may only run inside kernel() and prepare()"},
};

/* The source as the preprocessor sees it: backslash-newlines joined, comments blanked, with the line of every byte. */
struct cursor {
    char *text; /* cleaned */
    int *line;
    size_t n;
};

static void put(struct cursor *c, char ch, int line) {
    c->text[c->n] = ch;
    c->line[c->n++] = line;
}

/* Copies a string or character literal whole, so that a quote inside a comment or a comment inside a string cannot
 * lead the rest astray. An unterminated literal ends with its line, as it does for the compiler. */
static size_t copy_literal(struct cursor *c, const char *s, const int *line, size_t n, size_t i) {
    char quote = s[i];
    put(c, s[i], line[i]);
    for (i++; i < n && s[i] != '\n'; i++) {
        put(c, s[i], line[i]);
        if (s[i] == '\\' && i + 1 < n && s[i + 1] != '\n') {
            i++;
            put(c, s[i], line[i]);
        } else if (s[i] == quote)
            return i + 1;
    }
    return i;
}

static void clean(struct cursor *c, const char *source, size_t n) {
    char *s = xmalloc(n + 1);
    int *line = xmalloc((n + 1) * sizeof *line);
    size_t m = 0;
    int at = 1;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\\') {
            size_t j = i + 1;
            while (j < n && (source[j] == ' ' || source[j] == '\t' || source[j] == '\r')) j++; /* as gcc does */
            if (j < n && source[j] == '\n') {
                at++;
                i = j;
                continue;
            }
        }
        s[m] = source[i];
        line[m++] = at;
        if (source[i] == '\n') at++;
    }
    for (size_t i = 0; i < m;) {
        if (s[i] == '/' && i + 1 < m && s[i + 1] == '/') {
            while (i < m && s[i] != '\n') i++;
        } else if (s[i] == '/' && i + 1 < m && s[i + 1] == '*') {
            put(c, ' ', line[i]);
            for (i += 2; i < m && !(s[i] == '*' && i + 1 < m && s[i + 1] == '/'); i++) {}
            i = i + 2 < m ? i + 2 : m;
        } else if (s[i] == '"' || s[i] == '\'') {
            i = copy_literal(c, s, line, m, i);
        } else {
            put(c, s[i], line[i]);
            i++;
        }
    }
    c->text[c->n] = 0;
    free(s);
    free(line);
}

static bool is_word(char ch) { return isalnum((unsigned char)ch) || ch == '_' || ch == '$'; }

static size_t skip_blank(const char *s, size_t i) {
    while (s[i] == ' ' || s[i] == '\t' || s[i] == '\v' || s[i] == '\f' || s[i] == '\r') i++;
    return i;
}

static bool header_allowed(const char *s, size_t n) {
    for (size_t k = 0; k < ARRAY_LEN(allowed_headers); k++)
        if (strlen(allowed_headers[k]) == n && memcmp(allowed_headers[k], s, n) == 0) return true;
    return false;
}

/* A directive whose '#' (or the digraph %:) has just been passed. */
static bool check_directive(const struct cursor *c, size_t i, char *message, size_t size) {
    const char *s = c->text;
    i = skip_blank(s, i);
    size_t begin = i;
    while (is_word(s[i])) i++;
    size_t n = i - begin;
    int line = c->line[begin < c->n ? begin : c->n - 1];
    if ((n == 12 && memcmp(s + begin, "include_next", n) == 0) || (n == 6 && memcmp(s + begin, "import", n) == 0) ||
        (n == 5 && memcmp(s + begin, "embed", n) == 0)) {
        snprintf(message, size, "line %d: #%.*s is not allowed", line, (int)n, s + begin);
        return false;
    }
    if (n != 7 || memcmp(s + begin, "include", n) != 0) return true;
    i = skip_blank(s, i);
    char close = s[i] == '<' ? '>' : s[i] == '"' ? '"' : 0;
    size_t name = i + 1, end = name;
    if (close)
        while (s[end] && s[end] != close && s[end] != '\n') end++;
    if (close && s[end] == close && header_allowed(s + name, end - name)) return true;
    size_t eol = i;
    while (s[eol] && s[eol] != '\n') eol++;
    if (eol - i > 80) eol = i + 80;
    snprintf(message, size,
             "line %d: #include %.*s is not allowed; the allowed headers are math.h, stddef.h, stdint.h, stdbool.h, "
             "string.h, stdlib.h, float.h, limits.h, omp.h and immintrin.h",
             line, (int)(eol - i), s + i);
    return false;
}

static bool check_word(const struct cursor *c, size_t begin, size_t n, struct lint_facts *f, char *message,
                       size_t size) {
    const char *w = c->text + begin;
    for (size_t k = 0; k < ARRAY_LEN(banned_words); k++)
        if (strlen(banned_words[k].word) == n && memcmp(banned_words[k].word, w, n) == 0) {
            snprintf(message, size, "line %d: %s: %s", c->line[begin], banned_words[k].word, banned_words[k].why);
            return false;
        }
    f->has_kernel |= n == 6 && memcmp(w, "kernel", n) == 0;
    f->has_scratch |= n == 13 && memcmp(w, "scratch_bytes", n) == 0;
    f->has_prepared |= n == 14 && memcmp(w, "prepared_bytes", n) == 0;
    return true;
}

static size_t skip_literal(const char *s, size_t i) {
    char quote = s[i++];
    while (s[i] && s[i] != '\n') {
        if (s[i] == '\\' && s[i + 1] && s[i + 1] != '\n')
            i++;
        else if (s[i] == quote)
            return i + 1;
        i++;
    }
    return i;
}

static bool scan(const struct cursor *c, struct lint_facts *f, char *message, size_t size) {
    const char *s = c->text;
    bool line_start = true;
    for (size_t i = 0; i < c->n;) {
        if (s[i] == '\n') {
            line_start = true;
            i++;
        } else if (isspace((unsigned char)s[i])) {
            i++;
        } else if (line_start && (s[i] == '#' || (s[i] == '%' && s[i + 1] == ':'))) {
            i += s[i] == '#' ? 1 : 2;
            if (!check_directive(c, i, message, size)) return false;
            line_start = false;
        } else if (s[i] == '"' || s[i] == '\'') {
            i = skip_literal(s, i);
            line_start = false;
        } else if (is_word(s[i])) {
            size_t begin = i;
            while (is_word(s[i])) i++;
            if (!check_word(c, begin, i - begin, f, message, size)) return false;
            line_start = false;
        } else {
            i++;
            line_start = false;
        }
    }
    return true;
}

bool lint_source(const char *source, struct lint_facts *facts, char *message, size_t message_size) {
    *facts = (struct lint_facts){0};
    size_t n = strlen(source);
    if (n > MAX_SOURCE_BYTES) {
        snprintf(message, message_size, "%zu bytes of source; the limit is %d", n, MAX_SOURCE_BYTES);
        return false;
    }
    if (n == 0) {
        snprintf(message, message_size, "the source is empty");
        return false;
    }
    struct cursor c = {.text = xmalloc(n + 1), .line = xmalloc((n + 1) * sizeof(int))};
    clean(&c, source, n);
    bool fine = scan(&c, facts, message, message_size);
    static const char *const allocators[] = {"alloc", "memalign", "##", "%:%:"};
    for (size_t k = 0; k < ARRAY_LEN(allocators); k++) facts->may_allocate |= strstr(c.text, allocators[k]) != NULL;
    if (fine && !facts->has_kernel) {
        snprintf(message, message_size, "no function called kernel is defined");
        fine = false;
    }
    free(c.text);
    free(c.line);
    return fine;
}
