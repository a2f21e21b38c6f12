#include "rl/learn/expert_shift.h"

#include <math.h>
#include <string.h>

/* The rows of samples, prompts in front of each, as far as they fit; the first one does. */
static void lay_out(struct expert_shift *x, struct arena *memory, int adapter, struct sample_group *const *groups,
                    int n, int64_t rows) {
    int samples = 0;
    int64_t longest = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i]->n; j++, samples++)
            longest = i64_max(longest, (int64_t)groups[i]->prompt.len + groups[i]->ep[j].sample.n);
    int32_t *ids = arena_array(memory, int32_t, i64_max(rows, longest));
    struct segment *seg = arena_array(memory, struct segment, samples);
    int64_t T = 0;
    int count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < groups[i]->n; j++) {
            const struct sample_group *g = groups[i];
            const int64_t prompt = (int64_t)g->prompt.len, own = g->ep[j].sample.n;
            if (own < 1 || (T > 0 && T + prompt + own > rows)) continue;
            memcpy(ids + T, g->prompt.p, (size_t)prompt * sizeof *ids);
            memcpy(ids + T + prompt, g->ep[j].sample.ids, (size_t)own * sizeof *ids);
            seg[count++] = (struct segment){T, prompt + own, -1, adapter};
            T += prompt + own;
        }
    x->batch = (struct train_batch){.ids = ids, .T = T, .seg = seg, .n_seg = count, .forward_only = true};
}

static enum status look(struct expert_shift *x, struct model *m, int32_t *seen, struct err *e) {
    model_experts(m, seen, false);
    const enum status st = model_forward(m, &x->batch, NULL, NULL, NULL, e);
    model_experts(m, NULL, false);
    return st;
}

enum status expert_shift_begin(struct expert_shift *x, struct arena *memory, struct model *m, int adapter,
                               struct sample_group *const *groups, int n, int64_t rows, struct err *e) {
    const struct model_config *c = model_cfg(m);
    *x = (struct expert_shift){.before = NULL};
    if (c->E == 0) return ST_OK;
    lay_out(x, memory, adapter, groups, n, i64_min(rows, EXPERT_SHIFT_ROWS));
    if (x->batch.T == 0) return ST_OK;
    x->before = arena_array(memory, int32_t, c->L * x->batch.T * c->top_k);
    x->after = arena_array(memory, int32_t, c->L * x->batch.T * c->top_k);
    return look(x, m, x->before, e);
}

enum status expert_shift_end(struct expert_shift *x, struct model *m, double *share, struct err *e) {
    const struct model_config *c = model_cfg(m);
    const int64_t T = x->batch.T, k = c->top_k;
    int64_t pairs = 0, other = 0;
    *share = (double)NAN;
    if (T == 0) return ST_OK;
    TRY(look(x, m, x->after, e));
    for (int64_t l = 0; l < c->L; l++)
        for (int64_t t = 0; t < T && c->sparse[l]; t++, pairs++)
            other += memcmp(x->before + (l * T + t) * k, x->after + (l * T + t) * k, (size_t)k * sizeof(int32_t)) != 0;
    *share = (double)other / (double)pairs;
    return ST_OK;
}
