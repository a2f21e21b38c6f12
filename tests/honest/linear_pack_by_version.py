"""packed weights that notice a change"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.w, self.version = None, None

    def forward(self, x):
        if self.version != self.fc.weight._version:
            self.w, self.version = self.fc.weight.detach().t().contiguous(), self.fc.weight._version
        return F.gelu(x @ self.w + self.fc.bias)
