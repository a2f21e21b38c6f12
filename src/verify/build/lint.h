/* lint: what can be said about an answer without compiling it. Advisory by nature (the jail is what holds): it turns
 * the forbidden things that answers really contain into clear messages, before any process is started. */
#ifndef KERNELRL_VERIFY_BUILD_LINT_H
#define KERNELRL_VERIFY_BUILD_LINT_H

#include "base/base.h"

/* What the answer defines, as far as its tokens tell. */
struct lint_facts {
    bool has_scratch;  /* mentions scratch_bytes */
    bool has_prepared; /* mentions prepared_bytes */
    bool has_kernel;   /* mentions kernel */
    bool may_allocate; /* an allocator's name is in it, or could be pasted together */
};

/* True when the source is fine. Otherwise message says the line and the reason. Rules: #include only of the allowed
 * headers (docs/formats.md), nothing else that reads files (#include_next, #import, asm), no code that runs outside of
 * the call (constructor, destructor, ifunc; object_check.h sees to the rest), nothing that gcc would read otherwise
 * than this does (raw strings), at most 256 KiB. */
bool lint_source(const char *source, struct lint_facts *facts, char *message, size_t message_size);

#endif
