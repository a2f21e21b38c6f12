/* Judging through a stream: verdicts that come one by one and in any order are each written once, before anybody has
 * them, in groups; what is dropped, cut off or missing is treated as with a judge that takes batches. */
#include "rl/rollout/judging.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "rl/test_util.h"

enum { MOST = 1024 };
static const struct problem relu = {.key = "level1/1_ReLU", .code = "class Model: relu"};

/* A stream that answers when it is told to, the latest first. */
static struct fake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct verify_item *open[MOST], *held[MOST];
    int n_open, n_held, submitted, settled, withdrawn, recalled, unwritten;
    bool lets_go, woken;
    const char *journal; /* a verdict that is settled must stand in this file */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void reset(const char *journal) {
    pthread_mutex_lock(&fake.lock);
    assert_int_equal(fake.n_open + fake.n_held, 0);
    fake.submitted = fake.settled = fake.withdrawn = fake.recalled = fake.unwritten = 0;
    fake.lets_go = true;
    fake.journal = journal;
    pthread_mutex_unlock(&fake.lock);
}

static void let_go(bool on) {
    pthread_mutex_lock(&fake.lock);
    fake.lets_go = on;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static void submit(void *ctx, struct verify_item *item) {
    (void)ctx;
    pthread_mutex_lock(&fake.lock);
    fake.open[fake.n_open++] = item;
    fake.submitted++;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static size_t collect(void *ctx, struct verify_item **done, size_t max, double seconds) {
    size_t n = 0;
    const double until = clock_now_s() + seconds;
    (void)ctx;
    pthread_mutex_lock(&fake.lock);
    while (!fake.woken && !(fake.lets_go && fake.n_open > 0) && clock_now_s() < until) {
        pthread_mutex_unlock(&fake.lock);
        usleep(1000);
        pthread_mutex_lock(&fake.lock);
    }
    fake.woken = false;
    for (; fake.lets_go && n < max && fake.n_open > 0; n++) {
        struct verify_item *item = done[n] = fake.held[fake.n_held++] = fake.open[--fake.n_open];
        const bool missing = strstr(item->source, "missing") != NULL;
        item->verdict =
            (struct verdict){.outcome = missing ? OUTCOME_INFRASTRUCTURE : OUTCOME_CORRECT, .tests_total = 5};
        snprintf(item->verdict.message, sizeof item->verdict.message, "of %s", item->source);
    }
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static void forget(struct verify_item **list, int *n, const struct verify_item *item) {
    int i = 0;
    while (i < *n && list[i] != item) i++;
    assert_true(i < *n);
    list[i] = list[--*n];
}

static bool is_written(const struct verify_item *item) {
    CLEANUP_FREE char *text = NULL;
    CLEANUP_STR struct str want = STR_INIT;
    if (outcome_class(item->verdict.outcome) == 'I') return true;
    CHECK(fs_read(fake.journal, 1 << 24, &text, NULL, &err));
    str_addf(&want, "\"message\":\"of %s\"", item->source);
    return strstr(text, want.p) != NULL;
}

static void settle(void *ctx, struct verify_item *item, bool kept) {
    (void)ctx;
    (void)kept;
    pthread_mutex_lock(&fake.lock);
    if (fake.journal) fake.unwritten += !is_written(item);
    forget(fake.held, &fake.n_held, item);
    fake.settled++;
    pthread_mutex_unlock(&fake.lock);
}

static bool withdraw(void *ctx, struct verify_item *item) {
    bool found = false;
    (void)ctx;
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < fake.n_open; i++) found |= fake.open[i] == item;
    if (found) forget(fake.open, &fake.n_open, item);
    fake.withdrawn += found;
    pthread_mutex_unlock(&fake.lock);
    return found;
}

static void wake(void *ctx) {
    (void)ctx;
    pthread_mutex_lock(&fake.lock);
    fake.woken = true;
    pthread_mutex_unlock(&fake.lock);
}

static void describe(void *ctx, struct str *out) {
    (void)ctx;
    str_adds(out, "fake");
}

static int width(void *ctx) {
    (void)ctx;
    return 1;
}

static void recall(void *ctx, const struct digest *key, const struct verdict *v) {
    (void)ctx;
    (void)key;
    (void)v;
    fake.recalled++;
}

static const struct judge_stream stream = {submit, collect, settle, withdraw, wake, describe, width};

static enum status batch(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e) {
    return judge_stream_batch(&stream, ctx, items, n, cancel, e);
}

static const struct judge judge = {.batch = batch, .recall = recall, .stream = &stream};

struct asked {
    char source[MOST][40];
    struct verdict verdict[MOST];
    struct judging_batch batch;
};

static void ask(struct judging *q, struct asked *a, int from, int n) {
    for (int i = from; i < from + n; i++) {
        const struct journal_place at = {.step = 2, .group = i, .sample = i % 7};
        snprintf(a->source[i], sizeof a->source[i], "%s %d", i % 50 == 13 ? "missing" : "answer", i);
        judging_add(q, &a->batch, &relu, a->source[i], &at, &a->verdict[i]);
    }
}

static void assert_answered(const struct asked *a, int n) {
    for (int i = 0; i < n; i++) {
        char want[60];
        snprintf(want, sizeof want, "of %s", a->source[i]);
        assert_string_equal(a->verdict[i].message, want);
        assert_int_equal(a->verdict[i].outcome, i % 50 == 13 ? OUTCOME_INFRASTRUCTURE : OUTCOME_CORRECT);
    }
}

static struct journal *open_journal(const char *path) {
    struct journal *j;
    CHECK(journal_open(path, (struct verify_identity){.now = 5}, 0, NULL, &j, &err));
    return j;
}

static int lines_of(const char *path) {
    CLEANUP_FREE char *text = NULL;
    int n = 0;
    CHECK(fs_read(path, 1 << 24, &text, NULL, &err));
    for (const char *p = text; (p = strchr(p, '\n')); p++) n++;
    return n;
}

static void written_once_in_groups(bool background) {
    CLEANUP_FREE char *path = xstrdup(in_tmp(background ? "background.jsonl" : "foreground.jsonl"));
    CLEANUP_FREE struct asked *a = xcalloc(1, sizeof *a), *again = xcalloc(1, sizeof *a);
    reset(path);
    struct journal *j = open_journal(path);
    struct judging *q = judging_create(j, &judge, background, NULL);
    let_go(false);
    ask(q, a, 0, 200);
    if (background)
        for (const double until = clock_now_s() + 20; fake.submitted < 200 && clock_now_s() < until;) usleep(1000);
    let_go(true);
    ask(q, a, 200, 300);
    CHECK(judging_wait(q, &a->batch, &err));
    assert_answered(a, 500);
    assert_int_equal(fake.submitted, 500);
    assert_int_equal(fake.settled, 500);
    assert_int_equal(fake.unwritten, 0); /* each stood in the journal before the judge was told so */
    assert_int_equal(lines_of(path), 490);
    const struct judging_stats s = judging_stats(q);
    assert_true(s.calls < 100 && s.longest >= 200);
    judging_free(q);
    journal_close(j);
    /* A run that goes on asks for what has no verdict, and for nothing else. */
    reset(path);
    j = open_journal(path);
    q = judging_create(j, &judge, background, NULL);
    ask(q, again, 0, 500);
    CHECK(judging_wait(q, &again->batch, &err));
    assert_answered(again, 500);
    assert_int_equal(fake.submitted, 10);
    assert_int_equal(fake.recalled, 490);
    assert_int_equal(lines_of(path), 490);
    judging_free(q);
    journal_close(j);
}

static void in_the_background(void **state) {
    (void)state;
    written_once_in_groups(true);
}
static void in_the_foreground(void **state) {
    (void)state;
    written_once_in_groups(false);
}

static void dropped_and_freed(void **state) {
    (void)state;
    CLEANUP_FREE struct asked *a = xcalloc(1, sizeof *a), *b = xcalloc(1, sizeof *a);
    reset(NULL);
    let_go(false);
    struct judging *q = judging_create(NULL, &judge, true, NULL);
    ask(q, a, 0, 40);
    ask(q, b, 0, 10);
    for (const double until = clock_now_s() + 20; fake.submitted < 50 && clock_now_s() < until;) usleep(1000);
    judging_drop(q, &a->batch);
    assert_int_equal(a->batch.pending, 0);
    assert_int_equal(fake.withdrawn, 40);
    let_go(true);
    CHECK(judging_wait(q, &b->batch, &err));
    assert_answered(b, 10);
    let_go(false);
    ask(q, a, 0, 30); /* nobody waits for these any more */
    judging_free(q);
    reset(NULL);
}

static void cut_off(void **state) {
    (void)state;
    CLEANUP_FREE struct asked *a = xcalloc(1, sizeof *a);
    volatile bool cancel = false;
    reset(NULL);
    let_go(false);
    struct judging *q = judging_create(NULL, &judge, true, &cancel);
    ask(q, a, 0, 20);
    for (const double until = clock_now_s() + 20; fake.submitted < 20 && clock_now_s() < until;) usleep(1000);
    cancel = true;
    assert_int_equal(judging_wait(q, &a->batch, &err), ST_CANCELLED);
    for (int i = 0; i < 20; i++) assert_int_equal(outcome_class(a->verdict[i].outcome), 'I');
    judging_free(q);
    reset(NULL);
}

/* The disk of the journal is full: the batch fails, and no verdict is used. */
static void unwritten_verdicts_are_not_used(void **state) {
    (void)state;
    CLEANUP_FREE struct asked *a = xcalloc(1, sizeof *a);
    reset(NULL);
    struct rlimit before, none;
    const char *path = in_tmp("full.jsonl");
    struct journal *j = open_journal(path);
    struct judging *q = judging_create(j, &judge, true, NULL);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 10; /* no line has room in a file */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    ask(q, a, 0, 5);
    const enum status st = judging_wait(q, &a->batch, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(st, ST_IO);
    for (int i = 0; i < 5; i++) assert_int_equal(outcome_class(a->verdict[i].outcome), 'I');
    judging_free(q);
    journal_close(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_the_background),
        cmocka_unit_test(in_the_foreground),
        cmocka_unit_test(dropped_and_freed),
        cmocka_unit_test(cut_off),
        cmocka_unit_test(unwritten_verdicts_are_not_used),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
