/* Matrices in codes: how their codes lie, how rows are put and got. coded_body.h has the products' part,
 * tensor/formats.h what codes mean. */
#ifndef KERNELRL_CPU_CODED_H
#define KERNELRL_CPU_CODED_H

#include "cpu/cpu.h"

/* Codes lie in units of CODED_UNIT bytes, and what becomes of a unit lies in the order of a packed bf16 panel: number
 * 2 j + k % 2 of a pair is output j's.
 * A unit of FP8 is one pair, and the code of number e is its byte coded_fp8_place(e): unpacking the bytes of each
 * sixteen gives numbers in their order.
 * A unit of NF4 is two pairs, in sixteen words of 32 bits. Half-byte v of word l, from the low one on, is the code of
 * number 16 (v%4) + l in pair v/4 of the unit. So a vector of words, shifted, gives what becomes sixteen neighbours. */
enum { CODED_UNIT = 64, CODED_KC = 128 /* pairs that are decoded at a time */ };
static inline int64_t coded_fp8_place(int64_t e) { return e % 32 / 8 * 16 + e / 32 * 8 + e % 8; }
/* How many pairs of k a unit holds. */
static inline int64_t coded_unit_pairs(const struct coded *c) { return c->format == FORMAT_NF4 ? 2 : 1; }
static inline const uint8_t *coded_unit(const struct coded *c, int64_t panel, int64_t pair) {
    return c->codes + (panel * (c->k_pad / 2) + pair) / coded_unit_pairs(c) * CODED_UNIT;
}
/* The part that row n is of; NULL when no part has that row. */
const struct coded_part *coded_part_of(const struct coded *c, int64_t n);
/* The scale of the weight at [row,k] of a part. */
static inline float coded_scale(const struct coded_part *part, int64_t row, int64_t k) {
    const struct coded_matrix *m = &part->m;
    if (m->format == FORMAT_FP8) return m->scale[row / FP8_BLOCK * format_blocks(m->K, FP8_BLOCK) + k / FP8_BLOCK];
    const int64_t block = (row * m->K + k) / NF4_BLOCK;
    if (!part->in_panels) return nf4_scale(m, block);
    const int64_t at = (row / PAIR_PANEL * (m->K / NF4_BLOCK) + k / NF4_BLOCK) * PAIR_PANEL + row % PAIR_PANEL;
    return m->absmax ? nf4_nested_scale(m, m->absmax[at], block) : m->scale[at];
}

/* Puts a matrix in codes at rows [row, row + m->rows) of w; what m points to is copied. A part that was put at the same
 * row before is replaced. */
void coded_put(struct pool *pool, struct weight *w, int64_t row, const struct coded_matrix *m);
/* Decodes rows [row, row + rows) to dst [rows][K], in the bits of bfloat16. All of them have been put. */
void coded_get(const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void coded_free(struct coded *c);

#endif
