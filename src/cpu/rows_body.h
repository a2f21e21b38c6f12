/* Ops that work row by row. tensor/ops.h has the contracts. */

ALWAYS_INLINE float *row_of(struct tensor t, int64_t r) { return (float *)t.data + r * t.ld; }

ALWAYS_INLINE float rstd_of(const float *x, int64_t n, float eps) {
    v16 s = v_zero();
    for (int64_t j = 0; j < n; j += 16) {
        v16 v = v_load_n(x + j, n - j);
        s = v_fma(v, v, s);
    }
    return 1.0f / __builtin_sqrtf(v_sum(s) / (float)n + eps);
}

ALWAYS_INLINE void norm_row(float *y, const float *x, const float *gain, int64_t n, float eps) {
    v16 r = v_set1(rstd_of(x, n, eps));
    for (int64_t j = 0; j < n; j += 16)
        v_store_n(y + j, v_mul(v_mul(v_load_n(x + j, n - j), r), v_load_n(gain + j, n - j)), n - j);
}

/* The gradient of y = x r gain with r = 1/sqrt(mean(x^2)+eps). With xh = x r: dx = r (dy gain - xh mean(dy gain xh)),
 * dgain += dy xh. */
ALWAYS_INLINE void norm_row_grad(float *dx, const float *dy, const float *x, const float *gain, float *dgain, int64_t n,
                                 float eps, bool accumulate) {
    const float rs = rstd_of(x, n, eps);
    const v16 r = v_set1(rs);
    v16 s = v_zero();
    for (int64_t j = 0; j < n; j += 16) {
        v16 xh = v_mul(v_load_n(x + j, n - j), r), d = v_load_n(dy + j, n - j);
        if (dgain) v_store_n(dgain + j, v_fma(d, xh, v_load_n(dgain + j, n - j)), n - j);
        s = v_fma(v_mul(d, v_load_n(gain + j, n - j)), xh, s);
    }
    const v16 mean = v_set1(-(v_sum(s) / (float)n));
    for (int64_t j = 0; j < n; j += 16) {
        v16 xh = v_mul(v_load_n(x + j, n - j), r), d = v_mul(v_load_n(dy + j, n - j), v_load_n(gain + j, n - j));
        v16 out = v_mul(r, v_fma(xh, mean, d));
        if (accumulate) out = v_add(v_load_n(dx + j, n - j), out);
        v_store_n(dx + j, out, n - j);
    }
}

static void rmsnorm_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct rmsnorm_args *p = ctx;
    for (int64_t t = begin; t < end; t++) norm_row(row_of(p->y, t), row_of(p->x, t), p->gain, p->x.cols, p->eps);
}

/* Works over blocks of ROW_BLOCK rows. */
static void rmsnorm_grad_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct rmsnorm_args *p = ctx;
    const int64_t n = p->x.cols;
    for (int64_t blk = begin; blk < end; blk++) {
        float *part = p->partial ? p->partial + blk * n : NULL;
        if (part) memset(part, 0, (size_t)n * sizeof(float));
        for (int64_t t = blk * ROW_BLOCK; t < i64_min((blk + 1) * ROW_BLOCK, p->x.rows); t++)
            norm_row_grad(row_of(p->dx, t), row_of(p->dy, t), row_of(p->x, t), p->gain, part, n, p->eps, p->accumulate);
    }
}

/* (a,b) -> scale * (a cos - b sin, b cos + a sin). sign = -1 turns back. y may alias x. */
ALWAYS_INLINE void rotate_head(float *y, const float *x, const float *cs, const float *sn, int64_t half, float sign,
                               float scale) {
    const v16 sg = v_set1(sign), sc = v_set1(scale);
    for (int64_t j = 0; j < half; j += 16) {
        const int64_t n = half - j;
        v16 a = v_load_n(x + j, n), b = v_load_n(x + half + j, n), c = v_load_n(cs + j, n);
        v16 s = v_mul(sg, v_load_n(sn + j, n));
        v16 ya = v_sub(v_mul(a, c), v_mul(b, s)), yb = v_add(v_mul(b, c), v_mul(a, s));
        v_store_n(y + j, v_mul(ya, sc), n);
        v_store_n(y + half + j, v_mul(yb, sc), n);
    }
}

static void rope_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct rope_work *p = ctx;
    const struct rope_args *a = p->a;
    const int64_t K = a->K, half = K / 2;
    const float q_scale = 1.0f / __builtin_sqrtf((float)K);
    for (int64_t t = begin; t < end; t++) {
        const float *cs = a->cos_t + (int64_t)a->pos[t] * half, *sn = a->sin_t + (int64_t)a->pos[t] * half;
        for (int64_t h = 0; h < a->H + a->G; h++) {
            const float *x = row_of(p->qkv, t) + h * K;
            float *y = row_of(p->qk, t) + h * K;
            const float *gain = h < a->H ? a->q_gain : a->k_gain;
            if (gain) {
                norm_row(y, x, gain, K, a->eps);
                x = y;
            }
            rotate_head(y, x, cs, sn, half, 1.0f, h < a->H ? q_scale : 1.0f);
        }
    }
}

static void rope_grad_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct rope_work *p = ctx;
    const struct rope_args *a = p->a;
    const int64_t K = a->K, half = K / 2;
    const float q_scale = 1.0f / __builtin_sqrtf((float)K);
    for (int64_t blk = begin; blk < end; blk++) {
        float *part = p->partial ? p->partial + blk * 2 * K : NULL;
        if (part) memset(part, 0, (size_t)(2 * K) * sizeof(float));
        for (int64_t t = blk * ROW_BLOCK; t < i64_min((blk + 1) * ROW_BLOCK, p->dqkv.rows); t++) {
            const float *cs = a->cos_t + (int64_t)a->pos[t] * half, *sn = a->sin_t + (int64_t)a->pos[t] * half;
            for (int64_t h = 0; h < a->H + a->G; h++) {
                float *d = row_of(p->dqkv, t) + h * K;
                const float *gain = h < a->H ? a->q_gain : a->k_gain;
                rotate_head(d, d, cs, sn, half, -1.0f, h < a->H ? q_scale : 1.0f);
                if (gain)
                    norm_row_grad(d, d, row_of(p->qkv, t) + h * K, gain, part ? part + (h < a->H ? 0 : K) : NULL, K,
                                  a->eps, false);
            }
        }
    }
}

ALWAYS_INLINE v16 sigmoid(v16 g) {
    const v16 one = v_set1(1.0f);
    return v_div(one, v_add(one, v_exp(v_sub(v_zero(), g))));
}

static void swiglu_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct swiglu_args *p = ctx;
    const int64_t F = p->y.cols;
    for (int64_t t = begin; t < end; t++) {
        const float *g = row_of(p->gu, t), *u = g + F;
        float *y = row_of(p->y, t);
        for (int64_t j = 0; j < F; j += 16) {
            v16 gv = v_load_n(g + j, F - j);
            v_store_n(y + j, v_mul(v_mul(gv, sigmoid(gv)), v_load_n(u + j, F - j)), F - j);
        }
    }
}

/* silu(g) = g s with s = sigmoid(g), so silu'(g) = s (1 + g (1 - s)). */
static void swiglu_grad_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct swiglu_args *p = ctx;
    const int64_t F = p->dy.cols;
    const v16 one = v_set1(1.0f);
    for (int64_t t = begin; t < end; t++) {
        const float *g = row_of(p->gu, t), *u = g + F, *dy = row_of(p->dy, t);
        float *dg = row_of(p->dgu, t), *du = dg + F;
        for (int64_t j = 0; j < F; j += 16) {
            const int64_t n = F - j;
            v16 gv = v_load_n(g + j, n), uv = v_load_n(u + j, n), d = v_load_n(dy + j, n), s = sigmoid(gv);
            v16 slope = v_mul(s, v_fma(gv, v_sub(one, s), one));
            v_store_n(du + j, v_mul(d, v_mul(gv, s)), n);
            v_store_n(dg + j, v_mul(v_mul(d, uv), slope), n);
        }
    }
}

ALWAYS_INLINE float row_max(const float *x, int64_t n) {
    v16 m = v_set1(-__builtin_inff());
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) m = v_max(m, v_load(x + j));
    float best = v_maximum(m);
    for (; j < n; j++) best = best > x[j] ? best : x[j];
    return best;
}

/* Sums exp(x - max), and exp(x - max) (x - max), over a chunk, in the fixed order. */
ALWAYS_INLINE float chunk_sumexp(const float *x, int64_t n, float max, float *weighted) {
    const v16 m = v_set1(max);
    v16 s = v_zero(), w = v_zero();
    for (int64_t j = 0; j < n; j += 16) {
        v16 d = v_first(v_sub(v_load_n(x + j, n - j), m), n - j), p = v_first(v_exp(d), n - j);
        s = v_add(s, p);
        w = v_fma(p, d, w);
    }
    *weighted = v_sum(w);
    return v_sum(s);
}

/* The same over a row, from the sums of its chunks. */
ALWAYS_INLINE float row_sumexp(const float *x, int64_t n, float max, float *weighted) {
    float s = 0, w = 0;
    for (int64_t j = 0; j < n; j += LOGIT_CHUNK) {
        const int64_t len = i64_min(LOGIT_CHUNK, n - j);
        float own = row_max(x + j, len), w_c, f[16];
        if (own == -__builtin_inff()) own = 0;
        const float s_c = chunk_sumexp(x + j, len, own, &w_c);
        v_store(f, v_exp(v_set1(own - max)));
        s = __builtin_fmaf(f[0], s_c, s);
        w = __builtin_fmaf(f[0], __builtin_fmaf(s_c, own - max, w_c), w);
    }
    *weighted = w;
    return s;
}

static float logprob_row_isa(const float *x, int64_t V, int32_t target, float *entropy) {
    float w, max = row_max(x, V), l = row_sumexp(x, V, max, &w);
    const double log_l = log((double)l);
    if (entropy) *entropy = (float)(log_l - (double)w / (double)l);
    return (float)((double)x[target] - (double)max - log_l);
}

static void logprob_ids_isa(const float *x, int64_t V, const int32_t *ids, int n, float *logp) {
    float w, max = row_max(x, V);
    const double log_l = log((double)row_sumexp(x, V, max, &w));
    for (int i = 0; i < n; i++) logp[i] = (float)((double)x[ids[i]] - (double)max - log_l);
}

static void logprob_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct logprob_args *p = ctx;
    for (int64_t i = begin; i < end; i++)
        p->logp[i] =
            logprob_row_isa(row_of(p->logits, i), p->logits.cols, p->targets[i], p->entropy ? &p->entropy[i] : NULL);
}

static void logprob_grad_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct logprob_args *p = ctx;
    const int64_t V = p->logits.cols;
    for (int64_t i = begin; i < end; i++) {
        float *x = row_of(p->logits, i);
        float w;
        const float max = row_max(x, V), l = row_sumexp(x, V, max, &w);
        const v16 m = v_set1(max), c = v_set1(-p->g[i] / l);
        for (int64_t j = 0; j < V; j += 16) v_store_n(x + j, v_mul(c, v_exp(v_sub(v_load_n(x + j, V - j), m))), V - j);
        x[p->targets[i]] += p->g[i];
    }
}

static void exp_f32_isa(float *y, const float *x, int64_t n) {
    for (int64_t j = 0; j < n; j += 16) v_store_n(y + j, v_exp(v_load_n(x + j, n - j)), n - j);
}
