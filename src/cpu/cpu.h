/* cpu: the CPU backend. Owns the float32 ops. May include tensor and base. Start at cpu.c (threads, dispatch), then
 * gemm_body.h (the one micro-kernel), rows_body.h, attention_body.h. The *_body.h files are compiled once per
 * instruction set by isa_*.c over the 16-lane vector type of vec16.h, so all instruction sets perform the same
 * operations in the same order and give equal bits. naive.c is the oracle of the tests: naive loops that share no code
 * with the rest. */
#ifndef KERNELRL_CPU_H
#define KERNELRL_CPU_H

#include "tensor/backend.h"

enum { PANEL = 64 };                                 /* outputs per packed weight panel */
enum { GEMM_KC = 128 };                              /* reduction steps between two spills of the accumulators */
enum micro_init { INIT_ZERO, INIT_BIAS, INIT_LOAD }; /* what a product's accumulators start from: 0, bias, c */
enum { ATTN_TILE = 12 };                             /* (row, head) pairs that share one pass over the keys */
enum { ATTN_GRAD_TILE = 24 };

/* c[m,n] = init + sum_k a[m,k] b[k,n], one f32 FMA per step, k ascending. Item i of the work list is a PANEL-wide
 * column strip times a chunk of rows. */
struct gemm {
    const float *a;
    int64_t a_rs, a_ks; /* strides of m and k */
    const float *b;
    int64_t b_ld; /* row-major b [K,N] with this stride; 0: b is packed in panels [N/PANEL][K][PANEL] */
    float *c;
    int64_t ldc;
    const float *bias; /* [N] or NULL */
    bool accumulate;
    int64_t M, N, K;
    int64_t chunk, n_chunks; /* rows per item, items per strip */
    bool rows_outer;         /* items of one chunk of rows follow each other, else items of one strip */
    float *scratch;          /* per thread GEMM_KC * PANEL floats, for row-major b */
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
    float *partial; /* [blocks][cols] or NULL */
};
struct rope_work {
    struct tensor qk, qkv, dqkv;
    const struct rope_args *a;
    float *partial; /* [blocks][2*K] or NULL */
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
    int64_t row0, row1; /* query rows of the sequence, [row0,row1) */
    int64_t cost;
};
struct attn_work {
    struct tensor q, k, v, o, d_o, dq, dk, dv;
    float *stats;
    const struct attn_seq *seq;
    int n_seq;
    struct attn_shape s;
    const struct attn_task *task;
    const int64_t *cut; /* [bins+1] first task of each bin */
    float *scratch;
    int64_t scratch_floats, max_keys; /* per thread; longest sequence */
    const int32_t *next;              /* gradient: next member of a sequence's family, or -1 */
};

/* ---- products with bfloat16 operands (bf16_pairs.c; rounding and order in tensor/ops.h) ---- */

/* Half as wide as PANEL: up to 12 rows then pass over the weights once, which is all that few rows have time for. */
enum { PAIR_PANEL = 32 };
enum { PAIR_KC = 256 };   /* pairs between two spills of the accumulators */
enum { PAIR_ALIGN = 32 }; /* elements a bf16 row is padded to with zeros: one AMX tile row */

/* A packed weight: panels [N/PAIR_PANEL][K_pad/2][PAIR_PANEL] of pairs (w[n][2i], w[n][2i+1]), the first in the low
 * half. */
static inline int64_t pair_pad(int64_t k) { return (k + PAIR_ALIGN - 1) & ~(int64_t)(PAIR_ALIGN - 1); }
static inline int64_t pair_panels(int64_t n) { return (n + PAIR_PANEL - 1) / PAIR_PANEL; }
static inline const uint16_t *pair_panel(const uint16_t *packed, int64_t panel, int64_t k_pad) {
    return packed + panel * k_pad * PAIR_PANEL;
}

/* c[m,n] = init + sum over pairs of a[m,:] b[:,n]. Items as in struct gemm. */
struct gemm16 {
    const uint16_t *a; /* rows of lda elements, zeros from K to pair_pad(K) */
    int64_t lda;
    const uint16_t *b;
    /* false: b is packed from [N,K] and its rows are the columns of c. true: b is packed from [K,N], the reduction runs
     * over its rows: linear_dx reads the weight that linear uses. */
    bool b_rows;
    int64_t b_pad; /* pair_pad of the packed matrix's columns */
    float *c;
    int64_t ldc;
    const float *bias;
    bool accumulate;
    int64_t M, N, K, chunk, n_chunks;
    bool rows_outer;   /* items of one chunk of rows follow each other, else items of one panel */
    uint16_t *scratch; /* PAIR_KC * 2 * PAIR_PANEL elements a thread, when b_rows */
};
/* Panel and first row of an item. */
static inline void gemm16_item(const struct gemm16 *g, int64_t item, int64_t *panel, int64_t *row) {
    const int64_t panels = pair_panels(g->N);
    *panel = g->rows_outer ? item % panels : item / g->n_chunks;
    *row = (g->rows_outer ? item / panels : item % g->n_chunks) * g->chunk;
}
struct round_args {
    struct tensor x; /* f32 [T,n] */
    uint16_t *out;
    int64_t lda;
};
struct cpu_pair_kernels {
    pool_fn *gemm;
    /* Row t of x, n elements rounded, then zeros to lda. Cut over rows. */
    pool_fn *round;
    /* Row j of the result is column j of x, T elements rounded, then zeros to lda. Cut over j. */
    pool_fn *round_transposed;
    /* Column j of x as row j of a matrix [n,T], packed like a weight. Cut over panels; lda is the padded T. */
    pool_fn *pack_transposed;
};

/* Work over a range of rows, items or bins: called through pool_for. */
struct cpu_kernels {
    const char *name;
    pool_fn *gemm, *pack, *rmsnorm, *rmsnorm_grad, *rope, *rope_grad, *swiglu, *swiglu_grad, *attention,
        *attention_grad, *logprob, *logprob_grad;
    float (*logprob_row)(const float *x, int64_t V, int32_t target, float *entropy);
    void (*logprob_ids)(const float *x, int64_t V, const int32_t *ids, int n, float *logp);
    void (*exp_f32)(float *y, const float *x, int64_t n);
};
extern const struct cpu_kernels cpu_kernels_reference;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif
extern const struct cpu_pair_kernels cpu_pairs_reference;
#if defined(__x86_64__)
extern const struct cpu_pair_kernels cpu_pairs_avx2, cpu_pairs_avx512, cpu_pairs_avx512bf16, cpu_pairs_amx;
/* Asks Linux for the tile registers, for all threads of the process; false when it has none to give. */
bool cpu_amx_permitted(void);
#endif

/* An instruction set: kernels for f32 operands and for bf16 operands. */
struct cpu_isa {
    const char *name;
    const struct cpu_kernels *k;
    const struct cpu_pair_kernels *p;
};
const struct cpu_isa *cpu_isa_current(void);

/* Scratch floats one thread needs for attention over up to `keys` keys. */
int64_t attn_scratch_floats(int64_t keys, int64_t K);
int64_t attn_grad_scratch_floats(int64_t keys, int64_t K);

#endif
