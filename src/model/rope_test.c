/* The frequencies of the rotary embedding against those that transformers 5.24 computes (LlamaRotaryEmbedding.inv_freq,
 * on torch 2.15's CPU), and the configurations that ask for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "io/json.h"
#include "model/internal.h"

static struct err err;

/* Of heads of K the frequencies of pairs 0, step, 2 * step, ... */
static const struct {
    const char *name;
    int32_t K, step;
    struct rope_config rope;
    float inv[12];
} golden[] = {
    {"llama3.1-8b",
     128,
     8,
     {.type = ROPE_LLAMA3,
      .theta = 500000.0,
      .factor = 8.0,
      .original = 8192,
      .low_freq_factor = 1.0,
      .high_freq_factor = 4.0},
     {0x1p+0f, 0x1.8d276p-3f, 0x1.34119p-5f, 0x1.ddee9ep-8f, 0x1.132ba4p-11f, 0x1.1f91fp-15f, 0x1.be2188p-18f,
      0x1.5a0f4ep-20f}},
    {"llama3.2-1b",
     64,
     4,
     {.type = ROPE_LLAMA3,
      .theta = 500000.0,
      .factor = 32.0,
      .original = 8192,
      .low_freq_factor = 1.0,
      .high_freq_factor = 4.0},
     {0x1p+0f, 0x1.8d276p-3f, 0x1.34119p-5f, 0x1.ddee9ep-8f, 0x1.c26c4p-12f, 0x1.1f91fp-17f, 0x1.be2188p-20f,
      0x1.5a0f4ep-22f}},
    {"odd",
     22,
     1,
     {.type = ROPE_LLAMA3,
      .theta = 1234.5,
      .factor = 3.3,
      .original = 100,
      .low_freq_factor = 1.1,
      .high_freq_factor = 3.7},
     {0x1p+0f, 0x1.0c0e4cp-1f, 0x1.18adf2p-2f, 0x1.6cabdcp-4f, 0x1.949cb6p-6f, 0x1.86951cp-7f, 0x1.98f9ecp-8f,
      0x1.ac3c7ep-9f, 0x1.c0673cp-10f, 0x1.d58524p-11f, 0x1.eba196p-12f}},
    {"dscoder",
     128,
     8,
     {.type = ROPE_LINEAR, .theta = 100000.0, .factor = 4.0},
     {0x1p-2f, 0x1.e5a846p-5f, 0x1.ccab84p-7f, 0x1.b4f7e4p-9f, 0x1.9e7c7p-11f, 0x1.892918p-13f, 0x1.74eea6p-15f,
      0x1.61bea4p-17f}},
    {"qwen2.5 yarn",
     128,
     8,
     {.type = ROPE_YARN,
      .theta = 1000000.0,
      .factor = 4.0,
      .original = 32768,
      .beta_fast = 32,
      .beta_slow = 1,
      .truncate = true},
     {0x1p+0f, 0x1.6c310ep-3f, 0x1.030dc6p-5f, 0x1.6046eep-8f, 0x1.3c1d64p-11f, 0x1.74eea6p-15f, 0x1.094564p-17f,
      0x1.796182p-20f}},
    {"odd yarn",
     18,
     1,
     {.type = ROPE_YARN,
      .theta = 777.0,
      .factor = 2.5,
      .original = 50,
      .beta_fast = 9,
      .beta_slow = 1.5,
      .truncate = false},
     {0x1p+0f, 0x1.66d6c2p-2f, 0x1.b50046p-4f, 0x1.646e8p-5f, 0x1.544a14p-6f, 0x1.44e0c8p-7f, 0x1.362a32p-8f,
      0x1.281e2ep-9f, 0x1.1ab506p-10f}},
    {"default",
     128,
     8,
     {.type = ROPE_DEFAULT, .theta = 1000000.0},
     {0x1p+0f, 0x1.6c310ep-3f, 0x1.030dc6p-5f, 0x1.708938p-8f, 0x1.0624dep-10f, 0x1.74eea6p-13f, 0x1.094564p-15f,
      0x1.796182p-18f}},
};

static int32_t bits_of(float x) {
    int32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

/* PyTorch's own power is off by one bit now and then. */
static void test_frequencies(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        float inv[64];
        int differ = 0;
        rope_frequencies(&golden[i].rope, golden[i].K, inv);
        for (int32_t j = 0, n = 0; j < golden[i].K / 2; j += golden[i].step, n++) {
            const int off = abs(bits_of(inv[j]) - bits_of(golden[i].inv[n]));
            differ += off;
            if (off > 1)
                fail_msg("%s: pair %d: %a, expected %a", golden[i].name, j, (double)inv[j], (double)golden[i].inv[n]);
        }
        assert_true(differ <= 1);
    }
}

static void test_attention_factor(void **state) {
    (void)state;
    assert_true(fabs(rope_attention_factor(4, 0, 0) - 0x1.237d37fe5d298p+0) < 1e-15);
    assert_true(fabs(rope_attention_factor(2.5, 1.0, 0.8) - 0x1.045ef9db331e4p+0) < 1e-15);
    assert_true(rope_attention_factor(4, 1, 0) == rope_attention_factor(4, 0, 0));
    assert_true(rope_attention_factor(1, 0, 0) == 1);
}

#define SHAPE                                                                                                       \
    "{\"model_type\":\"llama\",\"vocab_size\":9,\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":1," \
    "\"num_attention_heads\":1,\"max_position_embeddings\":100,"

static enum status parse(const char *rope, struct model_config *c) {
    CLEANUP_STR struct str text = STR_INIT;
    CLEANUP_JSON json_t *j = NULL;
    str_addf(&text, SHAPE "%s}", rope);
    if (js_parse(text.p, text.len, "text", &j, &err) != ST_OK) fail_msg("%s", err.msg);
    return config_parse(j, "config.json", c, &err);
}

/* Each key counts, in both spellings of the table. */
static void test_configurations(void **state) {
    (void)state;
    struct model_config c;
    assert_int_equal(parse("\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
                           "\"low_freq_factor\":1.5,\"high_freq_factor\":4,\"original_max_position_embeddings\":32}",
                           &c),
                     ST_OK);
    assert_true(c.rope.type == ROPE_LLAMA3 && c.rope.theta == 5e5 && c.rope.factor == 8 && c.rope.original == 32);
    assert_true(c.rope.low_freq_factor == 1.5 && c.rope.high_freq_factor == 4 && c.rope.attention_factor == 1);
    assert_int_equal(parse("\"rope_parameters\":{\"rope_type\":\"linear\",\"type\":\"yarn\",\"factor\":4.0,"
                           "\"rope_theta\":1e5}",
                           &c),
                     ST_OK);
    assert_true(c.rope.type == ROPE_LINEAR && c.rope.theta == 1e5 && c.rope.factor == 4);
    assert_int_equal(parse("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}", &c), ST_OK);
    assert_true(c.rope.type == ROPE_YARN && c.rope.theta == 1e4 && c.rope.original == 100 && c.rope.beta_fast == 32);
    assert_true(c.rope.beta_slow == 1 && c.rope.truncate);
    assert_true(c.rope.attention_factor == rope_attention_factor(4, 0, 0));
    assert_int_equal(
        parse("\"original_max_position_embeddings\":50,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
              "\"original_max_position_embeddings\":60,\"beta_fast\":30,\"beta_slow\":2,\"truncate\":false,"
              "\"mscale\":1,\"mscale_all_dim\":0.5}",
              &c),
        ST_OK);
    assert_true(c.rope.original == 50 && c.rope.beta_fast == 30 && c.rope.beta_slow == 2 && !c.rope.truncate);
    assert_true(c.rope.attention_factor == rope_attention_factor(4, 1, 0.5));
    assert_int_equal(parse("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"attention_factor\":0.5}", &c),
                     ST_OK);
    assert_true(c.rope.attention_factor == 0.5);
    assert_int_equal(
        parse("\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7}", &c), ST_OK);
    assert_true(c.rope.type == ROPE_DEFAULT && c.rope.theta == 7 && c.rope.attention_factor == 1);
    assert_int_equal(parse("\"hidden_act\":\"silu\"", &c), ST_OK);
    assert_true(c.rope.type == ROPE_DEFAULT && c.rope.theta == 1e4);
}

static void test_refusals(void **state) {
    (void)state;
#define LLAMA3 "\"rope_scaling\":{\"rope_type\":\"llama3\""
    static const struct {
        const char *rope, *says;
        enum status st;
    } cases[] = {
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}",
         "rope_scaling: rope type \"dynamic\" is not supported, "
         "expected default, linear, llama3 or yarn",
         ST_UNSUPPORTED},
        {"\"rope_scaling\":{\"rope_type\":\"longrope\"}", "\"longrope\"", ST_UNSUPPORTED},
        {"\"rope_scaling\":[1]", "rope_scaling: expected an object", ST_PARSE},
        {"\"rope_scaling\":{\"rope_type\":1}", "rope_type", ST_PARSE},
        {"\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[16,24,24]}", "rope_scaling.mrope_section",
         ST_UNSUPPORTED},
        {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}", "rope_parameters.full_attention",
         ST_UNSUPPORTED},
        {"\"rope_parameters\":{\"partial_rotary_factor\":0.5}", "partial_rotary_factor: 0.5", ST_UNSUPPORTED},
        {"\"partial_rotary_factor\":0.25", "partial_rotary_factor: 0.25", ST_UNSUPPORTED},
        {"\"rope_scaling\":{\"rope_type\":\"linear\"}", "rope_scaling: factor", ST_PARSE},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}", "rope_scaling: factor: expected", ST_INVALID},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":1e300}", "rope_scaling: factor: expected", ST_INVALID},
        {LLAMA3 "}", "rope_scaling: factor", ST_PARSE},
        {LLAMA3 ",\"factor\":8}", "low_freq_factor", ST_PARSE},
        {LLAMA3 ",\"factor\":8,\"low_freq_factor\":1}", "high_freq_factor", ST_PARSE},
        {LLAMA3 ",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}", "high_freq_factor: expected",
         ST_INVALID},
        {LLAMA3 ",\"factor\":8,\"low_freq_factor\":0,\"high_freq_factor\":4}", "low_freq_factor: expected", ST_INVALID},
        {LLAMA3 ",\"factor\":8,\"original_max_position_embeddings\":-1}", "original_max_position_embeddings",
         ST_INVALID},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":0}", "beta_fast", ST_INVALID},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":-1}", "attention_factor",
         ST_INVALID},
        {"\"rope_theta\":1,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}", "rope_theta: expected a number > 1",
         ST_INVALID},
        {"\"rope_theta\":0", "rope_theta: expected a number > 0", ST_INVALID},
        {"\"rope_theta\":1e31", "rope_theta", ST_INVALID},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config c;
        if (parse(cases[i].rope, &c) != cases[i].st) fail_msg("%s: another status: %s", cases[i].rope, err.msg);
        if (!strstr(err.msg, cases[i].says) || !strstr(err.msg, "config.json"))
            fail_msg("\"%s\" lacks \"%s\"", err.msg, cases[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_frequencies), cmocka_unit_test(test_attention_factor),
                                       cmocka_unit_test(test_configurations), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
