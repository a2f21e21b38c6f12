"""one NaN among many right values"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        out[17, 23] = float('nan')
        return out
