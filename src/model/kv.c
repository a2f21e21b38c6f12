/* The KV cache and the sampling step. A cache is one slab of blocks in the layout of tensor/ops.h, KV_BLOCK tokens of
 * one sequence each; a sequence is a table of blocks, which it may share with others (blocks.h). A step runs the layers
 * of forward.c over at most step_rows() rows at a time: the split changes no bit. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "model/blocks.h"
#include "model/layer.h"

struct kv_seq {
    int64_t len;      /* tokens */
    int32_t n_blocks; /* in its table: begun, or reserved */
    bool stale;       /* holds tokens that older weights have computed: nobody else may have them */
    int adapter;      /* its tokens go through */
    int32_t stamp;    /* of that one's weights, once there are tokens */
    int64_t step;     /* the last that named it */
    int64_t ahead;    /* tokens of steps that have begun and not ended: they have blocks, and will follow */
    uint64_t epoch;   /* counts its resets */
};
struct kv_cache {
    const struct model *m;
    /* [L][n_blocks]: a step reads the blocks of one layer after the other, and a device finds its way faster among
     * neighbours (its address translation covers a part of a large memory only). */
    float *mem;
    int64_t max_len; /* tokens of a sequence at most */
    struct block_pool pool;
    int n_seqs;
    struct kv_seq *seq; /* [n_seqs] */
    int32_t *table;     /* [n_seqs][table_len] */
    int64_t table_len;
    uint64_t version; /* of the weights that computed what is published */
    int64_t steps;    /* so far */
};

static int64_t layer_floats(const struct model *m) { return kv_layer_floats_of(m->act, m->cfg.G, m->cfg.K); }
static int64_t block_floats(const struct model *m) { return m->cfg.L * layer_floats(m); }

/* Rows of a wave: enough for the products' best rate, few enough for caches or a device's memory. */
static int64_t step_rows(const struct model *m) { return m->act == DT_F32 ? 2048 : 8192; }

int64_t kv_block_bytes(const struct model *m) { return block_floats(m) * (int64_t)sizeof(float); }

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
    ASSERT(kv->m->ss.n_begun == 0);
    kv->m->be->mem_free(kv->m->be, kv->mem);
    blocks_free(&kv->pool);
    free(kv->seq);
    free(kv->table);
    free(kv);
}

/* A layer's part of block 0; the next block's follows it. */
static float *layer_of(const struct kv_cache *kv, int l) {
    return kv->mem + l * (int64_t)kv->pool.n * layer_floats(kv->m);
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
    *s = (struct kv_seq){.step = s->step, .epoch = s->epoch + 1};
}

void kv_set_adapter(struct kv_cache *kv, int seq, int adapter) {
    struct kv_seq *s = seq_of(kv, seq);
    ASSERT(s->n_blocks == 0);
    s->adapter = adapter;
}

/* In front of a sequence's first block: beginnings (blocks.h) are told apart by the weights of adapters. */
static int32_t beginning_of(const struct kv_seq *s) { return -1 - s->stamp; }

int64_t kv_len(const struct kv_cache *kv, int seq) { return seq_of(kv, seq)->len; }

int64_t kv_available(const struct kv_cache *kv) { return kv->pool.n_unheld; }

void kv_share(struct kv_cache *kv, int dst_seq, int src_seq) {
    if (dst_seq == src_seq) return;
    ASSERT(seq_of(kv, src_seq)->ahead == 0);
    kv_reset(kv, dst_seq);
    const struct kv_seq *src = seq_of(kv, src_seq);
    const int32_t n = (int32_t)blocks_of(src->len), *from = table_of(kv, src_seq);
    int32_t *to = table_of(kv, dst_seq);
    for (int32_t i = 0; i < n; i++) {
        to[i] = from[i];
        blocks_hold(&kv->pool, to[i]);
    }
    *seq_of(kv, dst_seq) = (struct kv_seq){.len = src->len,
                                           .n_blocks = n,
                                           .stale = src->stale,
                                           .adapter = src->adapter,
                                           .stamp = src->stamp,
                                           .epoch = seq_of(kv, dst_seq)->epoch};
}

/* Of a sequence's tokens and those under way. */
static int64_t length_ahead(const struct kv_seq *s) { return s->len + s->ahead; }

/* True: the sequence's last block is not full, and another sequence holds it, too: it must be copied before a write. */
static bool must_copy(const struct kv_cache *kv, int seq) {
    const int64_t len = length_ahead(&kv->seq[seq]);
    return len % KV_BLOCK != 0 && kv->pool.block[table_of(kv, seq)[len / KV_BLOCK]].refs > 1;
}

bool kv_reserve(struct kv_cache *kv, int seq, int64_t n) {
    struct kv_seq *s = seq_of(kv, seq);
    const int64_t len = length_ahead(s);
    ASSERT(n >= 0 && len + n <= kv->max_len);
    const int64_t want = blocks_of(len + n);
    const bool copy = n > 0 && must_copy(kv, seq);
    if (i64_max(want - s->n_blocks, 0) + copy > kv->pool.n_unheld) return false;
    int32_t *table = table_of(kv, seq);
    if (copy) {
        const int64_t at = len / KV_BLOCK;
        const int32_t old = table[at], new = blocks_take(&kv->pool);
        for (int l = 0; l < kv->m->cfg.L; l++) {
            float *layer = layer_of(kv, l);
            const int64_t floats = layer_floats(kv->m);
            kv->m->be->mem_copy(kv->m->be, layer + new *floats, layer + old * floats, (size_t)floats * sizeof(float));
        }
        memcpy(kv->pool.block[new].ids, kv->pool.block[old].ids, sizeof kv->pool.block[new].ids);
        blocks_drop(&kv->pool, old);
        table[at] = new;
    }
    while (s->n_blocks < want) table[s->n_blocks++] = blocks_take(&kv->pool);
    return true;
}

/* Blocks of other weights of the base are not found again, and who holds them publishes nothing more. */
static void follow_weights(struct kv_cache *kv) {
    if (kv->version == kv->m->version) return;
    kv->version = kv->m->version;
    blocks_forget(&kv->pool);
    for (int i = 0; i < kv->n_seqs; i++) kv->seq[i].stale = length_ahead(&kv->seq[i]) > 0;
}

/* The same for those of a sequence's adapter, which lie behind a beginning that nobody has any more. */
static void follow_adapter(const struct kv_cache *kv, struct kv_seq *s) {
    const int32_t stamp = adapter_stamp(kv->m, s->adapter);
    if (length_ahead(s) == 0) s->stamp = stamp;
    s->stale |= s->stamp != stamp;
}

int64_t kv_match(struct kv_cache *kv, int seq, const int32_t *ids, int64_t n) {
    follow_weights(kv);
    struct kv_seq *s = seq_of(kv, seq);
    follow_adapter(kv, s);
    const int64_t before = s->len;
    int32_t *table = table_of(kv, seq);
    ASSERT(s->ahead == 0);
    if (s->stale || s->len % KV_BLOCK != 0 || s->n_blocks > s->len / KV_BLOCK) return 0;
    n = i64_min(n, kv->max_len - before);
    for (; s->len - before + KV_BLOCK <= n; s->len += KV_BLOCK) {
        const int32_t parent = s->n_blocks ? table[s->n_blocks - 1] : beginning_of(s);
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
        const int32_t mine = table[at], known = blocks_publish(&kv->pool, mine, at ? table[at - 1] : beginning_of(s));
        if (known == mine) continue;
        blocks_hold(&kv->pool, known);
        blocks_drop(&kv->pool, mine);
        table[at] = known;
    }
}

/* ---- the step -----------------------------------------------------------------------------------------------------*/

/* `before`: places of the step begun before this one, whose tokens may be meant. */
static enum status check_step(const struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                              const int32_t *ids, int before, struct err *e) {
    int64_t t = 0;
    const int64_t step = ++kv->steps;
    for (int i = 0; i < count; i++) {
        if (seq[i] < 0 || seq[i] >= kv->n_seqs)
            return FAIL(e, ST_INVALID, "step: sequence %d outside a cache of %d", seq[i], kv->n_seqs);
        if (kv->seq[seq[i]].step == step) return FAIL(e, ST_INVALID, "step: sequence %d given twice", seq[i]);
        kv->seq[seq[i]].step = step;
        if (adapter_use(m, kv->seq[seq[i]].adapter, e) != ST_OK) return err_note(e, "step: sequence %d", seq[i]);
        if (n[i] < 1) return FAIL(e, ST_INVALID, "step: sequence %d: expected at least one token", seq[i]);
        const int64_t len = length_ahead(&kv->seq[seq[i]]);
        if (len + n[i] > kv->max_len)
            return FAIL(e, ST_INVALID, "step: sequence %d: %lld + %d tokens do not fit the cache of %lld", seq[i],
                        (long long)len, n[i], (long long)kv->max_len);
        for (int j = 0; j < n[i]; j++, t++)
            if (ids[t] < -before || ids[t] >= m->cfg.V)
                return FAIL(e, ST_INVALID, "step: token %d outside the vocabulary of %d", ids[t], m->cfg.V);
    }
    return ST_OK;
}

/* Room for a wave of T rows that ends up to n_last sequences. */
static void carve_step(struct model *m, struct carve *s, int64_t T, int64_t n_last) {
    struct step_space *w = &m->ss;
    const int64_t D = m->cfg.D;
    float *const x = carve(s, T * D);
    layer_keep(m, s, LAYER_ANY, T, x, &w->acts); /* all layers use the same buffers */
    w->rows = carve(s, n_last * D);
    w->logits = carve(s, n_last * m->cfg.V);
    w->p.h = carve_act(m, s, i64_max(T, n_last) * D);
    layer_scratch(m, s, T, &w->p);
    w->p.xa = carve_act(m, s, xa_room(m, T));
}

/* What a step leaves: the logits of each sequence in host memory; or what `want` says of each; or, of one sequence, the
 * logits of each row, which go to on_logits. */
struct step_out {
    float *logits; /* [count,V]; with on_logits [room,V] */
    int room;      /* rows whose logits are in memory at once */
    model_logits_fn *on_logits;
    void *ctx;
    const struct step_want *want;
    int32_t limit;
    struct step_drawn *drawn; /* [count]; NULL: of a step ahead, they are not waited for */
};

static struct step_drawing *drawing_now(struct step_space *w) { return &w->drawing[w->now]; }

static void draw_rows(struct model *m, int n_last, struct tensor logits, const struct step_out *out) {
    struct step_space *w = &m->ss;
    const struct step_drawing *d = drawing_now(w);
    for (int i = 0; i < n_last; i++) {
        const int s = w->last_seq[i];
        w->draw[i] = s >= 0 && out->want[s].what == STEP_DRAW ? out->want[s].draw : (struct draw){0, 0, 0};
    }
    m->be->draw(m->be, logits, out->limit, w->draw, d->drawn, d->logp, d->entropy);
}

/* One wave: `T` rows with positions, tokens and sequences set; the rows that end a sequence get their logits, and those
 * become what the step is to leave. With a key its ops may be recorded and replayed. */
static void wave(struct model *m, const struct kv_cache *kv, int64_t T, int n_last, uint64_t key,
                 const struct step_out *out) {
    struct step_space *w = &m->ss;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    struct tensor logits = tensor_full(w->logits, n_last, V);
    do {
        if (be->pass_begin) be->pass_begin(be, key);
        be->embed(be, tensor_full(w->acts.x[0], T, D), model_table(m), w->ids);
        for (int l = 0; l < m->cfg.L; l++) {
            w->p.kv = layer_of(kv, l);
            layer_forward(m, l, &w->p, &w->acts, w->acts.x[0]);
        }
        if (n_last > 0) {
            struct tensor rows = tensor_full(w->acts.x[0], T, D), hn = act_full(m, w->p.h, n_last, D);
            if (n_last < T) { /* otherwise each row ends a sequence */
                rows = tensor_full(w->rows, n_last, D);
                be->gather_rows(be, rows, tensor_full(w->acts.x[0], T, D), w->last_row);
            }
            be->rmsnorm(be, hn, rows, m->final_norm, m->cfg.rms_eps);
            model_head_forward(m, &w->p.head, logits, hn, w->p.xa);
            if (out->want) draw_rows(m, n_last, logits, out);
        }
    } while (be->pass_end && !be->pass_end(be));
}

/* Rows that n rows of one adapter become in a recorded wave: a few sizes only, for each of which, and with several
 * adapters for each combination of which, there is a recording. */
static int64_t recorded_rows(int64_t n, bool mixed) {
    int64_t step = n <= 4 ? 1 : n <= 16 ? 4 : n <= 64 ? 8 : n <= 256 ? 16 : 64;
    for (; mixed && step < n; step *= 2) {}
    return (n + step - 1) / step * step;
}

/* Sequences from i on that go through the adapter of sequence i. */
static int run_of(const struct kv_cache *kv, int count, const int *seq, int i) {
    int n = 1;
    while (i + n < count && kv->seq[seq[i + n]].adapter == kv->seq[seq[i]].adapter) n++;
    return n;
}

/* Rows of the one wave of a step that is worth recording: one row of each sequence, again and again. 0: it is not. */
static int64_t recorded_wave(const struct model *m, const struct kv_cache *kv, int count, const int *seq, int64_t total,
                             const struct step_out *out) {
    if (!m->be->pass_begin || m->act != DT_BF16 || total != count || !out->want) return 0;
    int64_t rows = 0;
    for (int i = 0; i < count; i++)
        if (out->want[i].what == STEP_NOTHING) return 0;
    const bool mixed = run_of(kv, count, seq, 0) < count;
    for (int i = 0, n; i < count; i += n) rows += recorded_rows(n = run_of(kv, count, seq, i), mixed);
    return rows <= step_rows(m) ? rows : 0;
}

/* Rows [from, to) belong to nobody. */
static void pad_wave(struct step_space *w, int64_t from, int64_t to) {
    for (int64_t t = from; t < to; t++) {
        w->pos[t] = w->ids[t] = 0;
        w->seq[t] = (struct attn_seq){.row = t};
        w->last_row[t] = (int32_t)t;
        w->last_seq[t] = -1;
    }
}

/* Under which a wave of T rows is recorded: rows, and the adapters they go through. */
static uint64_t wave_key(const struct model *m, int64_t T) {
    const struct {
        const void *m;
        int64_t rows;
    } what = {m, T};
    const struct pass *p = &m->ss.p;
    return hash_bytes(p->lora.run, (size_t)p->lora.n * sizeof *p->lora.run, hash_bytes(&what, sizeof what, 0));
}

/* Hands out what a wave drew; the logits that are wanted are fetched. */
static void wave_results(struct model *m, int n_last, const struct step_out *out) {
    struct step_space *w = &m->ss;
    const int64_t V = m->cfg.V;
    if (!out->want) { /* all of them, in the caller's order */
        if (n_last > 0)
            m->be->mem_get(m->be, out->logits + w->last_seq[0] * V, w->logits, (size_t)(n_last * V) * sizeof(float));
        return;
    }
    for (int i = 0; i < n_last; i++) {
        const int64_t s = w->last_seq[i];
        if (s >= 0 && out->want[s].what == STEP_LOGITS)
            m->be->mem_get(m->be, out->logits + s * V, w->logits + i * V, (size_t)V * sizeof(float));
    }
}

static void step_space_host(struct model *m) {
    struct step_space *w = &m->ss;
    const size_t n = (size_t)step_rows(m);
    if (w->pos) return;
    w->pos = xmalloc(n * sizeof *w->pos);
    w->ids = xmalloc(n * sizeof *w->ids);
    w->last_row = xmalloc(n * sizeof *w->last_row);
    w->last_seq = xmalloc(n * sizeof *w->last_seq);
    w->seq = xmalloc(n * sizeof *w->seq);
    w->p.lora.run = xmalloc(n * sizeof *w->p.lora.run);
    w->p.head.run = xmalloc(n * sizeof *w->p.head.run);
    w->draw = xmalloc(n * sizeof *w->draw);
    w->want = xmalloc(n * sizeof *w->want);
    w->one = xmalloc(n * sizeof *w->one);
    for (struct step_drawing *d = w->drawing; d < w->drawing + STEPS_AHEAD; d++) {
        d->seq = xmalloc(n * sizeof *d->seq);
        d->epoch = xmalloc(n * sizeof *d->epoch);
        d->ids = xmalloc(n * sizeof *d->ids);
        d->row = xmalloc(n * sizeof *d->row);
        d->drawn = xmalloc(n * sizeof *d->drawn);
        d->logp = xmalloc(n * sizeof *d->logp);
        d->entropy = xmalloc(n * sizeof *d->entropy);
        d->result = xmalloc(n * sizeof *d->result);
    }
}

/* What a step feeds, and how far its waves have come. */
struct step_feed {
    struct kv_cache *kv;
    int count;
    const int *seq, *n; /* [count] */
    const int32_t *at;  /* the next token */
    int i;              /* the next sequence */
    int64_t used;       /* its tokens that have run already */
    int64_t recorded;   /* rows of the one wave, which is recorded; 0: it is not */
    bool mixed, ahead;
};

/* Lays out the next wave, of up to `most` rows, and returns the rows; *n_last of them end sequences. */
static int64_t lay_wave(struct model *m, struct step_feed *f, int64_t most, const struct step_out *out, int *n_last) {
    struct step_space *w = &m->ss;
    int64_t T = 0, run = 0; /* the row where the present run of one adapter's rows began */
    *n_last = w->p.n_seq = w->p.lora.n = w->p.head.n = 0;
    while (f->i < f->count && T < most) {
        const int i = f->i;
        const struct kv_seq *s = &f->kv->seq[f->seq[i]];
        const struct adapter *ad = adapter_of(m, s->adapter), *head = has_head(ad) ? ad : NULL;
        const int64_t take = i64_min(f->n[i] - f->used, most - T), past = length_ahead(s) + f->used;
        w->seq[w->p.n_seq++] =
            (struct attn_seq){.row = T, .len = take, .past = past, .blocks = table_of(f->kv, f->seq[i])};
        for (int64_t t = 0; t < take; t++, f->at++) {
            w->pos[T + t] = (int32_t)(past + t);
            w->ids[T + t] = *f->at < 0 ? -1 - w->drawing[!w->now].row[-1 - *f->at] : *f->at;
        }
        runs_add(&w->p.lora, ad, T, take);
        T += take;
        f->used += take;
        if (f->used == f->n[i]) {
            if (!out->on_logits && (!out->want || out->want[i].what != STEP_NOTHING)) {
                runs_add(&w->p.head, head, *n_last, 1);
                w->last_seq[*n_last] = i;
                if (f->ahead) drawing_now(w)->row[i] = *n_last;
                w->last_row[(*n_last)++] = (int32_t)(T - 1);
            }
            f->i++;
            f->used = 0;
        }
        if (!f->recorded || (f->i < f->count && f->kv->seq[f->seq[f->i]].adapter == s->adapter)) continue;
        const int64_t end = run + recorded_rows(T - run, f->mixed); /* each row ends a sequence here */
        pad_wave(w, T, end);
        runs_add(&w->p.lora, ad, T, end - T);
        runs_add(&w->p.head, head, T, end - T);
        run = T = end;
        w->p.n_seq = *n_last = (int)T;
    }
    return T;
}

/* Shows the logits of a wave's T rows, of one sequence, of which `before` rows ran in earlier waves. */
static enum status show_rows(struct model *m, const struct kv_seq *seq, int64_t T, int64_t before,
                             const struct step_out *out, struct err *e) {
    struct step_space *w = &m->ss;
    struct backend *be = m->be;
    const struct adapter *ad = adapter_of(m, seq->adapter), *head = has_head(ad) ? ad : NULL;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    for (int64_t i = 0; i < T; i += out->room) {
        const int64_t n = i64_min(out->room, T - i);
        struct tensor hn = act_full(m, w->p.h, n, D);
        be->rmsnorm(be, hn, tensor_rows(tensor_full(w->acts.x[0], T, D), i, n), m->final_norm, m->cfg.rms_eps);
        w->p.head.n = 0;
        runs_add(&w->p.head, head, 0, n);
        model_head_forward(m, &w->p.head, tensor_full(w->logits, n, V), hn, w->p.xa);
        be->mem_get(be, out->logits, w->logits, (size_t)(n * V) * sizeof(float));
        TRY(be->sync(be, e));
        for (int64_t k = 0; k < n; k++) out->on_logits(out->ctx, before + i + k, out->logits + k * V);
    }
    return ST_OK;
}

static enum status run_waves(struct model *m, struct step_feed *f, int64_t most, const struct step_out *out,
                             struct err *e) {
    struct step_space *w = &m->ss;
    int64_t done = 0;
    while (f->i < f->count) {
        int n_last;
        const int64_t T = lay_wave(m, f, most, out, &n_last);
        w->p.T = T;
        w->p.pos = w->pos;
        w->p.seq = w->seq;
        w->p.kv_stride = layer_floats(m);
        wave(m, f->kv, T, n_last, f->recorded ? wave_key(m, T) : 0, out);
        if (out->on_logits) TRY(show_rows(m, &f->kv->seq[f->seq[0]], T, done, out, e));
        done += T;
        if (f->ahead) continue;
        wave_results(m, n_last, out);
        if (!out->want || n_last == 0) continue;
        TRY(m->be->sync(m->be, e)); /* the drawn tokens are there */
        const struct step_drawing *d = drawing_now(w);
        for (int k = 0; k < n_last; k++)
            if (w->last_seq[k] >= 0)
                out->drawn[w->last_seq[k]] = (struct step_drawn){d->drawn[k], d->logp[k], d->entropy[k]};
    }
    return ST_OK;
}

static enum status run_step(struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                            const int32_t *ids, const struct step_out *out, struct err *e) {
    struct step_space *w = &m->ss;
    struct step_feed f = {kv, count, seq, n, ids, .ahead = out->want && !out->drawn};
    ASSERT(f.ahead || w->n_begun == 0);
    m->passes++;
    TRY(check_step(m, kv, count, seq, n, ids, f.ahead && w->n_begun > 0 ? w->drawing[!w->now].count : 0, e));
    follow_weights(kv);
    int64_t total = 0, longest = 0;
    for (int i = 0; i < count; i++) {
        total += n[i];
        longest = i64_max(longest, length_ahead(&kv->seq[seq[i]]) + n[i]);
        follow_adapter(kv, &kv->seq[seq[i]]);
        if (!kv_reserve(kv, seq[i], n[i]))
            return FAIL(e, ST_MEMORY, "step: sequence %d: no block of the cache's %d is left for %d more tokens",
                        seq[i], kv->pool.n, n[i]);
    }
    if (total == 0) return ST_OK;
    TRY(model_rope_tables(m, longest, e));
    f.recorded = recorded_wave(m, kv, count, seq, total, out);
    ASSERT(!f.ahead || f.recorded > 0);
    f.mixed = f.recorded > 0 && run_of(kv, count, seq, 0) < count;
    const int64_t most = f.recorded ? f.recorded : step_rows(m);
    const int64_t rows = f.recorded ? most : i64_min(total, most);
    const int64_t most_last = f.recorded ? most : i64_min(out->on_logits ? out->room : count, rows);
    struct carve s = {0};
    carve_step(m, &s, rows, most_last);
    TRY(space_grow(m, &w->mem, &w->cap_floats, s.used, "a sampling step's activations", e));
    s = (struct carve){.base = w->mem};
    carve_step(m, &s, rows, most_last);
    step_space_host(m);
    TRY(run_waves(m, &f, most, out, e));
    if (f.ahead) return ST_OK;
    for (int i = 0; i < count; ids += n[i], i++) append_ids(kv, seq[i], ids, n[i]);
    return m->be->sync(m->be, e);
}

enum status model_step(struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                       const int32_t *ids, float *logits, struct err *e) {
    return run_step(m, kv, count, seq, n, ids, &(struct step_out){.logits = logits}, e);
}

enum status model_step_rows(struct model *m, struct kv_cache *kv, int seq, int n, const int32_t *ids, float *logits,
                            int room, model_logits_fn *on_logits, void *ctx, struct err *e) {
    ASSERT(room > 0);
    const struct step_out out = {.logits = logits, .room = room, .on_logits = on_logits, .ctx = ctx};
    return run_step(m, kv, 1, &seq, &n, ids, &out, e);
}

bool model_can_draw(const struct model *m) { return m->be->draw != NULL; }

enum status model_step_draw(struct model *m, struct kv_cache *kv, int count, const int *seq, const int *n,
                            const int32_t *ids, const struct step_want *want, int32_t limit, struct step_drawn *drawn,
                            float *logits, struct err *e) {
    ASSERT(model_can_draw(m) && limit > 0 && limit <= m->cfg.V);
    const struct step_out out = {.logits = logits, .want = want, .limit = limit, .drawn = drawn};
    return run_step(m, kv, count, seq, n, ids, &out, e);
}

_Static_assert((int)STEPS_AHEAD <= (int)POSTS_MAX, "each step under way has posted its results");

bool model_can_begin(const struct model *m, int count) {
    return m->be->post && m->be->draw && m->be->pass_begin && m->act == DT_BF16 && 2 * (int64_t)count <= step_rows(m);
}

int model_steps_begun(const struct model *m) { return m->ss.n_begun; }

/* Whatever is under way ends, and is forgotten. */
static enum status give_up_steps(struct model *m, enum status st) {
    struct step_space *w = &m->ss;
    (void)m->be->sync(m->be, NULL);
    for (; w->n_begun > 0; w->n_begun--) {
        const struct step_drawing *d = &w->drawing[(w->now + w->n_begun) % STEPS_AHEAD];
        for (int i = 0; i < d->count; i++) d->kv->seq[d->seq[i]].ahead = 0;
    }
    return st;
}

enum status model_step_begin(struct model *m, struct kv_cache *kv, int count, const int *seq, const int32_t *ids,
                             const struct draw *draw, int32_t limit, struct err *e) {
    struct step_space *w = &m->ss;
    ASSERT(model_can_begin(m, count) && count > 0 && limit > 0 && limit <= m->cfg.V && w->n_begun < STEPS_AHEAD);
    step_space_host(m);
    for (int i = 0; i < count; i++) {
        w->want[i] = (struct step_want){STEP_DRAW, draw[i]};
        w->one[i] = 1;
    }
    const struct step_out out = {.want = w->want, .limit = limit};
    const enum status st = run_step(m, kv, count, seq, w->one, ids, &out, e);
    if (st != ST_OK) return give_up_steps(m, st);
    m->be->post(m->be);
    struct step_drawing *d = drawing_now(w);
    d->kv = kv;
    d->count = count;
    for (int i = 0; i < count; i++) {
        struct kv_seq *s = &kv->seq[seq[i]];
        d->seq[i] = seq[i];
        d->ids[i] = ids[i];
        d->epoch[i] = s->epoch;
        s->ahead++;
    }
    w->now = !w->now;
    w->n_begun++;
    return ST_OK;
}

enum status model_step_end(struct model *m, struct step_drawn *drawn, struct err *e) {
    struct step_space *w = &m->ss;
    ASSERT(w->n_begun > 0);
    struct step_drawing *d = &w->drawing[w->n_begun == STEPS_AHEAD ? w->now : !w->now];
    const struct step_drawing *before = &w->drawing[d == w->drawing];
    const enum status st = m->be->collect(m->be, e);
    if (st != ST_OK) return give_up_steps(m, st);
    for (int i = 0; i < d->count; i++) {
        const int32_t row = d->row[i];
        struct kv_seq *s = &d->kv->seq[d->seq[i]];
        drawn[i] = d->result[i] = (struct step_drawn){d->drawn[row], d->logp[row], d->entropy[row]};
        if (d->ids[i] < 0) d->ids[i] = before->result[-1 - d->ids[i]].id;
        if (s->epoch != d->epoch[i]) continue;
        s->ahead--;
        append_ids(d->kv, d->seq[i], &d->ids[i], 1);
    }
    w->n_begun--;
    return ST_OK;
}

void step_space_free(struct model *m) {
    struct step_space *w = &m->ss;
    ASSERT(w->n_begun == 0);
    m->be->mem_free(m->be, w->mem);
    free(w->pos);
    free(w->ids);
    free(w->last_row);
    free(w->last_seq);
    free(w->seq);
    free(w->p.lora.run);
    free(w->p.head.run);
    free(w->draw);
    free(w->want);
    free(w->one);
    for (struct step_drawing *d = w->drawing; d < w->drawing + STEPS_AHEAD; d++) {
        free(d->seq);
        free(d->epoch);
        free(d->ids);
        free(d->row);
        free(d->drawn);
        free(d->logp);
        free(d->entropy);
        free(d->result);
    }
}
