"""split-K, another order of additions"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        return sum(a[:, k:k + 64] @ b[k:k + 64] for k in range(0, 256, 64))
