#include "io/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct err e;

static void appends(void **state) {
    (void)state;
    CLEANUP_STR struct str s = STR_INIT;
    js_begin(&s, NULL, '{');
    js_put_i64(&s, "step", INT64_MIN);
    js_begin(&s, "ids", '[');
    js_put_i64(&s, NULL, 7);
    js_put_i64(&s, NULL, 8);
    js_begin(&s, NULL, '{');
    js_end(&s, '}');
    js_end(&s, ']');
    js_put_f64(&s, "nan", NAN);
    js_put_bool(&s, "ok", true);
    js_put_str(&s, "none", NULL);
    js_put_str(&s, "ends in comma,", ":");
    js_put_f64(&s, "f", 0.1);
    js_end(&s, '}');
    assert_string_equal(str_c(&s), "{\"step\":-9223372036854775808,\"ids\":[7,8,{}],\"nan\":null,\"ok\":true,"
                                   "\"none\":null,\"ends in comma,\":\":\",\"f\":0.1}");
    str_addc(&s, '\n');
    js_put_bool(&s, NULL, false); /* a new line starts without a comma */
    assert_non_null(strstr(str_c(&s), "}\nfalse"));
}

/* Whatever goes in comes out of a real parser again; bytes that are not UTF-8 as U+FFFD. */
static void strings_round_trip(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"plain", 5, "plain"},
        {"q\"b\\/\b\f\n\r\t\x01\x7f", 12, "q\"b\\/\b\f\n\r\t\x01\x7f"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 11, "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"a\xff"
         "b",
         3,
         "a\xef\xbf\xbd"
         "b"},
        {"\xc0\xaf", 2, "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x82", 2, "\xef\xbf\xbd\xef\xbf\xbd"}, /* cut short */
        {"", 0, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP_STR struct str s = STR_INIT;
        js_put_strn(&s, NULL, cases[i].in, cases[i].n);
        CLEANUP_JSON json_t *j = NULL;
        assert_int_equal(js_parse(s.p, s.len, "t", &j, &e), ST_OK);
        assert_string_equal(json_string_value(j), cases[i].out);
    }
    CLEANUP_STR struct str s = STR_INIT;
    js_put_strn(&s, NULL, "a\0b", 3);
    assert_string_equal(str_c(&s), "\"a\\u0000b\"");
    CLEANUP_JSON json_t *j = NULL;
    assert_int_equal(js_parse(s.p, s.len, "t", &j, &e), ST_OK);
    assert_int_equal(json_string_length(j), 3);
}

static void numbers_round_trip(void **state) {
    (void)state;
    static const double v[] = {0, -0.0, 1, 1e-5, 0.1, 1.0 / 3, 3.14159265358979, 5e-324, 1.7976931348623157e308, 1e22};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        CLEANUP_STR struct str s = STR_INIT;
        js_put_f64(&s, NULL, v[i]);
        double back = strtod(str_c(&s), NULL);
        assert_memory_equal(&back, &v[i], sizeof back);
    }
    CLEANUP_STR struct str s = STR_INIT;
    js_put_f64(&s, NULL, 1e-5);
    assert_string_equal(str_c(&s), "1e-05");
}

static void parse_errors(void **state) {
    (void)state;
    json_t *j;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"a\": 1,\n \"b\": }", "f.json:2:"},
        {"{\"a\": 1, \"a\": 2}", "f.json:1:"},
        {"", "f.json:1:0: "},
        {"{} x", "f.json:1:"},
        {"[1, 2", "f.json:1:"},
        {"\"\xff\"", "f.json:1:"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(js_parse(cases[i].text, strlen(cases[i].text), "f.json", &j, &e), ST_PARSE);
        assert_null(j);
        if (!str_has_prefix(e.msg, cases[i].message)) fail_msg("case %zu: %s", i, e.msg);
    }
    assert_int_equal(js_load("/nonexistent.json", 100, &j, &e), ST_IO);
}

static void getters(void **state) {
    (void)state;
    static const char text[] = "{\"i\": 3, \"f\": 2.5, \"b\": true, \"s\": \"x\", \"n\": null, \"a\": [1], \"o\": {}}";
    CLEANUP_JSON json_t *o = NULL;
    assert_int_equal(js_parse(text, strlen(text), "t", &o, &e), ST_OK);
    int64_t i = 0;
    double f = 0;
    bool b = false;
    const char *s = NULL;
    json_t *j;
    assert_int_equal(js_get_i64(o, "t", "i", &i, &e), ST_OK);
    assert_int_equal(i, 3);
    assert_int_equal(js_get_f64(o, "t", "f", &f, &e), ST_OK);
    assert_true(f == 2.5);
    assert_int_equal(js_get_f64(o, "t", "i", &f, &e), ST_OK);
    assert_true(f == 3);
    assert_int_equal(js_get_bool(o, "t", "b", &b, &e), ST_OK);
    assert_true(b);
    assert_int_equal(js_get_str(o, "t", "s", &s, &e), ST_OK);
    assert_string_equal(s, "x");
    assert_int_equal(js_get_array(o, "t", "a", &j, &e), ST_OK);
    assert_int_equal(js_get_object(o, "t", "o", &j, &e), ST_OK);

    assert_int_equal(js_get_i64(o, "t.json", "f", &i, &e), ST_PARSE);
    assert_string_equal(e.msg, "t.json: f: expected a whole number, got 2.5");
    assert_int_equal(js_get_str(o, "t.json", "missing", &s, &e), ST_PARSE);
    assert_string_equal(e.msg, "t.json: missing: expected a string, got nothing");
    assert_int_equal(js_get_bool(o, "t.json", "s", &b, &e), ST_PARSE);
    assert_string_equal(e.msg, "t.json: s: expected true or false, got \"x\"");

    i = 42;
    assert_int_equal(js_opt_i64(o, "t", "missing", &i, &e), ST_OK);
    assert_int_equal(js_opt_i64(o, "t", "n", &i, &e), ST_OK);
    assert_int_equal(i, 42);
    assert_int_equal(js_opt_i64(o, "t", "s", &i, &e), ST_PARSE);
    assert_int_equal(js_opt_f64(o, "t", "f", &f, &e), ST_OK);
    assert_int_equal(js_opt_bool(o, "t", "a", &b, &e), ST_PARSE);
    assert_int_equal(js_opt_str(o, "t", "n", &s, &e), ST_OK);
    assert_string_equal(s, "x");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends),
        cmocka_unit_test(strings_round_trip),
        cmocka_unit_test(numbers_round_trip),
        cmocka_unit_test(parse_errors),
        cmocka_unit_test(getters),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
