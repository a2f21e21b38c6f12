/* Jobs in their file: order, turns, keys, what a process that was killed leaves. */
#include "verdicts/jobs.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call)                                     \
    do {                                             \
        struct err e_ = {0};                         \
        struct err *e = &e_;                         \
        if ((call) != ST_OK) fail_msg("%s", e_.msg); \
    } while (0)

static char folder[] = "/tmp/kernelrl-jobs-XXXXXX";
static char path[100];

static struct jobs *open_jobs(void) {
    struct jobs *j = NULL;
    OK(jobs_open(path, &j, e));
    return j;
}

static void remove_file(void) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        char name[120];
        snprintf(name, sizeof name, "%s%s", path, ends[i]);
        unlink(name);
    }
}

static void add(struct jobs *j, uint64_t owner, const char *request, int priority, char name[JOBS_NAME_BYTES]) {
    const struct job_new one = {.request = request, .priority = priority};
    OK(jobs_add(j, owner, NULL, NULL, &one, 1, false, name, e));
}

/* The request of the next job; "" where there is none. */
static int64_t take(struct jobs *j, char *text, size_t size) {
    struct job_row r;
    bool found = false;
    OK(jobs_take(j, &r, &found, e));
    snprintf(text, size, "%s", found ? r.request : "");
    const int64_t id = r.id;
    job_row_free(&r);
    return id;
}

static void test_turns(void **state) {
    (void)state;
    static const char *const expected[] = {"a-high", "b1", "a1", "b2", "a2", "a3", ""};
    char name[JOBS_NAME_BYTES], text[20];
    struct jobs *j = open_jobs();
    add(j, 1, "a1", 0, name);
    add(j, 1, "a2", 0, name);
    add(j, 1, "a-high", 5, name);
    add(j, 1, "a3", 0, name);
    add(j, 2, "b1", 0, name);
    add(j, 2, "b2", 0, name);
    assert_int_equal(jobs_owners(j), 2);
    assert_int_equal(jobs_open_ones(j).by[JOB_QUEUED], 6);
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        take(j, text, sizeof text);
        assert_string_equal(text, expected[i]);
    }
    assert_int_equal(jobs_owners(j), 0);
    jobs_close(j);
    remove_file();
}

static void test_keys(void **state) {
    (void)state;
    const struct digest one = digest_of("one", 3), two = digest_of("two", 3);
    const struct job_new job = {.request = "{}", .metadata = "[1]"};
    char made[JOBS_NAME_BYTES], found[JOBS_NAME_BYTES] = "";
    enum jobs_replay replay;
    struct jobs *j = open_jobs();
    OK(jobs_look_up(j, 1, "key", &one, &replay, found, e));
    assert_int_equal(replay, JOBS_NEW);
    OK(jobs_add(j, 1, "key", &one, &job, 1, false, made, e));
    OK(jobs_look_up(j, 1, "key", &one, &replay, found, e));
    assert_int_equal(replay, JOBS_SAME);
    assert_string_equal(found, made);
    OK(jobs_look_up(j, 1, "key", &two, &replay, found, e));
    assert_int_equal(replay, JOBS_OTHER);
    OK(jobs_look_up(j, 2, "key", &one, &replay, found, e)); /* somebody else's key */
    assert_int_equal(replay, JOBS_NEW);
    OK(jobs_look_up(j, 1, "key", NULL, &replay, found, e)); /* whatever it was */
    assert_int_equal(replay, JOBS_SAME);
    /* A job's own key is for its request, and names the newest job that had it. */
    const struct job_new named[] = {{.request = "one", .key = "task"}, {.request = "two", .key = "task"}};
    struct job_row r;
    bool there;
    OK(jobs_add(j, 1, NULL, NULL, named, 2, true, made, e));
    OK(jobs_look_up(j, 1, "task", &one, &replay, found, e));
    assert_int_equal(replay, JOBS_OTHER);
    OK(jobs_look_up(j, 1, "task", &two, &replay, found, e));
    assert_int_equal(replay, JOBS_SAME);
    OK(jobs_find(j, found, true, &r, &there, e));
    assert_true(there && r.place == 1);
    assert_string_equal(r.request, "two");
    job_row_free(&r);
    assert_false(jobs_name_is_old(made));
    assert_true(jobs_name_is_old("vj-0000000100000000000000ff"));
    jobs_close(j);
    remove_file();
}

/* A process ends while a job is judged: the job is there again, and each time counts, until it has taken too many. */
static void test_taken_up(void **state) {
    (void)state;
    char name[JOBS_NAME_BYTES], text[20];
    struct job_row r;
    bool found;
    struct jobs *j = open_jobs();
    add(j, 1, "deadly", 0, name);
    for (int life = 1; life <= JOBS_LOSSES; life++) {
        const int64_t id = take(j, text, sizeof text);
        assert_string_equal(text, "deadly");
        OK(jobs_begin(j, id, e));
        jobs_close(j); /* with nothing said, as if the process had been killed */
        j = open_jobs();
        OK(jobs_find(j, name, true, &r, &found, e));
        assert_true(found);
        assert_int_equal(r.attempts, life);
        assert_int_equal(r.status, life < JOBS_LOSSES ? JOB_QUEUED : JOB_FAILED);
        assert_int_equal(r.result != NULL, life == JOBS_LOSSES);
        job_row_free(&r);
    }
    take(j, text, sizeof text);
    assert_string_equal(text, "");
    jobs_close(j);
    remove_file();
}

static void test_batch(void **state) {
    (void)state;
    enum { N = 5 };
    struct job_new job[N];
    char name[JOBS_NAME_BYTES], text[20];
    struct batch_row b;
    struct job_row rows[N];
    int64_t open[N], id = 0, position;
    bool found;
    size_t n;
    struct jobs *j = open_jobs(), *other = NULL;
    struct err why = {0};
    assert_int_equal(jobs_open(path, &other, &why), ST_IO); /* one process at a time */
    assert_non_null(strstr(why.msg, "another server"));
    for (int i = 0; i < N; i++) job[i] = (struct job_new){.request = "{}"};
    OK(jobs_add(j, 1, NULL, NULL, job, N, true, name, e));
    id = take(j, text, sizeof text);
    OK(jobs_begin(j, id, e));
    OK(jobs_end(j, id, JOB_SUCCEEDED, ",\"verdict\":1", "s", false, e));
    OK(jobs_end(j, id, JOB_CANCELLED, "", NULL, false, e)); /* over is over */
    OK(jobs_batch(j, name, &b, &found, e));
    assert_true(found && b.counts.total == N && b.counts.by[JOB_SUCCEEDED] == 1 && b.counts.by[JOB_QUEUED] == N - 1);
    OK(jobs_open_in(j, b.id, open, N, &n, e));
    assert_int_equal(n, N - 1);
    OK(jobs_position(j, open[2], &position, e));
    assert_int_equal(position, 3);
    OK(jobs_end(j, open[2], JOB_CANCELLED, "", NULL, false, e));
    OK(jobs_results(j, b.id, 0, rows, N, &n, e));
    assert_int_equal(n, 2);
    assert_true(rows[0].id == id && rows[1].id == open[2] && rows[1].ended > rows[0].ended && rows[1].place == 3);
    for (size_t i = 0; i < n; i++) job_row_free(&rows[i]);
    OK(jobs_results(j, b.id, rows[0].ended, rows, N, &n, e));
    assert_int_equal(n, 1);
    job_row_free(&rows[0]);
    assert_int_equal(jobs_open_ones(j).total, N - 2);
    id = take(j, text, sizeof text);
    OK(jobs_put_back(j, id, e));
    assert_int_equal(jobs_open_ones(j).by[JOB_QUEUED], N - 2);
    jobs_close(j);
    remove_file();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_taken_up),
        cmocka_unit_test(test_batch),
    };
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/jobs.sqlite", folder);
    const int failed = cmocka_run_group_tests_name("jobs", tests, NULL, NULL);
    remove_file();
    rmdir(folder);
    return failed;
}
