"""gelu by its formula"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        y = self.fc(x)
        return 0.5 * y * (1 + torch.erf(y / 2 ** 0.5))
