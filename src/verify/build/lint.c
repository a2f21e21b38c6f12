#include "verify/build/lint.h"

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

/* The source as gcc's preprocessor sees it: lines joined at backslashes, comments blanked, and the line of every byte.
 * Where gcc would see it otherwise, it would compile what nobody has looked at, so such a source is refused. */
struct lint_cursor {
    char *text; /* The cleaned text. */
    int *line;
    size_t n;
    int refused_line; /* 0: there is none. */
    const char *refused;
};

static bool is_word(char ch) { return isalnum((unsigned char)ch) || ch == '_' || ch == '$'; }

static size_t skip_blank(const char *s, size_t i) {
    while (s[i] == ' ' || s[i] == '\t' || s[i] == '\v' || s[i] == '\f') i++;
    return i;
}

static void refuse(struct lint_cursor *c, int line, const char *why) {
    if (c->refused) return;
    c->refused_line = line;
    c->refused = why;
}

static void put(struct lint_cursor *c, char ch, int line) {
    c->text[c->n] = ch;
    c->line[c->n++] = line;
}

/* Copies a string or character literal whole, so that a quote inside a comment, or a comment inside a string, cannot
 * mislead the rest. An unterminated literal ends with its line, as it does for the compiler. */
static size_t copy_literal(struct lint_cursor *c, const char *s, const int *line, size_t n, size_t i) {
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

/* Returns the length of the line's end at s: "\n", "\r\n" or, for gcc, "\r" alone. 0: the line does not end here. */
static size_t line_end(const char *s) { return s[0] == '\n' ? 1 : s[0] != '\r' ? 0 : s[1] == '\n' ? 2 : 1; }

/* Joins continued lines. Blanks may stand between the backslash and the end of the line, as they may for gcc. s and
 * line have room for n + 1. Returns the length. */
static size_t join_lines(const char *source, size_t n, char *s, int *line) {
    size_t m = 0;
    int at = 1;
    for (size_t i = 0; i < n; i++) {
        const size_t j = source[i] == '\\' ? skip_blank(source, i + 1) : i, end = line_end(source + j);
        if (source[i] == '\\' && end) {
            at++;
            i = j + end - 1;
            continue;
        }
        s[m] = end && j == i ? '\n' : source[i];
        line[m++] = at;
        if (end && j == i) {
            at++;
            i += end - 1;
        }
    }
    s[m] = 0;
    return m;
}

/* Returns whether a raw string begins with the quote at s[i]. gcc has raw strings in C as well, and inside them quotes
 * and comments are not what they are elsewhere. */
static bool is_raw(const char *s, size_t i) {
    static const char *const prefixes[] = {"R", "LR", "uR", "UR", "u8R"};
    size_t begin = i;
    while (begin > 0 && is_word(s[begin - 1])) begin--;
    for (size_t k = 0; k < ARRAY_LEN(prefixes); k++)
        if (strlen(prefixes[k]) == i - begin && memcmp(prefixes[k], s + begin, i - begin) == 0) return true;
    return false;
}

/* Finds the directive whose '#' is the first thing on the line at s. Its word is empty when there is none. */
static size_t directive(const char *s, const char **word) {
    size_t i = skip_blank(s, 0);
    *word = s + i;
    const size_t sign = s[i] == '#' ? 1 : s[i] == '%' && s[i + 1] == ':' ? 2 : 0;
    if (!sign) return 0;
    i = skip_blank(s, i + sign);
    *word = s + i;
    size_t n = 0;
    while (is_word(s[i + n])) n++;
    return n;
}

/* Refuses a comment that may be open for us and not for gcc. The name of a header is no string: in it comments do not
 * begin, and backslashes mean nothing. #include has such a name, and #if (__has_include) and #pragma (dependency) may
 * have one, too. A comment that goes on over the end of such a line may be part of a name, or of a string that such a
 * name has led astray. Then gcc takes the lines behind it as code. at: of the comment in s; from: of the cleaned line
 * in c. */
static void check_open_comment(struct lint_cursor *c, const char *s, size_t at, int line, size_t from) {
    const char *word;
    c->text[c->n] = 0;
    const size_t n = directive(c->text + from, &word);
    const bool include = n == 7 && memcmp(word, "include", n) == 0;
    if (!include && !(n == 2 && memcmp(word, "if", n) == 0) && !(n == 4 && memcmp(word, "elif", n) == 0) &&
        !(n == 6 && memcmp(word, "pragma", n) == 0))
        return;
    word += n;
    if (include) {
        word += skip_blank(word, 0);
        const char *end = *word ? strchr(word + 1, *word == '<' ? '>' : *word) : NULL;
        if (end) word = end + 1;
    }
    const size_t rest = strcspn(s + at, "\n");
    const bool in_name = strchr(word, '<') && memchr(s + at, '>', rest);
    if (in_name || strpbrk(word, "\"'"))
        refuse(c, line, "a comment that goes on over the end of a directive has to begin on a line of its own");
}

static void clean(struct lint_cursor *c, const char *source, size_t n) {
    char *s = xmalloc(n + 1);
    int *line = xmalloc((n + 1) * sizeof *line);
    const size_t m = join_lines(source, n, s, line);
    size_t from = 0; /* Where the line begins in c->text. */
    for (size_t i = 0; i < m;) {
        if (s[i] == '/' && i + 1 < m && s[i + 1] == '/') {
            while (i < m && s[i] != '\n') i++;
        } else if (s[i] == '/' && i + 1 < m && s[i + 1] == '*') {
            const size_t begin = i;
            for (i += 2; i < m && !(s[i] == '*' && i + 1 < m && s[i + 1] == '/'); i++) {}
            if (memchr(s + begin, '\n', i - begin)) check_open_comment(c, s, begin, line[begin], from);
            put(c, ' ', line[begin]);
            i = i + 2 < m ? i + 2 : m;
        } else if (s[i] == '"' || s[i] == '\'') {
            if (s[i] == '"' && is_raw(s, i)) refuse(c, line[i], "raw strings are not allowed in C");
            i = copy_literal(c, s, line, m, i);
        } else {
            put(c, s[i], line[i]);
            if (s[i] == '\n') from = c->n;
            i++;
        }
    }
    c->text[c->n] = 0;
    free(s);
    free(line);
}

static bool header_allowed(const char *s, size_t n) {
    for (size_t k = 0; k < ARRAY_LEN(allowed_headers); k++)
        if (strlen(allowed_headers[k]) == n && memcmp(allowed_headers[k], s, n) == 0) return true;
    return false;
}

/* Checks a directive whose '#' (or the digraph %:) has just been passed. */
static bool check_directive(const struct lint_cursor *c, size_t i, char *message, size_t size) {
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

static bool check_word(const struct lint_cursor *c, size_t begin, size_t n, struct lint_facts *f, char *message,
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

static bool scan(const struct lint_cursor *c, struct lint_facts *f, char *message, size_t size) {
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
    struct lint_cursor c = {.text = xmalloc(n + 1), .line = xmalloc((n + 1) * sizeof(int))};
    clean(&c, source, n);
    bool fine = !c.refused;
    if (!fine) snprintf(message, message_size, "line %d: %s", c.refused_line, c.refused);
    fine = fine && scan(&c, facts, message, message_size);
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
