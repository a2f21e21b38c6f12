"""one infinity"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        out[0, 0] = float('inf')
        return out
