/* write_c: what text.c (lines, loops, the text of element-wise operators) and write_c.c (the loops of every operator)
 * share: the state of an answer being written. */
#ifndef KERNELRL_GENERATE_WRITE_C_H
#define KERNELRL_GENERATE_WRITE_C_H

#include "generate/internal.h"

enum domain { DOM_FLAT, DOM_ROW, DOM_GROUP, DOM_BATCH, DOM_TIME, DOM_TRANSPOSE };

/* The choices of a style, see GEN_STYLE_LIST. */
struct style {
    bool fused, parallel, simd, fast, literal;
};
extern const struct style gen_styles[GEN_STYLES];

struct cg {
    const struct prog *p;
    struct style st;
    struct str s; /* body */
    int depth;
    unsigned help; /* helper functions in use */
    int n_tmp;
    /* the row being written */
    enum domain dom;
    const char *cur; /* pointer to the current row */
    bool writable, scalar;
    int pending[GEN_MAX_NODES + 1], n_pending;
    int last; /* last node of the segment */
    int n_local, n_q;
    const char *dst;
    bool gate; /* the row is multiplied by g */
};

/* One indented line of the body, a newline added; at most 511 bytes. */
void cg_line(struct cg *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Opens "for (int VAR = 0; VAR < LEN; VAR++) {". */
void cg_loop(struct cg *g, char var, const char *len);
/* Closes the innermost block. */
void cg_end(struct cg *g);
/* A loop around one statement, on one line. */
void cg_each(struct cg *g, char var, const char *len, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Rewrites a body without the names of sizes: each becomes its number, products of numbers are computed, so that
 * "x[i * C * S + j]" becomes "x[i * 16384 + j]". */
void cg_literal_sizes(const struct prog *p, struct str *body);

/* Name of the style's exp, log, tanh or erf; notes the helpers that it needs. */
const char *cg_fn(struct cg *g, const char *name);
/* Copies a text in which "@exp" and the like stand for the style's functions. */
void cg_add_functions(struct cg *g, const char *text, struct str *out);
/* Notes that the answer needs the vector type V. */
void cg_use_vector(struct cg *g);
/* Whether it does: only products in register blocks do. */
bool cg_uses_vector(const struct cg *g);
/* The definitions of what was noted. */
void cg_add_helpers(const struct cg *g, struct str *out);
/* Writes an element-wise operator's line; y is the second operand's index, par the parameter's. */
void cg_element_wise(struct cg *g, const struct node *nd, const char *y, const char *par);

#endif
