"""equal values in other strides"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (b.t() @ a.t()).t()
