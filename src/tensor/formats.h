/* formats: how a matrix of weights is held, apart from the type that its products compute in. A format is a row of the
 * table below: how many numbers share a scale, what the matrix takes in memory, how its codes are decoded and made, and
 * whether it can be trained. A backend adds a packer (weight_put, weight_put_coded) and products.
 *
 * A matrix in codes means the bfloat16 matrix that decoding gives: code times scale in float32, rounded once to nearest
 * even. Everything computed with it has the bits that the decoded matrix would give. */
#ifndef KERNELRL_TENSOR_FORMATS_H
#define KERNELRL_TENSOR_FORMATS_H

#include "base/choice.h"
#include "base/pool.h"

/* The formats in codes. FP8 is E4M3: a byte a weight, and a scale for each 128 x 128 weights. NF4 is bitsandbytes' 4
 * bits: blocks of 64 weights, whose scales are 8 bits with scales of their own. */
#define CODED_FORMAT_LIST(X) X(FORMAT_FP8, fp8) X(FORMAT_NF4, nf4)
/* What the option base_dtype may say. */
#define BASE_DTYPE_LIST(X) X(BASE_AUTO, auto) X(BASE_BF16, bf16) CODED_FORMAT_LIST(X)

enum weight_format {
    FORMAT_F32,  /* float32 values, and packed copies where products want them */
    FORMAT_BF16, /* two bytes a weight */
    CHOICE_ENUM(CODED_FORMAT_LIST) FORMAT_COUNT
};

enum {
    FP8_BLOCK = 128,
    NF4_BLOCK = 64,
    NF4_NESTED_LOG2 = 8,
    NF4_NESTED = 1 << NF4_NESTED_LOG2,
    NF4_CODES = 16,
    NF4_SCALES = 256
};

/* A matrix [rows,K] in codes, in host memory, laid out as in the files of the Hub. Arrays are borrowed, but for `own`.
 * FP8: codes [rows][K]; scale [ceil(rows/128)][ceil(K/128)].
 * NF4: the weights row by row as one list; two a byte, the first in the high half. Weight i is
 * map[code] * (nested_map[absmax[i/64]] * nested[i/64/256] + offset), each operation rounded; without absmax it is
 * map[code] * scale[i/64]. */
struct coded_matrix {
    enum weight_format format;
    int64_t rows, K;
    const uint8_t *codes;
    const float *scale;
    const float *map;        /* [NF4_CODES] */
    const uint8_t *absmax;   /* NF4: a scale's code for each block; NULL: scale has the scales themselves */
    const float *nested;     /* a scale for each NF4_NESTED entries of absmax */
    const float *nested_map; /* [NF4_SCALES] */
    float offset;
    void *own; /* freed by coded_release; NULL: all is borrowed */
};

static inline bool format_is_coded(enum weight_format f) { return f > FORMAT_BF16; }

struct format {
    const char *name;
    int block_rows, block_cols; /* weights that share a scale; NF4's are counted along the whole list. 0: no scale */
    int bits;                   /* of a weight, without scales */
    bool trainable;
    /* Bytes of a matrix [rows,K] as a device holds it, scales and tables among them. */
    int64_t (*bytes)(int64_t rows, int64_t K);
    /* Weights [first, first + n) of the list, in the bits of bfloat16. NULL: not in codes. */
    void (*decode)(const struct coded_matrix *m, int64_t first, int64_t n, uint16_t *out);
    /* Makes codes of a bfloat16 matrix. The threads of the pool share the work; their number changes no bit. */
    void (*quantise)(const uint16_t *w, int64_t rows, int64_t K, struct pool *pool, struct coded_matrix *out);
};
const struct format *format_of(enum weight_format f);
/* -1: there is none of this name. */
int format_find(const char *name);

static inline int64_t format_blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }
static inline int64_t nf4_blocks(int64_t rows, int64_t K) { return format_blocks(rows * K, NF4_BLOCK); }

/* The value of an E4M3 code; 0x7f and 0xff, which are no numbers, must not come. */
float fp8_value(uint8_t code);
/* The scale of block b of a matrix in NF4, the first one from the scale's code. */
static inline float nf4_nested_scale(const struct coded_matrix *m, uint8_t code, int64_t b) {
    return m->nested_map[code] * m->nested[b / NF4_NESTED] + m->offset;
}
static inline float nf4_scale(const struct coded_matrix *m, int64_t b) {
    return m->absmax ? nf4_nested_scale(m, m->absmax[b], b) : m->scale[b];
}
static inline unsigned nf4_code(const struct coded_matrix *m, int64_t i) {
    return i % 2 ? m->codes[i / 2] & 15u : (unsigned)m->codes[i / 2] >> 4;
}
/* Nearest even; x is finite. */
static inline uint16_t coded_round(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
/* The limits that a file's scales and tables must keep. The products' fast ways rely on them.
 * No scale is larger in magnitude than this one, which no weight of a language model needs: FP8's products multiply a
 * scale by 2^120 first, which must not overflow. */
#define CODED_LARGEST_SCALE 64.0f
/* A scale is 0 or at least this, and an entry of NF4's table is 0 or at least CODED_SMALLEST_MAP in magnitude. Every
 * weight is then 0 or a normal number, and instructions that take subnormal numbers for zero give the bits of others.
 */
#define CODED_SMALLEST_SCALE 1e-30f
#define CODED_SMALLEST_MAP 1e-7f

/* quantise.c */
void fp8_quantise(const uint16_t *w, int64_t rows, int64_t K, struct pool *pool, struct coded_matrix *out);
void nf4_quantise(const uint16_t *w, int64_t rows, int64_t K, struct pool *pool, struct coded_matrix *out);
/* bitsandbytes' table of NF4 and its table of scales, ascending. */
extern const float nf4_map[NF4_CODES];
void nf4_nested_map(float map[NF4_SCALES]);
void coded_release(struct coded_matrix *m);
/* True: a part of m may begin at this row, because scales begin there, too. */
bool coded_rows_fit(const struct coded_matrix *m, int64_t row);
/* Rows [row, row + rows) of m, in m's arrays; coded_rows_fit(m, row) holds. */
struct coded_matrix coded_rows(const struct coded_matrix *m, int64_t row, int64_t rows);

#endif
