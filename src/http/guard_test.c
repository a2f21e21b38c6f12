/* Keys, names, pages and targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/guard.h"

static struct digest keys[2], admins[1];

static struct guard with_keys(size_t n, size_t n_admin, bool admin) {
    keys[0] = digest_of("one", 3);
    keys[1] = digest_of("two", 3);
    admins[0] = digest_of("boss", 4);
    return (struct guard){.keys = keys, .n_keys = n, .admin_keys = admins, .n_admin_keys = n_admin, .admin = admin};
}

static void test_keys(void **state) {
    (void)state;
    const struct guard g = with_keys(2, 0, false);
    assert_int_equal(guard_key(&g, "Bearer one", NULL, false), GUARD_YES);
    assert_int_equal(guard_key(&g, "bearer  two", NULL, false), GUARD_YES);
    assert_int_equal(guard_key(&g, NULL, "two", false), GUARD_YES);
    assert_int_equal(guard_key(&g, "Bearer wrong", "one", false), GUARD_YES);
    assert_int_equal(guard_key(&g, "Bearer on", NULL, false), GUARD_WRONG_KEY);
    assert_int_equal(guard_key(&g, "Bearer onee", NULL, false), GUARD_WRONG_KEY);
    assert_int_equal(guard_key(&g, "Bearer ONE", NULL, false), GUARD_WRONG_KEY);
    assert_int_equal(guard_key(&g, "Basic one", NULL, false), GUARD_NO_KEY);
    assert_int_equal(guard_key(&g, "Bearer ", NULL, false), GUARD_NO_KEY);
    assert_int_equal(guard_key(&g, "Bearer", "", false), GUARD_NO_KEY);
    assert_int_equal(guard_key(&g, NULL, NULL, false), GUARD_NO_KEY);
    assert_int_equal(guard_key(&g, "Bearer one", NULL, true), GUARD_NOT_ADMIN);
}

static void test_no_keys(void **state) {
    (void)state;
    const struct guard g = with_keys(0, 0, false), all = with_keys(0, 0, true);
    assert_int_equal(guard_key(&g, NULL, NULL, false), GUARD_YES);
    assert_int_equal(guard_key(&g, "Bearer EMPTY", NULL, false), GUARD_YES);
    assert_int_equal(guard_key(&g, NULL, NULL, true), GUARD_NOT_ADMIN);
    assert_int_equal(guard_key(&all, NULL, NULL, true), GUARD_YES);
}

/* Who showed a key is known by it, whatever else stands beside it. */
static void test_known_keys(void **state) {
    const struct guard g = with_keys(2, 1, false), none = with_keys(0, 0, false);
    struct digest d;
    (void)state;
    assert_true(guard_known_key(&g, "Bearer one", NULL, &d));
    assert_true(digest_equal(&d, &keys[0]));
    assert_true(guard_known_key(&g, "Bearer wrong", "two", &d));
    assert_true(digest_equal(&d, &keys[1]));
    assert_true(guard_known_key(&g, NULL, "boss", &d));
    assert_true(digest_equal(&d, &admins[0]));
    assert_false(guard_known_key(&g, "Bearer wrong", NULL, &d));
    assert_false(guard_known_key(&none, "Bearer one", NULL, &d));
}

static void test_names_of_keys(void **state) {
    (void)state;
    char name[KEY_NAME_SIZE];
    const char *key;
    struct err e;
    assert_int_equal(guard_split_key("tml-1", name, &key, &e), ST_OK);
    assert_string_equal(name, "");
    assert_string_equal(key, "tml-1");
    assert_int_equal(guard_split_key("ann.b  tml-1", name, &key, &e), ST_OK);
    assert_string_equal(name, "ann.b");
    assert_string_equal(key, "tml-1");
    static const char *const wrong[] = {"", "ann ", " tml-1", "a\"b tml-1",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa tml-1"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_int_equal(guard_split_key(wrong[i], name, &key, &e), ST_CONFIG);
}

static void test_admin_keys(void **state) {
    (void)state;
    const struct guard both = with_keys(1, 1, false), alone = with_keys(0, 1, false), all = with_keys(1, 0, true);
    assert_int_equal(guard_key(&both, "Bearer boss", NULL, true), GUARD_YES);
    assert_int_equal(guard_key(&both, "Bearer boss", NULL, false), GUARD_YES);
    assert_int_equal(guard_key(&both, "Bearer one", NULL, true), GUARD_NOT_ADMIN);
    assert_int_equal(guard_key(&both, NULL, NULL, true), GUARD_NO_KEY);
    assert_int_equal(guard_key(&alone, NULL, NULL, false), GUARD_YES);
    assert_int_equal(guard_key(&alone, NULL, NULL, true), GUARD_NOT_ADMIN);
    assert_int_equal(guard_key(&alone, NULL, "boss", true), GUARD_YES);
    assert_int_equal(guard_key(&all, "Bearer one", NULL, true), GUARD_YES);
    assert_int_equal(guard_key(&all, "Bearer no", NULL, true), GUARD_WRONG_KEY);
}

static void test_hosts(void **state) {
    (void)state;
    char *names[] = {"box.example"};
    const struct guard g = {.check_host = true, .hosts = names, .n_hosts = 1}, off = {.check_host = false};
    static const char *const good[] = {"localhost", "LocalHost:8000", "127.0.0.1:1",
                                       "[::1]",     "[::1]:8000",     "box.example:80"};
    static const char *const bad[] = {"evil.example",    "localhost.evil",  "127.0.0.1.evil:80", "[::1",
                                      "[::2]",           "localhost:80:80", "localhost:8x",      "",
                                      "box.example.evil"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) assert_true(guard_host(&g, good[i]));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) assert_false(guard_host(&g, bad[i]));
    assert_false(guard_host(&g, NULL));
    assert_true(guard_host(&off, "evil.example"));
}

static void test_origins(void **state) {
    (void)state;
    char *pages[] = {"https://app.example"};
    const struct guard g = {.origins = pages, .n_origins = 1};
    assert_true(guard_origin(&g, NULL, "localhost:8000"));
    assert_true(guard_origin(&g, "https://app.example", "localhost:8000"));
    assert_true(guard_origin(&g, "http://localhost:8000", "localhost:8000"));
    assert_false(guard_origin(&g, "http://localhost:8001", "localhost:8000"));
    assert_false(guard_origin(&g, "https://app.example.evil", "localhost:8000"));
    assert_false(guard_origin(&g, "null", "localhost:8000"));
    assert_true(guard_origin_listed(&g, "https://app.example"));
    assert_false(guard_origin_listed(&g, "http://localhost:8000"));
    assert_false(guard_origin_listed(&g, NULL));
}

static void test_targets(void **state) {
    (void)state;
    static const char *const good[] = {
        "/", "/v1/models", "/v1/models/Qwen%2FQwen3-8B", "/a.b/..c/d..", "/x?y=%00&z=..", "/%e4%bd%a0", "//", "/..."};
    static const char *const bad[] = {"",      "v1",     "http://x/", "*",       "/a b", "/a\tb", "/\x80",
                                      "/%",    "/%4",    "/%zz",      "/%00",    "/%0a", "/..",   "/../x",
                                      "/x/..", "/x/./y", "/%2e%2e",   "/x/%2E/", "/.",   "/%7f"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) assert_true(guard_target(good[i]));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) assert_false(guard_target(bad[i]));
    char *path = guard_path("/v1/models/Qwen%2fQ%33?x=%41");
    assert_string_equal(path, "/v1/models/Qwen/Q3");
    free(path);
}

static void test_request_ids(void **state) {
    (void)state;
    char most[130];
    memset(most, 'a', sizeof most);
    most[128] = 0;
    assert_true(guard_request_id(most));
    most[128] = 'a';
    most[129] = 0;
    assert_false(guard_request_id(most));
    assert_true(guard_request_id("req-1:2/3.4_5+6=~7"));
    assert_false(guard_request_id(""));
    assert_false(guard_request_id("a b"));
    assert_false(guard_request_id("a\"b"));
    assert_false(guard_request_id("\xc3\xa4"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),       cmocka_unit_test(test_known_keys),    cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_admin_keys), cmocka_unit_test(test_names_of_keys), cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_origins),    cmocka_unit_test(test_targets),       cmocka_unit_test(test_request_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
