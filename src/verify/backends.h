/* backends: what a verifier backend is, in one table. A new backend is a row here and its own files: an example for
 * prompts (policy/examples.c), and what its answers need of Python (worker/kernelrl_worker/build.py). */
#ifndef KERNELRL_BACKENDS_H
#define KERNELRL_BACKENDS_H

#include <stdbool.h>

#include "base/choice.h"

/* X(value, name, title of its kernels, tag of an answer's fence, ending of an answer's file, columns of
 * struct backend_info from is_module on) */
/* clang-format off */
#define BACKEND_LIST(X) \
    X(BACKEND_c, c, "C kernels", "c", "c", false, true, false, "", "") \
    X(BACKEND_torch_cpu, torch_cpu, "PyTorch modules", "python", "py", true, true, false, "", "") \
    X(BACKEND_cuda, cuda, "CUDA operators", "python", "py", true, false, false, "__global__", \
      "load_inline|load|cpp_extension") \
    X(BACKEND_triton, triton, "Triton kernels", "python", "py", true, false, true, "", \
      "triton . jit|triton . autotune|@ jit&tl . *") \
    X(BACKEND_cuda_native, cuda_native, "CUDA kernels", "cuda", "cu", false, false, false, "__global__", "") \
    X(BACKEND_tilelang, tilelang, "TileLang kernels", "python", "py", true, false, false, "", "") \
    X(BACKEND_cute, cute, "CuTe (CUTLASS) kernels", "python", "py", true, false, false, "", "") \
    X(BACKEND_hip, hip, "AMD HIP kernels", "python", "py", true, false, false, "", "") \
    X(BACKEND_thunderkittens, thunderkittens, "ThunderKittens kernels", "python", "py", true, false, false, "", "")
/* clang-format on */
enum verify_backend { CHOICE_ENUM(BACKEND_LIST) N_BACKENDS };

struct backend_info {
    const char *name;   /* the value of dataset_builder.backend */
    const char *title;  /* "C kernels": what a prompt asks for */
    const char *fence;  /* tag of the answer's fence */
    const char *ending; /* of an answer's file */
    bool is_module;     /* an answer is a Python module with class ModelNew; else one function kernel() */
    bool on_cpu;        /* answers run on the CPU unless a device is named; else on cuda:0 */
    bool in_python;     /* kernels are compiled by the answer's Python when they are called first (Triton) */
    /* Static rules: patterns of static_check.c that must be in the C or CUDA part, and in the Python part; | between
     * alternatives, & between what is needed together. "": nothing. */
    const char *c_needs, *python_needs;
};
const struct backend_info *backend_info(enum verify_backend b);
const char *backend_name(enum verify_backend b);
/* The row of that name; NULL when there is none. */
const struct backend_info *backend_named(const char *name);
/* False when there is no such backend. */
bool backend_from_name(const char *name, enum verify_backend *out);

#endif
