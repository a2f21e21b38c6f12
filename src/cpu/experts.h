/* experts: mixtures of experts on the CPU (tensor/experts.h). Products are those of the backend, an expert at a time.
 */
#ifndef KERNELRL_CPU_EXPERTS_H
#define KERNELRL_CPU_EXPERTS_H

#include "tensor/experts.h"

/* What the kernels that work on rows take. */
struct experts_args {
    const struct routing *r;
    struct tensor x, y, z; /* z.data NULL: there is none */
    float *dweight;
    bool weighted;
};

extern const struct expert_ops cpu_experts;

#endif
