/* Sampling by all ranks of a run: `mpirun -n N rank_sampling MODEL`. Rank 0 compares it with engine_run(), bit by bit:
 * a batch larger than what an engine decodes at once, one of fewer samples than ranks, one that is cancelled, one that
 * cannot be run, and one more behind each of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/rng.h"
#include "policy/policy.h"
#include "ranks/sample.h"

enum { REQUESTS = 7, LONGEST = 60 };

static struct err e;
static struct policy p;
static struct rank_sampler s;
static int64_t drawn[64];
static int32_t ids[REQUESTS][LONGEST];
static struct request req[REQUESTS];

static void must(bool x, const char *what, int line) {
    if (x) return;
    fprintf(stderr, "tests/library/rank_sampling.c:%d: %s (%s)\n", line, what, e.msg);
    exit(1);
}
#define MUST(x) must((x), #x, __LINE__)

static int make_requests(int n_req, int samples) {
    static const char *const stops[] = {"for", "]"};
    static const int32_t stop_ids[] = {3, 4};
    int total = 0;
    for (int i = 0; i < n_req; i++) {
        struct rng r = rng_make(5, (uint64_t)i);
        for (int k = 0; k < LONGEST; k++) ids[i][k] = (int32_t)rng_below(&r, 500);
        req[i] = (struct request){.prompt = ids[i],
                                  .n_prompt = 20 + 5 * i,
                                  .n_samples = 1 + (i * samples) % 6,
                                  .id = (uint64_t)i,
                                  .params = {.temperature = 1,
                                             .top_p = i == 3 ? 0.9f : 1,
                                             .max_tokens = 10 + 9 * i,
                                             .stop_ids = stop_ids,
                                             .n_stop_ids = i % 2 * 2,
                                             .stop_strings = stops,
                                             .n_stop_strings = i % 3,
                                             .seed = 4}};
        total += req[i].n_samples;
    }
    return total;
}

static bool same(const struct sample *a, const struct sample *b) {
    const size_t n = (size_t)a->n * sizeof(float);
    return a->n == b->n && a->stop == b->stop && memcmp(a->ids, b->ids, n) == 0 && memcmp(a->logp, b->logp, n) == 0 &&
           memcmp(a->entropy, b->entropy, n) == 0;
}

static bool at_most(void *ctx, int64_t tokens, int done, int total) {
    (void)tokens, (void)total;
    return done < *(int *)ctx;
}

static void compare(int n_req, int samples) {
    struct sample got[64], want[64];
    const int total = make_requests(n_req, samples);
    int64_t sum = 0;
    memset(drawn, 0, sizeof drawn);
    MUST(rank_sample(&s, req, n_req, got, NULL, NULL, &e) == ST_OK);
    MUST(engine_run(p.engine, req, n_req, want, NULL, NULL, &e) == ST_OK);
    for (int i = 0; i < total; i++) MUST(same(&got[i], &want[i]));
    for (int i = 0; i < total; i++) {
        sample_free(&got[i]);
        sample_free(&want[i]);
    }
    for (int r = 0; r < s.comm->size; r++) sum += drawn[r];
    MUST(sum == total);
    if (n_req == REQUESTS)
        for (int r = 0; r < s.comm->size; r++) printf("rank %d drew %lld\n", r, (long long)drawn[r]);
}

static void lead(void) {
    compare(REQUESTS, 5);
    compare(1, 0);
    for (int limit = 0; limit < 6; limit++) {
        struct sample got[64];
        const int total = make_requests(REQUESTS, 5);
        MUST(rank_sample(&s, req, REQUESTS, got, at_most, &limit, &e) == ST_OK);
        int cancelled = 0;
        for (int i = 0; i < total; i++) {
            cancelled += got[i].stop == STOP_CANCELLED;
            sample_free(&got[i]);
        }
        MUST(cancelled > 0);
        compare(3, 4);
    }
    for (int bad = 0; bad < REQUESTS; bad += 3) { /* whoever takes it */
        struct sample got[64];
        make_requests(REQUESTS, 5);
        req[bad].params.top_p = -1;
        MUST(rank_sample(&s, req, REQUESTS, got, NULL, NULL, &e) == ST_INVALID);
        MUST(strstr(e.msg, "top_p is -1") != NULL);
        compare(3, 4);
    }
    make_requests(1, 1);
    req[0].adapter = 1;
    struct sample one;
    MUST(rank_sample(&s, req, 1, &one, NULL, NULL, &e) == ST_UNSUPPORTED);
    MUST(command_give(s.comm, RANK_QUIT, NULL, &e) == ST_OK);
}

static void follow(void) {
    CLEANUP_STR struct str payload = STR_INIT;
    enum rank_command what;
    for (;;) {
        MUST(command_await(s.comm, &what, &payload, &e) == ST_OK);
        if (what == RANK_QUIT) return;
        MUST(what == RANK_SAMPLE);
        MUST(rank_sample_follow(&s, &payload, &e) == ST_OK);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    struct pool *pool = pool_create(1);
    const struct policy_options o = {
        .model = {.key = "MODEL", .name = argv[1]}, .device = "cpu", .pool = pool, .engine = {.max_batch = 8}};
    MUST(comm_open("auto", NULL, &s.comm, &e) == ST_OK);
    MUST(policy_open(&o, NULL, &p, &e) == ST_OK);
    s = (struct rank_sampler){.comm = s.comm, .engine = p.engine, .max_batch = 8, .drawn = drawn};
    if (s.comm->rank == 0)
        lead();
    else
        follow();
    policy_close(&p);
    pool_destroy(pool);
    comm_close(s.comm);
    return 0;
}
