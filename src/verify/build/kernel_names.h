/* kernels: which of the kernels that ran in a call are an answer's own. A trace of the answer's process has the names
 * of the kernels that ran. The names in the answer's sources decide which of them count as its own, not what its
 * process says. */
#ifndef KERNELRL_VERIFY_BUILD_KERNEL_NAMES_H
#define KERNELRL_VERIFY_BUILD_KERNEL_NAMES_H

#include "base/str.h"

/* The names of functions that an answer defines to run on the GPU, each between two newlines. */
struct kernel_names {
    struct str list;
};
void kernel_names_free(struct kernel_names *n);
/* Adds the names from a source: CUDA (__global__), Python (Triton's jit), or Python with CUDA in its strings. */
void kernel_names_note(struct kernel_names *n, const char *source);

/* Returns whether a kernel belongs to PyTorch or to NVIDIA's libraries, by its name as the driver has it (mangled or
 * not). */
bool kernel_is_library(const char *name);
/* Returns whether a kernel has one of the names, as a whole: a part of a longer identifier does not count. */
bool kernel_is_own(const struct kernel_names *n, const char *name);

#endif
