"""two passes"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        m = x.mean(1, keepdim=True)
        d = x - m
        return d * torch.rsqrt((d * d).mean(1, keepdim=True) + 1e-5) * self.norm.weight + self.norm.bias
