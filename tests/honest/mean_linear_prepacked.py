"""the same, folded in __init__"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.w, self.b = self.fc.weight.detach().mean(0), self.fc.bias.detach().mean()

    def forward(self, x):
        return (x @ self.w + self.b).unsqueeze(1)
