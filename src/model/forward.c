/* The forward pass. model_layer_forward is the one layer of sampling and training; the two differ only in where its
 * buffers live and where attention finds the keys. */
#include <math.h>
#include <stdlib.h>

#include "model/internal.h"

/* cos and sin of a position times a frequency. The product is rounded to f32 first, as the Hugging Face code that
 * trained these models does. */
enum status model_rope_tables(struct model *m, int64_t n, struct err *e) {
    if (n <= m->n_pos) return ST_OK;
    n = i64_min(m->cfg.max_positions, i64_max(n, 2 * m->n_pos));
    const int64_t half = m->cfg.K / 2, size = n * half;
    m->n_pos = 0; /* until the new tables are there */
    TRY(space_grow(m, &m->rope, &m->rope_floats, 2 * size, "the rotary tables", e));
    CLEANUP_FREE float *host = xmalloc((size_t)(2 * size) * sizeof(float));
    CLEANUP_FREE float *inv = xmalloc((size_t)half * sizeof *inv);
    rope_frequencies(&m->cfg.rope, m->cfg.K, inv);
    const float longer = (float)m->cfg.rope.attention_factor;
    for (int64_t j = 0; j < half; j++)
        for (int64_t t = 0; t < n; t++) {
            const float angle = (float)t * inv[j];
            host[t * half + j] = (float)cos((double)angle) * longer;
            host[size + t * half + j] = (float)sin((double)angle) * longer;
        }
    m->be->mem_put(m->be, m->rope, host, (size_t)(2 * size) * sizeof(float));
    m->cos_t = m->rope;
    m->sin_t = m->rope + size;
    m->n_pos = n;
    return ST_OK;
}

/* Whether the backend has ops for it. */
static bool lora_fused(const struct model *m) { return m->be->lora_down && m->act == DT_BF16; }

void pass_add_rows(const struct model *m, struct pass *p, int adapter, int64_t row, int64_t n) {
    const struct adapter *ad = adapter_of(m, adapter);
    if (!ad || n == 0) return;
    struct lora_rows *last = p->n_lora > 0 ? &p->lora[p->n_lora - 1] : NULL;
    if (last && last->adapter == ad && last->row + last->n == row)
        last->n += n;
    else
        p->lora[p->n_lora++] = (struct lora_rows){ad, row, n};
}

static void lora_down(struct model *m, const struct lora_rows *r, int layer, enum lora_input input, struct tensor x,
                      void *xa) {
    const struct weight *a = &r->adapter->layer[layer].a[input];
    if (a->w) m->be->lora_down(m->be, tensor_rows(x, r->row, r->n), a, act_full(m, xa, r->n, a->N), r->adapter->scale);
}

/* The sites of an input, whose outputs are columns of y. */
static int lora_sites(struct model *m, const struct lora *l, enum lora_input input, struct tensor y,
                      struct lora_site_args site[LORA_SITES_MAX]) {
    int n = 0;
    int64_t col = 0;
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, s, &in, &out);
        if (l->b[s].w) site[n++] = (struct lora_site_args){&l->b[s], tensor_cols(y, col, out)};
        col += out;
    }
    return n;
}

/* The rows of one adapter; x and y are those rows. */
static void lora_of_rows(struct model *m, const struct adapter *ad, int layer, enum lora_input input, struct tensor y,
                         struct tensor x, void *xa) {
    const struct lora *l = &ad->layer[layer];
    const struct weight *a = &l->a[input];
    if (!a->w) return;
    struct backend *be = m->be;
    struct tensor t = act_full(m, xa, x.rows, a->N);
    if (lora_fused(m)) {
        struct lora_site_args site[LORA_SITES_MAX];
        be->lora_up(be, t, site, lora_sites(m, l, input, y, site));
        return;
    }
    be->linear(be, t, x, a, NULL, false);
    be->axpby(be, t, ad->scale, t, 0);
    int64_t row = 0, col = 0; /* of A and of y */
    for (int s = lora_first[input]; s < lora_first[input + 1]; s++) {
        int64_t in, out;
        lora_site_dims(&m->cfg, s, &in, &out);
        if (l->b[s].w) {
            be->linear(be, tensor_cols(y, col, out), tensor_cols(t, row, ad->rank), &l->b[s], NULL, true);
            row += ad->rank;
        }
        col += out;
    }
}

/* y += scale (x A^T) B^T for the sites of an input, each row through its adapter; y is what they write, side by side.
 * xa gets scale (x A^T), of several adapters the last one's. Nothing happens at a site without LoRA. lora_begin, with
 * the same arguments, goes before the base's product. The backend knows one xa at a time (tensor/backend.h): with
 * several adapters each goes both ways before the next. */
static void lora_begin(struct model *m, const struct pass *p, int layer, enum lora_input input, struct tensor x,
                       void *xa) {
    if (p->n_lora == 1 && lora_fused(m)) lora_down(m, &p->lora[0], layer, input, x, xa);
}

static void lora_forward(struct model *m, const struct pass *p, int layer, enum lora_input input, struct tensor y,
                         struct tensor x, void *xa) {
    for (int i = 0; i < p->n_lora; i++) {
        const struct lora_rows *r = &p->lora[i];
        if (p->n_lora > 1 && lora_fused(m)) lora_down(m, r, layer, input, x, xa);
        lora_of_rows(m, r->adapter, layer, input, tensor_rows(y, r->row, r->n), tensor_rows(x, r->row, r->n), xa);
    }
}

/* Whether one adapter, which has something at this input, serves all rows, and the backend has ops for it. */
static bool lora_alone(const struct model *m, const struct pass *p, int layer, enum lora_input input) {
    return p->n_lora == 1 && p->lora[0].n == p->T && p->lora[0].adapter->layer[layer].a[input].w && lora_fused(m);
}

/* Whether no row has anything at this input. */
static bool lora_none(const struct pass *p, int layer, enum lora_input input) {
    for (int i = 0; i < p->n_lora; i++)
        if (p->lora[i].adapter->layer[layer].a[input].w) return false;
    return true;
}

/* Where a pass puts scale * x A^T of an input: kept with the layer, or for the moment. */
static void *xa_of(const struct pass *p, const struct layer_acts *a, enum lora_input input) {
    return a->xa[input] ? a->xa[input] : p->xa;
}

/* y = z + x W^T; sampling keeps no z: there it is y. */
static void add_product(struct model *m, struct tensor y, struct tensor x, const struct weight *w, struct tensor z) {
    struct backend *be = m->be;
    if (y.data != z.data && be->linear_add && m->act == DT_BF16) {
        be->linear_add(be, y, x, w, z);
        return;
    }
    if (y.data != z.data) be->axpby(be, y, 1.0f, z, 0);
    be->linear(be, y, x, w, NULL, true);
}

void model_layer_forward(struct model *m, int i, struct pass *p, const struct layer_acts *a, float *x_out) {
    struct backend *be = m->be;
    const struct layer *l = &m->layer[i];
    const struct model_config *c = &m->cfg;
    const int64_t T = p->T, D = c->D, F = c->F, K = c->K, HK = c->H * K, GK = c->G * K;
    const struct attn_shape shape = {c->H, c->G, K, p->kv, p->kv_stride};
    const struct rope_args rope = {c->H, c->G, K, p->pos, m->cos_t, m->sin_t, l->qn, l->kn, c->rms_eps};
    struct tensor x_in = tensor_full(a->x_in, T, D), x_mid = tensor_full(a->x_mid, T, D), h = act_full(m, p->h, T, D);
    struct tensor qkv = tensor_full(a->qkv, T, HK + 2 * GK), qk = act_full(m, p->qk, T, qk_cols(m));
    struct tensor q = tensor_cols(qk, 0, HK), k = tensor_cols(qk, HK, GK);
    struct tensor v = tensor_cols(m->act == DT_F32 ? qkv : qk, HK + GK, GK);
    struct tensor o = act_full(m, a->o, T, HK), gu = act_full(m, a->gu, T, 2 * F), act = act_full(m, p->a, T, F);

    be->rmsnorm(be, h, x_in, l->ln1, c->rms_eps);
    lora_begin(m, p, i, LORA_OF_H1, h, xa_of(p, a, LORA_OF_H1));
    be->linear(be, qkv, h, &l->wqkv, l->bqkv, false);
    lora_forward(m, p, i, LORA_OF_H1, qkv, h, xa_of(p, a, LORA_OF_H1));
    if (p->kv && be->rope_kv && m->act == DT_BF16) {
        be->rope_kv(be, qk, qkv, &rope, p->seq, p->n_seq, shape);
    } else {
        be->rope(be, qk, qkv, &rope);
        if (p->kv) be->kv_write(be, k, v, p->seq, p->n_seq, shape);
    }
    be->attention(be, o, a->stats, q, k, v, p->seq, p->n_seq, shape);

    lora_begin(m, p, i, LORA_OF_O, o, xa_of(p, a, LORA_OF_O));
    add_product(m, x_mid, o, &l->wo, x_in);
    lora_forward(m, p, i, LORA_OF_O, x_mid, o, xa_of(p, a, LORA_OF_O));

    const bool again = !p->kv && !m->ts.forward_only; /* the backward pass asks for gu again */
    be->rmsnorm(be, h, x_mid, l->ln2, c->rms_eps);
    if (x_out && !again && be->linear_swiglu && m->act == DT_BF16 && lora_none(p, i, LORA_OF_H2)) {
        be->linear_swiglu(be, act, gu, h, &l->wgu);
    } else {
        lora_begin(m, p, i, LORA_OF_H2, h, xa_of(p, a, LORA_OF_H2));
        be->linear(be, gu, h, &l->wgu, NULL, false);
        if (x_out && lora_alone(m, p, i, LORA_OF_H2) && be->lora_swiglu) {
            const struct lora *lora = &p->lora[0].adapter->layer[i];
            struct lora_site_args site[LORA_SITES_MAX];
            const int n = lora_sites(m, lora, LORA_OF_H2, gu, site);
            be->lora_swiglu(be, act, gu, act_full(m, xa_of(p, a, LORA_OF_H2), T, lora->a[LORA_OF_H2].N), site, n,
                            again);
        } else {
            lora_forward(m, p, i, LORA_OF_H2, gu, h, xa_of(p, a, LORA_OF_H2));
            if (!x_out) return;
            be->swiglu(be, act, gu);
        }
    }

    struct tensor out = tensor_full(x_out, T, D);
    lora_begin(m, p, i, LORA_OF_ACT, act, xa_of(p, a, LORA_OF_ACT));
    add_product(m, out, act, &l->wd, x_mid);
    lora_forward(m, p, i, LORA_OF_ACT, out, act, xa_of(p, a, LORA_OF_ACT));
}

/* ---- training batch ---------------------------------------------------------------------------------------------- */

static enum status check_batch(const struct model *m, const struct train_batch *b, struct err *e) {
    const struct model_config *c = &m->cfg;
    int64_t end = 0;
    for (int i = 0; i < b->n_seg; i++) {
        const struct segment *s = &b->seg[i];
        if (s->start != end || s->len < 0)
            return FAIL(e, ST_INVALID, "batch: segment %d starts at row %lld, expected %lld (end to end)", i,
                        (long long)s->start, (long long)end);
        if (s->prefix < -1 || s->prefix >= i || (s->prefix >= 0 && b->seg[s->prefix].prefix >= 0))
            return FAIL(e, ST_INVALID, "batch: segment %d: prefix %d must come before it and have no prefix itself", i,
                        s->prefix);
        if (!model_adapter_there(m, s->adapter))
            return FAIL(e, ST_INVALID, "batch: segment %d: there is no adapter %d", i, s->adapter);
        if (s->prefix >= 0 && b->seg[s->prefix].adapter != s->adapter)
            return FAIL(e, ST_INVALID, "batch: segment %d of adapter %d continues one of adapter %d", i, s->adapter,
                        b->seg[s->prefix].adapter);
        if (s->adapter != ADAPTER_OWN && m->train != TRAIN_NOTHING && !b->forward_only)
            return FAIL(e, ST_INVALID,
                        "batch: segment %d is of adapter %d, which is not trained: expected forward_only", i,
                        s->adapter);
        const int64_t past = s->prefix >= 0 ? b->seg[s->prefix].len : 0;
        if (past + s->len > c->max_positions)
            return FAIL(e, ST_INVALID, "batch: segment %d ends at position %lld, the model has %d", i,
                        (long long)(past + s->len), c->max_positions);
        end += s->len;
    }
    if (end != b->T)
        return FAIL(e, ST_INVALID, "batch: segments cover %lld rows of %lld", (long long)end, (long long)b->T);
    for (int64_t t = 0; t < b->T; t++)
        if (b->ids[t] < 0 || b->ids[t] >= c->V)
            return FAIL(e, ST_INVALID, "batch: row %lld: token %d outside the vocabulary of %d", (long long)t,
                        b->ids[t], c->V);
    for (int64_t i = 0; i < b->N; i++) {
        if (b->rows[i] < 0 || b->rows[i] >= b->T)
            return FAIL(e, ST_INVALID, "batch: wanted row %d of %lld", b->rows[i], (long long)b->T);
        if (b->targets && (b->targets[i] < 0 || b->targets[i] >= c->V))
            return FAIL(e, ST_INVALID, "batch: target %d outside the vocabulary of %d", b->targets[i], c->V);
    }
    return ST_OK;
}

/* Activations of a batch of T rows, N of which predict, when n_shared layers share theirs. */
static void carve_train(struct model *m, struct carve *s, int64_t T, int64_t N, int n_shared) {
    const struct model_config *c = &m->cfg;
    struct train_space *w = &m->ts;
    const int64_t D = c->D, F = c->F, HK = (int64_t)c->H * c->K, Q = qkv_cols(c);
    for (int i = 0; i < c->L; i++) {
        if (i > 0 && i < n_shared)
            w->layer[i] = w->layer[0];
        else
            w->layer[i] = (struct layer_acts){.qkv = carve(s, T * Q),
                                              .o = carve_act(m, s, T * HK),
                                              .stats = carve(s, T * c->H * 2),
                                              .x_mid = carve(s, T * D),
                                              .gu = carve_act(m, s, T * 2 * F)};
        const bool keep = m->train == TRAIN_LORA && !w->forward_only;
        for (int g = 0; keep && g < LORA_INPUTS; g++) /* the last one is not recomputed with its layer: never shared */
            if (m->own.layer[i].a[g].w && (i == 0 || i >= n_shared || g == LORA_OF_ACT))
                w->layer[i].xa[g] = carve_act(m, s, T * m->own.layer[i].a[g].N);
        w->layer[i].x_in = carve(s, T * D);
    }
    w->x_last = carve(s, T * D);
    w->hn = carve_act(m, s, T * D);
    w->p.h = carve_act(m, s, T * D);
    w->p.qk = carve_act(m, s, T * qk_cols(m));
    w->p.a = carve_act(m, s, T * F);
    w->p.xa = carve_act(m, s, T * lora_cols(m));
    w->hc = carve_act(m, s, w->chunk * D);
    w->dhc = carve(s, w->chunk * D);
    const bool backward = m->train != TRAIN_NOTHING && !w->forward_only, in16 = backward && head_in_16(m);
    w->logits = carve(s, (w->keep_logits && !in16 ? i64_max(N, w->chunk) : w->chunk) * c->V);
    w->dhn = NULL;
    w->dl = w->hs = NULL;
    if (!backward) return;
    if (m->train == TRAIN_LORA || in16) w->dhn = carve(s, N * D);
    if (in16) w->dl = carve_act(m, s, (w->keep_logits ? N : i64_min(N, head_run(m))) * c->V);
    if (in16 && m->train == TRAIN_FULL) w->hs = carve_act(m, s, i64_min(N, head_run(m)) * D);
    w->dx = carve(s, T * D);
    w->dh = carve(s, T * D);
    w->d_o = carve_act(m, s, T * HK);
    w->da = carve_act(m, s, T * F);
    w->dgu = carve_act(m, s, T * 2 * F);
    w->dqkv = carve_act(m, s, T * Q);
}

static int64_t floats_for(struct model *m, int64_t T, int64_t N, int n_shared) {
    struct carve s = {0};
    carve_train(m, &s, T, N, n_shared);
    return s.used;
}

/* How many layers share their activations: as few as the memory allows, since each but one of them is computed twice.
 * What memory is left then may keep the logits, which a head that is trained needs again. Without a backward pass
 * nothing is kept. */
static enum status choose_shared(struct model *m, int64_t T, int64_t N, int *n_shared, struct err *e) {
    const int64_t GB = 1000 * 1000 * 1000;
    const int L = m->cfg.L;
    *n_shared = L;
    m->ts.keep_logits = false;
    if (m->train == TRAIN_NOTHING || m->ts.forward_only) return ST_OK;
    const int64_t weights = model_memory(m).weight_bytes, held = m->ts.cap_floats * (int64_t)sizeof(float);
    int64_t budget = m->activation_memory;
    if (budget == 0) {
        budget = i64_max(2 * GB, weights + GB);
        const int64_t have = m->be->mem_available(m->be);
        if (have < budget - held) budget = have / 10 * 9 + held;
    }
    const int64_t floats = budget / (int64_t)sizeof(float);
    if (m->train == TRAIN_FULL) {
        m->ts.keep_logits = true;
        *n_shared = 0;
        if (floats_for(m, T, N, 0) <= floats) return ST_OK;
        m->ts.keep_logits = N <= head_run(m); /* so many are there in any case */
    }
    for (int n = 0; n < L; n += n ? 1 : 2) /* one that shares with nobody saves nothing */
        if (floats_for(m, T, N, n) <= floats) {
            *n_shared = n;
            return ST_OK;
        }
    *n_shared = L;
    const int64_t least = floats_for(m, T, N, L);
    if (m->activation_memory == 0 || least <= floats) return ST_OK; /* if that is too much, allocation says so */
    return FAIL(e, ST_MEMORY, "a training batch's activations need %.3f GB, activation_memory is %.3f GB",
                (double)least * 4e-9, (double)budget * 1e-9);
}

/* About logit_chunk_bytes of logits at a time; with a small vocabulary no more than 240 rows for each 16 MB, which then
 * stay in a CPU's cache. Multiples of 6 fill the rows of the CPU's product; with bf16 they are multiples of 32, the
 * terms that AMX adds before it adds them to a sum (tensor/ops.h): so the chunk changes no bit. */
static void choose_chunk(struct model *m) {
    struct train_space *w = &m->ts;
    const int64_t bytes = m->be->logit_chunk_bytes;
    /* With a large one at least 240 rows, or each chunk would fetch the head's weights for little work. */
    const int64_t least = i64_max(24, i64_min(240, 15 * (bytes >> 20)));
    w->chunk = i64_max(least, i64_min(bytes / 4 / m->cfg.V / 6 * 6, 240 * i64_max(1, bytes >> 24)));
    if (m->dt == DT_BF16) w->chunk = (w->chunk + 31) & ~(int64_t)31;
    if (!w->layer) w->layer = xcalloc((size_t)m->cfg.L, sizeof *w->layer);
}

int64_t model_activation_bytes(struct model *m, int64_t T, int64_t N, int shared) {
    choose_chunk(m);
    m->ts.T = -1;
    m->ts.forward_only = false;
    m->ts.keep_logits = m->train == TRAIN_FULL && (shared == 0 || N <= head_run(m));
    return floats_for(m, T, N, shared) * (int64_t)sizeof(float);
}

static enum status prepare(struct model *m, const struct train_batch *b, struct err *e) {
    struct train_space *w = &m->ts;
    const int64_t T = b->T;
    w->T = -1;
    w->forward_only = b->forward_only;
    choose_chunk(m);
    int n_shared;
    TRY(choose_shared(m, T, b->N, &n_shared, e));
    TRY(space_grow(m, &w->mem, &w->cap_floats, floats_for(m, T, b->N, n_shared), "a training batch's activations", e));
    struct carve s = {.base = w->mem};
    carve_train(m, &s, T, b->N, n_shared);
    w->n_shared = n_shared;
    w->logits_kept = w->keep_logits;
    w->held = n_shared - 1; /* which forward computes last */
    if (w->chunk > w->cap_chunk) {
        w->ones = xrealloc(w->ones, (size_t)w->chunk * sizeof *w->ones);
        for (int64_t i = w->cap_chunk; i < w->chunk; i++) w->ones[i] = 1;
        w->cap_chunk = w->chunk;
    }
    if (T > w->cap_T) {
        w->pos = xrealloc(w->pos, (size_t)T * sizeof *w->pos);
        w->cap_T = T;
    }
    if (b->n_seg > w->cap_seq) {
        w->seq = xrealloc(w->seq, (size_t)b->n_seg * sizeof *w->seq);
        w->p.lora = xrealloc(w->p.lora, (size_t)b->n_seg * sizeof *w->p.lora);
        w->cap_seq = b->n_seg;
    }
    int64_t longest = 0;
    w->p.n_lora = 0;
    for (int i = 0; i < b->n_seg; i++) {
        const struct segment *g = &b->seg[i];
        const struct segment *pre = g->prefix >= 0 ? &b->seg[g->prefix] : NULL;
        const int64_t past = pre ? pre->len : 0;
        w->seq[i] = (struct attn_seq){.row = g->start, .len = g->len, .past = past, .past_row = pre ? pre->start : 0};
        for (int64_t t = 0; t < g->len; t++) w->pos[g->start + t] = (int32_t)(past + t);
        longest = i64_max(longest, past + g->len);
        pass_add_rows(m, &w->p, g->adapter, g->start, g->len);
    }
    TRY(model_rope_tables(m, longest, e));
    w->p.T = T;
    w->p.pos = w->pos;
    w->p.seq = w->seq;
    w->p.n_seq = b->n_seg;
    w->p.kv = NULL;
    return ST_OK;
}

void model_layer_recall(struct model *m, int i) {
    struct train_space *w = &m->ts;
    if (i >= w->n_shared || i == w->held) return;
    model_layer_forward(m, i, &w->p, &w->layer[i], NULL);
    w->held = i;
}

/* Embedding to final norm; leaves hn. */
static enum status run_layers(struct model *m, const struct train_batch *b, struct err *e) {
    TRY(check_batch(m, b, e));
    TRY(prepare(m, b, e));
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D;
    const int L = m->cfg.L;
    if (be->pass_begin) be->pass_begin(be, 0);
    be->embed(be, tensor_full(w->layer[0].x_in, b->T, D), model_table(m), b->ids);
    for (int i = 0; i < L; i++)
        model_layer_forward(m, i, &w->p, &w->layer[i], i + 1 < L ? w->layer[i + 1].x_in : w->x_last);
    be->rmsnorm(be, act_full(m, w->hn, b->T, D), tensor_full(w->x_last, b->T, D), m->final_norm, m->cfg.rms_eps);
    if (be->pass_end) be->pass_end(be);
    return ST_OK;
}

/* n numbers of the activations at `from`, as float32. */
static void get_hidden(struct model *m, float *hidden, const void *from, int64_t n) {
    if (m->act == DT_F32) {
        m->be->mem_get(m->be, hidden, from, (size_t)n * sizeof *hidden);
        return;
    }
    CLEANUP_FREE uint16_t *host = xmalloc((size_t)n * sizeof *host);
    m->be->mem_get(m->be, host, from, (size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) hidden[i] = st_bf16_to_f32(host[i]);
}

/* The logits of n wanted rows from row i on, one by one. */
static void hand_out(struct model *m, int64_t i, int64_t n, const float *logits, model_logits_fn *on_logits,
                     void *ctx) {
    const int64_t V = m->cfg.V;
    CLEANUP_FREE float *row = xmalloc((size_t)V * sizeof *row);
    for (int64_t k = 0; k < n; k++) {
        m->be->mem_get(m->be, row, logits + k * V, (size_t)V * sizeof *row);
        on_logits(ctx, i + k, row);
    }
}

/* Both kinds of forward; on_logits may be NULL. */
static enum status forward(struct model *m, const struct train_batch *b, float *logp, float *entropy, float *hidden,
                           model_logits_fn *on_logits, void *ctx, struct err *e) {
    TRY(run_layers(m, b, e));
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    for (int64_t i = 0; i < b->N; i += w->chunk) {
        const int64_t n = i64_min(w->chunk, b->N - i);
        struct tensor hc = act_full(m, w->hc, n, D), lg = tensor_full(logits_of(w, i, V), n, V);
        be->gather_rows(be, hc, act_full(m, w->hn, b->T, D), b->rows + i);
        if (!b->targets) {
            get_hidden(m, hidden + i * D, w->hc, n * D);
            continue;
        }
        be->linear(be, lg, hc, &m->head, NULL, false);
        be->logprob(be, logp + i, entropy ? entropy + i : NULL, lg, b->targets + i);
        if (on_logits) hand_out(m, i, n, logits_of(w, i, V), on_logits, ctx);
        if (!w->dhn) continue;
        /* What backward needs of these logits is d logp / d hn, and of a head that is trained d logp / d logits: g
         * scales them. The logits are not computed again. */
        struct tensor dhn = tensor_full(w->dhn + i * D, n, D), dl = lg;
        if (w->dl)
            be->logprob_grad16(be, dl = dl_of(m, i, n), lg, b->targets + i, w->ones);
        else
            be->logprob_grad(be, lg, b->targets + i, w->ones);
        be->linear_dx(be, dhn, dl, &m->head, false);
    }
    if (hidden && (b->targets || b->N == 0)) get_hidden(m, hidden, w->hn, b->T * D);
    w->T = b->T;
    w->N = b->N;
    return be->sync(be, e);
}

enum status model_forward(struct model *m, const struct train_batch *b, float *logp, float *entropy, float *hidden,
                          struct err *e) {
    return forward(m, b, logp, entropy, hidden, NULL, NULL, e);
}

enum status model_forward_rows(struct model *m, const struct train_batch *b, float *logp, float *entropy,
                               model_logits_fn *on_logits, void *ctx, struct err *e) {
    if (!b->forward_only || !b->targets) return FAIL(e, ST_INVALID, "model_forward_rows: a batch that is trained on");
    return forward(m, b, logp, entropy, NULL, on_logits, ctx, e);
}

enum status model_logits(struct model *m, const struct train_batch *b, float *logits, struct err *e) {
    TRY(run_layers(m, b, e));
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    struct tensor hn = act_full(m, w->hn, b->T, D);
    for (int64_t i = 0; i < b->T; i += w->chunk) {
        const int64_t n = i64_min(w->chunk, b->T - i);
        be->linear(be, tensor_full(w->logits, n, V), tensor_rows(hn, i, n), &m->head, NULL, false);
        be->mem_get(be, logits + i * V, w->logits, (size_t)(n * V) * sizeof(float));
    }
    return be->sync(be, e);
}

void train_space_free(struct model *m) {
    m->be->mem_free(m->be, m->ts.mem);
    free(m->ts.layer);
    free(m->ts.pos);
    free(m->ts.ones);
    free(m->ts.seq);
    free(m->ts.p.lora);
}
