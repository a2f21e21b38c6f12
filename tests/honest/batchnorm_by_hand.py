"""batch statistics by hand"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bn = nn.BatchNorm2d(n)

    def forward(self, x):
        v, m = torch.var_mean(x, (0, 2, 3), unbiased=False, keepdim=True)
        return (x - m) * torch.rsqrt(v + 1e-5) * self.bn.weight[:, None, None] + self.bn.bias[:, None, None]
