"""a power by squares"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x * x
        x = x * x
        return x * x
