/* extension: torch extensions of answers (load_inline, load), compiled in the compilers' jail and kept in their cache.
 * They are first compiled with the stand-in for torch's headers (worker/include/standin.h), which takes about a second
 * for a plain kernel. What needs more is compiled with the real headers, host and device halves at the same time.
 * Objects are only for the architecture at hand. */
#ifndef KERNELRL_VERIFY_BUILD_EXTENSION_H
#define KERNELRL_VERIFY_BUILD_EXTENSION_H

#include <jansson.h>

#include "problem/spec.h"
#include "verify/build/compile.h"

struct extension_tools {
    char nvcc[512];        /* Empty: there is none. */
    char architecture[64]; /* nvcc's -gencode value. Empty: there is no GPU. */
    char *standin;         /* The text of the header. */
    /* For the real headers: options of both compilers and of the linker, from the Python that will load the object. */
    char include_options[4000], link_options[2000], standard[16];
};

/* Finds nvcc (NVCC, PATH, /usr/local/cuda), and shows its toolkit and the headers to the jail. paths: the zygote's
 * reply to "paths". capability: such as "90"; NULL: there is no GPU. */
enum status extension_open(struct extension_tools *t, struct jail *jail, const json_t *paths, const char *capability,
                           struct err *e) MUST_USE;
void extension_close(struct extension_tools *t);

/* Compiles what one request of an answer asks for (worker/kernelrl_worker/build.py): cpp, cuda, functions, cflags,
 * cuda_cflags, ldflags. Fills the job's results. *standin says which headers it was compiled with. The caller frees
 * job->object. */
void extension_build(const struct extension_tools *t, struct compiler *c, const json_t *request, double timeout_s,
                     struct compile_job *job, bool *standin);

/* Appends the translation unit of a cuda_native answer, with the functions through which it is called:
 * kernelrl_native(void **arguments, void *stream) and kernelrl_scratch(). cuda: as CUDA C++, else as C++. */
void extension_native_unit(const struct spec *spec, const char *source, bool cuda, struct str *out);

/* A cuda_native answer: one CUDA C++ unit with kernel() (docs/formats.md), no torch headers. Without a GPU (for tests)
 * the host compiler takes it as C++. Fills the job's results; the caller frees job->object. */
void extension_build_native(const struct extension_tools *t, struct compiler *c, const struct spec *spec,
                            const char *source, double timeout_s, struct compile_job *job);

#endif
