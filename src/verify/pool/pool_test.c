/* The pool with workers that judge nothing (test_stand_in.h): each answer gets its verdict once, whatever dies, stands
 * still, lies, or is of another version. This program is its own worker. The keys verify_hosts,
 * verify_class, verify_lease, verify_deadline, verify_audit and verify_cache set what is tried here. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "verify/pool/pool.h"
#include "verify/pool/test_stand_in.h"

static struct err err;
static char tmp_dir[64], self[4096];
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)
#define CHECK_FAILS(x, status, text)                                                       \
    do {                                                                                   \
        err = (struct err){0};                                                             \
        assert_int_equal((x), (status));                                                   \
        if (!strstr(err.msg, (text))) fail_msg("expected \"%s\" in: %s", (text), err.msg); \
    } while (0)

static const struct problem problems[] = {{.key = "a", .name = "a", .code = "class Model: a"},
                                          {.key = "b", .name = "b", .code = "class Model: b"},
                                          {.key = "c", .name = "c", .code = "class Model: c"}};

static int make_tmp_dir(void **state) {
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/kernelrl_pool_XXXXXX");
    return mkdtemp(tmp_dir) ? 0 : 1;
}
static int remove_tmp_dir(void **state) {
    (void)state;
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

/* ---- a pool and its answers ---------------------------------------------------------------------------------------*/

static struct pool_options options(const char *hosts) {
    return (struct pool_options){
        .hosts = hosts, .program = self, .lease_s = 20, .beat_s = 0.1, .deadline_s = 60, .hedge_s = 60};
}

static const struct verify_options judged_by = {.trials = 5, .measure = true};

static struct verify_pool *open_pool(const struct pool_options *o) {
    struct verify_pool *p;
    CHECK(verify_pool_open(o, &judged_by, NULL, &p, &err));
    return p;
}

struct answers {
    struct verify_item *item;
    char (*source)[400];
    int n;
};

/* Answers to three problems by turns; extra: lines of directives for each, or NULL. */
static struct answers make_answers(int n, const char *extra) {
    struct answers a = {xcalloc((size_t)n, sizeof *a.item), xcalloc((size_t)n, sizeof *a.source), n};
    for (int i = 0; i < n; i++) {
        snprintf(a.source[i], sizeof a.source[i], "answer %d\n%s", i, extra ? extra : "");
        a.item[i] = (struct verify_item){.problem = &problems[i % 3], .source = a.source[i]};
    }
    return a;
}

static void free_answers(struct answers *a) {
    free(a->item);
    free(a->source);
}

/* What a worker has to say about an answer. */
static struct verdict expected(const struct verify_item *item) {
    struct verify_item copy = *item;
    stand_in_verdict(&copy, &copy.verdict);
    return copy.verdict;
}

static void assert_verdict(const struct verify_item *item) {
    const struct verdict want = expected(item);
    if (item->verdict.outcome != want.outcome)
        fail_msg("%s: expected %s, got %s: %s", item->source, outcome_name(want.outcome),
                 outcome_name(item->verdict.outcome), item->verdict.message);
    assert_true(item->verdict.speedup == want.speedup);
}

static void judge(struct verify_pool *p, const struct answers *a) {
    const struct judge j = judge_by_pool(p);
    CHECK(j.batch(j.ctx, a->item, (size_t)a->n, NULL, &err));
}

static struct pool_stats stats(struct verify_pool *p) {
    struct pool_stats s = verify_pool_stats(p);
    free(s.host);
    s.host = NULL;
    return s;
}

/* A program that stands in for ssh: `kernelrl verify-worker` of any host is this program's, with the host's name and
 * what the test wants of it. */
static void be_ssh(const char *body) {
    CLEANUP_STR struct str path = STR_INIT, text = STR_INIT;
    str_addf(&path, "%s/ssh", tmp_dir);
    str_addf(
        &text,
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1\nshift 2\nSELF='%s'\n%s\nexec \"$SELF\" "
        "\"$@\" --name=$host\n",
        self, body);
    CHECK(fs_write_atomic(path.p, text.p, text.len, &err));
    assert_int_equal(chmod(path.p, 0755), 0);
    setenv("KERNELRL_SSH", path.p, 1);
}

/* ---- verdicts -----------------------------------------------------------------------------------------------------*/

static int told;
static void on_judged(void *ctx, struct verify_item *item) {
    assert_ptr_equal(ctx, item);
    told++;
}

static void each_answer_once(void **state) {
    (void)state;
    const struct pool_options o = options("local:3");
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(200, NULL);
    for (int i = 0; i < a.n; i++) {
        a.item[i].judged = on_judged;
        a.item[i].judged_ctx = &a.item[i];
    }
    told = 0;
    judge(p, &a);
    for (int i = 0; i < a.n; i++) {
        assert_verdict(&a.item[i]);
        assert_false(a.item[i].verdict.cached);
    }
    assert_int_equal(told, 200);
    struct pool_stats s = verify_pool_stats(p);
    assert_int_equal(s.verdicts, 200);
    assert_true(s.queue == 0 && s.in_flight == 0 && s.slots == 3 && s.lost == 0 && s.duplicates == 0 && s.missing == 0);
    assert_int_equal(s.n_hosts, 3);
    free(s.host);
    /* The same again needs nobody. */
    for (int i = 0; i < a.n; i++) a.item[i].verdict = (struct verdict){0};
    judge(p, &a);
    int cached = 0;
    for (int i = 0; i < a.n; i++) {
        assert_verdict(&a.item[i]);
        cached += a.item[i].verdict.cached;
    }
    assert_true(cached > 180); /* the cache is small, and some answers share a place in it */
    assert_int_equal(stats(p).verdicts, 200 - cached);
    free_answers(&a);
    verify_pool_close(p);
}

static void equal_empty_and_huge_answers(void **state) {
    (void)state;
    const struct pool_options o = options("local:2");
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(9, NULL);
    CLEANUP_FREE char *huge = xmalloc(100000001);
    memset(huge, 'x', 100000000);
    huge[100000000] = 0;
    for (int i = 0; i < 6; i++) { /* equal answers to one problem */
        a.item[i].problem = &problems[0];
        a.item[i].source = "twice\n// sleep 0.05\n";
    }
    a.item[6].source = "";
    a.item[7].source = NULL;
    a.item[8].source = huge;
    judge(p, &a);
    int cached = 0;
    for (int i = 0; i < 6; i++) {
        assert_verdict(&a.item[i]);
        cached += a.item[i].verdict.cached;
    }
    assert_int_equal(cached, 5);
    for (int i = 6; i < 8; i++) assert_int_equal(a.item[i].verdict.outcome, OUTCOME_NO_KERNEL);
    assert_int_equal(a.item[8].verdict.outcome, OUTCOME_INFRASTRUCTURE);
    assert_non_null(strstr(a.item[8].verdict.message, "100000"));
    assert_int_equal(stats(p).verdicts, 1);
    free_answers(&a);
    verify_pool_close(p);
}

static void verdicts_of_an_earlier_process(void **state) {
    (void)state;
    const struct pool_options o = options("local:1");
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers(1, NULL);
    const struct digest key = verify_key(a.item[0].problem, a.item[0].source);
    const struct verdict v = {.outcome = OUTCOME_CRASH, .message = "recalled"};
    char hardware[80], device[80];
    j.recall(j.ctx, &key, &v);
    judge(p, &a);
    assert_string_equal(a.item[0].verdict.message, "recalled");
    j.hardware(j.ctx, hardware, sizeof hardware, device, sizeof device);
    assert_string_equal(hardware, "stand-in");
    assert_string_equal(device, "cpu");
    assert_true(strncmp(j.classes, "cpu-", 4) == 0);
    free_answers(&a);
    verify_pool_close(p);
}

static void withdrawn_and_closed(void **state) {
    (void)state;
    const struct pool_options o = options("local:2");
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers(60, "// sleep 0.3\n");
    struct verify_item *done[64];
    for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
    usleep(100000);
    for (int i = 0; i < 58; i++) assert_true(j.stream->withdraw(j.ctx, &a.item[i]));
    assert_false(j.stream->withdraw(j.ctx, &a.item[0])); /* it is gone */
    int n = 0;
    for (const double until = clock_now_s() + 200; n < 2 && clock_now_s() < until;) {
        const size_t m = j.stream->collect(j.ctx, done, 64, 0.1);
        for (size_t i = 0; i < m; i++) {
            assert_true(done[i] == &a.item[58] || done[i] == &a.item[59]);
            assert_false(j.stream->withdraw(j.ctx, done[i])); /* collected: to be settled */
            j.stream->settle(j.ctx, done[i], true);
        }
        n += (int)m;
    }
    assert_int_equal(n, 2);
    /* Somebody who waits is woken. */
    j.stream->wake(j.ctx);
    const double from = clock_now_s();
    assert_int_equal(j.stream->collect(j.ctx, done, 64, 200), 0);
    assert_true(clock_now_s() - from < 100);
    /* A batch that is cancelled gives everything back; then the pool is closed in the midst of work. */
    volatile bool cancel = true;
    for (int i = 0; i < a.n; i++) snprintf(a.source[i], sizeof a.source[i], "other %d\n// sleep 50\n", i);
    assert_int_equal(j.batch(j.ctx, a.item, (size_t)a.n, &cancel, &err), ST_CANCELLED);
    for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
    usleep(100000);
    const double closing = clock_now_s();
    verify_pool_close(p);
    assert_true(clock_now_s() - closing < 60); /* none of the answers, which take 50 s each, is waited for */
    free_answers(&a);
}

/* ---- losses -------------------------------------------------------------------------------------------------------*/

static void a_lost_job_goes_to_another(void **state) {
    (void)state;
    const struct pool_options o = options("local:3");
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(30, NULL);
    for (int i = 0; i < 30; i += 10)
        snprintf(a.source[i], sizeof a.source[i], "dies once %d\n// die %s/once%d 1\n", i, tmp_dir, i);
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    const struct pool_stats s = stats(p);
    assert_true(s.lost >= 3 && s.redeliveries >= 3 && s.missing == 0);
    free_answers(&a);
    verify_pool_close(p);
}

static void poison_is_missing_and_harms_nobody(void **state) {
    (void)state;
    char kept[100];
    struct pool_options o = options("local:3");
    snprintf(kept, sizeof kept, "%s/poison", tmp_dir);
    o.kept = kept;
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(40, NULL);
    snprintf(a.source[7], sizeof a.source[7], "poison\n// die\n");
    judge(p, &a);
    for (int i = 0; i < a.n; i++)
        if (i != 7) assert_verdict(&a.item[i]);
    assert_int_equal(a.item[7].verdict.outcome, OUTCOME_INFRASTRUCTURE);
    assert_non_null(strstr(a.item[7].verdict.message, "3 workers were lost"));
    char **names;
    size_t n;
    CHECK(fs_list(kept, &names, &n, &err));
    assert_int_equal(n, 1);
    CLEANUP_FREE char *path = fs_join(kept, names[0]), *text = NULL;
    CHECK(fs_read(path, 10000, &text, NULL, &err));
    assert_non_null(strstr(text, "poison\\n// die"));
    free(names[0]);
    free(names);
    const struct pool_stats s = stats(p);
    assert_int_equal(s.missing, 1);
    free_answers(&a);
    verify_pool_close(p);
}

static void a_worker_that_stands_still_loses_its_job(void **state) {
    (void)state;
    struct pool_options o = options("local:2");
    o.lease_s = 2;
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(6, NULL);
    char once[100];
    snprintf(once, sizeof once, "%s/stopped", tmp_dir);
    snprintf(a.source[0], sizeof a.source[0], "stops\n// stop 400\n");
    /* The second worker to get it does not stop: the file says that the first did. */
    const double from = clock_now_s();
    judge(p, &a);
    for (int i = 1; i < a.n; i++) assert_verdict(&a.item[i]);
    /* It stops each worker that gets it: three losses, and it is missing. Nobody waited for the 400 s. */
    assert_int_equal(a.item[0].verdict.outcome, OUTCOME_INFRASTRUCTURE);
    assert_non_null(strstr(a.item[0].verdict.message, "silent for"));
    assert_true(clock_now_s() - from < 200);
    free_answers(&a);
    verify_pool_close(p);
}

static void a_job_has_a_deadline(void **state) {
    (void)state;
    struct pool_options o = options("local:2");
    o.deadline_s = 2; /* the others take no time at all */
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(4, NULL);
    snprintf(a.source[0], sizeof a.source[0], "hangs\n// hang\n");
    judge(p, &a);
    for (int i = 1; i < a.n; i++) assert_verdict(&a.item[i]);
    assert_int_equal(a.item[0].verdict.outcome, OUTCOME_INFRASTRUCTURE);
    assert_non_null(strstr(a.item[0].verdict.message, "verify_deadline"));
    free_answers(&a);
    verify_pool_close(p);
}

static int children_of(pid_t pid, pid_t *out, int max) {
    char path[80];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (const struct dirent *one; tasks && (one = readdir(tasks));) {
        char list[340];
        int child;
        snprintf(list, sizeof list, "%s/%s/children", path, one->d_name);
        FILE *f = fopen(list, "re");
        while (f && n < max && fscanf(f, "%d", &child) == 1) out[n++] = child;
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return n;
}

/* Random kills from a fixed seed: each answer has its verdict once all the same. */
static void random_kills(void **state) {
    (void)state;
    const struct pool_options o = options("local:3");
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    struct answers a = make_answers(200, "// sleep 0.01\n");
    struct rng r = rng_make(9, 1);
    int seen[200] = {0}, n = 0, killed = 0;
    for (int i = 0; i < a.n; i++) j.stream->submit(j.ctx, &a.item[i]);
    int next_kill = 3; /* so many verdicts are to be there first */
    const double until = clock_now_s() + 400;
    while (n < a.n && clock_now_s() < until) {
        struct verify_item *done[16];
        const size_t m = j.stream->collect(j.ctx, done, 16, 0.05);
        for (size_t i = 0; i < m; i++) {
            seen[done[i] - a.item]++;
            j.stream->settle(j.ctx, done[i], true);
        }
        n += (int)m;
        pid_t child[16];
        if (n < next_kill || n > 180) continue;
        const int there = children_of(getpid(), child, 16);
        if (there > 0 && kill(child[rng_below(&r, (uint64_t)there)], SIGKILL) == 0) killed++;
        next_kill = n + 3 + (int)rng_below(&r, 20);
    }
    assert_int_equal(n, 200);
    int missing = 0;
    for (int i = 0; i < a.n; i++) {
        assert_int_equal(seen[i], 1);
        if (outcome_class(a.item[i].verdict.outcome) == 'I')
            missing++; /* killed three times: said to be missing, never judged bad */
        else
            assert_verdict(&a.item[i]);
    }
    assert_true(killed >= 3);
    assert_true(missing < 20);
    assert_true(stats(p).lost > 0);
    free_answers(&a);
    verify_pool_close(p);
}

/* ---- hosts --------------------------------------------------------------------------------------------------------*/

static void hosts_through_ssh(void **state) {
    (void)state;
    be_ssh("");
    const struct pool_options o = options("ssh:h1:2,ssh:h2:1");
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(60, "// sleep 0.01\n");
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    struct pool_stats s = verify_pool_stats(p);
    assert_true(s.n_hosts == 2 && strcmp(s.host[0].name, "ssh:h1") == 0 && s.host[0].slots == 2);
    assert_true(s.host[0].busy > 0 && s.host[0].busy <= 1.01);
    free(s.host);
    free_answers(&a);
    verify_pool_close(p);
}

/* One slot of a host dies: the host goes on, and its other slot too. Then the host itself goes, and comes back. */
static void a_slot_and_a_host_come_back(void **state) {
    (void)state;
    be_ssh("");
    const struct pool_options o = options("ssh:h1:2");
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(20, NULL);
    snprintf(a.source[3], sizeof a.source[3], "once\n// die %s/slot 1\n", tmp_dir);
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    struct pool_stats s = stats(p);
    assert_true(s.lost >= 1 && s.hosts == 1);
    pid_t host[4];
    assert_int_equal(children_of(getpid(), host, 4), 1);
    assert_int_equal(kill(host[0], SIGKILL), 0);
    struct answers b = make_answers(20, "// sleep 0.02\n");
    for (int i = 0; i < b.n; i++) snprintf(b.source[i], sizeof b.source[i], "later %d\n// sleep 0.02\n", i);
    judge(p, &b);
    for (int i = 0; i < b.n; i++) assert_verdict(&b.item[i]);
    free_answers(&a);
    free_answers(&b);
    verify_pool_close(p);
}

static void a_slow_host_is_hedged(void **state) {
    (void)state;
    be_ssh("[ $host = slow ] && export STAND_IN_SLEEP=300");
    struct pool_options o = options("ssh:slow:1,ssh:fast:1");
    o.hedge_s = 0.5;
    struct verify_pool *p = open_pool(&o);
    /* Both have to be ready, so that the slow one gets something. */
    const struct judge j = judge_by_pool(p);
    for (const double until = clock_now_s() + 200; j.stream->width(j.ctx) < 2 && clock_now_s() < until;) usleep(20000);
    struct answers a = make_answers(20, NULL);
    const double from = clock_now_s();
    judge(p, &a);
    assert_true(clock_now_s() - from < 200);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    assert_true(stats(p).hedged >= 1);
    free_answers(&a);
    verify_pool_close(p);
}

static void a_host_that_lies_is_seen(void **state) {
    (void)state;
    be_ssh("[ $host = liar ] && export STAND_IN_LIE=1");
    struct pool_options o = options("ssh:liar:1,ssh:honest:1");
    o.audit = 1;
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    for (const double until = clock_now_s() + 200; j.stream->width(j.ctx) < 2 && clock_now_s() < until;) usleep(20000);
    struct answers a = make_answers(40, "// sleep 0.01\n");
    judge(p, &a);
    struct pool_stats s = {0};
    for (const double until = clock_now_s() + 200; s.audited < 30 && clock_now_s() < until;) {
        const struct pool_stats more = stats(p);
        s.audited += more.audited;
        s.disagreements += more.disagreements;
        usleep(20000);
    }
    assert_true(s.audited >= 30);
    assert_true(s.disagreements >= 25); /* all but those that are right, and as fast, anyhow */
    free_answers(&a);
    verify_pool_close(p);
}

static void honest_hosts_agree(void **state) {
    (void)state;
    be_ssh("");
    struct pool_options o = options("ssh:h1:1,ssh:h2:1");
    o.audit = 1;
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    for (const double until = clock_now_s() + 200; j.stream->width(j.ctx) < 2 && clock_now_s() < until;) usleep(20000);
    struct answers a = make_answers(20, NULL);
    judge(p, &a);
    struct pool_stats s = {0};
    for (const double until = clock_now_s() + 200; s.audited < 20 && clock_now_s() < until;) {
        const struct pool_stats more = stats(p);
        s.audited += more.audited;
        s.disagreements += more.disagreements;
        usleep(20000);
    }
    assert_int_equal(s.audited, 20);
    assert_int_equal(s.disagreements, 0);
    free_answers(&a);
    verify_pool_close(p);
}

static void a_host_whose_probe_reads_wrong_drains(void **state) {
    (void)state;
    be_ssh("[ $host = bad ] && export STAND_IN_PROBE=1.2\nset -- \"$@\" --probe=0.3");
    const struct pool_options o = options("ssh:bad:1,ssh:good:1");
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    CLEANUP_STR struct str what = STR_INIT;
    for (const double until = clock_now_s() + 200; clock_now_s() < until; usleep(50000)) {
        str_clear(&what);
        j.stream->describe(j.ctx, &what);
        if (strstr(str_c(&what), "1.200")) break;
    }
    assert_non_null(strstr(str_c(&what), "ssh:bad: it drains: "));
    assert_non_null(strstr(str_c(&what), "expected 0.97 to 1.03"));
    struct answers a = make_answers(10, NULL);
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    free_answers(&a);
    verify_pool_close(p);
}

/* Trouble of one host's, such as a full disk, is asked about elsewhere, and is never a bad verdict. */
static void trouble_of_a_host(void **state) {
    (void)state;
    be_ssh("[ $host = full ] && export STAND_IN_FULL=1");
    struct pool_options o = options("ssh:full:1,ssh:good:1");
    struct verify_pool *p = open_pool(&o);
    const struct judge j = judge_by_pool(p);
    for (const double until = clock_now_s() + 200; j.stream->width(j.ctx) < 2 && clock_now_s() < until;) usleep(20000);
    struct answers a = make_answers(20, "// sleep 0.01\n");
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    verify_pool_close(p);
    o.hosts = "ssh:full:2";
    p = open_pool(&o);
    for (int i = 0; i < a.n; i++) snprintf(a.source[i], sizeof a.source[i], "again %d\n", i);
    judge(p, &a);
    for (int i = 0; i < a.n; i++) {
        assert_int_equal(a.item[i].verdict.outcome, OUTCOME_INFRASTRUCTURE);
        assert_non_null(strstr(a.item[i].verdict.message, "No space left"));
    }
    free_answers(&a);
    verify_pool_close(p);
}

/* ---- who is refused, by name --------------------------------------------------------------------------------------*/

static void hosts_that_cannot_be_used(void **state) {
    (void)state;
    struct verify_pool *p;
    static const struct {
        const char *body, *classes, *says;
    } bad[] = {
        {"export STAND_IN_VERSION=0.1.7", NULL, "ssh:h1: it is kernelrl 0.1.7, this program is " KERNELRL_VERSION},
        {"", "cpu-abacus-x1", "verdicts are wanted of cpu-abacus-x1"},
        {"export STAND_IN_CANNOT='no bubblewrap here'", NULL, "no bubblewrap here"},
        {"echo 'Permission denied (publickey).' >&2; exit 255", NULL, "Permission denied (publickey)."},
        {"exit 127", NULL, "ended with status 127"},
        {"echo "
         "'{\"type\":\"hello\",\"protocol\":9,\"program\":\"9\",\"host\":\"h\",\"slots\":1,\"ahead\":0,\"beat_s\":1,"
         "\"classes\":[]}'; sleep 5; exit 1",
         NULL, "version 9 of the protocol"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        be_ssh(bad[i].body);
        struct pool_options o = options("ssh:h1:1");
        o.classes = bad[i].classes;
        CHECK_FAILS(verify_pool_open(&o, &judged_by, NULL, &p, &err), ST_WORKER, bad[i].says);
        assert_null(p);
    }
    setenv("KERNELRL_SSH", "/no/such/ssh", 1);
    struct pool_options o = options("ssh:h1:1");
    CHECK_FAILS(verify_pool_open(&o, &judged_by, NULL, &p, &err), ST_WORKER, "no program /no/such/ssh");
    o = options("local:cuda:900");
    CHECK_FAILS(verify_pool_open(&o, &judged_by, NULL, &p, &err), ST_DEVICE, "GPU");
    o = options("farm:1");
    CHECK_FAILS(verify_pool_open(&o, &judged_by, NULL, &p, &err), ST_CONFIG, "verify_hosts");
    o = options("local:1");
    o.classes = "cuda-nvidia-h200"; /* answers in C run on a processor */
    CHECK_FAILS(verify_pool_open(&o, &judged_by, NULL, &p, &err), ST_CONFIG, "verify_class");
    volatile bool cancel = true;
    o = options("local:1");
    CHECK_FAILS(verify_pool_open(&o, &judged_by, &cancel, &p, &err), ST_CANCELLED, "interrupted");
}

/* A host that talks nonsense, or forges verdicts of jobs that it was not given, does no harm. */
static void nonsense_and_forgeries(void **state) {
    (void)state;
    be_ssh("if [ $host = bad ]; then\n"
           "  (while :; do\n"
           "     echo 'garbage' || exit\n"
           "     echo '{\"type\":\"verdict\",\"v\":1,\"j\":\"00000000000000000000000000000000\",\"attempt\":1}'\n"
           "     head -c 5000000 /dev/zero | tr '\\0' x; echo\n"
           "     sleep 0.2\n"
           "   done) &\n"
           "  exec \"$SELF\" \"$@\" --name=$host\n"
           "fi");
    const struct pool_options o = options("ssh:bad:1,ssh:good:1");
    struct verify_pool *p = open_pool(&o);
    struct answers a = make_answers(40, "// sleep 0.02\n");
    judge(p, &a);
    for (int i = 0; i < a.n; i++) assert_verdict(&a.item[i]);
    assert_true(stats(p).refused > 0);
    free_answers(&a);
    verify_pool_close(p);
}

/* ---- secrets ------------------------------------------------------------------------------------------------------*/

/* All workers of a pool draw inputs from one seed, another pool's from another one. */
static void one_seed_a_run(void **state) {
    (void)state;
    char first[40] = "", second[40] = "";
    for (int run = 0; run < 2; run++) {
        char name[100];
        const struct pool_options o = options("local:3");
        struct verify_pool *p = open_pool(&o);
        CLEANUP_STR struct str line = STR_INIT;
        snprintf(name, sizeof name, "%s/seeds%d", tmp_dir, run);
        str_addf(&line, "// seed %s\n// sleep 0.01\n", name);
        struct answers a = make_answers(30, line.p);
        judge(p, &a);
        CLEANUP_FREE char *text = NULL;
        size_t n;
        CHECK(fs_read(name, 10000, &text, &n, &err));
        assert_int_equal(n, 30 * 17);
        for (size_t i = 17; i < n; i += 17) assert_memory_equal(text, text + i, 17);
        snprintf(run ? second : first, 17, "%.16s", text);
        free_answers(&a);
        verify_pool_close(p);
    }
    assert_string_not_equal(first, second);
}

static void shared_verdicts_of_runs(void **state) {
    (void)state;
    char store[100];
    struct pool_options o = options("local:2");
    snprintf(store, sizeof store, "%s/store", tmp_dir);
    o.store = store;
    static const int64_t hits[] = {0, 0, 10}; /* judged by a first run, once more by a second: then known */
    for (size_t run = 0; run < ARRAY_LEN(hits); run++) {
        struct verify_pool *p = open_pool(&o);
        struct answers a = make_answers(10, NULL);
        judge(p, &a);
        for (int i = 0; i < a.n; i++) {
            assert_verdict(&a.item[i]);
            assert_int_equal(a.item[i].verdict.cached, hits[run] > 0);
        }
        const struct pool_stats s = stats(p);
        assert_int_equal(s.cache_hits, hits[run]);
        assert_int_equal(s.verdicts, 10 - hits[run]);
        free_answers(&a);
        verify_pool_close(p);
    }
}

int main(int argc, char **argv) {
    const struct worker_judge stand_in_here = stand_in_worker();
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "verify-worker") == 0)
        return verify_worker_with(argc - 1, argv + 1, &stand_in_here);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    log_set_level(LOG_ERROR);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_answer_once),
        cmocka_unit_test(equal_empty_and_huge_answers),
        cmocka_unit_test(verdicts_of_an_earlier_process),
        cmocka_unit_test(withdrawn_and_closed),
        cmocka_unit_test(a_lost_job_goes_to_another),
        cmocka_unit_test(poison_is_missing_and_harms_nobody),
        cmocka_unit_test(a_worker_that_stands_still_loses_its_job),
        cmocka_unit_test(a_job_has_a_deadline),
        cmocka_unit_test(random_kills),
        cmocka_unit_test(hosts_through_ssh),
        cmocka_unit_test(a_slot_and_a_host_come_back),
        cmocka_unit_test(a_slow_host_is_hedged),
        cmocka_unit_test(a_host_that_lies_is_seen),
        cmocka_unit_test(honest_hosts_agree),
        cmocka_unit_test(a_host_whose_probe_reads_wrong_drains),
        cmocka_unit_test(trouble_of_a_host),
        cmocka_unit_test(hosts_that_cannot_be_used),
        cmocka_unit_test(nonsense_and_forgeries),
        cmocka_unit_test(one_seed_a_run),
        cmocka_unit_test(shared_verdicts_of_runs),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
