"""through the logarithm"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.exp(torch.log_softmax(x, dim=1))
