/* cuda: the CUDA backend, built by nvcc into a plugin of its own. It owns the device ops, and may include tensor and
 * base. Start at host/cuda.c (memory, transfers, the op table), then f32/gemm.cu, f32/attention.cu and
 * f32/attention_grad.cu, f32/rows.cu, f32/elementwise.cu.
 *
 * This header is the border between the host side (C) and the kernels (CUDA C++). It declares launchers with plain
 * arguments. Each of them queues its kernels on `stream`, returns a cudaError_t as an int, and does nothing for empty
 * shapes. All pointers are device memory unless a name says host. The caller checks shapes. Every kernel keeps the
 * order of operations that tensor/ops.h fixes, so its bits are those of the CPU; where a kernel may differ, its comment
 * says so. */
#ifndef KERNELRL_CUDA_SHARED_KERNELS_H
#define KERNELRL_CUDA_SHARED_KERNELS_H

#include <stdint.h>

#include "tensor/cuda_scratch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A view of a row-major float32 matrix: element (r,c) is at p[r*ld + c]. */
struct cu_mat {
    float *p;
    int64_t rows, cols, ld;
};

/* What launchers need to know about the device. */
struct cu_dev {
    void *stream;   /* A cudaStream_t. */
    int sm_count;   /* How many multiprocessors there are. */
    int max_shared; /* Bytes of shared memory that one block may ask for. */
    int overlaps;   /* true: a kernel's blocks can start while the kernel before it ends. */
    int wgmma;      /* true: it has the products of warpgroups (compute capability 9.0). */
};

/* Returns whether this device can run the kernels: cudaErrorNoKernelImageForDevice when they were built for others. */
int cu_probe(void);

/* c[m,n] = init + sum_k a(m,k) b(n,k), by one FMA a step, with k ascending. init is the old c, bias[n] or 0. The kind
 * says how a and b lie in memory. */
enum cu_gemm_kind {
    CU_GEMM_NT, /* a [M,K], b [N,K]: linear */
    CU_GEMM_NN, /* a [M,K], b [K,N]: linear_dx */
    CU_GEMM_TN, /* a [K,M], b [K,N]: linear_dw */
};
struct cu_gemm {
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    const float *bias; /* [N], or NULL. */
    int accumulate;    /* true: init is the old c; bias is NULL then */
    int64_t M, N, K;
};
int cu_gemm(const struct cu_dev *d, enum cu_gemm_kind kind, const struct cu_gemm *g);

/* Experts of a mixture (tensor/experts.h) that one launch takes. Expert i has rows [lo[i], hi[i]), known on the device
 * alone, and a matrix of its own. */
enum { CU_GROUP_MOST = CUDA_GROUP_MOST };
struct cu_group {
    const int32_t *lo, *hi; /* device memory */
    int n;
    int64_t stride;      /* of gradients: from the matrix of one expert to the next, in floats */
    const int32_t *pair; /* NULL: a's rows are places. Else those of place p are in row pair[p] / per_row of a. */
    int32_t per_row;
    const void *w[CU_GROUP_MOST]; /* device memory; of gradients: none */
};
/* A product for each expert, with the bits of cu_gemm.
 * NT and NN: of the M rows of a, rows [lo[i], hi[i]) times the matrix w[i] are the same rows of c; b is not read.
 * TN: the products of rows [lo[i], hi[i]) of a and of b are added to the gradient of expert i, which lies i * stride
 * floats behind c. K is the number of all rows, and accumulate is true. */
int cu_gemm_group(const struct cu_dev *d, enum cu_gemm_kind kind, const struct cu_gemm *g, const struct cu_group *e);

/* rows.cu. rstd is scratch of one float a row (rmsnorm_grad), or a row and head (rope_grad). partial is scratch of
 * ceil(rows/ROW_BLOCK) * cols floats (2*K for rope_grad). */
int cu_rmsnorm(const struct cu_dev *d, struct cu_mat y, struct cu_mat x, const float *gain, float eps);
int cu_rmsnorm_grad(const struct cu_dev *d, struct cu_mat dx, float *dgain, struct cu_mat dy, struct cu_mat x,
                    const float *gain, float eps, int accumulate, float *rstd, float *partial);
struct cu_rope {
    int64_t H, G, K;
    const int32_t *pos; /* Device memory. */
    const float *cos_t, *sin_t, *q_gain, *k_gain;
    float eps, q_scale;
};
int cu_rope(const struct cu_dev *d, struct cu_mat qk, struct cu_mat qkv, const struct cu_rope *a);
int cu_rope_grad(const struct cu_dev *d, struct cu_mat dqkv, float *dq_gain, float *dk_gain, struct cu_mat qkv,
                 const struct cu_rope *a, float *rstd, float *partial);
/* out[j] += partial[b*ld + j] for b < blocks, in ascending order, for n columns. */
int cu_fold_partial(const struct cu_dev *d, float *out, const float *partial, int64_t blocks, int64_t n, int64_t ld);
int cu_swiglu(const struct cu_dev *d, struct cu_mat y, struct cu_mat gu);
int cu_swiglu_grad(const struct cu_dev *d, struct cu_mat dgu, struct cu_mat dy, struct cu_mat gu);
struct cu_row_stats;
/* Computes the same numbers as cu_logprob_stats, for short rows. */
int cu_logprob_rows(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits, const int32_t *targets);
int cu_logprob_grad(const struct cu_dev *d, struct cu_mat logits, const int32_t *targets, const float *g);

/* elementwise.cu */
int cu_axpby(const struct cu_dev *d, struct cu_mat y, float a, struct cu_mat x, float b);
/* A row number below 0, -1 - r, stands for the row that drawn[r] names, or for row 0 where drawn[r] is below 0. drawn
 * may be NULL when there are no such numbers. */
int cu_gather_rows(const struct cu_dev *d, struct cu_mat y, const float *x, int64_t ldx, const int32_t *rows,
                   const int32_t *drawn);
/* y[dst[u],:] += x[order[i],:] for i in [start[u], start[u+1]), in ascending order. So rows with the same destination
 * are listed together. With scale: += scale[order[i]] x[order[i],:]. */
int cu_scatter_add_rows(const struct cu_dev *d, float *y, int64_t ldy, struct cu_mat x, const float *scale,
                        int64_t n_dst, const int32_t *dst, const int32_t *start, const int32_t *order);
int cu_bias_grad(const struct cu_dev *d, float *db, struct cu_mat dy);
struct cu_adamw {
    float beta1, beta2, eps, scale, decay, step_size, inv_sqrt_bias2;
};
int cu_adamw(const struct cu_dev *d, float *w, float *m, float *v, const float *g, int64_t n, const struct cu_adamw *a);
/* out[0] = the sum of squares. sums is scratch of cuda_sum_doubles(n) doubles. */
int cu_sum_squares(const struct cu_dev *d, double *out, double *sums, const float *x, int64_t n);

/* ---- attention ---- */

/* One block's work: the query pairs [pair0, pair0+pairs) of a sequence and kv head g. A pair is one of the sequence's
 * own rows and a query head of the group. Pair p is row p / rep and head g*rep + p % rep, where rep = H/G. */
struct cu_attn_task {
    int64_t row, past, past_row; /* As in struct attn_seq. */
    int64_t table;               /* Where the sequence's block table begins in cu_attn.table. -1: no cache. */
    int32_t g, pair0, pairs;
    int32_t part; /* bf16 decode: the number of its first unit. */
};
/* kv_write's work: rows [row, row+rows) of k and v become the keys slot.. of one block. */
struct cu_kv_task {
    int64_t row;
    int32_t block, slot, rows, pad;
};
/* A run of the gradient's key rows, and the sequences that see these rows: users [user0, user0+n_users), in order. */
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
    float *delta; /* Gradient: scratch [T,H]. */
    int64_t H, G, K;
    /* kv: the layer's part of the cache's block 0. kv_stride: how many floats lie from a block to the next. */
    const float *kv;
    int64_t kv_stride;
    const int32_t *table;            /* The block tables of all sequences, one behind the other. */
    const struct cu_attn_task *task; /* [n_tasks] */
    int64_t n_tasks;
    int64_t max_keys; /* Decode: the most keys that a task has. */
    int64_t max_pairs;
    const struct cu_key_task *key_task; /* [n_key_tasks] */
    int64_t n_key_tasks;
    const struct cu_attn_user *user;
};

/* The largest head dimension that the kernels take. */
enum { CU_ATTN_MAX_K = 256, CU_DECODE_PAIRS = 8 };
/* How many query pairs and keys a tile has. A task must not have more. 0 when the device has too little shared
 * memory. */
int cu_attn_tile(const struct cu_dev *d, int64_t K);
int cu_attn_grad_tile(const struct cu_dev *d, int64_t K);
/* Returns whether cu_attention_decode can take tasks of this many pairs and keys. */
int cu_decode_fits(const struct cu_dev *d, int64_t pairs, int64_t keys, int64_t K);

int cu_kv_write(const struct cu_dev *d, struct cu_mat k, struct cu_mat v, const struct cu_kv_task *task,
                int64_t n_tasks, int64_t G, int64_t K, float *kv, int64_t kv_stride);
int cu_attention(const struct cu_dev *d, const struct cu_attn *a);
int cu_attention_decode(const struct cu_dev *d, const struct cu_attn *a);
int cu_attention_grad(const struct cu_dev *d, const struct cu_attn *a);

/* ---- bfloat16 ---- */

struct cu_mat16 {
    uint16_t *p;
    int64_t rows, cols, ld;
};

/* rows.cu: norm, rope with the values behind the keys, SwiGLU, and rounding to bfloat16 and back. Rows of y and x of
 * the norm are aligned to 8 and 16 bytes when cols is a multiple of 4. Where rows is NULL, all rows are meant. */
int cu_rmsnorm16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x, const float *gain, float eps);
/* x += part[0], then part[1], ... part[n-1], each [x.rows][x.cols], in float32. The second function also computes y =
 * rmsnorm(x) then. It takes CUDA_LONG_PARTS parts, x.cols must be a multiple of 4 up to CU_PARTS_COLS, and x is aligned
 * to 16 bytes. */
enum { CU_PARTS_COLS = 4096 };
int cu_add_parts(const struct cu_dev *d, struct cu_mat x, const float *part, int64_t n);
int cu_rmsnorm16_parts(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x, const float *gain, float eps,
                       const float *part);
int cu_rope16(const struct cu_dev *d, struct cu_mat16 qk, struct cu_mat qkv, const struct cu_rope *a);
/* Computes rope of the tasks' rows. Queries go to qk; keys and values go into the cache, as with cu_kv_write16. */
int cu_rope_kv16(const struct cu_dev *d, struct cu_mat16 qk, struct cu_mat qkv, const struct cu_rope *a,
                 const struct cu_kv_task *task, int64_t n_tasks, uint16_t *kv, int64_t kv_stride);
int cu_swiglu16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat16 gu);
int cu_round16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x);
/* Rounds n[i] numbers at from[i] to to[i], for all i in one launch. */
enum { CU_ROUND_MOST = 64 };
struct cu_round_list {
    const float *from[CU_ROUND_MOST];
    uint16_t *to[CU_ROUND_MOST];
    int64_t n[CU_ROUND_MOST];
    int count;
};
int cu_round_list16(const struct cu_dev *d, const struct cu_round_list *l);
int cu_widen16(const struct cu_dev *d, struct cu_mat y, struct cu_mat16 x, const int32_t *rows, const int32_t *drawn);
int cu_gather16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat16 x, const int32_t *rows);
/* Row i is multiplied by scale[i]. */
int cu_gather_scaled16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat16 x, const int32_t *rows,
                       const float *scale);
int cu_random16(const struct cu_dev *d, uint16_t *p, int64_t n, uint64_t seed); /* Uniform in (-1,1). */

/* gemm.cu. An operand of a product: element (r,k) is at p[r*row + k*step]. vec: 8 neighbours along k lie together, and
 * are aligned to 16 bytes when k is a multiple of 8. */
struct cu_side16 {
    const uint16_t *p;
    int64_t row, step;
    int vec;
};
/* c[m,n] = sum_k a(m,k) b(n,k), plus bias[n] and the old c. c is in float32, or in bfloat16 with c16. */
struct cu_gemm16 {
    struct cu_side16 a, b;
    void *c;
    int c16;
    int64_t ldc;
    const float *bias;
    int accumulate;
    int64_t M, N, K;
    float alpha; /* The factor of the sum. 0 stands for 1. */
};
int cu_gemm16(const struct cu_dev *d, const struct cu_gemm16 *g);
/* As cu_gemm_group; over_rows: K is the number of rows. Bits are those of cu_gemm16. */
int cu_gemm16_group(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e, int over_rows);

/* router.cu: y = x W^T with W in float32, rows end to end, and the bits of cu_gemm of x widened, for what _takes
 * allows. With dev.overlaps, W is read before the kernel in front has ended. */
int cu_router16_takes(const struct cu_dev *d, struct cu_mat16 x, const float *w);
int cu_router16(const struct cu_dev *d, struct cu_mat y, struct cu_mat16 x, const float *w);

/* experts_gemm.cu: the same on tensor cores from shared memory, where cu_experts_takes allows it: not over rows, and
 * with aligned eights throughout. gates: the matrices have 2N rows, and c = SwiGLU of the products, each rounded, and
 * is rounded itself. a's rows need not lie by place. */
int cu_experts_takes(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e);
/* What an adapter adds to such a product, with the bits of a second product that is added to the first. c's columns are
 * cut into n sites of N each, a multiple of CU_PLUS_COLUMNS. Site s has t's columns from s * K on, up to CU_PLUS_MOST
 * of them, and a float32 matrix for each expert, whose element (n,k) is rounded to bfloat16 and lies at b[s][expert *
 * stride + n * row + k * step]. */
enum { CU_PLUS_SITES = 2, CU_PLUS_MOST = 32, CU_PLUS_COLUMNS = 32 };
struct cu_plus {
    const uint16_t *t; /* [rows][ldt] by place */
    int64_t ldt, N, row, step, stride;
    int n, K;
    const float *b[CU_PLUS_SITES];
};
/* Experts in codes that are decoded inside the product: e->w[i] is a struct cu_coded in device memory, which has the
 * matrix's first rows, and second[i] one that has those behind, if there are any. All are in units and have the sizes
 * and the format of each other, and both parts of an expert have the same tables. _takes_codes: whether the product is
 * one for them, and its rows are few enough; with the bits of the product with the decoded matrices. */
struct cu_coded_group {
    enum weight_format format;
    int64_t rows; /* of the first part */
    const void *second[CU_GROUP_MOST];
};
int cu_experts_takes_codes(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e);
/* plus may be NULL, and is with gates. codes: NULL for matrices in bfloat16. */
int cu_experts_gemm(const struct cu_dev *d, const struct cu_gemm16 *g, const struct cu_group *e, int gates,
                    const struct cu_plus *plus, const struct cu_coded_group *codes);

/* experts.cu: the ops of tensor/experts.h. Matrices are float32, or bfloat16 where `narrow` says so. */
struct cu_routing {
    int64_t T, E, k;
    int32_t *expert, *place, *pair, *begin;
    float *weight;
};
/* Experts that a row chooses from: a thread remembers what is taken in 64 bits. */
enum { CU_EXPERTS_MOST = 16 * 64 };
int cu_route(const struct cu_dev *d, const struct cu_routing *r, struct cu_mat logits, int normalised, int given);
int cu_route_grad(const struct cu_dev *d, struct cu_mat dlogits, const struct cu_routing *r, const float *dweight,
                  struct cu_mat logits, int normalised);
int cu_expert_rows(const struct cu_dev *d, int32_t *lo, int32_t *hi, const struct cu_routing *r, int64_t row,
                   int64_t n);
struct cu_rows_any {
    void *p;
    int64_t rows, cols, ld;
    int narrow;
};
int cu_expert_gather(const struct cu_dev *d, struct cu_rows_any y, struct cu_rows_any x, const struct cu_routing *r,
                     int weighted);
/* z.p NULL: there is none. */
int cu_expert_combine(const struct cu_dev *d, struct cu_rows_any y, struct cu_mat z, struct cu_mat o,
                      const struct cu_routing *r, int weighted);
int cu_expert_dot(const struct cu_dev *d, float *dweight, struct cu_rows_any a, struct cu_rows_any b,
                  const struct cu_routing *r);
int cu_expert_scale(const struct cu_dev *d, struct cu_rows_any x, const struct cu_routing *r);
/* Rows [lo[e], hi[e]) of y, for each expert, are multiplied by `factor`. */
int cu_expert_multiply(const struct cu_dev *d, struct cu_mat y, const int32_t *lo, const int32_t *hi, int64_t E,
                       float factor);
/* y += x, rounded once. */
int cu_add16(const struct cu_dev *d, struct cu_mat16 y, struct cu_mat x);
/* t = scale x A^T in bfloat16, [T][n*R], where A has n*R rows; y_i += (columns i*R.. of t) B_i^T. */
struct cu_lora_site {
    struct cu_side16 b;
    void *y;
    int y16;
    int64_t ldy, N;
};
struct cu_lora {
    struct cu_side16 x, a;
    uint16_t *t;
    struct cu_lora_site site[3];
    int n;
    float scale;
    int64_t T, K, R, up_blocks;
    float *part;     /* lora_down: scratch of cuda_lora_tiles() times CUDA_LORA_TILE floats. */
    unsigned *count; /* As many zeros as there are tiles, before and after. */
};
int cu_nothing(const struct cu_dev *d); /* A kernel that does nothing, to measure the time that it takes. */
int cu_lora_down(const struct cu_dev *d, const struct cu_lora *l); /* Reads x, a and scale; writes t. */
int cu_lora_up(const struct cu_dev *d, struct cu_lora *l);         /* Reads t and site. */
/* lora.cu: the same over many rows, with the same bits, where the takes_* functions allow it: few rows do not have
 * enough blocks of 64 rows to fill a GPU. t is summed in CUDA_LORA_CHAINS chains, over runs of pieces of 32 of k. */
int cu_lora_takes_down(const struct cu_dev *d, const struct cu_lora *l);
int cu_lora_takes_up(const struct cu_dev *d, const struct cu_lora *l);
int cu_lora_down_many(const struct cu_dev *d, const struct cu_lora *l);
int cu_lora_up_many(const struct cu_dev *d, struct cu_lora *l);
/* cu_lora_up of two sites, which are the gates and what they gate, each as wide as y. Then y = SwiGLU of the sums,
 * rounded. The sums themselves are not written. */
int cu_lora_takes_swiglu(const struct cu_lora *l, struct cu_mat16 y);
int cu_lora_swiglu(const struct cu_dev *d, const struct cu_lora *l, struct cu_mat16 y);
/* swiglu_lora.cu: the same over many rows. In gu the gates lie on the left of what they gate. With `keep`, gu gets the
 * sums. */
struct cu_lora_gates {
    struct cu_mat16 y, gu;
    const uint16_t *t;    /* [T][2R] */
    const uint16_t *b[2]; /* [y.cols][R] */
    int64_t R;
    int keep;
};
int cu_lora_takes_many(const struct cu_lora *l, struct cu_mat16 y);
int cu_lora_swiglu_many(const struct cu_dev *d, const struct cu_lora *l, struct cu_mat16 y, int keep);
/* lora_grad.cu: out += the sum over rows of W^T S, in float32. out is [N][R] (wide_rows) or [R][N]. cu_thin_takes says
 * where it can be used. part_rows is cuda_thin_part_rows(), and `parts` is scratch of cuda_thin_bytes(). */
struct cu_thin {
    const uint16_t *w, *s; /* [T][ldw], [T][lds] */
    int64_t ldw, lds;
    float *out;
    int wide_rows;
    int64_t T, N, R, part_rows;
};
int cu_thin_takes(const struct cu_dev *d, const struct cu_thin *a);
int cu_thin(const struct cu_dev *d, const struct cu_thin *a, float *parts);
/* These two compare rows of two products. `wanted` rows are spread evenly over `rows`: row i lies at i * (rows-1) /
 * (wanted-1). cu_spread_rows writes the rows of src [wanted,K] to these rows of x [rows,K]. cu_rows_differ sets
 * differ[i] to 1 where row i of `want` is not that row of y, bit for bit. */
int cu_spread_rows(const struct cu_dev *d, uint16_t *x, const uint16_t *src, int64_t K, int64_t rows, int64_t wanted);
int cu_rows_differ(const struct cu_dev *d, int32_t *differ, const void *y, int64_t ldy_bytes, const void *want,
                   int64_t ld_bytes, int64_t bytes, int64_t rows, int64_t wanted);

/* few_rows_gemm.cu: y = x W^T of at most CU_FEW_ROWS rows, in one chain over k. The result is in float32, with a bias
 * or added to y (ADD), or in bfloat16, or SwiGLU of that. For SwiGLU, the upper N rows of W make the gates, and the
 * lower N rows make what they gate.
 *
 * With parts there are so many products over K columns each. Their factors lie side by side in x and W, and the result
 * of each lies part_step behind the one before. With dev.overlaps, W is read before the kernel in front has ended. */
enum { CU_FEW_ROWS = 128 };
enum cu_few_end { CU_FEW_F32, CU_FEW_ADD, CU_FEW_BF16, CU_FEW_SWIGLU };
struct cu_few {
    const uint16_t *x, *w;
    int64_t ldx, ldw, T, N, K, parts, part_step;
    void *y;
    int64_t ldy;
    const float *bias; /* NULL: no bias. Only F32 has one. */
    enum cu_few_end end;
};
int cu_few_takes(const struct cu_dev *d, const struct cu_few *f);
int cu_few(const struct cu_dev *d, const struct cu_few *f);

/* coded.cu. A matrix in codes as struct coded_matrix of tensor/formats.h has it, in device memory. With units, for rows
 * and K that are multiples of 64, codes and NF4's absmax or scales lie in units of CU_STRIP rows and 64 columns
 * instead, strip after strip, along K; codes.cuh says how. scale is FP8's alone then, and absmax only says whether
 * there is one. */
struct cu_coded {
    enum weight_format format;
    int64_t rows, K;
    const uint8_t *codes, *absmax;
    const float *scale, *map, *nested, *nested_map;
    float offset;
    int unit; /* bytes of a unit; 0: all lies as in struct coded_matrix */
};
enum { CU_STRIP = 16 };
static inline int cu_coded_takes_units(enum weight_format format, int64_t rows, int64_t K) {
    return (format == FORMAT_FP8 || format == FORMAT_NF4) && rows % 64 == 0 && K % 64 == 0 && rows * K > 0;
}
static inline int cu_coded_unit(enum weight_format format, int nested) {
    return format == FORMAT_FP8 ? CU_STRIP * 64 : CU_STRIP * 32 + CU_STRIP * (nested ? 1 : 4);
}
/* Puts a matrix that lies as in the file into units of so many bytes. */
int cu_coded_order(const struct cu_dev *d, const struct cu_coded *file, int unit, uint8_t *units);
/* coded_few.cu: cu_few with a matrix in codes, whose parts lie one below the other and are all in units; few.w is
 * not read, and there is no SwiGLU. */
struct cu_coded_few {
    struct cu_few few;
    int n_parts; /* of the matrix */
    struct cu_coded part[CODED_PARTS];
};
enum { CU_CODED_ROWS = 64 };
int cu_coded_few_takes(const struct cu_dev *d, const struct cu_coded_few *f);
int cu_coded_few(const struct cu_dev *d, const struct cu_coded_few *f);

/* Writes the matrix [rows,K] that it means, in bfloat16 or (wide) the same numbers in float32. */
int cu_expand(const struct cu_dev *d, const struct cu_coded *m, void *out, int wide);
/* The same for those experts i of a group that have rows: e->w[i] is a struct cu_coded in device memory, whose format,
 * sizes and unit are those of `like`, and what it means is written i * stride bytes behind out. */
int cu_expand_group(const struct cu_dev *d, const struct cu_coded *like, const struct cu_group *e, void *out,
                    int64_t stride, int wide);

/* attention.cu. Keys are always cached; in training they are in a cache of the moment. */
struct cu_attn16 {
    struct cu_mat16 q, o;
    float *stats; /* [T,H,2], or NULL. */
    int64_t H, G, K;
    /* kv: the layer's part of block 0. kv_stride: how many elements lie from a block to the next. */
    const uint16_t *kv;
    int64_t kv_stride;
    const int32_t *table;
    /* [n_tasks], each of at most 64 pairs; for decode of at most 16. */
    const struct cu_attn_task *task;
    int64_t n_tasks;
    /* Decode, true: what the cache holds before a task's past was there before the kernel that runs ahead of this
     * one. */
    int settled;
    /* Decode: how many blocks a task has, and how many units one block does. [0] is for the tasks before number `late`,
     * [1] for the tasks from there on. */
    int64_t late, runs[2], run_units[2];
    int64_t part_units; /* Decode: the units of all tasks. part is scratch of cuda_unit_bytes(). */
    float *part;
    unsigned *count; /* Decode: [n_tasks] zeros, before and after. */
};
enum { CU_WALK_PAIRS = 64, CU_UNIT_BLOCKS = 3 /* Decode: a multiprocessor holds so many blocks. */ };
int cu_attention16(const struct cu_dev *d, const struct cu_attn16 *a);
int cu_attention16_decode(const struct cu_dev *d, const struct cu_attn16 *a);
int cu_kv_write16(const struct cu_dev *d, struct cu_mat16 k, struct cu_mat16 v, const struct cu_kv_task *task,
                  int64_t n_tasks, int64_t G, int64_t K, uint16_t *kv, int64_t kv_stride);

/* grad.cu: gradients like their namesakes in float32, for heads of K up to 128. */
int cu_swiglu_grad16(const struct cu_dev *d, struct cu_mat16 dgu, struct cu_mat16 dy, struct cu_mat16 gu);
/* Also computes y, as cu_swiglu16 does. *done stays 0, and nothing happens, where rows do not consist of whole aligned
 * eights. */
int cu_swiglu_both16(const struct cu_dev *d, struct cu_mat16 dgu, struct cu_mat16 y, struct cu_mat16 dy,
                     struct cu_mat16 gu, int *done);
/* dx += the gradient of y = rmsnorm(x), given dy. Also computes y itself and, where `rounded` is not NULL, dx rounded
 * (rows end to end). Sums are in an order of their own. Where dgain is not NULL, the gain's gradient is added to it;
 * partial is scratch of cuda_norm_back_bytes() then. *done stays 0, and nothing happens, where rows do not consist of
 * whole aligned fours, or have more than 4096 columns. */
int cu_rmsnorm_back16(const struct cu_dev *d, struct cu_mat dx, struct cu_mat16 y, struct cu_mat16 dy, struct cu_mat x,
                      const float *gain, float eps, uint16_t *rounded, float *dgain, float *partial, int *done);
/* out[j] += partial[b][j] for b < blocks, for n columns, in a fixed order. */
int cu_add_up(const struct cu_dev *d, float *out, const float *partial, int64_t blocks, int64_t n);
/* db[j] += sum_t dy[t][j], in an order of its own. partial is scratch of cuda_bias_grad_bytes(). *done stays 0, and
 * nothing happens, where columns do not come in aligned pairs. */
int cu_bias_grad16(const struct cu_dev *d, float *db, struct cu_mat16 dy, float *partial, int *done);
int cu_rope_grad16(const struct cu_dev *d, struct cu_mat16 dqkv, float *dq_gain, float *dk_gain, struct cu_mat qkv,
                   const struct cu_rope *a, float *rstd, float *partial);

/* attention_grad.cu. dq, dk and dv are overwritten. Rows of all matrices are aligned to 16 bytes, and K is a multiple
 * of 16 up to 128. cudaErrorInvalidValue where the device has too little shared memory. */
enum { CU_GRAD16_TILE = 64 }; /* So many query pairs a task has, and so many key rows. */
struct cu_attn_grad16 {
    struct cu_mat16 q, k, v, o, d_o, dq, dk, dv;
    const float *stats;
    float *delta; /* Scratch [T,H,2]. */
    int64_t H, G, K;
    const struct cu_attn_task *task; /* [n_tasks] */
    int64_t n_tasks;
    const struct cu_key_task *key_task; /* [n_key_tasks] */
    int64_t n_key_tasks;
    const struct cu_attn_user *user;
};
/* attention_grad90.cu: the same where the device has wgmma. The bits of the two differ. */
int cu_attention_grad90(const struct cu_dev *d, const struct cu_attn_grad16 *a);
int cu_attention_grad16(const struct cu_dev *d, const struct cu_attn_grad16 *a);

/* draw.cu. The host computes log-probability and entropy from these numbers: the id, its logit, and, over all logits,
 * their maximum, sum exp(x - max), and sum exp(x - max) (x - max). */
struct cu_row_stats {
    int32_t id;
    float x, max, s, w;
};
/* For rows of more than LOGIT_CHUNK logits, at most a million. scratch has cuda_chunks_bytes(). */
int cu_logprob_stats(const struct cu_dev *d, struct cu_row_stats *out, struct cu_mat logits, const int32_t *targets,
                     void *scratch);
struct cu_draw {
    float scale; /* 1 / temperature. 0: the largest logit is taken. */
    float min_p;
    double u;
};
/* Draws an id for each row, of any length. The id is -1 where the largest of the first `limit` logits is not finite.
 * drawn gets the ids once more. */
int cu_draw(const struct cu_dev *d, struct cu_row_stats *out, int32_t *drawn, struct cu_mat logits, int32_t limit,
            const struct cu_draw *how, void *scratch);
/* Computes the gradient of the log-probabilities that `stats` describes, in place. Where `rounded` is not NULL, the
 * gradient is rounded to bfloat16 and goes there, rows end to end, and logits stay. Rows are then aligned to 16 bytes
 * and a multiple of 8 long. */
int cu_logits_grad(const struct cu_dev *d, struct cu_mat logits, uint16_t *rounded, const int32_t *targets,
                   const struct cu_row_stats *stats, const float *g);

#ifdef __cplusplus
}
#endif

#endif
