/* Rounds: each micro-batch has one rank, all ranks find the same, and they wait little for each other. */
#include "train/round.h"

#include <math.h>

#include "rl/test_util.h"
#include "train/step.h"

enum { RANKS = 7, LEAVES = RANKS * ROUND_WIDTH };

static void each_has_one_rank(void **state) {
    (void)state;
    struct rng r = rng_make(29, 0);
    for (int round = 0; round < 2000; round++) {
        const int ranks = 1 + (int)rng_below(&r, RANKS), width = 1 + (int)rng_below(&r, ROUND_WIDTH);
        const int n = (int)rng_below(&r, (uint64_t)(ranks * width) + 1), ties = 1 + (int)rng_below(&r, 5000);
        int64_t rows[LEAVES], sum[RANKS] = {0};
        int owner[LEAVES + 1], again[LEAVES + 1], has[RANKS] = {0}, last[RANKS];
        for (int i = 0; i < n; i++) rows[i] = 1 + (int64_t)rng_below(&r, (uint64_t)ties);
        owner[n] = -2;
        round_assign(rows, n, ranks, width, owner);
        assert_int_equal(owner[n], -2);
        for (int i = 0; i <= n; i++) again[i] = 77;
        round_assign(rows, n, ranks, width, again); /* another rank, whose memory holds something else */
        assert_memory_equal(owner, again, (size_t)n * sizeof *owner);
        for (int i = 0; i < n; i++) {
            assert_in_range(owner[i], 0, ranks - 1);
            if (width == 1) assert_int_equal(owner[i], i);
            sum[owner[i]] += rows[i];
            last[owner[i]] = has[owner[i]]++ == 0 || rows[i] < rows[last[owner[i]]] ? i : last[owner[i]];
        }
        /* The smallest that a rank has came to it when no rank with room had fewer rows. */
        for (int a = 0; a < ranks; a++) {
            assert_in_range(has[a], 0, width);
            for (int b = 0; b < ranks && width > 1 && has[a] > 0; b++)
                if (has[b] < width) assert_true(sum[a] - rows[last[a]] <= sum[b]);
        }
    }
}

/* Rows of the micro-batches of a step: groups of answers with log-normal lengths behind a prompt each. */
static int leaves_of_step(uint64_t seed, int64_t *rows) {
    enum { PROBLEMS = 16, GROUP = 32, ANSWERS = PROBLEMS * GROUP, MOST = 4096, LONGEST = 4096 };
    static int32_t ids[PROBLEMS][1024];
    struct datum d[ANSWERS];
    int end[ANSWERS];
    for (int p = 0; p < PROBLEMS; p++) {
        struct rng r = rng_make(seed, (uint64_t)p);
        const int64_t prompt = 300 + (int64_t)rng_below(&r, 700);
        ids[p][0] = p;
        for (int i = 0; i < GROUP; i++) {
            const double length = 600 * exp(0.6 * rng_normal(&r));
            d[p * GROUP + i] = (struct datum){.ids = ids[p], .prompt = prompt, .n = prompt + 1};
            d[p * GROUP + i].n += (int64_t)fmin(length, LONGEST);
        }
    }
    const int n = train_leaves(d, ANSWERS, MOST, end);
    for (int k = 0, i = 0; k < n; k++)
        for (rows[k] = 0; i < end[k]; i++) {
            const bool first = rows[k] == 0 || d[i].ids != d[i - 1].ids;
            rows[k] += d[i].n - (first ? 0 : d[i].prompt);
        }
    return n;
}

/* What a step waits for: of each round the rows of the rank that has the most. */
static int64_t slowest(const int64_t *rows, int n, int ranks, int width) {
    int64_t all = 0;
    for (int i = 0; i < n; i += ranks * width) {
        int owner[LEAVES];
        int64_t sum[RANKS] = {0}, most = 0;
        const int here = (int)i64_min(ranks * width, n - i);
        round_assign(rows + i, here, ranks, width, owner);
        for (int k = 0; k < here; k++) most = i64_max(most, sum[owner[k]] += rows[i + k]);
        all += most;
    }
    return all;
}

static void ranks_wait_little(void **state) {
    (void)state;
    enum { STEPS = 20, FOUR = 4 };
    double wide = 0, narrow = 0;
    for (uint64_t seed = 0; seed < STEPS; seed++) {
        int64_t rows[512], total = 0;
        const int n = leaves_of_step(seed, rows), whole = n / (FOUR * ROUND_WIDTH) * FOUR * ROUND_WIDTH;
        for (int i = 0; i < whole; i++) total += rows[i]; /* of whole rounds; the last one has what is left */
        const double mean = (double)total / FOUR, most = (double)slowest(rows, whole, FOUR, ROUND_WIDTH);
        assert_true(most <= 1.03 * mean);
        wide += most / mean / STEPS;
        narrow += (double)slowest(rows, whole, FOUR, 1) / mean / STEPS;
    }
    assert_true(wide - 1 < (narrow - 1) / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_one_rank),
        cmocka_unit_test(ranks_wait_little),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
