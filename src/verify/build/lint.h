/* lint: what can be said about an answer without compiling it. It only advises, since the jail is what holds. It turns
 * the forbidden things that answers really contain into clear messages, before any process is started. */
#ifndef KERNELRL_VERIFY_BUILD_LINT_H
#define KERNELRL_VERIFY_BUILD_LINT_H

#include "base/base.h"

/* What the answer defines, as far as its tokens tell. */
struct lint_facts {
    bool has_scratch;  /* true: it mentions scratch_bytes. */
    bool has_prepared; /* true: it mentions prepared_bytes. */
    bool has_kernel;   /* true: it mentions kernel. */
    bool may_allocate; /* true: an allocator's name is in it, or could be pasted together. */
};

/* Returns whether the source is fine. If not, message says the line and the reason. The rules: #include only of the
 * allowed headers (docs/formats.md); nothing else that reads files (#include_next, #import, asm); no code that runs
 * outside of the call (constructor, destructor, ifunc; object_check.h sees to the rest); nothing that gcc would read
 * otherwise than this function does (raw strings); at most 256 KiB. */
bool lint_source(const char *source, struct lint_facts *facts, char *message, size_t message_size);

#endif
