/* Leaves computed twice: `mpirun -n N rank_audit MODEL [RANK LEAF once|always]`. Each rank trains with the others on
 * texts of a micro-batch each, and every second round is compared. Rank 0 prints how many leaves were. With RANK one
 * bit of that rank's leaf LEAF (counted from 0, those that it computes for comparison among them) is flipped, or of all
 * from there on; the error ends the program with status 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "bench/onpolicy.h"
#include "rank_texts.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

enum { TEXTS = 7, TEXT = 40 };

static struct err e;

static void must(bool x, const char *what, int line) {
    if (x) return;
    fprintf(stderr, "tests/library/rank_audit.c:%d: %s (%s)\n", line, what, e.msg);
    exit(1);
}
#define MUST(x) must((x), #x, __LINE__)

struct fault {
    struct backend *be;
    long leaf, at; /* the one to spoil; -1: none. The number of the next one */
    bool always;
};

static void spoil(void *ctx, float *leaf, int64_t n) {
    struct fault *f = ctx;
    const long at = f->at++;
    uint32_t bits;
    if (f->leaf < 0 || at < f->leaf || (at > f->leaf && !f->always)) return;
    f->be->mem_get(f->be, &bits, leaf + n / 2, sizeof bits);
    MUST(f->be->sync(f->be, &e) == ST_OK);
    bits ^= 1;
    f->be->mem_put(f->be, leaf + n / 2, &bits, sizeof bits);
    MUST(f->be->sync(f->be, &e) == ST_OK);
}

static enum status train(struct trainer *t, int32_t V) {
    const struct train_call call = {.loss.kind = LOSS_CROSS_ENTROPY, .step = 12};
    struct train_stats stats = {0};
    return train_accumulate(t, &call, rank_texts(3, TEXTS, TEXT, V), TEXTS, &stats, &e);
}

int main(int argc, char **argv) {
    struct comm *c;
    struct model *m;
    struct trainer *t;
    struct pool *pool = pool_create(1);
    struct fault f = {.leaf = -1};
    const struct model_options mo = {.frozen = true};
    if (argc < 2) return 2;
    MUST(backend_open("cpu", pool, &f.be, &e) == ST_OK);
    MUST(comm_open("auto", NULL, &c, &e) == ST_OK);
    MUST(model_load(argv[1], &mo, f.be, &m, &e) == ST_OK);
    MUST(random_adapter(m, 4, ADAPTER_LAYERS, 5, &e) == ST_OK);
    if (argc == 5 && c->rank == strtol(argv[2], NULL, 10)) f.leaf = strtol(argv[3], NULL, 10);
    f.always = argc == 5 && strcmp(argv[4], "always") == 0;
    MUST(trainer_open(c, m, ADAPTER_OWN, TEXT, &t, &e) == ST_OK); /* a micro-batch each */
    t->audit_every = 2;
    t->leaf_done = spoil;
    t->leaf_done_ctx = &f;
    enum status st;
    if (c->rank == 0) {
        st = train(t, model_cfg(m)->V);
        if (st == ST_OK) printf("%d ranks, %lld leaves compared\n", c->size, (long long)t->audited);
        if (st != ST_OK) fprintf(stderr, "%s\n", e.msg);
        MUST(command_give(c, RANK_QUIT, NULL, &e) == ST_OK);
    } else {
        struct rank_sampler no_engine = {.comm = c};
        st = ranks_follow(&no_engine, t, NULL, &e);
    }
    trainer_close(t);
    model_free(m);
    f.be->close(f.be);
    comm_close(c);
    pool_destroy(pool);
    return st == ST_OK ? 0 : 1;
}
