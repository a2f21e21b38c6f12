"""the mean of squares less the mean's square, in double"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.view(x.shape[0], 8, -1).double()
        mean = y.mean(2, keepdim=True)
        var = (y * y).mean(2, keepdim=True) - mean * mean
        return ((y - mean) * torch.rsqrt(var + 1e-5)).float().view(x.shape)
