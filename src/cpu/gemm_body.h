/* The one matrix micro-kernel and the loops around it. Every product in the engine, attention included, is a call of
 * `micro`. It multiplies up to MICRO_ROWS rows by V16_NV*16 columns. The reduction index ascends strictly, with one
 * fused multiply-add for each step and output. Where the reduction is split, the accumulators are spilled to c as f32,
 * which changes no bit. */
enum { MICRO_ROWS = 6 };

typedef void micro_fn(int64_t kc, const float *a, int64_t rs, int64_t ks, const float *b, int64_t bks, float *c,
                      int64_t ldc, int64_t nc, const float *bias, enum micro_init init);

/* The reduction itself. `ahead` (or NULL) is what will be wanted next, laid out like b. It is fetched at the pace at
 * which b is used up, because no hardware prefetcher follows a block table. */
ALWAYS_INLINE void micro_steps(const int mr, const int nv, v16 acc[MICRO_ROWS][V16_NV], int64_t kc, const float *a,
                               int64_t rs, int64_t ks, const float *b, int64_t bks, const float *ahead) {
    for (int64_t k = 0; k < kc; k++) {
        v16 bv[V16_NV];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            bv[j] = v_load(b + 16 * j);
            if (ahead) __builtin_prefetch(ahead + k * bks + 16 * j);
        }
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            v16 av = v_set1(a[i * rs]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] = v_fma(av, bv[j], acc[i][j]);
        }
        a += ks;
        b += bks;
    }
}

ALWAYS_INLINE void micro_store(const int mr, const int nv, v16 acc[MICRO_ROWS][V16_NV], float *c, int64_t ldc,
                               int64_t nc) {
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            if (j == nv - 1)
                v_store_n(c + i * ldc + 16 * j, acc[i][j], nc - 16 * j);
            else
                v_store(c + i * ldc + 16 * j, acc[i][j]);
        }
}

ALWAYS_INLINE void micro_body(const int mr, const int nv, int64_t kc, const float *a, int64_t rs, int64_t ks,
                              const float *b, int64_t bks, float *c, int64_t ldc, int64_t nc, const float *bias,
                              enum micro_init init) {
    v16 acc[MICRO_ROWS][V16_NV];
    if (init == INIT_ZERO) {
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] = v_zero();
    } else {
        const float *src = init == INIT_BIAS ? bias : c;
        const int64_t step = init == INIT_BIAS ? 0 : ldc;
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++)
                acc[i][j] =
                    j == nv - 1 ? v_load_n(src + i * step + 16 * j, nc - 16 * j) : v_load(src + i * step + 16 * j);
    }
    micro_steps(mr, nv, acc, kc, a, rs, ks, b, bks, NULL);
    micro_store(mr, nv, acc, c, ldc, nc);
}

#define MICRO(mr, nv)                                                                                              \
    static __attribute__((noinline)) void micro_##mr##x##nv(int64_t kc, const float *a, int64_t rs, int64_t ks,    \
                                                            const float *b, int64_t bks, float *c, int64_t ldc,    \
                                                            int64_t nc, const float *bias, enum micro_init init) { \
        micro_body(mr, nv, kc, a, rs, ks, b, bks, c, ldc, nc, bias, init);                                         \
    }
#define MICRO_ALL(nv) MICRO(1, nv) MICRO(2, nv) MICRO(3, nv) MICRO(4, nv) MICRO(5, nv) MICRO(6, nv)
#define MICRO_ROW(nv) \
    { micro_1x##nv, micro_2x##nv, micro_3x##nv, micro_4x##nv, micro_5x##nv, micro_6x##nv }
MICRO_ALL(1)
#if V16_NV == 4
MICRO_ALL(2)
MICRO_ALL(3)
MICRO_ALL(4)
static micro_fn *const micro_table[V16_NV][MICRO_ROWS] = {MICRO_ROW(1), MICRO_ROW(2), MICRO_ROW(3), MICRO_ROW(4)};
#else
static micro_fn *const micro_table[V16_NV][MICRO_ROWS] = {MICRO_ROW(1)};
#endif

/* c [m rows, nc columns] (+)= a b, for any nc. Rows of b are bks apart, and padded to a multiple of 16 columns. */
static void micro_block(int64_t m, int64_t nc, int64_t kc, const float *a, int64_t rs, int64_t ks, const float *b,
                        int64_t bks, float *c, int64_t ldc, const float *bias, enum micro_init init) {
    for (int64_t j = 0; j < nc; j += 16 * V16_NV) {
        const int64_t w = i64_min(nc - j, 16 * V16_NV);
        micro_fn *const *fn = micro_table[(w + 15) / 16 - 1];
        for (int64_t i = 0; i < m;) {
            int64_t mr = i64_min(m - i, MICRO_ROWS);
            /* 7 rows are cut into 4+3, not 6+1. */
            if (m - i > MICRO_ROWS && m - i < 2 * MICRO_ROWS) mr = (m - i + 1) / 2;
            fn[mr - 1](kc, a + i * rs, rs, ks, b + j, bks, c + i * ldc + j, ldc, w, bias ? bias + j : NULL, init);
            i += mr;
        }
    }
}

static void gemm_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct gemm *g = ctx;
    const int64_t panels = (g->N + PANEL - 1) / PANEL;
    float *scratch = g->b_ld || g->coded ? g->scratch + (int64_t)thread * GEMM_KC * PANEL : NULL;
    for (int64_t item = begin; item < end; item++) {
        const int64_t panel = g->rows_outer ? item % panels : item / g->n_chunks;
        const int64_t r0 = (g->rows_outer ? item / panels : item % g->n_chunks) * g->chunk;
        const int64_t n0 = panel * PANEL, nc = i64_min(PANEL, g->N - n0), m = i64_min(g->chunk, g->M - r0);
        const float *a = g->a + r0 * g->a_rs;
        float *c = g->c + r0 * g->ldc + n0;
        const float *bias = g->bias ? g->bias + n0 : NULL;
        enum micro_init init = g->accumulate ? INIT_LOAD : bias ? INIT_BIAS : INIT_ZERO;
        int64_t k0 = 0;
        do { /* This runs once for an empty reduction, which still writes c. */
            const int64_t kc = i64_min(GEMM_KC, g->K - k0);
            const float *b;
            if (g->coded) {
                if (g->b_ld)
                    coded_rows_f32(g->coded, k0, kc, n0, scratch);
                else
                    coded_columns_f32(g->coded, k0, kc, n0, scratch);
                b = scratch;
            } else if (g->b_ld) {
                /* The block is copied, so that a stride of whole pages cannot throw it out of the first-level cache. */
                const int64_t padded = (nc + 15) & ~(int64_t)15;
                for (int64_t k = 0; k < kc; k++) {
                    const float *src = g->b + (k0 + k) * g->b_ld + n0;
                    for (int64_t j = 0; j < padded; j += 16)
                        v_store(scratch + k * PANEL + j, j + 16 <= nc ? v_load(src + j) : v_load_n(src + j, nc - j));
                }
                b = scratch;
            } else {
                b = g->b + (panel * g->K + k0) * PANEL;
            }
            micro_block(m, nc, kc, a + k0 * g->a_ks, g->a_rs, g->a_ks, b, PANEL, c, g->ldc, bias, init);
            init = INIT_LOAD;
            k0 += GEMM_KC;
        } while (k0 < g->K);
    }
}

/* Packs panels [begin,end) of w [N,K]: packed[panel][k][j] = w[panel*PANEL + j][k], with zeros beyond N. */
static void pack_panels(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct pack_args *p = ctx;
    for (int64_t panel = begin; panel < end; panel++) {
        float *dst = p->packed + panel * p->K * PANEL;
        const int64_t nc = i64_min(PANEL, p->N - panel * PANEL);
        for (int64_t k0 = 0; k0 < p->K; k0 += 16) {
            const int64_t k1 = i64_min(k0 + 16, p->K);
            for (int64_t j = 0; j < nc; j++) {
                const float *src = p->w + (panel * PANEL + j) * p->K;
                for (int64_t k = k0; k < k1; k++) dst[k * PANEL + j] = src[k];
            }
            for (int64_t k = k0; k < k1; k++)
                for (int64_t j = nc; j < PANEL; j++) dst[k * PANEL + j] = 0;
        }
    }
}
