/* A rank whose device fails: `mpirun -n N rank_device MODEL lora|full RANK`. All ranks make a step, again and again
 * from the same weights, and the device of RANK fails at its first sync, then at its second, and so on: in a
 * leaf, on the way of the sums, in the optimizer, in the gather of weights. Each time all ranks end the steps, rank 0
 * hears which rank it was, and, with LoRA, its weights are still those before the step. Rank 0 prints
 * how many places there were. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/pool.h"
#include "bench/onpolicy.h"
#include "rank_texts.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

enum { TEXTS = 2, TEXT = 24, STEPS = 1 };

static struct err e;
static int who;

static void must(bool x, const char *what, int line) {
    if (x) return;
    fprintf(stderr, "tests/library/rank_device.c:%d: rank %d: %s (%s)\n", line, who, what, e.msg);
    _Exit(1);
}
#define MUST(x) must((x), #x, __LINE__)

/* The device: after `left` more syncs it works no more. */
static enum status (*healthy)(struct backend *be, struct err *e);
static long left;
static enum status failing_sync(struct backend *be, struct err *why) {
    if (left > 0 && --left > 0) return healthy(be, why);
    if (left < 0) return healthy(be, why);
    return FAIL(why, ST_DEVICE, "the device has failed");
}

static enum status step(struct trainer *t, int32_t V, int number) {
    const struct train_call call = {.loss.kind = LOSS_CROSS_ENTROPY, .step = number};
    const struct adamw_config adam = {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    const struct datum *d = rank_texts((uint64_t)number, TEXTS, TEXT, V);
    struct train_stats stats = {0};
    double norm;
    TRY(train_accumulate(t, &call, d, TEXTS, &stats, &e));
    return train_optimizer_step(t, &adam, 1, number, &norm, &e);
}

static uint64_t hash_of(struct model *m) {
    const struct train_set set = model_train_set(m, ADAPTER_OWN);
    uint64_t hash = 0;
    for (int i = 0; i < set.n; i++) {
        CLEANUP_FREE float *w = xmalloc((size_t)set.param[i].n * sizeof *w);
        model_param_get(m, &set.param[i], w);
        hash = hash_bytes(w, (size_t)set.param[i].n * sizeof *w, hash);
    }
    return hash;
}

/* Steps of all ranks from the same weights; at: the sync at which this rank's device fails, 0: none. hash: rank 0's
 * weights after so many whole steps, or, where a step failed, behind it. Returns whole steps. */
static int train(struct comm *c, struct backend *be, const char *model, bool lora, long at, uint64_t hash[STEPS + 1]) {
    const struct model_options mo = {.frozen = lora, .dtype = lora ? "f32" : "bf16"};
    struct model *m;
    struct trainer *t;
    struct rank_sampler no_engine = {.comm = c};
    int steps = 0;
    enum status st = ST_OK;
    MUST(model_load(model, &mo, be, &m, &e) == ST_OK);
    if (lora) MUST(random_adapter(m, 2, ADAPTER_LAYERS, 5, &e) == ST_OK);
    if (!lora) MUST(trainer_prepare(c, m, false, &e) == ST_OK);
    MUST(trainer_open(c, m, ADAPTER_OWN, TEXT, &t, &e) == ST_OK); /* a micro-batch each */
    if (c->rank == 0) hash[0] = hash_of(m);
    left = at > 0 ? at : -1;
    for (; c->rank == 0 && steps < STEPS && st == ST_OK; steps += st == ST_OK) {
        st = step(t, model_cfg(m)->V, steps);
        hash[steps + 1] = hash_of(m);
    }
    if (c->rank == 0)
        MUST(command_give(c, RANK_QUIT, NULL, &(struct err){0}) == ST_OK);
    else
        MUST(ranks_follow(&no_engine, t, NULL, &e) == ST_OK);
    trainer_close(t);
    model_free(m);
    return steps;
}

int main(int argc, char **argv) {
    struct comm *c;
    struct backend *be;
    struct pool *pool = pool_create(1);
    uint64_t whole[STEPS + 1], hash[STEPS + 1];
    char name[32];
    if (argc != 4) return 2;
    MUST(backend_open("cpu", pool, &be, &e) == ST_OK);
    healthy = be->sync;
    be->sync = failing_sync;
    MUST(comm_open("auto", NULL, &c, &e) == ST_OK);
    who = c->rank;
    const int bad = (int)strtol(argv[3], NULL, 10);
    const bool lora = strcmp(argv[2], "lora") == 0;
    left = -1;
    const int undisturbed = train(c, be, argv[1], lora, 0, whole);
    MUST(c->rank != 0 || undisturbed == STEPS);
    snprintf(name, sizeof name, "rank %d on ", bad);
    for (long at = 1;; at++) {
        const int steps = train(c, be, argv[1], lora, c->rank == bad ? at : 0, hash);
        int64_t failed = c->rank == bad && left == 0; /* false: there are not so many syncs */
        MUST(c->max_i64(c, &failed, 1, &e) == ST_OK);
        if (c->rank == 0) {
            MUST(memcmp(hash, whole, (size_t)(steps + 1) * sizeof *hash) == 0);
            if (steps < STEPS && bad > 0) MUST(strncmp(e.msg, name, strlen(name)) == 0);
            if (steps < STEPS && lora) MUST(hash[steps + 1] == whole[steps]); /* what may be saved */
            if (!failed) printf("%d ranks, %ld places\n", c->size, at - 1);
        }
        left = -1;
        if (!failed) break;
    }
    be->close(be);
    comm_close(c);
    pool_destroy(pool);
    return 0;
}
