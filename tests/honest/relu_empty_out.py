"""torch.empty, fully written"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        torch.clamp(x, min=0, out=out)
        return out
