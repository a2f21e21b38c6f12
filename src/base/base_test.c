/* Tests of the ground floor: arenas, strings, errors, random numbers, hashing, the pool, files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/dotenv.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/str.h"

static void arena_grows_and_resets(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    for (int i = 0; i < 1000; i++) {
        char *p = arena_alloc(&a, (size_t)i);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (int j = 0; j < i; j++) assert_int_equal(p[j], 0);
        memset(p, 0xff, (size_t)i);
    }
    assert_string_equal(arena_printf(&a, "%d-%s", 7, "x"), "7-x");
    arena_reset(&a);
    size_t held = arena_bytes(&a);
    for (int i = 0; i < 100; i++) assert_int_equal(*(char *)arena_alloc(&a, 10), 0);
    assert_int_equal(arena_bytes(&a), held);
    arena_free(&a);
}

static void str_builds(void **state) {
    (void)state;
    struct str s = STR_INIT;
    assert_string_equal(str_c(&s), "");
    for (int i = 0; i < 300; i++) str_addf(&s, "%d,", i);
    assert_true(str_has_prefix(s.p, "0,1,2,"));
    assert_true(str_has_suffix(s.p, "298,299,"));
    char *p = str_steal(&s);
    assert_int_equal(strlen(p), 10 * 2 + 90 * 3 + 200 * 4);
    free(p);
    int64_t i;
    double d;
    assert_true(parse_i64("-42", &i) && i == -42);
    assert_false(parse_i64("42x", &i) || parse_i64("", &i) || parse_i64(" 1", &i) ||
                 parse_i64("99999999999999999999", &i));
    assert_true(parse_f64("1e-4", &d) && d == 1e-4);
    assert_false(parse_f64("fast", &d) || parse_f64("", &d) || parse_f64("1e999", &d));
}

static void names_in_lists(void **state) {
    (void)state;
    assert_int_equal(str_index_in("one|two|three", "one", '|'), 0);
    assert_int_equal(str_index_in("one|two|three", "three", '|'), 2);
    assert_int_equal(str_index_in("|one|two", "two", '|'), 1);
    assert_int_equal(str_index_in("one,two", "two", ','), 1);
    assert_int_equal(str_index_in("one|two", "tw", '|'), -1);
    assert_int_equal(str_index_in("one|two", "twoo", '|'), -1);
    assert_int_equal(str_index_in("one|two", "one|two", '|'), -1);
    assert_int_equal(str_index_in("", "one", '|'), -1);
}

static void str_edits_and_near_names(void **state) {
    (void)state;
    assert_int_equal(str_edits("train", "train"), 0);
    assert_int_equal(str_edits("trian", "train"), 1); /* neighbours swapped */
    assert_int_equal(str_edits("kitten", "sitting"), 3);
    assert_int_equal(str_edits("", "abc"), 3);
    static const char *const known[] = {"eval", "train", "generate"};
    static const struct {
        const char *said, *meant;
    } of[] = {{"evl", "eval"}, {"trian", "train"}, {"genrate", "generate"}, {"sft", NULL}, {"tr", NULL}, {"", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(of); i++) {
        const char *near = NULL;
        size_t limit = str_near_limit(of[i].said);
        for (size_t k = 0; k < ARRAY_LEN(known); k++)
            if (str_nearer(of[i].said, known[k], &limit)) near = known[k];
        assert_true(near == of[i].meant);
    }
}

static void err_context(void **state) {
    (void)state;
    struct err e;
    assert_int_equal(FAIL(&e, ST_PARSE, "bad %d", 3), ST_PARSE);
    assert_int_equal(err_note(&e, "file %s", "a.json"), ST_PARSE);
    assert_string_equal(e.msg, "file a.json: bad 3");
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_note(&e, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_int_equal(status_exit_code(ST_CONFIG), 2);
}

/* Known-answer vectors of Philox4x32-10 from the Random123 distribution. */
static void rng_known_answers(void **state) {
    (void)state;
    uint32_t w[4];
    rng_block(0, 0, 0, w);
    assert_true(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8);
    rng_block(~0ull, ~0ull, ~0ull, w);
    assert_true(w[0] == 0x408f276d && w[1] == 0x41c83b0e && w[2] == 0xa20bc7c6 && w[3] == 0x6d5451fd);
    rng_block(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull, w);
    assert_true(w[0] == 0xd16cfe09 && w[1] == 0x94fdcceb && w[2] == 0x5001e420 && w[3] == 0x24126ea1);
    struct rng r = rng_make(1, 2);
    double sum = 0, sq = 0;
    for (int i = 0; i < 20000; i++) {
        double x = rng_normal(&r);
        sum += x;
        sq += x * x;
    }
    assert_true(sum / 20000 < 0.03 && sum / 20000 > -0.03 && sq / 20000 > 0.95 && sq / 20000 < 1.05);
    int seen[5] = {0}, items[5] = {0, 1, 2, 3, 4};
    for (int i = 0; i < 1000; i++) seen[rng_below(&r, 5)]++;
    for (int i = 0; i < 5; i++) assert_in_range(seen[i], 140, 260);
    rng_shuffle(&r, items, 5, sizeof *items);
    int total = 0;
    for (int i = 0; i < 5; i++) total += 1 << items[i];
    assert_int_equal(total, 31);
}

static void hash_differs(void **state) {
    (void)state;
    assert_true(hash_str("a") != hash_str("b"));
}

static void digests(void **state) {
    (void)state;
    static char million[1000000];
    memset(million, 'a', sizeof million);
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    /* FIPS 180-4 */
    assert_string_equal(digest_of("", 0).hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(digest_of("abc", 3).hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_string_equal(digest_of(two, strlen(two)).hex,
                        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_string_equal(digest_of(million, sizeof million).hex,
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    const struct digest a = digest_of("a", 1), b = digest_of("b", 1), again = digest_of("a", 1);
    assert_true(digest_equal(&a, &again) && !digest_equal(&a, &b));
    assert_true(digest_matches(a.hex, "a", 1) && !digest_matches(a.hex, "b", 1));
    assert_true(digest_readable(a.hex) && !digest_readable(a.hex + 1) && !digest_readable("") && !digest_readable("x"));
}

/* Two texts of one XXH3-128: in the first two stripes the upper halves of a number equal those of its secret, which
 * makes its product 0, and what is left of the two numbers is their sum. */
static void colliding_texts_have_digests_of_their_own(void **state) {
    (void)state;
    unsigned char a[512], b[512];
    memset(a, 'x', sizeof a);
    memcpy(a + 4, "\x23\xa4\x4b\xbe", 4);
    memcpy(a + 68, "\xf7\x21\xad\x1c", 4);
    memcpy(b, a, sizeof b);
    b[0]++;
    b[64]--;
    static const char old[] = "be8d77e6e75e298121992b9006d1f819";
    assert_true(digest_readable(old) && digest_matches(old, a, sizeof a) && digest_matches(old, b, sizeof b));
    assert_false(digest_matches(old, "", 0));
    assert_true(digest_matches("99aa06d3014798d86001c324468d497f", "", 0));
    assert_string_not_equal(digest_of(a, sizeof a).hex, digest_of(b, sizeof b).hex);
}

static void keyed_numbers(void **state) {
    (void)state;
    /* HMAC-SHA-256 by Python's hmac: key 08 07 .. 01, text "nonce\0", 07 00 .. 00, "abc". */
    const uint64_t key = 0x0102030405060708, x = hmac_u64(key, "nonce", 7, "abc", 3);
    assert_true(x == 0xa2de8b4db7d861aa);
    assert_true(hmac_u64(key + 1, "nonce", 7, "abc", 3) != x && hmac_u64(key, "nonces", 7, "abc", 3) != x);
    assert_true(hmac_u64(key, "nonce", 8, "abc", 3) != x && hmac_u64(key, "nonce", 7, "abd", 3) != x);
    char large[5000]; /* the texts of answers */
    memset(large, 'y', sizeof large);
    const uint64_t y = hmac_u64(key, "run", 1, large, sizeof large);
    large[4999]++;
    assert_true(hmac_u64(key, "run", 1, large, sizeof large) != y);
}

static void count_range(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    int *hits = ctx;
    for (int64_t i = begin; i < end; i++) hits[i]++;
}

static void pool_covers_each_item_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *p = pool_create(threads);
        for (int64_t n = 0; n < 70; n += 3)
            for (int64_t grain = 1; grain < 20; grain += 6) {
                int hits[70] = {0};
                pool_for(p, n, grain, count_range, hits);
                for (int i = 0; i < 70; i++) assert_int_equal(hits[i], i < n);
            }
        /* Threads without a processor of their own wait for a time slice at each call. */
        const int rounds = threads <= pool_cpu_count() ? 20000 : 2000;
        int many[64] = {0};
        for (int i = 0; i < rounds; i++) pool_for(p, 64, 1, count_range, many);
        for (int i = 0; i < 64; i++) assert_int_equal(many[i], rounds);
        pool_destroy(p);
    }
}

static void files(void **state) {
    (void)state;
    struct err e = {0};
    char dir[] = "/tmp/kernelrl-fs-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    char *joined = fs_join("a/b", "c.txt");
    assert_string_equal(joined, "a/b/c.txt");
    free(joined);
    snprintf(path, sizeof path, "%s/a/b/c", dir);
    assert_int_equal(fs_mkdirs(path, &e), ST_OK);
    assert_int_equal(fs_mkdirs(path, &e), ST_OK);
    snprintf(path, sizeof path, "%s/a/f", dir);
    assert_int_equal(fs_write_atomic(path, "hello", 5, &e), ST_OK);
    char *text;
    size_t n;
    assert_int_equal(fs_read(path, 100, &text, &n, &e), ST_OK);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    assert_int_equal(fs_read(path, 4, &text, &n, &e), ST_INVALID);
    assert_int_equal(fs_read(dir, 4, &text, &n, &e), ST_IO);
    char **names;
    size_t count;
    snprintf(path, sizeof path, "%s/a", dir);
    assert_int_equal(fs_list(path, &names, &count, &e), ST_OK);
    assert_int_equal(count, 2); /* no temporary file is left */
    assert_string_equal(names[0], "b");
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
    snprintf(path, sizeof path, "%s/a/f/g", dir);
    assert_int_equal(fs_mkdirs(path, &e), ST_IO);
    assert_int_equal(fs_write_atomic("/nonexistent/x", "", 0, &e), ST_IO);
    assert_int_equal(fs_remove(dir, &e), ST_OK);
    assert_false(fs_is_dir(dir));
}

/* .env: what is set stays, quotes and comments go, a bad line is named without its value. */
static void doubles_ascend(void **state) {
    (void)state;
    double v[] = {3, -1, 0.5, -INFINITY, 0.5, 2};
    const double want[] = {-INFINITY, -1, 0.5, 0.5, 2, 3};
    qsort(v, ARRAY_LEN(v), sizeof *v, ascending_f64);
    assert_memory_equal(v, want, sizeof v);
}

static void dotenv(void **state) {
    (void)state;
    char path[] = "/tmp/kernelrl_env_XXXXXX";
    struct err e;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "# comment\n\nKRL_A=1\nexport KRL_B=\"two words\" # why\n  KRL_C='#3'\nKRL_D=x # y\n"
                               "KRL_SET=changed\nKRL_E=\nKRL_F=a=b#c";
    assert_true(fs_write_all(fd, text, sizeof text - 1));
    close(fd);
    setenv("KRL_SET", "kept", 1);
    assert_int_equal(dotenv_load(path, &e), ST_OK);
    static const char *const want[][2] = {{"KRL_A", "1"},    {"KRL_B", "two words"}, {"KRL_C", "#3"},
                                          {"KRL_D", "x"},    {"KRL_SET", "kept"},    {"KRL_E", ""},
                                          {"KRL_F", "a=b#c"}};
    for (size_t i = 0; i < ARRAY_LEN(want); i++) assert_string_equal(getenv(want[i][0]), want[i][1]);
    static const char *const bad[] = {"secret\n", "1X=secret\n", "X=\"secret\n", "X='a' secret\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(fs_write_atomic(path, bad[i], strlen(bad[i]), &e), ST_OK);
        assert_int_equal(dotenv_load(path, &e), ST_PARSE);
        assert_non_null(strstr(e.msg, ":1: expected NAME=VALUE"));
        assert_null(strstr(e.msg, "secret"));
    }
    unlink(path);
    assert_int_equal(dotenv_load(path, &e), ST_OK); /* none is fine */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_ascend),
        cmocka_unit_test(dotenv),
        cmocka_unit_test(arena_grows_and_resets),
        cmocka_unit_test(str_builds),
        cmocka_unit_test(str_edits_and_near_names),
        cmocka_unit_test(names_in_lists),
        cmocka_unit_test(err_context),
        cmocka_unit_test(rng_known_answers),
        cmocka_unit_test(hash_differs),
        cmocka_unit_test(digests),
        cmocka_unit_test(colliding_texts_have_digests_of_their_own),
        cmocka_unit_test(keyed_numbers),
        cmocka_unit_test(pool_covers_each_item_once),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
