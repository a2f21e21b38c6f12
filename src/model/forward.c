/* The forward pass of a batch. layer_forward (layer.h) is the one layer of sampling and training; the two differ only
 * in where its buffers live and where attention finds the keys. */
#include <math.h>
#include <stdlib.h>

#include "model/layer.h"

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

void model_head_forward(struct model *m, const struct lora_runs *l, struct tensor lg, struct tensor hn, void *xa) {
    const int behind = m->cfg.L;
    lora_begin(m, l, behind, LORA_OF_HN, hn, xa);
    m->be->linear(m->be, lg, hn, &m->head, NULL, false);
    lora_forward(m, l, behind, LORA_OF_HN, lg, hn, xa);
}

/* ---- training batch ---------------------------------------------------------------------------------------------- */

/* True: gradients will be made of the batch: something is prepared for training, and the batch is not forward_only. */
static bool is_trained_on(const struct model *m, const struct train_batch *b) {
    return !b->forward_only && (m->full || m->n_prepared > 0);
}

/* A batch that is trained on is of one adapter, and that one is prepared, or the base under it is. */
static enum status check_trained(const struct model *m, const struct train_batch *b, struct err *e) {
    for (int i = 0; i < b->n_seg; i++) {
        const int adapter = b->seg[i].adapter;
        if (adapter != b->seg[0].adapter)
            return FAIL(e, ST_INVALID,
                        "batch: segment %d is of adapter %d, segment 0 of adapter %d: expected one adapter in a batch "
                        "that is trained on, or forward_only",
                        i, adapter, b->seg[0].adapter);
        if (!model_train_set(m, adapter).g)
            return FAIL(e, ST_INVALID,
                        "batch: segment %d is of adapter %d, which is not trained: expected forward_only", i, adapter);
    }
    return ST_OK;
}

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
        if (adapter_use(m, s->adapter, e) != ST_OK) return err_note(e, "batch: segment %d", i);
        if (s->prefix >= 0 && b->seg[s->prefix].adapter != s->adapter)
            return FAIL(e, ST_INVALID, "batch: segment %d of adapter %d continues one of adapter %d", i, s->adapter,
                        b->seg[s->prefix].adapter);
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
    if (is_trained_on(m, b)) TRY(check_trained(m, b, e));
    return ST_OK;
}

/* What backward needs of LoRA in layer i. The layers that share their activations share the room of layer 0, which is
 * the largest that one of them needs; but LORA_OF_ACT is not recomputed with its layer, and is never shared. */
static void carve_lora(struct model *m, struct carve *s, int64_t T, int n_shared, int i) {
    struct train_space *w = &m->ts;
    const bool of_adapter = w->backward && !w->full;
    for (int g = 0; of_adapter && g < LORA_OF_HN; g++) {
        const enum lora_input input = (enum lora_input)g;
        const bool shared = input != LORA_OF_ACT && i < n_shared;
        int64_t n = 0;
        if (shared && i > 0) continue;
        for (int l = i; l < (shared ? n_shared : i + 1); l++)
            n = i64_max(n, lora_xa_elements(&w->of->layer[l], input, lora_rows_at(&m->cfg, l, input, T)));
        if (n > 0) w->layer[i].xa[g] = carve_act(m, s, n);
    }
}

/* Activations of a batch of T rows, N of which predict, when n_shared layers share theirs. */
static void carve_train(struct model *m, struct carve *s, int64_t T, int64_t N, int n_shared) {
    const struct model_config *c = &m->cfg;
    struct train_space *w = &m->ts;
    const int64_t D = c->D;
    for (int i = 0; i < c->L; i++) {
        if (i > 0 && i < n_shared)
            w->layer[i] = w->layer[0];
        else
            layer_keep(m, s, i == 0 && n_shared > 1 ? LAYER_ANY : i, T, NULL, &w->layer[i]);
        carve_lora(m, s, T, n_shared, i);
        w->layer[i].x[0] = carve(s, T * D);
    }
    w->x_last = carve(s, T * D);
    w->hn = carve_act(m, s, T * D);
    w->p.h = carve_act(m, s, T * D);
    layer_scratch(m, s, T, &w->p);
    /* An adapter's head sees chunks of wanted rows, of which there may be more than rows. */
    w->p.xa = carve_act(m, s, xa_room(m, m->n_heads > 0 ? i64_max(T, i64_min(N, w->chunk)) : T));
    w->hc = carve_act(m, s, w->chunk * D);
    w->dhc = carve(s, w->chunk * D);
    const bool in16 = w->backward && head_in_16(m);
    w->logits = carve(s, (w->keep_logits && !in16 ? i64_max(N, w->chunk) : w->chunk) * c->V);
    w->dhn = NULL;
    w->dl = w->hs = w->head_xa = w->head_dt = w->head_xs = NULL;
    if (!w->backward) return;
    const int64_t run = i64_min(N, head_run(m)), R = head_rank(m, w->of);
    if (!head_trained(m) || in16) w->dhn = carve(s, N * D);
    if (in16) w->dl = carve_act(m, s, (w->keep_logits ? N : run) * c->V);
    if (in16 && head_trained(m)) w->hs = carve_act(m, s, run * D);
    if (R > 0) w->head_xa = carve_act(m, s, N * R);
    if (R > 0 && in16) w->head_dt = carve_act(m, s, N * R);
    if (R > 0 && in16) w->head_xs = carve_act(m, s, run * R);
    w->dx = carve(s, T * D);
    w->dh = carve(s, T * D);
    layer_scratch_back(m, s, T, w);
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
    if (!m->ts.backward) return ST_OK;
    const int64_t weights = model_memory(m).weight_bytes, held = m->ts.cap_floats * (int64_t)sizeof(float);
    int64_t budget = m->activation_memory;
    if (budget == 0) {
        budget = i64_max(2 * GB, weights + GB);
        const int64_t have = m->be->mem_available(m->be);
        if (have < budget - held) budget = have / 10 * 9 + held;
    }
    const int64_t floats = budget / (int64_t)sizeof(float);
    if (head_trained(m)) {
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

/* What the batch trains that goes through this adapter; the batch at hand has been checked. */
static void choose_trained(struct model *m, bool backward, int adapter) {
    struct train_space *w = &m->ts;
    w->backward = backward;
    w->full = backward && model_train_set(m, adapter).base;
    w->of = backward ? adapter_of(m, adapter) : NULL;
}

int64_t model_activation_bytes(struct model *m, int64_t T, int64_t N, int shared) {
    choose_chunk(m);
    m->ts.T = -1;
    m->ts.forward_only = false;
    choose_trained(m, model_train_set(m, ADAPTER_OWN).g, ADAPTER_OWN);
    m->ts.keep_logits = head_trained(m) && (shared == 0 || N <= head_run(m));
    return floats_for(m, T, N, shared) * (int64_t)sizeof(float);
}

/* Room on the host; more than before only where a batch is larger than all before it. */
static void reserve_host(struct model *m, const struct train_batch *b) {
    struct train_space *w = &m->ts;
    if (w->chunk > w->cap_chunk) {
        w->ones = xrealloc(w->ones, (size_t)w->chunk * sizeof *w->ones);
        w->count = xrealloc(w->count, (size_t)w->chunk * sizeof *w->count);
        w->first = xrealloc(w->first, (size_t)w->chunk * sizeof *w->first);
        for (int64_t i = w->cap_chunk; i < w->chunk; i++) w->ones[i] = 1;
        for (int64_t i = w->cap_chunk; i < w->chunk; i++) w->count[i] = (int32_t)i;
        w->cap_chunk = w->chunk;
    }
    if (b->N > w->cap_N) {
        w->apart = xrealloc(w->apart, (size_t)b->N * sizeof *w->apart);
        w->cap_N = b->N;
    }
    if (b->T > w->cap_T) {
        w->pos = xrealloc(w->pos, (size_t)b->T * sizeof *w->pos);
        w->cap_T = b->T;
    }
    if (b->n_seg > w->cap_seq) {
        w->seq = xrealloc(w->seq, (size_t)b->n_seg * sizeof *w->seq);
        w->p.lora.run = xrealloc(w->p.lora.run, (size_t)b->n_seg * sizeof *w->p.lora.run);
        w->cap_seq = b->n_seg;
    }
    const int64_t heads = m->n_heads > 0 ? i64_max(b->N, b->T) : 0; /* model_logits takes every row */
    if (heads > w->cap_head) {
        w->p.head.run = xrealloc(w->p.head.run, (size_t)heads * sizeof *w->p.head.run);
        w->cut = xrealloc(w->cut, (size_t)heads * sizeof *w->cut);
        w->cap_head = heads;
    }
}

/* Whose heads act on the n rows `rows` (NULL: all) of the batch that w->p.lora tells of. */
static void head_runs(struct model *m, const int32_t *rows, int64_t n) {
    struct train_space *w = &m->ts;
    const struct lora_runs *l = &w->p.lora;
    int at = 0; /* rows mostly ascend */
    w->p.head.n = 0;
    for (int64_t i = 0; i < n && m->n_heads > 0 && l->n > 0; i++) {
        const int64_t row = rows ? rows[i] : i;
        while (at > 0 && row < l->run[at].row) at--;
        while (at + 1 < l->n && row >= l->run[at + 1].row) at++;
        const struct lora_rows *r = &l->run[at];
        if (row >= r->row && row < r->row + r->n && has_head(r->adapter)) runs_add(&w->p.head, r->adapter, i, 1);
    }
}

static enum status prepare(struct model *m, const struct train_batch *b, struct err *e) {
    struct train_space *w = &m->ts;
    const int64_t T = b->T;
    w->T = -1;
    w->forward_only = b->forward_only;
    choose_chunk(m);
    choose_trained(m, is_trained_on(m, b), b->n_seg > 0 ? b->seg[0].adapter : ADAPTER_OWN);
    int n_shared;
    TRY(choose_shared(m, T, b->N, &n_shared, e));
    TRY(space_grow(m, &w->mem, &w->cap_floats, floats_for(m, T, b->N, n_shared), "a training batch's activations", e));
    struct carve s = {.base = w->mem};
    carve_train(m, &s, T, b->N, n_shared);
    w->n_shared = n_shared;
    w->logits_kept = w->keep_logits;
    w->held = n_shared - 1; /* which forward computes last */
    reserve_host(m, b);
    int64_t longest = 0;
    w->p.lora.n = 0;
    for (int i = 0; i < b->n_seg; i++) {
        const struct segment *g = &b->seg[i];
        const struct segment *pre = g->prefix >= 0 ? &b->seg[g->prefix] : NULL;
        const int64_t past = pre ? pre->len : 0;
        w->seq[i] = (struct attn_seq){.row = g->start, .len = g->len, .past = past, .past_row = pre ? pre->start : 0};
        for (int64_t t = 0; t < g->len; t++) w->pos[g->start + t] = (int32_t)(past + t);
        longest = i64_max(longest, past + g->len);
        runs_add(&w->p.lora, adapter_of(m, g->adapter), g->start, g->len);
    }
    head_runs(m, b->rows, b->N);
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
    layer_forward(m, i, &w->p, &w->layer[i], NULL);
    w->held = i;
}

void model_experts(struct model *m, int32_t *experts, bool given) {
    m->ts.p.experts = experts;
    m->ts.p.given = given;
}

/* Embedding to final norm; leaves hn. */
static enum status run_layers(struct model *m, const struct train_batch *b, struct err *e) {
    m->passes++;
    TRY(check_batch(m, b, e));
    TRY(prepare(m, b, e));
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D;
    const int L = m->cfg.L;
    if (be->pass_begin) be->pass_begin(be, 0);
    be->embed(be, tensor_full(w->layer[0].x[0], b->T, D), model_table(m), b->ids);
    for (int i = 0; i < L; i++) layer_forward(m, i, &w->p, &w->layer[i], i + 1 < L ? w->layer[i + 1].x[0] : w->x_last);
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

/* n elements of an array of [N,R] that the head of an adapter keeps, from wanted row i on; without one, scratch. */
static void *head_kept(const struct model *m, void *kept, int64_t i) {
    const struct train_space *w = &m->ts;
    return kept ? (char *)kept + (size_t)(i * head_rank(m, w->of)) * dtype_bytes(m->act) : w->p.xa;
}

void *model_head_xa(const struct model *m, int64_t i) { return head_kept(m, m->ts.head_xa, i); }
void *model_head_dt(const struct model *m, int64_t i) { return head_kept(m, m->ts.head_dt, i); }

/* Finds neighbours that want one row, as the targets of a soft row do. first: where each of the n rows stands among
 * `apart`, the rows without repetitions. Returns their number. */
static int64_t rows_apart(const int32_t *rows, int64_t n, int32_t *apart, int32_t *first) {
    int64_t count = 0;
    for (int64_t j = 0; j < n; j++) {
        if (j == 0 || rows[j] != rows[j - 1]) apart[count++] = rows[j];
        first[j] = (int32_t)(count - 1);
    }
    return count;
}

/* Row j of x becomes its row first[j], which is not behind it: from the last one on, so that none is lost. */
static void spread_rows(struct backend *be, struct tensor x, const int32_t *first) {
    const size_t bytes = (size_t)x.cols * dtype_bytes(x.dt);
    for (int64_t j = x.rows - 1; j > 0; j--)
        if (first[j] != j) be->mem_copy(be, tensor_rows(x, j, 1).data, tensor_rows(x, first[j], 1).data, bytes);
}

void model_wanted_logits(struct model *m, const struct train_batch *b, int64_t i, struct tensor lg) {
    struct train_space *w = &m->ts;
    int32_t *const rows = w->apart + i; /* which a pass may read again at this address */
    const int64_t n = lg.rows, apart = rows_apart(b->rows + i, n, rows, w->first);
    const struct lora_runs l = runs_within(&w->p.head, i, n, w->cut);
    struct tensor hc = act_full(m, w->hc, apart, m->cfg.D);
    for (int k = 0; k < l.n; k++) { /* a row and its copies are of one run */
        struct lora_rows *r = &l.run[k];
        const int64_t row = w->first[r->row];
        *r = (struct lora_rows){r->adapter, row, w->first[r->row + r->n - 1] + 1 - row};
    }
    m->be->gather_rows(m->be, hc, act_full(m, w->hn, b->T, m->cfg.D), rows);
    model_head_forward(m, &l, tensor_rows(lg, 0, apart), hc, model_head_xa(m, i));
    if (apart == n) return;
    spread_rows(m->be, lg, w->first);
    if (w->head_xa) spread_rows(m->be, act_full(m, model_head_xa(m, i), n, head_rank(m, w->of)), w->first);
}

enum status model_forward(struct model *m, const struct train_batch *b, float *logp, float *entropy, float *hidden,
                          struct err *e) {
    TRY(run_layers(m, b, e));
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    for (int64_t i = 0; i < b->N; i += w->chunk) {
        const int64_t n = i64_min(w->chunk, b->N - i);
        struct tensor lg = tensor_full(logits_of(w, i, V), n, V);
        if (!b->targets) {
            be->gather_rows(be, act_full(m, w->hc, n, D), act_full(m, w->hn, b->T, D), b->rows + i);
            get_hidden(m, hidden + i * D, w->hc, n * D);
            continue;
        }
        model_wanted_logits(m, b, i, lg);
        be->logprob(be, logp + i, entropy ? entropy + i : NULL, lg, b->targets + i);
        if (!w->dhn) continue;
        /* What backward needs of these logits is d logp / d hn, and of a head that is trained d logp / d logits: g
         * scales them. The logits are not computed again. */
        struct tensor dhn = tensor_full(w->dhn + i * D, n, D), dl = w->dl ? dl_of(m, i, n) : lg;
        fused_logits_grad(be, dl, lg, b->targets + i, w->ones);
        lora_backward(m, m->cfg.L, LORA_OF_HN, dl, NULL, model_head_dt(m, i));
        lora_dx(m, m->cfg.L, LORA_OF_HN, dhn, dl, &m->head, model_head_dt(m, i));
    }
    if (hidden && (b->targets || b->N == 0)) get_hidden(m, hidden, w->hn, b->T * D);
    w->T = b->T;
    w->N = b->N;
    return be->sync(be, e);
}

enum status model_logits(struct model *m, const struct train_batch *b, float *logits, struct err *e) {
    TRY(run_layers(m, b, e));
    struct train_space *w = &m->ts;
    struct backend *be = m->be;
    const int64_t D = m->cfg.D, V = m->cfg.V;
    struct tensor hn = act_full(m, w->hn, b->T, D);
    head_runs(m, NULL, b->T);
    for (int64_t i = 0; i < b->T; i += w->chunk) {
        const int64_t n = i64_min(w->chunk, b->T - i);
        const struct lora_runs l = runs_within(&w->p.head, i, n, w->cut);
        model_head_forward(m, &l, tensor_full(w->logits, n, V), tensor_rows(hn, i, n), w->p.xa);
        be->mem_get(be, logits + i * V, w->logits, (size_t)(n * V) * sizeof(float));
    }
    return be->sync(be, e);
}

void train_space_free(struct model *m) {
    m->be->mem_free(m->be, m->ts.mem);
    free(m->ts.layer);
    free(m->ts.pos);
    free(m->ts.ones);
    free(m->ts.count);
    free(m->ts.apart);
    free(m->ts.first);
    free(m->ts.seq);
    free(m->ts.p.lora.run);
    free(m->ts.p.head.run);
    free(m->ts.cut);
}
