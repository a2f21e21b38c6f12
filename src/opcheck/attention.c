/* Cases of attention over packed training sequences and over the paged cache, of its gradient and of kv_write. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "opcheck/cases.h"

#define V(i, r, j) (v[(i)][at(c, (int)(i), (r), (j))])

/* Sequences that are packed end to end. prefix[i] >= 0: the past of i is the first past[i] rows of that sequence. */
struct packing {
    int n;
    int64_t len[12];
    int prefix[12];
    int64_t past[12]; /* 0: the past is all of the prefix. */
};
static const struct packing packings[] = {
    {1, {1}, {-1}, {0}},
    {5, {70, 1, 40, 0, 19}, {-1, 0, 0, 0, -1}, {0}},
    {6, {130, 66, 3, 64, 65, 17}, {-1, 0, 0, -1, 3, 3}, {0}},
    {4, {0, 5, 33, 63}, {-1, -1, 1, 1}, {0}},
    {5, {90, 20, 30, 1, 128}, {-1, 0, 0, 0, -1}, {0, 33, 90, 64, 0}},
    {10, {250, 120, 119, 121, 64, 100, 31, 32, 33, 16}, {-1, 0, 0, 0, 0, -1, 5, 5, 5, 5}, {0}},
    {4, {5, 2, 0, 3}, {-1, 0, 0, -1}, {0}},
    {12,
     {200, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, /* Decoding: the pasts are around the sizes of tiles and blocks. */
     {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
     {0, 1, 15, 16, 17, 62, 63, 64, 65, 127, 128, 129}},
};
enum { SMALL_PACKING = 6 };

#define HEADS(p)                                                                                              \
    {4, 2, 64, p}, {6, 3, 10, p}, {3, 1, 70, p}, {2, 2, 32, p}, {8, 1, 128, p}, {5, 5, 3, p}, {2, 1, 256, p}, \
        {14, 2, 64, p}, {4, 4, 130, p}, {                                                                     \
        2, 1, 63, p                                                                                           \
    }
static const int64_t shapes[][SHAPE] = {HEADS(0), HEADS(1), HEADS(2), HEADS(3), HEADS(4), HEADS(6), HEADS(7), HEADS(5)};
const struct shape_list shapes_attention = {shapes, (int)ARRAY_LEN(shapes)};
static const int64_t small[][SHAPE] = {{1, 1, 3, 0}, {4, 2, 6, SMALL_PACKING}};

enum { Q, K_, V_, O, STATS, CACHE, D_O = 5, DQ, DK, DV };

/* ---- sequences --------------------------------------------------------------------------------------------------- */

/* Packs the sequences of a case without a cache. Returns how many rows they take. */
static int64_t pack(struct op_case *c) {
    int64_t row = 0;
    if (c->s[3] < 0) { /* All sequences have one past, whose rows belong to no sequence. */
        c->n_seq = (int)c->s[4];
        c->seq = xcalloc((size_t)c->n_seq, sizeof *c->seq);
        for (int i = 0; i < c->n_seq; i++)
            c->seq[i] = (struct attn_seq){c->s[5] + i * c->s[6], c->s[6], c->s[5], 0, NULL};
        return c->s[5] + c->n_seq * c->s[6];
    }
    const struct packing *p = &packings[c->s[3]];
    c->n_seq = p->n;
    c->seq = xcalloc((size_t)p->n, sizeof *c->seq);
    for (int i = 0; i < p->n; i++) {
        const int from = p->prefix[i];
        c->seq[i] = (struct attn_seq){.row = row, .len = p->len[i]};
        if (from >= 0) {
            c->seq[i].past = p->past[i] ? p->past[i] : c->seq[from].len;
            c->seq[i].past_row = c->seq[from].row;
        }
        row += p->len[i];
    }
    return row;
}

static int64_t blocks_of(const struct attn_seq *s) { return (s->past + s->len + KV_BLOCK - 1) / KV_BLOCK; }

/* Gives every sequence blocks of the cache, in no order. shared: sequences with the same past have its full blocks in
 * common, as answers to one prompt do. */
static void give_blocks(struct op_case *c, bool shared) {
    int64_t entries = 0;
    for (int i = 0; i < c->n_seq; i++) entries += blocks_of(&c->seq[i]);
    c->blocks = xcalloc((size_t)i64_max(entries, 1), sizeof *c->blocks);
    c->n_fill = c->n_seq;
    c->fill = xcalloc((size_t)c->n_seq, sizeof *c->fill);
    int32_t *order = xcalloc((size_t)i64_max(entries, 1), sizeof *order);
    for (int64_t i = 0; i < entries; i++) order[i] = (int32_t)i;
    struct rng r = rng_make(c->seed, 200);
    rng_shuffle(&r, order, (size_t)entries, sizeof *order);
    int32_t *table = c->blocks;
    int64_t given = 0;
    c->n_blocks = entries; /* The blocks that sharing saves stay unused. */
    for (int i = 0; i < c->n_seq; i++) {
        struct attn_seq *s = &c->seq[i];
        int64_t have = 0;
        for (int j = 0; shared && j < i && have == 0; j++)
            if (c->fill[j].row == s->past_row && c->fill[j].len > 0) {
                have = i64_min(s->past, c->fill[j].len) / KV_BLOCK;
                if (have > 0) memcpy(table, c->seq[j].blocks, (size_t)have * sizeof *table);
            }
        for (int64_t b = have; b < blocks_of(s); b++) table[b] = order[given++];
        c->fill[i] = (struct attn_seq){s->past_row, s->past, 0, 0, table};
        s->blocks = table;
        table += blocks_of(s);
    }
    free(order);
}

void attention_split_rows(struct op_case *c) {
    int64_t total = 0, n = 0;
    for (int i = 0; i < c->n_seq; i++) total += c->seq[i].len;
    struct attn_seq *one = xcalloc((size_t)i64_max(total, 1), sizeof *one);
    for (int i = 0; i < c->n_seq; i++)
        for (int64_t r = 0; r < c->seq[i].len; r++)
            one[n++] = (struct attn_seq){c->seq[i].row + r, 1, c->seq[i].past + r, 0, c->seq[i].blocks};
    free(c->seq);
    c->seq = one;
    c->n_seq = (int)total;
}

/* Returns the row of k and v that holds key j of a sequence. */
static int64_t key_row(const struct attn_seq *s, const struct attn_seq *fill, int64_t j) {
    return j >= s->past ? s->row + j - s->past : (fill ? fill->row : s->past_row) + j;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* An operand that tensor/ops.h wants finite has huge, tiny and zero special values, but no others. */
static void finite_operand(struct op_case *c, int at, const char *name, int64_t rows, int64_t cols, float scale) {
    const int special = c->special;
    if (special == 2) c->special = 1;
    operand_add(c, at, name, IN, rows, cols, 0, scale);
    c->special = special;
}
static void inputs(struct op_case *c, bool cached) {
    const int64_t H = c->s[0], G = c->s[1], K = c->s[2], T = pack(c);
    c->rows = T;
    operand_add(c, Q, "q", IN, T, H * K, 0, 1.5f / sqrtf((float)K));
    operand_add(c, K_, "k", IN, T, G * K, 0, 1);
    finite_operand(c, V_, "v", T, G * K, 1);
    if (!cached) return;
    give_blocks(c, c->variant == 1);
    /* There are blocks of two layers, of which the second is used. Before, they may hold anything, NaN included. */
    operand_add(c, CACHE, "cache", INOUT, c->n_blocks, 2 * kv_layer_floats(G, K), SOLID | STALE, 1);
}
static void outputs(struct op_case *c, bool with_stats) {
    operand_add(c, O, "o", OUT, c->rows, c->s[0] * c->s[2], 0, 1);
    if (with_stats) operand_add(c, STATS, "stats", OUT, c->rows, 2 * c->s[0], SOLID, 1);
}

static struct attn_shape shape_of(const struct op_case *c, const struct side *s) {
    const int64_t layer = kv_layer_floats(c->s[1], c->s[2]);
    struct attn_shape a = {c->s[0], c->s[1], c->s[2], NULL, 0};
    if (c->blocks) a.kv = (float *)s->mem[CACHE] + layer, a.kv_stride = 2 * layer;
    return a;
}

static double keys_seen(const struct op_case *c) {
    double keys = 0;
    for (int i = 0; i < c->n_seq; i++)
        keys += (double)c->seq[i].len * ((double)c->seq[i].past + (double)(c->seq[i].len + 1) / 2);
    return keys;
}

/* ---- kv_write ---------------------------------------------------------------------------------------------------- */

static void kv_write_build(struct op_case *c) { inputs(c, true); }
static void write_fill(const struct op_case *c, struct side *s) {
    s->be->kv_write(s->be, side_view(c, s, K_), side_view(c, s, V_), c->fill, c->n_fill, shape_of(c, s));
}
static void kv_write_call(const struct op_case *c, struct side *s) {
    s->be->kv_write(s->be, side_view(c, s, K_), side_view(c, s, V_), c->seq, c->n_seq, shape_of(c, s));
}
static void kv_write_expect(const struct op_case *c, double *const v[]) {
    const int64_t G = c->s[1], K = c->s[2], Kp = kv_pad_dim(K), layer = kv_layer_floats(G, K);
    for (int i = 0; i < c->n_seq; i++)
        for (int64_t j = 0; j < c->seq[i].past + c->seq[i].len; j++) {
            const int64_t row = key_row(&c->seq[i], &c->fill[i], j), at_key = j % KV_BLOCK;
            double *block = &V(CACHE, c->seq[i].blocks[j / KV_BLOCK], layer);
            for (int64_t g = 0; g < G; g++)
                for (int64_t d = 0; d < Kp; d++) {
                    if (d < K) block[kv_keys_at(g, K) + d * KV_BLOCK + at_key] = V(K_, row, g * K + d);
                    block[kv_values_at(g, G, K) + at_key * Kp + d] = d < K ? V(V_, row, g * K + d) : 0;
                }
        }
}
static void kv_write_cost(const struct op_case *c, double *flop, double *bytes) {
    *flop = *bytes = 0;
    for (int i = 0; i < c->n_seq; i++) *bytes += 16 * (double)(c->seq[i].len * c->s[1] * c->s[2]);
}
const struct op_functions op_kv_write = {.build = kv_write_build,
                                         .prepare = write_fill,
                                         .call = kv_write_call,
                                         .expect = kv_write_expect,
                                         .cost = kv_write_cost,
                                         .batch = {4, 2, 22, 5}};

/* ---- attention: variant 1 without stats -------------------------------------------------------------------------- */

/* Computes softmax over the keys of row r of sequence i, head h, into p. Returns the largest score and sets *sum. */
static double softmax(const struct op_case *c, double *const v[], int i, int64_t r, int64_t h, double *p, double *sum) {
    const struct attn_seq *s = &c->seq[i], *fill = c->fill ? &c->fill[i] : NULL;
    const int64_t K = c->s[2], g = h / (c->s[0] / c->s[1]), n = s->past + r + 1;
    double max = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        const double *q = &V(Q, s->row + r, h * K), *k = &V(K_, key_row(s, fill, j), g * K);
        for (int64_t d = 0; d < K; d++) p[j] += q[d] * k[d];
        max = fmax(max, p[j]);
    }
    *sum = 0;
    for (int64_t j = 0; j < n; j++) *sum += p[j] = exp(p[j] - max);
    return max;
}

static void attention_rows(const struct op_case *c, double *const v[], double *o, double *loss) {
    const int64_t H = c->s[0], K = c->s[2], rep = H / c->s[1];
    double *p = xcalloc((size_t)i64_max(2 * c->rows, 1), sizeof *p), sum;
    for (int i = 0; i < c->n_seq; i++)
        for (int64_t r = 0; r < c->seq[i].len; r++)
            for (int64_t h = 0; h < H; h++) {
                const struct attn_seq *s = &c->seq[i];
                const int64_t t = s->row + r, n = s->past + r + 1;
                const double max = softmax(c, v, i, r, h, p, &sum);
                if (o && v[STATS]) {
                    V(STATS, t, 2 * h) = max;
                    V(STATS, t, 2 * h + 1) = 1 / sum;
                }
                double *out = o ? &V(O, t, h * K) : NULL;
                for (int64_t d = 0; d < K && out; d++) out[d] = 0;
                for (int64_t j = 0; j < n; j++) {
                    const double *val = &V(V_, key_row(s, c->fill ? &c->fill[i] : NULL, j), h / rep * K);
                    double dot = 0;
                    for (int64_t d = 0; d < K; d++)
                        if (out)
                            out[d] += p[j] / sum * val[d];
                        else
                            dot += V(D_O, t, h * K + d) * val[d];
                    if (loss) *loss += p[j] / sum * dot;
                }
            }
    free(p);
}

/* A score is a sum of K products, each step of which is rounded to 2^-24 of what has been added up so far. Roundings
 * have no direction, so K of them come to about sqrt(K) times one. The keys that decide a row have scores of about 5,
 * which grow from 0 as they are added up. So such a score is off by 5 sqrt(K/6) 2^-24 in the middle; among the millions
 * of values of a case some are six times as far off: 12 sqrt(K) 2^-24. An error of a score is a relative error of its
 * weight. What follows (exp, and two sums over the keys) does not depend on K; 32 2^-24 leave room for it (heads of 3
 * were off by 24 2^-24 in all). */
static double attention_error(const struct op_case *c) { return 0x1p-24 * (32 + 12 * sqrt((double)c->s[2])); }

static void attention_build(struct op_case *c) {
    inputs(c, false);
    outputs(c, c->variant == 0);
}
static void attention_call(const struct op_case *c, struct side *s) {
    s->be->attention(s->be, side_view(c, s, O), side_floats(c, s, STATS), side_view(c, s, Q), side_view(c, s, K_),
                     side_view(c, s, V_), c->seq, c->n_seq, shape_of(c, s));
}
static void attention_expect(const struct op_case *c, double *const v[]) { attention_rows(c, v, v[O], NULL); }
static void attention_cost(const struct op_case *c, double *flop, double *bytes) {
    const double q = (double)(c->s[0] * c->s[2]), kv = (double)(c->s[1] * c->s[2]);
    *flop = 4 * keys_seen(c) * q;
    *bytes = 0;
    for (int i = 0; i < c->n_seq; i++) {
        const double len = (double)c->seq[i].len;
        /* A common past is read once in training. Out of the cache it is read once for each sequence. */
        *bytes += 4 * (2 * len * q + 2 * (len + (c->blocks ? (double)c->seq[i].past : 0)) * kv);
    }
}
const struct op_functions op_attention = {.build = attention_build,
                                          .call = attention_call,
                                          .expect = attention_expect,
                                          .error = attention_error,
                                          .cost = attention_cost,
                                          .batch = {4, 2, 22, 5}};

/* ---- attention_cached: variant 1 shares blocks ------------------------------------------------------------------- */

static void attention_cached_build(struct op_case *c) {
    inputs(c, true);
    outputs(c, false);
}
static void write_all(const struct op_case *c, struct side *s) {
    /* Where rows are cut, attention sees a row at a time. The rest of the cache is written all the same. */
    write_fill(c, s);
    kv_write_call(c, s);
}
static void attention_cached_expect(const struct op_case *c, double *const v[]) {
    kv_write_expect(c, v);
    attention_rows(c, v, v[O], NULL);
}
const struct op_functions op_attention_cached = {.build = attention_cached_build,
                                                 .prepare = write_all,
                                                 .call = attention_call,
                                                 .expect = attention_cached_expect,
                                                 .error = attention_error,
                                                 .cost = attention_cost,
                                                 .batch = {4, 2, 22, 5}};

/* ---- attention_grad ---------------------------------------------------------------------------------------------- */

static void attention_grad_build(struct op_case *c) {
    const int64_t H = c->s[0], G = c->s[1], K = c->s[2];
    if (c->special == 2) c->special = 1; /* All values must be finite. */
    inputs(c, false);
    outputs(c, true);
    operand_add(c, D_O, "d_o", IN, c->rows, H * K, 0, 1);
    operand_add(c, DQ, "dq", OUT, c->rows, H * K, 0, 1);
    operand_add(c, DK, "dk", INOUT, c->rows, G * K, 0, 1);
    operand_add(c, DV, "dv", INOUT, c->rows, G * K, 0, 1);
}
static void attention_grad_call(const struct op_case *c, struct side *s) {
    s->be->attention_grad(s->be, side_view(c, s, DQ), side_view(c, s, DK), side_view(c, s, DV), side_view(c, s, D_O),
                          side_view(c, s, O), side_floats(c, s, STATS), side_view(c, s, Q), side_view(c, s, K_),
                          side_view(c, s, V_), c->seq, c->n_seq, shape_of(c, s));
}
static double attention_grad_loss(const struct op_case *c, double *const v[]) {
    double loss = 0;
    attention_rows(c, v, NULL, &loss);
    return loss;
}
static void attention_grad_cost(const struct op_case *c, double *flop, double *bytes) {
    attention_cost(c, flop, bytes);
    *flop *= 2.5;
    *bytes *= 2.5;
}
const struct op_functions op_attention_grad = {.build = attention_grad_build,
                                               .prepare = attention_call,
                                               .call = attention_grad_call,
                                               .loss = attention_grad_loss,
                                               .cost = attention_grad_cost,
                                               .pair = {{Q, DQ, false}, {K_, DK, false}, {V_, DV, false}},
                                               .small = small,
                                               .n_small = (int)ARRAY_LEN(small),
                                               .batch = {4, 2, 22, 5}};
