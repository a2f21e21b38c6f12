/* A run of one rank, and sums of gradients: their order, whatever their length. */
#include "dist/fold.h"
#include "rl/test_util.h"

static void one_rank(void **state) {
    (void)state;
    struct comm *c;
    CHECK_FAILS(comm_open("mpi4", NULL, &c, &err), ST_UNSUPPORTED, "ranks \"mpi4\": expected auto, self or mpi");
    CHECK(comm_open("auto", NULL, &c, &err));
    assert_true(c->rank == 0 && c->size == 1 && c->local_rank == 0);
    int64_t v[2] = {-3, 7};
    char text[] = "abc", all[4] = {0};
    CHECK(c->max_i64(c, v, 2, &err));
    assert_true(v[0] == -3 && v[1] == 7);
    CHECK(c->bcast(c, 0, text, sizeof text, &err));
    assert_string_equal(text, "abc");
    CHECK(c->allgather(c, text, sizeof text, all, &err));
    assert_string_equal(all, "abc");
    bool there = true;
    int from;
    size_t n;
    CHECK(c->probe(c, &there, &from, &n, &err));
    assert_false(there);
    const struct byte_span part = {0, sizeof text};
    CHECK(c->exchange(c, text, &part, all, &part, &err));
    assert_string_equal(all, "abc");
    CHECK_FAILS(c->bcast(c, 1, text, 1, &err), ST_INVALID, "no rank 1");
    CHECK_FAILS(c->send(c, 1, text, 1, &err), ST_INVALID, "no other rank 1");
    CHECK_FAILS(c->recv(c, 0, text, 1, &err), ST_INVALID, "no other rank 0");
    comm_close(c);
    comm_close(NULL);
}

/* Rank 1 of two has failed. */
static enum status another_failed(struct comm *c, int64_t *v, int n, struct err *e) {
    (void)c, (void)n, (void)e;
    if (*v < 1) *v = 1;
    return ST_OK;
}
static enum status its_message(struct comm *c, int root, void *p, size_t n, struct err *e) {
    static const int64_t status = ST_MEMORY;
    if (root == c->rank) return ST_OK;
    assert_true(root == 1 && n > sizeof e->msg);
    memcpy(p, &status, sizeof status);
    memcpy((char *)p + sizeof status, "no room", 8);
    memcpy((char *)p + sizeof status + sizeof e->msg, "far", 4);
    return ST_OK;
}
static enum status is_lost(struct comm *c, int64_t *v, int n, struct err *e) {
    (void)c, (void)v, (void)n;
    return FAIL(e, ST_LOST, "the way is lost");
}

static void all_ranks_fail_together(void **state) {
    (void)state;
    struct comm c = *test_comm();
    assert_int_equal(comm_agree(&c, ST_OK, &err), ST_OK);
    err = (struct err){.msg = "mine"};
    assert_int_equal(comm_agree(&c, ST_PARSE, &err), ST_PARSE);
    assert_string_equal(err.msg, "mine");
    c.size = 2;
    c.max_i64 = another_failed;
    c.bcast = its_message;
    CHECK_FAILS(comm_agree(&c, ST_OK, &err), ST_MEMORY, "rank 1 on far: no room");
    err = (struct err){.msg = "mine"};
    assert_int_equal(comm_agree(&c, ST_PARSE, &err), ST_PARSE);
    assert_string_equal(err.msg, "mine");
    c.max_i64 = is_lost;
    CHECK_FAILS(comm_agree(&c, ST_OK, &err), ST_LOST, "the way is lost");
}

static void sums_are_made_in_order(void **state) {
    (void)state;
    const int64_t lengths[] = {1, 16, 1023, 1024, 1025, 5 * 1024 + 7};
    struct backend *be = test_backend();
    for (size_t k = 0; k < ARRAY_LEN(lengths); k++) {
        const int64_t n = lengths[k];
        float *leaf = be->mem_alloc(be, (size_t)n * sizeof *leaf), *sum = be->mem_alloc(be, (size_t)n * sizeof *sum);
        float *want = xcalloc((size_t)n, sizeof *want);
        struct fold *f;
        CHECK(fold_open(test_comm(), be, n, &f, &err));
        for (int round = 0; round < 2; round++) { /* the second one begins at zero again */
            fold_begin(f);
            memset(want, 0, (size_t)n * sizeof *want);
            for (int j = 0; j < 5; j++) {
                struct rng r = rng_make((uint64_t)j, (uint64_t)round);
                for (int64_t i = 0; i < n; i++) {
                    leaf[i] = (float)(rng_normal(&r) * (j % 2 ? 1e-6 : 1e3)); /* another order has other bits */
                    want[i] += leaf[i];
                }
                CHECK(fold_add(f, leaf, &(const int){0}, 1, &err));
            }
            CHECK(fold_end(f, sum, &err));
            assert_memory_equal(sum, want, (size_t)n * sizeof *want);
        }
        fold_close(f);
        be->mem_free(be, leaf);
        be->mem_free(be, sum);
        free(want);
    }
    struct fold *huge;
    CHECK_FAILS(fold_open(test_comm(), be, INT64_MAX / 8, &huge, &err), ST_MEMORY, "the sum of the gradients needs");
    fold_close(NULL);
}

/* Sets variables for as long as a launcher's child would have them; NULL values take them away. */
static void variables(const char *const (*v)[2], bool set) {
    for (; (*v)[0]; v++) set ? setenv((*v)[0], (*v)[1], 1) : unsetenv((*v)[0]);
}

static void srun_is_a_launcher(void **state) {
    (void)state;
    struct comm *c;
    static const char *const pmix[][2] = {{"PMIX_RANK", "9"},
                                          {"SLURM_NTASKS", "11"},
                                          {"SLURM_LOCALID", "1"},
                                          {"SLURM_NODEID", "2"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),2,1"},
                                          {NULL, NULL}};
    static const char *const pmi2[][2] = {{"PMI_RANK", "1"},
                                          {"PMI_SIZE", "2"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_NODEID", "1"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                          {NULL, NULL}};
    static const char *const plain[][2] = {{"SLURM_STEP_NUM_TASKS", "2"}, {NULL, NULL}};
    variables(pmix, true);
    struct comm_launch l = comm_launched();
    assert_true(l.rank == 9 && l.size == 11 && l.local_rank == 1 && l.local_size == 2);
    assert_string_equal(l.mpi, "openmpi");
    setenv("SLURM_NODEID", "1", 1);
    assert_int_equal(comm_launched().local_size, 4);
    setenv("SLURM_STEP_TASKS_PER_NODE", "x(", 1); /* not understood: all may be here */
    assert_int_equal(comm_launched().local_size, 11);
    variables(pmix, false);
    variables(pmi2, true);
    l = comm_launched();
    assert_true(l.rank == 1 && l.size == 2 && l.local_rank == 0 && l.local_size == 1);
    assert_string_equal(l.mpi, "mpich");
    variables(pmi2, false);
    variables(plain, true);
    CHECK_FAILS(comm_open("auto", NULL, &c, &err), ST_CONFIG,
                "srun has started 2 processes that do not know each other");
    CHECK(comm_open("self", NULL, &c, &err));
    comm_close(c);
    variables(plain, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(srun_is_a_launcher),
        cmocka_unit_test(all_ranks_fail_together),
        cmocka_unit_test(sums_are_made_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
