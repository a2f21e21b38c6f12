#include "tensor/counting.h"

#include <stdlib.h>

#include "base/arena.h"
#include "tensor/cuda_scratch.h"
#include "tensor/experts.h"
#include "tensor/mem_held.h"
#include "tensor/pieces.h"

struct paper_backend {
    struct backend be; /* first: ops cast back */
    struct mem_held held;
    struct pieces pieces;
    char *next;
    int64_t limit, slab[CUDA_SLABS];
    int64_t ring, results;          /* places of index arrays and of results */
    uint64_t pass[CUDA_RECORDINGS]; /* keys of the passes that are recorded */
    int n_passes;
    bool recorded; /* true: the pass under way is one of them */
};

static struct paper_backend *of(struct backend *be) { return (struct paper_backend *)be; }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *mem_alloc(struct backend *be, size_t bytes) {
    struct paper_backend *x = of(be);
    const int64_t n = mem_held_size((int64_t)bytes);
    if (x->limit > 0 && x->held.bytes + n > x->limit) return NULL;
    void *p = x->next;
    mem_held_add(&x->held, p, n);
    x->next += n + 256;
    return p;
}

static void mem_free(struct backend *be, void *p) { mem_held_drop(&of(be)->held, p); }

static int64_t mem_available(struct backend *be) {
    const struct paper_backend *x = of(be);
    return x->limit > 0 ? x->limit - x->held.bytes : INT64_MAX;
}

static int64_t mem_peak(struct backend *be) { return of(be)->held.peak + paper_scratch_bytes(be); }

/* CUDA's weights lie in pieces, and those of other backends do not. */
static void *weight_take(struct backend *be, int64_t bytes) {
    return be->act == DT_BF16 ? pieces_take(&of(be)->pieces, be, bytes) : mem_alloc(be, (size_t)bytes);
}
static void weight_room(struct backend *be, struct weight *w) {
    if (!w->packed) w->packed = weight_take(be, w->N * w->K * (int64_t)sizeof(uint16_t));
}
static void weight_pack(struct backend *be, struct weight *w) {
    if (w->dt == DT_BF16)
        weight_room(be, w);
    else
        w->packed = w->w;
}
/* The pieces of a matrix in codes. */
struct paper_coded {
    void *piece[CODED_PARTS];
    int n;
};
static void weight_free(struct backend *be, struct weight *w) {
    struct paper_coded *p = format_is_coded(w->format) ? w->packed : NULL;
    for (int i = 0; p && i < p->n; i++) pieces_give(&of(be)->pieces, be, p->piece[i]);
    if (!p && w->dt == DT_BF16) pieces_give(&of(be)->pieces, be, w->packed);
    free(p);
    w->packed = NULL;
}
static void weight_put_coded(struct backend *be, struct weight *w, int64_t row, const struct coded_matrix *m) {
    (void)row;
    if (!w->packed) w->packed = xcalloc(1, sizeof(struct paper_coded));
    struct paper_coded *p = w->packed;
    ASSERT(p->n < CODED_PARTS);
    p->piece[p->n++] = weight_take(be, cuda_coded_bytes(m));
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
    free(of(be)->held.block);
    pieces_close(&of(be)->pieces);
    free(be);
}

/* ---- what ops take for themselves (cuda_scratch.h) ----------------------------------------------------------------
 */

static void use(struct backend *be, enum cuda_slab s, int64_t bytes) {
    int64_t *have = &of(be)->slab[s];
    *have = cuda_slab_bytes(*have, bytes);
}
/* Arrays on their way to the device, and results on their way to the host. */
static void stage(struct backend *be, int64_t bytes) {
    struct paper_backend *x = of(be);
    x->ring = i64_max(x->ring, cuda_ring_bytes(bytes));
}
static void result(struct backend *be, int64_t rows) {
    struct paper_backend *x = of(be);
    x->results = i64_max(x->results, cuda_results_bytes(rows * CUDA_ROW_STATS_BYTES));
}
static int64_t indices(int64_t n) { return n * (int64_t)sizeof(int32_t); }

static void pass_begin(struct backend *be, uint64_t key) {
    struct paper_backend *x = of(be);
    int i = 0;
    x->recorded = key != 0;
    while (i < x->n_passes && x->pass[i] != key) i++;
    if (key != 0 && i == x->n_passes && i < CUDA_RECORDINGS) x->pass[x->n_passes++] = key;
}
static bool pass_end(struct backend *be) {
    of(be)->recorded = false;
    return true;
}

static void factors(struct backend *be, enum cuda_slab s, struct tensor x) {
    if (!cuda_is_factor(x)) use(be, s, cuda_factor_bytes(x));
}
static void expanded(struct backend *be, const struct weight *w) {
    if (format_is_coded(w->format)) use(be, CUDA_CODED, cuda_expanded_bytes(w->dt, w->N, w->K));
}
static void linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                   bool accumulate) {
    (void)bias;
    expanded(be, w);
    if (w->dt != DT_BF16) {
        use(be, CUDA_WIDE, cuda_wide_bytes(x)); /* a matrix in float32 of a model in bfloat16 */
        return;
    }
    factors(be, CUDA_X16, x);
    if (accumulate && y.dt == DT_F32 && cuda_long_parts(w->N, w->K) > 1)
        use(be, CUDA_PARTS, cuda_long_bytes(y.rows, w->N));
}
static void linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w, bool accumulate) {
    (void)accumulate;
    expanded(be, w);
    if (w->dt == DT_BF16)
        factors(be, CUDA_X16, dy);
    else
        use(be, CUDA_WIDE, cuda_wide_bytes(dx));
}
static void linear_dw(struct backend *be, float *dw, struct tensor dy, struct tensor x, enum dtype dt) {
    (void)dw;
    if (dt != DT_BF16) {
        use(be, CUDA_WIDE, cuda_wide_bytes(dy) + cuda_wide_bytes(x));
        return;
    }
    const int64_t both = cuda_factor_bytes(dy) + cuda_factor_bytes(x);
    if (!cuda_is_factor(dy) || !cuda_is_factor(x)) use(be, CUDA_X16, both);
    use(be, CUDA_SCRATCH,
        cuda_thin_bytes(CUDA_MULTIPROCESSORS, x.rows, i64_max(dy.cols, x.cols), i64_min(dy.cols, x.cols)));
}
static void bias_grad(struct backend *be, float *db, struct tensor dy) {
    (void)db;
    if (dy.dt != DT_BF16) return;
    use(be, CUDA_SCRATCH, cuda_bias_grad_bytes(dy.rows, dy.cols));
    if (!cuda_bias_grad_takes(dy.cols)) use(be, CUDA_WIDE, cuda_wide_bytes(dy));
}
static void embed(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids) {
    (void)table, (void)ids;
    stage(be, indices(x.rows));
}
/* Lists of the rows that meet in one destination, and their scales. */
static void scatter_add_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                             const float *scale) {
    (void)y, (void)rows, (void)scale;
    stage(be, 4 * indices(x.rows));
}
static void embed_grad(struct backend *be, float *dtable, struct tensor dx, const int32_t *ids) {
    (void)dtable;
    scatter_add_rows(be, dx, dx, ids, NULL);
}
static void rmsnorm(struct backend *be, struct tensor y, struct tensor x, const float *gain, float eps) {
    (void)be, (void)y, (void)x, (void)gain, (void)eps;
}
static void rmsnorm_grad(struct backend *be, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                         const float *gain, float eps, bool accumulate) {
    (void)dx, (void)dgain, (void)dy, (void)gain, (void)eps, (void)accumulate;
    use(be, CUDA_SCRATCH, cuda_block_sums_bytes(x.rows, x.rows, x.cols));
}
static void rmsnorm_back(struct backend *be, struct tensor dx, struct tensor y, struct tensor dy, struct tensor x,
                         const float *gain, float eps, float *dgain) {
    (void)y;
    if (dgain) use(be, CUDA_SCRATCH, cuda_norm_back_bytes(x.rows, x.cols));
    if (cuda_norm_back_takes(x.cols)) return;
    use(be, CUDA_WIDE, cuda_wide_bytes(dy));
    rmsnorm_grad(be, dx, dgain, dy, x, gain, eps, true);
}
static void rope(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *a) {
    (void)qkv, (void)a;
    stage(be, indices(qk.rows));
}
static void rope_grad(struct backend *be, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                      const struct rope_args *a) {
    (void)dq_gain, (void)dk_gain, (void)qkv;
    use(be, CUDA_SCRATCH, cuda_block_sums_bytes(dqkv.rows * (a->H + a->G), dqkv.rows, 2 * a->K));
}
static void swiglu(struct backend *be, struct tensor y, struct tensor gu) { (void)be, (void)y, (void)gu; }
static void swiglu_grad(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu) {
    (void)be, (void)dgu, (void)dy, (void)gu;
}
static void kv_write(struct backend *be, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                     struct attn_shape s) {
    (void)be, (void)k, (void)v, (void)seq, (void)n_seq, (void)s;
}
/* Blocks that sequences of a batch share are counted once for each. */
static void attention(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                      struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    (void)o, (void)stats, (void)k, (void)v;
    int64_t blocks = 0, units = 0, split = 0;
    if (q.dt != DT_BF16) return;
    for (int i = 0; i < n_seq; i++) {
        if (!seq[i].blocks) blocks += (seq[i].past + seq[i].len + KV_BLOCK - 1) / KV_BLOCK;
        units += cuda_units(&seq[i], s.H, s.G) * s.G;
        if (cuda_is_split(&seq[i], s.H, s.G)) split += s.G;
    }
    if (of(be)->recorded) units = cuda_recorded_size(i64_max(units, 1));
    if (blocks > 0) use(be, CUDA_OWN_KV, cuda_own_kv_bytes(blocks, s.G, s.K));
    if (split == 0) return;
    use(be, CUDA_UNIT_PART, cuda_unit_bytes(units, s.K));
    use(be, CUDA_UNIT_COUNT, split * (int64_t)sizeof(unsigned));
}
static void attention_grad(struct backend *be, struct tensor dq, struct tensor dk, struct tensor dv, struct tensor d_o,
                           struct tensor o, const float *stats, struct tensor q, struct tensor k, struct tensor v,
                           const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    (void)dq, (void)dk, (void)dv, (void)d_o, (void)o, (void)stats, (void)k, (void)v, (void)seq, (void)n_seq;
    use(be, CUDA_SCRATCH, cuda_attention_grad_bytes(q.dt, q.rows, s.H));
}
static void logits_in_chunks(struct backend *be, struct tensor logits) {
    result(be, logits.rows);
    if (logits.cols > LOGIT_CHUNK) use(be, CUDA_CHUNKS, cuda_chunks_bytes(logits.rows, logits.cols));
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
    stage(be, 2 * indices(logits.rows));
    logits_in_chunks(be, logits);
    if (logits.cols > LOGIT_CHUNK) use(be, CUDA_SCRATCH, logits.rows * CUDA_ROW_STATS_BYTES);
}
/* A token is drawn without looking. */
static void draw(struct backend *be, struct tensor logits, int32_t limit, const struct draw *how, int32_t *id,
                 float *logp, float *entropy) {
    (void)limit, (void)how;
    stage(be, logits.rows * (int64_t)sizeof *how);
    result(be, logits.rows);
    use(be, CUDA_CHUNKS, cuda_chunks_bytes(logits.rows, logits.cols));
    use(be, CUDA_DRAWN, indices(logits.rows));
    for (int64_t i = 0; i < logits.rows; i++) {
        id[i] = 0;
        logp[i] = 0;
        if (entropy) entropy[i] = 0;
    }
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
    (void)x, (void)rows;
    stage(be, indices(y.rows));
}
static void gather_scaled(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                          const float *scale) {
    (void)x, (void)rows, (void)scale;
    stage(be, 2 * indices(y.rows));
}
static void adamw(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                  const struct adamw_args *a) {
    (void)be, (void)w, (void)m, (void)v, (void)g, (void)n, (void)a;
}
static double sum_squares(struct backend *be, const float *x, int64_t n) {
    (void)x;
    use(be, CUDA_SCRATCH, (1 + cuda_sum_doubles(n)) * (int64_t)sizeof(double));
    return 0;
}
static void lora_down(struct backend *be, struct tensor x, const struct weight *a, struct tensor xa, float scale) {
    (void)xa, (void)scale;
    const int64_t tiles = cuda_lora_tiles(x.rows, a->K, a->N);
    factors(be, CUDA_LORA_X, x);
    if (tiles == 0) return;
    use(be, CUDA_LORA_PART, tiles * CUDA_LORA_TILE * (int64_t)sizeof(float));
    use(be, CUDA_LORA_COUNT, tiles * (int64_t)sizeof(unsigned));
}
static void lora_up(struct backend *be, struct tensor xa, const struct lora_site_args *site, int n) {
    (void)be, (void)xa, (void)site, (void)n;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

static void route(struct backend *be, const struct routing *r, struct tensor logits, bool normalised, bool given) {
    (void)be, (void)r, (void)logits, (void)normalised, (void)given;
}
static void route_grad(struct backend *be, struct tensor dlogits, const struct routing *r, const float *dweight,
                       struct tensor logits, bool normalised) {
    (void)be, (void)dlogits, (void)r, (void)dweight, (void)logits, (void)normalised;
}
static void expert_rows_of(struct backend *be, struct expert_places at, const struct routing *r, int64_t row,
                           int64_t n) {
    (void)be, (void)at, (void)r, (void)row, (void)n;
}
static void expert_gather(struct backend *be, struct tensor y, struct tensor x, const struct routing *r,
                          bool weighted) {
    (void)be, (void)y, (void)x, (void)r, (void)weighted;
}
static void expert_product(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, int64_t E,
                           struct expert_places at, float scale, bool accumulate) {
    (void)y, (void)at, (void)scale, (void)accumulate;
    if (format_is_coded(w->format)) use(be, CUDA_CODED, cuda_experts_bytes(w->dt, E, w->N, w->K));
    if (w->dt == DT_BF16) factors(be, CUDA_X16, x);
}
static void expert_dw(struct backend *be, float *dw, int64_t stride, struct tensor dy, struct tensor x, int64_t E,
                      struct expert_places at, enum dtype dt) {
    (void)dw, (void)stride, (void)E, (void)at;
    if (dt == DT_BF16 && (!cuda_is_factor(dy) || !cuda_is_factor(x)))
        use(be, CUDA_X16, cuda_factor_bytes(dy) + cuda_factor_bytes(x));
}
static void expert_combine(struct backend *be, struct tensor y, struct tensor z, struct tensor o,
                           const struct routing *r, bool weighted) {
    (void)be, (void)y, (void)z, (void)o, (void)r, (void)weighted;
}
static void expert_dot(struct backend *be, float *dweight, struct tensor a, struct tensor b, const struct routing *r) {
    (void)be, (void)dweight, (void)a, (void)b, (void)r;
}
static void expert_scale(struct backend *be, struct tensor x, const struct routing *r) { (void)be, (void)x, (void)r; }

static const struct expert_ops expert_ops = {
    .route = route,
    .route_grad = route_grad,
    .rows_of = expert_rows_of,
    .gather = expert_gather,
    .linear = expert_product,
    .linear_dx = expert_product,
    .linear_dw = expert_dw,
    .combine = expert_combine,
    .dot = expert_dot,
    .scale = expert_scale,
};

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
        .kind = "paper",
        .bf16 = p->bf16,
        .act = p->act,
        .logit_chunk_bytes = p->logit_chunk_bytes,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .mem_available = mem_available,
        .mem_peak = mem_peak,
        .mem_put = put,
        .mem_get = put,
        .mem_copy = put,
        .mem_zero = zero,
        .sync = synced,
        .close = paper_close,
        .weight_pack = weight_pack,
        .weight_free = weight_free,
        .weight_put = p->bf16 ? weight_put : NULL,
        .weight_put_coded = weight_put_coded,
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
        .draw = p->act == DT_BF16 ? draw : NULL,
        .pass_begin = p->act == DT_BF16 ? pass_begin : NULL,
        .pass_end = p->act == DT_BF16 ? pass_end : NULL,
        .experts = &expert_ops,
    };
    return &x->be;
}

int64_t paper_bytes(const struct backend *be) { return ((const struct paper_backend *)be)->held.bytes; }

int64_t paper_scratch_bytes(const struct backend *be) {
    const struct paper_backend *x = (const struct paper_backend *)be;
    if (x->be.act != DT_BF16) return 0; /* another backend than CUDA's */
    int64_t sum = x->ring + x->results + x->n_passes * (int64_t)CUDA_ARENA_BYTES;
    for (int i = 0; i < CUDA_SLABS; i++) sum += x->slab[i];
    return sum;
}
