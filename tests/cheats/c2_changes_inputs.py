"""right, but leaves other inputs behind"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        x.fill_(0.5)
        return out
