/* cuda_scratch: what the CUDA backend takes of a device's memory beside what a model asks it for, as functions of
 * shapes. The backend (src/cuda) allocates by these functions and the paper (tensor/counting.h) counts by them, so that
 * a plan made without a GPU is what a GPU is asked for. Functions give bytes unless they say otherwise; none of them
 * looks at what a tensor views. Left out are attention's work lists, about 50 bytes for each 64 query rows of a head,
 * and what cuBLASLt's search borrows while there is room (src/cuda/host/cublas.c). May be included by CUDA C++. */
#ifndef KERNELRL_TENSOR_CUDA_SCRATCH_H
#define KERNELRL_TENSOR_CUDA_SCRATCH_H

#include "tensor/formats.h"
#include "tensor/ops.h"

/* Memory that ops share, each call from its beginning. */
enum cuda_slab {
    CUDA_SCRATCH,    /* sums in parts: of gradients, norms and squares */
    CUDA_X16,        /* the factors of a product, in bfloat16 */
    CUDA_WIDE,       /* the reverse: bfloat16 operands in float32 */
    CUDA_Y32,        /* an output that does not line up; only tests have such */
    CUDA_PARTS,      /* parts of a long sum that are still to be added */
    CUDA_LORA_X,     /* the rows that LoRA's first half reads, in bfloat16 */
    CUDA_LORA_PART,  /* parts of that half's sums, */
    CUDA_LORA_COUNT, /* and how many of them are there */
    CUDA_OWN_KV,     /* keys and values of a training layer, as in a cache */
    CUDA_UNIT_PART,  /* attention of few query rows: results of units of keys, */
    CUDA_UNIT_COUNT, /* and how many of them are there */
    CUDA_CHUNKS,     /* sums over chunks of long rows of logits */
    CUDA_DRAWN,      /* ids of the last draw */
    CUDA_CODED,      /* a matrix in codes, expanded for one product */
    CUDA_SLABS
};

/* The size of a slab of `have` bytes once an op has asked it for `bytes`. */
static inline int64_t cuda_slab_bytes(int64_t have, int64_t bytes) {
    return bytes <= have ? have : bytes + bytes / 4 + 4096;
}
/* The ring that index arrays go through and the place that results wait in: their size once one op has put so many
 * bytes into them. A place of results of that size is allocated when the first result comes, a ring with the first
 * array. */
static inline int64_t cuda_doubled(int64_t from, int64_t bytes) {
    while (from < bytes) from *= 2;
    return from;
}
static inline int64_t cuda_ring_bytes(int64_t bytes) { return cuda_doubled((int64_t)8 << 20, 4 * bytes); }
static inline int64_t cuda_results_bytes(int64_t bytes) { return cuda_doubled((int64_t)4 << 20, 2 * bytes); }
/* Index arrays of a recorded pass; and how many passes are recorded at most. */
enum { CUDA_ARENA_BYTES = 1 << 20, CUDA_RECORDINGS = 96 };

static inline int64_t cuda_up256(int64_t bytes) { return (bytes + 255) & ~(int64_t)255; }
static inline int64_t cuda_parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }

/* ---- products ---------------------------------------------------------------------------------------------------- */

static inline bool cuda_lines_up(const void *p, int64_t ld, int64_t element) {
    return ((uintptr_t)p | (uintptr_t)(ld * element)) % 16 == 0;
}
/* Whether a product reads x where it is; other factors are rounded or copied to a slab, in so many bytes each. */
static inline bool cuda_is_factor(struct tensor x) {
    return x.dt == DT_BF16 && (x.cols % 8 != 0 || cuda_lines_up(x.data, x.ld, 2));
}
static inline int64_t cuda_factor_bytes(struct tensor x) { return cuda_up256(x.rows * x.cols * 2); }
static inline int64_t cuda_wide_bytes(struct tensor x) {
    return x.dt == DT_BF16 ? cuda_up256(x.rows * x.cols * (int64_t)sizeof(float)) : 0;
}

/* A product y += x W^T with a matrix [N,K] so long and narrow that over few rows its outputs do not occupy a GPU is cut
 * along K into so many products (1: it is not). Over few rows their results lie side by side in CUDA_PARTS. */
enum { CUDA_LONG_PARTS = 4, CUDA_LONG_ROWS = 256, CUDA_NARROW = 2048, CUDA_LONG = 4096 };
static inline int64_t cuda_long_parts(int64_t N, int64_t K) {
    return N <= CUDA_NARROW && N % 8 == 0 && K >= CUDA_LONG && K % (64 * CUDA_LONG_PARTS) == 0 ? CUDA_LONG_PARTS : 1;
}
static inline int64_t cuda_long_bytes(int64_t rows, int64_t N) {
    return rows <= CUDA_LONG_ROWS ? CUDA_LONG_PARTS * rows * N * (int64_t)sizeof(float) : 0;
}

/* Gradients of thin matrices over T rows, wide [T,N] and thin [T,R]: whether they have a kernel of their own, into how
 * many parts of how many rows that cuts the rows on a device of so many multiprocessors (as many as fit at a time, two
 * blocks each), and where these lie. */
enum { CUDA_THIN_COLS = 64, CUDA_THIN_R = 32, CUDA_THIN_PARTS = 64, CUDA_THIN_ROWS = 128 };
static inline bool cuda_thin_takes(int64_t T, int64_t N, int64_t R) {
    return T >= 512 && N <= 2048 && R <= 192 && R % 8 == 0 && N % 8 == 0;
}
static inline int64_t cuda_thin_part_rows(int64_t multiprocessors, int64_t T, int64_t N, int64_t R) {
    const int64_t blocks = cuda_parts_of(N, CUDA_THIN_COLS) * cuda_parts_of(R, CUDA_THIN_R);
    const int64_t fit = 2 * multiprocessors / blocks;
    const int64_t most = fit < 1 ? 1 : fit < CUDA_THIN_PARTS ? fit : CUDA_THIN_PARTS;
    return cuda_parts_of(cuda_parts_of(T, most), CUDA_THIN_ROWS) * CUDA_THIN_ROWS;
}
static inline int64_t cuda_thin_parts(int64_t multiprocessors, int64_t T, int64_t N, int64_t R) {
    return cuda_parts_of(T, cuda_thin_part_rows(multiprocessors, T, N, R));
}
/* Most multiprocessors of any device: what a plan counts with. */
enum { CUDA_MULTIPROCESSORS = 256 };
static inline int64_t cuda_thin_bytes(int64_t multiprocessors, int64_t T, int64_t N, int64_t R) {
    const int64_t parts = cuda_thin_takes(T, N, R) ? cuda_thin_parts(multiprocessors, T, N, R) : 1;
    return parts > 1 ? parts * N * R * (int64_t)sizeof(float) : 0;
}

/* LoRA's first half over T rows [T,K] and `cols` columns of result: over some rows the sums are so long that several
 * blocks share a tile. 0: none do. */
enum { CUDA_LORA_FEW = 64, CUDA_LORA_MANY = 1024, CUDA_LORA_LONG = 8192, CUDA_LORA_WIDE = 32, CUDA_LORA_CHAINS = 16 };
enum { CUDA_LORA_TILE = CUDA_LORA_CHAINS * 4 * 32 * 4 }; /* floats */
static inline int64_t cuda_lora_tiles(int64_t T, int64_t K, int64_t cols) {
    return K > CUDA_LORA_LONG && T > CUDA_LORA_FEW && T < CUDA_LORA_MANY && cols > 8
               ? cuda_parts_of(T, 16) * cuda_parts_of(cols, CUDA_LORA_WIDE)
               : 0;
}

/* A matrix in codes has a piece of memory for each tensor that is a part of it, at most CODED_PARTS. Its arrays begin
 * at multiples of 16 bytes, behind the words that say where each of them lies. m without arrays stands for codes that
 * are made here. */
enum { CODED_PARTS = 4, CUDA_CODED_WORDS = 96 /* bytes */ };
static inline int64_t cuda_up16(int64_t bytes) { return (bytes + 15) & ~(int64_t)15; }
static inline int64_t cuda_coded_blocks(const struct coded_matrix *m) {
    return m->format == FORMAT_NF4 ? nf4_blocks(m->rows, m->K)
                                   : format_blocks(m->rows, FP8_BLOCK) * format_blocks(m->K, FP8_BLOCK);
}
static inline int64_t cuda_coded_bytes(const struct coded_matrix *m) {
    const int64_t n = m->rows * m->K, blocks = cuda_coded_blocks(m), each = (int64_t)sizeof(float);
    if (m->format == FORMAT_FP8) return CUDA_CODED_WORDS + cuda_up16(n) + cuda_up16(blocks * each);
    const int64_t codes = CUDA_CODED_WORDS + cuda_up16((n + 1) / 2) + cuda_up16(NF4_CODES * each);
    if (m->scale) return codes + cuda_up16(blocks * each);
    return codes + cuda_up16(blocks) + cuda_up16(format_blocks(blocks, NF4_NESTED) * each) +
           cuda_up16(NF4_SCALES * each);
}
/* Where a product of this type finds it expanded. */
static inline int64_t cuda_expanded_bytes(enum dtype dt, int64_t N, int64_t K) {
    return cuda_up256(N * K * (int64_t)dtype_bytes(dt));
}
/* The same of E experts, of which so many at most go into a launch. */
enum { CUDA_GROUP_MOST = 256 };
static inline int64_t cuda_experts_bytes(enum dtype dt, int64_t E, int64_t N, int64_t K) {
    return (E < CUDA_GROUP_MOST ? E : CUDA_GROUP_MOST) * cuda_expanded_bytes(dt, N, K);
}

/* ---- sums over rows ---------------------------------------------------------------------------------------------- */

/* A float a row (`rows`: times heads), then sums of blocks of ROW_BLOCK rows of `cols` columns. */
static inline int64_t cuda_block_sums_bytes(int64_t floats, int64_t rows, int64_t cols) {
    return (floats + cuda_parts_of(rows, ROW_BLOCK) * cols) * (int64_t)sizeof(float);
}
/* rmsnorm_back: widths it has a kernel for; rows that share a part of the gain's gradient. */
enum { CUDA_GAIN_ROWS = 16 };
static inline bool cuda_norm_back_takes(int64_t cols) { return cols % 4 == 0 && cols <= 4096; }
static inline int64_t cuda_norm_back_bytes(int64_t rows, int64_t cols) {
    return cuda_parts_of(rows, CUDA_GAIN_ROWS) * cols * (int64_t)sizeof(float);
}
/* bias_grad in bfloat16: rows that share a part. Columns that do not come in pairs have a kernel for float32 alone. */
enum { CUDA_BIAS_ROWS = 128 };
static inline bool cuda_bias_grad_takes(int64_t cols) { return cols % 2 == 0; }
static inline int64_t cuda_bias_grad_bytes(int64_t rows, int64_t cols) {
    return (cuda_parts_of(rows, CUDA_BIAS_ROWS) * cols + 1) * (int64_t)sizeof(float);
}
/* Doubles beside the result: sums of blocks, and sums of those. */
static inline int64_t cuda_sum_doubles(int64_t n) {
    const int64_t blocks = n > 0 ? cuda_parts_of(n, SUM_BLOCK) : 0;
    return blocks + cuda_parts_of(blocks, SUM_BLOCK);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* A number or two for each row and head. */
static inline int64_t cuda_attention_grad_bytes(enum dtype dt, int64_t rows, int64_t H) {
    return rows * H * (dt == DT_BF16 ? 2 : 1) * (int64_t)sizeof(float);
}
/* Training in bfloat16: a layer's keys and values in blocks. */
static inline int64_t cuda_own_kv_bytes(int64_t blocks, int64_t G, int64_t K) {
    return blocks * kv_layer_floats_of(DT_BF16, G, K) * (int64_t)sizeof(float);
}
/* Sizes that hold for a while, of a pass that may be recorded: 1, 2, 3, 4, 6, 8, 12, 16, ... */
static inline int64_t cuda_recorded_size(int64_t n) {
    int64_t size = 1;
    while (size < n) {
        if (size + size / 2 >= n && size > 1) return size + size / 2;
        size *= 2;
    }
    return size;
}
/* Sequences of few query rows are split over their keys, in units: how many units a sequence has of each kv head; 0: it
 * is not split, or has no rows. */
enum { CUDA_SPLIT_PAIRS = 16, CUDA_UNIT = 128 /* keys */ };
static inline bool cuda_is_split(const struct attn_seq *s, int64_t H, int64_t G) {
    return s->len * (H / G) <= CUDA_SPLIT_PAIRS;
}
static inline int64_t cuda_units(const struct attn_seq *s, int64_t H, int64_t G) {
    return cuda_is_split(s, H, G) && s->len > 0 ? cuda_parts_of(s->past + s->len, CUDA_UNIT) : 0;
}
static inline int64_t cuda_unit_bytes(int64_t units, int64_t K) {
    return units * CUDA_SPLIT_PAIRS * ((K <= 64 ? 64 : 128) + 2) * (int64_t)sizeof(float);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* What is known of a chunk: its sums (struct chunk_sums of src/cuda/f32/draw.cu), one for each warp among them. */
enum { CUDA_CHUNK_WARPS = 16, CUDA_CHUNK_FLOATS = 5 + CUDA_CHUNK_WARPS };
static inline int64_t cuda_chunks_bytes(int64_t rows, int64_t V) {
    return rows * cuda_parts_of(V, LOGIT_CHUNK) * CUDA_CHUNK_FLOATS * (int64_t)sizeof(float);
}
/* What is known of a row: struct cu_row_stats of src/cuda/shared/kernels.h. */
enum { CUDA_ROW_STATS_BYTES = 20 };
/* About so many bytes of logits are computed at a time (backend.h): 512 rows of Qwen2.5's 152,064, whole tiles of a
 * product. */
enum { CUDA_LOGIT_CHUNK = 296 << 20 };

#endif
