/* host: what the host files of the CUDA backend share. Other rooms than those of cuda do not include it. */
#ifndef KERNELRL_CUDA_HOST_HOST_H
#define KERNELRL_CUDA_HOST_HOST_H

#include <stdio.h>

#include "cuda/shared/kernels.h"
#include "tensor/backend.h"
#include "tensor/cuda_scratch.h"
#include "tensor/mem_held.h"
#include "tensor/pieces.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;
struct lt;
struct profile;
struct nccl;

/* Pinned memory and its twin on the device. The host fills it round and round, in two halves. */
struct ring {
    char *host, *dev;
    size_t bytes, at;
    int now;                    /* The half that is being filled. `at` may stand at the very end of that half. */
    uint64_t turns;             /* How often the host has moved on to the other half. */
    struct CUevent_st *left[2]; /* [i]: the event that was recorded when the host moved on from half i. */
    bool half_used[2];
};

/* A piece of the ring that is being filled. */
struct host_stage {
    char *host, *dev;
    size_t bytes, used;
};

/* What becomes of a result of `bytes` bytes at offset `at`: it is copied to dst, or log-probabilities are computed from
 * it. */
struct result_item {
    void *dst; /* Host memory. NULL: the result is an array of struct cu_row_stats, and id, logp and entropy say where
                  its numbers go. */
    int32_t *id;
    float *logp, *entropy; /* Host memory. id and entropy may be NULL. */
    size_t at, bytes;
};
struct results {
    char *host, *dev;
    size_t bytes, used;
    struct result_item *item;
    int n, cap;
};
/* Results that are on their way to the host, or have arrived there. */
struct posted {
    char *host;
    size_t bytes;
    struct result_item *item;
    int n, cap;
    struct CUevent_st *there;
};

/* A pending addition: the parts of a product that are still to be added to y, in their order. n is 0 when there is
 * none. bf16/ops.c says why it waits. */
struct owed {
    struct tensor y;
    const float *part; /* [n][y.rows][y.cols] */
    int64_t n;
};

enum { KV_ROWS = 8 }; /* A block of kv_write writes at most so many rows. */

/* A piece of device memory that only grows. */
struct device_slab {
    void *p;
    size_t bytes;
};

/* The work list of an attention call, kept on the device. All layers of a pass share one. */
struct plan {
    struct attn_seq *seq; /* The sequences that the list was made for. */
    int n_seq, cap_seq;
    int32_t *table; /* The sequences' block tables, one behind the other. Each has an entry for every block that the
                       sequence has begun. */
    int64_t n_table, cap_table;
    struct attn_shape shape;
    int64_t tile;
    bool valid, decode;
    struct device_slab dev;
    int64_t n_tasks, n_key_tasks, max_keys, max_pairs;
    size_t table_at, key_at, user_at; /* Offsets in dev. */
};

/* The same for bfloat16, with what kv_write needs. In training it also holds a cache for the layer at hand. It is made
 * once a pass. */
struct plan16 {
    const struct attn_seq *seq;
    int n_seq;
    uint64_t serial; /* The number of the pass that the lists were made for. 0: there are none. */
    int64_t H, G, K;
    bool training;
    struct device_slab dev;
    const struct cu_kv_task *kv_task;
    const struct cu_attn_task *split, *walk;
    const int32_t *table;
    int64_t n_kv, n_split, n_walk, max_units, part_units, n_blocks;
    int64_t late, runs[2], run_units[2]; /* As in struct cu_attn16. */
    /* These arrays are built on the host. */
    struct cu_kv_task *h_kv;
    struct cu_attn_task *h_split, *h_walk;
    int32_t *h_table;
    int64_t cap_kv, cap_split, cap_walk, cap_table, n_table;
};

/* The rest of a pass's state belongs to record.c. */
enum pass_mode { PASS_RUN, PASS_CAPTURE, PASS_REPLAY };
struct recording {
    uint64_t key, sign, serial; /* serial: the number of the last pass with this key. */
    int seen;
    bool never;
    struct CUgraphExec_st *exec;
    char *dev; /* The index arrays on the device. */
    size_t used;
};
/* Where the index arrays of a recorded pass are written. There are two places, used in turn, so that a pass may be
 * asked for while the one before it is under way. */
struct arenas {
    char *host[2]; /* Pinned memory. */
    int now;
    bool used[2];
    struct CUevent_st *read[2];
};
struct sent {
    const void *src;
    size_t bytes;
    void *dev;
    uint64_t turns; /* The ring's `turns` when the array was put there. */
};
struct pass_state {
    enum pass_mode mode;
    bool open, abort;
    uint64_t serial, sign;
    struct recording *rec;
    size_t used; /* Bytes used of the recording's arena. */
    int results_n;
    size_t results_used;
    struct sent sent[8];
    int n_sent;
};

/* The logits of which the previous op has computed log-probabilities. stats is NULL when there are none. */
struct known_logits {
    struct tensor logits;
    const struct cu_row_stats *stats;
};

struct cuda_backend {
    struct backend be; /* The first member, because ops cast a struct backend back. */
    int device;
    size_t total_bytes; /* Bytes of memory that the device has. */
    struct cu_dev dev;
    struct CUstream_st *stream, *side; /* side: for work that may run beside the main stream (bf16_lora_down). */
    struct CUevent_st *fork, *join;
    char name[300], kind[300], error[600]; /* error: the first error, or "". */
    struct ring ring;
    struct results results;
    struct posted posted[POSTS_MAX]; /* A ring of n_posted entries, the oldest one at first_posted. */
    int first_posted, n_posted;
    struct known_logits known;
    struct tensor rounded; /* The float32 factor whose rounding to bfloat16 the slab x16 begins with. data is NULL when
                              there is none. */
    struct owed owed;
    struct mem_held held; /* All device memory, without what a search of cublas.c borrows. */
    struct pieces pieces; /* Where packed weights lie. */
    struct device_slab slab[CUDA_SLABS];
    struct plan forward, backward;
    struct plan16 plan16;
    struct pass_state pass;
    struct recording *recording;
    int n_recordings, cap_recordings;
    struct arenas arenas;
    bool no_recording;
    struct lt *lt;     /* NULL: only our own kernels compute products. */
    struct nccl *nccl; /* NULL until somebody asks for peers. */
    struct profile *profile;
    int32_t *slot; /* For scatter: [n_slot], the list of each destination, -1 between calls. */
    int64_t n_slot;
};

/* Returns whether a CUDA call went well. The first failure is kept, under the op's name. */
bool cuda_ok(struct cuda_backend *c, const char *op, int rc);
/* Keeps an error of our own. */
void cuda_refuse(struct cuda_backend *c, const char *op, const char *why);

/* Room in the ring. stage_begin makes it; stage_add copies an array into it (with src NULL it leaves room, which the
 * caller fills through stage_host) and returns where the array will be on the device; stage_send queues the copy. There
 * is one stage at a time. False after an error. */
bool stage_begin(struct cuda_backend *c, const char *op, size_t bytes, struct host_stage *s);
void *stage_add(struct host_stage *s, const void *src, size_t bytes);
void *stage_host(const struct host_stage *s, const void *dev);
bool stage_send(struct cuda_backend *c, const char *op, const struct host_stage *s);

/* Sends one array of indices to the device. NULL after an error. */
void *pass_send(struct cuda_backend *c, const char *op, const void *src, size_t bytes);
/* Begins an op. NULL after an error: the op does nothing then. */
struct cuda_backend *cuda_begin(struct backend *be, const char *op);
/* The same for products of gradients. Several of them in a row have a factor in common, which is rounded to bfloat16
 * once (bf16/ops.c); other ops make the backend forget that rounding. */
struct cuda_backend *cuda_begin_product(struct backend *be, const char *op);
/* The same for an op that adds the pending addition to x itself (struct owed), so that it is not added here. */
struct cuda_backend *cuda_begin_owed(struct backend *be, const char *op, struct tensor x);

/* Allocate and free device memory, and count it. They return a cudaError_t. device_free takes NULL. */
int device_alloc(struct cuda_backend *c, void **p, size_t bytes);
int device_free(struct cuda_backend *c, void *p);
/* Makes a slab at least `bytes` large. Old contents are lost when it grows. NULL after an error. */
void *device_room(struct cuda_backend *c, const char *op, struct device_slab *s, int64_t bytes);
/* The same for a slab that ops share. tensor/cuda_scratch.h says how many bytes an op needs of it. */
void *cuda_scratch(struct cuda_backend *c, const char *op, enum cuda_slab s, int64_t bytes);
/* n counters. They are 0 whenever no kernel that uses them is running. */
unsigned *zeroed_counts(struct cuda_backend *c, const char *op, enum cuda_slab s, int64_t n);
struct cu_mat mat_of(struct tensor t);

/* record.c: an op that can be recorded says here what it is about to launch. False: it must not launch it. */
bool pass_note(struct cuda_backend *c, const char *op, const uint64_t *values, int n);
#define NOTE(c, op, ...)                                  \
    pass_note((c), (op), (const uint64_t[]){__VA_ARGS__}, \
              (int)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))
#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))
#define OF_TENSOR(t) ADDRESS((t).data), (uint64_t)(t).rows, (uint64_t)(t).cols, (uint64_t)(t).ld, (uint64_t)(t).dt
void pass_begin(struct backend *be, uint64_t key);
bool pass_end(struct backend *be);
bool pass_stage(struct cuda_backend *c, size_t bytes, struct host_stage *s);
void recordings_drop(struct cuda_backend *c); /* Drops all recordings, because memory that they use has moved. */
void recordings_free(struct cuda_backend *c);
struct profile *profile_open(void); /* NULL when no profile was asked for. */
void profile_mark(struct cuda_backend *c, const char *op);
/* Under a profile, the name of an op on an n x k matrix, which lives until the end. Without one, op itself. */
const char *profile_name(struct cuda_backend *c, const char *op, int64_t n, int64_t k);
void profile_print(struct cuda_backend *c, FILE *f); /* Prints the profile and frees it. */

/* cublas.c: D = op(A) op(B), column-major as cuBLAS has it. D is m x n, A is m x k (k x m with ta), B is k x n. D may
 * be accumulated upon, and a bias along m added. All addresses and leading dimensions are multiples of 16 bytes.
 *
 * exact: the bits of a column of D do not depend on n.
 *
 * parts (with ta, without tb, exact): there are so many products over k terms each. Their factors lie side by side in A
 * and B, and the D of each lies part_step behind the one before.
 *
 * lt_run sets *done to false when there is no algorithm, and then nothing has happened. It returns false after an
 * error. */
struct lt_product {
    bool ta, tb, out16, accumulate, exact;
    int64_t m, n, k, lda, ldb, ldd, parts, part_step;
    const void *a, *b, *c; /* c: the matrix that D is accumulated upon, laid out as d. NULL: d itself. */
    void *d;
    const float *bias;
    float alpha;                      /* The factor of the product. 0 stands for 1. */
    const struct cu_coded_few *codes; /* a holds what these mean; NULL: it is not expanded from codes. */
};
struct lt *lt_open(void);
void lt_close(struct lt *l);
bool lt_run(struct cuda_backend *c, const char *op, const struct lt_product *p, bool *done);
/* Returns whether our kernel for few rows, with SwiGLU fused, computes this exact product. */
bool lt_few_swiglu(struct cuda_backend *c, const char *op, const struct lt_product *p);
/* Returns whether a search has found that our kernel which decodes inside computes this exact product; a need not be
 * there. It does not search: that takes the expanded matrix, and lt_run does it. */
bool lt_decodes(struct cuda_backend *c, const struct lt_product *p);
const char *lt_text(const struct lt *l, char *buf, size_t size);

/* coded.c: weights in codes. */
void coded_put(struct backend *be, struct weight *w, int64_t row, const struct coded_matrix *m);
void coded_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void coded_free(struct backend *be, struct weight *w);
/* Makes *plain a weight for the next product: w itself, or w expanded to scratch, which the next expansion overwrites.
 * False after an error. */
bool coded_expand(struct cuda_backend *c, const char *op, const struct weight *w, struct weight *plain);
/* The matrices of the experts of a group, w[0] to w[g->n - 1], which are in codes: coded_group_room puts into g->w
 * where each of them comes to lie in scratch; coded_expand_group writes those there that have rows. */
bool coded_group_room(struct cuda_backend *c, const char *op, const struct weight *w, struct cu_group *g);
bool coded_expand_group(struct cuda_backend *c, const char *op, const struct weight *w, const struct cu_group *g);
/* The same matrices as the kernel that decodes them inside wants them: into g->w and *codes. False: it does not take
 * them, and g is as it was. */
bool coded_group_of(const struct weight *w, struct cu_group *g, struct cu_coded_group *codes);
/* The matrix as the kernel for few rows wants it, without `few`. False where it cannot take it. */
bool coded_few_of(const struct weight *w, struct cu_coded_few *out);
/* That kernel for a product with p->codes: whether it can compute it, and the product, as a cudaError_t. */
bool decode_takes(const struct cuda_backend *c, const struct lt_product *p);
int decode_run(const struct cuda_backend *c, const struct lt_product *p);
/* True: p lies in that scratch, so the kernel before this one may have written it. */
bool coded_is_expanded(const struct cuda_backend *c, const void *p);

/* nccl.c: the ops of peers. */
bool nccl_id(struct backend *be, void *id, char *why, size_t why_bytes);
bool nccl_join(struct backend *be, const void *id, int rank, int size, char *why, size_t why_bytes);
void nccl_exchange(struct backend *be, const void *from, const struct byte_span *out, void *to,
                   const struct byte_span *in);
void nccl_end(struct backend *be);
/* False, with the error kept, when exchanges have ended early: what they brought is none. */
bool nccl_whole(struct cuda_backend *c);
void nccl_close(struct cuda_backend *c);

/* bf16/ops.c: the ops for weights of DT_BF16 and operands in bfloat16. */
void bf16_weight_pack(struct backend *be, struct weight *w);
void bf16_weights_pack(struct backend *be, struct weight *const *w, int n);
void bf16_weight_put(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src);
void bf16_weight_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void bf16_linear(struct cuda_backend *c, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                 bool accumulate);
/* few_rows_gemm.cu, our kernel for few rows: few_takes says whether it can compute a product, few_run computes it and
 * returns a cudaError_t. */
bool few_takes(const struct cuda_backend *c, const struct lt_product *p);
int few_run(const struct cuda_backend *c, const struct lt_product *p);
void bf16_linear_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor x, const struct weight *w);
/* Adds the pending addition, if there is one. */
void bf16_settle(struct cuda_backend *c);
void bf16_linear_dx(struct cuda_backend *c, struct tensor dx, struct tensor dy, const struct weight *w, float alpha,
                    bool accumulate);
void bf16_linear_dw(struct cuda_backend *c, float *dw, struct tensor dy, struct tensor x);
/* x in bfloat16 for a product, lined up where its width allows it; and both of a gradient. False after an error. */
bool bf16_factor(struct cuda_backend *c, const char *op, struct tensor *x);
bool bf16_factors(struct cuda_backend *c, const char *op, struct tensor *dy, struct tensor *x);
/* linear and linear_dx of a matrix in float32, y and dy being in it, and rows in bfloat16. */
void bf16_linear_exact(struct cuda_backend *c, struct tensor y, struct tensor x, const struct weight *w);
void bf16_linear_exact_dx(struct cuda_backend *c, struct tensor dx, struct tensor dy, const struct weight *w,
                          bool accumulate);
/* moe.c */
extern const struct expert_ops cuda_experts;
/* Returns where the next product of a gradient looks for the rounding of x (cuda_backend.rounded). An op that writes x
 * can write the rounding beside it. NULL where no product has needed so much room yet, or where the rows of x are not
 * aligned for that. */
uint16_t *bf16_rounding_room(const struct cuda_backend *c, struct tensor x);
/* Returns whether a float32 matrix is aligned for kernels that round eight numbers at a time. */
bool bf16_lines_up(struct tensor x);
void bf16_round_to(struct cuda_backend *c, const char *op, uint16_t *y, struct tensor x);
void bf16_lora_down(struct backend *be, struct tensor x, const struct weight *a, struct tensor xa, float scale);
void bf16_lora_up(struct backend *be, struct tensor xa, const struct lora_site_args *site, int n);
void bf16_lora_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor xa,
                      const struct lora_site_args *site, int n, bool keep);
void bf16_lora_dt(struct backend *be, struct tensor dt, struct tensor dy, const struct weight *b, float scale);
void bf16_rmsnorm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                       const float *gain, float eps, float *dgain);
/* Returns false where the kernel cannot do it, and then nothing has happened. */
bool bf16_bias_grad(struct cuda_backend *c, float *db, struct tensor dy);
void bf16_gather_scaled(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows, const float *scale);
void bf16_embed(struct cuda_backend *c, struct tensor x, const struct weight *table, const int32_t *ids);
void bf16_rmsnorm(struct cuda_backend *c, struct tensor y, struct tensor x, const float *gain, float eps);
void bf16_rope(struct cuda_backend *c, struct tensor qk, struct tensor qkv, const struct rope_args *r);
void bf16_rope_kv(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *r,
                  const struct attn_seq *seq, int n_seq, struct attn_shape s);
void bf16_swiglu(struct cuda_backend *c, struct tensor y, struct tensor gu);
void bf16_gather(struct cuda_backend *c, struct tensor y, struct tensor x, const int32_t *rows);
void bf16_kv_write(struct cuda_backend *c, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                   struct attn_shape s);
void bf16_attention(struct cuda_backend *c, struct tensor o, float *stats, struct tensor q, struct tensor k,
                    struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s);
void bf16_linear_add(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, struct tensor z);
/* train.c: gradients of bfloat16 activations. They are bfloat16 themselves. */
void bf16_swiglu_grad(struct cuda_backend *c, struct tensor dgu, struct tensor dy, struct tensor gu);
void bf16_swiglu_both(struct cuda_backend *c, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu);
void bf16_rope_grad(struct cuda_backend *c, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                    const struct cu_rope *a);
void bf16_attention_grad(struct cuda_backend *c, struct tensor dq, struct tensor dk, struct tensor dv,
                         struct tensor d_o, struct tensor o, const float *stats, struct tensor q, struct tensor k,
                         struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s);
/* Replaces n operands by their float32 values, in memory that lives until the next call. Operands in float32 stay.
 * False after an error. */
bool bf16_widen(struct cuda_backend *c, const char *op, struct tensor *const t[], int n);
/* attention_plan.c of bf16: the lists for these sequences. NULL after an error. */
struct plan16 *plan16_of(struct cuda_backend *c, const char *op, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s, bool training);
void plan16_free(struct cuda_backend *c);

/* attention_plan.c of f32: attention's work lists, and the ops that run them. `a` holds the operands. */
void plan_kv_write(struct cuda_backend *c, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                   struct attn_shape s);
void plan_attention(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                    struct attn_shape s);
void plan_attention_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s);
/* Makes only the gradient's lists, of `tile` query pairs and key rows, on the device, and fills in the fields of `a`
 * that describe them. False after an error, or when there is nothing to do. */
bool plan_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq, struct attn_shape s,
               int64_t tile);
void plan_free(struct cuda_backend *c, struct plan *p);

#endif
