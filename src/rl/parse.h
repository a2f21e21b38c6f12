/* parse: completion text -> thought and kernel (answer format version 1, docs/formats.md). Total: any bytes parse. */
#ifndef KERNELRL_PARSE_H
#define KERNELRL_PARSE_H

#include "base/base.h"

struct slice { /* view into the completion; p NULL: absent */
    const char *p;
    size_t n;
};
struct parsed {
    struct slice thought; /* inside the think block, trimmed */
    struct slice kernel;  /* C source */
    struct slice summary; /* between the thought and <KERNEL>, trimmed; absent when empty */
    bool format_ok;       /* a complete <KERNEL> block holds the kernel */
};
void parse_completion(const char *text, size_t n, struct parsed *out);

#endif
