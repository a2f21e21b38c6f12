#include "cpu/bf16_pairs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Less work than this stays with the caller's thread. This changes no bit. */
enum { PAIR_MIN_PRODUCT = 1 << 19, PAIR_MIN_ROUND = 1 << 15, HUGE_PAGE = 1 << 21 };

void *packed_alloc(size_t bytes) {
    if (bytes < 2 * HUGE_PAGE) return xaligned(bytes);
    const size_t rounded = (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    void *p = aligned_alloc(HUGE_PAGE, rounded);
    /* This says that memory has run out. */
    if (!p) return xaligned(bytes);
    madvise(p, rounded, MADV_HUGEPAGE);
    memset(p, 0, rounded);
    return p;
}

void pair_space_free(struct pair_space *s) {
    free(s->a);
    free(s->b);
    free(s->scratch);
    s->a = s->b = s->scratch = NULL;
}

static uint16_t *pair_grow(uint16_t **p, int64_t *cap, int64_t want) {
    if (*cap < want) {
        free(*p);
        *p = packed_alloc((size_t)want * sizeof **p);
        *cap = want;
    }
    return *p;
}

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

static uint16_t *pair_at(uint16_t *packed, int64_t k_pad, int64_t n, int64_t k) {
    return packed + n / PAIR_PANEL * k_pad * PAIR_PANEL + (k / 2 * PAIR_PANEL + n % PAIR_PANEL) * 2 + k % 2;
}

struct put_work {
    uint16_t *packed;
    int64_t row, rows, K;
    const uint16_t *src; /* [rows][ld] */
    int64_t ld;
};

/* Panels are cut over threads. Of each row a panel takes its part, a cache line at a time, so that the scattered stores
 * stay within a few pages. */
static void put_panels(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct put_work *p = ctx;
    const int64_t k_pad = pair_pad(p->K), first = i64_max(p->row, begin * PAIR_PANEL),
                  last = i64_min(p->row + p->rows, end * PAIR_PANEL);
    for (int64_t n0 = first; n0 < last;) {
        const int64_t n1 = i64_min(last, (n0 / PAIR_PANEL + 1) * PAIR_PANEL);
        for (int64_t k0 = 0; k0 < p->K; k0 += 32) {
            const int64_t k1 = i64_min(k0 + 32, p->K);
            for (int64_t n = n0; n < n1; n++) {
                const uint16_t *src = p->src + (n - p->row) * p->ld;
                uint16_t *dst = pair_at(p->packed, k_pad, n, k0);
                for (int64_t k = k0; k < k1; k++) dst[(k - k0) / 2 * PAIR_PANEL * 2 + k % 2] = src[k];
            }
        }
        n0 = n1;
    }
}

static void put_rows(struct pair_space *s, struct weight *w, int64_t row, int64_t rows, const uint16_t *src,
                     int64_t ld) {
    if (!w->packed)
        w->packed = packed_alloc((size_t)(pair_panels(w->N) * PAIR_PANEL * pair_pad(w->K)) * sizeof(uint16_t));
    struct put_work p = {.packed = w->packed, .row = row, .rows = rows, .K = w->K, .src = src, .ld = ld};
    pool_for(s->pool, pair_panels(w->N), 1, put_panels, &p);
}

void pairs_weight_put(struct pair_space *s, struct weight *w, int64_t row, int64_t rows, const uint16_t *src) {
    ASSERT(w->dt == DT_BF16 && row >= 0 && rows >= 0 && row + rows <= w->N);
    put_rows(s, w, row, rows, src, w->K);
}

void pairs_weight_get(const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    ASSERT(w->dt == DT_BF16 && w->packed && row >= 0 && rows >= 0 && row + rows <= w->N);
    const int64_t k_pad = pair_pad(w->K);
    for (int64_t n = row; n < row + rows; n++)
        for (int64_t k = 0; k < w->K; k++) *dst++ = *pair_at(w->packed, k_pad, n, k);
}

/* Packs the float32 master, a slab of rows at a time: the rows are rounded, then put. */
void pairs_weight_pack(struct pair_space *s, struct weight *w) {
    ASSERT(w->w);
    const int64_t lda = pair_pad(w->K),
                  slab = i64_max(PAIR_PANEL, (1 << 20) / i64_max(1, lda) / PAIR_PANEL * PAIR_PANEL);
    for (int64_t row = 0; row < w->N || row == 0; row += slab) {
        const int64_t rows = i64_min(slab, w->N - row);
        uint16_t *t = pair_grow(&s->a, &s->a_cap, rows * lda);
        struct round_args r = {tensor_full(w->w + row * w->K, rows, w->K), t, lda};
        pool_for(s->pool, rows, PAIR_PANEL, s->k->round, &r);
        put_rows(s, w, row, rows, t, lda);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Rounds the rows of x to bf16. Whole tiles of 16 rows can be read: AMX reads them, and drops what it makes of the
 * rest. */
static const uint16_t *rounded(struct pair_space *s, struct tensor x, int64_t *lda) {
    *lda = pair_pad(x.cols);
    const int64_t rows = (x.rows + 15) & ~(int64_t)15;
    struct round_args r = {x, pair_grow(&s->a, &s->a_cap, rows * *lda), *lda};
    const int64_t grain = i64_max(1, PAIR_MIN_ROUND / i64_max(1, x.cols));
    pool_for(s->pool, x.rows, grain, s->k->round, &r);
    return r.out;
}

static void run_pairs(struct pair_space *s, struct gemm16 *g) {
    if (g->M <= 0 || g->N <= 0) return;
    const int64_t threads = pool_threads(s->pool), panels = pair_panels(g->N);
    /* Many rows meet a panel in each pass, as in run_gemm of cpu.c, as far as they stay in the second-level cache, but
     * in equal shares. Multiples of 48 are whole passes of 12 rows and whole tiles of 16. Where every item must
     * transpose or decode its part of b first, more rows pay for that. */
    const bool made = g->b_rows || g->coded;
    const int64_t fits = (512 << 10) / (int64_t)sizeof(uint16_t) / i64_max(1, g->K) / 48 * 48;
    g->chunk = i64_min(g->M, made ? 1536 : i64_max(48, i64_min(192, fits)));
    /* A chunk of rows meets all panels while it is in that cache, unless b would have to come from memory each time. */
    g->rows_outer = !g->coded && (g->M > g->N || g->N * g->K <= 6 << 20);
    /* The parts have one size, as far as whole tiles allow. */
    const int64_t parts = (g->M + g->chunk - 1) / g->chunk;
    g->chunk = ((g->M + parts - 1) / parts + 15) & ~(int64_t)15;
    for (;;) {
        g->n_chunks = (g->M + g->chunk - 1) / g->chunk;
        const int64_t items = panels * g->n_chunks, rounds = (items + threads - 1) / threads;
        if (g->chunk <= (g->coded ? 192 : 48) || 10 * items >= 9 * rounds * threads) break;
        g->chunk = (g->chunk / 2 + 47) / 48 * 48;
    }
    if (made) g->scratch = pair_grow(&s->scratch, &s->scratch_cap, threads * PAIR_SCRATCH);
    const bool small = g->M * g->N * g->K < PAIR_MIN_PRODUCT;
    pool_for(small ? NULL : s->pool, panels * g->n_chunks, 1, s->k->gemm, g);
}

void pairs_linear(struct pair_space *s, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                  bool accumulate) {
    struct gemm16 g = {.b = w->packed,
                       .coded = format_is_coded(w->format) ? w->packed : NULL,
                       .b_pad = pair_pad(w->K),
                       .c = y.data,
                       .ldc = y.ld,
                       .bias = bias,
                       .accumulate = accumulate,
                       .M = y.rows,
                       .N = w->N,
                       .K = w->K};
    g.a = rounded(s, x, &g.lda);
    run_pairs(s, &g);
}

void pairs_linear_dx(struct pair_space *s, struct tensor dx, struct tensor dy, const struct weight *w,
                     bool accumulate) {
    /* A long reduction (the LM head's) goes in steps that a cache can hold. This changes no bit, because sums go on in
     * dx. */
    enum { STEP = 4096 };
    const int64_t k_pad = pair_pad(w->K);
    int64_t n = 0;
    do { /* An empty reduction goes through once, too. */
        struct tensor part = tensor_cols(dy, n, w->N - n < 2 * STEP ? w->N - n : STEP);
        const bool coded = format_is_coded(w->format);
        struct gemm16 g = {.b = coded ? NULL : pair_panel(w->packed, n / PAIR_PANEL, k_pad),
                           .coded = coded ? w->packed : NULL,
                           .row0 = n,
                           .b_rows = true,
                           .b_pad = k_pad,
                           .c = dx.data,
                           .ldc = dx.ld,
                           .accumulate = accumulate || n > 0,
                           .M = dx.rows,
                           .N = w->K,
                           .K = part.cols};
        g.a = rounded(s, part, &g.lda);
        run_pairs(s, &g);
        n += part.cols;
    } while (n < w->N);
}

void pairs_linear_dw(struct pair_space *s, float *dw, struct tensor dy, struct tensor x) {
    const int64_t lda = pair_pad(x.rows), rows = (dy.cols + 15) & ~(int64_t)15;
    struct round_args ra = {dy, pair_grow(&s->a, &s->a_cap, rows * lda), lda};
    pool_for(s->pool, dy.cols, 16, s->k->round_transposed, &ra);
    struct round_args rb = {x, pair_grow(&s->b, &s->b_cap, pair_panels(x.cols) * PAIR_PANEL * lda), lda};
    pool_for(s->pool, pair_panels(x.cols), 1, s->k->pack_transposed, &rb);
    struct gemm16 g = {.a = ra.out,
                       .lda = lda,
                       .b = rb.out,
                       .b_pad = lda,
                       .c = dw,
                       .ldc = x.cols,
                       .accumulate = true,
                       .M = dy.cols,
                       .N = x.cols,
                       .K = x.rows};
    run_pairs(s, &g);
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

struct embed_work {
    struct tensor x;
    const struct weight *table;
    const int32_t *ids;
};

static void embed_pairs(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct embed_work *p = ctx;
    const int64_t k_pad = pair_pad(p->table->K);
    for (int64_t t = begin; t < end; t++) {
        float *x = (float *)p->x.data + t * p->x.ld;
        for (int64_t k = 0; k < p->x.cols; k++) {
            const uint32_t u = (uint32_t)*pair_at(p->table->packed, k_pad, p->ids[t], k) << 16;
            memcpy(x + k, &u, sizeof u);
        }
    }
}

void pairs_embed(struct pair_space *s, struct tensor x, const struct weight *table, const int32_t *ids) {
    struct embed_work p = {x, table, ids};
    pool_for(s->pool, x.rows, 4, embed_pairs, &p);
}
