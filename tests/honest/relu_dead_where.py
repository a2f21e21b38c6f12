"""rows that are nearly always zero"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x + torch.linspace(-8, 2, x.shape[0]).unsqueeze(1)
        return torch.where(y > 0, y, torch.zeros(()))
