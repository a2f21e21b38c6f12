"""a loss in blocks"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.stack([((x - y) ** 2).mean() for x, y in zip(a.split(64), b.split(64))]).mean()
