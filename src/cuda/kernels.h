/* cuda: the CUDA backend, built by nvcc into a plugin of its own. Owns the device ops. May include tensor and base.
 * Start at cuda.c (memory, transfers, the op table), then gemm.cu, attention.cu and attention_grad.cu, rows.cu,
 * simple.cu.
 *
 * This header is the border between the host side (C) and the kernels (CUDA C++): launchers with plain arguments. Each
 * queues its kernels on `stream`, returns a cudaError_t as an int, and does nothing for empty shapes. All pointers are
 * device memory unless a name says host. Shapes are checked by the caller. Every kernel keeps the order of operations
 * that tensor/ops.h fixes, so its bits are those of the CPU; one that may differ says so. */
#ifndef KERNELRL_CUDA_KERNELS_H
#define KERNELRL_CUDA_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A row-major f32 matrix view: element (r,c) at p[r*ld + c]. */
struct cu_mat {
    float *p;
    int64_t rows, cols, ld;
};

/* What launchers need to know of the device. */
struct cu_dev {
    void *stream;   /* cudaStream_t */
    int sm_count;   /* multiprocessors */
    int max_shared; /* bytes of shared memory one block may opt in to */
};

/* Whether this device can run the kernels: cudaErrorNoKernelImageForDevice when they were built for others. */
int cu_probe(void);

/* c[m,n] = init + sum_k a(m,k) b(n,k), one FMA per step, k ascending; init is old c, bias[n] or 0. The kind says how a
 * and b lie in memory. */
enum cu_gemm_kind {
    CU_GEMM_NT, /* a [M,K], b [N,K]: linear */
    CU_GEMM_NN, /* a [M,K], b [K,N]: linear_dx */
    CU_GEMM_TN, /* a [K,M], b [K,N]: linear_dw */
};
struct cu_gemm {
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    const float *bias; /* [N] or NULL */
    int accumulate;
    int64_t M, N, K;
};
int cu_gemm(const struct cu_dev *d, enum cu_gemm_kind kind, const struct cu_gemm *g);

/* rows.cu. rstd is scratch: one float per row (rmsnorm_grad) or per row and head (rope_grad); partial is scratch of
 * ceil(rows/ROW_BLOCK) * cols floats (2*K for rope_grad). */
int cu_rmsnorm(const struct cu_dev *d, struct cu_mat y, struct cu_mat x, const float *gain, float eps);
int cu_rmsnorm_grad(const struct cu_dev *d, struct cu_mat dx, float *dgain, struct cu_mat dy, struct cu_mat x,
                    const float *gain, float eps, int accumulate, float *rstd, float *partial);
struct cu_rope {
    int64_t H, G, K;
    const int32_t *pos; /* device */
    const float *cos_t, *sin_t, *q_gain, *k_gain;
    float eps, q_scale;
};
int cu_rope(const struct cu_dev *d, struct cu_mat qk, struct cu_mat qkv, const struct cu_rope *a);
int cu_rope_grad(const struct cu_dev *d, struct cu_mat dqkv, float *dq_gain, float *dk_gain, struct cu_mat qkv,
                 const struct cu_rope *a, float *rstd, float *partial);
int cu_swiglu(const struct cu_dev *d, struct cu_mat y, struct cu_mat gu);
int cu_swiglu_grad(const struct cu_dev *d, struct cu_mat dgu, struct cu_mat dy, struct cu_mat gu);
/* logp, entropy (or NULL): device arrays [rows]. The logarithm is the device's: within 1 ulp of double before the one
 * rounding to f32, so a last bit may rarely differ from the CPU. */
int cu_logprob(const struct cu_dev *d, float *logp, float *entropy, struct cu_mat logits, const int32_t *targets);
int cu_logprob_grad(const struct cu_dev *d, struct cu_mat logits, const int32_t *targets, const float *g);

/* simple.cu */
int cu_axpby(const struct cu_dev *d, struct cu_mat y, float a, struct cu_mat x, float b);
int cu_gather_rows(const struct cu_dev *d, struct cu_mat y, const float *x, int64_t ldx, const int32_t *rows);
/* y[dst[u],:] += x[order[i],:] for i in [start[u], start[u+1]), ascending: rows that meet are listed together. With
 * scale: += scale[order[i]] x[order[i],:]. */
int cu_scatter_add_rows(const struct cu_dev *d, float *y, int64_t ldy, struct cu_mat x, const float *scale,
                        int64_t n_dst, const int32_t *dst, const int32_t *start, const int32_t *order);
int cu_bias_grad(const struct cu_dev *d, float *db, struct cu_mat dy);
struct cu_adamw {
    float beta1, beta2, eps, scale, decay, step_size, inv_sqrt_bias2;
};
int cu_adamw(const struct cu_dev *d, float *w, float *m, float *v, const float *g, int64_t n, const struct cu_adamw *a);
/* out[0] = sum of squares; sums is scratch of ceil(n/SUM_BLOCK) doubles. */
int cu_sum_squares(const struct cu_dev *d, double *out, double *sums, const float *x, int64_t n);

/* ---- attention ---- */

/* One block's work: the query pairs [pair0, pair0+pairs) of a sequence and kv head g. A pair is (own row, query head of
 * the group): pair p is row p / rep, head g*rep + p % rep, where rep = H/G. */
struct cu_attn_task {
    int64_t row, past, past_row; /* as in struct attn_seq */
    int64_t table;               /* where the sequence's block table begins in cu_attn.table; -1: no cache */
    int32_t g, pair0, pairs, pad;
};
/* kv_write's work: rows [row, row+rows) of k and v become the keys slot.. of one block. */
struct cu_kv_task {
    int64_t row;
    int32_t block, slot, rows, pad;
};
/* A run of the gradient's key rows, and the sequences that see them: users [user0, user0+n_users) in order. */
struct cu_key_task {
    int64_t row0;
    int32_t rows, g, user0, n_users;
};
/* As in struct attn_seq. */
struct cu_attn_user {
    int64_t row, len, past, past_row;
};
struct cu_attn {
    struct cu_mat q, k, v, o, d_o, dq, dk, dv;
    float *stats;
    float *delta; /* gradient: scratch [T,H] */
    int64_t H, G, K;
    const float *kv; /* the layer's part of the cache's block 0, and the floats from a block to the next */
    int64_t kv_stride;
    const int32_t *table;            /* block tables of all sequences, one behind the other */
    const struct cu_attn_task *task; /* [n_tasks] */
    int64_t n_tasks;
    int64_t max_keys; /* decode: most keys of any task */
    int64_t max_pairs;
    const struct cu_key_task *key_task; /* [n_key_tasks] */
    int64_t n_key_tasks;
    const struct cu_attn_user *user;
};

/* Largest head dimension the kernels take. */
enum { CU_ATTN_MAX_K = 256, CU_DECODE_PAIRS = 8 };
/* Query pairs and keys of a tile: tasks must not hold more. 0 when the device has too little shared memory. */
int cu_attn_tile(const struct cu_dev *d, int64_t K);
int cu_attn_grad_tile(const struct cu_dev *d, int64_t K);
/* Whether cu_attention_decode can take tasks of this many pairs and keys. */
int cu_decode_fits(const struct cu_dev *d, int64_t pairs, int64_t keys, int64_t K);

int cu_kv_write(const struct cu_dev *d, struct cu_mat k, struct cu_mat v, const struct cu_kv_task *task,
                int64_t n_tasks, int64_t G, int64_t K, float *kv, int64_t kv_stride);
int cu_attention(const struct cu_dev *d, const struct cu_attn *a);
int cu_attention_decode(const struct cu_dev *d, const struct cu_attn *a);
int cu_attention_grad(const struct cu_dev *d, const struct cu_attn *a);

#ifdef __cplusplus
}
#endif

#endif
