"""a loss as a dot product"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        d = (a - b).reshape(-1)
        return torch.dot(d, d) / d.numel()
