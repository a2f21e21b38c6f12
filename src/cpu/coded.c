#include "cpu/coded.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/bf16_pairs.h"

const struct coded_part *coded_part_of(const struct coded *c, int64_t n) {
    for (int i = 0; i < c->n_parts; i++)
        if (n >= c->part[i].row && n < c->part[i].row + c->part[i].m.rows) return &c->part[i];
    return NULL;
}

void coded_free(struct coded *c) {
    if (!c) return;
    for (int i = 0; i < c->n_parts; i++) coded_release(&c->part[i].m);
    free(c->part);
    free(c->codes);
    free(c);
}

static struct coded *coded_new(const struct weight *w) {
    struct coded *c = xcalloc(1, sizeof *c);
    *c = (struct coded){.format = w->format, .N = w->N, .K = w->K, .k_pad = pair_pad(w->K)};
    c->codes = packed_alloc((size_t)(pair_panels(w->N) * (c->k_pad / 2) / coded_unit_pairs(c) * CODED_UNIT));
    return c;
}

/* Copies `bytes` bytes of src to *at, moves *at behind them (to a multiple of 16), and returns the copy; NULL, and *at
 * stays, when src is NULL. */
static void *keep(char **at, const void *src, size_t bytes) {
    void *p = *at;
    if (!src) return NULL;
    memcpy(p, src, bytes);
    *at += (bytes + 15) & ~(size_t)15;
    return p;
}

/* A copy of m without its codes. Its scales and tables lie in one piece of memory, own. */
static struct coded_matrix scales_of(const struct coded_matrix *m) {
    struct coded_matrix own = *m;
    const bool nf4 = m->format == FORMAT_NF4;
    const int64_t blocks =
        nf4 ? nf4_blocks(m->rows, m->K) : format_blocks(m->rows, FP8_BLOCK) * format_blocks(m->K, FP8_BLOCK);
    const size_t groups = (size_t)format_blocks(blocks, NF4_NESTED), each = sizeof(float), n = (size_t)blocks;
    char *at = xmalloc((m->absmax ? n : n * each) + (nf4 ? (groups + NF4_SCALES + NF4_CODES) * each : 0) + 5 * 16);
    own.own = at;
    own.codes = NULL;
    own.scale = keep(&at, m->absmax ? NULL : m->scale, n * each);
    own.map = keep(&at, nf4 ? m->map : NULL, NF4_CODES * each);
    own.nested = keep(&at, m->absmax ? m->nested : NULL, groups * each);
    own.nested_map = keep(&at, m->absmax ? m->nested_map : NULL, NF4_SCALES * each);
    own.absmax = keep(&at, m->absmax, n);
    return own;
}

struct coded_put_work {
    struct coded *c;
    int64_t row;
    const struct coded_matrix *m;
};

/* Threads share the panels, not the rows: a byte of NF4 holds codes of two rows of a panel. */
static void put_panels(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct coded_put_work *p = ctx;
    struct coded *c = p->c;
    const int64_t first = i64_max(p->row, begin * PAIR_PANEL), last = i64_min(p->row + p->m->rows, end * PAIR_PANEL);
    for (int64_t n = first; n < last; n++) {
        uint8_t *const codes = c->codes + (coded_unit(c, n / PAIR_PANEL, 0) - c->codes);
        const int64_t j = n % PAIR_PANEL, from = (n - p->row) * c->K;
        for (int64_t k = 0; k < c->K; k++) {
            const int64_t word = 2 * (j % 8) + k % 2, pair = k / 2;
            if (c->format == FORMAT_FP8) {
                codes[pair * CODED_UNIT + word * 4 + j / 8] = p->m->codes[from + k];
                continue;
            }
            const int64_t v = pair % 2 * 4 + j / 8;
            uint8_t *const at = codes + pair / 2 * CODED_UNIT + word * 4 + v / 2;
            const unsigned code = nf4_code(p->m, from + k);
            *at = (uint8_t)(v % 2 ? (*at & 0x0f) | code << 4 : (*at & 0xf0) | code);
        }
    }
}

void coded_put(struct pool *pool, struct weight *w, int64_t row, const struct coded_matrix *m) {
    ASSERT(m->format == w->format && m->K == w->K && row >= 0 && row + m->rows <= w->N);
    if (!w->packed) w->packed = coded_new(w);
    struct coded *c = w->packed;
    int i = 0;
    while (i < c->n_parts && c->part[i].row != row) i++;
    if (i == c->n_parts)
        c->part = xrealloc(c->part, (size_t)++c->n_parts * sizeof *c->part);
    else
        coded_release(&c->part[i].m);
    c->part[i] = (struct coded_part){row, scales_of(m)};
    struct coded_put_work p = {c, row, m};
    pool_for(pool, pair_panels(c->N), 1, put_panels, &p);
}

/* The number at [n,k] in the bits of bfloat16. */
static uint16_t value_at(const struct coded *c, const struct coded_part *part, int64_t n, int64_t k) {
    const int64_t j = n % PAIR_PANEL, word = 2 * (j % 8) + k % 2, pair = k / 2, row = n - part->row;
    const uint8_t *const unit = coded_unit(c, n / PAIR_PANEL, pair) + word * 4;
    const struct coded_matrix *m = &part->m;
    if (c->format == FORMAT_FP8) {
        const int64_t block = row / FP8_BLOCK * format_blocks(c->K, FP8_BLOCK) + k / FP8_BLOCK;
        return coded_round(fp8_value(unit[j / 8]) * m->scale[block]);
    }
    const int64_t v = pair % 2 * 4 + j / 8;
    const unsigned code = unit[v / 2] >> (v % 2 * 4) & 15u;
    return coded_round(m->map[code] * nf4_scale(m, (row * c->K + k) / NF4_BLOCK));
}

void coded_get(const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    const struct coded *c = w->packed;
    ASSERT(c && row >= 0 && row + rows <= c->N);
    for (int64_t n = row; n < row + rows; n++) {
        const struct coded_part *part = coded_part_of(c, n);
        ASSERT(part);
        for (int64_t k = 0; k < c->K; k++) *dst++ = value_at(c, part, n, k);
    }
}
