"""the second of two outputs is wrong"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return x.sum(dim=1), x.sum(dim=1)
