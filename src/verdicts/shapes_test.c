/* What NeMo-Gym and KernelGYM send and expect. */
#include "verdicts/shapes.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

static json_t *parse(const char *text) {
    struct err e;
    json_t *o = NULL;
    if (js_parse(text, strlen(text), "a test", &o, &e) != ST_OK) fail_msg("%s", e.msg);
    return o;
}

static void same_json(const json_t *got, const char *expected) {
    CLEANUP_JSON json_t *want = parse(expected);
    if (json_equal((json_t *)got, want)) return;
    CLEANUP_STR struct str s = STR_INIT;
    js_put_json(&s, NULL, got);
    fail_msg("got %s, expected %s", str_c(&s), expected);
}

static const char result_good[] =
    "{\"verdict\":{\"outcome\":\"correct\",\"correct\":true,\"speedup\":2.5,\"eager_ms\":5,\"kernel_ms\":2,"
    "\"message\":\"\"},\"reward\":{\"total\":3.5,\"format\":1,\"compile\":1,\"correct\":1,\"speed\":2.5},"
    "\"error\":null}";
static const char result_cheat[] =
    "{\"verdict\":{\"outcome\":\"hidden_work\",\"correct\":false,\"speedup\":null,\"eager_ms\":null,\"kernel_ms\":null,"
    "\"message\":\"a thread went on\"},\"reward\":{\"total\":0.25,\"format\":1,\"compile\":1,\"correct\":0},"
    "\"error\":null}";
static const char result_missing[] =
    "{\"verdict\":null,\"reward\":null,\"error\":{\"message\":\"the verifier died\",\"type\":\"no_verdict\"}}";

/* ---- NeMo-Gym -----------------------------------------------------------------------------------------------------*/

/* The text of a response is that of its messages' parts, without reasoning, refusals and calls of tools. */
static void test_nemo_request(void **state) {
    (void)state;
    CLEANUP_JSON json_t *row =
        parse("{\"responses_create_params\":{\"input\":[]},\"verifier_metadata\":{\"problem\":\"1/1\",\"options\":"
              "{\"trials\":2}},\"own\":7,\"response\":{\"usage\":{\"output_tokens\":12},\"output\":["
              "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"thought\"}]},"
              "{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"a\\u00e9\"},"
              "{\"type\":\"refusal\",\"refusal\":\"no\"},{\"type\":\"output_text\",\"text\":\"b\"}]},"
              "{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"},"
              "{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"c\"}]}]}}");
    CLEANUP_JSON json_t *request = NULL;
    struct verdict_refusal why;
    struct verdict_ask ask;
    assert_true(nemo_gym_request(row, &request, &why));
    same_json(request, "{\"problem\":\"1/1\",\"options\":{\"trials\":2},\"solution\":\"a\\u00e9bc\",\"extract\":true,"
                       "\"tokens\":12}");
    assert_true(verdict_ask_read(request, &ask, &why));
    assert_null(json_object_get(json_object_get(row, "verifier_metadata"), "solution")); /* the row is as it was */
}

static void test_nemo_refuses(void **state) {
    (void)state;
    static const struct {
        const char *row, *param;
    } cases[] = {
        {"{\"verifier_metadata\":{},\"response\":{\"output\":[]}}", "responses_create_params"},
        {"{\"responses_create_params\":{},\"response\":{\"output\":[]}}", "verifier_metadata"},
        {"{\"responses_create_params\":{},\"verifier_metadata\":{}}", "response"},
        {"{\"responses_create_params\":{},\"verifier_metadata\":{},\"response\":{\"output\":\"x\"}}", "response"},
        {"{\"responses_create_params\":{},\"verifier_metadata\":{\"solution\":\"x\"},\"response\":{\"output\":[]}}",
         "verifier_metadata"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP_JSON json_t *row = parse(cases[i].row);
        json_t *request = NULL;
        struct verdict_refusal why;
        assert_false(nemo_gym_request(row, &request, &why));
        assert_null(request);
        assert_int_equal(why.status, 400);
        assert_string_equal(why.param, cases[i].param);
    }
}

static void test_nemo_reply(void **state) {
    (void)state;
    CLEANUP_JSON json_t *row =
        parse("{\"responses_create_params\":{\"input\":[]},\"response\":{\"output\":[]},\"own\":7}");
    CLEANUP_JSON json_t *good = parse(result_good), *missing = parse(result_missing), *before = json_deep_copy(row);
    assert_false(nemo_gym_reply(row, missing)); /* never a reward of 0 */
    assert_false(nemo_gym_reply(row, NULL));
    assert_true(json_equal(row, before));
    assert_true(nemo_gym_reply(row, good));
    same_json(row, "{\"responses_create_params\":{\"input\":[]},\"response\":{\"output\":[]},\"own\":7,\"reward\":3.5,"
                   "\"reward_components\":{\"format\":1,\"compile\":1,\"correct\":1,\"speed\":2.5},"
                   "\"verdict\":{\"outcome\":\"correct\",\"correct\":true,\"speedup\":2.5,\"eager_ms\":5,"
                   "\"kernel_ms\":2,\"message\":\"\"},\"format\":1.0,\"compiled\":true,\"correct\":true,"
                   "\"speedup\":2.5}");
}

static void test_nemo_means(void **state) {
    (void)state;
    CLEANUP_JSON json_t *body = parse("{\"verify_responses\":[{\"reward\":1,\"correct\":true,\"speedup\":3},"
                                      "{\"reward\":0.5,\"correct\":false,\"own\":9},{\"reward\":\"bad\"}]}");
    CLEANUP_JSON json_t *none = parse("{}");
    CLEANUP_STR struct str s = STR_INIT;
    struct verdict_refusal why;
    assert_true(nemo_gym_means(body, &s, &why));
    CLEANUP_JSON json_t *got = parse(str_c(&s));
    same_json(got, "{\"group_level_metrics\":[],\"agent_metrics\":{\"mean/reward\":0.75,\"mean/correct\":0.5,"
                   "\"mean/speedup\":3},\"key_metrics\":{\"mean/reward\":0.75,\"mean/correct\":0.5,"
                   "\"mean/speedup\":3}}");
    assert_false(nemo_gym_means(none, &s, &why));
}

/* ---- KernelGYM ----------------------------------------------------------------------------------------------------*/

#define CODES "\"task_id\":\"t1\",\"reference_code\":\"class Model\",\"kernel_code\":\"class ModelNew\""

static void test_kernel_gym_request(void **state) {
    (void)state;
    CLEANUP_JSON json_t *task = parse(
        "{" CODES ",\"backend\":\"triton\",\"num_correct_trials\":3,\"num_perf_trials\":50,\"timeout\":40,"
        "\"priority\":\"high\",\"entry_point\":\"Model\",\"is_valid\":false,\"verbose_errors\":true,"
        "\"enable_profiling\":false,\"reference_backend\":null,\"force_refresh\":true,\"run_performance\":false}");
    CLEANUP_JSON json_t *request = NULL;
    struct verdict_refusal why;
    struct verdict_ask ask;
    double wait_s = 0;
    assert_true(kernel_gym_request(task, &request, &wait_s, &why));
    same_json(request, "{\"id\":\"t1\",\"problem\":{\"code\":\"class Model\"},\"solution\":\"class ModelNew\","
                       "\"backend\":\"triton\",\"options\":{\"trials\":3,\"timed_calls\":50,\"measure\":false},"
                       "\"priority\":2,\"force\":true}");
    assert_true(wait_s == 40);
    assert_true(verdict_ask_read(request, &ask, &why));
}

static void test_kernel_gym_refuses(void **state) {
    (void)state;
    static const struct {
        const char *task, *param;
    } cases[] = {
        {"{\"reference_code\":\"x\",\"kernel_code\":\"x\"}", "task_id"},
        {"{\"task_id\":\"\",\"reference_code\":\"x\",\"kernel_code\":\"x\"}", "task_id"},
        {"{\"task_id\":\"t\",\"kernel_code\":\"x\"}", "reference_code"},
        {"{\"task_id\":\"t\",\"reference_code\":\"x\",\"kernel_code\":5}", "kernel_code"},
        {"{" CODES ",\"entry_point\":\"Net\"}", "entry_point"},
        {"{" CODES ",\"precision\":\"bf16\"}", "precision"},
        {"{" CODES ",\"workflow\":\"kernel_simple\"}", "workflow"},
        {"{" CODES ",\"num_correct_trials\":21}", "num_correct_trials"},
        {"{" CODES ",\"num_perf_trials\":true}", "num_perf_trials"},
        {"{" CODES ",\"run_correctness\":false}", "run_correctness"},
        {"{" CODES ",\"priority\":\"soon\"}", "priority"},
        {"{" CODES ",\"timeout\":0}", "timeout"},
        {"[]", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP_JSON json_t *task = parse(cases[i].task);
        json_t *request = NULL;
        struct verdict_refusal why;
        double wait_s;
        assert_false(kernel_gym_request(task, &request, &wait_s, &why));
        assert_null(request);
        assert_int_equal(why.status, 400);
        assert_string_equal(why.param, cases[i].param);
    }
}

static json_t *result_for(enum job_status status, const char *result) {
    struct job_row r = {.name = "vj-1", .status = status, .created = 1700000000, .started = 1700000001};
    CLEANUP_STR struct str s = STR_INIT;
    CLEANUP_JSON json_t *o = result ? parse(result) : NULL;
    if (job_is_over(status)) r.finished = 1700000003.5;
    kernel_gym_put_result("t1", &r, o, &s);
    return parse(str_c(&s));
}

static void test_kernel_gym_result(void **state) {
    (void)state;
    CLEANUP_JSON json_t *good = result_for(JOB_SUCCEEDED, result_good),
                        *cheat = result_for(JOB_SUCCEEDED, result_cheat);
    CLEANUP_JSON json_t *missing = result_for(JOB_FAILED, result_missing), *waits = result_for(JOB_TAKEN, NULL);
    json_object_del(good, "metadata");
    same_json(good, "{\"task_id\":\"t1\",\"status\":\"completed\",\"compiled\":true,\"correctness\":true,"
                    "\"decoy_kernel\":false,\"reference_runtime\":5,\"kernel_runtime\":2,\"speedup\":2.5,"
                    "\"error_message\":null,\"error_code\":null,\"submitted_at\":\"2023-11-14T22:13:20Z\","
                    "\"completed_at\":\"2023-11-14T22:13:23Z\",\"processing_time\":2.5}");
    assert_true(json_is_true(json_object_get(cheat, "decoy_kernel")));
    assert_true(json_is_false(json_object_get(cheat, "correctness")) &&
                json_is_true(json_object_get(cheat, "compiled")));
    assert_string_equal(json_string_value(json_object_get(cheat, "error_message")), "a thread went on");
    assert_string_equal(json_string_value(json_object_get(missing, "status")), "failed");
    assert_string_equal(json_string_value(json_object_get(missing, "error_message")), "the verifier died");
    assert_true(json_is_null(json_object_get(missing, "correctness")));
    assert_string_equal(json_string_value(json_object_get(waits, "status")), "pending");
    assert_true(json_is_null(json_object_get(waits, "speedup")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nemo_request),       cmocka_unit_test(test_nemo_refuses),
        cmocka_unit_test(test_nemo_reply),         cmocka_unit_test(test_nemo_means),
        cmocka_unit_test(test_kernel_gym_request), cmocka_unit_test(test_kernel_gym_refuses),
        cmocka_unit_test(test_kernel_gym_result),
    };
    return cmocka_run_group_tests_name("shapes", tests, NULL, NULL);
}
