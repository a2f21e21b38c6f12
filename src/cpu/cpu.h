/* cpu: the CPU backend. It owns the float32 ops, and may include tensor and base. Start at cpu.c (threads, dispatch),
 * then gemm_body.h (the one micro-kernel), rows_body.h, attention_body.h.
 *
 * isa_*.c compile the *_body.h files once for each instruction set, over the vector type of 16 lanes in vec16.h. So all
 * instruction sets perform the same operations in the same order and give equal bits. naive.c is the oracle of the
 * tests: naive loops that share no code with the rest. */
#ifndef KERNELRL_CPU_H
#define KERNELRL_CPU_H

#include "tensor/backend.h"

enum { PANEL = 64 };    /* A packed weight panel has so many outputs. */
enum { GEMM_KC = 128 }; /* So many reduction steps lie between two spills of the accumulators. */
enum micro_init { INIT_ZERO, INIT_BIAS, INIT_LOAD }; /* A product's accumulators start from 0, the bias, or c. */
enum { ATTN_TILE = 12 };                             /* So many (row, head) pairs share one pass over the keys. */
enum { ATTN_GRAD_TILE = 24 };

/* A matrix in codes (coded.c). Codes lie in panels of PAIR_PANEL outputs, in the order in which decoding wants them;
 * each tensor that is a part of the matrix has scales of its own. */
struct coded_part {
    int64_t row;
    struct coded_matrix m; /* It owns its arrays; codes is NULL. */
    /* true: NF4's scales (absmax or scale of m) lie in panels, too: [panel of the part][K / NF4_BLOCK][PAIR_PANEL],
     * with zeros for rows behind the last. false: all scales lie as in the file. */
    bool in_panels;
};
struct coded {
    enum weight_format format;
    int64_t N, K, k_pad;
    uint8_t *codes;
    struct coded_part *part; /* [n_parts], in the order in which they came. */
    int n_parts;
};

/* c[m,n] = init + sum_k a[m,k] b[k,n], by one f32 FMA a step, with k ascending. An item of the work list is a column
 * strip, PANEL wide, times a chunk of rows. */
struct gemm {
    const float *a;
    int64_t a_rs, a_ks; /* The strides of m and k. */
    const float *b;
    /* Row-major b [K,N] has this stride. 0: b is packed in panels [N/PANEL][K][PANEL]. */
    int64_t b_ld;
    float *c;
    int64_t ldc;
    const float *bias; /* [N], or NULL. */
    bool accumulate;
    int64_t M, N, K;
    int64_t chunk, n_chunks; /* How many rows an item has, and how many items a strip. */
    /* true: the items of one chunk of rows follow each other. false: the items of one strip do. */
    bool rows_outer;
    float *scratch; /* For each thread GEMM_KC * PANEL floats, when b is row-major or in codes. */
    /* b is this matrix [N,K] in codes, or with b_ld its transpose. NULL: b is as above. */
    const struct coded *coded;
};
struct pack_args {
    const float *w;
    float *packed;
    int64_t N, K;
};
struct rmsnorm_args {
    struct tensor y, x, dy, dx;
    const float *gain;
    float eps;
    bool accumulate;
    float *partial; /* [blocks][cols], or NULL. */
};
struct rope_work {
    struct tensor qk, qkv, dqkv;
    const struct rope_args *a;
    float *partial; /* [blocks][2*K], or NULL. */
};
struct swiglu_args {
    struct tensor y, gu, dy, dgu;
};
struct logprob_args {
    struct tensor logits;
    const int32_t *targets;
    float *logp, *entropy;
    const float *g;
};
struct attn_task {
    int32_t seq, g;
    int64_t row0, row1; /* The query rows of the sequence, [row0,row1). */
    int64_t cost;
};
struct attn_work {
    struct tensor q, k, v, o, d_o, dq, dk, dv;
    float *stats;
    const struct attn_seq *seq;
    int n_seq;
    struct attn_shape s;
    const struct attn_task *task;
    const int64_t *cut; /* [bins+1], the first task of each bin. */
    float *scratch;
    int64_t scratch_floats, max_keys; /* scratch_floats: for each thread. max_keys: of the longest sequence. */
    /* Gradient: the next member of a sequence's family, or -1. */
    const int32_t *next;
};

/* ---- products with bfloat16 operands (bf16_pairs.c; rounding and order in tensor/ops.h) ---- */

/* Half as wide as PANEL. So up to 12 rows pass over the weights once, and few rows have no time for more. */
enum { PAIR_PANEL = 32 };
enum { PAIR_KC = 256 }; /* So many pairs lie between two spills of the accumulators. */
/* A bf16 row is padded with zeros to a multiple of so many elements, which is one AMX tile row. */
enum { PAIR_ALIGN = 32 };

/* A packed weight has panels [N/PAIR_PANEL][K_pad/2][PAIR_PANEL] of pairs (w[n][2i], w[n][2i+1]), the first one in the
 * low half. */
static inline int64_t pair_pad(int64_t k) { return (k + PAIR_ALIGN - 1) & ~(int64_t)(PAIR_ALIGN - 1); }
static inline int64_t pair_panels(int64_t n) { return (n + PAIR_PANEL - 1) / PAIR_PANEL; }
static inline const uint16_t *pair_panel(const uint16_t *packed, int64_t panel, int64_t k_pad) {
    return packed + panel * k_pad * PAIR_PANEL;
}

/* c[m,n] = init + the sum over pairs of a[m,:] b[:,n]. Items are as in struct gemm. */
struct gemm16 {
    const uint16_t *a; /* Rows of lda elements, with zeros from K to pair_pad(K). */
    int64_t lda;
    const uint16_t *b;
    /* false: b is packed from [N,K], and its rows are the columns of c. true: b is packed from [K,N], and the reduction
     * runs over its rows: so linear_dx reads the weight that linear uses. */
    bool b_rows;
    int64_t b_pad; /* pair_pad of the packed matrix's columns. */
    float *c;
    int64_t ldc;
    const float *bias;
    bool accumulate;
    int64_t M, N, K, chunk, n_chunks;
    /* true: the items of one chunk of rows follow each other. false: the items of one panel do. */
    bool rows_outer;
    uint16_t *scratch; /* With b_rows or coded: PAIR_SCRATCH elements for each thread. */
    /* b is this matrix in codes, from its row row0 on, a multiple of PAIR_PANEL. NULL: b is as above. */
    const struct coded *coded;
    int64_t row0;
};
enum { PAIR_SCRATCH = PAIR_KC * 2 * PAIR_PANEL };
/* The panel and the first row of an item. */
static inline void gemm16_item(const struct gemm16 *g, int64_t item, int64_t *panel, int64_t *row) {
    const int64_t panels = pair_panels(g->N);
    *panel = g->rows_outer ? item % panels : item / g->n_chunks;
    *row = (g->rows_outer ? item / panels : item % g->n_chunks) * g->chunk;
}
struct round_args {
    struct tensor x; /* [T,n] in float32. */
    uint16_t *out;
    int64_t lda;
};
struct cpu_pair_kernels {
    pool_fn *gemm;
    /* Rounds n elements of row t of x, with zeros behind them to lda. The work is cut over rows. */
    pool_fn *round;
    /* Row j of the result is column j of x: T rounded elements, with zeros behind them to lda. The work is cut over
     * j. */
    pool_fn *round_transposed;
    /* Column j of x becomes row j of a matrix [n,T], packed like a weight. The work is cut over panels. lda is the
     * padded T. */
    pool_fn *pack_transposed;
};

/* Work over a range of rows, items or bins. pool_for calls these functions. */
struct cpu_kernels {
    const char *name;
    pool_fn *gemm, *pack, *rmsnorm, *rmsnorm_grad, *rope, *rope_grad, *swiglu, *swiglu_grad, *attention,
        *attention_grad, *logprob, *logprob_grad;
    float (*logprob_row)(const float *x, int64_t V, int32_t target, float *entropy);
    void (*logprob_ids)(const float *x, int64_t V, const int32_t *ids, int n, float *logp);
    void (*exp_f32)(float *y, const float *x, int64_t n);
    pool_fn *combine, *dot; /* struct experts_args in experts.h */
    /* p = exp(l - the largest of l), n > 0; returns their sum. */
    float (*softmax_row)(float *p, const float *l, int64_t n);
};
extern const struct cpu_kernels cpu_kernels_reference;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif
extern const struct cpu_pair_kernels cpu_pairs_reference;
#if defined(__x86_64__)
extern const struct cpu_pair_kernels cpu_pairs_avx2, cpu_pairs_avx512, cpu_pairs_avx512bf16, cpu_pairs_amx;
/* Asks Linux for the tile registers, for all threads of the process. False when it has none to give. */
bool cpu_amx_permitted(void);
#endif

/* An instruction set: its kernels for f32 operands and for bf16 operands. */
struct cpu_isa {
    const char *name;
    const struct cpu_kernels *k;
    const struct cpu_pair_kernels *p;
};
const struct cpu_isa *cpu_isa_current(void);

/* How many floats of scratch one thread needs for attention over up to `keys` keys. */
int64_t attn_scratch_floats(int64_t keys, int64_t K);
int64_t attn_grad_scratch_floats(int64_t keys, int64_t K);

#endif
