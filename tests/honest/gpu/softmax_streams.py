"""Four streams beside each other in a call, joined before it returns"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void __launch_bounds__(1024) softmax_kernel(const float *x, float *out, int64_t n) {
    __shared__ float part[32];
    const float *row = x + blockIdx.x * n;
    float *to = out + blockIdx.x * n;
    float m = -INFINITY, s = 0;
    for (int64_t i = threadIdx.x; i < n; i += 1024) m = fmaxf(m, row[i]);
    for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    m = part[threadIdx.x % 32];
    for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += 1024) s += expf(row[i] - m);
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = part[threadIdx.x % 32];
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    for (int64_t i = threadIdx.x; i < n; i += 1024) to[i] = expf(row[i] - m) / s;
}

torch::Tensor softmax_forward(torch::Tensor x) {
    static cudaStream_t side[4];
    static cudaEvent_t begun, done[4];
    auto out = torch::empty_like(x);
    int64_t rows = x.size(0) / 4, n = x.size(1);
    if (!begun) cudaEventCreateWithFlags(&begun, cudaEventDisableTiming);
    cudaEventRecord(begun, 0);
    for (int i = 0; i < 4; i++) {
        if (!side[i]) {
            cudaStreamCreateWithFlags(&side[i], cudaStreamNonBlocking);
            cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming);
        }
        cudaStreamWaitEvent(side[i], begun, 0);
        softmax_kernel<<<rows, 1024, 0, side[i]>>>(x.data_ptr<float>() + i * rows * n,
                                                   out.data_ptr<float>() + i * rows * n, n);
        cudaEventRecord(done[i], side[i]);
        cudaStreamWaitEvent(0, done[i], 0);
    }
    return out;
}
"""

extension = load_inline(
    name="rows_extension",
    cpp_sources="torch::Tensor softmax_forward(torch::Tensor x);",
    cuda_sources=CUDA,
    functions=["softmax_forward"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.softmax_forward(x)
