/* The Triton answers of a program: a Python module with ModelNew (docs/formats.md).
 *
 * A program is cut into segments. A segment is a kernel, or a line of the module itself where PyTorch has a library for
 * it (products, convolutions, batch norm). A kernel is flat (a block of outputs, whatever they are made of), or each of
 * its programs has a row of the input (norms and reductions). In a fused answer it takes in the element-wise operators
 * around. As in the C answers, the same operator is always written the same way. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/internal.h"

/* The longest row that one program holds at once. */
enum { ROW_MAX = 32768 };

static const struct triton_style {
    const char *name;
    bool fused, literal;
    int block, share;
} styles[GEN_TRITON_STYLES] = {
#define X(name, fused, block, literal, share) {#name, fused, literal, block, share},
    GEN_TRITON_STYLE_LIST(X)
#undef X
};

const char *gen_triton_style_name(enum gen_triton_style s) { return styles[s].name; }
int gen_triton_style_share(enum gen_triton_style s) { return styles[s].share; }

/* Lines on v. $0 and $1 are constants, $y is the second operand's element, $p the parameter's. A split has v and g. */
/* clang-format off */
static const char *const snippets[OP_COUNT] = {
    [OP_relu] = "v = tl.maximum(v, 0.0)",
    [OP_leaky_relu] = "v = tl.where(v > 0, v, $0 * v)",
    [OP_elu] = "v = tl.where(v > 0, v, $0 * (tl.exp(v) - 1.0))",
    [OP_selu] = "v = 1.050701 * tl.where(v > 0, v, 1.6732632 * (tl.exp(v) - 1.0))",
    [OP_gelu] = "v = 0.5 * v * (1.0 + tl.erf(v * 0.70710678))",
    [OP_gelu_tanh] = "v = v * tl.sigmoid(1.5957691 * (v + 0.044715 * v * v * v))",
    [OP_silu] = "v = v * tl.sigmoid(v)",
    [OP_sigmoid] = "v = tl.sigmoid(v)",
    [OP_tanh] = "v = 2.0 * tl.sigmoid(2.0 * v) - 1.0",
    [OP_softplus] = "v = tl.maximum(v, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(v)))",
    [OP_mish] = "e = tl.maximum(v, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(v)))\nv = v * (2.0 * tl.sigmoid(2.0 * e) - 1.0)",
    [OP_hardswish] = "v = v * tl.minimum(tl.maximum(v / 6.0 + 0.5, 0.0), 1.0)",
    [OP_hardsigmoid] = "v = tl.minimum(tl.maximum(v / 6.0 + 0.5, 0.0), 1.0)",
    [OP_hardtanh] = "v = tl.minimum(tl.maximum(v, -1.0), 1.0)",
    [OP_clamp] = "v = tl.minimum(tl.maximum(v, $0), $1)",
    [OP_relu6] = "v = tl.minimum(tl.maximum(v, 0.0), 6.0)",
    [OP_softsign] = "v = v / (1.0 + tl.abs(v))",
    [OP_logsigmoid] = "v = tl.minimum(v, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(v)))",
    [OP_abs] = "v = tl.abs(v)",
    [OP_square] = "v = v * v",
    [OP_exp] = "v = tl.exp(v)",
    [OP_scale] = "v = v * $0",
    [OP_div] = "v = v / $0",
    [OP_shift] = "v = v + $0",
    [OP_sub_const] = "v = v - $0",
    [OP_clamp_min] = "v = tl.maximum(v, $0)",
    [OP_add] = "v = v + $y",
    [OP_mul] = "v = v * $y",
    [OP_sub] = "v = v - $y",
    [OP_maximum] = "v = tl.maximum(v, $y)",
    [OP_residual] = "v = v + $y",
    [OP_silu_gate] = "g = $y\nv = v * g * tl.sigmoid(g)",
    [OP_sigmoid_gate] = "v = v * tl.sigmoid($y)",
    [OP_bias] = "v = v + $p",
    [OP_channel_scale] = "v = v * $p",
    [OP_mse_loss] = "v = v - $y\nv = v * v",
    [OP_l1_loss] = "v = tl.abs(v - $y)",
    [OP_smooth_l1_loss] = "d = tl.abs(v - $y)\nv = tl.where(d < 1.0, 0.5 * d * d, d - 0.5)",
    [OP_bce_logits_loss] = "v = tl.maximum(v, 0.0) - v * $y + tl.log(1.0 + tl.exp(-tl.abs(v)))",
    [OP_glu] = "v = v * tl.sigmoid(g)",
    [OP_swiglu] = "v = v * tl.sigmoid(v) * g",
    [OP_geglu] = "v = 0.5 * v * (1.0 + tl.erf(v * 0.70710678)) * g",
};
/* clang-format on */

/* What an output index is made of: sizes of the segment's output (n, N, C, S, H, W) and of its input (M, K, T). */
enum dim { DIM_n, DIM_N, DIM_C, DIM_S, DIM_H, DIM_W, DIM_M, DIM_K, DIM_T, DIMS };
static const char *const dim_names[DIMS] = {"n", "N", "C", "S", "H", "W", "M", "K", "T"};

/* How a value is cut into rows: by its last dimension, by planes of an image, or by groups of planes. */
enum triton_row { ROW_NONE, ROW_LAST, ROW_PLANE, ROW_GROUP };

struct tg {
    const struct prog *p;
    const struct triton_style *st;
    struct str kernels, forward;
    int n_kernels, n_values;
    const char *cur; /* The Python name of the running value. */
    /* The kernel that is being written. */
    struct str body;
    enum triton_row row;
    bool scalar;     /* true: v is one number of the row. */
    int groups;      /* ROW_GROUP */
    struct shape in; /* The shape of the kernel's input. */
    /* The shape of its output, as operators see it. */
    struct shape out;
    const char *dst;
    const char *y[8], *w[12]; /* Python expressions of second operands and parameters. */
    int n_y, n_w;
    bool used[DIMS];
};

static int64_t count(const struct shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->nd; i++) n *= s->d[i];
    return n;
}
static int64_t plane(const struct shape *s) { return s->d[2] * (s->nd == 4 ? s->d[3] : 1); }

/* Adds one indented line to the kernel's body. */
static void line(struct tg *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void line(struct tg *g, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str_addf(&g->body, "    %s\n", text);
}

static int64_t row_length(const struct tg *g) {
    if (g->row == ROW_LAST) return g->in.d[g->in.nd - 1];
    return plane(&g->in) * (g->row == ROW_GROUP ? g->in.d[1] / g->groups : 1);
}

static int64_t dim_value(const struct tg *g, enum dim d) {
    const struct shape *in = &g->in, *out = &g->out;
    switch (d) {
    case DIM_n: return count(out);
    case DIM_N: return g->row != ROW_NONE ? row_length(g) : out->d[out->nd - 1];
    case DIM_C: return in->d[1];
    case DIM_S: return plane(out->nd > 2 ? out : in);
    case DIM_H: return out->d[2];
    case DIM_W: return out->d[3];
    case DIM_M: return in->nd == 4 ? in->d[2] : in->d[in->nd - 1];
    case DIM_K: return in->nd == 4 ? in->d[3] : out->d[out->nd - 1];
    case DIM_T: return in->d[1];
    case DIMS: break;
    }
    return 0;
}

/* Returns a size inside the kernel: its number, or the argument that holds it. */
static const char *dim(struct tg *g, enum dim d) {
    if (g->st->literal) return arena_printf(g->p->a, "%lld", (long long)dim_value(g, d));
    g->used[d] = true;
    return dim_names[d];
}

/* Returns what forward() passes for it. T is the Python name of a tensor of the output's shape. */
static const char *dim_expr(const struct tg *g, enum dim d, const char *t) {
    struct arena *a = g->p->a;
    const char *x = g->cur;
    switch (d) {
    case DIM_n: return "n"; /* It is set before the launch, like a row's N. */
    case DIM_N: return g->row != ROW_NONE ? "N" : arena_printf(a, "%s.shape[-1]", t);
    case DIM_C: return arena_printf(a, "%s.shape[1]", x);
    case DIM_S:
        if (g->row != ROW_NONE) t = x;
        return arena_printf(
            a, (g->out.nd > 2 ? &g->out : &g->in)->nd == 4 ? "%s.shape[2] * %s.shape[3]" : "%s.shape[2]", t, t);
    case DIM_H: return arena_printf(a, "%s.shape[2]", t);
    case DIM_W: return arena_printf(a, "%s.shape[3]", t);
    case DIM_M: return arena_printf(a, g->in.nd == 4 ? "%s.shape[2]" : "%s.shape[-1]", x);
    case DIM_K: return arena_printf(a, g->in.nd == 4 ? "%s.shape[3]" : "%s.shape[-1]", g->in.nd == 4 ? x : t);
    case DIM_T: return arena_printf(a, "%s.shape[1]", x);
    case DIMS: break;
    }
    return NULL;
}

/* Makes a second operand or a parameter an argument: "y1", "w2". */
static const char *operand(struct tg *g, const char *expr) {
    ASSERT(g->n_y < (int)ARRAY_LEN(g->y));
    g->y[g->n_y++] = expr;
    return arena_printf(g->p->a, "y%d", g->n_y);
}
static const char *parameter(struct tg *g, const char *name) {
    ASSERT(g->n_w < (int)ARRAY_LEN(g->w));
    struct arena *a = g->p->a;
    const char *expr = arena_printf(a, "self.%s", name);
    /* The parameter fc_weight belongs to the module fc. */
    for (int i = 0; i < g->p->n_par; i++) {
        const char *us = strrchr(name, '_');
        if (g->p->par[i].member && us && strcmp(g->p->par[i].name, name) == 0)
            expr = arena_printf(a, "self.%.*s.%s", (int)(us - name), name, us + 1);
    }
    g->w[g->n_w++] = expr;
    return arena_printf(a, "w%d", g->n_w);
}

/* Returns "tl.load(w1 + j, mask=m)": the element of a parameter for a feature or a channel. */
static const char *parameter_at(struct tg *g, const char *name, const struct shape *s) {
    struct arena *a = g->p->a;
    const char *w = parameter(g, name);
    bool image = s->kind == SHAPE_IMAGE;
    switch (g->row) {
    case ROW_NONE:
        return image ? arena_printf(a, "tl.load(%s + i // %s %% %s, mask=m)", w, dim(g, DIM_S), dim(g, DIM_C))
                     : arena_printf(a, "tl.load(%s + i %% %s, mask=m)", w, dim(g, DIM_N));
    case ROW_LAST: return arena_printf(a, "tl.load(%s + j, mask=m)", w);
    case ROW_PLANE: return arena_printf(a, "tl.load(%s + r %% %s)", w, dim(g, DIM_C));
    case ROW_GROUP:
        return arena_printf(a, "tl.load(%s + r %% %d * (%s // %d) + j // %s, mask=m)", w, g->groups, dim(g, DIM_C),
                            g->groups, dim(g, DIM_S));
    }
    return NULL;
}

/* Writes the lines of an element-wise operator. INDEX is where the second operand's element is, MASK is what its load
 * ends with. */
static void element_wise(struct tg *g, const struct node *nd, const char *index, const char *mask, const char *indent) {
    CLEANUP_STR struct str s = STR_INIT;
    str_adds(&s, indent);
    for (const char *t = snippets[nd->op]; *t; t++) {
        if (*t == '\n') {
            str_addf(&s, "\n    %s", indent);
        } else if (*t != '$') {
            str_addc(&s, *t);
        } else if (*++t == 'y') {
            str_addf(&s, "tl.load(%s + %s%s)", operand(g, nd->in2), index, mask);
        } else if (*t == 'p') {
            if (g->scalar)
                str_addf(&s, "tl.load(%s + r %% %s)", parameter(g, nd->w), dim(g, DIM_C));
            else
                str_adds(&s, parameter_at(g, nd->w, &nd->in));
        } else {
            str_adds(&s, nd->k[*t - '0']);
        }
    }
    line(g, "%s", str_c(&s));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static const char sum_v[] = "tl.sum(tl.where(m, v, 0.0), axis=0)";
static const char max_v[] = "tl.max(tl.where(m, v, -float('inf')), axis=0)";
static const char sum_sq[] = "tl.sum(tl.where(m, v * v, 0.0), axis=0)";

static void norm(struct tg *g, const struct node *nd) {
    const char *N = nd->op == OP_softmax || nd->op == OP_log_softmax || nd->op == OP_cumsum ? NULL : dim(g, DIM_N);
    switch (nd->op) {
    case OP_softmax:
        line(g, "v = tl.exp(v - %s)", max_v);
        line(g, "v = v / %s", sum_v);
        break;
    case OP_log_softmax:
        line(g, "v = v - %s", max_v);
        line(g, "v = v - tl.log(tl.sum(tl.where(m, tl.exp(v), 0.0), axis=0))");
        break;
    case OP_rmsnorm:
        line(g, "v = v * tl.rsqrt(%s / %s + %s) * %s", sum_sq, N, nd->eps, parameter_at(g, nd->w, &nd->in));
        break;
    case OP_l2_normalize: line(g, "v = v / tl.maximum(tl.sqrt(%s), 1e-12)", sum_sq); break;
    case OP_cumsum: line(g, "v = tl.cumsum(tl.where(m, v, 0.0), axis=0)"); break;
    case OP_center: line(g, "v = v - %s / %s", sum_v, N); break;
    default: /* layer, instance and group norms */
        line(g, "v = v - %s / %s", sum_v, N);
        line(g, "v = v * tl.rsqrt(%s / %s + 1e-5)", sum_sq, N);
        if (nd->w) line(g, "v = v * %s", parameter_at(g, nd->w, &nd->in));
        if (nd->b) line(g, "v = v + %s", parameter_at(g, nd->b, &nd->in));
    }
}

static void reduce(struct tg *g, const struct node *nd) {
    const char *N = NULL;
    switch (nd->op) {
    case OP_sum: line(g, "v = %s", sum_v); break;
    case OP_mean:
    case OP_global_avg_pool: line(g, "v = %s / %s", sum_v, dim(g, DIM_N)); break;
    case OP_l1_norm: line(g, "v = tl.sum(tl.where(m, tl.abs(v), 0.0), axis=0)"); break;
    case OP_l2_norm: line(g, "v = tl.sqrt(%s)", sum_sq); break;
    case OP_max:
    case OP_global_max_pool: line(g, "v = %s", max_v); break;
    case OP_min: line(g, "v = tl.min(tl.where(m, v, float('inf')), axis=0)"); break;
    case OP_var:
        N = dim(g, DIM_N);
        line(g, "v = v - %s / %s", sum_v, N);
        line(g, "v = %s / (%s - 1)", sum_sq, N);
        break;
    case OP_logsumexp:
        line(g, "s = %s", max_v);
        line(g, "v = s + tl.log(tl.sum(tl.where(m, tl.exp(v - s), 0.0), axis=0))");
        break;
    case OP_argmax: line(g, "v = tl.argmax(tl.where(m, v, -float('inf')), axis=0)"); break;
    default: ASSERT(!"reduce");
    }
    g->scalar = true;
}

/* ---- flat kernels ------------------------------------------------------------------------------------------------ */

/* Writes where v comes from when the segment's operator HEAD changes the shape. The nodes from k up to `at` are the
 * operators in front. */
static void flat_head(struct tg *g, int k, int at) {
    const struct node *nd = &g->p->node[at];
    struct arena *a = g->p->a;
    bool max = nd->op == OP_max_dim1 || nd->op == OP_max_pool2d;
    const char *N, *M;
    switch (gen_ops[nd->op].cls) {
    case OP_SPLIT:
        N = dim(g, DIM_N);
        line(g, "a = i // %s * 2 * %s + i %% %s", N, N, N);
        line(g, "v = tl.load(x + a, mask=m)");
        line(g, "g = tl.load(x + a + %s, mask=m)", N);
        element_wise(g, nd, "i", ", mask=m", "");
        break;
    case OP_TIME:
    case OP_POOL: {
        bool pool = gen_ops[nd->op].cls == OP_POOL;
        const char *index, *in = pool ? "        " : "    ";
        if (pool) {
            const char *H = dim(g, DIM_H), *W = dim(g, DIM_W), *K = dim(g, DIM_K);
            line(g, "e = i // %s", W);
            line(g, "a = (e // %s * %s + e %% %s * %d) * %s + i %% %s * %d", H, dim(g, DIM_M), H, nd->ksize, K, W,
                 nd->ksize);
            index = arena_printf(a, "a + h * %s + t", K);
        } else {
            N = dim(g, DIM_N);
            line(g, "a = i // %s * %s * %s + i %% %s", N, dim(g, DIM_T), N, N);
            index = arena_printf(a, "a + t * %s", N);
        }
        line(g, max ? "s = tl.full((BLOCK,), -float('inf'), tl.float32)" : "s = tl.zeros((BLOCK,), tl.float32)");
        if (pool) {
            line(g, "for h in range(%d):", nd->ksize);
            line(g, "    for t in range(%d):", nd->ksize);
        } else {
            line(g, "for t in range(%s):", dim(g, DIM_T));
        }
        line(g, "%sv = tl.load(x + %s, mask=m)", in, index);
        for (int i = k; i < at; i++) element_wise(g, &g->p->node[i], index, ", mask=m", in);
        line(g, max ? "%ss = tl.maximum(s, v)" : "%ss = s + v", in);
        if (nd->op == OP_mean_dim1)
            line(g, "v = s / %s", dim(g, DIM_T));
        else if (nd->op == OP_avg_pool2d)
            line(g, "v = s / %d", nd->ksize * nd->ksize);
        else
            line(g, "v = s");
        break;
    }
    case OP_GATE:
        line(g, "v = tl.load(x + i // %s, mask=m) * tl.load(%s + i, mask=m)", dim(g, DIM_S), operand(g, nd->in2));
        break;
    default:
        N = dim(g, DIM_N);
        if (nd->op == OP_embedding) {
            line(g, "t = tl.load(x + i // %s, mask=m, other=0)", N);
            line(g, "v = tl.load(%s + t * %s + i %% %s, mask=m)", parameter(g, nd->w), N, N);
            break;
        }
        M = dim(g, DIM_M);
        if (nd->op == OP_transpose) {
            line(g, "a = i %% %s * %s + i // %s", N, M, N);
            line(g, "v = tl.load(x + a, mask=m)");
            for (int i = k; i < at; i++) element_wise(g, &g->p->node[i], "a", ", mask=m", "");
        } else {
            line(g, "a = i // %s * %s + i %% %s", N, M, N);
            line(g, "v = tl.load(x + a, mask=m & (i %% %s < %s), other=0.0)", N, M);
            line(g, "v = v + tl.load(%s + (a - %s), mask=m & (i %% %s >= %s), other=0.0)", operand(g, nd->in2), M, N,
                 M);
        }
    }
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static enum op_class cls(const struct tg *g, int k) { return gen_ops[g->p->node[k].op].cls; }
static bool ew(const struct tg *g, int k) {
    return k < g->p->n && (cls(g, k) == OP_EW || cls(g, k) == OP_EW_IN || cls(g, k) == OP_EW_PAR);
}
static bool loss(const struct tg *g, int k) { return cls(g, k) == OP_TOTAL && g->p->node[k].op != OP_cross_entropy; }

/* Returns how a norm or a reduction cuts its input into rows. ROW_NONE: it is none of these, or rows are too long. */
static enum triton_row row_of(const struct tg *g, int k) {
    if (k >= g->p->n) return ROW_NONE;
    const struct node *nd = &g->p->node[k];
    const struct shape *s = &nd->in;
    enum op_class c = cls(g, k);
    if (nd->op == OP_groupnorm) return plane(s) * s->d[1] / nd->groups <= ROW_MAX ? ROW_GROUP : ROW_NONE;
    if (c != OP_NORM && c != OP_REDUCE && nd->op != OP_cross_entropy) return ROW_NONE;
    if (s->kind == SHAPE_IMAGE) return plane(s) <= ROW_MAX ? ROW_PLANE : ROW_NONE;
    return s->d[s->nd - 1] <= ROW_MAX ? ROW_LAST : ROW_NONE;
}

/* Returns whether an operator makes a flat kernel's v in its own way. Where *takes becomes true, the operators before
 * it may be taken in. */
static bool flat(const struct tg *g, int k, bool *takes) {
    if (k >= g->p->n) return false;
    enum op_class c = cls(g, k);
    *takes = c == OP_TIME || c == OP_POOL || g->p->node[k].op == OP_transpose;
    return c == OP_TIME || c == OP_POOL || c == OP_SPLIT || c == OP_MOVE || c == OP_GATE;
}

static void add_alloc(struct tg *g, const struct node *last, bool partial) {
    struct str *f = &g->forward;
    const struct shape *o = &last->out;
    const char *x = g->cur;
    bool same = o->nd == g->in.nd;
    for (int i = 0; i < o->nd && same; i++) same = o->d[i] == g->in.d[i];
    if (last->op == OP_argmax) same = false;
    str_addf(f, "        %s = torch.", g->dst);
    if (partial) {
        if (g->row == ROW_NONE && !g->st->literal)
            str_addf(f, "empty(triton.cdiv(n, %d)", g->st->block);
        else if (g->row == ROW_NONE)
            str_addf(f, "empty(%lld", (long long)((count(&g->in) + g->st->block - 1) / g->st->block));
        else if (!g->st->literal)
            str_addf(f, "empty(%s.shape[0]", x);
        else
            str_addf(f, "empty(%lld", (long long)g->in.d[0]);
    } else if (same || cls(g, (int)(last - g->p->node)) == OP_GATE) {
        str_addf(f, "empty_like(%s)\n", same ? x : g->y[0]);
        return;
    } else if (g->st->literal) {
        str_adds(f, "empty((");
        for (int i = 0; i < o->nd; i++) str_addf(f, "%s%lld", i ? ", " : "", (long long)o->d[i]);
        str_adds(f, o->nd == 1 ? ",)" : ")");
    } else if (g->row != ROW_NONE) {
        str_addf(f, g->row == ROW_PLANE ? "empty(%s.shape[:2]" : "empty(%s.shape[:-1]", x);
    } else {
        /* Element-wise operators keep the shape of what is before them. */
        int at = (int)(last - g->p->node);
        while (ew(g, at)) at--;
        const struct node *nd = &g->p->node[at];
        enum op_class c = cls(g, at);
        if (c == OP_SPLIT)
            str_addf(f, "empty((*%s.shape[:-1], %s.shape[-1] // 2)", x, x);
        else if (c == OP_TIME)
            str_addf(f, "empty((%s.shape[0], %s.shape[2])", x, x);
        else if (c == OP_POOL)
            str_addf(f, "empty((*%s.shape[:2], %s.shape[2] // %d, %s.shape[3] // %d)", x, x, nd->ksize, x, nd->ksize);
        else if (nd->op == OP_transpose)
            str_addf(f, "empty((%s.shape[1], %s.shape[0])", x, x);
        else if (nd->op == OP_concat)
            str_addf(f, "empty((*%s.shape[:-1], %s.shape[-1] * 2)", x, x);
        else if (nd->op == OP_embedding)
            str_addf(f, "empty((*%s.shape, %s.shape[1])", x, g->w[0]);
        else
            str_addf(f, "empty_like(%s)\n", g->y[0]); /* a gate */
        if (c == OP_GATE) return;
    }
    str_addf(f, ", device=%s.device%s)\n", x, last->op == OP_argmax ? ", dtype=torch.int64" : "");
}

/* Adds the kernel of nodes k to last, and its launch. */
static void add_kernel(struct tg *g, int k, int last, enum triton_row row) {
    const struct prog *p = g->p;
    const struct node *end = &p->node[last];
    struct arena *a = p->a;
    bool partial = cls(g, last) == OP_TOTAL, takes;
    int at = k; /* The operator that makes a flat kernel's values. */
    while (at < last && !flat(g, at, &takes)) at++;
    bool made = row == ROW_NONE && flat(g, at, &takes);
    g->in = p->node[k].in;
    if (cls(g, k) == OP_MOVE && p->node[k].op == OP_embedding) g->in = (struct shape){.nd = 2};
    g->out = made ? p->node[at].out : g->in;
    g->row = row;
    g->groups = 0;
    for (int i = k; i <= last; i++)
        if (row == ROW_GROUP && p->node[i].groups > 0) g->groups = p->node[i].groups;
    g->scalar = false;
    g->n_y = g->n_w = 0;
    memset(g->used, 0, sizeof g->used);
    g->dst = arena_printf(a, "t%d", ++g->n_values);
    const int number = ++g->n_kernels;
    str_clear(&g->body);
    if (row == ROW_NONE) {
        line(g, "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)");
        line(g, "m = i < %s", dim(g, DIM_n));
        if (made)
            flat_head(g, k, at);
        else
            line(g, "v = tl.load(x + i, mask=m)");
        for (int i = made ? at + 1 : k; i <= last; i++)
            if (snippets[p->node[i].op]) element_wise(g, &p->node[i], "i", ", mask=m", "");
        if (partial)
            line(g, "tl.store(out + tl.program_id(0), %s)", sum_v);
        else
            line(g, "tl.store(out + i, v, mask=m)");
    } else {
        const char *N = dim(g, DIM_N), *index = arena_printf(a, "r * %s + j", N);
        line(g, "r = tl.program_id(0)");
        line(g, "j = tl.arange(0, BLOCK)");
        line(g, "m = j < %s", N);
        line(g, "v = tl.load(x + %s, mask=m, other=0.0)", index);
        for (int i = k; i <= last; i++) {
            const struct node *nd = &p->node[i];
            if (ew(g, i)) {
                element_wise(g, nd, g->scalar ? "r" : index, g->scalar ? "" : ", mask=m", "");
            } else if (nd->op == OP_cross_entropy) {
                const char *y = operand(g, nd->in2);
                line(g, "v = v - %s", max_v);
                line(g, "s = tl.sum(tl.where(j == tl.load(%s + r), v, 0.0), axis=0)", y);
                line(g, "v = tl.log(tl.sum(tl.where(m, tl.exp(v), 0.0), axis=0)) - s");
            } else if (cls(g, i) == OP_REDUCE) {
                reduce(g, nd);
            } else {
                norm(g, nd);
            }
        }
        if (partial || g->scalar)
            line(g, "tl.store(out + r, v)");
        else
            line(g, "tl.store(out + %s, v, mask=m)", index);
    }
    /* The kernel's head. */
    struct str *s = &g->kernels, *f = &g->forward;
    str_addf(s, "@triton.jit\ndef kernel%d(x", number);
    for (int i = 0; i < g->n_y; i++) str_addf(s, ", y%d", i + 1);
    for (int i = 0; i < g->n_w; i++) str_addf(s, ", w%d", i + 1);
    str_adds(s, ", out");
    for (int d = 0; d < DIMS; d++)
        if (g->used[d]) str_addf(s, ", %s", dim_names[d]);
    str_addf(s, ", BLOCK: tl.constexpr):\n%s\n", str_c(&g->body));
    /* Its launch. */
    const char *ref = partial ? g->cur : g->dst;
    const int64_t rows = row != ROW_NONE ? count(&g->in) / row_length(g) : 0;
    if (!g->st->literal) {
        const char *x = g->cur;
        if (row == ROW_LAST)
            str_addf(f, "        N = %s.shape[-1]\n", x);
        else if (row == ROW_PLANE)
            str_addf(f, g->in.nd == 4 ? "        N = %s.shape[2] * %s.shape[3]\n" : "        N = %s.shape[2]\n", x, x);
        else if (row == ROW_GROUP)
            str_addf(f, "        N = %s.numel() // (%s.shape[0] * %d)\n", x, x, g->groups);
        else if (partial)
            str_addf(f, "        n = %s.numel()\n", ref);
    }
    add_alloc(g, end, partial);
    if (!g->st->literal && row == ROW_NONE && !partial) str_addf(f, "        n = %s.numel()\n", ref);
    if (g->st->literal)
        str_addf(f, "        kernel%d[(%lld,)](%s", number,
                 (long long)(row != ROW_NONE ? rows : (count(&g->out) + g->st->block - 1) / g->st->block), g->cur);
    else if (row == ROW_NONE)
        str_addf(f, "        kernel%d[(triton.cdiv(n, %d),)](%s", number, g->st->block, g->cur);
    else
        str_addf(f, "        kernel%d[(%s.numel() // N,)](%s", number, g->cur, g->cur);
    for (int i = 0; i < g->n_y; i++) str_addf(f, ", %s", g->y[i]);
    for (int i = 0; i < g->n_w; i++) str_addf(f, ", %s", g->w[i]);
    str_addf(f, ", %s", g->dst);
    for (int d = 0; d < DIMS; d++)
        if (g->used[d]) str_addf(f, ", %s", dim_expr(g, (enum dim)d, ref));
    if (row == ROW_NONE) {
        str_addf(f, ", BLOCK=%d)\n", g->st->block);
    } else if (g->st->literal) {
        int64_t block = 1;
        while (block < row_length(g)) block *= 2;
        str_addf(f, ", BLOCK=%lld)\n", (long long)block);
    } else {
        str_adds(f, ", BLOCK=triton.next_power_of_2(N))\n");
    }
    g->cur = g->dst;
    if (partial) {
        const char *t = arena_printf(a, "t%d", ++g->n_values);
        const char *sum = end->op == OP_sum_all         ? "sum()"
                          : end->op == OP_cross_entropy ? "mean()"
                          : !g->st->literal             ? "sum() / n"
                                                        : arena_printf(a, "sum() / %lld", (long long)count(&g->in));
        str_addf(f, "        %s = %s.%s\n", t, g->cur, sum);
        g->cur = t;
    }
}

/* Adds a line of the module itself. */
static void add_torch(struct tg *g, const struct node *nd) {
    const char *t = arena_printf(g->p->a, "t%d", ++g->n_values);
    str_addf(&g->forward, "        %s = ", t);
    for (const char *c = nd->expr; *c; c++) {
        if (c[0] == '$' && c[1] == 'x') {
            str_adds(&g->forward, g->cur);
            c++;
        } else {
            str_addc(&g->forward, *c);
        }
    }
    str_addc(&g->forward, '\n');
    g->cur = t;
}

/* Adds the segment that starts at k. Returns the node after it. */
static int add_segment(struct tg *g, int k) {
    bool takes = false;
    int n = g->p->n, e = k;
    if (!g->st->fused) {
        enum triton_row row = row_of(g, k);
        if (row == ROW_NONE && !ew(g, k) && !loss(g, k) && !flat(g, k, &takes))
            add_torch(g, &g->p->node[k]);
        else
            add_kernel(g, k, k, row);
        return k + 1;
    }
    bool parameters = false;
    for (; ew(g, e); e++) parameters |= cls(g, e) == OP_EW_PAR;
    enum triton_row row = row_of(g, e);
    /* Norms of the same rows are taken together, up to a reduction and what follows it. */
    if (row != ROW_NONE) {
        bool scalar = false;
        for (; e < n; e++) {
            if (ew(g, e)) continue;
            if (scalar || row_of(g, e) != row) break;
            if (row == ROW_GROUP && e > k && g->p->node[e].op != OP_groupnorm) break;
            if (cls(g, e) == OP_TOTAL) { /* cross entropy */
                e++;
                break;
            }
            scalar = cls(g, e) == OP_REDUCE;
        }
    } else if (e < n && loss(g, e)) {
        e++;
    } else if (flat(g, e, &takes) && (e == k || (takes && !parameters))) {
        for (e++; ew(g, e);) e++;
    } else if (e == k) {
        add_torch(g, &g->p->node[k]);
        return k + 1;
    }
    add_kernel(g, k, e - 1, row);
    return e;
}

char *prog_triton(const struct prog *p, enum gen_triton_style style) {
    struct tg g = {.p = p, .st = &styles[style], .cur = p->x};
    struct str s = STR_INIT, args = STR_INIT;
    for (int k = 0; k < p->n;) k = add_segment(&g, k);
    bool uses_f = strstr(str_c(&g.forward), "F.") != NULL;
    for (int i = 0; i < p->n_consts; i++)
        if (p->consts[i].init) str_addf(&args, ", %s", p->consts[i].name);
    str_addf(&s,
             "# plan: %s, block %d, %s\nimport torch\nimport torch.nn as nn\n%simport triton\n"
             "import triton.language as tl\n\n%sclass ModelNew(nn.Module):\n",
             g.st->fused ? "fused" : "separate", g.st->block, g.st->literal ? "numbers" : "names",
             uses_f ? "import torch.nn.functional as F\n" : "", str_c(&g.kernels));
    if (p->n_init > 0 || args.len > 0) {
        str_addf(&s, "    def __init__(self%s):\n        super().__init__()\n", str_c(&args));
        for (int i = 0; i < p->n_init; i++) str_addf(&s, "        %s\n", p->init[i]);
        str_addc(&s, '\n');
    }
    str_adds(&s, "    def forward(self");
    for (int i = 0; i < p->n_in; i++) str_addf(&s, ", %s", p->in[i].name);
    str_addf(&s, "):\n%s        return %s\n", str_c(&g.forward), g.cur);
    const bool fits = g.n_kernels > 0 && s.len <= GEN_MAX_TRITON_BYTES;
    str_free(&args);
    str_free(&g.kernels);
    str_free(&g.forward);
    str_free(&g.body);
    if (fits) return str_steal(&s);
    str_free(&s);
    return NULL;
}
