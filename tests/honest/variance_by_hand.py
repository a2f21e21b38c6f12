"""the mean first"""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x + 20
        d = x - x.mean(1, keepdim=True)
        return (d * d).sum(1) / (x.shape[1] - 1)
