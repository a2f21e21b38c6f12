/* The CPU backend: it picks the kernels for this machine, cuts work over the pool's threads, and keeps scratch memory.
 * Work is always cut over outputs, never over a reduction, so every number of threads gives the same bits. */
#include "cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/attention.h"
#include "cpu/bf16_pairs.h"
#include "cpu/coded.h"
#include "cpu/experts.h"

struct cpu_backend {
    struct backend be; /* The first member, because ops cast a struct backend back. */
    const struct cpu_kernels *k;
    struct pair_space pairs;
    float *scratch, *partial;
    int64_t scratch_floats, partial_floats;
    double *sums; /* [SUM_ROUND], or NULL. */
    struct attn_plan plan;
};

static struct cpu_backend *cpu_of(struct backend *be) { return (struct cpu_backend *)be; }

/* ---- choice of instruction set ----------------------------------------------------------------------------------- */

static const struct cpu_isa isa_reference = {"reference", &cpu_kernels_reference, &cpu_pairs_reference};
#if defined(__x86_64__)
static const struct cpu_isa isa_avx2 = {"avx2", &cpu_kernels_avx2, &cpu_pairs_avx2};
static const struct cpu_isa isa_avx512 = {"avx512", &cpu_kernels_avx512, &cpu_pairs_avx512};
static const struct cpu_isa isa_avx512bf16 = {"avx512bf16", &cpu_kernels_avx512, &cpu_pairs_avx512bf16};
static const struct cpu_isa isa_amx = {"amx", &cpu_kernels_avx512, &cpu_pairs_amx};

/* In CPUID leaf 7, EDX, bit 22 is AMX-BF16 and bit 24 AMX-TILE (Intel SDM volume 2, CPUID). */
static bool has_amx(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) && (d & 1u << 24) && cpu_amx_permitted();
}
#endif

/* Returns NULL when this machine lacks the instruction set, or when none has this name. */
static const struct cpu_isa *isa_named(const char *name) {
    if (strcmp(name, "reference") == 0) return &isa_reference;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    if (strcmp(name, "avx2") == 0 && avx2) return &isa_avx2;
    if (strcmp(name, "avx512") == 0 && avx512) return &isa_avx512;
    if (strcmp(name, "avx512bf16") == 0 && bf16) return &isa_avx512bf16;
    if (strcmp(name, "amx") == 0 && bf16 && has_amx()) return &isa_amx;
#endif
    return NULL;
}

static const struct cpu_isa *_Atomic chosen;

/* Returns the best that this machine has, or the one that KERNELRL_CPU names. A name that cannot be used falls back
 * here, and is refused by cpu_backend_open. */
const struct cpu_isa *cpu_isa_current(void) {
    const struct cpu_isa *isa = atomic_load(&chosen);
    if (isa) return isa;
    const char *forced = getenv("KERNELRL_CPU");
    if (forced && *forced) isa = isa_named(forced);
    static const char *const best_first[] = {"amx", "avx512bf16", "avx512", "avx2", "reference"};
    for (size_t i = 0; !isa; i++) isa = isa_named(best_first[i]);
    atomic_store(&chosen, isa);
    return isa;
}

const char *cpu_isa_name(void) { return cpu_isa_current()->name; }

bool cpu_isa_force(const char *name) {
    const struct cpu_isa *isa = isa_named(name);
    if (isa) atomic_store(&chosen, isa);
    return isa != NULL;
}

void logprob_ids(const float *logits, int64_t V, const int32_t *ids, int n, float *logp) {
    cpu_isa_current()->k->logprob_ids(logits, V, ids, n, logp);
}

float logprob_row(const float *logits, int64_t V, int32_t target, float *entropy) {
    ASSERT(target >= 0 && target < V);
    return cpu_isa_current()->k->logprob_row(logits, V, target, entropy);
}

void exp_f32(float *y, const float *x, int64_t n) { cpu_isa_current()->k->exp_f32(y, x, n); }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *cpu_alloc(struct backend *be, size_t bytes) {
    (void)be;
    return aligned_alloc(64, (bytes + 64) & ~(size_t)63);
}

static void cpu_free(struct backend *be, void *p) {
    (void)be;
    free(p);
}

/* Returns the first number in a file's beginning, behind key when that is given, or -1. Every training batch asks, so
 * nothing is allocated. */
static int64_t number_in(const char *path, const char *key) {
    char text[2048];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 0) return -1;
    text[n] = 0;
    const char *p = key ? strstr(text, key) : text;
    long long v;
    return p && sscanf(p + (key ? strlen(key) : 0), " %lld", &v) == 1 ? (int64_t)v : -1;
}

/* Returns what memory the machine has left, or this process's control group where that is less. */
static int64_t cpu_available(struct backend *be) {
    (void)be;
    const int64_t kb = number_in("/proc/meminfo", "MemAvailable:");
    const int64_t max = number_in("/sys/fs/cgroup/memory.max", NULL);
    const int64_t used = number_in("/sys/fs/cgroup/memory.current", NULL);
    int64_t bytes = kb >= 0 ? kb * 1024 : INT64_MAX;
    if (max > 0 && used >= 0) bytes = i64_min(bytes, max - used);
    return i64_max(bytes, 0);
}

static void cpu_copy(struct backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes) memcpy(dst, src, bytes);
}

static void cpu_zero(struct backend *be, void *dst, size_t bytes) {
    (void)be;
    if (bytes) memset(dst, 0, bytes);
}

/* Scratch grows to a high-water mark and stays, so nothing is allocated in a steady state. */
static float *grow(float **p, int64_t *have, int64_t want) {
    if (*have < want) {
        free(*p);
        *p = xaligned((size_t)want * sizeof(float));
        *have = want;
    }
    return *p;
}

static float *thread_scratch(struct cpu_backend *c, int64_t floats_each) {
    return grow(&c->scratch, &c->scratch_floats, floats_each * pool_threads(c->be.pool));
}

/* Waking threads costs microseconds, so less work than this for each thread stays with the caller. This changes no
 * bit. */
enum { MIN_PRODUCT = 1 << 18, MIN_ELEMENTS = 1 << 14 };

static int64_t row_grain(int64_t elements_per_row) { return i64_max(1, MIN_ELEMENTS / i64_max(1, elements_per_row)); }

static enum status cpu_sync(struct backend *be, struct err *e) {
    (void)be;
    (void)e;
    return ST_OK; /* Ops have finished when they return. */
}

static void cpu_close(struct backend *be) {
    if (!be) return;
    struct cpu_backend *c = cpu_of(be);
    free(c->scratch);
    free(c->partial);
    free(c->sums);
    pair_space_free(&c->pairs);
    attn_plan_free(&c->plan);
    free(c);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void run_gemm(struct backend *be, struct gemm *g) {
    if (g->M <= 0 || g->N <= 0) return;
    const int64_t threads = pool_threads(be->pool), panels = (g->N + PANEL - 1) / PANEL;
    /* Rows of an item. One pass of a block of b over them should pay for fetching it. There are fewer only where the
     * threads would otherwise get unequal shares. */
    /* Where outputs are many and the reduction is short, or where outputs fit one strip, there is little to do with
     * what is fetched (LoRA). Then few rows at a time are walked from end to end, which memory serves best. */
    const bool thin = g->a_ks == 1 && !g->coded && (panels == 1 || g->K <= 32);
    g->rows_outer = thin;
    g->chunk = i64_min(g->M, g->coded ? 1536 : thin ? 24 : 240); /* Codes are decoded once for all rows of an item. */
    for (;;) {
        g->n_chunks = (g->M + g->chunk - 1) / g->chunk;
        const int64_t items = panels * g->n_chunks, rounds = (items + threads - 1) / threads;
        if (g->chunk <= (g->coded ? 240 : 24) || 10 * items >= 9 * rounds * threads) break;
        g->chunk = (g->chunk / 2 + 5) / 6 * 6;
    }
    if (g->b_ld || g->coded) g->scratch = thread_scratch(cpu_of(be), GEMM_KC * PANEL);
    const bool small = g->M * g->N * g->K < MIN_PRODUCT;
    pool_for(small ? NULL : be->pool, panels * g->n_chunks, 1, cpu_of(be)->k->gemm, g);
}

static void cpu_weight_pack(struct backend *be, struct weight *w) {
    if (w->dt == DT_BF16) {
        pairs_weight_pack(&cpu_of(be)->pairs, w);
        return;
    }
    const int64_t panels = (w->N + PANEL - 1) / PANEL;
    if (!w->packed) w->packed = packed_alloc((size_t)(panels * PANEL * w->K) * sizeof(float));
    struct pack_args a = {w->w, w->packed, w->N, w->K};
    pool_for(be->pool, panels, 1, cpu_of(be)->k->pack, &a);
}

static void cpu_weight_free(struct backend *be, struct weight *w) {
    (void)be;
    if (format_is_coded(w->format))
        coded_free(w->packed);
    else
        free(w->packed);
    w->packed = NULL;
}

static void cpu_weight_put(struct backend *be, struct weight *w, int64_t row, int64_t rows, const uint16_t *src) {
    pairs_weight_put(&cpu_of(be)->pairs, w, row, rows, src);
}

static void cpu_weight_get(struct backend *be, const struct weight *w, int64_t row, int64_t rows, uint16_t *dst) {
    (void)be;
    if (format_is_coded(w->format))
        coded_get(w, row, rows, dst);
    else
        pairs_weight_get(w, row, rows, dst);
}

static void cpu_weight_put_coded(struct backend *be, struct weight *w, int64_t row, const struct coded_matrix *m) {
    coded_put(be->pool, w, row, m);
}

static const struct coded *coded_of(const struct weight *w) { return format_is_coded(w->format) ? w->packed : NULL; }

static void cpu_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w, const float *bias,
                       bool accumulate) {
    ASSERT(y.rows == x.rows && y.cols == w->N && x.cols == w->K && w->packed && !(bias && accumulate));
    if (w->dt == DT_BF16) {
        pairs_linear(&cpu_of(be)->pairs, y, x, w, bias, accumulate);
        return;
    }
    struct gemm g = {.a = x.data,
                     .a_rs = x.ld,
                     .a_ks = 1,
                     .b = w->packed,
                     .coded = coded_of(w),
                     .c = y.data,
                     .ldc = y.ld,
                     .bias = bias,
                     .accumulate = accumulate,
                     .M = y.rows,
                     .N = w->N,
                     .K = w->K};
    run_gemm(be, &g);
}

static void cpu_linear_dx(struct backend *be, struct tensor dx, struct tensor dy, const struct weight *w,
                          bool accumulate) {
    ASSERT(dx.rows == dy.rows && dy.cols == w->N && dx.cols == w->K);
    if (w->dt == DT_BF16) {
        ASSERT(w->packed);
        pairs_linear_dx(&cpu_of(be)->pairs, dx, dy, w, accumulate);
        return;
    }
    struct gemm g = {.a = dy.data,
                     .a_rs = dy.ld,
                     .a_ks = 1,
                     .b = w->w,
                     .b_ld = w->K,
                     .coded = coded_of(w),
                     .c = dx.data,
                     .ldc = dx.ld,
                     .accumulate = accumulate,
                     .M = dx.rows,
                     .N = w->K,
                     .K = w->N};
    run_gemm(be, &g);
}

static void cpu_linear_dw(struct backend *be, float *dw, struct tensor dy, struct tensor x, enum dtype dt) {
    ASSERT(dy.rows == x.rows);
    if (x.rows == 0) return;
    if (dt == DT_BF16) {
        pairs_linear_dw(&cpu_of(be)->pairs, dw, dy, x);
        return;
    }
    struct gemm g = {.a = dy.data,
                     .a_rs = 1,
                     .a_ks = dy.ld,
                     .b = x.data,
                     .b_ld = x.ld,
                     .c = dw,
                     .ldc = x.cols,
                     .accumulate = true,
                     .M = dy.cols,
                     .N = x.cols,
                     .K = x.rows};
    run_gemm(be, &g);
}

/* ---- column sums and rows by index --------------------------------------------------------------------------------
 */

struct cpu_columns {
    struct tensor x, y;
    float *out;
    const float *src;
    const int32_t *ids;
    const float *scale; /* The factors of the rows of x, or NULL. */
    float a, b;
};

static inline float *row_at(struct tensor t, int64_t r) { return (float *)t.data + r * t.ld; }

static void add_columns(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct cpu_columns *p = ctx;
    for (int64_t t = 0; t < p->x.rows; t++) {
        const float *x = row_at(p->x, t);
        for (int64_t j = begin; j < end; j++) p->out[j] += x[j];
    }
}

static void cpu_bias_grad(struct backend *be, float *db, struct tensor dy) {
    struct cpu_columns a = {.x = dy, .out = db};
    pool_for(dy.rows * dy.cols < MIN_ELEMENTS ? NULL : be->pool, dy.cols, 64, add_columns, &a);
}

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct cpu_columns *p = ctx;
    for (int64_t t = begin; t < end; t++)
        memcpy(row_at(p->y, t), row_at(p->x, p->ids[t]), (size_t)p->y.cols * sizeof(float));
}

static void cpu_gather_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows) {
    ASSERT(x.cols == y.cols);
    struct cpu_columns a = {.x = x, .y = y, .ids = rows};
    pool_for(be->pool, y.rows, row_grain(y.cols), embed_rows, &a);
}

static void cpu_embed(struct backend *be, struct tensor x, const struct weight *table, const int32_t *ids) {
    ASSERT(x.cols == table->K && !format_is_coded(table->format));
    if (!table->w) {
        pairs_embed(&cpu_of(be)->pairs, x, table, ids);
        return;
    }
    struct cpu_columns a = {.x = {table->w, DT_F32, INT64_MAX, x.cols, x.cols}, .y = x, .ids = ids};
    pool_for(be->pool, x.rows, row_grain(x.cols), embed_rows, &a);
}

/* Each thread owns a range of columns and walks all rows in order. So rows with the same output add up in a fixed
 * order, without sorting or atomics. */
static void scatter_columns(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct cpu_columns *p = ctx;
    for (int64_t t = 0; t < p->x.rows; t++) {
        const float *x = row_at(p->x, t);
        float *y = row_at(p->y, p->ids[t]);
        if (p->scale)
            for (int64_t j = begin; j < end; j++) y[j] += p->scale[t] * x[j];
        else
            for (int64_t j = begin; j < end; j++) y[j] += x[j];
    }
}

static void cpu_scatter_add_rows(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                                 const float *scale) {
    ASSERT(x.cols == y.cols);
    struct cpu_columns a = {.x = x, .y = y, .ids = rows, .scale = scale};
    pool_for(x.rows * x.cols < MIN_ELEMENTS ? NULL : be->pool, x.cols, 16, scatter_columns, &a);
}

static void cpu_embed_grad(struct backend *be, float *dtable, struct tensor dx, const int32_t *ids) {
    cpu_scatter_add_rows(be, tensor_f32(dtable, INT64_MAX, dx.cols, dx.cols), dx, ids, NULL);
}

static void axpby_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct cpu_columns *p = ctx;
    for (int64_t t = begin; t < end; t++) {
        const float *x = row_at(p->x, t);
        float *y = row_at(p->y, t);
        if (p->a == 0 && p->b == 0)
            memset(y, 0, (size_t)p->x.cols * sizeof(float));
        else if (p->b == 0)
            for (int64_t j = 0; j < p->x.cols; j++) y[j] = p->a * x[j];
        else
            for (int64_t j = 0; j < p->x.cols; j++) y[j] = p->a * x[j] + p->b * y[j];
    }
}

static void cpu_axpby(struct backend *be, struct tensor y, float a, struct tensor x, float b) {
    ASSERT(x.rows == y.rows && x.cols == y.cols);
    struct cpu_columns c = {.x = x, .y = y, .a = a, .b = b};
    pool_for(be->pool, y.rows, row_grain(y.cols), axpby_rows, &c);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void cpu_rmsnorm(struct backend *be, struct tensor y, struct tensor x, const float *gain, float eps) {
    ASSERT(y.rows == x.rows && y.cols == x.cols);
    struct rmsnorm_args a = {.y = y, .x = x, .gain = gain, .eps = eps};
    pool_for(be->pool, x.rows, row_grain(x.cols), cpu_of(be)->k->rmsnorm, &a);
}

/* Adds the blocks' partial sums in ascending order. */
static void fold_partial(float *out, const float *partial, int64_t blocks, int64_t n, int64_t stride) {
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t j = 0; j < n; j++) out[j] += partial[b * stride + j];
}

static void cpu_rmsnorm_grad(struct backend *be, struct tensor dx, float *dgain, struct tensor dy, struct tensor x,
                             const float *gain, float eps, bool accumulate) {
    ASSERT(dx.rows == x.rows && dy.rows == x.rows && dx.cols == x.cols && dy.cols == x.cols);
    struct cpu_backend *c = cpu_of(be);
    const int64_t blocks = (x.rows + ROW_BLOCK - 1) / ROW_BLOCK;
    struct rmsnorm_args a = {.x = x, .dy = dy, .dx = dx, .gain = gain, .eps = eps, .accumulate = accumulate};
    if (dgain) a.partial = grow(&c->partial, &c->partial_floats, blocks * x.cols);
    pool_for(be->pool, blocks, 1, c->k->rmsnorm_grad, &a);
    if (dgain) fold_partial(dgain, a.partial, blocks, x.cols, x.cols);
}

static void cpu_rope(struct backend *be, struct tensor qk, struct tensor qkv, const struct rope_args *r) {
    ASSERT(qk.rows == qkv.rows && qk.cols == (r->H + r->G) * r->K && qkv.cols >= qk.cols);
    struct rope_work a = {.qk = qk, .qkv = qkv, .a = r};
    pool_for(be->pool, qk.rows, row_grain(2 * qk.cols), cpu_of(be)->k->rope, &a);
}

static void cpu_rope_grad(struct backend *be, struct tensor dqkv, float *dq_gain, float *dk_gain, struct tensor qkv,
                          const struct rope_args *r) {
    ASSERT(dqkv.rows == qkv.rows && (dq_gain == NULL) == (dk_gain == NULL));
    struct cpu_backend *c = cpu_of(be);
    const int64_t blocks = (qkv.rows + ROW_BLOCK - 1) / ROW_BLOCK;
    struct rope_work a = {.dqkv = dqkv, .qkv = qkv, .a = r};
    if (dq_gain) a.partial = grow(&c->partial, &c->partial_floats, blocks * 2 * r->K);
    pool_for(be->pool, blocks, 1, c->k->rope_grad, &a);
    if (dq_gain) {
        fold_partial(dq_gain, a.partial, blocks, r->K, 2 * r->K);
        fold_partial(dk_gain, a.partial + r->K, blocks, r->K, 2 * r->K);
    }
}

static void cpu_swiglu(struct backend *be, struct tensor y, struct tensor gu) {
    ASSERT(gu.cols == 2 * y.cols && gu.rows == y.rows);
    struct swiglu_args a = {.y = y, .gu = gu};
    pool_for(be->pool, y.rows, row_grain(4 * y.cols), cpu_of(be)->k->swiglu, &a);
}

static void cpu_swiglu_grad(struct backend *be, struct tensor dgu, struct tensor dy, struct tensor gu) {
    ASSERT(gu.cols == 2 * dy.cols && dgu.cols == gu.cols && gu.rows == dy.rows && dgu.rows == dy.rows);
    struct swiglu_args a = {.gu = gu, .dy = dy, .dgu = dgu};
    pool_for(be->pool, dy.rows, row_grain(4 * dy.cols), cpu_of(be)->k->swiglu_grad, &a);
}

static void cpu_logprob(struct backend *be, float *logp, float *entropy, struct tensor logits, const int32_t *targets) {
    struct logprob_args a = {.logits = logits, .targets = targets, .logp = logp, .entropy = entropy};
    pool_for(be->pool, logits.rows, row_grain(4 * logits.cols), cpu_of(be)->k->logprob, &a);
}

static void cpu_logprob_grad(struct backend *be, struct tensor logits, const int32_t *targets, const float *g) {
    struct logprob_args a = {.logits = logits, .targets = targets, .g = g};
    pool_for(be->pool, logits.rows, row_grain(4 * logits.cols), cpu_of(be)->k->logprob_grad, &a);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void cpu_kv_write(struct backend *be, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s) {
    (void)be;
    const int64_t K = s.K, Kp = kv_pad_dim(K);
    for (int i = 0; i < n_seq; i++)
        for (int64_t r = 0; r < seq[i].len; r++) {
            const int64_t key = seq[i].past + r, at = key % KV_BLOCK;
            float *block = s.kv + seq[i].blocks[key / KV_BLOCK] * s.kv_stride;
            for (int64_t g = 0; g < s.G; g++) {
                const float *kr = row_at(k, seq[i].row + r) + g * K, *vr = row_at(v, seq[i].row + r) + g * K;
                float *kb = block + kv_keys_at(g, K) + at;
                float *vb = block + kv_values_at(g, s.G, K) + at * Kp;
                for (int64_t d = 0; d < K; d++) kb[d * KV_BLOCK] = kr[d];
                memcpy(vb, vr, (size_t)K * sizeof(float));
                memset(vb + K, 0, (size_t)(Kp - K) * sizeof(float));
            }
        }
}

static void cpu_attention(struct backend *be, struct tensor o, float *stats, struct tensor q, struct tensor k,
                          struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    ASSERT(s.H % s.G == 0 && q.cols == s.H * s.K && o.cols == q.cols);
    struct cpu_backend *c = cpu_of(be);
    int64_t work = 0;
    for (int i = 0; i < n_seq; i++) work += seq[i].len * (seq[i].past + seq[i].len) * s.H * s.K;
    const int threads = work < MIN_PRODUCT ? 1 : pool_threads(be->pool);
    attn_plan_forward(&c->plan, seq, n_seq, s, threads);
    if (c->plan.n_tasks == 0) return;
    struct attn_work w = {.q = q,
                          .k = k,
                          .v = v,
                          .o = o,
                          .stats = stats,
                          .seq = seq,
                          .n_seq = n_seq,
                          .s = s,
                          .task = c->plan.task,
                          .cut = c->plan.cut,
                          .max_keys = c->plan.max_keys};
    w.scratch_floats = attn_scratch_floats(w.max_keys, s.K);
    w.scratch = thread_scratch(c, w.scratch_floats);
    pool_for(be->pool, threads, 1, c->k->attention, &w);
}

static void cpu_attention_grad(struct backend *be, struct tensor dq, struct tensor dk, struct tensor dv,
                               struct tensor d_o, struct tensor o, const float *stats, struct tensor q, struct tensor k,
                               struct tensor v, const struct attn_seq *seq, int n_seq, struct attn_shape s) {
    ASSERT(s.H % s.G == 0 && q.cols == s.H * s.K && o.cols == q.cols && d_o.cols == q.cols);
    struct cpu_backend *c = cpu_of(be);
    const int threads = pool_threads(be->pool);
    attn_plan_grad(&c->plan, seq, n_seq, s, threads);
    if (c->plan.n_tasks == 0) return;
    struct attn_work w = {.q = q,
                          .k = k,
                          .v = v,
                          .o = o,
                          .d_o = d_o,
                          .dq = dq,
                          .dk = dk,
                          .dv = dv,
                          .stats = (float *)(uintptr_t)stats,
                          .seq = seq,
                          .n_seq = n_seq,
                          .s = s,
                          .task = c->plan.task,
                          .cut = c->plan.cut,
                          .max_keys = c->plan.max_keys,
                          .next = c->plan.next};
    w.scratch_floats = attn_grad_scratch_floats(w.max_keys, s.K);
    w.scratch = thread_scratch(c, w.scratch_floats);
    pool_for(be->pool, threads, 1, c->k->attention_grad, &w);
}

/* ---- optimizer ----------------------------------------------------------------------------------------------------
 */

struct adamw_work {
    float *w, *m, *v;
    const float *g;
    struct adamw_args a;
};

static void adamw_range(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct adamw_work *p = ctx;
    const struct adamw_args a = p->a;
    for (int64_t i = begin; i < end; i++) {
        const float g = p->g[i] * a.scale, w = p->w[i] * a.decay;
        const float m = p->m[i] + (1 - a.beta1) * (g - p->m[i]);
        const float v = p->v[i] * a.beta2 + (1 - a.beta2) * g * g;
        p->m[i] = m;
        p->v[i] = v;
        p->w[i] = w - a.step_size * m / (sqrtf(v) * a.inv_sqrt_bias2 + a.eps);
    }
}

static void cpu_adamw(struct backend *be, float *w, float *m, float *v, const float *g, int64_t n,
                      const struct adamw_args *a) {
    struct adamw_work p = {w, m, v, g, *a};
    pool_for(n < MIN_ELEMENTS ? NULL : be->pool, n, 1024, adamw_range, &p);
}

enum { SUM_ROUND = 1 << 14 }; /* So many blocks' sums are held at a time. */

struct sum_work {
    const float *x;
    int64_t n;
    double *sums;
};

static void sum_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct sum_work *p = ctx;
    for (int64_t b = begin; b < end; b++) {
        const int64_t stop = i64_min(p->n, (b + 1) * SUM_BLOCK);
        double s = 0;
        for (int64_t i = b * SUM_BLOCK; i < stop; i++) s += (double)p->x[i] * (double)p->x[i];
        p->sums[b] = s;
    }
}

static double cpu_sum_squares(struct backend *be, const float *x, int64_t n) {
    struct cpu_backend *c = cpu_of(be);
    if (!c->sums) c->sums = xmalloc(SUM_ROUND * sizeof *c->sums);
    double total = 0;
    for (int64_t at = 0; at < n; at += (int64_t)SUM_ROUND * SUM_BLOCK) {
        struct sum_work p = {x + at, i64_min(n - at, (int64_t)SUM_ROUND * SUM_BLOCK), c->sums};
        const int64_t blocks = (p.n + SUM_BLOCK - 1) / SUM_BLOCK;
        pool_for(p.n < MIN_ELEMENTS ? NULL : be->pool, blocks, 1, sum_blocks, &p);
        for (int64_t b = 0; b < blocks;) {
            double s = 0;
            for (const int64_t stop = i64_min(b + SUM_BLOCK, blocks); b < stop; b++) s += p.sums[b];
            total += s;
        }
    }
    return total;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

enum status cpu_backend_open(struct pool *pool, struct backend **out, struct err *e) {
    const char *forced = getenv("KERNELRL_CPU");
    if (forced && *forced && !isa_named(forced))
        return FAIL(e, ST_UNSUPPORTED,
                    "KERNELRL_CPU=%s: expected reference, avx2, avx512, avx512bf16 or amx, and a CPU that has it",
                    forced);
    struct cpu_backend *c = xcalloc(1, sizeof *c);
    const struct cpu_isa *isa = cpu_isa_current();
    c->k = isa->k;
    c->pairs = (struct pair_space){.k = isa->p, .pool = pool};
    c->be = (struct backend){
        .name = isa->name,
        .kind = isa->name,
        .pool = pool,
        .bf16 = true,
        .logit_chunk_bytes = 16 << 20,
        .mem_alloc = cpu_alloc,
        .mem_free = cpu_free,
        .mem_available = cpu_available,
        .mem_put = cpu_copy,
        .mem_get = cpu_copy,
        .mem_copy = cpu_copy,
        .mem_zero = cpu_zero,
        .sync = cpu_sync,
        .close = cpu_close,
        .weight_pack = cpu_weight_pack,
        .weight_free = cpu_weight_free,
        .weight_put = cpu_weight_put,
        .weight_get = cpu_weight_get,
        .weight_put_coded = cpu_weight_put_coded,
        .linear = cpu_linear,
        .linear_dx = cpu_linear_dx,
        .linear_dw = cpu_linear_dw,
        .bias_grad = cpu_bias_grad,
        .embed = cpu_embed,
        .embed_grad = cpu_embed_grad,
        .rmsnorm = cpu_rmsnorm,
        .rmsnorm_grad = cpu_rmsnorm_grad,
        .rope = cpu_rope,
        .rope_grad = cpu_rope_grad,
        .swiglu = cpu_swiglu,
        .swiglu_grad = cpu_swiglu_grad,
        .kv_write = cpu_kv_write,
        .attention = cpu_attention,
        .attention_grad = cpu_attention_grad,
        .logprob = cpu_logprob,
        .logprob_grad = cpu_logprob_grad,
        .axpby = cpu_axpby,
        .gather_rows = cpu_gather_rows,
        .scatter_add_rows = cpu_scatter_add_rows,
        .adamw = cpu_adamw,
        .sum_squares = cpu_sum_squares,
        .experts = &cpu_experts,
    };
    *out = &c->be;
    return ST_OK;
}
