/* Attention over packed sequences and its gradient. tensor/ops.h has the contracts, attention.c the sizes of scratch. A
 * work bin is a range of tasks. A task is (sequence, kv head, query rows). */

ALWAYS_INLINE float *take(float **p, int64_t n) {
    float *r = *p;
    *p += (n + 15) & ~(int64_t)15;
    return r;
}

/* The row of key j of a training sequence: the past comes first, then the sequence's own rows. */
ALWAYS_INLINE int64_t key_row(const struct attn_seq *s, int64_t j) {
    return j < s->past ? s->past_row + j : s->row + (j - s->past);
}

/* Writes transposed blocks [block][K][KV_BLOCK] of columns [c0, c0+K) of the rows of keys [0,n). Lanes beyond n keep
 * what they held. Callers never look at these lanes, but zero them once, so that nothing undefined is computed with. */
static void gather_transposed(float *dst, struct tensor src, const struct attn_seq *s, int64_t n, int64_t c0,
                              int64_t K) {
    for (int64_t j0 = 0; j0 < n; j0 += KV_BLOCK) {
        float *blk = dst + j0 * K;
        const int64_t m = i64_min(KV_BLOCK, n - j0);
        if (m < KV_BLOCK) memset(blk, 0, (size_t)(K * KV_BLOCK) * sizeof(float));
        for (int64_t d0 = 0; d0 < K; d0 += 16) {
            const int64_t d1 = i64_min(K, d0 + 16);
            for (int64_t j = 0; j < m; j++) {
                const float *x = row_of(src, key_row(s, j0 + j)) + c0;
                for (int64_t d = d0; d < d1; d++) blk[d * KV_BLOCK + j] = x[d];
            }
        }
    }
}

/* Writes rows [key][Kp] with zeros as padding. */
static void gather_rows_padded(float *dst, struct tensor src, const struct attn_seq *s, int64_t n, int64_t c0,
                               int64_t K, int64_t Kp) {
    for (int64_t j = 0; j < n; j++) {
        const float *x = row_of(src, key_row(s, j)) + c0;
        for (int64_t d = 0; d < Kp; d += 16) v_store(dst + j * Kp + d, d < K ? v_load_n(x + d, K - d) : v_zero());
    }
}

/* The keys and values that one query tile meets, block by block. They lie in the cache, and are found through a block
 * table, or were gathered. */
struct key_blocks {
    const float *k, *v;     /* Those of block 0. */
    int64_t k_step, v_step; /* How many floats lie from a block to the next. */
    const int32_t *table;   /* NULL: the blocks follow each other. */
};

ALWAYS_INLINE int64_t block_at(const struct key_blocks *b, int64_t i) { return b->table ? b->table[i] : i; }

/* The two products of a tile over all blocks of keys, for mr rows. scores: out[i][j] = x[i] . key j of full blocks.
 * sums: out[i][d] = sum_j p[i][j] v[j][d] over n keys, with j ascending, for 16*nv columns from column d0 on. */
typedef void scores_fn(float *out, int64_t ld, const float *x, int64_t ldx, const struct key_blocks *b, int64_t n,
                       int64_t K);
typedef void values_fn(float *out, int64_t ldo, const float *p, int64_t ldp, const struct key_blocks *b, int64_t n,
                       int64_t d0, int64_t Kp);

ALWAYS_INLINE void scores_body(const int mr, float *out, int64_t ld, const float *x, int64_t ldx,
                               const struct key_blocks *b, int64_t n, int64_t K) {
    /* These come behind the keys. */
    const float *values = b->v ? b->v + block_at(b, 0) * b->v_step : NULL;
    for (int64_t i = 0; i < n / KV_BLOCK; i++) {
        const float *k = b->k + block_at(b, i) * b->k_step;
        const bool last = (i + 1) * KV_BLOCK >= n;
        const float *ahead = !last ? b->k + block_at(b, i + 1) * b->k_step : values ? values : k;
        for (int64_t j = 0; j < KV_BLOCK; j += 16 * V16_NV) {
            v16 acc[MICRO_ROWS][V16_NV];
#pragma GCC unroll 6
            for (int r = 0; r < mr; r++)
#pragma GCC unroll 4
                for (int c = 0; c < V16_NV; c++) acc[r][c] = v_zero();
            micro_steps(mr, V16_NV, acc, K, x, ldx, 1, k + j, KV_BLOCK, ahead + j);
            micro_store(mr, V16_NV, acc, out + i * KV_BLOCK + j, ld, 16 * V16_NV);
        }
    }
}

ALWAYS_INLINE void values_body(const int mr, const int nv, float *out, int64_t ldo, const float *p, int64_t ldp,
                               const struct key_blocks *b, int64_t n, int64_t d0, int64_t Kp) {
    v16 acc[MICRO_ROWS][V16_NV];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) acc[i][j] = v_zero();
    for (int64_t j0 = 0; j0 < n; j0 += KV_BLOCK) {
        const float *v = b->v + block_at(b, j0 / KV_BLOCK) * b->v_step + d0;
        const float *ahead = j0 + KV_BLOCK < n ? b->v + block_at(b, j0 / KV_BLOCK + 1) * b->v_step + d0 : v;
        micro_steps(mr, nv, acc, i64_min(KV_BLOCK, n - j0), p + j0, ldp, 1, v, Kp, ahead);
    }
    micro_store(mr, nv, acc, out + d0, ldo, 16 * nv);
}

#define SCORES(mr)                                                                                         \
    static __attribute__((noinline)) void scores_##mr(float *out, int64_t ld, const float *x, int64_t ldx, \
                                                      const struct key_blocks *b, int64_t n, int64_t K) {  \
        scores_body(mr, out, ld, x, ldx, b, n, K);                                                         \
    }
#define VALUES(mr, nv)                                                                                             \
    static __attribute__((noinline)) void values_##mr##x##nv(float *out, int64_t ldo, const float *p, int64_t ldp, \
                                                             const struct key_blocks *b, int64_t n, int64_t d0,    \
                                                             int64_t Kp) {                                         \
        values_body(mr, nv, out, ldo, p, ldp, b, n, d0, Kp);                                                       \
    }
#define VALUES_ALL(nv) VALUES(1, nv) VALUES(2, nv) VALUES(3, nv) VALUES(4, nv) VALUES(5, nv) VALUES(6, nv)
#define VALUES_ROW(nv) \
    { values_1x##nv, values_2x##nv, values_3x##nv, values_4x##nv, values_5x##nv, values_6x##nv }
#define SCORES_ALL SCORES(1) SCORES(2) SCORES(3) SCORES(4) SCORES(5) SCORES(6)
SCORES_ALL
VALUES_ALL(1)
#if V16_NV == 4
VALUES_ALL(2)
VALUES_ALL(3)
VALUES_ALL(4)
static values_fn *const values_table[V16_NV][MICRO_ROWS] = {VALUES_ROW(1), VALUES_ROW(2), VALUES_ROW(3), VALUES_ROW(4)};
#else
static values_fn *const values_table[V16_NV][MICRO_ROWS] = {VALUES_ROW(1)};
#endif

static scores_fn *const scores_table[MICRO_ROWS] = {scores_1, scores_2, scores_3, scores_4, scores_5, scores_6};

/* How many rows the next part of a tile has, of which m are left: 7 are cut into 4 + 3, not 6 + 1. */
ALWAYS_INLINE int64_t tile_part(int64_t m) {
    return m > MICRO_ROWS && m < 2 * MICRO_ROWS ? (m + 1) / 2 : i64_min(m, MICRO_ROWS);
}

/* out[i][j] = x[i] . key j for nq rows and keys [0, n). Rows of out are ld apart. */
static void tile_scores(float *out, int64_t ld, const float *x, int64_t ldx, int64_t nq, const struct key_blocks *b,
                        int64_t n, int64_t K) {
    const int64_t full = n / KV_BLOCK, rest = n % KV_BLOCK;
    for (int64_t i = 0, m; i < nq && full > 0; i += m) {
        m = tile_part(nq - i);
        scores_table[m - 1](out + i * ld, ld, x + i * ldx, ldx, b, n, K);
    }
    if (rest == 0) return;
    const float *k = b->k + block_at(b, full) * b->k_step;
    micro_block(nq, (rest + 15) & ~(int64_t)15, K, x, ldx, 1, k, KV_BLOCK, out + full * KV_BLOCK, ld, NULL, INIT_ZERO);
}

/* out[i][d] = sum_j p[i][j] v[j][d] for nq rows and keys [0, n), with j ascending. */
static void tile_values(float *out, const float *p, int64_t ld, int64_t nq, const struct key_blocks *b, int64_t n,
                        int64_t Kp) {
    for (int64_t d = 0; d < Kp; d += 16 * V16_NV)
        for (int64_t i = 0, m; i < nq; i += m) {
            m = tile_part(nq - i);
            values_table[i64_min(Kp - d, 16 * V16_NV) / 16 - 1][m - 1](out + i * Kp, Kp, p + i * ld, ld, b, n, d, Kp);
        }
}

static void attention_bins(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct attn_work *p = ctx;
    const int64_t K = p->s.K, Kp = kv_pad_dim(K), rep = p->s.H / p->s.G;
    const int64_t cap = (p->max_keys + KV_BLOCK - 1) & ~(int64_t)(KV_BLOCK - 1);
    float *mem = p->scratch + thread * p->scratch_floats;
    float *kt_mem = take(&mem, cap * K), *v_mem = take(&mem, cap * Kp), *sc = take(&mem, ATTN_TILE * cap);
    float *q = take(&mem, ATTN_TILE * K), *acc = take(&mem, ATTN_TILE * Kp);
    for (int64_t i = p->cut[begin]; i < p->cut[end]; i++) {
        const struct attn_task *task = &p->task[i];
        const struct attn_seq *s = &p->seq[task->seq];
        const int64_t g = task->g, n_keys = s->past + task->row1;
        struct key_blocks keys = {kt_mem, v_mem, K * KV_BLOCK, KV_BLOCK * Kp, NULL};
        if (s->blocks) {
            keys = (struct key_blocks){p->s.kv + kv_keys_at(g, K), p->s.kv + kv_values_at(g, p->s.G, K), p->s.kv_stride,
                                       p->s.kv_stride, s->blocks};
        } else {
            gather_transposed(kt_mem, p->k, s, n_keys, g * K, K);
            gather_rows_padded(v_mem, p->v, s, n_keys, g * K, K, Kp);
        }
        /* A tile is ATTN_TILE (row, head) pairs. The heads of a row stand side by side: they share the keys. */
        const int64_t first = task->row0 * rep, last = task->row1 * rep;
        for (int64_t t0 = first; t0 < last; t0 += ATTN_TILE) {
            const int64_t nq = i64_min(ATTN_TILE, last - t0), n = s->past + (t0 + nq - 1) / rep + 1;
            float inv[ATTN_TILE];
            for (int64_t r = 0; r < nq; r++)
                memcpy(q + r * K, row_of(p->q, s->row + (t0 + r) / rep) + (g * rep + (t0 + r) % rep) * K,
                       (size_t)K * sizeof(float));
            tile_scores(sc, cap, q, K, nq, &keys, n, K);
            for (int64_t r = 0; r < nq; r++) {
                const int64_t row = (t0 + r) / rep, own = s->past + row + 1;
                float *x = sc + r * cap;
                const float max = row_max(x, own);
                const v16 m = v_set1(max);
                v16 sum = v_zero();
                for (int64_t j = 0; j < own; j += 16) { /* A key that the row may not see gets weight 0. */
                    v16 e = v_exp(v_sub(v_load(x + j), m));
                    if (own - j < 16) e = v_first(e, own - j);
                    v_store(x + j, e);
                    sum = v_add(sum, e);
                }
                for (int64_t j = (own + 15) & ~(int64_t)15; j < n; j++) x[j] = 0;
                inv[r] = 1.0f / v_sum(sum);
                if (p->stats) {
                    float *st = p->stats + ((s->row + row) * p->s.H + g * rep + (t0 + r) % rep) * 2;
                    st[0] = max;
                    st[1] = inv[r];
                }
            }
            tile_values(acc, sc, cap, nq, &keys, n, Kp);
            for (int64_t r = 0; r < nq; r++) {
                float *o = row_of(p->o, s->row + (t0 + r) / rep) + (g * rep + (t0 + r) % rep) * K;
                for (int64_t d = 0; d < K; d += 16)
                    v_store_n(o + d, v_mul(v_load(acc + r * Kp + d), v_set1(inv[r])), K - d);
            }
        }
    }
}

/* Computes the gradient of one sequence and kv head. With P = softmax(q k^T) and delta = dO . O:
 *     dV += P^T dO,  dS = P (dO V^T - delta),  dQ = dS K,  dK += dS^T Q      (q already holds the 1/sqrt(K)) */
static void attention_grad_seq(const struct attn_work *p, const struct attn_seq *s, int64_t g, float *mem) {
    const int64_t K = p->s.K, Kp = kv_pad_dim(K), rep = p->s.H / p->s.G, n_keys = s->past + s->len;
    const int64_t cap = (n_keys + KV_BLOCK - 1) & ~(int64_t)(KV_BLOCK - 1);
    float *kt = take(&mem, cap * K), *vt = take(&mem, cap * K), *kr = take(&mem, cap * Kp);
    float *dk = take(&mem, cap * Kp), *dv = take(&mem, cap * Kp);
    float *pr = take(&mem, ATTN_GRAD_TILE * cap), *ds = take(&mem, ATTN_GRAD_TILE * cap);
    float *q = take(&mem, ATTN_GRAD_TILE * Kp), *d_o = take(&mem, ATTN_GRAD_TILE * Kp),
          *dq = take(&mem, ATTN_GRAD_TILE * Kp);
    gather_transposed(kt, p->k, s, n_keys, g * K, K);
    gather_transposed(vt, p->v, s, n_keys, g * K, K);
    gather_rows_padded(kr, p->k, s, n_keys, g * K, K, Kp);
    const struct key_blocks kb = {.k = kt, .k_step = K * KV_BLOCK}, vb = {.k = vt, .k_step = K * KV_BLOCK};
    memset(dk, 0, (size_t)(n_keys * Kp) * sizeof(float));
    memset(dv, 0, (size_t)(n_keys * Kp) * sizeof(float));
    for (int64_t t0 = 0; t0 < s->len * rep; t0 += ATTN_GRAD_TILE) {
        const int64_t nq = i64_min(ATTN_GRAD_TILE, s->len * rep - t0), n = s->past + (t0 + nq - 1) / rep + 1;
        float delta[ATTN_GRAD_TILE];
        for (int64_t r = 0; r < nq; r++) {
            const int64_t row = s->row + (t0 + r) / rep, h = g * rep + (t0 + r) % rep;
            const float *qs = row_of(p->q, row) + h * K, *os = row_of(p->o, row) + h * K,
                        *gs = row_of(p->d_o, row) + h * K;
            v16 dot = v_zero();
            for (int64_t d = 0; d < Kp; d += 16) {
                v16 gv = v_load_n(gs + d, K - d);
                dot = v_fma(gv, v_load_n(os + d, K - d), dot);
                v_store(d_o + r * Kp + d, gv);
                v_store(q + r * Kp + d, v_load_n(qs + d, K - d));
            }
            delta[r] = v_sum(dot);
        }
        tile_scores(pr, cap, q, Kp, nq, &kb, n, K);
        tile_scores(ds, cap, d_o, Kp, nq, &vb, n, K);
        for (int64_t r = 0; r < nq; r++) {
            const int64_t row = (t0 + r) / rep, own = s->past + row + 1;
            const float *st = p->stats + ((s->row + row) * p->s.H + g * rep + (t0 + r) % rep) * 2;
            const v16 m = v_set1(st[0]), inv = v_set1(st[1]), dl = v_set1(delta[r]);
            float *pp = pr + r * cap, *dd = ds + r * cap;
            for (int64_t j = 0; j < own; j += 16) {
                v16 w = v_mul(v_exp(v_sub(v_load(pp + j), m)), inv);
                v16 x = v_mul(w, v_sub(v_load(dd + j), dl));
                v_store(pp + j, own - j < 16 ? v_first(w, own - j) : w);
                v_store(dd + j, own - j < 16 ? v_first(x, own - j) : x);
            }
            for (int64_t j = (own + 15) & ~(int64_t)15; j < n; j++) pp[j] = dd[j] = 0;
        }
        micro_block(nq, Kp, n, ds, cap, 1, kr, Kp, dq, Kp, NULL, INIT_ZERO);
        micro_block(n, Kp, nq, pr, 1, cap, d_o, Kp, dv, Kp, NULL, INIT_LOAD);
        micro_block(n, Kp, nq, ds, 1, cap, q, Kp, dk, Kp, NULL, INIT_LOAD);
        for (int64_t r = 0; r < nq; r++)
            memcpy(row_of(p->dq, s->row + (t0 + r) / rep) + (g * rep + (t0 + r) % rep) * K, dq + r * Kp,
                   (size_t)K * sizeof(float));
    }
    for (int64_t j = 0; j < n_keys; j++) {
        float *a = row_of(p->dk, key_row(s, j)) + g * K, *b = row_of(p->dv, key_row(s, j)) + g * K;
        for (int64_t d = 0; d < K; d += 16) {
            v_store_n(a + d, v_add(v_load_n(a + d, K - d), v_load(dk + j * Kp + d)), K - d);
            v_store_n(b + d, v_add(v_load_n(b + d, K - d), v_load(dv + j * Kp + d)), K - d);
        }
    }
}

/* A task is a family (a sequence and those that use its keys, in order) and a kv head. One thread adds up everything
 * that reaches a key, so no two threads ever write the same row, and the order is fixed. */
static void attention_grad_bins(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct attn_work *p = ctx;
    for (int64_t i = p->cut[begin]; i < p->cut[end]; i++)
        for (int32_t s = p->task[i].seq; s >= 0; s = p->next[s])
            attention_grad_seq(p, &p->seq[s], p->task[i].g, p->scratch + thread * p->scratch_floats);
}
