/* gen_c: what gen_text.c (lines, loops, the text of element-wise operators) and gen_c.c (the loops of every operator)
 * share: the state of an answer being written. */
#ifndef KERNELRL_GEN_C_H
#define KERNELRL_GEN_C_H

#include "problem/gen.h"

enum domain { DOM_FLAT, DOM_ROW, DOM_GROUP, DOM_BATCH, DOM_TIME, DOM_TRANSPOSE };

/* The choices of a style, see GEN_STYLE_LIST. */
struct style {
    bool fused, parallel, simd, fast, unrolled;
};
extern const struct style gen_styles[GEN_STYLES];

/* Elements an iteration of an unrolled loop. */
enum { GEN_LANES = 4 };

struct cg {
    const struct prog *p;
    struct style st;
    struct str s; /* body */
    int depth;
    unsigned help;      /* helper functions in use */
    char var;           /* variable of the unrolled loop being written; 0: every line is written once */
    const char *locals; /* one-letter variables of which every element has its own */
    int n_unrolled;     /* unrolled loops so far */
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

/* One indented line of the body, a newline added; at most 511 bytes. Inside an unrolled loop it is written once an
 * element: "v = v + y[i];" becomes "v0 = v0 + y[i];" to "v3 = v3 + y[i + 3];". */
void cg_line(struct cg *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Opens "for (int VAR = 0; VAR < LEN; VAR++) {" over `count` contiguous elements. In an unrolled style, when four
 * divides the count, the loop takes four elements an iteration; nothing but cg_line() may then come before cg_end(). */
void cg_loop_count(struct cg *g, char var, const char *len, int64_t count);
/* The same over a row, whose length the program knows by the name LEN. */
void cg_loop(struct cg *g, char var, const char *len);
/* Closes the innermost block. */
void cg_end(struct cg *g);
/* A loop around one statement: on one line unless it is unrolled. */
void cg_each(struct cg *g, char var, const char *len, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* Name of the style's exp, log, tanh or erf; notes the helpers that it needs. */
const char *cg_fn(struct cg *g, const char *name);
/* Copies a text in which "@exp" and the like stand for the style's functions. */
void cg_add_functions(struct cg *g, const char *text, struct str *out);
/* Notes that the answer needs the vector type V. */
void cg_use_vector(struct cg *g);
/* The definitions of what was noted. */
void cg_add_helpers(const struct cg *g, struct str *out);
/* Writes an element-wise operator's line; y is the second operand's index, par the parameter's. */
void cg_element_wise(struct cg *g, const struct node *nd, const char *y, const char *par);

#endif
