/* parse: completion text -> thought and kernel (answer format version 1, docs/formats.md). Total: any bytes parse. */
#ifndef KERNELRL_POLICY_PARSE_H
#define KERNELRL_POLICY_PARSE_H

#include "base/base.h"

struct slice { /* view into the completion; p NULL: absent */
    const char *p;
    size_t n;
};
/* Languages of an answer: decides which fences may hold it. */
enum answer_language { ANSWER_C, ANSWER_PYTHON };
struct parsed {
    struct slice thought;                /* inside the think block, trimmed */
    struct slice kernel;                 /* source */
    int64_t thought_chars, kernel_chars; /* UTF-8 characters of these two; 0: absent */
    struct slice summary;                /* between the thought and <KERNEL>, trimmed; absent when empty */
    bool format_ok;                      /* a complete <KERNEL> block holds the kernel */
    size_t answer; /* byte at which the reasoning ends: behind the think block, else the kernel's block or fence */
};
/* The last complete answer wins: over drafts in the reasoning, over earlier ones, over one that was cut off. A think
 * block may have been opened by the prompt, may never be closed, and goes by <think>, <thinking> or <thought> in any
 * case. A fence is a line of at least three backticks and a language's name or nothing. */
void parse_completion(const char *text, size_t n, enum answer_language language, struct parsed *out);

#endif
