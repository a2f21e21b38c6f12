/* Where an answer ends, and what is left of it as text. */
#include "policy/answer.h"

#include "rl/test_util.h"
#include "text/chat.h"

static struct tokenizer *bytes(void) {
    struct tokenizer *t;
    write_byte_tokenizer(in_tmp("bytes"));
    CHECK(tokenizer_open(in_tmp("bytes"), &t, &err));
    return t;
}

static void each_end_is_named_once(void **state) {
    (void)state;
    struct tokenizer *t = bytes();
    struct model_config c = {.eos = {IM_END, 7, END_OF_TEXT, 9, 10, 11, 12, 13}, .n_eos = 8};
    assert_int_equal(chat_end_of_turn(CHAT_QWEN3, t), IM_END);
    struct stop_set s = answer_stops(t, CHAT_QWEN3, &c, true);
    assert_int_equal(s.n, 8);
    for (int i = 0; i < s.n; i++)
        for (int j = 0; j < i; j++) assert_int_not_equal(s.ids[i], s.ids[j]);
    for (int i = 0; i < 8; i++) c.eos[i] = i;
    s = answer_stops(t, CHAT_QWEN3, &c, true); /* as many as there can be */
    assert_int_equal(s.n, 10);
    assert_int_equal(s.ids[0], IM_END);
    assert_int_equal(s.ids[1], END_OF_TEXT);
    s = answer_stops(t, CHAT_QWEN3, &c, false);
    assert_int_equal(s.n, 9);
    for (int i = 0; i < s.n; i++) assert_int_not_equal(s.ids[i], END_OF_TEXT);
    c.n_eos = 0;
    assert_int_equal(answer_stops(t, CHAT_QWEN3, &c, false).n, 1);
    tokenizer_close(t);
}

static void an_answer_has_no_end_in_its_text(void **state) {
    (void)state;
    struct tokenizer *t = bytes();
    const char *const strings[] = {"cd", "b"};
    const struct sample_params two = {.stop_strings = strings, .n_stop_strings = 2}, none = {0};
    const struct {
        int32_t ids[8];
        int n;
        enum stop_reason stop;
        const struct sample_params *p;
        bool skip;
        const char *text;
    } rows[] = {
        {{'a', 'b', IM_END}, 3, STOP_TOKEN, NULL, false, "ab"},
        {{'a', 'b', '!'}, 3, STOP_TOKEN, &two, false, "ab"}, /* any id may be the end; no string was it */
        {{IM_END}, 1, STOP_TOKEN, NULL, false, ""},
        {{'a', IM_END, 'b'}, 3, STOP_LENGTH, NULL, false, "a<|im_end|>b"},
        {{'a', IM_END, 'b'}, 3, STOP_LENGTH, NULL, true, "ab"},
        {{THINK, 'a'}, 2, STOP_LENGTH, NULL, true, "<think>a"}, /* added, but not special */
        {{'a', 'c', 'd', 'b', '?'}, 5, STOP_STRING, &two, false, "a"},
        {{'a', 'b', 'c', 'd', '?'}, 5, STOP_STRING, &two, false, "a"},
        {{'b', '?'}, 2, STOP_STRING, &two, false, ""},
        {{'a', 'b'}, 2, STOP_STRING, &none, false, "ab"},
        {{'a', 'b'}, 2, STOP_STRING, NULL, false, "ab"},
        {{'a', 'c', 'd'}, 3, STOP_LENGTH, &two, false, "acd"},
        {{0}, 0, STOP_CANCELLED, &two, false, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct str text = STR_INIT;
        const struct sample s = {.ids = (int32_t *)(uintptr_t)rows[i].ids, .n = rows[i].n, .stop = rows[i].stop};
        str_adds(&text, "b> "); /* it is appended, and what is there is not searched */
        answer_text(t, &s, rows[i].p, rows[i].skip, &text);
        if (strncmp(text.p, "b> ", 3) != 0 || strcmp(text.p + 3, rows[i].text) != 0)
            fail_msg("row %zu: \"%s\"", i, text.p);
        assert_int_equal(strlen(text.p), text.len);
        str_free(&text);
    }
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_end_is_named_once),
        cmocka_unit_test(an_answer_has_no_end_in_its_text),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
