/* backend: one table of functions per kind of device. The contract of each op is in ops.h. Ops return nothing: on a
 * device they are queued, and what went wrong surfaces at sync. Shapes are asserted, not reported: model code derives
 * them from a checked configuration.
 * Host and device: what a tensor views, weights and their gradients and moments, gains, biases, rotary tables, caches
 * and stats are device memory. Arrays with one entry per row or sequence (ids, pos, rows, targets, attn_seq and its
 * blocks, g in logprob_grad; logp and entropy) and argument structs are host memory: inputs have been read when the op
 * returns, outputs are there after sync. On the CPU both are the same memory. */
#ifndef KERNELRL_BACKEND_H
#define KERNELRL_BACKEND_H

#include "base/err.h"
#include "base/pool.h"
#include "tensor/formats.h"
#include "tensor/ops.h"

/* A matrix [N,K] and the layout the backend multiplies with. `packed` belongs to the backend: made by weight_pack,
 * refreshed by calling it again after w changed, released by weight_free. dt is the type its products compute in
 * (ops.h), format how it is held (formats.h). Only a matrix in FORMAT_F32 has a w; rows of any other are put straight
 * into `packed`, its only copy: those in bf16 by weight_put, where dt is DT_BF16, those in codes by weight_put_coded,
 * for products of either type. */
struct weight {
    float *w; /* [N,K], owned by the model; NULL: held by the backend alone */
    int64_t N, K;
    enum dtype dt; /* DT_F32 or DT_BF16 */
    enum weight_format format;
    void *packed;
};

struct attn_shape {
    int64_t H, G, K;
    float *kv;         /* sampling: this layer's part of the cache's block 0, see ops.h; NULL in training */
    int64_t kv_stride; /* floats from a block to the next */
};

struct rope_args {
    int64_t H, G, K;
    const int32_t *pos;           /* [T] */
    const float *cos_t, *sin_t;   /* [positions][K/2] */
    const float *q_gain, *k_gain; /* [K], or NULL: no QK-norm */
    float eps;
};

/* g is scaled, w decayed (w *= decay), then the moments and w follow PyTorch's AdamW with bias-corrected step_size. */
struct adamw_args {
    float beta1, beta2, eps, scale, decay, step_size, inv_sqrt_bias2;
};

/* One of the sites that read the same rows x: y += xa B^T with its R columns of xa. */
struct lora_site_args {
    const struct weight *b; /* [N,R] */
    struct tensor y;        /* [T,N] */
};
struct expert_ops; /* experts.h */
enum { LORA_SITES_MAX = 3 };
enum { POSTS_MAX = 2 };

struct backend {
    const char *name; /* "cpu-avx512", ... */
    /* What decides bits beside the program, the same on machines that give the same: the instruction set, or the GPU's
     * model, its multiprocessors and the library of its products. */
    const char *kind;
    struct pool *pool;

    bool bf16;                 /* takes weights of DT_BF16 */
    enum dtype act;            /* type of a bf16 model's activations, see ops.h; DT_F32 on the CPU */
    bool fast;                 /* numerics: fast. The caller sets it; products need not be I then */
    int64_t logit_chunk_bytes; /* about how many bytes of logits one LM-head chunk should take */

    /* Device memory the ops can reach; NULL when there is none left. 256-byte aligned on a device, 64 on the CPU,
     * contents undefined. */
    void *(*mem_alloc)(struct backend *be, size_t bytes);
    void (*mem_free)(struct backend *be, void *p); /* waits for queued work; NULL is fine */
    int64_t (*mem_available)(struct backend *be);  /* bytes that can still be had; INT64_MAX when unknown */
    /* Most bytes held at a time since the backend was opened: by mem_alloc, and by ops for themselves. NULL where
     * nobody counts them. */
    int64_t (*mem_peak)(struct backend *be);
    /* put: host to device. get: device to host; waits for queued work, and its own failure surfaces at sync. copy and
     * zero are queued. */
    void (*mem_put)(struct backend *be, void *dst, const void *src_host, size_t bytes);
    void (*mem_get)(struct backend *be, void *dst_host, const void *src, size_t bytes);
    void (*mem_copy)(struct backend *be, void *dst, const void *src, size_t bytes);
    void (*mem_zero)(struct backend *be, void *dst, size_t bytes);
    /* Waits for everything queued; results in host memory are there afterwards. */
    enum status (*sync)(struct backend *be, struct err *e);
    void (*close)(struct backend *be);

    void (*weight_pack)(struct backend *be, struct weight *w);
    void (*weight_free)(struct backend *be, struct weight *w);
    /* For weights without w, in the bits of bfloat16: rows [row, row+rows) from or to `rows * K` elements of host
     * memory. All rows must have been put before the weight is used. NULL where bf16 is false. weight_get also decodes
     * a matrix in codes. */
    void (*weight_put)(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src_host);
    void (*weight_get)(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst_host);

    /* Rows [row, row + m->rows) of a matrix in codes, of the format of m; m is read before it returns. NULL: the
     * backend has no products for codes. */
    void (*weight_put_coded)(struct backend *be, struct weight *w, int64_t row, const struct coded_matrix *m);

    void (*linear)(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                   bool accumulate);
    void (*linear_dx)(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w, bool accumulate);
    /* dt: of the weight whose gradient this is. */
    void (*linear_dw)(struct backend *be, float *dw, struct tensor dy, struct tensor x, enum dtype dt);
    void (*bias_grad)(struct backend *be, float *db, struct tensor dy);
    void (*embed)(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids);
    void (*embed_grad)(struct backend *be, float *dtable, struct tensor dx, const int32_t *ids);
    void (*rmsnorm)(struct backend *be, struct tensor y, struct tensor x, const float *gain, float eps);
    void (*rmsnorm_grad)(struct backend *be, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                         const float *gain, float eps, bool accumulate);
    void (*rope)(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *a);
    void (*rope_grad)(struct backend *be, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                      const struct rope_args *a);
    void (*swiglu)(struct backend *be, struct tensor y, struct tensor gu);
    void (*swiglu_grad)(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu);
    /* Stores the own rows of k [T,G*K] and v [T,G*K] behind the past keys of each sequence, in the blocks it names. */
    void (*kv_write)(struct backend *be, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                     struct attn_shape s);
    /* o, q [T,H*K]; k, v [T,G*K] (unused by sequences with a cache); stats [T,H,2] or NULL. */
    void (*attention)(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                      struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s);
    /* dq overwritten; dk, dv must hold zeros (or what is to be added to); in bfloat16 they, too, are overwritten.
     * Training sequences only; a sequence whose keys others use as their past comes before them. */
    void (*attention_grad)(struct backend *be, struct tensor dq, struct tensor dk, struct tensor dv, struct tensor d_o,
                           struct tensor o, const float *stats, struct tensor q, struct tensor k, struct tensor v,
                           const struct attn_seq *seq, int n_seq, struct attn_shape s);
    /* logits [n,V] row by row; entropy may be NULL. */
    void (*logprob)(struct backend *be, float *logp, float *entropy, struct tensor logits, const int32_t *targets);
    void (*logprob_grad)(struct backend *be, struct tensor logits, const int32_t *targets, const float *g);
    void (*axpby)(struct backend *be, struct tensor y, float a, struct tensor x, float b);
    /* y[i,:] = x[rows[i],:], and its transpose y[rows[i],:] += x[i,:] in ascending i; scale (host, or NULL: 1) has a
     * factor for each row of x. */
    void (*gather_rows)(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows);
    void (*scatter_add_rows)(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                             const float *scale);
    /* The optimizer: one AdamW update of n parameters and their moments in place, and the sum of n squares (waits). */
    void (*adamw)(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                  const struct adamw_args *a);
    double (*sum_squares)(struct backend *be, const float *x, int64_t n);

    /* The rest may be NULL: the caller then does with what is above. What fused.h has a block for is called through it,
     * and its generic form is there. */

    /* LoRA of up to LORA_SITES_MAX sites of one rank R at once, for weights of DT_BF16, in two halves, so that the
     * first may run beside the base's product with the same x: xa = scale x A^T in bfloat16, [T, n*R] end to end; and,
     * for the last xa made, each site's y += xa_i B_i^T, xa_i being columns [i*R, (i+1)*R). */
    void (*lora_down)(struct backend *be, struct tensor x, const struct weight *a, struct tensor xa, float scale);
    void (*lora_up)(struct backend *be, struct tensor xa, const struct lora_site_args *site, int n);
    /* Draws a token from each row of logits, ids from `limit` on left out; logp and entropy as of logprob. Host arrays,
     * there after sync. id -1: the row's logits are not finite. An embed behind it takes an id below 0, -1 - r, for the
     * one that row r of the last draw got (0 where that is -1). */
    void (*draw)(struct backend *be, struct tensor logits, int32_t limit, const struct draw *d, int32_t *id,
                 float *logp, float *entropy);
    /* Work ahead of its results. post closes the results asked for since the last post or sync; collect waits for the
     * oldest that are closed, and for nothing asked for since, and they are there. At most POSTS_MAX may be closed and
     * not collected; sync leaves none, and a collect with none is done. Where draw is. */
    void (*post)(struct backend *be);
    enum status (*collect)(struct backend *be, struct err *e);
    /* What is asked for between the two is one pass: host arrays of indices keep their contents at their addresses
     * until pass_end. With a key other than 0 the same ops will come again under this key with other contents: they
     * may be recorded, and replayed. pass_end false: a replay did not fit, nothing was done; ask for the pass again. */
    void (*pass_begin)(struct backend *be, uint64_t key);
    bool (*pass_end)(struct backend *be);
    /* rope, then kv_write of the keys and values it gives, for a qk in bfloat16; the columns of qk that would hold them
     * are undefined afterwards. */
    void (*rope_kv)(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *a,
                    const struct attn_seq *seq, int n_seq, struct attn_shape s);
    /* lora_up of sites that lie in gu, then swiglu of it, with the same bits; without keep gu is undefined afterwards.
     * Where lora_up is. */
    void (*lora_swiglu)(struct backend *be, struct tensor y, struct tensor gu, struct tensor xa,
                        const struct lora_site_args *site, int n, bool keep);
    /* swiglu and swiglu_grad of one gu in bfloat16, which is read once; y is neither dy nor a part of dgu. NULL: a
     * backend without it. */
    void (*swiglu_both)(struct backend *be, struct tensor dgu, struct tensor y, struct tensor dy, struct tensor gu);
    /* The gradient at x A^T of a site, dt = scale dy B in bfloat16, for a B [N,R] of DT_BF16. Where lora_up is. */
    void (*lora_dt)(struct backend *be, struct tensor dt, struct tensor dy, const struct weight *b, float scale);
    /* weight_pack of n weights of DT_BF16. */
    void (*weights_pack)(struct backend *be, struct weight *const *w, int n);
    /* y = z + x W^T for bfloat16 x and w: the bits of y = z, then linear with accumulate. */
    void (*linear_add)(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, struct tensor z);
    /* y = swiglu(x W^T) in bfloat16, with the bits of linear into gu, then swiglu; gu is undefined afterwards. NULL: a
     * backend without it. */
    void (*linear_swiglu)(struct backend *be, struct tensor y, struct tensor gu, struct tensor x,
                          const struct weight *w);
    /* For models in bfloat16: y = rmsnorm(x), and rmsnorm_grad of a dy in bfloat16 that adds to dx. */
    void (*rmsnorm_back)(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                         const float *gain, float eps, float *dgain);
    /* logprob_grad rounded to bfloat16, into dl, whose rows lie end to end; logits are undefined afterwards. */
    void (*logprob_grad16)(struct backend *be, struct tensor dl, struct tensor logits, const int32_t *targets,
                           const float *g);
    /* gather_rows in bfloat16, each row times its scale (host memory) and rounded. Where logprob_grad16 is. */
    void (*gather_scaled)(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                          const float *scale);
    /* Device memory between processes, each with a device of its own, without going through the host (NCCL). peers_id:
     * fills the name of a group, which every process is given, PEERS_ID_BYTES. peers_join: waits until all `size`
     * processes have joined. Both are false, with the reason, where it cannot be. peers_exchange, behind a join:
     * queued; out[r] of `from` goes to rank r, in[r] of `to` comes from it, for all other ranks r; the two ends name
     * the same length, and all ranks call it. peers_end, any thread's: exchanges that wait for a peer wait no more,
     * there are none any more, and the next sync fails. A backend also ends them itself where it sees that a peer is
     * gone. */
    bool (*peers_id)(struct backend *be, void *id, char *why, size_t why_bytes);
    bool (*peers_join)(struct backend *be, const void *id, int rank, int size, char *why, size_t why_bytes);
    void (*peers_exchange)(struct backend *be, const void *from, const struct byte_span *out, void *to,
                           const struct byte_span *in);
    void (*peers_end)(struct backend *be);
    int peers; /* ranks that have joined, this one included; 0: none */
    /* Mixtures of experts. NULL: the backend computes none. */
    const struct expert_ops *experts;
};
enum { PEERS_ID_BYTES = 128 };

/* What a plugin was built against: bumped whenever this table, a struct it takes or an op's contract changes. A plugin
 * exports a function of this type, kernelrl_cuda_open, which refuses an abi other than its own BACKEND_ABI. It returns
 * 0, or fills msg with the reason. */
enum { BACKEND_ABI = 21 };
typedef int backend_plugin_open_fn(int abi, int device, struct pool *pool, struct backend **out, char *msg,
                                   size_t msg_bytes);

/* Opens "cpu", "cuda" or "cuda:N" (N counts the devices CUDA_VISIBLE_DEVICES leaves). The CUDA backend is a plugin,
 * libkernelrl_cuda.so beside the program or in KERNELRL_CUDA_PLUGIN; without it, without a driver or without such a
 * device the error says what is missing. The pool is borrowed. */
enum status backend_open(const char *device, struct pool *pool, struct backend **out, struct err *e) MUST_USE;
bool backend_device_valid(const char *device); /* whether it is one of those names */

/* The CPU backend. Picks amx, avx512bf16, avx512, avx2 or reference by what the CPU has; KERNELRL_CPU forces one (and
 * fails when the CPU lacks it). The pool is borrowed. An instance is used by one thread at a time. */
enum status cpu_backend_open(struct pool *pool, struct backend **out, struct err *e) MUST_USE;
/* "amx", "avx512bf16", "avx512", "avx2" or "reference": what the process uses. */
const char *cpu_isa_name(void);
/* Lets a test switch instruction sets for backends opened later; false when the CPU lacks it or the name is unknown. */
bool cpu_isa_force(const char *name);

#endif
