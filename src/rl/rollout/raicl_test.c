/* Examples of prompts: which, how many tokens of them, and what is refused. */
#include "rl/rollout/raicl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/home.h"
#include "rag/rag.h"

static struct err e;
static char dir[] = "/tmp/kernelrl_raicl_XXXXXX";

#define MODULE(body) "class Model:\n    def forward(self, x):\n        return " body "\n"
#define FIFTY "// one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen\n"

static const struct rag_record records[] = {
    {MODULE("torch.relu(x)"), "void kernel(int relu);", "c", "s", "1_ReLU", 1, true},
    {MODULE("torch.relu(torch.tanh(x))"), FIFTY FIFTY FIFTY FIFTY "void kernel(int longer);", "c", "s", "2", 1, true},
    {MODULE("torch.relu(torch.exp(x))"), "void kernel(int exp);", "c", "s", "3", 1, true},
    {MODULE("torch.relu(x) + x"), "@triton.jit", "triton", "s", "4", 1, true},
    {MODULE("torch.cumsum(x, dim=1)"), "void kernel(int cumsum);", "c", "s", "5", 1, true},
};
static const struct problem relu = {.key = "level1/1_ReLU", .name = "1_ReLU", .code = MODULE("torch.relu(x)")};

static void build(void) {
    struct rag_builder *b;
    struct rag_build_counts n;
    bool gathered;
    assert_int_equal(rag_builder_open(dir, "id", &b, &gathered, &e), ST_OK);
    for (size_t i = 0; i < ARRAY_LEN(records); i++) assert_int_equal(rag_builder_add(b, &records[i], &e), ST_OK);
    assert_int_equal(rag_builder_finish(b, RAG_LEXICAL, NULL, 8, NULL, &n, &e), ST_OK);
    rag_builder_close(b);
}

static void expect(const struct raicl_options *o, const char *first, const char *second, const char *third) {
    const char *const want[] = {first, second, third};
    const struct prompt_example *x;
    struct raicl *r;
    int n, wanted = 0;
    while (wanted < 3 && want[wanted]) wanted++;
    if (raicl_open(o, &r, &e) != ST_OK) fail_msg("%s", e.msg);
    for (int again = 0; again < 2; again++) { /* the second time from memory */
        assert_int_equal(raicl_examples(r, &relu, &x, &n, &e), ST_OK);
        assert_int_equal(n, wanted);
        for (int i = 0; i < n; i++)
            if (!strstr(x[i].kernel, want[i])) fail_msg("example %d is \"%s\", not %s", i, x[i].kernel, want[i]);
    }
    raicl_close(r);
}

static void examples(void **state) {
    (void)state;
    char tiny[4200];
    struct tokenizer *tok;
    snprintf(tiny, sizeof tiny, "%s/models/tiny", home_dir());
    assert_int_equal(tokenizer_open(tiny, &tok, &e), ST_OK);
    build();
    struct raicl_options o = {.examples = {.index_path = dir, .k = 3}, .backend = "c", .tok = tok};
    expect(&o, "longer", "exp", "cumsum"); /* never the problem itself, nor another backend's */
    o.examples.k = 1;
    expect(&o, "longer", NULL, NULL);
    o.examples.max_tokens = 100; /* the first is too long: the next takes its place */
    expect(&o, "exp", NULL, NULL);
    o.examples.k = 3;
    expect(&o, "exp", "cumsum", NULL);
    o.examples.max_tokens = 5;
    expect(&o, NULL, NULL, NULL);
    o.backend = "cuda";
    expect(&o, NULL, NULL, NULL);

    struct raicl *r;
    o.examples.index_path = NULL;
    assert_int_equal(raicl_open(&o, &r, &e), ST_CONFIG);
    o.examples.index_path = "/nonexistent";
    assert_int_not_equal(raicl_open(&o, &r, &e), ST_OK);
    assert_non_null(strstr(e.msg, "rag_index_path: /nonexistent: no index here"));

    struct rag_embedder em;
    setenv("RAG_DEVICE", "mlx", 1);
    assert_int_equal(raicl_embedder("models/tiny", NULL, "cpu", NULL, NULL, &em, &e), ST_CONFIG);
    assert_non_null(strstr(e.msg, "RAG_DEVICE: expected cpu"));
    unsetenv("RAG_DEVICE");
    assert_int_not_equal(raicl_embedder("/nonexistent/model", NULL, NULL, NULL, NULL, &em, &e), ST_OK);
    assert_non_null(strstr(e.msg, "--model lexical"));
    tokenizer_close(tok);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(examples)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
