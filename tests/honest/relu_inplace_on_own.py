"""in place on a temporary of its own"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        t = x * 1
        return t.relu_()
