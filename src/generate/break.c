/* Wrong answers: realistic edits of right ones, for refinement training. Each edit works on the text of the generator's
 * own answers. What the verifier makes of an edit is found out by running it. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "generate/internal.h"

/* Returns the body, which starts after the first line that begins with "void kernel(". */
static const char *body_of(const char *s) {
    const char *k = strstr(s, "void kernel(");
    return k ? strchr(k, '\n') : NULL;
}

/* Finds all places in [from, end) where needle stands, at most max. */
static int find_all(const char *from, const char *needle, const char *out[], int max) {
    int n = 0;
    for (const char *c = from; n < max && (c = strstr(c, needle)) != NULL; c += strlen(needle)) out[n++] = c;
    return n;
}

/* Returns s with the len bytes at `at` replaced. */
static char *splice(struct arena *a, const char *s, const char *at, size_t len, const char *with) {
    return arena_printf(a, "%.*s%s%s", (int)(at - s), s, with, at + len);
}

static const char *line_start(const char *s, const char *at) {
    while (at > s && at[-1] != '\n') at--;
    return at;
}
static size_t line_len(const char *start) {
    const char *nl = strchr(start, '\n');
    return nl ? (size_t)(nl - start) + 1 : strlen(start);
}

enum { MAX_SITES = 64 };

/* Returns a random occurrence of needle in the body, or NULL. */
static const char *site(const char *body, const char *needle, struct rng *r) {
    const char *at[MAX_SITES];
    int n = find_all(body, needle, at, MAX_SITES);
    return n ? at[rng_below(r, (uint64_t)n)] : NULL;
}

/* Finds the lines "v = ...;". They are operators, the lines whose loss changes the result. */
static int operator_lines(const char *body, const char *out[], int max) {
    int n = 0;
    for (const char *c = body; n < max && (c = strchr(c, '\n')) != NULL;) {
        c++;
        const char *t = c + strspn(c, " ");
        if (strncmp(t, "v = ", 4) == 0 && strncmp(t, "v = q", 5) != 0)
            out[n++] = c;
        else if (strncmp(t, "{ float ", 8) == 0)
            out[n++] = c;
    }
    return n;
}

static char *undeclared(const char *s, const char *body, struct rng *r, struct arena *a) {
    /* Names that an answer may call in vain: a helper that was never written, or a variable by another name. */
    static const struct {
        const char *from, *to;
    } edits[] = {{"expf(", "fast_exp("},       {"fast_exp(", "vexp("},         {"float v = ", "float val = "},
                 {"int i = 0", "int row = 0"}, {"int j = 0", "int col = 0"},   {"float m, s;", "float m;"},
                 {"tanhf(", "fast_tanh("},     {"enum { R =", "enum { ROWS ="}};
    size_t first = rng_below(r, ARRAY_LEN(edits));
    for (size_t i = 0; i < ARRAY_LEN(edits); i++) {
        size_t k = (first + i) % ARRAY_LEN(edits);
        const char *at = site(body, edits[k].from, r);
        /* "expf(" also stands in fast_exp's own text, and a helper that exists must not be the target. */
        if (at && !(k == 0 && strstr(s, "fast_exp")) && !(k == 6 && strstr(s, "fast_tanh")))
            return splice(a, s, at, strlen(edits[k].from), edits[k].to);
    }
    return NULL;
}

/* Returns the length of the number at c, without its suffix: "0.5f", "1e-5f". */
static size_t number_len(const char *c) {
    size_t n = strspn(c, "0123456789.");
    if (n && strncmp(c + n, "e-", 2) == 0) n += 2 + strspn(c + n + 2, "0123456789");
    return n;
}

/* Gives a random literal of the body another value. 0.0f, 1.0f and -INFINITY are structure and stay. */
static char *other_constant(const char *s, const char *body, struct rng *r, struct arena *a) {
    const char *at[MAX_SITES];
    int n = 0;
    for (const char *c = body; *c && n < MAX_SITES; c++) {
        if (!isdigit((unsigned char)*c) || isalnum((unsigned char)c[-1]) || c[-1] == '.' || c[-1] == '_') continue;
        size_t len = number_len(c);
        if (c[len] == 'f' && strncmp(c, "0.0f", 4) != 0 && strncmp(c, "1.0f", 4) != 0) at[n++] = c;
        c += len;
    }
    if (!n) return NULL;
    const char *c = at[rng_below(r, (uint64_t)n)];
    size_t len = number_len(c) + 1;
    return splice(a, s, c, len, strncmp(c, "0.5f", 4) == 0 ? "0.25f" : rng_below(r, 2) ? "0.5f" : "1.0f");
}

/* Gets a size wrong: a number of two digits or more is doubled, halved, or gets a wrong digit. */
static char *other_size(const char *s, const char *body, struct rng *r, struct arena *a) {
    const char *at[MAX_SITES];
    int n = 0;
    for (const char *c = body; *c && n < MAX_SITES; c++) {
        if (!isdigit((unsigned char)*c) || isalnum((unsigned char)c[-1]) || c[-1] == '.' || c[-1] == '_') continue;
        size_t len = number_len(c);
        if (len >= 2 && strspn(c, "0123456789") == len && !isalpha((unsigned char)c[len])) at[n++] = c;
        c += len - 1;
    }
    if (!n) return NULL;
    const char *c = at[rng_below(r, (uint64_t)n)];
    long long value = strtoll(c, NULL, 10);
    switch (rng_below(r, 3)) {
    case 0: value *= 2; break;
    case 1: value /= 2; break;
    default: value += 10; break;
    }
    return splice(a, s, c, number_len(c), arena_printf(a, "%lld", value));
}

char *generator_break(const char *s, enum gen_break kind, uint64_t seed, struct arena *a) {
    struct rng r = rng_make(seed, (uint64_t)kind);
    const char *body = body_of(s), *at, *lines[MAX_SITES];
    if (!body) return NULL;
    int n;
    switch (kind) {
    case GEN_BREAK_undeclared_name: return undeclared(s, body, &r, a);
    case GEN_BREAK_missing_semicolon: at = site(body, ";\n", &r); return at ? splice(a, s, at, 1, "") : NULL;
    case GEN_BREAK_missing_brace:
        n = find_all(body, "}\n", lines, MAX_SITES);
        if (!n) return NULL;
        at = lines[rng_below(&r, (uint64_t)n)];
        return splice(a, s, line_start(s, at), line_len(line_start(s, at)), "");
    case GEN_BREAK_wrong_signature: {
        const char *sig = strstr(s, "void kernel("), *comma = strchr(sig, ',');
        static const struct {
            const char *from, *to;
        } edits[] = {{"const float *restrict ", "float *restrict "},
                     {"float *restrict out)", "float *restrict out, int n)"}};
        if (rng_below(&r, 2) && comma && strchr(comma + 1, ',') && strchr(comma + 1, ',') < body) {
            const char *next = strchr(comma + 1, ','); /* One argument is forgotten. */
            return splice(a, s, comma, (size_t)(next - comma), "");
        }
        size_t k = rng_below(&r, 2);
        for (int i = 0; i < 2; i++, k ^= 1) {
            at = strstr(sig, edits[k].from);
            if (at && at < body) return splice(a, s, at, strlen(edits[k].from), edits[k].to);
        }
        return NULL;
    }
    case GEN_BREAK_missing_operator:
        n = operator_lines(body, lines, MAX_SITES);
        if (!n) return NULL;
        at = lines[rng_below(&r, (uint64_t)n)];
        return splice(a, s, at, line_len(at), "");
    case GEN_BREAK_wrong_constant: return other_constant(s, body, &r, a);
    case GEN_BREAK_wrong_sign: {
        static const struct {
            const char *from, *to;
        } edits[] = {{" - m", ""},    {"+ 1e-5f", ""},          {"v + ", "v - "},   {"v * ", "v + "},
                     {"(-v)", "(v)"}, {"> 0.0f ?", "< 0.0f ?"}, {"s += ", "s -= "}, {"/ s", "* s"},
                     {" * s", ""},    {"1.0f + ", "1.0f - "}};
        size_t first = rng_below(&r, ARRAY_LEN(edits));
        for (size_t i = 0; i < ARRAY_LEN(edits); i++) {
            size_t k = (first + i) % ARRAY_LEN(edits);
            at = site(body, edits[k].from, &r);
            if (at) return splice(a, s, at, strlen(edits[k].from), edits[k].to);
        }
        return NULL;
    }
    case GEN_BREAK_missing_reset: /* The accumulator's start value is forgotten. */
        at = site(body, "s = 0.0f;\n", &r);
        if (!at) at = site(body, "m = -INFINITY;\n", &r);
        if (!at) return NULL;
        if (at >= body + 6 && strncmp(at - 6, "float ", 6) == 0) return splice(a, s, at + 1, 7, "");
        return splice(a, s, line_start(s, at), line_len(line_start(s, at)), "");
    case GEN_BREAK_missing_tail: { /* Loops stop early: by one element, or by a quarter of the work. */
        static const char *const loops[] = {"j < ", "i < ", "n < ", "f < ", "e < "};
        size_t first = rng_below(&r, 2);
        for (size_t i = 0; i < ARRAY_LEN(loops); i++) {
            at = site(body, loops[(first + i) % ARRAY_LEN(loops)], &r);
            if (!at) continue;
            const char *stop = strchr(at, ';');
            return stop ? splice(a, s, stop, 0, " - 1") : NULL;
        }
        return NULL;
    }
    case GEN_BREAK_unwritten_row:
        at = site(body, "(int i = 0;", &r);
        if (!at) at = site(body, "(int b0 = 0;", &r);
        if (!at) at = site(body, "(int c = 0;", &r);
        if (!at) return NULL;
        at = strstr(at, " = 0;");
        return at ? splice(a, s, at, 5, " = 4;") : NULL;
    case GEN_BREAK_out_of_bounds: { /* A bound comes from the wrong place, so the loop runs past the output. */
        at = site(body, "for (int i = 0; i < ", &r);
        if (!at) return NULL;
        const char *stop = strstr(at, "; i++)");
        return stop ? splice(a, s, stop, 0, " + 16") : NULL;
    }
    case GEN_BREAK_crash: { /* An index lies far outside. */
        static const char *const reads[] = {"= p[j]", "x[i]", "[i * N + j]", "= o[j]"};
        size_t first = rng_below(&r, ARRAY_LEN(reads));
        for (size_t i = 0; i < ARRAY_LEN(reads); i++) {
            const char *t = reads[(first + i) % ARRAY_LEN(reads)];
            at = site(body, t, &r);
            if (!at) continue;
            const char *open = strchr(at, '[');
            return splice(a, s, open + 1, 0, "100000000 + ");
        }
        return NULL;
    }
    case GEN_BREAK_not_a_number: {
        static const struct {
            const char *from, *to;
        } edits[] = {{"sqrtf(s", "sqrtf(-s"},
                     {"logf(s)", "logf(-s)"},
                     {"float v = p[j];", "float v = sqrtf(-1.0f - fabsf(p[j]));"},
                     {"s = 1.0f / s;", "s = 1.0f / (s - s);"},
                     {"1.0f + fast_exp(-v)", "logf(-1.0f)"},
                     {"1.0f + expf(-v)", "logf(-1.0f)"},
                     {"float v = x[i];", "float v = logf(-1.0f - fabsf(x[i]));"}};
        size_t first = rng_below(&r, ARRAY_LEN(edits));
        for (size_t i = 0; i < ARRAY_LEN(edits); i++) {
            size_t k = (first + i) % ARRAY_LEN(edits);
            at = site(body, edits[k].from, &r);
            if (at) return splice(a, s, at, strlen(edits[k].from), edits[k].to);
        }
        return NULL;
    }
    case GEN_BREAK_wrong_size: return other_size(s, body, &r, a);
    case GEN_BREAKS: break;
    }
    return NULL;
}
