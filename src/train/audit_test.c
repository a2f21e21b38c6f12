/* Who computes a leaf again, what tells two leaves apart, and who is wrong. */
#include "rl/test_util.h"
#include "train/audit.h"

static void each_rank_checks_each_other(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++)
        for (int owner = 0; owner < size; owner++) {
            int seen[5] = {0};
            for (int64_t number = 0; number < size - 1; number++) seen[audit_other(owner, size, number)]++;
            for (int r = 0; r < size; r++) assert_int_equal(seen[r], r != owner);
        }
    /* In one audit the leaves of all ranks go to different ones. */
    for (int64_t number = 0; number < 9; number++) {
        int load[4] = {0};
        for (int owner = 0; owner < 4; owner++) load[audit_other(owner, 4, number)]++;
        for (int r = 0; r < 4; r++) assert_int_equal(load[r], 1);
    }
}

static void one_bit_gives_another_number(void **state) {
    (void)state;
    enum { N = (1 << 22) + 9, M = 3 }; /* more than one piece */
    struct pool *pool = pool_create(1);
    struct backend *be;
    CHECK(backend_open("cpu", pool, &be, &err));
    float *g = xcalloc(N, sizeof *g), host[M] = {1, 2, 3};
    uint64_t first, again, other;
    CHECK(audit_hash(be, g, N, host, M, &first, &err));
    CHECK(audit_hash(be, g, N, host, M, &again, &err));
    assert_true(first == again);
    const int at[] = {0, 1 << 22, N - 1};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        g[at[i]] = -0.0f; /* the sign bit alone */
        CHECK(audit_hash(be, g, N, host, M, &other, &err));
        assert_true(first != other);
        g[at[i]] = 0;
    }
    host[1] = 2.0000002f;
    CHECK(audit_hash(be, g, N, host, M, &other, &err));
    assert_true(first != other);
    CHECK(audit_hash(be, g, 0, host, 0, &other, &err));
    free(g);
    be->close(be);
    pool_destroy(pool);
}

static int wrong(uint64_t first_owner, uint64_t first_other, const uint64_t *again, int size) {
    const struct audit_dispute d = {1, 0, first_owner, first_other, again};
    return audit_wrong(&d, size);
}

static void who_is_wrong(void **state) {
    (void)state;
    /* Two ranks: whoever gives another number than when asked again. */
    assert_int_equal(wrong(9, 5, (uint64_t[]){5, 5}, 2), 1);
    assert_int_equal(wrong(5, 9, (uint64_t[]){5, 5}, 2), 0);
    assert_int_equal(wrong(9, 5, (uint64_t[]){5, 9}, 2), -1); /* both insist */
    /* Three: the two that agree are right. */
    assert_int_equal(wrong(9, 5, (uint64_t[]){5, 9, 5}, 3), 1);
    assert_int_equal(wrong(5, 9, (uint64_t[]){9, 5, 5}, 3), 0);
    assert_int_equal(wrong(9, 5, (uint64_t[]){7, 8, 9}, 3), -1);
    assert_int_equal(wrong(9, 5, (uint64_t[]){5, 5, 9, 9}, 4), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_rank_checks_each_other),
                                       cmocka_unit_test(one_bit_gives_another_number), cmocka_unit_test(who_is_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
