#include "tensor/counting.h"

#include <stdlib.h>

#include "base/arena.h"

struct counted_block {
    char *p;
    int64_t bytes;
};

/* Parts of a thin gradient, src/cuda/bf16/lora_grad.cu; rows that share a part of a gain's, src/cuda/bf16/grad.cu. */
#define THIN_PARTS ((int64_t)4 << 20)
enum { NORM_ROWS = 16 };

/* The CUDA backend's slabs, src/cuda/host/host.h. */
enum counted_slab { X16, WIDE, LORA_X, OWN_KV, CHUNKS, COUNT, SCRATCH, SLABS };

struct paper_backend {
    struct backend be; /* first: ops cast back */
    struct counted_block *block;
    int64_t n, cap;
    char *next;
    int64_t held, limit, slab[SLABS];
};

static struct paper_backend *of(struct backend *be) { return (struct paper_backend *)be; }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *mem_alloc(struct backend *be, size_t bytes) {
    struct paper_backend *x = of(be);
    const int64_t n = ((int64_t)bytes + 255) & ~(int64_t)255;
    if (x->limit > 0 && x->held + n > x->limit) return NULL;
    if (x->n == x->cap) {
        x->cap = 2 * x->cap + 64;
        x->block = xrealloc(x->block, (size_t)x->cap * sizeof *x->block);
    }
    x->block[x->n++] = (struct counted_block){x->next, n};
    x->held += n;
    x->next += n + 256;
    return x->block[x->n - 1].p;
}

static void mem_free(struct backend *be, void *p) {
    struct paper_backend *x = of(be);
    for (int64_t i = 0; p && i < x->n; i++) {
        if (x->block[i].p != p) continue;
        x->held -= x->block[i].bytes;
        x->block[i] = x->block[--x->n];
        return;
    }
}

static int64_t mem_available(struct backend *be) {
    const struct paper_backend *x = of(be);
    return x->limit > 0 ? x->limit - x->held : INT64_MAX;
}

static void weight_room(struct backend *be, struct weight *w) {
    if (!w->packed) w->packed = mem_alloc(be, (size_t)(w->N * w->K) * sizeof(uint16_t));
}
static void weight_pack(struct backend *be, struct weight *w) {
    if (w->dt == DT_BF16)
        weight_room(be, w);
    else
        w->packed = w->w;
}
static void weight_free(struct backend *be, struct weight *w) {
    if (w->dt == DT_BF16) mem_free(be, w->packed);
    w->packed = NULL;
}
static void weight_put(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src) {
    (void)row, (void)rows, (void)src;
    weight_room(be, w);
}

static void put(struct backend *be, void *dst, const void *src, size_t bytes) {
    (void)be, (void)dst, (void)src, (void)bytes;
}
static void zero(struct backend *be, void *dst, size_t bytes) { (void)be, (void)dst, (void)bytes; }
static enum status synced(struct backend *be, struct err *e) {
    (void)be, (void)e;
    return ST_OK;
}
static void paper_close(struct backend *be) {
    if (!be) return;
    free(of(be)->block);
    free(be);
}

/* ---- what ops take for themselves: slabs that grow to the most, and a quarter more (cuda_scratch) -------------------
 */

static void use(struct backend *be, enum counted_slab s, int64_t bytes) {
    int64_t *most = &of(be)->slab[s];
    if (bytes > *most) *most = bytes + bytes / 4 + 4096;
}
static int64_t rounded(struct tensor t) { return t.dt == DT_F32 ? ((t.rows * t.cols * 2 + 255) & ~(int64_t)255) : 0; }
static int64_t elements(struct tensor t) { return t.rows * t.cols; }
static int64_t row_blocks(struct tensor t) { return (t.rows + ROW_BLOCK - 1) / ROW_BLOCK; }

static void linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                   bool accumulate) {
    (void)y, (void)bias, (void)accumulate;
    if (w->dt == DT_BF16) use(be, X16, rounded(x));
}
static void linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w, bool accumulate) {
    (void)dx, (void)accumulate;
    if (w->dt == DT_BF16) use(be, X16, rounded(dy));
}
static void linear_dw(struct backend *be, float *dw, struct tensor dy, struct tensor x, enum dtype dt) {
    (void)dw;
    if (dt == DT_BF16 && (dy.dt == DT_F32 || x.dt == DT_F32)) use(be, X16, elements(dy) * 2 + elements(x) * 2 + 512);
    if (dt == DT_BF16) use(be, SCRATCH, THIN_PARTS);
}
static void bias_grad(struct backend *be, float *db, struct tensor dy) {
    (void)db;
    if (dy.dt == DT_BF16) use(be, SCRATCH, (row_blocks(dy) * dy.cols + 1) * (int64_t)sizeof(float));
}
static void embed(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids) {
    (void)be, (void)x, (void)table, (void)ids;
}
static void embed_grad(struct backend *be, float *dtable, struct tensor dx, const int32_t *ids) {
    (void)be, (void)dtable, (void)dx, (void)ids;
}
static void rmsnorm(struct backend *be, struct tensor y, struct tensor x, const float *gain, float eps) {
    (void)be, (void)y, (void)x, (void)gain, (void)eps;
}
static void rmsnorm_grad(struct backend *be, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                         const float *gain, float eps, bool accumulate) {
    (void)dx, (void)dgain, (void)dy, (void)gain, (void)eps, (void)accumulate;
    use(be, SCRATCH, (x.rows + row_blocks(x) * x.cols) * (int64_t)sizeof(float));
}
static void rmsnorm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                         const float *gain, float eps, float *dgain) {
    (void)dx, (void)y, (void)dy, (void)gain, (void)eps;
    if (dgain) use(be, SCRATCH, (x.rows + NORM_ROWS - 1) / NORM_ROWS * x.cols * (int64_t)sizeof(float));
}
static void rope(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *a) {
    (void)be, (void)qk, (void)qkv, (void)a;
}
static void rope_grad(struct backend *be, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                      const struct rope_args *a) {
    (void)dq_gain, (void)dk_gain, (void)qkv;
    use(be, SCRATCH, (dqkv.rows * (a->H + a->G) + row_blocks(dqkv) * 2 * a->K) * (int64_t)sizeof(float));
}
static void swiglu(struct backend *be, struct tensor y, struct tensor gu) { (void)be, (void)y, (void)gu; }
static void swiglu_grad(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu) {
    (void)be, (void)dgu, (void)dy, (void)gu;
}
static void kv_write(struct backend *be, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                     struct attn_shape s) {
    (void)be, (void)k, (void)v, (void)seq, (void)n_seq, (void)s;
}
static void attention(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                      struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    (void)o, (void)stats, (void)k, (void)v;
    int64_t blocks = 0;
    for (int i = 0; i < n_seq; i++)
        if (!seq[i].blocks) blocks += (seq[i].past + seq[i].len + KV_BLOCK - 1) / KV_BLOCK;
    if (q.dt == DT_BF16) use(be, OWN_KV, blocks * kv_layer_floats_of(DT_BF16, s.G, s.K) * (int64_t)sizeof(float));
}
static void attention_grad(struct backend *be, struct tensor dq, struct tensor dk, struct tensor dv, struct tensor d_o,
                           struct tensor o, const float *stats, struct tensor q, struct tensor k, struct tensor v,
                           const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    (void)dq, (void)dk, (void)dv, (void)d_o, (void)o, (void)stats, (void)k, (void)v, (void)seq, (void)n_seq;
    use(be, SCRATCH, q.rows * s.H * (int64_t)sizeof(float));
}
/* Long rows: 21 numbers of a chunk of one, and a counter a row. */
static void logits_in_chunks(struct backend *be, struct tensor logits) {
    if (logits.cols <= LOGIT_CHUNK) return;
    use(be, CHUNKS, logits.rows * ((logits.cols + LOGIT_CHUNK - 1) / LOGIT_CHUNK) * 21 * (int64_t)sizeof(float));
    use(be, COUNT, logits.rows * (int64_t)sizeof(uint32_t));
}
static void logprob(struct backend *be, float *logp, float *entropy, struct tensor logits, const int32_t *targets) {
    (void)targets;
    logits_in_chunks(be, logits);
    for (int64_t i = 0; i < logits.rows; i++) {
        logp[i] = 0;
        if (entropy) entropy[i] = 0;
    }
}
static void logprob_grad(struct backend *be, struct tensor logits, const int32_t *targets, const float *g) {
    (void)targets, (void)g;
    logits_in_chunks(be, logits);
    use(be, SCRATCH, logits.rows * 5 * (int64_t)sizeof(float));
}
static void logprob_grad16(struct backend *be, struct tensor dl, struct tensor logits, const int32_t *targets,
                           const float *g) {
    (void)dl;
    logprob_grad(be, logits, targets, g);
}
static void axpby(struct backend *be, struct tensor y, float a, struct tensor x, float b) {
    (void)be, (void)y, (void)a, (void)x, (void)b;
}
static void gather_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows) {
    (void)be, (void)y, (void)x, (void)rows;
}
static void scatter_add_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                             const float *scale) {
    (void)be, (void)y, (void)x, (void)rows, (void)scale;
}
static void gather_scaled(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                          const float *scale) {
    (void)be, (void)y, (void)x, (void)rows, (void)scale;
}
static void adamw(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                  const struct adamw_args *a) {
    (void)be, (void)w, (void)m, (void)v, (void)g, (void)n, (void)a;
}
static double sum_squares(struct backend *be, const float *x, int64_t n) {
    (void)x;
    use(be, SCRATCH, (n / SUM_BLOCK + n / SUM_BLOCK / SUM_BLOCK + 3) * (int64_t)sizeof(double));
    return 0;
}
static void lora_down(struct backend *be, struct tensor x, const struct weight *a, struct tensor xa, float scale) {
    (void)a, (void)xa, (void)scale;
    use(be, LORA_X, rounded(x));
}
static void lora_up(struct backend *be, struct tensor xa, const struct lora_site_args *site, int n) {
    (void)be, (void)xa, (void)site, (void)n;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

struct paper paper_of(const struct backend *be) {
    struct backend *b = (struct backend *)be;
    const int64_t have = b->mem_available(b);
    return (struct paper){be->bf16, be->act, be->logit_chunk_bytes, have == INT64_MAX ? 0 : i64_max(have, 1)};
}
struct paper paper_cuda(int64_t bytes) {
    return (struct paper){true, DT_BF16, CUDA_LOGIT_CHUNK, bytes};
}

struct backend *paper_open(const struct paper *p) {
    struct paper_backend *x = xcalloc(1, sizeof *x);
    *x = (struct paper_backend){.next = (char *)(uintptr_t)(1 << 20), .limit = p->bytes};
    x->be = (struct backend){
        .name = "paper",
        .bf16 = p->bf16,
        .act = p->act,
        .logit_chunk_bytes = p->logit_chunk_bytes,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .mem_available = mem_available,
        .mem_put = put,
        .mem_get = put,
        .mem_copy = put,
        .mem_zero = zero,
        .sync = synced,
        .close = paper_close,
        .weight_pack = weight_pack,
        .weight_free = weight_free,
        .weight_put = p->bf16 ? weight_put : NULL,
        .linear = linear,
        .linear_dx = linear_dx,
        .linear_dw = linear_dw,
        .bias_grad = bias_grad,
        .embed = embed,
        .embed_grad = embed_grad,
        .rmsnorm = rmsnorm,
        .rmsnorm_grad = rmsnorm_grad,
        .rope = rope,
        .rope_grad = rope_grad,
        .swiglu = swiglu,
        .swiglu_grad = swiglu_grad,
        .kv_write = kv_write,
        .attention = attention,
        .attention_grad = attention_grad,
        .logprob = logprob,
        .logprob_grad = logprob_grad,
        .axpby = axpby,
        .gather_rows = gather_rows,
        .scatter_add_rows = scatter_add_rows,
        .adamw = adamw,
        .sum_squares = sum_squares,
        .lora_down = p->act == DT_BF16 ? lora_down : NULL,
        .lora_up = p->act == DT_BF16 ? lora_up : NULL,
        .rmsnorm_back = p->act == DT_BF16 ? rmsnorm_back : NULL,
        .logprob_grad16 = p->act == DT_BF16 ? logprob_grad16 : NULL,
        .gather_scaled = p->act == DT_BF16 ? gather_scaled : NULL,
    };
    return &x->be;
}

int64_t paper_bytes(const struct backend *be) { return ((const struct paper_backend *)be)->held; }

int64_t paper_scratch_bytes(const struct backend *be) {
    int64_t sum = 0;
    for (int i = 0; i < SLABS; i++) sum += ((const struct paper_backend *)be)->slab[i];
    return sum;
}
