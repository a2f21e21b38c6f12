"""CUDA through load_inline, with more of torch than the stand-in has"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void relu_kernel(const float4 *x, float4 *out, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    v.x = fmaxf(v.x, 0.0f);
    v.y = fmaxf(v.y, 0.0f);
    v.z = fmaxf(v.z, 0.0f);
    v.w = fmaxf(v.w, 0.0f);
    out[i] = v;
}

torch::Tensor relu_forward(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    auto out = at::empty_strided(x.sizes(), x.strides(), x.options());
    int64_t n = x.numel() / 4;
    relu_kernel<<<(n + 255) / 256, 256>>>((const float4 *)x.data_ptr<float>(), (float4 *)out.data_ptr<float>(), n);
    return out;
}
"""

extension = load_inline(
    name="relu_full",
    cpp_sources="torch::Tensor relu_forward(torch::Tensor x);",
    cuda_sources=CUDA,
    functions=["relu_forward"],
    verbose=True,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.extension = extension

    def forward(self, x):
        return self.extension.relu_forward(x.contiguous())
