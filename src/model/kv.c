/* The KV cache and the sampling step. A cache is one slab of blocks in the layout of tensor/ops.h, KV_BLOCK tokens of
 * one sequence each; a sequence is a table of blocks, which it may share with others (blocks.h). A step runs the layers
 * of forward.c over at most STEP_ROWS rows at a time: the split changes no bit. */
#include <stdlib.h>
#include <string.h>

#include "model/blocks.h"
#include "model/internal.h"

enum { STEP_ROWS = 2048 };

struct kv_seq {
    int64_t len;      /* tokens */
    int32_t n_blocks; /* in its table: begun, or reserved */
    bool stale;       /* holds tokens that older weights have computed: nobody else may have them */
};
struct kv_cache {
    const struct model *m;
    float *mem;           /* [n_blocks] */
    int64_t block_floats; /* of one block, all layers */
    int64_t max_len;      /* tokens of a sequence at most */
    struct block_pool pool;
    int n_seqs;
    struct kv_seq *seq; /* [n_seqs] */
    int32_t *table;     /* [n_seqs][table_len] */
    int64_t table_len;
    uint64_t version; /* of the weights that computed what is published */
};

static int64_t block_floats(const struct model_config *c) { return c->L * kv_layer_floats(c->G, c->K); }

int64_t kv_block_bytes(const struct model *m) { return block_floats(&m->cfg) * (int64_t)sizeof(float); }

static int64_t blocks_of(int64_t tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

enum status kv_create(const struct model *m, int n_seqs, int64_t max_len, int64_t n_blocks, struct kv_cache **out,
                      struct err *e) {
    const struct model_config *c = &m->cfg;
    if (n_seqs < 1 || max_len < 1 || max_len > c->max_positions || n_blocks < 0 || n_blocks > INT32_MAX)
        return FAIL(e, ST_INVALID,
                    "KV cache: expected 1 or more sequences of 1..%d tokens, got %d of %lld in %lld blocks",
                    c->max_positions, n_seqs, (long long)max_len, (long long)n_blocks);
    if (n_blocks == 0) n_blocks = n_seqs * blocks_of(max_len);
    const double bytes = (double)n_blocks * (double)kv_block_bytes(m);
    const int64_t have = m->be->mem_available(m->be);
    float *mem = NULL;
    if (bytes < (double)have && n_blocks <= INT32_MAX)
        mem = m->be->mem_alloc(m->be, (size_t)(n_blocks * kv_block_bytes(m)));
    if (!mem)
        return FAIL(e, ST_MEMORY, "a KV cache of %lld blocks of %d tokens needs %.2f GB, of which %.2f GB are free",
                    (long long)n_blocks, KV_BLOCK, bytes * 1e-9, (double)have * 1e-9);
    struct kv_cache *kv = xcalloc(1, sizeof *kv);
    *kv = (struct kv_cache){.m = m,
                            .mem = mem,
                            .block_floats = block_floats(c),
                            .max_len = max_len,
                            .n_seqs = n_seqs,
                            .table_len = blocks_of(max_len),
                            .version = m->version};
    blocks_init(&kv->pool, (int32_t)n_blocks);
    kv->seq = xcalloc((size_t)n_seqs, sizeof *kv->seq);
    kv->table = xcalloc((size_t)(n_seqs * kv->table_len), sizeof *kv->table);
    *out = kv;
    return ST_OK;
}

void kv_free(struct kv_cache *kv) {
    if (!kv) return;
    kv->m->be->mem_free(kv->m->be, kv->mem);
    blocks_free(&kv->pool);
    free(kv->seq);
    free(kv->table);
    free(kv);
}

/* ---- sequences ----------------------------------------------------------------------------------------------------*/

static struct kv_seq *seq_of(const struct kv_cache *kv, int seq) {
    ASSERT(seq >= 0 && seq < kv->n_seqs);
    return &kv->seq[seq];
}

static int32_t *table_of(const struct kv_cache *kv, int seq) { return kv->table + seq * kv->table_len; }

/* The last block goes first, so that a cached prefix outlives what continues it. */
void kv_reset(struct kv_cache *kv, int seq) {
    struct kv_seq *s = seq_of(kv, seq);
    while (s->n_blocks > 0) blocks_drop(&kv->pool, table_of(kv, seq)[--s->n_blocks]);
    *s = (struct kv_seq){0};
}

int64_t kv_len(const struct kv_cache *kv, int seq) { return seq_of(kv, seq)->len; }

int64_t kv_available(const struct kv_cache *kv) { return kv->pool.n_unheld; }

void kv_share(struct kv_cache *kv, int dst_seq, int src_seq) {
    if (dst_seq == src_seq) return;
    kv_reset(kv, dst_seq);
    const struct kv_seq *src = seq_of(kv, src_seq);
    const int32_t n = (int32_t)blocks_of(src->len), *from = table_of(kv, src_seq);
    int32_t *to = table_of(kv, dst_seq);
    for (int32_t i = 0; i < n; i++) {
        to[i] = from[i];
        blocks_hold(&kv->pool, to[i]);
    }
    *seq_of(kv, dst_seq) = (struct kv_seq){src->len, n, src->stale};
}

/* Whether the last block of a sequence is begun and somebody else holds it, too: who writes must copy it first. */
static bool must_copy(const struct kv_cache *kv, int seq) {
    const int64_t len = kv->seq[seq].len;
    return len % KV_BLOCK != 0 && kv->pool.block[table_of(kv, seq)[len / KV_BLOCK]].refs > 1;
}

bool kv_reserve(struct kv_cache *kv, int seq, int64_t n) {
    struct kv_seq *s = seq_of(kv, seq);
    ASSERT(n >= 0 && s->len + n <= kv->max_len);
    const int64_t want = blocks_of(s->len + n);
    const bool copy = n > 0 && must_copy(kv, seq);
    if (i64_max(want - s->n_blocks, 0) + copy > kv->pool.n_unheld) return false;
    int32_t *table = table_of(kv, seq);
    if (copy) {
        const int64_t at = s->len / KV_BLOCK;
        const int32_t old = table[at], new = blocks_take(&kv->pool);
        kv->m->be->mem_copy(kv->m->be, kv->mem + new * kv->block_floats, kv->mem + old * kv->block_floats,
                            (size_t)kv->block_floats * sizeof(float));
        memcpy(kv->pool.block[new].ids, kv->pool.block[old].ids, sizeof kv->pool.block[new].ids);
        blocks_drop(&kv->pool, old);
        table[at] = new;
    }
    while (s->n_blocks < want) table[s->n_blocks++] = blocks_take(&kv->pool);
    return true;
}

/* Blocks of other weights are not found again, and who holds them publishes nothing more. */
static void follow_weights(struct kv_cache *kv) {
    if (kv->version == kv->m->version) return;
    kv->version = kv->m->version;
    blocks_forget(&kv->pool);
    for (int i = 0; i < kv->n_seqs; i++) kv->seq[i].stale = kv->seq[i].len > 0;
}

int64_t kv_match(struct kv_cache *kv, int seq, const int32_t *ids, int64_t n) {
    follow_weights(kv);
    struct kv_seq *s = seq_of(kv, seq);
    const int64_t before = s->len;
    int32_t *table = table_of(kv, seq);
    if (s->stale || s->len % KV_BLOCK != 0 || s->n_blocks > s->len / KV_BLOCK) return 0;
    n = i64_min(n, kv->max_len - before);
    for (; s->len - before + KV_BLOCK <= n; s->len += KV_BLOCK) {
        const int32_t parent = s->n_blocks ? table[s->n_blocks - 1] : -1;
        const int32_t b = blocks_find(&kv->pool, parent, ids + (s->len - before));
        if (b < 0) break;
        blocks_hold(&kv->pool, b);
        table[s->n_blocks++] = b;
    }
    return s->len - before;
}

/* Notes the tokens of a sequence that a step has just put into its blocks, and publishes those that are full. Where
 * somebody was faster, the sequence goes on with that block: the bits are the same. */
static void append_ids(struct kv_cache *kv, int seq, const int32_t *ids, int64_t n) {
    struct kv_seq *s = &kv->seq[seq];
    int32_t *table = table_of(kv, seq);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = s->len / KV_BLOCK;
        kv->pool.block[table[at]].ids[s->len++ % KV_BLOCK] = ids[i];
        if (s->len % KV_BLOCK != 0 || s->stale) continue;
        const int32_t mine = table[at], known = blocks_publish(&kv->pool, mine, at ? table[at - 1] : -1);
        if (known == mine) continue;
        blocks_hold(&kv->pool, known);
        blocks_drop(&kv->pool, mine);
        table[at] = known;
    }
}

/* ---- the step -----------------------------------------------------------------------------------------------------*/

static enum status check_step(const struct model *m, const struct kv_cache *kv, int count, const int *seq, const int *n,
                              const int32_t *ids, struct err *e) {
    int64_t t = 0;
    for (int i = 0; i < count; i++) {
        if (seq[i] < 0 || seq[i] >= kv->n_seqs)
            return FAIL(e, ST_INVALID, "step: sequence %d outside a cache of %d", seq[i], kv->n_seqs);
        for (int j = 0; j < i; j++)
            if (seq[j] == seq[i]) return FAIL(e, ST_INVALID, "step: sequence %d given twice", seq[i]);
        if (n[i] < 1) return FAIL(e, ST_INVALID, "step: sequence %d: expected at least one token", seq[i]);
        if (kv->seq[seq[i]].len + n[i] > kv->max_len)
            return FAIL(e, ST_INVALID, "step: sequence %d: %lld + %d tokens do not fit the cache of %lld", seq[i],
                        (long long)kv->seq[seq[i]].len, n[i], (long long)kv->max_len);
        for (int j = 0; j < n[i]; j++, t++)
            if (ids[t] < 0 || ids[t] >= m->cfg.V)
                return FAIL(e, ST_INVALID, "step: token %d outside the vocabulary of %d", ids[t], m->cfg.V);
    }
    return ST_OK;
}

/* Room for a wave of T rows that ends up to n_last sequences. */
static void carve_step(struct model *m, struct carve *s, int64_t T, int64_t n_last) {
    const struct model_config *c = &m->cfg;
    struct step_space *w = &m->ss;
    const int64_t D = c->D, HK = (int64_t)c->H * c->K;
    w->acts = (struct layer_acts){.x_in = carve(s, T * D),
                                  .qkv = carve(s, T * qkv_cols(c)),
                                  .o = carve(s, T * HK),
                                  .x_mid = carve(s, T * D),
                                  .gu = carve(s, T * 2 * c->F)};
    w->x_out = carve(s, T * D);
    w->rows = carve(s, n_last * D);
    w->logits = carve(s, n_last * c->V);
    w->p.h = carve(s, T * D);
    w->p.qk = carve(s, T * (HK + (int64_t)c->G * c->K));
    w->p.a = carve(s, T * c->F);
    w->p.xa = carve(s, T * lora_cols(m));
}

/* One wave: `T` rows with positions, tokens and sequences set; writes the logits of the rows that end a sequence, in
 * their order, which is the caller's. */
static void wave(struct model *m, const struct kv_cache *kv, int64_t T, int n_last, float *logits) {
    struct step_space *w = &m->ss;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    float *x = w->acts.x_in, *y = w->x_out;
    be->embed(be, tensor_full(x, T, D), model_table(m), w->ids);
    for (int l = 0; l < m->cfg.L; l++) {
        struct layer_acts a = w->acts;
        a.x_in = x;
        w->p.kv = kv->mem + l * kv_layer_floats(m->cfg.G, m->cfg.K);
        model_layer_forward(m, &m->layer[l], &w->p, &a, y);
        float *swap = x;
        x = y;
        y = swap;
    }
    if (n_last == 0) return;
    struct tensor rows = tensor_full(w->rows, n_last, D), hn = tensor_full(w->p.h, n_last, D);
    be->gather_rows(be, rows, tensor_full(x, T, D), w->last_row);
    be->rmsnorm(be, hn, rows, m->final_norm, m->cfg.rms_eps);
    be->linear(be, tensor_full(w->logits, n_last, V), hn, &m->head, NULL, false);
    be->mem_get(be, logits, w->logits, (size_t)(n_last * V) * sizeof(float));
}

enum status model_step(struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                       const int32_t *ids, float *logits, struct err *e) {
    TRY(check_step(m, kv, count, seq, n, ids, e));
    follow_weights(kv);
    struct step_space *w = &m->ss;
    int64_t total = 0, longest = 0;
    for (int i = 0; i < count; i++) {
        total += n[i];
        longest = i64_max(longest, kv->seq[seq[i]].len + n[i]);
        if (!kv_reserve(kv, seq[i], n[i]))
            return FAIL(e, ST_MEMORY, "step: sequence %d: no block of the cache's %d is left for %d more tokens",
                        seq[i], kv->pool.n, n[i]);
    }
    if (total == 0) return ST_OK;
    TRY(model_rope_tables(m, longest, e));
    const int64_t rows = i64_min(total, STEP_ROWS), most_last = i64_min(count, STEP_ROWS);
    struct carve s = {0};
    carve_step(m, &s, rows, most_last);
    TRY(space_grow(m, &w->mem, &w->cap_floats, s.used, "a sampling step's activations", e));
    s = (struct carve){.base = w->mem};
    carve_step(m, &s, rows, most_last);
    if (!w->pos) {
        w->pos = xmalloc(STEP_ROWS * sizeof *w->pos);
        w->ids = xmalloc(STEP_ROWS * sizeof *w->ids);
        w->last_row = xmalloc(STEP_ROWS * sizeof *w->last_row);
        w->seq = xmalloc(STEP_ROWS * sizeof *w->seq);
    }
    const int32_t *at = ids;
    int i = 0;
    int64_t used = 0; /* tokens of sequence i already run */
    while (i < count) {
        int64_t T = 0;
        int n_seq = 0, n_last = 0;
        while (i < count && T < STEP_ROWS) {
            const int64_t take = i64_min(n[i] - used, STEP_ROWS - T), past = kv->seq[seq[i]].len + used;
            w->seq[n_seq++] = (struct attn_seq){.row = T, .len = take, .past = past, .blocks = table_of(kv, seq[i])};
            for (int64_t t = 0; t < take; t++) {
                w->pos[T + t] = (int32_t)(past + t);
                w->ids[T + t] = *at++;
            }
            T += take;
            used += take;
            if (used == n[i]) {
                w->last_row[n_last++] = (int32_t)(T - 1);
                i++;
                used = 0;
            }
        }
        w->p.T = T;
        w->p.pos = w->pos;
        w->p.seq = w->seq;
        w->p.n_seq = n_seq;
        w->p.kv_stride = kv->block_floats;
        wave(m, kv, T, n_last, logits);
        logits += (int64_t)n_last * m->cfg.V;
    }
    for (i = 0; i < count; ids += n[i], i++) append_ids(kv, seq[i], ids, n[i]);
    return m->be->sync(m->be, e);
}

void step_space_free(struct model *m) {
    struct step_space *w = &m->ss;
    m->be->mem_free(m->be, w->mem);
    free(w->pos);
    free(w->ids);
    free(w->last_row);
    free(w->seq);
}
