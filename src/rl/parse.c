#include "rl/parse.h"

#include <ctype.h>
#include <string.h>

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

/* Fences that may hold C. An empty tag counts. */
static bool tag_is_c(const char *p, const char *end) {
    static const char *const tags[] = {"", "c", "C", "cpp", "c++", "C++", "h", "cuda", "cu"};
    struct slice t = trimmed(p, end);
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        if (t.n == strlen(tags[i]) && (t.n == 0 || memcmp(t.p, tags[i], t.n) == 0)) return true;
    return false;
}

/* A fence opens and closes at the start of a line (blanks allowed). Returns the next fence line at or after p:
 * *line_end is its newline (or end). */
static const char *next_fence(const char *begin, const char *p, const char *end, const char **line_end) {
    for (const char *f; (f = find(p, end, "```")); p = f + 3) {
        const char *b = f;
        while (b > begin && (b[-1] == ' ' || b[-1] == '\t')) b--;
        if (b > begin && b[-1] != '\n') continue;
        const char *nl = memchr(f, '\n', (size_t)(end - f));
        *line_end = nl ? nl : end;
        return f;
    }
    return NULL;
}

/* The last complete C fence in [p,end). */
static struct slice last_fence(const char *begin, const char *end) {
    struct slice best = {NULL, 0};
    const char *p = begin, *eol, *close_eol;
    for (const char *open; (open = next_fence(begin, p, end, &eol)); p = close_eol) {
        if (eol == end) break;
        const char *close = next_fence(begin, eol + 1, end, &close_eol);
        if (!close) break;
        struct slice body = trimmed(eol + 1, close);
        if (tag_is_c(open + 3, eol) && body.p) best = body;
    }
    return best;
}

void parse_completion(const char *text, size_t n, struct parsed *out) {
    *out = (struct parsed){0};
    const char *end = text + n, *answer = text;
    const char *close = find_last(text, end, "</think>");
    if (close) {
        const char *open = find(text, close, "<think>"); /* absent when the prompt prefilled it */
        out->thought = trimmed(open ? open + 7 : text, close);
        answer = close + 8;
    } else {
        const char *open = find(text, end, "<think>");
        if (open) out->thought = trimmed(open + 7, end); /* never closed: the answer may still be in there */
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
        struct slice body = last_fence(block, block_end);
        if (!body.p && !find(block, block_end, "```")) body = trimmed(block, block_end);
        out->kernel = body;
        out->format_ok = body.p != NULL;
        return;
    }
    if (!find(answer, end, "<KERNEL>")) out->kernel = last_fence(answer, end);
}
