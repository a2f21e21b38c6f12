"""differences that cancel"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x - x.sum(1, keepdim=True) / x.shape[1]
