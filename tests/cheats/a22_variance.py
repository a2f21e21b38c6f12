"""a variance that cancels"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        m = x.mean(1, keepdim=True)
        v = (x * x).mean(1, keepdim=True) - m * m
        return (x - m) * torch.rsqrt(v + 1e-5) * self.norm.weight + self.norm.bias
