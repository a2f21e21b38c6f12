/* paper: a backend that computes nothing and holds nothing; it counts the memory that another device would be asked
 * for. What a model takes is thus found by the code that takes it. Addresses it hands out may not be read or written.
 */
#ifndef KERNELRL_TENSOR_COUNTING_H
#define KERNELRL_TENSOR_COUNTING_H

#include "tensor/backend.h"

/* What the paper stands for. */
struct paper {
    bool bf16;
    enum dtype act;
    int64_t logit_chunk_bytes;
    int64_t bytes; /* that may be had; allocations beyond it give NULL. 0: no limit */
};
struct paper paper_of(const struct backend *be); /* the device behind be, as empty as it is now */
struct paper paper_cuda(int64_t bytes);          /* an NVIDIA GPU with this much free */

struct backend *paper_open(const struct paper *p); /* closed by its close */
int64_t paper_bytes(const struct backend *be);     /* held at present */
/* Most that the CUDA backend's ops would have held beside it for their own use, so far. */
int64_t paper_scratch_bytes(const struct backend *be);

#endif
