/* Fuzz target: answers of any bytes parse, and what the parser returns lies inside them; a kernel that prompt_answer
 * wrote comes back, alone or behind a thought and a summary. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "policy/parse.h"
#include "policy/prompt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Absent, or not empty, trimmed and inside text[0..n). */
static void check_slice(const struct slice *s, const char *text, size_t n) {
    if (!s->p) {
        ASSERT(s->n == 0);
        return;
    }
    ASSERT(s->n > 0 && s->p >= text && s->n <= n && (size_t)(s->p - text) <= n - s->n);
    ASSERT(!isspace((unsigned char)s->p[0]) && !isspace((unsigned char)s->p[s->n - 1]));
}

static void check_parsed(const struct parsed *p, const char *text, size_t n) {
    check_slice(&p->thought, text, n);
    check_slice(&p->kernel, text, n);
    check_slice(&p->summary, text, n);
    ASSERT(!p->format_ok || p->kernel.p);
}

static bool contains(const char *p, size_t n, const char *what) { return mem_find(p, n, what, strlen(what)) != NULL; }

static bool equal(const struct slice *s, const char *p, size_t n) {
    return n == 0 ? !s->p : s->p && s->n == n && memcmp(s->p, p, n) == 0;
}

/* The same text serves as the thought and as the summary. */
static void check_answer(const char *kernel) {
    size_t n = strlen(kernel);
    static const char *const marks[] = {"```", "<KERNEL>", "</KERNEL>"}, *const tags[] = {"think>", "thinking>",
                                                                                          "thought>"};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++)
        if (contains(kernel, n, marks[i])) return;
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        if (strcasestr(kernel, tags[i])) return; /* any case opens or closes a thought */
    const char *want = kernel, *end = kernel + n;
    while (want < end && isspace((unsigned char)*want)) want++;
    while (end > want && isspace((unsigned char)end[-1])) end--;
    size_t m = (size_t)(end - want);

    CLEANUP_STR struct str plain = STR_INIT, thinking = STR_INIT;
    struct parsed p;
    prompt_answer(NULL, kernel, &plain);
    parse_completion(plain.p, plain.len, ANSWER_C, &p);
    check_parsed(&p, plain.p, plain.len);
    ASSERT(equal(&p.kernel, want, m) && p.format_ok == (m > 0) && !p.thought.p && !p.summary.p);

    str_addf(&thinking, "<think>\n%s\n</think>\n\n%s\n", kernel, kernel);
    prompt_answer(NULL, kernel, &thinking);
    parse_completion(thinking.p, thinking.len, ANSWER_C, &p);
    check_parsed(&p, thinking.p, thinking.len);
    ASSERT(equal(&p.kernel, want, m) && equal(&p.thought, want, m));
    ASSERT(equal(&p.summary, want, m));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* A copy of exactly this size, so that reading past its end is seen. */
    char *text = xmalloc(size ? size : 1);
    if (size) memcpy(text, data, size);
    struct parsed p;
    parse_completion(text, size, ANSWER_C, &p);
    check_parsed(&p, text, size);
    free(text);
    char *kernel = xstrndup((const char *)data, size);
    check_answer(kernel);
    free(kernel);
    return 0;
}
