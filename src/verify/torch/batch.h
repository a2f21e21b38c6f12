/* batch: judges ModelNew answers (backends torch_cpu, cuda, triton, ...) and cuda_native ones. The trials are the same
 * for all: an answer and the reference each run in a jailed Python (torch/answer.h), the referee (torch/case.h) makes
 * inputs and compares outputs, and this process holds seeds, clock and verdict. */
#ifndef KERNELRL_VERIFY_TORCH_BATCH_H
#define KERNELRL_VERIFY_TORCH_BATCH_H

#include "verify/torch/state.h"

struct module_item {
    const struct problem *problem;
    const char *source;
    struct verdict *verdict; /* out */
    void (*done)(void *of);  /* Called in the caller's thread once the verdict is there. NULL: nobody waits for it. */
    void *of;
};
/* Judges answers in order. Their own failures are verdicts; so is our trouble (INFRASTRUCTURE). ST_CANCELLED when
 * *cancel became true in between. */
enum status module_verify(struct module_judge *j, struct module_item *items, size_t n, const volatile bool *cancel,
                          struct err *e) MUST_USE;

#endif
