"""weights packed in __init__"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.w = self.fc.weight.detach().t().contiguous()
        self.b = self.fc.bias.detach().clone()

    def forward(self, x):
        return F.gelu(torch.addmm(self.b, x, self.w))
