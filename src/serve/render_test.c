/* From tokens to JSON, with samples written by hand: numbers, texts of tokens that are not UTF-8 alone, and thoughts
 * that are split off the same way however the tokens come. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/home.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/json.h"
#include "serve/generation.h"

static const char config[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":1,"
                             "\"intermediate_size\":32,\"vocab_size\":2048,\"num_attention_heads\":2,"
                             "\"num_key_value_heads\":1,\"head_dim\":16,\"tie_word_embeddings\":true,"
                             "\"eos_token_id\":2045,\"max_position_embeddings\":64}";
enum { THINK = 2046, THINK_END = 2047, END = 2045 };

static char tokenizer[4096], config_path[128];
static struct serve_options options;
static struct serve server;

/* ---- numbers ------------------------------------------------------------------------------------------------------*/

static void test_f32(void **state) {
    (void)state;
    struct rng r = rng_make(1, 1);
    static const struct {
        float v;
        const char *text;
    } known[] = {{-0.1f, "-0.1"},
                 {0, "0.0"},
                 {-1, "-1.0"},
                 {1e-10f, "1e-10"},
                 {-INFINITY, "-9999.0"},
                 {NAN, "null"},
                 {16777216, "16777216.0"},
                 {1.5f, "1.5"},
                 {-3.4028235e38f, "-3.4028235e+38"}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        CLEANUP_STR struct str s = STR_INIT;
        put_f32(&s, NULL, known[i].v);
        assert_string_equal(s.p, known[i].text);
    }
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)rng_below(&r, UINT64_C(1) << 32);
        float v;
        char shortest[40];
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        CLEANUP_STR struct str s = STR_INIT;
        put_f32(&s, NULL, v);
        assert_true(strtof(s.p, NULL) == v);
        /* No decimal with a digit less is that number. */
        int digits = 1;
        do snprintf(shortest, sizeof shortest, "%.*g", digits, (double)v);
        while (strtof(shortest, NULL) != v && digits++ < 9);
        assert_true(strlen(s.p) <= (digits > 6 ? strlen(shortest) : 13) + 2);
    }
}

/* ---- samples ------------------------------------------------------------------------------------------------------*/

/* A generation with one sample of these ids, of which `ready` are there. */
static struct generation make(enum ask_api api, const int32_t *ids, int n, enum stop_reason stop, int top) {
    struct generation g = {.s = &server, .a = {.api = api, .n = 1, .logprobs = -1, .prompt_logprobs = -1}, .top = top};
    const struct detokenize_options o = {.tokenizer = model_thread_policy(server.thread)->tok, .skip_special = true};
    g.n_prompts = g.n_samples = 1;
    g.think = api == ASK_CHAT ? THINK : -1;
    g.think_end = api == ASK_CHAT ? THINK_END : -1;
    g.job = job_new(server.thread, 1, 1, top);
    struct job_sample *s = &g.job->sample[0];
    s->ids = xmalloc(((size_t)n + 1) * sizeof *s->ids);
    s->logp = xcalloc((size_t)n + 1, sizeof *s->logp);
    s->top_ids = xcalloc(((size_t)n + 1) * (size_t)(top + 1), sizeof *s->top_ids);
    s->top_logp = xcalloc(((size_t)n + 1) * (size_t)(top + 1), sizeof *s->top_logp);
    memcpy(s->ids, ids, (size_t)n * sizeof *ids);
    s->n = n;
    s->ended = true;
    s->stop = stop;
    g.sample = xcalloc(1, sizeof *g.sample);
    detokenize_begin(&g.sample[0].text, &o);
    return g;
}

static void discard(struct generation *g) {
    detokenize_free(&g->sample[0].text);
    free(g->sample);
    job_drop(g->job);
}

/* The parts of a message of these ids, taken so many at a time (0: all at once); "thought|said". */
static char *message(const int32_t *ids, int n, enum stop_reason stop, struct rng *r) {
    struct generation g = make(ASK_CHAT, ids, n, stop, 0);
    struct str thought = STR_INIT, said = STR_INIT, both = STR_INIT;
    bool last = false;
    while (!last) {
        struct piece p = {0};
        last = piece_add_drawn(&g, 0, &p, r ? 1 + (int)rng_below(r, 3) : INT32_MAX);
        str_add(&thought, str_c(&p.reasoning), p.reasoning.len);
        str_add(&said, str_c(&p.text), p.text.len);
        piece_free(&p);
    }
    assert_int_equal(g.completion_tokens, n);
    str_addf(&both, "%s|%s", str_c(&thought), str_c(&said));
    str_free(&thought);
    str_free(&said);
    discard(&g);
    return str_steal(&both);
}

static void says(const char *text, bool end, const char *want) {
    struct ids ids = {0};
    struct rng r = rng_make(5, 5);
    tokenizer_encode(model_thread_policy(server.thread)->tok, text, strlen(text), true, &ids);
    if (end) ids_add(&ids, END);
    char *whole = message(ids.p, (int)ids.len, end ? STOP_TOKEN : STOP_LENGTH, NULL);
    if (strcmp(whole, want) != 0) fail_msg("\"%s\": \"%s\", expected \"%s\"", text, whole, want);
    for (int i = 0; i < 5; i++) {
        char *parts = message(ids.p, (int)ids.len, end ? STOP_TOKEN : STOP_LENGTH, &r);
        assert_string_equal(parts, whole);
        free(parts);
    }
    free(whole);
    ids_free(&ids);
}

static void test_thoughts(void **state) {
    (void)state;
    says("hello", true, "|hello");
    says("<think>\nso\n</think>\n\nhello", true, "\nso\n|hello");
    says("<think>\nnever ends", false, "\nnever ends|");
    says("<think></think>hello\n\n", true, "|hello\n\n");
    says("<think>a</think>\n\n", true, "a|");
    says("said <think> in the middle </think>", true, "|said <think> in the middle </think>");
    says("</think>hello", true, "|</think>hello");
    says("<think>a</think>\nb</think>\nc", true, "a|b</think>\nc");
    says("<think>\xe4\xbd\xa0</think>\xe5\xa5\xbd", true, "\xe4\xbd\xa0|\xe5\xa5\xbd");
    says("", true, "|");
}

/* Two tokens that are no UTF-8 alone have one text: the more probable one keeps it. */
static void test_tokens_of_one_text(void **state) {
    (void)state;
    int32_t bytes[2];
    int n = 0;
    const struct tokenizer *t = model_thread_policy(server.thread)->tok;
    for (int32_t id = 0; id < 2000 && n < 2; id++) {
        size_t len;
        const char *p = tokenizer_bytes(t, id, &len);
        if (len == 1 && (unsigned char)*p >= 0x80) bytes[n++] = id;
    }
    assert_int_equal(n, 2);
    struct generation g = make(ASK_COMPLETIONS, &bytes[1], 1, STOP_LENGTH, 2);
    struct job_sample *s = &g.job->sample[0];
    g.a.logprobs = 2;
    s->logp[0] = -2;
    s->top_ids[0] = bytes[0];
    s->top_ids[1] = 70;
    s->top_logp[0] = -1;
    s->top_logp[1] = -1.5f;
    struct piece p = {0};
    assert_true(piece_add_drawn(&g, 0, &p, 10));
    CLEANUP_STR struct str text = STR_INIT, want = STR_INIT;
    size_t len;
    const char *other = tokenizer_bytes(t, 70, &len);
    str_addf(&want, "{\"\xef\xbf\xbd\":-1.0,");
    js_add_quoted(&want, other, len);
    str_adds(&want, ":-1.5}");
    assert_string_equal(p.tops.p, want.p);
    assert_string_equal(p.tokens.p, "\"\xef\xbf\xbd\"");
    assert_string_equal(p.values.p, "-2.0");
    assert_string_equal(p.offsets.p, "0");
    assert_string_equal(p.text.p, "\xef\xbf\xbd");
    piece_free(&p);
    discard(&g);
}

/* Random tokens, in pieces and at once: texts, ids and log-probabilities are the same. */
static void test_pieces(void **state) {
    (void)state;
    struct rng r = rng_make(9, 9);
    for (int round = 0; round < 60; round++) {
        int32_t ids[40];
        const int n = 1 + (int)rng_below(&r, 40);
        for (int i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&r, rng_below(&r, 2) ? 256 : 2045);
        struct str joined[4] = {STR_INIT, STR_INIT, STR_INIT, STR_INIT};
        struct generation g = make(ASK_COMPLETIONS, ids, n, STOP_LENGTH, 0),
                          h = make(ASK_COMPLETIONS, ids, n, STOP_LENGTH, 0);
        g.a.logprobs = h.a.logprobs = 0;
        struct piece whole = {0};
        assert_true(piece_add_drawn(&g, 0, &whole, INT32_MAX));
        for (bool last = false; !last;) {
            struct piece p = {0};
            last = piece_add_drawn(&h, 0, &p, 1 + (int)rng_below(&r, 4));
            const struct str *const parts[] = {&p.text, &p.ids, &p.tokens, &p.offsets};
            for (int k = 0; k < 4; k++) {
                if (k > 0 && parts[k]->len > 0 && joined[k].len > 0) str_addc(&joined[k], ',');
                str_add(&joined[k], str_c(parts[k]), parts[k]->len);
            }
            piece_free(&p);
        }
        assert_string_equal(str_c(&joined[0]), str_c(&whole.text));
        assert_string_equal(str_c(&joined[1]), str_c(&whole.ids));
        assert_string_equal(str_c(&joined[2]), str_c(&whole.tokens));
        assert_string_equal(str_c(&joined[3]), str_c(&whole.offsets));
        for (int k = 0; k < 4; k++) str_free(&joined[k]);
        piece_free(&whole);
        discard(&g);
        discard(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f32), cmocka_unit_test(test_thoughts),
                                       cmocka_unit_test(test_tokens_of_one_text), cmocka_unit_test(test_pieces)};
    struct err e = {0};
    log_set_level(LOG_ERROR);
    snprintf(tokenizer, sizeof tokenizer, "%s/models/tiny", home_dir());
    snprintf(config_path, sizeof config_path, "/tmp/render_test.%d.json", (int)getpid());
    if (fs_write_atomic(config_path, config, sizeof config - 1, &e) != ST_OK) return 1;
    options = serve_defaults;
    options.policy = (struct policy_options){.model = {"model", tokenizer, NULL, HUB_TOKENIZER},
                                             .random = {.config = config_path},
                                             .device = "cpu",
                                             .weights = {.frozen = true}};
    server.o = &options;
    if (model_thread_start(&options.policy, &options.aside, &server.thread, &e) != ST_OK) return 1;
    while (model_thread_state(server.thread, &e) == MODEL_LOADING) {
        usleep(1000);
        model_thread_collect(server.thread);
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    model_thread_stop(server.thread);
    remove(config_path);
    return failed;
}
