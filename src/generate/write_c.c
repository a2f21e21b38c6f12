/* The C answers of a program. A program is cut into segments, each of which is one loop nest. A segment has one
 * operator (separate), or as many as share a partition into rows (fused). Inside a segment every operator adds its own
 * short text, so an answer is a concatenation: loop head, operators in order, store. The same operator is always
 * written the same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/write_c.h"

static const char *row_len(const struct cg *g, const struct node *nd) {
    return g->dom == DOM_GROUP ? "GS" : nd->in.len;
}

/* Adds the text of the pending element-wise operators, on v. */
static void pending_text(struct cg *g) {
    if (g->gate) cg_line(g, "v = v * g;");
    g->gate = false;
    for (int k = 0; k < g->n_pending; k++) {
        const struct node *nd = &g->p->node[g->pending[k]];
        char y[64];
        const char *par = nd->in.kind == SHAPE_IMAGE ? "c" : "j";
        if (g->dom == DOM_FLAT || g->scalar)
            snprintf(y, sizeof y, "i");
        else if (g->dom == DOM_BATCH)
            snprintf(y, sizeof y, "(n * %s + c) * %s + j", nd->in.chan, nd->in.len);
        else if (g->dom == DOM_TIME)
            snprintf(y, sizeof y, "(i * T + t) * N + j");
        else
            snprintf(y, sizeof y, "i * %s + j", row_len(g, nd));
        cg_element_wise(g, nd, y, par);
    }
    g->n_pending = 0;
}

static bool any_pending(const struct cg *g) { return g->gate || g->n_pending > 0; }

static bool changes_length(const struct prog *p, int k) {
    enum op_class c = gen_ops[p->node[k].op].cls;
    return c == OP_PRODUCT || c == OP_SPLIT || c == OP_POOL || c == OP_REDUCE || c == OP_TOTAL || c == OP_CONV ||
           p->node[k].op == OP_concat;
}

/* Returns where a row that exists before node k (k in the segment, or last + 1) is kept: in the output row when no
 * later operator changes the length, else in a local buffer. */
static const char *place(struct cg *g, int k, const char *len) {
    for (int i = k; i <= g->last; i++) {
        if (!changes_length(g->p, i)) continue;
        const char *name = g->n_local++ ? arena_printf(g->p->a, "h%d", g->n_local) : "h";
        cg_line(g, "float %s[%s];", name, len);
        return name;
    }
    return "o";
}

/* Writes the pending operators out, so that the row before node k lies at g->cur. */
static void flush(struct cg *g, int k, const char *len) {
    if (!any_pending(g)) return;
    const char *to = g->writable ? g->cur : place(g, k, len);
    cg_loop(g, 'j', len);
    cg_line(g, "float v = %s[j];", g->cur);
    pending_text(g);
    cg_line(g, "%s[j] = v;", to);
    cg_end(g);
    g->cur = to;
    g->writable = true;
}

static void simd(struct cg *g, const char *clause) {
    if (g->st.simd) cg_line(g, "#pragma omp simd reduction(%s)", clause);
}

static void sum_loop(struct cg *g, const char *len, const char *expr) {
    cg_line(g, "s = 0.0f;");
    simd(g, "+:s");
    cg_each(g, 'j', len, "s += %s;", expr);
}
static void max_loop(struct cg *g, const char *len, const char *x) {
    cg_line(g, "m = %s[0];", x);
    simd(g, "max:m");
    cg_each(g, 'j', len, "m = %s[j] > m ? %s[j] : m;", x, x);
}
static const char *paren(const struct cg *g, const char *e) {
    return strchr(e, ' ') ? arena_printf(g->p->a, "(%s)", e) : e;
}

static void norm_text(struct cg *g, int k, const char *len) {
    const struct node *nd = &g->p->node[k];
    flush(g, k, len);
    const char *x = g->cur, *o = g->writable ? g->cur : place(g, k + 1, len);
    struct arena *a = g->p->a;
    const char *d = arena_printf(a, "%s[j] - m", x), *sq = arena_printf(a, "(%s) * (%s)", d, d),
               *xx = arena_printf(a, "%s[j] * %s[j]", x, x);
    switch (nd->op) {
    case OP_softmax:
        max_loop(g, len, x);
        cg_each(g, 'j', len, "%s[j] = %s(%s);", o, cg_fn(g, "exp"), d);
        sum_loop(g, len, arena_printf(a, "%s[j]", o));
        cg_line(g, "s = 1.0f / s;");
        cg_each(g, 'j', len, "%s[j] *= s;", o);
        break;
    case OP_log_softmax:
        max_loop(g, len, x);
        sum_loop(g, len, arena_printf(a, "%s(%s)", cg_fn(g, "exp"), d));
        cg_line(g, "s = m + logf(s);");
        cg_each(g, 'j', len, "%s[j] = %s[j] - s;", o, x);
        break;
    case OP_layernorm:
    case OP_layernorm_plain:
    case OP_instancenorm:
    case OP_groupnorm:
        sum_loop(g, len, arena_printf(a, "%s[j]", x));
        cg_line(g, "m = s / %s;", paren(g, len));
        sum_loop(g, len, sq);
        cg_line(g, "s = 1.0f / sqrtf(s / %s + 1e-5f);", paren(g, len));
        if (nd->op == OP_groupnorm) {
            const char *cpg = arena_printf(a, "%s / G", nd->in.chan), *S = nd->in.len;
            cg_line(g, "for (int k = 0; k < %s; k++) {", cpg);
            g->depth++;
            cg_line(g, "int c = i %% G * (%s) + k;", cpg);
            cg_each(g, 'j', S, "%s[k * %s + j] = (%s[k * %s + j] - m) * s * %s[c] + %s[c];", o, S, x, S, nd->w, nd->b);
            cg_end(g);
        } else if (nd->op == OP_layernorm) {
            cg_each(g, 'j', len, "%s[j] = (%s) * s * %s[j] + %s[j];", o, d, nd->w, nd->b);
        } else {
            cg_each(g, 'j', len, "%s[j] = (%s) * s;", o, d);
        }
        break;
    case OP_rmsnorm:
        sum_loop(g, len, xx);
        cg_line(g, "s = 1.0f / sqrtf(s / %s + %sf);", len, nd->eps);
        cg_each(g, 'j', len, "%s[j] = %s[j] * s * %s[j];", o, x, nd->w);
        break;
    case OP_l2_normalize:
        sum_loop(g, len, xx);
        cg_line(g, "s = sqrtf(s);");
        cg_line(g, "s = 1.0f / (s > 1e-12f ? s : 1e-12f);");
        cg_each(g, 'j', len, "%s[j] = %s[j] * s;", o, x);
        break;
    case OP_cumsum:
        cg_line(g, "s = 0.0f;");
        cg_line(g, "for (int j = 0; j < %s; j++) { s += %s[j]; %s[j] = s; }", len, x, o);
        break;
    case OP_center:
        sum_loop(g, len, arena_printf(a, "%s[j]", x));
        cg_line(g, "m = s / %s;", len);
        cg_each(g, 'j', len, "%s[j] = %s;", o, d);
        break;
    default: ASSERT(!"norm");
    }
    g->cur = o;
    g->writable = true;
}

/* Writes one pass over the row with the pending operators inside. */
static void fold(struct cg *g, const char *len, const char *init, const char *clause, const char *acc) {
    cg_line(g, "%s", init);
    simd(g, clause);
    cg_loop(g, 'j', len);
    cg_line(g, "float v = %s[j];", g->cur);
    pending_text(g);
    cg_line(g, "%s", acc);
    cg_end(g);
}

static void reduce_text(struct cg *g, int k, const char *len) {
    const struct node *nd = &g->p->node[k];
    struct arena *a = g->p->a;
    const char *n = paren(g, len);
    switch (nd->op) {
    case OP_sum:
        fold(g, len, "s = 0.0f;", "+:s", "s += v;");
        cg_line(g, "float v = s;");
        break;
    case OP_mean:
    case OP_global_avg_pool:
        fold(g, len, "s = 0.0f;", "+:s", "s += v;");
        cg_line(g, "float v = s / %s;", n);
        break;
    case OP_l1_norm:
        fold(g, len, "s = 0.0f;", "+:s", "s += fabsf(v);");
        cg_line(g, "float v = s;");
        break;
    case OP_l2_norm:
        fold(g, len, "s = 0.0f;", "+:s", "s += v * v;");
        cg_line(g, "float v = sqrtf(s);");
        break;
    case OP_max:
    case OP_global_max_pool:
        fold(g, len, "m = -INFINITY;", "max:m", "m = v > m ? v : m;");
        cg_line(g, "float v = m;");
        break;
    case OP_min:
        fold(g, len, "m = INFINITY;", "min:m", "m = v < m ? v : m;");
        cg_line(g, "float v = m;");
        break;
    case OP_var:
        flush(g, k, len);
        sum_loop(g, len, arena_printf(a, "%s[j]", g->cur));
        cg_line(g, "m = s / %s;", n);
        sum_loop(g, len, arena_printf(a, "(%s[j] - m) * (%s[j] - m)", g->cur, g->cur));
        cg_line(g, "float v = s / (%s - 1);", len);
        break;
    case OP_logsumexp:
        flush(g, k, len);
        max_loop(g, len, g->cur);
        sum_loop(g, len, arena_printf(a, "%s(%s[j] - m)", cg_fn(g, "exp"), g->cur));
        cg_line(g, "float v = m + logf(s);");
        break;
    case OP_argmax:
        flush(g, k, len);
        cg_line(g, "int v = 0;");
        cg_line(g, "m = %s[0];", g->cur);
        cg_line(g, "for (int j = 0; j < %s; j++) if (%s[j] > m) { m = %s[j]; v = j; }", len, g->cur, g->cur);
        break;
    default: ASSERT(!"reduce");
    }
    g->scalar = true;
}

static void total_text(struct cg *g, int k, const char *len) {
    const struct node *nd = &g->p->node[k];
    if (nd->op == OP_cross_entropy) {
        flush(g, k, len);
        max_loop(g, len, g->cur);
        sum_loop(g, len, arena_printf(g->p->a, "%s(%s[j] - m)", cg_fn(g, "exp"), g->cur));
        cg_line(g, "total += m + logf(s) - %s[%s[i]];", g->cur, nd->in2);
        return;
    }
    if (gen_ops[nd->op].c) g->pending[g->n_pending++] = k;
    if (g->scalar) {
        pending_text(g);
        cg_line(g, "total += v;");
    } else {
        fold(g, len, "s = 0.0f;", "+:s", "s += v;");
        cg_line(g, "total += s;");
    }
}

static void product_text(struct cg *g, int k) {
    const struct node *nd = &g->p->node[k];
    const char *n = nd->in.len, *o1 = nd->out.len;
    flush(g, k, n);
    const char *o = place(g, k + 1, o1);
    bool dot = nd->op == OP_linear || nd->op == OP_linear_nobias || nd->op == OP_matmul_t || nd->op == OP_bmm_t;
    bool batched = nd->op == OP_bmm || nd->op == OP_bmm_t;
    const char *w = nd->in2 ? nd->in2 : nd->w;
    if (batched) {
        /* Attention has two in one row. */
        const char *q = g->n_q++ ? "r" : "q";
        cg_line(g, "const float *%s = %s + i / T * %s * %s;", q, w, n, o1);
        w = q;
    }
    if (!dot && g->st.simd) {
        cg_each(g, 'n', o1, "%s[n] = 0.0f;", o);
        cg_line(g, "for (int k = 0; k < %s; k++)", n);
        cg_line(g, "  for (int n = 0; n < %s; n++) %s[n] += %s[k] * %s[k * %s + n];", o1, o, g->cur, w, o1);
    } else {
        cg_line(g, "for (int n = 0; n < %s; n++) {", o1);
        g->depth++;
        if (nd->b)
            cg_line(g, "float s = %s[n];", nd->b);
        else
            cg_line(g, "float s = 0.0f;");
        simd(g, "+:s");
        if (dot)
            cg_each(g, 'k', n, "s += %s[k] * %s[n * %s + k];", g->cur, w, n);
        else
            cg_each(g, 'k', n, "s += %s[k] * %s[k * %s + n];", g->cur, w, o1);
        cg_line(g, "%s[n] = s;", o);
        cg_end(g);
    }
    g->cur = o;
    g->writable = true;
}

static void split_text(struct cg *g, int k) {
    const struct node *nd = &g->p->node[k];
    flush(g, k, nd->in.len);
    const char *o = place(g, k + 1, nd->out.len), *x = g->cur;
    struct str s = STR_INIT;
    cg_add_functions(g, gen_ops[nd->op].c, &s);
    cg_loop(g, 'j', nd->out.len);
    cg_line(g, "float v = %s[j], g = %s[%s + j];", x, x, nd->out.len);
    cg_line(g, "%s[j] = %s;", o, str_c(&s));
    cg_end(g);
    str_free(&s);
    g->cur = o;
    g->writable = true;
}

static void concat_text(struct cg *g, int k) {
    const struct node *nd = &g->p->node[k];
    const char *o = place(g, k + 1, nd->out.len);
    cg_loop(g, 'j', nd->in.len);
    cg_line(g, "float v = %s[j];", g->cur);
    pending_text(g);
    cg_line(g, "%s[j] = v;", o);
    cg_line(g, "%s[%s + j] = %s[i * %s + j];", o, nd->in.len, nd->in2, nd->in.len);
    cg_end(g);
    g->cur = o;
    g->writable = true;
}

static void pool_text(struct cg *g, int k) {
    const struct node *nd = &g->p->node[k];
    flush(g, k, nd->in.len);
    const char *o = place(g, k + 1, nd->out.len);
    bool max = nd->op == OP_max_pool2d;
    cg_line(g, "for (int e = 0; e < %s; e++)", nd->out.h);
    cg_line(g, "  for (int f = 0; f < %s; f++) {", nd->out.w);
    g->depth += 2;
    cg_line(g, max ? "float v = -INFINITY;" : "float v = 0.0f;");
    cg_line(g, "for (int u = 0; u < %d; u++)", nd->ksize);
    cg_line(g, "  for (int w = 0; w < %d; w++) {", nd->ksize);
    cg_line(g, "    float q = %s[(e * %d + u) * %s + f * %d + w];", g->cur, nd->ksize, nd->in.w, nd->ksize);
    cg_line(g, max ? "    v = q > v ? q : v;" : "    v += q;");
    cg_line(g, "  }");
    if (max)
        cg_line(g, "%s[e * %s + f] = v;", o, nd->out.w);
    else
        cg_line(g, "%s[e * %s + f] = v / %d;", o, nd->out.w, nd->ksize * nd->ksize);
    g->depth -= 2;
    cg_line(g, "  }");
    g->cur = o;
    g->writable = true;
}

/* Writes one output plane (n, c) of a convolution; x is the whole input. With fast math and stride 1 the kernel's taps
 * are outside and rows of pixels inside, which vectorises. Else there is a sum for every pixel. */
static void conv_text(struct cg *g, int k, const char *x) {
    const struct node *nd = &g->p->node[k];
    const struct shape *in = &nd->in, *out = &nd->out;
    bool two = in->h != NULL, dw = nd->op == OP_depthwise_conv2d, pad = nd->pad > 0,
         taps = g->st.simd && nd->stride == 1;
    const char *o = place(g, k + 1, out->len), *C = in->chan;
    char inp[64], wt[96], st[16] = "";
    if (nd->stride > 1) snprintf(st, sizeof st, " * %d", nd->stride);
    snprintf(inp, sizeof inp, dw ? "i" : "(n * %s + k)", C);
    if (dw)
        snprintf(wt, sizeof wt, "(c * %d + u) * %d + w", nd->ksize, nd->ksize);
    else if (two)
        snprintf(wt, sizeof wt, "((c * %s + k) * %d + u) * %d + w", C, nd->ksize, nd->ksize);
    else
        snprintf(wt, sizeof wt, "(c * %s + k) * %d + w", C, nd->ksize);
    if (taps) cg_each(g, 'j', out->len, "%s[j] = %s[c];", o, nd->b);
    if (!taps) {
        if (two) cg_line(g, "for (int e = 0; e < %s; e++)", out->h);
        cg_line(g, "%sfor (int f = 0; f < %s; f++) {", two ? "  " : "", out->w);
        g->depth += two ? 2 : 1;
        cg_line(g, "float s = %s[c];", nd->b);
    }
    if (!dw) cg_line(g, "for (int k = 0; k < %s; k++)", C);
    if (two) cg_line(g, "%sfor (int u = 0; u < %d; u++)", dw ? "" : "  ", nd->ksize);
    int deep = (dw ? 0 : 1) + (two ? 1 : 0);
    cg_line(g, "%sfor (int w = 0; w < %d; w++) {", &"    "[4 - 2 * deep], nd -> ksize);
    g->depth += deep + 1;
    char off[24] = "";
    if (pad) snprintf(off, sizeof off, " - %d", nd->pad);
    if (taps) {
        cg_line(g, "float r = %s[%s];", nd->w, wt);
        if (pad)
            cg_line(g, "int l = w < %d ? %d - w : 0, m = %s + %d - w < %s ? %s + %d - w : %s;", nd->pad, nd->pad, in->w,
                    nd->pad, out->w, in->w, nd->pad, out->w);
        if (two) {
            cg_line(g, "for (int e = 0; e < %s; e++) {", out->h);
            g->depth++;
            if (pad) cg_line(g, "if (e + u < %d || e + u >= %s + %d) continue;", nd->pad, in->h, nd->pad);
            cg_line(g, "const float *q = %s + (%s * %s + e + u%s) * %s + w%s;", x, inp, in->h, off, in->w, off);
            cg_line(g, "for (int f = %s; f < %s; f++) %s[e * %s + f] += r * q[f];", pad ? "l" : "0", pad ? "m" : out->w,
                    o, out->w);
            cg_end(g);
        } else {
            cg_line(g, "const float *q = %s + %s * %s + w%s;", x, inp, in->w, off);
            cg_line(g, "for (int f = %s; f < %s; f++) %s[f] += r * q[f];", pad ? "l" : "0", pad ? "m" : out->w, o);
        }
    } else {
        if (two) {
            cg_line(g, "int r = e%s + u%s, q = f%s + w%s;", st, off, st, off);
            cg_line(g, "%ss += %s[(%s * %s + r) * %s + q] * %s[%s];",
                    pad ? arena_printf(g->p->a, "if (r >= 0 && r < %s && q >= 0 && q < %s) ", in->h, in->w) : "", x,
                    inp, in->h, in->w, nd->w, wt);
        } else {
            cg_line(g, "int q = f%s + w%s;", st, off);
            cg_line(g, "%ss += %s[%s * %s + q] * %s[%s];",
                    pad ? arena_printf(g->p->a, "if (q >= 0 && q < %s) ", in->w) : "", x, inp, in->w, nd->w, wt);
        }
    }
    g->depth -= deep + 1;
    cg_line(g, "%s}", &"    "[4 - 2 * deep]);
    if (!taps) {
        if (two)
            cg_line(g, "%s[e * %s + f] = s;", o, out->w);
        else
            cg_line(g, "%s[f] = s;", o);
        g->depth -= two ? 2 : 1;
        cg_line(g, "%s}", two ? "  " : "");
    }
    g->cur = o;
    g->writable = true;
}

/* ---- segments --------------------------------------------------------------------------------------------------- */

static enum op_class cls(const struct cg *g, int k) { return gen_ops[g->p->node[k].op].cls; }
static bool plain_ew(const struct cg *g, int k) { return cls(g, k) == OP_EW || cls(g, k) == OP_EW_IN; }

static int64_t row_count(const struct shape *s) {
    int64_t n = 1;
    for (int i = 0; i + 1 < s->nd; i++) n *= s->d[i];
    return n;
}

/* Returns whether a product is written as 4x4 register blocks, which needs sizes that divide. */
static bool blocked(const struct cg *g, int k) {
    if (!g->st.fast || cls(g, k) != OP_PRODUCT) return false;
    const struct node *nd = &g->p->node[k];
    int last = nd->in.nd - 1;
    int64_t n = nd->in.d[last], o = nd->out.d[last];
    bool axpy = nd->op == OP_matmul || nd->op == OP_bmm, batched = nd->op == OP_bmm || nd->op == OP_bmm_t;
    return row_count(&nd->in) % 4 == 0 && (!batched || nd->in.d[1] % 4 == 0) &&
           (axpy ? o % 32 == 0 : n % 8 == 0 && o % 4 == 0);
}

/* Finds the end of the segment that starts at k, and its domain. */
static int segment(const struct cg *g, int k, enum domain *dom) {
    int end_of = k, n = g->p->n;
    if (!g->st.fused) {
        enum op_class c = cls(g, k);
        enum gen_op op = g->p->node[k].op;
        *dom = c == OP_EW || c == OP_EW_IN ? DOM_FLAT
               : op == OP_groupnorm        ? DOM_GROUP
               : op == OP_batchnorm        ? DOM_BATCH
               : c == OP_TIME              ? DOM_TIME
               : op == OP_transpose        ? DOM_TRANSPOSE
                                           : DOM_ROW;
        return k;
    }
    int first = k; /* The first operator that is not plainly element-wise. */
    while (first < n && plain_ew(g, first)) first++;
    if (first == n || (first > k && (cls(g, first) == OP_CONV || cls(g, first) == OP_GATE || blocked(g, first) ||
                                     g->p->node[first].op == OP_batchnorm))) {
        *dom = DOM_FLAT;
        return first - 1;
    }
    enum gen_op op = g->p->node[first].op;
    bool scalar = g->p->node[k].in.kind == SHAPE_VEC;
    *dom = op == OP_groupnorm         ? DOM_GROUP
           : op == OP_batchnorm       ? DOM_BATCH
           : cls(g, first) == OP_TIME ? DOM_TIME
           : op == OP_transpose       ? DOM_TRANSPOSE
                                      : DOM_ROW;
    if (*dom == DOM_TRANSPOSE) return first;
    if (*dom == DOM_GROUP || *dom == DOM_BATCH || *dom == DOM_TIME) {
        for (end_of = first; end_of + 1 < n; end_of++) {
            if (*dom == DOM_TIME ? cls(g, end_of + 1) != OP_EW : !plain_ew(g, end_of + 1)) break;
        }
        return end_of;
    }
    for (; end_of < n; end_of++) {
        enum op_class c = cls(g, end_of);
        op = g->p->node[end_of].op;
        if (end_of > k &&
            (c == OP_CONV || c == OP_GATE || c == OP_GROUP || c == OP_TIME || op == OP_transpose || blocked(g, end_of)))
            break;
        if (scalar && !(c == OP_EW || c == OP_EW_IN || c == OP_TOTAL)) break;
        if (c == OP_REDUCE) scalar = true;
    }
    return end_of - 1;
}

static bool in_place(const struct cg *g, int first, int last, enum domain dom) {
    if (dom == DOM_TIME || dom == DOM_TRANSPOSE) return false;
    for (int k = first; k <= last; k++)
        if (changes_length(g->p, k) || cls(g, k) == OP_MOVE || cls(g, k) == OP_GATE) return false;
    return true;
}

static bool same_shape(const struct shape *a, const struct shape *b) {
    return strcmp(a->rows, b->rows) == 0 && strcmp(a->len, b->len) == 0 && a->kind == b->kind;
}

static void parallel_for(struct cg *g, bool total) {
    if (g->st.parallel) cg_line(g, total ? "#pragma omp parallel for reduction(+:total)" : "#pragma omp parallel for");
}

/* Writes 4 rows x 4 columns (or 4 x 32) of a product at a time, accumulated in registers. */
static void blocked_text(struct cg *g, const struct node *nd, const char *src, const char *to, bool local) {
    const char *n = nd->in.len, *o1 = nd->out.len, *w = nd->in2 ? nd->in2 : nd->w;
    bool axpy = nd->op == OP_matmul || nd->op == OP_bmm, batched = nd->op == OP_bmm || nd->op == OP_bmm_t;
    const char *row = local ? "u" : "(b0 + u)";
    cg_use_vector(g);
    if (batched) {
        cg_line(g, "const float *q = %s + b0 / T * %s * %s;", w, n, o1);
        w = "q";
    }
    cg_line(g, "for (int n = 0; n < %s; n += %d) {", o1, axpy ? 32 : 4);
    g->depth++;
    cg_line(g, "V s[4][4] = {};");
    cg_line(g, "for (int k = 0; k < %s; k%s)", n, axpy ? "++" : " += 8");
    cg_line(g, "  for (int u = 0; u < 4; u++)");
    cg_line(g, "    for (int w = 0; w < 4; w++)");
    if (axpy)
        cg_line(g, "      s[u][w] += %s[(b0 + u) * %s + k] * *(V *)&%s[k * %s + n + w * 8];", src, n, w, o1);
    else
        cg_line(g, "      s[u][w] += *(V *)&%s[(b0 + u) * %s + k] * *(V *)&%s[(n + w) * %s + k];", src, n, w, n);
    cg_line(g, "for (int u = 0; u < 4; u++)");
    if (axpy) {
        cg_line(g, "  for (int w = 0; w < 4; w++) *(V *)&%s[%s * %s + n + w * 8] = s[u][w];", to, row, o1);
    } else {
        cg_line(g, "  for (int w = 0; w < 4; w++) {");
        if (nd->b)
            cg_line(g, "    float v = %s[n + w];", nd->b);
        else
            cg_line(g, "    float v = 0.0f;");
        cg_line(g, "    for (int l = 0; l < 8; l++) v += s[u][w][l];");
        cg_line(g, "    %s[%s * %s + n + w] = v;", to, row, o1);
        cg_line(g, "  }");
    }
    cg_end(g);
}

static bool needs_ms(const struct cg *g, int first, int last) {
    for (int k = first; k <= last; k++) {
        enum op_class c = cls(g, k);
        if (c == OP_NORM || c == OP_REDUCE || (c == OP_TOTAL && g->p->node[first].in.kind != SHAPE_VEC) ||
            g->p->node[k].op == OP_groupnorm)
            return true;
    }
    return false;
}

static void row_segment(struct cg *g, int first, int last, const char *src, const char *dst) {
    const struct prog *p = g->p;
    const struct node *head = &p->node[first];
    const struct shape *out = &p->node[last].out, *in = &head->in;
    bool conv = gen_ops[head->op].cls == OP_CONV, gate = gen_ops[head->op].cls == OP_GATE, block = blocked(g, first);
    bool total = out->kind == SHAPE_SCALAR, scalar_out = total, channel = conv;
    for (int k = first; k <= last; k++) {
        if (cls(g, k) == OP_REDUCE) scalar_out = true;
        if (cls(g, k) == OP_EW_PAR && p->node[k].in.kind == SHAPE_IMAGE) channel = true;
    }
    g->last = last;
    g->n_local = g->n_q = 0;
    g->scalar = in->kind == SHAPE_VEC;
    if (total) cg_line(g, "float total = 0.0f;");
    parallel_for(g, total);
    const char *rows = g->dom == DOM_GROUP ? "B * G" : conv ? head->out.rows : gate ? head->out.rows : in->rows;
    const char *len0 = g->dom == DOM_GROUP ? "GS" : in->len;
    int k = first;
    bool own_row = false; /* true: the blocked product has already filled rows at "o" or in h. */
    if (block) {
        cg_line(g, "for (int b0 = 0; b0 < %s; b0 += 4) {", rows);
        g->depth++;
        bool local = false;
        for (int t = first + 1; t <= last; t++) local |= changes_length(p, t);
        if (local) cg_line(g, "float h[4 * %s];", head->out.len);
        blocked_text(g, head, src, local ? "h" : dst, local);
        k++;
        if (k > last) {
            cg_end(g);
            return;
        }
        cg_line(g, "for (int i = b0; i < b0 + 4; i++) {");
        g->depth++;
        g->writable = true;
        own_row = true;
        if (local) {
            cg_line(g, "float *p = h + (i - b0) * %s;", head->out.len);
            g->cur = "p";
            g->n_local = 1;
        } else {
            g->cur = "o";
        }
    } else if (g->scalar) { /* There is one number a row, and only operators on it. */
        cg_loop(g, 'i', rows);
    } else {
        cg_line(g, "for (int i = 0; i < %s; i++) {", rows);
        g->depth++;
    }
    if (channel && conv)
        cg_line(g, "int n = i / %s, c = i %% %s;", head->out.chan, head->out.chan);
    else if (channel)
        cg_line(g, "int c = i %% %s;", out->kind == SHAPE_IMAGE ? out->chan : in->chan);
    bool same = strcmp(src, dst) == 0;
    if (!own_row && !conv && !g->scalar) {
        if (head->op == OP_embedding)
            cg_line(g, "const float *p = %s + %s[i] * N;", head->w, p->x);
        else if (gate) {
            cg_line(g, "const float *p = %s + i * %s;", head->in2, head->out.len);
            cg_line(g, "float g = %s[i];", src);
        } else if (!same)
            cg_line(g, "const float *p = %s + i * %s;", src, len0);
        g->cur = same ? "o" : "p";
        g->writable = same;
    }
    if (!scalar_out) cg_line(g, "float *o = %s + i * %s;", dst, g->dom == DOM_GROUP ? "GS" : out->len);
    if (needs_ms(g, k, last)) cg_line(g, "float m, s;");
    if (g->scalar) cg_line(g, "float v = %s[i];", src);
    g->gate = gate;
    if (gate || head->op == OP_embedding) k++;
    const char *len = block || gate || head->op == OP_embedding ? head->out.len : len0;
    for (; k <= last; k++) {
        const struct node *nd = &p->node[k];
        if (g->dom != DOM_GROUP && !(conv && k == first)) len = nd->in.len;
        switch (cls(g, k)) {
        case OP_EW:
        case OP_EW_IN:
        case OP_EW_PAR:
            g->pending[g->n_pending++] = k;
            if (g->scalar) pending_text(g);
            break;
        case OP_NORM:
        case OP_GROUP: norm_text(g, k, len); break;
        case OP_REDUCE: reduce_text(g, k, len); break;
        case OP_TOTAL: total_text(g, k, len); break;
        case OP_PRODUCT: product_text(g, k); break;
        case OP_SPLIT: split_text(g, k); break;
        case OP_POOL: pool_text(g, k); break;
        case OP_CONV: conv_text(g, k, src); break;
        default: ASSERT(nd->op == OP_concat); concat_text(g, k);
        }
        if (!g->scalar && g->dom != DOM_GROUP) len = nd->out.len;
    }
    if (g->scalar && !total) cg_line(g, "%s[i] = v;", dst);
    if (!g->scalar && !total) {
        if (any_pending(g))
            flush(g, last + 1, len);
        else if (strcmp(g->cur, "o") != 0)
            cg_each(g, 'j', len, "o[j] = %s[j];", g->cur);
    }
    cg_end(g);
    if (block) cg_end(g);
    if (total) {
        enum gen_op op = p->node[last].op;
        const struct shape *t = &p->node[last].in;
        const char *count =
            op == OP_cross_entropy || t->kind == SHAPE_VEC ? t->rows : arena_printf(p->a, "(%s * %s)", t->rows, t->len);
        if (op == OP_sum_all)
            cg_line(g, "%s[0] = total;", dst);
        else
            cg_line(g, "%s[0] = total / %s;", dst, count);
    }
}

static void flat_segment(struct cg *g, int first, int last, const char *src, const char *dst) {
    const struct shape *s = &g->p->node[first].in;
    parallel_for(g, false);
    const char *all = s->kind == SHAPE_VEC ? s->rows : arena_printf(g->p->a, "%s * %s", s->rows, s->len);
    cg_loop(g, 'i', all);
    cg_line(g, "float v = %s[i];", src);
    for (int k = first; k <= last; k++) g->pending[g->n_pending++] = k;
    pending_text(g);
    cg_line(g, "%s[i] = v;", dst);
    cg_end(g);
}

static void batch_segment(struct cg *g, int first, int last, const char *src, const char *dst) {
    int at = first;
    while (g->p->node[at].op != OP_batchnorm) at++;
    ASSERT(at == first);
    const struct node *nd = &g->p->node[at];
    const char *C = nd->in.chan, *S = nd->in.len;
    parallel_for(g, false);
    cg_line(g, "for (int c = 0; c < %s; c++) {", C);
    g->depth++;
    cg_line(g, "float m = 0.0f, s = 0.0f;");
    for (int pass = 0; pass < 2; pass++) {
        const char *acc = pass ? "s" : "m";
        cg_line(g, "for (int n = 0; n < B; n++) {");
        g->depth++;
        cg_line(g, "const float *p = %s + (n * %s + c) * %s;", src, C, S);
        simd(g, pass ? "+:s" : "+:m");
        cg_each(g, 'j', S, "%s += %s;", acc, pass ? "(p[j] - m) * (p[j] - m)" : "p[j]");
        cg_end(g);
        if (pass)
            cg_line(g, "s = 1.0f / sqrtf(s / (B * %s) + 1e-5f);", S);
        else
            cg_line(g, "m = m / (B * %s);", S);
    }
    cg_line(g, "for (int n = 0; n < B; n++) {");
    g->depth++;
    cg_loop(g, 'j', S);
    cg_line(g, "float v = (%s[(n * %s + c) * %s + j] - m) * s * %s[c] + %s[c];", src, C, S, nd->w, nd->b);
    for (int k = at + 1; k <= last; k++) g->pending[g->n_pending++] = k;
    pending_text(g);
    cg_line(g, "%s[(n * %s + c) * %s + j] = v;", dst, C, S);
    cg_end(g);
    cg_end(g);
    cg_end(g);
}

static void time_segment(struct cg *g, int first, int last, const char *src, const char *dst) {
    int at = first;
    while (cls(g, at) != OP_TIME) g->pending[g->n_pending++] = at++;
    const struct node *nd = &g->p->node[at];
    const char *n = nd->in.len;
    parallel_for(g, false);
    cg_line(g, "for (int i = 0; i < B; i++) {");
    g->depth++;
    cg_line(g, "float *o = %s + i * %s;", dst, n);
    cg_each(g, 'j', n, "o[j] = %s;", nd->op == OP_max_dim1 ? "-INFINITY" : "0.0f");
    cg_line(g, "for (int t = 0; t < T; t++)");
    g->depth++;
    cg_loop(g, 'j', n);
    cg_line(g, "float v = %s[(i * T + t) * %s + j];", src, n);
    pending_text(g);
    cg_line(g, nd->op == OP_max_dim1 ? "o[j] = v > o[j] ? v : o[j];" : "o[j] += v;");
    cg_end(g);
    g->depth--;
    bool mean = nd->op == OP_mean_dim1;
    if (mean || at < last) {
        g->dom = DOM_ROW;
        cg_loop(g, 'j', n);
        cg_line(g, mean ? "float v = o[j] / T;" : "float v = o[j];");
        for (int k = at + 1; k <= last; k++) g->pending[g->n_pending++] = k;
        pending_text(g);
        cg_line(g, "o[j] = v;");
        cg_end(g);
    }
    cg_end(g);
}

static void transpose_segment(struct cg *g, int first, int last, const char *src, const char *dst) {
    const struct shape *s = &g->p->node[first].in;
    parallel_for(g, false);
    cg_line(g, "for (int i = 0; i < %s; i++) {", s->rows);
    g->depth++;
    cg_loop(g, 'j', s->len);
    cg_line(g, "float v = %s[i * %s + j];", src, s->len);
    for (int k = first; k < last; k++) g->pending[g->n_pending++] = k;
    pending_text(g);
    cg_line(g, "%s[j * %s + i] = v;", dst, s->rows);
    cg_end(g);
    cg_end(g);
}

static void add_signature(const struct prog *p, struct str *s) {
    str_adds(s, "void kernel(");
    for (int i = 0; i < p->n_in; i++)
        str_addf(s, "%sconst %s *restrict %s", i ? ", " : "", p->in[i].i64 ? "int64_t" : "float", p->in[i].name);
    for (int member = 0; member < 2; member++)
        for (int i = 0; i < p->n_par; i++)
            if (p->par[i].member == (member == 1)) str_addf(s, ", const float *restrict %s", p->par[i].name);
    str_addf(s, ", %s *restrict out) {\n", p->out_i64 ? "int64_t" : "float");
}

/* Adds "enum { B = X_D0, C = X_D1, ... };". */
static void add_enum(const struct prog *p, struct str *s) {
    for (int i = 0; i < p->n_dims; i++)
        str_addf(s, "%s%s = %s", i ? ", " : "  enum { ", p->dims[i].name, p->dims[i].expr);
    str_adds(s, " };\n");
}

char *prog_answer(const struct prog *p, enum gen_style style) {
    const struct style st = gen_styles[style];
    struct cg g = {.p = p, .st = st, .depth = 1};
    const char *src = p->x;
    const struct shape *final = &p->node[p->n - 1].out;
    for (int k = 0; k < p->n;) {
        enum domain dom;
        int last = segment(&g, k, &dom);
        const struct shape *out = &p->node[last].out;
        const char *dst = "out";
        if (last < p->n - 1) {
            /* out itself is used when it has the shape and everything after works in place; else a buffer. */
            bool can = same_shape(out, final) && strcmp(src, "out") != 0;
            for (int t = last + 1; can && t < p->n;) {
                enum domain d2;
                int l2 = segment(&g, t, &d2);
                can = in_place(&g, t, l2, d2);
                t = l2 + 1;
            }
            if (strcmp(src, "out") == 0 && in_place(&g, k, last, dom)) can = true;
            if (!can) {
                if (src[0] == 't' && g.n_tmp && in_place(&g, k, last, dom) && same_shape(&p->node[k].in, out)) {
                    dst = src;
                } else {
                    dst = arena_printf(p->a, "t%d", ++g.n_tmp);
                    if (out->kind == SHAPE_VEC)
                        cg_line(&g, "static float %s[%s];", dst, out->rows);
                    else
                        cg_line(&g, "static float %s[%s * %s];", dst, out->rows, out->len);
                }
            }
        }
        g.dom = dom;
        g.dst = dst;
        g.scalar = false;
        switch (dom) {
        case DOM_FLAT: flat_segment(&g, k, last, src, dst); break;
        case DOM_BATCH: batch_segment(&g, k, last, src, dst); break;
        case DOM_TIME: time_segment(&g, k, last, src, dst); break;
        case DOM_TRANSPOSE: transpose_segment(&g, k, last, src, dst); break;
        case DOM_ROW:
        case DOM_GROUP: row_segment(&g, k, last, src, dst); break;
        }
        src = dst;
        k = last + 1;
    }
    struct str s = STR_INIT;
    str_addf(&s, "// plan: %s, %s, %s, %s, %s\n", st.fused ? "fused" : "separate", st.parallel ? "parallel" : "serial",
             st.simd ? "simd" : "plain", st.fast ? cg_uses_vector(&g) ? "blocked" : "fast math" : "libm",
             st.literal ? "numbers" : "names");
    cg_add_helpers(&g, &s);
    add_signature(p, &s);
    if (st.literal)
        cg_literal_sizes(p, &g.s);
    else
        add_enum(p, &s);
    str_add(&s, g.s.p, g.s.len);
    str_adds(&s, "}\n");
    str_free(&g.s);
    return str_steal(&s);
}
