"""a scripted function"""

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.jit.script
def f(x):
    return torch.tanh(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return f(x)
