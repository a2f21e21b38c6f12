/* The native CUDA answers of a program (docs/formats.md, backend cuda_native): element-wise operators, norms and
 * reductions of rows. A program with anything else has no such answer.
 *
 * A kernel is flat, with a thread for each element, or has a block of threads for a row, which it keeps in shared
 * memory. A thread only touches its own elements of the row, so threads wait for each other only in sums and maxima. In
 * a fused answer one kernel does everything. In a separate one each operator has its own kernel, which works in place
 * on the output. As in the C answers, the same operator is always written the same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/write_c.h"

/* The longest row that a block keeps: there are 48 KB. */
enum { ROW_MAX = 11000 };

static const struct cuda_style {
    const char *name;
    bool fused, literal;
    int share;
} styles[GEN_CUDA_STYLES] = {
#define X(name, fused, literal, share) {#name, fused, literal, share},
    GEN_CUDA_STYLE_LIST(X)
#undef X
};

const char *gen_cuda_style_name(enum gen_cuda_style s) { return styles[s].name; }
int gen_cuda_style_share(enum gen_cuda_style s) { return styles[s].share; }

static const char help_sum[] = "__device__ float row_sum(float s) {\n"
                               "  __shared__ float part[8];\n"
                               "  for (int k = 16; k > 0; k /= 2) s += __shfl_xor_sync(~0u, s, k);\n"
                               "  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;\n"
                               "  __syncthreads();\n"
                               "  s = 0.0f;\n"
                               "  for (int k = 0; k < 8; k++) s += part[k];\n"
                               "  __syncthreads();\n"
                               "  return s;\n"
                               "}\n";
static const char help_max[] = "__device__ float row_max(float m) {\n"
                               "  __shared__ float part[8];\n"
                               "  for (int k = 16; k > 0; k /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, k));\n"
                               "  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;\n"
                               "  __syncthreads();\n"
                               "  m = part[0];\n"
                               "  for (int k = 1; k < 8; k++) m = fmaxf(m, part[k]);\n"
                               "  __syncthreads();\n"
                               "  return m;\n"
                               "}\n";

static enum op_class cls(const struct prog *p, int k) { return gen_ops[p->node[k].op].cls; }
static bool element_wise(const struct prog *p, int k) {
    return cls(p, k) == OP_EW || cls(p, k) == OP_EW_IN || cls(p, k) == OP_EW_PAR;
}

static int64_t row_length(const struct shape *s) {
    return s->kind == SHAPE_IMAGE ? s->d[2] * (s->nd == 4 ? s->d[3] : 1) : s->d[s->nd - 1];
}

/* Returns whether there are kernels for the whole program. */
static bool has_kernels(const struct prog *p) {
    bool reduced = false;
    for (int k = 0; k < p->n; k++) {
        const struct node *nd = &p->node[k];
        const enum op_class c = cls(p, k);
        const bool rows = c == OP_NORM || c == OP_REDUCE;
        if (nd->in.kind != SHAPE_ROWS && nd->in.kind != SHAPE_IMAGE && !reduced) return false;
        if (!rows && !element_wise(p, k)) return false;
        /* Threads would have to know of each other. */
        if (nd->op == OP_cumsum || nd->op == OP_argmax) return false;
        if (rows && (reduced || row_length(&nd->in) > ROW_MAX)) return false;
        if (reduced && c == OP_EW_PAR) return false;
        reduced |= c == OP_REDUCE;
    }
    return true;
}

struct cuda_row { /* The row of a kernel with a block for each row. */
    struct cg *g;
    const char *src, *len;
    bool held; /* true: the row is in o. */
    bool sums, maxima;
};

static void each(struct cuda_row *r, const char *fmt, const char *arg) {
    char body[200];
    snprintf(body, sizeof body, fmt, arg);
    cg_line(r->g, "for (int j = threadIdx.x; j < %s; j += 256) %s", r->len, body);
}
static void sum(struct cuda_row *r, const char *expr) {
    cg_line(r->g, "s = 0.0f;");
    each(r, "s += %s;", expr);
    cg_line(r->g, "s = row_sum(s);");
    r->sums = true;
}
/* Finds the largest element (sign "") or the smallest one with its sign turned ("-"). */
static void maximum(struct cuda_row *r, const char *sign) {
    cg_line(r->g, "m = -INFINITY;");
    each(r, "m = fmaxf(m, %so[j]);", sign);
    cg_line(r->g, "m = row_max(m);");
    r->maxima = true;
}

/* Writes the pending operators, between reading an element and writing it to `to`. */
static void pass(struct cuda_row *r, const char *to) {
    struct cg *g = r->g;
    cg_line(g, "for (int j = threadIdx.x; j < %s; j += 256) {", r->len);
    g->depth++;
    if (r->held)
        cg_line(g, "float v = o[j];");
    else
        cg_line(g, "float v = %s[i * %s + j];", r->src, r->len);
    for (int k = 0; k < g->n_pending; k++) {
        const struct node *nd = &g->p->node[g->pending[k]];
        CLEANUP_STR struct str y = STR_INIT, par = STR_INIT;
        str_addf(&y, "i * %s + j", r->len);
        if (nd->in.kind == SHAPE_IMAGE)
            str_addf(&par, "i %% %s", nd->in.chan);
        else
            str_adds(&par, "j");
        cg_element_wise(g, nd, str_c(&y), str_c(&par));
    }
    g->n_pending = 0;
    cg_line(g, "%s = v;", to);
    cg_end(g);
    r->held = true;
}
static void hold(struct cuda_row *r) {
    if (!r->held || r->g->n_pending > 0) pass(r, "o[j]");
}

static void norm(struct cuda_row *r, const struct node *nd) {
    struct cg *g = r->g;
    hold(r);
    switch (nd->op) {
    case OP_softmax:
        maximum(r, "");
        each(r, "o[j] = expf(o[j] - m);", "");
        sum(r, "o[j]");
        each(r, "o[j] = o[j] / s;", "");
        break;
    case OP_log_softmax:
        maximum(r, "");
        sum(r, "expf(o[j] - m)");
        cg_line(g, "s = m + logf(s);");
        each(r, "o[j] = o[j] - s;", "");
        break;
    case OP_rmsnorm:
        sum(r, "o[j] * o[j]");
        cg_line(g, "s = rsqrtf(s / %s + %sf);", r->len, nd->eps);
        each(r, "o[j] = o[j] * s * %s[j];", nd->w);
        break;
    case OP_l2_normalize:
        sum(r, "o[j] * o[j]");
        cg_line(g, "s = fmaxf(sqrtf(s), 1e-12f);");
        each(r, "o[j] = o[j] / s;", "");
        break;
    case OP_center:
        sum(r, "o[j]");
        cg_line(g, "m = s / %s;", r->len);
        each(r, "o[j] = o[j] - m;", "");
        break;
    default: /* layer and instance norms */
        sum(r, "o[j]");
        cg_line(g, "m = s / %s;", r->len);
        sum(r, "(o[j] - m) * (o[j] - m)");
        cg_line(g, "s = rsqrtf(s / %s + 1e-5f);", r->len);
        each(r, "o[j] = (o[j] - m) * s;", "");
        if (!nd->w) break;
        cg_line(g, "for (int j = threadIdx.x; j < %s; j += 256) o[j] = o[j] * %s[%s] + %s[%s];", r->len, nd->w,
                nd->in.kind == SHAPE_IMAGE ? arena_printf(g->p->a, "i %% %s", nd->in.chan) : "j", nd->b,
                nd->in.kind == SHAPE_IMAGE ? arena_printf(g->p->a, "i %% %s", nd->in.chan) : "j");
    }
}

static void reduce(struct cuda_row *r, const struct node *nd) {
    struct cg *g = r->g;
    hold(r);
    const char *v = "s";
    switch (nd->op) {
    case OP_sum: sum(r, "o[j]"); break;
    case OP_mean:
    case OP_global_avg_pool:
        sum(r, "o[j]");
        cg_line(g, "s = s / %s;", r->len);
        break;
    case OP_l1_norm: sum(r, "fabsf(o[j])"); break;
    case OP_l2_norm:
        sum(r, "o[j] * o[j]");
        cg_line(g, "s = sqrtf(s);");
        break;
    case OP_max:
    case OP_global_max_pool:
        maximum(r, "");
        v = "m";
        break;
    case OP_min:
        maximum(r, "-");
        v = "-m";
        break;
    case OP_var:
        sum(r, "o[j]");
        cg_line(g, "m = s / %s;", r->len);
        sum(r, "(o[j] - m) * (o[j] - m)");
        cg_line(g, "s = s / (%s - 1);", r->len);
        break;
    case OP_logsumexp:
        maximum(r, "");
        sum(r, "expf(o[j] - m)");
        cg_line(g, "s = m + logf(s);");
        break;
    default: ASSERT(!"reduce");
    }
    cg_line(g, "float v = %s;", v);
    g->scalar = true;
}

/* Writes the body of nodes k to last, with a block for each row. */
static void row_kernel(struct cuda_row *r, int k, int last) {
    struct cg *g = r->g;
    cg_line(g, "__shared__ float o[%s];", r->len);
    cg_line(g, "int i = blockIdx.x;");
    cg_line(g, "float m, s;");
    for (; k <= last; k++) {
        const struct node *nd = &g->p->node[k];
        if (cls(g->p, k) == OP_NORM)
            norm(r, nd);
        else if (cls(g->p, k) == OP_REDUCE)
            reduce(r, nd);
        else if (g->scalar)
            cg_element_wise(g, nd, "i", "i");
        else
            g->pending[g->n_pending++] = k;
    }
    if (g->scalar)
        cg_line(g, "if (threadIdx.x == 0) out[i] = v;");
    else
        pass(r, arena_printf(g->p->a, "out[i * %s + j]", r->len));
}

static void flat_kernel(struct cg *g, const char *src, int k, int last) {
    const struct shape *s = &g->p->node[k].in;
    cg_line(g, "int i = blockIdx.x * 256 + threadIdx.x;");
    cg_line(g, "if (i >= %s * %s) return;", s->rows, s->len);
    cg_line(g, "float v = %s[i];", src);
    for (; k <= last; k++) {
        const struct node *nd = &g->p->node[k];
        cg_element_wise(g, nd, "i",
                        s->kind == SHAPE_IMAGE ? arena_printf(g->p->a, "i / %s %% %s", s->len, s->chan)
                                               : arena_printf(g->p->a, "i %% %s", s->len));
    }
    cg_line(g, "out[i] = v;");
}

/* Adds "const float *x, const float *fc_weight, float *out", or only the names. */
static void add_arguments(const struct prog *p, bool types, struct str *s) {
    const char *type = types ? "const float *" : "";
    for (int i = 0; i < p->n_in; i++) str_addf(s, "%s%s%s", i ? ", " : "", type, p->in[i].name);
    for (int member = 0; member < 2; member++)
        for (int i = 0; i < p->n_par; i++)
            if (p->par[i].member == (member == 1)) str_addf(s, ", %s%s", type, p->par[i].name);
    str_addf(s, ", %sout", types ? "float *" : "");
}

char *prog_cuda(const struct prog *p, enum gen_cuda_style style) {
    const struct cuda_style *st = &styles[style];
    CLEANUP_STR struct str types = STR_INIT, names = STR_INIT, launches = STR_INIT, kernels = STR_INIT;
    struct cg g = {.p = p};
    bool sums = false, maxima = false, reduced = false;
    const char *src = p->x;
    int n = 0;
    if (!has_kernels(p)) return NULL;
    for (int k = 0; k < p->n; k++) reduced |= cls(p, k) == OP_REDUCE;
    /* Values between kernels have no place in an output of one number a row. */
    if (reduced && !st->fused) return NULL;
    add_arguments(p, true, &types);
    add_arguments(p, false, &names);
    for (int k = 0, last; k < p->n; k = last + 1) {
        const struct shape *in = &p->node[k].in;
        last = st->fused ? p->n - 1 : k;
        struct cuda_row r = {.g = &g, .src = src, .len = in->len};
        bool flat = true;
        for (int i = k; i <= last; i++) flat &= element_wise(p, i);
        g.depth = 0;
        cg_line(&g, "__global__ void step%d(%s) {", ++n, str_c(&types));
        g.depth = 1;
        if (flat)
            flat_kernel(&g, src, k, last);
        else
            row_kernel(&r, k, last);
        cg_end(&g);
        if (flat)
            str_addf(&launches, "  step%d<<<(%s * %s + 255) / 256, 256, 0, stream>>>(%s);\n", n, in->rows, in->len,
                     str_c(&names));
        else
            str_addf(&launches, "  step%d<<<%s, 256, 0, stream>>>(%s);\n", n, in->rows, str_c(&names));
        sums |= r.sums;
        maxima |= r.maxima;
        src = "out";
    }
    if (st->literal) {
        cg_literal_sizes(p, &g.s);
        cg_literal_sizes(p, &launches);
    }
    struct str s = STR_INIT;
    str_addf(&s, "// plan: %s, %s\n", st->fused ? "fused" : "separate", st->literal ? "numbers" : "names");
    for (int i = 0; i < p->n_dims && !st->literal; i++)
        str_addf(&s, "%s%s = %s%s", i ? ", " : "enum { ", p->dims[i].name, p->dims[i].expr,
                 i + 1 == p->n_dims ? " };\n" : "");
    if (sums) str_adds(&s, help_sum);
    if (maxima) str_adds(&s, help_max);
    str_add(&s, g.s.p, g.s.len);
    str_addf(&s, "void kernel(%s, cudaStream_t stream) {\n%s}\n", str_c(&types), str_c(&launches));
    str_free(&g.s);
    if (s.len <= GEN_MAX_ANSWER_BYTES) return str_steal(&s);
    str_free(&s);
    return NULL;
}
