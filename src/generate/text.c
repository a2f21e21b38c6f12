/* The text of answers: styles, lines, loops, sizes (by name or as numbers), helper functions, element-wise
 * operators. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/write_c.h"

enum { HELP_EXP = 1, HELP_LOG = 2, HELP_TANH = 4, HELP_ERF = 8, HELP_VECTOR = 16 };

/* Range reduction as in Cephes, with Taylor coefficients. exp is within 2e-7 relative; tanh and erf (Abramowitz and
 * Stegun 7.1.26) are within 2e-7 absolute; log is within 2e-7. All of them vectorise. */
static const char help_exp[] =
    "static inline float fast_exp(float x) {\n"
    "  x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;\n"
    "  float n = rintf(x * 1.442695f), r = x - n * 0.69314575f - n * 1.4286068e-6f;\n"
    "  int i = ((int)n + 127) << 23;\n"
    "  memcpy(&x, &i, 4);\n"
    "  return x * (1.0f + r * (1.0f + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * (0.0083333333f"
    " + r * 0.0013888889f))))));\n"
    "}\n";
static const char help_log[] =
    "static inline float fast_log(float x) {\n"
    "  int i, e;\n"
    "  memcpy(&i, &x, 4);\n"
    "  e = (i - 0x3f3504f3) >> 23;\n"
    "  i -= e << 23;\n"
    "  memcpy(&x, &i, 4);\n"
    "  float s = (x - 1.0f) / (x + 1.0f), z = s * s;\n"
    "  return e * 0.69314718f + s * (2.0f + z * (0.66666667f + z * (0.4f + z * 0.28571429f)));\n"
    "}\n";
static const char help_tanh[] =
    "static inline float fast_tanh(float x) { return 1.0f - 2.0f / (1.0f + fast_exp(2.0f * x)); }\n";
static const char help_erf[] =
    "static inline float fast_erf(float x) {\n"
    "  float a = fabsf(x), t = 1.0f / (1.0f + 0.3275911f * a);\n"
    "  float r = t * (0.25482959f + t * (-0.28449674f + t * (1.4214137f + t * (-1.4531520f + t * 1.0614054f))));\n"
    "  return copysignf(1.0f - r * fast_exp(-a * a), x);\n"
    "}\n";
static const char help_vector[] = "typedef float V __attribute__((vector_size(32), aligned(4)));\n";

const struct style gen_styles[GEN_STYLES] = {
#define X(name, f, p, s, m, u, share) {f, p, s, m, u},
    GEN_STYLE_LIST(X)
#undef X
};

const char *gen_style_name(enum gen_style s) {
    static const char *const names[] = {
#define X(name, f, p, s, m, u, share) #name,
        GEN_STYLE_LIST(X)
#undef X
    };
    return names[s];
}

int gen_style_share(enum gen_style s) {
    static const int shares[] = {
#define X(name, f, p, s, m, u, share) share,
        GEN_STYLE_LIST(X)
#undef X
    };
    return shares[s];
}

bool gen_style_literal(enum gen_style s) { return gen_styles[s].literal; }

/* ---- lines and loops -------------------------------------------------------------------------------------------- */

static void put_line(struct cg *g, const char *text) {
    if (text[0] != '#') /* Directives start in the first column. */
        for (int i = 0; i < g->depth; i++) str_adds(&g->s, "  ");
    str_adds(&g->s, text);
    str_addc(&g->s, '\n');
}

enum { LINE_MAX_BYTES = 512 };

static void put_args(struct cg *g, const char *before, const char *fmt, va_list ap) PRINTF_LIKE(3, 0);
static void put_args(struct cg *g, const char *before, const char *fmt, va_list ap) {
    char buf[LINE_MAX_BYTES];
    int at = snprintf(buf, sizeof buf, "%s", before);
    ASSERT(at >= 0 && at < (int)sizeof buf);
    int n = vsnprintf(buf + at, sizeof buf - (size_t)at, fmt, ap);
    ASSERT(n >= 0 && at + n < (int)sizeof buf);
    put_line(g, buf);
}

void cg_line(struct cg *g, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_args(g, "", fmt, ap);
    va_end(ap);
}

void cg_loop(struct cg *g, char var, const char *len) {
    cg_line(g, "for (int %c = 0; %c < %s; %c++) {", var, var, len, var);
    g->depth++;
}

void cg_end(struct cg *g) {
    g->depth--;
    cg_line(g, "}");
}

void cg_each(struct cg *g, char var, const char *len, const char *fmt, ...) {
    va_list ap;
    char head[128];
    snprintf(head, sizeof head, "for (int %c = 0; %c < %s; %c++) ", var, var, len, var);
    va_start(ap, fmt);
    put_args(g, head, fmt, ap);
    va_end(ap);
}

/* ---- sizes as numbers -------------------------------------------------------------------------------------------- */

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

/* Returns the length of the whole number at t, 0 when there is none. "0.5f", "x1" and the like are no numbers here. */
static size_t number_len(const char *text, const char *t) {
    if (!isdigit((unsigned char)*t) || (t > text && in_word(t[-1]))) return 0;
    size_t n = strspn(t, "0123456789");
    return in_word(t[n]) ? 0 : n;
}

/* Returns the operator in front of t. It is 0 for an opening bracket, a comma and whatever else starts an
 * expression. */
static char operator_before(const char *text, const char *t) {
    while (t > text && t[-1] == ' ') t--;
    return t > text && strchr("*/%", t[-1]) ? t[-1] : 0;
}

/* Replaces the len bytes at *at in s by a number. */
static void put_number(struct str *s, size_t at, size_t len, int64_t value) {
    struct str r = STR_INIT;
    str_add(&r, s->p, at);
    str_addf(&r, "%lld", (long long)value);
    str_adds(&r, s->p + at + len);
    str_free(s);
    *s = r;
}

/* Computes the first product or quotient of two numbers that C would compute the same way, or takes one number out of
 * its brackets. False when there is nothing left to do. i / 32 * 400 stays, i * 32 * 400 becomes i * 12800. */
static bool fold_once(struct str *s) {
    const char *text = s->p;
    for (const char *t = text; *t; t++) {
        size_t n = number_len(text, t);
        if (!n) continue;
        int64_t left = strtoll(t, NULL, 10);
        char before = operator_before(text, t), op = t[n] == ' ' ? t[n + 1] : 0;
        const char *next = op && t[n + 2] == ' ' ? t + n + 3 : NULL;
        size_t m = next ? number_len(text, next) : 0;
        if (m && ((op == '*' && (!before || before == '*')) || (op == '/' && !before))) {
            int64_t right = strtoll(next, NULL, 10);
            put_number(s, (size_t)(t - text), (size_t)(next - t) + m, op == '*' ? left * right : left / right);
            return true;
        }
        if (t > text + 1 && t[-1] == '(' && t[n] == ')' && !in_word(t[-2]) && t[-2] != ')') {
            put_number(s, (size_t)(t - text) - 1, n + 2, left);
            return true;
        }
        t += n - 1;
    }
    return false;
}

void cg_literal_sizes(const struct prog *p, struct str *body) {
    struct str s = STR_INIT;
    for (const char *t = str_c(body); *t;) {
        size_t n = 0;
        while (in_word(t[n])) n++;
        const struct gdim *dim = n ? prog_find_dim(p, t, n) : NULL;
        if (dim)
            str_addf(&s, "%lld", (long long)dim->value);
        else
            str_add(&s, t, n ? n : 1);
        t += n ? n : 1;
    }
    while (fold_once(&s)) {}
    str_free(body);
    *body = s;
}

/* ---- functions and element-wise operators ------------------------------------------------------------------------ */

static const char *fn_name(struct cg *g, const char *name, size_t len) {
    static const struct {
        const char *name, *libm, *fast;
        unsigned help;
    } fns[] = {{"exp", "expf", "fast_exp", HELP_EXP},
               {"log", "logf", "fast_log", HELP_LOG},
               {"tanh", "tanhf", "fast_tanh", HELP_EXP | HELP_TANH},
               {"erf", "erff", "fast_erf", HELP_EXP | HELP_ERF}};
    for (size_t i = 0; i < ARRAY_LEN(fns); i++) {
        if (strlen(fns[i].name) != len || memcmp(fns[i].name, name, len) != 0) continue;
        if (!g->st.fast) return fns[i].libm;
        g->help |= fns[i].help;
        return fns[i].fast;
    }
    ASSERT(!"function");
    return NULL;
}
const char *cg_fn(struct cg *g, const char *name) { return fn_name(g, name, strlen(name)); }

/* Returns the function that t names behind its '@', and moves t to the end of the name. */
static const char *named_fn(struct cg *g, const char **t) {
    const char *name = *t + 1;
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz");
    *t = name + n;
    return fn_name(g, name, n);
}

void cg_add_functions(struct cg *g, const char *text, struct str *out) {
    while (*text)
        if (*text == '@')
            str_adds(out, named_fn(g, &text));
        else
            str_addc(out, *text++);
}

void cg_use_vector(struct cg *g) { g->help |= HELP_VECTOR; }
bool cg_uses_vector(const struct cg *g) { return g->help & HELP_VECTOR; }

void cg_add_helpers(const struct cg *g, struct str *out) {
    if (g->help & HELP_VECTOR) str_adds(out, help_vector);
    if (g->help & HELP_EXP) str_adds(out, help_exp);
    if (g->help & HELP_LOG) str_adds(out, help_log);
    if (g->help & HELP_TANH) str_adds(out, help_tanh);
    if (g->help & HELP_ERF) str_adds(out, help_erf);
}

/* Adds the C literal of a constant: the problem's own text with a point and an f. Negative constants need no
 * parentheses, because templates never put a sign in front. */
static void add_literal(struct str *s, const char *k) {
    str_adds(s, k);
    if (!strpbrk(k, ".eE")) str_adds(s, ".0");
    str_addc(s, 'f');
}

void cg_element_wise(struct cg *g, const struct node *nd, const char *y, const char *par) {
    struct str s = STR_INIT;
    for (const char *t = gen_ops[nd->op].c; *t;) {
        if (*t == '@') {
            str_adds(&s, named_fn(g, &t));
        } else if (*t == '$') {
            t++;
            if (*t == '0' || *t == '1')
                add_literal(&s, nd->k[*t - '0']);
            else if (*t == 'y')
                str_addf(&s, "%s[%s]", nd->in2, y);
            else if (*t == 'p')
                str_addf(&s, "%s[%s]", nd->w, par);
            t++;
        } else {
            str_addc(&s, *t++);
        }
    }
    cg_line(g, "%s", str_c(&s));
    str_free(&s);
}
