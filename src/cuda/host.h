/* What the host files of the CUDA backend share. Not for other modules. */
#ifndef KERNELRL_CUDA_HOST_H
#define KERNELRL_CUDA_HOST_H

#include "cuda/kernels.h"
#include "tensor/backend.h"

struct CUstream_st;
struct CUevent_st;

/* Pinned memory and its twin on the device, used round and round in two halves. */
struct ring {
    char *host, *dev;
    size_t bytes, at;
    struct CUevent_st *left[2]; /* recorded when the host moved on from a half */
    bool half_used[2];
};

/* A piece of the ring being filled. */
struct stage {
    char *host, *dev;
    size_t bytes, used;
};

struct result_item {
    void *dst; /* host */
    size_t at, bytes;
};
struct results {
    char *host, *dev;
    size_t bytes, used;
    struct result_item *item;
    int n, cap;
};

/* Device memory that only grows. */
struct slab {
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
    bool valid, decode;
    struct slab dev;
    int64_t n_tasks, n_key_tasks, max_keys, max_pairs;
    size_t table_at, key_at, user_at; /* offsets in dev */
};

struct cuda_backend {
    struct backend be; /* first: ops cast back */
    int device;
    struct cu_dev dev;
    struct CUstream_st *stream;
    char name[300], error[600]; /* error: the first one, or "" */
    struct ring ring;
    struct results results;
    struct slab scratch;
    struct plan forward, backward;
    int32_t *slot; /* of scatter, [n_slot] */
    int64_t n_slot;
};

/* Whether a CUDA call went well; the first failure is kept under the op's name. */
bool cuda_ok(struct cuda_backend *c, const char *op, int rc);
/* Keeps an error of our own. */
void cuda_refuse(struct cuda_backend *c, const char *op, const char *why);

/* Room in the ring; stage_add copies an array into it (or, with src NULL, leaves room to fill through stage_host) and
 * returns where it will be on the device; stage_send queues the copy. One stage at a time. False after an error. */
bool stage_begin(struct cuda_backend *c, const char *op, size_t bytes, struct stage *s);
void *stage_add(struct stage *s, const void *src, size_t bytes);
void *stage_host(const struct stage *s, const void *dev);
bool stage_send(struct cuda_backend *c, const char *op, const struct stage *s);

/* At least `bytes` of device memory, old contents lost when it grows. NULL after an error. */
void *cuda_scratch(struct cuda_backend *c, const char *op, struct slab *s, size_t bytes);
struct cu_mat mat_of(struct tensor t);

/* plan.c: attention's work lists, and the ops that run them. `a` holds the operands. */
void plan_kv_write(struct cuda_backend *c, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                   struct attn_shape s);
void plan_attention(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                    struct attn_shape s);
void plan_attention_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s);
void plan_free(struct plan *p);

#endif
