"""a dense copy of a transposed input"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return (x * 3 + 1).contiguous()
