/* The load generator's parts: server-sent events however they are cut, and the numbers of a report. That requests reach
 * a server, tests/e2e/bench_serve.sh shows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "bench/load_stats.h"

static void note_event(void *ctx, const char *data, size_t n) {
    struct str *out = ctx;
    str_adds(out, "[");
    str_add(out, data, n);
    str_adds(out, "]");
}

static void events_however_they_are_cut(void **state) {
    (void)state;
    static const char stream[] = "data: one\n\n"
                                 ": a comment\n\n"
                                 "data:two\r\ndata:  lines\r\n\r\n"
                                 "event: ping\ndata\n\n"
                                 "id: 7\n\n"
                                 "\n\n"
                                 "data: {\"a\": \"data: b\"}\r\r"
                                 "data: [DONE]\n\n"
                                 "data: never ended\n";
    static const char want[] = "[one][two\n lines][][{\"a\": \"data: b\"}][[DONE]]";
    const size_t n = sizeof stream - 1;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct rng r = rng_make(seed, 1);
        struct load_events s = {0};
        struct str got = STR_INIT;
        for (size_t at = 0, k; at < n; at += k) {
            k = seed == 0 ? n : seed == 1 ? 1 : 1 + rng_below(&r, 12);
            if (k > n - at) k = n - at;
            load_events_add(&s, stream + at, k, note_event, &got);
        }
        assert_string_equal(got.p, want);
        load_events_free(&s);
        str_free(&got);
    }
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want)))) fail_msg("%.17g, expected %.17g", got, want);
}

/* Golden numbers are NumPy's mean, median, std and percentile. */
static void summaries(void **state) {
    (void)state;
    const struct load_report report = {.percentile = {0, 10, 50, 90, 99, 99.9, 100}, .n_percentiles = 7};
    static const double want[] = {0.0075, 0.0108, 0.021, 0.3980000000000001, 0.4897999999999999, 0.4989800000000001,
                                  0.5};
    double v[] = {0.013, 0.5, 0.021, 0.0075, 0.021, 0.33, 0.09};
    struct load_summary s = load_summarize(v, 7, &report);
    near(s.mean, 0.14035714285714287);
    near(s.median, 0.021);
    near(s.deviation, 0.18134669130971096);
    for (int i = 0; i < 7; i++) near(s.percentile[i], want[i]);
    double one[] = {0.25};
    s = load_summarize(one, 1, &report);
    near(s.mean, 0.25);
    near(s.deviation, 0);
    near(s.percentile[4], 0.25);
    s = load_summarize(NULL, 0, &report);
    near(s.median, 0);
}

/* Three requests, of which one has failed. Of the others: the first has 5 tokens in 3 pieces, the second one token. */
static void a_report(void **state) {
    (void)state;
    double itl[] = {0.1, 0.3};
    const struct load_reply reply[] = {
        {.ok = true,
         .start_s = 100,
         .ttft_s = 0.2,
         .latency_s = 0.6,
         .itl_s = itl,
         .n_itl = 2,
         .input_tokens = 10,
         .output_tokens = 5,
         .queued_s = 0.01},
        {.error = "no"},
        {.ok = true, .start_s = 100.5, .ttft_s = 0.4, .latency_s = 0.4, .input_tokens = 7, .output_tokens = 1},
    };
    struct load_report report = {.metric = {[LOAD_TTFT] = true, [LOAD_TPOT] = true},
                                 .percentile = {50, 99},
                                 .n_percentiles = 2,
                                 .goodput_ms = {[LOAD_TTFT] = 300, [LOAD_TPOT] = 150},
                                 .request_rate = 2.5,
                                 .max_concurrency = 8};
    const struct load_stats s = load_stats(reply, 3, 2, &report);
    assert_int_equal(s.completed, 2);
    assert_int_equal(s.failed, 1);
    assert_int_equal(s.input_tokens, 17);
    assert_int_equal(s.output_tokens, 6);
    assert_int_equal(s.good, 1); /* the second one's first token came too late */
    assert_int_equal(s.peak_requests, 2);
    near(s.peak_tokens, 4); /* 100.2, .3, .6 and .9 */
    near(s.of[LOAD_TTFT].mean, 0.3);
    near(s.of[LOAD_TPOT].mean, 0.1); /* 0.4 s for 4 tokens; the second one has none */
    near(s.of[LOAD_ITL].mean, 0.2);
    near(s.of[LOAD_E2EL].median, 0.5);
    near(s.of[LOAD_QUEUE].mean, 0.005);
    struct str table = STR_INIT, json = STR_INIT;
    load_stats_table(&s, &report, &table);
    assert_string_equal(table.p, "============ Serving Benchmark Result ============\n"
                                 "Successful requests:                     2         \n"
                                 "Failed requests:                         1         \n"
                                 "Maximum request concurrency:             8         \n"
                                 "Request rate configured (RPS):           2.50      \n"
                                 "Benchmark duration (s):                  2.00      \n"
                                 "Total input tokens:                      17        \n"
                                 "Total generated tokens:                  6         \n"
                                 "Request throughput (req/s):              1.00      \n"
                                 "Request goodput (req/s):                 0.50      \n"
                                 "Output token throughput (tok/s):         3.00      \n"
                                 "Peak output token throughput (tok/s):    4.00      \n"
                                 "Peak concurrent requests:                2.00      \n"
                                 "Total token throughput (tok/s):          11.50     \n"
                                 "---------------Time to First Token----------------\n"
                                 "Mean TTFT (ms):                          300.00    \n"
                                 "Median TTFT (ms):                        300.00    \n"
                                 "P50 TTFT (ms):                           300.00    \n"
                                 "P99 TTFT (ms):                           398.00    \n"
                                 "-----Time per Output Token (excl. 1st token)------\n"
                                 "Mean TPOT (ms):                          100.00    \n"
                                 "Median TPOT (ms):                        100.00    \n"
                                 "P50 TPOT (ms):                           100.00    \n"
                                 "P99 TPOT (ms):                           100.00    \n"
                                 "==================================================\n");
    report.detailed = true;
    str_adds(&json, "{");
    load_stats_json(&s, &report, reply, 3, &json);
    assert_non_null(strstr(json.p, "\"request_goodput\":0.5,"));
    assert_non_null(strstr(json.p, "\"max_concurrent_requests\":2,\"mean_ttft_ms\":"));
    assert_non_null(strstr(json.p, "\"output_lens\":[5,0,1]"));
    assert_non_null(strstr(json.p, "\"errors\":[\"\",\"no\",\"\"]"));
    assert_non_null(strstr(json.p, "\"itls\":[[0.1,0.3],[],[]]"));
    str_free(&table);
    str_free(&json);
}

/* Requests that end as others begin are not under way together. */
static void peaks(void **state) {
    (void)state;
    const struct load_report report = {0};
    struct load_reply r[4] = {0};
    for (int i = 0; i < 4; i++)
        r[i] = (struct load_reply){.ok = true, .start_s = i, .ttft_s = 0.5, .latency_s = 1, .output_tokens = 1};
    assert_int_equal(load_stats(r, 4, 4, &report).peak_requests, 1);
    r[2].latency_s = 1.5;
    assert_int_equal(load_stats(r, 4, 4, &report).peak_requests, 2);
    near(load_stats(r, 4, 4, &report).peak_tokens, 1);
    near(load_stats(r, 0, 4, &report).peak_tokens, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_however_they_are_cut),
        cmocka_unit_test(summaries),
        cmocka_unit_test(a_report),
        cmocka_unit_test(peaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
