"""a wild pointer"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        import ctypes
        ctypes.string_at(8)
        return torch.relu(x)
