/* Attention's work lists: which blocks do which part of which sequence. The longest work comes first, so that no block
 * is left over at the end. A list is made once for all layers of a pass, and kept on the device. It changes which block
 * computes a row, never the row's bits. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/host.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void plan_free(struct cuda_backend *c, struct plan *p) {
    free(p->seq);
    free(p->table);
    device_free(c, p->dev.p);
}

static int64_t table_len(const struct attn_seq *s) {
    return s->blocks && s->len > 0 ? ceil_div(s->past + s->len, KV_BLOCK) : 0;
}

/* Compares the contents of block tables, not their addresses: a table may stay where it is while its contents
 * change. */
static bool same_seq(const struct plan *p, const struct attn_seq *b) {
    const struct attn_seq *a = p->seq;
    const int32_t *table = p->table;
    for (int i = 0; i < p->n_seq; i++) {
        if (a[i].row != b[i].row || a[i].len != b[i].len || a[i].past != b[i].past || a[i].past_row != b[i].past_row ||
            (a[i].blocks == NULL) != (b[i].blocks == NULL))
            return false;
        const int64_t n = table_len(&b[i]);
        if (n > 0 && memcmp(table, b[i].blocks, (size_t)n * sizeof *table) != 0) return false;
        table += n;
    }
    return true;
}

/* Returns whether the plan on the device is the one for this call. If not, the plan is marked as being made. */
static bool plan_begin(struct plan *p, const struct attn_seq *seq, int n_seq, struct attn_shape s, int64_t tile) {
    if (p->valid && p->tile == tile && p->n_seq == n_seq && p->shape.H == s.H && p->shape.G == s.G &&
        p->shape.K == s.K && same_seq(p, seq)) {
        p->shape = s; /* This is another layer's part of the cache. */
        return true;
    }
    if (n_seq > p->cap_seq) {
        p->seq = xrealloc(p->seq, (size_t)n_seq * sizeof *p->seq);
        p->cap_seq = n_seq;
    }
    if (n_seq > 0) memcpy(p->seq, seq, (size_t)n_seq * sizeof *seq);
    p->n_seq = n_seq;
    p->n_table = 0;
    for (int i = 0; i < n_seq; i++) p->n_table += table_len(&seq[i]);
    if (p->n_table > p->cap_table) {
        p->cap_table = 2 * p->n_table;
        p->table = xrealloc(p->table, (size_t)p->cap_table * sizeof *p->table);
    }
    for (int64_t i = 0, at = 0; i < n_seq; i++) {
        const int64_t n = table_len(&seq[i]);
        if (n > 0) memcpy(p->table + at, seq[i].blocks, (size_t)n * sizeof *p->table);
        at += n;
    }
    p->shape = s;
    p->tile = tile;
    p->valid = false;
    p->n_tasks = p->n_key_tasks = p->max_keys = p->max_pairs = 0;
    return false;
}

static int64_t task_keys(const struct cu_attn_task *t, int64_t rep) {
    return t->past + (t->pair0 + t->pairs - 1) / rep + 1;
}

/* Puts the longest work first. Work of equal cost stays in the order in which it was made. An item's cost stands in
 * front of it. */
struct work_order {
    int64_t cost;
    int32_t at;
};
static int longer(const void *a, const void *b) {
    const struct work_order *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Makes the query tasks, of `tile` pairs each. The caller frees *out. */
static int64_t query_tasks(struct cu_attn_task **out, const struct attn_seq *seq, int n_seq, struct attn_shape s,
                           int64_t tile) {
    const int64_t rep = s.H / s.G;
    int64_t n = 0;
    for (int i = 0; i < n_seq; i++) n += ceil_div(seq[i].len * rep, tile) * s.G;
    struct cu_attn_task *task = xcalloc((size_t)n, sizeof *task), *sorted = xcalloc((size_t)n, sizeof *task);
    struct work_order *order = xcalloc((size_t)n, sizeof *order);
    int64_t at = 0, table = 0;
    for (int i = 0; i < n_seq; table += table_len(&seq[i]), i++)
        for (int64_t p = 0; p < seq[i].len * rep; p += tile)
            for (int32_t g = 0; g < s.G; g++) {
                struct cu_attn_task *t = &task[at];
                *t = (struct cu_attn_task){.row = seq[i].row,
                                           .past = seq[i].past,
                                           .past_row = seq[i].past_row,
                                           .table = seq[i].blocks ? table : -1,
                                           .g = g,
                                           .pair0 = (int32_t)p,
                                           .pairs = (int32_t)i64_min(tile, seq[i].len * rep - p)};
                order[at] = (struct work_order){task_keys(t, rep), (int32_t)at};
                at++;
            }
    qsort(order, (size_t)n, sizeof *order, longer);
    for (int64_t i = 0; i < n; i++) sorted[i] = task[order[i].at];
    free(order);
    free(task);
    *out = sorted;
    return n;
}

/* Copies the parts of a plan to the device, one behind the other. */
static bool plan_send(struct cuda_backend *c, const char *op, struct plan *p, const struct cu_attn_task *task,
                      const struct cu_key_task *key_task, const struct cu_attn_user *user, int64_t n_users) {
    const size_t tasks = (size_t)p->n_tasks * sizeof *task, keys = (size_t)p->n_key_tasks * sizeof *key_task,
                 users = (size_t)n_users * sizeof *user, table = (size_t)p->n_table * sizeof *p->table;
    const size_t bytes = tasks + keys + users + table + 128; /* Each part is aligned. */
    struct host_stage s;
    if (!device_room(c, op, &p->dev, (int64_t)bytes) || !stage_begin(c, op, bytes, &s)) return false;
    stage_add(&s, task, tasks);
    p->table_at = s.used;
    stage_add(&s, p->table, table);
    p->key_at = s.used;
    stage_add(&s, key_task, keys);
    p->user_at = s.used;
    stage_add(&s, user, users);
    p->valid = cuda_ok(c, op, cudaMemcpyAsync(p->dev.p, s.host, s.used, cudaMemcpyHostToDevice, c->stream));
    return p->valid;
}

static void fill(struct cu_attn *a, const struct plan *p) {
    a->H = p->shape.H;
    a->G = p->shape.G;
    a->K = p->shape.K;
    a->kv = p->shape.kv;
    a->kv_stride = p->shape.kv_stride;
    a->table = (const int32_t *)(void *)((char *)p->dev.p + p->table_at);
    a->task = (const struct cu_attn_task *)p->dev.p;
    a->n_tasks = p->n_tasks;
    a->key_task = (const struct cu_key_task *)(void *)((char *)p->dev.p + p->key_at);
    a->n_key_tasks = p->n_key_tasks;
    a->user = (const struct cu_attn_user *)(void *)((char *)p->dev.p + p->user_at);
    a->max_keys = p->max_keys;
    a->max_pairs = p->max_pairs;
}

static const char no_tile[] = "head dimensions over 256, or too little shared memory on this GPU, are not supported";

void plan_attention(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                    struct attn_shape s) {
    struct plan *p = &c->forward;
    int64_t tile = cu_attn_tile(&c->dev, s.K);
    if (tile == 0) {
        cuda_refuse(c, "attention", no_tile);
        return;
    }
    if (!plan_begin(p, seq, n_seq, s, tile)) {
        const int64_t rep = s.H / s.G;
        int64_t pairs = 0;
        bool cached = true;
        for (int i = 0; i < n_seq; i++) {
            if (seq[i].len == 0) continue;
            cached &= seq[i].blocks != NULL;
            pairs = i64_max(pairs, seq[i].len * rep);
            p->max_keys = i64_max(p->max_keys, seq[i].past + seq[i].len);
        }
        /* With so few pairs a sequence, the kernel is used that shares a block's threads over keys, not over
         * queries. */
        p->max_pairs = i64_min(pairs, CU_DECODE_PAIRS);
        p->decode = cached && pairs <= 2 * CU_DECODE_PAIRS && cu_decode_fits(&c->dev, p->max_pairs, p->max_keys, s.K);
        if (p->decode) tile = CU_DECODE_PAIRS;
        struct cu_attn_task *task;
        p->n_tasks = query_tasks(&task, seq, n_seq, s, tile);
        const bool sent = plan_send(c, "attention", p, task, NULL, NULL, 0);
        free(task);
        if (!sent) return;
    }
    fill(a, p);
    cuda_ok(c, "attention", p->decode ? cu_attention_decode(&c->dev, a) : cu_attention(&c->dev, a));
}

/* Lists the runs of key rows of each sequence, and the sequences that see them: the sequence itself and, in order,
 * those behind it whose past lies in its rows. */
static bool key_tasks(struct cuda_backend *c, struct plan *p, const struct attn_seq *seq, int n_seq,
                      struct attn_shape s, int64_t tile, const struct cu_attn_task *task) {
    int64_t n_users = 0, n_tasks = 0;
    int32_t *count = xcalloc((size_t)n_seq + 1, sizeof *count), *first = xcalloc((size_t)n_seq + 1, sizeof *first);
    /* First: which sequence owns a row, for the rows that are some sequence's past. */
    int64_t rows = 0;
    for (int i = 0; i < n_seq; i++) rows = i64_max(rows, seq[i].row + seq[i].len);
    int32_t *owner = xmalloc((size_t)i64_max(rows, 1) * sizeof *owner);
    for (int64_t r = 0; r < rows; r++) owner[r] = -1;
    for (int32_t i = 0; i < n_seq; i++)
        for (int64_t r = seq[i].row; r < seq[i].row + seq[i].len; r++) owner[r] = i;
    /* Two passes: the first counts, the second lists. A past may span several sequences. */
    struct cu_attn_user *user = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < n_seq; i++) {
            const struct cu_attn_user u = {seq[i].row, seq[i].len, seq[i].past, seq[i].past_row};
            for (int64_t r = u.past_row; r < u.past_row + u.past && u.len > 0;) {
                const int32_t o = r < rows ? owner[r] : -1;
                ASSERT(o >= 0 && o < i); /* The contract says that the owner comes before its users. */
                if (pass) user[first[o] + count[o]] = u;
                count[o]++;
                r = seq[o].row + seq[o].len;
            }
            if (seq[i].len == 0) continue;
            if (pass) user[first[i] + count[i]] = u;
            count[i]++;
        }
        if (pass) break;
        for (int i = 0; i < n_seq; i++) {
            first[i] = (int32_t)n_users;
            n_users += count[i];
            n_tasks += ceil_div(seq[i].len, tile) * s.G;
            count[i] = 0;
        }
        user = xcalloc((size_t)n_users, sizeof *user);
    }
    struct cu_key_task *keys = xcalloc((size_t)n_tasks, sizeof *keys), *sorted = xcalloc((size_t)n_tasks, sizeof *keys);
    struct work_order *order = xcalloc((size_t)n_tasks, sizeof *order);
    int64_t at = 0;
    for (int i = 0; i < n_seq; i++) {
        int64_t others = 0;
        for (int32_t u = 0; u < count[i]; u++) others += user[first[i] + u].len;
        for (int64_t r = 0; r < seq[i].len; r += tile)
            for (int32_t g = 0; g < s.G; g++) {
                keys[at] =
                    (struct cu_key_task){seq[i].row + r, (int32_t)i64_min(tile, seq[i].len - r), g, first[i], count[i]};
                order[at] = (struct work_order){others - r, (int32_t)at};
                at++;
            }
    }
    qsort(order, (size_t)n_tasks, sizeof *order, longer);
    for (int64_t i = 0; i < n_tasks; i++) sorted[i] = keys[order[i].at];
    p->n_key_tasks = n_tasks;
    const bool sent = plan_send(c, "attention_grad", p, task, sorted, user, n_users);
    free(order);
    free(keys);
    free(sorted);
    free(user);
    free(owner);
    free(first);
    free(count);
    return sent;
}

bool plan_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq, struct attn_shape s,
               int64_t tile) {
    struct plan *p = &c->backward;
    if (!plan_begin(p, seq, n_seq, s, tile)) {
        struct cu_attn_task *task;
        p->n_tasks = query_tasks(&task, seq, n_seq, s, tile);
        const bool sent = key_tasks(c, p, seq, n_seq, s, tile, task);
        free(task);
        if (!sent) return false;
    }
    fill(a, p);
    return a->n_tasks > 0;
}

void plan_attention_grad(struct cuda_backend *c, struct cu_attn *a, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s) {
    const int64_t tile = cu_attn_grad_tile(&c->dev, s.K);
    if (tile == 0) {
        cuda_refuse(c, "attention_grad", no_tile);
        return;
    }
    if (!plan_grad(c, a, seq, n_seq, s, tile)) return;
    a->delta = cuda_scratch(c, "attention_grad", CUDA_SCRATCH, cuda_attention_grad_bytes(DT_F32, a->q.rows, s.H));
    if (a->delta) cuda_ok(c, "attention_grad", cu_attention_grad(&c->dev, a));
}

void plan_kv_write(struct cuda_backend *c, struct tensor k, struct tensor v, const struct attn_seq *seq, int n_seq,
                   struct attn_shape s) {
    /* Runs of rows end where a block ends. */
    int64_t n = 0;
    for (int i = 0; i < n_seq; i++) {
        ASSERT(seq[i].len == 0 || (seq[i].blocks && s.kv));
        n += ceil_div(seq[i].len, KV_ROWS) + seq[i].len / KV_BLOCK + 1;
    }
    struct host_stage st;
    if (n == 0 || !stage_begin(c, "kv_write", (size_t)n * sizeof(struct cu_kv_task) + 64, &st)) return;
    struct cu_kv_task *dev = stage_add(&st, NULL, (size_t)n * sizeof *dev), *task = stage_host(&st, dev);
    const struct cu_kv_task *const first = task;
    for (int i = 0; i < n_seq; i++)
        for (int64_t r = 0; r < seq[i].len;) {
            const int64_t key = seq[i].past + r, slot = key % KV_BLOCK;
            const int64_t rows = i64_min(i64_min(KV_ROWS, KV_BLOCK - slot), seq[i].len - r);
            *task++ =
                (struct cu_kv_task){seq[i].row + r, seq[i].blocks[key / KV_BLOCK], (int32_t)slot, (int32_t)rows, 0};
            r += rows;
        }
    if (stage_send(c, "kv_write", &st))
        cuda_ok(c, "kv_write",
                cu_kv_write(&c->dev, mat_of(k), mat_of(v), dev, task - first, s.G, s.K, s.kv, s.kv_stride));
}
