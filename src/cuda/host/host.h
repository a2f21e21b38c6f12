/* What the host files of the CUDA backend share. Not for other modules. */
#ifndef KERNELRL_CUDA_HOST_HOST_H
#define KERNELRL_CUDA_HOST_HOST_H

#include <stdio.h>

#include "cuda/shared/kernels.h"
#include "tensor/backend.h"
#include "tensor/cuda_scratch.h"
#include "tensor/mem_held.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;
struct lt;
struct profile;
struct nccl;

/* Pinned memory and its twin on the device, used round and round in two halves. */
struct ring {
    char *host, *dev;
    size_t bytes, at;
    int now;                    /* the half that is being filled; `at` may stand at its very end */
    uint64_t turns;             /* how often the host moved on to the other half */
    struct CUevent_st *left[2]; /* recorded when the host moved on from a half */
    bool half_used[2];
};

/* A piece of the ring being filled. */
struct host_stage {
    char *host, *dev;
    size_t bytes, used;
};

/* What is to become of `bytes` of results at `at`: copied to dst, or made log-probabilities of. */
struct result_item {
    void *dst; /* host; NULL: struct cu_row_stats */
    int32_t *id;
    float *logp, *entropy; /* id and entropy may be NULL */
    size_t at, bytes;
};
struct results {
    char *host, *dev;
    size_t bytes, used;
    struct result_item *item;
    int n, cap;
};
/* Results that are on their way to the host, or there. */
struct posted {
    char *host;
    size_t bytes;
    struct result_item *item;
    int n, cap;
    struct CUevent_st *there;
};

/* Parts of a product that are still to be added to y, in order; none: n is 0. See bf16/ops.c. */
struct owed {
    struct tensor y;
    const float *part; /* [n][y.rows][y.cols] */
    int64_t n;
};

enum { KV_ROWS = 8 }; /* rows that a block of kv_write writes at most */

/* Device memory that only grows. */
struct device_slab {
    void *p;
    size_t bytes;
};

/* The work list of an attention call, kept on the device: all layers of a pass share one. */
struct plan {
    struct attn_seq *seq; /* what it was made for */
    int n_seq, cap_seq;
    int32_t *table; /* the sequences' block tables one behind the other, of a begun block each */
    int64_t n_table, cap_table;
    struct attn_shape shape;
    int64_t tile;
    bool valid, decode;
    struct device_slab dev;
    int64_t n_tasks, n_key_tasks, max_keys, max_pairs;
    size_t table_at, key_at, user_at; /* offsets in dev */
};

/* The same for bfloat16, with what kv_write needs; in training also with a cache for the layer at hand. Made once a
 * pass. */
struct plan16 {
    const struct attn_seq *seq;
    int n_seq;
    uint64_t serial; /* of the pass it is for; 0: none */
    int64_t H, G, K;
    bool training;
    struct device_slab dev;
    const struct cu_kv_task *kv_task;
    const struct cu_attn_task *split, *walk;
    const int32_t *table;
    int64_t n_kv, n_split, n_walk, max_units, part_units, n_blocks;
    int64_t late, runs[2], run_units[2]; /* as in struct cu_attn16 */
    /* built here */
    struct cu_kv_task *h_kv;
    struct cu_attn_task *h_split, *h_walk;
    int32_t *h_table;
    int64_t cap_kv, cap_split, cap_walk, cap_table, n_table;
};

/* record.c */
enum pass_mode { PASS_RUN, PASS_CAPTURE, PASS_REPLAY };
struct recording {
    uint64_t key, sign, serial; /* serial: of the last pass under this key */
    int seen;
    bool never;
    struct CUgraphExec_st *exec;
    char *dev; /* index arrays */
    size_t used;
};
/* Where the index arrays of a recorded pass are written: two places in turn, so that a pass may be asked for while the
 * one before is under way. */
struct arenas {
    char *host[2]; /* pinned */
    int now;
    bool used[2];
    struct CUevent_st *read[2];
};
struct sent {
    const void *src;
    size_t bytes;
    void *dev;
    uint64_t turns; /* of the ring when it was put there */
};
struct pass_state {
    enum pass_mode mode;
    bool open, abort;
    uint64_t serial, sign;
    struct recording *rec;
    size_t used; /* of its arena */
    int results_n;
    size_t results_used;
    struct sent sent[8];
    int n_sent;
};

/* Logits that the op before this one made log-probabilities of; none: stats is NULL. */
struct known_logits {
    struct tensor logits;
    const struct cu_row_stats *stats;
};

struct cuda_backend {
    struct backend be; /* first: ops cast back */
    int device;
    size_t total_bytes; /* of its memory */
    struct cu_dev dev;
    struct CUstream_st *stream, *side; /* side: for what may run beside, see bf16_lora_down */
    struct CUevent_st *fork, *join;
    char name[300], kind[300], error[600]; /* error: the first one, or "" */
    struct ring ring;
    struct results results;
    struct posted posted[POSTS_MAX]; /* a ring: n_posted from first_posted on */
    int first_posted, n_posted;
    struct known_logits known;
    struct tensor rounded; /* the float32 factor whose rounding x16 begins with; without data there is none */
    struct owed owed;
    struct mem_held held; /* all device memory but what a search of cublas.c borrows */
    struct device_slab slab[CUDA_SLABS];
    struct plan forward, backward;
    struct plan16 plan16;
    struct pass_state pass;
    struct recording *recording;
    int n_recordings, cap_recordings;
    struct arenas arenas;
    bool no_recording;
    struct lt *lt;     /* NULL: own products */
    struct nccl *nccl; /* NULL until somebody asks for peers */
    struct profile *profile;
    int32_t *slot; /* of scatter, [n_slot] */
    int64_t n_slot;
};

/* Whether a CUDA call went well; the first failure is kept under the op's name. */
bool cuda_ok(struct cuda_backend *c, const char *op, int rc);
/* Keeps an error of our own. */
void cuda_refuse(struct cuda_backend *c, const char *op, const char *why);

/* Room in the ring; stage_add copies an array into it (or, with src NULL, leaves room to fill through stage_host) and
 * returns where it will be on the device; stage_send queues the copy. One stage at a time. False after an error. */
bool stage_begin(struct cuda_backend *c, const char *op, size_t bytes, struct host_stage *s);
void *stage_add(struct host_stage *s, const void *src, size_t bytes);
void *stage_host(const struct host_stage *s, const void *dev);
bool stage_send(struct cuda_backend *c, const char *op, const struct host_stage *s);

/* One array of indices to the device; NULL after an error. */
void *pass_send(struct cuda_backend *c, const char *op, const void *src, size_t bytes);
/* The start of an op: NULL after an error, and then it does nothing. */
struct cuda_backend *cuda_begin(struct backend *be, const char *op);
/* For products of gradients: several in a row have a factor in common, which is rounded once (bf16/ops.c). */
struct cuda_backend *cuda_begin_product(struct backend *be, const char *op);
/* For an op that adds what is owed to x itself, where that is owed. */
struct cuda_backend *cuda_begin_owed(struct backend *be, const char *op, struct tensor x);

/* Device memory that is counted; a cudaError_t. */
int device_alloc(struct cuda_backend *c, void **p, size_t bytes);
int device_free(struct cuda_backend *c, void *p); /* NULL is fine */
/* At least `bytes` of device memory, old contents lost when it grows. NULL after an error. */
void *device_room(struct cuda_backend *c, const char *op, struct device_slab *s, int64_t bytes);
/* The same of a slab that ops share; how many bytes an op needs of it says tensor/cuda_scratch.h. */
void *cuda_scratch(struct cuda_backend *c, const char *op, enum cuda_slab s, int64_t bytes);
/* n counters that are 0 between kernels. */
unsigned *zeroed_counts(struct cuda_backend *c, const char *op, enum cuda_slab s, int64_t n);
struct cu_mat mat_of(struct tensor t);

/* record.c. An op that can be recorded says what it is about to launch; false: it must not launch it. */
bool pass_note(struct cuda_backend *c, const char *op, const uint64_t *values, int n);
#define NOTE(c, op, ...)                                  \
    pass_note((c), (op), (const uint64_t[]){__VA_ARGS__}, \
              (int)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))
#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))
#define OF_TENSOR(t) ADDRESS((t).data), (uint64_t)(t).rows, (uint64_t)(t).cols, (uint64_t)(t).ld, (uint64_t)(t).dt
void pass_begin(struct backend *be, uint64_t key);
bool pass_end(struct backend *be);
bool pass_stage(struct cuda_backend *c, size_t bytes, struct host_stage *s);
void recordings_drop(struct cuda_backend *c); /* memory that they use has moved */
void recordings_free(struct cuda_backend *c);
struct profile *profile_open(void); /* NULL when it was not asked for */
void profile_mark(struct cuda_backend *c, const char *op);
/* Under a profile, the name of an op on an n x k matrix, kept until the end; op itself otherwise. */
const char *profile_name(struct cuda_backend *c, const char *op, int64_t n, int64_t k);
void profile_print(struct cuda_backend *c, FILE *f); /* and frees it */

/* cublas.c. D = op(A) op(B), column-major as cuBLAS has it: D m x n, A m x k (k x m when ta), B k x n; accumulating,
 * plus a bias along m. All addresses and leading dimensions are multiples of 16 bytes. exact: the bits of a column of D
 * must not depend on n. *done false: no algorithm, nothing happened. False after an error. With `parts` (ta, not tb,
 * exact) it is so many products over k terms each, which lie side by side in A and B; the D of each is part_step behind
 * the one before. */
struct lt_product {
    bool ta, tb, out16, accumulate, exact;
    int64_t m, n, k, lda, ldb, ldd, parts, part_step;
    const void *a, *b, *c; /* c: what is accumulated upon, of d's layout; NULL: d */
    void *d;
    const float *bias;
    float alpha; /* factor of the product; 0 stands for 1 */
};
struct lt *lt_open(void);
void lt_close(struct lt *l);
bool lt_run(struct cuda_backend *c, const char *op, const struct lt_product *p, bool *done);
/* Whether this exact product with SwiGLU behind it is for the own kernel of few rows. */
bool lt_few_swiglu(struct cuda_backend *c, const char *op, const struct lt_product *p);
const char *lt_text(const struct lt *l, char *buf, size_t size);

/* nccl.c: the ops of peers. */
bool nccl_id(struct backend *be, void *id, char *why, size_t why_bytes);
bool nccl_join(struct backend *be, const void *id, int rank, int size, char *why, size_t why_bytes);
void nccl_exchange(struct backend *be, const void *from, const struct byte_span *out, void *to,
                   const struct byte_span *in);
void nccl_close(struct cuda_backend *c);

/* bf16/ops.c: the ops for weights of DT_BF16 and operands in bfloat16. */
void bf16_weight_pack(struct backend *be, struct weight *w);
void bf16_weights_pack(struct backend *be, struct weight *const *w, int n);
void bf16_weight_put(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src);
void bf16_weight_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst);
void bf16_linear(struct cuda_backend *c, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                 bool accumulate);
/* The own kernel of few rows (few_rows_gemm.cu): whether it takes a product, and the product; a cudaError_t. */
bool few_takes(const struct cuda_backend *c, const struct lt_product *p);
int few_run(const struct cuda_backend *c, const struct lt_product *p);
void bf16_linear_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor x, const struct weight *w);
/* Adds what is owed. */
void bf16_settle(struct cuda_backend *c);
void bf16_linear_dx(struct cuda_backend *c, struct tensor dx, struct tensor dy, const struct weight *w, float alpha,
                    bool accumulate);
void bf16_linear_dw(struct cuda_backend *c, float *dw, struct tensor dy, struct tensor x);
/* Where the next product of a gradient looks for the rounding of x (cuda_backend.rounded), for an op that can write it
 * beside x itself; NULL where no product has needed as much room yet, or x does not line up. */
uint16_t *bf16_rounding_room(const struct cuda_backend *c, struct tensor x);
bool bf16_lines_up(struct tensor x); /* a float32 matrix: for kernels that round eight at a time */
void bf16_round_to(struct cuda_backend *c, const char *op, uint16_t *y, struct tensor x);
void bf16_lora_down(struct backend *be, struct tensor x, const struct weight *a, struct tensor xa, float scale);
void bf16_lora_up(struct backend *be, struct tensor xa, const struct lora_site_args *site, int n);
void bf16_lora_swiglu(struct backend *be, struct tensor y, struct tensor gu, struct tensor xa,
                      const struct lora_site_args *site, int n, bool keep);
void bf16_lora_dt(struct backend *be, struct tensor dt, struct tensor dy, const struct weight *b, float scale);
void bf16_rmsnorm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                       const float *gain, float eps, float *dgain);
/* False where it cannot, and then nothing happened. */
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
/* train.c: gradients of bf16 activations, themselves in bfloat16. */
void bf16_swiglu_grad(struct cuda_backend *c, struct tensor dgu, struct tensor dy, struct tensor gu);
void bf16_swiglu_both(struct cuda_backend *c, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu);
void bf16_rope_grad(struct cuda_backend *c, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                    const struct cu_rope *a);
void bf16_attention_grad(struct cuda_backend *c, struct tensor dq, struct tensor dk, struct tensor dv,
                         struct tensor d_o, struct tensor o, const float *stats, struct tensor q, struct tensor k,
                         struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s);
/* n operands replaced by their float32 values, in memory that lives until the next call; those that are float32 stay.
 * False after an error. */
bool bf16_widen(struct cuda_backend *c, const char *op, struct tensor *const t[], int n);
/* attention_plan.c: the lists for these sequences; NULL after an error. */
struct plan16 *plan16_of(struct cuda_backend *c, const char *op, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s, bool training);
void plan16_free(struct cuda_backend *c);

/* attention_plan.c: attention's work lists, and the ops that run them. `a` holds the operands. */
void plan_kv_write(struct cuda_backend *c, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                   struct attn_shape s);
void plan_attention(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                    struct attn_shape s);
void plan_attention_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s);
/* The gradient's lists alone, of `tile` query pairs and key rows, on the device: fills in what `a` says of them. False
 * after an error, or when there is nothing to do. */
bool plan_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq, struct attn_shape s,
               int64_t tile);
void plan_free(struct cuda_backend *c, struct plan *p);

#endif
