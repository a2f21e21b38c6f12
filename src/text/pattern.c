#include "text/pattern.h"

#include <string.h>

#include "text/unicode.h"

/* What Oniguruma takes for a word character. PCRE2's \w leaves out marks and connectors and takes in every number.
 * Outside of a class Oniguruma asks a table of Latin-1 that has six more. */
#define WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* A pattern that is being read, at p. */
struct reader {
    const char *pattern, *p;
    struct str *out;
    int depth; /* of classes; 0: outside of one */
};

/* Quotes at most n bytes, in whole characters. */
static enum status unsupported(const char *at, size_t n, const char *why, struct err *e) {
    n = utf8_valid_prefix(at, strnlen(at, n));
    return FAIL(e, ST_UNSUPPORTED, "\"%.*s\": %s is not supported", (int)n, at, why);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* Escapes with a meaning of their own. NULL: not one of them. */
static const char *spelling_of(char c, bool in_class) {
    switch (c) {
    case 's': return "\\p{White_Space}";
    case 'S': return "\\P{White_Space}";
    case 'w': return in_class ? WORD_IN_CLASS : "[" WORD "]";
    case 'W': return in_class ? NULL : "[^" WORD "]";
    case 'b': return in_class ? "\\x08" : "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))";
    case 'B': return in_class ? NULL : "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))";
    case 'd': return "\\p{Nd}";
    case 'D': return "\\P{Nd}";
    case 'h': return in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
    case 'H': return in_class ? NULL : "[^0-9a-fA-F]";
    case 'v': return "\\x0b";
    default: return NULL;
    }
}

/* \p{NAME}: general categories have one letter or two, PCRE2 knows Any and Alphabetic; all other names are scripts,
 * which PCRE2 would widen by Script_Extensions. */
static enum status property(struct reader *r, struct err *e) {
    const char *begin = r->p, *name = begin + 2;
    if (*name != '{') return unsupported(begin, 2, "a property without { }", e);
    name++;
    const bool negated = *name == '^';
    name += negated;
    const size_t n = strcspn(name, "}");
    if (name[n] != '}' || n == 0 || n > 40) return unsupported(begin, 12, "this property", e);
    str_addf(r->out, "\\%c{%s", begin[1], negated ? "^" : "");
    const bool known = n <= 2 || strncmp(name, "Any}", 4) == 0 || strncmp(name, "Alphabetic}", 11) == 0 ||
                       strncmp(name, "White_Space}", 12) == 0;
    str_addf(r->out, "%s%.*s}", known ? "" : "sc:", (int)n, name);
    r->p = name + n + 1;
    return ST_OK;
}

/* \xHH, \x{H...} and \uHHHH. */
static enum status code_point(struct reader *r, struct err *e) {
    const char *begin = r->p, *digits = begin + 2;
    const bool braces = begin[1] == 'x' && *digits == '{';
    digits += braces;
    size_t n = 0;
    const size_t most = braces ? 6 : begin[1] == 'x' ? 2 : 4;
    while (n < most && is_hex(digits[n])) n++;
    if (n == 0 || (begin[1] == 'u' && n < 4) || (braces && digits[n] != '}'))
        return unsupported(begin, 10, "this code point", e);
    if (begin[1] == 'x' && !braces && n == 2 && digits[0] >= '8') return unsupported(begin, 4, "a single byte", e);
    str_addf(r->out, "\\x{%.*s}", (int)n, digits);
    r->p = digits + n + braces;
    return ST_OK;
}

static enum status escape(struct reader *r, struct err *e) {
    const char c = r->p[1];
    if (c == 'p' || c == 'P') return property(r, e);
    if (c == 'x' || c == 'u') return code_point(r, e);
    const char *spelled = spelling_of(c, r->depth > 0);
    if (spelled) {
        str_adds(r->out, spelled);
    } else if (is_letter(c) && !strchr(r->depth > 0 ? "rntfae" : "rntfaeAzZ", c)) {
        return unsupported(r->p, 2, r->depth > 0 ? "this escape in a class" : "this escape", e);
    } else if (is_digit(c)) {
        return unsupported(r->p, 2, "a reference or an octal number", e);
    } else if (c == '\0') {
        return unsupported(r->p, 1, "a backslash at the end", e);
    } else {
        str_add(r->out, r->p, 2);
    }
    r->p += 2;
    return ST_OK;
}

/* What opens with "(?". An option that stands alone takes alternatives with it in Ruby, so it is right in front only.
 */
static enum status group(struct reader *r, struct err *e) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)"};
    const size_t n = ARRAY_LEN(known) - (r->p != r->pattern);
    for (size_t i = 0; i < n; i++) {
        if (!str_has_prefix(r->p, known[i])) continue;
        str_adds(r->out, known[i]);
        r->p += strlen(known[i]);
        return ST_OK;
    }
    return unsupported(r->p, 6, "this kind of group", e);
}

/* {n}, {n,} or {n,m}: behind it Ruby reads + as another repetition, and ? behind {n} as a choice. A brace that counts
 * nothing stands for itself. */
static enum status repetition(struct reader *r, struct err *e) {
    const char *p = r->p + 1;
    while (is_digit(*p)) p++;
    const bool counts = p > r->p + 1, range = *p == ',';
    if (range)
        for (p++; is_digit(*p);) p++;
    if (*p != '}') {
        str_addc(r->out, *r->p++);
        return ST_OK;
    }
    p++;
    if (!counts || *p == '+' || (*p == '?' && !range))
        return unsupported(r->p, (size_t)(p - r->p) + (*p == '+' || *p == '?'), "this repetition", e);
    str_add(r->out, r->p, (size_t)(p - r->p));
    r->p = p;
    return ST_OK;
}

/* One character of a class, or its end. A class within a class is the union of both, so its brackets are left out. */
static enum status in_class(struct reader *r, struct err *e) {
    const char c = *r->p;
    if (c == '[' && (r->p[1] == '^' || r->p[1] == ':' || r->p[1] == ']' || r->depth == 8))
        return unsupported(r->p, 2, "such a class within a class", e);
    if (c == '&' && r->p[1] == '&') return unsupported(r->p, 2, "an intersection of classes", e);
    if (c == '[') r->depth++;
    if (c == ']') r->depth--;
    if (c != '[' && (c != ']' || r->depth == 0)) str_addc(r->out, c);
    r->p++;
    return ST_OK;
}

enum status pattern_translate(const char *pattern, struct str *out, struct err *e) {
    struct reader r = {pattern, pattern, out, 0};
    while (*r.p) {
        if (*r.p == '\\') {
            TRY(escape(&r, e));
        } else if (r.depth > 0) {
            TRY(in_class(&r, e));
        } else if (*r.p == '[') {
            r.depth = 1;
            str_addc(out, *r.p++);
            if (*r.p == '^') str_addc(out, *r.p++);
            if (*r.p == ']') return unsupported(r.p - 1, 2, "a bracket in first place of a class", e);
        } else if (r.p[0] == '(' && r.p[1] == '?') {
            TRY(group(&r, e));
        } else if (*r.p == '{') {
            TRY(repetition(&r, e));
        } else {
            str_addc(out, *r.p++);
        }
    }
    return ST_OK;
}

void pattern_quote(const char *text, struct str *out) {
    for (const char *p = text; *p; p++) {
        const bool plain = is_letter(*p) || is_digit(*p) || (unsigned char)*p >= 0x80;
        if (!plain) str_addc(out, '\\');
        str_addc(out, *p);
    }
}
