/* Which adapters are on the device: requests wake those at rest, those used longest ago make room and go to host memory
 * or to files, nobody in use is moved, and what cannot be fails one request alone. */
#include "engine/engine.h"

#include <unistd.h>

#include "rl/test_util.h"

enum { ADAPTERS = 4, NEW = 8, PROMPT = 5 };
static struct model *m;
static int32_t want[ADAPTERS + 1][NEW];
static float want_logp[ADAPTERS + 1][NEW];
static int64_t bytes, file_bytes; /* of one adapter */

static const int32_t prompt[PROMPT] = {3, 250, 17, 99, 4};
static struct request request_of(int adapter, int tokens) {
    return (struct request){.prompt = prompt,
                            .n_prompt = PROMPT,
                            .n_samples = 1,
                            .adapter = adapter,
                            .params = {.temperature = 1, .top_p = 1, .max_tokens = tokens, .seed = 11}};
}

static struct adapter_info info_of(int index) {
    struct adapter_info a;
    assert_true(model_adapter_info(m, index, &a));
    return a;
}
static int count(enum adapter_place place) {
    int n = 0;
    for (int i = 1; i <= ADAPTERS; i++) n += info_of(i).place == place;
    return n;
}

static struct engine *open_engine(int64_t adapter_bytes, const char *dir, int64_t host_bytes) {
    struct engine *en;
    const struct engine_options o = {.memory_bytes = 1 << 22,
                                     .max_batch = 4,
                                     .adapter_bytes = adapter_bytes,
                                     .adapter_dir = dir,
                                     .adapter_host_bytes = host_bytes};
    CHECK(engine_open(m, &o, &en, &err));
    return en;
}

static int setup(void **state) {
    struct sample s[ADAPTERS + 1];
    struct request r[ADAPTERS + 1];
    (void)make_tmp_dir(state);
    m = tiny_model(4, false);
    CHECK(model_train_prepare(m, TRAIN_NOTHING, &err));
    for (int k = 1; k <= ADAPTERS; k++) {
        int index;
        CHECK(model_adapter_create(m, &(struct adapter_shape){3, 9, 7, 0}, (uint64_t)k, &index, &err));
        assert_int_equal(index, k);
        CHECK(model_adapter_prepare(m, k, &err));
        const struct train_set p = model_train_set(m, k);
        for (int i = 1; i < p.n; i += 2)
            for (int64_t j = 0; j < p.param[i].n; j++) p.param[i].w[j] = 0.05f * (float)((j * 7 + k) % 11 - 5);
        model_adapter_changed(m, k);
        model_adapter_release(m, k);
    }
    bytes = info_of(1).bytes;
    file_bytes = info_of(1).rest_bytes;
    struct engine *en = open_engine(0, NULL, 0);
    for (int k = 0; k <= ADAPTERS; k++) r[k] = request_of(k ? k : ADAPTER_BASE, NEW);
    CHECK(engine_run(en, r, ADAPTERS + 1, s, NULL, NULL, &err));
    for (int k = 0; k <= ADAPTERS; k++) {
        memcpy(want[k], s[k].ids, sizeof want[k]);
        memcpy(want_logp[k], s[k].logp, sizeof want_logp[k]);
        for (int j = 0; j < k; j++) assert_memory_not_equal(want_logp[k], want_logp[j], sizeof want_logp[k]);
        sample_free(&s[k]);
    }
    engine_close(en);
    return 0;
}

static int teardown(void **state) {
    model_free(m);
    return remove_tmp_dir(state);
}

static void wake_all(void) {
    for (int i = 1; i <= ADAPTERS; i++) CHECK(model_adapter_wake(m, i, &err));
}

static int64_t submit(struct engine *en, int adapter, int tokens) {
    int64_t ticket;
    const struct request r = request_of(adapter, tokens);
    CHECK(engine_submit(en, &r, &ticket, &err));
    return ticket;
}

static void step_until_idle(struct engine *en) {
    for (bool working = true; working;) CHECK(engine_step(en, &working, &err));
}

/* The sample of an adapter, of its first tokens at least. */
static void check_sample(struct engine *en, int64_t ticket, int adapter) {
    struct engine_result r;
    assert_true(engine_poll(en, ticket, &r));
    if (r.status != ST_OK) fail_msg("%s", r.err.msg);
    assert_memory_equal(r.samples[0].ids, want[adapter], NEW * sizeof(int32_t));
    assert_memory_equal(r.samples[0].logp, want_logp[adapter], NEW * sizeof(float));
    engine_result_free(&r);
}

static void check_failed(struct engine *en, int64_t ticket, enum status st, const char *says) {
    struct engine_result r;
    assert_true(engine_poll(en, ticket, &r));
    assert_int_equal(r.status, st);
    if (!strstr(r.err.msg, says)) fail_msg("expected \"%s\" in: %s", says, r.err.msg);
    engine_result_free(&r);
}

/* Never more on the device than may be there, whoever asks in whatever order. */
static void they_take_turns(void **state) {
    (void)state;
    static const int order[] = {1, 2, 3, 4, 1, 1, 3, 0, 2, 4, 3};
    enum { N = ARRAY_LEN(order) };
    for (int way = 0; way < 4; way++) { /* in memory; in files; room for one in memory; one on the device at a time */
        int64_t ticket[N];
        struct engine *en = open_engine(way == 3 ? bytes : 2 * bytes + 100, way % 3 ? in_tmp("turns") : NULL,
                                        way == 2 ? file_bytes + 100 : 0);
        for (int i = 0; i < N; i++) ticket[i] = submit(en, order[i] ? order[i] : ADAPTER_BASE, NEW + i % 3);
        for (bool working = true; working;) {
            CHECK(engine_step(en, &working, &err));
            if (engine_stats(en).adapters_rested > 1) assert_true(count(ADAPTER_AWAKE) <= (way == 3 ? 1 : 2));
            if (way == 2) assert_true(count(ADAPTER_IN_MEMORY) <= 1);
            if (way == 1) assert_int_equal(count(ADAPTER_IN_MEMORY), 0);
            if (way % 3 == 0) assert_int_equal(count(ADAPTER_IN_FILE), 0);
        }
        for (int i = 0; i < N; i++) check_sample(en, ticket[i], order[i]);
        assert_true(engine_stats(en).adapters_woken >= 3 && engine_stats(en).adapters_rested >= 3);
        engine_close(en);
        wake_all();
    }
}

/* Those that were used last stay. */
static void who_was_used_longest_ago_goes(void **state) {
    (void)state;
    struct engine *en = open_engine(3 * bytes, in_tmp("oldest"), file_bytes);
    CHECK(engine_adapter_rest(en, 4, &err));
    for (int i = 3; i >= 1; i--) {
        (void)submit(en, i, NEW);
        step_until_idle(en);
    }
    (void)submit(en, 4, NEW); /* for which 3 goes */
    step_until_idle(en);
    assert_true(info_of(3).place == ADAPTER_IN_MEMORY && count(ADAPTER_AWAKE) == 3);
    (void)submit(en, 1, NEW);
    (void)submit(en, 3, NEW); /* for which 2 goes, and stays in memory alone */
    step_until_idle(en);
    assert_true(info_of(2).place == ADAPTER_IN_MEMORY && count(ADAPTER_AWAKE) == 3);
    CHECK(engine_adapter_rest(en, 1, &err));
    assert_true(info_of(2).place == ADAPTER_IN_FILE && info_of(1).place == ADAPTER_IN_MEMORY);
    engine_close(en);
    wake_all();
}

/* A request waits for room, with those behind it, while the only adapter there is room for is in use. */
static void who_is_used_stays(void **state) {
    (void)state;
    struct engine *en = open_engine(bytes, NULL, 0);
    bool working;
    for (int i = 2; i <= ADAPTERS; i++) CHECK(engine_adapter_rest(en, i, &err));
    const int64_t first = submit(en, 1, NEW), second = submit(en, 2, NEW), third = submit(en, 1, NEW);
    for (int i = 0; i < 3; i++) {
        CHECK(engine_step(en, &working, &err));
        assert_true(info_of(1).place == ADAPTER_AWAKE && info_of(2).place == ADAPTER_IN_MEMORY);
        assert_int_equal(engine_load(en).running, 1);
    }
    CHECK_FAILS(engine_adapter_rest(en, 1, &err), ST_INVALID, "adapter 1 is in use");
    step_until_idle(en);
    check_sample(en, first, 1);
    check_sample(en, second, 2);
    check_sample(en, third, 1);
    engine_close(en);
    wake_all();
}

/* One request fails, by name, and the others go on. */
static void what_cannot_wake_fails_alone(void **state) {
    (void)state;
    struct engine *en = open_engine(2 * bytes, in_tmp("broken"), 0);
    char name[64], *text;
    size_t n;
    CHECK(engine_adapter_rest(en, 3, &err));
    CHECK(engine_adapter_rest(en, 4, &err));
    snprintf(name, sizeof name, "broken/adapter-3.safetensors");
    const char *path = in_tmp(name);
    CHECK(fs_read(path, 1 << 22, &text, &n, &err));
    text[n - 100] ^= 4;
    CHECK(fs_write_atomic(path, text, n, &err));
    const int64_t one = submit(en, 1, NEW), bad = submit(en, 3, NEW), four = submit(en, 4, NEW);
    step_until_idle(en);
    check_sample(en, one, 1);
    check_failed(en, bad, ST_INVALID, "adapter-3.safetensors");
    check_sample(en, four, 4);
    text[n - 100] ^= 4;
    CHECK(fs_write_atomic(path, text, n, &err));
    const int64_t again = submit(en, 3, NEW);
    step_until_idle(en);
    check_sample(en, again, 3);
    engine_close(en);
    wake_all();
    free(text);

    CHECK(model_adapter_rest(m, 2, NULL, &err));
    en = open_engine(bytes - 1, NULL, 0);
    const int64_t large = submit(en, 2, NEW), base = submit(en, ADAPTER_BASE, NEW);
    step_until_idle(en);
    check_failed(en, large, ST_MEMORY, "adapter 2 takes");
    check_sample(en, base, 0);
    engine_close(en);
    wake_all();

    /* Where the one that must go cannot be written. */
    write_file(in_tmp("a_file"), "no folder");
    CHECK(model_adapter_rest(m, 2, NULL, &err));
    en = open_engine(3 * bytes, in_tmp("a_file/x"), 0);
    const int64_t blocked = submit(en, 2, NEW);
    step_until_idle(en);
    check_failed(en, blocked, ST_IO, "a_file");
    assert_int_equal(count(ADAPTER_AWAKE), 3);
    CHECK_FAILS(engine_adapter_rest(en, 1, &err), ST_IO, "a_file");
    assert_int_equal(info_of(1).place, ADAPTER_AWAKE);
    engine_close(en);
    wake_all();
}

/* A loaded one makes room, or rests at once; where that fails it is not loaded. Those that are trained stay. */
static void loading_keeps_to_the_limit(void **state) {
    (void)state;
    struct engine *en = open_engine(bytes, NULL, 0);
    int index, before = model_adapter_count(m);
    bool working;
    CHECK(model_adapter_save(m, 2, in_tmp("saved"), &err));
    CHECK(model_adapter_prepare(m, 4, &err));
    const int64_t running = submit(en, 1, NEW);
    CHECK(engine_step(en, &working, &err));
    CHECK(engine_adapter_load(en, in_tmp("saved"), &index, &err));
    assert_true(info_of(index).place == ADAPTER_IN_MEMORY && info_of(1).place == ADAPTER_AWAKE);
    assert_true(info_of(4).place == ADAPTER_AWAKE);
    CHECK_FAILS(engine_adapter_rest(en, 4, &err), ST_INVALID, "adapter 4 is prepared for training");
    const int64_t of_loaded = submit(en, index, NEW);
    step_until_idle(en);
    check_sample(en, running, 1);
    check_sample(en, of_loaded, 2);
    CHECK(engine_adapter_drop(en, index, &err));
    CHECK(engine_step(en, &working, &err));
    assert_false(model_adapter_there(m, index));
    engine_close(en);
    model_adapter_release(m, 4);
    wake_all();
    en = open_engine(bytes, in_tmp("a_file/x"), 0);
    before = model_adapter_count(m);
    CHECK_FAILS(engine_adapter_load(en, in_tmp("saved"), &index, &err), ST_IO, "a_file");
    for (int i = before; i < model_adapter_count(m); i++) assert_false(model_adapter_there(m, i));
    engine_close(en);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_take_turns),
        cmocka_unit_test(who_was_used_longest_ago_goes),
        cmocka_unit_test(who_is_used_stays),
        cmocka_unit_test(what_cannot_wake_fails_alone),
        cmocka_unit_test(loading_keeps_to_the_limit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
