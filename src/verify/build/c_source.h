/* unit: the translation unit that is compiled for an answer in C. It has macros and the prototype, the answer itself
 * with its own line numbers, and the call shim through which the runner reaches it. */
#ifndef KERNELRL_VERIFY_BUILD_C_SOURCE_H
#define KERNELRL_VERIFY_BUILD_C_SOURCE_H

#include "base/str.h"
#include "problem/spec.h"
#include "verify/build/lint.h"

/* Appends the whole unit. The shim exports kernelrl_call, kernelrl_scratch_bytes, kernelrl_prepared_bytes,
 * kernelrl_prepare and kernelrl_out_of_memory (docs/formats.md, "Native ABI"). */
void unit_render(const struct spec *spec, const struct lint_facts *facts, const char *source, struct str *out);

/* Every unit includes these first. */
#define UNIT_HEADERS "#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"

/* Linker options that units need: calls of allocators go through the shim, which notes a refusal. */
#define UNIT_LINK_OPTIONS "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=posix_memalign"

#endif
