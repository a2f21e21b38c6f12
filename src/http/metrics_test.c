/* Prometheus' text format. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "http/metrics.h"

static void test_values(void **state) {
    (void)state;
    CLEANUP_STR struct str s = STR_INIT, labels = STR_INIT;
    metrics_label(&labels, "a", "x\"y\\z\n");
    metrics_label(&labels, "b", "");
    metrics_single(&s, "n_total", "counter", "Things", labels.p, 1e9);
    metrics_single(&s, "r", "gauge", "A share", NULL, 0.25);
    assert_string_equal(s.p, "# HELP n_total Things\n# TYPE n_total counter\n"
                             "n_total{a=\"x\\\"y\\\\z\\n\",b=\"\"} 1000000000\n"
                             "# HELP r A share\n# TYPE r gauge\nr 0.25\n");
}

static void test_histogram(void **state) {
    (void)state;
    static const double bounds[] = {0.5, 1, 10};
    struct histogram h = {.bound = bounds, .n = 3};
    CLEANUP_STR struct str s = STR_INIT;
    histogram_add(&h, 0.5); /* on a bound: not above it */
    histogram_add(&h, 0.75);
    histogram_add(&h, 100);
    metrics_family(&s, "t", "histogram", "Times");
    metrics_histogram(&s, "t", "m=\"x\"", &h);
    assert_string_equal(s.p, "# HELP t Times\n# TYPE t histogram\n"
                             "t_bucket{m=\"x\",le=\"0.5\"} 1\nt_bucket{m=\"x\",le=\"1\"} 2\n"
                             "t_bucket{m=\"x\",le=\"10\"} 2\nt_bucket{m=\"x\",le=\"+Inf\"} 3\n"
                             "t_sum{m=\"x\"} 101.25\nt_count{m=\"x\"} 3\n");
    str_clear(&s);
    metrics_histogram(&s, "t", NULL, &h);
    assert_non_null(strstr(s.p, "t_bucket{le=\"0.5\"} 1\n"));
    assert_non_null(strstr(s.p, "t_count 3\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_histogram)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
