/* gen: what the generator's files share. A program is a chain of operators over one main value. Every operator knows
 * its Python surface forms and its C snippet, so answers are concatenations of the same short texts. */
#ifndef KERNELRL_GENERATE_INTERNAL_H
#define KERNELRL_GENERATE_INTERNAL_H

#include "base/arena.h"
#include "base/rng.h"
#include "base/str.h"
#include "generate/generator.h"

#define GEN_MAX_NODES 12

/* How an operator acts on the main value. This decides which emitter writes it. */
enum op_class {
    OP_EW,      /* Works element by element: v = f(v). */
    OP_EW_IN,   /* The same, with a second input of the same shape. */
    OP_EW_PAR,  /* The same, with a parameter for each feature (rows) or each channel (images). */
    OP_NORM,    /* Keeps a row and needs all of it: softmax, layer norm, cumulative sum. */
    OP_REDUCE,  /* Makes one number of a row. */
    OP_TOTAL,   /* Makes one number of everything. */
    OP_PRODUCT, /* Matrix product: makes a row of another length of a row. */
    OP_SPLIT,   /* Gated units: make a row of n of a row of 2n. */
    OP_CONV,    /* Makes planes of planes, and needs all input channels. */
    OP_POOL,    /* Makes a smaller plane of a plane. */
    OP_GROUP,   /* Needs statistics over groups of channels, or over the batch. */
    OP_TIME,    /* Reduces the middle one of three dimensions. */
    OP_MOVE,    /* Moves data, and computes nothing. */
    OP_GATE,    /* Multiplies the saved image by one number for each channel. */
};

/* Flags. A neighbour must know them to keep problems sound (no constant outputs, no overflow, no ties). */
#define OPF_EXP 1u      /* calls exp, tanh, erf or log */
#define OPF_GROWS 2u    /* It grows fast: a program has at most one. */
#define OPF_NONNEG 4u   /* Its output is >= 0, so relu or abs after it would do nothing. */
#define OPF_CENTERED 8u /* Rows have a mean of about 0, so no sum or mean stands right after it. */
#define OPF_TINY 16u    /* Outputs are about 1/n, so hardly anything but scaling and adding makes sense after it. */

/* clang-format off */
#define OP_LIST(X) \
    X(relu) X(leaky_relu) X(elu) X(selu) X(gelu) X(gelu_tanh) X(silu) X(sigmoid) X(tanh) X(softplus) X(mish) \
    X(hardswish) X(hardsigmoid) X(hardtanh) X(clamp) X(relu6) X(softsign) X(logsigmoid) X(abs) X(square) X(exp) \
    X(scale) X(shift) X(div) X(sub_const) X(clamp_min) X(add) X(mul) X(sub) X(maximum) X(residual) X(silu_gate) \
    X(sigmoid_gate) X(bias) X(channel_scale) X(softmax) X(log_softmax) X(layernorm) X(layernorm_plain) \
    X(rmsnorm) X(l2_normalize) X(cumsum) X(center) X(instancenorm) X(sum) X(mean) X(max) X(min) X(l1_norm) \
    X(l2_norm) X(var) X(logsumexp) X(argmax) X(global_avg_pool) X(global_max_pool) X(mean_all) X(sum_all) \
    X(mse_loss) X(l1_loss) X(smooth_l1_loss) X(bce_logits_loss) X(cross_entropy) X(linear) X(linear_nobias) \
    X(matmul) X(matmul_t) X(bmm) X(bmm_t) X(glu) X(swiglu) X(geglu) X(conv2d) X(depthwise_conv2d) X(conv1d) \
    X(max_pool2d) X(avg_pool2d) X(groupnorm) X(batchnorm) X(sum_dim1) X(mean_dim1) X(max_dim1) X(transpose) \
    X(concat) X(embedding) X(channel_gate)
/* clang-format on */

enum gen_op {
#define X(name) OP_##name,
    OP_LIST(X)
#undef X
        OP_COUNT
};

struct op_info {
    const char *name;
    const char *title; /* in docstrings and file names: "LayerNorm" */
    enum op_class cls;
    unsigned flags;
    /* Element-wise C on `v`. $0 and $1 are constants, $y is the second operand's element, $p the parameter's element;
     * @exp, @log, @tanh and @erf are the style's functions. NULL when an emitter writes the operator. */
    const char *c;
    /* Python surface forms. $x is the value, $0 and $1 are constants, $y is the second input, $p the parameter. "m:"
     * starts a module constructor that becomes a member. F. needs torch.nn.functional. */
    const char *py[5];
    const char *attr[4]; /* Names of members or constants to draw from. */
    /* Values to draw from, as text. The C constant is the same text and an f. */
    const char *consts[5][2];
    const char *const_name[2][3];
};
extern const struct op_info gen_ops[OP_COUNT];
bool gen_op_find(const char *name, size_t len, enum gen_op *out);

/* The shape of the main value. d has the sizes that Python sees, e the C names of the same dimensions (or of their
 * product). */
enum shape_kind { SHAPE_ROWS, SHAPE_VEC, SHAPE_IMAGE, SHAPE_SCALAR };
struct shape {
    enum shape_kind kind;
    int nd;
    int64_t d[4];
    /* The module's constant that holds the size. NULL: the number is written. */
    const char *dim_const[4];
    /* ROWS: rows = "R", len = "N1". VEC: rows. IMAGE: rows = "B * C1", len = "S1". */
    const char *rows, *len;
    const char *batch, *chan, *h, *w; /* Only of an IMAGE. h is NULL in one dimension. */
};

struct node {
    enum gen_op op;
    const char *k[2];      /* The constants, as text. */
    const char *expr;      /* The Python expression with $x. */
    const char *py_before; /* A whole statement in front of it, or NULL. */
    const char *in2;       /* The second input. */
    const char *w, *b;     /* The C names of its parameters: w is the weight or the only parameter, b the bias. */
    int ksize, stride, pad, groups;
    const char *eps;
    struct shape in, out;
};

struct gconst {
    const char *name, *value;
    bool init; /* true: it is also an argument of __init__. */
};
struct ginput {
    const char *name, *make; /* "torch.rand(batch_size, dim)" */
    bool i64;
};
struct gparam {
    const char *name;
    bool member; /* true: it belongs to a submodule, and is listed after the module's own. */
};

struct gdim {
    const char *name, *expr; /* "S", "H * W" */
    int64_t value;
};

struct prog {
    struct arena *a;
    struct rng r;
    struct node node[GEN_MAX_NODES];
    int n;
    struct shape cur;
    struct gconst consts[32];
    struct ginput in[6];
    struct gparam par[24];
    const char *init[32];
    int n_consts, n_in, n_par, n_init;
    int n_len, n_plane, n_chan; /* The counters behind N1, S1 and C1. */
    const char *x;              /* The main input's name. */
    const char *var;            /* The running variable's name in forward. */
    const char *fill;           /* torch.rand or torch.randn. */
    bool keep_x;                /* true: x is used again, so the running variable must differ. */
    bool out_i64;
    struct gdim dims[48]; /* The enum of the answer, in order. */
    int n_dims;
    char level;
};

/* Three ways to draw: true in PERCENT of the cases; a number in [0, n); one entry of a list. */
static inline bool chance(struct prog *p, int percent) { return rng_below(&p->r, 100) < (uint64_t)percent; }
static inline int pick(struct prog *p, int n) { return (int)rng_below(&p->r, (uint64_t)n); }
#define PICK(p, ...) \
    (((const char *const[]){__VA_ARGS__})[pick((p), (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)))])
#define PICK_INT(p, ...) (((const int[]){__VA_ARGS__})[pick((p), (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)))])

/* build.c: the steps in which a program is built. A head gives the input's shape (2 to 4 sizes in d). */
enum head { HEAD_ROWS, HEAD_SEQ, HEAD_IMAGE, HEAD_SIGNAL, HEAD_IDS };
void prog_start(struct prog *p, enum head head, const int64_t d[4]);
/* Says why OP cannot follow the current value, or returns NULL. */
const char *prog_misfit(const struct prog *p, enum gen_op op);
/* Adds one operator, which must fit. arg: its integers (0 when absent). k0, k1: its constants, or NULL to draw them. */
void prog_add(struct prog *p, enum gen_op op, const int64_t arg[4], const char *k0, const char *k1);
/* Returns text such as "torch.rand(batch_size, dim)" for a tensor of this shape. */
const char *prog_make_tensor(struct prog *p, const char *fill, const struct shape *s);
void prog_finish(struct prog *p); /* Sets the level and the names of variables, after the last operator. */
enum status prog_recipe(struct prog *p, const char *recipe, struct err *e) MUST_USE;
const char *prog_ops(const struct prog *p);
/* Returns the enumerator of that name, or NULL. */
const struct gdim *prog_find_dim(const struct prog *p, const char *name, size_t len);
/* random.c */
void prog_random(struct prog *p);
/* Builds a program of these operators in their order ("rows linear gelu"), with sizes and arguments drawn
 * (generator_compose). */
enum status prog_compose(struct prog *p, const char *text, struct err *e) MUST_USE;
/* write_python.c */
char *prog_python(struct prog *p);
/* write_c.c */
char *prog_answer(const struct prog *p, enum gen_style style);
/* write_triton.c. NULL when no operator has a Triton kernel, or when the text is too long. */
char *prog_triton(const struct prog *p, enum gen_triton_style style);
/* write_cuda.c. NULL when an operator has no CUDA kernel, or when the text is too long. */
char *prog_cuda(const struct prog *p, enum gen_cuda_style style);

#endif
