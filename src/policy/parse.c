#include "policy/parse.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"

static struct slice trimmed(const char *p, const char *end) {
    while (p < end && isspace((unsigned char)*p)) p++;
    while (end > p && isspace((unsigned char)end[-1])) end--;
    return p < end ? (struct slice){p, (size_t)(end - p)} : (struct slice){NULL, 0};
}

static const char *find(const char *p, const char *end, const char *needle) {
    return p < end ? mem_find(p, (size_t)(end - p), needle, strlen(needle)) : NULL;
}

static const char *find_last(const char *p, const char *end, const char *needle) {
    const char *last = NULL, *hit;
    while ((hit = find(p, end, needle))) {
        last = hit;
        p = hit + 1;
    }
    return last;
}

/* ---- think blocks -------------------------------------------------------------------------------------------------*/

/* The first (last: the last) tag <think>, <thinking> or <thought>, or with a slash; *n is its length. */
static const char *think_tag(const char *p, const char *end, bool closing, bool last, size_t *n) {
    static const char *const names[] = {"think>", "thinking>", "thought>"};
    const char *found = NULL;
    for (; (p = p < end ? memchr(p, '<', (size_t)(end - p)) : NULL); p++) {
        const char *name = p + 1 + closing;
        if (closing && (end - p < 2 || p[1] != '/')) continue;
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            const size_t m = strlen(names[i]);
            if (name > end || (size_t)(end - name) < m || strncasecmp(name, names[i], m) != 0) continue;
            found = p;
            *n = (size_t)(name - p) + m;
            if (!last) return found;
        }
    }
    return found;
}

/* ---- fences -------------------------------------------------------------------------------------------------------*/

/* Whether a fence of this tag may hold the answer. An empty tag may. */
static bool tag_fits(const char *p, const char *end, enum answer_language language) {
    static const char *const c[] = {"c", "cpp", "c++", "cc", "h", "cuda", "cu", "hip", NULL}, *const python[] = {
                                                                                                  "python",   "py",
                                                                                                  "python3",  "triton",
                                                                                                  "cuda",     "cutedsl",
                                                                                                  "tilelang", NULL};
    const struct slice t = trimmed(p, end);
    if (t.n == 0) return true;
    for (const char *const *tag = language == ANSWER_C ? c : python; *tag; tag++)
        if (t.n == strlen(*tag) && strncasecmp(t.p, *tag, t.n) == 0) return true;
    return false;
}

/* A fence opens and closes at the start of a line (blanks allowed) with at least `ticks` backticks. Returns the next
 * such line at or after p: *line_end is its newline (or end), *tag what follows the backticks. */
static const char *next_fence(const char *begin, const char *p, const char *end, size_t ticks, const char **line_end,
                              const char **tag) {
    for (const char *f; (f = find(p, end, "```")); p = *tag) {
        *tag = f;
        while (*tag < end && **tag == '`') ++*tag;
        const char *b = f;
        while (b > begin && (b[-1] == ' ' || b[-1] == '\t')) b--;
        if ((b > begin && b[-1] != '\n') || (size_t)(*tag - f) < ticks) continue;
        const char *nl = memchr(f, '\n', (size_t)(end - f));
        *line_end = nl ? nl : end;
        return f;
    }
    return NULL;
}

/* The last complete fence in [begin,end) that may hold the answer; *at is where it opens. */
static struct slice last_fence(const char *begin, const char *end, enum answer_language language, const char **at) {
    struct slice best = {NULL, 0};
    const char *p = begin, *eol, *close_eol, *tag, *close_tag;
    for (const char *open; (open = next_fence(begin, p, end, 3, &eol, &tag)); p = close_eol) {
        if (eol == end) break;
        const char *close = next_fence(begin, eol + 1, end, (size_t)(tag - open), &close_eol, &close_tag);
        if (!close) break;
        struct slice body = trimmed(eol + 1, close);
        if (!tag_fits(tag, eol, language) || !body.p) continue;
        best = body;
        *at = open;
    }
    return best;
}

static void parse(const char *text, size_t n, enum answer_language language, struct parsed *out) {
    const char *end = text + n, *answer = text, *fence = NULL;
    size_t tag = 0, close_tag = 0;
    const char *close = think_tag(text, end, true, true, &close_tag);
    if (close) {
        const char *open = think_tag(text, close, false, false, &tag); /* absent when the prompt prefilled it */
        out->thought = trimmed(open ? open + tag : text, close);
        answer = close + close_tag;
        out->answer = (size_t)(answer - text);
    } else {
        const char *open = think_tag(text, end, false, false, &tag);
        if (open) out->thought = trimmed(open + tag, end); /* never closed: the answer may still be in there */
    }

    /* The last complete <KERNEL> block. */
    const char *block_end = NULL, *block = NULL, *p = answer;
    for (const char *k_open; (k_open = find(p, end, "<KERNEL>"));) {
        const char *k_close = find(k_open, end, "</KERNEL>");
        if (!k_close) break;
        block = find_last(k_open, k_close, "<KERNEL>") + 8; /* an opening tag inside restarts the block */
        block_end = k_close;
        p = k_close + 9;
    }
    if (block) {
        out->summary = trimmed(answer, find(answer, end, "<KERNEL>"));
        if (!close) out->answer = (size_t)(block - 8 - text);
        struct slice body = last_fence(block, block_end, language, &fence);
        if (!body.p && !find(block, block_end, "```")) body = trimmed(block, block_end);
        out->kernel = body;
        out->format_ok = body.p != NULL;
        return;
    }
    if (find(answer, end, "<KERNEL>")) return; /* cut off inside its block */
    out->kernel = last_fence(answer, end, language, &fence);
    if (fence && !close) out->answer = (size_t)(fence - text);
}

void parse_completion(const char *text, size_t n, enum answer_language language, struct parsed *out) {
    *out = (struct parsed){0};
    parse(text, n, language, out);
    if (out->thought.p) out->thought_chars = utf8_chars(out->thought.p, out->thought.n);
    if (out->kernel.p) out->kernel_chars = utf8_chars(out->kernel.p, out->kernel.n);
}
