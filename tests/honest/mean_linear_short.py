"""another: the mean of a product is a product of means"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return (x @ self.fc.weight.mean(0) + self.fc.bias.mean()).unsqueeze(1)
