/* Matrices in codes: how their codes lie, how rows are put and got. coded_body.h has the products' part,
 * tensor/formats.h what codes mean. */
#ifndef KERNELRL_CPU_CODED_H
#define KERNELRL_CPU_CODED_H

#include "cpu/cpu.h"

/* Codes lie in units of CODED_UNIT bytes: sixteen words of 32 bits. Word l holds codes of the panel's outputs l/2,
 * 8 + l/2, 16 + l/2 and 24 + l/2, at k = 2 pair + l % 2. A unit of FP8 is one pair, and byte v of word l is output
 * 8 v + l/2's code. A unit of NF4 is two pairs, and half-byte v of word l, from the low one on, is output
 * 8 (v%4) + l/2's code in pair v/4 of the unit. So a vector of words, shifted, gives what becomes sixteen neighbouring
 * numbers of a packed bf16 panel. */
enum { CODED_UNIT = 64, CODED_KC = 128 /* pairs that are decoded at a time */ };
/* How many pairs of k a unit holds. */
static inline int64_t coded_unit_pairs(const struct coded *c) { return c->format == FORMAT_NF4 ? 2 : 1; }
static inline const uint8_t *coded_unit(const struct coded *c, int64_t panel, int64_t pair) {
    return c->codes + (panel * (c->k_pad / 2) + pair) / coded_unit_pairs(c) * CODED_UNIT;
}
/* The part that row n is of; NULL when no part has that row. */
const struct coded_part *coded_part_of(const struct coded *c, int64_t n);

/* Puts a matrix in codes at rows [row, row + m->rows) of w; what m points to is copied. A part that was put at the same
 * row before is replaced. */
void coded_put(struct pool *pool, struct weight *w, int64_t row, const struct coded_matrix *m);
/* Decodes rows [row, row + rows) to dst [rows][K], in the bits of bfloat16. All of them have been put. */
void coded_get(const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void coded_free(struct coded *c);

#endif
