/* Sums of gradients over ranks: `mpirun -n N rank_fold DEVICE [FLOATS [SECONDS]]`. With FLOATS above 0 rank 0 prints
 * how long a round and the end of a sum of so many take. Every rank compares the sum with one that is made in the order
 * of the leaves on the host, bit by bit, for several lengths, owners in any order, and calls in which some ranks have
 * none. A device that fails ends the job as it does in a trainer. SECONDS is the time-out of a peer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "dist/fold.h"
#include "ranks/ranks.h"
#include "tensor/backend.h"

enum { LEAVES = 7, RANKS_MAX = 16 };
static struct err e;
static struct comm *job;

static void must(bool x, const char *what, int line) {
    if (x) return;
    fprintf(stderr, "tests/library/rank_fold.c:%d: %s (%s)\n", line, what, e.msg);
    if (job && e.code == ST_DEVICE) job->abort(job, COMM_LOST_EXIT);
    exit(1);
}
#define MUST(x) must((x), #x, __LINE__)

static void fill(float *leaf, int64_t n, int number) {
    struct rng r = rng_make(7, (uint64_t)number);
    for (int64_t i = 0; i < n; i++) leaf[i] = (float)(rng_normal(&r) * (number % 2 ? 1e-6 : 1e3));
}

static void compare(struct comm *c, struct backend *be, int64_t n) {
    const size_t bytes = (size_t)n * sizeof(float);
    float *host = malloc(bytes), *want = calloc((size_t)n, sizeof *want), *got = malloc(bytes);
    float *leaf = be->mem_alloc(be, bytes), *sum = be->mem_alloc(be, bytes);
    struct rng order = rng_make(8, (uint64_t)n); /* the same on every rank */
    struct fold *f;
    MUST(c->size <= RANKS_MAX && fold_open(c, be, n, &f, &e) == ST_OK);
    for (int again = 0; again < 2; again++) {
        fold_begin(f);
        memset(want, 0, bytes);
        for (int first = 0, leaves; first < LEAVES; first += leaves) {
            int owner[RANKS_MAX];
            bool mine = false;
            for (int r = 0; r < c->size; r++) owner[r] = r;
            rng_shuffle(&order, owner, (size_t)c->size, sizeof *owner);
            leaves = 1 + (int)rng_below(&order, (uint64_t)c->size);
            if (leaves > LEAVES - first) leaves = LEAVES - first;
            for (int i = 0; i < leaves; i++) {
                if (owner[i] != c->rank) continue;
                mine = true;
                fill(host, n, first + i);
                be->mem_put(be, leaf, host, bytes);
                MUST(be->sync(be, &e) == ST_OK);
            }
            MUST(fold_add(f, mine ? leaf : NULL, owner, leaves, &e) == ST_OK);
        }
        for (int j = 0; j < LEAVES; j++) {
            fill(host, n, j);
            for (int64_t i = 0; i < n; i++) want[i] += host[i];
        }
        MUST(fold_end(f, sum, &e) == ST_OK);
        be->mem_get(be, got, sum, bytes);
        MUST(be->sync(be, &e) == ST_OK);
        MUST(memcmp(got, want, bytes) == 0);
    }
    fold_close(f);
    be->mem_free(be, leaf);
    be->mem_free(be, sum);
    free(host);
    free(want);
    free(got);
}

static void time_it(struct comm *c, struct backend *be, int64_t n) {
    enum { ROUNDS = 20 };
    const size_t bytes = (size_t)n * sizeof(float);
    float *leaf = be->mem_alloc(be, bytes), *host = malloc(bytes);
    struct fold *f;
    double round_s = 1e9, end_s = 1e9;
    int owner[RANKS_MAX];
    for (int r = 0; r < RANKS_MAX; r++) owner[r] = r;
    fill(host, n, c->rank);
    be->mem_put(be, leaf, host, bytes);
    MUST(leaf && c->size <= RANKS_MAX && fold_open(c, be, n, &f, &e) == ST_OK);
    fold_begin(f);
    for (int i = 0; i < ROUNDS; i++) {
        MUST(be->sync(be, &e) == ST_OK && comm_agree(c, ST_OK, &e) == ST_OK);
        const double begin = clock_now_s();
        MUST(fold_add(f, leaf, owner, c->size, &e) == ST_OK && be->sync(be, &e) == ST_OK);
        const double middle = clock_now_s();
        MUST(fold_end(f, leaf, &e) == ST_OK && be->sync(be, &e) == ST_OK);
        round_s = fmin(round_s, middle - begin);
        end_s = fmin(end_s, clock_now_s() - middle);
    }
    if (c->rank == 0)
        printf("%lld floats, %d ranks: a round %.2f ms, the end %.2f ms\n", (long long)n, c->size, round_s * 1e3,
               end_s * 1e3);
    fold_close(f);
    be->mem_free(be, leaf);
    free(host);
}

int main(int argc, char **argv) {
    struct comm *c;
    struct backend *be;
    struct pool *pool = pool_create(1);
    CLEANUP_STR struct str how = STR_INIT, mine = STR_INIT;
    char device[64];
    if (argc < 2) return 2;
    if (strcmp(argv[1], "cuda") == 0)
        snprintf(device, sizeof device, "cuda:%d", comm_launched().local_rank);
    else
        snprintf(device, sizeof device, "%s", argv[1]);
    MUST(backend_open(device, pool, &be, &e) == ST_OK);
    const struct comm_options o = {.peer_timeout_s = argc > 3 ? strtod(argv[3], NULL) : 0};
    MUST(comm_open("auto", &o, &c, &e) == ST_OK);
    job = c;
    ranks_fingerprint(be, &mine);
    MUST(ranks_compare(c, &mine, &e) == ST_OK);
    MUST(ranks_join_devices(c, be, &how, &e) == ST_OK);
    const int64_t timed = argc > 2 ? strtoll(argv[2], NULL, 10) : 0;
    if (timed > 0) time_it(c, be, timed);
    static const int64_t lengths[] = {1, 1024, 5 * 1024 + 7, 300007};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) compare(c, be, lengths[i]);
    if (c->rank == 0) printf("%d ranks, by %.40s\n", c->size, how.len ? how.p : "nothing");
    comm_close(c);
    be->close(be);
    pool_destroy(pool);
    return 0;
}
