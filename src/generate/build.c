/* Builds programs: adds operators one by one (shapes, inputs, parameters, surface forms), and reads recipes. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "generate/internal.h"

static const char *upper(struct prog *p, const char *s) {
    char *u = arena_strdup(p->a, s);
    for (char *c = u; *c; c++) *c = (char)toupper((unsigned char)*c);
    return u;
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static bool name_used(const struct prog *p, const char *name) {
    char self[64];
    snprintf(self, sizeof self, "self.%s ", name);
    for (int i = 0; i < p->n_init; i++)
        if (strncmp(p->init[i], self, strlen(self)) == 0) return true;
    for (int i = 0; i < p->n_consts; i++)
        if (strcmp(p->consts[i].name, name) == 0) return true;
    for (int i = 0; i < p->n_in; i++)
        if (strcmp(p->in[i].name, name) == 0) return true;
    return false;
}

static const char *unique(struct prog *p, const char *base) {
    if (!name_used(p, base)) return base;
    for (int i = 2;; i++) {
        const char *name = arena_printf(p->a, "%s%d", base, i);
        if (!name_used(p, name)) return name;
    }
}

static const char *pick_name(struct prog *p, const char *const names[], int max) {
    int n = 0;
    while (n < max && names[n]) n++;
    return names[pick(p, n)];
}

static const char *add_const(struct prog *p, const char *base, const char *value, bool init) {
    ASSERT(p->n_consts < (int)ARRAY_LEN(p->consts));
    const char *name = unique(p, base);
    p->consts[p->n_consts++] = (struct gconst){name, value, init};
    return name;
}

static void add_init(struct prog *p, const char *line) {
    ASSERT(p->n_init < (int)ARRAY_LEN(p->init));
    p->init[p->n_init++] = line;
}

static const char *add_param(struct prog *p, const char *name, bool member) {
    ASSERT(p->n_par < (int)ARRAY_LEN(p->par));
    p->par[p->n_par++] = (struct gparam){name, member};
    return name;
}

static const char *add_input(struct prog *p, const char *base, const char *make, bool i64) {
    ASSERT(p->n_in < (int)ARRAY_LEN(p->in));
    const char *name = unique(p, base);
    p->in[p->n_in++] = (struct ginput){name, make, i64};
    return name;
}

/* Returns the text of a dimension in __init__ or get_inputs. */
static const char *dim_text(struct prog *p, const struct shape *s, int i, bool in_init) {
    if (!s->dim_const[i]) return arena_printf(p->a, "%lld", (long long)s->d[i]);
    /* "dim // 2" is dim. */
    size_t len = strcspn(s->dim_const[i], " ");
    for (int k = 0; in_init && k < p->n_consts; k++)
        if (strlen(p->consts[k].name) == len && memcmp(p->consts[k].name, s->dim_const[i], len) == 0)
            p->consts[k].init = true;
    return s->dim_const[i];
}

const char *prog_make_tensor(struct prog *p, const char *fill, const struct shape *s) {
    struct str t = STR_INIT;
    str_adds(&t, fill);
    str_addc(&t, '(');
    for (int i = 0; i < s->nd; i++) str_addf(&t, "%s%s", i ? ", " : "", dim_text(p, s, i, false));
    str_addc(&t, ')');
    const char *r = arena_strdup(p->a, t.p);
    str_free(&t);
    return r;
}

const struct gdim *prog_find_dim(const struct prog *p, const char *name, size_t len) {
    for (int i = 0; i < p->n_dims; i++)
        if (strlen(p->dims[i].name) == len && memcmp(p->dims[i].name, name, len) == 0) return &p->dims[i];
    return NULL;
}

static void add_dim(struct prog *p, const char *name, const char *expr, int64_t value) {
    ASSERT(p->n_dims < (int)ARRAY_LEN(p->dims));
    p->dims[p->n_dims++] = (struct gdim){name, expr, value};
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

void prog_start(struct prog *p, enum head head, const int64_t d[4]) {
    static const char *const x_names[] = {"x", "x", "x", "x", "x", "inp", "data", "input", "hidden"};
    struct shape *s = &p->cur;
    const char *names[4] = {0};
    bool ids = head == HEAD_IDS;
    s->nd = head == HEAD_ROWS || ids ? 2 : head == HEAD_IMAGE ? 4 : 3;
    for (int i = 0; i < 4; i++) s->d[i] = i < s->nd ? d[i] : 0;
    p->fill = chance(p, 50) ? "torch.rand" : "torch.randn";
    p->x = ids ? PICK(p, "ids", "tokens", "idx", "input_ids") : x_names[pick(p, (int)ARRAY_LEN(x_names))];
    names[0] = PICK(p, "batch_size", "batch_size", "batch", "num_rows");
    if (head == HEAD_ROWS) {
        names[1] = PICK(p, "dim", "features", "hidden_size", "in_features", "width", "n_features");
    } else if (head == HEAD_SEQ) {
        if (strcmp(names[0], "num_rows") == 0) names[0] = "batch_size";
        names[1] = PICK(p, "seq_len", "seq_length", "length");
        names[2] = PICK(p, "dim", "hidden_size", "embed_dim", "d_model");
    } else if (ids) {
        names[1] = PICK(p, "seq_len", "seq_length", "length");
    } else {
        if (strcmp(names[0], "num_rows") == 0) names[0] = "batch_size";
        names[1] = PICK(p, "channels", "in_channels", "num_channels");
        names[2] = head == HEAD_IMAGE ? "height" : PICK(p, "length", "seq_len");
        names[3] = "width";
    }
    for (int i = 0; i < s->nd; i++)
        s->dim_const[i] = add_const(p, names[i], arena_printf(p->a, "%lld", (long long)s->d[i]), false);
    const char *X = upper(p, p->x);
    if (head == HEAD_ROWS || head == HEAD_SEQ || ids) {
        s->kind = SHAPE_ROWS;
        s->rows = "R";
        s->len = "N";
        add_dim(p, "R", arena_printf(p->a, head == HEAD_ROWS ? "%s_D0" : "%s_D0 * %s_D1", X, X),
                head == HEAD_ROWS ? d[0] : d[0] * d[1]);
        if (!ids) add_dim(p, "N", arena_printf(p->a, "%s_D%d", X, s->nd - 1), d[s->nd - 1]);
    } else {
        s->kind = SHAPE_IMAGE;
        s->batch = "B";
        s->chan = "C";
        s->rows = "B * C";
        add_dim(p, "B", arena_printf(p->a, "%s_D0", X), d[0]);
        add_dim(p, "C", arena_printf(p->a, "%s_D1", X), d[1]);
        if (head == HEAD_IMAGE) {
            s->h = "H";
            s->w = "W";
            s->len = "S";
            add_dim(p, "H", arena_printf(p->a, "%s_D2", X), d[2]);
            add_dim(p, "W", arena_printf(p->a, "%s_D3", X), d[3]);
            add_dim(p, "S", "H * W", d[2] * d[3]);
        } else {
            s->w = s->len = "L";
            add_dim(p, "L", arena_printf(p->a, "%s_D2", X), d[2]);
        }
    }
    if (!ids) add_input(p, p->x, prog_make_tensor(p, p->fill, s), false);
}

/* ---- Python surface forms --------------------------------------------------------------------------------------- */

/* Fills in the $-names of a template. $x stays for prog_python(). An unknown letter is a bug in the table. */
struct fill {
    const char *k[2], *y, *p, *n, *o, *s, *g, *e, *d;
    int kd;
};

static const char *expand(struct prog *p, const char *t, const struct fill *f) {
    struct str out = STR_INIT;
    for (; *t; t++) {
        if (*t != '$') {
            str_addc(&out, *t);
            continue;
        }
        t++;
        const char *r = NULL;
        switch (*t) {
        case 'x': r = "$x"; break;
        case '0': r = f->k[0]; break;
        case '1': r = f->k[1]; break;
        case 'y': r = f->y; break;
        case 'p': r = f->p; break;
        case 'n': r = f->n; break;
        case 'o': r = f->o; break;
        case 's': r = f->s; break;
        case 'g': r = f->g; break;
        case 'e': r = f->e; break;
        case 'd': r = f->d; break;
        case 'l': r = "gate"; break;
        case 'r': r = "up"; break;
        case 'k':
            r = f->kd == 1 ? "1" : "2";
            t++;
            str_adds(&out, r);
            str_addc(&out, *t);
            continue;
        }
        ASSERT(r != NULL);
        str_adds(&out, r);
    }
    const char *r = arena_strdup(p->a, str_c(&out));
    str_free(&out);
    return r;
}

/* Picks one surface form of the operator and fills in the node's expression. Members get a line of __init__. Returns
 * the member's name, or NULL. */
static const char *surface(struct prog *p, struct node *nd, struct fill *f) {
    const struct op_info *info = &gen_ops[nd->op];
    int forms = 0;
    while (forms < 5 && info->py[forms]) forms++;
    const char *t = info->py[pick(p, forms)];
    bool member = t[0] == 'm' && (t[1] == ':' || t[1] == '2');
    for (int i = 0; i < 2; i++) {
        if (!nd->k[i]) continue;
        f->k[i] = nd->k[i];
        if (!chance(p, 45)) continue;
        const char *name = add_const(p, pick_name(p, info->const_name[i], 3), nd->k[i], true);
        if (!member) add_init(p, arena_printf(p->a, "self.%s = %s", name, name));
        f->k[i] = member ? name : arena_printf(p->a, "self.%s", name);
    }
    if (!member) {
        nd->expr = expand(p, t, f);
        return NULL;
    }
    const char *attr = unique(p, pick_name(p, info->attr, 4));
    add_init(p, arena_printf(p->a, "self.%s = %s", attr, expand(p, strchr(t, ':') + 1, f)));
    nd->expr =
        t[1] == '2' ? arena_printf(p->a, "self.%s($x, %s)", attr, f->y) : arena_printf(p->a, "self.%s($x)", attr);
    return attr;
}

/* ---- operators -------------------------------------------------------------------------------------------------- */

static const char *second_name(struct prog *p, enum gen_op op) {
    switch (gen_ops[op].cls) {
    case OP_TOTAL:
        return op == OP_cross_entropy ? PICK(p, "target", "labels", "targets") : PICK(p, "target", "y", "targets");
    case OP_PRODUCT: return PICK(p, "y", "other", "weight", "z", "b");
    default: break;
    }
    if (op == OP_silu_gate || op == OP_sigmoid_gate) return PICK(p, "gate", "z", "y");
    return PICK(p, "y", "y", "other", "z");
}

/* Adds the sequence length T, the input's second dimension, unless it has its enumerator already. */
static void add_time(struct prog *p) {
    if (!prog_find_dim(p, "T", 1)) add_dim(p, "T", arena_printf(p->a, "%s_D1", upper(p, p->x)), p->cur.d[1]);
}

/* Returns the name of a new row length, N1, N2, ..., with its enumerator. */
static const char *new_len(struct prog *p, const char *expr, int64_t value) {
    const char *name = arena_printf(p->a, "N%d", ++p->n_len);
    add_dim(p, name, expr, value);
    return name;
}

static void add_product(struct prog *p, struct node *nd, struct fill *f, const int64_t *arg) {
    struct shape *s = &p->cur;
    int last = s->nd - 1;
    bool linear = nd->op == OP_linear || nd->op == OP_linear_nobias;
    int64_t o = arg[0];
    f->n = dim_text(p, s, last, linear);
    if (linear) {
        const char *name = add_const(p, PICK(p, "out_features", "hidden_dim", "output_size", "out_dim"),
                                     arena_printf(p->a, "%lld", (long long)o), true);
        f->o = name;
        const char *attr = surface(p, nd, f);
        nd->w = add_param(p, arena_printf(p->a, "%s_weight", attr), true);
        if (nd->op == OP_linear) nd->b = add_param(p, arena_printf(p->a, "%s_bias", attr), true);
        s->len = new_len(p, arena_printf(p->a, "%s_D0", upper(p, nd->w)), o);
        s->dim_const[last] = name;
        s->d[last] = o;
        return;
    }
    /* The second operand is [N, O], [O, N], [B, N, O] or [B, O, N]. */
    bool trans = nd->op == OP_matmul_t || nd->op == OP_bmm_t, batched = nd->op == OP_bmm || nd->op == OP_bmm_t;
    const char *oname =
        add_const(p, PICK(p, "out_dim", "cols", "kv_len", "width2"), arena_printf(p->a, "%lld", (long long)o), false);
    struct shape y = {.nd = batched ? 3 : 2};
    int at = batched ? 1 : 0;
    if (batched) {
        y.d[0] = s->d[0];
        y.dim_const[0] = s->dim_const[0];
    }
    y.d[at + (trans ? 1 : 0)] = s->d[last];
    y.dim_const[at + (trans ? 1 : 0)] = s->dim_const[last];
    y.d[at + (trans ? 0 : 1)] = o;
    y.dim_const[at + (trans ? 0 : 1)] = oname;
    nd->in2 = f->y = add_input(p, second_name(p, nd->op), prog_make_tensor(p, p->fill, &y), false);
    surface(p, nd, f);
    if (batched) add_time(p);
    s->len = new_len(p, arena_printf(p->a, "%s_D%d", upper(p, nd->in2), at + (trans ? 0 : 1)), o);
    s->d[last] = o;
    s->dim_const[last] = oname;
}

static void new_plane(struct prog *p, struct shape *s, const char *h, const char *w) {
    int k = ++p->n_plane;
    if (s->h) {
        s->h = arena_printf(p->a, "H%d", k);
        add_dim(p, s->h, h, s->d[2]);
    }
    s->w = arena_printf(p->a, s->h ? "W%d" : "L%d", k);
    add_dim(p, s->w, w, s->d[s->nd - 1]);
    if (s->h) {
        const char *len = arena_printf(p->a, "S%d", k);
        add_dim(p, len, arena_printf(p->a, "%s * %s", s->h, s->w), s->d[2] * s->d[3]);
        s->len = len;
    } else {
        s->len = s->w;
    }
}

/* Returns the output size of a convolution over SIZE, as C text without needless terms. */
static const char *conv_size(struct prog *p, const struct node *nd, const char *size) {
    int d = 2 * nd->pad - nd->ksize;
    if (nd->stride == 1)
        return arena_printf(p->a, d + 1 < 0 ? "%s - %d" : "%s + %d", size, d + 1 < 0 ? -(d + 1) : d + 1);
    return arena_printf(p->a, d < 0 ? "(%s - %d) / %d + 1" : "(%s + %d) / %d + 1", size, d < 0 ? -d : d, nd->stride);
}

/* Adds a convolution. Its arguments are out_channels, kernel, stride and padding. */
static void add_conv(struct prog *p, struct node *nd, struct fill *f, const int64_t *arg) {
    struct shape *s = &p->cur;
    bool dw = nd->op == OP_depthwise_conv2d, two = nd->op != OP_conv1d;
    nd->ksize = (int)arg[1];
    nd->stride = (int)arg[2];
    nd->pad = (int)arg[3];
    f->n = dim_text(p, s, 1, true);
    const char *oname = NULL;
    if (!dw) {
        oname = add_const(p, PICK(p, "out_channels", "filters", "hidden_channels"),
                          arena_printf(p->a, "%lld", (long long)arg[0]), true);
        f->o = oname;
    }
    struct str t = STR_INIT;
    if (chance(p, 50))
        str_addf(&t, "%s", add_const(p, "kernel_size", arena_printf(p->a, "%d", nd->ksize), true));
    else
        str_addf(&t, "%s%d", chance(p, 40) ? "kernel_size=" : "", nd->ksize);
    if (nd->stride > 1) str_addf(&t, ", stride=%d", nd->stride);
    if (nd->pad > 0) str_addf(&t, ", padding=%d", nd->pad);
    f->s = arena_strdup(p->a, t.p);
    str_free(&t);
    const char *attr = surface(p, nd, f);
    nd->w = add_param(p, arena_printf(p->a, "%s_weight", attr), true);
    nd->b = add_param(p, arena_printf(p->a, "%s_bias", attr), true);
    if (!dw) {
        s->chan = arena_printf(p->a, "C%d", ++p->n_chan);
        add_dim(p, s->chan, arena_printf(p->a, "%s_D0", upper(p, nd->w)), arg[0]);
        s->rows = arena_printf(p->a, "B * %s", s->chan);
        s->d[1] = arg[0];
        s->dim_const[1] = oname;
    }
    if (nd->stride == 1 && 2 * nd->pad == nd->ksize - 1) return;
    const char *h = two ? conv_size(p, nd, s->h) : NULL, *w = conv_size(p, nd, s->w);
    for (int i = 2; i < s->nd; i++) {
        s->d[i] = (s->d[i] + 2 * nd->pad - nd->ksize) / nd->stride + 1;
        s->dim_const[i] = NULL;
    }
    new_plane(p, s, h, w);
}

/* Adds one operator. arg: its integers (0 when absent). k0, k1: its constants, or NULL to draw them. */
void prog_add(struct prog *p, enum gen_op op, const int64_t arg[4], const char *k0, const char *k1) {
    ASSERT(p->n < GEN_MAX_NODES);
    const struct op_info *info = &gen_ops[op];
    struct node *nd = &p->node[p->n++];
    struct shape *s = &p->cur;
    *nd = (struct node){.op = op, .in = *s, .stride = 1};
    struct fill f = {.d = "-1"};
    bool image = s->kind == SHAPE_IMAGE;
    int last = s->nd - 1;
    if (!image && s->nd > 1 && chance(p, 40)) f.d = s->nd == 2 ? "1" : "2";
    if (info->consts[0][0]) {
        int n = 0;
        while (n < 5 && info->consts[n][0]) n++;
        int c = pick(p, n);
        nd->k[0] = k0 ? k0 : info->consts[c][0];
        nd->k[1] = k0 ? k1 : info->consts[c][1];
    }
    switch (info->cls) {
    case OP_EW: surface(p, nd, &f); break;
    case OP_EW_IN:
        if (op == OP_residual) {
            p->keep_x = true;
            nd->in2 = p->x;
        } else {
            nd->in2 = add_input(p, second_name(p, op), prog_make_tensor(p, p->fill, s), false);
        }
        f.y = nd->in2;
        surface(p, nd, &f);
        break;
    case OP_EW_PAR: {
        const char *attr = unique(p, pick_name(p, info->attr, 4));
        const char *dim = dim_text(p, s, image ? 1 : last, true);
        const char *fill = op == OP_bias ? PICK(p, "torch.randn", "torch.randn", "torch.zeros")
                                         : PICK(p, "torch.randn", "torch.ones", "torch.rand");
        add_init(p, arena_printf(p->a, "self.%s = nn.Parameter(%s(%s%s))", attr, fill, dim,
                                 !image ? ""
                                 : s->h ? ", 1, 1"
                                        : ", 1"));
        nd->w = add_param(p, attr, false);
        f.p = arena_printf(p->a, "self.%s", attr);
        surface(p, nd, &f);
        break;
    }
    case OP_NORM:
        if (op == OP_layernorm) {
            f.n = dim_text(p, s, last, true);
            const char *attr = surface(p, nd, &f);
            nd->w = add_param(p, arena_printf(p->a, "%s_weight", attr), true);
            nd->b = add_param(p, arena_printf(p->a, "%s_bias", attr), true);
        } else if (op == OP_rmsnorm) {
            nd->eps = PICK(p, "1e-6", "1e-5", "1e-8");
            f.e = nd->eps;
            if (chance(p, 50)) {
                const char *name = add_const(p, "eps", nd->eps, true);
                add_init(p, arena_printf(p->a, "self.%s = %s", name, name));
                f.e = arena_printf(p->a, "self.%s", name);
            }
            const char *attr = unique(p, pick_name(p, info->attr, 4));
            add_init(p, arena_printf(p->a, "self.%s = nn.Parameter(torch.ones(%s))", attr, dim_text(p, s, last, true)));
            nd->w = add_param(p, attr, false);
            f.p = arena_printf(p->a, "self.%s", attr);
            surface(p, nd, &f);
        } else {
            f.kd = s->h ? 2 : 1;
            f.n = image ? dim_text(p, s, 1, true) : NULL;
            surface(p, nd, &f);
        }
        break;
    case OP_REDUCE:
        surface(p, nd, &f);
        if (image) {
            s->kind = SHAPE_ROWS;
            s->nd = 2;
            s->rows = s->batch;
            s->len = s->chan;
        } else {
            s->kind = SHAPE_VEC;
            s->nd--;
            s->len = "1";
        }
        if (op == OP_argmax) p->out_i64 = true;
        break;
    case OP_TOTAL:
        if (op == OP_cross_entropy) {
            nd->in2 = add_input(p, second_name(p, op),
                                arena_printf(p->a, "torch.randint(0, %s, (%s,))", dim_text(p, s, last, false),
                                             dim_text(p, s, 0, false)),
                                true);
        } else if (info->c) {
            nd->in2 = add_input(p, second_name(p, op),
                                prog_make_tensor(p, op == OP_bce_logits_loss ? "torch.rand" : p->fill, s), false);
        }
        f.y = nd->in2;
        surface(p, nd, &f);
        s->kind = SHAPE_SCALAR;
        s->nd = 0;
        break;
    case OP_PRODUCT: add_product(p, nd, &f, arg); break;
    case OP_SPLIT:
        if (op != OP_glu) nd->py_before = arena_printf(p->a, "gate, up = $x.chunk(2, dim=%s)", f.d);
        surface(p, nd, &f);
        s->d[last] /= 2;
        s->dim_const[last] = s->dim_const[last] ? arena_printf(p->a, "%s // 2", s->dim_const[last]) : NULL;
        s->len = new_len(p, arena_printf(p->a, "%s / 2", s->len), s->d[last]);
        break;
    case OP_CONV: add_conv(p, nd, &f, arg); break;
    case OP_POOL: {
        nd->ksize = arg[0] ? (int)arg[0] : 2;
        nd->stride = nd->ksize;
        f.s = arena_printf(p->a, "%d", nd->ksize);
        surface(p, nd, &f);
        s->d[2] /= nd->ksize;
        s->d[3] /= nd->ksize;
        s->dim_const[2] = s->dim_const[3] = NULL;
        new_plane(p, s, arena_printf(p->a, "%s / %d", s->h, nd->ksize), arena_printf(p->a, "%s / %d", s->w, nd->ksize));
        break;
    }
    case OP_GROUP: {
        nd->groups = op == OP_groupnorm ? (int)arg[0] : 0;
        if (op == OP_groupnorm) {
            add_dim(p, "G", arena_printf(p->a, "%d", nd->groups), nd->groups);
            add_dim(p, "GS", arena_printf(p->a, "%s / G * %s", s->chan, s->len),
                    s->d[1] / nd->groups * s->d[2] * (s->h ? s->d[3] : 1));
        }
        f.n = dim_text(p, s, 1, true);
        f.kd = s->h ? 2 : 1;
        f.g = chance(p, 50) ? arena_printf(p->a, "%d", nd->groups) : NULL;
        if (!f.g)
            f.g = op == OP_groupnorm
                      ? add_const(p, PICK(p, "num_groups", "groups"), arena_printf(p->a, "%d", nd->groups), true)
                      : "";
        const char *attr = surface(p, nd, &f);
        nd->w = add_param(p, arena_printf(p->a, "%s_weight", attr), true);
        nd->b = add_param(p, arena_printf(p->a, "%s_bias", attr), true);
        break;
    }
    case OP_TIME:
        surface(p, nd, &f);
        add_time(p);
        add_dim(p, "B", arena_printf(p->a, "%s_D0", upper(p, p->x)), s->d[0]);
        s->d[1] = s->d[2];
        s->dim_const[1] = s->dim_const[2];
        s->nd = 2;
        s->rows = "B";
        break;
    case OP_MOVE:
        if (op == OP_transpose) {
            surface(p, nd, &f);
            struct shape in = *s;
            s->d[0] = in.d[1];
            s->d[1] = in.d[0];
            s->dim_const[0] = in.dim_const[1];
            s->dim_const[1] = in.dim_const[0];
            s->rows = in.len;
            s->len = in.rows;
        } else if (op == OP_concat) {
            nd->in2 = f.y = add_input(p, second_name(p, op), prog_make_tensor(p, p->fill, s), false);
            surface(p, nd, &f);
            s->d[last] *= 2;
            s->dim_const[last] = s->dim_const[last] ? arena_printf(p->a, "%s * 2", s->dim_const[last]) : NULL;
            s->len = new_len(p, arena_printf(p->a, "%s * 2", s->len), s->d[last]);
        } else { /* Embedding: the table's size and its width. */
            const char *vocab = add_const(p, PICK(p, "vocab_size", "num_embeddings"),
                                          arena_printf(p->a, "%lld", (long long)arg[0]), true);
            const char *dim = add_const(p, PICK(p, "embed_dim", "dim", "embedding_dim"),
                                        arena_printf(p->a, "%lld", (long long)arg[1]), true);
            f.o = vocab;
            f.n = dim;
            add_input(p, p->x,
                      arena_printf(p->a, "torch.randint(0, %s, (%s, %s))", vocab, s->dim_const[0], s->dim_const[1]),
                      true);
            const char *attr = surface(p, nd, &f);
            nd->w = add_param(p, arena_printf(p->a, "%s_weight", attr), true);
            add_dim(p, "N", arena_printf(p->a, "%s_D1", upper(p, nd->w)), arg[1]);
            s->nd = 3;
            s->d[2] = arg[1];
            s->dim_const[2] = dim;
            s->len = "N";
        }
        break;
    case OP_GATE:
        p->keep_x = true;
        nd->in2 = f.y = p->x;
        surface(p, nd, &f);
        *s = p->node[0].in;
        break;
    }
    nd->out = *s;
}

void prog_finish(struct prog *p) {
    int heavy = 0;
    bool block = false;
    for (int i = 0; i < p->n; i++) {
        enum op_class c = gen_ops[p->node[i].op].cls;
        heavy += c == OP_PRODUCT || c == OP_CONV;
        block |= c == OP_GATE || c == OP_SPLIT;
    }
    for (int i = 0; i < p->n; i++) block |= p->node[i].op == OP_residual && heavy > 0;
    p->level = p->n == 1 ? 1 : block || heavy > 1 ? 3 : 2;
    static const char *const vars[] = {"h", "out", "y", "z", "res"};
    p->var = p->x;
    if (p->keep_x || chance(p, 15)) {
        do p->var = vars[pick(p, (int)ARRAY_LEN(vars))];
        while (name_used(p, p->var));
    }
}

const char *prog_ops(const struct prog *p) {
    struct str s = STR_INIT;
    for (int i = 0; i < p->n; i++) str_addf(&s, "%s%s", i ? " " : "", gen_ops[p->node[i].op].name);
    const char *r = arena_strdup(p->a, str_c(&s));
    str_free(&s);
    return r;
}

/* ---- recipes ---------------------------------------------------------------------------------------------------- */

/* Says why OP cannot follow the current value, or returns NULL. */
const char *prog_misfit(const struct prog *p, enum gen_op op) {
    const struct shape *s = &p->cur;
    bool image = s->kind == SHAPE_IMAGE, rows = s->kind == SHAPE_ROWS;
    if (s->kind == SHAPE_SCALAR || p->out_i64) return "nothing can follow it";
    bool image_reduce = op == OP_global_avg_pool || op == OP_global_max_pool;
    switch (gen_ops[op].cls) {
    case OP_EW: return NULL;
    case OP_EW_IN:
        if (op != OP_residual) return NULL;
        for (int i = 0; i < s->nd; i++)
            if (p->n == 0 || s->nd != p->node[0].in.nd || s->d[i] != p->node[0].in.d[i])
                return "needs the input's shape";
        return NULL;
    case OP_EW_PAR: return image || rows ? NULL : "needs rows or an image";
    case OP_NORM: return (op == OP_instancenorm ? image : rows) ? NULL : "does not fit this shape";
    case OP_REDUCE: return (image_reduce ? image && s->h : rows) ? NULL : "does not fit this shape";
    case OP_TOTAL: return op != OP_cross_entropy || (rows && s->nd == 2) ? NULL : "needs rows x classes";
    case OP_PRODUCT:
        if (!rows) return "needs rows";
        return (op == OP_bmm || op == OP_bmm_t ? s->nd == 3 : s->nd == 2 || op == OP_linear || op == OP_linear_nobias)
                   ? NULL
                   : "needs other dimensions";
    case OP_SPLIT: return rows ? NULL : "needs rows";
    case OP_CONV: return image && (op == OP_conv1d) == !s->h ? NULL : "needs an image (conv1d: a signal)";
    case OP_POOL: return image && s->h ? NULL : "needs an image";
    case OP_GROUP: return image ? NULL : "needs an image";
    case OP_TIME: return rows && s->nd == 3 ? NULL : "needs three dimensions";
    case OP_MOVE: return rows && (op != OP_transpose || s->nd == 2) ? NULL : "needs rows";
    case OP_GATE:
        return rows && p->n > 0 && p->node[0].in.kind == SHAPE_IMAGE && strcmp(s->rows, "B") == 0 &&
                       s->d[1] == p->node[0].in.d[1]
                   ? NULL
                   : "needs one number a channel of the input image";
    }
    return NULL;
}

/* Reads up to max integers separated by sep. False when there is anything else. */
static bool ints(const char *s, size_t len, char sep, int64_t *out, int max, int *n) {
    *n = 0;
    size_t i = 0;
    while (i < len) {
        if (*n == max || !isdigit((unsigned char)s[i])) return false;
        int64_t v = 0;
        for (; i < len && isdigit((unsigned char)s[i]) && v < 1000000000; i++) v = v * 10 + (s[i] - '0');
        out[(*n)++] = v;
        if (i < len && s[i++] != sep) return false;
    }
    return true;
}

enum status prog_recipe(struct prog *p, const char *recipe, struct err *e) {
    static const char *const heads[] = {"rows", "seq", "image", "signal", "ids"};
    static const int head_dims[] = {2, 3, 4, 3, 2};
    const char *at = recipe;
    int word = 0, head = -1;
    while (*at) {
        size_t len = strcspn(at, " ");
        if (word == 0) {
            for (int i = 0; i < 5; i++)
                if (strlen(heads[i]) == len && memcmp(heads[i], at, len) == 0) head = i;
            if (head < 0)
                return FAIL(e, ST_PARSE, "recipe: \"%.*s\": expected rows, seq, image, signal or ids", (int)len, at);
        } else if (word == 1) {
            int64_t d[4] = {0};
            int n = 0;
            if (!ints(at, len, 'x', d, 4, &n) || n != head_dims[head])
                return FAIL(e, ST_PARSE, "recipe: \"%.*s\": expected %d sizes joined by x", (int)len, at,
                            head_dims[head]);
            prog_start(p, (enum head)head, d);
        } else {
            size_t name = strcspn(at, " :");
            enum gen_op op;
            if (!gen_op_find(at, name, &op))
                return FAIL(e, ST_PARSE, "recipe: \"%.*s\": no such operator", (int)name, at);
            const char *why = prog_misfit(p, op);
            if (p->n == GEN_MAX_NODES) why = "too many operators";
            if (why) return FAIL(e, ST_INVALID, "recipe: %.*s: %s", (int)name, at, why);
            int64_t arg[4] = {0};
            const char *k[2] = {NULL, NULL};
            int n = 0;
            if (name < len && gen_ops[op].consts[0][0]) {
                const char *c = at + name + 1, *end = at + len, *comma = memchr(c, ',', (size_t)(end - c));
                k[0] = arena_strndup(p->a, c, (size_t)((comma ? comma : end) - c));
                if (comma) k[1] = arena_strndup(p->a, comma + 1, (size_t)(end - comma - 1));
            } else if (name < len && !ints(at + name + 1, len - name - 1, ',', arg, 4, &n)) {
                return FAIL(e, ST_PARSE, "recipe: \"%.*s\": expected integers after the colon", (int)len, at);
            }
            prog_add(p, op, arg, k[0], k[1]);
        }
        at += len;
        while (*at == ' ') at++;
        word++;
    }
    if (word < 3) return FAIL(e, ST_PARSE, "recipe: expected a head, sizes and at least one operator");
    prog_finish(p);
    return ST_OK;
}
