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

/* Copies what each block of m has in the same way, `each` bytes a block. in_panels is that of struct coded_part. */
static void *keep_blocks(char **at, const void *src, size_t each, const struct coded_matrix *m, int64_t blocks,
                         bool in_panels) {
    if (!src || !in_panels) return keep(at, src, (size_t)blocks * each);
    const int64_t across = m->K / NF4_BLOCK, rows = pair_panels(m->rows) * PAIR_PANEL;
    char *const p = *at;
    memset(p, 0, (size_t)(rows * across) * each);
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t b = 0; b < across; b++) {
            const int64_t to = (row / PAIR_PANEL * across + b) * PAIR_PANEL + row % PAIR_PANEL;
            memcpy(p + (size_t)to * each, (const char *)src + (size_t)(row * across + b) * each, each);
        }
    *at += ((size_t)(rows * across) * each + 15) & ~(size_t)15;
    return p;
}

/* A copy of m without its codes, for rows from `row` on. Its scales and tables lie in one piece of memory, own. */
static struct coded_part scales_of(int64_t row, const struct coded_matrix *m) {
    const bool nf4 = m->format == FORMAT_NF4;
    const int64_t blocks =
        nf4 ? nf4_blocks(m->rows, m->K) : format_blocks(m->rows, FP8_BLOCK) * format_blocks(m->K, FP8_BLOCK);
    /* Blocks are counted by 32 bits where scales of a panel are read together. */
    const bool in_panels = nf4 && m->K % NF4_BLOCK == 0 && row % PAIR_PANEL == 0 && blocks < INT32_MAX;
    struct coded_part part = {.row = row, .m = *m, .in_panels = in_panels};
    struct coded_matrix *own = &part.m;
    const size_t groups = (size_t)format_blocks(blocks, NF4_NESTED), each = sizeof(float);
    const size_t n = (size_t)(in_panels ? pair_panels(m->rows) * PAIR_PANEL * (m->K / NF4_BLOCK) : blocks);
    char *at = xmalloc((m->absmax ? n : n * each) + (nf4 ? (groups + NF4_SCALES + NF4_CODES) * each : 0) + 5 * 16);
    own->own = at;
    own->codes = NULL;
    own->scale = keep_blocks(&at, m->absmax ? NULL : m->scale, each, m, blocks, in_panels);
    own->map = keep(&at, nf4 ? m->map : NULL, NF4_CODES * each);
    own->nested = keep(&at, m->absmax ? m->nested : NULL, groups * each);
    own->nested_map = keep(&at, m->absmax ? m->nested_map : NULL, NF4_SCALES * each);
    own->absmax = keep_blocks(&at, m->absmax, 1, m, blocks, in_panels);
    return part;
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
            const int64_t pair = k / 2, word = 2 * (j % 8) + k % 2;
            if (c->format == FORMAT_FP8) {
                codes[pair * CODED_UNIT + coded_fp8_place(2 * j + k % 2)] = p->m->codes[from + k];
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
    c->part[i] = scales_of(row, m);
    struct coded_put_work p = {c, row, m};
    pool_for(pool, pair_panels(c->N), 1, put_panels, &p);
}

/* The number at [n,k] in the bits of bfloat16. */
static uint16_t value_at(const struct coded *c, const struct coded_part *part, int64_t n, int64_t k) {
    const int64_t j = n % PAIR_PANEL, word = 2 * (j % 8) + k % 2, pair = k / 2, row = n - part->row;
    const uint8_t *const unit = coded_unit(c, n / PAIR_PANEL, pair);
    if (c->format == FORMAT_FP8)
        return coded_round(fp8_value(unit[coded_fp8_place(2 * j + k % 2)]) * coded_scale(part, row, k));
    const int64_t v = pair % 2 * 4 + j / 8;
    const unsigned code = unit[word * 4 + v / 2] >> (v % 2 * 4) & 15u;
    return coded_round(part->m.map[code] * coded_scale(part, row, k));
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
