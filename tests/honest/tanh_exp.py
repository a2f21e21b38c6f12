"""tanh through expm1"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.expm1(-2 * x.abs())
        return torch.sign(x) * -e / (e + 2)
