/* write_c: what text.c (lines, loops, the text of element-wise operators) and write_c.c (the loops of every operator)
 * share: the state of an answer that is being written. */
#ifndef KERNELRL_GENERATE_WRITE_C_H
#define KERNELRL_GENERATE_WRITE_C_H

#include "generate/internal.h"

enum domain { DOM_FLAT, DOM_ROW, DOM_GROUP, DOM_BATCH, DOM_TIME, DOM_TRANSPOSE };

/* The choices of a style: see GEN_STYLE_LIST. */
struct style {
    bool fused, parallel, simd, fast, literal;
};
extern const struct style gen_styles[GEN_STYLES];

struct cg {
    const struct prog *p;
    struct style st;
    struct str s; /* The body. */
    int depth;
    unsigned help; /* The helper functions that are in use. */
    int n_tmp;
    /* The row that is being written. */
    enum domain dom;
    const char *cur; /* The pointer to the current row. */
    bool writable, scalar;
    int pending[GEN_MAX_NODES + 1], n_pending;
    int last; /* The last node of the segment. */
    int n_local, n_q;
    const char *dst;
    bool gate; /* true: the row is multiplied by g. */
};

/* Adds one indented line to the body, and a newline. It has at most 511 bytes. */
void cg_line(struct cg *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Opens "for (int VAR = 0; VAR < LEN; VAR++) {". */
void cg_loop(struct cg *g, char var, const char *len);
/* Closes the innermost block. */
void cg_end(struct cg *g);
/* Adds a loop around one statement, on one line. */
void cg_each(struct cg *g, char var, const char *len, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Rewrites a body without the names of sizes. Each name becomes its number, and products of numbers are computed, so
 * that "x[i * C * S + j]" becomes "x[i * 16384 + j]". */
void cg_literal_sizes(const struct prog *p, struct str *body);

/* Returns the name of the style's exp, log, tanh or erf, and notes the helpers that it needs. */
const char *cg_fn(struct cg *g, const char *name);
/* Copies a text in which "@exp" and the like stand for the style's functions. */
void cg_add_functions(struct cg *g, const char *text, struct str *out);
/* Notes that the answer needs the vector type V. */
void cg_use_vector(struct cg *g);
/* Returns whether the answer needs it: only products in register blocks do. */
bool cg_uses_vector(const struct cg *g);
/* Adds the definitions of what was noted. */
void cg_add_helpers(const struct cg *g, struct str *out);
/* Writes the line of an element-wise operator. y is the second operand's index, par the parameter's. */
void cg_element_wise(struct cg *g, const struct node *nd, const char *y, const char *par);

#endif
