"""weights in eight bits"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        w = (self.fc.weight * 256).round() / 256
        return F.gelu(F.linear(x, w, self.fc.bias))
