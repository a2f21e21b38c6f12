"""one element in 262144 is off"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.relu(x)
        out[200, 1000] += 1e-2
        return out
