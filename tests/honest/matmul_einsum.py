"""an einsum"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.einsum('ik,kj->ij', a, b)
