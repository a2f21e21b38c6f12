"""by its cases"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        d = (a - b).abs()
        return torch.where(d < 1, 0.5 * d * d, d - 0.5).sum(0).sum() / d.numel()
