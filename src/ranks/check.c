#include "ranks/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tensor/backend.h"
#include "train/audit.h"
#include "train/step.h"

enum { TEXTS = 2 };

/* A text of `rows` rows, all of which predict. ids: room for one more. */
static struct datum text_of(int32_t *ids, const float *weights, float *logp, int64_t rows, int32_t V, struct rng *r) {
    for (int64_t i = 0; i <= rows; i++) ids[i] = (int32_t)rng_below(r, (uint64_t)V);
    return (struct datum){.ids = ids,
                          .n = rows,
                          .prompt = 1,
                          .begin = 0,
                          .end = rows,
                          .targets = ids + 1,
                          .weights = weights,
                          .scale = 1.0 / (double)(TEXTS * rows),
                          .logp = logp};
}

/* The leaf of this rank. */
static enum status compute(struct model *m, int64_t rows, uint64_t seed, uint64_t *hash, struct err *e) {
    const struct train_call call = {.loss.kind = LOSS_CROSS_ENTROPY};
    const int64_t each = i64_max(1, i64_min(rows / TEXTS, model_cfg(m)->max_positions));
    struct datum d[TEXTS];
    struct train_stats unread = {0};
    struct comm *self;
    struct trainer *t = NULL;
    struct rng r = rng_make(seed, 0);
    CLEANUP_FREE int32_t *ids = xcalloc((size_t)(TEXTS * (each + 1)), sizeof *ids);
    CLEANUP_FREE float *weights = xcalloc((size_t)each, sizeof *weights);
    CLEANUP_FREE float *logp = xcalloc((size_t)(TEXTS * each), sizeof *logp);
    for (int64_t i = 0; i < each; i++) weights[i] = (float)rng_normal(&r);
    for (int i = 0; i < TEXTS; i++)
        d[i] = text_of(ids + i * (each + 1), weights, logp + i * each, each, model_cfg(m)->V, &r);
    TRY(comm_open("self", NULL, &self, e));
    enum status st = trainer_open(self, m, ADAPTER_OWN, TEXTS * each, &t, e);
    if (st == ST_OK) st = train_accumulate(t, &call, d, TEXTS, &unread, e);
    if (st == ST_OK)
        st = audit_hash(model_backend(m), fold_sum(t->sum), model_train_set(m, ADAPTER_OWN).n_g, logp, TEXTS * each,
                        hash, e);
    trainer_close(t);
    comm_close(self);
    return st;
}

enum status ranks_check(struct comm *c, struct model *m, int64_t rows, uint64_t seed, struct rank_leaf *all,
                        struct err *e) {
    struct rank_leaf mine = {.host = ""};
    const double begin = clock_now_s();
    enum status st = model_train_prepare(m, TRAIN_LORA, e);
    if (st == ST_OK) st = compute(m, rows, seed, &mine.hash, e);
    TRY(comm_agree(c, st, e));
    gethostname(mine.host, sizeof mine.host - 1);
    snprintf(mine.device, sizeof mine.device, "%s", model_backend(m)->kind);
    mine.seconds = clock_now_s() - begin;
    return c->allgather(c, &mine, sizeof mine, all, e);
}

int ranks_odd_one(const struct rank_leaf *all, int size, bool *alike) {
    CLEANUP_FREE uint64_t *hash = xcalloc((size_t)size, sizeof *hash);
    uint64_t right = 0;
    for (int r = 0; r < size; r++) hash[r] = all[r].hash;
    *alike = audit_most(hash, size, &right);
    for (int r = 0; r < size && *alike; r++)
        if (hash[r] != right) {
            *alike = false;
            return r;
        }
    return -1;
}
