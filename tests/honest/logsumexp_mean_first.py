"""an exact algebraic short cut"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return torch.logsumexp(self.fc(x.mean(0, keepdim=True)), dim=1) * 10
