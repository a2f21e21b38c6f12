/* Plans of the attention ops: their tasks, how these are cut over threads by cost, scratch. attention_body.h has the
 * arithmetic. A plan changes which thread computes a row, never the row's bits. */
#include "cpu/attention.h"

#include <stdlib.h>

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t attn_scratch_floats(int64_t keys, int64_t K) {
    const int64_t cap = round_up(keys, KV_BLOCK), Kp = kv_pad_dim(K);
    return cap * (K + Kp + ATTN_TILE) + ATTN_TILE * (K + Kp) + 5 * 16;
}

int64_t attn_grad_scratch_floats(int64_t keys, int64_t K) {
    const int64_t cap = round_up(keys, KV_BLOCK), Kp = kv_pad_dim(K);
    return cap * (2 * K + 3 * Kp + 2 * ATTN_GRAD_TILE) + 3 * ATTN_GRAD_TILE * Kp + 10 * 16;
}

static struct attn_task *push(struct attn_plan *p) {
    if (p->n_tasks == p->cap_tasks) {
        p->cap_tasks = i64_max(64, 2 * p->cap_tasks);
        p->task = xrealloc(p->task, (size_t)p->cap_tasks * sizeof *p->task);
    }
    return &p->task[p->n_tasks++];
}

/* Cuts the task list into `bins` contiguous parts of about equal cost. */
static void cut(struct attn_plan *p, int bins) {
    if (bins > p->cap_bins) {
        p->cut = xrealloc(p->cut, (size_t)(bins + 1) * sizeof *p->cut);
        p->cap_bins = bins;
    }
    int64_t total = 0, seen = 0, i = 0;
    for (int64_t t = 0; t < p->n_tasks; t++) total += p->task[t].cost;
    for (int b = 0; b < bins; b++) {
        p->cut[b] = i;
        const int64_t goal = (int64_t)((double)total * (b + 1) / bins);
        while (i < p->n_tasks && seen + p->task[i].cost / 2 <= goal) seen += p->task[i++].cost;
    }
    p->cut[bins] = p->n_tasks;
}

static int64_t longest(const struct attn_seq *seq, int n_seq) {
    int64_t n = 0;
    for (int i = 0; i < n_seq; i++) n = i64_max(n, seq[i].past + seq[i].len);
    return n;
}

void attn_plan_forward(struct attn_plan *p, const struct attn_seq *seq, int n_seq, struct attn_shape s, int threads) {
    p->n_tasks = 0;
    p->max_keys = longest(seq, n_seq);
    int64_t live = 0;
    for (int i = 0; i < n_seq; i++) live += seq[i].len > 0;
    /* A sequence is one task when there are enough sequences: a task gathers its keys, so fewer tasks copy less. */
    int64_t parts = live * s.G >= 4 * threads || live == 0 ? 1 : (4 * threads + live * s.G - 1) / (live * s.G);
    if (threads == 1) parts = 1;
    for (int i = 0; i < n_seq; i++) {
        const int64_t step = i64_max(16, round_up((seq[i].len + parts - 1) / parts, 4));
        for (int32_t g = 0; g < s.G; g++)
            for (int64_t r = 0; r < seq[i].len; r += step) {
                const int64_t r1 = i64_min(seq[i].len, r + step);
                *push(p) = (struct attn_task){i, g, r, r1, (r1 - r) * (2 * seq[i].past + r + r1) / 2 + r1};
            }
    }
    cut(p, threads);
}

void attn_plan_grad(struct attn_plan *p, const struct attn_seq *seq, int n_seq, struct attn_shape s, int threads) {
    p->n_tasks = 0;
    p->max_keys = longest(seq, n_seq);
    if (n_seq > p->cap_seq) {
        p->next = xrealloc(p->next, (size_t)n_seq * sizeof *p->next);
        p->last = xrealloc(p->last, (size_t)n_seq * sizeof *p->last);
        p->cost = xrealloc(p->cost, (size_t)n_seq * sizeof *p->cost);
        p->cap_seq = n_seq;
    }
    int32_t *last = p->last;
    int64_t *cost = p->cost;
    for (int32_t i = 0; i < n_seq; i++) {
        p->next[i] = -1;
        cost[i] = 0;
        int32_t head = i;
        if (seq[i].past > 0)
            for (int32_t j = 0; j < i; j++)
                if (seq[j].past == 0 && seq[j].row == seq[i].past_row) head = j;
        last[i] = i;
        if (head != i) {
            p->next[last[head]] = i;
            last[head] = i;
            last[i] = -1; /* It heads no family. */
        }
        cost[head] += seq[i].len * (2 * seq[i].past + seq[i].len) / 2 + seq[i].past + seq[i].len;
    }
    for (int32_t i = 0; i < n_seq; i++)
        if (last[i] >= 0)
            for (int32_t g = 0; g < s.G; g++) *push(p) = (struct attn_task){i, g, 0, seq[i].len, cost[i]};
    cut(p, threads);
}

void attn_plan_free(struct attn_plan *p) {
    free(p->task);
    free(p->cut);
    free(p->next);
    free(p->last);
    free(p->cost);
}
