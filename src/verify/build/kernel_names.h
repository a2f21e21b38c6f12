/* kernels: which of the kernels that ran in a call are an answer's own. Their names come from a trace of the answer's
 * process; what counts as its own is decided here, by the names in its sources, not by what that process says. */
#ifndef KERNELRL_VERIFY_BUILD_KERNEL_NAMES_H
#define KERNELRL_VERIFY_BUILD_KERNEL_NAMES_H

#include "base/str.h"

/* Names of functions that an answer defines to run on the GPU, each between two newlines. */
struct kernel_names {
    struct str list;
};
void kernel_names_free(struct kernel_names *n);
/* Adds those of a source: of CUDA (__global__) or Python (Triton's jit), or Python with CUDA in its strings. */
void kernel_names_note(struct kernel_names *n, const char *source);

/* A kernel of PyTorch or of NVIDIA's libraries, by its name as the driver has it (mangled or not). */
bool kernel_is_library(const char *name);
/* A kernel with one of the names, as a whole: a part of a longer identifier does not count. */
bool kernel_is_own(const struct kernel_names *n, const char *name);

#endif
