"""try and except around an optional import"""

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    import nonexistent_kernels
except ImportError:
    nonexistent_kernels = None


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x)
