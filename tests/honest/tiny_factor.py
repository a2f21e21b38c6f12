"""outputs of 1e-12 in two steps"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 1e-6 * 1e-6
