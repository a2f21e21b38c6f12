/* cpu: the CPU backend. Owns the float32 ops. May include tensor and base. Start at cpu.c (threads, dispatch), then
 * gemm_body.h (the one micro-kernel), rows_body.h, attention_body.h. The *_body.h files are compiled once per
 * instruction set by isa_*.c over the 16-lane vector type of v16.h, so all instruction sets perform the same operations
 * in the same order and give equal bits. ref.c is the oracle of the tests: naive loops that share no code with the
 * rest. */
#ifndef KERNELRL_CPU_H
#define KERNELRL_CPU_H

#include "tensor/backend.h"

enum { PANEL = 64 };     /* outputs per packed weight panel */
enum { GEMM_KC = 128 };  /* reduction steps between two spills of the accumulators */
enum { ATTN_TILE = 12 }; /* (row, head) pairs that share one pass over the keys */
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

/* Work over a range of rows, items or bins: called through pool_for. */
struct cpu_kernels {
    const char *name;
    pool_fn *gemm, *pack, *rmsnorm, *rmsnorm_grad, *rope, *rope_grad, *swiglu, *swiglu_grad, *attention,
        *attention_grad, *logprob, *logprob_grad;
    float (*logprob_row)(const float *x, int64_t V, int32_t target, float *entropy);
    void (*exp_f32)(float *y, const float *x, int64_t n);
};
extern const struct cpu_kernels cpu_kernels_reference;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif
const struct cpu_kernels *cpu_kernels_current(void);

/* Scratch floats one thread needs for attention over up to `keys` keys. */
int64_t attn_scratch_floats(int64_t keys, int64_t K);
int64_t attn_grad_scratch_floats(int64_t keys, int64_t K);

#endif
