"""a mask on full products"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        mask = torch.ones_like(a).tril()
        return ((a * mask) @ (b * mask)) * mask
