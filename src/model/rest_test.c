/* Adapters at rest: they come back bit for bit from host memory and from files, among others that work on; what is
 * damaged, missing or too large is refused by name, and nothing is lost. */
#include "model/rest.h"

#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rl/test_util.h"

static struct model *m;
enum { ADAPTERS = 4, LEN = 12 };
static const struct adapter_shape shape[ADAPTERS] = {{3, 6, ADAPTER_LAYERS, 0},
                                                     {5, 7, ADAPTER_LAYERS | ADAPTER_HEAD, 0},
                                                     {2, 4, ADAPTER_HEAD, 0},
                                                     {4, 8, ADAPTER_MLP, 0}};

static void fill(int adapter, uint64_t seed) {
    CHECK(model_adapter_prepare(m, adapter, &err));
    const struct train_set s = model_train_set(m, adapter);
    for (int i = 0; i < s.n; i++) {
        struct rng r = rng_make(seed, (uint64_t)i);
        for (int64_t k = 0; k < s.param[i].n; k++) s.param[i].w[k] = 0.3f * (float)rng_normal(&r);
    }
    model_adapter_changed(m, adapter);
    model_adapter_release(m, adapter);
}

/* The log-probabilities of a text through an adapter. */
static void logp_of(int adapter, float logp[LEN]) {
    int32_t ids[LEN], rows[LEN];
    for (int i = 0; i < LEN; i++) ids[i] = (i * 31 + 7) % TINY_V, rows[i] = i;
    const struct segment seg = {0, LEN, -1, adapter};
    const struct train_batch b = {ids, LEN, &seg, 1, rows, ids, LEN, true};
    CHECK(model_forward(m, &b, logp, NULL, NULL, &err));
}

static enum adapter_place place_of(int adapter) {
    struct adapter_info a;
    assert_true(model_adapter_info(m, adapter, &a));
    return a.place;
}

static int setup(void **state) {
    (void)make_tmp_dir(state);
    m = tiny_model(3, false);
    CHECK(model_train_prepare(m, TRAIN_NOTHING, &err));
    for (int k = 0; k < ADAPTERS; k++) {
        int index;
        CHECK(model_adapter_create(m, &shape[k], (uint64_t)k, &index, &err));
        assert_int_equal(index, k + 1);
        fill(index, (uint64_t)k);
    }
    return 0;
}

static int teardown(void **state) {
    model_free(m);
    return remove_tmp_dir(state);
}

/* The first bytes of a PEFT folder's weights: those of the adapter. */
static char *saved(int adapter) {
    CHECK(model_adapter_save(m, adapter, in_tmp("saved"), &err));
    return read_file(in_tmp("saved/adapter_model.safetensors"));
}

static void they_come_back(void **state) {
    (void)state;
    float want[ADAPTERS][LEN], got[LEN];
    for (int k = 0; k < ADAPTERS; k++) logp_of(k + 1, want[k]);
    for (int way = 0; way < 3; way++) /* in memory, in a file, from the one to the other */
        for (int k = 0; k < ADAPTERS; k++) {
            char name[32];
            snprintf(name, sizeof name, "rest-%d", k);
            const char *path = in_tmp(name);
            const int other = (k + 1) % ADAPTERS;
            CHECK(model_adapter_rest(m, k + 1, way == 1 ? path : NULL, &err));
            if (way != 1) {
                assert_int_equal(place_of(k + 1), ADAPTER_IN_MEMORY);
                CHECK(model_adapter_rest(m, k + 1, way ? path : NULL, &err)); /* once more is fine in memory */
            }
            if (way) {
                assert_int_equal(place_of(k + 1), ADAPTER_IN_FILE);
                assert_true(fs_is_file(path));
                CHECK_FAILS(model_adapter_rest(m, k + 1, NULL, &err), ST_INVALID, name);
            }
            logp_of(other + 1, got);
            assert_memory_equal(got, want[other], sizeof got);
            CHECK(model_adapter_wake(m, k + 1, &err));
            CHECK(model_adapter_wake(m, k + 1, &err));
            assert_int_equal(place_of(k + 1), ADAPTER_AWAKE);
            assert_false(fs_is_file(path));
            logp_of(k + 1, got);
            assert_memory_equal(got, want[k], sizeof got);
        }
}

/* Weights that are no numbers, too. */
static void not_a_bit_is_lost(void **state) {
    (void)state;
    static const uint32_t odd[] = {0x7fc01234, 0xff800001, 0x00000001, 0x80000000, 0x7f800000};
    CHECK(model_adapter_prepare(m, 1, &err));
    struct train_set s = model_train_set(m, 1);
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) memcpy(s.param[1].w + i, odd + i, sizeof odd[i]);
    CHECK_FAILS(model_adapter_rest(m, 1, NULL, &err), ST_INVALID, "adapter 1 is prepared for training");
    model_adapter_release(m, 1);
    for (int way = 0; way < 2; way++) {
        CHECK(model_adapter_rest(m, 1, way ? in_tmp("odd") : NULL, &err));
        CHECK(model_adapter_wake(m, 1, &err));
        CHECK(model_adapter_prepare(m, 1, &err));
        s = model_train_set(m, 1);
        assert_memory_equal(s.param[1].w, odd, sizeof odd);
        model_adapter_release(m, 1);
    }
    fill(1, 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t __sanitizer_get_current_allocated_bytes(void);
static size_t heap_bytes(void) { return __sanitizer_get_current_allocated_bytes(); }
#else
static size_t heap_bytes(void) { return mallinfo2().uordblks; }
#endif

/* A server has thousands of adapters in files: no lists of matrices and no names are kept of them. */
static void one_in_a_file_takes_little_memory(void **state) {
    (void)state;
    enum { MANY = 64, EACH = 1500 };
    int index[MANY];
    char name[32];
    const size_t before = heap_bytes();
    for (int i = 0; i < MANY; i++) {
        CHECK(model_adapter_copy(m, 2, &index[i], &err));
        snprintf(name, sizeof name, "many-%d", i);
        CHECK(model_adapter_rest(m, index[i], in_tmp(name), &err));
    }
    const size_t after = heap_bytes();
    for (int i = 0; i < MANY; i++) model_adapter_drop(m, index[i]);
    if (after - before > (size_t)MANY * EACH)
        fail_msg("%zu bytes for each, expected at most %d", (after - before) / MANY, EACH);
}

static void who_rests_is_refused(void **state) {
    (void)state;
    float logp[LEN] = {0};
    int32_t ids[LEN] = {0}, rows[LEN] = {0};
    int index, n = 3;
    struct kv_cache *kv;
    struct segment seg = {0, LEN, -1, 2};
    const struct train_batch b = {ids, LEN, &seg, 1, rows, ids, LEN, true};
    CHECK(kv_create(m, 1, 20, 0, &kv, &err));
    CHECK(model_adapter_rest(m, 2, NULL, &err));
    CHECK_FAILS(model_forward(m, &b, logp, NULL, NULL, &err), ST_INVALID, "segment 0: adapter 2 is at rest");
    kv_set_adapter(kv, 0, 2);
    float *logits = xmalloc(TINY_V * sizeof *logits);
    CHECK_FAILS(model_step(m, kv, 1, &(int){0}, &n, ids, logits, &err), ST_INVALID, "sequence 0: adapter 2 is at rest");
    CHECK_FAILS(model_adapter_prepare(m, 2, &err), ST_INVALID, "adapter 2 is at rest");
    CHECK_FAILS(model_adapter_copy(m, 2, &index, &err), ST_INVALID, "adapter 2 is at rest");
    CHECK_FAILS(model_adapter_save(m, 2, in_tmp("x"), &err), ST_INVALID, "adapter 2 is at rest");
    CHECK_FAILS(model_adapter_rest(m, 77, NULL, &err), ST_INVALID, "no adapter 77");
    CHECK_FAILS(model_adapter_wake(m, 77, &err), ST_INVALID, "no adapter 77");
    CHECK_FAILS(model_adapter_rest(m, ADAPTER_OWN, NULL, &err), ST_INVALID, "no adapter 0");
    assert_true(model_adapter_there(m, 2));
    CHECK(model_adapter_wake(m, 2, &err));
    CHECK(model_step(m, kv, 1, &(int){0}, &n, ids, logits, &err));
    free(logits);
    kv_free(kv);
}

/* What a cache has of an adapter is found again when it wakes. */
static void caches_outlast_a_rest(void **state) {
    (void)state;
    struct kv_cache *kv;
    int32_t ids[KV_BLOCK + 1] = {0};
    int seq = 0, n = KV_BLOCK;
    float *logits = xmalloc(TINY_V * sizeof *logits);
    CHECK(kv_create(m, 1, 100, 0, &kv, &err));
    for (int i = 0; i < KV_BLOCK; i++) ids[i] = i % TINY_V;
    kv_set_adapter(kv, seq, 1);
    CHECK(model_step(m, kv, 1, &seq, &n, ids, logits, &err));
    CHECK(model_adapter_rest(m, 1, in_tmp("cached"), &err));
    CHECK(model_adapter_wake(m, 1, &err));
    kv_reset(kv, seq);
    kv_set_adapter(kv, seq, 1);
    assert_int_equal(kv_match(kv, seq, ids, KV_BLOCK + 1), KV_BLOCK);
    free(logits);
    kv_free(kv);
}

/* Any byte of the file, its end, its absence, and another one in its place: the adapter stays at rest, and comes back
 * when the file is there again. */
static void damaged_files_are_refused(void **state) {
    (void)state;
    const char *path = in_tmp("damaged"), *other = in_tmp("other");
    float want[LEN], got[LEN];
    char *text;
    size_t n;
    logp_of(3, want);
    CHECK(model_adapter_rest(m, 3, path, &err));
    CHECK_FAILS(model_adapter_rest(m, 4, path, &err), ST_INVALID, "damaged");
    assert_int_equal(place_of(4), ADAPTER_AWAKE);
    CHECK(fs_read(path, 1 << 20, &text, &n, &err));
    for (size_t at = 0; at < n; at += at < 200 ? 1 : n / 97) {
        const enum status before = ST_OK;
        text[at] ^= 1;
        CHECK(fs_write_atomic(path, text, n, &err));
        err = (struct err){0};
        const enum status st = model_adapter_wake(m, 3, &err);
        text[at] ^= 1;
        if (st == before) { /* a byte that says nothing, as in the header's other metadata */
            logp_of(3, got);
            assert_memory_equal(got, want, sizeof got);
            CHECK(model_adapter_rest(m, 3, path, &err));
            continue;
        }
        if (!strstr(err.msg, "damaged")) fail_msg("byte %zu: no file in \"%s\"", at, err.msg);
        assert_int_equal(place_of(3), ADAPTER_IN_FILE);
    }
    CHECK(fs_write_atomic(path, text, n / 2, &err));
    CHECK_FAILS(model_adapter_wake(m, 3, &err), ST_PARSE, "damaged");
    CHECK(fs_remove(path, &err));
    CHECK_FAILS(model_adapter_wake(m, 3, &err), ST_IO, "damaged");
    /* The file of an adapter of the same shape. */
    int twin;
    CHECK(model_adapter_create(m, &shape[2], 99, &twin, &err));
    CHECK(model_adapter_rest(m, twin, other, &err));
    char *of_twin;
    size_t n_twin;
    CHECK(fs_read(other, 1 << 20, &of_twin, &n_twin, &err));
    CHECK(fs_write_atomic(path, of_twin, n_twin, &err));
    CHECK_FAILS(model_adapter_wake(m, 3, &err), ST_INVALID, "or another one");
    CHECK(fs_write_atomic(path, text, n, &err));
    CHECK(model_adapter_wake(m, 3, &err));
    logp_of(3, got);
    assert_memory_equal(got, want, sizeof got);
    model_adapter_drop(m, twin); /* its file goes with it */
    assert_false(fs_is_file(other));
    free(of_twin);
    free(text);
}

/* A disk that is full while an adapter goes to rest: it is awake, or in host memory, as before. */
static void a_full_disk_loses_nothing(void **state) {
    (void)state;
    const char *path = in_tmp("full");
    float want[LEN], got[LEN];
    struct rlimit before, small;
    logp_of(2, want);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 2000;
    signal(SIGXFSZ, SIG_IGN);
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        if (in_memory) CHECK(model_adapter_rest(m, 2, NULL, &err));
        setrlimit(RLIMIT_FSIZE, &small);
        err = (struct err){0};
        const enum status st = model_adapter_rest(m, 2, path, &err);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(st, ST_IO);
        assert_non_null(strstr(err.msg, path));
        assert_false(fs_is_file(path));
        assert_int_equal(place_of(2), in_memory ? ADAPTER_IN_MEMORY : ADAPTER_AWAKE);
        CHECK(model_adapter_wake(m, 2, &err));
        logp_of(2, got);
        assert_memory_equal(got, want, sizeof got);
    }
    CHECK_FAILS(model_adapter_rest(m, 2, in_tmp("no/such/folder"), &err), ST_IO, "no/such/folder");
    assert_int_equal(place_of(2), ADAPTER_AWAKE);
}

static void *no_alloc(struct backend *be, size_t bytes) {
    (void)be, (void)bytes;
    return NULL;
}
static int64_t little(struct backend *be) {
    (void)be;
    return 1000;
}

static void short_memory_loses_nothing(void **state) {
    (void)state;
    struct backend *be = test_backend(), whole = *be;
    float want[LEN], got[LEN];
    char *before = saved(4), *after;
    logp_of(4, want);
    for (int way = 0; way < 2; way++) {
        CHECK(model_adapter_rest(m, 4, way ? in_tmp("short") : NULL, &err));
        be->mem_alloc = no_alloc;
        CHECK_FAILS(model_adapter_wake(m, 4, &err), ST_MEMORY, "adapter 4: the LoRA weights need");
        be->mem_alloc = whole.mem_alloc;
        be->mem_available = little;
        CHECK_FAILS(model_adapter_wake(m, 4, &err), ST_MEMORY, "adapter 4 needs");
        *be = whole;
        assert_int_equal(place_of(4), way ? ADAPTER_IN_FILE : ADAPTER_IN_MEMORY);
        CHECK(model_adapter_wake(m, 4, &err));
        logp_of(4, got);
        assert_memory_equal(got, want, sizeof got);
    }
    after = saved(4);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_come_back),
        cmocka_unit_test(not_a_bit_is_lost),
        cmocka_unit_test(one_in_a_file_takes_little_memory),
        cmocka_unit_test(who_rests_is_refused),
        cmocka_unit_test(caches_outlast_a_rest),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(short_memory_loses_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
