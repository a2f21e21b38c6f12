#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "text/unicode.h"

const char SPLIT_QWEN2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char SPLIT_GPT2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct splitter {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
    bool jit;
};

/* What Oniguruma, the engine of Hugging Face's tokenizers, takes for a word character. PCRE2's \w leaves out marks and
 * connectors and takes in every number. Outside of a class Oniguruma asks a table of Latin-1 that has six more. */
#define WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* The pattern in PCRE2's terms: \s and \S spelled as the White_Space property, and \w, \W, \b, \B by WORD. A \W in
 * a class stays PCRE2's: a negated list cannot be a member of one. */
static void rewrite_classes(const char *pattern, struct str *out) {
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1]) {
            p++;
            if (*p == 's')
                str_adds(out, "\\p{White_Space}");
            else if (*p == 'S')
                str_adds(out, "\\P{White_Space}");
            else if (*p == 'w')
                str_adds(out, in_class ? WORD_IN_CLASS : "[" WORD "]");
            else if (*p == 'W' && !in_class)
                str_adds(out, "[^" WORD "]");
            else if (*p == 'b' && !in_class)
                str_adds(out, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
            else if (*p == 'B' && !in_class)
                str_adds(out, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
            else
                str_add(out, p - 1, 2);
            continue;
        }
        str_addc(out, *p);
        if (!in_class && *p == '[') {
            in_class = true;
            if (p[1] == '^') str_addc(out, *++p);
            if (p[1] == ']') str_addc(out, *++p); /* a bracket in first place is a member */
        } else if (*p == ']') {
            in_class = false;
        }
    }
}

enum status splitter_create(const char *pattern, struct splitter **out, struct err *e) {
    *out = NULL;
    CLEANUP_STR struct str rewritten = STR_INIT;
    rewrite_classes(pattern, &rewritten);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)str_c(&rewritten), rewritten.len, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!re) {
        unsigned char text[200];
        pcre2_get_error_message(code, text, sizeof text);
        return FAIL(e, ST_PARSE, "regular expression \"%.200s\": %s (near byte %zu)", pattern, (char *)text,
                    (size_t)at);
    }
    struct splitter *s = xcalloc(1, sizeof *s);
    s->code = re;
    s->match = pcre2_match_data_create_from_pattern(re, NULL);
    s->ctx = pcre2_match_context_create(NULL);
    ASSERT(s->match && s->ctx);
    /* The limits guard against hostile patterns; here only the text is hostile, and one word may be megabytes long. */
    pcre2_set_match_limit(s->ctx, UINT32_MAX);
    pcre2_set_depth_limit(s->ctx, UINT32_MAX);
    s->jit = pcre2_jit_compile(re, PCRE2_JIT_COMPLETE) == 0;
    if (s->jit) {
        s->stack = pcre2_jit_stack_create((size_t)64 << 10, (size_t)64 << 20, NULL);
        if (s->stack) pcre2_jit_stack_assign(s->ctx, NULL, s->stack);
    }
    *out = s;
    return ST_OK;
}

void splitter_free(struct splitter *s) {
    if (!s) return;
    pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->ctx);
    pcre2_match_data_free(s->match);
    pcre2_code_free(s->code);
    free(s);
}

/* One match at or after `from`; the matcher's codes. */
static int find(struct splitter *s, const char *text, size_t n, size_t from) {
    if (s->jit) {
        int rc = pcre2_jit_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, s->match, s->ctx);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->ctx);
}

void splitter_run(struct splitter *s, const char *text, size_t n, split_fn *fn, void *ctx) {
    size_t done = 0, from = 0; /* text before `done` was handed out; matching goes on at `from` */
    while (from < n) {
        int rc = find(s, text, n, from);
        if (rc < 0) {
            /* No text is ever dropped: what could not be split goes on as one word. */
            if (rc != PCRE2_ERROR_NOMATCH)
                log_warn("tokenizer: pattern matching stopped with PCRE2 error %d; %zu bytes are taken as one word", rc,
                         n - done);
            break;
        }
        const PCRE2_SIZE *m = pcre2_get_ovector_pointer(s->match);
        if (m[1] == m[0]) { /* an empty match is no word; step over one character */
            from = m[0] + (m[0] < n ? utf8_char_len(text + m[0], n - m[0]) : 1);
            continue;
        }
        if (m[0] > done) fn(ctx, text + done, m[0] - done);
        fn(ctx, text + m[0], m[1] - m[0]);
        done = from = m[1];
    }
    if (done < n) fn(ctx, text + done, n - done);
}
