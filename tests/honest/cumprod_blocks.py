"""a scan in blocks"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        carry = torch.ones(x.shape[0], 1)
        for k in range(0, x.shape[1], 64):
            out[:, k:k + 64] = torch.cumprod(x[:, k:k + 64], dim=1) * carry
            carry = out[:, k + 63:k + 64]
        return out
