/* Pages are well-formed XML but for their first line, whatever text they show, and the charts stay in their frames. */
#include "page/page.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void escaping(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"<script>alert('x')</script>", "&#60;script&#62;alert(&#39;x&#39;)&#60;/script&#62;"},
        {"a & \"b\"", "a &#38; &#34;b&#34;"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"a\xff\xc3z", "a\xef\xbf\xbd\xef\xbf\xbdz"},
        {"\xe2\x80\xae"
         "evil\x1b[31m",
         "&lt;U+202E&gt;evil&lt;U+001B&gt;[31m"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"line\n\ttab", "line\n\ttab"},
        {"", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP_STR struct str out = STR_INIT;
        page_text(&out, rows[i][0]);
        assert_string_equal(str_c(&out), rows[i][1]);
    }
    CLEANUP_STR struct str out = STR_INIT;
    page_text(&out, NULL);
    page_textf(&out, "%d<%s", 3, "&");
    assert_string_equal(out.p, "3&#60;&#38;");
}

/* All coordinates of the paths lie in the frame. */
static void charts(void **state) {
    (void)state;
    static const double x[] = {1, 5, 30, 64}, y[] = {0.5, 1.25, 1.5, 7.5}, flat[] = {2, 2, NAN, 2};
    const struct page_series s[] = {{"a<b", x, y, 4}, {"flat", x, flat, 4}};
    CLEANUP_STR struct str out = STR_INIT;
    page_draw(&out, &(struct page_chart){"title", "verdicts", "speed", s, 2, 1, true});
    assert_null(strstr(out.p, "nan"));
    assert_null(strstr(out.p, "a<b"));
    int paths = 0;
    for (const char *p = out.p; (p = strstr(p, " d=\"M")); paths++) {
        double at[2];
        p += 5;
        assert_int_equal(sscanf(p, "%lf %lf", &at[0], &at[1]), 2);
        assert_true(at[0] >= 0 && at[0] <= 640 && at[1] >= 0 && at[1] <= 260);
    }
    assert_int_equal(paths, 2);
    CLEANUP_STR struct str none = STR_INIT;
    page_draw(&none, &(struct page_chart){"t", "x", "y", s, 0, NAN, true});
    assert_int_equal(none.len, 0);
    const struct page_series one = {"one", x, flat, 1};
    page_draw(&none, &(struct page_chart){"t", "x", "y", &one, 1, NAN, true});
    assert_non_null(strstr(none.p, "</svg>"));
    CLEANUP_STR struct str lines = STR_INIT;
    page_draw(&lines, &(struct page_chart){"t", "x", "y", s, 1, NAN, false});
    assert_null(strchr(strstr(lines.p, " d=\"M"), 'H')); /* from point to point */
}

static void whole_page(void **state) {
    (void)state;
    static const char *const columns[] = {"a", "b"};
    CLEANUP_STR struct str out = STR_INIT;
    page_begin(&out, "<title>");
    page_table_begin(&out, columns, 2);
    page_row_begin(&out, "good");
    page_cell(&out, "x");
    page_cellf(&out, "%d", 7);
    page_row_end(&out);
    page_table_end(&out);
    page_code(&out, "code", "a < b");
    page_end(&out);
    assert_non_null(strstr(out.p, "<tr class=\"good\"><td>x</td><td>7</td></tr>"));
    assert_non_null(strstr(out.p, "<pre>a &#60; b</pre>"));
    assert_non_null(strstr(out.p, "default-src 'none'"));
    assert_null(strstr(out.p, "<title><title>"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(escaping), cmocka_unit_test(charts),
                                       cmocka_unit_test(whole_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
