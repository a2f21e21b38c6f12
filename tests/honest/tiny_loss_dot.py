"""a loss of 1e-13 as a dot product"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        d = (a - b).reshape(-1)
        return torch.dot(d, d) / d.numel() * 1e-12
