/* Bodies of requests: what is taken, what is refused and how that is said. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "serve/ask.h"

static const struct ask_limits limits = {
    .vocab = 100, .max_n = 8, .max_prompts = 4, .max_samples = 16, .max_messages = 4, .max_logprobs = 5};

static struct ask a;
static struct ask_error e;

static bool parse(enum ask_api api, const char *text) {
    ask_free(&a);
    memset(&e, 0, sizeof e);
    return ask_parse(api, text, strlen(text), &limits, &a, &e);
}

static void takes(enum ask_api api, const char *text) {
    if (!parse(api, text)) fail_msg("%s: %s", text, e.message);
}

/* Refused with that field named, and a message that has the words. */
static void refuses(enum ask_api api, const char *text, const char *param, const char *words) {
    if (parse(api, text)) fail_msg("%s was taken", text);
    assert_int_equal(e.status, 400);
    if (strcmp(e.param, param) != 0 || !strstr(e.message, words))
        fail_msg("%s: param \"%s\", message \"%s\"; expected \"%s\" and \"%s\"", text, e.param, e.message, param,
                 words);
}

static void test_defaults(void **state) {
    (void)state;
    takes(ASK_COMPLETIONS, "{\"prompt\": \"x\"}");
    assert_true(a.n == 1 && a.max_tokens == -1 && a.temperature == 1 && a.top_p == 1 && a.repetition_penalty == 1);
    assert_true(a.logprobs == -1 && a.prompt_logprobs == -1 && !a.has_seed && !a.stream && a.top_k == 0);
    assert_true(a.n_prompts == 1 && a.prompt->is_text && a.prompt->text.n == 1 && !a.model);
    takes(ASK_COMPLETIONS, "{}"); /* the model's end of text */
    assert_true(a.n_prompts == 1 && a.prompt->is_end);
    takes(ASK_COMPLETIONS, "{\"prompt\": null, \"n\": null, \"stop\": null, \"temperature\": null}");
    assert_true(a.prompt->is_end && a.n == 1);
    takes(ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    assert_true(a.end == CHAT_GENERATE && a.thinking == ASK_THINK_DEFAULT);
}

static void test_prompts(void **state) {
    (void)state;
    takes(ASK_COMPLETIONS, "{\"prompt\": [\"a\", \"b\\u0000c\"]}");
    assert_true(a.n_prompts == 2 && a.prompt[1].text.n == 3 && a.prompt[1].text.p[2] == 'c');
    takes(ASK_COMPLETIONS, "{\"prompt\": [1, 2.0, 99]}");
    assert_true(a.n_prompts == 1 && a.prompt->n_ids == 3 && a.prompt->ids[1] == 2 && a.prompt->ids[2] == 99);
    takes(ASK_COMPLETIONS, "{\"prompt\": [[1], [2, 3]]}");
    assert_true(a.n_prompts == 2 && a.prompt[1].n_ids == 2);
    refuses(ASK_COMPLETIONS, "{\"prompt\": \"\"}", "prompt", "empty string");
    refuses(ASK_COMPLETIONS, "{\"prompt\": []}", "prompt", "empty list");
    refuses(ASK_COMPLETIONS, "{\"prompt\": [[]]}", "prompt", "empty list");
    refuses(ASK_COMPLETIONS, "{\"prompt\": [100]}", "prompt", "token id 100 is out of vocabulary: expected 0 to 99");
    refuses(ASK_COMPLETIONS, "{\"prompt\": [1, \"a\"]}", "prompt", "got the string \"a\"");
    refuses(ASK_COMPLETIONS, "{\"prompt\": [\"a\", 1]}", "prompt", "got 1");
    refuses(ASK_COMPLETIONS, "{\"prompt\": [\"a\",\"a\",\"a\",\"a\",\"a\"]}", "prompt", "at most 4 prompts, got 5");
    refuses(ASK_COMPLETIONS, "{\"prompt\": true}", "prompt", "got true");
    takes(ASK_GENERATE, "{\"token_ids\": [5], \"sampling_params\": {\"n\": 2, \"seed\": -3}}");
    assert_true(a.prompt->n_ids == 1 && a.n == 2 && a.has_seed && a.seed == -3);
    refuses(ASK_GENERATE, "{\"sampling_params\": {}}", "token_ids", "got nothing");
    refuses(ASK_GENERATE, "{\"token_ids\": [5], \"sampling_params\": []}", "sampling_params", "got a list");
}

static void test_numbers(void **state) {
    (void)state;
    takes(ASK_COMPLETIONS, "{\"max_tokens\": 16.0, \"temperature\": 0, \"top_k\": -1, \"seed\": 9223372036854775807}");
    assert_true(a.max_tokens == 16 && a.temperature == 0 && a.top_k == 0 && a.seed == INT64_MAX);
    refuses(ASK_COMPLETIONS, "{\"max_tokens\": 1.5}", "max_tokens", "a whole number");
    refuses(ASK_COMPLETIONS, "{\"max_tokens\": \"5\"}", "max_tokens", "got the string \"5\"");
    refuses(ASK_COMPLETIONS, "{\"n\": true}", "n", "from 1 to 8, got true");
    refuses(ASK_COMPLETIONS, "{\"temperature\": 2.01}", "temperature", "from 0 to 2, got 2.01");
    refuses(ASK_COMPLETIONS, "{\"temperature\": -0.1}", "temperature", "got -0.1");
    refuses(ASK_COMPLETIONS, "{\"top_p\": 0}", "top_p", "above 0, up to 1");
    refuses(ASK_COMPLETIONS, "{\"seed\": 9223372036854775808}", "", "too big");
    refuses(ASK_COMPLETIONS, "{\"prompt\": [\"a\",\"b\",\"c\"], \"n\": 8}", "n", "24 sequences");
    refuses(ASK_COMPLETIONS, "{\"max_tokens\": 0}", "max_tokens", "at least 1, or echo");
    takes(ASK_COMPLETIONS, "{\"max_tokens\": 0, \"echo\": true}");
    takes(ASK_COMPLETIONS, "{\"max_tokens\": 0, \"prompt_logprobs\": 0}");
    refuses(ASK_COMPLETIONS, "{\"max_tokens\": 3, \"min_tokens\": 4}", "min_tokens", "at most max_tokens");
}

static void test_lists(void **state) {
    (void)state;
    takes(ASK_COMPLETIONS, "{\"stop\": \"x\", \"stop_token_ids\": [3], \"bad_words\": [\"a\", \"b\"]}");
    assert_true(a.stop.n == 1 && strcmp(a.stop.p[0], "x") == 0 && a.stop_ids.p[0] == 3 && a.bad_words.n == 2);
    refuses(ASK_COMPLETIONS, "{\"stop\": [\"\"]}", "stop", "got one of 0");
    refuses(ASK_COMPLETIONS, "{\"stop\": \"a\\u0000b\"}", "stop", "U+0000");
    refuses(ASK_COMPLETIONS, "{\"stop\": {}}", "stop", "got an object");
    takes(ASK_COMPLETIONS, "{\"logit_bias\": {\"5\": 1.5, \"6\": -100, \"7\": 100}}");
    assert_true(a.n_bias == 3);
    for (int i = 0; i < 3; i++)
        assert_true(a.bias[i].value == (a.bias[i].id == 5 ? 1.5f : a.bias[i].id == 6 ? -INFINITY : 100));
    refuses(ASK_COMPLETIONS, "{\"logit_bias\": {\"5\": 101}}", "logit_bias", "from -100 to 100");
    refuses(ASK_COMPLETIONS, "{\"logit_bias\": {\"100\": 1}}", "logit_bias", "from 0 to 99");
    refuses(ASK_COMPLETIONS, "{\"logit_bias\": {\"\": 1}}", "logit_bias", "from 0 to 99");
    refuses(ASK_COMPLETIONS, "{\"allowed_token_ids\": []}", "allowed_token_ids", "at least one");
}

static void test_neutral_values(void **state) {
    (void)state;
    takes(ASK_COMPLETIONS, "{\"suffix\": null, \"use_beam_search\": false, \"length_penalty\": 1.0, \"user\": {}, "
                           "\"response_format\": {\"type\": \"text\"}, \"cache_salt\": \"x\", \"best_of\": 1}");
    refuses(ASK_COMPLETIONS, "{\"suffix\": \"x\"}", "suffix", "does not fill in the middle");
    assert_string_equal(e.code, "unsupported_parameter");
    refuses(ASK_COMPLETIONS, "{\"best_of\": 2}", "best_of", "expected n");
    refuses(ASK_COMPLETIONS, "{\"response_format\": {\"type\": \"json_object\"}}", "response_format", "no constrained");
    refuses(ASK_COMPLETIONS, "{\"stream\": true, \"prompt_logprobs\": 0}", "prompt_logprobs", "cannot be streamed");
    refuses(ASK_COMPLETIONS, "{\"stream_options\": {}}", "stream_options", "needs stream");
    refuses(ASK_GENERATE, "{\"token_ids\": [1], \"stream\": true}", "stream", "not supported");
    refuses(ASK_COMPLETIONS, "{\"repetition_detection\": {}}", "repetition_detection", "not supported");
    refuses(ASK_COMPLETIONS, "{\"return_prompt_text\": true}", "return_prompt_text", "not supported");
    takes(ASK_COMPLETIONS, "{\"repetition_detection\": null, \"return_prompt_text\": false}");
    takes(ASK_COMPLETIONS, "{\"truncation_side\": \"right\"}");
    assert_true(a.truncate_right);
    takes(ASK_COMPLETIONS, "{\"truncation_side\": \"left\"}");
    assert_false(a.truncate_right);
    refuses(ASK_COMPLETIONS, "{\"truncation_side\": \"up\"}", "truncation_side", "left or right");
    takes(ASK_COMPLETIONS, "{\"stream\": true, \"stream_options\": {\"continuous_usage_stats\": true}}");
    assert_false(a.usage_always);
    takes(ASK_COMPLETIONS, "{\"what\": 1, \"is\": [], \"that\": null}");
    assert_int_equal(a.n_unknown, 3);
    takes(ASK_GENERATE, "{\"token_ids\": [1], \"sampling_params\": {\"what\": 1}}");
    assert_true(a.n_unknown == 1 && strcmp(a.unknown[0], "what") == 0);
}

#define MESSAGES(m) "{\"messages\": [" m "]}"
#define USER "{\"role\": \"user\", \"content\": \"u\"}"

static void test_messages(void **state) {
    (void)state;
    takes(ASK_CHAT, MESSAGES("{\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
                             "{\"type\": \"text\", \"text\": \"b\"}]}, " USER));
    assert_true(a.n_messages == 2 && strcmp(a.message[0].role, "system") == 0);
    assert_string_equal(a.message[0].content, "a\nb");
    takes(ASK_CHAT,
          MESSAGES(USER ", {\"role\": \"assistant\", \"content\": null, \"reasoning\": \"r\", \"tool_calls\": "
                        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                        "\"{\\\"x\\\":1}\"}}]}, {\"role\": \"tool\", \"content\": \"t\"}"));
    assert_true(a.message[1].n_calls == 1 && strcmp(a.message[1].calls[0].name, "f") == 0);
    assert_string_equal(a.message[1].calls[0].arguments, "{\"x\": 1}");
    assert_string_equal(a.message[1].reasoning, "r");
    assert_string_equal(a.message[1].content, "");
    refuses(ASK_CHAT, "{}", "messages", "got nothing");
    refuses(ASK_CHAT, MESSAGES(""), "messages", "empty list");
    refuses(ASK_CHAT, MESSAGES(USER "," USER "," USER "," USER "," USER), "messages", "at most 4, got 5");
    refuses(ASK_CHAT, MESSAGES("{\"role\": \"user\", \"content\": null}"), "messages", "content");
    refuses(ASK_CHAT, MESSAGES("{\"role\": \"robot\", \"content\": \"x\"}"), "messages", "expected system");
    refuses(ASK_CHAT, MESSAGES("5"), "messages[0]", "got 5");
    refuses(ASK_CHAT, MESSAGES("{\"role\": \"user\", \"content\": \"a\\u0000\"}"), "messages", "U+0000");
    refuses(ASK_CHAT, MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}"), "messages[0]",
            "reads text alone");
    assert_string_equal(e.code, "unsupported_parameter");
}

static void test_chat_fields(void **state) {
    (void)state;
#define CHAT(fields) "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"a\"}], " fields "}"
    takes(ASK_CHAT, CHAT("\"max_completion_tokens\": 3, \"max_tokens\": 9"));
    assert_int_equal(a.max_tokens, 3);
    takes(ASK_CHAT, CHAT("\"logprobs\": true"));
    assert_int_equal(a.logprobs, 0);
    takes(ASK_CHAT, CHAT("\"logprobs\": true, \"top_logprobs\": 2"));
    assert_int_equal(a.logprobs, 2);
    takes(ASK_CHAT, CHAT("\"logprobs\": true, \"top_logprobs\": null"));
    assert_int_equal(a.logprobs, -1);
    refuses(ASK_CHAT, CHAT("\"top_logprobs\": 2"), "top_logprobs", "needs logprobs");
    refuses(ASK_CHAT, CHAT("\"logprobs\": 2"), "logprobs", "true or false");
    takes(ASK_CHAT, CHAT("\"continue_final_message\": true"));
    assert_int_equal(a.end, CHAT_CONTINUE);
    takes(ASK_CHAT, CHAT("\"continue_final_message\": true, \"add_generation_prompt\": false"));
    refuses(ASK_CHAT, CHAT("\"continue_final_message\": true, \"add_generation_prompt\": true"),
            "continue_final_message", "cannot both");
    takes(ASK_CHAT, CHAT("\"add_generation_prompt\": false"));
    assert_int_equal(a.end, CHAT_CLOSED);
    takes(ASK_CHAT, CHAT("\"reasoning_effort\": \"none\""));
    assert_int_equal(a.thinking, ASK_THINK_NOT);
    takes(ASK_CHAT, CHAT("\"reasoning_effort\": \"none\", \"chat_template_kwargs\": {\"enable_thinking\": true}"));
    assert_int_equal(a.thinking, ASK_THINK);
    takes(ASK_CHAT, CHAT("\"tools\": [{}], \"tool_choice\": \"none\""));
    refuses(ASK_CHAT, CHAT("\"tools\": [{}]"), "tools", "not supported");
    refuses(ASK_CHAT, CHAT("\"tools\": []"), "tools", "empty list");
    refuses(ASK_CHAT, CHAT("\"prompt_logprobs\": -1"), "prompt_logprobs", "from 0 to 5");
}

static void test_json(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "nothing",
                                      "{\"prompt\": \"a\"} x",
                                      "{\"a\":}",
                                      "{\"a\": NaN}",
                                      "{\"a\": 1e999}",
                                      "\xff",
                                      "\xef\xbb\xbf{}",
                                      "{\"prompt\": \"\\ud800\"}",
                                      "{\"n\": 1, \"n\": 2}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) refuses(ASK_COMPLETIONS, bad[i], "", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_prompts),        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_lists),       cmocka_unit_test(test_neutral_values), cmocka_unit_test(test_messages),
        cmocka_unit_test(test_chat_fields), cmocka_unit_test(test_json),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ask_free(&a);
    return failed;
}
