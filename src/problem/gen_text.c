/* The text of answers: styles, lines, loops (rolled or unrolled by four), helper functions, element-wise operators. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "problem/gen_c.h"

enum { HELP_EXP = 1, HELP_LOG = 2, HELP_TANH = 4, HELP_ERF = 8, HELP_VECTOR = 16 };

/* Cephes-like range reduction with Taylor coefficients: exp within 2e-7 relative; tanh, erf (Abramowitz and Stegun
 * 7.1.26) within 2e-7 absolute; log within 2e-7. All vectorise. */
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

bool gen_style_unrolled(enum gen_style s) { return gen_styles[s].unrolled; }

/* ---- lines and loops -------------------------------------------------------------------------------------------- */

/* Length of a name or a number; 0 when the text starts with neither. A number takes its suffix along ("0.5f"). */
static size_t word_len(const char *t) {
    size_t n = 0;
    while (isalnum((unsigned char)t[n]) || t[n] == '_' || (n > 0 && t[n] == '.' && isdigit((unsigned char)t[0]))) n++;
    return n;
}

/* One element's line: the loop variable becomes its index, and the locals are its own. "w[k * N + n]" over k becomes
 * "w[(k + 1) * N + n]". */
static void add_lane(const struct cg *g, const char *text, int lane, struct str *out) {
    while (*text) {
        size_t n = word_len(text);
        if (n == 1 && *text == g->var && lane > 0)
            str_addf(out, strncmp(text + 1, " *", 2) == 0 ? "(%c + %d)" : "%c + %d", g->var, lane);
        else if (n == 1 && strchr(g->locals, *text))
            str_addf(out, "%c%d", *text, lane);
        else
            str_add(out, text, n ? n : 1);
        text += n ? n : 1;
    }
}

static void put_line(struct cg *g, const char *text) {
    for (int lane = 0; lane < (g->var ? GEN_LANES : 1); lane++) {
        if (text[0] != '#') /* directives start in the first column */
            for (int i = 0; i < g->depth; i++) str_adds(&g->s, "  ");
        if (g->var)
            add_lane(g, text, lane, &g->s);
        else
            str_adds(&g->s, text);
        str_addc(&g->s, '\n');
    }
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

static int64_t row_elements(const struct shape *s) {
    if (s->kind == SHAPE_IMAGE) return s->h ? s->d[2] * s->d[3] : s->d[2];
    return s->kind == SHAPE_ROWS ? s->d[s->nd - 1] : 1;
}

/* The number behind the name of a row length: names are the program's own, and one name has one value. */
static int64_t len_by_name(const struct prog *p, const char *name) {
    for (int i = 0; i < p->n; i++) {
        const struct node *nd = &p->node[i];
        if (nd->op == OP_groupnorm && strcmp(name, "GS") == 0) return nd->in.d[1] / nd->groups * row_elements(&nd->in);
        /* ids have no row yet: the name is that of the table's */
        if (nd->op != OP_embedding && strcmp(nd->in.len, name) == 0) return row_elements(&nd->in);
        if (nd->out.kind != SHAPE_SCALAR && strcmp(nd->out.len, name) == 0) return row_elements(&nd->out);
    }
    ASSERT(!"the name of a length");
    return 0;
}

static bool unrolls(const struct cg *g, int64_t count) { return g->st.unrolled && count % GEN_LANES == 0; }

void cg_loop_count(struct cg *g, char var, const char *len, int64_t count) {
    ASSERT(g->var == 0);
    if (!unrolls(g, count)) {
        cg_line(g, "for (int %c = 0; %c < %s; %c++) {", var, var, len, var);
    } else {
        cg_line(g, "for (int %c = 0; %c < %s; %c += %d) {", var, var, len, var, GEN_LANES);
        g->n_unrolled++;
        g->var = var;
        g->locals = "v";
    }
    g->depth++;
}

void cg_loop(struct cg *g, char var, const char *len) { cg_loop_count(g, var, len, len_by_name(g->p, len)); }

void cg_end(struct cg *g) {
    g->var = 0;
    g->depth--;
    cg_line(g, "}");
}

void cg_each(struct cg *g, char var, const char *len, const char *fmt, ...) {
    va_list ap;
    char head[128] = "";
    bool unroll = unrolls(g, len_by_name(g->p, len));
    if (unroll)
        cg_loop(g, var, len);
    else
        snprintf(head, sizeof head, "for (int %c = 0; %c < %s; %c++) ", var, var, len, var);
    va_start(ap, fmt);
    put_args(g, head, fmt, ap);
    va_end(ap);
    if (unroll) cg_end(g);
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

/* The function that t names, behind its '@'; moves t to the name's end. */
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

void cg_add_helpers(const struct cg *g, struct str *out) {
    if (g->help & HELP_VECTOR) str_adds(out, help_vector);
    if (g->help & HELP_EXP) str_adds(out, help_exp);
    if (g->help & HELP_LOG) str_adds(out, help_log);
    if (g->help & HELP_TANH) str_adds(out, help_tanh);
    if (g->help & HELP_ERF) str_adds(out, help_erf);
}

/* C literal of a constant: the problem's own text with a point and an f; negative ones in parentheses are not needed
 * because templates never put a sign in front. */
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
