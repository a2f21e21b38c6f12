/* Draws programs. The rules in allowed() keep them sound: no constant outputs, no overflow, no amplified rounding. */
#include <string.h>

#include "generate/internal.h"

/* What earlier operators mean for later ones. */
struct state {
    bool grows, big, tiny, centered, clips;
    int norms;
};

static struct state state_of(const struct prog *p) {
    struct state st = {0};
    for (int i = 0; i < p->n; i++) {
        const struct op_info *o = &gen_ops[p->node[i].op];
        enum gen_op op = p->node[i].op;
        if (o->flags & OPF_GROWS) st.grows = true;
        if (op == OP_matmul || op == OP_matmul_t || op == OP_bmm || op == OP_bmm_t) st.big = true;
        if (o->cls == OP_NORM || o->cls == OP_GROUP) {
            st.norms++;
            st.clips = st.big = false;
        }
        if (op == OP_linear || op == OP_linear_nobias || o->cls == OP_CONV) st.clips = false;
        if (op == OP_clamp || op == OP_clamp_min || op == OP_relu6 || op == OP_hardtanh || op == OP_hardsigmoid)
            st.clips = true;
        if (o->flags & OPF_CENTERED)
            st.centered = true;
        else if (op != OP_scale && op != OP_div)
            st.centered = false;
        if (o->flags & OPF_TINY)
            st.tiny = true;
        else if (op == OP_add || op == OP_sub || op == OP_residual || op == OP_bias || o->cls == OP_PRODUCT)
            st.tiny = false;
    }
    return st;
}

static bool allowed(const struct prog *p, enum gen_op op) {
    if (prog_misfit(p, op)) return false;
    const struct op_info *o = &gen_ops[op];
    struct state st = state_of(p);
    const struct node *prev = p->n ? &p->node[p->n - 1] : NULL;
    unsigned pf = prev ? gen_ops[prev->op].flags : 0;
    if (prev && prev->op == op) return false;
    if ((op == OP_softmax || op == OP_log_softmax || op == OP_exp) && st.norms && (pf & OPF_TINY)) return false;
    if ((o->flags & OPF_GROWS) && (st.grows || st.big)) return false;
    if (op == OP_square && p->n > 0 && gen_ops[p->node[0].op].cls == OP_PRODUCT) return false;
    if (op == OP_exp && prev && prev->op != OP_tanh && prev->op != OP_sigmoid && prev->op != OP_hardtanh &&
        prev->op != OP_softsign)
        return false;
    bool affine = op == OP_scale || op == OP_div || op == OP_shift || op == OP_sub_const || op == OP_add ||
                  op == OP_sub || op == OP_mul;
    /* A sum over a row saturates what comes after it; a mean does not. */
    if (p->cur.kind == SHAPE_VEC && !affine && o->cls != OP_TOTAL &&
        !(prev->op == OP_mean &&
          (op == OP_tanh || op == OP_sigmoid || op == OP_relu || op == OP_gelu || op == OP_silu || op == OP_softplus)))
        return false;
    for (int i = 0; i < p->n; i++) /* All values are negative: what cuts at zero would leave nothing. */
        if ((p->node[i].op == OP_log_softmax || p->node[i].op == OP_logsigmoid) && o->cls == OP_EW && !affine)
            return false;
    if (prev && (prev->op == OP_log_softmax || prev->op == OP_logsigmoid) && !affine && op != OP_max &&
        op != OP_mean_all && op != OP_sum_all)
        return false;
    bool bounds = op == OP_clamp || op == OP_clamp_min || op == OP_relu6 || op == OP_hardtanh || op == OP_hardsigmoid;
    if (bounds && (st.big || st.clips || (pf & OPF_NONNEG && op != OP_relu6))) return false;
    if (op == OP_min || op == OP_max || op == OP_max_dim1) {
        /* The extremes of values with a bound are the bound itself. */
        for (int i = 0; i < p->n; i++) {
            enum gen_op q = p->node[i].op;
            bool upper =
                q == OP_sigmoid || q == OP_tanh || q == OP_logsigmoid || q == OP_softsign || q == OP_hardsigmoid;
            bool keeps = q == OP_scale || q == OP_div || q == OP_shift || q == OP_sub_const ||
                         gen_ops[q].cls == OP_PRODUCT || q == OP_leaky_relu || gen_ops[q].cls == OP_EW_IN ||
                         gen_ops[q].cls == OP_EW_PAR || q == OP_layernorm;
            if (st.clips || upper || (op == OP_min && !keeps)) return false;
        }
    }
    if ((op == OP_softmax || op == OP_log_softmax || op == OP_l2_norm || op == OP_var) && st.norms > 0) return false;
    if ((o->flags & OPF_EXP || op == OP_softsign) && (st.grows || st.big)) return false; /* It amplifies rounding. */
    if ((pf & OPF_NONNEG) &&
        (op == OP_relu || op == OP_leaky_relu || op == OP_abs || op == OP_relu6 || op == OP_elu || op == OP_selu))
        return false;
    if ((prev && (prev->op == OP_scale || prev->op == OP_div)) && (op == OP_scale || op == OP_div)) return false;
    if ((prev && (prev->op == OP_shift || prev->op == OP_sub_const)) && (op == OP_shift || op == OP_sub_const))
        return false;
    bool norm = o->cls == OP_NORM || o->cls == OP_GROUP;
    if (norm && prev && (gen_ops[prev->op].cls == OP_NORM || gen_ops[prev->op].cls == OP_GROUP)) return false;
    if (norm && st.norms >= 2) return false;
    if (st.clips &&
        ((norm && op != OP_softmax && op != OP_log_softmax && op != OP_cumsum && op != OP_rmsnorm) || op == OP_var))
        return false;
    if (st.centered && (op == OP_sum || op == OP_mean || op == OP_global_avg_pool || op == OP_logsumexp ||
                        o->cls == OP_TIME || op == OP_mean_all || op == OP_sum_all || op == OP_cumsum))
        return false;
    if (st.centered && (op == OP_center || op == OP_log_softmax)) return false;
    if (st.tiny && !(op == OP_scale || op == OP_div || op == OP_mul || op == OP_add || op == OP_residual ||
                     op == OP_sub || op == OP_channel_scale || op == OP_silu_gate || op == OP_sigmoid_gate ||
                     op == OP_max || op == OP_min || o->cls == OP_PRODUCT))
        return false;
    if (op == OP_argmax && p->n > 0) return false;
    if (op == OP_silu_gate || op == OP_sigmoid_gate || op == OP_mul || op == OP_add || op == OP_sub || op == OP_maximum)
        return p->n_in < 3;
    if (op == OP_residual) return p->n > 0 && !p->keep_x;
    return true;
}

static bool try_add(struct prog *p, enum gen_op op, int64_t a0, int64_t a1, int64_t a2, int64_t a3) {
    if (p->n >= GEN_MAX_NODES || !allowed(p, op)) return false;
    prog_add(p, op, (const int64_t[4]){a0, a1, a2, a3}, NULL, NULL);
    return true;
}

/* Adds one element-wise operator. The weights favour what real modules use. */
static void add_ew(struct prog *p, bool seconds) {
    static const enum gen_op common[] = {OP_relu,  OP_relu,     OP_scale, OP_scale, OP_shift,   OP_shift, OP_leaky_relu,
                                         OP_clamp, OP_hardtanh, OP_gelu,  OP_silu,  OP_sigmoid, OP_tanh};
    static const enum gen_op rare[] = {OP_elu,         OP_selu,  OP_gelu_tanh, OP_softplus,   OP_mish, OP_hardswish,
                                       OP_hardsigmoid, OP_relu6, OP_softsign,  OP_logsigmoid, OP_abs,  OP_square,
                                       OP_exp,         OP_div,   OP_sub_const, OP_clamp_min};
    static const enum gen_op two[] = {OP_add,       OP_mul,           OP_sub,     OP_maximum, OP_residual,
                                      OP_bias,      OP_channel_scale, OP_bias,    OP_add,     OP_channel_scale,
                                      OP_silu_gate, OP_sigmoid_gate,  OP_residual};
    for (int attempt = 0; attempt < 50; attempt++) {
        int c = pick(p, 100);
        enum gen_op op = c < 45               ? common[pick(p, (int)ARRAY_LEN(common))]
                         : c < 70 || !seconds ? rare[pick(p, (int)ARRAY_LEN(rare))]
                                              : two[pick(p, (int)ARRAY_LEN(two))];
        if (try_add(p, op, 0, 0, 0, 0)) return;
    }
}
static void add_ews(struct prog *p, int n, bool seconds) {
    while (n-- > 0) add_ew(p, seconds);
}

static void add_row_op(struct prog *p) {
    static const enum gen_op ops[] = {OP_softmax,      OP_softmax,         OP_log_softmax, OP_layernorm,
                                      OP_layernorm,    OP_layernorm_plain, OP_rmsnorm,     OP_rmsnorm,
                                      OP_l2_normalize, OP_cumsum,          OP_center};
    for (int i = 0; i < 30; i++)
        if (try_add(p, ops[pick(p, (int)ARRAY_LEN(ops))], 0, 0, 0, 0)) return;
}
/* The extremes of uniform numbers are nearly constant, so such rows come from a normal distribution. */
static void use_randn(struct prog *p) {
    p->fill = "torch.randn";
    if (!p->in[0].i64) p->in[0].make = prog_make_tensor(p, p->fill, &p->node[0].in);
}
static void add_reduce(struct prog *p) {
    static const enum gen_op ops[] = {OP_sum, OP_mean,      OP_max,    OP_min,  OP_l1_norm, OP_l2_norm,
                                      OP_var, OP_logsumexp, OP_argmax, OP_mean, OP_max,     OP_logsumexp};
    for (int i = 0; i < 30; i++) {
        enum gen_op op = ops[pick(p, (int)ARRAY_LEN(ops))];
        if (!try_add(p, op, 0, 0, 0, 0)) continue;
        if (op == OP_max || op == OP_min || op == OP_logsumexp || op == OP_global_max_pool) use_randn(p);
        return;
    }
}

/* Returns a size near v, most often no power of two, as a kernel meets it in the world. A multiple of four stays
 * one. */
static int64_t uneven(struct prog *p, int64_t v) {
    if (chance(p, 25)) return v;
    return v + (v >= 512 ? 20 : 4) * (pick(p, 13) - 6);
}

/* Draws shapes of about 2^17.5 .. 2^20 elements. Eager PyTorch takes 0.1-2 ms for them. */
static void start_rows(struct prog *p) {
    int64_t n = uneven(p, PICK_INT(p, 128, 256, 256, 384, 512, 512, 768, 1024, 1024, 1536, 2048, 4096)),
            total = PICK_INT(p, 262144, 393216, 524288, 786432, 1048576);
    int64_t r = (total / n + 7) / 8 * 8;
    if (chance(p, 30)) {
        int64_t b = PICK_INT(p, 4, 8, 16, 32);
        prog_start(p, HEAD_SEQ, (const int64_t[4]){b, (r / b + 7) / 8 * 8, n});
    } else {
        prog_start(p, HEAD_ROWS, (const int64_t[4]){r, n});
    }
}
static void start_image(struct prog *p, int channels) {
    int64_t hw = PICK_INT(p, 16, 20, 28, 30, 32, 36, 44, 48, 50, 56, 60, 64),
            c = channels ? channels : PICK_INT(p, 8, 16, 32, 64);
    int64_t total = PICK_INT(p, 131072, 262144, 393216), b = i64_max(2, total / (c * hw * hw));
    prog_start(p, HEAD_IMAGE, (const int64_t[4]){b, c, hw, hw});
}

static void random_product(struct prog *p) {
    int c = pick(p, 100);
    int64_t k = uneven(p, PICK_INT(p, 128, 256, 256, 384, 512, 512, 768, 1024)),
            o = uneven(p, PICK_INT(p, 64, 128, 128, 256, 256, 384, 512));
    int64_t r = PICK_INT(p, 16, 24, 32, 40, 60, 64, 64, 100, 120, 128, 128, 200, 256);
    if (c < 12) {
        prog_start(p, HEAD_ROWS, (const int64_t[4]){r, k});
        try_add(p, chance(p, 60) ? OP_matmul : OP_matmul_t, o, 0, 0, 0);
        add_ews(p, pick(p, 3), true);
        if (chance(p, 25)) add_reduce(p);
        return;
    }
    if (c < 22) {
        int64_t b = PICK_INT(p, 4, 8, 16), t = uneven(p, PICK_INT(p, 32, 64, 64, 128)),
                d = PICK_INT(p, 32, 40, 64, 128);
        prog_start(p, HEAD_SEQ, (const int64_t[4]){b, t, d});
        try_add(p, chance(p, 50) ? OP_bmm : OP_bmm_t, uneven(p, PICK_INT(p, 32, 64, 128)), 0, 0, 0);
        add_ews(p, pick(p, 3), true);
        if (chance(p, 30)) add_reduce(p);
        return;
    }
    enum gen_op lin = chance(p, 80) ? OP_linear : OP_linear_nobias;
    if (chance(p, 25)) {
        int64_t b = PICK_INT(p, 2, 4, 8);
        prog_start(p, HEAD_SEQ, (const int64_t[4]){b, r / b * 2 < 8 ? 8 : (r / b * 2 + 3) / 4 * 4, k});
    } else {
        prog_start(p, HEAD_ROWS, (const int64_t[4]){r, k});
    }
    if (chance(p, 15)) add_row_op(p);
    if (c < 34) { /* gated units */
        try_add(p, lin, o * 2, 0, 0, 0);
        try_add(p, (const enum gen_op[]){OP_glu, OP_swiglu, OP_geglu}[pick(p, 3)], 0, 0, 0, 0);
        if (chance(p, 50)) try_add(p, lin, k, 0, 0, 0);
        if (chance(p, 40)) add_ew(p, true);
        return;
    }
    try_add(p, lin, o, 0, 0, 0);
    if (c < 52) { /* multilayer perceptron, sometimes with a residual */
        add_ew(p, false);
        bool back = chance(p, 50);
        try_add(p, lin, back ? k : PICK_INT(p, 32, 64, 128, 256), 0, 0, 0);
        if (back && chance(p, 70)) try_add(p, OP_residual, 0, 0, 0, 0);
        if (chance(p, 30))
            add_row_op(p);
        else if (chance(p, 30))
            add_ew(p, true);
        return;
    }
    add_ews(p, pick(p, 4), true);
    if (chance(p, 35))
        add_row_op(p);
    else if (chance(p, 35))
        add_reduce(p);
    else if (chance(p, 12) && p->cur.nd == 2)
        try_add(p, OP_cross_entropy, 0, 0, 0, 0);
    if (chance(p, 30)) add_ew(p, true);
}

static void random_image(struct prog *p) {
    int c = pick(p, 100);
    if (c < 45) { /* convolution and what follows */
        int64_t ci = PICK_INT(p, 3, 4, 8, 8, 12), hw = PICK_INT(p, 24, 28, 32, 32, 36, 44, 48),
                b = PICK_INT(p, 8, 8, 16);
        int ks = PICK_INT(p, 1, 3, 3, 3, 5), pad = chance(p, 60) ? ks / 2 : 0, stride = chance(p, 15) ? 2 : 1;
        int64_t co = PICK_INT(p, 8, 16, 16, 32);
        prog_start(p, HEAD_IMAGE, (const int64_t[4]){b, ci, hw, hw});
        if (chance(p, 25))
            try_add(p, OP_depthwise_conv2d, 0, 3, stride, 1);
        else
            try_add(p, OP_conv2d, co, ks, stride, pad);
        if (chance(p, 25)) {
            if (chance(p, 50))
                try_add(p, OP_groupnorm, p->cur.d[1] % 4 == 0 ? 4 : 1, 0, 0, 0);
            else
                try_add(p, chance(p, 50) ? OP_batchnorm : OP_instancenorm, 0, 0, 0, 0);
        }
        add_ews(p, pick(p, 3), true);
        if (chance(p, 15) && p->cur.d[2] == hw) {
            try_add(p, OP_conv2d, ci, 3, 1, 1);
            try_add(p, OP_residual, 0, 0, 0, 0);
            if (chance(p, 60)) try_add(p, OP_relu, 0, 0, 0, 0);
            return;
        }
        if (chance(p, 30) && p->cur.d[2] % 2 == 0)
            try_add(p, chance(p, 50) ? OP_max_pool2d : OP_avg_pool2d, 2, 0, 0, 0);
        else if (chance(p, 25))
            try_add(p, chance(p, 70) ? OP_global_avg_pool : OP_global_max_pool, 0, 0, 0, 0);
        return;
    }
    if (c < 52) { /* squeeze and excite */
        start_image(p, PICK_INT(p, 16, 32, 64));
        int64_t ch = p->cur.d[1];
        try_add(p, OP_global_avg_pool, 0, 0, 0, 0);
        try_add(p, OP_linear, ch / 4 < 8 ? 8 : ch / 4, 0, 0, 0);
        try_add(p, (const enum gen_op[]){OP_relu, OP_silu, OP_gelu, OP_hardswish}[pick(p, 4)], 0, 0, 0, 0);
        try_add(p, OP_linear, ch, 0, 0, 0);
        try_add(p, chance(p, 70) ? OP_sigmoid : OP_hardsigmoid, 0, 0, 0, 0);
        try_add(p, OP_channel_gate, 0, 0, 0, 0);
        return;
    }
    if (c < 62) {
        prog_start(
            p, HEAD_SIGNAL,
            (const int64_t[4]){PICK_INT(p, 4, 8, 16), PICK_INT(p, 4, 8, 16), uneven(p, PICK_INT(p, 256, 512, 1024))});
        int ks = PICK_INT(p, 3, 3, 5, 7);
        try_add(p, OP_conv1d, PICK_INT(p, 8, 16, 32), ks, 1, chance(p, 60) ? ks / 2 : 0);
        add_ews(p, pick(p, 3), true);
        return;
    }
    start_image(p, 0);
    add_ews(p, pick(p, 2), true);
    int kind = pick(p, 6);
    if (kind == 0)
        try_add(p, OP_groupnorm, PICK_INT(p, 2, 4, 8), 0, 0, 0);
    else if (kind == 1)
        try_add(p, OP_instancenorm, 0, 0, 0, 0);
    else if (kind == 2)
        try_add(p, OP_batchnorm, 0, 0, 0, 0);
    else if (kind == 3)
        try_add(p, OP_max_pool2d, PICK_INT(p, 2, 2, 4), 0, 0, 0);
    else if (kind == 4)
        try_add(p, OP_avg_pool2d, PICK_INT(p, 2, 2, 4), 0, 0, 0);
    else
        try_add(p, OP_channel_scale, 0, 0, 0, 0);
    add_ews(p, pick(p, 3), true);
    if (chance(p, 35)) try_add(p, chance(p, 70) ? OP_global_avg_pool : OP_global_max_pool, 0, 0, 0, 0);
}

void prog_random(struct prog *p) {
    int c = pick(p, 100);
    if (c < 29) { /* element by element */
        start_rows(p);
        add_ews(p, 1 + pick(p, 5), true);
    } else if (c < 55) { /* rows */
        start_rows(p);
        add_ews(p, (int[]){0, 0, 1, 1, 2}[pick(p, 5)], true);
        if (chance(p, 45)) {
            add_row_op(p);
            if (chance(p, 60)) add_ew(p, true);
            if (chance(p, 25)) add_row_op(p);
            if (chance(p, 25)) add_reduce(p);
        } else {
            add_reduce(p);
            if (!p->out_i64 && chance(p, 30)) add_ew(p, false);
        }
    } else if (c < 76) {
        random_product(p);
    } else if (c < 88) {
        random_image(p);
    } else if (c < 93) { /* losses */
        start_rows(p);
        add_ews(p, pick(p, 3), true);
        static const enum gen_op ops[] = {OP_mse_loss,      OP_l1_loss,  OP_smooth_l1_loss, OP_bce_logits_loss,
                                          OP_cross_entropy, OP_mean_all, OP_sum_all};
        for (int i = 0; i < 20 && p->cur.kind != SHAPE_SCALAR; i++)
            try_add(p, ops[pick(p, (int)ARRAY_LEN(ops))], 0, 0, 0, 0);
    } else if (c < 97) { /* data movement, the middle dimension */
        int kind = pick(p, 4);
        if (kind == 0) {
            prog_start(p, HEAD_IDS, (const int64_t[4]){PICK_INT(p, 8, 16, 32), uneven(p, PICK_INT(p, 64, 128)), 0});
            try_add(p, OP_embedding, PICK_INT(p, 1000, 2000, 4000), PICK_INT(p, 128, 256), 0, 0);
            add_ews(p, pick(p, 2), true);
            if (chance(p, 50)) add_row_op(p);
        } else if (kind == 1) {
            prog_start(p, HEAD_SEQ,
                       (const int64_t[4]){PICK_INT(p, 8, 16, 32), uneven(p, PICK_INT(p, 32, 64, 128)),
                                          uneven(p, PICK_INT(p, 128, 256))});
            add_ews(p, 1 + pick(p, 2), true);
            static const enum gen_op ops[] = {OP_sum_dim1, OP_mean_dim1, OP_max_dim1};
            try_add(p, ops[pick(p, 3)], 0, 0, 0, 0);
            if (chance(p, 40)) add_ew(p, true);
        } else {
            prog_start(p, HEAD_ROWS,
                       (const int64_t[4]){uneven(p, PICK_INT(p, 256, 512)), uneven(p, PICK_INT(p, 256, 512, 1024))});
            add_ews(p, pick(p, 3), true);
            try_add(p, kind == 2 ? OP_transpose : OP_concat, 0, 0, 0, 0);
            if (chance(p, 40)) add_ew(p, false);
        }
    } else { /* attention */
        int64_t t = uneven(p, PICK_INT(p, 32, 64, 64, 128)), d = PICK_INT(p, 32, 64);
        prog_start(p, HEAD_SEQ, (const int64_t[4]){PICK_INT(p, 4, 8, 16), t, d});
        p->fill = "torch.randn";
        p->in[0].make = prog_make_tensor(p, p->fill, &p->cur);
        try_add(p, OP_bmm_t, t, 0, 0, 0);
        prog_add(p, OP_scale, (const int64_t[4]){0}, d == 32 ? "0.17677669" : "0.125", NULL);
        if (chance(p, 30)) try_add(p, OP_add, 0, 0, 0, 0);
        prog_add(p, OP_softmax, (const int64_t[4]){0}, NULL, NULL);
        try_add(p, OP_bmm, d, 0, 0, 0);
        if (chance(p, 25)) try_add(p, OP_residual, 0, 0, 0, 0);
    }
    if (p->n == 0) add_ew(p, false);
    prog_finish(p);
}

/* ---- compositions -------------------------------------------------------------------------------------------------*/

/* Draws sizes by what has to be computed: products and convolutions take smaller inputs. */
static void start_composed(struct prog *p, enum head head, bool product, bool conv) {
    if (head == HEAD_SIGNAL) {
        prog_start(
            p, head,
            (const int64_t[4]){PICK_INT(p, 4, 8, 16), PICK_INT(p, 4, 8, 16), uneven(p, PICK_INT(p, 256, 512, 1024))});
    } else if (head == HEAD_IMAGE && conv) {
        const int64_t hw = PICK_INT(p, 24, 28, 32, 36, 44, 48);
        prog_start(p, head, (const int64_t[4]){8, PICK_INT(p, 4, 8, 12), hw, hw});
    } else if (head == HEAD_IMAGE) {
        start_image(p, 0);
    } else if (head == HEAD_SEQ) {
        const int64_t b = PICK_INT(p, 4, 8, 16), d = product ? PICK_INT(p, 32, 64, 128) : PICK_INT(p, 128, 256, 512);
        prog_start(p, head, (const int64_t[4]){b, uneven(p, PICK_INT(p, 32, 64, 128)), d});
    } else if (product) {
        prog_start(
            p, head,
            (const int64_t[4]){PICK_INT(p, 16, 32, 60, 64, 100, 128, 200), uneven(p, PICK_INT(p, 128, 256, 512))});
    } else {
        const int64_t n = uneven(p, PICK_INT(p, 256, 384, 512, 768, 1024, 2048));
        prog_start(p, head, (const int64_t[4]){(PICK_INT(p, 262144, 524288) / n + 7) / 8 * 8, n});
    }
}

/* Draws the integers that an operator takes. False when none fit the current shape. */
static bool draw_arguments(struct prog *p, enum gen_op op, int64_t arg[4]) {
    const struct shape *s = &p->cur;
    const int ks = PICK_INT(p, 1, 3, 3, 5);
    switch (op) {
    case OP_linear:
    case OP_linear_nobias:
    case OP_matmul:
    case OP_matmul_t:
    case OP_bmm:
    case OP_bmm_t: arg[0] = 2 * uneven(p, PICK_INT(p, 32, 64, 128, 192)); return true;
    case OP_conv2d:
        arg[0] = PICK_INT(p, 8, 16, 32);
        arg[1] = ks;
        arg[2] = 1;
        arg[3] = ks / 2;
        return true;
    case OP_depthwise_conv2d:
        arg[1] = 3;
        arg[2] = arg[3] = 1;
        return true;
    case OP_conv1d:
        arg[0] = PICK_INT(p, 8, 16, 32);
        arg[1] = PICK_INT(p, 3, 5, 7);
        arg[2] = 1;
        arg[3] = arg[1] / 2;
        return true;
    case OP_groupnorm: arg[0] = s->d[1] % 4 == 0 ? 4 : 1; return true;
    case OP_max_pool2d:
    case OP_avg_pool2d: arg[0] = 2; return s->d[2] % 2 == 0 && s->d[3] % 2 == 0;
    case OP_glu:
    case OP_swiglu:
    case OP_geglu: return s->d[s->nd - 1] % 2 == 0;
    case OP_embedding: return false;
    default: return true;
    }
}

enum status prog_compose(struct prog *p, const char *text, struct err *e) {
    static const char *const heads[] = {
        [HEAD_ROWS] = "rows", [HEAD_SEQ] = "seq", [HEAD_IMAGE] = "image", [HEAD_SIGNAL] = "signal"};
    enum gen_op ops[GEN_MAX_NODES];
    int head = -1, n = 0, word = 0;
    bool product = false, conv = false;
    for (const char *at = text + strspn(text, " "); *at; word++) {
        const size_t len = strcspn(at, " ");
        enum gen_op op;
        if (word == 0) {
            for (int i = 0; i < (int)ARRAY_LEN(heads); i++)
                if (strlen(heads[i]) == len && memcmp(heads[i], at, len) == 0) head = i;
            if (head < 0) return FAIL(e, ST_PARSE, "\"%.*s\": expected rows, seq, image or signal", (int)len, at);
        } else if (!gen_op_find(at, len, &op)) {
            return FAIL(e, ST_PARSE, "\"%.*s\": no such operator", (int)len, at);
        } else if (n == GEN_MAX_NODES) {
            return FAIL(e, ST_INVALID, "more than %d operators", GEN_MAX_NODES);
        } else {
            ops[n++] = op;
            product |= gen_ops[op].cls == OP_PRODUCT;
            conv |= gen_ops[op].cls == OP_CONV;
        }
        at += len;
        at += strspn(at, " ");
    }
    if (n == 0) return FAIL(e, ST_PARSE, "expected a shape and at least one operator");
    start_composed(p, (enum head)head, product, conv);
    for (int i = 0; i < n; i++) {
        int64_t arg[4] = {0};
        const char *name = gen_ops[ops[i]].name, *why = prog_misfit(p, ops[i]);
        if (why) return FAIL(e, ST_INVALID, "%s: %s", name, why);
        if (!draw_arguments(p, ops[i], arg)) return FAIL(e, ST_INVALID, "%s: does not fit this shape", name);
        if (!try_add(p, ops[i], arg[0], arg[1], arg[2], arg[3]))
            return FAIL(e, ST_INVALID, "%s: the result would be constant, unbounded, or mostly rounding", name);
        if (ops[i] == OP_max || ops[i] == OP_min || ops[i] == OP_logsumexp || ops[i] == OP_global_max_pool)
            use_randn(p);
    }
    prog_finish(p);
    return ST_OK;
}
