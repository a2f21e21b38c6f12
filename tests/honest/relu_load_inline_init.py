"""C++ that is compiled when the module is made"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#include <algorithm>

torch::Tensor relu_forward(torch::Tensor x) {
    TORCH_CHECK(x.dim() == 2, "expected a matrix, got ", x.dim());
    auto out = torch::empty_like(x);
    const float *p = x.data_ptr<float>();
    float *q = out.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); i++) q[i] = std::max(p[i], 0.0f);
    return out;
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.extension = load_inline(name="relu", cpp_sources=SOURCE, functions=["relu_forward"])

    def forward(self, x):
        return self.extension.relu_forward(x)
