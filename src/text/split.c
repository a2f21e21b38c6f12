#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "text/newer.h"
#include "text/pattern.h"
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
    struct str older; /* of a run: the text without characters that are newer than PCRE2 */
};

enum status splitter_create(const char *pattern, struct splitter **out, struct err *e) {
    *out = NULL;
    CLEANUP_STR struct str ours = STR_INIT;
    if (pattern_translate(pattern, &ours, e) != ST_OK) return err_note(e, "regular expression");
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *how = pcre2_compile_context_create(NULL);
    ASSERT(how && pcre2_set_newline(how, PCRE2_NEWLINE_LF) == 0);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)str_c(&ours), ours.len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, how);
    pcre2_compile_context_free(how);
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
    str_free(&s->older);
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
    str_clear(&s->older);
    const char *subject = newer_replace(text, n, &s->older) ? s->older.p : text;
    size_t done = 0, from = 0; /* text before `done` was handed out; matching goes on at `from` */
    while (from <= n) {
        int rc = find(s, subject, n, from);
        if (rc < 0) {
            /* No text is ever dropped: what could not be split goes on as one piece. */
            if (rc != PCRE2_ERROR_NOMATCH)
                log_warn("tokenizer: pattern matching stopped with PCRE2 error %d; %zu bytes are taken as one word", rc,
                         n - done);
            break;
        }
        const PCRE2_SIZE *m = pcre2_get_ovector_pointer(s->match);
        if (m[0] > done) fn(ctx, text + done, m[0] - done, false);
        if (m[1] > m[0]) fn(ctx, text + m[0], m[1] - m[0], true);
        done = from = m[1];
        if (m[1] == m[0]) from += m[0] < n ? utf8_char_len(text + m[0], n - m[0]) : 1; /* an empty match */
    }
    if (done < n) fn(ctx, text + done, n - done, false);
}
