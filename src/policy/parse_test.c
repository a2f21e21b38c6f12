/* Answers as models write them, and what is found in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/parse.h"
#include "policy/prompt.h"

#define K(body) "<KERNEL>\n" body "\n</KERNEL>"
#define F(tag, body) "```" tag "\n" body "\n```"

struct row {
    const char *text, *kernel, *thought;
    bool format_ok;
};

/* Backend c. */
static const struct row c_rows[] = {
    /* The format that is asked for, and its variants. */
    {K(F("c", "A")), "A", NULL, true},
    {K("A;"), "A;", NULL, true},
    {K(F("", "A")), "A", NULL, true},
    {K(F("C", "A")), "A", NULL, true},
    {K(F("cpp", "A")), "A", NULL, true},
    {K(F("c++", "A")), "A", NULL, true},
    {K(F("cuda", "A")), "A", NULL, true},
    {"<KERNEL>```c\nA\n```</KERNEL>", "A", NULL, true}, /* both tags on the fence's lines */
    {"<KERNEL>\n```c\nA\n```</KERNEL>", "A", NULL, true},
    {"<KERNEL>\n  ```c\n  A\n  ```\n</KERNEL>", "A", NULL, true},
    {"Here it is:\n" K(F("c", "A")) "\nIt is fast.", "A", NULL, true},
    {K("Some words.\n" F("c", "A") "\nMore words."), "A", NULL, true},
    {K(F("c\r", "A\r")), "A", NULL, true},
    {K("````c\nA\n```\nB\n````"), "A\n```\nB", NULL, true}, /* a longer fence holds a shorter one */
    /* Think blocks. */
    {"<think>\nplan\n</think>\n\n" K(F("c", "A")), "A", "plan", true},
    {"plan\n</think>\n" K(F("c", "A")), "A", "plan", true}, /* opened by the prompt */
    {"<think></think>" K(F("c", "A")), "A", NULL, true},
    {"</think>" K(F("c", "A")), "A", NULL, true},
    {"<THINKING>plan</THINKING>" K(F("c", "A")), "A", "plan", true},
    {"<thought>plan</Thought>" K(F("c", "A")), "A", "plan", true},
    {"<think>a <think> b</think>" K(F("c", "A")), "A", "a <think> b", true},
    {"<think>a</think> b </think>" K(F("c", "A")), "A", "a</think> b", true},
    {"<think>" K(F("c", "draft")) "</think>" K(F("c", "A")), "A", K(F("c", "draft")), true},
    {"<think>" F("c", "draft") "</think>" K(F("c", "A")), "A", F("c", "draft"), true},
    {"maybe " F("c", "draft") "\n</think>\n" F("c", "A"), "A", "maybe " F("c", "draft"), false}, /* prefilled */
    {"<think>" K(F("c", "draft")) "</think>and now?", NULL, K(F("c", "draft")), false},
    {"<think>\nforever", NULL, "forever", false},
    {"<think>hm " K(F("c", "A")), "A", "hm " K(F("c", "A")), true}, /* never closed */
    {"<think>hm <KERNEL>\n```c\ncut", NULL, "hm <KERNEL>\n```c\ncut", false},
    {"a < b and <thin> air" K(F("c", "A")), "A", NULL, true},
    {"<think", NULL, NULL, false},
    {"</think>", NULL, NULL, false},
    /* Several answers: the last complete one. */
    {K(F("c", "draft")) " better:\n" K(F("c", "A")), "A", NULL, true},
    {K(F("c", "A")) "\n<KERNEL>\n```c\ncut", "A", NULL, true},
    {K(F("c", "A")) "\n" F("c", "example"), "A", NULL, true},
    {F("c", "example") "\n" K(F("c", "A")), "A", NULL, true},
    {"<KERNEL> <KERNEL>\n" F("c", "A") "\n</KERNEL>", "A", NULL, true},
    {K(F("c", "draft") "\n" F("c", "A")), "A", NULL, true},
    {K(F("c", "A") "\n" F("python", "x")), "A", NULL, true},
    {K(F("python", "x") "\n" F("c", "A")), "A", NULL, true},
    {K(F("c", "A") "\n" F("c", "")), "A", NULL, true},
    /* No block: fences. */
    {F("c", "A"), "A", NULL, false},
    {F("python", "import torch") "\nthen\n" F("c", "A") "\n", "A", NULL, false},
    {F("c", "A") "\nand " F("json", "{}"), "A", NULL, false},
    {F("c", "draft") "\n" F("c", "A"), "A", NULL, false},
    {F("py", "x") "\nprose\n" F("json", "{}"), NULL, NULL, false}, /* prose between fences is no code */
    {F("triton", "x") "\nprose", NULL, NULL, false},
    {"text ```c inline``` only", NULL, NULL, false},
    {"    ```c\n    A\n    ```", "A", NULL, false},
    /* Cut off. */
    {"<KERNEL>\n```c\nnever closed", NULL, NULL, false},
    {"<KERNEL>\n```c\nnever closed\n</KERNEL>", NULL, NULL, false},
    {"<KERNEL>\n" F("c", "A"), NULL, NULL, false}, /* complete code, but the block is not */
    {"```c\nnever closed", NULL, NULL, false},
    {F("c", "A") "\n```c\ncut", "A", NULL, false},
    {"<KERNEL", NULL, NULL, false},
    {"```", NULL, NULL, false},
    /* Nothing in it. */
    {"", NULL, NULL, false},
    {"\n \t\n", NULL, NULL, false},
    {"<KERNEL></KERNEL>", NULL, NULL, false},
    {K(F("c", "")), NULL, NULL, false},
    {K(F("python", "x")), NULL, NULL, false},
    {"</KERNEL><KERNEL>", NULL, NULL, false},
    {"I cannot do that.", NULL, NULL, false},
};

/* Backends of Python modules. */
static const struct row python_rows[] = {
    {K(F("python", "A")), "A", NULL, true},
    {K(F("triton", "A")), "A", NULL, true}, /* the tag is no part of the code */
    {K(F("py", "A")), "A", NULL, true},
    {K(F("Python3", "A")), "A", NULL, true},
    {K(F("", "A")), "A", NULL, true},
    {K("A"), "A", NULL, true},
    {F("triton", "A") "\nprose", "A", NULL, false},
    {F("py", "A") "\nprose\n" F("json", "{}"), "A", NULL, false},
    {K(F("c", "x")), NULL, NULL, false},
    {F("python", "snippet") "\n</think>\n" F("python", "A"), "A", F("python", "snippet"), false},
    {K(F("python", "BLOCK = 128\nimport torch\nclass ModelNew: x")), "BLOCK = 128\nimport torch\nclass ModelNew: x",
     NULL, true}, /* leading constants stay */
    {K(F("python", "\"\"\"doc\"\"\"\nclass ModelNew: x")), "\"\"\"doc\"\"\"\nclass ModelNew: x", NULL, true},
    {K("```python\nimport x"), NULL, NULL, false}, /* cut off: not everything from the first import on */
};

static void check(const struct row *row, size_t n, enum answer_language language) {
    for (size_t i = 0; i < n; i++) {
        struct parsed p;
        parse_completion(row[i].text, strlen(row[i].text), language, &p);
        const char *want = row[i].kernel;
        if (want ? !p.kernel.p || p.kernel.n != strlen(want) || memcmp(p.kernel.p, want, p.kernel.n) != 0
                 : p.kernel.p != NULL)
            fail_msg("\"%s\": kernel \"%.*s\"", row[i].text, (int)p.kernel.n, p.kernel.p ? p.kernel.p : "");
        want = row[i].thought;
        if (want ? !p.thought.p || p.thought.n != strlen(want) || memcmp(p.thought.p, want, p.thought.n) != 0
                 : p.thought.p != NULL)
            fail_msg("\"%s\": thought \"%.*s\"", row[i].text, (int)p.thought.n, p.thought.p ? p.thought.p : "");
        assert_int_equal(p.thought_chars, row[i].thought ? strlen(row[i].thought) : 0);
        assert_int_equal(p.kernel_chars, row[i].kernel ? strlen(row[i].kernel) : 0);
        if (p.format_ok != row[i].format_ok) fail_msg("\"%s\": format_ok %d", row[i].text, p.format_ok);
        assert_true(p.answer <= strlen(row[i].text));
    }
}

static void tables(void **state) {
    (void)state;
    check(c_rows, ARRAY_LEN(c_rows), ANSWER_C);
    check(python_rows, ARRAY_LEN(python_rows), ANSWER_PYTHON);
    assert_true(ARRAY_LEN(c_rows) + ARRAY_LEN(python_rows) >= 60);
}

static size_t answer_at(const char *text) {
    struct parsed p;
    parse_completion(text, strlen(text), ANSWER_C, &p);
    return p.answer;
}

/* Where reasoning ends: behind the think block, else at the kernel. */
static void plan_and_answer(void **state) {
    (void)state;
    assert_int_equal(answer_at("<think>ab</think>x" K("A")), 17);
    assert_int_equal(answer_at("ab</think>x" K("A")), 10);
    assert_int_equal(answer_at("words " K("A")), 6);
    assert_int_equal(answer_at("words\n" F("c", "A")), 6);
    assert_int_equal(answer_at(K("A")), 0);
    assert_int_equal(answer_at("words"), 0);
    struct parsed p;
    const char *t = "x</think>I fuse both loops.\n" K("A");
    parse_completion(t, strlen(t), ANSWER_C, &p);
    assert_int_equal(p.summary.n, strlen("I fuse both loops."));
}

/* Lengths are of characters, without the blanks around. */
static void counts_characters(void **state) {
    (void)state;
    struct parsed p;
    const char *t = "<think> \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"
                    "b \n</think>" K("\xc3\xa4 = 1;");
    parse_completion(t, strlen(t), ANSWER_C, &p);
    assert_int_equal(p.thought_chars, 4);
    assert_int_equal(p.thought.n, 10);
    assert_int_equal(p.kernel_chars, 6);
}

/* What prompt_answer writes, parse_completion reads. */
static void parse_inverts_answer(void **state) {
    (void)state;
    struct str s = STR_INIT;
    const char *kernel = "// plan: x\nvoid kernel(void) {\n  int a = 1;\n}";
    prompt_answer(NULL, kernel, &s);
    struct parsed p;
    parse_completion(s.p, s.len, ANSWER_C, &p);
    assert_true(p.format_ok && p.kernel.n == strlen(kernel) && memcmp(p.kernel.p, kernel, p.kernel.n) == 0);
    str_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables),
        cmocka_unit_test(plan_and_answer),
        cmocka_unit_test(counts_characters),
        cmocka_unit_test(parse_inverts_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
