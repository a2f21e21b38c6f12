/* Samples on record: what was drawn is not drawn again, whatever has happened to the file costs samples and no more. */
#include "rl/rollout/sample_journal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rl/test_util.h"

enum { REQUESTS = 3, SAMPLES = 9 }; /* 2 + 3 + 4 */
static const int32_t prompts[REQUESTS][4] = {{1, 2, 3, 4}, {1, 2, 3, 5}, {9, 8, 7, 6}};

/* Stands in for the engine: a sample is a function of its request and number. */
struct drawer {
    int calls, drawn, requests;
    int stops_after; /* samples, and then progress is told no more; 0: never */
    enum status fails;
};

static struct sample draw(const struct request *r, int number) {
    struct sample s = {.n = 1 + (number + r->prompt[3]) % 5, .stop = number % 2 ? STOP_TOKEN : STOP_LENGTH};
    s.ids = xmalloc(sizeof *s.ids * 5);
    s.logp = xmalloc(sizeof *s.logp * 5);
    s.entropy = xmalloc(sizeof *s.entropy * 5);
    for (int i = 0; i < s.n; i++) {
        s.ids[i] = r->prompt[3] * 100 + number * 10 + i;
        s.logp[i] = -0.1f * (float)(s.ids[i] + 1);
        s.entropy[i] = 0.3f * (float)s.ids[i];
    }
    return s;
}

static enum status draw_all(void *ctx, const struct request *req, int n_req, struct sample *out,
                            engine_progress_fn *progress, void *progress_ctx, struct err *e) {
    struct drawer *d = ctx;
    int total = 0, at = 0;
    d->calls++;
    d->requests += n_req;
    for (int i = 0; i < n_req; i++) total += req[i].n_samples;
    if (d->fails != ST_OK) return FAIL(e, d->fails, "it fails");
    bool go_on = true;
    for (int i = 0; i < n_req; i++)
        for (int k = 0; k < req[i].n_samples; k++, at++) {
            if (!go_on) {
                out[at].stop = STOP_CANCELLED;
                continue;
            }
            out[at] = draw(&req[i], req[i].first + k);
            d->drawn++;
            if (progress) go_on = progress(progress_ctx, 10 * at, at + 1, total);
        }
    return ST_OK;
}

static void make(struct request *req) {
    for (int i = 0; i < REQUESTS; i++)
        req[i] = (struct request){.prompt = prompts[i],
                                  .n_prompt = 4,
                                  .n_samples = 2 + i,
                                  .id = (uint64_t)i,
                                  .params = {.temperature = 1, .top_p = 1, .max_tokens = 5, .seed = 3}};
}

static bool until(void *ctx, int64_t tokens, int done, int total) {
    (void)tokens;
    assert_int_equal(total, SAMPLES);
    return done < *(int *)ctx;
}

/* Runs the requests through a journal that is opened for it. Returns how many were drawn. */
static int run(const char *path, uint64_t identity, uint64_t weights, int stop_after) {
    struct drawer d = {0};
    struct sample_journal *j;
    struct request req[REQUESTS];
    struct sample out[SAMPLES];
    make(req);
    CHECK(sample_journal_open(path, identity, (struct actor_policy){draw_all, &d}, &weights, &j, &err));
    CHECK(sample_journal_run(j, req, REQUESTS, out, stop_after ? until : NULL, &stop_after, &err));
    for (int i = 0, at = 0; i < REQUESTS; i++)
        for (int k = 0; k < req[i].n_samples; k++, at++) {
            struct sample want = draw(&req[i], k);
            if (out[at].stop != STOP_CANCELLED) {
                assert_int_equal(out[at].n, want.n);
                assert_int_equal(out[at].stop, want.stop);
                assert_memory_equal(out[at].ids, want.ids, (size_t)want.n * sizeof *want.ids);
                assert_memory_equal(out[at].logp, want.logp, (size_t)want.n * sizeof *want.logp);
                assert_memory_equal(out[at].entropy, want.entropy, (size_t)want.n * sizeof *want.entropy);
            } else {
                assert_true(stop_after > 0);
            }
            sample_free(&want);
            sample_free(&out[at]);
        }
    if (stop_after == 0) assert_int_equal(sample_journal_replayed(j), SAMPLES - d.drawn);
    sample_journal_close(j);
    return d.drawn;
}

static void drawn_once(void **state) {
    (void)state;
    const char *path = in_tmp("once.bin");
    assert_int_equal(run(path, 5, 7, 4), 4); /* killed behind the fourth */
    assert_int_equal(run(path, 5, 7, 0), SAMPLES - 4);
    assert_int_equal(run(path, 5, 7, 0), 0);
    assert_int_equal(run(path, 5, 8, 0), SAMPLES); /* other weights: both are there now */
    assert_int_equal(run(path, 5, 7, 0), 0);
    assert_int_equal(run(path, 5, 8, 2), 0);
    assert_int_equal(run(path, 6, 8, 0), SAMPLES); /* another identity: all are gone */
    assert_int_equal(run(path, 5, 7, 0), SAMPLES);
}

static void damaged_files(void **state) {
    (void)state;
    const char *path = in_tmp("damaged.bin");
    char *whole, *again;
    size_t len, n;
    run(path, 5, 7, 0);
    CHECK(fs_read(path, 1 << 20, &whole, &len, &err));
    for (size_t cut = 0; cut < len; cut += 1 + len / 37) { /* wherever it was torn */
        CHECK(fs_write_atomic(path, whole, cut, &err));
        assert_in_range(run(path, 5, 7, 0), 1, SAMPLES);
        assert_int_equal(run(path, 5, 7, 0), 0);
    }
    for (size_t at = 0; at < len; at += 1 + len / 61) { /* a byte that is another */
        char *other = xmalloc(len);
        memcpy(other, whole, len);
        other[at] ^= 0x40;
        CHECK(fs_write_atomic(path, other, len, &err));
        assert_in_range(run(path, 5, 7, 0), 1, SAMPLES);
        free(other);
    }
    CHECK(fs_read(path, 1 << 20, &again, &n, &err));
    assert_int_equal(n, len);
    free(whole);
    free(again);
}

static void only_what_is_missing_is_asked_for(void **state) {
    (void)state;
    const char *path = in_tmp("parts.bin");
    const uint64_t weights = 1;
    struct drawer d = {0};
    struct sample_journal *j;
    struct sample out[SAMPLES];
    struct request req[REQUESTS];
    make(req);
    CHECK(sample_journal_open(path, 5, (struct actor_policy){draw_all, &d}, &weights, &j, &err));
    struct request middle = req[2];
    middle.first = 1;
    middle.n_samples = 2;
    CHECK(sample_journal_run(j, &middle, 1, out, NULL, NULL, &err));
    for (int i = 0; i < 2; i++) sample_free(&out[i]);
    sample_journal_close(j);
    d = (struct drawer){0};
    CHECK(sample_journal_open(path, 5, (struct actor_policy){draw_all, &d}, &weights, &j, &err));
    CHECK(sample_journal_run(j, req, REQUESTS, out, NULL, NULL, &err));
    assert_int_equal(d.requests, 4); /* the last one's first and last sample are two requests */
    assert_int_equal(d.drawn, SAMPLES - 2);
    struct sample want = draw(&req[2], 3);
    assert_memory_equal(out[SAMPLES - 1].ids, want.ids, (size_t)want.n * sizeof *want.ids);
    sample_free(&want);
    for (int i = 0; i < SAMPLES; i++) sample_free(&out[i]);
    /* What asks for more than tokens goes by, and what asks for other log-probabilities than those on record. */
    for (int way = 0; way < 3; way++) {
        make(req);
        if (way == 0) req[0].top_logprobs = 3;
        if (way == 1) req[2].tempered_logprobs = true;
        if (way == 2) req[2].prompt_ranks = true;
        d = (struct drawer){0};
        CHECK(sample_journal_run(j, req, REQUESTS, out, NULL, NULL, &err));
        assert_int_equal(d.drawn, SAMPLES);
        for (int i = 0; i < SAMPLES; i++) sample_free(&out[i]);
    }
    /* A failure is the caller's, and leaves nothing. */
    make(req);
    req[0].params.seed = 9;
    d.fails = ST_FAILED;
    CHECK_FAILS(sample_journal_run(j, req, REQUESTS, out, NULL, NULL, &err), ST_FAILED, "it fails");
    for (int i = 0; i < SAMPLES; i++) assert_null(out[i].ids);
    sample_journal_close(j);
}

/* What was drawn before a checkpoint was begun is forgotten when that checkpoint is complete, and no other sample. */
static void forgotten_up_to_the_mark(void **state) {
    (void)state;
    const char *path = in_tmp("mark.bin");
    uint64_t weights = 7;
    struct request req[REQUESTS];
    struct sample out[SAMPLES];
    struct drawer d = {0};
    struct sample_journal *j;
    struct stat s;
    remove(path);
    CHECK(sample_journal_open(path, 5, (struct actor_policy){draw_all, &d}, &weights, &j, &err));
    for (int step = 0; step < 2; step++) {
        make(req);
        weights = 7 + (uint64_t)step;
        CHECK(sample_journal_run(j, req, REQUESTS, out, NULL, NULL, &err));
        for (int i = 0; i < SAMPLES; i++) sample_free(&out[i]);
        if (step == 0) sample_journal_mark(j);
    }
    assert_int_equal(stat(path, &s), 0);
    const off_t both = s.st_size;
    sample_journal_forget(j);
    sample_journal_forget(j); /* without a mark: nothing */
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_size, 16 + (both - 16) / 2);
    sample_journal_close(j);
    for (int step = 0; step < 2; step++) {
        d = (struct drawer){0};
        make(req);
        weights = 7 + (uint64_t)step;
        CHECK(sample_journal_open(path, 5, (struct actor_policy){draw_all, &d}, &weights, &j, &err));
        CHECK(sample_journal_run(j, req, REQUESTS, out, NULL, NULL, &err));
        for (int i = 0; i < SAMPLES; i++) sample_free(&out[i]);
        assert_int_equal(d.drawn, step == 0 ? SAMPLES : 0);
        sample_journal_mark(j);
        if (step == 1) sample_journal_forget(j);
        sample_journal_close(j);
    }
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_size, 16);
}

static void a_full_disk_costs_no_sample(void **state) {
    (void)state;
    const char *path = in_tmp("full.bin");
    struct rlimit old, small;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){500, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(run(path, 5, 7, 0), SAMPLES);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_in_range(run(path, 5, 7, 0), 1, SAMPLES - 1);
    CHECK_FAILS(sample_journal_open(in_tmp("none/at/all"), 5, (struct actor_policy){0}, NULL,
                                    &(struct sample_journal *){NULL}, &err),
                ST_IO, "none/at/all");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_once), cmocka_unit_test(damaged_files),
                                       cmocka_unit_test(only_what_is_missing_is_asked_for),
                                       cmocka_unit_test(forgotten_up_to_the_mark),
                                       cmocka_unit_test(a_full_disk_costs_no_sample)};
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
