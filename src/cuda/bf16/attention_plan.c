/* Work lists of attention over bfloat16 caches. Sequences with few query rows are split over their keys, a warp a unit;
 * the others are walked, a warp a tile of query pairs. In training the keys and values of a layer are first written to
 * a cache of the moment, in which a sequence shares the full blocks of its prefix and has copies of what follows. A
 * list is made once a pass. While a pass may be recorded its sizes are rounded up, so that a recording serves for a
 * while. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/host.h"

enum { LONG_RUN = 8 }; /* units: shorter runs are not split for the sake of balance */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void plan16_free(struct cuda_backend *c) {
    struct plan16 *p = &c->plan16;
    free(p->h_kv);
    free(p->h_split);
    free(p->h_walk);
    free(p->h_table);
    device_free(c, p->dev.p);
}

#define ROOM(array, n, cap)                                               \
    do {                                                                  \
        if ((n) >= (cap)) {                                               \
            (cap) = 2 * (n) + 64;                                         \
            (array) = xrealloc((array), (size_t)(cap) * sizeof *(array)); \
        }                                                                 \
    } while (0)

/* Rows `row`.. become keys `key`.. of a sequence whose table begins at `table`. */
static void write_rows(struct plan16 *p, const int32_t *table, int64_t row, int64_t key, int64_t n) {
    while (n > 0) {
        const int64_t slot = key % KV_BLOCK, rows = i64_min(i64_min(KV_ROWS, KV_BLOCK - slot), n);
        ROOM(p->h_kv, p->n_kv, p->cap_kv);
        p->h_kv[p->n_kv++] = (struct cu_kv_task){row, table[key / KV_BLOCK], (int32_t)slot, (int32_t)rows, 0};
        row += rows;
        key += rows;
        n -= rows;
    }
}

static void table_room(struct plan16 *p, int64_t n) {
    if (p->n_table + n <= p->cap_table) return;
    p->cap_table = 2 * (p->n_table + n) + 64;
    p->h_table = xrealloc(p->h_table, (size_t)p->cap_table * sizeof *p->h_table);
}

/* True: the past of sequence i is in sequence o, an earlier one, which has no past itself. */
static bool holds_past(const struct attn_seq *seq, int o, int i) {
    return o < i && seq[o].row == seq[i].past_row && seq[o].past == 0 && seq[o].len >= seq[i].past;
}

/* The table of a training sequence, and what must be written into its own blocks. at[j]: where the table of sequence j
 * begins. */
static void own_cache(struct plan16 *p, const struct attn_seq *seq, int i, int64_t *at, int *owner) {
    const struct attn_seq *s = &seq[i];
    const int64_t blocks = ceil_div(s->past + s->len, KV_BLOCK);
    int64_t shared = 0;
    at[i] = p->n_table;
    table_room(p, blocks);
    if (s->past > 0) {
        int o = *owner;
        for (int j = 0; !holds_past(seq, o, i) && j < i; j++) o = j;
        if (holds_past(seq, o, i)) {
            *owner = o;
            shared = s->past / KV_BLOCK;
            memcpy(p->h_table + p->n_table, p->h_table + at[o], (size_t)shared * sizeof *p->h_table);
        }
    }
    for (int64_t b = shared; b < blocks; b++) p->h_table[p->n_table + b] = (int32_t)p->n_blocks++;
    const int32_t *table = p->h_table + p->n_table;
    const int64_t first = shared * KV_BLOCK;
    if (s->past > first) write_rows(p, table, s->past_row + first, first, s->past - first);
    write_rows(p, table, s->row, s->past, s->len);
    p->n_table += blocks;
}

static void query_tasks(struct plan16 *p, const struct attn_seq *s, struct attn_shape shape, int64_t table) {
    const int64_t rep = shape.H / shape.G, pairs = s->len * rep;
    const bool split = cuda_is_split(s, shape.H, shape.G);
    const int64_t tile = split ? CUDA_SPLIT_PAIRS : CU_WALK_PAIRS, units = cuda_units(s, shape.H, shape.G);
    /* The last rows see the most keys: they go first. */
    for (int64_t first = pairs > 0 ? (pairs - 1) / tile * tile : 0; first >= 0; first -= tile)
        for (int32_t g = 0; g < shape.G; g++) {
            const struct cu_attn_task t = {.row = s->row,
                                           .past = s->past,
                                           .past_row = s->past_row,
                                           .table = table,
                                           .g = g,
                                           .pair0 = (int32_t)first,
                                           .pairs = (int32_t)i64_min(tile, pairs - first),
                                           .part = (int32_t)p->part_units};
            if (!split) {
                ROOM(p->h_walk, p->n_walk, p->cap_walk);
                p->h_walk[p->n_walk++] = t;
                continue;
            }
            ROOM(p->h_split, p->n_split, p->cap_split);
            p->h_split[p->n_split++] = t;
            if (pairs == 0) continue;
            p->part_units += units;
            p->max_units = i64_max(p->max_units, units);
        }
}

/* Into how many runs of units a task is split: so that the device's blocks have one each, and no run is much longer
 * than a block's share of all units. Few tasks have a block a unit. Of more tasks than there are blocks at a time those
 * that are left for the last time round are split among all blocks: otherwise most of the device would wait for them.
 */
static void choose_runs(struct plan16 *p, int sm_count) {
    const int64_t blocks = CU_UNIT_BLOCKS * (int64_t)sm_count;
    const int64_t longest = i64_max(LONG_RUN, ceil_div(p->part_units, blocks));
    const int64_t last = p->n_split > blocks ? p->n_split % blocks : 0;
    p->late = p->n_split - last;
    for (int i = 0; i < 2; i++) {
        const int64_t tasks = i == 0 ? p->late : last, each = blocks / i64_max(tasks, 1);
        const int64_t run = i64_min(ceil_div(p->max_units, i64_max(each, 1)), longest);
        p->runs[i] = ceil_div(p->max_units, run);
        p->run_units[i] = ceil_div(p->max_units, p->runs[i]);
    }
}

static bool send_plan(struct cuda_backend *c, const char *op, struct plan16 *p) {
    const size_t kv = (size_t)p->n_kv * sizeof *p->h_kv, split = (size_t)p->n_split * sizeof *p->h_split,
                 walk = (size_t)p->n_walk * sizeof *p->h_walk, table = (size_t)p->n_table * sizeof *p->h_table;
    const size_t bytes = kv + split + walk + table + 128; /* each part is aligned */
    struct host_stage s;
    if (!stage_begin(c, op, bytes, &s)) return false;
    const char *from = s.dev;
    p->kv_task = stage_add(&s, p->h_kv, kv);
    p->split = stage_add(&s, p->h_split, split);
    p->walk = stage_add(&s, p->h_walk, walk);
    p->table = stage_add(&s, p->h_table, table);
    if (c->pass.mode != PASS_RUN) return stage_send(c, op, &s);
    /* The ring comes round again before a pass ends: a place of its own. */
    char *to = device_room(c, op, &p->dev, (int64_t)bytes);
    if (!to || !cuda_ok(c, op, cudaMemcpyAsync(to, s.host, s.used, cudaMemcpyHostToDevice, c->stream))) return false;
    p->kv_task = (const void *)(to + ((const char *)p->kv_task - from));
    p->split = (const void *)(to + ((const char *)p->split - from));
    p->walk = (const void *)(to + ((const char *)p->walk - from));
    p->table = (const void *)(to + ((const char *)p->table - from));
    return true;
}

struct plan16 *plan16_of(struct cuda_backend *c, const char *op, const struct attn_seq *seq, int n_seq,
                         struct attn_shape s, bool training) {
    struct plan16 *p = &c->plan16;
    if (c->pass.open && p->serial == c->pass.serial && p->seq == seq && p->n_seq == n_seq && p->H == s.H &&
        p->G == s.G && p->K == s.K && p->training == training)
        return p;
    ASSERT(s.H % s.G == 0 && s.K % 16 == 0 && s.K <= 128);
    p->serial = 0;
    p->seq = seq;
    p->n_seq = n_seq;
    p->H = s.H;
    p->G = s.G;
    p->K = s.K;
    p->training = training;
    p->n_kv = p->n_split = p->n_walk = p->n_table = p->part_units = p->n_blocks = 0;
    p->max_units = 1;
    int owner = 0;
    CLEANUP_FREE int64_t *at = training ? xmalloc((size_t)n_seq * sizeof *at) : NULL;
    for (int i = 0; i < n_seq; i++) {
        const int64_t table = p->n_table;
        if (training) {
            own_cache(p, seq, i, at, &owner);
        } else if (seq[i].blocks) {
            const int64_t blocks = ceil_div(seq[i].past + seq[i].len, KV_BLOCK);
            table_room(p, blocks);
            memcpy(p->h_table + p->n_table, seq[i].blocks, (size_t)blocks * sizeof *p->h_table);
            p->n_table += blocks;
            write_rows(p, seq[i].blocks, seq[i].row, seq[i].past, seq[i].len);
        }
        query_tasks(p, &seq[i], s, table);
    }
    if (c->pass.open && c->pass.rec) { /* sizes that hold for a while */
        p->max_units = cuda_recorded_size(p->max_units);
        p->part_units = cuda_recorded_size(i64_max(p->part_units, 1));
        const int64_t room = cuda_recorded_size(p->n_table + 1);
        table_room(p, room - p->n_table);
        memset(p->h_table + p->n_table, 0, (size_t)(room - p->n_table) * sizeof *p->h_table);
        p->n_table = room;
        for (int64_t n = n_seq; p->n_kv < n;) { /* sequences that are there to fill up write nothing */
            ROOM(p->h_kv, p->n_kv, p->cap_kv);
            p->h_kv[p->n_kv++] = (struct cu_kv_task){0};
        }
    }
    choose_runs(p, c->dev.sm_count);
    if (!send_plan(c, op, p)) return NULL;
    p->serial = c->pass.open ? c->pass.serial : 0;
    return p;
}
