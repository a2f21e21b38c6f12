/* The table of ops, and what a case of an op is: its arguments in host memory, how to call it on a backend, and what a
 * plain scalar implementation (the oracle) expects. A case is built once and then run on several sides.
 *
 * Arguments lie in buffers with guards: `off` floats in front, ld - cols behind each row, GUARD behind the last.
 * Guards, and outputs before the call, hold POISON, a NaN that no arithmetic makes. An op that reads them cannot give
 * the right value. An op that writes guards, or leaves outputs out, is seen. */
#ifndef KERNELRL_OPCHECK_CASES_H
#define KERNELRL_OPCHECK_CASES_H

#include "opcheck/opcheck.h"

/* The columns of the table:
 *   error     how far a value may be from the oracle's, |got - want| / max(|want|, root mean square of all).
 *             0: the bits must be the same. Attention's depends on the case (op_functions.error); the table has
 *             that of heads of 256
 *   grad      how far a gradient may be from finite differences, relative to the largest element of the op's
 *             gradients (along a random direction: to their norm). 0 for other ops
 *   ulp       by how much a device may differ from the CPU backend. It is 0 (class E of tensor/ops.h) but for
 *             what takes a double logarithm, which the device's library rounds its own way (T)
 *   flags     ROWS: the bits of a row do not depend on the batch (I). THREADS: they do not depend on the number
 *             of threads. BF16: it needs a backend that takes bf16 weights. ZERO_SIGN: backends may differ in
 *             the sign of a zero
 *   shapes    the list to try, which is in the file that defines the op
 *   variants  accumulate or not, with a bias or not, and so on
 * The first column names the entry of struct backend, and which kind of weight where that matters. */
/* clang-format off */
#define OP_LIST(X) \
    /* op                 error  grad   ulp  flags                   shapes    variants */ \
    X(linear,            0,     0,     0,   ROWS | THREADS,         product,   3) \
    X(linear_dx,         0,     1e-5,  0,   ROWS | THREADS,         product,   2) \
    X(linear_dw,         0,     1e-5,  0,   THREADS,                product,   1) \
    X(linear_bf16,       0,     0,     0,   ROWS | THREADS | BF16,  product,   4) \
    X(linear_dx_bf16,    0,     1e-5,  0,   ROWS | THREADS | BF16,  product,   3) \
    X(linear_dw_bf16,    0,     1e-5,  0,   THREADS | BF16,         product,   1) \
    X(bias_grad,         0,     1e-5,  0,   THREADS,                row,       1) \
    X(embed,             0,     0,     0,   ROWS | THREADS,         table,     1) \
    X(embed_bf16,        0,     0,     0,   ROWS | THREADS | BF16,  table,     2) \
    X(embed_grad,        0,     1e-5,  0,   THREADS,                table,     1) \
    X(rmsnorm,           1e-6,  0,     0,   ROWS | THREADS,         row,       1) \
    X(rmsnorm_grad,      1e-5,  1e-5,  0,   THREADS,                norm,      4) \
    X(rope,              1e-6,  0,     0,   ROWS | THREADS,         rope,      2) \
    X(rope_grad,         1e-5,  1e-5,  0,   THREADS,                rope,      3) \
    X(swiglu,            2e-6,  0,     0,   ROWS | THREADS,         swiglu,    1) \
    X(swiglu_grad,       1e-5,  1e-5,  0,   ROWS | THREADS,         swiglu,    1) \
    X(kv_write,          0,     0,     0,   THREADS,                attention, 2) \
    X(attention,         1.4e-5, 0,    0,   THREADS,                attention, 2) \
    X(attention_cached,  1.4e-5, 0,    0,   ROWS | THREADS,         attention, 2) \
    X(attention_grad,    2e-5,  2e-5,  0,   THREADS | ZERO_SIGN,    attention, 1) \
    X(logprob,           2e-6,  0,     1,   ROWS | THREADS,         logits,    2) \
    X(logprob_grad,      1e-5,  1e-5,  0,   ROWS | THREADS,         logits,    1) \
    X(axpby,             0,     0,     0,   ROWS | THREADS,         row,       7) \
    X(gather_rows,       0,     0,     0,   ROWS | THREADS,         table,     1) \
    X(scatter_add_rows,  0,     1e-5,  0,   THREADS,                table,     2) \
    X(adamw,             0,     0,     0,   THREADS,                length,    1) \
    X(sum_squares,       0,     0,     0,   THREADS,                length,    1)
/* clang-format on */

enum op_flags { ROWS = 1, THREADS = 2, BF16 = 4, ZERO_SIGN = 8 };

enum { SHAPE = 7, OPERANDS_MAX = 12, GUARD = 8, VIEWS = 3, SPECIALS = 3 };
#define POISON 0x7fc0deadu

enum operand_role {
    IN,
    OUT,
    INOUT,
    WRT
}; /* WRT: it is no argument, but what a gradient of a linear op is taken with respect to. */
enum operand_place { DEVICE, HOST, INDEX };
struct operand {
    const char *name; /* NULL: this case does not use it. */
    enum operand_role role;
    enum operand_place place;
    int64_t rows, cols, ld, off, n; /* n: how many elements the buffer has, guards and all. */
    /* true: row r belongs to row r of the batch, and is cut along with it. */
    bool per_row;
    /* [n]: the contents before the call, owned. NULL for INDEX. */
    float *init;
    int32_t *index; /* [n], owned. Only for INDEX. */
};

struct checked_op;
struct op_case {
    const struct checked_op *op;
    int64_t s[SHAPE]; /* The op's own letters: see the lists of shapes. */
    int variant, view, special;
    int64_t rows; /* Rows of the batch, after cutting. */
    uint64_t seed;
    struct operand a[OPERANDS_MAX];
    int weight; /* The operand that is a packed weight, or -1. */
    bool alone; /* true: its rows are put in bf16, and there is no float32 of it. */
    bool tiles; /* true: bf16 products are expected in the order of AMX. */
    enum dtype dt;
    struct attn_seq *seq, *fill; /* Owned. fill: what kv_write puts into the cache beforehand. */
    int n_seq, n_fill;
    int32_t *blocks; /* Owned: the block tables of seq, end to end. */
    int64_t n_blocks;
};

/* Where a case runs: the memory of a backend with the operands in it. */
struct side {
    struct backend *be;
    void *mem[OPERANDS_MAX]; /* Host memory for HOST and INDEX. */
    struct weight w;
};

struct op_pair { /* Operand `wrt` has its gradient in operand `grad`. */
    int wrt, grad;
    /* true: the gradient replaces what an INOUT operand held, and is not added to it. */
    bool replaces;
};

/* What an op is made of. Everything but build, call and cost may be NULL. Arrays v have an entry for each operand: its
 * buffer in double precision, laid out like init. */
struct op_functions {
    void (*build)(struct op_case *c); /* Sets sizes, roles and contents of operands from s and variant. */
    void (*prepare)(const struct op_case *c, struct side *s); /* Runs before the first call. */
    void (*call)(const struct op_case *c, struct side *s);
    void (*expect)(const struct op_case *c, double *const v[]); /* Writes what outputs must hold. */
    double (*error)(const struct op_case *c);                   /* Takes the place of the table's error. */
    /* Computes <output gradient, forward> by definition. */
    double (*loss)(const struct op_case *c, double *const v[]);
    void (*cost)(const struct op_case *c, double *flop, double *bytes); /* bytes: each operand is moved once. */
    struct op_pair pair[4];                                             /* It ends with zeros. */
    /* Shapes of which every element is compared with a finite difference. */
    const int64_t (*small)[SHAPE];
    int n_small;
    /* The columns of the shape whose rows are cut. invariance.c chooses how many rows there are. */
    int64_t batch[SHAPE];
};

struct shape_list {
    const int64_t (*s)[SHAPE];
    int n;
};
struct checked_op {
    const char *name;
    double error, grad_error;
    int64_t ulp;
    unsigned flags;
    const struct shape_list *shapes;
    int variants;
    const struct op_functions *f;
};
extern const struct checked_op opcheck_ops[];
extern const int opcheck_n_ops;

/* Lists of shapes. The letters of s are:
 *   product     M,N,K              row, norm  T,n        table   T,n,R (rows of the table)
 *   rope        T,H,G,K            swiglu     T,F        logits  T,V           length  n
 *   attention   H,G,K,packing, or packing = -1 and sequences, past, len: that many behind one common past */
extern const struct shape_list shapes_product, shapes_row, shapes_norm, shapes_table, shapes_rope, shapes_swiglu,
    shapes_attention, shapes_logits, shapes_length;
#define X(op, error, grad, ulp, flags, shapes, variants) extern const struct op_functions op_##op;
OP_LIST(X)
#undef X

/* ---- building a case ---- */

/* Builds the case in *c, whose contents are overwritten. view: 0 rows without gaps, 1 gaps and a misaligned start, 2
 * gaps of a multiple of 16 bytes. special: 0 normal random numbers, 1 also huge, tiny and zero ones, 2 also NaN and
 * infinities. */
void case_build(struct op_case *c, const struct checked_op *op, const int64_t s[SHAPE], int variant, int view,
                int special);
void case_free(struct op_case *c);
/* The case of rows (for attention: sequences) [from, from+n) of c. It shares everything with c, and is never freed. */
struct op_case case_cut(const struct op_case *c, int64_t from, int64_t n);
int64_t case_units(const struct op_case *c); /* How many rows or sequences there are to cut. */
double case_work(const struct op_case *c);   /* About how many operations it takes. */

/* SOLID: there are no gaps and it is aligned, whatever the view is. STALE: it holds POISON, though it is no output. */
enum operand_flags { PER_ROW = 1, SOLID = 2, ON_HOST = 4, STALE = 8 };
void operand_add(struct op_case *c, int at, const char *name, enum operand_role role, int64_t rows, int64_t cols,
                 unsigned flags, float scale);
/* Makes n indices below `below`, one for each row. */
void operand_index(struct op_case *c, int at, const char *name, int64_t n, int64_t below);

static inline int64_t at(const struct op_case *c, int i, int64_t r, int64_t j) {
    return c->a[i].off + r * c->a[i].ld + j;
}

/* ---- running it ---- */

enum status side_open(struct side *s, const struct op_case *c, struct backend *be, struct err *e) MUST_USE;
/* Sets outputs back to what they were before the first call. */
void side_reset(struct side *s, const struct op_case *c);
void side_close(struct side *s, const struct op_case *c);
/* Fetches whole buffers as they are now, [a[i].n] floats. Entries are NULL for INDEX and WRT. Waits for the device. */
enum status side_fetch(struct side *s, const struct op_case *c, float *out[OPERANDS_MAX], struct err *e) MUST_USE;
void fetched_free(float *out[OPERANDS_MAX]);

static inline struct tensor side_view(const struct op_case *c, const struct side *s, int i) {
    const struct operand *a = &c->a[i];
    return tensor_f32((float *)s->mem[i] + a->off, a->rows, a->cols, a->ld);
}
/* The start of a SOLID operand, or NULL when the case has none. */
static inline float *side_floats(const struct op_case *c, const struct side *s, int i) {
    return c->a[i].name ? (float *)s->mem[i] + c->a[i].off : NULL;
}
static inline const int32_t *side_index(const struct op_case *c, const struct side *s, int i) {
    return (const int32_t *)s->mem[i] + c->a[i].off;
}

/* Makes operands in double precision for oracle and loss. doubles_free frees them. */
void doubles_of(const struct op_case *c, double *v[OPERANDS_MAX]);
void doubles_free(double *v[OPERANDS_MAX]);

float bf16_rounded(float x); /* Rounds to nearest even, and subnormals to zero. */
uint16_t bf16_bits(float x); /* The bits of bf16_rounded. */

/* ---- counting and printing ---- */

struct op_findings {
    int64_t cases, left_out, values, differ, max_ulp,
        misplaced; /* misplaced: guards that were written, outputs that were not, inputs that were changed. */
    /* The error that came nearest to its bound, or went farthest beyond it. bound: the bound of that case. */
    double max_error, bound;
    char first[240]; /* The first complaint in words, or empty. */
};
void finding(struct op_findings *f, const struct op_case *c, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Compares what two runs gave, view for view: the bits are equal, or at most `ulp` apart. Any NaN equals any NaN. */
void compare_bits(struct op_findings *f, const struct op_case *c, float *const want[], float *const got[], int64_t ulp,
                  const char *what);
bool same_float(float a, float b); /* The same bits, or any NaN for any NaN. */
/* Prints the line of an op and counts it. bound: that of max_error; < 0 when the mode has none. */
void findings_report(const struct opcheck_options *o, struct opcheck_tally *t, const struct checked_op *op,
                     const char *mode, const struct op_findings *f, double bound, bool ok);
void report_skip(const struct opcheck_options *o, struct opcheck_tally *t, const struct checked_op *op,
                 const char *mode, const char *why);

/* The largest case that is worth its time on this backend, in units of case_work. */
double work_limit(const struct opcheck_env *env, const struct opcheck_options *o);

enum status check_op(const struct opcheck_env *env, const struct checked_op *op, const struct opcheck_options *o,
                     struct opcheck_tally *t, struct err *e) MUST_USE;
enum status grad_op(const struct opcheck_env *env, const struct checked_op *op, const struct opcheck_options *o,
                    struct opcheck_tally *t, struct err *e) MUST_USE;
enum status invariance_op(const struct opcheck_env *env, const struct checked_op *op, const struct opcheck_options *o,
                          struct opcheck_tally *t, struct err *e) MUST_USE;
/* Runs all ops at once, because they share the measured limits. */
enum status perf_ops(const struct opcheck_env *env, const struct opcheck_options *o, struct opcheck_tally *t,
                     struct err *e) MUST_USE;
/* Puts one sequence for each row in the place of the sequences of a case of attention_cached. */
void attention_split_rows(struct op_case *c);

#endif
