"""softmax by hand, stable"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        m = x.amax(1, keepdim=True)
        e = torch.exp(x - m)
        return e / e.sum(1, keepdim=True)
