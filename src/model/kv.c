/* The KV cache and the sampling step. A cache holds, per sequence and layer, key blocks and values in the layout of
 * tensor/ops.h. A step runs the layers of forward.c over at most STEP_ROWS rows at a time: the split changes no bit. */
#include <stdlib.h>

#include "model/internal.h"

enum { STEP_ROWS = 2048 };

struct kv_cache {
    struct backend *be;
    float *k, *v;
    int n_seqs;
    int64_t cap;     /* keys a sequence can hold, a multiple of KV_BLOCK */
    int64_t max_len; /* as asked for */
    int64_t L, G, K, Kp;
    int64_t k_layer, v_layer; /* floats of one layer of one sequence */
    int64_t *len;
};

enum status kv_create(const struct model *m, int n_seqs, int64_t max_len, struct kv_cache **out, struct err *e) {
    const struct model_config *c = &m->cfg;
    if (n_seqs < 1 || max_len < 1 || max_len > c->max_positions)
        return FAIL(e, ST_INVALID, "KV cache: expected 1 or more sequences of 1..%d tokens, got %d of %lld",
                    c->max_positions, n_seqs, (long long)max_len);
    struct kv_cache *kv = xcalloc(1, sizeof *kv);
    *kv = (struct kv_cache){.be = m->be, .n_seqs = n_seqs, .max_len = max_len, .L = c->L, .G = c->G, .K = c->K};
    kv->Kp = kv_pad_dim(c->K);
    kv->cap = (max_len + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
    kv->k_layer = kv->G * kv->cap * kv->K;
    kv->v_layer = kv->G * kv->cap * kv->Kp;
    const double bytes = 4.0 * (double)n_seqs * (double)kv->L * (double)(kv->k_layer + kv->v_layer);
    const int64_t have = m->be->mem_available(m->be);
    if (bytes < (double)have) {
        kv->k = m->be->mem_alloc(m->be, (size_t)(n_seqs * kv->L * kv->k_layer) * sizeof(float));
        kv->v = m->be->mem_alloc(m->be, (size_t)(n_seqs * kv->L * kv->v_layer) * sizeof(float));
    }
    kv->len = xcalloc((size_t)n_seqs, sizeof *kv->len);
    if (!kv->k || !kv->v) {
        kv_free(kv);
        return FAIL(e, ST_MEMORY, "a KV cache for %d sequences of %lld tokens needs %.2f GB, of which %.2f GB are free",
                    n_seqs, (long long)max_len, bytes * 1e-9, (double)have * 1e-9);
    }
    *out = kv;
    return ST_OK;
}

void kv_free(struct kv_cache *kv) {
    if (!kv) return;
    kv->be->mem_free(kv->be, kv->k);
    kv->be->mem_free(kv->be, kv->v);
    free(kv->len);
    free(kv);
}

void kv_reset(struct kv_cache *kv, int seq) {
    ASSERT(seq >= 0 && seq < kv->n_seqs);
    kv->len[seq] = 0;
}

int64_t kv_len(const struct kv_cache *kv, int seq) {
    ASSERT(seq >= 0 && seq < kv->n_seqs);
    return kv->len[seq];
}

void kv_copy(struct kv_cache *kv, int dst_seq, int src_seq) {
    ASSERT(dst_seq >= 0 && dst_seq < kv->n_seqs && src_seq >= 0 && src_seq < kv->n_seqs);
    if (dst_seq == src_seq) return;
    const int64_t n = kv->len[src_seq], blocks = (n + KV_BLOCK - 1) / KV_BLOCK;
    for (int64_t i = 0; i < kv->L * kv->G; i++) {
        const int64_t per_k = kv->cap * kv->K, per_v = kv->cap * kv->Kp, heads = kv->L * kv->G;
        kv->be->mem_copy(kv->be, kv->k + (dst_seq * heads + i) * per_k, kv->k + (src_seq * heads + i) * per_k,
                         (size_t)(blocks * KV_BLOCK * kv->K) * sizeof(float));
        kv->be->mem_copy(kv->be, kv->v + (dst_seq * heads + i) * per_v, kv->v + (src_seq * heads + i) * per_v,
                         (size_t)(n * kv->Kp) * sizeof(float));
    }
    kv->len[dst_seq] = n;
}

static enum status check_step(const struct model *m, const struct kv_cache *kv, int count, const int *seq, const int *n,
                              const int32_t *ids, struct err *e) {
    int64_t t = 0;
    for (int i = 0; i < count; i++) {
        if (seq[i] < 0 || seq[i] >= kv->n_seqs)
            return FAIL(e, ST_INVALID, "step: sequence %d outside a cache of %d", seq[i], kv->n_seqs);
        for (int j = 0; j < i; j++)
            if (seq[j] == seq[i]) return FAIL(e, ST_INVALID, "step: sequence %d given twice", seq[i]);
        if (n[i] < 1) return FAIL(e, ST_INVALID, "step: sequence %d: expected at least one token", seq[i]);
        if (kv->len[seq[i]] + n[i] > kv->max_len)
            return FAIL(e, ST_INVALID, "step: sequence %d: %lld + %d tokens do not fit the cache of %lld", seq[i],
                        (long long)kv->len[seq[i]], n[i], (long long)kv->max_len);
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
    w->p.xa = carve(s, T * m->rank);
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
        model_layer_forward(m, &m->layer[l], &w->p, &a, y);
        float *swap = x;
        x = y;
        y = swap;
        for (int i = 0; i < w->p.n_seq; i++) { /* the same sequences, one layer further in the cache */
            w->seq[i].kblk += kv->k_layer;
            w->seq[i].vblk += kv->v_layer;
        }
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
    struct step_space *w = &m->ss;
    int64_t total = 0, longest = 0;
    for (int i = 0; i < count; i++) {
        total += n[i];
        longest = i64_max(longest, kv->len[seq[i]] + n[i]);
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
    int i = 0;
    int64_t used = 0; /* tokens of sequence i already run */
    while (i < count) {
        int64_t T = 0;
        int n_seq = 0, n_last = 0;
        while (i < count && T < STEP_ROWS) {
            const int64_t take = i64_min(n[i] - used, STEP_ROWS - T), past = kv->len[seq[i]];
            w->seq[n_seq++] = (struct attn_seq){.row = T,
                                                .len = take,
                                                .past = past,
                                                .kblk = kv->k + seq[i] * kv->L * kv->k_layer,
                                                .vblk = kv->v + seq[i] * kv->L * kv->v_layer};
            for (int64_t t = 0; t < take; t++) {
                w->pos[T + t] = (int32_t)(past + t);
                w->ids[T + t] = *ids++;
            }
            kv->len[seq[i]] += take;
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
        w->p.cap_keys = kv->cap;
        wave(m, kv, T, n_last, logits);
        logits += (int64_t)n_last * m->cfg.V;
    }
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
