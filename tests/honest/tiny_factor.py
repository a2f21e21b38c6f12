"""outputs of 1e-14 in two steps"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 1e-7 * 1e-7
