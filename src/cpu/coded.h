/* Matrices in codes: how their codes lie, how rows are put and got. coded_body.h has the products' part,
 * tensor/formats.h what codes mean. */
#ifndef KERNELRL_CPU_CODED_H
#define KERNELRL_CPU_CODED_H

#include "cpu/cpu.h"

/* Codes come in units of CODED_UNIT bytes, sixteen words of 32 bits. Word l is of the outputs l/2, 8 + l/2, 16 + l/2
 * and 24 + l/2 of the panel, for k even (l even) or odd. FP8: a unit is a pair of k, and byte v of a word is of output
 * 8 v + l/2. NF4: a unit is two pairs, and half-byte v is of output 8 (v%4) + l/2 of pair v/4. So a vector of words,
 * shifted, gives what becomes sixteen neighbouring numbers of a packed bf16 panel. */
enum { CODED_UNIT = 64, CODED_KC = 128 /* pairs that are decoded at a time */ };
/* Pairs of k of a unit. */
static inline int64_t coded_unit_pairs(const struct coded *c) { return c->format == FORMAT_NF4 ? 2 : 1; }
static inline const uint8_t *coded_unit(const struct coded *c, int64_t panel, int64_t pair) {
    return c->codes + (panel * (c->k_pad / 2) + pair) / coded_unit_pairs(c) * CODED_UNIT;
}
/* The part that row n is of; NULL: rows behind the last. */
const struct coded_part *coded_part_of(const struct coded *c, int64_t n);

void coded_put(struct pool *pool, struct weight *w, int64_t row, const struct coded_matrix *m);
void coded_get(const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void coded_free(struct coded *c);

#endif
