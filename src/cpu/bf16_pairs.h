/* Products with bf16 weights: storage of packed weights, rounding of the other operand, cutting of the work. See
 * bf16_pairs.c; tensor/ops.h and tensor/backend.h have the contracts. */
#ifndef KERNELRL_CPU_BF16_PAIRS_H
#define KERNELRL_CPU_BF16_PAIRS_H

#include "cpu/cpu.h"

/* What the products need beside their operands. Its memory grows to a high-water mark. */
struct pair_space {
    const struct cpu_pair_kernels *k;
    struct pool *pool;
    uint16_t *a, *b, *scratch;
    int64_t a_cap, b_cap, scratch_cap;
};
void pair_space_free(struct pair_space *s);

/* Returns zeroed memory for packed weights, aligned to 64 bytes, on huge pages where the system grants them. It is
 * released by free. */
void *packed_alloc(size_t bytes);

void pairs_weight_pack(struct pair_space *s, struct weight *w);
void pairs_weight_put(struct pair_space *s, struct weight *w, int64_t row, int64_t rows, const uint16_t *src);
void pairs_weight_get(const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void pairs_linear(struct pair_space *s, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                  bool accumulate);
void pairs_linear_dx(struct pair_space *s, struct tensor dx, struct tensor dy, const struct weight *w, bool accumulate);
void pairs_linear_dw(struct pair_space *s, float *dw, struct tensor dy, struct tensor x);
void pairs_embed(struct pair_space *s, struct tensor x, const struct weight *table, const int32_t *ids);

#endif
