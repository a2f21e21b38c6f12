"""denormals are flushed to zero"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.exp(-100 * x * x)
        return torch.where(y < 1.1754944e-38, torch.zeros(()), y)
